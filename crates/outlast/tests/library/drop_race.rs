//! Several threads open, fill and drop maps at the same time.
//!
//! Goal: a thread that opens a map while another drops it gets either the dropped map, whose calls
//! fail with `MapDropped`, or a new one. It never gets a live handle to freed blocks.

use outlast::{Config, Error, MapOptions, PoolOptions, Scheme};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_map_is_not_opened_once_it_is_dropped() {
    Scheme::ALL.iter().copied().for_each(open_and_drop);
}

fn open_and_drop(scheme: Scheme) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("race.pool");
    let options =
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).page_bits(12).background(false);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.create(&path).unwrap() };
    let stop = AtomicBool::new(false);
    let small = MapOptions::new().config(Config::small(scheme));
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (pool, stop, small) = (&pool, &stop, &small);
            scope.spawn(move || {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    let map = match pool.map_with::<u64, [u8]>("m", small) {
                        Ok(map) => map,
                        Err(Error::MapDropped) => continue,
                        Err(error) => panic!("opening: {error}"),
                    };
                    for n in 0..40 {
                        match map.put(&(n * 2 + thread), &vec![thread as u8; 100 + n as usize][..])
                        {
                            Ok(_) => {}
                            Err(Error::MapDropped) => break,
                            Err(error) => panic!("round {round}, record {n}: {error}"),
                        }
                    }
                }
            });
        }
        let (pool, stop) = (&pool, &stop);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match pool.drop_map("m") {
                    Ok(()) | Err(Error::NoSuchMap { .. } | Error::MapDropped) => {}
                    Err(error) => panic!("dropping: {error}"),
                }
            }
        });
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let found = pool.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
    assert_eq!(pool.stats().unfreeable_blocks, 0);
    pool.close().unwrap();
    let report = outlast_offline::walk(&path).unwrap();
    assert_eq!((&report.problems[..], report.leaked_bytes), (&[][..], 0));
}
