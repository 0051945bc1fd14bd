//! The options of the structures.

use crate::shared::Locks;

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
    /// CCEH: whether an insert looks for its key first. The published code does not.
    pub unique: bool,
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
        }
    }
}
