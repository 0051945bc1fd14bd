//! The background thread of a pool: reclaim after a crash, growth ahead of use, first
//! touches of new pages, large pages.

use super::store::Store;
use crate::error::{Error, Result};
use crate::pmem::{MediumKind, Real};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks for work, where nobody asks for it.
const PAUSE: Duration = Duration::from_secs(1);
/// A large page.
const HUGE: u64 = 2 << 20;
/// Bytes ahead of the frontier that are touched first by this thread.
const AHEAD: u64 = 64 << 20;

pub(super) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn start(store: &Arc<Store<Real>>) -> Result<Worker> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let weak = Arc::downgrade(store);
        let thread = std::thread::Builder::new()
            .name("outlast".into())
            .spawn(move || run(&weak, &told))
            .map_err(|e| Error::io("starting the background thread", e))?;
        store.core().set_worker(thread.thread().clone());
        Ok(Worker { stop, thread: Some(thread) })
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// In a forked child, where the thread does not exist.
    pub(super) fn forget(mut self) {
        std::mem::forget(self.thread.take());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
        // The thread itself may be the last to hold the store, never the worker.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn run(store: &Weak<Store<Real>>, stop: &AtomicBool) {
    let mut pages = Pages::default();
    while !stop.load(Ordering::Relaxed) {
        let Some(store) = store.upgrade() else { return };
        let more = match store.step() {
            Ok(more) => more,
            Err(Error::NotOpen(_)) => return,
            Err(error) => {
                tracing::debug!(%error, "background step");
                false
            }
        };
        let more = pages.step(&store) || more;
        drop(store);
        if !more {
            std::thread::park_timeout(PAUSE);
        }
    }
}

/// Touches pages before operations do, which saves them a page fault each, and asks for
/// large pages where that is possible.
#[derive(Default)]
struct Pages {
    touched: u64,
    /// Large pages refused, one after the other.
    refusals: u32,
}

/// A large page can be refused for the moment, because its pages are in use; a file
/// system that has none refuses all.
const REFUSALS_MAX: u32 = 16;

impl Pages {
    fn step(&mut self, store: &Store<Real>) -> bool {
        let core = store.core();
        let Some(mapping) = core.backing().mapping() else { return false };
        if mapping.medium() == MediumKind::Bytes {
            // Nothing is gained by touching memory that may never be used.
            return false;
        }
        let len = core.memory.len();
        let frontier = core.geometry.offset_of(core.alloc().stats(core).frontier_pages);
        let end = len.min((frontier + AHEAD).next_multiple_of(HUGE));
        if self.touched >= end {
            return false;
        }
        let start = self.touched;
        let next = ((start / HUGE + 1) * HUGE).min(end);
        let large =
            next - start == HUGE && self.refusals < REFUSALS_MAX && mapping.collapse(start..next);
        if large {
            self.refusals = 0;
        } else {
            self.refusals += u32::from(next - start == HUGE);
            mapping.populate(start..next);
        }
        self.touched = next;
        true
    }
}
