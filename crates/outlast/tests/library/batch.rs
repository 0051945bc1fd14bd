//! Batches make all of their changes or none, also in a full pool, alongside other threads, and
//! after a kill.

use crate::files::{child_path, create, dir, in_child, open};
use outlast::{Error, MapOptions, Pool, PoolOptions, RecordForm, Scheme};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) fn pool() -> Pool {
    PoolOptions::new().anonymous().unwrap()
}

/// Options for every scheme and form.
pub(crate) fn everything() -> impl Iterator<Item = MapOptions> {
    let of =
        |&scheme: &Scheme| RecordForm::ALL.map(|form| MapOptions::new().scheme(scheme).form(form));
    Scheme::ALL.iter().flat_map(of)
}

#[test]
fn a_batch_changes_several_maps() {
    for options in everything() {
        let pool = pool();
        let map = pool.map_with::<u64, u64>("m", &options).unwrap();
        let texts = pool.ordered_map::<str, [u8]>("texts").unwrap();
        let mut model = BTreeMap::new();
        for round in 0..50_u64 {
            let mut batch = pool.batch();
            for n in 0..20 {
                // Some keys appear twice, and the last change counts.
                let key = (round * 7 + n * 3) % 40;
                if (key + round) % 3 == 0 {
                    batch.remove(&map, &key).unwrap();
                    model.remove(&key);
                } else {
                    batch.put(&map, &key, &(round * 100 + n)).unwrap();
                    model.insert(key, round * 100 + n);
                }
            }
            batch.put(&texts, "round", &round.to_le_bytes()).unwrap();
            assert_eq!((batch.len(), batch.is_empty()), (21, false));
            assert!(batch.commit().unwrap());
            assert!(batch.is_empty());
            let found: BTreeMap<u64, u64> = map.iter().map(Result::unwrap).collect();
            assert_eq!(found, model, "{options:?}");
            assert_eq!(texts.get("round").unwrap().unwrap(), round.to_le_bytes());
        }
        pool.verify().unwrap().ensure_sound().unwrap();
    }
}

#[test]
fn what_a_batch_refuses_it_refuses_whole() {
    let (_dir, path) = dir();
    // SAFETY: the file belongs to this test.
    let pool = unsafe {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .page_bits(12)
            .create(&path)
            .unwrap()
    };
    let map = pool.map::<u64, u64>("m").unwrap();
    let texts = pool.map::<[u8], [u8]>("texts").unwrap();
    pool.batch().commit().unwrap();
    // Maps of another pool, keys and values that are too long, bytes that are no value of the type.
    let other = PoolOptions::new().anonymous().unwrap();
    let foreign = other.map::<u64, u64>("m").unwrap();
    let mut batch = pool.batch();
    let refused = batch.put(&foreign, &1, &1).unwrap_err();
    assert!(refused.to_string().contains("another pool"), "{refused}");
    let long = batch.put(&texts, &vec![0; 70_000], &[]).unwrap_err();
    assert!(matches!(long, Error::KeyTooLarge { .. }), "{long}");
    let raw = batch.change_raw(map.raw(), &[1, 2, 3], None).unwrap_err();
    assert!(matches!(raw, Error::Invalid { what: "key", .. }), "{raw}");
    assert!(batch.is_empty(), "what was refused is not in it");
    // A map that was dropped.
    let gone = pool.map::<u64, u64>("gone").unwrap();
    batch.put(&map, &1, &1).unwrap().put(&gone, &1, &1).unwrap();
    pool.drop_map("gone").unwrap();
    assert!(matches!(batch.commit(), Err(Error::MapDropped)));
    assert_eq!(map.get(&1).unwrap(), None);
    // A batch that is too large for any block.
    let mut batch = pool.batch();
    batch.put(&map, &1, &1).unwrap();
    for key in 0..5_u8 {
        batch.put(&texts, &[key], &vec![7; 500 << 10]).unwrap();
    }
    let large = batch.commit().unwrap_err();
    assert!(matches!(large, Error::Invalid { what: "batch", .. }), "{large}");
    assert_eq!((map.get(&1).unwrap(), texts.len().unwrap()), (None, 0));
    // A closed pool, and one that is open read-only.
    let mut late = pool.batch();
    late.put(&map, &1, &1).unwrap();
    pool.close().unwrap();
    assert!(matches!(late.commit(), Err(Error::NotOpen(_))));
    // SAFETY: the file belongs to this test.
    let reading = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
    let map = reading.map::<u64, u64>("m").unwrap();
    let mut batch = reading.batch();
    batch.put(&map, &1, &1).unwrap();
    assert!(matches!(batch.commit(), Err(Error::ReadOnly { .. })));
}

#[test]
fn a_batch_whose_requirements_do_not_hold_changes_nothing() {
    for options in everything() {
        let pool = pool();
        let map = pool.map_with::<u64, u64>("m", &options).unwrap();
        let texts = pool.map::<str, str>("texts").unwrap();
        map.put(&1, &10).unwrap();
        let mut batch = pool.batch();
        batch.require(&map, &1, Some(&10)).unwrap().require(&texts, "a", None).unwrap();
        batch.put(&map, &1, &11).unwrap().put(&texts, "a", "b").unwrap();
        assert!(batch.commit().unwrap());
        // Requirements are forgotten with the changes.
        assert!(batch.put(&map, &2, &12).unwrap().commit().unwrap());
        for (value, text) in [(Some(&10), Some("b")), (Some(&11), None), (None, Some("b"))] {
            batch.require(&map, &1, value).unwrap().require(&texts, "a", text).unwrap();
            batch.put(&map, &1, &13).unwrap().remove(&texts, "a").unwrap();
            assert!(!batch.commit().unwrap(), "{options:?}");
            assert_eq!(map.get(&1).unwrap(), Some(11));
            assert_eq!(texts.get("a").unwrap().as_deref(), Some("b"));
        }
        // Only requirements.
        assert!(batch.require(&map, &2, Some(&12)).unwrap().commit().unwrap());
        assert!(!batch.require(&map, &2, Some(&13)).unwrap().commit().unwrap());
    }
}

/// Only the last change of a key is made, and takes space.
#[test]
fn earlier_changes_of_a_key_take_no_space() {
    let pool = PoolOptions::new().max_size(4 << 20).anonymous().unwrap();
    let map = pool.map::<str, [u8]>("m").unwrap();
    map.put("key", &vec![1; 400_000]).unwrap();
    let mut batch = pool.batch();
    for n in 0..100_u8 {
        batch.put(&map, "key", &[n; 8]).unwrap().put(&map, "other", &[n]).unwrap();
    }
    batch.remove(&map, "other").unwrap();
    assert!(batch.commit().unwrap());
    assert_eq!(map.get("key").unwrap(), Some(vec![99; 8]));
    assert_eq!(map.get("other").unwrap(), None);
}

/// Transfers that require the balances from which they were computed neither lose nor create money.
#[test]
fn transfers_between_threads_keep_the_sum() {
    const ACCOUNTS: u64 = 8;
    for options in everything() {
        let pool = pool();
        let map = pool.map_with::<u64, u64>("m", &options).unwrap();
        for account in 0..ACCOUNTS {
            map.put(&account, &1_000).unwrap();
        }
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (pool, map) = (&pool, &map);
                scope.spawn(move || {
                    let mut made = 0;
                    for n in 0.. {
                        let (from, to) =
                            ((thread + n) % ACCOUNTS, (thread * 3 + n * 5 + 1) % ACCOUNTS);
                        let [a, b] = [from, to].map(|account| map.get(&account).unwrap().unwrap());
                        if from == to || a == 0 {
                            continue;
                        }
                        let mut batch = pool.batch();
                        batch.require(map, &from, Some(&a)).unwrap();
                        batch.require(map, &to, Some(&b)).unwrap();
                        batch.put(map, &from, &(a - 1)).unwrap().put(map, &to, &(b + 1)).unwrap();
                        made += u32::from(batch.commit().unwrap());
                        if made == 300 {
                            break;
                        }
                    }
                });
            }
        });
        let sum: u64 = map.values().map(Result::unwrap).sum();
        assert_eq!(sum, ACCOUNTS * 1_000, "{options:?}");
    }
}

/// The pool has space for the log of the batch, but not for its records.
#[test]
fn a_batch_that_does_not_fit_is_taken_back() {
    for options in everything() {
        let mut refused = 0;
        for more in (300..=650).step_by(50) {
            let limited = PoolOptions::new()
                .survive(outlast::Failure::ProcessDeath)
                .max_size(8 << 20)
                .page_bits(14);
            let pool = limited.anonymous().unwrap();
            let map = pool.map_with::<u64, u64>("m", &options).unwrap();
            let texts = pool.map::<u64, [u8]>("texts").unwrap();
            let text = |key: u64| vec![key as u8; 1000];
            for key in 0..101 {
                map.put(&key, &key).unwrap();
                texts.put(&key, &text(key)).unwrap();
            }
            // A reference keeps replaced blocks from reuse. The batch must be taken back all the same.
            let kept = texts.get_ref(&0).unwrap().unwrap();
            let mut batch = pool.batch();
            if more % 100 == 0 {
                for key in 0..100 {
                    batch.put(&map, &key, &(key + 1)).unwrap();
                    batch.put(&texts, &key, &[8; 900]).unwrap();
                }
            } else {
                // Long runs of changes of one map, whose values before are read together.
                for key in 0..100 {
                    batch.put(&map, &key, &(key + 1)).unwrap();
                }
                for key in 0..100 {
                    batch.put(&texts, &key, &[8; 900]).unwrap();
                }
            }
            // The log takes as much space as the records.
            for key in 0..more {
                batch.put(&texts, &(1_000 + key), &[9; 8_300]).unwrap();
            }
            // These come after the change that fails.
            batch.put(&texts, &100, &[8; 900]).unwrap().put(&map, &100, &0).unwrap();
            match batch.commit() {
                Ok(held) => assert!(held && texts.len().unwrap() == 101 + more),
                Err(error) => {
                    assert!(error.is_full(), "{error}");
                    refused += 1;
                    let now: Vec<_> = texts.iter().map(Result::unwrap).collect();
                    assert_eq!(now.len(), 101);
                    assert!(now.iter().all(|(key, value)| *value == text(*key)), "{options:?}");
                    assert!((0..101).all(|key| map.get(&key).unwrap() == Some(key)), "{options:?}");
                }
            }
            drop(kept);
            pool.verify().unwrap().ensure_sound().unwrap();
        }
        assert!((1..8).contains(&refused), "{options:?}: {refused} were refused");
    }
}

/// No other thread changes a record between the changes of a batch. So two records that every batch
/// sets to the same value never end up different, and no addition is lost.
#[test]
fn batches_do_not_mix_with_other_changes() {
    for options in everything() {
        let pool = pool();
        let map = pool.map_with::<u64, u64>("m", &options).unwrap();
        for key in 0..64 {
            map.put(&key, &0).unwrap();
        }
        std::thread::scope(|scope| {
            for thread in 1..3 {
                let (pool, map) = (&pool, &map);
                scope.spawn(move || {
                    for round in 0..300_u64 {
                        let mut batch = pool.batch();
                        for key in 0..16 {
                            // The two threads go in opposite directions.
                            let key = if thread == 1 { key } else { 15 - key };
                            batch.put(map, &key, &(round << 8 | thread)).unwrap();
                        }
                        batch.commit().unwrap();
                    }
                });
                scope.spawn(move || {
                    (0..3_000).for_each(|n| {
                        map.add(&(16 + n % 48), 1).unwrap();
                    })
                });
            }
        });
        let values: Vec<u64> = (0..16).map(|key| map.get(&key).unwrap().unwrap()).collect();
        assert!(values.iter().all(|value| *value == values[0]), "{options:?}: {values:?}");
        let added: u64 = (16..64).map(|key| map.get(&key).unwrap().unwrap()).sum();
        assert_eq!(added, 6_000, "{options:?}");
        pool.verify().unwrap().ensure_sound().unwrap();
    }
}

/// Kills a process that commits batches. Of each batch, the pool then has all changes or none.
#[test]
fn a_killed_process_leaves_whole_batches() {
    const KEYS: u64 = 40;
    if let Some(path) = child_path() {
        let pool = open(&path).unwrap();
        let maps: Vec<_> = (0..Scheme::ALL.len())
            .map(|scheme| pool.map::<u64, u64>(Scheme::ALL[scheme].name()).unwrap())
            .collect();
        let texts = pool.ordered_map::<u64, [u8]>("texts").unwrap();
        for round in texts.get(&0).unwrap().map_or(0, |value| value.len()) + 1.. {
            let mut batch = pool.batch();
            for key in 0..KEYS {
                for map in &maps {
                    batch.put(map, &key, &(round as u64)).unwrap();
                }
                batch.put(&texts, &key, &vec![7; round % 3_000]).unwrap();
            }
            batch.commit().unwrap();
        }
        return;
    }
    let (_dir, path) = dir();
    let pool = create(&path);
    for &scheme in Scheme::ALL {
        pool.map_with::<u64, u64>(scheme.name(), &MapOptions::new().scheme(scheme)).unwrap();
    }
    pool.ordered_map::<u64, [u8]>("texts").unwrap();
    pool.close().unwrap();
    let mut seen = 0;
    for kill in 0..12 {
        let mut child =
            in_child("batch::a_killed_process_leaves_whole_batches", &path).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(60 + 7 * kill));
        child.kill().unwrap();
        child.wait().unwrap();
        let pool = open(&path).unwrap();
        let texts = pool.ordered_map::<u64, [u8]>("texts").unwrap();
        let first = texts.get(&0).unwrap();
        for &scheme in Scheme::ALL {
            let map = pool.map::<u64, u64>(scheme.name()).unwrap();
            let round = map.get(&0).unwrap();
            assert!((0..KEYS).all(|key| map.get(&key).unwrap() == round), "{scheme}");
            let of_texts = round.map(|round| round as usize % 3_000);
            assert_eq!(first.as_ref().map(Vec::len), of_texts, "{scheme}");
            seen = seen.max(round.unwrap_or(0));
        }
        assert!((0..KEYS).all(|key| texts.get(&key).unwrap() == first));
        pool.verify().unwrap().ensure_sound().unwrap();
    }
    assert!(seen > 20, "{seen} batches");
}
