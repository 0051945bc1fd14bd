//! What a pool does when its file system fails: what it reports, and which claims it withdraws
//! until it is verified.

use outlast::internals::pmem::{Call, Disk, DiskWatch, Fate, MediumKind};
use outlast::{Error, Map, MapOptions, Pool, PoolOptions, Scheme};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Fails the calls that it is told to fail.
#[derive(Default)]
struct Faults {
    calls: Mutex<Vec<Call>>,
    /// How many more write-backs succeed; if negative, all of them.
    left: AtomicI32,
    /// Whether all write-backs after those fail, or only the next one.
    for_ever: bool,
}

impl Faults {
    fn new(for_ever: bool) -> Arc<Self> {
        Arc::new(Faults { left: AtomicI32::new(-1), for_ever, ..Faults::default() })
    }

    /// Lets `left` more write-backs succeed, and makes the next one fail; if `for_ever` is set, all
    /// later ones too. If `left` is negative, none fails.
    fn fail_after(&self, left: i32) {
        self.left.store(left, Ordering::SeqCst);
    }

    fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

impl DiskWatch for Faults {
    fn before(&self, call: Call, _: &File) -> Fate {
        self.calls.lock().unwrap().push(call);
        if !call.makes_durable() {
            return Fate::Done;
        }
        match self.left.load(Ordering::SeqCst) {
            left if left < 0 => Fate::Done,
            0 if self.for_ever => Fate::Fails(EIO),
            left => {
                self.left.store(left - 1, Ordering::SeqCst);
                if left == 0 { Fate::Fails(EIO) } else { Fate::Done }
            }
        }
    }
}

struct Setup {
    _dir: tempfile::TempDir,
    path: PathBuf,
    faults: Arc<Faults>,
    scheme: Scheme,
}

impl Setup {
    fn new(scheme: Scheme, for_ever: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.pool");
        Setup { _dir: dir, path, faults: Faults::new(for_ever), scheme }
    }

    fn options(&self) -> PoolOptions {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .background(false)
            .disk(Disk::watched(Arc::clone(&self.faults) as _))
    }

    fn open(&self) -> (Pool, Map<u64, str>) {
        // SAFETY: the file belongs to this test alone.
        let pool = unsafe { self.options().open_or_create(&self.path) }.unwrap();
        let map = pool.map_with("m", &MapOptions::new().scheme(self.scheme)).unwrap();
        (pool, map)
    }

    /// Leaves the pool as it is now, as if its process were killed.
    fn kill(&self, pool: Pool, map: Map<u64, str>) {
        let content = std::fs::read(&self.path).unwrap();
        drop((pool, map));
        // Restore the same file, whatever its last owner did after its supposed death.
        std::fs::write(&self.path, content).unwrap();
    }

    /// Reopens the pool as it is now, as if its process were killed.
    fn reopen_killed(&self, pool: Pool, map: Map<u64, str>) -> (Pool, Map<u64, str>) {
        self.kill(pool, map);
        self.faults.fail_after(-1);
        self.open()
    }

    /// Opens the pool under another boot id.
    fn open_in_boot(&self, boot: u128) -> outlast::Result<Pool> {
        // SAFETY: the file belongs to this test alone.
        unsafe { self.options().boot_id(boot).open(&self.path) }
    }
}

fn put(map: &Map<u64, str>, keys: std::ops::Range<u64>) {
    for key in keys {
        map.put(&key, &format!("value of {key}")).unwrap();
    }
}

fn check(map: &Map<u64, str>, keys: std::ops::Range<u64>, how: &str) {
    for key in keys {
        let value = map.get(&key).unwrap();
        assert_eq!(value.as_deref(), Some(&*format!("value of {key}")), "{how}: key {key}");
    }
}

fn each_fault(mut run: impl FnMut(Setup, &str, i32)) {
    for &scheme in Scheme::ALL {
        for for_ever in [false, true] {
            // First the fsync of the data fails, then the sync of the clean header.
            for left in 0..2 {
                let how = format!("{scheme}, call {left} fails, for ever: {for_ever}");
                run(Setup::new(scheme, for_ever), &how, left);
            }
        }
    }
}

#[test]
fn nothing_acknowledged_after_a_failed_sync_is_lost_with_the_process() {
    each_fault(|setup, how, left| {
        let (pool, map) = setup.open();
        put(&map, 0..100);
        setup.faults.fail_after(left);
        assert!(matches!(pool.sync(), Err(Error::Io { .. })), "{how}");
        // A disk that fails forever may even refuse the dirty mark. Then no change is made.
        let mut acknowledged = 100;
        for key in 100..160 {
            match map.put(&key, &format!("value of {key}")) {
                Ok(_) => acknowledged = key + 1,
                Err(Error::Io { .. }) if setup.faults.for_ever => break,
                Err(error) => panic!("{how}: {error}"),
            }
        }
        if !setup.faults.for_ever {
            assert_eq!(acknowledged, 160, "{how}");
        }
        let (pool, map) = setup.reopen_killed(pool, map);
        check(&map, 0..acknowledged, how);
        put(&map, 1000..3000);
        check(&map, 0..acknowledged, how);
        check(&map, 1000..3000, how);
        let found = pool.verify().unwrap();
        assert!(found.is_sound(), "{how}: {found:?}");
    });
}

#[test]
fn a_failed_write_back_is_remembered_until_the_pool_was_verified() {
    each_fault(|setup, how, left| {
        let (pool, map) = setup.open();
        put(&map, 0..100);
        setup.faults.fail_after(left);
        assert!(pool.sync().is_err(), "{how}");
        // The disk accepts everything again.
        setup.faults.fail_after(-1);
        let snapshot = setup.path.with_extension("snapshot");
        let refused = |pool: &Pool| {
            assert!(matches!(pool.sync(), Err(Error::Suspect)), "{how}");
            assert!(matches!(pool.snapshot(&snapshot), Err(Error::Suspect)), "{how}");
            assert!(pool.durability().is_suspect, "{how}");
            assert!(!snapshot.exists(), "{how}");
        };
        refused(&pool);
        put(&map, 100..200);
        refused(&pool);
        drop(map);
        assert!(matches!(pool.close(), Err(Error::Suspect)), "{how}");
        // SAFETY: the file belongs to this test alone.
        let other_boot = unsafe { setup.options().boot_id(77).open(&setup.path) };
        assert!(matches!(other_boot, Err(Error::PossiblyTorn { .. })), "{how}");
        // The next process knows that the pool is suspect.
        let (pool, map) = setup.open();
        refused(&pool);
        drop(map);
        assert!(matches!(pool.close(), Err(Error::Suspect)), "{how}");
        // A verified pool is trusted.
        let (pool, map) = setup.open();
        assert!(pool.verify().unwrap().is_sound(), "{how}");
        assert!(!pool.durability().is_suspect, "{how}");
        pool.sync().unwrap();
        pool.snapshot(&snapshot).unwrap();
        drop(map);
        pool.close().unwrap();
        for path in [&setup.path, &snapshot] {
            // SAFETY: the file belongs to this test alone.
            let pool = unsafe { setup.options().boot_id(77).open(path) }.unwrap();
            check(&pool.map("m").unwrap(), 0..200, how);
        }
    });
}

#[test]
fn a_verification_that_cannot_write_back_leaves_the_pool_suspect() {
    let setup = Setup::new(Scheme::DashEh, true);
    let (pool, map) = setup.open();
    put(&map, 0..100);
    setup.faults.fail_after(0);
    assert!(pool.sync().is_err());
    assert!(pool.verify().unwrap().is_sound());
    assert!(pool.durability().is_suspect);
    assert!(matches!(pool.sync(), Err(Error::Suspect)));
}

#[test]
fn a_pool_that_may_be_torn_is_not_called_clean_before_it_was_verified() {
    let setup = Setup::new(Scheme::DashEh, false);
    let (pool, map) = setup.open();
    put(&map, 0..100);
    let (pool, map) = setup.reopen_killed(pool, map);
    setup.kill(pool, map);
    let options = setup.options().boot_id(77);
    // SAFETY: the file belongs to this test alone.
    assert!(matches!(unsafe { options.open(&setup.path) }, Err(Error::PossiblyTorn { .. })));
    let accepting = options.accept_possibly_torn(true);
    // SAFETY: the file belongs to this test alone.
    let pool = unsafe { accepting.open(&setup.path) }.unwrap();
    assert!(matches!(pool.sync(), Err(Error::Suspect)));
    assert!(matches!(pool.close(), Err(Error::Suspect)));
    // SAFETY: the file belongs to this test alone.
    let pool = unsafe { accepting.open(&setup.path) }.unwrap();
    assert!(pool.verify().unwrap().is_sound());
    pool.close().unwrap();
    let pool = setup.open_in_boot(78).unwrap();
    check(&pool.map("m").unwrap(), 0..100, "verified");
}

#[test]
fn a_failed_write_back_of_a_growing_pool_makes_it_suspect() {
    for &scheme in Scheme::ALL {
        let setup = Setup::new(scheme, false);
        let (pool, map) = setup.open();
        put(&map, 0..100);
        setup.faults.fail_after(0);
        let mut grown = 100;
        let failed = loop {
            match map.put(&grown, &format!("value of {grown}")) {
                Ok(_) => grown += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(failed, Error::Io { .. }), "{scheme}: {failed}");
        assert!(setup.faults.take_calls().contains(&Call::Ftruncate), "{scheme}");
        assert!(matches!(pool.sync(), Err(Error::Suspect)), "{scheme}");
        put(&map, grown..grown + 1000);
        let (pool, map) = setup.reopen_killed(pool, map);
        check(&map, 0..grown + 1000, "after a growth that failed");
        assert!(pool.verify().unwrap().is_sound(), "{scheme}");
        pool.sync().unwrap();
    }
}

/// An fsync would write every page back, and the kernel would protect it again.
#[test]
fn a_growing_pool_writes_back_only_the_end_of_its_file() {
    for &scheme in Scheme::ALL {
        let setup = Setup::new(scheme, false);
        let (pool, map) = setup.open();
        put(&map, 0..100);
        let size = pool.stats().size;
        setup.faults.take_calls();
        let mut grown = 100;
        while pool.stats().size == size {
            put(&map, grown..grown + 100);
            grown += 100;
        }
        assert_eq!(writes_back(&setup.faults), [Call::WriteEnd], "{scheme}");
        pool.sync().unwrap();
        setup.kill(pool, map);
        let pool = setup.open_in_boot(77).unwrap();
        check(&pool.map("m").unwrap(), 0..grown, "synced after a growth");
    }
}

#[test]
fn a_killed_pool_that_was_opened_and_synced_survives_a_power_loss() {
    for &scheme in Scheme::ALL {
        let setup = Setup::new(scheme, false);
        let (pool, map) = setup.open();
        put(&map, 0..100);
        let (pool, map) = setup.reopen_killed(pool, map);
        setup.faults.take_calls();
        pool.sync().unwrap();
        assert!(setup.faults.take_calls().contains(&Call::Fsync), "{scheme}");
        drop(map);
        pool.close().unwrap();
        let pool = setup.open_in_boot(77).unwrap();
        check(&pool.map("m").unwrap(), 0..100, "synced");
    }
}

/// The first change of a process that opens the pool of a killed process need not wait for a
/// write-back.
#[test]
fn the_dirty_mark_of_a_killed_process_is_not_written_again() {
    for &scheme in Scheme::ALL {
        let setup = Setup::new(scheme, false);
        let (pool, map) = setup.open();
        put(&map, 0..100);
        let (pool, map) = setup.reopen_killed(pool, map);
        setup.faults.take_calls();
        put(&map, 100..200);
        assert_eq!(writes_back(&setup.faults), [], "{scheme}");
        // A new dirty mark writes back only the header's pages.
        pool.sync().unwrap();
        setup.faults.take_calls();
        put(&map, 200..201);
        assert_eq!(writes_back(&setup.faults), [Call::Msync], "{scheme}");
        // A dirty mark that comes from another file does not count as durable, and is written back
        // again.
        let copy = setup.path.with_extension("copy");
        std::fs::copy(&setup.path, &copy).unwrap();
        let other = Setup { path: copy, ..Setup::new(scheme, false) };
        let options = other.options().accept_possibly_torn(true);
        // SAFETY: the file belongs to this test alone.
        let pool = unsafe { options.open(&other.path) }.unwrap();
        other.faults.take_calls();
        pool.map_with::<u64, str>("n", &MapOptions::new().scheme(scheme)).unwrap();
        assert!(writes_back(&other.faults).contains(&Call::Msync), "{scheme}");
    }
}

fn writes_back(faults: &Faults) -> Vec<Call> {
    faults.take_calls().into_iter().filter(|call| call.makes_durable()).collect()
}

/// Neither verifying a clean pool nor opening or reading it makes it dirty.
#[test]
fn a_clean_pool_that_is_verified_stays_clean() {
    for &scheme in Scheme::ALL {
        let setup = Setup::new(scheme, false);
        let (pool, map) = setup.open();
        put(&map, 0..100);
        pool.sync().unwrap();
        assert!(pool.verify().unwrap().is_sound());
        setup.kill(pool, map);
        let pool = setup.open_in_boot(77).unwrap();
        check(&pool.map("m").unwrap(), 0..100, "verified");
    }
}

/// Whichever call fails, a new pool is complete or does not exist.
#[test]
fn a_creation_that_fails_leaves_nothing() {
    let mut calls = 0;
    loop {
        let dir = tempfile::tempdir().unwrap();
        let watch = Arc::new(Nth { left: AtomicI32::new(calls) });
        let options = PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .background(false)
            .disk(Disk::watched(watch));
        let path = dir.path().join("p.pool");
        // SAFETY: the file belongs to this test alone.
        match unsafe { options.create(&path) } {
            Ok(pool) => {
                pool.close().unwrap();
                break;
            }
            Err(error) => assert!(is_io(&error), "call {calls}: {error}"),
        }
        assert_eq!(names(dir.path()), Vec::<PathBuf>::new(), "call {calls}");
        calls += 1;
    }
    assert!(calls >= 4, "only {calls} calls");
}

/// Gives another file the name of a snapshot just before the snapshot gets it.
struct Overtaking(PathBuf);

impl DiskWatch for Overtaking {
    fn before(&self, call: Call, _: &File) -> Fate {
        if call == Call::Rename {
            let _ = std::fs::remove_file(&self.0);
            std::fs::write(&self.0, "another file").unwrap();
        }
        Fate::Done
    }
}

/// Another process can create a pool under the snapshot's name while the snapshot is being written. The
/// snapshot does not replace it.
#[test]
fn a_snapshot_replaces_no_file_that_came_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("p.pool"), dir.path().join("copy"));
    let disk = Disk::watched(Arc::new(Overtaking(copy.clone())));
    // SAFETY: the file belongs to this test alone.
    let pool = unsafe {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .background(false)
            .disk(disk)
            .create(&path)
    }
    .unwrap();
    let refused = pool.snapshot(&copy);
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert_eq!(std::fs::read(&copy).unwrap(), b"another file");
    assert_eq!(names(dir.path()).len(), 2);
}

/// A failed snapshot leaves the previous one, and nothing else.
#[test]
fn a_snapshot_that_fails_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("p.pool"), dir.path().join("copy"));
    let watch = Arc::new(Nth { left: AtomicI32::new(-1) });
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .background(false)
        .disk(Disk::watched(Arc::clone(&watch) as _));
    // SAFETY: the file belongs to this test alone.
    let pool = unsafe { options.create(&path) }.unwrap();
    let map = pool.map::<u64, str>("m").unwrap();
    put(&map, 0..10);
    pool.snapshot(&copy).unwrap();
    let first = std::fs::read(&copy).unwrap();
    put(&map, 10..20);
    pool.sync().unwrap();
    let mut calls = 0;
    loop {
        watch.left.store(calls, Ordering::SeqCst);
        let done = pool.snapshot(&copy);
        let reached = watch.left.swap(-1, Ordering::SeqCst) < 0;
        assert_eq!(done.is_err(), reached, "call {calls}: {done:?}");
        assert_eq!(names(dir.path()).len(), 2, "call {calls}");
        if !reached {
            break;
        }
        // A failure outside the pool itself does not make it suspect.
        assert!(!pool.durability().is_suspect, "call {calls}");
        let present = std::fs::read(&copy).unwrap();
        let renamed = present != first;
        if renamed {
            // The call that failed was the last one, the sync of the directory. The new snapshot
            // has its name by then.
            break;
        }
        calls += 1;
    }
    assert!(calls >= 3, "only {calls} calls");
    // SAFETY: the file belongs to this test alone.
    let pool = unsafe { PoolOptions::new().open(&copy) }.unwrap();
    check(&pool.map("m").unwrap(), 0..20, "snapshot");
}

/// Fails a single call, after `left` others have succeeded.
struct Nth {
    left: AtomicI32,
}

impl DiskWatch for Nth {
    fn before(&self, _: Call, _: &File) -> Fate {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 { Fate::Fails(EIO) } else { Fate::Done }
    }
}

fn is_io(error: &Error) -> bool {
    matches!(error, Error::Io { .. } | Error::DiskFull { .. })
}

fn names(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_failed_sync_in_the_background_is_not_hidden() {
    for left in 0..3 {
        let setup = Setup::new(Scheme::DashEh, false);
        let options = setup.options().medium(MediumKind::PageCache).background(true);
        // SAFETY: the file belongs to this test alone.
        let pool = unsafe { options.create(&setup.path) }.unwrap();
        let map: Map<u64, str> = pool.map("m").unwrap();
        put(&map, 0..100);
        // In turn, fail the write-back that is made while changes go on, the one with changes held
        // back, and that of the clean header.
        setup.faults.fail_after(left);
        let start = Instant::now();
        while !pool.durability().is_suspect {
            assert!(start.elapsed() < Duration::from_secs(60), "an idle pool is synced");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(matches!(pool.sync(), Err(Error::Suspect)), "call {left}");
        put(&map, 100..200);
        check(&map, 0..200, "after a failed write-back");
        assert!(pool.verify().unwrap().is_sound());
        pool.sync().unwrap();
    }
}

/// A disk that is full, and counts how often it is asked for space.
#[derive(Default)]
struct Full {
    is_full: AtomicBool,
    asked: AtomicU32,
}

impl DiskWatch for Full {
    fn before(&self, call: Call, _: &File) -> Fate {
        if call != Call::Fallocate {
            return Fate::Done;
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.is_full.load(Ordering::SeqCst) { Fate::Fails(ENOSPC) } else { Fate::Done }
    }
}

#[test]
fn a_full_disk_is_asked_for_space_only_now_and_then() {
    let (dir, full) = (tempfile::tempdir().unwrap(), Arc::new(Full::default()));
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .disk(Disk::watched(full.clone()));
    // SAFETY: the file belongs to this test alone.
    let pool = unsafe { options.create(dir.path().join("a.pool")) }.unwrap();
    let map = pool.map::<u64, [u8]>("m").unwrap();
    let insert = |key: u64| map.insert(&key, &[7; 500]);
    full.is_full.store(true, Ordering::SeqCst);
    let mut key = 0;
    while insert(key).is_ok() {
        key += 1;
    }
    full.asked.store(0, Ordering::SeqCst);
    let begin = Instant::now();
    for _ in 0..20_000 {
        let refused = insert(key);
        assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    }
    // A growth asks for much, and then for the least.
    let most = 40 + 2 * (begin.elapsed().as_millis() / 50) as u32;
    let asked = full.asked.load(Ordering::SeqCst);
    println!("asked {asked} times for 20,000 inserts in {:?}", begin.elapsed());
    assert!(asked <= most, "asked {asked} times in {:?}", begin.elapsed());
    // Once there is space again, an insert finds it.
    full.is_full.store(false, Ordering::SeqCst);
    let begin = Instant::now();
    loop {
        let since = begin.elapsed();
        match insert(key) {
            Ok(done) => break assert!(done),
            Err(error) => assert!(since < Duration::from_millis(100), "{error} after {since:?}"),
        }
    }
    (0..=key).for_each(|key| assert_eq!(map.get(&key).unwrap().unwrap(), [7; 500]));
}
