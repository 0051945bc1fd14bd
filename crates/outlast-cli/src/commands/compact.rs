//! `compact`: copies a pool into one that takes no more space than its records need.
//!
//! A pool's file never becomes shorter, and a page that holds even one record is not free. So the
//! command copies the maps, record by record, into a new pool next to the old one. The new pool is
//! verified and durable before it takes the name of the old one. A crash before the renaming leaves
//! the old pool, and perhaps a file that the next compaction removes. A later crash leaves the new
//! pool.

use super::salvage::Unfinished;
use crate::args::CompactArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::open;
use crate::output::Output;
use crate::place;
use crate::progress;
use crate::text::counted;
use indicatif::{BinaryBytes, ProgressBar};
use outlast::{Error, JournalOptions, Pool, PoolOptions};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde_json::json;
use std::fs::{File, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The suffix of the new pool's name until it replaces the old one.
const UNFINISHED: &str = ".compacting";

pub(crate) fn run(
    pool: Option<&Path>,
    args: &CompactArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    if pool.is_some() {
        let why = "compact takes its pools as arguments: outlast compact POOL [NEW]";
        return Err(Failure::Usage(why.into()));
    }
    let given = args.old.display();
    // Replace the file itself, and not a link to it.
    let from = match args.old.canonicalize() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::NoSuchPool { path: args.old.clone() }.into());
        }
        path => path.map_err(|e| Failure::io(format!("opening {given}"), &e))?,
    };
    if let Some(to) = &args.new {
        place::check_copy(&from, to, None)?;
    }
    let start = Instant::now();
    let has_journal = end_journal(&from)?;
    let old_file = Named::open(&from)?;
    // This takes a reader's lock, so that no process changes the file until it is replaced.
    let old = open::to_read(&from, false)?;
    let stats = old.stats();
    let used = check(&old, &args.old)?;
    let to = match &args.new {
        Some(to) => to.clone(),
        None => unfinished(&from)?,
    };
    place::check_space(place::parent(&to), used + used / 4, "; name a file elsewhere as NEW")?;
    let options = PoolOptions::new().page_bits(stats.page_bits).max_size(stats.max_size);
    // Without the background thread, the pool does not grow ahead of use.
    let options = options.background(false);
    let new = match &args.new {
        Some(_) => Unfinished::create(&to, &options)?,
        // Until the new file has the permissions of the old one, no one else may read it.
        None => privately(|| Unfinished::create(&to, &options))?,
    };
    let new_file = Named::open(&to)?;
    if new_file.lock() {
        // The new pool holds a lock on its own file, so this is another file.
        return Err(replaced(&to));
    }
    interrupt::listen();
    let (maps, records) = copy(&old, new.pool())?;
    new.finish()?;
    if args.new.is_none() {
        let made = Removed(Some(&new_file));
        if has_journal {
            give_journal(&to)?;
        }
        replace(&old_file, &new_file)?;
        made.keep();
    }
    drop((old, new_file));
    let result = if args.new.is_some() { &to } else { &from };
    let bytes = result.metadata().map_or(0, |meta| meta.len());
    out.object(&json!({
        "event": "compact",
        "from": from.to_string_lossy(),
        "to": result.to_string_lossy(),
        "maps": maps,
        "records": records,
        "bytes_before": stats.size,
        "bytes": bytes,
        "seconds": start.elapsed().as_secs_f64(),
    }))?;
    let (before, after) = (BinaryBytes(stats.size), BinaryBytes(bytes));
    let what = format!("{} in {}", counted(records, "record"), counted(maps, "map"));
    out.line(match &args.new {
        Some(to) => {
            format!("{} is a copy of {given}: {what}, {before} became {after}", to.display())
        }
        None => format!("{given}: {what}, {before} became {after}"),
    })
}

/// If the pool's journal was not closed, opens and closes the pool, so that its file is complete
/// without the journal. Returns whether the pool has a journal.
fn end_journal(path: &Path) -> Result<bool, Failure> {
    let facts = PoolOptions::new().facts(path).map_err(|e| open::about(path, e))?;
    // A process that died while it closed the pool may have left segments. With those in place, the
    // pool that replaces this one could not be opened.
    if facts.journal.as_ref().is_some_and(|journal| !journal.closed || journal.segments > 0) {
        open::to_write(path)?.close()?;
    }
    Ok(facts.journal.is_some())
}

/// Fails if the pool is not sound. Returns the bytes that its maps use.
fn check(pool: &Pool, path: &Path) -> Result<u64, Failure> {
    let bar = progress::spinner("checking");
    let found = pool.verify()?;
    bar.finish_and_clear();
    let used = found.used_bytes;
    found.ensure_sound().map_err(|error| {
        let why = Failure::from(error);
        Failure::Damaged(format!(
            "{}: {}; nothing was done. `outlast verify` lists all damage, `outlast salvage` copies what \
             can be read into a new pool",
            path.display(),
            why.message()
        ))
    })?;
    Ok(used)
}

/// Copies all maps, and checks the copy. Returns how many maps and records it has.
fn copy(old: &Pool, new: &Pool) -> Result<(u64, u64), Failure> {
    let mut counts = Vec::new();
    let infos: Vec<_> = old.maps().into_iter().collect::<Result<_, _>>()?;
    for info in &infos {
        let from = old.raw_map(&info.name)?;
        let to = new.raw_map_like(info)?;
        let bar = progress::bar(from.len_estimate()?, &format!("copying {}", info.name));
        let count = copy_map(from.iter().checked(), &to, &bar)?;
        bar.finish_and_clear();
        counts.push(count);
    }
    let bar = progress::spinner("checking the copy");
    let found = new.verify()?;
    bar.finish_and_clear();
    // The new pool lists its maps in the order in which they were created.
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
        if !to.insert(&key, &value)? {
            return Err(Failure::Damaged(
                "the pool has a key twice; `outlast salvage` copies it".into(),
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

/// Returns the path of the new pool until it replaces the old one. Removes what an unfinished
/// compaction has left there.
fn unfinished(from: &Path) -> Result<PathBuf, Failure> {
    let mut name = from.as_os_str().to_owned();
    name.push(UNFINISHED);
    let path = PathBuf::from(name);
    let action = || format!("removing {}", path.display());
    if path.symlink_metadata().is_ok() {
        let file = Named::open(&path)?;
        // Only the process that holds the lock of the file of this name may remove or rename that
        // file; see `replace`.
        if !file.lock() || !file.has_its_name() {
            let (from, path) = (from.display(), path.display());
            return Err(Failure::Failed(format!(
                "{from} is being compacted by another process, which has {path} open"
            )));
        }
        std::fs::remove_file(&path).map_err(|e| Failure::io(action(), &e))?;
    }
    let mut journal = path.as_os_str().to_owned();
    journal.push(".journal");
    // Segments in this directory would belong to another pool than the new one.
    for entry in std::fs::read_dir(&journal).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("segment-")) {
            std::fs::remove_file(entry.path()).map_err(|e| Failure::io(action(), &e))?;
        }
    }
    let _ = std::fs::remove_dir(&journal);
    Ok(path)
}

/// Makes a file that only this user may read and write.
fn privately<T>(make: impl FnOnce() -> T) -> T {
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let made = make();
    rustix::process::umask(before);
    made
}

/// A file, and the path that led to it. While it is open, no other file has its inode number.
struct Named<'p> {
    file: File,
    path: &'p Path,
}

impl<'p> Named<'p> {
    fn open(path: &'p Path) -> Result<Named<'p>, Failure> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path);
        match file {
            Ok(file) => Ok(Named { file, path }),
            Err(e) => Err(Failure::io(format!("opening {}", path.display()), &e)),
        }
    }

    /// Whether the path still leads to the file.
    fn has_its_name(&self) -> bool {
        let id = |meta: Metadata| (meta.dev(), meta.ino());
        match (self.file.metadata(), self.path.symlink_metadata()) {
            (Ok(file), Ok(there)) => id(file) == id(there),
            _ => false,
        }
    }

    /// Locks the file, if no one else has. The lock ends with this value.
    fn lock(&self) -> bool {
        rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok()
    }
}

/// Gives a closed pool a journal, and closes it again.
fn give_journal(path: &Path) -> Result<(), Failure> {
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

fn replaced(path: &Path) -> Failure {
    let path = path.display();
    Failure::Failed(format!("{path} was replaced by another process meanwhile; nothing was done"))
}

/// Replaces the old pool by the new one, durably. The new file gets the permissions of the old one,
/// and its owner, if this process may set that.
///
/// Another process may be compacting the same pool, or may have replaced it since it was read here.
/// Only one process at a time holds the lock of the file that has the new pool's name, so this one
/// checks that it holds that lock.
fn replace(old: &Named<'_>, new: &Named<'_>) -> Result<(), Failure> {
    let from = old.path.display();
    if !new.lock() || !new.has_its_name() || !old.has_its_name() {
        let path = if old.has_its_name() { new.path } else { old.path };
        return Err(replaced(path));
    }
    let replace = || -> std::io::Result<()> {
        let meta = old.file.metadata()?;
        let mut mode = meta.permissions().mode();
        if std::os::unix::fs::fchown(&new.file, Some(meta.uid()), Some(meta.gid())).is_err()
            && std::os::unix::fs::fchown(&new.file, None, Some(meta.gid())).is_err()
        {
            // The rights of the group were meant for the old file's group.
            mode &= !Mode::RWXG.bits();
        }
        new.file.set_permissions(Permissions::from_mode(mode))?;
        new.file.sync_all()?;
        std::fs::rename(new.path, old.path)?;
        File::open(place::parent(old.path))?.sync_all()
    };
    replace().map_err(|e| Failure::io(format!("replacing {from}"), &e))
}

/// Removes a file, unless the file is to be kept or another one has its name by now.
struct Removed<'f, 'p>(Option<&'f Named<'p>>);

impl Removed<'_, '_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Removed<'_, '_> {
    fn drop(&mut self) {
        if let Some(file) = self.0
            && file.has_its_name()
        {
            let _ = std::fs::remove_file(file.path);
        }
    }
}
