//! The arguments of the command.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use outlast::Scheme;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Crash-proof concurrent indexes in a mapped file.
///
/// Exit codes: 0 success; 1 failure, or no such key; 2 wrong usage; 3 the pool is damaged, or may be; 130
/// interrupted.
#[derive(Debug, Parser)]
#[command(name = "outlast", version, max_term_width = 100)]
pub(crate) struct Args {
    /// The pool's file [default: what the environment variable OUTLAST_POOL says; for the
    /// demonstration, outlast-demo-UID.pool in the temporary directory]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) pool: Option<PathBuf>,
    /// Print one JSON object per line, and nothing else
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Index a directory tree, kill the indexing process again and again, and check that nothing
    /// acknowledged is lost
    Demo(DemoArgs),
    /// The process that the demonstration kills
    #[command(hide = true)]
    DemoWorker(WorkerArgs),
    /// Load records from a file or standard input; creates the pool and the map if missing
    Load(LoadArgs),
    /// Print the value of a key
    Get(GetArgs),
    /// Insert or replace a record; creates the pool and the map if missing
    Put(PutArgs),
    /// Print for how many seconds a record lives on (or "never expires"), or set that
    Ttl(TtlArgs),
    /// Remove a record
    Del(DelArgs),
    /// Print records: all of them, in no particular order; for an ordered map, in key order, and
    /// optionally only a range
    Scan(ScanArgs),
    /// Count records
    Count(CountArgs),
    /// List the maps: name, scheme, types of keys and values
    Maps(MapsArgs),
    /// Drop a map with all of its records
    Drop(DropArgs),
    /// Print the properties of the pool and its maps
    ///
    /// medium: what the pool is on, and how its lines are flushed. survives: which failures leave the effect
    /// of every call that returned. free pages: space in the file for new records. huge pages: how much of
    /// the file is mapped with pages of 2 MiB. reclaim: whether space that a crash has left is still to be
    /// collected. Of each map: form, whether records are stored in place (inline) or in blocks of their own
    /// (bytes); records, an estimate; load, the share of its slots that are in use; segments, and
    /// entries of the directory, the parts of its table; DRAM, what it takes of the process's memory while it is open.
    Stat(StatArgs),
    /// Check every structure and every record; changes nothing
    Verify(VerifyArgs),
    /// Check a pool that a power loss may have torn, and put it back into use if it is sound
    Accept(AcceptArgs),
    /// Check the pool and copy it; the copy is cleanly closed
    Snapshot(CopyArgs),
    /// Copy the pool (if it has a journal, even while another process uses it), and check the copy; it is
    /// cleanly closed and has no journal
    Backup(CopyArgs),
    /// Put a backup in the place of the pool, which is kept under another name
    ///
    /// The backup is checked first, and stays where it is. The pool must not be open.
    Restore(RestoreArgs),
    /// Copy all that can be read of a damaged pool into a new one, and list what cannot
    ///
    /// Exit code 3: the new pool lacks something, or may lack something; the last line says why.
    Salvage(SalvageArgs),
    /// Rewrite the pool, or copy it to a new file, so that it takes no more space than its records need
    ///
    /// The pool is checked first, and replaced only by a copy that was checked. It must not be open.
    /// It keeps its maps, page size, limit and journal; a copy has no journal.
    Compact(CompactArgs),
    /// List the working files of pools with a journal, and the pools that need them
    ///
    /// A process that dies leaves its pool's working file, which takes as much memory as the pool, until the
    /// pool is opened again or the machine is restarted.
    WorkingFiles(WorkingFilesArgs),
    /// Print a script that completes commands and options in a shell
    Completions(CompletionsArgs),
}

/// Selects a map.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct MapArgs {
    /// The map [default: the only map of the pool]
    #[arg(long, value_name = "NAME")]
    pub(crate) map: Option<String>,
}

/// Selects a map, and says how to create it if it is missing.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    pub(crate) which: MapArgs,
    /// Type of the keys of a new map: str, bytes, u8 to u128, i8 to i128, bool, f32, f64, [u8;N], or a
    /// tuple such as (u64,str) [default: str]
    #[arg(long, value_name = "TYPE", value_parser = crate::text::type_name)]
    pub(crate) key_type: Option<String>,
    /// Type of the values of a new map [default: str]
    #[arg(long, value_name = "TYPE", value_parser = crate::text::type_name)]
    pub(crate) value_type: Option<String>,
    /// Keep the keys of a new map in order
    #[arg(long, conflicts_with = "scheme")]
    pub(crate) ordered: bool,
    /// Make a new map one whose records can expire
    #[arg(long)]
    pub(crate) expiry: bool,
    /// Scheme of a new map [default: dash-eh; with --ordered, phast]
    #[arg(long, value_parser = scheme())]
    pub(crate) scheme: Option<Scheme>,
    #[command(flatten)]
    pub(crate) survive: SurviveArgs,
}

/// What the pool that is written to must survive.
#[derive(Debug, Default, Clone, Copy, ClapArgs)]
pub(crate) struct SurviveArgs {
    /// What a new pool must survive; on an ordinary file system, power-loss means a journal
    /// [default: power-loss]
    #[arg(long, value_name = "FAILURE", env = "OUTLAST_SURVIVE", hide_env_values = true)]
    pub(crate) survive: Option<Survive>,
    /// Give the pool a journal, even if it exists and has none
    #[arg(long)]
    pub(crate) journal: bool,
}

/// A [`Failure`](outlast::Failure).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Survive {
    /// The end of the process in any way
    ProcessDeath,
    /// Also a power loss
    PowerLoss,
}

/// The notation of keys and values on the command line.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct NotationArgs {
    /// Read and print keys and values in hexadecimal: 0x00ff (\xHH is only for files that are loaded)
    #[arg(long)]
    pub(crate) hex: bool,
}

/// Arguments of [`Command::Demo`].
#[derive(Debug, ClapArgs)]
pub(crate) struct DemoArgs {
    /// The directory whose files are indexed
    #[arg(default_value = "/usr")]
    pub(crate) dir: PathBuf,
    /// How many times the process is killed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) kills: u32,
    /// Threads that write [default: one per processor]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Option<u32>,
    /// The greatest number of files
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) files: u32,
    /// The number of records at the end; if there are too few files, generated records are added
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) records: u32,
    /// Scheme of the map
    #[arg(long, value_parser = scheme())]
    pub(crate) scheme: Option<Scheme>,
    /// Seed for everything random except the system's timing [default: random]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Give the pool a journal, and simulate a power loss after some of the kills, as far as
    /// possible
    #[arg(long)]
    pub(crate) journal: bool,
    /// Keep the pool at the end
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Arguments of [`Command::DemoWorker`].
#[derive(Debug, ClapArgs)]
pub(crate) struct WorkerArgs {
    /// The directory of the plan and the journals
    #[arg(long)]
    pub(crate) work: PathBuf,
    /// The pool
    #[arg(long)]
    pub(crate) target: PathBuf,
    /// The process that waits for this one
    #[arg(long)]
    pub(crate) parent: u32,
}

/// The format of records in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Each line is a key, a tab and a value; \t \n \r \\ and \xHH are escapes
    Tsv,
    /// Each line is {"key": ..., "value": ...}, and can have a "map": the name of the record's map; bytes
    /// that are not UTF-8 are {"hex": "00ff"}
    Ndjson,
}

/// Arguments of [`Command::Load`].
#[derive(Debug, ClapArgs)]
pub(crate) struct LoadArgs {
    /// The file, or - for standard input
    #[arg(default_value = "-")]
    pub(crate) file: PathBuf,
    /// The format of the records [default: ndjson for files named .ndjson, .jsonl or .json,
    /// otherwise tsv]
    #[arg(long)]
    pub(crate) format: Option<Format>,
    /// Take tab-separated lines as they are: a backslash is a backslash, and everything after the first
    /// tab is the value
    #[arg(long)]
    pub(crate) raw: bool,
    /// Load a tab-separated last line that has no newline at its end. Without this, such a line is
    /// an error, after all lines before it were loaded: the program that wrote it may have died
    #[arg(long)]
    pub(crate) unterminated: bool,
    #[command(flatten)]
    pub(crate) create: CreateArgs,
}

/// Selects a record.
#[derive(Debug, ClapArgs)]
pub(crate) struct KeyArgs {
    /// The key
    #[arg(allow_negative_numbers = true)]
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) map: MapArgs,
    #[command(flatten)]
    pub(crate) notation: NotationArgs,
}

/// Arguments of [`Command::Get`].
#[derive(Debug, ClapArgs)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) of: KeyArgs,
    /// Read a pool that a power loss may have torn
    #[arg(long)]
    pub(crate) accept_possibly_torn: bool,
}

/// Arguments of [`Command::Del`].
#[derive(Debug, ClapArgs)]
pub(crate) struct DelArgs {
    #[command(flatten)]
    pub(crate) of: KeyArgs,
    /// Give the pool a journal, if it has none, so that it survives a power loss
    #[arg(long)]
    pub(crate) journal: bool,
}

/// Arguments of [`Command::Put`].
#[derive(Debug, ClapArgs)]
pub(crate) struct PutArgs {
    /// The key
    #[arg(allow_negative_numbers = true)]
    pub(crate) key: OsString,
    /// The value
    #[arg(allow_negative_numbers = true)]
    pub(crate) value: OsString,
    /// Make the record expire after this time, such as 90s, 10m, 2h, 7d or 1h30m; a new map is then one
    /// whose records can expire
    #[arg(long = "for", value_name = "TIME", value_parser = crate::lifetime::parse)]
    pub(crate) lives: Option<Duration>,
    #[command(flatten)]
    pub(crate) create: CreateArgs,
    #[command(flatten)]
    pub(crate) notation: NotationArgs,
}

/// Arguments of [`Command::Ttl`].
#[derive(Debug, ClapArgs)]
pub(crate) struct TtlArgs {
    #[command(flatten)]
    pub(crate) of: KeyArgs,
    /// Make the record expire after this time from now on
    #[arg(long = "for", value_name = "TIME", value_parser = crate::lifetime::parse)]
    pub(crate) lives: Option<Duration>,
    /// Make the record one that never expires
    #[arg(long, conflicts_with = "lives")]
    pub(crate) never: bool,
}

/// Selects records by their keys.
#[derive(Debug, ClapArgs)]
pub(crate) struct RangeArgs {
    /// Ordered maps only: begin at this key
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub(crate) from: Option<OsString>,
    /// Ordered maps only: end before this key
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub(crate) to: Option<OsString>,
    /// Only keys that begin with this; in a map without order, this reads all records
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<OsString>,
}

/// Arguments of [`Command::Scan`].
#[derive(Debug, ClapArgs)]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    pub(crate) range: RangeArgs,
    /// Ordered maps only: print the greatest key first
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Print at most this many records
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) notation: NotationArgs,
    #[command(flatten)]
    pub(crate) map: MapArgs,
    /// Read a pool that a power loss may have torn
    #[arg(long)]
    pub(crate) accept_possibly_torn: bool,
    /// Continue after damage; report each damaged place, and exit with 3 at the end
    #[arg(long)]
    pub(crate) skip_damaged: bool,
    /// Also print records whose checksum does not match
    #[arg(long, conflicts_with = "skip_damaged")]
    pub(crate) unchecked: bool,
}

/// Arguments of [`Command::Count`].
#[derive(Debug, ClapArgs)]
pub(crate) struct CountArgs {
    #[command(flatten)]
    pub(crate) range: RangeArgs,
    /// Read keys in hexadecimal: 0x00ff
    #[arg(long)]
    pub(crate) hex: bool,
    #[command(flatten)]
    pub(crate) map: MapArgs,
    /// Read a pool that a power loss may have torn
    #[arg(long)]
    pub(crate) accept_possibly_torn: bool,
}

/// Arguments of [`Command::Maps`].
#[derive(Debug, ClapArgs)]
pub(crate) struct MapsArgs {
    /// Read a pool that a power loss may have torn
    #[arg(long)]
    pub(crate) accept_possibly_torn: bool,
}

/// Arguments of [`Command::Drop`].
#[derive(Debug, ClapArgs)]
pub(crate) struct DropArgs {
    /// The map
    #[arg(long, value_name = "NAME")]
    pub(crate) map: String,
}

/// Arguments of [`Command::Stat`].
#[derive(Debug, ClapArgs)]
pub(crate) struct StatArgs {
    /// Read a pool that a power loss may have torn
    #[arg(long)]
    pub(crate) accept_possibly_torn: bool,
}

/// Arguments of [`Command::Accept`].
#[derive(Debug, ClapArgs)]
pub(crate) struct AcceptArgs {
    /// If the journal is incomplete, use what the pool's file holds without it
    ///
    /// What was stored after the last checkpoint is lost. The old pool and its journal are kept under another
    /// name.
    #[arg(long)]
    pub(crate) without_journal: bool,
}

/// Arguments of [`Command::Verify`].
#[derive(Debug, ClapArgs)]
pub(crate) struct VerifyArgs {
    /// Check a pool that a power loss may have torn
    #[arg(long)]
    pub(crate) accept_possibly_torn: bool,
}

/// Arguments of [`Command::Snapshot`] and of [`Command::Backup`].
#[derive(Debug, ClapArgs)]
pub(crate) struct CopyArgs {
    /// The path of the copy
    pub(crate) to: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Copy the pool without a check; this never replaces an existing file
    #[arg(long)]
    pub(crate) no_verify: bool,
}

/// Arguments of [`Command::WorkingFiles`].
#[derive(Debug, ClapArgs)]
pub(crate) struct WorkingFilesArgs {
    #[command(flatten)]
    _none: NoPoolArgs,
    /// Look in these directories, too [default: only /dev/shm]
    pub(crate) directories: Vec<PathBuf>,
    /// Remove those that nobody needs
    #[arg(long)]
    pub(crate) remove: bool,
    /// Remove those, too, whose pool is not where it was
    #[arg(long)]
    pub(crate) remove_gone: bool,
}

/// Arguments of [`Command::Restore`].
#[derive(Debug, ClapArgs)]
pub(crate) struct RestoreArgs {
    /// The backup: any pool that was closed
    pub(crate) backup: PathBuf,
    /// The pool to replace, or the path of a new one [default: --pool]
    pub(crate) target: Option<PathBuf>,
    /// Remove the old pool, its journal and its working file
    #[arg(long)]
    pub(crate) remove_old: bool,
}

/// Takes the place of the global option in commands that have their pools as arguments, so that their
/// help does not list it.
#[derive(Debug, ClapArgs)]
pub(crate) struct NoPoolArgs {
    #[arg(id = "pool", long = "pool", value_name = "PATH", hide = true)]
    _pool: Option<PathBuf>,
}

/// Arguments of [`Command::Salvage`].
#[derive(Debug, ClapArgs)]
pub(crate) struct SalvageArgs {
    /// The damaged pool, unless --pool names it, and the path of the new one
    ///
    /// The damaged pool is left as it is, unless its journal or the log of a batch can complete it.
    #[arg(value_names = ["BROKEN", "NEW"], num_args = 1..=2, required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Only this map; can be repeated [default: all maps]
    #[arg(long, value_name = "NAME")]
    pub(crate) map: Vec<String>,
    /// List whole records here that damage hides, or that were removed or replaced; nothing tells which
    ///
    /// They are not in the new pool. The file has one JSON object a line, with map, key and value. The map is
    /// null if several can have the record, or one whose root is damaged. `outlast load --format ndjson`
    /// reads the file; lines without a map need --map. A key can occur several times, and no order says which
    /// value is newer.
    #[arg(long, value_name = "FILE")]
    pub(crate) unlinked: Option<PathBuf>,
}

/// Arguments of [`Command::Compact`].
#[derive(Debug, ClapArgs)]
pub(crate) struct CompactArgs {
    /// The pool, unless --pool or OUTLAST_POOL names it, and the path of the new one
    ///
    /// Without the path of a new one, the pool is replaced. Otherwise it is left as it is, unless it must be
    /// completed from its journal or the log of a batch.
    #[arg(value_names = ["POOL", "NEW"], num_args = 0..=2)]
    pub(crate) files: Vec<PathBuf>,
}

/// Arguments of [`Command::Completions`].
#[derive(Debug, ClapArgs)]
pub(crate) struct CompletionsArgs {
    #[command(flatten)]
    _none: NoPoolArgs,
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

fn scheme() -> impl TypedValueParser<Value = Scheme> {
    PossibleValuesParser::new(Scheme::ALL.iter().map(|s| s.name()))
        .map(|name| name.parse().expect("one of the names"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }
}
