//! Growth: splits of segments, and overflow nodes.

use super::cells::Cell;
use super::layout::{self, CHUNK_BYTES, Kind, Link, MAX_DEPTH, NodeHeader, SegmentHeader, Slot};
use super::{Config, Group, Route, Segment, bugs, points};
use crate::error::{Damage, Result};
use crate::index::bugs as index_bugs;
use crate::index::kit::lock::{Guarded, HeldLock};
use crate::index::kit::media::empty_words;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::{RecordForm, SlotRecord, SlotWords};
use crate::pmem::{Memory, Offset, Point, Seam};
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Directories below this depth are doubled whatever they contain.
pub(super) const FREE_DEPTH: u32 = 6;
/// From that depth on, a directory is doubled only if it has at most this many entries for each
/// segment.
pub(super) const SPARSE: u64 = 32;

/// Empties the cells of a block that nothing links to yet, without a flush.
fn write_cells<S: Seam>(
    memory: &Memory<S>,
    block: u64,
    bytes: u64,
    empty: u64,
    at: &'static Point,
) -> Result<(), Damage> {
    for offset in (block + CHUNK_BYTES..block + bytes).step_by(size_of::<Slot>()) {
        let slot: &Slot = memory.at(Offset::new(offset))?;
        slot.write(memory, SlotWords { first: empty, second: 0 }, at);
    }
    Ok(())
}

/// Flushes the cells of a block, and the line of its header that has the words in use, without a
/// fence.
fn flush_block<S: Seam>(
    memory: &Memory<S>,
    block: u64,
    bytes: u64,
    at: &'static Point,
) -> Result<(), Damage> {
    let (header, cells) = memory.words(block, bytes)?.split_at(CHUNK_BYTES as usize / 8);
    memory.flush_words(&header[..4], at);
    memory.flush_words(cells, at);
    Ok(())
}

/// Writes an empty segment, without a flush.
fn write_segment<S: Seam>(
    memory: &Memory<S>,
    group: u32,
    segment: Segment,
    next: u64,
    empty: u64,
    at: &'static Point,
) -> Result<(), Damage> {
    let Segment { offset, depth, low } = segment;
    let header = memory.at(Offset::<SegmentHeader>::new(offset))?;
    memory.store(&header.identity, layout::identity(Kind::Segment, offset, low, group), at);
    memory.store(&header.low, low, at);
    Link { offset: next, depth }.store(memory, &header.next, at);
    Link::default().store(memory, &header.chain, at);
    write_cells(memory, offset, layout::segment_bytes(group), empty, at)
}

/// Writes a new map's segments and flushes them. The fence before the root's commit word makes them
/// durable.
pub(super) fn create<S: Seam, R: SlotRecord>(
    core: &Arc<Core<S>>,
    config: Config,
) -> Result<[u64; ROOT_SCHEME_WORDS]> {
    let (group, depth) = (config.group_size, config.initial_depth);
    let bytes = layout::segment_bytes(group);
    let empty = empty_words::<S, R>(core)?;
    let blocks: Result<Vec<_>> =
        (0..1 << depth).map(|_| UnlinkedBlock::allocate(core, bytes)).collect();
    let mut blocks = blocks?;
    for (number, block) in blocks.iter().enumerate() {
        let low = (number as u64) << (64 - depth);
        let segment = Segment { offset: block.offset(), depth, low };
        let next = blocks.get(number + 1).map_or(0, UnlinkedBlock::offset);
        let empty = empty[(low >> 63) as usize];
        write_segment(&core.memory, group, segment, next, empty, &points::CREATE)?;
        flush_block(&core.memory, segment.offset, bytes, &points::CREATE)?;
    }
    blocks.iter_mut().for_each(UnlinkedBlock::set_linked);
    let mut words = [0; ROOT_SCHEME_WORDS];
    words[0] = Link { offset: blocks[0].offset(), depth: 0 }.pack(0);
    Ok(words)
}

impl<S: Seam, R: SlotRecord> Group<S, R> {
    /// Makes room in a full segment, unless another thread has. The caller retries afterwards.
    pub(super) fn make_room(&self, route: &Route<'_>, hash: u64) -> Result<()> {
        if self.may_split(route) {
            match self.split(route) {
                // Without space for a segment, there may be some for a node, which takes half as
                // much.
                Err(error) if error.is_full() => {}
                split => return split,
            }
        }
        self.extend(route, hash)
    }

    /// Returns whether a segment may be split. Keys that no split separates must not make the
    /// directory grow without end.
    fn may_split(&self, route: &Route<'_>) -> bool {
        let (depth, wide) = (route.segment.depth, self.directory.depth(self.seam()));
        let segments = *self.seam().lock(&self.segments);
        depth < wide
            || depth < FREE_DEPTH
            || self.seeded(&index_bugs::DOUBLED_WITHOUT_END) && depth < 16
            || depth < MAX_DEPTH && segments * SPARSE >= 1 << wide
    }

    /// Splits a segment in two by the next bit of the hash. Does nothing if `route` is not current
    /// any more: the segment was split, or the directory doubled.
    fn split(&self, route: &Route<'_>) -> Result<()> {
        let mut blocks =
            vec![UnlinkedBlock::allocate(&self.core, layout::segment_bytes(self.group))?];
        loop {
            let mut held = self.lock(route.segment)?;
            if !self.is_current(route) && !self.seeded(&index_bugs::SPLIT_NOT_RECHECKED) {
                return Ok(());
            }
            // The new segment never needs more overflow nodes than the old one has. Of the records that it
            // gets for one home, one goes to the home itself. So it needs no more cells of the second level
            // and of nodes than they had in the old segment.
            let nodes = self.nodes(route.segment).count();
            if blocks.len() > nodes {
                return self.split_locked(route.segment, &mut blocks, &mut held);
            }
            drop(held);
            let bytes = layout::node_bytes(self.group);
            while blocks.len() <= nodes {
                blocks.push(UnlinkedBlock::allocate(&self.core, bytes)?);
            }
        }
    }

    /// Splits a locked segment. The first of `blocks` becomes the new segment, and as many of the
    /// others as it needs become its overflow nodes.
    fn split_locked(
        &self,
        old: Segment,
        blocks: &mut [UnlinkedBlock<'_, S>],
        held: &mut Guarded<HeldLock<'_, S>>,
    ) -> Result<()> {
        let (memory, at) = (&self.core.memory, &points::SPLIT_NEW);
        let bit = 1 << (63 - old.depth);
        let stays = Segment { depth: old.depth + 1, ..old };
        let new = Segment { offset: blocks[0].offset(), low: old.low | bit, ..stays };
        let next = Link::read(memory, &self.header(old).next)?.offset;
        write_segment(memory, self.group, new, next, self.empty(new.low), at)?;
        self.forget(new);
        let (mut moved, mut used) = (Vec::new(), 1);
        for cells in self.all_cells(old) {
            for cell in cells?.used(self.seam()) {
                let words = cell.slot().read(memory);
                let hash = self.hash_of(words);
                if hash & bit == 0 {
                    continue;
                }
                // This uses only the link, so that a damaged block does not fail the split.
                if R::FORM == RecordForm::Bytes {
                    self.core.before_unlink(R::extent(&self.core, words)?.0)?;
                }
                let to = match self.free_cell(new, hash)? {
                    Some(to) => to,
                    None => {
                        let node = blocks.get(used).map(UnlinkedBlock::offset);
                        used += 1;
                        self.add_node(new, node.ok_or_else(|| too_many(old))?, at)?
                    }
                };
                to.slot().write(memory, words, at);
                self.publish(new, to, hash);
                moved.push((cell, hash));
            }
        }
        {
            // Lookups go on meanwhile.
            let _segments = self.seam().lock(&self.segments);
            if self.directory.depth(self.seam()) == old.depth {
                self.directory.double(self.seam());
                self.counters.doublings.add_one();
            }
        }
        flush_block(memory, new.offset, layout::segment_bytes(self.group), at)?;
        for node in &blocks[1..used] {
            flush_block(memory, node.offset(), layout::node_bytes(self.group), at)?;
        }
        memory.fence(at);

        let (at, link) = (&points::SPLIT_COMMIT, &self.header(old).next);
        Link { offset: new.offset, depth: stays.depth }.store(memory, link, at);
        blocks[..used].iter_mut().for_each(UnlinkedBlock::set_linked);
        let late = self.seeded(&bugs::SPLIT_BEFORE_DURABLE);
        if !late {
            memory.persist(link, at);
        }
        // Readers of the old segment wait, before the directory leads to the new one, where other threads
        // can change the records of the upper half.
        held.changing();
        {
            let mut segments = self.seam().lock(&self.segments);
            self.directory.fill(self.seam(), new);
            self.directory.fill(self.seam(), stays);
            *segments += 1;
        }
        for (cell, hash) in moved {
            self.unpublish(old, cell, hash);
        }
        self.counters.splits.add_one();
        if late {
            memory.persist(link, at);
        }
        Ok(())
    }

    // ---- Overflow nodes ---------------------------------------------------------

    /// Adds an overflow node to a full segment, unless `route` is not current any more, or another thread
    /// has made room.
    fn extend(&self, route: &Route<'_>, hash: u64) -> Result<()> {
        let segment = route.segment;
        let mut block = UnlinkedBlock::allocate(&self.core, layout::node_bytes(self.group))?;
        let _held = self.lock(segment)?;
        if !self.is_current(route) || self.free_cell(segment, hash)?.is_some() {
            return Ok(());
        }
        let memory = &self.core.memory;
        self.write_node(segment, block.offset(), &points::NODE_NEW)?;
        flush_block(memory, block.offset(), layout::node_bytes(self.group), &points::NODE_NEW)?;
        memory.fence(&points::NODE_NEW);
        self.link_node(segment, block.offset(), &points::NODE_COMMIT);
        block.set_linked();
        memory.persist(&self.header(segment).chain, &points::NODE_COMMIT);
        Ok(())
    }

    /// Adds a node to a new segment that no thread uses yet, without a flush. Returns its first
    /// cell.
    fn add_node(&self, segment: Segment, node: u64, at: &'static Point) -> Result<Cell<'_>> {
        self.write_node(segment, node, at)?;
        self.link_node(segment, node, at);
        Ok(self.cells(node, 0, None).cell(0))
    }

    /// Writes an empty node that links to the segment's present chain, without a flush.
    fn write_node(&self, segment: Segment, node: u64, at: &'static Point) -> Result<()> {
        let memory = &self.core.memory;
        let header = memory.at(Offset::<NodeHeader>::new(node))?;
        memory.store(&header.identity, layout::identity(Kind::Node, node, 0, self.group), at);
        Link::read(memory, &self.header(segment).chain)?.store(memory, &header.next, at);
        let (bytes, empty) = (layout::node_bytes(self.group), self.empty(segment.low));
        write_cells(memory, node, bytes, empty, at)?;
        self.clear_node(node);
        Ok(())
    }

    /// Makes a node the first of a segment's chain.
    fn link_node(&self, segment: Segment, node: u64, at: &'static Point) {
        let chain = &self.header(segment).chain;
        Link { offset: node, depth: 0 }.store(&self.core.memory, chain, at);
        self.state(segment).has_nodes.store(self.seam(), 1, Ordering::Relaxed);
    }
}

#[cold]
fn too_many(segment: Segment) -> Damage {
    let found = "more records than that";
    Damage::new(segment.offset, "records that fit the segment's cells", found)
}
