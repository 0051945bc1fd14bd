//! What a scheme supplies: one trait for each part.

use crate::error::{Boxed, Damage, Result};
use crate::index::record::{BlockRecord, Body, Record, RecordRef, SlotRecord, SlotWords};
use crate::index::{
    Cursor, EvictingIndex, Growth, IndexStats, OrderedIndex, Schemas, Scheme, Verified, Visitor,
};
use crate::pmem::Seam;
use crate::pool::core::Core;
use crate::reclaim::Pin;
use std::sync::Arc;

/// A key and its hash.
#[derive(Debug)]
pub(crate) struct HashedKey<'k, R: Record> {
    pub(crate) key: R::Key<'k>,
    pub(crate) hash: u64,
}

impl<R: Record> Clone for HashedKey<'_, R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: Record> Copy for HashedKey<'_, R> {}

impl<'k, R: Record> HashedKey<'k, R> {
    #[inline(always)]
    pub(crate) fn new<S: Seam>(core: &Core<S>, key: R::Key<'k>) -> Self {
        HashedKey { key, hash: R::hash(&core.hasher, key) }
    }

    /// Hashes a key in the form in which the table keeps it.
    #[inline(always)]
    pub(crate) fn of<'l: 'k, S: Seam>(
        table: &impl Table<S, R>,
        key: R::Key<'l>,
        space: &'k mut [u8; 8],
    ) -> Self {
        HashedKey::new(table.core(), table.encode(key, space))
    }
}

/// What a search compares slots with.
pub(crate) trait Sought<R: Record>: Copy {
    /// The hash of the record.
    fn hash(self) -> u64;
    /// What the word of the slot that is [compared first](SlotRecord::SOUGHT) must hold.
    fn word(self) -> u64;
    /// Returns whether these are the words of the slot that is sought. See [`Record::matches`].
    fn is_in<S: Seam>(self, core: &Core<S>, words: SlotWords) -> Result<bool, Damage>;
}

impl<R: SlotRecord> Sought<R> for HashedKey<'_, R> {
    #[inline(always)]
    fn hash(self) -> u64 {
        self.hash
    }

    #[inline(always)]
    fn word(self) -> u64 {
        R::sought_word(self.key, self.hash)
    }

    #[inline(always)]
    fn is_in<S: Seam>(self, core: &Core<S>, words: SlotWords) -> Result<bool, Damage> {
        R::matches(core, words, self.key, self.hash)
    }
}

/// A slot with exactly these words, which is found without reading its record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExactSlot {
    pub(crate) words: SlotWords,
    pub(crate) hash: u64,
}

impl<R: SlotRecord> Sought<R> for ExactSlot {
    fn hash(self) -> u64 {
        self.hash
    }

    fn word(self) -> u64 {
        [self.words.first, self.words.second][R::SOUGHT as usize]
    }

    fn is_in<S: Seam>(self, _: &Core<S>, words: SlotWords) -> Result<bool, Damage> {
        Ok(words == self.words)
    }
}

/// An index, as the kit sees it.
pub(crate) trait Table<S: Seam, R: Record>: Send + Sync {
    /// The scheme of this index.
    const SCHEME: Scheme;

    /// The pool that the index lies in.
    fn core(&self) -> &Arc<Core<S>>;

    /// Returns a key in the form that the table stores. If the key's bytes have to change, the
    /// changed copy is made in the given buffer.
    #[inline(always)]
    fn encode<'s, 'k: 's>(&self, key: R::Key<'k>, _space: &'s mut [u8; 8]) -> R::Key<'s> {
        R::reborrow(key)
    }

    /// See [`Index::record_bytes`](crate::index::Index::record_bytes).
    fn record_bytes(&self, key: R::Key<'_>, value: R::Value<'_>) -> u64 {
        R::block_bytes(key, value)
    }

    /// See [`Index::growth`](crate::index::Index::growth).
    fn growth(&self) -> Growth;

    /// See [`Index::has_work`](crate::index::Index::has_work).
    fn has_work(&self) -> bool {
        false
    }

    /// See [`Index::step`](crate::index::Index::step).
    fn step(&self) -> Result<bool> {
        Ok(false)
    }

    /// See [`Index::use_huge_pages`](crate::index::Index::use_huge_pages).
    fn use_huge_pages(&self) {}

    /// See [`Index::ordered`](crate::index::Index::ordered).
    fn ordered(&self) -> Option<&dyn OrderedIndex<R>> {
        None
    }

    /// See [`Index::evicting`](crate::index::Index::evicting).
    fn evicting(&self) -> Option<&dyn EvictingIndex<R>> {
        None
    }
}

/// What a lookup returns of the record that it finds.
pub(crate) trait Wanted<R: Record> {
    type Found<'m>;

    /// Whether it keeps a block from being reused, by a pin. The pin must then be made before the
    /// read is validated; one that is made later, even under an earlier guard, may be too late for a
    /// block that was retired in between.
    const PINS: bool = false;

    /// Reads it from a slot that was found. With a concurrent writer, the result can be wrong.
    fn in_slot<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<Self::Found<'_>, Damage>
    where
        R: SlotRecord;

    /// Reads it from the block of a record that was found. If the block has to outlive the lookup,
    /// `pin` keeps it from being reused. Returns `None` if `pin` does: then the block was retired
    /// already.
    fn in_block<'m, S: Seam>(
        core: &'m Core<S>,
        body: Body<'_>,
        pin: impl FnOnce() -> Option<Pin>,
    ) -> Option<Self::Found<'m>>
    where
        R: BlockRecord;
}

/// A lookup that returns a copy of the value.
pub(crate) enum Value {}

impl<R: Record> Wanted<R> for Value {
    type Found<'m> = R::Owned;

    #[inline(always)]
    fn in_slot<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<R::Owned, Damage>
    where
        R: SlotRecord,
    {
        R::value(core, words)
    }

    #[inline(always)]
    fn in_block<S: Seam>(
        core: &Core<S>,
        body: Body<'_>,
        _: impl FnOnce() -> Option<Pin>,
    ) -> Option<R::Owned>
    where
        R: BlockRecord,
    {
        Some(R::read_value(&core.memory, body))
    }
}

/// A lookup that only tells whether the key is present.
pub(crate) enum Presence {}

impl<R: Record> Wanted<R> for Presence {
    type Found<'m> = ();

    #[inline(always)]
    fn in_slot<S: Seam>(_: &Core<S>, _: SlotWords) -> Result<(), Damage>
    where
        R: SlotRecord,
    {
        Ok(())
    }

    #[inline(always)]
    fn in_block<S: Seam>(_: &Core<S>, _: Body<'_>, _: impl FnOnce() -> Option<Pin>) -> Option<()>
    where
        R: BlockRecord,
    {
        Some(())
    }
}

/// A lookup that returns a reference to the value.
pub(crate) enum Reference {}

impl<R: Record> Wanted<R> for Reference {
    type Found<'m> = RecordRef<'m>;
    const PINS: bool = true;

    /// Each read has a pin of its own, which is dropped if the read is not valid. The link is read
    /// before the pin is made, but the read is validated after that. If the record was unlinked and
    /// retired in between, the version has changed, and this read is not valid.
    #[inline(always)]
    fn in_slot<S: Seam>(core: &Core<S>, words: SlotWords) -> Result<RecordRef<'_>, Damage>
    where
        R: SlotRecord,
    {
        R::reference(core, words)
    }

    #[inline(always)]
    fn in_block<'m, S: Seam>(
        core: &'m Core<S>,
        body: Body<'_>,
        pin: impl FnOnce() -> Option<Pin>,
    ) -> Option<RecordRef<'m>>
    where
        R: BlockRecord,
    {
        Some(R::refer(core, body, pin()?))
    }
}

/// Lookups of keys. A lookup of many keys runs each stage for all of them before the next stage, so
/// that their cache misses overlap.
pub(crate) trait Lookup<S: Seam, R: Record>: Table<S, R> {
    /// What the lookups of a batch share: usually a guard.
    type Batch<'t>
    where
        Self: 't;
    /// What the stages of one lookup pass on.
    type Staged<'b>
    where
        Self: 'b;

    /// The hot path of [`find`](Self::find). Returns `None` if the scheme has no such path, or if the
    /// path does not apply. Then `find` makes the lookup.
    #[inline(always)]
    fn find_fast<W: Wanted<R>>(&self, _key: HashedKey<'_, R>) -> Option<Option<W::Found<'_>>> {
        None
    }

    /// Finds a key. Returns its value, a reference to it, or only whether it is there, as `W` says.
    fn find<W: Wanted<R>>(&self, key: HashedKey<'_, R>) -> Boxed<Option<W::Found<'_>>>;

    /// Returns the value of a key.
    #[inline(always)]
    fn value(&self, key: HashedKey<'_, R>) -> Boxed<Option<R::Owned>> {
        match self.find_fast::<Value>(key) {
            Some(found) => Ok(found),
            None => self.find::<Value>(key),
        }
    }

    /// Begins a batch of lookups.
    fn begin_batch(&self) -> Self::Batch<'_>;

    /// Prefetches the metadata that tell where a key is, or what leads to them.
    fn stage_metadata<'b>(
        &'b self,
        batch: &'b Self::Batch<'_>,
        key: HashedKey<'_, R>,
    ) -> Result<Self::Staged<'b>>;

    /// In an index with inner nodes, prefetches the part of a node that a search for the key ends
    /// in.
    #[inline(always)]
    fn stage_node<'b>(&'b self, _staged: &mut Self::Staged<'b>, _key: HashedKey<'_, R>) {}

    /// In an index with inner nodes, searches the node, and prefetches the metadata that tell where
    /// the key is.
    #[inline(always)]
    fn stage_leaf<'b>(&'b self, _staged: &mut Self::Staged<'b>, _key: HashedKey<'_, R>) {}

    /// Prefetches the slots that can hold a key, using what the previous stage has prefetched.
    fn stage_slots<'b>(&'b self, staged: &mut Self::Staged<'b>, key: HashedKey<'_, R>);

    /// Prefetches the record that a slot links to.
    #[inline(always)]
    fn stage_record<'b>(&'b self, _staged: &mut Self::Staged<'b>, _key: HashedKey<'_, R>) {}

    /// Returns the value of a key whose stages are done.
    #[inline(always)]
    fn find_staged<'b>(
        &'b self,
        _batch: &'b Self::Batch<'_>,
        _staged: Self::Staged<'b>,
        key: HashedKey<'_, R>,
    ) -> Boxed<Option<R::Owned>> {
        self.value(key)
    }
}

/// Walks over a whole index.
pub(crate) trait Walk<S: Seam, R: Record>: Table<S, R> {
    /// Does one step of an iteration. See [`Index::scan`](crate::index::Index::scan).
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()>;

    /// Does one step of the trace. See [`Index::trace`](crate::index::Index::trace). The caller has
    /// passed the gate, or holds it.
    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()>;

    /// Returns statistics. The number of records is extrapolated from a part of the index.
    fn stats(&self) -> Result<IndexStats>;
}

/// The check of a whole index at rest.
pub(crate) trait Verify<S: Seam, R: Record>: Walk<S, R> {
    /// Checks every structure and record. The caller holds the gate, so nothing else runs.
    fn verify(&self, visit: &mut Visitor<'_>, schemas: Schemas<R>) -> Result<Verified>;
}
