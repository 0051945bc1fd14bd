//! How long ago keys were used, for eviction.
//!
//! A table in memory has, for each hash, the number of the use that was the last of any key of this hash. As the
//! servers do, eviction looks at a few random keys, and takes the one that was used the longest ago. After a
//! restart all keys count as used equally long ago. Keys that share an entry count as used when any of them was.

use crate::place::{PREFIX, place_of};
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries of the table, 4 bytes each.
const ENTRIES: usize = 1 << 20;

/// The last use of each key, by hashes.
pub struct Uses {
    now: AtomicU32,
    last: Box<[AtomicU32]>,
}

impl Uses {
    /// Makes an empty table.
    pub fn new() -> Uses {
        Uses { now: AtomicU32::new(0), last: (0..ENTRIES).map(|_| AtomicU32::new(0)).collect() }
    }

    fn entry(&self, place: &[u8]) -> &AtomicU32 {
        let hash = place[..PREFIX].iter().fold(0, |hash, &byte| hash << 8 | usize::from(byte));
        &self.last[hash % ENTRIES]
    }

    /// Notes that the key at a place is used now.
    pub fn note(&self, place: &[u8]) {
        let now = self.now.fetch_add(1, Ordering::Relaxed);
        self.entry(place).store(now, Ordering::Relaxed);
    }

    /// Returns how many uses of any keys were since that of a key.
    pub fn age(&self, key: &[u8]) -> u32 {
        let last = self.entry(&place_of(key)).load(Ordering::Relaxed);
        self.now.load(Ordering::Relaxed).wrapping_sub(last)
    }
}

impl Default for Uses {
    fn default() -> Uses {
        Uses::new()
    }
}
