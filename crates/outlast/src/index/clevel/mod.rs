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
//! In each level a hash names two buckets; both are in one *group* of 512, which its first
//! bits name, so a range of hashes owns the same part of every level. A record stands in one of
//! the two buckets of some level, or in its group's overflow chain. Inserts go to the newest
//! level, to the bucket that is emptier by the notes, or to the one before. Where no slot is
//! free, the inserting thread adds a level of twice the size; it has been made ready in the
//! background as a rule. While there are more than two levels, the oldest is emptied in steps:
//! its slots are copied to newer levels, and it is dropped. A nearly empty table gets a
//! *smaller* level, and all others are emptied into it. Levels are ordered by age, not by size,
//! and records only move from older to newer ones.
//!
//! Each process keeps a context of its own in DRAM, with a note for each bucket (`levels`): a
//! Bloom filter of the tags in it. In nine cases of ten, a lookup that finds nothing rests on the
//! notes and the root's word alone. (The processor is asked for the lines of the likely buckets
//! before the notes are there, and drops them then.)
//!
//! The truth about a record stands in its own first word. Slots only lead to it, so a copy of a
//! slot, which rehashing makes, is no second record, and a change of the record needs no lock
//! against it.
//!
//! # Words
//!
//! A slot (`layout::slot`): R is the record's offset and tag.
//!
//! ```text
//!            announce        takes effect       durable
//!   empty ------------> R,A ------------> R,P ---------> R ----> empty   its record was removed
//!     |  ^               |                               | ^
//!     |  +---------------+ lost, or void after a crash   | +---> N        its record was replaced
//!     |                                                  v
//!     |      copy                 confirmed              R
//!     +------------> R,C -------------------------> in a newer level
//!     |  ^            |                                  |
//!     |  +------------+ withdrawn, or void               | the copy is durable
//!     v                                                  v
//!   frozen <------------------------------------------ frozen
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
//! 1. A record is in effect if a slot leads to it, directly or by way of forwards, that is
//!    neither announced (A) nor an unconfirmed copy (C), and its state is live; or undecided,
//!    which it can be there only after a crash, and means live.
//! 2. A slot is R or R,P only if its record was live when it became so, or it led to the
//!    record already. A, C and what they lead to mean nothing after a crash.
//! 3. Of the records of a key, one at most is in effect at any time.
//! 4. A record that is in effect and moves is found by a pass from the oldest level to the
//!    newest: its copy is confirmed before the slot that it was made of is frozen.
//! 5. What is visible and may not be durable has the mark P: slots, forwards, dead records,
//!    the root's context, links of nodes. Who meets P makes it durable before it rests an
//!    answer, or a store, on it. The mark is taken away after the fence; that it is gone need
//!    not be durable. Copies have none: what they were made of stays until they are durable.
//! 6. A block is retired once, by the thread whose exchange took it out of effect (for an insert
//!    that lost, by the inserter), after no slot leads to it. A slot that stopped leading to it
//!    by another thread's doing is durable before that thread's guard ends, and the block is not
//!    reused before.
//! 7. Nobody follows C, and nobody but its maker confirms it: makers have numbers, which are in
//!    the word. Whoever replaces or removes a record looks at every slot that can lead
//!    to it, after the exchange of its state, and empties all C with its tag on the way; who
//!    makes a copy looks at the state after the copy can be seen. So a confirmed copy of a
//!    retired record does not come to be.
//! 8. A frozen slot stays frozen, and a level is dropped when all of it is.
//! 9. The bits of a tag are in a note before a slot with that tag is in the bucket.
//! 10. A bucket is *touched* (`recover`) before anything is read from it or put into it.
//!
//! # Commit points
//!
//! | operation | stores, in order | lines, fences | a crash in between leaves |
//! |---|---|---|---|
//! | insert | record block; fence; slot: R,A; state: live; slot: R,P (commit); fence; slot: R | record + 1, 2 | a block for the trace, also where a void slot names it; or the record |
//! | update | record block; fence; state of the old one: forward (commit); fence; slot: to the new one; fence | record + 2, 3 | the old record or the new one; a slot that leads through the old one, which the trace sets right |
//! | remove | state: dead (commit); fence; slot: empty; fence | 2, 2 | the record or none; a slot that leads to a dead one, which the trace empties |
//! | lookup | none; where P is met, that line; fence | 0, 0 | |
//! | map | level and context whole; fence, the root's; root's commit word | both, 0 (+ the root's) | blocks for the trace |
//! | level kept ready | level whole; fence; root: its offset; fence | level + 1, 2 | a block for the trace; or a level kept ready |
//! | expansion | (level whole; fence;) or root: none ready; fence; context block; fence; root (commit); fence | context + 2, 3 | blocks for the trace, or a level more |
//! | rehashing of a bucket | copies: R,C, then R; fence; slots: frozen; fence | 9 at most, 2 | a record that two slots lead to |
//! | dropping a level | context block; fence; root (commit); fence | context + 1, 2 | a level that is empty |
//! | overflow node | node whole; fence; link (commit); fence | node + 1, 2 | a block for the trace |
//!
//! Why no fewer: what returns has fenced once. A record and the slot or state that leads to it
//! are different lines, and if the latter came first it would lead to whatever the block held.
//! An update and a removal commit in the record, so that copies of its slot need not be found
//! first; and the record can be reused only after the slots do not lead to it, durably. The
//! second line and last fence of both are for that, and could be put off; they are not, because
//! what is put off has to be kept in DRAM for each record.
//!
//! What is *not* flushed, and why: R,A and live (the slot R,P says both after a crash, and
//! without it they are void); R,C; marks that are taken away; the progress of rehashing; that a
//! chain is closed, since a level is being emptied (it tells those who know an older context, and
//! a crash leaves none of them). That an A or a C was *withdrawn* is flushed: after a clean close,
//! whose blocks are handed out at once, no such word may be found, see below.
//!
//! # Linearization
//!
//! An insert takes effect when its slot becomes R,P; an update or removal, at the exchange of the
//! state. A lookup that finds a record: when it read its state. One that finds nothing: if the
//! key was absent when it began, then; if not, its record was removed meanwhile, at that moment
//! (4: it cannot have missed it otherwise). Forwards are followed, so a lookup that came to a
//! record by an old slot answers with the one in effect.
//!
//! *Two inserts of one key* (`change`): each announces its record in a slot, and then looks at
//! all slots that its key can be in, and at levels that were added meanwhile. Of the two, at
//! least one sees the other, since exchanges and looks are in one order (SeqCst) and
//! announcements are not moved. A record in effect defeats both. Of two that are undecided, the
//! one of the thread with the smaller number is the stronger; who sees both kills the weaker by
//! an exchange of its state, and goes on to decide the stronger as its own inserter would. One
//! that looked and saw nothing in its way becomes live, by an exchange that fails if it was
//! killed. Suppose two became live, the first before the second. The second's look, if it saw the
//! announcement, met a live record, or killed it, or was killed. If it did not, it looked before
//! the first announced; then the first saw the second undecided, and killed it or was killed. A
//! live one that has not taken effect is made to by whoever meets it and answers "exists".
//! Killed records are not announced again: another try takes another block, which no other
//! thread's exchange can mistake for it, since the old one is not reused while its guard lasts.
//!
//! *A change beside rehashing*: the copy is unconfirmed while the state is looked at again (7).
//! If the state was still live, whoever changes it from then on finds the copy; if not, the copy
//! is withdrawn and was followed by nobody. Two threads that empty the same bucket make two
//! copies, or one; both lead to the same record. Neither confirms the other's: thread 1 copies
//! and sees the record live; thread 2 has seen it live, too, and stops; thread 3 removes the record
//! and withdraws the copy; thread 2 copies into the same slot; thread 1 confirms that, and the slot
//! leads to a block that is about to be reused.
//!
//! # Lock-freedom
//!
//! No operation waits, rehashing, expansion and dropping included. Each loop goes round again
//! only because another operation has got on:
//! - a lookup, because a context was replaced;
//! - an exchange of a state or slot that failed: somebody has replaced, removed, decided, moved;
//! - an insert that was killed: it met one in effect, or a stronger one that it has decided. The
//!   strongest of those announced is helped by all and killed by nobody but one in effect, so
//!   some insert of the key succeeds. A thread has one announcement at a time, and numbers of
//!   threads differ;
//! - an insert that rehashing killed: its level is being emptied, and it goes to a newer one;
//! - rehashing, because a slot changed under it. A bucket that a stopped thread has begun is
//!   finished by the next one. (Makers of copies have 16 numbers: sixteen threads stopped for
//!   ever inside of rehashing stop it; operations go on.)
//!
//! With any thread stopped for ever, blocks that were retired since are not reused (reclamation
//! stalls), and all else goes on from space reserved before. Outside of this are: growth of the
//! file, and of runs of pages, which take locks of the allocator (so does whoever retires a
//! block and frees others, for the time of a change of a bitmap); DRAM allocation; the mark
//! "dirty" before the first store after an open or sync; `sync`, which holds writers back.
//!
//! # After a crash
//!
//! Opening reads the root and the context. The first touch of a bucket (or chain), by any number
//! of threads: voids A and C, flushes the line, makes the note; only then the bucket is used.
//! Why what it found is flushed: a process that died leaves its stores in the caches. Why A can be
//! told from an announcement of this process: none is made before the bucket is touched, and who
//! voids looks at the note after it has read the slot. Why the exchange that voids cannot hit
//! another announcement: the same word would need the same block, and blocks from before the
//! crash are not handed out before every bucket was touched by the trace, and all guards from
//! before its end are gone (`pool/store.rs`). After a clean close there is no such word. It can hit
//! another *copy*: rehashing copies the same record, which is still there, and its maker can have the
//! same number and find the same slot. That copy is withdrawn, as by a removal that meets it: it
//! was followed by nobody, and its maker, who cannot confirm it any more, looks again.
//!
//! The trace goes by ranges of hashes; in a range it touches everything, sets slots right that
//! lead to dead records or through forwards (whose blocks were retired in DRAM only, or not yet;
//! now nothing leads to them and the sweep frees them), and reports what is left. A record that
//! moves meanwhile moves to a newer level, which the same pass comes to later.
//!
//! Rehashing goes on where the progress mark says, and looks through the whole level at the end.
//! A record in two levels is one record.
//!
//! Why nothing surfaces later: an insert that was cut short before R,P was durable is void for
//! ever, since touching precedes every other use; one after that is in effect from the start. A
//! forward or dead state that is durable stays; one that is not has been seen by nobody whose
//! answer is durable (5).
//!
//! # Deviations from the paper
//!
//! - The paper lets two inserts of one key both succeed, and repairs when an update or removal
//!   meets the second one: thread 1 inserts *k* into one bucket while thread 2 inserts it into
//!   the other, both answer "inserted". Here inserts are announced and decided first, at the
//!   price of three exchanges and no flush.
//! - The paper's lookups answer by slots that are not durable: thread 1 stores the slot, thread 2
//!   reads the value and answers, power fails, the key is gone. Here P is met.
//! - The paper's update exchanges the slot, and rehashing copies slots: thread 1 has copied the
//!   slot, thread 2 exchanges the old one and answers, thread 1 removes the old one; the update
//!   is lost. It has threads check the level that is rehashed and try again. Here both act on the
//!   record. The same with a removal, which comes back.
//! - The published code starts no rehashing after a restart, and keeps no list of what to free.
//! - The paper searches from the bottom to the top level and begins again when the context has
//!   changed. Here the levels that were added are searched in addition.
//! - The paper's two buckets are anywhere in a level. Here they are in one group, so that
//!   iteration, the trace and estimates go by ranges of hashes. The load factor at expansions is
//!   the same within a hundredth (the test in `tests/clevel.rs` prints it).
//! - A level was added as soon as one record found no slot: the larger the table, the emptier it
//!   was then. Here a record with bad luck goes to its group's overflow chain until 0.84 of the
//!   slots are in use, and many records of one hash do so too; and any, where there is no room for
//!   a level.
//! - The paper keeps one level more than two while it rehashes, and shrinking is its future work.

pub mod bugs;
mod change;
pub mod layout;
mod levels;
mod ops;
pub mod points;
mod recover;
mod resize;
mod scan;
mod verify;

use crate::error::{Damage, Error, Result};
use crate::index::kit::table::Table;
use crate::index::kit::walk::Counters;
use crate::index::record::Record;
use crate::index::{Growth, Scheme, SchemeConfig, Settings};
use crate::pmem::{Offset, Point, Seam, SeededBug, Shared, SharedWord, Word};
use crate::pool::core::{Core, root_offset};
use crate::pool::layout::ROOT_SCHEME_WORDS;
use layout::root;
use levels::{Context, Discards};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// How a map's levels begin, and how they are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// log2 of the buckets of the first level, and of the smallest one: from 1 to 16.
    pub first_bits: u32,
    /// log2 of the buckets of a group: from 1 to [`layout::GROUP_BITS`].
    pub group_bits: u32,
}

impl SchemeConfig for Config {
    fn of_settings(settings: &mut Settings, _: &str) -> Result<Config> {
        let first_bits = settings.take("bucket_bits", [1, 6], 1..=6, 1)?;
        Ok(Config { first_bits, group_bits: layout::GROUP_BITS })
    }

    fn from_words([first, group, rest]: [u64; 3]) -> Option<Config> {
        let known = (1..=16).contains(&first)
            && (1..=u64::from(layout::GROUP_BITS)).contains(&group)
            && rest == 0;
        known.then_some(Config { first_bits: first as u32, group_bits: group as u32 })
    }

    fn to_words(self) -> [u64; 3] {
        [u64::from(self.first_bits), u64::from(self.group_bits), 0]
    }

    fn features(self) -> u64 {
        layout::FEATURE
    }
}

/// A hash table. See the module's documentation.
pub struct Clevel<S: Seam, R: Record> {
    core: Arc<Core<S>>,
    /// The root's scheme words.
    root: u64,
    shape: Config,
    /// The present context, made of a box; never null.
    context: Shared<AtomicPtr<Context>>,
    /// Those before it that may still be read.
    discards: Discards,
    /// The threads that are rehashing, a bit each: see [`slot::MAKERS`](layout::slot::MAKERS).
    makers: Shared<AtomicU32>,
    /// Records removed since the table was last looked at for being too large.
    removed: SharedWord,
    /// Expansions, levels that were emptied, and buckets that were touched.
    counters: Counters,
    form: PhantomData<R>,
}

impl<S: Seam, R: Record> Clevel<S, R> {
    /// Opens the table whose root is in a slot. Takes constant time.
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

    /// Makes the first level and context of a new map, durable before the root that will name
    /// them. Returns the root's words.
    pub fn create(core: &Arc<Core<S>>, shape: Config) -> Result<[u64; ROOT_SCHEME_WORDS]> {
        core.use_feature(shape.features(), &points::FEATURE)?;
        resize::create(core, shape)
    }

    /// One of the root's words.
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

    /// Whether the proof harness has planted this bug.
    #[inline(always)]
    fn seeded(&self, bug: &'static SeededBug) -> bool {
        self.core.memory.seam().seeded(bug)
    }

    /// Reads a word that other threads exchange. SeqCst, with [`exchange`](Self::exchange): of
    /// two threads that each exchange a word and then look at the other's, one sees the other.
    #[inline(always)]
    fn look(&self, word: &Word) -> u64 {
        self.core.memory.seam().load(word, Ordering::SeqCst)
    }

    /// Exchanges a word; `Err` is what it holds instead. See [`look`](Self::look).
    #[inline(always)]
    fn exchange(&self, word: &Word, old: u64, new: u64, at: &'static Point) -> Result<u64, u64> {
        let order = Ordering::SeqCst;
        self.core.memory.seam().compare_exchange(word, old, new, order, order, at)
    }

    /// Sets bits of a note, if they are not.
    #[inline(always)]
    fn set_note(&self, note: &SharedWord, bits: u64) {
        // SeqCst: as `look`.
        if note.load(self.seam(), Ordering::SeqCst) & bits != bits {
            note.fetch_or(self.seam(), bits, Ordering::SeqCst);
        }
    }
}

impl<S: Seam, R: Record> Drop for Clevel<S, R> {
    fn drop(&mut self) {
        let context = *self.context.alone().get_mut();
        if !context.is_null() {
            // SAFETY: made of a box, and nobody uses the table any more.
            drop(unsafe { Box::from_raw(context) });
        }
    }
}

impl<S: Seam, R: Record> Table<S, R> for Clevel<S, R> {
    const SCHEME: Scheme = Scheme::Clevel;

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
