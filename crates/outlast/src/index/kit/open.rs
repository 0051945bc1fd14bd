//! Guards the reads of an index against the closing of its pool.

use super::change::{self, Update};
use super::lookup;
use super::table::{HashedKey, Lookup, Presence, Reference, Value, Verify, Wanted};
use crate::error::{Boxed, Result};
use crate::index::record::{Record, RecordRef};
use crate::index::{
    Change, Changed, Cursor, EvictingIndex, Growth, Index, IndexStats, KeyRange, OrderedIndex,
    Previous, Schemas, Scheme, Verified, Visitor,
};
use crate::pmem::Seam;
use crate::pool::core::Core;
use std::sync::Arc;

/// An index whose reads fail with [`NotOpen`](crate::Error::NotOpen) once its pool is closed.
///
/// `close` waits for changes, but not for reads. As soon as it returns, another process can open
/// the file and reuse a block that a read is still copying. So each read checks the gate *after* it
/// has read. If the pool was still open, the result is good. Otherwise the result is thrown away,
/// even if it is an error. Changes, the trace and background work run inside the gate, so `close`
/// waits for them.
pub struct WhileOpen<S: Seam, R: Record, T> {
    core: Arc<Core<S>>,
    table: T,
    schemas: Schemas<R>,
}

impl<S: Seam, R: Record, T> WhileOpen<S, R, T> {
    /// Wraps `table`, which lies in the pool of `core`.
    pub fn new(core: Arc<Core<S>>, table: T, schemas: Schemas<R>) -> Self {
        WhileOpen { core, table, schemas }
    }

    /// Finds a key, by the table's hot path if that applies.
    ///
    /// The two paths end apart. If they had one end, the result would be put together in memory and
    /// then copied, and a copy of words that were just stored has to wait for them.
    #[inline(always)]
    fn find<W: Wanted<R>>(&self, key: R::Key<'_>) -> Boxed<Option<W::Found<'_>>>
    where
        T: Lookup<S, R>,
    {
        R::check_size(key, None)?;
        let mut space = [0; 8];
        let key = HashedKey::of(&self.table, key, &mut space);
        match self.core.while_open_fast(|| self.table.find_fast::<W>(key)) {
            Some(found) => Ok(found),
            None => self.core.while_open(|| self.table.find::<W>(key)),
        }
    }
}

impl<S: Seam, R: Record, T> Index<R> for WhileOpen<S, R, T>
where
    T: Lookup<S, R> + Update<S, R> + Verify<S, R>,
{
    fn scheme(&self) -> Scheme {
        T::SCHEME
    }

    #[inline]
    fn get(&self, key: R::Key<'_>) -> Boxed<Option<R::Owned>> {
        self.find::<Value>(key)
    }

    fn contains(&self, key: R::Key<'_>) -> Boxed<bool> {
        Ok(self.find::<Presence>(key)?.is_some())
    }

    fn get_ref(&self, key: R::Key<'_>) -> Boxed<Option<RecordRef<'_>>> {
        self.find::<Reference>(key)
    }

    fn get_many(&self, keys: &[R::Key<'_>], found: &mut [Option<R::Owned>]) -> Result<()> {
        self.core.while_open(|| lookup::get_many(&self.table, keys, found))
    }

    fn record_bytes(&self, key: R::Key<'_>, value: R::Value<'_>) -> u64 {
        self.table.record_bytes(key, value)
    }

    fn change(
        &self,
        key: R::Key<'_>,
        change: Change<'_, R>,
        before: Previous<R>,
    ) -> Boxed<Changed<R>> {
        change::change(&self.table, key, change, before)
    }

    fn change_many(
        &self,
        keys: &[R::Key<'_>],
        changes: &[Change<'_, R>],
        done: &mut Vec<Changed<R>>,
    ) -> Result<()> {
        change::change_many(&self.table, keys, changes, done)
    }

    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        self.core.while_open(|| self.table.scan(cursor, out))
    }

    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        self.table.trace(cursor, visit)
    }

    fn has_work(&self) -> bool {
        self.table.has_work()
    }

    fn step(&self) -> Result<bool> {
        self.table.step()
    }

    fn use_huge_pages(&self) {
        self.table.use_huge_pages();
    }

    fn len_estimate(&self) -> Result<u64> {
        Ok(self.stats()?.records_estimate)
    }

    fn stats(&self) -> Result<IndexStats> {
        self.core.while_open(|| self.table.stats())
    }

    fn growth(&self) -> Growth {
        self.table.growth()
    }

    fn verify(&self, visit: &mut Visitor<'_>) -> Result<Verified> {
        self.table.verify(visit, self.schemas)
    }

    fn ordered(&self) -> Option<&dyn OrderedIndex<R>> {
        self.table.ordered().is_some().then_some(self as _)
    }

    fn evicting(&self) -> Option<&dyn EvictingIndex<R>> {
        self.table.evicting()
    }
}

impl<S: Seam, R: Record, T> OrderedIndex<R> for WhileOpen<S, R, T>
where
    T: Lookup<S, R> + Update<S, R> + Verify<S, R>,
{
    fn next(
        &self,
        range: &mut KeyRange<R>,
        reverse: bool,
        limit: usize,
        out: &mut Vec<(R::OwnedKey, R::Owned)>,
    ) -> Result<()> {
        let order = self.table.ordered().expect("asked for by `ordered` alone");
        self.core.while_open(|| order.next(range, reverse, limit, out))
    }

    fn end(&self, range: KeyRange<R>, reverse: bool) -> Result<Option<(R::OwnedKey, R::Owned)>> {
        let order = self.table.ordered().expect("asked for by `ordered` alone");
        self.core.while_open(|| order.end(range, reverse))
    }
}
