//! The findings of a check of one index.

use super::media::LOW48;
use super::table::{ExactSlot, HashedKey};
use crate::error::{Damage, Error, Result};
use crate::index::record::{Record, SlotRecord, SlotWords};
use crate::index::{Schemas, Verified};
use crate::pmem::Seam;
use crate::pool::core::Core;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

/// The number of slots that are collected before their records are read, in the order of the
/// records' offsets. A map's records can lie anywhere in the file. Reading them in the order of
/// their slots would cost a cache miss for each, and often map a page of the file for it alone.
const UNREAD: usize = 1 << 18;
/// The most findings of damage that are reported.
const DAMAGES: usize = 10_000;
/// The most bytes of a key's or value's printed form that a finding shows.
const SHOWN: usize = 200;

fn shown(of: &impl fmt::Debug) -> String {
    let mut text = format!("{of:?}");
    if text.len() > SHOWN {
        text.truncate(text.floor_char_boundary(SHOWN));
        text.push_str("...");
    }
    text
}

/// A check in progress. It reports what it cannot read and goes on with the rest.
pub(crate) struct Audit<R: Record> {
    pub(crate) verified: Verified,
    /// The keys of the current part, and where each was found. [`check_slot`](Self::check_slot)
    /// adds only keys whose hash occurs more than once.
    keys: HashMap<R::OwnedKey, u64>,
    /// For each hash in the current part, the offset and words of the first slot that has it.
    slots: HashMap<u64, (u64, SlotWords)>,
    /// The offsets and words of the slots whose records have not been read yet.
    unread: Vec<(u64, SlotWords)>,
    schemas: Schemas<R>,
}

impl<R: Record> Audit<R> {
    pub(crate) fn new(schemas: Schemas<R>) -> Self {
        Audit {
            verified: Verified::default(),
            keys: HashMap::new(),
            slots: HashMap::new(),
            unread: Vec::new(),
            schemas,
        }
    }

    /// Begins another part of the index. None of its keys can be in the earlier parts.
    pub(crate) fn begin_part(&mut self) {
        self.keys.clear();
        self.slots.clear();
    }

    /// Reports damage.
    pub(crate) fn damaged(&mut self, damage: Damage) {
        // Enough to see what is wrong. A hostile file can have damage in every slot.
        if self.verified.damage.len() < DAMAGES {
            self.verified.damage.push(damage);
        }
    }

    /// Reports damage at an offset.
    pub(crate) fn wrong(&mut self, at: u64, expected: &str, found: impl Into<String>) {
        self.damaged(Damage::new(at, expected, found));
    }

    /// Reports damage and goes on without the result. Other errors end the check.
    pub(crate) fn report<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(Error::Damaged(damage)) => {
                self.damaged(damage);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Like [`report`](Self::report), for the result of reading a record. Damage also counts as a
    /// torn record.
    pub(crate) fn report_torn<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        let found = self.report(result)?;
        self.verified.torn += u64::from(found.is_none());
        Ok(found)
    }

    /// Counts a record. Checks that its key was not found before, and that the map's schemas allow
    /// key and value.
    pub(crate) fn count(
        &mut self,
        at: u64,
        key: &R::OwnedKey,
        value: impl FnOnce() -> Result<R::Owned, Damage>,
    ) {
        self.verified.records += 1;
        self.check_types(at, key, value);
        self.note_key(at, key.clone());
    }

    fn check_types(
        &mut self,
        at: u64,
        key: &R::OwnedKey,
        value: impl FnOnce() -> Result<R::Owned, Damage>,
    ) {
        if !self.schemas.allows_key(R::key_of(key)) {
            self.wrong(at, "a key of the map's type", shown(key));
        }
        if self.schemas.checks_values() {
            match value() {
                Ok(value) if self.schemas.allows_value(R::value_of(&value)) => {}
                Ok(value) => self.wrong(at, "a value of the map's type", shown(&value)),
                Err(damage) => self.damaged(damage),
            }
        }
    }

    /// Checks that a key was not found before in this part.
    fn note_key(&mut self, at: u64, key: R::OwnedKey) {
        match self.keys.entry(key) {
            Entry::Vacant(entry) => _ = entry.insert(at),
            Entry::Occupied(entry) => {
                self.verified.duplicated += 1;
                let (key, other) = (shown(entry.key()), entry.get());
                let found = format!("key {key} a second time, also at {other:#x}");
                self.wrong(at, "each key once", found);
            }
        }
    }
}

/// The checks of slots of two words.
impl<R: SlotRecord> Audit<R> {
    /// Checks the slot at `at`, which holds a record: that its key was not found before in this part,
    /// and that a search for the slot finds it. The record is read later, with others, in the order in
    /// which they lie in the file: see [`finish`](Self::finish).
    pub(crate) fn check_slot<S: Seam>(
        &mut self,
        core: &Core<S>,
        at: u64,
        words: SlotWords,
        search: impl FnOnce(ExactSlot) -> Result<Option<SlotWords>>,
    ) {
        self.verified.records += 1;
        let hash = R::slot_hash(&core.hasher, words);
        self.note_slot(core, hash, (at, words));
        self.check_found(at, words, search(ExactSlot { words, hash }));
        self.unread.push((at, words));
        if self.unread.len() == UNREAD {
            self.read_records(core);
        }
    }

    /// Like [`check_slot`](Self::check_slot), but reads the record immediately rather than later
    /// with others. Returns its key if the record is intact. `find` looks up the key.
    pub(crate) fn check_record<S: Seam>(
        &mut self,
        core: &Core<S>,
        at: u64,
        words: SlotWords,
        find: impl FnOnce(HashedKey<'_, R>) -> Result<Option<SlotWords>>,
    ) -> Option<R::OwnedKey> {
        self.verified.records += 1;
        let key = self.read_record(core, at, words)?;
        self.note_key(at, key.clone());
        self.check_found(at, words, find(HashedKey::new(core, R::key_of(&key))));
        Some(key)
    }

    fn check_found(&mut self, at: u64, words: SlotWords, found: Result<Option<SlotWords>>) {
        if !matches!(found, Ok(Some(found)) if found == words) {
            self.wrong(at, "a record that lookups find", "one that they do not");
        }
    }

    /// Notes a slot of this part. Keys are read and compared only if their hashes are the same.
    fn note_slot<S: Seam>(&mut self, core: &Core<S>, hash: u64, slot: (u64, SlotWords)) {
        let first = match self.slots.entry(hash) {
            Entry::Vacant(entry) => {
                entry.insert(slot);
                return;
            }
            Entry::Occupied(entry) => *entry.get(),
        };
        // If a key cannot be read, `read_record` reports the damage later.
        if let Ok(key) = R::key(core, first.1) {
            self.keys.entry(key).or_insert(first.0);
        }
        if let Ok(key) = R::key(core, slot.1) {
            self.note_key(slot.0, key);
        }
    }

    /// Reads a record, and checks that it is intact and of the map's types. Returns its key.
    fn read_record<S: Seam>(
        &mut self,
        core: &Core<S>,
        at: u64,
        words: SlotWords,
    ) -> Option<R::OwnedKey> {
        let record = R::read_whole(core, words).and_then(|record| {
            let found = "one whose checksum or hash does not match";
            record.ok_or_else(|| Damage::new(at, "a whole record", found))
        });
        match record {
            Ok((key, value)) => {
                self.check_types(at, &key, || Ok(value));
                Some(key)
            }
            Err(damage) => {
                self.verified.torn += 1;
                self.damaged(damage);
                None
            }
        }
    }

    /// Reads the records of the slots that were checked so far.
    fn read_records<S: Seam>(&mut self, core: &Core<S>) {
        let mut unread = std::mem::take(&mut self.unread);
        if R::EMPTY.is_some() {
            unread.sort_unstable_by_key(|(_, words)| words.first & LOW48);
        }
        for (at, words) in unread.drain(..) {
            self.read_record(core, at, words);
        }
        self.unread = unread;
    }

    /// Reads the records that have not been read yet, and returns the findings.
    pub(crate) fn finish<S: Seam>(mut self, core: &Core<S>) -> Verified {
        self.read_records(core);
        self.verified
    }
}
