//! What a scheme supplies: its parts, a trait each, for the file that has the part.

use crate::error::Result;
use crate::index::record::{Record, RecordRef};
use crate::index::{Cursor, Growth, IndexStats, OrderedIndex, Scheme, Verified, Visitor};
use crate::pmem::Seam;
use crate::pool::core::Core;
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

    /// A key as a table keeps it.
    #[inline(always)]
    pub(crate) fn of<'l: 'k, S: Seam>(
        table: &impl Table<S, R>,
        key: R::Key<'l>,
        space: &'k mut [u8; 8],
    ) -> Self {
        HashedKey::new(table.core(), table.encode(key, space))
    }
}

/// An index as the kit runs it.
pub(crate) trait Table<S: Seam, R: Record>: Send + Sync {
    /// Which scheme this is.
    const SCHEME: Scheme;

    /// The pool that it lies in.
    fn core(&self) -> &Arc<Core<S>>;

    /// A key in the form in which it is kept, which may need some space.
    #[inline(always)]
    fn encode<'s, 'k: 's>(&self, key: R::Key<'k>, _space: &'s mut [u8; 8]) -> R::Key<'s> {
        R::reborrow(key)
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
}

/// Lookups of keys. A lookup of many takes the stages of all of them one after the other, so
/// that the cache lines that one key needs are on their way while the others' are prefetched.
pub(crate) trait Lookup<S: Seam, R: Record>: Table<S, R> {
    /// What the lookups of a batch have in common: a guard, as a rule.
    type Batch<'t>
    where
        Self: 't;
    /// What the stages of one lookup hand on.
    type Staged<'b>
    where
        Self: 'b;

    /// The value of a key.
    fn find_value(&self, key: HashedKey<'_, R>) -> Result<Option<R::Owned>>;

    /// The value of a key, as a reference that keeps its block from being reused.
    fn find_reference(&self, key: HashedKey<'_, R>) -> Result<Option<RecordRef>>;

    /// Begins a batch of lookups.
    fn begin_batch(&self) -> Self::Batch<'_>;

    /// Prefetches what tells where a key is.
    fn stage_metadata<'b>(
        &'b self,
        batch: &'b Self::Batch<'_>,
        key: HashedKey<'_, R>,
    ) -> Result<Self::Staged<'b>>;

    /// Prefetches the slots that can hold a key, by what the stage before has prefetched.
    fn stage_slots<'b>(&'b self, staged: &mut Self::Staged<'b>, hash: u64);

    /// Prefetches the record that a slot leads to.
    #[inline(always)]
    fn stage_record<'b>(&'b self, _staged: &mut Self::Staged<'b>, _hash: u64) {}

    /// The value of a key, after its stages.
    fn find_staged<'b>(
        &'b self,
        batch: &'b Self::Batch<'_>,
        staged: Self::Staged<'b>,
        key: HashedKey<'_, R>,
    ) -> Result<Option<R::Owned>>;
}

/// Walks over all of it.
pub(crate) trait Walk<S: Seam, R: Record>: Table<S, R> {
    /// One step of an iteration. See [`Index::scan`](crate::index::Index::scan).
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()>;

    /// One step of the trace. See [`Index::trace`](crate::index::Index::trace). The caller has
    /// passed the gate, or holds it.
    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()>;

    /// Figures; records are counted in a part of it.
    fn stats(&self) -> Result<IndexStats>;
}

/// The offline check.
pub(crate) trait Verify<S: Seam, R: Record>: Walk<S, R> {
    /// Checks every structure and record. The caller holds the gate: nothing else runs.
    fn verify(&self, visit: &mut Visitor<'_>) -> Result<Verified>;
}
