//! Unsorted leaves of 64 records with a bitmap, which NV-Skiplist and FPTree have in persistent
//! memory under an index in DRAM.

use crate::Full;
use crate::shared::{Arena, LINE, hash};
use outlast::internals::pmem::Seam;

/// Records of a leaf.
pub(super) const RECORDS: usize = 64;

/// Words of a leaf's first line: a bit for each record that is there, and the next leaf.
const BITMAP: u64 = 0;
const NEXT: u64 = 8;
/// A lock, which the leaf's users may take.
pub(super) const LOCK: u64 = 16;

/// The leaves of one structure.
pub(super) struct Leaves<S> {
    pub(super) arena: Arena<S>,
    /// Whether a leaf has a second line with a byte of each key's hash.
    fingerprints: bool,
}

impl<S: Seam> Leaves<S> {
    pub(super) fn new(arena: Arena<S>, fingerprints: bool) -> Self {
        Leaves { arena, fingerprints }
    }

    fn first_record(&self) -> u64 {
        LINE + u64::from(self.fingerprints) * LINE
    }

    fn bytes(&self) -> u64 {
        self.first_record() + RECORDS as u64 * 16
    }

    fn record(&self, leaf: u64, index: usize) -> u64 {
        leaf + self.first_record() + index as u64 * 16
    }

    fn bitmap(&self, leaf: u64) -> u64 {
        self.arena.load(leaf + BITMAP)
    }

    pub(super) fn next(&self, leaf: u64) -> u64 {
        self.arena.load(leaf + NEXT)
    }

    /// Changes the link to the next leaf, durably.
    pub(super) fn set_next(&self, leaf: u64, next: u64) {
        self.arena.store_durably(leaf + NEXT, next);
    }

    /// Changes which records are there, durably: the commit point of every change.
    pub(super) fn set_bitmap(&self, leaf: u64, bitmap: u64) {
        self.arena.store_durably(leaf + BITMAP, bitmap);
    }

    pub(super) fn is_full(&self, leaf: u64) -> bool {
        self.bitmap(leaf) == u64::MAX
    }

    fn fingerprint(&self, leaf: u64, index: usize) -> u64 {
        self.arena.load(leaf + LINE + index as u64 / 8 * 8) >> (index % 8 * 8) & 0xff
    }

    fn store_record(&self, leaf: u64, index: usize, (key, value): (u64, u64)) {
        self.arena.store(self.record(leaf, index), key);
        self.arena.store(self.record(leaf, index) + 8, value);
        if self.fingerprints {
            let (at, shift) = (leaf + LINE + index as u64 / 8 * 8, index % 8 * 8);
            let others = self.arena.load(at) & !(0xff << shift);
            self.arena.store(at, others | (hash(key) & 0xff) << shift);
        }
    }

    /// Makes a durable leaf with some records.
    pub(super) fn create(&self, records: &[(u64, u64)], next: u64) -> Result<u64, Full> {
        let leaf = self.arena.alloc(self.bytes())?;
        for (index, &record) in records.iter().enumerate() {
            self.store_record(leaf, index, record);
        }
        self.arena.store(leaf + BITMAP, (1u64 << records.len()).wrapping_sub(1));
        self.arena.store(leaf + NEXT, next);
        self.arena.persist(leaf, self.bytes());
        Ok(leaf)
    }

    pub(super) fn free(&self, leaf: u64) {
        self.arena.free(leaf, self.bytes());
    }

    /// Returns the index of a key's record.
    fn find(&self, leaf: u64, key: u64) -> Option<usize> {
        let (bitmap, tag) = (self.bitmap(leaf), hash(key) & 0xff);
        (0..RECORDS).find(|&index| {
            bitmap >> index & 1 == 1
                && (!self.fingerprints || self.fingerprint(leaf, index) == tag)
                && self.arena.load(self.record(leaf, index)) == key
        })
    }

    pub(super) fn get(&self, leaf: u64, key: u64) -> Option<u64> {
        let index = self.find(leaf, key)?;
        Some(self.arena.load(self.record(leaf, index) + 8))
    }

    /// Inserts a record into a leaf that has room: the record first, with its fingerprint, then its
    /// bit. Returns whether the key was absent.
    pub(super) fn insert(&self, leaf: u64, key: u64, value: u64) -> bool {
        if self.find(leaf, key).is_some() {
            return false;
        }
        let bitmap = self.bitmap(leaf);
        let index = bitmap.trailing_ones() as usize;
        self.store_record(leaf, index, (key, value));
        self.arena.flush(self.record(leaf, index), 16);
        if self.fingerprints {
            self.arena.flush(leaf + LINE + index as u64 / 8 * 8, 8);
        }
        self.arena.fence();
        self.set_bitmap(leaf, bitmap | 1 << index);
        true
    }

    pub(super) fn update(&self, leaf: u64, key: u64, value: u64) -> bool {
        let found = self.find(leaf, key);
        let at = found.map(|index| self.record(leaf, index) + 8);
        at.map(|at| self.arena.store_durably(at, value)).is_some()
    }

    pub(super) fn remove(&self, leaf: u64, key: u64) -> bool {
        let found = self.find(leaf, key);
        let bitmap = self.bitmap(leaf);
        found.map(|index| self.set_bitmap(leaf, bitmap & !(1 << index))).is_some()
    }

    /// Returns the records of a leaf in key order.
    pub(super) fn sorted(&self, leaf: u64) -> Vec<(u64, u64)> {
        let bitmap = self.bitmap(leaf);
        let there = (0..RECORDS).filter(|index| bitmap >> index & 1 == 1);
        let load = |index| {
            let at = self.record(leaf, index);
            (self.arena.load(at), self.arena.load(at + 8))
        };
        let mut records: Vec<(u64, u64)> = there.map(load).collect();
        records.sort_unstable();
        records
    }

    /// Appends records to `found` in key order, from a leaf on, until it has `end` of them.
    pub(super) fn scan(&self, leaf: u64, from: u64, end: usize, found: &mut Vec<(u64, u64)>) {
        let mut leaf = leaf;
        while leaf != 0 && found.len() < end {
            let records = self.sorted(leaf).into_iter().filter(|&(key, _)| key >= from);
            found.extend(records.take(end - found.len()));
            leaf = self.next(leaf);
        }
    }

    /// Copies a leaf to a new one, all its lines, durably.
    pub(super) fn copy(&self, leaf: u64) -> Result<u64, Full> {
        let copy = self.arena.alloc(self.bytes())?;
        for word in (0..self.bytes()).step_by(8).filter(|&word| word != LOCK) {
            self.arena.store(copy + word, self.arena.load(leaf + word));
        }
        self.arena.persist(copy, self.bytes());
        Ok(copy)
    }

    /// Returns the bits of the records whose keys are at least `key`.
    pub(super) fn from(&self, leaf: u64, key: u64) -> u64 {
        let bitmap = self.bitmap(leaf);
        let is_from = |&index: &usize| {
            bitmap >> index & 1 == 1 && self.arena.load(self.record(leaf, index)) >= key
        };
        (0..RECORDS).filter(is_from).fold(0, |bits, index| bits | 1 << index)
    }
}
