//! The version lock of a bucket.
//!
//! ```text
//!  63                              18  17         16       15         0
//! +----------------------------------+----------+--------+-------------+
//! |              version             | CHANGING | LOCKED |  overflow   |
//! +----------------------------------+----------+--------+-------------+
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
//! `overflow` says what the bucket has in stash buckets and overflow nodes
//! ([`Overflow`](super::notes::Overflow)); it changes only while the bucket is marked as
//! changing. The version has 46 bits: a reader would have to sleep through 70 trillion
//! changes of one bucket to see one twice. Locks are DRAM state, reset when a segment is
//! first touched after opening.

use super::notes::{BucketRef, Notes, Overflow};
use super::{DashEh, Route};
use crate::error::Result;
use crate::index::record::Record;
use crate::index::version::{self, CHANGING, LockWord};
use crate::pmem::{Planted, Seam};
use crate::pool::core::Core;
use std::sync::atomic::Ordering;

/// A bucket's lock word, where other threads may run before each access.
pub(super) struct Reached<'m, S: Seam> {
    seam: &'m S,
    notes: &'m Notes,
}

#[inline(always)]
pub(super) fn reached<'m, S: Seam>(core: &'m Core<S>, bucket: BucketRef<'m>) -> Reached<'m, S> {
    Reached { seam: core.memory.seam(), notes: bucket.notes }
}

impl<S: Seam> LockWord for Reached<'_, S> {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.notes.lock(self.seam, order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.notes.set_lock(self.seam, value, order);
    }

    #[inline(always)]
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> bool {
        self.notes.exchange_lock(self.seam, current, new, success)
    }
}

/// A locked bucket, to be unlocked by hand. If a panic comes between, the bucket may be half
/// changed: it stays locked, and the gate, which the thread is inside of, tells others not to
/// wait.
#[must_use]
pub(super) struct Held<'m, S: Seam> {
    lock: Reached<'m, S>,
    word: u64,
}

impl<S: Seam> Held<'_, S> {
    /// Makes readers of this home's records wait, and read again.
    #[inline(always)]
    pub(super) fn changing(&mut self) {
        self.word = version::set_changing(&self.lock, self.word);
    }

    /// The lock word.
    #[inline(always)]
    pub(super) fn word(&self) -> u64 {
        self.word
    }

    /// Unlocks the bucket.
    #[inline(always)]
    pub(super) fn release(self) {
        if self.word & CHANGING != 0 && self.lock.seam.planted(Planted::LockNotReleased) {
            return;
        }
        version::unlock(&self.lock, self.word);
    }
}

/// A locked bucket; unlocked when dropped.
pub(super) struct Locked<'m, S: Seam> {
    core: &'m Core<S>,
    bucket: BucketRef<'m>,
    word: u64,
    /// Not 0 if the thread was unwinding already: then that is no failure of ours. (A whole
    /// word: what follows a smaller one is moved in pieces.)
    unwinding: u64,
}

impl<'m, S: Seam> Locked<'m, S> {
    #[inline(always)]
    pub(super) fn bucket(&self) -> BucketRef<'m> {
        self.bucket
    }

    /// Makes readers of this home's records wait, and read again.
    #[inline]
    pub(super) fn changing(&mut self) {
        self.word = version::set_changing(&reached(self.core, self.bucket), self.word);
    }

    /// The lock word.
    #[inline(always)]
    pub(super) fn word(&self) -> u64 {
        self.word
    }

    /// Notes that a record of this home is in a stash bucket, or (`None`) in an overflow
    /// node. The bucket is marked as changing.
    pub(super) fn note_overflow(&mut self, print: u8, stash: Option<u32>) {
        debug_assert!(self.word & CHANGING != 0);
        let seam = self.core.memory.seam();
        let meta = self.bucket.notes.meta(seam);
        let (overflow, meta) = Overflow::of(self.word).noting(meta, print, stash);
        self.bucket.notes.set_meta(seam, meta);
        self.word = overflow.within(self.word);
    }

    /// Takes back what `note_overflow` noted. The bucket is marked as changing.
    pub(super) fn forget_overflow(&mut self, print: u8, stash: Option<u32>) {
        debug_assert!(self.word & CHANGING != 0);
        let meta = self.bucket.notes.meta(self.core.memory.seam());
        self.word = Overflow::of(self.word).forgetting(meta, print, stash).within(self.word);
    }

    /// Forgets all of them. The bucket is marked as changing.
    pub(super) fn forget_all_overflow(&mut self) {
        debug_assert!(self.word & CHANGING != 0);
        self.word = Overflow::default().within(self.word);
    }

    /// The bucket's index in its segment.
    pub(super) fn index<R: Record>(&self, index: &DashEh<S, R>, route: &Route<'_>) -> u32 {
        index.index_of(route.segment, self.bucket.slots)
    }
}

impl<S: Seam> Drop for Locked<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && self.unwinding == 0 {
            // The bucket may be half changed: it stays locked, and the gate, which this
            // thread is inside of, tells others not to wait.
            return;
        }
        Held { lock: reached(self.core, self.bucket), word: self.word }.release();
    }
}

impl<S: Seam, R: Record> DashEh<S, R> {
    /// Locks a bucket for a moment, if it is free.
    #[inline(always)]
    pub(super) fn try_hold<'m>(&'m self, bucket: BucketRef<'m>) -> Option<Held<'m, S>> {
        let lock = reached(&self.core, bucket);
        version::try_lock(&lock).map(|word| Held { lock, word })
    }

    pub(super) fn try_lock<'m>(&'m self, bucket: BucketRef<'m>) -> Option<Locked<'m, S>> {
        self.try_hold(bucket).map(|held| Locked {
            core: &self.core,
            bucket,
            word: held.word,
            unwinding: u64::from(std::thread::panicking()),
        })
    }

    pub(super) fn lock<'m>(&'m self, bucket: BucketRef<'m>) -> Result<Locked<'m, S>> {
        match self.try_lock(bucket) {
            Some(locked) => Ok(locked),
            None => self.lock_later(bucket),
        }
    }

    #[cold]
    fn lock_later<'m>(&'m self, bucket: BucketRef<'m>) -> Result<Locked<'m, S>> {
        let mut turn = 0;
        loop {
            self.wait_for_bucket(&mut turn, bucket, 1)?;
            if let Some(locked) = self.try_lock(bucket) {
                return Ok(locked);
            }
        }
    }

    /// One turn of waiting for a bucket's lock, or for the end of a change.
    #[cold]
    pub(super) fn wait_for_bucket(
        &self,
        turn: &mut u32,
        bucket: BucketRef<'_>,
        inside: usize,
    ) -> Result<()> {
        self.core.wait_for_lock(turn, inside, || {
            let offset = self.core.memory.offset_of(bucket.slots).raw();
            (offset, bucket.notes.lock(self.core.memory.seam(), Ordering::Relaxed))
        })
    }
}
