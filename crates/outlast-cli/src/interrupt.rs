//! SIGINT (Ctrl-C), SIGTERM and SIGHUP, for commands that have something to clean up.

use crate::failure::{Failure, INTERRUPTED};
use crate::open;
use outlast::Pool;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// From now on, the process records these signals instead of being killed by them.
pub(crate) fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is allowed in a handler.
        unsafe { libc::signal(signal, note as *const () as libc::sighandler_t) };
    }
}

/// What a command has done so far. It is locked while the command does more.
pub(crate) type Done<T> = Arc<Mutex<T>>;

/// From now on, such a signal closes the pool and ends the process, whatever the process is waiting
/// for. `told` says what the command has done by then.
pub(crate) fn close<T: Send + 'static>(
    pool: &Pool,
    done: &Done<T>,
    told: impl Fn(&T) -> String + Send + 'static,
) {
    listen();
    let (pool, done) = (pool.clone(), Arc::clone(done));
    std::thread::spawn(move || {
        while !is_asked() {
            std::thread::sleep(Duration::from_millis(20));
        }
        // From here on, the command does nothing more.
        let done = lock(&done);
        let closed = open::close_now(pool);
        let interrupted = Failure::Interrupted.message().to_owned();
        let but = closed.err().map_or_else(String::new, |e| format!("; then: {}", e.message()));
        eprintln!("outlast: {interrupted}; {}{but}", told(&done));
        std::process::exit(INTERRUPTED.into());
    });
}

/// Locks what a command that [`close`] watches has done, so that it can do more, or end. As long as
/// the result is held, no signal ends the process. If there was one already, this does not return:
/// the thread of [`close`] ends the process.
pub(crate) fn go_on<T>(done: &Done<T>) -> MutexGuard<'_, T> {
    let locked = lock(done);
    if !is_asked() {
        return locked;
    }
    drop(locked);
    loop {
        std::thread::park();
    }
}

fn lock<T>(done: &Done<T>) -> MutexGuard<'_, T> {
    done.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether there was such a signal.
pub(crate) fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Fails if there was such a signal.
pub(crate) fn check() -> Result<(), Failure> {
    if is_asked() { Err(Failure::Interrupted) } else { Ok(()) }
}
