//! `load-factor`: how full a table is while it grows by inserts alone.

use crate::Fallible;
use crate::form::{Hand, Reads};
use crate::keys::{Keys, value};
use crate::limits;
use crate::report::{Report, Show, rounded};
use crate::run::Run;
use crate::systems::{self, Setup, map_options};
use outlast::{PoolOptions, RecordForm, Scheme};
use serde::{Deserialize, Serialize};

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// The scheme.
    pub scheme: Scheme,
    /// The record form.
    pub form: RecordForm,
    /// Number of records at the end.
    pub records: u64,
    /// Number of inserts between two samples.
    pub every: u64,
    /// Stash buckets per segment; one table for each number.
    pub stash_buckets: Vec<u32>,
    /// Seed of the keys and the hash function.
    pub seed: u64,
}

/// The greatest number of samples of a table.
const SAMPLES_MAX: u64 = 1_000_000;

impl Options {
    fn check(&self) -> Fallible {
        limits::range("records", self.records, 1..=limits::RECORDS_MAX)?;
        limits::fits_memory(self.records, 16)?;
        limits::range("every", self.every, 1..=self.records)?;
        let samples = self.records / self.every;
        if samples > SAMPLES_MAX {
            let why = format!("--every {}: {samples} samples, at most {SAMPLES_MAX}", self.every);
            return Err(limits::refused(why));
        }
        limits::each_once("stash", &self.stash_buckets)?;
        self.stash_buckets.iter().try_for_each(|&stash| systems::check_stash(self.scheme, stash))
    }

    /// Returns the setup that a pool on a file would have, without a directory.
    fn setup(&self) -> Setup {
        let Options { scheme, form, seed, .. } = *self;
        Setup {
            stash_buckets: self.stash_buckets.first().copied().unwrap_or_default(),
            ..Setup::plain(scheme, form, "".into(), seed)
        }
    }
}

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Stash buckets per segment.
    pub stash_buckets: u32,
    /// Number of records.
    pub records: u64,
    /// Number of record slots.
    pub slots: u64,
    /// Records per slot.
    pub load_factor: f64,
}

/// A summary of the samples of one table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// Stash buckets per segment.
    pub stash_buckets: u32,
    /// Number of samples.
    pub samples: u64,
    /// The highest sample.
    pub peak: f64,
    /// Number of records at the highest sample.
    pub peak_records: u64,
    /// The lowest sample after the first tenth of the samples.
    pub low: f64,
    /// The mean of all samples.
    pub mean: f64,
}

impl Peak {
    fn of(samples: &[Sample]) -> Option<Peak> {
        let peak = samples.iter().max_by(|a, b| a.load_factor.total_cmp(&b.load_factor))?;
        let late = &samples[samples.len() / 10..];
        let low = late.iter().map(|s| s.load_factor).fold(f64::INFINITY, f64::min);
        let sum: f64 = samples.iter().map(|s| s.load_factor).sum();
        Some(Peak {
            stash_buckets: peak.stash_buckets,
            samples: samples.len() as u64,
            peak: peak.load_factor,
            peak_records: peak.records,
            low,
            mean: rounded(sum / samples.len() as f64, 4),
        })
    }
}

/// Measures the load factors, and prints all samples (as JSON) and the peaks.
///
/// # Errors
/// If an option is invalid, or if an insert fails.
pub fn run(options: &Options, report: &mut Report) -> Fallible<Vec<Sample>> {
    options.check()?;
    #[derive(Serialize)]
    struct Own {
        records: u64,
        every: u64,
    }
    let stash_buckets = options.stash_buckets.clone();
    let run = Run::in_memory("load-factor", &options.setup(), "memory of the process");
    let own = Own { records: options.records, every: options.every };
    report.run(&Run { stash_buckets, ..run }, &own)?;
    let mut all = Vec::new();
    for &stash_buckets in &options.stash_buckets {
        let samples = grow(options, stash_buckets)?;
        for sample in &samples {
            report.row("load_factor", sample)?;
        }
        if let Some(peak) = Peak::of(&samples) {
            report.row("peak", &peak)?;
        }
        all.extend(samples);
    }
    report.table(
        "peak",
        &[
            ("stash buckets", "/stash_buckets", Show::Count),
            ("samples", "/samples", Show::Count),
            ("peak", "/peak", Show::Decimal(3)),
            ("at records", "/peak_records", Show::Count),
            ("lowest", "/low", Show::Decimal(3)),
            ("mean", "/mean", Show::Decimal(3)),
        ],
    )?;
    Ok(all)
}

fn grow(options: &Options, stash_buckets: u32) -> Fallible<Vec<Sample>> {
    let seed = options.seed;
    // A pool in memory suffices, because nothing is timed here.
    let pool = PoolOptions::new().identity(seed, 1).background(false).anonymous()?;
    let setup = Setup::plain(options.scheme, options.form, "".into(), seed);
    let map_options = map_options(&Setup { stash_buckets, ..setup });
    let (key_schema, value_schema) = match options.form {
        RecordForm::Inline => ("u64", "u64"),
        RecordForm::Bytes => ("bytes", "bytes"),
    };
    let map = pool.raw_map_with("bench", key_schema, value_schema, &map_options)?;
    let keys = Keys::new(seed);
    let mut hand = Hand::new(8, 8, Reads::Owned);
    let mut samples = Vec::new();
    for number in 0..options.records {
        let key = keys.key(number);
        let (key, value) = hand.pair_bytes(key, value(key, 0));
        if !map.insert(key, value)? {
            return Err(format!("record {number} was there before it was inserted").into());
        }
        let records = number + 1;
        if records.is_multiple_of(options.every) {
            // What the background thread does for users; clevel keeps old levels until then.
            while pool.step()? {}
            let slots = map.stats()?.slots;
            let load_factor = rounded(records as f64 / slots as f64, 4);
            samples.push(Sample { stash_buckets, records, slots, load_factor });
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_highest_sample() {
        let sample =
            |records, load_factor| Sample { stash_buckets: 2, records, slots: 100, load_factor };
        let peak = Peak::of(&[sample(1, 0.5), sample(2, 0.9), sample(3, 0.4)]).unwrap();
        assert_eq!((peak.peak, peak.peak_records, peak.low, peak.mean), (0.9, 2, 0.4, 0.6));
        assert_eq!(Peak::of(&[]), None);
    }
}
