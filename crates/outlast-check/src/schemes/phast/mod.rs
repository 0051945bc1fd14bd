//! PhaST.

mod phases;
mod planted;
mod scenarios;
mod workloads;

use super::{Config, Parts};
use crate::session::Shape;
use outlast::index::phast::points;
use outlast::{MapOptions, RecordForm, Scheme};

/// What it adds.
pub const PARTS: Parts = Parts {
    shapes: &[
        ("s4n4p2", config(4, 4, 2)),
        ("s4n4p8", config(4, 4, 8)),
        ("s8n4p4", config(8, 4, 4)),
        ("s20n6p1", config(20, 6, 1)),
    ],
    brim,
    crowd: CROWD,
    growth: &points::SPLIT_COMMIT,
    creation: &points::CREATE,
    small,
    at_rest: |_| Ok(()),
    phases: phases::found,
    moved: phases::moved,
    expected: scenarios::expected,
    scenarios: scenarios::catalogue,
    workloads: workloads::ALL,
    planted: planted::LINES,
    equivalent: &[],
};

/// Hashes are fingerprints and nothing else here: so many keys of one hash fill some leaves.
const CROWD: u64 = 24;

/// Slots of a leaf, leaves of a node, partitions.
const fn config(slots: u64, node_leaves: u64, partitions: u64) -> Config {
    [slots, node_leaves | partitions << 32, 0]
}

/// A map of leaves of so many slots, nodes of so many leaves, and so many partitions at most.
pub fn shape(form: RecordForm, slots: u64, node_leaves: u64, partitions: u64) -> Shape {
    Shape { scheme: Scheme::Phast, form, config: config(slots, node_leaves, partitions) }
}

/// A leaf.
fn brim([slots, ..]: Config) -> u64 {
    slots - 1
}

fn small(form: RecordForm, options: MapOptions) -> MapOptions {
    match form {
        RecordForm::Inline => options.leaf_slots(4).node_leaves(4).partitions(3),
        RecordForm::Bytes => options.leaf_slots(8).node_leaves(4).partitions(8),
    }
}
