//! Mutants: the ways to do a flush or a fence wrong, and those that do no harm.

use crate::random::Random;
use outlast::internals::pmem::{Access, Event, Point};
use std::fmt;

/// An act that makes stores durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// The write-back of some lines.
    Flush,
    /// The wait for it to complete.
    Fence,
}

impl Act {
    /// Returns whether an event is this act.
    pub fn is(self, event: &Event) -> bool {
        match self {
            Act::Flush => matches!(event.access, Access::Flush { .. }),
            Act::Fence => matches!(event.access, Access::Fence),
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Act::Flush => "flush",
            Act::Fence => "fence",
        })
    }
}

/// A way to do one act of a commit point wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wrong {
    /// The act is never done.
    Dropped,
    /// The act is left out once in a run, at this occurrence. A flush counts as an occurrence only
    /// if it writes something back.
    DroppedOnce(Which),
    /// Flushes of more than one line leave out their last line.
    WithoutLastLine,
    /// Flushes of more than one line leave out their first line.
    WithoutFirstLine,
    /// The flush, with the fence if one follows it, comes before the stores that it should cover.
    BeforeStores,
    /// After the death of a process, the next one flushes only lines to which it has stored itself.
    UnlessStored,
}

/// One occurrence of an act in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Which {
    /// The first.
    First,
    /// The second, or the only one.
    Second,
    /// The last.
    Last,
    /// One that this seed chooses.
    Seeded(u64),
}

impl Which {
    /// Returns its index among `count` occurrences, or `None` if there are none.
    pub(crate) fn of(self, count: usize) -> Option<usize> {
        let last = count.checked_sub(1)?;
        Some(match self {
            Which::First => 0,
            Which::Second => last.min(1),
            Which::Last => last,
            Which::Seeded(seed) => Random::new(seed).below(count as u64) as usize,
        })
    }
}

impl Wrong {
    /// Lists all ways to do an act wrong.
    pub fn all(act: Act) -> Vec<Wrong> {
        let once = [Which::First, Which::Second, Which::Last, Which::Seeded(1), Which::Seeded(2)];
        let mut all = vec![Wrong::Dropped];
        all.extend(once.map(Wrong::DroppedOnce));
        if act == Act::Flush {
            all.extend([Wrong::WithoutLastLine, Wrong::WithoutFirstLine]);
            all.extend([Wrong::BeforeStores, Wrong::UnlessStored]);
        }
        all
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Dropped => f.write_str("dropped"),
            Wrong::DroppedOnce(Which::First) => f.write_str("first dropped"),
            Wrong::DroppedOnce(Which::Second) => f.write_str("second dropped"),
            Wrong::DroppedOnce(Which::Last) => f.write_str("last dropped"),
            Wrong::DroppedOnce(Which::Seeded(seed)) => write!(f, "one dropped (seed {seed})"),
            Wrong::WithoutLastLine => f.write_str("without its last line"),
            Wrong::WithoutFirstLine => f.write_str("without its first line"),
            Wrong::BeforeStores => f.write_str("before its stores"),
            Wrong::UnlessStored => f.write_str("only of lines that its process has stored to"),
        }
    }
}

/// The reason why a flush or fence can be done wrong without losing anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The header has two copies, and the other one is intact.
    DoubleHeader,
    /// The saved free state: if it is incomplete, recovery traces the space instead.
    SavedFreeState,
    /// A mark that only saves work for the next open.
    Progress,
    /// The lines are flushed again before the next fence.
    FlushedAgain,
    /// Only another thread's stores depend on this flush or fence. A seeded bug takes the mutant's
    /// place, and directed schedules must find it.
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

/// A flush or fence that is missing, always or once.
pub const DROPPED: &[Wrong] = &[
    Wrong::Dropped,
    Wrong::DroppedOnce(Which::First),
    Wrong::DroppedOnce(Which::Second),
    Wrong::DroppedOnce(Which::Last),
    Wrong::DroppedOnce(Which::Seeded(1)),
    Wrong::DroppedOnce(Which::Seeded(2)),
];
