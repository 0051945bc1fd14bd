//! Walks over the table: iteration, the trace of all blocks, samples.

use super::layout::{self, CHUNK_BYTES};
use super::{Cell, Group, Segment};
use crate::error::{Damage, Result};
use crate::index::kit::collect::Collector;
use crate::index::kit::lookup::{Optimistic, read_valid};
use crate::index::kit::table::Walk;
use crate::index::kit::walk::{Salvaged, sample, scan};
use crate::index::record::SlotRecord;
use crate::index::version::{is_unchanged, version};
use crate::index::{BlockKind, Cursor, IndexStats, Visitor};
use crate::pmem::{SHADOW_SHARE, Seam};
use std::collections::HashSet;

/// The largest number of homes whose records one step of an iteration reads.
const HOMES: u32 = 64;

impl<S: Seam, R: SlotRecord> Walk<S, R> for Group<S, R> {
    /// Does one step of an iteration: the records of some homes. See `scan_part`.
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        let parts = self.group.div_ceil(HOMES);
        let read = |at, cursor: Option<&Cursor>, found: &mut Collector<'_, R>| match cursor {
            Some(cursor) => Ok(self.collect(at, cursor, found)?.range()),
            None => {
                let segment = self.route(at)?.segment;
                self.note_strays(segment, found)?;
                Ok(segment.range())
            }
        };
        scan(cursor, out, parts, read, |at, _, damage, found| self.salvage(at, damage, found))
    }

    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        if cursor.is_done() {
            return Ok(());
        }
        let segment = self.route(cursor.low)?.segment;
        visit(BlockKind::Segment, segment.offset, layout::segment_bytes(self.group))?;
        for node in self.nodes(segment) {
            visit(BlockKind::Overflow, node?, layout::node_bytes(self.group))?;
        }
        if R::EMPTY.is_some() {
            for cells in self.all_cells(segment) {
                for cell in cells?.all() {
                    let words = cell.slot().read_whole(&self.core.memory);
                    let free = words.first == self.empty(segment.low);
                    if !free && segment.holds(self.hash_of(words)) {
                        let (offset, bytes) = R::extent(&self.core, words)?;
                        visit(BlockKind::Record, offset, bytes)?;
                    }
                }
            }
        }
        // If the segment was split meanwhile, the upper half is a new block, and the split has
        // marked the records that it copied there.
        cursor.pass(segment.high());
        Ok(())
    }

    /// Returns statistics. The number of records is an estimate from a sample of the segments, spread
    /// evenly over the hash space.
    fn stats(&self) -> Result<IndexStats> {
        let entries = 1 << self.directory.depth(self.seam());
        let (segments, [records, nodes]) = sample(entries, |hash| {
            let segment = self.route(hash)?.segment;
            let mut records = 0;
            for cells in self.all_cells(segment) {
                records += cells?.used(self.seam()).count() as u64;
            }
            Ok((segment.range(), [records, self.nodes(segment).count() as u64]))
        })?;
        let cells = layout::segment_bytes(self.group) - CHUNK_BYTES;
        let bytes = segments * cells + nodes * (layout::node_bytes(self.group) - CHUNK_BYTES);
        Ok(IndexStats {
            segments,
            directory_entries: entries,
            records_estimate: records,
            slots: bytes / 16,
            dram_bytes: entries * 16 + bytes / SHADOW_SHARE,
            ..self.counters.stats()
        })
    }
}

impl<S: Seam, R: SlotRecord> Group<S, R> {
    /// Appends the records of the homes of `cursor.part`, in the segment that holds the hash `at`,
    /// if they are in the cursor's range. Returns the segment.
    fn collect(&self, at: u64, cursor: &Cursor, found: &mut Collector<'_, R>) -> Result<Segment> {
        let start = found.mark();
        let read = read_valid(self, at, 0, |route| {
            found.reset(start);
            let lock = self.lock_of(route.segment);
            let before = version(&lock)?;
            let read = self.read_part(route.segment, cursor, found);
            let valid = is_unchanged(&lock, before) && self.is_current(route);
            valid.then(|| read.map(|()| route.segment))
        })?;
        Ok(read?)
    }

    fn read_part(
        &self,
        segment: Segment,
        cursor: &Cursor,
        found: &mut Collector<'_, R>,
    ) -> Result<(), Damage> {
        let part = |hash: u64| (hash as u32 & (self.group - 1)) / HOMES == cursor.part;
        for cells in self.all_cells(segment) {
            for cell in cells?.used(self.seam()) {
                if cell.home().is_some_and(|home| home / HOMES != cursor.part) {
                    continue;
                }
                let words = cell.slot().read(&self.core.memory);
                let hash = self.hash_of(words);
                if part(hash) && (cursor.low..=cursor.high).contains(&hash) {
                    let at = || self.core.memory.offset_of(cell.slot()).raw();
                    found.take(&self.core, words, at)?;
                }
            }
        }
        Ok(())
    }

    /// Collects what can be read of a segment that is not served. `hash` leads to it.
    ///
    /// No operation uses such a segment, so nothing changes it, and no block that it links to is reused.
    fn salvage(&self, hash: u64, damage: Damage, found: &mut Collector<'_, R>) -> Result<Salvaged> {
        let mark = found.mark();
        if let Some(route) = self.ready_route(hash) {
            // The segment was damaged after opening.
            found.step_over(damage)?;
            return Ok(Salvaged::Read(route.segment.high()));
        }
        let missing = self.missing_at(hash);
        let mut keys = HashSet::new();
        if let Some(segment) = missing.segment {
            // Opening has read its overflow nodes up to the first damaged one.
            for cells in self.all_cells(segment) {
                let Ok(cells) = cells else { break };
                for cell in cells.all() {
                    match self.record_in(segment, cell) {
                        Ok(Some((words, _))) => {
                            let at = self.core.memory.offset_of(cell.slot()).raw();
                            found.take_unused(&self.core, words, at, &mut keys)?;
                        }
                        Ok(None) => self.note_stray(segment, cell, found)?,
                        Err(damage) => found.step_over(damage)?,
                    }
                }
            }
        }
        found.step_over_once(damage, mark)?;
        Ok(Salvaged::Read(missing.high))
    }

    /// Reports as damage the cells of a segment that look as if a split had left them behind, but
    /// whose links cannot be those of records. Only a salvage looks for them.
    fn note_strays(&self, segment: Segment, found: &mut Collector<'_, R>) -> Result<(), Damage> {
        if !found.salvages() || R::EMPTY.is_none() {
            return Ok(());
        }
        for cells in self.all_cells(segment).map_while(Result::ok) {
            for cell in cells.all() {
                self.note_stray(segment, cell, found)?;
            }
        }
        Ok(())
    }

    fn note_stray(
        &self,
        segment: Segment,
        cell: Cell<'_>,
        found: &mut Collector<'_, R>,
    ) -> Result<(), Damage> {
        self.stray(segment, cell).map_or(Ok(()), |damage| found.step_over(damage))
    }

    /// Returns the damage of a cell that looks as if a split had left it behind, but whose link cannot
    /// be that of a record.
    pub(super) fn stray(&self, segment: Segment, cell: Cell<'_>) -> Option<Damage> {
        let words = cell.slot().read_whole(&self.core.memory);
        let is_empty = words.first == self.empty(segment.low);
        if is_empty || segment.holds(self.hash_of(words)) {
            return None;
        }
        R::check_link(&self.core, words).err().map(|_| {
            let at = self.core.memory.offset_of(cell.slot()).raw();
            let stray = format!("{:#x} {:#x}", words.first, words.second);
            Damage::new(at, "an empty cell, or a record", stray)
        })
    }
}
