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

/// Dash: a record was moved from the second bucket to the one after.
pub const FORWARD: &str = "dash-eh/displacement: forward";
/// Dash: a record was moved from its second bucket back to its home.
pub const BACKWARD: &str = "dash-eh/displacement: backward";
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
    let mut copied = 0;
    let mut overflowed = HashSet::new();
    for event in events {
        let Some(point) = event.point else { continue };
        points_seen.insert(point);
        let Some((offset, value)) = stored(event) else { continue };
        if point == &points::DISPLACE_COPY {
            copied = offset as i64 / BUCKET;
        } else if point == &points::DISPLACE_FILL {
            let steps = (copied - offset as i64 / BUCKET).rem_euclid(1 << bucket_bits);
            found.insert(if steps == 1 { FORWARD.into() } else { BACKWARD.into() });
        } else if point == &points::INSERT_OVERFLOW {
            overflowed.insert(value);
        } else if point == &points::SPLIT_NEW && overflowed.contains(&value) {
            found.insert(SPLIT_STASH.into());
        }
    }
    found.extend(points_seen.into_iter().map(phase));
    found
}
