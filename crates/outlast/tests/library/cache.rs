//! Caches: what they hold, and for how long; what they evict; what a killed process leaves.

use crate::files;
use outlast::{Cache, CacheOptions, Error, Expiry, Failure, Pool, PoolOptions};
use outlast_offline::What;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

fn pool() -> Pool {
    PoolOptions::new().background(false).anonymous().unwrap()
}

fn open(path: &Path) -> Pool {
    let options = PoolOptions::new().survive(Failure::ProcessDeath).background(false);
    // SAFETY: nobody else writes the file.
    unsafe { options.open_or_create(path) }.unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
    /// Small numbers often.
    fn skewed(&mut self, n: u64) -> u64 {
        let (one, two, three) = (self.below(n) + 1, self.below(n) + 1, self.below(n) + 1);
        (one * two / n * three / n).min(n - 1)
    }
}

#[test]
fn a_cache_holds_no_more_than_it_may() {
    let pool = pool();
    let bound = 16 << 20;
    let cache = pool.cache::<u64, [u8]>("c", &CacheOptions::bytes(bound)).unwrap();
    let mut random = Random(1);
    let (mut kept, mut size) = (0, 0);
    for turn in 0..90_000 {
        let (key, len) = (random.below(5_000), 8 + random.below(20_000));
        cache.insert(&key, &vec![key as u8; len as usize]).unwrap();
        let stats = cache.stats().unwrap();
        assert!(stats.bytes <= bound, "{stats:?}");
        kept += u64::from(stats.bytes > bound / 16 * 15);
        // By then, all sizes of blocks have had their greatest share of the cache.
        if turn == 30_000 {
            size = pool.stats().size;
        }
        if random.below(4) == 0 {
            let value = cache.get(&key).unwrap();
            assert!(value.is_some_and(|value| value.iter().all(|&byte| byte == key as u8)));
        }
    }
    assert!(kept > 80_000, "it is nearly full most of the time");
    let (stats, all) = (cache.stats().unwrap(), cache.iter().map(Result::unwrap));
    assert_eq!(all.count() as u64, stats.records);
    // The blocks of evicted records are used again. A small pool grows by 2 MiB, so this is one step.
    assert!(pool.stats().size <= size + (2 << 20), "{size}, {}", pool.stats().size);
    pool.verify().unwrap().ensure_sound().unwrap();
    // A record that does not fit displaces nothing but itself.
    cache.insert(&1, &[1; 8]).unwrap();
    cache.insert(&1, &vec![1; 32 << 20]).unwrap();
    assert_eq!(cache.get(&1).unwrap(), None);
}

#[test]
fn the_number_of_records_can_be_the_bound() {
    let pool = pool();
    let cache = pool.cache::<u64, u64>("c", &CacheOptions::records(100)).unwrap();
    for n in 0..1_000 {
        cache.insert(&n, &n).unwrap();
        assert!(cache.stats().unwrap().records <= 100);
    }
    assert_eq!(cache.iter().count(), 100);
    assert_eq!(cache.stats().unwrap().evictions, 900);
    // It is opened with another bound.
    let smaller = pool.cache::<u64, u64>("c", &CacheOptions::records(10)).unwrap();
    smaller.insert(&0, &0).unwrap();
    assert_eq!(cache.stats().unwrap().records, 10);
    assert!(matches!(
        pool.cache::<u64, u64>("c", &CacheOptions::records(0)),
        Err(Error::Invalid { .. })
    ));
}

/// What is used often stays, while records that are read once pass through.
#[test]
fn a_scan_displaces_few_of_the_records_that_are_used() {
    let pool = pool();
    let cache = pool.cache::<u64, u64>("c", &CacheOptions::records(1_000)).unwrap();
    let use_all = || (0..600).filter(|key| cache.get(key).unwrap().is_some()).count();
    for _ in 0..4 {
        for key in 0..600 {
            cache.get_or_insert_with(&key, || Ok::<_, Error>(key)).unwrap();
        }
    }
    assert_eq!(use_all(), 600);
    for key in 10_000..30_000 {
        cache.insert(&key, &key).unwrap();
    }
    // Four records in ten were young all the time, so none that was used went.
    assert_eq!(use_all(), 600);
}

/// The hit ratio of a skewed load, and of the same after the process has died in the middle.
#[test]
fn a_cache_is_warm_after_its_process_has_died() {
    let run = |cache: &Cache<u64, u64>, random: &mut Random, requests: u64| {
        let before = cache.stats().unwrap().hits;
        for _ in 0..requests {
            let key = random.skewed(20_000);
            let value = cache.get_or_insert_with(&key, || Ok::<_, Error>(key * 3)).unwrap();
            assert_eq!(value, key * 3);
        }
        (cache.stats().unwrap().hits - before) as f64 / requests as f64
    };
    let options = CacheOptions::records(2_000);
    if let Some(path) = files::child_path() {
        let pool = open(&path);
        run(&pool.cache::<u64, u64>("c", &options).unwrap(), &mut Random(7), 50_000);
        std::process::abort();
    }
    let whole = pool();
    let whole = whole.cache::<u64, u64>("c", &options).unwrap();
    run(&whole, &mut Random(7), 50_000);
    let expected = run(&whole, &mut Random(8), 20_000);
    // Another process makes the first half, and dies.
    let (_dir, path) = files::dir();
    let mut child = files::in_child("cache::a_cache_is_warm_after_its_process_has_died", &path);
    assert!(!child.status().unwrap().success());
    let pool = open(&path);
    let cache = pool.cache::<u64, u64>("c", &options).unwrap();
    assert_eq!(cache.stats().unwrap().records, 2_000);
    let found = run(&cache, &mut Random(8), 20_000);
    assert!((found - expected).abs() < 0.01, "{found} instead of {expected}");
    pool.verify().unwrap().ensure_sound().unwrap();
}

#[test]
fn records_of_a_cache_expire() {
    static SECONDS: AtomicU64 = AtomicU64::new(1_000);
    let now = || std::time::UNIX_EPOCH + Duration::from_secs(SECONDS.load(Ordering::Relaxed));
    let pool = PoolOptions::new().background(false).clock(now).anonymous().unwrap();
    let options = CacheOptions::bytes(1 << 20).live_for(Duration::from_secs(60));
    let cache = pool.cache::<str, u64>("c", &options).unwrap();
    cache.insert("a", &1).unwrap();
    cache.insert_for("b", &2, Duration::from_secs(10)).unwrap();
    SECONDS.fetch_add(10, Ordering::Relaxed);
    assert_eq!((cache.get("a").unwrap(), cache.get("b").unwrap()), (Some(1), None));
    SECONDS.fetch_add(200, Ordering::Relaxed);
    while pool.step().unwrap() {}
    let stats = cache.stats().unwrap();
    assert_eq!((stats.records, stats.bytes, stats.expired), (0, 0, 2));
    assert_eq!((stats.hits, stats.misses), (1, 1));
}

#[test]
fn one_thread_loads_and_the_others_wait() {
    let pool = pool();
    let cache = pool.cache::<u64, u64>("c", &CacheOptions::records(1_000)).unwrap();
    let loads = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for key in 0..200 {
                    let load = || {
                        loads.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        Ok::<_, Error>(key)
                    };
                    assert_eq!(cache.get_or_insert_with(&key, load).unwrap(), key);
                }
            });
        }
    });
    assert_eq!(loads.into_inner(), 200);
    // A load that fails leaves the key absent, and the next one loads.
    let failed = cache.get_or_insert_with(&500, || Err(Error::MapDropped));
    assert!(matches!(failed, Err(Error::MapDropped)));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cache.get_or_insert_with(&500, || -> Result<u64, Error> { panic!("the load") })
    }));
    assert!(panicked.is_err());
    assert_eq!(cache.get_or_insert_with(&500, || Ok::<_, Error>(5)).unwrap(), 5);
}

/// Lets four threads make `turns` operations each on keys below `keys` and values below `bytes`, in a cache with this
/// bound. `exact` says whether it holds in what a thread reads while the others go on.
fn share(bound: u64, keys: u64, bytes: u64, turns: u32, exact: bool) {
    let pool = pool();
    let cache = pool.cache::<u64, [u8]>("c", &CacheOptions::bytes(bound)).unwrap();
    std::thread::scope(|s| {
        for thread in 0..4 {
            let cache = &cache;
            s.spawn(move || {
                let mut random = Random(thread + 1);
                for _ in 0..turns {
                    let key = random.below(keys);
                    match random.below(3) {
                        0 => cache.insert(&key, &vec![7; random.below(bytes) as usize]).unwrap(),
                        1 => drop(cache.remove(&key).unwrap()),
                        _ => drop(cache.get(&key).unwrap()),
                    }
                    assert!(!exact || cache.stats().unwrap().bytes <= bound);
                }
            });
        }
    });
    for key in keys..2 * keys {
        cache.insert(&key, &vec![7; 1_000]).unwrap();
    }
    let stats = cache.stats().unwrap();
    assert!(stats.bytes <= bound && stats.bytes > bound / 100 * 99, "{stats:?}");
    let keys: HashSet<u64> = cache.iter().map(|record| record.unwrap().0).collect();
    assert_eq!(keys.len() as u64, stats.records);
    for key in keys {
        cache.remove(&key).unwrap();
    }
    let stats = cache.stats().unwrap();
    assert_eq!((stats.records, stats.bytes), (0, 0));
}

#[test]
fn threads_share_the_bound() {
    share(300_000, 2_000, 3_000, 5_000, true);
}

#[test]
fn threads_that_count_apart_share_the_bound() {
    share(40_000_000, 60_000, 20_000, 15_000, false);
}

#[test]
fn a_full_pool_makes_the_cache_smaller() {
    let options = PoolOptions::new().background(false).max_size(4 << 20);
    let pool = options.anonymous().unwrap();
    let cache = pool.cache::<u64, [u8]>("c", &CacheOptions::bytes(1 << 30)).unwrap();
    for key in 0..5_000 {
        cache.insert(&key, &[7; 5_000]).unwrap();
    }
    let stats = cache.stats().unwrap();
    assert!(stats.records > 300 && stats.evictions > 3_000, "{stats:?}");
}

/// A record goes for one of these reasons: it is removed, its time passes, or it is evicted, which only an insert
/// into a full cache does, and of no more records than it needs.
#[test]
fn records_are_evicted_only_while_the_cache_is_full() {
    static SECONDS: AtomicU64 = AtomicU64::new(1_000);
    let now = || std::time::UNIX_EPOCH + Duration::from_secs(SECONDS.load(Ordering::Relaxed));
    let options = PoolOptions::new().survive(Failure::ProcessDeath).background(false).clock(now);
    let (_dir, path) = files::dir();
    // SAFETY: nobody else writes the file.
    let open = || unsafe { options.open_or_create(&path) }.unwrap();
    let mut pool = open();
    let mut cache = pool.cache::<u64, u64>("c", &CacheOptions::records(100)).unwrap();
    let (mut random, mut model) = (Random(3), HashMap::<u64, (u64, u64)>::new());
    let (mut evicted, mut expired) = (0, 0);
    for turn in 0..4_000 {
        let (key, kind) = (random.below(300), random.below(20));
        let seconds = SECONDS.load(Ordering::Relaxed);
        let mut may_go = 0;
        match kind {
            0 => {
                model.remove(&key);
                cache.remove(&key).unwrap();
            }
            1 => {
                SECONDS.fetch_add(1, Ordering::Relaxed);
                expired += model.len();
                model.retain(|_, (_, time)| *time > seconds + 1);
                expired -= model.len();
            }
            2 if turn % 100 == 99 => {
                drop((cache, pool));
                pool = open();
                cache = pool.cache("c", &CacheOptions::records(100)).unwrap();
            }
            2..12 => {
                let found = cache.get(&key).unwrap();
                assert_eq!(found, model.get(&key).map(|(value, _)| *value));
            }
            _ => {
                // What was not removed yet takes room, so the number is that of the cache.
                may_go = (cache.stats().unwrap().records + 1).saturating_sub(100);
                let lives = 1 + random.below(100);
                cache.insert_for(&key, &turn, Duration::from_secs(lives)).unwrap();
                model.insert(key, (turn, seconds + lives));
            }
        }
        let found: HashMap<u64, u64> = cache.iter().map(Result::unwrap).collect();
        let before = model.len();
        model.retain(|key, _| found.contains_key(key));
        let gone = (before - model.len()) as u64;
        assert!(gone <= may_go, "{gone} records instead of {may_go} are gone in turn {turn}");
        evicted += gone;
        let left: HashMap<u64, u64> =
            model.iter().map(|(&key, &(value, _))| (key, value)).collect();
        assert_eq!(found, left);
    }
    assert!(evicted > 100 && expired > 20, "{evicted} evicted, {expired} expired");
}

#[test]
fn threads_lose_nothing_before_the_cache_is_full() {
    let pool = pool();
    // Each of four threads has 50 records, and inserts one at a time.
    let cache = pool.cache::<u64, u64>("c", &CacheOptions::records(204)).unwrap();
    std::thread::scope(|s| {
        for thread in 0..4 {
            let cache = &cache;
            s.spawn(move || {
                let mut random = Random(thread);
                let mut own = HashMap::new();
                for turn in 0..3_000 {
                    let key = thread << 32 | random.below(50);
                    match random.below(4) {
                        0 => assert_eq!(cache.remove(&key).unwrap(), own.remove(&key).is_some()),
                        1 => {
                            cache.insert(&key, &turn).unwrap();
                            own.insert(key, turn);
                        }
                        _ => assert_eq!(cache.get(&key).unwrap(), own.get(&key).copied()),
                    }
                }
            });
        }
    });
    assert_eq!(cache.stats().unwrap().evictions, 0);
}

/// Marks lie in blocks that have a checksum. Nothing takes them for damage, whatever they say.
#[test]
fn marks_are_no_damage() {
    let (_dir, path) = files::dir();
    let options = CacheOptions::records(300);
    let fill = |pool: &Pool, keys: std::ops::Range<u64>| {
        let cache = pool.cache::<u64, u64>("c", &options).unwrap();
        for key in keys {
            cache.insert(&key, &(key * 3)).unwrap();
            cache.get(&(key - key % 5)).unwrap();
        }
        assert_eq!(cache.stats().unwrap().records, 300);
    };
    let pool = open(&path);
    fill(&pool, 0..1_000);
    pool.close().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let (report, regions) = outlast_offline::regions(&whole).unwrap();
    assert_eq!(report.problems, []);
    let records: Vec<_> = regions.iter().filter(|region| region.what == What::Record).collect();
    let marks = |bytes: &[u8]| -> HashSet<[u8; 4]> {
        let mark = |at: u64| bytes[at as usize + 12..at as usize + 16].try_into().unwrap();
        records.iter().map(|record| mark(record.offset)).collect()
    };
    assert!(records.len() == 300 && marks(&whole).len() > 10, "{:?}", marks(&whole));
    let set = |of: &mut dyn FnMut() -> [u8; 4]| {
        let mut bytes = whole.clone();
        for record in &records {
            bytes[record.offset as usize + 12..][..4].copy_from_slice(&of());
        }
        std::fs::write(&path, &bytes).unwrap();
        outlast_offline::walk_bytes(&bytes).unwrap().problems.is_empty()
    };
    let mut random = Random(5);
    assert!(set(&mut || [
        random.below(256) as u8,
        random.below(256) as u8,
        random.below(256) as u8,
        0xc5
    ]));
    let pool = open(&path);
    pool.verify().unwrap().ensure_sound().unwrap();
    let salvaged = pool.raw_map("c").unwrap().salvage().map(Result::unwrap);
    let is_one = |(key, value): (Vec<u8>, Vec<u8>)| {
        let [key, value] = [key, value].map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        key * 3 == value
    };
    assert_eq!(salvaged.map(is_one).collect::<Vec<_>>(), [true; 300]);
    fill(&pool, 1_000..2_000);
    pool.verify().unwrap().ensure_sound().unwrap();
    pool.close().unwrap();
    // What is no mark is damage.
    assert!(!set(&mut || [1, 0, 0, 0]));
    assert!(open(&path).verify().unwrap().ensure_sound().is_err());
}

/// The interface without types, which the other languages use.
#[test]
fn an_exchange_is_atomic_and_keeps_the_bound() {
    let pool = pool();
    let options = CacheOptions::bytes(100_000);
    let raw = pool.raw_cache("c", "u64", "bytes", &options).unwrap();
    let typed = pool.cache::<u64, [u8]>("c", &options).unwrap();
    let end = Expiry::At(UNIX_EPOCH + Duration::from_nanos(u64::MAX / 2));
    let bytes = |key: u64| key.to_le_bytes();
    for key in 0..1_000 {
        let value = vec![key as u8; 900];
        assert!(raw.exchange(&bytes(key), None, Some((&value, end))).unwrap());
        if key < 50 {
            // A full cache may evict the key to make room for itself.
            let again = raw.exchange(&bytes(key), None, Some((&value, end))).unwrap();
            assert!(!again, "it is present");
        }
        assert!(raw.stats().unwrap().bytes <= 100_000);
        assert_eq!(raw.get_timed(&bytes(key), true).unwrap(), Some((value, end)));
    }
    assert_eq!(typed.get(&999).unwrap(), Some(vec![231; 900]));
    let stats = raw.stats().unwrap();
    assert_eq!((stats, stats.hits, stats.misses), (typed.stats().unwrap(), 1_001, 0));
    assert_eq!(stats.evictions, 1_000 - stats.records);

    let (key, old, new) = (bytes(999), vec![231; 900], vec![7; 10]);
    let exchange = |before, after| raw.exchange(&key, before, after).unwrap();
    assert!(!exchange(Some((&old, Expiry::Never)), Some((&new, end))), "another time");
    assert!(!exchange(Some((&new, end)), None), "another value");
    assert!(exchange(Some((&old, end)), Some((&new, Expiry::Never))));
    assert_eq!(raw.get_timed(&key, false).unwrap(), Some((new.clone(), Expiry::Never)));
    let large = vec![1; 200_000];
    assert!(exchange(Some((&new, Expiry::Never)), Some((&large, end))));
    assert_eq!(raw.get(&key, true).unwrap(), None, "it is larger than the cache");
    assert_eq!(raw.stats().unwrap().misses, 1);
    raw.put_until(&key, &new, end).unwrap();
    assert!(exchange(Some((&new, end)), None) && !raw.raw_map().contains_key(&key).unwrap());
    assert!(raw.put_until(b"short", &new, end).is_err(), "a key of another type");
    pool.verify().unwrap().ensure_sound().unwrap();
}
