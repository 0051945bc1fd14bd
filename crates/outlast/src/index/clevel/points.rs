//! The commit points of clevel. The module's documentation says what each is for.

crate::commit_points! { "clevel":
    /// A new record's block: durable before a slot or another record leads to it.
    RECORD = "record block": store, flush, fence;
    /// The word that says whether a new record is an insert or a replacement, changed while no other
    /// thread can reach the record. After a crash, either is correct.
    RECORD_KIND = "record block: kind": volatile;
    /// An insert announces its record. Void after a crash.
    ANNOUNCE = "insert: announcement": volatile;
    /// The decision which of several inserts of a key wins. After a crash, the slot shows it.
    DECIDE = "insert: decision": volatile;
    /// The removal of an announcement that has lost, or of an unconfirmed copy.
    WITHDRAW = "withdrawn: announcement or copy": store, flush, fence;
    /// An insert takes effect.
    INSERT = "insert: slot": store, flush, fence;
    /// Persist-on-read: a slot that was found in effect but pending.
    MET_SLOT = "met: slot": flush, fence;
    /// An insert that another insert of the key found decided but not in effect. It becomes
    /// pending, and is persisted like any pending slot.
    MET_DECIDED = "met: decided insert": store;
    /// Persist-on-read: the state of a record that was found replaced or removed but pending.
    MET_STATE = "met: state": flush, fence;
    /// The mark P is removed, because the word is durable.
    UNMARK = "mark taken away": volatile;
    /// A replacement's commit: the state of the record that it replaces.
    UPDATE = "update: state": store, flush, fence;
    /// Slots that led through the replaced record.
    UPDATE_SLOT = "update: slot": store, flush, fence;
    /// A removal's commit: the record's state.
    REMOVE = "remove: state": store, flush, fence;
    /// Slots that led to the removed record.
    REMOVE_SLOT = "remove: slot": store, flush, fence;
    /// A map's first level and context. Fenced with the root's fixed words.
    CREATE = "create: level and context": store, flush;
    /// A new level, empty: durable before a context names it.
    LEVEL = "expansion: new level": store, flush, fence;
    /// A level kept ready for the next expansion.
    READY = "expansion: level kept ready": store, flush, fence;
    /// The smallest level, kept ready as the reserve that dropping a level takes in a full pool.
    RESERVE = "expansion: level kept in reserve": store, flush, fence;
    /// A new context: durable before the root names it.
    CONTEXT = "new context": store, flush, fence;
    /// The root, naming a new context.
    CONTEXT_COMMIT = "context's commit: root": store, flush, fence;
    /// Persist-on-read: a root that was found changed but pending.
    MET_ROOT = "met: root": flush, fence;
    /// A copy of a slot in a newer level, not confirmed. Void after a crash.
    COPY = "rehash: copy": volatile;
    /// The confirmation of a copy: durable before the slot that it was made from is frozen.
    CONFIRM = "rehash: copy confirmed": store, flush, fence;
    /// A slot of the oldest level that is no longer needed.
    FREEZE = "rehash: slot": store, flush, fence;
    /// Closes a chain of the oldest level: no more nodes are added to it. This is for threads that
    /// know an older context, and no such thread survives a crash.
    CLOSE = "rehash: chain closed": volatile;
    /// The progress of rehashing. It only saves rework.
    PROGRESS = "rehash: progress": volatile;
    /// A new overflow node: durable before it is linked.
    NODE = "overflow: new node": store, flush, fence;
    /// The link to a new overflow node: durable before a record in the node is.
    NODE_LINK = "overflow: link": store, flush, fence;
    /// Persist-on-read: a pending link, persisted by a thread that puts something behind it, before
    /// that becomes visible.
    MET_LINK = "met: link": flush, fence;
    /// First touch: voids what was announced, or copied but not confirmed, before a crash.
    REPAIR_VOID = "repair: void slot": store;
    /// First touch: what a bucket holds, before results depend on it.
    REPAIR_FOUND = "repair: what was found": flush, fence;
    /// First touch of a chain: its links. Fenced with the buckets behind them.
    REPAIR_CHAIN = "repair: chain": flush;
    /// The trace: a slot that led to a removed record, or through a replaced one.
    REPAIR_SLOT = "repair: slot": store, flush, fence;
}
