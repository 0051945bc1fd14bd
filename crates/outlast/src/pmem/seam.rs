//! The seam: the one way to read, write, flush and order persistent memory.
//!
//! [`Seam`] is a type parameter of the pool and of every index. The public maps fix it
//! to [`Real`](super::Real), which compiles to the bare instructions;
//! [`Traced`](super::Traced) records every access for the proof harness. Nothing else
//! in the library touches mapped memory.

use super::Word;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

/// A commit point: the identity of one flush, fence or commit store in one operation.
///
/// It is named by the operation that needs it and handed down to the helper that
/// performs it, so that the proof harness can drop, delay or shorten exactly this one.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point {
    /// Who declares it: `pool`, `dash-eh`, ...
    pub owner: &'static str,
    /// Its row in the owner's table of commit points.
    pub name: &'static str,
}

/// Declares the commit points of one owner as a module-level table.
#[macro_export]
#[doc(hidden)]
macro_rules! commit_points {
    ($owner:literal: $($(#[$doc:meta])* $id:ident = $name:literal;)*) => {
        $($(#[$doc])* pub static $id: $crate::pmem::Point =
            $crate::pmem::Point { owner: $owner, name: $name };)*
        /// Every commit point declared here, in the order of the table.
        pub static ALL: &[&$crate::pmem::Point] = &[$(&$id),*];
    };
}

/// A call of the index interface, as the recorder sees it: its begin and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// An operation begins; the text names it for a person.
    Begin(String),
    /// The calling thread's operation has answered.
    End(String),
    /// The process died and another one took over, or will: flushes that no fence has
    /// completed never do, stores stay in the caches.
    Death,
}

/// How persistent memory is accessed.
///
/// All methods take words by reference: whoever has a `&Word` has already had its
/// offset checked.
pub trait Seam: Clone + Send + Sync + 'static {
    /// Tells the seam where the memory is. Called once, before any access.
    fn attach(&self, _base: *const u8) {}

    /// Reads a word.
    fn load(&self, word: &Word, order: Ordering) -> u64;

    /// Writes a word.
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

    /// Writes a word past the caches. Durable after the next [`Seam::fence`].
    ///
    /// Must not share a line with an unfenced cached store whose order matters.
    fn store_nontemporal(&self, word: &Word, value: u64, at: &'static Point);

    /// Starts the write-back of every line that holds one of `words`.
    fn flush(&self, words: &[Word], at: &'static Point);

    /// Waits until this thread's earlier flushes and non-temporal stores are durable.
    fn fence(&self, at: &'static Point);

    /// Asks for a line before it is needed. A hint.
    #[inline]
    fn prefetch(&self, _word: &Word) {}

    /// One turn of waiting for another thread, in a loop. `turn` counts the turns.
    fn wait(&self, turn: &mut u32);

    /// Locks a mutex in DRAM; another thread may run while this one waits.
    ///
    /// A poisoned mutex is taken as it is: no code that can panic by the user's doing
    /// runs under one of ours.
    fn lock<'a, T: ?Sized>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        mutex.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes an operation boundary. The text is made only where someone records.
    #[inline]
    fn mark(&self, _mark: impl FnOnce() -> Mark) {}
}
