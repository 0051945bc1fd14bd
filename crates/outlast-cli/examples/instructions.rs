//! Operations for `.ci/instructions` to count: one function for each record form and
//! operation, whose instructions callgrind counts. Without callgrind, the program only checks
//! the results. Its argument is the scheme.

use outlast::{Key, Map, MapOptions, Pool, PoolOptions, Scheme};
use std::hint::black_box;

/// Records before anything is counted.
const RECORDS: u64 = 100_000;
/// Operations of each kind. `.ci/instructions` divides its counts by this number.
const OPERATIONS: u64 = 10_000;
/// The size, in bytes, of a key of the form `bytes`; its values have 8 bytes.
const KEY_BYTES: usize = 16;
/// The number of the first key that is never inserted.
const ABSENT: u64 = 1 << 40;

/// Returns key number `number`: a bijective mix of its bits.
#[inline(always)]
fn key(number: u64) -> u64 {
    let x = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the value of a key in version `version`.
#[inline(always)]
fn value(key: u64, version: u8) -> u64 {
    (!key).rotate_left(23) & !0xff | u64::from(version)
}

/// Whether a value belongs to a key, in any version.
#[inline(always)]
fn belongs(key: u64, value: u64) -> bool {
    (value ^ (!key).rotate_left(23)) <= 0xff
}

/// The operations on a map of one form.
trait Form {
    type Item: Key + ?Sized;
    fn key(word: u64, with: impl FnOnce(&Self::Item) -> bool) -> bool;
    fn value(word: u64, with: impl FnOnce(&Self::Item) -> bool) -> bool;
    fn word(owned: <Self::Item as outlast::Value>::Owned) -> u64;
}

struct Inline;

impl Form for Inline {
    type Item = u64;

    fn key(word: u64, with: impl FnOnce(&u64) -> bool) -> bool {
        with(&word)
    }
    fn value(word: u64, with: impl FnOnce(&u64) -> bool) -> bool {
        with(&word)
    }
    fn word(owned: u64) -> u64 {
        owned
    }
}

struct Bytes;

impl Form for Bytes {
    type Item = [u8];

    fn key(word: u64, with: impl FnOnce(&[u8]) -> bool) -> bool {
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&word.to_le_bytes());
        key[8..].copy_from_slice(&word.rotate_left(29).to_le_bytes());
        with(&key)
    }
    fn value(word: u64, with: impl FnOnce(&[u8]) -> bool) -> bool {
        with(&word.to_le_bytes())
    }
    fn word(owned: Vec<u8>) -> u64 {
        owned.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

type MapOf<F> = Map<<F as Form>::Item, <F as Form>::Item>;

fn insert<F: Form>(map: &MapOf<F>, word: u64) -> bool {
    F::key(word, |key| F::value(value(word, 0), |value| map.insert(key, value).unwrap()))
}

fn get<F: Form>(map: &MapOf<F>, word: u64) -> bool {
    F::key(word, |key| match map.get(key).unwrap() {
        Some(found) => belongs(word, F::word(found)),
        None => false,
    })
}

fn get_ref<F: Form>(map: &MapOf<F>, word: u64) -> bool {
    F::key(word, |key| match map.get_ref(key).unwrap() {
        Some(found) => {
            let mut bytes = [0; 8];
            found.bytes().read_at(0, &mut bytes).unwrap();
            belongs(word, u64::from_le_bytes(bytes))
        }
        None => false,
    })
}

/// Looks up a key that is absent. This is not a use of `get`, so that the two are counted
/// separately.
fn miss<F: Form>(map: &MapOf<F>, word: u64) -> bool {
    F::key(word, |key| map.get(key).unwrap().is_none())
}

fn update<F: Form>(map: &MapOf<F>, word: u64) -> bool {
    F::key(word, |key| F::value(value(word, 1), |value| map.update(key, value).unwrap()))
}

fn remove<F: Form>(map: &MapOf<F>, word: u64) -> bool {
    F::key(word, |key| map.remove(key).unwrap().is_some())
}

/// Applies an operation to all keys. Returns for how many it returned `true`.
#[inline(always)]
fn all(keys: &[u64], mut operation: impl FnMut(u64) -> bool) -> usize {
    keys.iter().filter(|&&key| operation(black_box(key))).count()
}

/// Functions that callgrind finds by their names, `counted_FORM_OPERATION`.
macro_rules! counted {
    ($form:ty: $($name:ident = $operation:ident;)*) => {$(
        #[inline(never)]
        fn $name(map: &MapOf<$form>, keys: &[u64]) -> usize {
            all(keys, |key| $operation::<$form>(map, key))
        }
    )*};
}

counted! { Inline:
    counted_inline_get_hit = get;
    counted_inline_get_ref = get_ref;
    counted_inline_get_miss = miss;
    counted_inline_insert = insert;
    counted_inline_update = update;
    counted_inline_remove = remove;
}

counted! { Bytes:
    counted_bytes_get_hit = get;
    counted_bytes_get_ref = get_ref;
    counted_bytes_get_miss = miss;
    counted_bytes_insert = insert;
    counted_bytes_update = update;
    counted_bytes_remove = remove;
}

/// The counted function of each operation, in the order in which they are run.
struct Counted<F: Form> {
    get_hit: fn(&MapOf<F>, &[u64]) -> usize,
    get_ref: fn(&MapOf<F>, &[u64]) -> usize,
    get_miss: fn(&MapOf<F>, &[u64]) -> usize,
    insert: fn(&MapOf<F>, &[u64]) -> usize,
    update: fn(&MapOf<F>, &[u64]) -> usize,
    remove: fn(&MapOf<F>, &[u64]) -> usize,
}

/// Does what the background thread would do, a step now and then, so that clevel's levels do not
/// pile up.
fn rest(pool: &Pool, number: u64) {
    if number.is_multiple_of(16) {
        pool.step().unwrap();
    }
}

fn run<F: Form>(scheme: Scheme, counted: &Counted<F>) {
    // Use memory and no background thread, so that only the code under measurement runs.
    let pool = PoolOptions::new().identity(1, 1).background(false).anonymous().unwrap();
    let map: MapOf<F> = pool.map_with("counted", &MapOptions::new().scheme(scheme)).unwrap();
    for number in 0..RECORDS {
        assert!(insert::<F>(&map, key(number)));
        rest(&pool, number);
    }
    while pool.step().unwrap() {}
    let range = |from: u64| (from..from + OPERATIONS).map(key).collect::<Vec<_>>();
    let present: Vec<u64> = (0..OPERATIONS).map(|n| key(key(n) % RECORDS)).collect();
    let expected = OPERATIONS as usize;
    assert_eq!((counted.get_hit)(&map, &present), expected);
    assert_eq!((counted.get_ref)(&map, &present), expected);
    assert_eq!((counted.get_miss)(&map, &range(ABSENT)), expected);
    assert_eq!((counted.insert)(&map, &range(RECORDS)), expected);
    assert_eq!((counted.update)(&map, &present), expected);
    assert_eq!((counted.remove)(&map, &range(0)), expected);
}

fn main() {
    let name = std::env::args().nth(1).expect("the scheme's name");
    let scheme: Scheme = name.parse().expect("a scheme");
    run::<Inline>(
        scheme,
        &Counted {
            get_hit: counted_inline_get_hit,
            get_ref: counted_inline_get_ref,
            get_miss: counted_inline_get_miss,
            insert: counted_inline_insert,
            update: counted_inline_update,
            remove: counted_inline_remove,
        },
    );
    run::<Bytes>(
        scheme,
        &Counted {
            get_hit: counted_bytes_get_hit,
            get_ref: counted_bytes_get_ref,
            get_miss: counted_bytes_get_miss,
            insert: counted_bytes_insert,
            update: counted_bytes_update,
            remove: counted_bytes_remove,
        },
    );
    println!("operations {OPERATIONS}");
}
