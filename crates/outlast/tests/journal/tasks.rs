//! Tasks that wait for durability.

use super::{assert_holds, copy, create, create_on_faulty_disk, map, open};
use outlast::{Error, NotOpen, Pool, PoolOptions};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Wakes a thread, and counts how often.
struct Unpark {
    thread: std::thread::Thread,
    times: AtomicUsize,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.thread.unpark();
    }
}

fn waker() -> (Arc<Unpark>, Waker) {
    let unpark = Unpark { thread: std::thread::current(), times: AtomicUsize::new(0) };
    let unpark = Arc::new(unpark);
    (Arc::clone(&unpark), Waker::from(unpark))
}

/// Runs a future to its end. Polls it only when it was woken.
fn run<T>(mut future: impl Future<Output = T> + Unpin) -> T {
    let (unpark, waker) = waker();
    let start = Instant::now();
    loop {
        let before = unpark.times.load(Ordering::Relaxed);
        if let Poll::Ready(done) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        while unpark.times.load(Ordering::Relaxed) == before {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody wakes the task");
            std::thread::park_timeout(Duration::from_secs(1));
        }
    }
}

fn put(pool: &Pool, key: u64) {
    assert!(map(pool).insert(&key, &(key * 3)).unwrap());
}

#[test]
fn what_a_task_waited_for_is_on_the_disk() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    for n in 0..20 {
        put(&pool, n);
        run(pool.durable()).unwrap();
        let copied = copy(&pool, place.path());
        // What a power loss leaves: no working file.
        let after = open(copied.path()).unwrap();
        assert_holds(&after, 0..n + 1);
        after.close().unwrap();
    }
    // Nothing has changed, so nothing is waited for.
    let epochs = || pool.stats().journal.unwrap().epochs;
    let before = epochs();
    run(pool.durable()).unwrap();
    assert_eq!(epochs(), before);
}

/// A thousand tasks and eight threads that wait at the same time, over an interval of an hour: they do not wait
/// for the interval, and share few writes.
#[test]
fn tasks_and_threads_share_a_write() {
    let place = tempfile::tempdir().unwrap();
    let journal = outlast::JournalOptions::new()
        .interval(Duration::from_secs(3_600))
        .working_directory(place.path());
    let options = PoolOptions::new().journal(journal);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.create(place.path().join("a.pool")).unwrap() };
    map(&pool);
    let epochs = || pool.stats().journal.unwrap().epochs;
    let before = epochs();
    std::thread::scope(|threads| {
        for n in 0..8 {
            let pool = &pool;
            threads.spawn(move || {
                put(pool, 10_000 + n);
                pool.wait_durable().unwrap();
            });
        }
        let mut tasks: Vec<_> = (0..1_000)
            .map(|n| {
                put(&pool, n);
                Some(pool.durable())
            })
            .collect();
        let (unpark, waker) = waker();
        let mut left = tasks.len();
        while left > 0 {
            let woken = unpark.times.load(Ordering::Relaxed);
            for task in &mut tasks {
                let mut context = Context::from_waker(&waker);
                if let Some(future) = task
                    && let Poll::Ready(done) = Pin::new(future).poll(&mut context)
                {
                    done.unwrap();
                    *task = None;
                    left -= 1;
                }
            }
            while left > 0 && unpark.times.load(Ordering::Relaxed) == woken {
                std::thread::park_timeout(Duration::from_secs(1));
            }
        }
    });
    assert!(epochs() - before <= 40, "{} writes", epochs() - before);
}

#[test]
fn a_task_learns_that_the_pool_was_closed() {
    let place = tempfile::tempdir().unwrap();
    let pool = create(place.path());
    put(&pool, 1);
    let waits = pool.durable();
    pool.clone().close().unwrap();
    // Closing has made it durable; the handle is of no use any more.
    let done = run(waits);
    assert!(matches!(done, Ok(()) | Err(Error::NotOpen(NotOpen::Closed))), "{done:?}");
    assert!(matches!(run(pool.durable()), Err(Error::NotOpen(_))));
    drop(open(place.path()).unwrap());
    let memory = PoolOptions::new().anonymous().unwrap();
    assert!(matches!(run(memory.durable()), Err(Error::Invalid { .. })));
}

/// While the disk fails, tasks get an error after two attempts, and the journal's thread does not spin.
#[test]
fn a_disk_that_fails_fails_the_task() {
    let place = tempfile::tempdir().unwrap();
    let (pool, faulty) = create_on_faulty_disk(place.path());
    put(&pool, 1);
    run(pool.durable()).unwrap();
    faulty.fail(usize::MAX, libc::EIO, None);
    put(&pool, 2);
    let failed = run(pool.durable());
    assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    let failures = pool.stats().journal.unwrap().failures;
    assert!((2..50).contains(&failures), "{failures} attempts");
    faulty.fail(0, 0, None);
    run(pool.durable()).or_else(|_| run(pool.durable())).unwrap();
    let copied = copy(&pool, place.path());
    assert_holds(&open(copied.path()).unwrap(), 1..3);
}
