//! Opening: several threads build the inner part from the leaves' headers, and repair what a crash
//! left, before the first operation.

use super::cache::Pointer;
use super::layout::{self, Kind, LEAF_HEADER, LeafHeader, MasterHeader, Next};
use super::nodes::{Content, Entry, NONE};
use super::resize::master_entries;
use super::salvage::Missing;
use super::state::{BLANK, DAMAGED, Leaf, State, Stock, UNKNOWN};
use super::{OrderedRecord, Partition, Phast, points};
use crate::error::{Damage, Result};
use crate::index::bugs as index_bugs;
use crate::index::kit::media::{check_block, check_identity, ones};
use crate::index::kit::parallel::read_parts;
use crate::index::phast::bugs;
use crate::index::record::SlotWords;
use crate::pmem::{LINE, Offset, Seam};
use std::cmp::Ordering as Order;
use std::sync::Mutex;

/// A leaf's header as it was found and checked.
struct Checked {
    low: SlotWords,
    next: Next,
    bits: u64,
}

/// A leaf that operations can use.
struct Readable<K> {
    /// Its offset, with the flags of its state.
    offset: u64,
    state: State,
    /// Its least key, and the first word of it.
    low: K,
    first: u64,
    /// The next leaf's offset.
    next: u64,
}

/// The beginning of a part of the chain of leaves.
#[derive(Clone)]
struct Start<K> {
    /// The entry of the master array.
    entry: u32,
    leaf: u64,
    low: K,
}

/// A part of the chain of leaves, as far as it was read.
struct Chain<'s, K> {
    start: &'s Start<K>,
    /// Where the next part begins.
    end: Option<&'s Start<K>>,
    /// The next leaf to read; `None` once the end is reached.
    at: Option<u64>,
    /// That leaf's header.
    found: Option<Result<Checked, Damage>>,
    entries: Vec<Entry>,
    /// Their least keys.
    lows: Vec<K>,
}

/// The nodes that a thread has made for a part.
struct Part {
    start: usize,
    nodes: Vec<Pointer>,
}

/// How many parts a thread reads in turn. While it reads a leaf of one, the next leaves of the others
/// come from memory.
const IN_TURN: usize = 4;

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    /// Builds the inner part. No operation runs yet.
    pub(super) fn recover(&mut self) -> Result<()> {
        let core = &self.core;
        check_block(core, self.master, layout::master_bytes(self.shape.partitions))?;
        let header = core.memory.at(Offset::<MasterHeader>::new(self.master))?;
        let expected = layout::identity(Kind::Master, self.shape.partitions, self.master, 0);
        check_identity(&core.memory, &header.identity, expected, "a master array")?;
        let (starts, free) = self.starts()?;
        let (parts, failure) = (Mutex::<Vec<Part>>::default(), Mutex::<Option<Damage>>::default());
        let threads = core.options().recovery.threads.max(1);
        // Of several threads, each gets a few groups, so that all end at about the same time.
        let groups = if threads > 1 { threads * 4 } else { 1 };
        let in_turn = (starts.len() / groups).clamp(1, IN_TURN);
        let read = |group: usize| match self.read_group(group * in_turn, in_turn, &starts) {
            Ok((nodes, leaves)) => {
                self.seam().lock(&parts).extend(nodes);
                leaves
            }
            Err(damage) => {
                self.seam().lock(&failure).get_or_insert(damage);
                0
            }
        };
        read_parts(core, starts.len().div_ceil(in_turn), read, || {
            if self.is_after_crash() {
                // Covers everything that this thread has flushed.
                core.memory.fence(&points::REPAIR_FOUND);
            }
        });
        if let Some(damage) = failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            return Err(damage.into());
        }
        let mut parts = parts.into_inner().unwrap_or_else(|e| e.into_inner());
        parts.sort_unstable_by_key(|part| part.start);
        let partitions: Vec<Partition> = parts
            .into_iter()
            .map(|part| Partition { entry: starts[part.start].entry, nodes: part.nodes })
            .collect();
        let nodes: Vec<Pointer> = partitions.iter().flat_map(|p| p.nodes.clone()).collect();
        for (index, node) in nodes.iter().enumerate() {
            let mut locked = self.lock_number(node.number)?;
            match nodes.get(index + 1) {
                Some(next) => locked.set_next(next.number, next.low),
                None => locked.set_next(NONE, 0),
            }
        }
        self.first = nodes[0].number;
        let structure = self.structure.get_mut().unwrap_or_else(|e| e.into_inner());
        structure.partitions = partitions;
        structure.free = free;
        let structure = self.core.memory.seam().lock(&self.structure);
        self.publish_each(&structure);
        Ok(())
    }

    /// Returns where the parts of the chain begin, in order, and the entries that are not in use.
    /// An entry that cannot be used costs only time: the previous part continues there.
    #[expect(clippy::type_complexity, reason = "two lists")]
    fn starts(&self) -> Result<(Vec<Start<R::OwnedKey>>, Vec<u32>)> {
        let core = &self.core;
        let entries = master_entries(core, self.shape, self.master)?;
        let (mut starts, mut free) = (Vec::new(), Vec::new());
        if self.is_after_crash() {
            // The fence follows in this thread's last step in `read_parts`.
            core.memory.flush_words(entries, &points::REPAIR_FOUND);
        }
        for (index, entry) in entries.iter().enumerate() {
            let word = core.memory.load(entry);
            let leaf = layout::unpack_entry(self.master, index, word);
            let entry = index as u32;
            if index == 0 {
                // The first leaf of all never changes.
                let leaf = leaf.filter(|&leaf| leaf != 0).ok_or_else(|| {
                    Damage::new(self.master, "the first leaf's offset", format!("{word:#x}"))
                })?;
                starts.push(Start { entry, leaf, low: R::least() });
                continue;
            }
            let low = match leaf {
                Some(0) | None => None,
                Some(leaf) => self
                    .check_leaf(leaf)
                    .ok()
                    .and_then(|found| Some((leaf, R::key_at(core, found.low.first).ok()?))),
            };
            match low {
                Some((leaf, low)) => starts.push(Start { entry, leaf, low }),
                // A damaged entry is not reused, so that it can be inspected.
                None if leaf.is_none() => {}
                None => free.push(entry),
            }
        }
        starts[1..].sort_by(|a, b| a.low.cmp(&b.low));
        starts.dedup_by(|b, a| {
            let same = a.low == b.low || a.leaf == b.leaf;
            // Only in a damaged file are there two entries for one leaf.
            free.extend(same.then_some(b.entry));
            same
        });
        free.reverse();
        Ok((starts, free))
    }

    /// Returns whether the pool was not closed cleanly.
    pub(super) fn is_unclean(&self) -> bool {
        self.core.alloc().old_frontier() != 0
    }

    /// Returns whether stores of an earlier process may still be only in the caches.
    fn is_after_crash(&self) -> bool {
        self.is_unclean() && !self.core.options().read_only
    }

    /// Prefetches the lines of a leaf that opening reads. Checks the offset only as far as this needs.
    fn prefetch_leaf(&self, leaf: u64) {
        if !leaf.is_multiple_of(LINE) || leaf + self.shape.leaf_bytes() > self.core.memory.len() {
            return;
        }
        if self.is_unclean() && self.shape.has_blanks::<R>() {
            self.prefetch_all(leaf);
        }
        let LeafHeader { head, place } = self.header(leaf);
        self.core.memory.seam().prefetch(head);
        self.core.memory.seam().prefetch(place);
    }

    /// Reads some parts of the chain, from `first` on, and builds their nodes. Returns them, and the
    /// number of leaves.
    fn read_group(
        &self,
        first: usize,
        count: usize,
        starts: &[Start<R::OwnedKey>],
    ) -> Result<(Vec<Part>, u64), Damage> {
        let seam = self.core.memory.seam();
        // Nodes are made not quite full, so that a few splits of leaves do not split every node.
        let most = (self.shape.node_leaves - self.shape.node_leaves.div_ceil(8)) as usize;
        let (mut parts, mut leaves) = (Vec::new(), 0);
        let chains = self.read_chains(first, count, starts)?;
        for (start, Chain { entries, lows, .. }) in (first..).zip(chains) {
            let mut nodes = Vec::new();
            for (entries, lows) in entries.chunks(most).zip(lows.chunks(most)) {
                let number = self.nodes.take(seam);
                let content = Content::of::<R>(entries.to_vec(), lows);
                let mut locked = self.lock_new(number);
                locked.set(&content);
                nodes.push(Pointer { low: entries[0].low, number });
            }
            leaves += entries.len() as u64;
            parts.push(Part { start, nodes });
        }
        Ok((parts, leaves))
    }

    fn lock_new(&self, number: u32) -> super::nodes::LockedNode<'_, S> {
        let node = self.node(number);
        let locked = super::nodes::LockedNode::try_new(node, self.core.memory.seam());
        locked.expect("nobody knows of it yet")
    }

    /// Reads the leaves of some parts, from `first` on, a leaf of each in turn.
    fn read_chains<'s>(
        &self,
        first: usize,
        count: usize,
        starts: &'s [Start<R::OwnedKey>],
    ) -> Result<Vec<Chain<'s, R::OwnedKey>>, Damage> {
        let mut numbers = self.leaves.stock(self.core.memory.seam());
        let chain = |number| {
            let (start, end) = (&starts[number], starts.get(number + 1));
            let (entries, lows) = (Vec::new(), Vec::new());
            Chain { start, end, at: Some(start.leaf), found: None, entries, lows }
        };
        let mut chains: Vec<_> = (first..starts.len().min(first + count)).map(chain).collect();
        while chains.iter().any(|chain| chain.at.is_some()) {
            for chain in &mut chains {
                chain.found = chain.at.map(|at| self.check_leaf(at));
                if let Some(Ok(found)) = &chain.found {
                    self.prefetch_leaf(found.next.offset);
                    R::prefetch(&self.core, found.low);
                }
            }
            for chain in &mut chains {
                self.read_next(chain, &mut numbers)?;
            }
        }
        Ok(chains)
    }

    /// Reads the next leaf of a part, whose header was found. If the chain cannot be followed, one
    /// entry stands for everything up to the next part. Its keys are not available; all others are.
    fn read_next(
        &self,
        chain: &mut Chain<'_, R::OwnedKey>,
        numbers: &mut Stock<'_, S, Leaf>,
    ) -> Result<(), Damage> {
        let (Some(at), Some(found)) = (chain.at, chain.found.take()) else { return Ok(()) };
        let seam = self.core.memory.seam();
        match found.map_err(|damage| (None, damage)).and_then(|found| self.repair(at, found, chain))
        {
            Ok(Readable { offset, state, low, first, next }) => {
                let leaf = numbers.take();
                self.leaf(leaf).begin(seam, offset, state);
                chain.entries.push(Entry::new(first, leaf, at));
                chain.lows.push(low);
                let is_last = chain.end.map_or(0, |end| end.leaf) == next;
                chain.at = (!is_last).then_some(next);
            }
            Err((low, damage)) => {
                tracing::warn!(%damage, "leaves that cannot be served");
                let Chain { entries, lows, .. } = chain;
                self.note_missing(entries, at, low, damage);
                for entry in &entries[lows.len()..] {
                    lows.push(R::key_at(&self.core, entry.low)?);
                }
                chain.at = None;
            }
        }
        Ok(())
    }

    /// Checks that a leaf is in its place, and repairs it. If that fails, returns the leaf's least key,
    /// if it is known, and the damage.
    fn repair(
        &self,
        at: u64,
        found: Checked,
        chain: &Chain<'_, R::OwnedKey>,
    ) -> Result<Readable<R::OwnedKey>, (Option<u64>, Damage)> {
        let Chain { start, end, lows, .. } = chain;
        let below = lows.last();
        let low = R::key_at(&self.core, found.low.first).map_err(|damage| (None, damage))?;
        let ascends = match below {
            Some(below) => *below < low,
            None => low == start.low,
        };
        if start.entry == 0 && below.is_none() && (found.low.first, found.low.second) != (0, 0) {
            // Lookups rely on no key being below this one. If it were a link, the key that the link
            // leads to could change.
            let found = format!("{:#x}, {:#x}", found.low.first, found.low.second);
            return Err((None, Damage::new(at + 64, "the least key of all", found)));
        }
        if !ascends || end.is_some_and(|end| low >= end.low) {
            let expected = "a leaf whose least key is in its place";
            return Err((None, Damage::new(at, expected, format!("{low:?}"))));
        }
        let known = |damage| (Some(found.low.first), damage);
        if found.next.offset == 0 && end.is_some() {
            return Err(known(Damage::new(at, "a leaf with one after it", "the last one")));
        }
        if self.is_after_crash() {
            self.flush_found(at, found.bits).map_err(known)?;
        }
        let bits = self.mend(at, &found).map_err(known)?;
        let free_slots = match self.shape.blank::<R>(found.low.first) {
            Some(_) if self.seeded(&bugs::FOUND_TAKEN_FOR_BLANK) => BLANK,
            Some(_) => UNKNOWN,
            None => 0,
        };
        Ok(Readable {
            offset: at | free_slots,
            state: State::at_rest(bits),
            low,
            first: found.low.first,
            next: found.next.offset,
        })
    }

    /// Adds an entry for leaves that are not available. The entry begins at their least key, if that
    /// is known. Otherwise it begins just above the greatest key of the previous leaf, or, without
    /// such a leaf, at 0. If no word stands for that key, the previous leaf becomes unavailable as
    /// well: for byte strings, whose words link to stored keys, and after `u64::MAX`.
    fn note_missing(&self, entries: &mut Vec<Entry>, at: u64, low: Option<u64>, damage: Damage) {
        let seam = self.core.memory.seam();
        let behind = |entry: &Entry| {
            if R::EMPTY.is_some() {
                return None;
            }
            let leaf = self.leaf(entry.leaf).offset(seam);
            let keys = self.slots_of(leaf).map(|slot| self.words(self.pair(leaf, slot)).first);
            keys.chain([entry.low]).max()?.checked_add(1)
        };
        let first = entries.is_empty();
        // Messages name this offset, and a salvage begins there.
        let at = at & !63;
        let at = if self.core.memory.words(at, self.shape.leaf_bytes()).is_ok() { at } else { 0 };
        let mut unread = at;
        let low = low.or_else(|| entries.last().and_then(behind));
        let leaf = match (low, entries.pop()) {
            (Some(low), before) => {
                entries.extend(before);
                let leaf = self.leaves.take(seam);
                entries.push(Entry::new(low, leaf, at));
                leaf
            }
            // The previous leaf becomes unavailable. Otherwise keys after it would be reported
            // absent.
            (None, Some(before)) => {
                unread = self.leaf(before.leaf).offset(seam);
                entries.push(before);
                before.leaf
            }
            (None, None) => {
                debug_assert!(first);
                let leaf = self.leaves.take(seam);
                entries.push(Entry::new(0, leaf, at));
                leaf
            }
        };
        self.leaf(leaf).begin(seam, at | DAMAGED, State::at_rest(0));
        seam.lock(&self.damage).insert(leaf, Missing { damage, first: unread });
    }

    /// Checks a leaf's header: its extent, identity, link and bits.
    fn check_leaf(&self, offset: u64) -> Result<Checked, Damage> {
        let core = &self.core;
        let header = core.memory.at(Offset::<layout::LeafHeader>::new(offset))?;
        check_block(core, offset, self.shape.leaf_bytes())?;
        let low = self.words(&header.place.low);
        let expected = layout::identity(Kind::Leaf, self.shape.leaf_slots, offset, low.first);
        check_identity(&core.memory, &header.place.identity, expected, "a leaf")?;
        let next = self.next_of(offset)?;
        let word = core.memory.load_acquire(&header.head.bitmap);
        let bits = word & self.shape.all_slots();
        if word != layout::seal(bits) {
            let expected = format!("bits of {} slots with their seal", self.shape.leaf_slots);
            return Err(Damage::new(offset, expected, format!("{word:#x}")));
        }
        Ok(Checked { low, next, bits })
    }

    /// After a crash, flushes a leaf's header and its pairs, because the results of later
    /// operations will depend on them. Does not fence. When a process dies, its stores stay in the
    /// caches, and opening finds them there. The blocks that pairs link to were durable before the
    /// pairs were stored.
    fn flush_found(&self, offset: u64, bits: u64) -> Result<(), Damage> {
        // `make_blank` takes a slot that is blank for one that is so durably (invariant 6). But a process
        // that died while it made slots blank has left them in the caches.
        let all = if self.shape.has_blanks::<R>() { self.shape.all_slots() } else { bits };
        let mut used = LEAF_HEADER + u64::from(64 - all.leading_zeros()) * 16;
        seed!(self, bugs::FOUND_LINES_SHORT => used = used.min(LEAF_HEADER + crate::pmem::LINE));
        let words = self.core.memory.words(offset, used)?;
        self.core.memory.flush_words(words, &points::REPAIR_FOUND);
        Ok(())
    }

    /// Clears the bits of pairs that a split has moved to the next leaf, that a merge had copied but
    /// not committed, or that an insert had not made durable together with its bit. Returns the
    /// leaf's bits.
    fn mend(&self, offset: u64, found: &Checked) -> Result<u64, Damage> {
        let core = &self.core;
        let memory = &core.memory;
        let is_moving = found.next.moving && !self.seeded(&index_bugs::HALF_SPLIT_SERVED);
        // Only a crash leaves bits of slots that are blank.
        let is_unclean = self.is_unclean() && !self.seeded(&bugs::UNWRITTEN_SERVED);
        let blank = self.shape.blank::<R>(found.low.first).filter(|_| is_unclean);
        if !is_moving && blank.is_none() {
            return Ok(found.bits);
        }
        let high = match is_moving {
            true => Some(R::key_at(core, self.check_leaf(found.next.offset)?.low.first)?),
            false => None,
        };
        let mut moved = 0;
        for slot in ones(found.bits) {
            let words = self.words(self.pair(offset, slot));
            if Some(words.first) == blank {
                let at = memory.offset_of(self.pair(offset, slot)).raw();
                tracing::debug!(at, "the pair of an insert was not durable");
                moved |= 1 << slot;
                continue;
            }
            let Some(high) = &high else { continue };
            // A pair with a damaged key could seem to belong to the next leaf, and would be lost if
            // its bit were cleared.
            if !R::is_whole(core, words)? {
                let at = memory.offset_of(self.pair(offset, slot)).raw();
                return Err(Damage::new(at, "a whole record", "a torn one"));
            }
            if R::compare_with(core, R::key_of(high), words.first)? != Order::Greater {
                moved |= 1 << slot;
            }
        }
        if moved == 0 {
            return Ok(found.bits);
        }
        // The process that died may not have flushed the link. It must be durable before the bits
        // are cleared, because until then, the pairs are records of this leaf.
        memory.fence(&points::REPAIR_FOUND);
        let head = &self.header(offset).head;
        let left = layout::seal(found.bits & !moved);
        memory.store_release(&head.bitmap, left, &points::REPAIR_CLEAR);
        memory.persist(&head.bitmap, &points::REPAIR_CLEAR);
        if is_moving {
            let done = Next { offset: found.next.offset, moving: false };
            let link = &self.header(offset).place.next;
            memory.store_release(link, done.pack(offset), &points::SPLIT_DONE);
        }
        self.counters.repaired.add_one();
        Ok(found.bits & !moved)
    }
}
