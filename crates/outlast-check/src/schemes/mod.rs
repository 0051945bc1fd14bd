//! What each scheme adds to the harness: a folder for each, all of one shape.
//!
//! `mod.rs` says what its maps look like and which of its commit points stand for what every
//! scheme has; `phases.rs`, what of its algorithms a trace went through; `scenarios.rs`, the
//! runs that go where only it goes, and what the common ones must reach; `workloads.rs`, the
//! same for schedules; `planted.rs`, what stands for each published bug. The rest of the
//! harness asks [`parts`] and knows no scheme.

pub mod clevel;
pub mod dash_eh;
pub mod phast;

use crate::canary::equivalent::Equivalent;
use crate::explore::Scenario;
use crate::explore::phases::Phase;
use crate::planted::table::Line;
use crate::schedule::workload::Workload;
use crate::state::Checked;
use outlast::index::IndexStats;
use outlast::pmem::{Event, Point};
use outlast::{Config, MapOptions, RecordForm, Scheme};
use std::collections::BTreeSet;

/// See the module's documentation.
pub struct Parts {
    /// What the maps of the common scenarios are, each with the end of their names; the first
    /// one is that of the smallest map.
    pub shapes: &'static [(&'static str, Config)],
    /// Records that a new map of this shape takes without growing; not quite as many, because
    /// keys do not spread evenly.
    pub brim: fn(Config) -> u64,
    /// How many keys of one hash a new map takes before it has to do something for them.
    pub crowd: u64,
    /// The commit point of growth: a split, an expansion.
    pub growth: &'static Point,
    /// The commit point of a new map's blocks.
    pub creation: &'static Point,
    /// What makes the maps of torture and of live histories grow all the time.
    pub small: fn(RecordForm, MapOptions) -> MapOptions,
    /// A small configuration of two numbers: log2 of the size of the scheme's smallest part, and what
    /// else it lets one choose.
    pub config: fn(u32, u32) -> Config,
    /// What is so of a map once all background work is done.
    pub at_rest: fn(&IndexStats) -> Checked,
    /// The phases in a trace that no single commit point tells.
    pub phases: fn(&[Event], Config) -> BTreeSet<Phase>,
    /// The words of records that a trace moves from one place to another.
    pub moved: fn(&[Event]) -> Vec<u64>,
    /// What a common scenario must reach, besides what is the pool's.
    pub expected: fn(&str, RecordForm) -> Expected,
    /// Scenarios of its own.
    pub scenarios: fn(RecordForm) -> Vec<Scenario>,
    /// Workloads of its own.
    pub workloads: &'static [Workload],
    /// What stands for each published bug that is not the pool's, and bugs of its own.
    pub planted: &'static [Line],
    /// Its canaries that do no harm.
    pub equivalent: &'static [Equivalent],
}

/// What a run must go through.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The run itself.
    pub reaches: Vec<&'static Point>,
    /// And these of its phases that no single commit point tells.
    pub phases: Vec<&'static str>,
    /// The recovery of some of its images.
    pub mends: Vec<&'static Point>,
}

/// What a scheme adds.
pub fn parts(scheme: Scheme) -> &'static Parts {
    match scheme {
        Scheme::DashEh => &dash_eh::PARTS,
        Scheme::Clevel => &clevel::PARTS,
        Scheme::Phast => &phast::PARTS,
        other => unreachable!("{other} has no folder in the harness"),
    }
}
