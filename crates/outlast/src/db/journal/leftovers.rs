//! The working files that are there, and which of them nobody needs.

use super::base::peek;
use super::options::{JournalOptions, MEMORY};
use super::working::{Owned, is_unfinished_name, is_working_name, open_unknown};
use crate::db::files::{kept_from, lock};
use crate::db::options::PoolOptions;
use crate::error::Result;
use crate::pmem::Notes;
use crate::pool::identity::{Identity, Relation};
use rustix::fs::{FlockOperation, OFlags};
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A working file of a journaled pool. See [`PoolOptions::working_files`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkingFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The memory or disk space that it takes, in bytes.
    pub bytes: u64,
    /// The number of the user that owns it.
    pub owner: u32,
    /// The id of the pool, if the file says so.
    pub pool: Option<u128>,
    /// The path of the pool's file, if it is noted.
    pub base: Option<PathBuf>,
    /// Who needs it.
    pub use_of: WorkingFileUse,
}

/// Who needs a working file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkingFileUse {
    /// A process has the pool open.
    InUse,
    /// The pool was not closed, or was closed and kept the file. It needs the file to open with
    /// everything that was acknowledged.
    Needed,
    /// Nobody: it is from before the last restart of the machine, or was not completed, or its pool has
    /// gone on without it.
    Needless,
    /// The pool's file is not at the path where it was. If the pool is gone, nobody needs the file.
    PoolGone,
    /// It cannot be told, for instance because the file or the pool is another user's.
    Unknown,
}

impl PoolOptions {
    /// Lists the working files of journaled pools in the default directory for them, `/dev/shm`, in that
    /// of this pool's [options](JournalOptions::working_directory), and in `directories`. Changes
    /// nothing.
    ///
    /// A process that dies leaves its pool's working file, which is as large as the pool. It stays until
    /// the pool is opened again, or until the machine is restarted if it is in memory.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// for file in outlast::PoolOptions::new().working_files(&[])? {
    ///     println!("{}: {} bytes, {:?}", file.path.display(), file.bytes, file.use_of);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system's identity of a pool's file cannot be read.
    pub fn working_files(&self, directories: &[PathBuf]) -> Result<Vec<WorkingFile>> {
        let chosen = self.journal.as_ref().and_then(JournalOptions::chosen_working);
        let places = chosen.into_iter().chain([MEMORY.into()]).chain(directories.iter().cloned());
        let mut places: Vec<PathBuf> = places.collect();
        places.sort();
        places.dedup();
        let boot = self.boot()?;
        let files = places.iter().flat_map(|place| files_in(place, boot));
        Ok(files.collect())
    }
}

/// Lists the working files in a directory.
fn files_in(place: &Path, boot: u128) -> Vec<WorkingFile> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    entries.filter_map(|entry| look_at(&entry.path(), boot)).collect()
}

fn look_at(path: &Path, boot: u128) -> Option<WorkingFile> {
    let name = path.file_name()?.to_str()?;
    let is_unfinished = is_unfinished_name(name);
    if !is_unfinished && !is_working_name(name) {
        return None;
    }
    let meta = path.symlink_metadata().ok().filter(|meta| meta.is_file())?;
    let mut found = WorkingFile {
        path: path.into(),
        bytes: meta.blocks() * 512,
        owner: meta.uid(),
        pool: None,
        base: None,
        use_of: WorkingFileUse::Unknown,
    };
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let opened = File::options().read(true).write(true).custom_flags(flags).open(path);
    let Ok(file) = opened else { return Some(found) };
    let is_free = lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    let read = Notes::open(&file).ok().flatten().and_then(|notes| Owned::load(&notes));
    if let Some((of, base)) = &read {
        (found.pool, found.base) = (Some(of.owner.pool), base.clone());
    }
    found.use_of = match read {
        _ if !is_free => WorkingFileUse::InUse,
        _ if is_unfinished => WorkingFileUse::Needless,
        Some((of, _)) if of.boot != boot => match is_from_before_boot(meta.ctime()) {
            true => WorkingFileUse::Needless,
            // A process that could not read the boot id has made one up.
            false => WorkingFileUse::Unknown,
        },
        Some((of, Some(base))) => use_by(&base, of),
        _ => WorkingFileUse::Unknown,
    };
    Some(found)
}

/// Returns whether a pool needs a working file that belongs to `of`, which is of the current boot. The
/// pool was at this path, and a restore may have kept it under another name.
fn use_by(base: &Path, of: Owned) -> WorkingFileUse {
    let names = std::iter::once(base.to_owned()).chain(kept_from(base));
    let mut uses = names.map(|name| use_at(&name, of));
    uses.find(|&found| found != WorkingFileUse::PoolGone).unwrap_or(WorkingFileUse::PoolGone)
}

/// Returns whether the base at this path needs the working file.
fn use_at(base: &Path, of: Owned) -> WorkingFileUse {
    let file = match open_unknown(base) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return WorkingFileUse::PoolGone;
        }
        Err(_) => return WorkingFileUse::Unknown,
    };
    let (Ok(identity), Ok(meta)) = (Identity::of(&file), peek(&file)) else {
        return WorkingFileUse::Unknown;
    };
    match (identity.compared_with(of.base, true), meta) {
        (Relation::Same, Some(meta)) if meta.owner() == of.owner => WorkingFileUse::Needed,
        // The file has begun another life, or is no journaled pool any more. A life never comes back.
        (Relation::Same, _) => WorkingFileUse::Needless,
        (Relation::Copy, _) => WorkingFileUse::PoolGone,
        (Relation::Unknown, _) => WorkingFileUse::Unknown,
    }
}

/// Returns whether a file that was last changed at this time, in seconds since 1970, is certainly from
/// before the system was started.
fn is_from_before_boot(changed: i64) -> bool {
    /// Clocks are set soon after the start.
    const SLACK: f64 = 600.0;
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split(' ').next().and_then(|text| text.parse::<f64>().ok());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    match (uptime, now) {
        (Some(uptime), Ok(now)) => (changed as f64) < now.as_secs_f64() - uptime - SLACK,
        _ => false,
    }
}

/// Removes the working files in these directories that nobody needs. What cannot be removed stays.
pub(super) fn remove_needless(places: &[PathBuf], boot: u128) {
    for file in places.iter().flat_map(|place| files_in(place, boot)) {
        if file.use_of == WorkingFileUse::Needless {
            let _ = std::fs::remove_file(file.path);
        }
    }
}
