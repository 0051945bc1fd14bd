//! Space: full pools, full disks, limited address space, and the memory that a pool takes.

use crate::files::{check_filled, child_path, create, dir, filled, open};
use outlast::{Config, Error, MapOptions, PoolOptions, Scheme, config};
use std::fs::{self, File};
use std::process::Command;
use tempfile::TempDir;

#[test]
fn a_full_pool_says_so_and_serves_again_after_removals() {
    let (_dir, path) = dir();
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .initial_size(1 << 20)
        .page_bits(12)
        .max_size(1 << 20);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.create(&path).unwrap() };
    let map = pool
        .map_with::<u64, [u8]>(
            "m",
            &MapOptions::new().config(config::DashEh { bucket_bits: 2, ..Default::default() }),
        )
        .unwrap();
    let fill = |from: u64| {
        let mut n = from;
        loop {
            match map.insert(&n, &[n as u8; 120]) {
                Ok(done) => assert!(done),
                Err(Error::PoolFull { limit, .. }) => {
                    assert_eq!(limit, 1 << 20);
                    return n;
                }
                Err(error) => panic!("{error}"),
            }
            n += 1;
        }
    };
    let end = fill(0);
    assert!(end > 3000, "{end} records in a megabyte");
    assert!(matches!(pool.map::<u64, u64>("new"), Err(Error::PoolFull { .. })));
    for n in 0..end {
        assert_eq!(map.get(&n).unwrap().unwrap(), [n as u8; 120]);
    }
    for n in 0..end / 2 {
        // No removal needs space.
        let removed = match n % 5 {
            0 => map.remove(&n).unwrap().is_some(),
            1 => map.delete(&n).unwrap(),
            2 => map.compare_remove(&n, &[n as u8; 120]).unwrap(),
            3 => map.remove_if(&n, |value| value == [n as u8; 120]).unwrap().is_some(),
            _ => map.alter(&n, |_| None).unwrap().is_none(),
        };
        assert!(removed, "{n}");
    }
    assert_eq!(map.len().unwrap(), end - end / 2);
    assert!(fill(end) > end + end / 3, "removed space is used again");
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
    drop(map);
    pool.close().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
    assert!(open(&path).unwrap().verify().unwrap().is_sound());
}

#[test]
fn a_limit_that_is_too_small_is_told() {
    let (_dir, path) = dir();
    let limited = |max| PoolOptions::new().survive(outlast::Failure::ProcessDeath).max_size(max);
    // SAFETY: the file belongs to this test.
    let error = unsafe { limited(1).create(&path).unwrap_err() };
    assert!(error.to_string().contains("0 bytes in whole pages (`max_size` is 1)"), "{error}");

    let mebibyte = 1 << 20;
    // SAFETY: the file belongs to this test.
    let pool = unsafe { limited(mebibyte).create(&path).unwrap() };
    let options = MapOptions::new().scheme(Scheme::DashLh);
    let error = pool.map_with::<u64, u64>("m", &options).unwrap_err();
    assert!(
        matches!(&error, Error::PoolFull { needed, limit, note: Some(note) }
            if needed > limit && note.contains("smaller `initial_depth`")),
        "{error}"
    );
    pool.map_with::<u64, u64>(
        "m",
        &MapOptions::new().config(config::DashLh { initial_depth: 4, ..Default::default() }),
    )
    .unwrap();
    pool.close().unwrap();

    // A pool that is larger than a new limit keeps its size.
    let (_dir, path) = filled();
    let size = fs::metadata(&path).unwrap().len();
    // SAFETY: the file belongs to this test.
    let pool = unsafe { limited(mebibyte).open(&path).unwrap() };
    check_filled(&pool);
    let large = pool.map::<u64, [u8]>("large").unwrap();
    let error = large.insert(&1, &vec![1; size as usize]).unwrap_err();
    assert!(matches!(&error, Error::PoolFull { limit, note: None, .. } if *limit == mebibyte));
    drop(large);
    pool.close().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), size);
}

/// An allocator that keeps a run of pages for each size must release these runs before it reports
/// that a pool is full.
#[test]
fn a_pool_that_has_seen_records_of_every_size_is_not_full() {
    for &scheme in Scheme::ALL {
        let options = PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .max_size(4 << 20)
            .background(false);
        let pool = options.anonymous().unwrap();
        let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().config(Config::small(scheme)));
        let map = map.unwrap();
        for len in (500..60_000).step_by(500).chain((60_000..300_000).step_by(8_000)) {
            let inserted = map.insert(&1, &vec![7; len]);
            assert!(inserted.unwrap_or_else(|e| panic!("{scheme}, {len} bytes: {e}")));
            map.remove(&1).unwrap();
        }
        let found = pool.verify().unwrap();
        assert!(found.is_sound() && found.used_bytes < 1 << 19, "{scheme}: {found:?}");
    }
}

/// Several values of more than half a page share a run of pages. If no run of adjacent pages is free,
/// such a value takes whole pages, as values of other sizes do.
#[test]
fn values_of_more_than_half_a_page_share_pages() {
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .max_size(16 << 20)
        .background(false);
    let pool = options.anonymous().unwrap();
    let map = pool.map::<u64, [u8]>("m").unwrap();
    let fill = |from: u64, len: usize| {
        (from..).find(|n| map.insert(n, &vec![*n as u8; len]).is_err_and(|e| e.is_full())).unwrap()
    };
    // Eight values take five pages.
    let five_eighths = fill(0, 40_900);
    assert!(five_eighths * 40_960 > 14 << 20, "{five_eighths}");
    assert!((0..five_eighths).all(|n| map.delete(&n).unwrap()));
    // One value takes a page.
    let whole = fill(1_000, 65_000);
    assert!(whole - 1_000 > 200, "{whole}");
    for n in (1_000..whole).step_by(2) {
        assert!(map.delete(&n).unwrap());
    }
    let alone = fill(2_000, 40_900);
    assert!(alone - 2_000 > 100, "{alone}");
    let lengths = [(1_001..whole, 65_000), (2_000..alone, 40_900)];
    for (keys, len) in lengths {
        for n in keys.filter(|n| *n >= 2_000 || n % 2 == 1) {
            assert_eq!(map.get(&n).unwrap(), Some(vec![n as u8; len]), "{n}");
        }
    }
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
}

/// A leaf keeps the slots of removed records for a while. In a full pool, an insert uses them.
#[test]
fn a_full_pool_has_space_where_records_were_removed() {
    let pool = PoolOptions::new().max_size(4 << 20).background(false).anonymous().unwrap();
    let map = pool.map_with::<u64, u64>("m", &MapOptions::new().scheme(Scheme::Phast)).unwrap();
    let full = (0..).find(|n| map.insert(&(n * 2), n).is_err_and(|e| e.is_full())).unwrap();
    for start in (full / 4..full / 2).step_by(500) {
        // Fill a leaf.
        let n = (start..).find(|n| map.insert(&(n * 2 + 1), n).is_err()).unwrap();
        // So few that compacting the leaf is not worth it otherwise.
        assert!((n..n + 2).all(|n| map.delete(&(n * 2)).unwrap()));
        let inserted = map.insert(&(n * 2 + 1), &n);
        assert!(inserted.as_ref().is_ok_and(|done| *done), "{n} of {full}: {inserted:?}");
    }
    assert!(pool.verify().unwrap().is_sound());
}

/// A map grows by several adjacent pages at a time. If no adjacent pages are free, it grows by
/// single pages.
#[test]
fn a_map_grows_in_pages_that_are_not_in_a_row() {
    for &scheme in Scheme::ALL {
        let options = PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .page_bits(15)
            .max_size(16 << 20)
            .background(false);
        let pool = options.anonymous().unwrap();
        let map = MapOptions::new().config(Config::small(scheme));
        let map = pool.map_with::<u64, u64>("m", &map).unwrap();
        let pages = pool.map::<u64, [u8]>("pages").unwrap();
        let mut last = 0;
        while pages.put(&last, &[1; 30_000]).is_ok() {
            last += 1;
        }
        for n in (0..last).step_by(2) {
            pages.remove(&n).unwrap();
        }
        assert!(pool.stats().limit == 16 << 20 && last > 400, "{last} pages");
        for n in 0..20_000 {
            assert!(map.insert(&n, &(n + 1)).unwrap_or_else(|e| panic!("{scheme}, key {n}: {e}")));
        }
        assert!((0..20_000).all(|n| map.get(&n).unwrap() == Some(n + 1)), "{scheme}");
        assert!(pool.verify().unwrap().is_sound(), "{scheme}");
    }
}

/// A small file system of the test's own, or `None` if mounting is not allowed.
struct Mounted(TempDir);

impl Mounted {
    fn new(megabytes: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
            .arg(dir.path())
            .output();
        match mounted {
            Ok(out) if out.status.success() => Some(Mounted(dir)),
            _ => {
                println!("skipped: no file system can be mounted here");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_a_typed_error_and_nothing_is_lost() {
    let Some(mounted) = Mounted::new(12) else { return };
    let path = mounted.0.path().join("a.pool");
    let pool = create(&path);
    let map = pool.map::<u64, [u8]>("m").unwrap();
    let value = |n: u64| vec![n as u8; 500];
    let mut end = 0;
    let error = loop {
        match map.insert(&end, &value(end)) {
            Ok(done) => assert!(done),
            Err(error) => break error,
        }
        end += 1;
    };
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    for n in 0..end {
        assert_eq!(map.get(&n).unwrap().unwrap(), value(n));
    }
    for n in 0..1000 {
        assert!(map.remove(&n).unwrap().is_some());
    }
    for n in 0..900 {
        assert!(map.insert(&(end + n), &value(n)).unwrap(), "removed space is used again");
    }
    drop(map);
    pool.close().unwrap();
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, [u8]>("m").unwrap();
    for n in 1000..end {
        assert_eq!(map.get(&n).unwrap().unwrap(), value(n));
    }
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{found:?}");
    // Leave no space for a new file at all.
    let other = mounted.0.path().join("b.pool");
    let filler = File::create(mounted.0.path().join("filler")).unwrap();
    let _ = std::io::copy(&mut std::io::repeat(1), &mut &filler);
    // SAFETY: the file belongs to this test.
    let refused =
        unsafe { PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(&other) };
    assert!(matches!(refused, Err(Error::DiskFull { .. } | Error::Io { .. })));
    assert!(!other.exists());
    let refused = pool.snapshot(&other);
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    assert!(!other.exists());
    // Reopening needs no space.
    drop((map, pool));
    assert!(open(&path).unwrap().verify().unwrap().is_sound());
}

#[test]
fn little_address_space_opens_smaller_or_says_why() {
    if let Some(path) = child_path() {
        let outcome = open(&path);
        match (std::env::var("OUTLAST_TEST_EXPECT").unwrap().as_str(), outcome) {
            ("opens", Ok(pool)) => {
                check_filled(&pool);
                assert!(pool.stats().limit < 1 << 40);
            }
            ("refused", Err(Error::AddressSpace { .. })) => {}
            (expected, other) => panic!("{expected}: {other:?}"),
        }
        return;
    }
    let (_dir, path) = filled();
    let me = std::env::current_exe().unwrap();
    for (kilobytes, expected) in [(8 << 20, "opens"), (600 << 10, "refused")] {
        let script = format!(
            "ulimit -v {kilobytes}; exec \"$0\" --exact \
             space::little_address_space_opens_smaller_or_says_why --test-threads 1"
        );
        let child = Command::new("sh")
            .args(["-c", &script])
            .arg(&me)
            .env("OUTLAST_TEST_CHILD", &path)
            .env("OUTLAST_TEST_EXPECT", expected)
            .output()
            .unwrap();
        assert!(child.status.success(), "{expected}: {}", String::from_utf8_lossy(&child.stdout));
    }
}

#[test]
fn the_medium_is_named() {
    let (_dir, path) = filled();
    let pool = open(&path).unwrap();
    let durability = pool.durability();
    assert!(durability.survives_process_death);
    assert_eq!(durability.survives_power_loss, durability.medium.survives_power_loss());
    drop(pool);
    // SAFETY: the file belongs to this test.
    let reader = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
    assert_eq!(reader.durability().medium, durability.medium);
    drop(reader);
    // SAFETY: the file belongs to this test.
    let pool =
        unsafe { PoolOptions::new().emulate_pm(outlast::Latency::default()).open(&path).unwrap() };
    check_filled(&pool);
    assert_eq!(pool.durability().medium, outlast::MediumKind::EmulatedPm);
    assert!(matches!(pool.durability().flush, outlast::FlushMode::Lines(_)));
    assert!(!pool.durability().survives_power_loss);
    let anonymous = PoolOptions::new().anonymous().unwrap();
    assert!(!anonymous.durability().survives_process_death);
}

#[test]
fn what_is_kept_in_dram_is_what_was_touched() {
    const RECORDS: u64 = 200_000;
    let (_dir, path) = dir();
    // SAFETY: only this test uses the file.
    let pool = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(&path).unwrap()
    };
    let ahead = pool.stats().shadow_bytes.unwrap();
    assert!(ahead <= 2 << 20, "of an empty pool nothing is known; {ahead} bytes lie ready");
    let map = pool.map::<u64, u64>("m").unwrap();
    for key in 0..RECORDS {
        map.insert(&key, &!key).unwrap();
    }
    let index = map.stats().unwrap();
    // The index counts bucket metadata and its directory. The pool counts pages of metadata.
    let notes = index.dram_bytes - index.directory_entries * 16;
    let shadow = pool.stats().shadow_bytes.unwrap();
    let pages = (pool.stats().size / 8).next_multiple_of(2 << 20);
    assert!(notes > RECORDS && (notes..=pages).contains(&shadow), "{notes} {shadow} {pages}");
    assert!(pool.stats().shadow_huge_page_bytes.unwrap() <= shadow);
    drop(map);
    pool.close().unwrap();
    // A new process has no bucket metadata until it touches segments.
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    assert!(pool.stats().shadow_bytes.unwrap() < shadow);
    assert_eq!(map.get(&7).unwrap(), Some(!7));
    assert!(pool.stats().shadow_bytes.unwrap() >= 4096);
}

/// Returns how many bytes of a file this process has mapped in memory.
fn mapped(path: &std::path::Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let name = path.to_str().unwrap();
    let of_file = smaps.lines().skip_while(|line| !line.ends_with(name));
    let kb = of_file.filter_map(|line| line.strip_prefix("Rss:")).next().unwrap();
    kb.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

/// Returns whether this process has mapped the page of a file at an offset.
fn is_mapped(path: &std::path::Path, offset: u64) -> bool {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let name = path.to_str().unwrap();
    let line = maps.lines().find(|line| line.ends_with(name)).unwrap();
    let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    // SAFETY: the call only queries a constant.
    let page_size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let page = (start + offset) / page_size;
    let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entry = [0; 8];
    pages.read_exact_at(&mut entry, page * 8).unwrap();
    // The highest bit means that the page is present.
    u64::from_le_bytes(entry) >> 63 == 1
}

#[test]
fn opening_a_pool_on_a_disk_does_not_read_all_of_it() {
    let (_dir, path) = dir();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts
        .lines()
        .filter_map(|line| Some((line.split(' ').nth(1)?, line.split(' ').nth(2)?)))
        .filter(|(at, _)| path.starts_with(at))
        .max_by_key(|(at, _)| at.len());
    if mount.is_some_and(|(_, kind)| kind == "tmpfs") {
        println!("skipped: the temporary directory is in memory");
        return;
    }
    // SAFETY: only this test uses the file.
    let pool = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(&path).unwrap()
    };
    let map = pool.map::<u64, u64>("m").unwrap();
    for key in 0..1_000_000 {
        map.insert(&key, &!key).unwrap();
    }
    let used = pool.stats().size - pool.stats().free_page_bytes;
    drop(map);
    pool.close().unwrap();
    let pool = open(&path).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    // The background thread touches pages ahead of use. If it also touched pages in use, it would
    // do so before it reached the first ones ahead. The page that the test looks at is farther
    // ahead than the pages that the kernel maps around a touched page.
    const AROUND: u64 = 64 << 10;
    let core = pool.store().core();
    let frontier = core.geometry.offset_of(core.alloc().stats(core).frontier_pages);
    let ahead = frontier.next_multiple_of(AROUND) + AROUND;
    assert!(ahead < pool.stats().size, "room ahead of {frontier}");
    let start = std::time::Instant::now();
    while !is_mapped(&path, ahead) {
        assert!(start.elapsed() < std::time::Duration::from_secs(60), "the thread does nothing");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let rss = mapped(&path);
    assert!(rss < used / 2, "{rss} of {used} bytes touched");
    assert_eq!(map.get(&7).unwrap(), Some(!7));
}

#[test]
fn max_size_bounds_small_pools_too() {
    for max_size in [512 << 10, 1 << 20, 3 << 20, (3 << 20) + 5] {
        let (_dir, path) = dir();
        let options = PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .initial_size(300 << 10)
            .max_size(max_size);
        // SAFETY: the file belongs to this test.
        let pool = unsafe { options.create(&path).unwrap() };
        let map = pool.map::<u64, u64>("numbers").unwrap();
        let full = (0..1 << 20).find_map(|n: u64| map.insert(&n, &(n + 7)).err());
        assert!(matches!(full, Some(Error::PoolFull { .. })), "{full:?}");
        let bytes = fs::metadata(&path).unwrap().len();
        assert!(bytes <= max_size && bytes * 2 > max_size, "{bytes} of {max_size}");
        pool.close().unwrap();
    }
    let (_dir, path) = dir();
    // SAFETY: the file belongs to this test.
    let refused = unsafe {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .initial_size(u64::MAX)
            .create(&path)
    };
    assert!(refused.is_err() && !path.exists());
}

/// The blocks of a dropped map are freed by the background work. An insert that finds the pool full does
/// not fail before that is done.
#[test]
fn the_space_of_a_dropped_map_is_there_when_the_pool_is_full() {
    for &scheme in Scheme::ALL {
        let options = PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .page_bits(12)
            .max_size(4 << 20)
            .background(false);
        let pool = options.anonymous().unwrap();
        let open = || pool.map_with::<u64, u64>("m", &MapOptions::new().scheme(scheme)).unwrap();
        for _ in 0..3 {
            let map = open();
            let full = (0..).find(|key| map.insert(key, key).is_err_and(|e| e.is_full())).unwrap();
            assert!(full > 1_000, "{scheme}: {full}");
            pool.drop_map("m").unwrap();
            // Only now has the dropped map no handle.
            drop(map);
        }
    }
}
