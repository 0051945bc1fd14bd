//! The background thread of a pool: reclaim after a crash, growth ahead of use, first
//! touches of new pages, large pages.

use super::store::Store;
use crate::error::{Error, Result};
use crate::pmem::{Mapping, MediumKind, Real};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks for work, where nobody asks for it.
const PAUSE: Duration = Duration::from_secs(1);
/// A large page.
const HUGE: u64 = 2 << 20;
/// Bytes ahead of the frontier that are touched first by this thread.
const AHEAD: u64 = 64 << 20;
/// A large page is made this far ahead of the frontier or farther: the way that operations
/// have to go before they reach it, while it is made.
const CLEAR: u64 = 2 << 20;
/// Touched in one call.
const PART: u64 = 64 << 10;
/// A pool that nobody changes for so long is at rest.
const REST: Duration = Duration::from_millis(100);
/// Between two large pages that are made of a pool at rest.
const BREATH: Duration = Duration::from_millis(5);
/// A large page can be refused for the moment, because its pages are in use; a file
/// system that has none refuses all.
const REFUSALS_MAX: u32 = 16;

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
    let mut rest = Rest::default();
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
        let resting = !pages.behind.is_empty() && rest.look(store.core().entries());
        let more = pages.step(&store, resting) || more;
        drop(store);
        if resting {
            std::thread::park_timeout(BREATH);
        } else if !more {
            std::thread::park_timeout(if pages.behind.is_empty() { PAUSE } else { REST });
        }
    }
}

/// Whether the pool is at rest: no operation has passed the gate for a while. (Lookups do
/// not pass it.)
#[derive(Default)]
struct Rest {
    entries: Option<usize>,
    since: Option<Instant>,
}

impl Rest {
    fn look(&mut self, entries: Option<usize>) -> bool {
        if entries.is_none() || entries != self.entries {
            *self = Rest { entries, since: entries.map(|_| Instant::now()) };
        }
        self.since.is_some_and(|since| since.elapsed() >= REST)
    }
}

/// Touches pages before operations do, which saves them a page fault each, and asks for
/// large pages where that is possible.
///
/// While the kernel makes a large page of small ones, it holds each of those locked, and
/// an operation that touches one waits. So large pages are made of pieces that no operation
/// can have reached before they are done; of others when the pool is at rest, and then one
/// after the other with a pause in between: a lookup, of which the gate knows nothing, can
/// meet one of them.
#[derive(Default)]
struct Pages {
    touched: u64,
    /// Pieces below `touched` that were left with small pages: ascending, apart, from and
    /// to a multiple of [`HUGE`].
    behind: VecDeque<Range<u64>>,
    /// Large pages refused, one after the other.
    refusals: u32,
}

/// Something to do about a range of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Work {
    /// Touch its pages, and those of its shadow.
    Touch(Range<u64>),
    /// As well, but make a large page of it.
    Ahead(Range<u64>),
    /// Make a large page of it, which was touched before.
    Behind(Range<u64>),
}

impl Pages {
    fn step(&mut self, store: &Store<Real>, resting: bool) -> bool {
        let core = store.core();
        let Some(mapping) = core.backing().mapping() else { return false };
        if mapping.medium() == MediumKind::Bytes {
            // Nothing is gained by touching memory that may never be used.
            return false;
        }
        let frontier = core.geometry.offset_of(core.alloc().stats(core).frontier_pages);
        let Some(work) = self.next(frontier, core.memory.len(), resting) else { return false };
        let large = match &work {
            Work::Touch(range) => {
                mapping.touch_shadow(range.clone());
                populate(mapping, range);
                false
            }
            Work::Ahead(range) => {
                mapping.touch_shadow(range.clone());
                let large = mapping.collapse(range.clone());
                if !large {
                    populate(mapping, range);
                }
                large
            }
            Work::Behind(range) => mapping.collapse(range.clone()),
        };
        self.done(&work, large);
        true
    }

    /// What is to be done next, in a pool of `len` bytes that are in use up to `frontier`.
    fn next(&self, frontier: u64, len: u64, resting: bool) -> Option<Work> {
        let can_be_large = self.refusals < REFUSALS_MAX;
        let end = len.min((frontier + AHEAD).next_multiple_of(HUGE));
        let start = self.touched;
        if start < end {
            let next = ((start / HUGE + 1) * HUGE).min(end);
            let clear = next - start == HUGE && start >= frontier + CLEAR;
            let range = start..next;
            return Some(if clear && can_be_large {
                Work::Ahead(range)
            } else {
                Work::Touch(range)
            });
        }
        let start = self.behind.front()?.start;
        resting.then(|| Work::Behind(start..start + HUGE))
    }

    /// Notes that something was done, and whether it brought a large page.
    fn done(&mut self, work: &Work, large: bool) {
        match work {
            Work::Touch(range) => self.leave_behind(range),
            Work::Ahead(range) if !large => self.leave_behind(range),
            Work::Ahead(_) => {}
            Work::Behind(range) => {
                // Refused or not, its turn is over.
                if let Some(first) = self.behind.front_mut() {
                    first.start = range.end;
                    if first.is_empty() {
                        self.behind.pop_front();
                    }
                }
            }
        }
        if let Work::Touch(range) | Work::Ahead(range) = work {
            self.touched = range.end;
        }
        match (work, large) {
            (Work::Touch(_), _) => {}
            (_, true) => self.refusals = 0,
            (_, false) => self.refusals += 1,
        }
        if self.refusals >= REFUSALS_MAX {
            self.behind.clear();
        }
    }

    /// Notes that the piece in which `range` lies has small pages, if that ends it.
    fn leave_behind(&mut self, range: &Range<u64>) {
        let end = range.end;
        if !end.is_multiple_of(HUGE) {
            return;
        }
        let start = end - HUGE;
        match self.behind.back_mut() {
            Some(last) if last.end >= start => last.end = end,
            _ => self.behind.push_back(start..end),
        }
    }
}

/// Touches the pages of a range, in parts: the kernel holds the lock of the address space
/// for as long as a call takes.
fn populate(mapping: &Mapping, range: &Range<u64>) {
    for part in range.clone().step_by(PART as usize) {
        mapping.populate(part..range.end.min(part + PART));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Does all there is to do, and tells what it was.
    fn all(pages: &mut Pages, frontier: u64, len: u64, resting: bool, large: bool) -> Vec<Work> {
        let mut done = Vec::new();
        while let Some(work) = pages.next(frontier, len, resting) {
            pages.done(&work, large);
            done.push(work);
        }
        done
    }

    #[test]
    fn large_pages_are_made_only_clear_ahead_of_the_frontier() {
        for frontier in (0..40 * MIB).step_by(65536) {
            let mut pages = Pages::default();
            let len = 200 * MIB;
            let done = all(&mut pages, frontier, len, false, true);
            let mut at = 0;
            for work in done {
                let (Work::Touch(range) | Work::Ahead(range)) = &work else {
                    panic!("{work:?}: operations may be there");
                };
                assert_eq!(range.start, at, "nothing is left out");
                let clear = range.start >= frontier + CLEAR;
                assert_eq!(matches!(work, Work::Ahead(_)), clear, "{work:?}, {frontier}");
                at = range.end;
            }
            assert_eq!(at, (frontier + AHEAD).next_multiple_of(HUGE));
        }
    }

    #[test]
    fn what_was_left_behind_gets_large_pages_at_rest_once() {
        let mut pages = Pages::default();
        // A pool that grows from an odd size, always in use up to its end.
        for len in [MIB, 3 * MIB, 8 * MIB, 9 * MIB] {
            let done = all(&mut pages, len, len, false, true);
            assert!(done.iter().all(|work| matches!(work, Work::Touch(_))), "{done:?}");
        }
        assert_eq!((pages.behind.len(), pages.behind.front()), (1, Some(&(0..8 * MIB))));
        let done = all(&mut pages, 9 * MIB, 9 * MIB, true, true);
        let pieces = (0..8 * MIB).step_by(HUGE as usize).map(|at| Work::Behind(at..at + HUGE));
        assert_eq!(done, pieces.collect::<Vec<_>>());
        assert!(pages.behind.is_empty());
        assert_eq!(all(&mut pages, 9 * MIB, 9 * MIB, true, true), []);
    }

    #[test]
    fn where_there_are_no_large_pages_they_are_soon_not_asked_for() {
        let mut pages = Pages::default();
        let done = all(&mut pages, 0, 200 * MIB, false, false);
        let asked = done.iter().filter(|work| matches!(work, Work::Ahead(_))).count();
        assert_eq!(asked, REFUSALS_MAX as usize);
        assert_eq!(pages.touched, AHEAD);
        assert_eq!(all(&mut pages, 0, 200 * MIB, true, false), []);
    }

    #[test]
    fn a_pool_is_at_rest_only_when_nobody_came_for_a_while() {
        let mut rest = Rest::default();
        assert!(!rest.look(Some(5)));
        std::thread::sleep(REST);
        assert!(rest.look(Some(5)));
        assert!(!rest.look(Some(6)), "somebody came");
        std::thread::sleep(REST);
        assert!(!rest.look(None), "somebody is inside");
        assert!(!rest.look(Some(6)), "and may just have left");
    }
}
