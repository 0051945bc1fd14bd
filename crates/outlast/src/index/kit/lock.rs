//! Version locks: the protocol of [`version`] over words in DRAM, and a guard.

use crate::index::version::{self, CHANGING, LockWord};
use crate::pmem::{Planted, Seam, SharedWord};
use std::sync::atomic::Ordering;

/// A version lock, where other threads may run before each access.
#[derive(Clone, Copy)]
pub(crate) struct VersionLock<'m, S: Seam> {
    seam: &'m S,
    word: &'m SharedWord,
}

impl<'m, S: Seam> VersionLock<'m, S> {
    #[inline(always)]
    pub(crate) fn new(seam: &'m S, word: &'m SharedWord) -> Self {
        VersionLock { seam, word }
    }

    /// Locks it, if it is free.
    #[inline(always)]
    pub(crate) fn try_lock(self) -> Option<LockGuard<'m, S>> {
        let word = version::try_lock(&self)?;
        Some(LockGuard { lock: self, word, unwinding: u64::from(std::thread::panicking()) })
    }
}

impl<S: Seam> LockWord for VersionLock<'_, S> {
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
        self.word.compare_exchange(self.seam, current, new, (success, Ordering::Relaxed)).is_ok()
    }
}

/// A version lock that is held; unlocked when dropped.
///
/// If a panic comes between, what it guards may be half changed: it stays locked, and the gate,
/// which the thread is inside of, tells others not to wait.
#[must_use]
pub(crate) struct LockGuard<'m, S: Seam> {
    lock: VersionLock<'m, S>,
    word: u64,
    /// Not 0 if the thread was unwinding already: then that is no failure of ours. (A whole
    /// word: what follows a smaller one is moved in pieces.)
    unwinding: u64,
}

impl<S: Seam> LockGuard<'_, S> {
    /// Makes readers wait, and read again.
    #[inline(always)]
    pub(crate) fn changing(&mut self) {
        self.word = version::set_changing(&self.lock, self.word);
    }

    /// What the lock word holds, or will hold when it is unlocked.
    #[inline(always)]
    pub(crate) fn word(&self) -> u64 {
        self.word
    }

    /// Sets the bits that are not the protocol's. It is marked as changing.
    #[inline(always)]
    pub(crate) fn set_word(&mut self, word: u64) {
        debug_assert!(self.word & CHANGING != 0);
        self.word = word;
    }

    /// Unlocks it. Less is to be looked at than where it is dropped.
    #[inline(always)]
    pub(crate) fn unlock(self) {
        self.release();
        std::mem::forget(self);
    }

    #[inline(always)]
    fn release(&self) {
        if self.word & CHANGING != 0 && self.lock.seam.planted(Planted::LockNotReleased) {
            return;
        }
        version::unlock(&self.lock, self.word);
    }
}

impl<S: Seam> Drop for LockGuard<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if self.unwinding != 0 || !std::thread::panicking() {
            self.release();
        }
    }
}
