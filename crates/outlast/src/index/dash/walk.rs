//! Walks over the table: iteration, the trace of all blocks, samples.

use super::layout::{NODE_BYTES, SLOTS};
use super::metadata::{BucketRef, Metadata, Overflow};
use super::{Addressing, Dash, Route, Segment};
use crate::error::{Damage, Result};
use crate::index::kit::lookup::read_valid;
use crate::index::kit::media::ones;
use crate::index::kit::table::Walk;
use crate::index::kit::walk::{sample, scan_part};
use crate::index::record::Record;
use crate::index::version::{is_unchanged, version};
use crate::index::{BlockKind, Cursor, CursorState, IndexStats, Visitor};
use crate::pmem::Seam;

impl<S: Seam, R: Record, A: Addressing> Walk<S, R> for Dash<S, R, A> {
    /// Does one step of an iteration: the records of one home bucket. See [`scan_part`].
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        scan_part(cursor, self.size.buckets(), |at, cursor| match cursor {
            Some(cursor) => self.collect(at, cursor, out),
            None => Ok(self.route(at)?.segment),
        })
    }

    /// Does one step of the trace: first the directory, then one segment at a time with everything
    /// it links to. The caller has passed the gate, or holds it.
    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        if cursor.is_done() {
            return Ok(());
        }
        if cursor.state == CursorState::Start {
            A::trace(self, visit)?;
        }
        let segment = self.route_inside(cursor.low)?.segment;
        self.trace_segment(segment, visit)?;
        // If the segment was split meanwhile, the upper half is a new block, or in one that the trace
        // has marked. The split has marked the records that it moved there.
        cursor.pass(segment.high());
        Ok(())
    }

    /// Returns statistics. The number of records is an estimate from a sample of the segments, spread
    /// evenly over the hash space.
    fn stats(&self) -> Result<IndexStats> {
        let entries = self.addressing.entries(self.seam());
        let (segments, [records]) = sample(entries, |hash| {
            let segment = self.route(hash)?.segment;
            // Overflow nodes that a split gives back stay as they are meanwhile.
            let _visit = self.core.visit();
            let mut records = 0;
            for place in self.all_buckets(segment) {
                records += u64::from(self.bits(place?.0).count());
            }
            Ok((segment, [records]))
        })?;
        let buckets = u64::from(self.size.buckets() + self.size.stash);
        Ok(IndexStats {
            segments,
            directory_entries: entries,
            records_estimate: records,
            slots: segments * buckets * SLOTS as u64,
            dram_bytes: entries * A::ENTRY_BYTES
                + segments * buckets * size_of::<Metadata>() as u64,
            ..self.counters.stats()
        })
    }
}

impl<S: Seam, R: Record, A: Addressing> Dash<S, R, A> {
    // ---- Iteration --------------------------------------------------------------

    /// Appends the records whose home is `cursor.part`, in the segment that holds the hash `at`, if
    /// they are in the cursor's range.
    fn collect(
        &self,
        at: u64,
        cursor: &Cursor,
        out: &mut Vec<(R::OwnedKey, R::Owned)>,
    ) -> Result<Segment> {
        let start = out.len();
        // A hash of the same segment, with that home.
        let hash = at | u64::from(cursor.part) << 8;
        let read = read_valid(self, hash, 0, |route| {
            out.truncate(start);
            // As a lookup: version, read, then version and route again.
            let lock = self.lock_of(self.bucket(route.segment, cursor.part));
            let before = version(&lock)?;
            let read = self.read_home(route, Overflow::of(before), cursor, out);
            let valid = is_unchanged(&lock, before) && self.is_current(route);
            valid.then(|| read.map(|()| route.segment))
        })?;
        Ok(read?)
    }

    fn read_home(
        &self,
        route: &Route<'_, A>,
        overflow: Overflow,
        cursor: &Cursor,
        out: &mut Vec<(R::OwnedKey, R::Owned)>,
    ) -> Result<(), Damage> {
        let segment = route.segment;
        let home = self.bucket(segment, cursor.part);
        let next = self.bucket(segment, self.next(cursor.part));
        let (bits, next_bits) = (self.bits(home), self.bits(next));
        let mut take = |bucket: BucketRef<'_>, mask: u32| -> Result<(), Damage> {
            for slot in ones::<usize>(mask) {
                let words = self.words(&bucket.slots[slot]);
                let hash = self.hash_of(words);
                if self.home(hash) == cursor.part && (cursor.low..=cursor.high).contains(&hash) {
                    let value = R::value_unless(cursor.keys_only, &self.core, words)?;
                    out.push((R::key(&self.core, words)?, value));
                }
            }
            Ok(())
        };
        take(home, bits.own())?;
        take(next, next_bits.guests())?;
        if overflow.is_none() {
            return Ok(());
        }
        for place in self.overflow_buckets(segment) {
            let (bucket, _) = place?;
            take(bucket, self.bits(bucket).allocated())?;
        }
        Ok(())
    }

    // ---- Trace ------------------------------------------------------------------

    fn trace_segment(&self, segment: Segment, visit: &mut Visitor<'_>) -> Result<()> {
        if A::SEGMENTS_ARE_BLOCKS {
            visit(BlockKind::Segment, segment.offset, self.size.bytes())?;
        }
        // Overflow nodes that a split gives back stay as they are meanwhile.
        let _visit = self.core.visit();
        for node in self.nodes(segment) {
            visit(BlockKind::Overflow, node?, NODE_BYTES)?;
        }
        if R::EMPTY.is_none() {
            return Ok(());
        }
        for place in self.all_buckets(segment) {
            for slot in place?.0.slots {
                let words = slot.read_whole(&self.core.memory);
                if words.first != self.empty(segment.low) && segment.holds(self.hash_of(words)) {
                    let (offset, bytes) = R::extent(&self.core, words)?;
                    visit(BlockKind::Record, offset, bytes)?;
                }
            }
        }
        Ok(())
    }
}
