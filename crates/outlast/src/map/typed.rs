//! The typed map.

use super::types::{Key, Value};
use crate::db::raw::{Form, RawIter, RawMap};
use crate::db::roots::MapInfo;
use crate::error::{Damage, Error, Result};
use crate::index::record::RecordRef;
use crate::index::{BATCH, Change, IndexStats, Inline, Record};
use std::fmt;
use std::marker::PhantomData;

/// A durable, concurrent hash map of a [`Pool`](crate::Pool).
///
/// Handles are cheap to clone and can be shared between threads; every call works on the
/// map in the pool and is durable when it returns, as far as the pool's medium goes
/// ([`Pool::durability`](crate::Pool::durability)). All operations take constant expected
/// time; reads store nothing and wait only for a change of the same key's bucket.
///
/// Each call fails with [`Error::Damaged`] if it meets a damaged structure, and with
/// [`Error::NotOpen`] or [`Error::MapDropped`] if there is no pool or map any more.
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

#[cold]
pub(super) fn undecodable(damage: Damage) -> Error {
    Error::Damaged(damage)
}

impl<K: Key + ?Sized, V: Value + ?Sized> Map<K, V> {
    pub(crate) fn new(raw: RawMap) -> Self {
        Map { raw, types: PhantomData }
    }

    /// The map as its root describes it.
    pub fn info(&self) -> &MapInfo {
        self.raw.info()
    }

    fn word(word: u64) -> Result<V::Owned> {
        V::from_word(word).map_err(undecodable)
    }

    fn bytes(bytes: Vec<u8>) -> Result<V::Owned> {
        V::from_bytes(bytes).map_err(undecodable)
    }

    /// The value of `key`.
    ///
    /// Stores nothing, flushes nothing. The answer is durable: it rests on nothing that
    /// a crash could take back.
    #[inline]
    pub fn get(&self, key: &K) -> Result<Option<V::Owned>> {
        match self.raw.map.form()? {
            Form::Inline(index) => index.get(key.to_word())?.map(Self::word).transpose(),
            Form::Bytes(index) => {
                key.with_bytes(|key| index.get(key))?.map(Self::bytes).transpose()
            }
        }
    }

    /// The value of `key`, by reference: nothing is copied until you ask for it, and the
    /// record's space is not reused while the reference lives and the pool is open. Do not keep
    /// it for long; what is replaced or removed meanwhile cannot be reused either
    /// ([`PoolStats::held_bytes`](crate::PoolStats::held_bytes)). A reference does not keep the
    /// pool open: once the last handle is gone, it fails with [`Error::NotOpen`].
    pub fn get_ref(&self, key: &K) -> Result<Option<Ref<V>>> {
        let record = match self.raw.map.form()? {
            Form::Inline(index) => index.get_ref(key.to_word())?,
            Form::Bytes(index) => key.with_bytes(|key| index.get_ref(key))?,
        };
        let inline = self.raw.info().form == Inline::FORM;
        Ok(record.map(|record| Ref { record, inline, types: PhantomData }))
    }

    /// The values of many keys, in their order. The memory accesses of different keys
    /// overlap, which is several times faster than one `get` after the other where the
    /// map is larger than the caches.
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
                        values.push(word.map(Self::word).transpose()?);
                    }
                }
            }
            Form::Bytes(index) => {
                let mut bytes = Vec::new();
                for keys in keys.chunks(BATCH) {
                    // One after the other in one buffer.
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
                        values.push(value.take().map(Self::bytes).transpose()?);
                    }
                }
            }
        }
        Ok(values)
    }

    /// Whether there is a value for `key`.
    pub fn contains_key(&self, key: &K) -> Result<bool> {
        Ok(self.get_ref(key)?.is_some())
    }

    /// Inserts if absent. Returns whether it did; of several threads that insert one
    /// key at once, one does.
    ///
    /// # Errors
    /// [`Error::PoolFull`] or [`Error::DiskFull`] where there is no space;
    /// [`Error::KeyTooLarge`], [`Error::ValueTooLarge`]; [`Error::ReadOnly`].
    #[inline]
    pub fn insert(&self, key: &K, value: &V) -> Result<bool> {
        Ok(self.store(key, value, Store::Insert, false)?.0)
    }

    /// Inserts or replaces. Returns the value before.
    ///
    /// # Errors
    /// As [`insert`](Map::insert).
    #[inline]
    pub fn put(&self, key: &K, value: &V) -> Result<Option<V::Owned>> {
        Ok(self.store(key, value, Store::Put, true)?.1)
    }

    /// Replaces if present. Returns whether it did.
    ///
    /// # Errors
    /// As [`insert`](Map::insert).
    #[inline]
    pub fn update(&self, key: &K, value: &V) -> Result<bool> {
        Ok(self.store(key, value, Store::Update, false)?.0)
    }

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
                let done = index.change(key.to_word(), change, want_before)?;
                Ok((done.applied, done.before.map(Self::word).transpose()?))
            }
            Form::Bytes(index) => {
                let done = key.with_bytes(|key| {
                    value.with_bytes(|value| index.change(key, how.change(value), want_before))
                })?;
                Ok((done.applied, done.before.map(Self::bytes).transpose()?))
            }
        }
    }

    /// Replaces the value if it is `expected`, compared by its bytes. Returns whether
    /// it did.
    ///
    /// # Errors
    /// As [`insert`](Map::insert).
    pub fn compare_swap(&self, key: &K, expected: &V, new: &V) -> Result<bool> {
        match self.raw.map.form()? {
            Form::Inline(index) => {
                let change = Change::Swap { expected: expected.to_word(), new: new.to_word() };
                Ok(index.change(key.to_word(), change, false)?.applied)
            }
            Form::Bytes(index) => key.with_bytes(|key| {
                expected.with_bytes(|expected| {
                    new.with_bytes(|new| {
                        Ok(index.change(key, Change::Swap { expected, new }, false)?.applied)
                    })
                })
            }),
        }
    }

    /// Replaces the value by what `change` makes of it, atomically. Returns the value
    /// before, or `None` if the key is absent or `change` answers `None`.
    ///
    /// `change` runs under no lock, and again if the value changed meanwhile. If it
    /// panics, nothing has happened.
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

    /// Removes if present. Returns the value before. Needs no space: it works in a
    /// full pool.
    pub fn remove(&self, key: &K) -> Result<Option<V::Owned>> {
        match self.raw.map.form()? {
            Form::Inline(index) => {
                let done = index.change(key.to_word(), Change::Remove, true)?;
                done.before.map(Self::word).transpose()
            }
            Form::Bytes(index) => {
                let done = key.with_bytes(|key| index.change(key, Change::Remove, true))?;
                done.before.map(Self::bytes).transpose()
            }
        }
    }

    /// Walks all records: in the order of their keys where the scheme knows one, else in no
    /// particular order.
    ///
    /// A record that is there during the whole walk is reported exactly once, with a
    /// value that it had during the walk; one that is inserted or removed meanwhile is
    /// reported once or not at all. After an error the walk ends.
    pub fn iter(&self) -> Iter<K, V> {
        Iter {
            raw: self.raw.iter(),
            inline: self.raw.info().form == Inline::FORM,
            types: PhantomData,
        }
    }

    /// An estimate of the number of records, from a sample of the segments; exact for
    /// small maps at rest.
    pub fn len_estimate(&self) -> Result<u64> {
        self.raw.len_estimate()
    }

    /// Figures of the index.
    pub fn stats(&self) -> Result<IndexStats> {
        self.raw.stats()
    }

    /// The same map by its bytes.
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

/// A value by reference, see [`Map::get_ref`].
pub struct Ref<V: ?Sized> {
    record: RecordRef,
    inline: bool,
    types: PhantomData<fn() -> V>,
}

impl<V: Value + ?Sized> Ref<V> {
    /// A copy of the value.
    ///
    /// # Errors
    /// [`Error::Damaged`] if its bytes are no value of this type; [`Error::NotOpen`] if the pool
    /// was closed.
    pub fn to_owned(&self) -> Result<V::Owned> {
        decode::<V>(self.record.to_vec()?, self.inline)
    }

    /// The value's bytes, to be copied piece by piece.
    pub fn bytes(&self) -> &RecordRef {
        &self.record
    }
}

pub(super) fn decode<V: Value + ?Sized>(bytes: Vec<u8>, inline: bool) -> Result<V::Owned> {
    if inline {
        let word = bytes.try_into().map_err(|b: Vec<u8>| {
            undecodable(Damage::new(0, "a word of 8 bytes", format!("{}", b.len())))
        })?;
        V::from_word(u64::from_le_bytes(word)).map_err(undecodable)
    } else {
        V::from_bytes(bytes).map_err(undecodable)
    }
}

/// Walks the records of a [`Map`], see [`Map::iter`].
pub struct Iter<K: ?Sized, V: ?Sized> {
    raw: RawIter,
    inline: bool,
    types: PhantomData<fn() -> (*const K, *const V)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Iterator for Iter<K, V> {
    type Item = Result<(K::Owned, V::Owned)>;

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = match self.raw.next()? {
            Ok(record) => record,
            Err(error) => return Some(Err(error)),
        };
        let decoded = decode::<K>(key, self.inline)
            .and_then(|key| Ok((key, decode::<V>(value, self.inline)?)));
        Some(decoded)
    }
}
