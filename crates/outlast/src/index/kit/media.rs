//! The words on media that all schemes have: identities, checksums, slots.

use crate::error::{Damage, Error, Result};
use crate::index::bugs;
use crate::index::record::{RecordForm, SlotRecord, SlotWords};
use crate::pmem::{Media, Memory, Point, Seam, Word};
use crate::pool::core::Core;
use std::sync::atomic::{Ordering, fence};

/// The low 48 bits of a word: an offset, in words that hold something else above it.
pub(crate) const LOW48: u64 = (1 << 48) - 1;

/// Returns the CRC-32C of words.
pub(crate) fn checksum(words: &[u64]) -> u32 {
    append(0, words)
}

fn append(crc: u32, words: &[u64]) -> u32 {
    words.iter().fold(crc, |crc, w| crc32c::crc32c_append(crc, &w.to_le_bytes()))
}

/// Makes a word of the 48 bits in `low` and, above them, 16 bits of a CRC-32C. The checksum covers
/// the 48 bits and the words in `of`, so the result is valid only together with those words.
pub(crate) fn seal16(low: u64, of: &[u64]) -> u64 {
    let crc = append(checksum(&[low]), of);
    low | u64::from((crc ^ crc >> 16) & 0xffff) << 48
}

/// Makes a word of the 56 bits in `low` and, above them, 8 bits of their CRC-32C.
pub(crate) fn seal8(low: u64) -> u64 {
    let crc = checksum(&[low]);
    low | u64::from((crc ^ crc >> 8 ^ crc >> 16 ^ crc >> 24) as u8) << 56
}

/// Greatest depth in a [`Link`].
pub const MAX_DEPTH: u32 = 40;

/// A link to another structure, and a depth.
///
/// ```text
///  63      48 47                      6 5       0
/// +----------+--------------------------+---------+
/// |  check   |       offset >> 6        |  depth  |
/// +----------+--------------------------+---------+
/// ```
///
/// `check` is 16 bits of a CRC-32C over the lower 48 bits and the word's own offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Link {
    /// The offset of the structure, or 0 if there is none.
    pub offset: u64,
    /// A number from 0 to [`MAX_DEPTH`], usually a depth.
    pub depth: u32,
}

impl Link {
    /// Returns the word on media, for a word at this offset.
    pub fn pack(self, at: u64) -> u64 {
        seal16(self.offset | u64::from(self.depth), &[at])
    }

    /// Reads the word at this offset. Returns `None` if it is damaged.
    pub fn unpack(at: u64, word: u64) -> Option<Link> {
        let low = word & LOW48;
        let link = Link { offset: low & !63, depth: (low & 63) as u32 };
        (link.pack(at) == word && link.depth <= MAX_DEPTH).then_some(link)
    }

    /// Stores the link without a flush.
    pub(crate) fn store<S: Seam>(self, memory: &Memory<S>, word: &Word, at: &'static Point) {
        memory.store_release(word, self.pack(memory.offset_of(word).raw()), at);
    }

    /// Reads the link in a word.
    pub(crate) fn read<S: Seam>(memory: &Memory<S>, word: &Word) -> Result<Link, Damage> {
        let at = memory.offset_of(word).raw();
        let found = memory.load_acquire(word);
        Link::unpack(at, found).ok_or_else(|| Damage::new(at, "a link", format!("{found:#x}")))
    }
}

/// Makes the identity word of a structure: its kind, one fixed property, and a checksum. The
/// checksum also covers `place`: the structure's offset and its other fixed properties.
///
/// ```text
///  63                    32 31        16 15         0
/// +------------------------+------------+------------+
/// |        CRC-32C         |  property  |    kind    |
/// +------------------------+------------+------------+
/// ```
pub(crate) fn identity(kind: u16, property: u16, place: &[u64]) -> u64 {
    let low = u64::from(kind) | u64::from(property) << 16;
    low | u64::from(append(checksum(&[low]), place)) << 32
}

/// Checks the identity word of a structure.
pub(crate) fn check_identity<S: Seam>(
    memory: &Memory<S>,
    identity: &Word,
    expected: u64,
    what: &str,
) -> Result<(), Damage> {
    let found = memory.load(identity);
    if found == expected {
        return Ok(());
    }
    let at = memory.offset_of(identity).raw();
    Err(Damage::new(at, format!("{what} ({expected:#x})"), format!("{found:#x}")))
}

/// Checks that a structure lies inside the memory and in a block of its own, so that it overlaps no
/// other.
pub(crate) fn check_block<S: Seam>(
    core: &Core<S>,
    offset: u64,
    bytes: u64,
) -> Result<&[Word], Damage> {
    let words = core.memory.words(offset, bytes)?;
    core.alloc().check_block(core, offset, bytes)?;
    Ok(words)
}

/// Returns the empty word of each half of the hash space. It marks an empty slot, because no record
/// in that half has it as its first word. Fails if the hash function maps all numbers below 1,024
/// to the same half.
pub(crate) fn empty_words<S: Seam, R: SlotRecord>(core: &Core<S>) -> Result<[u64; 2]> {
    if let Some(word) = R::EMPTY {
        return Ok([word, word]);
    }
    let in_half = |half| (0..1024).find(|&key| core.hasher.word(key) >> 63 == half);
    match (in_half(1), in_half(0)) {
        (Some(high), Some(low)) => Ok([high, low]),
        _ => Err(Error::Invalid {
            what: "hash function",
            why: "it maps 1024 numbers to one half of its range".into(),
        }),
    }
}

/// Yields the numbers of the bits that are set, lowest first.
#[inline(always)]
pub(crate) fn ones<N: From<u8>>(mask: impl Into<u64>) -> impl Iterator<Item = N> {
    let mut mask = mask.into();
    std::iter::from_fn(move || {
        let bit = (mask != 0).then(|| N::from(mask.trailing_zeros() as u8))?;
        mask &= mask - 1;
        Some(bit)
    })
}

/// A record's slot. The record form defines what its words mean.
#[repr(C, align(16))]
pub struct Slot {
    /// The key, or the link to the record. An insert stores it last.
    pub first: Word,
    /// The value, or the key's hash.
    pub second: Word,
}
// SAFETY: consists of words.
unsafe impl Media for Slot {}

const _: () = assert!(size_of::<Slot>() == 16);

impl Slot {
    /// Reads the words. They may not belong together, unless the caller holds a lock or checks a
    /// version afterwards.
    #[inline(always)]
    pub(crate) fn read<S: Seam>(&self, memory: &Memory<S>) -> SlotWords {
        // Acquire: pairs with the Release store of the first word, so that the record that it links
        // to is visible.
        let first = memory.load_acquire(&self.first);
        SlotWords { first, second: memory.load(&self.second) }
    }

    /// Reads the words of a slot that no lock guards, and makes sure that they belong together.
    pub(crate) fn read_whole<S: Seam>(&self, memory: &Memory<S>) -> SlotWords {
        // A writer empties the first word before it stores another second word, unless that is a
        // new value of the same key. So if the first word is the same before and after, the second
        // belongs to it.
        loop {
            let words = self.read(memory);
            fence(Ordering::Acquire);
            if memory.load(&self.first) == words.first {
                return words;
            }
        }
    }

    /// Writes a record into a free slot, without a flush. Whoever still reads the slot checks a version
    /// afterwards, or uses [`read_whole`](Self::read_whole). All stores go to one line. Each prefix of
    /// them leaves an empty slot or the complete record, so the slot needs only one flush and one fence.
    #[inline(always)]
    pub(crate) fn fill<S: Seam>(
        &self,
        memory: &Memory<S>,
        words: SlotWords,
        empty: u64,
        at: &'static Point,
    ) {
        // A split may have left a first word here, which must not be combined with the new second
        // word. The code does not check for one: one more store takes less time than waiting for
        // the line and mispredicting a branch.
        unless_seeded!(memory.seam(), bugs::SLOT_NOT_EMPTIED => memory.store(&self.first, empty, at));
        self.fill_empty(memory, words, at);
    }

    /// Does the same for a slot that is certainly empty.
    #[inline(always)]
    pub(crate) fn fill_empty<S: Seam>(
        &self,
        memory: &Memory<S>,
        words: SlotWords,
        at: &'static Point,
    ) {
        // Release: keeps the stores in this order, in which they then become durable.
        seed!(memory.seam(), bugs::COMMIT_BEFORE_VALUE => memory.store_release(&self.first, words.first, at));
        memory.store_release(&self.second, words.second, at);
        memory.store_release(&self.first, words.first, at);
    }

    /// Writes both words of a slot that no thread reads, without a flush.
    #[inline(always)]
    pub(crate) fn write<S: Seam>(&self, memory: &Memory<S>, words: SlotWords, at: &'static Point) {
        memory.store(&self.second, words.second, at);
        memory.store(&self.first, words.first, at);
    }

    /// Does what [`replace`](Self::replace) does, unless the bug is seeded that first makes the slot
    /// empty. `empty` returns the word of an empty slot.
    #[inline(always)]
    pub(crate) fn update<S: Seam, R: SlotRecord>(
        &self,
        memory: &Memory<S>,
        words: SlotWords,
        empty: impl FnOnce() -> u64,
        [value, link]: [&'static Point; 2],
    ) {
        if memory.seam().seeded(&bugs::UPDATE_EMPTIES_FIRST) {
            memory.store(&self.first, empty(), value);
            memory.persist(self, value);
            self.write(memory, words, value);
        }
        self.replace::<S, R>(memory, words, value, link);
    }

    /// Durably replaces the slot's value by storing a single word: for inline records the second
    /// word, which is the value (commit point `value`); for byte strings the first word, which is
    /// the link to the record (commit point `link`). The other word, the key or the key's hash,
    /// does not change.
    #[inline(always)]
    pub(crate) fn replace<S: Seam, R: SlotRecord>(
        &self,
        memory: &Memory<S>,
        words: SlotWords,
        value: &'static Point,
        link: &'static Point,
    ) {
        let at = self.replace_unfenced::<S, R>(memory, words, value, link);
        memory.fence(at);
    }

    /// Does the same, but leaves the fence to the caller. Returns the commit point that was used.
    #[inline(always)]
    pub(crate) fn replace_unfenced<S: Seam, R: SlotRecord>(
        &self,
        memory: &Memory<S>,
        words: SlotWords,
        value: &'static Point,
        link: &'static Point,
    ) -> &'static Point {
        // Release: pairs with the Acquire in `read`.
        let at = if R::FORM == RecordForm::Inline {
            memory.store_release(&self.second, words.second, value);
            value
        } else {
            memory.store_release(&self.first, words.first, link);
            link
        };
        memory.flush(self, at);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_read_back() {
        let link = Link { offset: 0xff_ff00, depth: 17 };
        assert_eq!(Link::unpack(256, link.pack(256)), Some(link));
        assert_eq!(Link::unpack(264, link.pack(256)), None, "tied to its place");
        assert_eq!(Link::unpack(8, 0), None, "a word of zeros is no link");
    }
}
