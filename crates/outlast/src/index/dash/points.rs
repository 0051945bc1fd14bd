//! The commit points of segments and their directories. [`super`] says what each is for.

crate::commit_points! { "dash":
    /// A map's first directory and segments. They are fenced together with the root's fixed words,
    /// before the root's commit word.
    CREATE = "create: directory and segments": store, flush;
    /// A new record's block.
    RECORD = "record block": store, flush, fence;
    /// Insert into a bucket.
    INSERT = "insert: slot": store, flush, fence;
    /// Insert into a stash bucket or an overflow node.
    INSERT_OVERFLOW = "insert into the stash: slot": store, flush, fence;
    /// Displacement, first half: the copy.
    DISPLACE_COPY = "displacement: copy": store, flush, fence;
    /// Displacement, second half: the new record over the moved one.
    DISPLACE_FILL = "displacement: slot": store, flush, fence;
    /// Update in place: the value.
    UPDATE = "update: slot": store, flush, fence;
    /// Update of the link to the record.
    UPDATE_LINK = "update: link": store, flush, fence;
    /// Remove.
    REMOVE = "remove: slot": store, flush, fence;
    /// Changes of several keys: what they share the fence of. Their slots are flushed as above.
    MANY = "many: fence": fence;
    /// The blocks of the records of such changes, which [`RECORD`] has flushed.
    MANY_RECORDS = "many: record blocks": fence;
    /// A split's new segment. The fence also covers its overflow nodes.
    SPLIT_NEW = "split: new segment": store, flush, fence;
    /// A split's overflow nodes. Fenced by [`SPLIT_NEW`].
    SPLIT_NODE = "split: new overflow nodes": store, flush;
    /// A split's commit: the old segment's state.
    SPLIT_COMMIT = "split: state": store, flush, fence;
    /// The old segment's state once the directory is durable. Not flushed: it only saves recovery
    /// from checking the directory.
    SPLIT_DONE = "split: done": volatile;
    /// Compaction after a split: the copies of the records that move.
    COMPACT_COPY = "compaction: copy": store, flush, fence;
    /// Compaction after a split: the slots that they leave.
    COMPACT_CLEAR = "compaction: slot": store, flush, fence;
    /// After a split that has emptied the old segment's overflow nodes: its link to them. Fenced by
    /// [`COMPACT_CLEAR`].
    NODES_GONE = "split: no overflow nodes": store, flush;
    /// The doubled directory.
    DOUBLE_NEW = "doubling: new directory": store, flush, fence;
    /// A new overflow node.
    NODE_NEW = "overflow: new node": store, flush, fence;
    /// The link to a new overflow node.
    NODE_COMMIT = "overflow: link": store, flush, fence;
    /// Recovery: flushes a whole segment before any operation uses it. If an earlier process died
    /// between a store and its flush, the store is still in the processor's caches.
    REPAIR_FOUND = "repair: what was found": flush, fence;
    /// Recovery: removal of second copies of records. One fence for all of a segment.
    REPAIR_DUPLICATE = "repair: duplicate": store, flush, fence;
}
