//! Journaled pools on real files. What a power loss can leave of such files is tested on a
//! simulated disk, by the journal's unit tests.

mod disk;
mod endings;
mod evidence;
mod identity;
mod marks;
mod places;
mod tasks;
mod working;

use disk::{Faulty, Watch};
use outlast::internals::pmem::{Call, Disk, DiskWatch, Fate, FlushMode, Mapping, MediumKind};
use outlast::{Error, JournalOptions, Map, Pool, PoolOptions};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn options(place: &Path) -> PoolOptions {
    let journal = JournalOptions::new()
        .interval(Duration::from_millis(2))
        .working_directory(place)
        .directory(place.join("journal"));
    PoolOptions::new().journal(journal)
}

fn create(place: &Path) -> Pool {
    // SAFETY: no one else uses the file.
    unsafe { options(place).create(place.join("a.pool")).unwrap() }
}

fn open(place: &Path) -> outlast::Result<Pool> {
    // SAFETY: no one else uses the file.
    unsafe { options(place).open(place.join("a.pool")) }
}

fn map(pool: &Pool) -> Map<u64, u64> {
    pool.map("numbers").unwrap()
}

fn insert(pool: &Pool, keys: std::ops::Range<u64>) {
    let map = map(pool);
    keys.for_each(|key| assert!(map.insert(&key, &(key * 3)).unwrap()));
}

/// Checks that the pool holds these keys and no others.
fn assert_holds(pool: &Pool, keys: std::ops::Range<u64>) {
    pool.verify().unwrap().ensure_sound().unwrap();
    let map = map(pool);
    assert_eq!(map.iter().count() as u64, keys.end - keys.start);
    keys.for_each(|key| assert_eq!(map.get(&key).unwrap(), Some(key * 3), "key {key}"));
}

/// Copies all files but the working file: what a power loss leaves if everything written has
/// reached the disk. Fails if a file is removed meanwhile.
fn try_copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::copy(from.join("a.pool"), to.join("a.pool"))?;
    std::fs::create_dir(to.join("journal"))?;
    for entry in std::fs::read_dir(from.join("journal"))? {
        let path = entry?.path();
        std::fs::copy(&path, to.join("journal").join(path.file_name().unwrap()))?;
    }
    Ok(())
}

/// Like `try_copy`, but tries again until no checkpoint deletes segments meanwhile.
fn copy(pool: &Pool, place: &Path) -> tempfile::TempDir {
    let checkpoints = || pool.stats().journal.map(|journal| journal.checkpoints);
    loop {
        let (copied, before) = (tempfile::tempdir().unwrap(), checkpoints());
        let done = try_copy(place, copied.path());
        if done.is_ok() && checkpoints() == before {
            return copied;
        }
    }
}

fn working_files(place: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "working")).collect()
}

#[test]
fn a_closed_pool_is_one_file_that_opens_everywhere() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    let durability = pool.durability();
    assert_eq!(durability.medium, MediumKind::Journal);
    assert_eq!(durability.flush, FlushMode::Journal);
    assert_eq!(durability.interval, Some(Duration::from_millis(2)));
    assert!(durability.survives_process_death && !durability.survives_power_loss);
    insert(&pool, 0..10_000);
    assert_eq!(working_files(place.path()).len(), 1);
    pool.close().unwrap();
    assert_eq!(working_files(place.path()), [] as [PathBuf; 0]);
    assert_eq!(std::fs::read_dir(place.path().join("journal")).unwrap().count(), 0);
    let other = tempfile::tempdir().unwrap();
    try_copy(place.path(), other.path()).unwrap();
    // SAFETY: no one else uses the file.
    let read = unsafe { PoolOptions::new().open_read_only(other.path().join("a.pool")).unwrap() };
    assert_holds(&read, 0..10_000);
    drop(read);
    for place in [&other, &place] {
        let pool = open(place.path()).unwrap();
        assert_holds(&pool, 0..10_000);
        insert(&pool, 10_000..10_100);
        pool.close().unwrap();
        assert_holds(&open(place.path()).unwrap(), 0..10_100);
    }
}

#[test]
fn what_was_waited_for_is_in_a_copy_of_the_files_on_the_disk() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    let mut end = 0;
    for count in [1, 10, 1_000, 30_000, 1] {
        insert(&pool, end..end + count);
        end += count;
        pool.wait_durable().unwrap();
        let copied = copy(&pool, place.path());
        let rebuilt = open(copied.path()).unwrap();
        assert_holds(&rebuilt, 0..end);
        insert(&rebuilt, end..end + 10);
        drop(rebuilt);
        assert_holds(&open(copied.path()).unwrap(), 0..end + 10);
    }
    let stats = pool.stats().journal.unwrap();
    // A line holds four records of 16 bytes. How often a line is written depends on the cuts.
    assert!(stats.epochs >= 5 && stats.lines >= end / 4 && stats.failures == 0, "{stats:?}");
}

#[test]
fn what_nobody_waits_for_is_durable_after_a_while() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    insert(&pool, 0..100);
    let begin = std::time::Instant::now();
    let durable = |place: &Path| {
        let pool = open(place).unwrap();
        pool.raw_map("numbers").map_or(0, |map| map.iter().count())
    };
    while durable(copy(&pool, place.path()).path()) < 100 {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing becomes durable");
    }
}

#[test]
fn checkpoints_shorten_the_journal_while_threads_write() {
    let place = tempfile::tempdir().unwrap();
    let journal = JournalOptions::new()
        .interval(Duration::from_millis(1))
        .working_directory(place.path())
        .directory(place.path().join("journal"))
        .limit(4 << 20);
    let path = place.path().join("a.pool");
    // SAFETY: no one else uses the file.
    let pool = unsafe { PoolOptions::new().journal(journal).create(path).unwrap() };
    let map = map(&pool);
    let mut round = 0;
    while pool.stats().journal.unwrap().checkpoints < 3 {
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let map = &map;
                scope.spawn(move || {
                    for key in 0..20_000 {
                        let (key, value) = (key * 3 + thread, (key * 3 + thread) * 3);
                        if round % 2 == 0 {
                            assert!(map.insert(&key, &value).unwrap());
                        } else {
                            assert_eq!(map.remove(&key).unwrap(), Some(value));
                        }
                    }
                });
            }
        });
        round += 1;
        pool.wait_durable().unwrap();
        assert_copy_holds(&pool, place.path(), 0..if round % 2 == 1 { 60_000 } else { 0 });
        assert!(round < 100, "{:?}", pool.stats().journal);
    }
}

#[test]
fn a_pool_gets_a_journal_and_a_snapshot_has_none() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.pool");
    // SAFETY: no one else uses the file.
    let plain = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(&path).unwrap()
    };
    insert(&plain, 0..1_000);
    plain.close().unwrap();
    let pool = open(place.path()).unwrap();
    insert(&pool, 1_000..2_000);
    let copy = place.path().join("b.pool");
    pool.snapshot(&copy).unwrap();
    insert(&pool, 2_000..3_000);
    // SAFETY: no one else uses the file.
    let snapshot = unsafe { PoolOptions::new().open(&copy).unwrap() };
    assert_eq!(snapshot.durability().medium, MediumKind::PageCache);
    assert_holds(&snapshot, 0..2_000);
    pool.sync().unwrap();
    drop(pool);
    // If the snapshot replaces the pool's file, the pool's journal is not used.
    std::fs::rename(&copy, &path).unwrap();
    drop(snapshot);
    assert_holds(&open(place.path()).unwrap(), 0..2_000);
}

#[test]
fn a_journal_that_is_gone_is_told_and_can_be_left() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    insert(&pool, 0..1_000);
    pool.wait_durable().unwrap();
    let copied = copy(&pool, place.path());
    std::fs::remove_dir_all(copied.path().join("journal")).unwrap();
    let path = copied.path().join("a.pool");
    assert!(matches!(open(copied.path()), Err(Error::IncompleteJournal { .. })));
    // SAFETY: no one else uses the file.
    let read = unsafe { PoolOptions::new().open_read_only(&path) };
    assert!(matches!(read, Err(Error::Unfinished { .. })));
    // SAFETY: no one else uses the file.
    let read =
        unsafe { PoolOptions::new().accept_possibly_torn(true).open_read_only(&path).unwrap() };
    assert_eq!(read.maps().len(), 0);
    drop(read);
    // No checkpoint was made, so the base is as it was created.
    let left =
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).accept_possibly_torn(true);
    // SAFETY: no one else uses the file.
    let left = unsafe { left.open(&path).unwrap() };
    assert_eq!(left.maps().len(), 0);
    left.verify().unwrap().ensure_sound().unwrap();
    left.close().unwrap();
    // SAFETY: no one else uses the file.
    let plain = unsafe { PoolOptions::new().open(&path).unwrap() };
    assert_eq!(plain.durability().medium, MediumKind::PageCache);
}

#[test]
fn an_open_journaled_pool_is_locked() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    assert!(matches!(open(place.path()), Err(Error::Locked { .. })));
    // SAFETY: no one else uses the file.
    let read = unsafe { PoolOptions::new().open_read_only(place.path().join("a.pool")) };
    assert!(matches!(read, Err(Error::Locked { .. })));
    pool.close().unwrap();
    open(place.path()).unwrap();
}

#[test]
fn calls_after_closing_fail() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    let other = pool.clone();
    pool.close().unwrap();
    assert!(matches!(other.wait_durable(), Err(Error::NotOpen(_))));
}

fn create_on_faulty_disk(place: &Path) -> (Pool, Arc<Faulty>) {
    let faulty = Arc::new(Faulty::default());
    let disk = Disk::watched(Arc::new(Watch(Arc::clone(&faulty))));
    // SAFETY: no one else uses the file.
    let pool = unsafe { options(place).disk(disk).create(place.join("a.pool")).unwrap() };
    (pool, faulty)
}

/// Checks that a copy of what was written holds these keys and no others.
fn assert_copy_holds(pool: &Pool, place: &Path, keys: std::ops::Range<u64>) {
    assert_holds(&open(copy(pool, place).path()).unwrap(), keys);
}

#[test]
fn an_error_of_the_disk_that_does_not_last_is_mended() {
    for only in [Call::Write, Call::Fsync] {
        let place = tempfile::tempdir().unwrap();
        let (pool, faulty) = create_on_faulty_disk(place.path());
        let mut end = 0;
        for _ in 0..10 {
            insert(&pool, end..end + 100);
            end += 100;
            faulty.fail(1, libc::EIO, Some(only));
            pool.wait_durable().unwrap();
            assert_copy_holds(&pool, place.path(), 0..end);
        }
        assert!(pool.stats().journal.unwrap().failures > 0);
        pool.close().unwrap();
        assert_holds(&open(place.path()).unwrap(), 0..end);
    }
}

#[test]
fn a_disk_that_fails_for_good_loses_nothing_that_was_durable() {
    for (errno, only) in [(libc::ENOSPC, None), (libc::EIO, Some(Call::Fsync))] {
        let place = tempfile::tempdir().unwrap();
        let (pool, faulty) = create_on_faulty_disk(place.path());
        insert(&pool, 0..1_000);
        pool.wait_durable().unwrap();
        faulty.fail(usize::MAX, errno, only);
        insert(&pool, 1_000..1_100);
        let Err(Error::Io { source, .. }) = pool.wait_durable() else { panic!("no error") };
        assert_eq!(source.raw_os_error(), Some(errno));
        // Reads and changes still work. What was durable before still is.
        let map = map(&pool);
        assert_eq!(map.get(&1_050).unwrap(), Some(3_150));
        assert!(map.insert(&1_100, &3_300).unwrap());
        assert!(matches!(pool.wait_durable(), Err(Error::Io { .. })));
        assert!(!pool.durability().confirmed_survives_power_loss);
        let copied = copy(&pool, place.path());
        let rebuilt = open(copied.path()).unwrap();
        let held = outlast::RawMap::iter(&rebuilt.raw_map("numbers").unwrap()).count() as u64;
        assert!((1_000..=1_101).contains(&held), "{held}");
        assert_holds(&rebuilt, 0..held);
        faulty.fail(0, 0, None);
        let begin = std::time::Instant::now();
        while pool.wait_durable().is_err() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not recover");
        }
        let in_memory = Mapping::is_tmpfs(&File::open(place.path()).unwrap());
        assert_eq!(pool.durability().confirmed_survives_power_loss, !in_memory);
        assert_copy_holds(&pool, place.path(), 0..1_101);
        pool.close().unwrap();
        assert_holds(&open(place.path()).unwrap(), 0..1_101);
    }
}

/// The system may drop what it could not write back, so a working file on a disk may then hold older
/// content. None of that becomes durable.
#[test]
fn a_working_file_that_could_not_be_written_back_is_given_up() {
    let place = tempfile::tempdir().unwrap();
    if Mapping::is_tmpfs(&File::open(place.path()).unwrap()) {
        return;
    }
    let (pool, faulty) = create_on_faulty_disk(place.path());
    insert(&pool, 0..1_000);
    let map = map(&pool);
    pool.wait_durable().unwrap();
    faulty.fail(1, libc::EIO, Some(Call::WriteBack));
    for key in 1_000..1_100 {
        match map.insert(&key, &(key * 3)) {
            Ok(true) => {}
            // The journal has come to its next turn meanwhile, and has met the error.
            Err(Error::NotOpen(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    for _ in 0..3 {
        let Err(Error::Io { source, .. }) = pool.wait_durable() else { panic!("no error") };
        assert!(source.to_string().contains("working file"), "{source}");
    }
    assert!(!pool.durability().confirmed_survives_power_loss);
    // What is stored from now on would be lost.
    assert!(matches!(map.insert(&2_000, &6_000), Err(Error::NotOpen(_))));
    assert!(matches!(map.get(&5), Err(Error::NotOpen(_))));
    drop(map);
    assert!(pool.close().is_err());
    assert!(working_files(place.path()).is_empty());
    assert_holds(&open(place.path()).unwrap(), 0..1_000);
}

#[test]
fn closing_on_a_disk_that_fails_keeps_everything() {
    let place = tempfile::tempdir().unwrap();
    let (pool, faulty) = create_on_faulty_disk(place.path());
    insert(&pool, 0..1_000);
    faulty.fail(usize::MAX, libc::EIO, None);
    assert!(matches!(pool.close(), Err(Error::Io { .. })));
    // The working file still exists.
    assert_holds(&open(place.path()).unwrap(), 0..1_000);
}

#[test]
fn while_a_disk_hangs_the_pool_can_be_used() {
    let place = tempfile::tempdir().unwrap();
    let (pool, faulty) = create_on_faulty_disk(place.path());
    insert(&pool, 0..1_000);
    pool.wait_durable().unwrap();
    faulty.hangs.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        insert(&pool, 1_000..1_001);
        let waits = scope.spawn(|| pool.wait_durable());
        insert(&pool, 1_001..2_000);
        assert_eq!(map(&pool).get(&1_500).unwrap(), Some(4_500));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished(), "nothing can be durable");
        let start = std::time::Instant::now();
        while pool.stats().journal.unwrap().longest_commit_ns < 50_000_000 {
            assert!(start.elapsed() < Duration::from_secs(60), "the commit under way counts");
            std::thread::yield_now();
        }
        faulty.hangs.store(false, Ordering::SeqCst);
        waits.join().unwrap().unwrap();
    });
    pool.wait_durable().unwrap();
    assert_copy_holds(&pool, place.path(), 0..2_000);
}

/// The path for a child process of one of the tests.
const CHILD: &str = "OUTLAST_TEST_CHILD";

/// The child process: inserts keys in order, and prints which inserts have returned and which are
/// durable.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let pool = open(&path).unwrap();
    let map = map(&pool);
    let from = map.iter().count() as u64;
    for key in from.. {
        assert!(map.insert(&key, &(key * 3)).unwrap());
        if key % 512 == 0 {
            pool.wait_durable().unwrap();
            println!("\ndurable {key}");
        } else {
            println!("\nreturned {key}");
        }
    }
}

/// Runs the child until it has printed `lines` lines, and kills it. Returns the key of the last
/// insert that had returned, and of the last that was durable.
fn killed(path: &Path, lines: usize) -> (u64, u64) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads", "1"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let (mut returned, mut durable, mut left) = (0, 0, lines);
    for line in said {
        let mut words = line.split(' ');
        match (words.next(), words.next().and_then(|key| key.parse().ok())) {
            (Some("returned"), Some(key)) => returned = key,
            (Some("durable"), Some(key)) => (returned, durable) = (key, key),
            _ => continue,
        }
        left = left.saturating_sub(1);
        if left == 0 {
            // Lines that the child prints before it is dead still count.
            let _ = child.kill();
        }
    }
    child.wait().unwrap();
    (returned, durable)
}

#[test]
fn a_killed_process_loses_nothing_and_a_lost_working_file_only_what_was_not_waited_for() {
    let place = tempfile::tempdir().unwrap();
    create(place.path()).close().unwrap();
    for round in 0..8 {
        let (returned, durable) = killed(place.path(), 700 + 517 * round);
        assert_eq!(working_files(place.path()).len(), 1, "round {round}");
        if round % 2 == 1 {
            std::fs::remove_file(&working_files(place.path())[0]).unwrap();
        }
        let pool = open(place.path()).unwrap();
        let held = map(&pool).iter().count() as u64;
        let least = if round % 2 == 1 { durable } else { returned };
        assert!(held > least && held <= returned + 2, "{held} of {returned}, {durable}");
        assert_holds(&pool, 0..held);
        if round % 3 == 0 {
            pool.close().unwrap();
        }
    }
}

#[test]
fn a_kept_working_file_opens_again_and_a_power_loss_after_that_loses_nothing() {
    let place = tempfile::tempdir().unwrap();
    let journal = JournalOptions::new()
        .working_directory(place.path())
        .directory(place.path().join("journal"))
        .keep_working_file(true);
    let path = place.path().join("a.pool");
    let options = PoolOptions::new().journal(journal);
    // SAFETY: no one else uses the file.
    let pool = unsafe { options.create(&path).unwrap() };
    insert(&pool, 0..1_000);
    pool.close().unwrap();
    let kept = working_files(place.path());
    assert_eq!(kept.len(), 1);
    // SAFETY: no one else uses the file.
    let pool = unsafe { options.open(&path).unwrap() };
    assert_eq!(working_files(place.path()), kept, "the same one");
    assert_copy_holds(&pool, place.path(), 0..1_000);
    insert(&pool, 1_000..2_000);
    pool.wait_durable().unwrap();
    assert_copy_holds(&pool, place.path(), 0..2_000);
    pool.close().unwrap();
    // Without the working file, the pool is read from the base.
    std::fs::remove_file(&working_files(place.path())[0]).unwrap();
    assert_holds(&open(place.path()).unwrap(), 0..2_000);
}

#[test]
fn pools_do_not_share_a_directory() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    insert(&pool, 0..1_000);
    // SAFETY: no one else uses the file.
    let other = || unsafe { options(place.path()).open_or_create(place.path().join("b.pool")) };
    assert!(matches!(other(), Err(Error::Locked { .. })));
    drop(pool);
    killed(place.path(), 700);
    assert!(matches!(other(), Err(Error::Invalid { .. })));
    let pool = open(place.path()).unwrap();
    assert!(map(&pool).iter().count() > 1_000);
    pool.close().unwrap();
    other().unwrap();
}

#[test]
fn an_interval_of_nothing_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let journal = JournalOptions::new().interval(Duration::ZERO);
    let path = place.path().join("a.pool");
    // SAFETY: no one else uses the file.
    let refused = unsafe { PoolOptions::new().journal(journal).create(&path) };
    assert!(matches!(refused, Err(Error::Invalid { .. })));
    assert!(!path.exists());
}
