//! The walk of a clevel table: context, levels and overflow chains.

use super::image::{LOW48, crc, crc_words};
use super::{MapReport, Owner, SchemeWalk, Walk, What};
use outlast::internals::pool::layout::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use outlast::{Damage, Error, Result};
use std::collections::HashSet;

/// The entry in the table of walks.
pub(super) const WALK: SchemeWalk = SchemeWalk {
    number: 2,
    name: "clevel",
    root: What::ClevelRoot,
    walk: |walk, map, place, words, config| walk.walk_clevel(map, place, words, config),
};

const SLOTS: usize = 8;
const LEVEL_HEADER: u64 = 64;
const NODE_BYTES: u64 = 4 * 64;
/// How many bytes to read in one go where a record begins.
const RECORD_AHEAD: u64 = 256;
const CONTEXT_BYTES: u64 = 256;
const MAX_LEVELS: usize = 30;

/// Returns the size, in bytes, of a level of 2^`bits` buckets in groups of 2^`group_bits`: its
/// header, its buckets, and one word per group for its overflow chain.
fn level_bytes(bits: u32, group_bits: u32) -> u64 {
    let chains = (8u64 << (bits - bits.min(group_bits))).next_multiple_of(64);
    (LEVEL_HEADER + (64 << bits) + chains).max(256)
}

const LEVEL: u64 = 0xc1e0;
const NODE: u64 = 0xc1e1;

fn identity(kind: u64, property: u64, offset: u64) -> u64 {
    let low = kind | property << 16;
    low | crc_words(&[low, offset]) << 32
}

/// A level, with the sizes that determine where its records belong.
#[derive(Clone, Copy)]
struct Level {
    offset: u64,
    bits: u32,
    /// log2 of the buckets per group.
    group_bits: u32,
    /// Whether it is the newest level, which is never the one being emptied.
    newest: bool,
}

impl Level {
    fn new(word: u64, group_bits: u64) -> Option<Level> {
        let (offset, bits) = (word & LOW48, (word >> 48) as u32);
        let whole = (1..=32).contains(&bits) && offset != 0 && offset.is_multiple_of(64);
        let group_bits = bits.min(group_bits as u32);
        whole.then_some(Level { offset, bits, group_bits, newest: false })
    }

    fn groups(self) -> u64 {
        1 << (self.bits - self.group_bits)
    }

    fn group(self, hash: u64) -> u64 {
        hash >> 1 >> (63 - (self.bits - self.group_bits))
    }

    fn pair(self, hash: u64) -> [u64; 2] {
        let mask = (1 << self.group_bits) - 1;
        let (one, other) = (hash & mask, hash >> 10 & mask);
        let first = self.group(hash) << self.group_bits;
        [first + one, first + if one == other { other ^ 1 } else { other }]
    }
}

/// Where in a level a slot is.
#[derive(Clone, Copy)]
enum Part {
    Bucket(u64),
    Chain(u64),
}

/// A record that a slot leads to.
pub(super) struct Found {
    offset: u64,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    bytes: u64,
    hash: u64,
}

impl Walk<'_, '_> {
    fn walk_clevel(
        &mut self,
        map: &mut MapReport,
        place: u64,
        words: &[u64],
        config: [u64; 3],
    ) -> Result<()> {
        let [first, group_bits, rest] = config;
        if !(1..=16).contains(&first) || !(1..=9).contains(&group_bits) || rest != 0 {
            return Err(Damage::new(place, "a shape of levels", format!("{config:?}")).into());
        }
        // The word has an offset, a mark that is ignored here, a count, and a checksum folded to 8
        // bits.
        let low = words[0] & ((1 << 56) - 1) & !(1 << 48);
        let sum = crc_words(&[low]);
        let check = (sum ^ sum >> 8 ^ sum >> 16 ^ sum >> 24) & 0xff;
        let context = low & LOW48;
        if words[0] >> 56 != check || context == 0 || !context.is_multiple_of(64) {
            let expected = "a context's offset and turn";
            return Err(Damage::new(place, expected, format!("{:#x}", words[0])).into());
        }
        let block = self.image.words(context, CONTEXT_BYTES / 8)?;
        let (count, keep) = ((block[1] & 0xff) as usize, block[1] >> 8);
        let bad = |expected: &str, found: u64| {
            Error::from(Damage::new(context, expected, format!("{found:#x}")))
        };
        if !(1..=MAX_LEVELS).contains(&count) || !(1..=MAX_LEVELS as u64).contains(&keep) {
            return Err(bad("a context of 1 to 30 levels", block[1]));
        }
        let mut covered = vec![context];
        covered.extend(&block[1..2 + count]);
        if block[0] != crc_words(&covered) {
            return Err(bad("a context with its checksum", block[0]));
        }
        self.claim(context, CONTEXT_BYTES, Owner::Structure)?;
        self.region(context, 16 + 8 * count as u64, What::Context { levels: count });
        let mut records = Vec::new();
        let mut known = HashSet::new();
        for (number, &word) in block[2..2 + count].iter().enumerate() {
            let mut level =
                Level::new(word, group_bits).ok_or_else(|| bad("a level's offset, size", word))?;
            level.newest = number + 1 == count;
            map.depth = level.bits;
            map.segments += 1;
            match self.walk_level(map, level, group_bits as u32, &mut known, &mut records) {
                Err(Error::Damaged(damage)) => {
                    map.whole = false;
                    self.problem(damage);
                }
                walked => walked?,
            }
        }
        if !map.whole {
            // The library opens no map that lacks a level.
            self.seen.records = records.iter().map(|&(_, offset)| offset).collect();
        }
        if words[1] != 0 {
            let level = Level::new(words[1], group_bits).ok_or_else(|| {
                Damage::new(place + 8, "a level's offset and size", format!("{:#x}", words[1]))
            })?;
            self.walk_ready(level, group_bits as u32)?;
        }
        // Sorts the records by hash to find duplicates, because equal keys have equal hashes.
        records.sort_unstable_by_key(|record: &(u64, u64)| record.0);
        for same in records.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() > 1) {
            let mut keys = HashSet::new();
            for &(_, offset) in same {
                if let Ok(Some(found)) = self.live_record(offset)
                    && !keys.insert(found.key)
                {
                    self.problem(Damage::new(offset, "each key once", "a key a second time"));
                }
            }
        }
        Ok(())
    }

    fn level_header(&mut self, level: Level, group_bits: u32) -> Result<()> {
        let expected = identity(LEVEL, u64::from(level.bits), level.offset);
        let found = self.image.word(level.offset)?;
        if found != expected {
            let expected = format!("a level of 2^{} buckets ({expected:#x})", level.bits);
            return Err(Damage::new(level.offset, expected, format!("{found:#x}")).into());
        }
        self.claim(level.offset, level_bytes(level.bits, group_bits), Owner::Structure)?;
        self.region(level.offset, 8, What::Level { bits: level.bits });
        Ok(())
    }

    /// Walks the level kept ready. The next expansion links it as it is, so it must be empty.
    fn walk_ready(&mut self, level: Level, group_bits: u32) -> Result<()> {
        self.level_header(level, group_bits)?;
        let end = level.offset + level_bytes(level.bits, group_bits);
        let mut at = level.offset + LEVEL_HEADER;
        while at < end {
            let words = (end - at).min(self.page_bytes()) / 8;
            let found = self.image.words(at, words)?;
            if let Some(index) = found.iter().position(|&word| word != 0) {
                let place = at + 8 * index as u64;
                let expected = "nothing in the level kept ready";
                return Err(Damage::new(place, expected, format!("{:#x}", found[index])).into());
            }
            self.region(at, words * 8, What::ReadyLevel);
            at += words * 8;
        }
        Ok(())
    }

    fn walk_level(
        &mut self,
        map: &mut MapReport,
        level: Level,
        group_bits: u32,
        known: &mut HashSet<u64>,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        self.level_header(level, group_bits)?;
        for bucket in 0..1 << level.bits {
            let at = level.offset + LEVEL_HEADER + bucket * 64;
            self.walk_bucket(map, level, Part::Bucket(bucket), at, known, records)?;
        }
        let heads = level.offset + LEVEL_HEADER + (64 << level.bits);
        for group in 0..level.groups() {
            let mut place = heads + group * 8;
            self.region(place, 8, What::ChainHead);
            let mut seen = HashSet::new();
            loop {
                let link = self.image.word(place)?;
                let node = link & LOW48;
                // Bit 63 is a mark, which only a link to a node can have.
                if link << 1 >> 49 != 0 || (link >> 63 != 0 && node <= 1) {
                    let found = format!("{link:#x}");
                    return Err(Damage::new(place, "a link of a chain", found).into());
                }
                if node <= 1 {
                    // Only a level that is being emptied has closed chains.
                    if node == 1 && level.newest {
                        self.problem(Damage::new(place, "the end of a chain", "a closed one"));
                    }
                    break;
                }
                let bad = |found: String| Error::from(Damage::new(node, "an overflow node", found));
                if !seen.insert(node) {
                    return Err(bad("one that occurred earlier in the chain".into()));
                }
                let words = self.image.words(node, NODE_BYTES / 8)?;
                if words[0] != identity(NODE, 0, node) {
                    return Err(bad(format!("{:#x}", words[0])));
                }
                self.claim(node, NODE_BYTES, Owner::Structure)?;
                self.region(node, 16, What::ChainNode);
                map.nodes += 1;
                for at in (64..NODE_BYTES).step_by(64) {
                    let part = Part::Chain(group);
                    self.walk_bucket(map, level, part, node + at, known, records)?;
                }
                place = node + 8;
            }
        }
        Ok(())
    }

    fn walk_bucket(
        &mut self,
        map: &mut MapReport,
        level: Level,
        part: Part,
        at: u64,
        known: &mut HashSet<u64>,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        let words = self.image.words(at, SLOTS as u64)?;
        self.region(at, 64, What::Bucket { form: map.form });
        for (index, word) in words.into_iter().enumerate() {
            // Skips slots that are empty or frozen, and announced inserts and unconfirmed copies,
            // which are void after a crash.
            if word & LOW48 <= 1 || word >> 63 == 1 {
                continue;
            }
            let place = at + index as u64 * 8;
            let found = match self.live_record(word & LOW48) {
                Ok(found) => found,
                Err(Error::Damaged(damage)) => {
                    map.torn += 1;
                    map.records += 1;
                    self.problem(damage);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let first = word & LOW48;
            if self.report.free_state && found.as_ref().is_none_or(|found| found.offset != first) {
                // Only a crash leaves such a slot: after a clean close, the block is free.
                let found = format!("one to a removed or replaced record at {first:#x}");
                let expected = "a slot that leads to a record in effect";
                self.problem(Damage::new(place, expected, found));
            }
            let Some(found) = found else { continue };
            self.region(place, 8, What::ClevelSlot);
            let (tag, hash) = (word >> 48 & 0x3fff, found.hash);
            let stands = match part {
                Part::Bucket(bucket) => level.pair(hash).contains(&bucket),
                Part::Chain(group) => level.group(hash) == group,
            };
            if tag != hash >> 20 & 0x3fff || !stands {
                let expected = format!("a place and tag of hash {hash:#x}");
                self.problem(Damage::new(place, expected, format!("{word:#x}")));
            }
            if !known.insert(found.offset) {
                map.duplicates += 1;
                continue;
            }
            map.records += 1;
            self.check_types(map, found.offset, &found.key, &found.value);
            records.push((hash, found.offset));
            match self.claim(found.offset, found.bytes, Owner::Record) {
                Ok(_) => self.region(found.offset, found.bytes, What::ClevelRecord),
                Err(damage) => self.problem(damage),
            }
        }
        Ok(())
    }

    /// Follows the replaced records from `first` to the record in effect, checks that one, and
    /// returns it. Returns `None` if it was removed.
    pub(super) fn live_record(&self, first: u64) -> Result<Option<Found>> {
        let mut offset = first;
        for _ in 0..1 << 16 {
            let damage =
                |expected: String, found: String| Error::from(Damage::new(offset, expected, found));
            if !offset.is_multiple_of(16) {
                return Err(damage("a record at a multiple of 16".into(), "another offset".into()));
            }
            self.image.read_ahead(offset, RECORD_AHEAD);
            let head: [u64; 2] = self.image.array(offset)?;
            let (kind, lengths) = (head[0] >> 60 & 7, head[0] & ((1 << 46) - 1));
            match kind {
                4 if head[0] >> 48 & 0xfff == 0 => {
                    offset = head[0] & LOW48;
                    continue;
                }
                // A removed record keeps only its lengths, and a mark that is ignored here.
                5 if head[0] >> 46 & 0x3fff == 0 => return Ok(None),
                // Live, or undecided, which means live because a slot leads here.
                1 | 2 if head[0] == kind << 60 | lengths => {}
                _ => return Err(damage("a record's state".into(), format!("{:#x}", head[0]))),
            }
            let (key_len, value_len) = (lengths & 0x1_ffff, lengths >> 17);
            if key_len > MAX_KEY_BYTES as u64 || value_len > MAX_VALUE_BYTES as u64 {
                return Err(damage("lengths".into(), format!("{key_len} and {value_len}")));
            }
            let body = self.image.bytes(offset + 16, key_len + value_len)?;
            let sum = crc(&[&offset.to_le_bytes(), &lengths.to_le_bytes(), &body]);
            if head[1] & 0xffff_ffff != u64::from(sum) {
                let expected = format!("a record with checksum {sum:#x}");
                return Err(damage(expected, format!("{:#x}", head[1])));
            }
            let (key, value) = body.split_at(key_len as usize);
            let (key, value) = (key.to_vec(), value.to_vec());
            let hash = self.hash.of(&key);
            return Ok(Some(Found { offset, key, value, bytes: 16 + key_len + value_len, hash }));
        }
        Err(Damage::new(first, "a chain that ends", "one that does not").into())
    }
}
