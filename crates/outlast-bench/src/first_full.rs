//! `first-full`: the load factor at which the first insert fails in a table that does not grow,
//! measured and simulated.
//!
//! Group hashing as published does not grow. Here, a table begins with all of its segments, and its
//! first split stands for the first failed insert.

use crate::Fallible;
use crate::keys::{Draw, Keys};
use crate::limits;
use crate::progress::Progress;
use crate::report::{Report, Show, rounded};
use crate::run::Run;
use crate::systems::Setup;
use outlast::internals::index::group::layout::second_chunks;
use outlast::{MapOptions, PoolOptions, RecordForm, Scheme, config};
use serde::{Deserialize, Serialize};

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// Cells of a group; one table for each number.
    pub group_sizes: Vec<u32>,
    /// Cells of the table, half of them in each level; one table for each number.
    pub cells: Vec<u64>,
    /// Number of rounds, each with another seed. Results are medians.
    pub rounds: u64,
    /// Seed of the keys and the hash function.
    pub seed: u64,
}

impl Options {
    fn check(&self) -> Fallible {
        limits::each_once("group-size", &self.group_sizes)?;
        limits::each_once("cells", &self.cells)?;
        limits::range("rounds", self.rounds, 1..=100)?;
        for &size in &self.group_sizes {
            limits::range("group-size", u64::from(size), 16..=1024)?;
            for &cells in &self.cells {
                limits::range("cells", cells, u64::from(size) * 4..=1 << 27)?;
                limits::fits_memory(cells, 20)?;
                if !size.is_power_of_two() || !cells.is_power_of_two() {
                    let why = format!("--group-size {size}, --cells {cells}: not powers of two");
                    return Err(limits::refused(why));
                }
            }
        }
        Ok(())
    }
}

/// A table at the moment when its first insert fails.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Full {
    /// Cells of a group of the first level.
    pub group_size: u32,
    /// Cells of both levels. These are fewer than requested, because the library's second level is
    /// smaller than the first.
    pub cells: u64,
    /// Records in the table, the median of the rounds.
    pub records: u64,
    /// Records per cell.
    pub load_factor: f64,
    /// The load factor in the simulation.
    pub simulated: f64,
    /// The load factor in a simulation whose second level is as large as the first, as in the
    /// paper.
    pub simulated_equal: f64,
}

/// The number of inserts between two checks of whether the table has been split.
const STEP: u64 = 256;

/// Fills the tables and prints how full they are.
///
/// # Errors
/// If an option is invalid, or if an insert fails.
pub fn run(options: &Options, report: &mut Report) -> Fallible<Vec<Full>> {
    options.check()?;
    #[derive(Serialize)]
    struct Own {
        cells: Vec<u64>,
        group_sizes: Vec<u32>,
        rounds: u64,
    }
    let setup = Setup::plain(Scheme::Group, RecordForm::Inline, "".into(), options.seed);
    let own = Own {
        cells: options.cells.clone(),
        group_sizes: options.group_sizes.clone(),
        rounds: options.rounds,
    };
    report.run(&Run::in_memory("first-full", &setup, "memory of the process"), &own)?;
    let mut all = Vec::new();
    let tables = options.cells.len() * options.group_sizes.len();
    let progress = Progress::new(tables as u64);
    for &cells in &options.cells {
        for &group_size in &options.group_sizes {
            progress.next(&format!("{cells} cells, groups of {group_size}"));
            let seeds = options.seed..options.seed + options.rounds;
            let filled: Fallible<Vec<u64>> =
                seeds.clone().map(|seed| fill(group_size, cells, seed)).collect();
            let records = median(filled?);
            // In each segment of the library's tables, the second level has one chunk fewer than
            // the first.
            let own = (second_chunks(group_size) * 8).into();
            let equal = group_size.into();
            let segments = cells / (2 * u64::from(group_size));
            let real = segments * (u64::from(group_size) + own);
            let simulate = |second| {
                let homes = group_size.into();
                let rounds = seeds.clone().map(|seed| simulate(segments, homes, second, seed));
                let records = median(rounds.collect());
                rounded(records as f64 / (segments * (u64::from(group_size) + second)) as f64, 4)
            };
            let full = Full {
                group_size,
                cells: real,
                records,
                load_factor: rounded(records as f64 / real as f64, 4),
                simulated: simulate(own),
                simulated_equal: simulate(equal),
            };
            report.row("first_full", &full)?;
            all.push(full);
            progress.done(1);
        }
    }
    report.table(
        "first_full",
        &[
            ("group size", "/group_size", Show::Count),
            ("cells", "/cells", Show::Count),
            ("records", "/records", Show::Count),
            ("load factor", "/load_factor", Show::Decimal(3)),
            ("simulated", "/simulated", Show::Decimal(3)),
            ("with equal levels", "/simulated_equal", Show::Decimal(3)),
        ],
    )?;
    Ok(all)
}

/// Returns the median; for an even count, the greater one of the middle two numbers.
fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

/// Inserts until the first split. Returns the number of records before that split, rounded down to
/// a multiple of [`STEP`].
fn fill(group_size: u32, cells: u64, seed: u64) -> Fallible<u64> {
    let pool = PoolOptions::new().identity(seed, 1).background(false).anonymous()?;
    let depth = (cells / (2 * u64::from(group_size))).trailing_zeros();
    let options = MapOptions::new().config(config::Group { group_size, initial_depth: depth });
    let map = pool.map_with::<u64, u64>("bench", &options)?;
    let keys = Keys::new(seed);
    let mut records = 0;
    while map.stats()?.splits == 0 {
        for _ in 0..STEP {
            map.insert(&keys.key(records), &records)?;
            records += 1;
        }
    }
    Ok(records - STEP)
}

/// Simulates inserts: throws balls at random cells of the first level, `homes` per segment. A ball
/// whose cell is taken goes to the second level of the segment, which has `second` cells. Returns
/// the number of balls before the first one that finds no room.
fn simulate(segments: u64, homes: u64, second: u64, seed: u64) -> u64 {
    let mut draw = Draw::new(seed);
    let mut taken = vec![false; (segments * homes) as usize];
    let mut overflowed = vec![0; segments as usize];
    for balls in 0.. {
        let home = draw.below(segments * homes);
        if !std::mem::replace(&mut taken[home as usize], true) {
            continue;
        }
        let overflowed = &mut overflowed[(home / homes) as usize];
        if *overflowed == second {
            return balls;
        }
        *overflowed += 1;
    }
    unreachable!("a table of a fixed size becomes full")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The load factors for a uniform hash and a table of 2^20 cells.
    #[test]
    fn larger_groups_fill_further() {
        let of = |homes: u64| {
            let segments = (1 << 19) / homes;
            simulate(segments, homes, homes, 1) as f64 / f64::from(1 << 20)
        };
        let loads = [64, 256, 1024].map(of);
        assert!(loads[0] > 0.55 && loads[0] < 0.68, "{loads:?}");
        assert!(loads[0] + 0.08 < loads[1] && loads[1] + 0.04 < loads[2], "{loads:?}");
        assert!(loads[2] < 0.9, "{loads:?}");
    }

    #[test]
    fn a_table_is_as_full_as_its_simulation() {
        let (cells, segments) = (1 << 16, 1 << 8);
        let filled = median((0..9).map(|seed| fill(128, cells, seed).unwrap()).collect()) as f64;
        let simulated =
            median((0..9).map(|seed| simulate(segments, 128, 120, seed)).collect()) as f64;
        let real = (segments * (128 + 120)) as f64;
        assert!((filled - simulated).abs() < 0.02 * real, "{}", (filled - simulated) / real);
    }
}
