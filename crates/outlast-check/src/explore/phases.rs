//! Which phases of the algorithms a run went through, told from its trace.
//!
//! A scenario says which phases it is for; the tests hold it to that, so that a change of
//! sizes or keys cannot silently make it miss them.

use crate::model::stored;
use outlast::index::dash_eh::points;
use outlast::pmem::{Event, Point};
use std::collections::{BTreeSet, HashSet};

/// The name of a phase: `owner/name` of a commit point, or one of those below.
pub type Phase = String;

/// Dash: a record was moved from the second bucket to the one after; or two or three in a row
/// were moved forward.
pub const FORWARD: [&str; 3] = [
    "dash-eh/displacement: forward",
    "dash-eh/displacement: two forward",
    "dash-eh/displacement: three forward",
];
/// Dash: a record was moved from its second bucket back to its home; or two or three in a row
/// were.
pub const BACKWARD: [&str; 3] = [
    "dash-eh/displacement: backward",
    "dash-eh/displacement: two backward",
    "dash-eh/displacement: three backward",
];
/// Dash: a split moved a record that was in a stash bucket or an overflow node.
pub const SPLIT_STASH: &str = "dash-eh/split: record from the stash";

/// The phase that a commit point stands for.
pub fn phase(point: &Point) -> Phase {
    format!("{}/{}", point.owner, point.name)
}

/// The words of records that a trace moves from one place to another.
pub fn moved(events: &[Event]) -> impl Iterator<Item = u64> {
    let copies = [&points::DISPLACE_COPY, &points::PULL_COPY, &points::SPLIT_NEW];
    let copied = move |event: &&Event| event.point.is_some_and(|point| copies.contains(&point));
    events.iter().filter(copied).filter_map(stored).map(|(_, word)| word)
}

const BUCKET: i64 = outlast::index::dash_eh::layout::BUCKET_BYTES as i64;

/// The phases in a trace. `bucket_bits` is the shape of its maps.
pub fn phases_of(events: &[Event], bucket_bits: u32) -> BTreeSet<Phase> {
    let mut points_seen: HashSet<&'static Point> = HashSet::new();
    let mut found = BTreeSet::new();
    // The buckets that a displacement has made copies in.
    let mut copied: Vec<i64> = Vec::new();
    let mut overflowed = HashSet::new();
    for event in events {
        let Some(point) = event.point else { continue };
        points_seen.insert(point);
        let Some((offset, value)) = stored(event) else { continue };
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
                let steps = (last - offset as i64 / BUCKET).rem_euclid(1 << bucket_bits);
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
    found.extend(points_seen.into_iter().map(phase));
    found
}
