//! What a step of a walk over records has read, and the damage that it has stepped over.

use crate::error::{Damage, Error, Result};
use crate::index::Care;
use crate::index::record::{Record, SlotRecord, SlotWords};
use crate::pmem::Seam;
use crate::pool::core::Core;
use std::collections::HashSet;

/// Collects the records that one step of a walk reads.
pub(crate) struct Collector<'o, R: Record> {
    /// The list to which the step appends its records. Those of earlier steps come first.
    pub(crate) records: &'o mut Vec<(R::OwnedKey, R::Owned)>,
    lost: Vec<Damage>,
    care: Care,
    /// In a salvage, the keys of the records since the last reset.
    keys: HashSet<R::OwnedKey>,
}

/// How much a [`Collector`] held at some moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    records: usize,
    lost: usize,
}

impl<'o, R: Record> Collector<'o, R> {
    /// Makes a collector that appends to `records`.
    pub(crate) fn new(care: Care, records: &'o mut Vec<(R::OwnedKey, R::Owned)>) -> Self {
        Collector { records, lost: Vec::new(), care, keys: HashSet::new() }
    }

    /// Returns whether the walk steps over damage.
    pub(crate) fn salvages(&self) -> bool {
        self.care == Care::Salvage
    }

    /// Returns whether the walk checks records.
    #[inline(always)]
    pub(crate) fn checks(&self) -> bool {
        matches!(self.care, Care::Check | Care::Salvage)
    }

    /// Returns how much the collector holds.
    pub(crate) fn mark(&self) -> Mark {
        Mark { records: self.records.len(), lost: self.lost.len() }
    }

    /// Drops everything taken since `mark`, because the read was not valid. `mark` is from the
    /// beginning of the step, so all `keys` are dropped too.
    pub(crate) fn reset(&mut self, mark: Mark) {
        self.keys.clear();
        self.records.truncate(mark.records);
        self.lost.truncate(mark.lost);
    }

    /// Takes the record of a slot at offset `at`. In a salvage, a key that the step has already
    /// taken counts as damage: a damaged file can be a mix of an old and a new state, and each may
    /// have a record of the key.
    ///
    /// # Errors
    /// The damage of the record, unless the walk steps over it.
    #[inline(always)]
    pub(crate) fn take<S: Seam>(
        &mut self,
        core: &Core<S>,
        words: SlotWords,
        at: impl Fn() -> u64,
    ) -> Result<(), Damage>
    where
        R: SlotRecord,
    {
        if self.checks() {
            return match checked::<S, R>(core, words, &at) {
                Ok((key, _)) if self.salvages() && !self.keys.insert(key.clone()) => {
                    self.step_over(Damage::new(at(), "each key once", "one a second time"))
                }
                Ok(record) => {
                    self.records.push(record);
                    Ok(())
                }
                Err(damage) => self.step_over(damage),
            };
        }
        let value = self.value(|| R::value(core, words))?;
        self.records.push((R::key(core, words)?, value));
        Ok(())
    }

    /// Reads a value, or returns the default value if only keys are wanted.
    #[inline(always)]
    pub(crate) fn value(
        &self,
        read: impl FnOnce() -> Result<R::Owned, Damage>,
    ) -> Result<R::Owned, Damage> {
        if self.care == Care::Keys { Ok(R::Owned::default()) } else { read() }
    }

    /// Like [`take`](Self::take), for a slot that no thread uses, whose record is always checked.
    /// If the record's key is in `keys`, leaves the record out; otherwise adds the key to them.
    pub(crate) fn take_unused<S: Seam>(
        &mut self,
        core: &Core<S>,
        words: SlotWords,
        at: u64,
        keys: &mut HashSet<R::OwnedKey>,
    ) -> Result<(), Damage>
    where
        R: SlotRecord,
    {
        match checked::<S, R>(core, words, || at) {
            Ok((key, value)) => {
                if keys.insert(key.clone()) {
                    self.records.push((key, value));
                }
                Ok(())
            }
            Err(damage) => self.step_over(damage),
        }
    }

    /// In a salvage, lists the damage, so that the walk goes on.
    ///
    /// # Errors
    /// The damage, in any other walk.
    pub(crate) fn step_over(&mut self, damage: Damage) -> Result<(), Damage> {
        if self.salvages() {
            self.lost.push(damage);
            return Ok(());
        }
        Err(damage)
    }

    /// Like [`step_over`](Self::step_over), but does nothing if damage at that offset was found
    /// since `mark`.
    pub(crate) fn step_over_once(&mut self, damage: Damage, mark: Mark) -> Result<(), Damage> {
        let known = self.lost[mark.lost..].iter().any(|lost| lost.offset() == damage.offset());
        if known { Ok(()) } else { self.step_over(damage) }
    }

    /// Returns the result of a read, or `None` for damage that the walk steps over.
    ///
    /// # Errors
    /// All other errors of the read.
    pub(crate) fn readable<T>(&mut self, read: Result<T>) -> Result<Option<T>> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(Error::Damaged(damage)) => Ok(self.step_over(damage).map(|()| None)?),
            Err(error) => Err(error),
        }
    }

    /// Ends the step. Moves the damage to `lost`.
    pub(crate) fn finish(mut self, lost: &mut Vec<Damage>) {
        lost.append(&mut self.lost);
    }
}

/// Reads the record of a slot at offset `at`, and checks that it is intact.
fn checked<S: Seam, R: SlotRecord>(
    core: &Core<S>,
    words: SlotWords,
    at: impl FnOnce() -> u64,
) -> Result<(R::OwnedKey, R::Owned), Damage> {
    R::read_whole(core, words)?.ok_or_else(|| {
        let found = "one whose checksum or hash does not match";
        Damage::new(at(), "a whole record", found)
    })
}
