//! Schedules for Dash-EH's own code paths.

use super::rows::{self, FullHome, Row};
use crate::parts::workload::{Aim, Before, Filling, PLAIN, Workload};
use crate::structures::dash_eh::config;
use crate::structures::dash_eh::phases::{BACKWARD, FORWARD};
use outlast::internals::index::dash_eh::points;
use std::ops::Range;

impl Filling for Row {
    fn keys(&self, hash: &dyn Fn(u64) -> u64) -> Vec<u64> {
        Row::keys(*self, hash, 0)
    }

    fn removed_after(&self, number: usize) -> Range<usize> {
        Row::removed_after(*self, number)
    }
}

impl Filling for FullHome {
    fn keys(&self, hash: &dyn Fn(u64) -> u64) -> Vec<u64> {
        FullHome::keys(hash)
    }

    fn removed_after(&self, _: usize) -> Range<usize> {
        0..0
    }

    fn records(&self) -> Option<u64> {
        Some(FullHome::FILLED as u64)
    }
}

/// Four buckets, so that a record can be moved.
const FOUR_BUCKETS: Workload = Workload { config: Some(config(2, 2)), ..PLAIN };
const ROW: Workload = Workload { config: Some(config(rows::BUCKET_BITS, 2)), ..PLAIN };
const STASH: Before = Before::Point(&points::INSERT_OVERFLOW);

/// All of Dash-EH's workloads.
pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "displacement",
        about: "an insert moves a record to the bucket after",
        before: Before::Phase(FORWARD[0]),
        ..FOUR_BUCKETS
    },
    Workload {
        name: "displacement-back",
        about: "an insert moves a record back to its home",
        before: Before::Phase(BACKWARD[0]),
        holes: true,
        ..FOUR_BUCKETS
    },
    Workload {
        name: "displacement-row",
        about: "an insert moves three records in a row",
        before: Before::Phase(FORWARD[2]),
        filling: Some(&Row { forward: true, moves: 3 }),
        ..ROW
    },
    Workload {
        name: "displacement-row-back",
        about: "an insert moves three records in a row back to their homes",
        before: Before::Phase(BACKWARD[2]),
        filling: Some(&Row { forward: false, moves: 3 }),
        ..ROW
    },
    Workload {
        name: "full-home",
        about: "inserts into the bucket after a full one, whose own records come there, too",
        filling: Some(&FullHome),
        aim: Aim::Apart,
        ..ROW
    },
    Workload { name: "stash", about: "an insert goes to the stash", before: STASH, ..PLAIN },
    Workload {
        name: "doubling",
        about: "an insert doubles the directory",
        before: Before::Point(&points::DOUBLE_COMMIT),
        ..PLAIN
    },
    Workload {
        name: "overflow",
        about: "keys that no split separates, and a new overflow node",
        before: Before::Point(&points::NODE_COMMIT),
        degenerate: true,
        ..PLAIN
    },
    Workload {
        name: "duel-moved",
        about: "lookups and changes of a key while an insert moves its record",
        before: Before::Phase(FORWARD[0]),
        aim: Aim::Duel,
        ..FOUR_BUCKETS
    },
    Workload {
        name: "duel-moved-back",
        about: "the same where the record moves back to its home",
        before: Before::Phase(BACKWARD[0]),
        holes: true,
        aim: Aim::Duel,
        ..FOUR_BUCKETS
    },
    Workload {
        name: "duel-row",
        about: "the same where two records in a row move",
        before: Before::Phase(FORWARD[1]),
        filling: Some(&Row { forward: true, moves: 2 }),
        aim: Aim::Duel,
        ..ROW
    },
    Workload {
        name: "duel-row-back",
        about: "the same where two records in a row move back to their homes",
        before: Before::Phase(BACKWARD[1]),
        filling: Some(&Row { forward: false, moves: 2 }),
        aim: Aim::Duel,
        ..ROW
    },
    Workload {
        name: "duel-stash",
        about: "lookups and changes of a key in the stash",
        before: STASH,
        aim: Aim::Duel,
        ..PLAIN
    },
    Workload {
        name: "apart-stash",
        about: "inserts and removals of different keys in the stash",
        before: STASH,
        aim: Aim::Apart,
        ..PLAIN
    },
];
