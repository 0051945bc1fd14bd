//! Schedules for Dash-LH's own code paths.

use crate::parts::workload::{Aim, Before, PLAIN, Workload};
use outlast::internals::index::dash_lh::points;

const TURN: Before = Before::Point(&points::TURN);
const STASH: Before = Before::Point(&points::INSERT_OVERFLOW);

/// All of Dash-LH's workloads.
pub(super) const ALL: &[Workload] = &[
    Workload { name: "stash", about: "an insert goes to the stash", before: STASH, ..PLAIN },
    Workload {
        name: "turn",
        about: "an insert adds an overflow node and splits the segment whose turn it is",
        before: TURN,
        ..PLAIN
    },
    Workload {
        name: "array",
        about: "the same where the new segment needs a new array",
        before: Before::Point(&points::ARRAY),
        ..PLAIN
    },
    Workload {
        name: "doubling",
        about: "the same where the array needs a larger directory",
        before: Before::Point(&points::DOUBLE_COMMIT),
        ..PLAIN
    },
    Workload {
        name: "nodes-gone",
        about: "a split gives overflow nodes back",
        before: Before::Point(&points::NODES_GONE),
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
        name: "duel-turn",
        about: "lookups and changes of a key while the turn passes",
        before: TURN,
        aim: Aim::Duel,
        ..PLAIN
    },
    Workload {
        name: "duel-nodes-gone",
        about: "lookups and changes of a key in overflow nodes that a split gives back",
        before: Before::Point(&points::NODES_GONE),
        aim: Aim::Duel,
        ..PLAIN
    },
    Workload {
        name: "apart-turn",
        about: "inserts and removals of different keys while the turn passes",
        before: TURN,
        aim: Aim::Apart,
        ..PLAIN
    },
];
