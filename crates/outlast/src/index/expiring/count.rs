//! What a map whose records expire holds, counted exactly.

use super::Expiring;
use crate::error::{Boxed, Result};
use crate::index::{BlockKind, Bytes, Change, Changed, Cursor, Previous};
use crate::pmem::Seam;
use crate::pool::geometry::Geometry;
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

#[derive(Default)]
pub(super) struct Count {
    counts: AtomicBool,
    records: AtomicI64,
    bytes: AtomicI64,
    expired: AtomicU64,
}

impl Count {
    fn add(&self, records: i64, bytes: i64) {
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn note_expired(&self, removed: bool) {
        if removed && self.counts.load(Ordering::Relaxed) {
            self.expired.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn now(&self) -> Counted {
        // A change counts after it is made, so another thread can count the removal of a record first.
        let count = |of: &AtomicI64| of.load(Ordering::Relaxed).max(0).cast_unsigned();
        Counted {
            records: count(&self.records),
            bytes: count(&self.bytes),
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
        if self.count.counts.load(Ordering::Relaxed) {
            self.count.add(-1, -weight(self.core.geometry, bytes).cast_signed());
        }
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
        self.count.add(records, bytes);
        self.count.counts.store(true, Ordering::Relaxed);
        Ok(())
    }
}
