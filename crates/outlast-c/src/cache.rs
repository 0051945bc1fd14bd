//! Caches.

use crate::argument::{Buffer, Out, borrow, give, outlast_bytes, slice, take_back, text};
use crate::code::{OUTLAST_NOT_FOUND, OUTLAST_OK, answer, invalid, outlast_code};
use crate::element::Element;
use crate::expiry::after;
use crate::map::outlast_map;
use crate::pool::outlast_pool;
use library::{CacheOptions, Expiry, RawCache, RecordForm};
use std::ffi::{c_char, c_void};

/// An open cache of a pool: a hash map that evicts records when it is full, and whose records can expire. It outlives
/// its process, even SIGKILL. Any number of threads may use a handle at the same time.
pub struct outlast_cache {
    cache: RawCache,
    map: outlast_map,
    live_for: u64,
}

/// Options of a cache. Begin with `outlast_cache_options options = {0};`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct outlast_cache_options {
    /// The bound in bytes: each record counts as the block that it takes, and 24 bytes for its slot. 0: bounded by
    /// `records`.
    pub bytes: u64,
    /// The bound in records. 0: bounded by `bytes`. Exactly one of both must be given.
    pub records: u64,
    /// Nanoseconds after which a record expires that is inserted without a duration. 0: it does not.
    pub live_for: u64,
    /// For later versions; 0.
    pub reserved: [u64; 5],
}

/// What a cache holds, and what it did since its pool was opened.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct outlast_cache_counts {
    /// Lookups that found a value.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Records that were evicted to make room.
    pub evictions: u64,
    /// Records that were removed because their time had passed.
    pub expired: u64,
    /// Records that the cache holds, expired ones that were not removed yet included.
    pub records: u64,
    /// The space of these records, in bytes.
    pub bytes: u64,
}

/// Opens the cache `name`, or creates it if there is none. The types are those of outlast_map_open, and must not be
/// null. The bound of a cache is that with which it was opened last; a cache that holds more shrinks as records are
/// inserted. Stores a handle in `*cache`, or null on an error. Free it with outlast_cache_free.
///
/// Opening a cache that holds records reads the slots of its table, to count what they take.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_cache_open(
    pool: *const outlast_pool,
    name: *const c_char,
    key_type: *const c_char,
    value_type: *const c_char,
    options: *const outlast_cache_options,
    cache: *mut *mut outlast_cache,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (pool, out) = unsafe { (borrow(pool, "pool")?, Out::needed(cache, "cache")?) };
        out.set(std::ptr::null_mut());
        // SAFETY: the header's rules.
        let (name, key, value, given) = unsafe {
            let types = (text(key_type, "key_type")?, text(value_type, "value_type")?);
            (text(name, "name")?, types.0, types.1, borrow(options, "options")?)
        };
        if given.reserved != [0; 5] {
            let why = "reserved fields are not 0; begin with `outlast_cache_options options = {0}`";
            return Err(invalid("options", why));
        }
        let options = match (given.bytes, given.records) {
            (bytes, 0) => CacheOptions::bytes(bytes),
            (0, records) => CacheOptions::records(records),
            _ => return Err(invalid("options", "a cache has one bound: bytes or records")),
        };
        // Refuses a type that this interface does not have before a cache of that type is created.
        for schema in [key, value] {
            Element::of(schema, RecordForm::Bytes)?;
        }
        let cache = pool.pool.raw_cache(name, key, value, &options)?;
        let map = outlast_map::of(&pool.pool, cache.raw_map().clone())?;
        out.set(give(outlast_cache { cache, map, live_for: given.live_for }));
        Ok(OUTLAST_OK)
    })
}

/// Frees the handle of a cache; null is ignored. The records stay in the pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_cache_free(cache: *mut outlast_cache) {
    answer(|| {
        // SAFETY: the header's rules: the handle is valid, and is not used again.
        unsafe { take_back(cache) };
        Ok(OUTLAST_OK)
    });
}

/// Copies the value of `key` into `buffer`, as outlast_get does. This is a use of the record: the least used records
/// are evicted first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_cache_get(
    cache: *const outlast_cache,
    key: outlast_bytes,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (cache, key, buffer) = unsafe {
            (borrow(cache, "cache")?, slice(key, "key")?, Buffer::new(buffer, capacity, len)?)
        };
        let found = cache.cache.get(cache.map.encoded_key(key)?.bytes(), true)?;
        let Some(mut value) = found else { return Ok(OUTLAST_NOT_FOUND) };
        cache.map.value.decode(&mut value);
        Ok(buffer.put(&value))
    })
}

/// Inserts `value`, or replaces the value of `key`. If there is no room, evicts other records first. A record that is
/// larger than the cache is not inserted, and OUTLAST_OK all the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_cache_insert(
    cache: *const outlast_cache,
    key: outlast_bytes,
    value: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { insert(cache, key, value, None) }
}

/// As outlast_cache_insert; the record expires once `duration` (nanoseconds) has passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_cache_insert_for(
    cache: *const outlast_cache,
    key: outlast_bytes,
    value: outlast_bytes,
    duration: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { insert(cache, key, value, Some(duration)) }
}

/// Removes `key`; OUTLAST_NOT_FOUND if it is absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_cache_remove(
    cache: *const outlast_cache,
    key: outlast_bytes,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (cache, key) = unsafe { (borrow(cache, "cache")?, slice(key, "key")?) };
        let removed = cache.map.raw.delete(cache.map.encoded_key(key)?.bytes())?;
        Ok(if removed { OUTLAST_OK } else { OUTLAST_NOT_FOUND })
    })
}

/// Stores in `*counts` what the cache holds, and what it did since its pool was opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_cache_stats(
    cache: *const outlast_cache,
    counts: *mut outlast_cache_counts,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (cache, out) = unsafe { (borrow(cache, "cache")?, Out::needed(counts, "counts")?) };
        let found = cache.cache.stats()?;
        out.set(outlast_cache_counts {
            hits: found.hits,
            misses: found.misses,
            evictions: found.evictions,
            expired: found.expired,
            records: found.records,
            bytes: found.bytes,
        });
        Ok(OUTLAST_OK)
    })
}

/// Returns the map in which the cache is kept, for what a cache has no functions for: outlast_each, outlast_clear,
/// outlast_contains, outlast_expiry_of, outlast_expire_for. To read through it is no use of a record. It belongs to the
/// cache's handle, is valid until that is freed, and must not be freed itself. Null has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_cache_map(cache: *const outlast_cache) -> *const outlast_map {
    // SAFETY: the header's rules.
    unsafe { cache.as_ref() }.map_or(std::ptr::null(), |cache| &raw const cache.map)
}

/// Inserts a record that expires after `duration`; without one, after that of the cache.
///
/// # Safety
/// The rules of the header.
unsafe fn insert(
    cache: *const outlast_cache,
    key: outlast_bytes,
    value: outlast_bytes,
    duration: Option<u64>,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (cache, key, value) =
            unsafe { (borrow(cache, "cache")?, slice(key, "key")?, slice(value, "value")?) };
        let key = cache.map.encoded_key(key)?;
        let value = cache.map.encoded_value(value)?;
        let duration = duration.or((cache.live_for > 0).then_some(cache.live_for));
        cache.cache.put_until(key.bytes(), value.bytes(), duration.map_or(Expiry::Never, after))?;
        Ok(OUTLAST_OK)
    })
}
