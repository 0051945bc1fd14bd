//! `cache`: hit ratios of caches on traces, before and after the process is killed.
//!
//! The systems get the same requests: a key is looked up, and inserted if it is absent. For
//! comparison, [`policies`] simulates LRU, SIEVE, S3-FIFO and the optimal policy, which knows the future.

pub mod policies;
pub mod speed;
mod systems;
pub mod traces;

use crate::Fallible;
use crate::limits;
use crate::progress::Progress;
use crate::report::{Report, Show, rounded};
use crate::run::Run;
use crate::systems::Setup;
use outlast::{Cache, CacheOptions, Failure, Pool, PoolOptions, RecordForm, Scheme};
use policies::{Lru, Policy, S3Fifo, Sieve, belady};
use serde::Serialize;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use traces::Trace;

/// Requests after the kill that count.
const AFTER: usize = 100_000;

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// Records that the caches hold.
    pub capacity: usize,
    /// Requests of each trace.
    pub requests: usize,
    /// Only traces whose names contain this.
    pub trace: String,
    /// Seed of the traces.
    pub seed: u64,
    /// Records for the measurement of throughput; 0 for none.
    pub speed_records: u64,
    /// How often throughput is measured.
    pub speed_rounds: usize,
    /// Throughput is measured of systems whose names contain this.
    pub speed_system: String,
    /// Files of traces: a number, the key, in each line.
    pub trace_files: Vec<PathBuf>,
    /// Seconds of replacing all records; 0 for none.
    pub churn_seconds: u64,
    /// The directory for the pool of the process that is killed.
    pub dir: PathBuf,
    /// The program that is started again to be killed.
    pub program: PathBuf,
}

impl Options {
    fn check(&self) -> Fallible {
        limits::range("capacity", self.capacity as u64, 100..=10_000_000)?;
        limits::range("speed-rounds", self.speed_rounds as u64, 1..=1_000)?;
        limits::range("requests", self.requests as u64, 1_000..=1_000_000_000)?;
        limits::fits_memory(self.requests as u64, 24)
    }
}

/// The hit ratio of a system on a trace.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    /// The trace.
    pub trace: String,
    /// The system or the policy.
    pub system: &'static str,
    /// Hits per request.
    pub hit_ratio: f64,
    /// Requests in a microsecond; of systems, not of simulators.
    pub mops: Option<f64>,
}

/// Hit ratios over the same requests, of a run that was not interrupted and of one that was killed just
/// before them.
#[derive(Debug, Clone, Serialize)]
pub struct AfterKill {
    /// The system.
    pub system: &'static str,
    /// Hits per request without a kill.
    pub hit_ratio_before: f64,
    /// Hits per request after it.
    pub hit_ratio_after: f64,
    /// The time to open the cache again, in milliseconds.
    pub open_ms: Option<f64>,
}

/// Runs all systems on all traces, and kills a process.
///
/// # Errors
/// If an option is invalid, or a system fails.
pub fn run(options: &Options, report: &mut Report) -> Fallible<(Vec<Ratio>, Vec<AfterKill>)> {
    options.check()?;
    #[derive(Serialize)]
    struct Own {
        capacity: usize,
        requests: usize,
    }
    let setup = Setup::plain(Scheme::DashEh, RecordForm::Bytes, "".into(), options.seed);
    let own = Own { capacity: options.capacity, requests: options.requests };
    report.run(&Run::in_memory("cache", &setup, "memory of the process"), &own)?;
    let mut all = traces::all(options.requests, options.capacity, options.seed);
    for path in &options.trace_files {
        all.push(traces::read(path)?);
    }
    all.retain(|trace| trace.name.contains(&options.trace));
    let progress = Progress::new(all.len() as u64 + 1);
    let mut ratios = Vec::new();
    for trace in &all {
        progress.next(&trace.name);
        for ratio in of_trace(trace, options.capacity)? {
            report.row("trace", &ratio)?;
            ratios.push(ratio);
        }
        progress.done(1);
    }
    let mut kills = Vec::new();
    if let Some(trace) = all.first() {
        progress.next("a kill");
        for kill in of_kill(trace, options)? {
            report.row("after_kill", &kill)?;
            kills.push(kill);
        }
    }
    if options.speed_records > 0 {
        progress.next("throughput");
        let mut systems = speed::systems();
        systems.retain(|(name, _)| name.contains(&options.speed_system));
        let row = |row| report.row("throughput", &row);
        let (records, rounds) = (options.speed_records, options.speed_rounds);
        speed::run(&systems, records, rounds, options.seed, row)?;
    }
    if options.churn_seconds > 0 {
        progress.next("churn");
        let dir = tempfile::tempdir_in(&options.dir)?;
        let (path, seconds) = (dir.path().join("churn.pool"), options.churn_seconds);
        let row = |row| report.row("churn", &row);
        speed::churn(&path, 256 << 20, seconds, options.seed, row)?;
    }
    report.table(
        "throughput",
        &[
            ("system", "/system", Show::Text),
            ("operation", "/operation", Show::Text),
            ("threads", "/threads", Show::Count),
            ("million a second", "/mops", Show::Decimal(2)),
            ("least", "/least", Show::Decimal(2)),
            ("most", "/most", Show::Decimal(2)),
            ("hit ratio", "/hit_ratio", Show::Decimal(3)),
        ],
    )?;
    report.table(
        "churn",
        &[
            ("seconds", "/seconds", Show::Decimal(1)),
            ("inserted", "/inserted", Show::Count),
            ("capacity", "/capacity", Show::Count),
            ("most held", "/bytes_max", Show::Count),
            ("pool", "/pool", Show::Count),
        ],
    )?;
    report.table(
        "trace",
        &[
            ("trace", "/trace", Show::Text),
            ("system", "/system", Show::Text),
            ("hit ratio", "/hit_ratio", Show::Decimal(4)),
            ("million a second", "/mops", Show::Decimal(2)),
        ],
    )?;
    report.table(
        "after_kill",
        &[
            ("system", "/system", Show::Text),
            ("without a kill", "/hit_ratio_before", Show::Decimal(4)),
            ("after it", "/hit_ratio_after", Show::Decimal(4)),
            ("opening, ms", "/open_ms", Show::Decimal(1)),
        ],
    )?;
    Ok((ratios, kills))
}

fn ratio(hits: u64, requests: usize) -> f64 {
    rounded(hits as f64 / requests as f64, 4)
}

fn of_trace(trace: &Trace, capacity: usize) -> Fallible<Vec<Ratio>> {
    let row = |system, hits: u64, mops| Ratio {
        trace: trace.name.clone(),
        system,
        hit_ratio: ratio(hits, trace.keys.len()),
        mops,
    };
    let mut rows = vec![row("belady", belady(&trace.keys, capacity), None)];
    let simulators: [(&str, Box<dyn Policy>); 3] = [
        ("lru", Box::new(Lru::new(capacity))),
        ("sieve", Box::new(Sieve::new(capacity))),
        ("s3-fifo", Box::new(S3Fifo::new(capacity))),
    ];
    for (name, mut policy) in simulators {
        let hits = trace.keys.iter().filter(|&&key| policy.request(key)).count();
        rows.push(row(name, hits as u64, None));
    }
    for mut system in systems::all(capacity)? {
        let start = Instant::now();
        let mut hits = 0;
        for &key in &trace.keys {
            hits += u64::from((system.request)(key)?);
        }
        let seconds = start.elapsed().as_secs_f64();
        let mops = rounded(trace.keys.len() as f64 / seconds / 1e6, 2);
        rows.push(row(system.name, hits, Some(mops)));
    }
    Ok(rows)
}

/// Requests keys of ours, and returns the hits.
fn requests(cache: &Cache<u64, u64>, keys: &[u64]) -> Fallible<u64> {
    let mut hits = 0;
    for key in keys {
        match cache.get(key)? {
            Some(_) => hits += 1,
            None => cache.insert(key, key)?,
        }
    }
    Ok(hits)
}

/// The requests before the kill, and those after it.
pub fn halves(keys: &[u64]) -> (&[u64], &[u64]) {
    let (before, after) = keys.split_at(keys.len() / 2);
    (before, &after[..after.len().min(AFTER)])
}

fn of_kill(trace: &Trace, options: &Options) -> Fallible<Vec<AfterKill>> {
    let (before, after) = halves(&trace.keys);
    let mut rows = Vec::new();
    for mut system in systems::all(options.capacity)? {
        if system.name == systems::OURS {
            continue;
        }
        for &key in before {
            (system.request)(key)?;
        }
        let mut hits = 0;
        for &key in after {
            hits += u64::from((system.request)(key)?);
        }
        // It begins anew, and empty.
        let again = systems::all(options.capacity)?;
        let mut empty = again.into_iter().find(|other| other.name == system.name).ok_or("gone")?;
        let mut cold = 0;
        for &key in after {
            cold += u64::from((empty.request)(key)?);
        }
        rows.push(AfterKill {
            system: system.name,
            hit_ratio_before: ratio(hits, after.len()),
            hit_ratio_after: ratio(cold, after.len()),
            open_ms: None,
        });
    }
    rows.push(killed(before, after, options)?);
    Ok(rows)
}

/// Starts a process that [is killed](until_killed), once it has made these requests.
///
/// # Errors
/// If it cannot be started, or fails.
pub fn kill_after(command: &mut Command, keys: &[u64]) -> Fallible {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    child.stdin.take().ok_or("no input")?.write_all(&bytes)?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    child.kill()?;
    child.wait()?;
    if line.trim() == "ready" {
        Ok(())
    } else {
        Err("the process that was to be killed has failed".into())
    }
}

/// In the process that is killed, reads keys and passes them to `request`, says so, and waits.
///
/// # Errors
/// If the input ends within a key, or `request` fails.
pub fn until_killed(request: impl FnOnce(&[u64]) -> Fallible) -> Fallible {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes)?;
    let (keys, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err("the input ends within a key".into());
    }
    request(&keys.iter().map(|key| u64::from_le_bytes(*key)).collect::<Vec<_>>())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    loop {
        std::thread::park();
    }
}

/// Kills a process that has made the requests before, and makes those after the kill.
fn killed(before: &[u64], after: &[u64], options: &Options) -> Fallible<AfterKill> {
    let pool = PoolOptions::new().anonymous()?;
    let whole = ours(&pool, options.capacity)?;
    requests(&whole, before)?;
    let expected = requests(&whole, after)?;
    let dir = tempfile::tempdir_in(&options.dir)?;
    let path = dir.path().join("cache.pool");
    let mut command = Command::new(&options.program);
    command.args(["cache-child", "--pool"]).arg(&path);
    kill_after(command.args(["--capacity", &options.capacity.to_string()]), before)?;
    let start = Instant::now();
    let pool = open(&path)?;
    let cache = ours(&pool, options.capacity)?;
    let open_ms = start.elapsed().as_secs_f64() * 1e3;
    let hits = requests(&cache, after)?;
    pool.close()?;
    Ok(AfterKill {
        system: systems::OURS,
        hit_ratio_before: ratio(expected, after.len()),
        hit_ratio_after: ratio(hits, after.len()),
        open_ms: Some(rounded(open_ms, 1)),
    })
}

fn open(path: &Path) -> Fallible<Pool> {
    let options = PoolOptions::new().survive(Failure::ProcessDeath);
    // SAFETY: the directory was made for this pool, which one process at a time opens.
    Ok(unsafe { options.open_or_create(path)? })
}

fn ours(pool: &Pool, capacity: usize) -> Fallible<Cache<u64, u64>> {
    Ok(pool.cache("bench", &CacheOptions::records(capacity as u64))?)
}

/// The process that is killed.
///
/// # Errors
/// If the cache fails.
pub fn child(path: &Path, capacity: usize) -> Fallible {
    let pool = open(path)?;
    let cache = ours(&pool, capacity)?;
    until_killed(|keys| requests(&cache, keys).map(drop))
}
