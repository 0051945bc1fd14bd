//! Cells: slots in the pool, and their marks in DRAM.
//!
//! The marks are the cells' [shadow](crate::pmem::Shadow), an eighth of their size. They are made
//! from the cells when the map is opened, and disappear with the process. A lookup that finds
//! nothing usually reads only marks.

use super::layout::{CHUNK, Chunk, Slot};
use crate::index::fingerprints;
use crate::index::kit::media::ones;
use crate::pmem::{Seam, Shadow, SharedWord};
use std::sync::atomic::Ordering;

/// The mark of a cell.
///
/// ```text
///  15    14 13                 0
/// +--------+--------------------+
/// | count  |    fingerprint     |
/// +--------+--------------------+
/// ```
///
/// `fingerprint` is that of the cell's record, 0 if the cell is free. In the first level, `count`
/// is the number of records whose home is this cell but that are in the second level or in overflow
/// nodes. The value 3 means 3 or more, and never decreases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mark(u16);

const FINGERPRINT: u16 = 0x3fff;
/// The fingerprint bits of four marks in one word.
const FINGERPRINTS: u64 = FINGERPRINT as u64 * 0x0001_0001_0001_0001;
/// One record in the count.
const ONE: u16 = FINGERPRINT + 1;
/// The count that never decreases.
const MANY: u16 = 3 * ONE;

impl Mark {
    /// Returns the mark of a record with this hash: 14 of its bits, and never 0.
    #[inline(always)]
    pub(super) fn of(hash: u64) -> Mark {
        Mark(((hash >> 20) as u16 & FINGERPRINT).max(1))
    }

    /// Returns whether the cell holds a record with the same fingerprint.
    #[inline(always)]
    pub(super) fn is_like(self, other: Mark) -> bool {
        (self.0 ^ other.0) & FINGERPRINT == 0
    }

    /// Returns whether the cell is free.
    #[inline(always)]
    pub(super) fn is_free(self) -> bool {
        self.0 & FINGERPRINT == 0
    }

    /// Returns whether records of this home are in the second level or in overflow nodes.
    #[inline(always)]
    pub(super) fn has_overflowed(self) -> bool {
        self.0 >= ONE
    }

    /// Replaces the fingerprint and keeps the count.
    #[inline(always)]
    fn with_fingerprint(self, other: Mark) -> Mark {
        Mark(self.0 & !FINGERPRINT | other.0)
    }

    fn with_one_more(self) -> Mark {
        if self.0 < MANY { Mark(self.0 + ONE) } else { self }
    }

    fn with_one_less(self) -> Mark {
        if (ONE..MANY).contains(&self.0) { Mark(self.0 - ONE) } else { self }
    }
}

/// The marks of a chunk of cells.
#[repr(C, align(16))]
pub(super) struct Marks([SharedWord; 2]);
// SAFETY: consists of `SharedWord`s, which are atomics; 16 bytes.
unsafe impl Shadow for Marks {}

/// A chunk of cells and their marks.
#[derive(Clone, Copy)]
pub(super) struct Cells<'m> {
    slots: &'m [Slot; CHUNK],
    marks: &'m Marks,
    /// The number of the chunk's first cell, if it is in the first level.
    first: Option<u32>,
}

impl<'m> Cells<'m> {
    #[inline(always)]
    pub(super) fn new(chunk: &'m Chunk, marks: &'m Marks, first: Option<u32>) -> Self {
        Cells { slots: &chunk.slots, marks, first }
    }

    #[inline(always)]
    pub(super) fn cell(self, number: usize) -> Cell<'m> {
        Cell { cells: self, number }
    }

    /// Reads all marks. The caller checks the segment's version before it relies on them.
    #[inline(always)]
    fn marks(self, seam: &impl Seam) -> [u64; 2] {
        let [low, high] = &self.marks.0;
        // Acquire: pairs with the Release in `set_mark`. A cell is read after its mark.
        [low.load(seam, Ordering::Acquire), high.load(seam, Ordering::Acquire)]
    }

    /// Yields the cells with this mark, in a chunk outside the first level, where marks have no
    /// count. The default mark is that of free cells.
    #[inline(always)]
    pub(super) fn marked(self, seam: &impl Seam, mark: Mark) -> impl Iterator<Item = Cell<'m>> {
        ones(fingerprints::matching_wide(self.marks(seam), mark.0)).map(move |n| self.cell(n))
    }

    /// Yields the cells that hold a record.
    pub(super) fn used(self, seam: &impl Seam) -> impl Iterator<Item = Cell<'m>> {
        let bits = self.marks(seam).map(|w| w & FINGERPRINTS);
        ones(!fingerprints::matching_wide(bits, 0) & 0xff).map(move |n| self.cell(n))
    }

    /// Marks all cells as free, and as homes without overflow.
    pub(super) fn clear(self, seam: &impl Seam) {
        self.marks.0.iter().for_each(|word| word.store(seam, 0, Ordering::Relaxed));
    }

    /// Yields all cells.
    pub(super) fn all(self) -> impl Iterator<Item = Cell<'m>> {
        (0..CHUNK).map(move |number| self.cell(number))
    }
}

/// A cell. Its mark is changed only under the lock of its segment, or before the segment is in use.
#[derive(Clone, Copy)]
pub(super) struct Cell<'m> {
    cells: Cells<'m>,
    number: usize,
}

impl<'m> Cell<'m> {
    #[inline(always)]
    pub(super) fn slot(self) -> &'m Slot {
        &self.cells.slots[self.number]
    }

    /// Returns the cell's number, if it is in the first level.
    #[inline(always)]
    pub(super) fn home(self) -> Option<u32> {
        self.cells.first.map(|first| first + self.number as u32)
    }

    #[inline(always)]
    fn word(self) -> (&'m SharedWord, usize) {
        (&self.cells.marks.0[self.number / 4], self.number % 4 * 16)
    }

    #[inline(always)]
    pub(super) fn mark(self, seam: &impl Seam) -> Mark {
        let (word, shift) = self.word();
        // Acquire: as above.
        Mark((word.load(seam, Ordering::Acquire) >> shift) as u16)
    }

    /// Prefetches the cell and its mark.
    #[inline(always)]
    pub(super) fn prefetch(self, seam: &impl Seam) {
        seam.prefetch(self.cells.marks);
        seam.prefetch(self.slot());
    }

    #[inline(always)]
    fn set_mark(self, seam: &impl Seam, mark: Mark) {
        let (word, shift) = self.word();
        let others = word.load(seam, Ordering::Relaxed) & !(0xffff << shift);
        // Release: pairs with the Acquire of readers, who then see the record.
        word.store(seam, others | u64::from(mark.0) << shift, Ordering::Release);
    }

    /// Sets the fingerprint. The default mark means that the cell is free now.
    #[inline(always)]
    pub(super) fn set_fingerprint(self, seam: &impl Seam, mark: Mark) {
        self.set_mark(seam, self.mark(seam).with_fingerprint(mark));
    }

    /// Counts a record of this home that is put into another cell.
    pub(super) fn count_overflow(self, seam: &impl Seam) {
        self.set_mark(seam, self.mark(seam).with_one_more());
    }

    /// Undoes [`count_overflow`](Self::count_overflow).
    pub(super) fn forget_overflow(self, seam: &impl Seam) {
        self.set_mark(seam, self.mark(seam).with_one_less());
    }
}

/// The DRAM state of a segment: the shadow of its header.
#[repr(C, align(16))]
pub(super) struct State {
    /// The segment's version lock.
    pub(super) lock: SharedWord,
    /// 0 if the segment has no overflow nodes, any other number if it has some.
    pub(super) has_nodes: SharedWord,
}
// SAFETY: consists of `SharedWord`s, which are atomics; 16 bytes.
unsafe impl Shadow for State {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_and_count_are_apart() {
        assert_eq!(Mark::of(0), Mark(1), "a record's mark is never that of a free cell");
        let (mark, free) = (Mark::of(u64::MAX), Mark::default());
        let mut home = free;
        for count in 1..=5 {
            home = home.with_one_more();
            assert_eq!(home, Mark(ONE * count.min(3)));
            assert!(home.is_free() && home.has_overflowed());
        }
        assert_eq!(home.with_one_less(), home, "many stay many");
        let mut home = free.with_one_more().with_one_more().with_fingerprint(mark);
        assert!(home.is_like(mark) && !home.is_free() && !home.is_like(Mark(1)));
        home = home.with_one_less().with_fingerprint(free);
        assert!(home.is_free() && home.has_overflowed());
        assert_eq!(home.with_one_less(), free);
        assert_eq!(free.with_one_less(), free);
    }
}
