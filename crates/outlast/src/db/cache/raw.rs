//! Caches whose types are not known at compile time, for the interfaces to other languages.

use super::super::expiry::Expiry;
use super::super::handle::Pool;
use super::super::map_options::MapOptions;
use super::super::open_map::check_types;
use super::super::raw::RawMap;
use super::{CacheOptions, CacheStats, Inserted, RawCache};
use crate::error::Result;
use crate::index::Bytes;
use std::sync::atomic::Ordering;

/// A value and when it expires.
type Timed<'v> = (&'v [u8], Expiry);

impl Pool {
    /// Opens the cache `name` by its schemas, or creates it if there is none; see [`cache`](Pool::cache).
    #[doc(hidden)]
    pub fn raw_cache(
        &self,
        name: &str,
        key_schema: &str,
        value_schema: &str,
        options: &CacheOptions,
    ) -> Result<RawCache> {
        let map_options = MapOptions::new().expiry(true);
        let map = self.raw_map_with(name, key_schema, value_schema, &map_options)?;
        RawCache::open(map, options)
    }
}

impl RawCache {
    /// The map of the cache. The bound counts records that are inserted through it, but only the cache's own
    /// inserts evict others to make room.
    pub fn raw_map(&self) -> &RawMap {
        &self.map
    }

    /// Returns value and expiry of a key, and notes the visit. `counts` says whether the statistics count it.
    pub fn get_timed(&self, key: &[u8], counts: bool) -> Result<Option<(Vec<u8>, Expiry)>> {
        let found = self.expiring()?.get_timed(key)?;
        if found.is_some()
            && let Some(record) = self.index()?.get_ref(key)?
        {
            self.touch(&record);
        }
        self.count(found.is_some(), counts);
        Ok(found.map(|(time, value)| (value, Expiry::from_media(time))))
    }

    /// Inserts `value`, or replaces the value of `key`, and sets when it expires; see
    /// [`Cache::insert`](crate::Cache::insert).
    pub fn put_until(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<()> {
        check_types::<Bytes>(self.map.info(), key, Some(value))?;
        self.put(key, expiry.to_media(), value)
    }

    /// Replaces value and expiry of a key if they are `before`, which an earlier call has returned. Returns
    /// whether they are. `None` stands for an absent key. A full cache may evict the key itself, before it looks.
    /// A value that is larger than the cache is not inserted, and the old one is removed.
    pub fn exchange(
        &self,
        key: &[u8],
        before: Option<Timed<'_>>,
        after: Option<Timed<'_>>,
    ) -> Result<bool> {
        let expiring = self.expiring()?;
        let old = before.map(|(value, expiry)| (expiry.to_media(), value));
        let Some((value, expiry)) = after else { return Ok(expiring.exchange(key, old, None)?) };
        check_types::<Bytes>(self.map.info(), key, Some(value))?;
        let weight = expiring.weight(key.len(), value.len());
        if weight > self.kept.bytes_max.load(Ordering::Relaxed) {
            return Ok(expiring.exchange(key, old, None)?);
        }
        let new = Some((expiry.to_media(), value));
        self.with_room(key, weight, |_| {
            let applied = expiring.exchange(key, old, new)?;
            Ok(Inserted { applied, present: before.is_some(), is_marked: false })
        })
    }

    /// Returns statistics; see [`Cache::stats`](crate::Cache::stats).
    pub fn stats(&self) -> Result<CacheStats> {
        Ok(self.kept.stats(self.expiring()?))
    }
}
