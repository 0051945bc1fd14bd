//! EA-PHT, EA-PHT-H and EA-PHT-HPR.

use outlast::{MapOptions, PoolOptions, Scheme};

/// With pages of 4 KiB, the largest block holds fewer buckets than an annex of a large table would
/// have. Such a table could get no overflow bucket, and its inserts failed.
#[test]
fn a_large_table_in_small_pages_grows() {
    for scheme in [Scheme::EaPht, Scheme::EaPhtH, Scheme::EaPhtHpr] {
        let options = PoolOptions::new().page_bits(12).background(false);
        let pool = options.anonymous().unwrap();
        let table = MapOptions::new().scheme(scheme).initial_depth(16).chunk_bits(4);
        let map = pool.map_with::<u64, u64>("m", &table).unwrap();
        for key in 0..1_000_000 {
            assert!(map.insert(&key, &key).unwrap(), "{scheme}, {key}");
        }
        let found = pool.verify().unwrap().ensure_sound().unwrap();
        assert_eq!(found.records(), 1_000_000, "{scheme}");
    }
}
