//! Level hashing (Zuo, Hua and Wu, OSDI 2018).
//!
//! Compared with in clevel hashing (2.4.1, 4.1), Dash (6.1 to 6.4) and the EA-PHT thesis (3.8).
//!
//! # Structure
//!
//! Two levels of buckets; the top one has twice as many as the bottom one. A bucket has a word of
//! tokens, one bit a slot, and some slots. A key has two buckets in each level, one in each half of
//! it, by two hash functions. A slot's record is there if its token is set.
//!
//! An insert takes a free slot of the top level, else of the bottom level, the first slots first,
//! so that the two buckets fill evenly. It makes the record durable and then its token: two
//! flushes. If all four buckets are full, one record is moved to its other bucket in the same
//! level, or from the bottom level to the top level (one-step movement). If none can be moved, a
//! new top level with twice as many buckets is made, the bottom level's records are moved there,
//! and the old top level becomes the bottom level.
//!
//! An update writes the new record to a free slot of the same bucket and changes both tokens with
//! one store. If there is none, it stores the value in place.
//!
//! # Concurrency
//!
//! Each slot has a reader-writer lock, and each operation locks one slot after the other. A resize
//! excludes all operations. As published (clevel hashing, 2.4.1; EA-PHT thesis, Table 6.1), an
//! operation misses a record that another thread moves, and two inserts of a key can both succeed.
//!
//! # Simplified
//!
//! - Where the paper updates in place with a log, because its values have 15 bytes, an 8-byte store
//!   suffices.
//! - The locks lie in persistent memory beside the levels, a word each, and are not flushed.
//! - The global lock is a reader-writer lock in DRAM that operations take for reading, each thread a line of
//!   its own.
//! - A bottom level's memory is not freed after a resize.
//!
//! # Crash bugs that it keeps
//!
//! - A movement sets the new token before it clears the old one: a crash between leaves the key
//!   twice (Witcher 19 to 21). The same holds for the records that a resize moves.
//! - A resize stores the size and the levels' places one by one (Witcher 17, 18).
//! - The check for the key sees a token that is not durable yet (SEPH).
//! - Locks survive a crash held.

use crate::shared::{Arena, Keys, LINE, Locks, RwLock, WideLock, hash, second_hash};
use crate::{Full, Options, Peer, Promises};
use outlast::internals::pmem::Seam;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a bucket before its slots. Tokens are the first word.
const HEADER: u64 = 16;

/// Words of the root.
const TOP_BUCKETS: u64 = 0;
const TOP: u64 = 8;
const BOTTOM: u64 = 16;
const TOP_LOCKS: u64 = 24;
const BOTTOM_LOCKS: u64 = 32;

/// The table.
pub(super) struct Level<S> {
    arena: Arena<S>,
    root: u64,
    bucket_slots: u64,
    bucket_bytes: u64,
    locks: Locks,
    keys: Keys,
    /// Held for writing by a resize.
    whole: WideLock,
    resizes: AtomicU64,
}

/// A bucket, and the locks of its slots.
#[derive(Clone, Copy)]
struct Bucket {
    at: u64,
    locks: u64,
}

/// A slot.
#[derive(Clone, Copy)]
struct Slot {
    bucket: u64,
    index: u64,
    lock: u64,
}

impl Bucket {
    fn slot(self, index: u64) -> Slot {
        Slot { bucket: self.at, index, lock: self.locks + index * 8 }
    }
}

impl Slot {
    fn record(self) -> u64 {
        self.bucket + HEADER + self.index * 16
    }

    fn token(self) -> u64 {
        1 << self.index
    }
}

/// One level: an array of buckets, and one of locks.
#[derive(Clone, Copy)]
struct Array {
    at: u64,
    locks: u64,
    buckets: u64,
}

impl<S: Seam> Level<S> {
    pub(super) fn create(arena: Arena<S>, options: &Options) -> Result<Self, Full> {
        let Options { bucket_slots, locks, initial_slots, keys, .. } = *options;
        assert!((1..=64).contains(&bucket_slots), "tokens are one word");
        let bucket_bytes = (HEADER + bucket_slots * 16).next_multiple_of(LINE);
        let buckets = (initial_slots * 2).div_ceil(bucket_slots * 3).next_power_of_two().max(4);
        let root = arena.alloc(LINE)?;
        let (whole, resizes) = (WideLock::default(), AtomicU64::new(0));
        let table = Level { arena, root, bucket_slots, bucket_bytes, locks, keys, whole, resizes };
        let (top, bottom) = (table.new_array(buckets)?, table.new_array(buckets / 2)?);
        table.set_levels(top, bottom);
        Ok(table)
    }

    fn new_array(&self, buckets: u64) -> Result<Array, Full> {
        let at = self.arena.alloc(buckets * self.bucket_bytes)?;
        let locks = self.arena.alloc(buckets * self.bucket_slots * 8)?;
        Ok(Array { at, locks, buckets })
    }

    fn set_levels(&self, top: Array, bottom: Array) {
        self.arena.store_durably(self.root + TOP_BUCKETS, top.buckets);
        self.arena.store_durably(self.root + BOTTOM, bottom.at);
        self.arena.store_durably(self.root + BOTTOM_LOCKS, bottom.locks);
        self.arena.store_durably(self.root + TOP, top.at);
        self.arena.store_durably(self.root + TOP_LOCKS, top.locks);
    }

    /// The top level and the bottom level. The caller holds the global lock.
    fn levels(&self) -> [Array; 2] {
        let root = |word| self.arena.load(self.root + word);
        let buckets = root(TOP_BUCKETS);
        [
            Array { at: root(TOP), locks: root(TOP_LOCKS), buckets },
            Array { at: root(BOTTOM), locks: root(BOTTOM_LOCKS), buckets: buckets / 2 },
        ]
    }

    fn lock(&self, at: u64) -> RwLock<'_, S> {
        RwLock::at(&self.arena, at, self.locks)
    }

    /// The two buckets of a key in a level.
    fn buckets(&self, level: Array, key: u64) -> [Bucket; 2] {
        let half = level.buckets / 2;
        [hash(key) % half, half + second_hash(key) % half].map(|index| Bucket {
            at: level.at + index * self.bucket_bytes,
            locks: level.locks + index * self.bucket_slots * 8,
        })
    }

    fn is_set(&self, slot: Slot) -> bool {
        self.arena.load_acquire(slot.bucket) & slot.token() != 0
    }

    /// Clears and sets tokens of one bucket with one store, and makes it durable. Other threads may
    /// change other tokens of it meanwhile.
    fn change_tokens(&self, bucket: u64, clear: u64, set: u64) {
        loop {
            let tokens = self.arena.load_acquire(bucket);
            if self.arena.swap_if(bucket, tokens, tokens & !clear | set) {
                break;
            }
        }
        self.arena.persist(bucket, 8);
    }

    /// Writes a record, a key's word and a value, to a free slot, which the caller has locked: first the
    /// record, then its token.
    fn write(&self, slot: Slot, record: (u64, u64)) {
        self.write_record(slot, record);
        self.change_tokens(slot.bucket, 0, slot.token());
    }

    fn write_record(&self, slot: Slot, (word, value): (u64, u64)) {
        self.arena.store(slot.record(), word);
        self.arena.store(slot.record() + 8, value);
        self.arena.persist(slot.record(), 16);
    }

    /// Whether a slot, which the caller has locked, holds the record of a key.
    fn holds(&self, slot: Slot, key: u64) -> bool {
        self.is_set(slot) && self.keys.is(&self.arena, self.arena.load(slot.record()), key)
    }

    /// All slots of a key, those of the top level first.
    fn slots_of(&self, levels: [Array; 2], key: u64) -> impl Iterator<Item = Slot> {
        let bucket_slots = self.bucket_slots;
        levels
            .map(|level| self.buckets(level, key))
            .into_iter()
            .flatten()
            .flat_map(move |bucket| (0..bucket_slots).map(move |index| bucket.slot(index)))
    }

    fn find(&self, levels: [Array; 2], key: u64) -> Option<u64> {
        self.slots_of(levels, key).find_map(|slot| {
            let _guard = self.lock(slot.lock).read();
            self.holds(slot, key).then(|| self.arena.load(slot.record() + 8))
        })
    }

    /// Runs `change` on the slot of a key, locked for writing.
    fn change(&self, key: u64, change: impl Fn(Slot)) -> bool {
        let _resize = self.whole.read();
        self.slots_of(self.levels(), key).any(|slot| {
            let _guard = self.lock(slot.lock).write();
            let found = self.holds(slot, key);
            if found {
                change(slot);
            }
            found
        })
    }

    /// Writes a record to the first free slot of two buckets.
    fn insert_into(&self, buckets: [Bucket; 2], record: (u64, u64)) -> bool {
        (0..self.bucket_slots).flat_map(|index| buckets.map(|b| b.slot(index))).any(|slot| {
            let _guard = self.lock(slot.lock).write();
            let free = !self.is_set(slot);
            if free {
                self.write(slot, record);
            }
            free
        })
    }

    /// Moves a record out of one of these buckets of a level to a bucket of its own in another
    /// level, or its other bucket in the same level, and writes the new record in its place.
    fn insert_by_moving(&self, from: [Bucket; 2], to: Array, record: (u64, u64)) -> bool {
        let slots = from.into_iter().flat_map(|b| (0..self.bucket_slots).map(move |i| b.slot(i)));
        for slot in slots {
            let _guard = self.lock(slot.lock).write();
            if !self.is_set(slot) {
                self.write(slot, record);
                return true;
            }
            let moved = self.arena.load(slot.record());
            let buckets = self.buckets(to, self.keys.of(&self.arena, moved));
            let others = buckets.into_iter().filter(|b| b.at != slot.bucket);
            let others = others.flat_map(|b| (0..self.bucket_slots).map(move |i| b.slot(i)));
            for other in others {
                // Another thread may hold it and wait for ours.
                let Some(_other_guard) = self.lock(other.lock).try_write() else { continue };
                if !self.is_set(other) {
                    self.write(other, (moved, self.arena.load(slot.record() + 8)));
                    self.change_tokens(slot.bucket, slot.token(), 0);
                    self.write(slot, record);
                    return true;
                }
            }
        }
        false
    }

    /// Makes a new top level, and moves the bottom level's records there.
    fn resize(&self, seen_buckets: u64) -> Result<(), Full> {
        let _resize = self.whole.write();
        let [top, bottom] = self.levels();
        if top.buckets != seen_buckets {
            return Ok(()); // Another thread was first.
        }
        let new = self.new_array(top.buckets * 2)?;
        for index in 0..bottom.buckets {
            let at = bottom.at + index * self.bucket_bytes;
            let bucket = Bucket { at, locks: bottom.locks + index * self.bucket_slots * 8 };
            for slot in (0..self.bucket_slots).map(|index| bucket.slot(index)) {
                if self.is_set(slot) {
                    let at = slot.record();
                    let (word, value) = (self.arena.load(at), self.arena.load(at + 8));
                    let buckets = self.buckets(new, self.keys.of(&self.arena, word));
                    let moved = self.insert_into(buckets, (word, value));
                    assert!(moved, "a new level is at most a quarter full");
                    self.change_tokens(slot.bucket, slot.token(), 0);
                }
            }
        }
        self.set_levels(new, top);
        self.resizes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl<S: Seam> Peer for Level<S> {
    fn promises(&self) -> Promises {
        Promises { finds_moved: false, inserts_once: false, ..Promises::HASH }
    }

    fn get(&self, key: u64) -> Option<u64> {
        let _resize = self.whole.read();
        self.find(self.levels(), key)
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, Full> {
        let mut word = None;
        loop {
            let seen_buckets = {
                let _resize = self.whole.read();
                let levels = self.levels();
                if self.find(levels, key).is_some() {
                    return Ok(false);
                }
                let own = levels.map(|level| self.buckets(level, key));
                let record = match word {
                    Some(word) => (word, value),
                    None => (*word.insert(self.keys.new_word(&self.arena, key)?), value),
                };
                if own.into_iter().any(|buckets| self.insert_into(buckets, record)) {
                    return Ok(true);
                }
                let [top, bottom] = levels;
                if self.insert_by_moving(own[0], top, record)
                    || self.insert_by_moving(own[1], bottom, record)
                    || self.insert_by_moving(own[1], top, record)
                {
                    return Ok(true);
                }
                top.buckets
            };
            self.resize(seen_buckets)?;
        }
    }

    fn update(&self, key: u64, value: u64) -> Result<bool, Full> {
        Ok(self.change(key, |slot| {
            let bucket = Bucket { at: slot.bucket, locks: slot.lock - slot.index * 8 };
            for other in (0..self.bucket_slots).map(|i| bucket.slot(i)) {
                let guard = self.lock(other.lock).try_write();
                if guard.is_some() && !self.is_set(other) {
                    self.write_record(other, (self.arena.load(slot.record()), value));
                    return self.change_tokens(slot.bucket, slot.token(), other.token());
                }
            }
            self.arena.store_durably(slot.record() + 8, value);
        }))
    }

    fn remove(&self, key: u64) -> bool {
        self.change(key, |slot| self.change_tokens(slot.bucket, slot.token(), 0))
    }

    fn slots(&self) -> Option<u64> {
        let _resize = self.whole.read();
        Some(self.arena.load(self.root + TOP_BUCKETS) * 3 / 2 * self.bucket_slots)
    }

    fn growths(&self) -> u64 {
        self.resizes.load(Ordering::Relaxed)
    }

    fn rebuilds(&self) -> u64 {
        self.resizes.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.arena.allocated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::pmem::{FlushMode, Real};

    fn loads_at_resizes(bucket_slots: u64) -> Vec<f64> {
        let arena = Arena::new(Real::new(FlushMode::None), 256 << 20);
        let options = Options { bucket_slots, ..Options::default() };
        let table = Level::create(arena, &options).unwrap();
        let mut loads = Vec::new();
        for key in 1..=150_000 {
            let slots = table.slots().unwrap();
            table.insert(key, !key).unwrap();
            if table.slots() != Some(slots) {
                loads.push(key as f64 / slots as f64);
            }
        }
        loads
    }

    #[test]
    fn a_resize_comes_late_and_later_with_more_slots() {
        // clevel hashing, Figure 3: above 0.8, and more with 8 slots a bucket.
        let (four, eight) = (loads_at_resizes(4), loads_at_resizes(8));
        assert!(four.len() >= 5 && eight.len() >= 5);
        assert!(four.iter().all(|&load| load > 0.8), "{four:?}");
        let mean = |loads: &[f64]| loads.iter().sum::<f64>() / loads.len() as f64;
        assert!(mean(&eight) > mean(&four) + 0.02, "{four:?} {eight:?}");
    }

    #[test]
    fn an_update_moves_the_record_only_if_its_bucket_has_a_free_slot() {
        let arena = Arena::new(Real::new(FlushMode::None), 256 << 20);
        let table = Level::create(arena, &Options::default()).unwrap();
        table.insert(1, 10).unwrap();
        let [top, _] = table.levels();
        let bucket = table.buckets(top, 1)[0].at;
        assert_eq!(table.arena.load(bucket), 0b0001);
        for (value, tokens) in [(11, 0b0010), (12, 0b0001)] {
            assert_eq!(table.update(1, value), Ok(true));
            assert_eq!((table.arena.load(bucket), table.get(1)), (tokens, Some(value)));
        }
        table.arena.store(bucket, 0b1111);
        assert_eq!(table.update(1, 13), Ok(true));
        assert_eq!((table.arena.load(bucket), table.get(1)), (0b1111, Some(13)));
    }
}
