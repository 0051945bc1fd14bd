//! Path hashing (Zuo and Hua, MSST 2017), with and without an undo log.
//!
//! Compared with in group hashing (2.3, 4.1 to 4.4), with 20 reserved levels.
//!
//! The cells form an inverted complete binary tree. A key has two cells in the first level, by two
//! hash functions, and beneath each a path to the root: cell *i* of one level leads to cell *i* / 2
//! of the next. A record lies in the first free cell of its two paths, looked for level by level
//! (position sharing); the levels beneath the reserved ones are left out (path shortening). The
//! number of cells is fixed.
//!
//! Without the log, an insert stores value and key of one cell, in one line, in this order.

use super::cells::{CellTable, Cells};
use crate::shared::{Arena, hash, second_hash};
use crate::{Full, Options};
use outlast::internals::pmem::Seam;

/// Reserved levels.
const LEVELS: u64 = 20;

/// The table.
pub(super) struct Path<S> {
    cells: Cells<S>,
    /// Cells of the first level, a power of two.
    width: u64,
    levels: u64,
}

impl<S: Seam> Path<S> {
    pub(super) fn create(arena: Arena<S>, log: bool, options: &Options) -> Result<Self, Full> {
        // The other levels have about as many cells together as the first one.
        let width = options.initial_slots.div_ceil(2).next_power_of_two().max(2);
        let levels = LEVELS.min(u64::from(width.ilog2()) + 1);
        let count = 2 * width - (width >> (levels - 1));
        let cells = Cells::new(arena, count, log, options)?;
        Ok(Path { cells, width, levels })
    }

    /// The cells of both paths, level by level.
    fn paths(&self, key: u64) -> impl Iterator<Item = u64> {
        let width = self.width;
        let [one, two] = [hash(key) % width, second_hash(key) % width];
        (0..self.levels).flat_map(move |level| {
            // The levels before it have this many cells.
            let first = 2 * width - 2 * (width >> level);
            [first + (one >> level), first + (two >> level)]
        })
    }
}

impl<S: Seam> CellTable for Path<S> {
    type Seam = S;

    fn cells(&self) -> &Cells<S> {
        &self.cells
    }

    fn find(&self, key: u64) -> Option<u64> {
        self.paths(key).find(|&cell| self.cells.is(cell, key))
    }

    fn room_for(&self, key: u64) -> Result<Option<u64>, Full> {
        if self.find(key).is_some() {
            return Ok(None);
        }
        self.paths(key).find(|&cell| self.cells.key(cell) == 0).map(Some).ok_or(Full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Peer;
    use outlast::internals::pmem::{FlushMode, Real};

    #[test]
    fn paths_lie_in_the_tree_and_meet_at_its_root() {
        let arena = Arena::new(Real::new(FlushMode::None), 2 << 20);
        let options = Options { initial_slots: 16, ..Options::default() };
        let table = Path::create(arena, false, &options).unwrap();
        assert_eq!((table.width, table.levels, table.slots()), (8, 4, Some(15)));
        for key in 1..100 {
            let paths: Vec<u64> = table.paths(key).collect();
            let levels = [0..8, 8..12, 12..14, 14..15];
            for (level, cells) in levels.iter().zip(paths.chunks(2)) {
                assert!(cells.iter().all(|cell| level.contains(cell)), "{paths:?}");
            }
        }
    }
}
