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

use super::notes::{BucketRef, Overflow};
use super::{DashEh, Route};
use crate::error::Result;
use crate::index::kit::lock::{LockGuard, VersionLock};
use crate::index::record::Record;
use crate::index::version::LockWord;
use crate::pmem::Seam;
use std::sync::atomic::Ordering;

/// A locked bucket.
pub(super) struct Locked<'m, S: Seam> {
    seam: &'m S,
    bucket: BucketRef<'m>,
    guard: LockGuard<'m, S>,
}

impl<'m, S: Seam> Locked<'m, S> {
    #[inline(always)]
    pub(super) fn bucket(&self) -> BucketRef<'m> {
        self.bucket
    }

    /// Makes readers of this home's records wait, and read again.
    #[inline(always)]
    pub(super) fn changing(&mut self) {
        self.guard.changing();
    }

    /// The lock word.
    #[inline(always)]
    pub(super) fn word(&self) -> u64 {
        self.guard.word()
    }

    /// See [`LockGuard::unlock`].
    #[inline(always)]
    pub(super) fn unlock(self) {
        self.guard.unlock();
    }

    /// Notes that a record of this home is in a stash bucket, or (`None`) in an overflow
    /// node. The bucket is marked as changing.
    pub(super) fn note_overflow(&mut self, print: u8, stash: Option<u32>) {
        let notes = self.bucket.notes;
        let (overflow, meta) =
            Overflow::of(self.word()).noting(notes.meta(self.seam), print, stash);
        notes.set_meta(self.seam, meta);
        self.guard.set_word(overflow.within(self.word()));
    }

    /// Takes back what `note_overflow` noted. The bucket is marked as changing.
    pub(super) fn forget_overflow(&mut self, print: u8, stash: Option<u32>) {
        let meta = self.bucket.notes.meta(self.seam);
        let overflow = Overflow::of(self.word()).forgetting(meta, print, stash);
        self.guard.set_word(overflow.within(self.word()));
    }

    /// Forgets all of them. The bucket is marked as changing.
    pub(super) fn forget_all_overflow(&mut self) {
        self.guard.set_word(Overflow::default().within(self.word()));
    }

    /// The bucket's index in its segment.
    pub(super) fn index<R: Record>(&self, index: &DashEh<S, R>, route: &Route<'_>) -> u32 {
        index.index_of(route.segment, self.bucket.slots)
    }
}

impl<S: Seam, R: Record> DashEh<S, R> {
    /// A bucket's version lock.
    #[inline(always)]
    pub(super) fn lock_of<'m>(&'m self, bucket: BucketRef<'m>) -> VersionLock<'m, S> {
        bucket.notes.lock(self.seam())
    }

    #[inline(always)]
    pub(super) fn try_lock<'m>(&'m self, bucket: BucketRef<'m>) -> Option<Locked<'m, S>> {
        let guard = self.lock_of(bucket).try_lock()?;
        Some(Locked { seam: self.seam(), bucket, guard })
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
            (offset, self.lock_of(bucket).load(Ordering::Relaxed))
        })
    }
}
