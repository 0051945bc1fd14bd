//! Growth: a segment that is full becomes larger, or is split, and the directory's doubling.

use super::draft::{NewBlock, write_empty};
use super::layout::{DIRECTORY, MAX_DEPTH, Segment, Shape};
use super::rebuild::Outcome;
use super::{Line, points};
use crate::error::Result;
use crate::index::kit::arrays::Directory;
use crate::index::kit::media::empty_words;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::SlotRecord;
use crate::pmem::Seam;
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::sync::Arc;

/// The depth of a new map's directory.
const FIRST_DEPTH: u32 = 1;
/// Directories below this depth are doubled whatever they contain.
const FREE_DEPTH: u32 = 7;
/// From that depth on, a directory is doubled only if it has at most this many cells for each
/// segment.
const SPARSE: u64 = 32;

/// Writes a new map's directory and segments and flushes them. The fence before the root's commit
/// word makes them durable.
pub(super) fn create<S: Seam, R: SlotRecord>(
    core: &Arc<Core<S>>,
) -> Result<[u64; ROOT_SCHEME_WORDS]> {
    let empty = empty_words::<S, R>(core)?;
    let shape = Shape { size: 0, depth: 1 };
    let block = || NewBlock::allocate(core, super::SIZES[0].bytes());
    let halves = [block()?, block()?];
    for (half, block) in halves.iter().enumerate() {
        let segment = Segment::new(block.offset(), shape, (half as u64) << 63);
        let mut lines = Vec::new();
        write_empty(&mut lines, &segment, empty[half]);
        core.memory.write_new(block.words, lines.as_flattened(), &points::CREATE);
    }
    let cells = DIRECTORY.entries(FIRST_DEPTH) as usize;
    let offsets = (0..cells).map(|cell| halves[cell / (cells / 2)].offset());
    let (directory, word) = Directory::create(core, &DIRECTORY, FIRST_DEPTH, offsets)?;
    let mut words = [0; ROOT_SCHEME_WORDS];
    words[0] = word;
    let blocks = halves.into_iter().map(|half| half.unlinked).chain([directory]);
    blocks.for_each(|mut block| block.set_linked());
    Ok(words)
}

impl<S: Seam, R: SlotRecord> Line<S, R> {
    /// Makes room in the full segment of a cell's word: makes it larger, or splits it, or doubles the
    /// directory so that the next attempt can split it, or adds an overflow node. The caller retries
    /// afterwards.
    pub(super) fn make_room(&self, hash: u64, word: u64) -> Result<()> {
        let segment = Segment::of(word, hash);
        let Some([records, in_nodes]) = self.count_valid(&segment)? else { return Ok(()) };
        let Shape { size, depth } = segment.shape;
        // Records of one hash never fill half of a segment, so they do not make it grow.
        let grows = 2 * records > segment.size().slots();
        let half = Shape { size, depth: depth + 1 };
        let outcome = if !grows {
            Outcome::NoRoom
        } else if size < self.largest {
            self.rebuild(&[segment], &[Shape { size: size + 1, depth }], in_nodes)?
        } else if depth == MAX_DEPTH {
            Outcome::NoRoom
        } else if self.cells.depth(self.seam()) > depth {
            self.rebuild(&[segment], &[half, half], in_nodes)?
        } else if self.double(depth)? {
            return Ok(());
        } else {
            Outcome::NoRoom
        };
        match outcome {
            Outcome::Done => {
                self.counters.splits.add_one();
                Ok(())
            }
            Outcome::Changed => Ok(()),
            Outcome::NoRoom => self.extend_chain(hash, word),
        }
    }

    /// Doubles a directory of this depth, unless another thread has. Returns `false` if it may not
    /// grow, or if there is no block for the new one.
    fn double(&self, depth: u32) -> Result<bool> {
        let bytes = DIRECTORY.bytes(depth + 1);
        if !DIRECTORY.depths.contains(&(depth + 1)) || bytes > self.core.geometry.large_max() {
            return Ok(false);
        }
        let new = match UnlinkedBlock::allocate(&self.core, bytes) {
            Err(error) if error.is_full() => return Ok(false),
            allocated => allocated?,
        };
        let mut structure = self.seam().lock(&self.structure);
        if structure.directory.depth != depth {
            return Ok(true);
        }
        let cells = structure.directory.entries(&self.core.memory)?;
        if depth >= FREE_DEPTH {
            let mut offsets: Vec<_> = cells.iter().map(|c| self.core.memory.load(c)).collect();
            offsets.dedup();
            if offsets.len() as u64 * SPARSE < cells.len() as u64 {
                return Ok(false);
            }
        }
        let at = &points::DOUBLE_COMMIT;
        let twice = |old: Vec<u64>| old.into_iter().flat_map(|cell| [cell; 2]).collect();
        let doubled = structure.directory.double(&self.core, new, twice, at)?;
        doubled.persist(&self.core, at)?;
        self.cells.double(self.seam());
        self.counters.doublings.add_one();
        drop(structure);
        doubled.retire(&self.core);
        Ok(true)
    }
}
