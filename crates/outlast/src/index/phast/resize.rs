//! Growing and shrinking: leaves are compacted and split. `merge` merges them.

use super::layout::{
    self, Kind, LEAF_HEADER, LINE_SLOTS, MASTER_HEADER, MAX_SLOTS, MasterHeader, Next, Pair,
};
use super::nodes::Entry;
use super::route::Located;
use super::salvage::Missing;
use super::state::{BLANK, CLOSED, DAMAGED, Leaf, State, UNKNOWN};
use super::{Config, OrderedRecord, Phast, points};
use crate::error::{Damage, Error, Result};
use crate::index::bugs as index_bugs;
use crate::index::kit::media::ones;
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::phast::bugs;
use crate::index::record::SlotWords;
use crate::pmem::{Memory, Offset, Point, Seam, Word};
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SCHEME_WORDS;
use std::cmp::Ordering as Order;
use std::sync::Arc;

/// A leaf to be written.
struct Draft {
    low: SlotWords,
    next: Next,
    /// Which slots hold a pair.
    bits: u64,
    /// The words of each slot.
    pairs: [SlotWords; MAX_SLOTS as usize],
    fingerprints: [u8; MAX_SLOTS as usize],
    /// Whether the slots without a pair are written, too.
    blanks: bool,
}

impl Draft {
    /// Begins a leaf with these words of its least key, this next leaf, and this first word in its
    /// blank slots.
    fn new(low: SlotWords, next: u64, blank: Option<u64>) -> Draft {
        let free = SlotWords { first: blank.unwrap_or(0), second: 0 };
        Draft {
            low,
            next: Next { offset: next, moving: false },
            bits: 0,
            pairs: [free; MAX_SLOTS as usize],
            blanks: blank.is_some(),
            fingerprints: [0; MAX_SLOTS as usize],
        }
    }

    /// Adds a pair. The caller makes sure that there is room.
    fn add(&mut self, shape: Config, words: SlotWords, hash: u64) {
        let slot = State::at_rest(self.bits).free_slot(shape.leaf_slots, shape.line_of(hash));
        let slot = slot.expect("no more pairs than a leaf has had");
        self.bits |= 1 << slot;
        self.pairs[slot as usize] = words;
        self.fingerprints[slot as usize] = hash as u8;
    }

    /// Writes the leaf and flushes it, without a fence.
    fn write<S: Seam>(
        &self,
        memory: &Memory<S>,
        shape: Config,
        offset: u64,
        at: &'static Point,
    ) -> Result<(), Damage> {
        memory.words(offset, shape.leaf_bytes())?;
        let header = memory.at(Offset::<layout::LeafHeader>::new(offset))?;
        for (word, fingerprints) in
            header.head.fingerprints.iter().zip(self.fingerprints.as_chunks().0)
        {
            memory.store(word, u64::from_le_bytes(*fingerprints), at);
        }
        memory.store(&header.head.bitmap, layout::seal(self.bits), at);
        let place = &header.place;
        let identity = layout::identity(Kind::Leaf, shape.leaf_slots, offset, self.low.first);
        memory.store(&place.identity, identity, at);
        place.low.write(memory, self.low, at);
        memory.store(&place.next, self.next.pack(offset), at);
        memory.flush(&header.head, at);
        memory.flush(&place.next, at);
        let mut line = None;
        for slot in ones(if self.blanks { shape.all_slots() } else { self.bits }) {
            let target: &Pair = memory.at(pair_offset(offset, slot))?;
            let words = self.pairs[slot as usize];
            target.write(memory, words, at);
            // Slots ascend, so a line is flushed when the next one begins.
            if let Some((other, pair)) = line.replace((slot / LINE_SLOTS, target))
                && other != slot / LINE_SLOTS
            {
                memory.flush(pair, at);
            }
        }
        if let Some((_, pair)) = line {
            memory.flush(pair, at);
        }
        Ok(())
    }
}

fn pair_offset(leaf: u64, slot: u32) -> Offset<Pair> {
    Offset::new(leaf + LEAF_HEADER + u64::from(slot) * size_of::<Pair>() as u64)
}

/// Returns the entries of the master array at an offset.
pub(super) fn master_entries<S: Seam>(
    core: &Core<S>,
    shape: Config,
    master: u64,
) -> Result<&[Word], Damage> {
    core.memory.words(master + MASTER_HEADER, 8 * u64::from(shape.partitions))
}

/// Writes a new map's master array and first leaf and flushes them. The fence before the root's
/// commit word makes them durable.
pub(super) fn create<S: Seam>(
    core: &Arc<Core<S>>,
    shape: Config,
) -> Result<[u64; ROOT_SCHEME_WORDS]> {
    let mut leaf_block = UnlinkedBlock::allocate(core, shape.leaf_bytes())?;
    let mut master_block = UnlinkedBlock::allocate(core, layout::master_bytes(shape.partitions))?;
    let (leaf, master) = (leaf_block.offset(), master_block.offset());
    let memory = &core.memory;
    let at = &points::CREATE;
    Draft::new(SlotWords { first: 0, second: 0 }, 0, None).write(memory, shape, leaf, at)?;
    let header = memory.at(Offset::<MasterHeader>::new(master))?;
    let identity = layout::identity(Kind::Master, shape.partitions, master, 0);
    memory.store(&header.identity, identity, at);
    let entries = master_entries(core, shape, master)?;
    for (index, entry) in entries.iter().enumerate() {
        let first = if index == 0 { leaf } else { 0 };
        memory.store(entry, layout::pack_entry(master, index, first), at);
    }
    memory.flush(&header.identity, at);
    memory.flush_words(entries, at);
    leaf_block.set_linked();
    master_block.set_linked();
    let mut words = [0; ROOT_SCHEME_WORDS];
    words[0] = layout::pack_root(master);
    Ok(words)
}

/// A leaf that one thread has closed. Dropping this opens it again.
pub(super) struct Closed<'i, S: Seam> {
    pub(super) seam: &'i S,
    pub(super) leaf: &'i Leaf,
    pub(super) handle: u32,
    pub(super) offset: u64,
    /// The slots that are in use when it is opened, if they change.
    pub(super) slots: Option<u64>,
    /// Whether the leaf stays closed, because nothing leads to it any more, or it is damaged.
    pub(super) dead: bool,
}

impl<S: Seam> Drop for Closed<'_, S> {
    fn drop(&mut self) {
        // After a panic, the leaf may be half changed. It stays closed. The panic poisons the gate,
        // so other threads do not wait for the leaf.
        if !self.dead && !std::thread::panicking() {
            self.leaf.open(self.seam, self.slots);
        }
    }
}

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    /// Closes a leaf and waits until no other thread is active in it. Returns `None` if another
    /// thread has closed it, or if it is damaged.
    pub(super) fn close(&self, handle: u32) -> Result<Option<Closed<'_, S>>> {
        let seam = self.core.memory.seam();
        let leaf = self.leaf(handle);
        let mut turn = 0;
        loop {
            let state = leaf.state(seam);
            if state.is_closed() {
                return Ok(None);
            }
            if leaf.exchange(seam, state, State(state.0 | CLOSED)) {
                break;
            }
            self.core.wait(&mut turn)?;
        }
        let offset = leaf.offset(seam);
        let closed = Closed { seam, leaf, handle, offset, slots: None, dead: false };
        while leaf.state(seam).is_tentative() {
            self.core.wait_for_lock(&mut turn, 1, || (offset, leaf.state(seam).0))?;
        }
        Ok((offset & DAMAGED == 0).then_some(closed))
    }

    /// Returns the least key of a leaf.
    pub(super) fn low_of(&self, offset: u64) -> Result<(R::OwnedKey, SlotWords), Damage> {
        let words = self.words(&self.header(offset).place.low);
        Ok((R::key_at(&self.core, words.first)?, words))
    }

    /// Returns whether so few slots hold a pair that compacting is worth it.
    fn is_worth_tidying(&self, bits: u64) -> bool {
        bits.count_ones() <= self.shape.leaf_slots * 3 / 4
    }

    /// Makes room in a full leaf. The caller retries afterwards.
    pub(super) fn make_room(&self, at: &Located<'_>, key: R::Key<'_>) -> Result<()> {
        let offset = self.leaf(at.leaf).offset(self.core.memory.seam());
        if offset & DAMAGED != 0 {
            return Ok(());
        }
        let tidy = || match self.close(at.leaf)? {
            Some(mut closed) => self.tidy(&mut closed),
            None => Ok(()),
        };
        let leaf = self.leaf(at.leaf);
        let is_unknown = leaf.free_slots_are(self.seam()) == UNKNOWN;
        if !is_unknown && leaf.state(self.seam()).free_slot(self.shape.leaf_slots, 0).is_some() {
            // Another thread has made room.
            return Ok(());
        }
        if is_unknown || self.is_worth_tidying(self.bitmap(offset)) {
            return tidy();
        }
        match self.split(at, offset, key) {
            // The slots of removed pairs are the only space that is left.
            Err(error) if error.is_full() && self.has_removed(offset) => tidy(),
            split => split,
        }
    }

    /// Returns whether some slots hold no pair.
    fn has_removed(&self, offset: u64) -> bool {
        self.bitmap(offset).count_ones() < self.shape.leaf_slots
    }

    /// Compacts a leaf: frees the slots of removed pairs. Before that, it makes threads that have
    /// read the leaf with older bits discard what they read.
    fn tidy(&self, closed: &mut Closed<'_, S>) -> Result<()> {
        let bits = self.bitmap(closed.offset);
        // Right after opening, no slot becomes free, so no thread has read one with a bit.
        if !closed.leaf.state(self.seam()).has_slots_of(State::at_rest(bits)) {
            let (low, _) = self.low_of(closed.offset)?;
            self.outdate(R::key_of(&low))?;
        }
        if !self.seeded(&bugs::COMPACTED_UNBLANKED) {
            let at = &points::COMPACT_BLANK;
            let lines = self.make_blank(closed.offset, bits, at);
            if lines != 0 {
                self.flush_lines(closed.offset, lines, at);
                self.core.memory.fence(at);
            }
        }
        closed.slots = Some(bits);
        Ok(())
    }

    /// Makes all slots of a closed leaf blank, except `used`, if the leaf has blank slots. Returns
    /// the lines that the caller has to flush. A slot that is blank already is so durably: opening has
    /// flushed those that it found.
    pub(super) fn make_blank(&self, offset: u64, used: u64, at: &'static Point) -> u64 {
        let low = self.words(&self.header(offset).place.low).first;
        let Some(blank) = self.shape.blank::<R>(low) else { return 0 };
        let mut lines = 0;
        for slot in ones::<u32>(self.shape.all_slots() & !used) {
            let pair = self.pair(offset, slot);
            if self.words(pair).first != blank {
                // Release: a thread that reads this, and then checks the leaf's node, sees that the
                // node has changed.
                self.core.memory.store_release(&pair.first, blank, at);
                lines |= 1 << (slot / LINE_SLOTS);
            }
        }
        lines
    }

    /// Flushes these lines of a leaf's pairs.
    pub(super) fn flush_lines(&self, offset: u64, lines: u64, at: &'static Point) {
        for line in ones::<u32>(lines) {
            self.core.memory.flush(self.pair(offset, line * LINE_SLOTS), at);
        }
    }

    /// Makes readers of the node of a key retry.
    pub(super) fn outdate(&self, key: R::Key<'_>) -> Result<()> {
        let (mut locked, _) = self.lock_node(key)?;
        locked.changing();
        Ok(())
    }

    // ---- Split of a leaf --------------------------------------------------------

    /// Returns the keys in these slots of a leaf, sorted, without duplicates. With concurrent
    /// writers, the keys may come from different moments.
    fn keys_of(&self, offset: u64, bits: u64) -> Result<Vec<R::OwnedKey>, Damage> {
        let mut keys = Vec::with_capacity(self.shape.leaf_slots as usize);
        for slot in ones(bits) {
            keys.push(R::key(&self.core, self.words(self.pair(offset, slot)))?);
        }
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// Checks the keys that were in these slots of a full leaf: each must lie within the leaf's
    /// bounds, and be there once. Otherwise the leaf could be split again and again, or not at all,
    /// without ever having room. The caller must check that the leaf has not changed meanwhile.
    fn check_keys(
        &self,
        at: &Located<'_>,
        offset: u64,
        bits: u64,
        keys: &[R::OwnedKey],
    ) -> Result<(), Damage> {
        // Counts the bits by which the keys were read, because inserts in progress set others.
        let late = self.seeded(&bugs::PAIRS_COUNTED_LATE);
        let pairs = if late { self.bitmap(offset) } else { bits }.count_ones() as usize;
        if keys.len() < pairs {
            let found = format!("{} keys in {pairs} pairs", keys.len());
            return Err(Damage::new(offset, "each key once", found));
        }
        let [first, .., last] = keys else { return Ok(()) };
        let edges = self.edges_of(at)?;
        if *first < edges.low || edges.high.as_ref().is_some_and(|high| last >= high) {
            let expected = format!("keys from {:?} to {:?}", edges.low, edges.high);
            return Err(Damage::new(offset, expected, format!("{first:?} to {last:?}")));
        }
        Ok(())
    }

    /// Splits a leaf, to make room for a key.
    fn split(&self, at: &Located<'_>, offset: u64, key: R::Key<'_>) -> Result<()> {
        // Everything that needs space comes before any thread has to wait. So where to split is a
        // guess here, and is checked again later.
        let replaced = self.replaced_before(at.leaf);
        let bits = self.bitmap(offset);
        let keys = self.keys_of(offset, bits).and_then(|keys| {
            self.check_keys(at, offset, bits, &keys)?;
            Ok(keys)
        });
        let keys = match keys {
            Ok(keys) => keys,
            // The leaf changed meanwhile, so what was read is not valid.
            Err(_) if !self.is_unreplaced(replaced) || !self.is_current(at) => {
                return Ok(());
            }
            Err(damage) => return Err(damage.into()),
        };
        let [.., last] = &keys[..] else { return Ok(()) };
        // If keys come in ascending order, the lower part gets no more of them, so it is left
        // nearly full.
        let ascending = R::compare(key, R::key_of(last)) == Order::Greater;
        let middle = if ascending { keys.len() - keys.len().div_ceil(8) } else { keys.len() / 2 };
        if middle == 0 {
            return Ok(());
        }
        let mut block = UnlinkedBlock::allocate(&self.core, self.shape.leaf_bytes())?;
        let (below, from) = (&keys[middle - 1], &keys[middle]);
        let low = R::separator(&self.core, below, from, &points::SEPARATOR)?;
        let handle = self.leaves.take(self.core.memory.seam());
        let new = Entry::new(low.first, handle, block.offset());
        let split = self.split_at(at.leaf, block.offset(), low, new);
        match split {
            Ok(true) => block.set_linked(),
            Ok(false) | Err(_) => {
                R::discard(&self.core, low);
                self.leaves.give(self.core.memory.seam(), handle);
            }
        }
        split.map(|_| ())
    }

    /// Splits a leaf: moves its pairs from the separator `low` on into a new leaf at `block`.
    /// Returns `false`, without a split, if another thread has closed the leaf, or if it has
    /// changed since it was read so that one part would be empty.
    fn split_at(&self, old: u32, block: u64, low: SlotWords, new: Entry) -> Result<bool> {
        let Some(mut closed) = self.close(old)? else { return Ok(false) };
        let (core, memory, offset) = (&self.core, &self.core.memory, closed.offset);
        let seam = memory.seam();
        let separator = R::key_at(core, low.first)?;
        let bits = self.bitmap(offset);
        let place = &self.header(offset).place;
        let blank = self.shape.blank::<R>(low.first);
        let mut draft = Draft::new(low, self.next_of(offset)?.offset, blank);
        let mut moved = 0;
        for slot in self.slots_of(offset) {
            let words = self.words(self.pair(offset, slot));
            if R::compare_with(core, R::key_of(&separator), words.first)? != Order::Greater {
                moved |= 1 << slot;
                draft.add(self.shape, words, R::slot_hash(&core.hasher, words));
            }
        }
        if moved == 0 || moved == bits {
            return Ok(false);
        }
        self.mark_moved(ones(moved).map(|slot| self.words(self.pair(offset, slot))))?;
        let made = State::at_rest(draft.bits);
        draft.write(memory, self.shape, block, &points::SPLIT_NEW)?;
        memory.fence(&points::SPLIT_NEW);

        let link = Next { offset: block, moving: !self.seeded(&index_bugs::SPLIT_UNNAMED) };
        memory.store_release(&place.next, link.pack(offset), &points::SPLIT_COMMIT);
        memory.persist(&place.next, &points::SPLIT_COMMIT);

        // From here on, the keys from the separator on are only in the new leaf. The new leaf stays
        // closed until the old leaf's bits are durably cleared. After a crash before that, opening
        // reads the keys of the pairs, in their blocks, to find out which bits to clear. If a moved
        // record could be replaced or removed earlier, its block could be reused, and hold a key
        // below the separator.
        let handed_over = self.leaf(new.leaf);
        let early = self.seeded(&bugs::SPLIT_OPENED_EARLY);
        let known = if blank.is_some() { block | BLANK } else { block };
        handed_over.begin(seam, known, if early { made } else { State(made.0 | CLOSED) });
        if let Err(error) = self.add_entry(R::key_of(&separator), new) {
            // No thread can find the new leaf. The old one is marked as damaged, so that no
            // operation reports the keys that have moved as absent.
            self.set_damaged(&mut closed, &error);
            tracing::warn!(%error, "the new leaf of a split could not be added to its node");
            return Ok(true);
        }
        // Before the bits are cleared, blank slots with bits can become durable. Opening clears these,
        // too, and the link, which is durable, says that the leaf's keys end at the separator.
        if !self.seeded(&bugs::SPLIT_UNBLANKED) {
            let at = &points::SPLIT_BLANK;
            self.flush_lines(offset, self.make_blank(offset, bits & !moved, at), at);
        }
        let bitmap = &self.header(offset).head.bitmap;
        memory.store_release(bitmap, layout::seal(bits & !moved), &points::SPLIT_CLEAR);
        seed!(self, bugs::SPLIT_OPENED_UNFLUSHED => handed_over.open(seam, None));
        memory.persist(bitmap, &points::SPLIT_CLEAR);
        handed_over.open(seam, None);
        let done = Next { offset: block, moving: false };
        memory.store_release(&place.next, done.pack(offset), &points::SPLIT_DONE);
        closed.slots = Some(bits & !moved);
        self.counters.splits.add_one();
        Ok(true)
    }

    /// Returns the link of a leaf to the next one.
    pub(super) fn next_of(&self, offset: u64) -> Result<Next, Damage> {
        let word = &self.header(offset).place.next;
        let found = self.core.memory.load_acquire(word);
        Next::unpack(offset, found).ok_or_else(|| {
            let at = self.core.memory.offset_of(word).raw();
            Damage::new(at, "a leaf's link to the next one", format!("{found:#x}"))
        })
    }

    /// Marks records that are going to move, because the trace after a crash may miss them while
    /// they move.
    pub(super) fn mark_moved(&self, pairs: impl Iterator<Item = SlotWords>) -> Result<()> {
        if R::EMPTY.is_none() || self.core.alloc().old_frontier() == 0 {
            return Ok(());
        }
        for words in pairs {
            self.core.before_unlink(R::extent(&self.core, words)?.0)?;
        }
        Ok(())
    }

    /// Marks a leaf as not usable until the map is opened again. It stays closed: a thread that read
    /// its offset and its state before must not change it, because its keys may be elsewhere, and
    /// the next opening would drop the change.
    #[cold]
    pub(super) fn set_damaged(&self, closed: &mut Closed<'_, S>, error: &Error) {
        let damage = match error {
            Error::Damaged(damage) => damage.clone(),
            other => Damage::new(closed.offset, "a leaf that can be split", other.to_string()),
        };
        let seam = self.core.memory.seam();
        seam.lock(&self.damage).insert(closed.handle, Missing { damage, first: 0 });
        closed.leaf.begin(seam, closed.offset | DAMAGED, closed.leaf.state(seam));
        closed.dead = true;
    }

    // ---- Merge of leaves --------------------------------------------------------
}
