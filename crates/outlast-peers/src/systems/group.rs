//! Group hashing as its paper has it: of a fixed size, all in persistent memory (Zhang et al., ICPP 2018).
//!
//! The library's own group hashing has locks and bitmaps in DRAM, and splits a group that is full. It keeps
//! keys that are longer than a word behind pointers. So this one stands for the paper's cells of 32 bytes.
//!
//! Two levels have the same number of cells. A record lies in the first level, in the cell that the hash
//! names, or in the second level, in the first free cell of the group with the same number. A cell is in
//! use if the first word of its key is not 0, which takes the place of the paper's bit: it is stored once
//! the rest of the cell is durable (Algorithm 1), and a removal clears it first (Algorithm 3). Then the
//! number of records is stored. So an insert flushes three times.
//!
//! A lookup of an absent key reads the whole group, because a removal can leave a gap anywhere. An insert
//! does that first, unless [`Options::unique`] is off: the paper's (Algorithm 1) does not look for its key.

use super::cells::{CellTable, Cells};
use crate::shared::{Arena, LINE, hash};
use crate::{Full, Options};
use outlast::internals::pmem::Seam;
use std::ops::Range;

/// The table.
pub(super) struct Group<S> {
    cells: Cells<S>,
    /// Where the number of records is.
    count: u64,
    group_size: u64,
    unique: bool,
}

impl<S: Seam> Group<S> {
    pub(super) fn create(arena: Arena<S>, options: &Options) -> Result<Self, Full> {
        let count = arena.alloc(LINE)?;
        let Options { group_size, unique, .. } = *options;
        let level = options.initial_slots.div_ceil(2).next_multiple_of(group_size);
        let cells = Cells::new(arena, level * 2, false, options)?;
        Ok(Group { cells, count, group_size, unique })
    }

    fn home(&self, key: u64) -> u64 {
        hash(key) % (self.cells.count() / 2)
    }

    /// The cells of the second level that belong to a cell of the first one.
    fn group(&self, home: u64) -> Range<u64> {
        let first = self.cells.count() / 2 + home / self.group_size * self.group_size;
        first..first + self.group_size
    }

    fn set(&self, cell: u64, (key, value): (u64, u64), records: u64) {
        self.cells.commit_by_key(cell, key, value);
        self.cells.arena().store_durably(self.count, records);
    }

    fn records(&self) -> u64 {
        self.cells.arena().load(self.count)
    }
}

impl<S: Seam> CellTable for Group<S> {
    type Seam = S;

    fn cells(&self) -> &Cells<S> {
        &self.cells
    }

    fn find(&self, key: u64) -> Option<u64> {
        let home = self.home(key);
        std::iter::once(home).chain(self.group(home)).find(|&cell| self.cells.is(cell, key))
    }

    fn room_for(&self, key: u64) -> Result<Option<u64>, Full> {
        if self.unique && self.find(key).is_some() {
            return Ok(None);
        }
        let home = self.home(key);
        let mut all = std::iter::once(home).chain(self.group(home));
        all.find(|&cell| self.cells.key(cell) == 0).map(Some).ok_or(Full)
    }

    fn fill(&self, cell: u64, key: u64, value: u64) {
        self.set(cell, (key, value), self.records() + 1);
    }

    fn empty(&self, cell: u64) {
        self.set(cell, (0, 0), self.records() - 1);
    }
}
