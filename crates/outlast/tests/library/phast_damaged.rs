//! Damaged leaves of PhaST: which keys become unavailable, and that all others are served.
//!
//! Goal: damage of a leaf's header makes the keys unavailable from that leaf up to the next leaf
//! that the master array names, and perhaps those of the leaf before it, but no others. They are
//! reported as damaged, never as absent or with another value. Once the bytes are restored, nothing
//! is lost.
//!
//! Method: the test takes a pool that was closed, and one as a dead process left it. In each leaf
//! in turn, it changes one bit of identity, link, least key or bitmap. The test parses the leaves
//! itself, so it knows which keys belong to which leaf.

use outlast::internals::index::phast::layout::{LEAF_HEADER, MASTER_HEADER, Next, unpack_entry};
use outlast::{Error, MapOptions, OrderedMap, Pool, PoolOptions, RecordForm, config};
use outlast_offline as offline;
use outlast_offline::What;
use std::collections::BTreeMap;
use std::path::Path;

const KEYS: u64 = 150;
const SLOTS: u32 = 8;

fn key(n: u64) -> u64 {
    n * 10 + 5
}

fn value(n: u64) -> u64 {
    n << 32 | 7
}

fn options() -> PoolOptions {
    PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .page_bits(12)
        .background(false)
        .accept_possibly_torn(true)
}

fn open(path: &Path) -> (Pool, OrderedMap<u64, u64>) {
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options().open(path).unwrap() };
    let map = pool.ordered_map("m").unwrap();
    (pool, map)
}

fn word(bytes: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(bytes[at as usize..at as usize + 8].try_into().unwrap())
}

/// A leaf: its offset, its keys, and whether the master array names it.
struct Leaf {
    offset: u64,
    keys: Vec<u64>,
    is_start: bool,
}

/// Returns the leaves of the map, in order.
fn leaves(bytes: &[u8], form: RecordForm) -> Vec<Leaf> {
    let (report, regions) = offline::regions(bytes).unwrap();
    assert_eq!(report.problems, []);
    let entries = regions.iter().find(|r| r.what == What::MasterEntries).unwrap();
    let starts: Vec<u64> = (0..entries.bytes / 8)
        .map(|index| {
            let word = word(bytes, entries.offset + index * 8);
            unpack_entry(entries.offset - MASTER_HEADER, index as usize, word).unwrap()
        })
        .collect();
    let mut leaves = Vec::new();
    let mut at = starts[0];
    while at != 0 {
        let slots = (0..u64::from(SLOTS)).filter(|slot| word(bytes, at) >> slot & 1 == 1);
        let mut keys: Vec<u64> = slots
            .map(|slot| {
                let first = word(bytes, at + LEAF_HEADER + slot * 16);
                match form {
                    RecordForm::Inline => first,
                    // The key in a record's block, as it is stored.
                    RecordForm::Bytes => word(bytes, (first & ((1 << 48) - 1)) + 16).swap_bytes(),
                }
            })
            .collect();
        keys.sort_unstable();
        leaves.push(Leaf { offset: at, keys, is_start: starts.contains(&at) });
        at = Next::unpack(at, word(bytes, at + 72)).unwrap().offset;
    }
    leaves
}

/// Returns a pool's bytes as it was closed, or as a dead process leaves them.
fn image(path: &Path, form: RecordForm, clean: bool) -> Vec<u8> {
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options().create(path).unwrap() };
    let small = MapOptions::new()
        .config(config::Phast {
            leaf_slots: SLOTS,
            node_leaves: 4,
            partitions: 6,
            ..Default::default()
        })
        .form(form);
    let map: OrderedMap<u64, u64> = pool.ordered_map_with("m", &small).unwrap();
    for n in 0..KEYS {
        // Spread the keys, so that leaves differ in their number of records.
        let n = n * 77 % KEYS;
        assert!(map.insert(&key(n), &value(n)).unwrap());
    }
    let left = std::fs::read(path).unwrap();
    drop(map);
    pool.close().unwrap();
    let closed = std::fs::read(path).unwrap();
    if clean { closed } else { left }
}

/// Returns the keys that a map with a damaged leaf serves. For each other key it must report
/// damage.
fn served(map: &OrderedMap<u64, u64>) -> Vec<u64> {
    let mut served = Vec::new();
    for n in 0..KEYS {
        match map.get(&key(n)) {
            Ok(found) => {
                assert_eq!(found, Some(value(n)), "key {}", key(n));
                served.push(key(n));
            }
            Err(Error::Damaged(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    served
}

fn check(form: RecordForm, clean: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pool");
    let sound = image(&path, form, clean);
    let leaves = leaves(&sound, form);
    let starts = leaves.iter().filter(|leaf| leaf.is_start).count();
    assert!(leaves.len() > 20 && starts > 3, "{} leaves, {starts} starts", leaves.len());
    for (number, leaf) in leaves.iter().enumerate() {
        // Change the identity, the link, the first word of the least key, and a bit beyond the
        // slots. Each leaf gets half of these, to save time.
        let bytes = [66, 75, 80, 1].into_iter().skip((number + usize::from(clean)) % 2);
        for at in bytes.step_by(2) {
            let case = format!("{form:?}, clean {clean}, leaf {number}, byte {at}");
            let mut bytes = sound.clone();
            bytes[(leaf.offset + at) as usize] ^= 0x10;
            std::fs::write(&path, &bytes).unwrap();
            let (pool, map) = open(&path);
            let found = served(&map);
            // All leaves from the next start on must be served, and all earlier ones except the
            // last before the damage.
            let end = leaves[number + 1..].iter().position(|leaf| leaf.is_start);
            let end = end.map_or(leaves.len(), |next| number + 1 + next);
            let lost: Vec<u64> =
                leaves[number..end].iter().flat_map(|leaf| leaf.keys.clone()).collect();
            let before = &leaves[number.saturating_sub(1)].keys;
            for n in 0..KEYS {
                let key = key(n);
                let is_served = found.binary_search(&key).is_ok();
                assert!(is_served || lost.contains(&key) || before.contains(&key), "{case}: {key}");
                assert!(!(is_served && lost.contains(&key)), "{case}: {key} is served");
            }
            walk(&map, &found, &case);
            let verified = pool.verify().unwrap();
            assert!(!verified.is_sound(), "{case}");
            change(&map, &found, &lost, &case);
            drop(map);
            pool.close().unwrap();
            put_right(&path, leaf.offset + at, &found, &case);
        }
    }
}

/// Checks that an iteration over everything reports the damage, and that the keys before it are the
/// served ones. Checks the same keys from the other end.
fn walk(map: &OrderedMap<u64, u64>, served: &[u64], case: &str) {
    let all: Vec<_> = map.range(..).take(KEYS as usize + 1).collect();
    assert!(all.iter().any(Result::is_err), "{case}: {} records", all.len());
    for (at, record) in all.iter().map_while(|r| r.as_ref().ok()).enumerate() {
        assert_eq!(record.0, served[at], "{case}");
    }
    let reversed: Vec<_> = map.range(..).rev().map_while(Result::ok).collect();
    for (record, key) in reversed.iter().zip(served.iter().rev()) {
        assert_eq!(record.0, *key, "{case}");
    }
}

/// Checks that changes of served keys succeed, and that changes of lost keys fail.
fn change(map: &OrderedMap<u64, u64>, served: &[u64], lost: &[u64], case: &str) {
    for &key in served.iter().step_by(5) {
        let before = map.put(&key, &(key + 1)).unwrap();
        assert!(before.is_some(), "{case}");
        assert_eq!(map.get(&key).unwrap(), Some(key + 1), "{case}");
        // Insert other keys, so that leaves split and merge next to the damage.
        match map.insert(&(key + 2), &9) {
            Ok(inserted) => {
                assert!(inserted, "{case}");
                assert_eq!(map.remove(&(key + 2)).unwrap(), Some(9), "{case}");
            }
            Err(Error::Damaged(_)) => {}
            Err(error) => panic!("{case}: {error}"),
        }
        assert_eq!(map.put(&key, &before.unwrap()).unwrap(), Some(key + 1), "{case}");
    }
    for key in lost {
        assert!(matches!(map.remove(key), Err(Error::Damaged(_))), "{case}: {key}");
        assert!(matches!(map.put(key, &3), Err(Error::Damaged(_))), "{case}: {key}");
        assert!(matches!(map.insert(key, &3), Err(Error::Damaged(_))), "{case}: {key}");
    }
}

/// Checks that nothing was lost: once the bit is restored, all records are there.
fn put_right(path: &Path, at: u64, served: &[u64], case: &str) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at as usize] ^= 0x10;
    std::fs::write(path, &bytes).unwrap();
    let (pool, map) = open(path);
    let expected: BTreeMap<u64, u64> = (0..KEYS).map(|n| (key(n), value(n))).collect();
    let all: BTreeMap<u64, u64> = map.iter().map(Result::unwrap).collect();
    assert_eq!(all, expected, "{case}: {} were served", served.len());
    let found = pool.verify().unwrap();
    assert!(found.is_sound(), "{case}: {found:?}");
    drop(map);
    pool.close().unwrap();
}

#[test]
fn damage_of_a_leaf_takes_no_other_keys_and_loses_nothing_inline() {
    check(RecordForm::Inline, true);
    check(RecordForm::Inline, false);
}

#[test]
fn damage_of_a_leaf_takes_no_other_keys_and_loses_nothing_bytes() {
    check(RecordForm::Bytes, true);
    check(RecordForm::Bytes, false);
}

#[test]
fn damage_of_an_entry_of_the_master_array_takes_no_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pool");
    let sound = image(&path, RecordForm::Inline, true);
    let (_, regions) = offline::regions(&sound).unwrap();
    let entries = *regions.iter().find(|r| r.what == What::MasterEntries).unwrap();
    for index in 1..entries.bytes / 8 {
        let mut bytes = sound.clone();
        bytes[(entries.offset + index * 8 + 1) as usize] ^= 4;
        std::fs::write(&path, &bytes).unwrap();
        let (pool, map) = open(&path);
        assert_eq!(served(&map).len() as u64, KEYS, "entry {index}");
        assert!(!pool.verify().unwrap().is_sound(), "entry {index}");
        // Remove and insert everything, so that partitions merge and split next to the damage.
        for n in 0..KEYS {
            assert_eq!(map.remove(&key(n)).unwrap(), Some(value(n)));
        }
        for n in 0..KEYS {
            assert!(map.insert(&key(n), &value(n)).unwrap());
        }
        drop(map);
        pool.close().unwrap();
        let (pool, map) = open(&path);
        assert_eq!(served(&map).len() as u64, KEYS, "entry {index}");
        drop(map);
        pool.close().unwrap();
    }
    // The first entry leads to the first leaf.
    let mut bytes = sound;
    bytes[entries.offset as usize + 1] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options().open(&path).unwrap() };
    assert!(matches!(pool.ordered_map::<u64, u64>("m"), Err(Error::Damaged(_))));
    pool.close().unwrap();
}
