//! Lookups and changes of one key.

use super::bucket::{BucketRef, own};
use super::table::Table;
use super::{DAMAGED, MOVED, Pht, Route, Variant, bugs, layout, points};
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
use crate::pmem::Seam;
use std::sync::atomic::Ordering;

/// A slot that was found: its bucket, its number in the bucket, and its words.
pub(super) type Found<'m> = (BucketRef<'m>, usize, SlotWords);

// ---- Lookups --------------------------------------------------------------------

impl<S: Seam, R: SlotRecord, V: Variant> Pht<S, R, V> {
    /// Finds the slot of a key in a chain (Algorithm 1). The caller holds the bucket's lock, or checks
    /// its version afterwards.
    #[inline(always)]
    pub(super) fn search<'m>(
        &'m self,
        first: BucketRef<'m>,
        key: impl Sought<R>,
    ) -> Result<Option<Found<'m>>, Damage> {
        for bucket in self.chain(first) {
            let bucket = bucket?;
            for slot in bucket.like(self.seam(), key.hash()) {
                let words = bucket.bucket.slots[slot].read(&self.core.memory);
                if key.is_in(&self.core, words)? || self.seeded(&index_bugs::FINGERPRINT_DECIDES) {
                    return Ok(Some((bucket, slot, words)));
                }
            }
        }
        Ok(None)
    }
}

impl<S: Seam, R: SlotRecord, V: Variant> Optimistic<S, R> for Pht<S, R, V> {
    type Route<'t> = Route<'t>;
    type Lock = V::Lock;
    const SEARCHES_FIRST: bool = true;

    #[inline(always)]
    fn ready_route(&self, hash: u64) -> Option<Route<'_>> {
        self.route_in(self.current(), hash)
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
        route.bucket.prefetch(self.seam(), key.hash);
        let lock = self.lock_of(route.bucket);
        let before = match version(&lock) {
            None if self.seeded(&index_bugs::CHANGING_IGNORED) => lock.load(Ordering::Relaxed),
            None => return Read::Raced,
            Some(before) => before,
        };
        if before & Self::elsewhere() != 0 {
            return Read::Raced;
        }
        let found = self.search(route.bucket, key);
        let found = found.and_then(|found| found.map(|(.., words)| read(words)).transpose());
        // The order of the two checks matters. The blocks of a retired table may already hold
        // something else. The fence in `is_unchanged` pairs with the store that retires the table,
        // so if a read above saw such content, `is_retired`, which comes after that fence, returns
        // true.
        let valid = is_unchanged(&lock, before) && !route.table.is_retired(self.seam());
        Read::of(valid, found)
    }

    fn lock_word<'t>(&'t self, route: &Route<'t>, _: u64) -> (VersionLock<'t, S, V::Lock>, u64) {
        (self.lock_of(route.bucket), route.bucket.offset(&self.core.memory))
    }
}

impl<S: Seam, R: SlotRecord, V: Variant> Lookup<S, R> for Pht<S, R, V> {
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
            route.bucket.prefetch(self.seam(), key.hash);
        }
        Ok(route)
    }

    /// Prefetches the first slot in the chain's first bucket whose fingerprint matches the hash, if
    /// there is one.
    #[inline(always)]
    fn stage_slots<'b>(
        &'b self,
        route: &mut Option<Route<'b>>,
        HashedKey { hash, .. }: HashedKey<'_, R>,
    ) {
        let Some(route) = route else { return };
        if let Some(slot) = route.bucket.like(self.seam(), hash).next() {
            self.seam().prefetch(&route.bucket.bucket.slots[slot]);
        }
    }
}

// ---- Changes --------------------------------------------------------------------

/// Why a change has to wait or to make room.
pub(crate) enum Need<'t> {
    /// The table has no overflow bucket for this chain, or has to be resized first.
    Room(Route<'t>),
    /// The bucket was moved, and the change has to wait until all of this table are.
    End(&'t Table),
}

impl<S: Seam, R: SlotRecord, V: Variant> Update<S, R> for Pht<S, R, V> {
    type Progress<'t> = Option<UnlinkedRecord<'t, S, R>>;
    type Full<'t> = Need<'t>;

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
    ) -> Boxed<Step<R, Need<'t>>> {
        if V::GOES_ON && self.current().next(self.seam()).is_some() && self.missing.is_empty() {
            self.move_some();
        }
        // Until the visit ends, no table that this attempt finds is reused, so the words that it
        // locks are still locks.
        let _visit = self.core.visit();
        let route = self.route(key.hash)?;
        route.bucket.prefetch(self.seam(), key.hash);
        let mut held = self.lock(route.bucket)?;
        if held.word() & MOVED != 0 && !self.seeded(&bugs::MOVED_UNNOTICED) {
            if route.table.next(self.seam()).is_none() {
                return Err(self.missing_at(key.hash).2.into());
            }
            return Ok(if V::GOES_ON { Step::Again } else { Step::Full(Need::End(route.table)) });
        }
        let unsought = plan.inserts && self.seeded(&index_bugs::INSERT_UNCHECKED);
        let found = self.search(route.bucket, key)?.filter(|_| !unsought);
        let Some((bucket, slot, words)) = found else {
            let Some(new) = new.as_mut().filter(|_| plan.inserts) else {
                return Ok(Step::absent(false));
            };
            if self.insert(route.bucket, key.hash, new.words())? {
                new.set_linked();
                return Ok(Step::absent(true));
            }
            if self.is_due(route.table) || !self.insert_overflow(&route, key.hash, new.words())? {
                return Ok(Step::Full(Need::Room(route)));
            }
            new.set_linked();
            return Ok(Step::absent(true));
        };
        let decision = decide(&self.core, plan, words)?;
        if decision.applied {
            held.changing();
            match new {
                Some(new) => {
                    self.replace(bucket, slot, new.words());
                    new.set_linked();
                }
                None => self.remove(bucket, slot, key.hash),
            }
        }
        drop(held);
        Ok(Step::Done(decision.finish(&self.core)))
    }

    #[cold]
    fn grow(&self, _: HashedKey<'_, R>, need: Need<'_>) -> Result<()> {
        match need {
            Need::Room(route) => self.make_room(&route),
            Need::End(table) => self.help_and_wait(table),
        }
    }
}

impl<S: Seam, R: SlotRecord, V: Variant> Pht<S, R, V> {
    /// Returns the flags in a lock word with which a lookup must not read the bucket.
    #[inline(always)]
    pub(super) fn elsewhere() -> u64 {
        if V::GOES_ON { MOVED | DAMAGED } else { DAMAGED }
    }

    /// Inserts a record into a free slot of a locked chain. Returns `false` if there is none.
    #[inline(always)]
    fn insert(&self, first: BucketRef<'_>, hash: u64, words: SlotWords) -> Result<bool, Damage> {
        let (memory, at) = (&self.core.memory, &points::INSERT);
        for bucket in self.chain(first) {
            let bucket = bucket?;
            let Some(free) = bucket.free_slot(self.seam(), hash) else { continue };
            let slot = &bucket.bucket.slots[free];
            if self.seeded(&index_bugs::SHOWN_BEFORE_DURABLE) {
                bucket.set_fingerprint(self.seam(), free, Some(hash));
            }
            slot.fill(memory, words, self.empty(hash), at);
            memory.persist(slot, at);
            bucket.set_fingerprint(self.seam(), free, Some(hash));
            return Ok(true);
        }
        Ok(false)
    }

    /// Inserts a record with a new overflow bucket at the end of a locked chain (3.5.2). Returns
    /// `false` if the table has no overflow bucket left.
    fn insert_overflow(
        &self,
        route: &Route<'_>,
        hash: u64,
        words: SlotWords,
    ) -> Result<bool, Damage> {
        let (memory, at) = (&self.core.memory, &points::NODE_COMMIT);
        let Some(offset) = route.table.take(&self.core)? else { return Ok(false) };
        let new = BucketRef::at(memory, offset)?;
        self.write_bucket(new, None, &[(words, hash)], self.empty(hash), 0, &points::NODE_NEW);
        memory.fence(&points::NODE_NEW);
        let (mut last, mut length) = (route.bucket, 0);
        for bucket in self.chain(route.bucket) {
            (last, length) = (bucket?, length + 1);
        }
        let owner = layout::owner(route.index, route.table.depth);
        seed!(self, bugs::OWNED_EARLY => own(memory, new, owner));
        self.link(last, offset, at);
        memory.flush_words(std::slice::from_ref(&last.bucket.next), at);
        memory.fence(at);
        // This comes after the fence, because an owner says that the link is durable.
        own(memory, new, owner);
        last.set_next(self.seam(), offset);
        if length == 1 {
            route.table.chains.fetch_add(self.seam(), 1, Ordering::Relaxed);
            self.announce_next(route.table);
        }
        route.table.linked.fetch_add(self.seam(), 1, Ordering::Relaxed);
        Ok(true)
    }

    /// Replaces a record's value, durably. The bucket is marked as changing.
    #[inline(always)]
    fn replace(&self, bucket: BucketRef<'_>, slot: usize, words: SlotWords) {
        let (memory, slot) = (&self.core.memory, &bucket.bucket.slots[slot]);
        let empty = || self.empty(self.hash_of(slot.read(memory)));
        slot.update::<S, R>(memory, words, empty, [&points::UPDATE, &points::UPDATE_LINK]);
    }

    /// Removes a record, durably. The bucket is marked as changing.
    #[inline(always)]
    fn remove(&self, bucket: BucketRef<'_>, number: usize, hash: u64) {
        seed!(self, index_bugs::REMOVES_NOTHING => return);
        let (memory, slot) = (&self.core.memory, &bucket.bucket.slots[number]);
        memory.store_release(&slot.first, self.empty(hash), &points::REMOVE);
        memory.persist(slot, &points::REMOVE);
        bucket.set_fingerprint(self.seam(), number, None);
    }
}
