//! Buckets and their metadata.

use super::layout::{Bucket, LINES, Link, SLOTS};
use super::points;
use crate::error::{Damage, Result};
use crate::index::fingerprints;
use crate::index::kit::media::ones;
use crate::pmem::{Memory, Offset, Seam, Shadow, SharedWord};
use std::sync::atomic::Ordering;

/// The metadata of a bucket: its [shadow](crate::pmem::Shadow), in DRAM.
#[repr(C, align(32))]
pub(crate) struct Metadata {
    /// In EA-PHT-H and -HPR, the version lock.
    pub(super) lock: SharedWord,
    /// The fingerprints of the records, 0 where there is none. A record is visible to lookups once
    /// its fingerprint is here.
    fingerprints: [SharedWord; 2],
    /// The offset of the next bucket of the chain, 0 at its end.
    next: SharedWord,
}
// SAFETY: consists of `SharedWord`s, which are atomics; 32 bytes.
unsafe impl Shadow for Metadata {}

/// Returns the fingerprint of a hash: 8 of its bits, and never 0.
#[inline(always)]
fn fingerprint(hash: u64) -> u8 {
    ((hash >> 8) as u8).max(1)
}

/// Returns the number of the line, in its bucket, that a record of this hash prefers.
#[inline(always)]
fn line(hash: u64) -> usize {
    (hash & 3) as usize
}

/// A bucket and its metadata.
#[derive(Clone, Copy)]
pub(crate) struct BucketRef<'m> {
    pub(super) bucket: &'m Bucket,
    pub(super) metadata: &'m Metadata,
}

impl<'m> BucketRef<'m> {
    /// Returns the bucket at an offset.
    ///
    /// # Safety
    /// The offset must be a multiple of a bucket's size, and a bucket there must lie inside the
    /// memory.
    #[inline(always)]
    pub(super) unsafe fn new<S: Seam>(memory: &'m Memory<S>, offset: u64) -> Self {
        // SAFETY: the caller promises that the bucket is there. Its shadow has an eighth of its
        // size.
        unsafe {
            BucketRef {
                bucket: memory.at_unchecked(Offset::new(offset)),
                metadata: memory.shadow_unchecked(offset),
            }
        }
    }

    /// Returns the bucket at an offset that was read from media, or from DRAM that another thread
    /// may have changed.
    pub(super) fn at<S: Seam>(memory: &'m Memory<S>, offset: u64) -> Result<Self, Damage> {
        memory.at(Offset::<Bucket>::new(offset))?;
        // SAFETY: checked above.
        Ok(unsafe { Self::new(memory, offset) })
    }

    pub(super) fn offset<S: Seam>(self, memory: &Memory<S>) -> u64 {
        memory.offset_of(self.bucket).raw()
    }

    #[inline(always)]
    fn fingerprints(self, seam: &impl Seam) -> [u64; 2] {
        let [low, high] = &self.metadata.fingerprints;
        // Acquire: pairs with the Release in `set_fingerprint`. A slot is read after its fingerprint.
        [low.load(seam, Ordering::Acquire), high.load(seam, Ordering::Acquire)]
    }

    /// Yields the slots whose records can have this hash.
    #[inline(always)]
    pub(super) fn like(self, seam: &impl Seam, hash: u64) -> impl Iterator<Item = usize> {
        ones(fingerprints::matching(self.fingerprints(seam), fingerprint(hash)) & ALL)
    }

    /// Yields the slots that hold a record.
    pub(super) fn used(self, seam: &impl Seam) -> impl Iterator<Item = usize> {
        ones(!fingerprints::matching(self.fingerprints(seam), 0) & ALL)
    }

    /// Returns a free slot: one in the hash's preferred line if there is one, otherwise any.
    #[inline(always)]
    pub(super) fn free_slot(self, seam: &impl Seam, hash: u64) -> Option<usize> {
        let free = fingerprints::matching(self.fingerprints(seam), 0) & ALL;
        let near = free & LINES[line(hash)];
        let choice = if near != 0 { near } else { free };
        (choice != 0).then(|| choice.trailing_zeros() as usize)
    }

    /// Marks a slot as holding a record of this hash, or as free.
    #[inline(always)]
    pub(super) fn set_fingerprint(self, seam: &impl Seam, slot: usize, hash: Option<u64>) {
        let words = self.metadata.fingerprints.each_ref().map(|w| w.load(seam, Ordering::Relaxed));
        let (word, value) = fingerprints::with(words, slot, hash.map_or(0, fingerprint));
        // Release: pairs with the Acquire in `fingerprints`.
        self.metadata.fingerprints[word].store(seam, value, Ordering::Release);
    }

    /// Returns the offset of the next bucket of the chain; 0 if there is none.
    #[inline(always)]
    pub(super) fn next(self, seam: &impl Seam) -> u64 {
        // Acquire: pairs with the Release in `set_next`.
        self.metadata.next.load(seam, Ordering::Acquire)
    }

    pub(super) fn set_next(self, seam: &impl Seam, next: u64) {
        self.metadata.next.store(seam, next, Ordering::Release);
    }

    /// Clears the metadata: no records, no next bucket. The lock stays as it is.
    pub(super) fn forget(self, seam: &impl Seam) {
        self.metadata.fingerprints.iter().for_each(|word| word.store(seam, 0, Ordering::Relaxed));
        self.set_next(seam, 0);
    }

    /// Prefetches the metadata, and the line that a record of this hash prefers.
    #[inline(always)]
    pub(super) fn prefetch(self, seam: &impl Seam, hash: u64) {
        seam.prefetch(self.metadata);
        seam.prefetch(&self.bucket.slots[line(hash) * 4]);
    }
}

/// All slots of a bucket.
const ALL: u32 = (1 << SLOTS) - 1;

/// Durably marks these overflow buckets as owned by no chain.
pub(super) fn disown<S: Seam>(memory: &Memory<S>, buckets: impl IntoIterator<Item = u64>) {
    let at = &points::DISOWN;
    for offset in buckets {
        if let Ok(bucket) = memory.at(Offset::<Bucket>::new(offset)) {
            let owner = bucket.lock.word();
            memory.store(owner, 0, at);
            memory.flush_words(std::slice::from_ref(owner), at);
        }
    }
    memory.fence(at);
}

/// Stores which chain owns an overflow bucket, without a flush. The link to the bucket must be
/// durable.
pub(super) fn own<S: Seam>(memory: &Memory<S>, bucket: BucketRef<'_>, owner: Link) {
    owner.store(memory, bucket.bucket.lock.word(), &points::OWNER);
}
