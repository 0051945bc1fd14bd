//! The DRAM state of the levels: the context, and the Bloom filters of buckets.
//!
//! The filter of a bucket is one word: 62 bits of a Bloom filter of the tags in its
//! slots, and two marks. The bits of a tag are set before a slot gets it, and never cleared. So a
//! filter can show a tag that is not there, but never hide one that is, and most lookups that find
//! nothing read no bucket. Each group's overflow chain has a filter as well, which usually says
//! that there is no chain.
//!
//! The filters of a level that is kept ready are made with it, in the background, and their memory
//! is touched then. Otherwise an insert that is first to touch a huge page would wait until the
//! kernel has cleared it: usually 0.1 ms, and up to 5 ms if the host has to find one.

use super::layout::{
    self, BUCKET_BYTES, Bucket, CONTEXT_BYTES, ContextBlock, Kind, LEVEL_HEADER, LevelHeader,
    MAX_LEVELS, SLOTS, root, slot, unpack_level,
};
use super::{Clevel, points};
use crate::error::{Damage, Result};
use crate::index::kit::media::{check_block, check_identity, checksum};
use crate::index::record::BlockRecord;
use crate::pmem::{DramWords, Offset, Seam, Shared, SharedWord, Word};
use crate::pool::core::Core;
use crate::reclaim::{Pin, Visit};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

/// The bucket has been touched since opening: what a crash left there is void or durable.
pub(super) const TOUCHED: u64 = 1 << 63;
/// Every slot of the bucket is frozen, durably.
pub(super) const DRAINED: u64 = 1 << 62;
/// The bits of a filter that stand for tags.
const FILTER_BITS: u64 = 62;

/// Returns the filter bits of a tag.
#[inline(always)]
pub(super) fn filter_bits(tag: u64) -> u64 {
    const TAGS: u64 = 1 << slot::TAG_BITS;
    // Three bits: the filter of a bucket with seven tags also shows about one in fifty of all other
    // tags.
    let bit = |factor: u64| 1 << ((tag * factor % TAGS) * FILTER_BITS / TAGS);
    bit(1) | bit(0x1d3f) | bit(0x2b5b)
}

/// Returns the tag of a hash: bits that choose neither bucket nor group.
#[inline(always)]
pub(super) fn tag_of(hash: u64) -> u64 {
    hash >> 20 & ((1 << slot::TAG_BITS) - 1)
}

/// A level and its DRAM state. Before a context includes the level, its whole extent is checked to
/// lie inside the memory.
pub(crate) struct Level {
    pub(super) offset: u64,
    pub(super) bits: u32,
    /// log2 of the buckets of a group.
    group_bits: u32,
    /// How far [`Level::group`] shifts a hash to get its group, after a first shift by one.
    group_shift: u32,
    /// [`TOUCHED`] if the level came into use since opening, so that nothing in it is from before a
    /// crash; otherwise 0.
    fresh: u64,
    filters: DramWords,
    chains: DramWords,
    /// The part to be emptied next; see [`Level::parts`].
    pub(super) next: SharedWord,
    /// All parts before this one were found empty.
    pub(super) verified: SharedWord,
    /// The number of records that took one of the last two slots of a bucket.
    pub(super) crowded: SharedWord,
    /// Whether a thread has begun to make the next level ready. Only the first thread that sets
    /// this tries. If its attempt fails, no other thread tries.
    pub(super) succeeded: Shared<AtomicBool>,
}

impl Level {
    fn new(offset: u64, bits: u32, group_bits: u32, fresh: bool) -> Level {
        let groups = 1 << layout::level_groups(bits, group_bits);
        let level = Level {
            offset,
            bits,
            group_bits: group_bits.min(bits),
            group_shift: 63 - layout::level_groups(bits, group_bits),
            fresh: if fresh { TOUCHED } else { 0 },
            filters: DramWords::zeroed(1 << bits),
            chains: DramWords::zeroed(groups),
            next: Shared::default(),
            verified: Shared::default(),
            crowded: Shared::default(),
            succeeded: Shared::default(),
        };
        // Other levels get huge pages later, because the first operations after opening would wait
        // for them.
        if fresh {
            level.use_huge_pages();
        }
        level
    }

    /// Allows huge pages for the level's DRAM state from now on.
    pub(super) fn use_huge_pages(&self) {
        self.filters.use_huge_pages();
        self.chains.use_huge_pages();
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.fresh != 0
    }

    pub(super) fn buckets(&self) -> u64 {
        1 << self.bits
    }

    pub(super) fn slots(&self) -> u64 {
        self.buckets() * SLOTS as u64
    }

    /// Returns log2 of the number of groups.
    pub(super) fn groups_log2(&self) -> u32 {
        self.bits - self.group_bits
    }

    pub(super) fn groups(&self) -> u64 {
        1 << self.groups_log2()
    }

    pub(super) fn group_buckets(&self) -> u64 {
        1 << self.group_bits
    }

    /// Returns the number of parts, which are emptied one by one: buckets, then the chains of
    /// groups.
    pub(super) fn parts(&self) -> u64 {
        self.buckets() + self.groups()
    }

    /// Returns the group of a hash: its first bits, so that a range of hashes owns the same part of
    /// every level.
    #[inline(always)]
    pub(super) fn group(&self, hash: u64) -> u64 {
        // Two shifts, because a single one could be by all 64 bits, which overflows.
        hash >> 1 >> self.group_shift
    }

    /// Returns the two buckets of a hash, both in its group.
    #[inline(always)]
    pub(super) fn pair(&self, hash: u64) -> [u64; 2] {
        let first = self.group(hash) << self.group_bits;
        let mask = self.group_buckets() - 1;
        let (one, mut other) = (hash & mask, hash >> 10 & mask);
        if one == other {
            other ^= 1;
        }
        [first + one, first + other]
    }

    #[inline(always)]
    pub(super) fn filter(&self, bucket: u64) -> &SharedWord {
        &self.filters[bucket as usize]
    }

    #[inline(always)]
    pub(super) fn chain_filter(&self, group: u64) -> &SharedWord {
        &self.chains[group as usize]
    }

    /// Returns whether the bucket or chain that this filter covers has been touched since opening.
    #[inline(always)]
    pub(super) fn is_touched(&self, filter: u64) -> bool {
        self.touched(filter) != 0
    }

    /// Returns [`TOUCHED`] if what the filter covers has been touched, otherwise 0.
    #[inline(always)]
    pub(super) fn touched(&self, filter: u64) -> u64 {
        (self.fresh | filter) & TOUCHED
    }

    /// Returns whether at least one record for every 16 buckets took one of a bucket's last two
    /// slots.
    pub(super) fn is_crowded(&self, seam: &impl Seam) -> bool {
        self.crowded.load(seam, Ordering::Relaxed) * 16 >= self.buckets()
    }

    /// Touches the memory of the filters before operations need it.
    pub(super) fn touch_notes(&self) {
        self.filters.touch();
        self.chains.touch();
    }

    pub(super) fn dram_bytes(&self) -> u64 {
        (self.filters.len() + self.chains.len()) as u64 * 8
    }
}

/// The context in DRAM. It does not change once it is shared, except for `next`.
pub(crate) struct Context {
    /// The root's word that names it, without P.
    pub(super) word: u64,
    pub(super) turn: u64,
    /// The offset of its block in PM.
    pub(super) block: u64,
    /// The number of levels that stay, counted from the newest.
    pub(super) keep: usize,
    /// The levels by age, the oldest first.
    pub(super) levels: Vec<Arc<Level>>,
    /// The level kept ready for the next context, with filters whose memory has been touched
    /// already. (Other filters are touched on first use.)
    ///
    /// The filters must be empty when the level comes into use. They are, although several threads
    /// may each build a successor of this context with this level in it: only one successor is
    /// installed, and the others are dropped before any operation has used them.
    pub(super) next: Shared<OnceLock<Arc<Level>>>,
}

impl Context {
    pub(super) fn newest(&self) -> &Arc<Level> {
        self.levels.last().expect("a context has a level")
    }

    /// Returns the level that is being emptied.
    pub(super) fn draining(&self) -> Option<&Arc<Level>> {
        (self.levels.len() > self.keep).then(|| &self.levels[0])
    }

    /// Yields the levels that take records, the newest first.
    pub(super) fn open_levels(&self) -> impl Iterator<Item = &Arc<Level>> {
        self.levels.iter().rev().take(self.keep)
    }
}

/// A replaced context, and the epoch that began after its replacement.
struct Discarded {
    epoch: u64,
    context: *mut Context,
    next: *mut Discarded,
}

/// A list of contexts that threads may still be reading. Any thread can add to it.
pub(super) struct Discards(Shared<AtomicPtr<Discarded>>);

impl Discards {
    pub(super) fn new() -> Discards {
        Discards(Shared::default())
    }

    pub(super) fn is_empty(&self, seam: &impl Seam) -> bool {
        self.0.load(seam, Ordering::Relaxed).is_null()
    }

    /// Adds a context that was made from a box, and that new operations can no longer find.
    fn push(&self, seam: &impl Seam, context: *mut Context, epoch: u64) {
        let node = Box::into_raw(Box::new(Discarded { epoch, context, next: null_mut() }));
        self.put(seam, node);
    }

    fn put(&self, seam: &impl Seam, node: *mut Discarded) {
        let mut head = self.0.load(seam, Ordering::Relaxed);
        loop {
            // SAFETY: made from a box, and no other thread can reach it before the exchange.
            unsafe { (*node).next = head };
            // Release: pairs with the Acquire in `collect`.
            let order = (Ordering::Release, Ordering::Relaxed);
            match self.0.compare_exchange(seam, head, node, order) {
                Ok(_) => return,
                Err(found) => head = found,
            }
        }
    }

    /// Frees the contexts that no thread reads any more. `is_past` says whether all guards from
    /// before an epoch are gone.
    pub(super) fn collect(&self, seam: &impl Seam, is_past: impl Fn(u64) -> bool) {
        // Acquire: pairs with the Release in `put`.
        let mut node = self.0.swap(seam, null_mut(), Ordering::Acquire);
        while !node.is_null() {
            // SAFETY: the thread that takes the list owns its nodes alone.
            let (epoch, context, next) = unsafe { ((*node).epoch, (*node).context, (*node).next) };
            if is_past(epoch) {
                // SAFETY: both were made from boxes, and no thread reads the context any more.
                unsafe {
                    drop(Box::from_raw(node));
                    drop(Box::from_raw(context));
                }
            } else {
                self.put(seam, node);
            }
            node = next;
        }
    }
}

impl Drop for Discards {
    fn drop(&mut self) {
        let mut node = *self.0.alone().get_mut();
        while !node.is_null() {
            // SAFETY: both were made from boxes, and nothing else has them any more.
            unsafe {
                drop(Box::from_raw((*node).context));
                node = Box::from_raw(node).next;
            }
        }
    }
}

/// An operation in progress. While the guard exists, blocks and contexts that the operation may
/// have seen are not reused.
pub(crate) struct Guard<'c, S: Seam> {
    core: &'c Core<S>,
    _visit: Visit<'c>,
    /// Whether the operation has passed the gate.
    pub(super) inside: bool,
}

impl<S: Seam> Guard<'_, S> {
    /// Makes a pin that outlives the operation. It protects what is reachable from now on, but not
    /// what the operation found before.
    pub(super) fn pin(&self) -> Pin {
        self.core.pin()
    }
}

impl<S: Seam, R: BlockRecord> Clevel<S, R> {
    /// Begins an operation. The operation must not allocate blocks, because an allocation may have
    /// to wait until all operations in progress have ended.
    #[inline(always)]
    pub(super) fn guard(&self, inside: bool) -> Guard<'_, S> {
        Guard { core: &self.core, _visit: self.core.visit(), inside }
    }

    /// Returns the current context, which is durable.
    #[inline(always)]
    pub(super) fn context<'g>(&self, guard: &'g Guard<'_, S>) -> Result<&'g Context> {
        // Acquire: pairs with the Release in `refresh`.
        // SAFETY: it is never null. A replaced context is freed only when no guard is left from
        // before its replacement, and the caller has had a guard since before this load.
        let context = unsafe { &*self.context.load(self.seam(), Ordering::Acquire) };
        if self.look(self.root(root::CONTEXT)) == context.word {
            return Ok(context);
        }
        self.refresh(guard)
    }

    /// The slow path of [`context`](Self::context): the context in DRAM does not match the root's
    /// word, or the word is pending.
    #[cold]
    fn refresh<'g>(&self, guard: &'g Guard<'_, S>) -> Result<&'g Context> {
        let seam = self.core.memory.seam();
        loop {
            // The context in DRAM is read before the root's word, so the one that replaces it is
            // never older, and a level that was added is in all later contexts until it is dropped.
            // In the other order, an older context could replace a newer one that another thread
            // installed meanwhile. A level that only the newer one had would then get new, empty
            // filters, which would hide everything in it.
            // Acquire: as above.
            let known = self.context.load(self.seam(), Ordering::Acquire);
            // SAFETY: as above.
            let context = unsafe { &*known };
            let word = self.look(self.root(root::CONTEXT));
            if word & root::PENDING != 0 {
                self.persist_root(guard, word);
            }
            let word = word & !root::PENDING;
            if context.word == word {
                return Ok(context);
            }
            let new = match self.read_context(word, Some(context)) {
                Ok(new) => Box::into_raw(Box::new(new)),
                // The context may have been replaced, and its block reused, while it was read.
                Err(_) if self.look(self.root(root::CONTEXT)) & !root::PENDING != word => continue,
                Err(damage) => return Err(damage.into()),
            };
            // Release: pairs with the Acquire above. (SeqCst: orders the exchange before `begin`.)
            let order = (Ordering::SeqCst, Ordering::Relaxed);
            match self.context.compare_exchange(seam, known, new, order) {
                Ok(_) => self.discards.push(seam, known, self.core.epochs().begin()),
                // SAFETY: made from a box above, and no other thread has seen it.
                Err(_) => drop(unsafe { Box::from_raw(new) }),
            }
        }
    }

    /// Persists the root's word, which was found pending. Removes the mark if the operation has
    /// passed the gate.
    fn persist_root(&self, guard: &Guard<'_, S>, word: u64) {
        let memory = &self.core.memory;
        let place = self.root(root::CONTEXT);
        memory.persist(place, &points::MET_ROOT);
        if guard.inside {
            let _ = self.exchange(place, word, word & !root::PENDING, &points::UNMARK);
        }
    }

    /// Reads and checks the context that a root's word names, which is to replace `known`. The two
    /// share the state of levels that are in both. A level that is not in `known` came into use
    /// since opening. Without a `known`, the table is being opened, and no level did.
    pub(super) fn read_context(
        &self,
        word: u64,
        known: Option<&Context>,
    ) -> Result<Context, Damage> {
        let memory = &self.core.memory;
        let place = self.root;
        let (block, turn) = root::unpack(word).ok_or_else(|| {
            Damage::new(place, "a context's offset and turn", format!("{word:#x}"))
        })?;
        let words = memory.at(Offset::<ContextBlock>::new(block))?;
        self.core.alloc().check_block(&self.core, block, CONTEXT_BYTES)?;
        let counts = memory.load(&words.counts);
        let (count, keep) = ((counts & 0xff) as usize, (counts >> 8) as usize);
        let bad = |what: &str, found: u64| Damage::new(block, what, format!("{found:#x}"));
        if !(1..=MAX_LEVELS).contains(&count) || !(1..=MAX_LEVELS).contains(&keep) {
            return Err(bad("a context of 1 to 30 levels", counts));
        }
        let values: Vec<u64> = words.levels[..count].iter().map(|w| memory.load(w)).collect();
        let check = memory.load(&words.check);
        if check != context_check(block, counts, &values) {
            return Err(bad("a context with its checksum", check));
        }
        let mut levels: Vec<Arc<Level>> = Vec::with_capacity(count);
        for value in values {
            let (offset, bits) =
                unpack_level(value).ok_or_else(|| bad("a level's offset and size", value))?;
            if levels.iter().any(|level| level.offset == offset) {
                return Err(bad("levels at different offsets", value));
            }
            let is_it = |level: &&Arc<Level>| level.offset == offset && level.bits == bits;
            let same = known.and_then(|known| known.levels.iter().find(is_it));
            levels.push(match (same, known) {
                (Some(level), _) => Arc::clone(level),
                (None, Some(known)) => {
                    self.check_level(offset, bits)?;
                    match known.next.get(self.seam()).filter(is_it) {
                        Some(level) => Arc::clone(level),
                        None => Arc::new(self.new_filters(offset, bits)),
                    }
                }
                (None, None) => {
                    self.check_level(offset, bits)?;
                    Arc::new(Level::new(offset, bits, self.shape.group_bits, false))
                }
            });
        }
        let next = Shared::once();
        // If the newest level is still the same, the level kept ready has not been added yet.
        if let Some(known) = known
            && Arc::ptr_eq(known.newest(), levels.last().expect("counted above"))
            && let Some(level) = known.next.get(self.seam())
        {
            let _ = next.set(self.seam(), Arc::clone(level));
        }
        Ok(Context { word, turn, block, keep, levels, next })
    }

    /// Makes the DRAM state of a level that no thread has used.
    pub(super) fn new_filters(&self, offset: u64, bits: u32) -> Level {
        Level::new(offset, bits, self.shape.group_bits, true)
    }

    /// Checks a level: its header, and that all of it lies in one block.
    pub(super) fn check_level(&self, offset: u64, bits: u32) -> Result<(), Damage> {
        let memory = &self.core.memory;
        let header = memory.at(Offset::<LevelHeader>::new(offset))?;
        check_block(&self.core, offset, layout::level_bytes(bits, self.shape.group_bits))?;
        let expected = layout::identity(Kind::Level, offset, bits);
        let what = format!("a level of 2^{bits} buckets");
        check_identity(memory, &header.identity, expected, &what)
    }

    /// Returns a bucket of a level.
    #[inline(always)]
    pub(super) fn bucket(&self, level: &Level, bucket: u64) -> &Bucket {
        debug_assert!(bucket < level.buckets());
        let offset = level.offset + LEVEL_HEADER + bucket * BUCKET_BYTES;
        // SAFETY: the extent of a context's levels was checked before they became part of it.
        // `bucket` is inside the level, and its offset is a multiple of a line.
        unsafe { self.core.memory.at_unchecked(Offset::new(offset)) }
    }

    /// Returns the head of a group's chain.
    pub(super) fn chain_head(&self, level: &Level, group: u64) -> &Word {
        debug_assert!(group < level.groups());
        let offset = level.offset + LEVEL_HEADER + level.buckets() * BUCKET_BYTES + group * 8;
        // SAFETY: as above. Words are at multiples of 8.
        unsafe { self.core.memory.at_unchecked(Offset::new(offset)) }
    }
}

/// Returns the check word of a context.
pub(super) fn context_check(block: u64, counts: u64, levels: &[u64]) -> u64 {
    let words: Vec<u64> = [block, counts].iter().chain(levels).copied().collect();
    u64::from(checksum(&words))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::index::kit::change;
    use crate::index::kit::table::{HashedKey, Lookup};
    use crate::index::{Change, Config, Inline, Previous};
    use crate::pmem::Real;
    use crate::pool::core::Core;
    use crate::{MapOptions, Pool, PoolOptions, Scheme};

    type Table = Clevel<Real, Inline>;

    pub(in super::super) fn value_of(table: &Table, key: u64) -> Option<u64> {
        table.value(HashedKey::new(&table.core, key)).unwrap()
    }

    /// Opens a second table on the map's blocks, which begins with two buckets. The test does not use the
    /// map's own table, so no other one changes the blocks. If `size` is not 0, the pool has this size.
    pub(in super::super) fn table_in(size: u64) -> (Pool, Arc<Core<Real>>, Table) {
        let options = PoolOptions::new().background(false);
        let options = match size {
            0 => options,
            _ => options.page_bits(12).initial_size(size).max_size(size),
        };
        let pool = options.anonymous().unwrap();
        let options = MapOptions::new().config(Config::small(Scheme::Clevel));
        drop(pool.map_with::<u64, u64>("m", &options).unwrap());
        let Config::Clevel(config) = pool.maps().remove(0).unwrap().config else { unreachable!() };
        let core = Arc::clone(pool.store().core());
        let table = Table::open(&core, 0, config).unwrap();
        (pool, core, table)
    }

    /// Follows the level that is kept ready from one context to the next, and checks its filters.
    struct Seen {
        /// The newest levels of all contexts so far.
        known: Vec<Arc<Level>>,
        block: u64,
        /// The level that is to follow them.
        next: Option<Arc<Level>>,
        taken: u64,
        handed_on: u64,
    }

    impl Seen {
        fn look(&mut self, table: &Table) {
            let guard = table.guard(false);
            let context = table.context(&guard).unwrap();
            if Arc::ptr_eq(context.newest(), self.known.last().unwrap()) {
                let same = context.block == self.block;
                self.handed_on += u64::from(!same && self.next.is_some());
                assert!(
                    self.next.is_none() || context.next.get(table.seam()).is_some(),
                    "lost on the way"
                );
            } else {
                let level = context.newest();
                if let Some(next) = self.next.take() {
                    assert!(Arc::ptr_eq(level, &next), "another one's filters");
                    self.taken += 1;
                }
                self.known.push(Arc::clone(level));
                assert!(context.next.get(table.seam()).is_none(), "filters that are in use");
            }
            self.block = context.block;
            self.next = context.next.get(table.seam()).cloned();
            if let Some(next) = &self.next {
                assert!(self.known.iter().all(|level| !Arc::ptr_eq(level, next)));
                assert!(next.filters.iter().all(|n| n.load(table.seam(), Ordering::Relaxed) == 0));
            }
        }
    }

    #[test]
    fn notes_that_were_made_ready_are_those_of_the_level_that_comes_next() {
        const RECORDS: u64 = 60_000;
        let (_pool, core, table) = table_in(0);
        let first = {
            let guard = table.guard(false);
            Arc::clone(table.context(&guard).unwrap().newest())
        };
        let mut seen = Seen { known: vec![first], block: 0, next: None, taken: 0, handed_on: 0 };
        let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for n in 0..RECORDS {
            let insert = Change::Insert(n + 1);
            assert!(change::change(&table, key(n), insert, Previous::UNWANTED).unwrap().applied);
            seen.look(&table);
            let newest = seen.known.last().unwrap();
            // Every second level is made ready while the oldest one is being emptied.
            if seen.known.len() % 2 == 1 && newest.is_crowded(table.seam()) {
                let _writing = core.enter_in_background().unwrap().unwrap();
                table.background_step().unwrap();
                seen.look(&table);
            }
        }
        let Seen { known, taken, handed_on, .. } = seen;
        // How often each happens depends on the hash seed, which is random. Each must happen at
        // least once.
        assert!(taken >= 1 && handed_on >= 1, "{taken} taken, {handed_on} handed on");
        assert!(known.len() as u64 > taken + 3, "{} levels", known.len());
        for n in 0..RECORDS {
            assert_eq!(value_of(&table, key(n)), Some(n + 1));
        }
    }
}
