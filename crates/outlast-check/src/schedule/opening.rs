//! The pool of a run, which threads close and open again.

use super::act::{Act, MAP};
use super::workload::Instance;
use crate::session::open_beside;
use outlast::internals::db::store::{OpenMap, Store};
use outlast::internals::pmem::{Alive, Seam, Traced};
use outlast::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// How many turns a thread that reopens the pool waits for another thread to close it.
const TURNS: u32 = 100;

/// One opening of the pool, with everything that each process has for itself.
pub(super) struct Opened {
    pub(super) store: Arc<Store<Traced>>,
    pub(super) map: Arc<OpenMap>,
}

/// The pool of a run.
///
/// `close` gives up the file's lock even if references, iterations and lookups of the closed pool
/// still exist. These keep the pool's mapping, but not its lock. So the next opener does not wait
/// for them, and shares the memory with them. A run imitates that: each opening has its own mapping
/// of the same memory and its own DRAM, and must take the lock, which the previous opening gives up
/// when it is closed.
pub(super) struct Pool<'r> {
    seam: Traced,
    alive: &'r Arc<Alive>,
    current: Mutex<Arc<Opened>>,
    /// How many reopenings are left in the scripts.
    left: AtomicUsize,
}

impl<'r> Pool<'r> {
    /// Makes the pool of a run as it is when the threads begin.
    pub(super) fn new(
        opened: Opened,
        instance: &Instance,
        seam: Traced,
        alive: &'r Arc<Alive>,
    ) -> Self {
        let acts = instance.scripts.iter().flatten();
        let left = AtomicUsize::new(acts.filter(|act| **act == Act::Reopen).count());
        Pool { seam, alive, current: Mutex::new(Arc::new(opened)), left }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Opened>> {
        // This never blocks a scheduled thread, because no thread holds the lock at a scheduling
        // point.
        self.current.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the latest opening.
    pub(super) fn now(&self) -> Arc<Opened> {
        Arc::clone(&self.lock())
    }

    /// Opens the pool again once another thread has closed it. If none does so in time, the pool's
    /// lock refuses this opener like any second one, and nothing changes.
    pub(super) fn reopen(&self) -> Result<()> {
        let mut turn = 0;
        let opened = loop {
            match open_beside(&self.now().store, self.seam.clone(), self.alive) {
                Err(Error::Locked { .. }) if turn < TURNS => self.seam.wait(&mut turn),
                Err(Error::Locked { .. }) => break Ok(()),
                Err(error) => break Err(error),
                Ok(store) => {
                    break store.open_map(MAP).map(|map| {
                        *self.lock() = Arc::new(Opened { store, map });
                    });
                }
            }
        };
        self.left.fetch_sub(1, Ordering::Relaxed);
        opened
    }

    /// Waits for the opening that replaces `closed`, and returns it. Returns `None` if no thread
    /// will open the pool again.
    pub(super) fn after(&self, closed: &Arc<Opened>) -> Option<Arc<Opened>> {
        let mut turn = 0;
        loop {
            let now = self.now();
            if !Arc::ptr_eq(&now, closed) {
                return Some(now);
            }
            if self.left.load(Ordering::Relaxed) == 0 {
                return None;
            }
            self.seam.wait(&mut turn);
        }
    }
}
