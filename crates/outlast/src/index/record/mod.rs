//! The two record forms, and the blocks that hold byte strings.
//!
//! A slot of an index is two words. The record form defines what they mean:
//!
//! | form | first word, the commit word | second word |
//! |---|---|---|
//! | [`Inline`] | the key | the value |
//! | [`Bytes`] | the record's offset and size class | the key's full hash |
//!
//! An insert ends with the store of the first word; an inline update stores only the second word, an
//! update of a byte string only the first. Both lie in one line, so whenever the first word of an insert
//! is durable, the second word is too (x86; elsewhere the seam's Release orders them).

mod bytes;
mod inline;
mod reference;

pub use bytes::Bytes;
pub(super) use bytes::linked;
pub use inline::Inline;
pub use reference::RecordRef;

pub use crate::pool::layout::{MAX_KEY_BYTES, MAX_VALUE_BYTES, RecordForm};

use super::schema::Known;
use crate::error::{Damage, Result};
use crate::pmem::{Memory, Point, Seam, Word};
use crate::pool::core::Core;
use crate::pool::geometry::Geometry;
use crate::pool::hash::Hasher;
use crate::reclaim::Pin;
use std::fmt;

/// Returns the greatest length of a value, beside a key of any length, in a pool with this
/// geometry.
pub fn value_max(geometry: Geometry) -> usize {
    // No record header is longer than a line.
    let before = (MAX_KEY_BYTES + 64) as u64;
    MAX_VALUE_BYTES.min((geometry.large_max() - before) as usize)
}

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

/// Key and value of a record, as they are handed out.
pub type OwnedPair<R> = (<R as Record>::OwnedKey, <R as Record>::Owned);

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
    type Owned: fmt::Debug + Clone + PartialEq + Eq + Default + Send;

    /// Returns the same key with a shorter lifetime.
    fn reborrow<'s, 'k: 's>(key: Self::Key<'k>) -> Self::Key<'s>;
    /// Borrows an owned key, to pass it in again.
    fn key_of(key: &Self::OwnedKey) -> Self::Key<'_>;
    /// Borrows an owned value, to pass it in again.
    fn value_of(value: &Self::Owned) -> Self::Value<'_>;

    /// Returns the key's hash.
    fn hash(hasher: &Hasher, key: Self::Key<'_>) -> u64;

    /// Returns whether what is known of the key type allows this key; see
    /// [`Schemas`](super::Schemas).
    fn allows_key(known: Known, key: Self::Key<'_>) -> bool;
    /// Like [`allows_key`](Record::allows_key), for values with this many other bytes before them.
    fn allows_value(known: Known, value: Self::Value<'_>, before: usize) -> bool;

    /// Fails if the key or the value is too long.
    fn check_size(key: Self::Key<'_>, value: Option<Self::Value<'_>>) -> Result<()>;

    /// Returns the size, in bytes, of the block that a record of a slot takes, or 0 if it takes none.
    fn block_bytes(key: Self::Key<'_>, value: Self::Value<'_>) -> u64;
}

/// What schemes need of a record form whose records always lie in blocks. An inline record takes two
/// words in its block.
pub trait BlockRecord: Record {
    /// Returns how many bytes key and value take in a block.
    fn lengths(key: Self::Key<'_>, value: Self::Value<'_>) -> (usize, usize);
    /// Writes key and value to the words `body` of a block that no thread reads yet. `head` is the
    /// block's offset and the lengths, as the scheme stores them. Returns a checksum over both, key
    /// and value.
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
    /// Returns whether the block's key is this one. The block's lengths must be
    /// [possible](BlockRecord::has_lengths).
    fn has_key<S: Seam>(memory: &Memory<S>, body: Body<'_>, key: Self::Key<'_>) -> bool;
    /// Returns whether the block's value is this one. The lengths must be possible.
    fn has_value<S: Seam>(memory: &Memory<S>, body: Body<'_>, value: Self::Value<'_>) -> bool;
    /// Reads the key in a block. The lengths must be possible.
    fn read_key<S: Seam>(memory: &Memory<S>, body: Body<'_>) -> Self::OwnedKey;
    /// Reads the value in a block. The lengths must be possible.
    fn read_value<S: Seam>(memory: &Memory<S>, body: Body<'_>) -> Self::Owned;
    /// Makes a reference to the value in a block. `pin` keeps the block from being reused; the
    /// reference takes it over.
    fn refer<'m, S: Seam>(core: &'m Core<S>, body: Body<'_>, pin: Pin) -> RecordRef<'m>;
}

/// What schemes need of a record form whose slots are two words.
pub trait SlotRecord: Record {
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

    /// Like [`prepare`](SlotRecord::prepare), but only flushes the block. The block is durable after
    /// the calling thread's next fence.
    fn prepare_unfenced<S: Seam>(
        core: &Core<S>,
        key: Self::Key<'_>,
        value: Self::Value<'_>,
        hash: u64,
        at: &'static Point,
    ) -> Result<SlotWords>;

    /// Frees the block that [`prepare`](SlotRecord::prepare) allocated for these words, if any. No slot
    /// may link to it.
    fn discard<S: Seam>(core: &Core<S>, words: SlotWords);

    /// The first word of an empty slot, in a form where it is the same for all slots and where
    /// records live in blocks. `None` for inline records.
    const EMPTY: Option<u64>;

    /// Returns the hash of the record in a slot.
    fn slot_hash(hasher: &Hasher, words: SlotWords) -> u64;

    /// The word of a slot, 0 or 1, that a search compares first: with the key, or with its hash.
    const SOUGHT: u32 = if Self::EMPTY.is_some() { 1 } else { 0 };

    /// Returns what a search for this key compares that word with.
    fn sought_word(key: Self::Key<'_>, hash: u64) -> u64;

    /// Returns whether the slot holds this key.
    ///
    /// If a writer changes the slot concurrently, the result can be wrong, and can even be damage.
    /// The caller validates the bucket's version before it relies on either.
    fn matches<S: Seam>(
        core: &Core<S>,
        words: SlotWords,
        key: Self::Key<'_>,
        hash: u64,
    ) -> Result<bool, Damage>;

    /// Prefetches the record of a slot. The slot's words may be garbage.
    fn prefetch<S: Seam>(core: &Core<S>, words: SlotWords);

    /// Reads the value in a slot. With a concurrent writer, the result can be wrong, as in
    /// [`matches`](SlotRecord::matches).
    fn value<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<Self::Owned, Damage>;

    /// Reads the value in a slot, or returns the default value if only keys are wanted.
    #[inline(always)]
    fn value_unless<S: Seam>(
        keys_only: bool,
        core: &Core<S>,
        words: SlotWords,
    ) -> Result<Self::Owned, Damage> {
        if keys_only { Ok(Self::Owned::default()) } else { Self::value(core, words) }
    }

    /// Reads the key in a slot. With a concurrent writer, the result can be wrong, as in
    /// [`matches`](SlotRecord::matches).
    fn key<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<Self::OwnedKey, Damage>;

    /// Returns whether the slot's value is this one. The caller holds the lock that guards the
    /// slot.
    fn value_is<S: Seam>(
        core: &Core<S>,
        words: SlotWords,
        value: Self::Value<'_>,
    ) -> Result<bool, Damage>;

    /// Returns the block that a slot's words link to: its offset, and the size in bytes of the
    /// record in it. `None` for inline records, which have no block.
    fn block<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<Option<(u64, u64)>, Damage>;

    /// Like [`block`](SlotRecord::block), but without reading the block, and only for forms that have
    /// blocks. The size is that of all blocks of its size class or, for a large block, the least
    /// that a large block can have.
    fn extent<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<(u64, u64), Damage>;

    /// Checks that the first word can be a link: of a known class, and inside the memory. Inline
    /// records have no link, and always pass.
    fn check_link<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<(), Damage>;

    /// Returns whether the record is intact, as inline records always are. The caller makes sure
    /// that no thread changes it.
    fn is_whole<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<bool, Damage>;

    /// Reads key and value of a record. Returns `None` if the record is not intact. The caller
    /// makes sure that no thread changes it, or validates the read.
    fn read_whole<S: Seam>(
        core: &Core<S>,
        words: SlotWords,
    ) -> Result<Option<OwnedPair<Self>>, Damage>;

    /// Makes a reference to the value in a slot. If the value is in a block, this pins the epoch
    /// first, which keeps the block from being reused.
    fn reference<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<RecordRef<'_>, Damage>;
}

/// The highest byte of the mark in a record's block, if there is one.
pub(crate) const MARKED: u32 = 0xc5;

/// Returns the checksum in the second word of a record's block. `None` if the rest is no mark.
fn without_mark(word: u64) -> Option<u64> {
    let mark = (word >> 32) as u32;
    (mark == 0 || mark >> 24 == MARKED).then_some(word & 0xffff_ffff)
}

/// Returns the mark in the record block at this offset; 0 if there is none.
#[inline]
pub(in crate::layers::index) fn mark_of<S: Seam>(memory: &Memory<S>, offset: u64) -> u32 {
    match memory.words(offset, 16) {
        Ok([_, word, ..]) => (memory.load(word) >> 32) as u32,
        _ => 0,
    }
}

/// Sets the mark in the record block at this offset. The caller keeps the block from being reused, and has
/// passed the gate, which keeps a closed pool, and one that is to stay clean, as it is. Of marks that are
/// set at the same time, one stays.
#[inline]
pub(in crate::layers::index) fn set_mark_of<S: Seam>(memory: &Memory<S>, offset: u64, mark: u32) {
    if let Ok([_, word, ..]) = memory.words(offset, 16) {
        let checksum = memory.load(word) & 0xffff_ffff;
        memory.store(word, checksum | u64::from(mark) << 32, &MARK);
    }
}

crate::pmem::commit_points! { "cache":
    /// The mark of a record. Nothing depends on it, so it is not flushed.
    MARK = "mark": store;
}

fn record_checksum(offset: u64, lengths: u64, key: &[u8], value: &[u8]) -> u64 {
    let mut crc = crc32c::crc32c(&offset.to_le_bytes());
    crc = crc32c::crc32c_append(crc, &lengths.to_le_bytes());
    crc = crc32c::crc32c_append(crc, key);
    u64::from(crc32c::crc32c_append(crc, value))
}

/// Computes the checksum that [`BlockRecord::write`] returned, from what the block holds now.
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
