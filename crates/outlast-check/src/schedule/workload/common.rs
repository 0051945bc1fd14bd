//! The workloads that every scheme has.

use crate::parts::workload::{Aim, Before, Concurrent, PLAIN, Start, Workload};
use outlast::internals::pool::points as pool;

/// The workloads of every scheme, besides those in [`closing`](super::closing).
pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "growth",
        about: "an insert makes the table grow",
        before: Before::Growth,
        ..PLAIN
    },
    Workload {
        name: "growth-removals",
        about: "removals during growth",
        before: Before::Growth,
        concurrent: Concurrent::Removals,
        ..PLAIN
    },
    Workload {
        name: "growth-scan",
        about: "an iteration during growth",
        before: Before::Growth,
        concurrent: Concurrent::Scan,
        ..PLAIN
    },
    Workload {
        name: "one-key",
        about: "several changes of one key at once",
        aim: Aim::OneKey,
        ..PLAIN
    },
    Workload {
        name: "duel",
        about: "two or three changes and lookups of one key, and nothing else",
        aim: Aim::Duel,
        ..PLAIN
    },
    Workload { name: "race", about: "two or three inserts of one key", aim: Aim::Race, ..PLAIN },
    Workload {
        name: "duel-growth",
        about: "lookups and changes of a key during an insert that makes its table grow",
        before: Before::Growth,
        aim: Aim::Duel,
        ..PLAIN
    },
    Workload {
        name: "apart",
        about: "inserts and removals of different keys in the same buckets",
        aim: Aim::Apart,
        ..PLAIN
    },
    Workload {
        name: "repair",
        about: "first touches after a crash, before an insert that makes the table grow",
        before: Before::Growth,
        start: Start::Crashed,
        ..PLAIN
    },
    Workload {
        name: "reclaim",
        about: "the reclaim after a crash during operations",
        before: Before::Growth,
        start: Start::Crashed,
        concurrent: Concurrent::Background,
        ..PLAIN
    },
    Workload {
        name: "sync",
        about: "the pool made clean during operations",
        before: Before::Growth,
        concurrent: Concurrent::Sync,
        ..PLAIN
    },
    Workload {
        name: "batch",
        about: "batches during operations",
        before: Before::Growth,
        concurrent: Concurrent::Batch,
        ..PLAIN
    },
    Workload {
        name: "batch-if",
        about: "batches that require the value of a key which other threads change",
        concurrent: Concurrent::BatchIf,
        aim: Aim::OneKey,
        ..PLAIN
    },
    Workload {
        name: "close",
        about: "the pool closed during operations",
        before: Before::Growth,
        concurrent: Concurrent::Close,
        ..PLAIN
    },
    Workload {
        name: "pool-growth",
        about: "an insert makes the pool grow",
        before: Before::Point(&pool::HEADER_SIZE),
        pages: Some(40),
        ..PLAIN
    },
    Workload {
        name: "maps",
        about: "other maps created and dropped during operations",
        concurrent: Concurrent::Maps,
        ..PLAIN
    },
    Workload {
        name: "maps-freed",
        about: "maps that were dropped while they were held, freed while others are created",
        concurrent: Concurrent::MapsFreed,
        ..PLAIN
    },
    Workload {
        name: "maps-reclaim",
        about: "other maps created and dropped during the reclaim after a crash",
        start: Start::Crashed,
        concurrent: Concurrent::Maps,
        ..PLAIN
    },
];
