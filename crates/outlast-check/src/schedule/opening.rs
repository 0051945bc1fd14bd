//! The pool of a run, which its threads close and open again.

use super::act::{Act, MAP};
use super::workload::Instance;
use crate::session::open_beside;
use outlast::db::store::{OpenMap, Store};
use outlast::pmem::{Alive, Seam, Traced};
use outlast::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Turns for which a thread that opens the pool again waits for somebody to close it.
const TURNS: u32 = 100;

/// One opening of the pool: what a process gets of it.
pub(super) struct Opened {
    pub(super) store: Arc<Store<Traced>>,
    pub(super) map: Arc<OpenMap>,
}

/// The pool of a run.
///
/// `close` gives the file's lock up while references, iterations and lookups of the closed pool
/// are still there: they keep its mapping and not its lock. So an opener need not wait for them,
/// and they share the memory with everything that it does. The same holds here: each opening has
/// a mapping of the one memory, its own DRAM beside it, and the lock.
pub(super) struct Pool<'r> {
    seam: Traced,
    alive: &'r Arc<Alive>,
    current: Mutex<Arc<Opened>>,
    /// Reopenings that the scripts have left.
    left: AtomicUsize,
}

impl<'r> Pool<'r> {
    /// The pool as it is when the threads begin.
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
        // Never held at a scheduling point.
        self.current.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The latest opening.
    pub(super) fn now(&self) -> Arc<Opened> {
        Arc::clone(&self.lock())
    }

    /// Opens the pool again, once somebody has closed it. If nobody does, that fails as it does
    /// for a second opener, and nothing has happened.
    pub(super) fn reopen(&self) -> Result<()> {
        let mut turn = 0;
        let opened = loop {
            match open_beside(&self.now().store, self.seam.clone(), self.alive) {
                Err(Error::Locked) if turn < TURNS => self.seam.wait(&mut turn),
                Err(Error::Locked) => break Ok(()),
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

    /// The opening after this one, which was closed; `None` if there will be none.
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
