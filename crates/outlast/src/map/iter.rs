//! Iteration over a map.

use super::ordered::OrderedMap;
use super::typed::{Map, decode, undecodable, under_key};
use super::types::{Key, OrderedKey, Value};
use crate::db::raw::RawIter;
use crate::error::Result;
use crate::index::{Inline, Record};
use std::marker::PhantomData;

impl<K: Key + ?Sized, V: Value + ?Sized> Map<K, V> {
    /// Iterates over all records: in key order where the scheme keeps one, otherwise in no
    /// particular order. `for record in &map` does the same.
    ///
    /// A record present throughout the scan is returned exactly once, with a value that it had
    /// during the scan. A record inserted or removed during the scan is returned once or not at
    /// all. After an error the iterator ends.
    ///
    /// The iterator reads some records ahead. So after [`Pool::close`](crate::Pool::close) or
    /// [`Pool::drop_map`](crate::Pool::drop_map) it can return a few more before it fails.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// for record in &ages {
    ///     let (name, age) = record?;
    ///     assert_eq!((name.as_str(), age), ("Ada", 36));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn iter(&self) -> Iter<K, V> {
        let inline = self.raw().info().form == Inline::FORM;
        Iter { raw: self.raw().iter(), inline, steps_over: false, types: PhantomData }
    }

    /// Iterates over all records that can be read. This is the way to get data out of a damaged
    /// pool.
    ///
    /// Where [`iter`](Map::iter) ends at the first damage, this iterator returns
    /// [`Error::Damaged`](crate::Error::Damaged) for each damaged place, and goes on. It checks the
    /// checksum of every record, and returns no record whose checksum does not match. (Records that
    /// are stored in place have none.) It also returns records that [`get`](Map::get) does not
    /// find, because a damaged place is in the way. One damaged place can stand for one lost record
    /// or for many: a damaged link can hide everything behind it. After any other error the
    /// iterator ends.
    ///
    /// In a sound map it returns what [`iter`](Map::iter) returns, with the same guarantees.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// ages.insert("Ada", &36)?;
    /// let (mut records, mut places) = (Vec::new(), Vec::new());
    /// for found in ages.salvage() {
    ///     match found {
    ///         Ok(record) => records.push(record),
    ///         Err(outlast::Error::Damaged(damage)) => places.push(damage),
    ///         Err(error) => return Err(error),
    ///     }
    /// }
    /// assert_eq!((records.len(), places.len()), (1, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn salvage(&self) -> Iter<K, V> {
        Iter { raw: self.raw().salvage(), steps_over: true, ..self.iter() }
    }

    /// Iterates over the keys, with the guarantees of [`iter`](Map::iter). Reads no values.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let squares = pool.map::<u32, u64>("squares")?;
    /// for n in 0..100 {
    ///     squares.insert(&n, &(u64::from(n) * u64::from(n)))?;
    /// }
    /// let mut keys = squares.keys().collect::<outlast::Result<Vec<_>>>()?;
    /// keys.sort();
    /// assert!(keys.into_iter().eq(0..100));
    /// # Ok(())
    /// # }
    /// ```
    pub fn keys(&self) -> Keys<K> {
        let inline = self.raw().info().form == Inline::FORM;
        Keys { raw: self.raw().iter_keys(), inline, types: PhantomData }
    }

    /// Iterates over the values, with the guarantees and in the order of [`iter`](Map::iter).
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let stock = pool.map::<str, u64>("stock")?;
    /// stock.insert("bolts", &120)?;
    /// stock.insert("nuts", &80)?;
    /// assert_eq!(stock.values().sum::<outlast::Result<u64>>()?, 200);
    /// # Ok(())
    /// # }
    /// ```
    pub fn values(&self) -> Values<K, V> {
        Values(self.iter())
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> IntoIterator for &Map<K, V> {
    type Item = Result<(K::Owned, V::Owned)>;
    type IntoIter = Iter<K, V>;

    fn into_iter(self) -> Iter<K, V> {
        self.iter()
    }
}

impl<K: OrderedKey + ?Sized, V: Value + ?Sized> IntoIterator for &OrderedMap<K, V> {
    type Item = Result<(K::Owned, V::Owned)>;
    type IntoIter = Iter<K, V>;

    /// Iterates in key order.
    fn into_iter(self) -> Iter<K, V> {
        self.iter()
    }
}

/// An iterator over the records of a [`Map`]; see [`Map::iter`] and [`Map::salvage`].
pub struct Iter<K: ?Sized, V: ?Sized> {
    raw: RawIter,
    inline: bool,
    /// Whether the iterator goes on after a value that is invalid for its type.
    steps_over: bool,
    types: PhantomData<fn() -> (*const K, *const V)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Iterator for Iter<K, V> {
    type Item = Result<(K::Owned, V::Owned)>;

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = match self.raw.next()? {
            Ok(record) => record,
            Err(error) => return Some(Err(error)),
        };
        let (inline, root) = (self.inline, self.raw.root());
        let decoded = decode::<V>(value, inline)
            .map_err(|damage| under_key(&key, inline, damage))
            .and_then(|value| Ok((decode::<K>(key, inline)?, value)))
            .map_err(|damage| undecodable(damage, root));
        if decoded.is_err() && !self.steps_over {
            self.raw.finish();
        }
        Some(decoded)
    }
}

/// An iterator over the keys of a [`Map`]; see [`Map::keys`].
pub struct Keys<K: ?Sized> {
    raw: RawIter,
    inline: bool,
    types: PhantomData<fn() -> *const K>,
}

impl<K: Key + ?Sized> Iterator for Keys<K> {
    type Item = Result<K::Owned>;

    fn next(&mut self) -> Option<Self::Item> {
        let key = match self.raw.next()? {
            Ok((key, _)) => key,
            Err(error) => return Some(Err(error)),
        };
        let decoded =
            decode::<K>(key, self.inline).map_err(|damage| undecodable(damage, self.raw.root()));
        if decoded.is_err() {
            self.raw.finish();
        }
        Some(decoded)
    }
}

/// An iterator over the values of a [`Map`]; see [`Map::values`].
pub struct Values<K: ?Sized, V: ?Sized>(Iter<K, V>);

impl<K: Key + ?Sized, V: Value + ?Sized> Iterator for Values<K, V> {
    type Item = Result<V::Owned>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(|(_, value)| value))
    }
}
