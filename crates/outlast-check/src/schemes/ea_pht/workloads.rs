//! Schedules for the own paths of the EA-PHT family.

use crate::schedule::workload::{Aim, Before, Beside, PLAIN, Workload};
use outlast::index::ea_pht::points;

const OVERFLOW: Before = Before::Point(&points::NODE_COMMIT);
const RESIZE: Before = Before::Point(&points::RESIZE_NEW);

const OVERFLOWS: Workload = Workload {
    name: "overflow",
    about: "an insert takes an overflow bucket",
    before: OVERFLOW,
    degenerate: true,
    ..PLAIN
};
const ANNEX: Workload = Workload {
    name: "annex",
    about: "keys that no resize separates, and a new annex",
    before: Before::Point(&points::ANNEX_COMMIT),
    degenerate: true,
    ..PLAIN
};
const RESIZES: Workload =
    Workload { name: "resize", about: "the table is resized", before: RESIZE, ..PLAIN };
const DUEL: Workload = Workload {
    name: "duel-resize",
    about: "lookups and changes of a key while the table is resized",
    before: RESIZE,
    aim: Aim::Duel,
    ..PLAIN
};
const APART: Workload = Workload {
    name: "apart-resize",
    about: "inserts and removals of different keys while the table is resized",
    before: RESIZE,
    aim: Aim::Apart,
    ..PLAIN
};
const SCANNED: Workload = Workload {
    name: "scan-resize",
    about: "an iteration while the table is resized",
    before: RESIZE,
    beside: Beside::Scan,
    ..PLAIN
};

/// All workloads of EA-PHT and EA-PHT-H.
pub(super) const ALL: &[Workload] = &[OVERFLOWS, ANNEX, RESIZES, DUEL, APART, SCANNED];

/// All workloads of EA-PHT-HPR.
pub(super) const RESUMED: &[Workload] = &[
    OVERFLOWS,
    ANNEX,
    RESIZES,
    DUEL,
    APART,
    SCANNED,
    Workload {
        name: "move",
        about: "a bucket is moved",
        before: Before::Point(&points::MOVE_COMMIT),
        beside: Beside::Background,
        ..PLAIN
    },
    Workload {
        name: "duel-move",
        about: "lookups and changes of a key whose bucket is moved",
        before: Before::Point(&points::MOVE_COMMIT),
        aim: Aim::Duel,
        ..PLAIN
    },
    Workload {
        name: "finish",
        about: "the last bucket is moved",
        before: Before::Point(&points::RESIZE_COMMIT),
        beside: Beside::Background,
        ..PLAIN
    },
];
