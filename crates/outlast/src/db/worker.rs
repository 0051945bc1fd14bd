//! The background thread of a pool. It reclaims space after a crash, grows the pool ahead of use,
//! pre-faults new pages, builds huge pages, syncs a pool that nobody changes, and gives free space back to
//! the file system.

use super::store::Store;
use super::trim::Trimmer;
use crate::error::{Error, Result};
use crate::pmem::{Mapping, MediumKind, Real};
use crate::pool::core::Quiet;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the worker sleeps when nothing wakes it.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a pool must have been unchanged before it is synced.
const QUIET: Duration = Duration::from_secs(1);
/// The longest such time. It applies after repeated changes soon after an idle sync, and after a
/// sync that failed.
const QUIET_MAX: Duration = Duration::from_secs(64);
/// Size of a huge page, in bytes.
const HUGE: u64 = 2 << 20;
/// How far ahead of the frontier this thread pre-faults pages, in bytes.
const AHEAD: u64 = 64 << 20;
/// The least distance ahead of the frontier at which a huge page is built, in bytes. Operations
/// take a while to allocate this much, and meanwhile the kernel can finish the page.
const CLEAR: u64 = 2 << 20;
/// Bytes pre-faulted in one call.
const PART: u64 = 64 << 10;
/// A process counts as at rest once it has been nearly idle for this long.
const REST: Duration = Duration::from_millis(100);
/// A process is nearly idle if all of its threads but the worker together use less than 1 /
/// `REST_SHARE` of one processor.
const REST_SHARE: u32 = 20;
/// How long after an opening the worker leaves pages alone: it pre-faults none and allows no huge
/// ones. The first operations then get small pages, which the kernel has at hand.
const SETTLE: Duration = Duration::from_millis(50);
/// The pause between two huge pages that are built for a pool at rest.
const BREATH: Duration = Duration::from_millis(20);
/// The number of refusals in a row after which the worker gives up on huge pages. The kernel may
/// refuse one for the moment because its pages are in use; a file system without huge pages refuses
/// all of them.
const REFUSALS_MAX: u32 = 16;

pub(super) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. `idle_sync` says whether it syncs a pool that nobody changes. `trim` is
    /// how long space must have been free before it is given back, or `None` to keep all space.
    pub(super) fn start(
        store: &Arc<Store<Real>>,
        idle_sync: bool,
        trim: Option<Duration>,
    ) -> Result<Worker> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let weak = Arc::downgrade(store);
        let thread = std::thread::Builder::new()
            .name("outlast".into())
            .spawn(move || run(&weak, &told, idle_sync, trim))
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

    /// Gives up the handle in a forked child, where the thread does not exist.
    pub(super) fn forget(mut self) {
        std::mem::forget(self.thread.take());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
        // The thread can hold the last handle to the store, but it never holds this `Worker`, so it
        // never gets here. If that ever changes, the check keeps the thread from joining itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn run(store: &Weak<Store<Real>>, stop: &AtomicBool, idle_sync: bool, trim: Option<Duration>) {
    let mut pages = Pages::default();
    let mut rest = Rest::default();
    let opened = Instant::now();
    let mut idle = idle_sync.then(|| Idle::new(opened));
    let mut trimmer = trim.map(|after| Trimmer::new(opened, after));
    let mut settled = false;
    while !stop.load(Ordering::Relaxed) {
        let Some(store) = store.upgrade() else { return };
        if !settled && (store.is_new() || opened.elapsed() >= SETTLE) {
            store.use_huge_pages();
            settled = true;
        }
        let mut more = match store.step() {
            Ok(more) => more,
            Err(Error::NotOpen(_)) => return,
            Err(error) => {
                tracing::debug!(%error, "background step");
                false
            }
        };
        // The reclaim comes first, and never pauses.
        let resting =
            !more && !pages.behind.is_empty() && rest.look(Instant::now(), time_of_others());
        let done = if settled { pages.step(&store, resting) } else { None };
        if let Some(idle) = &mut idle
            && !more
            && done.is_none()
            && Instant::now() >= idle.next
        {
            let found = store.sync_if_quiet();
            if let Err(error) = &found {
                tracing::warn!(%error, "syncing the idle pool failed");
            }
            idle.note(found.ok(), Instant::now());
        }
        if let Some(trimmer) = &mut trimmer
            && !more
            && done.is_none()
        {
            more = trimmer.step(&store, Instant::now());
        }
        drop(store);
        if let Some(pause) = pause_after(done.as_ref(), more, !pages.behind.is_empty()) {
            std::thread::park_timeout(if settled { pause } else { pause.min(SETTLE) });
        }
    }
}

/// Returns how long to sleep after a turn, or `None` to continue without sleeping. `done` is the
/// work done on pages in that turn, `more` says whether there is other work, and `left` whether
/// pieces wait for the process to be at rest.
fn pause_after(done: Option<&Work>, more: bool, left: bool) -> Option<Duration> {
    match done {
        Some(Work::Behind(_)) => Some(BREATH),
        Some(Work::Touch(_) | Work::Ahead(_)) => None,
        None if more => None,
        None if left => Some(REST),
        None => Some(PAUSE),
    }
}

/// Decides when to check next whether the pool is idle.
struct Idle {
    next: Instant,
    /// How long the pool must have been unchanged.
    quiet: Duration,
    /// When the pool was last synced, if it was not changed since.
    synced: Option<Instant>,
}

impl Idle {
    fn new(opened: Instant) -> Idle {
        Idle { next: opened + QUIET, quiet: QUIET, synced: None }
    }

    /// Records the result of a check: `None` if the disk failed.
    ///
    /// A sync can take long, and the next change waits for the disk. So if a pool is changed again
    /// soon after a sync, the next sync comes later.
    fn note(&mut self, found: Option<Quiet>, now: Instant) {
        match found {
            Some(Quiet::Clean) => {}
            Some(Quiet::Synced) => self.synced = Some(now),
            Some(Quiet::Changed) => {
                if let Some(synced) = self.synced.take() {
                    let soon = now - synced < 16 * self.quiet;
                    self.quiet = if soon { (2 * self.quiet).min(QUIET_MAX) } else { QUIET };
                }
            }
            None => self.quiet = QUIET_MAX,
        }
        self.next = now + self.quiet;
    }
}

/// Tells whether the process is at rest: all of its threads but the worker together used almost no
/// processor time for a while. The kernel is asked, because lookups leave no trace in the pool.
#[derive(Default)]
struct Rest {
    /// When the kernel was last asked, and the processor time that the other threads had used by
    /// then.
    asked: Option<(Instant, Duration)>,
    resting: bool,
}

impl Rest {
    fn look(&mut self, now: Instant, others: Duration) -> bool {
        match self.asked {
            Some((asked, _)) if now - asked < REST => {}
            Some((asked, before)) => {
                // Saturating, because the time of the others is the difference of two clocks that
                // are read one after the other, so it can seem to go backwards. An interval much
                // longer than `REST` says nothing about the present.
                let idle = others.saturating_sub(before) * REST_SHARE < now - asked;
                self.resting = idle && now - asked < 3 * REST;
                self.asked = Some((now, others));
            }
            None => self.asked = Some((now, others)),
        }
        self.resting
    }
}

/// The processor time that the other threads of this process have used so far.
fn time_of_others() -> Duration {
    time_of(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(time_of(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// Reads a clock. The C library is asked, not rustix: rustix finds the vDSO by itself, and
/// valgrind, which takes the vDSO away, then ends the process with SIGSEGV.
fn time_of(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call to write. If it fails, the time stays 0.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Pre-faults pages ahead of operations, which saves them a page fault each, and builds huge pages
/// where possible.
///
/// While the kernel builds a huge page from small ones, it holds each of the small ones locked, and
/// an operation that touches one waits. So the worker builds huge pages only of pieces that no
/// operation can reach before they are done, and works on these pieces first. Other pieces get huge
/// pages while the process is at rest, one after another with a pause in between.
#[derive(Default)]
struct Pages {
    begun: bool,
    /// Every page below this offset was touched, is listed in `skipped`, or was in use when a pool
    /// on a disk was opened. Those pages are left alone: touching them would read all of them and
    /// write them back.
    reached: u64,
    /// Ranges skipped to reach pieces well ahead of operations.
    skipped: VecDeque<Range<u64>>,
    /// Pieces of the size of a huge page that were touched and still have small pages, as ranges of
    /// adjacent ones.
    behind: VecDeque<Range<u64>>,
    /// Huge pages refused in a row.
    refusals: u32,
}

/// Work to do on a range of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Work {
    /// Pre-fault its pages. Beyond the frontier, also pre-fault its shadow, the range of DRAM that
    /// belongs to it. Below the frontier, the shadow takes memory only once an operation uses the
    /// records there.
    Touch(Range<u64>),
    /// Like `Touch`, but build a huge page.
    Ahead(Range<u64>),
    /// Build a huge page of a piece that was touched before.
    Behind(Range<u64>),
}

impl Pages {
    /// Does the next piece of work, if there is any, and returns it.
    fn step(&mut self, store: &Store<Real>, resting: bool) -> Option<Work> {
        let core = store.core();
        let mapping = core.backing().mapping()?;
        if mapping.medium() == MediumKind::Bytes {
            // Pre-faulting memory that may never be used gains nothing.
            return None;
        }
        let frontier = core.frontier();
        if !self.begun {
            self.begun = true;
            self.reached = if mapping.is_in_memory() { 0 } else { frontier };
        }
        let end = soon_used(frontier, core.free_bytes(), core.expected(), core.memory.len());
        // Space that was given back gets disk blocks only when it is needed.
        let end = end.min(core.given_back_ahead());
        let work = self.next(frontier, end, resting)?;
        let large = match &work {
            Work::Touch(range) => {
                mapping.touch_shadow(range.start.max(frontier)..range.end);
                // In a pool in memory, the range can begin below the frontier, where space may have
                // been given back.
                for part in core.parts_with_blocks(range.clone()) {
                    populate(mapping, &part);
                }
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
            // The kernel would allocate memory for what was given back.
            Work::Behind(range) if core.is_given_back(range.clone()) => false,
            Work::Behind(range) => mapping.collapse(range.clone()),
        };
        self.done(&work, large);
        Some(work)
    }

    /// Chooses the next piece of work. The pool is in use up to `frontier`, and may soon be in use
    /// up to `end`.
    fn next(&self, frontier: u64, end: u64, resting: bool) -> Option<Work> {
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

    /// Records that `work` was done, and whether it produced a huge page.
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
            // Even if the kernel refused the huge page, this piece is not tried again.
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

    /// If `range` ends a piece of the size of a huge page, records that the piece has small pages.
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

/// Returns the offset up to which a pool of `len` bytes may soon be in use: `AHEAD` bytes beyond
/// the frontier, or up to `expected` if that is greater, less the `free` bytes of free pages, which
/// are used first.
fn soon_used(frontier: u64, free: u64, expected: u64, len: u64) -> u64 {
    (frontier + AHEAD)
        .max(expected)
        .saturating_sub(free)
        .max(frontier)
        .next_multiple_of(HUGE)
        .min(len)
}

/// Removes `range` from the first range of a queue, if both begin at the same offset. Returns
/// whether they do.
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

/// Pre-faults the pages of a range, in parts: the kernel holds the lock of the address space for as
/// long as a call takes.
fn populate(mapping: &Mapping, range: &Range<u64>) {
    for part in range.clone().step_by(PART as usize) {
        mapping.populate(part..range.end.min(part + PART));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Does all work there is, and returns it.
    fn all(pages: &mut Pages, frontier: u64, len: u64, resting: bool, large: bool) -> Vec<Work> {
        let mut done = Vec::new();
        let end = soon_used(frontier, 0, 0, len);
        while let Some(work) = pages.next(frontier, end, resting) {
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
        // The worker takes three turns each time that the frontier moves by a little more than four
        // pieces.
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
    fn what_is_expected_is_made_ahead_as_far_as_the_pool_goes() {
        assert_eq!(soon_used(10 * MIB, 0, 0, 500 * MIB), 74 * MIB);
        assert_eq!(soon_used(10 * MIB, 20 * MIB, 0, 500 * MIB), 54 * MIB, "free pages come first");
        assert_eq!(soon_used(10 * MIB, 90 * MIB, 301 * MIB, 500 * MIB), 212 * MIB);
        assert_eq!(soon_used(10 * MIB, 90 * MIB, 0, 500 * MIB), 10 * MIB);
        assert_eq!(soon_used(10 * MIB, 0, 60 * MIB, 500 * MIB), 74 * MIB);
        assert_eq!(soon_used(10 * MIB, 0, 301 * MIB, 500 * MIB), 302 * MIB);
        assert_eq!(soon_used(10 * MIB, 0, 301 * MIB, 299 * MIB), 299 * MIB);
    }

    #[test]
    fn what_was_left_behind_gets_large_pages_at_rest_once() {
        let mut pages = Pages::default();
        // A pool that grows from an odd size and is always in use up to its end.
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
    fn a_pool_that_is_changed_soon_after_each_sync_is_synced_less_often() {
        let start = Instant::now();
        let mut idle = Idle::new(start);
        let mut now = start;
        for quiet in [2, 4, 8, 16, 32, 64, 64] {
            idle.note(Some(Quiet::Synced), now);
            now += Duration::from_secs(2);
            idle.note(Some(Quiet::Changed), now);
            assert_eq!(idle.quiet, Duration::from_secs(quiet));
            // A further check that finds changes does not double the time again.
            idle.note(Some(Quiet::Changed), now);
            assert_eq!(idle.next, now + Duration::from_secs(quiet));
        }
        idle.note(Some(Quiet::Synced), now);
        idle.note(Some(Quiet::Clean), now);
        idle.note(Some(Quiet::Changed), now + 16 * QUIET_MAX);
        assert_eq!(idle.quiet, QUIET);
        idle.note(None, now);
        assert_eq!(idle.next, now + QUIET_MAX);
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
            let begin = time_of(libc::CLOCK_THREAD_CPUTIME_ID);
            while time_of(libc::CLOCK_THREAD_CPUTIME_ID) - begin < Duration::from_millis(20) {
                std::hint::spin_loop();
            }
        })
        .join()
        .expect("a thread that spins");
        assert!(time_of_others() - before >= Duration::from_millis(10));
    }
}
