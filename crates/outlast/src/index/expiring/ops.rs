//! The interface of an index whose records expire.

use super::{EXPIRED_FOUND, Expiring, ExpiringIndex, check_new, join, strip};
use crate::error::{Boxed, Result};
use crate::index::record::RecordRef;
use crate::index::{
    Bytes, Care, Change, Changed, Cursor, Growth, Index, IndexStats, KeyRange, OrderedIndex,
    Previous, Scheme, Verified, Visitor,
};
use crate::pmem::Seam;
use crate::pool::clock::NEVER;
use crate::pool::layout::TIME_BYTES;
use std::ops::Bound;

impl<S: Seam> Index<Bytes> for Expiring<S> {
    fn scheme(&self) -> Scheme {
        self.stored.scheme()
    }

    fn get(&self, key: &[u8]) -> Boxed<Option<Vec<u8>>> {
        Ok(self.read(key)?.map(strip))
    }

    fn contains(&self, key: &[u8]) -> Boxed<bool> {
        Ok(self.get_ref(key)?.is_some())
    }

    fn get_ref(&self, key: &[u8]) -> Boxed<Option<RecordRef<'_>>> {
        loop {
            let Some(mut record) = self.stored.get_ref(key)? else { return Ok(None) };
            if record.len() < TIME_BYTES {
                return Err(self.untimed(record.len()).into());
            }
            let mut time = [0; TIME_BYTES];
            record.read_at(0, &mut time)?;
            if !self.has_passed(u64::from_le_bytes(time)) {
                record.skip(TIME_BYTES);
                return Ok(Some(record));
            }
            drop(record);
            if self.read(key)?.is_none() {
                return Ok(None);
            }
        }
    }

    fn get_many(&self, keys: &[&[u8]], found: &mut [Option<Vec<u8>>]) -> Result<()> {
        self.stored.get_many(keys, found)?;
        for (key, found) in keys.iter().zip(found) {
            let Some(stored) = found else { continue };
            let passed = self.has_passed(self.split(stored)?.0);
            *found = if passed && !self.core.memory.seam().seeded(&EXPIRED_FOUND) {
                self.get(key)?
            } else {
                found.take().map(strip)
            };
        }
        Ok(())
    }

    fn record_bytes(&self, key: &[u8], value: &[u8]) -> u64 {
        self.stored.record_bytes(key, &join(NEVER, value))
    }

    fn change(
        &self,
        key: &[u8],
        change: Change<'_, Bytes>,
        before: Previous<Bytes>,
    ) -> Boxed<Changed<Bytes>> {
        self.change_one(key, change, before)
    }

    fn change_many(
        &self,
        keys: &[&[u8]],
        changes: &[Change<'_, Bytes>],
        done: &mut Vec<Changed<Bytes>>,
    ) -> Result<()> {
        let differ = (1..keys.len()).all(|n| !keys[..n].contains(&keys[n]));
        let short = changes.iter().all(|change| check_new(*change).is_ok());
        if differ && short && !self.core.options().read_only {
            return self.change_row(keys, changes, done);
        }
        for (key, change) in keys.iter().zip(changes) {
            done.push(self.change_one(key, *change, Previous::UNWANTED)?);
        }
        Ok(())
    }

    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(Vec<u8>, Vec<u8>)>) -> Result<()> {
        let first = out.len();
        if cursor.care == Care::Keys {
            // The times are in the values.
            cursor.care = Care::Trust;
        }
        self.stored.scan(cursor, out)?;
        self.filter(out, first, cursor.care, cursor.timed, &mut cursor.lost)
    }

    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        self.stored.trace(cursor, visit)
    }

    fn has_work(&self) -> bool {
        self.stored.has_work() || self.is_due()
    }

    fn step(&self) -> Result<bool> {
        let more = self.stored.has_work() && self.stored.step()?;
        Ok((self.is_due() && self.sweep_part()?) | more)
    }

    fn use_huge_pages(&self) {
        self.stored.use_huge_pages();
    }

    fn len_estimate(&self) -> Result<u64> {
        self.stored.len_estimate()
    }

    fn stats(&self) -> Result<IndexStats> {
        self.stored.stats()
    }

    fn growth(&self) -> Growth {
        self.stored.growth()
    }

    fn verify(&self, visit: &mut Visitor<'_>) -> Result<Verified> {
        self.stored.verify(visit)
    }

    fn ordered(&self) -> Option<&dyn OrderedIndex<Bytes>> {
        self.stored.ordered().is_some().then_some(self as _)
    }

    fn expiring(&self) -> Option<&dyn ExpiringIndex> {
        Some(self)
    }
}

impl<S: Seam> OrderedIndex<Bytes> for Expiring<S> {
    fn next(
        &self,
        range: &mut KeyRange<Bytes>,
        reverse: bool,
        limit: usize,
        out: &mut Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<()> {
        let order = self.stored.ordered().expect("asked for by `ordered` alone");
        let first = out.len();
        if range.care == Care::Keys {
            range.care = Care::Trust;
        }
        order.next(range, reverse, limit, out)?;
        self.filter(out, first, range.care, false, &mut range.lost)
    }

    fn end(&self, mut range: KeyRange<Bytes>, reverse: bool) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let order = self.stored.ordered().expect("asked for by `ordered` alone");
        loop {
            let Some((key, stored)) = order.end(range.clone(), reverse)? else { return Ok(None) };
            if !self.has_passed(self.split(&stored)?.0) {
                return Ok(Some((key, strip(stored))));
            }
            self.bury(&key, &stored)?;
            if self.core.options().read_only {
                let bound = if reverse { &mut range.high } else { &mut range.low };
                *bound = Bound::Excluded(key);
            }
        }
    }
}
