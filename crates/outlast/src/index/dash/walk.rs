//! Walks over the table: iteration, the trace of all blocks, samples.

use super::layout::{BUCKET_BYTES, NODE_BUCKETS, NODE_BYTES, SLOTS, Slot};
use super::metadata::{BucketRef, Metadata, Overflow};
use super::{Addressing, Dash, Route, Segment};
use crate::error::{Damage, Error, Result};
use crate::index::kit::collect::Collector;
use crate::index::kit::lookup::read_valid;
use crate::index::kit::media::ones;
use crate::index::kit::table::Walk;
use crate::index::kit::walk::{Salvaged, sample, scan};
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::version::{is_unchanged, version};
use crate::index::{BlockKind, Cursor, CursorState, IndexStats, Visitor};
use crate::pmem::Seam;
use std::collections::HashSet;

impl<S: Seam, R: SlotRecord, A: Addressing> Walk<S, R> for Dash<S, R, A> {
    /// Does one step of an iteration: the records of one home bucket. See `scan_part`.
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        let read = |at, cursor: Option<&Cursor>, found: &mut Collector<'_, R>| match cursor {
            Some(cursor) => Ok(self.collect(at, cursor, found)?.range()),
            None => {
                let segment = self.route(at)?.segment;
                self.note_strays(segment, found)?;
                Ok(segment.range())
            }
        };
        scan(cursor, out, self.size.buckets(), read, |at, from, damage, found| {
            self.salvage(at, from, damage, found)
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
        // If the segment was split meanwhile, its upper half is a new block, or lies in a block
        // that the trace has marked. The split has marked the records that it moved there.
        cursor.pass(segment.high());
        Ok(())
    }

    /// Returns statistics. The number of records is an estimate from a sample of the segments, spread
    /// evenly over the hash space.
    fn stats(&self) -> Result<IndexStats> {
        let entries = self.addressing.entries(self.seam());
        let (segments, [records]) = sample(entries, |hash| {
            let segment = self.route(hash)?.segment;
            // Keeps overflow nodes that a split retires from being reused meanwhile.
            let _visit = self.core.visit();
            let mut records = 0;
            for place in self.all_buckets(segment) {
                records += u64::from(self.bits(place?.0).count());
            }
            Ok((segment.range(), [records]))
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

impl<S: Seam, R: SlotRecord, A: Addressing> Dash<S, R, A> {
    // ---- Iteration --------------------------------------------------------------

    /// Appends the records whose home is the bucket `cursor.part`, in the segment that holds the
    /// hash `at`, if they are in the cursor's range. Returns the segment.
    fn collect(&self, at: u64, cursor: &Cursor, found: &mut Collector<'_, R>) -> Result<Segment> {
        let start = found.mark();
        // A hash of the same segment, with that home.
        let hash = at | u64::from(cursor.part) << 8;
        let read = read_valid(self, hash, 0, |route| {
            found.reset(start);
            // As in a lookup: read the version, read the records, check version and route.
            let lock = self.lock_of(self.bucket(route.segment, cursor.part));
            let before = version(&lock)?;
            let read = self.read_home(route, Overflow::of(before), cursor, found);
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
        found: &mut Collector<'_, R>,
    ) -> Result<(), Damage> {
        self.each_at_home(route, overflow, cursor, |words, place| {
            found.take(&self.core, words, || self.core.memory.offset_of(place).raw())
        })
    }

    /// Visits the records whose home is the bucket `cursor.part`, if they are in the cursor's range.
    pub(super) fn each_at_home(
        &self,
        route: &Route<'_, A>,
        overflow: Overflow,
        cursor: &Cursor,
        mut visit: impl FnMut(SlotWords, &Slot) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        let segment = route.segment;
        let home = self.bucket(segment, cursor.part);
        let next = self.bucket(segment, self.next(cursor.part));
        let (bits, next_bits) = (self.bits(home), self.bits(next));
        let mut take = |bucket: BucketRef<'_>, mask: u32| -> Result<(), Damage> {
            for slot in ones::<usize>(mask) {
                let place = &bucket.slots[slot];
                let words = self.words(place);
                let hash = self.hash_of(words);
                if self.home(hash) == cursor.part && (cursor.low..=cursor.high).contains(&hash) {
                    visit(words, place)?;
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

    /// Collects what can be read of a segment that cannot be made ready, from the hash `from` on.
    /// `hash` leads to it, and `damage` is why it cannot be made ready.
    ///
    /// No operation uses such a segment, so nothing changes it, and no block that it links to is reused.
    fn salvage(
        &self,
        hash: u64,
        from: u64,
        damage: Damage,
        found: &mut Collector<'_, R>,
    ) -> Result<Salvaged> {
        let mark = found.mark();
        if let Some(route) = self.ready_route(hash) {
            // The segment was damaged after it had been made ready.
            found.step_over(damage)?;
            return Ok(Salvaged::Read(route.segment.high()));
        }
        let end = self.addressing.end_of_entry(self.seam(), hash);
        let (segment, high) = match A::find_unready(self, hash) {
            Ok(found) => found,
            Err(Error::Damaged(_)) => {
                found.step_over(damage)?;
                return Ok(Salvaged::Lost(end));
            }
            Err(error) => return Err(error),
        };
        let (nodes, broken) = self.follow_chain(segment);
        let own = (0..self.size.buckets()).map(|i| (self.bucket(segment, i), Some(i)));
        let stash = (0..self.size.stash).map(|i| (self.stash_bucket(segment, i), None));
        let mut buckets: Vec<_> = own.chain(stash).collect();
        for node in nodes {
            for index in 1..=u64::from(NODE_BUCKETS) {
                buckets.push((self.bucket_at(node + index * BUCKET_BYTES)?, None));
            }
        }
        let mut keys = HashSet::new();
        for (bucket, index) in buckets {
            for (slot, place) in bucket.slots.iter().enumerate() {
                match self.record_in(segment, bucket, slot, index) {
                    Ok(Some((words, hash))) if (from..=high).contains(&hash) => {
                        let at = self.core.memory.offset_of(place).raw();
                        found.take_unused(&self.core, words, at, &mut keys)?;
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => self.note_stray(segment, place, found)?,
                    Err(damage) => found.step_over(damage)?,
                }
            }
        }
        if let Some(broken) = broken {
            found.step_over_once(broken, mark)?;
        }
        found.step_over_once(damage, mark)?;
        Ok(Salvaged::Read(high))
    }

    /// Reports as damage the slots of a segment that look as if a split had left them behind, but
    /// whose links cannot be those of records. Only a salvage looks for them.
    fn note_strays(&self, segment: Segment, found: &mut Collector<'_, R>) -> Result<(), Damage> {
        if !found.salvages() || R::EMPTY.is_none() {
            return Ok(());
        }
        // Keeps overflow nodes that a split retires from being reused meanwhile.
        let _visit = self.core.visit();
        for (bucket, _) in self.all_buckets(segment).map_while(Result::ok) {
            for slot in bucket.slots {
                self.note_stray(segment, slot, found)?;
            }
        }
        Ok(())
    }

    fn note_stray(
        &self,
        segment: Segment,
        slot: &Slot,
        found: &mut Collector<'_, R>,
    ) -> Result<(), Damage> {
        self.stray(segment, slot).map_or(Ok(()), |damage| found.step_over(damage))
    }

    /// Returns the damage of a slot that looks as if a split had left it behind, but whose link cannot
    /// be that of a record.
    pub(super) fn stray(&self, segment: Segment, slot: &Slot) -> Option<Damage> {
        let words = slot.read_whole(&self.core.memory);
        let is_empty = words.first == self.empty(segment.low);
        if is_empty || segment.holds(self.hash_of(words)) {
            return None;
        }
        R::check_link(&self.core, words).err().map(|_| {
            let at = self.core.memory.offset_of(slot).raw();
            let stray = format!("{:#x} {:#x}", words.first, words.second);
            Damage::new(at, "an empty slot, or a record", stray)
        })
    }

    // ---- Trace ------------------------------------------------------------------

    fn trace_segment(&self, segment: Segment, visit: &mut Visitor<'_>) -> Result<()> {
        if A::SEGMENTS_ARE_BLOCKS {
            visit(BlockKind::Segment, segment.offset, self.size.bytes())?;
        }
        // Keeps overflow nodes that a split retires from being reused meanwhile.
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
