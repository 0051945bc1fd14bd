//! Dash-EH.

pub mod phases;
mod planted;
pub mod rows;
mod scenarios;
mod workloads;

use super::Parts;
use crate::session::Shape;
use outlast::index::dash_eh::layout::SLOTS;
use outlast::index::dash_eh::{self, points};
use outlast::{Config, MapOptions, RecordForm};

/// What it adds.
pub const PARTS: Parts = Parts {
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
    phases: phases::found,
    moved: phases::moved,
    expected: scenarios::expected,
    scenarios: scenarios::catalogue,
    workloads: workloads::ALL,
    planted: planted::LINES,
    equivalent: &[],
};

/// Keys of one hash that fit a home bucket, the next one and two stash buckets.
const CROWD: u64 = 4 * SLOTS as u64;

/// log2 of the buckets to a segment, and its stash buckets.
const fn config(bucket_bits: u32, stash: u32) -> Config {
    Config::DashEh(dash_eh::Config { bucket_bits, stash })
}

fn own(config: Config) -> dash_eh::Config {
    let Config::DashEh(config) = config else { unreachable!("a map of this scheme") };
    config
}

/// Buckets of a segment.
pub fn buckets(config: Config) -> u64 {
    1 << own(config).bucket_bits
}

/// A map of segments of 2^`bucket_bits` buckets and so many stash buckets.
pub fn shape(form: RecordForm, bucket_bits: u32, stash: u32) -> Shape {
    Shape { form, config: config(bucket_bits, stash) }
}

/// Two segments.
fn brim(config: Config) -> u64 {
    let buckets = buckets(config) + u64::from(own(config).stash);
    buckets * SLOTS as u64 * 2 * 7 / 10
}

fn small(form: RecordForm, options: MapOptions) -> MapOptions {
    match form {
        RecordForm::Inline => options.bucket_bits(2).stash_buckets(2),
        RecordForm::Bytes => options.bucket_bits(1).stash_buckets(4),
    }
}
