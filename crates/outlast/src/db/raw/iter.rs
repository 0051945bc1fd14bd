//! Iterating over the records of a map whose types are not known at compile time.

use super::RawMap;
use crate::db::open_map::{Form, bytes_of};
use crate::error::{Damage, Error, Result};
use crate::index::{Bytes, Care, Cursor, Index, Inline, KeyRange, Record};
use std::collections::{HashSet, VecDeque};
use std::ops::Bound;

/// The damage that a walk over records has skipped, with each place listed once.
#[derive(Default)]
struct Lost {
    queue: VecDeque<Damage>,
    /// The offsets of all damage so far.
    seen: HashSet<u64>,
}

impl Lost {
    /// Adds the damage that one step has skipped, except places that are listed already.
    fn add(&mut self, damage: &mut Vec<Damage>) {
        let new = damage.drain(..).filter(|damage| self.seen.insert(damage.offset()));
        self.queue.extend(new);
    }
}

/// An iterator over the records of a [`RawMap`].
pub struct RawIter {
    map: RawMap,
    cursor: Cursor,
    ready: std::vec::IntoIter<(Vec<u8>, Vec<u8>)>,
    lost: Lost,
    /// The error that ends the iteration. It is returned after everything that was read before it.
    failure: Option<Error>,
}

impl Iterator for RawIter {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(record) = self.ready.next() {
                return Some(Ok(record));
            }
            if let Some(damage) = self.lost.queue.pop_front() {
                return Some(Err(damage.into()));
            }
            if let Some(error) = self.failure.take() {
                return Some(Err(error));
            }
            if self.cursor.is_done() {
                return None;
            }
            match self.fill() {
                Ok(records) => self.ready = records.into_iter(),
                Err(error) => {
                    self.finish();
                    self.failure = Some(error);
                }
            }
            self.lost.add(&mut self.cursor.lost);
        }
    }
}

impl RawIter {
    pub(super) fn new(map: RawMap, care: Care) -> RawIter {
        RawIter {
            map,
            cursor: Cursor::with_care(care),
            ready: Vec::new().into_iter(),
            lost: Lost::default(),
            failure: None,
        }
    }

    /// Makes the iterator check every record that it reads, if this is called before the first
    /// record is read. At a record whose checksum does not match, it fails with [`Error::Damaged`]
    /// and ends. Records that are stored in place have no checksum. This does not change an iterator
    /// from [`RawMap::salvage`], which checks all records and goes on after damage.
    #[must_use]
    pub fn checked(mut self) -> Self {
        if self.cursor.care == Care::Trust {
            self.cursor.care = Care::Check;
        }
        self
    }

    /// Makes an iteration of a map whose records expire return values with their times.
    pub(in crate::layers::db) fn set_timed(&mut self) {
        self.cursor.timed = true;
    }

    /// Returns the offset of the map's root in the pool.
    pub(crate) fn root(&self) -> u64 {
        self.map.root()
    }

    /// Ends the iteration.
    pub(crate) fn finish(&mut self) {
        self.cursor.finish();
        self.ready = Vec::new().into_iter();
    }

    fn fill(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        match self.map.map.form()? {
            Form::Inline(index) => {
                let mut records = Vec::new();
                index.scan(&mut self.cursor, &mut records)?;
                Ok(records.into_iter().map(|(k, v)| (bytes_of(k), bytes_of(v))).collect())
            }
            Form::Bytes(index) => {
                let mut records = Vec::new();
                index.scan(&mut self.cursor, &mut records)?;
                Ok(records)
            }
        }
    }
}

/// The state of a range scan: what remains, and what was read but not returned yet.
struct Walk<R: Record> {
    range: KeyRange<R>,
    /// Records read from the front, in order.
    front: VecDeque<(R::OwnedKey, R::Owned)>,
    /// Records read from the back, the greatest first.
    back: VecDeque<(R::OwnedKey, R::Owned)>,
    lost: Lost,
}

/// A record of a range: key and value.
type Walked<R> = (<R as Record>::OwnedKey, <R as Record>::Owned);

impl<R: Record> Walk<R> {
    fn new(low: Bound<R::OwnedKey>, high: Bound<R::OwnedKey>) -> Self {
        let (front, back) = (VecDeque::new(), VecDeque::new());
        Walk { range: KeyRange::new(low, high), front, back, lost: Lost::default() }
    }

    /// Returns the next record from one end. `index` returns the index, and is called only when
    /// more has to be read.
    #[inline]
    fn step<'m>(
        &mut self,
        reverse: bool,
        batch: usize,
        index: impl Fn() -> Result<&'m dyn Index<R>>,
    ) -> Option<Result<Walked<R>>> {
        loop {
            let ready = if reverse { &mut self.back } else { &mut self.front };
            if let Some(record) = ready.pop_front() {
                return Some(Ok(record));
            }
            if let Some(damage) = self.lost.queue.pop_front() {
                return Some(Err(damage.into()));
            }
            if self.range.is_done() {
                // The records read from the other end are all that is left.
                let rest = if reverse { &mut self.front } else { &mut self.back };
                return rest.pop_back().map(Ok);
            }
            if let Err(error) = index().and_then(|index| self.fill(reverse, batch, index)) {
                self.finish();
                return Some(Err(error));
            }
        }
    }

    /// Ends the scan.
    fn finish(&mut self) {
        self.range.finish();
        self.front.clear();
        self.back.clear();
    }

    /// Returns the record at one end of a range from which nothing was read yet.
    fn end(self, reverse: bool, index: &dyn Index<R>) -> Result<Option<Walked<R>>> {
        index.ordered().ok_or_else(unordered)?.end(self.range, reverse)
    }

    /// Reads more records at an end whose buffer is empty.
    fn fill(&mut self, reverse: bool, batch: usize, index: &dyn Index<R>) -> Result<()> {
        let index = index.ordered().ok_or_else(unordered)?;
        let ready = if reverse { &mut self.back } else { &mut self.front };
        // Reuses the buffer.
        let mut records = Vec::from(std::mem::take(ready));
        let read = index.next(&mut self.range, reverse, batch, &mut records);
        *ready = VecDeque::from(records);
        if !self.range.lost.is_empty() {
            self.lost.add(&mut self.range.lost);
        }
        read
    }
}

fn unordered() -> Error {
    Error::Invalid { what: "range", why: "of a map without order".into() }
}

/// A range scan of either record form.
enum FormWalk {
    Inline(Walk<Inline>),
    Bytes(Walk<Bytes>),
}

/// A record in the map's form.
pub(crate) enum FormRecord {
    Inline(u64, u64),
    Bytes(Vec<u8>, Vec<u8>),
}

/// An iterator over a range of records of an ordered map, as bytes.
pub struct RawRange {
    map: RawMap,
    walk: FormWalk,
    batch: usize,
}

impl RawRange {
    pub(super) fn of_bytes(map: RawMap, low: Bound<&[u8]>, high: Bound<&[u8]>) -> RawRange {
        let walk = Walk::new(low.map(<[u8]>::to_vec), high.map(<[u8]>::to_vec));
        Self::new(map, FormWalk::Bytes(walk))
    }

    pub(super) fn of_words(map: RawMap, low: Bound<u64>, high: Bound<u64>) -> RawRange {
        Self::new(map, FormWalk::Inline(Walk::new(low, high)))
    }

    fn new(map: RawMap, walk: FormWalk) -> RawRange {
        RawRange { map, walk, batch: 64 }
    }

    /// Sets how many records are read in one step and buffered. Default: 64.
    #[doc(hidden)]
    #[must_use]
    pub fn with_batch(mut self, records: usize) -> Self {
        self.batch = records.max(1);
        self
    }

    /// Makes the scan check every record that it reads, if this is called before the first record
    /// is read; see [`RawIter::checked`].
    #[must_use]
    pub fn checked(self) -> Self {
        self.with_care(Care::Check)
    }

    /// Makes the scan step over damage, if this is called before the first record is read; see
    /// [`Map::salvage`](crate::Map::salvage).
    #[must_use]
    pub fn salvage(self) -> Self {
        self.with_care(Care::Salvage)
    }

    fn with_care(mut self, care: Care) -> Self {
        match &mut self.walk {
            FormWalk::Inline(walk) => walk.range.care = care,
            FormWalk::Bytes(walk) => walk.range.care = care,
        }
        self
    }

    /// Returns the record at one end of a range from which nothing was read yet.
    pub(crate) fn end(self, reverse: bool) -> Result<Option<FormRecord>> {
        Ok(match (self.map.map.form()?, self.walk) {
            (Form::Inline(index), FormWalk::Inline(walk)) => {
                walk.end(reverse, index)?.map(|(k, v)| FormRecord::Inline(k, v))
            }
            (Form::Bytes(index), FormWalk::Bytes(walk)) => {
                walk.end(reverse, index)?.map(|(k, v)| FormRecord::Bytes(k, v))
            }
            _ => return Err(unordered()),
        })
    }

    /// Returns the offset of the map's root in the pool.
    pub(crate) fn root(&self) -> u64 {
        self.map.root()
    }

    /// Ends the scan.
    pub(crate) fn finish(&mut self) {
        match &mut self.walk {
            FormWalk::Inline(walk) => walk.finish(),
            FormWalk::Bytes(walk) => walk.finish(),
        }
    }

    /// Returns the next record from one end.
    #[inline]
    pub(crate) fn step(&mut self, reverse: bool) -> Option<Result<FormRecord>> {
        let map = &self.map.map;
        let record = match &mut self.walk {
            FormWalk::Inline(walk) => {
                let index = || match map.form()? {
                    Form::Inline(index) => Ok(index),
                    Form::Bytes(_) => Err(unordered()),
                };
                walk.step(reverse, self.batch, index)?.map(|(k, v)| FormRecord::Inline(k, v))
            }
            FormWalk::Bytes(walk) => {
                let index = || match map.form()? {
                    Form::Bytes(index) => Ok(index),
                    Form::Inline(_) => Err(unordered()),
                };
                walk.step(reverse, self.batch, index)?.map(|(k, v)| FormRecord::Bytes(k, v))
            }
        };
        Some(record)
    }

    fn step_by_bytes(&mut self, reverse: bool) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        Some(self.step(reverse)?.map(|record| match record {
            FormRecord::Inline(key, value) => (bytes_of(key), bytes_of(value)),
            FormRecord::Bytes(key, value) => (key, value),
        }))
    }
}

impl Iterator for RawRange {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step_by_bytes(false)
    }
}

impl DoubleEndedIterator for RawRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step_by_bytes(true)
    }
}
