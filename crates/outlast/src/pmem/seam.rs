//! The seam: the only way to read, write, flush and order persistent memory.
//!
//! [`Seam`] is a type parameter of the pool and of every index. The public maps fix it to
//! [`Real`](super::Real), which compiles to the bare instructions. [`Traced`](super::Traced)
//! records every access for the test harness. Nothing else in the library touches mapped memory.

use super::lanes::Lanes;
use super::{LINE, OfShared, SharedWord, Word};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

/// A commit point: identifies the stores, the flush and the fence of one step of one operation, and
/// says which of them that step performs.
///
/// The operation names the point and passes it to the helper that performs the accesses. So the
/// test harness can drop, delay or weaken exactly this step.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// The component that declares it: `pool`, `dash-eh`, ...
    pub owner: &'static str,
    /// Its row in the component's table of commit points.
    pub name: &'static str,
    /// Whether the step stores.
    pub store: bool,
    /// Whether the step flushes lines.
    pub flush: bool,
    /// Whether the step fences.
    pub fence: bool,
    /// Whether the stores are never meant to be durable: DRAM state that lies in PM, or a mark that
    /// only saves a later open some work.
    pub volatile: bool,
    /// Whether a later open relies on these volatile stores if it finds them.
    pub relied_on: bool,
}

impl Point {
    /// Declares a point that does nothing yet.
    pub const fn new(owner: &'static str, name: &'static str) -> Point {
        Point {
            owner,
            name,
            store: false,
            flush: false,
            fence: false,
            volatile: false,
            relied_on: false,
        }
    }

    /// Adds stores to the point.
    #[must_use]
    pub const fn store(self) -> Point {
        Point { store: true, ..self }
    }

    /// Adds a flush to the point.
    #[must_use]
    pub const fn flush(self) -> Point {
        Point { flush: true, ..self }
    }

    /// Adds a fence to the point.
    #[must_use]
    pub const fn fence(self) -> Point {
        Point { fence: true, ..self }
    }

    /// Adds stores that are never meant to be durable.
    #[must_use]
    pub const fn volatile(self) -> Point {
        Point { store: true, volatile: true, ..self }
    }

    /// Adds stores that are never flushed. They may be lost, but are only made once what they say is
    /// durable.
    #[must_use]
    pub const fn lazy(self) -> Point {
        Point { relied_on: true, ..self.volatile() }
    }
}

/// Declares the commit points of one component as a module-level table. Each row has a name and,
/// after a colon, what the step does: some of `store`, `flush` and `fence`, or `volatile` or `lazy` for
/// stores that are never flushed.
macro_rules! commit_points {
    ($owner:literal $(and $others:path)?:
        $($(#[$doc:meta])* $id:ident = $name:literal: $($does:ident),+;)*) => {
        $($(#[$doc])* pub static $id: $crate::pmem::Point =
            $crate::pmem::Point::new($owner, $name)$(.$does())+;)*
        /// Every commit point declared here, in table order.
        pub static ALL: &[&$crate::pmem::Point] = &[$(&$id),*];
        /// These points, preceded by those of the code that this component is built on.
        pub static PARTS: &[&[&$crate::pmem::Point]] = &[$($others,)? ALL];
    };
}

/// A seeded bug. The code that names it misbehaves if the recorder is set to make this bug.
/// Declared by `seeded_bugs!`, beside that code.
#[derive(Debug, PartialEq, Eq)]
pub struct SeededBug {
    /// The name of the bug in reports. It is unique.
    pub name: &'static str,
}

/// Does something wrong, or too early, if this bug is seeded. Like all code of seeded bugs, it is not in
/// the library that users get.
macro_rules! seed {
    ($seam:expr, $bug:path => $($wrong:tt)+) => { if $seam.seeded(&$bug) { $($wrong)+; } };
    ($bug:path => $($wrong:tt)+) => { if seeded(&$bug) { $($wrong)+; } };
}

/// Does what is right, which this bug leaves out if it is seeded.
macro_rules! unless_seeded {
    ($seam:expr, $bug:path => $($right:tt)+) => { if !$seam.seeded(&$bug) { $($right)+; } };
    ($bug:path => $($right:tt)+) => { if !seeded(&$bug) { $($right)+; } };
}

/// Declares the seeded bugs of a module: identifier and name of each.
macro_rules! seeded_bugs {
    ($($(#[$doc:meta])* $id:ident = $name:literal;)*) => {
        $($(#[$doc])* pub static $id: $crate::pmem::SeededBug =
            $crate::pmem::SeededBug { name: $name };)*
    };
}

pub(crate) use {commit_points, seeded_bugs};

/// A bug that the proof harness seeds, to show that it finds the bug. The bugs at commit points are
/// made by the recorder itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seeded {
    /// Flushes at this point are skipped.
    NoFlush(&'static Point),
    /// Fences at this point are skipped.
    NoFence(&'static Point),
    /// Flushes at this point flush the line after the one that was stored to.
    WrongLine(&'static Point),
    /// Words are stored in two halves at this point.
    TornStore(&'static Point),
    /// The code that names this bug makes it.
    InCode(&'static SeededBug),
}

/// A mark in the recorded trace: the beginning or the end of an operation, such as a call of the
/// index interface or the opening of the pool, or the death of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// An operation begins. The text describes it for the reader of a report.
    Begin(String),
    /// The calling thread's operation has returned. The text names the operation.
    End(String),
    /// The process died, and another one has taken over or will. Flushes that no fence has
    /// completed never complete; stores stay in the caches.
    Death,
}

/// Access to persistent memory.
///
/// All methods take words by reference: a caller that holds a `&Word` has had its offset checked.
pub trait Seam: Clone + Send + Sync + 'static {
    /// Whether one thread may issue a fence for all threads with a system call, so that the fences
    /// of the others cost nothing. The call interrupts every core.
    const ASYMMETRIC_FENCES: bool = true;

    /// Whether long byte strings may be copied past [`load`](Seam::load) and [`store`](Seam::store),
    /// by the processor's widest accesses.
    const COPIES_WIDE: bool = false;

    /// Tells the seam the address of the memory. Called once, before any access.
    fn attach(&self, _base: *const u8) {}

    /// Loads a word.
    fn load(&self, word: &Word, order: Ordering) -> u64;

    /// Stores a word.
    fn store(&self, word: &Word, value: u64, order: Ordering, at: &'static Point);

    /// Compares and exchanges a word. Not a fence for durability.
    fn compare_exchange(
        &self,
        word: &Word,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
        at: &'static Point,
    ) -> Result<u64, u64>;

    /// Stores a word past the caches. It is durable after the next [`Seam::fence`].
    ///
    /// The word must not share a line with an unfenced cached store whose order matters.
    fn store_nontemporal(&self, word: &Word, value: u64, at: &'static Point);

    /// Stores words that nothing links to yet, a whole number of lines, and starts the flush of their
    /// lines. No line is shared with another structure.
    fn store_lines(&self, words: &[Word], values: &[u64], at: &'static Point) {
        const LINE_WORDS: usize = LINE as usize / 8;
        for (line, values) in words.chunks(LINE_WORDS).zip(values.chunks(LINE_WORDS)) {
            for (word, value) in line.iter().zip(values) {
                self.store(word, *value, Ordering::Relaxed, at);
            }
            self.flush(line, at);
        }
    }

    /// Starts the flush of every line that holds one of `words`.
    fn flush(&self, words: &[Word], at: &'static Point);

    /// Waits until this thread's earlier flushes and non-temporal stores are durable.
    fn fence(&self, at: &'static Point);

    /// Returns the words of a line that hold `word`, as a bit mask, among those in `mask`. A
    /// concurrent store can make the result wrong, so it is only a filter.
    #[inline(always)]
    fn matching(&self, line: &[Word; 8], mask: u32, word: u64) -> u32 {
        let bit = |i: usize| u32::from(self.load(&line[i], Ordering::Relaxed) == word) << i;
        (0..8).filter(|i| mask >> i & 1 == 1).fold(0, |found, i| found | bit(i))
    }

    /// See [`SharedWord::count_up_to`](super::Shared::count_up_to), which has made the scheduling point.
    #[inline(always)]
    fn count_up_to(&self, line: &[SharedWord; 8], limit: u64) -> usize {
        Lanes::Plain.count_up_to(line, limit)
    }

    /// Prefetches the cache line at `line`. A hint.
    #[inline(always)]
    fn prefetch<T>(&self, _line: &T) {}

    /// The scheduling point before an access to a [`Shared`](super::Shared). Only `Shared` can call
    /// it.
    #[inline(always)]
    fn shared(&self, _by: OfShared) {}

    /// Makes one turn of a loop that waits for another thread. `turn` counts the turns.
    fn wait(&self, turn: &mut u32);

    /// Locks a mutex in DRAM. Another thread may run while this one waits.
    ///
    /// Poisoning is ignored: no code that a user can make panic runs under one of our mutexes.
    fn lock<'a, T: ?Sized>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        mutex.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether the allocator exposes uses of freed blocks. If so, it reuses a freed block before
    /// any other; it checks on every retirement which retired blocks can be freed; and it
    /// overwrites freed blocks. Code that still follows a link to a freed block then finds other
    /// content. For the test harness only: with [`Real`](super::Real), the allocator spreads reuse.
    #[inline(always)]
    fn reuses_at_once(&self) -> bool {
        false
    }

    /// Returns whether the code should misbehave here as this seeded bug describes. For
    /// [`Real`](super::Real) this is the constant `false`, so the compiler removes the bug's code.
    #[inline(always)]
    fn seeded(&self, _bug: &'static SeededBug) -> bool {
        false
    }

    /// Returns whether the request for this much space, in bytes, is to be refused, as if the pool or
    /// the disk were full. Only the proof harness refuses any.
    #[inline(always)]
    fn refuses(&self, _bytes: u64) -> bool {
        false
    }

    /// Records a mark, which is built only if the seam records anything.
    #[inline]
    fn mark(&self, _mark: impl FnOnce() -> Mark) {}
}
