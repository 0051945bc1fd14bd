//! The trait of all structures.

use std::fmt;

/// The arena is used up, or the structure cannot grow any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no room is left")
    }
}

impl std::error::Error for Full {}

/// The guarantees of a structure. The tests, which all structures share, check only these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// It keeps its keys in order, so it can [scan](Peer::scan).
    pub ordered: bool,
    /// It grows. Otherwise, the number of slots is fixed.
    pub grows: bool,
    /// An operation finds its key even if another thread moves the record meanwhile.
    pub finds_moved: bool,
    /// Of two threads that insert the same key at the same time, only one succeeds.
    pub inserts_once: bool,
}

impl Promises {
    /// Those of a hash table whose concurrent operations are correct.
    pub const HASH: Promises =
        Promises { ordered: false, grows: true, finds_moved: true, inserts_once: true };
    /// Those of an ordered structure whose concurrent operations are correct.
    pub const ORDERED: Promises = Promises { ordered: true, ..Promises::HASH };
}

/// A structure with 8-byte keys and values.
///
/// Keys are neither 0 nor `u64::MAX`: the structures use these as marks of empty slots and as
/// bounds.
pub trait Peer: Send + Sync {
    /// What the structure promises.
    fn promises(&self) -> Promises;

    /// Returns the value of a key.
    fn get(&self, key: u64) -> Option<u64>;

    /// Inserts a record unless the key is present. Returns whether the key was absent.
    ///
    /// # Errors
    /// [`Full`], and then nothing is inserted.
    fn insert(&self, key: u64, value: u64) -> Result<bool, Full>;

    /// Replaces the value of a key. Returns whether the key was present.
    ///
    /// # Errors
    /// [`Full`], and then nothing is replaced.
    fn update(&self, key: u64, value: u64) -> Result<bool, Full>;

    /// Removes a key. Returns whether it was present.
    fn remove(&self, key: u64) -> bool;

    /// Appends up to `records` records to `found`, in key order from `from` on. Structures without
    /// an order append nothing.
    fn scan(&self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) {
        let _ = (from, records, found);
    }

    /// Returns the number of record slots, from which the load factor follows. Returns `None` if
    /// slots are allocated one for each record.
    fn slots(&self) -> Option<u64> {
        None
    }

    /// Returns how often the structure has grown: resizes, splits and doublings.
    fn growths(&self) -> u64;

    /// Returns how often all of it was rebuilt while other changes waited.
    fn rebuilds(&self) -> u64 {
        0
    }

    /// Returns how many threads share the work of such a rebuild.
    fn rebuilders(&self) -> u64 {
        1
    }

    /// Returns how many bytes it has allocated in its arena, without those that it has freed.
    fn bytes(&self) -> u64;

    /// Returns the bytes of its index in DRAM, if it has one and knows them.
    fn index_bytes(&self) -> Option<u64> {
        None
    }
}
