//! Pools of every page size, through creation, use, closing and opening again.

use outlast::{MapOptions, PoolOptions, Scheme};

#[test]
fn every_page_size_makes_a_pool_that_opens_again() {
    Scheme::ALL.iter().copied().for_each(each_page_size);
}

fn each_page_size(scheme: Scheme) {
    let map = MapOptions::new().scheme(scheme);
    let dir = tempfile::tempdir().unwrap();
    for page_bits in 12..=20 {
        let path = dir.path().join(format!("{page_bits}.pool"));
        let options = PoolOptions::new().page_bits(page_bits).initial_size(4 << 20);
        let options = options.background(false);
        for life in 0..3u64 {
            // SAFETY: the file is this test's own.
            let pool = unsafe { options.open_or_create(&path).unwrap() };
            assert_eq!(pool.stats().damaged_header_copy, None, "2^{page_bits}, life {life}");
            let words = pool.map_with::<u64, u64>("words", &map).unwrap();
            let texts = pool.map_with::<[u8], [u8]>("texts", &map).unwrap();
            for n in 0..200 {
                assert!(words.insert(&(life * 1000 + n), &n).unwrap());
                let key = (life * 1000 + n).to_le_bytes();
                assert!(texts.insert(&key[..], &vec![7; n as usize * 9][..]).unwrap());
            }
            assert_eq!(words.get(&7).unwrap(), Some(7));
            let found = pool.verify().unwrap();
            assert!(found.is_sound(), "2^{page_bits}, life {life}: {found:?}");
            assert_eq!(found.records(), (life + 1) * 400);
            pool.close().unwrap();
        }
    }
}
