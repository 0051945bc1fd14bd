//! Closing pools when the process is asked to end.

use super::handle::Pool;
use super::opened::Guarded;
use crate::error::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Whether a signal has come, and the thread that waits for it closes the pools and ends the process.
static ENDING: AtomicBool = AtomicBool::new(false);

/// The pools to close, if the thread that waits for signals runs.
static POOLS: Mutex<Option<Vec<Weak<Guarded>>>> = Mutex::new(None);

impl Pool {
    /// Closes this pool when the process gets SIGTERM or SIGINT, and then lets the signal end the
    /// process. Several pools are closed one after the other. This needs the feature `signals`.
    ///
    /// A pool on an ordinary file that is not closed opens again after the process has died, but not
    /// after the machine was restarted, unless it has a journal or its last changes were synced. So
    /// without a journal, a service has to close its pool before it ends: with this method, or with a
    /// handler of its own that calls [`close`](Pool::close).
    ///
    /// Calls that other threads make meanwhile complete, or fail with [`Error::NotOpen`]. If that, or anything
    /// else, makes the program return from `main` or call [`exit`](std::process::exit), the end of the process
    /// waits until the pools are closed, and is the signal's. Nothing else of the process is waited for.
    ///
    /// ```no_run
    /// # fn main() -> outlast::Result<()> {
    /// // SAFETY: nobody else writes this file while the pool is open.
    /// let pool = unsafe { outlast::PoolOptions::new().open_or_create("service.pool")? };
    /// pool.close_on_signals()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] if the handlers cannot be installed, or the thread that waits cannot be started.
    pub fn close_on_signals(&self) -> Result<()> {
        let io = |error| Error::io("waiting for signals", error);
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        if pools.is_none() {
            let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(io)?;
            let wait = move || {
                if let Some(signal) = signals.forever().next() {
                    ENDING.store(true, Ordering::SeqCst);
                    close_all();
                    let _ = emulate_default_handler(signal);
                }
            };
            std::thread::Builder::new().name("outlast-signals".into()).spawn(wait).map_err(io)?;
            // SAFETY: the function is of the right type, and stays: the library is not unloaded.
            unsafe { libc::atexit(wait_for_signal) };
        }
        let pools = pools.get_or_insert_default();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(self.guarded()));
        Ok(())
    }
}

/// Keeps a thread that ends the process from doing so while the pools are being closed. The signal ends it.
extern "C" fn wait_for_signal() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn close_all() {
    let pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    for pool in pools.iter().flatten().filter_map(Weak::upgrade) {
        match Pool::new(pool).close() {
            Ok(()) | Err(Error::NotOpen(_)) => {}
            Err(error) => tracing::warn!(%error, "closing a pool after a signal"),
        }
    }
}
