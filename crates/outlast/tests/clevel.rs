//! What clevel promises of its levels: how full they are when one is added, how many there
//! are, and that they go when the table empties.

use outlast::{IndexStats, MapOptions, Pool, PoolOptions, RawMap, Scheme};

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

/// Steps of the background work in the inserting thread, so that a run is the same each time.
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

/// One step of the background work to a batch of inserts keeps up with them.
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

#[test]
fn levels_go_when_the_table_empties() {
    let pool = pool();
    let map = pool.map_with::<u64, u64>("m", &MapOptions::new().scheme(Scheme::Clevel)).unwrap();
    const MANY: u64 = 300_000;
    for n in 0..MANY {
        assert!(map.insert(&scrambled(n), &(n + 1)).unwrap());
    }
    let full = stats(&pool).slots;
    for n in 0..MANY {
        if n % 100 != 0 {
            assert_eq!(map.remove(&scrambled(n)).unwrap(), Some(n + 1));
        }
    }
    while pool.step().unwrap() {
        for n in [0, 100, MANY - 100] {
            assert_eq!(map.get(&scrambled(n)).unwrap(), Some(n + 1));
        }
    }
    let after = stats(&pool);
    assert!(after.slots * 10 < full, "{after:?}, {full} slots before");
    for n in 0..MANY {
        let there = n % 100 == 0;
        assert_eq!(map.get(&scrambled(n)).unwrap(), there.then_some(n + 1));
    }
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
    assert_eq!(found.records(), MANY / 100);
}
