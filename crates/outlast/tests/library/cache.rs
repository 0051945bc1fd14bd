//! Caches: what they hold, and for how long; what they evict; what a killed process leaves.

use crate::files;
use outlast::{Cache, CacheOptions, Error, Failure, Pool, PoolOptions};
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
    for turn in 0..20_000 {
        let (key, len) = (random.below(5_000), 8 + random.below(20_000));
        cache.insert(&key, &vec![key as u8; len as usize]).unwrap();
        let stats = cache.stats().unwrap();
        assert!(stats.bytes <= bound, "{stats:?}");
        kept += u64::from(stats.bytes > bound / 16 * 15);
        if turn == 10_000 {
            size = pool.stats().size;
        }
        if random.below(4) == 0 {
            let value = cache.get(&key).unwrap();
            assert!(value.is_some_and(|value| value.iter().all(|&byte| byte == key as u8)));
        }
    }
    assert!(kept > 15_000, "it is nearly full most of the time");
    let (stats, all) = (cache.stats().unwrap(), cache.iter().map(Result::unwrap));
    assert_eq!(all.count() as u64, stats.records);
    // Besides the records, the pool has a page of each size class that is not full, and a table.
    assert!(pool.stats().size <= bound * 3 / 2, "{}", pool.stats().size);
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
    let left = use_all();
    assert!(left > 550, "{left} of 600");
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

#[test]
fn threads_share_the_bound() {
    let pool = pool();
    let cache = pool.cache::<u64, [u8]>("c", &CacheOptions::bytes(300_000)).unwrap();
    std::thread::scope(|s| {
        for thread in 0..4 {
            let cache = &cache;
            s.spawn(move || {
                let mut random = Random(thread + 1);
                for _ in 0..5_000 {
                    let key = random.below(2_000);
                    match random.below(3) {
                        0 => cache.insert(&key, &vec![7; random.below(3_000) as usize]).unwrap(),
                        1 => drop(cache.remove(&key).unwrap()),
                        _ => drop(cache.get(&key).unwrap()),
                    }
                    assert!(cache.stats().unwrap().bytes <= 300_000 + 4 * 4_096);
                }
            });
        }
    });
    let keys: HashSet<u64> = cache.iter().map(|record| record.unwrap().0).collect();
    assert_eq!(keys.len() as u64, cache.stats().unwrap().records);
    for key in keys {
        cache.remove(&key).unwrap();
    }
    let stats = cache.stats().unwrap();
    assert_eq!((stats.records, stats.bytes), (0, 0));
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
