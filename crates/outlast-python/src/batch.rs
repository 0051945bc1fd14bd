//! Batches.

use crate::codec::Encoded;
use crate::expiry::after;
use crate::fail::Result;
use crate::held::Held;
use crate::map::Map;
use crate::pool::Pool;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// The native part of `outlast.Batch`.
#[pyclass(frozen, subclass, module = "outlast._outlast")]
pub struct Batch {
    pool: Held<library::Pool>,
    batch: Held<Mutex<library::Batch>>,
}

#[pymethods]
impl Batch {
    #[new]
    fn new(pool: &Bound<'_, Pool>) -> Batch {
        let pool: &library::Pool = &pool.get().pool;
        Batch { batch: Held::new(Mutex::new(pool.batch())), pool: Held::new(pool.clone()) }
    }

    /// Add a change: the key gets this value in the map. Of several changes of a key, the last one counts. Unless
    /// ``expire`` is ``None``, the value expires after that many seconds from this call on.
    #[pyo3(signature = (map, key, value, expire = None))]
    fn put(
        &self,
        map: &Bound<'_, Map>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<f64>,
    ) -> Result<()> {
        let (map, expiry) = (map.get(), after(expire)?);
        let encoded = map.codecs.encode_value(value)?;
        let value = encoded.bytes();
        self.add(map, key, |batch, key| match expire {
            Some(_) => batch.put_raw_until(&map.raw, key, value, expiry).map(drop),
            None => batch.change_raw(&map.raw, key, Some(value)).map(drop),
        })
    }

    /// Add a change: the key is removed from the map, if it is present.
    fn remove(&self, map: &Bound<'_, Map>, key: &Bound<'_, PyAny>) -> Result<()> {
        let map = map.get();
        self.add(map, key, |batch, key| batch.change_raw(&map.raw, key, None).map(drop))
    }

    /// Require that the key has this value before the first change.
    fn require(
        &self,
        map: &Bound<'_, Map>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> Result<()> {
        let map = map.get();
        let encoded = map.codecs.encode_value(value)?;
        let value = encoded.bytes();
        self.add(map, key, |batch, key| batch.require_raw(&map.raw, key, Some(value)).map(drop))
    }

    /// Require that the key is absent before the first change.
    fn require_absent(&self, map: &Bound<'_, Map>, key: &Bound<'_, PyAny>) -> Result<()> {
        let map = map.get();
        self.add(map, key, |batch, key| batch.require_raw(&map.raw, key, None).map(drop))
    }

    /// Makes all changes. Returns the number of the first requirement that does not hold, or `None`.
    fn _commit(&self, py: Python<'_>) -> Result<Option<usize>> {
        let commit = |batch: &mut library::Batch| batch.commit().map(|_| batch.failed());
        Ok(self.locked(py, commit)?)
    }

    /// Drops the changes and requirements that were not committed.
    fn _forget(&self, py: Python<'_>) {
        let empty = self.pool.batch();
        self.locked(py, |batch| *batch = empty);
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.locked(py, |batch| batch.len())
    }
}

impl Batch {
    fn add(
        &self,
        map: &Map,
        key: &Bound<'_, PyAny>,
        add: impl FnOnce(&mut library::Batch, &[u8]) -> library::Result<()> + Send,
    ) -> Result<()> {
        let encoded: Encoded<'_> = map.codecs.encode_key(key)?;
        let bytes = encoded.bytes();
        Ok(self.locked(key.py(), |batch| add(batch, bytes))?)
    }

    /// Runs something on the batch, detached: another thread may be committing it.
    fn locked<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut library::Batch) -> T + Send,
    ) -> T {
        let batch: &Mutex<library::Batch> = &self.batch;
        // A panic leaves the lists of changes as they are, and nothing is made of them before `commit`.
        py.detach(|| run(&mut batch.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
