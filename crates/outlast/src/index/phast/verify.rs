//! Verification: checks every leaf, every pair and every record.

use super::layout::unpack_entry;
use super::resize::master_entries;
use super::state::{BLANK, DAMAGED, Leaf, State};
use super::{OrderedRecord, Phast};
use crate::error::Result;
use crate::index::kit::audit::Audit;
use crate::index::kit::media::ones;
use crate::index::kit::table::{Verify, Walk};
use crate::index::ordered::separator_is_whole;
use crate::index::record::SlotWords;
use crate::index::{Cursor, Schemas, Verified, Visitor};
use crate::pmem::Seam;
use std::collections::HashSet;

impl<S: Seam, R: OrderedRecord> Verify<S, R> for Phast<S, R> {
    fn verify(&self, visit: &mut Visitor<'_>, schemas: Schemas<R>) -> Result<Verified> {
        let mut audit = Audit::new(schemas);
        let mut chain = HashSet::new();
        let mut cursor = Cursor::start();
        while !cursor.is_done() {
            let key = R::from_cursor(&cursor);
            let step = self.trace(&mut cursor, visit);
            audit.report(step)?;
            let high = (!cursor.is_done()).then(|| R::from_cursor(&cursor));
            self.verify_leaf(&key, high.as_ref(), &mut audit, &mut chain)?;
        }
        self.verify_master(&chain, &mut audit)?;
        Ok(audit.verified)
    }
}

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    /// Checks the entries of the master array: each must be 0 or a leaf of the chain, the first one
    /// a leaf. If leaves cannot be read, which has been reported already, any leaf is accepted.
    fn verify_master(&self, chain: &HashSet<u64>, audit: &mut Audit<R>) -> Result<()> {
        let seam = self.core.memory.seam();
        let is_whole = seam.lock(&self.damage).is_empty();
        let entries = master_entries(&self.core, self.shape, self.master)?;
        for (index, entry) in entries.iter().enumerate() {
            let word = self.core.memory.load(entry);
            let known = match unpack_entry(self.master, index, word) {
                Some(0) => index > 0,
                Some(leaf) => chain.contains(&leaf) || !is_whole,
                None => false,
            };
            if !known {
                let place = self.core.memory.offset_of(entry).raw();
                audit.wrong(place, "a leaf of the chain", format!("{word:#x}"));
            }
        }
        Ok(())
    }

    /// Checks the leaf with this least key.
    fn verify_leaf(
        &self,
        low: &R::OwnedKey,
        high: Option<&R::OwnedKey>,
        audit: &mut Audit<R>,
        chain: &mut HashSet<u64>,
    ) -> Result<()> {
        let seam = self.core.memory.seam();
        let at = self.locate(R::key_of(low))?;
        let leaf = self.leaf(at.leaf);
        let offset = leaf.offset(seam);
        if offset & DAMAGED != 0 {
            return Ok(());
        }
        chain.insert(offset);
        let own_low = self.words(&self.header(offset).place.low);
        match separator_is_whole::<S, R>(&self.core, own_low) {
            Ok(true) => {}
            Ok(false) => audit.wrong(offset + 80, "a whole separator", format!("{own_low:?}")),
            Err(damage) => {
                audit.wrong(damage.offset(), "a separator", damage.to_string());
            }
        }
        let bits = self.bitmap(offset);
        let state = leaf.state(seam);
        if state.is_tentative() || state.is_closed() || bits & !State::at_rest(state.0).0 != 0 {
            audit.wrong(
                offset,
                "a leaf at rest, its slots in use",
                format!("{state:x?}, {bits:#x}"),
            );
        }
        for (place, words) in self.not_blank(leaf) {
            audit.wrong(place, "a free slot that is blank", format!("{words:?}"));
        }
        match self.next_of(offset) {
            Ok(next) if (next.offset == 0) == high.is_none() => {}
            Ok(next) => audit.wrong(offset + 72, "a link as its node has it", format!("{next:x?}")),
            Err(damage) => audit.wrong(damage.offset(), "a link", damage.to_string()),
        }
        audit.begin_part();
        for slot in self.slots_of(offset) {
            let pair = self.pair(offset, slot);
            let place = self.core.memory.offset_of(pair).raw();
            let words = self.words(pair);
            let key = audit
                .check_record(&self.core, place, words, |key| Ok(self.find_and_read(key, Ok)?));
            if let Some(key) = key
                && (key < *low || high.is_some_and(|high| key >= *high))
            {
                let expected = format!("a key from {low:?} to {high:?}");
                audit.wrong(place, &expected, format!("{key:?}"));
            }
        }
        Ok(())
    }

    /// Returns the offsets and words of a leaf's free slots that should be blank and are not.
    pub(super) fn not_blank(&self, leaf: &Leaf) -> Vec<(u64, SlotWords)> {
        let seam = self.core.memory.seam();
        let (offset, state) = (leaf.offset(seam), leaf.state(seam));
        if leaf.free_slots_are(seam) != BLANK {
            return Vec::new();
        }
        let blank = self.shape.blank::<R>(self.words(&self.header(offset).place.low).first);
        ones(self.shape.all_slots() & !state.0)
            .map(|slot| self.pair(offset, slot))
            .map(|pair| (self.core.memory.offset_of(pair).raw(), self.words(pair)))
            .filter(|(_, words)| Some(words.first) != blank)
            .collect()
    }
}
