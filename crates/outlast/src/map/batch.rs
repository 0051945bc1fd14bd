//! Batches and transactions on typed maps.

use super::fixed::Integer;
use super::typed::Map;
use super::types::{Key, Value};
use crate::db::batch::Batch;
use crate::db::transaction::Transaction;
use crate::error::{Error, Result};
use crate::index::RecordForm;

impl Batch {
    /// Adds a change: `key` gets this value in `map`. If a batch has several changes of a key, the
    /// last one counts.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// let mut batch = pool.batch();
    /// batch.put(&ages, "Ada", &36)?.put(&ages, "Bob", &40)?;
    /// batch.commit()?;
    /// assert_eq!(ages.len()?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the map belongs to another pool;
    /// [`Error::KeyTooLarge`],
    /// [`Error::ValueTooLarge`].
    pub fn put<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: &V,
    ) -> Result<&mut Self> {
        with_bytes(map, key, Some(value), |key, value| {
            self.change_raw(map.raw(), key, value).map(drop)
        })?;
        Ok(self)
    }

    /// Adds a change: `key` is removed from `map`, if it is present.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let (old, new) = (pool.map::<u64, str>("old")?, pool.map::<u64, str>("new")?);
    /// old.insert(&1, "Ada")?;
    /// // Moves the record.
    /// let mut batch = pool.batch();
    /// batch.remove(&old, &1)?.put(&new, &1, "Ada")?;
    /// batch.commit()?;
    /// assert_eq!((old.len()?, new.len()?), (0, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`put`](Batch::put).
    pub fn remove<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
    ) -> Result<&mut Self> {
        with_bytes(map, key, None, |key, value| self.change_raw(map.raw(), key, value).map(drop))?;
        Ok(self)
    }

    /// Requires that before the first change of the batch, `key` has this value, or is absent if
    /// `value` is `None`. If a requirement does not hold, [`commit`](Batch::commit) changes nothing
    /// and returns `false`.
    ///
    /// # Errors
    /// Those of [`put`](Batch::put).
    pub fn require<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: Option<&V>,
    ) -> Result<&mut Self> {
        with_bytes(map, key, value, |key, value| {
            self.require_raw(map.raw(), key, value).map(drop)
        })?;
        Ok(self)
    }
}

impl Transaction {
    /// Returns the value of `key` in `map`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the map belongs to another pool;
    /// [`Error::KeyTooLarge`]; those of [`Map::get`].
    pub fn get<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
    ) -> Result<Option<V::Owned>> {
        let found = with_bytes(map, key, None, |key, _| self.get_raw(map.raw(), key))?;
        found.map(|bytes| map.decode(bytes)).transpose()
    }

    /// Puts a value: `key` has it in `map` once the transaction ends.
    ///
    /// # Errors
    /// Those of [`Batch::put`].
    pub fn put<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: &V,
    ) -> Result<()> {
        with_bytes(map, key, Some(value), |key, value| self.change_raw(map.raw(), key, value))
    }

    /// Removes `key` from `map`, if it is present.
    ///
    /// # Errors
    /// Those of [`Batch::put`].
    pub fn remove<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
    ) -> Result<()> {
        with_bytes(map, key, None, |key, _| self.change_raw(map.raw(), key, None))
    }

    /// Inserts a value if `key` is absent. Returns whether it is.
    ///
    /// # Errors
    /// Those of [`get`](Transaction::get) and [`put`](Transaction::put).
    pub fn insert<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: &V,
    ) -> Result<bool> {
        let is_absent = self.get(map, key)?.is_none();
        if is_absent {
            self.put(map, key, value)?;
        }
        Ok(is_absent)
    }

    /// Replaces the value of `key` if it is present. Returns whether it is.
    ///
    /// # Errors
    /// Those of [`get`](Transaction::get) and [`put`](Transaction::put).
    pub fn update<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: &V,
    ) -> Result<bool> {
        let is_present = self.get(map, key)?.is_some();
        if is_present {
            self.replace(map, key, value)?;
        }
        Ok(is_present)
    }

    /// Sets the value of `key` to what `change` makes of it; `None` stands for an absent key. Returns
    /// the new value.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let words = pool.map::<u64, str>("words")?;
    /// pool.transaction(|t| {
    ///     t.alter(&words, &1, |before| Some(format!("{}a", before.unwrap_or_default())))?;
    ///     t.alter(&words, &1, |before| Some(format!("{}b", before.unwrap_or_default())))
    /// })?;
    /// assert_eq!(words.get(&1)?.as_deref(), Some("ab"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`get`](Transaction::get) and [`put`](Transaction::put).
    pub fn alter<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        change: impl FnOnce(Option<&V>) -> Option<V::Owned>,
    ) -> Result<Option<V::Owned>> {
        let before = self.get(map, key)?;
        let after = change(before.as_ref().map(V::borrow));
        match &after {
            Some(after) => self.replace(map, key, V::borrow(after))?,
            None => self.remove(map, key)?,
        }
        Ok(after)
    }

    /// Adds `amount` to the value of `key`, and returns the sum. An absent key counts as 0 and is
    /// inserted.
    ///
    /// # Errors
    /// [`Error::Overflow`]; those of [`get`](Transaction::get) and
    /// [`put`](Transaction::put).
    pub fn add<K: Key + ?Sized, V: Integer>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        amount: V,
    ) -> Result<V> {
        let sum = self.get(map, key)?.unwrap_or(V::ZERO).checked_add(amount);
        let sum = sum.ok_or(Error::Overflow { schema: V::SCHEMA })?;
        self.replace(map, key, &sum)?;
        Ok(sum)
    }

    /// Puts a value that expires when the value before it would have.
    fn replace<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: &V,
    ) -> Result<()> {
        with_bytes(map, key, Some(value), |key, value| {
            self.change_timed(map.raw(), key, value, None)
        })
    }
}

/// Calls `with` with the bytes of a record.
pub(super) fn with_bytes<K: Key + ?Sized, V: Value + ?Sized, T>(
    map: &Map<K, V>,
    key: &K,
    value: Option<&V>,
    with: impl FnOnce(&[u8], Option<&[u8]>) -> Result<T>,
) -> Result<T> {
    match (map.info().form, value) {
        (RecordForm::Inline, value) => {
            let value = value.map(|value| value.to_word().to_le_bytes());
            let value = value.as_ref().map(|value| value.as_slice());
            with(&key.to_word().to_le_bytes(), value)
        }
        (RecordForm::Bytes, Some(value)) => {
            key.with_bytes(|key| value.with_bytes(|value| with(key, Some(value))))
        }
        (RecordForm::Bytes, None) => key.with_bytes(|key| with(key, None)),
    }
}
