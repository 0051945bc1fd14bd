//! What Dash-EH adds to the harness.

mod planted;
pub mod rows;
mod scenarios;
mod workloads;

use crate::parts::Parts;

/// What Dash-EH adds to the harness.
pub const PARTS: Parts = Parts {
    expected: scenarios::expected,
    scenarios: scenarios::catalogue,
    workloads: workloads::ALL,
    planted: planted::LINES,
    equivalent: &[],
};
