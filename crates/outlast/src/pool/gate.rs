//! The gate: who may store to the pool, and when nobody may.
//!
//! Every operation that stores passes the gate. That makes three things cheap: marking
//! the pool dirty before its first store, holding all writers back for `sync`,
//! `snapshot` and `close`, and refusing operations on a pool that is closed or whose
//! structures a panic left locked.
//!
//! ```text
//!            first store               sync, snapshot
//!   CLEAN ----------------> OPEN <----------------------> HELD
//!     ^                      |                             |
//!     |   sync done          | panic inside an operation   | close
//!     +----------------------|-----------------------------+----> CLOSED
//!                            +----> POISONED
//! ```

use crate::error::{Error, Result};
use crate::pmem::Seam;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const CLEAN: u32 = 1;
const OPEN: u32 = 2;
const HELD: u32 = 3;
const CLOSED: u32 = 4;
const POISONED: u32 = 5;

const SHARDS: usize = 32;

#[repr(align(128))]
#[derive(Default)]
struct Shard(AtomicUsize);

/// See the module's documentation.
pub struct Gate {
    state: AtomicU32,
    shards: [Shard; SHARDS],
}

/// The right to store to the pool. Given back when dropped.
///
/// If the holder unwinds, whatever it had locked stays locked: the gate is poisoned, so
/// that others get an error instead of waiting for ever.
pub struct Writing<'g> {
    gate: &'g Gate,
    shard: &'g Shard,
    /// Whether the thread was unwinding already: then that is no failure of ours.
    unwinding: bool,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            self.gate.state.store(POISONED, Ordering::SeqCst);
        }
        // Release: pairs with the Acquire in `hold`, which then sees our stores.
        self.shard.0.fetch_sub(1, Ordering::Release);
    }
}

/// What `try_enter` found.
pub enum Entered<'g> {
    /// Go ahead.
    Writing(Writing<'g>),
    /// The pool must be marked dirty first.
    MarkDirty,
    /// Someone holds all writers back; wait.
    Wait,
}

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Gives the calling thread its number, where a run must be the same each time.
pub fn number_this_thread(number: usize) {
    NUMBER.set(number);
}

/// A small number for the calling thread, for choosing among shards.
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NUMBER.with(|n| {
        if n.get() == usize::MAX {
            n.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        n.get()
    })
}

impl Gate {
    /// A gate before which the pool is clean, or (`open`) needs no mark.
    pub fn new(open: bool) -> Self {
        Gate { state: AtomicU32::new(if open { OPEN } else { CLEAN }), shards: Default::default() }
    }

    /// Asks to store.
    #[inline]
    pub fn try_enter(&self) -> Result<Entered<'_>> {
        let shard = &self.shards[thread_number() % SHARDS];
        // SeqCst, here and in `hold`: either the holder sees our count or we see its
        // state; both cannot be missed.
        shard.0.fetch_add(1, Ordering::SeqCst);
        let state = self.state.load(Ordering::SeqCst);
        if state == OPEN {
            let unwinding = std::thread::panicking();
            return Ok(Entered::Writing(Writing { gate: self, shard, unwinding }));
        }
        shard.0.fetch_sub(1, Ordering::Release);
        match state {
            CLEAN => Ok(Entered::MarkDirty),
            HELD => Ok(Entered::Wait),
            _ => self.check().map(|()| Entered::Wait),
        }
    }

    /// Whether the pool can be read.
    #[inline]
    pub fn check(&self) -> Result<()> {
        match self.state.load(Ordering::Relaxed) {
            CLOSED => Err(Error::NotOpen("it was closed")),
            POISONED => Err(Error::NotOpen("a thread panicked inside an operation")),
            _ => Ok(()),
        }
    }

    /// Threads inside.
    pub fn inside(&self) -> usize {
        self.shards.iter().map(|s| s.0.load(Ordering::SeqCst)).sum()
    }

    /// The pool was marked dirty: open the gate.
    pub fn marked_dirty(&self) {
        let _ = self.state.compare_exchange(CLEAN, OPEN, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Whether the dirty mark is set.
    pub fn is_clean(&self) -> bool {
        self.state.load(Ordering::SeqCst) == CLEAN
    }

    /// Holds writers back and waits for those inside. Returns whether the pool was
    /// dirty. Callers are serialised by the header's lock.
    pub fn hold(&self, seam: &impl Seam) -> Result<Held<'_>> {
        let before = self.state.load(Ordering::SeqCst);
        if before != CLEAN && before != OPEN {
            self.check()?;
            return Err(Error::NotOpen("it is being closed"));
        }
        self.state.store(HELD, Ordering::SeqCst);
        let held = Held { gate: self, after: before, dirty: before == OPEN };
        let mut turn = 0;
        // Acquire: see `Writing::drop`.
        while self.shards.iter().any(|s| s.0.load(Ordering::SeqCst) != 0) {
            seam.wait(&mut turn);
            self.check()?;
        }
        Ok(held)
    }
}

/// All writers are held back until this is dropped.
pub struct Held<'g> {
    gate: &'g Gate,
    after: u32,
    /// Whether the pool carries the dirty mark.
    pub dirty: bool,
}

impl Held<'_> {
    /// The pool was made clean: the next store marks it dirty again.
    pub fn now_clean(&mut self) {
        self.after = CLEAN;
    }

    /// The pool is closed for good.
    pub fn now_closed(&mut self) {
        self.after = CLOSED;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // A panic elsewhere may have poisoned the gate meanwhile: that stays.
        let _ =
            self.gate.state.compare_exchange(HELD, self.after, Ordering::SeqCst, Ordering::SeqCst);
    }
}
