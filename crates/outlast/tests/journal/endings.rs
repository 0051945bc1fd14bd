//! The end of a journaled pool while its background threads are in the middle of something.

use super::*;
use outlast::internals::pmem::Moment;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Holds the first background thread that comes to a moment, until it is told to go on.
struct Holds {
    moment: Moment,
    /// Says that the thread is held.
    held: Mutex<Option<Sender<()>>>,
    /// Lets it go on.
    released: Mutex<Option<Receiver<()>>>,
}

impl DiskWatch for Holds {
    fn before(&self, _: Call, _: &File) -> Fate {
        Fate::Done
    }

    fn at(&self, moment: Moment) {
        // The thread that closes the pool passes the same moments as those of the journal.
        let is_background =
            std::thread::current().name().is_some_and(|name| name.starts_with("outlast"));
        if moment == self.moment
            && is_background
            && let Some(held) = self.held.lock().unwrap().take()
        {
            held.send(()).unwrap();
            let _ = self.released.lock().unwrap().take().unwrap().recv();
        }
    }
}

/// Creates a pool whose checkpoints are always due. Returns it with the thread that is to be held:
/// the receiver gets a message once it is, and the sender lets it go on.
fn pool_that_holds(place: &Path, moment: Moment) -> (Pool, Receiver<()>, Sender<()>) {
    let ((held, is_held), (release, released)) = (channel(), channel());
    let (held, released) = (Mutex::new(Some(held)), Mutex::new(Some(released)));
    let journal = JournalOptions::new()
        .interval(Duration::from_millis(1))
        .limit(1)
        .working_directory(place)
        .directory(place.join("journal"));
    let options = PoolOptions::new().trim_after(Duration::ZERO).journal(journal);
    let options = options.disk(Disk::watched(Arc::new(Holds { moment, held, released })));
    // SAFETY: no one else uses the file.
    let pool = unsafe { options.create(place.join("a.pool")).unwrap() };
    (pool, is_held, release)
}

/// Ends a pool with each of its background threads held at each moment, until `end` has returned or
/// waits for that thread.
fn end_at_each_moment(end: impl Fn(Pool) + Copy + Send + Sync) {
    for moment in Moment::OF_JOURNAL {
        let place = tempfile::tempdir().unwrap();
        let (pool, is_held, release) = pool_that_holds(place.path(), moment);
        insert(&pool, 0..10);
        let mut count = 10;
        while is_held.try_recv().is_err() {
            insert(&pool, count..count + 10);
            count += 10;
        }
        let (done, is_done) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                end(pool);
                let _ = done.send(());
            });
            let _ = is_done.recv_timeout(Duration::from_millis(30));
            release.send(()).unwrap();
        });
        let pool = open(place.path());
        let pool = pool.unwrap_or_else(|error| panic!("{moment:?}, {count} records: {error}"));
        assert_holds(&pool, 0..count);
    }
}

#[test]
fn a_pool_that_is_closed_beside_any_background_step_opens_again() {
    end_at_each_moment(|pool| pool.close().unwrap());
}

#[test]
fn a_pool_that_is_dropped_beside_any_background_step_opens_again() {
    end_at_each_moment(drop);
}

#[test]
fn a_pool_that_is_synced_and_copied_beside_any_background_step_opens_again() {
    end_at_each_moment(|pool| {
        pool.sync().unwrap();
        let copy = tempfile::tempdir().unwrap();
        let path = copy.path().join("copy");
        pool.snapshot(&path).unwrap();
        // SAFETY: no one else uses the file.
        let read = unsafe { PoolOptions::new().open_read_only(&path).unwrap() };
        read.verify().unwrap().ensure_sound().unwrap();
        assert_eq!(map(&read).len().unwrap(), map(&pool).len().unwrap());
        pool.close().unwrap();
    });
}
