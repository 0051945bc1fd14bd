//! Segments: the part that Dash-EH and Dash-LH share (Lu et al., VLDB 2020, section 4).
//!
//! A scheme supplies [`Addressing`]: how a hash leads to a segment, and what else changes when a
//! segment is split. Everything inside a segment is here.
//!
//! # Structure
//!
//! ```text
//!  segment   [ header | bucket 0 | bucket 1 | ... | stash 0 | stash 1 ] -> overflow nodes
//!  bucket    [ 16 slots of 16 bytes ]       metadata, in DRAM: [ lock | bits | fingerprints ]
//!  hash      [ segment .... | line (14..16) | bucket (8..) | fingerprint (0..8) ]
//! ```
//!
//! A segment has a *depth*: the number of leading bits that the hashes of its records share. Those
//! bits are its *prefix*.
//!
//! The hash of a record names a bucket *b*, its *home*. The record is in *b*, in *b + 1* (as a
//! *guest*), in a stash bucket, or in an overflow node. An insert tries these places in order:
//!
//! 1. the line of *b* that the hash names, if it has a free slot;
//! 2. the emptier of *b* and *b + 1* (balanced insert);
//! 3. displacement: a record moves to its other bucket and makes room. Where that bucket is full
//!    too, up to three records move in a row;
//! 4. the stash, and then the overflow nodes. The home bucket keeps track of its records there with
//!    four overflow fingerprints and a count.
//!
//! A full segment is split in two by the next bit of the hash. The split also compacts both halves:
//! displaced records move back to the lines that their hashes name, if these have room now.
//!
//! So in a table that is 0.6 full, nine records in ten are in the line that their hash names. Every
//! operation begins by prefetching that line, so the two lines that it needs, one of metadata and
//! one of slots, arrive together.
//!
//! # Invariants
//!
//! 1. A slot holds a record if and only if its first word is not the *empty word* and the hash of
//!    the record begins with the segment's prefix. For byte strings the empty word is 0. For inline
//!    records, where any key can occur, it is a key whose hash is in the half of the hash space to
//!    which the segment does not belong. That is why the depth is at least 1.
//! 2. Slots are the truth. Locks, the bits of slots in use and fingerprints are *bucket metadata*
//!    (`metadata`): DRAM state that is rebuilt from the slots before the segment is used.
//! 3. A segment's first hash never changes, and its depth only grows. So a record that a split
//!    leaves behind in the old segment's slots never counts as one of its records again.
//! 4. Every change of a key, and every move of its record, happens under the lock of its home
//!    bucket. Readers validate that bucket's version only.
//! 5. What readers can see is durable. An insert into a bucket becomes visible after its fence.
//!    Every other change is made, and made durable, while the home bucket is marked as changing.
//!
//! # Commit points
//!
//! *Lines* are the cache lines that an operation flushes; *record*, *segment* and the like stand
//! for all lines of such a block. An operation fences after the last store that it flushes. This
//! last fence is counted, but not always listed.
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | insert, inline | slot: empty, value, key (commit) | 1, 1 | an empty slot, or the record |
//! | insert, bytes | record block; fence; slot: empty, hash, link (commit) | record + 1, 2 | a record block that no slot links to, which the sweep frees |
//! | displacement | a copy of the displaced record in its other bucket; fence; its old slot: empty, then the new record's second word, then its first word (commit) | 2, 2 (bytes: + record, 1) | the displaced record twice, of which first touch removes one; or once, and an empty slot |
//! | displacement of *k* records in a row | from the far end: the first copy; fence; for each further record, its copy in the slot that the previous one has left: empty, second word, first word; fence; the same for the new record | *k* + 1, *k* + 1 (bytes: + record, 1) | as above for one of the *k* records; others may have moved |
//! | insert into the stash or a node | as insert, while the record's home is marked as changing | as insert | as insert |
//! | update, inline | value (commit) | 1, 1 | the old value or the new |
//! | update, bytes | record block; fence; link (commit) | record + 1, 2 | the old record or the new; the sweep frees the other block |
//! | remove | first word: empty (commit) | 1, 1 | the record or none |
//! | up to 16 changes of one call | their stores and flushes as above; one fence (bytes: one more before the links) | as above, 1 (bytes: 2) | any of them |
//! | split | the new segment, completely; fence; the old segment's state: depth + 1, and the new segment as partner (commit); fence; the scheme's own stores; the state again, without a partner (not flushed) | segment + 1, 2 (+ the scheme's) | before the commit, nothing, or a block that the sweep frees; after it, a split that the scheme completes |
//! | compaction, after a split | the copies; fence; the original slots: empty; the link to the overflow nodes: 0, if these are empty now; fence | at most 2 per record, + 1; 2 | records twice, of which first touch removes one copy each; or nodes that the sweep frees |
//! | overflow node | the node, completely; fence; link (commit) | node + 1, 2 | a block that the sweep frees |
//!
//! Why no fewer:
//!
//! - A change must fence once before it returns.
//! - A record block and the slot that links to it are different lines. If the link became durable
//!   first, the slot would show whatever the block held before. Hence the second fence.
//! - A move changes two lines, and the copy must be durable before the original is removed.
//! - A lookup stores nothing.
//!
//! *Displacement of several records.* The slot that one record leaves takes the copy of the next.
//! Each copy is durable before its original is overwritten, and only one line at a time is not
//! durable. So after a crash, the record whose move was cut short is in its old slot, in its copy,
//! or in both. Each other record is in exactly one of its two buckets. So first touch has at
//! most one record to remove for each displacement that was under way.
//!
//! # Concurrency
//!
//! Linearization points:
//!
//! | operation | linearization point |
//! |---|---|
//! | insert into a bucket | the store of the bucket's bits, after the fence |
//! | insert into the stash or a node; update; removal | the store that unlocks the home bucket |
//! | lookup that finds the record | the read of the bits that show it |
//! | lookup that finds nothing | its first read of bits. A change that takes a record out of a bucket changes the version |
//!
//! A lookup or an iteration reads again if a change has made its read invalid. After 1,024 such reads it
//! locks the home bucket for the next one.
//!
//! The lock of the home bucket serializes two inserts of one key. Lock order: buckets ascending
//! (home and next, then stash, then nodes), then the scheme's lock. No thread allocates from the
//! pool while it holds a lock.
//!
//! *Displacement.* A displacement only try-locks, even when several records move in a row, so no
//! lock cycle can form. Two rules keep it safe:
//!
//! - The home of each record that moves is locked and marked as changing before the copy is made.
//!   So a lookup of that record waits and retries.
//! - The bucket that has the copy stays locked until the original is overwritten, durably. So no
//!   thread can remove the copy while a crash would bring back the original.
//!
//! The record that leaves a slot and the one that gets it have different homes: one is at home in
//! the bucket, the other is a guest. So a reader that still looks into the slot, because it has
//! read older metadata, is looking for a key of the old record's home. That home is marked as
//! changing, so the reader retries. Hence no reader sees the slot's next record before that record
//! is durable.
//!
//! *Changes of several keys* (`many.rs`) keep the locks of all their buckets until the fence that they
//! share. They only try-lock, too, and never wait while they hold a lock.
//!
//! *Overflow nodes.* A node is linked while all bucket locks of its segment are held. So no thread
//! inserts into it before its link is durable. If a split has emptied all nodes of the old segment,
//! it retires them. All homes are marked as changing then, so a lookup or an iteration that is
//! still in a node retries. Statistics and the trace hold an epoch guard (a *visit*, see `reclaim`)
//! while they read nodes, and nodes that are retired meanwhile are freed only after the guard is
//! dropped.
//!
//! *Splits.* The splitting thread holds all bucket locks of its segment, builds the new segment
//! while readers continue, and publishes it. A thread that came by the old route and does not find
//! its key checks the route again: a reader after it has validated the version, a writer after it
//! has locked the home bucket. A thread that finds the key need not check, because the split marks
//! all homes as changing before it publishes, and removes the moved records from the old segment's
//! metadata before it unlocks. So a record that is found under one version, or under the lock,
//! belongs there.
//!
//! # After a crash
//!
//! A segment is made ready before any operation can use it:
//!
//! 1. The scheme completes a split that the segment takes part in.
//! 2. Everything that recovery finds in the segment is flushed.
//! 3. The locks are reset and the metadata are rebuilt from the slots.
//! 4. Second copies are removed, durably: one line each, one fence for all.
//!
//! If these steps are cut short by another crash, the next process starts over. Every step can be
//! repeated.
//!
//! *Why step 2 is needed.* After process death, the stores of the process are still in the
//! processor's caches, including stores that it had not flushed. Recovery sees them and operations
//! return results that depend on them, so a power loss must not undo them.
//!
//! *Why a removed key cannot come back from the other half of a split.* Before the commit, the new
//! segment is not reachable. After the commit, by invariant 1, no slot of the old segment holds a
//! record of the upper half, whatever words it contains.
//!
//! # Deviations from the paper
//!
//! - The paper's buckets hold 14 records after 32 bytes of metadata. Here the metadata are in DRAM,
//!   at an eighth of the size of the slots, and 16 records fit. A lookup reads the metadata from
//!   the caches, and a lookup that finds nothing usually waits for no persistent memory.
//! - The paper's inserts always take the emptier of the two buckets. Then half of all records are
//!   guests, and only the metadata tell which of the two lines holds a record, so a lookup waits
//!   for memory twice. Here the hash names a line that is tried first. This lowers the peak load
//!   factor by 0.01.
//! - A change locks the key's home bucket, and the next one only if it changes that bucket's
//!   metadata. The paper locks both.
//! - The paper persists the allocation bitmap after the record: two flushes, two fences. Here the
//!   slot itself commits the record and the bitmap is volatile: one flush, one fence. A split can
//!   also drop the moved records without a store.
//! - In the paper, readers can see an insert, update or delete before it is durable. Thread 2
//!   begins to read. Thread 1 locks and stores the bitmap. Thread 2 finds the key, sees the version
//!   unchanged (it changes only when thread 1 unlocks), and returns the key. A power loss then
//!   removes it. Invariant 5 forbids this.
//! - The paper's one-byte recovery version wraps after 256 crashes. Here DRAM state says that a
//!   segment was made ready since opening, and that state does not outlive the process.
//! - The paper has one lock bit and one version for each bucket, so each writer of a bucket
//!   disturbs all its readers. Here a writer disturbs the readers of a home only if it changes
//!   records of that home.
//! - When the four overflow fingerprints of the home bucket are taken, the paper uses those of the
//!   next bucket. Here the home bucket only counts the further records.
//! - The paper moves at most one record to make room. Here up to three are moved in a row. That
//!   raises the peak load factor with two stash buckets from 0.88 to 0.90; the paper has 0.80.
//! - The paper's number of stash buckets is free. Here it is 2 or 4.
//! - The paper chains all segments of Dash-EH by side links. Here the directory alone names them, and
//!   a segment names its partner only during a split.

pub mod bugs;
mod change;
mod evict;
pub mod layout;
mod lock;
mod lookup;
mod many;
mod metadata;
pub mod points;
mod repair;
mod split;
#[cfg(test)]
mod tests;
mod verify;
mod walk;

use crate::error::{Damage, Result};
pub use crate::index::config::SegmentSize;
pub(crate) use crate::index::kit::arrays::{Directory, Doubled};
pub(crate) use crate::index::kit::directory::Segment;
use crate::index::kit::media::empty_words;
use crate::index::kit::table::Table;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::kit::walk::Counters;
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::{EvictingIndex, Growth, Scheme, Visitor};
use crate::pmem::{Offset, Seam, SeededBug};
use crate::pool::core::Core;
use layout::{BUCKET_BYTES, Bucket, LINE_SLOTS, SLOTS, Slot};
use metadata::BucketRef;
pub(crate) use split::write_empty;
use std::marker::PhantomData;
use std::sync::Arc;

impl SegmentSize {
    fn buckets(self) -> u32 {
        1 << self.bucket_bits
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(1 + self.buckets() + self.stash) * BUCKET_BYTES
    }

    /// The size as identity words contain it.
    fn packed(self) -> u16 {
        (self.bucket_bits | self.stash << 8) as u16
    }
}

/// How an operation reached its segment. After reading or locking, the operation must check that
/// the route is still current.
pub struct Route<'t, A: Addressing> {
    pub(crate) segment: Segment,
    pub(crate) way: A::Way<'t>,
}

impl<A: Addressing> Clone for Route<'_, A> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Addressing> Copy for Route<'_, A> {}

/// How a hash leads to a segment: what Dash-EH and Dash-LH each add to the code of segments that
/// they share.
pub trait Addressing: Sized + Send + Sync + 'static {
    /// The scheme that finds its segments this way.
    const SCHEME: Scheme;

    /// Whether each segment is a block of its own. Otherwise [`trace`](Self::trace) reports the
    /// blocks that segments are parts of.
    const SEGMENTS_ARE_BLOCKS: bool = true;

    /// Bytes of DRAM for each entry; see [`entries`](Self::entries).
    const ENTRY_BYTES: u64;

    /// What a route keeps so that [`is_current`](Self::is_current) can check it later.
    type Way<'t>: Copy;

    /// Returns the route to a hash's segment. `None` if the segment is not ready yet.
    fn ready_route<S: Seam>(&self, seam: &S, hash: u64) -> Option<Route<'_, Self>>;

    /// Returns whether a route still leads to the same segment.
    fn is_current<S: Seam>(&self, seam: &S, way: Self::Way<'_>) -> bool;

    /// Makes a hash's segment ready (`Dash::make_ready`), unless another thread already has. The
    /// caller has passed the gate.
    fn first_touch<S: Seam, R: SlotRecord>(
        table: &Dash<S, R, Self>,
        hash: u64,
    ) -> Result<Route<'_, Self>>;

    /// Finds the segment of a hash whose first touch has failed, to salvage its records. The header
    /// may be damaged. Also returns the last hash of the range, from this hash on, that leads to
    /// that segment.
    fn find_unready<S: Seam, R: SlotRecord>(
        table: &Dash<S, R, Self>,
        hash: u64,
    ) -> Result<(Segment, u64)>;

    /// Returns the place of the new segment that a split of `old` makes: a block of its own, or a part
    /// of one.
    fn place_new<S: Seam, R: SlotRecord>(
        table: &Dash<S, R, Self>,
        old: Segment,
    ) -> Result<UnlinkedBlock<'_, S>>;

    /// Makes room in a full segment. The caller retries afterwards.
    fn make_room<S: Seam, R: SlotRecord>(
        table: &Dash<S, R, Self>,
        route: &Route<'_, Self>,
        hash: u64,
    ) -> Result<()>;

    /// Makes both halves of a split reachable, the new one durably. Before other threads can reach
    /// the new half, calls `mark`, which makes readers of the old one wait.
    fn publish_split<S: Seam, R: SlotRecord>(
        table: &Dash<S, R, Self>,
        old: Segment,
        new: Segment,
        mark: impl FnOnce(),
    ) -> Result<()>;

    /// Reports the blocks of the directory, and those that segments are parts of, to a trace.
    fn trace<S: Seam, R: SlotRecord>(
        table: &Dash<S, R, Self>,
        visit: &mut Visitor<'_>,
    ) -> Result<()>;

    /// Returns the number of entries in DRAM through which hashes lead to segments.
    fn entries<S: Seam>(&self, seam: &S) -> u64;

    /// Returns the last hash that the directory looks up in the same entry as this one.
    fn end_of_entry<S: Seam>(&self, seam: &S, hash: u64) -> u64;
}

/// A hash table of segments. See the module's documentation.
pub struct Dash<S: Seam, R: SlotRecord, A> {
    pub(crate) core: Arc<Core<S>>,
    pub(crate) size: SegmentSize,
    /// The number of buckets of a segment, minus one.
    bucket_mask: u32,
    /// The empty words, indexed by the most significant bit of a segment's hashes.
    empty: [u64; 2],
    pub(crate) addressing: A,
    pub(crate) counters: Counters,
    form: PhantomData<R>,
}

impl<S: Seam, R: SlotRecord, A: Addressing> Dash<S, R, A> {
    /// Returns the table whose segments `addressing` finds.
    pub(crate) fn new(core: &Arc<Core<S>>, size: SegmentSize, addressing: A) -> Result<Self> {
        Ok(Dash {
            core: Arc::clone(core),
            size,
            bucket_mask: size.buckets() - 1,
            empty: empty_words::<S, R>(core)?,
            addressing,
            counters: Counters::default(),
            form: PhantomData,
        })
    }

    /// Returns the empty word of the segment that holds this hash.
    #[inline(always)]
    fn empty(&self, hash: u64) -> u64 {
        self.empty[(hash >> 63) as usize]
    }

    #[inline(always)]
    pub(crate) fn seam(&self) -> &S {
        self.core.memory.seam()
    }

    /// See [`Seam::seeded`].
    #[inline(always)]
    pub(crate) fn seeded(&self, bug: &'static SeededBug) -> bool {
        self.core.memory.seam().seeded(bug)
    }

    // ---- Addressing -------------------------------------------------------------

    #[inline(always)]
    fn home(&self, hash: u64) -> u32 {
        (hash >> 8) as u32 & self.bucket_mask
    }

    /// Returns the first slot of the line that this hash names.
    #[inline(always)]
    fn first_slot(hash: u64) -> usize {
        (hash >> 14) as usize % (SLOTS / LINE_SLOTS) * LINE_SLOTS
    }

    #[inline(always)]
    fn next(&self, bucket: u32) -> u32 {
        (bucket + 1) & self.bucket_mask
    }

    #[inline(always)]
    fn previous(&self, bucket: u32) -> u32 {
        bucket.wrapping_sub(1) & self.bucket_mask
    }

    fn hash_of(&self, words: SlotWords) -> u64 {
        R::slot_hash(&self.core.hasher, words)
    }

    /// Returns a bucket of a segment. Stash buckets follow the others.
    #[inline(always)]
    fn bucket(&self, segment: Segment, index: u32) -> BucketRef<'_> {
        debug_assert!(index < self.size.buckets() + self.size.stash);
        let offset = segment.offset + u64::from(1 + index) * BUCKET_BYTES;
        let memory = &self.core.memory;
        // SAFETY: a `Segment` is made from an offset whose whole extent was checked (by
        // `check_segment`, or by an allocation of that size), and `index` is inside it.
        unsafe {
            let bucket = memory.at_unchecked(Offset::<Bucket>::new(offset));
            BucketRef::new(bucket, memory.shadow_unchecked(offset))
        }
    }

    #[inline]
    fn stash_bucket(&self, segment: Segment, stash: u32) -> BucketRef<'_> {
        self.bucket(segment, self.size.buckets() + stash)
    }

    /// Returns the bucket at any offset. Fails if the offset is misaligned or the bucket is not
    /// inside the memory.
    fn bucket_at(&self, offset: u64) -> Result<BucketRef<'_>, Damage> {
        let memory = &self.core.memory;
        let bucket = memory.at(Offset::<Bucket>::new(offset))?;
        // SAFETY: the bucket lies inside the memory, at a multiple of its own size.
        Ok(BucketRef::new(bucket, unsafe { memory.shadow_unchecked(offset) }))
    }

    fn index_of(&self, segment: Segment, slots: &[Slot; SLOTS]) -> u32 {
        let offset = self.core.memory.offset_of(slots).raw();
        ((offset - segment.offset) / BUCKET_BYTES) as u32 - 1
    }

    /// Returns the route to a hash's segment. Passes the gate if the segment has not been touched
    /// yet.
    #[inline(always)]
    fn route(&self, hash: u64) -> Result<Route<'_, A>> {
        match self.ready_route(hash) {
            Some(route) => Ok(route),
            None => self.first_route(hash),
        }
    }

    #[cold]
    fn first_route(&self, hash: u64) -> Result<Route<'_, A>> {
        let _writing = self.core.enter()?;
        A::first_touch(self, hash)
    }

    /// Like [`route`](Self::route), for a thread that has passed the gate.
    #[inline(always)]
    pub(crate) fn route_inside(&self, hash: u64) -> Result<Route<'_, A>> {
        match self.ready_route(hash) {
            Some(route) => Ok(route),
            None => A::first_touch(self, hash),
        }
    }

    #[inline(always)]
    pub(crate) fn ready_route(&self, hash: u64) -> Option<Route<'_, A>> {
        self.addressing.ready_route(self.seam(), hash)
    }

    /// Returns whether the route still leads to the same segment.
    #[inline(always)]
    pub(crate) fn is_current(&self, route: &Route<'_, A>) -> bool {
        self.addressing.is_current(self.seam(), route.way)
    }
}

impl<S: Seam, R: SlotRecord, A: Addressing> Table<S, R> for Dash<S, R, A> {
    const SCHEME: Scheme = A::SCHEME;

    #[inline(always)]
    fn core(&self) -> &Arc<Core<S>> {
        &self.core
    }

    fn growth(&self) -> Growth {
        self.counters.growth()
    }

    fn evicting(&self) -> Option<&dyn EvictingIndex<R>> {
        Some(self)
    }
}
