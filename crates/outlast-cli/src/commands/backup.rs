//! `backup`: copies a pool. If the pool has a journal, another process may be using it.

use crate::args::BackupArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::place;
use crate::progress;
use outlast::PoolOptions;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

pub(crate) fn run(pool: Option<&Path>, args: &BackupArgs, out: &mut Output) -> Result<(), Failure> {
    let from = open::path(pool)?;
    place::check_copy(&from, &args.to, Some(args.force))?;
    let bytes = from.metadata().map_or(0, |meta| meta.len());
    place::check_space(place::parent(&args.to), bytes, "")?;
    allow_many_files();
    let bar = progress::bytes(bytes, "copying");
    let told = bar.clone();
    let options = PoolOptions::new().recovery_progress(move |progress| {
        told.set_length(progress.parts as u64);
        told.set_position(progress.parts_done as u64);
    });
    let start = Instant::now();
    // SAFETY: as in `open::to_read`.
    let done = unsafe { options.backup(&from, &args.to) };
    let done = done.map_err(|e| open::about(&from, e))?;
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    out.object(&json!({
        "event": "backup",
        "from": from.to_string_lossy(),
        "to": args.to.to_string_lossy(),
        "bytes": done.bytes,
        "in_use": done.in_use,
        "epochs": done.epochs,
        "attempts": done.attempts,
        "seconds": seconds,
    }))?;
    let size = indicatif::BinaryBytes(done.bytes);
    let how = if done.in_use { ", which is in use" } else { "" };
    out.line(format!("{} is a copy of {}{how}, {size}", args.to.display(), from.display()))
}

/// Raises this process's limit on open files as far as allowed, because a backup opens all segments
/// of a journal.
fn allow_many_files() {
    let limits = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
}
