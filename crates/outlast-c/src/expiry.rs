//! Records that expire.

use crate::argument::{Out, outlast_bytes};
use crate::batch::{self, outlast_batch};
use crate::code::{OUTLAST_NOT_FOUND, OUTLAST_OK, outlast_code};
use crate::map::{Request, on_key, on_record, outlast_map};
use crate::pool::outlast_pool;
use crate::transaction::{self, outlast_transaction};
use library::Expiry;
use std::ffi::c_char;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time that never comes: that of a record that does not expire.
pub const OUTLAST_NEVER: u64 = u64::MAX;

/// As outlast_map_open, for a map whose records can expire. `scheme` is a name such as "phast", for an ordered map, or
/// null, for a hash map. OUTLAST_ERROR_MAP_MISMATCH if the map exists and was made without expiry.
///
/// A record whose time has passed is absent for every operation. outlast_put and outlast_insert make records that never
/// expire. What changes the value of a record, such as outlast_update, outlast_compare_swap and outlast_add, leaves
/// its time as it is.
///
/// Times are nanoseconds since 1970-01-01 00:00 UTC, by the system's clock; durations are nanoseconds, too.
/// OUTLAST_SECONDS makes them of seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_expiring_map_open(
    pool: *const outlast_pool,
    name: *const c_char,
    key_type: *const c_char,
    value_type: *const c_char,
    scheme: *const c_char,
    map: *mut *mut outlast_map,
) -> outlast_code {
    let mut request = Request::new(name, key_type, value_type, scheme);
    request.expires = true;
    // SAFETY: the header's rules.
    unsafe { request.open(pool, map) }
}

/// Inserts `value`, or replaces the value of `key`, in a record that expires at `time`; OUTLAST_NEVER: not at all. If
/// the time has passed, the key is removed. OUTLAST_ERROR_INVALID if the map was made without expiry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_put_until(
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
    time: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { put(map, key, value, at(time)) }
}

/// As outlast_put_until; the record expires once `duration` has passed from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_put_for(
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
    duration: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { put(map, key, value, after(duration)) }
}

/// Sets when the record of `key` expires; OUTLAST_NOT_FOUND if the key is absent. If the time has passed, the key is
/// removed. A record that has expired is not renewed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_expire_at(
    map: *const outlast_map,
    key: outlast_bytes,
    time: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { expire(map, key, at(time)) }
}

/// As outlast_expire_at; the record expires once `duration` has passed from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_expire_for(
    map: *const outlast_map,
    key: outlast_bytes,
    duration: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { expire(map, key, after(duration)) }
}

/// Makes the record of `key` one that never expires; OUTLAST_NOT_FOUND if the key is absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_persist(
    map: *const outlast_map,
    key: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { expire(map, key, Expiry::Never) }
}

/// Stores in `*time` when the record of `key` expires, or OUTLAST_NEVER. OUTLAST_NOT_FOUND if the key is absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_expiry_of(
    map: *const outlast_map,
    key: outlast_bytes,
    time: *mut u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_key(map, key, |map, key| {
            let out = Out::needed(time, "time")?;
            let Some(expiry) = map.raw.expiry_of(key)? else { return Ok(OUTLAST_NOT_FOUND) };
            out.set(nanoseconds(expiry));
            Ok(OUTLAST_OK)
        })
    }
}

/// As outlast_batch_put, in a record that expires at `time`. OUTLAST_ERROR_INVALID if the map was made without expiry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_batch_put_until(
    batch: *const outlast_batch,
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
    time: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, value, |map, key, value| {
            batch::add(batch, |batch| batch.put_raw_until(&map.raw, key, value, at(time)).map(drop))
        })
    }
}

/// As outlast_transaction_put, in a record that expires at `time`. OUTLAST_ERROR_INVALID if the map was made without
/// expiry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_transaction_put_until(
    transaction: *const outlast_transaction<'_>,
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
    time: u64,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, value, |map, key, value| {
            transaction::change(transaction, |transaction| {
                transaction.put_raw_until(&map.raw, key, value, at(time))
            })
        })
    }
}

/// # Safety
/// The rules of the header.
unsafe fn put(
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
    expiry: Expiry,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, value, |map, key, value| {
            map.raw.put_until(key, value, expiry)?;
            Ok(OUTLAST_OK)
        })
    }
}

/// # Safety
/// The rules of the header.
unsafe fn expire(map: *const outlast_map, key: outlast_bytes, expiry: Expiry) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_key(map, key, |map, key| {
            Ok(if map.raw.expire_at(key, expiry)? { OUTLAST_OK } else { OUTLAST_NOT_FOUND })
        })
    }
}

/// Reads a time of C.
fn at(time: u64) -> Expiry {
    match time {
        OUTLAST_NEVER => Expiry::Never,
        time => Expiry::At(UNIX_EPOCH + Duration::from_nanos(time)),
    }
}

/// The time after this duration, which is never if it is too far away to be told.
pub(crate) fn after(duration: u64) -> Expiry {
    let time = SystemTime::now() + Duration::from_nanos(duration);
    match nanoseconds(Expiry::At(time)) {
        OUTLAST_NEVER => Expiry::Never,
        _ => Expiry::At(time),
    }
}

/// Makes a time of C.
fn nanoseconds(expiry: Expiry) -> u64 {
    match expiry {
        Expiry::At(time) => time
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos().try_into().unwrap_or(OUTLAST_NEVER)),
        Expiry::Never => OUTLAST_NEVER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back() {
        for time in [0, 1, 1_700_000_000_123_456_789, OUTLAST_NEVER - 1, OUTLAST_NEVER] {
            assert_eq!(nanoseconds(at(time)), time);
        }
        assert_eq!(after(u64::MAX), Expiry::Never);
        assert!(after(1_000_000_000) > after(0));
    }
}
