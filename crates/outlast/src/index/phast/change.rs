//! Changes of one key.

use super::layout;
use super::layout::LeafHeader;
use super::ops::{Found, Replaced};
use super::route::Located;
use super::state::{BLANK, BUSY, Leaf, State, UNKNOWN};
use super::{OrderedRecord, Phast, points};
use crate::error::{Boxed, Damage, Result};
use crate::index::bugs as index_bugs;
use crate::index::kit::change::{Plan, Step, Update, decide};
use crate::index::kit::media::ones;
use crate::index::kit::table::HashedKey;
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::phast::bugs;
use crate::index::record::SlotWords;
use crate::index::{Changed, RecordForm};
use crate::pmem::Seam;
use std::sync::atomic::Ordering;

/// What one attempt passes on to the next.
pub(crate) struct Progress<'i, S: Seam, R: OrderedRecord> {
    /// The new record, once it is written.
    new: Option<UnlinkedRecord<'i, S, R>>,
    /// Where the key was found to belong when the change began, for the first attempt.
    at: Option<Located<'i>>,
    /// Whether the next attempt expects the key to be present.
    replaces: bool,
    turn: u32,
}

impl<S: Seam, R: OrderedRecord> Default for Progress<'_, S, R> {
    #[inline(always)]
    fn default() -> Self {
        Progress { new: None, at: None, replaces: false, turn: 0 }
    }
}

/// A slot that an insert has reserved.
#[derive(Clone, Copy)]
pub(super) struct Reserved {
    pub(super) slot: u32,
    /// Whether the slot is blank.
    pub(super) blank: bool,
    /// The leaf's bitmap word when the key was absent.
    pub(super) seen: u64,
}

/// The outcome of an attempt.
pub(super) enum Met<R: OrderedRecord> {
    /// The change is made, or does not apply.
    Done(Changed<R>),
    /// The change is made, and left so few pairs that a merge may be possible.
    Sparse(Changed<R>),
    /// The key is present.
    Present,
    /// The key is absent.
    Absent,
    /// The key belongs to another leaf now, or this one is closed or in use.
    Busy,
    /// There is no free slot.
    Full,
}

impl<S: Seam, R: OrderedRecord> Update<S, R> for Phast<S, R> {
    type Progress<'t> = Progress<'t, S, R>;
    type Full<'t> = Located<'t>;

    #[inline(always)]
    fn begin<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        progress: &mut Progress<'t, S, R>,
    ) -> Boxed<Option<Changed<R>>> {
        progress.replaces = !plan.inserts;
        if R::FORM == RecordForm::Inline {
            return Ok(None);
        }
        let at = self.locate(key.key)?;
        if plan.value.is_some() {
            // The record's block is written before other threads have to wait, and only if the
            // change seems to apply.
            let before = self.find_at(&at, key, |words| match plan.replaces {
                true => Ok(None),
                false => plan.before.take(|| R::value(&self.core, words)),
            })?;
            match before {
                None if !plan.inserts => {
                    return Ok(Some(Changed { applied: false, before: None, present: false }));
                }
                Some(before) if !plan.replaces => {
                    return Ok(Some(Changed { applied: false, before, present: true }));
                }
                before => progress.replaces = before.is_some(),
            }
        }
        progress.at = Some(at);
        Ok(None)
    }

    #[inline(always)]
    fn attempt<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        progress: &mut Progress<'t, S, R>,
    ) -> Boxed<Step<R, Located<'t>>> {
        let at = match progress.at.take() {
            Some(at) => at,
            None if R::FORM == RecordForm::Inline => self.locate(key.key)?,
            None => self.locate_later(key.key)?,
        };
        let met = if progress.replaces {
            self.replace(&at, key, plan, &mut progress.new)?
        } else {
            self.insert(&at, key, plan, &mut progress.new)?
        };
        match met {
            Met::Done(changed) => return Ok(Step::Done(changed)),
            Met::Sparse(changed) => {
                self.merge_if_possible(key.key);
                return Ok(Step::Done(changed));
            }
            Met::Absent if !plan.inserts => return Ok(Step::absent(false)),
            Met::Absent => progress.replaces = false,
            Met::Present if plan.replaces => progress.replaces = true,
            Met::Present => {
                // The record may have been removed since.
                if let Some(changed) = self.present(key, plan)? {
                    return Ok(Step::Done(changed));
                }
            }
            Met::Full => return Ok(Step::Full(at)),
            Met::Busy => {
                let mut turn = progress.turn;
                self.core.wait_for_lock(&mut turn, 1, || {
                    let leaf = self.leaf(at.leaf);
                    (leaf.offset(self.seam()), leaf.state(self.seam()).0)
                })?;
                progress.turn = turn;
            }
        }
        Ok(Step::Again)
    }

    fn change_in_row(
        &self,
        changes: &[(HashedKey<'_, R>, Plan<'_, R>)],
        done: &mut Vec<Changed<R>>,
    ) -> Boxed<()> {
        self.change_sharing_fence(changes, done)
    }

    fn grow(&self, key: HashedKey<'_, R>, at: Located<'_>) -> Result<()> {
        self.make_room(&at, key.key)
    }
}

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    // ---- Changing ---------------------------------------------------------------

    /// Does what [`locate`](Phast::locate) does, for an attempt that is not the first: `attempt` then has
    /// no second inlined copy of that code, which is long.
    #[cold]
    fn locate_later(&self, key: R::Key<'_>) -> Boxed<Located<'_>> {
        self.locate(key)
    }

    /// Returns the result of an insert whose key is present.
    fn present(&self, key: HashedKey<'_, R>, plan: &Plan<'_, R>) -> Result<Option<Changed<R>>> {
        let value = |words| plan.before.take(|| R::value(&self.core, words));
        let before = self.find_and_read(key, value)?;
        Ok(before.map(|before| Changed { applied: false, before, present: true }))
    }

    /// Writes the record of a change and flushes it. The next fence makes it durable: the one after
    /// an insert's pair, or the one before an update's link.
    #[inline(always)]
    pub(super) fn prepare(
        &self,
        HashedKey { key, hash }: HashedKey<'_, R>,
        value: R::Value<'_>,
    ) -> Result<UnlinkedRecord<'_, S, R>> {
        let (at, fence) = (&points::RECORD, &points::UPDATE_RECORD);
        UnlinkedRecord::prepare_unfenced(&self.core, key, value, hash, at, fence)
    }

    // ---- Inserting --------------------------------------------------------------

    /// Inserts a key, unless it is present.
    #[inline(always)]
    fn insert<'i>(
        &'i self,
        at: &Located<'_>,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'i, S, R>>,
    ) -> Boxed<Met<R>> {
        let memory = &self.core.memory;
        let words = match new {
            Some(new) => new.words(),
            None => {
                let value = plan.value.expect("an insert has a value");
                new.insert(self.prepare(key, value)?).words()
            }
        };
        self.prefetch(at, key.hash);
        let leaf = self.leaf(at.leaf);
        let Some(offset) = self.offset_to_read(at, leaf)? else { return Ok(Met::Busy) };
        self.prefetch_far(offset, key.hash);
        let reserved = match self.reserve(at, leaf, offset, key)? {
            Ok(reserved) => reserved,
            Err(met) => return Ok(met),
        };
        let Reserved { slot, blank, .. } = reserved;
        let filled = self.fill(at.leaf, offset, reserved, words, key);
        if matches!(filled, Ok(true)) {
            self.flush_insert(offset, slot, blank);
            memory.fence(&points::INSERT);
            leaf.finish_insert(memory.seam());
            new.iter_mut().for_each(UnlinkedRecord::set_linked);
            return Ok(Met::Done(Changed { applied: true, before: None, present: false }));
        }
        if self.seeded(&bugs::GIVEN_UP_FREED) {
            leaf.give_up_insert(memory.seam(), slot);
        } else {
            leaf.finish_insert(memory.seam());
        }
        Ok(filled.map(|_| Met::Present)?)
    }

    /// Reserves a slot for an insert of an absent key, or returns why not.
    #[inline(always)]
    pub(super) fn reserve(
        &self,
        at: &Located<'_>,
        leaf: &Leaf,
        offset: u64,
        key: HashedKey<'_, R>,
    ) -> Result<Result<Reserved, Met<R>>, Damage> {
        let seam = self.core.memory.seam();
        let state = leaf.state(seam);
        if state.is_closed() {
            return Ok(Err(Met::Busy));
        }
        let Some(slot) = state.free_slot(self.shape.leaf_slots, self.shape.line_of(key.hash))
        else {
            // A key that is present needs no room.
            let (_, found) = self.probe_beside(at.leaf, offset, key);
            if !self.is_current(at) {
                return Ok(Err(Met::Busy));
            }
            return Ok(Err(if found?.is_some() { Met::Present } else { Met::Full }));
        };
        seam.prefetch(self.pair(offset, slot));
        if !leaf.exchange(seam, state, state.inserting(slot)) {
            return Ok(Err(Met::Busy));
        }
        // From here on, the leaf is neither compacted nor split nor merged.
        if !self.is_current(at) {
            leaf.give_up_insert(seam, slot);
            return Ok(Err(Met::Busy));
        }
        let free_slots = leaf.free_slots_are(seam);
        if free_slots == UNKNOWN {
            leaf.give_up_insert(seam, slot);
            return Ok(Err(Met::Full));
        }
        let (seen, found) = self.probe_beside(at.leaf, offset, key);
        match found {
            Ok(None) => Ok(Ok(Reserved { slot, blank: free_slots == BLANK, seen })),
            found => {
                leaf.give_up_insert(seam, slot);
                found?;
                Ok(Err(Met::Present))
            }
        }
    }

    /// Writes a pair into a reserved slot and sets its bit, which the caller has to
    /// [flush](Self::flush_insert) and fence. Returns `false`, without setting it, if another thread
    /// has inserted the key since the leaf's bitmap word was `seen`.
    ///
    /// If the slot was `blank`, pair and bit become durable with one fence: opening tells from what
    /// is in the slot whether the pair did.
    #[inline(always)]
    pub(super) fn fill(
        &self,
        handle: u32,
        offset: u64,
        Reserved { slot, blank, mut seen }: Reserved,
        words: SlotWords,
        key: HashedKey<'_, R>,
    ) -> Result<bool> {
        let memory = &self.core.memory;
        let pair = self.pair(offset, slot);
        let LeafHeader { head, .. } = self.header(offset);
        // The fingerprint is stored before the pair's line is flushed, because its store is an
        // exchange, which would wait for that flush. (The exchange of the bitmap would, too. So in a
        // blank slot, the pair is flushed after it.) Without its bit the fingerprint means nothing.
        self.set_fingerprint(offset, slot, key.hash as u8);
        // The value comes before the key: opening takes a pair that has a bit for a record, unless it
        // has the key of a blank slot.
        pair.fill_empty(memory, words, &points::INSERT_PAIR);
        if !blank {
            memory.flush(pair, &points::INSERT_PAIR);
            memory.fence(&points::INSERT_PAIR);
        }
        loop {
            let replaced = self.replaced_before(handle);
            // Inserts only set bits, and no bit is set twice until the leaf is compacted. So if the
            // bits are the same, the keys are the same.
            let set = memory.seam().compare_exchange(
                &head.bitmap,
                seen,
                seen ^ layout::toggle(slot),
                // Release: pairs with the Acquire in `bitmap`.
                Ordering::AcqRel,
                Ordering::Acquire,
                &points::INSERT,
            );
            let Err(now) = set else { break };
            let added = now & !seen & self.shape.all_slots();
            let found = self.probe_since(replaced, offset, added, key);
            // If the probe is not valid, `seen` stays as it is, so the next exchange finds the new
            // bits again, unless they are gone.
            let Some(found) = found else { continue };
            if found?.is_some() && !self.seeded(&index_bugs::INSERT_UNCHECKED) {
                // The slot's pair and fingerprint mean nothing, but as they were stored, they are
                // flushed as well.
                if blank {
                    memory.flush(pair, &points::INSERT_PAIR);
                }
                memory.persist(head, &points::INSERT);
                return Ok(false);
            }
            seen = now;
        }
        Ok(true)
    }

    /// Flushes the bit of a new pair, and the pair, if its slot was `blank`.
    #[inline(always)]
    pub(super) fn flush_insert(&self, offset: u64, slot: u32, blank: bool) {
        let memory = &self.core.memory;
        if blank {
            memory.flush(self.pair(offset, slot), &points::INSERT_PAIR);
        }
        memory.flush(&self.header(offset).head, &points::INSERT);
    }

    /// Does what [`probe`](Self::probe) does, for an insert. Concurrent updates and removals do not
    /// wait for the insert, and free the blocks that the leaf's links lead to. So a block can hold
    /// another record by the time its key is compared, and the key would seem to be absent. If that
    /// may have happened, this probes again. Also returns the bitmap word that was used.
    #[inline(always)]
    fn probe_beside(
        &self,
        handle: u32,
        offset: u64,
        key: HashedKey<'_, R>,
    ) -> (u64, Result<Option<Found>, Damage>) {
        loop {
            let replaced = self.replaced_before(handle);
            let word = self.bitmap_word(offset);
            let bits = word & self.shape.all_slots();
            if let Some(found) = self.probe_since(replaced, offset, bits, key) {
                return (word, found);
            }
        }
    }

    /// Probes slots whose bits were read after `replaced`. Returns `None` if a record has been
    /// replaced or removed since, because its block may then hold anything.
    #[inline(always)]
    fn probe_since(
        &self,
        replaced: Replaced<'_>,
        offset: u64,
        slots: u64,
        key: HashedKey<'_, R>,
    ) -> Option<Result<Option<Found>, Damage>> {
        let found = self.probe(offset, slots, key);
        let counts = self.is_unreplaced(replaced) || self.seeded(&bugs::INSERT_READS_FREED);
        counts.then_some(found)
    }

    /// Sets a slot's fingerprint, by an exchange, because other threads may set others in the same
    /// word.
    #[inline(always)]
    fn set_fingerprint(&self, offset: u64, slot: u32, fingerprint: u8) {
        let memory = &self.core.memory;
        let word = &self.header(offset).head.fingerprints[slot as usize / 8];
        let shift = slot % 8 * 8;
        let mut found = memory.load(word);
        loop {
            let new = found & !(0xff << shift) | u64::from(fingerprint) << shift;
            let set = memory.seam().compare_exchange(
                word,
                found,
                new,
                Ordering::Relaxed,
                Ordering::Relaxed,
                &points::INSERT,
            );
            match set {
                Ok(_) => return,
                Err(now) => found = now,
            }
        }
    }

    // ---- Replacing and removing -------------------------------------------------

    /// Updates or removes a key, if it is present.
    #[inline(always)]
    fn replace<'i>(
        &'i self,
        at: &Located<'_>,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'i, S, R>>,
    ) -> Boxed<Met<R>> {
        let seam = self.core.memory.seam();
        if new.is_none()
            && let Some(value) = plan.value
        {
            *new = Some(self.prepare(key, value)?);
        }
        if R::FORM == RecordForm::Bytes && new.is_some() {
            // The record must be durable before the link to it.
            self.core.memory.fence(&points::UPDATE_RECORD);
        }
        self.prefetch(at, key.hash);
        let leaf = self.leaf(at.leaf);
        let Some(offset) = self.offset_to_read(at, leaf)? else { return Ok(Met::Busy) };
        self.prefetch_far(offset, key.hash);
        let state = leaf.state(seam);
        if state.is_closed()
            || state.is_busy()
            || !leaf.exchange(seam, state, State(state.0 | BUSY))
        {
            return Ok(Met::Busy);
        }
        // From here on, no other thread updates or removes a pair of the leaf.
        let step = if self.is_current(at) {
            self.replace_busy(at.leaf, offset, state, key, plan, new)
        } else {
            Ok(Met::Busy)
        };
        unless_seeded!(self, index_bugs::LOCK_NOT_RELEASED => leaf.finish_change(seam));
        step
    }

    #[inline(always)]
    fn replace_busy(
        &self,
        handle: u32,
        offset: u64,
        state: State,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'_, S, R>>,
    ) -> Boxed<Met<R>> {
        let core = &self.core;
        let bits = self.bitmap(offset);
        let Some(Found { slot, words }) = self.probe(offset, bits, key)? else {
            return Ok(Met::Absent);
        };
        if state.has_inserts() || self.leaf(handle).state(core.memory.seam()).has_inserts() {
            // The pair may come from an insert that is not durable yet.
            self.help(offset, std::iter::once(slot));
        }
        let decision = decide(core, plan, words)?;
        if !decision.applied {
            return Ok(Met::Done(decision.finish(core)));
        }
        let mut sparse = false;
        match new {
            Some(new) => {
                let (pair, link) = (self.pair(offset, slot), &points::UPDATE_LINK);
                pair.replace::<S, R>(&core.memory, new.words(), &points::UPDATE, link);
                new.set_linked();
            }
            None => sparse = self.remove(offset, slot),
        }
        unless_seeded!(self, bugs::RETIRED_UNNOTED => self.note_replaced(handle));
        let changed = decision.finish(core);
        seed!(self, bugs::RETIRED_UNNOTED => self.note_replaced(handle));
        Ok(if sparse { Met::Sparse(changed) } else { Met::Done(changed) })
    }

    /// Merges the leaf of a key with a neighboring one, if it has few pairs. A merge changes no key,
    /// and may fail. What it is for, a removal, is already made.
    pub(super) fn merge_if_possible(&self, key: R::Key<'_>) {
        if let Err(error) = self.merge_around(key) {
            tracing::debug!(%error, "a leaf could not be merged");
        }
    }

    /// Removes a pair, durably, by clearing one bit. Returns whether few pairs are left.
    #[inline(always)]
    fn remove(&self, offset: u64, slot: u32) -> bool {
        let is_sparse = self.clear_bit(offset, slot);
        self.core.memory.flush(&self.header(offset).head.bitmap, &points::REMOVE);
        self.core.memory.fence(&points::REMOVE);
        is_sparse
    }

    /// Clears the bit of a pair, without a flush. Returns whether few pairs are left.
    #[inline(always)]
    pub(super) fn clear_bit(&self, offset: u64, slot: u32) -> bool {
        let memory = &self.core.memory;
        seed!(self, index_bugs::REMOVES_NOTHING => return false);
        let word = &self.header(offset).head.bitmap;
        let mut found = memory.load(word);
        loop {
            // No other thread clears this bit. It can be gone only in a damaged file.
            let cleared = if found >> slot & 1 == 1 { layout::toggle(slot) } else { 0 };
            let set = memory.seam().compare_exchange(
                word,
                found,
                found ^ cleared,
                Ordering::AcqRel,
                Ordering::Relaxed,
                &points::REMOVE,
            );
            match set {
                Ok(_) => break,
                // Concurrent inserts change the word.
                Err(now) => found = now,
            }
        }
        let left = (found & self.shape.all_slots() & !(1 << slot)).count_ones();
        // This is true only at a few counts, so that not every removal from a leaf with few pairs
        // attempts a merge.
        left == 0 || left == self.shape.leaf_slots / 8 || left == self.shape.leaf_slots / 4
    }

    /// Yields the slots of a leaf that hold a pair.
    pub(super) fn slots_of(&self, offset: u64) -> impl Iterator<Item = u32> {
        ones(self.bitmap(offset))
    }
}
