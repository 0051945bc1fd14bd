//! `contention`: the progress of each of several threads that change one map for a long time.
//!
//! Each thread inserts keys of its own, looks some of them up, updates some and removes some, until
//! the pool is full. Then the pool is closed, and [`outlast_offline`] checks the file and counts
//! its records. After that the threads fill another pool, so there is always a table that grows. If
//! a thread waits too long, or if another thread keeps undoing its work, its row shows how far it
//! fell behind.

use crate::Fallible;
use crate::keys::{Keys, value};
use crate::latency::Latency;
use crate::limits;
use crate::progress::Progress;
use crate::report::{Report, Show, rounded};
use crate::run::Run;
use crate::scratch::Scratch;
use crate::systems::{Setup, create_map, create_pool};
use crate::team;
use outlast::RawMap;
use outlast_offline as offline;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// The setup of the pools.
    pub setup: Setup,
    /// Number of records at which a pool is full and the next one is made.
    pub records: u64,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Seconds for each number of threads.
    pub seconds: f64,
}

impl Options {
    fn check(&self) -> Fallible {
        self.setup.check()?;
        self.setup.check_records(self.records, 1)?;
        limits::threads(&self.threads)?;
        limits::range("seconds", self.seconds, 0.001..=86_400.0)
    }
}

/// The progress of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Number of threads.
    pub threads: usize,
    /// This thread's number.
    pub thread: usize,
    /// Number of pools that were filled, the last one perhaps only in part.
    pub pools: u64,
    /// Splits, or the scheme's own unit of growth, in all pools and by all threads.
    pub splits: u64,
    /// Number of operations of this thread.
    pub operations: u64,
    /// The thread's number of operations, divided by the average of all threads.
    pub share: f64,
    /// Half of its operations took at most this long.
    pub p50_ns: u64,
    /// 99.99 percent of them took at most this long.
    pub p9999_ns: u64,
    /// Its longest operation.
    pub max_ns: u64,
}

/// Runs each number of threads, and prints a row for each thread.
///
/// # Errors
/// If an option is invalid; if an operation fails or returns a wrong result; if a pool is not sound
/// after it was closed, or does not hold the records that the threads left in it.
pub fn run(options: &Options, report: &mut Report) -> Fallible<Vec<Row>> {
    options.check()?;
    let Options { setup, records, seconds, .. } = options;
    #[derive(Serialize)]
    struct Own {
        records: u64,
        seconds: f64,
    }
    let run = Run::on_files("contention", setup, &[setup.scheme])?;
    report.run(&run, &Own { records: *records, seconds: *seconds })?;
    let progress = Progress::new(options.threads.len() as u64);
    let mut all = Vec::new();
    for &threads in &options.threads {
        progress.next(&format!("{threads} threads"));
        let rows = contend(options, threads)?;
        for row in &rows {
            report.row("contention", row)?;
        }
        all.extend(rows);
        progress.done(1);
    }
    report.table(
        "contention",
        &[
            ("threads", "/threads", Show::Count),
            ("thread", "/thread", Show::Count),
            ("pools", "/pools", Show::Count),
            ("splits", "/splits", Show::Count),
            ("operations", "/operations", Show::Count),
            ("share", "/share", Show::Decimal(3)),
            ("p50", "/p50_ns", Show::Nanoseconds),
            ("p99.99", "/p9999_ns", Show::Nanoseconds),
            ("longest", "/max_ns", Show::Nanoseconds),
        ],
    )?;
    Ok(all)
}

/// Fills pools with this number of threads until the time is over.
fn contend(options: &Options, threads: usize) -> Fallible<Vec<Row>> {
    let setup = &options.setup;
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    let mut times = (0..threads).map(|_| Latency::new()).collect::<Fallible<Vec<_>>>()?;
    let (mut pools, mut splits) = (0, 0);
    while Instant::now() < end {
        let dir = Scratch::create(&setup.dir)?;
        let path = dir.path().join("pool");
        let pool = create_pool(setup, &path)?;
        let map = create_map(setup, &pool)?;
        let (ends, _) = team::run(threads, |thread| {
            let (_, share) = team::share(options.records, threads, thread);
            let worker = Worker { map: &map, setup, threads, thread, share, end };
            worker.fill()
        })?;
        splits += map.growth()?.splits;
        drop(map);
        pool.close()?;
        let mut left = 0;
        for (time, (own, records)) in times.iter_mut().zip(ends) {
            time.add(&own)?;
            left += records;
        }
        let found = offline::walk(&path)?;
        if let Some(damage) = found.problems.first() {
            return Err(format!("the pool is damaged: {damage}").into());
        }
        if found.records != left {
            return Err(format!("{left} records were left, {} are there", found.records).into());
        }
        pools += 1;
    }
    let mean = times.iter().map(Latency::count).sum::<u64>() as f64 / threads as f64;
    let row = |(thread, time): (usize, &Latency)| {
        let (operations, latency) = (time.count(), time.percentiles());
        Row {
            threads,
            thread,
            pools,
            splits,
            operations,
            share: rounded(operations as f64 / mean, 3),
            p50_ns: latency.p50_ns,
            p9999_ns: latency.p9999_ns,
            max_ns: latency.max_ns,
        }
    };
    Ok(times.iter().enumerate().map(row).collect())
}

/// A thread's part of filling a pool.
struct Worker<'a> {
    map: &'a RawMap,
    setup: &'a Setup,
    threads: usize,
    thread: usize,
    /// Number of records at which the thread is done.
    share: u64,
    end: Instant,
}

impl Worker<'_> {
    /// Does operations until the thread's share of records is present, or the time is over. Returns
    /// how long the operations took, and how many records the thread left in the map.
    fn fill(&self) -> Fallible<(Latency, u64)> {
        let keys = Keys::new(self.setup.seed);
        let key = |number: u64| keys.key(number * self.threads as u64 + self.thread as u64);
        let mut hand = self.setup.hand();
        let mut times = Latency::new()?;
        // The thread's keys with numbers from `first` to below `next` are in the map.
        let (mut first, mut next) = (0, 0);
        let mut now = Instant::now();
        while next - first < self.share && now < self.end {
            let step = times.count();
            let some = key(first + (next - first) / 2);
            let right = match step % 10 {
                6 | 7 if next > first => self.map.get(hand.key_bytes(some))?.is_some(),
                8 if next > first => {
                    let (key, value) = hand.pair_bytes(some, value(some, 1));
                    self.map.update(key, value)?
                }
                9 if next > first => {
                    let removed = self.map.remove(hand.key_bytes(key(first)))?;
                    first += 1;
                    removed.is_some()
                }
                _ => {
                    let new = key(next);
                    next += 1;
                    let (key, value) = hand.pair_bytes(new, value(new, 0));
                    self.map.insert(key, value)?
                }
            };
            if !right {
                return Err(
                    format!("operation {step} of thread {} was refused", self.thread).into()
                );
            }
            let before = std::mem::replace(&mut now, Instant::now());
            times.record((now - before).as_nanos() as u64);
        }
        Ok((times, next - first))
    }
}
