//! Line hashing: a hash index whose unit is the cache line.
//!
//! # Structure
//!
//! ```text
//!  root       [ directory | intent ]
//!  directory  [ cell 0 | cell 1 | ... ]      in PM; a copy in DRAM
//!                  \     |
//!  segment    [ header | stash lines | home lines ] -> overflow nodes
//!  line       [ 4 slots of 16 bytes ]
//!  block      [ 4 home lines ]               in DRAM: a stripe and a hint word
//!  hash       [ cell: the top bits | tag (32..36) | home line: the low half | stash (0..16) ]
//! ```
//!
//! The hash of a record names a *home line* of its segment. The record is there, in another line of
//! the *block*, in the *stash* (a window of at most 8 lines, which the hash names), or in a node. A
//! record outside of its home line is *away*.
//!
//! Segments have 1 to 32 KiB. A segment that is full grows by a *rebuild*, which copies it into new ones:
//! into one of twice the size up to 32 KiB, then into two, each with half of its hashes. After many
//! removals, the pool's worker lets segments shrink the same way back, but not to a depth far below the
//! directory's.
//!
//! DRAM state that lookups use is in the pool's [region](crate::pmem::Region): the copy of the directory, a
//! version lock for each block (a *stripe*), which several blocks share, locks for the stashes, and a hint
//! word (`hints`) for each block.
//!
//! # Invariants
//!
//! 1. A slot holds a record if and only if its first word is not the *empty word*: for byte strings 0,
//!    for inline records a key whose hash is in the half of the hash space to which the segment does
//!    not belong. That is why the depth of a segment is at least 1.
//! 2. Each record is in its home line, in another line of its block, in its window of the stash, or in
//!    a node of its segment. A key has one record.
//! 3. The hint word of a block says where its records are that are away; see `hints`.
//! 4. All changes of a key, and of its block's hint word, happen under the block's stripe while it is
//!    marked as changing. What is stored is durable when the mark goes.
//! 5. The directory's depth is at least that of any segment.
//! 6. The intent leads to the segments that the last rebuild has made. The cells of all earlier
//!    rebuilds are durable.
//!
//! # Commit points
//!
//! *Lines* are the cache lines that an operation flushes; *record*, *segment* and the like stand for
//! all lines of such a block. An operation fences after the last store that it flushes. This last
//! fence is counted, but not always listed.
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | map | the directory and two segments, completely; fence (shared with the root's fixed words); the root's commit word | all, 0 | blocks that the sweep frees |
//! | insert, inline | slot: value, key (commit) | 1, 1 | an empty slot, or the record |
//! | insert, bytes | record block; fence; slot: hash, link (commit) | record + 1, 2 | a record block that no slot links to |
//! | update, inline | value (commit) | 1, 1 | the old value or the new |
//! | update, bytes | record block; fence; link (commit) | record + 1, 2 | the old record or the new; the sweep frees the other block |
//! | remove | first word: empty (commit) | 1, 1 | the record or none |
//! | up to 16 changes of one call | their stores and flushes as above; one fence (bytes: one more before the links) | as above, 1 (bytes: 2) | any of them |
//! | overflow node | the node, completely; fence; the segment's link (commit) | node + 1, 2 | a block that the sweep frees, or an empty node |
//! | rebuild | new segments and nodes, completely; fence; the intent (commit); fence; the cells | segments + 1 + cells, 3 | before the commit, blocks that the sweep frees; after it, cells that the next process completes (*settles*) |
//! | doubling | the new directory, completely; fence; root (commit) | directory + 1, 2 | a block that the sweep frees |
//!
//! Why no fewer: a change must fence once before it returns. A block and the word that links to it are
//! different lines. The cells of a rebuild may become durable in any order, so they come after the
//! intent, which is one word.
//!
//! # Concurrency
//!
//! Linearization points: a change takes effect with the store that unlocks its stripe, or, if it does
//! not apply, with its search. A lookup takes effect with its load of the stripe's version.
//!
//! A lookup reads the cell, the stripe's version, and then slots and hints. It is valid if cell and
//! version are the same afterwards; it looks at the cell first. A change locks the stripe and looks at
//! the cell again.
//!
//! A rebuild freezes the cells, locks and unlocks each stripe once (*grace*), and copies. So each change
//! either ends before the copy, or sees that the cell is frozen and waits. Readers go on in the old
//! segments, which the rebuild frees at once. If a reader was led to a block that has another use
//! meanwhile, the cell has changed. If a later rebuild has led the cell back to that block, it has given
//! all stripes of its new segments new versions before.
//!
//! Lock order: one stripe; then the stash lock. `structure` is never taken with one of them held, and
//! none is taken under it. No thread allocates from the pool while it holds a lock, and a frozen cell
//! is waited for with nothing held. Changes of several keys (`many.rs`) only try-lock.
//!
//! # After a crash
//!
//! The first touch of any segment *settles*: it stores the cells of the segments that the intent leads
//! to, and makes them durable. Then, and at the first touch of each other segment, it checks and flushes
//! the segment, and makes its hint words. There is nothing to repair inside a segment: no
//! operation moves a record in place.
//!
//! docs/lab/line.md has the arguments, and the attacks that were tried.

pub mod bugs;
mod change;
mod draft;
pub mod layout;
mod lookup;
mod many;
pub mod points;
mod rebuild;
mod recover;
mod resize;
mod shrink;
#[cfg(test)]
mod tests;
mod verify;
mod walk;

use super::hints::{self, Whose};
use super::version::version;
use crate::error::{Damage, Result};
pub use crate::index::config::Line as Config;
use crate::index::kit::arrays::Directory;
use crate::index::kit::cells::Cells;
use crate::index::kit::lock::VersionLock;
use crate::index::kit::lookup::read_valid;
use crate::index::kit::media::{Link, empty_words};
use crate::index::kit::table::Table;
use crate::index::kit::walk::{Counters, HashRange};
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::{Growth, Scheme};
use crate::pmem::{Memory, Offset, Seam, SeededBug, SharedWord, Word, words_of};
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::ROOT_SCHEME_WORDS;
use layout::{
    BLOCK_LINES, Block, DIRECTORY, LINE_BYTES, MAX_BLOCKS, Node, SIZES, Segment, SegmentHeader,
    Size, SlotLine,
};
use lookup::Part;
use shrink::{Removals, Shrinking};
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
    shrinking: Shrinking,
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
    removals: Removals,
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
    memory: &'m Memory<S>,
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
        self.line(0)
    }

    /// Returns the line of the block at this place, seen from the home line; see `hints`.
    #[inline(always)]
    fn line(&self, place: u32) -> &'m SlotLine {
        &self.block.lines[((self.whose.home ^ place) % BLOCK_LINES) as usize]
    }

    /// Returns the offset of the segment.
    #[inline(always)]
    fn segment(&self) -> u64 {
        layout::offset_of_word(self.word)
    }

    /// Returns the hint word of the block.
    #[inline(always)]
    fn hint(&self) -> &'m SharedWord {
        let offset = self.memory.offset_of(self.block).raw();
        // SAFETY: the block is inside the memory, and aligned to 256.
        unsafe { self.memory.side().hint_unchecked(offset) }
    }
}

/// Returns the words of a line.
#[inline(always)]
fn line_words(line: &SlotLine) -> &[Word; 8] {
    words_of(line).first_chunk().expect("a line has eight words")
}

impl<S: Seam, R: SlotRecord> Line<S, R> {
    /// Opens the table whose root is in `slot`. Takes constant time.
    pub fn open(core: &Arc<Core<S>>, slot: usize, config: Config) -> Result<Self> {
        let directory = Directory::open(core, &DIRECTORY, slot)?;
        let cells = Cells::new(core, slot, directory.depth);
        let removals = Removals::new(DIRECTORY.entries(directory.depth), 2 << config.segment_bits);
        let structure = Structure {
            directory,
            settled: false,
            intent: None,
            lost: None,
            shrinking: Shrinking::default(),
        };
        Ok(Line {
            core: Arc::clone(core),
            slot,
            largest: config.segment_bits,
            empty: empty_words::<S, R>(core)?,
            cells,
            structure: Mutex::new(structure),
            counters: Counters::default(),
            removals,
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
        let line = size.home_of(hash);
        let offset = layout::offset_of_word(word);
        let (block, lock) = self.block(offset, size, line / BLOCK_LINES);
        Spot { word, hash, size, block, whose: whose(size, hash), lock, memory: &self.core.memory }
    }

    /// Returns a block of a segment, and its stripe.
    #[inline(always)]
    fn block(&self, segment: u64, size: &Size, number: u32) -> (&Block, VersionLock<'_, S>) {
        debug_assert!(number < size.blocks());
        let memory = &self.core.memory;
        let line = size.before + number * BLOCK_LINES;
        let offset = segment + u64::from(line) * LINE_BYTES;
        let stripe = memory.side().stripe(offset);
        // SAFETY: a segment's offset comes from a cell's word, or from a `Segment`. Both are made
        // from one whose whole extent was checked (by `check_segment`, or by an allocation of that
        // size), at a multiple of 1,024. The block is inside it, and its line a multiple of four.
        let block = unsafe { memory.at_unchecked(Offset::<Block>::new(offset)) };
        (block, VersionLock::new(memory.seam(), stripe))
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
        let number = (segment >> 10 ^ segment >> 15) as usize;
        VersionLock::new(self.seam(), self.core.memory.side().stash_lock(number))
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

    /// Yields the lines of a segment and its nodes, each with where it is: first the stash, whose records
    /// then get entries in hint words before those in blocks.
    fn lines(&self, segment: &Segment) -> impl Iterator<Item = Result<(At, &SlotLine), Damage>> {
        let (offset, size) = (segment.offset, segment.size());
        let stash =
            (0..size.stash).map(move |line| Ok((At::Stash(line), self.stash(offset, size, line))));
        let home = (0..size.home).map(move |line| {
            let (block, _) = self.block(offset, size, line / BLOCK_LINES);
            Ok((At::Home(line), &block.lines[(line % BLOCK_LINES) as usize]))
        });
        stash.chain(home).chain(self.node_lines(offset))
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

    /// Reads the segment of a hash until a read is valid. The thread has passed the gate `inside` times.
    fn read_segment<T>(
        &self,
        hash: u64,
        inside: usize,
        mut once: impl FnMut(&Segment) -> T,
    ) -> Result<T> {
        read_valid(self, hash, inside, |&route| {
            let lock = self.spot(route.1, hash).lock;
            let before = version(&lock)?;
            let read = once(&Segment::of(route.1, hash));
            self.is_valid(route, &lock, before).then_some(read)
        })
    }
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

/// The hint words of a segment.
struct Hints([u64; MAX_BLOCKS]);

impl Hints {
    fn new() -> Hints {
        Hints([0; MAX_BLOCKS])
    }

    /// Adds a record with this hash.
    fn add(&mut self, size: &Size, hash: u64, part: Part) {
        let hint = &mut self.0[(size.home_of(hash) / BLOCK_LINES) as usize];
        *hint = with_hint(*hint, whose(size, hash), part);
    }
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

    fn has_work(&self) -> bool {
        self.wants_shrinking()
    }

    fn step(&self) -> Result<bool> {
        self.shrink_step()
    }
}
