//! Eviction, and how long ago keys were used.
//!
//! A table in memory has, for each hash, the number of the use that was the last of any key of this hash. As the
//! servers do, eviction looks at a few random keys, and takes the one that was used the longest ago. After a
//! restart all keys count as used equally long ago. Keys that share an entry count as used when any of them was.

use super::Store;
use crate::place::{PREFIX, place_of};
use crate::reply::Result;
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries of the table, 4 bytes each.
const ENTRIES: usize = 1 << 20;

/// Keys among which an eviction chooses, and that of a large value.
const SAMPLE: usize = 8;
const LARGE_SAMPLE: usize = 64;

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

impl Store {
    /// Notes from now on when keys are used, for [`evict`](Self::evict).
    pub fn note_uses(&mut self) {
        self.uses = Some(Uses::new());
    }

    /// Removes one of a few random keys: the one that was used the longest ago. Returns it and the bytes that it
    /// took, without those of a hash's fields; `None` if there are no keys.
    pub fn evict(&self) -> Result<Option<(Vec<u8>, u64)>> {
        let mut oldest: Option<(u32, Vec<u8>)> = None;
        for _ in 0..SAMPLE {
            let Some(key) = self.random_key()? else { break };
            let age = self.uses.as_ref().map_or(0, |uses| uses.age(&key));
            if oldest.as_ref().is_none_or(|(oldest, _)| *oldest < age) {
                oldest = Some((age, key));
            }
        }
        let Some((_, key)) = oldest else { return Ok(None) };
        let bytes = key.len() as u64 + self.value_bytes(&key)?;
        self.remove(&key)?;
        Ok(Some((key, bytes)))
    }

    fn value_bytes(&self, key: &[u8]) -> Result<u64> {
        Ok(self.keys.get_ref(&place_of(key))?.map_or(0, |value| value.bytes().len() as u64))
    }

    /// Removes one of some random keys to make room for a value of `wanted` bytes: of those with a value as large, the
    /// one that was used the longest ago, and if there are none, the one with the largest value, if that is at least a
    /// quarter as large. Returns it and the bytes that it took; `None` if there is no such key.
    pub fn evict_large(&self, wanted: u64) -> Result<Option<(Vec<u8>, u64)>> {
        let mut best = None;
        for _ in 0..LARGE_SAMPLE {
            let Some(key) = self.random_key()? else { break };
            let bytes = self.value_bytes(&key)?;
            let age = self.uses.as_ref().map_or(0, |uses| uses.age(&key));
            let rank = if bytes >= wanted { (wanted, age) } else { (bytes, 0) };
            if bytes >= wanted / 4 && best.as_ref().is_none_or(|(other, _, _)| *other < rank) {
                best = Some((rank, key, bytes));
            }
        }
        let Some((_, key, bytes)) = best else { return Ok(None) };
        self.remove(&key)?;
        Ok(Some((key, bytes)))
    }

    /// Removes the older three quarters of some keys that lie beside each other, so that parts of the map become
    /// free as a whole; no more once their values have `most` bytes. Returns them.
    pub fn evict_neighbors(&self, count: usize, most: u64) -> Result<Vec<Vec<u8>>> {
        let Some(first) = self.random_key()? else { return Ok(Vec::new()) };
        let first = place_of(&first);
        let places = self.keys.range((Bound::Included(&first[..]), Bound::Unbounded)).take(count);
        let keys: Vec<Vec<u8>> =
            places.map(|record| Ok(record?.0[PREFIX..].to_vec())).collect::<Result<_>>()?;
        let age = |key: &Vec<u8>| self.uses.as_ref().map_or(0, |uses| uses.age(key));
        let mut keys: Vec<(u32, Vec<u8>)> = keys.into_iter().map(|key| (age(&key), key)).collect();
        keys.sort_unstable_by(|one, other| other.cmp(one));
        keys.truncate((keys.len() * 3).div_ceil(4));
        let (mut gone, mut bytes) = (Vec::new(), 0);
        for (_, key) in keys {
            bytes += self.value_bytes(&key)?;
            self.remove(&key)?;
            gone.push(key);
            if bytes >= most {
                break;
            }
        }
        Ok(gone)
    }

    pub(super) fn note_use(&self, place: &[u8]) {
        if let Some(uses) = &self.uses {
            uses.note(place);
        }
    }
}
