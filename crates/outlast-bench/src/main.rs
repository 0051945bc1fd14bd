//! The command line of the benchmarks.

use clap::{Args, Parser, Subcommand, ValueEnum};
use outlast::{RecordForm, Scheme};
use outlast_bench::form::Reads;
use outlast_bench::kv::{self, Store};
use outlast_bench::limits::{Refused, refused};
use outlast_bench::micro::{self, Phase};
use outlast_bench::report::{Format, Report};
use outlast_bench::systems::{Kind, Medium, NodeSizes, Setup};
use outlast_bench::{
    Failure, Fallible, contention, counts, first_full, load_factor, model, node_sizes, recovery,
    scratch, space, stalls,
};
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measures outlast next to what one would use instead. docs/benchmarks.md has the method.
#[derive(Parser)]
#[command(name = "outlast-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Throughput and latency of single operations, next to maps in DRAM.
    Micro(MicroArgs),
    /// Inserts and lookups, next to embedded stores on the same file system.
    Kv(KvArgs),
    /// How full a table is while it grows by inserts alone.
    LoadFactor(LoadFactorArgs),
    /// How full a table of group hashing is when it has to grow, beside a simulation.
    FirstFull(FirstFullArgs),
    /// How soon a pool returns its first result after its process was killed with SIGKILL.
    Recovery(RecoveryArgs),
    /// Lines flushed, fences, lines and blocks read and written; counted, not timed.
    Counts(CountsArgs),
    /// Where every byte of a pool goes.
    Space(SpaceArgs),
    /// The slowest inserts of a growing table, and what each one waited for.
    Stalls(StallsArgs),
    /// Several threads that change one map for a long time, and the progress of each.
    Contention(ContentionArgs),
    /// What the counted operations would take on other media. A model, not a measurement.
    Model(ModelArgs),
    /// The effect of an ordered map's node sizes on inserts and lookups.
    NodeSizes(NodeSizesArgs),
    #[command(hide = true)]
    RecoveryChild(RecoveryChildArgs),
}

#[derive(Args)]
struct OutputArgs {
    /// Prints rows as JSON, one object per line, instead of a table.
    #[arg(long, conflicts_with = "table")]
    json: bool,
    /// Prints a table (the default).
    #[arg(long)]
    table: bool,
}

impl OutputArgs {
    fn report(&self) -> Report {
        Report::new(if self.json { Format::Json } else { Format::Table })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MediumName {
    PageCache,
    EmulatedPm,
}

#[derive(Args)]
struct RecordArgs {
    /// The record form: inline or bytes.
    #[arg(long, value_parser = record_form, default_value = "inline")]
    record: RecordForm,
    /// Key size in bytes.
    #[arg(long, default_value_t = 8)]
    key_size: usize,
    /// Value size in bytes.
    #[arg(long, default_value_t = 8)]
    value_size: usize,
    /// Stash buckets per Dash segment: 2 or 4.
    #[arg(long, default_value_t = 2)]
    stash: u32,
    /// Seed of keys, draws and hash functions.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct PoolArgs {
    /// The medium that the pool's file is treated as.
    #[arg(long, value_enum, default_value = "page-cache")]
    medium: MediumName,
    /// Emulated PM: nanoseconds added per line flushed. Turns the results into a model's.
    #[arg(long, default_value_t = 0)]
    line_ns: u64,
    /// Emulated PM: nanoseconds added per fence. Turns the results into a model's.
    #[arg(long, default_value_t = 0)]
    fence_ns: u64,
    /// Where pools are made, in directories of their own that are removed at the end. Default: the
    /// system's directory for temporary files.
    #[arg(long)]
    pool_dir: Option<PathBuf>,
}

fn directory(dir: Option<PathBuf>) -> PathBuf {
    dir.unwrap_or_else(std::env::temp_dir)
}

fn setup(scheme: Scheme, reads: Reads, record: &RecordArgs, pool: PoolArgs) -> Fallible<Setup> {
    let medium = match pool.medium {
        MediumName::EmulatedPm => {
            Medium::EmulatedPm { line_ns: pool.line_ns, fence_ns: pool.fence_ns }
        }
        MediumName::PageCache if pool.line_ns > 0 || pool.fence_ns > 0 => {
            return Err(refused("--line-ns and --fence-ns need --medium emulated-pm"));
        }
        MediumName::PageCache => Medium::PageCache,
    };
    Ok(Setup {
        scheme,
        form: record.record,
        key_bytes: record.key_size,
        value_bytes: record.value_size,
        reads,
        medium,
        dir: directory(pool.pool_dir),
        stash_buckets: record.stash,
        nodes: NodeSizes::default(),
        seed: record.seed,
    })
}

/// Arguments of commands that make their own kind of pool.
#[derive(Args)]
struct PlaceArgs {
    /// Where pools and stores are made; the file system affects the results. Default: the system's
    /// directory for temporary files.
    #[arg(long)]
    pool_dir: Option<PathBuf>,
    /// Seed of keys, draws and hash functions.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Arguments of commands that fill a pool.
#[derive(Args)]
struct FillArgs {
    #[command(flatten)]
    record: RecordArgs,
    #[command(flatten)]
    pool: PoolArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl FillArgs {
    fn setup(self, scheme: Scheme) -> Fallible<Setup> {
        setup(scheme, Reads::Owned, &self.record, self.pool)
    }
}

#[derive(Args)]
struct MicroArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    scheme: Scheme,
    /// Number of records; the insert phase begins with a tenth of them.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Number of operations in each other phase; 0: as many as records.
    #[arg(long, default_value_t = 0)]
    operations: u64,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<usize>,
    #[command(flatten)]
    record: RecordArgs,
    /// How reads of byte strings return values, for all systems.
    #[arg(long, value_enum, default_value = "owned")]
    reads: Reads,
    #[command(flatten)]
    pool: PoolArgs,
    /// Number of rounds, with all systems in turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Number of additional rounds in which every operation is timed.
    #[arg(long, default_value_t = 1)]
    latency_rounds: usize,
    /// The greatest number of operations of a phase in those rounds; inserts and removals are all
    /// timed.
    #[arg(long, default_value_t = 2_000_000)]
    latency_operations: u64,
    /// What to compare with: maps in DRAM (dashmap, papaya, scc, hashbrown; dashmap-u64, which
    /// holds pairs of words whatever the record form; skiplist and btree, which keep keys in
    /// order), and schemes.
    #[arg(long, value_delimiter = ',', default_values_t = Kind::MAPS.first().copied())]
    rival: Vec<Kind>,
    /// Phases; insert always runs. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    phases: Vec<Phase>,
    /// Draws bars and latency curves into this file (PNG, or SVG if its name ends with .svg).
    #[arg(long)]
    plot: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct KvArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    scheme: Scheme,
    /// Number of records loaded first.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Number of inserts, and of lookups, per round.
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Seconds after which the inserts of a round end.
    #[arg(long, default_value_t = 10.0)]
    insert_seconds: f64,
    /// Record form of outlast: inline (keys and values of 8 bytes each) or bytes.
    #[arg(long, value_parser = record_form, default_value = "bytes")]
    record: RecordForm,
    /// The medium that outlast's pool is treated as.
    #[arg(long, value_enum, default_value = "page-cache")]
    medium: MediumName,
    /// Key size in bytes.
    #[arg(long, default_value_t = 16)]
    key_size: usize,
    /// Value size in bytes.
    #[arg(long, default_value_t = 100)]
    value_size: usize,
    /// Number of rounds, with all stores in turn.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Stores, each with its promise. Default: all of this build.
    #[arg(long, value_delimiter = ',')]
    store: Vec<Store>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct LoadFactorArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    scheme: Scheme,
    /// The record form: inline or bytes.
    #[arg(long, value_parser = record_form, default_value = "inline")]
    record: RecordForm,
    /// Number of records at the end.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Number of inserts between two samples.
    #[arg(long, default_value_t = 10_000)]
    every: u64,
    /// Stash buckets per Dash segment, one table for each number. Default: 2,4
    #[arg(long, value_delimiter = ',')]
    stash: Vec<u32>,
    /// Seed of the keys and the hash function.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draws load factor over records into this file (PNG, or SVG if its name ends with .svg).
    #[arg(long)]
    plot: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct FirstFullArgs {
    /// Cells of a group, one table for each number.
    #[arg(long, value_delimiter = ',', default_value = "64,128,256,512,1024")]
    group_size: Vec<u32>,
    /// Cells of both levels, one table for each number.
    #[arg(long, value_delimiter = ',', default_value = "1048576")]
    cells: Vec<u64>,
    /// Number of rounds, each with another seed. The median counts.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Seed of the keys and the hash function.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct RecoveryArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    scheme: Scheme,
    /// Pool sizes, in records.
    #[arg(long, value_delimiter = ',', default_value = "100000,10000000")]
    records: Vec<u64>,
    /// Number of kills per size and number of threads.
    #[arg(long, default_value_t = 5)]
    kills: usize,
    /// Numbers of threads that open a map, if its scheme then reads all of it.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<usize>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct NodeSizesArgs {
    /// Leaves per inner node, one map for each number; with leaves of 56 pairs.
    #[arg(long, value_delimiter = ',', default_value = "32,64,128,256,512,1024")]
    node_leaves: Vec<u32>,
    /// Pairs per leaf, one map for each number; with 128 leaves per node.
    #[arg(long, value_delimiter = ',', default_value = "8,16,32,56")]
    leaf_slots: Vec<u32>,
    /// Number of records per map.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Number of threads that insert the records and then look each of them up.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Number of rounds, with all maps in turn.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seed of the keys and the hash function.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    pool: PoolArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct RecoveryChildArgs {
    #[arg(long)]
    scheme: Scheme,
    #[arg(long)]
    records: u64,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    pool: PathBuf,
}

#[derive(Args)]
struct CountedArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    scheme: Scheme,
    #[command(flatten)]
    record: RecordArgs,
    /// Number of records inserted before anything is counted.
    #[arg(long, default_value_t = 100_000)]
    records: u64,
    /// Number of operations of each kind.
    #[arg(long, default_value_t = 10_000)]
    operations: u64,
}

impl CountedArgs {
    fn options(&self) -> Fallible<counts::Options> {
        // The same rules for sizes apply as with a pool.
        let pool =
            PoolArgs { medium: MediumName::PageCache, line_ns: 0, fence_ns: 0, pool_dir: None };
        setup(self.scheme, Reads::Owned, &self.record, pool)?.check_form()?;
        Ok(counts::Options {
            scheme: self.scheme,
            form: self.record.record,
            key_bytes: self.record.key_size,
            value_bytes: self.record.value_size,
            records: self.records,
            operations: self.operations,
            stash_buckets: self.record.stash,
            nodes: NodeSizes::default(),
            seed: self.record.seed,
        })
    }
}

#[derive(Args)]
struct CountsArgs {
    #[command(flatten)]
    counted: CountedArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct ModelArgs {
    #[command(flatten)]
    counted: CountedArgs,
    /// Nanoseconds per operation if nothing about the medium is slow, as measured on this machine.
    #[arg(long, default_value_t = 100.0)]
    base_ns: f64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct SpaceArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    scheme: Scheme,
    #[command(flatten)]
    fill: FillArgs,
    /// Number of inserts.
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
}

#[derive(Args)]
struct StallsArgs {
    /// The schemes, measured one after another.
    #[arg(long, value_delimiter = ',', default_values_t = [Scheme::ALL[0]])]
    scheme: Vec<Scheme>,
    #[command(flatten)]
    fill: FillArgs,
    /// Number of inserts.
    #[arg(long, default_value_t = 5_000_000)]
    records: u64,
    /// Number of threads that share them.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// How many of the slowest inserts to print.
    #[arg(long, default_value_t = 20)]
    slowest: usize,
}

#[derive(Args)]
struct ContentionArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    scheme: Scheme,
    #[command(flatten)]
    fill: FillArgs,
    /// Number of records at which a pool is full and the next one is made.
    #[arg(long, default_value_t = 5_000_000)]
    records: u64,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    threads: Vec<usize>,
    /// Seconds for each number of threads.
    #[arg(long, default_value_t = 120.0)]
    seconds: f64,
}

fn record_form(text: &str) -> Result<RecordForm, String> {
    RecordForm::ALL
        .into_iter()
        .find(|form| form.to_string() == text)
        .ok_or_else(|| format!("unknown record form {text:?}; known: inline, bytes"))
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // The child's parent removes its files.
    if !matches!(command, Command::RecoveryChild(_))
        && let Err(failure) = scratch::remove_on_signals()
    {
        eprintln!("outlast-bench: signals: {failure}");
        return ExitCode::FAILURE;
    }
    let done = match command {
        Command::Micro(args) => run_micro(args),
        Command::Kv(args) => run_kv(args),
        Command::LoadFactor(args) => run_load_factor(args),
        Command::FirstFull(args) => run_first_full(args),
        Command::Recovery(args) => run_recovery(args),
        Command::Counts(args) => run_counts(&args),
        Command::Space(args) => run_space(args),
        Command::Stalls(args) => run_stalls(args),
        Command::Contention(args) => run_contention(args),
        Command::Model(args) => run_model(&args),
        Command::NodeSizes(args) => run_node_sizes(args),
        Command::RecoveryChild(args) => {
            recovery::child(args.scheme, &args.pool, args.records, args.seed)
        }
    };
    scratch::let_signals_finish();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the report has closed it.
        Err(failure) if is_broken_pipe(&failure) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("outlast-bench: {failure}");
            ExitCode::from(if failure.is::<Refused>() { USAGE } else { 1 })
        }
    }
}

/// The exit code for invalid arguments.
const USAGE: u8 = 2;

fn is_broken_pipe(failure: &Failure) -> bool {
    let io = failure.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn run_micro(args: MicroArgs) -> Fallible {
    let options = micro::Options {
        setup: setup(args.scheme, args.reads, &args.record, args.pool)?,
        records: args.records,
        operations: args.operations,
        threads: args.threads,
        rounds: args.rounds,
        latency_rounds: args.latency_rounds,
        latency_operations: args.latency_operations,
        rivals: args.rival,
        phases: if args.phases.is_empty() { Phase::ALL.to_vec() } else { args.phases },
    };
    check_plot(args.plot.as_deref())?;
    let (rows, latencies) = micro::run(&options, &mut args.output.report())?;
    #[cfg(feature = "plot")]
    if let Some(path) = &args.plot {
        let title = format!(
            "{}, {} records, {}, {}",
            options.setup.scheme,
            options.setup.form,
            outlast_bench::report::thousands(options.records),
            options.setup.medium
        );
        outlast_bench::plot::draw(path, &rows, &latencies, &title)?;
    }
    #[cfg(not(feature = "plot"))]
    let _ = (rows, latencies);
    Ok(())
}

/// A run may take hours, and must not end with a file that cannot be written.
fn check_plot(path: Option<&Path>) -> Fallible {
    if cfg!(not(feature = "plot")) && path.is_some() {
        return Err(refused("--plot: this build cannot (feature `plot`)"));
    }
    let Some(path) = path else { return Ok(()) };
    let no = |why: &dyn Display| refused(format!("--plot {}: {why}", path.display()));
    if !path.extension().is_some_and(|extension| extension == "png" || extension == "svg") {
        return Err(no(&"the name has to end with .png or .svg"));
    }
    if path.exists() {
        return OpenOptions::new().write(true).open(path).map(drop).map_err(|e| no(&e));
    }
    let dir = path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    tempfile::tempfile_in(dir).map(drop).map_err(|e| no(&e))
}

fn run_kv(args: KvArgs) -> Fallible {
    let record = RecordArgs {
        record: args.record,
        key_size: args.key_size,
        value_size: args.value_size,
        stash: 2,
        seed: args.place.seed,
    };
    let pool =
        PoolArgs { medium: args.medium, line_ns: 0, fence_ns: 0, pool_dir: args.place.pool_dir };
    let options = kv::Options {
        setup: setup(args.scheme, Reads::Owned, &record, pool)?,
        records: args.records,
        operations: args.operations,
        insert_seconds: args.insert_seconds,
        rounds: args.rounds,
        stores: if args.store.is_empty() { Store::ALL.to_vec() } else { args.store },
    };
    kv::run(&options, &mut args.output.report()).map(drop)
}

fn run_load_factor(args: LoadFactorArgs) -> Fallible {
    let stash_buckets = match args.stash.is_empty() {
        true if args.scheme.has_setting("stash_buckets") => vec![2, 4],
        true => vec![2],
        false => args.stash,
    };
    let options = load_factor::Options {
        scheme: args.scheme,
        form: args.record,
        records: args.records,
        every: args.every,
        stash_buckets,
        seed: args.seed,
    };
    check_plot(args.plot.as_deref())?;
    let samples = load_factor::run(&options, &mut args.output.report())?;
    #[cfg(feature = "plot")]
    if let Some(path) = &args.plot {
        let title = format!("{}, {}", options.scheme, options.form);
        outlast_bench::plot::draw_load_factor(path, &samples, &title)?;
    }
    #[cfg(not(feature = "plot"))]
    let _ = samples;
    Ok(())
}

fn run_first_full(args: FirstFullArgs) -> Fallible {
    let FirstFullArgs { group_size, cells, rounds, seed, output } = args;
    let options = first_full::Options { group_sizes: group_size, cells, rounds, seed };
    first_full::run(&options, &mut output.report())?;
    Ok(())
}

fn run_recovery(args: RecoveryArgs) -> Fallible {
    let options = recovery::Options {
        scheme: args.scheme,
        records: args.records,
        kills: args.kills,
        threads: args.threads,
        dir: directory(args.place.pool_dir),
        seed: args.place.seed,
        program: std::env::current_exe()?,
    };
    recovery::run(&options, &mut args.output.report()).map(drop)
}

fn run_counts(args: &CountsArgs) -> Fallible {
    counts::run(&args.counted.options()?, &mut args.output.report()).map(drop)
}

fn run_model(args: &ModelArgs) -> Fallible {
    model::run(&args.counted.options()?, args.base_ns, &mut args.output.report()).map(drop)
}

fn run_space(args: SpaceArgs) -> Fallible {
    let mut report = args.fill.output.report();
    let options = space::Options { setup: args.fill.setup(args.scheme)?, records: args.records };
    space::run(&options, &mut report).map(drop)
}

fn run_stalls(args: StallsArgs) -> Fallible {
    let mut report = args.fill.output.report();
    let options = stalls::Options {
        setup: args.fill.setup(args.scheme[0])?,
        schemes: args.scheme,
        records: args.records,
        threads: args.threads,
        slowest: args.slowest,
    };
    stalls::run(&options, &mut report).map(drop)
}

fn run_contention(args: ContentionArgs) -> Fallible {
    let mut report = args.fill.output.report();
    let options = contention::Options {
        setup: args.fill.setup(args.scheme)?,
        records: args.records,
        threads: args.threads,
        seconds: args.seconds,
    };
    contention::run(&options, &mut report).map(drop)
}

fn run_node_sizes(args: NodeSizesArgs) -> Fallible {
    let record = RecordArgs {
        record: RecordForm::Inline,
        key_size: 8,
        value_size: 8,
        stash: 2,
        seed: args.seed,
    };
    let options = node_sizes::Options {
        setup: setup(Scheme::Phast, Reads::Owned, &record, args.pool)?,
        node_leaves: args.node_leaves,
        leaf_slots: args.leaf_slots,
        records: args.records,
        threads: args.threads,
        rounds: args.rounds,
    };
    node_sizes::run(&options, &mut args.output.report()).map(drop)
}
