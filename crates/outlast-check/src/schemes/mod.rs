//! What each scheme adds to the harness, in one folder per scheme. All folders have the same files.
//!
//! - `mod.rs`: the shapes of its maps, and which of its commit points stand for what every scheme
//!   has
//! - `phases.rs`: which parts of its algorithms a trace went through
//! - `scenarios.rs`: runs for its own paths, and what the common scenarios must reach
//! - `workloads.rs`: the same for schedules
//! - `planted.rs`: what stands for each published bug
//!
//! The rest of the harness uses [`parts`] and knows no scheme.

pub mod clevel;
pub mod dash_eh;
pub mod dash_lh;
pub mod ea_pht;
pub mod group;
pub mod phast;

use crate::canary::equivalent::Equivalent;
use crate::explore::Scenario;
use crate::explore::phases::Phase;
use crate::planted::table::Line;
use crate::schedule::workload::Workload;
use crate::state::Checked;
use outlast::index::IndexStats;
use outlast::offline::MapReport;
use outlast::pmem::{Event, Point};
use outlast::{Config, MapOptions, RecordForm, Scheme};
use std::collections::BTreeSet;

/// What a scheme adds; see the module's documentation.
pub struct Parts {
    /// The shapes of the maps in the common scenarios, each with the suffix of their names. The
    /// first is the smallest map.
    pub shapes: &'static [(&'static str, Config)],
    /// How many records a new map of this shape takes without growing. The figure is a little low,
    /// because keys do not spread evenly.
    pub brim: fn(Config) -> u64,
    /// How many keys of one hash a new map takes before it needs a special measure.
    pub crowd: u64,
    /// The commit point of growth: a split, an expansion.
    pub growth: &'static Point,
    /// The commit point of a new map's blocks.
    pub creation: &'static Point,
    /// Options that make the maps of torture and of live histories grow all the time.
    pub small: fn(RecordForm, MapOptions) -> MapOptions,
    /// Makes a small configuration from two numbers: the log2 of the size of the scheme's smallest
    /// part, and the scheme's other setting.
    pub config: fn(u32, u32) -> Config,
    /// Checks what must hold for a map once all background work is done.
    pub at_rest: fn(&IndexStats) -> Checked,
    /// Checks a map of a closed pool, as the offline walk finds it.
    pub closed: fn(&MapReport) -> Checked,
    /// Finds the phases in a trace that no single commit point shows.
    pub phases: fn(&[Event], Config) -> BTreeSet<Phase>,
    /// Finds the words of records that a trace moves from one place to another.
    pub moved: fn(&[Event]) -> Vec<u64>,
    /// What a common scenario must reach, apart from the pool's own points.
    pub expected: fn(&str, RecordForm) -> Expected,
    /// Its own scenarios.
    pub scenarios: fn(RecordForm) -> Vec<Scenario>,
    /// Its own workloads.
    pub workloads: &'static [Workload],
    /// What stands for each published bug outside the pool, and the scheme's own bugs.
    pub planted: &'static [Line],
    /// Its harmless mutants.
    pub equivalent: &'static [Equivalent],
}

/// What a run must go through.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The points that the run itself must reach.
    pub reaches: Vec<&'static Point>,
    /// The phases it must reach that no single commit point shows.
    pub phases: Vec<&'static str>,
    /// The points that the recovery of some of its images must reach.
    pub mends: Vec<&'static Point>,
}

/// Returns what a scheme adds.
pub fn parts(scheme: Scheme) -> &'static Parts {
    match scheme {
        Scheme::DashEh => &dash_eh::PARTS,
        Scheme::Clevel => &clevel::PARTS,
        Scheme::Phast => &phast::PARTS,
        Scheme::Group => &group::PARTS,
        Scheme::DashLh => &dash_lh::PARTS,
        Scheme::EaPht => &ea_pht::PLAIN,
        Scheme::EaPhtH => &ea_pht::HYBRID,
        Scheme::EaPhtHpr => &ea_pht::PARALLEL,
        other => unreachable!("{other} has no folder in the harness"),
    }
}
