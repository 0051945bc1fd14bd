//! Batches of changes of typed maps.

use super::typed::Map;
use super::types::{Key, Value};
use crate::db::batch::Batch;
use crate::error::Result;
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
    /// [`Error::Invalid`](crate::Error::Invalid) if the map belongs to another pool;
    /// [`Error::KeyTooLarge`](crate::Error::KeyTooLarge),
    /// [`Error::ValueTooLarge`](crate::Error::ValueTooLarge).
    pub fn put<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: &V,
    ) -> Result<&mut Self> {
        self.with(map, key, Some(value), |batch, key, value| {
            batch.change_raw(map.raw(), key, value).map(drop)
        })
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
        self.with(map, key, None, |batch, key, value| {
            batch.change_raw(map.raw(), key, value).map(drop)
        })
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
        self.with(map, key, value, |batch, key, value| {
            batch.require_raw(map.raw(), key, value).map(drop)
        })
    }

    /// Calls `add` with the bytes of a record.
    fn with<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: Option<&V>,
        add: impl FnOnce(&mut Self, &[u8], Option<&[u8]>) -> Result<()>,
    ) -> Result<&mut Self> {
        match (map.info().form, value) {
            (RecordForm::Inline, value) => {
                let value = value.map(|value| value.to_word().to_le_bytes());
                let value = value.as_ref().map(|value| value.as_slice());
                add(self, &key.to_word().to_le_bytes(), value)
            }
            (RecordForm::Bytes, Some(value)) => {
                key.with_bytes(|key| value.with_bytes(|value| add(self, key, Some(value))))
            }
            (RecordForm::Bytes, None) => key.with_bytes(|key| add(self, key, None)),
        }?;
        Ok(self)
    }
}
