//! The gate: which threads may store to the pool, and when none may.
//!
//! Every operation that stores passes the gate. That makes three things cheap: marking the pool
//! dirty before its first store; holding all writers back, for `sync`, `snapshot`, `verify`,
//! `close`, a batch or a cut of the journal; and refusing operations on a pool that is closed, or
//! in which a panic left structures locked.
//!
//! ```text
//!            first store               sync, snapshot
//!   CLEAN ----------------> OPEN <----------------------> HELD
//!     ^                      |                             |
//!     |   sync done          | panic inside an operation   | close
//!     +----------------------|-----------------------------+----> CLOSED
//!                            +----> POISONED
//! ```
//!
//! A clean gate can be held too; unless the pool is closed, the gate is CLEAN again afterwards. A
//! panic poisons the gate even while another thread waits to hold it.
//!
//! A thread that is inside may enter once more, even while another thread waits to hold the gate.
//!
//! The thread that holds the gate can [lend](Held::lend) itself the right to pass it, to make
//! changes while no other thread makes any.
//!
//! In the state WATCHED, threads may store as in OPEN. The next thread that enters for anything but
//! background work makes the gate OPEN again. So if the gate is still WATCHED after a while, only
//! background work has passed it. This detects an idle pool without counting operations.

use crate::error::{Error, NotOpen, Result};
use crate::pmem::Seam;
use crate::reclaim::threads::{OWNERS, heavy_fence, light_fence, thread_number};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CLEAN: u32 = 1;
const OPEN: u32 = 2;
const WATCHED: u32 = 3;
const HELD: u32 = 4;
const CLOSED: u32 = 5;
const POISONED: u32 = 6;

/// Slots for threads that have no slot of their own.
const SHARED: usize = 16;

/// A number that no thread has. (Threads that are exiting have `usize::MAX`.)
const NOBODY: usize = usize::MAX - 1;

/// The number of operations inside the gate, of one thread or of several that share the slot.
#[repr(align(128))]
#[derive(Default)]
struct Slot(AtomicUsize);

/// The gate of a pool; see the module's documentation.
///
/// A thread that passes the gate increments its count and then reads the state. A thread that holds
/// the gate sets the state and then reads the counts. So at least one of the two sees the other.
/// This takes a full fence on both sides, which would be the most expensive instruction of an
/// operation: it waits until every earlier store has reached its cache line. Holding the gate is
/// rare, so the holder issues the fence for all threads ([`heavy_fence`]). Most threads also have a
/// slot of their own, which they update without an atomic addition.
pub struct Gate {
    state: AtomicU32,
    /// One slot for each of [`OWNERS`] threads.
    own: Box<[Slot; OWNERS]>,
    /// Slots for all other threads.
    shared: Box<[Slot; SHARED]>,
    /// The number of the thread that may pass although the gate is held, or [`NOBODY`].
    lent_to: AtomicUsize,
    /// Whether the holder can issue the fence for all threads.
    asymmetric: bool,
}

/// The right to store to the pool. It ends when this is dropped, on the same thread.
///
/// If the thread unwinds, whatever it had locked stays locked. The gate is then poisoned, so that
/// other threads get an error instead of waiting forever.
pub struct Writing<'g> {
    gate: &'g Gate,
    slot: &'g Slot,
    /// Not 0 if the slot is the thread's own. This field and the next are words rather than
    /// `bool`s, because the compiler would move fields that come after a smaller one in pieces.
    own: u64,
    /// Not 0 if the thread was unwinding already when it entered. Such a panic does not poison the
    /// gate.
    unwinding: u64,
    /// Makes the type `!Send`.
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

/// A cheaper [`Writing`]. The holder must call [`leave`](Brief::leave) or [`stay`](Brief::stay) on
/// every path. Only a panic drops it, and that poisons the gate.
pub struct Brief<'g> {
    gate: &'g Gate,
    slot: &'g Slot,
    /// Makes the type `!Send`.
    here: PhantomData<*const ()>,
}

impl<'g> Brief<'g> {
    /// Gives up the right to store.
    #[inline(always)]
    pub fn leave(self) {
        self.slot.leave(true);
        std::mem::forget(self);
    }

    /// Converts it to a [`Writing`], to keep it for longer.
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
            // Only this thread stores to its own slot.
            self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        } else {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn leave(&self, own: bool) {
        // Release: pairs with the Acquire in `inside`, so that a holder sees our stores.
        if own {
            self.0.store(self.0.load(Ordering::Relaxed) - 1, Ordering::Release);
        } else {
            self.0.fetch_sub(1, Ordering::Release);
        }
    }
}

/// The outcome of [`Gate::try_enter`].
pub enum Entered<'g> {
    /// The gate was passed.
    Writing(Writing<'g>),
    /// The pool must be marked dirty first.
    MarkDirty,
    /// Another thread holds all writers back, or the state has just changed: wait a turn and try
    /// again.
    Wait,
}

impl Gate {
    /// Creates the gate of a pool that has to be marked dirty before the first store, or, if `open`
    /// is set, of a pool that needs no dirty mark. `asymmetric` says whether the holder issues the
    /// [`heavy_fence`] for all threads.
    pub fn new(open: bool, asymmetric: bool) -> Self {
        Gate {
            state: AtomicU32::new(if open { OPEN } else { CLEAN }),
            own: Box::new(std::array::from_fn(|_| Slot::default())),
            shared: Box::default(),
            lent_to: AtomicUsize::new(NOBODY),
            asymmetric,
        }
    }

    /// Passes the gate, if it is open and the thread has a slot of its own.
    #[inline(always)]
    pub fn pass(&self) -> Option<Brief<'_>> {
        let slot = self.own.get(thread_number())?;
        self.pass_by(slot, true, OPEN).then(|| Brief { gate: self, slot, here: PhantomData })
    }

    #[inline(always)]
    fn pass_by(&self, slot: &Slot, own: bool, also: u32) -> bool {
        slot.enter(own);
        // Pairs with the fence in `begin_to_hold`: either the holder sees our count, or we see its
        // state.
        light_fence(self.asymmetric);
        // Acquire: we see everything that was done while the gate was held.
        let state = self.state.load(Ordering::Acquire);
        let passed = state == OPEN || state == also;
        if !passed {
            slot.leave(own);
        }
        passed
    }

    /// Like [`pass`](Gate::pass), but if the thread cannot pass, says what it must do first.
    /// Background work does not end a watch.
    pub fn try_enter(&self, background: bool) -> Result<Entered<'_>> {
        if !background {
            self.end_watch();
        }
        let number = thread_number();
        let (slot, own) = match self.own.get(number) {
            Some(slot) => (slot, true),
            None => (&self.shared[number % SHARED], false),
        };
        // Relaxed: a thread finds its own number only if it has stored that itself.
        let lent = self.lent_to.load(Ordering::Relaxed) == number;
        if lent {
            slot.enter(own);
        }
        if lent || self.pass_by(slot, own, if background { WATCHED } else { OPEN }) {
            let (own, unwinding) = (u64::from(own), u64::from(std::thread::panicking()));
            let writing = Writing { gate: self, slot, own, unwinding, here: PhantomData };
            return Ok(Entered::Writing(writing));
        }
        match self.state.load(Ordering::SeqCst) {
            CLEAN => Ok(Entered::MarkDirty),
            // The holder waits until this thread leaves, so it may enter once more. Only the thread itself
            // counts in its own slot.
            HELD if own && slot.0.load(Ordering::Relaxed) > 0 => {
                slot.enter(own);
                let unwinding = u64::from(std::thread::panicking());
                Ok(Entered::Writing(Writing {
                    gate: self,
                    slot,
                    own: 1,
                    unwinding,
                    here: PhantomData,
                }))
            }
            // The gate is held, or its state has changed since `pass_by` read it.
            OPEN | WATCHED | HELD => Ok(Entered::Wait),
            _ => self.check().map(|()| Entered::Wait),
        }
    }

    /// Returns whether the calling thread is inside the gate, or holds it and has lent itself the right to
    /// pass. Of threads that share a slot, each counts as inside if one is.
    pub fn is_inside(&self) -> bool {
        let number = thread_number();
        let slot = self.own.get(number).unwrap_or(&self.shared[number % SHARED]);
        self.lent_to.load(Ordering::Relaxed) == number || slot.0.load(Ordering::Relaxed) > 0
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
            CLOSED => Err(Error::NotOpen(NotOpen::Closed)),
            POISONED => Err(Error::NotOpen(NotOpen::Poisoned)),
            _ => Ok(()),
        }
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.own.iter().chain(&*self.shared)
    }

    /// Number of operations inside the gate.
    pub fn inside(&self) -> usize {
        // SeqCst includes the Acquire that pairs with `Slot::leave`.
        self.slots().map(|s| s.0.load(Ordering::SeqCst)).sum()
    }

    /// Refuses all operations from now on, as if a thread had panicked inside the gate.
    pub fn poison(&self) {
        self.state.store(POISONED, Ordering::SeqCst);
    }

    /// Opens the gate after the pool was marked dirty.
    pub fn marked_dirty(&self) {
        self.exchange(CLEAN, OPEN);
    }

    /// Returns whether nothing but background work has entered since the last call, and watches the
    /// gate from now on. Returns `false` if the pool does not have the dirty mark.
    ///
    /// A thread that enters at the same moment may go unnoticed. So the result tells when to sync a
    /// pool, not that its structures are at rest. Callers hold the core's `control` lock.
    pub fn was_quiet(&self) -> bool {
        self.state.load(Ordering::Relaxed) == WATCHED || {
            self.exchange(OPEN, WATCHED);
            false
        }
    }

    /// Ends the watch, if there is one.
    fn end_watch(&self) {
        if self.state.load(Ordering::Relaxed) == WATCHED {
            self.exchange(WATCHED, OPEN);
        }
    }

    /// Replaces the state with `to` if it is `from`. Returns whether it was.
    fn exchange(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether the gate is CLEAN, so that the next store has to mark the pool dirty. The pool
    /// itself may still have the dirty mark of a process that died.
    pub fn is_clean(&self) -> bool {
        self.state.load(Ordering::SeqCst) == CLEAN
    }

    /// Holds writers back and waits for those inside. The result says whether the gate was open, so
    /// that the pool may have changed. Callers hold the core's `control` lock.
    pub fn hold(&self, seam: &impl Seam) -> Result<Held<'_>> {
        let held = self.begin_to_hold()?;
        let mut turn = 0;
        while self.inside() != 0 {
            seam.wait(&mut turn);
            self.check()?;
        }
        // The last thread to leave may have panicked and poisoned the gate just before, which the
        // loop may not have noticed.
        self.check()?;
        Ok(held)
    }

    /// Like [`hold`](Gate::hold), but if a thread inside does not leave within `time`, returns
    /// `None` and lets the writers continue.
    pub fn hold_within(&self, seam: &impl Seam, time: Duration) -> Result<Option<Held<'_>>> {
        let held = self.begin_to_hold()?;
        let (start, mut turn) = (Instant::now(), 0);
        while self.inside() != 0 {
            if start.elapsed() > time {
                return Ok(None);
            }
            seam.wait(&mut turn);
            self.check()?;
        }
        self.check()?;
        Ok(Some(held))
    }

    /// Keeps threads from entering. Some may still be inside.
    fn begin_to_hold(&self) -> Result<Held<'_>> {
        self.end_watch();
        let before = self.state.load(Ordering::SeqCst);
        if before != CLEAN && before != OPEN {
            self.check()?;
            return Err(Error::NotOpen(NotOpen::Closing));
        }
        // An exchange, because a thread that panics may have poisoned the gate since.
        if !self.exchange(before, HELD) {
            self.check()?;
            return Err(Error::NotOpen(NotOpen::Closing));
        }
        // Created before the fence, so that the gate opens again should the fence fail.
        let held = Held { gate: self, after: before, dirty: before == OPEN };
        heavy_fence(self.asymmetric);
        Ok(held)
    }
}

/// Holds all writers back until it is dropped.
pub struct Held<'g> {
    gate: &'g Gate,
    after: u32,
    /// Whether the gate was open: this process has marked the pool dirty, or the pool is read-only.
    pub dirty: bool,
}

impl Held<'_> {
    /// Records that the pool was made clean: the next store marks it dirty again.
    pub fn now_clean(&mut self) {
        self.after = CLEAN;
    }

    /// Records that the pool is closed for good.
    pub fn now_closed(&mut self) {
        self.after = CLOSED;
    }

    /// Lets the calling thread pass the gate until the result is dropped. Returns `None` if the
    /// thread is exiting and no longer has a number of its own.
    pub fn lend(&self) -> Option<Lent<'_>> {
        let number = thread_number();
        (number < NOBODY).then(|| {
            self.gate.lent_to.store(number, Ordering::Relaxed);
            Lent { gate: self.gate, here: PhantomData }
        })
    }
}

/// The right of the thread that holds the gate to pass it. See [`Held::lend`].
pub struct Lent<'h> {
    gate: &'h Gate,
    /// Makes the type `!Send`.
    here: PhantomData<*const ()>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.gate.lent_to.store(NOBODY, Ordering::Relaxed);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // A panic in another thread may have poisoned the gate meanwhile; it stays poisoned.
        self.gate.exchange(HELD, self.after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::{FlushMode, Real};
    use std::sync::atomic::AtomicBool;

    /// A thread panics inside an operation while another thread waits to hold the gate. The waiting
    /// thread must not get the gate, because its caller would then make the pool clean.
    #[test]
    fn a_panic_reaches_a_thread_that_is_waiting_to_hold_the_gate() {
        let asymmetric = crate::reclaim::threads::asymmetric();
        let (mut held, mut refused) = (0, 0);
        for round in 0..2_000 {
            let gate = Gate::new(true, asymmetric);
            let inside = AtomicBool::new(false);
            std::thread::scope(|s| {
                s.spawn(|| {
                    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        let Ok(Entered::Writing(_writing)) = gate.try_enter(false) else { return };
                        inside.store(true, Ordering::SeqCst);
                        (0..round).for_each(|_| std::hint::spin_loop());
                        // Unwind without the message that a panic prints.
                        std::panic::resume_unwind(Box::new(()));
                    }));
                    assert!(panicked.is_err());
                });
                while !inside.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                match gate.hold(&Real::new(FlushMode::None)) {
                    Ok(_) => held += 1,
                    Err(_) => refused += 1,
                }
            });
            assert!(gate.check().is_err(), "the gate stays poisoned");
        }
        assert_eq!((held, refused), (0, 2_000));
    }
}
