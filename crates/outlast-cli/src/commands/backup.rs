//! `backup`: copies a pool, and checks the copy, unless told not to. Another process may be using it, if the
//! pool has a journal or that process serves it.
//!
//! Until the copy is checked, it has another name, so that a damaged pool does not replace an earlier
//! backup.

use super::verify::require_sound_copy;
use crate::args::CopyArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::{Output, complain};
use crate::place;
use crate::progress;
use outlast::internals::pmem::rename_new;
use outlast::{Error, PoolOptions};
use outlast_live::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

/// The suffix of the copy's name until it is checked.
const UNCHECKED: &str = ".unchecked";

pub(crate) fn run(pool: Option<&Path>, args: &CopyArgs, out: &mut Output) -> Result<(), Failure> {
    let from = open::path(pool)?;
    place::check_target(&from, args)?;
    let bytes = from.metadata().map_or(0, |meta| meta.len());
    place::check_space(place::parent(&args.to), bytes, "")?;
    allow_many_files();
    let lacks = lacks_working_file(&from);
    let unchecked = !args.no_verify;
    let unchecked = unchecked.then(|| place::unfinished(&args.to, UNCHECKED)).transpose()?;
    let to = unchecked.as_ref().map_or(&args.to, |unchecked| &unchecked.0);
    let bar = progress::bytes(bytes, "copying");
    let told = bar.clone();
    let options = PoolOptions::new().recovery_progress(move |progress| {
        told.set_length(progress.parts as u64);
        told.set_position(progress.parts_done as u64);
    });
    let start = Instant::now();
    // SAFETY: as in `open::to_read`.
    let done = match unsafe { options.backup(&from, to) } {
        Ok(done) => (done.bytes, done.in_use, done.epochs, done.attempts),
        Err(Error::NoJournal { .. }) if Client::of(&from).is_served() => {
            (copy_of_owner(&from, to)?, true, 0, 1)
        }
        Err(error) => return Err(open::about(&from, error)),
    };
    let (bytes, in_use, epochs, attempts) = done;
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    if let Some(unchecked) = &unchecked {
        let so = "nothing was copied; --no-verify copies the pool as it is";
        let copy = open::to_read(&unchecked.0, false)?;
        require_sound_copy(&from, &unchecked.0, &copy, so)?;
        let rename = || -> std::io::Result<()> {
            match args.force {
                true => std::fs::rename(&unchecked.0, &args.to)?,
                false => rename_new(&unchecked.0, &args.to)?,
            }
            File::open(place::parent(&args.to))?.sync_all()
        };
        rename().map_err(|e| Failure::io(format!("creating {}", args.to.display()), &e))?;
    }
    if lacks {
        complain(&format!(
            "the working file of {} is gone; the copy lacks what was not durable in the journal",
            from.display()
        ));
    }
    out.object(&json!({
        "event": "backup",
        "from": from.to_string_lossy(),
        "to": args.to.to_string_lossy(),
        "bytes": bytes,
        "in_use": in_use,
        "epochs": epochs,
        "attempts": attempts,
        "verified": !args.no_verify,
        "working_file_gone": lacks,
        "seconds": seconds,
    }))?;
    let size = indicatif::BinaryBytes(bytes);
    let how = if in_use { ", which is in use" } else { "" };
    out.line(format!("{} is a copy of {}{how}, {size}", args.to.display(), from.display()))
}

/// Gets a copy from the process that has the pool open. Returns its size in bytes.
fn copy_of_owner(from: &Path, to: &Path) -> Result<u64, Failure> {
    let io = |e| Failure::io(format!("creating {}", to.display()), &e);
    let mode = from.metadata().map_err(io)?.mode() & 0o777;
    let mut file = File::options().write(true).create_new(true).mode(mode).open(to).map_err(io)?;
    let copied = Client::of(from).copy(&mut file).map_err(Failure::from);
    let copied = copied.and_then(|bytes| file.sync_all().map_err(io).map(|()| bytes));
    copied.inspect_err(|_| {
        let _ = std::fs::remove_file(to);
    })
}

/// Whether a pool was not closed, and its working file with the last changes is gone.
fn lacks_working_file(path: &Path) -> bool {
    let journal = PoolOptions::new().facts(path).ok().and_then(|facts| facts.journal);
    journal.is_some_and(|it| !it.closed && !it.restarted && it.working.is_none())
}

/// Raises this process's limit on open files as far as allowed, because a backup opens all segments
/// of a journal.
fn allow_many_files() {
    let limits = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
}
