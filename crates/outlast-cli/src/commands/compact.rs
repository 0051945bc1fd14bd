//! `compact`: copies a pool into one that takes no more space than its records need.
//!
//! A pool's file never becomes shorter, and a page that holds even one record is not free. So the
//! command copies the maps, record by record, into a new pool: NEW if it is given, otherwise a file
//! next to the old pool, which it then replaces. The copy is verified and durable before it gets
//! its final name. A crash before the renaming leaves the old pool, and perhaps a file that the
//! next compaction removes. A crash after it leaves the new pool.

use super::unfinished::{Named, Unfinished};
use super::verify::require_sound;
use crate::args::CompactArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::open;
use crate::output::Output;
use crate::place;
use crate::progress;
use crate::text::{self, counted};
use indicatif::{BinaryBytes, ProgressBar};
use outlast::{Error, JournalOptions, Pool, PoolOptions};
use rustix::fs::Mode;
use serde_json::json;
use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Instant;

/// The suffix of the new pool's name until it is complete.
const UNFINISHED: &str = ".compacting";

pub(crate) fn run(
    pool: Option<&Path>,
    args: &CompactArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let (named, copy_to) = open::pool_and_file(pool, &args.files)?;
    let given = named.display();
    // Replace the file itself, and not a link to it.
    let from = match named.canonicalize() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::NoSuchPool { path: named.clone() }.into());
        }
        path => path.map_err(|e| Failure::io(format!("opening {given}"), &e))?,
    };
    if let Some(to) = &copy_to {
        place::check_copy(&from, to, None)?;
    }
    let start = Instant::now();
    // A pool that is only copied is read with its working file, and left as it is.
    let has_journal = copy_to.is_none() && end_journal(&from)?;
    let old_file = Named::open(from.clone())?;
    let old = match copy_to {
        Some(_) => open::to_read(&from, false)?,
        None => hold(&from, has_journal)?,
    };
    let stats = old.stats();
    let used = require_sound(&from, &old, "nothing was done")?;
    let to = copy_to.as_ref().unwrap_or(&from);
    let needed = (used + used / 4).max(open::NEW_POOL_BYTES);
    place::check_space(place::parent(to), needed, "; name a file elsewhere as NEW")?;
    // It gets a journal once it is complete.
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .page_bits(stats.page_bits)
        .max_size(stats.max_size);
    // Without the background thread, the pool does not grow ahead of use.
    let options = options.background(false);
    // A file that replaces the old one gets the old one's permissions when it is complete.
    let original = copy_to.as_ref().map(|_| &*from);
    let new = Unfinished::create(to, UNFINISHED, &options, original)?;
    interrupt::listen();
    let (maps, records) = copy(&old, new.pool())?;
    if copy_to.is_some() {
        new.finish(to)?;
    } else {
        new.close()?;
        if has_journal {
            give_journal(&new.file().path)?;
        }
        replace(&old_file, new.file())?;
    }
    drop(old);
    let bytes = to.metadata().map_or(0, |meta| meta.len());
    out.object(&json!({
        "event": "compact",
        "from": from.to_string_lossy(),
        "to": to.to_string_lossy(),
        "maps": maps,
        "records": records,
        "bytes_before": stats.size,
        "bytes": bytes,
        "seconds": start.elapsed().as_secs_f64(),
    }))?;
    let (before, after) = (BinaryBytes(stats.size), BinaryBytes(bytes));
    let what = format!("{} in {}", counted(records, "record"), counted(maps, "map"));
    out.line(match &copy_to {
        Some(to) => {
            format!("{} is a copy of {given}: {what}, {before} became {after}", to.display())
        }
        None => format!("{given}: {what}, {before} became {after}"),
    })
}

/// If the pool's journal was not closed or still has segments, opens and closes the pool, so that
/// its file is complete without them. Returns whether the pool has a journal.
fn end_journal(path: &Path) -> Result<bool, Failure> {
    let (has_journal, is_ended) = journal(path)?;
    if !is_ended {
        open::to_write(path)?.close()?;
    }
    Ok(has_journal)
}

/// Returns whether a pool has a journal, and whether its file is complete without it.
fn journal(path: &Path) -> Result<(bool, bool), Failure> {
    let facts = PoolOptions::new().facts(path).map_err(|e| open::about(path, e))?;
    // A process that died while it closed the pool may have left segments. With those in place, the
    // pool that replaces this one could not be opened.
    let is_ended = |journal: &outlast::JournalFacts| journal.closed && journal.segments == 0;
    Ok((facts.journal.is_some(), facts.journal.as_ref().is_none_or(is_ended)))
}

/// Opens the pool for reading. Its lock keeps others from changing the file until it is replaced.
/// Fails if another process has used the pool with a journal since `has_journal` was found.
fn hold(path: &Path, has_journal: bool) -> Result<Pool, Failure> {
    let pool = open::to_read(path, false)?;
    if journal(path)? != (has_journal, true) {
        let path = path.display();
        return Err(Failure::Failed(format!(
            "{path} was given a journal, or used with it, by another process meanwhile; nothing was done. \
             Compact it again"
        )));
    }
    Ok(pool)
}

/// Copies all maps, and checks the copy. Returns how many maps and records it has.
fn copy(old: &Pool, new: &Pool) -> Result<(u64, u64), Failure> {
    let mut counts = Vec::new();
    let infos: Vec<_> = old.maps().into_iter().collect::<Result<_, _>>()?;
    for info in &infos {
        let from = old.raw_map(&info.name)?;
        let to = new.raw_map_like(info)?;
        let bar =
            progress::bar(from.len_estimate()?, &format!("copying {}", text::name(&info.name)));
        let count = copy_map(from.iter().checked().stored(), &to, &bar)?;
        bar.finish_and_clear();
        counts.push(count);
    }
    let bar = progress::spinner("checking the copy");
    let found = new.verify()?;
    bar.finish_and_clear();
    // The new pool lists its maps in the order in which they were created, which is that of
    // `counts`.
    let found_counts: Vec<_> = found.maps.iter().map(|(_, map)| map.records).collect();
    found.ensure_sound()?;
    if found_counts != counts {
        let why = format!("the copy has {found_counts:?} records and should have {counts:?}");
        return Err(Failure::Failed(format!("{why}; nothing was replaced")));
    }
    Ok((counts.len() as u64, counts.iter().sum()))
}

fn copy_map(
    records: impl Iterator<Item = outlast::Result<(Vec<u8>, Vec<u8>)>>,
    to: &outlast::RawMap,
    bar: &ProgressBar,
) -> Result<u64, Failure> {
    let mut count = 0;
    for record in records {
        interrupt::check()?;
        let (key, value) = record?;
        if !to.insert_stored(&key, &value)? {
            return Err(Failure::Damaged(
                "the pool has a key more than once; `outlast salvage` copies one record of each key".into(),
            ));
        }
        count += 1;
        // Updating a bar takes a lock.
        if count % 1024 == 0 {
            bar.inc(1024);
        }
    }
    Ok(count)
}

/// Gives a closed pool a journal, and closes it again.
pub(super) fn give_journal(path: &Path) -> Result<(), Failure> {
    let options = PoolOptions::new().journal(JournalOptions::new()).background(false);
    // SAFETY: as in `open::to_read`.
    let pool = unsafe { options.open(path) }.map_err(|e| open::about(path, e))?;
    pool.close()?;
    let facts = options.facts(path).map_err(|e| open::about(path, e))?;
    if let Some(journal) = facts.journal {
        // The directory is empty, and is named after a pool whose name is about to change.
        let _ = std::fs::remove_dir(journal.directory);
    }
    Ok(())
}

/// Replaces the old pool by the new one, durably. The new file gets the old one's permissions and,
/// as far as this process may set them, its owner and group. If the group cannot be set, the new
/// file gives no permissions to a group.
///
/// Another process may be compacting the same pool, or may have replaced it since this process read
/// it. So this first locks the new file under its temporary name, which only one process can do,
/// and then checks that the old file still has its name.
fn replace(old: &Named, new: &Named) -> Result<(), Failure> {
    let from = old.path.display();
    new.claim()?;
    if !old.has_its_name() {
        return Err(old.replaced());
    }
    let replace = || -> std::io::Result<()> {
        let meta = old.file.metadata()?;
        let mut mode = meta.permissions().mode();
        if std::os::unix::fs::fchown(&new.file, Some(meta.uid()), Some(meta.gid())).is_err()
            && std::os::unix::fs::fchown(&new.file, None, Some(meta.gid())).is_err()
        {
            // The permissions for the group were meant for the old file's group.
            mode &= !Mode::RWXG.bits();
        }
        new.file.set_permissions(Permissions::from_mode(mode))?;
        new.file.sync_all()?;
        std::fs::rename(&new.path, &old.path)?;
        File::open(place::parent(&old.path))?.sync_all()
    };
    replace().map_err(|e| Failure::io(format!("replacing {from}"), &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process uses the pool after its journal was ended, and before it is held.
    #[test]
    fn a_pool_that_got_a_journal_meanwhile_is_not_replaced_by_one_without() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.pool");
        let plain = PoolOptions::new().survive(outlast::Failure::ProcessDeath);
        open::create_as(&path, &plain).unwrap().close().unwrap();
        let had_journal = end_journal(&path).unwrap();
        assert!(!had_journal);
        drop(hold(&path, had_journal).unwrap());
        let journal = crate::args::SurviveArgs { survive: None, journal: true };
        open::to_write_with(&path, journal).unwrap().close().unwrap();
        let refused = hold(&path, had_journal).expect_err("refused");
        assert!(refused.message().contains("was given a journal"), "{refused:?}");
        // With a journal that has ended, the pool is held.
        let has_journal = end_journal(&path).unwrap();
        assert!(has_journal);
        drop(hold(&path, has_journal).unwrap());
        // A process that died while it closed the pool has left a segment.
        let segment = dir.path().join("test.pool.journal/segment-0000000000000001");
        std::fs::write(segment, [0; 4096]).unwrap();
        assert!(hold(&path, has_journal).is_err());
    }
}
