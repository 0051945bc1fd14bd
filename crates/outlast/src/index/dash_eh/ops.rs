//! Lookups and changes of one key.

use super::layout::{ALL_SLOTS, Bucket, Meta, OTHERS_MAX, OVERFLOW_PRINTS, SLOTS, Slot, overflow};
use super::lock::{Locked, Reached};
use super::version::{is_unchanged, version};
use super::{DashEh, Route, Segment, points};
use crate::error::{Damage, Error, Result};
use crate::index::record::{Record, RecordRef, SlotWords};
use crate::index::{Change, Changed, RecordForm, prints};
use crate::pmem::{Point, Seam};

/// The slots of a bit mask, lowest first.
fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(slot)
    })
}

/// Where in a segment a record stands.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// In its home bucket, or in the next one.
    Bucket,
    /// In this stash bucket.
    Stash(u32),
    /// In an overflow node.
    Node,
}

/// A record that was found.
#[derive(Clone, Copy)]
pub(super) struct Place<'m> {
    pub(super) part: Part,
    pub(super) bucket: &'m Bucket,
    pub(super) slot: usize,
    pub(super) words: SlotWords,
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
    pub(super) fn meta(&self, bucket: &Bucket) -> Meta {
        // Acquire: pairs with the Release in `publish`: fingerprint and record of every
        // bit that is seen are seen.
        Meta(self.core.memory.load_acquire(&bucket.meta))
    }

    #[inline(always)]
    pub(super) fn prints(&self, bucket: &Bucket) -> [u64; 2] {
        let [low, high] = &bucket.prints;
        [self.core.memory.load(low), self.core.memory.load_acquire(high)]
    }

    #[inline(always)]
    fn probe<'m>(
        &self,
        bucket: &'m Bucket,
        mask: u32,
        part: Part,
        key: R::Key<'_>,
        hash: u64,
    ) -> Result<Option<Place<'m>>, Damage> {
        for slot in bits(mask) {
            let words = self.words(&bucket.slots[slot]);
            if R::matches(&self.core, words, key, hash)? {
                return Ok(Some(Place { part, bucket, slot, words }));
            }
        }
        Ok(None)
    }

    /// Looks for a key in a segment.
    ///
    /// Without its home bucket's lock the answer counts only if that bucket's version
    /// and the route have not changed since before.
    #[inline]
    pub(super) fn search(
        &self,
        segment: Segment,
        home: u32,
        key: R::Key<'_>,
        hash: u64,
    ) -> Result<Option<Place<'_>>, Damage> {
        let print = hash as u8;
        let bucket = self.bucket(segment, home);
        let meta = self.meta(bucket);
        let words = self.prints(bucket);
        let here = prints::matching(words, print) & meta.allocated() & !meta.membership();
        if let Some(place) = self.probe(bucket, here, Part::Bucket, key, hash)? {
            return Ok(Some(place));
        }
        let next = self.bucket(segment, self.next(home));
        let next_meta = self.meta(next);
        let there = prints::matching(self.prints(next), print)
            & next_meta.allocated()
            & next_meta.membership();
        if let Some(place) = self.probe(next, there, Part::Bucket, key, hash)? {
            return Ok(Some(place));
        }
        if overflow::valid(words[1]) == 0 && meta.others() == 0 {
            return Ok(None);
        }
        self.search_overflow(segment, meta, words[1], key, hash)
    }

    #[cold]
    fn search_overflow(
        &self,
        segment: Segment,
        meta: Meta,
        overflow_word: u64,
        key: R::Key<'_>,
        hash: u64,
    ) -> Result<Option<Place<'_>>, Damage> {
        let print = hash as u8;
        let probe_all = |bucket, part| {
            let mask = prints::matching(self.prints(bucket), print) & self.meta(bucket).allocated();
            self.probe(bucket, mask, part, key, hash)
        };
        for index in bits(overflow::valid(overflow_word)) {
            let stash = overflow::stash(overflow_word, index);
            if meta.overflow_print(index) == print && stash < self.shape.stash {
                let bucket = self.stash_bucket(segment, stash);
                if let Some(place) = probe_all(bucket, Part::Stash(stash))? {
                    return Ok(Some(place));
                }
            }
        }
        if meta.others() == 0 {
            return Ok(None);
        }
        for stash in 0..self.shape.stash {
            let bucket = self.stash_bucket(segment, stash);
            if let Some(place) = probe_all(bucket, Part::Stash(stash))? {
                return Ok(Some(place));
            }
        }
        for bucket in self.node_buckets(segment) {
            if let Some(place) = probe_all(bucket?, Part::Node)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Finds a key and reads from its slot, optimistically. Stores nothing.
    #[inline]
    pub(super) fn find<T>(
        &self,
        key: R::Key<'_>,
        hash: u64,
        read: impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Result<Option<T>> {
        self.find_from(key, hash, 0, read)
    }

    /// As [`find`](Self::find), by a thread that has passed the gate `inside` times.
    #[inline]
    fn find_from<T>(
        &self,
        key: R::Key<'_>,
        hash: u64,
        inside: usize,
        mut read: impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Result<Option<T>> {
        self.core.check()?;
        let home = self.home(hash);
        let mut turn = 0;
        loop {
            let route = self.route(hash)?;
            let bucket = self.bucket(route.segment, home);
            let lock = Reached::new(&self.core, bucket);
            let Some(before) = version(&lock) else {
                self.core.wait_for_lock(&mut turn, &bucket.lock, inside)?;
                continue;
            };
            let found = match self.search(route.segment, home, key, hash) {
                Ok(Some(place)) => read(place.words).map(Some),
                Ok(None) => Ok(None),
                Err(damage) => Err(damage),
            };
            // The version first, then the route: a split's Release store of the directory
            // entry pairs with the fence in there, too.
            if is_unchanged(&lock, before) && self.is_current(&route) {
                return Ok(found?);
            }
            self.core.wait(&mut turn)?;
        }
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

    pub(super) fn change_of(
        &self,
        key: R::Key<'_>,
        change: &Change<'_, R>,
        want_before: bool,
    ) -> Result<Changed<R>> {
        let value = match *change {
            Change::Insert(value) | Change::Put(value) | Change::Update(value) => Some(value),
            Change::Swap { new, .. } => Some(new),
            Change::Remove => None,
        };
        R::check_size(key, value)?;
        let _writing = self.core.enter_to_change()?;
        let hash = R::hash(&self.core.hasher, key);
        if R::FORM == RecordForm::Bytes
            && let Some(changed) = self.decide_early(key, hash, change, want_before)?
        {
            return Ok(changed);
        }
        // The record's block is written before anything is locked.
        let mut new = match value {
            Some(value) => Some(Prepared {
                index: self,
                words: Some(R::prepare(&self.core, key, value, hash, &points::RECORD)?),
            }),
            None => None,
        };
        let home = self.home(hash);
        loop {
            let route = self.route_inside(hash)?;
            let Some((mut here, mut next)) = self.lock_pair(&route, home)? else { continue };
            if let Some(place) = self.search(route.segment, home, key, hash)? {
                let locks = (&mut here, &mut next);
                return self.change_present(&route, locks, place, change, new, want_before);
            }
            let inserts = matches!(change, Change::Insert(_) | Change::Put(_));
            let Some(prepared) = new.as_mut().filter(|_| inserts) else {
                return Ok(Changed { applied: false, before: None, present: false });
            };
            if self.insert_absent(&route, &mut here, &mut next, hash, prepared.words())? {
                prepared.linked();
                return Ok(Changed { applied: true, before: None, present: false });
            }
            drop((here, next));
            self.make_room(&route, hash)?;
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
        read: impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Result<Option<T>> {
        // The first touch of a segment stores to it and passes the gate, which this
        // thread must not do twice.
        self.route_inside(hash)?;
        self.find_from(key, hash, 1, read)
    }

    /// Locks a key's home bucket and the next one. `None` if the route changed.
    fn lock_pair(
        &self,
        route: &Route<'_>,
        home: u32,
    ) -> Result<Option<(Locked<'_, S>, Locked<'_, S>)>> {
        let next = self.next(home);
        let bucket = |index| self.bucket(route.segment, index);
        // Ascending, so that no ring of waiting threads closes.
        let (here, next) = if home < next {
            let here = self.lock(bucket(home))?;
            (here, self.lock(bucket(next))?)
        } else {
            let next = self.lock(bucket(next))?;
            (self.lock(bucket(home))?, next)
        };
        // A split holds every lock of its segment, so from here on there is none.
        Ok(self.is_current(route).then_some((here, next)))
    }

    fn change_present(
        &self,
        route: &Route<'_>,
        (here, next): (&mut Locked<'_, S>, &mut Locked<'_, S>),
        place: Place<'_>,
        change: &Change<'_, R>,
        new: Option<Prepared<'_, S, R>>,
        want_before: bool,
    ) -> Result<Changed<R>> {
        let core = &self.core;
        let before = if want_before { Some(R::value(core, place.words)?) } else { None };
        let old_block = R::block(core, place.words)?;
        let applied = match *change {
            Change::Insert(_) => false,
            Change::Swap { expected, .. } => R::value_is(core, place.words, expected)?,
            Change::Put(_) | Change::Update(_) | Change::Remove => true,
        };
        if !applied {
            return Ok(Changed { applied, before, present: true });
        }
        if let Some((offset, _)) = old_block {
            core.before_unlink(offset)?;
        }
        let slot = &place.bucket.slots[place.slot];
        if let Some(mut new) = new {
            here.changing();
            let words = new.words();
            if R::FORM == RecordForm::Inline {
                core.memory.store_release(&slot.second, words.second, &points::UPDATE);
            } else {
                core.memory.store_release(&slot.first, words.first, &points::UPDATE);
            }
            core.memory.persist(slot, &points::UPDATE);
            new.linked();
        } else {
            self.remove_at(route, here, next, place)?;
        }
        if let Some((offset, bytes)) = old_block {
            core.retire(offset, bytes);
        }
        Ok(Changed { applied, before, present: true })
    }

    fn remove_at(
        &self,
        route: &Route<'_>,
        here: &mut Locked<'_, S>,
        _next: &mut Locked<'_, S>,
        place: Place<'_>,
    ) -> Result<()> {
        // A stash bucket's or node's own lock guards its metadata against other homes.
        let _overflow_lock = match place.part {
            Part::Bucket => None,
            Part::Stash(_) | Part::Node => Some(self.lock(place.bucket)?),
        };
        here.changing();
        let memory = &self.core.memory;
        let slot = &place.bucket.slots[place.slot];
        let empty = self.empty(route.segment.low);
        memory.store_release(&slot.first, empty, &points::REMOVE);
        memory.persist(slot, &points::REMOVE);
        let meta = self.meta(place.bucket).without(place.slot);
        memory.store_release(&place.bucket.meta, meta.0, &points::VOLATILE);
        match place.part {
            Part::Bucket => {}
            Part::Stash(stash) => {
                self.forget_overflow(here.bucket(), self.hash_of(place.words) as u8, Some(stash));
            }
            Part::Node => {
                self.forget_overflow(here.bucket(), self.hash_of(place.words) as u8, None)
            }
        }
        Ok(())
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
        if memory.load(&slot.first) != empty {
            memory.store(&slot.first, empty, at);
        }
        // Release: the order of the stores is the order in which they become durable.
        memory.store_release(&slot.second, words.second, at);
        memory.store_release(&slot.first, words.first, at);
        memory.flush(slot, at);
    }

    /// Shows a slot's record to readers. The bucket is locked, the record durable.
    pub(super) fn publish(&self, bucket: &Bucket, slot: usize, print: u8, from_before: bool) {
        let memory = &self.core.memory;
        let (word, value) = prints::with(self.prints(bucket), slot, print);
        memory.store_release(&bucket.prints[word], value, &points::VOLATILE);
        let meta = self.meta(bucket).with(slot, from_before);
        // Release: pairs with the Acquire in `meta`.
        memory.store_release(&bucket.meta, meta.0, &points::VOLATILE);
    }

    /// Puts a record whose key is absent somewhere in its segment. `false` if it is full.
    fn insert_absent(
        &self,
        route: &Route<'_>,
        here: &mut Locked<'_, S>,
        next: &mut Locked<'_, S>,
        hash: u64,
        words: SlotWords,
    ) -> Result<bool> {
        let print = hash as u8;
        let empty = self.empty(hash);
        let (home_meta, next_meta) = (self.meta(here.bucket()), self.meta(next.bucket()));
        // Balanced insert: into the emptier of the two.
        let choice = if home_meta.count() <= next_meta.count() {
            home_meta.free_slot().map(|slot| (here.bucket(), slot, false))
        } else {
            next_meta.free_slot().map(|slot| (next.bucket(), slot, true))
        };
        if let Some((bucket, slot, from_before)) = choice {
            self.fill(&bucket.slots[slot], words, empty, &points::INSERT);
            self.publish(bucket, slot, print, from_before);
            return Ok(true);
        }
        // Both are full.
        if self.displace(route, here, next, print, words)? {
            return Ok(true);
        }
        for stash in 0..self.shape.stash {
            let locked = self.lock(self.stash_bucket(route.segment, stash))?;
            if let Some(slot) = self.meta(locked.bucket()).free_slot() {
                let target = locked.bucket();
                here.changing();
                self.fill(&target.slots[slot], words, empty, &points::INSERT_OVERFLOW);
                self.publish(target, slot, print, false);
                self.note_overflow(here.bucket(), print, Some(stash));
                return Ok(true);
            }
        }
        for bucket in self.node_buckets(route.segment) {
            let locked = self.lock(bucket?)?;
            if let Some(slot) = self.meta(locked.bucket()).free_slot() {
                let target = locked.bucket();
                here.changing();
                self.fill(&target.slots[slot], words, empty, &points::INSERT_OVERFLOW);
                self.publish(target, slot, print, false);
                self.note_overflow(here.bucket(), print, None);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes room by moving a record of one of the two buckets to its other one, and
    /// puts the new record in its place.
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
            && let Some(free) = self.meta(target.bucket()).free_slot()
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
            && let Some(free) = self.meta(target.bucket()).free_slot()
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
        from: &Bucket,
        slot: usize,
        to: &Bucket,
        free: usize,
        from_before: bool,
    ) -> Result<()> {
        let words = self.words(&from.slots[slot]);
        if let Some((offset, _)) = R::block(&self.core, words)? {
            self.core.before_unlink(offset)?;
        }
        let empty = self.empty(route.segment.low);
        self.fill(&to.slots[free], words, empty, &points::DISPLACE_COPY);
        let print = (self.prints(from)[slot / 8] >> (slot % 8 * 8)) as u8;
        self.publish(to, free, print, from_before);
        Ok(())
    }

    /// Puts a new record where one was moved away. Emptying the slot and filling it are
    /// one flush: the stores go to one line, the first of them removes the old record.
    fn refill(
        &self,
        route: &Route<'_>,
        bucket: &Bucket,
        slot: usize,
        print: u8,
        words: SlotWords,
        from_before: bool,
    ) {
        let meta = self.meta(bucket).without(slot);
        self.core.memory.store_release(&bucket.meta, meta.0, &points::VOLATILE);
        let empty = self.empty(route.segment.low);
        self.fill(&bucket.slots[slot], words, empty, &points::DISPLACE_FILL);
        self.publish(bucket, slot, print, from_before);
    }

    /// Notes in a home bucket that one of its records is in a stash bucket, or (`None`)
    /// in an overflow node. The bucket is locked, or not yet served.
    pub(super) fn note_overflow(&self, home: &Bucket, print: u8, stash: Option<u32>) {
        let memory = &self.core.memory;
        let meta = self.meta(home);
        let word = memory.load(&home.prints[1]);
        let free = bits(!overflow::valid(word) & ((1 << OVERFLOW_PRINTS) - 1)).next();
        match (stash, free) {
            (Some(stash), Some(index)) => {
                let meta = meta.with_overflow_print(index, print);
                memory.store_release(&home.meta, meta.0, &points::VOLATILE);
                let word = overflow::with(word, index, stash);
                memory.store_release(&home.prints[1], word, &points::VOLATILE);
            }
            _ => {
                let meta = meta.with_others(meta.others() + 1);
                memory.store_release(&home.meta, meta.0, &points::VOLATILE);
            }
        }
    }

    /// Takes back what `note_overflow` noted.
    fn forget_overflow(&self, home: &Bucket, print: u8, stash: Option<u32>) {
        let memory = &self.core.memory;
        let meta = self.meta(home);
        let word = memory.load(&home.prints[1]);
        let noted = stash.and_then(|stash| {
            bits(overflow::valid(word)).find(|&index| {
                meta.overflow_print(index) == print && overflow::stash(word, index) == stash
            })
        });
        // Of two records with one fingerprint in one stash bucket, only one may have a
        // note; which of them is all the same.
        if let Some(index) = noted {
            let word = overflow::without(word, index);
            memory.store_release(&home.prints[1], word, &points::VOLATILE);
        } else if meta.others() < OTHERS_MAX {
            let meta = meta.with_others(meta.others().saturating_sub(1));
            memory.store_release(&home.meta, meta.0, &points::VOLATILE);
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
