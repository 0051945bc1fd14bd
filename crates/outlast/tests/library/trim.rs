//! Free space is given back to the file system, and allocated again when it is needed.

use crate::files::{child_path, dir, in_child, open};
use outlast::internals::pmem::{Call, Disk, DiskWatch, Fate};
use outlast::{Error, Map, MapOptions, Pool, PoolOptions, Scheme};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;

/// Returns how many bytes of disk blocks a file has.
fn blocks(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

fn options() -> PoolOptions {
    PoolOptions::new().survive(outlast::Failure::ProcessDeath)
}

/// Returns options that give space back as soon as it is free.
fn at_once() -> PoolOptions {
    options().trim_after(Duration::ZERO)
}

fn create(options: &PoolOptions, path: &Path) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe { options.create(path).unwrap() }
}

fn reopen(options: &PoolOptions, path: &Path) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe { options.open(path).unwrap() }
}

/// Waits until a file has at most `most` bytes of disk blocks, but no longer than `time`. Returns
/// how many it has then.
fn wait_for(path: &Path, most: u64, time: Duration) -> u64 {
    let start = Instant::now();
    while blocks(path) > most && start.elapsed() < time {
        std::thread::sleep(Duration::from_millis(20));
    }
    blocks(path)
}

/// Waits until a file that had `before` bytes of disk blocks has at most a third of them. Returns how
/// many it has then.
fn wait_for_a_third(path: &Path, before: u64) -> u64 {
    let after = wait_for(path, before / 3, Duration::from_secs(20));
    assert!(after <= before / 3, "{after} of {before}");
    after
}

/// Runs `test` for each scheme, several at a time.
fn for_each_scheme(test: impl Fn(Scheme) + Sync) {
    std::thread::scope(|scope| {
        let threads: Vec<_> = Scheme::ALL
            .iter()
            .map(|&scheme| {
                let test = &test;
                (scheme, scope.spawn(move || test(scheme)))
            })
            .collect();
        for (scheme, thread) in threads {
            thread.join().unwrap_or_else(|_| panic!("{scheme}"));
        }
    });
}

fn check(pool: &Pool, scheme: Scheme) {
    let found = pool.verify().unwrap();
    assert!(found.is_sound() && found.leaked_bytes == Some(0), "{scheme}: {found:?}");
}

fn value(key: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (key.wrapping_mul(31) ^ n ^ (n >> 8)) as u8).collect()
}

/// The size of the pools that shrink. The tests were also run with 61 MiB.
fn large() -> u64 {
    std::env::var("OUTLAST_TEST_MIB").map_or(12, |mib| mib.parse().unwrap()) * MIB
}

/// How many bytes of disk blocks a pool of that size may keep when little of it is in use.
fn small() -> u64 {
    (large() / 10).max(3 * MIB)
}

/// Inserts records of 100 bytes, or inline ones, until the pool has the size [`large`]. Returns
/// their number.
fn fill(pool: &Pool, scheme: Scheme, inline: bool) -> u64 {
    let options = MapOptions::new().scheme(scheme);
    let mut n = 0;
    let add: Box<dyn Fn(u64) -> bool> = if inline {
        let map = pool.map_with::<u64, u64>("m", &options).unwrap();
        Box::new(move |key| map.insert(&key, &!key).unwrap())
    } else {
        let map = pool.map_with::<u64, [u8]>("m", &options).unwrap();
        Box::new(move |key| map.insert(&key, &[7; 92]).unwrap())
    };
    while pool.stats().size < large() {
        assert!((n..n + 1000).all(&add), "{scheme}");
        n += 1000;
    }
    n
}

#[test]
fn a_pool_whose_map_was_dropped_frees_its_blocks() {
    for_each_scheme(|scheme| {
        for inline in [false, true] {
            let (_dir, path) = dir();
            // Nothing is given back while the pool grows, however long that takes.
            let pool = create(&options().trim(false), &path);
            let n = fill(&pool, scheme, inline);
            let before = blocks(&path);
            assert!(before >= large(), "{scheme}: {before}");
            pool.close().unwrap();
            let pool = open(&path).unwrap();
            pool.drop_map("m").unwrap();
            let start = Instant::now();
            let after = wait_for(&path, small(), Duration::from_secs(10));
            println!(
                "{scheme}, inline {inline}: {n} records, {before} bytes of blocks, {after} after {:?}",
                start.elapsed()
            );
            assert!(after <= small(), "{scheme}, inline {inline}: {after} of {before} bytes");
            check(&pool, scheme);
            pool.close().unwrap();
            assert!(blocks(&path) <= small());
            // Opening allocates no disk blocks for free space. Later changes allocate those that
            // they need.
            let pool = open(&path).unwrap();
            assert!(blocks(&path) <= small(), "{scheme}: {}", blocks(&path));
            let options = MapOptions::new().scheme(scheme);
            let map = pool.map_with::<u64, [u8]>("again", &options).unwrap();
            (0..20_000).for_each(|k| assert!(map.insert(&k, &[9; 92]).unwrap()));
            assert!((0..20_000).all(|k| map.get(&k).unwrap().unwrap() == [9; 92]));
            check(&pool, scheme);
        }
    });
}

#[test]
fn a_pool_whose_records_were_removed_frees_their_blocks() {
    for_each_scheme(|scheme| {
        let (_dir, path) = dir();
        let pool = create(&options(), &path);
        let n = fill(&pool, scheme, false);
        let before = blocks(&path);
        let map = pool.map::<u64, [u8]>("m").unwrap();
        for k in 0..n {
            assert!(map.delete(&k).unwrap());
        }
        let start = Instant::now();
        // Space that the map keeps for its next records, such as empty segments, does not count as
        // free.
        let table = pool.verify().unwrap().used_bytes;
        let most = small().max(2 * MIB + table + table / 4);
        let after = wait_for(&path, most, Duration::from_secs(30));
        println!(
            "{scheme}: {n} records, {before} bytes of blocks, {after} after {:?}, table {table}",
            start.elapsed()
        );
        assert!(after <= most, "{scheme}: {after} of {before} bytes, the table has {table}");
        check(&pool, scheme);
    });
}

/// Inserts and removes values of many sizes, and checks them, while the worker punches out whatever
/// is free.
fn churn(map: &Map<u64, [u8]>, thread: u64, rounds: u64, stop: &AtomicBool) {
    let mut there = Vec::new();
    let mut seed = thread + 1;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for round in 0..rounds {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let most = if round / 64 % 2 == 0 { 40 } else { 3 };
        while there.len() < most {
            let key = thread << 32 | round << 8 | there.len() as u64;
            let len = 20_000 + random(280_000) as usize;
            assert!(map.insert(&key, &value(key, len)).unwrap(), "{key:x} is new");
            there.push((key, len));
        }
        for _ in 0..3 {
            let at = random(there.len() as u64) as usize;
            let (key, len) = there.swap_remove(at);
            assert!(map.get(&key).unwrap().unwrap() == value(key, len), "{key:x}");
            assert!(map.remove(&key).unwrap().unwrap() == value(key, len), "{key:x}");
        }
        while there.len() > most {
            let (key, len) = there.pop().unwrap();
            assert!(map.remove(&key).unwrap().unwrap() == value(key, len), "{key:x}");
        }
    }
    for (key, len) in there {
        assert!(map.get(&key).unwrap().unwrap() == value(key, len), "{key:x}");
    }
}

/// Counts the calls that punch holes, and decides their outcome.
#[derive(Default)]
struct Punches {
    calls: AtomicU64,
    /// The error of each call that punches; 0: none.
    punch: AtomicI32,
    /// The error of each call that allocates disk blocks; 0: none.
    allocate: AtomicI32,
    /// Whether punching only pretends to work.
    pretends: AtomicBool,
}

impl DiskWatch for Punches {
    fn before(&self, call: Call, _: &File) -> Fate {
        let error = match call {
            Call::PunchHole => {
                self.calls.fetch_add(1, Ordering::SeqCst);
                if self.pretends.load(Ordering::SeqCst) {
                    return Fate::Pretends;
                }
                &self.punch
            }
            Call::Fallocate => &self.allocate,
            _ => return Fate::Done,
        };
        match error.load(Ordering::SeqCst) {
            0 => Fate::Done,
            errno => Fate::Fails(errno),
        }
    }
}

fn watched(options: PoolOptions) -> (PoolOptions, Arc<Punches>) {
    let punches = Arc::new(Punches::default());
    (options.disk(Disk::watched(Arc::clone(&punches) as _)), punches)
}

#[test]
fn allocations_neither_fail_nor_lose_anything_while_space_is_given_back() {
    for &scheme in Scheme::ALL {
        let (_dir, path) = dir();
        // The limit is hardly more than the map needs, so claims have to take pages that are being
        // punched.
        let (options, punches) = watched(at_once().max_size(48 * MIB));
        let pool = create(&options, &path);
        let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().scheme(scheme)).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (map, stop) = (&map, &stop);
                scope.spawn(move || churn(map, thread, u64::MAX, stop));
            }
            // Wait until there were enough punches, however rarely the worker gets a processor.
            let start = Instant::now();
            while punches.calls.load(Ordering::SeqCst) <= 40
                && start.elapsed() < Duration::from_secs(30)
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Ordering::Relaxed);
        });
        let calls = punches.calls.load(Ordering::SeqCst);
        assert!(calls > 20, "{scheme}: {calls} calls");
        check(&pool, scheme);
        let len = map.len().unwrap();
        drop(map);
        pool.close().unwrap();
        let pool = open(&path).unwrap();
        let map = pool.map::<u64, [u8]>("m").unwrap();
        assert_eq!(map.len().unwrap(), len);
        for record in &map {
            let (key, found) = record.unwrap();
            assert!(found == value(key, found.len()), "{scheme}: {key:x}");
        }
        check(&pool, scheme);
    }
}

#[test]
fn a_kill_while_space_is_given_back_loses_nothing() {
    if let Some(path) = child_path() {
        let pool = reopen(&at_once(), &path);
        let map = pool.map::<u64, [u8]>("m").unwrap();
        let stop = AtomicBool::new(false);
        let from: u64 = std::env::var("OUTLAST_TEST_FROM").unwrap().parse().unwrap();
        assert!(map.insert(&(u64::MAX - from), &value(u64::MAX - from, 100_000)).unwrap());
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (map, stop) = (&map, &stop);
                scope.spawn(move || churn(map, from + thread, u64::MAX >> 8, stop));
            }
            // Wait for more records than the test and this process inserted before.
            while map.len().unwrap() <= 52 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::fs::write(path.with_extension("at-work"), "").unwrap();
        });
        return;
    }
    for &scheme in Scheme::ALL {
        let (_dir, path) = dir();
        let pool = create(&options(), &path);
        let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().scheme(scheme)).unwrap();
        (0..50).for_each(|key| assert!(map.insert(&key, &value(key, 100_000)).unwrap()));
        drop(map);
        pool.close().unwrap();
        for round in 0..2 {
            let mut child = in_child("trim::a_kill_while_space_is_given_back_loses_nothing", &path)
                .env("OUTLAST_TEST_FROM", (16 + 2 * round).to_string())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let at_work = path.with_extension("at-work");
            let start = Instant::now();
            while !at_work.exists() && start.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::fs::remove_file(&at_work).expect("the child works");
            // The process is killed at different moments of its work, which goes on until then.
            std::thread::sleep(Duration::from_millis(150 + 260 * round));
            child.kill().unwrap();
            child.wait().unwrap();
            let pool = open(&path).unwrap();
            let map = pool.map::<u64, [u8]>("m").unwrap();
            // Check the records that no thread removes, including those of the children.
            for key in (0..50).chain((0..=round).map(|round| u64::MAX - (16 + 2 * round))) {
                assert!(map.get(&key).unwrap().unwrap() == value(key, 100_000), "{scheme}: {key}");
            }
            for record in &map {
                let (key, found) = record.unwrap();
                assert!(found == value(key, found.len()), "{scheme}: {key:x}");
            }
            pool.store().finish_reclaim().unwrap();
            check(&pool, scheme);
            drop(map);
            pool.close().unwrap();
        }
    }
}

/// Makes and closes a pool that is mostly free, and from which no worker has given space back yet.
/// Returns the bytes of disk blocks of its file.
fn shrunk(path: &Path, scheme: Scheme) -> u64 {
    let pool = create(&options().background(false), path);
    let map = pool.map_with::<u64, [u8]>("m", &MapOptions::new().scheme(scheme)).unwrap();
    (0..200).for_each(|key| assert!(map.insert(&key, &value(key, 100_000)).unwrap()));
    (10..200).for_each(|key| assert!(map.remove(&key).unwrap().is_some()));
    drop(map);
    pool.close().unwrap();
    blocks(path)
}

fn check_shrunk(pool: &Pool, scheme: Scheme) {
    let map = pool.map::<u64, [u8]>("m").unwrap();
    assert_eq!(map.len().unwrap(), 10);
    assert!((0..10).all(|key| map.get(&key).unwrap().unwrap() == value(key, 100_000)), "{scheme}");
    check(pool, scheme);
}

#[test]
fn faults_of_the_disk_do_no_harm() {
    for &scheme in Scheme::ALL {
        for fault in [EIO, ENOSPC, EOPNOTSUPP, 0] {
            let (_dir, path) = dir();
            let before = shrunk(&path, scheme);
            let (options, punches) = watched(at_once());
            punches.punch.store(fault, Ordering::SeqCst);
            punches.pretends.store(fault == 0, Ordering::SeqCst);
            let pool = reopen(&options, &path);
            let start = Instant::now();
            while punches.calls.load(Ordering::SeqCst) == 0 {
                assert!(start.elapsed() < Duration::from_secs(20), "{scheme}: nothing was punched");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            if fault != 0 {
                // Depending on the fault, the punch is retried much later or never.
                assert_eq!(punches.calls.load(Ordering::SeqCst), 1, "{scheme}, {fault}");
            }
            assert!(blocks(&path) >= before, "{scheme}, {fault}");
            check_shrunk(&pool, scheme);
            let map = pool.map::<u64, [u8]>("m").unwrap();
            (10..150).for_each(|key| assert!(map.insert(&key, &value(key, 90_000)).unwrap()));
            assert!((10..150).all(|key| map.get(&key).unwrap().unwrap() == value(key, 90_000)));
            (10..150).for_each(|key| assert!(map.delete(&key).unwrap()));
            drop(map);
            check_shrunk(&pool, scheme);
            pool.close().unwrap();
            check_shrunk(&open(&path).unwrap(), scheme);
        }
    }
}

#[test]
fn space_that_does_not_come_back_is_a_full_disk() {
    for &scheme in Scheme::ALL {
        let (_dir, path) = dir();
        let before = shrunk(&path, scheme);
        let (options, punches) = watched(at_once());
        let pool = reopen(&options, &path);
        let after = wait_for(&path, before / 3, Duration::from_secs(20));
        assert!(after <= before / 3, "{scheme}: {after} of {before}");
        let map = pool.map::<u64, [u8]>("m").unwrap();
        punches.allocate.store(ENOSPC, Ordering::SeqCst);
        let mut n = 10;
        let error = loop {
            match map.insert(&n, &value(n, 100_000)) {
                Ok(done) => assert!(done),
                Err(error) => break error,
            }
            n += 1;
        };
        assert!(matches!(error, Error::DiskFull { .. }), "{scheme}: {error}");
        assert!((0..n).all(|key| map.get(&key).unwrap().unwrap() == value(key, 100_000)));
        punches.allocate.store(0, Ordering::SeqCst);
        (n..150).for_each(|key| assert!(map.insert(&key, &value(key, 100_000)).unwrap()));
        assert!((0..150).all(|key| map.get(&key).unwrap().unwrap() == value(key, 100_000)));
        check(&pool, scheme);
    }
}

#[test]
fn a_clean_pool_stays_clean() {
    let (_dir, path) = dir();
    let before = shrunk(&path, Scheme::DashEh);
    let pool = reopen(&at_once(), &path);
    assert!(pool.store().core().is_clean());
    wait_for_a_third(&path, before);
    assert!(pool.store().core().is_clean());
    // A copy of a clean pool is clean.
    let copy = path.with_extension("copy");
    std::fs::copy(&path, &copy).unwrap();
    check_shrunk(&open(&copy).unwrap(), Scheme::DashEh);
    check_shrunk(&pool, Scheme::DashEh);
}

#[test]
fn opening_a_pool_in_memory_takes_none_for_free_space() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm");
        return;
    };
    let path = dir.path().join("pool");
    let before = shrunk(&path, Scheme::DashEh);
    let pool = reopen(&at_once(), &path);
    let after = wait_for_a_third(&path, before);
    pool.close().unwrap();
    let pool = reopen(&options().trim(false), &path);
    std::thread::sleep(Duration::from_millis(600));
    let opened = blocks(&path);
    // Beyond the frontier, pages are prepared for the next records.
    assert!(opened <= before / 2, "{opened} of {before}, {after} when it was closed");
    check_shrunk(&pool, Scheme::DashEh);
}

/// Reading a hole of a file in memory takes memory for it.
#[test]
fn copying_a_killed_pool_in_memory_takes_none_for_free_space() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm");
        return;
    };
    let path = dir.path().join("pool");
    let before = shrunk(&path, Scheme::DashEh);
    let pool = reopen(&at_once(), &path);
    pool.map::<u64, u64>("other").unwrap();
    let headers = std::fs::read(&path).unwrap()[..8192].to_vec();
    wait_for_a_third(&path, before);
    pool.close().unwrap();
    // With the headers from before the close, the pool is as a killed process leaves it.
    let killed = || {
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&headers, 0).unwrap();
    };
    let copy = dir.path().join("copy");
    for read_only in [true, false] {
        killed();
        let before = blocks(&path);
        let options = options().background(false);
        // SAFETY: the file belongs to this test.
        let read = || unsafe { options.open_read_only(&path).unwrap() };
        let pool = if read_only { read() } else { reopen(&options, &path) };
        pool.snapshot(&copy).unwrap();
        let (now, copied) = (blocks(&path), blocks(&copy));
        assert!(now < before + (1 << 20), "{now}, {before} before; read-only: {read_only}");
        assert!(copied < before + (1 << 20), "{copied} of {before}; read-only: {read_only}");
        drop(pool);
        check_shrunk(&open(&copy).unwrap(), Scheme::DashEh);
    }
}

#[test]
fn nothing_is_given_back_where_it_must_not_be() {
    let (_dir, path) = dir();
    let before = shrunk(&path, Scheme::DashEh);
    let unchanged = |pool: Pool| {
        std::thread::sleep(Duration::from_millis(300));
        assert!(blocks(&path) >= before);
        pool.close().unwrap();
    };
    unchanged(reopen(&options().trim(false), &path));
    // SAFETY: the file belongs to this test.
    unchanged(unsafe { at_once().open_read_only(&path).unwrap() });
    unchanged(reopen(&at_once().background(false), &path));
}

#[test]
fn a_snapshot_has_no_free_pages() {
    for_each_scheme(|scheme| {
        let (_dir, path) = dir();
        let before = shrunk(&path, scheme);
        let pool = reopen(&options().background(false), &path);
        let copy = path.with_extension("copy");
        pool.snapshot(&copy).unwrap();
        let (len, of_copy) = (std::fs::metadata(&copy).unwrap().len(), blocks(&copy));
        assert_eq!(len, pool.stats().size);
        assert!(of_copy < before / 3, "{scheme}: {of_copy} of {before}");
        let walk = outlast_offline::walk(&copy).unwrap();
        assert!(walk.problems.is_empty() && walk.free_state, "{scheme}: {walk:?}");
        let copied = open(&copy).unwrap();
        check_shrunk(&copied, scheme);
    });
}

/// In a file that was copied with holes where it has zeros, the pages of the saved free state can have
/// holes, too. They are not free.
#[test]
fn a_snapshot_of_a_sparse_copy_keeps_the_saved_free_state() {
    let (_dir, path) = dir();
    let [sparse, copy] = ["sparse", "copy"].map(|extension| path.with_extension(extension));
    let pool = create(&options().background(false), &path);
    let map = pool.map::<u64, u64>("m").unwrap();
    (0..1_000).for_each(|key| assert!(map.insert(&key, &(key + 1)).unwrap()));
    drop(map);
    pool.close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = File::create(&sparse).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (block, at) in bytes.chunks(4096).zip((0..).step_by(4096)) {
        if block.iter().any(|&byte| byte != 0) {
            file.write_all_at(block, at).unwrap();
        }
    }
    drop(file);
    let pool = reopen(&options().background(false), &sparse);
    pool.snapshot(&copy).unwrap();
    pool.close().unwrap();
    let copy = reopen(&options().background(false), &copy);
    copy.verify().unwrap().ensure_sound().unwrap();
    assert_eq!(copy.map::<u64, u64>("m").unwrap().iter().count(), 1_000);
}
