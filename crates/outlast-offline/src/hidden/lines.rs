//! Segments of line hashing that the walk could not reach.

use super::super::Walk;
use super::super::line::{LINE, LINES_OF_NODE, Segment};
use super::{Found, Take, Walked};
use outlast::{Error, Result};
use std::collections::HashSet;

impl Walk<'_, '_> {
    /// Passes on the records of segments that the walk has not reached and whose headers are intact. A
    /// record is certain if the segment's block is in use, and no other segment has its hashes.
    pub(super) fn take_lines<E: From<Error>>(
        &self,
        map: &Walked,
        take: Take<'_, E>,
    ) -> Result<(), E> {
        let mut hidden: Vec<(Segment, bool)> = Vec::new();
        for block in self.runs.unlinked(self.page_bits) {
            if block.is_used == Some(false) || block.bytes < 1024 {
                continue;
            }
            match self.line_segment(block.offset, map.config[0], u32::MAX) {
                Ok(segment) if segment.bytes() <= block.bytes => {
                    hidden.push((segment, block.is_used == Some(true)));
                }
                Ok(_) | Err(Error::Damaged(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let ranges: Vec<_> = map.seen.segments.iter().map(|segment| segment.range).collect();
        let all: Vec<_> = hidden.iter().map(|(segment, _)| (segment.low, segment.high)).collect();
        for (number, (segment, is_used)) in hidden.iter().enumerate() {
            let meets = |range: &(u64, u64)| range.0 <= segment.high && segment.low <= range.1;
            let others = all.iter().enumerate().filter(|&(other, _)| other != number);
            let is_certain =
                *is_used && !ranges.iter().any(meets) && !others.map(|(_, r)| r).any(meets);
            self.take_line_segment(segment, is_certain, take)?;
        }
        Ok(())
    }

    fn take_line_segment<E: From<Error>>(
        &self,
        segment: &Segment,
        is_certain: bool,
        take: Take<'_, E>,
    ) -> Result<(), E> {
        let (mut at, mut lines, mut is_node) = (segment.offset, segment.lines().0 - 1, false);
        let (mut next, mut seen) = (segment.chain, HashSet::new());
        loop {
            for (cell, words) in (0..).zip(self.cells(at + LINE, lines * 4)?) {
                let hash = self.hash.of(&words[0].to_le_bytes());
                let fits = is_node || segment.has_place(1 + cell / 4, hash);
                if fits && (segment.low..=segment.high).contains(&hash) {
                    let place = at + LINE + 16 * cell;
                    take(Found { place, words, is_certain })?;
                }
            }
            match self.line_node(next, segment.offset) {
                Ok(after) if next != 0 && seen.insert(next) => {
                    (at, lines, is_node, next) = (next, LINES_OF_NODE, true, after);
                }
                Ok(_) | Err(Error::Damaged(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
