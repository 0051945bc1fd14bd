//! A disk whose calls fail.

use super::*;

/// A disk that can be told to fail, or to hang.
#[derive(Default)]
pub(super) struct Faulty {
    /// How many calls succeed before the next ones fail.
    pub(super) before: AtomicUsize,
    /// How many of the next calls fail.
    pub(super) failing: AtomicUsize,
    pub(super) errno: AtomicI32,
    /// Whether only calls of this kind fail.
    pub(super) only: Mutex<Option<Call>>,
    pub(super) hangs: AtomicBool,
    /// Whether the next call that fails leaves a copy of this process for a moment, as there is one while a
    /// thread starts a program.
    pub(super) forks: AtomicBool,
    /// That copy.
    pub(super) child: AtomicI32,
}

impl Faulty {
    pub(super) fn fail(&self, times: usize, errno: i32, only: Option<Call>) {
        *self.only.lock().unwrap() = only;
        self.errno.store(errno, Ordering::SeqCst);
        self.failing.store(times, Ordering::SeqCst);
    }

    /// Makes all calls fail after this many.
    pub(super) fn fail_later(&self, calls: usize, errno: i32) {
        self.before.store(calls, Ordering::SeqCst);
        self.fail(usize::MAX, errno, None);
    }
}

pub(super) struct Watch(pub(super) Arc<Faulty>);

impl DiskWatch for Watch {
    fn before(&self, call: Call, _: &File) -> Fate {
        while self.0.hangs.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The working file is in memory by default, so its write-back fails only if a test says so.
        let only = *self.0.only.lock().unwrap();
        if only.map_or(call == Call::WriteBack, |only| only != call) {
            return Fate::Done;
        }
        let less = |left: usize| left.checked_sub(1);
        if self.0.before.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            return Fate::Done;
        }
        match self.0.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => {
                if self.0.forks.swap(false, Ordering::SeqCst) {
                    self.0.child.store(fork_for(Duration::from_millis(20)), Ordering::SeqCst);
                }
                Fate::Fails(self.0.errno.load(Ordering::SeqCst))
            }
            Err(_) => Fate::Done,
        }
    }
}

/// Starts a copy of this process that does nothing for some time, and returns its number.
fn fork_for(time: Duration) -> i32 {
    // SAFETY: the child makes system calls only.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::usleep(time.as_micros() as u32);
            libc::_exit(0);
        }
        child
    }
}
