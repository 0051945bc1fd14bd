//! Lookups of keys.

use super::layout::{SLOTS, Slot};
use super::metadata::{Bits, BucketRef, Overflow};
use super::{Addressing, Dash, Route, Segment};
use crate::error::{Boxed, Damage, Result};
use crate::index::bugs;
use crate::index::kit::lock::VersionLock;
use crate::index::kit::lookup::{self, Optimistic, Read};
use crate::index::kit::media::ones;
use crate::index::kit::table::{HashedKey, Lookup, Sought, Wanted};
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::version::{LockWord, is_unchanged, version};
use crate::index::{RecordForm, fingerprints};
use crate::pmem::{Seam, SharedWord};
use std::sync::atomic::Ordering;

/// The part of a segment that a record is in.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// Its home bucket.
    Home,
    /// The bucket after its home bucket.
    Next,
    /// This stash bucket.
    Stash(u32),
    /// An overflow node.
    Node,
}

/// A record that was found, and where.
#[derive(Clone, Copy)]
pub(super) struct Place<'m> {
    pub(super) part: Part,
    pub(super) bucket: BucketRef<'m>,
    pub(super) slot: usize,
    pub(super) words: SlotWords,
}

/// The slot that most likely holds a key.
pub(crate) struct Likely<'m, S: Seam> {
    /// The lock of the key's home.
    lock: VersionLock<'m, S>,
    /// The lock word as it was before the metadata were read.
    before: u64,
    slot: &'m Slot,
}

/// The state that one stage of a lookup passes on to the next. If the hot path does not apply,
/// `None` is passed on instead.
pub(crate) enum Staged<'m, S: Seam> {
    /// The home bucket and the bucket after it.
    Pair(BucketRef<'m>, BucketRef<'m>),
    Slot(Likely<'m, S>),
}

impl<S: Seam, R: SlotRecord, A: Addressing> Lookup<S, R> for Dash<S, R, A> {
    type Batch<'t> = ();
    type Staged<'b> = Option<Staged<'b, S>>;

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
    ) -> Result<Option<Staged<'b, S>>> {
        let Some(route) = self.ready_route(hash) else { return Ok(None) };
        let home = self.home(hash);
        let here = self.bucket(route.segment, home);
        let next = self.bucket(route.segment, self.next(home));
        self.seam().prefetch(here.metadata);
        self.seam().prefetch(next.metadata);
        self.prefetch_home(&route, hash);
        Ok(Some(Staged::Pair(here, next)))
    }

    /// Prefetches the first slot in the two buckets that can hold a record of this hash, if there
    /// is one.
    #[inline(always)]
    fn stage_slots<'b>(
        &'b self,
        staged: &mut Option<Staged<'b, S>>,
        HashedKey { hash, .. }: HashedKey<'_, R>,
    ) {
        let Some(Staged::Pair(here, next)) = staged.take() else { return };
        let lock = self.lock_of(here);
        let Some(before) = version(&lock) else { return };
        let at_home = self.candidates(here, self.bits(here).own(), hash as u8);
        let slot = match ones::<usize>(at_home).next() {
            Some(slot) => &here.slots[slot],
            None => {
                let in_next = self.candidates(next, self.bits(next).guests(), hash as u8);
                let Some(slot) = ones::<usize>(in_next).next() else { return };
                &next.slots[slot]
            }
        };
        self.seam().prefetch(slot);
        *staged = Some(Staged::Slot(Likely { lock, before, slot }));
    }

    #[inline(always)]
    fn stage_record<'b>(&'b self, staged: &mut Option<Staged<'b, S>>, _: HashedKey<'_, R>) {
        if R::FORM == RecordForm::Bytes
            && let Some(Staged::Slot(likely)) = staged
        {
            R::prefetch(&self.core, self.words(likely.slot));
        }
    }

    #[inline(always)]
    fn find_staged<'b>(
        &'b self,
        (): &'b (),
        staged: Option<Staged<'b, S>>,
        key: HashedKey<'_, R>,
    ) -> Boxed<Option<R::Owned>> {
        if let Some(Staged::Slot(Likely { lock, before, slot })) = staged {
            let words = self.words(slot);
            // If the key is found, the route need not be checked again; see `read_once`.
            if let Ok(true) = R::matches(&self.core, words, key.key, key.hash)
                && let Ok(value) = R::value(&self.core, words)
                && is_unchanged(&lock, before)
            {
                return Ok(Some(value));
            }
        }
        self.value(key)
    }
}

impl<S: Seam, R: SlotRecord, A: Addressing> Dash<S, R, A> {
    // ---- Reading ----------------------------------------------------------------

    /// Reads the words of a slot. They belong together only if the version of the record's home has
    /// not changed meanwhile.
    #[inline(always)]
    pub(super) fn words(&self, slot: &Slot) -> SlotWords {
        slot.read(&self.core.memory)
    }

    #[inline(always)]
    pub(super) fn bits(&self, bucket: BucketRef<'_>) -> Bits {
        bucket.metadata.bits(self.core.memory.seam())
    }

    /// Returns the slots among `mask` whose fingerprint is `fingerprint`.
    #[inline(always)]
    pub(super) fn candidates(&self, bucket: BucketRef<'_>, mask: u32, fingerprint: u8) -> u32 {
        fingerprints::matching(bucket.metadata.fingerprints(self.core.memory.seam()), fingerprint)
            & mask
    }

    /// Prefetches the line where a record of this hash most likely is, or will be, so that the line
    /// arrives together with the metadata.
    #[inline(always)]
    pub(super) fn prefetch_home(&self, route: &Route<'_, A>, hash: u64) {
        let bucket = self.bucket(route.segment, self.home(hash));
        self.core.memory.seam().prefetch(&bucket.slots[Self::first_slot(hash)]);
    }

    /// Looks for a key in its home bucket and the next one.
    ///
    /// This compares the fingerprints of both before it reads any slot, without a branch on which
    /// of the two holds the record: that is effectively random, so the branch would often be
    /// mispredicted.
    #[inline(always)]
    pub(super) fn probe_pair<'m>(
        &self,
        (bucket, bits): (BucketRef<'m>, Bits),
        (next, next_bits): (BucketRef<'m>, Bits),
        key: impl Sought<R>,
    ) -> Result<Option<Place<'m>>, Damage> {
        let fingerprint = key.hash() as u8;
        let here = self.candidates(bucket, bits.own(), fingerprint);
        let there = self.candidates(next, next_bits.guests(), fingerprint);
        for bit in ones::<usize>(here | there << SLOTS) {
            let (part, bucket, slot) = if bit < SLOTS {
                (Part::Home, bucket, bit)
            } else {
                (Part::Next, next, bit % SLOTS)
            };
            let words = self.words(&bucket.slots[slot]);
            if key.is_in(&self.core, words)? || self.seeded(&bugs::FINGERPRINT_DECIDES) {
                return Ok(Some(Place { part, bucket, slot, words }));
            }
        }
        Ok(None)
    }

    /// Looks for a key in a segment. `lock` is the lock word of the home bucket, which no other
    /// thread changes meanwhile.
    pub(super) fn search(
        &self,
        segment: Segment,
        lock: u64,
        key: impl Sought<R>,
    ) -> Result<Option<Place<'_>>, Damage> {
        let home = self.home(key.hash());
        let bucket = self.bucket(segment, home);
        let next = self.bucket(segment, self.next(home));
        let bits = self.bits(bucket);
        match self.probe_pair((bucket, bits), (next, self.bits(next)), key)? {
            None if !Overflow::of(lock).is_none() => {
                self.search_overflow(segment, bits, Overflow::of(lock), key)
            }
            found => Ok(found),
        }
    }

    #[cold]
    pub(super) fn search_overflow(
        &self,
        segment: Segment,
        bits: Bits,
        overflow: Overflow,
        key: impl Sought<R>,
    ) -> Result<Option<Place<'_>>, Damage> {
        let fingerprint = key.hash() as u8;
        let probe = |bucket, part| {
            for slot in
                ones::<usize>(self.candidates(bucket, self.bits(bucket).allocated(), fingerprint))
            {
                let words = self.words(&bucket.slots[slot]);
                if key.is_in(&self.core, words)? {
                    return Ok(Some(Place { part, bucket, slot, words }));
                }
            }
            Ok(None)
        };
        for index in ones::<usize>(overflow.valid()) {
            let stash = overflow.stash(index);
            if bits.overflow_fingerprint(index) == fingerprint && stash < self.size.stash {
                let bucket = self.stash_bucket(segment, stash);
                if let Some(place) = probe(bucket, Part::Stash(stash))? {
                    return Ok(Some(place));
                }
            }
        }
        if overflow.others() == 0 {
            return Ok(None);
        }
        for place in self.overflow_buckets(segment) {
            let (bucket, stash) = place?;
            if let Some(place) = probe(bucket, stash.map_or(Part::Node, Part::Stash))? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }
}

impl<S: Seam, R: SlotRecord, A: Addressing> Optimistic<S, R> for Dash<S, R, A> {
    type Route<'t> = Route<'t, A>;
    type Lock = SharedWord;

    #[inline(always)]
    fn ready_route(&self, hash: u64) -> Option<Route<'_, A>> {
        self.ready_route(hash)
    }

    fn any_route(&self, hash: u64, inside: usize) -> Result<Route<'_, A>> {
        // The first touch of a segment stores to it and passes the gate, which a thread must not do
        // twice.
        if inside > 0 { self.route_inside(hash) } else { self.route(hash) }
    }

    #[inline(always)]
    fn read_once<T>(
        &self,
        route: &Route<'_, A>,
        key: HashedKey<'_, R>,
        read: &mut impl FnMut(SlotWords) -> Result<T, Damage>,
    ) -> Read<T> {
        let home = self.home(key.hash);
        self.prefetch_home(route, key.hash);
        let bucket = self.bucket(route.segment, home);
        let next = self.bucket(route.segment, self.next(home));
        let lock = self.lock_of(bucket);
        let before = match version(&lock) {
            None if self.seeded(&bugs::CHANGING_IGNORED) => lock.load(Ordering::Relaxed),
            None => return Read::Raced,
            Some(before) => before,
        };
        let (bits, next_bits) = (self.bits(bucket), self.bits(next));
        // A split removes the moved records from the old segment's metadata before the version
        // changes. So a record that is found belongs there, and the route need not be checked. If
        // nothing is found, the route is checked after the version: the fence in `is_unchanged`
        // also pairs with the split's Release store of the directory entry.
        let found = match self.probe_pair((bucket, bits), (next, next_bits), key) {
            Ok(Some(place)) => {
                let found = read(place.words).map(Some);
                return Read::of(is_unchanged(&lock, before), found);
            }
            Ok(None) if Overflow::of(before).is_none() => {
                return Read::of(is_unchanged(&lock, before) && self.is_current(route), Ok(None));
            }
            Ok(None) => self.search_overflow(route.segment, bits, Overflow::of(before), key),
            damaged => damaged,
        };
        let found = found.and_then(|place| place.map(|place| read(place.words)).transpose());
        Read::of(is_unchanged(&lock, before) && self.is_current(route), found)
    }

    fn lock_word<'t>(&'t self, route: &Route<'t, A>, hash: u64) -> (VersionLock<'t, S>, u64) {
        let bucket = self.bucket(route.segment, self.home(hash));
        (self.lock_of(bucket), self.core.memory.offset_of(bucket.slots).raw())
    }
}

const _: () = assert!(SLOTS <= 16, "fingerprints of a bucket fit two words");
