//! Lookups of keys.

use super::layout::{BLOCK_LINES, NODE_LINES, OPEN, Slot, SlotLine};
use super::{Line, Spot, bugs, line_words};
use crate::error::{Boxed, Damage, Result};
use crate::index::RecordForm;
use crate::index::bugs as index_bugs;
use crate::index::hints::{self, STASH};
use crate::index::kit::lock::VersionLock;
use crate::index::kit::lookup::{self, Optimistic, Read};
use crate::index::kit::media::ones;
use crate::index::kit::table::{HashedKey, Lookup, Sought, Wanted};
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::version::{LockWord, is_unchanged, version};
use crate::pmem::{Seam, SharedWord};
use std::sync::atomic::{Ordering, fence};

/// The first words of a line's slots.
pub(super) const FIRST_WORDS: u32 = 0x55;

/// Where a record is, seen from its home line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Home,
    /// In the block or the stash: a place, as hints have it.
    Away(u32),
    Node,
}

/// A record that was found.
#[derive(Clone, Copy)]
pub(super) struct Found<'m> {
    pub(super) part: Part,
    pub(super) slot: &'m Slot,
    pub(super) words: SlotWords,
}

/// How an operation reached its segment: the cell, and its word.
pub(crate) type Route<'t> = (&'t SharedWord, u64);

/// For a [search](Line::search) that no change and no rebuild can interfere with.
pub(super) fn undisturbed() -> bool {
    true
}

impl<S: Seam, R: SlotRecord> Lookup<S, R> for Line<S, R> {
    type Batch<'t> = ();
    type Staged<'b> = Option<&'b SlotLine>;

    /// Does what the kit's `find_fast` does, but leaves records that are away to a function that is
    /// not inlined. Nothing but their lookups then needs this one's values in memory.
    #[inline(always)]
    fn find_fast<W: Wanted<R>>(&self, key: HashedKey<'_, R>) -> Option<Option<W::Found<'_>>> {
        let route = self.ready_route(key.hash)?;
        let spot = self.spot(route.1, key.hash);
        let before = version(&spot.lock)?;
        let found = match self.search_line(spot.home(), Part::Home, key).ok()? {
            Some(found) => Some(W::in_slot(&self.core, found.words).ok()?),
            None => {
                let hint = spot.hint().load(self.seam(), Ordering::Relaxed);
                if hints::concerns(hint, spot.whose) {
                    return self.find_away::<W>(route, before, hint, key);
                }
                None
            }
        };
        self.is_valid(route, &spot.lock, before).then_some(found)
    }

    fn find<W: Wanted<R>>(&self, key: HashedKey<'_, R>) -> Boxed<Option<W::Found<'_>>> {
        lookup::find(self, key, 0, |words| W::in_slot(&self.core, words))
    }

    fn begin_batch(&self) {}

    #[inline(always)]
    fn stage_metadata<'b>(
        &'b self,
        (): &'b (),
        HashedKey { hash, .. }: HashedKey<'_, R>,
    ) -> Result<Option<&'b SlotLine>> {
        let word = self.cells.find(self.seam(), hash);
        if word == 0 {
            return Ok(None);
        }
        let spot = self.spot(word, hash);
        self.seam().prefetch(spot.home());
        self.seam().prefetch(spot.hint());
        Ok(Some(spot.home()))
    }

    #[inline(always)]
    fn stage_slots<'b>(&'b self, _: &mut Option<&'b SlotLine>, _: HashedKey<'_, R>) {}

    #[inline(always)]
    fn stage_record<'b>(&'b self, staged: &mut Option<&'b SlotLine>, key: HashedKey<'_, R>) {
        if R::FORM == RecordForm::Bytes
            && let Some(home) = staged
            && let Some(slot) = self.candidates(home, key).next()
        {
            R::prefetch(&self.core, slot.read(&self.core.memory));
        }
    }
}

impl<S: Seam, R: SlotRecord> Line<S, R> {
    /// Yields the slots of a line that can hold a key.
    #[inline(always)]
    fn candidates<'m>(
        &self,
        line: &'m SlotLine,
        key: impl Sought<R>,
    ) -> impl Iterator<Item = &'m Slot> {
        let mask = FIRST_WORDS << R::SOUGHT;
        let found = self.core.memory.matching(line_words(line), mask, key.word());
        ones::<usize>(found).map(|word| &line.slots[word / 2])
    }

    /// Looks for a key in a line.
    #[inline(always)]
    pub(super) fn search_line<'m>(
        &self,
        line: &'m SlotLine,
        part: Part,
        key: impl Sought<R>,
    ) -> Result<Option<Found<'m>>, Damage> {
        for slot in self.candidates(line, key) {
            let words = slot.read(&self.core.memory);
            if key.is_in(&self.core, words)? || self.seeded(&index_bugs::FINGERPRINT_DECIDES) {
                return Ok(Some(Found { part, slot, words }));
            }
        }
        Ok(None)
    }

    /// Looks for a key. Either the caller holds the stripe's lock, or the gate, so that no other thread
    /// changes records of the block. Or it checks afterwards whether the read was valid; then `valid`
    /// ends a search that strays into memory of another use.
    #[inline(always)]
    pub(super) fn search<'m>(
        &'m self,
        spot: &Spot<'m, S>,
        key: impl Sought<R>,
        valid: impl Fn() -> bool,
    ) -> Result<Option<Found<'m>>, Damage> {
        if let Some(found) = self.search_line(spot.home(), Part::Home, key)? {
            return Ok(Some(found));
        }
        let hint = spot.hint().load(self.seam(), Ordering::Relaxed);
        match hints::concerns(hint, spot.whose) {
            true => self.search_hinted(spot, hint, key, valid),
            false => Ok(None),
        }
    }

    /// Looks for a key outside of its home line, where the block's hint word says.
    #[inline(always)]
    fn search_hinted<'m>(
        &'m self,
        spot: &Spot<'m, S>,
        hint: u64,
        key: impl Sought<R>,
        valid: impl Fn() -> bool,
    ) -> Result<Option<Found<'m>>, Damage> {
        // Usually the first entry leads to it.
        let place = hints::first_place(hint, spot.whose);
        if (1..STASH).contains(&place) {
            let found = self.search_line(spot.line(place), Part::Away(place), key)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        self.search_away(spot.word, hint, key, valid)
    }

    /// Does the rest of it. (Takes a word instead of a `Spot`, which the caller would have to put together in
    /// memory, for all lookups.)
    #[inline(never)]
    fn search_away<'m>(
        &'m self,
        word: u64,
        hint: u64,
        key: impl Sought<R>,
        valid: impl Fn() -> bool,
    ) -> Result<Option<Found<'m>>, Damage> {
        let spot = &self.spot(word, key.hash());
        let home = spot.whose.home;
        let in_block = |place: u32| self.search_line(spot.line(place), Part::Away(place), key);
        let in_stash = |position: u32| {
            let line = self.stash_at(spot, position);
            self.search_line(line, Part::Away(STASH + position / 2), key)
        };
        for place in hints::places(hint, spot.whose) {
            if place < STASH {
                if let Some(found) = in_block(place)? {
                    return Ok(Some(found));
                }
                continue;
            }
            let first = 2 * (place - STASH);
            for position in first..(first + 2).min(spot.size.window()) {
                if let Some(found) = in_stash(position)? {
                    return Ok(Some(found));
                }
            }
        }
        if hints::is_within(hint, home) {
            for place in 1..BLOCK_LINES {
                if let Some(found) = in_block(place)? {
                    return Ok(Some(found));
                }
            }
        }
        if !hints::is_beyond(hint, home) {
            return Ok(None);
        }
        for position in 0..spot.size.window() {
            if let Some(found) = in_stash(position)? {
                return Ok(Some(found));
            }
        }
        for (number, line) in self.node_lines(spot.segment()).enumerate() {
            if number % NODE_LINES == 0 && !valid() {
                return Ok(None);
            }
            if let Some(found) = self.search_line(line?.1, Part::Node, key)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Does the rest of [`find_fast`](Lookup::find_fast) for a key that is not in its home line.
    #[inline(never)]
    fn find_away<W: Wanted<R>>(
        &self,
        route: Route<'_>,
        before: u64,
        hint: u64,
        key: HashedKey<'_, R>,
    ) -> Option<Option<W::Found<'_>>> {
        let spot = self.spot(route.1, key.hash);
        let valid = || self.is_valid(route, &spot.lock, before);
        let found = self.search_hinted(&spot, hint, key, valid).ok()?;
        let found = found.map(|found| W::in_slot(&self.core, found.words)).transpose().ok()?;
        valid().then_some(found)
    }

    /// Returns whether what was read in a segment since the version `before` of a stripe was, is valid:
    /// the cell has led to the segment all the time, and nothing has changed under the stripe.
    ///
    /// The stripe is looked at last. If the cell has led elsewhere meanwhile, and to the same place
    /// again, the rebuild that has led it back gave the stripe a new version first.
    #[inline(always)]
    pub(super) fn is_valid(
        &self,
        (cell, word): Route<'_>,
        lock: &VersionLock<'_, S>,
        before: u64,
    ) -> bool {
        // Pairs with the Release stores of the cells: a reader that has seen a store by a thread that
        // acted on a changed cell sees the cell changed.
        fence(Ordering::Acquire);
        let leads = (cell.load(self.seam(), Ordering::Acquire) ^ word) & !OPEN == 0;
        (leads || self.seeded(&bugs::CELL_UNCHECKED)) && is_unchanged(lock, before)
    }

    /// Returns the stash line at a position of the window of a hash.
    #[inline(always)]
    pub(super) fn stash_at<'m>(&'m self, spot: &Spot<'m, S>, position: u32) -> &'m SlotLine {
        self.stash(spot.segment(), spot.size, spot.size.stash_of(spot.hash, position))
    }
}

impl<S: Seam, R: SlotRecord> Optimistic<S, R> for Line<S, R> {
    type Route<'t> = Route<'t>;
    type Lock = SharedWord;

    #[inline(always)]
    fn ready_route(&self, hash: u64) -> Option<Route<'_>> {
        let route = self.cells.find_cell(self.seam(), hash);
        (route.1 != 0).then_some(route)
    }

    fn any_route(&self, hash: u64, inside: usize) -> Result<Route<'_>> {
        self.cell(hash, inside)?;
        Ok(self.cells.find_cell(self.seam(), hash))
    }

    #[inline(always)]
    fn read_once<T>(
        &self,
        route: &Route<'_>,
        key: HashedKey<'_, R>,
        read: &mut impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Read<T> {
        let route = *route;
        let spot = self.spot(route.1, key.hash);
        let before = match version(&spot.lock) {
            None if self.seeded(&index_bugs::CHANGING_IGNORED) => spot.lock.load(Ordering::Relaxed),
            None => return Read::Raced,
            Some(before) => before,
        };
        let valid = || self.is_valid(route, &spot.lock, before);
        let found = self.search(&spot, key, valid);
        let found = found.and_then(|found| found.map(|found| read(found.words)).transpose());
        Read::of(valid(), found)
    }

    fn lock_word<'t>(&'t self, route: &Route<'t>, hash: u64) -> (VersionLock<'t, S>, u64) {
        let spot = self.spot(route.1, hash);
        (spot.lock, spot.segment())
    }
}
