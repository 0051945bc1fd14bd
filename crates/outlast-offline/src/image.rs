//! A pool's file as bytes, the checksums of docs/format.md, and the header.

use outlast::internals::pool::layout::{
    FORMAT_VERSION, HEADER_OFFSETS, HEADER_WORDS, INCOMPATIBLE, MAGIC, RecordForm, SYSTEM_BYTES,
    field,
};
use outlast::{Damage, Error, Result};
use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// First word of a copy of a journal's entry in its base.
const JOURNAL_MAGIC: u64 = u64::from_le_bytes(*b"OLJMETA1");
/// Offsets of the two copies.
const JOURNAL_ENTRIES: [u64; 2] = [12 << 10, 96 << 10];

#[derive(Clone, Copy)]
pub(super) enum Source<'f> {
    File(&'f File),
    Bytes(&'f [u8]),
}

/// A pool's content. Every read is checked against the end of the pool. What the file lacks of the
/// pool reads as zeros.
pub(super) struct Image<'f> {
    source: Source<'f>,
    /// The pool's size in bytes.
    pub(super) len: u64,
    /// The file's size in bytes.
    there: u64,
    /// The offset of what was read ahead, and its bytes.
    ahead: RefCell<(u64, Vec<u8>)>,
}

impl<'f> Image<'f> {
    pub(super) fn new(source: Source<'f>, len: u64) -> Image<'f> {
        Image { source, len, there: len, ahead: RefCell::default() }
    }

    /// Reads up to `bytes` bytes at an offset in one go, because later calls will ask for them in
    /// pieces. If this fails, those calls read for themselves and report the error.
    pub(super) fn read_ahead(&self, offset: u64, bytes: u64) {
        let bytes = bytes.min(self.there.saturating_sub(offset));
        if let Source::File(file) = self.source {
            let (at, buffer) = &mut *self.ahead.borrow_mut();
            if *at <= offset && offset + bytes <= *at + buffer.len() as u64 {
                return;
            }
            *at = offset;
            buffer.resize(bytes as usize, 0);
            if file.read_exact_at(buffer, offset).is_err() {
                buffer.clear();
            }
        }
    }

    /// Reads `more` bytes at an offset in one go, unless `bytes` of them were read ahead before.
    pub(super) fn read_on(&self, offset: u64, bytes: u64, more: u64) {
        let has = |(at, ahead): &(u64, Vec<u8>)| {
            *at <= offset && offset + bytes <= *at + ahead.len() as u64
        };
        if !has(&self.ahead.borrow()) {
            self.read_ahead(offset, more);
        }
    }

    /// Fails unless the pool has these bytes. Nothing in a pool is larger than the rest of it, so a
    /// read of more bytes than the file has fails as well: its end was cut off.
    fn check(&self, offset: u64, bytes: u64) -> Result<()> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            let expected = format!("{bytes} bytes inside the {} of the pool", self.len);
            return Err(Damage::new(offset, expected, "its end").into());
        }
        if bytes > self.there {
            let found = format!("a file of {} bytes", self.there);
            return Err(Damage::new(offset, format!("{bytes} bytes"), found).into());
        }
        Ok(())
    }

    /// Reads bytes that the pool has.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let there = self.there.saturating_sub(offset).min(out.len() as u64);
        let (out, cut) = out.split_at_mut(there as usize);
        cut.fill(0);
        if out.is_empty() {
            return Ok(());
        }
        match self.source {
            Source::Bytes(all) => out.copy_from_slice(&all[offset as usize..][..out.len()]),
            Source::File(file) => {
                let (at, ahead) = &*self.ahead.borrow();
                if let Some(from) = offset.checked_sub(*at)
                    && let Some(found) =
                        ahead.get(from as usize..).and_then(|found| found.get(..out.len()))
                {
                    out.copy_from_slice(found);
                    return Ok(());
                }
                let bytes = out.len();
                let action = || format!("reading {bytes} bytes at {offset:#x}");
                file.read_exact_at(out, offset).map_err(|e| Error::io(action(), e))?;
            }
        }
        Ok(())
    }

    pub(super) fn bytes(&self, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        self.check(offset, bytes)?;
        let mut out = vec![0; bytes as usize];
        self.read(offset, &mut out)?;
        Ok(out)
    }

    pub(super) fn words(&self, offset: u64, words: u64) -> Result<Vec<u64>> {
        check_aligned(offset)?;
        let bytes = self.bytes(offset, words * 8)?;
        Ok(bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).collect())
    }

    /// Reads a few words, without allocating.
    pub(super) fn array<const N: usize>(&self, offset: u64) -> Result<[u64; N]> {
        check_aligned(offset)?;
        self.check(offset, N as u64 * 8)?;
        let mut words = [[0; 8]; N];
        self.read(offset, words.as_flattened_mut())?;
        Ok(words.map(u64::from_le_bytes))
    }

    /// Returns whether the file is the base of a journaled pool that was not closed: whether the
    /// newer of the intact copies of the entry says that the life has not ended.
    pub(super) fn needs_journal(&self) -> bool {
        let entries = JOURNAL_ENTRIES.iter().enumerate();
        let copies = entries.filter_map(|(copy, &at)| self.journal_entry(copy as u64, at));
        copies.max().is_some_and(|(_, ended)| !ended)
    }

    /// Reads a copy of the entry of a journal. Returns its sequence number, and whether the life
    /// has ended. Returns `None` if there is no intact copy at this offset.
    fn journal_entry(&self, copy: u64, at: u64) -> Option<(u64, bool)> {
        let words: [u64; 12] = self.array(at).ok()?;
        let (sequence, ended) = (words[1], words[9] as u32);
        let whole = words[0] == JOURNAL_MAGIC
            && words[11] == crc_words(&words[..11])
            && sequence % 2 == copy
            && ended <= 1
            && [sequence, words[6], words[7]].iter().all(|number| number >> 63 == 0);
        // The upper half of the word is a checksum, and says nothing about the life.
        whole.then_some((sequence, ended == 1))
    }

    pub(super) fn word(&self, offset: u64) -> Result<u64> {
        let [word] = self.array(offset)?;
        Ok(word)
    }
}

fn check_aligned(offset: u64) -> Result<()> {
    if !offset.is_multiple_of(8) {
        return Err(Damage::new(offset, "words at a multiple of 8", "a misaligned offset").into());
    }
    Ok(())
}

/// What each byte contributes to a CRC if it is followed by 0 to 7 other bytes, indexed by that
/// number and the byte.
static CRC_TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][i] = crc;
        i += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut i = 0;
        while i < 256 {
            let before = tables[table - 1][i];
            tables[table][i] = tables[0][(before & 0xff) as usize] ^ before >> 8;
            i += 1;
        }
        table += 1;
    }
    tables
};

/// CRC-32C of consecutive pieces of bytes.
pub(super) fn crc(pieces: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for piece in pieces {
        let (words, rest) = piece.as_chunks::<8>();
        for word in words {
            let word = (u64::from_le_bytes(*word) ^ u64::from(crc)).to_le_bytes();
            crc = (0..8).fold(0, |crc, i| crc ^ CRC_TABLES[7 - i][usize::from(word[i])]);
        }
        for &byte in rest {
            crc = CRC_TABLES[0][((crc ^ u32::from(byte)) & 0xff) as usize] ^ crc >> 8;
        }
    }
    !crc
}

/// CRC-32C of words.
pub(super) fn crc_words(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    u64::from(crc(&[&bytes]))
}

/// Folds a 32-bit checksum to 16 bits.
pub(super) fn fold16(crc: u64) -> u64 {
    (crc ^ crc >> 16) & 0xffff
}

pub(super) const LOW48: u64 = (1 << 48) - 1;

/// The greatest depth of a directory or a table.
pub(super) const MAX_DEPTH: u32 = 40;

/// Decodes the link at this offset. Returns where it leads, and its low 6 bits, which hold a depth,
/// a size or a mark.
pub(super) fn unpack(at: u64, word: u64) -> Result<(u64, u32)> {
    let low = word & LOW48;
    let depth = (low & 63) as u32;
    if word >> 48 != fold16(crc_words(&[low, at])) || depth > MAX_DEPTH {
        return Err(Damage::new(at, "a link", format!("{word:#x}")).into());
    }
    Ok((low & !63, depth))
}

pub(super) fn identity(kind: u64, shape: u64, offset: u64, fixed: u64) -> u64 {
    let low = kind | shape << 16;
    low | crc_words(&[low, offset, fixed]) << 32
}

/// The pool's hash function.
pub(super) struct Hash {
    pub(super) secrets: RapidSecrets,
    /// Whether this is hash function 0x7e57, for tests, which gives all keys of 2^32 and above the
    /// same hash.
    pub(super) degenerate: bool,
}

impl Hash {
    pub(super) fn of(&self, key: &[u8]) -> u64 {
        let collides = key.first_chunk().is_some_and(|head| u64::from_le_bytes(*head) >> 32 != 0);
        if self.degenerate && collides {
            return 0xa5a5_5a5a_1234_5678;
        }
        rapidhash_v3_inline::<true, false, false>(key, &self.secrets)
    }

    /// Returns the hash of the record in a slot of two words.
    pub(super) fn of_slot(&self, form: RecordForm, [first, second]: [u64; 2]) -> u64 {
        match form {
            RecordForm::Inline => self.of(&first.to_le_bytes()),
            RecordForm::Bytes => second,
        }
    }

    /// Returns the first words of empty slots, indexed by the most significant bit of the hashes in
    /// a slot's segment. Returns `None` if no number below 1,024 hashes to one of the halves.
    pub(super) fn empty_words(&self, form: RecordForm) -> Option<[u64; 2]> {
        // In inline maps, the empty word is the least number that hashes to the other half.
        let least = |half| (0..1024u64).find(|n| self.of(&n.to_le_bytes()) >> 63 == half);
        match form {
            RecordForm::Bytes => Some([0, 0]),
            RecordForm::Inline => Some([least(1)?, least(0)?]),
        }
    }
}

pub(super) struct Header {
    pub(super) words: Vec<u64>,
    pub(super) problems: Vec<Damage>,
}

pub(super) fn read_header(image: &Image<'_>) -> Result<Header> {
    if image.len < SYSTEM_BYTES {
        let magic = if image.len >= HEADER_OFFSETS[1] + 8 { image.word(0)? } else { 0 };
        if magic == MAGIC {
            return Err(Error::Truncated {
                path: Default::default(),
                expected: SYSTEM_BYTES,
                actual: image.len,
            });
        }
        return Err(Error::not_a_pool(format!("a file of {} bytes", image.len)));
    }
    let mut best: Option<Vec<u64>> = None;
    let mut problems = Vec::new();
    let mut any_magic = false;
    for (copy, offset) in HEADER_OFFSETS.into_iter().enumerate() {
        let words = image.words(offset, HEADER_WORDS as u64)?;
        let sum = crc_words(&words[..field::CHECKSUM]);
        any_magic |= words[field::MAGIC] == MAGIC;
        let sequence = words[field::SEQUENCE];
        if words[field::MAGIC] != MAGIC
            || words[field::CHECKSUM] != sum
            || sequence % 2 != copy as u64
            || sequence >= 1 << 63
        {
            problems.push(Damage::new(
                offset,
                format!("copy {copy} of the header, with checksum {sum:#x}"),
                format!(
                    "magic {:#x}, checksum {:#x}, sequence number {sequence}",
                    words[0],
                    words[field::CHECKSUM]
                ),
            ));
        } else if best.as_ref().is_none_or(|best| best[field::SEQUENCE] < sequence) {
            best = Some(words);
        }
    }
    let Some(words) = best else {
        return Err(match problems.pop() {
            Some(damage) if any_magic => Error::damaged_header(damage),
            _ => Error::not_a_pool(format!("first word {:#018x}", image.word(0)?)),
        });
    };
    let version = words[field::VERSION] as u32;
    if version != FORMAT_VERSION {
        return Err(Error::Version {
            path: Default::default(),
            found: version,
            supported: FORMAT_VERSION,
        });
    }
    let unknown = words[field::INCOMPATIBLE] & !INCOMPATIBLE;
    if unknown != 0 {
        return Err(Error::UnknownFeature {
            path: Default::default(),
            bits: unknown,
            set: "incompatible",
        });
    }
    Ok(Header { words, problems })
}

#[cfg(test)]
mod tests {
    use super::crc;

    #[test]
    fn checksums_are_those_of_the_standard_however_the_bytes_are_cut() {
        // The check value of CRC-32C.
        assert_eq!(crc(&[b"123456789"]), 0xe306_9283);
        assert_eq!(crc(&[b"1", b"2345678", b"9"]), 0xe306_9283);
        let bytes: Vec<u8> = (0..100).map(|n: u8| n.wrapping_mul(37)).collect();
        for cut in 0..bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(crc(&[head, tail]), crc32c::crc32c(&bytes));
        }
    }
}
