//! EA-PHT, EA-PHT-H and EA-PHT-HPR.

use outlast::{Error, MapOptions, PoolOptions, Scheme};

const SCHEMES: [Scheme; 3] = [Scheme::EaPht, Scheme::EaPhtH, Scheme::EaPhtHpr];

/// With pages of 4 KiB, the annex of a large table would have had more buckets than the largest
/// block holds. Such a table got no overflow bucket, and its inserts failed.
#[test]
fn a_large_table_in_small_pages_grows() {
    for scheme in SCHEMES {
        let options = PoolOptions::new().page_bits(12).background(false);
        let pool = options.anonymous().unwrap();
        let table = MapOptions::new().scheme(scheme).initial_depth(16).chunk_bits(4);
        let map = pool.map_with::<u64, u64>("m", &table).unwrap();
        for key in 0..1_000_000 {
            assert!(map.insert(&key, &key).unwrap(), "{scheme}, {key}");
        }
        let found = pool.verify().unwrap();
        found.ensure_sound().unwrap();
        assert_eq!(found.records(), 1_000_000, "{scheme}");
    }
}

/// A resize that found no space is tried again when there is some, even if every bucket has
/// overflow buckets by then, so that their number cannot rise any more.
#[test]
fn a_table_whose_resize_was_refused_grows_later() {
    for scheme in SCHEMES {
        let options = PoolOptions::new().page_bits(12).background(false);
        let pool = options.initial_size(1 << 20).max_size(1 << 20).anonymous().unwrap();
        let table = MapOptions::new().scheme(scheme).initial_depth(1).chunk_bits(1);
        let small = pool.map_with::<u64, u64>("small", &table).unwrap();
        let large = pool.map::<u64, [u8]>("large").unwrap();
        let is_full = |result: Result<bool, Error>| match result {
            Ok(inserted) => !inserted,
            Err(error) => error.is_full() || panic!("{error}"),
        };
        let records = (0..).find(|n| is_full(large.insert(n, &[7; 900]))).unwrap();
        // Room for a few overflow buckets, but not for another table.
        for n in 0..records / 100 {
            assert!(large.remove(&n).unwrap().is_some());
        }
        let full = (0..).find(|key| is_full(small.insert(key, key))).unwrap();
        assert!(full > 60, "{scheme}: {full} records");
        drop(large);
        pool.drop_map("large").unwrap();
        while pool.step().unwrap() {}
        for key in full..full + 5_000 {
            assert!(small.insert(&key, &key).unwrap(), "{scheme}, {key}");
        }
        let stats = small.stats().unwrap();
        assert!(stats.doublings >= 5, "{scheme}: {stats:?}");
    }
}

/// Indexes announce what they will allocate, and the pool grows for it. Free space is used first:
/// maps that are made and dropped again and again do not make the pool grow.
#[test]
fn what_is_announced_is_taken_from_free_space() {
    for scheme in [SCHEMES.as_slice(), &[Scheme::DashLh]].concat() {
        let options = PoolOptions::new().page_bits(12).background(false);
        let pool = options.anonymous().unwrap();
        let mut sizes = Vec::new();
        for _ in 0..12 {
            let map = pool.map_with::<u64, u64>("m", &MapOptions::new().scheme(scheme)).unwrap();
            for key in 0..20_000 {
                assert!(map.insert(&key, &key).unwrap(), "{scheme}, {key}");
                if key % 64 == 0 {
                    pool.step().unwrap();
                }
            }
            drop(map);
            pool.drop_map("m").unwrap();
            while pool.step().unwrap() {}
            sizes.push(pool.stats().size);
        }
        assert!(sizes[11] <= sizes[2] + sizes[2] / 4, "{scheme}: {sizes:?}");
    }
}
