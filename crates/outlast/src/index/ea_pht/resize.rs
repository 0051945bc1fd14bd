//! Growth: the resize of the whole table (3.5.4, 5.2), and annexes.
//!
//! # The life of a table
//!
//! | state | recognized by | who ends it, and how |
//! |---|---|---|
//! | growing | `resizing` 0 | a change that finds a resize due sets `resizing` |
//! | preparing | `resizing` 1, no `next` | that thread closes the allocator of overflow buckets, and writes the next table. Without space, it undoes both and sets `retried_at` |
//! | moving | `next` | threads claim buckets (`claimed`), mark each as moved under its lock, and count them (`moved`). One that cannot move what it has claimed gives it back |
//! | ending | `ending` 1 | the thread that finds all of them moved makes the root name the next table |
//! | retired | `retired` 1 | its blocks are reused once no visit can hold one |
//!
//! # Who fences
//!
//! The thread that flushes something also fences, before others can rely on it:
//!
//! | what | in EA-PHT and -H | in -HPR |
//! |---|---|---|
//! | the next table's headers | with the copies of the thread's first buckets ([`FIRST`]), without which the resize cannot end | before the root names the table |
//! | copies | once for all buckets of a claim, before they count as moved | before the mark on the old bucket |
//! | the counter of overflow buckets | with the copies; if nothing was copied, before a bucket is given back | the same |
//! | the mark on the old bucket | none on media | before the mark in its lock |
//! | the root | before the next table is the current one | the same; its second word, before any bucket is moved |

use super::bucket::BucketRef;
use super::layout::{self, Link, MAX_DEPTH, MOVED as MOVED_ON_MEDIA, SLOTS};
use super::table::{self, Table};
use super::{MOVED, Pht, Route, Variant, bugs, points};
use crate::error::{Damage, Result};
use crate::index::bugs as index_bugs;
use crate::index::kit::lock::LockPlace;
use crate::index::kit::media::empty_words;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::{SlotRecord, SlotWords};
use crate::pmem::{Memory, Point, Seam, Word};
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// So many in 64 of a table's buckets have overflow buckets at most. More would slow down lookups.
const CHAINS: u64 = 7;
/// How many buckets a thread claims at a time, if it moves buckets until none is left to claim.
const CLAIM: u64 = 16;
/// How many buckets the thread that began a resize moves at first.
const FIRST: u64 = 1;
/// How many buckets a change moves in addition to its own work.
const A_CHANGE: u64 = 2;
/// How many buckets a step in the background moves.
const STEP: u64 = 64;

/// Writes a new map's table and flushes it. The fence before the root's commit word makes it durable.
pub(super) fn create<S: Seam, R: SlotRecord>(
    core: &Arc<Core<S>>,
    depth: u32,
    chunk_bits: u32,
) -> Result<[u64; ROOT_SCHEME_WORDS]> {
    let (memory, at) = (&core.memory, &points::CREATE);
    let empty = empty_words::<S, R>(core)?;
    let (table, mut blocks) = Table::write(core, depth, chunk_bits, 0, at)?;
    for index in 0..table.buckets() {
        let bucket = table.bucket(memory, index).expect("a chunk of a new table");
        let empty = empty[(table.segment(index).low >> 63) as usize];
        write_bucket(core, bucket, None, &[], empty, 0, at);
    }
    blocks.iter_mut().for_each(UnlinkedBlock::set_linked);
    let mut words = [0; ROOT_SCHEME_WORDS];
    words[0] = Link { offset: table.offset, depth }.pack(0);
    words[1] = Link::default().pack(1);
    Ok(words)
}

/// Writes a bucket that nothing links to, and its metadata. Flushes the bucket, without a fence.
fn write_bucket<S: Seam>(
    core: &Core<S>,
    to: BucketRef<'_>,
    owner: Option<Link>,
    records: &[(SlotWords, u64)],
    empty: u64,
    next: u64,
    at: &'static Point,
) {
    let (memory, seam) = (&core.memory, core.memory.seam());
    let lock = to.bucket.lock.word();
    memory.store(lock, owner.map_or(0, |owner| owner.pack(memory.offset_of(lock).raw())), at);
    Link { offset: next, depth: 0 }.store(memory, &to.bucket.next, at);
    to.forget(seam);
    for (number, slot) in to.bucket.slots.iter().enumerate() {
        match records.get(number) {
            Some(&(words, hash)) => {
                slot.write(memory, words, at);
                to.set_fingerprint(seam, number, Some(hash));
            }
            None => slot.write(memory, SlotWords { first: empty, second: 0 }, at),
        }
    }
    to.set_next(seam, next);
    memory.flush(to.bucket, at);
}

/// The result of moving a bucket.
enum Move {
    /// This thread has moved it.
    Done,
    /// Another thread had moved it.
    WasDone,
    /// The next table has too few overflow buckets left. The copies need at most this many.
    NoRoom(u64),
}

/// The result of claiming some buckets and moving them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// All claimed buckets are moved.
    Moved,
    /// No bucket of the table is left to claim.
    None,
    /// The next table has too few overflow buckets left: a chain's copies need at most this many.
    /// The buckets that were not moved can be claimed again.
    NoRoom(u64),
}

/// Overflow buckets for the copies of a chain. When dropped, it gives back those that are left.
struct Reserved<'t, S: Seam> {
    table: &'t Table,
    memory: &'t Memory<S>,
    buckets: Vec<u64>,
    /// Whether the counter is durable already, or a later fence of this thread makes it durable
    /// before the table is used. If not, the drop fences before it gives buckets back.
    is_counted: bool,
}

impl<S: Seam> Drop for Reserved<'_, S> {
    fn drop(&mut self) {
        if !self.is_counted
            && !self.buckets.is_empty()
            && !self.memory.seam().seeded(&bugs::GIVEN_BACK_UNCOUNTED)
        {
            self.memory.fence(&points::MOVE_NEW);
        }
        self.buckets.drain(..).for_each(|bucket| self.table.give_back(self.memory.seam(), bucket));
    }
}

impl<S: Seam, R: SlotRecord, V: Variant> Pht<S, R, V> {
    // ---- Overflow ---------------------------------------------------------------

    /// See [`write_bucket`].
    pub(super) fn write_bucket(
        &self,
        to: BucketRef<'_>,
        owner: Option<Link>,
        records: &[(SlotWords, u64)],
        empty: u64,
        next: u64,
        at: &'static Point,
    ) {
        write_bucket(&self.core, to, owner, records, empty, next, at);
    }

    /// Links a bucket to the next one on media, without a flush.
    pub(super) fn link(&self, last: BucketRef<'_>, next: u64, at: &'static Point) {
        Link { offset: next, depth: 0 }.store(&self.core.memory, &last.bucket.next, at);
    }

    /// Makes room for a chain: resizes its table if that is due, or else adds an annex. If the
    /// table is already being resized, moves the chain's bucket (HPR), or helps and waits.
    pub(super) fn make_room(&self, route: &Route<'_>) -> Result<()> {
        let table = route.table;
        if table.resizing.load(self.seam(), Ordering::Acquire) == 0 {
            if !self.is_due(table) {
                return table.extend(&self.core, 1);
            }
            if table.resizing.swap(self.seam(), 1, Ordering::AcqRel) == 0 {
                return match self.resize(table) {
                    // Without space for the next table, this one gets longer chains, as long as
                    // there is space for overflow buckets.
                    Err(error) if error.is_full() => Ok(()),
                    resized => resized,
                };
            }
        }
        match table.next(self.seam()) {
            Some(next) if V::GOES_ON => {
                let index = route.index;
                let moves = || self.move_and_count(table, next, index..index + 1);
                self.move_with_room(table, next, moves).map(drop)
            }
            Some(_) => self.help_and_wait(table),
            None => self.wait_for_next(table),
        }
    }

    /// Waits while another thread prepares the next table.
    fn wait_for_next(&self, table: &Table) -> Result<()> {
        let mut turn = 0;
        while table.next(self.seam()).is_none()
            && table.resizing.load(self.seam(), Ordering::Acquire) != 0
        {
            self.core.wait(&mut turn)?;
        }
        Ok(())
    }

    /// Runs `moves` in a visit if the table is still the current one. Other threads can move
    /// buckets that this thread has claimed, and end the resize.
    fn in_visit(&self, old: &Table, moves: impl FnOnce() -> Result<Claim>) -> Result<Claim> {
        let _visit = self.core.visit();
        if !std::ptr::eq(old, self.current()) && !self.seeded(&bugs::MOVED_LATE) {
            // All buckets are moved, and the table may have been reused before this visit.
            return Ok(Claim::None);
        }
        moves()
    }

    /// Does what [`in_visit`](Self::in_visit) does. If the next table lacks overflow buckets, gives
    /// it more, outside of the visit: an allocation may have to wait for all visits.
    fn move_with_room(
        &self,
        old: &Table,
        next: &Table,
        moves: impl FnOnce() -> Result<Claim>,
    ) -> Result<Claim> {
        let claim = self.in_visit(old, moves)?;
        if let Claim::NoRoom(wanted) = claim {
            next.extend(&self.core, wanted)?;
        }
        Ok(claim)
    }

    // ---- Resize -----------------------------------------------------------------

    /// Returns whether the table should be resized, because many of its buckets have overflow
    /// buckets.
    pub(super) fn is_due(&self, table: &Table) -> bool {
        let chains = table.chains.load(self.seam(), Ordering::Relaxed);
        let linked = table.linked.load(self.seam(), Ordering::Relaxed);
        let retried_at = table.retried_at.load(self.seam(), Ordering::Relaxed);
        let endless = self.seeded(&index_bugs::DOUBLED_WITHOUT_END) && table.depth < 10;
        let many = chains * 64 > CHAINS << table.depth && linked >= retried_at;
        (many || endless)
            && table.depth < MAX_DEPTH
            && self.missing.is_empty()
            // A table that a resize is still filling is not resized, because the root can name only
            // two tables.
            && std::ptr::eq(table, self.current())
    }

    /// Announces the next table's size to the pool, once, when this table has a quarter of the
    /// chains with overflow buckets that make a resize due.
    pub(super) fn announce_next(&self, table: &Table) {
        let chains = table.chains.load(self.seam(), Ordering::Relaxed);
        if chains * 256 >= CHAINS << table.depth
            && table.depth < MAX_DEPTH
            && self.missing.is_empty()
            && table.announced.load(self.seam(), Ordering::Relaxed) == 0
            && table.announced.swap(self.seam(), 1, Ordering::Relaxed) == 0
        {
            let next = table::bytes(&self.core, table.depth + 1, self.chunk_bits);
            self.core.announce(next);
        }
    }

    /// Resizes the table or, in HPR, begins to resize it.
    #[cold]
    fn resize(&self, old: &Table) -> Result<()> {
        let next = self.prepare_next(old).inspect_err(|_| {
            let linked = old.linked.load(self.seam(), Ordering::Relaxed);
            let never = self.seeded(&bugs::RETRIED_NEVER);
            let at = if never { u64::MAX } else { linked + linked / 8 + 1 };
            old.retried_at.store(self.seam(), at, Ordering::Relaxed);
            unless_seeded!(self, bugs::CLOSED_KEPT => old.reopen(self.seam()));
            if !self.seeded(&bugs::RESIZING_KEPT) {
                old.resizing.store(self.seam(), 0, Ordering::Release);
            }
        })?;
        if V::GOES_ON && !self.seeded(&index_bugs::DOUBLED_WITHOUT_END) {
            self.core.wake_worker();
            return Ok(());
        }
        self.move_with_room(old, next, || self.move_and_count(old, next, 0..FIRST))?;
        self.help(old, next)?;
        self.help_and_wait(old)
    }

    /// Prepares the table to which `old` will be moved.
    fn prepare_next<'t>(&'t self, old: &'t Table) -> Result<&'t Table> {
        let (core, memory) = (&self.core, &self.core.memory);
        let used = old.close(memory)?;
        let at = &points::RESIZE_NEW;
        let (next, mut blocks) = Table::write(core, old.depth + 1, self.chunk_bits, used, at)?;
        if V::GOES_ON {
            let at = &points::RESIZE_BEGIN;
            memory.fence(at);
            let word = self.root_word(1)?;
            memory.store_release(word, Link { offset: next.offset, depth: next.depth }.pack(1), at);
            memory.flush_words(std::slice::from_ref(word), at);
            memory.fence(at);
        }
        blocks.iter_mut().for_each(UnlinkedBlock::set_linked);
        if !V::GOES_ON {
            // The first buckets are for this thread, so that no other thread can end the resize
            // before this one has fenced. So the new table's headers are durable before the root
            // leads to them.
            old.claimed.store(self.seam(), FIRST, Ordering::Relaxed);
        }
        Ok(old.set_next(self.seam(), Box::new(next)))
    }

    /// Returns one of the root's words for the scheme.
    fn root_word(&self, number: u64) -> Result<&Word, Damage> {
        Ok(&self.core.memory.words(self.root.raw() + 8 * number, 8)?[0])
    }

    /// Claims buckets and moves them.
    fn claim(&self, old: &Table, next: &Table, count: u64) -> Result<Claim> {
        // Acquire: pairs with `claim_again`.
        let first = old.claimed.fetch_add(self.seam(), count, Ordering::AcqRel);
        if first >= old.buckets() {
            // The thread that moved the last bucket may have failed or died before it ended the
            // resize.
            self.end_if_moved(old, next)?;
            return Ok(Claim::None);
        }
        self.move_and_count(old, next, first..old.buckets().min(first + count))
    }

    /// Moves buckets. The thread that moves the last one of the table ends the resize.
    fn move_and_count(
        &self,
        old: &Table,
        next: &Table,
        indices: std::ops::Range<u64>,
    ) -> Result<Claim> {
        let mut moved = 0;
        let mut result = Ok(Claim::Moved);
        // The first bucket that was not moved.
        let mut left = None;
        for index in indices {
            match self.move_bucket(old, next, index) {
                Ok(Move::Done) => moved += 1,
                Ok(Move::WasDone) => {}
                Ok(Move::NoRoom(wanted)) => result = Ok(Claim::NoRoom(wanted)),
                Err(error) => result = Err(error),
            }
            if !matches!(result, Ok(Claim::Moved)) {
                left = Some(index);
                break;
            }
        }
        if !V::GOES_ON && (moved > 0 || left.is_some()) {
            self.core.memory.fence(&points::MOVE_NEW);
        }
        if moved > 0 {
            // AcqRel: the thread that ends the resize sees what the others have done.
            old.moved.fetch_add(self.seam(), moved, Ordering::AcqRel);
            self.end_if_moved(old, next)?;
        }
        if let Some(left) = left {
            // The claim is given back only after the fence. From then on, others can end the
            // resize. The next table's headers must be durable by then, and the thread that began
            // the resize has only flushed them.
            old.claim_again(self.seam(), left);
        }
        if result.is_err() && !V::GOES_ON {
            // If the resize never ends, nothing frees the next table's blocks.
            self.core.note_unfreeable();
        }
        result
    }

    /// Ends the resize if all buckets are moved, unless another thread does.
    fn end_if_moved(&self, old: &Table, next: &Table) -> Result<()> {
        let all = old.moved.load(self.seam(), Ordering::Acquire) >= old.buckets();
        if !all || old.ending.swap(self.seam(), 1, Ordering::AcqRel) != 0 {
            return Ok(());
        }
        let ended = self.finish(old, next);
        if ended.is_err() {
            old.ending.store(self.seam(), 0, Ordering::Release);
            if !V::GOES_ON {
                // If the resize never ends, nothing frees the next table's blocks.
                self.core.note_unfreeable();
            }
        }
        ended
    }

    /// Moves the records of a bucket to the two buckets of the next table that take its place,
    /// unless another thread already has.
    fn move_bucket(&self, old: &Table, next: &Table, index: u64) -> Result<Move> {
        let memory = &self.core.memory;
        let missing = || self.missing_at(old.segment(index).low).2;
        let bucket = old.bucket(memory, index).ok_or_else(missing)?;
        let mut reserved = Reserved { table: next, memory, buckets: Vec::new(), is_counted: false };
        let mut is_short = false;
        loop {
            let mut held = self.lock(bucket)?;
            if held.word() & super::DAMAGED != 0 {
                return Err(missing().into());
            }
            if held.word() & MOVED != 0 && !self.seeded(&bugs::MOVED_TWICE) {
                return Ok(Move::WasDone);
            }
            // The copies never need more overflow buckets than the chain has.
            let needed = self.chain(bucket).count() - 1;
            if is_short {
                return Ok(Move::NoRoom(needed as u64));
            }
            if reserved.buckets.len() >= needed {
                let twice = held.word() & MOVED != 0;
                self.copy_chain(bucket, old, next, index, &mut reserved.buckets)?;
                // In EA-PHT-HPR, `copy_chain` has fenced. In the others, this thread fences before
                // the table is used.
                reserved.is_counted = true;
                held.changing();
                let word = held.word() | MOVED;
                held.set_word(word);
                return Ok(if twice { Move::WasDone } else { Move::Done });
            }
            drop(held);
            while reserved.buckets.len() < needed && !is_short {
                match next.take(&self.core)? {
                    Some(bucket) => reserved.buckets.push(bucket),
                    // If `next` hands out none because it is being moved itself, this bucket was
                    // moved before.
                    None => is_short = !self.seeded(&bugs::CLOSED_ASKED_AGAIN),
                }
            }
        }
    }

    /// Copies the records of a locked chain to the next table. In HPR, marks the bucket as moved,
    /// durably; otherwise the caller fences before the root leads to the copies.
    fn copy_chain(
        &self,
        first: BucketRef<'_>,
        old: &Table,
        next: &Table,
        index: u64,
        reserved: &mut Vec<u64>,
    ) -> Result<(), Damage> {
        let (memory, at) = (&self.core.memory, &points::MOVE_NEW);
        // In a damaged file, a chunk of the next table may be unreadable.
        let head = |half: u64| {
            let head = next.bucket(memory, 2 * index + half);
            head.ok_or_else(|| self.missing_at(next.segment(2 * index + half).low).2)
        };
        let heads = [head(0)?, head(1)?];
        let mut halves: [Vec<(SlotWords, u64)>; 2] = Default::default();
        for bucket in self.chain(first) {
            let bucket = bucket?;
            for slot in bucket.used(self.seam()) {
                let words = bucket.bucket.slots[slot].read(memory);
                let hash = self.hash_of(words);
                halves[(hash >> (63 - old.depth) & 1) as usize].push((words, hash));
            }
        }
        // The link is read before a bucket is taken for the copies, so that no bucket is lost if
        // the link is damaged.
        let link = Link::read(memory, &first.bucket.next)?;
        let moved = Link { depth: MOVED_ON_MEDIA, ..link };
        let empty = self.empty(old.segment(index).low);
        for (half, (head, records)) in heads.into_iter().zip(&halves).enumerate() {
            let owner = Some(layout::owner(2 * index + half as u64, next.depth));
            // The last bucket of the chain is written first, so that each knows the next one.
            let mut parts: Vec<_> = records.chunks(SLOTS).collect();
            let mut link = 0;
            while parts.len() > 1 {
                // In a damaged file, another map can lengthen the chain meanwhile.
                let offset = reserved.pop().ok_or_else(|| self.missing_at(records[0].1).2)?;
                let part = parts.pop().expect("more than one");
                self.write_bucket(BucketRef::at(memory, offset)?, owner, part, empty, link, at);
                link = offset;
            }
            V::lock(head).store(self.seam(), 0, Ordering::Relaxed);
            self.write_bucket(head, None, parts.pop().unwrap_or(&[]), empty, link, at);
            if link != 0 {
                next.chains.fetch_add(self.seam(), 1, Ordering::Relaxed);
            }
        }
        if V::GOES_ON {
            memory.fence(at);
            let at = &points::MOVE_COMMIT;
            moved.store(memory, &first.bucket.next, at);
            memory.flush_words(std::slice::from_ref(&first.bucket.next), at);
            memory.fence(at);
        }
        Ok(())
    }

    /// Makes the next table the only one. All buckets have been moved.
    fn finish(&self, old: &Table, next: &Table) -> Result<()> {
        let (core, memory, at) = (&self.core, &self.core.memory, &points::RESIZE_COMMIT);
        let blocks = old.blocks(self.seam());
        for &(_, offset, _) in &blocks {
            core.before_unlink(offset)?;
        }
        let word = self.root_word(0)?;
        memory.store_release(word, Link { offset: next.offset, depth: next.depth }.pack(0), at);
        if V::GOES_ON {
            // This word is in the same line as the first, and is stored after it. If a crash leaves
            // only the first store, both words name the new table, which means the same.
            memory.store_release(self.root_word(1)?, Link::default().pack(1), at);
        }
        let late = self.seeded(&bugs::RESIZED_BEFORE_DURABLE);
        if !late {
            memory.flush_words(std::slice::from_ref(word), at);
            memory.fence(at);
        }
        // The old table is retired before the next one becomes current, so that once a change goes
        // to the next table, no lookup in the old one is valid.
        let retired_late = self.seeded(&bugs::RETIRED_LATE);
        if !retired_late {
            old.set_retired(self.seam());
        }
        // SeqCst: pairs with the load in `current`.
        self.current.store(self.seam(), (&raw const *next).cast_mut(), Ordering::SeqCst);
        if retired_late {
            old.set_retired(self.seam());
        }
        if late {
            memory.flush_words(std::slice::from_ref(word), at);
            memory.fence(at);
        }
        for (_, offset, bytes) in blocks {
            core.retire_visited(offset, bytes);
        }
        self.counters.doublings.add_one();
        self.counters.splits.add_one();
        Ok(())
    }

    /// Moves buckets if another helper is wanted, and waits until the resize has ended.
    pub(super) fn help_and_wait(&self, old: &Table) -> Result<()> {
        let (mut turn, mut seen) = (0, 0);
        while !old.is_retired(self.seam()) {
            if let Some(next) = old.next(self.seam()) {
                // Try again in each turn, because a helper that fails gives back what it claimed.
                self.as_helper(old, || self.help(old, next))?;
            }
            if !old.is_retired(self.seam()) {
                let moved = old.moved.load(self.seam(), Ordering::Relaxed);
                if moved != seen {
                    (turn, seen) = (0, moved);
                }
                // Waits as for a lock, so that the wait ends with an error in a damaged file.
                // There, two maps can share a table, and each waits for what the other has moved.
                self.core.wait_for_lock(&mut turn, 1, || (old.offset, moved))?;
            }
        }
        Ok(())
    }

    /// Moves buckets until all are claimed.
    fn help(&self, old: &Table, next: &Table) -> Result<()> {
        while self.move_with_room(old, next, || self.claim(old, next, CLAIM))? != Claim::None {}
        Ok(())
    }

    /// Runs `help` if there are fewer helpers than the map's options allow.
    fn as_helper(&self, old: &Table, help: impl FnOnce() -> Result<()>) -> Result<()> {
        let helpers = old.helpers.fetch_add(self.seam(), 1, Ordering::Relaxed);
        let done = if helpers < u64::from(self.helpers) { help() } else { Ok(()) };
        old.helpers.fetch_sub(self.seam(), 1, Ordering::Relaxed);
        done
    }

    /// HPR: moves some buckets alongside a change. If the next table lacks overflow buckets, this does
    /// not add any: an insert whose bucket has to be moved does, or the background thread.
    #[cold]
    pub(super) fn move_some(&self) {
        let old = self.current();
        if let Some(next) = old.next(self.seam()) {
            let some = || self.in_visit(old, || self.claim(old, next, A_CHANGE));
            let _ = self.as_helper(old, || some().map(drop));
        }
    }

    /// HPR: moves some buckets in the background.
    pub(super) fn step_to_move(&self) -> Result<bool> {
        let old = self.current();
        let Some(next) = old.next(self.seam()) else { return Ok(false) };
        let claim = match self.move_with_room(old, next, || self.claim(old, next, STEP)) {
            // A later step tries again.
            Err(error) if error.is_full() => return Ok(false),
            claim => claim?,
        };
        if claim == Claim::None {
            // All are claimed, some perhaps by a thread that sleeps or has died.
            let moved = old.moved.load(self.seam(), Ordering::Acquire);
            if moved < old.buckets() && self.missing.is_empty() {
                old.claim_again(self.seam(), 0);
            }
        }
        Ok(claim != Claim::None && self.current().next(self.seam()).is_some())
    }
}
