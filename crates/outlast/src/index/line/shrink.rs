//! Shrinking: after many removals, a walk over all groups rebuilds those that are too empty.

use super::Line;
use super::layout::{FROZEN, Segment, Shape};
use super::rebuild::Outcome;
use super::resize::shapes;
use crate::error::Result;
use crate::index::record::SlotRecord;
use crate::pmem::Seam;
use std::sync::atomic::{AtomicU64, Ordering};

/// The directory does not shrink. A group is not merged to a depth that is less than the directory's by
/// more than this, so that a rebuild stores few cells.
const MOST_BELOW: u32 = 6;

/// When to begin a walk. No result of an operation depends on these numbers.
#[derive(Default)]
pub(super) struct Removals {
    /// About how many records were removed since the last walk.
    made: AtomicU64,
    /// How many begin the next one.
    limit: AtomicU64,
}

/// A walk over all groups.
#[derive(Default)]
pub(super) struct Shrinking {
    /// The first hash of the group that comes next. `None` if no walk is under way.
    at: Option<u64>,
    /// The records that this round has counted.
    records: u64,
    /// Whether this round has rebuilt a group.
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

    /// Looks at the next group of a walk. Returns whether there is more to do.
    pub(super) fn shrink_step(&self) -> Result<bool> {
        if !self.wants_shrinking() {
            return Ok(false);
        }
        let at = *self.seam().lock(&self.structure).shrinking.at.get_or_insert(0);
        let word = self.cell(at, 1)?;
        let group = if word & FROZEN == 0 { self.group(at, word)? } else { None };
        let (mut records, mut last, mut is_rebuilt) = (0, Segment::of(word, at).high, false);
        if let Some(group) = group {
            last = group[group.len() - 1].high;
            if let Some([in_lines, in_nodes]) = self.count_group(&group)? {
                records = in_lines + in_nodes;
                is_rebuilt = in_nodes == 0 && self.shrink(group, records)?;
            }
        }
        let mut structure = self.seam().lock(&self.structure);
        let walk = &mut structure.shrinking;
        walk.has_rebuilt |= is_rebuilt;
        if !is_rebuilt {
            walk.records += records;
            walk.at = last.checked_add(1);
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

    /// Rebuilds a group without nodes into a smaller one, if it has so few records. Returns whether it
    /// has.
    ///
    /// A group above the least depth can only merge with its sibling, and one at that depth can only
    /// get fewer or smaller segments. So no group waits for ever for one that has become smaller.
    fn shrink(&self, mut group: Vec<Segment>, records: u64) -> Result<bool> {
        let Shape { size, depth, count, .. } = group[0].shape;
        let slots = group[0].size().slots();
        let least = self.cells.depth(self.seam()).saturating_sub(MOST_BELOW).max(1);
        // At most 0.55 of the slots are in use afterwards, and growth begins at about 0.85.
        let fit = |records: u64, slots: u64| 20 * records <= 11 * slots;
        let new = match count {
            3 if fit(records, 2 * slots) => (depth, 2, size),
            2 if depth > least => {
                let is_lower = group[0].low >> (64 - depth) & 1 == 0;
                let next = group[1].high.wrapping_add(1);
                if !is_lower {
                    return Ok(false);
                }
                let word = self.cell(next, 1)?;
                let sibling = if word & FROZEN == 0 { self.group(next, word)? } else { None };
                let Some(sibling) = sibling else { return Ok(false) };
                let Some([more, in_nodes]) = self.count_group(&sibling)? else { return Ok(false) };
                let Shape { depth: other, count, .. } = sibling[0].shape;
                if (other, count, in_nodes) != (depth, 2, 0) || !fit(records + more, 3 * slots) {
                    return Ok(false);
                }
                group.extend(sibling);
                (depth - 1, 3, size)
            }
            2 if depth <= least && fit(records, slots) => (depth, 1, size),
            1 if depth <= least && size > 0 => {
                let smaller = super::SIZES[size as usize - 1].slots();
                if 2 * records > smaller {
                    return Ok(false);
                }
                (depth, 1, size - 1)
            }
            _ => return Ok(false),
        };
        let outcome = self.rebuild(&group, shapes(new.0, new.1, new.2), 0)?;
        Ok(matches!(outcome, Outcome::Done))
    }
}
