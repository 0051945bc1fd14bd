//! Whole records that nothing leads to, because what led to them is damaged.
//!
//! A record's block has a checksum over its offset, its lengths, its key and its value, so it can
//! be told from anything else without the structure above it. Records that are stored in place are
//! found in [`hidden`](super::hidden).
//!
//! If the pool has its saved free state, that state says whether a block is in use. If it is, the
//! record is neither removed nor replaced: the pool was closed, and then every block in use belongs
//! to something. Without the saved free state, nothing tells such a record from one that was
//! removed or replaced.

use super::hidden::{Found, Walked};
use super::image::{Image, Source, crc};
use super::record::{has_sum, is_of_type, without_time};
use super::space::{Runs, is_set};
use super::{Locked, MapReport, Walk, clevel, phast, walk_image};
use outlast::internals::pool::layout::{MAX_KEY_BYTES, MAX_VALUE_BYTES, RecordForm};
use outlast::{Error, Result};
use std::collections::HashSet;
use std::path::Path;

/// How many bytes of small blocks to read in one go.
const BLOCKS_AHEAD: u64 = 1 << 16;

/// A whole record that nothing leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unlinked {
    /// The offset of its block, or of its slot if it is stored in place.
    pub offset: u64,
    /// The name of the only map that can have it. `None` if there are several, or may be.
    pub map: Option<String>,
    /// If the map is not known: the names of those that can have it, each with the key as
    /// [`RawMap`](outlast::RawMap) takes it. A map whose root is damaged is not among them.
    pub candidates: Vec<(String, Vec<u8>)>,
    /// Whether it may be of a map whose root is damaged.
    pub is_of_lost_map: bool,
    /// Whether the map has this record for certain. Otherwise it may have been removed or replaced.
    pub is_certain: bool,
    /// The key: if the map is known, as [`RawMap`](outlast::RawMap) takes it, otherwise as it is
    /// stored.
    pub key: Vec<u8>,
    /// The value, as the map stores it.
    pub value: Vec<u8>,
}

/// What [`unlinked`] has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct UnlinkedCount {
    /// The number of whole records that are certain.
    pub certain: u64,
    /// The number of whole records that may have been removed or replaced.
    pub uncertain: u64,
}

/// Walks the pool in the file at `path`, and passes on each whole record that nothing leads to.
/// Only damaged maps are searched for records that are stored in place. Such a search can also find
/// records that the map still leads to, and older records of keys that it leads to. It finds no newer
/// record of such a key.
///
/// A block does not say of which map it is. Its record is of the only damaged map that can have it,
/// or else of the only one that can. If a map's root is damaged, it may be of that map.
///
/// # Errors
/// Those of [`walk`](super::walk), and those of `each`.
pub fn unlinked<E: From<Error>>(
    path: &Path,
    mut each: impl FnMut(Unlinked) -> Result<(), E>,
) -> Result<UnlinkedCount, E> {
    let locked = Locked::open(path)?;
    let image = Image::new(Source::File(&locked.file), locked.len);
    if image.needs_journal() {
        return Err(Error::Unfinished { path: path.into() }.into());
    }
    let mut watch = |_| {};
    let walk = walk_image(image, None, &mut watch).map_err(|e| e.at(path))?;
    let mut count = UnlinkedCount::default();
    let mut pass = |found: Unlinked| {
        match found.is_certain {
            true => count.certain += 1,
            false => count.uncertain += 1,
        }
        each(found)
    };
    let mut least_keys = HashSet::new();
    for (map, report) in walk.walked.iter().zip(&walk.report.maps) {
        if map.is_damaged && map.scheme == phast::WALK.number && report.form == RecordForm::Bytes {
            least_keys.extend(walk.least_keys(map)?);
        }
    }
    for block in walk.runs.unlinked(walk.page_bits) {
        if block.is_used != Some(false)
            && !least_keys.contains(&block.offset)
            && let Some(found) = walk.whole_record(&block)?
        {
            pass(found)?;
        }
    }
    // The walk reaches records of clevel maps that the library does not open.
    for (map, report) in walk.walked.iter().zip(&walk.report.maps) {
        for &offset in map.seen.records.iter().filter(|_| walk.has_one_name(report)) {
            if let Ok(Some(found)) = walk.live_record(offset) {
                pass(Unlinked {
                    offset,
                    map: Some(report.name.clone()),
                    candidates: Vec::new(),
                    is_of_lost_map: false,
                    is_certain: walk.report.free_state,
                    key: found.key,
                    value: found.value,
                })?;
            }
        }
    }
    let mut of_several = HashSet::new();
    let all = walk.walked.iter().zip(&walk.report.maps);
    for (map, report) in
        all.filter(|(map, report)| map.is_damaged && report.form == RecordForm::Inline)
    {
        let is_alike = |(other, its): (&Walked, &MapReport)| {
            other.scheme == map.scheme
                && other.is_damaged
                && its.form == report.form
                && its.expires == report.expires
        };
        let all = walk.walked.iter().zip(&walk.report.maps);
        let alike: Vec<_> = all.filter(|&all| is_alike(all)).collect();
        let name = walk.name_of(report).filter(|_| alike.len() == 1);
        walk.take_hidden(map, alike.len() == 1, &mut |found: Found| {
            let [first, second] = found.words;
            let key = |map: &Walked| match map.scheme == phast::WALK.number {
                true => (first ^ sign(map.config)).to_le_bytes(),
                false => first.to_le_bytes(),
            };
            let candidates =
                |&(of, its): &(&Walked, &MapReport)| (its.name.clone(), key(of).into());
            let (key, value) = (key(map), second.to_le_bytes());
            let is_of = |schema: &str, bytes| is_of_type(schema, report.form, bytes);
            if !is_of(&report.key_schema, &key) || !is_of(&report.value_schema, &value) {
                return Ok(());
            }
            // Each of several maps finds it.
            if name.is_none() && !of_several.insert(found.place) {
                return Ok(());
            }
            pass(Unlinked {
                offset: found.place,
                map: name.clone(),
                candidates: match name {
                    Some(_) => Vec::new(),
                    None => alike.iter().map(candidates).collect(),
                },
                is_of_lost_map: walk.lacks_map,
                is_certain: found.is_certain,
                key: key.to_vec(),
                value: value.to_vec(),
            })
        })?;
    }
    Ok(count)
}

/// Returns the bit that an ordered map inverts in signed integers, or 0.
fn sign([_, _, order]: [u64; 3]) -> u64 {
    match (order >> 8 & 1, order & 0xff) {
        (1, bytes @ 1..=8) => 1 << (8 * bytes - 1),
        _ => 0,
    }
}

/// A block that nothing leads to.
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// `None` if it is not known.
    pub(super) is_used: Option<bool>,
}

impl Runs {
    /// Returns the blocks that nothing leads to.
    pub(super) fn unlinked(&self, page_bits: u32) -> impl Iterator<Item = Block> {
        self.list.iter().flat_map(move |run| {
            (0..run.blocks).filter(|&index| !is_set(&run.claimed, index)).map(move |index| Block {
                offset: (run.head << page_bits) + index * run.block_bytes,
                bytes: run.block_bytes,
                is_used: run.used.as_ref().map(|used| is_set(used, index)),
            })
        })
    }
}

impl Walk<'_, '_> {
    /// Returns the record in a block, if there is a whole one.
    fn whole_record(&self, block: &Block) -> Result<Option<Unlinked>> {
        let &Block { offset, bytes: block_bytes, is_used } = block;
        self.image.read_on(offset, block_bytes.min(BLOCKS_AHEAD), BLOCKS_AHEAD);
        let [first, second] = match self.image.array(offset) {
            Ok(head) => head,
            Err(Error::Damaged(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        // A record of clevel that is in effect.
        let (state, lengths) = (first & !(1 << 63), first & ((1 << 46) - 1));
        let of_clevel = [1, 2].iter().any(|kind| state == kind << 60 | lengths);
        let (key, value, summed) = match of_clevel {
            true => (lengths & 0x1_ffff, lengths >> 17, lengths),
            false => (first & 0xffff_ffff, first >> 32, first),
        };
        let bytes = 16 + key + value;
        if key > MAX_KEY_BYTES as u64 || value > MAX_VALUE_BYTES as u64 || bytes > block_bytes {
            return Ok(None);
        }
        let Ok(mut body) = self.image.bytes(offset + 16, bytes - 16) else { return Ok(None) };
        let sum = crc(&[&offset.to_le_bytes(), &summed.to_le_bytes(), &body]);
        let is_whole = if of_clevel { second as u32 == sum } else { has_sum(second, sum) };
        if !is_whole {
            return Ok(None);
        }
        let value = body.split_off(key as usize);
        let mut key = body;
        let maps = self.maps_of(of_clevel, &key, &value);
        let is_ordered = |map: &Walked| map.scheme == phast::WALK.number;
        // It may be the least key of a leaf, and the key's record may have another value.
        let is_least = value.is_empty() && maps.iter().any(|(map, _)| is_ordered(map));
        let is_certain = is_used == Some(true) && !is_least;
        let taken = |map: &Walked| {
            let mut key = key.clone();
            if is_ordered(map) {
                unordered(map.config, &mut key);
            }
            key
        };
        let mut candidates: Vec<_> =
            maps.iter().map(|(map, report)| (report.name.clone(), taken(map))).collect();
        let map = match maps[..] {
            [(_, report)] => self.name_of(report),
            _ => None,
        };
        if map.is_some()
            && let Some((_, taken)) = candidates.pop()
        {
            key = taken;
        }
        let is_of_lost_map = self.lacks_map;
        Ok(Some(Unlinked { offset, map, candidates, is_of_lost_map, is_certain, key, value }))
    }

    /// Returns the maps that can have a record with a block of its own: the damaged ones, or if there
    /// are none, all.
    fn maps_of(&self, of_clevel: bool, key: &[u8], value: &[u8]) -> Vec<(&Walked, &MapReport)> {
        let has = |map: &Walked, report: &MapReport| {
            let is_inline = report.form == RecordForm::Inline;
            let fits = |schema, bytes| is_of_type(schema, report.form, bytes);
            (map.scheme == clevel::WALK.number) == of_clevel
                && (of_clevel || !is_inline)
                && (!is_inline || (key.len(), value.len()) == (8, 8))
                && fits(&report.key_schema, key)
                && without_time(report, value)
                    .is_some_and(|value| fits(&report.value_schema, value))
        };
        let all = self.walked.iter().zip(&self.report.maps);
        let mut can: Vec<_> = all.filter(|(map, report)| has(map, report)).collect();
        if can.iter().any(|(map, _)| map.is_damaged) {
            can.retain(|(map, _)| map.is_damaged);
        }
        can
    }

    /// Returns the name of a map, unless another one has the same.
    fn name_of(&self, map: &MapReport) -> Option<String> {
        (self.has_one_name(map) && !self.lacks_map).then(|| map.name.clone())
    }

    fn has_one_name(&self, map: &MapReport) -> bool {
        self.report.maps.iter().filter(|other| other.name == map.name).count() == 1
    }
}

/// Changes a stored key of an ordered map into what the map takes: integers are stored big-endian,
/// and the sign of signed ones is inverted.
fn unordered(config: [u64; 3], key: &mut [u8]) {
    if key.len() as u64 == config[2] & 0xff {
        if let (Some(first), true) = (key.first_mut(), sign(config) != 0) {
            *first ^= 0x80;
        }
        key.reverse();
    }
}
