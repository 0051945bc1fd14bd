//! Schedules that go where only PhaST goes.

use super::config;
use super::phases::DIVIDED;
use crate::schedule::workload::{Aim, Before, Beside, PLAIN, Workload};
use outlast::index::phast::points;

/// So large that a leaf takes what a few threads insert.
const ROOMY: Workload = Workload { config: Some(config(20, 4, 2)), ..PLAIN };

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
        name: "shrink",
        about: "removals that empty leaves, after a split that another thread makes",
        before: Before::Point(&points::SPLIT_COMMIT),
        beside: Beside::Removals,
        holes: true,
        ..PLAIN
    },
];
