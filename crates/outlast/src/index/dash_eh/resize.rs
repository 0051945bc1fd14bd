//! Growth: the directory's part of a split, and its doubling.

use super::layout::{self, MAX_DEPTH};
use super::{DashEh, Directory, Prefixes, Route, Segment, SegmentSize, bugs, points};
use crate::error::Result;
use crate::index::bugs as index_bugs;
use crate::index::dash::write_empty;
use crate::index::kit::media::empty_words;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::SlotRecord;
use crate::pmem::Seam;
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::sync::Arc;

/// Directories below this depth are doubled whatever they contain.
const FREE_DEPTH: u32 = 6;
/// From that depth on, a directory is doubled only if it has at most this many entries for each
/// segment.
const SPARSE: u64 = 32;

/// Writes a new map's directory and segments and flushes them. The fence before the root's commit
/// word makes them durable.
pub(super) fn create<S: Seam, R: SlotRecord>(
    core: &Arc<Core<S>>,
    size: SegmentSize,
) -> Result<[u64; ROOT_SCHEME_WORDS]> {
    let empty = empty_words::<S, R>(core)?;
    let segment = || UnlinkedBlock::allocate(core, size.bytes());
    let halves = [segment()?, segment()?];
    for (half, block) in halves.iter().enumerate() {
        let segment = Segment { offset: block.offset(), depth: 1, low: (half as u64) << 63 };
        write_empty(&core.memory, size, segment, empty[half], &points::CREATE)?;
    }
    let (directory, word) =
        Directory::create(core, &layout::DIRECTORY, 1, halves.iter().map(|b| b.offset()))?;
    let mut words = [0; ROOT_SCHEME_WORDS];
    words[0] = word;
    halves.into_iter().chain([directory]).for_each(|mut block| block.set_linked());
    Ok(words)
}

impl<S: Seam, R: SlotRecord> DashEh<S, R> {
    /// Makes room in a full segment: splits it, or doubles the directory so that the next attempt
    /// can, or adds an overflow node. The caller retries afterwards.
    pub(super) fn make_room(&self, route: &Route<'_, Prefixes>, hash: u64) -> Result<()> {
        let depth = self.addressing.dram.depth(self.seam());
        if route.segment.depth < depth {
            return match self.split(route, hash) {
                // Without adjacent pages for a segment, there may be space for a node.
                Err(error) if error.is_full() => self.extend_chain(route).map(drop),
                split => split,
            };
        }
        if self.may_double(depth)? && self.double(depth)? {
            return Ok(());
        }
        self.extend_chain(route).map(drop)
    }

    /// Points the directory's entries for the upper half of a split to the new segment, durably.
    /// Then calls `mark`, and fills the entries of both halves in DRAM.
    pub(super) fn publish_split(
        &self,
        old: Segment,
        new: Segment,
        mark: impl FnOnce(),
    ) -> Result<()> {
        let memory = &self.core.memory;
        let mut structure = self.seam().lock(&self.addressing.structure);
        let upper = structure.entries_of(memory, new.low, new.depth)?;
        let at = &points::SPLIT_DIRECTORY;
        let short = self.seeded(&bugs::ENTRIES_ONE_SHORT) && upper.len() > 1;
        for entry in &upper[..upper.len() - usize::from(short)] {
            memory.store(entry, new.offset, at);
        }
        memory.flush_words(upper, at);
        memory.fence(at);
        mark();
        self.addressing.dram.fill(self.seam(), new);
        self.addressing.dram.fill(self.seam(), old);
        if let Some(segments) = &mut structure.segments {
            *segments += 1;
        }
        Ok(())
    }

    /// Returns whether the directory may be doubled. Keys that no split separates must not make it
    /// grow without end.
    fn may_double(&self, depth: u32) -> Result<bool> {
        let bytes = layout::DIRECTORY.bytes(depth + 1);
        if depth >= MAX_DEPTH || bytes > self.core.geometry.large_max() {
            return Ok(false);
        }
        if depth < FREE_DEPTH || self.seeded(&index_bugs::DOUBLED_WITHOUT_END) {
            return Ok(true);
        }
        let mut structure = self.seam().lock(&self.addressing.structure);
        if structure.segments.is_none() {
            let mut last = 0;
            let mut segments = 0;
            for entry in structure.directory.entries(&self.core.memory)? {
                let entry = self.core.memory.load(entry);
                segments += u64::from(entry != last);
                last = entry;
            }
            structure.segments = Some(segments);
        }
        Ok(structure.segments.unwrap_or(0) * SPARSE >= 1 << depth)
    }

    /// Doubles the directory, unless another thread has. Returns `false` if there is no free block
    /// for the new one.
    fn double(&self, depth: u32) -> Result<bool> {
        let new = match UnlinkedBlock::allocate(&self.core, layout::DIRECTORY.bytes(depth + 1)) {
            // A directory takes many contiguous pages. The alternative, a longer chain of overflow
            // nodes, can use any free block.
            Err(error) if error.is_full() => return Ok(false),
            allocated => allocated?,
        };
        let mut structure = self.seam().lock(&self.addressing.structure);
        if structure.directory.depth != depth {
            return Ok(true);
        }
        let at = &points::DOUBLE_COMMIT;
        let twice = |old: Vec<u64>| old.into_iter().flat_map(|entry| [entry; 2]).collect();
        let doubled = structure.directory.double(&self.core, new, twice, at)?;
        let late = self.seeded(&bugs::DOUBLED_BEFORE_DURABLE);
        if !late {
            doubled.persist(&self.core, at)?;
        }
        self.addressing.dram.double(self.seam());
        self.counters.doublings.add_one();
        drop(structure);
        if late {
            doubled.persist(&self.core, at)?;
        }
        doubled.retire(&self.core);
        Ok(true)
    }
}
