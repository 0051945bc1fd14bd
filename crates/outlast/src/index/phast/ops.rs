//! Lookups of keys.

use super::layout::{FINGERPRINT_WORDS, Head, Pair};
use super::nodes::Node;
use super::route::Located;
use super::state::{DAMAGED, Leaf, State};
use super::{OrderedRecord, Phast, points};
use crate::error::{Boxed, Damage, Result};
use crate::index::RecordForm;
use crate::index::bugs as index_bugs;
use crate::index::fingerprints;
use crate::index::kit::media::ones;
use crate::index::kit::table::{HashedKey, Lookup, Value, Wanted};
use crate::index::phast::bugs;
use crate::index::record::SlotWords;
use crate::pmem::{Seam, SharedWord};
use crate::pool::core::Core;
use crate::reclaim::Pin;
use std::sync::atomic::{Ordering, fence};

/// How many reads of a leaf may fail before one is made under a guard.
pub(super) const PATIENCE: u32 = 8;

/// An epoch guard. While it exists, no block is reused that was linked when the guard was made, or
/// later.
pub(super) struct BlockGuard<'c, S: Seam> {
    core: &'c Core<S>,
    pin: Option<Pin>,
}

impl<S: Seam> Drop for BlockGuard<'_, S> {
    fn drop(&mut self) {
        if let Some(pin) = self.pin.take() {
            self.core.epochs().unpin(pin);
        }
    }
}

/// A leaf's count of replaced and removed records, and what it was before a read. `None` if records have
/// no blocks.
pub(super) type Replaced<'l> = Option<(&'l SharedWord, u64)>;

/// A pair that was found.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) slot: u32,
    pub(super) words: SlotWords,
}

/// The state that one stage of a lookup passes on to the next.
pub(crate) struct Staged<'b> {
    /// The node that the key probably belongs to.
    node: &'b Node,
    /// Where the key belongs, if that is known.
    pub(super) at: Option<Located<'b>>,
    /// The pair that most likely holds the key.
    pair: Option<&'b Pair>,
}

impl<S: Seam, R: OrderedRecord> Lookup<S, R> for Phast<S, R> {
    type Batch<'t> = ();
    type Staged<'b> = Staged<'b>;

    #[inline(always)]
    fn find<W: Wanted<R>>(&self, key: HashedKey<'_, R>) -> Boxed<Option<W::Found<'_>>> {
        let mut read = |words| W::in_slot(&self.core, words);
        match W::PINS {
            true => self.read_valid(key, &mut read, u32::MAX),
            false => self.find_and_read(key, read),
        }
    }

    fn begin_batch(&self) {}

    #[inline(always)]
    fn stage_metadata<'b>(&'b self, (): &'b (), key: HashedKey<'_, R>) -> Result<Staged<'b>> {
        Ok(Staged { node: self.likely_node(key.key, false), at: None, pair: None })
    }

    #[inline(always)]
    fn stage_node<'b>(&'b self, staged: &mut Staged<'b>, key: HashedKey<'_, R>) {
        staged.node.prefetch_end_of::<R>(self.seam(), key.key);
    }

    #[inline(always)]
    fn stage_leaf<'b>(&'b self, staged: &mut Staged<'b>, key: HashedKey<'_, R>) {
        staged.at = self.locate_in(staged.node, key.key, false);
        if let Some(at) = &staged.at {
            self.seam().prefetch(self.leaf(at.leaf));
            self.prefetch(at, key.hash);
        }
    }

    #[inline(always)]
    fn stage_slots<'b>(
        &'b self,
        staged: &mut Staged<'b>,
        HashedKey { hash, .. }: HashedKey<'_, R>,
    ) {
        let Some(at) = &staged.at else { return };
        let offset = self.leaf(at.leaf).offset(self.seam());
        if offset & DAMAGED == 0 {
            let head = &self.header(offset).head;
            let mask = self.candidates(head, self.bitmap(offset), hash as u8);
            if let Some(slot) = ones::<u32>(mask).next() {
                let pair = self.pair(offset, slot);
                self.seam().prefetch(pair);
                staged.pair = Some(pair);
            }
        }
    }

    #[inline(always)]
    fn stage_record<'b>(&'b self, staged: &mut Staged<'b>, _: HashedKey<'_, R>) {
        if R::FORM == RecordForm::Bytes
            && let Some(pair) = staged.pair
        {
            R::prefetch(&self.core, self.words(pair));
        }
    }

    #[inline(always)]
    fn find_staged<'b>(
        &'b self,
        (): &'b (),
        staged: Staged<'b>,
        key: HashedKey<'_, R>,
    ) -> Boxed<Option<R::Owned>> {
        let mut read = |words| R::value(&self.core, words);
        let found = match &staged.at {
            Some(at) => self.read_once(at, key, &mut read)?,
            None => None,
        };
        match found {
            Some(found) => Ok(found),
            None => self.find::<Value>(key),
        }
    }
}

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    // ---- Reading ----------------------------------------------------------------

    /// Reads the words of a pair.
    #[inline(always)]
    pub(super) fn words(&self, pair: &Pair) -> SlotWords {
        pair.read(&self.core.memory)
    }

    /// Returns the bits of a leaf: which slots hold a pair.
    #[inline(always)]
    pub(super) fn bitmap(&self, leaf: u64) -> u64 {
        // Acquire: pairs with the Release of the exchange that sets a bit, so that its pair and its
        // fingerprint are visible.
        self.bitmap_word(leaf) & self.shape.all_slots()
    }

    /// Returns the bitmap of a leaf with its seal.
    #[inline(always)]
    pub(super) fn bitmap_word(&self, leaf: u64) -> u64 {
        // Acquire: as above.
        self.core.memory.load_acquire(&self.header(leaf).head.bitmap)
    }

    /// Returns the slots among `mask` whose fingerprint is `fingerprint`.
    #[inline(always)]
    pub(super) fn candidates(&self, head: &Head, mask: u64, fingerprint: u8) -> u64 {
        let mut words = [0; FINGERPRINT_WORDS + 1];
        for (word, fingerprints) in words.iter_mut().zip(&head.fingerprints) {
            *word = self.core.memory.load(fingerprints);
        }
        let (pairs, _) = words.as_chunks::<2>();
        let all = pairs.iter().enumerate();
        all.map(|(i, words)| u64::from(fingerprints::matching(*words, fingerprint)) << (16 * i))
            .fold(0, |found, bits| found | bits)
            & mask
    }

    /// Looks for a key among some slots of a leaf.
    #[inline(always)]
    pub(super) fn probe(
        &self,
        leaf: u64,
        mask: u64,
        key: HashedKey<'_, R>,
    ) -> Result<Option<Found>, Damage> {
        for slot in ones(self.candidates(&self.header(leaf).head, mask, key.hash as u8)) {
            let words = self.words(self.pair(leaf, slot));
            if R::matches(&self.core, words, key.key, key.hash)?
                || self.seeded(&index_bugs::FINGERPRINT_DECIDES)
            {
                return Ok(Some(Found { slot, words }));
            }
        }
        Ok(None)
    }

    /// Persist-on-read: makes durable what a result depends on, if the thread that stored it may
    /// not have done so yet: the bits of a leaf, and some of its pairs.
    #[cold]
    pub(super) fn help(&self, leaf: u64, slots: impl Iterator<Item = u32>) {
        let memory = &self.core.memory;
        seed!(self, index_bugs::CHANGING_IGNORED => return);
        let at = &points::HELP;
        memory.flush(&self.header(leaf).head.bitmap, at);
        let mut line = u32::MAX;
        for slot in slots {
            // Four pairs share a line.
            if slot / 4 != line {
                line = slot / 4;
                memory.flush(self.pair(leaf, slot), at);
            }
        }
        memory.fence(at);
    }

    /// Finds a key and reads from its pair. Stores nothing, and flushes only if a concurrent change
    /// of the same leaf is not durable yet.
    #[inline(always)]
    pub(super) fn find_and_read<T>(
        &self,
        key: HashedKey<'_, R>,
        read: impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Boxed<Option<T>> {
        self.find_at(&self.locate(key.key)?, key, read)
    }

    /// Does what [`find_and_read`](Self::find_and_read) does. The key was found to belong to `at`.
    #[inline(always)]
    pub(super) fn find_at<T>(
        &self,
        at: &Located<'_>,
        key: HashedKey<'_, R>,
        mut read: impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Boxed<Option<T>> {
        match self.read_once(at, key, &mut read)? {
            Some(found) => Ok(found),
            None => self.read_valid(key, &mut read, PATIENCE),
        }
    }

    /// Reads until a read is valid. After `patience` invalid reads, it reads under a guard.
    /// Otherwise a value that takes longer to read than the time between two updates in its leaf
    /// would be read again and again.
    #[inline(never)]
    fn read_valid<T>(
        &self,
        key: HashedKey<'_, R>,
        read: &mut impl FnMut(SlotWords) -> Result<T, Damage>,
        patience: u32,
    ) -> Boxed<Option<T>> {
        let (mut turn, mut readings) = (0, 0);
        let mut guard = None;
        loop {
            self.core.check()?;
            let at = self.locate(key.key)?;
            let found = match guard {
                None => self.read_once(&at, key, read)?,
                Some(_) => self.read_guarded(&at, key, read)?,
            };
            if let Some(found) = found {
                return Ok(found);
            }
            readings += 1;
            if readings == patience {
                guard = self.guard();
            }
            self.core.wait(&mut turn)?;
        }
    }

    /// Begins a read of a leaf: returns its offset. If the leaf is damaged, returns the damage, or
    /// `None` if this is no longer the leaf for the key.
    #[inline(always)]
    pub(super) fn offset_to_read(&self, at: &Located<'_>, leaf: &Leaf) -> Boxed<Option<u64>> {
        let offset = leaf.offset(self.core.memory.seam());
        if offset & DAMAGED == 0 {
            return Ok(Some(offset));
        }
        let damage = self.damage_of(at.leaf);
        if self.is_current(at) { Err(damage.into()) } else { Ok(None) }
    }

    /// Returns the state of a leaf after a read. If no thread is active in the leaf now, everything
    /// that was read is durable, because a thread makes its stores durable before it leaves the
    /// leaf.
    #[inline(always)]
    pub(super) fn state_after(&self, leaf: &Leaf) -> State {
        // Acquire: everything that was read was read before the state.
        fence(Ordering::Acquire);
        leaf.state(self.core.memory.seam())
    }

    /// Reads once. Returns `None` if the result is not valid.
    #[inline(always)]
    fn read_once<T>(
        &self,
        at: &Located<'_>,
        key: HashedKey<'_, R>,
        read: &mut impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Boxed<Option<Option<T>>> {
        self.prefetch(at, key.hash);
        let leaf = self.leaf(at.leaf);
        let Some(offset) = self.offset_to_read(at, leaf)? else { return Ok(None) };
        self.prefetch_far(offset, key.hash);
        let replaced = self.replaced_before(at.leaf);
        let found = self.probe(offset, self.bitmap(offset), key);
        let found = match found {
            Ok(Some(found)) => read(found.words).map(|value| Some((found.slot, value))),
            Ok(None) => Ok(None),
            Err(damage) => Err(damage),
        };
        let state = self.state_after(leaf);
        if !self.is_unreplaced(replaced) || !self.is_still(at) {
            return Ok(None);
        }
        let found = found?;
        self.help_reader(offset, state, found.as_ref().map(|(slot, _)| *slot));
        Ok(Some(found.map(|(_, value)| value)))
    }

    /// Does what [`read_once`](Self::read_once) does, under a guard: no block that is linked now is
    /// reused. So only the read of the link has to fall between two updates, and the block can be
    /// read afterwards.
    #[cold]
    fn read_guarded<T>(
        &self,
        at: &Located<'_>,
        key: HashedKey<'_, R>,
        read: &mut impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Boxed<Option<Option<T>>> {
        let leaf = self.leaf(at.leaf);
        let Some(offset) = self.offset_to_read(at, leaf)? else { return Ok(None) };
        let found = self.probe(offset, self.bitmap(offset), key);
        let state = self.state_after(leaf);
        if !self.is_still(at) {
            return Ok(None);
        }
        let found = found?;
        self.help_reader(offset, state, found.map(|found| found.slot));
        Ok(Some(found.map(|found| read(found.words)).transpose()?))
    }

    /// Makes durable what a result depends on, a pair or the absence of one, unless it certainly
    /// is.
    #[inline(always)]
    fn help_reader(&self, offset: u64, state: State, slot: Option<u32>) {
        // The absence of a key does not depend on inserts in progress: a bit that no insert has set
        // yet is not set on media either.
        let busy = state.is_busy() && (slot.is_some() || !self.seeded(&bugs::ABSENCE_UNHELPED));
        if busy || (slot.is_some() && state.is_tentative()) {
            self.help(offset, slot.into_iter());
        }
    }

    /// Makes a guard, which keeps all blocks that are linked now or later from being reused.
    /// Returns `None` if records have no blocks.
    #[cold]
    pub(super) fn guard(&self) -> Option<BlockGuard<'_, S>> {
        R::EMPTY.is_some().then(|| BlockGuard { core: &self.core, pin: Some(self.core.pin()) })
    }

    /// Returns what to pass to [`is_unreplaced`](Self::is_unreplaced). Must be read before links are.
    #[inline(always)]
    pub(super) fn replaced_before(&self, leaf: u32) -> Replaced<'_> {
        // Acquire: pairs with the Release in `note_replaced`.
        self.replaced(leaf).map(|count| (count, count.load(self.seam(), Ordering::Acquire)))
    }

    /// Returns whether no record's block has been freed since, so that what was read from blocks is
    /// valid.
    #[inline(always)]
    pub(super) fn is_unreplaced(&self, before: Replaced<'_>) -> bool {
        before.is_none_or(|(count, before)| {
            // Pairs with the Release fence in `note_replaced`: if a block was freed and reused, and
            // this thread has read its new content, the changed count is visible.
            fence(Ordering::Acquire);
            count.load(self.seam(), Ordering::Relaxed) == before
        })
    }

    /// Counts a record that was unlinked. Must be called before its block is freed, by the one
    /// thread that has marked the leaf [`BUSY`](super::state::BUSY).
    #[inline(always)]
    pub(super) fn note_replaced(&self, leaf: u32) {
        if let Some(count) = self.replaced(leaf) {
            let next = count.load(self.seam(), Ordering::Relaxed) + 1;
            // Release: pairs with the Acquire in `replaced_before`. A thread that reads this count
            // there sees that the link is gone.
            count.store(self.seam(), next, Ordering::Release);
            // Pairs with the Acquire fence in `is_unreplaced`.
            fence(Ordering::Release);
        }
    }
}
