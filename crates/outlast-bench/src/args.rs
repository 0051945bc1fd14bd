//! The arguments of the commands.

use crate::figure_args::{FigureArgs, FiguresArgs};
use clap::{Args, Parser, Subcommand, ValueEnum};
use outlast::{RecordForm, Scheme};
use outlast_bench::form::Reads;
use outlast_bench::kv::Store;
use outlast_bench::limits::refused;
use outlast_bench::micro::Phase;
use outlast_bench::report::{Format, Report};
use outlast_bench::systems::{Kind, Medium, NodeSizes, Setup};
use outlast_bench::{Fallible, counts};
use std::path::PathBuf;

/// Measures outlast against what one would use instead. docs/lab/benchmarks.md has the method.
#[derive(Parser)]
#[command(name = "outlast-bench", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Throughput and latency of single operations, compared with maps in DRAM.
    Micro(MicroArgs),
    /// Inserts and lookups, compared with embedded stores on the same file system.
    Kv(KvArgs),
    /// How full a table is while it grows by inserts alone.
    LoadFactor(LoadFactorArgs),
    /// How full a table of group hashing is when it has to grow, compared with a simulation.
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
    /// What the memory accesses of operations take by themselves, without any index.
    Floor(FloorArgs),
    /// The effect of an ordered map's node sizes on inserts and lookups.
    NodeSizes(NodeSizesArgs),
    /// One figure of the papers: its data, and whether the paper's claims hold here.
    Figure(FigureArgs),
    /// All 58 figures and tables of the papers.
    Figures(FiguresArgs),
    /// Hit ratios of caches on traces, and after the process was killed.
    Cache(CacheArgs),
    #[command(hide = true)]
    CacheChild(CacheChildArgs),
    #[command(hide = true)]
    RecoveryChild(RecoveryChildArgs),
}

#[derive(Args)]
pub(crate) struct OutputArgs {
    /// Prints rows as JSON, one object per line, instead of a table.
    #[arg(long, conflicts_with = "table")]
    json: bool,
    /// Prints a table (the default).
    #[arg(long)]
    table: bool,
}

impl OutputArgs {
    pub(crate) fn report(&self) -> Report {
        Report::new(if self.json { Format::Json } else { Format::Table })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum MediumName {
    #[default]
    PageCache,
    EmulatedPm,
    Journal,
}

#[derive(Args)]
pub(crate) struct RecordArgs {
    /// The record form: inline or bytes.
    #[arg(long, value_parser = record_form, default_value = "inline")]
    pub(crate) record: RecordForm,
    /// Key size in bytes.
    #[arg(long, default_value_t = 8)]
    pub(crate) key_size: usize,
    /// Value size in bytes.
    #[arg(long, default_value_t = 8)]
    pub(crate) value_size: usize,
    /// Stash buckets per Dash segment: 2 or 4.
    #[arg(long, default_value_t = 2)]
    pub(crate) stash: u32,
    /// Seed of keys, draws and hash functions.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Args, Default)]
pub(crate) struct PoolArgs {
    /// The medium that the pool's file is treated as.
    #[arg(long, value_enum, default_value = "page-cache")]
    pub(crate) medium: MediumName,
    /// Emulated PM: nanoseconds added per line flushed. Turns the results into a model's.
    #[arg(long, default_value_t = 0)]
    pub(crate) line_ns: u64,
    /// Emulated PM: nanoseconds added per fence. Turns the results into a model's.
    #[arg(long, default_value_t = 0)]
    pub(crate) fence_ns: u64,
    /// How many threads may help to move a table of EA-PHT: 1 to 64. Default: the scheme's. With 32,
    /// EA-PHT-H moves its table as the thesis's EA-PHT-HPR does.
    #[arg(long)]
    pub(crate) helpers: Option<u32>,
    /// Where pools are made, in directories of their own that are removed at the end. Default: the
    /// system's directory for temporary files.
    #[arg(long)]
    pub(crate) pool_dir: Option<PathBuf>,
}

pub(crate) fn directory(dir: Option<PathBuf>) -> PathBuf {
    dir.unwrap_or_else(std::env::temp_dir)
}

pub(crate) fn setup(
    scheme: Scheme,
    reads: Reads,
    record: &RecordArgs,
    pool: PoolArgs,
) -> Fallible<Setup> {
    let medium = match pool.medium {
        MediumName::EmulatedPm => {
            Medium::EmulatedPm { line_ns: pool.line_ns, fence_ns: pool.fence_ns }
        }
        _ if pool.line_ns > 0 || pool.fence_ns > 0 => {
            return Err(refused("--line-ns and --fence-ns need --medium emulated-pm"));
        }
        MediumName::PageCache => Medium::PageCache,
        MediumName::Journal => Medium::Journal,
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
        helpers: pool.helpers,
        nodes: NodeSizes::default(),
        seed: record.seed,
        batched: false,
    })
}

/// Arguments of commands that make their own kind of pool.
#[derive(Args)]
pub(crate) struct PlaceArgs {
    /// Where pools and stores are made; the file system affects the results. Default: the system's
    /// directory for temporary files.
    #[arg(long)]
    pub(crate) pool_dir: Option<PathBuf>,
    /// Seed of keys, draws and hash functions.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Arguments of commands that fill a pool.
#[derive(Args)]
pub(crate) struct FillArgs {
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl FillArgs {
    pub(crate) fn setup(self, scheme: Scheme) -> Fallible<Setup> {
        setup(scheme, Reads::Owned, &self.record, self.pool)
    }
}

#[derive(Args)]
pub(crate) struct MicroArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    /// Number of records; the insert phase begins with a tenth of them.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) records: u64,
    /// Number of operations in each other phase; 0: as many as records.
    #[arg(long, default_value_t = 0)]
    pub(crate) operations: u64,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) threads: Vec<usize>,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// How reads of byte strings return values, for all systems.
    #[arg(long, value_enum, default_value = "owned")]
    pub(crate) reads: Reads,
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// Number of rounds, with all systems in turn.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Number of additional rounds in which every operation is timed.
    #[arg(long, default_value_t = 1)]
    pub(crate) latency_rounds: usize,
    /// The greatest number of operations of a phase in those rounds. Inserts and removals are
    /// always all timed.
    #[arg(long, default_value_t = 2_000_000)]
    pub(crate) latency_operations: u64,
    /// What to compare with: maps in DRAM (dashmap, papaya, scc, hashbrown; dashmap-u64, which
    /// holds pairs of words whatever the record form; skiplist and btree, which keep keys in
    /// order), and schemes.
    #[arg(long, value_delimiter = ',', default_values_t = Kind::MAPS.first().copied())]
    pub(crate) rival: Vec<Kind>,
    /// Makes inserts, updates and removals in batches of 16, where a system has such calls.
    /// Latencies of these phases are then those of a batch.
    #[arg(long)]
    pub(crate) batched: bool,
    /// Phases; insert always runs. Default: all.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) phases: Vec<Phase>,
    /// Draws bars and latency curves into this file (PNG, or SVG if its name ends with .svg).
    #[arg(long)]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct KvArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    /// Number of records loaded first.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) records: u64,
    /// Number of inserts, and of lookups, per round and number of threads.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) operations: u64,
    /// Seconds after which the inserts of a round end.
    #[arg(long, default_value_t = 10.0)]
    pub(crate) insert_seconds: f64,
    /// Record form of outlast: inline (keys and values of 8 bytes each) or bytes.
    #[arg(long, value_parser = record_form, default_value = "bytes")]
    pub(crate) record: RecordForm,
    /// The medium that outlast's pool is treated as.
    #[arg(long, value_enum, default_value = "page-cache")]
    pub(crate) medium: MediumName,
    /// Key size in bytes.
    #[arg(long, default_value_t = 16)]
    pub(crate) key_size: usize,
    /// Value size in bytes.
    #[arg(long, default_value_t = 100)]
    pub(crate) value_size: usize,
    /// Number of rounds, with all stores in turn.
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Numbers of threads that share the operations.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) threads: Vec<usize>,
    /// Stores, each with its promise. Default: all of this build.
    #[arg(long, value_delimiter = ',')]
    pub(crate) store: Vec<Store>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct LoadFactorArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    /// The record form: inline or bytes.
    #[arg(long, value_parser = record_form, default_value = "inline")]
    pub(crate) record: RecordForm,
    /// Number of records at the end.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) records: u64,
    /// Number of inserts between two samples.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) every: u64,
    /// Stash buckets per Dash segment, one table for each number. Default: 2,4
    #[arg(long, value_delimiter = ',')]
    pub(crate) stash: Vec<u32>,
    /// Seed of the keys and the hash function.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Draws load factor over records into this file (PNG, or SVG if its name ends with .svg).
    #[arg(long)]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct FirstFullArgs {
    /// Cells of a group, one table for each number.
    #[arg(long, value_delimiter = ',', default_value = "64,128,256,512,1024")]
    pub(crate) group_size: Vec<u32>,
    /// Cells of both levels, one table for each number.
    #[arg(long, value_delimiter = ',', default_value = "1048576")]
    pub(crate) cells: Vec<u64>,
    /// Number of rounds, each with another seed. Results are medians.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: u64,
    /// Seed of the keys and the hash function.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct RecoveryArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    /// Pool sizes, in records.
    #[arg(long, value_delimiter = ',', default_value = "100000,10000000")]
    pub(crate) records: Vec<u64>,
    /// Number of kills per size and number of threads.
    #[arg(long, default_value_t = 5)]
    pub(crate) kills: usize,
    /// Gives the pool a journal.
    #[arg(long)]
    pub(crate) journal: bool,
    /// Lets the machine restart as well: the working file and the page cache are lost.
    #[arg(long, requires = "journal")]
    pub(crate) reboot: bool,
    /// Numbers of threads that open a map, if its scheme then reads all of it.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) threads: Vec<usize>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct NodeSizesArgs {
    /// Leaves per inner node, one map for each number; with leaves of 56 pairs.
    #[arg(long, value_delimiter = ',', default_value = "32,64,128,256,512,1024")]
    pub(crate) node_leaves: Vec<u32>,
    /// Pairs per leaf, one map for each number; with 128 leaves per node.
    #[arg(long, value_delimiter = ',', default_value = "8,16,32,56")]
    pub(crate) leaf_slots: Vec<u32>,
    /// Number of records per map.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) records: u64,
    /// Number of threads that insert the records and then look each of them up.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Number of rounds, with all maps in turn.
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Seed of the keys and the hash function.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct CacheArgs {
    /// Records that each cache holds.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) capacity: usize,
    /// Requests of each trace.
    #[arg(long, default_value_t = 2_000_000)]
    pub(crate) requests: usize,
    /// Only traces whose names contain this.
    #[arg(long, default_value = "")]
    pub(crate) trace: String,
    /// Records for the measurement of throughput; 0 for none.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) speed_records: u64,
    /// How often throughput is measured, the systems in turn.
    #[arg(long, default_value_t = 5)]
    pub(crate) speed_rounds: usize,
    /// Throughput only of systems whose names contain this.
    #[arg(long, default_value = "")]
    pub(crate) speed_system: String,
    /// A file with one more trace: a number, the key, in each line. Can be given several times.
    #[arg(long)]
    pub(crate) trace_file: Vec<PathBuf>,
    /// Seconds of replacing all records of a cache of 256 MiB; 0 for none.
    #[arg(long, default_value_t = 0)]
    pub(crate) churn_seconds: u64,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct CacheChildArgs {
    #[arg(long)]
    pub(crate) capacity: usize,
    #[arg(long)]
    pub(crate) pool: PathBuf,
}

#[derive(Args)]
pub(crate) struct RecoveryChildArgs {
    #[arg(long)]
    pub(crate) scheme: Scheme,
    #[arg(long)]
    pub(crate) records: u64,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long)]
    pub(crate) journal: bool,
    #[arg(long)]
    pub(crate) pool: PathBuf,
}

#[derive(Args)]
pub(crate) struct CountedArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// Number of records inserted before anything is counted.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) records: u64,
    /// Number of operations of each kind.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) operations: u64,
}

impl CountedArgs {
    pub(crate) fn options(&self) -> Fallible<counts::Options> {
        // The same rules for sizes apply as with a pool.
        let pool = PoolArgs { medium: MediumName::PageCache, ..PoolArgs::default() };
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
pub(crate) struct CountsArgs {
    #[command(flatten)]
    pub(crate) counted: CountedArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    pub(crate) counted: CountedArgs,
    /// Nanoseconds per operation if nothing about the medium is slow, as measured on this machine.
    #[arg(long, default_value_t = 100.0)]
    pub(crate) base_ns: f64,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct SpaceArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    #[command(flatten)]
    pub(crate) fill: FillArgs,
    /// Number of inserts.
    #[arg(long, default_value_t = 10_000_000)]
    pub(crate) records: u64,
}

#[derive(Args)]
pub(crate) struct FloorArgs {
    /// Size of the memory in MiB, a power of two. Should be close to that of the pool to compare with.
    #[arg(long, default_value_t = 256)]
    pub(crate) mib: u64,
    /// Number of operations in each measurement.
    #[arg(long, default_value_t = 3_000_000)]
    pub(crate) operations: u64,
    /// Number of rounds. Results are medians.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Where the memory's file is made. Default: the system's directory for temporary files.
    #[arg(long)]
    pub(crate) pool_dir: Option<PathBuf>,
    /// Seed of the draws.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args)]
pub(crate) struct StallsArgs {
    /// The schemes, measured one after another.
    #[arg(long, value_delimiter = ',', default_values_t = [Scheme::ALL[0]])]
    pub(crate) scheme: Vec<Scheme>,
    #[command(flatten)]
    pub(crate) fill: FillArgs,
    /// Number of inserts.
    #[arg(long, default_value_t = 5_000_000)]
    pub(crate) records: u64,
    /// Number of threads that share the inserts.
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// How many of the slowest inserts to print.
    #[arg(long, default_value_t = 20)]
    pub(crate) slowest: usize,
}

#[derive(Args)]
pub(crate) struct ContentionArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    #[command(flatten)]
    pub(crate) fill: FillArgs,
    /// Number of records at which a pool is full and the next one is made.
    #[arg(long, default_value_t = 5_000_000)]
    pub(crate) records: u64,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    pub(crate) threads: Vec<usize>,
    /// Seconds for each number of threads.
    #[arg(long, default_value_t = 120.0)]
    pub(crate) seconds: f64,
}

pub(crate) fn record_form(text: &str) -> Result<RecordForm, String> {
    RecordForm::ALL
        .into_iter()
        .find(|form| form.to_string() == text)
        .ok_or_else(|| format!("unknown record form {text:?}; known: inline, bytes"))
}
