//! P-CLHT: a persistent cache-line hash table (Lee et al., RECIPE, SOSP 2019; CLHT-LB: David,
//! Guerraoui and Trigonakis, ASPLOS 2015).
//!
//! Compared with in clevel hashing (4.1, with helping resize). The EA-PHT thesis (2.6) describes
//! CLHT-LB.
//!
//! # Structure
//!
//! An array of buckets of one line: a lock, three keys, three values, and the place of an overflow
//! bucket. An insert stores the value, then the key, and flushes their line. If the chain is full,
//! it makes a new bucket durable and then links it. A removal stores an empty key.
//!
//! Once there are as many overflow buckets as buckets in the array, the table is resized: a new
//! array with twice as many buckets gets all records, is made durable, and replaces the old one by
//! one store.
//!
//! # Concurrency
//!
//! Lookups take no lock: they read the value before the key and again after it. Changes lock the
//! first bucket of a chain. A resize locks each old bucket for good before it copies it. A change
//! that meets such a bucket helps, from the other end of the array, if no one else helps; else it
//! waits for the new table. As in the thesis (2.6), a lookup is only right because no value comes
//! back to a slot with another key during the lookup, or because that is then the key's value.
//!
//! # Simplified
//!
//! - The old table is not freed. The published code leaks it in a crash.
//! - The overflow buckets are counted in DRAM.
//! - There is no update in the published code; ours stores 8 bytes in place.
//!
//! # Crash bugs that it keeps
//!
//! - A thread inserts through a new table that is visible but not yet durable (PMRace).
//! - A lookup returns values that are not durable yet (RECIPE 13); locks survive a crash held.

use crate::shared::{Arena, Keys, LINE, Locks, hash};
use crate::{Full, Options, Peer, Promises};
use outlast::internals::pmem::Seam;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a bucket.
const LOCK: u64 = 0;
const KEYS: u64 = 8;
const VALUES: u64 = 32;
const NEXT: u64 = 56;
/// Slots of a bucket.
const SLOTS: u64 = 3;

/// States of a lock.
const FREE: u64 = 0;
const LOCKED: u64 = 1;
/// The bucket's records were moved, or are just being moved.
const MOVED: u64 = 2;

/// Words of a table's first line. The buckets follow it.
const BUCKETS: u64 = 0;

/// The table.
pub(super) struct Clht<S> {
    arena: Arena<S>,
    /// The place of the current table.
    root: u64,
    locks: Locks,
    keys: Keys,
    overflow_buckets: AtomicU64,
    resizes: AtomicU64,
    /// Held by the thread that resizes.
    resizing: Mutex<()>,
    /// What a helper needs to know, while there is a resize.
    resize: Mutex<Option<Resize>>,
}

/// A resize that goes on.
#[derive(Clone, Copy)]
struct Resize {
    old: u64,
    new: u64,
    helper: Helper,
    /// Whether the helper has found no room for a record.
    failed: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Helper {
    /// Nobody helps yet.
    Wanted,
    Helps,
    Done,
}

impl<S: Seam> Clht<S> {
    pub(super) fn create(arena: Arena<S>, options: &Options) -> Result<Self, Full> {
        let root = arena.alloc(LINE)?;
        let table = Clht {
            arena,
            root,
            locks: options.locks,
            keys: options.keys,
            overflow_buckets: AtomicU64::new(0),
            resizes: AtomicU64::new(0),
            resizing: Mutex::new(()),
            resize: Mutex::new(None),
        };
        let first = table.new_table(options.initial_slots.div_ceil(SLOTS).next_power_of_two())?;
        table.arena.store_durably(root, first);
        Ok(table)
    }

    fn new_table(&self, buckets: u64) -> Result<u64, Full> {
        let table = self.arena.alloc(LINE + buckets * LINE)?;
        self.arena.store(table + BUCKETS, buckets);
        Ok(table)
    }

    fn buckets(&self, table: u64) -> u64 {
        self.arena.load(table + BUCKETS)
    }

    fn bucket(&self, table: u64, key: u64) -> u64 {
        table + LINE + hash(key) % self.buckets(table) * LINE
    }

    /// Returns the buckets of a chain.
    fn chain(&self, bucket: u64) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(bucket), |bucket| {
            Some(self.arena.load_acquire(bucket + NEXT)).filter(|&next| next != 0)
        })
    }

    /// Returns the first place in a chain for a key's word that has such a word.
    fn place(&self, bucket: u64, is_it: impl Fn(u64) -> bool) -> Option<u64> {
        self.chain(bucket).find_map(|bucket| {
            (bucket + KEYS..bucket + VALUES).step_by(8).find(|&at| is_it(self.arena.load(at)))
        })
    }

    /// Returns the place of a key in a chain.
    fn find(&self, bucket: u64, key: u64) -> Option<u64> {
        self.place(bucket, |word| self.keys.is(&self.arena, word, key))
    }

    /// Locks the chain of a key in the current table, and runs `change` with its first bucket.
    fn locked<T>(&self, key: u64, change: impl FnOnce(u64) -> T) -> T {
        let mut turn = 0;
        loop {
            let table = self.arena.load_acquire(self.root);
            let bucket = self.bucket(table, key);
            if self.arena.swap_if(bucket + LOCK, FREE, LOCKED) {
                let result = change(bucket);
                self.arena.store_release(bucket + LOCK, FREE);
                return result;
            }
            if self.arena.load_acquire(bucket + LOCK) == MOVED {
                self.help(table);
            }
            self.locks.wait(self.arena.seam(), &mut turn);
        }
    }

    /// Stores a record, a key's word and a value, in a free slot of a chain that no one else changes, or in
    /// a new overflow bucket. `durably` says whether the slot is to be flushed; an overflow bucket always
    /// is.
    fn store(&self, bucket: u64, (word, value): (u64, u64), durably: bool) -> Result<bool, Full> {
        let arena = &self.arena;
        if let Some(at) = self.place(bucket, |word| word == 0) {
            arena.store_release(at + SLOTS * 8, value);
            arena.store_release(at, word);
            if durably {
                arena.persist(at, SLOTS * 8 + 8);
            }
            return Ok(false);
        }
        let last = self.chain(bucket).last().unwrap_or(bucket);
        let next = arena.alloc(LINE)?;
        arena.store(next + KEYS, word);
        arena.store(next + VALUES, value);
        arena.persist(next, LINE);
        arena.store_release(last + NEXT, next);
        arena.persist(last + NEXT, 8);
        self.overflow_buckets.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Moves the records of a bucket to the new table. Returns whether no one had begun to.
    fn move_bucket(&self, bucket: u64, new: u64) -> Result<bool, Full> {
        let mut turn = 0;
        while !self.arena.swap_if(bucket + LOCK, FREE, MOVED) {
            if self.arena.load_acquire(bucket + LOCK) == MOVED {
                return Ok(false);
            }
            self.locks.wait(self.arena.seam(), &mut turn);
        }
        for bucket in self.chain(bucket) {
            for at in (bucket + KEYS..bucket + VALUES).step_by(8) {
                let (word, value) = (self.arena.load(at), self.arena.load(at + SLOTS * 8));
                // The new table has twice as many buckets, so no other thread moves records to
                // this one.
                if word != 0 {
                    let to = self.bucket(new, self.keys.of(&self.arena, word));
                    self.store(to, (word, value), false)?;
                }
            }
        }
        Ok(true)
    }

    fn current_resize(&self) -> std::sync::MutexGuard<'_, Option<Resize>> {
        self.resize.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Helps with the resize of a table, unless another thread does.
    fn help(&self, table: u64) {
        let new = match self.current_resize().as_mut() {
            Some(resize) if resize.old == table && resize.helper == Helper::Wanted => {
                resize.helper = Helper::Helps;
                resize.new
            }
            _ => return,
        };
        let last_first = (0..self.buckets(table)).rev().map(|index| table + LINE + index * LINE);
        let result = self.move_buckets(last_first, new);
        if let Some(resize) = self.current_resize().as_mut() {
            (resize.helper, resize.failed) = (Helper::Done, result.is_err());
        }
    }

    /// Moves the records of buckets to the new table, until another thread has begun with one.
    fn move_buckets(&self, buckets: impl Iterator<Item = u64>, new: u64) -> Result<(), Full> {
        for bucket in buckets {
            if !self.move_bucket(bucket, new)? {
                break;
            }
        }
        Ok(())
    }

    /// Waits until nobody helps any more, and ends the resize. Returns whether the helper failed.
    fn end_resize(&self) -> bool {
        let mut turn = 0;
        loop {
            let mut resize = self.current_resize();
            if resize.is_none_or(|resize| resize.helper != Helper::Helps) {
                return resize.take().is_some_and(|resize| resize.failed);
            }
            drop(resize);
            self.arena.seam().wait(&mut turn);
        }
    }

    /// Resizes the table, unless another thread does, or has.
    fn resize_if_due(&self) -> Result<(), Full> {
        let Ok(_resizing) = self.resizing.try_lock() else { return Ok(()) };
        let old = self.arena.load_acquire(self.root);
        let buckets = self.buckets(old);
        if self.overflow_buckets.load(Ordering::Relaxed) < buckets {
            return Ok(());
        }
        let new = self.new_table(buckets * 2)?;
        self.overflow_buckets.store(0, Ordering::Relaxed);
        *self.current_resize() = Some(Resize { old, new, helper: Helper::Wanted, failed: false });
        let all = (0..buckets).map(|index| old + LINE + index * LINE);
        let result = self.move_buckets(all.clone(), new);
        if self.end_resize() || result.is_err() {
            // The old table has all records still.
            for bucket in all {
                self.arena.swap_if(bucket + LOCK, MOVED, FREE);
            }
            return Err(Full);
        }
        self.arena.persist(new, LINE + buckets * 2 * LINE);
        self.arena.store_durably(self.root, new);
        self.resizes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl<S: Seam> Peer for Clht<S> {
    fn promises(&self) -> Promises {
        Promises::HASH
    }

    fn get(&self, key: u64) -> Option<u64> {
        let table = self.arena.load_acquire(self.root);
        for bucket in self.chain(self.bucket(table, key)) {
            for at in (bucket + KEYS..bucket + VALUES).step_by(8) {
                loop {
                    let value = self.arena.load_acquire(at + SLOTS * 8);
                    if !self.keys.is(&self.arena, self.arena.load_acquire(at), key) {
                        break;
                    }
                    if self.arena.load_acquire(at + SLOTS * 8) == value {
                        return Some(value);
                    }
                }
            }
        }
        None
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, Full> {
        if self.get(key).is_some() {
            return Ok(false);
        }
        let inserted = self.locked(key, |bucket| match self.find(bucket, key) {
            Some(_) => Ok(None),
            None => {
                let word = self.keys.new_word(&self.arena, key)?;
                self.store(bucket, (word, value), true).map(Some)
            }
        })?;
        if inserted == Some(true) {
            // The record is there, whether or not there is room for a larger table.
            let _ = self.resize_if_due();
        }
        Ok(inserted.is_some())
    }

    fn update(&self, key: u64, value: u64) -> Result<bool, Full> {
        Ok(self.locked(key, |bucket| {
            let found = self.find(bucket, key);
            found.map(|at| self.arena.store_durably(at + SLOTS * 8, value)).is_some()
        }))
    }

    fn remove(&self, key: u64) -> bool {
        self.get(key).is_some()
            && self.locked(key, |bucket| {
                let found = self.find(bucket, key);
                found.map(|at| self.arena.store_durably(at, 0)).is_some()
            })
    }

    fn slots(&self) -> Option<u64> {
        let first = self.buckets(self.arena.load_acquire(self.root));
        Some((first + self.overflow_buckets.load(Ordering::Relaxed)) * SLOTS)
    }

    fn growths(&self) -> u64 {
        self.resizes.load(Ordering::Relaxed)
    }

    fn rebuilds(&self) -> u64 {
        self.resizes.load(Ordering::Relaxed)
    }

    fn rebuilders(&self) -> u64 {
        2
    }

    fn bytes(&self) -> u64 {
        self.arena.allocated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::pmem::{FlushMode, Real};

    fn table() -> Clht<Real> {
        let arena = Arena::new(Real::new(FlushMode::None), 256 << 20);
        Clht::create(arena, &Options::default()).unwrap()
    }

    #[test]
    fn the_load_factor_rises_to_what_the_paper_says() {
        // clevel hashing (4.2): up to 84%.
        let table = table();
        let mut most = 0.0f64;
        for key in 1..=200_000 {
            table.insert(key, !key).unwrap();
            most = most.max(key as f64 / table.slots().unwrap() as f64);
        }
        assert!((0.82..0.86).contains(&most), "{most}");
    }

    #[test]
    fn a_helper_moves_what_the_resizing_thread_has_not() {
        let table = table();
        let keys = 1..=400u64;
        keys.clone().for_each(|key| assert_eq!(table.insert(key, !key), Ok(true)));
        let old = table.arena.load(table.root);
        let buckets = table.buckets(old);
        let new = table.new_table(buckets * 2).unwrap();
        *table.current_resize() = Some(Resize { old, new, helper: Helper::Wanted, failed: false });
        for index in 0..buckets / 2 {
            assert_eq!(table.move_bucket(old + LINE + index * LINE, new), Ok(true));
        }
        table.help(old);
        assert!(table.current_resize().unwrap().helper == Helper::Done);
        let is_moved = |index| table.arena.load(old + LINE + index * LINE + LOCK) == MOVED;
        assert!((0..buckets).all(is_moved));
        table.arena.store(table.root, new);
        keys.for_each(|key| assert_eq!(table.get(key), Some(!key)));
    }
}
