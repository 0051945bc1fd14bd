//! Walks over the table: iteration, the trace of all blocks, samples.

use super::layout::{self, CHUNK_BYTES};
use super::{Group, Segment};
use crate::error::{Damage, Result};
use crate::index::kit::lookup::read_valid;
use crate::index::kit::table::Walk;
use crate::index::kit::walk::{sample, scan_part};
use crate::index::record::Record;
use crate::index::version::{is_unchanged, version};
use crate::index::{BlockKind, Cursor, IndexStats, Visitor};
use crate::pmem::{SHADOW_SHARE, Seam};

/// The most homes whose records one step of an iteration reads.
const HOMES: u32 = 64;

impl<S: Seam, R: Record> Walk<S, R> for Group<S, R> {
    /// Does one step of an iteration: the records of some homes. See [`scan_part`].
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        let parts = self.group.div_ceil(HOMES);
        scan_part(cursor, parts, |at, cursor| match cursor {
            Some(cursor) => self.collect(at, cursor, out),
            None => Ok(self.route(at)?.segment),
        })
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
            Ok((segment, [records, self.nodes(segment).count() as u64]))
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

impl<S: Seam, R: Record> Group<S, R> {
    /// Appends the records of the homes of `cursor.part`, in the segment that holds the hash `at`,
    /// if they are in the cursor's range. Returns the segment.
    fn collect(
        &self,
        at: u64,
        cursor: &Cursor,
        out: &mut Vec<(R::OwnedKey, R::Owned)>,
    ) -> Result<Segment> {
        let start = out.len();
        let read = read_valid(self, at, 0, |route| {
            out.truncate(start);
            let lock = self.lock_of(route.segment);
            let before = version(&lock)?;
            let read = self.read_part(route.segment, cursor, out);
            let valid = is_unchanged(&lock, before) && self.is_current(route);
            valid.then(|| read.map(|()| route.segment))
        })?;
        Ok(read?)
    }

    fn read_part(
        &self,
        segment: Segment,
        cursor: &Cursor,
        out: &mut Vec<(R::OwnedKey, R::Owned)>,
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
                    let value = R::value_unless(cursor.keys_only, &self.core, words)?;
                    out.push((R::key(&self.core, words)?, value));
                }
            }
        }
        Ok(())
    }
}
