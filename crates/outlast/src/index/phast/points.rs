//! The commit points of PhaST. The module's documentation says what each is for.

crate::commit_points! { "phast":
    /// A new record's block. Fenced by [`INSERT_PAIR`] or [`UPDATE_RECORD`].
    RECORD = "record block": store, flush;
    /// Insert: the pair. In a blank slot it has no fence of its own.
    INSERT_PAIR = "insert: pair": store, flush, fence;
    /// Insert's commit: fingerprint and bit.
    INSERT = "insert: bit": store, flush, fence;
    /// Update in place: the value.
    UPDATE = "update: pair": store, flush, fence;
    /// Update: the new record, before the link to it, or before it is freed.
    UPDATE_RECORD = "update: record": fence;
    /// Update of the link to the record.
    UPDATE_LINK = "update: link": store, flush, fence;
    /// Remove: the bit.
    REMOVE = "remove: bit": store, flush, fence;
    /// The fence that several changes share.
    MANY = "many: fence": fence;
    /// Persist-on-read: what a result depends on and another thread has not made durable yet.
    HELP = "help: what is not yet durable": flush, fence;
    /// A map's master array and first leaf. They are fenced together with the root's fixed words,
    /// before the root's commit word.
    CREATE = "create: master and leaf": store, flush;
    /// The block of a byte-string separator. Fenced by [`SPLIT_NEW`].
    SEPARATOR = "split: separator": store, flush;
    /// A split's new leaf.
    SPLIT_NEW = "split: new leaf": store, flush, fence;
    /// A split's commit: the old leaf's link to the new one.
    SPLIT_COMMIT = "split: link": store, flush, fence;
    /// The slots that a split frees. Fenced by [`SPLIT_CLEAR`].
    SPLIT_BLANK = "split: blank slots": store, flush;
    /// The end of a split: the bits of the pairs that have moved.
    SPLIT_CLEAR = "split: bits": store, flush, fence;
    /// Compacting: the slots that it frees, before an insert uses them.
    COMPACT_BLANK = "compact: blank slots": store, flush, fence;
    /// The old leaf's link again, without the mark *moving*, once the cleared bits are durable. Not
    /// flushed: if a crash keeps the mark, recovery only has to read the leaf's keys once more.
    SPLIT_DONE = "split: done": volatile;
    /// A merge's copies, blank slots beside them, and the mark that there may be copies.
    MERGE_COPY = "merge: copies": store, flush, fence;
    /// The bits of the copies.
    MERGE_BITS = "merge: bits": store, flush, fence;
    /// A merge's commit: the left leaf's link past the right one.
    MERGE_COMMIT = "merge: link": store, flush, fence;
    /// A new entry of the master array. Fenced by [`SPLIT_CLEAR`]. Whether it is there affects only
    /// the time that opening takes.
    MASTER_NEW = "partition: new entry": store, flush;
    /// The removal of an entry, before that of its leaf.
    MASTER_GONE = "partition: entry": store, flush, fence;
    /// Recovery: what leaves hold, before any operation uses them. If an earlier process died
    /// between a store and its flush, the store is still in the processor's caches.
    REPAIR_FOUND = "repair: what was found": flush, fence;
    /// Recovery: the bits of pairs that a split has moved away, that a merge has copied but not
    /// taken over, or that an insert has not written.
    REPAIR_CLEAR = "repair: bits": store, flush, fence;
}
