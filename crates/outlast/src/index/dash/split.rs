//! Growth of segments: splits and overflow nodes.

use super::layout::{
    self, BUCKET_BYTES, Bucket, Kind, LINE_SLOTS, NODE_BUCKETS, NODE_BYTES, NodeHeader, SLOTS,
    SegmentHeader, Slot, State,
};
use super::lock::Locked;
use super::metadata::{Bits, BucketRef, Metadata, Overflow};
use super::{Addressing, Dash, Route, Segment, SegmentSize, bugs, points};
use crate::error::{Damage, Result};
use crate::index::RecordForm;
use crate::index::bugs as index_bugs;
use crate::index::kit::lock::Guarded;
use crate::index::kit::media::ones;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::version::LockWord;
use crate::pmem::{LINE, Memory, Offset, Point, Seam};
use std::sync::atomic::Ordering;

/// A bucket that is built in DRAM before it is written.
#[derive(Clone)]
struct NewBucket {
    bits: Bits,
    fingerprints: [u8; SLOTS],
    overflow: Overflow,
    /// Slots without a record are empty.
    slots: [SlotWords; SLOTS],
}

impl NewBucket {
    fn empty(empty: u64) -> NewBucket {
        NewBucket {
            bits: Bits::default(),
            fingerprints: [0; SLOTS],
            overflow: Overflow::default(),
            slots: [SlotWords { first: empty, second: 0 }; SLOTS],
        }
    }

    fn put(&mut self, slot: usize, words: SlotWords, hash: u64, from_before: bool) {
        self.slots[slot] = words;
        self.fingerprints[slot] = hash as u8;
        self.bits = self.bits.with(slot, from_before);
    }

    fn take_out(&mut self, slot: usize, empty: u64) {
        self.slots[slot].first = empty;
        self.bits = self.bits.without_all(1 << slot);
    }
}

/// Writes a bucket of a structure that nothing links to yet, and its metadata, without a flush.
fn write_bucket<S: Seam>(
    memory: &Memory<S>,
    offset: u64,
    draft: &NewBucket,
    at: &'static Point,
) -> Result<(), Damage> {
    let bucket = memory.at(Offset::<Bucket>::new(offset))?;
    for (slot, words) in bucket.slots.iter().zip(&draft.slots) {
        slot.write(memory, *words, at);
    }
    // SAFETY: the bucket lies inside the memory, at a multiple of its own size.
    let metadata: &Metadata = unsafe { memory.shadow_unchecked(offset) };
    let seam = memory.seam();
    for (word, fingerprints) in draft.fingerprints.as_chunks().0.iter().enumerate() {
        metadata.set_fingerprints(seam, word, u64::from_le_bytes(*fingerprints));
    }
    metadata.set_bits(seam, draft.bits);
    metadata.lock(seam).store(draft.overflow.within(0), Ordering::Relaxed);
    Ok(())
}

/// A segment that is built in DRAM before it is written.
struct NewSegment {
    low: u64,
    depth: u32,
    chain: u64,
    empty: u64,
    buckets: Vec<NewBucket>,
}

impl NewSegment {
    fn new(size: SegmentSize, low: u64, depth: u32, empty: u64) -> NewSegment {
        let buckets = vec![NewBucket::empty(empty); (size.buckets() + size.stash) as usize];
        NewSegment { low, depth, chain: 0, empty, buckets }
    }

    /// Writes the segment and flushes it, without a fence.
    fn write<S: Seam>(
        &self,
        memory: &Memory<S>,
        size: SegmentSize,
        offset: u64,
        at: &'static Point,
    ) -> Result<(), Damage> {
        let header = memory.at(Offset::<SegmentHeader>::new(offset))?;
        let identity = layout::identity(Kind::Segment, offset, self.low, size.packed());
        memory.store(&header.identity, identity, at);
        memory.store(&header.low, self.low, at);
        let state = State { depth: self.depth, partner: 0 };
        memory.store(&header.state, state.pack(offset), at);
        memory.store(&header.chain, self.chain, at);
        for (i, draft) in self.buckets.iter().enumerate() {
            let bucket = offset + (1 + i as u64) * BUCKET_BYTES;
            write_bucket(memory, bucket, draft, at)?;
        }
        memory.flush_words(&memory.words(offset, 32)?[..4], at);
        let buckets = memory.words(offset + BUCKET_BYTES, size.bytes() - BUCKET_BYTES)?;
        memory.flush_words(buckets, at);
        Ok(())
    }
}

/// Writes a segment without records and flushes it, without a fence.
pub(crate) fn write_empty<S: Seam>(
    memory: &Memory<S>,
    size: SegmentSize,
    segment: Segment,
    empty: u64,
    at: &'static Point,
) -> Result<(), Damage> {
    let new = NewSegment::new(size, segment.low, segment.depth, empty);
    new.write(memory, size, segment.offset, at)
}

/// A record that is in the stash or in an overflow node.
struct Overflowed<'m> {
    bucket: BucketRef<'m>,
    slot: usize,
    words: SlotWords,
    hash: u64,
    /// `None` in an overflow node.
    stash: Option<u32>,
}

/// Lines that were stored to, to be flushed once each.
#[derive(Default)]
struct Lines(Vec<u64>);

impl Lines {
    /// Adds the line of an offset.
    fn add(&mut self, offset: u64) {
        self.0.push(offset / LINE);
    }

    /// Flushes the lines and clears the list, without a fence.
    fn flush<S: Seam>(&mut self, memory: &Memory<S>, at: &'static Point) {
        self.0.sort_unstable();
        self.0.dedup();
        for line in self.0.drain(..) {
            // The lines were found to be inside the memory. Each begins with a slot.
            if let Ok(slot) = memory.at(Offset::<Slot>::new(line * LINE)) {
                memory.flush(slot, at);
            }
        }
    }
}

impl<S: Seam, R: SlotRecord, A: Addressing> Dash<S, R, A> {
    // ---- Split ------------------------------------------------------------------

    /// Splits a segment in two by the next bit of the hash. Does nothing if `route` is not current
    /// any more: the segment was split, or the directory doubled.
    pub(crate) fn split(&self, route: &Route<'_, A>, hash: u64) -> Result<()> {
        let segment = route.segment;
        let mut new = A::place_new(self, segment)?;
        let mut nodes = Vec::new();
        loop {
            let mut locks = self.lock_all(segment)?;
            if !self.is_current(route) && !self.seeded(&index_bugs::SPLIT_NOT_RECHECKED) {
                return Ok(());
            }
            // The new segment never needs more overflow nodes than the old one has.
            let needed = self.nodes(segment).collect::<Result<Vec<_>, _>>()?.len();
            if nodes.len() >= needed {
                self.split_locked(segment, &mut new, &mut nodes, &mut locks)?;
                debug_assert!(segment.holds(hash));
                return Ok(());
            }
            drop(locks);
            while nodes.len() < needed {
                nodes.push(UnlinkedBlock::allocate(&self.core, NODE_BYTES)?);
            }
        }
    }

    /// Locks every bucket of a segment. This also excludes other writers from its stash and nodes.
    fn lock_all(&self, segment: Segment) -> Result<Vec<Guarded<Locked<'_, S>>>> {
        (0..self.size.buckets()).map(|i| self.lock(self.bucket(segment, i))).collect()
    }

    /// Splits a segment whose buckets are all locked. The upper half goes into a new block, and
    /// into as many of the nodes as it needs.
    fn split_locked(
        &self,
        old: Segment,
        block: &mut UnlinkedBlock<'_, S>,
        nodes: &mut [UnlinkedBlock<'_, S>],
        locks: &mut [Guarded<Locked<'_, S>>],
    ) -> Result<()> {
        let memory = &self.core.memory;
        let bit = 1 << (63 - old.depth);
        let new = Segment { offset: block.offset(), depth: old.depth + 1, low: old.low | bit };
        let mut draft = NewSegment::new(self.size, new.low, new.depth, self.empty(new.low));
        let mut moved: Vec<u32> = Vec::with_capacity(locks.len());
        for (lock, bucket) in locks.iter().zip(&mut draft.buckets) {
            moved.push(self.draft_moved(lock.bucket, bit, bucket));
        }
        for index in 0..self.size.buckets() {
            self.draft_near(&mut draft, index as usize);
        }
        let (leaving, staying): (Vec<_>, Vec<_>) =
            self.overflowed(old)?.into_iter().partition(|o| o.hash & bit != 0);
        let used = self.place_overflow(&mut draft, &leaving, nodes)?;
        // Overflow records that stay are marked too, because `clean_up` moves some of them within
        // the segment.
        let staying_too = !self.seeded(&bugs::STAYING_UNMARKED);
        self.mark_moved(locks, leaving.iter().chain(staying.iter().filter(|_| staying_too)))?;
        let at = &points::SPLIT_NEW;
        draft.write(memory, self.size, new.offset, at)?;
        memory.fence(at);

        let header = memory.at(Offset::<SegmentHeader>::new(old.offset))?;
        let partner = if self.seeded(&index_bugs::SPLIT_UNNAMED) { 0 } else { new.offset };
        let state = State { depth: new.depth, partner };
        let at = &points::SPLIT_COMMIT;
        memory.store_release(&header.state, state.pack(old.offset), at);
        block.set_linked();
        nodes[..used].iter_mut().for_each(UnlinkedBlock::set_linked);
        memory.persist(&header.state, at);
        A::publish_split(self, Segment { depth: new.depth, ..old }, new, || {
            // From here until the old segment is cleaned up, its readers wait, because other
            // threads can already change the upper half in the new segment.
            locks.iter_mut().for_each(|lock| lock.changing());
        })?;
        let state = State { depth: new.depth, partner: 0 };
        memory.store_release(&header.state, state.pack(old.offset), &points::SPLIT_DONE);
        self.counters.splits.add_one();
        self.clean_up(Segment { depth: new.depth, ..old }, locks, &moved, &leaving, &staying)
    }

    /// Copies to a draft those records of a bucket whose hashes have this bit set. They keep their
    /// slots, so there is room for each. Returns a bit for each of these slots.
    fn draft_moved(&self, bucket: BucketRef<'_>, bit: u64, draft: &mut NewBucket) -> u32 {
        let bits = self.bits(bucket);
        let mut records = [(SlotWords { first: 0, second: 0 }, 0); SLOTS];
        let mut moved = 0;
        // Which records move is effectively random, so a branch on that would often be
        // mispredicted.
        for slot in ones::<usize>(bits.allocated()) {
            let words = self.words(&bucket.slots[slot]);
            let hash = self.hash_of(words);
            records[slot] = (words, hash);
            moved |= u32::from(hash & bit != 0) << slot;
        }
        for slot in ones::<usize>(moved) {
            let (words, hash) = records[slot];
            draft.put(slot, words, hash, bits.guests() & 1 << slot != 0);
        }
        moved
    }

    /// Compacts a draft's bucket: moves records to the lines that their hashes name, most of which
    /// have room now.
    fn draft_near(&self, draft: &mut NewSegment, index: usize) {
        let bucket = &draft.buckets[index];
        let mut astray = bucket.bits.guests();
        for slot in ones::<usize>(bucket.bits.own()) {
            let first = Self::first_slot(self.hash_of(bucket.slots[slot]));
            astray |= u32::from(slot / LINE_SLOTS != first / LINE_SLOTS) << slot;
        }
        for slot in ones::<usize>(astray) {
            let words = draft.buckets[index].slots[slot];
            let hash = self.hash_of(words);
            let (home, first) = (self.home(hash) as usize, Self::first_slot(hash));
            if let Some(free) = draft.buckets[home].bits.free_slot_in_line(first) {
                draft.buckets[index].take_out(slot, draft.empty);
                draft.buckets[home].put(free, words, hash, false);
            }
        }
    }

    /// Returns the records in a segment's stash buckets and overflow nodes.
    fn overflowed(&self, segment: Segment) -> Result<Vec<Overflowed<'_>>> {
        let mut found = Vec::new();
        for place in self.overflow_buckets(segment) {
            let (bucket, stash) = place?;
            let bits = self.bits(bucket);
            for slot in ones::<usize>(bits.allocated()) {
                let words = self.words(&bucket.slots[slot]);
                found.push(Overflowed { bucket, slot, words, hash: self.hash_of(words), stash });
            }
        }
        Ok(found)
    }

    /// Finds places in a new segment for the records that leave the old segment's stash and nodes.
    /// Writes as many overflow nodes as this takes, and returns their number.
    fn place_overflow(
        &self,
        draft: &mut NewSegment,
        leaving: &[Overflowed<'_>],
        nodes: &[UnlinkedBlock<'_, S>],
    ) -> Result<usize> {
        let buckets = self.size.buckets() as usize;
        let mut in_nodes = Vec::new();
        'records: for record in leaving {
            let home = self.home(record.hash);
            let next = self.next(home);
            let first = Self::first_slot(record.hash);
            for (bucket, from_before) in [(home, false), (next, true)] {
                let bucket = &mut draft.buckets[bucket as usize];
                if let Some(slot) = bucket.bits.free_slot(first) {
                    bucket.put(slot, record.words, record.hash, from_before);
                    continue 'records;
                }
            }
            let stash = (0..self.size.stash as usize)
                .find_map(|s| Some((s, draft.buckets[buckets + s].bits.free_slot(first)?)));
            let home = home as usize;
            if let Some((stash, slot)) = stash {
                draft.buckets[buckets + stash].put(slot, record.words, record.hash, false);
                draft.buckets[home].note(record.hash as u8, Some(stash as u32));
            } else {
                draft.buckets[home].note(record.hash as u8, None);
                in_nodes.push(record);
            }
        }
        let per_node = NODE_BUCKETS as usize * SLOTS;
        let used = in_nodes.len().div_ceil(per_node);
        if used > nodes.len() {
            let found = format!("{} records for them", in_nodes.len());
            let expected = format!("{} overflow nodes that are enough", nodes.len());
            let at = self.core.memory.offset_of(in_nodes[0].bucket.slots).raw();
            return Err(Damage::new(at, expected, found).into());
        }
        for (i, records) in in_nodes.chunks(per_node).enumerate() {
            let mut node = vec![NewBucket::empty(draft.empty); NODE_BUCKETS as usize];
            for (j, record) in records.iter().enumerate() {
                node[j / SLOTS].put(j % SLOTS, record.words, record.hash, false);
            }
            let next = if i + 1 < used { nodes[i + 1].offset() } else { 0 };
            let at = &points::SPLIT_NODE;
            write_node(&self.core.memory, nodes[i].offset(), next, &node, at)?;
        }
        draft.chain = if used > 0 { nodes[0].offset() } else { 0 };
        Ok(used)
    }

    /// After a crash, until all space is accounted for, marks for the trace the blocks of all
    /// records in the locked buckets and in `overflowed`, because the split can move any of them.
    fn mark_moved<'o>(
        &self,
        locks: &[Guarded<Locked<'_, S>>],
        overflowed: impl Iterator<Item = &'o Overflowed<'o>>,
    ) -> Result<()> {
        if self.core.alloc().old_frontier() == 0 {
            return Ok(());
        }
        let in_buckets = locks.iter().flat_map(|lock| {
            let bucket = lock.bucket;
            ones::<usize>(self.bits(bucket).allocated())
                .map(move |slot| self.words(&bucket.slots[slot]))
        });
        if R::FORM == RecordForm::Bytes {
            for words in in_buckets.chain(overflowed.map(|o| o.words)) {
                // This uses only the link, so that a damaged block does not fail the split.
                self.core.before_unlink(R::extent(&self.core, words)?.0)?;
            }
        }
        Ok(())
    }

    /// After a split: removes the moved records from the old segment's metadata, and compacts the
    /// records that stay. All buckets are locked, and marked as changing.
    fn clean_up(
        &self,
        segment: Segment,
        locks: &mut [Guarded<Locked<'_, S>>],
        moved: &[u32],
        left: &[Overflowed<'_>],
        staying: &[Overflowed<'_>],
    ) -> Result<()> {
        let memory = &self.core.memory;
        let empty = self.empty(segment.low);
        for (lock, &moved) in locks.iter_mut().zip(moved) {
            let metadata = lock.bucket.metadata;
            metadata.set_bits(memory.seam(), metadata.bits(memory.seam()).without_all(moved));
            lock.forget_all_overflow();
        }
        for record in left {
            let bits = self.bits(record.bucket).without_all(1 << record.slot);
            record.bucket.metadata.set_bits(memory.seam(), bits);
        }
        self.compact(segment, locks, staying, empty)
    }

    /// Returns a segment's overflow nodes, marked for the trace, if none of them holds a record,
    /// and otherwise an empty list.
    fn empty_nodes(&self, segment: Segment) -> Result<Vec<u64>, Damage> {
        for place in self.overflow_buckets(segment) {
            let (bucket, stash) = place?;
            if stash.is_none() && self.bits(bucket).count() > 0 {
                return Ok(Vec::new());
            }
        }
        let nodes = self.nodes(segment).collect::<Result<Vec<_>, _>>()?;
        nodes.iter().try_for_each(|&node| self.core.before_unlink(node))?;
        Ok(nodes)
    }

    /// Compacts a segment, durably: moves guests to the line of their home bucket that their hash
    /// names, and records in the stash or in nodes back into one of their two buckets, wherever
    /// there is room. Retires the overflow nodes if none of them holds a record now. All buckets
    /// are locked, and marked as changing.
    fn compact(
        &self,
        segment: Segment,
        locks: &mut [Guarded<Locked<'_, S>>],
        staying: &[Overflowed<'_>],
        empty: u64,
    ) -> Result<()> {
        let memory = &self.core.memory;
        // The slots that records leave, and the lines to be flushed next.
        let mut from = Vec::new();
        let mut lines = Lines::default();
        let mut copy = |bucket: BucketRef<'_>, slot: usize, words, hash: u64, from_before| {
            bucket.slots[slot].fill(memory, words, empty, &points::COMPACT_COPY);
            self.publish(bucket, slot, hash as u8, from_before);
            lines.add(memory.offset_of(&bucket.slots[slot]).raw());
        };
        for index in 0..self.size.buckets() {
            let next = locks[self.next(index) as usize].bucket;
            for slot in ones::<usize>(self.bits(next).guests()) {
                let words = self.words(&next.slots[slot]);
                let hash = self.hash_of(words);
                let bucket = locks[index as usize].bucket;
                if let Some(free) = self.bits(bucket).free_slot_in_line(Self::first_slot(hash)) {
                    copy(bucket, free, words, hash, false);
                    from.push((next, slot));
                }
            }
        }
        for record in staying {
            let home = self.home(record.hash);
            let first = Self::first_slot(record.hash);
            let room =
                [(home, false), (self.next(home), true)].into_iter().find_map(|(b, from)| {
                    let bucket = locks[b as usize].bucket;
                    Some((bucket, self.bits(bucket).free_slot(first)?, from))
                });
            if let Some((bucket, slot, from_before)) = room {
                copy(bucket, slot, record.words, record.hash, from_before);
                from.push((record.bucket, record.slot));
            } else {
                locks[home as usize].note_overflow(record.hash as u8, record.stash);
            }
        }
        // The copies must be durable before the slots that they were made from are emptied.
        if !from.is_empty() {
            lines.flush(memory, &points::COMPACT_COPY);
            memory.fence(&points::COMPACT_COPY);
        }
        for (bucket, slot) in &from {
            memory.store_release(&bucket.slots[*slot].first, empty, &points::COMPACT_CLEAR);
            lines.add(memory.offset_of(&bucket.slots[*slot]).raw());
            // No thread can take the slot before the locks are released.
            bucket.metadata.set_bits(memory.seam(), self.bits(*bucket).without_all(1 << slot));
        }
        lines.flush(memory, &points::COMPACT_CLEAR);
        let found = self.empty_nodes(segment);
        let nodes = found.as_deref().unwrap_or_default();
        if !nodes.is_empty() {
            let header = memory.at(Offset::<SegmentHeader>::new(segment.offset))?;
            memory.store_release(&header.chain, 0, &points::NODES_GONE);
            unless_seeded!(self, bugs::NODES_FREED_EARLY => memory.flush(&header.chain, &points::NODES_GONE));
        }
        if !from.is_empty() || !nodes.is_empty() {
            memory.fence(&points::COMPACT_CLEAR);
        }
        // A lookup or an iteration that is still in a node retries, because all homes are marked as
        // changing. Other walks are in a visit, and the nodes are kept until it ends.
        nodes.iter().for_each(|&node| self.core.retire_visited(node, NODE_BYTES));
        found?;
        Ok(())
    }

    // ---- Overflow nodes ---------------------------------------------------------

    /// Adds an overflow node to a full segment, unless another thread has split the segment or made
    /// room in its stash or nodes. Returns the segment's number of nodes if this thread has added
    /// one, otherwise `None`.
    pub(crate) fn extend_chain(&self, route: &Route<'_, A>) -> Result<Option<usize>> {
        let memory = &self.core.memory;
        let mut block = UnlinkedBlock::allocate(&self.core, NODE_BYTES)?;
        // No thread can insert into the node before its link is durable.
        let _locks = self.lock_all(route.segment)?;
        if !self.is_current(route) {
            return Ok(None);
        }
        for place in self.overflow_buckets(route.segment) {
            if self.bits(place?.0).free_slot(0).is_some() {
                return Ok(None);
            }
        }
        let header = memory.at(Offset::<SegmentHeader>::new(route.segment.offset))?;
        let next = memory.load(&header.chain);
        let empty = NewBucket::empty(self.empty(route.segment.low));
        let node = vec![empty; NODE_BUCKETS as usize];
        write_node(memory, block.offset(), next, &node, &points::NODE_NEW)?;
        memory.fence(&points::NODE_NEW);
        // Release: pairs with the load in `nodes`.
        memory.store_release(&header.chain, block.offset(), &points::NODE_COMMIT);
        memory.persist(&header.chain, &points::NODE_COMMIT);
        block.set_linked();
        Ok(Some(self.nodes(route.segment).count()))
    }

    /// Yields the offsets of a segment's overflow nodes, each checked to lie inside the memory.
    pub(super) fn nodes(&self, segment: Segment) -> impl Iterator<Item = Result<u64, Damage>> {
        let memory = &self.core.memory;
        let header = memory.at(Offset::<SegmentHeader>::new(segment.offset));
        let mut next = header.map_or(0, |header| memory.load_seq_cst(&header.chain));
        // A chain cannot have more nodes than fit into the memory.
        let mut left = memory.len() / NODE_BYTES;
        std::iter::from_fn(move || {
            let node = std::mem::take(&mut next);
            // The chain was intact when the segment was first touched. In a damaged file, something
            // else may have overwritten it since.
            (node != 0).then(|| {
                memory.words(node, NODE_BYTES)?;
                left = left.checked_sub(1).ok_or_else(|| endless_chain(node))?;
                let header = memory.at(Offset::<NodeHeader>::new(node))?;
                next = memory.load_seq_cst(&header.next);
                Ok(node)
            })
        })
    }

    /// Yields a segment's stash buckets with their numbers, and then the buckets of its overflow
    /// nodes.
    pub(super) fn overflow_buckets(
        &self,
        segment: Segment,
    ) -> impl Iterator<Item = Result<(BucketRef<'_>, Option<u32>), Damage>> {
        let stashes =
            (0..self.size.stash).map(move |i| Ok((self.stash_bucket(segment, i), Some(i))));
        let in_nodes = self.nodes(segment).flat_map(move |node| {
            (1..=u64::from(NODE_BUCKETS))
                .map(move |index| Ok((self.bucket_at(node.clone()? + index * BUCKET_BYTES)?, None)))
        });
        stashes.chain(in_nodes)
    }

    /// Yields all buckets of a segment: first those that can be a home, with their numbers, and
    /// then those of the overflow.
    pub(super) fn all_buckets(
        &self,
        segment: Segment,
    ) -> impl Iterator<Item = Result<(BucketRef<'_>, Option<u32>), Damage>> {
        let own = (0..self.size.buckets()).map(move |i| Ok((self.bucket(segment, i), Some(i))));
        own.chain(self.overflow_buckets(segment).map(|place| Ok((place?.0, None))))
    }
}

#[cold]
fn endless_chain(node: u64) -> Damage {
    Damage::new(node, "a chain of overflow nodes that ends", "more nodes than there can be")
}

/// Writes an overflow node and flushes it, without a fence.
fn write_node<S: Seam>(
    memory: &Memory<S>,
    offset: u64,
    next: u64,
    buckets: &[NewBucket],
    at: &'static Point,
) -> Result<(), Damage> {
    let header = memory.at(Offset::<NodeHeader>::new(offset))?;
    memory.store(&header.identity, layout::identity(Kind::Node, offset, 0, 0), at);
    memory.store(&header.next, next, at);
    for (i, draft) in buckets.iter().enumerate() {
        write_bucket(memory, offset + (1 + i as u64) * BUCKET_BYTES, draft, at)?;
    }
    memory.flush_words(memory.words(offset, NODE_BYTES)?, at);
    Ok(())
}

impl NewBucket {
    /// Like `Locked::note_overflow`, but in a draft.
    fn note(&mut self, fingerprint: u8, stash: Option<u32>) {
        (self.overflow, self.bits) = self.overflow.noting(self.bits, fingerprint, stash);
    }
}
