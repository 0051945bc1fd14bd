//! The structures of EA-PHT, EA-PHT-H and EA-PHT-HPR.

pub mod phases;

use super::Structure;
use crate::state::{Checked, ensure};
use outlast::Config;
use outlast::internals::index::config::EaPhtOf;
use outlast::internals::index::ea_pht::layout::SLOTS;
use outlast::internals::index::ea_pht::points;
use outlast_offline::MapReport;

/// The structure of one scheme of the family. The structures differ only in their configurations.
macro_rules! structure {
    ($module:ident: $scheme:ident) => {
        /// One scheme of the family.
        pub mod $module {
            use super::*;

            /// Makes a configuration from the log2 of a new map's buckets, and of a chunk's.
            pub const fn config(initial_depth: u32, chunk_bits: u32) -> Config {
                Config::$scheme(EaPhtOf { initial_depth, chunk_bits, helpers: 2 })
            }

            /// The scheme's structure.
            pub const STRUCTURE: Structure = Structure {
                shapes: &[("d1c4", config(1, 4)), ("d1c1", config(1, 1)), ("d2c2", config(2, 2))],
                brim,
                crowd: SLOTS as u64,
                growth: &points::RESIZE_COMMIT,
                creation: &points::CREATE,
                small: |_| config(1, 1),
                config: |bits, other| config(other / 2, bits),
                at_rest: |_| Ok(()),
                closed,
                phases: phases::found,
                moved: phases::moved,
            };
        }
    };
}

structure!(plain: EaPht);
structure!(hybrid: EaPhtH);
structure!(parallel: EaPhtHpr);

fn depth_of(config: Config) -> u32 {
    match config {
        Config::EaPht(config) => config.initial_depth,
        Config::EaPhtH(config) => config.initial_depth,
        Config::EaPhtHpr(config) => config.initial_depth,
        _ => unreachable!("a map of the family"),
    }
}

/// Checks that keys that no resize separates have not made the table grow.
fn closed(map: &MapReport) -> Checked {
    let buckets = 1u64 << map.depth;
    // One long chain can make the table grow to sixteen buckets.
    ensure(buckets <= (16 + 2 * map.records).max(64), || {
        format!("{buckets} buckets for {} records", map.records)
    })
}

/// A small table grows as soon as one bucket has overflowed.
fn brim(config: Config) -> u64 {
    9 << depth_of(config)
}
