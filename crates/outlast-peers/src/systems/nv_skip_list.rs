//! NV-Skiplist (Chen et al.), as PhaST describes it.
//!
//! Compared with in PhaST (5.1 to 5.4), with 64 records a leaf.
//!
//! # Structure
//!
//! A list of unsorted leaves in persistent memory, and above it a skip list in DRAM, which a crash
//! loses: it has the lower bound of each leaf. An insert makes the record durable and then the
//! leaf's bitmap. A full leaf is split without a log into two new leaves, which replace it by the
//! link of the leaf before.
//!
//! # Simplified
//!
//! - One lock for all: "its released code does not work for concurrent operations" (PhaST, 5.3).
//! - The skip list has one leaf a node. Leaves are never merged.
//! - Nothing rebuilds the skip list after a crash.
//!
//! # Crash bugs that it keeps
//!
//! - A crash during a split leaks leaves.

use super::leaf::Leaves;
use super::skip_list::SkipList;
use crate::shared::Arena;
use crate::{Full, Options, Peer, Promises};
use outlast::internals::pmem::{FlushMode, Real, Seam};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The list.
pub(super) struct NvSkipList<S> {
    leaves: Leaves<S>,
    /// The leaf of each lower bound, in DRAM, and the number of splits.
    index: RwLock<(SkipList<Real>, u64)>,
}

/// The lower bound of the first leaf, which no key is below.
const LEAST: u64 = 1;

impl<S: Seam> NvSkipList<S> {
    pub(super) fn create(arena: Arena<S>, options: &Options) -> Result<Self, Full> {
        let dram = Arena::new(Real::new(FlushMode::None), options.arena_bytes);
        let (leaves, index) = (Leaves::new(arena, false), SkipList::create(dram, options)?);
        index.insert(LEAST, leaves.create(&[], 0)?)?;
        Ok(NvSkipList { leaves, index: RwLock::new((index, 0)) })
    }

    fn read(&self) -> RwLockReadGuard<'_, (SkipList<Real>, u64)> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, (SkipList<Real>, u64)> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Splits a leaf into two new ones.
    fn split(&self, index: &SkipList<Real>, bound: u64, leaf: u64) -> Result<(), Full> {
        let records = self.leaves.sorted(leaf);
        let (lower, upper) = records.split_at(records.len() / 2);
        let right = self.leaves.create(upper, self.leaves.next(leaf))?;
        let left = self.leaves.create(lower, right).inspect_err(|_| self.leaves.free(right))?;
        index.insert(upper[0].0, right).inspect_err(|_| {
            self.leaves.free(left);
            self.leaves.free(right);
        })?;
        // The first leaf has none before it. The published code has a root for it.
        if let Some((_, before)) = index.floor(bound - 1) {
            self.leaves.set_next(before, left);
        }
        index.update(bound, left)?;
        self.leaves.free(leaf);
        Ok(())
    }
}

/// Returns the lower bound and the leaf for a key.
fn leaf_of(index: &SkipList<Real>, key: u64) -> (u64, u64) {
    index.floor(key).expect("a leaf for each key")
}

impl<S: Seam> Peer for NvSkipList<S> {
    fn promises(&self) -> Promises {
        Promises::ORDERED
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.leaves.get(leaf_of(&self.read().0, key).1, key)
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, Full> {
        let mut guard = self.write();
        let (index, splits) = &mut *guard;
        let (bound, mut leaf) = leaf_of(index, key);
        if self.leaves.is_full(leaf) {
            if self.leaves.get(leaf, key).is_some() {
                return Ok(false);
            }
            self.split(index, bound, leaf)?;
            *splits += 1;
            leaf = leaf_of(index, key).1;
        }
        Ok(self.leaves.insert(leaf, key, value))
    }

    fn update(&self, key: u64, value: u64) -> Result<bool, Full> {
        Ok(self.leaves.update(leaf_of(&self.write().0, key).1, key, value))
    }

    fn remove(&self, key: u64) -> bool {
        self.leaves.remove(leaf_of(&self.write().0, key).1, key)
    }

    fn scan(&self, from: u64, records: usize, found: &mut Vec<(u64, u64)>) {
        let guard = self.read();
        let end = found.len() + records;
        self.leaves.scan(leaf_of(&guard.0, from).1, from, end, found);
    }

    fn growths(&self) -> u64 {
        self.read().1
    }

    fn bytes(&self) -> u64 {
        self.leaves.arena.allocated()
    }

    fn index_bytes(&self) -> Option<u64> {
        Some(self.read().0.bytes())
    }
}
