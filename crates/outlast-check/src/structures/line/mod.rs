//! The structure of line hashing.

use super::{Phase, Shape, Structure};
use crate::model::stored;
use crate::state::{Checked, ensure};
use outlast::internals::index::line::layout::{DIRECTORY, LINE_SLOTS, SIZES};
use outlast::internals::index::line::{self, points};
use outlast::internals::pmem::Event;
use outlast::{Config, RecordForm};
use outlast_offline::MapReport;
use std::collections::{BTreeSet, HashSet};

/// The structure of line hashing.
pub const STRUCTURE: Structure = Structure {
    shapes: &[("s0", config(0)), ("s1", config(1)), ("s2", config(2))],
    // A new map has two segments of the smallest size.
    brim: |_| SIZES[0].slots(),
    crowd: CROWD,
    growth: &points::REBUILD_COMMIT,
    creation: &points::CREATE,
    small: |form| config(u32::from(form == RecordForm::Bytes)),
    config: |bits, _| config(bits - 1),
    at_rest: |_| Ok(()),
    closed,
    phases: found,
    moved,
};

/// Number of keys with the same hash that fit into their block and their window of the stash, in a
/// new map.
pub(crate) const CROWD: u64 = (4 + SIZES[0].window() as u64) * LINE_SLOTS as u64;

/// A rebuild has moved a record that was in the stash or a node.
pub const STASH_MOVED: &str = "line/rebuild: record from the stash";

const fn config(segment_bits: u32) -> Config {
    Config::Line(line::Config { segment_bits })
}

/// Returns the shape of a map whose largest segments have this size.
pub fn shape(form: RecordForm, segment_bits: u32) -> Shape {
    Shape { form, config: config(segment_bits) }
}

/// Checks that the directory has not been doubled for keys that no growth separates: beyond depth 7,
/// it has at least one segment for every 64 cells.
fn closed(map: &MapReport) -> Checked {
    let cells = DIRECTORY.entries(map.depth);
    ensure(cells <= (map.segments * 64).max(128), || {
        format!("a directory of {cells} cells for {} segments", map.segments)
    })
}

/// Finds the words of records that a trace moves from one place to another.
fn moved(events: &[Event]) -> Vec<u64> {
    let copies = [&points::REBUILD_NEW, &points::REBUILD_NODE];
    let copied = |event: &&Event| event.point.is_some_and(|point| copies.contains(&point));
    events.iter().filter(copied).filter_map(stored).map(|(_, word)| word).collect()
}

fn found(events: &[Event], _: Config) -> BTreeSet<Phase> {
    let mut overflowed = HashSet::new();
    let mut found = BTreeSet::new();
    for event in events {
        let (Some(point), Some((_, value))) = (event.point, stored(event)) else { continue };
        if point == &points::INSERT_OVERFLOW {
            overflowed.insert(value);
        } else if point == &points::REBUILD_NEW && overflowed.contains(&value) {
            found.insert(STASH_MOVED.into());
        }
    }
    found
}
