//! The seam of the test harness. It records every access, and every access is a point where another
//! thread may run or a fault may strike.

mod counts;

pub use counts::Counts;

use super::seam::{Mark, Point, Seam, Seeded, SeededBug};
use super::word::LINE;
use super::{OfShared, Word};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// What one access did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// A word was read.
    Load {
        /// Its offset in the pool.
        offset: u64,
        /// The value read.
        value: u64,
    },
    /// A word was written, through the caches or past them.
    Store {
        /// Its offset in the pool.
        offset: u64,
        /// The value written.
        value: u64,
        /// Whether the store bypassed the caches.
        nontemporal: bool,
    },
    /// A word was compared and exchanged.
    CompareExchange {
        /// Its offset in the pool.
        offset: u64,
        /// The value it held.
        found: u64,
        /// The value it was to get.
        new: u64,
        /// Whether it was exchanged.
        exchanged: bool,
    },
    /// Lines were flushed: every line that holds one of these bytes.
    Flush {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// The thread's flushes completed.
    Fence,
    /// DRAM that threads share was read or written. Recorded only if loads are.
    Dram,
    /// An operation began or returned, or the process died.
    Mark(Mark),
}

/// One recorded access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The thread, numbered in the order of first access, or as it requested.
    pub thread: usize,
    /// The commit point, if the access has one.
    pub point: Option<&'static Point>,
    /// The access itself.
    pub access: Access,
}

/// Decides, before each access, whether it happens now.
///
/// A scheduler blocks in `before` until it is this thread's turn. A fault stops the thread there,
/// by unwinding or forever.
pub trait Control: Send + Sync {
    /// Called before each access and at each turn of waiting.
    fn before(&self, thread: usize, waiting: bool);

    /// Called before a mutex is locked, which is not an access to the pool.
    fn before_lock(&self, _thread: usize) {}

    /// Called after each recorded access, by the thread that made it.
    fn after(&self, _access: &Access, _at: Option<&'static Point>) {}

    /// Whether `before` is called only at turns of waiting.
    fn only_waiting(&self) -> bool {
        false
    }
}

/// A set of lines, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineSet(Vec<u64>);

impl LineSet {
    /// Returns whether the set contains a line.
    pub fn contains(&self, line: u64) -> bool {
        let bits = self.0.get((line / 64) as usize).copied().unwrap_or(0);
        bits >> (line % 64) & 1 == 1
    }

    /// Adds the lines of another set.
    pub fn extend(&mut self, other: &LineSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(own, more)| *own |= more);
    }
}

/// Keeps a digest of what was read instead of a log: for a recorder that sees thousands of pools a
/// second.
struct Watch {
    /// One bit per word that was read or stored.
    seen: Box<[AtomicU64]>,
    /// One bit per line with a word that was read before it was stored.
    lines: Box<[AtomicU64]>,
    /// A sum over the words that were read before they were stored. It does not depend on their
    /// order.
    digest: AtomicU64,
}

impl Watch {
    fn new(bytes: u64) -> Watch {
        let bits = |bits: u64| (0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Watch { seen: bits(bytes / 8), lines: bits(bytes / LINE), digest: AtomicU64::new(0) }
    }

    /// Sets a bit. Returns whether it was set before or does not exist.
    fn set(bits: &[AtomicU64], bit: u64) -> bool {
        let Some(word) = bits.get((bit / 64) as usize) else { return true };
        let mask = 1 << (bit % 64);
        // Most bits are set already, and a load is cheaper.
        word.load(Ordering::Relaxed) & mask != 0
            || word.fetch_or(mask, Ordering::Relaxed) & mask != 0
    }

    fn read(&self, offset: u64, value: u64) {
        if !Self::set(&self.seen, offset / 8) {
            Self::set(&self.lines, offset / LINE);
            self.digest.fetch_add(mix(offset, value), Ordering::Relaxed);
        }
    }

    fn stored(&self, offset: u64) {
        Self::set(&self.seen, offset / 8);
    }
}

/// Hashes a word together with its offset.
fn mix(offset: u64, value: u64) -> u64 {
    let product = u128::from(value ^ 0xa076_1d64_78bd_642f)
        * u128::from(offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xe703_7ed1_a0b4_28db);
    let folded = (product ^ (product >> 64)) as u64;
    folded.wrapping_mul(0x9fb2_1c65_1e98_df25) ^ (folded >> 29)
}

/// The requests for space since [`Traced::refuse`].
#[derive(Default)]
struct Requests {
    /// The size of each, in bytes.
    sizes: Vec<u64>,
    /// Whether they are counted, and the numbers of those to refuse.
    refused: Option<Range<usize>>,
}

struct Inner {
    base: AtomicUsize,
    recording: AtomicBool,
    loads: AtomicBool,
    reuses: AtomicBool,
    watch: Option<Watch>,
    events: Mutex<Vec<Event>>,
    control: Option<Box<dyn Control>>,
    /// Whether `control` is called before each access.
    controlled: bool,
    threads: AtomicUsize,
    seeded: Option<Seeded>,
    requests: Mutex<Requests>,
    /// Distinguishes the thread numbers of different recorders.
    id: usize,
}

/// A seam that records every access. Clones share one record.
#[derive(Clone)]
pub struct Traced(Arc<Inner>);

static RECORDERS: AtomicUsize = AtomicUsize::new(1);

thread_local! {
    static THREAD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    static SEEDED: Cell<Option<Seeded>> = const { Cell::new(None) };
}

impl Default for Traced {
    fn default() -> Self {
        Self::new()
    }
}

impl Traced {
    /// Creates a recorder that is not recording yet.
    pub fn new() -> Self {
        Self::build(None, None)
    }

    /// Creates a recorder whose accesses `control` releases one by one.
    pub fn with_control(control: Box<dyn Control>) -> Self {
        Self::build(Some(control), None)
    }

    /// Creates a recorder that also keeps a digest of what is read, and the set of lines read, in
    /// the first `bytes` of the pool.
    pub fn watching(control: Box<dyn Control>, bytes: u64) -> Self {
        Self::build(Some(control), Some(Watch::new(bytes)))
    }

    fn build(control: Option<Box<dyn Control>>, watch: Option<Watch>) -> Self {
        Traced(Arc::new(Inner {
            base: AtomicUsize::new(0),
            recording: AtomicBool::new(false),
            loads: AtomicBool::new(false),
            reuses: AtomicBool::new(false),
            watch,
            events: Mutex::new(Vec::new()),
            controlled: control.as_ref().is_some_and(|c| !c.only_waiting()),
            control,
            threads: AtomicUsize::new(0),
            seeded: SEEDED.get(),
            requests: Mutex::default(),
            id: RECORDERS.fetch_add(1, Ordering::Relaxed),
        }))
    }

    /// Whether this recorder makes the given bug.
    fn makes(&self, bug: Seeded) -> bool {
        self.0.seeded == Some(bug)
    }

    /// Returns whether the calling thread seeds this bug into code that has no recorder.
    #[must_use]
    pub fn seeds(bug: &'static SeededBug) -> bool {
        SEEDED.get() == Some(Seeded::InCode(bug))
    }

    /// Runs `during`. Recorders that this thread creates meanwhile have this seeded bug.
    pub fn seeding<T>(bug: Option<Seeded>, during: impl FnOnce() -> T) -> T {
        let before = SEEDED.replace(bug);
        let result = during();
        SEEDED.set(before);
        result
    }

    /// Makes the allocator reuse freed blocks immediately; see [`Seam::reuses_at_once`].
    pub fn reuse_at_once(&self) {
        self.0.reuses.store(true, Ordering::Relaxed);
    }

    /// Counts the requests for space from now on, and refuses those with these numbers.
    pub fn refuse(&self, numbers: Range<usize>) {
        *self.requests() = Requests { sizes: Vec::new(), refused: Some(numbers) };
    }

    /// Refuses no more requests for space, if one was refused. Returns whether one was.
    pub fn relent(&self) -> bool {
        let mut requests = self.requests();
        let made = requests.sizes.len();
        match &mut requests.refused {
            Some(numbers) if numbers.start < made => {
                // Never again: there will not be so many.
                *numbers = usize::MAX..usize::MAX;
                true
            }
            _ => false,
        }
    }

    /// Returns the sizes of the requests for space since [`refuse`](Traced::refuse), in bytes.
    pub fn requested(&self) -> Vec<u64> {
        self.requests().sizes.clone()
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.0.requests.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Starts recording. `loads` says whether loads are recorded too.
    pub fn start(&self, loads: bool) {
        self.0.loads.store(loads, Ordering::SeqCst);
        self.0.recording.store(true, Ordering::SeqCst);
    }

    /// Stops recording and returns what was recorded.
    pub fn take(&self) -> Vec<Event> {
        self.0.recording.store(false, Ordering::SeqCst);
        self.0.loads.store(false, Ordering::SeqCst);
        std::mem::take(&mut self.events())
    }

    /// Gives the calling thread a number, for runs that must be reproducible. No other thread may
    /// have that number or get it at its first access.
    pub fn number_this_thread(&self, number: usize) {
        THREAD.set((self.0.id, number));
    }

    /// Adds to the watch a word that was read before the memory was attached.
    pub fn saw(&self, offset: u64, value: u64) {
        if let Some(watch) = &self.0.watch {
            watch.read(offset, value);
        }
    }

    /// Returns a digest of every word that was read before it was stored, with its offset. It does
    /// not depend on the order of the reads. It is 0 if there is no watch.
    pub fn digest(&self) -> u64 {
        self.0.watch.as_ref().map_or(0, |w| w.digest.load(Ordering::Relaxed))
    }

    /// Returns the lines that contain the words of the [digest](Self::digest).
    pub fn lines_read(&self) -> LineSet {
        let lines = self.0.watch.iter().flat_map(|w| &w.lines);
        LineSet(lines.map(|bits| bits.load(Ordering::Relaxed)).collect())
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

    fn exchange(
        &self,
        word: &Word,
        (current, new): (u64, u64),
        (success, failure): (Ordering, Ordering),
        at: &'static Point,
    ) -> Result<u64, u64> {
        let result = self.step(Some(at), || {
            let result = word.0.compare_exchange(current, new, success, failure);
            let (Ok(found) | Err(found)) = result;
            let exchanged = result.is_ok();
            let offset = self.offset(word);
            (result, Some(Access::CompareExchange { offset, found, new, exchanged }))
        });
        if let Some(watch) = &self.0.watch {
            let (Ok(found) | Err(found)) = result;
            watch.read(self.offset(word), found);
        }
        result
    }

    fn note_store(&self, word: &Word) {
        if let Some(watch) = &self.0.watch {
            watch.stored(self.offset(word));
        }
    }

    fn before(&self, waiting: bool) {
        if !waiting && !self.0.controlled {
            return;
        }
        if let Some(control) = &self.0.control {
            control.before(self.thread(), waiting);
        }
    }

    /// Performs an access and records it in one step, so the record has the order in which the
    /// accesses took effect.
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
    // Off: the harness opens and verifies pools thousands of times a second, and the system calls
    // for asymmetric fences took a fifth of its time.
    const ASYMMETRIC_FENCES: bool = false;

    fn attach(&self, base: *const u8) {
        self.0.base.store(base.addr(), Ordering::Relaxed);
    }

    fn load(&self, word: &Word, order: Ordering) -> u64 {
        let value = if self.0.loads.load(Ordering::Relaxed) {
            self.step(None, || {
                let value = word.0.load(order);
                (value, Some(Access::Load { offset: self.offset(word), value }))
            })
        } else {
            self.before(false);
            word.0.load(order)
        };
        if let Some(watch) = &self.0.watch {
            watch.read(self.offset(word), value);
        }
        value
    }

    /// Makes one scheduling point for the line, and records a load of each word in `mask`.
    fn matching(&self, line: &[Word; 8], mask: u32, word: u64) -> u32 {
        self.before(false);
        let records =
            self.0.recording.load(Ordering::Relaxed) && self.0.loads.load(Ordering::Relaxed);
        let mut events = records.then(|| self.events());
        let mut found = 0;
        for (number, place) in line.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1) {
            let (offset, value) = (self.offset(place), place.0.load(Ordering::Relaxed));
            found |= u32::from(value == word) << number;
            if let Some(events) = &mut events {
                let access = Access::Load { offset, value };
                if let Some(control) = &self.0.control {
                    control.after(&access, None);
                }
                events.push(Event { thread: self.thread(), point: None, access });
            }
            if let Some(watch) = &self.0.watch {
                watch.read(offset, value);
            }
        }
        found
    }

    fn reuses_at_once(&self) -> bool {
        self.0.reuses.load(Ordering::Relaxed)
    }

    fn seeded(&self, bug: &'static SeededBug) -> bool {
        self.makes(Seeded::InCode(bug))
    }

    fn store(&self, word: &Word, value: u64, order: Ordering, at: &'static Point) {
        if self.makes(Seeded::TornStore(at)) {
            self.step(Some(at), || {
                let value = word.0.load(Ordering::Relaxed) >> 32 << 32 | value & 0xffff_ffff;
                word.0.store(value, order);
                ((), Some(Access::Store { offset: self.offset(word), value, nontemporal: false }))
            });
        }
        self.note_store(word);
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
        if self.makes(Seeded::TornStore(at)) {
            let half = current >> 32 << 32 | new & 0xffff_ffff;
            if half != current && half != new {
                self.exchange(word, (current, half), (success, failure), at)?;
                return self.exchange(word, (half, new), (success, failure), at);
            }
        }
        self.exchange(word, (current, new), (success, failure), at)
    }

    fn store_nontemporal(&self, word: &Word, value: u64, at: &'static Point) {
        self.note_store(word);
        self.step(Some(at), || {
            word.0.store(value, Ordering::Relaxed);
            ((), Some(Access::Store { offset: self.offset(word), value, nontemporal: true }))
        });
    }

    fn flush(&self, words: &[Word], at: &'static Point) {
        if self.makes(Seeded::NoFlush(at)) {
            return;
        }
        if let Some(first) = words.first() {
            self.step(Some(at), || {
                let wrong = if self.makes(Seeded::WrongLine(at)) { LINE } else { 0 };
                let offset = self.offset(first) + wrong;
                let access = Access::Flush { offset, bytes: size_of_val(words) as u64 };
                ((), Some(access))
            });
        }
    }

    fn fence(&self, at: &'static Point) {
        if self.makes(Seeded::NoFence(at)) {
            return;
        }
        self.step(Some(at), || {
            std::sync::atomic::fence(Ordering::SeqCst);
            ((), Some(Access::Fence))
        });
    }

    fn shared(&self, _by: OfShared) {
        if self.0.loads.load(Ordering::Relaxed) {
            self.step(None, || ((), Some(Access::Dram)));
        } else {
            self.before(false);
        }
    }

    fn wait(&self, turn: &mut u32) {
        *turn += 1;
        self.before(true);
        if self.0.control.is_none() {
            std::thread::yield_now();
        }
    }

    fn lock<'a, T: ?Sized>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        if self.0.controlled
            && let Some(control) = &self.0.control
        {
            control.before_lock(self.thread());
        }
        let mut turn = 0;
        loop {
            match mutex.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(e)) => return e.into_inner(),
                Err(TryLockError::WouldBlock) => self.wait(&mut turn),
            }
        }
    }

    fn refuses(&self, bytes: u64) -> bool {
        let mut requests = self.requests();
        let number = requests.sizes.len();
        let Some(refused) = &requests.refused else { return false };
        let refuses = refused.contains(&number);
        requests.sizes.push(bytes);
        refuses
    }

    fn mark(&self, mark: impl FnOnce() -> Mark) {
        self.step(None, || ((), Some(Access::Mark(mark()))));
    }
}

#[cfg(test)]
mod tests;
