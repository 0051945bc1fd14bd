//! Reads what can be read of damaged leaves.

use super::layout::{self, Kind, LeafHeader, Next};
use super::route::Located;
use super::scan::{Edges, is_above, is_below};
use super::state::DAMAGED;
use super::{OrderedRecord, Phast};
use crate::error::{Damage, Result};
use crate::index::kit::collect::Collector;
use crate::index::kit::media::{check_identity, ones};
use crate::index::ordered::KeyRange;
use crate::index::record::SlotWords;
use crate::pmem::{Offset, Seam};
use std::collections::HashSet;

/// Leaves that are not served.
pub(super) struct Missing {
    /// Why.
    pub(super) damage: Damage,
    /// The offset of the first of them, 0 if none can be read.
    pub(super) first: u64,
}

/// What could be read of the two lines of a leaf's header.
struct Parts {
    /// The slots that hold a pair.
    bits: Result<u64, Damage>,
    /// The least key's words, and the link.
    place: Result<(SlotWords, Next), Damage>,
}

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    /// Returns the pairs of a leaf: only the intact ones if the walk checks records, otherwise all.
    /// An intact pair also matches its fingerprint. Otherwise a damaged 8-byte key could look like
    /// a key of another leaf.
    pub(super) fn sound_pairs(
        &self,
        leaf: u64,
        pairs: impl Iterator<Item = (SlotWords, u32)>,
        found: &mut Collector<'_, R>,
    ) -> Result<Vec<(SlotWords, u32)>, Damage> {
        if !found.checks() {
            return Ok(pairs.collect());
        }
        let (mut sound, mut keys) = (Vec::new(), HashSet::new());
        for (words, slot) in pairs {
            if self.is_moved_away(leaf, words, slot) {
                continue;
            }
            let checked = self.check_pair(leaf, slot, words);
            match checked.and_then(|()| R::key(&self.core, words)) {
                Ok(key) => {
                    if found.salvages() && !keys.insert(key) {
                        // A damaged file can be a mix of an old and a new state, and each may have
                        // a record of the key.
                        let at = self.core.memory.offset_of(self.pair(leaf, slot)).raw();
                        found.step_over(Damage::new(at, "each key once", "one a second time"))?;
                    } else {
                        sound.push((words, slot));
                    }
                }
                Err(damage) => found.step_over(damage)?,
            }
        }
        Ok(sound)
    }

    /// Returns whether a split has just made a slot blank that had a bit when the leaf was read. The
    /// leaf's link is marked moving from before that until its bits are cleared.
    fn is_moved_away(&self, leaf: u64, words: SlotWords, slot: u32) -> bool {
        let low = self.words(&self.header(leaf).place.low).first;
        self.shape.blank::<R>(low) == Some(words.first)
            && (self.next_of(leaf).is_ok_and(|next| next.moving)
                || self.bitmap(leaf) >> slot & 1 == 0)
    }

    fn check_pair(&self, leaf: u64, slot: u32, words: SlotWords) -> Result<(), Damage> {
        let hash = R::slot_hash(&self.core.hasher, words);
        let listed = self.candidates(&self.header(leaf).head, 1 << slot, hash as u8) != 0;
        if listed && R::is_whole(&self.core, words)? {
            return Ok(());
        }
        let at = self.core.memory.offset_of(self.pair(leaf, slot)).raw();
        let found = if listed { "a torn one" } else { "one with another fingerprint" };
        Err(Damage::new(at, "a whole record", found))
    }

    /// Collects what can be read of leaves that are not served, and records their damage. Returns
    /// the edges of their entry in the node.
    ///
    /// No operation uses such leaves, so nothing changes them, and no block that they link to is reused.
    pub(super) fn salvage(
        &self,
        at: &Located<'_>,
        damage: Damage,
        range: &KeyRange<R>,
        reverse: bool,
        limit: usize,
        found: &mut Collector<'_, R>,
    ) -> Result<Edges<R::OwnedKey>> {
        let seam = self.core.memory.seam();
        let (mark, edges) = (found.mark(), self.edges_of(at)?);
        if self.leaf(at.leaf).offset(seam) & DAMAGED != 0 {
            let first = seam.lock(&self.damage).get(&at.leaf).map_or(0, |missing| missing.first);
            let mut records = Vec::new();
            self.salvage_leaves(first, &edges, found, &mut records)?;
            records.retain(|(key, _)| is_above(key, &range.low) && is_below(key, &range.high));
            records.sort_unstable_by(|a, b| if reverse { b.0.cmp(&a.0) } else { a.0.cmp(&b.0) });
            records.truncate(limit);
            found.records.append(&mut records);
        }
        found.step_over_once(damage, mark)?;
        Ok(edges)
    }

    /// Follows leaves from the first one on, and collects the records between the edges.
    fn salvage_leaves(
        &self,
        first: u64,
        edges: &Edges<R::OwnedKey>,
        found: &mut Collector<'_, R>,
        records: &mut Vec<(R::OwnedKey, R::Owned)>,
    ) -> Result<(), Damage> {
        let (mut seen, mut keys) = (HashSet::new(), HashSet::new());
        let mut at = first;
        while at != 0 && seen.insert(at) {
            let parts = match self.parts(at) {
                Ok(parts) => parts,
                Err(damage) => return found.step_over(damage),
            };
            let low = parts.place.as_ref().map_or(0, |(low, _)| low.first);
            let blank = self.shape.blank::<R>(low).filter(|_| self.is_unclean());
            let next = parts.place.map(|(_, next)| next).or_else(|damage| {
                found.step_over(damage).map(|()| Next { offset: 0, moving: false })
            })?;
            let after = self.least_key_of(next.offset);
            match parts.bits {
                Ok(bits) => {
                    // While a leaf's link is marked moving, those of its pairs that belong to the
                    // next leaf are also in the next leaf.
                    let high = after.as_ref().filter(|_| next.moving);
                    let is_in = |key: &R::OwnedKey| {
                        *key >= edges.low
                            && edges.high.as_ref().is_none_or(|high| key < high)
                            && high.is_none_or(|high| key < high)
                    };
                    let pairs = ones(bits)
                        .map(|slot| (self.words(self.pair(at, slot)), slot))
                        .filter(|(words, _)| blank != Some(words.first));
                    for (words, _) in self.sound_pairs(at, pairs, found)? {
                        let (key, value) =
                            (R::key(&self.core, words)?, R::value(&self.core, words)?);
                        if is_in(&key) && keys.insert(key.clone()) {
                            records.push((key, value));
                        }
                    }
                }
                Err(damage) => found.step_over(damage)?,
            }
            if let (Some(after), Some(high)) = (&after, &edges.high)
                && after >= high
            {
                return Ok(());
            }
            at = next.offset;
        }
        Ok(())
    }

    /// Returns the least key of a leaf, if it can be read.
    fn least_key_of(&self, leaf: u64) -> Option<R::OwnedKey> {
        let (low, _) = (leaf != 0).then(|| self.parts(leaf).ok()?.place.ok())??;
        R::key_at(&self.core, low.first).ok()
    }

    /// Reads the two lines of a leaf's header, independently of each other.
    fn parts(&self, leaf: u64) -> Result<Parts, Damage> {
        let memory = &self.core.memory;
        memory.words(leaf, self.shape.leaf_bytes())?;
        let header = memory.at(Offset::<LeafHeader>::new(leaf))?;
        let word = memory.load_acquire(&header.head.bitmap);
        let bits = word & self.shape.all_slots();
        let sealed = word == layout::seal(bits);
        let unsealed = || {
            let expected = format!("bits of {} slots with their seal", self.shape.leaf_slots);
            Damage::new(leaf, expected, format!("{word:#x}"))
        };
        let low = self.words(&header.place.low);
        let expected = layout::identity(Kind::Leaf, self.shape.leaf_slots, leaf, low.first);
        let place = check_identity(memory, &header.place.identity, expected, "a leaf")
            .and_then(|()| Ok((low, self.next_of(leaf)?)));
        Ok(Parts { bits: sealed.then_some(bits).ok_or_else(unsealed), place })
    }
}
