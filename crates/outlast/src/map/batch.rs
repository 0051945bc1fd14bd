//! Batches of changes of typed maps.

use super::typed::Map;
use super::types::{Key, Value};
use crate::db::batch::Batch;
use crate::error::Result;
use crate::index::RecordForm;

impl Batch {
    /// Adds to a map that `key` gets this value. If a key is named more than once, the last change counts.
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
