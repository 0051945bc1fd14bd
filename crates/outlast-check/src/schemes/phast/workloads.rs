//! Schedules that go where only PhaST goes.

use super::config;
use super::phases::DIVIDED;
use crate::schedule::workload::{Aim, Before, Beside, PLAIN, Start, Workload};
use outlast::index::phast::points;

/// So large that a leaf takes what a few threads insert.
const ROOMY: Workload = Workload { config: Some(config(20, 4, 2)), ..PLAIN };

/// Leaves of so many pairs that a merge has some to copy.
const MERGE: Workload = Workload {
    config: Some(config(8, 4, 4)),
    before: Before::Point(&points::MERGE_COPY),
    emptied: true,
    ..PLAIN
};

/// All of them.
pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "partition",
        about: "an insert splits a leaf, its node and its partition",
        before: Before::Phase(DIVIDED),
        ..PLAIN
    },
    Workload {
        name: "duel-partition",
        about: "lookups and changes of a key beside that",
        before: Before::Phase(DIVIDED),
        aim: Aim::Duel,
        ..PLAIN
    },
    Workload {
        name: "partition-scan",
        about: "an iteration beside that",
        before: Before::Phase(DIVIDED),
        beside: Beside::Scan,
        ..PLAIN
    },
    Workload {
        name: "leaf",
        about: "inserts and removals in one leaf that has room",
        aim: Aim::Apart,
        ..ROOMY
    },
    Workload {
        name: "one-key-leaf",
        about: "changes of one key in a leaf that has room",
        aim: Aim::OneKey,
        ..ROOMY
    },
    Workload {
        name: "race-leaf",
        about: "inserts of one key in a leaf that has room",
        aim: Aim::Race,
        ..ROOMY
    },
    Workload {
        name: "shrink",
        about: "removals that empty leaves, after a split that another thread makes",
        before: Before::Point(&points::SPLIT_COMMIT),
        beside: Beside::Removals,
        holes: true,
        ..PLAIN
    },
    Workload { name: "merge", about: "a removal that merges two leaves", ..MERGE },
    Workload {
        name: "merge-scan",
        about: "an iteration beside that",
        beside: Beside::Scan,
        ..MERGE
    },
    Workload {
        name: "duel-merge",
        about: "lookups and changes of a key beside that",
        aim: Aim::Duel,
        ..MERGE
    },
    Workload {
        name: "merge-reclaim",
        about: "the same while the reclaim after a crash runs",
        start: Start::Crashed,
        beside: Beside::Background,
        ..MERGE
    },
    Workload {
        name: "join",
        about: "a removal that merges the first leaf of a partition away, and an iteration",
        before: Before::Point(&points::MASTER_GONE),
        emptied: true,
        beside: Beside::Scan,
        ..PLAIN
    },
];
