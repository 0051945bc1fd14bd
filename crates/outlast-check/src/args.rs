//! The arguments of the commands.

use clap::{Args, Parser, Subcommand};
use outlast::{RecordForm, Scheme};
use outlast_check::codec::record_form;
use outlast_check::{explore, schedule, vm};
use std::path::PathBuf;

/// Tries to break the claims that outlast makes about crashes.
#[derive(Parser)]
#[command(name = "outlast-check", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Runs the whole proof of a scheme: crash images, schedules, mutants, seeded bugs, disk
    /// faults.
    Run(RunArgs),
    /// Builds what crashes of recorded runs can leave, reopens it, and checks it.
    Explore(ExploreArgs),
    /// Leaves out or misplaces each flush and fence, one at a time; the suite must notice each
    /// mutant.
    Mutants(MutantArgs),
    /// Puts published bugs into the library, one at a time; the harness must find each.
    Seeded(SeededArgs),
    /// Kills a process that works on a pool, again and again. This does not test flushes.
    Torture(TortureArgs),
    /// Measures how much larger a pool becomes if its process is killed again and again.
    Growth(GrowthArgs),
    /// Holds a reference into a pool for a long time, while the pool is updated.
    Guard(GuardArgs),
    /// Fills a pool that cannot grow, kills its process, and inserts right after reopening it.
    Full(PlaceArgs),
    /// Runs a few threads in chosen interleavings with crashes, and checks their histories.
    Schedule(ScheduleArgs),
    /// Ends pools with a journal while a background thread is at each moment of its work, and opens and
    /// closes a pool again and again.
    Endings(EndingsArgs),
    /// Makes each call to the file system fail or have no effect, then loses the process or power.
    Disk(DiskArgs),
    /// Runs the library on a real DAX file system, in a virtual machine whose power is cut.
    Vm(vm::Args),
    /// Damages the structure of pools; verification must tell the truth about each.
    Fuzz(FuzzArgs),
    /// Damages the files of journaled pools; each must open with everything, or be refused.
    FuzzJournal(outlast_check::fuzz::journal::Args),
    /// Checks a history (see docs/lab/history-format.md), or records one from real threads.
    History(HistoryArgs),
    #[command(hide = true)]
    VmGuest {
        #[command(subcommand)]
        step: vm::guest::Step,
    },
    #[command(hide = true)]
    TortureChild(TortureChildArgs),
    #[command(hide = true)]
    GrowthChild(GrowthChildArgs),
    #[command(hide = true)]
    FullChild(PlaceArgs),
    #[command(hide = true)]
    EndingChild { dir: PathBuf, scheme: Scheme, moment: usize, nth: u64 },
}

#[derive(Args)]
pub(crate) struct EndingsArgs {
    /// Only this scheme.
    #[arg(long)]
    pub(crate) scheme: Option<Scheme>,
    /// How often a pool is opened, changed and closed.
    #[arg(long, default_value_t = 200)]
    pub(crate) rounds: u64,
    /// How many times that a thread comes to a moment are tried.
    #[arg(long, default_value_t = 1)]
    pub(crate) times: u64,
    /// The seed of the campaign.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Prints one line of JSON for each scheme.
    #[arg(long)]
    pub(crate) json: bool,
    /// Where to put the pools, which are removed at the end.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    /// Only this record form: inline or bytes.
    #[arg(long, value_parser = record_form)]
    pub(crate) record: Option<RecordForm>,
    /// The medium: any that has no journal, or one with a journal.
    #[arg(long, value_enum, default_value_t = MediumName::Plain)]
    pub(crate) medium: MediumName,
    /// Only this scenario, for the medium journal.
    #[arg(long)]
    pub(crate) scenario: Option<String>,
    /// The first round, for the medium journal. Each round has other keys.
    #[arg(long, default_value_t = 0)]
    pub(crate) round: u64,
    /// How much to try.
    #[arg(long, value_enum, default_value_t = BudgetName::Quick)]
    pub(crate) budget: BudgetName,
    /// Ends the exploration after this many distinct images.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) distinct: Option<u64>,
    /// Number of threads.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) threads: u64,
    /// Prints only the summary, as one line of JSON for each record form.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct DiskArgs {
    /// Only this scheme.
    #[arg(long)]
    pub(crate) scheme: Option<Scheme>,
    /// Only this record form: inline or bytes.
    #[arg(long, value_parser = record_form)]
    pub(crate) record: Option<RecordForm>,
    /// Number of threads.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) threads: u64,
}

#[derive(Args)]
pub(crate) struct PlaceArgs {
    /// The scheme of the map.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    /// Where to put the pool, which is removed at the end.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct GuardArgs {
    /// How long to hold the reference.
    #[arg(long, default_value_t = 60.0)]
    pub(crate) seconds: f64,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// Which media to try.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MediumName {
    /// Those without a journal.
    Plain,
    /// A disk with a journal: what a power loss leaves of base and segments.
    Journal,
}

/// How much to explore.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum BudgetName {
    /// Seconds to a minute.
    Quick,
    /// Minutes.
    Ci,
    /// Hours.
    Deep,
}

#[derive(Args)]
pub(crate) struct ScheduleArgs {
    /// Only this scheme.
    #[arg(long)]
    pub(crate) scheme: Option<Scheme>,
    /// Only this record form: inline or bytes.
    #[arg(long, value_parser = record_form)]
    pub(crate) record: Option<RecordForm>,
    /// Only this kind of workload.
    #[arg(long)]
    pub(crate) workload: Option<String>,
    /// Schedules for each scheme and record form.
    #[arg(long, default_value_t = 5_200, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) schedules: u64,
    /// Ends after this many seconds for each scheme and record form.
    #[arg(long, default_value_t = 600.0, value_parser = positive)]
    pub(crate) seconds: f64,
    /// Crashes in each schedule, besides those at its returns.
    #[arg(long, default_value_t = 4)]
    pub(crate) crashes: usize,
    /// Threads that run schedules.
    #[arg(long, default_value_t = 2, value_parser = at_least_one)]
    pub(crate) threads: usize,
    /// The first seed; with --strategy, the only one.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Runs only one schedule, named by its strategy (random, pct or held), --seed and --workload.
    #[arg(long, requires = "workload")]
    pub(crate) strategy: Option<schedule::Choice>,
    /// The seed of the schedule's order, if it differs.
    #[arg(long, requires = "strategy")]
    pub(crate) order: Option<u64>,
    /// Operations of the schedule to leave out, by number.
    #[arg(long, requires = "strategy", value_delimiter = ',')]
    pub(crate) without: Vec<usize>,
    /// Tries only the crash after this many events of its trace.
    #[arg(long, requires = "strategy")]
    pub(crate) crash: Option<usize>,
}

impl ScheduleArgs {
    pub(crate) fn schemes(&self) -> Vec<Scheme> {
        let all = Scheme::ALL.iter().copied();
        all.filter(|s| self.scheme.is_none_or(|scheme| scheme == *s)).collect()
    }
}

#[derive(Args)]
pub(crate) struct FuzzArgs {
    /// The scheme of the maps.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    /// Number of mutants.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) mutants: u64,
    /// The seed that determines the mutants.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Only the mutant with this number, as a failure reports it.
    #[arg(long)]
    pub(crate) mutant: Option<u64>,
    /// Number of threads.
    #[arg(long, default_value_t = 2, value_parser = at_least_one)]
    pub(crate) threads: usize,
    /// Prints the outcome as one line of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct HistoryArgs {
    /// The file, as JSON lines.
    pub(crate) file: PathBuf,
    /// First records a history into the file. Real threads make it, on a map that changes its
    /// structure all the time.
    #[arg(long)]
    pub(crate) write: bool,
    /// The scheme of the recorded map.
    #[arg(long, default_value_t = Scheme::ALL[0], requires = "write")]
    pub(crate) scheme: Scheme,
    /// The record form of the recorded map: inline or bytes.
    #[arg(long, value_parser = record_form, default_value = "inline", requires = "write")]
    pub(crate) record: RecordForm,
    /// Number of threads.
    #[arg(long, default_value_t = 4, requires = "write", value_parser = at_least_one)]
    pub(crate) threads: usize,
    /// Operations per thread.
    #[arg(long, default_value_t = 10_000, requires = "write")]
    pub(crate) operations: u64,
    /// Number of keys.
    #[arg(long, default_value_t = 6, requires = "write",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keys: u64,
    /// The seed of each thread's choices.
    #[arg(long, default_value_t = 1, requires = "write")]
    pub(crate) seed: u64,
}

#[derive(Args)]
pub(crate) struct ExploreArgs {
    /// Only this scheme.
    #[arg(long)]
    pub(crate) scheme: Option<Scheme>,
    /// Only this record form: inline or bytes.
    #[arg(long, value_parser = record_form)]
    pub(crate) record: Option<RecordForm>,
    /// Only this scenario, in all shapes unless the name includes one.
    #[arg(long)]
    pub(crate) scenario: Option<String>,
    /// How much to explore.
    #[arg(long, value_enum, default_value_t = BudgetName::Quick)]
    pub(crate) budget: BudgetName,
    /// Ends as soon as this many distinct images have been checked.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) distinct: Option<u64>,
    /// The first round. Each round has other keys.
    #[arg(long, default_value_t = 0)]
    pub(crate) round: u64,
    /// Only the image that this crash leaves, as a violation reports it.
    #[arg(long, requires = "scenario")]
    pub(crate) crash: Option<explore::Crash>,
    /// Only the image that this second crash leaves of the run that reopened the first image.
    #[arg(long, requires = "crash")]
    pub(crate) nested: Option<explore::Crash>,
    /// Number of threads.
    #[arg(long, default_value_t = explore::Options::default().threads, value_parser = at_least_one)]
    pub(crate) threads: usize,
    /// Prints the images by operation and cut.
    #[arg(long)]
    pub(crate) tables: bool,
    /// Prints the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct MutantArgs {
    /// The scheme.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    /// Only this record form: inline or bytes.
    #[arg(long, value_parser = record_form)]
    pub(crate) record: Option<RecordForm>,
    /// Prints each mutant or seeded bug and its fate, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct SeededArgs {
    #[command(flatten)]
    pub(crate) of: MutantArgs,
    /// Only prints the table of published bugs, with the seeded bug for each.
    #[arg(long)]
    pub(crate) markdown: bool,
    /// Only the bugs whose name in the report contains this.
    #[arg(long, default_value = "")]
    pub(crate) only: String,
}

#[derive(Args)]
pub(crate) struct SubjectArgs {
    /// The scheme of the maps.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    /// Only maps of this record form: inline or bytes.
    #[arg(long, value_parser = record_form)]
    pub(crate) record: Option<RecordForm>,
    /// Keys per map.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keys: u64,
    /// Threads per process.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) threads: u64,
    /// The seed of the work. The moments of the kills stay random.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("end").required(true))]
pub(crate) struct TortureArgs {
    /// Ends after this many minutes.
    #[arg(long, group = "end", value_parser = positive)]
    pub(crate) minutes: Option<f64>,
    /// Ends after this many kills.
    #[arg(long, group = "end")]
    pub(crate) kills: Option<u64>,
    /// Gives the pool a journal.
    #[arg(long)]
    pub(crate) journal: bool,
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,
    /// Where to put the pool, which is removed at the end.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// Puts the pool itself into this directory, where it stays.
    #[arg(long)]
    pub(crate) pool_dir: Option<PathBuf>,
    /// Runs this shell command after each kill, for instance to mount the pool's file system anew.
    #[arg(long)]
    pub(crate) after_kill: Option<String>,
}

#[derive(Args)]
pub(crate) struct TortureChildArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,
    #[arg(long)]
    pub(crate) dir: PathBuf,
    #[arg(long)]
    pub(crate) pool_dir: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct GrowthArgs {
    /// The scheme of the map.
    #[arg(long, default_value_t = Scheme::ALL[0])]
    pub(crate) scheme: Scheme,
    /// Number of lives, each ended by a kill.
    #[arg(long, default_value_t = 100)]
    pub(crate) lives: u64,
    /// Operations per life of the process.
    #[arg(long, default_value_t = 300)]
    pub(crate) operations: u64,
    /// Keys present on average.
    #[arg(long, default_value_t = 6000)]
    pub(crate) keys: u64,
    /// Threads per process.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) threads: u64,
    /// Gives all records one size.
    #[arg(long)]
    pub(crate) even: bool,
    /// Where to put the pools, which are removed at the end.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct GrowthChildArgs {
    #[command(flatten)]
    pub(crate) growth: GrowthArgs,
    #[arg(long)]
    pub(crate) life: u64,
}

/// Parses a number of seconds or minutes.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number > 0.0 && number.is_finite() {
        Ok(number)
    } else {
        Err("not a number above 0".to_owned())
    }
}

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "not a number from 1 up".to_owned())
}
