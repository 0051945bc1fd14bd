//! How many schedules are tried.

use std::time::Duration;

/// How much is tried.
#[derive(Debug, Clone)]
pub struct Budget {
    /// Schedules.
    pub schedules: u64,
    /// Crashes per schedule at moments of its trace, besides those at which an operation returns.
    pub crashes: usize,
    /// A thread is held before one in this many of its accesses at commit points.
    pub held_points: u64,
    /// A thread is held before one in this many of its other accesses.
    pub held_others: u64,
    /// Where two threads are held, or one is held twice, at most this many pairs of steps are tried
    /// per instance.
    pub held_pairs: u64,
    /// An exploration that takes longer ends, and counts as a violation.
    pub time: Duration,
    /// Threads of the harness, each of which runs schedules of its own.
    pub threads: usize,
    /// The first seed.
    pub seed: u64,
    /// Only workloads of this name.
    pub workload: Option<String>,
    /// Violations after which no more is tried.
    pub violations: usize,
    /// Whether a violation is minimized: operations that it does not need are dropped.
    pub minimises: bool,
}

impl Budget {
    /// The budget of a test that takes seconds.
    pub fn quick() -> Budget {
        Budget { schedules: 520, held_points: 16, held_others: 240, held_pairs: 1, ..Budget::ci() }
    }

    /// 5,200 schedules, at least 150 of each workload.
    pub fn ci() -> Budget {
        Budget {
            schedules: 5_200,
            crashes: 4,
            held_points: 2,
            held_others: 48,
            held_pairs: 8,
            time: Duration::from_secs(600),
            threads: 2,
            seed: 1,
            workload: None,
            violations: 3,
            minimises: true,
        }
    }
}
