//! Schedules for the EA-PHT family's own code paths.

use crate::parts::workload::{Aim, Before, Concurrent, Filling, PLAIN, Workload};
use outlast::Config;
use outlast::internals::index::ea_pht::layout::SLOTS;
use outlast::internals::index::ea_pht::points;
use std::ops::Range;

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
    concurrent: Concurrent::Scan,
    ..PLAIN
};

/// Keys that share the last bucket even in a table of sixteen buckets. They fill it and an overflow
/// bucket, so the next insert resizes the table. In EA-PHT-HPR, each change then begins by moving
/// the table's first buckets.
#[derive(Debug)]
struct LastBucket;

impl Filling for LastBucket {
    fn keys(&self, hash: &dyn Fn(u64) -> u64) -> Vec<u64> {
        (0..).filter(|&key| hash(key) >> 60 == 15).take(100).collect()
    }

    fn removed_after(&self, _: usize) -> Range<usize> {
        0..0
    }

    fn records(&self) -> Option<u64> {
        Some(2 * SLOTS as u64)
    }
}

const LATE: Workload = Workload {
    name: "late",
    about: "a thread that sleeps while others resize the table, and reuse the old one",
    filling: Some(&LastBucket),
    aim: Aim::Late { takes: &points::COUNTER, ends: &points::RESIZE_COMMIT },
    concurrent: Concurrent::Maps,
    ..PLAIN
};

/// Returns all workloads of EA-PHT and EA-PHT-H. `four` configures a table of four buckets.
pub(super) const fn all(four: Config) -> [Workload; 7] {
    [OVERFLOWS, ANNEX, RESIZES, DUEL, APART, SCANNED, Workload { config: Some(four), ..LATE }]
}

/// Returns all workloads of EA-PHT-HPR.
pub(super) const fn resumed(four: Config) -> [Workload; 10] {
    let [first, second, third, fourth, fifth, sixth, late] = all(four);
    [
        first,
        second,
        third,
        fourth,
        fifth,
        sixth,
        late,
        Workload {
            name: "move",
            about: "a bucket is moved",
            before: Before::Point(&points::MOVE_COMMIT),
            concurrent: Concurrent::Background,
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
            concurrent: Concurrent::Background,
            ..PLAIN
        },
    ]
}
