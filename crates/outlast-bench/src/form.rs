//! The encoding of a workload's keys and values, which are words, as records of words or of byte
//! strings.

use outlast::internals::pool::hash::Hasher as OurHasher;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, Hasher};

/// The greatest size of keys, in bytes.
pub const KEY_BYTES_MAX: usize = 4096;
/// The greatest size of values, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// How a read of a byte string returns the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// As a copy of the value, allocated for the caller: `Map::get`. For maps in DRAM, a clone of
    /// the boxed value.
    Owned,
    /// As a view of the value in place: `Map::get_ref`. For maps in DRAM, a reference under the
    /// map's guard.
    Borrowed,
}

/// A thread's buffers for encoding words as records of the requested sizes.
#[derive(Debug, Clone)]
pub struct Hand {
    word: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    found: Vec<u8>,
    /// How reads return values, and how long values are.
    pub reading: Reading,
}

/// How values are decoded.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// How reads return values.
    pub reads: Reads,
    bytes: usize,
}

impl Reading {
    /// Decodes the word of a value. If the value has another length, or if it is at least 16 bytes
    /// long and its end does not match its beginning, the result is a word that does not belong to
    /// the value's key.
    #[inline(always)]
    pub fn word(self, bytes: &[u8]) -> u64 {
        let (Some(head), Some(tail)) = (bytes.first_chunk(), bytes.last_chunk()) else { return 0 };
        let (head, tail) = (u64::from_le_bytes(*head), u64::from_le_bytes(*tail));
        let fits = if bytes.len() >= 16 { tail == head.rotate_left(29) } else { true };
        if fits && bytes.len() == self.bytes { head } else { !head }
    }
}

impl Hand {
    /// Creates buffers for keys and values of these sizes.
    pub fn new(key_bytes: usize, value_bytes: usize, reads: Reads) -> Hand {
        Hand {
            word: 0,
            key: vec![0x6b; key_bytes],
            value: vec![0x76; value_bytes],
            found: vec![0; value_bytes],
            reading: Reading { reads, bytes: value_bytes },
        }
    }

    /// Encodes a key as a byte string.
    #[inline(always)]
    pub fn key_bytes(&mut self, key: u64) -> &[u8] {
        spell(&mut self.key, key);
        &self.key
    }

    /// Encodes a key and a value as byte strings.
    #[inline(always)]
    pub fn pair_bytes(&mut self, key: u64, value: u64) -> (&[u8], &[u8]) {
        spell(&mut self.key, key);
        spell(&mut self.value, value);
        (&self.key, &self.value)
    }

    /// Returns a buffer for a value to be copied into. Its length is the length that values must
    /// have.
    #[inline(always)]
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.found
    }

    /// Decodes the word that was copied into [`room`](Hand::room).
    #[inline(always)]
    pub fn read_room(&self) -> u64 {
        self.reading.word(&self.found)
    }
}

/// Writes a word at the beginning of a byte string of at least 8 bytes and, rotated, at its end. If
/// the two overlap, the beginning is intact.
#[inline(always)]
fn spell(bytes: &mut [u8], word: u64) {
    let tail = bytes.len() - 8;
    bytes[tail..].copy_from_slice(&word.rotate_left(29).to_le_bytes());
    bytes[..8].copy_from_slice(&word.to_le_bytes());
}

/// Decodes the word of a key. If the key is shorter than 8 bytes, the result is 0.
#[inline(always)]
pub fn spelled(key: &[u8]) -> u64 {
    key.first_chunk().map_or(0, |head| u64::from_le_bytes(*head))
}

/// How a map that accepts any key and value types, such as the maps in DRAM, stores the records of
/// one form.
pub trait Form: 'static {
    /// The type that a map stores as a key.
    type Key: Ord + Hash + Borrow<Self::Lookup> + Clone + Send + Sync;
    /// The type that a map is searched with.
    type Lookup: Ord + Hash + ?Sized;
    /// The type that a map stores as a value.
    type Value: Clone + Send + Sync;

    /// Encodes a key to search for.
    fn lookup(hand: &mut Hand, key: u64) -> &Self::Lookup;
    /// Encodes a key to store.
    fn key(hand: &mut Hand, key: u64) -> Self::Key;
    /// Encodes a value to store.
    fn value(hand: &mut Hand, value: u64) -> Self::Value;
    /// Decodes the word of a value that was found.
    fn word(reading: Reading, value: &Self::Value) -> u64;
    /// Decodes the word of a key that was found.
    fn key_word(key: &Self::Lookup) -> u64;
}

/// Keys and values of 8 bytes.
#[derive(Debug)]
pub struct Words;

impl Form for Words {
    type Key = u64;
    type Lookup = u64;
    type Value = u64;

    #[inline(always)]
    fn lookup(hand: &mut Hand, key: u64) -> &u64 {
        hand.word = key;
        &hand.word
    }
    #[inline(always)]
    fn key(_: &mut Hand, key: u64) -> u64 {
        key
    }
    #[inline(always)]
    fn value(_: &mut Hand, value: u64) -> u64 {
        value
    }
    #[inline(always)]
    fn word(_: Reading, value: &u64) -> u64 {
        *value
    }
    #[inline(always)]
    fn key_word(key: &u64) -> u64 {
        *key
    }
}

/// Byte strings, boxed.
#[derive(Debug)]
pub struct Strings;

impl Form for Strings {
    type Key = Box<[u8]>;
    type Lookup = [u8];
    type Value = Box<[u8]>;

    #[inline(always)]
    fn lookup(hand: &mut Hand, key: u64) -> &[u8] {
        hand.key_bytes(key)
    }
    #[inline(always)]
    fn key(hand: &mut Hand, key: u64) -> Box<[u8]> {
        hand.key_bytes(key).into()
    }
    #[inline(always)]
    fn value(hand: &mut Hand, value: u64) -> Box<[u8]> {
        spell(&mut hand.value, value);
        hand.value.as_slice().into()
    }
    #[inline(always)]
    fn word(reading: Reading, value: &Box<[u8]>) -> u64 {
        match reading.reads {
            Reads::Owned => reading.word(&std::hint::black_box(value.clone())),
            Reads::Borrowed => reading.word(value),
        }
    }
    #[inline(always)]
    fn key_word(key: &[u8]) -> u64 {
        spelled(key)
    }
}

/// Our hash function, for maps in DRAM. It hashes the 8 bytes of a word key, or the bytes of a
/// string.
#[derive(Debug, Clone, Copy)]
pub struct OurBuild(&'static OurHasher);

impl OurBuild {
    /// Creates the function with a seed, as a pool with this seed uses it. Never freed.
    pub fn new(seed: u64) -> crate::Fallible<OurBuild> {
        Ok(OurBuild(Box::leak(Box::new(OurHasher::from_media(1, seed)?))))
    }
}

impl BuildHasher for OurBuild {
    type Hasher = OurState;

    #[inline(always)]
    fn build_hasher(&self) -> OurState {
        OurState { function: self.0, hash: 0 }
    }
}

/// One hash computation.
#[derive(Debug, Clone, Copy)]
pub struct OurState {
    function: &'static OurHasher,
    hash: u64,
}

impl Hasher for OurState {
    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        self.hash = self.function.word(word);
    }
    /// Ignores the length that precedes a slice's bytes, because the function includes it itself.
    #[inline(always)]
    fn write_usize(&mut self, _: usize) {}
    #[inline(always)]
    fn write(&mut self, bytes: &[u8]) {
        self.hash = self.function.bytes(bytes);
    }
    #[inline(always)]
    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    #[test]
    fn byte_strings_of_any_size_read_as_what_was_spelled() {
        for bytes in [8, 9, 15, 16, 17, 100] {
            let mut hand = Hand::new(bytes, bytes, Reads::Borrowed);
            let value = keys::value(77, 5);
            let (key, spelled) = hand.pair_bytes(77, value);
            assert_eq!((key.len(), spelled.len()), (bytes, bytes));
            assert_eq!(key[..8], 77u64.to_le_bytes());
            let spelled = spelled.to_vec();
            assert_eq!(hand.reading.word(&spelled), value);
            assert!(!keys::belongs(77, hand.reading.word(&spelled[..7])));
            assert!(!keys::belongs(77, hand.reading.word(&[spelled.clone(), vec![0]].concat())));
            if bytes >= 16 {
                let mut torn = spelled;
                *torn.last_mut().unwrap() ^= 1;
                assert!(!keys::belongs(77, hand.reading.word(&torn)));
            }
        }
    }

    #[test]
    fn rivals_hash_as_a_pool_does() {
        let ours = OurHasher::from_media(1, 99).unwrap();
        let build = OurBuild::new(99).unwrap();
        assert_eq!(build.hash_one(12u64), ours.word(12));
        assert_eq!(build.hash_one(b"some bytes".as_slice()), ours.bytes(b"some bytes"));
        let boxed: Box<[u8]> = b"some bytes".as_slice().into();
        assert_eq!(build.hash_one(&boxed), ours.bytes(b"some bytes"));
    }
}
