//! What clevel promises of its levels: how full they are when one is added, how many there are, and
//! that they are dropped when the table empties.

use outlast::{IndexStats, MapOptions, Pool, PoolOptions, RawMap, Scheme};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn scrambled(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn pool() -> Pool {
    PoolOptions::new().anonymous().unwrap()
}

fn stats(pool: &Pool) -> IndexStats {
    let map: RawMap = pool.raw_map("m").unwrap();
    map.stats().unwrap()
}

/// After each expansion, the inserting thread itself does the background work, until nothing is
/// left to do.
#[test]
fn levels_are_full_when_one_is_added() {
    let pool = pool();
    let map = pool.map_with::<u64, u64>("m", &MapOptions::new().scheme(Scheme::Clevel)).unwrap();
    let raw = pool.raw_map("m").unwrap();
    let mut before = stats(&pool);
    let mut seen = 0;
    for n in 0..1_500_000u64 {
        let expansions = raw.growth().unwrap();
        assert!(map.insert(&scrambled(n), &(n + 1)).unwrap());
        if raw.growth().unwrap() != expansions {
            let load = n as f64 / before.slots as f64;
            if before.segments == 2 && before.slots >= 1 << 14 {
                println!("{load:.3} of {} slots", before.slots);
                assert!(load >= 0.80, "{load} of {} slots", before.slots);
                seen += 1;
            }
            while pool.step().unwrap() {}
            before = stats(&pool);
            assert!(before.segments <= 2, "{before:?}");
        }
    }
    assert!(seen >= 5, "{seen} expansions");
}

/// One step of background work after each batch of inserts is enough to keep the number of levels
/// low.
#[test]
fn levels_stay_few_under_a_steady_load() {
    const BATCH: u64 = 64;
    let pool = PoolOptions::new().background(false).anonymous().unwrap();
    let map = pool.map_with::<u64, u64>("m", &MapOptions::new().scheme(Scheme::Clevel)).unwrap();
    let mut most = 0;
    for n in 0..1_500_000u64 {
        assert!(map.insert(&scrambled(n), &(n + 1)).unwrap());
        if n % BATCH == 0 {
            pool.step().unwrap();
            most = most.max(stats(&pool).segments);
        }
    }
    println!("{most} levels at most");
    assert!((3..5).contains(&most), "{most} levels");
}

/// Two inserting threads and the background thread compete for the processors. How many levels pile
/// up depends on which threads get a processor; the test prints the number. At the end, all extra
/// levels are gone.
#[test]
fn levels_that_pile_up_with_real_threads_are_emptied() {
    const EACH: u64 = 750_000;
    let pool = pool();
    let map = pool.map_with::<u64, u64>("m", &MapOptions::new().scheme(Scheme::Clevel)).unwrap();
    let inserting = AtomicU64::new(2);
    let levels = std::thread::scope(|scope| {
        for thread in 0..2 {
            let (map, inserting) = (&map, &inserting);
            scope.spawn(move || {
                for n in thread * EACH..(thread + 1) * EACH {
                    assert!(map.insert(&scrambled(n), &(n + 1)).unwrap());
                }
                inserting.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let mut levels = [0u64; 31];
        while inserting.load(Ordering::Relaxed) > 0 {
            levels[stats(&pool).segments as usize] += 1;
            std::thread::sleep(Duration::from_micros(200));
        }
        levels
    });
    for (count, times) in levels.iter().enumerate().filter(|(_, times)| **times > 0) {
        println!("{count} levels in {times} looks");
    }
    while pool.step().unwrap() {}
    assert!(stats(&pool).segments <= 2);
    for n in 0..2 * EACH {
        assert_eq!(map.get(&scrambled(n)).unwrap(), Some(n + 1));
    }
}

/// Of two million records, all but one in a hundred are removed. The levels shrink to less than a
/// tenth, while another thread looks up the remaining records and inserts more.
#[test]
fn levels_go_when_the_table_empties() {
    const MANY: u64 = 2_000_000;
    const MORE: u64 = 2_000;
    let pool = pool();
    let map = pool.map_with::<u64, u64>("m", &MapOptions::new().scheme(Scheme::Clevel)).unwrap();
    for n in 0..MANY {
        assert!(map.insert(&scrambled(n), &(n + 1)).unwrap());
    }
    let full = stats(&pool).slots;
    let over = AtomicBool::new(false);
    let (looked, more) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let (mut looked, mut more) = (0, 0);
            while !over.load(Ordering::Relaxed) {
                let n = looked * 100 % MANY;
                assert_eq!(map.get(&scrambled(n)).unwrap(), Some(n + 1));
                looked += 1;
                if looked % 256 == 0 && more < MORE {
                    let n = MANY + more;
                    assert!(map.insert(&scrambled(n), &(n + 1)).unwrap());
                    more += 1;
                }
            }
            (looked, more)
        });
        for n in (0..MANY).filter(|n| n % 100 != 0) {
            assert_eq!(map.remove(&scrambled(n)).unwrap(), Some(n + 1));
        }
        while pool.step().unwrap() {}
        over.store(true, Ordering::Relaxed);
        beside.join().unwrap()
    });
    while pool.step().unwrap() {}
    let after = stats(&pool);
    println!("{full} slots, then {}; {looked} lookups and {more} inserts beside", after.slots);
    assert!(after.slots * 10 < full, "{after:?}, {full} slots before");
    assert!(looked > 100_000 && more > 0, "{looked} lookups, {more} inserts");
    for n in 0..MANY + more {
        let there = n % 100 == 0 || n >= MANY;
        assert_eq!(map.get(&scrambled(n)).unwrap(), there.then_some(n + 1));
    }
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
    assert_eq!(found.records(), MANY / 100 + more);
}
