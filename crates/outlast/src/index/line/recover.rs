//! First touch: completes the last rebuild of an earlier process, and makes a segment ready before it
//! is used.

use super::layout::{self, MAX_NEW, NODE_BYTES, Node, Segment, SegmentHeader, Slot, node_identity};
use super::lookup::Part;
use super::{At, Hints, Line, Structure, bugs, points};
use crate::error::{Damage, Result};
use crate::index::bugs as index_bugs;
use crate::index::kit::cells::{cell_of, first_hash};
use crate::index::kit::media::{Link, check_block, check_identity};
use crate::index::kit::walk::HashRange;
use crate::index::record::{SlotRecord, SlotWords};
use crate::pmem::{Offset, Point, Seam, Word};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

impl<S: Seam, R: SlotRecord> Line<S, R> {
    /// Touches the segment of a hash for the first time, unless another thread already has. Returns
    /// the cell's word. The caller has passed the gate.
    #[cold]
    pub(super) fn first_touch(&self, hash: u64) -> Result<u64> {
        let structure = &mut *self.seam().lock(&self.structure);
        let word = self.cells.find(self.seam(), hash);
        if word != 0 {
            return Ok(word);
        }
        self.settle(structure)?;
        let segment = self.check_cell(structure, hash)?;
        self.persist_found(&segment)?;
        structure.settled = true;
        let mut hints = Hints::new();
        for line in self.lines(&segment) {
            let (at, line) = line?;
            for slot in &line.slots {
                if let Some((_, hash, part)) = self.record_in(&segment, at, slot)? {
                    hints.add(segment.size(), hash, part);
                }
            }
        }
        self.store_hints(&segment, &hints);
        self.cells.set(self.seam(), segment.cells(structure.directory.depth), segment.word());
        self.counters.repaired.add_one();
        Ok(segment.word())
    }

    /// Stores the hint words of a segment that no operation uses yet.
    pub(super) fn store_hints(&self, segment: &Segment, hints: &Hints) {
        let size = segment.size();
        for (number, hint) in (0..size.blocks()).zip(&hints.0) {
            let (block, _) = self.block(segment.offset, size, number);
            let offset = self.core.memory.offset_of(block).raw();
            // SAFETY: the block is inside the memory, and aligned to 256.
            let word = unsafe { self.core.memory.side().hint_unchecked(offset) };
            word.store(self.seam(), *hint, Ordering::Relaxed);
        }
    }

    /// Returns the record in a slot, its hash, and where it is. No operation changes the segment
    /// meanwhile, or the caller validates the read.
    ///
    /// # Errors
    /// [`Damage`] if the slot holds what cannot be a record of this segment in this place.
    #[inline(always)]
    pub(super) fn record_in(
        &self,
        segment: &Segment,
        at: At,
        slot: &Slot,
    ) -> Result<Option<(SlotWords, u64, Part)>, Damage> {
        let words = slot.read(&self.core.memory);
        if words.first == self.empty(segment.low) {
            return Ok(None);
        }
        let hash = self.hash_of(words);
        let part = at.part(segment.size(), hash).filter(|_| segment.range().holds(hash));
        let Some(part) = part else { return Err(self.misplaced(segment, slot)) };
        R::check_link(&self.core, words)?;
        Ok(Some((words, hash, part)))
    }

    #[cold]
    pub(super) fn misplaced(&self, segment: &Segment, slot: &Slot) -> Damage {
        let words = slot.read(&self.core.memory);
        Damage::new(
            self.core.memory.offset_of(slot).raw(),
            format!("an empty slot, or a record of this place, from {:#x} on", segment.low),
            format!("{:#x} {:#x}, hash {:#x}", words.first, words.second, self.hash_of(words)),
        )
    }

    /// After a crash, makes durable everything that results will depend on. When a process dies, its
    /// stores stay in the caches, flushed or not, and first touch finds them there. The cells need
    /// no flush: those of the last rebuild were settled, and those of earlier ones were durable before
    /// it committed. The blocks that slots link to were durable before the links were stored.
    fn persist_found(&self, segment: &Segment) -> Result<(), Damage> {
        let nodes = self.check_chain(segment)?;
        if self.core.alloc().old_frontier() == 0 || self.core.options().read_only {
            return Ok(());
        }
        let (memory, size, at) = (&self.core.memory, segment.size(), &points::REPAIR_FOUND);
        let before = match self.seeded(&bugs::FOUND_STASH_UNFLUSHED) {
            true => u64::from(size.before) * layout::LINE_BYTES,
            false => 0,
        };
        memory.flush_words(memory.words(segment.offset + before, size.bytes() - before)?, at);
        for node in nodes {
            memory.flush_words(memory.words(node, NODE_BYTES)?, at);
        }
        memory.fence(at);
        Ok(())
    }

    // ---- Checks -----------------------------------------------------------------

    /// Returns the segment of a hash, by the directory in PM, after checking the segment's header and
    /// the cells of its range.
    fn check_cell(&self, structure: &Structure, hash: u64) -> Result<Segment, Damage> {
        let (memory, depth) = (&self.core.memory, structure.directory.depth);
        let cells = structure.directory.entries(memory)?;
        let own = cell_of(hash, depth);
        let offset = memory.load(&cells[own]);
        let at = memory.offset_of(&cells[own]).raw();
        if let Some(range) = structure.lost
            && range.holds(hash)
        {
            return Err(Damage::new(at, "the segment that the last rebuild made", "another"));
        }
        let segment = self.check_segment(offset, depth)?;
        if !segment.range().holds(hash) {
            let found = format!("one whose first hash is {:#x}", segment.low);
            return Err(Damage::new(at, format!("a segment that holds hash {hash:#x}"), found));
        }
        let range = segment.cells(depth);
        let around = range.start.saturating_sub(1)..(range.end + 1).min(cells.len());
        for cell in around {
            let found = memory.load(&cells[cell]);
            if (found == offset) != range.contains(&cell) {
                let at = memory.offset_of(&cells[cell]).raw();
                let expected = format!("the segment {offset:#x} in its range only");
                return Err(Damage::new(at, expected, format!("{found:#x}")));
            }
        }
        Ok(segment)
    }

    /// Checks a segment's block and its header.
    pub(super) fn check_segment(&self, offset: u64, depth: u32) -> Result<Segment, Damage> {
        let segment = self.check_header(offset)?;
        check_block(&self.core, offset, segment.size().bytes())?;
        if segment.shape.depth <= depth {
            return Ok(segment);
        }
        let found = format!("one of depth {}", segment.shape.depth);
        Err(Damage::new(offset, format!("a segment of a depth up to {depth}"), found))
    }

    /// Checks a segment's extent and its header's fixed words.
    pub(super) fn check_header(&self, offset: u64) -> Result<Segment, Damage> {
        let memory = &self.core.memory;
        let header = memory.at(Offset::<SegmentHeader>::new(offset))?;
        let (identity, low) = (memory.load(&header.identity), memory.load(&header.low));
        let fits =
            |shape: &layout::Shape| shape.size <= self.largest && shape.range(low).low == low;
        let shape = layout::shape_of(identity)
            .filter(fits)
            .filter(|shape| layout::segment_identity(offset, low, *shape) == identity);
        let Some(shape) = shape.filter(|_| offset.is_multiple_of(1024)) else {
            let found = format!("{identity:#x}, first hash {low:#x}");
            return Err(Damage::new(offset, "a segment", found));
        };
        let segment = Segment::new(offset, shape, low);
        memory.words(offset, segment.size().bytes())?;
        Ok(segment)
    }

    fn check_chain(&self, segment: &Segment) -> Result<Vec<u64>, Damage> {
        let (nodes, broken) = self.follow_chain(segment);
        broken.map_or(Ok(nodes), Err)
    }

    /// Follows the chain of overflow nodes. Returns those up to the first that fails the checks, and
    /// what is wrong with that one. A node's identity names the segment, so no node is in two chains.
    pub(super) fn follow_chain(&self, segment: &Segment) -> (Vec<u64>, Option<Damage>) {
        let (mut seen, mut nodes) = (HashSet::new(), Vec::new());
        for node in self.nodes(segment.offset) {
            match node.and_then(|node| self.check_node(segment, node, &mut seen)) {
                Ok(node) => nodes.push(node),
                Err(damage) => return (nodes, Some(damage)),
            }
        }
        (nodes, None)
    }

    fn check_node(
        &self,
        segment: &Segment,
        node: &Node,
        seen: &mut HashSet<u64>,
    ) -> Result<u64, Damage> {
        let offset = self.core.memory.offset_of(node).raw();
        check_block(&self.core, offset, NODE_BYTES)?;
        let expected = node_identity(offset, segment.offset);
        check_identity(&self.core.memory, &node.identity, expected, "an overflow node")?;
        if !seen.insert(offset) {
            return Err(Damage::new(offset, "each overflow node once", "one a second time"));
        }
        Ok(offset)
    }

    // ---- Settling ---------------------------------------------------------------

    /// Completes the last rebuild that has committed, unless this process has done so. The fence of
    /// the first touch makes the cells durable.
    ///
    /// Storing its cells again does no harm. Each rebuild makes its own intent durable before it
    /// stores a cell, and one rebuild at a time does. So a durable intent is that of the last rebuild
    /// whose cells can have been stored at all, and its new segments are the current ones of their
    /// range. The cells of all earlier rebuilds were fenced before this intent was stored. The intent
    /// itself is durable: the pool flushes the roots' first lines when it is opened after a crash.
    fn settle(&self, structure: &mut Structure) -> Result<(), Damage> {
        if structure.settled {
            return Ok(());
        }
        let (memory, depth) = (&self.core.memory, structure.directory.depth);
        let cells = structure.directory.entries(memory)?;
        let is_accounted = self.core.alloc().old_frontier() == 0;
        let segments = match self.intended(depth) {
            Ok(segments) => segments,
            Err(damage) => {
                // If some of its cells were stored, the first touches of that range fail. What is
                // there must be durable before results depend on it.
                structure.intent = Some(damage);
                if !is_accounted {
                    self.flush_found(cells, &points::REPAIR_CELLS);
                }
                return Ok(());
            }
        };
        let ([first, ..], [.., last]) = (&segments[..], &segments[..]) else { return Ok(()) };
        let range = HashRange { low: first.low, high: last.high };
        let all = first.cells(depth).start..last.cells(depth).end;
        if is_accounted {
            // All maps were traced, and so settled, before all space was accounted for.
            let is_other = |segment: &Segment| {
                cells[segment.cells(depth)].iter().any(|cell| memory.load(cell) != segment.offset)
            };
            structure.lost = segments.iter().any(is_other).then_some(range);
            return Ok(());
        }
        let all_but = match self.seeded(&bugs::SETTLE_ONE_SEGMENT) {
            true => segments.len() - 1,
            false => 0,
        };
        if !self.seeded(&index_bugs::HALF_SPLIT_SERVED) {
            for segment in &segments[..segments.len() - all_but] {
                // Without a look at them: what they hold may not be durable.
                for cell in &cells[segment.cells(depth)] {
                    memory.store(cell, segment.offset, &points::REPAIR_CELLS);
                }
            }
        }
        self.flush_found(&cells[all], &points::REPAIR_CELLS);
        Ok(())
    }

    fn flush_found(&self, words: &[Word], at: &'static Point) {
        if !self.core.options().read_only {
            self.core.memory.flush_words(words, at);
        }
    }

    /// Returns the segments that the last rebuild has made, in the order of their ranges; none if
    /// there was no rebuild.
    pub(super) fn intended(&self, depth: u32) -> Result<Vec<Segment>, Damage> {
        let memory = &self.core.memory;
        let mut segments: Vec<Segment> = Vec::new();
        let intent = self.intent()?;
        if memory.load(intent) == 0 {
            return Ok(segments);
        }
        let link = Link::read(memory, intent)?;
        if link.offset == 0 || link.depth != 0 {
            let at = memory.offset_of(intent).raw();
            return Err(Damage::new(at, "0, or a link to a segment", format!("{link:?}")));
        }
        let mut next = link.offset;
        while next != 0 {
            let segment = self.check_segment(next, depth)?;
            let follows = segments
                .last()
                .is_none_or(|before| before.high.checked_add(1) == Some(segment.low));
            if !follows || segments.len() == MAX_NEW {
                let expected = format!("at most {MAX_NEW} segments, each after the one before it");
                return Err(Damage::new(next, expected, format!("{segment:?}")));
            }
            segments.push(segment);
            next = Link::read(memory, &self.header(segment.offset).sibling)?.offset;
        }
        Ok(segments)
    }

    // ---- Salvage ----------------------------------------------------------------

    /// Finds the segment of a hash whose first touch has failed, and the last hash from there on that
    /// leads to it. If the segment's header is damaged, the directory tells which hashes the segment
    /// holds, unless a crash may have cut a rebuild short.
    #[cold]
    pub(super) fn find_unready(&self, hash: u64) -> Result<(Segment, u64)> {
        let structure = self.seam().lock(&self.structure);
        let (core, depth) = (&self.core, structure.directory.depth);
        let cells = structure.directory.entries(&core.memory)?;
        let own = cell_of(hash, depth);
        let offset = core.memory.load(&cells[own]);
        let leads = |cell: &&Word| core.memory.load(cell) == offset;
        let end = own + cells[own..].iter().take_while(leads).count();
        let last = first_hash(end, depth).wrapping_sub(1);
        let damage = match self.check_header(offset) {
            Ok(segment) if segment.range().holds(hash) => {
                return Ok((segment, last.min(segment.high)));
            }
            Ok(segment) => {
                let found = format!("first hash {:#x}", segment.low);
                Damage::new(offset + 8, format!("a segment that holds hash {hash:#x}"), found)
            }
            Err(damage) => damage,
        };
        let start = own - cells[..own].iter().rev().take_while(leads).count();
        if core.alloc().old_frontier() != 0 || !offset.is_multiple_of(1024) {
            return Err(damage.into());
        }
        // The largest size whose block is there.
        let size = (0..=self.largest)
            .rev()
            .find(|&size| check_block(core, offset, layout::SIZES[size as usize].bytes()).is_ok());
        for part in 1..=depth {
            let Some(size) = size else { break };
            let segment = Segment::new(offset, layout::Shape { size, depth: part }, hash);
            if segment.cells(depth) == (start..end) {
                return Ok((segment, segment.high));
            }
        }
        Err(damage.into())
    }
}
