//! Dash-EH: extendible hashing for persistent memory (Lu et al., VLDB 2020, section 4).
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
//!
//!  segment   [ header | bucket 0 | bucket 1 | ... | stash 0 | stash 1 ] -> overflow nodes
//!  bucket    [ 16 slots of 16 bytes ]       metadata, in DRAM: [ lock | bits | fingerprints ]
//!  hash      [ directory .... | line (14..16) | bucket (8..) | fingerprint (0..8) ]
//! ```
//!
//! The hash of a record names a bucket *b*, its *home*. The record is in *b*, in *b + 1* (as a
//! *guest*), in a stash bucket, or in an overflow node. An insert tries these places in order:
//!
//! 1. the line of *b* that the hash names, if it has a free slot;
//! 2. the emptier of *b* and *b + 1* (balanced insert);
//! 3. displacement: a record moves to its other bucket and makes room. Where that bucket is full
//!    too, up to three records move in a row;
//! 4. the stash, and then the overflow nodes. The home bucket keeps track of its records there, by
//!    four overflow fingerprints and a count.
//!
//! A full segment is split in two by the next bit of the hash. If need be, the directory is doubled
//! first. The split also compacts both halves: it moves records that were displaced to the line
//! that their hash names, where there is room now.
//!
//! So in a table that is 0.6 full, nine records in ten are in the line that their hash names. Every
//! operation prefetches that line at once, so the two lines that it needs, one of metadata and one
//! of slots, arrive together.
//!
//! Each process has its own copy of the directory in DRAM, which operations use. An entry is filled
//! when its segment is first touched. The directory in PM is written by splits and read by first
//! touches.
//!
//! # Invariants
//!
//! 1. A slot holds a record if and only if its first word is not the *empty word* and the hash of
//!    the record begins with the segment's prefix. For byte strings the empty word is 0. For inline
//!    records, where any key can occur, it is a key that hashes to the other half of the hash
//!    space. That is why the depth is at least 1.
//! 2. Slots are the truth. Locks, the bits of slots in use and fingerprints are *bucket metadata*
//!    (`notes`): DRAM state that is rebuilt from the slots at first touch.
//! 3. A segment's first hash never changes, and its depth only grows. So a record that a split
//!    leaves behind in the old segment's slots never becomes a record of it again.
//! 4. All directory entries in a segment's range point to it, except those of the upper half while
//!    a split of it is being completed.
//! 5. Every change of a key, and every move of its record, happens under the lock of its home
//!    bucket. Readers validate that bucket's version only.
//! 6. What readers can see is durable. An insert into a bucket becomes visible after its fence.
//!    Everything else happens while the home bucket is marked as changing.
//!
//! # Commit points
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | insert, inline | slot: value, then key (commit) | 1, 1 | an empty slot, or the record |
//! | insert, bytes | record block; fence; slot: hash, then link (commit) | record + 1, 2 | a block that no slot links to, which the trace frees |
//! | displacement | copy into the other bucket; fence; slot: empty, second word, first word | 2, 2 (+ record, 1) | a record twice, of which first touch removes one; or the record once, and an empty slot |
//! | displacement of *k* records in a row | from the far end: copy; fence; for each other record, slot: empty, its second word, its first word; fence; the same for the new record | *k* + 1, *k* + 1 (+ record, 1) | as above for one of the *k* records; others may have moved |
//! | insert into the stash or a node | as insert, its home marked as changing | as insert | as insert |
//! | update, inline | value (commit) | 1, 1 | the old value or the new |
//! | update, bytes | record block; fence; link (commit) | record + 1, 2 | the old record or the new; the trace frees the other block |
//! | remove | first word: empty (commit) | 1, 1 | the record or none |
//! | map | directory and segments whole; fence, the root's; root's commit word | both, 0 (+ the root's) | blocks that the trace frees |
//! | split | new segment whole; fence; old segment's state: depth + 1 and the partner (commit); fence; directory entries; fence; state: no partner, unflushed | segment + 1 + entries, 3 | before the commit, a block that the trace frees; after it, stale directory entries, which the first touch of either half sets |
//! | compaction, after a split | copies; fence; the slots they were made of: empty; fence | 2 a record at most, 2 | a record twice, of which first touch removes one |
//! | doubling | new directory whole; fence; root (commit) | directory + 1, 2 | a block that the trace frees |
//! | overflow node | node whole; fence; link (commit) | node + 1, 2 | a block that the trace frees |
//!
//! Why no fewer:
//!
//! - An operation must fence once before it returns.
//! - A record block and the slot that links to it are different lines. If the link became durable
//!   first, the slot would show whatever the block held before. Hence the second fence.
//! - A move changes two lines, and the copy must be durable first.
//! - A lookup stores nothing.
//!
//! *Displacement in a row.* The slot that one record leaves takes the copy of the next. Each copy
//! is durable before its original is overwritten, and only one line at a time is not durable. So
//! after a crash, the record whose move was cut short is in its old slot, in its copy, or in both.
//! Each other record is in exactly one of its two buckets. First touch has at most one record to
//! remove, as after a single move.
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
//! The lock of the home bucket serializes two inserts of one key. Lock order: buckets ascending
//! (home and next, then stash, then nodes), then `structure`. No thread allocates while it holds a
//! lock.
//!
//! *Displacement.* It only try-locks, also when several records move in a row, so no lock cycle can
//! form. Two rules keep it safe:
//!
//! - The home of each record that moves is locked and marked as changing before the copy is made.
//!   So a lookup of that record waits and retries.
//! - The bucket that has the copy stays locked until the original is overwritten, durably. So no
//!   thread can remove the copy while a crash would bring back the original.
//!
//! A slot passes from a record that is at home there to a guest, or the reverse. A reader that
//! still looks into the slot because of older metadata is therefore reading for the home that is
//! marked, and retries. So no reader sees the slot's next record before it is durable.
//!
//! *Overflow nodes.* A node is linked while all bucket locks of its segment are held. So no thread
//! inserts into it before its link is durable.
//!
//! *Splits.* The splitting thread holds all bucket locks of its segment, builds the new segment
//! while readers continue, and publishes it in the DRAM directory. A thread that used the old entry
//! and finds nothing checks the entry again: a reader after it has read the version, a writer after
//! it has locked. A thread that finds the key need not check. The split marks all homes as changing
//! before it publishes, and takes the records that leave out of the old segment's metadata before
//! it unlocks. So a record that is found under one version, or under the lock, belongs there.
//!
//! # After a crash
//!
//! Opening reads the root and checks the directory's header. A segment is recovered by its first
//! touch, before any operation can use it. First touches are serialized by `structure`. Each takes
//! these steps:
//!
//! 1. It completes a split: the entries of the upper half that still point to the old segment are
//!    set to the new one, durably.
//! 2. It flushes everything that it found.
//! 3. It resets the locks and rebuilds the metadata from the slots.
//! 4. It removes second copies, durably: one line each, one fence for all.
//! 5. It fills the entries of the DRAM directory. From here on, operations use the segment.
//!
//! A crash in steps 1 to 4 leaves work for the next first touch, which starts over. Every step can
//! be repeated.
//!
//! *Why step 2 is needed.* After process death, the stores of the process are still in the
//! processor's caches, including stores that it had not flushed. Recovery sees them and operations
//! return results that depend on them, so a power loss must not undo them.
//!
//! *Why a removed key cannot come back from the other half of a split.* Before the commit, the new
//! segment is not reachable. From the commit on, by invariant 1, the old segment's slots do not
//! hold records of the upper half, whatever their words are.
//!
//! # Deviations from the paper
//!
//! - The paper's buckets hold 14 records after 32 bytes of metadata. Here the metadata are in DRAM,
//!   at an eighth of the size of the slots, and 16 records fit. A lookup reads the metadata from
//!   the caches, and a lookup that finds nothing reads no persistent memory at all.
//! - The paper's inserts always take the emptier of the two buckets. Then half of all records are
//!   guests, and only the metadata tell which of the two lines holds a record, so a lookup waits
//!   for memory twice. Here the hash names a line that is tried first. This costs a hundredth of
//!   the load factor at its peak.
//! - A change locks the key's home bucket, and the next one only if it changes that bucket's
//!   metadata. The paper locks both.
//! - The paper persists the allocation bitmap after the record: two flushes, two fences. Here the
//!   slot itself commits the record and the bitmap is volatile: one flush, one fence. A split can
//!   also drop the moved records without a store.
//! - In the paper, readers can see an insert, update or delete before it is durable. Thread 2
//!   begins to read. Thread 1 locks and stores the bitmap. Thread 2 finds the key, sees the version
//!   unchanged (it changes only when thread 1 unlocks), and returns the key. A power loss then
//!   removes it. Invariant 6 forbids this.
//! - The paper logs directory updates in a transaction. Here one word in the old segment commits
//!   the split, and the entries are redone from it.
//! - The paper's one-byte recovery version wraps after 256 crashes. Here the entry in the DRAM
//!   directory says that a segment was recovered since opening, and no crash survives it.
//! - The paper has one lock bit and one version for each bucket, so each writer of a bucket
//!   disturbs all its readers. Here a writer disturbs the readers of a home only if it changes
//!   records of that home.
//! - When the four overflow fingerprints of the home bucket are taken, the paper puts more into the
//!   next bucket. Here the count takes over.
//! - Overflow nodes take the keys that no split separates. From depth 6 on, the directory is not
//!   doubled while fewer than one entry in 32 is a segment of its own.

pub mod bugs;
mod change;
pub mod layout;
mod lock;
mod notes;
mod ops;
pub mod points;
mod recover;
mod resize;
mod scan;
mod verify;

use crate::error::{Damage, Error, Result};
use crate::index::kit::media::{check_block, check_identity};
use crate::index::kit::table::Table;
use crate::index::kit::walk::Counters;
use crate::index::record::Record;
use crate::index::{Growth, Scheme, SchemeConfig, Settings};
use crate::pmem::{Offset, Seam, SeededBug, Shared, SharedWord, Word};
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::ROOT_SCHEME_WORDS;
use layout::{
    BUCKET_BYTES, Bucket, DIRECTORY_HEADER, DirectoryHeader, Kind, LINE_SLOTS, MAX_DEPTH, SLOTS,
    Slot,
};
use notes::BucketRef;
use std::marker::PhantomData;
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
        let bucket_bits = settings.take("bucket_bits", [1, 6], 1..=6, 1)?;
        Ok(Config { bucket_bits, stash: settings.take("stash_buckets", [2, 2], 2..=4, 2)? })
    }

    fn from_words([bucket_bits, stash, rest]: [u64; 3]) -> Option<Config> {
        let known = (1..=6).contains(&bucket_bits) && [2, 4].contains(&stash) && rest == 0;
        known.then_some(Config { bucket_bits: bucket_bits as u32, stash: stash as u32 })
    }

    fn to_words(self) -> [u64; 3] {
        [u64::from(self.bucket_bits), u64::from(self.stash), 0]
    }
}

impl Config {
    fn buckets(self) -> u32 {
        1 << self.bucket_bits
    }

    fn segment_bytes(self) -> u64 {
        u64::from(1 + self.buckets() + self.stash) * BUCKET_BYTES
    }

    /// The configuration as identity words contain it.
    fn packed(self) -> u16 {
        (self.bucket_bits | self.stash << 8) as u16
    }
}

/// A segment whose header and buckets were checked to lie inside the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    offset: u64,
    depth: u32,
    /// The first hash of its range.
    low: u64,
}

impl Segment {
    /// Returns the last hash of the segment's range.
    fn high(self) -> u64 {
        self.low | (u64::MAX >> self.depth)
    }

    fn holds(self, hash: u64) -> bool {
        (hash ^ self.low) >> (64 - self.depth) == 0
    }
}

/// The directory in DRAM, for one depth. An entry is the segment's offset and, from bit 48, its
/// local depth, or 0 if the segment has not been touched yet.
struct Directory {
    depth: u32,
    entries: Box<[SharedWord]>,
}

impl Directory {
    fn new(depth: u32) -> Directory {
        // The system zeroes the pages when they are first touched, so opening a pool takes the same
        // time however large the directory is.
        let entries = Box::<[SharedWord]>::new_zeroed_slice(1 << depth);
        // SAFETY: zero is a valid SharedWord.
        Directory { depth, entries: unsafe { entries.assume_init() } }
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        (hash >> (64 - self.depth)) as usize
    }

    /// Returns the entry at an index that [`index`](Directory::index) returned.
    #[inline(always)]
    fn entry(&self, index: usize) -> &SharedWord {
        debug_assert!(index < self.entries.len());
        // SAFETY: there are 2^depth entries, and `index` returns a number of `depth` bits.
        unsafe { self.entries.get_unchecked(index) }
    }
}

/// How an operation reached its segment. It must be checked again after reading or locking.
#[derive(Clone, Copy)]
struct Route<'d> {
    directory: &'d Directory,
    index: usize,
    entry: u64,
    segment: Segment,
}

/// The state that splits and first touches change, one thread at a time.
struct Structure {
    /// The directory in PM.
    directory: u64,
    depth: u32,
    /// The number of segments that the directory points to, once it has been counted.
    segments: Option<u64>,
}

/// A hash table. See the module's documentation.
pub struct DashEh<S: Seam, R: Record> {
    core: Arc<Core<S>>,
    root: Offset<Word>,
    shape: Config,
    /// The number of buckets of a segment, minus one.
    bucket_mask: u32,
    /// The empty word, by the first bit of the segment's hashes.
    empty: [u64; 2],
    /// DRAM directories by depth. Shallower ones stay, for readers that still use them. Together
    /// they are no larger than the current one.
    directories: Box<[Shared<OnceLock<Directory>>]>,
    /// The current one of `directories`.
    directory: Shared<AtomicPtr<Directory>>,
    structure: Mutex<Structure>,
    counters: Counters,
    form: PhantomData<R>,
}

impl<S: Seam, R: Record> DashEh<S, R> {
    /// Opens the table whose root is in `slot`. Takes constant time.
    pub fn open(core: &Arc<Core<S>>, slot: usize, shape: Config) -> Result<Self> {
        let scheme_words = root_offset(slot).raw() + 8;
        let root = Offset::<Word>::new(scheme_words);
        let word = core.memory.load(core.memory.at(root)?);
        let damaged_root = |expected: &str, found: String| Error::DamagedRoot {
            slot,
            damage: Damage::new(scheme_words, expected, found),
        };
        let (directory, depth) = layout::unpack_root(word)
            .ok_or_else(|| damaged_root("a directory's offset and depth", format!("{word:#x}")))?;
        let table = DashEh {
            core: Arc::clone(core),
            root,
            shape,
            bucket_mask: shape.buckets() - 1,
            empty: Self::empty_words(core)?,
            directories: (0..=MAX_DEPTH).map(|_| Shared::once()).collect(),
            directory: Shared::default(),
            structure: Mutex::new(Structure { directory, depth, segments: None }),
            counters: Counters::default(),
            form: PhantomData,
        };
        table.check_directory(directory, depth)?;
        table.set_directory(Directory::new(depth));
        Ok(table)
    }

    /// Makes a directory the current one. There was none of its depth.
    fn set_directory(&self, directory: Directory) {
        let depth = directory.depth as usize;
        let kept = self.directories[depth].get_or_init(self.seam(), || directory);
        // Release: pairs with the Acquire in `directory`.
        self.directory.store(self.seam(), std::ptr::from_ref(kept).cast_mut(), Ordering::Release);
    }

    fn check_directory(&self, offset: u64, depth: u32) -> Result<(), Damage> {
        let header = self.core.memory.at(Offset::<DirectoryHeader>::new(offset))?;
        check_block(&self.core, offset, layout::directory_bytes(depth))?;
        let expected = layout::identity(Kind::Directory, offset, u64::from(depth), 0);
        let what = format!("a directory of depth {depth}");
        check_identity(&self.core.memory, &header.identity, expected, &what)
    }

    /// Returns the entries of a directory in PM.
    fn directory_entries(&self, offset: u64, depth: u32) -> Result<&[Word], Damage> {
        self.core.memory.words(offset + DIRECTORY_HEADER, 8 << depth)
    }

    /// Returns, for each half of the hash space, a word that is not the first word of any record in
    /// it; see invariant 1.
    fn empty_words(core: &Core<S>) -> Result<[u64; 2]> {
        if let Some(word) = R::EMPTY {
            return Ok([word, word]);
        }
        let in_half = |half| (0..1024).find(|&key| core.hasher.word(key) >> 63 == half);
        match (in_half(1), in_half(0)) {
            (Some(high), Some(low)) => Ok([high, low]),
            _ => Err(Error::Invalid {
                what: "hash function",
                why: "it maps 1024 numbers to one half of its range".into(),
            }),
        }
    }

    /// Returns the empty word of the segment that holds this hash.
    #[inline(always)]
    fn empty(&self, hash: u64) -> u64 {
        self.empty[(hash >> 63) as usize]
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

    fn hash_of(&self, words: crate::index::record::SlotWords) -> u64 {
        R::slot_hash(&self.core.hasher, words)
    }

    /// Returns a bucket of a segment. Stash buckets follow the others.
    #[inline(always)]
    fn bucket(&self, segment: Segment, index: u32) -> BucketRef<'_> {
        debug_assert!(index < self.shape.buckets() + self.shape.stash);
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
        self.bucket(segment, self.shape.buckets() + stash)
    }

    /// Returns the bucket at any offset, which it checks.
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

    #[inline(always)]
    fn directory(&self) -> &Directory {
        // Acquire: pairs with the Release in `set_directory`.
        // SAFETY: set before the table was handed out, to one of `directories`, which neither move
        // nor are dropped before the table.
        unsafe { &*self.directory.load(self.seam(), Ordering::Acquire) }
    }

    /// Returns the route to a hash's segment. Passes the gate if the segment has not been touched
    /// yet.
    #[inline(always)]
    fn route(&self, hash: u64) -> Result<Route<'_>> {
        match self.known_route(hash) {
            Some(route) => Ok(route),
            None => self.first_route(hash),
        }
    }

    #[cold]
    fn first_route(&self, hash: u64) -> Result<Route<'_>> {
        let _writing = self.core.enter()?;
        self.first_touch(hash)
    }

    /// Like [`route`](Self::route), for a thread that has passed the gate.
    #[inline(always)]
    fn route_inside(&self, hash: u64) -> Result<Route<'_>> {
        match self.known_route(hash) {
            Some(route) => Ok(route),
            None => self.first_touch(hash),
        }
    }

    #[inline(always)]
    fn known_route(&self, hash: u64) -> Option<Route<'_>> {
        let directory = self.directory();
        let index = directory.index(hash);
        // Acquire: pairs with the Release of the thread that filled the entry, so that the
        // segment's content is visible.
        let entry = directory.entry(index).load(self.seam(), Ordering::Acquire);
        (entry != 0).then(|| {
            let depth = (entry >> 48) as u32;
            let low = hash >> (64 - depth) << (64 - depth);
            let segment = Segment { offset: entry & ((1 << 48) - 1), depth, low };
            Route { directory, index, entry, segment }
        })
    }

    /// Returns whether the route still leads to the same segment.
    #[inline(always)]
    fn is_current(&self, route: &Route<'_>) -> bool {
        std::ptr::eq(self.directory(), route.directory)
            && route.directory.entry(route.index).load(self.seam(), Ordering::Relaxed)
                == route.entry
    }

    /// Points the DRAM entries of a segment's range to it. The caller has locked `structure`.
    fn fill_entries(&self, segment: Segment) {
        let directory = self.directory();
        let first = directory.index(segment.low);
        let entry = segment.offset | u64::from(segment.depth) << 48;
        for slot in &directory.entries[first..first + (1 << (directory.depth - segment.depth))] {
            // Release: pairs with the Acquire in `known_route`.
            slot.store(self.seam(), entry, Ordering::Release);
        }
    }

    /// Makes the directory and the two segments of a new map and flushes them. They are durable
    /// before the root that will name them. Returns the root's words.
    pub fn create(core: &Arc<Core<S>>, shape: Config) -> Result<[u64; ROOT_SCHEME_WORDS]> {
        let empty = Self::empty_words(core)?;
        resize::create(core, shape, empty)
    }
}

impl<S: Seam, R: Record> Table<S, R> for DashEh<S, R> {
    const SCHEME: Scheme = Scheme::DashEh;

    #[inline(always)]
    fn core(&self) -> &Arc<Core<S>> {
        &self.core
    }

    fn growth(&self) -> Growth {
        self.counters.growth()
    }
}
