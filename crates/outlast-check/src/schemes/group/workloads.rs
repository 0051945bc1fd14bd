//! Schedules for group hashing's own code paths.

use crate::parts::workload::{Aim, Before, PLAIN, Workload};
use crate::structures::group::phases::SECOND_LEVEL;
use outlast::internals::index::group::points;

const SECOND: Before = Before::Phase(SECOND_LEVEL);

/// All of group hashing's workloads.
pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "second-level",
        about: "an insert goes to the second level",
        before: SECOND,
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
        name: "duel-second",
        about: "lookups and changes of a key in the second level",
        before: SECOND,
        aim: Aim::Duel,
        ..PLAIN
    },
    Workload {
        name: "apart-second",
        about: "inserts and removals of different keys in the second level",
        before: SECOND,
        aim: Aim::Apart,
        ..PLAIN
    },
];
