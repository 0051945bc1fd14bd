//! Caches.

use crate::codec::Codec;
use crate::expiry::{after, unix_time};
use crate::fail::{Fail, Result, absent};
use crate::held::Held;
use crate::map::{Codecs, key_codec, value_codec};
use crate::pool::Pool;
use crate::records::{Part, Records, Source};
use library::{CacheOptions, Expiry, RawCache, RawMap, RecordForm};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The native part of `outlast.Cache`.
#[pyclass(frozen, subclass, mapping, module = "outlast._outlast")]
pub struct Cache {
    cache: Held<RawCache>,
    codecs: Arc<Codecs>,
    /// Whether lookups count.
    counts: AtomicBool,
    /// Hits and misses that a reset has taken off.
    base: Mutex<(u64, u64)>,
}

/// A value as it is stored, and when it expires.
type Timed = (Vec<u8>, Expiry);

#[pymethods]
impl Cache {
    /// Opens the cache, or creates it. `serializer` is as for a map.
    #[new]
    #[pyo3(signature = (pool, name, key, value, bytes, records, serializer))]
    fn new(
        pool: &Bound<'_, Pool>,
        name: &str,
        key: &str,
        value: &str,
        bytes: Option<u64>,
        records: Option<u64>,
        serializer: &Bound<'_, PyAny>,
    ) -> Result<Cache> {
        let (py, pool) = (pool.py(), pool.get());
        let pool: &library::Pool = &pool.pool;
        let options = match (bytes, records) {
            (Some(bytes), None) => CacheOptions::bytes(bytes),
            (None, Some(records)) => CacheOptions::records(records),
            _ => return Err(PyTypeError::new_err("a cache has one bound").into()),
        };
        let codecs = Codecs {
            key: key_codec(key, RecordForm::Bytes)?,
            value: value_codec(value, RecordForm::Bytes, serializer)?,
        };
        let cache = py.detach(|| pool.raw_cache(name, key, value, &options))?;
        Ok(Cache {
            cache: Held::new(cache),
            codecs: Arc::new(codecs),
            counts: AtomicBool::new(true),
            base: Mutex::new((0, 0)),
        })
    }

    /// Lets the package name the types of a cache in the class that it derives from this one.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        _types: &Bound<'py, PyAny>,
    ) -> Bound<'py, PyType> {
        class.clone()
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
        self.value_of(key)?.ok_or_else(|| absent(key))
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> Result<()> {
        self.set(key, value, None).map(drop)
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> Result<()> {
        if self.delete(key)? { Ok(()) } else { Err(absent(key)) }
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> Result<bool> {
        Ok(self.raw_map().contains_key(self.codecs.encode_key(key)?.bytes())?)
    }

    fn __len__(&self, py: Python<'_>) -> Result<usize> {
        self.cache.detached(py, |cache| {
            // A cache that is open for reading only does not count.
            let counted = cache.stats()?.records;
            let records = if counted > 0 { counted } else { cache.raw_map().len()? };
            Ok(records as usize)
        })
    }

    fn __bool__(&self, py: Python<'_>) -> Result<bool> {
        Ok(self.__len__(py)? > 0)
    }

    fn __iter__(&self) -> Records {
        Records::new(Source::All(self.raw_map().iter()), Arc::clone(&self.codecs), Part::Keys)
    }

    fn _items(&self) -> Records {
        Records::new(Source::All(self.raw_map().iter()), Arc::clone(&self.codecs), Part::Items)
    }

    /// Return the value of a key, or ``default``; with ``expire_time``, also when it expires, or ``None``.
    #[pyo3(signature = (key, default = None, expire_time = false))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
        expire_time: bool,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        if !expire_time {
            return Ok(self.value_of(key)?.or(default));
        }
        let encoded = self.codecs.encode_key(key)?;
        let found = self.cache.get_timed(encoded.bytes(), self.counts())?;
        self.with_time(key.py(), found, default).map(Some)
    }

    /// Put a value, which expires after ``expire`` seconds. Return ``True``.
    #[pyo3(signature = (key, value, expire = None))]
    fn set(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<f64>,
    ) -> Result<bool> {
        let expiry = after(expire)?;
        let (key, value, py) =
            (self.codecs.encode_key(key)?, self.codecs.encode_value(value)?, key.py());
        let (key, value) = (key.bytes(), value.bytes());
        self.cache.detached(py, |cache| cache.put_until(key, value, expiry))?;
        Ok(true)
    }

    /// Put a value if the key is absent, and return whether it was. Of several threads, exactly one succeeds.
    #[pyo3(signature = (key, value, expire = None))]
    fn add(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<f64>,
    ) -> Result<bool> {
        let (py, expiry) = (key.py(), after(expire)?);
        let value = self.codecs.encode_value(value)?;
        let value = (value.bytes(), expiry);
        let encoded = self.codecs.encode_key(key)?;
        let key = encoded.bytes();
        self.cache.detached(py, |cache| {
            Ok(!cache.raw_map().contains_key(key)? && cache.exchange(key, None, Some(value))?)
        })
    }

    /// Add to the number of a key, in one step, and return the sum. An absent key counts as ``default``; if that is
    /// ``None``, raise ``KeyError``. The number keeps the time at which it expires.
    #[pyo3(signature = (key, delta = None, default = None))]
    fn _incr<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        delta: Option<&Bound<'py, PyAny>>,
        default: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>> {
        let py = key.py();
        let delta = match delta {
            Some(delta) => delta.clone(),
            None => 1i64.into_pyobject(py).map_err(PyErr::from)?.into_any(),
        };
        let encoded = self.codecs.encode_key(key)?;
        let bytes = encoded.bytes();
        loop {
            let before = self.cache.get_timed(bytes, false)?;
            let (number, expiry) = match (&before, default) {
                (Some((stored, expiry)), _) => (self.codecs.value.decode(py, stored)?, *expiry),
                (None, Some(default)) => (default.clone(), Expiry::Never),
                (None, None) => return Err(absent(key)),
            };
            let sum = number.add(&delta)?;
            let new = self.codecs.encode_value(&sum)?;
            let new = (new.bytes(), expiry);
            let old = before.as_ref().map(|(stored, expiry)| (&**stored, *expiry));
            if self.cache.detached(py, |cache| cache.exchange(bytes, old, Some(new)))? {
                return Ok(sum);
            }
            py.check_signals()?;
        }
    }

    /// Set when the value of a key expires: after ``expire`` seconds. Return whether the key is present.
    #[pyo3(signature = (key, expire = None))]
    fn touch(&self, key: &Bound<'_, PyAny>, expire: Option<f64>) -> Result<bool> {
        let expiry = after(expire)?;
        let encoded = self.codecs.encode_key(key)?;
        let bytes = encoded.bytes();
        self.cache.detached(key.py(), |cache| cache.raw_map().expire_at(bytes, expiry))
    }

    /// Remove a key, and return the value that it had, or ``default``; with ``expire_time``, also when it would have
    /// expired, or ``None``.
    #[pyo3(signature = (key, default = None, expire_time = false))]
    fn pop<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
        expire_time: bool,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        let py = key.py();
        let encoded = self.codecs.encode_key(key)?;
        let bytes = encoded.bytes();
        let taken = self.cache.detached(py, |cache| {
            loop {
                let Some((value, expiry)) = cache.get_timed(bytes, false)? else { return Ok(None) };
                if cache.exchange(bytes, Some((&value, expiry)), None)? {
                    return Ok(Some((value, expiry)));
                }
            }
        })?;
        if expire_time {
            return self.with_time(py, taken, default).map(Some);
        }
        Ok(self.codecs.decoded(py, taken.map(|(stored, _)| stored))?.or(default))
    }

    /// Remove a key, and return whether it was present.
    fn delete(&self, key: &Bound<'_, PyAny>) -> Result<bool> {
        let encoded = self.codecs.encode_key(key)?;
        let bytes = encoded.bytes();
        self.cache.detached(key.py(), |cache| cache.raw_map().delete(bytes))
    }

    /// Remove every record, and return how many.
    fn clear(&self, py: Python<'_>) -> Result<u64> {
        self.cache.detached(py, |cache| cache.raw_map().clear())
    }

    /// Remove the records whose time has passed, and return how many. The pool's background thread does so, too.
    fn expire(&self, py: Python<'_>) -> Result<u64> {
        self.cache.detached(py, |cache| {
            let before = cache.stats()?.expired;
            // To find such a record is to remove it.
            cache.raw_map().len()?;
            Ok(cache.stats()?.expired - before)
        })
    }

    /// Return the space that the records take, in bytes.
    fn volume(&self) -> Result<u64> {
        Ok(self.cache.stats()?.bytes)
    }

    /// Return how many lookups found a value, and how many did not; then count further ones, or not, and begin with
    /// 0 again if asked to.
    #[pyo3(signature = (enable = true, reset = false))]
    fn stats(&self, enable: bool, reset: bool) -> Result<(u64, u64)> {
        let found = self.cache.stats()?;
        let mut base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = (found.hits - base.0, found.misses - base.1);
        if reset {
            *base = (found.hits, found.misses);
        }
        self.counts.store(enable, Ordering::Relaxed);
        Ok(counted)
    }

    /// Return how many records were evicted to make room since the pool was opened.
    fn evictions(&self) -> Result<u64> {
        Ok(self.cache.stats()?.evictions)
    }

    /// The name of the cache.
    #[getter]
    fn name(&self) -> &str {
        &self.raw_map().info().name
    }

    /// The type of the keys, as the cache records it.
    #[getter]
    fn key_type(&self) -> &str {
        &self.raw_map().info().key_schema
    }

    /// The type of the values, as the cache records it.
    #[getter]
    fn value_type(&self) -> &str {
        &self.raw_map().info().value_schema
    }
}

impl Cache {
    fn raw_map(&self) -> &RawMap {
        self.cache.raw_map()
    }

    fn counts(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    /// Looks a key up, attached, as `Map::value_of` does.
    fn value_of<'py>(&self, key: &Bound<'py, PyAny>) -> Result<Option<Bound<'py, PyAny>>> {
        let encoded = self.codecs.encode_key(key)?;
        self.codecs.decoded(key.py(), self.cache.get(encoded.bytes(), self.counts())?)
    }

    /// Returns a value and the time at which it expires.
    fn with_time<'py>(
        &self,
        py: Python<'py>,
        found: Option<Timed>,
        default: Option<Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>> {
        let codec: &Codec = &self.codecs.value;
        let pair = match found {
            Some((stored, expiry)) => (Some(codec.decode(py, &stored)?), unix_time(expiry)),
            None => (default, None),
        };
        Ok(pair.into_pyobject(py).map_err(Fail::from)?.into_any())
    }
}
