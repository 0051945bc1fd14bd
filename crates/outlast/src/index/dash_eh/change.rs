//! Changes of one key: the common cases at once, everything else step by step.

use super::layout::Slot;
use super::lock::Locked;
use super::notes::{BucketRef, Meta, Overflow};
use super::ops::{Part, Place};
use super::{DashEh, Route, points};
use crate::error::Result;
use crate::index::kit::change::{Plan, by_kind};
use crate::index::kit::lock::{Guarded, Held};
use crate::index::kit::table::Update;
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::record::{Record, SlotWords};
use crate::index::{Change, Changed, RecordForm, prints};
use crate::pmem::{Planted, Point, Seam};

/// Records that are moved at most to make room for one. More of them fill a segment further
/// before it is split, and each is a flush, a fence and a lock. Three take the peak of the load
/// factor from 0.88 to 0.90 (2 stash buckets) and from 0.905 to 0.92 (4); a fourth adds half a
/// hundredth.
const MOVES: u32 = 3;

/// Whether a new record goes to its home bucket.
///
/// It does where there is room in its line, so that most records stand where a lookup has
/// asked for the memory before it knows; else into the emptier of the two buckets (balanced
/// insert). Where that is the home bucket, its lock is all it takes.
#[inline(always)]
fn prefers_home(home: Meta, next: Meta, first: usize) -> bool {
    home.free_slot_in_line(first).is_some() || home.is_no_fuller_than(next)
}

impl<S: Seam, R: Record> Update<S, R> for DashEh<S, R> {
    fn change(
        &self,
        key: R::Key<'_>,
        change: Change<'_, R>,
        want_before: bool,
    ) -> Result<Changed<R>> {
        by_kind(change, |change| self.change_of(key, change, want_before))
    }
}

impl<S: Seam, R: Record> DashEh<S, R> {
    // ---- Changing ---------------------------------------------------------------

    #[inline(always)]
    pub(super) fn change_of(
        &self,
        key: R::Key<'_>,
        change: Change<'_, R>,
        want_before: bool,
    ) -> Result<Changed<R>> {
        let plan = Plan::of(&change, want_before);
        R::check_size(key, plan.value)?;
        let Some(inside) = self.core.pass_to_change() else {
            return self.change_when_let_in(key, change, want_before);
        };
        let hash = R::hash(&self.core.hasher, key);
        // What can wait or fail (writing the block of a byte string) comes before anything is
        // locked.
        match self.try_at_once(key, hash, &change, &plan) {
            Ok(AtOnce::Done(changed)) => {
                inside.leave();
                Ok(changed)
            }
            Ok(AtOnce::Not(new)) => {
                let _writing = inside.stay();
                self.change_slowly(key, hash, change, want_before, new)
            }
            Err(error) => {
                inside.leave();
                Err(error)
            }
        }
    }

    /// As [`change_of`](Self::change_of), through the gate whatever that takes.
    #[cold]
    #[inline(never)]
    fn change_when_let_in(
        &self,
        key: R::Key<'_>,
        change: Change<'_, R>,
        want_before: bool,
    ) -> Result<Changed<R>> {
        let _writing = self.core.enter_to_change()?;
        let hash = R::hash(&self.core.hasher, key);
        match self.try_at_once(key, hash, &change, &Plan::of(&change, want_before))? {
            AtOnce::Done(changed) => Ok(changed),
            AtOnce::Not(new) => self.change_slowly(key, hash, change, want_before, new),
        }
    }

    #[inline(always)]
    fn try_at_once(
        &self,
        key: R::Key<'_>,
        hash: u64,
        change: &Change<'_, R>,
        plan: &Plan<'_, R>,
    ) -> Result<AtOnce<'_, S, R>> {
        if R::FORM == RecordForm::Bytes
            && let Some(changed) = self.decide_early(key, hash, change, plan.want_before)?
        {
            return Ok(AtOnce::Done(changed));
        }
        // The record's block is written before anything is locked.
        let at = &points::RECORD;
        let mut new = match plan.value {
            Some(value) => Some(UnlinkedRecord::prepare(&self.core, key, value, hash, at)?),
            None => None,
        };
        Ok(match self.change_at_once(key, hash, plan, &mut new) {
            Some(changed) => AtOnce::Done(changed),
            None => AtOnce::Not(new),
        })
    }

    /// The common cases, in as few instructions as they take: the segment is known, the home
    /// bucket is not locked, and what is there or the room for it is in one of the two
    /// buckets. `None` leaves everything else to [`change_slowly`](Self::change_slowly):
    /// nothing has happened.
    ///
    /// While one operation waits for memory, the processor begins the next one, as far as it
    /// can look ahead: a few hundred instructions, a few dozen stores.
    #[inline(always)]
    fn change_at_once(
        &self,
        key: R::Key<'_>,
        hash: u64,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'_, S, R>>,
    ) -> Option<Changed<R>> {
        let route = self.known_route(hash)?;
        self.expect_at_home(&route, hash);
        let mut here = self.try_hold(self.bucket(route.segment, self.home(hash)))?;
        let changed = self.change_held(&route, &mut here, key, hash, plan, new);
        here.unlock();
        changed
    }

    /// As [`change_at_once`](Self::change_at_once), with the home bucket locked.
    #[inline(always)]
    fn change_held(
        &self,
        route: &Route<'_>,
        here: &mut Locked<'_, S>,
        key: R::Key<'_>,
        hash: u64,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'_, S, R>>,
    ) -> Option<Changed<R>> {
        let core = &self.core;
        let home = self.home(hash);
        let bucket = self.bucket(route.segment, home);
        let next = self.bucket(route.segment, self.next(home));
        let (meta, next_meta) = (self.meta(bucket), self.meta(next));
        let Some((place, found)) =
            self.probe_pair((bucket, meta), (next, next_meta), key, hash).ok()?
        else {
            // Absent, if this is still its segment, and if it is not in the overflow.
            if !self.is_current(route) || !Overflow::of(here.word()).is_none() {
                return None;
            }
            if !plan.inserts {
                return Some(Changed { applied: false, before: None, present: false });
            }
            let new = new.as_mut()?;
            let (words, first) = (new.words(), Self::first_slot(hash));
            if prefers_home(meta, next_meta, first) {
                self.insert_into(bucket, meta.free_slot(first)?, words, hash, false);
            } else {
                let held = self.try_hold(next)?;
                // It may have filled up before it was locked.
                let slot = self.meta(next).free_slot(first);
                if let Some(slot) = slot {
                    self.insert_into(next, slot, words, hash, true);
                }
                held.unlock();
                slot?;
            }
            new.set_linked();
            return Some(Changed { applied: true, before: None, present: false });
        };
        let before = if plan.want_before { Some(R::value(core, found).ok()?) } else { None };
        let old_block = R::block(core, found).ok()?;
        let applied = plan.replaces
            && match plan.expected {
                Some(expected) => R::value_is(core, found, expected).ok()?,
                None => true,
            };
        if !applied {
            return Some(Changed { applied, before, present: true });
        }
        if let Some((offset, _)) = old_block {
            core.before_unlink(offset).ok()?;
        }
        if let Some(new) = new {
            here.changing();
            self.replace(place.slot, new.words(), hash);
            new.set_linked();
        } else if place.in_next {
            // What a bucket's notes say of its slots changes under its own lock.
            let held = self.try_hold(next)?;
            here.changing();
            self.empty_slot(hash, next, place.index);
            held.unlock();
        } else {
            here.changing();
            self.empty_slot(hash, bucket, place.index);
        }
        if let Some((offset, bytes)) = old_block {
            core.retire(offset, bytes);
        }
        Some(Changed { applied, before, present: true })
    }

    /// Goes on until the change is made.
    #[cold]
    #[inline(never)]
    fn change_slowly(
        &self,
        key: R::Key<'_>,
        hash: u64,
        change: Change<'_, R>,
        want_before: bool,
        mut new: Option<UnlinkedRecord<'_, S, R>>,
    ) -> Result<Changed<R>> {
        let plan = &Plan::of(&change, want_before);
        // Whether the next bucket must be locked before the home is.
        let mut next_first = false;
        loop {
            match self.change_once(key, hash, plan, &mut new, next_first)? {
                Step::Done(changed) => return Ok(changed),
                Step::Moved => {}
                Step::NextFirst => next_first = true,
                Step::Full => {
                    let route = self.route_inside(hash)?;
                    self.make_room(&route, hash)?;
                }
            }
        }
    }

    fn change_once(
        &self,
        key: R::Key<'_>,
        hash: u64,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'_, S, R>>,
        next_first: bool,
    ) -> Result<Step<R>> {
        let route = self.route_inside(hash)?;
        let home = self.home(hash);
        let mut next = None;
        if next_first {
            next = Some(self.lock(self.bucket(route.segment, self.next(home)))?);
        }
        let mut here = self.lock(self.bucket(route.segment, home))?;
        // A split holds every lock of its segment, so from here on there is none.
        if !self.is_current(&route) {
            return Ok(Step::Moved);
        }
        match self.search(route.segment, home, here.word(), key, hash)? {
            Some(place) => self.change_present(&route, &mut here, next, hash, place, plan, new),
            None => {
                let Some(prepared) = new.as_mut().filter(|_| plan.inserts) else {
                    return Ok(Step::Done(Changed {
                        applied: false,
                        before: None,
                        present: false,
                    }));
                };
                let words = prepared.words();
                let step = self.insert_absent(&route, &mut here, next, hash, words)?;
                if let Step::Done(_) = step {
                    prepared.set_linked();
                }
                Ok(step)
            }
        }
    }

    /// Byte strings: what can be answered without writing a record's block.
    fn decide_early(
        &self,
        key: R::Key<'_>,
        hash: u64,
        change: &Change<'_, R>,
        want_before: bool,
    ) -> Result<Option<Changed<R>>> {
        Ok(match change {
            Change::Insert(_) => self
                .find(key, hash, 1, |words| {
                    want_before.then(|| R::value(&self.core, words)).transpose()
                })?
                .map(|before| Changed { applied: false, before, present: true }),
            Change::Update(_) | Change::Swap { .. } => {
                let found = self.find(key, hash, 1, |_| Ok(()))?;
                let absent = Changed { applied: false, before: None, present: false };
                found.is_none().then_some(absent)
            }
            Change::Put(_) | Change::Remove => None,
        })
    }

    /// Locks the next bucket, while the home is locked. `None` if that has to be done
    /// before: locks are taken in ascending order, so that no ring of waiting threads closes.
    #[inline(always)]
    fn lock_next<'m>(
        &'m self,
        route: &Route<'_>,
        home: u32,
    ) -> Result<Option<Guarded<Locked<'m, S>>>> {
        let next = self.next(home);
        let bucket = self.bucket(route.segment, next);
        if next > home {
            self.lock(bucket).map(Some)
        } else {
            Ok(self.try_hold(bucket).map(Guarded::new))
        }
    }

    /// Changes a record that is there. The home is locked, and the next bucket if it is given.
    #[expect(clippy::too_many_arguments, reason = "they are the state of one operation")]
    #[inline(always)]
    fn change_present<'m>(
        &'m self,
        route: &Route<'_>,
        here: &mut Locked<'_, S>,
        mut next: Option<Guarded<Locked<'m, S>>>,
        hash: u64,
        place: Place<'_>,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'_, S, R>>,
    ) -> Result<Step<R>> {
        let core = &self.core;
        let before = if plan.want_before { Some(R::value(core, place.words)?) } else { None };
        let old_block = R::block(core, place.words)?;
        let applied = plan.replaces
            && match plan.expected {
                Some(expected) => R::value_is(core, place.words, expected)?,
                None => true,
            };
        if !applied {
            return Ok(Step::Done(Changed { applied, before, present: true }));
        }
        // What a bucket's notes say of its slots changes under its own lock.
        if new.is_none() && next.is_none() && matches!(place.part, Part::Next) {
            next = self.lock_next(route, self.home(hash))?;
            if next.is_none() {
                return Ok(Step::NextFirst);
            }
        }
        if let Some((offset, _)) = old_block {
            core.before_unlink(offset)?;
        }
        let slot = &place.bucket.slots[place.slot];
        if let Some(new) = new {
            here.changing();
            self.replace(slot, new.words(), hash);
            new.set_linked();
        } else {
            self.remove_at(here, hash, place)?;
        }
        if let Some((offset, bytes)) = old_block {
            core.retire(offset, bytes);
        }
        drop(next);
        Ok(Step::Done(Changed { applied, before, present: true }))
    }

    #[inline(always)]
    fn remove_at(&self, here: &mut Locked<'_, S>, hash: u64, place: Place<'_>) -> Result<()> {
        match place.part {
            Part::Home | Part::Next => {
                here.changing();
                self.empty_slot(hash, place.bucket, place.slot);
                Ok(())
            }
            Part::Stash(stash) => self.remove_overflowed(here, hash, place, Some(stash)),
            Part::Node => self.remove_overflowed(here, hash, place, None),
        }
    }

    #[cold]
    fn remove_overflowed(
        &self,
        here: &mut Locked<'_, S>,
        hash: u64,
        place: Place<'_>,
        stash: Option<u32>,
    ) -> Result<()> {
        // A stash bucket's or node's own lock guards its notes against other homes.
        let _locked = self.lock(place.bucket)?;
        here.changing();
        if self.planted(Planted::RemovesNothing) {
            return Ok(());
        }
        self.empty_slot(hash, place.bucket, place.slot);
        here.forget_overflow(hash as u8, stash);
        Ok(())
    }

    /// Puts another value in the place of a slot's, durably: one word. Its home is marked as
    /// changing.
    #[inline(always)]
    fn replace(&self, slot: &Slot, words: SlotWords, hash: u64) {
        let memory = &self.core.memory;
        if self.planted(Planted::UpdateEmptiesFirst) {
            memory.store(&slot.first, self.empty(hash), &points::UPDATE);
            memory.persist(slot, &points::UPDATE);
            memory.store(&slot.second, words.second, &points::UPDATE);
            memory.store(&slot.first, words.first, &points::UPDATE);
        }
        slot.replace::<S, R>(memory, words, &points::UPDATE, &points::UPDATE_LINK);
    }

    /// Removes a slot's record, durably. Its home is marked as changing, and the bucket is
    /// locked.
    #[inline(always)]
    fn empty_slot(&self, hash: u64, bucket: BucketRef<'_>, slot: usize) {
        let memory = &self.core.memory;
        let target = &bucket.slots[slot];
        if self.planted(Planted::LockedTwice) {
            drop(self.lock(bucket));
        }
        memory.store_release(&target.first, self.empty(hash), &points::REMOVE);
        memory.persist(target, &points::REMOVE);
        bucket.notes.set_meta(memory.seam(), self.meta(bucket).without(slot));
    }

    // ---- Inserting --------------------------------------------------------------

    /// Writes a record into a free slot, durably. Nobody reads the slot yet.
    ///
    /// All stores go to one line, in an order of which every prefix is an empty slot or
    /// the whole record, so one flush and one fence do.
    #[inline(always)]
    pub(super) fn fill(&self, slot: &Slot, words: SlotWords, empty: u64, at: &'static Point) {
        self.fill_unfenced(slot, words, empty, at);
        self.core.memory.fence(at);
    }

    #[inline(always)]
    fn fill_unfenced(&self, slot: &Slot, words: SlotWords, empty: u64, at: &'static Point) {
        self.fill_unflushed(slot, words, empty, at);
        self.core.memory.flush(slot, at);
    }

    #[inline(always)]
    pub(super) fn fill_unflushed(
        &self,
        slot: &Slot,
        words: SlotWords,
        empty: u64,
        at: &'static Point,
    ) {
        let memory = &self.core.memory;
        // What a split left here must not be joined with the new second word. Whether there
        // is something, is not looked at: to store once more takes less time than to wait for
        // a line and to guess.
        if !self.planted(Planted::SlotNotEmptied) {
            memory.store(&slot.first, empty, at);
        }
        // Release: the order of the stores is the order in which they become durable.
        if self.planted(Planted::CommitBeforeValue) {
            memory.store_release(&slot.first, words.first, at);
        }
        memory.store_release(&slot.second, words.second, at);
        memory.store_release(&slot.first, words.first, at);
    }

    /// Shows a slot's record to readers. The bucket is locked, the record durable.
    #[inline(always)]
    pub(super) fn publish(&self, bucket: BucketRef<'_>, slot: usize, print: u8, from_before: bool) {
        let seam = self.core.memory.seam();
        let (word, value) = prints::with(bucket.notes.prints(seam), slot, print);
        bucket.notes.set_prints(seam, word, value);
        bucket.notes.set_meta(seam, self.meta(bucket).with(slot, from_before));
    }

    /// Puts a new record into a free slot of a bucket that is locked.
    #[inline(always)]
    fn insert_into(
        &self,
        bucket: BucketRef<'_>,
        slot: usize,
        words: SlotWords,
        hash: u64,
        from_before: bool,
    ) {
        let (empty, target) = (self.empty(hash), &bucket.slots[slot]);
        if self.planted(Planted::ShownBeforeDurable) {
            self.fill_unfenced(target, words, empty, &points::INSERT);
            self.publish(bucket, slot, hash as u8, from_before);
        }
        self.fill(target, words, empty, &points::INSERT);
        self.publish(bucket, slot, hash as u8, from_before);
    }

    /// Puts a record whose key is absent somewhere in its segment. The home is locked, and
    /// the next bucket if it is given.
    #[inline(never)]
    fn insert_absent<'m>(
        &'m self,
        route: &Route<'_>,
        here: &mut Locked<'m, S>,
        mut next: Option<Guarded<Locked<'m, S>>>,
        hash: u64,
        words: SlotWords,
    ) -> Result<Step<R>> {
        let done = Ok(Step::Done(Changed { applied: true, before: None, present: false }));
        let (home, first) = (self.meta(here.bucket), Self::first_slot(hash));
        let next_bucket = self.bucket(route.segment, self.next(self.home(hash)));
        if prefers_home(home, self.meta(next_bucket), first)
            && let Some(slot) = home.free_slot(first)
        {
            self.insert_into(here.bucket, slot, words, hash, false);
            return done;
        }
        if next.is_none() {
            next = self.lock_next(route, self.home(hash))?;
        }
        let Some(next) = &mut next else { return Ok(Step::NextFirst) };
        let (print, empty) = (hash as u8, self.empty(hash));
        // It may have filled up before it was locked.
        let free = [(next.bucket, true), (here.bucket, false)]
            .into_iter()
            .find_map(|(bucket, from)| Some((bucket, self.meta(bucket).free_slot(first)?, from)));
        if let Some((bucket, slot, from_before)) = free {
            self.insert_into(bucket, slot, words, hash, from_before);
            return done;
        }
        // Both are full.
        if self.displace(route, here, next, print, words)? {
            return done;
        }
        for place in self.overflow_buckets(route.segment) {
            let (target, stash) = place?;
            let _locked = self.lock(target)?;
            if let Some(slot) = self.meta(target).free_slot(first) {
                here.changing();
                self.fill(&target.slots[slot], words, empty, &points::INSERT_OVERFLOW);
                self.publish(target, slot, print, false);
                here.note_overflow(print, stash);
                return done;
            }
        }
        Ok(Step::Full)
    }

    /// Makes room in one of the two buckets, which are full, and puts the new record there:
    /// moves a record to its other bucket, or, where that is full too, up to [`MOVES`] in a row,
    /// as few as will do.
    #[cold]
    fn displace<'m>(
        &'m self,
        route: &Route<'_>,
        here: &mut Locked<'m, S>,
        next: &mut Locked<'m, S>,
        print: u8,
        words: SlotWords,
    ) -> Result<bool> {
        let (here_index, next_index) = (here.index(self, route), next.index(self, route));
        for moves in 1..=MOVES {
            // Records of the next bucket that are at home there move one further; those of the
            // home bucket that came from the one before move back.
            let ways = [
                (&mut *next, next_index.wrapping_add(moves), true),
                (&mut *here, here_index.wrapping_sub(moves), false),
            ];
            for (bucket, last, forward) in ways {
                // Not locked yet: it saves locks in vain.
                let last = self.bucket(route.segment, last & self.bucket_mask);
                if self.meta(last).free_slot(0).is_none() {
                    continue;
                }
                let Some((slot, elsewhere)) = self.move_away(route, bucket, forward, moves)? else {
                    continue;
                };
                let _elsewhere = (!self.planted(Planted::MovedUnlockedEarly)).then_some(elsewhere);
                // Emptying the slot and filling it are one flush: the stores go to one line,
                // the first of them removes the record that has a copy elsewhere now.
                let empty = self.empty(route.segment.low);
                self.fill(&bucket.bucket.slots[slot], words, empty, &points::DISPLACE_FILL);
                self.publish(bucket.bucket, slot, print, forward);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves a record of a full bucket to its other one: one that is at home in the bucket
    /// `forward`, or one that is not back. Where there is no room, one of that bucket moves
    /// before it, in the same direction, and so on up to `moves`.
    ///
    /// Answers the slot, and the lock of the bucket that the record is in now. The caller fills
    /// the slot before it gives the lock back: else the record could be removed, and after a
    /// crash be back in the slot where it was.
    fn move_away<'m>(
        &'m self,
        route: &Route<'_>,
        from: &mut Locked<'m, S>,
        forward: bool,
        moves: u32,
    ) -> Result<Option<(usize, Guarded<Locked<'m, S>>)>> {
        let (bucket, index) = (from.bucket, from.index(self, route));
        let meta = self.meta(bucket);
        let (movable, other) = if forward {
            (meta.own(), self.next(index))
        } else {
            (meta.guests(), self.previous(index))
        };
        if movable == 0 {
            return Ok(None);
        }
        // Fails for the buckets that this operation has locked, too.
        let Some(to) = self.try_hold(self.bucket(route.segment, other)) else {
            return Ok(None);
        };
        let mut to = Guarded::new(to);
        let slot = movable.trailing_zeros() as usize;
        let words = self.words(&bucket.slots[slot]);
        let free = self.meta(to.bucket).free_slot(0);
        if free.is_none() && moves == 1 {
            return Ok(None);
        }
        // What can fail comes before anything moves. The block itself is not read: if it is
        // damaged, that is not this operation's affair.
        if R::FORM == RecordForm::Bytes {
            self.core.before_unlink(R::extent(&self.core, words)?.0)?;
        }
        let (free, elsewhere) = match free {
            Some(free) => (free, None),
            None => match self.move_away(route, &mut to, forward, moves - 1)? {
                Some((free, elsewhere)) => (free, Some(elsewhere)),
                None => return Ok(None),
            },
        };
        let home = if forward { from } else { &mut to };
        if elsewhere.is_none() || !self.planted(Planted::RowHomeUnmarked) {
            home.changing();
        }
        self.copy_record(route, bucket, slot, words, to.bucket, free, forward);
        Ok(Some((slot, to)))
    }

    /// Copies a record to another bucket, durably, and takes it out of the notes of its own.
    /// Both buckets are locked, and the record's home is marked as changing.
    #[expect(clippy::too_many_arguments, reason = "from where, what, to where")]
    fn copy_record(
        &self,
        route: &Route<'_>,
        from: BucketRef<'_>,
        slot: usize,
        words: SlotWords,
        to: BucketRef<'_>,
        free: usize,
        from_before: bool,
    ) {
        let seam = self.core.memory.seam();
        let empty = self.empty(route.segment.low);
        if self.planted(Planted::DisplaceRemovesFirst) {
            self.core.memory.store(&from.slots[slot].first, empty, &points::DISPLACE_FILL);
            self.core.memory.persist(&from.slots[slot], &points::DISPLACE_FILL);
        }
        self.fill(&to.slots[free], words, empty, &points::DISPLACE_COPY);
        let prints = from.notes.prints(seam);
        let print = (prints[slot / 8] >> (slot % 8 * 8)) as u8;
        self.publish(to, free, print, from_before);
        from.notes.set_meta(seam, self.meta(from).without(slot));
    }
}

/// Whether a change was one of the common cases.
enum AtOnce<'c, S: Seam, R: Record> {
    Done(Changed<R>),
    /// It was not; nothing has happened but that the new record was prepared.
    Not(Option<UnlinkedRecord<'c, S, R>>),
}

/// What became of one attempt to make a change.
enum Step<R: Record> {
    Done(Changed<R>),
    /// The key belongs to another segment now.
    Moved,
    /// The next bucket must be locked before the home is.
    NextFirst,
    /// There is no room in the segment.
    Full,
}
