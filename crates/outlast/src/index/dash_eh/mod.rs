//! Dash-EH: extendible hashing for persistent memory (Lu et al., VLDB 2020, section 4).
//!
//! The table is a directory of [segments](super::dash). That module documents everything inside one
//! segment.
//!
//! # Structure
//!
//! ```text
//!  root (named root, word 1)
//!   |
//!   v          most significant bits of the hash
//!  directory  [ 000 | 001 | 010 | 011 | 100 | 101 | 110 | 111 ]
//!                |     |     |     |     \     |     |     /
//!                v     v     v     v           v
//!             segments, local depth 3 ...   local depth 1
//! ```
//!
//! A full segment is split in two. If necessary, the directory is doubled first.
//!
//! Each process has its own copy of the directory in DRAM, which operations use. An entry is filled
//! when its segment is first touched. Splits and doublings write the directory in PM. First touches
//! read it, and correct entries that a crash left stale.
//!
//! # Invariants
//!
//! All directory entries in a segment's range point to the segment. The exceptions are those of a
//! new upper half, from the commit of the split until they are set. The invariants of segments are
//! in [`dash`](super::dash).
//!
//! # Commit points
//!
//! *Lines* are the cache lines that an operation flushes; *record*, *segment* and the like stand
//! for all lines of such a block. An operation fences after the last store that it flushes. This
//! last fence is counted, but not always listed.
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | map | the directory and the segments, completely; fence (shared with the root's fixed words); the root's commit word | both; no fence besides the root's | blocks that the sweep frees |
//! | split, after its commit | directory entries; fence | entries, 1 | stale directory entries, which the first touch of either half corrects |
//! | doubling | the new directory, completely; fence; root (commit) | directory + 1, 2 | a block that the sweep frees |
//!
//! # Concurrency
//!
//! The lock `structure` serializes splits, doublings and first touches where they change the
//! directory. In the lock order it comes after all bucket locks.
//!
//! # After a crash
//!
//! Opening reads the root and checks the directory's header. A segment is recovered by its first
//! touch. First touches are serialized by `structure`. Each takes these steps:
//!
//! 1. If a crash cut a split short, it completes the split. It makes the state that commits the split
//!    durable, with the entries that are set already. Then it sets the entries of the upper half that
//!    still point to the old segment to the new one, durably.
//! 2. It makes the segment ready.
//! 3. It fills the entries of the DRAM directory. From here on, operations use the segment.
//!
//! # Deviations from the paper
//!
//! - The paper logs directory updates in a transaction. Here one word in the old segment commits
//!   the split, and recovery rewrites the entries from that word.
//! - Overflow nodes take the keys that no split separates. From depth 6 on, the directory is not
//!   doubled while it has more than 32 entries for each segment.

pub mod bugs;
pub mod points;
mod recover;
mod resize;

pub use super::dash::layout;
use super::dash::{Addressing, Dash, Directory, Route, Segment, SegmentSize};
use crate::error::{Damage, Result};
pub use crate::index::config::DashEh as Config;
use crate::index::kit::directory::{DramDirectory, Way};
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::SlotRecord;
use crate::index::{Scheme, Visitor};
use crate::pmem::{Memory, Seam, Word};
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::sync::{Arc, Mutex};

/// The state that splits, doublings and first touches use, one thread at a time.
struct Structure {
    /// The directory in PM: for each prefix, the segment.
    directory: Directory,
    /// The number of segments that the directory points to, once it has been counted.
    segments: Option<u64>,
}

/// The directory of a table, in PM and in DRAM.
pub struct Prefixes {
    /// The copy in DRAM. Its entries are filled when their segments are first touched.
    dram: DramDirectory,
    structure: Mutex<Structure>,
}

/// A hash table. See the module's documentation.
pub type DashEh<S, R> = Dash<S, R, Prefixes>;

impl<S: Seam, R: SlotRecord> DashEh<S, R> {
    /// Opens the table whose root is in `slot`. Takes constant time.
    pub fn open(core: &Arc<Core<S>>, slot: usize, config: Config) -> Result<Self> {
        let directory = Directory::open(core, &layout::DIRECTORY, slot)?;
        let dram = DramDirectory::new(core, slot, directory.depth);
        let structure = Mutex::new(Structure { directory, segments: None });
        Dash::new(core, config.size(), Prefixes { dram, structure })
    }

    /// Makes the directory and the two segments of a new map, and flushes them. The caller's fence
    /// makes them durable before the root names them. Returns the scheme's words of the root.
    pub fn create(core: &Arc<Core<S>>, config: Config) -> Result<[u64; ROOT_SCHEME_WORDS]> {
        resize::create::<S, R>(core, config.size())
    }
}

impl Structure {
    /// Returns the entries in PM of the hashes that begin with the first `depth` bits of `low`.
    fn entries_of<'m, S: Seam>(
        &self,
        memory: &'m Memory<S>,
        low: u64,
        depth: u32,
    ) -> Result<&'m [Word], Damage> {
        let first = (low >> (64 - self.directory.depth)) as usize;
        let entries = self.directory.entries(memory)?;
        Ok(&entries[first..first + (1 << (self.directory.depth - depth))])
    }
}

impl Addressing for Prefixes {
    const SCHEME: Scheme = Scheme::DashEh;
    // Two words for each current entry: the entries of shallower directories are kept, and together
    // there are about as many of them.
    const ENTRY_BYTES: u64 = 16;

    type Way<'t> = Way<'t>;

    #[inline(always)]
    fn ready_route<S: Seam>(&self, seam: &S, hash: u64) -> Option<Route<'_, Self>> {
        self.dram.find(seam, hash).map(|(segment, way)| Route { segment, way })
    }

    #[inline(always)]
    fn is_current<S: Seam>(&self, seam: &S, way: Way<'_>) -> bool {
        DramDirectory::is_current(seam, way)
    }

    fn first_touch<S: Seam, R: SlotRecord>(
        table: &DashEh<S, R>,
        hash: u64,
    ) -> Result<Route<'_, Self>> {
        table.first_touch(hash)
    }

    fn find_unready<S: Seam, R: SlotRecord>(
        table: &DashEh<S, R>,
        hash: u64,
    ) -> Result<(Segment, u64)> {
        table.find_unready(hash)
    }

    fn place_new<S: Seam, R: SlotRecord>(
        table: &DashEh<S, R>,
        _: Segment,
    ) -> Result<UnlinkedBlock<'_, S>> {
        UnlinkedBlock::allocate(&table.core, table.size.bytes())
    }

    fn make_room<S: Seam, R: SlotRecord>(
        table: &DashEh<S, R>,
        route: &Route<'_, Self>,
        hash: u64,
    ) -> Result<()> {
        table.make_room(route, hash)
    }

    fn publish_split<S: Seam, R: SlotRecord>(
        table: &DashEh<S, R>,
        old: Segment,
        new: Segment,
        mark: impl FnOnce(),
    ) -> Result<()> {
        table.publish_split(old, new, mark)
    }

    fn trace<S: Seam, R: SlotRecord>(table: &DashEh<S, R>, visit: &mut Visitor<'_>) -> Result<()> {
        table.seam().lock(&table.addressing.structure).directory.trace(visit)
    }

    fn entries<S: Seam>(&self, seam: &S) -> u64 {
        1 << self.dram.depth(seam)
    }

    fn end_of_entry<S: Seam>(&self, seam: &S, hash: u64) -> u64 {
        hash | (u64::MAX >> self.dram.depth(seam))
    }
}
