//! Schedules for clevel's own code paths.

use crate::parts::workload::{Aim, Before, Concurrent, Filling, PLAIN, Start, Workload};
use outlast::internals::index::clevel::points;
use std::ops::Range;

/// A table that was large and is almost empty.
#[derive(Debug)]
struct Emptied;

impl Emptied {
    /// Enough records that removing them makes the table check its size.
    const RECORDS: u64 = 300;
    const LEFT: usize = 6;
}

impl Filling for Emptied {
    fn keys(&self, _: &dyn Fn(u64) -> u64) -> Vec<u64> {
        (10..10 + Self::RECORDS + 8).collect()
    }

    fn removed_after(&self, number: usize) -> Range<usize> {
        let last = Self::RECORDS as usize - 1;
        if number == last { 0..last - Self::LEFT } else { 0..0 }
    }

    fn records(&self) -> Option<u64> {
        Some(Self::RECORDS)
    }
}

const EMPTIED: Workload = Workload { filling: Some(&Emptied), ..PLAIN };
const REHASH: Workload =
    Workload { before: Before::Growth, concurrent: Concurrent::Background, ..PLAIN };

/// All of clevel's workloads.
pub(super) const ALL: &[Workload] = &[
    Workload { name: "rehash", about: "changes during rehashing", ..REHASH },
    Workload {
        name: "duel-rehash",
        about: "lookups and changes of a key during rehashing",
        aim: Aim::Duel,
        ..REHASH
    },
    Workload {
        name: "moved-rehash",
        about: "lookups and changes of a key that moves to a level that is added meanwhile",
        aim: Aim::Moved,
        ..REHASH
    },
    Workload {
        name: "race-rehash",
        about: "inserts of one key during rehashing",
        aim: Aim::Race,
        ..REHASH
    },
    Workload {
        name: "rehash-scan",
        about: "iterations during rehashing",
        concurrent: Concurrent::BackgroundAndScan,
        ..REHASH
    },
    Workload {
        name: "rehash-repair",
        about: "first touches after a crash during rehashing",
        start: Start::Crashed,
        ..REHASH
    },
    Workload {
        name: "reclaim-update",
        about: "the reclaim after a crash in an update, during operations",
        start: Start::CrashedIn(&points::UPDATE),
        concurrent: Concurrent::Background,
        aim: Aim::Last,
        ..PLAIN
    },
    Workload {
        name: "shrink",
        about: "changes of a table that shrinks",
        concurrent: Concurrent::Background,
        ..EMPTIED
    },
    Workload {
        name: "duel-shrink",
        about: "lookups and changes of a key in a table that shrinks",
        concurrent: Concurrent::Background,
        aim: Aim::Duel,
        ..EMPTIED
    },
    Workload {
        name: "chain",
        about: "keys of one hash, and a new overflow node",
        before: Before::Point(&points::NODE_LINK),
        degenerate: true,
        ..PLAIN
    },
    Workload {
        name: "chain-rehash",
        about: "the same during rehashing",
        before: Before::Point(&points::NODE_LINK),
        degenerate: true,
        concurrent: Concurrent::Background,
        ..PLAIN
    },
    Workload {
        name: "duel-chain",
        about: "lookups and changes of a key during an insert that makes a chain longer",
        before: Before::Point(&points::NODE_LINK),
        degenerate: true,
        aim: Aim::Duel,
        ..PLAIN
    },
];
