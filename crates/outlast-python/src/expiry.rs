//! When records expire.

use crate::fail::{Result, invalid};
use library::Expiry;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time after this many seconds; after `None`, and after more than can be told, it is never.
pub fn after(seconds: Option<f64>) -> Result<Expiry> {
    let Some(seconds) = seconds else { return Ok(Expiry::Never) };
    if seconds.is_nan() {
        return Err(invalid("expire", "it is not a number"));
    }
    let duration = match Duration::try_from_secs_f64(seconds.max(0.0)) {
        // In 500 years, the library's times end.
        Ok(duration) if duration.as_secs() < 15_000_000_000 => duration,
        _ => return Ok(Expiry::Never),
    };
    Ok(Expiry::At(SystemTime::now() + duration))
}

/// Returns the seconds until a record expires, or `None` if it does not.
pub fn seconds_left(expiry: Expiry) -> Option<f64> {
    match expiry {
        Expiry::At(time) => {
            let left = time.duration_since(SystemTime::now()).unwrap_or_default();
            Some(left.as_secs_f64())
        }
        Expiry::Never => None,
    }
}

/// Returns when a record expires, in seconds since 1970, or `None` if it does not.
pub fn unix_time(expiry: Expiry) -> Option<f64> {
    match expiry {
        Expiry::At(time) => Some(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()),
        Expiry::Never => None,
    }
}
