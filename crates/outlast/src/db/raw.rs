//! Maps whose types are not known at compile time, for tools.

mod iter;

pub(crate) use iter::FormRecord;
pub use iter::{RawIter, RawRange};

use super::open_map::{Form, OpenMap, bytes_of, check_types, word};
use super::opened::Guarded;
use super::roots::MapInfo;
use crate::error::{Error, Result};
use crate::index::record::RecordRef;
use crate::index::{
    Bytes, Care, Change, Changed, Cursor, Growth, Index, IndexStats, Inline, Previous, Record,
    RecordForm,
};
use crate::pool::core::root_offset;
use std::ops::Bound;
use std::sync::Arc;

/// A map seen as bytes, whatever its types. Keys and values are the bytes that
/// [`Value::with_bytes`](crate::Value::with_bytes) gives; an inline word is given as its 8
/// little-endian bytes.
///
/// Clones are handles to the same map.
#[derive(Clone)]
pub struct RawMap {
    pub(crate) map: Arc<OpenMap>,
    /// Keeps the pool open.
    pub(crate) pool: Arc<Guarded>,
}

impl RawMap {
    /// The map's description in its root.
    pub fn info(&self) -> &MapInfo {
        self.map.info()
    }

    /// Returns the offset of the map's root in the pool.
    pub(crate) fn root(&self) -> u64 {
        root_offset(self.map.slot).raw()
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(match self.map.form()? {
            Form::Inline(index) => index.get(word(key, "key")?)?.map(bytes_of),
            Form::Bytes(index) => index.get(key)?,
        })
    }

    /// Returns whether the map has a value for `key`.
    pub fn contains_key(&self, key: &[u8]) -> Result<bool> {
        Ok(match self.map.form()? {
            Form::Inline(index) => index.contains(word(key, "key")?),
            Form::Bytes(index) => index.contains(key),
        }?)
    }

    /// Returns a reference to the value of `key`.
    pub fn get_ref(&self, key: &[u8]) -> Result<Option<RecordRef<'_>>> {
        Ok(match self.map.form()? {
            Form::Inline(index) => index.get_ref(word(key, "key")?),
            Form::Bytes(index) => index.get_ref(key),
        }?)
    }

    /// Inserts `value` if `key` is absent. Returns whether it inserted.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.change(key, Some(value), Kind::Insert, false)?.0)
    }

    /// Inserts `value`, or replaces the value of `key`. Returns the previous value.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.change(key, Some(value), Kind::Put, true)?.1)
    }

    /// Does what [`put`](RawMap::put) does, and does not copy the previous value.
    #[doc(hidden)]
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.change(key, Some(value), Kind::Put, false).map(drop)
    }

    /// Replaces the value of `key` if it is present. Returns whether it did.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.change(key, Some(value), Kind::Update, false)?.0)
    }

    /// Removes `key` if it is present. Returns the previous value.
    pub fn remove(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.change(key, None, Kind::Remove, true)?.1)
    }

    /// Removes `key` if it is present, without copying its value. Returns whether it was.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let texts = pool.raw_map_with("texts", "str", "str", &outlast::MapOptions::new())?;
    /// texts.insert(b"key", b"value")?;
    /// assert!(texts.delete(b"key")?);
    /// assert!(!texts.delete(b"key")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        Ok(self.change(key, None, Kind::Remove, false)?.0)
    }

    /// Replaces the value of `key` if its bytes are `expected`. Returns whether it did.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// pool.map::<str, [u8]>("owners")?.insert("printer", b"Ada")?;
    /// let owners = pool.raw_map("owners")?;
    /// assert!(owners.compare_swap(b"printer", b"Ada", b"Bob")?);
    /// assert!(!owners.compare_swap(b"printer", b"Ada", b"Eve")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert`](RawMap::insert).
    pub fn compare_swap(&self, key: &[u8], expected: &[u8], new: &[u8]) -> Result<bool> {
        self.compare_change(key, expected, Some(new))
    }

    /// Removes `key` if the bytes of its value are `expected`. Returns whether it did.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// pool.map::<u64, u64>("locks")?.insert(&1, &17)?;
    /// let locks = pool.raw_map("locks")?;
    /// let word = |number: u64| number.to_le_bytes();
    /// assert!(!locks.compare_remove(&word(1), &word(18))?);
    /// assert!(locks.compare_remove(&word(1), &word(17))?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`delete`](RawMap::delete).
    pub fn compare_remove(&self, key: &[u8], expected: &[u8]) -> Result<bool> {
        self.compare_change(key, expected, None)
    }

    /// Removes the records that are present throughout the call; see
    /// [`Map::clear`](crate::Map::clear). Returns how many it removed.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let texts = pool.raw_map_with("texts", "str", "str", &outlast::MapOptions::new())?;
    /// texts.insert(b"key", b"value")?;
    /// assert_eq!((texts.len()?, texts.is_empty()?), (1, false));
    /// assert_eq!(texts.clear()?, 1);
    /// assert_eq!((texts.len()?, texts.is_empty()?), (0, true));
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&self) -> Result<u64> {
        let (mut cursor, mut removed) = (Cursor::with_care(Care::Keys), 0);
        while !cursor.is_done() {
            removed += match self.map.form()? {
                Form::Inline(index) => clear_part(index, &mut cursor)?,
                Form::Bytes(index) => clear_part(index, &mut cursor)?,
            };
        }
        Ok(removed)
    }

    fn change(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        kind: Kind,
        want_before: bool,
    ) -> Result<(bool, Option<Vec<u8>>)> {
        Ok(match self.map.form()? {
            Form::Inline(index) => {
                let key = word(key, "key")?;
                let value = value.map(|value| word(value, "value")).transpose()?;
                let done =
                    self.change_in(index, key, value, kind.of(value.unwrap_or(0)), want_before)?;
                (done.applied, done.before.map(bytes_of))
            }
            Form::Bytes(index) => {
                let change = kind.of(value.unwrap_or_default());
                let done = self.change_in(index, key, value, change, want_before)?;
                (done.applied, done.before)
            }
        })
    }

    /// Replaces the value of `key`, or removes it, if its bytes are `expected`. Returns whether they are.
    fn compare_change(&self, key: &[u8], expected: &[u8], new: Option<&[u8]>) -> Result<bool> {
        let done = match self.map.form()? {
            Form::Inline(index) => {
                let (key, expected) = (word(key, "key")?, word(expected, "value")?);
                let new = new.map(|new| word(new, "value")).transpose()?;
                let change = compare::<Inline>(expected, new);
                self.change_in(index, key, new, change, false)?.applied
            }
            Form::Bytes(index) => {
                let change = compare::<Bytes>(expected, new);
                self.change_in(index, key, new, change, false)?.applied
            }
        };
        Ok(done)
    }

    /// Makes a change, if the map's schemas allow the key and the new value.
    fn change_in<R: Record>(
        &self,
        index: &dyn Index<R>,
        key: R::Key<'_>,
        value: Option<R::Value<'_>>,
        change: Change<'_, R>,
        want_before: bool,
    ) -> Result<Changed<R>> {
        check_types::<R>(self.info(), key, value)?;
        Ok(index.change(key, change, Previous::when(want_before))?)
    }

    /// Iterates over all records, with the guarantees of [`Map::iter`](crate::Map::iter).
    pub fn iter(&self) -> RawIter {
        RawIter::new(self.clone(), Care::Trust)
    }

    /// Like [`iter`](RawMap::iter), but reads no values. What it returns as values is unspecified.
    pub(crate) fn iter_keys(&self) -> RawIter {
        RawIter::new(self.clone(), Care::Keys)
    }

    /// Iterates over all records that can be read, with the guarantees of
    /// [`Map::salvage`](crate::Map::salvage).
    pub fn salvage(&self) -> RawIter {
        RawIter::new(self.clone(), Care::Salvage)
    }

    /// Iterates over the records of an ordered map whose keys lie between `low` and `high`, from
    /// either end, with the guarantees of [`OrderedMap::range`](crate::OrderedMap::range).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the map's scheme keeps no key order, or if a bound of an inline map is
    /// not 8 bytes long.
    pub fn range(&self, low: Bound<&[u8]>, high: Bound<&[u8]>) -> Result<RawRange> {
        if !self.info().scheme().is_ordered() {
            let why = format!("{} keeps no key order", self.info().scheme());
            return Err(Error::Invalid { what: "range", why });
        }
        let words = |bound: Bound<&[u8]>| {
            Ok::<_, Error>(match bound {
                Bound::Included(key) => Bound::Included(word(key, "key")?),
                Bound::Excluded(key) => Bound::Excluded(word(key, "key")?),
                Bound::Unbounded => Bound::Unbounded,
            })
        };
        Ok(match self.info().form {
            RecordForm::Inline => self.range_of_words(words(low)?, words(high)?),
            RecordForm::Bytes => self.range_of_bytes(low, high),
        })
    }

    /// Like [`range`](RawMap::range), for an ordered map whose keys are byte strings, stored in
    /// blocks.
    pub(crate) fn range_of_bytes(&self, low: Bound<&[u8]>, high: Bound<&[u8]>) -> RawRange {
        RawRange::of_bytes(self.clone(), low, high)
    }

    /// Like [`range`](RawMap::range), for an ordered map whose keys are inline words.
    pub(crate) fn range_of_words(&self, low: Bound<u64>, high: Bound<u64>) -> RawRange {
        RawRange::of_words(self.clone(), low, high)
    }

    /// Counts the records; see [`Map::len`](crate::Map::len).
    pub fn len(&self) -> Result<u64> {
        self.count_until(u64::MAX)
    }

    /// Returns whether the map has no records; see [`Map::is_empty`](crate::Map::is_empty).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.count_until(1)? == 0)
    }

    /// Counts records until there are `enough`.
    fn count_until(&self, enough: u64) -> Result<u64> {
        let (mut cursor, mut count) = (Cursor::with_care(Care::Keys), 0);
        while !cursor.is_done() && count < enough {
            count += match self.map.form()? {
                Form::Inline(index) => count_part(index, &mut cursor)?,
                Form::Bytes(index) => count_part(index, &mut cursor)?,
            };
        }
        Ok(count)
    }

    /// Estimates the number of records. Exact for small maps at rest.
    pub fn len_estimate(&self) -> Result<u64> {
        match self.map.form()? {
            Form::Inline(index) => index.len_estimate(),
            Form::Bytes(index) => index.len_estimate(),
        }
    }

    /// Returns the index's statistics.
    pub fn stats(&self) -> Result<IndexStats> {
        match self.map.form()? {
            Form::Inline(index) => index.stats(),
            Form::Bytes(index) => index.stats(),
        }
    }

    /// Returns how often the index has grown since opening. Costs two loads.
    #[doc(hidden)]
    pub fn growth(&self) -> Result<Growth> {
        Ok(match self.map.form()? {
            Form::Inline(index) => index.growth(),
            Form::Bytes(index) => index.growth(),
        })
    }
}

/// Counts the records of one step of an iteration.
fn count_part<R: Record>(index: &dyn Index<R>, cursor: &mut Cursor) -> Result<u64> {
    let mut records = Vec::new();
    index.scan(cursor, &mut records)?;
    Ok(records.len() as u64)
}

/// Removes the records of one step of an iteration. Returns how many.
fn clear_part<R: Record>(index: &dyn Index<R>, cursor: &mut Cursor) -> Result<u64> {
    let (mut records, mut removed) = (Vec::new(), 0);
    index.scan(cursor, &mut records)?;
    for (key, _) in &records {
        let done = index.change(R::key_of(key), Change::Remove, Previous::UNWANTED)?;
        removed += u64::from(done.applied);
    }
    Ok(removed)
}

fn compare<'v, R: Record>(expected: R::Value<'v>, new: Option<R::Value<'v>>) -> Change<'v, R> {
    match new {
        Some(new) => Change::Swap { expected, new },
        None => Change::CompareRemove(expected),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Insert,
    Put,
    Update,
    Remove,
}

impl Kind {
    fn of<R: Record>(self, value: R::Value<'_>) -> Change<'_, R> {
        match self {
            Kind::Insert => Change::Insert(value),
            Kind::Put => Change::Put(value),
            Kind::Update => Change::Update(value),
            Kind::Remove => Change::Remove,
        }
    }
}
