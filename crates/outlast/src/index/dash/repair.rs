//! Repairs what a crash left, before a segment is used.

use super::layout::{
    self, BUCKET_BYTES, Kind, NODE_BUCKETS, NODE_BYTES, NodeHeader, SLOTS, SegmentHeader, State,
};
use super::metadata::{Bits, BucketRef, Overflow};
use super::{Addressing, Dash, Segment, bugs, points};
use crate::error::{Damage, Result};
use crate::index::bugs as index_bugs;
use crate::index::fingerprints;
use crate::index::kit::media::{check_block, check_identity, ones};
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::version::LockWord;
use crate::pmem::{Offset, Seam, Word};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

impl<S: Seam, R: SlotRecord, A: Addressing> Dash<S, R, A> {
    /// Checks a segment's extent and its header's identity and state. Returns its first hash and
    /// its state.
    pub(crate) fn check_segment(&self, offset: u64) -> Result<(u64, State), Damage> {
        if A::SEGMENTS_ARE_BLOCKS {
            check_block(&self.core, offset, self.size.bytes())?;
        }
        self.check_header(offset)
    }

    /// Like [`check_segment`](Self::check_segment), but does not check the block that the segment
    /// lies in.
    pub(crate) fn check_header(&self, offset: u64) -> Result<(u64, State), Damage> {
        let memory = &self.core.memory;
        memory.words(offset, self.size.bytes())?;
        let header = memory.at(Offset::<SegmentHeader>::new(offset))?;
        let low = memory.load(&header.low);
        let expected = layout::identity(Kind::Segment, offset, low, self.size.packed());
        check_identity(memory, &header.identity, expected, "a segment")?;
        let word = memory.load(&header.state);
        let state = State::unpack(offset, word)
            .ok_or_else(|| Damage::new(offset + 16, "a segment's state", format!("{word:#x}")))?;
        Ok((low, state))
    }

    /// Returns the identity word at this offset, if it is that of a segment whose first hash is
    /// `low`.
    pub(crate) fn find_segment(&self, offset: u64, low: u64) -> Result<Option<&Word>, Damage> {
        let memory = &self.core.memory;
        let header = memory.at(Offset::<SegmentHeader>::new(offset))?;
        let expected = layout::identity(Kind::Segment, offset, low, self.size.packed());
        Ok((memory.load(&header.identity) == expected).then_some(&header.identity))
    }

    /// Makes a segment that this process has not used yet ready for use: checks its chain, makes
    /// durable what it finds, and rebuilds the metadata. `way` holds the words in the pool that
    /// lead to it, such as directory entries.
    pub(crate) fn make_ready(&self, segment: Segment, way: &[Word]) -> Result<(), Damage> {
        self.check_chain(segment)?;
        // This comes before the repair. Otherwise a second copy could be durably removed while the
        // other copy is only in the caches.
        self.persist_found(segment, way)?;
        self.repair(segment)?;
        self.counters.repaired.add_one();
        Ok(())
    }

    /// After a crash, makes durable everything that results will depend on: the words that lead to
    /// the segment, its header, slots and overflow nodes. When a process dies, its stores stay in
    /// the caches, flushed or not, and first touch finds them there. The blocks that slots link to
    /// need no flush: they were durable before the links were stored.
    fn persist_found(&self, segment: Segment, way: &[Word]) -> Result<(), Damage> {
        if self.core.alloc().old_frontier() == 0 || self.core.options().read_only {
            return Ok(());
        }
        let memory = &self.core.memory;
        let at = &points::REPAIR_FOUND;
        memory.flush_words(way, at);
        memory.flush_words(memory.words(segment.offset, self.size.bytes())?, at);
        for node in self.nodes(segment) {
            memory.flush_words(memory.words(node?, NODE_BYTES)?, at);
        }
        memory.fence(at);
        Ok(())
    }

    /// Resets the locks of a segment and rebuilds its metadata from its slots. Removes second
    /// copies of records, durably. No operation uses the segment yet.
    fn repair(&self, segment: Segment) -> Result<(), Damage> {
        for index in 0..self.size.buckets() {
            self.repair_bucket(segment, self.bucket(segment, index), Some(index))?;
        }
        let mut removed = 0;
        for index in 0..self.size.buckets() {
            removed += self.remove_second_copies(segment, index)?;
        }
        for place in self.overflow_buckets(segment) {
            let (bucket, stash) = place?;
            self.repair_bucket(segment, bucket, None)?;
            removed += self.repair_overflow(segment, bucket, stash)?;
        }
        if removed > 0 {
            // The removals must be durable before the segment is used. Otherwise, if an operation
            // removed the copy that stays, a power loss could bring the record back from the other
            // one.
            self.core.memory.fence(&points::REPAIR_DUPLICATE);
        }
        Ok(())
    }

    /// Checks that each structure in the chain is an overflow node, and that none overlaps another
    /// or the segment. If they overlapped, an operation could lock the same bucket twice.
    fn check_chain(&self, segment: Segment) -> Result<(), Damage> {
        self.follow_chain(segment).1.map_or(Ok(()), Err)
    }

    /// Follows the chain of overflow nodes. Returns those up to the first that fails the checks, and
    /// what is wrong with that one.
    pub(super) fn follow_chain(&self, segment: Segment) -> (Vec<u64>, Option<Damage>) {
        let mut seen = BTreeMap::from([(segment.offset, self.size.bytes())]);
        let mut nodes = Vec::new();
        for node in self.nodes(segment) {
            match node.and_then(|node| self.check_node(node, &mut seen)) {
                Ok(node) => nodes.push(node),
                Err(damage) => return (nodes, Some(damage)),
            }
        }
        (nodes, None)
    }

    /// Checks an overflow node. `seen` has the offsets and sizes of what it must not overlap.
    fn check_node(&self, node: u64, seen: &mut BTreeMap<u64, u64>) -> Result<u64, Damage> {
        let memory = &self.core.memory;
        check_block(&self.core, node, NODE_BYTES)?;
        let header = memory.at(Offset::<NodeHeader>::new(node))?;
        let found = memory.load(&header.identity);
        let before = seen.range(..node + NODE_BYTES).next_back();
        let apart = before.is_none_or(|(at, bytes)| at + bytes <= node);
        seen.insert(node, NODE_BYTES);
        if found != layout::identity(Kind::Node, node, 0, 0) || !apart {
            return Err(Damage::new(node, "an overflow node of its own", format!("{found:#x}")));
        }
        Ok(node)
    }

    /// Returns the record in a slot, by invariant 1, and its hash. No operation changes the segment
    /// meanwhile. `index` is the bucket's number, or `None` in the stash and in nodes. The record
    /// must be at home in the bucket `index` or in the one before it.
    pub(super) fn record_in(
        &self,
        segment: Segment,
        bucket: BucketRef<'_>,
        slot: usize,
        index: Option<u32>,
    ) -> Result<Option<(SlotWords, u64)>, Damage> {
        let words = self.words(&bucket.slots[slot]);
        if words.first == self.empty(segment.low) {
            return Ok(None);
        }
        let hash = self.hash_of(words);
        let home = self.home(hash);
        // Even a record that a split has left behind is in the right bucket.
        if index.is_some_and(|index| home != index && home != self.previous(index)) {
            return Err(Damage::new(
                self.core.memory.offset_of(&bucket.slots[slot]).raw(),
                format!("an empty slot, or a record of bucket {}", index.unwrap_or(0)),
                format!("{:#x} {:#x}", words.first, words.second),
            ));
        }
        if !segment.holds(hash) {
            return Ok(None);
        }
        R::check_link(&self.core, words)?;
        Ok(Some((words, hash)))
    }

    fn repair_bucket(
        &self,
        segment: Segment,
        bucket: BucketRef<'_>,
        index: Option<u32>,
    ) -> Result<(), Damage> {
        let seam = self.core.memory.seam();
        let mut bits = Bits::default();
        let mut words = [0; 2];
        for slot in 0..SLOTS {
            if let Some((_, hash)) = self.record_in(segment, bucket, slot, index)? {
                let from_before = index.is_some_and(|index| self.home(hash) != index);
                bits = bits.with(slot, from_before);
                let (word, value) = fingerprints::with(words, slot, hash as u8);
                words[word] = value;
            }
        }
        if !self.seeded(&index_bugs::LOCKS_KEPT) {
            bucket.metadata.lock(seam).store(0, Ordering::Relaxed);
        }
        for (word, fingerprints) in words.into_iter().enumerate() {
            bucket.metadata.set_fingerprints(seam, word, fingerprints);
        }
        bucket.metadata.set_bits(seam, bits);
        Ok(())
    }

    /// Returns whether one of the slots in `mask` holds a record with this first word. If a crash
    /// left a record twice, both copies have the same words.
    fn has_copy(&self, bucket: BucketRef<'_>, mask: u32, first: u64, fingerprint: u8) -> bool {
        seed!(self, bugs::SECOND_COPY_KEPT => return false);
        let fingerprints = bucket.metadata.fingerprints(self.core.memory.seam());
        let candidates = fingerprints::matching(fingerprints, fingerprint) & mask;
        ones::<usize>(candidates)
            .any(|slot| self.core.memory.load(&bucket.slots[slot].first) == first)
    }

    /// Repairs displacements and compactions that a crash has cut short: removes a guest from a
    /// bucket if its home bucket has the record too. Returns the number of records removed. The
    /// removals are flushed, but not fenced.
    fn remove_second_copies(&self, segment: Segment, index: u32) -> Result<usize, Damage> {
        let bucket = self.bucket(segment, index);
        let home = self.bucket(segment, self.previous(index));
        let at_home = self.bits(home).own();
        let moved = self.bits(bucket).guests();
        let mut removed = 0;
        for slot in ones::<usize>(moved) {
            let words = self.words(&bucket.slots[slot]);
            let fingerprint = self.hash_of(words) as u8;
            if self.has_copy(home, at_home, words.first, fingerprint) {
                self.remove_copy(segment, bucket, slot)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Empties a slot and flushes it, without a fence.
    ///
    /// # Errors
    /// [`Damage`] if no crash can have left the copy: all space is accounted for, so the trace
    /// after the last crash has already repaired this segment.
    fn remove_copy(
        &self,
        segment: Segment,
        bucket: BucketRef<'_>,
        slot: usize,
    ) -> Result<(), Damage> {
        let memory = &self.core.memory;
        let target = &bucket.slots[slot];
        if self.core.alloc().old_frontier() == 0 {
            let at = memory.offset_of(target).raw();
            return Err(Damage::new(at, "each key once", "one a second time"));
        }
        let empty = self.empty(segment.low);
        memory.store_release(&target.first, empty, &points::REPAIR_DUPLICATE);
        memory.flush(target, &points::REPAIR_DUPLICATE);
        bucket.metadata.set_bits(memory.seam(), self.bits(bucket).without(slot));
        Ok(())
    }

    /// Adds the records of a stash bucket or overflow node to the metadata of their home buckets. A
    /// record that is also in one of its two buckets, because a crash cut a compaction short, is
    /// removed from the stash bucket or node instead. Returns the number of records removed. The
    /// removals are flushed, but not fenced.
    fn repair_overflow(
        &self,
        segment: Segment,
        bucket: BucketRef<'_>,
        stash: Option<u32>,
    ) -> Result<usize, Damage> {
        let bits = self.bits(bucket);
        let mut removed = 0;
        for slot in ones::<usize>(bits.allocated()) {
            let words = self.words(&bucket.slots[slot]);
            let hash = self.hash_of(words);
            let index = self.home(hash);
            let home = self.bucket(segment, index);
            let next = self.bucket(segment, self.next(index));
            let fingerprint = hash as u8;
            if self.has_copy(home, self.bits(home).allocated(), words.first, fingerprint)
                || self.has_copy(next, self.bits(next).allocated(), words.first, fingerprint)
            {
                self.remove_copy(segment, bucket, slot)?;
                removed += 1;
            } else {
                // No operation uses the home bucket yet, so there is no lock to hold.
                let seam = self.core.memory.seam();
                let word = home.metadata.lock(seam).load(Ordering::Relaxed);
                let (overflow, bits) =
                    Overflow::of(word).noting(self.bits(home), fingerprint, stash);
                home.metadata.set_bits(seam, bits);
                home.metadata.lock(seam).store(overflow.within(word), Ordering::Relaxed);
            }
        }
        Ok(removed)
    }
}

const _: () = assert!(NODE_BYTES == (NODE_BUCKETS as u64 + 1) * BUCKET_BYTES);
