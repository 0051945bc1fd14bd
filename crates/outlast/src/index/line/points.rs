//! The commit points. [`super`] says what each is for.

crate::commit_points! { "line":
    /// A map's first directory and segments. They are fenced together with the root's fixed words,
    /// before the root's commit word.
    CREATE = "create: directory and segments": store, flush;
    /// A new record's block.
    RECORD = "record block": store, flush, fence;
    /// Insert into the home line.
    INSERT = "insert: slot": store, flush, fence;
    /// Insert into another line of the block.
    INSERT_AWAY = "insert away: slot": store, flush, fence;
    /// Insert into the stash or an overflow node.
    INSERT_OVERFLOW = "insert into the stash: slot": store, flush, fence;
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
    /// A new overflow node.
    NODE_NEW = "overflow: new node": store, flush, fence;
    /// The link to a new overflow node.
    NODE_COMMIT = "overflow: link": store, flush, fence;
    /// A rebuild's new segments. The fence also covers its overflow nodes.
    REBUILD_NEW = "rebuild: new segments": store, flush, fence;
    /// A rebuild's overflow nodes. Fenced by [`REBUILD_NEW`].
    REBUILD_NODE = "rebuild: new overflow nodes": store, flush;
    /// A rebuild's commit: the intent in the root.
    REBUILD_COMMIT = "rebuild: intent": store, flush, fence;
    /// A rebuild's cells in the directory.
    REBUILD_CELLS = "rebuild: cells": store, flush, fence;
    /// The doubled directory.
    DOUBLE_NEW = "doubling: new directory": store, flush, fence;
    /// A doubling's commit: the root.
    DOUBLE_COMMIT = "doubling: root": store, flush, fence;
    /// Recovery: the cells of the last rebuild that committed. Fenced by [`REPAIR_FOUND`].
    REPAIR_CELLS = "repair: cells": store, flush;
    /// Recovery: flushes a segment and its nodes before any operation uses them. If an earlier
    /// process died between a store and its flush, the store is still in the processor's caches.
    REPAIR_FOUND = "repair: what was found": flush, fence;
}
