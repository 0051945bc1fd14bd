//! An index as long as its pool is open.

use super::record::{Record, RecordRef};
use super::{
    Change, Changed, Cursor, Growth, Index, IndexStats, KeyRange, OrderedIndex, Scheme, Verified,
    Visitor,
};
use crate::error::Result;
use crate::pmem::Seam;
use crate::pool::core::Core;
use std::sync::Arc;

/// An index whose reads fail with [`NotOpen`](crate::Error::NotOpen) once its pool was closed.
///
/// `close` waits for changes, not for reads. As soon as it returns, another process can open the
/// file and reuse a block that a read is still copying. So the gate is looked at *after* each
/// read: what was read while the pool was open is good, and everything else is thrown away,
/// errors included.
pub struct WhileOpen<S: Seam, I> {
    core: Arc<Core<S>>,
    index: I,
}

impl<S: Seam, I> WhileOpen<S, I> {
    /// Guards the reads of `index`, which lies in the pool of `core`.
    pub fn new(core: Arc<Core<S>>, index: I) -> Self {
        WhileOpen { core, index }
    }

    /// What a read finds, if the pool is open still after it.
    #[inline(always)]
    fn read<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        self.core.while_open(read)?
    }
}

impl<S: Seam, R: Record, I: Index<R>> Index<R> for WhileOpen<S, I> {
    fn scheme(&self) -> Scheme {
        self.index.scheme()
    }

    #[inline]
    fn get(&self, key: R::Key<'_>) -> Result<Option<R::Owned>> {
        self.read(|| self.index.get(key))
    }

    fn get_ref(&self, key: R::Key<'_>) -> Result<Option<RecordRef>> {
        self.read(|| self.index.get_ref(key))
    }

    fn get_many(&self, keys: &[R::Key<'_>], found: &mut [Option<R::Owned>]) -> Result<()> {
        self.read(|| self.index.get_many(keys, found))
    }

    fn change(
        &self,
        key: R::Key<'_>,
        change: Change<'_, R>,
        want_before: bool,
    ) -> Result<Changed<R>> {
        // Inside the gate, for which `close` waits.
        self.index.change(key, change, want_before)
    }

    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        self.read(|| self.index.scan(cursor, out))
    }

    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        // The caller has passed the gate, or holds it.
        self.index.trace(cursor, visit)
    }

    fn has_work(&self) -> bool {
        self.index.has_work()
    }

    fn step(&self) -> Result<bool> {
        self.index.step()
    }

    fn use_huge_pages(&self) {
        self.index.use_huge_pages();
    }

    fn len_estimate(&self) -> Result<u64> {
        self.read(|| self.index.len_estimate())
    }

    fn stats(&self) -> Result<IndexStats> {
        self.read(|| self.index.stats())
    }

    fn growth(&self) -> Growth {
        self.index.growth()
    }

    fn verify(&self, visit: &mut Visitor<'_>) -> Result<Verified> {
        self.index.verify(visit)
    }

    fn ordered(&self) -> Option<&dyn OrderedIndex<R>> {
        self.index.ordered().is_some().then_some(self as _)
    }
}

impl<S: Seam, R: Record, I: Index<R>> OrderedIndex<R> for WhileOpen<S, I> {
    fn next(
        &self,
        range: &mut KeyRange<R>,
        reverse: bool,
        limit: usize,
        out: &mut Vec<(R::OwnedKey, R::Owned)>,
    ) -> Result<()> {
        self.read(|| self.order().next(range, reverse, limit, out))
    }

    fn end(&self, range: KeyRange<R>, reverse: bool) -> Result<Option<(R::OwnedKey, R::Owned)>> {
        self.read(|| self.order().end(range, reverse))
    }
}

impl<S: Seam, I> WhileOpen<S, I> {
    fn order<R: Record>(&self) -> &dyn OrderedIndex<R>
    where
        I: Index<R>,
    {
        self.index.ordered().expect("asked for by `ordered` alone")
    }
}
