//! Operations on many keys.

use super::{Map, Store};
use crate::db::raw::Form;
use crate::error::Result;
use crate::index::record::Record;
use crate::index::{BATCH, Change, Changed};
use crate::map::types::{Key, Value};

/// The byte strings of up to [`BATCH`] keys or values, one after another in one buffer.
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
    ends: [usize; BATCH],
}

impl Strings {
    /// Encodes up to [`BATCH`] keys or values. Returns the encodings and their number.
    fn fill<'v, V: Value + ?Sized + 'v>(
        &mut self,
        values: impl Iterator<Item = &'v V>,
    ) -> ([&[u8]; BATCH], usize) {
        self.bytes.clear();
        let mut count = 0;
        for (value, end) in values.zip(&mut self.ends) {
            value.with_bytes(|bytes| self.bytes.extend_from_slice(bytes));
            *end = self.bytes.len();
            count += 1;
        }
        let mut parts: [&[u8]; BATCH] = [&[]; BATCH];
        let mut start = 0;
        for (part, &end) in parts.iter_mut().zip(&self.ends[..count]) {
            *part = &self.bytes[start..end];
            start = end;
        }
        (parts, count)
    }
}

/// Encodes up to [`BATCH`] keys as words. Returns the words and their number.
fn words<'k, K: Key + ?Sized + 'k>(keys: impl Iterator<Item = &'k K>) -> ([u64; BATCH], usize) {
    let (mut words, mut count) = ([0; BATCH], 0);
    for (key, word) in keys.zip(&mut words) {
        *word = key.to_word();
        count += 1;
    }
    (words, count)
}

impl<K: Key + ?Sized, V: Value + ?Sized> Map<K, V> {
    /// Returns the values of many keys, in the order of `keys`. The memory accesses for different
    /// keys overlap. If the map is larger than the caches, this is several times faster than
    /// separate calls of `get`.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// assert_eq!(ages.get_many(&["Ada", "Bob"])?, [Some(36), None]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`get`](Map::get).
    pub fn get_many(&self, keys: &[&K]) -> Result<Vec<Option<V::Owned>>> {
        let mut values = Vec::with_capacity(keys.len());
        match self.raw.map.form()? {
            Form::Inline(index) => {
                for keys in keys.chunks(BATCH) {
                    let (words, count) = words(keys.iter().copied());
                    let mut found = [None; BATCH];
                    index.get_many(&words[..count], &mut found[..count])?;
                    for word in &found[..count] {
                        values.push(word.map(|word| self.word(word)).transpose()?);
                    }
                }
            }
            Form::Bytes(index) => {
                let mut strings = Strings::default();
                for keys in keys.chunks(BATCH) {
                    let (parts, count) = strings.fill(keys.iter().copied());
                    let mut found = [const { None }; BATCH];
                    index.get_many(&parts[..count], &mut found[..count])?;
                    for value in &mut found[..count] {
                        values.push(value.take().map(|value| self.bytes(value)).transpose()?);
                    }
                }
            }
        }
        Ok(values)
    }

    /// Inserts those records whose keys are absent, one after another, as [`insert`](Map::insert)
    /// does. Returns for each record whether it was inserted. The memory accesses for different
    /// keys overlap, and in Dash-EH and Dash-LH, 16 records share one fence, so this is faster than
    /// separate calls.
    ///
    /// Each insert is atomic, and all are durable when this returns. There is no atomicity across the
    /// records: a crash meanwhile can keep any of the 16 that were under way, and not only the first
    /// ones.
    ///
    /// ```
    /// # use outlast::PoolOptions;
    /// # fn main() -> outlast::Result<()> {
    /// let pool = PoolOptions::new().anonymous()?;
    /// let squares = pool.map::<u64, u64>("squares")?;
    /// assert_eq!(squares.insert_many(&[(&2, &4), (&3, &9), (&2, &5)])?, [true, true, false]);
    /// assert_eq!(squares.get(&2)?, Some(4));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert`](Map::insert). If a record fails, those before it have been processed,
    /// and those after it have not.
    pub fn insert_many(&self, records: &[(&K, &V)]) -> Result<Vec<bool>> {
        self.store_many(records, Store::Insert)
    }

    /// Inserts many records or replaces their values, one after another, as [`put`](Map::put) does.
    /// Returns for each record whether its key was present. See [`insert_many`](Map::insert_many).
    ///
    /// ```
    /// # use outlast::PoolOptions;
    /// # fn main() -> outlast::Result<()> {
    /// let pool = PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// assert_eq!(ages.put_many(&[("Ada", &36), ("Ada", &37)])?, [false, true]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert_many`](Map::insert_many).
    pub fn put_many(&self, records: &[(&K, &V)]) -> Result<Vec<bool>> {
        self.store_many(records, Store::Put)
    }

    /// Replaces the values of those keys that are present, one after another, as
    /// [`update`](Map::update) does. Returns for each key whether it was present. See
    /// [`insert_many`](Map::insert_many).
    ///
    /// ```
    /// # use outlast::PoolOptions;
    /// # fn main() -> outlast::Result<()> {
    /// let pool = PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// assert_eq!(ages.update_many(&[("Ada", &37), ("Bob", &40)])?, [true, false]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert_many`](Map::insert_many).
    pub fn update_many(&self, records: &[(&K, &V)]) -> Result<Vec<bool>> {
        self.store_many(records, Store::Update)
    }

    /// Removes many keys, one after another. Returns for each key whether it was present. Unlike
    /// [`remove`](Map::remove), this does not copy the values. See
    /// [`insert_many`](Map::insert_many).
    ///
    /// ```
    /// # use outlast::PoolOptions;
    /// # fn main() -> outlast::Result<()> {
    /// let pool = PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// assert_eq!(ages.remove_many(&["Ada", "Ada"])?, [true, false]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`remove`](Map::remove). If a key fails, those before it have been removed, and
    /// those after it have not.
    pub fn remove_many(&self, keys: &[&K]) -> Result<Vec<bool>> {
        let applied = |(applied, _)| applied;
        match self.raw.map.form()? {
            Form::Inline(index) => in_rows(keys, applied, |keys, done| {
                let (keys, count) = words(keys.iter().copied());
                index.change_many(&keys[..count], &[const { Change::Remove }; BATCH][..count], done)
            }),
            Form::Bytes(index) => {
                let mut strings = Strings::default();
                in_rows(keys, applied, |keys, done| {
                    let (keys, count) = strings.fill(keys.iter().copied());
                    let changes = [const { Change::Remove }; BATCH];
                    index.change_many(&keys[..count], &changes[..count], done)
                })
            }
        }
    }

    fn store_many(&self, records: &[(&K, &V)], how: Store) -> Result<Vec<bool>> {
        let result = |done: (bool, bool)| if matches!(how, Store::Put) { done.1 } else { done.0 };
        match self.raw.map.form()? {
            Form::Inline(index) => in_rows(records, result, |records, done| {
                let (keys, count) = words(records.iter().map(|&(key, _)| key));
                let changes = records.iter().map(|(_, value)| how.change(value.to_word()));
                index.change_many(&keys[..count], &changes.collect::<Vec<_>>(), done)
            }),
            Form::Bytes(index) => {
                let (mut keys, mut values) = (Strings::default(), Strings::default());
                in_rows(records, result, |records, done| {
                    let (keys, count) = keys.fill(records.iter().map(|&(key, _)| key));
                    let (values, _) = values.fill(records.iter().map(|&(_, value)| value));
                    let changes = values[..count].iter().map(|value| how.change(*value));
                    index.change_many(&keys[..count], &changes.collect::<Vec<_>>(), done)
                })
            }
        }
    }
}

/// Calls `change` with [`BATCH`] items at a time, and returns the results. `result` gets whether a
/// change was applied, and whether its key was present.
fn in_rows<T, R: Record>(
    items: &[T],
    result: impl Fn((bool, bool)) -> bool,
    mut change: impl FnMut(&[T], &mut Vec<Changed<R>>) -> Result<()>,
) -> Result<Vec<bool>> {
    let mut results = Vec::with_capacity(items.len());
    let mut done = Vec::with_capacity(BATCH);
    for items in items.chunks(BATCH) {
        change(items, &mut done)?;
        results.extend(done.drain(..).map(|done| result((done.applied, done.present))));
    }
    Ok(results)
}
