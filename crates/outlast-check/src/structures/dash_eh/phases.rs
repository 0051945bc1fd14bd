//! Finds the phases of Dash-EH and Dash-LH that a trace went through.

use crate::model::stored;
use crate::structures::Phase;
use outlast::Config;
use outlast::internals::index::dash_eh::{layout, points};
use outlast::internals::pmem::Event;
use std::collections::{BTreeSet, HashSet};

/// One record was moved from its home to the next bucket, or two or three records in a row.
pub const FORWARD: [&str; 3] = [
    "dash-eh/displacement: forward",
    "dash-eh/displacement: two forward",
    "dash-eh/displacement: three forward",
];
/// One record was moved from its second bucket back to its home, or two or three in a row.
pub const BACKWARD: [&str; 3] = [
    "dash-eh/displacement: backward",
    "dash-eh/displacement: two backward",
    "dash-eh/displacement: three backward",
];
/// A split moved a record that was in a stash bucket or an overflow node.
pub const SPLIT_STASH: &str = "dash-eh/split: record from the stash";

const BUCKET: i64 = layout::BUCKET_BYTES as i64;

/// Finds the words of records that a trace moves from one place to another.
pub(in crate::structures) fn moved(events: &[Event]) -> Vec<u64> {
    let copies = [&points::DISPLACE_COPY, &points::COMPACT_COPY, &points::SPLIT_NEW];
    let copied = |event: &&Event| event.point.is_some_and(|point| copies.contains(&point));
    events.iter().filter(copied).filter_map(stored).map(|(_, word)| word).collect()
}

/// Finds the phases above in a trace.
pub(in crate::structures) fn found(events: &[Event], config: Config) -> BTreeSet<Phase> {
    let mut found = BTreeSet::new();
    // The buckets into which a displacement has copied.
    let mut copied: Vec<i64> = Vec::new();
    let mut overflowed = HashSet::new();
    for event in events {
        let (Some(point), Some((offset, value))) = (event.point, stored(event)) else { continue };
        if point == &points::DISPLACE_COPY {
            let bucket = offset as i64 / BUCKET;
            // Copying a record takes several stores.
            if copied.last() != Some(&bucket) {
                copied.push(bucket);
            }
        } else if point == &points::DISPLACE_FILL {
            // This is the first store of the new record. The last copy is in a bucket next to it.
            let moves = copied.len();
            if let Some(last) = copied.pop() {
                let steps =
                    (last - offset as i64 / BUCKET).rem_euclid(super::buckets(config) as i64);
                let ways = if steps == 1 { FORWARD } else { BACKWARD };
                found.insert(ways[moves - 1].into());
                copied.clear();
            }
        } else if point == &points::INSERT_OVERFLOW {
            overflowed.insert(value);
        } else if point == &points::SPLIT_NEW && overflowed.contains(&value) {
            found.insert(SPLIT_STASH.into());
        }
    }
    found
}
