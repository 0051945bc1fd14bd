//! Directories in DRAM, which map the first bits of a hash to a segment.

use super::cells::{Cells, cell_of};
use super::media::LOW48;
use super::walk::HashRange;
use crate::pmem::{Seam, SharedWord};
use crate::pool::core::Core;
use std::sync::atomic::Ordering;

/// A block that holds the records whose hashes begin with the same bits, its *prefix*. Its extent
/// was checked to lie inside the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub(crate) offset: u64,
    /// The number of bits of its prefix.
    pub(crate) depth: u32,
    /// The first hash of its range.
    pub(crate) low: u64,
}

impl Segment {
    /// Returns the last hash of the segment's range.
    pub(crate) fn high(self) -> u64 {
        self.low | (u64::MAX >> self.depth)
    }

    /// Returns the segment's range.
    pub(crate) fn range(self) -> HashRange {
        HashRange { low: self.low, high: self.high() }
    }

    pub(crate) fn holds(self, hash: u64) -> bool {
        (hash ^ self.low) >> (64 - self.depth) == 0
    }
}

/// The way by which an operation reached its segment.
#[derive(Clone, Copy)]
pub struct Way<'d> {
    cell: &'d SharedWord,
    word: u64,
}

/// A directory. It only grows. The word of a cell holds a segment's offset and, from bit 48, its
/// depth. It is 0 if the segment is not ready for use.
pub(crate) struct DramDirectory(Cells);

impl DramDirectory {
    /// Makes a directory of this depth, at least 1, without segments, for the map whose root is in
    /// `slot`.
    pub(crate) fn new<S: Seam>(core: &Core<S>, slot: usize, depth: u32) -> Self {
        DramDirectory(Cells::new(core, slot, depth))
    }

    /// Returns the directory's depth.
    pub(crate) fn depth(&self, seam: &impl Seam) -> u32 {
        self.0.depth(seam)
    }

    /// Returns the segment of a hash and the way to it. `None` if the segment is not ready for use.
    #[inline(always)]
    pub(crate) fn find(&self, seam: &impl Seam, hash: u64) -> Option<(Segment, Way<'_>)> {
        let (cell, word) = self.0.find_cell(seam, hash);
        (word != 0).then(|| {
            let depth = (word >> 48) as u32;
            let low = hash >> (64 - depth) << (64 - depth);
            (Segment { offset: word & LOW48, depth, low }, Way { cell, word })
        })
    }

    /// Returns whether a way is still the one that the directory has for these hashes. It is not if the
    /// cell has changed, or if the directory was doubled.
    #[inline(always)]
    pub(crate) fn is_current(seam: &impl Seam, way: Way<'_>) -> bool {
        way.cell.load(seam, Ordering::Relaxed) == way.word
    }

    /// Points the cells of a segment's range to the segment. The caller makes sure that threads
    /// that do this at the same time fill different ranges, and that no thread doubles the
    /// directory meanwhile.
    pub(crate) fn fill(&self, seam: &impl Seam, segment: Segment) {
        let depth = self.depth(seam);
        let cells = cell_of(segment.low, depth)..cell_of(segment.high(), depth) + 1;
        self.0.set(seam, cells, segment.offset | u64::from(segment.depth) << 48);
    }

    /// Doubles the directory. No other thread may fill or double it meanwhile.
    pub(crate) fn double(&self, seam: &impl Seam) {
        self.0.double(seam);
    }
}
