//! Journaled pools on real files. What a power loss can leave of such files is proved elsewhere, on a
//! simulated disk.

use outlast::pmem::{FlushMode, MediumKind};
use outlast::{Error, JournalOptions, Map, Pool, PoolOptions};
use std::path::{Path, PathBuf};
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

/// Copies what a power loss leaves if the disk has all that was written: not the working file.
fn copy(from: &Path, to: &Path) {
    std::fs::copy(from.join("a.pool"), to.join("a.pool")).unwrap();
    std::fs::create_dir(to.join("journal")).unwrap();
    for entry in std::fs::read_dir(from.join("journal")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join("journal").join(path.file_name().unwrap())).unwrap();
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
    copy(place.path(), other.path());
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
        let copied = tempfile::tempdir().unwrap();
        copy(place.path(), copied.path());
        let rebuilt = open(copied.path()).unwrap();
        assert_holds(&rebuilt, 0..end);
        insert(&rebuilt, end..end + 10);
        drop(rebuilt);
        assert_holds(&open(copied.path()).unwrap(), 0..end + 10);
    }
    let stats = pool.stats().journal.unwrap();
    assert!(stats.epochs >= 5 && stats.lines > 10_000 && stats.failures == 0, "{stats:?}");
}

#[test]
fn what_nobody_waits_for_is_durable_after_a_while() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    insert(&pool, 0..100);
    let begin = std::time::Instant::now();
    let mut copied = tempfile::tempdir().unwrap();
    let durable = |place: &Path| {
        let pool = open(place).unwrap();
        pool.raw_map("numbers").map_or(0, |map| map.iter().count())
    };
    copy(place.path(), copied.path());
    while durable(copied.path()) < 100 {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing becomes durable");
        copied = tempfile::tempdir().unwrap();
        copy(place.path(), copied.path());
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
        let copied = tempfile::tempdir().unwrap();
        copy(place.path(), copied.path());
        assert_holds(&open(copied.path()).unwrap(), 0..if round % 2 == 1 { 60_000 } else { 0 });
        assert!(round < 100, "{:?}", pool.stats().journal);
    }
}

#[test]
fn a_pool_gets_a_journal_and_a_snapshot_has_none() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.pool");
    // SAFETY: no one else uses the file.
    let plain = unsafe { PoolOptions::new().create(&path).unwrap() };
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
    // A snapshot in place of the pool: the journal that lies there is not used.
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
    let copied = tempfile::tempdir().unwrap();
    copy(place.path(), copied.path());
    std::fs::remove_dir_all(copied.path().join("journal")).unwrap();
    let path = copied.path().join("a.pool");
    assert!(matches!(open(copied.path()), Err(Error::IncompleteJournal(_))));
    // SAFETY: no one else uses the file.
    let read = unsafe { PoolOptions::new().open_read_only(&path) };
    assert!(matches!(read, Err(Error::Unfinished)));
    // No checkpoint was made, so the base is what it was at first.
    let left = PoolOptions::new().accept_possibly_torn(true);
    // SAFETY: no one else uses the file.
    let left = unsafe { left.open(&path).unwrap() };
    assert_eq!(left.maps().len(), 0);
    left.close().unwrap();
    // SAFETY: no one else uses the file.
    let plain = unsafe { PoolOptions::new().open(&path).unwrap() };
    assert_eq!(plain.durability().medium, MediumKind::PageCache);
}

#[test]
fn an_open_journaled_pool_is_locked() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    assert!(matches!(open(place.path()), Err(Error::Locked)));
    // SAFETY: no one else uses the file.
    let read = unsafe { PoolOptions::new().open_read_only(place.path().join("a.pool")) };
    assert!(matches!(read, Err(Error::Locked)));
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
