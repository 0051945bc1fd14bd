//! The threads of a journal.

use crate::db::store::Store;
use crate::error::{Error, Result};
use crate::journal::running::{Journal, Source};
use crate::pmem::Real;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The threads of a journal.
pub(in crate::layers::db) struct JournalThreads {
    journal: Arc<Journal>,
    threads: Vec<JoinHandle<()>>,
}

impl JournalThreads {
    /// Starts the threads, if the pool has a journal.
    pub(in crate::layers::db) fn start(store: &Store<Real>) -> Result<Option<JournalThreads>> {
        let Some(journal) = store.core().journal().cloned() else { return Ok(None) };
        let mut started = JournalThreads { journal, threads: Vec::new() };
        for (name, run, nice) in [
            ("outlast-journal", Journal::run as fn(&Journal, &dyn Source), 0),
            // Checkpoints must not take the processor from a cut, which holds writers back.
            ("outlast-base", Journal::run_checkpoints, 10),
        ] {
            let (core, journal) = (Arc::clone(store.core()), Arc::clone(&started.journal));
            started.journal.expect();
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
                // On Linux, this affects only the calling thread. If the system refuses, the thread
                // runs at normal priority.
                let _ = rustix::process::nice(nice);
                run(&journal, &*core);
            });
            match thread {
                Ok(thread) => started.threads.push(thread),
                Err(error) => {
                    started.journal.unexpect();
                    return Err(Error::io("starting a thread of the journal", error));
                }
            }
        }
        Ok(Some(started))
    }

    /// Gives up the handles in a forked child, where the threads do not exist.
    pub(in crate::layers::db) fn forget(mut self) {
        std::mem::take(&mut self.threads).into_iter().for_each(std::mem::forget);
    }
}

impl Drop for JournalThreads {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.journal.shut(false);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
