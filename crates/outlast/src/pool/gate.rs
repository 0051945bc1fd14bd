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
use crate::reclaim::threads::{OWNERS, heavy_fence, light_fence, thread_number};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const CLEAN: u32 = 1;
const OPEN: u32 = 2;
const HELD: u32 = 3;
const CLOSED: u32 = 4;
const POISONED: u32 = 5;

/// Slots for threads that have none of their own.
const SHARED: usize = 16;

/// How many operations of some thread are inside.
#[repr(align(128))]
#[derive(Default)]
struct Slot(AtomicUsize);

/// See the module's documentation.
///
/// Who passes the gate counts itself in and then looks at the state; who holds it sets the
/// state and then looks at the counts: one of them sees the other. That takes a full fence
/// on both sides, and it would be the dearest instruction of an operation: it waits for
/// every store before it to reach its line. So the holder, who is rare, makes the fence for
/// all threads ([`heavy_fence`]), and most threads have a slot of their own, which takes no
/// atomic addition.
pub struct Gate {
    state: AtomicU32,
    /// One for each of [`OWNERS`] threads.
    own: Box<[Slot; OWNERS]>,
    /// For all others.
    shared: Box<[Slot; SHARED]>,
    /// Whether the holder can make the fence for all.
    asymmetric: bool,
}

/// The right to store to the pool. Given back when dropped, by the thread that got it.
///
/// If the holder unwinds, whatever it had locked stays locked: the gate is poisoned, so
/// that others get an error instead of waiting for ever.
pub struct Writing<'g> {
    gate: &'g Gate,
    slot: &'g Slot,
    /// Not 0 if the slot is the thread's own. (A whole word, as the next one: what follows
    /// a smaller one is moved in pieces.)
    own: u64,
    /// Not 0 if the thread was unwinding already: then that is no failure of ours.
    unwinding: u64,
    /// Not to be sent to another thread.
    here: PhantomData<*const ()>,
}

impl Drop for Writing<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && self.unwinding == 0 {
            self.gate.state.store(POISONED, Ordering::SeqCst);
        }
        self.slot.leave(self.own != 0);
    }
}

/// As [`Writing`], and cheaper: to be given back by hand, whatever comes between. If it
/// is dropped, that is by a panic.
pub struct Brief<'g> {
    gate: &'g Gate,
    slot: &'g Slot,
    /// Not to be sent to another thread.
    here: PhantomData<*const ()>,
}

impl<'g> Brief<'g> {
    /// Gives the right back.
    #[inline(always)]
    pub fn leave(self) {
        self.slot.leave(true);
        std::mem::forget(self);
    }

    /// Keeps it for longer.
    #[inline]
    pub fn stay(self) -> Writing<'g> {
        let writing = Writing {
            gate: self.gate,
            slot: self.slot,
            own: 1,
            unwinding: u64::from(std::thread::panicking()),
            here: PhantomData,
        };
        std::mem::forget(self);
        writing
    }
}

impl Drop for Brief<'_> {
    #[cold]
    fn drop(&mut self) {
        self.gate.state.store(POISONED, Ordering::SeqCst);
        self.slot.leave(true);
    }
}

impl Slot {
    #[inline]
    fn enter(&self, own: bool) {
        if own {
            // Only this thread stores to it.
            self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        } else {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn leave(&self, own: bool) {
        // Release: pairs with the Acquire in `hold`, which then sees our stores.
        if own {
            self.0.store(self.0.load(Ordering::Relaxed) - 1, Ordering::Release);
        } else {
            self.0.fetch_sub(1, Ordering::Release);
        }
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

impl Gate {
    /// A gate before which the pool is clean, or (`open`) needs no mark. Whether its holder
    /// makes the [`heavy_fence`] for all threads (`asymmetric`).
    pub fn new(open: bool, asymmetric: bool) -> Self {
        Gate {
            state: AtomicU32::new(if open { OPEN } else { CLEAN }),
            own: Box::new(std::array::from_fn(|_| Slot::default())),
            shared: Box::default(),
            asymmetric,
        }
    }

    /// Passes the gate, if it is open, and the thread has a slot of its own.
    #[inline(always)]
    pub fn pass(&self) -> Option<Brief<'_>> {
        let slot = self.own.get(thread_number())?;
        self.pass_by(slot, true).then(|| Brief { gate: self, slot, here: PhantomData })
    }

    #[inline(always)]
    fn pass_by(&self, slot: &Slot, own: bool) -> bool {
        slot.enter(own);
        // Pairs with the fence in `hold`: either the holder sees our count or we see its
        // state; both cannot be missed.
        light_fence(self.asymmetric);
        // Acquire: what was done while the gate was held is seen.
        let passed = self.state.load(Ordering::Acquire) == OPEN;
        if !passed {
            slot.leave(own);
        }
        passed
    }

    /// As [`pass`](Gate::pass), or tells what to do about it.
    pub fn try_enter(&self) -> Result<Entered<'_>> {
        let number = thread_number();
        let (slot, own) = match self.own.get(number) {
            Some(slot) => (slot, true),
            None => (&self.shared[number % SHARED], false),
        };
        if self.pass_by(slot, own) {
            let (own, unwinding) = (u64::from(own), u64::from(std::thread::panicking()));
            let writing = Writing { gate: self, slot, own, unwinding, here: PhantomData };
            return Ok(Entered::Writing(writing));
        }
        match self.state.load(Ordering::SeqCst) {
            CLEAN => Ok(Entered::MarkDirty),
            // Opened meanwhile, or held.
            OPEN | HELD => Ok(Entered::Wait),
            _ => self.check().map(|()| Entered::Wait),
        }
    }

    /// Fails if the pool cannot be read.
    #[inline(always)]
    pub fn check(&self) -> Result<()> {
        if self.is_readable() { Ok(()) } else { self.refuse() }
    }

    /// Whether the pool can be read.
    #[inline(always)]
    pub fn is_readable(&self) -> bool {
        self.state.load(Ordering::Relaxed) < CLOSED
    }

    #[cold]
    fn refuse(&self) -> Result<()> {
        match self.state.load(Ordering::Relaxed) {
            CLOSED => Err(Error::NotOpen("it was closed")),
            POISONED => Err(Error::NotOpen("a thread panicked inside an operation")),
            _ => Ok(()),
        }
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.own.iter().chain(&*self.shared)
    }

    /// Threads inside.
    pub fn inside(&self) -> usize {
        self.slots().map(|s| s.0.load(Ordering::SeqCst)).sum()
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
        // From here on, so that the gate opens again should the fence fail.
        let held = Held { gate: self, after: before, dirty: before == OPEN };
        heavy_fence(self.asymmetric);
        let mut turn = 0;
        // Acquire: see `Slot::leave`.
        while self.slots().any(|s| s.0.load(Ordering::SeqCst) != 0) {
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
