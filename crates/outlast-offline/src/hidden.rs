//! Records that are stored in place, in segments and leaves that the walk could not reach.
//!
//! Such records have no blocks and no checksums of their own, but the structures that hold them
//! have identity words, and in a hash table each record's hash says where it belongs. So a
//! structure is recognized without what led to it. A structure whose own header is damaged is
//! recognized by its records, and what belongs to it follows from what belongs to all others: in
//! an intact table, each hash is in the range of one segment.
//!
//! What a structure holds outside of its range, a split has left behind. So no record is taken
//! whose range is not known. A record is *certain* if the saved free state says that the
//! structure's block is in use, and nothing else can hold the record's key.

use super::image::{Hash, LOW48, identity, unpack};
use super::phast::{LEAF, LEAF_HEADER, Leaves, leaf_bytes};
use super::{MapReport, Walk, dash, dash_lh, ea_pht, group};
use outlast::internals::pool::layout::RecordForm;
use outlast::{Damage, Error, Result};
use std::collections::{HashMap, HashSet};

mod buckets;
mod lines;

/// A map, after it was walked.
pub(super) struct Walked {
    /// The number of the map's scheme.
    pub(super) scheme: u64,
    /// The first two of the scheme's words in the root.
    pub(super) words: [u64; 2],
    pub(super) config: [u64; 3],
    /// Whether the walk has found damage in the map.
    pub(super) is_damaged: bool,
    pub(super) seen: Seen,
}

/// What the walk has read of the structure of a map whose records are stored in place.
#[derive(Default)]
pub(super) struct Seen {
    segments: Vec<Segment>,
    /// The arrays of segments: offset, and number of segments.
    pub(super) arrays: Vec<(u64, u64)>,
    /// The leaves: first word of the least key, offset, and offset of the next one.
    pub(super) leaves: Vec<(u64, u64, u64)>,
    /// The table of EA-PHT, unless its records are being moved to another one.
    pub(super) table: Option<ea_pht::Table>,
    /// The records of a clevel map that lacks a part.
    pub(super) records: Vec<u64>,
    /// Whether a segment may not have been made yet whose place in an array counts as used (Dash-LH). A
    /// split that was cut short can have left copies there.
    pub(super) is_late: bool,
}

impl Seen {
    /// Adds a segment. Returns its number.
    pub(super) fn add(&mut self, map: &MapReport, offset: u64, low: u64, depth: u32) -> usize {
        self.add_range(map, offset, (low, low | u64::MAX >> depth))
    }

    /// Adds a segment with this range. Returns its number.
    pub(super) fn add_range(&mut self, map: &MapReport, offset: u64, range: (u64, u64)) -> usize {
        if map.form == RecordForm::Inline {
            self.segments.push(Segment { offset, range, is_whole: false });
        }
        self.segments.len()
    }

    /// Notes that all overflow nodes of the segment that was added with this number were read.
    pub(super) fn set_whole(&mut self, number: usize) {
        if let Some(segment) = self.segments[..number].last_mut() {
            segment.is_whole = true;
        }
    }
}

/// A segment of a hash table.
struct Segment {
    offset: u64,
    /// The least and the greatest hash of its records.
    range: (u64, u64),
    /// Whether all of its overflow nodes were read.
    is_whole: bool,
}

/// The key and the value of a record that is stored in place, its offset, and whether it is
/// certain.
pub(super) struct Found {
    pub(super) place: u64,
    pub(super) words: [u64; 2],
    pub(super) is_certain: bool,
}

/// Called with each record that is found.
pub(super) type Take<'t, E> = &'t mut dyn FnMut(Found) -> Result<(), E>;

/// The layout of the segments of a map.
struct Layout {
    kind: Kind,
    segment_bytes: u64,
    node_bytes: u64,
    /// The offset of the first cell in a segment, and in a node.
    first: u64,
    cells: u64,
    node_cells: u64,
    /// How many of the cells are homes.
    homes: u64,
}

enum Kind {
    Dash(dash::Shape),
    Group(u64),
}

impl Layout {
    fn of(map: &Walked, hash: &Hash) -> Option<Layout> {
        let [first, second, _] = map.config;
        if map.scheme == group::WALK.number {
            return (16..=1024).contains(&first).then(|| Layout {
                kind: Kind::Group(first),
                segment_bytes: first * 32,
                node_bytes: first * 16,
                first: group::HEADER,
                cells: 2 * first - 8,
                node_cells: first - 8,
                homes: first,
            });
        }
        let shape = dash::Shape::new([first, second], RecordForm::Inline, hash)?;
        Some(Layout {
            segment_bytes: shape.segment_bytes,
            node_bytes: 2048,
            first: 256,
            cells: (shape.segment_bytes - 256) / 16,
            node_cells: 7 * 16,
            homes: 16 << first,
            kind: Kind::Dash(shape),
        })
    }

    /// Returns whether a cell of a segment can hold a record with this hash.
    fn fits(&self, cell: u64, hash: u64) -> bool {
        if cell >= self.homes {
            return true;
        }
        match self.kind {
            Kind::Group(group) => hash & (group - 1) == cell,
            Kind::Dash(_) => {
                let (bucket, buckets) = (cell / 16, self.homes / 16);
                let home = (hash >> 8) & (buckets - 1);
                home == bucket || (home + 1) & (buckets - 1) == bucket
            }
        }
    }
}

/// A segment that the walk has not reached.
struct Hidden {
    segment: Segment,
    /// The first overflow node; 0 if there is none, `None` if it is not known.
    chain: Option<u64>,
    is_certain: bool,
}

impl Walk<'_, '_> {
    /// Passes on the records of a map that the walk did not reach. If the map is not the only one of its
    /// kind that is damaged, some of the records are those of another.
    pub(super) fn take_hidden<E: From<Error>>(
        &self,
        map: &Walked,
        is_one: bool,
        take: Take<'_, E>,
    ) -> Result<(), E> {
        match map.scheme {
            1 | 4 | 5 => match Layout::of(map, &self.hash) {
                Some(layout) => self.take_segments(map, &layout, take),
                None => Ok(()),
            },
            3 => self.take_leaves(map, is_one, take),
            6..=8 => self.take_buckets(map, take),
            9 => self.take_lines(map, take),
            // All records of clevel have blocks.
            _ => Ok(()),
        }
    }

    /// Returns the words of a slot, one after another, or none if they cannot be read.
    fn cells(&self, at: u64, count: u64) -> Result<Vec<[u64; 2]>> {
        match self.image.words(at, 2 * count) {
            Ok(words) => Ok(words.as_chunks().0.to_vec()),
            Err(Error::Damaged(_)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns the places of segments that the walk has not reached: offsets, and whether they are
    /// known to be in use.
    fn places(&self, map: &Walked, layout: &Layout) -> Vec<(u64, bool)> {
        let bytes = layout.segment_bytes;
        let is_array = map.scheme == dash_lh::WALK.number;
        let blocks = self.runs.unlinked(self.page_bits).filter(|block| {
            let spare = if is_array { u64::MAX } else { bytes / 4 + self.page_bytes() };
            block.bytes >= bytes && block.bytes - bytes <= spare && block.is_used != Some(false)
        });
        let mut places = Vec::new();
        for block in blocks {
            let count = if is_array { block.bytes / bytes } else { 1 };
            let certain = block.is_used == Some(true);
            places.extend((0..count).map(|number| (block.offset + number * bytes, certain)));
        }
        let reached: HashSet<_> = map.seen.segments.iter().map(|segment| segment.offset).collect();
        for &(array, count) in &map.seen.arrays {
            let offsets = (0..count).map(|number| array + number * bytes);
            let offsets = offsets.filter(|offset| !reached.contains(offset));
            places.extend(offsets.map(|offset| (offset, self.report.free_state)));
        }
        places
    }

    /// Reads the header of a segment: its first hash, its depth, and the link to its first node.
    fn header(&self, layout: &Layout, at: u64) -> Result<(u64, u32, Option<u64>)> {
        match &layout.kind {
            Kind::Dash(shape) => {
                let segment = self.dash_segment(shape, at)?;
                Ok((segment.low, segment.depth, Some(segment.chain)))
            }
            &Kind::Group(group) => {
                let [found, low, next, chain] = self.image.array(at)?;
                let (_, depth) = unpack(at + 16, next)?;
                let aligned = (1..64).contains(&depth) && low << depth == 0;
                if !aligned || found != identity(group::SEGMENT, group, at, low) {
                    return Err(Damage::new(at, "a segment", "something else").into());
                }
                Ok((low, depth, unpack(at + 24, chain).ok().map(|(node, _)| node)))
            }
        }
    }

    /// Reads the header of an overflow node. Returns the link to the next one, or `None` if it is
    /// damaged.
    fn node(&self, layout: &Layout, at: u64) -> Option<Option<u64>> {
        let [found, next] = self.image.array(at).ok()?;
        match layout.kind {
            Kind::Dash(_) => (found == dash::node_identity(at)).then_some(Some(next)),
            Kind::Group(group) => (found == identity(group::NODE, group, at, 0))
                .then(|| unpack(at + 8, next).ok().map(|(node, _)| node)),
        }
    }

    fn take_segments<E: From<Error>>(
        &self,
        map: &Walked,
        layout: &Layout,
        take: Take<'_, E>,
    ) -> Result<(), E> {
        let mut known: Vec<(u64, u64)> = map.seen.segments.iter().map(|s| s.range).collect();
        let (mut hidden, mut headless) = (Vec::new(), Vec::new());
        for (at, is_certain) in self.places(map, layout) {
            self.image.read_ahead(at, layout.segment_bytes);
            match self.header(layout, at) {
                Ok((low, depth, chain)) => {
                    let range = (low, low | u64::MAX >> depth);
                    let segment = Segment { offset: at, range, is_whole: false };
                    hidden.push(Hidden { segment, chain, is_certain });
                }
                Err(Error::Damaged(_)) if self.looks_like_segment(layout, at)? => {
                    headless.push((at, is_certain && !map.seen.is_late));
                }
                Err(Error::Damaged(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Two segments that hold the same hash: one of them is not of this table any more.
        hidden.sort_by_key(|hidden| hidden.segment.range);
        known.sort_unstable();
        let mut widest: Option<usize> = None;
        for number in 0..hidden.len() {
            let (low, high) = hidden[number].segment.range;
            let before = known.partition_point(|range| range.0 <= high);
            let is_known = before > 0 && known[before - 1].1 >= low;
            let other = widest.filter(|&other| hidden[other].segment.range.1 >= low);
            for number in other.into_iter().chain((is_known || other.is_some()).then_some(number)) {
                hidden[number].is_certain = false;
            }
            if widest.is_none_or(|widest| hidden[widest].segment.range.1 < high) {
                widest = Some(number);
            }
        }
        known.extend(hidden.iter().map(|hidden| hidden.segment.range));
        known.sort_unstable();
        hidden.extend(self.headless(layout, &gaps(&known), headless)?);
        self.take_found(map, layout, hidden, take)
    }

    /// Returns whether nearly all records in home cells are at home there.
    fn looks_like_segment(&self, layout: &Layout, at: u64) -> Result<bool> {
        let (mut fit, mut all) = (0, 0);
        let empties = self.hash.empty_words(RecordForm::Inline).unwrap_or_default();
        for (cell, [first, _]) in (0..).zip(self.cells(at + layout.first, layout.homes)?) {
            if !empties.contains(&first) {
                all += 1;
                fit += u64::from(layout.fits(cell, self.hash.of(&first.to_le_bytes())));
            }
        }
        Ok(all >= 8 && fit * 10 >= all * 9)
    }

    /// Finds out which hashes belong to segments whose headers are damaged. `gaps` are the hashes
    /// that belong to no other segment. They are certain if each segment has most of its records in
    /// another gap.
    fn headless(
        &self,
        layout: &Layout,
        gaps: &[(u64, u64)],
        places: Vec<(u64, bool)>,
    ) -> Result<Vec<Hidden>> {
        let mut of_gap: HashMap<usize, u64> = HashMap::new();
        let (mut found, mut are_clear) = (Vec::new(), places.len() == gaps.len());
        for (at, is_certain) in places {
            let mut counts: HashMap<usize, u64> = HashMap::new();
            for (cell, [first, _]) in (0..).zip(self.cells(at + layout.first, layout.cells)?) {
                let hash = self.hash.of(&first.to_le_bytes());
                if let Some(gap) = range_of(gaps, hash).filter(|_| layout.fits(cell, hash)) {
                    *counts.entry(gap).or_default() += 1;
                }
            }
            let most = counts.iter().max_by_key(|&(_, &count)| count);
            let Some((&gap, _)) = most else { continue };
            are_clear &= *of_gap.entry(gap).and_modify(|n| *n += 1).or_insert(1) == 1;
            let segment = Segment { offset: at, range: gaps[gap], is_whole: false };
            found.push(Hidden { segment, chain: None, is_certain });
        }
        are_clear &= found.len() == gaps.len();
        found.iter_mut().for_each(|hidden| hidden.is_certain &= are_clear);
        Ok(found)
    }

    fn take_found<E: From<Error>>(
        &self,
        map: &Walked,
        layout: &Layout,
        hidden: Vec<Hidden>,
        take: Take<'_, E>,
    ) -> Result<(), E> {
        let broken = map.seen.segments.iter().filter(|segment| !segment.is_whole);
        let mut broken: Vec<_> = broken.map(|segment| segment.range).collect();
        let mut taken = HashSet::new();
        for Hidden { segment, mut chain, is_certain } in hidden {
            let (low, high) = segment.range;
            let mut at = segment.offset;
            let (mut count, mut is_node) = (layout.cells, false);
            loop {
                for (cell, words) in (0..).zip(self.cells(at + layout.first, count)?) {
                    let hash = self.hash.of(&words[0].to_le_bytes());
                    if (low..=high).contains(&hash) && (is_node || layout.fits(cell, hash)) {
                        let place = at + layout.first + 16 * cell;
                        take(Found { place, words, is_certain })?;
                    }
                }
                let next = match chain {
                    Some(0) => break,
                    Some(node) if node.is_multiple_of(128) => {
                        self.node(layout, node).filter(|_| taken.insert(node)).map(|n| (node, n))
                    }
                    _ => None,
                };
                let Some((node, after)) = next else {
                    broken.push(segment.range);
                    break;
                };
                (at, chain, count, is_node) = (node, after, layout.node_cells, true);
            }
        }
        broken.sort_unstable();
        broken.dedup();
        let blocks = self.runs.unlinked(self.page_bits);
        let blocks = blocks.filter(|block| {
            let spare = block.bytes.checked_sub(layout.node_bytes);
            block.is_used != Some(false) && spare.is_some_and(|spare| spare <= self.page_bytes())
        });
        for block in blocks {
            if taken.contains(&block.offset) || self.node(layout, block.offset).is_none() {
                continue;
            }
            let cells = self.cells(block.offset + layout.first, layout.node_cells)?;
            let found: Vec<_> = (0..)
                .zip(cells)
                .filter_map(|(cell, words)| {
                    let range = range_of(&broken, self.hash.of(&words[0].to_le_bytes()))?;
                    Some((range, block.offset + layout.first + 16 * cell, words))
                })
                .collect();
            // A node holds records of one segment, and possibly what a split has left behind.
            let is_one = found.iter().all(|(range, ..)| *range == found[0].0);
            let is_certain = block.is_used == Some(true) && is_one;
            for (_, place, words) in found {
                take(Found { place, words, is_certain })?;
            }
        }
        Ok(())
    }

    fn take_leaves<E: From<Error>>(
        &self,
        map: &Walked,
        is_one: bool,
        take: Take<'_, E>,
    ) -> Result<(), E> {
        let Some(leaves) = Leaves::new(map.config) else { return Ok(()) };
        let bytes = leaf_bytes(leaves.slots);
        /// A leaf whose least key is known.
        struct Known {
            low: u64,
            at: u64,
            next: u64,
            /// The bits, whether it is moving, and whether its block is in use; `None` for a leaf
            /// that the walk has reached.
            hidden: Option<(Option<u64>, bool, bool)>,
        }
        let reached = map.seen.leaves.iter();
        let mut known: Vec<_> =
            reached.map(|&(low, at, next)| Known { low, at, next, hidden: None }).collect();
        let mut headless = Vec::new();
        let blocks = self.runs.unlinked(self.page_bits).filter(|block| {
            block.is_used != Some(false)
                && block.bytes.checked_sub(bytes).is_some_and(|spare| spare <= bytes / 4 + 64)
        });
        for block in blocks {
            let (at, is_used) = (block.offset, block.is_used == Some(true));
            self.image.read_ahead(at, bytes);
            match self.leaf(RecordForm::Inline, leaves, at) {
                Ok(leaf) => {
                    let hidden = Some((Some(leaf.bits), leaf.moving, is_used));
                    known.push(Known { low: leaf.low_words[0], at, next: leaf.next, hidden });
                }
                Err(Error::Damaged(_)) => {
                    let words: [u64; 11] = self.image.array(at)?;
                    if words[8] == identity(LEAF, u64::from(leaves.slots), at, words[10]) {
                        let (next, hidden) = (words[9] & LOW48 & !63, Some((None, true, is_used)));
                        known.push(Known { low: words[10], at, next, hidden });
                    } else if let Some(bits) = leaves.bits(words[0]) {
                        headless.push((at, bits, is_used));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        known.sort_by_key(|leaf| leaf.low);
        let lows: HashMap<_, _> = known.iter().map(|leaf| (leaf.at, leaf.low)).collect();
        // The leaves that the links of known ones name, and the keys that they can have.
        let mut named = HashMap::new();
        for (number, leaf) in known.iter().enumerate() {
            let after = known.get(number + 1).filter(|after| after.low > leaf.low);
            let is_twice = after.is_none() && number + 1 < known.len()
                || number > 0 && known[number - 1].low == leaf.low;
            let mut high = after.map_or(u64::MAX, |after| after.low - 1);
            let mut is_next = after.map_or(0, |after| after.at) == leaf.next;
            if !is_one {
                // The leaf behind it can be of another map. The link tells.
                let next = lows.get(&leaf.next).filter(|&&low| low > leaf.low);
                high = next.map_or(u64::MAX, |low| low - 1);
                is_next = next.is_some() || leaf.next == 0;
            }
            if !is_next {
                named.insert(leaf.next, (leaf.low.saturating_add(1), high));
            }
            let Some((bits, moving, is_used)) = leaf.hidden else { continue };
            let is_certain = is_used && !is_twice && bits.is_some() && (is_next || !moving);
            let range = (leaf.low, high);
            self.take_pairs(leaves, leaf.at, bits, range, is_certain, take)?;
        }
        for (at, bits, is_used) in headless {
            if let Some(&range) = named.get(&at) {
                self.take_pairs(leaves, at, Some(bits), range, is_used, take)?;
            }
        }
        Ok(())
    }

    /// Returns the offsets of the blocks that hold the least keys of leaves which nothing leads to.
    pub(super) fn least_keys(&self, map: &Walked) -> Result<HashSet<u64>> {
        let mut found = HashSet::new();
        let Some(Leaves { slots, .. }) = Leaves::new(map.config) else { return Ok(found) };
        for block in self.runs.unlinked(self.page_bits) {
            if block.is_used == Some(false) || block.bytes < leaf_bytes(slots) {
                continue;
            }
            self.image.read_ahead(block.offset, LEAF_HEADER);
            let words: [u64; 11] = self.image.array(block.offset)?;
            if words[8] == identity(LEAF, u64::from(slots), block.offset, words[10]) {
                found.insert(words[10] & LOW48);
            }
        }
        Ok(found)
    }

    /// Passes on the pairs of a leaf whose keys are in this range. Without `bits`, passes on
    /// everything that may be a pair.
    fn take_pairs<E: From<Error>>(
        &self,
        leaves: Leaves,
        at: u64,
        bits: Option<u64>,
        (low, high): (u64, u64),
        is_certain: bool,
        take: Take<'_, E>,
    ) -> Result<(), E> {
        let prints = self.image.bytes(at + 8, u64::from(leaves.slots))?;
        let pairs = self.cells(at + LEAF_HEADER, u64::from(leaves.slots))?;
        for (slot, words) in pairs.into_iter().enumerate() {
            let [key, _] = words;
            let is_pair = match bits {
                Some(bits) => {
                    bits >> slot & 1 == 1 && prints[slot] == self.hash.of(&key.to_le_bytes()) as u8
                }
                // An empty slot of a new leaf is all zeros.
                None => words != [0, 0],
            };
            if is_pair && (low..=high).contains(&key) {
                let place = at + LEAF_HEADER + 16 * slot as u64;
                take(Found { place, words, is_certain })?;
            }
        }
        Ok(())
    }
}

/// Returns the hashes that are in none of these ranges, which are sorted.
fn gaps(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let (mut gaps, mut begin) = (Vec::new(), Some(0u64));
    for &(low, high) in ranges {
        let Some(from) = begin else { break };
        if low > from {
            gaps.push((from, low - 1));
        }
        begin = if high >= from { high.checked_add(1) } else { begin };
    }
    gaps.extend(begin.map(|from| (from, u64::MAX)));
    gaps
}

/// Returns the number of the range that holds a hash. The ranges are sorted and do not overlap.
fn range_of(ranges: &[(u64, u64)], hash: u64) -> Option<usize> {
    let number = ranges.partition_point(|range| range.0 <= hash).checked_sub(1)?;
    (hash <= ranges[number].1).then_some(number)
}
