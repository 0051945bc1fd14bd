//! The typed ordered map.

use super::tuples::OrderedPart;
use super::typed::{Map, undecodable, under_key};
use super::types::{Key, OrderedKey, Value};
use crate::db::raw::{FormRecord, RawMap, RawRange};
use crate::error::Result;
use crate::index::{Inline, Record};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{
    Bound, Deref, Range as StdRange, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo,
    RangeToInclusive,
};

/// The bounds of a range of keys: `a..b`, `a..=b`, `a..`, `..b`, `..=b`, `..` or a pair of
/// [`Bound`]s, over keys or references to keys. `"a".."b"` works too; the standard library's
/// [`RangeBounds`] accepts only sized types there.
pub trait KeyBounds<K: ?Sized> {
    /// The lower bound.
    fn low(&self) -> Bound<&K>;
    /// The upper bound.
    fn high(&self) -> Bound<&K>;
}

impl<K: ?Sized> KeyBounds<K> for RangeFull {
    fn low(&self) -> Bound<&K> {
        Bound::Unbounded
    }
    fn high(&self) -> Bound<&K> {
        Bound::Unbounded
    }
}

macro_rules! key_bounds {
    ($($range:ident),*) => {$(
        key_bounds!(@of [K] $range<K>, K, |key| key);
        key_bounds!(@of [K: ?Sized] $range<&K>, &K, |key| *key);
    )*};
    (@of [$($generics:tt)*] $range:ty, $key:ty, $to_key:expr) => {
        impl<$($generics)*> KeyBounds<K> for $range {
            fn low(&self) -> Bound<&K> {
                RangeBounds::<$key>::start_bound(self).map($to_key)
            }
            fn high(&self) -> Bound<&K> {
                RangeBounds::<$key>::end_bound(self).map($to_key)
            }
        }
    };
}
key_bounds!(StdRange, RangeFrom, RangeTo, RangeInclusive, RangeToInclusive);
key_bounds!(@of [K] (Bound<K>, Bound<K>), K, |key| key);
key_bounds!(@of [K: ?Sized] (Bound<&K>, Bound<&K>), &K, |key| *key);

/// A durable, concurrent map of a [`Pool`](crate::Pool) in the order of its keys.
///
/// An ordered map dereferences to a [`Map`] and has all of its methods. [`iter`](Map::iter),
/// [`keys`](Map::keys) and [`values`](Map::values) walk in key order. Durability and errors are
/// those of a [`Map`]. Operations on one key, and those that a [`Map`] does not have, take time
/// logarithmic in the number of records; ranges also take time linear in the number of records
/// returned.
///
/// ```
/// # fn main() -> outlast::Result<()> {
/// let pool = outlast::PoolOptions::new().anonymous()?;
/// let heights = pool.ordered_map::<i32, str>("heights")?;
/// for (metres, what) in [(-11, "Baku"), (8848, "Everest"), (0, "sea"), (-430, "Dead Sea")] {
///     heights.insert(&metres, what)?;
/// }
/// assert_eq!(heights.first()?, Some((-430, "Dead Sea".into())));
/// assert_eq!(heights.floor(&-12)?, Some((-430, "Dead Sea".into())));
/// let above: Vec<_> = heights.range(0..).collect::<outlast::Result<_>>()?;
/// assert_eq!(above.len(), 2);
/// let lowest_last: Vec<_> = heights.range(..0).rev().collect::<outlast::Result<_>>()?;
/// assert_eq!(lowest_last[0].1, "Baku");
/// # Ok(())
/// # }
/// ```
pub struct OrderedMap<K: ?Sized, V: ?Sized> {
    map: Map<K, V>,
}

impl<K: ?Sized, V: ?Sized> Clone for OrderedMap<K, V> {
    fn clone(&self) -> Self {
        OrderedMap { map: self.map.clone() }
    }
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for OrderedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.map, f)
    }
}

impl<K: ?Sized, V: ?Sized> Deref for OrderedMap<K, V> {
    type Target = Map<K, V>;

    fn deref(&self) -> &Map<K, V> {
        &self.map
    }
}

impl<K: OrderedKey + ?Sized, V: Value + ?Sized> OrderedMap<K, V> {
    pub(crate) fn new(map: Map<K, V>) -> Self {
        OrderedMap { map }
    }

    /// Returns the record with the least key.
    ///
    /// At some moment during the call, that record was the first one and had that value. The same
    /// holds for [`last`](Self::last), [`floor`](Self::floor) and [`ceiling`](Self::ceiling). These
    /// calls read a whole leaf of up to 56 records, where [`get`](Map::get) reads one record.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let heights = pool.ordered_map::<i32, str>("heights")?;
    /// heights.insert(&-430, "Dead Sea")?;
    /// heights.insert(&8848, "Everest")?;
    /// assert_eq!(heights.first()?, Some((-430, "Dead Sea".into())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of any call; see [`Map`].
    pub fn first(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.one((Bound::Unbounded, Bound::Unbounded), false)
    }

    /// Returns the record with the greatest key.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let heights = pool.ordered_map::<i32, str>("heights")?;
    /// heights.insert(&-430, "Dead Sea")?;
    /// heights.insert(&8848, "Everest")?;
    /// assert_eq!(heights.last()?, Some((8848, "Everest".into())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of any call; see [`Map`].
    pub fn last(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.one((Bound::Unbounded, Bound::Unbounded), true)
    }

    /// Returns the record with the greatest key that is not above `key`.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let heights = pool.ordered_map::<i32, str>("heights")?;
    /// heights.insert(&-430, "Dead Sea")?;
    /// heights.insert(&8848, "Everest")?;
    /// assert_eq!(heights.floor(&0)?, Some((-430, "Dead Sea".into())));
    /// assert_eq!(heights.floor(&-431)?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of any call; see [`Map`].
    pub fn floor(&self, key: &K) -> Result<Option<(K::Owned, V::Owned)>> {
        self.one((Bound::Unbounded, Bound::Included(key)), true)
    }

    /// Returns the record with the least key that is not below `key`.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let heights = pool.ordered_map::<i32, str>("heights")?;
    /// heights.insert(&-430, "Dead Sea")?;
    /// heights.insert(&8848, "Everest")?;
    /// assert_eq!(heights.ceiling(&0)?, Some((8848, "Everest".into())));
    /// assert_eq!(heights.ceiling(&-430)?, Some((-430, "Dead Sea".into())));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of any call; see [`Map`].
    pub fn ceiling(&self, key: &K) -> Result<Option<(K::Owned, V::Owned)>> {
        self.one((Bound::Included(key), Bound::Unbounded), false)
    }

    fn one(
        &self,
        bounds: (Bound<&K>, Bound<&K>),
        from_the_end: bool,
    ) -> Result<Option<(K::Owned, V::Owned)>> {
        let found = self.bounded(bounds).raw.end(from_the_end)?;
        found.map(|record| typed::<K, V>(record, self.map.raw().root())).transpose()
    }

    /// Iterates over the records whose keys lie within `bounds`, in key order, from either end.
    ///
    /// A record present throughout the scan is returned exactly once, with a value that it had
    /// during the scan. A record inserted or removed during the scan is returned once or not at
    /// all. Keys always come in order, whatever other threads do. The iterator holds no lock and
    /// pins no epoch, so it can be kept as long as the map. After an error it ends.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let words = pool.ordered_map::<str, u64>("words")?;
    /// for word in ["ant", "bee", "cow", "dog"] {
    ///     words.insert(word, &(word.len() as u64))?;
    /// }
    /// assert_eq!(words.range("b".."d").count(), 2);
    /// assert_eq!(words.range(..="bee").next_back().transpose()?, Some(("bee".into(), 3)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn range(&self, bounds: impl KeyBounds<K>) -> Range<K, V> {
        self.bounded((bounds.low(), bounds.high()))
    }

    /// Removes the records whose keys lie within `bounds` and that are present throughout the call.
    /// Returns how many it removed.
    ///
    /// Each removal is atomic, but all of them together are not: a record that is inserted meanwhile
    /// may stay, and a crash may leave some removed and others not.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let log = pool.ordered_map::<(u32, u32), str>("log")?;
    /// for (day, number) in [(1, 1), (1, 2), (2, 1), (3, 1)] {
    ///     log.insert(&(day, number), "text")?;
    /// }
    /// assert_eq!(log.remove_range(..(3, 0))?, 3);
    /// assert_eq!(log.first()?.unwrap().0, (3, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`delete`](Map::delete). Records removed before the error stay removed.
    pub fn remove_range(&self, bounds: impl KeyBounds<K>) -> Result<u64> {
        const ROW: usize = 64;
        let (mut range, mut removed) = (self.range(bounds), 0);
        loop {
            let keys: Vec<K::Owned> =
                range.by_ref().take(ROW).map(|record| Ok(record?.0)).collect::<Result<_>>()?;
            let row: Vec<&K> = keys.iter().map(K::borrow).collect();
            removed +=
                self.remove_many(&row)?.into_iter().filter(|removed| *removed).count() as u64;
            if keys.len() < ROW {
                return Ok(removed);
            }
        }
    }

    /// Removes those records whose keys lie within `bounds` and for which `keep` returns `false`, as
    /// [`retain`](Map::retain) does. Returns how many it removed.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let heights = pool.ordered_map::<u32, u32>("heights")?;
    /// for n in 0..10 {
    ///     heights.insert(&n, &(n % 3))?;
    /// }
    /// assert_eq!(heights.retain_range(5.., |_, height| *height > 0)?, 2);
    /// assert_eq!(heights.len()?, 8);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`delete`](Map::delete). Records removed before the error stay removed.
    pub fn retain_range<F>(&self, bounds: impl KeyBounds<K>, mut keep: F) -> Result<u64>
    where
        F: FnMut(&K, &V) -> bool,
    {
        self.map.retain_of(self.range(bounds), &mut keep)
    }

    fn bounded(&self, (low, high): (Bound<&K>, Bound<&K>)) -> Range<K, V> {
        let raw = self.map.raw();
        let range = if raw.info().form == Inline::FORM {
            raw.range_of_words(low.map(Value::to_word), high.map(Value::to_word))
        } else {
            let bytes = |bound: Bound<&K>| bound.map(|key| key.with_bytes(<[u8]>::to_vec));
            let (low, high) = (bytes(low), bytes(high));
            raw.range_of_bytes(low.as_ref().map(|k| &k[..]), high.as_ref().map(|k| &k[..]))
        };
        Range { raw: range, types: PhantomData }
    }
}

/// Implements `prefix` for keys that are byte strings.
macro_rules! prefixed {
    ($($type:ty),*) => {$(
        impl<V: Value + ?Sized> OrderedMap<$type, V> {
            /// Iterates over the records whose keys begin with `prefix`, in key order, from either
            /// end. See [`range`](OrderedMap::range).
            ///
            /// ```
            /// # fn main() -> outlast::Result<()> {
            /// let pool = outlast::PoolOptions::new().anonymous()?;
            /// let sizes = pool.ordered_map::<str, u64>("sizes")?;
            /// for (file, size) in [("doc/a", 3), ("src/a", 10), ("src/b", 20), ("srcs", 1)] {
            ///     sizes.insert(file, &size)?;
            /// }
            /// let in_src: Vec<_> = sizes.prefix("src/").collect::<outlast::Result<_>>()?;
            /// assert_eq!(in_src, [("src/a".to_owned(), 10), ("src/b".to_owned(), 20)]);
            /// # Ok(())
            /// # }
            /// ```
            pub fn prefix(&self, prefix: &$type) -> Range<$type, V> {
                let raw = prefix.with_bytes(|bytes| range_with(self.map.raw(), bytes));
                Range { raw, types: PhantomData }
            }
        }
    )*};
}
prefixed!([u8], str);

/// Implements `prefix` for keys that are tuples.
macro_rules! first_part {
    ($($rest:ident),+) => {
        impl<A: OrderedPart, $($rest: OrderedPart,)+ V: Value + ?Sized> OrderedMap<(A, $($rest),+), V> {
            /// Iterates over the records whose keys have this first part, in key order, from either
            /// end. See [`range`](OrderedMap::range).
            ///
            /// ```
            /// # fn main() -> outlast::Result<()> {
            /// let pool = outlast::PoolOptions::new().anonymous()?;
            /// let mails = pool.ordered_map::<(String, u64), str>("mails")?;
            /// for (user, number, text) in [("ada", 1, "hello"), ("ada", 2, "bye"), ("bob", 1, "so")] {
            ///     mails.insert(&(user.into(), number), text)?;
            /// }
            /// let of_ada: Vec<_> = mails.prefix("ada").collect::<outlast::Result<_>>()?;
            /// assert_eq!(of_ada, [(("ada".into(), 1), "hello".into()), (("ada".into(), 2), "bye".into())]);
            /// # Ok(())
            /// # }
            /// ```
            pub fn prefix(&self, first: &A::Borrowed) -> Range<(A, $($rest),+), V> {
                let raw = self.map.raw();
                let mut bytes = Vec::new();
                A::append(first, false, &mut bytes);
                let range = if raw.info().form == Inline::FORM {
                    let rest = 0 $(+ $rest::BYTES.expect("the parts of a word have sizes"))+;
                    let all = bytes.len() + rest;
                    let [low, high] = [0, u8::MAX].map(|fill| word_with(&bytes, all, fill));
                    raw.range_of_words(Bound::Included(low), Bound::Included(high))
                } else {
                    range_with(raw, &bytes)
                };
                Range { raw: range, types: PhantomData }
            }
        }
    };
}
first_part!(B);
first_part!(B, C);
first_part!(B, C, D);

/// Returns the word of the encoding of `all` bytes that begins with `first` and is filled up with
/// `fill`.
fn word_with(first: &[u8], all: usize, fill: u8) -> u64 {
    let mut word = [0; 8];
    let own = &mut word[8 - all..];
    own.fill(fill);
    own[..first.len()].copy_from_slice(first);
    u64::from_be_bytes(word)
}

/// Returns the range of the keys whose bytes begin with `first`.
fn range_with(map: &RawMap, first: &[u8]) -> RawRange {
    let high = above_all_with(first);
    map.range_of_bytes(
        Bound::Included(first),
        high.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
    )
}

/// Returns the least byte string above all those that begin with `prefix`, if there is one.
pub(super) fn above_all_with(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut above = prefix[..=last].to_vec();
    above[last] += 1;
    Some(above)
}

/// An iterator over a range of records; see [`OrderedMap::range`].
pub struct Range<K: ?Sized, V: ?Sized> {
    raw: RawRange,
    types: PhantomData<fn() -> (*const K, *const V)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Range<K, V> {
    /// Sets how many records are read at a time and buffered. Default: 64.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let squares = pool.ordered_map::<u64, u64>("squares")?;
    /// for n in 0..1_000 {
    ///     squares.insert(&n, &(n * n))?;
    /// }
    /// // Only three are wanted, so there is no need to read 64.
    /// let three: Vec<_> = squares.range(10..).with_batch(3).take(3).collect::<outlast::Result<_>>()?;
    /// assert_eq!(three, [(10, 100), (11, 121), (12, 144)]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_batch(mut self, records: usize) -> Self {
        self.raw = self.raw.with_batch(records);
        self
    }

    #[inline]
    fn step(&mut self, reverse: bool) -> Option<Result<(K::Owned, V::Owned)>> {
        let record = match self.raw.step(reverse)? {
            Ok(record) => record,
            Err(error) => return Some(Err(error)),
        };
        let record = typed::<K, V>(record, self.raw.root());
        if record.is_err() {
            self.raw.finish();
        }
        Some(record)
    }
}

#[inline]
fn typed<K: Key + ?Sized, V: Value + ?Sized>(
    record: FormRecord,
    root: u64,
) -> Result<(K::Owned, V::Owned)> {
    let record = match record {
        FormRecord::Inline(key, value) => V::from_word(value)
            .map_err(|damage| under_key(&key.to_le_bytes(), true, damage))
            .and_then(|value| Ok((K::from_word(key)?, value))),
        FormRecord::Bytes(key, value) => V::from_bytes(value)
            .map_err(|damage| under_key(&key, false, damage))
            .and_then(|value| Ok((K::from_bytes(key)?, value))),
    };
    record.map_err(|damage| undecodable(damage, root))
}

impl<K: Key + ?Sized, V: Value + ?Sized> Iterator for Range<K, V> {
    type Item = Result<(K::Owned, V::Owned)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> DoubleEndedIterator for Range<K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_alike_ends_where_the_next_begins() {
        assert_eq!(above_all_with(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(above_all_with(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(above_all_with(b"\xff"), None);
        assert_eq!(above_all_with(b""), None);
    }
}
