//! The on-media structs of segments and their directories, and nothing else. Drawn in
//! docs/format.md.

use super::points;
pub use crate::index::kit::arrays::{DirectoryForm, pack_root};
pub use crate::index::kit::media::Slot;
use crate::index::kit::media::{self, LOW48, seal16};
use crate::pmem::{Media, Word};

/// Record slots in a bucket.
pub const SLOTS: usize = 16;
/// Slots in a line.
pub const LINE_SLOTS: usize = 64 / size_of::<Slot>();
/// A bit for every slot.
pub const ALL_SLOTS: u32 = (1 << SLOTS) - 1;
/// Overflow fingerprints in a bucket.
pub const OVERFLOW_FINGERPRINTS: usize = 4;
/// Bytes of a bucket, of a segment's header and of an overflow node's header.
pub const BUCKET_BYTES: u64 = 256;
/// Buckets in an overflow node.
pub const NODE_BUCKETS: u32 = 7;
/// Bytes of an overflow node.
pub const NODE_BYTES: u64 = (1 + NODE_BUCKETS as u64) * BUCKET_BYTES;
/// Greatest depth of a segment.
pub const MAX_DEPTH: u32 = 40;

/// A bucket: 16 slots. Its metadata are in DRAM.
#[repr(C, align(256))]
pub struct Bucket {
    /// The records.
    pub slots: [Slot; SLOTS],
}
// SAFETY: consists of words.
unsafe impl Media for Bucket {}

/// The first 256 bytes of a segment. Its buckets and then its stash buckets follow.
#[repr(C, align(256))]
pub struct SegmentHeader {
    /// See [`identity`].
    pub identity: Word,
    /// The first hash of the segment's range. Fixed.
    pub low: Word,
    /// Local depth and, during a split, the new segment; see [`State`]. A commit word.
    pub state: Word,
    /// The first overflow node, 0 if there is none.
    pub chain: Word,
    /// Unused, of any content.
    pub unused: [Word; 28],
}
// SAFETY: consists of words.
unsafe impl Media for SegmentHeader {}

/// The first 256 bytes of an overflow node. Its buckets follow.
#[repr(C, align(256))]
pub struct NodeHeader {
    /// See [`identity`].
    pub identity: Word,
    /// The next node, 0 if this is the last.
    pub next: Word,
    /// Unused, of any content.
    pub unused: [Word; 30],
}
// SAFETY: consists of words.
unsafe impl Media for NodeHeader {}

const _: () = {
    assert!(size_of::<Bucket>() as u64 == BUCKET_BYTES);
    assert!(size_of::<SegmentHeader>() as u64 == BUCKET_BYTES);
    assert!(size_of::<NodeHeader>() as u64 == BUCKET_BYTES);
};

/// The kind of a structure, for [`identity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A segment.
    Segment = 0xd1e1,
    /// An overflow node.
    Node = 0xd1e2,
}

/// Returns the identity word of a structure; see `kit::media::identity`. Its checksum covers the
/// offset and `fixed`, which is a segment's first hash, or 0 for a node.
pub fn identity(kind: Kind, offset: u64, fixed: u64, shape: u16) -> u64 {
    media::identity(kind as u16, shape, &[offset, fixed])
}

/// A segment's state word.
///
/// ```text
///  63      48 47  46 45        40 39                    0
/// +----------+------+------------+-----------------------+
/// |  check   |  0   |   depth    | split partner >> 8    |
/// +----------+------+------------+-----------------------+
/// ```
///
/// `check` is 16 bits of a CRC-32C over the lower 48 bits and the segment's offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The number of leading bits that the hashes of the segment's records share.
    pub depth: u32,
    /// The segment that the last split made for the upper half, if that split may be incomplete;
    /// otherwise 0. In Dash-EH, the directory entries of an incomplete split may not be durable
    /// yet. In Dash-LH, nothing is left to do.
    pub partner: u64,
}

impl State {
    /// Returns the word on media, for the segment at this offset.
    pub fn pack(self, segment: u64) -> u64 {
        seal16(self.partner >> 8 | u64::from(self.depth) << 40, &[segment])
    }

    /// Reads the word of the segment at this offset. Returns `None` if it is damaged.
    pub fn unpack(segment: u64, word: u64) -> Option<State> {
        let depth = (word & LOW48) >> 40;
        let state = State { depth: depth as u32, partner: (word & ((1 << 40) - 1)) << 8 };
        let whole = state.pack(segment) == word;
        (whole && (1..=MAX_DEPTH).contains(&state.depth)).then_some(state)
    }
}

/// The directories of Dash-EH and Dash-LH.
pub static DIRECTORY: DirectoryForm = DirectoryForm {
    kind: 0xd1e0,
    depths: 1..=MAX_DEPTH,
    create: &points::CREATE,
    double: &points::DOUBLE_NEW,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_reads_back() {
        assert_eq!(DIRECTORY.unpack_root(pack_root(0xabc00, 7)), Some((0xabc00, 7)));
        assert_eq!(DIRECTORY.unpack_root(pack_root(0xabc00, 7) ^ 1 << 20), None);
        assert_eq!(DIRECTORY.unpack_root(0), None);
    }

    #[test]
    fn states_read_back() {
        let state = State { depth: 17, partner: 0xff_ff00 };
        assert_eq!(State::unpack(256, state.pack(256)), Some(state));
        assert_eq!(State::unpack(512, state.pack(256)), None, "tied to its segment");
    }
}
