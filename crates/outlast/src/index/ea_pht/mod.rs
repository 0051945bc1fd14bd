//! EA-PHT, EA-PHT-H and EA-PHT-HPR (Cepeda Chavez, master's thesis, 2020): three versions of a hash
//! table of chained buckets that always grows as a whole.
//!
//! # Structure
//!
//! ```text
//!  root (named root, words 1 and 2) ---> [next table, while HPR moves records]
//!   |
//!   v
//!  table ---> chunk: [ header | array of buckets | overflow buckets ]
//!    |   ---> chunk: [ header | array of buckets | overflow buckets ]
//!    |   ...
//!    +------> annexes: [ header | overflow buckets ], where the chunks have none left
//!
//!  bucket of 256 bytes: [ lock | next ] 15 slots                the chain of a bucket: next, next, ...
//! ```
//!
//! A table is an array of 2^depth buckets. The first bits of a hash name a bucket, and the record
//! is in this bucket or in an overflow bucket of its chain. A full chain gets another overflow
//! bucket, which the table itself allocates, by advancing a counter (3.4). Once more than 7 in 64
//! buckets have overflow buckets, all records are moved to a table of twice as many buckets (3.5.4)
//! before this one links another overflow bucket.
//!
//! The three schemes share their code. `Variant` has what differs between them: the default number
//! of helpers, and:
//!
//! | | lock of a bucket | while a table is being moved, a change whose bucket was moved |
//! |---|---|---|
//! | EA-PHT (chapter 3) | in the bucket | helps to move, if a helper is wanted; waits for the end |
//! | EA-PHT-H (4) | in DRAM | the same |
//! | EA-PHT-HPR (5) | in DRAM | goes to the new table immediately |
//!
//! In DRAM there are also, for each bucket, fingerprints (7.2) and the link to the next bucket.
//!
//! # Invariants
//!
//! 1. A slot holds a record if and only if its first word is not the *empty word*. For byte strings
//!    that is 0. For inline records, where any key can occur, it is a key whose hash is in the half
//!    of the hash space to which the bucket does not belong.
//! 2. A record is in the chain of its bucket, and only once.
//! 3. Every overflow bucket that a chain links to is covered by the counter of its chunk or annex,
//!    on media too.
//! 4. While HPR moves a table, a bucket's records are in the old table until the bucket is marked
//!    as moved, and in the new one from then on.
//! 5. What readers can see is durable.
//! 6. Once the link to an overflow bucket is durable, the bucket names the chain that links to it,
//!    its *owner*. So if the owner does not link to the bucket, the chain has lost the link, with
//!    the records behind it. Only the copies that a move makes name their owner before the link to
//!    them is durable.
//!
//! # Commit points
//!
//! One store of 8 bytes commits each change. *Lines* are the cache lines that an operation flushes;
//! *record*, *segment* and the like stand for all lines of such a block. An operation fences after
//! the last store that it flushes. This last fence is counted, but not always listed.
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | insert, inline | slot: empty, value, key (commit) | 1, 1 | an empty slot, or the record |
//! | insert, bytes | record block; fence; slot: empty, hash, link (commit) | record + 1, 2 | a record block that no slot links to, which the sweep frees |
//! | overflow insert | counter; the bucket, completely; fence; link (commit); fence; owner (not flushed) | 6, 2 (+ the record's) | a bucket that was handed out but not linked, which opening finds |
//! | update, inline | value (commit) | 1, 1 | the old value or the new |
//! | update, bytes | record block; fence; link (commit) | record + 1, 2 | the old record or the new; the sweep frees the other block |
//! | remove | first word: empty (commit) | 1, 1 | the record or none |
//! | annex | header; fence; link (commit) | 2, 2 | a block that the sweep frees |
//! | resize | the new table, completely; fence; root (commit) | all lines; 2 fences, and 1 for each 16 buckets | the old table; the sweep frees the new one |
//! | resize, HPR | the new table's headers; fence; the root's second word; fence; for each bucket: its copies, fence, its mark (commit), fence; the root | all lines; 3 fences, and 2 for each bucket | two tables, and opening resumes the resize |
//!
//! The thesis counts a line for each word of a pair, and two fences for each line (3.8): 2 and 4
//! for an insert, 4 and 8 for an overflow insert. Both words of a slot lie in one line, and stores
//! to a line become durable in order, so one line and one fence are enough. An overflow insert
//! flushes more lines here, because the pool's blocks are not zeroed in advance (3.4): all four
//! lines of the bucket. Every 16 overflow buckets cost 16 more lines and one more fence: before the
//! counter says that the first of them was handed out, all 16 are durably marked as having no
//! owner, because they may still name one in an earlier table. While HPR fills a table, a crash can
//! also keep a copy's owner but lose the counter that covers its bucket. So after an opening, the
//! counter does not tell whether the buckets beyond it are prepared. When the first of them is
//! handed out, it is prepared again, with those after it up to the next multiple of 16.
//!
//! # Concurrency
//!
//! A change locks only its bucket, the first of the chain. Before that it looks the key up, so an
//! insert of a present key and a removal or an update of an absent one store nothing (3.5.2, 3.5.3).
//! Under the lock it looks again. A lookup takes no lock and stores nothing. It reads the version,
//! the fingerprints and the slot. Then it checks that the version is the same, and that the table was
//! not retired. If not, it reads again. After 1,024 such reads it locks the bucket for the next one.
//!
//! An insert changes no version. After the fence, it makes its record visible: by the fingerprint
//! in DRAM, or, in a new overflow bucket, by the link in DRAM. So a lookup returns only what is
//! durable, even while an insert holds the lock. Updates, removals and moves mark the bucket as
//! changing, and readers wait.
//!
//! *Why the version does not wrap.* In the thesis the version has six bits, because lock and
//! version share one byte. A reader that sleeps through 64 changes sees the same version again, and
//! is misled. Here the version has 46 bits.
//!
//! *Resize.* A thread that needs an overflow bucket in a table with too many chains closes the
//! table's allocator, which fixes the number of overflow buckets, and prepares the next table with
//! room for as many. Then threads claim buckets and move them: lock, copy to two buckets of the new
//! table, mark as moved. The mark is in the lock word, for other threads. In HPR it is also in
//! the bucket's link, for recovery. The thread that moves the last bucket makes the new table the
//! current one.
//!
//! In EA-PHT and -H, readers go on in the old table until then, and a change that finds its bucket
//! marked waits. So nothing changes in a bucket after it was copied, and the new table needs to be
//! durable only when the root leads to it. At the end the old table is retired first, and then the
//! new one becomes current: once a change runs in the new table, no lookup in the old one is valid.
//!
//! In HPR, readers and changes of a marked bucket go to the new table. The mark in the bucket's link
//! is durable before the mark in its lock word is set, so no change there is lost. A change moves
//! two buckets in addition to its own work, unless enough helpers are moving buckets already. Each
//! background step of the pool moves 64.
//!
//! A thread moves buckets under an epoch guard (a *visit*), and only if the table is still the
//! current one: other threads may have moved the buckets that this thread claimed, and ended the
//! resize.
//!
//! Old tables are retired, and reused once no change can still be using their locks
//! ([`reclaim`](crate::reclaim)).
//!
//! Lock order: bucket, then the allocator of overflow buckets. No thread allocates from the pool while
//! it holds one of them, or in a visit. The lock under which annexes are added (`extending`) is taken
//! by threads that hold neither, and held while the annex is allocated.
//!
//! In EA-PHT and EA-PHT-H, a thread that is stopped while it moves buckets blocks the changes that
//! need the table moved. They fail after a minute in which nothing was moved, as they would if they
//! waited for a lock that is never released. In EA-PHT-HPR such a thread blocks only the changes of
//! the buckets that it has locked, and the end of the resize. In all three schemes, a thread that
//! is stopped while it prepares a table or an annex blocks the inserts that need that table or
//! annex.
//!
//! # After a crash
//!
//! Opening reads all buckets, on as many threads as the caller set. It resets locks, and makes the
//! fingerprints. A crash can leave sixteen states (3.6.1). Most of them need no repair: a value
//! without its key is not a record, and a table that the root does not lead to is not in use.
//! Buckets that were handed out but not linked are the first to be handed out again. Stores of a
//! dead process may still be in the caches, so opening flushes what it reads: first the headers and
//! counters of both tables, because it stores in the first one before it reads the second. Then it gives an
//! owner to linked buckets that have none, and removes the owner of copies that no chain links to
//! (invariant 6).
//!
//! A bucket whose chain is damaged is not served: operations on its hashes return the damage. A
//! table with such a bucket does not grow; it gets annexes.
//!
//! # Deviations from the thesis
//!
//! - **EA-PHT-HPR resizes in another way.** In the thesis (5.2), a change that meets a moved bucket
//!   helps until no section is left, and then waits for the end. Lookups stay in the old table, and
//!   a crash during a resize starts it anew. Here the change goes to the new table at once and moves
//!   a few buckets beside its own, lookups follow, and an opening resumes the resize. EA-PHT-H with
//!   `helpers` set to 32 resizes as the thesis's EA-PHT-HPR does.
//! - The thesis has fingerprints only as future work, and EA-PHT lies entirely in persistent memory.
//!   Here all three tables have fingerprints in DRAM, and a copy of the link to the next bucket. So
//!   what its chapter 4 measures, a lock beside the pairs that it protects, weighs less here.
//! - It keeps its tables' descriptions in a ring with version numbers, and recovery tells five states
//!   of a resize apart by them (3.6.4). Here a table is a block of the pool that the root names.
//! - Its helper takes buckets from the far end of the table. Here all threads claim them by one
//!   counter. Its growth factor and its limit of chained buckets are parameters; here they are fixed.
//! - In the thesis, a key or a value of 0 marks an empty pair. So 0 cannot be a key, and Algorithm
//!   6 does not relink a bucket whose first value is 0, although a lookup may have returned the
//!   record. Here all keys and values work, and an overflow bucket is linked by the insert alone.
//! - Its lookup compares the value, so no value may be used twice at the same time (2.6). Here the
//!   version is enough.
//! - Its lookup can return a pair of a locked bucket before the pair is durable. After a power loss,
//!   that pair may be gone.
//! - Its overflow buckets do not say to which chain they belong. Here they name the chain, in the
//!   word that a bucket of the array has for its lock.
//! - Its chunk owns the rest of the file, and is zeroed when the file is made. Here the pool
//!   allocates chunks, and annexes where a chunk is used up.
//! - In EA-PHT-HPR, threads initialize the new lock array if they find a flag set (Algorithms 8 to
//!   10). With a single thread, none does, and a late helper zeroes locks that are held. Here the
//!   thread that moves a bucket initializes the locks of its copies.
//! - It divides a table into one section for each helper. With fewer buckets than helpers, sections
//!   have 0 buckets, and nothing is moved (Algorithm 11). Here threads claim buckets by number.
//! - It counts overflow buckets to know when to grow. So keys of one hash make its tables grow
//!   without end. Here chains are counted.
//! - The first bits of a hash name the bucket, not the last, so that the two buckets that take the
//!   place of an old one are neighbors.
//!
//! The thesis proposes future work (7.2). This implementation has the fingerprints and the byte
//! strings. It has no chunks on each NUMA node: the pool is one file, and the file system decides
//! which node has its pages. The thesis would also use its allocation by counter in other
//! structures. Here those have the pool's allocator, which hands a thread many blocks of one run.

mod bucket;
pub mod bugs;
pub mod layout;
mod ops;
pub mod points;
mod recover;
mod resize;
mod scan;
mod table;

use super::Growth;
use crate::error::{Damage, Error, Result};
use crate::index::Scheme;
use crate::index::config::EaPhtOf;
use crate::index::kit::lock::{Guarded, HeldLock, LockPlace, VersionLock};
use crate::index::kit::media::empty_words;
use crate::index::kit::table::Table as KitTable;
use crate::index::kit::walk::Counters;
use crate::index::record::{SlotRecord, SlotWords};
use crate::pmem::{Offset, Seam, SeededBug, Shared, SharedWord, Word};
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::ROOT_SCHEME_WORDS;
use bucket::BucketRef;
use layout::{Link, MediaLock};
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use table::Table;

/// What differs between the three schemes.
pub(crate) trait Variant: Copy + Eq + fmt::Debug + Send + Sync + 'static {
    /// The scheme.
    const SCHEME: Scheme;
    /// Whether changes of a moved bucket go to the new table while other buckets are still being
    /// moved.
    const GOES_ON: bool;
    /// The type of the scheme's lock words.
    type Lock: LockPlace;

    /// Returns the lock of a bucket.
    fn lock<'m>(bucket: BucketRef<'m>) -> &'m Self::Lock;
}

/// EA-PHT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain {}
/// EA-PHT-H.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hybrid {}
/// EA-PHT-HPR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallel {}

impl Variant for Plain {
    const SCHEME: Scheme = Scheme::EaPht;
    const GOES_ON: bool = false;
    type Lock = MediaLock;

    #[inline(always)]
    fn lock(bucket: BucketRef<'_>) -> &MediaLock {
        &bucket.bucket.lock
    }
}

impl Variant for Hybrid {
    const SCHEME: Scheme = Scheme::EaPhtH;
    const GOES_ON: bool = false;
    type Lock = SharedWord;

    #[inline(always)]
    fn lock(bucket: BucketRef<'_>) -> &SharedWord {
        &bucket.metadata.lock
    }
}

impl Variant for Parallel {
    const SCHEME: Scheme = Scheme::EaPhtHpr;
    const GOES_ON: bool = true;
    type Lock = SharedWord;

    #[inline(always)]
    fn lock(bucket: BucketRef<'_>) -> &SharedWord {
        &bucket.metadata.lock
    }
}

pub use crate::index::config::EaPht as Config;
/// A hash table of EA-PHT (chapter 3).
pub(crate) type EaPht<S, R> = Pht<S, R, Plain>;

/// EA-PHT-H (chapter 4): the locks in DRAM.
pub mod ea_pht_h {
    pub use super::points::hybrid as points;
    pub use crate::index::config::EaPhtH as Config;
    /// A hash table of this scheme.
    pub(crate) type EaPhtH<S, R> = super::Pht<S, R, super::Hybrid>;
}

/// EA-PHT-HPR (chapter 5): many threads move a table together, and changes go on meanwhile.
pub mod ea_pht_hpr {
    pub use super::points::parallel as points;
    pub use crate::index::config::EaPhtHpr as Config;
    /// A hash table of this scheme.
    pub(crate) type EaPhtHpr<S, R> = super::Pht<S, R, super::Parallel>;
}

/// In a bucket's lock word: its records are in the next table.
const MOVED: u64 = 1;
/// In a bucket's lock word: its chain is damaged.
const DAMAGED: u64 = 2;

/// How an operation reached its bucket.
#[derive(Clone, Copy)]
pub(crate) struct Route<'t> {
    table: &'t Table,
    /// The number of the bucket.
    index: u64,
    bucket: BucketRef<'t>,
}

/// A range of hashes that is not served: its first hash, its last hash, and the reason.
type Missing = (u64, u64, Damage);

/// A hash table of one of the three schemes. See the module's documentation.
pub(crate) struct Pht<S: Seam, R: SlotRecord, V: Variant> {
    core: Arc<Core<S>>,
    /// See [`EaPhtOf`].
    chunk_bits: u32,
    helpers: u32,
    root: Offset<Word>,
    /// The empty words, indexed by the most significant bit of the hash.
    empty: [u64; 2],
    /// The table that was current when the map was opened. Each table owns the next one.
    first: Box<Table>,
    /// The table that operations begin with.
    current: Shared<AtomicPtr<Table>>,
    missing: Vec<Missing>,
    counters: Counters,
    form: PhantomData<(R, V)>,
}

impl<S: Seam, R: SlotRecord, V: Variant> Pht<S, R, V> {
    /// Opens the table whose root is in `slot`. Reads all of it.
    pub(crate) fn open<const SCHEME: u8>(
        core: &Arc<Core<S>>,
        slot: usize,
        config: EaPhtOf<SCHEME>,
    ) -> Result<Self> {
        let place = root_offset(slot).raw() + 8;
        let root = Offset::<Word>::new(place);
        let open = |place: u64, number: u64| -> Result<Option<Table>> {
            let word = core.memory.load(core.memory.at(Offset::<Word>::new(place))?);
            match Link::unpack(number, word) {
                Some(Link { offset: 0, depth: 0 }) if number == 1 => Ok(None),
                Some(Link { offset: offset @ 1.., depth: depth @ 1.. }) => {
                    let table = Table::open(core, offset, depth);
                    Ok(Some(table.map_err(|damage| Error::DamagedRoot { slot, damage })?))
                }
                _ => {
                    let damage = Damage::new(place, "a table's offset", format!("{word:#x}"));
                    Err(Error::DamagedRoot { slot, damage })
                }
            }
        };
        let first = Box::new(open(place, 0)?.expect("not optional"));
        // A crash at the end of a resize can leave the same table in both words.
        let next = open(place + 8, 1)?.filter(|next| next.offset != first.offset);
        if next.as_ref().is_some_and(|next| !V::GOES_ON || next.depth != first.depth + 1) {
            let damage = Damage::new(place + 8, "a table of twice the size", "another size");
            return Err(Error::DamagedRoot { slot, damage });
        }
        if let Some(next) = &next {
            let seam = core.memory.seam();
            let blocks: HashSet<u64> = first.blocks(seam).iter().map(|block| block.1).collect();
            if next.blocks(seam).iter().any(|block| blocks.contains(&block.1)) {
                let damage = Damage::new(place + 8, "a table of its own", "one with shared blocks");
                return Err(Error::DamagedRoot { slot, damage });
            }
        }
        let mut table = Pht {
            core: Arc::clone(core),
            chunk_bits: config.chunk_bits,
            helpers: config.helpers,
            root,
            empty: empty_words::<S, R>(core)?,
            current: Shared::default(),
            first,
            missing: Vec::new(),
            counters: Counters::default(),
            form: PhantomData,
        };
        table.current = Shared::<AtomicPtr<Table>>::new((&raw const *table.first).cast_mut());
        table.recover(next.map(Box::new));
        Ok(table)
    }

    /// Makes the first table of a new map, and flushes it. The caller's fence makes it durable before
    /// the root names it. Returns the scheme's words of the root.
    pub(crate) fn create<const SCHEME: u8>(
        core: &Arc<Core<S>>,
        config: EaPhtOf<SCHEME>,
    ) -> Result<[u64; ROOT_SCHEME_WORDS]> {
        resize::create::<S, R>(core, config.initial_depth, config.chunk_bits)
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

    /// Returns the empty word of the bucket that holds this hash.
    #[inline(always)]
    fn empty(&self, hash: u64) -> u64 {
        self.empty[(hash >> 63) as usize]
    }

    fn hash_of(&self, words: SlotWords) -> u64 {
        R::slot_hash(&self.core.hasher, words)
    }

    // ---- Addressing -------------------------------------------------------------

    #[inline(always)]
    fn current(&self) -> &Table {
        // SeqCst: visits follow this link; see `reclaim`. Pairs with the store in `finish`.
        // SAFETY: points to `first` or to one of its successors, each of which its predecessor
        // owns. All of them are dropped with `self`.
        unsafe { &*self.current.load(self.seam(), Ordering::SeqCst) }
    }

    /// Returns the route to the bucket of a hash in a table. `None` if the bucket's chunk cannot be
    /// read.
    #[inline(always)]
    fn route_in<'t>(&'t self, table: &'t Table, hash: u64) -> Option<Route<'t>> {
        let index = table.index(hash);
        let bucket = table.bucket(&self.core.memory, index)?;
        Some(Route { table, index, bucket })
    }

    /// Returns the route to the bucket of a hash.
    fn route(&self, hash: u64) -> Result<Route<'_>> {
        let mut table = self.current();
        loop {
            let route = self.route_in(table, hash).ok_or_else(|| self.missing_at(hash).2)?;
            let word = V::lock(route.bucket).load(self.seam(), Ordering::Acquire);
            if table.is_retired(self.seam()) {
                // The block may have been reused, and the word may belong to another structure.
                table = table.next(self.seam()).ok_or_else(|| self.missing_at(hash).2)?;
                continue;
            }
            if word & DAMAGED != 0 {
                return Err(self.missing_at(hash).2.into());
            }
            if word & MOVED == 0 || !V::GOES_ON {
                return Ok(route);
            }
            table = table.next(self.seam()).ok_or_else(|| self.missing_at(hash).2)?;
        }
    }

    /// Returns the hashes around this one that are not served, and why.
    #[cold]
    fn missing_at(&self, hash: u64) -> Missing {
        let missing = self.missing.iter().find(|(low, high, _)| (*low..=*high).contains(&hash));
        missing.cloned().unwrap_or_else(|| {
            // In a damaged file, two maps can share a table.
            let segment = self.current().segment(self.current().index(hash));
            let found = "a table that another map uses too";
            let damage = Damage::new(self.root.raw(), "a table of its own", found);
            (segment.low, segment.high(), damage)
        })
    }

    /// Yields the buckets of a chain.
    #[inline(always)]
    fn chain<'m>(
        &'m self,
        first: BucketRef<'m>,
    ) -> impl Iterator<Item = Result<BucketRef<'m>, Damage>> {
        let memory = &self.core.memory;
        let mut next = Some(Ok(first));
        // Yield at most as many buckets as fit into the memory: a reader may follow a chain whose
        // blocks have been reused, and such a chain need not end.
        let mut left = 0;
        std::iter::from_fn(move || {
            let bucket = next.take()?;
            if let Ok(bucket) = bucket {
                let after = bucket.next(memory.seam());
                left += 1;
                if after != 0 && left <= memory.len() / layout::BUCKET_BYTES {
                    next = Some(BucketRef::at(memory, after));
                }
            }
            Some(bucket)
        })
    }

    #[inline(always)]
    fn lock_of<'m>(&'m self, bucket: BucketRef<'m>) -> VersionLock<'m, S, V::Lock> {
        VersionLock::new(self.seam(), V::lock(bucket))
    }

    /// Locks a bucket. The thread has passed the gate.
    #[inline(always)]
    fn lock<'m>(&'m self, bucket: BucketRef<'m>) -> Result<Guarded<HeldLock<'m, S, V::Lock>>> {
        let offset = bucket.offset(&self.core.memory);
        self.lock_of(bucket).hold(&self.core, offset).map(Guarded::new)
    }
}

impl<S: Seam, R: SlotRecord, V: Variant> KitTable<S, R> for Pht<S, R, V> {
    const SCHEME: Scheme = V::SCHEME;

    #[inline(always)]
    fn core(&self) -> &Arc<Core<S>> {
        &self.core
    }

    fn growth(&self) -> Growth {
        self.counters.growth()
    }

    fn has_work(&self) -> bool {
        V::GOES_ON && self.missing.is_empty() && self.current().next(self.seam()).is_some()
    }

    fn step(&self) -> Result<bool> {
        self.step_to_move()
    }
}
