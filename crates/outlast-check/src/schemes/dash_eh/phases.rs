//! What of Dash-EH a trace went through.

use crate::explore::phases::Phase;
use crate::model::stored;
use outlast::Config;
use outlast::index::dash_eh::{layout, points};
use outlast::pmem::Event;
use std::collections::{BTreeSet, HashSet};

/// A record was moved from the second bucket to the one after; or two or three in a row were
/// moved forward.
pub const FORWARD: [&str; 3] = [
    "dash-eh/displacement: forward",
    "dash-eh/displacement: two forward",
    "dash-eh/displacement: three forward",
];
/// A record was moved from its second bucket back to its home; or two or three in a row were.
pub const BACKWARD: [&str; 3] = [
    "dash-eh/displacement: backward",
    "dash-eh/displacement: two backward",
    "dash-eh/displacement: three backward",
];
/// A split moved a record that was in a stash bucket or an overflow node.
pub const SPLIT_STASH: &str = "dash-eh/split: record from the stash";

const BUCKET: i64 = layout::BUCKET_BYTES as i64;

/// The words of records that a trace moves from one place to another.
pub(super) fn moved(events: &[Event]) -> Vec<u64> {
    let copies = [&points::DISPLACE_COPY, &points::PULL_COPY, &points::SPLIT_NEW];
    let copied = |event: &&Event| event.point.is_some_and(|point| copies.contains(&point));
    events.iter().filter(copied).filter_map(stored).map(|(_, word)| word).collect()
}

/// The phases above in a trace.
pub(super) fn found(events: &[Event], config: Config) -> BTreeSet<Phase> {
    let mut found = BTreeSet::new();
    // The buckets that a displacement has made copies in.
    let mut copied: Vec<i64> = Vec::new();
    let mut overflowed = HashSet::new();
    for event in events {
        let (Some(point), Some((offset, value))) = (event.point, stored(event)) else { continue };
        if point == &points::DISPLACE_COPY {
            let bucket = offset as i64 / BUCKET;
            // A record is several stores.
            if copied.last() != Some(&bucket) {
                copied.push(bucket);
            }
        } else if point == &points::DISPLACE_FILL {
            // The first store of the new record; the last copy stands in the bucket beside it.
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
