//! Records that expire: their times, and maps of unknown types.
//!
//! [`index::expiring`](crate::index::expiring) has the protocol.

use super::batch::Batch;
use super::open_map::{OpenMap, check_types};
use super::options::PoolOptions;
use super::raw::{RawIter, RawMap};
use super::transaction::Transaction;
use crate::error::{Error, Result};
use crate::index::{Bytes, Change, Previous};
use crate::pool::clock::{self, Clock, NEVER};
use crate::pool::layout::TIME_BYTES;
use std::time::{Duration, SystemTime};

/// When a record expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expiry {
    /// Once this time has passed.
    At(SystemTime),
    /// Not at all.
    Never,
}

impl Expiry {
    pub(crate) fn from_media(time: u64) -> Expiry {
        clock::from_media(time).map_or(Expiry::Never, Expiry::At)
    }

    pub(crate) fn to_media(self) -> u64 {
        match self {
            Expiry::At(time) => clock::to_media(time),
            Expiry::Never => NEVER,
        }
    }
}

impl PoolOptions {
    /// Sets the clock by which records [expire](crate::MapOptions::expiry): a function that returns the time.
    /// By default, it is the system's clock, because records outlive processes.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// use outlast::{MapOptions, PoolOptions};
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// static SECONDS: AtomicU64 = AtomicU64::new(1_000);
    /// let now = || UNIX_EPOCH + Duration::from_secs(SECONDS.load(Ordering::Relaxed));
    /// let pool = PoolOptions::new().clock(now).anonymous()?;
    /// let sessions = pool.map_with::<str, u64>("sessions", &MapOptions::new().expiry(true))?;
    /// sessions.put_for("4711", &7, Duration::from_secs(900))?;
    /// SECONDS.store(1_899, Ordering::Relaxed);
    /// assert_eq!(sessions.get("4711")?, Some(7));
    /// SECONDS.store(1_900, Ordering::Relaxed);
    /// assert_eq!(sessions.get("4711")?, None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.core.clock = Clock::new(now);
        self
    }
}

impl Batch {
    /// Like [`change_raw`](Batch::change_raw), for a value that expires. The map must be one whose records
    /// [expire](crate::MapOptions::expiry).
    ///
    /// # Errors
    /// Those of [`change_raw`](Batch::change_raw); [`Error::Invalid`](crate::Error::Invalid) if the map was
    /// made without expiry.
    pub fn put_raw_until(
        &mut self,
        map: &RawMap,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
    ) -> Result<&mut Self> {
        map.map.expiring()?;
        self.change_timed(map, key, Some(value), expiry.to_media())
    }
}

impl Transaction {
    /// Like [`change_raw`](Transaction::change_raw), for a value that expires. The map must be one whose records
    /// [expire](crate::MapOptions::expiry).
    ///
    /// # Errors
    /// Those of [`Batch::put_raw_until`].
    #[doc(hidden)]
    pub fn put_raw_until(
        &mut self,
        map: &RawMap,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
    ) -> Result<()> {
        map.map.expiring()?;
        self.change_timed(map, key, Some(value), Some(expiry.to_media()))
    }
}

/// Returns the time at which a record expires that lives this long from now on.
pub(crate) fn after(map: &RawMap, duration: Duration) -> u64 {
    map.pool.store.core().options().clock.after(duration)
}

fn check(map: &OpenMap, key: &[u8], value: &[u8]) -> Result<()> {
    check_types::<Bytes>(map.info(), key, Some(value))
}

impl RawMap {
    /// Inserts `value`, or replaces the value of `key`, and sets when the record expires. Returns the
    /// previous value. See [`Map::put_until`](crate::Map::put_until).
    ///
    /// # Errors
    /// Those of [`put`](RawMap::put); [`Error::Invalid`](crate::Error::Invalid) if the map was made without
    /// expiry.
    pub fn put_until(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<Option<Vec<u8>>> {
        let expiring = self.map.expiring()?;
        check(&self.map, key, value)?;
        Ok(expiring.put_timed(key, expiry.to_media(), value, Previous::WANTED)?.before)
    }

    /// Sets when the record of `key` expires. Returns whether the key is present.
    ///
    /// # Errors
    /// Those of [`put_until`](RawMap::put_until).
    pub fn expire_at(&self, key: &[u8], expiry: Expiry) -> Result<bool> {
        self.set_time(key, expiry.to_media())
    }

    pub(crate) fn set_time(&self, key: &[u8], time: u64) -> Result<bool> {
        let expiring = self.map.expiring()?;
        loop {
            let Some((before, value)) = expiring.get_timed(key)? else { return Ok(false) };
            if expiring.exchange(key, Some((before, &value)), Some((time, &value)))? {
                return Ok(true);
            }
        }
    }

    /// Returns when the record of `key` expires, or `None` if the key is absent.
    ///
    /// # Errors
    /// Those of [`get`](RawMap::get); [`Error::Invalid`](crate::Error::Invalid) if the map was made without
    /// expiry.
    pub fn expiry_of(&self, key: &[u8]) -> Result<Option<Expiry>> {
        let found = self.map.expiring()?.get_timed(key)?;
        Ok(found.map(|(time, _)| Expiry::from_media(time)))
    }
}

/// Records as they are stored, for tools that copy them: the values of a map whose records expire begin
/// with their times. In other maps, these do what the methods without `stored` do.
#[doc(hidden)]
impl RawMap {
    /// Returns the value of a key as it is stored, also of a record whose time has passed.
    pub fn get_stored(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.map.expiring() {
            Ok(expiring) => Ok(expiring.stored().get(key)?),
            Err(_) => self.get(key),
        }
    }

    /// Inserts a value as it is stored, if its key is absent. Returns whether it inserted.
    pub fn insert_stored(&self, key: &[u8], stored: &[u8]) -> Result<bool> {
        let Ok(expiring) = self.map.expiring() else { return self.insert(key, stored) };
        let Some(value) = stored.get(TIME_BYTES..) else {
            return Err(Error::Invalid { what: "value", why: "it has no time".into() });
        };
        check(&self.map, key, value)?;
        Ok(expiring.stored().change(key, Change::Insert(stored), Previous::UNWANTED)?.applied)
    }
}

#[doc(hidden)]
impl RawIter {
    /// Makes the iterator return values as they are stored, if this is called before the first record is
    /// read.
    #[must_use]
    pub fn stored(mut self) -> Self {
        self.set_timed();
        self
    }
}
