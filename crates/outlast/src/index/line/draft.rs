//! A new segment of a rebuild, which is in DRAM until it is complete.

use super::layout::{
    LINE_SLOTS, MAX_NEW, NODE_BYTES, NODE_SLOTS, Segment, Shape, Size, node_identity,
    segment_identity,
};
use super::lookup::Part;
use super::{Hints, points};
use crate::error::Result;
use crate::index::hints::STASH;
use crate::index::kit::media::Link;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::SlotWords;
use crate::pmem::{Memory, Seam, Word};
use crate::pool::core::Core;
use std::cell::RefCell;

const LINE_WORDS: usize = 2 * LINE_SLOTS;

/// A block for a segment or a node.
pub(super) struct NewBlock<'c, S: Seam> {
    pub(super) unlinked: UnlinkedBlock<'c, S>,
    pub(super) words: &'c [Word],
}

impl<'c, S: Seam> NewBlock<'c, S> {
    pub(super) fn allocate(core: &'c Core<S>, bytes: u64) -> Result<Self> {
        let unlinked = UnlinkedBlock::allocate(core, bytes)?;
        Ok(NewBlock { words: core.memory.words(unlinked.offset(), bytes)?, unlinked })
    }

    pub(super) fn offset(&self) -> u64 {
        self.unlinked.offset()
    }
}

/// A new segment.
pub(super) struct Draft<'c, S: Seam> {
    block: NewBlock<'c, S>,
    pub(super) segment: Segment,
    size: &'static Size,
    empty: u64,
    buffer: Buffer,
    pub(super) hints: Hints,
    pub(super) nodes: Vec<NewBlock<'c, S>>,
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
    static BUFFERS: RefCell<Vec<Buffer>> = const { RefCell::new(Vec::new()) };
}

impl Buffer {
    fn take() -> Buffer {
        // A thread that ends keeps none.
        BUFFERS.try_with(|kept| kept.borrow_mut().pop()).ok().flatten().unwrap_or_default()
    }

    fn keep(buffer: Buffer) {
        let _ = BUFFERS.try_with(|kept| {
            let mut all = kept.borrow_mut();
            if all.len() < MAX_NEW {
                all.push(buffer);
            }
        });
    }
}

impl<'c, S: Seam> Draft<'c, S> {
    /// Makes an empty segment of this shape, which holds the hash `low`, with this many nodes.
    pub(super) fn new(
        core: &'c Core<S>,
        shape: Shape,
        low: u64,
        nodes: u64,
        empty: u64,
    ) -> Result<Self> {
        let nodes = (0..nodes).map(|_| NewBlock::allocate(core, NODE_BYTES));
        let nodes = nodes.collect::<Result<_>>()?;
        let block = NewBlock::allocate(core, super::SIZES[shape.size as usize].bytes())?;
        let segment = Segment::new(block.offset(), shape, low);
        let mut buffer = Buffer::take();
        write_empty(&mut buffer.lines, &segment, empty);
        buffer.used.clear();
        buffer.used.resize(buffer.lines.len(), 0);
        buffer.late.clear();
        let (size, hints) = (segment.size(), Hints::new());
        Ok(Draft { block, segment, size, empty, buffer, hints, nodes })
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

    /// Adds a record to its home line, or puts it off.
    #[inline(always)]
    pub(super) fn add_home(&mut self, words: SlotWords, hash: u64) {
        if !self.add(self.size.before + self.size.home_of(hash), words) {
            self.buffer.late.push((words, hash));
        }
    }

    /// Finds places for the records that were put off. Those that stay go to nodes.
    pub(super) fn add_late(&mut self) {
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
            self.hints.add(size, hash, part);
            part == Part::Node
        });
        self.buffer.late = late;
    }

    /// Frees the nodes that are not needed. Returns whether the others suffice.
    pub(super) fn trim_nodes(&mut self) -> bool {
        let needed = self.buffer.late.len().div_ceil(NODE_SLOTS as usize);
        self.nodes.truncate(needed);
        self.nodes.len() == needed
    }

    /// Sets the links to the sibling at this offset, if it is not 0, and to the first node.
    pub(super) fn link(&mut self, sibling: u64) {
        let pack = |offset, at| Link { offset, depth: 0 }.pack(self.segment.offset + at);
        let chain = self.nodes.first().map_or(0, NewBlock::offset);
        let header = &mut self.buffer.lines[0];
        (header[2], header[3]) = (pack(sibling, 16), pack(chain, 24));
    }

    /// Writes the segment and its nodes, and flushes them.
    pub(super) fn write(&self, memory: &Memory<S>) {
        let Buffer { lines, late, .. } = &self.buffer;
        memory.write_new(self.block.words, lines.as_flattened(), &points::REBUILD_NEW);
        let next = self.nodes.iter().skip(1).map(NewBlock::offset).chain([0]);
        let parts = late.chunks(NODE_SLOTS as usize);
        for ((node, next), part) in self.nodes.iter().zip(next).zip(parts) {
            let records = part.iter().map(|(words, _)| *words);
            let values = node_words(self.segment.offset, node.offset(), next, records, self.empty);
            memory.write_new(node.words, &values, &points::REBUILD_NODE);
        }
    }

    /// Keeps the blocks: something links to them now.
    pub(super) fn set_linked(&mut self) {
        self.block.unlinked.set_linked();
        self.nodes.iter_mut().for_each(|node| node.unlinked.set_linked());
    }
}

impl<S: Seam> Drop for Draft<'_, S> {
    fn drop(&mut self) {
        Buffer::keep(std::mem::take(&mut self.buffer));
    }
}

/// Fills in the lines of an empty segment, without sibling and nodes.
pub(super) fn write_empty(lines: &mut Vec<[u64; LINE_WORDS]>, segment: &Segment, empty: u64) {
    lines.clear();
    let line = [empty, 0, empty, 0, empty, 0, empty, 0];
    lines.resize(segment.size().lines as usize, line);
    let &Segment { offset, shape, low, .. } = segment;
    let none = |at| Link::default().pack(offset + at);
    lines[0] = [segment_identity(offset, low, shape), low, none(16), none(24), 0, 0, 0, 0];
}

/// Returns the words of a segment's node that has these records.
pub(super) fn node_words(
    segment: u64,
    offset: u64,
    next: u64,
    records: impl Iterator<Item = SlotWords>,
    empty: u64,
) -> Vec<u64> {
    let mut words = vec![0; NODE_BYTES as usize / 8];
    words[0] = node_identity(offset, segment);
    words[1] = Link { offset: next, depth: 0 }.pack(offset + 8);
    let slots = words[8..].as_chunks_mut::<2>().0;
    slots.fill([empty, 0]);
    for (slot, record) in slots.iter_mut().zip(records) {
        *slot = [record.first, record.second];
    }
    words
}
