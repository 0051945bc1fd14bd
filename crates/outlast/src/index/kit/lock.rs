//! Version locks: the protocol of [`version`] over words in DRAM or in the pool, and their guards.

use crate::error::Result;
use crate::index::bugs;
use crate::index::version::{self, CHANGING, LockWord};
use crate::pmem::{Seam, SharedWord};
use crate::pool::core::Core;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

/// A word that can be a lock: in DRAM, or in the pool.
pub(crate) trait LockPlace {
    /// Reads it.
    fn load(&self, seam: &impl Seam, order: Ordering) -> u64;
    /// Writes it.
    fn store(&self, seam: &impl Seam, value: u64, order: Ordering);
    /// Stores `new` if the word holds `current`, and returns whether it did.
    fn exchange(&self, seam: &impl Seam, current: u64, new: u64, success: Ordering) -> bool;
}

impl LockPlace for SharedWord {
    #[inline(always)]
    fn load(&self, seam: &impl Seam, order: Ordering) -> u64 {
        self.load(seam, order)
    }

    #[inline(always)]
    fn store(&self, seam: &impl Seam, value: u64, order: Ordering) {
        self.store(seam, value, order);
    }

    #[inline(always)]
    fn exchange(&self, seam: &impl Seam, current: u64, new: u64, success: Ordering) -> bool {
        self.compare_exchange(seam, current, new, (success, Ordering::Relaxed)).is_ok()
    }
}

/// A version lock whose accesses all go through the seam.
pub(crate) struct VersionLock<'m, S: Seam, P: LockPlace = SharedWord> {
    seam: &'m S,
    word: &'m P,
}

impl<S: Seam, P: LockPlace> Clone for VersionLock<'_, S, P> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Seam, P: LockPlace> Copy for VersionLock<'_, S, P> {}

impl<'m, S: Seam, P: LockPlace> VersionLock<'m, S, P> {
    #[inline(always)]
    pub(crate) fn new(seam: &'m S, word: &'m P) -> Self {
        VersionLock { seam, word }
    }

    /// Locks the word if it is free.
    #[inline(always)]
    pub(crate) fn try_hold(self) -> Option<HeldLock<'m, S, P>> {
        version::try_lock(&self).map(|word| HeldLock { lock: self, word })
    }

    /// Locks the word, which belongs to the structure at `offset`. The thread has passed the gate.
    #[inline(always)]
    pub(crate) fn hold(self, core: &Core<S>, offset: u64) -> Result<HeldLock<'m, S, P>> {
        match self.try_hold() {
            Some(held) => Ok(held),
            None => self.hold_later(core, offset),
        }
    }

    #[cold]
    fn hold_later(self, core: &Core<S>, offset: u64) -> Result<HeldLock<'m, S, P>> {
        let mut turn = 0;
        loop {
            self.wait(core, offset, 1, &mut turn)?;
            if let Some(held) = self.try_hold() {
                return Ok(held);
            }
        }
    }

    /// Waits for the lock, or for the end of a change, for one turn of the caller's loop. The
    /// thread has passed the gate `inside` times.
    #[cold]
    pub(crate) fn wait(
        self,
        core: &Core<S>,
        offset: u64,
        inside: usize,
        turn: &mut u32,
    ) -> Result<()> {
        core.wait_for_lock(turn, inside, || (offset, self.load(Ordering::Relaxed)))
    }
}

impl<S: Seam, P: LockPlace> LockWord for VersionLock<'_, S, P> {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.word.load(self.seam, order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.word.store(self.seam, value, order);
    }

    #[inline(always)]
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> bool {
        self.word.exchange(self.seam, current, new, success)
    }
}

/// A lock that has to be unlocked explicitly. If a thread panics while it holds one, the data that
/// the lock guards may be half changed, so the lock stays locked. Other threads do not wait for it
/// forever: the panicking thread is inside the gate, so its panic poisons the gate too.
pub(crate) trait Held {
    /// Unlocks it.
    fn unlock(self);
}

/// A version lock that this thread holds.
#[must_use]
pub(crate) struct HeldLock<'m, S: Seam, P: LockPlace = SharedWord> {
    lock: VersionLock<'m, S, P>,
    word: u64,
}

impl<'m, S: Seam, P: LockPlace> HeldLock<'m, S, P> {
    /// Makes readers wait and then retry.
    #[inline(always)]
    pub(crate) fn changing(&mut self) {
        self.word = version::set_changing(&self.lock, self.word);
    }

    /// Returns how often the lock has been marked as changing.
    #[inline(always)]
    pub(crate) fn changes(&self) -> u64 {
        self.word / (2 * CHANGING)
    }

    /// Returns the lock word. After [`set_word`](Self::set_word), memory gets the new bits only
    /// when the lock is unlocked.
    #[inline(always)]
    pub(crate) fn word(&self) -> u64 {
        self.word
    }

    /// Sets the bits that do not belong to the protocol; the others must be as in
    /// [`word`](Self::word). The lock must be marked as changing.
    pub(crate) fn set_word(&mut self, word: u64) {
        debug_assert!(self.word & CHANGING != 0);
        self.word = word;
    }

    pub(crate) fn seam(&self) -> &'m S {
        self.lock.seam
    }
}

impl<S: Seam, P: LockPlace> Held for HeldLock<'_, S, P> {
    #[inline(always)]
    fn unlock(self) {
        if self.word & CHANGING != 0 && self.lock.seam.seeded(&bugs::LOCK_NOT_RELEASED) {
            return;
        }
        version::unlock(&self.lock, self.word);
    }
}

/// A guard that unlocks when it is dropped, unless a panic that began while the lock was held drops
/// it; see [`Held`]. It costs about thirty instructions more than unlocking explicitly.
#[must_use]
pub(crate) struct Guarded<H: Held> {
    held: ManuallyDrop<H>,
    /// Whether the thread was already unwinding when it took the lock. Then its panic did not
    /// interrupt a change under this lock.
    unwinding: bool,
}

impl<H: Held> Guarded<H> {
    pub(crate) fn new(held: H) -> Self {
        Guarded { held: ManuallyDrop::new(held), unwinding: std::thread::panicking() }
    }
}

impl<H: Held> Drop for Guarded<H> {
    #[inline]
    fn drop(&mut self) {
        if self.unwinding || !std::thread::panicking() {
            // SAFETY: `held` is taken only here, and nothing uses it after the drop.
            unsafe { ManuallyDrop::take(&mut self.held) }.unlock();
        }
    }
}

impl<H: Held> Deref for Guarded<H> {
    type Target = H;
    fn deref(&self) -> &H {
        &self.held
    }
}

impl<H: Held> DerefMut for Guarded<H> {
    fn deref_mut(&mut self) -> &mut H {
        &mut self.held
    }
}
