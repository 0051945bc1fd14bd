//! A rebuild: copies one or two segments into new ones.

use super::draft::Draft;
use super::layout::{BLOCK_LINES, LINE_SLOTS, NODE_SLOTS, OPEN, Segment, Shape, SlotLine};
use super::{Line, bugs, points};
use crate::error::{Damage, Result};
use crate::index::kit::lock::{Held, HeldLock};
use crate::index::kit::media::Link;
use crate::index::record::SlotRecord;
use crate::pmem::Seam;
use std::sync::atomic::{Ordering, fence};

/// The outcome of a rebuild.
pub(super) enum Outcome {
    /// It was made.
    Done,
    /// Another thread has rebuilt a segment meanwhile.
    Changed,
    /// There is no space for the new segments, or the records do not fit into them.
    NoRoom,
}

/// The cells of segments that are frozen: writers wait. Dropping this lets them go on.
#[must_use]
pub(super) struct Frozen<'t, S: Seam, R: SlotRecord> {
    table: &'t Line<S, R>,
    segments: &'t [Segment],
    is_armed: bool,
}

impl<S: Seam, R: SlotRecord> Drop for Frozen<'_, S, R> {
    fn drop(&mut self) {
        // After a panic the gate is poisoned.
        let table = self.table;
        if !self.is_armed || std::thread::panicking() {
            return;
        }
        let structure = table.seam().lock(&table.structure);
        for segment in self.segments {
            let cells = segment.cells(structure.directory.depth);
            table.cells.set(table.seam(), cells, segment.word());
        }
    }
}

impl<S: Seam, R: SlotRecord> Line<S, R> {
    /// Counts the records in the lines of a segment, and those in its nodes. Beside changes the result
    /// is not exact.
    pub(super) fn count(&self, segment: &Segment) -> Result<[u64; 2], Damage> {
        let (offset, size, empty) = (segment.offset, segment.size(), self.empty(segment.low));
        let count = |line: &SlotLine| {
            u64::from(LINE_SLOTS as u32 - super::change::count(self.free(line, empty)))
        };
        let (mut records, mut in_nodes) = (0, 0);
        for number in 0..size.blocks() {
            let (block, _) = self.block(offset, size, number);
            records += block.lines.iter().map(count).sum::<u64>();
        }
        for number in 0..size.stash {
            records += count(self.stash(offset, size, number));
        }
        for node in self.nodes(offset) {
            in_nodes += node?.lines.iter().map(count).sum::<u64>();
        }
        Ok([records, in_nodes])
    }

    /// Does the same, and waits while a change interferes. `None` if the segment was rebuilt meanwhile.
    pub(super) fn count_valid(&self, segment: &Segment) -> Result<Option<[u64; 2]>> {
        let read = |now: &Segment| (*now, self.count(now));
        let (found, counts) = self.read_segment(segment.low, 1, read)?;
        if found == *segment { Ok(Some(counts?)) } else { Ok(None) }
    }

    /// Freezes the cells of these segments, so that no change begins there. `None` if the directory
    /// does not lead to all of them, or if one is frozen already.
    pub(super) fn freeze<'t>(&'t self, segments: &'t [Segment]) -> Option<Frozen<'t, S, R>> {
        let structure = self.seam().lock(&self.structure);
        let leads = |segment: &Segment| self.cells.find(self.seam(), segment.low) == segment.word();
        if !segments.iter().all(leads) {
            return None;
        }
        for segment in segments {
            let cells = segment.cells(structure.directory.depth);
            self.cells.set(self.seam(), cells, segment.word() & !OPEN);
        }
        Some(Frozen { table: self, segments, is_armed: true })
    }

    /// Locks and unlocks each stripe of these segments.
    fn pass_stripes(
        &self,
        segments: &[Segment],
        then: impl Fn(&mut HeldLock<'_, S>),
    ) -> Result<()> {
        for segment in segments {
            for number in 0..segment.size().blocks() {
                let (_, lock) = self.block(segment.offset, segment.size(), number);
                let mut held = lock.hold(&self.core, segment.offset)?;
                then(&mut held);
                held.unlock();
            }
        }
        Ok(())
    }

    /// Waits for the changes that have begun before the segments were frozen. Unlocking a stripe here
    /// releases the frozen cell to the next thread that locks the stripe, which then waits.
    pub(super) fn wait_for_changes(&self, segments: &[Segment]) -> Result<()> {
        self.pass_stripes(segments, |_| {})
    }

    /// Copies one or two segments, which follow each other, into one or two new ones of these shapes.
    /// `in_nodes` is the number of records in their nodes. The caller has passed the gate.
    pub(super) fn rebuild(
        &self,
        old: &[Segment],
        shapes: &[Shape],
        in_nodes: u64,
    ) -> Result<Outcome> {
        let (core, memory) = (&*self.core, &self.core.memory);
        let mut drafts = match self.allocate(old[0].low, shapes, in_nodes) {
            Err(error) if error.is_full() => return Ok(Outcome::NoRoom),
            allocated => allocated?,
        };
        let Some(mut frozen) = self.freeze(old) else { return Ok(Outcome::Changed) };
        unless_seeded!(self, bugs::GRACE_SKIPPED => self.wait_for_changes(old)?);
        let freed = self.copy(old, &mut drafts)?;
        // A trace may not come to these blocks before they are gone. It does come to the records: they
        // keep their hashes, and it reads the segment of each hash.
        for &offset in &freed {
            unless_seeded!(self, bugs::OLD_UNMARKED => core.before_unlink(offset)?);
        }
        if !drafts.iter_mut().all(Draft::trim_nodes) {
            return Ok(Outcome::NoRoom);
        }
        // Nothing fails between the first store to the new blocks and the fence.
        let mut sibling = 0;
        for draft in drafts.iter_mut().rev() {
            seed!(self, bugs::NODES_NOT_CARRIED => draft.nodes.truncate(1));
            draft.link(sibling);
            unless_seeded!(self, bugs::SIBLING_MISSING => sibling = draft.segment.offset);
        }
        for draft in &drafts {
            draft.write(memory);
            self.store_hints(&draft.segment, &draft.hints);
        }
        memory.fence(&points::REBUILD_NEW);
        let free = || freed.iter().for_each(|&offset| core.free_unlinked(offset));
        seed!(self, bugs::FREED_BEFORE_SWITCH => free());
        let new: Vec<_> = drafts.iter().map(|draft| draft.segment).collect();
        // A reader that was led to the same place before now finds that its version has changed.
        self.pass_stripes(&new, |held| held.changing())?;
        self.commit(&new, || drafts.iter_mut().for_each(Draft::set_linked))?;
        frozen.is_armed = false;
        drop(frozen);
        unless_seeded!(self, bugs::FREED_BEFORE_SWITCH => free());
        Ok(Outcome::Done)
    }

    /// Allocates new segments of these shapes, from the hash `low` on, each with as many nodes as it
    /// may need.
    fn allocate(&self, mut low: u64, shapes: &[Shape], in_nodes: u64) -> Result<Vec<Draft<'_, S>>> {
        let (mut drafts, empty) = (Vec::new(), self.empty(low));
        let nodes = if in_nodes == 0 { 0 } else { 1 + in_nodes.div_ceil(NODE_SLOTS) };
        for &shape in shapes {
            drafts.push(Draft::new(&self.core, shape, low, nodes, empty)?);
            low = shape.range(low).high.wrapping_add(1);
        }
        Ok(drafts)
    }

    /// Copies the records of frozen segments into drafts. Returns the segments' blocks and those
    /// of their nodes. (Not by `lines` and `record_in`: an insert would take 7% more instructions.)
    fn copy(&self, old: &[Segment], drafts: &mut [Draft<'_, S>]) -> Result<Vec<u64>, Damage> {
        let mut blocks = Vec::new();
        for segment in old {
            let (offset, size) = (segment.offset, segment.size());
            blocks.push(offset);
            for number in 0..size.blocks() {
                let (block, _) = self.block(offset, size, number);
                for line in &block.lines {
                    self.copy_line(segment, line, drafts, |hash| {
                        size.home_of(hash) / BLOCK_LINES == number
                    })?;
                }
            }
            for number in 0..size.stash {
                self.copy_line(segment, self.stash(offset, size, number), drafts, |hash| {
                    size.position_of(hash, number).is_some()
                })?;
            }
            for node in self.nodes(offset) {
                let node = node?;
                blocks.push(self.core.memory.offset_of(node).raw());
                for line in &node.lines {
                    self.copy_line(segment, line, drafts, |_| true)?;
                }
            }
        }
        drafts.iter_mut().for_each(Draft::add_late);
        Ok(blocks)
    }

    /// Copies the records of a line. `fits` returns whether a record with a hash can be in it.
    #[inline(always)]
    fn copy_line(
        &self,
        segment: &Segment,
        line: &SlotLine,
        drafts: &mut [Draft<'_, S>],
        fits: impl Fn(u64) -> bool,
    ) -> Result<(), Damage> {
        let (range, empty) = (segment.range(), self.empty(segment.low));
        let last_of_first = drafts[0].segment.high;
        for slot in &line.slots {
            let words = slot.read(&self.core.memory);
            if words.first == empty {
                continue;
            }
            let hash = self.hash_of(words);
            if !range.holds(hash) || !fits(hash) {
                return Err(self.misplaced(segment, slot));
            }
            R::check_link(&self.core, words)?;
            // Without a branch that could be mispredicted.
            let number = usize::from(hash > last_of_first);
            if let Some(draft) = drafts.get_mut(number) {
                draft.add_home(words, hash);
            }
        }
        Ok(())
    }

    /// Commits a rebuild whose new segments are durable, and leads operations to them. `link` marks
    /// their blocks as linked.
    fn commit(&self, new: &[Segment], link: impl FnOnce()) -> Result<()> {
        let (seam, memory) = (self.seam(), &self.core.memory);
        let structure = seam.lock(&self.structure);
        let depth = structure.directory.depth;
        let (first, last) = (&new[0], &new[new.len() - 1]);
        let cells = structure.directory.entries(memory)?;
        let range = first.cells(depth).start..last.cells(depth).end;
        let intent = self.intent()?;
        let store_intent = || {
            let to = Link { offset: first.offset, depth: 0 };
            to.store(memory, intent, &points::REBUILD_COMMIT);
            memory.persist(intent, &points::REBUILD_COMMIT);
        };
        link();
        seed!(self, bugs::SHOWN_BEFORE_CELLS => self.lead_to(new, depth));
        unless_seeded!(self, bugs::INTENT_LATE => store_intent());
        for segment in new {
            for (number, cell) in segment.cells(depth).zip(&cells[segment.cells(depth)]) {
                seed!(self, bugs::CELLS_ONE_SHORT => if number + 1 == range.end { continue });
                memory.store(cell, segment.offset, &points::REBUILD_CELLS);
            }
        }
        memory.flush_words(&cells[range], &points::REBUILD_CELLS);
        memory.fence(&points::REBUILD_CELLS);
        seed!(self, bugs::INTENT_LATE => store_intent());
        unless_seeded!(self, bugs::SHOWN_BEFORE_CELLS => self.lead_to(new, depth));
        Ok(())
    }

    /// Leads operations to new segments. The caller has locked the structure.
    fn lead_to(&self, new: &[Segment], depth: u32) {
        for segment in new {
            self.cells.set(self.seam(), segment.cells(depth), segment.word());
        }
        // Pairs with the Acquire fence in `is_valid`: a reader that sees another use of an old segment's
        // block also sees that the cell has changed.
        fence(Ordering::Release);
    }
}
