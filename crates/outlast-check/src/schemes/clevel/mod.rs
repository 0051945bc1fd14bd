//! What clevel adds to the harness.

mod planted;
mod scenarios;
mod workloads;

use crate::parts::Parts;

/// What clevel adds to the harness.
pub const PARTS: Parts = Parts {
    expected: scenarios::expected,
    scenarios: scenarios::catalogue,
    workloads: workloads::ALL,
    planted: planted::LINES,
    equivalent: &[],
};
