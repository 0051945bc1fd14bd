//! The on-media structs of EA-PHT and nothing else. Drawn in docs/format.md.

pub use crate::index::config::CHUNK_BITS;
pub use crate::index::config::EA_PHT_DEPTHS as INITIAL_DEPTHS;
use crate::index::kit::lock::LockPlace;
use crate::index::kit::media;
pub use crate::index::kit::media::{Link, MAX_DEPTH, Slot};
use crate::pmem::{Media, Seam, Word};
use std::sync::atomic::Ordering;

/// Records in a bucket.
pub const SLOTS: usize = 15;
/// Bytes of a bucket, and of the header of a chunk or an annex.
pub const BUCKET_BYTES: u64 = 256;
/// Bytes of a table's header. The links to its chunks follow.
pub const TABLE_HEADER: u64 = 64;

/// The slots of each line of a bucket. The first has the bucket's lock and link.
pub const LINES: [u32; 4] = [0x7, 0x78, 0x780, 0x7800];

/// A bucket: 15 pairs, a lock, and the offset of the next bucket (3.4).
#[repr(C, align(256))]
pub struct Bucket {
    /// In a bucket of the array: in EA-PHT, the version lock, which needs no flush because opening
    /// resets it; unused in the other two schemes. In an overflow bucket: its owner; see [`owner`].
    pub lock: MediaLock,
    /// The next bucket of the chain; see [`Link`]. In the first bucket of a chain, [`MOVED`] says
    /// that the records are in the next table.
    pub next: Word,
    /// The records.
    pub slots: [Slot; SLOTS],
}
// SAFETY: consists of words.
unsafe impl Media for Bucket {}

/// Returns the link by which an overflow bucket names its owner: the chain, in a table of 2^`depth`
/// buckets, that links to the bucket. A bucket that was handed out but is not linked yet names no
/// owner, unless it is a copy that a move has made.
pub const fn owner(chain: u64, depth: u32) -> Link {
    Link { offset: (chain + 1) * 64, depth }
}

/// The depth in the link of a chain's first bucket if its records are in the next table.
pub const MOVED: u32 = 1;

/// A version lock in the pool.
#[repr(transparent)]
pub struct MediaLock(Word);

impl MediaLock {
    /// Returns the lock's word.
    pub fn word(&self) -> &Word {
        &self.0
    }
}

impl LockPlace for MediaLock {
    #[inline(always)]
    fn load(&self, seam: &impl Seam, order: Ordering) -> u64 {
        seam.load(&self.0, order)
    }

    #[inline(always)]
    fn store(&self, seam: &impl Seam, value: u64, order: Ordering) {
        seam.store(&self.0, value, order, &super::points::LOCK);
    }

    #[inline(always)]
    fn exchange(&self, seam: &impl Seam, current: u64, new: u64, success: Ordering) -> bool {
        let at = &super::points::LOCK;
        seam.compare_exchange(&self.0, current, new, success, Ordering::Relaxed, at).is_ok()
    }
}

/// The first 256 bytes of a chunk or an annex. The buckets follow: in a chunk, those of the array,
/// and then the overflow buckets.
#[repr(C, align(256))]
pub struct AreaHeader {
    /// See [`identity`].
    pub identity: Word,
    /// The number of overflow buckets handed out so far, in the form of a [`Link`] whose offset is
    /// 64 times that number.
    pub used: Word,
    /// In an annex, the next one; see [`Link`].
    pub next: Word,
    /// Unused, of any content.
    pub unused: [Word; 29],
}
// SAFETY: consists of words.
unsafe impl Media for AreaHeader {}

/// The header of a table. Its chunks' links follow.
#[repr(C, align(64))]
pub struct TableHeader {
    /// See [`identity`].
    pub identity: Word,
    /// The newest annex; see [`Link`].
    pub annexes: Word,
    /// Unused, of any content.
    pub unused: [Word; 6],
}
// SAFETY: consists of words.
unsafe impl Media for TableHeader {}

const _: () = {
    assert!(size_of::<Bucket>() as u64 == BUCKET_BYTES);
    assert!(size_of::<AreaHeader>() as u64 == BUCKET_BYTES);
    assert!(size_of::<TableHeader>() as u64 == TABLE_HEADER);
};

/// The kind of a structure, for [`identity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A table. Its property is, in the low 8 bits, the log2 of its buckets, and above them that of
    /// the buckets in the array of a chunk.
    Table = 0x6501,
    /// A chunk. Its property is the log2 of the buckets of its array.
    Chunk = 0x6502,
    /// An annex. Its property is the log2 of the number of its buckets, the header counted as one.
    Annex = 0x6503,
}

/// Returns the identity word of a structure; see `kit::media::identity`. Its checksum also covers
/// the offset and `fixed`: of a chunk, its number in the table; otherwise 0.
pub fn identity(kind: Kind, offset: u64, fixed: u64, bits: u32) -> u64 {
    media::identity(kind as u16, bits as u16, &[offset, fixed])
}

/// Returns the number of overflow buckets in a chunk whose array has 2^`bits` buckets: an eighth of
/// that, less one for the header, but at least one. So a chunk takes 9/8 of the size of its array
/// if that has 16 buckets or more.
pub const fn overflow_buckets(bits: u32) -> u64 {
    let eighth = (1 << bits) / 8;
    if eighth > 1 { eighth - 1 } else { 1 }
}

/// Returns the size, in bytes, of a chunk whose array has 2^`bits` buckets.
pub const fn chunk_bytes(bits: u32) -> u64 {
    BUCKET_BYTES * (1 + (1 << bits) + overflow_buckets(bits))
}

/// Returns the size, in bytes, of an annex of 2^`bits` buckets, one of which is its header.
pub const fn annex_bytes(bits: u32) -> u64 {
    BUCKET_BYTES << bits
}

/// Returns the size, in bytes, of the block of a table with 2^`chunks` chunks: a power of two, so
/// that the block is aligned.
pub const fn table_bytes(chunks: u32) -> u64 {
    (TABLE_HEADER + (8 << chunks)).next_power_of_two()
}
