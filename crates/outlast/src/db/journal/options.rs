//! The options of a pool's journal.

use super::base::place_of;
use crate::error::Result;
use crate::journal::meta::Meta;
use crate::pmem::{Mapping, free_bytes};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The default directory of working files, if it is a tmpfs and has room.
pub(super) const MEMORY: &str = "/dev/shm";
/// Free space, in bytes, that this directory must have in addition to twice the size of the pool.
const LEAST_ROOM: u64 = 64 << 20;

/// Options of a pool's journal. See [`PoolOptions::journal`](crate::PoolOptions::journal).
///
/// ```
/// # fn main() -> outlast::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("index.pool");
/// use outlast::{JournalOptions, PoolOptions};
/// use std::time::Duration;
///
/// let journal = JournalOptions::new().interval(Duration::from_millis(5));
/// // SAFETY: no one else writes this file while the pool is open.
/// let pool = unsafe { PoolOptions::new().journal(journal).create(&path)? };
/// let ages = pool.map::<str, u64>("ages")?;
/// ages.insert("Ada", &36)?;
/// pool.wait_durable()?; // From here on, Ada survives a power loss.
/// pool.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct JournalOptions {
    pub(super) interval: Duration,
    pub(super) limit: u64,
    directory: Option<PathBuf>,
    pub(super) working: Option<PathBuf>,
    pub(super) keep: bool,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl JournalOptions {
    /// Returns the defaults: an interval of 10 ms, the journal's directory beside the pool, and the
    /// working file in memory if there is room.
    pub fn new() -> Self {
        let interval = Duration::from_millis(10);
        JournalOptions { interval, limit: 0, directory: None, working: None, keep: false }
    }

    /// Sets the interval at which changes become durable if no thread waits for them. A power loss
    /// undoes at most the changes made during one interval and two commits: the commit under way,
    /// and the one before it, whose cut a change may just have missed. At each interval all writers
    /// are held back for a moment. Default: 10 ms.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets the directory of the journal. It should be on a local disk: on a tmpfs, nothing
    /// survives a power loss. It is created if it does not exist; its parent must exist. Give the
    /// same directory each time the pool is opened. With another one, opening a pool that was not
    /// closed fails with [`Error::IncompleteJournal`](crate::Error::IncompleteJournal). Default: the path
    /// by which the pool is
    /// opened, with `.journal` appended.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Sets the directory of the working file, which is as large as the pool. Default: `/dev/shm`
    /// if that is a tmpfs and has room for twice the pool, otherwise the directory of the journal. If
    /// the file finds no room to grow there, it is moved to the directory of the journal; writers wait
    /// while it is copied.
    /// The pool's file notes the directory. After the process has died, the working file is looked
    /// for in this directory, the noted one, and the default ones. If it is in none of them, the
    /// pool is rebuilt from the disk, and changes that were not durable are lost. If the directory is
    /// on a disk that fails to write the file back, the pool refuses all operations. The next opening
    /// then rebuilds the pool in the same way.
    #[must_use]
    pub fn working_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.working = Some(directory.into());
        self
    }

    /// Sets the length that the journal should not exceed, in bytes. Once it reaches half of that,
    /// checkpoints shorten it. With a longer journal, less is written to the disk, but a rebuild
    /// takes longer. The journal exceeds the limit while the disk cannot keep up. Default: twice
    /// the size of the pool, and at least 256 MiB.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Sets whether closing the pool keeps the working file. Until the next reboot, the pool then
    /// opens without being read from the disk, and the file takes up memory, or disk space if it is
    /// in a directory on a disk. Default: no.
    #[must_use]
    pub fn keep_working_file(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// Returns the directory that was chosen for the working file.
    pub(in crate::layers::db) fn chosen_working(&self) -> Option<PathBuf> {
        self.working.clone()
    }

    /// Returns whether the directory was chosen, and does not follow from the pool's path.
    pub(in crate::layers::db) fn has_directory(&self) -> bool {
        self.directory.is_some()
    }

    pub(in crate::layers::db) fn directory_for(&self, path: &Path) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| {
            let mut name = OsString::from(path);
            name.push(".journal");
            name.into()
        })
    }

    /// Returns the directories that the working file can be in: the one set in the options, the one
    /// that the base notes for the current life, and the default ones. The note can be missing:
    /// a path that is too long is not noted.
    pub(in crate::layers::db) fn places(
        &self,
        directory: &Path,
        base: &File,
        meta: Option<&Meta>,
    ) -> Result<Vec<PathBuf>> {
        let noted = meta.map_or(Ok(None), |meta| place_of(base, meta.life))?;
        let others = [PathBuf::from(MEMORY), directory.into()];
        Ok(self.working.iter().cloned().chain(noted).chain(others).collect())
    }

    /// Returns the directory for a new working file of a pool of `bytes`.
    pub(super) fn place_for(&self, bytes: u64, directory: &Path) -> PathBuf {
        let has_room = |place: &Path| {
            let Ok(open) = File::open(place) else { return false };
            let Ok(free) = free_bytes(place) else { return false };
            Mapping::is_tmpfs(&open) && free.is_none_or(|free| free >= 2 * bytes + LEAST_ROOM)
        };
        match &self.working {
            Some(place) => place.clone(),
            None if has_room(MEMORY.as_ref()) => MEMORY.into(),
            None => directory.into(),
        }
    }
}
