//! What to explore, and how much of it.

use super::crash::Crash;
use outlast::{RecordForm, Scheme};

/// How much to explore.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Rounds over all scenarios, each with other keys.
    pub rounds: u64,
    /// Ends as soon as this many distinct images have been checked.
    pub distinct: Option<u64>,
    /// Explores one window in this many, and other windows in each round.
    pub stride: usize,
    /// In the first round, explores one in this many of the stores to words that recovery rebuilds
    /// or never reads. Later rounds explore fewer of them.
    pub unseen_stride: usize,
    /// The most combinations of line cuts at one moment.
    pub cuts: usize,
    /// For each scenario and round, how many evenly spread images are explored for second crashes,
    /// in addition to those whose recovery does something new.
    pub second_runs: usize,
    /// For each scenario and round, at how many moments a process dies, and the power fails while
    /// the next one opens the pool, reads everything, or makes its first change.
    pub deaths: usize,
    /// One moment in this many of a second run is explored.
    pub second_stride: usize,
    /// The most moments of a second run that are explored, evenly spread.
    pub second_moments: usize,
    /// The most combinations of line cuts at one moment of a second run.
    pub second_cuts: usize,
}

impl Budget {
    /// A budget of seconds, for the tests.
    pub const QUICK: Budget = Budget {
        rounds: 1,
        distinct: None,
        stride: 9,
        unseen_stride: 16,
        cuts: 8,
        second_runs: 1,
        deaths: 2,
        second_stride: 4,
        second_moments: 300,
        second_cuts: 2,
    };
    /// A budget of minutes, with every window of every scenario.
    pub const CI: Budget = Budget {
        rounds: u64::MAX,
        distinct: Some(110_000),
        stride: 1,
        unseen_stride: 1,
        cuts: 32,
        second_runs: 2,
        deaths: 4,
        second_stride: 2,
        second_moments: 300,
        second_cuts: 4,
    };
    /// A budget of hours.
    pub const DEEP: Budget = Budget {
        rounds: u64::MAX,
        distinct: Some(5_000_000),
        stride: 1,
        unseen_stride: 1,
        cuts: 256,
        second_runs: 4,
        deaths: usize::MAX,
        second_stride: 1,
        second_moments: usize::MAX,
        second_cuts: 16,
    };
}

/// What to explore, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only this scheme.
    pub scheme: Option<Scheme>,
    /// Only this record form.
    pub record: Option<RecordForm>,
    /// Only scenarios with this name, or whose name begins with it and a dash.
    pub scenario: Option<String>,
    /// The first round.
    pub round: u64,
    /// Only the image that this crash leaves.
    pub crash: Option<Crash>,
    /// Only the image that this crash leaves of the run that reopened the first image.
    pub nested: Option<Crash>,
    /// How much to explore.
    pub budget: Budget,
    /// Number of threads.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            scheme: None,
            record: None,
            scenario: None,
            round: 0,
            crash: None,
            nested: None,
            budget: Budget::QUICK,
            threads: 2,
        }
    }
}
