//! Growth: the directory's part of a split, and its doubling.

use super::layout::{self, DIRECTORY_HEADER, DirectoryHeader, MAX_DEPTH};
use super::{DashEh, Directory, Route, Segment, SegmentSize, bugs, points};
use crate::error::{Damage, Error, Result};
use crate::index::bugs as index_bugs;
use crate::index::dash::write_empty;
use crate::index::kit::media::empty_words;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::Record;
use crate::pmem::{Memory, Offset, Point, Seam};
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::sync::Arc;

/// Directories below this depth are doubled whatever they contain.
const FREE_DEPTH: u32 = 6;
/// From this depth on, one entry in this many must be a segment of its own.
const SPARSE: u64 = 32;

/// Writes a directory and flushes it, without a fence.
fn write_directory<S: Seam>(
    memory: &Memory<S>,
    offset: u64,
    depth: u32,
    entries: impl Iterator<Item = u64>,
    at: &'static Point,
) -> Result<(), Damage> {
    let header = memory.at(Offset::<DirectoryHeader>::new(offset))?;
    let identity = layout::directory_identity(offset, depth);
    memory.store(&header.identity, identity, at);
    let words = memory.words(offset, DIRECTORY_HEADER + (8 << depth))?;
    for (word, entry) in words[DIRECTORY_HEADER as usize / 8..].iter().zip(entries) {
        memory.store(word, entry, at);
    }
    memory.flush_words(words, at);
    Ok(())
}

/// Writes a new map's directory and segments and flushes them. The fence before the root's commit
/// word makes them durable.
pub(super) fn create<S: Seam, R: Record>(
    core: &Arc<Core<S>>,
    size: SegmentSize,
) -> Result<[u64; ROOT_SCHEME_WORDS]> {
    let empty = empty_words::<S, R>(core)?;
    let segment = || UnlinkedBlock::allocate(core, size.bytes());
    let halves = [segment()?, segment()?];
    let directory = UnlinkedBlock::allocate(core, layout::directory_bytes(1))?;
    for (half, block) in halves.iter().enumerate() {
        let segment = Segment { offset: block.offset(), depth: 1, low: (half as u64) << 63 };
        write_empty(&core.memory, size, segment, empty[half], &points::CREATE)?;
    }
    let entries = halves.iter().map(|b| b.offset());
    write_directory(&core.memory, directory.offset(), 1, entries, &points::CREATE)?;
    let mut words = [0; ROOT_SCHEME_WORDS];
    words[0] = layout::pack_root(directory.offset(), 1);
    halves.into_iter().chain([directory]).for_each(|mut block| block.set_linked());
    Ok(words)
}

impl<S: Seam, R: Record> DashEh<S, R> {
    /// Makes room in a full segment. The caller retries afterwards.
    pub(super) fn make_room(&self, route: &Route<'_, Directory>, hash: u64) -> Result<()> {
        let depth = route.way.depth();
        if route.segment.depth < depth {
            return self.split(route, hash);
        }
        if self.may_double(depth)? && self.double(depth)? {
            return Ok(());
        }
        self.extend_chain(route)
    }

    /// Sets the directory's entries of the upper half of a split, durably, and fills those in DRAM.
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
        let bytes = layout::directory_bytes(depth + 1);
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
            for entry in structure.entries(&self.core.memory)? {
                let entry = self.core.memory.load(entry);
                segments += u64::from(entry != last);
                last = entry;
            }
            structure.segments = Some(segments);
        }
        Ok(structure.segments.unwrap_or(0) * SPARSE >= 1 << depth)
    }

    /// Doubles the directory, unless another thread has. Returns `false` if there is no block of
    /// that size.
    fn double(&self, depth: u32) -> Result<bool> {
        let memory = &self.core.memory;
        let mut new = match UnlinkedBlock::allocate(&self.core, layout::directory_bytes(depth + 1))
        {
            // A directory takes many pages in a row. A longer chain takes any free block.
            Err(Error::PoolFull { .. } | Error::DiskFull { .. }) => return Ok(false),
            allocated => allocated?,
        };
        let mut structure = self.seam().lock(&self.addressing.structure);
        if structure.depth != depth {
            return Ok(true);
        }
        let old = structure.directory;
        let entries: Vec<u64> = structure.entries(memory)?.iter().map(|e| memory.load(e)).collect();
        let twice = entries.iter().flat_map(|&e| [e, e]);
        write_directory(memory, new.offset(), depth + 1, twice, &points::DOUBLE_NEW)?;
        memory.fence(&points::DOUBLE_NEW);
        self.core.before_unlink(old)?;
        let root = memory.at(self.addressing.root)?;
        let word = layout::pack_root(new.offset(), depth + 1);
        memory.store_release(root, word, &points::DOUBLE_COMMIT);
        if !self.seeded(&bugs::DOUBLED_BEFORE_DURABLE) {
            memory.persist(root, &points::DOUBLE_COMMIT);
        }
        new.set_linked();
        structure.directory = new.offset();
        structure.depth = depth + 1;
        self.addressing.dram.double(memory.seam());
        self.counters.doublings.add_one();
        drop(structure);
        if self.seeded(&bugs::DOUBLED_BEFORE_DURABLE) {
            memory.persist(root, &points::DOUBLE_COMMIT);
        }
        // Only first touches and splits read the directory in PM, under `structure`.
        self.core.retire(old, layout::directory_bytes(depth));
        Ok(true)
    }
}
