//! What line hashing adds to the harness.

mod scenarios;
mod seeded;
mod workloads;

use crate::parts::Parts;

/// What line hashing adds to the harness.
pub const PARTS: Parts = Parts {
    expected: scenarios::expected,
    scenarios: scenarios::catalogue,
    workloads: workloads::ALL,
    seeded: seeded::LINES,
    equivalent: &[],
};
