//! Records that expire.

use super::batch::with_bytes;
use super::typed::Map;
use super::types::{Key, Value};
use crate::db::batch::Batch;
use crate::db::expiry::{Expiry, after};
use crate::db::transaction::Transaction;
use crate::error::Result;
use std::time::{Duration, SystemTime};

/// Records that expire. These methods are for maps that were made with
/// [`MapOptions::expiry`](crate::MapOptions::expiry); in others they fail with
/// [`Error::Invalid`](crate::Error::Invalid).
///
/// A record whose time has passed is absent for every operation. [`put`](Map::put) and
/// [`insert`](Map::insert) make records that never expire. What changes the value of a record, such as
/// [`update`](Map::update), [`alter`](Map::alter), [`compare_swap`](Map::compare_swap) and
/// [`add`](Map::add), leaves its time as it is.
impl<K: Key + ?Sized, V: Value + ?Sized> Map<K, V> {
    /// Inserts `value`, or replaces the value of `key`. The record expires at `time`; if that has passed,
    /// the key is removed. Returns the previous value.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let pool = outlast::PoolOptions::new().anonymous()?;
    /// use outlast::{Expiry, MapOptions};
    /// use std::time::{Duration, SystemTime};
    ///
    /// let tokens = pool.map_with::<str, u64>("tokens", &MapOptions::new().expiry(true))?;
    /// let end = SystemTime::now() + Duration::from_secs(60);
    /// assert_eq!(tokens.put_until("Ada", &7, end)?, None);
    /// assert_eq!(tokens.expiry_of("Ada")?, Some(Expiry::At(end)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`put`](Map::put).
    pub fn put_until(&self, key: &K, value: &V, time: SystemTime) -> Result<Option<V::Owned>> {
        self.put_timed(key, value, Expiry::At(time).to_media())
    }

    /// Like [`put_until`](Map::put_until): the record expires once `duration` has passed from now on.
    ///
    /// # Errors
    /// Those of [`put`](Map::put).
    pub fn put_for(&self, key: &K, value: &V, duration: Duration) -> Result<Option<V::Owned>> {
        self.put_timed(key, value, after(&self.raw, duration))
    }

    fn put_timed(&self, key: &K, value: &V, time: u64) -> Result<Option<V::Owned>> {
        let expiring = self.raw.map.expiring()?;
        let before = Self::before_bytes();
        let done = key.with_bytes(|key| {
            value.with_bytes(|value| expiring.put_timed(key, time, value, before))
        });
        let done = done.map_err(|error| self.located(*error))?;
        done.before.map(|bytes| self.bytes(bytes)).transpose()
    }

    /// Sets the time at which the record of `key` expires; if that has passed, the key is removed. Returns
    /// whether it was present. A record that expires is never renewed once any thread has seen it absent.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let pool = outlast::PoolOptions::new().anonymous()?;
    /// use outlast::MapOptions;
    /// use std::time::{Duration, SystemTime};
    ///
    /// let sessions = pool.map_with::<str, u64>("sessions", &MapOptions::new().expiry(true))?;
    /// sessions.put_for("4711", &7, Duration::from_secs(900))?;
    /// assert!(sessions.expire_at("4711", SystemTime::now() + Duration::from_secs(1_800))?);
    /// assert!(!sessions.expire_at("4712", SystemTime::now())?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`update`](Map::update).
    pub fn expire_at(&self, key: &K, time: SystemTime) -> Result<bool> {
        key.with_bytes(|key| self.raw.set_time(key, Expiry::At(time).to_media()))
    }

    /// Makes the record of `key` one that never expires. Returns whether it is present.
    ///
    /// # Errors
    /// Those of [`update`](Map::update).
    pub fn persist(&self, key: &K) -> Result<bool> {
        key.with_bytes(|key| self.raw.set_time(key, Expiry::Never.to_media()))
    }

    /// Returns when the record of `key` expires, or `None` if the key is absent.
    ///
    /// # Errors
    /// Those of [`get`](Map::get).
    pub fn expiry_of(&self, key: &K) -> Result<Option<Expiry>> {
        key.with_bytes(|key| self.raw.expiry_of(key))
    }

    /// Atomically sets value and expiry of `key` to what `change` returns for the present ones; `None` stands
    /// for an absent key. Returns what the key has afterwards. See [`alter`](Map::alter).
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let pool = outlast::PoolOptions::new().anonymous()?;
    /// use outlast::{Expiry, MapOptions};
    /// use std::time::{Duration, SystemTime};
    ///
    /// // A lock that its owner holds for a minute at most.
    /// let locks = pool.map_with::<str, u64>("locks", &MapOptions::new().expiry(true))?;
    /// let lock = |owner: u64| {
    ///     locks.alter_until("printer", |held| match held {
    ///         Some((other, until)) if *other != owner => Some((*other, until)),
    ///         _ => Some((owner, Expiry::At(SystemTime::now() + Duration::from_secs(60)))),
    ///     })
    /// };
    /// assert_eq!(lock(17)?.map(|(owner, _)| owner), Some(17));
    /// assert_eq!(lock(18)?.map(|(owner, _)| owner), Some(17));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`alter`](Map::alter).
    pub fn alter_until<F>(&self, key: &K, mut change: F) -> Result<Option<(V::Owned, Expiry)>>
    where
        F: FnMut(Option<(&V, Expiry)>) -> Option<(V::Owned, Expiry)>,
    {
        let expiring = self.raw.map.expiring()?;
        key.with_bytes(|key| {
            loop {
                let before = expiring.get_timed(key)?;
                let value = match &before {
                    Some((time, bytes)) => {
                        Some((self.bytes(bytes.clone())?, Expiry::from_media(*time)))
                    }
                    None => None,
                };
                let after =
                    change(value.as_ref().map(|(value, expiry)| (V::borrow(value), *expiry)));
                let before = before.as_ref().map(|(time, value)| (*time, &**value));
                let done = match &after {
                    Some((value, expiry)) => V::borrow(value).with_bytes(|value| {
                        expiring.exchange(key, before, Some((expiry.to_media(), value)))
                    }),
                    None => expiring.exchange(key, before, None),
                };
                if done? {
                    return Ok(after);
                }
            }
        })
    }
}

impl Batch {
    /// Adds a change: `key` gets this value in `map`, in a record that expires at `time`. The map must be one
    /// whose records [expire](crate::MapOptions::expiry).
    ///
    /// # Errors
    /// Those of [`put`](Batch::put); [`Error::Invalid`](crate::Error::Invalid) if the map was made without
    /// expiry.
    pub fn put_until<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: &V,
        time: SystemTime,
    ) -> Result<&mut Self> {
        map.raw.map.expiring()?;
        key.with_bytes(|key| {
            let put =
                |value: &[u8]| self.put_raw_until(&map.raw, key, value, Expiry::At(time)).map(drop);
            value.with_bytes(put)
        })?;
        Ok(self)
    }
}

impl Transaction {
    /// Puts a value in a record that expires at `time`. The map must be one whose records
    /// [expire](crate::MapOptions::expiry).
    ///
    /// # Errors
    /// Those of [`Batch::put_until`].
    pub fn put_until<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        map: &Map<K, V>,
        key: &K,
        value: &V,
        time: SystemTime,
    ) -> Result<()> {
        map.raw.map.expiring()?;
        let time = Some(Expiry::At(time).to_media());
        with_bytes(map, key, Some(value), |key, value| {
            self.change_timed(map.raw(), key, value, time)
        })
    }
}
