//! Operations on many keys.

use super::typed::{Map, Store};
use super::types::{Key, Value};
use crate::db::open_map::Form;
use crate::error::Result;
use crate::index::record::Record;
use crate::index::{BATCH, Change, Index};
use std::borrow::Borrow;

/// The most bytes of the keys and values of one row, unless it is a row of one.
const ROW_BYTES: usize = 64 << 10;

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

/// Passes items on, some at a time. Returns for how many of them the result is `true`.
fn in_parts<T>(
    items: impl IntoIterator<Item = T>,
    mut pass: impl FnMut(&[T]) -> Result<Vec<bool>>,
) -> Result<u64> {
    const PART: usize = 4 * BATCH;
    let (mut items, mut part, mut count) = (items.into_iter(), Vec::with_capacity(PART), 0);
    loop {
        part.extend(items.by_ref().take(PART));
        if part.is_empty() {
            return Ok(count);
        }
        count += pass(&part)?.into_iter().filter(|done| *done).count() as u64;
        part.clear();
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
    /// keys overlap, so this is faster than separate calls. Besides, up to 16 records share one fence
    /// in Dash-EH and Dash-LH (two for byte strings), and in PhaST if they are words.
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
        let mut results = Vec::with_capacity(keys.len());
        let mut strings = Strings::default();
        let mut rest = keys;
        while !rest.is_empty() {
            let row;
            (row, rest) = rest.split_at(row_len(rest, |&key| bytes(key)));
            let applied = |(applied, _)| applied;
            results.extend(match self.raw.map.form()? {
                Form::Inline(index) => {
                    let (keys, count) = words(row.iter().copied());
                    let changes = [const { Change::Remove }; BATCH];
                    change_row(index, &keys[..count], &changes[..count], applied)
                }
                // A long key is not copied.
                Form::Bytes(index) if row.len() == 1 => {
                    row[0].with_bytes(|key| change_row(index, &[key], &[Change::Remove], applied))
                }
                Form::Bytes(index) => {
                    let (keys, count) = strings.fill(row.iter().copied());
                    let changes = [const { Change::Remove }; BATCH];
                    change_row(index, &keys[..count], &changes[..count], applied)
                }
            }?);
        }
        Ok(results)
    }

    /// Inserts the records of an iterator whose keys are absent, as [`insert_many`](Map::insert_many)
    /// does. They can be owned or borrowed. Returns how many were inserted.
    ///
    /// ```
    /// # use outlast::PoolOptions;
    /// # fn main() -> outlast::Result<()> {
    /// let pool = PoolOptions::new().anonymous()?;
    /// let squares = pool.map::<u64, u64>("squares")?;
    /// assert_eq!(squares.insert_all((0..1_000).map(|n| (n, n * n)))?, 1_000);
    /// let names = pool.map::<str, u64>("names")?;
    /// let found = std::collections::HashMap::from([("Ada".to_owned(), 36)]);
    /// assert_eq!(names.insert_all(found)?, 1);
    /// assert_eq!(names.insert_all([("Ada", &37), ("Bob", &40)])?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert_many`](Map::insert_many).
    pub fn insert_all<A, B>(&self, records: impl IntoIterator<Item = (A, B)>) -> Result<u64>
    where
        A: Borrow<K>,
        B: Borrow<V>,
    {
        self.store_all(records, Store::Insert)
    }

    /// Puts the records of an iterator, as [`put_many`](Map::put_many) does. Returns how many keys were
    /// present.
    ///
    /// ```
    /// # use outlast::PoolOptions;
    /// # fn main() -> outlast::Result<()> {
    /// let pool = PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// assert_eq!(ages.put_all([("Ada", 36), ("Bob", 40), ("Ada", 37)])?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert_many`](Map::insert_many).
    pub fn put_all<A, B>(&self, records: impl IntoIterator<Item = (A, B)>) -> Result<u64>
    where
        A: Borrow<K>,
        B: Borrow<V>,
    {
        self.store_all(records, Store::Put)
    }

    /// Removes the keys of an iterator, as [`remove_many`](Map::remove_many) does. Returns how many were
    /// present.
    ///
    /// ```
    /// # use outlast::PoolOptions;
    /// # fn main() -> outlast::Result<()> {
    /// let pool = PoolOptions::new().anonymous()?;
    /// let squares = pool.map::<u64, u64>("squares")?;
    /// squares.insert_all((0..10).map(|n| (n, n * n)))?;
    /// assert_eq!(squares.remove_all(5..20)?, 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`remove_many`](Map::remove_many).
    pub fn remove_all<A: Borrow<K>>(&self, keys: impl IntoIterator<Item = A>) -> Result<u64> {
        in_parts(keys, |keys| {
            let keys: Vec<&K> = keys.iter().map(Borrow::borrow).collect();
            self.remove_many(&keys)
        })
    }

    fn store_all<A, B>(&self, records: impl IntoIterator<Item = (A, B)>, how: Store) -> Result<u64>
    where
        A: Borrow<K>,
        B: Borrow<V>,
    {
        in_parts(records, |part| {
            let records: Vec<_> =
                part.iter().map(|(key, value)| (key.borrow(), value.borrow())).collect();
            self.store_many(&records, how)
        })
    }

    fn store_many(&self, records: &[(&K, &V)], how: Store) -> Result<Vec<bool>> {
        let result = |done: (bool, bool)| if matches!(how, Store::Put) { done.1 } else { done.0 };
        let mut results = Vec::with_capacity(records.len());
        let (mut keys, mut values) = (Strings::default(), Strings::default());
        let mut rest = records;
        while !rest.is_empty() {
            let row;
            (row, rest) = rest.split_at(row_len(rest, |(key, value)| bytes(*key) + bytes(*value)));
            results.extend(match self.raw.map.form()? {
                Form::Inline(index) => {
                    let (keys, count) = words(row.iter().map(|&(key, _)| key));
                    let changes = row.iter().map(|(_, value)| how.change(value.to_word()));
                    change_row(index, &keys[..count], &changes.collect::<Vec<_>>(), result)
                }
                // A long value is not copied.
                Form::Bytes(index) if row.len() == 1 => row[0].0.with_bytes(|key| {
                    let change =
                        |value: &[u8]| change_row(index, &[key], &[how.change(value)], result);
                    row[0].1.with_bytes(change)
                }),
                Form::Bytes(index) => {
                    let (keys, count) = keys.fill(row.iter().map(|&(key, _)| key));
                    let (values, _) = values.fill(row.iter().map(|&(_, value)| value));
                    let changes = values[..count].iter().map(|value| how.change(*value));
                    change_row(index, &keys[..count], &changes.collect::<Vec<_>>(), result)
                }
            }?);
        }
        Ok(results)
    }
}

/// Returns the number of bytes of an encoded key or value.
fn bytes<V: Value + ?Sized>(value: &V) -> usize {
    if V::WORD { 8 } else { value.with_bytes(<[u8]>::len) }
}

/// Returns how many of these items form a row: at most [`BATCH`], and fewer if they are long, so that a
/// row takes little memory and is soon made.
fn row_len<T>(items: &[T], bytes: impl Fn(&T) -> usize) -> usize {
    let mut sum = 0;
    let is_short = |item: &&T| {
        sum += bytes(item);
        sum <= ROW_BYTES
    };
    items.iter().take(BATCH).take_while(is_short).count().max(1)
}

/// Makes the changes of one row, and returns their results. `result` gets whether a change was
/// applied, and whether its key was present.
fn change_row<R: Record>(
    index: &dyn Index<R>,
    keys: &[R::Key<'_>],
    changes: &[Change<'_, R>],
    result: impl Fn((bool, bool)) -> bool,
) -> Result<Vec<bool>> {
    let mut done = Vec::with_capacity(BATCH);
    index.change_many(keys, changes, &mut done)?;
    Ok(done.into_iter().map(|done| result((done.applied, done.present))).collect())
}
