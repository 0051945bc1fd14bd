//! Dash-LH: linear hashing for persistent memory (Lu et al., VLDB 2020, section 5).
//!
//! The table consists of [segments](super::dash). That module documents everything inside one
//! segment. This one documents how the table grows.
//!
//! # Structure
//!
//! ```text
//!  root  [ directory's offset | turn: depth and next ]
//!          |
//!          v
//!  directory  [ array 0 | array 1 | ... | array 8 | ... ]
//!                  |         |                 \
//!                  v         v                  v
//!               64 segments  64 segments ...    128 segments ...        -> overflow nodes
//! ```
//!
//! Segments are split one after the other, in the order of their prefixes, full or not. The *turn* says
//! which is next: in the round of depth *d*, the 2^*d* segments of depth *d* are split, from the first to
//! the last. Then the next round begins.
//!
//! A full segment gets an overflow node (a chained stash bucket, as the paper calls it; here it has
//! seven buckets). The insert that has added one then splits four segments: those whose turns come
//! next.
//!
//! A segment never moves. Each split's new segment has its place in the arrays, which follows from its
//! prefix ([`Made`](layout::Made), [`Arrays`]). So the directory has an entry for each array only:
//! eight of 64 segments, eight of 128, and so on, up to the largest block of the pool (hybrid
//! expansion). With segments of 64 buckets in a pool of 1 TiB with pages of 64 KiB, that is about 2,100
//! entries, 17 kB.
//!
//! DRAM holds 8 bytes for each segment (`segments`): from its first touch on, its offset and depth.
//!
//! # Invariants
//!
//! 1. A segment exists if its place is in the first array, or if the depth of the segment that it was
//!    split off from says so. Neither the turn nor the content of its place in an array decides that.
//! 2. On media, no segment is deeper than the turn allows. It may be less deep: while its split is
//!    under way; after a crash; or if the split failed, for instance because there was no space for
//!    it. After a crash or a failure, the segment and its split are called *late*.
//! 3. When the split's commit is durable, so are the turn and the entry of the new segment's array. An
//!    entry that no turn has needed yet means nothing.
//! 4. In a closed pool whose free space is known, a segment is less deep than the turn allows only
//!    if the turn says that there are late segments. The place of such a segment's new half does
//!    not begin with that half's identity word. This makes damage that has undone a split
//!    detectable.
//!
//! The invariants of segments are in [`dash`](super::dash).
//!
//! # Commit points
//!
//! *Lines* are the cache lines that an operation flushes; *directory* stands for all lines of its
//! block.
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | map | the directory and the first array, completely; fence (shared with the root's fixed words); the root's commit word | both; no fence besides the root's | blocks that the sweep frees |
//! | turn | the first word of the new segment's place: 0, if a header was there; fence; the root's second word (the split flushes it before its own first fence) | 2, 1 | a segment whose split is late |
//! | a split that fails | the root's second word: late; fence | 1, 1 | a segment whose split is late |
//! | array | the directory's entry (fenced together with the new segment's place; see turn) | 1, 0 | an entry that means nothing, and a block that the sweep frees |
//! | doubling of the directory | the new directory, completely, with the new array's entry; fence; root (commit) and, later in the same line, the turn | directory, 1 (+ the turn's) | a block that the sweep frees; or the new directory |
//!
//! # Concurrency
//!
//! The lock `structure` serializes passing the turn on, adding arrays, doubling the directory,
//! first touches, and finding the place of a new segment. A thread that holds it takes no bucket
//! lock and allocates no block. No thread holds it while it copies records: while one thread splits
//! a segment, others pass the turn on and split the next ones.
//!
//! One thread at a time allocates the next array. Until it has done so, the turn stays where it is,
//! and other threads that find a segment full only add overflow nodes to it.
//!
//! After its turn has passed, a segment serves both halves until its split has ended. Lookups begin
//! at the latest turn whose split has ended, and find such a segment by its shorter prefix. An
//! insert that finds it full splits it, or waits until the thread that holds its locks is done.
//! Other operations wait for a split as in Dash-EH. A change waits for the locks of the segment's
//! buckets. A lookup waits only while the new segment can already be reached and the old one is not
//! cleaned up yet. A first touch waits for other first touches.
//!
//! # After a crash
//!
//! Opening reads the turn and the directory's entries. The pool has flushed the root. A segment is
//! recovered by its first touch. The first touch makes the segment's content durable, and the
//! depths of the segments that it was split off from, because these say that it exists.
//!
//! A split that a crash has cut short before its commit has no effect: the segment is less deep
//! than the turn allows, and is split when it is full, or when its next turn comes. Its first touch
//! erases a header at the place of the new half, and the turn says from then on that there are late
//! segments. Passing the turn on keeps that mark. (Passing it on begins with a first touch, and
//! that touch may be the one that sets the mark.)
//!
//! The turn does not pass a segment that is damaged or deeper than the turn allows. Then the table
//! grows by overflow nodes only. So if damage has put an older turn into the file, that turn
//! overwrites nothing that a later turn has made. The exception is an older turn whose segment is
//! late: nothing distinguishes it from the right one.
//!
//! # Deviations from the paper
//!
//! - In the paper, the last bits of the hash number the segments. Here the first bits do, as in
//!   Dash-EH, so that the hashes of a segment are one range, which iterations and recovery need. So
//!   turns and places follow the order of prefixes, not that of reversed prefixes.
//! - The paper advances `Next` after it has split a segment, so only one thread at a time can
//!   split. Here `next` is advanced first, and each thread splits the segment that it has taken.
//! - In the paper, an overflow node makes the table grow by one segment. Here, by four. With one
//!   split for each node, inserts ran at 0.76 times the speed of Dash-EH's, and lookups that find
//!   nothing at 0.35 times, because many records were in nodes (docs/lab/benchmarks.md).
//! - If a split has emptied all overflow nodes of the old segment, they are freed. Otherwise each
//!   round would leave a longer chain at each segment.
//! - A segment with more than eight overflow nodes makes the table grow only when their number has
//!   doubled, because splits hardly separate its keys.
//! - Segments do not merge when records are removed, which would be possible in the reverse order of
//!   the turns. A segment's depth only grows: that is why records that a split has left behind need not
//!   be erased, and why readers need not check whether a segment still exists.

pub mod bugs;
pub mod layout;
pub mod points;
mod recover;
mod resize;
mod segments;

use super::dash::{Addressing, Dash, Directory, Route, Segment};
use crate::error::Result;
pub use crate::index::config::DashLh as Config;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::SlotRecord;
use crate::index::{BlockKind, Scheme, Visitor};
use crate::pmem::{Offset, Seam, Word};
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use layout::{Arrays, Turn};
use segments::{Segments, Unready, Way};
use std::sync::{Arc, Mutex};

/// The state behind the lock `structure`. Passing the turn on changes it, and so do first touches.
struct Structure {
    /// The directory in PM: for each array, its block. Entries that no turn has needed yet mean nothing.
    directory: Directory,
    turn: Turn,
    /// The arrays that the turn has needed.
    arrays: Vec<Array>,
    /// Whether a thread is allocating the next array.
    growing: bool,
}

/// The block of an array.
struct Array {
    offset: u64,
    /// Whether the block was checked and has the array's size.
    checked: bool,
}

/// Where the segments of a table are.
pub struct LinearSegments {
    initial: u32,
    arrays: Arrays,
    /// The turn in PM.
    turn: Offset<Word>,
    /// The turn when the table was opened. The splits of earlier turns were made before that, or
    /// are late.
    opened: Turn,
    segments: Segments,
    structure: Mutex<Structure>,
}

/// A hash table. See the module's documentation.
pub type DashLh<S, R> = Dash<S, R, LinearSegments>;

impl<S: Seam, R: SlotRecord> DashLh<S, R> {
    /// Makes the directory and the first array of a new map, and flushes them. The caller's fence
    /// makes them durable before the root names them. Returns the scheme's words of the root.
    pub fn create(core: &Arc<Core<S>>, config: Config) -> Result<[u64; ROOT_SCHEME_WORDS]> {
        resize::create::<S, R>(core, config)
    }
}

impl Addressing for LinearSegments {
    const SCHEME: Scheme = Scheme::DashLh;
    const SEGMENTS_ARE_BLOCKS: bool = false;
    const ENTRY_BYTES: u64 = 8;

    type Way<'t> = Way<'t>;

    #[inline(always)]
    fn ready_route<S: Seam>(&self, seam: &S, hash: u64) -> Option<Route<'_, Self>> {
        self.segments.find(seam, hash).map(|(segment, way)| Route { segment, way })
    }

    #[inline(always)]
    fn is_current<S: Seam>(&self, seam: &S, way: Way<'_>) -> bool {
        self.segments.is_current(seam, way)
    }

    fn first_touch<S: Seam, R: SlotRecord>(
        table: &DashLh<S, R>,
        hash: u64,
    ) -> Result<Route<'_, Self>> {
        table.first_touch(hash)
    }

    fn find_unready<S: Seam, R: SlotRecord>(
        table: &DashLh<S, R>,
        hash: u64,
    ) -> Result<(Segment, u64)> {
        let segment = table.find_unready(hash)?;
        Ok((segment, segment.high()))
    }

    fn place_new<S: Seam, R: SlotRecord>(
        table: &DashLh<S, R>,
        old: Segment,
    ) -> Result<UnlinkedBlock<'_, S>> {
        table.place_new(old)
    }

    fn make_room<S: Seam, R: SlotRecord>(
        table: &DashLh<S, R>,
        route: &Route<'_, Self>,
        hash: u64,
    ) -> Result<()> {
        table.make_room(route, hash)
    }

    fn publish_split<S: Seam, R: SlotRecord>(
        table: &DashLh<S, R>,
        old: Segment,
        new: Segment,
        mark: impl FnOnce(),
    ) -> Result<()> {
        table.publish_split(old, new, mark);
        Ok(())
    }

    fn trace<S: Seam, R: SlotRecord>(table: &DashLh<S, R>, visit: &mut Visitor<'_>) -> Result<()> {
        let mut structure = table.seam().lock(&table.addressing.structure);
        structure.directory.trace(visit)?;
        let mut traced = Ok(());
        for number in 0..structure.arrays.len() {
            let bytes = table.addressing.arrays.len(number) * table.size.bytes();
            match table.array(&mut structure, number) {
                Ok(offset) => visit(BlockKind::Segment, offset, bytes)?,
                // Go on, so that the other arrays are reported nevertheless.
                Err(damage) => traced = Err(damage.into()),
            }
        }
        traced
    }

    fn entries<S: Seam>(&self, seam: &S) -> u64 {
        self.segments.count(seam)
    }

    fn end_of_entry<S: Seam>(&self, seam: &S, hash: u64) -> u64 {
        match self.segments.follow(seam, hash) {
            Ok((segment, _)) => segment.high(),
            Err(Unready::Unread(segment)) => segment.high(),
            // The segments that were split off from this one cannot be reached either.
            Err(Unready::Unknown(made)) => made.low(self.initial) | (u64::MAX >> made.depth),
        }
    }
}
