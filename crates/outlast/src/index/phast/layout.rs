//! The on-media structs of PhaST and nothing else. Drawn in docs/format.md.

pub use crate::index::config::MAX_PARTITIONS;
pub use crate::index::config::MAX_SLOTS;
/// A pair.
pub use crate::index::kit::media::Slot as Pair;
use crate::index::kit::media::{self, LOW48, ones, seal16};
use crate::pmem::{Media, Word};

/// Pairs in a line.
pub const LINE_SLOTS: u32 = 4;
/// Words of fingerprints in a leaf's header.
pub const FINGERPRINT_WORDS: usize = 7;
/// Bytes of a leaf before its pairs.
pub const LEAF_HEADER: u64 = 128;
/// Bytes of a master array before its entries.
pub const MASTER_HEADER: u64 = 64;

/// Returns the first word of the pair in a blank slot of a leaf of 8-byte records with this least
/// key: the greatest key that belongs before the leaf. The first leaf of all has no blank slots.
#[inline(always)]
pub const fn blank(low: u64) -> Option<u64> {
    low.checked_sub(1)
}

/// Returns the size, in bytes, of a leaf with this many slots.
pub const fn leaf_bytes(slots: u32) -> u64 {
    LEAF_HEADER + slots as u64 * 16
}

/// Returns the size, in bytes, of a master array of this many partitions. It is at least 256,
/// because blocks of that size and more are aligned to cache lines.
pub const fn master_bytes(partitions: u32) -> u64 {
    let bytes = (MASTER_HEADER + 8 * partitions as u64).next_multiple_of(64);
    if bytes < 256 { 256 } else { bytes }
}

/// The first line of a leaf: which slots hold a pair. One flush commits an insert.
#[repr(C, align(64))]
pub struct Head {
    /// A bit for each slot that holds a pair, and their seal; see [`seal`]. A commit word.
    pub bitmap: Word,
    /// One byte of the hash for each slot.
    pub fingerprints: [Word; FINGERPRINT_WORDS],
}
// SAFETY: consists of words.
unsafe impl Media for Head {}

/// The second line of a leaf: its place among the other leaves.
#[repr(C, align(64))]
pub struct Place {
    /// See [`identity`].
    pub identity: Word,
    /// The next leaf; see [`Next`]. A commit word.
    pub next: Word,
    /// The least key that can be in the leaf, as the words of a pair. Fixed. Both words are 0 for
    /// the empty byte string.
    pub low: Pair,
    /// Unused, of any content.
    pub unused: [Word; 4],
}
// SAFETY: consists of words.
unsafe impl Media for Place {}

/// The first 128 bytes of a leaf. Its pairs follow.
#[repr(C, align(64))]
pub struct LeafHeader {
    /// Which slots hold a pair.
    pub head: Head,
    /// The leaf's place among the others.
    pub place: Place,
}
// SAFETY: consists of words.
unsafe impl Media for LeafHeader {}

/// The first 64 bytes of a master array. Its entries follow.
#[repr(C, align(64))]
pub struct MasterHeader {
    /// See [`identity`].
    pub identity: Word,
    /// Unused, of any content.
    pub unused: [Word; 7],
}
// SAFETY: consists of words.
unsafe impl Media for MasterHeader {}

const _: () = {
    assert!(size_of::<Pair>() * LINE_SLOTS as usize == 64);
    assert!(size_of::<Head>() == 64);
    assert!(size_of::<Place>() == 64);
    assert!(size_of::<LeafHeader>() as u64 == LEAF_HEADER);
    assert!(size_of::<MasterHeader>() as u64 == MASTER_HEADER);
    assert!(FINGERPRINT_WORDS * 8 == MAX_SLOTS as usize);
    assert!(leaf_bytes(MAX_SLOTS) == 1024);
};

/// The kind of a structure, for [`identity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A master array.
    Master = 0xfa57,
    /// A leaf.
    Leaf = 0xfa58,
}

/// Returns the identity word of a structure; see `kit::media::identity`. Its property is the number
/// of a leaf's slots or of a master array's entries. Its checksum covers the offset and `fixed`,
/// which is the first word of a leaf's least key, or 0 for a master array.
pub fn identity(kind: Kind, size: u32, offset: u64, fixed: u64) -> u64 {
    media::identity(kind as u16, size as u16, &[offset, fixed])
}

/// The link of a leaf to the next one.
///
/// ```text
///  63      48 47                          6 5    1   0
/// +----------+------------------------------+------+-----+
/// |  check   | offset of the next leaf >> 6 |  0   | mov |
/// +----------+------------------------------+------+-----+
/// ```
///
/// `check` is 16 bits of a CRC-32C over the lower 48 bits and the leaf's own offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    /// The next leaf, 0 if this is the last.
    pub offset: u64,
    /// This leaf may still have pairs whose keys belong to the next leaf, because a split or a
    /// merge may not have ended.
    pub moving: bool,
}

impl Next {
    /// Returns the word on media, for the leaf at this offset.
    pub fn pack(self, leaf: u64) -> u64 {
        seal16(self.offset | u64::from(self.moving), &[leaf])
    }

    /// Reads the word of the leaf at this offset. Returns `None` if it is damaged.
    pub fn unpack(leaf: u64, word: u64) -> Option<Next> {
        let low = word & LOW48;
        let next = Next { offset: low & !63, moving: low & 1 == 1 };
        (next.pack(leaf) == word).then_some(next)
    }
}

/// Returns the bits of a sealed bitmap that setting or clearing the bit of a slot flips.
///
/// ```text
///   63   62       56 55                                     0
/// +----+------------+----------------------------------------+
/// | 1  |    seal    |  a bit for each slot that holds a pair |
/// +----+------------+----------------------------------------+
/// ```
///
/// The seal is the exclusive or of the codes of all set bits. The codes are different numbers of 7
/// bits, of which an odd number greater than one are set: a Hsiao code. So one, two or three wrong
/// bits are always detected, and an insert updates bit and seal with the one store that commits it.
#[inline(always)]
pub fn toggle(slot: u32) -> u64 {
    TOGGLES[(slot & 63) as usize]
}

/// For each slot, its bit and its code. (Entries after the last slot are never used.)
static TOGGLES: [u64; 64] = {
    let mut toggles = [0; 64];
    let (mut slot, mut number) = (0, 3u64);
    while slot < MAX_SLOTS as usize {
        if number.count_ones() > 1 {
            let odd = number.count_ones() as u64 & 1;
            toggles[slot] = 1 << slot | (number | (1 - odd) << 6) << 56;
            slot += 1;
        }
        number += 1;
    }
    toggles
};

/// Returns a leaf's bitmap with its seal. Maps from before seals existed have bitmaps without one.
pub fn seal(bits: u64) -> u64 {
    ones::<u32>(bits).fold(1 << 63, |word, slot| word ^ toggle(slot))
}

/// Returns the word of the entry `index` of the master array at `master`. `leaf` is the leaf that a
/// partition begins with, or 0 if the entry is free.
pub fn pack_entry(master: u64, index: usize, leaf: u64) -> u64 {
    seal16(leaf, &[master, index as u64])
}

/// Reads an entry: the leaf, or 0. Returns `None` if it is damaged.
pub fn unpack_entry(master: u64, index: usize, word: u64) -> Option<u64> {
    let leaf = word & LOW48;
    (pack_entry(master, index, leaf) == word).then_some(leaf)
}

/// Returns the root's first scheme word: the offset of the master array. It never changes.
pub fn pack_root(master: u64) -> u64 {
    seal16(master, &[u64::from(Kind::Master as u16)])
}

/// Reads the root's word. Returns `None` if it is damaged.
pub fn unpack_root(word: u64) -> Option<u64> {
    let master = word & LOW48;
    (master != 0 && pack_root(master) == word).then_some(master)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back() {
        for moving in [false, true] {
            let next = Next { offset: 0xff_ff40, moving };
            assert_eq!(Next::unpack(1024, next.pack(1024)), Some(next));
            assert_eq!(Next::unpack(2048, next.pack(1024)), None, "tied to its leaf");
        }
        assert_eq!(unpack_entry(4096, 3, pack_entry(4096, 3, 0x1c00)), Some(0x1c00));
        assert_eq!(unpack_entry(4096, 4, pack_entry(4096, 3, 0x1c00)), None);
        assert_eq!(unpack_root(pack_root(0xabc00)), Some(0xabc00));
        assert_eq!(unpack_root(pack_root(0xabc00) ^ 1 << 20), None);
        assert_eq!(unpack_root(0), None);
    }

    #[test]
    fn a_seal_notices_up_to_three_wrong_bits() {
        let mut random = 1u64;
        for _ in 0..20 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(11);
            let bits = random >> 8;
            let word = seal(bits);
            assert_eq!(word & ((1 << 56) - 1), bits);
            let is_whole = |word: u64| seal(word & ((1 << 56) - 1)) == word;
            assert!(is_whole(word) && is_whole(word ^ toggle(3)) && is_whole(word ^ toggle(55)));
            for a in 0..63u32 {
                for b in a..63 {
                    for c in b..63 {
                        // If two of the three are the same bit, they cancel out, and one wrong bit
                        // is left.
                        assert!(!is_whole(word ^ 1 << a ^ 1 << b ^ 1 << c), "{a} {b} {c}");
                    }
                    assert!(a == b || !is_whole(word ^ 1 << a ^ 1 << b), "{a} {b}");
                }
            }
        }
        assert_eq!(seal(u64::MAX >> 8) & u64::MAX >> 8, u64::MAX >> 8);
        assert_ne!(seal(0), 0, "a line of zeros is no empty leaf");
    }

    #[test]
    fn blocks_begin_with_a_line() {
        for slots in (4..=MAX_SLOTS).step_by(4) {
            assert_eq!(leaf_bytes(slots) % 64, 0);
        }
        assert_eq!(master_bytes(128), 1088);
    }
}
