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
//!  bucket    [ 16 slots of 16 bytes ]          notes, in DRAM: [ lock | bits | fingerprints ]
//!  hash      [ directory .... | line (14..16) | bucket (8..) | fingerprint (0..8) ]
//! ```
//!
//! A record whose hash names bucket *b* (its *home*) is in *b*, in *b + 1* (as a *guest*), in
//! a stash bucket, or in an overflow node. An insert goes to the line of *b* that the hash
//! names, if a slot is free there; else to the emptier of *b* and *b + 1* (balanced insert),
//! else a record is moved to its other bucket (displacement), or up to three in a row where
//! that one is full too, else to the stash, whose records are noted in their home by four
//! overflow fingerprints and a count. A full segment
//! is split in two by the next bit of the hash, after the directory was doubled if need be.
//! What a split leaves room for is gathered: records that had to go elsewhere move to the
//! line that their hash names.
//!
//! So nine records in ten of a table that is 0.6 full stand in the line that their hash
//! names. Every operation asks for that line at once, and both lines that it needs, of the
//! notes and of the slots, are on their way together.
//!
//! Each process keeps a directory of its own in DRAM, whose entries are filled when a
//! segment is first touched: operations read that one. The one in PM is written by
//! splits and read at first touches.
//!
//! # Invariants
//!
//! 1. A slot holds a record if and only if its first word is not the *empty word* and
//!    the hash of the record begins with the segment's prefix. For byte strings the
//!    empty word is 0. For inline records, where any key can occur, it is a key that
//!    hashes to the other half of the hash space, which is why the depth is at least 1.
//! 2. Slots are the truth. Locks, the bits of slots in use and fingerprints are DRAM state
//!    (`notes`), made of the slots at first touch.
//! 3. A segment's first hash never changes and its depth only grows, so what a split
//!    leaves behind in the old segment never becomes a record again.
//! 4. All directory entries in a segment's range point at it, but for those of the
//!    upper half while a split of it is being completed.
//! 5. Every change of a key, and every move of its record, is made under its home
//!    bucket's lock; readers validate that bucket's version alone.
//! 6. What readers can see is durable: inserts become visible after their fence,
//!    everything else happens while its home bucket is marked as changing.
//!
//! # Commit points
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | insert, inline | slot: value, then key (commit) | 1, 1 | an empty slot, or the record |
//! | insert, bytes | record block; fence; slot: hash, then link (commit) | record + 1, 2 | a block that no slot links to, which the trace frees |
//! | displacement | copy into the other bucket; fence; slot: empty, second word, first word | 2, 2 (+ record, 1) | a record twice: first touch removes one; or once and an empty slot |
//! | the same, of *k* records in a row | from the far end: copy; fence; for each other record, slot: empty, its second word, its first word; fence; for the new one as well | *k* + 1, *k* + 1 (+ record, 1) | as above, of one of the *k* records; others may have moved |
//! | insert into the stash or a node | as insert, its home marked as changing | as insert | as insert |
//! | update, inline | value (commit) | 1, 1 | the old value or the new |
//! | update, bytes | record block; fence; link (commit) | record + 1, 2 | the old record or the new; the other block is freed by the trace |
//! | remove | first word: empty (commit) | 1, 1 | the record or none |
//! | map | directory and segments whole; fence, the root's; root's commit word | both, 0 (+ the root's) | blocks for the trace |
//! | split | new segment whole; fence; old segment's state: depth + 1 and the partner (commit); fence; directory entries; fence | segment + 1 + entries, 3 | before the commit, a block for the trace; after it, directory entries that first touch of the old segment sets |
//! | gathering, after a split | copies; fence; the slots they were made of: empty; fence | 2 a record at most, 2 | a record twice: first touch removes one |
//! | doubling | new directory whole; fence; root (commit) | directory + 1, 2 | a block for the trace |
//! | overflow node | node whole; fence; link (commit) | node + 1, 2 | a block for the trace |
//!
//! Why no fewer: an operation that returns must have fenced once. A record block and the
//! slot that links to it are different lines, and if the link were durable first the
//! slot would show what the block held before; hence the second fence. A move is two
//! lines, of which the copy must come first. A lookup stores nothing.
//!
//! Moves in a row: the slot that a record leaves takes the copy of the next one, so each copy is
//! durable before its original is overwritten, and one line at a time is not. A crash finds the
//! record that it is about in the slot and in its copy, or in one of them; each other record
//! stands in one place, one of its two buckets. So first touch has at most one record to remove,
//! as after a single move.
//!
//! # Concurrency
//!
//! Linearization points: of an insert, the store of the bucket's bits (after the fence); of
//! an update or removal, the unlocking store of the home bucket; of a lookup, a read of
//! bits: the one that shows the record, or for an absence the first, since whatever takes a
//! record out of a bucket changes the version. Two inserts of one key meet at the home's
//! lock. Lock order: buckets ascending (primary, then stash, then nodes), `structure`.
//! Displacement only tries locks, those of a whole row as well: who holds them waits for none,
//! and no ring closes. The home of each record that moves is locked and marked as changing
//! before its copy is made, and the bucket that has the copy stays locked until the original is
//! overwritten, durably: a lookup of the record waits and reads again, and nobody can remove the
//! copy while a crash would bring the original back. A slot passes from a record that is at home
//! there to a guest, or back, so that whoever still looks into it by older notes reads for the
//! home that is marked, and nobody sees the slot's next record before it is durable. An overflow
//! node is linked under all bucket locks of its segment: nobody inserts into it before its link
//! is durable. A split holds all bucket locks of its segment, builds the new segment beside its
//! readers, and publishes it by the DRAM directory. Whoever used the old entry and finds nothing
//! looks at it again, a reader after the version, a writer after locking. Who finds the key need
//! not: a split marks all homes as changing before it publishes, and takes what leaves out of
//! the old segment's notes before it gives the locks back, so what is found under one version,
//! or under the lock, belongs there. Nothing is allocated under a lock.
//!
//! # After a crash
//!
//! Opening reads the root. The first touch of a segment, by one thread at a time under
//! `structure` and before anyone can be served by it: completes a split (entries of the
//! upper half that still point at the old segment are set to the new one, durably),
//! flushes what it found, resets locks, makes the notes from the slots, removes second
//! copies durably (a line each, one fence for all), and only then fills the DRAM directory.
//!
//! Why what it found is flushed: a process that died leaves its stores in the caches, also
//! those that it had not flushed. They are found, and answers rest on them; a power loss
//! must not take them back.
//!
//! Why a removed key cannot come back from the other half of a split: from the commit
//! on, by invariant 1, the old segment's slots do not hold the upper half's records,
//! whatever their words are; and before the commit the new segment is not reachable.
//!
//! # Deviations from the paper
//!
//! - The paper's buckets hold 14 records behind 32 bytes of metadata. Here the metadata is
//!   in DRAM, an eighth of the size of the slots, and 16 records fit: a lookup reads it from
//!   the caches, and a failed one reads no persistent memory at all.
//! - The paper's inserts always take the emptier of the two buckets. Half of all records then
//!   are guests, and which of the two lines holds a record is known only once the notes have
//!   arrived: a lookup waits for memory twice. Here the hash names a line that is tried first,
//!   which costs a hundredth of the load factor at its peak.
//! - A change locks the key's home bucket, and the next one only where it changes what that
//!   one's notes say; the paper locks both.
//! - The paper persists the allocation bitmap after the record (two flushes, two
//!   fences). Here the slot itself commits the record, and the bitmap is volatile: one
//!   of each. It also lets a split drop the moved records without a store.
//! - The paper's readers can see an insert, and its update or delete, before it is
//!   durable: thread 2 begins to read, thread 1 locks and stores the bitmap, thread 2 finds
//!   the key and the version as it was (it changes at the unlocking), and answers; power
//!   fails, the key is gone. Invariant 6 forbids it.
//! - The paper logs directory updates with a transaction; here the split's commit is one
//!   word in the old segment, and the entries are redone from it.
//! - The paper's one-byte recovery version wraps after 256 crashes. Here "recovered in
//!   this open" is the DRAM directory's entry, which no crash survives.
//! - One lock bit and a version per bucket in the paper make each writer of a bucket
//!   disturb all its readers; here only changes of a home's own records do.
//! - The paper puts overflow fingerprints into the next bucket too when the home's four
//!   are taken; here the count takes over.
//! - Segments without end for keys that no split separates: overflow nodes. The
//!   directory is not doubled when fewer than one entry in 32 is a segment of its own.

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

/// How large a map's segments are.
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

    /// As it stands in identity words.
    fn packed(self) -> u16 {
        (self.bucket_bits | self.stash << 8) as u16
    }
}

/// A segment that was checked: its header and buckets lie inside the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    offset: u64,
    depth: u32,
    /// The first hash that belongs to it.
    low: u64,
}

impl Segment {
    /// The last hash that belongs to it.
    fn high(self) -> u64 {
        self.low | (u64::MAX >> self.depth)
    }

    fn holds(self, hash: u64) -> bool {
        (hash ^ self.low) >> (64 - self.depth) == 0
    }
}

/// The directory in DRAM, for one depth. Entries: offset and, from bit 48, local depth;
/// 0 where the segment was not touched yet.
struct Directory {
    depth: u32,
    entries: Box<[SharedWord]>,
}

impl Directory {
    fn new(depth: u32) -> Directory {
        // Zeroed by the system, page by page when it is touched: opening a pool takes the
        // same time however large the directory is.
        let entries = Box::<[SharedWord]>::new_zeroed_slice(1 << depth);
        // SAFETY: zero is a valid SharedWord.
        Directory { depth, entries: unsafe { entries.assume_init() } }
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        (hash >> (64 - self.depth)) as usize
    }

    /// The entry at an index that [`index`](Directory::index) has given.
    #[inline(always)]
    fn entry(&self, index: usize) -> &SharedWord {
        debug_assert!(index < self.entries.len());
        // SAFETY: there are 2^depth entries, and an index consists of so many bits.
        unsafe { self.entries.get_unchecked(index) }
    }
}

/// How an operation came to its segment; to be checked again after reading or locking.
#[derive(Clone, Copy)]
struct Route<'d> {
    directory: &'d Directory,
    index: usize,
    entry: u64,
    segment: Segment,
}

/// What splits and first touches change, one at a time.
struct Structure {
    /// The directory in PM.
    directory: u64,
    depth: u32,
    /// Segments that the directory points at, once counted.
    segments: Option<u64>,
}

/// A hash table. See the module's documentation.
pub struct DashEh<S: Seam, R: Record> {
    core: Arc<Core<S>>,
    root: Offset<Word>,
    shape: Config,
    /// Buckets of a segment, less one.
    bucket_mask: u32,
    /// The empty word, by the first bit of the segment's hashes.
    empty: [u64; 2],
    /// DRAM directories by depth. Those of lesser depth stay, for readers that are still
    /// there: together they are no larger than the present one.
    directories: Box<[Shared<OnceLock<Directory>>]>,
    /// The present one of them.
    directory: Shared<AtomicPtr<Directory>>,
    structure: Mutex<Structure>,
    counters: Counters,
    form: PhantomData<R>,
}

impl<S: Seam, R: Record> DashEh<S, R> {
    /// Opens the table whose root is in a slot. Takes constant time.
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

    /// Makes a directory the present one. There was none of its depth.
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

    /// The entries of a directory in PM.
    fn directory_entries(&self, offset: u64, depth: u32) -> Result<&[Word], Damage> {
        self.core.memory.words(offset + DIRECTORY_HEADER, 8 << depth)
    }

    /// See invariant 1: for each half of the hash space, a word that no record of it has
    /// as its first one.
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

    /// The empty word of the segment that holds this hash.
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

    /// The first slot of the line in which a record of this hash stands if it can.
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

    /// A bucket of a segment; stash buckets follow the others.
    #[inline(always)]
    fn bucket(&self, segment: Segment, index: u32) -> BucketRef<'_> {
        debug_assert!(index < self.shape.buckets() + self.shape.stash);
        let offset = segment.offset + u64::from(1 + index) * BUCKET_BYTES;
        let memory = &self.core.memory;
        // SAFETY: a `Segment` is made of an offset whose whole extent was checked
        // (`check_segment`, or an allocation of that size), and `index` is in it.
        unsafe {
            let bucket = memory.at_unchecked(Offset::<Bucket>::new(offset));
            BucketRef::new(bucket, memory.shadow_unchecked(offset))
        }
    }

    #[inline]
    fn stash_bucket(&self, segment: Segment, stash: u32) -> BucketRef<'_> {
        self.bucket(segment, self.shape.buckets() + stash)
    }

    /// A bucket wherever it is, its offset checked.
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
        // SAFETY: set before the table was handed out, to one of `directories`, which
        // neither move nor go before the table does.
        unsafe { &*self.directory.load(self.seam(), Ordering::Acquire) }
    }

    /// The way to a hash's segment. Passes the gate if the segment must be touched first.
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

    /// As [`route`](Self::route), by a thread that has passed the gate.
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
        // Acquire: pairs with the Release of whoever filled the entry, so that the
        // segment's content is seen.
        let entry = directory.entry(index).load(self.seam(), Ordering::Acquire);
        (entry != 0).then(|| {
            let depth = (entry >> 48) as u32;
            let low = hash >> (64 - depth) << (64 - depth);
            let segment = Segment { offset: entry & ((1 << 48) - 1), depth, low };
            Route { directory, index, entry, segment }
        })
    }

    /// Whether the route still leads where it did.
    #[inline(always)]
    fn is_current(&self, route: &Route<'_>) -> bool {
        std::ptr::eq(self.directory(), route.directory)
            && route.directory.entry(route.index).load(self.seam(), Ordering::Relaxed)
                == route.entry
    }

    /// Points the DRAM entries of a segment's range at it. `structure` is locked.
    fn fill_entries(&self, segment: Segment) {
        let directory = self.directory();
        let first = directory.index(segment.low);
        let entry = segment.offset | u64::from(segment.depth) << 48;
        for slot in &directory.entries[first..first + (1 << (directory.depth - segment.depth))] {
            // Release: pairs with the Acquire in `known_route`.
            slot.store(self.seam(), entry, Ordering::Release);
        }
    }

    /// Makes the directory and the two segments of a new map, durable before the root
    /// that will name them. Returns the root's words.
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
