//! The background thread of a pool: reclaim after a crash, growth ahead of use, first
//! touches of new pages, large pages.

use super::store::Store;
use crate::error::{Error, Result};
use crate::pmem::{Mapping, MediumKind, Real};
use rustix::time::{ClockId, clock_gettime};
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
/// A process is at rest if it did next to nothing for so long.
const REST: Duration = Duration::from_millis(100);
/// Next to nothing: this part of the time of one processor.
const REST_SHARE: u32 = 20;
/// After an opening, the first answers get what the kernel has at once, and no large pages.
const SETTLE: Duration = Duration::from_millis(50);
/// Between two large pages that are made of a pool at rest.
const BREATH: Duration = Duration::from_millis(20);
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
    let opened = Instant::now();
    let mut settled = false;
    while !stop.load(Ordering::Relaxed) {
        let Some(store) = store.upgrade() else { return };
        if !settled && (store.is_new() || opened.elapsed() >= SETTLE) {
            store.use_huge_pages();
            settled = true;
        }
        let more = match store.step() {
            Ok(more) => more,
            Err(Error::NotOpen(_)) => return,
            Err(error) => {
                tracing::debug!(%error, "background step");
                false
            }
        };
        // A reclaim comes first, which has no pauses.
        let resting =
            !more && !pages.behind.is_empty() && rest.look(Instant::now(), time_of_others());
        let done = if settled { pages.step(&store, resting) } else { None };
        drop(store);
        if let Some(pause) = pause_after(done.as_ref(), more, !pages.behind.is_empty()) {
            std::thread::park_timeout(if settled { pause } else { pause.min(SETTLE) });
        }
    }
}

/// How long to wait after a turn in which this was done about pages: `more` is there to do
/// besides, or pieces are `left` that wait for the process to be at rest.
fn pause_after(done: Option<&Work>, more: bool, left: bool) -> Option<Duration> {
    match done {
        Some(Work::Behind(_)) => Some(BREATH),
        Some(Work::Touch(_) | Work::Ahead(_)) => None,
        None if more => None,
        None if left => Some(REST),
        None => Some(PAUSE),
    }
}

/// Whether the process is at rest: its other threads together had next to no processor time
/// for a while. Asked of the kernel, because lookups leave no trace in the pool.
#[derive(Default)]
struct Rest {
    /// When the kernel was asked last, and the processor time that the other threads had had.
    asked: Option<(Instant, Duration)>,
    resting: bool,
}

impl Rest {
    fn look(&mut self, now: Instant, others: Duration) -> bool {
        match self.asked {
            Some((asked, _)) if now - asked < REST => {}
            Some((asked, before)) => {
                // The other threads' time can seem to go back: two clocks are read. What was
                // not looked at for long says nothing of the present.
                let idle = others.saturating_sub(before) * REST_SHARE < now - asked;
                self.resting = idle && now - asked < 3 * REST;
                self.asked = Some((now, others));
            }
            None => self.asked = Some((now, others)),
        }
        self.resting
    }
}

/// The processor time that the other threads of this process have had so far.
fn time_of_others() -> Duration {
    let of = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    of(ClockId::ProcessCPUTime).saturating_sub(of(ClockId::ThreadCPUTime))
}

/// Touches pages before operations do, which saves them a page fault each, and asks for
/// large pages where that is possible.
///
/// While the kernel makes a large page of small ones, it holds each of those locked, and
/// an operation that touches one waits. So large pages are made of pieces that no operation
/// can have reached before they are done, and those come first; of others when the process
/// is at rest, and then one after the other with a pause in between.
#[derive(Default)]
struct Pages {
    begun: bool,
    /// Everything below was touched, or is noted as skipped. What an opened pool has in
    /// use on a disk stays as it is: to touch it would read all of it, and write it back.
    reached: u64,
    /// Skipped on the way to pieces that operations had not yet come near to.
    skipped: VecDeque<Range<u64>>,
    /// Whole pieces that were touched and left with small pages.
    behind: VecDeque<Range<u64>>,
    /// Large pages refused, one after the other.
    refusals: u32,
}

/// Something to do about a range of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Work {
    /// Touch its pages, and those of its shadow where operations have not been: what is
    /// known of older records takes memory only when they are looked at.
    Touch(Range<u64>),
    /// As well, but make a large page of it.
    Ahead(Range<u64>),
    /// Make a large page of it, which was touched before.
    Behind(Range<u64>),
}

impl Pages {
    /// Does what is to be done next, if there is anything, and tells what it was.
    fn step(&mut self, store: &Store<Real>, resting: bool) -> Option<Work> {
        let core = store.core();
        let mapping = core.backing().mapping()?;
        if mapping.medium() == MediumKind::Bytes {
            // Nothing is gained by touching memory that may never be used.
            return None;
        }
        let frontier = core.geometry.offset_of(core.alloc().stats(core).frontier_pages);
        if !self.begun {
            self.begun = true;
            self.reached = if mapping.is_in_memory() { 0 } else { frontier };
        }
        let work = self.next(frontier, core.memory.len(), resting)?;
        let large = match &work {
            Work::Touch(range) => {
                mapping.touch_shadow(range.start.max(frontier)..range.end);
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
        Some(work)
    }

    /// What is to be done next, in a pool of `len` bytes that are in use up to `frontier`.
    fn next(&self, frontier: u64, len: u64, resting: bool) -> Option<Work> {
        let end = len.min((frontier + AHEAD).next_multiple_of(HUGE));
        let clear = self.reached.max(frontier + CLEAR).next_multiple_of(HUGE);
        if clear + HUGE <= end && self.refusals < REFUSALS_MAX {
            return Some(Work::Ahead(clear..clear + HUGE));
        }
        let piece = |from: u64, end: u64| Work::Touch(from..((from / HUGE + 1) * HUGE).min(end));
        if let Some(skipped) = self.skipped.front() {
            return Some(piece(skipped.start, skipped.end));
        }
        if self.reached < end {
            return Some(piece(self.reached, end));
        }
        let start = self.behind.front()?.start;
        resting.then(|| Work::Behind(start..start + HUGE))
    }

    /// Notes that something was done, and whether it brought a large page.
    fn done(&mut self, work: &Work, large: bool) {
        match work {
            Work::Touch(range) => {
                if !take(&mut self.skipped, range) {
                    self.reached = range.end;
                }
                self.leave_behind(range);
            }
            Work::Ahead(range) => {
                if self.reached < range.start {
                    self.skipped.push_back(self.reached..range.start);
                }
                self.reached = range.end;
                if !large {
                    self.leave_behind(range);
                }
            }
            // Refused or not, its turn is over.
            Work::Behind(range) => {
                take(&mut self.behind, range);
            }
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
        if !end.is_multiple_of(HUGE) || self.refusals >= REFUSALS_MAX {
            return;
        }
        let start = end - HUGE;
        match self.behind.back_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => self.behind.push_back(start..end),
        }
    }
}

/// Takes a range from the front of a queue of them, if it begins there.
fn take(queue: &mut VecDeque<Range<u64>>, range: &Range<u64>) -> bool {
    let Some(first) = queue.front_mut().filter(|first| first.start == range.start) else {
        return false;
    };
    first.start = range.end;
    if first.is_empty() {
        queue.pop_front();
    }
    true
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
    fn large_pages_are_made_only_clear_ahead_of_the_frontier_and_first() {
        for frontier in (0..40 * MIB).step_by(65536) {
            let mut pages = Pages::default();
            let done = all(&mut pages, frontier, 200 * MIB, false, true);
            let clear = (frontier + CLEAR).next_multiple_of(HUGE);
            let end = (frontier + AHEAD).next_multiple_of(HUGE);
            let large = (clear..end).step_by(HUGE as usize).map(|at| Work::Ahead(at..at + HUGE));
            let small = (0..clear).step_by(HUGE as usize).map(|at| Work::Touch(at..at + HUGE));
            assert_eq!(done, large.chain(small).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_pool_that_is_filled_faster_leaves_nothing_out() {
        let mut pages = Pages::default();
        let mut seen = std::collections::BTreeSet::new();
        // Three turns in the time in which the frontier moves by four pieces and a bit.
        for frontier in (0..200 * MIB).step_by(8 * MIB as usize + 4096) {
            for _ in 0..3 {
                let len = (frontier + 15 * MIB).next_multiple_of(MIB);
                let Some(work) = pages.next(frontier, len, false) else { break };
                pages.done(&work, true);
                if let Work::Touch(range) | Work::Ahead(range) = &work {
                    assert!(range.end <= len);
                    assert!(seen.insert((range.start, range.end)), "{range:?} twice");
                }
            }
        }
        for work in all(&mut pages, 200 * MIB, 256 * MIB, false, true) {
            let (Work::Touch(range) | Work::Ahead(range)) = work else { panic!("{work:?}") };
            assert!(seen.insert((range.start, range.end)), "{range:?} twice");
        }
        let mut at = 0;
        for (start, end) in seen {
            assert_eq!(start, at, "left out");
            at = end;
        }
        assert_eq!(at, 256 * MIB);
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
        assert_eq!(pages.reached, AHEAD);
        assert_eq!(all(&mut pages, 0, 200 * MIB, true, false), []);
    }

    #[test]
    fn a_process_is_at_rest_only_when_it_did_next_to_nothing() {
        let begin = Instant::now();
        let mut rest = Rest::default();
        let mut look = |at: u64, others: u64| {
            rest.look(begin + Duration::from_millis(at), Duration::from_millis(others))
        };
        assert!(!look(0, 1000), "not known yet");
        assert!(!look(50, 1000), "not for long enough");
        assert!(look(100, 1004));
        assert!(look(150, 1100), "asked again only after a while");
        assert!(!look(200, 1100), "it worked");
        assert!(!look(300, 1105), "a twentieth is work");
        assert!(look(400, 1104), "clocks that go back are no work");
        assert!(!look(60_000, 1204), "not looked at for long: it may work now");
        assert!(look(60_100, 1204));
    }

    #[test]
    fn only_large_pages_of_a_pool_at_rest_are_made_with_pauses() {
        let piece = 0..HUGE;
        for (more, left) in [(false, false), (false, true), (true, false), (true, true)] {
            let after = |work| pause_after(Some(&work), more, left);
            assert_eq!(after(Work::Behind(piece.clone())), Some(BREATH));
            assert_eq!(after(Work::Touch(piece.clone())), None);
            assert_eq!(after(Work::Ahead(piece.clone())), None);
        }
        assert_eq!(pause_after(None, true, true), None, "a reclaim goes on");
        assert_eq!(pause_after(None, false, true), Some(REST));
        assert_eq!(pause_after(None, false, false), Some(PAUSE));
    }

    #[test]
    fn the_time_of_other_threads_is_told() {
        let before = time_of_others();
        std::thread::spawn(|| {
            let begin = clock_gettime(ClockId::ThreadCPUTime);
            while clock_gettime(ClockId::ThreadCPUTime).tv_sec == begin.tv_sec
                && clock_gettime(ClockId::ThreadCPUTime).tv_nsec - begin.tv_nsec < 20_000_000
            {
                std::hint::spin_loop();
            }
        })
        .join()
        .expect("a thread that spins");
        assert!(time_of_others() - before >= Duration::from_millis(10));
    }
}
