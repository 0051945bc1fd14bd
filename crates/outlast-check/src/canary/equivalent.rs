//! The canaries that do no harm, and why.

use super::Canary;
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
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::DoubleHeader => "one copy of a double header",
            Reason::SavedFreeState => "saved free state",
            Reason::Progress => "progress mark that only saves rework",
            Reason::FlushedAgain => "lines flushed again before the next fence",
        })
    }
}

/// The reason of a canary, if it is declared to be one that does no harm.
pub fn reason(_: Canary) -> Option<Reason> {
    None
}
