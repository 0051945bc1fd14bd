//! Marks of records: what a cache knows about their use.

use crate::index::record::MARKED;

/// A record with this many visits is not marked again.
pub(super) const VISITS_MAX: u32 = 3;

const STAMP_MASK: u32 = (1 << 21) - 1;

/// A record's mark; see the documentation of [`cache`](super).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) visits: u32,
    pub(super) proved: bool,
    pub(super) stamp: u32,
}

impl Mark {
    pub(super) fn of(word: u32, now: u32) -> Mark {
        if word >> 24 != MARKED {
            return Mark { visits: 0, proved: false, stamp: now };
        }
        Mark { visits: word >> 22 & 3, proved: word >> 21 & 1 == 1, stamp: word & STAMP_MASK }
    }

    pub(super) fn word(self) -> u32 {
        MARKED << 24 | self.visits << 22 | u32::from(self.proved) << 21 | self.stamp & STAMP_MASK
    }

    /// How long ago the stamp was; 0 if it seems to be from the future.
    pub(super) fn age(self, now: u32) -> u32 {
        age(self.stamp, now)
    }
}

/// How long ago a stamp was; 0 if it seems to be from the future.
pub(super) fn age(stamp: u32, now: u32) -> u32 {
    let age = now.wrapping_sub(stamp) & STAMP_MASK;
    if age > STAMP_MASK / 2 { 0 } else { age }
}

/// Returns the stamp after this many units.
pub(super) fn stamp(units: u64) -> u32 {
    units as u32 & STAMP_MASK
}
