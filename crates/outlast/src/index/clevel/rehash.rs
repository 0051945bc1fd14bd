//! Rehashing: the records of the oldest level move to newer ones.

use super::layout::{Bucket, SLOTS, link, root, slot, state};
use super::levels::{Context, DRAINED, Guard, Level, TOUCHED, filter_bits, tag_of};
use super::records::unknown_state;
use super::{Clevel, bugs, points};
use crate::error::Result;
use crate::index::record::BlockRecord;
use crate::pmem::{Seam, Shared, Word};
use std::sync::atomic::{AtomicU32, Ordering};

/// A number that is unique among the threads that are rehashing the table.
struct Maker<'m, S: Seam> {
    seam: &'m S,
    all: &'m Shared<AtomicU32>,
    number: u32,
}

impl<'m, S: Seam> Maker<'m, S> {
    /// Takes the smallest free number, if there is one.
    fn take(seam: &'m S, all: &'m Shared<AtomicU32>) -> Option<Self> {
        let mut taken = all.load(seam, Ordering::Relaxed);
        loop {
            let number = taken.trailing_ones();
            if number >= slot::MAKERS {
                return None;
            }
            // Acquire: pairs with the Release below, so every copy that the number's previous
            // holder made has been confirmed or withdrawn.
            let order = (Ordering::Acquire, Ordering::Relaxed);
            match all.compare_exchange(seam, taken, taken | 1 << number, order) {
                Ok(_) => return Some(Maker { seam, all, number }),
                Err(found) => taken = found,
            }
        }
    }
}

impl<S: Seam> Drop for Maker<'_, S> {
    fn drop(&mut self) {
        self.all.fetch_and(self.seam, !(1 << self.number), Ordering::Release);
    }
}

/// The outcome of copying a record.
pub(super) enum Copied {
    /// A slot in a newer level leads to it, and is durable after the next fence.
    Yes,
    /// The record has changed: retry.
    Changed,
    /// No slot is free for it.
    NoRoom,
}

impl<S: Seam, R: BlockRecord> Clevel<S, R> {
    /// Empties one bucket of the oldest level. Returns `None` when all of it is frozen, durably, or
    /// the hash of a record for which there is no room. Several threads can do this concurrently.
    fn drain_bucket(
        &self,
        guard: &Guard<'_, S>,
        context: &Context,
        bucket: &Bucket,
        maker: u32,
    ) -> Result<Option<u64>> {
        let memory = &self.core.memory;
        self.prefetch_copies(context, bucket);
        loop {
            let mut copied = [0; SLOTS];
            for (place, copied) in bucket.slots.iter().zip(&mut copied) {
                match self.drain_slot(guard, context, place, maker) {
                    Ok(Ok(word)) => *copied = word,
                    stopped => {
                        // The work so far is kept. This fence makes the copies durable, and with them
                        // the slots that are frozen or now lead directly to their records.
                        memory.persist(bucket, &points::FREEZE);
                        return stopped.map(Result::err);
                    }
                }
            }
            // Copies must be durable before the slots that they were made from are frozen.
            memory.fence(&points::CONFIRM);
            let mut left = false;
            for (place, copied) in bucket.slots.iter().zip(copied) {
                let gone = copied == slot::FROZEN
                    || self.exchange(place, copied, slot::FROZEN, &points::FREEZE).is_ok();
                left |= !gone;
            }
            if !left {
                memory.persist(bucket, &points::FREEZE);
                return Ok(None);
            }
        }
    }

    /// Prefetches what copying the slots of a bucket needs, for all slots together: first the
    /// records, and then the buckets that their copies can go to.
    fn prefetch_copies(&self, context: &Context, bucket: &Bucket) {
        let links = || bucket.slots.iter().map(|place| self.core.memory.load(place));
        links().filter(|&word| slot::leads(word)).for_each(|word| {
            self.prefetch_record(slot::offset(word));
        });
        for offset in links().filter(|&word| slot::leads(word)).map(slot::offset) {
            let hash = || {
                let found = self.state(offset, self.head(offset).ok()?).ok()?;
                let kind = state::kind(found);
                let is_record = kind == state::LIVE || kind == state::UNDECIDED;
                let (.., hash) = is_record.then(|| self.keyed(offset, found))?.ok()?;
                Some(hash)
            };
            let Some(hash) = hash() else { continue };
            for level in context.open_levels().take(context.levels.len() - 1) {
                self.prefetch_lines(level, hash);
            }
        }
    }

    /// Prepares a slot of the oldest level for freezing. Returns the slot's word, which the caller
    /// exchanges for a frozen one. Returns the record's hash as `Err` if a copy finds no room.
    fn drain_slot(
        &self,
        guard: &Guard<'_, S>,
        context: &Context,
        place: &Word,
        maker: u32,
    ) -> Result<Result<u64, u64>> {
        let memory = &self.core.memory;
        loop {
            let word = self.look(place);
            if !slot::is_link(word) {
                return Ok(Ok(word));
            }
            if slot::mark(word) == slot::COPY {
                // The thread that made this copy will make another one elsewhere.
                return Ok(Ok(word));
            }
            let offset = slot::offset(word);
            match slot::mark(word) {
                slot::ANNOUNCED if self.seeded(&bugs::UNDECIDED_FROZEN) => return Ok(Ok(word)),
                slot::ANNOUNCED => {
                    self.settle(offset, state::KILLED)?;
                    let found = self.state(offset, self.head(offset)?)?;
                    if state::kind(found) == state::KILLED {
                        return Ok(Ok(word));
                    }
                    let pending = slot::with_mark(word, slot::PENDING);
                    let _ = self.exchange(place, word, pending, &points::MET_DECIDED);
                    continue;
                }
                slot::PENDING => {
                    memory.persist(place, &points::MET_SLOT);
                    let plain = slot::with_mark(word, slot::PLAIN);
                    let _ = self.exchange(place, word, plain, &points::UNMARK);
                    continue;
                }
                _ => {}
            }
            let (tail, head, found) = self.tail(offset)?;
            if state::kind(found) == state::DEAD {
                if found & state::PENDING != 0 {
                    memory.persist(&head.state, &points::MET_STATE);
                }
                return Ok(Ok(word));
            }
            if state::kind(found) == state::KILLED {
                // Only an announced record can be. No copy of this one would ever be confirmed.
                return Err(unknown_state(tail, found).into());
            }
            if tail != offset {
                let direct = slot::word(tail, slot::tag(word));
                let _ = self.exchange(place, word, direct, &points::FREEZE);
                continue;
            }
            let (.., hash) = self.keyed(offset, found)?;
            if self.seeded(&bugs::REHASH_REMOVES_FIRST) {
                let _ = self.exchange(place, word, slot::FROZEN, &points::FREEZE);
                memory.persist(place, &points::FREEZE);
            }
            match self.copy(guard, context, offset, hash, maker)? {
                Copied::Yes => return Ok(Ok(word)),
                Copied::Changed => {}
                Copied::NoRoom => return Ok(Err(hash)),
            }
        }
    }

    /// Makes sure that a slot of a newer level leads to this record of the oldest level.
    ///
    /// Only the maker confirms its copy. If any thread could confirm it, the following could
    /// happen:
    ///
    /// 1. One thread copies, sees the record in effect, and stops.
    /// 2. A removal withdraws the copy.
    /// 3. Another thread, which had also seen the record in effect, copies it again into the same
    ///    slot.
    /// 4. The first thread continues and confirms that copy. Now a slot leads to a block that is
    ///    about to be reused.
    pub(super) fn copy(
        &self,
        guard: &Guard<'_, S>,
        context: &Context,
        offset: u64,
        hash: u64,
        maker: u32,
    ) -> Result<Copied> {
        let memory = &self.core.memory;
        let plain = slot::word(offset, tag_of(hash));
        if let Some(place) = self.standing(guard, context, plain, hash)? {
            // Another thread has made the copy, and the copy may not be durable.
            unless_seeded!(self, bugs::OTHER_COPY_UNFLUSHED => memory.flush(place, &points::CONFIRM));
            return Ok(Copied::Yes);
        }
        let copy = slot::copy(plain, maker);
        let Some(place) = self.claim(guard, context, 1, hash, copy, &points::COPY)? else {
            return Ok(Copied::NoRoom);
        };
        // The state is read after the copy is visible. A thread that replaces or removes the record
        // from here on finds the copy. If one has done so before, the copy is withdrawn, and no
        // thread has followed it.
        let found = self.head(offset).and_then(|head| self.state(offset, head));
        let is_record = found
            .as_ref()
            .is_ok_and(|&found| matches!(state::kind(found), state::LIVE | state::UNDECIDED));
        if !is_record && !self.seeded(&bugs::COPY_UNCHECKED) {
            self.withdraw(place, copy);
            return Ok(found.map(|_| Copied::Changed)?);
        }
        if self.exchange(place, copy, plain, &points::CONFIRM).is_err() {
            return Ok(Copied::Changed);
        }
        memory.flush(place, &points::CONFIRM);
        Ok(Copied::Yes)
    }

    /// Returns a slot of a newer level whose word is already `plain`, if there is one.
    fn standing<'g>(
        &'g self,
        guard: &'g Guard<'_, S>,
        context: &'g Context,
        plain: u64,
        hash: u64,
    ) -> Result<Option<&'g Word>> {
        let bits = filter_bits(slot::tag(plain));
        let newer = context.levels.len() - 1;
        for level in context.open_levels().take(newer) {
            for bucket in level.pair(hash) {
                let line = self.line(guard, level, bucket)?;
                if line.filter.load(self.seam(), Ordering::SeqCst) & bits != bits {
                    continue;
                }
                let mut places = line.bucket.slots.iter();
                if let Some(place) = places.find(|place| self.look(place) == plain) {
                    return Ok(Some(place));
                }
            }
            let group = level.group(hash);
            if self.chain_filter(guard, level, group)?.load(self.seam(), Ordering::SeqCst) & bits
                != bits
            {
                continue;
            }
            for node in self.nodes(level, group) {
                let mut places = self.node_buckets(node?).flat_map(|bucket| &bucket.slots);
                if let Some(place) = places.find(|place| self.look(place) == plain) {
                    return Ok(Some(place));
                }
            }
        }
        Ok(None)
    }

    /// Empties one part of the oldest level: a bucket, or the chain of a group. Returns the hash of
    /// a record for which there is no room, if there is one.
    fn drain_part(
        &self,
        guard: &Guard<'_, S>,
        context: &Context,
        level: &Level,
        part: u64,
        maker: u32,
    ) -> Result<Option<u64>> {
        if part < level.buckets() {
            if part + 1 == level.buckets() && self.seeded(&bugs::PARTS_ONE_SHORT) {
                return Ok(None);
            }
            let line = self.line(guard, level, part)?;
            if line.filter.load(self.seam(), Ordering::SeqCst) & DRAINED == 0 {
                let full = self.drain_bucket(guard, context, line.bucket, maker)?;
                if full.is_some() {
                    return Ok(full);
                }
                self.set_filter(line.filter, TOUCHED | DRAINED);
            }
            return Ok(None);
        }
        let group = part - level.buckets();
        let filter = self.chain_filter(guard, level, group)?;
        if filter.load(self.seam(), Ordering::SeqCst) & DRAINED != 0 {
            return Ok(None);
        }
        let mut end = self.chain_head(level, group);
        loop {
            for node in self.nodes(level, group) {
                let node = node?;
                for bucket in self.node_buckets(node) {
                    let full = self.drain_bucket(guard, context, bucket, maker)?;
                    if full.is_some() {
                        return Ok(full);
                    }
                }
                end = &self.node(node)?.next;
            }
            let closed = self.exchange(end, 0, link::CLOSED, &points::CLOSE);
            if matches!(closed, Ok(_) | Err(link::CLOSED)) {
                break;
            }
        }
        self.set_filter(filter, TOUCHED | DRAINED);
        Ok(None)
    }

    /// Empties some parts of the oldest level, and drops it once it is empty. Returns `false` if no
    /// level is being emptied or all numbers of makers are taken; otherwise there may be more to
    /// do.
    ///
    /// Up to [`slot::MAKERS`] threads do this concurrently. If that many threads stop forever
    /// inside this function, no other thread can continue.
    pub(super) fn rehash(&self, parts: u64) -> Result<bool> {
        let full = {
            let Some(maker) = Maker::take(self.seam(), &self.makers) else { return Ok(false) };
            let guard = self.guard(true);
            let context = self.context(&guard)?;
            let Some(level) = context.draining() else { return Ok(false) };
            if self.seeded(&bugs::REHASH_NOT_RESUMED) && !level.is_fresh() {
                return Ok(false);
            }
            let full = self.rehash_parts(&guard, context, level, parts, maker.number)?;
            let seen = match self.seeded(&bugs::LEVEL_DROPPED_EARLY) {
                true => &level.next,
                false => &level.verified,
            };
            let done = seen.load(self.seam(), Ordering::Relaxed) >= level.parts();
            if full.is_none() && !done {
                return Ok(true);
            }
            full.map(|hash| (hash, context.word)).ok_or(context.word)
        };
        match full {
            Ok((hash, seen)) => self.make_room(hash, seen)?,
            Err(seen) => {
                self.drop_level(seen)?;
                // The drop may have used the reserve.
                self.keep_reserve_to_drain()?;
            }
        }
        Ok(true)
    }

    fn rehash_parts(
        &self,
        guard: &Guard<'_, S>,
        context: &Context,
        level: &Level,
        parts: u64,
        maker: u32,
    ) -> Result<Option<u64>> {
        let mark = self.root(root::PROGRESS);
        for _ in 0..parts {
            // Each thread takes different parts. If one of them begins a part and does not finish
            // it, the others find and finish it when they check all parts at the end.
            let part = level.next.fetch_add(self.seam(), 1, Ordering::Relaxed);
            if part < level.parts() {
                let full = self.drain_part(guard, context, level, part, maker)?;
                if full.is_some() {
                    return Ok(full);
                }
                let word = root::pack_progress(level.offset, part);
                self.core.memory.store(mark, word, &points::PROGRESS);
                continue;
            }
            let part = level.verified.load(self.seam(), Ordering::Relaxed);
            let early = self.seeded(&bugs::LEVEL_DROPPED_EARLY);
            if part >= level.parts() || early {
                break;
            }
            let full = self.drain_part(guard, context, level, part, maker)?;
            if full.is_some() {
                return Ok(full);
            }
            let order = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = level.verified.compare_exchange(self.seam(), part, part + 1, order);
        }
        Ok(None)
    }
}
