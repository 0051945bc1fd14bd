//! Changes of the levels: creation, expansion, overflow chains, shrinking, and the background's steps.

use super::layout::{
    self, CONTEXT_BYTES, ContextBlock, Kind, LEVEL_BITS, LevelHeader, MAX_LEVELS, NODE_BYTES,
    SLOTS, link, pack_level, root, slot,
};
use super::levels::{Context, DRAINED, Guard, Level, TOUCHED, context_check, filter_bits, tag_of};
use super::ready::unless_full;
use super::{Clevel, Config, points};
use crate::error::{Damage, Error, Result};
use crate::index::bugs as index_bugs;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::BlockRecord;
use crate::pmem::{Memory, Offset, Point, Seam};
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

/// Writes an empty level and flushes it, without a fence.
pub(super) fn write_level<S: Seam>(
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

impl<S: Seam, R: BlockRecord> Clevel<S, R> {
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
    pub(super) fn bits_max(&self) -> u32 {
        let fits = |bits: &u32| {
            layout::level_bytes(*bits, self.shape.group_bits) <= self.core.geometry.large_max()
        };
        LEVEL_BITS.take_while(fits).last().unwrap_or(*LEVEL_BITS.start())
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
        let filter = self.chain_filter(&guard, level, group)?;
        // The filter gets its bits before the chain gets the node; see `claim_slot`.
        self.set_filter(filter, filter_bits(tag_of(hash)));
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

    /// Drops the oldest level, all of which is frozen.
    pub(super) fn drop_level(&self, seen: u64) -> Result<()> {
        let block = self.drop_context()?;
        let guard = self.guard(true);
        let context = self.context(&guard)?;
        if context.word != seen {
            return Ok(());
        }
        let level = &context.levels[0];
        let mut nodes = Vec::new();
        for group in 0..level.groups() {
            if level.chain_filter(group).load(self.seam(), Ordering::SeqCst) & !(TOUCHED | DRAINED)
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

    pub(super) fn is_draining(&self) -> Result<bool> {
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
        // A thread that made a level ready during a shrink may have linked it after the shrink.
        if self.has_large_ready(&newest) {
            drop(self.take_ready(|bits| bits > newest.bits + 1)?);
        }
        Ok(more)
    }
}
