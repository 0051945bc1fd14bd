//! The structure of group hashing.

pub mod phases;

use super::{Shape, Structure};
use crate::state::{Checked, ensure};
use outlast::internals::index::group::layout::second_chunks;
use outlast::internals::index::group::{self, points};
use outlast::{Config, RecordForm};
use outlast_offline::MapReport;

/// The structure of group hashing.
pub const STRUCTURE: Structure = Structure {
    shapes: &[("g16d1", config(16, 1)), ("g32d1", config(32, 1)), ("g16d2", config(16, 2))],
    brim,
    crowd: CROWD,
    growth: &points::SPLIT_COMMIT,
    creation: &points::CREATE,
    small: |_| Config::small(outlast::Scheme::Group),
    config: |bits, other| config(8 << bits, other / 2),
    at_rest: |_| Ok(()),
    closed,
    phases: phases::found,
    moved: phases::moved,
};

/// Number of keys with the same hash that fit into their home cell and the second level, in a
/// segment with the smallest groups.
pub(crate) const CROWD: u64 = 1 + 8 * second_chunks(16) as u64;

/// Makes a configuration from the cells of a group, and the log2 of the segments of a new map.
const fn config(group_size: u32, initial_depth: u32) -> Config {
    Config::Group(group::Config { group_size, initial_depth })
}

fn own(config: Config) -> group::Config {
    let Config::Group(config) = config else { unreachable!("a map of this scheme") };
    config
}

/// Returns the shape of a map with groups of `group_size` cells and 2^`initial_depth` segments.
pub fn shape(form: RecordForm, group_size: u32, initial_depth: u32) -> Shape {
    Shape { form, config: config(group_size, initial_depth) }
}

/// Checks that segments have not been split for keys that no split separates: beyond depth 6, the
/// directory has at least one segment for every 64 entries.
fn closed(map: &MapReport) -> Checked {
    let entries = 1u64 << map.depth;
    ensure(entries <= (map.segments * 64).max(64), || {
        format!("a directory of {entries} entries for {} segments", map.segments)
    })
}

/// About half of the cells are in use when the first segment is full.
fn brim(config: Config) -> u64 {
    let config = own(config);
    u64::from(config.group_size) << config.initial_depth
}
