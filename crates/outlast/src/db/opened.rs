//! A pool that is open: its store, and the threads that work for it.

use super::journal::JournalThreads;
use super::store::Store;
use super::worker::Worker;
use crate::error::{Error, Result};
use crate::pmem::Real;
use std::fs::File;
use std::sync::Arc;

/// A store and its background thread. Dropping it closes the pool.
pub(crate) struct Guarded {
    pub(super) store: Arc<Store<Real>>,
    pub(super) worker: Option<Worker>,
    journal: Option<JournalThreads>,
    /// In a read-only pool whose working file is mapped: the base, which is locked too.
    pub(super) locked: Option<File>,
}

impl Guarded {
    /// Starts the threads of the journal, if there is one.
    pub(super) fn new(
        store: Arc<Store<Real>>,
        worker: Option<Worker>,
        locked: Option<File>,
    ) -> Result<Arc<Self>> {
        let journal = JournalThreads::start(&store)?;
        Ok(Arc::new(Guarded { store, worker, journal, locked }))
    }

    pub(super) fn close(&self) -> Result<()> {
        let closed = self.store.close();
        if let Some(file) = &self.locked {
            // Closing the file is not enough; see `Backing::unlock`.
            let _ = crate::pmem::flock(file, rustix::fs::FlockOperation::Unlock);
        }
        closed
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if !self.store.is_here() {
            // In a forked child, the pool, its thread and its lock belong to the parent.
            if let Some(worker) = self.worker.take() {
                worker.forget();
            }
            if let Some(journal) = self.journal.take() {
                journal.forget();
            }
            return;
        }
        self.worker = None;
        match self.close() {
            Ok(()) | Err(Error::NotOpen(_)) => {}
            Err(error) => tracing::warn!(%error, "closing the pool"),
        }
    }
}
