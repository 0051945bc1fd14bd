//! The structure of PhaST.

pub mod phases;

use super::{Shape, Structure};
use outlast::internals::index::phast::{self, points};
use outlast::{Config, RecordForm};

/// The structure of PhaST.
pub const STRUCTURE: Structure = Structure {
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
    config: |bits, partitions| config(4 << bits, 4, partitions),
    at_rest: |_| Ok(()),
    closed: |_| Ok(()),
    phases: phases::found,
    moved: phases::moved,
};

/// In PhaST, hashes are only fingerprints. This many keys of one hash fill some leaves.
pub(crate) const CROWD: u64 = 24;

/// Makes a configuration from the slots per leaf, the leaves per node, and the partitions.
pub(crate) const fn config(leaf_slots: u32, node_leaves: u32, partitions: u32) -> Config {
    let order = outlast::internals::index::KeyOrder::Plain;
    Config::Phast(phast::Config { leaf_slots, node_leaves, partitions, order })
}

/// Returns the shape of a map with `slots` slots per leaf, `node_leaves` leaves per node, and at
/// most `partitions` partitions.
pub fn shape(form: RecordForm, slots: u32, node_leaves: u32, partitions: u32) -> Shape {
    Shape { form, config: config(slots, node_leaves, partitions) }
}

/// A new map has one leaf.
fn brim(config: Config) -> u64 {
    let Config::Phast(config) = config else { unreachable!("a map of this scheme") };
    u64::from(config.leaf_slots) - 1
}

fn small(form: RecordForm) -> Config {
    match form {
        RecordForm::Inline => config(4, 4, 3),
        RecordForm::Bytes => config(8, 4, 8),
    }
}
