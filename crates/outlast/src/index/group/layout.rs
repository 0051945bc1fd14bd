//! The on-media structs of group hashing and nothing else. Drawn in docs/format.md.

pub use crate::index::config::GROUP_SIZES;
use crate::index::kit::media;
pub use crate::index::kit::media::{Link, MAX_DEPTH, Slot};
use crate::pmem::{Media, Word};

/// Cells in a chunk.
pub const CHUNK: usize = 8;
/// Bytes of a chunk, of a segment's header and of an overflow node's header.
pub const CHUNK_BYTES: u64 = 128;

/// Returns the size, in bytes, of an overflow node: header and cells.
pub const fn node_bytes(group: u32) -> u64 {
    group as u64 * 16
}

/// Returns the size, in bytes, of a segment: header, first level, second level.
pub const fn segment_bytes(group: u32) -> u64 {
    2 * node_bytes(group)
}

/// Returns the number of chunks in a group of the second level, or in a node. The header takes the
/// place of one chunk, so that the size of each block is a power of two.
pub const fn second_chunks(group: u32) -> u32 {
    group / CHUNK as u32 - 1
}

/// Eight cells.
#[repr(C, align(128))]
pub struct Chunk {
    /// The records.
    pub slots: [Slot; CHUNK],
}
// SAFETY: consists of words.
unsafe impl Media for Chunk {}

/// The first 128 bytes of a segment.
#[repr(C, align(128))]
pub struct SegmentHeader {
    /// See [`identity`].
    pub identity: Word,
    /// The first hash of the segment's range. Fixed.
    pub low: Word,
    /// The depth of the range, and the next segment in the list; see [`Link`]. The store to this
    /// word commits a split.
    pub next: Word,
    /// The first overflow node; see [`Link`].
    pub chain: Word,
    /// Unused, of any content.
    pub unused: [Word; 12],
}
// SAFETY: consists of words.
unsafe impl Media for SegmentHeader {}

/// The first 128 bytes of an overflow node. Its cells follow.
#[repr(C, align(128))]
pub struct NodeHeader {
    /// See [`identity`].
    pub identity: Word,
    /// The next node; see [`Link`].
    pub next: Word,
    /// Unused, of any content.
    pub unused: [Word; 14],
}
// SAFETY: consists of words.
unsafe impl Media for NodeHeader {}

const _: () = {
    assert!(size_of::<Chunk>() as u64 == CHUNK_BYTES);
    assert!(size_of::<SegmentHeader>() as u64 == CHUNK_BYTES);
    assert!(size_of::<NodeHeader>() as u64 == CHUNK_BYTES);
};

/// The kind of a structure, for [`identity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A segment.
    Segment = 0x6702,
    /// An overflow node.
    Node = 0x6703,
}

/// Returns the identity word of a structure; see `kit::media::identity`. Its property is `group`.
/// Its checksum also covers the offset and `fixed`: a segment's first hash, or 0 for a node.
pub fn identity(kind: Kind, offset: u64, fixed: u64, group: u32) -> u64 {
    media::identity(kind as u16, group as u16, &[offset, fixed])
}
