//! The `outlast` command: loads, reads and checks pools, and demonstrates that they survive
//! crashes.
//!
//! Results go to standard output, as text or, with `--json`, as one object per line. Progress and
//! errors go to standard error; with `--json`, an error is also an object on standard output.
//!
//! Exit codes: 0 success; 1 failure, or no such key; 2 wrong usage; 3 the pool is damaged, or may be; 130
//! interrupted.

mod account;
mod args;
mod commands;
mod demo;
mod failure;
mod interrupt;
mod lifetime;
mod open;
mod output;
mod parts;
mod place;
mod progress;
mod reader;
mod salvageable;
mod table;
mod text;

use args::{Args, Command};
use clap::Parser;
use clap::error::{ContextKind, ContextValue};
use failure::Failure;
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = Args::try_parse().unwrap_or_else(|error| hinted(error).exit());
    let mut output = Output::new(args.json);
    let result = run(&args, &mut output).and_then(|()| output.flush());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.fail(&failure);
            failure.code()
        }
    }
}

/// Adds a hint to an error in the arguments, if one of them is a file where none belongs.
fn hinted(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(found)) = error.get(ContextKind::InvalidArg)
        && std::path::Path::new(found).is_file()
    {
        let hint = format!("the pool's file is named by --pool {found}, or by OUTLAST_POOL").into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint]));
    }
    error
}

fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let pool = args.pool.as_deref();
    match &args.command {
        Command::Demo(demo) => demo::run(pool, demo, output),
        Command::DemoWorker(worker) => demo::worker::run(worker),
        Command::Load(load) => commands::load::run(pool, load, output),
        Command::Get(get) => commands::get::run(pool, get, output),
        Command::Put(put) => commands::put::run(pool, put, output),
        Command::Ttl(ttl) => commands::ttl::run(pool, ttl, output),
        Command::Del(del) => commands::del::run(pool, del, output),
        Command::Scan(scan) => commands::scan::run(pool, scan, output),
        Command::Count(count) => commands::count::run(pool, count, output),
        Command::Maps(maps) => commands::maps::run(pool, maps, output),
        Command::Drop(drop) => commands::drop::run(pool, drop, output),
        Command::Stat(stat) => commands::stat::run(pool, stat, output),
        Command::Verify(verify) => commands::verify::run(pool, verify, output),
        Command::Accept(accept) => commands::accept::run(pool, accept, output),
        Command::Snapshot(snapshot) => commands::snapshot::run(pool, snapshot, output),
        Command::Backup(backup) => commands::backup::run(pool, backup, output),
        Command::Restore(restore) => commands::restore::run(pool, restore, output),
        Command::Salvage(salvage) => commands::salvage::run(pool, salvage, output),
        Command::Compact(compact) => commands::compact::run(pool, compact, output),
        Command::WorkingFiles(files) => commands::working_files::run(files, output),
        Command::Completions(completions) => commands::completions::run(completions, output),
    }
}
