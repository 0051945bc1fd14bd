//! The canaries that do no harm, and why.

use super::Canary;
use super::mutation::{Act, Which, Wrong};
use crate::schemes::parts;
use outlast::Scheme;
use outlast::pmem::Point;
use outlast::pool::points as pool;
use std::fmt;

/// Why a flush or fence can be done wrong and nothing is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The header has two copies, of which the other one is whole.
    DoubleHeader,
    /// The saved free state: what is not whole is traced again.
    SavedFreeState,
    /// A mark that only saves an open some work.
    Progress,
    /// The lines are flushed again before the next fence.
    FlushedAgain,
    /// Only another thread's stores depend on it. It is a seeded bug instead, which directed
    /// schedules must find.
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

/// A canary that does no harm.
pub struct Equivalent {
    /// The commit point.
    pub point: &'static Point,
    /// What is done wrong there.
    pub act: Act,
    /// And how.
    pub ways: &'static [Wrong],
    /// Why nothing is lost.
    pub reason: Reason,
}

impl Equivalent {
    fn is(&self, canary: Canary) -> bool {
        self.point == canary.point && self.act == canary.act && self.ways.contains(&canary.wrong)
    }
}

/// The pool's canaries that do no harm. Those of a scheme stand in its folder.
///
/// What each of them buys: a torn or missing first header is as good as none, because the
/// pool does not exist before the second one; its fence only keeps the two apart, so that
/// one copy is whole at any time. Whoever gives up this fence saves one, once in the life of
/// a pool.
///
/// Saved free state that is not whole is not believed: its space is traced. One that is
/// whole and older would be, so the fence can be missing only where none was saved before;
/// where the first fence of a run is, say.
///
/// The header that tells of a growth: the thread that makes the pool grow fences again before
/// it moves the frontier, but another one that moves it first has only this fence to rest on.
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

const DROPPED: &[Wrong] = &[
    Wrong::Dropped,
    Wrong::DroppedOnce(Which::First),
    Wrong::DroppedOnce(Which::Second),
    Wrong::DroppedOnce(Which::Last),
    Wrong::DroppedOnce(Which::Seeded(1)),
    Wrong::DroppedOnce(Which::Seeded(2)),
];

/// The reason of a canary, if it is declared to be one that does no harm.
pub fn reason(scheme: Scheme, canary: Canary) -> Option<Reason> {
    let mut all = POOL.iter().chain(parts(scheme).equivalent);
    all.find(|row| row.is(canary)).map(|row| row.reason)
}
