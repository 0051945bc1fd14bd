//! Walks over the table: iteration, the trace of all blocks, samples.

use super::layout::{self, BLOCK_LINES, NODE_BYTES, Segment};
use super::{At, Line};
use crate::error::{Damage, Error, Result};
use crate::index::kit::cells::{cell_of, first_hash};
use crate::index::kit::collect::Collector;
use crate::index::kit::lookup::read_valid;
use crate::index::kit::table::Walk;
use crate::index::kit::walk::{HashRange, Salvaged, sample, scan};
use crate::index::record::SlotRecord;
use crate::index::version::version;
use crate::index::{BlockKind, Cursor, CursorState, IndexStats, Visitor};
use crate::pmem::Seam;
use std::collections::HashSet;

/// The number of parts of an iteration of a segment.
pub(super) const PARTS: u32 = 8;
/// After this many invalid reads, an iteration keeps changes out. (After more, the kit would lock one
/// stripe, which would not help.)
const PATIENCE: u32 = 1 << 9;

/// Returns the part of a hash.
pub(super) fn part_of(hash: u64) -> u32 {
    hash as u32 >> 29
}

impl<S: Seam, R: SlotRecord> Walk<S, R> for Line<S, R> {
    /// Does one step of an iteration: the records of some home lines. See `scan_part`.
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        let read = |at, cursor: Option<&Cursor>, found: &mut Collector<'_, R>| match cursor {
            Some(cursor) => self.collect(at, cursor, found, PATIENCE),
            None => Ok(Segment::of(self.cell(at, 0)?, at).range()),
        };
        scan(cursor, out, PARTS, read, |at, from, damage, found| {
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
            self.seam().lock(&self.structure).directory.trace(visit)?;
        }
        let read = |segment: &Segment| (segment.range(), self.blocks_of(segment));
        let (range, blocks) = self.read_segment(cursor.low, 1, read)?;
        for (kind, offset, bytes) in blocks? {
            visit(kind, offset, bytes)?;
        }
        // A record keeps its hash and its slot while its segment is current. So those that a rebuild
        // moves meanwhile are found by this step or by a later one.
        cursor.pass(range.high);
        Ok(())
    }

    /// Returns statistics. The numbers are estimates from a sample of the segments, spread evenly over
    /// the hash space.
    fn stats(&self) -> Result<IndexStats> {
        let cells = layout::DIRECTORY.entries(self.cells.depth(self.seam()));
        let (segments, [records, slots, blocks]) = sample(cells, |hash| {
            let read = |segment: &Segment| (*segment, self.count(segment));
            let (segment, counts) = self.read_segment(hash, 0, read)?;
            let size = segment.size();
            let records = counts?.iter().sum();
            Ok((segment.range(), [records, size.slots(), u64::from(size.blocks())]))
        })?;
        Ok(IndexStats {
            segments,
            directory_entries: cells,
            records_estimate: records,
            slots,
            // Two words for each cell, because the arrays of smaller directories are kept.
            dram_bytes: cells * 16 + blocks * 8,
            ..self.counters.stats()
        })
    }
}

impl<S: Seam, R: SlotRecord> Line<S, R> {
    /// Returns the blocks of a segment: the segment, its nodes, and the blocks of its records. The
    /// caller validates the read.
    fn blocks_of(&self, segment: &Segment) -> Result<Vec<(BlockKind, u64, u64)>, Damage> {
        let mut blocks = vec![(BlockKind::Segment, segment.offset, segment.size().bytes())];
        for node in self.nodes(segment.offset) {
            let offset = self.core.memory.offset_of(node?).raw();
            blocks.push((BlockKind::Overflow, offset, NODE_BYTES));
        }
        if R::EMPTY.is_none() {
            return Ok(blocks);
        }
        for line in self.lines(segment) {
            for slot in &line?.1.slots {
                let words = slot.read_whole(&self.core.memory);
                if words.first != self.empty(segment.low) {
                    let (offset, bytes) = R::extent(&self.core, words)?;
                    blocks.push((BlockKind::Record, offset, bytes));
                }
            }
        }
        Ok(blocks)
    }

    // ---- Iteration --------------------------------------------------------------

    /// Appends the records in the cursor's part, from the hash `at` on, of the segment that holds
    /// it. Returns the range of the segment.
    pub(super) fn collect(
        &self,
        at: u64,
        cursor: &Cursor,
        found: &mut Collector<'_, R>,
        patience: u32,
    ) -> Result<HashRange> {
        let (start, mut tries) = (found.mark(), 0);
        let read = read_valid(self, at, 0, |&route| {
            found.reset(start);
            tries += 1;
            if tries > patience {
                return Some(None);
            }
            let segment = Segment::of(route.1, at);
            let size = segment.size();
            // The part's home lines, and the versions of their blocks.
            let home = |low32: u64| size.home_of(low32) / BLOCK_LINES;
            let first = u64::from(cursor.part) << 29;
            let blocks = (home(first)..=home(first | ((1 << 29) - 1))).map(|number| {
                let (_, lock) = self.block(segment.offset, size, number);
                version(&lock).map(|before| (lock, before))
            });
            let blocks: Vec<_> = blocks.collect::<Option<_>>()?;
            let read = self.read_part(&segment, at, cursor, found).map(|()| segment.range());
            let mut blocks = blocks.iter();
            blocks.all(|(lock, before)| self.is_valid(route, lock, *before)).then_some(Some(read))
        })?;
        match read {
            Some(read) => Ok(read?),
            None => self.collect_alone(at, cursor, found),
        }
    }

    /// Does what [`collect`](Self::collect) does, while no change of the segment can interfere.
    #[cold]
    fn collect_alone(
        &self,
        at: u64,
        cursor: &Cursor,
        found: &mut Collector<'_, R>,
    ) -> Result<HashRange> {
        let mut turn = 0;
        let _entered = self.core.enter()?;
        loop {
            let word = self.cell(at, 1)?;
            let segment = [Segment::of(word, at)];
            if let Some(frozen) = self.freeze(&segment) {
                self.wait_for_changes(&segment)?;
                let read = self.read_part(&segment[0], at, cursor, found);
                drop(frozen);
                return Ok(read.map(|()| segment[0].range())?);
            }
            self.core.wait_for_lock(&mut turn, 1, || (segment[0].offset, word))?;
        }
    }

    fn read_part(
        &self,
        segment: &Segment,
        at: u64,
        cursor: &Cursor,
        found: &mut Collector<'_, R>,
    ) -> Result<(), Damage> {
        let size = segment.size();
        let first = u64::from(cursor.part) << 29;
        let homes = size.home_of(first)..=size.home_of(first | ((1 << 29) - 1));
        let blocks = homes.start() / BLOCK_LINES..homes.end() / BLOCK_LINES + 1;
        for line in self.lines(segment) {
            let (place, line) = line?;
            if matches!(place, At::Home(line) if !blocks.contains(&(line / BLOCK_LINES))) {
                continue;
            }
            for slot in &line.slots {
                let words = slot.read(&self.core.memory);
                if words.first == self.empty(segment.low) {
                    continue;
                }
                let hash = self.hash_of(words);
                if part_of(hash) == cursor.part && (at..=cursor.high).contains(&hash) {
                    found.take(&self.core, words, || self.core.memory.offset_of(slot).raw())?;
                }
            }
        }
        Ok(())
    }

    /// Collects what can be read of a segment that cannot be made ready, from the hash `from` on.
    /// `hash` leads to it, and `damage` is why it cannot be made ready.
    ///
    /// No operation uses such a segment, so nothing changes it, and no block that it links to is
    /// reused.
    fn salvage(
        &self,
        hash: u64,
        from: u64,
        damage: Damage,
        found: &mut Collector<'_, R>,
    ) -> Result<Salvaged> {
        let mark = found.mark();
        let (segment, high) = match self.find_unready(hash) {
            Ok(found) => found,
            Err(Error::Damaged(_)) => {
                found.step_over(damage)?;
                return Ok(Salvaged::Lost(self.end_of_cell(hash)));
            }
            Err(error) => return Err(error),
        };
        let mut keys = HashSet::new();
        let mut lines = self.lines(&segment).collect::<Vec<_>>();
        let (nodes, broken) = self.follow_chain(&segment);
        let own = (segment.size().lines - 1) as usize;
        lines.truncate(own + nodes.len() * layout::NODE_LINES);
        for (place, line) in lines.into_iter().flatten() {
            for slot in &line.slots {
                match self.record_in(&segment, place, slot) {
                    Ok(Some((words, hash, _))) if (from..=high).contains(&hash) => {
                        let at = self.core.memory.offset_of(slot).raw();
                        found.take_unused(&self.core, words, at, &mut keys)?;
                    }
                    Ok(_) => {}
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

    /// Returns the last hash that leads to the same cell as this one.
    pub(super) fn end_of_cell(&self, hash: u64) -> u64 {
        let depth = self.cells.depth(self.seam());
        first_hash(cell_of(hash, depth) + 1, depth).wrapping_sub(1)
    }
}
