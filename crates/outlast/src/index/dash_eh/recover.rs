//! First touch: repairs what a crash left before a segment is used.

use super::layout::{
    self, BUCKET_BYTES, Kind, NODE_BUCKETS, NODE_BYTES, NodeHeader, SLOTS, SegmentHeader, State,
};
use super::notes::{BucketRef, Meta, Overflow};
use super::{DashEh, Route, Segment, Structure, points};
use crate::error::{Damage, Result};
use crate::index::bugs as index_bugs;
use crate::index::dash_eh::bugs;
use crate::index::kit::media::{check_block, check_identity, ones};
use crate::index::prints;
use crate::index::record::{Record, SlotWords};
use crate::index::version::LockWord;
use crate::pmem::{Offset, Seam, Word};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

impl<S: Seam, R: Record> DashEh<S, R> {
    /// Touches the segment of a hash for the first time. The caller has passed the gate.
    #[cold]
    pub(super) fn first_touch(&self, hash: u64) -> Result<Route<'_>> {
        let structure = self.core.memory.seam().lock(&self.structure);
        loop {
            if let Some(route) = self.known_route(hash) {
                return Ok(route);
            }
            let entry = &self.entries_of(&structure, hash, structure.depth)?[0];
            let offset = self.core.memory.load(entry);
            let (low, state) = self.check_segment(offset)?;
            if state.partner != 0 && !self.seeded(&index_bugs::HALF_SPLIT_SERVED) {
                self.complete_split(&structure, offset, low, state)?;
                continue;
            }
            let segment = Segment { offset, depth: state.depth, low };
            if let Some((entry, other)) = self.foreign_entry(&structure, segment, hash)? {
                // A split of `other` may have set only some of its entries before a crash. Its new
                // segment is used only once all of them are set.
                match self.check_segment(other) {
                    Ok((low, state)) if state.partner == offset => {
                        self.complete_split(&structure, other, low, state)?;
                        continue;
                    }
                    _ => {
                        let expected = format!("the segment {offset:#x} of depth {}", state.depth);
                        return Err(Damage::new(entry, expected, format!("{other:#x}")).into());
                    }
                }
            }
            self.check_chain(segment)?;
            // This comes before the repair. Otherwise a second copy could be durably removed while
            // the other copy is only in the caches.
            self.persist_found(&structure, segment)?;
            self.repair(segment)?;
            self.fill_entries(segment);
            self.counters.repaired.add_one();
        }
    }

    /// Returns the directory entries in PM of the hashes that begin with the first `depth` bits of
    /// `low`.
    pub(super) fn entries_of(
        &self,
        structure: &Structure,
        low: u64,
        depth: u32,
    ) -> Result<&[Word], Damage> {
        let entries = self.directory_entries(structure.directory, structure.depth)?;
        let first = (low >> (64 - structure.depth)) as usize;
        Ok(&entries[first..first + (1 << (structure.depth - depth))])
    }

    /// Checks a segment's header: its extent, identity and state.
    fn check_segment(&self, offset: u64) -> Result<(u64, State), Damage> {
        let memory = &self.core.memory;
        check_block(&self.core, offset, self.shape.segment_bytes())?;
        let header = memory.at(Offset::<SegmentHeader>::new(offset))?;
        let low = memory.load(&header.low);
        let expected = layout::identity(Kind::Segment, offset, low, self.shape.packed());
        check_identity(memory, &header.identity, expected, "a segment")?;
        let word = memory.load(&header.state);
        let state = State::unpack(offset, word)
            .ok_or_else(|| Damage::new(offset + 16, "a segment's state", format!("{word:#x}")))?;
        Ok((low, state))
    }

    /// Checks a segment's range against the directory. Returns the first entry in the range that
    /// points elsewhere, and where it points.
    fn foreign_entry(
        &self,
        structure: &Structure,
        segment: Segment,
        hash: u64,
    ) -> Result<Option<(u64, u64)>, Damage> {
        let Segment { offset, depth, low } = segment;
        if depth > structure.depth || low << depth != 0 || !segment.holds(hash) {
            return Err(Damage::new(
                offset + 8,
                format!("a segment that holds hash {hash:#x}"),
                format!("first hash {low:#x}, depth {depth}"),
            ));
        }
        Ok(self.entries_of(structure, low, depth)?.iter().find_map(|entry| {
            let found = self.core.memory.load(entry);
            (found != offset).then(|| (self.core.memory.offset_of(entry).raw(), found))
        }))
    }

    /// Completes a split that has committed: sets the directory entries of the upper half.
    ///
    /// It sets only those that still point to the old segment. An earlier process may have split
    /// the new segment further without ever touching the old one.
    fn complete_split(
        &self,
        structure: &Structure,
        offset: u64,
        low: u64,
        state: State,
    ) -> Result<(), Damage> {
        let memory = &self.core.memory;
        let bit = 1 << (64 - state.depth);
        let (partner_low, partner_state) = self.check_segment(state.partner)?;
        if state.depth > structure.depth
            || low & (bit | (bit - 1)) != 0
            || partner_low != low | bit
            || partner_state.depth < state.depth
        {
            return Err(Damage::new(
                offset + 16,
                format!("a split of the segment at {low:#x} that matches its partner"),
                format!("{state:?}, partner at {partner_low:#x}: {partner_state:?}"),
            ));
        }
        // The state may never have been flushed. It must be durable before the entries that depend
        // on it.
        let header = memory.at(Offset::<SegmentHeader>::new(offset))?;
        memory.persist(&header.state, &points::REPAIR_STATE);
        let upper = self.entries_of(structure, partner_low, state.depth)?;
        for entry in upper {
            if memory.load(entry) == offset || self.seeded(&bugs::SPLIT_REDONE_BLINDLY) {
                memory.store(entry, state.partner, &points::REPAIR_DIRECTORY);
            }
        }
        memory.flush_words(upper, &points::REPAIR_DIRECTORY);
        memory.fence(&points::REPAIR_DIRECTORY);
        let done = State { depth: state.depth, partner: 0 };
        memory.store_release(&header.state, done.pack(offset), &points::SPLIT_DONE);
        Ok(())
    }

    /// After a crash, makes durable everything that results will depend on: the segment's directory
    /// entries, header, slots and overflow nodes. When a process dies, its stores stay in the
    /// caches, flushed or not, and first touch finds them there. Blocks that they link to were
    /// durable before them.
    fn persist_found(&self, structure: &Structure, segment: Segment) -> Result<(), Damage> {
        if self.core.alloc().old_frontier() == 0 || self.core.options().read_only {
            return Ok(());
        }
        let memory = &self.core.memory;
        let at = &points::REPAIR_FOUND;
        memory.flush_words(self.entries_of(structure, segment.low, segment.depth)?, at);
        memory.flush_words(memory.words(segment.offset, self.shape.segment_bytes())?, at);
        for node in self.nodes(segment) {
            memory.flush_words(memory.words(node?, NODE_BYTES)?, at);
        }
        memory.fence(at);
        Ok(())
    }

    /// Resets the locks of a segment and makes its metadata from its slots. Removes second copies,
    /// durably. No operation uses the segment yet.
    fn repair(&self, segment: Segment) -> Result<(), Damage> {
        for index in 0..self.shape.buckets() {
            self.repair_bucket(segment, self.bucket(segment, index), Some(index))?;
        }
        let mut removed = 0;
        for index in 0..self.shape.buckets() {
            removed += self.remove_second_copies(segment, index)?;
        }
        for place in self.overflow_buckets(segment) {
            let (bucket, stash) = place?;
            self.repair_bucket(segment, bucket, None)?;
            removed += self.repair_overflow(segment, bucket, stash)?;
        }
        if removed > 0 {
            // The removals must be durable before the segment is used. Otherwise a record that is
            // removed from its other place could come back from this one.
            self.core.memory.fence(&points::REPAIR_DUPLICATE);
        }
        Ok(())
    }

    /// Checks the overflow nodes: each must be one, and none may overlap another or the segment,
    /// because then buckets would be locked twice.
    fn check_chain(&self, segment: Segment) -> Result<(), Damage> {
        let memory = &self.core.memory;
        let mut seen = BTreeMap::from([(segment.offset, self.shape.segment_bytes())]);
        for node in self.nodes(segment) {
            let node = node?;
            check_block(&self.core, node, NODE_BYTES)?;
            let header = memory.at(Offset::<NodeHeader>::new(node))?;
            let found = memory.load(&header.identity);
            let before = seen.range(..node + NODE_BYTES).next_back();
            let apart = before.is_none_or(|(at, bytes)| at + bytes <= node);
            seen.insert(node, NODE_BYTES);
            if found != layout::identity(Kind::Node, node, 0, 0) || !apart {
                return Err(Damage::new(
                    node,
                    "an overflow node of its own",
                    format!("{found:#x}"),
                ));
            }
        }
        Ok(())
    }

    /// Returns the record in a slot, by invariant 1. The segment is not in use yet. `index` is the
    /// bucket's number: its records must be at home in it or in the bucket before it.
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
        // A split leaves records behind, but those are in the right bucket too.
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
        let mut meta = Meta::default();
        let mut words = [0; 2];
        for slot in 0..SLOTS {
            if let Some((_, hash)) = self.record_in(segment, bucket, slot, index)? {
                let from_before = index.is_some_and(|index| self.home(hash) != index);
                meta = meta.with(slot, from_before);
                let (word, value) = prints::with(words, slot, hash as u8);
                words[word] = value;
            }
        }
        if !self.seeded(&bugs::LOCKS_KEPT) {
            bucket.notes.lock(seam).store(0, Ordering::Relaxed);
        }
        for (word, prints) in words.into_iter().enumerate() {
            bucket.notes.set_prints(seam, word, prints);
        }
        bucket.notes.set_meta(seam, meta);
        Ok(())
    }

    /// Returns whether a bucket holds a record with this first word among `mask`. If a crash left a
    /// record twice, both copies have the same words.
    fn has_copy(&self, bucket: BucketRef<'_>, mask: u32, first: u64, print: u8) -> bool {
        if self.seeded(&bugs::SECOND_COPY_KEPT) {
            return false;
        }
        let prints = bucket.notes.prints(self.core.memory.seam());
        let candidates = prints::matching(prints, print) & mask;
        ones::<usize>(candidates)
            .any(|slot| self.core.memory.load(&bucket.slots[slot].first) == first)
    }

    /// Repairs displacements: removes a guest from a bucket if its home bucket has the record too.
    /// Returns how many it removed, without a fence.
    fn remove_second_copies(&self, segment: Segment, index: u32) -> Result<usize, Damage> {
        let bucket = self.bucket(segment, index);
        let home = self.bucket(segment, self.previous(index));
        let at_home = self.meta(home).own();
        let moved = self.meta(bucket).guests();
        let mut removed = 0;
        for slot in ones::<usize>(moved) {
            let words = self.words(&bucket.slots[slot]);
            let print = self.hash_of(words) as u8;
            if self.has_copy(home, at_home, words.first, print) {
                self.remove_copy(segment, bucket, slot)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Empties a slot and flushes it, without a fence.
    ///
    /// # Errors
    /// [`Damage`] if no crash can have left the copy. That is so when all space is accounted for,
    /// because then the trace after the last crash has already been here.
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
        bucket.notes.set_meta(memory.seam(), self.meta(bucket).without(slot));
        Ok(())
    }

    /// Adds the records of a stash bucket or node to the metadata of their homes. If a record is
    /// also in one of its two buckets, because a compaction was cut short, removes it from here.
    /// Returns how many it removed, without a fence.
    fn repair_overflow(
        &self,
        segment: Segment,
        bucket: BucketRef<'_>,
        stash: Option<u32>,
    ) -> Result<usize, Damage> {
        let meta = self.meta(bucket);
        let mut removed = 0;
        for slot in ones::<usize>(meta.allocated()) {
            let words = self.words(&bucket.slots[slot]);
            let hash = self.hash_of(words);
            let index = self.home(hash);
            let home = self.bucket(segment, index);
            let next = self.bucket(segment, self.next(index));
            let print = hash as u8;
            if self.has_copy(home, self.meta(home).allocated(), words.first, print)
                || self.has_copy(next, self.meta(next).allocated(), words.first, print)
            {
                self.remove_copy(segment, bucket, slot)?;
                removed += 1;
            } else {
                // No operation uses the home bucket yet, so there is no lock to hold.
                let seam = self.core.memory.seam();
                let word = home.notes.lock(seam).load(Ordering::Relaxed);
                let (overflow, meta) = Overflow::of(word).noting(self.meta(home), print, stash);
                home.notes.set_meta(seam, meta);
                home.notes.lock(seam).store(overflow.within(word), Ordering::Relaxed);
            }
        }
        Ok(removed)
    }
}

const _: () = assert!(NODE_BYTES == (NODE_BUCKETS as u64 + 1) * BUCKET_BYTES);
