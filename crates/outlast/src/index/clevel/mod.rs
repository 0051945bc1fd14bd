//! clevel: lock-free hashing for persistent memory (Chen et al., USENIX ATC 2020).
//!
//! # Structure
//!
//! ```text
//!  root (named root)
//!   | word 1: context, replaced by exchange      word 2: a level kept ready      word 3: progress
//!   v
//!  context   [ check | counts | level | level | level ]      by age, the oldest first
//!                                |       |       |
//!                                v       v       v
//!  level     [ header | bucket 0 | bucket 1 | ...             | chain heads, one a group ]
//!                          |                                       |
//!  bucket    [ slot x 8 ], a line                              overflow nodes of 3 buckets
//!                |
//!  slot      [ mark | tag | offset ] --> record [ state | seal | key, value ] --> record ...
//!
//!  hash      [ group .... | ....... | tag (20..34) | bucket 2 (10..) | bucket 1 (0..) ]
//! ```
//!
//! In each level a hash names two buckets. Both are in one *group* of 512 buckets, which the hash's
//! most significant bits select. (A smaller level is a single group.) So a range of hashes owns the
//! same fraction of every level. A record is in one of its two buckets of some level, or in the
//! overflow chain of its group there.
//!
//! - An insert goes to the newest level, or to the one before it. Of the two buckets, it first
//!   tries the one that is emptier according to the Bloom filters.
//! - If no slot is free and the table is well filled, the inserting thread adds a level of twice
//!   the size, which a background thread has usually made ready. In an emptier table, the thread
//!   extends the overflow chain instead.
//! - While there are more levels than the context keeps (two, as a rule), the oldest is emptied in
//!   steps: its slots are copied to newer levels. Then it is dropped.
//! - A nearly empty table gets a *smaller* level, and all other levels are emptied into it. Levels
//!   are ordered by age, not by size. Records only move from older levels to newer ones.
//!
//! Each process has its own context in DRAM, with a Bloom filter for each bucket (`levels`). A
//! filter holds the tags of its bucket's slots; each overflow chain has one, too. In nine cases of
//! ten, a lookup that finds nothing reads only the filters and the root's word. (It also prefetches
//! its buckets in the levels that take records, before it has read their filters.)
//!
//! The truth about a record is in the record's own first word. Slots only lead to it. So the copy
//! of a slot that rehashing makes is not a second record, and a change of the record needs no lock
//! against rehashing.
//!
//! # Words
//!
//! A slot (`layout::slot`). R is the record's offset and tag, and N those of the record that
//! replaces it. The marks are A (announced), P (pending: visible but possibly not durable) and C
//! (an unconfirmed copy).
//!
//! ```text
//!            announce        takes effect       durable
//!   empty ------------> R,A ------------> R,P ---------> R ----> empty   its record was removed
//!     |  ^               |                               ^ |
//!     |  +---------------+ lost, or void after a crash   | +---> N       its record was replaced
//!     |                                                  | |
//!     |      copy                 confirmed              | |
//!     +------------> R,C --------------------------------+ |
//!     |  ^            |                                    |
//!     |  +------------+ withdrawn, or void                 | its copy in a newer level
//!     v                                                    v is durable
//!   frozen <----------------------------------------------+
//! ```
//!
//! A record's state (`layout::state`):
//!
//! ```text
//!   undecided ----> live ----> forward,P ----> forward     replaced by the record that it names
//!       |             |
//!       |             +------> dead,P -------> dead        removed
//!       +---> killed
//! ```
//!
//! # Invariants
//!
//! 1. A record is in effect if it is live and a slot that is neither announced (A) nor an
//!    unconfirmed copy (C) leads to it, directly or through forwards. A record that such a slot
//!    leads to can be undecided only after a crash, and then counts as live.
//! 2. A slot becomes R or R,P only if its record is live at that moment, or if the slot already led
//!    to that record. A slot marked A or C, and what it leads to, mean nothing after a crash.
//! 3. At most one record of a key is in effect at any time.
//! 4. A pass from the oldest level to the newest finds every record that is in effect throughout,
//!    even if it moves, because the copy of its slot is confirmed before the slot itself is frozen.
//! 5. Every word that a result can depend on is marked P while it is visible but possibly not
//!    durable: slots, forwards, dead records, the root's context, links of nodes. A thread that
//!    reads a word marked P must persist it before it returns or stores anything derived from it.
//!    (A link is persisted by the thread that puts something behind it, so readers need not do it.)
//!    The mark is removed after the fence. Its removal need not be durable. Copies are not marked,
//!    because the slots that they were made from stay until the copies are durable. Nor is a slot
//!    marked that an update or removal changes after its commit, because its old word leads to the
//!    same result.
//! 6. A block is retired exactly once: by the thread whose exchange took it out of effect, or by
//!    the inserter if its insert lost. That thread retires it only when no slot leads to it any
//!    more. If another thread changed a slot so that it no longer leads to the block, that change
//!    is durable before that thread's guard ends, even if its operation fails, and the block cannot
//!    be reused before then.
//! 7. No thread follows a C, and only its *maker*, the thread that made it, confirms it. Makers
//!    have numbers, which are part of the word. A thread that replaces or removes a record first
//!    exchanges the state, and then checks every slot that can lead to the record, and empties
//!    every C with its tag. A maker checks the state after its copy is visible. So a copy of a
//!    retired record is never confirmed.
//! 8. A frozen slot stays frozen. A level is dropped when all of it is frozen.
//! 9. The bits of a tag are in a bucket's filter before a slot with that tag is in the bucket.
//! 10. A bucket is *touched* (`recover`) before anything is read from it or put into it.
//!
//! # Commit points
//!
//! *Lines* are the cache lines that an operation flushes; *record*, *level*, *context* and *node*
//! stand for all lines of such a block.
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | insert | record block; fence; slot: R,A; state: live; slot: R,P (commit); fence; slot: R | record + 1, 2 | a record block that the sweep frees, even if a void slot names it; or the record |
//! | update | record block; fence; the old record's state: forward (commit); fence; slot: to the new record; fence | record + 2, 3 | the old record or the new; or a slot that leads through the old record to the new, which the trace repairs |
//! | remove | state: dead (commit); fence; slot: empty; fence | 2, 2 | the record or none; or a slot that leads to a dead record, which the trace empties |
//! | lookup | none (if it reads a word marked P, it flushes that line and fences) | 0, 0 | nothing |
//! | map | the level and the context, completely; fence (shared with the root's fixed words); the root's commit word | both; no fence besides the root's | blocks that the sweep frees |
//! | level kept ready | the level, completely; fence; root: its offset; fence | level + 1, 2 | a block that the sweep frees; or a level kept ready |
//! | level kept in reserve | the same, with the smallest level | 5, 2 | the same |
//! | expansion | the level, completely (or, if one was kept ready, root: none ready); fence; the reserve, if the root names no level now; context block; fence; root (commit); fence | level + context + 1 (or context + 2), 3; and the reserve's | blocks that the sweep frees, or one more level |
//! | rehashing of a bucket | copies: R,C, then R; fence; slots: frozen; fence | 9 at most, 2 | a record that two slots lead to |
//! | dropping a level | (in a full pool, root: none ready; fence); context block; fence; root (commit); fence | context + 1, 2 (or context + 2, 3) | a level that is empty; and possibly a block that the sweep frees |
//! | overflow node | the node, completely; fence; link (commit); fence | node + 1, 2 | a block that the sweep frees |
//!
//! Why no fewer:
//!
//! - An operation must fence once before it returns.
//! - A record and the slot or state that leads to it are different lines. If the latter became
//!   durable first, it would lead to whatever the block held before.
//! - An update or removal commits in the record, so it need not find the copies of the slot first.
//!   The record's block can be reused only when it is durable that no slot leads to it. That is
//!   what the slot's line and the last fence are for. They could be postponed, but then each such
//!   record would have to be remembered in DRAM.
//!
//! What is *not* flushed, and why:
//!
//! - R,A, and the state live: after a crash, R,P implies both, and without R,P both are void.
//! - R,C: void after a crash.
//! - The removal of a mark.
//! - The progress of rehashing.
//! - The mark that a chain is closed because its level is being emptied: it is for threads that
//!   know an older context, and no such thread survives a crash.
//!
//! The *withdrawal* of an A or a C *is* flushed. In a pool that was closed cleanly, blocks are
//! handed out before every bucket has been touched, so neither may be left on media (see *After a
//! crash*).
//!
//! # Linearization
//!
//! | operation | linearization point |
//! |---|---|
//! | insert | its slot becomes R,P |
//! | update, removal | the exchange of the state |
//! | lookup that finds a record | it reads the record's state |
//! | lookup that finds nothing | its beginning, if the key was absent then; otherwise the moment when the record was removed, which is during the lookup, because by invariant 4 a lookup finds a record that is in effect throughout |
//!
//! Lookups follow forwards. So a lookup that reaches a replaced record through an old slot still
//! returns the one in effect.
//!
//! *Two inserts of one key* (`change`). Each announces its record in a slot. Then it checks all
//! slots that its key can be in, including those of levels added meanwhile. Exchanges and checks
//! are in one total order (SeqCst), and announcements do not move, so at least one of the two
//! inserts sees the other.
//!
//! - A record in effect defeats both.
//! - Of two undecided records, the one of the thread with the smaller number is the stronger. A
//!   thread that sees both kills the weaker by an exchange of its state, and then decides the
//!   stronger, as the thread that inserts that one would.
//! - An insert that has checked and found nothing in its way becomes live, by an exchange that
//!   fails if it was killed.
//! - A thread that finds a live record that has not taken effect makes it take effect, durably,
//!   before it returns "exists".
//!
//! Two inserts of one key cannot both become live, unless the first record is removed in between.
//! Suppose they did, the first before the second.
//!
//! 1. If the second's check saw the first's announcement, the second found the first live, or
//!    killed it, or was killed itself.
//! 2. If it did not, the second checked before the first announced. Then the first saw the second
//!    undecided, and killed it or was killed itself.
//!
//! A killed record is not announced again: the insert retries with another block. No other thread's
//! exchange can mistake the new announcement for the old one, because the old block is not reused
//! while that thread's guard lasts.
//!
//! *A change concurrent with rehashing.* The maker checks the record's state again while its copy
//! is still unconfirmed (invariant 7).
//!
//! - If the state is still live, any thread that changes it from then on finds the copy.
//! - If not, the copy is withdrawn, and no thread has followed it.
//!
//! Two threads that empty the same bucket can each make a copy of a slot. Both copies lead to the
//! same record. Neither thread may confirm the other's copy. Otherwise this could happen:
//!
//! 1. Thread 1 copies, and sees the record live.
//! 2. Thread 2 also sees it live, and pauses.
//! 3. Thread 3 removes the record and withdraws the copy.
//! 4. Thread 2 continues, and copies into the slot where thread 1's copy was.
//! 5. Thread 1 confirms that copy, which leads to a block that is about to be reused.
//!
//! # Lock-freedom
//!
//! No operation waits, and neither do rehashing, expansion and the dropping of levels. Each loop
//! retries only because another operation has made progress:
//!
//! - a lookup: a context was replaced;
//! - a failed exchange of a state or slot: another thread has replaced, removed, decided or moved
//!   the record;
//! - an insert that was killed: there was a record in effect, or a stronger insert, which this
//!   thread has decided. Of the announced inserts of a key, all threads help the strongest, and
//!   only a record in effect kills it (or rehashing, see below). So some insert of the key
//!   succeeds. (One of them is always the strongest: a thread has one announcement at a time, and
//!   no two threads have the same number);
//! - an insert that rehashing killed: its level is being emptied, and it goes to a newer one;
//! - rehashing: another operation changed the slot. If a thread stops in the middle of a bucket,
//!   the next thread finishes the bucket. (There are 16 numbers for makers of copies. If sixteen
//!   threads stop forever inside rehashing, rehashing stops, but operations do not.)
//!
//! If a thread stops forever inside an operation, blocks that are retired after the operation began
//! are not reused (reclamation stalls). Everything else goes on, unless the thread holds one of the
//! locks listed next.
//!
//! Some things are not lock-free: growth of the file and allocation of runs of pages, which take
//! locks of the allocator; freeing retired blocks, which takes such a lock while it changes a
//! bitmap; DRAM allocation; the dirty mark before the first store after opening or `sync`; and
//! `sync`, `snapshot`, `verify` and `close`, which hold back writers.
//!
//! # After a crash
//!
//! Opening reads the root and the context. A bucket or chain is recovered by its first touch, which
//! several threads can do concurrently. Each takes these steps before it uses the bucket:
//!
//! 1. It voids A and C: exchanges them for empty slots.
//! 2. It flushes the line and fences. After process death, stores that were not flushed are still
//!    in the caches, and results will depend on them.
//! 3. It fills the filter, and marks the bucket as touched there.
//!
//! *Why step 1 does not void an announcement of this process.* No thread announces in a bucket
//! before it is touched, and the thread that voids checks the filter's touched mark after it has
//! read the slot. Its exchange cannot hit a later announcement either: that would need the same
//! word, and so the same block. Blocks from before the crash are handed out only after the trace
//! has touched every bucket, and after every guard that began before the end of the trace has ended
//! (`db/reclaim.rs`). After a clean close, there is no A or C to void.
//!
//! *Why it may void a copy of this process.* Rehashing may copy the same record again, with a maker
//! of the same number, into the same slot. Then the word is the same, and the exchange withdraws
//! the new copy, just as a removal would. No thread has followed it. Its maker, which can no longer
//! confirm it, retries.
//!
//! The trace goes through the table by ranges of hashes. In each range, it touches everything,
//! repairs slots that lead to dead records or through forwards, and reports the blocks still in
//! use. (The dead and replaced records were not retired before the crash, or their retirement was
//! lost with it. After the repair nothing leads to their blocks, and the sweep frees them.) A
//! record that moves meanwhile moves to a newer level, which the same pass comes to later.
//!
//! Rehashing continues at the progress mark, and checks the whole level at the end. Slots in two
//! levels may then lead to the same record, which counts as one.
//!
//! *Why nothing comes back later.* An insert that was cut short before R,P was durable is void
//! forever, because a bucket is touched before any other use. One that was cut short after that is
//! in effect from the opening on. A forward or dead state that is durable stays. If it is not
//! durable, no thread has returned or durably stored anything that depends on it (invariant 5).
//!
//! # In a full pool
//!
//! Dropping a level takes a block for the new context. A full pool may not have one, and then the
//! level's space would never come back. So a thread that adds a level first makes sure that the
//! root names a level kept ready. If there is none for the next expansion, it is the smallest level,
//! the *reserve*, whose block has the size of a context. A drop that is refused a block takes it:
//!
//! 1. The root's word of the level kept ready becomes 0, durably. A crash leaves a block that the
//!    sweep frees, so there is space for the context after the crash.
//! 2. The context is written into the block. A crash leaves the same, because the root does not name
//!    the block as a level any more.
//! 3. The root names the context, and the drop goes on as with any other block.
//!
//! The block needs no grace period, because no other thread reads it: a level kept ready is read only
//! by the thread that has taken it, and by `verify`, which holds writers back. The reserve is on
//! media, so it also serves the process that opens the pool next. If several levels have to be
//! dropped, each drop makes the space from which the next reserve is allocated.
//!
//! Removals and changes that do not apply need no space, and succeed. An update that applies needs a
//! block in both record forms, because it commits in the state of the record that it replaces.
//!
//! # Deviations from the paper
//!
//! - In the paper, two inserts of one key can both succeed: thread 1 inserts *k* into one bucket
//!   while thread 2 inserts it into the other, and both return "inserted". A later update or
//!   removal repairs this when it finds the second slot. Here inserts are announced and decided
//!   first. This costs three exchanges and no flush.
//! - In the paper, lookups return slots that are not durable: thread 1 stores the slot, thread 2
//!   reads the value and returns it, and a power loss then removes the key. Here thread 2 persists
//!   the slot first, because it is marked P.
//! - In the paper, an update exchanges the slot, and rehashing copies slots. Thread 1 copies the
//!   slot, thread 2 exchanges the old slot and returns, thread 1 empties the old slot, and the
//!   update is lost. In the same way, a removed key comes back. The paper makes threads check the
//!   level that is being rehashed, and retry. Here an update or removal changes the record itself,
//!   and rehashing checks the record before it confirms a copy of the slot.
//! - The published code does not resume rehashing after a restart, and keeps no list of blocks to
//!   free.
//! - The paper searches from the bottom level to the top, and starts over when the context has
//!   changed. Here a search continues with the levels that were added.
//! - The paper's two buckets are anywhere in a level. Here they are in one group, so that
//!   iteration, the trace and estimates can go by ranges of hashes. The load factor at expansions
//!   is the same within a hundredth (the test in `tests/library/clevel.rs` prints it).
//! - The paper adds a level as soon as one record finds no slot. The larger the table, the emptier
//!   it is then. Here an unlucky record goes to its group's overflow chain until 0.84 of the slots
//!   are in use (0.5 in tables of less than 8,192 slots). So do records that share a hash with many
//!   others, and any record if there is no room for a level.
//! - The paper keeps more than two levels only while it rehashes, and leaves shrinking to future
//!   work. Here more than two levels stay once a level has reached the largest possible size, and a
//!   nearly empty table shrinks. Then a level kept ready that is too large for it is freed.
//! - The paper keeps everything in persistent memory. Here each bucket has a Bloom filter of tags in
//!   DRAM, so that most lookups of absent keys read no slot. This is the largest departure: after a
//!   restart, the filters are built again as buckets are used.
//! - The paper's tags have 16 bits. Here a slot needs two bits for its marks, and a tag has 14.
//! - The paper compares buckets of 4, 8 and 16 slots, and begins with 64 K slots or more. Here a
//!   bucket has 8 slots, one line, and a new map is small.
//! - The paper's context has 17 bytes. Here it is a block of 256 bytes with a checksum.
//! - The paper sets the number of rehashing threads, which take buckets by their numbers' remainders.
//!   Here they claim parts by a counter: one thread of the pool, and any thread that calls
//!   `Pool::step`, up to 16.
//! - The paper finds blocks that a crash has leaked by a buffer of pointers for each thread. Here the
//!   pool's trace finds them.

pub mod bugs;
mod change;
pub mod layout;
mod levels;
mod ops;
pub mod points;
mod ready;
mod records;
mod recover;
mod rehash;
mod resize;
mod scan;
mod verify;

#[cfg(test)]
mod tests;

use crate::error::{Damage, Error, Result};
pub use crate::index::config::Clevel as Config;
use crate::index::kit::table::Table;
use crate::index::kit::walk::Counters;
use crate::index::record::BlockRecord;
use crate::index::{Growth, Scheme};
use crate::pmem::{Offset, Point, Seam, SeededBug, Shared, SharedWord, Word};
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::ROOT_SCHEME_WORDS;
use layout::{RECORD_HEADER, root};
use levels::{Context, Discards};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// A hash table. See the module's documentation.
pub struct Clevel<S: Seam, R: BlockRecord> {
    core: Arc<Core<S>>,
    /// The offset of the root's scheme words.
    root: u64,
    shape: Config,
    /// The current context, made from a box; never null once the table is open.
    context: Shared<AtomicPtr<Context>>,
    /// Replaced contexts that threads may still be reading.
    discards: Discards,
    /// The numbers that rehashing threads have taken, one bit each: see
    /// [`slot::MAKERS`](layout::slot::MAKERS).
    makers: Shared<AtomicU32>,
    /// The number of records removed since the last check whether the table is too large.
    removed: SharedWord,
    /// Counts expansions, levels that were emptied, and buckets that were touched.
    counters: Counters,
    form: PhantomData<R>,
}

impl<S: Seam, R: BlockRecord> Clevel<S, R> {
    /// Opens the table whose root is in `slot`. Takes constant time.
    pub fn open(core: &Arc<Core<S>>, slot: usize, shape: Config) -> Result<Self> {
        let root = root_offset(slot).raw() + 8;
        let damaged_root = |damage| Error::DamagedRoot { slot, damage };
        let mut table = Clevel {
            core: Arc::clone(core),
            root,
            shape,
            context: Shared::default(),
            discards: Discards::new(),
            makers: Shared::default(),
            removed: Shared::default(),
            counters: Counters::default(),
            form: PhantomData,
        };
        core.memory.words(root, ROOT_SCHEME_WORDS as u64 * 8)?;
        let word = table.look(table.root(root::CONTEXT)) & !root::PENDING;
        if root::unpack(word).is_none() {
            let found = format!("{word:#x}");
            return Err(damaged_root(Damage::new(root, "a context's offset and turn", found)));
        }
        let context = table.read_context(word, None)?;
        if let Some(level) = context.draining() {
            let mark = table.look(table.root(root::PROGRESS));
            let part = root::progress(mark, level.offset).min(level.parts());
            level.next.store(table.seam(), part, Ordering::Relaxed);
        }
        *table.context.alone().get_mut() = Box::into_raw(Box::new(context));
        Ok(table)
    }

    /// Makes the first level and context of a new map, and flushes them. The caller's fence makes them
    /// durable before the root names them. Returns the scheme's words of the root.
    pub fn create(core: &Arc<Core<S>>, shape: Config) -> Result<[u64; ROOT_SCHEME_WORDS]> {
        resize::create(core, shape)
    }

    /// Returns one of the root's words.
    #[inline(always)]
    fn root(&self, index: usize) -> &Word {
        debug_assert!(index < ROOT_SCHEME_WORDS);
        let offset = Offset::new(self.root + index as u64 * 8);
        // SAFETY: checked when the table was opened.
        unsafe { self.core.memory.at_unchecked(offset) }
    }

    #[inline(always)]
    fn seam(&self) -> &S {
        self.core.memory.seam()
    }

    /// Returns whether the proof harness has seeded this bug.
    #[inline(always)]
    fn seeded(&self, bug: &'static SeededBug) -> bool {
        self.core.memory.seam().seeded(bug)
    }

    /// Reads a word that other threads exchange. SeqCst, together with
    /// [`exchange`](Self::exchange): if two threads each exchange a word and then read the other's,
    /// at least one of them sees the other's exchange.
    #[inline(always)]
    fn look(&self, word: &Word) -> u64 {
        self.core.memory.seam().load(word, Ordering::SeqCst)
    }

    /// Replaces `old` by `new` in a word. `Err` has what the word holds instead of `old`. See
    /// [`look`](Self::look).
    #[inline(always)]
    fn exchange(&self, word: &Word, old: u64, new: u64, at: &'static Point) -> Result<u64, u64> {
        let order = Ordering::SeqCst;
        self.core.memory.seam().compare_exchange(word, old, new, order, order, at)
    }

    /// Sets bits in the filter of a bucket or chain, unless all are set already.
    #[inline(always)]
    fn set_filter(&self, filter: &SharedWord, bits: u64) {
        // SeqCst: as `look`.
        if filter.load(self.seam(), Ordering::SeqCst) & bits != bits {
            filter.fetch_or(self.seam(), bits, Ordering::SeqCst);
        }
    }
}

impl<S: Seam, R: BlockRecord> Drop for Clevel<S, R> {
    fn drop(&mut self) {
        let context = *self.context.alone().get_mut();
        if !context.is_null() {
            // SAFETY: made from a box, and nothing uses the table any more.
            drop(unsafe { Box::from_raw(context) });
        }
    }
}

impl<S: Seam, R: BlockRecord> Table<S, R> for Clevel<S, R> {
    const SCHEME: Scheme = Scheme::Clevel;

    fn record_bytes(&self, key: R::Key<'_>, value: R::Value<'_>) -> u64 {
        let (key_len, value_len) = R::lengths(key, value);
        RECORD_HEADER + (key_len + value_len) as u64
    }

    #[inline(always)]
    fn core(&self) -> &Arc<Core<S>> {
        &self.core
    }

    fn growth(&self) -> Growth {
        self.counters.growth()
    }

    fn has_work(&self) -> bool {
        self.has_background_work()
    }

    fn step(&self) -> Result<bool> {
        self.background_step()
    }

    fn use_huge_pages(&self) {
        if let Ok(context) = self.context(&self.guard(false)) {
            context.levels.iter().for_each(|level| level.use_huge_pages());
        }
    }
}
