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

/// Returns a pool of 2 MiB that cannot grow and has no background thread.
fn limited() -> PoolOptions {
    PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .background(false)
        .page_bits(12)
        .initial_size(2 << 20)
        .max_size(2 << 20)
}

/// Fills a pool with records of another map until no block of any size is left.
fn exhaust(pool: &Pool) {
    let filler = pool.map::<u64, [u8]>("filler").unwrap();
    let mut n = 0;
    for bytes in (16..8192).rev().step_by(8) {
        loop {
            n += 1;
            match filler.insert(&n, &vec![1; bytes]) {
                Ok(done) => assert!(done),
                Err(error) if error.is_full() => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// The level is emptied by another process than the one that filled the pool.
#[test]
fn an_emptied_level_goes_from_a_full_pool_after_a_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    // SAFETY: the file belongs to this test.
    let pool = unsafe { limited().create(&path).unwrap() };
    let map = pool.map_with::<u64, u64>("m", &MapOptions::new().scheme(Scheme::Clevel)).unwrap();
    let mut end = 0;
    while stats(&pool).segments < 3 {
        assert!(map.insert(&scrambled(end), &(end + 1)).unwrap());
        end += 1;
    }
    exhaust(&pool);
    drop(map);
    pool.close().unwrap();
    // SAFETY: as above.
    let pool = unsafe { limited().open(&path).unwrap() };
    let map = pool.map::<u64, u64>("m").unwrap();
    let filler = pool.map::<u64, [u8]>("filler").unwrap();
    // Returns whether a record of any size finds space.
    let fills = || (16..8192).step_by(8).any(|bytes| filler.insert(&0, &vec![1; bytes]).is_ok());
    assert!(!fills());
    while pool.step().unwrap() {}
    assert_eq!(stats(&pool).segments, 2);
    assert!(fills(), "its space is used again");
    for n in 0..end {
        assert_eq!(map.get(&scrambled(n)).unwrap(), Some(n + 1));
    }
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
}

/// A change that does not apply needs no space, whatever it would have stored. Nor does a removal.
#[test]
fn changes_that_store_nothing_succeed_in_a_full_pool() {
    let pool = limited().anonymous().unwrap();
    let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().scheme(Scheme::Clevel)).unwrap();
    const VALUE: &[u8] = &[7; 40];
    let mut end = 0;
    while stats(&pool).segments < 3 {
        assert!(map.insert(&end, VALUE).unwrap());
        end += 1;
    }
    exhaust(&pool);
    let is_full = |error: &outlast::Error| error.is_full();
    assert!(map.insert(&end, VALUE).is_err_and(|error| is_full(&error)));
    assert!(map.put(&end, VALUE).is_err_and(|error| is_full(&error)));
    assert!(map.update(&3, VALUE).is_err_and(|error| is_full(&error)), "the record needs a block");
    for n in 0..end {
        assert!(!map.insert(&n, VALUE).unwrap());
    }
    assert!(!map.update(&end, VALUE).unwrap());
    assert!(!map.compare_swap(&end, VALUE, &[8; 40]).unwrap());
    assert!(!map.compare_swap(&3, &[9; 40], &[8; 40]).unwrap());
    assert!(!map.compare_remove(&3, &[9; 40]).unwrap());
    assert_eq!(map.get(&3).unwrap().as_deref(), Some(VALUE));
    assert!(map.remove(&3).unwrap().is_some());
    assert!(map.compare_remove(&4, VALUE).unwrap());
    assert!(map.remove_if(&5, |_| true).unwrap().is_some());
    assert_eq!(map.alter(&6, |_| None).unwrap(), None);
    for n in 3..7 {
        assert_eq!(map.get(&n).unwrap(), None);
    }
}
