//! `restore`: puts a backup in the place of a pool.

use super::verify::require_sound;
use crate::args::RestoreArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::Output;
use crate::place;
use crate::progress;
use outlast::{OldPool, PoolOptions};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

pub(crate) fn run(
    pool: Option<&Path>,
    args: &RestoreArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let to = open::path(args.target.as_deref().or(pool))?;
    let from = open::resolved(args.backup.clone())?;
    let number = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
    if number(&from).is_some() && number(&from) == number(&to) {
        return Err(Failure::Usage(format!("{} is the backup itself", to.display())));
    }
    let had_journal = PoolOptions::new().facts(&to).is_ok_and(|facts| facts.journal.is_some());
    let backup = open::to_read(&from, false)?;
    place::check_space(place::parent(&to), backup.stats().size, "")?;
    require_sound(&from, &backup, "nothing was restored")?;
    // The lock of a read-only pool keeps out writers.
    let old = if args.remove_old { OldPool::Removed } else { OldPool::Kept };
    let bar = progress::spinner("restoring");
    let start = Instant::now();
    // SAFETY: as in `open::to_read`.
    let restored = unsafe { PoolOptions::new().restore(&from, &to, old) };
    let restored = restored.map_err(|e| open::about(&to, e))?;
    if had_journal {
        super::compact::give_journal(&to)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    out.object(&json!({
        "event": "restore",
        "from": from.to_string_lossy(),
        "to": to.to_string_lossy(),
        "bytes": restored.bytes,
        "had_journal": had_journal,
        "journal": restored.journal.as_ref().map(|journal| journal.to_string_lossy()),
        "old": restored.old.as_ref().map(|old| old.to_string_lossy()),
        "seconds": seconds,
    }))?;
    let size = indicatif::BinaryBytes(restored.bytes);
    let kept = restored
        .old
        .as_ref()
        .map_or_else(String::new, |old| format!("; the old pool is {}", old.display()));
    out.line(format!("{} is a copy of {}, {size}{kept}", to.display(), from.display()))?;
    if let Some(journal) = &restored.journal {
        out.line(format!("The journal that was there is {}", journal.display()))?;
    }
    match had_journal {
        true => out.line("It has a journal, as the old pool had"),
        false => Ok(()),
    }
}
