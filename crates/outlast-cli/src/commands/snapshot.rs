//! `snapshot`: makes a clean copy of the pool.

use crate::args::SnapshotArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::place;
use crate::progress;
use outlast::Pool;
use serde_json::json;
use std::path::Path;
use std::time::Instant;

pub(crate) fn run(
    pool: Option<&Path>,
    args: &SnapshotArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let from = open::path(pool)?;
    let (to, no_verify) = (&args.copy.to, args.no_verify);
    place::check_copy(&from, to, Some(args.copy.force))?;
    if no_verify && to.symlink_metadata().is_ok() {
        let why = "is not replaced by a pool that was not checked: name another file";
        return Err(Failure::Usage(format!("{} {why}, or leave out --no-verify", to.display())));
    }
    let pool = open::to_write(&from)?;
    let bytes = pool.stats().size;
    place::check_space(place::parent(to), bytes, "")?;
    if !no_verify {
        check(&pool, &from)?;
    }
    let bar = progress::spinner("copying");
    let start = Instant::now();
    pool.snapshot(to)?;
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    pool.close()?;
    out.object(&json!({
        "event": "snapshot",
        "from": from.to_string_lossy(),
        "to": to.to_string_lossy(),
        "bytes": bytes,
        "verified": !no_verify,
        "seconds": seconds,
    }))?;
    let size = indicatif::BinaryBytes(bytes);
    out.line(format!("{} is a copy of {}, {size}", to.display(), from.display()))
}

/// Fails if the pool is not sound. Nothing is copied in that case, because a damaged copy must not
/// pass for a backup.
fn check(pool: &Pool, path: &Path) -> Result<(), Failure> {
    let bar = progress::spinner("checking");
    let found = pool.verify()?;
    bar.finish_and_clear();
    found.ensure_sound().map_err(|error| {
        let why = Failure::from(error);
        Failure::Damaged(format!(
            "{}: {}; nothing was copied. `outlast verify` lists all damage, `outlast salvage` copies \
             what can be read into a new pool, and --no-verify copies the pool as it is",
            path.display(),
            why.message()
        ))
    })
}
