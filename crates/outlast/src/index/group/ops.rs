//! Lookups and changes of one key.

use super::cells::{Cell, Mark};
use super::{Group, Route, Segment, bugs, points};
use crate::error::{Boxed, Damage, Result};
use crate::index::Changed;
use crate::index::bugs as index_bugs;
use crate::index::kit::change::{Plan, Step, Update, decide, prepare};
use crate::index::kit::lock::VersionLock;
use crate::index::kit::lookup::{self, Optimistic, Read};
use crate::index::kit::table::{HashedKey, Lookup, Sought, Wanted};
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::version::{LockWord, is_unchanged, version};
use crate::pmem::{Seam, SharedWord};
use std::sync::atomic::Ordering;

// ---- Lookups --------------------------------------------------------------------

impl<S: Seam, R: SlotRecord> Group<S, R> {
    /// Finds the cell of a key, and the words in it. The caller holds the segment's lock, or checks
    /// its version afterwards.
    #[inline(always)]
    pub(super) fn search(
        &self,
        segment: Segment,
        key: impl Sought<R>,
    ) -> Result<Option<(Cell<'_>, SlotWords)>, Damage> {
        let (home, sought) = (self.home(segment, key.hash()), Mark::of(key.hash()));
        let mark = home.mark(self.seam());
        let found = match mark.is_like(sought) || self.seeded(&bugs::FREE_CELLS_READ) {
            true => self.holds(home, key)?,
            false => None,
        };
        if found.is_some() || !mark.has_overflowed() {
            return Ok(found);
        }
        for cells in self.second_level(segment, key.hash()) {
            for cell in cells?.marked(self.seam(), sought) {
                let found = self.holds(cell, key)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    /// Prefetches the home of a hash and its mark, so that they arrive together with the lock.
    #[inline(always)]
    fn prefetch_home(&self, segment: Segment, hash: u64) {
        self.home(segment, hash).prefetch(self.seam());
    }

    /// Returns the cell and its words if it holds this key.
    #[inline(always)]
    fn holds<'m>(
        &self,
        cell: Cell<'m>,
        key: impl Sought<R>,
    ) -> Result<Option<(Cell<'m>, SlotWords)>, Damage> {
        let words = cell.slot().read(&self.core.memory);
        let same = key.is_in(&self.core, words)? || self.seeded(&index_bugs::FINGERPRINT_DECIDES);
        Ok(same.then_some((cell, words)))
    }
}

impl<S: Seam, R: SlotRecord> Optimistic<S, R> for Group<S, R> {
    type Route<'t> = Route<'t>;
    type Lock = SharedWord;

    #[inline(always)]
    fn ready_route(&self, hash: u64) -> Option<Route<'_>> {
        self.directory.find(self.seam(), hash).map(|(segment, way)| Route { segment, way })
    }

    fn any_route(&self, hash: u64, _: usize) -> Result<Route<'_>> {
        self.route(hash)
    }

    #[inline(always)]
    fn read_once<T>(
        &self,
        route: &Route<'_>,
        key: HashedKey<'_, R>,
        read: &mut impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Read<T> {
        self.prefetch_home(route.segment, key.hash);
        let lock = self.lock_of(route.segment);
        let before = match version(&lock) {
            None if self.seeded(&index_bugs::CHANGING_IGNORED) => lock.load(Ordering::Relaxed),
            None => return Read::Raced,
            Some(before) => before,
        };
        let found = self.search(route.segment, key);
        let found = found.and_then(|found| found.map(|(_, words)| read(words)).transpose());
        // The order of the two checks matters: the fence in `is_unchanged` also pairs with the
        // Release of the entry that a split stores before it changes the version.
        Read::of(is_unchanged(&lock, before) && self.is_current(route), found)
    }

    fn lock_word<'t>(&'t self, route: &Route<'t>, _: u64) -> (VersionLock<'t, S>, u64) {
        (self.lock_of(route.segment), route.segment.offset)
    }
}

impl<S: Seam, R: SlotRecord> Lookup<S, R> for Group<S, R> {
    type Batch<'t> = ();
    type Staged<'b> = Option<Route<'b>>;

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
        key: HashedKey<'_, R>,
    ) -> Result<Option<Route<'b>>> {
        let route = self.ready_route(key.hash);
        if let Some(route) = &route {
            self.prefetch_home(route.segment, key.hash);
            self.seam().prefetch(self.state(route.segment));
        }
        Ok(route)
    }

    /// Prefetches the first line of the chunk that the hash names in the second level, and the
    /// chunk's marks, if the key's record is not in its home but may be there.
    #[inline(always)]
    fn stage_slots<'b>(
        &'b self,
        route: &mut Option<Route<'b>>,
        HashedKey { hash, .. }: HashedKey<'_, R>,
    ) {
        let Some(route) = route else { return };
        let mark = self.home(route.segment, hash).mark(self.seam());
        if mark.has_overflowed()
            && !mark.is_like(Mark::of(hash))
            && let Some(Ok(cells)) = self.second_level(route.segment, hash).next()
        {
            cells.cell(0).prefetch(self.seam());
        }
    }
}

// ---- Changes --------------------------------------------------------------------

impl<S: Seam, R: SlotRecord> Update<S, R> for Group<S, R> {
    type Progress<'t> = Option<UnlinkedRecord<'t, S, R>>;
    type Full<'t> = Route<'t>;

    #[inline(always)]
    fn begin<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'t, S, R>>,
    ) -> Boxed<Option<Changed<R>>> {
        prepare(self, key, plan, &points::RECORD, new)
    }

    #[inline(always)]
    fn attempt<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'t, S, R>>,
    ) -> Boxed<Step<R, Route<'t>>> {
        let route = self.route(key.hash)?;
        let segment = route.segment;
        self.prefetch_home(segment, key.hash);
        let mut held = self.lock(segment)?;
        if !self.is_current(&route) {
            return Ok(Step::Again);
        }
        let unsought = plan.inserts && self.seeded(&bugs::KEY_NOT_SOUGHT);
        let Some((cell, words)) = self.search(segment, key)?.filter(|_| !unsought) else {
            let Some(new) = new.as_mut().filter(|_| plan.inserts) else {
                return Ok(Step::absent(false));
            };
            let Some(cell) = self.free_cell(segment, key.hash)? else {
                return Ok(Step::Full(route));
            };
            let (slot, at) = (cell.slot(), &points::INSERT);
            seed!(self, index_bugs::SHOWN_BEFORE_DURABLE => self.publish(segment, cell, key.hash));
            slot.fill(&self.core.memory, new.words(), self.empty(key.hash), at);
            self.core.memory.persist(slot, at);
            self.publish(segment, cell, key.hash);
            new.set_linked();
            return Ok(Step::absent(true));
        };
        let decision = decide(&self.core, plan, words)?;
        if decision.applied {
            held.changing();
            match new {
                Some(new) => {
                    self.replace(cell, new.words());
                    new.set_linked();
                }
                None => self.remove(segment, cell, key.hash),
            }
        }
        drop(held);
        Ok(Step::Done(decision.finish(&self.core)))
    }

    #[cold]
    fn grow(&self, key: HashedKey<'_, R>, route: Route<'_>) -> Result<()> {
        self.make_room(&route, key.hash)
    }
}

impl<S: Seam, R: SlotRecord> Group<S, R> {
    /// Returns a free cell for a record of this hash: its home, or one of the second level or of
    /// the overflow nodes. `None` if all of them are taken.
    #[inline(always)]
    pub(super) fn free_cell(
        &self,
        segment: Segment,
        hash: u64,
    ) -> Result<Option<Cell<'_>>, Damage> {
        let home = self.home(segment, hash);
        if home.mark(self.seam()).is_free() {
            return Ok(Some(home));
        }
        for cells in self.second_level(segment, hash) {
            let free = cells?.marked(self.seam(), Mark::default()).next();
            if free.is_some() {
                return Ok(free);
            }
        }
        Ok(None)
    }

    /// Marks a cell as holding a record of this hash, so that lookups find it.
    #[inline(always)]
    pub(super) fn publish(&self, segment: Segment, cell: Cell<'_>, hash: u64) {
        // The count comes first, so that one store makes the record visible to both lookups and
        // iterations.
        let late = self.seeded(&bugs::COUNTED_LATE);
        if cell.home().is_none() && !late {
            self.home(segment, hash).count_overflow(self.seam());
        }
        cell.set_fingerprint(self.seam(), Mark::of(hash));
        if cell.home().is_none() && late {
            self.home(segment, hash).count_overflow(self.seam());
        }
    }

    /// Marks a cell, which held a record of this hash, as free.
    pub(super) fn unpublish(&self, segment: Segment, cell: Cell<'_>, hash: u64) {
        cell.set_fingerprint(self.seam(), Mark::default());
        if cell.home().is_none() {
            self.home(segment, hash).forget_overflow(self.seam());
            seed!(self, bugs::OVERFLOW_FORGOTTEN => self.home(segment, hash).forget_overflow(self.seam()));
        }
    }

    /// Replaces a record's value, durably. The segment is marked as changing.
    #[inline(always)]
    fn replace(&self, cell: Cell<'_>, words: SlotWords) {
        let (memory, slot) = (&self.core.memory, cell.slot());
        let empty = || self.empty(R::slot_hash(&self.core.hasher, slot.read(memory)));
        slot.update::<S, R>(memory, words, empty, [&points::UPDATE, &points::UPDATE_LINK]);
    }

    /// Removes a record, durably. The segment is marked as changing.
    #[inline(always)]
    fn remove(&self, segment: Segment, cell: Cell<'_>, hash: u64) {
        seed!(self, index_bugs::REMOVES_NOTHING => return);
        let (memory, slot) = (&self.core.memory, cell.slot());
        memory.store_release(&slot.first, self.empty(hash), &points::REMOVE);
        memory.persist(slot, &points::REMOVE);
        self.unpublish(segment, cell, hash);
    }
}
