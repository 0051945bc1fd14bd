//! The mutants that do no harm, and why.

use super::Canary;
use super::mutation::{Act, Which, Wrong};
use crate::schemes::parts;
use outlast::Scheme;
use outlast::pmem::Point;
use outlast::pool::points as pool;
use std::fmt;

/// The reason why a flush or fence can be done wrong without losing anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The header has two copies, and the other one is whole.
    DoubleHeader,
    /// The saved free state: if it is not whole, it is traced again.
    SavedFreeState,
    /// A mark that only saves work for the next open.
    Progress,
    /// The lines are flushed again before the next fence.
    FlushedAgain,
    /// Only another thread's stores depend on it. A seeded bug stands for it instead, which
    /// directed schedules must find.
    OtherThreads,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::DoubleHeader => "one copy of a double header",
            Reason::SavedFreeState => "saved free state",
            Reason::Progress => "progress mark that only saves rework",
            Reason::FlushedAgain => "lines flushed again before the next fence",
            Reason::OtherThreads => "seeded as a bug for schedules",
        })
    }
}

/// A mutant that does no harm.
pub struct Equivalent {
    /// The commit point.
    pub point: &'static Point,
    /// The act that is done wrong there.
    pub act: Act,
    /// The ways in which it is done wrong.
    pub ways: &'static [Wrong],
    /// Why nothing is lost.
    pub reason: Reason,
}

impl Equivalent {
    fn is(&self, canary: Canary) -> bool {
        self.point == canary.point && self.act == canary.act && self.ways.contains(&canary.wrong)
    }
}

/// The pool's harmless mutants. Those of a scheme are in its folder.
///
/// `HEADER`: a torn or missing first header is as good as none, because the pool does not exist
/// before the second one. The fence only keeps the two copies apart, so that one copy is whole at
/// any time. Leaving it out would save one fence in the life of a pool.
///
/// `SAVED`: recovery rejects saved free state that is incomplete, and traces its space instead. It
/// would accept a complete but older state. So a missing fence is harmless only where no state was
/// saved before, for example at the first fence of a run.
///
/// `HEADER_SIZE`, the header that announces a growth: the thread that grows the pool fences again
/// before it moves the frontier. Another thread that moves the frontier first depends on this fence
/// alone.
const POOL: &[Equivalent] = &[
    Equivalent { point: &pool::HEADER, act: Act::Fence, ways: ONCE, reason: Reason::DoubleHeader },
    Equivalent { point: &pool::SAVED, act: Act::Fence, ways: ONCE, reason: Reason::SavedFreeState },
    Equivalent {
        point: &pool::HEADER_SIZE,
        act: Act::Fence,
        ways: DROPPED,
        reason: Reason::OtherThreads,
    },
];

const ONCE: &[Wrong] = &[Wrong::DroppedOnce(Which::First), Wrong::DroppedOnce(Which::Seeded(2))];

/// A flush or fence that is missing, always or once.
pub const DROPPED: &[Wrong] = &[
    Wrong::Dropped,
    Wrong::DroppedOnce(Which::First),
    Wrong::DroppedOnce(Which::Second),
    Wrong::DroppedOnce(Which::Last),
    Wrong::DroppedOnce(Which::Seeded(1)),
    Wrong::DroppedOnce(Which::Seeded(2)),
];

/// Returns why a mutant does no harm, if the tables declare it harmless.
pub fn reason(scheme: Scheme, canary: Canary) -> Option<Reason> {
    let mut all = POOL.iter().chain(parts(scheme).equivalent);
    all.find(|row| row.is(canary)).map(|row| row.reason)
}
