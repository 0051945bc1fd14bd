//! The walk of a map of line hashing: directory, segments and overflow nodes.

use super::dash::DIRECTORY_HEADER;
use super::image::{identity, unpack};
use super::record::{ByKey, Slot};
use super::{MapReport, Owner, SchemeWalk, Walk, What};
use outlast::{Damage, Error, Result};
use std::collections::HashSet;

/// The entry in the table of walks.
pub(super) const WALK: SchemeWalk = SchemeWalk {
    number: 9,
    name: "line",
    root: What::LineRoot,
    walk: |walk, map, place, words, config| {
        walk.walk_line(map, place, [words[0], words[1]], config)
    },
};

const DIRECTORY: u64 = 0x11e0;
const SEGMENT: u64 = 0x11e1;
const NODE: u64 = 0x11e2;
const MAX_DEPTH: u32 = 23;
pub(super) const LINE: u64 = 64;
/// The lines of a node after its header.
pub(super) const LINES_OF_NODE: u64 = 31;
const NODE_BYTES: u64 = 2048;
/// The most segments that one rebuild makes.
const MOST_NEW: usize = 2;

/// A segment, after its header was checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) offset: u64,
    size: u64,
    depth: u32,
    pub(super) low: u64,
    pub(super) high: u64,
    sibling: u64,
    pub(super) chain: u64,
}

impl Segment {
    /// Its lines, and the number of those before the home lines.
    pub(super) fn lines(&self) -> (u64, u64) {
        (16 << self.size, [4, 4, 8, 12, 20, 40][self.size as usize])
    }

    pub(super) fn bytes(&self) -> u64 {
        self.lines().0 * LINE
    }

    /// Returns whether a record with this hash can be in a line.
    pub(super) fn has_place(&self, line: u64, hash: u64) -> bool {
        let (lines, before) = self.lines();
        if line >= before {
            let home = before + (((hash & 0xffff_ffff) * (lines - before)) >> 32);
            return home / 4 == line / 4;
        }
        let stash = before - 1;
        let first = ((hash & 0xffff) * stash) >> 16;
        (line - 1 + stash - first) % stash < stash.min(8)
    }
}

/// Returns the number of the cell of a hash, in a directory of this depth.
fn cell_of(hash: u64, depth: u32) -> usize {
    (hash >> (64 - depth)) as usize
}

impl Walk<'_, '_> {
    fn walk_line(
        &mut self,
        map: &mut MapReport,
        place: u64,
        [word, intent]: [u64; 2],
        [largest, rest, other]: [u64; 3],
    ) -> Result<()> {
        let empties = self.hash.empty_words(map.form);
        let Some(empties) = empties.filter(|_| largest <= 5 && rest == 0 && other == 0) else {
            return Err(Damage::new(place, "a size of segments", format!("{largest}")).into());
        };
        let (depth, first, mut cells) = self.directory(place, word, DIRECTORY, MAX_DEPTH)?;
        self.region(first - DIRECTORY_HEADER, 8, What::LineDirectory { depth });
        self.region(first, 8 << depth, What::Cell);
        map.depth = depth;
        if let Err(error) = self.apply_intent(place + 8, intent, largest, depth, first, &mut cells)
        {
            let Error::Damaged(damage) = error else { return Err(error) };
            self.problem(damage);
        }
        let mut cell = 0;
        while cell < cells.len() {
            let at = first + 8 * cell as u64;
            let walked = self
                .line_segment(cells[cell], largest, depth)
                .and_then(|segment| self.check_cells(&segment, cell, at, &cells, depth));
            match walked {
                Ok((segment, next)) => {
                    cell = next;
                    let empty = empties[(segment.low >> 63) as usize];
                    match self.walk_line_segment(map, &segment, empty) {
                        Err(Error::Damaged(damage)) => {
                            map.whole = false;
                            self.problem(damage);
                        }
                        walked => walked?,
                    }
                }
                Err(Error::Damaged(damage)) => {
                    map.whole = false;
                    self.problem(damage);
                    cell += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Applies the last rebuild that has committed to the cells. A crash can have left them as they
    /// were before.
    fn apply_intent(
        &mut self,
        at: u64,
        word: u64,
        largest: u64,
        depth: u32,
        first: u64,
        cells: &mut [u64],
    ) -> Result<()> {
        if word == 0 {
            return Ok(());
        }
        self.region(at, 8, What::LineIntent);
        let (mut next, rest) = unpack(at, word)?;
        let mut segments: Vec<Segment> = Vec::new();
        while next != 0 {
            let segment = self.line_segment(next, largest, depth)?;
            let follows =
                segments.last().is_none_or(|last| last.high.checked_add(1) == Some(segment.low));
            if !follows || segments.len() == MOST_NEW {
                let expected = "a segment that follows the one before it";
                return Err(Damage::new(next, expected, format!("{segment:?}")).into());
            }
            next = segment.sibling;
            segments.push(segment);
        }
        if segments.is_empty() || rest != 0 {
            return Err(Damage::new(at, "0, or a link to a segment", format!("{word:#x}")).into());
        }
        for segment in segments {
            let range = cell_of(segment.low, depth)..=cell_of(segment.high, depth);
            for (number, cell) in cells[range.clone()].iter_mut().enumerate() {
                if *cell != segment.offset && self.report.free_state {
                    let place = first + 8 * (range.start() + number) as u64;
                    let expected =
                        format!("{:#x}, as the last rebuild has left it", segment.offset);
                    return Err(Damage::new(place, expected, format!("{cell:#x}")).into());
                }
                *cell = segment.offset;
            }
        }
        Ok(())
    }

    /// Reads a segment's header.
    pub(super) fn line_segment(
        &self,
        offset: u64,
        largest: u64,
        directory: u32,
    ) -> Result<Segment> {
        let bad = |found: String| Error::from(Damage::new(offset, "a segment", found));
        if !offset.is_multiple_of(1024) {
            return Err(bad("a misaligned offset".into()));
        }
        let [found, low, sibling, chain] = self.image.array(offset)?;
        let shape = found >> 16 & 0xffff;
        let (size, depth) = (shape & 7, (shape >> 3) as u32);
        let known = size <= largest && (1..=directory).contains(&depth);
        if !known || found != identity(SEGMENT, shape, offset, low) {
            return Err(bad(format!("{found:#x}, first hash {low:#x}")));
        }
        let rest = u64::MAX >> depth;
        if low & rest != 0 {
            return Err(bad(format!("first hash {low:#x}")));
        }
        let high = low | rest;
        let (sibling, _) = unpack(offset + 16, sibling)?;
        let (chain, _) = unpack(offset + 24, chain)?;
        Ok(Segment { offset, size, depth, low, high, sibling, chain })
    }

    /// Checks that the cells of a segment's range, from `cell` on, lead to it. Returns the segment
    /// and the number of the cell after them.
    fn check_cells(
        &self,
        segment: &Segment,
        cell: usize,
        at: u64,
        cells: &[u64],
        depth: u32,
    ) -> Result<(Segment, usize)> {
        let (first, last) = (cell_of(segment.low, depth), cell_of(segment.high, depth));
        let leads = cells[first..=last].iter().all(|&other| other == segment.offset);
        if first != cell || !leads {
            let expected = format!("the segment {:#x} in its range", segment.offset);
            return Err(Damage::new(at, expected, "a part of it, or more").into());
        }
        Ok((*segment, last + 1))
    }

    fn walk_line_segment(
        &mut self,
        map: &mut MapReport,
        segment: &Segment,
        empty: u64,
    ) -> Result<()> {
        self.claim(segment.offset, segment.bytes(), Owner::Structure)?;
        self.region(segment.offset, 32, What::LineSegment { size: segment.size as u32 });
        map.segments += 1;
        self.seen.add_range(map, segment.offset, (segment.low, segment.high));
        let mut keys = ByKey::new();
        let lines = segment.lines().0;
        self.walk_lines(map, segment, empty, segment.offset + LINE, lines - 1, true, &mut keys)?;
        let (mut node, mut seen) = (segment.chain, HashSet::new());
        while node != 0 {
            let next = self.line_node(node, segment.offset)?;
            if !seen.insert(node) {
                let found = "one for the second time";
                return Err(Damage::new(node, "an overflow node", found).into());
            }
            self.claim(node, NODE_BYTES, Owner::Structure)?;
            self.region(node, 16, What::LineNode);
            map.nodes += 1;
            self.walk_lines(map, segment, empty, node + LINE, LINES_OF_NODE, false, &mut keys)?;
            node = next;
        }
        Ok(())
    }

    /// Reads the header of an overflow node of a segment. Returns the offset of the next one.
    pub(super) fn line_node(&self, node: u64, segment: u64) -> Result<u64> {
        let [found, next] = self.image.array(node)?;
        if !node.is_multiple_of(LINE) || found != identity(NODE, 0, node, segment) {
            return Err(Damage::new(node, "an overflow node", format!("{found:#x}")).into());
        }
        Ok(unpack(node + 8, next)?.0)
    }

    /// Walks lines. If `own` is set, they are those of the segment, from line 1 on.
    #[expect(clippy::too_many_arguments, reason = "a part of a segment is told by all of these")]
    fn walk_lines(
        &mut self,
        map: &mut MapReport,
        segment: &Segment,
        empty: u64,
        at: u64,
        lines: u64,
        own: bool,
        keys: &mut ByKey<()>,
    ) -> Result<()> {
        self.region(at, lines * LINE, What::Bucket { form: map.form });
        let words = self.image.words(at, lines * LINE / 8)?;
        for (number, words) in words.as_chunks().0.iter().enumerate() {
            let place = at + number as u64 * 16;
            let line = own.then_some(1 + number as u64 / 4);
            match self.walk_line_slot(
                map,
                segment,
                empty,
                line,
                Slot { place, words: *words },
                keys,
            ) {
                Err(Error::Damaged(damage)) => self.problem(damage),
                walked => walked?,
            }
        }
        Ok(())
    }

    fn walk_line_slot(
        &mut self,
        map: &mut MapReport,
        segment: &Segment,
        empty: u64,
        line: Option<u64>,
        slot: Slot,
        keys: &mut ByKey<()>,
    ) -> Result<()> {
        let [first, second] = slot.words;
        if first == empty {
            return Ok(());
        }
        let hash = self.hash.of_slot(map.form, [first, second]);
        let fits = (segment.low..=segment.high).contains(&hash)
            && line.is_none_or(|line| segment.has_place(line, hash));
        if !fits {
            let expected = "an empty slot, or a record that belongs there";
            return Err(Damage::new(slot.place, expected, format!("{first:#x} {second:#x}")).into());
        }
        self.region(slot.place, 16, What::LiveSlot { form: map.form, depth: segment.depth });
        map.records += 1;
        if keys.add(self, map.form, slot, ()).is_some() {
            map.duplicates += 1;
            return Err(Damage::new(slot.place, "each key once", "one for the second time").into());
        }
        self.check_record(map, slot)
    }
}
