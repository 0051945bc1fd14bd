//! What EA-PHT, EA-PHT-H and EA-PHT-HPR add.

pub mod phases;
mod planted;
mod scenarios;
mod workloads;

use super::Parts;
use crate::canary::equivalent::{DROPPED, Equivalent, Reason};
use crate::canary::mutation::{Act, Which, Wrong};
use crate::state::{Checked, ensure};
use outlast::index::ea_pht::layout::SLOTS;
use outlast::index::ea_pht::{ConfigOf, points};
use outlast::offline::MapReport;
use outlast::{Config, MapOptions, RecordForm};

/// What a scheme of the family adds. They differ in their configurations, and in whether changes go on
/// while a table is moved.
macro_rules! parts {
    ($parts:ident: $scheme:ident, $goes_on:literal, $workloads:path, $planted:expr) => {
        /// What this scheme adds.
        pub const $parts: Parts = {
            const fn config(initial_depth: u32, chunk_bits: u32) -> Config {
                Config::$scheme(ConfigOf::new(initial_depth, chunk_bits, 2))
            }
            Parts {
                shapes: &[("d1c4", config(1, 4)), ("d1c1", config(1, 1)), ("d2c2", config(2, 2))],
                brim,
                crowd: SLOTS as u64,
                growth: &points::RESIZE_COMMIT,
                creation: &points::CREATE,
                small,
                config: |bits, other| config(other / 2, bits),
                at_rest: |_| Ok(()),
                closed,
                phases: phases::found,
                moved: phases::moved,
                expected: |name, form| scenarios::expected(name, form, $goes_on),
                scenarios: |form| scenarios::catalogue(form, config, $goes_on),
                workloads: &$workloads(config(2, 2)),
                planted: $planted,
                equivalent: if $goes_on { REUSED_BY_OTHERS } else { COUNTED_AGAIN },
            }
        };
    };
}

parts!(PLAIN: EaPht, false, workloads::all, planted::PLAIN);
parts!(HYBRID: EaPhtH, false, workloads::all, planted::HYBRID);
parts!(PARALLEL: EaPhtHpr, true, workloads::resumed, planted::PARALLEL);

/// Of EA-PHT-HPR: without the fence after a resize's end, another thread can reuse the old table while
/// the root on media still leads to it. The thread itself fences before it could.
const REUSED_BY_OTHERS: &[Equivalent] = &[Equivalent {
    point: &points::RESIZE_COMMIT,
    act: Act::Fence,
    ways: DROPPED,
    reason: Reason::OtherThreads,
}];

/// Of the others: the first line of a new table is the first chunk's header. The table is resized
/// because there are chains, so one of the copies takes an overflow bucket, and flushes the counter in
/// this line.
const COUNTED_AGAIN: &[Equivalent] = &[Equivalent {
    point: &points::RESIZE_NEW,
    act: Act::Flush,
    ways: &[Wrong::DroppedOnce(Which::First)],
    reason: Reason::FlushedAgain,
}];

fn depth_of(config: Config) -> u32 {
    match config {
        Config::EaPht(config) => config.initial_depth,
        Config::EaPhtH(config) => config.initial_depth,
        Config::EaPhtHpr(config) => config.initial_depth,
        _ => unreachable!("a map of the family"),
    }
}

fn small(_: RecordForm, options: MapOptions) -> MapOptions {
    options.initial_depth(1).chunk_bits(1)
}

/// Checks that keys that no resize separates have not made the table grow.
fn closed(map: &MapReport) -> Checked {
    let buckets = 1u64 << map.depth;
    // One chain makes up to sixteen buckets.
    ensure(buckets <= (16 + 2 * map.records).max(64), || {
        format!("{buckets} buckets for {} records", map.records)
    })
}

/// A table grows when a bucket has overflown, if it is small.
fn brim(config: Config) -> u64 {
    9 << depth_of(config)
}
