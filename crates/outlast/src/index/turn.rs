//! A sequence lock over the words that lead to memory that can be reused.
//!
//! A reader loads the turn, follows the words and reads what they lead to. If the turn is the same
//! afterwards, and even, no thread has changed the words meanwhile, so what was read belonged where
//! they led all the time.
//!
//! `outlast-check` compiles this file a second time, with the atomics of a model checker. So it
//! holds the protocol and nothing else.

use super::sync::fence;
use super::version::LockWord;
use std::sync::atomic::Ordering;

/// Begins a read. The result is odd while the words are being changed.
#[inline(always)]
pub(super) fn read(turn: &impl LockWord) -> u64 {
    // Acquire: pairs with the Release in `end`, so that the changed words are visible.
    turn.load(Ordering::Acquire)
}

/// Returns whether a turn means that the words are being changed.
#[inline(always)]
pub(super) fn is_changing(turn: u64) -> bool {
    turn & 1 == 1
}

/// Returns whether nothing has changed since the read that has found `turn`. The caller has made an
/// Acquire fence after its last read.
#[inline(always)]
pub(super) fn is_same(turn: &impl LockWord, found: u64) -> bool {
    // The fence before it pairs with the Release fence in `begin`: a reader that has seen a changed
    // word, or a store by a thread that acted on one, sees the turn changed.
    turn.load(Ordering::Relaxed) == found
}

/// Begins a change of the words of these turns. One thread changes them at a time.
pub(super) fn begin<W: LockWord>(turns: impl Iterator<Item = W>) {
    for turn in turns {
        turn.store(turn.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    fence(Ordering::Release);
}

/// Ends it.
pub(super) fn end<W: LockWord>(turns: impl Iterator<Item = W>) {
    for turn in turns {
        // Release: pairs with the Acquire in `read`.
        turn.store(turn.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}
