//! Walks over the table: iteration, the trace of all blocks, samples.

use super::layout::{self, CHUNK_BYTES, MAX_DEPTH};
use super::{Group, Segment};
use crate::error::{Damage, Result};
use crate::index::kit::table::Walk;
use crate::index::record::Record;
use crate::index::version::{is_unchanged, version};
use crate::index::{BlockKind, Cursor, IndexStats, Visitor};
use crate::pmem::Seam;

/// The most homes whose records one step of an iteration reads.
const HOMES: u32 = 64;
/// The most segments that a sample reads.
const SAMPLE: u64 = 64;
/// How often an iteration tries to read before it locks the segment.
const PATIENCE: u32 = 16;
/// Bytes of DRAM for a byte of cells.
const SHADOW: u64 = 8;

impl<S: Seam, R: Record> Walk<S, R> for Group<S, R> {
    /// Does one step of an iteration: the records of some homes, in the range of hashes that their
    /// segment had when the iteration reached it.
    ///
    /// The range stays the same while the iteration works through its homes, even if the segment is
    /// split meanwhile. Then they are read from several segments. So no record is returned twice,
    /// and no record that stays is missed.
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        if cursor.is_done() {
            return Ok(());
        }
        if cursor.part == 0 {
            cursor.high = self.route(cursor.low)?.segment.high();
        }
        let mut at = Some(cursor.low);
        while let Some(low) = at.filter(|&low| low <= cursor.high) {
            at = self.collect(low, cursor, out)?.high().checked_add(1);
        }
        cursor.part += 1;
        if cursor.part * HOMES >= self.group {
            cursor.pass(cursor.high);
        }
        Ok(())
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

    /// Counts the records of some segments, spread evenly over the hash space.
    fn stats(&self) -> Result<IndexStats> {
        let segments = *self.seam().lock(&self.segments);
        let (mut records, mut nodes, mut sampled, mut share) = (0, 0, 0, 0.0);
        let mut at = Some(0u64);
        while let Some(hash) = at {
            let segment = self.route(hash)?.segment;
            for cells in self.all_cells(segment) {
                records += cells?.used(self.seam()).count() as u64;
            }
            nodes += self.nodes(segment).count() as u64;
            sampled += 1;
            share += 0.5f64.powi(segment.depth as i32);
            // In a table of many segments, the sample skips whole neighbourhoods.
            let range = segment.high() - segment.low;
            let step = if segments <= SAMPLE { range } else { range.max(u64::MAX / SAMPLE) };
            at = segment.low.checked_add(step).and_then(|last| last.checked_add(1));
        }
        let whole = |sampled: u64| (sampled as f64 / share).round() as u64;
        let entries = 1 << self.directory.depth(self.seam()).min(MAX_DEPTH);
        let cells = layout::segment_bytes(self.group) - CHUNK_BYTES;
        let in_nodes = layout::node_bytes(self.group) - CHUNK_BYTES;
        let bytes = segments * cells + whole(nodes) * in_nodes;
        Ok(IndexStats {
            segments,
            directory_entries: entries,
            records_estimate: if sampled == segments { records } else { whole(records) },
            slots: bytes / 16,
            dram_bytes: entries * 16 + bytes / SHADOW,
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
        let mut turn = 0;
        loop {
            let route = self.route(at)?;
            let mut held = None;
            if turn >= PATIENCE {
                // Under constant change, it would never read a whole part. The lock ends that. It is
                // taken inside the gate, as all locks are.
                let inside = self.core.enter()?;
                held = Some((self.lock(route.segment, 1)?, inside));
            }
            let lock = self.lock_of(route.segment);
            if let Some(before) = version(&lock) {
                let read = self.read_part(route.segment, cursor, out);
                if is_unchanged(&lock, before) && self.is_current(&route) {
                    read?;
                    return Ok(route.segment);
                }
                out.truncate(start);
            }
            drop(held);
            self.wait_for(route.segment, 0, &mut turn)?;
        }
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
                    out.push((R::key(&self.core, words)?, R::value(&self.core, words)?));
                }
            }
        }
        Ok(())
    }
}
