//! More threads than the gate and the epochs have slots for.

use outlast::{MapOptions, PoolOptions, RecordForm, Scheme};
use std::sync::atomic::{AtomicU64, Ordering};

/// A pool that holds 64 records of 1,000 bytes is never full, however many threads work on it.
#[test]
fn a_nearly_empty_pool_is_never_full() {
    let puts: u64 = std::env::var("OUTLAST_PUTS").map_or(40_000, |n| n.parse().unwrap());
    for &scheme in Scheme::ALL {
        for threads in [8, 60, 100] {
            let pool = PoolOptions::new().max_size(8 << 20).anonymous().unwrap();
            let options = MapOptions::new().scheme(scheme).form(RecordForm::Bytes);
            let map = pool.map_with::<u64, [u8]>("m", &options).unwrap();
            let done = AtomicU64::new(0);
            std::thread::scope(|s| {
                for t in 0..threads {
                    let (map, done) = (&map, &done);
                    s.spawn(move || {
                        let value = [t as u8; 1000];
                        while let at = done.fetch_add(1, Ordering::Relaxed)
                            && at < puts
                        {
                            let put = map.put(&(at % 64), &value);
                            put.unwrap_or_else(|e| panic!("{scheme}, {threads} threads: {e}"));
                        }
                    });
                }
            });
            for key in 0..64 {
                let value = map.get(&key).unwrap().expect("it was put");
                assert!(value.len() == 1000 && value.iter().all(|b| *b == value[0]), "{scheme}");
            }
            assert!(pool.verify().unwrap().is_sound(), "{scheme}, {threads} threads");
        }
    }
}
