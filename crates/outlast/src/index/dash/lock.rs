//! The version lock of a bucket.
//!
//! ```text
//!  63                              18  17         16       15         0
//! +----------------------------------+----------+--------+-------------+
//! |              version             | CHANGING | LOCKED |  overflow   |
//! +----------------------------------+----------+--------+-------------+
//! ```
//!
//! - `LOCKED` excludes other writers.
//! - `CHANGING` and the version are for readers of the records whose *home* is this bucket. They
//!   wait while `CHANGING` is set, and retry if the version has changed.
//! - `overflow` describes the records that this home has in stash buckets and overflow nodes
//!   ([`Overflow`](super::metadata::Overflow)). It changes only while the bucket is marked as
//!   changing.
//!
//! A writer that adds a record to a bucket changes neither `CHANGING` nor the version. The record
//! is durable before its bit makes it visible, and a reader that misses it takes effect before the
//! insert. So an insert of one key does not make readers of other keys wait or retry.
//!
//! Stash buckets and overflow nodes are different. There a slot can pass from one home to another,
//! and a reader that has read an older bit would see the new record before it is durable. So an
//! insert there marks its home as changing.
//!
//! The version has 46 bits, so it wraps after 70 trillion changes of one bucket. A reader would
//! have to sleep through all of them to be misled. Locks are DRAM state. They are reset when a
//! segment is first touched after opening.

use super::metadata::{BucketRef, Overflow};
use super::{Addressing, Dash, Segment};
use crate::error::Result;
use crate::index::kit::lock::{Guarded, Held, HeldLock, VersionLock};
use crate::index::record::SlotRecord;
use crate::pmem::Seam;

/// A locked bucket.
#[must_use]
pub(super) struct Locked<'m, S: Seam> {
    pub(super) bucket: BucketRef<'m>,
    lock: HeldLock<'m, S>,
}

impl<S: Seam> Held for Locked<'_, S> {
    #[inline(always)]
    fn unlock(self) {
        self.lock.unlock();
    }
}

impl<S: Seam> Locked<'_, S> {
    /// Makes readers of this home's records wait and then retry.
    #[inline(always)]
    pub(super) fn changing(&mut self) {
        self.lock.changing();
    }

    /// Returns the lock word.
    #[inline(always)]
    pub(super) fn word(&self) -> u64 {
        self.lock.word()
    }

    /// Notes that this home has one more record in a stash bucket, or (`None`) in an overflow node.
    /// The bucket is marked as changing.
    pub(super) fn note_overflow(&mut self, fingerprint: u8, stash: Option<u32>) {
        let metadata = self.bucket.metadata;
        let (overflow, bits) =
            Overflow::of(self.word()).noting(metadata.bits(self.lock.seam()), fingerprint, stash);
        metadata.set_bits(self.lock.seam(), bits);
        self.lock.set_word(overflow.within(self.word()));
    }

    /// Undoes `note_overflow`. The bucket is marked as changing.
    pub(super) fn forget_overflow(&mut self, fingerprint: u8, stash: Option<u32>) {
        let bits = self.bucket.metadata.bits(self.lock.seam());
        let overflow = Overflow::of(self.word()).forgetting(bits, fingerprint, stash);
        self.lock.set_word(overflow.within(self.word()));
    }

    /// Undoes every `note_overflow`. The bucket is marked as changing.
    pub(super) fn forget_all_overflow(&mut self) {
        self.lock.set_word(Overflow::default().within(self.word()));
    }

    /// Returns the bucket's index in its segment.
    pub(super) fn index<R: SlotRecord, A: Addressing>(
        &self,
        table: &Dash<S, R, A>,
        segment: Segment,
    ) -> u32 {
        table.index_of(segment, self.bucket.slots)
    }
}

impl<S: Seam, R: SlotRecord, A: Addressing> Dash<S, R, A> {
    /// Returns a bucket's version lock.
    #[inline(always)]
    pub(super) fn lock_of<'m>(&'m self, bucket: BucketRef<'m>) -> VersionLock<'m, S> {
        bucket.metadata.lock(self.seam())
    }

    /// Locks a bucket if it is free. The caller unlocks it explicitly.
    #[inline(always)]
    pub(super) fn try_hold<'m>(&'m self, bucket: BucketRef<'m>) -> Option<Locked<'m, S>> {
        self.lock_of(bucket).try_hold().map(|lock| Locked { bucket, lock })
    }

    /// Locks a bucket. The caller unlocks it explicitly.
    #[inline(always)]
    pub(super) fn hold<'m>(&'m self, bucket: BucketRef<'m>) -> Result<Locked<'m, S>> {
        let offset = self.core.memory.offset_of(bucket.slots).raw();
        self.lock_of(bucket).hold(&self.core, offset).map(|lock| Locked { bucket, lock })
    }

    /// Locks a bucket. Dropping the guard unlocks it.
    pub(super) fn lock<'m>(&'m self, bucket: BucketRef<'m>) -> Result<Guarded<Locked<'m, S>>> {
        self.hold(bucket).map(Guarded::new)
    }
}
