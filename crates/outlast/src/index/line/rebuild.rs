//! A rebuild: copies one or two segments into new ones.

use super::change::node_words;
use super::layout::{
    self, BLOCK_LINES, LINE_SLOTS, MAX_BLOCKS, MAX_NEW, NODE_BYTES, NODE_SLOTS, OPEN, Segment,
    Shape, Size, SlotLine, segment_identity,
};
use super::lookup::Part;
use super::recover::Hints;
use super::{Line, bugs, points, whose, with_hint};
use crate::error::{Damage, Result};
use crate::index::BlockKind;
use crate::index::hints::STASH;
use crate::index::kit::lock::Held;
use crate::index::kit::media::Link;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::{SlotRecord, SlotWords};
use crate::pmem::Seam;
use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};

/// The outcome of a rebuild.
pub(super) enum Outcome {
    /// It was made.
    Done,
    /// Another thread has rebuilt a segment meanwhile.
    Changed,
    /// There is no space for the new segments.
    NoSpace,
    /// The records do not fit into the new segments.
    NoRoom,
}

/// A new segment, in DRAM.
struct Draft<'c, S: Seam> {
    block: UnlinkedBlock<'c, S>,
    segment: Segment,
    size: &'static Size,
    empty: u64,
    buffer: Buffer,
    hints: Hints,
    /// The nodes.
    nodes: Vec<u64>,
}

/// The memory of a draft. Each thread keeps that of its last rebuild: new memory would cost a page
/// fault for every 50 records.
#[derive(Default)]
struct Buffer {
    /// The lines, from the header on.
    lines: Vec<[u64; LINE_WORDS]>,
    /// The number of records in each line.
    used: Vec<u8>,
    /// The records that find no room in their home lines, and then those that go to nodes.
    late: Vec<(SlotWords, u64)>,
}

thread_local! {
    static BUFFERS: Cell<Vec<Buffer>> = const { Cell::new(Vec::new()) };
}

impl Buffer {
    fn take() -> Buffer {
        let kept = BUFFERS.try_with(|kept| {
            let mut all = kept.take();
            let last = all.pop();
            kept.set(all);
            last
        });
        // A thread that ends keeps none.
        kept.ok().flatten().unwrap_or_default()
    }

    fn keep(buffer: Buffer) {
        let _ = BUFFERS.try_with(|kept| {
            let mut all = kept.take();
            if all.len() < MAX_NEW {
                all.push(buffer);
            }
            kept.set(all);
        });
    }
}

const LINE_WORDS: usize = 2 * LINE_SLOTS;

/// Fills in the lines of an empty segment, without siblings and nodes.
pub(super) fn write_empty(lines: &mut Vec<[u64; LINE_WORDS]>, segment: &Segment, empty: u64) {
    lines.clear();
    let line = [empty, 0, empty, 0, empty, 0, empty, 0];
    lines.resize(segment.size().lines as usize, line);
    lines[0] = [
        segment_identity(segment.offset, segment.low, segment.shape),
        segment.low,
        Link::default().pack(segment.offset + 16),
        Link::default().pack(segment.offset + 24),
        0,
        0,
        0,
        0,
    ];
}

impl<'c, S: Seam> Draft<'c, S> {
    fn new(block: UnlinkedBlock<'c, S>, shape: Shape, low: u64, empty: u64) -> Self {
        let segment = Segment::new(block.offset(), shape, low);
        let mut buffer = Buffer::take();
        write_empty(&mut buffer.lines, &segment, empty);
        buffer.used.clear();
        buffer.used.resize(buffer.lines.len(), 0);
        buffer.late.clear();
        let (size, hints, nodes) = (segment.size(), [0; MAX_BLOCKS], Vec::new());
        Draft { block, segment, size, empty, buffer, hints, nodes }
    }

    /// Adds a record to a line, if there is room.
    #[inline(always)]
    fn add(&mut self, line: u32, words: SlotWords) -> bool {
        let Buffer { lines, used, .. } = &mut self.buffer;
        let (used, line) = (&mut used[line as usize], &mut lines[line as usize]);
        let slots = line.as_chunks_mut::<2>().0;
        let Some(slot) = slots.get_mut(usize::from(*used)) else { return false };
        *slot = [words.first, words.second];
        *used += 1;
        true
    }

    /// Sets the links to the sibling at this offset, if it is not 0, and to the first node.
    fn link(&mut self, sibling: u64) {
        let pack = |offset, at| Link { offset, depth: 0 }.pack(self.segment.offset + at);
        let chain = self.nodes.first().copied().unwrap_or(0);
        let header = &mut self.buffer.lines[0];
        (header[2], header[3]) = (pack(sibling, 16), pack(chain, 24));
    }

    fn hint(&mut self, hash: u64, part: Part) {
        let size = self.size;
        let hint = &mut self.hints[(size.home_of(hash) / BLOCK_LINES) as usize];
        *hint = with_hint(*hint, whose(size, hash), part);
    }

    /// Adds a record to its home line, or puts it off.
    #[inline(always)]
    fn add_home(&mut self, words: SlotWords, hash: u64) {
        if !self.add(self.size.before + self.size.home_of(hash), words) {
            self.buffer.late.push((words, hash));
        }
    }

    /// Finds places for the records that were put off. Those that stay go to nodes.
    fn add_late(&mut self) {
        let size = self.size;
        let mut late = std::mem::take(&mut self.buffer.late);
        late.retain(|&(words, hash)| {
            let home = size.before + size.home_of(hash);
            let used = &self.buffer.used;
            let fill = |place: u32| used.get((home ^ place) as usize).copied().unwrap_or(u8::MAX);
            let mut place = if fill(2) < fill(1) { 2 } else { 1 };
            if fill(3) < fill(place) {
                place = 3;
            }
            let part = if self.add(home ^ place, words) {
                Part::Away(place)
            } else {
                let mut window = 0..size.window();
                match window.find(|&at| self.add(1 + size.stash_of(hash, at), words)) {
                    Some(position) => Part::Away(STASH + position / 2),
                    None => Part::Node,
                }
            };
            self.hint(hash, part);
            part == Part::Node
        });
        self.buffer.late = late;
    }

    /// Returns the nodes with the records that go to nodes: the offset and the words of each.
    fn node_words(&self) -> Vec<(u64, Vec<u64>)> {
        let records: Vec<_> = self.buffer.late.iter().map(|record| record.0).collect();
        let nodes = self.nodes.iter().zip(self.nodes.iter().skip(1).chain([&0]));
        let parts = records.chunks(NODE_SLOTS as usize);
        nodes
            .zip(parts)
            .map(|((&node, &next), part)| {
                (node, node_words(self.segment.offset, node, next, part, self.empty))
            })
            .collect()
    }
}

impl<S: Seam> Drop for Draft<'_, S> {
    fn drop(&mut self) {
        Buffer::keep(std::mem::take(&mut self.buffer));
    }
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
    pub(super) fn count(&self, segment: &Segment) -> Result<[u64; 2]> {
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

    /// Waits for the changes that have begun before the segments were frozen. A thread that locks a
    /// stripe later acquires what is released here, so it sees that the cell is frozen.
    pub(super) fn wait_for_changes(&self, segments: &[Segment]) -> Result<()> {
        for segment in segments {
            for number in 0..segment.size().blocks() {
                let (_, lock) = self.block(segment.offset, segment.size(), number);
                lock.hold(&self.core, segment.offset)?.unlock();
            }
        }
        Ok(())
    }

    /// Gives all stripes of new segments, which are durable, new versions, before a cell leads there. A
    /// reader that was led to the same place before then finds that its version has changed.
    fn renew(&self, segments: &[Segment]) -> Result<()> {
        for segment in segments {
            for number in 0..segment.size().blocks() {
                let (_, lock) = self.block(segment.offset, segment.size(), number);
                let mut held = lock.hold(&self.core, segment.offset)?;
                held.changing();
                held.unlock();
            }
        }
        Ok(())
    }

    /// After a crash, until all space is accounted for, marks for the trace the blocks of all records
    /// of these segments, the segments and their nodes. The trace may not have come to the old
    /// segments before they are gone.
    fn mark_moved(&self, segments: &[Segment]) -> Result<()> {
        if self.core.alloc().old_frontier() == 0 {
            return Ok(());
        }
        for segment in segments {
            // If the segment was rebuilt meanwhile, that rebuild has marked its blocks.
            for (kind, offset, _) in
                self.read_segment(segment.low, 1, |now| self.blocks_of(now))??
            {
                let is_moved = kind == BlockKind::Record;
                if !(is_moved && self.seeded(&bugs::MOVED_UNMARKED)) {
                    self.core.before_unlink(offset)?;
                }
            }
        }
        Ok(())
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
        let empty = self.empty(old[0].low);
        let (mut drafts, mut low) = (Vec::new(), old[0].low);
        for &shape in shapes {
            let block = UnlinkedBlock::allocate(core, layout::SIZES[shape.size as usize].bytes());
            match block {
                Ok(block) => drafts.push(Draft::new(block, shape, low, empty)),
                Err(error) if error.is_full() => return Ok(Outcome::NoSpace),
                Err(error) => return Err(error),
            }
            low = shape.range(low).high.wrapping_add(1);
        }
        let mut spare = Vec::new();
        if in_nodes > 0 {
            for _ in 0..in_nodes.div_ceil(NODE_SLOTS) + drafts.len() as u64 {
                match UnlinkedBlock::allocate(core, NODE_BYTES) {
                    Ok(block) => spare.push(block),
                    Err(error) if error.is_full() => return Ok(Outcome::NoSpace),
                    Err(error) => return Err(error),
                }
            }
        }
        self.mark_moved(old)?;
        let Some(mut frozen) = self.freeze(old) else { return Ok(Outcome::Changed) };
        if !self.seeded(&bugs::GRACE_SKIPPED) {
            self.wait_for_changes(old)?;
        }
        let old_nodes = self.copy(old, &mut drafts)?;
        let mut linked = 0;
        for draft in &mut drafts {
            let nodes = draft.buffer.late.len().div_ceil(NODE_SLOTS as usize);
            let Some(nodes) = spare.get(linked..linked + nodes) else {
                return Ok(Outcome::NoRoom);
            };
            linked += nodes.len();
            draft.nodes.extend(nodes.iter().map(UnlinkedBlock::offset));
            if self.seeded(&bugs::NODES_NOT_CARRIED) {
                draft.nodes.truncate(1);
            }
        }
        // Nothing fails between the first store to the new blocks and the fence.
        let mut sibling = 0;
        for draft in drafts.iter_mut().rev() {
            draft.link(sibling);
            if !self.seeded(&bugs::SIBLING_MISSING) {
                sibling = draft.segment.offset;
            }
        }
        let (mut segments, mut nodes) = (Vec::new(), Vec::new());
        for draft in &drafts {
            segments.push(memory.words(draft.segment.offset, draft.segment.size().bytes())?);
            for (offset, values) in draft.node_words() {
                nodes.push((memory.words(offset, NODE_BYTES)?, values));
            }
        }
        for (draft, words) in drafts.iter().zip(segments) {
            memory.write_new(words, draft.buffer.lines.as_flattened(), &points::REBUILD_NEW);
            self.store_hints(&draft.segment, &draft.hints);
        }
        for (words, values) in nodes {
            memory.write_new(words, &values, &points::REBUILD_NODE);
        }
        memory.fence(&points::REBUILD_NEW);
        let free = || {
            old.iter().map(|old| old.offset).chain(old_nodes.iter().copied()).for_each(|offset| {
                core.free_unlinked(offset);
            });
        };
        let freed_early = self.seeded(&bugs::FREED_BEFORE_SWITCH);
        if freed_early {
            free();
        }
        let new: Vec<_> = drafts.iter().map(|draft| draft.segment).collect();
        let link = || {
            drafts.iter_mut().for_each(|draft| draft.block.set_linked());
            spare[..linked].iter_mut().for_each(UnlinkedBlock::set_linked);
        };
        self.renew(&new)?;
        self.commit(&new, link)?;
        frozen.is_armed = false;
        drop(frozen);
        if !freed_early {
            free();
        }
        Ok(Outcome::Done)
    }

    /// Copies the records of frozen segments into drafts. Returns the old nodes.
    fn copy(&self, old: &[Segment], drafts: &mut [Draft<'_, S>]) -> Result<Vec<u64>> {
        let mut nodes = Vec::new();
        for segment in old {
            let (offset, size) = (segment.offset, segment.size());
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
                nodes.push(self.core.memory.offset_of(node).raw());
                for line in &node.lines {
                    self.copy_line(segment, line, drafts, |_| true)?;
                }
            }
        }
        drafts.iter_mut().for_each(Draft::add_late);
        Ok(nodes)
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
        let is_late = self.seeded(&bugs::INTENT_LATE);
        let is_early = self.seeded(&bugs::SHOWN_BEFORE_CELLS);
        link();
        if is_early {
            self.lead_to(new, depth);
        }
        if !is_late {
            store_intent();
        }
        for segment in new {
            for (number, cell) in segment.cells(depth).zip(&cells[segment.cells(depth)]) {
                if number + 1 == range.end && self.seeded(&bugs::CELLS_ONE_SHORT) {
                    continue;
                }
                memory.store(cell, segment.offset, &points::REBUILD_CELLS);
            }
        }
        memory.flush_words(&cells[range], &points::REBUILD_CELLS);
        memory.fence(&points::REBUILD_CELLS);
        if is_late {
            store_intent();
        }
        if !is_early {
            self.lead_to(new, depth);
        }
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
