//! What caches need: samples, removals by hash, records with marks. See [`EvictingIndex`].
//!
//! Its changes are a put and a removal, with their commit points. A mark is stored without a flush while
//! the record's block cannot be reused: before a slot links to it, under the lock of the record's home, or
//! while the epoch is pinned. So no mark gets into the block of something else.

use super::layout::{LINE_SLOTS, Slot};
use super::lookup::Part;
use super::metadata::Overflow;
use super::{Addressing, Dash, Segment, points};
use crate::error::{Boxed, Damage, Result};
use crate::index::evicting::{EvictingIndex, Part as Wanted, Sampled, Verdict};
use crate::index::kit::change::{Plan, enter_with_room, go_on};
use crate::index::kit::lock::Held;
use crate::index::kit::lookup::read_valid;
use crate::index::kit::media::ones;
use crate::index::kit::table::{HashedKey, Sought};
use crate::index::kit::unlinked::UnlinkedRecord;
use crate::index::kit::walk::scan_part;
use crate::index::record::{SlotRecord, SlotWords, mark_of, set_mark_of};
use crate::index::version::{is_unchanged, version};
use crate::index::{Change, Changed, Cursor, Previous};
use crate::pmem::Seam;
use crate::pool::core::Core;
use crate::reclaim::Pin;

/// The most bytes of a block that are prefetched.
const PREFETCHED: u64 = 512;

/// Any record with this hash.
#[derive(Debug, Clone, Copy)]
struct AnyOf {
    hash: u64,
}

impl<R: SlotRecord> Sought<R> for AnyOf {
    fn hash(self) -> u64 {
        self.hash
    }

    /// The word of byte strings: their records are those that a cache has.
    fn word(self) -> u64 {
        self.hash
    }

    fn is_in<S: Seam>(self, core: &Core<S>, words: SlotWords) -> Result<bool, Damage> {
        Ok(R::slot_hash(&core.hasher, words) == self.hash)
    }
}

/// Keeps the blocks that are found meanwhile from being reused.
struct Pinned<'c, S: Seam> {
    core: &'c Core<S>,
    pin: Option<Pin>,
}

impl<S: Seam> Drop for Pinned<'_, S> {
    fn drop(&mut self) {
        if let Some(pin) = self.pin.take() {
            self.core.epochs().unpin(pin);
        }
    }
}

impl<S: Seam, R: SlotRecord, A: Addressing> EvictingIndex<R> for Dash<S, R, A> {
    fn sample(
        &self,
        cursor: &mut Cursor,
        parts: u32,
        found: &mut Vec<Sampled>,
        choose: &mut dyn FnMut(&mut [Sampled]),
    ) -> Result<()> {
        let memory = &self.core.memory;
        found.clear();
        // Before the slots are read: the blocks that they link to then are not reused.
        let _pinned = Pinned { core: &self.core, pin: Some(self.core.pin()) };
        self.core.while_open(|| {
            self.prefetch_parts(cursor, parts);
            for _ in 0..parts {
                scan_part(cursor, self.size.buckets(), |at, cursor| match cursor {
                    Some(cursor) => Ok(self.sample_home(at, cursor, found)?.range()),
                    None => Ok(self.route(at)?.segment.range()),
                })?;
            }
            // The blocks were prefetched.
            for record in &mut *found {
                record.read = mark_of(memory, record.offset);
                record.mark = record.read;
            }
            Ok::<_, crate::error::Error>(())
        })?;
        choose(found);
        let mut changed = found.iter().filter(|record| record.mark != record.read).peekable();
        if changed.peek().is_some()
            && let Some(inside) = self.core.pass_to_change()
        {
            changed.for_each(|record| set_mark_of(memory, record.offset, record.mark));
            inside.leave();
        }
        Ok(())
    }

    fn evict(&self, hash: u64, decide: &mut dyn FnMut(u32) -> Verdict) -> Boxed<Option<u64>> {
        match self.core.pass_to_change() {
            Some(inside) => {
                let evicted = self.evict_inside(hash, decide);
                inside.leave();
                evicted
            }
            None => {
                let _writing = self.core.enter_to_change()?;
                self.evict_inside(hash, decide)
            }
        }
    }

    fn put_marked(&self, key: R::Key<'_>, value: R::Value<'_>, mark: u32) -> Boxed<Changed<R>> {
        R::check_size(key, Some(value))?;
        let plan = Plan::of(Change::Put(value), Previous::WANTED);
        let hashed = HashedKey::new(&self.core, key);
        let put = match self.core.pass_to_change() {
            Some(inside) => {
                let put = self.put_inside(hashed, value, &plan, mark);
                inside.leave();
                put
            }
            None => {
                let _writing = self.core.enter_to_change()?;
                self.put_inside(hashed, value, &plan, mark)
            }
        };
        put.or_else(|error| enter_with_room(self, key, plan, error))
    }

    fn prefetch(&self, hash: u64, part: Wanted) {
        let Some(route) = self.ready_route(hash) else { return };
        let (seam, home) = (self.seam(), self.home(hash));
        let here = self.bucket(route.segment, home);
        let next = self.bucket(route.segment, self.next(home));
        match part {
            Wanted::Metadata => {
                seam.prefetch(here.metadata);
                seam.prefetch(next.metadata);
                self.prefetch_home(&route, hash);
            }
            Wanted::Slots => {
                let at_home = self.candidates(here, self.bits(here).own(), hash as u8);
                let in_next = self.candidates(next, self.bits(next).guests(), hash as u8);
                ones::<usize>(at_home).for_each(|slot| seam.prefetch(&here.slots[slot]));
                ones::<usize>(in_next).for_each(|slot| seam.prefetch(&next.slots[slot]));
            }
            // Whatever a race makes of this, it is a prefetch. All of the block, since the next record is
            // written there.
            Wanted::Block => {
                if let Ok(Some(place)) = self.search(route.segment, 0, AnyOf { hash })
                    && let Ok((offset, bytes)) = R::extent(&self.core, place.words)
                    && let Ok(words) = self.core.memory.words(offset, bytes.min(PREFETCHED) & !7)
                {
                    words.iter().step_by(8).for_each(|word| seam.prefetch(word));
                }
            }
        }
    }
}

impl<S: Seam, R: SlotRecord, A: Addressing> Dash<S, R, A> {
    fn evict_inside(
        &self,
        hash: u64,
        decide: &mut dyn FnMut(u32) -> Verdict,
    ) -> Boxed<Option<u64>> {
        let memory = &self.core.memory;
        let mut next_first = false;
        loop {
            let route = self.route_inside(hash)?;
            let home = self.home(hash);
            self.prefetch_home(&route, hash);
            let (bucket, next) =
                (self.bucket(route.segment, home), self.bucket(route.segment, self.next(home)));
            let next_lock = if next_first { Some(self.lock(next)?) } else { None };
            let mut here = self.lock(bucket)?;
            let Some(place) = self.search(route.segment, here.word(), AnyOf { hash })? else {
                // A split takes every lock of its segment.
                if self.is_current(&route) {
                    return Ok(None);
                }
                continue;
            };
            let Some((offset, bytes)) = R::block(&self.core, place.words)? else { return Ok(None) };
            match decide(mark_of(memory, offset)) {
                Verdict::Keep => return Ok(None),
                Verdict::Mark(mark) => {
                    set_mark_of(memory, offset, mark);
                    return Ok(None);
                }
                Verdict::Evict => {}
            }
            self.core.before_unlink(offset)?;
            // As in `change_locked`.
            if next_lock.is_none() && matches!(place.part, Part::Next) {
                let Some(next) = self.hold_next::<false>(next, home)? else {
                    next_first = true;
                    continue;
                };
                here.changing();
                self.empty_slot(hash, place.bucket, place.slot);
                next.unlock();
            } else if matches!(place.part, Part::Home | Part::Next) {
                here.changing();
                self.empty_slot(hash, place.bucket, place.slot);
            } else {
                self.remove_overflowed(&mut here, hash, place)?;
            }
            drop((here, next_lock));
            self.core.retire_for_reuse(offset, bytes);
            return Ok(Some(bytes));
        }
    }

    #[inline(always)]
    fn put_inside(
        &self,
        key: HashedKey<'_, R>,
        value: R::Value<'_>,
        plan: &Plan<'_, R>,
        mark: u32,
    ) -> Boxed<Changed<R>> {
        let new = UnlinkedRecord::prepare(&self.core, key.key, value, key.hash, &points::RECORD)?;
        let (offset, _) = R::extent(&self.core, new.words())?;
        set_mark_of(&self.core.memory, offset, mark);
        go_on(self, key, plan, &mut (Some(new), false))
    }

    /// Prefetches the buckets of the next parts, as far as they are in one segment.
    fn prefetch_parts(&self, cursor: &Cursor, parts: u32) {
        let Some(route) = self.ready_route(cursor.low) else { return };
        for part in cursor.part..(cursor.part + parts + 1).min(self.size.buckets()) {
            let bucket = self.bucket(route.segment, part);
            self.seam().prefetch(bucket.metadata);
            bucket.slots.iter().step_by(LINE_SLOTS).for_each(|slot| self.seam().prefetch(slot));
        }
    }

    /// Adds the records whose home is the bucket `cursor.part`, in the segment that holds the hash `at`.
    /// Returns the segment.
    fn sample_home(&self, at: u64, cursor: &Cursor, found: &mut Vec<Sampled>) -> Result<Segment> {
        let start = found.len();
        // A hash of the same segment, with that home.
        let hash = at | u64::from(cursor.part) << 8;
        let read = read_valid(self, hash, 0, |route| {
            found.truncate(start);
            let lock = self.lock_of(self.bucket(route.segment, cursor.part));
            let before = version(&lock)?;
            let read = self.each_at_home(route, Overflow::of(before), cursor, |words, _: &Slot| {
                let (offset, _) = R::extent(&self.core, words)?;
                if let Ok([head, ..]) = self.core.memory.words(offset, 16) {
                    self.seam().prefetch(head);
                    let hash = R::slot_hash(&self.core.hasher, words);
                    found.push(Sampled { hash, mark: 0, read: 0, offset });
                }
                Ok(())
            });
            let valid = is_unchanged(&lock, before) && self.is_current(route);
            valid.then(|| read.map(|()| route.segment))
        })?;
        Ok(read?)
    }
}
