//! The commit points of group hashing. The module's documentation says what each is for.

crate::commit_points! { "group":
    /// A new record's block.
    RECORD = "record block": store, flush, fence;
    /// Insert: the cell.
    INSERT = "insert: cell": store, flush, fence;
    /// Update in place: the value.
    UPDATE = "update: cell": store, flush, fence;
    /// Update of the link to the record.
    UPDATE_LINK = "update: link": store, flush, fence;
    /// Remove.
    REMOVE = "remove: cell": store, flush, fence;
    /// A map's first segments. They are fenced together with the root's fixed words, before the
    /// root's commit word.
    CREATE = "create: segments": store, flush;
    /// A split's new segment, with its overflow nodes.
    SPLIT_NEW = "split: new segment": store, flush, fence;
    /// A split's commit: the old segment's link to the new one.
    SPLIT_COMMIT = "split: link": store, flush, fence;
    /// A new overflow node.
    NODE_NEW = "overflow: new node": store, flush, fence;
    /// The link to a new overflow node.
    NODE_COMMIT = "overflow: link": store, flush, fence;
    /// Opening after a crash: all segments, before any operation uses them. If an earlier process
    /// died between a store and its flush, the store is still in the processor's caches.
    OPENING = "opening: segments": flush, fence;
}
