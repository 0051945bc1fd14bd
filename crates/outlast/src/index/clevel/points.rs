//! The commit points of clevel; what each is for stands in the module's documentation.

crate::commit_points! { "clevel":
    /// A new record's block: durable before a slot or another record leads to it.
    RECORD = "record block": store, flush, fence;
    /// What a record that nobody can reach yet is to be: an insert, or a replacement. Either
    /// is right after a crash.
    RECORD_KIND = "record block: kind": volatile;
    /// An insert announces its record. Void after a crash.
    ANNOUNCE = "insert: announcement": volatile;
    /// Which of the inserts of a key wins. After a crash the slot tells.
    DECIDE = "insert: decision": volatile;
    /// An announcement that has lost goes, or a copy that is not confirmed.
    WITHDRAW = "withdrawn: announcement or copy": store, flush, fence;
    /// An insert takes effect.
    INSERT = "insert: slot": store, flush, fence;
    /// A slot that was found in effect, but maybe not durable: by whom the answer rests on it.
    MET_SLOT = "met: slot": flush, fence;
    /// An insert that was found decided, and not in effect, by another insert of the key. It is
    /// met then, as any that may not be durable.
    MET_DECIDED = "met: decided insert": store;
    /// The state of a record that was found replaced or removed, but maybe not durably so.
    MET_STATE = "met: state": flush, fence;
    /// A mark P is taken away: what it was about is durable.
    UNMARK = "mark taken away": volatile;
    /// A replacement's commit: the state of the record that it replaces.
    UPDATE = "update: state": store, flush, fence;
    /// Slots that led through the replaced record.
    UPDATE_SLOT = "update: slot": store, flush, fence;
    /// A removal's commit: the record's state.
    REMOVE = "remove: state": store, flush, fence;
    /// Slots that led to the removed record.
    REMOVE_SLOT = "remove: slot": store, flush, fence;
    /// The header that tells of a map of this scheme: durable before there is one.
    FEATURE = "header copy: feature": store, flush, fence;
    /// A map's first level and context. Fenced with the root's fixed words.
    CREATE = "create: level and context": store, flush;
    /// A new level, empty: durable before a context names it.
    LEVEL = "expansion: new level": store, flush, fence;
    /// A level kept ready for the next expansion.
    READY = "expansion: level kept ready": store, flush, fence;
    /// A new context: durable before the root names it.
    CONTEXT = "new context": store, flush, fence;
    /// The root, naming a new context.
    CONTEXT_COMMIT = "context's commit: root": store, flush, fence;
    /// A root that was found changed, but maybe not durably.
    MET_ROOT = "met: root": flush, fence;
    /// A copy of a slot in a newer level, not confirmed. Void after a crash.
    COPY = "rehash: copy": volatile;
    /// The copy confirmed: durable before the slot that it was made of goes.
    CONFIRM = "rehash: copy confirmed": store, flush, fence;
    /// A slot of the oldest level that is not needed any more.
    FREEZE = "rehash: slot": store, flush, fence;
    /// Nothing is added to this chain of the oldest level any more. It tells those who know an
    /// older context, and a crash leaves none of them.
    CLOSE = "rehash: chain closed": volatile;
    /// How far rehashing has come. It only saves rework.
    PROGRESS = "rehash: progress": volatile;
    /// A new overflow node: durable before it is linked.
    NODE = "overflow: new node": store, flush, fence;
    /// Its link: durable before a record in it is.
    NODE_LINK = "overflow: link": store, flush, fence;
    /// A link that was found set, but maybe not durable, by who puts something behind it:
    /// durable before that can be seen.
    MET_LINK = "met: link": flush, fence;
    /// First touch: what was announced, or copied and not confirmed, before a crash is void.
    REPAIR_VOID = "repair: void slot": store;
    /// First touch: what a bucket holds, before an answer rests on it.
    REPAIR_FOUND = "repair: what was found": flush, fence;
    /// First touch of a chain: its links. Fenced with the buckets behind them.
    REPAIR_CHAIN = "repair: chain": flush;
    /// The trace: a slot that led to a removed record, or through a replaced one.
    REPAIR_SLOT = "repair: slot": store, flush, fence;
}
