//! Finds the phases of the EA-PHT family that a trace went through: the states that a crash can
//! leave (3.6.1 of the thesis), where stores show them.

use crate::model::stored;
use crate::structures::Phase;
use outlast::Config;
use outlast::internals::index::ea_pht::layout::BUCKET_BYTES;
use outlast::internals::index::ea_pht::points;
use outlast::internals::pmem::Event;
use std::collections::BTreeSet;

/// A record went to an overflow bucket that was already in the chain.
pub const IN_CHAIN: &str = "ea-pht/insert: chain";
/// A resize copied records to overflow buckets.
pub const CHAIN_MOVED: &str = "ea-pht/resize: chain";

/// Finds the words of records that a trace moves from one place to another.
pub(super) fn moved(events: &[Event]) -> Vec<u64> {
    let copies = events.iter().filter(|event| event.point == Some(&points::MOVE_NEW));
    copies.filter_map(stored).map(|(_, word)| word).collect()
}

/// Finds the phases above in a trace.
pub(super) fn found(events: &[Event], _: Config) -> BTreeSet<Phase> {
    let mut found = BTreeSet::new();
    // Overflow buckets that the trace has linked.
    let mut linked = BTreeSet::new();
    for event in events {
        let (Some(point), Some((offset, word))) = (event.point, stored(event)) else { continue };
        let target = word & 0xffff_ffff_ff00;
        if point == &points::NODE_COMMIT {
            linked.insert(target);
        } else if point == &points::MOVE_NEW && offset % BUCKET_BYTES == 8 && target != 0 {
            found.insert(CHAIN_MOVED.into());
            linked.insert(target);
        } else if point == &points::INSERT
            && linked.contains(&(offset / BUCKET_BYTES * BUCKET_BYTES))
        {
            found.insert(IN_CHAIN.into());
        }
    }
    found
}
