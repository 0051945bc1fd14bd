//! `stalls`: the slowest inserts of a growing table, and what each one waited for.
//!
//! Around every insert, the thread reads a clock, its own counters (page faults, waits,
//! preemptions, processor time) and the library's counters (splits, doublings, the pool's size).
//! That makes the run slower, but not the measured time of an insert. The changes between two
//! readings show what the insert did or waited for. With several threads, splits and growth may be
//! another thread's.
//!
//! A control run then takes the same readings around as many turns of a loop that does nothing for
//! as long as an insert took on average. Both runs watch a clock for the same total time. So timer
//! interrupts, and whatever else stops a thread on this machine, affect both equally often. Any
//! excess of the inserts, in the same bins of time, is their own.

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
use outlast::{Growth, Scheme};
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
    /// Number of threads that share them.
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

/// An operation that takes longer than this, in nanoseconds, waited for something.
const SLOW_NS: u64 = 5_000;

/// Resizes that took at least as long are printed: a directory is doubled in less.
const RESIZE_NS: u64 = 1_000_000;

/// Bounds of the bins in which slow operations are counted, in nanoseconds.
const BINS_NS: [u64; 8] = [SLOW_NS, 10_000, 20_000, 50_000, 100_000, 300_000, 1_000_000, u64::MAX];

/// What an insert waited for. The first applicable cause is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The processor was taken from it for more than half of the time. Also named if it was
    /// preempted and no other cause is counted.
    Preemption,
    /// The directory was doubled.
    Doubling,
    /// The pool's file grew.
    FileGrowth,
    /// It gave up the processor: for a lock, its own or the kernel's, or for the file system.
    Wait,
    /// None of the above, but it was on the processor for less than half of the time, so the host
    /// machine stopped it.
    Host,
    /// A segment was split, and a page was touched for the first time.
    SplitFault,
    /// A segment was split.
    Split,
    /// A page was touched for the first time.
    PageFault,
    /// Nothing that is counted, and it was on the processor all the time.
    Unknown,
}

impl Cause {
    /// All causes, in declaration order.
    pub const ALL: &'static [Cause] = &[
        Cause::Preemption,
        Cause::Doubling,
        Cause::FileGrowth,
        Cause::Wait,
        Cause::Host,
        Cause::SplitFault,
        Cause::Split,
        Cause::PageFault,
        Cause::Unknown,
    ];

    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Doubling => "doubling",
            Cause::FileGrowth => "file_growth",
            Cause::Wait => "wait",
            Cause::SplitFault => "split_fault",
            Cause::Split => "split",
            Cause::Preemption => "preemption",
            Cause::Host => "host",
            Cause::PageFault => "page_fault",
            Cause::Unknown => "unknown",
        }
    }
}

/// An operation, with everything that changed around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// The index of the insert among those of its thread.
    pub number: u64,
    /// How long it took, in nanoseconds.
    pub ns: u64,
    /// Its processor time, in nanoseconds.
    pub cpu_ns: u64,
    /// What it waited for.
    pub cause: Cause,
    /// Number of splits meanwhile.
    pub splits: u64,
    /// Number of doublings meanwhile.
    pub doublings: u64,
    /// Bytes that the pool grew by meanwhile.
    pub grown_bytes: u64,
    /// Number of page faults of the thread.
    pub faults: u64,
    /// Number of times that it gave up the processor.
    pub waits: u64,
    /// Number of times that the processor was taken from it.
    pub preemptions: u64,
}

/// A summary of the operations of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The scheme.
    pub scheme: String,
    /// `insert`, `control`, or the common cause of a group of inserts.
    pub what: String,
    /// Number of operations.
    pub operations: u64,
    /// Total time of all of them in milliseconds; only for the two kinds that are runs of their
    /// own.
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

/// A resize of the whole table, from the begin of the insert that began it to the end of the one that
/// ended it or found it ended. Where inserts do not go on beside it, that is one insert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resize {
    /// Number of inserts of the observing thread until its begin.
    pub inserts_before: u64,
    /// Number of inserts of that thread until its end, the first one included.
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
    /// `number` is that of the insert just done, which began at `start`.
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

/// The readings around an operation.
#[derive(Clone, Copy)]
struct Reading {
    usage: ThreadUsage,
    growth: Growth,
    /// Whether the table is being moved in the background.
    resizing: bool,
    pool_bytes: u64,
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
        // Operations that are as quick as they should be need no cause.
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

fn slow(number: u64, ns: u64, before: &Reading, after: &Reading) -> Slow {
    let used = after.usage.since(&before.usage);
    let mut slow = Slow {
        number,
        ns,
        cpu_ns: used.cpu_ns,
        cause: Cause::Unknown,
        splits: after.growth.splits - before.growth.splits,
        doublings: after.growth.doublings - before.growth.doublings,
        grown_bytes: after.pool_bytes - before.pool_bytes,
        faults: used.minor_faults + used.major_faults,
        waits: used.waits,
        preemptions: used.preemptions,
    };
    slow.cause = cause_of(&slow);
    slow
}

fn cause_of(slow: &Slow) -> Cause {
    // The readings themselves take a few microseconds at worst.
    let off_processor = slow.ns > slow.cpu_ns * 2 + SLOW_NS;
    match slow {
        // Whatever else it did, most of the time did not go into that.
        Slow { preemptions: 1.., waits: 0, .. } if off_processor => Cause::Preemption,
        Slow { doublings: 1.., .. } => Cause::Doubling,
        Slow { grown_bytes: 1.., .. } => Cause::FileGrowth,
        Slow { waits: 1.., .. } if off_processor => Cause::Wait,
        _ if off_processor => Cause::Host,
        Slow { splits: 1.., faults: 1.., .. } => Cause::SplitFault,
        Slow { splits: 1.., .. } => Cause::Split,
        Slow { faults: 1.., .. } => Cause::PageFault,
        Slow { waits: 1.., .. } => Cause::Wait,
        Slow { preemptions: 1.., .. } => Cause::Preemption,
        _ => Cause::Unknown,
    }
}

/// Measures all schemes, and prints the distribution, the groups by cause, and the slowest inserts.
///
/// # Errors
/// For invalid options, and as the inserts.
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
            seen.note(slow(number - first, ns, &before, &after))?;
            before = after;
        }
        seen.resizes = resizes.ended;
        Ok(seen)
    })?;
    let mut all = Seen::new(options.slowest)?;
    for seen in threads {
        all.merge(seen)?;
    }
    drop((map, open));
    pool.close()?;
    Ok(all)
}

/// As [`insert`], but with a loop that does nothing for `spin_ns` nanoseconds per turn.
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
            seen.note(slow(number, ns, &before, &after))?;
            before = after;
        }
        Ok(seen)
    })?;
    let mut all = Seen::new(options.slowest)?;
    for seen in threads {
        all.merge(seen)?;
    }
    Ok(all)
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
    use super::*;

    fn quick(ns: u64, cpu_ns: u64) -> Slow {
        let cause = Cause::Unknown;
        let (number, splits, doublings, grown_bytes) = (0, 0, 0, 0);
        let (faults, waits, preemptions) = (0, 0, 0);
        Slow {
            number,
            ns,
            cpu_ns,
            cause,
            splits,
            doublings,
            grown_bytes,
            faults,
            waits,
            preemptions,
        }
    }

    #[test]
    fn the_dearest_cause_is_named() {
        let of = |change: fn(&mut Slow)| {
            let mut slow = quick(50_000, 50_000);
            change(&mut slow);
            cause_of(&slow)
        };
        assert_eq!(of(|_| {}), Cause::Unknown);
        assert_eq!(of(|s| s.cpu_ns = 10_000), Cause::Host);
        assert_eq!(of(|s| s.preemptions = 1), Cause::Preemption);
        assert_eq!(of(|s| (s.preemptions, s.waits) = (1, 1)), Cause::Wait);
        assert_eq!(of(|s| (s.waits, s.faults) = (1, 1)), Cause::PageFault);
        // The wait that kept it off the processor is the cause.
        assert_eq!(of(|s| (s.cpu_ns, s.waits, s.faults) = (9, 1, 1)), Cause::Wait);
        assert_eq!(of(|s| (s.cpu_ns, s.splits, s.waits) = (9, 1, 1)), Cause::Wait);
        assert_eq!(of(|s| (s.splits, s.faults) = (1, 1)), Cause::SplitFault);
        assert_eq!(of(|s| (s.splits, s.preemptions) = (1, 1)), Cause::Split);
        assert_eq!(of(|s| (s.cpu_ns, s.splits, s.preemptions) = (20_000, 1, 1)), Cause::Preemption);
        assert_eq!(of(|s| (s.cpu_ns, s.doublings, s.preemptions) = (9, 1, 1)), Cause::Preemption);
        assert_eq!(of(|s| (s.cpu_ns, s.splits) = (9, 1)), Cause::Host);
        assert_eq!(of(|s| (s.cpu_ns, s.splits) = (25_000, 1)), Cause::Split);
        // Growing a file waits for the kernel.
        assert_eq!(of(|s| (s.cpu_ns, s.grown_bytes, s.waits) = (9, 1, 1)), Cause::FileGrowth);
        assert_eq!(of(|s| (s.splits, s.grown_bytes) = (1, 4096)), Cause::FileGrowth);
        assert_eq!(of(|s| (s.splits, s.doublings) = (1, 1)), Cause::Doubling);
    }

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
