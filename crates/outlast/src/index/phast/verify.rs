//! The offline check: every leaf, every pair, every record.

use super::layout::unpack_entry;
use super::resize::master_entries;
use super::state::{DAMAGED, State};
use super::{OrderedRecord, Phast};
use crate::error::{Damage, Error, Result};
use crate::index::ordered::separator_is_whole;
use crate::index::{Cursor, Verified, Visitor};
use crate::pmem::Seam;
use std::collections::HashSet;

impl<S: Seam, R: OrderedRecord> Phast<S, R> {
    /// Checks everything. The caller holds the gate: nothing else runs.
    pub(super) fn verify_all(&self, visit: &mut Visitor<'_>) -> Result<Verified> {
        let mut verified = Verified::default();
        let mut chain = HashSet::new();
        let mut cursor = Cursor::start();
        while !cursor.is_done() {
            let key = R::from_cursor(&cursor);
            match self.trace_next(&mut cursor, visit) {
                Ok(()) => {}
                // The rest is still checked.
                Err(Error::Damaged(damage)) => verified.damage.push(damage),
                Err(error) => return Err(error),
            }
            let high = (!cursor.is_done()).then(|| R::from_cursor(&cursor));
            self.verify_leaf(&key, high.as_ref(), &mut verified, &mut chain)?;
        }
        self.verify_master(&chain, &mut verified)?;
        Ok(verified)
    }

    /// Checks the entries of the master array: each is none, or a leaf of the chain. Leaves that
    /// nothing can be said of have been told of.
    fn verify_master(&self, chain: &HashSet<u64>, verified: &mut Verified) -> Result<()> {
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
                let expected = "a leaf of the chain";
                verified.damage.push(Damage::new(place, expected, format!("{word:#x}")));
            }
        }
        Ok(())
    }

    /// Checks the leaf whose least key this is.
    fn verify_leaf(
        &self,
        low: &R::OwnedKey,
        high: Option<&R::OwnedKey>,
        verified: &mut Verified,
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
        let mut wrong = |offset, expected: &str, found: String| {
            verified.damage.push(Damage::new(offset, expected, found));
        };
        let own_low = self.words(&self.header(offset).place.low);
        match separator_is_whole::<S, R>(&self.core, own_low) {
            Ok(true) => {}
            Ok(false) => wrong(offset + 80, "a whole separator", format!("{own_low:?}")),
            Err(damage) => {
                wrong(damage.offset(), "a separator", damage.to_string());
            }
        }
        let bits = self.bitmap(offset);
        let state = leaf.state(seam);
        if state.is_tentative() || state.is_closed() || bits & !State::at_rest(state.0).0 != 0 {
            wrong(offset, "a leaf at rest, its slots in use", format!("{state:x?}, {bits:#x}"));
        }
        match self.next_of(offset) {
            Ok(next) if (next.offset == 0) == high.is_none() => {}
            Ok(next) => wrong(offset + 72, "a link as its node has it", format!("{next:x?}")),
            Err(damage) => wrong(damage.offset(), "a link", damage.to_string()),
        }
        let mut keys = HashSet::new();
        for slot in self.slots_of(offset) {
            let pair = self.pair(offset, slot);
            let place = self.core.memory.offset_of(pair).raw();
            let words = self.words(pair);
            verified.records += 1;
            let key = match R::is_whole(&self.core, words)
                .and_then(|whole| Ok(if whole { Some(R::key(&self.core, words)?) } else { None }))
            {
                Ok(Some(key)) => key,
                Ok(None) => {
                    verified.torn += 1;
                    let found = "one whose checksum or hash does not match";
                    verified.damage.push(Damage::new(place, "a whole record", found));
                    continue;
                }
                Err(damage) => {
                    verified.torn += 1;
                    verified.damage.push(damage);
                    continue;
                }
            };
            if key < *low || high.is_some_and(|high| key >= *high) {
                let expected = format!("a key from {low:?} to {high:?}");
                verified.damage.push(Damage::new(place, expected, format!("{key:?}")));
            }
            if !keys.insert(key.clone()) {
                verified.duplicated += 1;
                let found = format!("key {key:?} a second time");
                verified.damage.push(Damage::new(place, "each key once", found));
            }
            // What stands in the leaf must be what a lookup finds.
            let key = R::key_of(&key);
            let hash = R::hash(&self.core.hasher, key);
            let found = self.find(key, hash, Ok);
            if !matches!(found, Ok(Some(found)) if found == words) {
                let found = "one that they do not";
                verified.damage.push(Damage::new(place, "a record that lookups find", found));
            }
        }
        Ok(())
    }
}
