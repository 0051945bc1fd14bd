//! The lines of the tables of seeded bugs. A line names a published bug, and has a seeded bug with
//! the checker that must find it, or the reason why there is none.

use outlast::RecordForm;
use outlast::internals::pmem::Seeded;

// Bugs of the pool for which a scheme may have its own line.
pub(crate) const SIZE_TOLD_EARLY: &str = "A pool's new size is used before the header has it";
pub(crate) const UNDURABLE_GROWTH: &str = "Other threads see a growth before it is durable";

/// The checker that must find a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checker {
    /// Runs of one thread: their results, what is durable when each returns, crash images, and
    /// second lives.
    Alone,
    /// One thread is stopped for ever, and another builds on what it has stored.
    Stopped,
    /// One thread is stopped for a while, and another works meanwhile.
    Paused,
    /// In each of a workload's pairs, one thread is paused before each of its steps in turn. The
    /// other thread works on the records that the paused one moves, with crashes.
    EachStep(&'static str),
    /// The first thread of a workload's directed schedules is held before each of its accesses at
    /// commit points, and before some others.
    Held(&'static str),
    /// Some schedules of a workload, for bugs that need a thread paused more than once.
    Schedules(&'static str),
    /// One thread is stopped for a while at each of its stores, and a second thread works on the
    /// same key meanwhile. A third thread comes later.
    Met,
    /// One thread is stopped for ever at each of its steps, and the others must make progress.
    Forever,
    /// A reference is held while its record is replaced.
    Guard,
    /// Runs of one thread in which requests for space are refused, one at a time. Each operation
    /// must succeed when it is repeated, and the maps must still be able to grow.
    Refused,
}

impl Checker {
    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Checker::Alone => "one thread",
            Checker::Stopped => "a thread stopped",
            Checker::Paused => "a thread paused",
            Checker::EachStep(_) => "paused at each step",
            Checker::Held(_) => "held at each point",
            Checker::Schedules(_) => "chosen schedules",
            Checker::Met => "two threads met",
            Checker::Forever => "stopped for ever",
            Checker::Guard => "a guard held",
            Checker::Refused => "space refused",
        }
    }
}

/// How the harness covers an entry of the list of published bugs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// A bug that is put into the shipped operations.
    Bug {
        /// The switch.
        bug: Seeded,
        /// Where the bug is.
        place: &'static str,
        /// The checker that must find it.
        checker: Checker,
        /// The record form in which it does harm, if not in both.
        form: Option<RecordForm>,
        /// Whether finding it takes long.
        slow: bool,
    },
    /// No seeded bug, because the published one cannot occur here, for this reason.
    Cannot(&'static str),
}

/// An entry of the list of published bugs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// What went wrong, and where.
    pub published: &'static str,
    /// The seeded bug for it, or the reason why there is none.
    pub stand: Stand,
}

impl Line {
    /// Declares that finding the bug takes long. The tests leave it out.
    pub(crate) const fn slow(mut self) -> Line {
        if let Stand::Bug { slow, .. } = &mut self.stand {
            *slow = true;
        }
        self
    }

    /// Returns the checker that must find the seeded bug, if there is one.
    pub fn checker(&self) -> Option<Checker> {
        match self.stand {
            Stand::Bug { checker, .. } => Some(checker),
            Stand::Cannot(_) => None,
        }
    }
}

pub(crate) const fn bug(
    published: &'static str,
    bug: Seeded,
    place: &'static str,
    checker: Checker,
) -> Line {
    Line { published, stand: Stand::Bug { bug, place, checker, form: None, slow: false } }
}

pub(crate) const fn bytes(
    published: &'static str,
    bug: Seeded,
    place: &'static str,
    checker: Checker,
) -> Line {
    Line {
        published,
        stand: Stand::Bug { bug, place, checker, form: Some(RecordForm::Bytes), slow: false },
    }
}

pub(crate) const fn inline(
    published: &'static str,
    bug: Seeded,
    place: &'static str,
    checker: Checker,
) -> Line {
    Line {
        published,
        stand: Stand::Bug { bug, place, checker, form: Some(RecordForm::Inline), slow: false },
    }
}

pub(crate) const fn cannot(published: &'static str, why: &'static str) -> Line {
    Line { published, stand: Stand::Cannot(why) }
}
