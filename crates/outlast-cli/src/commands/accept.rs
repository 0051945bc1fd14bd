//! `accept`: puts a pool back into use that the other commands refuse.
//!
//! - A pool that a power loss may have torn, or whose disk may not hold everything, is checked, and closed
//!   as clean if it is sound.
//! - A journaled pool without its working file is completed from its journal.
//! - A journaled pool whose journal is incomplete is replaced by a copy of what can be read, and kept under
//!   another name: by a copy of all of it if its working file is whole, or by a copy of its base if the
//!   user says so.

use super::verify::check;
use crate::args::AcceptArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::place;
use crate::progress;
use outlast::{Error, OldPool, Pool, PoolOptions};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The suffix of the name of a pool's copy until it takes the pool's place.
const ACCEPTED: &str = ".accepted";

/// How the pool was put back into use.
enum Done {
    Nothing,
    /// It was checked and closed.
    Checked,
    Completed,
    /// A copy took its place. It is at the path, if it is known.
    Copied {
        old: Option<PathBuf>,
        is_whole: bool,
    },
}

pub(crate) fn run(pool: Option<&Path>, args: &AcceptArgs, out: &mut Output) -> Result<(), Failure> {
    let path = open::path(pool)?;
    let done = put_back_into_use(&path, args, out)?;
    out.object(&json!({
        "event": "accept",
        "path": path.to_string_lossy(),
        "was_refused": !matches!(done, Done::Nothing),
        "old": match &done {
            Done::Copied { old, .. } => old.as_ref().map(|old| old.to_string_lossy()),
            _ => None,
        },
    }))?;
    let path = path.display();
    out.line(match done {
        Done::Nothing => format!("{path} is not refused, so nothing was done; `outlast verify` checks it"),
        Done::Checked => {
            format!("{path} can be used again; any changes since its last sync may be missing")
        }
        Done::Completed => {
            format!("{path} was completed from its journal; what was not durable is missing")
        }
        Done::Copied { old, is_whole } => {
            let lacks = match is_whole {
                true => "it has everything that was stored",
                false => "what was stored since its last checkpoint is missing",
            };
            let old = old.unwrap_or_default();
            format!(
                "{path} can be used again, without a journal until it is given one (--journal); {lacks}. The \
                 old pool is {}",
                old.display()
            )
        }
    })
}

fn put_back_into_use(path: &Path, args: &AcceptArgs, out: &mut Output) -> Result<Done, Failure> {
    match open::read(path, false) {
        Ok(pool) if pool.durability().is_suspect => {}
        Ok(pool) => return written_to(path, pool, out),
        Err(Error::IncompleteJournal { why, .. }) => return without_journal(path, &why, args, out),
        Err(Error::NoWorkingFile { .. } | Error::CopyOfPool { .. }) => {
            // SAFETY: as in `open::to_read`.
            return match unsafe { PoolOptions::new().open(path) } {
                Ok(pool) => {
                    open::close(pool)?;
                    check(path, false, out)?;
                    Ok(Done::Completed)
                }
                Err(Error::IncompleteJournal { why, .. }) => without_journal(path, &why, args, out),
                Err(error) => Err(open::about(path, error)),
            };
        }
        Err(Error::Locked { .. }) => {
            return Err(open::about(path, Error::Locked { path: path.into() }));
        }
        Err(_) => {}
    }
    // Nothing is written before the library's verification and the walk have found the pool sound.
    check(path, true, out)?;
    let bar = progress::spinner("writing back");
    put_checked_into_use(path)?;
    bar.finish_and_clear();
    Ok(Done::Checked)
}

/// A pool that can be read may all the same be refused to writers: if its working file holds all of it,
/// and the journal is incomplete.
fn written_to(path: &Path, pool: Pool, out: &mut Output) -> Result<Done, Failure> {
    let facts = PoolOptions::new().facts(path).map_err(|e| open::about(path, e))?;
    if facts.journal.is_none_or(|journal| journal.closed) {
        return Ok(Done::Nothing);
    }
    drop(pool);
    match open::to_write_or_error(path) {
        Ok(pool) => open::close(pool).map(|()| Done::Nothing),
        Err(Error::IncompleteJournal { .. }) => {
            let judged = stamp(path)?;
            check(path, false, out)?;
            let pool = open::to_read(path, false)?;
            let bytes = pool.stats().size;
            let old = replace_by_copy(path, judged, bytes, move |copy| Ok(pool.snapshot(copy)?))?;
            Ok(Done::Copied { old, is_whole: true })
        }
        Err(error) => Err(open::about(path, error)),
    }
}

/// Uses the base of a journaled pool alone, if the user has said so.
fn without_journal(
    path: &Path,
    why: &str,
    args: &AcceptArgs,
    out: &mut Output,
) -> Result<Done, Failure> {
    if !args.without_journal {
        let facts = PoolOptions::new().facts(path).ok().and_then(|facts| facts.journal);
        let checkpoint = facts.map_or_else(String::new, |journal| {
            format!(" (of epoch {}, or a later one)", journal.checkpoint)
        });
        return Err(Failure::Damaged(format!(
            "{}: the journal is incomplete: {why}. If the missing part can be found, put it back. Otherwise \
             restore a backup, or let `outlast accept --without-journal` check what the pool's file \
             holds as of its last checkpoint{checkpoint}, and use that; the pool is kept under another name",
            path.display()
        )));
    }
    let judged = stamp(path)?;
    check(path, true, out)?;
    let old =
        replace_by_copy(path, judged, path.metadata().map_or(0, |meta| meta.len()), |copy| {
            std::fs::copy(path, copy)
                .map_err(|e| Failure::io(format!("copying {}", path.display()), &e))?;
            // The copy has no journal.
            put_checked_into_use(copy)
        })?;
    Ok(Done::Copied { old, is_whole: false })
}

/// Checks a pool once more, opened for writing, and closes it.
fn put_checked_into_use(path: &Path) -> Result<(), Failure> {
    let pool = open::to_accept(path)?;
    // The pool was opened as suspect. This verification first writes every page back, and if it finds
    // the pool sound, the pool is no longer suspect.
    pool.verify()?.ensure_sound()?;
    Ok(pool.close()?)
}

/// Tells whether a pool's file was written to. Every opening for writing does so first.
type Stamp = (u64, u64, i64, i64);

fn stamp(path: &Path) -> Result<Stamp, Failure> {
    let meta = path.metadata();
    let meta = meta.map_err(|e| Failure::io(format!("reading {}", path.display()), &e))?;
    Ok((meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec()))
}

/// Puts the copy of this many bytes that `make` makes in the place of the pool's files, which are kept
/// under another name, which this returns. `judged` is the stamp that the pool's file had when it was
/// checked.
fn replace_by_copy(
    path: &Path,
    judged: Stamp,
    bytes: u64,
    make: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<Option<PathBuf>, Failure> {
    let copy = place::unfinished(path, ACCEPTED)?;
    place::check_space(place::parent(path), 2 * bytes, "")?;
    let bar = progress::spinner("copying");
    make(&copy.0)?;
    if stamp(path)? != judged {
        let path = path.display();
        let why = "was used by another process meanwhile; nothing was done";
        return Err(Failure::Failed(format!("{path} {why}")));
    }
    // SAFETY: as in `open::to_read`.
    let restored = unsafe { PoolOptions::new().restore(&copy.0, path, OldPool::Kept) };
    bar.finish_and_clear();
    Ok(restored.map_err(|e| open::about(path, e))?.old)
}
