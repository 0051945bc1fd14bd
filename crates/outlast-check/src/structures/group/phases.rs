//! Finds the phases of group hashing that a trace went through.

use crate::model::stored;
use crate::structures::Phase;
use outlast::Config;
use outlast::internals::index::group::layout::{CHUNK_BYTES, Kind};
use outlast::internals::index::group::points;
use outlast::internals::pmem::Event;
use std::collections::{BTreeSet, HashMap};

/// An insert found its home taken, and went to the second level.
pub const SECOND_LEVEL: &str = "group/insert: second level";
/// An insert went to an overflow node.
pub const IN_NODE: &str = "group/insert: overflow node";
/// A split copied records to an overflow node of the new segment.
pub const NODE_SPLIT: &str = "group/split: overflow node";

/// Finds the words of records that a trace moves from one place to another.
pub(super) fn moved(events: &[Event]) -> Vec<u64> {
    let copies = events.iter().filter(|event| event.point == Some(&points::SPLIT_NEW));
    copies.filter_map(stored).map(|(_, word)| word).collect()
}

/// Finds the phases above in a trace.
pub(super) fn found(events: &[Event], config: Config) -> BTreeSet<Phase> {
    let group = u64::from(super::own(config).group_size) * 16;
    let mut found = BTreeSet::new();
    // The blocks that the trace makes, by their offsets, and whether each is a node.
    let mut blocks = HashMap::new();
    for event in events {
        let (Some(point), Some((offset, word))) = (event.point, stored(event)) else { continue };
        let kind = |kind: Kind| word & 0xffff == kind as u64;
        let made = [&points::CREATE, &points::SPLIT_NEW, &points::NODE_NEW].contains(&point);
        if made && offset % CHUNK_BYTES == 0 && (kind(Kind::Segment) || kind(Kind::Node)) {
            blocks.insert(offset, kind(Kind::Node));
            if kind(Kind::Node) && point == &points::SPLIT_NEW {
                found.insert(NODE_SPLIT.into());
            }
        } else if point == &points::INSERT {
            // A segment is as long as two nodes, and begins at a multiple of its length.
            let block = offset / group * group;
            let segment = offset / (2 * group) * (2 * group);
            if blocks.get(&block) == Some(&true) {
                found.insert(IN_NODE.into());
            } else if blocks.get(&segment) == Some(&false)
                && offset >= segment + CHUNK_BYTES + group
            {
                found.insert(SECOND_LEVEL.into());
            }
        }
    }
    found
}
