//! Changes that depend on the key's current value.
//!
//! Each of these methods is a loop: read the value, call the caller's function, then have the index
//! change the record if it still has that value. While the function runs, the thread holds no lock
//! and no guard, and is outside the gate. So the function may block, panic, or use the pool.
//!
//! The change takes effect where the index compares the value and stores: under the lock of the
//! record, or by one compare-and-swap. If nothing is to be stored, it takes effect where the value
//! was read. If the comparison fails, another thread's change has taken effect in between, so some
//! thread always makes progress.
//!
//! The index compares values, not versions. A value that was replaced and then put back counts as
//! unchanged (ABA). That is correct here: the function sees nothing but the value, so the result
//! would be the same.

use super::fixed::Integer;
use super::typed::Map;
use super::types::{Key, Value};
use crate::db::open_map::Form;
use crate::error::{Error, Result};
use crate::index::{Change, Previous};

/// A value that was read.
pub(super) struct Read<V: Value + ?Sized> {
    pub(super) value: V::Owned,
    /// Its bytes, if the value could have others.
    bytes: Option<Vec<u8>>,
}

impl<V: Value + ?Sized> Read<V> {
    pub(super) fn value(&self) -> &V {
        V::borrow(&self.value)
    }
}

fn have_same_bytes<V: Value + ?Sized>(one: &V, other: &V) -> bool {
    one.with_bytes(|one| other.with_bytes(|other| one == other))
}

impl<K: Key + ?Sized, V: Value + ?Sized> Map<K, V> {
    /// Atomically sets the value of `key` to what `change` returns; **`None` removes the key**, or leaves it
    /// absent. `change` gets the present value, or `None` if the key is absent. So this can be an upsert, a
    /// conditional insert, an update or a removal. Returns the value that the key has afterwards. To change a
    /// value or leave it as it is, use [`fetch_update`](Map::fetch_update).
    ///
    /// `change` runs under no lock. It runs again if another thread changed the value meanwhile, so
    /// it should have no side effects. If it panics, the map is unchanged. If it returns the value
    /// that it got, nothing is stored.
    ///
    /// Takes the time of a [`get`](Map::get) and a change, and copies the value.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let log = pool.map::<str, str>("log")?;
    /// // Appends, or begins.
    /// let append = |line: &str| {
    ///     log.alter("today", |text| Some(format!("{}{line}\n", text.unwrap_or_default())))
    /// };
    /// append("rain")?;
    /// assert_eq!(append("sun")?.as_deref(), Some("rain\nsun\n"));
    /// // Removes what has become long.
    /// log.alter("today", |text| text.filter(|text| text.len() < 9).map(str::to_owned))?;
    /// assert_eq!(log.get("today")?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert`](Map::insert), but a removal needs no space.
    pub fn alter<F>(&self, key: &K, mut change: F) -> Result<Option<V::Owned>>
    where
        F: FnMut(Option<&V>) -> Option<V::Owned>,
    {
        loop {
            let before = self.read(key)?;
            let after = change(before.as_ref().map(Read::value));
            let done = match (&before, &after) {
                (None, None) => true,
                (None, Some(after)) => self.insert(key, V::borrow(after))?,
                (Some(before), after) => {
                    self.replace(key, before, after.as_ref().map(V::borrow))?
                }
            };
            if done {
                return Ok(after);
            }
        }
    }

    /// Reads a value that may then be [replaced](Self::replace).
    pub(super) fn read(&self, key: &K) -> Result<Option<Read<V>>> {
        if V::ONE_ENCODING {
            return Ok(self.get(key)?.map(|value| Read { value, bytes: None }));
        }
        let Some(bytes) = key.with_bytes(|key| self.raw().get(key))? else { return Ok(None) };
        Ok(Some(Read { value: self.decode(bytes.clone())?, bytes: Some(bytes) }))
    }

    /// Replaces a value by another, or removes it, if it is still the one that was read. Returns whether
    /// it is. Stores nothing if the two have the same bytes.
    pub(super) fn replace(&self, key: &K, before: &Read<V>, after: Option<&V>) -> Result<bool> {
        let Some(before) = &before.bytes else {
            let before = before.value();
            return match after {
                None => self.compare_remove(key, before),
                Some(after) if have_same_bytes(before, after) => Ok(true),
                Some(after) => self.compare_swap(key, before, after),
            };
        };
        key.with_bytes(|key| match after {
            None => self.raw().compare_remove(key, before),
            Some(after) => after.with_bytes(|after| {
                Ok(before == after || self.raw().compare_swap(key, before, after)?)
            }),
        })
    }

    /// Returns the value of `key`. If it is absent, inserts what `make` returns, and returns that.
    ///
    /// `make` runs under no lock, and at most once. Of several threads that call this for an absent
    /// key, each may make a value; one inserts its own, and all return that one. If `make` panics,
    /// the map is unchanged.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ids = pool.map::<str, u64>("ids")?;
    /// assert_eq!(ids.get_or_insert_with("Ada", || 7)?, 7);
    /// assert_eq!(ids.get_or_insert_with("Ada", || unreachable!("it is there"))?, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`insert`](Map::insert).
    pub fn get_or_insert_with<F>(&self, key: &K, make: F) -> Result<V::Owned>
    where
        F: FnOnce() -> V::Owned,
    {
        if let Some(found) = self.get(key)? {
            return Ok(found);
        }
        let made = make();
        loop {
            if self.insert(key, V::borrow(&made))? {
                return Ok(made);
            }
            if let Some(found) = self.get(key)? {
                return Ok(found);
            }
        }
    }

    /// Removes `key` if it is present, without copying its value as [`remove`](Map::remove) does.
    /// Returns whether it was present.
    ///
    /// Works even if the stored value is invalid for this map's type.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// assert!(ages.delete("Ada")?);
    /// assert!(!ages.delete("Ada")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of any call; see [`Map`]. Also [`Error::KeyTooLarge`] and [`Error::ReadOnly`]. A
    /// removal needs no space.
    pub fn delete(&self, key: &K) -> Result<bool> {
        let done = match self.raw().map.form()? {
            Form::Inline(index) => {
                index.change(key.to_word(), Change::Remove, Previous::UNWANTED)?.applied
            }
            Form::Bytes(index) => key.with_bytes(|key| {
                index.change(key, Change::Remove, Previous::UNWANTED).map(|done| done.applied)
            })?,
        };
        Ok(done)
    }

    /// Removes `key` if its value is `expected`, compared byte by byte. Returns whether it did.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let locks = pool.map::<str, u64>("locks")?;
    /// locks.insert("printer", &17)?;
    /// // Only the owner can unlock.
    /// assert!(!locks.compare_remove("printer", &18)?);
    /// assert!(locks.compare_remove("printer", &17)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`delete`](Map::delete).
    pub fn compare_remove(&self, key: &K, expected: &V) -> Result<bool> {
        let done = match self.raw().map.form()? {
            Form::Inline(index) => {
                let change = Change::CompareRemove(expected.to_word());
                index.change(key.to_word(), change, Previous::UNWANTED)?.applied
            }
            Form::Bytes(index) => key.with_bytes(|key| {
                expected.with_bytes(|expected| {
                    let change = Change::CompareRemove(expected);
                    index.change(key, change, Previous::UNWANTED).map(|done| done.applied)
                })
            })?,
        };
        Ok(done)
    }

    /// Removes `key` if it is present and `remove` returns `true` for its value. Returns the value
    /// that was removed.
    ///
    /// `remove` runs under no lock, and runs again if another thread changed the value meanwhile.
    /// So a value that it never saw is never removed.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// // Sessions, and when they end.
    /// let sessions = pool.map::<str, u64>("sessions")?;
    /// sessions.insert("4711", &1_000)?;
    /// let expired = |now: u64| sessions.remove_if("4711", |end| *end <= now);
    /// assert_eq!(expired(999)?, None);
    /// // Even if another thread prolongs it right now, it is either removed or prolonged.
    /// assert_eq!(expired(1_000)?, Some(1_000));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`delete`](Map::delete).
    pub fn remove_if<F>(&self, key: &K, mut remove: F) -> Result<Option<V::Owned>>
    where
        F: FnMut(&V) -> bool,
    {
        while let Some(found) = self.read(key)? {
            if !remove(found.value()) {
                break;
            }
            if self.replace(key, &found, None)? {
                return Ok(Some(found.value));
            }
        }
        Ok(None)
    }

    /// Removes every record for which `keep` returns `false`. Returns how many it removed.
    ///
    /// Goes through the records as [`iter`](Map::iter) does, and removes each as
    /// [`remove_if`](Map::remove_if) does. So each removal is atomic, but all of them together are
    /// not: a record that is inserted meanwhile may be overlooked, and a crash may leave some
    /// removed and others not.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let numbers = pool.map::<u32, u32>("numbers")?;
    /// for n in 0..10 {
    ///     numbers.insert(&n, &(n * n))?;
    /// }
    /// assert_eq!(numbers.retain(|_, square| square % 2 == 0)?, 5);
    /// assert_eq!(numbers.len()?, 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`delete`](Map::delete). Records removed before the error stay removed.
    pub fn retain<F>(&self, mut keep: F) -> Result<u64>
    where
        F: FnMut(&K, &V) -> bool,
    {
        self.retain_of(self.iter(), &mut keep)
    }

    /// Removes those of the records for which `keep` returns `false`.
    pub(super) fn retain_of(
        &self,
        records: impl Iterator<Item = Result<(K::Owned, V::Owned)>>,
        keep: &mut impl FnMut(&K, &V) -> bool,
    ) -> Result<u64> {
        let mut removed = 0;
        for record in records {
            let (key, value) = record?;
            let (key, value) = (K::borrow(&key), V::borrow(&value));
            if keep(key, value) {
                continue;
            }
            let done = self.compare_remove(key, value)?
                || self.remove_if(key, |value| !keep(key, value))?.is_some();
            removed += u64::from(done);
        }
        Ok(removed)
    }

    /// Removes every record that is present throughout the call. Returns how many it removed. It
    /// reads no values.
    ///
    /// Each removal is atomic, but all of them together are not: a record that is inserted
    /// meanwhile may stay, and a crash may leave some removed and others not. To empty a map in one
    /// step, and to free the space of its structure too, drop it with
    /// [`Pool::drop_map`](crate::Pool::drop_map) and create it again.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// assert_eq!(ages.clear()?, 1);
    /// assert!(ages.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`delete`](Map::delete). Records removed before the error stay removed.
    pub fn clear(&self) -> Result<u64> {
        self.raw().clear()
    }
}

impl<K: Key + ?Sized, V: Integer> Map<K, V> {
    /// Adds `amount` to the value of `key`, atomically, and returns the sum. An absent key counts
    /// as 0 and is inserted.
    ///
    /// Every amount that is added counts exactly once, however many threads add to one key.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let visits = pool.map::<str, u8>("visits")?;
    /// assert_eq!(visits.add("/", 1)?, 1);
    /// assert_eq!(visits.add("/", 2)?, 3);
    /// // A counter that would overflow stays as it is.
    /// assert!(matches!(visits.add("/", 253), Err(outlast::Error::Overflow { .. })));
    /// assert_eq!(visits.get("/")?, Some(3));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Overflow`] if the sum is not a value of this type; nothing has changed then. Also
    /// those of [`insert`](Map::insert).
    pub fn add(&self, key: &K, amount: V) -> Result<V> {
        self.calculate(key, |value| value.checked_add(amount))
    }

    /// Subtracts `amount` from the value of `key`, atomically, and returns the difference. An
    /// absent key counts as 0 and is inserted.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let stock = pool.map::<str, u32>("stock")?;
    /// stock.insert("bolts", &5)?;
    /// assert_eq!(stock.sub("bolts", 4)?, 1);
    /// // There are not that many.
    /// assert!(matches!(stock.sub("bolts", 2), Err(outlast::Error::Overflow { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`add`](Map::add).
    pub fn sub(&self, key: &K, amount: V) -> Result<V> {
        self.calculate(key, |value| value.checked_sub(amount))
    }

    fn calculate(&self, key: &K, result: impl Fn(V) -> Option<V>) -> Result<V> {
        loop {
            let before = self.get(key)?;
            let after = result(before.unwrap_or(V::ZERO));
            let after = after.ok_or(Error::Overflow { schema: V::SCHEMA })?;
            let done = match before {
                None => self.insert(key, &after)?,
                Some(before) => self.compare_swap(key, &before, &after)?,
            };
            if done {
                return Ok(after);
            }
        }
    }
}
