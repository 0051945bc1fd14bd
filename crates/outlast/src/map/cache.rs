//! The typed cache.

use super::iter::Iter;
use super::typed::Map;
use super::types::{Key, Value};
use crate::db::cache::{CacheOptions, CacheStats, RawCache};
use crate::db::handle::Pool;
use crate::db::map_options::MapOptions;
use crate::error::{Error, Result};
use std::fmt;
use std::time::Duration;

/// A cache in a [`Pool`]: a hash map that evicts records when it is full, and whose records can expire.
/// It outlives its process, even SIGKILL, with its contents, their times and what it knows about their
/// use. Made by [`Pool::cache`].
///
/// Handles are cheap to clone and can be shared between threads.
///
/// Which records are evicted: those that were not used since they were inserted, before those that were;
/// among these, the ones that were not used for long. Records that are read once, as by a scan, displace few
/// others. A lookup stores nothing, except for the first three visits of a record.
///
/// ```
/// # fn main() -> outlast::Result<()> {
/// use outlast::{CacheOptions, PoolOptions};
///
/// let pool = PoolOptions::new().anonymous()?;
/// let pages = pool.cache::<str, str>("pages", &CacheOptions::bytes(64 << 20))?;
/// let load = || Ok::<_, outlast::Error>("<html>".to_owned());
/// assert_eq!(pages.get_or_insert_with("/", load)?, "<html>");
/// assert_eq!(pages.get("/")?.as_deref(), Some("<html>"));
/// let stats = pages.stats()?;
/// assert_eq!((stats.hits, stats.misses, stats.records), (1, 1, 1));
/// # Ok(())
/// # }
/// ```
pub struct Cache<K: ?Sized, V: ?Sized> {
    map: Map<K, V>,
    raw: RawCache,
    lives: Option<Duration>,
}

impl<K: ?Sized, V: ?Sized> Clone for Cache<K, V> {
    fn clone(&self) -> Self {
        Cache { map: self.map.clone(), raw: self.raw.clone(), lives: self.lives }
    }
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cache").field(&self.map).finish()
    }
}

impl Pool {
    /// Opens the cache `name`, or creates it if there is none. The bound of a cache is that of the options
    /// with which it was opened last. A cache that holds more than that shrinks as records are inserted.
    ///
    /// Opening a cache that holds records reads the slots of its table, to count what they take.
    ///
    /// # Errors
    /// Those of [`map`](Pool::map); [`Error::Invalid`] if there is a map of this name that is not like
    /// that of a cache, or if the cache would have no room.
    pub fn cache<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        name: &str,
        options: &CacheOptions,
    ) -> Result<Cache<K, V>> {
        let map = self.map_with::<K, V>(name, &MapOptions::new().expiry(true))?;
        let raw = RawCache::open(map.raw().clone(), options)?;
        Ok(Cache { map, raw, lives: options.lives })
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Cache<K, V> {
    /// Returns the value of `key`.
    ///
    /// # Errors
    /// Those of [`Map::get`].
    pub fn get(&self, key: &K) -> Result<Option<V::Owned>> {
        let found = key.with_bytes(|key| self.raw.get(key, true))?;
        found.map(|value| self.map.decode(value)).transpose()
    }

    /// Returns the value of `key`. If it is absent, calls `load`, inserts what it returns, and returns
    /// that. Of several threads that want an absent key, one calls its `load`, under no lock, and the others
    /// wait for the value. If that fails or panics, one of the others loads.
    ///
    /// # Errors
    /// Those of `load`, after which the key is absent; those of [`insert`](Cache::insert).
    pub fn get_or_insert_with<E: From<Error>>(
        &self,
        key: &K,
        load: impl FnOnce() -> Result<V::Owned, E>,
    ) -> Result<V::Owned, E> {
        let bytes = || load().map(|value| V::borrow(&value).with_bytes(<[u8]>::to_vec));
        let value = key.with_bytes(|key| {
            self.raw.get_or_load(key, bytes, |value| self.raw.put(key, self.time(), value))
        })?;
        Ok(self.map.decode(value)?)
    }

    /// Inserts `value`, or replaces the value of `key`. If there is no room, evicts others first. A record
    /// that is larger than the cache is not inserted.
    ///
    /// # Errors
    /// Those of [`Map::put`]. If the pool is full before the cache is, records are evicted as well.
    pub fn insert(&self, key: &K, value: &V) -> Result<()> {
        self.insert_until(key, value, self.time())
    }

    /// Like [`insert`](Cache::insert): the record expires once `duration` has passed.
    ///
    /// # Errors
    /// Those of [`insert`](Cache::insert).
    pub fn insert_for(&self, key: &K, value: &V, duration: Duration) -> Result<()> {
        self.insert_until(key, value, self.raw.time_after(Some(duration)))
    }

    fn insert_until(&self, key: &K, value: &V, time: u64) -> Result<()> {
        key.with_bytes(|key| value.with_bytes(|value| self.raw.put(key, time, value)))
    }

    /// When a record expires that is inserted now.
    fn time(&self) -> u64 {
        self.raw.time_after(self.lives)
    }

    /// Removes `key`. Returns whether it was present.
    ///
    /// # Errors
    /// Those of [`Map::delete`].
    pub fn remove(&self, key: &K) -> Result<bool> {
        self.map.delete(key)
    }

    /// Iterates over all records, as [`Map::iter`] does. This is no use of a record.
    pub fn iter(&self) -> Iter<K, V> {
        self.map.iter()
    }

    /// Returns statistics. Hits, misses, evictions and expired records are those since the pool was opened.
    ///
    /// # Errors
    /// Those of [`Map::get`].
    pub fn stats(&self) -> Result<CacheStats> {
        self.raw.stats()
    }
}
