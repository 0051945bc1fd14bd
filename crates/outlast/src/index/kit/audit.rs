//! The findings of a check of one index.

use super::table::HashedKey;
use crate::error::{Damage, Error, Result};
use crate::index::record::{Record, SlotWords};
use crate::index::{Schemas, Verified};
use crate::pmem::Seam;
use crate::pool::core::Core;
use std::collections::HashMap;

/// A check in progress. It reports what it cannot read and goes on with the rest.
pub(crate) struct Audit<R: Record> {
    pub(crate) verified: Verified,
    /// The keys of the current part, and where each was found.
    keys: HashMap<R::OwnedKey, u64>,
    schemas: Schemas<R>,
}

impl<R: Record> Audit<R> {
    pub(crate) fn new(schemas: Schemas<R>) -> Self {
        Audit { verified: Verified::default(), keys: HashMap::new(), schemas }
    }

    /// Begins another part of the index. None of its keys can be in the earlier parts.
    pub(crate) fn begin_part(&mut self) {
        self.keys.clear();
    }

    /// Reports damage at an offset.
    pub(crate) fn wrong(&mut self, at: u64, expected: &str, found: impl Into<String>) {
        self.verified.damage.push(Damage::new(at, expected, found));
    }

    /// Reports damage and goes on without the result. Other errors end the check.
    pub(crate) fn report<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(Error::Damaged(damage)) => {
                self.verified.damage.push(damage);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Like [`report`](Self::report), for a record: damage also counts as torn.
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
        if !self.schemas.allows_key(R::key_of(key)) {
            self.wrong(at, "a key of the map's type", format!("{key:?}"));
        }
        if self.schemas.checks_values() {
            match value() {
                Ok(value) if self.schemas.allows_value(R::value_of(&value)) => {}
                Ok(value) => self.wrong(at, "a value of the map's type", format!("{value:?}")),
                Err(damage) => self.verified.damage.push(damage),
            }
        }
        if let Some(other) = self.keys.insert(key.clone(), at) {
            self.verified.duplicated += 1;
            let found = format!("key {key:?} a second time, also at {other:#x}");
            self.wrong(at, "each key once", found);
        }
    }

    /// Checks the record of a slot at `at`: that it is whole, that its key was not found before,
    /// and that `find`, a lookup of its key, finds these words. Returns its key if it is whole.
    pub(crate) fn check_slot<S: Seam>(
        &mut self,
        core: &Core<S>,
        at: u64,
        words: SlotWords,
        find: impl FnOnce(HashedKey<'_, R>) -> Result<Option<SlotWords>>,
    ) -> Option<R::OwnedKey> {
        let record = R::read_whole(core, words).and_then(|record| {
            let found = "one whose checksum or hash does not match";
            record.ok_or_else(|| Damage::new(at, "a whole record", found))
        });
        let (key, value) = match record {
            Ok(record) => record,
            Err(damage) => {
                self.verified.records += 1;
                self.verified.torn += 1;
                self.verified.damage.push(damage);
                return None;
            }
        };
        self.count(at, &key, || Ok(value));
        let found = find(HashedKey::new(core, R::key_of(&key)));
        if !matches!(found, Ok(Some(found)) if found == words) {
            self.wrong(at, "a record that lookups find", "one that they do not");
        }
        Some(key)
    }
}
