//! `recovery`: how soon a pool returns results again after its process was killed.
//!
//! A child process fills a pool and reports that. Then it inserts, updates and removes records
//! until the parent kills it with SIGKILL. The parent opens the pool and looks up a key. The file's
//! pages are in the page cache, as after any restart of a process. Then the parent closes
//! the pool and repeats this with another child.
//!
//! With a journal, the command can also simulate a restart of the machine (`reboot`): the parent
//! deletes the working file and drops the other files from the page cache before it opens the pool.
//! Then it drops the pool's file from the page cache again, and reads all of it, for comparison.
//!
//! If the scheme reads all of a map when it opens the map, this is done with several numbers of
//! threads. For comparison, the best possible gain from threads is measured as well: as many
//! threads read lines of the file, two per KiB (a leaf's header), from a new mapping like the
//! pool's.

use crate::Fallible;
use crate::keys::{Draw, Keys, belongs, value};
use crate::limits;
use crate::report::{Report, Show, median, rounded};
use crate::run::Run;
use crate::scratch::Scratch;
use crate::systems::Setup;
use crate::team;
use outlast::internals::pmem::{MapAccess, Mapping};
use outlast::{JournalOptions, Map, MapOptions, Pool, PoolOptions, RecordForm, Scheme};
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// The scheme.
    pub scheme: Scheme,
    /// Pool sizes, in records.
    pub records: Vec<u64>,
    /// Number of kills per size and number of threads.
    pub kills: usize,
    /// Numbers of threads that open a map, for schemes that then read all of it.
    pub threads: Vec<usize>,
    /// The memory or files that are lost when the process is killed.
    pub lost: Lost,
    /// Where pools are made.
    pub dir: PathBuf,
    /// Seed of the keys and the hash function.
    pub seed: u64,
    /// The path of this program.
    pub program: PathBuf,
}

/// What a restart loses besides the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// Nothing. The pool has no journal.
    Nothing,
    /// Nothing. The pool has a journal.
    NothingOfJournal,
    /// What a reboot loses: the working file of a journaled pool, and the page cache.
    Memory,
}

impl Lost {
    fn is_journaled(self) -> bool {
        self != Lost::Nothing
    }
}

/// The results for one pool size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The least number of records that the pool held.
    pub records: u64,
    /// Size of the pool's file in bytes.
    pub file_bytes: u64,
    /// Number of kills.
    pub kills: usize,
    /// Number of threads that opened the map.
    pub threads: usize,
    /// Time to open the pool and its map, median.
    pub open_ms: f64,
    /// The slowest opening.
    pub open_ms_max: f64,
    /// Time of the first lookup after opening, median.
    pub first_get_us: f64,
    /// The slowest first lookup.
    pub first_get_us_max: f64,
    /// Time from the call that opens the pool to the first result, median.
    pub answer_ms: f64,
    /// The longest such time.
    pub answer_ms_max: f64,
    /// Time to read the pool's file from the disk sequentially, median; only after a reboot.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub read_ms: Option<f64>,
    /// The effect of threads, if opening reads all of the map.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reading: Option<Reading>,
}

/// Measurements of an opening that reads all of a map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Records of the map per second of opening.
    pub records_per_s: u64,
    /// Time in which as many threads read the lines of leaf headers directly, without the library;
    /// median.
    pub raw_ms: f64,
    /// Speed-up of opening, relative to the first of the numbers of threads.
    pub speed_up: f64,
    /// Speed-up of reading directly, relative to the first of the numbers of threads.
    pub raw_speed_up: f64,
    /// `speed_up` divided by `raw_speed_up`.
    pub of_raw: f64,
}

fn options_of(seed: u64, journal: bool) -> PoolOptions {
    let options = PoolOptions::new().survive(outlast::Failure::ProcessDeath).identity(seed, 2);
    if journal { options.journal(JournalOptions::new()) } else { options }
}

fn map_of(pool: &Pool, scheme: Scheme) -> Fallible<Map<u64, u64>> {
    Ok(pool.map_with("bench", &MapOptions::new().scheme(scheme))?)
}

/// Measures all sizes, and prints a row for each.
///
/// # Errors
/// If an option is invalid, if a child fails, or if a lookup does not find what the child stored.
pub fn run(options: &Options, report: &mut Report) -> Fallible<Vec<Row>> {
    let setup = Setup::plain(options.scheme, RecordForm::Inline, options.dir.clone(), options.seed);
    setup.check()?;
    options.records.iter().try_for_each(|&records| setup.check_records(records, 1))?;
    limits::range("kills", options.kills, 1..=limits::ROUNDS_MAX)?;
    limits::threads(&options.threads)?;
    if options.threads != [1] && !options.scheme.row().linear_recovery {
        let scheme = options.scheme;
        let why =
            format!("--threads: opening a map of {scheme} takes constant time, and one thread");
        return Err(limits::refused(why));
    }
    #[derive(Serialize)]
    struct Own<'o> {
        records: &'o [u64],
        kills: usize,
        threads: &'o [usize],
        journal: bool,
        reboot: bool,
    }
    let run = Run::on_files("recovery", &setup, &[options.scheme])?;
    let own = Own {
        records: &options.records,
        kills: options.kills,
        threads: &options.threads,
        journal: options.lost.is_journaled(),
        reboot: options.lost == Lost::Memory,
    };
    report.run(&run, &own)?;
    let mut rows = Vec::new();
    for &records in &options.records {
        for row in one_size(options, records)? {
            report.row("recovery", &row)?;
            rows.push(row);
        }
    }
    report.table(
        "recovery",
        &[
            ("records", "/records", Show::Count),
            ("file bytes", "/file_bytes", Show::Count),
            ("kills", "/kills", Show::Count),
            ("threads", "/threads", Show::Count),
            ("open ms", "/open_ms", Show::Decimal(3)),
            ("max", "/open_ms_max", Show::Decimal(3)),
            ("first get us", "/first_get_us", Show::Decimal(1)),
            ("max", "/first_get_us_max", Show::Decimal(1)),
            ("answer ms", "/answer_ms", Show::Decimal(3)),
            ("max", "/answer_ms_max", Show::Decimal(3)),
            ("read ms", "/read_ms", Show::Decimal(3)),
            ("records/s", "/reading/records_per_s", Show::Count),
            ("raw ms", "/reading/raw_ms", Show::Decimal(3)),
            ("speed-up", "/reading/speed_up", Show::Decimal(2)),
            ("raw", "/reading/raw_speed_up", Show::Decimal(2)),
            ("of raw", "/reading/of_raw", Show::Decimal(2)),
        ],
    )?;
    Ok(rows)
}

fn one_size(options: &Options, records: u64) -> Fallible<Vec<Row>> {
    let dir = Scratch::create(&options.dir)?;
    let path = dir.path().join("pool");
    let mut times: Vec<Vec<Times>> = options.threads.iter().map(|_| Vec::new()).collect();
    let mut draw = Draw::new(options.seed);
    for _ in 0..options.kills {
        for (times, &threads) in times.iter_mut().zip(&options.threads) {
            let mut child = Worker::start(options, &path, records)?;
            child.wait_until_ready()?;
            // Kill the child in the middle of an arbitrary operation.
            std::thread::sleep(Duration::from_millis(20 + draw.below(50)));
            child.kill()?;
            if options.lost == Lost::Memory {
                lose_memory(options.seed, &path)?;
            }
            times.push(reopen(options, &path, records, draw.below(records), threads)?);
        }
    }
    let file_bytes = std::fs::metadata(&path)?.len();
    let mut rows: Vec<Row> = Vec::new();
    for (times, &threads) in times.iter().zip(&options.threads) {
        let column = |pick: fn(&Times) -> Duration, unit: f64| {
            let all: Vec<f64> = times.iter().map(|t| pick(t).as_secs_f64() * unit).collect();
            let max = all.iter().copied().fold(0.0, f64::max);
            (rounded(median(&all).unwrap_or(0.0), 3), rounded(max, 3))
        };
        let (open_ms, open_ms_max) = column(|t| t.open, 1e3);
        let (first_get_us, first_get_us_max) = column(|t| t.first_get, 1e6);
        let (answer_ms, answer_ms_max) = column(|t| t.open + t.first_get, 1e3);
        let (raw_ms, _) = column(|t| t.raw, 1e3);
        let (read_ms, _) = column(|t| t.read, 1e3);
        let first = rows.first().and_then(|row| Some((row.open_ms, row.reading.as_ref()?.raw_ms)));
        let (first_open_ms, first_raw_ms) = first.unwrap_or((open_ms, raw_ms));
        let (speed_up, raw_speed_up) = (first_open_ms / open_ms, first_raw_ms / raw_ms);
        rows.push(Row {
            records,
            file_bytes,
            kills: options.kills,
            threads,
            open_ms,
            open_ms_max,
            first_get_us,
            first_get_us_max,
            answer_ms,
            answer_ms_max,
            read_ms: (options.lost == Lost::Memory).then_some(read_ms),
            reading: options.scheme.row().linear_recovery.then(|| Reading {
                records_per_s: (records as f64 / open_ms * 1e3) as u64,
                raw_ms,
                speed_up: rounded(speed_up, 3),
                raw_speed_up: rounded(raw_speed_up, 3),
                of_raw: rounded(speed_up / raw_speed_up, 3),
            }),
        });
    }
    Ok(rows)
}

struct Times {
    open: Duration,
    first_get: Duration,
    /// Time to read the lines of leaf headers directly; zero if opening does not read all of the
    /// map.
    raw: Duration,
    /// Time to read all of the file sequentially after a reboot; zero without a reboot.
    read: Duration,
}

/// Removes what a journaled pool loses in a reboot: its working file, and its other files' pages in
/// the page cache.
fn lose_memory(seed: u64, path: &Path) -> Fallible {
    let facts = options_of(seed, true).facts(path)?.journal.ok_or("the pool has no journal")?;
    std::fs::remove_file(facts.working.ok_or("the pool has no working file")?)?;
    for entry in std::fs::read_dir(&facts.directory)? {
        drop_cached(&entry?.path())?;
    }
    drop_cached(path)
}

/// Drops a file from the page cache.
fn drop_cached(path: &Path) -> Fallible {
    let file = std::fs::File::open(path)?;
    // Only pages that are on the disk can be dropped.
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// How many bytes each call reads when a file is read sequentially.
const READ_BYTES: usize = 1 << 20;

/// Drops a file from the page cache, reads all of it, and returns how long the reading took.
fn read_all(path: &Path) -> Fallible<Duration> {
    drop_cached(path)?;
    let mut file = std::fs::File::open(path)?;
    let mut piece = vec![0; READ_BYTES];
    let start = Instant::now();
    while std::io::Read::read(&mut file, &mut piece)? > 0 {}
    Ok(start.elapsed())
}

/// The distance from one leaf's header to the next and the size of a header, in bytes.
const LEAF_BYTES: u64 = 1024;
const HEADER_BYTES: u64 = 128;

/// Reads the first two lines of each KiB of a file with `threads` threads, and returns how long
/// that took.
fn read_raw(path: &Path, threads: usize) -> Fallible<Duration> {
    let file = std::fs::File::open(path)?;
    let bytes = file.metadata()?.len();
    let mapping = Mapping::file(file, MapAccess::Private, bytes, bytes)?;
    let base = mapping.base().expose_provenance();
    let (sums, taken) = team::run(threads, |thread| {
        let (first, count) = team::share(bytes / LEAF_BYTES, threads, thread);
        let mut sum = 0u64;
        for leaf in first..first + count {
            for at in (0..HEADER_BYTES).step_by(64) {
                let place = base + (leaf * LEAF_BYTES + at) as usize;
                // SAFETY: the word is inside the mapping, which nobody changes.
                let word =
                    unsafe { std::ptr::with_exposed_provenance::<u64>(place).read_volatile() };
                sum = sum.wrapping_add(word);
            }
        }
        Ok(sum)
    })?;
    std::hint::black_box(sums);
    Ok(taken.time)
}

fn reopen(
    options: &Options,
    path: &Path,
    records: u64,
    number: u64,
    threads: usize,
) -> Fallible<Times> {
    let keys = Keys::new(options.seed);
    let start = Instant::now();
    // SAFETY: the only process that wrote the file is dead.
    let pool = unsafe {
        let journal = options.lost.is_journaled();
        options_of(options.seed, journal).recovery_threads(threads).open(path)?
    };
    let map = map_of(&pool, options.scheme)?;
    let opened = Instant::now();
    let key = keys.key(number);
    let found = map.get(&key)?;
    let answered = Instant::now();
    let mut draw = Draw::new(number);
    let sample = (0..10_000.min(records)).map(|_| keys.key(draw.below(records)));
    check(key, found)?;
    for key in sample {
        check(key, map.get(&key)?)?;
    }
    drop(map);
    pool.close()?;
    let raw = if options.scheme.row().linear_recovery {
        read_raw(path, threads)?
    } else {
        Duration::ZERO
    };
    let read = match options.lost {
        Lost::Memory => read_all(path)?,
        _ => Duration::ZERO,
    };
    Ok(Times { open: opened - start, first_get: answered - opened, raw, read })
}

fn check(key: u64, found: Option<u64>) -> Fallible {
    match found {
        Some(value) if belongs(key, value) => Ok(()),
        other => Err(format!("after a kill, key {key:#x} gave {other:x?}").into()),
    }
}

/// Makes the child die with this program, however this program ends. The signals that ask a program
/// to end do not reach the child, because this program blocks them, and the child inherits that.
fn die_with_this(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec, this only makes system calls.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // If the parent died before `prctl` was called, no signal will come.
            if libc::getppid().cast_unsigned() != parent {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

/// A child that works on a pool. It is killed when this is dropped.
struct Worker(Child);

impl Worker {
    fn start(options: &Options, path: &Path, records: u64) -> Fallible<Worker> {
        let mut command = Command::new(&options.program);
        die_with_this(&mut command);
        let child = command
            .arg("recovery-child")
            .args(["--scheme", options.scheme.name()])
            .args(["--records", &records.to_string()])
            .args(["--seed", &options.seed.to_string()])
            .args(options.lost.is_journaled().then_some("--journal"))
            .arg("--pool")
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Worker(child))
    }

    fn wait_until_ready(&mut self) -> Fallible {
        let out = self.0.stdout.as_mut().ok_or("the child has no output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        if line.trim() == "ready" { Ok(()) } else { Err("the child failed".into()) }
    }

    fn kill(&mut self) -> Fallible {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// The child process. It makes sure that the pool holds its records, prints `ready`, and works
/// until it is killed.
///
/// # Errors
/// Those of the pool's operations. The function returns only if there is an error.
pub fn child(scheme: Scheme, path: &Path, records: u64, seed: u64, journal: bool) -> Fallible {
    // SAFETY: the parent made the directory for this pool, and does not open the pool meanwhile.
    let pool = unsafe { options_of(seed, journal).open_or_create(path)? };
    let map = map_of(&pool, scheme)?;
    let keys = Keys::new(seed);
    // Records that an earlier child stored stay as they are.
    for key in (0..records).map(|number| keys.key(number)) {
        map.insert(&key, &value(key, 0))?;
    }
    // Wait until the inserts are durable, because a reboot may undo others.
    if journal {
        pool.wait_durable()?;
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    let mut draw = Draw::new(draw_seed());
    // Insert and remove equally many new keys, so that the pool keeps its size.
    for turn in 0.. {
        let key = keys.key(draw.below(records));
        map.update(&key, &value(key, turn as u8))?;
        let guest = keys.key(records + turn % 1024);
        if turn / 1024 % 2 == 0 {
            map.insert(&guest, &value(guest, 0))?;
        } else {
            map.remove(&guest)?;
        }
    }
    Ok(())
}

/// Returns a seed that differs for each child.
fn draw_seed() -> u64 {
    u64::from(std::process::id())
}
