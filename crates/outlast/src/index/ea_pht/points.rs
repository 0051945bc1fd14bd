//! The commit points of the EA-PHT family. The module's documentation says what each is for.

/// The commit points of all three schemes.
mod common {
    crate::commit_points! { "ea-pht":
        /// A new record's block.
        RECORD = "record block": store, flush, fence;
        /// Insert: the slot.
        INSERT = "insert: slot": store, flush, fence;
        /// Update in place: the value.
        UPDATE = "update: slot": store, flush, fence;
        /// Update of the link to the record.
        UPDATE_LINK = "update: link": store, flush, fence;
        /// Remove.
        REMOVE = "remove: slot": store, flush, fence;
        /// A map's first table. It is fenced together with the root's fixed words, before the root's
        /// commit word.
        CREATE = "create: table": store, flush;
        /// The mark that an overflow bucket has no owner. Durable before the counter covers the
        /// bucket. Opening after a crash stores it in every bucket that no chain links to.
        DISOWN = "overflow: no owner": store, flush, fence;
        /// The number of overflow buckets that were handed out. Fenced with the bucket.
        COUNTER = "overflow: counter": store, flush;
        /// An overflow bucket with its first record.
        NODE_NEW = "overflow: new bucket": store, flush, fence;
        /// The link to an overflow bucket.
        NODE_COMMIT = "overflow: link": store, flush, fence;
        /// The owner of an overflow bucket, once the link to it is durable. It needs no flush: opening
        /// after a crash stores it again.
        OWNER = "overflow: owner": lazy;
        /// A new annex.
        ANNEX_NEW = "annex: new": store, flush, fence;
        /// The link to a new annex.
        ANNEX_COMMIT = "annex: link": store, flush, fence;
        /// A resize's new table: its header, and those of its chunks and annexes. Fenced with the
        /// first copies, or with `RESIZE_BEGIN`.
        RESIZE_NEW = "resize: new table": store, flush;
        /// A resize's copies of records.
        MOVE_NEW = "resize: copies": store, flush, fence;
        /// A resize's commit: the root.
        RESIZE_COMMIT = "resize: root": store, flush, fence;
        /// Opening after a crash: all buckets, before any operation uses them. If an earlier process
        /// died between a store and its flush, the store is still in the processor's caches.
        OPENING = "opening: buckets": flush, fence;
    }
}

pub use common::*;

// The commit points of EA-PHT, which has its locks in PM.
crate::commit_points! { "ea-pht" and common::ALL:
    /// A bucket's lock. It needs no flush, because opening resets it.
    LOCK = "lock": volatile;
}

/// The commit points of EA-PHT-H.
pub mod hybrid {
    pub use super::common::*;
}

/// The commit points of EA-PHT-HPR, whose resize a crash does not undo.
pub mod parallel {
    pub use super::common::*;

    crate::commit_points! { "ea-pht" and super::common::ALL:
        /// A resize's beginning: the root names the next table. There is a fence before the store, and
        /// one after it.
        RESIZE_BEGIN = "resize: next table": store, flush, fence;
        /// A bucket's records are in the next table.
        MOVE_COMMIT = "resize: bucket moved": store, flush, fence;
    }
}

pub use parallel::{MOVE_COMMIT, RESIZE_BEGIN};
