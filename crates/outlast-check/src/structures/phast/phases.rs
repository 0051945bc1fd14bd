//! Finds the phases of PhaST that a trace went through.

use crate::model::stored;
use crate::structures::Phase;
use outlast::Config;
use outlast::internals::index::phast::points;
use outlast::internals::pmem::Event;
use std::collections::BTreeSet;

/// A partition was joined with the one before it.
pub(crate) const JOINED: &str = "phast/partition: joined";
/// A partition was split.
pub(crate) const DIVIDED: &str = "phast/partition: divided";

/// Finds the words of records that a trace moves from one place to another.
pub(super) fn moved(events: &[Event]) -> Vec<u64> {
    let copies = [&points::MERGE_COPY, &points::SPLIT_NEW];
    let copied = |event: &&Event| event.point.is_some_and(|point| copies.contains(&point));
    events.iter().filter(copied).filter_map(stored).map(|(_, word)| word).collect()
}

/// Finds the phases above in a trace.
pub(super) fn found(events: &[Event], _: Config) -> BTreeSet<Phase> {
    let is = |point| events.iter().any(|event| event.point == Some(point));
    let all = [(&points::MASTER_NEW, DIVIDED), (&points::MASTER_GONE, JOINED)];
    all.into_iter().filter(|(point, _)| is(point)).map(|(_, phase)| phase.into()).collect()
}
