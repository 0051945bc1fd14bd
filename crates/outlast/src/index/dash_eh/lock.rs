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
use super::{DashEh, Route, points};
use crate::error::Result;
use crate::index::record::Record;
use crate::pmem::{Planted, Seam};
use crate::pool::core::Core;
use std::sync::atomic::{Ordering, fence};

pub(super) const LOCKED: u64 = 1;
pub(super) const CHANGING: u64 = 2;
const VERSION: u64 = 4;

/// Whether what was read between two looks at a lock word counts.
#[inline(always)]
pub(super) fn unchanged(before: u64, after: u64) -> bool {
    before & !LOCKED == after & !LOCKED
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
        self.word |= CHANGING;
        self.core.memory.store(&self.bucket.lock, self.word, &points::VOLATILE);
        // Pairs with the Acquire fence in `find`: whoever reads what is stored from
        // here on sees CHANGING or a newer version.
        fence(Ordering::Release);
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
        if self.word & CHANGING != 0 && self.core.memory.seam().planted(Planted::LockNotReleased) {
            return;
        }
        let mut word = self.word & !LOCKED;
        if word & CHANGING != 0 {
            word = (word & !CHANGING).wrapping_add(VERSION);
        }
        // Release: pairs with the Acquire of the next lock and of the next reader.
        self.core.memory.store_release(&self.bucket.lock, word, &points::VOLATILE);
    }
}

impl<S: Seam, R: Record> DashEh<S, R> {
    #[inline]
    pub(super) fn try_lock<'m>(&'m self, bucket: &'m Bucket) -> Option<Locked<'m, S>> {
        let word = self.core.memory.load(&bucket.lock);
        if word & LOCKED != 0 {
            return None;
        }
        // Acquire: pairs with the Release of the unlocking store.
        self.core
            .memory
            .seam()
            .compare_exchange(
                &bucket.lock,
                word,
                word | LOCKED,
                Ordering::Acquire,
                Ordering::Relaxed,
                &points::VOLATILE,
            )
            .is_ok()
            .then(|| Locked {
                core: &self.core,
                bucket,
                word: word | LOCKED,
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
