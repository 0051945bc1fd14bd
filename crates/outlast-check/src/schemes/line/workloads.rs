//! Schedules for line hashing's own code paths.

use crate::parts::workload::{Aim, Before, Concurrent, PLAIN, Workload};
use outlast::internals::index::line::points;

const OVERFLOW: Before = Before::Point(&points::INSERT_OVERFLOW);

/// All of line hashing's workloads.
pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "rebuild",
        about: "an insert rebuilds a segment",
        before: Before::Growth,
        ..PLAIN
    },
    Workload {
        name: "duel-rebuild",
        about: "lookups and changes of a key whose segment is rebuilt",
        before: Before::Growth,
        aim: Aim::Duel,
        ..PLAIN
    },
    Workload {
        name: "race-frozen",
        about: "inserts of one key into a full segment",
        before: Before::Growth,
        aim: Aim::Race,
        ..PLAIN
    },
    Workload {
        name: "late-rebuild",
        about: "a thread sleeps through a rebuild and the reuse of the old segments",
        before: Before::Growth,
        aim: Aim::Late { takes: &points::REBUILD_NEW, ends: &points::REBUILD_CELLS },
        ..PLAIN
    },
    Workload {
        name: "scan-rebuild",
        about: "an iteration during rebuilds",
        before: Before::Growth,
        concurrent: Concurrent::Scan,
        ..PLAIN
    },
    Workload {
        name: "away",
        about: "records in other lines of their block",
        before: Before::Point(&points::INSERT_AWAY),
        ..PLAIN
    },
    Workload { name: "stash", about: "records in the stash", before: OVERFLOW, ..PLAIN },
    Workload {
        name: "duel-stash",
        about: "lookups and changes of a key in the stash",
        before: OVERFLOW,
        aim: Aim::Duel,
        ..PLAIN
    },
    Workload {
        name: "apart-stash",
        about: "inserts and removals of different keys in the stash",
        before: OVERFLOW,
        aim: Aim::Apart,
        ..PLAIN
    },
    Workload {
        name: "overflow",
        about: "keys that no growth separates, and a new overflow node",
        before: Before::Point(&points::NODE_COMMIT),
        degenerate: true,
        ..PLAIN
    },
];
