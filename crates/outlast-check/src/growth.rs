//! Measures the size of a pool whose process is killed again and again.
//!
//! The same workload runs twice: in one life of the process, and in many lives. Each of the many
//! ends by SIGKILL, usually while space from the life before is still unaccounted for. There is no
//! background thread, so the reclaim only advances when an operation needs its space.

use crate::codec::key_bytes;
use crate::random::Random;
use crate::state::{Checked, Fault, ensure};
use crate::torture::cells::Cells;
use crate::torture::was_killed;
use outlast::ReclaimState;
use outlast::{Config, Map, MapOptions, Pool, PoolOptions, Scheme};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

const POOL: &str = "growth.pool";
const NOTES: &str = "notes";
/// The note that counts the lives that ended while the reclaim was still running.
const RUNNING: usize = 0;

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The scheme of the map.
    pub scheme: Scheme,
    /// The number of lives.
    pub lives: u64,
    /// Operations per life.
    pub operations: u64,
    /// Keys present on average.
    pub keys: u64,
    /// The number of threads.
    pub threads: u64,
    /// Whether all records have one size.
    pub even: bool,
    /// The path of this program, to be run as the child.
    pub program: PathBuf,
    /// The directory of the pools; must be empty.
    pub dir: PathBuf,
}

/// The result of a run.
#[derive(Debug, Clone, Copy)]
pub struct Summary {
    /// Size of the pool in bytes after the workload in one life.
    pub uncrashed_bytes: u64,
    /// Size of the pool in bytes after the same workload in many lives.
    pub crashed_bytes: u64,
    /// Lives that ended while the reclaim was still running.
    pub running: u64,
}

impl Summary {
    /// Returns by what factor the kills made the pool larger.
    pub fn ratio(&self) -> f64 {
        self.crashed_bytes as f64 / self.uncrashed_bytes as f64
    }
}

fn options() -> PoolOptions {
    PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .page_bits(12)
        .initial_size(256 << 10)
        .background(false)
}

type BytesMap = Map<[u8], [u8]>;

/// Returns options for segments, or a first level, of 16 buckets if the scheme has that setting:
/// small compared with the pool.
pub(crate) fn map_options(scheme: Scheme) -> MapOptions {
    let mut config = Config::of(scheme);
    match &mut config {
        Config::DashEh(config) => config.bucket_bits = 4,
        Config::DashLh(config) => config.bucket_bits = 4,
        Config::Clevel(config) => config.first_bits = 4,
        _ => {}
    }
    MapOptions::new().config(config)
}

fn open(path: &Path, scheme: Scheme) -> Checked<(Pool, BytesMap)> {
    // SAFETY: the pool is in this run's own directory, and nothing else writes to it.
    let pool = unsafe { options().open_or_create(path)? };
    let map = pool.map_with("m", &map_options(scheme))?;
    Ok((pool, map))
}

impl Options {
    fn value(&self, random: &mut Random) -> Vec<u8> {
        vec![0x5a; if self.even { 180 } else { 100 + random.below(200) as usize }]
    }
}

/// Does one thread's part of a life: inserts, updates and removes keys of its own.
fn work(map: &BytesMap, options: &Options, life: u64, thread: u64) -> Checked {
    let mut random = Random::new(life << 8 | thread);
    for _ in 0..options.operations / options.threads {
        // Half of the keys drawn from are present, on average.
        let key = random.below(options.keys * 2 / options.threads) * options.threads + thread;
        let key = key_bytes(key + 10);
        match random.below(4) {
            0 => drop(map.insert(&key, &options.value(&mut random))?),
            1 => drop(map.remove(&key)?),
            _ => drop(map.update(&key, &options.value(&mut random))?),
        }
    }
    Ok(())
}

fn populate(path: &Path, options: &Options) -> Checked {
    let (pool, map) = open(path, options.scheme)?;
    let mut random = Random::new(1);
    for key in 0..options.keys {
        map.insert(&key_bytes(key * 2 + 10), &options.value(&mut random))?;
    }
    drop(map);
    Ok(pool.close()?)
}

fn live(map: &BytesMap, options: &Options, life: u64) -> Checked {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..options.threads)
            .map(|thread| scope.spawn(move || work(map, options, life, thread)))
            .collect();
        workers
            .into_iter()
            .try_for_each(|w| w.join().unwrap_or_else(|_| Err(Fault("a worker panicked".into()))))
    })
}

/// Runs the workload in both ways.
///
/// # Errors
/// If an operation fails, or the pool is not sound at the end.
pub fn run(options: &Options) -> Checked<Summary> {
    let uncrashed = {
        let path = options.dir.join("uncrashed.pool");
        populate(&path, options)?;
        let (pool, map) = open(&path, options.scheme)?;
        for life in 0..options.lives {
            live(&map, options, life)?;
        }
        pool.stats().size
    };
    let path = options.dir.join(POOL);
    populate(&path, options)?;
    let notes = Cells::create(&options.dir.join(NOTES), 0)
        .map_err(|e| Fault(format!("making the notes: {e}")))?;
    for life in 0..options.lives {
        spawn(options, life)?;
    }
    let running = notes.note(RUNNING).load(Ordering::SeqCst);
    let (pool, map) = open(&path, options.scheme)?;
    let crashed = pool.stats().size;
    let records = map.iter().count() as u64;
    crate::session::check_verification(&pool.verify()?, records)?;
    Ok(Summary { uncrashed_bytes: uncrashed, crashed_bytes: crashed, running })
}

fn spawn(options: &Options, life: u64) -> Checked {
    let output = Command::new(&options.program)
        .arg("growth-child")
        .args(options.even.then_some("--even"))
        .arg("--dir")
        .arg(&options.dir)
        .args(["--scheme", options.scheme.name()])
        .args(["--life", &life.to_string()])
        .args(["--operations", &options.operations.to_string()])
        .args(["--keys", &options.keys.to_string()])
        .args(["--threads", &options.threads.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Fault(format!("starting a child: {e}")))?;
    ensure(was_killed(output.status), || {
        let text = String::from_utf8_lossy(&output.stderr);
        format!("a child ended by itself ({}): {text}", output.status)
    })
}

/// Runs one life: works, and kills itself under load.
///
/// # Errors
/// If an operation fails.
pub fn child(options: &Options, life: u64) -> Checked {
    let notes =
        Cells::open(&options.dir.join(NOTES)).map_err(|e| Fault(format!("{NOTES}: {e}")))?;
    let (pool, map) = open(&options.dir.join(POOL), options.scheme)?;
    let finished = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..options.threads)
            .map(|thread| {
                let (map, pool, notes, finished) = (&map, &pool, &notes, &finished);
                scope.spawn(move || {
                    work(map, options, life, thread)?;
                    if finished.fetch_add(1, Ordering::SeqCst) + 1 == options.threads {
                        if pool.stats().reclaim == ReclaimState::Running {
                            notes.note(RUNNING).fetch_add(1, Ordering::SeqCst);
                        }
                        // SAFETY: `kill` only sends a signal, which ends this process.
                        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                    }
                    // The other threads go on changing records until the last one is done, so that
                    // changes are in flight when the signal arrives. But the last one can be
                    // suspended inside an operation for long. Then nothing that the others replace
                    // can be freed, and the pool grows. So each of them makes a limited number of
                    // changes.
                    for _ in 0..options.operations {
                        map.update(&key_bytes(10 + thread), &[0x5a; 150])?;
                    }
                    loop {
                        std::thread::park();
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|w| w.join().unwrap_or_else(|_| Err(Fault("a worker panicked".into()))))
    })
}
