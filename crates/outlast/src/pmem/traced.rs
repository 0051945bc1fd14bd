//! The seam of the proof harness: every access recorded, every access a place where
//! another thread may run or a fault may strike.

use super::Word;
use super::seam::{Mark, Point, Seam};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// What one access did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// A word was read.
    Load {
        /// Its offset in the pool.
        offset: u64,
        /// What it held.
        value: u64,
    },
    /// A word was written, through the caches or past them.
    Store {
        /// Its offset in the pool.
        offset: u64,
        /// What was written.
        value: u64,
        /// Past the caches.
        nontemporal: bool,
    },
    /// A word was compared and exchanged.
    CompareExchange {
        /// Its offset in the pool.
        offset: u64,
        /// What it held.
        found: u64,
        /// What it was to become.
        new: u64,
        /// Whether it did.
        exchanged: bool,
    },
    /// Lines were flushed: every line that holds one of these bytes.
    Flush {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// The thread's flushes completed.
    Fence,
    /// An operation began or answered.
    Mark(Mark),
}

/// One recorded access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The thread, numbered in the order of first access, or as it asked to be.
    pub thread: usize,
    /// The commit point, where the access carries one.
    pub point: Option<&'static Point>,
    /// What happened.
    pub access: Access,
}

/// Decides, before each access, whether it happens now.
///
/// A scheduler blocks in `before` until it is this thread's turn; a fault stops the
/// thread there, by unwinding or for ever.
pub trait Control: Send + Sync {
    /// Called before each access and at each turn of waiting.
    fn before(&self, thread: usize, waiting: bool);

    /// Called after each access that is recorded, by the thread that made it.
    fn after(&self, _access: &Access, _at: Option<&'static Point>) {}
}

struct Inner {
    base: AtomicUsize,
    recording: AtomicBool,
    loads: AtomicBool,
    events: Mutex<Vec<Event>>,
    control: Option<Box<dyn Control>>,
    threads: AtomicUsize,
    /// Tells the thread numbers of different recorders apart.
    id: usize,
}

/// Records every access. Clones share one record.
#[derive(Clone)]
pub struct Traced(Arc<Inner>);

static RECORDERS: AtomicUsize = AtomicUsize::new(1);

thread_local! {
    static THREAD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

impl Default for Traced {
    fn default() -> Self {
        Self::new()
    }
}

impl Traced {
    /// A recorder that records nothing yet.
    pub fn new() -> Self {
        Self::build(None)
    }

    /// A recorder whose accesses `control` releases one by one.
    pub fn with_control(control: Box<dyn Control>) -> Self {
        Self::build(Some(control))
    }

    fn build(control: Option<Box<dyn Control>>) -> Self {
        Traced(Arc::new(Inner {
            base: AtomicUsize::new(0),
            recording: AtomicBool::new(false),
            loads: AtomicBool::new(false),
            events: Mutex::new(Vec::new()),
            control,
            threads: AtomicUsize::new(0),
            id: RECORDERS.fetch_add(1, Ordering::Relaxed),
        }))
    }

    /// Starts recording; `loads` says whether loads are recorded too.
    pub fn start(&self, loads: bool) {
        self.0.loads.store(loads, Ordering::SeqCst);
        self.0.recording.store(true, Ordering::SeqCst);
    }

    /// Stops recording and hands out what was recorded.
    pub fn take(&self) -> Vec<Event> {
        self.0.recording.store(false, Ordering::SeqCst);
        std::mem::take(&mut self.events())
    }

    /// Gives the calling thread a number of its choice, where a run must be the same each
    /// time. It must not be one that another thread has or will get by accessing first.
    pub fn number_this_thread(&self, number: usize) {
        THREAD.set((self.0.id, number));
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.events.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn thread(&self) -> usize {
        THREAD.with(|cell| {
            let (recorder, number) = cell.get();
            if recorder == self.0.id {
                return number;
            }
            let number = self.0.threads.fetch_add(1, Ordering::Relaxed);
            cell.set((self.0.id, number));
            number
        })
    }

    fn offset(&self, word: &Word) -> u64 {
        (std::ptr::from_ref(word).addr() - self.0.base.load(Ordering::Relaxed)) as u64
    }

    fn before(&self, waiting: bool) {
        if let Some(control) = &self.0.control {
            control.before(self.thread(), waiting);
        }
    }

    /// Performs an access and records it, as one step: the order of the record is the
    /// order in which the accesses took effect.
    fn step<T>(
        &self,
        point: Option<&'static Point>,
        perform: impl FnOnce() -> (T, Option<Access>),
    ) -> T {
        self.before(false);
        if !self.0.recording.load(Ordering::Relaxed) {
            return perform().0;
        }
        let mut events = self.events();
        let (result, access) = perform();
        if let Some(access) = access {
            if let Some(control) = &self.0.control {
                control.after(&access, point);
            }
            events.push(Event { thread: self.thread(), point, access });
        }
        result
    }
}

impl Seam for Traced {
    fn attach(&self, base: *const u8) {
        self.0.base.store(base.addr(), Ordering::Relaxed);
    }

    fn load(&self, word: &Word, order: Ordering) -> u64 {
        self.step(None, || {
            let value = word.0.load(order);
            let loads = self.0.loads.load(Ordering::Relaxed);
            (value, loads.then(|| Access::Load { offset: self.offset(word), value }))
        })
    }

    fn store(&self, word: &Word, value: u64, order: Ordering, at: &'static Point) {
        self.step(Some(at), || {
            word.0.store(value, order);
            ((), Some(Access::Store { offset: self.offset(word), value, nontemporal: false }))
        });
    }

    fn compare_exchange(
        &self,
        word: &Word,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
        at: &'static Point,
    ) -> Result<u64, u64> {
        self.step(Some(at), || {
            let result = word.0.compare_exchange(current, new, success, failure);
            let (Ok(found) | Err(found)) = result;
            let exchanged = result.is_ok();
            let offset = self.offset(word);
            (result, Some(Access::CompareExchange { offset, found, new, exchanged }))
        })
    }

    fn store_nontemporal(&self, word: &Word, value: u64, at: &'static Point) {
        self.step(Some(at), || {
            word.0.store(value, Ordering::Relaxed);
            ((), Some(Access::Store { offset: self.offset(word), value, nontemporal: true }))
        });
    }

    fn flush(&self, words: &[Word], at: &'static Point) {
        if let Some(first) = words.first() {
            self.step(Some(at), || {
                let access =
                    Access::Flush { offset: self.offset(first), bytes: size_of_val(words) as u64 };
                ((), Some(access))
            });
        }
    }

    fn fence(&self, at: &'static Point) {
        self.step(Some(at), || {
            std::sync::atomic::fence(Ordering::SeqCst);
            ((), Some(Access::Fence))
        });
    }

    fn wait(&self, turn: &mut u32) {
        *turn += 1;
        self.before(true);
        if self.0.control.is_none() {
            std::thread::yield_now();
        }
    }

    fn lock<'a, T: ?Sized>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        let mut turn = 0;
        loop {
            match mutex.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(e)) => return e.into_inner(),
                Err(TryLockError::WouldBlock) => self.wait(&mut turn),
            }
        }
    }

    fn mark(&self, mark: impl FnOnce() -> Mark) {
        self.step(None, || ((), Some(Access::Mark(mark()))));
    }
}

/// What a stretch of a trace cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Stores, compare-exchanges that succeeded included.
    pub stores: u64,
    /// Lines flushed.
    pub lines: u64,
    /// Fences.
    pub fences: u64,
    /// Distinct lines read; 0 where loads were not recorded.
    pub lines_read: u64,
}

impl Counts {
    /// Counts the events.
    pub fn of(events: &[Event]) -> Counts {
        let line = size_of::<[u64; 8]>() as u64;
        let mut counts = Counts::default();
        let mut read = std::collections::HashSet::new();
        for event in events {
            match &event.access {
                Access::Load { offset, .. } => {
                    read.insert(offset / line);
                }
                Access::Store { .. } => counts.stores += 1,
                Access::CompareExchange { exchanged, .. } => counts.stores += u64::from(*exchanged),
                Access::Flush { offset, bytes } => {
                    counts.lines += (offset + bytes).div_ceil(line) - offset / line;
                }
                Access::Fence => counts.fences += 1,
                Access::Mark(_) => {}
            }
        }
        counts.lines_read = read.len() as u64;
        counts
    }
}
