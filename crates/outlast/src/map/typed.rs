//! The typed map.

use super::types::{Key, Value};
use crate::db::raw::{Form, RawIter, RawMap};
use crate::db::roots::MapInfo;
use crate::error::{Damage, Error, Result};
use crate::index::record::RecordRef;
use crate::index::{BATCH, Bytes, Change, IndexStats, Inline, Previous, Record};
use std::fmt;
use std::marker::PhantomData;

/// A durable, concurrent hash map of a [`Pool`](crate::Pool).
///
/// Handles are cheap to clone and can be shared between threads. Every call works on the map in the
/// pool. Once a call returns, its effect is durable as far as the pool's medium allows
/// ([`Pool::durability`](crate::Pool::durability)). An operation on one key takes constant expected
/// time. In an [`OrderedMap`](crate::OrderedMap) it takes time logarithmic in the number of
/// records.
///
/// Any call fails with [`Error::Damaged`] if it meets a damaged structure, with [`Error::NotOpen`]
/// if the pool is closed, and with [`Error::MapDropped`] if the map was dropped.
pub struct Map<K: ?Sized, V: ?Sized> {
    raw: RawMap,
    types: PhantomData<fn(&K) -> V>,
}

impl<K: ?Sized, V: ?Sized> Clone for Map<K, V> {
    fn clone(&self) -> Self {
        Map { raw: self.raw.clone(), types: PhantomData }
    }
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Map").field(&self.raw.info().name).finish()
    }
}

/// Returns the error for bytes that are invalid for their type, in the map whose root is at this
/// offset.
#[cold]
pub(super) fn undecodable(damage: Damage, root: u64) -> Error {
    let expected = format!("{} in each record of the map with this root", damage.expected());
    Error::Damaged(Damage::new(root, expected, damage.found()))
}

/// Names the key in the damage of its value. Only an iteration needs this: other callers know the
/// key.
#[cold]
pub(super) fn under_key(key: &[u8], inline: bool, damage: Damage) -> Damage {
    let key = match key.try_into() {
        Ok(word) if inline => format!("{:#x}", u64::from_le_bytes(word)),
        _ if key.len() > 64 => format!("\"{}\"...", key[..64].escape_ascii()),
        _ => format!("\"{}\"", key.escape_ascii()),
    };
    let found = format!("{} under the key {key}", damage.found());
    Damage::new(damage.offset(), damage.expected(), found)
}

fn check_text(bytes: &[u8]) -> Result<(), Damage> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(Damage::new(0, "a value of type str", error.to_string())),
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Map<K, V> {
    pub(crate) fn new(raw: RawMap) -> Self {
        Map { raw, types: PhantomData }
    }

    /// The map's description in its root.
    pub fn info(&self) -> &MapInfo {
        self.raw.info()
    }

    #[inline(always)]
    fn word(&self, word: u64) -> Result<V::Owned> {
        V::from_word(word).map_err(|damage| self.undecodable(damage))
    }

    #[inline(always)]
    fn bytes(&self, bytes: Vec<u8>) -> Result<V::Owned> {
        V::from_bytes(bytes).map_err(|damage| self.undecodable(damage))
    }

    #[cold]
    #[inline(never)]
    fn undecodable(&self, damage: Damage) -> Error {
        undecodable(damage, self.raw.root())
    }

    /// Adds the map's root to the error for a previous value that is invalid for this type.
    /// [`Value`] does not know where the value was.
    #[cold]
    #[inline(never)]
    fn located(&self, error: Error) -> Error {
        match error {
            Error::Damaged(damage) if damage.offset() == 0 => self.undecodable(damage),
            other => other,
        }
    }

    /// Asks for the previous value of a change. The change fails if that value is invalid for this
    /// type.
    #[inline(always)]
    fn before_word() -> Previous<Inline> {
        match V::SCHEMA {
            // Every word is a value.
            "u64" | "i64" => Previous::WANTED,
            _ => Previous::checked(|word| V::from_word(word).map(drop)),
        }
    }

    /// Like [`before_word`](Self::before_word), for byte strings.
    #[inline(always)]
    fn before_bytes() -> Previous<Bytes> {
        match V::SCHEMA {
            "bytes" => Previous::WANTED,
            "str" => Previous::checked(|bytes| check_text(bytes)),
            _ => Previous::checked(|bytes| V::from_bytes(bytes.to_vec()).map(drop)),
        }
    }

    /// Returns the value of `key`.
    ///
    /// Changes no record. The result is durable: a crash cannot undo what it is based on. Where a
    /// lookup meets a change by another thread that is not durable yet, it waits for that change or
    /// persists it, depending on the scheme. After a crash, the first lookup in a part of the map
    /// also repairs that part.
    #[inline(always)]
    pub fn get(&self, key: &K) -> Result<Option<V::Owned>> {
        match self.raw.map.form()? {
            Form::Inline(index) => {
                index.get(key.to_word())?.map(|word| self.word(word)).transpose()
            }
            Form::Bytes(index) => {
                key.with_bytes(|key| index.get(key))?.map(|bytes| self.bytes(bytes)).transpose()
            }
        }
    }

    /// Returns a reference to the value of `key`. Nothing is copied until you ask for it, and the
    /// record's space is not reused while the reference lives and the pool is open.
    ///
    /// Do not keep a reference for long: while it lives, nothing that is replaced or removed can be
    /// reused either ([`PoolStats::held_bytes`](crate::PoolStats::held_bytes)). A reference does
    /// not keep the pool open. Once the last handle is gone, reading through it fails with
    /// [`Error::NotOpen`].
    pub fn get_ref(&self, key: &K) -> Result<Option<Ref<V>>> {
        let record = match self.raw.map.form()? {
            Form::Inline(index) => index.get_ref(key.to_word())?,
            Form::Bytes(index) => key.with_bytes(|key| index.get_ref(key))?,
        };
        let inline = self.raw.info().form == Inline::FORM;
        let root = self.raw.root();
        Ok(record.map(|record| Ref { record, inline, root, types: PhantomData }))
    }

    /// Returns the values of many keys, in the order of `keys`. The memory accesses for different
    /// keys overlap. Where the map is larger than the caches, this is several times faster than one
    /// `get` after another.
    pub fn get_many(&self, keys: &[&K]) -> Result<Vec<Option<V::Owned>>> {
        let mut values = Vec::with_capacity(keys.len());
        match self.raw.map.form()? {
            Form::Inline(index) => {
                for keys in keys.chunks(BATCH) {
                    let (mut words, mut found) = ([0; BATCH], [None; BATCH]);
                    for (key, word) in keys.iter().zip(&mut words) {
                        *word = key.to_word();
                    }
                    let found = &mut found[..keys.len()];
                    index.get_many(&words[..keys.len()], found)?;
                    for word in found {
                        values.push(word.map(|word| self.word(word)).transpose()?);
                    }
                }
            }
            Form::Bytes(index) => {
                let mut bytes = Vec::new();
                for keys in keys.chunks(BATCH) {
                    // All keys of the batch, one after another in one buffer.
                    bytes.clear();
                    let mut ends = [0; BATCH];
                    for (key, end) in keys.iter().zip(&mut ends) {
                        key.with_bytes(|key| bytes.extend_from_slice(key));
                        *end = bytes.len();
                    }
                    let mut parts: [&[u8]; BATCH] = [&[]; BATCH];
                    let mut start = 0;
                    for (part, &end) in parts.iter_mut().zip(&ends[..keys.len()]) {
                        *part = &bytes[start..end];
                        start = end;
                    }
                    let mut found = [const { None }; BATCH];
                    let found = &mut found[..keys.len()];
                    index.get_many(&parts[..keys.len()], found)?;
                    for value in found {
                        values.push(value.take().map(|value| self.bytes(value)).transpose()?);
                    }
                }
            }
        }
        Ok(values)
    }

    /// Returns whether the map has a value for `key`.
    pub fn contains_key(&self, key: &K) -> Result<bool> {
        Ok(self.get_ref(key)?.is_some())
    }

    /// Inserts `value` if `key` is absent. Returns whether it inserted. If several threads insert
    /// the same key at once, exactly one of them succeeds.
    ///
    /// # Errors
    /// [`Error::PoolFull`] or [`Error::DiskFull`] if there is no space; [`Error::KeyTooLarge`],
    /// [`Error::ValueTooLarge`]; [`Error::ReadOnly`].
    #[inline]
    pub fn insert(&self, key: &K, value: &V) -> Result<bool> {
        Ok(self.store(key, value, Store::Insert, false)?.0)
    }

    /// Inserts `value`, or replaces the value of `key`. Returns the previous value.
    ///
    /// # Errors
    /// As [`insert`](Map::insert).
    #[inline]
    pub fn put(&self, key: &K, value: &V) -> Result<Option<V::Owned>> {
        Ok(self.store(key, value, Store::Put, true)?.1)
    }

    /// Replaces the value of `key` if it is present. Returns whether it did.
    ///
    /// # Errors
    /// As [`insert`](Map::insert).
    #[inline]
    pub fn update(&self, key: &K, value: &V) -> Result<bool> {
        Ok(self.store(key, value, Store::Update, false)?.0)
    }

    #[inline(always)]
    fn store(
        &self,
        key: &K,
        value: &V,
        how: Store,
        want_before: bool,
    ) -> Result<(bool, Option<V::Owned>)> {
        match self.raw.map.form()? {
            Form::Inline(index) => {
                let change = how.change(value.to_word());
                let before = if want_before { Self::before_word() } else { Previous::UNWANTED };
                let done = index
                    .change(key.to_word(), change, before)
                    .map_err(|error| self.located(error))?;
                let before = done.before.filter(|_| want_before);
                Ok((done.applied, before.map(|word| self.word(word)).transpose()?))
            }
            Form::Bytes(index) => {
                let before = if want_before { Self::before_bytes() } else { Previous::UNWANTED };
                let done = key
                    .with_bytes(|key| {
                        value.with_bytes(|value| index.change(key, how.change(value), before))
                    })
                    .map_err(|error| self.located(error))?;
                let before = done.before.filter(|_| want_before);
                Ok((done.applied, before.map(|bytes| self.bytes(bytes)).transpose()?))
            }
        }
    }

    /// Replaces the value of `key` if it is `expected`, compared byte by byte. Returns whether it
    /// did.
    ///
    /// # Errors
    /// As [`insert`](Map::insert).
    pub fn compare_swap(&self, key: &K, expected: &V, new: &V) -> Result<bool> {
        match self.raw.map.form()? {
            Form::Inline(index) => {
                let change = Change::Swap { expected: expected.to_word(), new: new.to_word() };
                Ok(index.change(key.to_word(), change, Previous::UNWANTED)?.applied)
            }
            Form::Bytes(index) => key.with_bytes(|key| {
                expected.with_bytes(|expected| {
                    new.with_bytes(|new| {
                        let change = Change::Swap { expected, new };
                        Ok(index.change(key, change, Previous::UNWANTED)?.applied)
                    })
                })
            }),
        }
    }

    /// Replaces the value of `key` by what `change` makes of it, atomically. Returns the previous
    /// value, or `None` if the key is absent or `change` returned `None`.
    ///
    /// `change` runs under no lock, and runs again if another thread changed the value meanwhile.
    /// If it panics, the map is unchanged.
    ///
    /// # Errors
    /// As [`insert`](Map::insert).
    pub fn fetch_update<F>(&self, key: &K, mut change: F) -> Result<Option<V::Owned>>
    where
        F: FnMut(&V) -> Option<V::Owned>,
    {
        loop {
            let Some(before) = self.get(key)? else { return Ok(None) };
            let Some(after) = change(V::borrow(&before)) else { return Ok(None) };
            if self.compare_swap(key, V::borrow(&before), V::borrow(&after))? {
                return Ok(Some(before));
            }
        }
    }

    /// Removes `key` if it is present. Returns the previous value. A removal needs no space, so it
    /// works in a full pool.
    pub fn remove(&self, key: &K) -> Result<Option<V::Owned>> {
        match self.raw.map.form()? {
            Form::Inline(index) => {
                let done = index
                    .change(key.to_word(), Change::Remove, Self::before_word())
                    .map_err(|e| self.located(e))?;
                done.before.map(|word| self.word(word)).transpose()
            }
            Form::Bytes(index) => {
                let done = key
                    .with_bytes(|key| index.change(key, Change::Remove, Self::before_bytes()))
                    .map_err(|e| self.located(e))?;
                done.before.map(|bytes| self.bytes(bytes)).transpose()
            }
        }
    }

    /// Iterates over all records: in key order where the scheme keeps one, otherwise in no
    /// particular order.
    ///
    /// A record present throughout the scan is returned exactly once, with a value that it had
    /// during the scan. A record inserted or removed during the scan is returned once or not at
    /// all. After an error the iterator ends.
    ///
    /// The iterator reads some records ahead. So after [`Pool::close`](crate::Pool::close) or
    /// [`Pool::drop_map`](crate::Pool::drop_map) it can return a few more before it fails.
    pub fn iter(&self) -> Iter<K, V> {
        Iter {
            raw: self.raw.iter(),
            inline: self.raw.info().form == Inline::FORM,
            steps_over: false,
            types: PhantomData,
        }
    }

    /// Iterates over all records that can be read: the way to get data out of a damaged pool.
    ///
    /// Where [`iter`](Map::iter) ends at the first damage, this iterator returns [`Error::Damaged`] for
    /// each damaged place, and goes on. It checks the checksum of every record, and returns no record
    /// whose checksum does not match. (Records that are stored in place have none.) It also returns
    /// records that [`get`](Map::get) does not find, because a damaged place is in the way. It returns
    /// some places that hold one record, and some that hold many: a damaged link can hide everything
    /// behind it. After any other error it ends.
    ///
    /// In a sound map it returns what [`iter`](Map::iter) returns, with the same guarantees.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// let (mut records, mut places) = (Vec::new(), Vec::new());
    /// for found in ages.salvage() {
    ///     match found {
    ///         Ok(record) => records.push(record),
    ///         Err(outlast::Error::Damaged(damage)) => places.push(damage),
    ///         Err(error) => return Err(error),
    ///     }
    /// }
    /// assert_eq!((records.len(), places.len()), (1, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn salvage(&self) -> Iter<K, V> {
        Iter { raw: self.raw.salvage(), steps_over: true, ..self.iter() }
    }

    /// Estimates the number of records from a sample of the structure. Exact for small maps at
    /// rest.
    pub fn len_estimate(&self) -> Result<u64> {
        self.raw.len_estimate()
    }

    /// Returns the index's statistics.
    pub fn stats(&self) -> Result<IndexStats> {
        self.raw.stats()
    }

    /// Returns the untyped view of this map.
    pub fn raw(&self) -> &RawMap {
        &self.raw
    }
}

#[derive(Clone, Copy)]
enum Store {
    Insert,
    Put,
    Update,
}

impl Store {
    fn change<R: Record>(self, value: R::Value<'_>) -> Change<'_, R> {
        match self {
            Store::Insert => Change::Insert(value),
            Store::Put => Change::Put(value),
            Store::Update => Change::Update(value),
        }
    }
}

/// A reference to a value; see [`Map::get_ref`].
pub struct Ref<V: ?Sized> {
    record: RecordRef,
    inline: bool,
    root: u64,
    types: PhantomData<fn() -> V>,
}

impl<V: Value + ?Sized> Ref<V> {
    /// Returns a copy of the value.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the bytes are not a value of this type; [`Error::NotOpen`] if the pool
    /// was closed.
    pub fn to_owned(&self) -> Result<V::Owned> {
        decode::<V>(self.record.to_vec()?, self.inline)
            .map_err(|damage| undecodable(damage, self.root))
    }

    /// Returns the value's bytes, to be copied piece by piece.
    pub fn bytes(&self) -> &RecordRef {
        &self.record
    }
}

fn decode<V: Value + ?Sized>(bytes: Vec<u8>, inline: bool) -> Result<V::Owned, Damage> {
    if inline {
        match bytes.as_slice().try_into() {
            Ok(word) => V::from_word(u64::from_le_bytes(word)),
            Err(_) => Err(Damage::new(0, "a word of 8 bytes", format!("{}", bytes.len()))),
        }
    } else {
        V::from_bytes(bytes)
    }
}

/// An iterator over the records of a [`Map`]; see [`Map::iter`] and [`Map::salvage`].
pub struct Iter<K: ?Sized, V: ?Sized> {
    raw: RawIter,
    inline: bool,
    /// Whether it goes on after a value that is none of its type.
    steps_over: bool,
    types: PhantomData<fn() -> (*const K, *const V)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Iterator for Iter<K, V> {
    type Item = Result<(K::Owned, V::Owned)>;

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = match self.raw.next()? {
            Ok(record) => record,
            Err(error) => return Some(Err(error)),
        };
        let (inline, root) = (self.inline, self.raw.root());
        let decoded = decode::<V>(value, inline)
            .map_err(|damage| under_key(&key, inline, damage))
            .and_then(|value| Ok((decode::<K>(key, inline)?, value)))
            .map_err(|damage| undecodable(damage, root));
        if decoded.is_err() && !self.steps_over {
            self.raw.finish();
        }
        Some(decoded)
    }
}
