//! Changes of one key.

use super::draft::{NewBlock, node_words};
use super::layout::{BLOCK_LINES, Block, NODE_BYTES, OPEN, Slot, SlotLine};
use super::lookup::{FIRST_WORDS, Found, Part, undisturbed};
use super::{At, Line, Spot, bugs, line_words, points, whose, with_hint};
use crate::error::{Boxed, Result};
use crate::index::Changed;
use crate::index::bugs as index_bugs;
use crate::index::hints::{self, STASH};
use crate::index::kit::change::{Plan, Step, Update, decide, prepare};
use crate::index::kit::lock::{Guarded, Held, HeldLock};
use crate::index::kit::media::{Link, ones};
use crate::index::kit::row::change_sharing_fence;
use crate::index::kit::table::HashedKey;
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::record::{SlotRecord, SlotWords};
use crate::pmem::{Point, Seam, SharedWord};
use std::sync::atomic::Ordering;

/// What one attempt passes on to the next: the new record, unless the change is a removal; and how
/// often the change has waited for a rebuild.
pub(crate) type Progress<'i, S, R> = (Option<UnlinkedRecord<'i, S, R>>, u32);

impl<S: Seam, R: SlotRecord> Update<S, R> for Line<S, R> {
    type Progress<'t> = Progress<'t, S, R>;
    /// The word of the cell whose segment is full.
    type Full<'t> = u64;

    #[inline(always)]
    fn begin<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        (new, _): &mut Progress<'t, S, R>,
    ) -> Boxed<Option<Changed<R>>> {
        prepare(self, key, plan, &points::RECORD, new)
    }

    /// The hot path, in as few instructions as possible. It requires that the segment is ready and
    /// not being rebuilt, that the stripe is free, and that there is room for a new record.
    #[inline(always)]
    fn attempt_first<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        (new, _): &mut Progress<'t, S, R>,
    ) -> Option<Changed<R>> {
        let (cell, word) = self.cells.find_cell(self.seam(), key.hash);
        if word & OPEN == 0 {
            return None;
        }
        let spot = self.spot(word, key.hash);
        self.seam().prefetch(spot.home());
        if plan.inserts {
            self.seam().prefetch(spot.hint());
        }
        let mut here = spot.lock.try_hold()?;
        let step = match self.leads_to(cell, word) {
            true => self.change_locked(&spot, &mut here, key, plan, new),
            false => Ok(Step::Again),
        };
        here.unlock();
        match step {
            Ok(Step::Done(changed)) => Some(changed),
            _ => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn attempt<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        (new, waited): &mut Progress<'t, S, R>,
    ) -> Boxed<Step<R, u64>> {
        self.cell(key.hash, 1)?;
        let (cell, word) = self.cells.find_cell(self.seam(), key.hash);
        let spot = self.spot(word, key.hash);
        if word & OPEN == 0 && !self.seeded(&bugs::FROZEN_IGNORED) {
            self.core.wait_for_lock(waited, 1, || (spot.segment(), word))?;
            return Ok(Step::Again);
        }
        let mut here = Guarded::new(spot.lock.hold(&self.core, spot.segment())?);
        if !self.leads_to(cell, word) {
            return Ok(Step::Again);
        }
        self.change_locked(&spot, &mut here, key, plan, new)
    }

    #[cold]
    fn grow(&self, key: HashedKey<'_, R>, word: u64) -> Result<()> {
        self.make_room(key.hash, word)
    }

    fn change_in_row(
        &self,
        changes: &[(HashedKey<'_, R>, Plan<'_, R>)],
        done: &mut Vec<Changed<R>>,
    ) -> Boxed<()> {
        change_sharing_fence(self, changes, done)
    }
}

impl<S: Seam, R: SlotRecord> Line<S, R> {
    /// Returns whether a cell still holds this word, which is not frozen. The caller holds a stripe of
    /// the segment, so no rebuild copies it before the stripe is free.
    #[inline(always)]
    pub(super) fn leads_to(&self, cell: &SharedWord, word: u64) -> bool {
        // Acquire: as in `is_valid`.
        let now = cell.load(self.seam(), Ordering::Acquire);
        now == word
            || self.seeded(&bugs::CELL_NOT_RECHECKED)
            || now == word & !OPEN && self.seeded(&bugs::FROZEN_IGNORED)
    }

    /// Makes a change. The caller has locked the stripe. In case of an error, nothing was stored.
    #[inline(always)]
    fn change_locked<'m>(
        &'m self,
        spot: &Spot<'m, S>,
        here: &mut HeldLock<'m, S>,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'_, S, R>>,
    ) -> Boxed<Step<R, u64>> {
        let Some(found) = self.search(spot, key, undisturbed)? else {
            let Some(new) = new.as_mut().filter(|_| plan.inserts) else {
                return Ok(Step::absent(false));
            };
            return self.insert_absent(spot, here, new);
        };
        let decision = decide(&self.core, plan, found.words)?;
        if !decision.applied {
            return Ok(Step::Done(decision.finish(&self.core)));
        }
        here.changing();
        if let Some(new) = new {
            let at = [&points::UPDATE, &points::UPDATE_LINK];
            found.slot.update::<S, R>(&self.core.memory, new.words(), || self.empty(key.hash), at);
            new.set_linked();
        } else {
            self.remove(spot, found);
            self.note_removal(here.changes());
        }
        Ok(Step::Done(decision.finish(&self.core)))
    }

    /// Removes a record, durably, and what the hints say about it. The stripe is changing.
    #[inline(always)]
    fn remove(&self, spot: &Spot<'_, S>, found: Found<'_>) {
        let memory = &self.core.memory;
        seed!(self, index_bugs::REMOVES_NOTHING => return);
        memory.store_release(&found.slot.first, self.empty(spot.hash), &points::REMOVE);
        memory.persist(found.slot, &points::REMOVE);
        // The flag of a record in a node stays until the next rebuild.
        if let Part::Away(place) = found.part {
            self.forget(spot, place);
        }
    }

    // ---- Hints ------------------------------------------------------------------

    #[inline(always)]
    fn hint(&self, spot: &Spot<'_, S>) -> u64 {
        spot.hint().load(self.seam(), Ordering::Relaxed)
    }

    /// Adds a record to the hints of its block. The stripe is changing.
    #[inline(always)]
    pub(super) fn note(&self, spot: &Spot<'_, S>, place: u32) {
        let hint = hints::with(self.hint(spot), spot.whose, place);
        spot.hint().store(self.seam(), hint, Ordering::Relaxed);
    }

    /// Removes a record, whose slot is empty, from the hints of its block. The stripe is changing.
    #[inline(always)]
    pub(super) fn forget(&self, spot: &Spot<'_, S>, place: u32) {
        let hint = hints::without(self.hint(spot), spot.whose, place);
        let hint = hint.unwrap_or_else(|| self.hint_of_block(spot.word, spot.hash));
        spot.hint().store(self.seam(), hint, Ordering::Relaxed);
    }

    /// Computes the hint word of a block anew. The stripe excludes changes of the block's records;
    /// other records in the stash may change meanwhile, and count for nothing.
    #[cold]
    #[inline(never)]
    fn hint_of_block(&self, word: u64, hash: u64) -> u64 {
        let spot = &self.spot(word, hash);
        let block = spot.size.home_of(spot.hash) / BLOCK_LINES;
        let mut hint = 0;
        let mut add = |at: At, line: &SlotLine| {
            for slot in &line.slots {
                let words = slot.read_whole(&self.core.memory);
                let hash = self.hash_of(words);
                let is_ours = words.first != self.empty(spot.hash)
                    && spot.size.home_of(hash) / BLOCK_LINES == block;
                // A record outside of its window is damage, which first touch reports.
                if is_ours && let Some(part) = at.part(spot.size, hash) {
                    hint = with_hint(hint, whose(spot.size, hash), part);
                }
            }
        };
        if !self.seeded(&bugs::REHINT_BLOCK_ONLY) {
            (0..spot.size.stash).for_each(|line| {
                add(At::Stash(line), self.stash(spot.segment(), spot.size, line));
            });
        }
        for (line, number) in spot.block.lines.iter().zip(block * BLOCK_LINES..) {
            add(At::Home(number), line);
        }
        let has_nodes = self.nodes(spot.segment()).next().is_some();
        if has_nodes && !self.seeded(&bugs::BEYOND_CLEARED) {
            hint |= hints::beyond_flags(self.hint(spot));
        }
        hint
    }

    // ---- Inserting --------------------------------------------------------------

    /// Returns the slots of a line that are empty, as bits of their first words.
    #[inline(always)]
    pub(super) fn free(&self, line: &SlotLine, empty: u64) -> u32 {
        self.core.memory.matching(line_words(line), FIRST_WORDS, empty)
    }

    /// Writes a record into an empty slot, durably. The stripe is changing.
    #[inline(always)]
    fn fill(&self, slot: &Slot, words: SlotWords, at: &'static Point) {
        slot.fill_empty(&self.core.memory, words, at);
        self.core.memory.persist(slot, at);
    }

    /// Inserts a record whose key is absent.
    #[inline(always)]
    fn insert_absent<'m>(
        &'m self,
        spot: &Spot<'m, S>,
        here: &mut HeldLock<'m, S>,
        new: &mut UnlinkedRecord<'_, S, R>,
    ) -> Boxed<Step<R, u64>> {
        let words = new.words();
        unless_seeded!(self, index_bugs::SHOWN_BEFORE_DURABLE => here.changing());
        match self.room_in_block(spot) {
            Some((0, slot)) => self.fill(slot, words, &points::INSERT),
            Some((place, slot)) => {
                self.note(spot, place);
                self.fill(slot, words, &points::INSERT_AWAY);
            }
            None if !self.insert_beyond(spot.word, spot.hash, words)? => {
                return Ok(Step::Full(spot.word));
            }
            None => {}
        }
        new.set_linked();
        Ok(Step::absent(true))
    }

    /// Finds an empty slot in the home line, or else in the emptiest other line of the block. Returns
    /// its place, 0 if it is in the home line.
    #[inline(always)]
    pub(super) fn room_in_block<'m>(&self, spot: &Spot<'m, S>) -> Option<(u32, &'m Slot)> {
        let (home, empty) = (spot.home(), self.empty(spot.hash));
        match self.free(home, empty) {
            0 => self.room_away(spot.block, spot.whose.home, empty),
            free => Some((0, first_of(home, free))),
        }
    }

    #[inline(never)]
    fn room_away<'m>(&self, block: &'m Block, home: u32, empty: u64) -> Option<(u32, &'m Slot)> {
        let line = |place: u32| &block.lines[((home ^ place) % BLOCK_LINES) as usize];
        let mut best = (1, self.free(line(1), empty));
        for place in 2..BLOCK_LINES {
            let free = self.free(line(place), empty);
            if count(free) > count(best.1) {
                best = (place, free);
            }
        }
        (best.1 != 0).then(|| (best.0, first_of(line(best.0), best.1)))
    }

    /// Inserts a record whose block is full: into the stash or a node. The stripe is changing. Returns
    /// whether there was room.
    #[inline(never)]
    fn insert_beyond(&self, word: u64, hash: u64, words: SlotWords) -> Result<bool> {
        let spot = &self.spot(word, hash);
        let empty = self.empty(spot.hash);
        // Its holder waits for nothing, so no lock cycle can form.
        let stash = self.stash_lock(spot.segment());
        let _locked = Guarded::new(stash.hold(&self.core, spot.segment())?);
        for position in 0..spot.size.window() {
            if let Some(slot) = self.free_slot(self.stash_at(spot, position), empty) {
                self.note(spot, STASH + position / 2);
                self.fill(slot, words, &points::INSERT_OVERFLOW);
                return Ok(true);
            }
        }
        for line in self.node_lines(spot.segment()) {
            if let Some(slot) = self.free_slot(line?.1, empty) {
                let hint = match self.seeded(&bugs::BEYOND_NOT_SET) {
                    true => self.hint(spot),
                    false => hints::with_node(self.hint(spot), spot.whose.home),
                };
                spot.hint().store(self.seam(), hint, Ordering::Relaxed);
                self.fill(slot, words, &points::INSERT_OVERFLOW);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns an empty slot of a line of the stash or a node, whose lock the caller holds.
    fn free_slot<'m>(&self, line: &'m SlotLine, empty: u64) -> Option<&'m Slot> {
        // Acquire: pairs with the Release of the removal that has emptied the slot. So if a reader sees
        // the next record of this slot, it also sees that the removal's stripe was changing.
        ones::<usize>(self.free(line, empty))
            .map(|word| &line.slots[word / 2])
            .find(|slot| self.core.memory.load_acquire(&slot.first) == empty)
    }

    // ---- Nodes ------------------------------------------------------------------

    /// Adds an overflow node to the segment of a cell's word, unless there is room for a hash now.
    pub(super) fn extend_chain(&self, hash: u64, word: u64) -> Result<()> {
        let (core, memory) = (&self.core, &self.core.memory);
        let mut node = NewBlock::allocate(core, NODE_BYTES)?;
        let (cell, found) = self.cells.find_cell(self.seam(), hash);
        let spot = self.spot(word, hash);
        let segment = spot.segment();
        let _here = Guarded::new(spot.lock.hold(core, segment)?);
        if found != word || !self.leads_to(cell, word) {
            return Ok(());
        }
        let _stash = Guarded::new(self.stash_lock(segment).hold(core, segment)?);
        let empty = self.empty(hash);
        let window = (0..spot.size.window()).map(|position| Ok(self.stash_at(&spot, position)));
        let nodes = self.node_lines(segment).map(|line| line.map(|(_, line)| line));
        for line in window.chain(nodes) {
            if self.free_slot(line?, empty).is_some() {
                return Ok(());
            }
        }
        let chain = &self.header(segment).chain;
        let next = Link::read(memory, chain)?.offset;
        let values = node_words(segment, node.offset(), next, std::iter::empty(), empty);
        memory.write_new(node.words, &values, &points::NODE_NEW);
        memory.fence(&points::NODE_NEW);
        Link { offset: node.offset(), depth: 0 }.store(memory, chain, &points::NODE_COMMIT);
        node.unlinked.set_linked();
        memory.persist(chain, &points::NODE_COMMIT);
        Ok(())
    }
}

/// Returns how many slots these are, which are given as bits of their first words.
#[inline(always)]
pub(super) fn count(slots: u32) -> u32 {
    let pairs = (slots & 0x11) + (slots >> 2 & 0x11);
    (pairs + (pairs >> 4)) & 7
}

/// Returns the first of some slots, which are given as bits of their first words.
#[inline(always)]
fn first_of(line: &SlotLine, slots: u32) -> &Slot {
    &line.slots[slots.trailing_zeros() as usize / 2 % line.slots.len()]
}

#[cfg(test)]
mod tests {
    #[test]
    fn slots_are_counted() {
        for slots in (0..=0x55).filter(|slots| slots & !0x55 == 0) {
            assert_eq!(super::count(slots), slots.count_ones());
        }
    }
}
