//! What the command takes.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use outlast::Scheme;
use std::ffi::OsString;
use std::path::PathBuf;

/// Crash-proof concurrent indexes in a mapped file.
///
/// Exit codes: 0 done; 1 failed, or no such key; 2 wrong usage; 3 the pool is damaged.
#[derive(Debug, Parser)]
#[command(name = "outlast", version, max_term_width = 100)]
pub(crate) struct Args {
    /// The pool's file [default: outlast-UID.pool in the temporary directory; for the
    /// demonstration outlast-demo-UID.pool]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) pool: Option<PathBuf>,
    /// Print one JSON object a line, and nothing else
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Index a directory tree, kill the process that does it again and again, and check
    /// that nothing acknowledged is lost
    Demo(DemoArgs),
    /// The process that the demonstration kills
    #[command(hide = true)]
    DemoWorker(WorkerArgs),
    /// Load records from a file or standard input; the pool and the map are created if
    /// missing
    Load(LoadArgs),
    /// Print the value of a key
    Get(GetArgs),
    /// Insert or replace a record; the pool and the map are created if missing
    Put(PutArgs),
    /// Remove a record
    Del(DelArgs),
    /// Print records: all, in no particular order; of an ordered map, in the order of its keys,
    /// and those of a range
    Scan(ScanArgs),
    /// Print what the pool and its maps are
    Stat(StatArgs),
    /// Check every structure and every record; changes nothing
    Verify(VerifyArgs),
    /// Copy the pool, as a clean one
    Snapshot(SnapshotArgs),
}

/// Which map.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct MapArgs {
    /// The map [default: the pool's only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) map: Option<String>,
}

/// Which map, and how it is made if it is missing.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    pub(crate) which: MapArgs,
    /// Type of a new map's keys: str, bytes, u8 to u64, i8 to i64 [default: str]
    #[arg(long, value_name = "TYPE", value_parser = type_name())]
    pub(crate) key_type: Option<String>,
    /// Type of a new map's values, as for keys [default: str]
    #[arg(long, value_name = "TYPE", value_parser = type_name())]
    pub(crate) value_type: Option<String>,
    /// Scheme of a new map
    #[arg(long, value_parser = scheme())]
    pub(crate) scheme: Option<Scheme>,
}

/// How keys and values on the command line are written.
#[derive(Debug, Default, ClapArgs)]
pub(crate) struct NotationArgs {
    /// Keys and values are given, and printed as text, in hexadecimal: 0x00ff
    #[arg(long)]
    pub(crate) hex: bool,
}

/// See [`Command::Demo`].
#[derive(Debug, ClapArgs)]
pub(crate) struct DemoArgs {
    /// The directory whose files are indexed
    #[arg(default_value = "/usr")]
    pub(crate) dir: PathBuf,
    /// How often the process is killed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) kills: u32,
    /// Threads that store [default: one for each processor]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Option<u32>,
    /// How many files at most
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) files: u32,
    /// How many records there are to be in the end; where there are not enough files for
    /// that, generated records are added
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) records: u32,
    /// Scheme of the map
    #[arg(long, value_parser = scheme())]
    pub(crate) scheme: Option<Scheme>,
    /// Seed of everything random but the system's timing [default: random]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Do not remove the pool in the end
    #[arg(long)]
    pub(crate) keep: bool,
}

/// See [`Command::DemoWorker`].
#[derive(Debug, ClapArgs)]
pub(crate) struct WorkerArgs {
    /// Where plan and journals are
    #[arg(long)]
    pub(crate) work: PathBuf,
    /// The pool
    #[arg(long)]
    pub(crate) target: PathBuf,
    /// The process that waits for this one
    #[arg(long)]
    pub(crate) parent: u32,
}

/// How records are written in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A line is a key, a tab and a value; \t \n \r \\ and \xHH are escapes
    Tsv,
    /// A line is {"key": ..., "value": ...}; bytes that are not UTF-8 are {"hex": "00ff"}
    Ndjson,
}

/// See [`Command::Load`].
#[derive(Debug, ClapArgs)]
pub(crate) struct LoadArgs {
    /// The file, - for standard input
    #[arg(default_value = "-")]
    pub(crate) file: PathBuf,
    /// How the records are written [default: ndjson for files named .ndjson, .jsonl or
    /// .json, else tsv]
    #[arg(long)]
    pub(crate) format: Option<Format>,
    #[command(flatten)]
    pub(crate) create: CreateArgs,
}

/// See [`Command::Get`].
#[derive(Debug, ClapArgs)]
pub(crate) struct GetArgs {
    /// The key
    #[arg(allow_negative_numbers = true)]
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) map: MapArgs,
    #[command(flatten)]
    pub(crate) notation: NotationArgs,
}

/// See [`Command::Put`].
#[derive(Debug, ClapArgs)]
pub(crate) struct PutArgs {
    /// The key
    #[arg(allow_negative_numbers = true)]
    pub(crate) key: OsString,
    /// The value
    #[arg(allow_negative_numbers = true)]
    pub(crate) value: OsString,
    #[command(flatten)]
    pub(crate) create: CreateArgs,
    #[command(flatten)]
    pub(crate) notation: NotationArgs,
}

/// See [`Command::Del`].
#[derive(Debug, ClapArgs)]
pub(crate) struct DelArgs {
    /// The key
    #[arg(allow_negative_numbers = true)]
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) map: MapArgs,
    #[command(flatten)]
    pub(crate) notation: NotationArgs,
}

/// See [`Command::Scan`].
#[derive(Debug, ClapArgs)]
pub(crate) struct ScanArgs {
    /// Of an ordered map: begin at this key
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub(crate) from: Option<OsString>,
    /// Of an ordered map: end before this key
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub(crate) to: Option<OsString>,
    /// Of an ordered map: the greatest key first
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Print this many records at most
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) notation: NotationArgs,
    #[command(flatten)]
    pub(crate) map: MapArgs,
    /// Read a pool that a power loss may have torn
    #[arg(long)]
    pub(crate) accept_possibly_torn: bool,
}

/// See [`Command::Stat`].
#[derive(Debug, ClapArgs)]
pub(crate) struct StatArgs {
    /// Read a pool that a power loss may have torn
    #[arg(long)]
    pub(crate) accept_possibly_torn: bool,
}

/// See [`Command::Verify`].
#[derive(Debug, ClapArgs)]
pub(crate) struct VerifyArgs {
    /// Check a pool that a power loss may have torn
    #[arg(long)]
    pub(crate) accept_possibly_torn: bool,
}

/// See [`Command::Snapshot`].
#[derive(Debug, ClapArgs)]
pub(crate) struct SnapshotArgs {
    /// Where the copy goes
    pub(crate) to: PathBuf,
    /// Replace what is there
    #[arg(long)]
    pub(crate) force: bool,
}

fn scheme() -> impl TypedValueParser<Value = Scheme> {
    PossibleValuesParser::new(Scheme::ALL.iter().map(|s| s.name()))
        .map(|name| name.parse().expect("one of the names"))
}

fn type_name() -> PossibleValuesParser {
    PossibleValuesParser::new(crate::text::TYPES)
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
