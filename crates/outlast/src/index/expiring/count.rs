//! What a map whose records expire holds, counted exactly.

use super::Expiring;
use crate::error::{Boxed, Result};
use crate::index::{BlockKind, Bytes, Change, Changed, Cursor, Previous};
use crate::pmem::Seam;
use crate::pool::geometry::Geometry;
use crate::pool::threads::thread_number;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// What a record's slot counts as, in bytes. A slot has 16, and the tables are about two thirds full.
const SLOT_BYTES: u64 = 24;

/// The records of a map and their space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Records, expired ones that were not removed yet included.
    pub records: u64,
    /// The space of their blocks and slots, in bytes.
    pub bytes: u64,
    /// Records that were removed because they had expired.
    pub expired: u64,
}

/// How many batches a bound has. So the common part is wrong by at most a thousandth of it.
const BATCHES: u64 = 1 << 14;
/// A batch of fewer bytes would hold hardly any record.
const LEAST_BYTES: u64 = 1 << 11;
/// The largest batch, for what has no bound. A stripe has less, in two signed numbers of 40 and 24 bits.
const BATCH_MAX: u64 = 1 << 22;
const RECORDS_BITS: u32 = 24;
/// How many stripes a count has.
const STRIPES: usize = 16;

/// What some threads have counted: bytes, and in the lowest bits records.
#[derive(Default)]
#[repr(align(128))]
struct Stripe(AtomicI64);

/// Records and bytes, in lines that few threads write.
#[derive(Default)]
#[repr(align(128))]
struct Both {
    records: AtomicI64,
    bytes: AtomicI64,
}

impl Both {
    fn add(&self, records: i64, bytes: i64) {
        // Release: pairs with the Acquire loads. Whoever knows of a reservation's end knows of its record.
        self.records.fetch_add(records, Ordering::Release);
        self.bytes.fetch_add(bytes, Ordering::Release);
    }

    fn load(&self) -> (i64, i64) {
        (self.records.load(Ordering::Acquire), self.bytes.load(Ordering::Acquire))
    }
}

/// A count whose parts are added up only to read it exactly, like the per-CPU counters of Linux: a thread adds to
/// its stripe, and moves what that holds to the common part as soon as it reaches a *batch*. So the common
/// part is wrong by less than a batch for each stripe.
#[derive(Default)]
struct Striped {
    common: Both,
    /// With 0, nothing is in a stripe.
    batch: Both,
    stripes: [Stripe; STRIPES],
}

impl Striped {
    fn add(&self, records: i64, bytes: i64) {
        let batch = self.batch.load();
        if records.abs() >= batch.0 || bytes.abs() >= batch.1 {
            return self.common.add(records, bytes);
        }
        let stripe = self.own();
        let packed = (bytes << RECORDS_BITS) + records;
        // AcqRel, and before the batch is read again: see `set_batch`.
        let (has_records, has_bytes) =
            unpack(stripe.0.fetch_add(packed, Ordering::AcqRel) + packed);
        let batch = self.batch.load();
        if has_records.abs() >= batch.0 || has_bytes.abs() >= batch.1 {
            self.collect(stripe);
        }
    }

    fn collect(&self, stripe: &Stripe) {
        let (records, bytes) = unpack(stripe.0.swap(0, Ordering::AcqRel));
        self.common.add(records, bytes);
    }

    /// Sets the batch. What the stripes hold afterwards is less.
    fn set_batch(&self, records: i64, bytes: i64) {
        self.batch.records.store(records, Ordering::Relaxed);
        self.batch.bytes.store(bytes, Ordering::Relaxed);
        // An addition to a stripe after this knows the new batch, and one before is collected.
        self.stripes.iter().for_each(|stripe| self.collect(stripe));
    }

    fn sum(&self) -> (i64, i64) {
        self.stripes.iter().fold(self.common.load(), |(records, bytes), stripe| {
            let more = unpack(stripe.0.load(Ordering::Acquire));
            (records + more.0, bytes + more.1)
        })
    }

    /// Returns at least the [`sum`](Self::sum), and at most two batches for each stripe more. A thread's own changes
    /// show at once.
    fn at_most(&self) -> (i64, i64) {
        let (common, batch, own) = (self.common.load(), self.batch.load(), self.own());
        let own = unpack(own.0.load(Ordering::Acquire));
        let others = STRIPES as i64 - 1;
        (common.0 + own.0 + batch.0 * others, common.1 + own.1 + batch.1 * others)
    }

    fn own(&self) -> &Stripe {
        &self.stripes[thread_number() % STRIPES]
    }
}

/// Returns records and bytes.
fn unpack(packed: i64) -> (i64, i64) {
    let unused = i64::BITS - RECORDS_BITS;
    let records = packed << unused >> unused;
    (records, (packed - records) >> RECORDS_BITS)
}

#[derive(Default)]
pub(super) struct Count {
    counts: AtomicBool,
    made: Striped,
    /// What inserts under way have reserved.
    reserved: Striped,
    expired: AtomicU64,
}

impl Count {
    fn add(&self, records: i64, bytes: i64) {
        if self.counts.load(Ordering::Relaxed) {
            self.made.add(records, bytes);
        }
    }

    pub(super) fn note_expired(&self, removed: bool) {
        if removed && self.counts.load(Ordering::Relaxed) {
            self.expired.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn now(&self) -> Counted {
        self.counted(self.made.sum())
    }

    /// Returns at least what is there and what is reserved.
    pub(super) fn at_most(&self) -> Counted {
        // Before the other: an insert that gives up its reservation has counted its record.
        let reserved = self.reserved.at_most();
        let made = self.made.at_most();
        self.counted((made.0 + reserved.0, made.1 + reserved.1))
    }

    pub(super) fn reserve(&self, records: i64, bytes: i64) {
        self.reserved.add(records, bytes);
    }

    /// Sets what is counted at most.
    pub(super) fn set_bound(&self, records: u64, bytes: u64) {
        let batch = |bound: u64, least: u64| match bound / BATCHES {
            few if few < least => 0,
            batch => batch.min(BATCH_MAX).cast_signed(),
        };
        let (records, bytes) = (batch(records, 2), batch(bytes, LEAST_BYTES));
        self.made.set_batch(records, bytes);
        self.reserved.set_batch(records, bytes);
    }

    fn counted(&self, (records, bytes): (i64, i64)) -> Counted {
        Counted {
            // A change counts after it is made, so another thread can count the removal of a record first.
            records: records.max(0).cast_unsigned(),
            bytes: bytes.max(0).cast_unsigned(),
            expired: self.expired.load(Ordering::Relaxed),
        }
    }
}

/// Returns what a record of this many bytes, header included, counts as.
fn weight(geometry: Geometry, bytes: u64) -> u64 {
    let class = geometry.class_bytes(geometry.class_for(bytes));
    SLOT_BYTES + class.unwrap_or_else(|| geometry.pages_for(bytes) * geometry.page_bytes())
}

impl<S: Seam> Expiring<S> {
    /// Returns what a record counts as. `stored` is the length of its value as it is stored.
    pub(super) fn weight_of(&self, key: usize, stored: usize) -> u64 {
        weight(self.core.geometry, Bytes::RECORD_HEADER + (key + stored) as u64)
    }

    /// Makes a change of the map below, and counts it. A put or a removal must ask for the value before.
    pub(super) fn apply(
        &self,
        key: &[u8],
        change: Change<'_, Bytes>,
        before: Previous<Bytes>,
    ) -> Boxed<Changed<Bytes>> {
        let done = self.stored.change(key, change, before)?;
        self.note(key, change, &done);
        Ok(done)
    }

    /// Counts a change of the map below.
    pub(super) fn note(&self, key: &[u8], change: Change<'_, Bytes>, done: &Changed<Bytes>) {
        if done.applied && self.count.counts.load(Ordering::Relaxed) {
            let (new, old) = match change {
                Change::Insert(new) => (Some(new), None),
                Change::Put(new) | Change::Update(new) => (Some(new), done.before.as_deref()),
                Change::Swap { expected, new } => (Some(new), Some(expected)),
                Change::Remove => (None, done.before.as_deref()),
                Change::CompareRemove(expected) => (None, Some(expected)),
            };
            let of = |value: Option<&[u8]>| match value {
                Some(value) => (1, self.weight_of(key.len(), value.len()).cast_signed()),
                None => (0, 0),
            };
            let (new, old) = (of(new), of(old));
            self.count.add(new.0 - old.0, new.1 - old.1);
        }
    }

    /// Counts the eviction of a record of this size, in bytes, header included.
    pub(super) fn note_evicted(&self, bytes: u64) {
        self.count.add(-1, -weight(self.core.geometry, bytes).cast_signed());
    }

    /// Counts all records. The caller holds the gate.
    pub(super) fn count_all(&self) -> Result<()> {
        if self.count.counts.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (geometry, memory) = (self.core.geometry, &self.core.memory);
        let (mut cursor, mut records, mut bytes) = (Cursor::start(), 0, 0);
        while !cursor.is_done() {
            self.stored.trace(&mut cursor, &mut |kind, offset, least| {
                if kind == BlockKind::Record {
                    // The size of a large block is in its record.
                    let needed = if least == geometry.small_max() + 1 {
                        let lengths = memory.load(&memory.words(offset, 8)?[0]);
                        Bytes::RECORD_HEADER + (lengths & 0xffff_ffff) + (lengths >> 32)
                    } else {
                        least
                    };
                    records += 1;
                    bytes += weight(geometry, needed).cast_signed();
                }
                Ok(())
            })?;
        }
        self.count.counts.store(true, Ordering::Relaxed);
        self.count.add(records, bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_numbers_of_a_stripe_have_signs() {
        for (records, bytes) in [(0, 0), (1, -1), (-1, 1), (-7, -300), (8_388_607, -(1 << 38))] {
            assert_eq!(unpack((bytes << RECORDS_BITS) + records), (records, bytes));
        }
    }

    #[test]
    fn threads_count_exactly_and_the_common_part_is_hardly_wrong() {
        let count = Striped::default();
        count.set_batch(11, 1_000);
        std::thread::scope(|s| {
            for thread in 0..8 {
                let count = &count;
                s.spawn(move || {
                    for n in 0..10_000 {
                        count.add(1, 100 + n % 7);
                        count.add(-1, -(100 + n % 7));
                        if n % 10 == 0 {
                            count.add(2, 50 + thread);
                        }
                    }
                });
            }
        });
        let bytes = (0..8).map(|thread| 1_000 * (50 + thread)).sum();
        assert_eq!(count.sum(), (16_000, bytes));
        let most = count.at_most();
        assert!((16_000..16_000 + 352).contains(&most.0), "{most:?}");
        assert!((bytes..bytes + 32_000).contains(&most.1), "{most:?}");
        assert_ne!(count.common.load(), count.sum(), "something is in the stripes");
        count.set_batch(0, 0);
        assert_eq!((count.common.load(), count.at_most()), ((16_000, bytes), (16_000, bytes)));
    }
}
