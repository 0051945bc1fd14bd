//! Journaled pools whose files are missing, damaged or in the wrong place.

use super::*;
use outlast::internals::pmem::Moment;
use std::time::Instant;

pub(crate) fn journal(place: &Path) -> PathBuf {
    place.join("journal")
}

/// Kills a process that works on a new pool. Returns the key of the last insert that had returned.
pub(crate) fn left_by_a_kill(place: &Path) -> u64 {
    create(place).close().unwrap();
    killed(place, 900).0
}

pub(crate) fn assert_holds_all(place: &Path, returned: u64) {
    let pool = open(place).unwrap();
    let held = map(&pool).iter().count() as u64;
    assert!(held > returned, "{held} of {returned}");
    assert_holds(&pool, 0..held);
}

/// A pool that was closed with its working file needs no segments. When it is opened with the directory
/// in which a killed pool has its journal, it must not delete that journal.
#[test]
fn a_kept_working_file_costs_no_other_pool_its_journal() {
    let place = tempfile::tempdir().unwrap();
    let keep = JournalOptions::new()
        .working_directory(place.path())
        .directory(journal(place.path()))
        .keep_working_file(true);
    let keep = PoolOptions::new().journal(keep);
    let path = place.path().join("b.pool");
    // SAFETY: no one else uses the file.
    unsafe { keep.create(&path) }.unwrap().close().unwrap();
    assert_eq!(working_files(place.path()).len(), 1);
    let kept = working_files(place.path()).remove(0);
    create(place.path()).close().unwrap();
    let (_, durable) = killed(place.path(), 900);
    // SAFETY: as above.
    let opened = unsafe { keep.open(&path) };
    assert!(matches!(opened, Err(Error::Invalid { .. })), "{opened:?}");
    for working in working_files(place.path()).iter().filter(|working| **working != kept) {
        std::fs::remove_file(working).unwrap();
    }
    assert_holds_all(place.path(), durable);
}

/// If a process continued with the working file but without the segments that the base needs, the
/// next power loss would undo what `wait_durable` has confirmed.
#[test]
fn a_working_file_is_not_used_without_its_segments() {
    let place = tempfile::tempdir().unwrap();
    let returned = left_by_a_kill(place.path());
    let elsewhere = JournalOptions::new()
        .working_directory(place.path())
        .directory(place.path().join("elsewhere"));
    // SAFETY: no one else uses the file.
    let opened = unsafe { PoolOptions::new().journal(elsewhere).open(place.path().join("a.pool")) };
    assert!(matches!(opened, Err(Error::IncompleteJournal { .. })), "{opened:?}");
    assert_holds_all(place.path(), returned);
}

#[test]
fn a_working_file_is_found_where_it_is_by_default() {
    let place = tempfile::tempdir().unwrap();
    let returned = left_by_a_kill(place.path());
    // Put the working file next to the journal, as if the pool had been opened without a working
    // directory.
    let found = &working_files(place.path())[0];
    std::fs::rename(found, journal(place.path()).join(found.file_name().unwrap())).unwrap();
    assert_holds_all(place.path(), returned);
}

/// Options that do not name the directory of the working file.
pub(crate) fn without_working_directory(place: &Path) -> PoolOptions {
    PoolOptions::new().journal(JournalOptions::new().directory(journal(place)))
}

#[test]
fn a_working_file_is_found_without_the_options_that_chose_it() {
    let place = tempfile::tempdir().unwrap();
    let returned = left_by_a_kill(place.path());
    let (pool, working) = (place.path().join("a.pool"), working_files(place.path()).remove(0));
    let options = without_working_directory(place.path()).require_working_file(true);
    let facts = options.facts(&pool).unwrap().journal.unwrap();
    assert_eq!(facts.working.as_ref(), Some(&working));
    assert!(!facts.closed && !facts.restarted);
    // SAFETY: no one else uses the file.
    let read = unsafe { options.open_read_only(&pool).unwrap() };
    let held = map(&read).iter().count() as u64;
    assert!(held > returned, "{held} of {returned}");
    drop(read);
    // SAFETY: as above.
    let opened = unsafe { options.open(&pool).unwrap() };
    assert_holds(&opened, 0..held);
    assert_eq!(working_files(place.path()), [working]);
}

#[test]
fn opening_without_the_working_file_can_be_refused() {
    let place = tempfile::tempdir().unwrap();
    left_by_a_kill(place.path());
    let pool = place.path().join("a.pool");
    std::fs::remove_file(&working_files(place.path())[0]).unwrap();
    let before = std::fs::read(&pool).unwrap();
    let options = without_working_directory(place.path());
    let facts = options.facts(&pool).unwrap().journal.unwrap();
    assert!(facts.working.is_none() && !facts.closed && !facts.restarted);
    // SAFETY: no one else uses the file.
    let refused = unsafe { options.clone().require_working_file(true).open(&pool) };
    assert!(matches!(refused, Err(Error::NoWorkingFile { .. })), "{refused:?}");
    assert!(std::fs::read(&pool).unwrap() == before, "nothing was changed");
    // After a restart, there is nothing to require.
    // SAFETY: as above.
    let completed = unsafe { options.boot_id(7).require_working_file(true).open(&pool).unwrap() };
    assert_holds(&completed, 0..map(&completed).iter().count() as u64);
}

/// The lock of a killed process can stay held for a moment.
#[test]
fn a_working_file_that_is_locked_is_waited_for_and_never_given_up() {
    let place = tempfile::tempdir().unwrap();
    let returned = left_by_a_kill(place.path());
    let hold = || {
        let file = File::open(&working_files(place.path())[0]).unwrap();
        file.lock().unwrap();
        file
    };
    let held = hold();
    let start = Instant::now();
    assert!(matches!(open(place.path()), Err(Error::Locked { .. })));
    assert!(start.elapsed() >= Duration::from_millis(500));
    drop(held);
    let held = hold();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            drop(held);
        });
        assert_holds_all(place.path(), returned);
    });
}

/// A working file that cannot be read does not count as missing.
#[test]
fn a_working_file_that_cannot_be_used_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let returned = left_by_a_kill(place.path());
    let path = working_files(place.path())[0].clone();
    let aside = path.with_extension("aside");
    std::fs::rename(&path, &aside).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(open(place.path()), Err(Error::Io { .. })));
    std::fs::remove_dir(&path).unwrap();
    std::fs::rename(&aside, &path).unwrap();
    assert_holds_all(place.path(), returned);
}

/// Each process prepares a segment ahead of use, and leaves it behind when it is killed.
#[test]
fn kills_leave_no_segments_behind() {
    let place = tempfile::tempdir().unwrap();
    create(place.path()).close().unwrap();
    let count = || std::fs::read_dir(journal(place.path())).unwrap().count();
    let mut counts = Vec::new();
    for _ in 0..8 {
        killed(place.path(), 1_500);
        counts.push(count());
    }
    // There is one segment with epochs for each process, and the spare segment of the last one.
    assert!(counts[7] <= 9, "{counts:?}");
}

/// A base whose pages are from several moments can still have the header of a closed pool.
#[test]
fn a_base_without_its_journal_is_suspect_until_it_was_verified() {
    let place = tempfile::tempdir().unwrap();
    left_by_a_kill(place.path());
    std::fs::remove_file(&working_files(place.path())[0]).unwrap();
    std::fs::remove_dir_all(journal(place.path())).unwrap();
    let accept = || {
        let options =
            PoolOptions::new().survive(outlast::Failure::ProcessDeath).accept_possibly_torn(true);
        // SAFETY: no one else uses the file.
        unsafe { options.open(place.path().join("a.pool")).unwrap() }
    };
    let pool = accept();
    assert!(pool.durability().is_suspect);
    assert!(matches!(pool.close(), Err(Error::Suspect)));
    let pool = accept();
    assert!(pool.durability().is_suspect, "still");
    pool.verify().unwrap().ensure_sound().unwrap();
    pool.close().unwrap();
}

/// Whichever call fails, a creation leaves a complete pool or nothing, and the next one succeeds, even while
/// another thread starts a program.
#[test]
fn a_creation_that_fails_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.pool");
    let mut failed = 0;
    for number in 0.. {
        let faulty = Arc::new(Faulty::default());
        faulty.fail_later(number, 5);
        faulty.forks.store(true, Ordering::SeqCst);
        let disk = Disk::watched(Arc::new(Watch(Arc::clone(&faulty))));
        // SAFETY: no one else uses the file.
        let created = unsafe { options(place.path()).disk(disk).create(&path) };
        if let Ok(pool) = created {
            faulty.fail(0, 0, None);
            pool.close().unwrap();
            break;
        }
        failed += 1;
        assert!(!path.exists(), "call {number}");
        assert_eq!(working_files(place.path()).len(), 0, "call {number}");
        let pool = create(place.path());
        insert(&pool, 0..10);
        pool.close().unwrap();
        std::fs::remove_file(&path).unwrap();
        // SAFETY: a child of this process.
        let child = unsafe { libc::waitpid(faulty.child.load(Ordering::SeqCst), &mut 0, 0) };
        assert!(child > 0);
    }
    assert!(failed > 10, "{failed} calls");
}

#[test]
fn a_base_that_was_cut_short_is_written_again() {
    let place = tempfile::tempdir().unwrap();
    // Only `close` makes a checkpoint.
    let journal = JournalOptions::new()
        .interval(Duration::MAX)
        .working_directory(place.path())
        .directory(place.path().join("journal"));
    // SAFETY: no one else uses the file.
    let pool = unsafe { PoolOptions::new().journal(journal).create(place.path().join("a.pool")) };
    let pool = pool.unwrap();
    insert(&pool, 0..20_000);
    pool.wait_durable().unwrap();
    let base = File::options().write(true).open(place.path().join("a.pool")).unwrap();
    // The journal makes the base longer ahead of the pool, at some time. It must not do so after the
    // next call.
    let start = Instant::now();
    while base.metadata().unwrap().len() < 16 << 20 {
        assert!(start.elapsed() < Duration::from_secs(60), "the base does not grow");
        std::thread::sleep(Duration::from_millis(1));
    }
    base.set_len(400_000).unwrap();
    insert(&pool, 20_000..21_000);
    // The first checkpoint notices that the base is too short, and fails. The next one writes all
    // pages of the base.
    assert!(pool.close().is_err());
    let pool = open(place.path()).unwrap();
    assert_holds(&pool, 0..21_000);
    pool.close().unwrap();
    assert_holds(&open(place.path()).unwrap(), 0..21_000);
}

#[test]
fn an_interval_can_be_for_ever() {
    let place = tempfile::tempdir().unwrap();
    let journal = JournalOptions::new().interval(Duration::MAX).working_directory(place.path());
    // SAFETY: no one else uses the file.
    let pool = unsafe { PoolOptions::new().journal(journal).create(place.path().join("a.pool")) };
    let pool = pool.unwrap();
    insert(&pool, 0..100);
    pool.wait_durable().unwrap();
    insert(&pool, 100..200);
    std::thread::sleep(Duration::from_millis(50));
    pool.wait_durable().unwrap();
    pool.close().unwrap();
}

/// Several threads grow the pool at the same time: those that need space, and the worker ahead of
/// use.
#[test]
fn a_pool_that_grows_in_many_threads_is_whole_on_the_disk() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    let values: Map<u64, [u8]> = pool.map("values").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (values, pool) = (&values, &pool);
            scope.spawn(move || {
                for number in 0..150 {
                    let key = thread << 32 | number;
                    values.put(&key, &vec![key as u8; 1 + (number as usize % 7) * 60_000]).unwrap();
                    if number % 50 == 49 {
                        pool.wait_durable().unwrap();
                    }
                }
            });
        }
    });
    pool.wait_durable().unwrap();
    let copied = copy(&pool, place.path());
    let pool = open(copied.path()).unwrap();
    pool.verify().unwrap().ensure_sound().unwrap();
    let values: Map<u64, [u8]> = pool.map("values").unwrap();
    assert_eq!(values.iter().count(), 600);
}

/// A snapshot has the id of its original, so the original's segments look like its own.
#[test]
fn a_copy_does_not_take_the_directory_of_its_original() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    insert(&pool, 0..10);
    let copied = place.path().join("b.pool");
    pool.snapshot(&copied).unwrap();
    pool.close().unwrap();
    let (returned, _) = killed(place.path(), 900);
    // SAFETY: no one else uses the file.
    let opened = unsafe { options(place.path()).open(&copied) };
    assert!(matches!(opened, Err(Error::Invalid { .. })), "{opened:?}");
    assert_holds_all(place.path(), returned);
}

/// A copy that was made while the pool was closed takes the pool's place after the pool was opened
/// again. The journal belongs to the pool, which is elsewhere now.
#[test]
fn an_older_copy_does_not_delete_the_journal_of_a_later_life() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    insert(&pool, 0..10);
    pool.close().unwrap();
    let at = |name: &str| place.path().join(name);
    std::fs::copy(at("a.pool"), at("copy.pool")).unwrap();
    let (_, durable) = killed(place.path(), 900);
    std::fs::remove_file(&working_files(place.path())[0]).unwrap();
    std::fs::rename(at("a.pool"), at("moved.pool")).unwrap();
    std::fs::rename(at("copy.pool"), at("a.pool")).unwrap();
    let opened = open(place.path());
    let refused = matches!(&opened, Err(Error::Invalid { why, .. }) if why.contains("later copy"));
    assert!(refused, "{opened:?}");
    std::fs::rename(at("moved.pool"), at("a.pool")).unwrap();
    assert_holds_all(place.path(), durable);
}

/// A pool that was closed with its working file goes on with the same life.
#[test]
fn an_older_copy_does_not_delete_the_journal_of_a_life_that_went_on() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let journal = JournalOptions::new()
        .working_directory(place.path())
        .directory(journal(place.path()))
        .keep_working_file(true);
    let options = PoolOptions::new().journal(journal);
    // SAFETY: no one else uses the file.
    let pool = unsafe { options.clone().create(at("a.pool")) }.unwrap();
    insert(&pool, 0..10);
    pool.close().unwrap();
    std::fs::copy(at("a.pool"), at("copy.pool")).unwrap();
    let (_, durable) = killed(place.path(), 900);
    std::fs::remove_file(&working_files(place.path())[0]).unwrap();
    std::fs::rename(at("a.pool"), at("moved.pool")).unwrap();
    std::fs::rename(at("copy.pool"), at("a.pool")).unwrap();
    assert!(matches!(open(place.path()), Err(Error::Invalid { .. })));
    std::fs::rename(at("moved.pool"), at("a.pool")).unwrap();
    assert_holds_all(place.path(), durable);
}

/// Holds the threads of the journal before they cut, as long as it is set.
struct NoTurns(AtomicBool);

impl DiskWatch for NoTurns {
    fn before(&self, _: Call, _: &File) -> Fate {
        Fate::Done
    }

    fn at(&self, moment: Moment) {
        while moment == Moment::Turn && self.0.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What an opening that was cut short has left is no obstacle: a segment of the life that it was to begin,
/// without an epoch.
#[test]
fn an_opening_that_was_cut_short_is_repeated() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    insert(&pool, 0..10);
    pool.close().unwrap();
    let closed = place.path().join("closed.pool");
    std::fs::copy(place.path().join("a.pool"), &closed).unwrap();
    let journal = journal(place.path());
    let waits = Arc::new(NoTurns(AtomicBool::new(true)));
    let watched = options(place.path()).disk(Disk::watched(waits.clone()));
    // SAFETY: no one else uses the file.
    let left = unsafe { watched.open(place.path().join("a.pool")).unwrap() };
    let names = || std::fs::read_dir(&journal).unwrap().map(|e| e.unwrap().path());
    let segments: Vec<_> = names().map(|path| (std::fs::read(&path).unwrap(), path)).collect();
    assert_eq!(segments.len(), 1);
    waits.0.store(false, Ordering::SeqCst);
    left.close().unwrap();
    std::fs::rename(closed, place.path().join("a.pool")).unwrap();
    segments.iter().for_each(|(bytes, path)| std::fs::write(path, bytes).unwrap());
    assert_holds(&open(place.path()).unwrap(), 0..10);
}

/// The number of calls after which [`dies`] ends.
const CALLS: &str = "OUTLAST_TEST_CALLS";

/// A child process that dies while it builds the working file of its pool.
#[test]
fn dies() {
    struct Dies(AtomicUsize);
    impl DiskWatch for Dies {
        fn before(&self, call: Call, _: &File) -> Fate {
            if call == Call::Fallocate && self.0.fetch_sub(1, Ordering::SeqCst) == 0 {
                std::process::abort();
            }
            Fate::Done
        }
    }
    let Some(place) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let Some(calls) = std::env::var(CALLS).ok().and_then(|calls| calls.parse().ok()) else {
        return;
    };
    let disk = Disk::watched(Arc::new(Dies(AtomicUsize::new(calls))));
    // SAFETY: no one else uses the file.
    let pool = unsafe { options(&place).disk(disk).open(place.join("a.pool")).unwrap() };
    pool.close().unwrap();
}

#[test]
fn a_working_file_that_was_not_finished_is_removed() {
    let place = tempfile::tempdir().unwrap();
    create(place.path()).close().unwrap();
    // In the first two calls, the file gets the pages in which it says what it belongs to.
    let mut left = 0;
    for calls in 2.. {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "places::dies", "--test-threads", "1"]);
        child.env(CHILD, place.path()).env(CALLS, calls.to_string());
        let survived = child.output().unwrap().status.success();
        left += working_files(place.path()).len();
        let pool = open(place.path()).unwrap();
        assert_eq!(working_files(place.path()).len(), 1, "after {calls} calls");
        pool.close().unwrap();
        assert!(working_files(place.path()).is_empty(), "after {calls} calls");
        if survived {
            break;
        }
    }
    assert!(left > 2, "only {left} files were left unfinished");
}

#[test]
fn the_journal_of_a_service_s_pool_stays_the_service_s_when_root_opens_it() {
    use std::os::unix::fs::{MetadataExt, chown};
    let place = tempfile::tempdir().unwrap();
    create(place.path()).close().unwrap();
    std::fs::remove_dir(journal(place.path())).unwrap();
    const SERVICE: u32 = 12_345;
    if chown(place.path().join("a.pool"), Some(SERVICE), Some(SERVICE)).is_err() {
        eprintln!("skipped: only root can give files to others");
        return;
    }
    killed(place.path(), 900);
    let owner = |path: &Path| path.metadata().unwrap().uid();
    assert_eq!(owner(&journal(place.path())), SERVICE);
    let segments = std::fs::read_dir(journal(place.path())).unwrap().map(|it| it.unwrap().path());
    let files = segments.chain(working_files(place.path()));
    let owners: Vec<u32> = files.map(|path| owner(&path)).collect();
    assert!(owners.len() > 1 && owners.iter().all(|&owner| owner == SERVICE), "{owners:?}");
}
