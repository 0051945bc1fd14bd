//! The interface and the key handling of ordered indexes.

use super::record::{Bytes, Inline, Record, SlotRecord, SlotWords, linked};
use super::{Care, Cursor};
use crate::error::{Damage, Result};
use crate::pmem::{Point, Seam};
use crate::pool::core::Core;
use std::cmp::Ordering;
use std::ops::Bound;

/// How keys are ordered, according to their schema. Written to media, as part of a map's
/// configuration.
///
/// Byte strings are ordered byte by byte; a prefix comes before the strings that it begins.
/// Integers are ordered by value, which is not the order of their bytes on media. So an index
/// encodes integers into a form whose order as words, or as bytes, is the numerical order, and
/// decodes them when it hands them out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrder {
    /// By bytes; words as unsigned numbers.
    Plain,
    /// Integers of a given width.
    Integer {
        /// 1, 2, 4 or 8.
        bytes: u8,
        /// Whether they are signed.
        signed: bool,
    },
}

impl KeyOrder {
    /// Returns the order of keys of this schema.
    pub fn of_schema(schema: &str) -> KeyOrder {
        let integer = |bytes| KeyOrder::Integer { bytes, signed: schema.starts_with('i') };
        match schema {
            "u8" | "i8" => integer(1),
            "u16" | "i16" => integer(2),
            "u32" | "i32" => integer(4),
            "u64" | "i64" => integer(8),
            _ => KeyOrder::Plain,
        }
    }

    /// Returns the word for the media.
    pub fn to_media(self) -> u64 {
        match self {
            KeyOrder::Plain => 0,
            KeyOrder::Integer { bytes, signed } => u64::from(bytes) | u64::from(signed) << 8,
        }
    }

    /// Reads the word on media.
    pub fn from_media(word: u64) -> Option<KeyOrder> {
        let order = match word & 0xff {
            0 => KeyOrder::Plain,
            bytes @ (1 | 2 | 4 | 8) => {
                KeyOrder::Integer { bytes: bytes as u8, signed: word >> 8 == 1 }
            }
            _ => return None,
        };
        (order.to_media() == word).then_some(order)
    }

    /// Returns the sign bit of an integer's word, or 0 if integers are unsigned.
    #[inline(always)]
    fn sign(self) -> u64 {
        match self {
            KeyOrder::Integer { bytes, signed: true } => 1 << (8 * bytes - 1),
            _ => 0,
        }
    }
}

/// A record form whose keys can be compared.
pub trait OrderedRecord: SlotRecord {
    /// Encodes a key into the form in which an index stores it. If that changes the key's bytes,
    /// the encoded copy is made in `space`.
    fn encode<'s, 'k: 's>(
        order: KeyOrder,
        key: Self::Key<'k>,
        space: &'s mut [u8; 8],
    ) -> Self::Key<'s>;
    /// Decodes a stored key, in place, into the form in which the caller had passed it in.
    fn decode(order: KeyOrder, key: &mut Self::OwnedKey);
    /// Copies a key.
    fn own(key: Self::Key<'_>) -> Self::OwnedKey;
    /// Returns the least key.
    fn least() -> Self::OwnedKey;
    /// Compares two keys.
    fn compare(a: Self::Key<'_>, b: Self::Key<'_>) -> Ordering;
    /// Sorts records by their keys, which are all different.
    fn sort(records: &mut [(Self::OwnedKey, Self::Owned)]) {
        records.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    }
    /// Returns eight bytes of a key, starting at `skip`, as a word that keeps their order. Zeros
    /// stand for bytes beyond the key's end. An inline key is the word itself, whatever `skip` is.
    fn word(key: Self::Key<'_>, skip: usize) -> u64;
    /// Returns whether a key has at least `len` bytes, and begins with those that these
    /// [words](Self::word) hold. Every inline key does.
    fn begins_with(key: Self::Key<'_>, len: usize, word: impl Fn(usize) -> u64) -> bool;

    /// Compares a key with the key that the first word of a slot stands for: a separator, or the
    /// key of a record.
    fn compare_with<S: Seam>(
        core: &Core<S>,
        key: Self::Key<'_>,
        first: u64,
    ) -> Result<Ordering, Damage>;
    /// Compares the first `skip` bytes of a key with the first `skip` bytes of the separator that
    /// `first` stands for. A shorter key or separator is compared in full. Inline keys have no such
    /// bytes and count as equal.
    fn compare_start<S: Seam>(
        core: &Core<S>,
        key: Self::Key<'_>,
        first: u64,
        skip: usize,
    ) -> Result<Ordering, Damage>;
    /// Reads the key that the first word of a pair stands for.
    fn key_at<S: Seam>(core: &Core<S>, first: u64) -> Result<Self::OwnedKey, Damage>;
    /// Returns the length, in bytes, of the prefix that two keys share. It is 0 for inline keys.
    fn shared(a: Self::Key<'_>, b: Self::Key<'_>) -> usize;

    /// Reads the position of an iteration.
    fn from_cursor(cursor: &Cursor) -> Self::OwnedKey;
    /// Sets where an iteration continues.
    fn to_cursor(key: Self::OwnedKey, cursor: &mut Cursor);

    /// Makes a separator, a key that is greater than `below` and at most `at`, and returns it as
    /// the words of a pair. If it needs a block, the block is flushed, and is durable after the
    /// calling thread's next fence.
    fn separator<S: Seam>(
        core: &Core<S>,
        below: &Self::OwnedKey,
        at: &Self::OwnedKey,
        point: &'static Point,
    ) -> Result<SlotWords>;
}

impl OrderedRecord for Inline {
    #[inline(always)]
    fn encode<'s, 'k: 's>(order: KeyOrder, key: u64, _: &'s mut [u8; 8]) -> u64 {
        key ^ order.sign()
    }
    #[inline(always)]
    fn decode(order: KeyOrder, key: &mut u64) {
        *key ^= order.sign();
    }
    fn own(key: u64) -> u64 {
        key
    }
    fn least() -> u64 {
        0
    }
    #[inline(always)]
    fn compare(a: u64, b: u64) -> Ordering {
        a.cmp(&b)
    }
    fn sort(records: &mut [(u64, u64)]) {
        if !spread(records) {
            records.sort_unstable_by_key(|&(key, _)| key);
        }
    }
    #[inline(always)]
    fn word(key: u64, _: usize) -> u64 {
        key
    }
    #[inline(always)]
    fn begins_with(_: u64, _: usize, _: impl Fn(usize) -> u64) -> bool {
        true
    }
    #[inline(always)]
    fn compare_with<S: Seam>(_: &Core<S>, key: u64, first: u64) -> Result<Ordering, Damage> {
        Ok(key.cmp(&first))
    }
    #[inline(always)]
    fn compare_start<S: Seam>(_: &Core<S>, _: u64, _: u64, _: usize) -> Result<Ordering, Damage> {
        Ok(Ordering::Equal)
    }
    #[inline(always)]
    fn key_at<S: Seam>(_: &Core<S>, first: u64) -> Result<u64, Damage> {
        Ok(first)
    }
    fn shared(_: u64, _: u64) -> usize {
        0
    }
    fn from_cursor(cursor: &Cursor) -> u64 {
        cursor.low
    }
    fn to_cursor(key: u64, cursor: &mut Cursor) {
        cursor.low = key;
    }
    fn separator<S: Seam>(_: &Core<S>, _: &u64, at: &u64, _: &'static Point) -> Result<SlotWords> {
        Ok(SlotWords { first: *at, second: 0 })
    }
}

/// The most records that [`spread`] sorts.
const SPREAD: usize = 64;

/// Sorts a few records whose keys are roughly evenly spread. It distributes them by the leading
/// bits of their distance from the least key, and then does an insertion sort. Returns whether it
/// sorted them. Otherwise there are more than [`SPREAD`], or their keys are not spread evenly
/// enough, and the records are unchanged.
fn spread(records: &mut [(u64, u64)]) -> bool {
    let (mut least, mut greatest) = (u64::MAX, 0);
    for &(key, _) in &*records {
        (least, greatest) = (least.min(key), greatest.max(key));
    }
    if records.len() > SPREAD || least >= greatest {
        return records.len() <= 1;
    }
    let shift = (64 - (greatest - least).leading_zeros()).saturating_sub(SPREAD.ilog2());
    let part = |key: u64| ((key - least) >> shift) as usize % SPREAD;
    let mut ends = [0u8; SPREAD];
    for &(key, _) in &*records {
        ends[part(key)] += 1;
    }
    let (mut end, mut most) = (0, 0);
    for part in &mut ends {
        most = most.max(*part);
        end += *part;
        *part = end;
    }
    if most > 8 {
        return false;
    }
    let mut sorted = [(0, 0); SPREAD];
    let sorted = &mut sorted[..records.len()];
    for &(key, value) in &*records {
        let place = &mut ends[part(key)];
        *place -= 1;
        sorted[usize::from(*place)] = (key, value);
    }
    for next in 1..sorted.len() {
        let record = sorted[next];
        let mut at = next;
        while at > 0 && sorted[at - 1].0 > record.0 {
            sorted[at] = sorted[at - 1];
            at -= 1;
        }
        sorted[at] = record;
    }
    records.copy_from_slice(sorted);
    true
}

impl OrderedRecord for Bytes {
    #[inline(always)]
    fn encode<'s, 'k: 's>(order: KeyOrder, key: &'k [u8], space: &'s mut [u8; 8]) -> &'s [u8] {
        match order {
            KeyOrder::Integer { bytes, .. } if key.len() == usize::from(bytes) => {
                let encoded = &mut space[..key.len()];
                encoded.copy_from_slice(key);
                encoded.reverse();
                encoded[0] ^= (order.sign() >> (8 * (bytes - 1))) as u8;
                encoded
            }
            _ => key,
        }
    }
    fn decode(order: KeyOrder, key: &mut Vec<u8>) {
        if let KeyOrder::Integer { bytes, .. } = order
            && key.len() == usize::from(bytes)
        {
            key[0] ^= (order.sign() >> (8 * (bytes - 1))) as u8;
            key.reverse();
        }
    }
    fn own(key: &[u8]) -> Vec<u8> {
        key.to_vec()
    }
    fn least() -> Vec<u8> {
        Vec::new()
    }
    #[inline(always)]
    fn compare(a: &[u8], b: &[u8]) -> Ordering {
        a.cmp(b)
    }
    #[inline(always)]
    fn word(key: &[u8], skip: usize) -> u64 {
        let rest = key.get(skip..).unwrap_or_default();
        match rest.first_chunk() {
            Some(chunk) => u64::from_be_bytes(*chunk),
            None => {
                let mut word = [0; 8];
                word[..rest.len()].copy_from_slice(rest);
                u64::from_be_bytes(word)
            }
        }
    }
    #[inline(always)]
    fn begins_with(key: &[u8], len: usize, word: impl Fn(usize) -> u64) -> bool {
        let Some(key) = key.get(..len) else { return false };
        let (whole, rest) = key.as_chunks::<8>();
        let is_same = |(i, bytes): (usize, &[u8; 8])| u64::from_be_bytes(*bytes) == word(i);
        whole.iter().enumerate().all(is_same)
            && (rest.is_empty()
                || (Self::word(rest, 0) ^ word(whole.len())) >> (64 - 8 * rest.len()) == 0)
    }
    fn compare_with<S: Seam>(core: &Core<S>, key: &[u8], first: u64) -> Result<Ordering, Damage> {
        Self::compare_start(core, key, first, usize::MAX)
    }
    fn compare_start<S: Seam>(
        core: &Core<S>,
        key: &[u8],
        first: u64,
        skip: usize,
    ) -> Result<Ordering, Damage> {
        if first == 0 {
            return Ok(key[..key.len().min(skip)].cmp(&[]));
        }
        let record = linked(core, SlotWords { first, second: 0 })?;
        let len = record.key_len().min(skip);
        let key = &key[..key.len().min(skip)];
        let mut piece = [0; 64];
        let mut at = 0;
        while at < len && at < key.len() {
            let bytes = (len - at).min(key.len() - at).min(piece.len());
            record.read_key(core, at, &mut piece[..bytes]);
            match key[at..at + bytes].cmp(&piece[..bytes]) {
                Ordering::Equal => at += bytes,
                other => return Ok(other),
            }
        }
        Ok(key.len().cmp(&len))
    }
    fn key_at<S: Seam>(core: &Core<S>, first: u64) -> Result<Vec<u8>, Damage> {
        if first == 0 { Ok(Vec::new()) } else { Self::key(core, SlotWords { first, second: 0 }) }
    }
    fn shared(a: &[u8], b: &[u8]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }
    fn from_cursor(cursor: &Cursor) -> Vec<u8> {
        cursor.key.clone()
    }
    fn to_cursor(key: Vec<u8>, cursor: &mut Cursor) {
        cursor.key = key;
    }
    fn separator<S: Seam>(
        core: &Core<S>,
        below: &Vec<u8>,
        at: &Vec<u8>,
        point: &'static Point,
    ) -> Result<SlotWords> {
        let len = Self::shared(below, at) + 1;
        let key = &at[..len.min(at.len())];
        Self::prepare_unfenced(core, key, &[], Self::hash(&core.hasher, key), point)
    }
}

/// Returns whether a separator is intact. An inline one always is. The empty byte string must be
/// two words of 0; any other has a block, which is checked.
pub(super) fn separator_is_whole<S: Seam, R: OrderedRecord>(
    core: &Core<S>,
    words: SlotWords,
) -> Result<bool, Damage> {
    if R::EMPTY == Some(words.first) {
        return Ok(words.second == 0);
    }
    R::is_whole(core, words)
}

/// The part of a range of keys that is still to be reported. It survives splits and merges, and is
/// valid as long as the map.
#[derive(Debug, Clone)]
pub struct KeyRange<R: Record> {
    pub(super) low: Bound<R::OwnedKey>,
    pub(super) high: Bound<R::OwnedKey>,
    /// Whether the bounds are encoded. They are not when the range is new.
    pub(super) encoded: bool,
    pub(super) done: bool,
    pub(crate) care: Care,
    /// The damage that the scan has stepped over and its caller has not collected yet.
    pub(crate) lost: Vec<Damage>,
}

impl<R: Record> KeyRange<R> {
    /// Makes a range of which nothing has been reported.
    pub fn new(low: Bound<R::OwnedKey>, high: Bound<R::OwnedKey>) -> Self {
        KeyRange { low, high, encoded: false, done: false, care: Care::Trust, lost: Vec::new() }
    }

    /// Returns the same range for a scan that treats damage as `care` says.
    pub(crate) fn with_care(self, care: Care) -> Self {
        KeyRange { care, ..self }
    }

    /// Returns whether all of the range has been reported.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Ends the range: no more of it is to be reported.
    pub fn finish(&mut self) {
        self.done = true;
    }
}

/// The part of the interface that only ordered indexes have.
pub trait OrderedIndex<R: Record> {
    /// Appends the next records of a range to `out`, at most `limit`, and removes them from the
    /// range. They come in order from its low end, or, in `reverse`, from its high end. A call may
    /// append nothing although there is more to report; the range is done only when
    /// [`is_done`](KeyRange::is_done) says so.
    ///
    /// The keys that one call appends were all present at one moment, each with a value that it had
    /// during the call. Over several calls, a record that is present the whole time is reported
    /// exactly once, in key order.
    fn next(
        &self,
        range: &mut KeyRange<R>,
        reverse: bool,
        limit: usize,
        out: &mut Vec<(R::OwnedKey, R::Owned)>,
    ) -> Result<()>;

    /// Returns the record at the low end of a range, or, in `reverse`, at its high end. At some
    /// moment during the call this record was present, with this value, and nothing in the range
    /// came before it. If it returns `None`, there was a moment at which the range was empty.
    fn end(&self, range: KeyRange<R>, reverse: bool) -> Result<Option<(R::OwnedKey, R::Owned)>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_integers_are_in_the_order_of_numbers() {
        let numbers = [i64::MIN, -300, -1, 0, 1, 255, 256, i64::MAX];
        let order = KeyOrder::of_schema("i64");
        let words = numbers.map(|n| Inline::encode(order, n as u64, &mut [0; 8]));
        assert!(words.is_sorted());
        let bytes = numbers.map(|n| Bytes::encode(order, &n.to_le_bytes(), &mut [0; 8]).to_vec());
        assert!(bytes.is_sorted());
        for ((n, mut word), mut bytes) in numbers.iter().zip(words).zip(bytes) {
            Inline::decode(order, &mut word);
            assert_eq!(word as i64, *n);
            Bytes::decode(order, &mut bytes);
            assert_eq!(bytes, n.to_le_bytes());
        }
        let small = KeyOrder::of_schema("i8");
        let small = |n: i8| Inline::encode(small, u64::from(n as u8), &mut [0; 8]);
        let words = [-128, -1, 0, 127].map(small);
        assert!(words.is_sorted());
    }

    #[test]
    fn spread_and_crowded_keys_are_sorted() {
        let mut state = 7u64;
        for round in 0..4000u32 {
            let mut next = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                state >> 3
            };
            let len = next() as usize % (SPREAD + 3);
            // From dense keys to sparse ones, with both extremes.
            let mut keys: Vec<u64> = (0..len).map(|_| next() >> (round % 61)).collect();
            keys.extend([0, u64::MAX].iter().take(round as usize % 3));
            keys.sort_unstable();
            keys.dedup();
            let expected: Vec<(u64, u64)> = keys.iter().map(|&key| (key, !key)).collect();
            let mut records = expected.clone();
            records.sort_by_key(|&(key, _)| key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            Inline::sort(&mut records);
            assert_eq!(records, expected);
        }
    }

    #[test]
    fn orders_read_back() {
        for schema in ["u8", "i16", "u32", "i64", "bytes", "str"] {
            let order = KeyOrder::of_schema(schema);
            assert_eq!(KeyOrder::from_media(order.to_media()), Some(order));
        }
        assert_eq!(KeyOrder::from_media(3), None);
        assert_eq!(KeyOrder::from_media(1 << 8), None);
    }

    #[test]
    fn words_of_byte_strings_are_in_their_order() {
        let keys: [&[u8]; 6] = [b"", b"\0", b"a", b"ab", b"abcdefgh", b"b"];
        assert!(keys.map(|k| Bytes::word(k, 0)).is_sorted());
        assert_eq!(Bytes::word(b"abc", 1), Bytes::word(b"bc", 0));
        assert_eq!(Bytes::word(b"abc", 9), 0);
    }
}
