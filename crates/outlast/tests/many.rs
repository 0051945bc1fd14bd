//! Changes of many keys in one call do what single changes do, one after another.

use outlast::{Error, MapOptions, Pool, PoolOptions, RecordForm, Scheme};
use std::collections::BTreeMap;

fn pool() -> Pool {
    PoolOptions::new().anonymous().unwrap()
}

/// Returns 100 numbers below 70, so that a call takes several internal batches. The last 30 repeat
/// the first 30.
fn numbers(seed: u64) -> Vec<u64> {
    (0..100).map(|n| (n * 37 + seed * 11) % 70).collect()
}

#[test]
fn many_changes_do_what_single_ones_do() {
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            let pool = pool();
            let options = MapOptions::new().scheme(scheme).form(form);
            let map = pool.map_with::<u64, u64>("m", &options).unwrap();
            let mut model = BTreeMap::new();
            for round in 0..40 {
                let keys = numbers(round);
                let values: Vec<u64> = keys.iter().map(|key| key * 1_000 + round).collect();
                let records: Vec<(&u64, &u64)> = keys.iter().zip(&values).collect();
                let each = |change: &mut dyn FnMut(u64, u64) -> bool| -> Vec<bool> {
                    records.iter().map(|(key, value)| change(**key, **value)).collect()
                };
                let (done, expected) = match round % 4 {
                    0 => (
                        map.insert_many(&records),
                        each(&mut |key, value| {
                            let absent = !model.contains_key(&key);
                            model.entry(key).or_insert(value);
                            absent
                        }),
                    ),
                    1 => (
                        map.put_many(&records),
                        each(&mut |key, value| model.insert(key, value).is_some()),
                    ),
                    2 => (
                        map.update_many(&records),
                        each(&mut |key, value| {
                            model.get_mut(&key).map(|old| *old = value).is_some()
                        }),
                    ),
                    _ => (
                        map.remove_many(&keys.iter().take(50).collect::<Vec<_>>()),
                        keys.iter().take(50).map(|key| model.remove(key).is_some()).collect(),
                    ),
                };
                assert_eq!(done.unwrap(), expected, "{scheme}, {form}, round {round}");
                let wanted: Vec<u64> = (0..80).collect();
                let found = map.get_many(&wanted.iter().collect::<Vec<_>>()).unwrap();
                let known: Vec<Option<u64>> =
                    wanted.iter().map(|key| model.get(key).copied()).collect();
                assert_eq!(found, known, "{scheme}, {form}, round {round}");
            }
            assert!(pool.verify().unwrap().is_sound());
        }
    }
}

#[test]
fn a_change_that_fails_ends_the_batch_where_it_stands() {
    let long = "k".repeat(70_000);
    for &scheme in Scheme::ALL {
        let pool = pool();
        let options = MapOptions::new().scheme(scheme);
        let map = pool.map_with::<str, u64>("m", &options).unwrap();
        let keys: Vec<String> = (0..20).map(|n| format!("key {n}")).collect();
        let mut records: Vec<(&str, &u64)> = keys.iter().map(|key| (key.as_str(), &7)).collect();
        records[13].0 = &long;
        assert!(matches!(map.insert_many(&records), Err(Error::KeyTooLarge { .. })), "{scheme}");
        for (number, (key, _)) in records.iter().enumerate().filter(|(n, _)| *n != 13) {
            assert_eq!(map.contains_key(key).unwrap(), number < 13, "{scheme}, {number}");
        }
        let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        keys[5] = &long;
        assert!(matches!(map.remove_many(&keys), Err(Error::KeyTooLarge { .. })), "{scheme}");
        assert_eq!(map.iter().count(), 13 - 5, "{scheme}");
        assert!(map.insert_many(&[]).unwrap().is_empty());
        pool.close().unwrap();
        assert!(matches!(map.put_many(&records), Err(Error::NotOpen(_))), "{scheme}");
    }
}
