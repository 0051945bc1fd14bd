//! The walk of a Dash-EH table: directory, segments and overflow nodes.

use super::dash::{Segment, Shape};
use super::{MapReport, Owner, SchemeWalk, Walk, What};
use outlast::{Damage, Error, Result};

/// The entry in the table of walks.
pub(super) const WALK: SchemeWalk = SchemeWalk {
    number: 1,
    name: "dash-eh",
    root: What::RootScheme,
    walk: |walk, map, place, words, config| walk.walk_dash_eh(map, place, words[0], config),
};

impl Walk<'_, '_> {
    fn walk_dash_eh(
        &mut self,
        map: &mut MapReport,
        place: u64,
        word: u64,
        config: [u64; 3],
    ) -> Result<()> {
        let [bits, stash, rest] = config;
        let shape = Shape::new([bits, stash], map.form, &self.hash)
            .filter(|_| rest == 0)
            .ok_or_else(|| Damage::new(place, "a shape of segments", format!("{config:?}")))?;
        let (depth, first, mut entries) = self.dash_directory(place, word)?;
        self.region(first, 8 << depth, What::Entry);
        map.depth = depth;
        let mut index = 0;
        while index < entries.len() {
            match self.walk_entry(map, &shape, &mut entries, depth, index) {
                // Walks the same entry again, now that the split is completed in `entries`.
                Ok(0) => {}
                Ok(range) => index += range,
                Err(Error::Damaged(damage)) => {
                    map.whole = false;
                    self.problem(damage);
                    index += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Walks the segment that the directory's entry `index` points to. Returns how many entries
    /// belong to the segment, or 0 if its unfinished split was completed, which changes only
    /// `entries`, not the file.
    fn walk_entry(
        &mut self,
        map: &mut MapReport,
        shape: &Shape,
        entries: &mut [u64],
        directory_depth: u32,
        index: usize,
    ) -> Result<usize> {
        let offset = entries[index];
        let mut segment = self.dash_segment(shape, offset)?;
        let hash = (index as u64) << (64 - directory_depth);
        let Segment { depth, low, .. } = segment;
        let damage = |at: u64, expected: String, found: String| -> Result<usize> {
            Err(Damage::new(at, expected, found).into())
        };
        if depth > directory_depth || low << depth != 0 {
            let expected = format!("a segment of a directory of depth {directory_depth}");
            return damage(offset + 8, expected, format!("first hash {low:#x}, depth {depth}"));
        }
        if segment.partner != 0 {
            // The split has committed, but its directory entries may be missing. Entries of the
            // upper half that still point to the old segment belong to the new one.
            let bit = 1 << (64 - depth);
            let partner = self.dash_segment(shape, segment.partner)?;
            if low & bit != 0 || partner.low != low | bit || partner.depth < depth {
                let expected = format!("a partner for the split of the segment at {low:#x}");
                let found = format!("first hash {:#x}, depth {}", partner.low, partner.depth);
                return damage(offset + 16, expected, found);
            }
            let first = (partner.low >> (64 - directory_depth)) as usize;
            let upper = &mut entries[first..first + (1 << (directory_depth - depth))];
            let mut pending = false;
            for entry in upper.iter_mut().filter(|entry| **entry == offset) {
                *entry = segment.partner;
                pending = true;
            }
            if pending {
                return Ok(0);
            }
            segment.partner = 0;
        }
        if low != hash {
            let expected = format!("a segment that begins with hash {hash:#x}");
            return damage(offset + 8, expected, format!("{low:#x}"));
        }
        let range = 1 << (directory_depth - depth);
        if let Some(other) = entries[index..index + range].iter().position(|&e| e != offset) {
            let expected = format!("entry {} of the directory: {offset:#x}", index + other);
            return damage(offset, expected, format!("{:#x}", entries[index + other]));
        }
        self.claim(offset, shape.segment_bytes, Owner::Structure)?;
        self.walk_segment(map, shape, &segment)?;
        Ok(range)
    }
}
