//! Compares every scheme and record form with a `HashMap`, through the public interface.
//!
//! Method: a seeded run of all operations on few keys, where values never equal keys. Each result
//! is compared with the model's. Then the iteration, the length and the verification are checked,
//! and checked again after closing and reopening.

use outlast::{Config, Map, MapOptions, Pool, PoolOptions, Scheme, config};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// A random number generator whose seed determines a run.
struct Random(SplitMix64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(SplitMix64::seed_from_u64(seed))
    }
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }
}

fn open(path: &Path) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).open_or_create(path).unwrap()
    }
}

/// Lists maps of each scheme: with default options, as small as possible, and with each of its
/// settings.
fn shapes() -> Vec<MapOptions> {
    let own: [Config; 13] = [
        config::DashEh { bucket_bits: 2, ..Default::default() }.into(),
        config::DashEh { bucket_bits: 1, stash_buckets: 4 }.into(),
        config::DashEh { stash_buckets: 4, ..Default::default() }.into(),
        config::DashLh { bucket_bits: 1, stash_buckets: 4, initial_depth: 3 }.into(),
        config::Clevel { first_bits: 2, ..Default::default() }.into(),
        config::Phast { leaf_slots: 4, node_leaves: 4, partitions: 4, ..Default::default() }.into(),
        config::Phast { leaf_slots: 20, node_leaves: 6, partitions: 1, ..Default::default() }
            .into(),
        config::Phast { leaf_slots: 8, node_leaves: 4, partitions: 16, ..Default::default() }
            .into(),
        config::Group { group_size: 32, initial_depth: 3 }.into(),
        config::Line { segment_bits: 1 }.into(),
        config::EaPht { initial_depth: 3, chunk_bits: 1, ..Default::default() }.into(),
        config::EaPhtH { initial_depth: 1, chunk_bits: 1, ..Default::default() }.into(),
        config::EaPhtHpr { initial_depth: 1, chunk_bits: 1, helpers: 1 }.into(),
    ];
    let each = Scheme::ALL.iter().flat_map(|&scheme| [Config::of(scheme), Config::small(scheme)]);
    each.chain(own).map(|config| MapOptions::new().config(config)).collect()
}

/// What a test needs of a type: to make a key or a value from a number.
trait Sample {
    type Of: ?Sized;
    fn with<T>(n: u64, f: impl FnOnce(&Self::Of) -> T) -> T;
}
struct Word;
impl Sample for Word {
    type Of = u64;
    fn with<T>(n: u64, f: impl FnOnce(&u64) -> T) -> T {
        // Include the lowest and highest keys.
        f(&match n {
            0 => 0,
            1 => u64::MAX,
            n => n.wrapping_mul(0x1234_5678_9abc_def1),
        })
    }
}
struct Text;
impl Sample for Text {
    type Of = [u8];
    fn with<T>(n: u64, f: impl FnOnce(&[u8]) -> T) -> T {
        // Lengths from zero to large blocks.
        let len = match n % 97 {
            0 => 40_000,
            m => (m * m / 20) as usize,
        };
        let mut bytes = n.to_le_bytes().repeat(len / 8 + 1);
        bytes.truncate(len);
        if n > 0 {
            bytes.extend_from_slice(&n.to_le_bytes());
        }
        f(&bytes)
    }
}

fn run<K: Sample, V: Sample>(steps: u64, keys: u64)
where
    K::Of: outlast::Key,
    V::Of: outlast::Value,
    <K::Of as outlast::Value>::Owned: std::hash::Hash + Eq + std::fmt::Debug + Clone,
    <V::Of as outlast::Value>::Owned: PartialEq + std::fmt::Debug + Clone,
{
    use outlast::Value as _;
    let dir = tempfile::tempdir().unwrap();
    for (i, options) in shapes().into_iter().enumerate() {
        let path = dir.path().join(format!("{i}.pool"));
        let mut random = Random::new(i as u64);
        let mut model: HashMap<u64, u64> = HashMap::new();
        let mut pool = open(&path);
        let mut map: Map<K::Of, V::Of> = pool.map_with("m", &options).unwrap();
        let value = |n: u64| V::with(n, |v| v.with_bytes(<[u8]>::to_vec));
        let owned = |n: u64| V::Of::from_bytes(value(n)).unwrap();
        for step in 0..steps {
            let k = random.below(keys);
            let v = keys + random.below(1 << 20);
            let w = keys + random.below(1 << 20);
            let had = model.get(&k).copied();
            let bytes = |owned: Option<<V::Of as outlast::Value>::Owned>| {
                owned.map(|o| V::Of::borrow(&o).with_bytes(<[u8]>::to_vec))
            };
            K::with(k, |key| {
                V::with(v, |val| match random.below(13) {
                    0 | 1 => {
                        assert_eq!(map.insert(key, val).unwrap(), had.is_none(), "{step}");
                        model.entry(k).or_insert(v);
                    }
                    2 => {
                        assert_eq!(bytes(map.put(key, val).unwrap()), had.map(value));
                        model.insert(k, v);
                    }
                    3 => {
                        assert_eq!(map.update(key, val).unwrap(), had.is_some());
                        model.entry(k).and_modify(|old| *old = v);
                    }
                    4 => {
                        let expected = if w.is_multiple_of(2) { had.unwrap_or(w) } else { w };
                        let swaps = had == Some(expected);
                        V::with(expected, |e| {
                            assert_eq!(map.compare_swap(key, e, val).unwrap(), swaps);
                        });
                        if swaps {
                            model.insert(k, v);
                        }
                    }
                    5 => {
                        assert_eq!(bytes(map.remove(key).unwrap()), had.map(value));
                        model.remove(&k);
                    }
                    7 => {
                        let expected = if w.is_multiple_of(2) { had.unwrap_or(w) } else { w };
                        let removes = had == Some(expected);
                        V::with(expected, |e| {
                            assert_eq!(map.compare_remove(key, e).unwrap(), removes, "{step}");
                        });
                        if removes {
                            model.remove(&k);
                        }
                    }
                    8 => {
                        let removes = w.is_multiple_of(2);
                        let told = map.remove_if(key, |found| {
                            assert_eq!(Some(found.with_bytes(<[u8]>::to_vec)), had.map(value));
                            removes
                        });
                        let removed = had.filter(|_| removes);
                        assert_eq!(bytes(told.unwrap()), removed.map(value), "{step}");
                        if removes {
                            model.remove(&k);
                        }
                    }
                    9 => {
                        let after = [Some(v), None, had][w as usize % 3];
                        let told = map.alter(key, |found| {
                            let found = found.map(|found| found.with_bytes(<[u8]>::to_vec));
                            assert_eq!(found, had.map(value), "{step}");
                            after.map(owned)
                        });
                        assert_eq!(bytes(told.unwrap()), after.map(value), "{step}");
                        match after {
                            Some(after) => drop(model.insert(k, after)),
                            None => drop(model.remove(&k)),
                        }
                    }
                    10 => {
                        let made = Cell::new(false);
                        let make = || {
                            made.set(true);
                            owned(v)
                        };
                        let told = map.get_or_insert_with(key, make).unwrap();
                        let after = *model.entry(k).or_insert(v);
                        assert_eq!(
                            (bytes(Some(told)), made.get()),
                            (Some(value(after)), had.is_none())
                        );
                    }
                    11 => {
                        assert_eq!(map.delete(key).unwrap(), had.is_some(), "{step}");
                        model.remove(&k);
                    }
                    6 => {
                        let found = map.get_ref(key).unwrap().map(|r| r.to_owned().unwrap());
                        assert_eq!(bytes(found), had.map(value));
                    }
                    _ => assert_eq!(bytes(map.get(key).unwrap()), had.map(value), "{step}"),
                });
            });
            if step % (steps / 3) == steps / 3 - 1 {
                check::<K, V>(&pool, &map, &model);
                drop(map);
                pool.close().unwrap();
                pool = open(&path);
                map = pool.map_with("m", &options).unwrap();
                check::<K, V>(&pool, &map, &model);
            }
        }
        // Then go through all records.
        let of_even: HashSet<Vec<u8>> =
            model.keys().filter(|k| *k % 2 == 0).map(|&k| K::with(k, bytes_of)).collect();
        let before = model.len();
        model.retain(|k, _| k % 2 == 0);
        let removed = map.retain(|key, _| of_even.contains(&bytes_of(key))).unwrap();
        assert_eq!(removed, (before - model.len()) as u64);
        check::<K, V>(&pool, &map, &model);
        assert_eq!(map.clear().unwrap(), model.len() as u64);
        assert!(map.is_empty().unwrap());
        check::<K, V>(&pool, &map, &HashMap::new());
    }
}

fn bytes_of<T: outlast::Value + ?Sized>(value: &T) -> Vec<u8> {
    value.with_bytes(<[u8]>::to_vec)
}

fn check<K: Sample, V: Sample>(pool: &Pool, map: &Map<K::Of, V::Of>, model: &HashMap<u64, u64>)
where
    K::Of: outlast::Key,
    V::Of: outlast::Value,
    <K::Of as outlast::Value>::Owned: std::hash::Hash + Eq + std::fmt::Debug,
{
    use outlast::Value as _;
    let verified = pool.verify().unwrap();
    assert!(verified.is_sound(), "{verified:?}");
    assert_eq!(verified.records(), model.len() as u64);
    assert_eq!(verified.leaked_bytes, Some(0));
    let mut walked: Vec<(Vec<u8>, Vec<u8>)> = map
        .iter()
        .map(|record| {
            let (k, v) = record.unwrap();
            let key = K::Of::borrow(&k).with_bytes(<[u8]>::to_vec);
            (key, V::Of::borrow(&v).with_bytes(<[u8]>::to_vec))
        })
        .collect();
    let mut expected: Vec<(Vec<u8>, Vec<u8>)> = model
        .iter()
        .map(|(&k, &v)| {
            (
                K::with(k, |k| k.with_bytes(<[u8]>::to_vec)),
                V::with(v, |v| v.with_bytes(<[u8]>::to_vec)),
            )
        })
        .collect();
    walked.sort();
    expected.sort();
    assert!(walked == expected, "{} walked, {} expected", walked.len(), expected.len());
    let mut keys: Vec<Vec<u8>> =
        map.keys().map(|key| bytes_of(K::Of::borrow(&key.unwrap()))).collect();
    keys.sort();
    assert!(keys.iter().eq(expected.iter().map(|(key, _)| key)));
    let mut values: Vec<Vec<u8>> =
        map.values().map(|value| bytes_of(V::Of::borrow(&value.unwrap()))).collect();
    values.sort();
    let mut of_records: Vec<_> = expected.into_iter().map(|(_, value)| value).collect();
    of_records.sort();
    assert!(values == of_records);
    assert_eq!(map.into_iter().count(), model.len());
    assert_eq!(map.len().unwrap(), model.len() as u64);
    assert_eq!(map.is_empty().unwrap(), model.is_empty());
    let estimate = map.len_estimate().unwrap();
    assert!(estimate.abs_diff(model.len() as u64) * 2 <= model.len() as u64 + 10, "{estimate}");
}

#[test]
fn inline_records_agree_with_a_model() {
    run::<Word, Word>(60_000, 4_000);
}

#[test]
fn byte_string_records_agree_with_a_model() {
    run::<Text, Text>(12_000, 600);
}

#[test]
fn mixed_records_agree_with_a_model() {
    run::<Word, Text>(6_000, 300);
    run::<Text, Word>(6_000, 300);
}
