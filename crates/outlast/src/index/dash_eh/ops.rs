//! Lookups and changes of one key.

use super::layout::{ALL_SLOTS, SLOTS, Slot};
use super::lock::{Locked, reached};
use super::notes::{BucketRef, Meta, Overflow};
use super::version::{LockWord, is_unchanged, version};
use super::{DashEh, Route, Segment, points};
use crate::error::{Damage, Error, Result};
use crate::index::record::{Record, RecordRef, SlotWords};
use crate::index::{Change, Changed, RecordForm, prints};
use crate::pmem::{Planted, Point, Seam};
use std::sync::atomic::Ordering;

/// The slots of a bit mask, lowest first.
pub(super) fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(slot)
    })
}

/// Whether a new record goes to its home bucket.
///
/// It does where there is room in its line, so that most records stand where a lookup has
/// asked for the memory before it knows; else into the emptier of the two buckets (balanced
/// insert). Where that is the home bucket, its lock is all it takes.
#[inline(always)]
fn prefers_home(home: Meta, next: Meta, first: usize) -> bool {
    home.has_room_in_line(first) || home.is_no_fuller_than(next)
}

/// Where in a segment a record stands.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// In its home bucket.
    Home,
    /// In the next one.
    Next,
    /// In this stash bucket.
    Stash(u32),
    /// In an overflow node.
    Node,
}

/// A record that was found.
#[derive(Clone, Copy)]
pub(super) struct Place<'m> {
    pub(super) part: Part,
    pub(super) bucket: BucketRef<'m>,
    pub(super) slot: usize,
    pub(super) words: SlotWords,
}

/// Where in the home bucket or the next one.
struct InPair<'m> {
    slot: &'m Slot,
    index: usize,
    in_next: bool,
}

impl<S: Seam, R: Record> DashEh<S, R> {
    // ---- Reading ----------------------------------------------------------------

    /// The words of a slot, consistent if the bucket's version is.
    #[inline(always)]
    pub(super) fn words(&self, slot: &Slot) -> SlotWords {
        // Acquire: pairs with the Release of the commit store in `fill`.
        let first = self.core.memory.load_acquire(&slot.first);
        SlotWords { first, second: self.core.memory.load(&slot.second) }
    }

    #[inline(always)]
    pub(super) fn meta(&self, bucket: BucketRef<'_>) -> Meta {
        bucket.notes.meta(self.core.memory.seam())
    }

    /// The slots among `mask` whose fingerprint is this one.
    #[inline(always)]
    fn candidates(&self, bucket: BucketRef<'_>, mask: u32, print: u8) -> u32 {
        prints::matching(bucket.notes.prints(self.core.memory.seam()), print) & mask
    }

    /// Asks for the memory where a record of this hash most likely is, or will be. It
    /// arrives while the notes do.
    #[inline(always)]
    fn expect_at_home(&self, route: &Route<'_>, hash: u64) {
        let bucket = self.bucket(route.segment, self.home(hash));
        self.core.memory.seam().prefetch(&bucket.slots[Self::first_slot(hash)]);
    }

    /// Looks for a key in its home bucket and the next one.
    ///
    /// Both are looked at before any slot is: which of the two holds a record is as good as
    /// random, and a processor that has to guess guesses wrong.
    #[inline(always)]
    fn probe_pair<'m>(
        &self,
        (bucket, meta): (BucketRef<'m>, Meta),
        (next, next_meta): (BucketRef<'m>, Meta),
        key: R::Key<'_>,
        hash: u64,
    ) -> Result<Option<(InPair<'m>, SlotWords)>, Damage> {
        let print = hash as u8;
        let here = meta.allocated() & !meta.membership();
        let there = next_meta.allocated() & next_meta.membership();
        let mut mask =
            self.candidates(bucket, here, print) | self.candidates(next, there, print) << SLOTS;
        while mask != 0 {
            let bit = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            let (in_next, index) = (bit >= SLOTS, bit % SLOTS);
            let slot = if in_next { &next.slots[index] } else { &bucket.slots[index] };
            let words = self.words(slot);
            if R::matches(&self.core, words, key, hash)?
                || self.planted(Planted::FingerprintDecides)
            {
                return Ok(Some((InPair { slot, index, in_next }, words)));
            }
        }
        Ok(None)
    }

    /// Looks for a key in a segment. `lock` is the home bucket's lock word.
    ///
    /// Without that lock the answer counts only if the bucket's version and the route have
    /// not changed since before.
    #[inline(always)]
    pub(super) fn search(
        &self,
        segment: Segment,
        home: u32,
        lock: u64,
        key: R::Key<'_>,
        hash: u64,
    ) -> Result<Option<Place<'_>>, Damage> {
        let bucket = self.bucket(segment, home);
        let next = self.bucket(segment, self.next(home));
        let (meta, next_meta) = (self.meta(bucket), self.meta(next));
        if let Some((at, words)) = self.probe_pair((bucket, meta), (next, next_meta), key, hash)? {
            let (bucket, part) = if at.in_next { (next, Part::Next) } else { (bucket, Part::Home) };
            return Ok(Some(Place { part, bucket, slot: at.index, words }));
        }
        let overflow = Overflow::of(lock);
        if overflow.is_none() {
            return Ok(None);
        }
        self.search_overflow(segment, meta, overflow, key, hash)
    }

    #[cold]
    fn search_overflow(
        &self,
        segment: Segment,
        meta: Meta,
        overflow: Overflow,
        key: R::Key<'_>,
        hash: u64,
    ) -> Result<Option<Place<'_>>, Damage> {
        let print = hash as u8;
        let probe = |bucket, part| {
            for slot in bits(self.candidates(bucket, self.meta(bucket).allocated(), print)) {
                let words = self.words(&bucket.slots[slot]);
                if R::matches(&self.core, words, key, hash)? {
                    return Ok(Some(Place { part, bucket, slot, words }));
                }
            }
            Ok(None)
        };
        for index in bits(overflow.valid()) {
            let stash = overflow.stash(index);
            if meta.overflow_print(index) == print && stash < self.shape.stash {
                let bucket = self.stash_bucket(segment, stash);
                if let Some(place) = probe(bucket, Part::Stash(stash))? {
                    return Ok(Some(place));
                }
            }
        }
        if overflow.others() == 0 {
            return Ok(None);
        }
        for stash in 0..self.shape.stash {
            let bucket = self.stash_bucket(segment, stash);
            if let Some(place) = probe(bucket, Part::Stash(stash))? {
                return Ok(Some(place));
            }
        }
        for bucket in self.node_buckets(segment) {
            if let Some(place) = probe(bucket?, Part::Node)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Finds a key and reads from its slot, optimistically. Stores nothing.
    #[inline(always)]
    pub(super) fn find<T>(
        &self,
        key: R::Key<'_>,
        hash: u64,
        mut read: impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Result<Option<T>> {
        match self.try_find(key, hash, &mut read) {
            Some(found) => Ok(found),
            None => self.find_again(key, hash, 0, read),
        }
    }

    /// One reading. `None` if it does not count: a change of the key's home came between, or
    /// the segment was not touched yet, or something is damaged, or the pool is not open.
    #[inline(always)]
    fn try_find<T>(
        &self,
        key: R::Key<'_>,
        hash: u64,
        read: &mut impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Option<Option<T>> {
        if !self.core.is_readable() {
            return None;
        }
        let route = self.known_route(hash)?;
        self.read_once(&route, key, hash, read)?.ok()
    }

    /// As [`try_find`](Self::try_find), by this route, and with the damage.
    #[inline(always)]
    fn read_once<T>(
        &self,
        route: &Route<'_>,
        key: R::Key<'_>,
        hash: u64,
        read: &mut impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Option<Result<Option<T>, Damage>> {
        let home = self.home(hash);
        self.expect_at_home(route, hash);
        let lock = reached(&self.core, self.bucket(route.segment, home));
        let before = match version(&lock) {
            None if self.planted(Planted::ChangingIgnored) => lock.load(Ordering::Relaxed),
            before => before?,
        };
        let found = match self.search(route.segment, home, before, key, hash) {
            Ok(Some(place)) => read(place.words).map(Some),
            Ok(None) => Ok(None),
            Err(damage) => Err(damage),
        };
        // The version first, then the route: a split's Release store of the directory
        // entry pairs with the fence in there, too.
        (is_unchanged(&lock, before) && self.is_current(route)).then_some(found)
    }

    /// As [`find`](Self::find), until a reading counts, by a thread that has passed the gate
    /// `inside` times.
    #[cold]
    fn find_again<T>(
        &self,
        key: R::Key<'_>,
        hash: u64,
        inside: usize,
        mut read: impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Result<Option<T>> {
        let mut turn = 0;
        loop {
            self.core.check()?;
            // The first touch of a segment stores to it and passes the gate, which a thread
            // must not do twice.
            let route = if inside > 0 { self.route_inside(hash)? } else { self.route(hash)? };
            if let Some(found) = self.read_once(&route, key, hash, &mut read) {
                return Ok(found?);
            }
            self.wait_for_bucket(&mut turn, self.bucket(route.segment, self.home(hash)), inside)?;
        }
    }

    /// Looks many keys up, each step for a whole batch before the next one: what a step asks
    /// the memory for arrives while it asks for the others'.
    pub(super) fn get_many_of(
        &self,
        keys: &[R::Key<'_>],
        out: &mut Vec<Option<R::Owned>>,
    ) -> Result<()> {
        const BATCH: usize = 16;
        out.reserve(keys.len());
        let seam = self.core.memory.seam();
        for batch in keys.chunks(BATCH) {
            let mut hashes = [0; BATCH];
            let mut buckets = [None; BATCH];
            for ((&key, hash), bucket) in batch.iter().zip(&mut hashes).zip(&mut buckets) {
                R::check_size(key, None)?;
                *hash = R::hash(&self.core.hasher, key);
                *bucket = self.known_route(*hash).map(|route| {
                    let home = self.home(*hash);
                    let here = self.bucket(route.segment, home);
                    let next = self.bucket(route.segment, self.next(home));
                    seam.prefetch(here.notes);
                    seam.prefetch(next.notes);
                    (here, next)
                });
            }
            let mut slots = [None; BATCH];
            for ((bucket, &hash), slot) in buckets.iter().zip(&hashes).zip(&mut slots) {
                let Some((here, next)) = *bucket else { continue };
                let first = |bucket, from_before: bool| {
                    let meta = self.meta(bucket);
                    let own = if from_before { meta.membership() } else { !meta.membership() };
                    let mask = self.candidates(bucket, meta.allocated() & own, hash as u8);
                    bits(mask).next().map(|slot| &bucket.slots[slot])
                };
                *slot = first(here, false).or_else(|| first(next, true));
                if let Some(slot) = slot {
                    seam.prefetch(*slot);
                }
            }
            if R::FORM == RecordForm::Bytes {
                for slot in slots.iter().flatten() {
                    R::prefetch(&self.core, self.words(slot));
                }
            }
            for (&key, &hash) in batch.iter().zip(&hashes) {
                out.push(self.find(key, hash, |words| R::value(&self.core, words))?);
            }
        }
        Ok(())
    }

    pub(super) fn get_ref_of(&self, key: R::Key<'_>) -> Result<Option<RecordRef>> {
        R::check_size(key, None)?;
        let hash = R::hash(&self.core.hasher, key);
        // Pinned before the link is read, see `reclaim`. `find` may read several times;
        // each reading is a guard of its own, and those that do not count are dropped.
        self.find(key, hash, |words| {
            let pin = self.core.pin();
            // Read again under the pin: the link may have been unlinked and its block
            // retired in between; then the version has changed and this does not count.
            R::reference(&self.core, words, pin)
        })
    }

    // ---- Changing ---------------------------------------------------------------

    #[inline(always)]
    pub(super) fn change_of(
        &self,
        key: R::Key<'_>,
        change: &Change<'_, R>,
        want_before: bool,
    ) -> Result<Changed<R>> {
        let plan = Plan::of(change, want_before);
        R::check_size(key, plan.value)?;
        let _writing = self.core.enter_to_change()?;
        let hash = R::hash(&self.core.hasher, key);
        if R::FORM == RecordForm::Bytes
            && let Some(changed) = self.decide_early(key, hash, change, want_before)?
        {
            return Ok(changed);
        }
        // The record's block is written before anything is locked.
        let words = match plan.value {
            Some(value) => Some(R::prepare(&self.core, key, value, hash, &points::RECORD)?),
            None => None,
        };
        match self.change_at_once(key, hash, &plan, words) {
            Some(changed) => Ok(changed),
            None => self.change_slowly(key, hash, change, want_before, words),
        }
    }

    /// The common cases, in as few instructions as they take: the segment is known, the home
    /// bucket is not locked, and what is there or the room for it is in one of the two
    /// buckets. `None` leaves everything else to [`change_slowly`](Self::change_slowly):
    /// nothing has happened.
    ///
    /// While one operation waits for memory, the processor begins the next one, as far as it
    /// can look ahead: a few hundred instructions.
    #[inline(always)]
    fn change_at_once(
        &self,
        key: R::Key<'_>,
        hash: u64,
        plan: &Plan<'_, R>,
        words: Option<SlotWords>,
    ) -> Option<Changed<R>> {
        let route = self.known_route(hash)?;
        let home = self.home(hash);
        self.expect_at_home(&route, hash);
        let bucket = self.bucket(route.segment, home);
        let next = self.bucket(route.segment, self.next(home));
        let mut here = self.try_lock(bucket)?;
        if !self.is_current(&route) {
            return None;
        }
        let core = &self.core;
        let (meta, next_meta) = (self.meta(bucket), self.meta(next));
        let Some((place, found)) =
            self.probe_pair((bucket, meta), (next, next_meta), key, hash).ok()?
        else {
            // Absent, if it is not in the overflow.
            if !Overflow::of(here.word()).is_none() {
                return None;
            }
            if !plan.inserts {
                self.discard(words);
                return Some(Changed { applied: false, before: None, present: false });
            }
            let first = Self::first_slot(hash);
            let from_before = !prefers_home(meta, next_meta, first);
            let _next_lock =
                if from_before { Some(self.lock_next(&route, home).ok()??) } else { None };
            let target = if from_before { next } else { bucket };
            let slot = self.meta(target).free_slot(first)?;
            self.insert_into(target, slot, words?, hash, from_before);
            return Some(Changed { applied: true, before: None, present: false });
        };
        // The blocks of records need more care.
        if R::FORM == RecordForm::Bytes {
            return None;
        }
        let before = if plan.want_before { Some(R::value(core, found).ok()?) } else { None };
        let applied = plan.replaces
            && match plan.expected {
                Some(expected) => R::value_is(core, found, expected).ok()?,
                None => true,
            };
        if applied && let Some(words) = words {
            here.changing();
            self.replace(place.slot, words, hash);
        } else if applied {
            // What a bucket's notes say of its slots changes under its own lock.
            let _next_lock =
                if place.in_next { Some(self.lock_next(&route, home).ok()??) } else { None };
            here.changing();
            self.empty_slot(hash, if place.in_next { next } else { bucket }, place.index);
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
        change: &Change<'_, R>,
        want_before: bool,
        words: Option<SlotWords>,
    ) -> Result<Changed<R>> {
        let plan = &Plan::of(change, want_before);
        let mut new = words.map(|words| Prepared { index: self, words: Some(words) });
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
        new: &mut Option<Prepared<'_, S, R>>,
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
                    prepared.linked();
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
                .find_inside(key, hash, |words| {
                    want_before.then(|| R::value(&self.core, words)).transpose()
                })?
                .map(|before| Changed { applied: false, before, present: true }),
            Change::Update(_) | Change::Swap { .. } => {
                let found = self.find_inside(key, hash, |_| Ok(()))?;
                let absent = Changed { applied: false, before: None, present: false };
                found.is_none().then_some(absent)
            }
            Change::Put(_) | Change::Remove => None,
        })
    }

    /// As [`find`](Self::find), by a thread that has passed the gate.
    fn find_inside<T>(
        &self,
        key: R::Key<'_>,
        hash: u64,
        mut read: impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Result<Option<T>> {
        match self.try_find(key, hash, &mut read) {
            Some(found) => Ok(found),
            None => self.find_again(key, hash, 1, read),
        }
    }

    /// Locks the next bucket, while the home is locked. `None` if that has to be done
    /// before: locks are taken in ascending order, so that no ring of waiting threads closes.
    #[inline(always)]
    fn lock_next(&self, route: &Route<'_>, home: u32) -> Result<Option<Locked<'_, S>>> {
        let next = self.next(home);
        let bucket = self.bucket(route.segment, next);
        if next > home { self.lock(bucket).map(Some) } else { Ok(self.try_lock(bucket)) }
    }

    /// Changes a record that is there. The home is locked, and the next bucket if it is given.
    #[expect(clippy::too_many_arguments, reason = "they are the state of one operation")]
    #[inline(always)]
    fn change_present<'m>(
        &'m self,
        route: &Route<'_>,
        here: &mut Locked<'_, S>,
        mut next: Option<Locked<'m, S>>,
        hash: u64,
        place: Place<'_>,
        plan: &Plan<'_, R>,
        new: &mut Option<Prepared<'_, S, R>>,
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
            new.linked();
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
        let at = if R::FORM == RecordForm::Inline {
            memory.store_release(&slot.second, words.second, &points::UPDATE);
            &points::UPDATE
        } else {
            memory.store_release(&slot.first, words.first, &points::UPDATE_LINK);
            &points::UPDATE_LINK
        };
        memory.persist(slot, at);
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
    pub(super) fn fill(&self, slot: &Slot, words: SlotWords, empty: u64, at: &'static Point) {
        self.fill_unfenced(slot, words, empty, at);
        self.core.memory.fence(at);
    }

    pub(super) fn fill_unfenced(
        &self,
        slot: &Slot,
        words: SlotWords,
        empty: u64,
        at: &'static Point,
    ) {
        let memory = &self.core.memory;
        // What a split left here must not be joined with the new second word.
        if memory.load(&slot.first) != empty && !self.planted(Planted::SlotNotEmptied) {
            memory.store(&slot.first, empty, at);
        }
        // Release: the order of the stores is the order in which they become durable.
        if self.planted(Planted::CommitBeforeValue) {
            memory.store_release(&slot.first, words.first, at);
        }
        memory.store_release(&slot.second, words.second, at);
        memory.store_release(&slot.first, words.first, at);
        memory.flush(slot, at);
    }

    /// Shows a slot's record to readers. The bucket is locked, the record durable.
    #[inline]
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
    #[inline(always)]
    fn insert_absent<'m>(
        &'m self,
        route: &Route<'_>,
        here: &mut Locked<'_, S>,
        next: Option<Locked<'m, S>>,
        hash: u64,
        words: SlotWords,
    ) -> Result<Step<R>> {
        let bucket = here.bucket();
        let meta = self.meta(bucket);
        let next_bucket = self.bucket(route.segment, self.next(self.home(hash)));
        let first = Self::first_slot(hash);
        if prefers_home(meta, self.meta(next_bucket), first)
            && let Some(slot) = meta.free_slot(first)
        {
            self.insert_into(bucket, slot, words, hash, false);
            return Ok(Step::Done(Changed { applied: true, before: None, present: false }));
        }
        self.insert_elsewhere(route, here, next, hash, words)
    }

    /// As [`insert_absent`](Self::insert_absent), where the home is not the emptier one.
    #[inline(never)]
    fn insert_elsewhere<'m>(
        &'m self,
        route: &Route<'_>,
        here: &mut Locked<'_, S>,
        mut next: Option<Locked<'m, S>>,
        hash: u64,
        words: SlotWords,
    ) -> Result<Step<R>> {
        if next.is_none() {
            next = self.lock_next(route, self.home(hash))?;
        }
        let Some(next) = &mut next else { return Ok(Step::NextFirst) };
        let (print, empty) = (hash as u8, self.empty(hash));
        let first = Self::first_slot(hash);
        let done = Ok(Step::Done(Changed { applied: true, before: None, present: false }));
        // It may have filled up before it was locked.
        let free = [(next.bucket(), true), (here.bucket(), false)]
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
        let stashes = (0..self.shape.stash)
            .map(|stash| Ok((self.stash_bucket(route.segment, stash), Some(stash))));
        let nodes = self.node_buckets(route.segment).map(|bucket| Ok((bucket?, None)));
        for place in stashes.chain(nodes) {
            let (target, stash) = place.map_err(damaged)?;
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

    /// Makes room by moving a record of one of the two buckets to its other one, and
    /// puts the new record in its place.
    #[cold]
    fn displace(
        &self,
        route: &Route<'_>,
        here: &mut Locked<'_, S>,
        next: &mut Locked<'_, S>,
        print: u8,
        words: SlotWords,
    ) -> Result<bool> {
        let (home_index, next_index) = (here.index(self, route), next.index(self, route));
        // A record of the next bucket that is at home there moves one further.
        let movable = ALL_SLOTS & !self.meta(next.bucket()).membership();
        let beyond = self.next(next_index);
        if beyond != home_index
            && movable != 0
            && let Some(target) = self.try_lock(self.bucket(route.segment, beyond))
            && let Some(free) = self.meta(target.bucket()).free_slot(0)
        {
            let from = movable.trailing_zeros() as usize;
            next.changing();
            self.move_record(route, next.bucket(), from, target.bucket(), free, true)?;
            self.refill(route, next.bucket(), from, print, words, true);
            return Ok(true);
        }
        // A record of the home bucket that came from the one before moves back.
        let movable = self.meta(here.bucket()).membership();
        let before = self.previous(home_index);
        if before != next_index
            && movable != 0
            && let Some(mut target) = self.try_lock(self.bucket(route.segment, before))
            && let Some(free) = self.meta(target.bucket()).free_slot(0)
        {
            let from = movable.trailing_zeros() as usize;
            target.changing();
            self.move_record(route, here.bucket(), from, target.bucket(), free, false)?;
            self.refill(route, here.bucket(), from, print, words, false);
            return Ok(true);
        }
        Ok(false)
    }

    /// Copies a record to another bucket, durably. Both buckets are locked, and the
    /// record's home is marked as changing.
    fn move_record(
        &self,
        route: &Route<'_>,
        from: BucketRef<'_>,
        slot: usize,
        to: BucketRef<'_>,
        free: usize,
        from_before: bool,
    ) -> Result<()> {
        let words = self.words(&from.slots[slot]);
        if let Some((offset, _)) = R::block(&self.core, words)? {
            self.core.before_unlink(offset)?;
        }
        let empty = self.empty(route.segment.low);
        if self.planted(Planted::DisplaceRemovesFirst) {
            self.core.memory.store(&from.slots[slot].first, empty, &points::DISPLACE_FILL);
            self.core.memory.persist(&from.slots[slot], &points::DISPLACE_FILL);
        }
        self.fill(&to.slots[free], words, empty, &points::DISPLACE_COPY);
        let prints = from.notes.prints(self.core.memory.seam());
        let print = (prints[slot / 8] >> (slot % 8 * 8)) as u8;
        self.publish(to, free, print, from_before);
        Ok(())
    }

    /// Puts a new record where one was moved away. Emptying the slot and filling it are
    /// one flush: the stores go to one line, the first of them removes the old record.
    fn refill(
        &self,
        route: &Route<'_>,
        bucket: BucketRef<'_>,
        slot: usize,
        print: u8,
        words: SlotWords,
        from_before: bool,
    ) {
        bucket.notes.set_meta(self.core.memory.seam(), self.meta(bucket).without(slot));
        let empty = self.empty(route.segment.low);
        self.fill(&bucket.slots[slot], words, empty, &points::DISPLACE_FILL);
        self.publish(bucket, slot, print, from_before);
    }
}

/// A change, taken apart.
struct Plan<'a, R: Record> {
    /// What to store; `None` to remove.
    value: Option<R::Value<'a>>,
    /// The value that must be there.
    expected: Option<R::Value<'a>>,
    /// Whether it applies to an absent key.
    inserts: bool,
    /// Whether it applies to a present one.
    replaces: bool,
    want_before: bool,
}

impl<'a, R: Record> Plan<'a, R> {
    #[inline(always)]
    fn of(change: &Change<'a, R>, want_before: bool) -> Self {
        let (value, expected, inserts, replaces) = match *change {
            Change::Insert(value) => (Some(value), None, true, false),
            Change::Put(value) => (Some(value), None, true, true),
            Change::Update(value) => (Some(value), None, false, true),
            Change::Swap { expected, new } => (Some(new), Some(expected), false, true),
            Change::Remove => (None, None, false, true),
        };
        Plan { value, expected, inserts, replaces, want_before }
    }
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

impl<S: Seam, R: Record> DashEh<S, R> {
    /// Gives up a record that was prepared.
    fn discard(&self, words: Option<SlotWords>) {
        if let Some(words) = words {
            R::discard(&self.core, words);
        }
    }
}

/// A record that is written and not linked; discarded unless it gets linked.
struct Prepared<'i, S: Seam, R: Record> {
    index: &'i DashEh<S, R>,
    words: Option<SlotWords>,
}

impl<S: Seam, R: Record> Prepared<'_, S, R> {
    fn words(&self) -> SlotWords {
        self.words.expect("a record is linked once")
    }

    fn linked(&mut self) {
        self.words = None;
    }
}

impl<S: Seam, R: Record> Drop for Prepared<'_, S, R> {
    fn drop(&mut self) {
        if let Some(words) = self.words.take() {
            R::discard(&self.index.core, words);
        }
    }
}

const _: () = assert!(SLOTS <= 16, "fingerprints of a bucket fit two words");

#[cold]
pub(super) fn damaged(damage: Damage) -> Error {
    Error::Damaged(damage)
}
