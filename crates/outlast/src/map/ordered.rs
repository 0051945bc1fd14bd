//! The typed ordered map.

use super::typed::{Map, undecodable};
use super::types::{Key, Value};
use crate::db::raw::{FormRecord, RawRange};
use crate::error::Result;
use crate::index::{Inline, Record};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{
    Bound, Deref, Range as StdRange, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo,
    RangeToInclusive,
};

/// A key with an order: integers by number, byte strings and text byte by byte.
pub trait OrderedKey: Key {}

macro_rules! ordered {
    ($($type:ty),*) => {$(impl OrderedKey for $type {})*};
}
ordered!(u8, u16, u32, u64, i8, i16, i32, i64, [u8], str);

/// Where a range of keys begins and ends: `a..b`, `a..=b`, `a..`, `..b`, `..=b`, `..` or a pair of
/// [`Bound`]s, of keys or of references to keys; so `"a".."b"` too, where the standard library's
/// [`RangeBounds`] is for types of a known size only.
pub trait KeyBounds<K: ?Sized> {
    /// Where it begins.
    fn low(&self) -> Bound<&K>;
    /// Where it ends.
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
/// It is a [`Map`], and has all that one has; [`iter`](Map::iter) goes in the order of the
/// keys. What it has beyond that takes time logarithmic in the number of records, and, for
/// ranges, linear in what is reported.
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

    /// The record of the least key.
    ///
    /// There is a moment during the call at which it was that, with this value, and in the same
    /// way for [`last`](Self::last), [`floor`](Self::floor) and [`ceiling`](Self::ceiling).
    /// They read a leaf, up to 56 records, where [`get`](Map::get) reads one.
    ///
    /// # Errors
    /// As any call, see [`Map`].
    pub fn first(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.one((Bound::Unbounded, Bound::Unbounded), false)
    }

    /// The record of the greatest key.
    ///
    /// # Errors
    /// As any call, see [`Map`].
    pub fn last(&self) -> Result<Option<(K::Owned, V::Owned)>> {
        self.one((Bound::Unbounded, Bound::Unbounded), true)
    }

    /// The record of the greatest key that is not above this one.
    ///
    /// # Errors
    /// As any call, see [`Map`].
    pub fn floor(&self, key: &K) -> Result<Option<(K::Owned, V::Owned)>> {
        self.one((Bound::Unbounded, Bound::Included(key)), true)
    }

    /// The record of the least key that is not below this one.
    ///
    /// # Errors
    /// As any call, see [`Map`].
    pub fn ceiling(&self, key: &K) -> Result<Option<(K::Owned, V::Owned)>> {
        self.one((Bound::Included(key), Bound::Unbounded), false)
    }

    fn one(
        &self,
        bounds: (Bound<&K>, Bound<&K>),
        from_the_end: bool,
    ) -> Result<Option<(K::Owned, V::Owned)>> {
        let found = self.bounded(bounds).raw.end(from_the_end)?;
        found.map(typed::<K, V>).transpose()
    }

    /// The records whose keys are in a range, in the order of their keys, from either end.
    ///
    /// A record that is in the range during the whole walk is reported exactly once, with a
    /// value that it had during the walk; one that is inserted or removed meanwhile is reported
    /// once or not at all. Keys come in order, whatever happens meanwhile. The iterator holds
    /// no lock and no place: it can be kept for as long as the map, and dropped at any time.
    /// After an error it ends.
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

    fn bounded(&self, (low, high): (Bound<&K>, Bound<&K>)) -> Range<K, V> {
        let raw = self.map.raw();
        let range = if raw.record_form() == Inline::FORM {
            raw.range_of_words(low.map(Value::to_word), high.map(Value::to_word))
        } else {
            let bytes = |bound: Bound<&K>| bound.map(|key| key.with_bytes(<[u8]>::to_vec));
            let (low, high) = (bytes(low), bytes(high));
            raw.range_of_bytes(low.as_ref().map(|k| &k[..]), high.as_ref().map(|k| &k[..]))
        };
        Range { raw: range, types: PhantomData }
    }
}

/// Keys that begin with the same bytes.
macro_rules! prefixed {
    ($($type:ty),*) => {$(
        impl<V: Value + ?Sized> OrderedMap<$type, V> {
            /// The records whose keys begin with this, in the order of their keys, from either
            /// end. See [`range`](OrderedMap::range).
            pub fn prefix(&self, prefix: &$type) -> Range<$type, V> {
                let (low, high) = prefix.with_bytes(|bytes| (bytes.to_vec(), above_all_with(bytes)));
                let low = Bound::Included(&low[..]);
                let high = high.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let raw = self.map.raw().range_of_bytes(low, high);
                Range { raw, types: PhantomData }
            }
        }
    )*};
}
prefixed!([u8], str);

/// The least byte string that is above all that begin with this one, if there is one.
pub(super) fn above_all_with(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut above = prefix[..=last].to_vec();
    above[last] += 1;
    Some(above)
}

/// The records of a range, see [`OrderedMap::range`].
pub struct Range<K: ?Sized, V: ?Sized> {
    raw: RawRange,
    types: PhantomData<fn() -> (*const K, *const V)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Range<K, V> {
    /// Reads at most so many records at once, and keeps those that were not yet asked for.
    /// Default: 64.
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
        let record = typed::<K, V>(record);
        if record.is_err() {
            self.raw.finish();
        }
        Some(record)
    }
}

#[inline]
fn typed<K: Key + ?Sized, V: Value + ?Sized>(record: FormRecord) -> Result<(K::Owned, V::Owned)> {
    let record = match record {
        FormRecord::Inline(key, value) => (K::from_word(key), V::from_word(value)),
        FormRecord::Bytes(key, value) => (K::from_bytes(key), V::from_bytes(value)),
    };
    match record {
        (Ok(key), Ok(value)) => Ok((key, value)),
        (Err(damage), _) | (_, Err(damage)) => Err(undecodable(damage)),
    }
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
