//! The protocol of the version lock, over any word: a bucket's, a segment's, or an inner node's.
//!
//! `outlast-check` compiles this file a second time, with the atomics of a model checker. So it
//! holds the protocol and nothing else.

use super::sync::fence;
use std::sync::atomic::Ordering;

/// The number of low bits that do not belong to the protocol. They change only together with the
/// version.
pub(super) const OTHER_BITS: u32 = 16;
/// Excludes other writers.
pub(super) const LOCKED: u64 = 1 << OTHER_BITS;
/// Makes readers wait.
pub(super) const CHANGING: u64 = LOCKED << 1;
const VERSION: u64 = CHANGING << 1;

/// Returns whether all bits of a lock word besides its version are 0.
pub(super) fn is_at_rest(word: u64) -> bool {
    word & (VERSION - 1) == 0
}

/// A word that is a version lock.
pub(super) trait LockWord {
    /// Reads it.
    fn load(&self, order: Ordering) -> u64;
    /// Writes it.
    fn store(&self, value: u64, order: Ordering);
    /// Stores `new` if the word holds `current`, and returns whether it did.
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> bool;
}

/// Locks the word if it is free. Returns the value of the locked word.
#[inline(always)]
pub(super) fn try_lock(word: &impl LockWord) -> Option<u64> {
    let found = word.load(Ordering::Relaxed);
    // Acquire: pairs with the Release of the unlocking store.
    let free = found & LOCKED == 0;
    let locked = free && word.compare_exchange(found, found | LOCKED, Ordering::Acquire);
    locked.then_some(found | LOCKED)
}

/// Makes readers wait and then retry. `held` is the value of the locked word. Returns its new
/// value.
#[inline(always)]
pub(super) fn set_changing(word: &impl LockWord, held: u64) -> u64 {
    let held = held | CHANGING;
    word.store(held, Ordering::Relaxed);
    // Pairs with the Acquire fence in `is_unchanged`: a reader that sees any store after this fence
    // also sees CHANGING or a newer version.
    fence(Ordering::Release);
    held
}

/// Unlocks the word, which holds `held`. If it was marked as changing, it gets a new version.
#[inline(always)]
pub(super) fn unlock(word: &impl LockWord, held: u64) {
    let mut free = held & !LOCKED;
    if free & CHANGING != 0 {
        free = (free & !CHANGING).wrapping_add(VERSION);
    }
    // Release: pairs with the Acquire of the next lock and of the next reader.
    word.store(free, Ordering::Release);
}

/// Returns the version to read under, or `None` while something is changing.
#[inline(always)]
pub(super) fn version(word: &impl LockWord) -> Option<u64> {
    // Acquire: pairs with the Release in `unlock`.
    let found = word.load(Ordering::Acquire);
    (found & CHANGING == 0).then_some(found)
}

/// Returns whether `version` is still current, so that everything read under it is valid. A caller
/// that checks other words for the same decision must read them after this call.
#[inline(always)]
pub(super) fn is_unchanged(word: &impl LockWord, version: u64) -> bool {
    // Pairs with the Release fence in `set_changing`, and with the Release stores of the other
    // words that the caller checks. If anything read so far is newer than `version`, the loads from
    // here on see CHANGING, a newer version, or the newer value of such a word.
    fence(Ordering::Acquire);
    version & !LOCKED == word.load(Ordering::Relaxed) & !LOCKED
}
