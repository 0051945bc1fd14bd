//! Batches of changes of typed maps.

use super::typed::Map;
use super::types::{Key, Value};
use crate::db::batch::Batch;
use crate::error::Result;
use crate::index::RecordForm;

impl Batch {
    /// Adds to a map that `key` gets this value. If a key is named more than once, the last change counts.
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
    /// [`Error::Invalid`](crate::Error::Invalid) if the map is one of another pool;
    /// [`Error::KeyTooLarge`](crate::Error::KeyTooLarge),
    /// [`Error::ValueTooLarge`](crate::Error::ValueTooLarge).
    pub fn put<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: &V,
    ) -> Result<&mut Self> {
        match map.info().form {
            RecordForm::Inline => {
                let (key, value) = (key.to_word().to_le_bytes(), value.to_word().to_le_bytes());
                self.change_raw(map.raw(), &key, Some(&value))
            }
            RecordForm::Bytes => key.with_bytes(|key| {
                value.with_bytes(|value| self.change_raw(map.raw(), key, Some(value)))
            }),
        }
    }

    /// Adds to a map that `key` is removed, if it is present.
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
    /// As [`put`](Batch::put).
    pub fn remove<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
    ) -> Result<&mut Self> {
        match map.info().form {
            RecordForm::Inline => self.change_raw(map.raw(), &key.to_word().to_le_bytes(), None),
            RecordForm::Bytes => key.with_bytes(|key| self.change_raw(map.raw(), key, None)),
        }
    }
}
