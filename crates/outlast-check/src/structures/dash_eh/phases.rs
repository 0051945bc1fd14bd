//! Finds the phases of Dash-EH and Dash-LH that a trace went through.

use crate::model::stored;
use crate::structures::Phase;
use outlast::Config;
use outlast::index::dash_eh::{layout, points};
use outlast::pmem::Event;
use std::collections::{BTreeSet, HashSet, VecDeque};

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
/// One of the changes that share a fence moved a record to the bucket after, or back to its home.
pub const IN_CALL: [&str; 2] =
    ["dash-eh/displacement: of one call, forward", "dash-eh/displacement: of one call, backward"];
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
    // Those of changes that share a fence, in the order in which the slots are filled.
    let mut copied_together: VecDeque<i64> = VecDeque::new();
    // The bucket of the slot that is being filled.
    let mut filled = None;
    let mut overflowed = HashSet::new();
    for event in events {
        if event.point == Some(&points::MANY) {
            copied_together = copied.drain(..).collect();
            filled = None;
        }
        let (Some(point), Some((offset, value))) = (event.point, stored(event)) else { continue };
        let bucket = offset as i64 / BUCKET;
        let from = |last: i64| (last - bucket).rem_euclid(super::buckets(config) as i64);
        if point == &points::DISPLACE_COPY {
            // Copying a record takes several stores.
            if copied.last() != Some(&bucket) {
                copied.push(bucket);
            }
        } else if point == &points::DISPLACE_FILL {
            // This is the first store of the new record. The last copy is in a bucket next to it.
            let moves = copied.len();
            if let Some(last) = copied.pop() {
                let ways = if from(last) == 1 { FORWARD } else { BACKWARD };
                found.extend(ways.get(moves - 1).map(|&way| way.into()));
                copied.clear();
            } else if filled.replace(bucket) != Some(bucket)
                && let Some(last) = copied_together.pop_front()
            {
                found.insert(IN_CALL[usize::from(from(last) != 1)].into());
            }
        } else if point == &points::INSERT_OVERFLOW {
            overflowed.insert(value);
        } else if point == &points::SPLIT_NEW && overflowed.contains(&value) {
            found.insert(SPLIT_STASH.into());
        }
    }
    found
}
