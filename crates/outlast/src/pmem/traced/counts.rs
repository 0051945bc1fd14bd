//! Counts of the accesses of a recording.

use super::{Access, Event};

/// The cost of a part of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Stores, including successful compare-exchanges.
    pub stores: u64,
    /// Lines flushed.
    pub lines: u64,
    /// Fences.
    pub fences: u64,
    /// Distinct lines read; 0 if loads were not recorded.
    pub lines_read: u64,
}

impl Counts {
    /// Counts the events.
    pub fn of(events: &[Event]) -> Counts {
        let line = size_of::<[u64; 8]>() as u64;
        let mut counts = Counts::default();
        let mut read = std::collections::HashSet::new();
        for event in events {
            match &event.access {
                Access::Load { offset, .. } => {
                    read.insert(offset / line);
                }
                Access::Store { .. } => counts.stores += 1,
                Access::CompareExchange { exchanged, .. } => counts.stores += u64::from(*exchanged),
                Access::Flush { offset, bytes } => {
                    counts.lines += (offset + bytes).div_ceil(line) - offset / line;
                }
                Access::Fence => counts.fences += 1,
                Access::Dram | Access::Mark(_) => {}
            }
        }
        counts.lines_read = read.len() as u64;
        counts
    }
}
