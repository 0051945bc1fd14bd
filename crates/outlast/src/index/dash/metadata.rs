//! Bucket metadata: the lock of a bucket, which slots hold a record, and their fingerprints.
//!
//! Bucket metadata are DRAM state, the bucket's [shadow](crate::pmem::Shadow). They are made from
//! the slots when the segment is first touched after opening, and disappear with the process. They
//! are an eighth of the size of the slots. So even in a large table they largely stay in the
//! caches, and a lookup that finds nothing usually reads nothing else.

use super::layout::{ALL_SLOTS, Bucket, LINE_SLOTS, OVERFLOW_FINGERPRINTS, SLOTS, Slot};
use crate::index::kit::lock::VersionLock;
use crate::index::version::OTHER_BITS;
use crate::pmem::{Seam, Shadow, SharedWord};
use std::sync::atomic::Ordering;

/// The metadata of one bucket.
#[repr(C, align(32))]
pub(crate) struct Metadata {
    /// The version lock, see [`lock`](super::lock). Its low bits are an [`Overflow`].
    lock: SharedWord,
    /// See [`Bits`].
    bits: SharedWord,
    /// One byte of the hash for each slot.
    fingerprints: [SharedWord; 2],
}
// SAFETY: consists of `SharedWord`s, which are atomics; 32 bytes.
unsafe impl Shadow for Metadata {}

/// A bucket: its slots in the pool, and its metadata.
#[derive(Clone, Copy)]
pub(crate) struct BucketRef<'m> {
    pub(super) slots: &'m [Slot; SLOTS],
    pub(super) metadata: &'m Metadata,
}

impl<'m> BucketRef<'m> {
    pub(super) fn new(bucket: &'m Bucket, metadata: &'m Metadata) -> Self {
        BucketRef { slots: &bucket.slots, metadata }
    }
}

impl Metadata {
    /// Returns the version lock.
    #[inline(always)]
    pub(super) fn lock<'m, S: Seam>(&'m self, seam: &'m S) -> VersionLock<'m, S> {
        VersionLock::new(seam, &self.lock)
    }

    #[inline(always)]
    pub(super) fn bits(&self, seam: &impl Seam) -> Bits {
        // Acquire: pairs with the Release in `set_bits`. For each bit that is visible, its
        // fingerprint and record are visible too.
        Bits(self.bits.load(seam, Ordering::Acquire))
    }

    /// Sets the bits. The bucket is locked, or not in use yet.
    #[inline(always)]
    pub(super) fn set_bits(&self, seam: &impl Seam, bits: Bits) {
        // Release: pairs with the Acquire in `bits`.
        self.bits.store(seam, bits.0, Ordering::Release);
    }

    #[inline(always)]
    pub(super) fn fingerprints(&self, seam: &impl Seam) -> [u64; 2] {
        let [low, high] = &self.fingerprints;
        [low.load(seam, Ordering::Relaxed), high.load(seam, Ordering::Relaxed)]
    }

    /// Sets one word of the fingerprints. The bucket is locked, or not in use yet.
    #[inline(always)]
    pub(super) fn set_fingerprints(&self, seam: &impl Seam, word: usize, fingerprints: u64) {
        self.fingerprints[word].store(seam, fingerprints, Ordering::Relaxed);
    }
}

/// Which slots hold a record, and fingerprints of records elsewhere.
///
/// ```text
///  63                           32 31          16 15           0
/// +-------------------------------+--------------+--------------+
/// |    4 overflow fingerprints    |    guests    |     own      |
/// +-------------------------------+--------------+--------------+
/// ```
///
/// `own`: the record's home is this bucket (or this is a bucket of the stash or of a node).
/// `guests`: the record's home is the bucket before this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Bits(pub(super) u64);

/// A bit for each slot of the first line.
const LINE: u32 = (1 << LINE_SLOTS) - 1;

impl Bits {
    /// Returns a bit for each slot that holds a record.
    #[inline(always)]
    pub(super) fn allocated(self) -> u32 {
        self.own() | self.guests()
    }

    /// Returns a bit for each slot whose record's home is this bucket.
    #[inline(always)]
    pub(super) fn own(self) -> u32 {
        self.0 as u32 & ALL_SLOTS
    }

    /// Returns a bit for each slot whose record's home is the bucket before this one.
    #[inline(always)]
    pub(super) fn guests(self) -> u32 {
        self.0 as u32 >> SLOTS
    }

    /// Returns the number of records in the bucket.
    #[inline(always)]
    pub(super) fn count(self) -> u32 {
        self.allocated().count_ones()
    }

    /// Returns whether this bucket has at most as many records as the other one.
    #[inline(always)]
    pub(super) fn is_no_fuller_than(self, other: Bits) -> bool {
        // Counts both together, one in each half, because not every processor has an instruction
        // that counts bits.
        let mut bits = self.allocated() | other.allocated() << SLOTS;
        bits -= bits >> 1 & 0x5555_5555;
        bits = (bits & 0x3333_3333) + (bits >> 2 & 0x3333_3333);
        bits = (bits + (bits >> 4)) & 0x0f0f_0f0f;
        bits += bits >> 8;
        bits & 0x1f <= bits >> 16 & 0x1f
    }

    /// Returns a free slot: the first one from `first` on, wrapping around.
    #[inline(always)]
    pub(super) fn free_slot(self, first: usize) -> Option<usize> {
        let free = !self.allocated() as u16;
        let from_first = free.rotate_right(first as u32);
        (free != 0).then(|| (from_first.trailing_zeros() as usize + first) % SLOTS)
    }

    /// Returns a free slot of the line that begins with slot `first`.
    #[inline(always)]
    pub(super) fn free_slot_in_line(self, first: usize) -> Option<usize> {
        let free = !self.allocated() & LINE << first;
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    /// Adds a record in this slot. `from_before` says that its home is the bucket before this one.
    #[must_use]
    #[inline(always)]
    pub(super) fn with(self, slot: usize, from_before: bool) -> Bits {
        Bits(self.without(slot).0 | 1 << (slot + if from_before { SLOTS } else { 0 }))
    }

    /// Removes the records in these slots.
    #[must_use]
    #[inline(always)]
    pub(super) fn without_all(self, slots: u32) -> Bits {
        Bits(self.0 & !(u64::from(slots) | u64::from(slots) << SLOTS))
    }

    /// Removes the record in this slot.
    #[must_use]
    #[inline(always)]
    pub(super) fn without(self, slot: usize) -> Bits {
        self.without_all(1 << slot)
    }

    /// Returns the overflow fingerprint at an index.
    #[inline(always)]
    pub(super) fn overflow_fingerprint(self, index: usize) -> u8 {
        (self.0 >> (32 + 8 * index)) as u8
    }

    /// Replaces the overflow fingerprint at an index.
    #[must_use]
    pub(super) fn with_overflow_fingerprint(self, index: usize, fingerprint: u8) -> Bits {
        let shift = 32 + 8 * index;
        Bits(self.0 & !(0xff << shift) | u64::from(fingerprint) << shift)
    }
}

/// The low bits of a bucket's lock word: which records of this home are in stash buckets and
/// overflow nodes.
///
/// ```text
///  15    12 11                    4 3            0
/// +--------+-----------------------+--------------+
/// | others | 4 stash bucket numbers | valid bits   |
/// +--------+-----------------------+--------------+
/// ```
///
/// The numbers and the valid bits belong to the overflow fingerprints in [`Bits`]. `others` counts
/// the records that have no fingerprint. The value 15 means 15 or more, and never decreases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Overflow(u64);

/// The value of [`Overflow::others`] that never decreases.
const OTHERS_MAX: u32 = 15;

impl Overflow {
    const MASK: u64 = (1 << OTHER_BITS) - 1;

    /// Returns the low bits of a lock word.
    #[inline(always)]
    pub(super) fn of(lock: u64) -> Overflow {
        Overflow(lock & Self::MASK)
    }

    /// Returns a lock word with these low bits.
    #[inline(always)]
    pub(super) fn within(self, lock: u64) -> u64 {
        lock & !Self::MASK | self.0
    }

    /// Returns whether this home has no record in the stash or in a node.
    #[inline(always)]
    pub(super) fn is_none(self) -> bool {
        self.0 & (0xf << 12 | 0xf) == 0
    }

    /// Returns a bit for each overflow fingerprint that is valid.
    pub(super) fn valid(self) -> u32 {
        self.0 as u32 & 0xf
    }

    /// Returns the stash bucket that the fingerprint at an index refers to.
    pub(super) fn stash(self, index: usize) -> u32 {
        (self.0 >> (4 + 2 * index)) as u32 & 3
    }

    /// Returns the number of records without a fingerprint; see the type's documentation.
    pub(super) fn others(self) -> u32 {
        (self.0 >> 12) as u32
    }

    fn with_others(self, others: u32) -> Overflow {
        Overflow(self.0 & !(0xf << 12) | u64::from(others.min(OTHERS_MAX)) << 12)
    }

    /// Adds a record in a stash bucket, or (`None`) in an overflow node. `bits` are those of its
    /// home.
    #[must_use]
    pub(super) fn noting(
        self,
        bits: Bits,
        fingerprint: u8,
        stash: Option<u32>,
    ) -> (Overflow, Bits) {
        let free = (0..OVERFLOW_FINGERPRINTS).find(|index| self.valid() & 1 << index == 0);
        match (stash, free) {
            (Some(stash), Some(index)) => {
                debug_assert!(stash < 4);
                let shift = 4 + 2 * index;
                let word = self.0 & !(3 << shift) | u64::from(stash) << shift | 1 << index;
                (Overflow(word), bits.with_overflow_fingerprint(index, fingerprint))
            }
            _ => (self.with_others(self.others() + 1), bits),
        }
    }

    /// Undoes [`noting`](Overflow::noting).
    #[must_use]
    pub(super) fn forgetting(self, bits: Bits, fingerprint: u8, stash: Option<u32>) -> Overflow {
        let noted = stash.and_then(|stash| {
            (0..OVERFLOW_FINGERPRINTS).find(|&index| {
                self.valid() & 1 << index != 0
                    && bits.overflow_fingerprint(index) == fingerprint
                    && self.stash(index) == stash
            })
        });
        // If two records have the same fingerprint and are in the same stash bucket, perhaps only
        // one of them has an overflow fingerprint. It does not matter which.
        match noted {
            Some(index) => Overflow(self.0 & !(1 << index)),
            None if self.others() < OTHERS_MAX => self.with_others(self.others().saturating_sub(1)),
            None => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_apart() {
        let mut bits = Bits::default();
        for slot in 0..SLOTS {
            assert_eq!(bits.free_slot(0), Some(slot));
            bits = bits.with(slot, slot % 3 == 0);
        }
        assert_eq!((bits.count(), bits.free_slot(0)), (16, None));
        for index in 0..OVERFLOW_FINGERPRINTS {
            bits = bits.with_overflow_fingerprint(index, 0xf0 + index as u8);
        }
        assert_eq!(bits.overflow_fingerprint(3), 0xf3);
        let guests = (0..SLOTS).step_by(3).map(|i| 1 << i).sum::<u32>();
        assert_eq!((bits.guests(), bits.own()), (guests, ALL_SLOTS & !guests));
        assert_eq!(bits.without(0).allocated(), ALL_SLOTS - 1);
    }

    #[test]
    fn fullness_is_compared_by_count() {
        let masks = [0, 1, 0x8000, 0xff, 0xff00, 0x5555, 0xfffe, 0xffff, 0x7fff, 0x1234];
        for a in masks {
            for b in masks {
                // Own records and guests count equally.
                let (bits, other) = (Bits(a & 0xff | (a & !0xff) << 16), Bits(b));
                let expected = bits.count() <= other.count();
                assert_eq!(bits.is_no_fuller_than(other), expected, "{a:x} {b:x}");
            }
        }
    }

    #[test]
    fn what_is_noted_is_forgotten() {
        let mut bits = Bits::default();
        let mut noted = Overflow::default();
        for (i, stash) in [Some(0), Some(3), None, Some(1), Some(2), Some(2)].iter().enumerate() {
            assert_eq!(noted.is_none(), i == 0);
            (noted, bits) = noted.noting(bits, i as u8, *stash);
        }
        assert_eq!((noted.valid(), noted.others()), (0b1111, 2), "four fingerprints, and others");
        assert_eq!((noted.stash(1), bits.overflow_fingerprint(1)), (3, 1));
        let lock = noted.within(u64::MAX);
        assert_eq!((Overflow::of(lock), lock >> 16), (noted, u64::MAX >> 16));
        for (i, stash) in [Some(0), Some(3), None, Some(1), Some(2), Some(2)].iter().enumerate() {
            assert!(!noted.is_none());
            noted = noted.forgetting(bits, i as u8, *stash);
        }
        assert!(noted.is_none());
        for _ in 0..40 {
            (noted, bits) = noted.noting(bits, 0, None);
        }
        assert_eq!(noted.others(), OTHERS_MAX);
        assert_eq!(noted.forgetting(bits, 0, None).others(), OTHERS_MAX, "it stays");
    }
}
