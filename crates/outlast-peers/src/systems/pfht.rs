//! PFHT: a cuckoo hash table for persistent memory (Debnath et al., 2015), with and without an undo
//! log.
//!
//! Compared with in group hashing (2.3, 4.1 to 4.4): buckets of 4 cells, and a stash of 3% of the
//! table.
//!
//! A key has two buckets. An insert takes the first free cell of them. If both are full, it moves
//! one record of them to that record's other bucket, at most one; else the new record goes to the
//! stash, which is searched from its beginning. The number of cells is fixed. The text does not say
//! which bucket comes first, nor which record is moved: here, the first that can be.
//!
//! Without the log, a crash during a move leaves a record twice, or a key with another's value.

use super::cells::{CellTable, Cells};
use crate::shared::{Arena, hash, second_hash};
use crate::{Full, Options};
use outlast::internals::pmem::Seam;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Cells of a bucket.
const BUCKET: u64 = 4;
/// The stash's share of the table, in percent.
const STASH_PERCENT: u64 = 3;

/// The table.
pub(super) struct Pfht<S> {
    cells: Cells<S>,
    buckets: u64,
    /// How many cells of the stash were ever used. A search ends there.
    stashed: AtomicU64,
}

impl<S: Seam> Pfht<S> {
    pub(super) fn create(arena: Arena<S>, log: bool, options: &Options) -> Result<Self, Full> {
        let buckets = options.initial_slots.div_ceil(BUCKET).max(2);
        let stash = (buckets * BUCKET * STASH_PERCENT).div_ceil(100);
        let cells = Cells::new(arena, buckets * BUCKET + stash, log, options)?;
        Ok(Pfht { cells, buckets, stashed: AtomicU64::new(0) })
    }

    fn buckets_of(&self, key: u64) -> [Range<u64>; 2] {
        [hash(key), second_hash(key)].map(|hash| {
            let first = hash % self.buckets * BUCKET;
            first..first + BUCKET
        })
    }

    /// The cells of the stash that may be used.
    fn stash(&self) -> Range<u64> {
        let first = self.buckets * BUCKET;
        first..first + self.stashed.load(Ordering::Relaxed)
    }

    fn empty_in(&self, mut cells: impl Iterator<Item = u64>) -> Option<u64> {
        cells.find(|&cell| self.cells.key(cell) == 0)
    }

    /// Makes room for a key, and returns the cell.
    fn make_room(&self, key: u64) -> Result<u64, Full> {
        let own = self.buckets_of(key);
        if let Some(cell) = self.empty_in(own.clone().into_iter().flatten()) {
            return Ok(cell);
        }
        for cell in own.into_iter().flatten() {
            let moved = self.cells.key(cell);
            let others = self.buckets_of(moved).into_iter().filter(|b| !b.contains(&cell));
            if let Some(other) = others.flatten().find(|&c| self.cells.key(c) == 0) {
                self.cells.set(other, moved, self.cells.value(cell));
                return Ok(cell);
            }
        }
        if let Some(cell) = self.empty_in(self.stash()) {
            return Ok(cell);
        }
        let end = self.stash().end;
        if end == self.cells.count() {
            return Err(Full);
        }
        self.stashed.fetch_add(1, Ordering::Relaxed);
        Ok(end)
    }
}

impl<S: Seam> CellTable for Pfht<S> {
    type Seam = S;

    fn cells(&self) -> &Cells<S> {
        &self.cells
    }

    fn find(&self, key: u64) -> Option<u64> {
        let [first, second] = self.buckets_of(key);
        first.chain(second).chain(self.stash()).find(|&cell| self.cells.is(cell, key))
    }

    fn room_for(&self, key: u64) -> Result<Option<u64>, Full> {
        if self.find(key).is_some() { Ok(None) } else { self.make_room(key).map(Some) }
    }
}
