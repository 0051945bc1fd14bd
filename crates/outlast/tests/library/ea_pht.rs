//! EA-PHT, EA-PHT-H and EA-PHT-HPR.

use outlast::internals::index::ea_pht::layout::{self, Link};
use outlast::{Config, Error, MapOptions, PoolOptions, Scheme};
use outlast_offline as offline;
use outlast_offline::What;
use std::path::Path;

/// The options of a table with this many buckets and buckets in a chunk, as log2.
fn sized(scheme: Scheme, initial_depth: u32, chunk_bits: u32) -> MapOptions {
    let mut all = Config::of(scheme);
    let (depth, chunk) = match &mut all {
        Config::EaPht(it) => (&mut it.initial_depth, &mut it.chunk_bits),
        Config::EaPhtH(it) => (&mut it.initial_depth, &mut it.chunk_bits),
        Config::EaPhtHpr(it) => (&mut it.initial_depth, &mut it.chunk_bits),
        other => unreachable!("{other:?}"),
    };
    (*depth, *chunk) = (initial_depth, chunk_bits);
    MapOptions::new().config(all)
}

const SCHEMES: [Scheme; 3] = [Scheme::EaPht, Scheme::EaPhtH, Scheme::EaPhtHpr];

/// All pools have the same hash seed, because it decides which buckets get overflow buckets.
fn options() -> PoolOptions {
    PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .identity(1, 1)
        .page_bits(12)
        .background(false)
}

/// With pages of 4 KiB, the annex of a large table would have more buckets than the largest block
/// holds. Such a table must nevertheless get overflow buckets, or its inserts fail.
#[test]
fn a_large_table_in_small_pages_grows() {
    for scheme in SCHEMES {
        let pool = options().anonymous().unwrap();
        let table = sized(scheme, 16, 4);
        let map = pool.map_with::<u64, u64>("m", &table).unwrap();
        for key in 0..1_000_000 {
            assert!(map.insert(&key, &key).unwrap(), "{scheme}, {key}");
        }
        let found = pool.verify().unwrap();
        found.ensure_sound().unwrap();
        assert_eq!(found.records(), 1_000_000, "{scheme}");
    }
}

/// A resize that found no space is retried once there is some, even if by then every bucket has
/// overflow buckets, so that the number of buckets that have some can no longer rise.
#[test]
fn a_table_whose_resize_was_refused_grows_later() {
    for scheme in SCHEMES {
        let pool = options().initial_size(1 << 20).max_size(1 << 20).anonymous().unwrap();
        let table = sized(scheme, 1, 1);
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

/// Indexes announce what they will allocate, and the pool grows for it. Free space is used first,
/// so a pool in which maps are created and dropped again and again does not grow.
#[test]
fn what_is_announced_is_taken_from_free_space() {
    for scheme in [SCHEMES.as_slice(), &[Scheme::DashLh]].concat() {
        let pool = options().anonymous().unwrap();
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

fn word(bytes: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(bytes[at as usize..at as usize + 8].try_into().unwrap())
}

fn set(bytes: &mut [u8], at: u64, word: u64) {
    bytes[at as usize..at as usize + 8].copy_from_slice(&word.to_le_bytes());
}

/// If a chain of 8-byte records has lost a link, it has lost records, and no unowned block reveals
/// that. The overflow bucket does, because it names the chain that owns it.
#[test]
fn a_lost_link_is_noticed() {
    for scheme in SCHEMES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let options = options();
        // SAFETY: the file belongs to this test.
        let open = |path: &Path| unsafe { options.open(path) };
        // SAFETY: as above.
        let pool = unsafe { options.create(&path) }.unwrap();
        let table = sized(scheme, 8, 4);
        let map = pool.map_with::<u64, u64>("m", &table).unwrap();
        let records = 2_700;
        (0..records).for_each(|key| assert!(map.insert(&key, &key).unwrap()));
        drop(map);
        pool.close().unwrap();

        let sound = std::fs::read(&path).unwrap();
        let (_, regions) = offline::regions(&sound).unwrap();
        let links = regions.iter().filter(|region| region.what == What::PhtLink);
        let read = |at| Link::unpack(at, word(&sound, at)).unwrap();
        // Choose a link to an overflow bucket that holds at least two records.
        let is_empty =
            |bucket, slot: u64| word(&sound, bucket + 16 * slot) == word(&sound, bucket + 240);
        let holds_some =
            |bucket| bucket != 0 && (1..15).filter(|&n| !is_empty(bucket, n)).count() > 1;
        let link = links.map(|link| link.offset).find(|&at| holds_some(read(at).offset)).unwrap();
        let bucket = read(link).offset;
        let owner = Link::unpack(bucket, word(&sound, bucket)).unwrap();
        assert_eq!(owner.depth, 8, "{scheme}");

        let damages = [
            ("a link that is lost", link, Link::default().pack(link), false),
            (
                "another owner",
                bucket,
                layout::owner(256 - owner.offset / 64, 8).pack(bucket),
                false,
            ),
            ("no owner, as a power loss can leave it", bucket, 0, true),
        ];
        for (name, at, now, is_sound) in damages {
            let mut bytes = sound.clone();
            set(&mut bytes, at, now);
            std::fs::write(&path, &bytes).unwrap();
            let walked = offline::walk(&path).unwrap();
            assert_eq!(walked.problems.is_empty(), is_sound, "{scheme}, {name}: {walked:?}");
            // SAFETY: as above.
            let read_only = unsafe { options.open_read_only(&path) }.unwrap();
            let found = read_only.verify().unwrap();
            assert_eq!(found.ensure_sound().is_ok(), is_sound, "{scheme}, {name}: {found:?}");
            drop(read_only);
            let pool = open(&path).unwrap();
            let found = pool.verify().unwrap();
            assert_eq!(found.ensure_sound().is_ok(), is_sound, "{scheme}, {name}: {found:?}");
            // No record is missing without an error.
            let map = pool.map_with::<u64, u64>("m", &table).unwrap();
            let answers: Vec<_> = (0..records).map(|key| map.get(&key)).collect();
            assert!(answers.iter().all(|answer| !matches!(answer, Ok(None))), "{scheme}, {name}");
            let damaged = answers.iter().filter(|a| matches!(a, Err(Error::Damaged(_)))).count();
            assert_eq!(damaged > 0, name.starts_with("a link"), "{scheme}, {name}");
            let salvaged = map.salvage().filter(Result::is_ok).count() as u64;
            assert_eq!(salvaged, records, "{scheme}, {name}");

            // The damage is still found if the process then dies without closing the pool.
            let another = (records..).find(|key| map.insert(key, key).is_ok()).unwrap();
            let left = dir.path().join("left");
            std::fs::write(&left, std::fs::read(&path).unwrap()).unwrap();
            drop(map);
            drop(pool);
            let walked = offline::walk(&left).unwrap();
            assert_eq!(walked.problems.is_empty(), is_sound, "{scheme}, {name}: {walked:?}");
            // SAFETY: as above.
            let pool = unsafe { options.clone().accept_possibly_torn(true).open(&left) }.unwrap();
            let found = pool.verify().unwrap();
            assert_eq!(found.ensure_sound().is_ok(), is_sound, "{scheme}, {name}: {found:?}");
            let map = pool.map_with::<u64, u64>("m", &table).unwrap();
            assert_eq!(map.get(&another).unwrap(), Some(another), "{scheme}, {name}");
            std::fs::remove_file(&left).unwrap();
        }
    }
}
