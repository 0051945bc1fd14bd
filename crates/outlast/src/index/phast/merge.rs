//! Merges of leaves that have become small.

use super::layout::{self, FINGERPRINT_WORDS, LINE_SLOTS, Next};
use super::state::{DAMAGED, State};
use super::{OrderedRecord, Phast, points};
use crate::error::Result;
use crate::index::phast::bugs;
use crate::pmem::Seam;

/// Pairs that a merge has copied into a leaf.
struct Copies {
    /// The leaf's bits, including theirs.
    bits: u64,
    /// The leaf's fingerprints, including theirs.
    fingerprints: [u64; FINGERPRINT_WORDS],
}

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    /// Merges the leaf of a key with a neighboring leaf, if one leaf has room for twice the pairs
    /// of both. An empty leaf is merged with the one before it in any case.
    #[cold]
    pub(super) fn merge_around(&self, key: R::Key<'_>) -> Result<()> {
        let at = self.locate(key)?;
        let live = |leaf: u32| {
            let offset = self.leaf(leaf).offset(self.core.memory.seam());
            (offset & DAMAGED == 0).then(|| self.bitmap(offset).count_ones())
        };
        let Some(own) = live(at.leaf) else { return Ok(()) };
        let fits = |other: u32| live(other).is_some_and(|n| (n + own) * 2 <= self.shape.leaf_slots);
        let entry = at.node.entry(self.seam(), at.place);
        let high = at.node.high_of(self.seam(), at.place);
        if !self.is_current(&at) {
            return Ok(());
        }
        let low = R::key_at(&self.core, entry.low)?;
        if let Some(left) = self.locate_below(R::key_of(&low))?
            && (own == 0 || fits(left.leaf))
        {
            return self.merge(left.leaf, at.leaf);
        }
        let Some(high) = high else { return Ok(()) };
        let high = R::key_at(&self.core, high)?;
        let right = self.locate(R::key_of(&high))?;
        if fits(right.leaf) { self.merge(at.leaf, right.leaf) } else { Ok(()) }
    }

    /// Moves the pairs of a leaf to the one before it, and removes the leaf. Does nothing if that
    /// is no longer possible.
    fn merge(&self, left: u32, right: u32) -> Result<()> {
        let core = &self.core;
        let Some(mut left) = self.close(left)? else { return Ok(()) };
        let Some(mut right) = self.close(right)? else { return Ok(()) };
        let (left_bits, right_bits) = (self.bitmap(left.offset), self.bitmap(right.offset));
        let follows = self.next_of(left.offset)?.offset == right.offset;
        let slots = self.shape.leaf_slots;
        let fits = (left_bits.count_ones() + right_bits.count_ones()) * 2 <= slots;
        if !follows || !(fits || right_bits == 0) {
            return Ok(());
        }
        let (key, low) = self.low_of(right.offset)?;
        if key == R::least() {
            // The first leaf stays. Only in a damaged file can it follow another one.
            return Ok(());
        }
        let key = R::key_of(&key);
        let mut structure = core.memory.seam().lock(&self.structure);
        let node = {
            let (locked, place) = self.lock_node(key)?;
            if locked.node.leaf(self.seam(), place) != right.handle {
                return Ok(());
            }
            (place == 0).then_some(std::ptr::from_ref(locked.node))
        };
        if let Some(node) = node {
            let (index, at) = self.node_in(&structure, node);
            if at == 0 && !self.seeded(&bugs::ENTRY_KEPT) {
                self.join_partition(&mut structure, index)?;
            }
        }
        let pairs: Vec<_> = self.slots_of(right.offset).collect();
        let words = |slot: &u32| self.words(self.pair(right.offset, *slot));
        self.mark_moved(pairs.iter().map(words))?;
        core.before_unlink(right.offset)?;
        let separator = match R::EMPTY {
            Some(empty) if low.first != empty => Some(R::extent(core, low)?),
            _ => None,
        };
        if let Some((block, _)) = separator {
            core.before_unlink(block)?;
        }
        let next = Next { offset: self.next_of(right.offset)?.offset, moving: false };
        let mut copies = None;
        if !pairs.is_empty() {
            // Readers of the left leaf must retry, because its free slots are about to be reused.
            let (low, _) = self.low_of(left.offset)?;
            unless_seeded!(self, bugs::MERGE_UNTOLD => self.outdate(R::key_of(&low))?);
            copies = Some(self.copy_pairs(left.offset, left_bits, right.offset, &pairs));
        }
        let show = || copies.iter().for_each(|copies| self.show_copies(left.offset, copies));
        let late = self.seeded(&bugs::MERGE_COMMITTED_FIRST);
        if !late {
            show();
        }
        let memory = &core.memory;
        let link = &self.header(left.offset).place.next;
        memory.store_release(link, next.pack(left.offset), &points::MERGE_COMMIT);
        memory.persist(link, &points::MERGE_COMMIT);
        if late {
            show();
        }

        // From here on, the keys of the right leaf are in the left one.
        right.dead = true;
        left.slots = copies.map(|copies| copies.bits);
        if let Err(error) = self.remove_entry(&mut structure, key, right.handle) {
            self.set_damaged(&mut right, &error);
            // Nothing owns the leaf's space now, and the allocator does not know that.
            core.note_unfreeable();
            tracing::warn!(%error, "a merged leaf could not be removed from its node");
            return Ok(());
        }
        drop(structure);
        self.leaves.give(memory.seam(), right.handle);
        core.retire(right.offset, self.shape.leaf_bytes());
        if let Some((block, bytes)) = separator {
            core.retire(block, bytes);
        }
        self.merges.add_one();
        Ok(())
    }

    /// Copies pairs into free slots of the previous leaf, and marks its link as moving, both
    /// durably. Does not set the bits of the copies.
    fn copy_pairs(&self, left: u64, bits: u64, right: u64, pairs: &[u32]) -> Copies {
        let memory = &self.core.memory;
        let header = self.header(left);
        let at = &points::MERGE_COPY;
        let link = Next { offset: right, moving: true };
        memory.store(&header.place.next, link.pack(left), at);
        memory.flush(&header.place.next, at);
        let mut fingerprints = [0; FINGERPRINT_WORDS];
        for (own, word) in fingerprints.iter_mut().zip(&header.head.fingerprints) {
            *own = memory.load(word);
        }
        let mut all = bits;
        let mut lines = 0u64;
        for &slot in pairs {
            let words = self.words(self.pair(right, slot));
            let hash = R::slot_hash(&self.core.hasher, words);
            let line = self.shape.line_of(hash);
            let free = State::at_rest(all).free_slot(self.shape.leaf_slots, line);
            let free = free.expect("both fit");
            let target = self.pair(left, free);
            target.write(memory, words, at);
            let word = &mut fingerprints[free as usize / 8];
            let shift = free % 8 * 8;
            *word = *word & !(0xff << shift) | (hash & 0xff) << shift;
            all |= 1 << free;
            lines |= 1 << (free / LINE_SLOTS);
        }
        unless_seeded!(self, bugs::MERGE_UNBLANKED => lines |= self.make_blank(left, all, at));
        self.flush_lines(left, lines, at);
        memory.fence(at);
        Copies { bits: all, fingerprints }
    }

    /// Sets the bits of copies, durably. The copies are not records of the leaf until the merge is
    /// committed.
    fn show_copies(&self, left: u64, copies: &Copies) {
        let memory = &self.core.memory;
        let head = &self.header(left).head;
        let at = &points::MERGE_BITS;
        for (own, word) in copies.fingerprints.iter().zip(&head.fingerprints) {
            memory.store(word, *own, at);
        }
        // Release: pairs with the Acquire in `bitmap`.
        memory.store_release(&head.bitmap, layout::seal(copies.bits), at);
        memory.flush(head, at);
        memory.fence(at);
    }
}
