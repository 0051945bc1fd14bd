//! FPTree: fingerprinting persistent tree (Oukid et al., SIGMOD 2016).
//!
//! Compared with in PhaST (5.1 to 5.4), with 64 records a leaf and inner nodes of 256.
//!
//! # Structure
//!
//! Unsorted leaves in persistent memory, each with a bitmap and a line of fingerprints, and above
//! them an index in DRAM, which a crash loses. An insert makes the record and its fingerprint
//! durable and then the bitmap: three lines, two fences. A split notes the leaf and the new leaf in a
//! micro-log, copies the leaf, and then changes the bitmaps and the link.
//!
//! # Concurrency
//!
//! Locks in the place of hardware transactions: a reader-writer lock for the index, which a split
//! takes for writing, and one in each leaf.
//!
//! # Simplified
//!
//! - The index is a B-tree of the standard library, whose nodes have 11 keys and not 256.
//! - An update stores 8 bytes in place, and does not move the record. Leaves are never merged.
//! - Nothing rebuilds the index after a crash.

use super::leaf::{LOCK, Leaves};
use crate::shared::{Arena, LINE, Locks, RwLock};
use crate::{Full, Options, Peer, Promises};
use outlast::internals::pmem::Seam;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{self, PoisonError, RwLockReadGuard};

/// The tree.
pub(super) struct FpTree<S> {
    leaves: Leaves<S>,
    /// The leaf of each lower bound.
    index: sync::RwLock<BTreeMap<u64, u64>>,
    /// A leaf that is split, and the new one.
    micro_log: u64,
    locks: Locks,
    splits: AtomicU64,
}

impl<S: Seam> FpTree<S> {
    pub(super) fn create(arena: Arena<S>, options: &Options) -> Result<Self, Full> {
        let micro_log = arena.alloc(LINE)?;
        let leaves = Leaves::new(arena, true);
        let index = sync::RwLock::new(BTreeMap::from([(0, leaves.create(&[], 0)?)]));
        let (locks, splits) = (options.locks, AtomicU64::new(0));
        Ok(FpTree { leaves, index, micro_log, locks, splits })
    }

    fn index(&self) -> RwLockReadGuard<'_, BTreeMap<u64, u64>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self, leaf: u64) -> RwLock<'_, S> {
        RwLock::at(&self.leaves.arena, leaf + LOCK, self.locks)
    }

    /// Splits the leaf of a key, if it is still full.
    fn split(&self, key: u64) -> Result<(), Full> {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let leaf = leaf_of(&index, key);
        if !self.leaves.is_full(leaf) {
            return Ok(());
        }
        let arena = &self.leaves.arena;
        arena.store_durably(self.micro_log, leaf);
        let new = self.leaves.copy(leaf)?;
        arena.store_durably(self.micro_log + 8, new);
        let records = self.leaves.sorted(leaf);
        let middle = records[records.len() / 2].0;
        let upper = self.leaves.from(leaf, middle);
        self.leaves.set_bitmap(new, upper);
        self.leaves.set_bitmap(leaf, !upper);
        self.leaves.set_next(leaf, new);
        arena.store(self.micro_log, 0);
        arena.store(self.micro_log + 8, 0);
        arena.persist(self.micro_log, 16);
        index.insert(middle, new);
        self.splits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Runs `change` on the leaf of a key, locked for writing.
    fn change<T>(&self, key: u64, change: impl FnOnce(u64) -> T) -> T {
        let index = self.index();
        let leaf = leaf_of(&index, key);
        let _guard = self.lock(leaf).write();
        change(leaf)
    }
}

fn leaf_of(index: &BTreeMap<u64, u64>, key: u64) -> u64 {
    let (_, &leaf) = index.range(..=key).next_back().expect("a leaf for each key");
    leaf
}

impl<S: Seam> Peer for FpTree<S> {
    fn promises(&self) -> Promises {
        Promises::ORDERED
    }

    fn get(&self, key: u64) -> Option<u64> {
        let index = self.index();
        let leaf = leaf_of(&index, key);
        let _guard = self.lock(leaf).read();
        self.leaves.get(leaf, key)
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, Full> {
        loop {
            let inserted = self.change(key, |leaf| {
                if self.leaves.is_full(leaf) {
                    return self.leaves.get(leaf, key).map(|_| false);
                }
                Some(self.leaves.insert(leaf, key, value))
            });
            match inserted {
                Some(inserted) => return Ok(inserted),
                None => self.split(key)?,
            }
        }
    }

    fn update(&self, key: u64, value: u64) -> Result<bool, Full> {
        Ok(self.change(key, |leaf| self.leaves.update(leaf, key, value)))
    }

    fn remove(&self, key: u64) -> bool {
        self.change(key, |leaf| self.leaves.remove(leaf, key))
    }

    fn scan(&self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) {
        let index = self.index();
        let end = found.len() + records;
        // Leaf by leaf, so that no two locks are held.
        for (_, &leaf) in
            index.range(..=from).next_back().into_iter().chain(index.range(from + 1..))
        {
            let _guard = self.lock(leaf).read();
            let there = self.leaves.sorted(leaf).into_iter().filter(|&(key, _)| key >= from);
            found.extend(there.take(end - found.len()));
            if found.len() == end {
                break;
            }
        }
    }

    fn growths(&self) -> u64 {
        self.splits.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.leaves.arena.allocated()
    }
}
