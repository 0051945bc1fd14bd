//! `kv`: outlast compared with embedded stores on the same file system. Every row names the
//! failures that a change survives.
//!
//! In each store, every operation is a transaction of its own, as in a server that answers a client
//! only after its change has been committed. Each store is measured with more than one promise:
//! once so that a change survives a power loss, and again with weaker promises. A store that waits
//! for the disk on every insert makes few inserts per second, so the inserts of a round end after a
//! given time.

mod library;
mod promise;
#[cfg(feature = "stores")]
mod stores;

use crate::Fallible;
use crate::form::Hand;
use crate::keys::{self, Draw, Keys, belongs, value};
use crate::latency::{Latency, Percentiles};
use crate::limits;
use crate::micro::{Mops, Ratio};
use crate::progress::Progress;
use crate::report::{Report, Show, median, rounded};
use crate::run::Run;
use crate::scratch::Scratch;
use crate::systems::{Medium, Setup};
use crate::team;
use crate::usage;
use outlast::RecordForm;
use outlast::internals::pmem::{MapAccess, Mapping};
pub use promise::{Promise, Store};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of records per scan.
const SCANNED: usize = 50;

/// The interface of a store in this benchmark. Each thread has its own [`Hand`].
trait Client: Sync {
    /// Inserts many records, in the fastest way that the store has.
    fn load(&self, hand: &mut Hand, records: &mut dyn Iterator<Item = (u64, u64)>) -> Fallible;
    /// Inserts a record. The store's promise holds once this returns.
    fn insert(&self, hand: &mut Hand, key: u64, value: u64) -> Fallible;
    /// Looks up a record.
    fn get(&self, hand: &mut Hand, key: u64) -> Fallible<Option<u64>>;
    /// Appends up to [`SCANNED`] records to `found`, in key order, beginning at the key `from`.
    /// Returns `false`, and appends nothing, if the store keeps no key order.
    fn scan(&self, hand: &mut Hand, from: u64, found: &mut Found) -> Fallible<bool>;
}

/// The keys and values that a scan found, in the scan's order.
type Found = Vec<(u64, u64)>;

/// Options of the command.
#[derive(Debug, Clone)]
pub struct Options {
    /// Sizes, directory and seed. Keys and values are byte strings for all stores except outlast,
    /// whose records can be words.
    pub setup: Setup,
    /// Records loaded first.
    pub records: u64,
    /// Inserts, and lookups, per round and number of threads.
    pub operations: u64,
    /// Seconds after which the inserts of a round end.
    pub insert_seconds: f64,
    /// Number of rounds.
    pub rounds: usize,
    /// Numbers of threads that share the operations, in this order.
    pub threads: Vec<usize>,
    /// The stores, in this order.
    pub stores: Vec<Store>,
}

impl Options {
    fn check(&self) -> Fallible {
        self.setup.check()?;
        self.setup.check_records(self.records, 1)?;
        limits::range("operations", self.operations, 1..=limits::RECORDS_MAX)?;
        limits::range("rounds", self.rounds, 1..=limits::ROUNDS_MAX)?;
        limits::range("insert-seconds", self.insert_seconds, 0.001..=86_400.0)?;
        limits::threads(&self.threads)?;
        // LMDB accepts up to 511 bytes.
        limits::range("key-size", self.setup.key_bytes, 8..=500)?;
        limits::each_once("store", &self.stores)
    }
}

/// One row: a phase of a store with a number of threads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// `insert`, `get` or `scan`.
    pub phase: &'static str,
    /// The store.
    pub store: &'static str,
    /// Number of threads.
    pub threads: usize,
    /// What a change survives once its call has returned.
    pub guarantee: &'static str,
    /// Whether that includes process death.
    pub survives_process_death: bool,
    /// Whether that includes a power loss.
    pub survives_power_loss: bool,
    /// Number of records loaded first.
    pub records: u64,
    /// Number of operations in all rounds.
    pub operations: u64,
    /// Number of rounds.
    pub rounds: usize,
    /// Throughput.
    #[serde(flatten)]
    pub mops: Mops,
    /// Throughput in thousand operations per second, because stores that sync are slow.
    pub kops: f64,
    /// Latency.
    #[serde(flatten)]
    pub latency: Percentiles,
    /// Bytes on the file system per record, after the load.
    pub file_bytes_per_record: f64,
    /// For inserts: bytes written to the disk per insert. Dirty pages that the kernel writes back
    /// after the last insert count too. `None` if the file system has no disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes_per_insert: Option<f64>,
    /// For `outlast`: the ratio to each other store.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ratio_to_rival: BTreeMap<String, Ratio>,
}

/// The line of a store and a number of threads in the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// The store.
    pub store: &'static str,
    /// Number of threads.
    pub threads: usize,
    /// Whether a change survives process death once its call has returned.
    pub survives_process_death: &'static str,
    /// What a power loss leaves.
    pub after_power_loss: &'static str,
    /// The row of the inserts.
    pub insert: Row,
    /// The row of the lookups.
    pub get: Row,
    /// The row of the scans, if the store keeps a key order.
    pub scan: Option<Row>,
}

impl Line {
    /// Makes a line for every store and number of threads that has a row of inserts and a row of
    /// lookups. The stores with the strongest promises come first.
    fn all(rows: &[Row], threads: &[usize], medium: Medium) -> Vec<Line> {
        let mut stores: Vec<Store> = Store::ALL.to_vec();
        stores.sort_by_key(|store| {
            let promise = store.promise(medium);
            std::cmp::Reverse((promise.power_loss, promise.process_death))
        });
        let line = |(store, threads): (Store, usize)| {
            let own = |row: &&Row| row.store == store.name() && row.threads == threads;
            let of = |phase| rows.iter().filter(own).find(|row| row.phase == phase);
            let promise = store.promise(medium);
            Some(Line {
                store: store.name(),
                threads,
                survives_process_death: if promise.process_death { "yes" } else { "no" },
                after_power_loss: promise.after_power_loss,
                insert: of("insert")?.clone(),
                get: of("get")?.clone(),
                scan: of("scan").cloned(),
            })
        };
        let each = |store| threads.iter().map(move |&threads| (store, threads));
        stores.into_iter().flat_map(each).filter_map(line).collect()
    }
}

/// The results of one phase of a store.
struct Seen {
    operations: u64,
    mops: Vec<f64>,
    latency: Latency,
}

impl Seen {
    fn new() -> Fallible<Seen> {
        Ok(Seen { operations: 0, mops: Vec::new(), latency: Latency::new()? })
    }

    /// Runs operations in all threads of a team until `count` are done or `time` is over. `ready`
    /// makes a thread's operation from the thread's number. Each call of an operation gets a number
    /// below `count` that no other call gets. Returns the range of numbers that each thread has
    /// used.
    fn measure<O: FnMut(u64) -> Fallible>(
        &mut self,
        threads: usize,
        count: u64,
        time: Duration,
        ready: impl Fn(usize) -> Fallible<O> + Sync,
    ) -> Fallible<Vec<Range<u64>>> {
        let run = |thread: usize| {
            let mut operation = ready(thread)?;
            let mut latency = Latency::new()?;
            let (first, count) = team::share(count, threads, thread);
            let start = Instant::now();
            let mut done = 0;
            while done < count && start.elapsed() < time {
                let before = Instant::now();
                operation(first + done)?;
                latency.record(before.elapsed().as_nanos() as u64);
                done += 1;
            }
            Ok((first..first + done, latency))
        };
        let (results, taken) = team::run(threads, run)?;
        let mut turns = Vec::new();
        for (own, latency) in results {
            self.latency.add(&latency)?;
            turns.push(own);
        }
        let done: u64 = turns.iter().map(|own| own.end - own.start).sum();
        self.operations += done;
        self.mops.push(done as f64 / taken.time.as_secs_f64().max(1e-9) / 1e6);
        Ok(turns)
    }
}

struct Observed {
    insert: Seen,
    get: Seen,
    scan: Seen,
    file_bytes: u64,
    /// Bytes written to the disk for all inserts; `None` if that is not known.
    disk_bytes: Option<u64>,
}

/// The observations of each store with each number of threads.
type Results = BTreeMap<(Store, usize), Observed>;

/// Measures all stores, and prints a row for each store and phase.
///
/// # Errors
/// If an option is invalid, or if a store fails or returns a wrong result.
pub fn run(options: &Options, report: &mut Report) -> Fallible<Vec<Row>> {
    options.check()?;
    let setup = &options.setup;
    #[derive(Serialize)]
    struct Own {
        records: u64,
        operations: u64,
        insert_seconds: f64,
        rounds: usize,
        sync: SyncTime,
    }
    let sync = SyncTime::measure(&setup.dir)?;
    let Options { records, operations, insert_seconds, rounds, .. } = *options;
    let run = Run::on_files("kv", setup, &[setup.scheme])?;
    report.run(&run, &Own { records, operations, insert_seconds, rounds, sync })?;
    let mut results = Results::new();
    for &store in &options.stores {
        for &threads in &options.threads {
            let [insert, get, scan] = [Seen::new()?, Seen::new()?, Seen::new()?];
            results.insert(
                (store, threads),
                Observed { insert, get, scan, file_bytes: 0, disk_bytes: Some(0) },
            );
        }
    }
    let progress = Progress::new((options.rounds * options.stores.len()) as u64);
    for round in 0..options.rounds {
        for &store in &options.stores {
            progress.next(&format!("round {} of {}: {store}", round + 1, options.rounds));
            one(options, store, &mut results).map_err(|e| format!("{store}: {e}"))?;
            progress.done(1);
        }
    }
    drop(progress);
    let mut rows = Vec::new();
    for phase in ["insert", "get", "scan"] {
        for &store in &options.stores {
            for &threads in &options.threads {
                let Some(row) = row(options, phase, (store, threads), &results) else { continue };
                report.row("kv", &row)?;
                rows.push(row);
            }
        }
    }
    print_table(&rows, options, sync, report)?;
    Ok(rows)
}

fn print_table(rows: &[Row], options: &Options, sync: SyncTime, report: &mut Report) -> Fallible {
    if report.is_json() {
        return Ok(());
    }
    for line in Line::all(rows, &options.threads, options.setup.medium) {
        report.row("kv_store", &line)?;
    }
    report.table(
        "kv_store",
        &[
            ("store", "/store", Show::Text),
            ("threads", "/threads", Show::Count),
            ("survives a kill", "/survives_process_death", Show::Text),
            ("a power loss leaves", "/after_power_loss", Show::Text),
            ("inserts, k/s", "/insert/kops", Show::Decimal(1)),
            ("p50", "/insert/p50_ns", Show::Nanoseconds),
            ("p99", "/insert/p99_ns", Show::Nanoseconds),
            ("gets, k/s", "/get/kops", Show::Decimal(0)),
            ("p50", "/get/p50_ns", Show::Nanoseconds),
            ("p99", "/get/p99_ns", Show::Nanoseconds),
            ("scans, k/s", "/scan/kops", Show::Decimal(1)),
            ("p50", "/scan/p50_ns", Show::Nanoseconds),
            ("file B/record", "/get/file_bytes_per_record", Show::Decimal(0)),
            ("disk B/insert", "/insert/disk_bytes_per_insert", Show::Decimal(0)),
        ],
    )?;
    let SyncTime { written_us, mapped_us } = sync;
    report.note(&format!(
        "Every insert, every get and every scan (of {SCANNED} records) is a \
         transaction of its own. To sync one page takes {written_us:.0} us here after a write, \
         {mapped_us:.0} us after a store to mapped memory.\nA store whose inserts survive a \
         power loss waits for the first kind of sync. outlast-sync waits three times for the \
         second kind: mark, data, mark.\nCompare stores that promise the same."
    ))
}

/// The time a file system takes to make a change durable. No store that makes each change durable
/// by itself can be faster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct SyncTime {
    /// Microseconds to write to one page of a file and sync it.
    written_us: f64,
    /// Microseconds to store to a mapped page and sync it. The kernel first has to find that page.
    mapped_us: f64,
}

impl SyncTime {
    /// The number of page changes whose median time is reported.
    const CHANGES: u64 = 200;
    const PAGE: u64 = 4096;

    fn measure(dir: &Path) -> Fallible<SyncTime> {
        let file = tempfile::tempfile_in(dir)?;
        // The pages are written before the measurement, so that a sync need not allocate blocks.
        for page in 0..Self::CHANGES {
            file.write_all_at(&[1; Self::PAGE as usize], page * Self::PAGE)?;
        }
        file.sync_all()?;
        let len = Self::CHANGES * Self::PAGE;
        let mapping = Mapping::file(file.try_clone()?, MapAccess::ReadWrite, len, len)?;
        let written_us = Self::median_us(|page| {
            file.write_all_at(&[2], page * Self::PAGE)?;
            Ok(file.sync_all()?)
        })?;
        let mapped_us = Self::median_us(|page| {
            // SAFETY: the page is mapped, and nothing else uses it.
            unsafe {
                mapping.base().cast_mut().add((page * Self::PAGE) as usize).write_volatile(3)
            };
            Ok(mapping.sync()?)
        })?;
        Ok(SyncTime { written_us, mapped_us })
    }

    fn median_us(mut change: impl FnMut(u64) -> Fallible) -> Fallible<f64> {
        let mut times = Vec::new();
        for page in 0..Self::CHANGES {
            let start = Instant::now();
            change(page)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(rounded(median(&times).unwrap_or(0.0), 1))
    }
}

fn row(
    options: &Options,
    phase: &'static str,
    (store, threads): (Store, usize),
    results: &Results,
) -> Option<Row> {
    let of = |store: Store| {
        let result = results.get(&(store, threads))?;
        Some(match phase {
            "insert" => &result.insert,
            "get" => &result.get,
            _ => &result.scan,
        })
    };
    let seen = of(store)?;
    let promise = store.promise(options.setup.medium);
    let mops = Mops::of(&seen.mops)?;
    let exact = median(&seen.mops)?;
    let ratio_to_rival = options
        .stores
        .iter()
        .filter(|other| store == Store::Outlast && **other != store)
        .filter_map(|&other| Some((other.name().into(), Ratio::of(&seen.mops, &of(other)?.mops)?)))
        .collect();
    Some(Row {
        phase,
        store: store.name(),
        threads,
        guarantee: promise.text,
        survives_process_death: promise.process_death,
        survives_power_loss: promise.power_loss,
        records: options.records,
        operations: seen.operations,
        rounds: seen.mops.len(),
        mops,
        kops: rounded(exact * 1e3, 3),
        latency: seen.latency.percentiles(),
        file_bytes_per_record: rounded(
            results.get(&(store, threads))?.file_bytes as f64 / options.records as f64,
            1,
        ),
        disk_bytes_per_insert: results
            .get(&(store, threads))?
            .disk_bytes
            .filter(|_| phase == "insert")
            .map(|bytes| rounded(bytes as f64 / seen.operations.max(1) as f64, 1)),
        ratio_to_rival,
    })
}

/// Runs one round of one store, in an empty directory.
fn one(options: &Options, store: Store, results: &mut Results) -> Fallible {
    let place = Scratch::create(&options.setup.dir)?;
    let path = place.path();
    with(store, &options.setup, path, |client| measure(options, client, store, path, results))
}

fn measure(
    options: &Options,
    client: &dyn Client,
    store: Store,
    path: &Path,
    results: &mut Results,
) -> Fallible {
    let keys = Keys::new(options.setup.seed);
    let record = |number: u64| {
        let key = keys.key(number);
        (key, value(key, 0))
    };
    let hand = || options.setup.hand();
    team::run(1, |_| client.load(&mut hand(), &mut (0..options.records).map(record)))?;
    let file_bytes = bytes_in(path)?;
    let mut present = options.records;
    for &threads in &options.threads {
        let Some(result) = results.get_mut(&(store, threads)) else { continue };
        result.file_bytes = file_bytes;
        lookups(options, client, threads, present > options.records, result)?;
        let insert_time = Duration::from_secs_f64(options.insert_seconds);
        let before = usage::disk_bytes(path);
        let turns = result.insert.measure(threads, options.operations, insert_time, |_| {
            let mut hand = hand();
            Ok(move |number| {
                let (key, value) = record(present + number);
                client.insert(&mut hand, key, value)
            })
        })?;
        result.disk_bytes = result
            .disk_bytes
            .and_then(|bytes| Some(bytes + usage::disk_bytes(path)?.saturating_sub(before?)));
        // Check that the inserted records are present: all of a few, or about a thousand of many.
        let mut hand = hand();
        for number in turns.into_iter().flat_map(|own| {
            let step = 1 + (own.end - own.start) as usize * threads / 1000;
            own.step_by(step)
        }) {
            let (key, expected) = record(present + number);
            if client.get(&mut hand, key)? != Some(expected) {
                return Err(format!("an inserted record is gone: key {key:#x}").into());
            }
        }
        // The next number of threads inserts other records.
        present += options.operations;
    }
    Ok(())
}

/// Measures gets and scans of the records that were loaded. `more` says whether others may be
/// present.
fn lookups(
    options: &Options,
    client: &dyn Client,
    threads: usize,
    more: bool,
    result: &mut Observed,
) -> Fallible {
    let keys = Keys::new(options.setup.seed);
    let draw = |thread: usize| Draw::new(options.setup.seed + thread as u64);
    let get = |hand: &mut Hand, number: u64| -> Fallible {
        let key = keys.key(number);
        match client.get(hand, key)? {
            Some(value) if belongs(key, value) => Ok(()),
            other => Err(format!("wrong answer: key {key:#x} gave {other:x?}").into()),
        }
    };
    let no_end = Duration::MAX;
    result.get.measure(threads, options.operations, no_end, |thread| {
        let (mut draw, mut hand) = (draw(thread), options.setup.hand());
        for _ in 0..options.operations / 20 / threads as u64 {
            get(&mut hand, draw.below(options.records))?;
        }
        Ok(move |_| get(&mut hand, draw.below(options.records)))
    })?;
    // The keys are stored as bytes, and so ordered by their bytes.
    let in_order = |key: u64| key.swap_bytes();
    let all = (0..options.records).map(|number| in_order(keys.key(number)));
    let last_whole = keys::last_whole(all, SCANNED);
    let scan = |hand: &mut Hand, number: u64, found: &mut Found| -> Fallible<bool> {
        let from = keys.key(number);
        found.clear();
        if !client.scan(hand, from, found)? {
            return Ok(false);
        }
        let whole = in_order(from) <= last_whole;
        let begins = found.first().is_some_and(|&(key, _)| key == from);
        let ascends = found.windows(2).all(|pair| in_order(pair[0].0) < in_order(pair[1].0));
        let right = found.iter().all(|&(key, value)| belongs(key, value));
        let enough = found.len() == SCANNED || !whole;
        let too_many = found.len() == SCANNED && !whole && !more;
        if begins && ascends && right && enough && !too_many {
            return Ok(true);
        }
        Err(format!("wrong answer: a scan from {from:#x} gave {found:x?}").into())
    };
    if scan(&mut options.setup.hand(), 0, &mut Found::new())? {
        let scans = (options.operations / 10).max(1);
        result.scan.measure(threads, scans, no_end, |thread| {
            let (mut draw, mut hand) = (draw(thread), options.setup.hand());
            let mut found = Found::new();
            Ok(move |_| scan(&mut hand, draw.below(options.records), &mut found).map(drop))
        })?;
    }
    Ok(())
}

fn with(
    store: Store,
    setup: &Setup,
    dir: &Path,
    job: impl FnOnce(&dyn Client) -> Fallible,
) -> Fallible {
    match store {
        Store::Outlast | Store::OutlastSync | Store::OutlastJournal | Store::OutlastWait => {
            let waits = matches!(store, Store::OutlastSync | Store::OutlastWait);
            let mut setup = setup.clone();
            if matches!(store, Store::OutlastJournal | Store::OutlastWait) {
                setup.medium = Medium::Journal;
            }
            let setup = &setup;
            match setup.form {
                RecordForm::Inline => job(&library::Words::create(setup, dir, waits)?),
                RecordForm::Bytes => job(&library::Strings::create(setup, dir, waits)?),
            }
        }
        #[cfg(feature = "stores")]
        Store::Redb => job(&stores::Redb::create(dir, true)?),
        #[cfg(feature = "stores")]
        Store::RedbNone => job(&stores::Redb::create(dir, false)?),
        #[cfg(feature = "stores")]
        Store::Lmdb => stores::with_lmdb(dir, true, job),
        #[cfg(feature = "stores")]
        Store::LmdbNoSync => stores::with_lmdb(dir, false, job),
        #[cfg(feature = "stores")]
        Store::Fjall => job(&stores::Fjall::create(dir, true)?),
        #[cfg(feature = "stores")]
        Store::FjallBuffer => job(&stores::Fjall::create(dir, false)?),
        #[cfg(not(feature = "stores"))]
        other => Err(format!("this build has no {other} (feature `stores`)").into()),
    }
}

/// Returns how many bytes on the file system all files in and below a directory occupy.
fn bytes_in(dir: &Path) -> Fallible<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { bytes_in(&entry.path())? } else { meta.blocks() * 512 };
    }
    Ok(bytes)
}
