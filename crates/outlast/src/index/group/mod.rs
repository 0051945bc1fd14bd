//! Group hashing (Zhang et al., ICPP 2018), with the concurrency and the growth that the paper
//! lacks.
//!
//! This is the simplest scheme of the library, and the one to read first. (`seed!` and `seeded` in the
//! code are bugs for the tests to find. Users get a build without them. Skip them.)
//!
//! # Structure
//!
//! ```text
//!  root (named root, word 1)
//!   |
//!   v
//!  segment ----> segment ----> segment ----> ...                  in the order of their hashes
//!   [ header | first level: one group | second level: one group, less a chunk ] ---> overflow nodes
//!
//!  hash   [ segment .... | fingerprint (20..34) | second level (10..20) | home (0..10) ]
//! ```
//!
//! A *cell* holds one record. A record's *home* is the cell of the first level that its hash names.
//! If the home is taken, the record goes to a cell of the second level, which is shared by all
//! cells of the group (section 3.2 of the paper). The search for a free cell there begins at the
//! chunk of eight cells that the hash names.
//!
//! A first-level group and the second-level group that it shares are one block, a *segment*. Each
//! segment holds the hashes of one range, those that begin with its *prefix*, whose number of bits is
//! the segment's *depth*. The segments form a
//! list in the order of their ranges. A full segment is split in two by the next bit of the hash.
//!
//! In DRAM there are
//!
//! - a directory, from the first bits of a hash to its segment;
//! - for each segment, a version lock;
//! - for each cell, a *mark* of 16 bits (`cells`): the fingerprint of its record, and how many of
//!   the records that have this cell as their home are not in the first level. A lookup that finds
//!   a count of 0 does not search the second level.
//!
//! # Invariants
//!
//! 1. A cell holds a record if and only if its first word is not the *empty word* and the hash of
//!    the record is in the segment's range. For byte strings the empty word is 0. For inline
//!    records, where any key can occur, it is a key whose hash is in the half of the hash space to
//!    which the segment does not belong. That is why there are at least two segments.
//! 2. A record is in its home, in the second level, or in an overflow node, and only once.
//! 3. A segment's first hash never changes, and its range only shrinks. So a record that a split
//!    leaves behind never becomes a record of that segment again.
//! 4. The ranges of the list follow each other without a gap, from 0 to the greatest hash.
//! 5. What readers can see is durable.
//!
//! # Commit points
//!
//! One store of 8 bytes commits each change. *Lines* are the cache lines that an operation flushes;
//! *record*, *segment* and the like stand for all lines of such a block. An operation fences after
//! the last store that it flushes. This last fence is counted, but not always listed. (On the page
//! cache, flushes and fences do nothing. With a journal, a flush notes the line.)
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | insert, inline | cell: empty, value, key (commit) | 1, 1 | an empty cell, or the record |
//! | insert, bytes | record block; fence; cell: empty, hash, link (commit) | record + 1, 2 | a record block that no cell links to, which the sweep frees |
//! | update, inline | value (commit) | 1, 1 | the old value or the new |
//! | update, bytes | record block; fence; link (commit) | record + 1, 2 | the old record or the new; the sweep frees the other block |
//! | remove | first word: empty (commit) | 1, 1 | the record or none |
//! | split | the new segment, completely; fence; the old segment's link: depth + 1 and the new segment (commit) | segment + 1, 2 | before the commit, a block that the sweep frees; after it, nothing to do |
//! | overflow node | the node, completely; fence; link (commit) | node + 1, 2 | a block that the sweep frees |
//! | map | the segments, completely; fence (shared with the root's fixed words); the root's commit word | segments; no fence besides the root's | blocks that the sweep frees |
//!
//! Why one store commits a split: the new segment already links to the old one's successor, and
//! holds copies of the records of the upper half. The store of the old segment's link puts the new
//! segment into the list, and ends the old range where the new one begins. From then on, by
//! invariant 1, the copies are records, and the originals are not.
//!
//! Why one fence is enough for a cell: both words lie in one line, and stores to a line become
//! durable in the order in which they were made. A split leaves old words in free cells. If an old link
//! were combined with the hash of the new record, the cell would count as a record. So the first word
//! is emptied first. (Inline records would not need this; the code does not distinguish.)
//!
//! # Concurrency
//!
//! A change locks only the segment of its key. It then checks that the directory still leads there.
//!
//! A lookup takes no lock and stores nothing. It reads the segment's version, the marks and the
//! cell, and then checks that the version is unchanged and that the directory still leads to the
//! segment. If not, it reads again. After 1,024 failed reads it locks the segment for the next one.
//!
//! Readers must not see some changes half done or before they are durable: an update, a removal,
//! the end of a split. Such a change marks the segment as changing, and readers wait.
//!
//! | operation | linearization point |
//! |---|---|
//! | insert | the store of the mark by which lookups find the record, after the fence |
//! | update, removal | the store that unlocks the segment |
//! | lookup that finds the record | the read of the mark that shows it |
//! | lookup that finds nothing | its first read of a mark. A removal changes the version |
//!
//! An insert does not change the version: a lookup that misses the new record takes effect before
//! the insert.
//!
//! An insert fills a cell only if the cell's mark says that it is free. A removal marks its cell as
//! free and changes the segment's version. A lookup that has read the mark before the removal finds
//! another version at its end, and reads again.
//!
//! An insert into the second level first counts the record in its home's mark, and then marks its
//! cell. So a single store makes the record visible, to lookups and iterations alike.
//!
//! *Split.* The splitting thread holds the segment's lock. Lookups go on while it copies. After the
//! commit is durable, it marks the segment as changing and points the directory to both halves.
//! From then on, other threads can change the new segment. The splitting thread clears the copied
//! records' marks in the old segment, and unlocks it.
//!
//! Lock order: the segment's lock, then the directory's (`segments`). No thread allocates from the
//! pool while it holds a lock.
//!
//! # After a crash
//!
//! Opening follows the list and reads all cells, on as many threads as the pool's options allow
//! (section 3.5 of the paper). It builds the marks and the directory. It repairs nothing, because a
//! crash leaves nothing half done. After the death of a process its stores may still be in the
//! processor's caches, including some that it had not flushed. Results will depend on them, so
//! opening flushes all cells and headers that it finds. The blocks that cells link to were durable
//! before the links were stored.
//!
//! A segment whose cells are damaged is not served: operations on its range return the damage. If
//! the list itself cannot be followed any further, the same holds for all hashes from there on.
//!
//! # Deviations from the paper
//!
//! - The paper's insert (Algorithm 1) takes the first free cell without looking for the key, so a
//!   key that is inserted twice is stored twice.
//! - Its query and deletion (Algorithm 2, line 9; Algorithm 3, lines 3 and 15) also compare keys of
//!   cells whose bit is 0, so they find records that were removed or are not yet committed. Here
//!   only cells that are marked as taken are compared.
//! - Its recovery (Algorithm 4) goes over `table_size` cells of each level, but `table_size` counts
//!   the cells of both levels together (3.3), so it reads beyond the end of both arrays.
//! - It persists a cell, its bit and a record count, with three flushes and fences. Here the store
//!   of the cell's first word is the commit; the marks, which replace the bits, are in DRAM, and
//!   there is no persistent count.
//! - The paper's table is for one thread, and is full once one group is full. Here a full segment
//!   is split.
//! - If a record is not in its home, the paper searches the second level from its beginning. Here
//!   the search begins at the chunk that the hash names, and the fingerprints and counts in the
//!   marks avoid most of the remaining reads of persistent memory.
//! - The second level has one chunk fewer than the first: the segment's header takes its place, so
//!   that a segment's size is a power of two.
//! - Overflow nodes hold keys whose hashes no split can separate, and records for which there is no
//!   space to split.
//! - Segments do not merge when records are removed. Their cells are used again.
//! - The paper also has cells of 32 bytes, for keys of 16 bytes. Here a cell has 16 bytes, and a
//!   longer key is in a block of its own, behind a pointer.

pub mod bugs;
mod cells;
pub mod layout;
mod ops;
pub mod points;
mod recover;
mod resize;
mod scan;
mod verify;

use super::Growth;
use crate::error::{Damage, Error, Result};
use crate::index::Scheme;
pub use crate::index::config::Group as Config;
use crate::index::kit::directory::{DramDirectory, Segment, Way};
use crate::index::kit::lock::{Guarded, HeldLock, VersionLock};
use crate::index::kit::lookup::Optimistic;
use crate::index::kit::media::empty_words;
use crate::index::kit::table::Table;
use crate::index::kit::walk::Counters;
use crate::index::record::{SlotRecord, SlotWords};
use crate::pmem::{Offset, Seam, SeededBug, Word};
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::ROOT_SCHEME_WORDS;
use cells::{Cell, Cells, State};
use layout::{CHUNK, CHUNK_BYTES, Link, NodeHeader, SegmentHeader};
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// How an operation reached its segment.
#[derive(Clone, Copy)]
pub(crate) struct Route<'d> {
    segment: Segment,
    way: Way<'d>,
}

/// A range of hashes that is not served.
struct Missing {
    /// The first hash.
    low: u64,
    /// The last hash.
    high: u64,
    /// Why they are not served.
    damage: Damage,
    /// The segment that holds these hashes, if its header is sound.
    segment: Option<Segment>,
}

/// A hash table. See the module's documentation.
pub struct Group<S: Seam, R: SlotRecord> {
    core: Arc<Core<S>>,
    /// Cells of a group.
    group: u32,
    /// The empty words, indexed by the most significant bit of the hash.
    empty: [u64; 2],
    directory: DramDirectory,
    /// The number of segments. A thread that changes the directory holds this lock.
    segments: Mutex<u64>,
    missing: Vec<Missing>,
    /// The first segment. It never changes.
    first: u64,
    counters: Counters,
    form: PhantomData<R>,
}

impl<S: Seam, R: SlotRecord> Group<S, R> {
    /// Opens the table whose root is in `slot`. Reads all of it.
    pub fn open(core: &Arc<Core<S>>, slot: usize, config: Config) -> Result<Self> {
        let place = root_offset(slot).raw() + 8;
        let word = core.memory.load(core.memory.at(Offset::<Word>::new(place))?);
        let Some(Link { offset: first @ 1.., depth: 0 }) = Link::unpack(0, word) else {
            let damage = Damage::new(place, "the first segment's offset", format!("{word:#x}"));
            return Err(Error::DamagedRoot { slot, damage });
        };
        let mut table = Group {
            core: Arc::clone(core),
            group: config.group_size,
            empty: empty_words::<S, R>(core)?,
            directory: DramDirectory::new(core, slot, 1),
            segments: Mutex::default(),
            missing: Vec::new(),
            first,
            counters: Counters::default(),
            form: PhantomData,
        };
        table.recover(slot);
        Ok(table)
    }

    /// Makes the segments of a new map, and flushes them. The caller's fence makes them
    /// durable before the root names them. Returns the scheme's words of the root.
    pub fn create(core: &Arc<Core<S>>, config: Config) -> Result<[u64; ROOT_SCHEME_WORDS]> {
        resize::create::<S, R>(core, config)
    }

    #[inline(always)]
    fn seam(&self) -> &S {
        self.core.memory.seam()
    }

    /// See [`Seam::seeded`].
    #[inline(always)]
    fn seeded(&self, bug: &'static SeededBug) -> bool {
        self.seam().seeded(bug)
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

    /// Returns the route to a hash's segment.
    #[inline(always)]
    fn route(&self, hash: u64) -> Result<Route<'_>> {
        self.ready_route(hash).ok_or_else(|| self.missing_at(hash).damage.clone().into())
    }

    #[cold]
    fn missing_at(&self, hash: u64) -> &Missing {
        let missing =
            self.missing.iter().find(|missing| (missing.low..=missing.high).contains(&hash));
        missing.expect("a range without a segment is missing")
    }

    #[inline(always)]
    fn is_current(&self, route: &Route<'_>) -> bool {
        DramDirectory::is_current(self.seam(), route.way)
    }

    /// Returns the chunk of cells with this number, of a segment or an overflow node. The first
    /// chunk after the header has number 0. `first` is the number of the chunk's first cell, if it
    /// is in the first level.
    #[inline(always)]
    fn cells(&self, block: u64, number: u32, first: Option<u32>) -> Cells<'_> {
        let offset = block + u64::from(1 + number) * CHUNK_BYTES;
        // SAFETY: offsets of segments and nodes were checked to be aligned, and to lie inside the
        // memory with their whole extent (`check_segment`, `nodes`), or are from an allocation of
        // that size. `number` is one of the block's chunks.
        unsafe {
            let chunk = self.core.memory.at_unchecked(Offset::new(offset));
            Cells::new(chunk, self.core.memory.shadow_unchecked(offset), first)
        }
    }

    /// Returns the cell that is the home of a hash.
    #[inline(always)]
    fn home(&self, segment: Segment, hash: u64) -> Cell<'_> {
        let number = hash as u32 & (self.group - 1);
        let chunk = number / CHUNK as u32;
        let cells = self.cells(segment.offset, chunk, Some(chunk * CHUNK as u32));
        cells.cell(number as usize % CHUNK)
    }

    /// Yields the chunks of the first level.
    fn first_level(&self, segment: Segment) -> impl Iterator<Item = Cells<'_>> {
        let chunks = self.group / CHUNK as u32;
        (0..chunks).map(move |i| self.cells(segment.offset, i, Some(i * CHUNK as u32)))
    }

    /// Yields the chunks of the second level, beginning with the one that the hash names, and then
    /// those of the overflow nodes.
    #[inline(always)]
    fn second_level(
        &self,
        segment: Segment,
        hash: u64,
    ) -> impl Iterator<Item = Result<Cells<'_>, Damage>> {
        let chunks = layout::second_chunks(self.group);
        let named = ((hash >> 10 & 0x3ff) as u32 * chunks) >> 10;
        let mut nodes = self.nodes(segment);
        // The block, and how many of its chunks precede those of the second level.
        let (mut block, mut before) = (segment.offset, self.group / CHUNK as u32);
        // The next chunk of the level, and how many are left.
        let (mut next, mut left) = (named, chunks);
        std::iter::from_fn(move || {
            if left == 0 {
                match nodes.next()? {
                    Ok(node) => (block, before, next, left) = (node, 0, 0, chunks),
                    Err(damage) => return Some(Err(damage)),
                }
            }
            let chunk = next;
            next = if chunk + 1 == chunks { 0 } else { chunk + 1 };
            left -= 1;
            Some(Ok(self.cells(block, before + chunk, None)))
        })
    }

    /// Marks all cells of an overflow node as free.
    fn clear_node(&self, node: u64) {
        let chunks = 0..layout::second_chunks(self.group);
        chunks.for_each(|chunk| self.cells(node, chunk, None).clear(self.seam()));
    }

    /// Yields all cells of a segment, with those of its overflow nodes.
    fn all_cells(&self, segment: Segment) -> impl Iterator<Item = Result<Cells<'_>, Damage>> {
        self.first_level(segment).map(Ok).chain(self.second_level(segment, 0))
    }

    fn header(&self, segment: Segment) -> &SegmentHeader {
        // SAFETY: as in `cells`.
        unsafe { self.core.memory.at_unchecked(Offset::new(segment.offset)) }
    }

    #[inline(always)]
    fn state(&self, segment: Segment) -> &State {
        // SAFETY: as in `cells`.
        unsafe { self.core.memory.shadow_unchecked(segment.offset) }
    }

    /// Yields the offsets of a segment's overflow nodes, each checked to lie inside the memory.
    fn nodes(&self, segment: Segment) -> impl Iterator<Item = Result<u64, Damage>> {
        let memory = &self.core.memory;
        // DRAM says whether there are overflow nodes. The header's line is read only if there are.
        let any = self.state(segment).has_nodes.load(self.seam(), Ordering::Relaxed) != 0;
        let mut link = any.then_some(&self.header(segment).chain);
        // Yields no more nodes than fit into the memory, because in a damaged file something else
        // may have overwritten the chain.
        let mut left = memory.len() / layout::node_bytes(self.group);
        let mut next = move || {
            let Some(word) = link.take() else { return Ok(None) };
            let node = Link::read(memory, word)?.offset;
            if node == 0 {
                return Ok(None);
            }
            memory.words(node, layout::node_bytes(self.group))?;
            let endless = || Damage::new(node, "a chain that ends", "more nodes than there can be");
            left = left.checked_sub(1).ok_or_else(endless)?;
            link = Some(&memory.at(Offset::<NodeHeader>::new(node))?.next);
            Ok(Some(node))
        };
        std::iter::from_fn(move || next().transpose())
    }

    // ---- Locking ----------------------------------------------------------------

    #[inline(always)]
    fn lock_of(&self, segment: Segment) -> VersionLock<'_, S> {
        VersionLock::new(self.seam(), &self.state(segment).lock)
    }

    /// Locks a segment. The thread has passed the gate.
    #[inline(always)]
    fn lock(&self, segment: Segment) -> Result<Guarded<HeldLock<'_, S>>> {
        self.lock_of(segment).hold(&self.core, segment.offset).map(Guarded::new)
    }
}

impl<S: Seam, R: SlotRecord> Table<S, R> for Group<S, R> {
    const SCHEME: Scheme = Scheme::Group;

    #[inline(always)]
    fn core(&self) -> &Arc<Core<S>> {
        &self.core
    }

    fn growth(&self) -> Growth {
        self.counters.growth()
    }
}
