//! Schedules for PhaST's own code paths.

use crate::parts::workload::{Aim, Before, Concurrent, Filling, PLAIN, Start, Workload};
use crate::structures::phast::config;
use crate::structures::phast::phases::DIVIDED;
use outlast::internals::index::phast::points;
use std::ops::Range;

/// A leaf with room for what a few threads insert. It is the second one, because the first one has no
/// blank slots.
#[derive(Debug)]
struct Roomy;

impl Roomy {
    const SLOTS: u32 = 20;
    const RECORDS: u64 = Self::SLOTS as u64 + 4;
}

impl Filling for Roomy {
    fn keys(&self, _: &dyn Fn(u64) -> u64) -> Vec<u64> {
        // A split leaves most of ascending keys in the first leaf.
        (1..=Self::RECORDS + 12).map(|n| 20 * n).collect()
    }

    fn removed_after(&self, _: usize) -> Range<usize> {
        0..0
    }

    fn records(&self) -> Option<u64> {
        Some(Self::RECORDS)
    }
}

const ROOMY: Workload =
    Workload { config: Some(config(Roomy::SLOTS, 4, 2)), filling: Some(&Roomy), ..PLAIN };

/// Leaves that are large enough for a merge to copy some pairs.
const MERGE: Workload = Workload {
    config: Some(config(8, 4, 4)),
    before: Before::Point(&points::MERGE_COPY),
    emptied: true,
    ..PLAIN
};

/// A leaf with one slot left. While one insert fills that slot, another finds the leaf full, so its
/// split reads a leaf in which an insert is in progress. (A leaf of four slots with three pairs
/// would be compacted and not split. A leaf that starts full takes no insert.)
#[derive(Debug)]
struct Brim;

impl Brim {
    const SLOTS: u32 = 8;
}

impl Filling for Brim {
    fn keys(&self, _: &dyn Fn(u64) -> u64) -> Vec<u64> {
        // The keys that threads insert lie among the present ones and above them.
        let there = (1..u64::from(Self::SLOTS)).map(|n| 20 * n);
        there.chain((1..u64::from(Self::SLOTS)).map(|n| 30 * n + 5)).collect()
    }

    fn removed_after(&self, _: usize) -> Range<usize> {
        0..0
    }

    fn records(&self) -> Option<u64> {
        Some(u64::from(Self::SLOTS) - 1)
    }
}

const BRIM: Workload =
    Workload { config: Some(config(Brim::SLOTS, 4, 4)), filling: Some(&Brim), ..PLAIN };

/// All of PhaST's workloads.
pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "partition",
        about: "an insert splits a leaf, its node and its partition",
        before: Before::Phase(DIVIDED),
        ..PLAIN
    },
    Workload {
        name: "duel-partition",
        about: "lookups and changes of a key during that",
        before: Before::Phase(DIVIDED),
        aim: Aim::Duel,
        ..PLAIN
    },
    Workload {
        name: "partition-scan",
        about: "an iteration during that",
        before: Before::Phase(DIVIDED),
        concurrent: Concurrent::Scan,
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
        name: "brim",
        about: "inserts and removals in a leaf with one slot left",
        aim: Aim::Apart,
        ..BRIM
    },
    Workload {
        name: "race-brim",
        about: "inserts of one key in a leaf with one slot left",
        aim: Aim::Race,
        ..BRIM
    },
    Workload {
        name: "shrink",
        about: "removals that empty leaves, after a split that another thread makes",
        before: Before::Point(&points::SPLIT_COMMIT),
        concurrent: Concurrent::Removals,
        holes: true,
        ..PLAIN
    },
    Workload { name: "merge", about: "a removal that merges two leaves", ..MERGE },
    Workload {
        name: "merge-scan",
        about: "an iteration during that",
        concurrent: Concurrent::Scan,
        ..MERGE
    },
    Workload {
        name: "duel-merge",
        about: "lookups and changes of a key during that",
        aim: Aim::Duel,
        ..MERGE
    },
    Workload {
        name: "merge-reclaim",
        about: "the same while the reclaim after a crash runs",
        start: Start::Crashed,
        concurrent: Concurrent::Background,
        ..MERGE
    },
    Workload {
        name: "join",
        about: "a removal that merges the first leaf of a partition away, and an iteration",
        before: Before::Point(&points::MASTER_GONE),
        emptied: true,
        concurrent: Concurrent::Scan,
        ..PLAIN
    },
];
