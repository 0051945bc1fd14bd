//! Shrinking: after many removals, a walk over all segments rebuilds those that are too empty.

use super::Line;
use super::layout::{OPEN, Segment, Shape};
use super::rebuild::Outcome;
use crate::error::Result;
use crate::index::record::SlotRecord;
use crate::pmem::Seam;
use std::sync::atomic::{AtomicU64, Ordering};

/// The directory does not shrink. Segments are not merged to a depth that is less than the directory's
/// by more than this, so that a rebuild stores few cells.
const MOST_BELOW: u32 = 6;

/// When to begin a walk. No result of an operation depends on these numbers.
#[derive(Default)]
pub(super) struct Removals {
    /// About how many records were removed since the last walk.
    made: AtomicU64,
    /// How many begin the next one.
    limit: AtomicU64,
}

/// A walk over all segments.
#[derive(Default)]
pub(super) struct Shrinking {
    /// The first hash of the segment that comes next. `None` if no walk is under way.
    at: Option<u64>,
    /// The records that this round has counted.
    records: u64,
    /// Whether this round has rebuilt a segment.
    has_rebuilt: bool,
}

impl Removals {
    /// Makes the counters of a map with this many cells.
    pub(super) fn new(cells: u64, sample: u64) -> Removals {
        Removals { made: AtomicU64::new(0), limit: AtomicU64::new(cells * sample) }
    }
}

impl<S: Seam, R: SlotRecord> Line<S, R> {
    /// Of this many changes under a stripe, one counts for all if it is a removal.
    pub(super) fn sample(&self) -> u64 {
        2 << self.largest
    }

    /// Counts a removal, the `number`th change under its stripe.
    #[inline(always)]
    pub(super) fn note_removal(&self, number: u64) {
        let sample = self.sample();
        if number & (sample - 1) == 0 {
            self.removals.made.fetch_add(sample, Ordering::Relaxed);
        }
    }

    /// Returns whether a walk is due or under way.
    pub(super) fn wants_shrinking(&self) -> bool {
        let Removals { made, limit } = &self.removals;
        made.load(Ordering::Relaxed) >= limit.load(Ordering::Relaxed)
    }

    /// Looks at the next segment of a walk. Returns whether there is more to do.
    pub(super) fn shrink_step(&self) -> Result<bool> {
        if !self.wants_shrinking() {
            return Ok(false);
        }
        let at = *self.seam().lock(&self.structure).shrinking.at.get_or_insert(0);
        let word = self.cell(at, 1)?;
        let segment = Segment::of(word, at);
        let (mut records, mut is_rebuilt) = (0, false);
        if word & OPEN != 0
            && let Some([in_lines, in_nodes]) = self.count_valid(&segment)?
        {
            records = in_lines + in_nodes;
            is_rebuilt = in_nodes == 0 && self.shrink(segment, records)?;
        }
        let mut structure = self.seam().lock(&self.structure);
        let walk = &mut structure.shrinking;
        walk.has_rebuilt |= is_rebuilt;
        if !is_rebuilt {
            walk.records += records;
            walk.at = segment.high.checked_add(1);
        }
        if walk.at.is_none() {
            if !walk.has_rebuilt {
                let least = super::SIZES[self.largest as usize].slots() / 4;
                let limit = (walk.records / 8).max(least);
                self.removals.limit.store(limit, Ordering::Relaxed);
                self.removals.made.store(0, Ordering::Relaxed);
            }
            *walk = Shrinking::default();
        }
        Ok(self.wants_shrinking())
    }

    /// Rebuilds a segment without nodes into a smaller one, or merges it with its sibling, if it has so
    /// few records. Returns whether it has.
    ///
    /// A segment above the least depth can only merge with its sibling, and one at that depth can only
    /// become smaller. So no segment waits for ever for one that has become smaller.
    fn shrink(&self, segment: Segment, records: u64) -> Result<bool> {
        let Shape { size, depth } = segment.shape;
        let least = self.cells.depth(self.seam()).saturating_sub(MOST_BELOW).max(1);
        if depth <= least {
            let is_few = size > 0 && 2 * records <= super::SIZES[size as usize - 1].slots();
            return Ok(is_few && self.rebuild_to(&[segment], Shape { size: size - 1, depth })?);
        }
        let is_lower = segment.low >> (64 - depth) & 1 == 0;
        // At most half of the slots are in use afterwards, and growth begins at about 0.85.
        if !is_lower || 2 * records > segment.size().slots() {
            return Ok(false);
        }
        let next = segment.high + 1;
        let word = self.cell(next, 1)?;
        let sibling = Segment::of(word, next);
        if word & OPEN == 0 || sibling.shape != segment.shape {
            return Ok(false);
        }
        let Some([more, in_nodes]) = self.count_valid(&sibling)? else { return Ok(false) };
        let fits = in_nodes == 0 && 2 * (records + more) <= segment.size().slots();
        Ok(fits && self.rebuild_to(&[segment, sibling], Shape { size, depth: depth - 1 })?)
    }

    fn rebuild_to(&self, old: &[Segment], new: Shape) -> Result<bool> {
        Ok(matches!(self.rebuild(old, &[new], 0)?, Outcome::Done))
    }
}
