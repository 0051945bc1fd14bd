//! Changes of the levels: creation, expansion, rehashing, overflow chains, shrinking.

use super::layout::{
    self, Bucket, CONTEXT_BYTES, ContextBlock, Kind, LEVEL_BITS, LevelHeader, MAX_LEVELS,
    NODE_BYTES, SLOTS, link, pack_level, root, slot, state, unpack_level,
};
use super::levels::{Context, DRAINED, Guard, Level, TOUCHED, context_check, note_bits, tag_of};
use super::ops::unknown_state;
use super::{Clevel, Config, points};
use crate::error::{Damage, Error, Result};
use crate::index::bugs as index_bugs;
use crate::index::clevel::bugs;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::Record;
use crate::pmem::{Memory, Offset, Point, Seam, Shared, Word};
use crate::pool::core::Core;
use crate::pool::geometry::LARGE;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The most buckets that a check of a level's load reads.
const SAMPLE: u64 = 64;
/// The least load at which the table grows when a record finds no free slot in its buckets. Below
/// this load, two buckets of eight slots are hardly ever both full. So either many records share
/// the hash, or the record is unlucky, and it goes to an overflow chain.
const LOAD_SMALL: f64 = 0.5;
/// The same for tables of at least [`LARGE_SLOTS`] slots. With [`LOAD_SMALL`], the first unlucky
/// record beyond that load would make the table grow, and the larger a table is, the emptier it
/// still is when that happens.
const LOAD_LARGE: f64 = 0.84;
const LARGE_SLOTS: u64 = 1 << 13;
/// The number of parts that one step empties.
const STEP_PARTS: u64 = 16;
/// The number of removals between two checks of whether the table is too large.
const REMOVALS: u64 = 256;
/// log2 of the buckets of the level that is kept in reserve, whose block has the size of a context's.
/// No expansion makes so small a level.
const RESERVE_BITS: u32 = 1;

/// Writes an empty level and flushes it, without a fence.
fn write_level<S: Seam>(
    memory: &Memory<S>,
    offset: u64,
    bits: u32,
    shape: Config,
    at: &'static Point,
) -> Result<(), Damage> {
    let words = memory.words(offset, layout::level_bytes(bits, shape.group_bits))?;
    let header = memory.at(Offset::<LevelHeader>::new(offset))?;
    for word in &words[1..] {
        memory.store(word, 0, at);
    }
    memory.store(&header.identity, layout::identity(Kind::Level, offset, bits), at);
    memory.flush_words(words, at);
    Ok(())
}

/// Writes a context and flushes it, without a fence.
fn write_context<S: Seam>(
    memory: &Memory<S>,
    block: u64,
    keep: usize,
    levels: &[u64],
    at: &'static Point,
) -> Result<(), Damage> {
    let words = memory.at(Offset::<ContextBlock>::new(block))?;
    let counts = levels.len() as u64 | (keep as u64) << 8;
    for (word, level) in words.levels.iter().zip(levels) {
        memory.store(word, *level, at);
    }
    memory.store(&words.counts, counts, at);
    memory.store(&words.check, context_check(block, counts, levels), at);
    let used = memory.words(block, (2 + levels.len() as u64) * 8)?;
    memory.flush_words(used, at);
    Ok(())
}

pub(super) fn create<S: Seam>(
    core: &Arc<Core<S>>,
    shape: Config,
) -> Result<[u64; ROOT_SCHEME_WORDS]> {
    let bits = shape.first_bits;
    let at = &points::CREATE;
    let mut level = UnlinkedBlock::allocate(core, layout::level_bytes(bits, shape.group_bits))?;
    let mut context = UnlinkedBlock::allocate(core, CONTEXT_BYTES)?;
    write_level(&core.memory, level.offset(), bits, shape, at)?;
    write_context(&core.memory, context.offset(), 2, &[pack_level(level.offset(), bits)], at)?;
    let mut words = [0; ROOT_SCHEME_WORDS];
    words[root::CONTEXT] = root::pack(context.offset(), 0);
    level.set_linked();
    context.set_linked();
    Ok(words)
}

/// A number that is unique among the threads that are rehashing the table.
struct Maker<'m, S: Seam> {
    seam: &'m S,
    all: &'m Shared<AtomicU32>,
    number: u32,
}

impl<'m, S: Seam> Maker<'m, S> {
    /// Takes the smallest free number, if there is one.
    fn take(seam: &'m S, all: &'m Shared<AtomicU32>) -> Option<Self> {
        let mut taken = all.load(seam, Ordering::Relaxed);
        loop {
            let number = taken.trailing_ones();
            if number >= slot::MAKERS {
                return None;
            }
            // Acquire: pairs with the Release below, so every copy that the number's previous
            // holder made has been confirmed or withdrawn.
            let order = (Ordering::Acquire, Ordering::Relaxed);
            match all.compare_exchange(seam, taken, taken | 1 << number, order) {
                Ok(_) => return Some(Maker { seam, all, number }),
                Err(found) => taken = found,
            }
        }
    }
}

impl<S: Seam> Drop for Maker<'_, S> {
    fn drop(&mut self) {
        self.all.fetch_and(self.seam, !(1 << self.number), Ordering::Release);
    }
}

/// The outcome of copying a record.
enum Copied {
    /// A slot in a newer level leads to it, and is durable after the next fence.
    Yes,
    /// The record has changed: retry.
    Changed,
    /// No slot is free for it.
    NoRoom,
}

/// Passes every error on, except that there is no space.
fn unless_full(error: Error) -> Result<()> {
    if error.is_full() { Ok(()) } else { Err(error) }
}

impl<S: Seam, R: Record> Clevel<S, R> {
    // ---- Contexts ---------------------------------------------------------------

    /// Replaces the context by one with these levels, in the block `block`. Returns `false` if
    /// another thread has replaced it first.
    fn replace_context(
        &self,
        guard: &Guard<'_, S>,
        old: &Context,
        levels: &[u64],
        keep: usize,
        mut block: UnlinkedBlock<'_, S>,
    ) -> Result<bool> {
        let memory = &self.core.memory;
        write_context(memory, block.offset(), keep, levels, &points::CONTEXT)?;
        memory.fence(&points::CONTEXT);
        self.core.before_unlink(old.block)?;
        let at = &points::CONTEXT_COMMIT;
        let word = root::pack(block.offset(), old.turn + 1);
        let pending = word | root::PENDING;
        let place = self.root(root::CONTEXT);
        // The old context is durable, because `context` has persisted it. Its mark may still be
        // there.
        let done = self.exchange(place, old.word, pending, at).is_ok()
            || self.exchange(place, old.word | root::PENDING, pending, at).is_ok();
        if !done {
            return Ok(false);
        }
        block.set_linked();
        memory.persist(place, at);
        let _ = self.exchange(place, pending, word, &points::UNMARK);
        // Replaces the context in DRAM. This must come before the old block can be used for a
        // context again.
        self.context(guard)?;
        self.core.retire_visited(old.block, CONTEXT_BYTES);
        Ok(true)
    }

    fn level_words(levels: &[Arc<Level>]) -> Vec<u64> {
        levels.iter().map(|level| pack_level(level.offset, level.bits)).collect()
    }

    // ---- Room -------------------------------------------------------------------

    /// Makes room for a record with this hash, for which there was no free slot in the context
    /// whose root word is `seen`. Adds a level, or extends the overflow chain if the table is not
    /// full enough for another level or the pool has no space for one. Does nothing if the context
    /// has been replaced.
    #[cold]
    pub(super) fn make_room(&self, hash: u64, seen: u64) -> Result<()> {
        let crowded = {
            let guard = self.guard(true);
            let context = self.context(&guard)?;
            if context.word != seen {
                return Ok(());
            }
            // Counts all records, but only the slots of the levels that stay, because those levels
            // will take the records of the others.
            let (mut records, mut slots) = (0.0, 0);
            for level in &context.levels {
                records += self.load(&guard, level, SAMPLE)? * level.slots() as f64;
            }
            for level in context.open_levels() {
                slots += level.slots();
            }
            let least = if slots < LARGE_SLOTS { LOAD_SMALL } else { LOAD_LARGE };
            // The last level that fits is for a shrink, which empties all others.
            context.levels.len() < MAX_LEVELS - 1 && records >= least * slots as f64
        };
        let crowded = crowded || self.seeded(&index_bugs::DOUBLED_WITHOUT_END);
        if !crowded {
            return self.extend_chain(hash, seen);
        }
        match self.expand(seen) {
            // A level takes many contiguous pages. The alternative, a longer overflow chain, can
            // use any free block.
            Err(error) if error.is_full() => self.extend_chain(hash, seen),
            done => done,
        }
    }

    /// Returns the fraction of a level's slots that is in use, according to a sample of `buckets`
    /// buckets.
    pub(super) fn load(&self, guard: &Guard<'_, S>, level: &Level, buckets: u64) -> Result<f64> {
        let step = (level.buckets() / buckets).max(1);
        let (mut used, mut slots) = (0, 0);
        for bucket in (0..level.buckets()).step_by(step as usize) {
            let line = self.line(guard, level, bucket)?;
            used += line.bucket.slots.iter().filter(|w| slot::is_link(self.look(w))).count();
            slots += SLOTS;
        }
        Ok(used as f64 / slots as f64)
    }

    /// Adds a level of twice the size of the newest one, or of the same size if that is the largest
    /// possible.
    fn expand(&self, seen: u64) -> Result<()> {
        let block = UnlinkedBlock::allocate(&self.core, CONTEXT_BYTES)?;
        let (bits, keep) = {
            let guard = self.guard(true);
            let context = self.context(&guard)?;
            if context.word != seen {
                return Ok(());
            }
            let bits = (context.newest().bits + 1).min(self.bits_max());
            // Once levels cannot become any larger, their number grows instead.
            let keep = if bits > context.newest().bits { 2 } else { context.keep + 1 };
            (bits, keep)
        };
        let mut level = match self.take_ready(|found| found == bits)? {
            Some((level, _)) => level,
            None => self.new_level(bits, &points::LEVEL)?,
        };
        if let Err(error) = self.keep_reserve() {
            self.offer_ready(level, bits);
            return Err(error);
        }
        if self.add_level(seen, level.offset(), bits, keep, block)? {
            level.set_linked();
            self.counters.splits.add_one();
            self.core.wake_worker();
        }
        Ok(())
    }

    /// Adds a level as the newest one. `keep` levels stay, including it. Returns `false`, without
    /// adding it, if the context has been replaced.
    fn add_level(
        &self,
        seen: u64,
        offset: u64,
        bits: u32,
        keep: usize,
        block: UnlinkedBlock<'_, S>,
    ) -> Result<bool> {
        let guard = self.guard(true);
        let context = self.context(&guard)?;
        if context.word != seen {
            return Ok(false);
        }
        let mut levels = Self::level_words(&context.levels);
        if levels.len() == MAX_LEVELS {
            return Err(Error::Invalid {
                what: "number of levels",
                why: format!("{MAX_LEVELS}, none of which was emptied"),
            });
        }
        levels.push(pack_level(offset, bits));
        self.replace_context(&guard, context, &levels, keep, block)
    }

    /// Returns log2 of the buckets of the largest level that fits a block.
    fn bits_max(&self) -> u32 {
        let fits = |bits: &u32| {
            layout::level_bytes(*bits, self.shape.group_bits) <= self.core.geometry.large_max()
        };
        LEVEL_BITS.take_while(fits).last().unwrap_or(*LEVEL_BITS.start())
    }

    fn new_level(&self, bits: u32, at: &'static Point) -> Result<UnlinkedBlock<'_, S>> {
        let level =
            UnlinkedBlock::allocate(&self.core, layout::level_bytes(bits, self.shape.group_bits))?;
        write_level(&self.core.memory, level.offset(), bits, self.shape, at)?;
        self.core.memory.fence(at);
        Ok(level)
    }

    /// Takes the level that is kept ready, if `wants` accepts log2 of its buckets, which it returns
    /// too. Its removal from the root is durable when this returns, because the level may be freed
    /// and its space reused, for example if another expansion comes first.
    fn take_ready(
        &self,
        wants: impl Fn(u32) -> bool,
    ) -> Result<Option<(UnlinkedBlock<'_, S>, u32)>> {
        let place = self.root(root::READY);
        let word = self.look(place);
        let Some((offset, bits)) = self.ready_level(word)? else { return Ok(None) };
        if !wants(bits) {
            return Ok(None);
        }
        self.core.before_unlink(offset)?;
        if self.exchange(place, word, 0, &points::READY).is_err() {
            return Ok(None);
        }
        self.core.memory.persist(place, &points::READY);
        let mut level = UnlinkedBlock::of(&self.core, offset);
        // The level is checked only now that this thread owns it. Before, another thread could have
        // taken it, and its space could have been reused.
        match self.check_level(offset, bits) {
            Ok(()) => Ok(Some((level, bits))),
            Err(damage) => {
                // The block is not freed, because the space may belong to something else. Instead,
                // the next close does not save the free state, so the trace after the next opening
                // frees the space if nothing owns it.
                level.set_linked();
                self.core.note_unfreeable();
                Err(damage.into())
            }
        }
    }

    /// Makes sure that the root has a level in reserve: any level that is kept ready, or the smallest
    /// one. When a level has been emptied, dropping it takes a block for the new context, and a full
    /// pool has none; see [`drop_context`](Self::drop_context). So the reserve is made before a level
    /// is added. It is on media, and so serves a later process too.
    fn keep_reserve(&self) -> Result<()> {
        if self.look(self.root(root::READY)) == 0 {
            let level = self.new_level(RESERVE_BITS, &points::RESERVE)?;
            self.offer_ready(level, RESERVE_BITS);
        }
        Ok(())
    }

    /// Does the same if a level is being emptied, because dropping it may need the reserve. It is also
    /// dropped without, but then only if the pool has space again.
    fn keep_reserve_to_drain(&self) -> Result<()> {
        if self.is_draining()? { self.keep_reserve().or_else(unless_full) } else { Ok(()) }
    }

    /// Keeps a level ready, unless one is. Otherwise frees it.
    fn offer_ready(&self, mut level: UnlinkedBlock<'_, S>, bits: u32) {
        let place = self.root(root::READY);
        let word = pack_level(level.offset(), bits);
        // If this exchange fails, another thread has put a level there.
        if self.exchange(place, 0, word, &points::READY).is_ok() {
            level.set_linked();
            self.core.memory.persist(place, &points::READY);
        }
    }

    /// Allocates the block of a context that drops a level. In a full pool, takes the block of the
    /// level kept ready.
    fn drop_context(&self) -> Result<UnlinkedBlock<'_, S>> {
        loop {
            let error = match UnlinkedBlock::allocate(&self.core, CONTEXT_BYTES) {
                Err(error) if error.is_full() => error,
                done => return done,
            };
            let Some((block, bits)) = self.take_ready(|_| true)? else { return Err(error) };
            let bytes = layout::level_bytes(bits, self.shape.group_bits);
            if self.core.geometry.class_for(bytes) != LARGE {
                return Ok(block);
            }
            // A block of whole pages is too large for a context. It is freed here, and its pages hold
            // many contexts.
        }
    }

    /// Returns whether the level kept ready is too large to follow `newest`, as it is after a shrink.
    fn has_large_ready(&self, newest: &Level) -> bool {
        let ready = unpack_level(self.look(self.root(root::READY)));
        ready.is_some_and(|(_, bits)| bits > newest.bits + 1)
    }

    /// Reads the root's word of the level that is kept ready.
    pub(super) fn ready_level(&self, word: u64) -> Result<Option<(u64, u32)>, Damage> {
        if word == 0 {
            return Ok(None);
        }
        let place = self.root + root::READY as u64 * 8;
        unpack_level(word)
            .ok_or_else(|| Damage::new(place, "a level's offset and size", format!("{word:#x}")))
            .map(Some)
    }

    /// Makes the level that will follow `newest` ready, so that the next expansion only has to link
    /// it.
    fn prepare(&self, newest: &Arc<Level>) -> Result<()> {
        let bits = newest.bits + 1;
        if bits > self.bits_max() {
            return Ok(());
        }
        let place = self.root(root::READY);
        let word = self.look(place);
        let found = self.ready_level(word)?;
        if let Some((offset, found)) = found
            && found == bits
        {
            // A level of this size is ready already: an earlier process made it, or it was made
            // while another level was the newest. Only its filters are missing.
            return self.prepare_notes(newest, offset);
        }
        let mut level = self.new_level(bits, &points::LEVEL)?;
        let (offset, at) = (level.offset(), &points::READY);
        if let Some((offset, _)) = found {
            self.core.before_unlink(offset)?;
        }
        if self.exchange(place, word, pack_level(offset, bits), at).is_err() {
            return Ok(());
        }
        level.set_linked();
        self.core.memory.persist(place, at);
        if let Some((offset, bits)) = found {
            let bytes = layout::level_bytes(bits, self.shape.group_bits);
            self.core.retire_visited(offset, bytes);
        }
        self.prepare_notes(newest, offset)
    }

    /// Makes the filters of the level that is kept ready, for the context that will have it.
    fn prepare_notes(&self, newest: &Arc<Level>, offset: u64) -> Result<()> {
        let level = Arc::new(self.new_notes(offset, newest.bits + 1));
        level.touch_notes();
        let guard = self.guard(true);
        let context = self.context(&guard)?;
        if Arc::ptr_eq(context.newest(), newest) {
            // Only one thread does this for each newest level, so `set` does not wait for another.
            let _ = context.next.set(self.seam(), level);
        }
        Ok(())
    }

    // ---- Overflow chains --------------------------------------------------------

    /// Adds a node to the chain of a hash's group in the newest level.
    fn extend_chain(&self, hash: u64, seen: u64) -> Result<()> {
        let memory = &self.core.memory;
        let mut node = UnlinkedBlock::allocate(&self.core, NODE_BYTES)?;
        let words = memory.words(node.offset(), NODE_BYTES)?;
        for word in &words[1..] {
            memory.store(word, 0, &points::NODE);
        }
        let identity = layout::identity(Kind::Node, node.offset(), 0);
        memory.store(&words[0], identity, &points::NODE);
        memory.flush_words(words, &points::NODE);
        memory.fence(&points::NODE);
        let guard = self.guard(true);
        let context = self.context(&guard)?;
        if context.word != seen {
            return Ok(());
        }
        let level = context.newest();
        let group = level.group(hash);
        let note = self.chain_note(&guard, level, group)?;
        // The filter gets its bits before the chain gets the node; see `claim_slot`.
        self.set_note(note, note_bits(tag_of(hash)));
        let mut end = self.chain_head(level, group);
        for last in self.nodes_to_use(level, group) {
            end = &self.node(last?)?.next;
        }
        let linked = node.offset() | link::PENDING;
        match self.exchange(end, 0, linked, &points::NODE_LINK) {
            Ok(_) => {
                memory.persist(end, &points::NODE_LINK);
                let _ = self.exchange(end, linked, node.offset(), &points::UNMARK);
                node.set_linked();
                Ok(())
            }
            // Only a level that is being emptied has closed chains.
            Err(link::CLOSED) if self.context(&guard)?.word == seen => {
                let at = memory.offset_of(end).raw();
                Err(Damage::new(at, "the end of a chain", "a closed one").into())
            }
            Err(_) => Ok(()),
        }
    }

    // ---- Rehashing --------------------------------------------------------------

    /// Empties one bucket of the oldest level. Returns `None` when all of it is frozen, durably, or
    /// the hash of a record for which there is no room. Several threads can do this concurrently.
    fn drain_bucket(
        &self,
        guard: &Guard<'_, S>,
        context: &Context,
        bucket: &Bucket,
        maker: u32,
    ) -> Result<Option<u64>> {
        let memory = &self.core.memory;
        self.expect_copies(context, bucket);
        loop {
            let mut copied = [0; SLOTS];
            for (place, copied) in bucket.slots.iter().zip(&mut copied) {
                match self.drain_slot(guard, context, place, maker) {
                    Ok(Ok(word)) => *copied = word,
                    stopped => {
                        // What was done so far is kept: this makes the copies durable, and the
                        // slots that are frozen or now lead directly to their records.
                        memory.persist(bucket, &points::FREEZE);
                        return stopped.map(Result::err);
                    }
                }
            }
            // Copies must be durable before the slots that they were made from are frozen.
            memory.fence(&points::CONFIRM);
            let mut left = false;
            for (place, copied) in bucket.slots.iter().zip(copied) {
                let gone = copied == slot::FROZEN
                    || self.exchange(place, copied, slot::FROZEN, &points::FREEZE).is_ok();
                left |= !gone;
            }
            if !left {
                memory.persist(bucket, &points::FREEZE);
                return Ok(None);
            }
        }
    }

    /// Prefetches what copying the slots of a bucket needs, for all slots together: first the
    /// records, and then the buckets that their copies can go to.
    fn expect_copies(&self, context: &Context, bucket: &Bucket) {
        let links = || bucket.slots.iter().map(|place| self.core.memory.load(place));
        links().filter(|&word| slot::leads(word)).for_each(|word| {
            self.expect_record(slot::offset(word));
        });
        for offset in links().filter(|&word| slot::leads(word)).map(slot::offset) {
            let hash = || {
                let found = self.state(offset, self.head(offset).ok()?).ok()?;
                let kind = state::kind(found);
                let is_record = kind == state::LIVE || kind == state::UNDECIDED;
                let (.., hash) = is_record.then(|| self.keyed(offset, found))?.ok()?;
                Some(hash)
            };
            let Some(hash) = hash() else { continue };
            for level in context.open_levels().take(context.levels.len() - 1) {
                self.expect_lines(level, hash);
            }
        }
    }

    /// Prepares a slot of the oldest level for freezing. Returns the slot's word, which the caller
    /// exchanges for a frozen one. Returns the record's hash as `Err` if a copy finds no room.
    fn drain_slot(
        &self,
        guard: &Guard<'_, S>,
        context: &Context,
        place: &Word,
        maker: u32,
    ) -> Result<Result<u64, u64>> {
        let memory = &self.core.memory;
        loop {
            let word = self.look(place);
            if !slot::is_link(word) {
                return Ok(Ok(word));
            }
            if slot::mark(word) == slot::COPY {
                // The thread that made this copy will make another one elsewhere.
                return Ok(Ok(word));
            }
            let offset = slot::offset(word);
            match slot::mark(word) {
                slot::ANNOUNCED if self.seeded(&bugs::UNDECIDED_FROZEN) => return Ok(Ok(word)),
                slot::ANNOUNCED => {
                    self.settle(offset, state::KILLED)?;
                    let found = self.state(offset, self.head(offset)?)?;
                    if state::kind(found) == state::KILLED {
                        return Ok(Ok(word));
                    }
                    let pending = slot::with_mark(word, slot::PENDING);
                    let _ = self.exchange(place, word, pending, &points::MET_DECIDED);
                    continue;
                }
                slot::PENDING => {
                    memory.persist(place, &points::MET_SLOT);
                    let plain = slot::with_mark(word, slot::PLAIN);
                    let _ = self.exchange(place, word, plain, &points::UNMARK);
                    continue;
                }
                _ => {}
            }
            let (tail, head, found) = self.tail(offset)?;
            if state::kind(found) == state::DEAD {
                if found & state::PENDING != 0 {
                    memory.persist(&head.state, &points::MET_STATE);
                }
                return Ok(Ok(word));
            }
            if state::kind(found) == state::KILLED {
                // Only an announced record can be. No copy of this one would ever be confirmed.
                return Err(unknown_state(tail, found).into());
            }
            if tail != offset {
                let direct = slot::word(tail, slot::tag(word));
                let _ = self.exchange(place, word, direct, &points::FREEZE);
                continue;
            }
            let (.., hash) = self.keyed(offset, found)?;
            if self.seeded(&bugs::REHASH_REMOVES_FIRST) {
                let _ = self.exchange(place, word, slot::FROZEN, &points::FREEZE);
                memory.persist(place, &points::FREEZE);
            }
            match self.copy(guard, context, offset, hash, maker)? {
                Copied::Yes => return Ok(Ok(word)),
                Copied::Changed => {}
                Copied::NoRoom => return Ok(Err(hash)),
            }
        }
    }

    /// Makes sure that a slot of a newer level leads to this record of the oldest level.
    ///
    /// Only the maker confirms its copy. If any thread could confirm it, the following could
    /// happen:
    ///
    /// 1. One thread copies, sees the record in effect, and stops.
    /// 2. A removal withdraws the copy.
    /// 3. Another thread, which had also seen the record in effect, copies it again into the same
    ///    slot.
    /// 4. The first thread continues and confirms that copy. Now a slot leads to a block that is
    ///    about to be reused.
    fn copy(
        &self,
        guard: &Guard<'_, S>,
        context: &Context,
        offset: u64,
        hash: u64,
        maker: u32,
    ) -> Result<Copied> {
        let memory = &self.core.memory;
        let plain = slot::word(offset, tag_of(hash));
        if let Some(place) = self.standing(guard, context, plain, hash)? {
            // Another thread has made the copy, and the copy may not be durable.
            if !self.seeded(&bugs::OTHER_COPY_UNFLUSHED) {
                memory.flush(place, &points::CONFIRM);
            }
            return Ok(Copied::Yes);
        }
        let copy = slot::copy(plain, maker);
        let Some(place) = self.claim(guard, context, 1, hash, copy, &points::COPY)? else {
            return Ok(Copied::NoRoom);
        };
        // The state is read after the copy is visible. A thread that replaces or removes the record
        // from here on finds the copy. If one has done so before, the copy is withdrawn, and no
        // thread has followed it.
        let found = self.head(offset).and_then(|head| self.state(offset, head));
        let is_record = found
            .as_ref()
            .is_ok_and(|&found| matches!(state::kind(found), state::LIVE | state::UNDECIDED));
        if !is_record && !self.seeded(&bugs::COPY_UNCHECKED) {
            self.withdraw(place, copy);
            return Ok(found.map(|_| Copied::Changed)?);
        }
        if self.exchange(place, copy, plain, &points::CONFIRM).is_err() {
            return Ok(Copied::Changed);
        }
        memory.flush(place, &points::CONFIRM);
        Ok(Copied::Yes)
    }

    /// Returns a slot of a newer level whose word is already `plain`, if there is one.
    fn standing<'g>(
        &'g self,
        guard: &'g Guard<'_, S>,
        context: &'g Context,
        plain: u64,
        hash: u64,
    ) -> Result<Option<&'g Word>> {
        let bits = note_bits(slot::tag(plain));
        let newer = context.levels.len() - 1;
        for level in context.open_levels().take(newer) {
            for bucket in level.pair(hash) {
                let line = self.line(guard, level, bucket)?;
                if line.note.load(self.seam(), Ordering::SeqCst) & bits != bits {
                    continue;
                }
                let mut places = line.bucket.slots.iter();
                if let Some(place) = places.find(|place| self.look(place) == plain) {
                    return Ok(Some(place));
                }
            }
            let group = level.group(hash);
            if self.chain_note(guard, level, group)?.load(self.seam(), Ordering::SeqCst) & bits
                != bits
            {
                continue;
            }
            for node in self.nodes(level, group) {
                let mut places = self.node_buckets(node?).flat_map(|bucket| &bucket.slots);
                if let Some(place) = places.find(|place| self.look(place) == plain) {
                    return Ok(Some(place));
                }
            }
        }
        Ok(None)
    }

    /// Empties one part of the oldest level: a bucket, or the chain of a group. Returns the hash of
    /// a record for which there is no room, if there is one.
    fn drain_part(
        &self,
        guard: &Guard<'_, S>,
        context: &Context,
        level: &Level,
        part: u64,
        maker: u32,
    ) -> Result<Option<u64>> {
        if part < level.buckets() {
            if part + 1 == level.buckets() && self.seeded(&bugs::PARTS_ONE_SHORT) {
                return Ok(None);
            }
            let line = self.line(guard, level, part)?;
            if line.note.load(self.seam(), Ordering::SeqCst) & DRAINED == 0 {
                let full = self.drain_bucket(guard, context, line.bucket, maker)?;
                if full.is_some() {
                    return Ok(full);
                }
                self.set_note(line.note, TOUCHED | DRAINED);
            }
            return Ok(None);
        }
        let group = part - level.buckets();
        let note = self.chain_note(guard, level, group)?;
        if note.load(self.seam(), Ordering::SeqCst) & DRAINED != 0 {
            return Ok(None);
        }
        let mut end = self.chain_head(level, group);
        loop {
            for node in self.nodes(level, group) {
                let node = node?;
                for bucket in self.node_buckets(node) {
                    let full = self.drain_bucket(guard, context, bucket, maker)?;
                    if full.is_some() {
                        return Ok(full);
                    }
                }
                end = &self.node(node)?.next;
            }
            let closed = self.exchange(end, 0, link::CLOSED, &points::CLOSE);
            if matches!(closed, Ok(_) | Err(link::CLOSED)) {
                break;
            }
        }
        self.set_note(note, TOUCHED | DRAINED);
        Ok(None)
    }

    /// Empties some parts of the oldest level, and drops it once it is empty. Returns `false` if no
    /// level is being emptied or all numbers of makers are taken; otherwise there may be more to
    /// do.
    ///
    /// Up to [`slot::MAKERS`] threads do this concurrently. If that many threads stop forever
    /// inside this function, no other thread can continue.
    pub(super) fn rehash(&self, parts: u64) -> Result<bool> {
        let full = {
            let Some(maker) = Maker::take(self.seam(), &self.makers) else { return Ok(false) };
            let guard = self.guard(true);
            let context = self.context(&guard)?;
            let Some(level) = context.draining() else { return Ok(false) };
            if self.seeded(&bugs::REHASH_NOT_RESUMED) && !level.is_fresh() {
                return Ok(false);
            }
            let full = self.rehash_parts(&guard, context, level, parts, maker.number)?;
            let seen = match self.seeded(&bugs::LEVEL_DROPPED_EARLY) {
                true => &level.next,
                false => &level.verified,
            };
            let done = seen.load(self.seam(), Ordering::Relaxed) >= level.parts();
            if full.is_none() && !done {
                return Ok(true);
            }
            full.map(|hash| (hash, context.word)).ok_or(context.word)
        };
        match full {
            Ok((hash, seen)) => self.make_room(hash, seen)?,
            Err(seen) => {
                self.drop_level(seen)?;
                // The drop may have used the reserve.
                self.keep_reserve_to_drain()?;
            }
        }
        Ok(true)
    }

    fn rehash_parts(
        &self,
        guard: &Guard<'_, S>,
        context: &Context,
        level: &Level,
        parts: u64,
        maker: u32,
    ) -> Result<Option<u64>> {
        let mark = self.root(root::PROGRESS);
        for _ in 0..parts {
            // Each thread takes different parts. If one of them begins a part and does not finish
            // it, the others find and finish it when they check all parts at the end.
            let part = level.next.fetch_add(self.seam(), 1, Ordering::Relaxed);
            if part < level.parts() {
                let full = self.drain_part(guard, context, level, part, maker)?;
                if full.is_some() {
                    return Ok(full);
                }
                let word = root::pack_progress(level.offset, part);
                self.core.memory.store(mark, word, &points::PROGRESS);
                continue;
            }
            let part = level.verified.load(self.seam(), Ordering::Relaxed);
            let early = self.seeded(&bugs::LEVEL_DROPPED_EARLY);
            if part >= level.parts() || early {
                break;
            }
            let full = self.drain_part(guard, context, level, part, maker)?;
            if full.is_some() {
                return Ok(full);
            }
            let order = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = level.verified.compare_exchange(self.seam(), part, part + 1, order);
        }
        Ok(None)
    }

    /// Drops the oldest level, all of which is frozen.
    fn drop_level(&self, seen: u64) -> Result<()> {
        let block = self.drop_context()?;
        let guard = self.guard(true);
        let context = self.context(&guard)?;
        if context.word != seen {
            return Ok(());
        }
        let level = &context.levels[0];
        let mut nodes = Vec::new();
        for group in 0..level.groups() {
            if level.chain_note(group).load(self.seam(), Ordering::SeqCst) & !(TOUCHED | DRAINED)
                != 0
            {
                for node in self.nodes(level, group) {
                    nodes.push(node?);
                }
            }
        }
        for &offset in nodes.iter().chain([&level.offset]) {
            self.core.before_unlink(offset)?;
        }
        let levels = Self::level_words(&context.levels[1..]);
        if self.replace_context(&guard, context, &levels, context.keep, block)? {
            for node in nodes {
                self.core.retire_visited(node, NODE_BYTES);
            }
            let bytes = layout::level_bytes(level.bits, self.shape.group_bits);
            self.core.retire_visited(level.offset, bytes);
            self.counters.doublings.add_one();
        }
        Ok(())
    }

    // ---- Shrinking --------------------------------------------------------------

    /// If the table is nearly empty, adds a smaller level, into which all others are emptied.
    fn shrink(&self) -> Result<()> {
        let (seen, bits) = {
            let guard = self.guard(true);
            let context = self.context(&guard)?;
            let slots: u64 = context.levels.iter().map(|level| level.slots()).sum();
            if context.draining().is_some()
                || slots <= (SLOTS as u64) << (self.shape.first_bits + 2)
            {
                return Ok(());
            }
            let mut records = 0.0;
            for level in &context.levels {
                records += self.load(&guard, level, SAMPLE)? * level.slots() as f64;
            }
            let records = records as u64;
            if records * 16 > slots {
                return Ok(());
            }
            // The new level is at most a quarter full, so that it does not have to grow
            // immediately.
            let buckets = (records * 4).div_ceil(SLOTS as u64).next_power_of_two();
            (context.word, buckets.ilog2().max(self.shape.first_bits))
        };
        // The level kept ready is for a larger table. It goes first, because the pool may be full.
        drop(self.take_ready(|found| found > bits + 1)?);
        let block = UnlinkedBlock::allocate(&self.core, CONTEXT_BYTES)?;
        let mut level = self.new_level(bits, &points::LEVEL)?;
        if let Err(error) = self.keep_reserve() {
            self.offer_ready(level, bits);
            return Err(error);
        }
        if self.add_level(seen, level.offset(), bits, 1, block)? {
            level.set_linked();
        }
        Ok(())
    }

    // ---- Background -------------------------------------------------------------

    pub(super) fn has_background_work(&self) -> bool {
        if !self.discards.is_empty(self.seam())
            || self.removed.load(self.seam(), Ordering::Relaxed) >= REMOVALS
        {
            return true;
        }
        let guard = self.guard(false);
        let Ok(context) = self.context(&guard) else { return false };
        context.draining().is_some()
            || self.wants_level(context)
            || self.has_large_ready(context.newest())
    }

    fn is_draining(&self) -> Result<bool> {
        let guard = self.guard(true);
        Ok(self.context(&guard)?.draining().is_some())
    }

    /// Returns whether the newest level is filling up and the next one should be made ready.
    fn wants_level(&self, context: &Context) -> bool {
        let level = context.newest();
        level.is_crowded(self.seam()) && !level.succeeded.load(self.seam(), Ordering::Relaxed)
    }

    pub(super) fn background_step(&self) -> Result<bool> {
        self.discards.collect(self.seam(), |epoch| self.core.epochs().has_reached(epoch));
        // No smaller level can be added while a level is being emptied. Until that is done, the
        // removals stay counted. Otherwise no thread would check again afterwards.
        if self.removed.load(self.seam(), Ordering::Relaxed) >= REMOVALS && !self.is_draining()? {
            self.removed.store(self.seam(), 0, Ordering::Relaxed);
            self.shrink()?;
        }
        let (newest, wants) = {
            let guard = self.guard(true);
            let context = self.context(&guard)?;
            // Only one thread makes a level ready: the first that finds one wanted.
            let wants = self.wants_level(context)
                && !context.newest().succeeded.swap(self.seam(), true, Ordering::Relaxed);
            (Arc::clone(context.newest()), wants)
        };
        if wants {
            // The level is only made ahead of need.
            self.prepare(&newest).or_else(unless_full)?;
        }
        self.keep_reserve_to_drain()?;
        let more = self.rehash(STEP_PARTS)?;
        // A thread that made a level ready beside a shrink may have linked it after the shrink.
        if self.has_large_ready(&newest) {
            drop(self.take_ready(|bits| bits > newest.bits + 1)?);
        }
        Ok(more)
    }
}

#[cfg(test)]
mod tests;
