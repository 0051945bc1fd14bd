//! Computes rows from turns: medians, spreads and ratios.

use super::{Observed, Options, Phase, Turns};
use crate::Fallible;
use crate::form::Reads;
use crate::latency::{Latency, Percentiles};
use crate::report::{median, rounded};
use crate::systems::{self, Kind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Throughput in million operations per second: the median of the rounds and their spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Mops {
    /// Median of the rounds.
    pub mops: f64,
    /// The slowest round.
    pub mops_min: f64,
    /// The fastest round.
    pub mops_max: f64,
}

impl Mops {
    /// Summarizes the figures of the rounds. Returns `None` if there are none.
    pub fn of(rounds: &[f64]) -> Option<Mops> {
        let min = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let max = rounds.iter().copied().fold(0.0, f64::max);
        let [mops, mops_min, mops_max] = [median(rounds)?, min, max].map(|m| rounded(m, 6));
        Some(Mops { mops, mops_min, mops_max })
    }
}

/// How fast one system is compared with another: above 1, the first one is faster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Ratio of the medians over all rounds.
    pub of_medians: f64,
    /// Median of the ratios within each round.
    pub median: f64,
    /// The worst round.
    pub min: f64,
    /// The best round.
    pub max: f64,
}

impl Ratio {
    /// Compares the figures of two systems, round by round. Returns `None` if either has none.
    pub fn of(ours: &[f64], theirs: &[f64]) -> Option<Ratio> {
        let rounds: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
        let of_medians = median(ours)? / median(theirs)?;
        let min = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let max = rounds.iter().copied().fold(0.0, f64::max);
        let [of_medians, median, min, max] =
            [of_medians, median(&rounds)?, min, max].map(|ratio| rounded(ratio, 4));
        Some(Ratio { of_medians, median, min, max })
    }
}

/// Bytes per record.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// In the pool's file, without its free pages.
    pub pool: Option<f64>,
    /// In the pool's file, with its free pages.
    pub file: Option<f64>,
    /// In DRAM: the sum of the next two.
    pub dram: Option<f64>,
    /// In the heap, as the C library counts it: the increase since the moment before the system was
    /// created.
    pub heap: Option<f64>,
    /// In the pool's shadow, which holds volatile metadata of its blocks outside the heap: resident
    /// memory as the kernel counts it, in whole pages.
    pub shadow: Option<f64>,
    /// In DRAM, as the index itself reports.
    pub index_dram: Option<f64>,
}

/// Memory mapped with huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Huge {
    /// In the pool's file.
    pub pool_kb: Option<u64>,
    /// The same in megabytes, for tables.
    pub pool_mb: Option<u64>,
    /// In the DRAM that the pool keeps outside the heap.
    pub shadow_kb: Option<u64>,
    /// In all other memory of the process, mainly its heap.
    pub heap_kb: Option<u64>,
}

/// One row: a phase, with a number of threads, of a system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The phase.
    pub phase: Phase,
    /// Number of threads.
    pub threads: usize,
    /// The system.
    pub system: String,
    /// outlast's scheme; `null` for maps in DRAM.
    pub scheme: Option<String>,
    /// What an operation survives once it has returned.
    pub guarantee: String,
    /// The pool's medium; `null` for maps in DRAM.
    pub medium: Option<String>,
    /// Whether delays were added to emulate another medium.
    pub model: bool,
    /// The record form.
    pub record: String,
    /// Key size in bytes.
    pub key_size: usize,
    /// Value size in bytes.
    pub value_size: usize,
    /// How reads return values.
    pub reads: String,
    /// Number of records at the end of the phase.
    pub records: u64,
    /// Number of operations per round.
    pub operations: u64,
    /// Number of rounds.
    pub rounds: usize,
    /// Throughput.
    #[serde(flatten)]
    pub mops: Mops,
    /// Processor time per operation in nanoseconds, median of the rounds. This remains meaningful
    /// if other programs ran at the same time.
    pub cpu_ns_per_operation: f64,
    /// Latency; for `get_many`, `gets` and batched changes, of 16 keys.
    #[serde(flatten)]
    pub latency: Option<Percentiles>,
    /// Records per slot.
    pub load_factor: Option<f64>,
    /// Bytes per record; `None` if no record is left.
    pub bytes_per_record: Option<Counted>,
    /// Huge pages.
    pub huge_pages: Huge,
    /// For `outlast`: the ratio to each rival.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub ratio_to_rival: BTreeMap<String, Ratio>,
    /// For `get_many`: the ratio to the same lookups with one key per call.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ratio_to_gets: Option<Ratio>,
}

fn observed<'t>(turns: &'t Turns, kind: Kind, phase: Phase) -> Vec<&'t Observed> {
    let turns = turns.get(&kind).map(Vec::as_slice).unwrap_or_default();
    let of_phase = |turn: &'t super::Turn| turn.phases.iter().find(|(p, _)| *p == phase);
    turns.iter().filter_map(of_phase).map(|(_, observed)| observed).collect()
}

fn rounds_of(turns: &Turns, kind: Kind, phase: Phase) -> Vec<f64> {
    observed(turns, kind, phase).iter().map(|o| o.mops).collect()
}

/// Returns the times of all rounds with a clock together, or `None` if there are none.
pub(super) fn latency_of(watched: &Turns, kind: Kind, phase: Phase) -> Fallible<Option<Latency>> {
    let mut all: Option<Latency> = None;
    for latency in observed(watched, kind, phase).iter().filter_map(|o| o.latency.as_ref()) {
        match &mut all {
            None => all = Some(latency.clone()),
            Some(all) => all.add(latency)?,
        }
    }
    Ok(all)
}

/// Returns the row of a phase, if it ran.
pub(super) fn row(
    options: &Options,
    phase: Phase,
    threads: usize,
    kind: Kind,
    fast: &Turns,
    watched: &Turns,
) -> Fallible<Option<Row>> {
    let seen = observed(fast, kind, phase);
    let rounds = rounds_of(fast, kind, phase);
    let (Some(last), Some(mops)) = (seen.last(), Mops::of(&rounds)) else { return Ok(None) };
    let setup = &kind.setup(&options.setup);
    let records = last.records;
    let per_record = |bytes: Option<u64>| bytes.map(|b| rounded(b as f64 / records as f64, 2));
    let scheme = kind.scheme(setup);
    let ours = scheme.is_some();
    let ratio = |rival: &Kind| {
        let ratio = Ratio::of(&rounds, &rounds_of(fast, *rival, phase));
        ratio.map(|ratio| (rival.name().to_owned(), ratio))
    };
    Ok(Some(Row {
        phase,
        threads,
        system: kind.name().into(),
        scheme: scheme.map(|scheme| scheme.name().into()),
        guarantee: systems::guarantee(kind, setup),
        medium: ours.then(|| setup.medium.to_string()),
        model: ours && setup.medium.is_model(),
        record: setup.form.to_string(),
        key_size: setup.key_bytes,
        value_size: setup.value_bytes,
        reads: match setup.reads {
            Reads::Owned => "owned".into(),
            Reads::Borrowed => "borrowed".into(),
        },
        records,
        operations: last.operations,
        rounds: rounds.len(),
        mops,
        cpu_ns_per_operation: rounded(
            median(&seen.iter().map(|o| o.cpu_ns).collect::<Vec<_>>()).unwrap_or(0.0),
            2,
        ),
        latency: latency_of(watched, kind, phase)?.map(|latency| latency.percentiles()),
        load_factor: last.room.load_factor.map(|load| rounded(load, 4)),
        bytes_per_record: (records > 0).then(|| Counted {
            pool: per_record(last.room.pool_bytes),
            file: per_record(last.room.file_bytes),
            dram: per_record(last.dram_bytes()),
            heap: per_record(last.heap_bytes),
            shadow: per_record(last.room.shadow_bytes),
            index_dram: per_record(last.room.index_dram_bytes),
        }),
        huge_pages: Huge {
            pool_kb: last.room.huge_bytes.map(|bytes| bytes / 1024),
            pool_mb: last.room.huge_bytes.map(|bytes| bytes >> 20),
            shadow_kb: last.room.shadow_huge_bytes.map(|bytes| bytes / 1024),
            heap_kb: last.heap_huge_kb(),
        },
        ratio_to_rival: if kind == Kind::Outlast {
            options.rivals.iter().filter_map(ratio).collect()
        } else {
            BTreeMap::new()
        },
        ratio_to_gets: (phase == Phase::GetMany)
            .then(|| Ratio::of(&rounds, &rounds_of(fast, kind, Phase::Gets)))
            .flatten(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_rounds_and_of_medians() {
        let ratio = Ratio::of(&[2.0, 4.0, 9.0], &[1.0, 8.0, 3.0]).unwrap();
        // Ratios of the rounds: 2, 0.5, 3; medians: 4 and 3.
        let expected = Ratio { of_medians: 1.3333, median: 2.0, min: 0.5, max: 3.0 };
        assert_eq!(ratio, expected);
        assert_eq!(Ratio::of(&[1.0], &[]), None);
    }

    #[test]
    fn the_spread_is_that_of_the_rounds() {
        let mops = Mops::of(&[3.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!((mops.mops, mops.mops_min, mops.mops_max), (2.5, 1.0, 10.0));
        assert_eq!(Mops::of(&[]), None);
    }
}
