//! Backups: of a journaled pool while another process works on it or after that process has died,
//! of closed pools with and without a journal, and backups that must be refused.

use outlast::{Error, JournalOptions, Map, Pool, PoolOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The number of threads of the process that writes.
const THREADS: usize = 2;
/// The number of records of each thread in the map `ring`. The thread replaces them one after
/// another, round after round.
const RING: u64 = 1_000;
/// Each thread adds a record every time it has done this many operations.
const GROWS: u64 = 64;

/// Returns options with which checkpoints follow each other closely.
fn options(place: &Path) -> PoolOptions {
    let journal = JournalOptions::new()
        .interval(Duration::from_millis(1))
        .working_directory(place)
        .directory(place.join("journal"))
        .limit(2 << 20);
    PoolOptions::new().journal(journal)
}

fn create(place: &Path) -> Pool {
    // SAFETY: no one else uses the file.
    unsafe { options(place).create(place.join("a.pool")).unwrap() }
}

fn open(place: &Path) -> Pool {
    // SAFETY: no one else uses the file.
    unsafe { options(place).open(place.join("a.pool")).unwrap() }
}

fn backup(place: &Path, to: &Path) -> outlast::Result<outlast::Backup> {
    // SAFETY: the library alone writes the file.
    unsafe { options(place).backup(place.join("a.pool"), to) }
}

/// Opens a backup, which must be a clean pool without a journal.
fn opened(path: &Path) -> Pool {
    let copied = path.with_extension("copied");
    // Open a copy of it: a copy of a pool that is not clean is refused.
    std::fs::copy(path, &copied).unwrap();
    assert!(PoolOptions::new().facts(&copied).unwrap().journal.is_none());
    // SAFETY: no one else uses the file.
    let pool = unsafe { PoolOptions::new().open(copied).unwrap() };
    pool.verify().unwrap().ensure_sound().unwrap();
    pool
}

fn map(pool: &Pool, name: &str) -> Map<u64, u64> {
    pool.map(name).unwrap()
}

fn key(thread: usize, number: u64) -> u64 {
    (thread as u64) << 32 | number
}

/// Does operation `n` of a thread.
fn step(ring: &Map<u64, u64>, grown: &Map<u64, u64>, thread: usize, n: u64) {
    ring.put(&key(thread, n % RING), &n).unwrap();
    if n.is_multiple_of(GROWS) {
        assert!(grown.insert(&key(thread, n / GROWS), &n).unwrap());
    }
}

/// Checks that the pool holds the effects of a thread's first operations and nothing else, except
/// perhaps the first half of the next operation. Returns the number of these operations.
fn prefix_of(pool: &Pool, thread: usize) -> u64 {
    let (ring, grown) = (map(pool, "ring"), map(pool, "grown"));
    let found: Vec<_> = (0..RING).map(|at| ring.get(&key(thread, at)).unwrap()).collect();
    let Some(&Some(last)) = found.iter().max() else { return 0 };
    for (at, found) in (0..).zip(found) {
        let expected = (at <= last).then(|| last - (last - at) % RING);
        assert_eq!(
            found, expected,
            "record {at} of thread {thread}, whose last operation is {last}"
        );
    }
    let whole = (0..).take_while(|&n| grown.get(&key(thread, n)).unwrap() == Some(n * GROWS));
    let count = whole.count() as u64;
    let all = last / GROWS + 1;
    assert!(
        count == all || (last.is_multiple_of(GROWS) && count + 1 == all),
        "{count} of {all}, {last}"
    );
    let ours = grown.iter().filter(|record| record.as_ref().unwrap().0 >> 32 == thread as u64);
    assert_eq!(ours.count() as u64, count);
    if count == all { last + 1 } else { last }
}

/// The path for a child process of one of the tests.
const CHILD: &str = "OUTLAST_TEST_CHILD";

/// The child process: each thread continues its operations after the last one in the pool, and
/// reports which are durable.
#[test]
fn child() {
    let Some(place) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let pool = open(&place);
    let (ring, grown) = (map(&pool, "ring"), map(&pool, "grown"));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, ring, grown) = (&pool, &ring, &grown);
            scope.spawn(move || {
                for n in prefix_of(pool, thread).. {
                    step(ring, grown, thread, n);
                    if n.is_multiple_of(2_048) {
                        pool.wait_durable().unwrap();
                        println!("\ndurable {thread} {n}");
                    }
                }
            });
        }
    });
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(place: &Path) -> (Killed, impl BufRead + use<>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "backup::child", "--nocapture", "--test-threads", "1"])
        .env(CHILD, place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    (Killed(child), said)
}

/// Records the operations that the child reports as durable, until the child has ended.
fn listen(said: impl BufRead, durable: &[AtomicU64; THREADS]) {
    for line in said.lines().map(Result::unwrap) {
        let words: Vec<_> = line.split(' ').collect();
        if let ["durable", thread, n] = words[..] {
            let thread: usize = thread.parse().unwrap();
            durable[thread].store(n.parse::<u64>().unwrap() + 1, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_backup_of_a_running_pool_holds_what_was_durable_and_lies_between_operations() {
    let place = tempfile::tempdir().unwrap();
    create(place.path()).close().unwrap();
    let durable = <[AtomicU64; THREADS]>::default();
    let (mut backups, mut epochs, mut attempts) = (0, 0, 0);
    for kill in 0..3 {
        let (child, said) = start(place.path());
        std::thread::scope(|scope| {
            scope.spawn(|| listen(said, &durable));
            let begin = Instant::now();
            let counts = || durable.each_ref().map(|count| count.load(Ordering::SeqCst));
            let before = counts();
            while counts() == before {
                assert!(begin.elapsed() < Duration::from_secs(120), "nothing becomes durable");
                std::thread::sleep(Duration::from_millis(5));
            }
            for _ in 0..12 {
                let before = counts();
                let to = place.path().join("b.pool");
                let done = backup(place.path(), &to).unwrap();
                assert!(done.in_use, "the child has it");
                let copy = opened(&to);
                assert_eq!(copy.stats().size, done.bytes);
                for (thread, before) in before.into_iter().enumerate() {
                    let held = prefix_of(&copy, thread);
                    assert!(held >= before, "{held} of thread {thread}, durable were {before}");
                }
                backups += 1;
                epochs += done.epochs;
                attempts += done.attempts;
            }
            drop(child);
        });
        if kill == 1 {
            // As after a power loss.
            std::fs::remove_file(&working_files(place.path())[0]).unwrap();
        }
    }
    assert!(epochs > backups, "{epochs} epochs in {backups} backups");
    eprintln!("{backups} backups, {epochs} epochs, {attempts} attempts");
}

fn working_files(place: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "working")).collect()
}

#[test]
fn the_files_of_a_process_that_died_are_backed_up() {
    let place = tempfile::tempdir().unwrap();
    create(place.path()).close().unwrap();
    let (child, said) = start(place.path());
    let durable = <[AtomicU64; THREADS]>::default();
    std::thread::scope(|scope| {
        scope.spawn(|| listen(said, &durable));
        while durable.iter().any(|count| count.load(Ordering::SeqCst) < 10_000) {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(child);
    });
    let least = durable.each_ref().map(|count| count.load(Ordering::SeqCst));
    let held = |to: &Path| {
        let copy = opened(to);
        [0, 1].map(|thread| prefix_of(&copy, thread))
    };
    // With the working file, the backup has everything; without it, what was durable.
    let to = place.path().join("b.pool");
    assert!(!backup(place.path(), &to).unwrap().in_use);
    let all = held(&to);
    std::fs::remove_file(&working_files(place.path())[0]).unwrap();
    let base = std::fs::read(place.path().join("a.pool")).unwrap();
    assert!(!backup(place.path(), &to).unwrap().in_use);
    assert!(std::fs::read(place.path().join("a.pool")).unwrap() == base, "nothing was written");
    let rebuilt = held(&to);
    for thread in 0..THREADS {
        assert!(all[thread] >= rebuilt[thread] && rebuilt[thread] >= least[thread]);
    }
    let pool = open(place.path());
    assert_eq!([0, 1].map(|thread| prefix_of(&pool, thread)), rebuilt, "as a rebuild makes it");
    pool.close().unwrap();
    assert!(!backup(place.path(), &to).unwrap().in_use);
    assert_eq!(held(&to), rebuilt);
}

#[test]
fn a_pool_without_a_journal_is_copied_when_it_is_closed() {
    let place = tempfile::tempdir().unwrap();
    let (path, to) = (place.path().join("a.pool"), place.path().join("b.pool"));
    // SAFETY: no one else uses the file.
    let pool = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(&path).unwrap()
    };
    map(&pool, "ring").insert(&1, &2).unwrap();
    assert!(matches!(backup(place.path(), &to), Err(Error::NoJournal { .. })));
    assert!(!to.exists());
    pool.close().unwrap();
    assert!(!backup(place.path(), &to).unwrap().in_use);
    assert_eq!(map(&opened(&to), "ring").get(&1).unwrap(), Some(2));
}

#[test]
fn a_copy_of_a_closed_pool_with_a_journal_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let pool = create(dir.path());
    assert!(map(&pool, "m").insert(&1, &2).unwrap());
    pool.close().unwrap();
    let copies = ["backup.pool", "snapshot.pool"].map(|name| dir.path().join(name));
    assert!(!backup(dir.path(), &copies[0]).unwrap().in_use);
    // SAFETY: no one else uses the file.
    let pool = unsafe { options(dir.path()).open_read_only(dir.path().join("a.pool")).unwrap() };
    pool.snapshot(&copies[1]).unwrap();
    for copy in copies {
        assert_eq!(map(&opened(&copy), "m").get(&1).unwrap(), Some(2));
    }
}

#[test]
fn a_backup_replaces_neither_its_pool_nor_one_that_is_open() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    let own = backup(place.path(), &place.path().join("a.pool"));
    assert!(matches!(own, Err(Error::Invalid { .. })), "{own:?}");
    let other = place.path().join("c.pool");
    // SAFETY: no one else uses the file.
    let open = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(&other).unwrap()
    };
    assert!(matches!(backup(place.path(), &other), Err(Error::Locked { .. })));
    open.close().unwrap();
    // A file that a process left unfinished when it died is removed.
    let unfinished = place.path().join(".outlast-0123456789abcdef.snapshot");
    std::fs::write(&unfinished, "half of it").unwrap();
    map(&pool, "ring").insert(&1, &2).unwrap();
    pool.wait_durable().unwrap();
    assert!(backup(place.path(), &other).unwrap().in_use);
    assert!(!unfinished.exists());
    assert_eq!(map(&opened(&other), "ring").get(&1).unwrap(), Some(2));
    pool.close().unwrap();
}

#[test]
fn a_journal_that_lacks_something_is_told() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    map(&pool, "ring").insert(&1, &2).unwrap();
    pool.wait_durable().unwrap();
    let copied = tempfile::tempdir().unwrap();
    let to = copied.path().join("b.pool");
    std::fs::copy(place.path().join("a.pool"), copied.path().join("a.pool")).unwrap();
    let missing = backup(copied.path(), &to);
    assert!(matches!(missing, Err(Error::Invalid { .. })), "{missing:?}");
    std::fs::create_dir(copied.path().join("journal")).unwrap();
    let empty = backup(copied.path(), &to);
    assert!(matches!(empty, Err(Error::IncompleteJournal { .. })), "{empty:?}");
    assert!(!to.exists());
}
