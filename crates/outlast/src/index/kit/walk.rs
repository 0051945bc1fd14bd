//! Walks over ranges of hashes, and counters.

use crate::index::{Cursor, CursorState, Growth, IndexStats};
use std::sync::atomic::{AtomicU64, Ordering};

impl Cursor {
    /// Moves on to the hashes after `high`.
    pub(crate) fn pass(&mut self, high: u64) {
        match high.checked_add(1) {
            None => self.finish(),
            Some(low) => (self.low, self.part, self.state) = (low, 0, CursorState::Inside),
        }
    }
}

/// How often an index has grown or was repaired since opening. These are statistics only; no
/// decision depends on them.
#[derive(Default)]
pub(crate) struct Counters {
    /// See [`Growth`].
    pub(crate) splits: Counter,
    /// See [`Growth`].
    pub(crate) doublings: Counter,
    /// See [`IndexStats::repaired_segments`].
    pub(crate) repaired: Counter,
}

/// One of the [`Counters`].
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn growth(&self) -> Growth {
        Growth { splits: self.splits.get(), doublings: self.doublings.get() }
    }

    /// Returns statistics in which only the counters are filled in.
    pub(crate) fn stats(&self) -> IndexStats {
        IndexStats {
            splits: self.splits.get(),
            doublings: self.doublings.get(),
            repaired_segments: self.repaired.get(),
            ..IndexStats::default()
        }
    }
}
