//! Records of byte strings, and the blocks that hold them.
//!
//! A record block holds lengths, checksum, key and value:
//!
//! ```text
//!  0        4          8          12        16
//! +----------+----------+----------+----------+----------------+------------------+
//! | key len  | val len  | CRC-32C  |   mark   | key bytes      | value bytes   0..|
//! +----------+----------+----------+----------+----------------+------------------+
//! ```
//!
//! The checksum covers the block's own offset, the lengths, the key and the value. The mark is 0, or what
//! a cache knows about the use of the record ([`db::cache`](crate::db::cache)); it may change at any time.

use super::{
    BlockRecord, Body, MAX_KEY_BYTES, MAX_VALUE_BYTES, Record, RecordForm, RecordRef, SlotRecord,
    SlotWords, record_checksum, without_mark,
};
use crate::error::{Damage, Error, Result};
use crate::index::schema::Known;
use crate::pmem::{Memory, Point, Seam, Word};
use crate::pool::core::Core;
use crate::pool::geometry::LARGE;
use crate::pool::hash::Hasher;
use crate::reclaim::Pin;

/// The number of bytes in a block before the key.
const RECORD_HEADER: usize = 16;

/// Byte strings, in a block that the slot points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bytes {}

/// A record block that a slot links to. The record's lengths fit the size class in the link, or,
/// for a large block, the rest of the pool.
pub(in crate::layers::index) struct Linked<'m> {
    words: &'m [Word],
    key_len: usize,
    value_len: usize,
    offset: u64,
    bytes: u64,
}

impl Linked<'_> {
    /// Returns the length of the key in bytes.
    pub(in crate::layers::index) fn key_len(&self) -> usize {
        self.key_len
    }

    /// Copies bytes of the key, starting at `start`.
    pub(in crate::layers::index) fn read_key<S: Seam>(
        &self,
        core: &Core<S>,
        start: usize,
        out: &mut [u8],
    ) {
        debug_assert!(start + out.len() <= self.key_len);
        core.memory.read_bytes(self.words, RECORD_HEADER + start, out);
    }
}

const OFFSET_MASK: u64 = (1 << 48) - 1;

/// Returns the offset of the block that a slot's first word links to, and the largest size, in
/// bytes, that the block can have.
#[inline(always)]
fn split_link<S: Seam>(core: &Core<S>, first: u64) -> Result<(u64, u64), Damage> {
    let offset = first & OFFSET_MASK;
    let Ok(class) = u8::try_from(first >> 48) else { return Err(no_link(first)) };
    match core.geometry.class_bytes(class) {
        Some(bytes) => Ok((offset, bytes)),
        // A large block ends where its run ends, somewhere before the end of the pool.
        None if class == LARGE => Ok((offset, core.memory.len().saturating_sub(offset))),
        None => Err(no_link(first)),
    }
}

#[cold]
fn no_link(first: u64) -> Damage {
    Damage::new(first & OFFSET_MASK, "a record's link", format!("{first:#x}"))
}

/// Returns the record that a slot links to. Fails if the link or the record's lengths are
/// impossible.
#[inline(always)]
pub(in crate::layers::index) fn linked<S: Seam>(
    core: &Core<S>,
    words: SlotWords,
) -> Result<Linked<'_>, Damage> {
    let (offset, bytes) = split_link(core, words.first)?;
    let block = core.memory.words(offset, bytes & !7)?;
    let Some(lengths) = block.first().map(|lengths| core.memory.load(lengths)) else {
        return Err(no_lengths(offset, bytes, 0));
    };
    let (key_len, value_len) = (lengths as u32 as usize, (lengths >> 32) as usize);
    let needed = RECORD_HEADER + key_len + value_len;
    match block.get(..needed.div_ceil(8)) {
        Some(words) if key_len <= MAX_KEY_BYTES && value_len <= MAX_VALUE_BYTES => {
            Ok(Linked { words, key_len, value_len, offset, bytes: needed as u64 })
        }
        _ => Err(no_lengths(offset, bytes, lengths)),
    }
}

#[cold]
fn no_lengths(offset: u64, bytes: u64, lengths: u64) -> Damage {
    let expected = format!("lengths that fit a block of {bytes} bytes");
    Damage::new(offset, expected, format!("{} and {}", lengths as u32, lengths >> 32))
}

/// Up to this many bytes of key and value are assembled in one buffer before they are written.
const SMALL: usize = 240;

/// See [`BlockRecord::write`].
#[inline(always)]
fn write_body<S: Seam>(
    memory: &Memory<S>,
    body: &[Word],
    (offset, lengths): (u64, u64),
    key: &[u8],
    value: &[u8],
    at: &'static Point,
) -> u64 {
    if key.len() + value.len() > SMALL {
        write_large(memory, body, key, value, at);
        return record_checksum(offset, lengths, key, value);
    }
    // Everything that the checksum covers, contiguous.
    let mut piece = [0; 16 + SMALL];
    piece[..8].copy_from_slice(&offset.to_le_bytes());
    piece[8..16].copy_from_slice(&lengths.to_le_bytes());
    let (head, tail) = piece[16..].split_at_mut(key.len());
    head.copy_from_slice(key);
    tail[..value.len()].copy_from_slice(value);
    memory.write_bytes(body, &piece[16..][..body.len() * 8], at);
    u64::from(crc32c::crc32c(&piece[..16 + key.len() + value.len()]))
}

/// Like [`write_body`], but in pieces. The word that key and value share is written once.
fn write_large<S: Seam>(
    memory: &Memory<S>,
    body: &[Word],
    key: &[u8],
    value: &[u8],
    at: &'static Point,
) {
    let shared = key.len() / 8;
    memory.write_bytes(body, &key[..shared * 8], at);
    let tail = &key[shared * 8..];
    if tail.is_empty() {
        memory.write_bytes(&body[shared..], value, at);
        return;
    }
    let head = value.len().min(8 - tail.len());
    let mut bridge = [0; 8];
    bridge[..tail.len()].copy_from_slice(tail);
    bridge[tail.len()..tail.len() + head].copy_from_slice(&value[..head]);
    memory.store(&body[shared], u64::from_le_bytes(bridge), at);
    memory.write_bytes(&body[shared + 1..], &value[head..], at);
}

impl Bytes {
    /// Bytes of a record's block before the key, in schemes whose slots are two words.
    pub(crate) const RECORD_HEADER: u64 = RECORD_HEADER as u64;
}

impl Record for Bytes {
    const FORM: RecordForm = RecordForm::Bytes;
    type Key<'a> = &'a [u8];
    type Value<'a> = &'a [u8];
    type OwnedKey = Vec<u8>;
    type Owned = Vec<u8>;

    #[inline(always)]
    fn reborrow<'s, 'k: 's>(key: &'k [u8]) -> &'s [u8] {
        key
    }
    fn key_of(key: &Vec<u8>) -> &[u8] {
        key
    }
    fn value_of(value: &Vec<u8>) -> &[u8] {
        value
    }
    fn allows_key(known: Known, key: &[u8]) -> bool {
        known.allows_bytes(key)
    }
    fn allows_value(known: Known, value: &[u8], before: usize) -> bool {
        value.get(before..).is_some_and(|value| known.allows_bytes(value))
    }
    #[inline]
    fn hash(hasher: &Hasher, key: &[u8]) -> u64 {
        hasher.bytes(key)
    }
    #[inline]
    fn check_size(key: &[u8], value: Option<&[u8]>) -> Result<()> {
        if key.len() > MAX_KEY_BYTES {
            return Err(Error::KeyTooLarge { len: key.len(), max: MAX_KEY_BYTES });
        }
        match value {
            Some(value) if value.len() > MAX_VALUE_BYTES => {
                Err(Error::ValueTooLarge { len: value.len(), max: MAX_VALUE_BYTES })
            }
            _ => Ok(()),
        }
    }
    fn block_bytes(key: &[u8], value: &[u8]) -> u64 {
        (RECORD_HEADER + key.len() + value.len()) as u64
    }
}

impl BlockRecord for Bytes {
    #[inline(always)]
    fn lengths(key: &[u8], value: &[u8]) -> (usize, usize) {
        (key.len(), value.len())
    }
    #[inline(always)]
    fn write<S: Seam>(
        memory: &Memory<S>,
        body: &[Word],
        head: (u64, u64),
        key: &[u8],
        value: &[u8],
        at: &'static Point,
    ) -> u64 {
        write_body(memory, body, head, key, value, at)
    }
    #[inline(always)]
    fn has_key<S: Seam>(memory: &Memory<S>, body: Body<'_>, key: &[u8]) -> bool {
        body.key_len == key.len() && memory.bytes_equal(body.words, 0, key)
    }
    #[inline(always)]
    fn has_value<S: Seam>(memory: &Memory<S>, body: Body<'_>, value: &[u8]) -> bool {
        body.value_len == value.len() && memory.bytes_equal(body.words, body.key_len, value)
    }
    #[inline(always)]
    fn has_lengths(key_len: usize, value_len: usize) -> bool {
        key_len <= MAX_KEY_BYTES && value_len <= MAX_VALUE_BYTES
    }
    fn read_key<S: Seam>(memory: &Memory<S>, body: Body<'_>) -> Vec<u8> {
        memory.bytes_of(body.words, 0, body.key_len)
    }
    fn read_value<S: Seam>(memory: &Memory<S>, body: Body<'_>) -> Vec<u8> {
        memory.bytes_of(body.words, body.key_len, body.value_len)
    }
    fn refer<'m, S: Seam>(core: &'m Core<S>, body: Body<'_>, pin: Pin) -> RecordRef<'m> {
        let offset = body.words.first().map_or(0, |word| core.memory.offset_of(word).raw());
        RecordRef::of_block(core, offset, body.key_len, body.value_len, pin)
    }
}

impl SlotRecord for Bytes {
    fn prepare_unfenced<S: Seam>(
        core: &Core<S>,
        key: &[u8],
        value: &[u8],
        hash: u64,
        at: &'static Point,
    ) -> Result<SlotWords> {
        let block = core.allocate_record(RECORD_HEADER + key.len(), value.len())?;
        let memory = &core.memory;
        let needed = (RECORD_HEADER + key.len() + value.len()).div_ceil(8);
        let words = memory.words(block.offset, needed as u64 * 8)?;
        let lengths = key.len() as u64 | (value.len() as u64) << 32;
        memory.store(&words[0], lengths, at);
        let checksum = write_body(memory, &words[2..], (block.offset, lengths), key, value, at);
        memory.store(&words[1], checksum, at);
        memory.flush_words(words, at);
        Ok(SlotWords { first: block.offset | u64::from(block.class) << 48, second: hash })
    }

    fn discard<S: Seam>(core: &Core<S>, words: SlotWords) {
        core.free_unlinked(words.first & OFFSET_MASK);
    }

    const EMPTY: Option<u64> = Some(0);

    #[inline(always)]
    fn slot_hash(_: &Hasher, words: SlotWords) -> u64 {
        words.second
    }

    #[inline(always)]
    fn sought_word(_: &[u8], hash: u64) -> u64 {
        hash
    }

    #[inline]
    fn matches<S: Seam>(
        core: &Core<S>,
        words: SlotWords,
        key: &[u8],
        hash: u64,
    ) -> Result<bool, Damage> {
        if words.second != hash || words.first == 0 {
            return Ok(false);
        }
        let record = linked(core, words)?;
        Ok(record.key_len == key.len() && core.memory.bytes_equal(record.words, RECORD_HEADER, key))
    }

    fn prefetch<S: Seam>(core: &Core<S>, words: SlotWords) {
        // A block does not begin with a line, so that even a small one may lie in two.
        if let Ok([first, .., last]) = core.memory.words(words.first & OFFSET_MASK & !7, 48) {
            core.memory.seam().prefetch(first);
            core.memory.seam().prefetch(last);
        }
    }

    fn value<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<Vec<u8>, Damage> {
        let record = linked(core, words)?;
        let skip = RECORD_HEADER + record.key_len;
        Ok(core.memory.bytes_of(record.words, skip, record.value_len))
    }

    fn key<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<Vec<u8>, Damage> {
        let record = linked(core, words)?;
        Ok(core.memory.bytes_of(record.words, RECORD_HEADER, record.key_len))
    }

    fn value_is<S: Seam>(core: &Core<S>, words: SlotWords, value: &[u8]) -> Result<bool, Damage> {
        let record = linked(core, words)?;
        Ok(record.value_len == value.len()
            && core.memory.bytes_equal(record.words, RECORD_HEADER + record.key_len, value))
    }

    fn block<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<Option<(u64, u64)>, Damage> {
        let record = linked(core, words)?;
        Ok(Some((record.offset, record.bytes)))
    }

    fn extent<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<(u64, u64), Damage> {
        let (offset, bytes) = split_link(core, words.first)?;
        let large = (words.first >> 48) as u8 == LARGE;
        Ok((offset, if large { core.geometry.small_max() + 1 } else { bytes }))
    }

    fn check_link<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<(), Damage> {
        let (offset, bytes) = split_link(core, words.first)?;
        core.memory.words(offset, bytes & !7).map(|_| ())
    }

    fn is_whole<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<bool, Damage> {
        Ok(Self::read_whole(core, words)?.is_some())
    }

    fn read_whole<S: Seam>(
        core: &Core<S>,
        words: SlotWords,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>, Damage> {
        let record = linked(core, words)?;
        let lengths = core.memory.load(&record.words[0]);
        let stored = core.memory.load(&record.words[1]);
        let mut key = vec![0; record.key_len + record.value_len];
        core.memory.read_bytes(record.words, RECORD_HEADER, &mut key);
        let value = key.split_off(record.key_len);
        // The link's class is not in the checksum: it follows from the lengths.
        let is_whole = (words.first >> 48) as u8 == core.geometry.class_for(record.bytes)
            && without_mark(stored) == Some(record_checksum(record.offset, lengths, &key, &value))
            && core.hasher.bytes(&key) == words.second;
        Ok(is_whole.then_some((key, value)))
    }

    #[inline(always)]
    fn reference<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<RecordRef<'_>, Damage> {
        let pin = core.pin();
        match linked(core, words) {
            Ok(record) => {
                let before = RECORD_HEADER + record.key_len;
                Ok(RecordRef::of_block(core, record.offset, before, record.value_len, pin))
            }
            Err(damage) => {
                core.epochs().unpin(pin);
                Err(damage)
            }
        }
    }
}
