//! The typed map.

use super::types::{Key, Value};
use crate::db::open_map::Form;
use crate::db::raw::RawMap;
use crate::db::roots::MapInfo;
use crate::error::{Damage, Error, Result};
use crate::index::record::RecordRef;
use crate::index::{Bytes, Change, IndexStats, Inline, Previous, Record};
use std::fmt;
use std::marker::PhantomData;

/// A durable, concurrent hash map of a [`Pool`](crate::Pool).
///
/// Handles are cheap to clone and can be shared between threads. Every call works on the map in the
/// pool.
///
/// # Operations
///
/// Each operation on one key is atomic, and takes effect at one moment during the call.
///
/// | the value of the key | |
/// |---|---|
/// | is read | [`get`](Map::get), [`get_ref`](Map::get_ref), [`get_many`](Map::get_many), [`contains_key`](Map::contains_key) |
/// | is set | [`put`](Map::put); if absent: [`insert`](Map::insert), [`get_or_insert_with`](Map::get_or_insert_with); if present: [`update`](Map::update); if it has a given value: [`compare_swap`](Map::compare_swap) |
/// | is removed | [`remove`](Map::remove), [`delete`](Map::delete); if it has a given value: [`compare_remove`](Map::compare_remove); if a function says so: [`remove_if`](Map::remove_if) |
/// | depends on what it was | [`alter`](Map::alter), [`fetch_update`](Map::fetch_update), [`add`](Map::add), [`sub`](Map::sub) |
///
/// `put`, `remove`, `remove_if` and `fetch_update` return the value before. `alter`,
/// `get_or_insert_with`, `add` and `sub` return the value afterwards.
///
/// A function that the caller passes never runs under a lock. It may run again if another thread
/// has changed the value meanwhile.
///
/// [`iter`](Map::iter), [`keys`](Map::keys), [`values`](Map::values), [`len`](Map::len),
/// [`retain`](Map::retain) and [`clear`](Map::clear) go through all records while other threads may
/// change them. They are not atomic as a whole.
///
/// # Complexity
///
/// An operation on one key takes constant expected time, and time linear in the bytes of key and
/// value. In an [`OrderedMap`](crate::OrderedMap) it takes time logarithmic in the number of
/// records. An insert may have to grow the structure; how much of it at a time depends on the
/// scheme. A call that goes through all records takes time linear in their number.
///
/// # Durability
///
/// Once a call returns, its effect survives every failure that the pool's medium survives
/// ([`Pool::durability`](crate::Pool::durability)). After a crash, an operation that had not
/// returned has taken effect completely or not at all. No call returns a result that a crash could
/// undo.
///
/// # Errors
///
/// Any call fails with [`Error::Damaged`] if it meets a damaged structure, with [`Error::NotOpen`]
/// if the pool is closed, and with [`Error::MapDropped`] if the map was dropped. An operation on
/// one key that fails has no effect.
pub struct Map<K: ?Sized, V: ?Sized> {
    pub(super) raw: RawMap,
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

/// Adds the key to the error for its damaged value. Only iterations need this: other callers know
/// the key.
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

    #[inline(always)]
    pub(super) fn word(&self, word: u64) -> Result<V::Owned> {
        V::from_word(word).map_err(|damage| self.undecodable(damage))
    }

    #[inline(always)]
    pub(super) fn bytes(&self, bytes: Vec<u8>) -> Result<V::Owned> {
        V::from_bytes(bytes).map_err(|damage| self.undecodable(damage))
    }

    /// Decodes what a [`RawMap`] returns.
    pub(super) fn decode(&self, bytes: Vec<u8>) -> Result<V::Owned> {
        let inline = self.info().form == Inline::FORM;
        decode::<V>(bytes, inline).map_err(|damage| self.undecodable(damage))
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
    pub(super) fn located(&self, error: Error) -> Error {
        match error {
            Error::Damaged(damage) if damage.offset() == 0 => self.undecodable(damage),
            other => other,
        }
    }

    /// Requests the previous value of a change. The change fails if that value is invalid for this
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
    pub(super) fn before_bytes() -> Previous<Bytes> {
        match V::SCHEMA {
            "bytes" => Previous::WANTED,
            "str" => Previous::checked(|bytes| check_text(bytes)),
            _ => Previous::checked(|bytes| V::from_bytes(bytes.to_vec()).map(drop)),
        }
    }

    /// Returns the value of `key`.
    ///
    /// Changes no record. The result is durable: a crash cannot undo what it is based on. If a
    /// lookup meets a change by another thread that is not durable yet, it waits until it is, or
    /// persists it, depending on the scheme. After a crash, the first lookup in a part of the map
    /// also repairs that part.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// assert_eq!(ages.get("Ada")?, Some(36));
    /// assert_eq!(ages.get("Bob")?, None);
    /// # Ok(())
    /// # }
    /// ```
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
    /// Do not keep a reference for long: while it lives, the space of other records that are
    /// replaced or removed is not reused either
    /// ([`PoolStats::held_bytes`](crate::PoolStats::held_bytes)). A reference does not keep the
    /// pool open: once the pool is closed, reading through it fails with [`Error::NotOpen`].
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let pages = pool.map::<str, [u8]>("pages")?;
    /// pages.insert("/", &[7; 100_000])?;
    /// let mut head = [0; 16];
    /// if let Some(page) = pages.get_ref("/")? {
    ///     page.bytes().read_at(0, &mut head)?; // Copies 16 bytes, not 100,000.
    /// }
    /// assert_eq!(head, [7; 16]);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn get_ref(&self, key: &K) -> Result<Option<Ref<'_, V>>> {
        let record = match self.raw.map.form()? {
            Form::Inline(index) => index.get_ref(key.to_word())?,
            Form::Bytes(index) => key.with_bytes(|key| index.get_ref(key))?,
        };
        Ok(record.map(|record| Ref { record, map: &self.raw, types: PhantomData }))
    }

    /// Returns whether the map has a value for `key`.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// assert!(ages.contains_key("Ada")? && !ages.contains_key("Bob")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn contains_key(&self, key: &K) -> Result<bool> {
        Ok(match self.raw.map.form()? {
            Form::Inline(index) => index.contains(key.to_word()),
            Form::Bytes(index) => key.with_bytes(|key| index.contains(key)),
        }?)
    }

    /// Inserts `value` if `key` is absent. Returns whether it inserted. If several threads insert
    /// the same key at the same time, exactly one of them succeeds.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// assert!(ages.insert("Ada", &36)?);
    /// assert!(!ages.insert("Ada", &37)?);
    /// assert_eq!(ages.get("Ada")?, Some(36));
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// assert_eq!(ages.put("Ada", &36)?, None);
    /// assert_eq!(ages.put("Ada", &37)?, Some(36));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert`](Map::insert).
    #[inline]
    pub fn put(&self, key: &K, value: &V) -> Result<Option<V::Owned>> {
        Ok(self.store(key, value, Store::Put, true)?.1)
    }

    /// Replaces the value of `key` if it is present. Returns whether it did.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// assert!(!ages.update("Ada", &36)?);
    /// ages.insert("Ada", &36)?;
    /// assert!(ages.update("Ada", &37)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert`](Map::insert).
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
                    .map_err(|error| self.located(*error))?;
                let before = done.before.filter(|_| want_before);
                Ok((done.applied, before.map(|word| self.word(word)).transpose()?))
            }
            Form::Bytes(index) => {
                let before = if want_before { Self::before_bytes() } else { Previous::UNWANTED };
                let done = key
                    .with_bytes(|key| {
                        value.with_bytes(|value| index.change(key, how.change(value), before))
                    })
                    .map_err(|error| self.located(*error))?;
                let before = done.before.filter(|_| want_before);
                Ok((done.applied, before.map(|bytes| self.bytes(bytes)).transpose()?))
            }
        }
    }

    /// Replaces the value of `key` if it is `expected`, compared byte by byte. Returns whether it
    /// did.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let owners = pool.map::<str, u64>("owners")?;
    /// owners.insert("printer", &17)?;
    /// // Of several threads that try this, one succeeds.
    /// assert!(owners.compare_swap("printer", &17, &18)?);
    /// assert!(!owners.compare_swap("printer", &17, &19)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert`](Map::insert).
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

    /// Replaces the value of `key` with what `change` returns for it, atomically. Returns the
    /// previous value, or `None` if the key is absent or `change` returned `None`.
    ///
    /// `change` runs under no lock, and runs again if another thread changed the value meanwhile.
    /// If it panics, the map is unchanged.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let prices = pool.map::<str, u64>("prices")?;
    /// prices.insert("bolts", &100)?;
    /// let raise = |price: &u64| Some(price * 105 / 100);
    /// assert_eq!(prices.fetch_update("bolts", raise)?, Some(100));
    /// assert_eq!(prices.get("bolts")?, Some(105));
    /// assert_eq!(prices.fetch_update("nuts", raise)?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert`](Map::insert).
    pub fn fetch_update<F>(&self, key: &K, mut change: F) -> Result<Option<V::Owned>>
    where
        F: FnMut(&V) -> Option<V::Owned>,
    {
        loop {
            let Some(before) = self.read(key)? else { return Ok(None) };
            let Some(after) = change(before.value()) else { return Ok(None) };
            if self.replace(key, &before, Some(V::borrow(&after)))? {
                return Ok(Some(before.value));
            }
        }
    }

    /// Removes `key` if it is present. Returns the previous value. A removal needs no space, so it
    /// works in a full pool.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// assert_eq!(ages.remove("Ada")?, Some(36));
    /// assert_eq!(ages.remove("Ada")?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove(&self, key: &K) -> Result<Option<V::Owned>> {
        match self.raw.map.form()? {
            Form::Inline(index) => {
                let done = index
                    .change(key.to_word(), Change::Remove, Self::before_word())
                    .map_err(|error| self.located(*error))?;
                done.before.map(|word| self.word(word)).transpose()
            }
            Form::Bytes(index) => {
                let done = key
                    .with_bytes(|key| index.change(key, Change::Remove, Self::before_bytes()))
                    .map_err(|error| self.located(*error))?;
                done.before.map(|bytes| self.bytes(bytes)).transpose()
            }
        }
    }

    /// Counts the records by iterating over the map without reading values, so it takes linear
    /// time. The count is exact if no other thread inserts or removes records during the call.
    /// Otherwise it includes every record that is present throughout the call, and none that is
    /// absent throughout it. [`len_estimate`](Map::len_estimate) is much faster.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let squares = pool.map::<u32, u64>("squares")?;
    /// for n in 0..10_000 {
    ///     squares.insert(&n, &(u64::from(n) * u64::from(n)))?;
    /// }
    /// assert_eq!(squares.len()?, 10_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&self) -> Result<u64> {
        self.raw.len()
    }

    /// Returns whether the map has no records. Reads the structure up to the first record. If other
    /// threads insert and remove meanwhile, `true` means that no record was present throughout the
    /// call.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// assert!(ages.is_empty()?);
    /// ages.insert("Ada", &36)?;
    /// assert!(!ages.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> Result<bool> {
        self.raw.is_empty()
    }

    /// Estimates the number of records from a sample of the structure, without reading all of it.
    /// The estimate is exact for small maps that no thread is changing.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let squares = pool.map::<u64, u64>("squares")?;
    /// for n in 0..1_000 {
    ///     squares.insert(&n, &(n * n))?;
    /// }
    /// let estimate = squares.len_estimate()?;
    /// assert!((900..=1_100).contains(&estimate));
    /// # Ok(())
    /// # }
    /// ```
    pub fn len_estimate(&self) -> Result<u64> {
        self.raw.len_estimate()
    }

    /// Returns the index's statistics.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let squares = pool.map::<u64, u64>("squares")?;
    /// for n in 0..1_000 {
    ///     squares.insert(&n, &(n * n))?;
    /// }
    /// let stats = squares.stats()?;
    /// println!("{} of {} slots are in use", stats.records_estimate, stats.slots);
    /// assert!(stats.slots >= 1_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> Result<IndexStats> {
        self.raw.stats()
    }

    /// Returns the map's description, which is stored in its root.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// assert_eq!((&ages.info().name[..], &ages.info().key_schema[..]), ("ages", "str"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn info(&self) -> &MapInfo {
        self.raw.info()
    }

    /// Returns the untyped view of this map.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// assert_eq!(ages.raw().get(b"Ada")?, Some(36u64.to_le_bytes().to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn raw(&self) -> &RawMap {
        &self.raw
    }
}

#[derive(Clone, Copy)]
pub(super) enum Store {
    Insert,
    Put,
    Update,
}

impl Store {
    pub(super) fn change<R: Record>(self, value: R::Value<'_>) -> Change<'_, R> {
        match self {
            Store::Insert => Change::Insert(value),
            Store::Put => Change::Put(value),
            Store::Update => Change::Update(value),
        }
    }
}

/// A reference to a value; see [`Map::get_ref`].
pub struct Ref<'m, V: ?Sized> {
    record: RecordRef<'m>,
    map: &'m RawMap,
    types: PhantomData<fn() -> V>,
}

impl<'m, V: Value + ?Sized> Ref<'m, V> {
    /// Returns a copy of the value.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the bytes are not a value of this type; [`Error::NotOpen`] if the pool
    /// was closed or this is a forked child process, unless the value is stored in place.
    pub fn to_owned(&self) -> Result<V::Owned> {
        let inline = self.map.info().form == Inline::FORM;
        decode::<V>(self.record.to_vec()?, inline)
            .map_err(|damage| undecodable(damage, self.map.root()))
    }

    /// Returns a view of the value's bytes, from which parts can be copied.
    pub fn bytes(&self) -> &RecordRef<'m> {
        &self.record
    }
}

pub(super) fn decode<V: Value + ?Sized>(bytes: Vec<u8>, inline: bool) -> Result<V::Owned, Damage> {
    if inline {
        match bytes.as_slice().try_into() {
            Ok(word) => V::from_word(u64::from_le_bytes(word)),
            Err(_) => Err(Damage::new(0, "a word of 8 bytes", format!("{}", bytes.len()))),
        }
    } else {
        V::from_bytes(bytes)
    }
}
