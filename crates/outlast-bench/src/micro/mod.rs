//! `micro`: one operation at a time, compared with maps in DRAM.
//!
//! A *turn* is one system with one number of threads, starting empty: load, insert, the reads,
//! updates and mixes, remove. A *round* is one turn of each system. A ratio to a rival is computed
//! within a round, between turns that are close in time. Latencies come from separate rounds, in
//! which a clock is read around every operation. Throughput is never taken from those rounds.

mod phase;
mod rows;

pub use phase::{Order, Phase};
pub use rows::{Counted, Mops, Ratio, Row};

use crate::Fallible;
use crate::latency::{self, Clock, Latency, Unwatched, Watch};
use crate::limits;
use crate::progress::Progress;
use crate::report::{Report, Show};
use crate::run::Run;
use crate::systems::{self, Job, Kind, Room, Setup, System};
use crate::team::{self, Taken};
use crate::usage;
use phase::Work;
use serde::Serialize;
use std::collections::HashMap;

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// The setup of the systems.
    pub setup: Setup,
    /// Number of records at the end of the insert phase, which begins with a tenth of them.
    pub records: u64,
    /// Number of operations in every other phase; 0 for as many as there are records.
    pub operations: u64,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Number of rounds without a clock.
    pub rounds: usize,
    /// Number of rounds with a clock.
    pub latency_rounds: usize,
    /// The greatest number of operations of a phase in the rounds with a clock, except for inserts
    /// and removals.
    pub latency_operations: u64,
    /// The systems to compare with.
    pub rivals: Vec<Kind>,
    /// The phases to measure. The load and the insert phase always run.
    pub phases: Vec<Phase>,
}

impl Options {
    /// Number of operations in the phases that do not cover all records. `watched` says whether a
    /// clock is read.
    fn operations(&self, watched: bool) -> u64 {
        let operations = if self.operations == 0 { self.records } else { self.operations };
        if watched { operations.min(self.latency_operations) } else { operations }
    }

    /// The phases of a turn of the system `kind`.
    fn phases(&self, kind: Kind) -> impl Iterator<Item = Phase> {
        let always = |phase| matches!(phase, Phase::Load | Phase::Insert);
        let is_ordered = kind.is_ordered(&self.setup);
        let can = move |phase| phase != Phase::Scan || is_ordered;
        let all = Phase::ALL.iter().copied();
        all.filter(move |p| always(*p) || (self.phases.contains(p) && can(*p)))
    }

    /// Number of operations in all turns, with and without a clock, for the progress bar.
    fn all_operations(&self, kinds: &[Kind]) -> u64 {
        let of_turn = |kind: Kind, watched| -> u64 {
            let work =
                |phase| Work::new(phase, self.records, 0, self.operations(watched), &self.setup);
            self.phases(kind).map(|phase| work(phase).operations()).sum()
        };
        let rounds = |&kind: &Kind| {
            self.rounds as u64 * of_turn(kind, false)
                + self.latency_rounds as u64 * of_turn(kind, true)
        };
        let all: u64 = kinds.iter().map(rounds).sum();
        all.saturating_mul(self.threads.len() as u64)
    }

    fn check(&self) -> Fallible {
        self.setup.check()?;
        self.setup.check_records(self.records, 1000)?;
        limits::range("operations", self.operations, 0..=limits::RECORDS_MAX)?;
        limits::range("rounds", self.rounds, 1..=limits::ROUNDS_MAX)?;
        limits::range("latency-rounds", self.latency_rounds, 0..=limits::ROUNDS_MAX)?;
        let timed = 1..=limits::RECORDS_MAX;
        limits::range("latency-operations", self.latency_operations, timed)?;
        limits::threads(&self.threads)?;
        limits::each_once("rival", &self.rivals)?;
        if self.phases.contains(&Phase::GetMany) != self.phases.contains(&Phase::Gets) {
            let why = "--phases: get_many and gets are measured beside each other";
            return Err(limits::refused(why));
        }
        let mut kinds = [Kind::Outlast].into_iter().chain(self.rivals.iter().copied());
        let asked = self.phases.contains(&Phase::Scan) && self.phases.len() < Phase::ALL.len();
        if asked && !kinds.any(|kind| kind.is_ordered(&self.setup)) {
            let why = "--phases scan: none of these keeps keys in order (--scheme phast does)";
            return Err(limits::refused(why));
        }
        Ok(())
    }
}

/// The fields that the run row of this command has in addition to those of other commands.
#[derive(Serialize)]
struct Own<'o> {
    reads: crate::form::Reads,
    records: u64,
    operations: u64,
    rounds: usize,
    latency_rounds: usize,
    latency_operations: u64,
    pinned: bool,
    clock_ns: u64,
    systems: Vec<&'static str>,
    threads: &'o [usize],
    batched: bool,
}

/// The results of one turn.
#[derive(Debug, Clone)]
struct Turn {
    phases: Vec<(Phase, Observed)>,
}

/// The results of one phase of one turn.
#[derive(Debug, Clone)]
struct Observed {
    operations: u64,
    mops: f64,
    /// Processor time per operation, in nanoseconds.
    cpu_ns: f64,
    latency: Option<Latency>,
    /// Number of records at the end of the phase.
    records: u64,
    room: Room,
    heap_bytes: Option<u64>,
    anon_huge_kb: Option<u64>,
}

impl Observed {
    /// Bytes of DRAM: the heap, and what the system keeps outside it.
    fn dram_bytes(&self) -> Option<u64> {
        Some(self.heap_bytes? + self.room.shadow_bytes.unwrap_or(0))
    }

    /// Kilobytes of huge pages in memory other than the pool's.
    fn heap_huge_kb(&self) -> Option<u64> {
        let shadow_kb = self.room.shadow_huge_bytes.unwrap_or(0) / 1024;
        Some(self.anon_huge_kb?.saturating_sub(shadow_kb))
    }
}

struct OneTurn<'o> {
    options: &'o Options,
    kind: Kind,
    /// The setup of this turn's system.
    setup: Setup,
    threads: usize,
    watched: bool,
    heap_before: Option<u64>,
    progress: &'o Progress,
}

impl Job for OneTurn<'_> {
    type Output = Turn;

    fn run<S: System>(self, system: &S) -> Fallible<Turn> {
        let mut phases = Vec::new();
        let mut new = 0;
        for phase in self.options.phases(self.kind) {
            let observed = self.observe(system, phase, &mut new)?;
            self.progress.done(observed.operations);
            if phase != Phase::Load {
                phases.push((phase, observed));
            }
        }
        Ok(Turn { phases })
    }
}

impl OneTurn<'_> {
    /// Runs a phase and observes it. `new` is how many records the turn has inserted so far; the
    /// phase's own inserts are added to it.
    fn observe<S: System>(&self, system: &S, phase: Phase, new: &mut u64) -> Fallible<Observed> {
        let operations = self.options.operations(self.watched);
        let records = self.options.records;
        let work = Work::new(phase, records, *new, operations, &self.setup).prepared();
        if phase.repeatable() {
            self.pass(system, &work.warm_up(), || Ok(Unwatched))?;
        }
        let (taken, latency) = if self.watched {
            let (taken, clocks) = self.pass(system, &work, Clock::new)?;
            let mut all = Latency::new()?;
            for clock in &clocks {
                all.add(&clock.latency)?;
            }
            (taken, Some(all))
        } else {
            (self.pass(system, &work, || Ok(Unwatched))?.0, None)
        };
        *new = work.new_after();
        let held = if phase == Phase::Remove { *new - records } else { *new };
        Ok(Observed {
            operations: work.operations(),
            mops: work.operations() as f64 / taken.time.as_secs_f64().max(1e-9) / 1e6,
            cpu_ns: taken.cpu_ns as f64 / work.operations() as f64,
            latency,
            records: held,
            room: system.room(held)?,
            heap_bytes: usage::heap_bytes()
                .zip(self.heap_before)
                .map(|(now, before)| now.saturating_sub(before)),
            anon_huge_kb: usage::anon_huge_kb(),
        })
    }

    /// Does the work with all threads. Returns the time that they took, and each thread's watch.
    fn pass<S: System, W: Watch + Send>(
        &self,
        system: &S,
        work: &Work,
        watch: impl Fn() -> Fallible<W> + Sync,
    ) -> Fallible<(Taken, Vec<W>)> {
        let (watches, taken) = team::run(self.threads, |thread| {
            let mut watch = watch()?;
            work.run(system, self.threads, thread, &mut watch)?;
            Ok(watch)
        })?;
        Ok((taken, watches))
    }
}

/// All turns of each system with one number of threads.
type Turns = HashMap<Kind, Vec<Turn>>;

/// The latency distributions of a run, for plots: phase, threads, system.
pub type Distributions = Vec<(Phase, usize, Kind, Latency)>;

/// Measures all systems, and prints a row for each phase, number of threads and system.
///
/// # Errors
/// If an option is invalid, or if a system fails or returns a wrong result.
pub fn run(options: &Options, report: &mut Report) -> Fallible<(Vec<Row>, Distributions)> {
    options.check()?;
    let mut kinds = vec![Kind::Outlast];
    kinds.extend(options.rivals.iter().copied());
    let run = Run::on_files("micro", &options.setup, &[options.setup.scheme])?;
    report.run(&run, &describe(options, &kinds)?)?;
    let mut all_rows = Vec::new();
    let mut distributions = Distributions::new();
    let progress = Progress::new(options.all_operations(&kinds));
    for &threads in &options.threads {
        let mut fast = Turns::new();
        let mut watched = Turns::new();
        for round in 0..options.rounds + options.latency_rounds {
            let with_clock = round >= options.rounds;
            for &kind in &kinds {
                usage::trim_heap();
                let turn = OneTurn {
                    options,
                    kind,
                    setup: kind.setup(&options.setup),
                    threads,
                    watched: with_clock,
                    heap_before: usage::heap_bytes(),
                    progress: &progress,
                };
                let all = options.rounds + options.latency_rounds;
                let timed = if with_clock { ", timed" } else { "" };
                progress.next(&format!(
                    "threads {threads}, round {} of {all}{timed}: {kind}",
                    round + 1
                ));
                let turn = systems::with(kind, &options.setup, turn)
                    .map_err(|e| format!("{kind}, {threads} threads: {e}"))?;
                if with_clock { &mut watched } else { &mut fast }
                    .entry(kind)
                    .or_default()
                    .push(turn);
            }
        }
        for phase in Phase::ALL.iter().copied() {
            for &kind in &kinds {
                let Some(row) = rows::row(options, phase, threads, kind, &fast, &watched)? else {
                    continue;
                };
                report.row("phase", &row)?;
                all_rows.push(row);
                if let Some(latency) = rows::latency_of(&watched, kind, phase)? {
                    distributions.push((phase, threads, kind, latency));
                }
            }
        }
    }
    drop(progress);
    print_table(options, report)?;
    Ok((all_rows, distributions))
}

fn describe<'o>(options: &'o Options, kinds: &[Kind]) -> Fallible<Own<'o>> {
    Ok(Own {
        reads: options.setup.reads,
        records: options.records,
        operations: options.operations(false),
        rounds: options.rounds,
        latency_rounds: options.latency_rounds,
        latency_operations: options.latency_operations,
        pinned: options.threads.iter().all(|&t| t <= team::cores().len()),
        clock_ns: latency::clock_ns()?,
        systems: kinds.iter().map(|kind| kind.name()).collect(),
        threads: &options.threads,
        batched: options.setup.batched,
    })
}

fn print_table(options: &Options, report: &Report) -> Fallible {
    let ratios: Vec<(String, String)> = options
        .rivals
        .iter()
        .map(|kind| (format!("/ {kind}"), format!("/ratio_to_rival/{kind}/median")))
        .collect();
    let mut columns = vec![
        ("phase", "/phase", Show::Text),
        ("threads", "/threads", Show::Count),
        ("system", "/system", Show::Text),
        ("scheme", "/scheme", Show::Text),
        ("Mops", "/mops", Show::Decimal(2)),
        ("min", "/mops_min", Show::Decimal(2)),
        ("max", "/mops_max", Show::Decimal(2)),
    ];
    columns.extend(
        ratios
            .iter()
            .map(|(heading, pointer)| (heading.as_str(), pointer.as_str(), Show::Decimal(2))),
    );
    columns.extend([
        ("/ gets", "/ratio_to_gets/median", Show::Decimal(2)),
        ("CPU ns", "/cpu_ns_per_operation", Show::Decimal(0)),
        ("p50", "/p50_ns", Show::Nanoseconds),
        ("p99", "/p99_ns", Show::Nanoseconds),
        ("p99.9", "/p999_ns", Show::Nanoseconds),
        ("p99.99", "/p9999_ns", Show::Nanoseconds),
        ("max", "/max_ns", Show::Nanoseconds),
        ("load", "/load_factor", Show::Decimal(2)),
        ("pool B/rec", "/bytes_per_record/pool", Show::Decimal(1)),
        ("DRAM B/rec", "/bytes_per_record/dram", Show::Decimal(1)),
        ("huge MB", "/huge_pages/pool_mb", Show::Count),
    ]);
    let model = options.setup.medium.is_model();
    let label = if model { "MODEL, not a measurement of real PM. " } else { "" };
    let systems = "Guarantees: outlast ";
    report.note(&format!(
        "{label}{systems}{}; maps in DRAM nothing. Ratios: outlast to the rival, median of rounds.",
        systems::guarantee(Kind::Outlast, &options.setup)
    ))?;
    report.table("phase", &columns)
}
