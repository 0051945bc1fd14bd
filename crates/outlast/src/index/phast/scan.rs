//! Walks over the leaves: ranges, iteration, the trace of all blocks, samples.

use super::layout::master_bytes;
use super::nodes::{NONE, Node};
use super::ops::PATIENCE;
use super::route::Located;
use super::state::{DAMAGED, State};
use super::{OrderedRecord, Phast, UNLISTED};
use crate::error::{Boxed, Damage, Error, Result};
use crate::index::kit::collect::Collector;
use crate::index::kit::media::ones;
use crate::index::kit::table::Walk;
use crate::index::ordered::KeyRange;
use crate::index::record::SlotWords;
use crate::index::version::{is_unchanged, version};
use crate::index::{BlockKind, Care, Cursor, CursorState, IndexStats, Visitor};
use crate::pmem::Seam;
use std::ops::Bound;

/// The most pairs of a leaf: its bitmap is one word.
const MAX_SLOTS: usize = 64;

/// The most leaves that a sample reads.
const SAMPLE: u64 = 256;

/// The least key of a leaf, and that of the next leaf, if there is one.
pub(super) struct Edges<K> {
    pub(super) low: K,
    pub(super) high: Option<K>,
}

/// A snapshot of a leaf at some moment, used to tell whether it has had the same keys since.
struct Seen<'n> {
    at: Located<'n>,
    /// Read before the bits.
    state: State,
    bits: u64,
}

pub(super) fn is_above<K: Ord>(key: &K, bound: &Bound<K>) -> bool {
    match bound {
        Bound::Included(bound) => key >= bound,
        Bound::Excluded(bound) => key > bound,
        Bound::Unbounded => true,
    }
}

pub(super) fn is_below<K: Ord>(key: &K, bound: &Bound<K>) -> bool {
    match bound {
        Bound::Included(bound) => key <= bound,
        Bound::Excluded(bound) => key < bound,
        Bound::Unbounded => true,
    }
}

impl<R: OrderedRecord> KeyRange<R> {
    /// Returns whether the range becomes smaller when a leaf with these edges is removed from it.
    fn goes_on(&self, edges: &Edges<R::OwnedKey>, reverse: bool) -> bool {
        match (reverse, &self.low, &self.high) {
            (false, Bound::Included(key) | Bound::Excluded(key), _) => {
                edges.high.as_ref().is_none_or(|high| high > key)
            }
            (true, _, Bound::Included(key)) => edges.low <= *key,
            (true, _, Bound::Excluded(key)) => edges.low < *key,
            _ => true,
        }
    }
}

impl<S: Seam, R: OrderedRecord> Walk<S, R> for Phast<S, R> {
    /// Does one step of an iteration: the records of one leaf.
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()> {
        if cursor.is_done() {
            return Ok(());
        }
        let low = Bound::Included(R::from_cursor(cursor));
        let mut range = KeyRange::new(low, Bound::Unbounded).with_care(cursor.care);
        let start = out.len();
        let step = self.range_step(&mut range, false, usize::MAX, out);
        cursor.lost.append(&mut range.lost);
        step?;
        self.decode(&mut out[start..]);
        match range.low {
            Bound::Included(low) if !range.done => {
                R::to_cursor(low, cursor);
                cursor.state = CursorState::Inside;
            }
            _ => cursor.finish(),
        }
        Ok(())
    }

    /// Does one step of the trace: first the master array, then one leaf at a time with everything
    /// it links to. The caller has passed the gate, or holds it.
    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()> {
        match cursor.state {
            CursorState::Done => return Ok(()),
            CursorState::Start => {
                let bytes = master_bytes(self.shape.partitions);
                visit(BlockKind::Directory, self.master, bytes)?;
                cursor.state = CursorState::Inside;
            }
            CursorState::Inside => {}
        }
        let key = R::from_cursor(cursor);
        let mut turn = 0;
        let (at, blocks, high) = loop {
            let at = self.locate(R::key_of(&key))?;
            let blocks = self.blocks_of(&at);
            let edges = self.edges_of(&at);
            // A thread that moves a block meanwhile, in a split, a merge or otherwise, marks the
            // block, so the trace may miss it. But what was read must have been the leaf, and not a
            // block that was reused.
            if self.is_current(&at) {
                break (at, blocks, edges.map(|edges| edges.high));
            }
            self.core.wait(&mut turn)?;
        };
        // Skips a leaf that cannot be read, so that the caller can go on.
        let found = match high {
            Ok(Some(high)) if high <= key => {
                cursor.finish();
                Err(self.goes_round(&at, &Edges { low: key, high: Some(high) }))
            }
            Ok(Some(high)) => {
                R::to_cursor(high, cursor);
                Ok(())
            }
            Ok(None) => {
                cursor.finish();
                Ok(())
            }
            Err(damage) => {
                cursor.finish();
                Err(damage)
            }
        };
        for (kind, offset, bytes) in blocks? {
            visit(kind, offset, bytes)?;
        }
        Ok(found?)
    }

    /// Estimates the number of records from a sample of leaves, spread evenly over all.
    fn stats(&self) -> Result<IndexStats> {
        let seam = self.core.memory.seam();
        let leaves: u64 = self.each_node().map(|node| node.len(self.seam()) as u64).sum();
        let step = leaves.div_ceil(SAMPLE).max(1) as usize;
        let (mut records, mut sampled) = (0, 0);
        let places = self
            .each_node()
            .flat_map(|node| (0..node.len(self.seam())).map(move |at| node.leaf(self.seam(), at)));
        for leaf in places.step_by(step) {
            let offset = self.leaf(leaf).offset(seam);
            if offset & DAMAGED == 0 {
                records += u64::from(self.bitmap(offset).count_ones());
            }
            sampled += 1;
        }
        let nodes = self.nodes.in_use(seam);
        let states = u64::from(self.leaves.numbers(seam));
        let state = size_of::<super::Leaf>() as u64 + if R::EMPTY.is_some() { 8 } else { 0 };
        let caches: u64 = self.caches.iter().map(|cache| cache.bytes(seam)).sum();
        Ok(IndexStats {
            segments: leaves,
            directory_entries: nodes,
            records_estimate: records * leaves / sampled.max(1),
            slots: leaves * u64::from(self.shape.leaf_slots),
            dram_bytes: states * state + self.nodes.bytes(seam) + caches + self.top.bytes(seam),
            ..self.counters.stats()
        })
    }
}

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    // ---- Ranges -----------------------------------------------------------------

    /// Reads one leaf of a range, and removes it from the range. See
    /// [`OrderedIndex::next`](crate::index::OrderedIndex::next).
    pub(super) fn range_step(
        &self,
        range: &mut KeyRange<R>,
        reverse: bool,
        limit: usize,
        out: &mut Vec<(R::OwnedKey, R::Owned)>,
    ) -> Result<()> {
        let mut found = Collector::new(range.care, out);
        let step = self.range_step_seeing(range, reverse, limit, &mut found);
        found.finish(&mut range.lost);
        step.map(|_| ())
    }

    /// Does what [`range_step`](Self::range_step) does. Returns a snapshot of the leaf, or `None`
    /// if the range can hold nothing more.
    fn range_step_seeing(
        &self,
        range: &mut KeyRange<R>,
        reverse: bool,
        limit: usize,
        found: &mut Collector<'_, R>,
    ) -> Result<Option<Seen<'_>>> {
        let (start, first) = (found.mark(), found.records.len());
        let (mut turn, mut readings) = (0, 0);
        let mut guard = None;
        let (edges, seen) = loop {
            self.core.check()?;
            let Some(at) = self.locate_end(range, reverse)? else {
                range.done = true;
                return Ok(None);
            };
            let read = match self.read_leaf(&at, range, reverse, limit, guard.is_some(), found) {
                Err(Error::Damaged(damage)) if found.salvages() => {
                    found.reset(start);
                    let edges = self.salvage(&at, damage, range, reverse, limit, found)?;
                    let state = self.leaf(at.leaf).state(self.core.memory.seam());
                    Ok(Some((edges, Seen { at, state, bits: 0 })))
                }
                read => read,
            };
            match read {
                Ok(Some((edges, seen))) if range.goes_on(&edges, reverse) => break (edges, seen),
                Ok(Some((edges, _))) => {
                    found.reset(start);
                    return Err(self.goes_round(&at, &edges).into());
                }
                other => {
                    found.reset(start);
                    other?;
                }
            }
            readings += 1;
            if readings == PATIENCE {
                guard = self.guard();
            }
            self.core.wait(&mut turn)?;
        };
        if found.records.len() - first == limit {
            let last = Bound::Excluded(found.records[found.records.len() - 1].0.clone());
            if reverse {
                range.high = last;
            } else {
                range.low = last;
            }
            return Ok(Some(seen));
        }
        if reverse {
            range.done = edges.low == R::least() || !is_above(&edges.low, &range.low);
            range.high = Bound::Excluded(edges.low);
        } else {
            match edges.high {
                Some(high) => {
                    range.done = !is_below(&high, &range.high);
                    range.low = Bound::Included(high);
                }
                None => range.done = true,
            }
        }
        Ok(Some(seen))
    }

    /// Returns the record at one end of a range, at one moment. See
    /// [`OrderedIndex::end`](crate::index::OrderedIndex::end).
    pub(super) fn range_end(
        &self,
        range: &KeyRange<R>,
        reverse: bool,
    ) -> Result<Option<(R::OwnedKey, R::Owned)>> {
        let (mut turn, mut out, mut passed) = (0, Vec::new(), Vec::new());
        loop {
            let mut rest = range.clone();
            while out.is_empty() && !rest.done {
                let mut found = Collector::new(rest.care, &mut out);
                passed.extend(self.range_step_seeing(&mut rest, reverse, 1, &mut found)?);
            }
            // The leaves that had no record in the range have had none at any time until now.
            if passed.iter().all(|seen| self.is_as_seen(seen)) {
                return Ok(out.pop());
            }
            out.clear();
            passed.clear();
            self.core.wait(&mut turn)?;
        }
    }

    /// Returns whether a leaf has had the same keys at all times since the snapshot.
    fn is_as_seen(&self, seen: &Seen<'_>) -> bool {
        let seam = self.core.memory.seam();
        let offset = self.leaf(seen.at.leaf).offset(seam);
        // The slots of keys that came and went stay taken until the leaf is compacted.
        offset & DAMAGED == 0
            && !seen.state.has_inserts()
            && self.bitmap(offset) == seen.bits
            && self.state_after(self.leaf(seen.at.leaf)).has_slots_of(seen.state)
            && self.is_current(&seen.at)
    }

    /// Finds the leaf in which a range continues. Returns `None` if the range can hold nothing
    /// more.
    fn locate_end(&self, range: &KeyRange<R>, reverse: bool) -> Boxed<Option<Located<'_>>> {
        let bound = if reverse { &range.high } else { &range.low };
        match bound {
            Bound::Excluded(key) if reverse => self.locate_below(R::key_of(key)),
            Bound::Included(key) | Bound::Excluded(key) => self.locate(R::key_of(key)).map(Some),
            Bound::Unbounded if reverse => self.locate_last().map(Some),
            Bound::Unbounded => self.locate(R::key_of(&R::least())).map(Some),
        }
    }

    /// Finds the last leaf.
    fn locate_last(&self) -> Boxed<Located<'_>> {
        let seam = self.core.memory.seam();
        let mut turn = 0;
        let hint = self
            .top
            .last(self.seam())
            .and_then(|entry| self.caches.get(entry as usize)?.last(self.seam()));
        let mut number = hint.unwrap_or(self.first);
        loop {
            let node = self.node(number);
            let lock = node.lock(seam);
            let Some(version) = version(&lock) else {
                self.core.wait(&mut turn)?;
                continue;
            };
            let (len, next) = (node.len(self.seam()), node.next(self.seam()));
            if !is_unchanged(&lock, version) {
                self.core.wait(&mut turn)?;
                continue;
            }
            match (len, next) {
                // The node has been removed since its number was read.
                (0, _) => number = self.first,
                (_, NONE) => return Ok(Located::new(self.seam(), node, version, len - 1)),
                (_, next) => number = next,
            }
        }
    }

    /// Appends the records of a leaf that are in a range, in order, at most `limit`. Returns `None`
    /// if the read is not valid.
    fn read_leaf<'n>(
        &self,
        at: &Located<'n>,
        range: &KeyRange<R>,
        reverse: bool,
        limit: usize,
        guarded: bool,
        found: &mut Collector<'_, R>,
    ) -> Result<Option<(Edges<R::OwnedKey>, Seen<'n>)>> {
        if let Some(leaf) = self.listed(at.line) {
            self.prefetch_all(leaf);
        }
        // If the scan does not end here, the cache misses of the next leaf overlap with those of this one.
        let goes_on = limit >= self.shape.leaf_slots as usize;
        if goes_on {
            self.prefetch_next(at, reverse);
        }
        let leaf = self.leaf(at.leaf);
        let Some(offset) = self.offset_to_read(at, leaf)? else { return Ok(None) };
        if offset >= UNLISTED {
            self.prefetch_all(offset);
        }
        let state = leaf.state(self.core.memory.seam());
        let replaced = self.replaced_before(at.leaf);
        let bits = self.bitmap(offset);
        let seen = Seen { at: *at, state, bits };
        let lows =
            (at.node.entry(self.seam(), at.place).low, at.node.high_of(self.seam(), at.place));
        let pairs = ones(bits).map(|slot| (self.words(self.pair(offset, slot)), slot));
        let ahead = || {
            if !goes_on {
                self.prefetch_next(at, reverse);
            }
        };
        if guarded {
            // Under a guard, the blocks that are linked now keep their content, so reading the
            // links is enough. It is not known yet which of the pairs the result will depend on, so
            // all of them are made durable if necessary.
            let pairs: Vec<_> = pairs.collect();
            let state = self.state_after(leaf);
            if !self.is_still(at) {
                return Ok(None);
            }
            if state.is_tentative() {
                self.help(offset, ones(bits));
            }
            let pairs = self.sound_pairs(offset, pairs.into_iter(), found)?.into_iter();
            let (edges, _) =
                self.read_pairs(pairs, lows, range, reverse, limit, ahead, found.records)?;
            return Ok(Some((edges, seen)));
        }
        let read = if found.checks() {
            self.sound_pairs(offset, pairs, found).and_then(|pairs| {
                let (pairs, out) = (pairs.into_iter(), &mut *found.records);
                self.read_pairs(pairs, lows, range, reverse, limit, ahead, out)
            })
        } else {
            self.read_pairs(pairs, lows, range, reverse, limit, ahead, found.records)
        };
        // After the read, as in `read_once`.
        let state = self.state_after(leaf);
        if !self.is_unreplaced(replaced) || !self.is_still(at) {
            return Ok(None);
        }
        let (edges, read) = read.map_err(Error::Damaged)?;
        if state.is_tentative() {
            self.help(offset, ones(read));
        }
        Ok(Some((edges, seen)))
    }

    /// Appends the records of `pairs` whose keys are in `range` and inside the leaf's bounds, in
    /// order, at most `limit` of them. `lows` has the first words of the bounds: the least keys of
    /// the leaf and of the next one. Calls `ahead` if fewer than `limit` records match.
    ///
    /// Returns the bounds, and a bitmap with the slots of all appended records (and, for inline
    /// records, of those beyond `limit`).
    #[expect(clippy::too_many_arguments, reason = "what is read, what of it, and where to")]
    #[inline(always)]
    fn read_pairs(
        &self,
        pairs: impl Iterator<Item = (SlotWords, u32)>,
        lows: (u64, Option<u64>),
        range: &KeyRange<R>,
        reverse: bool,
        limit: usize,
        ahead: impl Fn(),
        out: &mut Vec<(R::OwnedKey, R::Owned)>,
    ) -> Result<(Edges<R::OwnedKey>, u64), Damage> {
        let core = &self.core;
        let high = lows.1.map(|high| R::key_at(core, high)).transpose()?;
        let edges = Edges { low: R::key_at(core, lows.0)?, high };
        let is_in = |key: &R::OwnedKey| {
            edges.low <= *key
                && edges.high.as_ref().is_none_or(|high| key < high)
                && is_above(key, &range.low)
                && is_below(key, &range.high)
        };
        let mut read = 0u64;
        if R::EMPTY.is_none() {
            // Values are read together with their keys.
            let start = out.len();
            out.reserve(self.shape.leaf_slots as usize);
            for (words, slot) in pairs {
                let key = R::key(core, words)?;
                if is_in(&key) {
                    read |= 1 << slot;
                    out.push((key, R::value_unless(range.care == Care::Keys, core, words)?));
                }
            }
            if out.len() - start < limit {
                ahead();
            }
            R::sort(&mut out[start..]);
            if reverse {
                out[start..].reverse();
            }
            out.truncate(start.saturating_add(limit));
            return Ok((edges, read));
        }
        // The cache misses of all blocks overlap if none is waited for before the last is asked for.
        let mut row = [(SlotWords { first: 0, second: 0 }, 0); MAX_SLOTS];
        let mut len = 0;
        for pair in pairs {
            R::prefetch(core, pair.0);
            row[len] = pair;
            len += 1;
        }
        // All keys of the leaf share what its bounds share, so most comparisons end with the eight
        // bytes after that.
        let skip =
            edges.high.as_ref().map_or(0, |high| R::shared(R::key_of(&edges.low), R::key_of(high)));
        let mut keys = [const { None }; MAX_SLOTS];
        let mut order = [(0, 0); MAX_SLOTS];
        let mut matching = 0;
        for (number, &(words, _)) in row[..len].iter().enumerate() {
            let key = R::key(core, words)?;
            if is_in(&key) {
                order[matching] = (R::word(R::key_of(&key), skip), number);
                keys[number] = Some(key);
                matching += 1;
            }
        }
        if matching < limit {
            ahead();
        }
        let order = &mut order[..matching];
        order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| keys[a.1].cmp(&keys[b.1])));
        if reverse {
            order.reverse();
        }
        for &(_, number) in order.iter().take(limit) {
            let (words, slot) = row[number];
            let Some(key) = keys[number].take() else { continue };
            read |= 1 << slot;
            out.push((key, R::value_unless(range.care == Care::Keys, core, words)?));
        }
        Ok((edges, read))
    }

    /// Prefetches the next leaf of a scan, if the same node lists it. Nothing here is validated.
    fn prefetch_next(&self, at: &Located<'_>, reverse: bool) {
        let next = if reverse { at.place.checked_sub(1) } else { Some(at.place + 1) };
        if let Some(place) = next.filter(|&place| place < at.node.len(self.seam()))
            && let Some(leaf) = self.listed(at.node.leaf_and_line(self.seam(), place).1)
        {
            self.prefetch_all(leaf);
        }
    }

    /// Returns the damage to report when a walk would come back to a leaf that it has already
    /// passed. That happens only if a separator, which each step reads again, is damaged.
    #[cold]
    fn goes_round(&self, at: &Located<'_>, edges: &Edges<R::OwnedKey>) -> Damage {
        let offset = self.leaf(at.leaf).offset(self.core.memory.seam()) & !DAMAGED;
        let found = format!("one from {:?} to {:?}", edges.low, edges.high);
        Damage::new(offset, "a leaf after the previous one", found)
    }

    /// Returns the keys that bound a leaf. The result must be validated.
    pub(super) fn edges_of(&self, at: &Located<'_>) -> Result<Edges<R::OwnedKey>, Damage> {
        let low = R::key_at(&self.core, at.node.entry(self.seam(), at.place).low)?;
        let high = at.node.high_of(self.seam(), at.place);
        let high = high.map(|high| R::key_at(&self.core, high)).transpose()?;
        Ok(Edges { low, high })
    }

    // ---- Trace ------------------------------------------------------------------

    /// Returns the blocks of a leaf. The result must be validated.
    fn blocks_of(&self, at: &Located<'_>) -> Result<Vec<(BlockKind, u64, u64)>> {
        let offset = self.leaf(at.leaf).offset(self.core.memory.seam());
        if offset & DAMAGED != 0 {
            return Err(self.damage_of(at.leaf).into());
        }
        let mut blocks = vec![(BlockKind::Segment, offset, self.shape.leaf_bytes())];
        let Some(empty) = R::EMPTY else { return Ok(blocks) };
        let low = self.words(&self.header(offset).place.low);
        if low.first != empty {
            let (offset, bytes) = R::extent(&self.core, low)?;
            blocks.push((BlockKind::Record, offset, bytes));
        }
        for slot in self.slots_of(offset) {
            // The link alone says where the block is, even if the second word is of another pair.
            let (offset, bytes) = R::extent(&self.core, self.words(self.pair(offset, slot)))?;
            blocks.push((BlockKind::Record, offset, bytes));
        }
        Ok(blocks)
    }

    // ---- Samples ----------------------------------------------------------------

    /// Yields each node, in order. With concurrent writers, one may be missed.
    fn each_node(&self) -> impl Iterator<Item = &Node> {
        let mut number = self.first;
        let mut left = self.nodes.in_use(self.core.memory.seam());
        std::iter::from_fn(move || {
            if number == NONE || left == 0 {
                return None;
            }
            left -= 1;
            let node = self.node(number);
            number = node.next(self.seam());
            Some(node)
        })
    }
}
