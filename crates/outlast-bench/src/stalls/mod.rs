//! `stalls`: the slowest inserts of a growing table, and what each one waited for.
//!
//! Around every insert, the thread reads a clock, its own counters (page faults, waits,
//! preemptions, processor time) and the library's counters (splits, doublings, the pool's size).
//! That makes the run slower, but does not lengthen the measured time of an insert. The changes
//! between two readings show what the insert did or waited for. With several threads, splits and
//! growth may be another thread's.
//!
//! A control run then takes the same readings around as many turns of an idle loop, each as long as
//! an insert took on average. Both runs watch a clock for the same total time, so timer interrupts,
//! and whatever else stops a thread on this machine, affect both equally often. If a bin of times
//! has more inserts than turns of the control run, the excess is due to the inserts.

mod cause;

use crate::Fallible;
use crate::keys::{Keys, value};
use crate::latency::{Latency, Percentiles};
use crate::limits;
use crate::report::{Report, Show};
use crate::run::Run;
use crate::scratch::Scratch;
use crate::systems::{Medium, Setup, create_map, create_pool};
use crate::team;
use crate::usage::ThreadUsage;
pub use cause::{Cause, Slow};
use cause::{Reading, SLOW_NS};
use outlast::Scheme;
use outlast::internals::index::Growth;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// The setup of the pools, except for the scheme.
    pub setup: Setup,
    /// The schemes, measured one after another.
    pub schemes: Vec<Scheme>,
    /// Number of inserts.
    pub records: u64,
    /// Number of threads that share the inserts.
    pub threads: usize,
    /// How many of the slowest inserts are printed.
    pub slowest: usize,
}

/// The greatest number of slowest inserts that can be printed.
const SLOWEST_MAX: usize = 100_000;

impl Options {
    fn check(&self) -> Fallible {
        self.setup.check()?;
        self.setup.check_records(self.records, 1)?;
        limits::each_once("scheme", &self.schemes)?;
        limits::threads(&[self.threads])?;
        limits::range("slowest", self.slowest, 1..=SLOWEST_MAX)
    }
}

/// Resizes that took at least this long, in nanoseconds, are printed. Doubling a directory takes
/// less.
const RESIZE_NS: u64 = 1_000_000;

/// Bounds of the bins in which slow operations are counted, in nanoseconds.
const BINS_NS: [u64; 8] = [SLOW_NS, 10_000, 20_000, 50_000, 100_000, 300_000, 1_000_000, u64::MAX];

/// A summary of the operations of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The scheme.
    pub scheme: String,
    /// `insert` or `control` for all operations of a run. For the slow ones with one cause, the
    /// name of the cause, with `control: ` before it in the control run.
    pub what: String,
    /// Number of operations.
    pub operations: u64,
    /// Total time of all of them in milliseconds; only for `insert` and `control`, which are
    /// separate runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub watched_ms: Option<u64>,
    /// Percentiles of their times.
    #[serde(flatten)]
    pub latency: Percentiles,
    /// The greatest processor time of one of them, in nanoseconds.
    pub cpu_max_ns: u64,
}

/// Slow operations within one range of times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// The scheme.
    pub scheme: String,
    /// Lower bound of their times, exclusive, in nanoseconds.
    pub above_ns: u64,
    /// Upper bound of their times, inclusive, in nanoseconds.
    pub to_ns: u64,
    /// Number of turns of the control run.
    pub control: u64,
    /// Number of inserts.
    pub inserts: u64,
    /// Number of inserts by cause.
    pub causes: BTreeMap<Cause, u64>,
}

/// A resize of the whole table. It lasts from the beginning of the insert that began the resize to
/// the end of the insert that ended it or found it ended. In a scheme whose inserts wait for the
/// resize, the two are the same insert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resize {
    /// Number of inserts of the observing thread before the resize began.
    pub inserts_before: u64,
    /// Number of inserts of that thread during the resize, including the one that began it.
    pub inserts: u64,
    /// How long it took, in nanoseconds.
    pub ns: u64,
}

/// Notices the resizes of a table, as its first thread sees them.
#[derive(Default)]
struct Resizes {
    begun: Option<(u64, Instant)>,
    ended: Vec<Resize>,
}

impl Resizes {
    /// Takes note of the insert just done, which has this number and began at `start`.
    fn note(&mut self, number: u64, start: Instant, before: &Reading, after: &Reading) {
        let doubled = after.growth.doublings > before.growth.doublings;
        if after.resizing || doubled {
            self.begun.get_or_insert((number, start));
        }
        if let Some((first, begin)) = self.begun.take_if(|_| !after.resizing || doubled) {
            let (inserts, ns) = (number + 1 - first, begin.elapsed().as_nanos() as u64);
            self.ended.push(Resize { inserts_before: first, inserts, ns });
        }
    }
}

/// What a thread has observed.
struct Seen {
    all: Latency,
    /// The sum of all times.
    watched_ns: u64,
    by_cause: Vec<(Cause, Latency, u64)>,
    slowest: Vec<Slow>,
    keep: usize,
    resizes: Vec<Resize>,
}

impl Seen {
    fn new(keep: usize) -> Fallible<Seen> {
        let slowest = Vec::with_capacity(keep * 2 + 2);
        let (all, by_cause) = (Latency::new()?, Vec::new());
        Ok(Seen { all, watched_ns: 0, by_cause, slowest, keep, resizes: Vec::new() })
    }

    fn note(&mut self, slow: Slow) -> Fallible {
        self.all.record(slow.ns);
        self.watched_ns += slow.ns;
        // Only slow operations need a cause.
        if slow.ns > SLOW_NS {
            let group = match self.by_cause.iter().position(|(cause, ..)| *cause == slow.cause) {
                Some(index) => &mut self.by_cause[index],
                None => {
                    self.by_cause.push((slow.cause, Latency::new()?, 0));
                    let last = self.by_cause.len() - 1;
                    &mut self.by_cause[last]
                }
            };
            group.1.record(slow.ns);
            group.2 = group.2.max(slow.cpu_ns);
        }
        self.slowest.push(slow);
        if self.slowest.len() > self.keep * 2 {
            self.shorten();
        }
        Ok(())
    }

    fn shorten(&mut self) {
        self.slowest.sort_by_key(|slow| std::cmp::Reverse(slow.ns));
        self.slowest.truncate(self.keep);
    }

    fn merged(threads: Vec<Seen>, keep: usize) -> Fallible<Seen> {
        let mut all = Seen::new(keep)?;
        threads.into_iter().try_for_each(|seen| all.merge(seen))?;
        Ok(all)
    }

    fn merge(&mut self, other: Seen) -> Fallible {
        self.all.add(&other.all)?;
        self.watched_ns += other.watched_ns;
        for (cause, latency, cpu) in other.by_cause {
            match self.by_cause.iter_mut().find(|(own, ..)| *own == cause) {
                Some((_, own, own_cpu)) => {
                    own.add(&latency)?;
                    *own_cpu = (*own_cpu).max(cpu);
                }
                None => self.by_cause.push((cause, latency, cpu)),
            }
        }
        self.resizes.extend(other.resizes);
        self.slowest.extend(other.slowest);
        self.shorten();
        Ok(())
    }
}

/// Measures all schemes, and prints the distribution, the groups by cause, and the slowest inserts.
///
/// # Errors
/// If an option is invalid, or if an insert fails.
pub fn run(options: &Options, report: &mut Report) -> Fallible<Vec<Group>> {
    options.check()?;
    #[derive(Serialize)]
    struct Own {
        records: u64,
        threads: usize,
    }
    let run = Run::on_files("stalls", &options.setup, &options.schemes)?;
    report.run(&run, &Own { records: options.records, threads: options.threads })?;
    let mut groups = Vec::new();
    for &scheme in &options.schemes {
        let setup = Setup { scheme, ..options.setup.clone() };
        groups.extend(one_scheme(&Options { setup, ..options.clone() }, report)?);
    }
    print_tables(report, options.setup.medium)?;
    Ok(groups)
}

/// Runs the inserts and the control run of the setup's scheme, and prints their rows.
fn one_scheme(options: &Options, report: &mut Report) -> Fallible<Vec<Group>> {
    let scheme = options.setup.scheme.name();
    let seen = insert(options)?;
    let control = control(options, seen.watched_ns / options.records)?;
    let mut groups = Vec::new();
    let mut group = |what: &str, latency: &Latency, watched_ns: Option<u64>, cpu_max_ns: u64| {
        let operations = latency.count();
        groups.push(Group {
            scheme: scheme.into(),
            what: what.into(),
            operations,
            watched_ms: watched_ns.map(|ns| ns / 1_000_000),
            latency: latency.percentiles(),
            cpu_max_ns,
        });
    };
    let cpu_max = |seen: &Seen| seen.slowest.iter().map(|s| s.cpu_ns).max().unwrap_or(0);
    for (what, run, prefix) in [("control", &control, "control: "), ("insert", &seen, "")] {
        group(what, &run.all, Some(run.watched_ns), cpu_max(run));
        let mut by_cause: Vec<_> = run.by_cause.iter().collect();
        by_cause.sort_by_key(|(cause, ..)| *cause);
        for (cause, latency, cpu) in by_cause {
            group(&format!("{prefix}{}", cause.name()), latency, None, *cpu);
        }
    }
    for group in &groups {
        report.row("stall_group", group)?;
    }
    for bounds in BINS_NS.windows(2) {
        let of = |latency: &Latency| latency.count_between(bounds[0] + 1, bounds[1]);
        let causes = seen.by_cause.iter().map(|(cause, latency, _)| (*cause, of(latency)));
        let bin = Bin {
            scheme: scheme.into(),
            above_ns: bounds[0],
            to_ns: bounds[1],
            control: of(&control.all),
            inserts: of(&seen.all),
            causes: causes.collect(),
        };
        report.row("stall_bin", &bin)?;
    }
    #[derive(Serialize)]
    struct Told<'s, T> {
        scheme: &'s str,
        #[serde(flatten)]
        row: &'s T,
    }
    for row in seen.resizes.iter().filter(|resize| resize.ns >= RESIZE_NS) {
        report.row("resize", &Told { scheme, row })?;
    }
    for row in &seen.slowest {
        report.row("stall", &Told { scheme, row })?;
    }
    Ok(groups)
}

fn insert(options: &Options) -> Fallible<Seen> {
    let setup = &options.setup;
    let dir = Scratch::create(&setup.dir)?;
    let pool = create_pool(setup, &dir.path().join("pool"))?;
    let map = create_map(setup, &pool)?;
    let open = pool.store().open_map("bench")?;
    let keys = Keys::new(setup.seed);
    let core = pool.store().core();
    let read = || -> Fallible<Reading> {
        Ok(Reading {
            usage: ThreadUsage::now(),
            growth: map.growth()?,
            resizing: open.index().has_work(),
            pool_bytes: core.memory.len(),
        })
    };
    let (threads, _) = team::run(options.threads, |thread| {
        let mut seen = Seen::new(options.slowest)?;
        let mut hand = setup.hand();
        let (first, count) = team::share(options.records, options.threads, thread);
        let mut resizes = Resizes::default();
        let mut before = read()?;
        for number in first..first + count {
            let key = keys.key(number);
            let (key, value) = hand.pair_bytes(key, value(key, 0));
            let start = Instant::now();
            let inserted = map.insert(key, value)?;
            let ns = start.elapsed().as_nanos() as u64;
            let after = read()?;
            if !inserted {
                return Err(format!("record {number} was there before it was inserted").into());
            }
            if thread == 0 {
                resizes.note(number, start, &before, &after);
            }
            seen.note(Slow::new(number - first, ns, &before, &after))?;
            before = after;
        }
        seen.resizes = resizes.ended;
        Ok(seen)
    })?;
    drop((map, open));
    pool.close()?;
    Seen::merged(threads, options.slowest)
}

/// Like [`insert`], but with an idle loop of `spin_ns` nanoseconds per turn.
fn control(options: &Options, spin_ns: u64) -> Fallible<Seen> {
    let (threads, _) = team::run(options.threads, |thread| {
        let mut seen = Seen::new(options.slowest)?;
        let (_, count) = team::share(options.records, options.threads, thread);
        let (growth, resizing, pool_bytes) = (Growth::default(), false, 0);
        let mut before = Reading { usage: ThreadUsage::now(), growth, resizing, pool_bytes };
        for number in 0..count {
            let start = Instant::now();
            let mut ns = start.elapsed().as_nanos() as u64;
            while ns < spin_ns {
                ns = start.elapsed().as_nanos() as u64;
            }
            let after = Reading { usage: ThreadUsage::now(), ..before };
            seen.note(Slow::new(number, ns, &before, &after))?;
            before = after;
        }
        Ok(seen)
    })?;
    Seen::merged(threads, options.slowest)
}

fn print_tables(report: &Report, medium: Medium) -> Fallible {
    if medium.is_model() {
        report.note("MODEL, not a measurement of real PM.")?;
    }
    report.table(
        "stall_group",
        &[
            ("scheme", "/scheme", Show::Text),
            ("what", "/what", Show::Text),
            ("operations", "/operations", Show::Count),
            ("watched ms", "/watched_ms", Show::Count),
            ("p50", "/p50_ns", Show::Nanoseconds),
            ("p99", "/p99_ns", Show::Nanoseconds),
            ("p99.9", "/p999_ns", Show::Nanoseconds),
            ("p99.99", "/p9999_ns", Show::Nanoseconds),
            ("max", "/max_ns", Show::Nanoseconds),
            ("most on CPU", "/cpu_max_ns", Show::Nanoseconds),
        ],
    )?;
    let causes: Vec<(String, String)> = Cause::ALL
        .iter()
        .map(|cause| (cause.name().replace('_', " "), format!("/causes/{}", cause.name())))
        .collect();
    let mut columns = vec![
        ("scheme", "/scheme", Show::Text),
        ("above", "/above_ns", Show::Nanoseconds),
        ("control", "/control", Show::Count),
        ("inserts", "/inserts", Show::Count),
    ];
    columns.extend(causes.iter().map(|(name, at)| (name.as_str(), at.as_str(), Show::Count)));
    report.table("stall_bin", &columns)?;
    report.table(
        "resize",
        &[
            ("scheme", "/scheme", Show::Text),
            ("after inserts", "/inserts_before", Show::Count),
            ("inserts meanwhile", "/inserts", Show::Count),
            ("took", "/ns", Show::Nanoseconds),
        ],
    )?;
    report.table(
        "stall",
        &[
            ("scheme", "/scheme", Show::Text),
            ("insert", "/number", Show::Count),
            ("took", "/ns", Show::Nanoseconds),
            ("on CPU", "/cpu_ns", Show::Nanoseconds),
            ("waited for", "/cause", Show::Text),
            ("splits", "/splits", Show::Count),
            ("doublings", "/doublings", Show::Count),
            ("grown by", "/grown_bytes", Show::Count),
            ("faults", "/faults", Show::Count),
            ("waits", "/waits", Show::Count),
            ("preempted", "/preemptions", Show::Count),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::cause::tests::quick;
    use super::*;

    #[test]
    fn only_the_slowest_are_kept() {
        let mut seen = Seen::new(3).unwrap();
        for ns in [5, 90_000, 1, 70_000, 3, 2, 80_000, 4, 60_000, 6] {
            seen.note(quick(ns, ns)).unwrap();
        }
        let mut all = Seen::new(3).unwrap();
        all.merge(seen).unwrap();
        let kept: Vec<u64> = all.slowest.iter().map(|s| s.ns).collect();
        assert_eq!(kept, [90_000, 80_000, 70_000]);
        assert_eq!((all.all.count(), all.by_cause[0].1.count()), (10, 4));
        assert_eq!(all.watched_ns, 300_021);
    }
}
