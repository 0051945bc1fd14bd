//! The options of the structures.

use crate::shared::{Keys, Locks};

/// The options of all structures. Each uses those that it knows.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Size of the arena in bytes. Untouched pages take no space.
    pub arena_bytes: u64,
    /// Bytes at the arena's beginning that are touched when it is made, so that no operation meets
    /// a page for the first time.
    pub touched_bytes: u64,
    /// Number of record slots to begin with, at least.
    pub initial_slots: u64,
    /// How threads wait for locks.
    pub locks: Locks,
    /// Level hashing: slots per bucket. With 4 a bucket takes two lines, as in Dash's evaluation;
    /// with 3, one.
    pub bucket_slots: u64,
    /// CCEH and group hashing: whether an insert looks for its key first. CCEH's published code does not, nor
    /// does group hashing's Algorithm 1.
    pub unique: bool,
    /// CCEH: whether lookups and changes lock the directory for reading. clevel hashing's authors added
    /// this, because a doubling frees the old directory; ours does not.
    pub directory_lock: bool,
    /// Level hashing, CCEH and P-CLHT: where keys lie. The nodes of cmap have them in any case.
    pub keys: Keys,
    /// The tables of group hashing's evaluation: bytes of a cell, 16 or 32. The latter have keys of 16 bytes.
    pub cell_bytes: u64,
    /// Group hashing: cells of a group.
    pub group_size: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            arena_bytes: 1 << 30,
            touched_bytes: 0,
            initial_slots: 1 << 10,
            locks: Locks::default(),
            bucket_slots: 4,
            unique: true,
            directory_lock: false,
            keys: Keys::default(),
            cell_bytes: 16,
            group_size: 256,
        }
    }
}
