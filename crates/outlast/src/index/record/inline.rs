//! Records that the slots themselves hold.

use super::{
    BlockRecord, Body, Record, RecordForm, RecordRef, SlotRecord, SlotWords, record_checksum,
};
use crate::error::{Damage, Result};
use crate::index::schema::Known;
use crate::pmem::{Memory, Point, Seam, Word};
use crate::pool::core::Core;
use crate::pool::hash::Hasher;
use crate::reclaim::Pin;

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
    fn allows_key(known: Known, key: u64) -> bool {
        known.allows_word(key)
    }
    fn allows_value(known: Known, value: u64, _: usize) -> bool {
        known.allows_word(value)
    }
    #[inline(always)]
    fn hash(hasher: &Hasher, key: u64) -> u64 {
        hasher.word(key)
    }
    #[inline(always)]
    fn check_size(_: u64, _: Option<u64>) -> Result<()> {
        Ok(())
    }
    fn block_bytes(_: u64, _: u64) -> u64 {
        0
    }
}

impl BlockRecord for Inline {
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
    fn refer<'m, S: Seam>(core: &'m Core<S>, body: Body<'_>, pin: Pin) -> RecordRef<'m> {
        let value = Self::read_value(&core.memory, body);
        core.epochs().unpin(pin);
        RecordRef::of_word(value)
    }
}

impl SlotRecord for Inline {
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
    fn sought_word(key: u64, _: u64) -> u64 {
        key
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
    fn read_whole<S: Seam>(_: &Core<S>, words: SlotWords) -> Result<Option<(u64, u64)>, Damage> {
        Ok(Some((words.first, words.second)))
    }
    #[inline(always)]
    fn reference<S: Seam>(_: &Core<S>, words: SlotWords) -> Result<RecordRef<'_>, Damage> {
        Ok(RecordRef::of_word(words.second))
    }
}
