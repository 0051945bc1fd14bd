//! What the threads of a schedule do: kinds of workloads.

use crate::structures::phases::{Phase, phase};
use crate::structures::structure;
use outlast::internals::pmem::Point;
use outlast::{Config, Scheme};
use std::ops::Range;

/// The state of the pool when a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Open, as it was filled.
    Open,
    /// Opened again after its process died.
    Crashed,
    /// Opened again after its process died in an update, just after the last store at this point.
    CrashedIn(&'static Point),
}

/// A kind of workload. A seed makes a run of it.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What it tests, for people.
    pub about: &'static str,
    /// What the next insert goes through once the table is filled.
    pub(crate) before: Before,
    pub(crate) start: Start,
    /// The map's configuration, if it is not the smallest.
    pub(crate) config: Option<Config>,
    /// The pool's initial pages, if there are not as many as usual.
    pub(crate) pages: Option<u64>,
    /// Whether all keys have the same hash.
    pub(crate) degenerate: bool,
    /// Whether some records are removed while the table is filled.
    pub(crate) holes: bool,
    /// Whether the tested operation is a removal. Then the table is filled, and emptied until the
    /// next removal would go through `before`.
    pub(crate) emptied: bool,
    /// Chooses the keys that fill the table, if they matter.
    pub(crate) filling: Option<&'static dyn Filling>,
    /// Which keys the threads work on.
    pub(crate) aim: Aim,
    /// What one thread does besides operations on keys.
    pub(crate) concurrent: Concurrent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    /// Often the key of the next insert, otherwise one of a few.
    Mixed,
    /// Nearly always the same key.
    OneKey,
    /// One key, and few operations, so that each of their steps is likely to be chosen.
    Duel,
    /// A duel over an absent key that each thread begins by inserting.
    Race,
    /// A duel over a key that moves to a place that was empty when its lookup began.
    Moved,
    /// Often the last record: the one whose change a crash has interrupted.
    Last,
    /// Many keys: inserts and removals in the same buckets, but not of the same keys.
    Apart,
    /// A thread is held until others have done its work and reused the space that this work freed;
    /// see `schedule/workload/late.rs`.
    Late {
        /// The point at which the work allocates what it may have to give back.
        takes: &'static Point,
        /// The point at which the work ends.
        ends: &'static Point,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concurrent {
    Nothing,
    Scan,
    Background,
    BackgroundAndScan,
    Sync,
    Batch,
    /// Batches that require a value.
    BatchIf,
    Close,
    /// Closes the pool and opens it again.
    Reopen,
    /// Holds references and iterations; see `schedule/workload/closing.rs`.
    Hold,
    /// Holds references and iterations of another map, which is dropped.
    HoldDropped,
    Maps,
    MapsFreed,
    Removals,
}

/// What the next insert into a filled table goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing in particular.
    Nothing,
    /// The scheme's growth.
    Growth,
    /// A commit point.
    Point(&'static Point),
    /// A phase that the scheme's folder defines.
    Phase(&'static str),
}

impl Before {
    /// Returns the phase that the insert goes through.
    pub(crate) fn phase(self, scheme: Scheme) -> Option<Phase> {
        match self {
            Before::Nothing => None,
            Before::Growth => Some(phase(structure(scheme).growth)),
            Before::Point(point) => Some(phase(point)),
            Before::Phase(name) => Some(name.into()),
        }
    }
}

/// Chooses the keys that fill a table, and those of them that are removed while it is filled.
pub(crate) trait Filling: std::fmt::Debug + Sync {
    /// Returns keys with suitable hashes: enough to fill the table, and some more.
    fn keys(&self, hash: &dyn Fn(u64) -> u64) -> Vec<u64>;

    /// Returns the numbers of the keys to remove after key `number` has been inserted.
    fn removed_after(&self, number: usize) -> Range<usize>;

    /// Returns how many keys fill the table, if that is known without trying an insert.
    fn records(&self) -> Option<u64> {
        None
    }
}

/// A workload with nothing special.
pub(crate) const PLAIN: Workload = Workload {
    name: "",
    about: "",
    before: Before::Nothing,
    start: Start::Open,
    config: None,
    pages: None,
    degenerate: false,
    holes: false,
    emptied: false,
    filling: None,
    aim: Aim::Mixed,
    concurrent: Concurrent::Nothing,
};
