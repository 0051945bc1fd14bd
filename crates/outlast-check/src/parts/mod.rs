//! The parts that a scheme adds to the harness: [scenarios](scenario), which are [plays](play),
//! [workloads](workload) of schedules, seeded [bugs] for the [published] ones, and harmless
//! [mutants]. This module says what they are; [`schemes`](crate::schemes) has those of each scheme.

pub mod bugs;
pub mod mutants;
pub mod play;
pub mod published;
pub mod scenario;
pub mod workload;

use bugs::Line;
use mutants::Equivalent;
use outlast::RecordForm;
use scenario::{Expected, Scenario};
use workload::Workload;

/// What a scheme adds; see the module's documentation.
pub struct Parts {
    /// What a common scenario must reach, apart from the pool's own points.
    pub expected: fn(&str, RecordForm) -> Expected,
    /// Its own scenarios.
    pub scenarios: fn(RecordForm) -> Vec<Scenario>,
    /// Its own workloads.
    pub workloads: &'static [Workload],
    /// The seeded bug for each published bug outside the pool, or the reason why there is none; and
    /// the scheme's own bugs.
    pub seeded: &'static [Line],
    /// Its harmless mutants.
    pub equivalent: &'static [Equivalent],
}
