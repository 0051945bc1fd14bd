//! Pools of every page size are created, used, closed and opened again.

use outlast::{Error, MapOptions, PoolOptions, Scheme};
use std::collections::BTreeSet;

#[test]
fn every_page_size_makes_a_pool_that_opens_again() {
    Scheme::ALL.iter().copied().for_each(each_page_size);
}

fn each_page_size(scheme: Scheme) {
    let map = MapOptions::new().scheme(scheme);
    let dir = tempfile::tempdir().unwrap();
    for page_bits in 12..=20 {
        let path = dir.path().join(format!("{page_bits}.pool"));
        let options = PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .page_bits(page_bits)
            .initial_size(4 << 20);
        let options = options.background(false);
        for life in 0..3u64 {
            // SAFETY: the file belongs to this test.
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

/// Values with lengths around half a page, around the largest size class, and in between, where
/// pools with pages of more than 64 KiB once panicked.
#[test]
fn values_of_every_length_fit_every_page_size() {
    for page_bits in 12..=20 {
        let pool = PoolOptions::new().page_bits(page_bits).background(false).anonymous().unwrap();
        let map = pool.map::<u64, [u8]>("m").unwrap();
        let half = 1 << (page_bits - 1);
        let around = |n: usize| (n - 200..n + 200).step_by(20);
        let eighths = [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 17, 20, 21, 25, 28, 29];
        let eighths = eighths.map(|n| (n << (page_bits - 3)) - 64);
        let lengths = around(half).chain(around(1 << 15)).chain(eighths);
        let lengths: BTreeSet<usize> = lengths.collect();
        for &len in &lengths {
            map.put(&(len as u64), &vec![7; len][..]).unwrap();
        }
        for &len in &lengths {
            assert_eq!(map.get(&(len as u64)).unwrap(), Some(vec![7; len]), "2^{page_bits}");
            if len % 3 == 0 {
                assert!(map.delete(&(len as u64)).unwrap());
            }
        }
        assert!(pool.verify().unwrap().is_sound(), "2^{page_bits}");
    }
}

/// The longest value that a pool promises fits, and a longer one is refused as too large.
#[test]
fn the_longest_value_depends_on_the_page_size() {
    for &scheme in Scheme::ALL {
        for (page_bits, least) in [(12, 1_700_000), (13, 7 << 20), (14, 30 << 20), (16, 1 << 28)] {
            let options = PoolOptions::new()
                .survive(outlast::Failure::ProcessDeath)
                .page_bits(page_bits)
                .background(false);
            let pool = options.anonymous().unwrap();
            let max = pool.max_value_bytes();
            assert!((least..=1 << 28).contains(&max), "2^{page_bits}: {max}");
            let map = MapOptions::new().scheme(scheme);
            let map = pool.map_with::<[u8], [u8]>("m", &map).unwrap();
            let key = vec![1; outlast::MAX_KEY_BYTES];
            // The greatest value takes long to write, so skip it here.
            if page_bits < 16 {
                map.put(&key[..], &vec![2; max][..]).unwrap();
                assert_eq!(map.get(&key[..]).unwrap().map(|value| value.len()), Some(max));
            }
            let long = vec![3; max + outlast::MAX_KEY_BYTES + 128];
            let refused = map.put(b"k", &long[..]);
            assert!(
                matches!(refused, Err(Error::ValueTooLarge { len, max }) if len > max),
                "{scheme}, 2^{page_bits}: {refused:?}"
            );
            assert_eq!(map.get(b"k").unwrap(), None);
        }
    }
}

/// Background work returns no error in a pool that cannot grow.
#[test]
fn a_step_of_a_pool_at_its_greatest_size_is_no_error() {
    for &scheme in Scheme::ALL {
        let pool = PoolOptions::new().max_size(4 << 20).background(false).anonymous().unwrap();
        let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().scheme(scheme)).unwrap();
        let mut key = 0;
        while map.put(&key, &[9; 1000]).is_ok() {
            key += 1;
            while pool.step().unwrap() {}
        }
        for key in 0..key / 2 {
            map.remove(&key).unwrap();
            while pool.step().unwrap() {}
        }
        map.put(&0, &[9; 1000]).unwrap();
    }
}
