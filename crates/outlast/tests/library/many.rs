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
        let new = || MapOptions::new().scheme(scheme);
        let [inline, bytes] = RecordForm::ALL.map(|form| new().form(form));
        for (form, options) in
            [("inline", inline), ("bytes", bytes), ("expiry", new().expiry(true))]
        {
            let pool = pool();
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

/// A program may write what it has buffered while it unwinds.
#[test]
fn changes_in_a_destructor_are_made_while_a_thread_unwinds() {
    struct Buffer(outlast::Map<u64, str>);

    impl Drop for Buffer {
        fn drop(&mut self) {
            let records: Vec<(&u64, &str)> = vec![(&1, "one"), (&2, "two")];
            assert_eq!(self.0.put_many(&records).unwrap(), [false, false]);
        }
    }

    for &scheme in Scheme::ALL {
        let pool = pool();
        let map = || pool.map_with::<u64, str>("m", &MapOptions::new().scheme(scheme)).unwrap();
        map().insert(&0, "zero").unwrap();
        let buffer = Buffer(map());
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _buffer = buffer;
            std::panic::resume_unwind(Box::new("the program's own panic"));
        }));
        assert!(unwound.is_err());
        assert_eq!(map().get(&2).unwrap().as_deref(), Some("two"), "{scheme}");
        assert!(pool.verify().unwrap().is_sound(), "{scheme}");
    }
}

/// A change that does not apply takes no space from those after it.
#[test]
fn a_full_pool_takes_what_it_would_take_one_by_one() {
    let value = vec![7u8; 1_000];
    for &scheme in Scheme::ALL {
        let options = PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .page_bits(12)
            .initial_size(4 << 20)
            .max_size(4 << 20);
        let pool = options.anonymous().unwrap();
        let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().scheme(scheme)).unwrap();
        let full = (0..).find(|key| map.insert(key, &value).is_err()).unwrap();
        assert!(map.remove(&0).unwrap().is_some());
        // Most keys are present.
        let keys: Vec<u64> = (1..16).chain([0]).collect();
        let records: Vec<(&u64, &[u8])> = keys.iter().map(|key| (key, &value[..])).collect();
        let mut expected = vec![false; 15];
        expected.push(true);
        // The block of the removed record is free once no thread can read it.
        let done = (0..100).find_map(|_| match map.insert_many(&records) {
            Err(error) if error.is_full() => None,
            done => Some(done.unwrap()),
        });
        assert_eq!(done, Some(expected), "{scheme}, {full} records");
        assert!(pool.verify().unwrap().is_sound(), "{scheme}");
    }
}

#[test]
fn long_values_are_changed_too() {
    let lengths = [0, 10, 70_000, 30_000, 40_000, 200_000, 5, 64 << 10, 1];
    for &scheme in Scheme::ALL {
        let pool = pool();
        let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().scheme(scheme)).unwrap();
        for round in 0..3u8 {
            let values: Vec<Vec<u8>> = lengths.iter().map(|&len| vec![round; len]).collect();
            let keys: Vec<u64> = (0..values.len() as u64).collect();
            let records: Vec<(&u64, &[u8])> =
                keys.iter().zip(&values).map(|(key, value)| (key, &value[..])).collect();
            let done = map.put_many(&records).unwrap();
            assert_eq!(done, vec![round > 0; values.len()], "{scheme}");
            for (key, value) in &records {
                assert_eq!(map.get(key).unwrap().as_deref(), Some(*value), "{scheme}");
            }
        }
        assert!(pool.verify().unwrap().is_sound(), "{scheme}");
    }
}

/// Rows of several threads that lock each other's buckets in different orders.
#[test]
fn rows_of_several_threads_do_not_wait_for_each_other() {
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            let pool = pool();
            let options = MapOptions::new().scheme(scheme).form(form);
            let map = pool.map_with::<u64, u64>("m", &options).unwrap();
            let inserted = std::thread::scope(|scope| {
                let thread = |number: u64| {
                    let map = &map;
                    scope.spawn(move || {
                        let mut inserted = 0i64;
                        for round in 0..300u64 {
                            // All threads take the same keys, each in another order.
                            let step = [1, 3, 7][number as usize];
                            let keys: Vec<u64> =
                                (0..64).map(|n| (n * step + round) % 64 + round / 10).collect();
                            let records: Vec<_> = keys.iter().map(|key| (key, &round)).collect();
                            let count =
                                |done: Vec<bool>| done.iter().filter(|&&d| d).count() as i64;
                            match (round + number) % 3 {
                                0 => inserted += count(map.insert_many(&records).unwrap()),
                                1 => drop(map.update_many(&records).unwrap()),
                                _ => {
                                    let keys: Vec<_> = keys.iter().collect();
                                    inserted -= count(map.remove_many(&keys).unwrap());
                                }
                            }
                        }
                        inserted
                    })
                };
                let threads: Vec<_> = (0..3).map(thread).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum::<i64>()
            });
            let left = map.iter().count() as i64;
            assert_eq!(left, inserted, "{scheme}, {form}");
            assert!(pool.verify().unwrap().is_sound(), "{scheme}, {form}");
        }
    }
}
