//! What handles to a closed pool return: `NotOpen`, and never another record's bytes.

use outlast::{Error, MapOptions, Pool, PoolOptions, Scheme};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

fn open(path: &Path) -> Pool {
    // SAFETY: the file belongs to this test alone.
    unsafe {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .background(false)
            .open_or_create(path)
    }
    .unwrap()
}

fn options(scheme: Scheme) -> MapOptions {
    MapOptions::new().scheme(scheme)
}

fn is_closed<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::NotOpen(_)))
}

/// A reference never returns what a later process stores in the pool.
#[test]
fn a_reference_fails_once_its_pool_is_closed() {
    for &scheme in Scheme::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.pool");
        let pool = open(&path);
        let old = pool.map_with::<str, str>("m", &options(scheme)).unwrap();
        old.put("key", "the first value").unwrap();
        let reference = old.get_ref("key").unwrap().unwrap();
        assert_eq!(reference.to_owned().unwrap(), "the first value");
        pool.close().unwrap();
        let pool = open(&path);
        let map = pool.map_with::<str, str>("m", &options(scheme)).unwrap();
        for n in 0..100 {
            map.put("key", &format!("another one {n:03}")).unwrap();
        }
        let read = reference.to_owned();
        assert!(matches!(read, Err(Error::NotOpen(_))), "{scheme}: {read:?}");
        assert!(is_closed(reference.bytes().equals(b"another one 099")), "{scheme}");
        assert!(is_closed(reference.bytes().read_at(0, &mut [0; 4])), "{scheme}");
    }
}

/// A reference borrows its map, which keeps the pool open.
#[test]
fn a_reference_keeps_its_pool_open_through_its_map() {
    let dir = tempfile::tempdir().unwrap();
    let pool = open(&dir.path().join("p.pool"));
    let map = pool.map::<str, str>("m").unwrap();
    map.put("key", "value").unwrap();
    let reference = map.get_ref("key").unwrap().unwrap();
    drop(pool);
    assert_eq!(reference.to_owned().unwrap(), "value");
}

/// No call reads anything through a handle to a closed pool.
#[test]
fn every_read_of_a_closed_pool_fails() {
    for &scheme in Scheme::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.pool");
        let pool = open(&path);
        let words = pool.map_with::<u64, u64>("words", &options(scheme)).unwrap();
        let texts = pool.map_with::<str, str>("texts", &options(scheme)).unwrap();
        for n in 0..1000 {
            words.put(&n, &(n + 1)).unwrap();
            texts.put(&n.to_string(), &format!("value {n}")).unwrap();
        }
        let begun = {
            let mut begun = (words.iter(), texts.iter());
            begun.0.next().unwrap().unwrap();
            begun.1.next().unwrap().unwrap();
            begun
        };
        pool.clone().close().unwrap();
        assert!(is_closed(words.get(&1)), "{scheme}");
        assert!(is_closed(texts.get("1")), "{scheme}");
        assert!(is_closed(words.get(&100_000)), "{scheme}");
        assert!(is_closed(texts.get("none")), "{scheme}");
        assert!(is_closed(words.get_many(&[&1, &2])), "{scheme}");
        assert!(is_closed(texts.get_many(&["1", "2"])), "{scheme}");
        assert!(is_closed(words.get_ref(&1).map(|_| ())), "{scheme}");
        assert!(is_closed(texts.get_ref("1").map(|_| ())), "{scheme}");
        assert!(is_closed(words.contains_key(&1)), "{scheme}");
        assert!(is_closed(words.len()), "{scheme}");
        assert!(is_closed(texts.is_empty()), "{scheme}");
        assert!(is_closed(words.add(&1, 1)), "{scheme}");
        assert!(is_closed(texts.alter("1", |_| None)), "{scheme}");
        assert!(is_closed(texts.compare_remove("1", "value 1")), "{scheme}");
        assert!(is_closed(words.delete(&1)), "{scheme}");
        assert!(is_closed(words.clear()), "{scheme}");
        assert!(is_closed(words.keys().next().unwrap()), "{scheme}: a new iterator");
        assert!(is_closed(words.len_estimate()), "{scheme}");
        assert!(is_closed(texts.len_estimate()), "{scheme}");
        assert!(is_closed(words.stats()), "{scheme}");
        assert!(is_closed(words.iter().next().unwrap()), "{scheme}: a new iterator");
        assert!(is_closed(texts.iter().next().unwrap()), "{scheme}: a new iterator");
        // An iterator still returns the records that it has read ahead. Then it ends with the
        // error, unless it had read all records.
        let ends = |rest: Vec<bool>| {
            let failed = rest.iter().position(|failed| *failed);
            assert_eq!(failed.map_or(999, |at| at + 1), rest.len(), "{scheme}");
        };
        ends(begun.0.map(is_closed).collect());
        ends(begun.1.map(is_closed).collect());
        if scheme.is_ordered() {
            let raw = words.raw();
            let all = || raw.range(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded).unwrap();
            assert!(is_closed(all().next().unwrap()), "{scheme}");
            assert!(is_closed(all().next_back().unwrap()), "{scheme}");
        }
        assert!(is_closed(pool.verify()), "{scheme}");
        assert!(is_closed(pool.raw_map("words").map(|_| ())), "{scheme}");
    }
}

/// A read that overlaps `close` returns the complete value or fails, whatever the next opener of
/// the file does to it meanwhile.
#[test]
fn a_read_beside_close_is_whole_or_fails() {
    const BYTES: usize = 24 << 20;
    for &scheme in Scheme::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.pool");
        let (mut whole, mut refused) = (0, 0);
        for round in 0..6_u8 {
            let pool = open(&path);
            let map = pool.map_with::<[u8], [u8]>("m", &options(scheme)).unwrap();
            map.put(b"key", &vec![round; BYTES]).unwrap();
            let begin = Barrier::new(2);
            let closed = AtomicBool::new(false);
            std::thread::scope(|s| {
                s.spawn(|| {
                    begin.wait();
                    while !closed.load(Ordering::Relaxed) {
                        match map.get(b"key") {
                            Ok(value) => {
                                let value = value.expect("it stays");
                                assert_eq!(value.len(), BYTES, "{scheme}");
                                assert!(value.iter().all(|b| *b == round), "{scheme}: torn");
                                whole += 1;
                            }
                            Err(Error::NotOpen(_)) => {
                                refused += 1;
                                break;
                            }
                            Err(error) => panic!("{scheme}: {error}"),
                        }
                    }
                });
                begin.wait();
                std::thread::sleep(std::time::Duration::from_millis(u64::from(round) * 2));
                pool.close().unwrap();
                let next = open(&path);
                let map = next.map_with::<[u8], [u8]>("m", &options(scheme)).unwrap();
                map.remove(b"key").unwrap();
                map.put(b"other", &vec![0xee; BYTES]).unwrap();
                map.remove(b"other").unwrap();
                drop(map);
                next.close().unwrap();
                closed.store(true, Ordering::Relaxed);
            });
        }
        assert!(refused > 0, "{scheme}: {whole} whole reads, and none met the close");
    }
}
