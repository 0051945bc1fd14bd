//! The walk of a group hashing table: the list of segments, and their overflow nodes.

use super::image::{identity, unpack};
use super::record::{ByKey, Slot};
use super::{MapReport, Owner, SchemeWalk, Walk, What};
use outlast::internals::pool::layout::RecordForm;
use outlast::{Damage, Error, Result};
use std::collections::HashSet;

/// The entry in the table of walks.
pub(super) const WALK: SchemeWalk = SchemeWalk {
    number: 4,
    name: "group",
    root: What::GroupRoot,
    walk: |walk, map, place, words, config| walk.walk_group(map, place, words[0], config),
};

pub(super) const HEADER: u64 = 128;

pub(super) const SEGMENT: u64 = 0x6702;
pub(super) const NODE: u64 = 0x6703;

/// A segment, after its header was checked.
struct Segment {
    depth: u32,
    low: u64,
    /// The first word of an empty cell.
    empty: u64,
    /// The number of cells of the first level.
    group: u64,
}

impl Walk<'_, '_> {
    fn walk_group(
        &mut self,
        map: &mut MapReport,
        place: u64,
        word: u64,
        config: [u64; 3],
    ) -> Result<()> {
        let [group, initial_depth, rest] = config;
        let known = (16..=1024).contains(&group)
            && group.is_power_of_two()
            && (1..=20).contains(&initial_depth)
            && rest == 0;
        let empties = self.hash.empty_words(map.form).filter(|_| known);
        let Some(empties) = empties else {
            return Err(Damage::new(place, "a size of groups", format!("{config:?}")).into());
        };
        let (mut at, depth) = unpack(0, word)
            .map_err(|_| Damage::new(place, "the first segment's offset", format!("{word:#x}")))?;
        if at == 0 || depth != 0 {
            return Err(
                Damage::new(place, "the first segment's offset", format!("{word:#x}")).into()
            );
        }
        // The segments' ranges follow each other without a gap.
        let mut begin = Some(0);
        while let Some(low) = begin {
            let bad = |expected: &str, found: String| Err(Damage::new(at, expected, found).into());
            if !at.is_multiple_of(HEADER) {
                return bad("a segment at a multiple of 128", "another offset".into());
            }
            let words = self.image.words(at, 4)?;
            let expected = identity(SEGMENT, group, at, low);
            if words[0] != expected {
                let expected = format!("a segment that begins with hash {low:#x} ({expected:#x})");
                return bad(&expected, format!("{:#x}", words[0]));
            }
            let (next, depth) = unpack(at + 16, words[2])?;
            let high = if depth == 0 { low } else { low | u64::MAX >> depth };
            // The size of the file bounds the depth, because segments get deep only in a table that
            // has many of them.
            let most = (self.image.len / (group * 32) * 64).max(64);
            let aligned = depth > 0 && 1 << depth <= most && low << depth == 0;
            if !aligned || (next == 0) != (high == u64::MAX) {
                return bad("a range that begins there", format!("depth {depth}, next {next:#x}"));
            }
            if words[1] != low {
                return bad(&format!("first hash {low:#x}"), format!("{:#x}", words[1]));
            }
            self.claim(at, group * 32, Owner::Structure)?;
            self.region(at, 32, What::GroupSegment { group: group as u16 });
            map.segments += 1;
            map.depth = map.depth.max(depth);
            let seen = self.seen.add(map, at, low, depth);
            let segment = Segment { depth, low, empty: empties[(low >> 63) as usize], group };
            match self.walk_segment_of_group(map, &segment, at, words[3]) {
                Ok(()) => self.seen.set_whole(seen),
                Err(Error::Damaged(damage)) => {
                    map.whole = false;
                    self.problem(damage);
                }
                Err(error) => return Err(error),
            }
            begin = high.checked_add(1);
            at = next;
        }
        Ok(())
    }

    /// Walks the cells of a segment, and its overflow nodes.
    fn walk_segment_of_group(
        &mut self,
        map: &mut MapReport,
        segment: &Segment,
        at: u64,
        chain: u64,
    ) -> Result<()> {
        let (mut keys, mut seen) = (ByKey::new(), HashSet::new());
        self.walk_cells(map, segment, at + HEADER, 2 * segment.group - 8, true, &mut keys)?;
        let (mut link, mut word) = (at + 24, chain);
        loop {
            let (node, _) = unpack(link, word)?;
            if node == 0 {
                return Ok(());
            }
            let bad = |found: String| Err(Damage::new(node, "an overflow node", found).into());
            if !node.is_multiple_of(HEADER) || !seen.insert(node) {
                return bad("a misaligned offset, or one for the second time".into());
            }
            let words = self.image.words(node, 2)?;
            if words[0] != identity(NODE, segment.group, node, 0) {
                return bad(format!("{:#x}", words[0]));
            }
            self.claim(node, segment.group * 16, Owner::Structure)?;
            self.region(node, 16, What::GroupNode { group: segment.group as u16 });
            map.nodes += 1;
            self.walk_cells(map, segment, node + HEADER, segment.group - 8, false, &mut keys)?;
            (link, word) = (node + 8, words[1]);
        }
    }

    /// Walks `count` cells from `at` on. If `homes` is set, the first of them are the cells of the
    /// first level.
    fn walk_cells(
        &mut self,
        map: &mut MapReport,
        segment: &Segment,
        at: u64,
        count: u64,
        homes: bool,
        keys: &mut ByKey<()>,
    ) -> Result<()> {
        self.region(at, count * 16, What::Bucket { form: map.form });
        let words = self.image.words(at, count * 2)?;
        for (number, words) in words.as_chunks().0.iter().enumerate() {
            let home = Some(number as u64).filter(|&number| homes && number < segment.group);
            match self.walk_cell(map, segment, at + number as u64 * 16, *words, home, keys) {
                Err(Error::Damaged(damage)) => self.problem(damage),
                walked => walked?,
            }
        }
        Ok(())
    }

    fn walk_cell(
        &mut self,
        map: &mut MapReport,
        segment: &Segment,
        place: u64,
        [first, second]: [u64; 2],
        home: Option<u64>,
        keys: &mut ByKey<()>,
    ) -> Result<()> {
        if first == segment.empty {
            return Ok(());
        }
        let hash = self.hash.of_slot(map.form, [first, second]);
        let here = (hash ^ segment.low) >> (64 - segment.depth) == 0;
        let elsewhere = home.is_some_and(|home| hash & (segment.group - 1) != home);
        if elsewhere && (here || map.form == RecordForm::Inline) {
            let expected = "an empty cell, or a record at home there";
            return Err(Damage::new(place, expected, format!("{first:#x} {second:#x}")).into());
        }
        if !here {
            // A split has moved the record to another segment and left its words here.
            return self.check_stale(map, Slot { place, words: [first, second] });
        }
        self.region(place, 16, What::LiveSlot { form: map.form, depth: segment.depth });
        map.records += 1;
        let slot = Slot { place, words: [first, second] };
        if keys.add(self, map.form, slot, ()).is_some() {
            map.duplicates += 1;
            return Err(Damage::new(place, "each key once", "one for the second time").into());
        }
        self.check_record(map, slot)
    }
}
