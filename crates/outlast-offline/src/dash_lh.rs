//! The walk of a Dash-LH table: the directory of arrays, and the segments in them.

use super::dash::{Segment, Shape};
use super::image::{LOW48, MAX_DEPTH, crc_words, fold16};
use super::{MapReport, Owner, SchemeWalk, Walk, What};
use outlast::{Damage, Error, Result};

/// The entry in the table of walks.
pub(super) const WALK: SchemeWalk = SchemeWalk {
    number: 5,
    name: "dash-lh",
    root: What::RootScheme,
    walk: |walk, map, place, words, config| walk.walk_dash_lh(map, place, words, config),
};

/// What leads to a map's segments.
struct Table {
    shape: Shape,
    /// log2 of the number of segments in the first array.
    initial: u32,
    /// The number of segments that fit into the largest possible block.
    most: u64,
    /// The depth of the segments that this round splits. The turn of those with prefixes below
    /// `next` has passed.
    round: u32,
    next: u64,
    /// Whether a segment whose turn has passed may still be unsplit.
    late: bool,
    /// The offset of the root's words.
    root: u64,
    /// The arrays' offsets; `None` for one that is damaged.
    arrays: Vec<Option<u64>>,
}

impl Table {
    /// Returns how many segments an array has. There are eight arrays of each size, and any number
    /// of the largest size, which fill the largest possible block.
    fn len(&self, array: usize) -> u64 {
        let bits = self.initial as usize + array / 8;
        if array < 8 || bits < 48 && 1 << bits <= self.most / 2 { 1 << bits } else { self.most }
    }

    /// Returns the array of the segment that was made at depth `made` and whose first hash is
    /// `low`, and the segment's index there.
    fn place(&self, low: u64, made: u32) -> (usize, u64) {
        let prefix = low >> (64 - made);
        let mut left =
            if made == self.initial { prefix } else { (1 << (made - 1)) + (prefix >> 1) };
        let mut array = 0;
        while left >= self.len(array) {
            let last = array >= 8 && self.len(array) == self.most;
            let skipped = if last { left / self.len(array) } else { 1 };
            left -= skipped * self.len(array);
            array += skipped as usize;
        }
        (array, left)
    }

    fn offset(&self, low: u64, made: u32) -> Option<u64> {
        let (array, index) = self.place(low, made);
        let block = (*self.arrays.get(array)?)?;
        Some(block + index * self.shape.segment_bytes)
    }
}

impl Walk<'_, '_> {
    fn walk_dash_lh(
        &mut self,
        map: &mut MapReport,
        place: u64,
        words: &[u64],
        config: [u64; 3],
    ) -> Result<()> {
        let [bits, stash, initial] = config;
        let bad = |what: &str, found: String| Error::from(Damage::new(place, what, found));
        let shape = Shape::new([bits, stash], map.form, &self.hash)
            .filter(|_| (1..=10).contains(&initial))
            .ok_or_else(|| bad("a shape of segments", format!("{config:?}")))?;
        let (depth, first, arrays) = self.dash_directory(place, words[0])?;
        let turn = words[1];
        self.region(place + 8, 8, What::Turn);
        let (late, round) = (turn >> 46 & 1 != 0, (turn & LOW48 & !(1 << 46)) >> 40);
        let next = turn & ((1 << 40) - 1);
        let known = (initial..=u64::from(MAX_DEPTH)).contains(&round) && next >> round == 0;
        if turn >> 48 != fold16(crc_words(&[turn & LOW48])) || !known {
            return Err(bad("the segment that is split next", format!("{turn:#x}")));
        }
        let (initial, round) = (initial as u32, round as u32);
        let most = self.largest_block() / shape.segment_bytes;
        if most < 1 << initial {
            return Err(bad("an array of that size", format!("{config:?}")));
        }
        let segments = (1 << round) + next;
        self.seen.is_late = late;
        let mut table =
            Table { shape, initial, most, round, next, late, root: place, arrays: Vec::new() };
        // How many arrays there are at this turn, and how many segments they can hold.
        let (mut count, mut capacity) = (0, 0);
        while capacity < segments {
            if count == arrays.len() {
                return Err(bad("a turn for which there are arrays", format!("{turn:#x}")));
            }
            capacity += table.len(count);
            count += 1;
        }
        self.region(first, 8 * count as u64, What::Entry);
        let mut left = segments;
        for (array, &block) in arrays[..count].iter().enumerate() {
            let used = table.len(array).min(left);
            left -= used;
            let bytes = table.len(array) * table.shape.segment_bytes;
            let claimed = self.claim(block, bytes, Owner::Structure);
            table.arrays.push(claimed.is_ok().then_some(block));
            match claimed {
                Ok(_) => {
                    self.region(block, bytes, What::Array);
                    self.seen.arrays.push((block, used));
                }
                // The segments in the other arrays can still be read.
                Err(damage) => {
                    map.whole = false;
                    self.problem(damage);
                }
            }
        }
        map.depth = depth;
        // The segments whose existence is known, each with the depth at which it was made.
        let mut known: Vec<(u64, u32)> =
            (0..1u64 << initial).rev().map(|prefix| (prefix << (64 - initial), initial)).collect();
        while let Some((low, made)) = known.pop() {
            match self.walk_segment_of_array(map, &table, low, made) {
                // For each later bit, a split by that bit has made another segment.
                Ok(depth) => {
                    known.extend((made + 1..=depth).map(|bit| (low | 1 << (64 - bit), bit)));
                }
                Err(Error::Damaged(damage)) => {
                    map.whole = false;
                    self.problem(damage);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Walks the segment that begins with this hash. Returns its depth.
    fn walk_segment_of_array(
        &mut self,
        map: &mut MapReport,
        table: &Table,
        low: u64,
        made: u32,
    ) -> Result<u32> {
        let missing =
            || Damage::new(table.root, format!("an array for the segment {low:#x}"), "none");
        let offset = table.offset(low, made).ok_or_else(missing)?;
        let segment: Segment = self.dash_segment(&table.shape, offset)?;
        let most = table.round + u32::from(low >> (64 - table.round) < table.next);
        if segment.low != low || !(made..=most).contains(&segment.depth) {
            let expected = format!("first hash {low:#x}, depth {made} to {most}");
            let found = format!("{:#x}, {}", segment.low, segment.depth);
            return Err(Damage::new(offset + 8, expected, found).into());
        }
        if segment.partner != 0 {
            let half = table.offset(low | 1 << (64 - segment.depth), segment.depth);
            if segment.depth == made || half != Some(segment.partner) {
                let found = format!("{:#x}", segment.partner);
                let expected = format!("no partner, or {half:x?}");
                return Err(Damage::new(offset + 16, expected, found).into());
            }
        }
        if segment.depth < most && self.report.free_state {
            // The segment is late. Recovery notes late segments in the turn, and erases what an
            // interrupted split has left of the new half.
            let half = low | 1 << (63 - segment.depth);
            let at = table.offset(half, segment.depth + 1).ok_or_else(missing)?;
            if !table.late || self.image.word(at)? == table.shape.identity(at, half) {
                let expected = format!("the new half of the segment {low:#x}");
                let found = format!("one that is not split, of depth {}", segment.depth);
                self.problem(Damage::new(at, expected, found));
            }
        }
        match self.walk_segment(map, &table.shape, &segment) {
            // The walk goes on with the segments that were split off from this one, because they do
            // not depend on its content.
            Err(Error::Damaged(damage)) => {
                map.whole = false;
                self.problem(damage);
            }
            walked => walked?,
        }
        Ok(segment.depth)
    }
}
