//! What a scheme supplies: its parts, a trait each, for the file that has the part.

use crate::error::Result;
use crate::index::record::{Record, RecordRef};
use crate::index::{
    Change, Changed, Cursor, Growth, IndexStats, OrderedIndex, Scheme, Verified, Visitor,
};
use crate::pmem::Seam;
use crate::pool::core::Core;
use std::sync::Arc;

/// An index as the kit runs it.
pub(crate) trait Table<S: Seam, R: Record>: Send + Sync {
    /// Which scheme this is.
    const SCHEME: Scheme;

    /// The pool that it lies in.
    fn core(&self) -> &Arc<Core<S>>;

    /// Shows a key in the form in which it is kept.
    #[inline(always)]
    fn encoded<T>(&self, key: R::Key<'_>, with: impl FnOnce(R::Key<'_>) -> T) -> T {
        with(key)
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
    fn find_value(&self, key: R::Key<'_>, hash: u64) -> Result<Option<R::Owned>>;

    /// The value of a key, as a reference that keeps its block from being reused.
    fn find_reference(&self, key: R::Key<'_>, hash: u64) -> Result<Option<RecordRef>>;

    /// Begins a batch of lookups.
    fn begin_batch(&self) -> Self::Batch<'_>;

    /// Prefetches what tells where a key is.
    fn stage_metadata<'b>(
        &'b self,
        batch: &'b Self::Batch<'_>,
        key: R::Key<'_>,
        hash: u64,
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
        key: R::Key<'_>,
        hash: u64,
    ) -> Result<Option<R::Owned>>;
}

/// Changes of one key.
pub(crate) trait Update<S: Seam, R: Record>: Table<S, R> {
    /// See [`Index::change`](crate::index::Index::change).
    fn change(
        &self,
        key: R::Key<'_>,
        change: Change<'_, R>,
        want_before: bool,
    ) -> Result<Changed<R>>;
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
