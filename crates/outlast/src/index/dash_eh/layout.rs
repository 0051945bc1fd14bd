//! The on-media structs of Dash-EH's directory and nothing else. Drawn in docs/format.md.

pub use crate::index::dash::layout::*;
use crate::index::kit::media::{self, LOW48, seal8};
use crate::pmem::{Media, Word};

/// Bytes of a directory before its entries.
pub const DIRECTORY_HEADER: u64 = 64;
/// Returns the bytes of the block of a directory of this depth: at least 256, because blocks from
/// that size on begin with a line.
pub const fn directory_bytes(depth: u32) -> u64 {
    let bytes = DIRECTORY_HEADER + (8 << depth);
    if bytes < 256 { 256 } else { bytes }
}

/// The first 64 bytes of a directory. Its entries, offsets of segments, follow.
#[repr(C, align(64))]
pub struct DirectoryHeader {
    /// See [`directory_identity`].
    pub identity: Word,
    /// Unused, of any content.
    pub unused: [Word; 7],
}
// SAFETY: consists of words.
unsafe impl Media for DirectoryHeader {}

const _: () = assert!(size_of::<DirectoryHeader>() as u64 == DIRECTORY_HEADER);

/// Returns the identity word of a directory; see `kit::media::identity`.
pub fn directory_identity(offset: u64, depth: u32) -> u64 {
    media::identity(0xd1e0, 0, &[offset, u64::from(depth)])
}

/// Returns the root's first scheme word: the directory's offset and depth.
///
/// ```text
///  63      56 55      48 47                          0
/// +----------+----------+-----------------------------+
/// |  check   |  depth   |     directory's offset      |
/// +----------+----------+-----------------------------+
/// ```
pub fn pack_root(directory: u64, depth: u32) -> u64 {
    seal8(directory | u64::from(depth) << 48)
}

/// Reads the root's word: the directory's offset and depth. Returns `None` if it is damaged.
pub fn unpack_root(word: u64) -> Option<(u64, u32)> {
    let directory = word & LOW48;
    let depth = (word >> 48) as u32 & 0xff;
    let whole = pack_root(directory, depth) == word;
    (whole && (1..=MAX_DEPTH).contains(&depth)).then_some((directory, depth))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_reads_back() {
        assert_eq!(unpack_root(pack_root(0xabc00, 7)), Some((0xabc00, 7)));
        assert_eq!(unpack_root(pack_root(0xabc00, 7) ^ 1 << 20), None);
        assert_eq!(unpack_root(0), None);
    }
}
