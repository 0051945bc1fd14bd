//! The walk of a PhaST index: the master array and the chain of leaves.

use super::image::{LOW48, crc_words, fold16, identity};
use super::record::Slot;
use super::{MapReport, Owner, SchemeWalk, Walk, What};
use outlast::internals::pool::layout::RecordForm;
use outlast::{Damage, Error, Result};
use std::collections::HashSet;

/// The entry in the table of walks.
pub(super) const WALK: SchemeWalk = SchemeWalk {
    number: 3,
    name: "phast",
    root: What::PhastRoot,
    walk: |walk, map, place, words, config| walk.walk_phast(map, place, words[0], config),
};

const MAX_SLOTS: u32 = 56;
pub(super) const LEAF_HEADER: u64 = 128;
const MASTER_HEADER: u64 = 64;
const MAX_PARTITIONS: u32 = 1024;

/// Returns the size, in bytes, of a leaf with `slots` slots.
pub(super) fn leaf_bytes(slots: u32) -> u64 {
    LEAF_HEADER + u64::from(slots) * 16
}

/// Returns the size, in bytes, of a master array with `partitions` partitions.
fn master_bytes(partitions: u32) -> u64 {
    (MASTER_HEADER + u64::from(partitions) * 8).max(256)
}

const MASTER: u64 = 0xfa57;
pub(super) const LEAF: u64 = 0xfa58;

/// The layout of a map's leaves.
#[derive(Clone, Copy)]
pub(super) struct Leaves {
    pub(super) slots: u32,
}

impl Leaves {
    /// Returns the layout that a map's configuration describes, if it describes one.
    pub(super) fn new([slots, ..]: [u64; 3]) -> Option<Leaves> {
        let known = (4..=u64::from(MAX_SLOTS)).contains(&slots) && slots.is_multiple_of(4);
        known.then_some(Leaves { slots: slots as u32 })
    }

    /// Returns the bitmap's bits, if the word is one of a leaf.
    pub(super) fn bits(self, bitmap: u64) -> Option<u64> {
        let bits = bitmap & ((1 << self.slots) - 1);
        // The codes of the slots: the numbers with two or more bits set, with bit 6 added where
        // needed to make their bit count odd.
        let codes = (3..64u64).filter(|n| n.count_ones() > 1);
        let codes = codes.map(|n| if n.count_ones() % 2 == 0 { n | 64 } else { n }).enumerate();
        let seal = codes.filter(|(slot, _)| bits >> slot & 1 == 1).fold(128, |s, (_, n)| s ^ n);
        (bitmap ^ bits == seal << 56).then_some(bits)
    }
}

/// A leaf's header, after it was checked.
pub(super) struct Leaf {
    pub(super) bits: u64,
    pub(super) next: u64,
    /// Whether the leaf may have pairs whose keys belong to the next leaf, from an unfinished split
    /// or merge.
    pub(super) moving: bool,
    /// The leaf's least key, and the words that encode it.
    low: Vec<u8>,
    pub(super) low_words: [u64; 2],
}

impl Walk<'_, '_> {
    fn walk_phast(
        &mut self,
        map: &mut MapReport,
        place: u64,
        word: u64,
        config: [u64; 3],
    ) -> Result<()> {
        let [_, nodes, order] = config;
        let partitions = nodes >> 32;
        let known = (4..=1024).contains(&(nodes & 0xffff_ffff))
            && (1..=u64::from(MAX_PARTITIONS)).contains(&partitions)
            && matches!(order, 0 | 1 | 2 | 4 | 8 | 0x101 | 0x102 | 0x104 | 0x108);
        let Some(leaves) = Leaves::new(config).filter(|_| known) else {
            return Err(Damage::new(place, "a shape of leaves", format!("{config:?}")).into());
        };
        let master = word & LOW48;
        if master == 0 || word >> 48 != fold16(crc_words(&[master, MASTER])) {
            let expected = "a master array's offset";
            return Err(Damage::new(place, expected, format!("{word:#x}")).into());
        }
        let expected = identity(MASTER, partitions, master, 0);
        let found = self.image.word(master)?;
        if found != expected {
            let expected = format!("a master array ({expected:#x})");
            return Err(Damage::new(master, expected, format!("{found:#x}")).into());
        }
        self.claim(master, master_bytes(partitions as u32), Owner::Structure)?;
        self.region(master, 8, What::Master { entries: partitions as u32 });
        self.region(master + MASTER_HEADER, 8 * partitions, What::MasterEntries);
        let mut starts = Vec::new();
        let words = self.image.words(master + MASTER_HEADER, partitions)?;
        for (index, &word) in words.iter().enumerate() {
            let leaf = word & LOW48;
            if word >> 48 != fold16(crc_words(&[leaf, master, index as u64])) {
                let at = master + MASTER_HEADER + 8 * index as u64;
                let damage = Damage::new(at, "an entry of the master array", format!("{word:#x}"));
                if index == 0 {
                    return Err(damage.into());
                }
                map.whole = false;
                self.problem(damage);
            } else if leaf != 0 {
                starts.push(leaf);
            } else if index == 0 {
                let at = master + MASTER_HEADER;
                return Err(Damage::new(at, "the first leaf", "none").into());
            }
        }
        self.walk_leaves(map, leaves, &starts)
    }

    /// Walks the chain of leaves. `starts` are the first leaves of the partitions. Each of them
    /// must be on the chain.
    fn walk_leaves(&mut self, map: &mut MapReport, leaves: Leaves, starts: &[u64]) -> Result<()> {
        let mut seen = HashSet::new();
        let mut at = starts[0];
        let mut leaf = self.leaf(map.form, leaves, at)?;
        if !leaf.low.iter().all(|&byte| byte == 0) || leaf.low_words != [0, 0] {
            let found = format!("{:x?}", leaf.low);
            return Err(Damage::new(at + 80, "the least key of all", found).into());
        }
        loop {
            seen.insert(at);
            let next = match leaf.next {
                0 => None,
                next => Some(self.leaf(map.form, leaves, next)?),
            };
            if let Some(next) = &next
                && next.low <= leaf.low
            {
                let found = format!("{:x?} after {:x?}", next.low, leaf.low);
                return Err(Damage::new(leaf.next, "least keys that ascend", found).into());
            }
            self.walk_leaf(map, leaves, at, &leaf, next.as_ref().map(|next| &next.low))?;
            let Some(next) = next else { break };
            (at, leaf) = (leaf.next, next);
        }
        for start in starts {
            if !seen.contains(start) {
                let found = "one that the links do not lead to";
                self.problem(Damage::new(*start, "a leaf of the chain", found));
            }
        }
        Ok(())
    }

    /// Reads a leaf's header, and checks it.
    pub(super) fn leaf(&self, form: RecordForm, leaves: Leaves, at: u64) -> Result<Leaf> {
        let Leaves { slots } = leaves;
        if !at.is_multiple_of(64) || at == 0 {
            return Err(Damage::new(at, "a leaf at a multiple of 64", "another offset").into());
        }
        let words = self.image.words(at, LEAF_HEADER / 8)?;
        let (bitmap, found, link) = (words[0], words[8], words[9]);
        let low_words = [words[10], words[11]];
        let expected = identity(LEAF, u64::from(slots), at, low_words[0]);
        if found != expected {
            let expected = format!("a leaf ({expected:#x})");
            return Err(Damage::new(at + 64, expected, format!("{found:#x}")).into());
        }
        let low48 = link & LOW48;
        if link >> 48 != fold16(crc_words(&[low48, at])) || low48 & 0x3e != 0 {
            let expected = "a leaf's link to the next one";
            return Err(Damage::new(at + 72, expected, format!("{link:#x}")).into());
        }
        let Some(bits) = leaves.bits(bitmap) else {
            let expected = format!("bits of {slots} slots with their seal");
            return Err(Damage::new(at, expected, format!("{bitmap:#x}")).into());
        };
        let low = match form {
            RecordForm::Inline => low_words[0].to_be_bytes().to_vec(),
            RecordForm::Bytes if low_words == [0, 0] => Vec::new(),
            RecordForm::Bytes => self.record(Slot { place: at + 80, words: low_words })?.0,
        };
        Ok(Leaf { bits, next: low48 & !1, moving: low48 & 1 == 1, low, low_words })
    }

    fn walk_leaf(
        &mut self,
        map: &mut MapReport,
        Leaves { slots }: Leaves,
        at: u64,
        leaf: &Leaf,
        high: Option<&Vec<u8>>,
    ) -> Result<()> {
        self.claim(at, leaf_bytes(slots), Owner::Structure)?;
        self.region(at, 64, What::LeafHead { slots });
        self.region(at + 64, 32, What::LeafPlace { form: map.form, slots });
        map.segments += 1;
        if map.form == RecordForm::Inline {
            self.seen.leaves.push((leaf.low_words[0], at, leaf.next));
        }
        if map.form == RecordForm::Bytes && leaf.low_words[0] != 0 {
            self.claim_record(leaf.low_words[0], Owner::Structure)?;
        }
        let pairs = self.image.words(at + LEAF_HEADER, 2 * u64::from(slots))?;
        let fingerprints = self.image.bytes(at + 8, u64::from(slots))?;
        let mut keys = HashSet::new();
        for slot in (0..slots as usize).filter(|slot| leaf.bits >> slot & 1 == 1) {
            let place = at + LEAF_HEADER + slot as u64 * 16;
            let [first, second] = [pairs[2 * slot], pairs[2 * slot + 1]];
            let is_inline = map.form == RecordForm::Inline;
            let blank = leaf.low_words[0].checked_sub(1);
            if !self.report.free_state && is_inline && Some(first) == blank {
                // A crash has lost the pair of an insert, but not its bit.
                continue;
            }
            match self.walk_pair(
                map,
                place,
                [first, second],
                fingerprints[slot],
                leaf,
                high,
                &mut keys,
            ) {
                Ok(()) => {}
                Err(Error::Damaged(damage)) => self.problem(damage),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "a pair is told by all of these")]
    fn walk_pair(
        &mut self,
        map: &mut MapReport,
        place: u64,
        [first, second]: [u64; 2],
        fingerprint: u8,
        leaf: &Leaf,
        high: Option<&Vec<u8>>,
        keys: &mut HashSet<Vec<u8>>,
    ) -> Result<()> {
        let (key, value, hash) = match map.form {
            RecordForm::Inline => {
                let (key, value) = (first.to_be_bytes().to_vec(), second.to_le_bytes().to_vec());
                (key, value, self.hash.of(&first.to_le_bytes()))
            }
            RecordForm::Bytes => match self.record(Slot { place, words: [first, second] }) {
                Ok((key, value)) => (key, value, second),
                Err(error) => {
                    map.torn += 1;
                    map.records += 1;
                    return Err(error);
                }
            },
        };
        if high.is_some_and(|high| key >= *high) && leaf.moving {
            // The key belongs to the next leaf. A split has left the pair here, or a merge that has
            // not committed has copied it here.
            return Ok(());
        }
        if key < leaf.low || high.is_some_and(|high| key >= *high) {
            let expected = format!("a key from {:x?} to {high:x?}", leaf.low);
            return Err(Damage::new(place, expected, format!("{key:x?}")).into());
        }
        self.region(place, 16, What::Pair { form: map.form });
        map.records += 1;
        match map.form {
            RecordForm::Inline => self.check_types(map, place, &first.to_le_bytes(), &value),
            RecordForm::Bytes => {
                self.check_types(map, place, &key, &value);
                self.claim_record(first, Owner::Record)?;
            }
        }
        if fingerprint != hash as u8 {
            let expected = format!("a pair whose fingerprint is {:#x}", hash as u8);
            return Err(Damage::new(place, expected, format!("{fingerprint:#x}")).into());
        }
        if !keys.insert(key) {
            map.duplicates += 1;
            return Err(Damage::new(place, "each key once", "one a second time").into());
        }
        Ok(())
    }
}
