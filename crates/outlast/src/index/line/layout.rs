//! The on-media structs, and the numbers that follow from them. Drawn in docs/format.md.

use super::points;
pub use crate::index::kit::arrays::{DirectoryForm, pack_root};
use crate::index::kit::cells::cell_of;
pub use crate::index::kit::media::Slot;
use crate::index::kit::media::{self, LOW48};
use crate::index::kit::walk::HashRange;
use crate::pmem::{Media, Word};
use std::ops::Range;

/// Record slots of a line.
pub const LINE_SLOTS: usize = 4;
/// Bytes of a line, and of a header.
pub const LINE_BYTES: u64 = 64;
/// Home lines of a block.
pub const BLOCK_LINES: u32 = 4;
/// The most blocks of a segment.
pub const MAX_BLOCKS: usize = 118;
/// The most lines of the stash that a record can be in.
pub const MAX_WINDOW: u32 = 8;
/// Lines of an overflow node after its header.
pub const NODE_LINES: usize = 31;
/// Slots of an overflow node.
pub const NODE_SLOTS: u64 = (NODE_LINES * LINE_SLOTS) as u64;
/// Bytes of an overflow node.
pub const NODE_BYTES: u64 = (1 + NODE_LINES as u64) * LINE_BYTES;
/// The largest [`Size`].
pub const MAX_SIZE: u32 = 5;
/// Greatest depth of a segment.
pub const MAX_DEPTH: u32 = 23;
/// The most segments that one rebuild makes.
pub const MAX_NEW: usize = 2;

/// A line: four slots.
#[repr(C, align(64))]
pub struct SlotLine {
    /// The slots.
    pub slots: [Slot; LINE_SLOTS],
}
// SAFETY: consists of words.
unsafe impl Media for SlotLine {}

/// A block: the home lines that take each other's overflow.
#[repr(C, align(256))]
pub struct Block {
    /// The lines.
    pub lines: [SlotLine; BLOCK_LINES as usize],
}
// SAFETY: consists of words.
unsafe impl Media for Block {}

/// The first line of a segment. Its stash lines follow, and then its home lines.
#[repr(C, align(64))]
pub struct SegmentHeader {
    /// See [`segment_identity`].
    pub identity: Word,
    /// The first hash of the segment's range.
    pub low: Word,
    /// A link to the next segment that the same rebuild has made; of offset 0 in the last one.
    pub sibling: Word,
    /// A link to the first overflow node; of offset 0 if there is none. A commit word.
    pub chain: Word,
    /// Zeros.
    pub unused: [Word; 4],
}
// SAFETY: consists of words.
unsafe impl Media for SegmentHeader {}

/// An overflow node.
#[repr(C, align(64))]
pub struct Node {
    /// See [`node_identity`].
    pub identity: Word,
    /// A link to the next node; of offset 0 if this is the last.
    pub next: Word,
    /// Zeros.
    pub unused: [Word; 6],
    /// The records.
    pub lines: [SlotLine; NODE_LINES],
}
// SAFETY: consists of words.
unsafe impl Media for Node {}

const _: () = {
    assert!(size_of::<SlotLine>() as u64 == LINE_BYTES);
    assert!(size_of::<Block>() as u64 == LINE_BYTES * BLOCK_LINES as u64);
    assert!(size_of::<SegmentHeader>() as u64 == LINE_BYTES);
    assert!(size_of::<Node>() as u64 == NODE_BYTES);
};

/// The directories of this scheme.
pub static DIRECTORY: DirectoryForm = DirectoryForm {
    kind: 0x11e0,
    depths: 1..=MAX_DEPTH,
    create: &points::CREATE,
    double: &points::DOUBLE_NEW,
};

/// A size of segments.
#[derive(Debug, PartialEq, Eq)]
pub struct Size {
    /// Lines: header, stash and home lines.
    pub lines: u32,
    /// Lines before the home lines.
    pub before: u32,
    /// Stash lines.
    pub stash: u32,
    /// Home lines.
    pub home: u32,
}

impl Size {
    const fn new(lines: u32, before: u32) -> Size {
        Size { lines, before, stash: before - 1, home: lines - before }
    }

    /// Bytes of a segment.
    pub const fn bytes(&self) -> u64 {
        self.lines as u64 * LINE_BYTES
    }

    /// Slots of a segment, those of nodes not counted.
    pub const fn slots(&self) -> u64 {
        (self.lines as u64 - 1) * LINE_SLOTS as u64
    }

    /// Blocks of a segment.
    pub const fn blocks(&self) -> u32 {
        self.home / BLOCK_LINES
    }

    /// The number of stash lines that a record can be in.
    #[inline(always)]
    pub const fn window(&self) -> u32 {
        if self.stash < MAX_WINDOW { self.stash } else { MAX_WINDOW }
    }

    /// Returns the home line of a hash.
    #[inline(always)]
    pub const fn home_of(&self, hash: u64) -> u32 {
        (((hash & 0xffff_ffff) * self.home as u64) >> 32) as u32
    }

    /// Returns the stash line of a hash at this position of its window.
    #[inline(always)]
    pub const fn stash_of(&self, hash: u64, position: u32) -> u32 {
        let first = (((hash & 0xffff) * self.stash as u64) >> 16) as u32;
        let line = first + position;
        if line < self.stash { line } else { line - self.stash }
    }

    /// Returns the position of a stash line in the window of a hash, or `None` if it is not in it.
    pub fn position_of(&self, hash: u64, line: u32) -> Option<u32> {
        (0..self.window()).find(|&position| self.stash_of(hash, position) == line)
    }
}

/// The sizes of segments, from 1 to 32 KiB.
pub static SIZES: [Size; MAX_SIZE as usize + 1] = [
    Size::new(16, 4),
    Size::new(32, 4),
    Size::new(64, 8),
    Size::new(128, 12),
    Size::new(256, 20),
    Size::new(512, 40),
];

/// What a segment is besides its place. It never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The index of its [`Size`].
    pub size: u32,
    /// The number of leading bits that its hashes share.
    pub depth: u32,
}

impl Shape {
    /// Returns the shape as identity words contain it.
    pub fn pack(self) -> u16 {
        (self.size | self.depth << 3) as u16
    }

    /// Reads it. Returns `None` if no segment has this shape.
    pub fn unpack(packed: u16) -> Option<Shape> {
        let packed = u32::from(packed);
        let shape = Shape { size: packed & 7, depth: packed >> 3 };
        let fits = shape.size <= MAX_SIZE && (1..=MAX_DEPTH).contains(&shape.depth);
        fits.then_some(shape)
    }

    /// Returns the range of the segment of this shape that holds a hash.
    pub(crate) fn range(self, hash: u64) -> HashRange {
        let rest = u64::MAX >> self.depth;
        HashRange { low: hash & !rest, high: hash | rest }
    }
}

/// A segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The offset of its header.
    pub offset: u64,
    /// Its shape.
    pub shape: Shape,
    /// The first hash of its range.
    pub low: u64,
    /// The last hash of its range.
    pub high: u64,
}

impl Segment {
    /// Returns the segment of this shape at this offset that holds a hash.
    pub fn new(offset: u64, shape: Shape, hash: u64) -> Segment {
        let HashRange { low, high } = shape.range(hash);
        Segment { offset, shape, low, high }
    }

    /// Returns the segment of a cell's word; see [`Segment::word`]. The hash is one of its range.
    #[inline(always)]
    pub fn of(word: u64, hash: u64) -> Segment {
        let shape = Shape { size: size_of_word(word), depth: (word >> 48) as u32 };
        Segment::new(offset_of_word(word), shape, hash)
    }

    /// Returns the word of the DRAM cells in its range while it is open to changes.
    ///
    /// ```text
    ///  63         48 47             10 9      4  3      2    0
    /// +-------------+-----------------+--------+--------+------+
    /// |    depth    |  offset >> 10   |   0    |  OPEN  | size |
    /// +-------------+-----------------+--------+--------+------+
    /// ```
    pub fn word(&self) -> u64 {
        let Shape { size, depth } = self.shape;
        u64::from(size) | OPEN | self.offset | u64::from(depth) << 48
    }

    /// Returns the segment's size.
    pub fn size(&self) -> &'static Size {
        &SIZES[self.shape.size as usize]
    }

    pub(crate) fn range(&self) -> HashRange {
        HashRange { low: self.low, high: self.high }
    }

    /// Returns the numbers of the cells in its range.
    pub(crate) fn cells(&self, depth: u32) -> Range<usize> {
        let range = self.range();
        cell_of(range.low, depth)..cell_of(range.high, depth) + 1
    }
}

/// In the word of a cell: changes may begin. While the bit is clear, the segment is not ready, or is
/// frozen because it is being rebuilt: then writers wait, and readers go on.
pub const OPEN: u64 = 1 << 3;

/// Returns the offset in the word of a cell.
#[inline(always)]
pub fn offset_of_word(word: u64) -> u64 {
    word & LOW48 & !0x3ff
}

/// Returns the size in the word of a cell.
#[inline(always)]
pub fn size_of_word(word: u64) -> u32 {
    word as u32 & 7
}

/// Returns the identity word of a segment; see `kit::media::identity`.
pub fn segment_identity(offset: u64, low: u64, shape: Shape) -> u64 {
    media::identity(0x11e1, shape.pack(), &[offset, low])
}

/// Returns the shape in an identity word.
pub fn shape_of(identity: u64) -> Option<Shape> {
    Shape::unpack((identity >> 16) as u16)
}

/// Returns the identity word of an overflow node of this segment; see `kit::media::identity`.
pub fn node_identity(offset: u64, segment: u64) -> u64 {
    media::identity(0x11e2, 0, &[offset, segment])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_and_cells_read_back() {
        let mut valid = 0;
        for packed in 0..=u16::MAX {
            let Some(shape) = Shape::unpack(packed) else { continue };
            assert_eq!(shape.pack(), packed);
            let segment = Segment::new(0xffff_ffff_fc00, shape, 0x5555_5555_5555_5555);
            for hash in [segment.low, segment.high] {
                assert_eq!(Segment::of(segment.word(), hash), segment);
                assert_eq!(Segment::of(segment.word() & !OPEN, hash), segment);
                assert!(segment.range().holds(hash));
            }
            valid += 1;
        }
        assert_eq!(valid, 6 * 23);
    }

    #[test]
    fn two_halves_divide_a_range_and_its_cells() {
        for depth in [1, 2, 7, 22] {
            let whole = Segment::new(1024, Shape { size: 5, depth }, u64::MAX / 5);
            let half = |hash| Segment::new(1024, Shape { size: 5, depth: depth + 1 }, hash);
            let (lower, upper) = (half(whole.low), half(whole.high));
            assert_eq!((lower.low, upper.high), (whole.low, whole.high));
            assert_eq!(lower.high + 1, upper.low);
            let [all, first, second] =
                [whole, lower, upper].map(|segment| segment.cells(depth + 1));
            assert_eq!((first.start, first.len(), first.end), (all.start, 1, second.start));
            assert_eq!((second.len(), second.end), (1, all.end));
        }
    }

    #[test]
    fn homes_and_windows_stay_inside() {
        for (size, bits) in SIZES.iter().zip(10..) {
            assert_eq!(size.bytes(), 1 << bits);
            assert_eq!(size.before % BLOCK_LINES, 0);
            assert!(size.blocks() as usize <= MAX_BLOCKS);
            assert_eq!((size.home_of(0), size.home_of(u64::MAX)), (0, size.home - 1));
            for hash in [0, 0x7fff, 0xffff, 0x1_0000, u64::MAX] {
                let mut lines: Vec<_> =
                    (0..size.window()).map(|position| size.stash_of(hash, position)).collect();
                for (line, position) in lines.iter().zip(0..) {
                    assert!(*line < size.stash);
                    assert_eq!(size.position_of(hash, *line), Some(position));
                }
                lines.sort_unstable();
                lines.dedup();
                assert_eq!(lines.len(), size.window() as usize);
            }
        }
    }
}
