//! What each scheme adds to the harness, in one folder per scheme. All folders have the same files.
//!
//! - `scenarios.rs`: runs for its own paths, and what the common scenarios must reach
//! - `workloads.rs`: the same for schedules
//! - `planted.rs`: what stands for each published bug
//!
//! What a scheme's maps are like is in [`structures`](crate::structures). The rest of the harness uses
//! [`parts`] and knows no scheme.

pub mod clevel;
pub mod dash_eh;
pub mod dash_lh;
pub mod ea_pht;
pub mod group;
pub mod phast;

use crate::canary::equivalent::Equivalent;
use crate::explore::Scenario;
use crate::planted::table::Line;
use crate::schedule::workload::Workload;
use outlast::pmem::Point;
use outlast::{RecordForm, Scheme};

/// What a scheme adds; see the module's documentation.
pub struct Parts {
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
