//! Lookups of keys.

use super::layout::{BLOCK_LINES, NODE_LINES, Slot, SlotLine};
use super::{Line, Spot, bugs, line_words, turn_of};
use crate::error::{Boxed, Damage, Result};
use crate::index::bugs as index_bugs;
use crate::index::hints::{self, STASH};
use crate::index::kit::lock::VersionLock;
use crate::index::kit::lookup::{self, Optimistic, Read};
use crate::index::kit::media::ones;
use crate::index::kit::table::{HashedKey, Lookup, Sought, Wanted};
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::version::{LockWord, is_unchanged, version};
use crate::index::{RecordForm, turn};
use crate::pmem::{Seam, SharedWord};
use std::sync::atomic::Ordering;

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

/// How an operation reached its segment: the turn, and then the word of the cell.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub(super) turn: u64,
    pub(super) word: u64,
}

impl<S: Seam, R: SlotRecord> Lookup<S, R> for Line<S, R> {
    type Batch<'t> = ();
    type Staged<'b> = Option<&'b SlotLine>;

    #[inline(always)]
    fn find_fast<W: Wanted<R>>(&self, key: HashedKey<'_, R>) -> Option<Option<W::Found<'_>>> {
        lookup::find_fast(self, key, |words| W::in_slot(&self.core, words))
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
        self.seam().prefetch(spot.hint);
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

    /// Looks for a key. Either no other thread changes records of its block meanwhile, or the caller
    /// validates the result, and `valid` ends a search that strays into memory of another use.
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
        let hint = spot.hint.load(self.seam(), Ordering::Relaxed);
        match hints::concerns(hint, spot.whose) {
            true => self.search_away(spot.word, hint, key, valid),
            false => Ok(None),
        }
    }

    /// Looks for a key outside of its home line, where the block's hint word says. (Not by a `Spot`,
    /// which the caller would have to put together in memory, for all lookups.)
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
        let in_block = |place: u32| {
            let line = &spot.block.lines[((home ^ place) % BLOCK_LINES) as usize];
            self.search_line(line, Part::Away(place), key)
        };
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

    /// Returns the stash line at a position of the window of a hash.
    #[inline(always)]
    pub(super) fn stash_at<'m>(&'m self, spot: &Spot<'m, S>, position: u32) -> &'m SlotLine {
        self.stash(spot.segment(), spot.size, spot.size.stash_of(spot.hash, position))
    }

    /// Returns whether no segment of a hash was replaced since the turn was found.
    #[inline(always)]
    fn is_same_turn(&self, hash: u64, found: u64) -> bool {
        turn::is_same(&self.turn(turn_of(hash)), found) || self.seeded(&bugs::TURN_UNCHECKED)
    }
}

impl<S: Seam, R: SlotRecord> Optimistic<S, R> for Line<S, R> {
    type Route<'t> = Route;
    type Lock = SharedWord;

    #[inline(always)]
    fn ready_route(&self, hash: u64) -> Option<Route> {
        let turn = turn::read(&self.turn(turn_of(hash)));
        let word = self.cells.find(self.seam(), hash);
        (word != 0).then_some(Route { turn, word })
    }

    fn any_route(&self, hash: u64, inside: usize) -> Result<Route> {
        let turn = turn::read(&self.turn(turn_of(hash)));
        Ok(Route { turn, word: self.cell(hash, inside)? })
    }

    #[inline(always)]
    fn read_once<T>(
        &self,
        route: &Route,
        key: HashedKey<'_, R>,
        read: &mut impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Read<T> {
        if turn::is_changing(route.turn) {
            return Read::Raced;
        }
        let spot = self.spot(route.word, key.hash);
        let before = match version(&spot.lock) {
            None if self.seeded(&index_bugs::CHANGING_IGNORED) => spot.lock.load(Ordering::Relaxed),
            None => return Read::Raced,
            Some(before) => before,
        };
        let valid = || self.is_same_turn(key.hash, route.turn);
        let found = self.search(&spot, key, valid);
        let found = found.and_then(|found| found.map(|found| read(found.words)).transpose());
        // The fence in `is_unchanged` comes before the load of the turn, too.
        Read::of(is_unchanged(&spot.lock, before) && valid(), found)
    }

    fn lock_word<'t>(&'t self, route: &Route, hash: u64) -> (VersionLock<'t, S>, u64) {
        let spot = self.spot(route.word, hash);
        (spot.lock, spot.segment())
    }
}
