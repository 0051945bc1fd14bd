//! Many threads use one map, through the public interface. Each test does this for every scheme.
//!
//! Most tests use small tables, so that splits, doublings and expansions run alongside everything
//! else. Where values are replaced, their bytes tell which write they come from, so that the test
//! notices a mixture of two values.

use outlast::{Config, MapOptions, Pool, PoolOptions, RecordForm, Scheme};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: u64 = 4;

fn pool() -> Pool {
    PoolOptions::new().anonymous().unwrap()
}

fn usual(scheme: Scheme) -> MapOptions {
    MapOptions::new().scheme(scheme)
}

fn small(scheme: Scheme) -> MapOptions {
    MapOptions::new().config(Config::small(scheme))
}

fn scrambled(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn of_many_inserts_of_one_key_one_succeeds() {
    Scheme::ALL.iter().copied().for_each(inserts_of_one_key);
}

fn inserts_of_one_key(scheme: Scheme) {
    let pool = pool();
    for (name, options) in ["a", "b"].into_iter().zip([small(scheme), usual(scheme)]) {
        let map = pool.map_with::<u64, u64>(name, &options).unwrap();
        const KEYS: u64 = 60_000;
        let wins = AtomicU64::new(0);
        std::thread::scope(|s| {
            for t in 0..THREADS {
                let (map, wins) = (map.clone(), &wins);
                s.spawn(move || {
                    for k in 0..KEYS {
                        if map.insert(&scrambled(k), &(t << 32 | k)).unwrap() {
                            wins.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(wins.into_inner(), KEYS);
        let mut seen = HashSet::new();
        for record in map.iter() {
            let (k, v) = record.unwrap();
            assert_eq!(scrambled(v & 0xffff_ffff), k);
            assert!(seen.insert(k), "twice: {k:#x}");
        }
        assert_eq!(seen.len() as u64, KEYS);
    }
    let found = pool.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
}

#[test]
fn what_stays_is_always_found_while_the_rest_comes_and_goes() {
    Scheme::ALL.iter().copied().for_each(what_stays);
}

fn what_stays(scheme: Scheme) {
    let pool = pool();
    let map = pool.map_with::<[u8], [u8]>("m", &small(scheme)).unwrap();
    let key = |n: u64| format!("key {n}").into_bytes();
    // Values of many sizes, in which every byte identifies the writer.
    let value = |n: u64, round: u64| {
        let len = 1 + (scrambled(n ^ round) % 300) as usize;
        let mut v = vec![(round % 251) as u8; len];
        v.extend_from_slice(&n.to_le_bytes());
        v
    };
    let whole = |n: u64, v: &[u8]| {
        let (body, tail) = v.split_at(v.len() - 8);
        assert_eq!(tail, n.to_le_bytes());
        assert!(body.iter().all(|b| *b == body[0]), "a mixture of two values");
    };
    const STAY: u64 = 500;
    for n in 0..STAY {
        assert!(map.insert(&key(n), &value(n, 0)).unwrap());
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..2 {
            let (map, stop) = (map.clone(), &stop);
            s.spawn(move || {
                for round in 1..=30 {
                    // Grow, change the keys that stay, shrink again.
                    for n in 0..1500 {
                        let n = STAY + t * 10_000 + n;
                        assert!(map.insert(&key(n), &value(n, round)).unwrap());
                    }
                    for n in (t..STAY).step_by(2) {
                        assert!(map.update(&key(n), &value(n, round)).unwrap());
                    }
                    for n in 0..1500 {
                        let n = STAY + t * 10_000 + n;
                        let before = map.remove(&key(n)).unwrap().expect("inserted above");
                        assert_eq!(before, value(n, round));
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        for t in 0..2 {
            let (map, stop) = (map.clone(), &stop);
            s.spawn(move || {
                let mut i = t;
                while !stop.load(Ordering::Relaxed) {
                    i = scrambled(i + 1);
                    let n = i % STAY;
                    whole(n, &map.get(&key(n)).unwrap().expect("it stays"));
                    let guard = map.get_ref(&key(n)).unwrap().expect("it stays");
                    let first = guard.bytes().to_vec().unwrap();
                    whole(n, &first);
                    std::thread::yield_now();
                    assert!(guard.bytes().equals(&first).unwrap(), "a guard's value changed");
                }
            });
        }
        let (map, stop) = (map.clone(), &stop);
        s.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let mut seen = HashSet::new();
                for record in map.iter() {
                    let (k, v) = record.unwrap();
                    let n: u64 = std::str::from_utf8(&k[4..]).unwrap().parse().unwrap();
                    whole(n, &v);
                    assert!(seen.insert(n), "the walk reports {n} twice");
                }
                for n in 0..STAY {
                    assert!(seen.contains(&n), "the walk misses {n}, which stays");
                }
            }
        });
    });
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
    assert_eq!(found.records(), STAY);
}

#[test]
fn counters_count() {
    Scheme::ALL.iter().copied().for_each(counters);
}

fn counters(scheme: Scheme) {
    let pool = pool();
    let words = pool.map_with::<u64, u64>("words", &small(scheme)).unwrap();
    let texts = pool.map_with::<str, [u8]>("texts", &small(scheme)).unwrap();
    const EACH: u64 = 5_000;
    words.insert(&7, &0).unwrap();
    texts.insert("seven", &0u64.to_le_bytes()).unwrap();
    std::thread::scope(|s| {
        for _ in 0..THREADS {
            let (words, texts) = (words.clone(), texts.clone());
            s.spawn(move || {
                for _ in 0..EACH {
                    assert!(words.fetch_update(&7, |n| Some(n + 1)).unwrap().is_some());
                    let add = |n: &[u8]| {
                        let n = u64::from_le_bytes(n.try_into().unwrap());
                        Some((n + 1).to_le_bytes().to_vec())
                    };
                    assert!(texts.fetch_update("seven", add).unwrap().is_some());
                }
            });
        }
    });
    assert_eq!(words.get(&7).unwrap(), Some(THREADS * EACH));
    assert_eq!(texts.get("seven").unwrap().unwrap(), (THREADS * EACH).to_le_bytes());
}

#[test]
fn sums_are_exact() {
    Scheme::ALL.iter().copied().for_each(sums);
}

/// Threads add to counters, which another thread keeps removing.
fn sums(scheme: Scheme) {
    let pool = pool();
    let inline = pool.map_with::<u64, i64>("inline", &small(scheme)).unwrap();
    let blocks = pool.map_with::<str, i128>("blocks", &small(scheme)).unwrap();
    const EACH: i64 = 2_000;
    let taken = AtomicU64::new(0);
    let take = |amount: Option<i128>| {
        taken.fetch_add(amount.map_or(0, |amount| amount as u64), Ordering::Relaxed)
    };
    std::thread::scope(|s| {
        for _ in 0..THREADS {
            s.spawn(|| {
                for n in 1..=EACH {
                    assert!(inline.add(&7, n).unwrap() >= n);
                    assert!(inline.sub(&7, n - 1).unwrap() >= 0);
                    let sum = blocks.add("seven", n.into()).unwrap();
                    assert!(sum >= n.into());
                    // Make and remove keys next to the counters.
                    let other = (n + 100).cast_unsigned();
                    inline.alter(&other, |found| found.is_none().then_some(0)).unwrap();
                }
            });
        }
        s.spawn(|| {
            for _ in 0..EACH / 4 {
                take(blocks.remove_if("seven", |sum| sum % 3 == 0).unwrap());
                take(blocks.remove("seven").unwrap());
            }
        });
    });
    assert_eq!(inline.get(&7).unwrap(), Some(THREADS as i64 * EACH));
    assert_eq!(inline.len().unwrap(), 1, "the others were altered an even number of times");
    let rest = blocks.get("seven").unwrap().unwrap_or(0) as u64;
    let all = THREADS * (EACH * (EACH + 1) / 2) as u64;
    assert_eq!(taken.into_inner() + rest, all, "{scheme}");
}

#[test]
fn a_reaper_removes_no_session_that_was_refreshed() {
    Scheme::ALL.iter().copied().for_each(reaper);
}

/// Sessions are refreshed while a reaper removes the expired ones. A session whose new end is still
/// in the future must be present, with that end.
fn reaper(scheme: Scheme) {
    let pool = pool();
    const SESSIONS: u64 = 40;
    const LIVES: u64 = 300;
    /// The operations of the test on the sessions of one record form.
    struct Sessions<'m> {
        refresh: &'m (dyn Fn(u64, u64) + Sync),
        reap: &'m (dyn Fn(u64, u64) -> bool + Sync),
        end: &'m (dyn Fn(u64) -> Option<u64> + Sync),
    }
    let inline = pool.map_with::<u64, u64>("inline", &small(scheme)).unwrap();
    let blocks = pool.map_with::<str, [u8]>("blocks", &small(scheme)).unwrap();
    let name = |session: u64| format!("session {session}");
    // Values of several sizes that begin with the session's end.
    let bytes = |end: u64| end.to_le_bytes().repeat(1 + end as usize % 5);
    let end_of = |bytes: &[u8]| bytes.first_chunk().map_or(0, |end| u64::from_le_bytes(*end));
    let forms = [
        Sessions {
            refresh: &|session, end| assert!(inline.put(&session, &end).is_ok()),
            reap: &|session, now| {
                inline.remove_if(&session, |end| *end <= now).unwrap().is_some_and(|end| {
                    assert!(end <= now, "{scheme}: it ended at {end}, it is {now}");
                    true
                })
            },
            end: &|session| inline.get(&session).unwrap(),
        },
        Sessions {
            refresh: &|session, end| assert!(blocks.put(&name(session), &bytes(end)).is_ok()),
            reap: &|session, now| {
                let removed = blocks.remove_if(&name(session), |end| end_of(end) <= now).unwrap();
                removed.is_some_and(|end| {
                    assert!(end_of(&end) <= now, "{scheme}");
                    true
                })
            },
            end: &|session| blocks.get(&name(session)).unwrap().map(|end| end_of(&end)),
        },
    ];
    for sessions in &forms {
        let now = AtomicU64::new(0);
        let reaped = AtomicU64::new(0);
        let working = AtomicU64::new(2);
        std::thread::scope(|s| {
            for t in 0..2 {
                let (now, working, reaped) = (&now, &working, &reaped);
                s.spawn(move || {
                    let (begun, mut lives) = (Instant::now(), 0);
                    // Continue until the reaper has removed some, because it may have to wait for a
                    // processor.
                    while (lives < LIVES || reaped.load(Ordering::SeqCst) < 50)
                        && begun.elapsed() < Duration::from_secs(60)
                    {
                        lives += 1;
                        for session in (t..SESSIONS).step_by(2) {
                            // Many sessions expire shortly before they are refreshed.
                            let end = now.load(Ordering::SeqCst) + SESSIONS * 3 / 4;
                            (sessions.refresh)(session, end);
                            let found = (sessions.end)(session);
                            let late = now.load(Ordering::SeqCst) >= end;
                            assert!(found == Some(end) || late, "{scheme}: {end}, {found:?}");
                            now.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    working.fetch_sub(1, Ordering::SeqCst);
                });
            }
            s.spawn(|| {
                let begun = Instant::now();
                while working.load(Ordering::SeqCst) > 0
                    && begun.elapsed() < Duration::from_secs(60)
                {
                    for session in 0..SESSIONS {
                        let time = now.load(Ordering::SeqCst);
                        reaped.fetch_add((sessions.reap)(session, time).into(), Ordering::SeqCst);
                    }
                }
            });
        });
        assert!(reaped.into_inner() > 0, "{scheme}: nothing expired");
        let end = now.into_inner() + SESSIONS;
        for session in 0..SESSIONS {
            (sessions.reap)(session, end);
        }
    }
    assert!(inline.is_empty().unwrap() && blocks.is_empty().unwrap());
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
}

/// While a caller's function runs, the thread holds no lock and is outside the gate.
#[test]
fn a_function_may_use_the_pool_and_panic() {
    for &scheme in Scheme::ALL {
        let pool = PoolOptions::new().background(false).anonymous().unwrap();
        let map = pool.map_with::<u64, u64>("m", &usual(scheme)).unwrap();
        let mut calls = 0;
        let sum = map.alter(&1, |found| {
            calls += 1;
            if calls == 1 {
                // The value changes meanwhile, so the function has to run again.
                map.put(&1, &100).unwrap();
                pool.sync().unwrap();
            }
            Some(found.map_or(0, |found| found + 1))
        });
        assert_eq!((sum.unwrap(), calls), (Some(101), 2), "{scheme}");
        let refreshed = map.remove_if(&1, |found| {
            map.put(&1, &200).unwrap();
            *found == 101
        });
        assert_eq!(refreshed.unwrap(), None, "{scheme}: it was refreshed meanwhile");
        let made = map.get_or_insert_with(&2, || {
            map.put(&2, &5).unwrap();
            6
        });
        assert_eq!(made.unwrap(), 5, "{scheme}");
        let panics = |run: &dyn Fn()| {
            let run = std::panic::AssertUnwindSafe(run);
            assert!(std::panic::catch_unwind(run).is_err(), "{scheme}");
        };
        panics(&|| drop(map.alter(&1, |_| panic!("on purpose"))));
        panics(&|| drop(map.remove_if(&1, |_| panic!("on purpose"))));
        panics(&|| drop(map.get_or_insert_with(&3, || panic!("on purpose"))));
        panics(&|| drop(map.retain(|_, _| panic!("on purpose"))));
        assert_eq!((map.get(&1).unwrap(), map.len().unwrap()), (Some(200), 2), "{scheme}");
        assert!(pool.verify().unwrap().is_sound(), "{scheme}");
    }
}

/// Thousands of keys with the same full hash make operations slow, but all keys are there, and the
/// directory stays small.
#[test]
fn keys_with_one_hash_degrade_and_never_loop() {
    Scheme::ALL.iter().copied().for_each(keys_with_one_hash);
}

fn keys_with_one_hash(scheme: Scheme) {
    let pool = PoolOptions::new().hash_function(0x7e57).anonymous().unwrap();
    for (name, options) in [("small", small(scheme)), ("default", usual(scheme))] {
        let map = pool.map_with::<u64, u64>(name, &options).unwrap();
        const SAME: u64 = 6_000;
        let same = |n: u64| 1 << 32 | n;
        std::thread::scope(|s| {
            for t in 0..2 {
                let map = map.clone();
                s.spawn(move || {
                    for n in (t..SAME).step_by(2) {
                        assert!(map.insert(&same(n), &(n + 1)).unwrap());
                        // Other keys in between, which hash as usual.
                        assert!(map.insert(&n, &(n + 2)).unwrap());
                    }
                });
            }
        });
        for n in 0..SAME {
            assert_eq!(map.get(&same(n)).unwrap(), Some(n + 1));
            assert_eq!(map.get(&n).unwrap(), Some(n + 2));
            assert_eq!(map.get(&same(n + SAME)).unwrap(), None);
        }
        let stats = map.stats().unwrap();
        // With a deep directory, the number of segments is only an estimate. Each split makes one
        // segment, so the number of splits is another estimate.
        let segments = stats.segments.max(stats.splits);
        assert!(stats.directory_entries <= 64 * segments, "{stats:?}");
        assert_eq!(map.iter().count() as u64, 2 * SAME);
        for n in 0..SAME {
            assert_eq!(map.remove(&same(n)).unwrap(), Some(n + 1));
        }
        assert_eq!(map.iter().count() as u64, SAME);
    }
    let texts = pool.map_with::<[u8], u64>("texts", &small(scheme)).unwrap();
    for n in 0..3_000u64 {
        assert!(texts.insert(&[[0xff; 8], n.to_le_bytes()].concat(), &n).unwrap());
    }
    for n in 0..3_000u64 {
        let key = [[0xff; 8], n.to_le_bytes()].concat();
        assert_eq!(texts.get(&key).unwrap(), Some(n));
    }
    let found = pool.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
}

#[test]
fn maps_come_and_go_beside_operations() {
    Scheme::ALL.iter().copied().for_each(maps_come_and_go);
}

fn maps_come_and_go(scheme: Scheme) {
    let pool = pool();
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let pool = pool.clone();
            s.spawn(move || {
                for round in 0..20 {
                    let name = format!("of {t}");
                    let map = pool.map_with::<str, [u8]>(&name, &small(scheme)).unwrap();
                    let value = [(20 * t + round) as u8; 100];
                    for n in 0..200 {
                        assert!(map.insert(&n.to_string(), &value).unwrap());
                    }
                    // No block that other threads free meanwhile belongs to this map.
                    for n in 0..200 {
                        let found = map.get(&n.to_string()).unwrap();
                        assert_eq!(found.as_deref(), Some(&value[..]), "{n}");
                    }
                    let reader = map.clone();
                    pool.drop_map(&name).unwrap();
                    assert!(matches!(reader.get("1"), Err(outlast::Error::MapDropped)));
                    drop((map, reader));
                    if round % 7 == 0 {
                        pool.sync().unwrap();
                    }
                }
            });
        }
    });
    // The background thread may still hold a map for which it began a step. Until it releases the
    // map, the map's blocks count as in use. They never count as leaked.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        while pool.step().unwrap() {}
        let found = pool.verify().unwrap();
        assert!(found.is_sound() && found.maps.is_empty(), "{found:?}");
        assert_eq!(found.leaked_bytes, Some(0));
        if found.used_bytes == 0 {
            break;
        }
        assert!(Instant::now() < end, "{} bytes are never freed", found.used_bytes);
        std::thread::yield_now();
    }
}

/// A lookup retries if a change of another record may have interfered. It must not retry forever,
/// although here each attempt takes longer than the interval between the changes.
#[test]
fn a_long_value_is_read_beside_constant_changes() {
    for &scheme in Scheme::ALL {
        let pool = pool();
        let options = usual(scheme).form(RecordForm::Bytes);
        let map = pool.map_with::<u64, [u8]>("m", &options).unwrap();
        let long = vec![7; 8 << 20];
        map.put(&0, &long).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            for thread in 0..2 {
                let (map, done) = (&map, &done);
                s.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        for key in 1..64 {
                            map.put(&(key * 2 + thread), &[1; 16]).unwrap();
                        }
                    }
                });
            }
            let read = [(); 3].map(|()| map.get(&0));
            done.store(true, Ordering::Relaxed);
            for value in read {
                assert!(value.unwrap().as_deref() == Some(&long[..]), "{scheme}");
            }
        });
    }
}
