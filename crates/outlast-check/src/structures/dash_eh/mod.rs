//! The structure of Dash-EH.

pub mod phases;

use super::{Shape, Structure};
use crate::state::{Checked, ensure};
use outlast::internals::index::dash_eh::layout::SLOTS;
use outlast::internals::index::dash_eh::{self, points};
use outlast::{Config, RecordForm};
use outlast_offline::MapReport;

/// The structure of Dash-EH.
pub const STRUCTURE: Structure = Structure {
    shapes: &[
        ("b1s2", config(1, 2)),
        ("b1s4", config(1, 4)),
        ("b2s2", config(2, 2)),
        ("b2s4", config(2, 4)),
    ],
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

/// Number of keys with the same hash that fit into the home bucket, the next one and two stash
/// buckets.
pub(crate) const CROWD: u64 = 4 * SLOTS as u64;

/// Makes a configuration from the log2 of a segment's buckets, and the number of its stash buckets.
pub(crate) const fn config(bucket_bits: u32, stash: u32) -> Config {
    Config::DashEh(dash_eh::Config { bucket_bits, stash_buckets: stash })
}

/// Returns the log2 of a segment's buckets, and the number of its stash buckets. Also for Dash-LH.
fn segment_size(config: Config) -> (u32, u32) {
    match config {
        Config::DashEh(config) => (config.bucket_bits, config.stash_buckets),
        Config::DashLh(config) => (config.bucket_bits, config.stash_buckets),
        other => unreachable!("{other:?} has no segments of Dash"),
    }
}

/// Returns the number of buckets per segment.
pub fn buckets(config: Config) -> u64 {
    1 << segment_size(config).0
}

/// Returns the shape of a map with segments of 2^`bucket_bits` buckets and `stash` stash buckets.
pub fn shape(form: RecordForm, bucket_bits: u32, stash: u32) -> Shape {
    Shape { form, config: config(bucket_bits, stash) }
}

/// Checks that the directory has not been doubled for keys that no split separates: beyond depth 6,
/// it has at least one segment for every 64 entries.
fn closed(map: &MapReport) -> Checked {
    let entries = 1u64 << map.depth;
    ensure(entries <= (map.segments * 64).max(64), || {
        format!("a directory of {entries} entries for {} segments", map.segments)
    })
}

/// A new map has two segments.
pub(super) fn brim(config: Config) -> u64 {
    let buckets = buckets(config) + u64::from(segment_size(config).1);
    buckets * SLOTS as u64 * 2 * 7 / 10
}

fn small(form: RecordForm) -> Config {
    match form {
        RecordForm::Inline => config(2, 2),
        RecordForm::Bytes => config(1, 4),
    }
}
