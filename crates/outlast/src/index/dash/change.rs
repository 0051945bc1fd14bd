//! Changes of one key.

use super::layout::Slot;
use super::lock::Locked;
use super::lookup::{Part, Place};
use super::metadata::{Bits, BucketRef, Overflow};
use super::{Addressing, Dash, Route, bugs, points};
use crate::error::{Boxed, Result};
use crate::index::bugs as index_bugs;
use crate::index::kit::change::{Plan, Step, Update, decide, prepare};
use crate::index::kit::lock::{Guarded, Held};
use crate::index::kit::row::change_sharing_fence;
use crate::index::kit::table::HashedKey;
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::{Changed, RecordForm, fingerprints};
use crate::pmem::{Point, Seam};

/// The largest number of records that an insert moves to make room. More moves fill a segment
/// further before it is split, but each costs a flush, a fence and a lock. Three moves raise the
/// peak load factor from 0.88 to 0.90 (2 stash buckets) and from 0.905 to 0.92 (4 stash buckets). A
/// fourth would add 0.005.
const MOVES: u32 = 3;

/// Returns whether a new record goes to its home bucket.
///
/// The record goes there if the line that its hash names has room, so that most records are in the
/// line that a lookup prefetches. Otherwise it goes to the emptier of the two buckets (balanced
/// insert). An insert into the home bucket takes no other bucket's lock.
#[inline(always)]
pub(super) fn prefers_home(home: Bits, next: Bits, first: usize) -> bool {
    home.free_slot_in_line(first).is_some() || home.is_no_fuller_than(next)
}

/// What one attempt passes on to the next: the new record, unless the change is a removal; and
/// whether the next bucket must be locked before the home bucket.
pub(crate) type Progress<'i, S, R> = (Option<UnlinkedRecord<'i, S, R>>, bool);

/// What stopped an attempt.
pub(crate) enum Obstacle {
    /// The segment is full.
    Full,
    /// The next bucket comes before the home bucket in the lock order, is not locked yet, and is
    /// not free. Locks are taken in ascending order, so that no lock cycle can form.
    NextLocked,
}

impl<S: Seam, R: SlotRecord, A: Addressing> Update<S, R> for Dash<S, R, A> {
    type Progress<'t> = Progress<'t, S, R>;
    type Full<'t> = Obstacle;

    #[inline(always)]
    fn begin<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        (new, _): &mut Progress<'t, S, R>,
    ) -> Boxed<Option<Changed<R>>> {
        prepare(self, key, plan, &points::RECORD, new)
    }

    /// The hot path, in as few instructions as possible. It requires that the segment is known,
    /// that the locks it needs are free, and that the record, or the room for it, is in one of the
    /// two buckets.
    ///
    /// While one operation waits for memory, the processor begins the next one, as far as it can
    /// look ahead: a few hundred instructions, a few dozen stores.
    #[inline(always)]
    fn attempt_first<'t>(
        &'t self,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        (new, _): &mut Progress<'t, S, R>,
    ) -> Option<Changed<R>> {
        let route = self.ready_route(key.hash)?;
        self.prefetch_home(&route, key.hash);
        let mut here = self.try_hold(self.bucket(route.segment, self.home(key.hash)))?;
        let step = self.change_locked::<true>(&route, &mut here, None, key, plan, new);
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
        (new, next_first): &mut Progress<'t, S, R>,
    ) -> Boxed<Step<R, Obstacle>> {
        let route = self.route_inside(key.hash)?;
        let home = self.home(key.hash);
        let mut next = None;
        if *next_first {
            next = Some(self.lock(self.bucket(route.segment, self.next(home)))?);
        }
        let mut here = self.lock(self.bucket(route.segment, home))?;
        let next = next.as_deref_mut();
        let step = self.change_locked::<false>(&route, &mut here, next, key, plan, new)?;
        *next_first |= matches!(step, Step::Full(Obstacle::NextLocked));
        Ok(step)
    }

    #[cold]
    fn grow(&self, key: HashedKey<'_, R>, obstacle: Obstacle) -> Result<()> {
        match obstacle {
            Obstacle::Full => A::make_room(self, &self.route_inside(key.hash)?, key.hash),
            Obstacle::NextLocked => Ok(()),
        }
    }

    fn change_in_row(
        &self,
        changes: &[(HashedKey<'_, R>, Plan<'_, R>)],
        done: &mut Vec<Changed<R>>,
    ) -> Boxed<()> {
        change_sharing_fence(self, changes, done)
    }
}

impl<S: Seam, R: SlotRecord, A: Addressing> Dash<S, R, A> {
    // ---- Changing ---------------------------------------------------------------

    /// Makes a change. The caller has locked the home bucket, and also the next bucket if it passes
    /// `next_lock`. With `FIRST`, this handles only the common cases. In any other case it returns
    /// before it has stored anything.
    #[inline(always)]
    fn change_locked<'m, const FIRST: bool>(
        &'m self,
        route: &Route<'_, A>,
        here: &mut Locked<'m, S>,
        next_lock: Option<&mut Locked<'m, S>>,
        key: HashedKey<'_, R>,
        plan: &Plan<'_, R>,
        new: &mut Option<UnlinkedRecord<'_, S, R>>,
    ) -> Boxed<Step<R, Obstacle>> {
        let (home, bucket) = (self.home(key.hash), here.bucket);
        let next = self.bucket(route.segment, self.next(home));
        let (bits, next_bits) = (self.bits(bucket), self.bits(next));
        let overflow = Overflow::of(here.word());
        let found = match self.probe_pair((bucket, bits), (next, next_bits), key) {
            Ok(Some(place)) => Some(place),
            // A split takes every lock of its segment, so no split can begin from here on.
            _ if !self.is_current(route) => return Ok(Step::Again),
            Ok(None) if overflow.is_none() => None,
            _ if FIRST => return Ok(Step::Again),
            Ok(None) => self.search_overflow(route.segment, bits, overflow, key)?,
            Err(damage) => return Err(damage.into()),
        };
        let Some(place) = found else {
            let Some(new) = new.as_mut().filter(|_| plan.inserts) else {
                return Ok(Step::absent(false));
            };
            let both = (bits, next_bits);
            return self.insert_absent::<FIRST>(route, here, next_lock, both, key.hash, new);
        };
        let decision = decide(&self.core, plan, place.words)?;
        if !decision.applied {
            return Ok(Step::Done(decision.finish(&self.core)));
        }
        if let Some(new) = new {
            here.changing();
            let (slot, at) =
                (&place.bucket.slots[place.slot], [&points::UPDATE, &points::UPDATE_LINK]);
            slot.update::<S, R>(&self.core.memory, new.words(), || self.empty(key.hash), at);
            new.set_linked();
        } else if next_lock.is_none() && matches!(place.part, Part::Next) {
            // A bucket's own lock guards its metadata.
            let Some(next) = self.hold_next::<FIRST>(next, home)? else {
                return Ok(Step::Full(Obstacle::NextLocked));
            };
            here.changing();
            self.empty_slot(key.hash, place.bucket, place.slot);
            next.unlock();
        } else if FIRST || matches!(place.part, Part::Home | Part::Next) {
            here.changing();
            self.empty_slot(key.hash, place.bucket, place.slot);
        } else {
            self.remove_overflowed(here, key.hash, place)?;
        }
        Ok(Step::Done(decision.finish(&self.core)))
    }

    /// Locks the next bucket while the home bucket is locked. Returns `None` if the next bucket
    /// must be locked first; see [`Obstacle::NextLocked`].
    #[inline(always)]
    pub(super) fn hold_next<'m, const FIRST: bool>(
        &'m self,
        next: BucketRef<'m>,
        home: u32,
    ) -> Boxed<Option<Locked<'m, S>>> {
        match self.try_hold(next) {
            None if !FIRST && self.next(home) > home => Ok(Some(self.hold(next)?)),
            held => Ok(held),
        }
    }

    pub(super) fn remove_overflowed(
        &self,
        here: &mut Locked<'_, S>,
        hash: u64,
        place: Place<'_>,
    ) -> Result<()> {
        // The lock of the stash bucket or node bucket protects its metadata from threads that hold
        // the locks of other homes.
        let _locked = self.lock(place.bucket)?;
        here.changing();
        seed!(self, index_bugs::REMOVES_NOTHING => return Ok(()));
        self.empty_slot(hash, place.bucket, place.slot);
        let stash = if let Part::Stash(stash) = place.part { Some(stash) } else { None };
        here.forget_overflow(hash as u8, stash);
        Ok(())
    }

    /// Removes a slot's record, durably. The record's home is marked as changing, and the slot's
    /// bucket is locked.
    #[inline(always)]
    pub(super) fn empty_slot(&self, hash: u64, bucket: BucketRef<'_>, slot: usize) {
        let memory = &self.core.memory;
        let target = &bucket.slots[slot];
        seed!(self, bugs::LOCKED_TWICE => drop(self.lock(bucket)));
        memory.store_release(&target.first, self.empty(hash), &points::REMOVE);
        memory.persist(target, &points::REMOVE);
        bucket.metadata.set_bits(memory.seam(), self.bits(bucket).without(slot));
    }

    // ---- Inserting --------------------------------------------------------------

    /// Writes a record into a free slot, durably. No thread reads the slot yet.
    #[inline(always)]
    pub(super) fn fill(&self, slot: &Slot, words: SlotWords, empty: u64, at: &'static Point) {
        let memory = &self.core.memory;
        slot.fill(memory, words, empty, at);
        memory.persist(slot, at);
    }

    /// Makes a slot's record visible to readers. The bucket is locked, and the record is durable.
    #[inline(always)]
    pub(super) fn publish(
        &self,
        bucket: BucketRef<'_>,
        slot: usize,
        fingerprint: u8,
        from_before: bool,
    ) {
        let seam = self.core.memory.seam();
        let (word, value) =
            fingerprints::with(bucket.metadata.fingerprints(seam), slot, fingerprint);
        bucket.metadata.set_fingerprints(seam, word, value);
        bucket.metadata.set_bits(seam, self.bits(bucket).with(slot, from_before));
    }

    /// Puts a new record into a free slot of a locked bucket.
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
        if self.seeded(&index_bugs::SHOWN_BEFORE_DURABLE) {
            target.fill(&self.core.memory, words, empty, &points::INSERT);
            self.core.memory.flush(target, &points::INSERT);
            self.publish(bucket, slot, hash as u8, from_before);
        }
        self.fill(target, words, empty, &points::INSERT);
        self.publish(bucket, slot, hash as u8, from_before);
    }

    /// Inserts a record whose key is absent. The caller has locked the home bucket, and also the
    /// next bucket if it passes `next`.
    #[inline(always)]
    fn insert_absent<'m, const FIRST: bool>(
        &'m self,
        route: &Route<'_, A>,
        here: &mut Locked<'m, S>,
        next: Option<&mut Locked<'m, S>>,
        (bits, next_bits): (Bits, Bits),
        hash: u64,
        new: &mut UnlinkedRecord<'_, S, R>,
    ) -> Boxed<Step<R, Obstacle>> {
        let (words, first) = (new.words(), Self::first_slot(hash));
        if prefers_home(bits, next_bits, first)
            && let Some(slot) = bits.free_slot(first)
        {
            self.insert_into(here.bucket, slot, words, hash, false);
            new.set_linked();
            return Ok(Step::absent(true));
        }
        let home = self.home(hash);
        let mut held = None;
        let next = match next {
            Some(next) => next,
            None => {
                match self.hold_next::<FIRST>(self.bucket(route.segment, self.next(home)), home)? {
                    Some(next) => held.insert(next),
                    None => return Ok(Step::Full(Obstacle::NextLocked)),
                }
            }
        };
        // The next bucket may have filled up before it was locked.
        let is_late = self.seeded(&bugs::NEXT_NOT_RECHECKED);
        let next_bits = if is_late { next_bits } else { self.bits(next.bucket) };
        let done = match next_bits.free_slot(first) {
            Some(slot) => {
                self.insert_into(next.bucket, slot, words, hash, true);
                Ok(true)
            }
            None if FIRST => Ok(false),
            None => self.insert_crowded(route, here, next, hash, words),
        };
        if let Some(next) = held {
            next.unlock();
        }
        if !done? {
            return Ok(Step::Full(Obstacle::Full));
        }
        new.set_linked();
        Ok(Step::absent(true))
    }

    /// Puts a record whose key is absent wherever its segment has room: in its home bucket, by
    /// displacement, or in the stash or an overflow node. Returns whether there was room. The home
    /// bucket and the next one are locked, and the next one is full.
    #[cold]
    #[inline(never)]
    fn insert_crowded<'m>(
        &'m self,
        route: &Route<'_, A>,
        here: &mut Locked<'m, S>,
        next: &mut Locked<'m, S>,
        hash: u64,
        words: SlotWords,
    ) -> Boxed<bool> {
        let (first, fingerprint, empty) = (Self::first_slot(hash), hash as u8, self.empty(hash));
        if let Some(slot) = self.bits(here.bucket).free_slot(first) {
            self.insert_into(here.bucket, slot, words, hash, false);
            return Ok(true);
        }
        if self.displace(route, here, next, fingerprint, words)? {
            return Ok(true);
        }
        for place in self.overflow_buckets(route.segment) {
            let (target, stash) = place?;
            let _locked = self.lock(target)?;
            if let Some(slot) = self.bits(target).free_slot(first) {
                here.changing();
                self.fill(&target.slots[slot], words, empty, &points::INSERT_OVERFLOW);
                self.publish(target, slot, fingerprint, false);
                here.note_overflow(fingerprint, stash);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes room in one of the two buckets, which are full, and puts the new record there. For
    /// that it moves one record to its other bucket or, if that bucket is full too, several records
    /// in a row: as few as possible, and at most [`MOVES`]. Returns whether it found such records.
    #[cold]
    fn displace<'m>(
        &'m self,
        route: &Route<'_, A>,
        here: &mut Locked<'m, S>,
        next: &mut Locked<'m, S>,
        fingerprint: u8,
        words: SlotWords,
    ) -> Result<bool> {
        let (here_index, next_index) =
            (here.index(self, route.segment), next.index(self, route.segment));
        for moves in 1..=MOVES {
            // Records that are at home in the next bucket move one bucket further. Guests of the
            // home bucket move back to the bucket before it.
            let ways = [
                (&mut *next, next_index.wrapping_add(moves), true),
                (&mut *here, here_index.wrapping_sub(moves), false),
            ];
            for (bucket, last, forward) in ways {
                // The last bucket is checked before any is locked, to avoid useless locks.
                let last = self.bucket(route.segment, last & self.bucket_mask);
                if self.bits(last).free_slot(0).is_none() {
                    continue;
                }
                let Some((slot, elsewhere)) = self.move_away(route, bucket, forward, moves)? else {
                    continue;
                };
                let _elsewhere = (!self.seeded(&bugs::MOVED_UNLOCKED_EARLY)).then_some(elsewhere);
                // Emptying the slot and filling it take one flush, because all stores go to one
                // line. The first store removes the old record, which has a copy elsewhere by now.
                let empty = self.empty(route.segment.low);
                self.fill(&bucket.bucket.slots[slot], words, empty, &points::DISPLACE_FILL);
                self.publish(bucket.bucket, slot, fingerprint, forward);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves a record of a full bucket to its other bucket. With `forward`, it moves a record that
    /// is at home in the bucket; otherwise, it moves a guest back to its home. If that other bucket
    /// is full, one of its records moves first, in the same direction, and so on. At most `moves`
    /// records move in total.
    ///
    /// Returns the slot that the record left, and the lock of the bucket that has the record now.
    /// `None` if nothing was moved. The caller must fill the slot before it releases that lock.
    /// Otherwise another thread could remove the copy, and after a crash the original would be back
    /// in the slot.
    fn move_away<'m>(
        &'m self,
        route: &Route<'_, A>,
        from: &mut Locked<'m, S>,
        forward: bool,
        moves: u32,
    ) -> Result<Option<(usize, Guarded<Locked<'m, S>>)>> {
        let (bucket, index) = (from.bucket, from.index(self, route.segment));
        let bits = self.bits(bucket);
        let (movable, other) = if forward {
            (bits.own(), self.next(index))
        } else {
            (bits.guests(), self.previous(index))
        };
        if movable == 0 {
            return Ok(None);
        }
        // This also fails for the buckets that this operation has locked itself.
        let Some(to) = self.try_hold(self.bucket(route.segment, other)) else {
            return Ok(None);
        };
        let mut to = Guarded::new(to);
        let slot = movable.trailing_zeros() as usize;
        let words = self.words(&bucket.slots[slot]);
        let free = self.bits(to.bucket).free_slot(0);
        if free.is_none() && moves == 1 {
            return Ok(None);
        }
        // Everything that can fail comes before the first move. The block itself is not read, so
        // that damage in it does not fail this operation.
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
        if elsewhere.is_none() || !self.seeded(&bugs::ROW_HOME_UNMARKED) {
            home.changing();
        }
        self.copy_record(route, bucket, slot, words, to.bucket, free, forward);
        Ok(Some((slot, to)))
    }

    /// Copies a record to another bucket, durably, and removes it from the metadata of the bucket
    /// that it leaves. Both buckets are locked, and the record's home is marked as changing.
    #[expect(clippy::too_many_arguments, reason = "from where, what, to where")]
    fn copy_record(
        &self,
        route: &Route<'_, A>,
        from: BucketRef<'_>,
        slot: usize,
        words: SlotWords,
        to: BucketRef<'_>,
        free: usize,
        from_before: bool,
    ) {
        let seam = self.core.memory.seam();
        let empty = self.empty(route.segment.low);
        if self.seeded(&bugs::DISPLACE_REMOVES_FIRST) {
            self.core.memory.store(&from.slots[slot].first, empty, &points::DISPLACE_FILL);
            self.core.memory.persist(&from.slots[slot], &points::DISPLACE_FILL);
        }
        self.fill(&to.slots[free], words, empty, &points::DISPLACE_COPY);
        let fingerprints = from.metadata.fingerprints(seam);
        let fingerprint = (fingerprints[slot / 8] >> (slot % 8 * 8)) as u8;
        self.publish(to, free, fingerprint, from_before);
        from.metadata.set_bits(seam, self.bits(from).without(slot));
    }
}
