//! The version lock of a bucket.
//!
//! ```text
//!  63                                       2  1          0
//! +------------------------------------------+----------+--------+
//! |                 version                  | CHANGING | LOCKED |
//! +------------------------------------------+----------+--------+
//! ```
//!
//! `LOCKED` excludes other writers. `CHANGING` and the version are for the readers of
//! records whose *home* is this bucket: they wait while it is set, and read again if the
//! version has changed. A writer that adds a record to a bucket sets neither: the record
//! is durable before its bit makes it visible, and whoever misses it began before. So the
//! insert of one key does not make readers of others wait. Not so in stash buckets and
//! overflow nodes: there a slot can pass from one home to another, and a reader with an
//! older bit in hand would see the new record before it is durable. An insert there marks
//! its home as changing.
//!
//! The version has 62 bits: a reader would have to sleep for centuries to see one twice.
//! Locks are DRAM state that happens to live in the bucket's line; they are reset when a
//! segment is first touched after opening.

use super::layout::Bucket;
use super::version::{self, LockWord};
use super::{DashEh, Route, points};
use crate::error::Result;
use crate::index::record::Record;
use crate::pmem::{Seam, Word};
use crate::pool::core::Core;
use std::sync::atomic::Ordering;

/// A bucket's lock word, reached through the seam.
pub(super) struct Reached<'m, S: Seam> {
    core: &'m Core<S>,
    word: &'m Word,
}

impl<'m, S: Seam> Reached<'m, S> {
    #[inline(always)]
    pub(super) fn new(core: &'m Core<S>, bucket: &'m Bucket) -> Self {
        Reached { core, word: &bucket.lock }
    }
}

impl<S: Seam> LockWord for Reached<'_, S> {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.core.memory.seam().load(self.word, order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.core.memory.seam().store(self.word, value, order, &points::VOLATILE);
    }

    #[inline(always)]
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> bool {
        let (failure, at) = (Ordering::Relaxed, &points::VOLATILE);
        let seam = self.core.memory.seam();
        seam.compare_exchange(self.word, current, new, success, failure, at).is_ok()
    }
}

/// A locked bucket; unlocked when dropped.
pub(super) struct Locked<'m, S: Seam> {
    core: &'m Core<S>,
    bucket: &'m Bucket,
    word: u64,
    /// Whether the thread was unwinding already: then that is no failure of ours.
    unwinding: bool,
}

impl<'m, S: Seam> Locked<'m, S> {
    #[inline(always)]
    pub(super) fn bucket(&self) -> &'m Bucket {
        self.bucket
    }

    /// Makes readers of this home's records wait, and read again.
    #[inline]
    pub(super) fn changing(&mut self) {
        self.word = version::set_changing(&Reached::new(self.core, self.bucket), self.word);
    }

    /// The bucket's index in its segment.
    pub(super) fn index<R: Record>(&self, index: &DashEh<S, R>, route: &Route<'_>) -> u32 {
        index.index_of(route.segment, self.bucket)
    }
}

impl<S: Seam> Drop for Locked<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            // The bucket may be half changed: it stays locked, and the gate, which this
            // thread is inside of, tells others not to wait.
            return;
        }
        version::unlock(&Reached::new(self.core, self.bucket), self.word);
    }
}

impl<S: Seam, R: Record> DashEh<S, R> {
    #[inline]
    pub(super) fn try_lock<'m>(&'m self, bucket: &'m Bucket) -> Option<Locked<'m, S>> {
        version::try_lock(&Reached::new(&self.core, bucket)).map(|word| Locked {
            core: &self.core,
            bucket,
            word,
            unwinding: std::thread::panicking(),
        })
    }

    #[inline]
    pub(super) fn lock<'m>(&'m self, bucket: &'m Bucket) -> Result<Locked<'m, S>> {
        let mut turn = 0;
        loop {
            if let Some(locked) = self.try_lock(bucket) {
                return Ok(locked);
            }
            self.core.wait_for_lock(&mut turn, &bucket.lock, 1)?;
        }
    }
}
