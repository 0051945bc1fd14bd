//! Dash-EH: extendible hashing for persistent memory (Lu et al., VLDB 2020, section 4).
//!
//! A directory over [segments](super::dash), where everything is said that concerns one segment.
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
//! A full segment is split in two. If need be, the directory is doubled first.
//!
//! Each process has its own copy of the directory in DRAM, which operations use. An entry is filled
//! when its segment is first touched. The directory in PM is written by splits and read by first
//! touches.
//!
//! # Invariants
//!
//! All directory entries in a segment's range point to it, except those of the upper half while a
//! split of it is being completed. The invariants of segments are in [`dash`](super::dash).
//!
//! # Commit points
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | map | directory and segments whole; fence, the root's; root's commit word | both, 0 (+ the root's) | blocks that the trace frees |
//! | split, after its commit | directory entries; fence | entries, 1 | stale directory entries, which the first touch of either half sets |
//! | doubling | new directory whole; fence; root (commit) | directory + 1, 2 | a block that the trace frees |
//!
//! # Concurrency
//!
//! The lock `structure` serializes splits, doublings and first touches where they change the
//! directory. It comes after all bucket locks.
//!
//! # After a crash
//!
//! Opening reads the root and checks the directory's header. A segment is recovered by its first
//! touch. First touches are serialized by `structure`. Each takes these steps:
//!
//! 1. It completes a split: the entries of the upper half that still point to the old segment are
//!    set to the new one, durably.
//! 2. It makes the segment ready.
//! 3. It fills the entries of the DRAM directory. From here on, operations use the segment.
//!
//! # Deviations from the paper
//!
//! - The paper logs directory updates in a transaction. Here one word in the old segment commits
//!   the split, and the entries are redone from it.
//! - Overflow nodes take the keys that no split separates. From depth 6 on, the directory is not
//!   doubled while fewer than one entry in 32 is a segment of its own.

pub mod bugs;
pub mod layout;
pub mod points;
mod recover;
mod resize;

use super::dash::{Addressing, Dash, Route, Segment, SegmentSize};
use crate::error::{Damage, Error, Result};
use crate::index::kit::media::{check_block, check_identity};
use crate::index::record::Record;
use crate::index::{BlockKind, Scheme, SchemeConfig, Settings, Visitor};
use crate::pmem::{Memory, Offset, Seam, Shared, SharedWord, Word};
use crate::pool::core::{Core, root_offset};
use layout::{DIRECTORY_HEADER, DirectoryHeader, MAX_DEPTH};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The size of a map's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// log2 of the buckets of a segment: from 1 to 6.
    pub bucket_bits: u32,
    /// Stash buckets of a segment: 2 or 4.
    pub stash: u32,
}

impl SchemeConfig for Config {
    fn of_settings(settings: &mut Settings, _: &str) -> Result<Config> {
        Ok(SegmentSize::of_settings(settings)?.into())
    }

    fn from_words([bucket_bits, stash, rest]: [u64; 3]) -> Option<Config> {
        let size = SegmentSize::from_words([bucket_bits, stash])?;
        (rest == 0).then(|| size.into())
    }

    fn to_words(self) -> [u64; 3] {
        let [bucket_bits, stash] = self.size().to_words();
        [bucket_bits, stash, 0]
    }
}

impl Config {
    fn size(self) -> SegmentSize {
        SegmentSize { bucket_bits: self.bucket_bits, stash: self.stash }
    }
}

impl From<SegmentSize> for Config {
    fn from(size: SegmentSize) -> Config {
        Config { bucket_bits: size.bucket_bits, stash: size.stash }
    }
}

/// The directory in DRAM, for one depth. An entry is the segment's offset and, from bit 48, its
/// local depth, or 0 if the segment has not been touched yet.
struct Entries {
    depth: u32,
    entries: Box<[SharedWord]>,
}

impl Entries {
    fn new(depth: u32) -> Entries {
        // The system zeroes the pages when they are first touched, so opening a pool takes the same
        // time however large the directory is.
        let entries = Box::<[SharedWord]>::new_zeroed_slice(1 << depth);
        // SAFETY: zero is a valid SharedWord.
        Entries { depth, entries: unsafe { entries.assume_init() } }
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        (hash >> (64 - self.depth)) as usize
    }

    /// Returns the entry at an index that [`index`](Entries::index) returned.
    #[inline(always)]
    fn entry(&self, index: usize) -> &SharedWord {
        debug_assert!(index < self.entries.len());
        // SAFETY: there are 2^depth entries, and `index` returns a number of `depth` bits.
        unsafe { self.entries.get_unchecked(index) }
    }
}

/// The entry by which an operation reached its segment.
#[derive(Clone, Copy)]
pub struct Way<'d> {
    directory: &'d Entries,
    index: usize,
    entry: u64,
}

/// The state that splits and first touches change, one thread at a time.
struct Structure {
    /// The directory in PM.
    directory: u64,
    depth: u32,
    /// The number of segments that the directory points to, once it has been counted.
    segments: Option<u64>,
}

/// The directory of a table, in PM and in DRAM.
pub struct Directory {
    root: Offset<Word>,
    /// DRAM directories by depth. Shallower ones stay, for readers that still use them. Together
    /// they are no larger than the current one.
    all: Box<[Shared<OnceLock<Entries>>]>,
    /// The current one.
    current: Shared<AtomicPtr<Entries>>,
    structure: Mutex<Structure>,
}

/// A hash table. See the module's documentation.
pub type DashEh<S, R> = Dash<S, R, Directory>;

impl<S: Seam, R: Record> DashEh<S, R> {
    /// Opens the table whose root is in `slot`. Takes constant time.
    pub fn open(core: &Arc<Core<S>>, slot: usize, config: Config) -> Result<Self> {
        let scheme_words = root_offset(slot).raw() + 8;
        let root = Offset::<Word>::new(scheme_words);
        let word = core.memory.load(core.memory.at(root)?);
        let damaged_root = |expected: &str, found: String| Error::DamagedRoot {
            slot,
            damage: Damage::new(scheme_words, expected, found),
        };
        let (offset, depth) = layout::unpack_root(word)
            .ok_or_else(|| damaged_root("a directory's offset and depth", format!("{word:#x}")))?;
        check_directory(core, offset, depth)?;
        let directory = Directory {
            root,
            all: (0..=MAX_DEPTH).map(|_| Shared::once()).collect(),
            current: Shared::default(),
            structure: Mutex::new(Structure { directory: offset, depth, segments: None }),
        };
        directory.set_current(core.memory.seam(), Entries::new(depth));
        Dash::new(core, config.size(), directory)
    }

    /// Makes the directory and the two segments of a new map and flushes them. They are durable
    /// before the root that will name them. Returns the root's words.
    pub fn create(
        core: &Arc<Core<S>>,
        config: Config,
    ) -> Result<[u64; crate::pool::layout::ROOT_SCHEME_WORDS]> {
        resize::create::<S, R>(core, config.size())
    }
}

fn check_directory<S: Seam>(core: &Core<S>, offset: u64, depth: u32) -> Result<(), Damage> {
    let header = core.memory.at(Offset::<DirectoryHeader>::new(offset))?;
    check_block(core, offset, layout::directory_bytes(depth))?;
    let expected = layout::directory_identity(offset, depth);
    let what = format!("a directory of depth {depth}");
    check_identity(&core.memory, &header.identity, expected, &what)
}

impl Directory {
    /// Makes DRAM entries the current ones. There were none of their depth.
    fn set_current(&self, seam: &impl Seam, entries: Entries) {
        let depth = entries.depth as usize;
        let kept = self.all[depth].get_or_init(seam, || entries);
        // Release: pairs with the Acquire in `current`.
        self.current.store(seam, std::ptr::from_ref(kept).cast_mut(), Ordering::Release);
    }

    #[inline(always)]
    fn current(&self, seam: &impl Seam) -> &Entries {
        // Acquire: pairs with the Release in `set_current`.
        // SAFETY: set before the table was handed out, to one of `all`, which neither move nor are
        // dropped before the table.
        unsafe { &*self.current.load(seam, Ordering::Acquire) }
    }

    /// Points the DRAM entries of a segment's range to it. The caller has locked `structure`.
    fn fill_entries(&self, seam: &impl Seam, segment: Segment) {
        let directory = self.current(seam);
        let first = directory.index(segment.low);
        let entry = segment.offset | u64::from(segment.depth) << 48;
        for slot in &directory.entries[first..first + (1 << (directory.depth - segment.depth))] {
            // Release: pairs with the Acquire in `known_route`.
            slot.store(seam, entry, Ordering::Release);
        }
    }
}

impl Structure {
    /// Returns the entries of the directory in PM.
    fn entries<'m, S: Seam>(&self, memory: &'m Memory<S>) -> Result<&'m [Word], Damage> {
        memory.words(self.directory + DIRECTORY_HEADER, 8 << self.depth)
    }

    /// Returns the entries in PM of the hashes that begin with the first `depth` bits of `low`.
    fn entries_of<'m, S: Seam>(
        &self,
        memory: &'m Memory<S>,
        low: u64,
        depth: u32,
    ) -> Result<&'m [Word], Damage> {
        let first = (low >> (64 - self.depth)) as usize;
        Ok(&self.entries(memory)?[first..first + (1 << (self.depth - depth))])
    }
}

impl Addressing for Directory {
    const SCHEME: Scheme = Scheme::DashEh;

    type Way<'t> = Way<'t>;

    #[inline(always)]
    fn known_route<S: Seam>(&self, seam: &S, hash: u64) -> Option<Route<'_, Self>> {
        let directory = self.current(seam);
        let index = directory.index(hash);
        // Acquire: pairs with the Release of the thread that filled the entry, so that the
        // segment's content is visible.
        let entry = directory.entry(index).load(seam, Ordering::Acquire);
        (entry != 0).then(|| {
            let depth = (entry >> 48) as u32;
            let low = hash >> (64 - depth) << (64 - depth);
            let segment = Segment { offset: entry & ((1 << 48) - 1), depth, low };
            Route { segment, way: Way { directory, index, entry } }
        })
    }

    #[inline(always)]
    fn is_current<S: Seam>(&self, seam: &S, way: Way<'_>) -> bool {
        std::ptr::eq(self.current(seam), way.directory)
            && way.directory.entry(way.index).load(seam, Ordering::Relaxed) == way.entry
    }

    fn first_touch<S: Seam, R: Record>(table: &DashEh<S, R>, hash: u64) -> Result<Route<'_, Self>> {
        table.first_touch(hash)
    }

    fn make_room<S: Seam, R: Record>(
        table: &DashEh<S, R>,
        route: &Route<'_, Self>,
        hash: u64,
    ) -> Result<()> {
        table.make_room(route, hash)
    }

    fn publish_split<S: Seam, R: Record>(
        table: &DashEh<S, R>,
        old: Segment,
        new: Segment,
        mark: impl FnOnce(),
    ) -> Result<()> {
        table.publish_split(old, new, mark)
    }

    fn trace<S: Seam, R: Record>(table: &DashEh<S, R>, visit: &mut Visitor<'_>) -> Result<()> {
        let (offset, depth) = {
            let structure = table.seam().lock(&table.addressing.structure);
            (structure.directory, structure.depth)
        };
        // If the directory is replaced meanwhile, the replacing thread marks it, and the new one is
        // a new block.
        visit(BlockKind::Directory, offset, layout::directory_bytes(depth))
    }

    fn entries<S: Seam>(&self, seam: &S) -> u64 {
        self.current(seam).entries.len() as u64
    }

    fn end_of_entry<S: Seam>(&self, seam: &S, hash: u64) -> u64 {
        hash | (u64::MAX >> self.current(seam).depth)
    }
}
