//! The structure of clevel.

pub mod phases;

use super::{Shape, Structure};
use crate::state::{Checked, ensure};
use outlast::internals::index::IndexStats;
use outlast::internals::index::clevel::layout::SLOTS;
use outlast::internals::index::clevel::{self, points};
use outlast::{Config, RecordForm};

/// The structure of clevel.
pub const STRUCTURE: Structure = Structure {
    shapes: &[("f1g1", config(1, 1)), ("f1g3", config(1, 3)), ("f2g2", config(2, 2))],
    brim,
    crowd: CROWD,
    growth: &points::CONTEXT_COMMIT,
    creation: &points::CREATE,
    small: |_| Config::small(outlast::Scheme::Clevel),
    config,
    at_rest,
    closed: |_| Ok(()),
    phases: phases::found,
    moved: phases::moved,
};

/// The keys of one hash that fit into two buckets of each of three levels. When they have filled
/// the first level, and again when they have filled half of the second, the map adds a level. The
/// third level stays too empty for the map to add another.
pub(crate) const CROWD: u64 = 3 * 2 * SLOTS as u64;

/// Makes a configuration from the log2 of the first level's buckets, and of a group's.
const fn config(first_bits: u32, group_bits: u32) -> Config {
    Config::Clevel(clevel::Config { first_bits, group_bits })
}

pub(crate) fn first_bits(config: Config) -> u32 {
    let Config::Clevel(config) = config else { unreachable!("a map of this scheme") };
    config.first_bits
}

/// Returns the shape of a map whose first level has 2^`first_bits` buckets, in groups of
/// 2^`group_bits`.
pub fn shape(form: RecordForm, first_bits: u32, group_bits: u32) -> Shape {
    Shape { form, config: config(first_bits, group_bits) }
}

/// The map grows when the first level is full.
fn brim(config: Config) -> u64 {
    ((SLOTS as u64) << first_bits(config)) * 7 / 10
}

/// All levels but two must have been emptied and dropped.
fn at_rest(stats: &IndexStats) -> Checked {
    ensure(stats.segments <= 2, || {
        format!("{} levels, and nothing empties the oldest", stats.segments)
    })
}
