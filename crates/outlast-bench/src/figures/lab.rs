//! Measurements, each made once for all figures that use it.

use super::Options;
use super::counted::{self, Costs, Counting, Keys, scaled_sizes};
use super::experiments::micros::exchanges;
use super::scaling::Scaling;
use super::subject::{Memory, Subject, System};
use super::turns::{Clock, Phase, Took, Work, turn, value};
use crate::latency::Latency;
use crate::progress::Progress;
use crate::report::median;
use crate::{Fallible, team};
use outlast::internals::pmem::FlushMode;
use outlast_peers::workloads::draw::{Draw, ScrambledZipfian};
use outlast_peers::workloads::keys::Spread;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Instant;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Scale {
    /// Seconds: for tests of the catalogue. Its verdicts mean little.
    Test,
    /// Within 20 minutes on two cores.
    Small,
    /// Two million records.
    Medium,
    /// Ten million records.
    Large,
}

impl Scale {
    /// Records of a run.
    pub fn records(self) -> u64 {
        match self {
            Scale::Test => 3_000,
            Scale::Small => 200_000,
            Scale::Medium => 2_000_000,
            Scale::Large => 10_000_000,
        }
    }

    /// Records of a counted run.
    pub fn counted(self) -> u64 {
        match self {
            Scale::Test => 2_000,
            Scale::Small => 60_000,
            Scale::Medium => 250_000,
            Scale::Large => 1_000_000,
        }
    }

    /// Rounds of a measurement.
    pub fn rounds(self) -> usize {
        match self {
            Scale::Test => 1,
            Scale::Small | Scale::Medium => 3,
            Scale::Large => 5,
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scale::Test => "test",
            Scale::Small => "small",
            Scale::Medium => "medium",
            Scale::Large => "large",
        }
    }
}

/// A kind of run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Runs {
    /// Flushes executed, uniform keys, so many threads.
    Flushed(usize),
    /// No flushes, one thread.
    Unflushed,
    /// Flushes executed, keys in one hundredth of the key space, one thread.
    Skewed,
    /// Flushes executed, ten times the records, one thread: inserts, lookups and updates, one round.
    Tenfold,
}

/// The kinds of operations whose times are measured one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timed {
    /// Inserts.
    Insert,
    /// Zipfian lookups.
    Read,
    /// Half zipfian lookups, half zipfian updates: YCSB's A.
    ReadOrUpdate,
}

/// The most records of a run with ten times the records, so that the largest structure fits into 16 GB.
const TENFOLD_MAX: u64 = 50_000_000;

/// What was measured so far, and how to measure more.
pub struct Lab {
    /// How much is measured.
    pub scale: Scale,
    /// Seed of keys and draws.
    pub seed: u64,
    /// Where pools are made.
    pub dir: PathBuf,
    /// How lines are flushed.
    pub flush: FlushMode,
    progress: Progress,
    turns: HashMap<(String, Runs, Phase), Took>,
    costs: HashMap<String, Costs>,
    latencies: HashMap<(String, usize), [Latency; 3]>,
    exchange_ns: Option<f64>,
}

impl Lab {
    /// Creates a laboratory in which nothing was measured. `steps` is the number of its figures.
    pub fn new(options: &Options, steps: u64) -> Lab {
        let Options { scale, seed, flush, dir } = options.clone();
        let progress = Progress::new(steps);
        let (turns, costs, latencies) = Default::default();
        Lab { scale, seed, dir, flush, progress, turns, costs, latencies, exchange_ns: None }
    }

    /// Memory whose flushes are executed.
    pub fn memory(&self) -> Memory {
        Memory::Flushes { mode: self.flush, line_ns: 0 }
    }

    /// Slots that a growing table begins with: as many, in proportion to its records, as in clevel hashing's
    /// evaluation (4.1), which has 64 thousand for 16 million.
    fn first_slots(&self) -> u64 {
        (self.scale.records() / 256).next_power_of_two().max(1024)
    }

    /// Shows what is measured now.
    pub fn say(&self, what: &str) {
        self.progress.next(what);
    }

    /// One more figure is done.
    pub fn done(&self) {
        self.progress.done(1);
    }

    /// Runs the systems that have not run yet in this way, in turns.
    ///
    /// # Errors
    /// Those of the runs.
    pub fn run(&mut self, names: &[&str], runs: &[Runs]) -> Fallible {
        let mut wanted = Vec::new();
        for &name in names {
            for &runs in runs {
                let probe = (name.to_owned(), runs, Phase::Insert);
                if !self.turns.contains_key(&probe) && !wanted.contains(&(name, runs)) {
                    wanted.push((name, runs));
                }
            }
        }
        let rounds = self.scale.rounds();
        let mut took: HashMap<(String, Runs, Phase), Vec<Took>> = HashMap::new();
        for round in 1..=rounds {
            for &(name, runs) in &wanted {
                let needed = match runs {
                    Runs::Unflushed => rounds.div_ceil(2),
                    Runs::Tenfold => 1,
                    Runs::Flushed(_) | Runs::Skewed => rounds,
                };
                if round > needed {
                    continue;
                }
                self.say(&format!("{name}, {runs:?}, round {round} of {rounds}"));
                for (phase, one) in self.one(name, runs)? {
                    took.entry((name.to_owned(), runs, phase)).or_default().push(one);
                }
            }
        }
        for (key, all) in took {
            let of = |pick: fn(&Took) -> f64| {
                median(&all.iter().map(pick).collect::<Vec<_>>()).unwrap_or(f64::NAN)
            };
            let took = Took { cpu_ns: of(|took| took.cpu_ns), mops: of(|took| took.mops) };
            self.turns.insert(key, took);
        }
        Ok(())
    }

    fn one(&self, name: &str, runs: Runs) -> Fallible<Vec<(Phase, Took)>> {
        let (threads, memory, spread) = match runs {
            Runs::Flushed(threads) => (threads, self.memory(), Spread::Uniform),
            Runs::Unflushed => (1, Memory::NoFlush, Spread::Uniform),
            Runs::Skewed => (1, self.memory(), Spread::Hundredth),
            Runs::Tenfold => (1, self.memory(), Spread::Uniform),
        };
        let operations = self.scale.records();
        let (records, room) = match runs {
            Runs::Tenfold => (operations.saturating_mul(10).min(TENFOLD_MAX), 1),
            // Room for what the mixes insert.
            _ => (operations, 3),
        };
        let work = Work { records, operations, spread, seed: self.seed, threads };
        let subject = System::named(name).create(&memory, records * room, self.first_slots())?;
        let phases: &[Phase] = match runs {
            Runs::Tenfold => &[Phase::Insert, Phase::Hit, Phase::Update],
            _ if subject.is_ordered() => &Phase::ORDERED,
            _ => &Phase::HASH,
        };
        turn(&*subject, &work, phases)
    }

    /// Million operations a second.
    ///
    /// # Errors
    /// Those of [`run`](Self::run); if the system has no such phase.
    pub fn mops(&mut self, name: &str, runs: Runs, phase: Phase) -> Fallible<f64> {
        Ok(self.took(name, runs, phase)?.mops)
    }

    /// What a phase took.
    ///
    /// # Errors
    /// Those of [`run`](Self::run); if the system has no such phase.
    pub fn took(&mut self, name: &str, runs: Runs, phase: Phase) -> Fallible<Took> {
        self.run(&[name], &[runs])?;
        let took = self.turns.get(&(name.to_owned(), runs, phase));
        Ok(*took.ok_or_else(|| format!("{name} has no phase {phase:?}"))?)
    }

    /// The costs of a system's operations.
    ///
    /// # Errors
    /// Those of counting.
    pub fn costs(&mut self, name: &str) -> Fallible<Costs> {
        if let Some(costs) = self.costs.get(name) {
            return Ok(*costs);
        }
        self.say(&format!("{name}, counted"));
        let records = self.scale.counted();
        let counting = Counting {
            records,
            operations: records / 4,
            slots: 1024,
            before: 1.0 / 3.0,
            sizes: scaled_sizes(records),
            keys: Keys::Spread(Spread::Uniform),
            seed: self.seed,
        };
        let costs = counted::count(&System::named(name), &counting)?;
        self.costs.insert(name.into(), costs);
        Ok(costs)
    }

    /// The model of a phase on a machine with so many modules of Optane.
    ///
    /// # Errors
    /// Those of the measurements and the counts.
    pub fn scaling(&mut self, name: &str, phase: Phase, modules: f64) -> Fallible<Scaling> {
        let costs = self.costs(name)?;
        let reads = |percent: f64, other| costs.hit.mixed(percent / 100.0, other);
        let cost = match phase {
            Phase::Insert => costs.insert,
            Phase::Hit | Phase::Reads(100) | Phase::Ycsb('C') => costs.hit,
            Phase::Miss => costs.miss,
            Phase::Update => costs.update,
            Phase::Reads(percent) => reads(percent.into(), costs.insert),
            Phase::FourToOne => reads(80.0, costs.insert),
            Phase::Ycsb('A' | 'F') => reads(50.0, costs.update),
            Phase::Ycsb('B') => reads(95.0, costs.update),
            Phase::Ycsb('D') => reads(95.0, costs.insert),
            Phase::Remove => costs.remove,
            Phase::Scan | Phase::Ycsb(_) => return Err("no model of scans".into()),
        };
        let base_ns = self.took(name, Runs::Unflushed, phase)?.cpu_ns;
        Ok(Scaling::new(base_ns, &cost, self.exchange_ns()?, modules))
    }

    /// Nanoseconds of an exchange of a word that another core has just exchanged, measured once.
    ///
    /// # Errors
    /// If a thread cannot be created.
    pub fn exchange_ns(&mut self) -> Fallible<f64> {
        if let Some(ns) = self.exchange_ns {
            return Ok(ns);
        }
        self.say("exchanges");
        let ns = exchanges(self.scale.records().min(500_000))?;
        self.exchange_ns = Some(ns);
        Ok(ns)
    }

    /// The distribution of the times of operations, with so many threads.
    ///
    /// # Errors
    /// If an operation fails.
    pub fn latency(&mut self, name: &str, threads: usize, timed: Timed) -> Fallible<Latency> {
        let key = (name.to_owned(), threads);
        if !self.latencies.contains_key(&key) {
            self.say(&format!("{name}, times of operations, {threads} threads"));
            let subject = System::named(name).create(
                &self.memory(),
                self.scale.records(),
                self.first_slots(),
            )?;
            let all = latencies(&*subject, self.scale.records(), threads, self.seed)?;
            self.latencies.insert(key.clone(), all);
        }
        Ok(self.latencies[&key][timed as usize].clone())
    }
}

/// Measures the times of operations, in the order of [`Timed`].
fn latencies(
    subject: &dyn Subject,
    records: u64,
    threads: usize,
    seed: u64,
) -> Fallible<[Latency; 3]> {
    let key = |number: u64| Spread::Uniform.key(number);
    let timed = |one: &(dyn Fn(u64, &mut Draw) -> Fallible<bool> + Sync)| {
        let (all, _) = team::run(threads, |thread| {
            let (first, count) = team::share(records, threads, thread);
            let mut draw = Draw::new(seed ^ thread as u64);
            let mut latency = Latency::new()?;
            for i in first..first + count {
                let start = Instant::now();
                one(i, &mut draw)?;
                latency.record(start.elapsed().as_nanos() as u64);
                if thread == 0 && i % 16 == 0 {
                    subject.step()?;
                }
            }
            Ok(latency)
        })?;
        let mut sum = Latency::new()?;
        all.iter().try_for_each(|one| sum.add(one))?;
        Fallible::Ok(sum)
    };
    let inserts = timed(&|i, _| subject.insert(key(i), value(key(i))))?;
    let zipfian = ScrambledZipfian::default();
    let reads = timed(&|_, draw| {
        let found = subject.get(key(zipfian.number(draw, records)))?;
        Ok(found.is_some())
    })?;
    let mixed = timed(&|i, draw| {
        let key = key(zipfian.number(draw, records));
        if draw.below(2) == 0 { Ok(subject.get(key)?.is_some()) } else { subject.update(key, i) }
    })?;
    Ok([inserts, reads, mixed])
}

/// Returns the nanoseconds of one of so many calls, by the thread's time on a processor: the least
/// of some rounds.
///
/// # Errors
/// Those of the calls.
pub fn time_of(rounds: usize, calls: u64, mut call: impl FnMut(u64) -> Fallible) -> Fallible<f64> {
    let mut least = f64::INFINITY;
    for round in 0..rounds as u64 {
        let clock = Clock::now();
        (0..calls).try_for_each(|i| call(round * calls + i))?;
        least = least.min(clock.elapsed().cpu_ns as f64 / calls.max(1) as f64);
    }
    Ok(least)
}
