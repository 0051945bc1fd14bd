//! What Dash-LH adds to the on-media structs of segments and directories: where each segment lies,
//! and which is split next. Drawn in docs/format.md.

pub use crate::index::config::DASH_LH_DEPTHS as INITIAL_DEPTHS;
pub use crate::index::dash::layout::*;
use crate::index::kit::media::{LOW48, seal16};

/// Depth of a new map's directory of arrays.
pub const DIRECTORY_DEPTH: u32 = 1;

/// The bit of a turn's word that holds `late`.
const LATE: u32 = 46;

/// The segment that is split next: the one whose prefix has the number `next` among those of
/// `depth` bits. The segments before it have been split in this round, or are being split, or are
/// late.
///
/// ```text
///  63      48  47   46   45        40 39                    0
/// +----------+---+------+------------+-----------------------+
/// |  check   | 0 | late |   depth    |         next          |
/// +----------+---+------+------------+-----------------------+
/// ```
///
/// `check` is 16 bits of a CRC-32C over the lower 48 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Whether there may be *late* segments: segments whose turn has passed but that were not
    /// split, because there was no space or because of a crash.
    pub late: bool,
    /// The round: the depth of the segments that it splits.
    pub depth: u32,
    /// The number of the prefix, less than 2^depth.
    pub next: u64,
}

impl Turn {
    /// Returns the word on media: the root's second scheme word.
    pub fn pack(self) -> u64 {
        seal16(self.bits() | u64::from(self.late) << LATE, &[])
    }

    /// Reads the word. Returns `None` if it is damaged.
    pub fn unpack(word: u64) -> Option<Turn> {
        let late = word >> LATE & 1 != 0;
        let turn = Turn { late, ..Turn::of_bits(word & LOW48 & !(1 << LATE)) };
        let known = (1..=MAX_DEPTH).contains(&turn.depth) && turn.next >> turn.depth == 0;
        (turn.pack() == word && known).then_some(turn)
    }

    /// Returns the word without its checksum and `late`. A later turn has a greater value.
    pub(super) fn bits(self) -> u64 {
        u64::from(self.depth) << 40 | self.next
    }

    pub(super) fn of_bits(bits: u64) -> Turn {
        Turn { late: false, depth: (bits >> 40) as u32, next: bits & ((1 << 40) - 1) }
    }

    /// Returns the turn after this one.
    #[must_use]
    pub fn following(self) -> Turn {
        match self.next + 1 {
            end if end >> self.depth != 0 => Turn { depth: self.depth + 1, next: 0, ..self },
            next => Turn { next, ..self },
        }
    }

    /// Returns the depth of the segment of a hash, assuming that the splits of all earlier turns
    /// have been made.
    #[inline(always)]
    pub fn depth_of(self, hash: u64) -> u32 {
        self.depth + u32::from(hash >> (64 - self.depth) < self.next)
    }
}

/// Names a segment, and so its place, by the depth at which it was made. A split leaves the old
/// segment in its place and adds a 0 to its prefix. So a prefix that ends in zeros means the same
/// segment as the prefix without these zeros (but no shorter than the initial depth).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// The depth at which it was made; the initial depth for the first segments.
    pub depth: u32,
    /// Its number among the segments that are made at this depth, in the order of their prefixes.
    pub index: u64,
}

impl Made {
    /// Returns the segment that holds the hashes whose first `depth` bits are these, in a map of
    /// this initial depth.
    #[inline(always)]
    pub fn of(prefix: u64, depth: u32, initial: u32) -> Made {
        let zeros = prefix.trailing_zeros();
        if zeros >= depth - initial {
            return Made { depth: initial, index: prefix >> (depth - initial) };
        }
        Made { depth: depth - zeros, index: prefix >> zeros >> 1 }
    }

    /// Returns the first hash of its range.
    pub fn low(self, initial: u32) -> u64 {
        let prefix = if self.depth == initial { self.index } else { self.index << 1 | 1 };
        prefix << (64 - self.depth)
    }

    /// Returns the segment's number among all segments, in the order in which splits make them.
    fn number(self, initial: u32) -> u64 {
        if self.depth == initial { self.index } else { (1 << (self.depth - 1)) + self.index }
    }
}

/// The arrays that segments are in. The first eight have 2^initial segments each, the next eight
/// twice as many, and so on, as long as an array takes at most half of the largest possible block.
/// Each further array fills such a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrays {
    initial: u32,
    /// The number of segments that fit the largest possible block.
    most: u64,
}

impl Arrays {
    /// Returns the arrays of a map of this initial depth, in a pool whose blocks have at most
    /// `block` bytes. `None` if such a block cannot hold the first array.
    pub fn new(initial: u32, segment_bytes: u64, block: u64) -> Option<Arrays> {
        let most = block / segment_bytes;
        (most >= 1 << initial).then_some(Arrays { initial, most })
    }

    /// Returns the number of segments in each of the eight arrays from number `8 * eight` on.
    fn size(self, eight: usize) -> u64 {
        match 1 << (self.initial as usize + eight.min(40)) {
            doubled if eight == 0 || doubled <= self.most / 2 => doubled,
            _ => self.most,
        }
    }

    /// Returns the number of segments in an array.
    pub fn len(self, array: usize) -> u64 {
        self.size(array / 8)
    }

    /// Returns the array that a segment is in, and its index there.
    pub fn place(self, made: Made) -> (usize, u64) {
        self.place_of(made.number(self.initial))
    }

    /// Returns the number of arrays that there are at this turn.
    pub fn count(self, turn: Turn) -> usize {
        self.place_of((1 << turn.depth) + turn.next - 1).0 + 1
    }

    fn place_of(self, number: u64) -> (usize, u64) {
        let (mut eight, mut rest) = (0, number);
        loop {
            let size = self.size(eight);
            if rest < 8 * size || eight > 0 && size == self.most {
                return (8 * eight + (rest / size) as usize, rest % size);
            }
            rest -= 8 * size;
            eight += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_reads_back_and_passes_on() {
        let turn = Turn { late: false, depth: 6, next: 63 };
        let late = Turn { late: true, ..turn };
        assert_eq!(Turn::unpack(turn.pack()), Some(turn));
        assert_eq!(Turn::unpack(late.pack()), Some(late));
        assert_eq!(Turn::unpack(turn.pack() ^ 1), None);
        assert_eq!(Turn::unpack(0), None);
        assert_eq!(late.following(), Turn { depth: 7, next: 0, ..late });
        assert!(turn.following().bits() > turn.bits());
        let [low, high] = [62, 63].map(|prefix| turn.depth_of(prefix << 58));
        assert_eq!((low, high), (7, 6));
    }

    /// In the order in which splits make them, segments follow each other in the arrays.
    #[test]
    fn segments_fill_one_array_after_the_other() {
        for (initial, most) in [(1, 2), (1, 3), (1, 9), (2, 17), (6, 130)] {
            let arrays = Arrays { initial, most };
            let first = (0..1 << initial).map(|prefix| Made::of(prefix, initial, initial));
            let split = (initial..initial + 6).flat_map(|depth| {
                (0..1 << depth).map(move |p| Made::of(p << 1 | 1, depth + 1, initial))
            });
            let (mut array, mut index) = (0, 0);
            for made in first.chain(split) {
                assert_eq!(arrays.place(made), (array, index), "{arrays:?} {made:?}");
                let prefix = made.low(initial) >> (64 - made.depth);
                assert_eq!(Made::of(prefix, made.depth, initial), made);
                assert_eq!(Made::of(prefix << 3, made.depth + 3, initial), made, "it stays");
                index += 1;
                if index == arrays.len(array) {
                    (array, index) = (array + 1, 0);
                }
            }
        }
        let arrays = Arrays::new(6, 17_152, 512 << 20).unwrap();
        let lengths = [0, 7, 8, 63, 64, 71, 72].map(|array| arrays.len(array));
        assert_eq!(lengths, [64, 64, 128, 8192, 31_300, 31_300, 31_300]);
        assert_eq!(Arrays::new(6, 17_152, 1 << 20), None);
    }
}
