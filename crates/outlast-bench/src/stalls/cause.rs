//! Infers what an insert waited for from the readings around it.

use crate::usage::ThreadUsage;
use outlast::internals::index::Growth;
use serde::{Deserialize, Serialize};

/// An operation that takes longer than this, in nanoseconds, counts as slow and gets a cause.
pub(super) const SLOW_NS: u64 = 5_000;

/// What an insert waited for. If several causes apply, the first of them is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The thread was preempted and never gave up the processor by itself, and it was off the
    /// processor for more than half of the time. Or it was preempted, and no other cause applies.
    Preemption,
    /// The directory was doubled.
    Doubling,
    /// The pool's file grew.
    FileGrowth,
    /// The thread gave up the processor (for a lock of the library or of the kernel, or for the
    /// file system), and it was off the processor for more than half of the time, or there was no
    /// split and no page fault.
    Wait,
    /// None of the above, but the thread was on the processor for less than half of the time, so
    /// the host machine must have stopped it.
    Host,
    /// A segment was split, and a page was touched for the first time.
    SplitFault,
    /// A segment was split.
    Split,
    /// A page was touched for the first time.
    PageFault,
    /// No counter changed, and the thread was on the processor for at least half of the time.
    Unknown,
}

impl Cause {
    /// All causes, in declaration order.
    pub const ALL: &'static [Cause] = &[
        Cause::Preemption,
        Cause::Doubling,
        Cause::FileGrowth,
        Cause::Wait,
        Cause::Host,
        Cause::SplitFault,
        Cause::Split,
        Cause::PageFault,
        Cause::Unknown,
    ];

    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Doubling => "doubling",
            Cause::FileGrowth => "file_growth",
            Cause::Wait => "wait",
            Cause::SplitFault => "split_fault",
            Cause::Split => "split",
            Cause::Preemption => "preemption",
            Cause::Host => "host",
            Cause::PageFault => "page_fault",
            Cause::Unknown => "unknown",
        }
    }
}

/// An operation, with everything that changed around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// The index of the insert among those of its thread.
    pub number: u64,
    /// How long it took, in nanoseconds.
    pub ns: u64,
    /// Its processor time, in nanoseconds.
    pub cpu_ns: u64,
    /// What it waited for.
    pub cause: Cause,
    /// Number of splits meanwhile.
    pub splits: u64,
    /// Number of doublings meanwhile.
    pub doublings: u64,
    /// Bytes that the pool grew by meanwhile.
    pub grown_bytes: u64,
    /// Number of page faults of the thread.
    pub faults: u64,
    /// Number of times that it gave up the processor.
    pub waits: u64,
    /// Number of times that the processor was taken from it.
    pub preemptions: u64,
}

/// The counters that a thread reads before and after each operation.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) usage: ThreadUsage,
    pub(super) growth: Growth,
    /// Whether the table is being moved in the background.
    pub(super) resizing: bool,
    pub(super) pool_bytes: u64,
}

impl Slow {
    /// Describes an operation by the readings before and after it.
    pub(super) fn new(number: u64, ns: u64, before: &Reading, after: &Reading) -> Slow {
        let used = after.usage.since(&before.usage);
        let mut slow = Slow {
            number,
            ns,
            cpu_ns: used.cpu_ns,
            cause: Cause::Unknown,
            splits: after.growth.splits - before.growth.splits,
            doublings: after.growth.doublings - before.growth.doublings,
            grown_bytes: after.pool_bytes - before.pool_bytes,
            faults: used.minor_faults + used.major_faults,
            waits: used.waits,
            preemptions: used.preemptions,
        };
        slow.cause = cause_of(&slow);
        slow
    }
}

fn cause_of(slow: &Slow) -> Cause {
    // The tolerance is for the readings themselves, which take a few microseconds at worst.
    let off_processor = slow.ns > slow.cpu_ns * 2 + SLOW_NS;
    match slow {
        // Most of the time was spent off the processor, whatever else the insert did.
        Slow { preemptions: 1.., waits: 0, .. } if off_processor => Cause::Preemption,
        Slow { doublings: 1.., .. } => Cause::Doubling,
        Slow { grown_bytes: 1.., .. } => Cause::FileGrowth,
        Slow { waits: 1.., .. } if off_processor => Cause::Wait,
        _ if off_processor => Cause::Host,
        Slow { splits: 1.., faults: 1.., .. } => Cause::SplitFault,
        Slow { splits: 1.., .. } => Cause::Split,
        Slow { faults: 1.., .. } => Cause::PageFault,
        Slow { waits: 1.., .. } => Cause::Wait,
        Slow { preemptions: 1.., .. } => Cause::Preemption,
        _ => Cause::Unknown,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::stalls) fn quick(ns: u64, cpu_ns: u64) -> Slow {
        let cause = Cause::Unknown;
        let (number, splits, doublings, grown_bytes) = (0, 0, 0, 0);
        let (faults, waits, preemptions) = (0, 0, 0);
        Slow {
            number,
            ns,
            cpu_ns,
            cause,
            splits,
            doublings,
            grown_bytes,
            faults,
            waits,
            preemptions,
        }
    }

    #[test]
    fn the_dearest_cause_is_named() {
        let of = |change: fn(&mut Slow)| {
            let mut slow = quick(50_000, 50_000);
            change(&mut slow);
            cause_of(&slow)
        };
        assert_eq!(of(|_| {}), Cause::Unknown);
        assert_eq!(of(|s| s.cpu_ns = 10_000), Cause::Host);
        assert_eq!(of(|s| s.preemptions = 1), Cause::Preemption);
        assert_eq!(of(|s| (s.preemptions, s.waits) = (1, 1)), Cause::Wait);
        assert_eq!(of(|s| (s.waits, s.faults) = (1, 1)), Cause::PageFault);
        // The wait that kept it off the processor is the cause.
        assert_eq!(of(|s| (s.cpu_ns, s.waits, s.faults) = (9, 1, 1)), Cause::Wait);
        assert_eq!(of(|s| (s.cpu_ns, s.splits, s.waits) = (9, 1, 1)), Cause::Wait);
        assert_eq!(of(|s| (s.splits, s.faults) = (1, 1)), Cause::SplitFault);
        assert_eq!(of(|s| (s.splits, s.preemptions) = (1, 1)), Cause::Split);
        assert_eq!(of(|s| (s.cpu_ns, s.splits, s.preemptions) = (20_000, 1, 1)), Cause::Preemption);
        assert_eq!(of(|s| (s.cpu_ns, s.doublings, s.preemptions) = (9, 1, 1)), Cause::Preemption);
        assert_eq!(of(|s| (s.cpu_ns, s.splits) = (9, 1)), Cause::Host);
        assert_eq!(of(|s| (s.cpu_ns, s.splits) = (25_000, 1)), Cause::Split);
        // Growing a file waits for the kernel.
        assert_eq!(of(|s| (s.cpu_ns, s.grown_bytes, s.waits) = (9, 1, 1)), Cause::FileGrowth);
        assert_eq!(of(|s| (s.splits, s.grown_bytes) = (1, 4096)), Cause::FileGrowth);
        assert_eq!(of(|s| (s.splits, s.doublings) = (1, 1)), Cause::Doubling);
    }
}
