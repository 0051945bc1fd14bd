//! Compares ordered maps with a `BTreeMap`, and checks what their scans guarantee during changes.
//!
//! Method: a seeded run of changes on few keys of each type, in shapes so small that leaves, nodes
//! and partitions split and merge all the time. Every few steps, the test reads ranges with all
//! kinds of bounds from both ends, and the neighbors of a key. Values never equal keys.

use outlast::{MapOptions, OrderedKey, OrderedMap, Pool, PoolOptions, RecordForm, Scheme, config};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

struct Random(SplitMix64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(SplitMix64::seed_from_u64(seed))
    }
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }
}

fn sized(leaf_slots: u32, node_leaves: u32, partitions: u32) -> MapOptions {
    let config = config::Phast { leaf_slots, node_leaves, partitions, ..Default::default() };
    MapOptions::new().config(config)
}

fn shapes() -> Vec<MapOptions> {
    [(4, 4, 4), (8, 5, 1), (56, 128, 128)]
        .map(|(slots, leaves, partitions)| sized(slots, leaves, partitions))
        .to_vec()
}

/// Runs changes on one type of key. `make` makes its keys by number, in no particular order.
fn run<K: OrderedKey + ?Sized>(make: impl Fn(u64) -> K::Owned, options: &MapOptions, steps: u64)
where
    K::Owned: Ord + Clone + std::fmt::Debug,
{
    let pool = PoolOptions::new().anonymous().unwrap();
    let map: OrderedMap<K, u64> = pool.ordered_map_with("m", options).unwrap();
    let mut model: BTreeMap<K::Owned, u64> = BTreeMap::new();
    let mut random = Random::new(7);
    for step in 0..steps {
        // Phases of growth alternate with phases of shrinking.
        let grows = step / 400 % 3 != 2;
        let key = make(random.below(500));
        let (k, value) = (K::borrow(&key), 1_000_000 + step);
        if random.below(10) < if grows { 8 } else { 1 } {
            assert_eq!(map.put(k, &value).unwrap(), model.insert(key.clone(), value));
        } else {
            assert_eq!(map.remove(k).unwrap(), model.remove(&key));
        }
        if step % 7 == 0 {
            check_ranges(&map, &model, &make, &mut random);
        }
    }
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
}

fn check_ranges<K: OrderedKey + ?Sized>(
    map: &OrderedMap<K, u64>,
    model: &BTreeMap<K::Owned, u64>,
    make: &impl Fn(u64) -> K::Owned,
    random: &mut Random,
) where
    K::Owned: Ord + Clone + std::fmt::Debug,
{
    let some = |record: Option<(&K::Owned, &u64)>| record.map(|(k, v)| (k.clone(), *v));
    let key = make(random.below(500));
    let k = K::borrow(&key);
    assert_eq!(map.first().unwrap(), some(model.first_key_value()));
    assert_eq!(map.last().unwrap(), some(model.last_key_value()));
    assert_eq!(map.floor(k).unwrap(), some(model.range(..=&key).next_back()));
    assert_eq!(map.ceiling(k).unwrap(), some(model.range(&key..).next()));
    let (a, b) = (make(random.below(500)), make(random.below(500)));
    let (low, high) = if a <= b { (a, b) } else { (b, a) };
    let kinds = |key: &K::Owned, which| match which {
        0 => Bound::Included(key.clone()),
        1 => Bound::Excluded(key.clone()),
        _ => Bound::Unbounded,
    };
    let bounds = (kinds(&low, random.below(3)), kinds(&high, random.below(3)));
    if low == high && matches!(bounds, (Bound::Excluded(_), Bound::Excluded(_))) {
        // The model panics on this range; the map returns an empty one.
        let bounds = (Bound::Excluded(K::borrow(&low)), Bound::Excluded(K::borrow(&high)));
        assert_eq!(map.range(bounds).count(), 0);
        return;
    }
    let expected: Vec<_> = model.range(bounds.clone()).map(|(k, v)| (k.clone(), *v)).collect();
    let borrowed = (bounds.0.as_ref().map(K::borrow), bounds.1.as_ref().map(K::borrow));
    let batch = 1 + random.below(70) as usize;
    let forward: Vec<_> = map.range(borrowed).with_batch(batch).map(Result::unwrap).collect();
    assert_eq!(forward, expected);
    let mut backward: Vec<_> = map.range(borrowed).rev().map(Result::unwrap).collect();
    backward.reverse();
    assert_eq!(backward, expected);
    // Read from both ends, alternating at random.
    let mut range = map.range(borrowed).with_batch(batch);
    let (mut front, mut back) = (Vec::new(), Vec::new());
    loop {
        let (list, record) = if random.below(2) == 0 {
            (&mut front, range.next())
        } else {
            (&mut back, range.next_back())
        };
        match record {
            Some(record) => list.push(record.unwrap()),
            None => break,
        }
    }
    front.extend(back.into_iter().rev());
    assert_eq!(front, expected);
}

#[test]
fn ranges_of_integers_agree_with_a_model() {
    for options in shapes() {
        run::<u64>(|n| n.wrapping_mul(0x1234_5678_9abc_def1), &options, 4_000);
        run::<i64>(|n| (n as i64 - 250).wrapping_mul(0x0123_4567_89ab_cdef), &options, 2_000);
        run::<i16>(|n| (n as i16 - 250) * 131, &options, 2_000);
        run::<u32>(|n| n as u32, &options, 2_000);
        let blocks = options.form(RecordForm::Bytes);
        run::<i32>(|n| (n as i32 - 250) * 8_000_000, &blocks, 2_000);
        run::<u64>(|n| n * 257, &blocks, 2_000);
    }
}

#[test]
fn ranges_of_byte_strings_agree_with_a_model() {
    for options in shapes() {
        // Keys of all lengths from zero on, with long common prefixes, and with bytes of all
        // values.
        run::<[u8]>(|n| vec![n as u8; n as usize % 23], &options, 3_000);
        let common = |n: u64| format!("https://example.org/a/path/in/common/{}", n * 77);
        run::<str>(common, &options, 3_000);
        run::<[u8]>(|n| [&[0xff; 30][..], &n.to_be_bytes()].concat(), &options, 2_000);
        run::<str>(|n| "a".repeat(n as usize), &options, 2_000);
    }
}

#[test]
fn prefixes_are_ranges() {
    let pool = PoolOptions::new().anonymous().unwrap();
    let map = pool.ordered_map_with::<str, u64>("m", &shapes()[0]).unwrap();
    for (i, word) in ["a", "ab", "abc", "abd", "ac", "b", "ba"].iter().enumerate() {
        map.insert(word, &(i as u64)).unwrap();
    }
    let keys = |prefix: &str| -> Vec<String> {
        map.prefix(prefix).map(|record| record.unwrap().0).collect()
    };
    assert_eq!(keys("ab"), ["ab", "abc", "abd"]);
    assert_eq!(keys("b"), ["b", "ba"]);
    assert_eq!(keys("x").len(), 0);
    assert_eq!(keys("").len(), 7);
    let last = map.prefix("a").next_back().unwrap().unwrap();
    assert_eq!(last, ("ac".into(), 4));
    let bytes = pool.ordered_map::<[u8], u64>("bytes").unwrap();
    bytes.insert(&[0xff, 0xff], &1).unwrap();
    bytes.insert(&[0xff], &2).unwrap();
    assert_eq!(bytes.prefix(&[0xff]).count(), 2);
}

#[test]
fn a_scheme_without_order_has_no_ordered_maps() {
    let pool = PoolOptions::new().anonymous().unwrap();
    let hashed = MapOptions::new().scheme(Scheme::DashEh);
    let refused = pool.ordered_map_with::<u64, u64>("m", &hashed).unwrap_err().to_string();
    assert!(refused.ends_with("dash-eh keeps no key order; schemes of ordered maps: phast"));
    pool.map_with::<u64, u64>("m", &hashed).unwrap();
    let refused = pool.ordered_map::<u64, u64>("m").unwrap_err();
    assert!(matches!(refused, outlast::Error::MapMismatch { what: "scheme", .. }), "{refused}");
    assert!(pool.raw_map("m").unwrap().range(Bound::Unbounded, Bound::Unbounded).is_err());
}

/// A record that stays is returned exactly once and in order, whatever other threads insert and
/// remove.
#[test]
fn scans_keep_their_word_beside_changes() {
    for form in RecordForm::ALL {
        let pool = PoolOptions::new().anonymous().unwrap();
        let options = shapes()[0].clone().form(form);
        let map = pool.ordered_map_with::<i64, u64>("m", &options).unwrap();
        const STAY: i64 = 300;
        for n in -STAY..STAY {
            assert!(map.insert(&(n * 100), &(n.unsigned_abs() + 7)).unwrap());
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for t in 1..=2 {
                let (map, stop) = (map.clone(), &stop);
                s.spawn(move || {
                    let mut random = Random::new(t);
                    for round in 0..12 {
                        // A range of keys fills up and empties again, so that leaves split and
                        // merge.
                        let from = random.below(2 * STAY as u64) as i64 - STAY;
                        let keys = (from * 100..from * 100 + 4_000)
                            .filter(|key| key % 100 != 0 && key % 3 == t as i64);
                        for key in keys.clone() {
                            assert!(map.insert(&key, &round).unwrap(), "{key}");
                        }
                        for key in keys {
                            assert_eq!(map.remove(&key).unwrap(), Some(round), "{key}");
                        }
                    }
                    stop.store(true, Ordering::Relaxed);
                });
            }
            let (map, stop) = (map.clone(), &stop);
            s.spawn(move || {
                let mut reverse = false;
                while !stop.load(Ordering::Relaxed) {
                    reverse = !reverse;
                    let mut keys: Vec<i64> = if reverse {
                        map.range(..).rev().map(|record| record.unwrap().0).collect()
                    } else {
                        map.range(..).with_batch(5).map(|record| record.unwrap().0).collect()
                    };
                    if reverse {
                        keys.reverse();
                    }
                    assert!(keys.is_sorted_by(|a, b| a < b), "in order, none twice");
                    let staying = keys.iter().filter(|key| *key % 100 == 0).count();
                    assert_eq!(staying as i64, 2 * STAY);
                }
            });
        });
        let found = pool.verify().unwrap();
        assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
        assert_eq!(found.records(), 2 * STAY as u64);
    }
}

/// If keys are inserted at one end and removed at the other, the map does not grow.
#[test]
fn a_queue_takes_no_more_space_than_what_is_in_it() {
    let pool = PoolOptions::new().anonymous().unwrap();
    for (name, options) in [("small", shapes()[0].clone()), ("usual", MapOptions::new())] {
        let map = pool.ordered_map_with::<u64, u64>(name, &options).unwrap();
        const IN_IT: u64 = 2_000;
        for n in 0..40_000u64 {
            map.insert(&n, &(n + 1)).unwrap();
            if let Some(old) = n.checked_sub(IN_IT) {
                assert_eq!(map.remove(&old).unwrap(), Some(old + 1));
            }
        }
        let stats = map.stats().unwrap();
        assert!(stats.slots <= 4 * IN_IT, "{stats:?}");
        assert!(map.len_estimate().unwrap().abs_diff(IN_IT) <= IN_IT / 50, "{stats:?}");
    }
}

fn reopen(pool: Pool, path: &std::path::Path, threads: usize) -> Pool {
    pool.close().unwrap();
    // SAFETY: the file belongs to this test.
    unsafe { PoolOptions::new().recovery_threads(threads).open(path).unwrap() }
}

#[test]
fn opening_finds_the_same_whatever_the_threads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pool");
    // SAFETY: the file belongs to this test.
    let mut pool = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(&path).unwrap()
    };
    let options = sized(8, 8, 16);
    let map = pool.ordered_map_with::<u64, [u8]>("m", &options).unwrap();
    for n in 0..5_000u64 {
        map.insert(&(n * 3), &n.to_be_bytes()).unwrap();
    }
    drop(map);
    for threads in [1, 2, 7] {
        pool = reopen(pool, &path, threads);
        let map = pool.ordered_map::<u64, [u8]>("m").unwrap();
        assert_eq!(map.range(..).count(), 5_000);
        assert_eq!(map.floor(&100).unwrap(), Some((99, 33u64.to_be_bytes().to_vec())));
    }
    pool.close().unwrap();
}

/// Ranges are written as for the standard collections, even for keys that are not `Sized`.
#[test]
fn ranges_of_any_kind_are_written_as_usual() {
    let pool = PoolOptions::new().anonymous().unwrap();
    let words = pool.ordered_map::<str, u64>("words").unwrap();
    let bytes = pool.ordered_map::<[u8], u64>("bytes").unwrap();
    let numbers = pool.ordered_map::<i16, u64>("numbers").unwrap();
    for (n, word) in ["", "a", "ab", "b", "c"].into_iter().enumerate() {
        words.insert(word, &(n as u64)).unwrap();
        bytes.insert(word.as_bytes(), &(n as u64)).unwrap();
        numbers.insert(&(n as i16 - 2), &(n as u64)).unwrap();
    }
    assert_eq!(words.range("a".."b").count(), 2);
    assert_eq!(words.range("a"..="b").count(), 3);
    assert_eq!(words.range("ab"..).count(), 3);
    assert_eq!(words.range(.."ab").count(), 2);
    assert_eq!(words.range(..="ab").count(), 3);
    assert_eq!(words.range(..).count(), 5);
    assert_eq!(words.range((Bound::Excluded("a"), Bound::Unbounded)).count(), 3);
    assert_eq!(bytes.range(&b"a"[..]..&b"b"[..]).count(), 2);
    assert_eq!(numbers.range(-1..1).count(), 2);
    assert_eq!(numbers.range(&-1..=&1).count(), 3);
    assert_eq!(numbers.range((Bound::Included(-2), Bound::Excluded(-1))).count(), 1);
}

/// The records of one first part are those that a filter finds, for keys in a word, in a block, and
/// with a string at the end.
#[test]
fn the_records_of_a_first_part_are_found() {
    let pool = PoolOptions::new().anonymous().unwrap();
    let words = pool.ordered_map::<(i8, u16), u64>("words").unwrap();
    let blocks = pool.ordered_map::<(i64, u16, bool), u64>("blocks").unwrap();
    let texts = pool.ordered_map::<(i16, String), u64>("texts").unwrap();
    let bytes = pool.ordered_map::<(u8, [u8; 2], Vec<u8>), u64>("bytes").unwrap();
    let firsts = [i8::MIN, -1, 0, 5, i8::MAX];
    for first in firsts {
        for second in [0, 1, 700, u16::MAX] {
            let value = u64::from(second) + 1;
            words.insert(&(first, second), &value).unwrap();
            blocks.insert(&(first.into(), second, second > 0), &value).unwrap();
            texts.insert(&(first.into(), format!("{second}")), &value).unwrap();
            let long = vec![u8::MAX; usize::from(second).min(999)];
            bytes.insert(&(first as u8, second.to_be_bytes(), long), &value).unwrap();
        }
    }
    fn seconds<K>(range: impl Iterator<Item = outlast::Result<(K, u64)>>) -> Vec<u64> {
        let mut found: Vec<u64> = range.map(|record| record.unwrap().1 - 1).collect();
        found.sort_unstable();
        found
    }
    for first in i8::MIN..=i8::MAX {
        let expected = if firsts.contains(&first) { &[0, 1, 700, 65_535][..] } else { &[] };
        assert_eq!(seconds(words.prefix(&first)), expected, "{first}");
        assert_eq!(seconds(words.prefix(&first).rev()), expected, "{first}");
        assert_eq!(seconds(blocks.prefix(&first.into())), expected, "{first}");
        assert_eq!(seconds(texts.prefix(&first.into())), expected, "{first}");
        assert_eq!(seconds(bytes.prefix(&(first as u8))), expected, "{first}");
    }
    assert_eq!(texts.get(&(5, "700".into())).unwrap(), Some(701));
    assert_eq!(texts.info().key_schema, "(i16,str)");
}

#[test]
fn a_range_is_removed_and_nothing_else() {
    let pool = PoolOptions::new().anonymous().unwrap();
    let words = pool.ordered_map::<u32, u32>("words").unwrap();
    let texts = pool.ordered_map::<str, str>("texts").unwrap();
    for n in 0..1_000 {
        words.insert(&n, &(n % 7)).unwrap();
        texts.insert(&format!("{n:03}"), "text").unwrap();
    }
    assert_eq!(words.remove_range(100..=300).unwrap(), 201);
    assert_eq!(texts.remove_range("100".."301").unwrap(), 201);
    assert_eq!(words.remove_range(100..=300).unwrap(), 0);
    let kept = words.keys().map(Result::unwrap).collect::<Vec<_>>();
    assert!(kept.iter().copied().eq((0..100).chain(301..1_000)));
    assert_eq!(texts.len().unwrap(), 799);
    assert_eq!(words.retain_range(301..308, |_, rest| *rest != 0).unwrap(), 1);
    assert_eq!(words.remove_range(..).unwrap(), 798);
    assert!(words.is_empty().unwrap());
}
