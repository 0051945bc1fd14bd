//! Line hashing: a hash index whose unit is the cache line.
//!
//! An aligned line of 64 bytes holds four records and nothing else. The hash names a line, so a lookup
//! of a present key usually reads one line of the pool, and an insert stores to one, flushes it and
//! fences once.
//!
pub mod bugs;
mod change;
pub mod layout;
mod lookup;
pub mod points;
mod rebuild;
mod recover;
mod resize;
#[cfg(test)]
mod tests;
mod verify;
mod walk;

use super::hints::{self, Whose};
use super::turn;
use crate::error::{Damage, Result};
pub use crate::index::config::Line as Config;
use crate::index::kit::arrays::Directory;
use crate::index::kit::cells::Cells;
use crate::index::kit::lock::VersionLock;
use crate::index::kit::media::{Link, empty_words};
use crate::index::kit::table::Table;
use crate::index::kit::walk::{Counters, HashRange};
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::{Growth, Scheme};
use crate::pmem::{Offset, Seam, SeededBug, SharedWord, Word, words_of};
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::ROOT_SCHEME_WORDS;
use layout::{
    BLOCK_LINES, Block, DIRECTORY, LINE_BYTES, Node, SIZES, Segment, SegmentHeader, Size, SlotLine,
};
use lookup::Part;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

/// The state that rebuilds, doublings and first touches use, one thread at a time.
struct Structure {
    /// The directory in PM: for each cell, the segment.
    directory: Directory,
    /// Whether the last rebuild of an earlier process is known to be complete.
    settled: bool,
    /// What is wrong with the intent.
    intent: Option<Damage>,
    /// A range whose cells contradict the intent although all space is accounted for.
    lost: Option<HashRange>,
}

/// A hash table. See the module's documentation.
pub struct Line<S: Seam, R: SlotRecord> {
    core: Arc<Core<S>>,
    /// The slot of its root.
    slot: usize,
    /// The size of the largest segments.
    largest: u32,
    /// The empty words, indexed by the most significant bit of a segment's hashes.
    empty: [u64; 2],
    /// The directory in DRAM. A cell is filled when its segment is first touched.
    cells: Cells,
    structure: Mutex<Structure>,
    counters: Counters,
    form: PhantomData<R>,
}

/// What an operation needs to know about the places of a hash in a segment.
struct Spot<'m, S: Seam> {
    /// The word of the cell that led here.
    word: u64,
    hash: u64,
    /// The size of the segment.
    size: &'static Size,
    /// The block that has the home line.
    block: &'m Block,
    whose: Whose,
    lock: VersionLock<'m, S>,
    hint: &'m SharedWord,
}

impl<S: Seam> Clone for Spot<'_, S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Seam> Copy for Spot<'_, S> {}

impl<'m, S: Seam> Spot<'m, S> {
    #[inline(always)]
    fn home(&self) -> &'m SlotLine {
        &self.block.lines[self.whose.home as usize]
    }

    /// Returns the offset of the segment.
    #[inline(always)]
    fn segment(&self) -> u64 {
        layout::offset_of_word(self.word)
    }
}

/// Returns the words of a line.
#[inline(always)]
fn line_words(line: &SlotLine) -> &[Word; 8] {
    words_of(line).first_chunk().expect("a line has eight words")
}

/// Returns the bank of stripes, and the stash lock, of the segment at this offset.
#[inline(always)]
fn bank(segment: u64) -> usize {
    (segment >> 10 ^ segment >> 15) as usize
}

impl<S: Seam, R: SlotRecord> Line<S, R> {
    /// Opens the table whose root is in `slot`. Takes constant time.
    pub fn open(core: &Arc<Core<S>>, slot: usize, config: Config) -> Result<Self> {
        let directory = Directory::open(core, &DIRECTORY, slot)?;
        let cells = Cells::new(core.memory.seam(), directory.depth);
        let structure = Structure { directory, settled: false, intent: None, lost: None };
        Ok(Line {
            core: Arc::clone(core),
            slot,
            largest: config.segment_bits,
            empty: empty_words::<S, R>(core)?,
            cells,
            structure: Mutex::new(structure),
            counters: Counters::default(),
            form: PhantomData,
        })
    }

    /// Makes the directory and the two segments of a new map, and flushes them. The caller's fence
    /// makes them durable before the root names them. Returns the scheme's words of the root.
    pub fn create(core: &Arc<Core<S>>, _: Config) -> Result<[u64; ROOT_SCHEME_WORDS]> {
        resize::create::<S, R>(core)
    }

    #[inline(always)]
    fn seam(&self) -> &S {
        self.core.memory.seam()
    }

    /// See [`Seam::seeded`].
    #[inline(always)]
    fn seeded(&self, bug: &'static SeededBug) -> bool {
        self.core.memory.seam().seeded(bug)
    }

    /// Returns the empty word of the segment that holds this hash.
    #[inline(always)]
    fn empty(&self, hash: u64) -> u64 {
        self.empty[(hash >> 63) as usize]
    }

    fn hash_of(&self, words: SlotWords) -> u64 {
        R::slot_hash(&self.core.hasher, words)
    }

    // ---- Addressing -------------------------------------------------------------

    /// Returns the places of a hash in the segment of a cell's word, which is not 0.
    #[inline(always)]
    fn spot(&self, word: u64, hash: u64) -> Spot<'_, S> {
        let size = &SIZES[layout::size_of_word(word) as usize];
        let number = size.home_of(hash) / BLOCK_LINES;
        let (block, lock, hint) = self.block(layout::offset_of_word(word), size, number);
        let whose = whose(size, hash);
        Spot { word, hash, size, block, whose, lock, hint }
    }

    /// Returns a block of a segment, its stripe and its hint word.
    #[inline(always)]
    fn block(
        &self,
        segment: u64,
        size: &Size,
        number: u32,
    ) -> (&Block, VersionLock<'_, S>, &SharedWord) {
        debug_assert!(number < size.blocks());
        let memory = &self.core.memory;
        let line = size.before + number * BLOCK_LINES;
        let offset = segment + u64::from(line) * LINE_BYTES;
        let stripe = memory.side().stripe(bank(segment), number as usize);
        // SAFETY: a segment's offset comes from a cell's word, or from a `Segment`. Both are made
        // from one whose whole extent was checked (by `check_segment`, or by an allocation of that
        // size), at a multiple of 1,024. The block is inside it, and its line a multiple of four.
        let (block, hint) = unsafe {
            (
                memory.at_unchecked(Offset::<Block>::new(offset)),
                memory.side().hint_unchecked(offset),
            )
        };
        (block, VersionLock::new(memory.seam(), stripe), hint)
    }

    /// Returns a stash line of a segment.
    #[inline(always)]
    fn stash(&self, segment: u64, size: &Size, number: u32) -> &SlotLine {
        debug_assert!(number < size.stash);
        let offset = segment + u64::from(1 + number) * LINE_BYTES;
        // SAFETY: as in `block`.
        unsafe { self.core.memory.at_unchecked(Offset::<SlotLine>::new(offset)) }
    }

    fn stash_lock(&self, segment: u64) -> VersionLock<'_, S> {
        VersionLock::new(self.seam(), self.core.memory.side().stash_lock(bank(segment)))
    }

    fn header(&self, segment: u64) -> &SegmentHeader {
        // SAFETY: as in `block`.
        unsafe { self.core.memory.at_unchecked(Offset::<SegmentHeader>::new(segment)) }
    }

    /// Yields the overflow nodes of a segment, at most as many as fit into the pool.
    fn nodes(&self, segment: u64) -> impl Iterator<Item = Result<&Node, Damage>> {
        let memory = &self.core.memory;
        let mut next = Some(&self.header(segment).chain);
        let mut left = memory.len() / layout::NODE_BYTES;
        std::iter::from_fn(move || {
            let node = Link::read(memory, next.take()?).and_then(|link| match link.offset {
                0 => Ok(None),
                _ if left == 0 => {
                    Err(Damage::new(segment + 24, "a chain of overflow nodes that ends", "none"))
                }
                offset => memory.at(Offset::<Node>::new(offset)).map(Some),
            });
            left = left.saturating_sub(1);
            if let Ok(Some(node)) = node {
                next = Some(&node.next);
            }
            node.transpose()
        })
    }

    /// Yields the lines of a segment and its nodes, each with its part.
    fn lines(&self, segment: &Segment) -> impl Iterator<Item = Result<(At, &SlotLine), Damage>> {
        let (offset, size) = (segment.offset, segment.size());
        let home = (0..size.home).map(move |line| {
            let (block, ..) = self.block(offset, size, line / BLOCK_LINES);
            Ok((At::Home(line), &block.lines[(line % BLOCK_LINES) as usize]))
        });
        let stash =
            (0..size.stash).map(move |line| Ok((At::Stash(line), self.stash(offset, size, line))));
        home.chain(stash).chain(self.node_lines(offset))
    }

    fn node_lines(&self, segment: u64) -> impl Iterator<Item = Result<(At, &SlotLine), Damage>> {
        self.nodes(segment).flat_map(|node| {
            let (lines, damage) = match node {
                Ok(node) => (&node.lines[..], None),
                Err(damage) => (&[][..], Some(Err(damage))),
            };
            lines.iter().map(|line| Ok((At::Node, line))).chain(damage)
        })
    }

    /// Returns the turn of a hash.
    #[inline(always)]
    fn turn(&self, number: u64) -> VersionLock<'_, S> {
        let turn = self.core.memory.side().turn(self.slot, number as usize);
        VersionLock::new(self.seam(), turn)
    }

    /// Returns the word that holds the intent.
    fn intent(&self) -> Result<&Word, Damage> {
        self.core.memory.at(Offset::new(root_offset(self.slot).raw() + 16))
    }

    /// Returns the word of the cell of a hash. The thread has passed the gate `inside` times.
    fn cell(&self, hash: u64, inside: usize) -> Result<u64> {
        match self.cells.find(self.seam(), hash) {
            0 if inside == 0 => {
                let _writing = self.core.enter()?;
                self.first_touch(hash)
            }
            0 => self.first_touch(hash),
            word => Ok(word),
        }
    }

    /// Reads the turns of a segment's range. Returns `None` while one is changing.
    fn turns(&self, range: HashRange) -> Option<Vec<(u64, u64)>> {
        (turn_of(range.low)..=turn_of(range.high))
            .map(|number| (number, turn::read(&self.turn(number))))
            .map(|found| (!turn::is_changing(found.1)).then_some(found))
            .collect()
    }

    /// Reads the segment of a hash without locks, until a read is valid. The thread has passed the
    /// gate `inside` times.
    fn read_segment<T>(
        &self,
        hash: u64,
        inside: usize,
        mut once: impl FnMut(&Segment) -> T,
    ) -> Result<T> {
        loop {
            let read = |segment: &Segment| Some(once(segment));
            if let Some(read) = self.try_read_segment(hash, inside, u32::MAX, read)? {
                return Ok(read);
            }
        }
    }

    /// Does the same, but gives up after this many turns of waiting. `once` returns `None` if its
    /// result is not valid for another reason.
    fn try_read_segment<T>(
        &self,
        hash: u64,
        inside: usize,
        patience: u32,
        mut once: impl FnMut(&Segment) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut turn = 0;
        loop {
            self.core.check()?;
            let word = self.cell(hash, inside)?;
            let segment = Segment::of(word, hash);
            if let Some(turns) = self.turns(segment.range())
                && self.cells.find(self.seam(), hash) & !layout::FROZEN == word & !layout::FROZEN
            {
                let read = once(&segment);
                std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
                let same = |&(number, found)| turn::is_same(&self.turn(number), found);
                if let Some(read) = read
                    && turns.iter().all(same)
                {
                    return Ok(Some(read));
                }
            }
            if turn >= patience {
                return Ok(None);
            }
            self.core.wait_for_lock(&mut turn, inside, || (segment.offset, word))?;
        }
    }
}

/// The number of a hash's turn.
#[inline(always)]
fn turn_of(hash: u64) -> u64 {
    hash >> 58
}

/// Where a line is in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// This home line.
    Home(u32),
    /// This stash line.
    Stash(u32),
    /// A line of a node.
    Node,
}

impl At {
    /// Returns where a record with this hash is, seen from its home line. `None` if it cannot be
    /// here.
    fn part(self, size: &Size, hash: u64) -> Option<Part> {
        let home = size.home_of(hash);
        match self {
            At::Home(line) if line == home => Some(Part::Home),
            At::Home(line) if line / BLOCK_LINES == home / BLOCK_LINES => {
                Some(Part::Away(line ^ home))
            }
            At::Home(_) => None,
            At::Stash(line) => {
                let position = size.position_of(hash, line)?;
                Some(Part::Away(hints::STASH + position / 2))
            }
            At::Node => Some(Part::Node),
        }
    }
}

/// Returns whose hints a record with this hash has.
#[inline(always)]
fn whose(size: &Size, hash: u64) -> Whose {
    Whose { home: size.home_of(hash) % BLOCK_LINES, tag: (hash >> 32) as u32 & 15 }
}

/// Adds a record to the hint word of its block.
fn with_hint(hint: u64, whose: Whose, part: Part) -> u64 {
    match part {
        Part::Home => hint,
        Part::Away(place) => hints::with(hint, whose, place),
        Part::Node => hints::with_node(hint, whose.home),
    }
}

impl<S: Seam, R: SlotRecord> Table<S, R> for Line<S, R> {
    const SCHEME: Scheme = Scheme::Line;

    #[inline(always)]
    fn core(&self) -> &Arc<Core<S>> {
        &self.core
    }

    fn growth(&self) -> Growth {
        self.counters.growth()
    }
}
