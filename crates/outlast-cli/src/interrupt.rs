//! SIGINT (Ctrl-C), SIGTERM and SIGHUP, for commands that have something to clean up.

use crate::failure::{Failure, INTERRUPTED};
use crate::open;
use outlast::Pool;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// From now on, such a signal closes the pool and ends the process, whatever the process is waiting
/// for.
pub(crate) fn close(pool: &Pool) {
    listen();
    let pool = pool.clone();
    std::thread::spawn(move || {
        while !ASKED.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Operations under way finish first; later ones find the pool closed.
        let closed = open::close_now(pool);
        let failure = closed.err().unwrap_or(Failure::Interrupted);
        eprintln!("outlast: {}", failure.message());
        std::process::exit(INTERRUPTED.into());
    });
}

/// If there was such a signal, waits for the thread of [`close`] to end the process. Called after
/// an operation failed, because it may have failed only because that thread closed the pool.
pub(crate) fn wait_if_asked() {
    while ASKED.load(Ordering::Relaxed) {
        std::thread::park();
    }
}

/// Fails if there was such a signal.
pub(crate) fn check() -> Result<(), Failure> {
    if ASKED.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
}
