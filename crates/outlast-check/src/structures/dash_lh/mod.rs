//! The structure of Dash-LH. Its phases, and what fits in a segment, are those of Dash-EH.

use super::dash_eh::{CROWD, brim};
use super::{Shape, Structure, dash_eh::phases};
use crate::state::{Checked, ensure};
use outlast::internals::index::dash_lh::{self, points};
use outlast::{Config, RecordForm};
use outlast_offline::MapReport;

/// The structure of Dash-LH.
pub const STRUCTURE: Structure = Structure {
    shapes: &[("b1s2", config(1, 2)), ("b1s4", config(1, 4)), ("b2s2", config(2, 2))],
    brim,
    crowd: CROWD,
    growth: &points::SPLIT_COMMIT,
    creation: &points::CREATE,
    small,
    config,
    at_rest: |_| Ok(()),
    closed,
    phases: phases::found,
    moved: phases::moved,
};

/// Makes a configuration from the log2 of a segment's buckets, and the number of its stash buckets.
const fn config(bucket_bits: u32, stash: u32) -> Config {
    Config::DashLh(dash_lh::Config { bucket_bits, stash_buckets: stash, initial_depth: 1 })
}

/// Returns the shape of a map of two segments of 2^`bucket_bits` buckets and `stash` stash buckets.
pub fn shape(form: RecordForm, bucket_bits: u32, stash: u32) -> Shape {
    Shape { form, config: config(bucket_bits, stash) }
}

/// Checks that keys that no split separates have not made the table grow: apart from the first 64
/// segments, there are at least four records for each segment.
fn closed(map: &MapReport) -> Checked {
    let few = 64 + map.records / 4;
    ensure(map.segments <= few, || format!("{} segments for {} records", map.segments, map.records))
}

fn small(form: RecordForm) -> Config {
    match form {
        RecordForm::Inline => config(2, 2),
        RecordForm::Bytes => config(1, 4),
    }
}
