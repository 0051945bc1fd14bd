//! The two record forms, and the blocks that hold byte strings.
//!
//! A slot of an index is two words. The record form defines what they mean:
//!
//! | form | first word, the commit word | second word |
//! |---|---|---|
//! | [`Inline`] | the key | the value |
//! | [`Bytes`] | the record's offset and size class | the key's full hash |
//!
//! The second word is always stored first. Both lie in one line, so whenever the commit word is
//! durable, the other one is too (x86; elsewhere the seam's Release orders them).
//!
//! A record block holds lengths, checksum, key and value:
//!
//! ```text
//!  0        4          8          12        16
//! +----------+----------+----------+----------+----------------+------------------+
//! | key len  | val len  | CRC-32C  |    0     | key bytes      | value bytes   0..|
//! +----------+----------+----------+----------+----------------+------------------+
//! ```
//!
//! The checksum covers the block's own offset, the lengths, the key and the value.

use super::schema;
use crate::error::{Damage, Error, Result};
use crate::pmem::{Memory, Point, Seam, Word};
use crate::pool::core::Core;
use crate::pool::geometry::{Geometry, LARGE};
use crate::pool::hash::Hasher;
use crate::reclaim::Pin;
use std::fmt;
use std::sync::Arc;

/// Returns the length of the longest value of a pool with this geometry, whatever its key.
pub fn value_max(geometry: Geometry) -> usize {
    // No record header is longer than a line.
    let before = (MAX_KEY_BYTES + 64) as u64;
    MAX_VALUE_BYTES.min((geometry.large_max() - before) as usize)
}

const RECORD_HEADER: usize = 16;

pub use crate::pool::layout::{MAX_KEY_BYTES, MAX_VALUE_BYTES, RecordForm};

/// The two words of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotWords {
    /// The commit word.
    pub first: u64,
    /// The other word, stored before the commit word.
    pub second: u64,
}

/// Key and value as they lie in a block, one after the other without a gap. The scheme defines what
/// comes before them in the block.
#[derive(Debug, Clone, Copy)]
pub struct Body<'m> {
    /// The words of the block that hold them.
    pub words: &'m [Word],
    /// Bytes of the key.
    pub key_len: usize,
    /// Bytes of the value.
    pub value_len: usize,
}

/// A record form.
pub trait Record: fmt::Debug + Clone + PartialEq + Eq + Send + Sync + 'static {
    /// The form.
    const FORM: RecordForm;
    /// A key that a caller passes in.
    type Key<'a>: Copy + fmt::Debug;
    /// A value that a caller passes in.
    type Value<'a>: Copy + fmt::Debug;
    /// A key that is handed out.
    type OwnedKey: fmt::Debug + Clone + PartialEq + Eq + Send + Sync + std::hash::Hash + Ord;
    /// A value that is handed out.
    type Owned: fmt::Debug + Clone + PartialEq + Eq + Send;

    /// Returns the same key with a shorter lifetime.
    fn reborrow<'s, 'k: 's>(key: Self::Key<'k>) -> Self::Key<'s>;
    /// Borrows an owned key, to pass it in again.
    fn key_of(key: &Self::OwnedKey) -> Self::Key<'_>;
    /// Borrows an owned value, to pass it in again.
    fn value_of(value: &Self::Owned) -> Self::Value<'_>;

    /// Returns the key's hash.
    fn hash(hasher: &Hasher, key: Self::Key<'_>) -> u64;

    /// Returns the check of the keys of a schema; see [`Schemas`](super::Schemas).
    fn key_check(schema: &str) -> Option<for<'a> fn(Self::Key<'a>) -> bool>;
    /// Returns the check of the values of a schema.
    fn value_check(schema: &str) -> Option<for<'a> fn(Self::Value<'a>) -> bool>;

    /// Fails if the key or the value is too long.
    fn check_size(key: Self::Key<'_>, value: Option<Self::Value<'_>>) -> Result<()>;

    // The next functions are for schemes whose records always live in blocks. An inline record
    // takes two words in its block.

    /// Returns the bytes of key and value in a block.
    fn lengths(key: Self::Key<'_>, value: Self::Value<'_>) -> (usize, usize);
    /// Writes key and value to words of a block that no thread reads yet. Returns a checksum over
    /// the block's offset, the lengths as the scheme keeps them, key and value.
    fn write<S: Seam>(
        memory: &Memory<S>,
        body: &[Word],
        head: (u64, u64),
        key: Self::Key<'_>,
        value: Self::Value<'_>,
        at: &'static Point,
    ) -> u64;
    /// Returns whether a record of this form can have these lengths.
    fn has_lengths(key_len: usize, value_len: usize) -> bool;
    /// Returns whether the block's key is this one. Its lengths must be
    /// [possible](Record::has_lengths).
    fn has_key<S: Seam>(memory: &Memory<S>, body: Body<'_>, key: Self::Key<'_>) -> bool;
    /// Returns whether the block's value is this one. Lengths as above.
    fn has_value<S: Seam>(memory: &Memory<S>, body: Body<'_>, value: Self::Value<'_>) -> bool;
    /// Reads the key in a block. Lengths as above.
    fn read_key<S: Seam>(memory: &Memory<S>, body: Body<'_>) -> Self::OwnedKey;
    /// Reads the value in a block. Lengths as above.
    fn read_value<S: Seam>(memory: &Memory<S>, body: Body<'_>) -> Self::Owned;
    /// Makes a reference to the value in a block. `pin` keeps the block from being reused.
    fn refer<S: Seam>(core: &Arc<Core<S>>, body: Body<'_>, pin: Pin) -> RecordRef;

    // The rest is for schemes whose slots are two words.

    /// Makes a slot's words for a record. If the record needs a block, it is durable when this
    /// returns. The block's stores, flushes and the fence are all at point `at`.
    #[inline]
    fn prepare<S: Seam>(
        core: &Core<S>,
        key: Self::Key<'_>,
        value: Self::Value<'_>,
        hash: u64,
        at: &'static Point,
    ) -> Result<SlotWords> {
        let words = Self::prepare_unfenced(core, key, value, hash, at)?;
        if Self::EMPTY.is_some() {
            core.memory.fence(at);
        }
        Ok(words)
    }

    /// Like [`prepare`](Record::prepare), but only flushes the block. The block is durable after
    /// the calling thread's next fence.
    fn prepare_unfenced<S: Seam>(
        core: &Core<S>,
        key: Self::Key<'_>,
        value: Self::Value<'_>,
        hash: u64,
        at: &'static Point,
    ) -> Result<SlotWords>;

    /// Frees the block that [`prepare`](Record::prepare) allocated for these words, if any. No slot
    /// may link to it.
    fn discard<S: Seam>(core: &Core<S>, words: SlotWords);

    /// The first word of an empty slot, in forms where it is the same for all slots.
    const EMPTY: Option<u64>;

    /// Returns the hash of the record in a slot.
    fn slot_hash(hasher: &Hasher, words: SlotWords) -> u64;

    /// Returns whether the slot holds this key.
    ///
    /// If a writer changes the slot concurrently, the result can be wrong, and can even be damage.
    /// The caller validates the bucket's version before it believes either.
    fn matches<S: Seam>(
        core: &Core<S>,
        words: SlotWords,
        key: Self::Key<'_>,
        hash: u64,
    ) -> Result<bool, Damage>;

    /// Prefetches the record of a slot. The slot's words may be garbage.
    fn prefetch<S: Seam>(core: &Core<S>, words: SlotWords);

    /// Reads the value in a slot. With a concurrent writer, as [`matches`](Record::matches).
    fn value<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<Self::Owned, Damage>;

    /// Reads the key in a slot. With a concurrent writer, as [`matches`](Record::matches).
    fn key<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<Self::OwnedKey, Damage>;

    /// Returns whether the slot's value is this one. The slot is locked.
    fn value_is<S: Seam>(
        core: &Core<S>,
        words: SlotWords,
        value: Self::Value<'_>,
    ) -> Result<bool, Damage>;

    /// Returns the block that a slot's words link to: offset and bytes.
    fn block<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<Option<(u64, u64)>, Damage>;

    /// Like [`block`](Record::block), but without reading the block. The bytes are the minimum for
    /// its size class.
    fn extent<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<(u64, u64), Damage>;

    /// Checks that the first word can be a link: of a known class, and inside the memory.
    fn check_link<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<(), Damage>;

    /// Returns whether the record is whole. The caller makes sure that no thread changes it.
    fn is_whole<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<bool, Damage>;

    /// Makes a reference to the value in a slot. `pin` keeps its block from being reused.
    fn reference<S: Seam>(
        core: &Arc<Core<S>>,
        words: SlotWords,
        pin: Pin,
    ) -> Result<RecordRef, Damage>;
}

/// 8-byte keys and values, stored in the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inline {}

impl Record for Inline {
    const FORM: RecordForm = RecordForm::Inline;
    type Key<'a> = u64;
    type Value<'a> = u64;
    type OwnedKey = u64;
    type Owned = u64;

    #[inline(always)]
    fn reborrow<'s, 'k: 's>(key: u64) -> u64 {
        key
    }
    fn key_of(key: &u64) -> u64 {
        *key
    }
    fn value_of(value: &u64) -> u64 {
        *value
    }
    fn key_check(schema: &str) -> Option<fn(u64) -> bool> {
        schema::of_words(schema)
    }
    fn value_check(schema: &str) -> Option<fn(u64) -> bool> {
        schema::of_words(schema)
    }
    #[inline(always)]
    fn hash(hasher: &Hasher, key: u64) -> u64 {
        hasher.word(key)
    }
    #[inline(always)]
    fn check_size(_: u64, _: Option<u64>) -> Result<()> {
        Ok(())
    }
    #[inline(always)]
    fn lengths(_: u64, _: u64) -> (usize, usize) {
        (8, 8)
    }
    #[inline(always)]
    fn write<S: Seam>(
        memory: &Memory<S>,
        body: &[Word],
        (offset, lengths): (u64, u64),
        key: u64,
        value: u64,
        at: &'static Point,
    ) -> u64 {
        memory.store(&body[0], key, at);
        memory.store(&body[1], value, at);
        record_checksum(offset, lengths, &key.to_le_bytes(), &value.to_le_bytes())
    }
    #[inline(always)]
    fn has_key<S: Seam>(memory: &Memory<S>, body: Body<'_>, key: u64) -> bool {
        memory.load(&body.words[0]) == key
    }
    #[inline(always)]
    fn has_value<S: Seam>(memory: &Memory<S>, body: Body<'_>, value: u64) -> bool {
        memory.load(&body.words[1]) == value
    }
    #[inline(always)]
    fn has_lengths(key_len: usize, value_len: usize) -> bool {
        key_len == 8 && value_len == 8
    }
    #[inline(always)]
    fn read_key<S: Seam>(memory: &Memory<S>, body: Body<'_>) -> u64 {
        memory.load(&body.words[0])
    }
    #[inline(always)]
    fn read_value<S: Seam>(memory: &Memory<S>, body: Body<'_>) -> u64 {
        memory.load(&body.words[1])
    }
    fn refer<S: Seam>(core: &Arc<Core<S>>, body: Body<'_>, pin: Pin) -> RecordRef {
        let value = Self::read_value(&core.memory, body);
        core.epochs().unpin(pin);
        RecordRef(Held::Word(value))
    }

    #[inline(always)]
    fn prepare_unfenced<S: Seam>(
        _: &Core<S>,
        key: u64,
        value: u64,
        _: u64,
        _: &'static Point,
    ) -> Result<SlotWords> {
        Ok(SlotWords { first: key, second: value })
    }
    #[inline(always)]
    fn discard<S: Seam>(_: &Core<S>, _: SlotWords) {}

    const EMPTY: Option<u64> = None;

    #[inline(always)]
    fn slot_hash(hasher: &Hasher, words: SlotWords) -> u64 {
        hasher.word(words.first)
    }
    #[inline(always)]
    fn matches<S: Seam>(_: &Core<S>, words: SlotWords, key: u64, _: u64) -> Result<bool, Damage> {
        Ok(words.first == key)
    }
    #[inline(always)]
    fn prefetch<S: Seam>(_: &Core<S>, _: SlotWords) {}
    #[inline(always)]
    fn value<S: Seam>(_: &Core<S>, words: SlotWords) -> Result<u64, Damage> {
        Ok(words.second)
    }
    #[inline(always)]
    fn key<S: Seam>(_: &Core<S>, words: SlotWords) -> Result<u64, Damage> {
        Ok(words.first)
    }
    #[inline(always)]
    fn value_is<S: Seam>(_: &Core<S>, words: SlotWords, value: u64) -> Result<bool, Damage> {
        Ok(words.second == value)
    }
    #[inline(always)]
    fn block<S: Seam>(_: &Core<S>, _: SlotWords) -> Result<Option<(u64, u64)>, Damage> {
        Ok(None)
    }
    fn extent<S: Seam>(_: &Core<S>, _: SlotWords) -> Result<(u64, u64), Damage> {
        unreachable!("inline records have no blocks")
    }
    #[inline(always)]
    fn check_link<S: Seam>(_: &Core<S>, _: SlotWords) -> Result<(), Damage> {
        Ok(())
    }
    fn is_whole<S: Seam>(_: &Core<S>, _: SlotWords) -> Result<bool, Damage> {
        Ok(true)
    }
    fn reference<S: Seam>(
        core: &Arc<Core<S>>,
        words: SlotWords,
        pin: Pin,
    ) -> Result<RecordRef, Damage> {
        core.epochs().unpin(pin);
        Ok(RecordRef(Held::Word(words.second)))
    }
}

/// Byte strings, in a block that the slot points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bytes {}

/// A record block that a slot links to. Its extent fits its size class.
pub(super) struct Linked<'m> {
    words: &'m [Word],
    key_len: usize,
    value_len: usize,
    offset: u64,
    bytes: u64,
}

impl Linked<'_> {
    /// Returns the bytes of the key.
    pub(super) fn key_len(&self) -> usize {
        self.key_len
    }

    /// Copies bytes of the key, starting at `start`.
    pub(super) fn read_key<S: Seam>(&self, core: &Core<S>, start: usize, out: &mut [u8]) {
        debug_assert!(start + out.len() <= self.key_len);
        core.memory.read_bytes(self.words, RECORD_HEADER + start, out);
    }
}

const OFFSET_MASK: u64 = (1 << 48) - 1;

/// Splits a first word into the block's offset and bytes.
fn split_link<S: Seam>(core: &Core<S>, first: u64) -> Result<(u64, u64), Damage> {
    let offset = first & OFFSET_MASK;
    let class = (first >> 48) as u8;
    let bytes = if class == LARGE {
        // A large block ends with its run, somewhere before the end of the pool.
        Some(core.memory.len().saturating_sub(offset))
    } else {
        core.geometry.class_bytes(class)
    };
    let bytes = bytes
        .filter(|_| first >> 56 == 0)
        .ok_or_else(|| Damage::new(offset, "a record's link", format!("{first:#x}")))?;
    Ok((offset, bytes))
}

pub(super) fn linked<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<Linked<'_>, Damage> {
    let (offset, bytes) = split_link(core, words.first)?;
    let block = core.memory.words(offset, bytes & !7)?;
    let [lengths, ..] = block else {
        return Err(Damage::new(offset, "a record", "no space for one"));
    };
    let lengths = core.memory.load(lengths);
    let (key_len, value_len) = (lengths as u32 as usize, (lengths >> 32) as usize);
    let needed = RECORD_HEADER + key_len + value_len;
    if key_len > MAX_KEY_BYTES || value_len > MAX_VALUE_BYTES || needed as u64 > bytes {
        return Err(Damage::new(
            offset,
            format!("lengths that fit a block of {bytes} bytes"),
            format!("{key_len} and {value_len}"),
        ));
    }
    let words = &block[..needed.div_ceil(8)];
    Ok(Linked { words, key_len, value_len, offset, bytes: needed as u64 })
}

/// Up to this many bytes of key and value are assembled in one buffer before they are written.
const SMALL: usize = 240;

/// See [`Record::write`].
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

fn record_checksum(offset: u64, lengths: u64, key: &[u8], value: &[u8]) -> u64 {
    let mut crc = crc32c::crc32c(&offset.to_le_bytes());
    crc = crc32c::crc32c_append(crc, &lengths.to_le_bytes());
    crc = crc32c::crc32c_append(crc, key);
    u64::from(crc32c::crc32c_append(crc, value))
}

/// Computes the checksum that [`Record::write`] returned, from what the block holds now.
pub fn body_checksum<S: Seam>(
    memory: &Memory<S>,
    body: Body<'_>,
    (offset, lengths): (u64, u64),
) -> u64 {
    let mut bytes = vec![0; body.key_len + body.value_len];
    memory.read_bytes(body.words, 0, &mut bytes);
    let (key, value) = bytes.split_at(body.key_len);
    record_checksum(offset, lengths, key, value)
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
    fn key_check(schema: &str) -> Option<fn(&[u8]) -> bool> {
        schema::of_bytes(schema)
    }
    fn value_check(schema: &str) -> Option<fn(&[u8]) -> bool> {
        schema::of_bytes(schema)
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
    fn refer<S: Seam>(core: &Arc<Core<S>>, body: Body<'_>, pin: Pin) -> RecordRef {
        let offset = body.words.first().map_or(0, |word| core.memory.offset_of(word).raw());
        RecordRef(Held::Pinned {
            offset,
            skip: body.key_len,
            len: body.value_len,
            pin: Some(pin),
            pool: Arc::clone(core) as Arc<dyn Pinned>,
        })
    }

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
        if let Ok([first, ..]) = core.memory.words(words.first & OFFSET_MASK & !7, 8) {
            core.memory.seam().prefetch(first);
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
        let record = linked(core, words)?;
        let (key_len, value_len) = (record.key_len, record.value_len);
        let body = Body { words: &record.words[RECORD_HEADER / 8..], key_len, value_len };
        let lengths = core.memory.load(&record.words[0]);
        let stored = core.memory.load(&record.words[1]);
        // The link's class is not in the checksum: it follows from the lengths.
        Ok((words.first >> 48) as u8 == core.geometry.class_for(record.bytes)
            && stored == body_checksum(&core.memory, body, (record.offset, lengths))
            && core.hasher.bytes(&Self::read_key(&core.memory, body)) == words.second)
    }

    fn reference<S: Seam>(
        core: &Arc<Core<S>>,
        words: SlotWords,
        pin: Pin,
    ) -> Result<RecordRef, Damage> {
        let record = match linked(core, words) {
            Ok(record) => record,
            Err(damage) => {
                core.epochs().unpin(pin);
                return Err(damage);
            }
        };
        Ok(RecordRef(Held::Pinned {
            offset: record.offset,
            skip: RECORD_HEADER + record.key_len,
            len: record.value_len,
            pin: Some(pin),
            pool: Arc::clone(core) as Arc<dyn Pinned>,
        }))
    }
}

/// Memory that a reference reads from, whatever its seam.
trait Pinned: Send + Sync {
    fn read(&self, offset: u64, skip: usize, out: &mut [u8]) -> Result<()>;
    fn equals(&self, offset: u64, skip: usize, bytes: &[u8]) -> Result<bool>;
    fn unpin(&self, pin: Pin);
}

impl<S: Seam> Pinned for Core<S> {
    fn read(&self, offset: u64, skip: usize, out: &mut [u8]) -> Result<()> {
        let words = pinned(self, offset, skip + out.len())?;
        self.while_open(|| {
            self.memory.read_bytes(words, skip, out);
            Ok(())
        })
    }
    fn equals(&self, offset: u64, skip: usize, bytes: &[u8]) -> Result<bool> {
        let words = pinned(self, offset, skip + bytes.len())?;
        self.while_open(|| Ok(self.memory.bytes_equal(words, skip, bytes)))
    }
    fn unpin(&self, pin: Pin) {
        self.epochs().unpin(pin);
    }
}

/// Returns the words of the first `bytes` of a block that a pin keeps from being reused.
fn pinned<S: Seam>(core: &Core<S>, offset: u64, bytes: usize) -> Result<&[Word]> {
    if !core.is_here() {
        return Err(Error::NotOpen("this process is a fork of the one that opened it"));
    }
    Ok(core.memory.words(offset, bytes.next_multiple_of(8) as u64)?)
}

enum Held {
    Word(u64),
    Pinned { offset: u64, skip: usize, len: usize, pin: Option<Pin>, pool: Arc<dyn Pinned> },
}

/// A value by reference. Its block is not reused while this lives and the pool is open. It does not
/// keep the pool open: once the pool is closed, reads fail with [`NotOpen`](Error::NotOpen).
///
/// It copies bytes by atomic loads and never hands out a slice. In a damaged file two records can
/// overlap, and reading one through a slice while the other is written would be a data race.
pub struct RecordRef(Held);

impl RecordRef {
    /// Returns the number of bytes of the value.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a container's")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Held::Word(_) => 8,
            Held::Pinned { len, .. } => *len,
        }
    }

    /// Copies the value's bytes, starting at `start`. `start + out.len()` is at most `len`.
    ///
    /// # Errors
    /// [`Error::NotOpen`] if the pool was closed. Then the contents of `out` are meaningless.
    ///
    /// # Panics
    /// If the range exceeds the value.
    pub fn read_at(&self, start: usize, out: &mut [u8]) -> Result<()> {
        let end = start.checked_add(out.len());
        assert!(end.is_some_and(|end| end <= self.len()), "a range inside the value");
        match &self.0 {
            Held::Word(word) => {
                out.copy_from_slice(&word.to_le_bytes()[start..start + out.len()]);
                Ok(())
            }
            Held::Pinned { offset, skip, pool, .. } => pool.read(*offset, skip + start, out),
        }
    }

    /// Returns whether the value is `bytes`.
    ///
    /// # Errors
    /// [`Error::NotOpen`] if the pool was closed.
    pub fn equals(&self, bytes: &[u8]) -> Result<bool> {
        match &self.0 {
            _ if bytes.len() != self.len() => Ok(false),
            Held::Word(word) => Ok(word.to_le_bytes() == bytes),
            Held::Pinned { offset, skip, pool, .. } => pool.equals(*offset, *skip, bytes),
        }
    }

    /// Returns the whole value.
    ///
    /// # Errors
    /// [`Error::NotOpen`] if the pool was closed.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut out = vec![0; self.len()];
        self.read_at(0, &mut out)?;
        Ok(out)
    }
}

impl Drop for RecordRef {
    fn drop(&mut self) {
        if let Held::Pinned { pin, pool, .. } = &mut self.0
            && let Some(pin) = pin.take()
        {
            pool.unpin(pin);
        }
    }
}

impl fmt::Debug for RecordRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordRef({} bytes)", self.len())
    }
}
