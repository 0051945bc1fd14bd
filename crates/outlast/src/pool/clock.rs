//! The clock by which records expire.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time of a record that never expires. Other times are nanoseconds since 1970.
pub const NEVER: u64 = u64::MAX;
/// A second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// What tells the time: the system's clock, unless a function is given.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<dyn Fn() -> SystemTime + Send + Sync>>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Clock(function)" } else { "Clock(system)" })
    }
}

impl Clock {
    /// Makes a clock that shows what `now` returns.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Clock(Some(Arc::new(now)))
    }

    /// Returns the time in nanoseconds since 1970.
    pub fn now(&self) -> u64 {
        to_media(self.0.as_ref().map_or_else(SystemTime::now, |now| now()))
    }

    /// Returns the time at which a record expires that lives this long from now on.
    pub fn after(&self, duration: Duration) -> u64 {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(NEVER);
        self.now().saturating_add(nanoseconds).min(NEVER - 1)
    }
}

/// Returns a time as it is stored: times before 1970 as 1970, those after the year 2554 as that year.
pub fn to_media(time: SystemTime) -> u64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => u64::try_from(since.as_nanos()).unwrap_or(NEVER).min(NEVER - 1),
        Err(_) => 0,
    }
}

/// Returns a stored time, or `None` for a record that never expires.
pub fn from_media(time: u64) -> Option<SystemTime> {
    (time != NEVER).then(|| UNIX_EPOCH + Duration::from_nanos(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back() {
        let second = Duration::from_secs(1);
        for nanoseconds in [0, 1, 1_700_000_000_123_456_789, NEVER - 1] {
            assert_eq!(from_media(nanoseconds).map(to_media), Some(nanoseconds));
        }
        assert_eq!(from_media(NEVER), None);
        assert_eq!(to_media(UNIX_EPOCH - second), 0);
        assert_eq!(to_media(UNIX_EPOCH + Duration::from_secs(1 << 40)), NEVER - 1);
        let clock = Clock::new(|| UNIX_EPOCH + Duration::from_secs(7));
        assert_eq!(clock.after(second), 8 * SECOND);
        assert_eq!(
            clock.after(Duration::MAX),
            NEVER - 1,
            "a record with a time is not one without"
        );
    }
}
