//! Linear probing, with and without an undo log.
//!
//! Compared with in group hashing (2.3, 4.1 to 4.3).
//!
//! A record lies in the first cell from its hash on that was empty. A removal moves later records
//! of the same run back, so that no run has a gap: group hashing's "complicated delete process".
//! The number of cells is fixed.
//!
//! Without the log, a crash in a removal can leave a record twice, or a key with another's value:
//! the paper measures this variant only for what the log costs.

use super::cells::{CellTable, Cells};
use crate::shared::{Arena, hash};
use crate::{Full, Options};
use outlast::internals::pmem::Seam;

/// The table.
pub(super) struct Linear<S>(Cells<S>);

impl<S: Seam> Linear<S> {
    pub(super) fn create(arena: Arena<S>, log: bool, options: &Options) -> Result<Self, Full> {
        Ok(Linear(Cells::new(arena, options.initial_slots.max(2), log, options)?))
    }

    fn home(&self, key: u64) -> u64 {
        hash(key) % self.0.count()
    }

    fn next(&self, cell: u64) -> u64 {
        if cell + 1 == self.0.count() { 0 } else { cell + 1 }
    }

    /// Returns the cell of a key, or else the first empty cell, if there is one.
    fn search(&self, key: u64) -> Result<u64, Option<u64>> {
        let home = self.home(key);
        let mut cell = home;
        loop {
            match self.0.key(cell) {
                0 => return Err(Some(cell)),
                _ if self.0.is(cell, key) => return Ok(cell),
                _ => cell = self.next(cell),
            }
            if cell == home {
                return Err(None);
            }
        }
    }
}

impl<S: Seam> CellTable for Linear<S> {
    type Seam = S;

    fn cells(&self) -> &Cells<S> {
        &self.0
    }

    fn find(&self, key: u64) -> Option<u64> {
        self.search(key).ok()
    }

    fn room_for(&self, key: u64) -> Result<Option<u64>, Full> {
        match self.search(key) {
            Ok(_) => Ok(None),
            Err(empty) => empty.map(Some).ok_or(Full),
        }
    }

    fn empty(&self, mut hole: u64) {
        let first = hole;
        let mut cell = self.next(hole);
        while cell != first && self.0.key(cell) != 0 {
            // The record may move back to the hole if its home is not after the hole.
            let (home, count) = (self.home(self.0.key(cell)), self.0.count());
            if (cell + count - home) % count >= (cell + count - hole) % count {
                self.0.set(hole, self.0.key(cell), self.0.value(cell));
                hole = cell;
            }
            cell = self.next(cell);
        }
        self.0.set(hole, 0, 0);
    }
}
