//! Walks by ranges of hashes, and what is counted beside them.

use crate::index::{Cursor, CursorState, Growth, IndexStats};
use std::sync::atomic::{AtomicU64, Ordering};

impl Cursor {
    /// Goes on behind the range in hand, up to and with `high`.
    pub(crate) fn pass(&mut self, high: u64) {
        match high.checked_add(1) {
            None => self.finish(),
            Some(low) => (self.low, self.part, self.state) = (low, 0, CursorState::Inside),
        }
    }
}

/// How often an index has grown or was mended since opening: statistics, by which nothing is
/// decided.
#[derive(Default)]
pub(crate) struct Counters {
    /// See [`Growth`].
    pub(crate) splits: Counter,
    /// See [`Growth`].
    pub(crate) doublings: Counter,
    /// See [`IndexStats::repaired_segments`].
    pub(crate) repaired: Counter,
}

/// One of them.
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

    /// Figures of which only these are known.
    pub(crate) fn stats(&self) -> IndexStats {
        IndexStats {
            splits: self.splits.get(),
            doublings: self.doublings.get(),
            repaired_segments: self.repaired.get(),
            ..IndexStats::default()
        }
    }
}
