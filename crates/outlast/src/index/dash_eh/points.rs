//! The commit points of Dash-EH; what each is for stands in the module's documentation.

crate::commit_points! { "dash-eh":
    /// Locks and metadata: rebuilt after a crash, never flushed.
    VOLATILE = "bucket metadata";
    /// A new record's block.
    RECORD = "record block";
    /// Insert into a bucket.
    INSERT = "insert: slot";
    /// Insert into a stash bucket or an overflow node.
    INSERT_OVERFLOW = "insert into the stash: slot";
    /// Displacement, first half: the copy.
    DISPLACE_COPY = "displacement: copy";
    /// Displacement, second half: the new record over the moved one.
    DISPLACE_FILL = "displacement: slot";
    /// Update in place, or of the link to the record.
    UPDATE = "update: slot";
    /// Remove.
    REMOVE = "remove: slot";
    /// A map's first directory and segments.
    CREATE = "create: directory and segments";
    /// A split's new segment and its overflow nodes.
    SPLIT_NEW = "split: new segment";
    /// A split's commit: the old segment's state.
    SPLIT_COMMIT = "split: state";
    /// A split's directory entries.
    SPLIT_DIRECTORY = "split: directory entries";
    /// The old segment's state once the directory is durable. Not flushed: it only saves
    /// recovery a look at the directory.
    SPLIT_DONE = "split: done";
    /// Records that come back from the stash after a split: their copies.
    PULL_COPY = "back from the stash: copy";
    /// And the stash slots they leave.
    PULL_CLEAR = "back from the stash: slot";
    /// The doubled directory.
    DOUBLE_NEW = "doubling: new directory";
    /// Doubling's commit: the root.
    DOUBLE_COMMIT = "doubling: root";
    /// A new overflow node.
    NODE_NEW = "overflow: new node";
    /// Its link.
    NODE_COMMIT = "overflow: link";
    /// Recovery: a segment as first touch found it, with its nodes and entries.
    REPAIR_FOUND = "repair: what was found";
    /// Recovery: the second copy of a record goes.
    REPAIR_DUPLICATE = "repair: duplicate";
    /// Recovery: a split's directory entries.
    REPAIR_DIRECTORY = "repair: directory entries";
}
