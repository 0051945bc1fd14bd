//! Copying a pool that another process uses.

use super::files::header_of;
use super::journal::incomplete;
use super::options::PoolOptions;
use super::snapshot;
use crate::error::{Error, Result};
use crate::journal::backup::{self, Copied};
use crate::journal::files::{DiskDirectory, DiskFile};
use crate::pmem::{Disk, MappingError};
use crate::pool::backing::mapping_error;
use crate::pool::layout::field;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

/// The most attempts at a copy. One fails if the pool's files change too much meanwhile.
const ATTEMPTS: u32 = 30;
/// The pause before a copy is begun again.
const PAUSE: Duration = Duration::from_millis(20);

/// What a backup has done. See [`PoolOptions::backup`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// Size of the copy in bytes.
    pub bytes: u64,
    /// Whether another handle or process had the pool open for writing.
    pub in_use: bool,
    /// Number of epochs of the journal that were needed to complete the copy.
    pub epochs: u64,
    /// How many times the copy was begun. It is begun again if the pool's files change too much
    /// meanwhile.
    pub attempts: u32,
}

impl PoolOptions {
    /// Copies the pool at `path` to `to`, as a cleanly closed pool without a journal, and replaces any
    /// file there. Once this returns, the copy is durable.
    ///
    /// If another process has the pool open, and the pool has a journal, this copies its files. It
    /// takes no lock and blocks no other thread. The copy is the pool as it was at some moment
    /// between two operations. It holds everything that was durable when the backup began, and so
    /// everything that [`Pool::wait_durable`] had confirmed. The space that operations under way
    /// had claimed at that moment is reclaimed when the copy is opened for writing.
    ///
    /// If nobody has the pool open for writing, this opens it for reading and makes a
    /// [`snapshot`](crate::Pool::snapshot). If its working file was lost, or a batch is unfinished
    /// in a journaled pool, the copy is made from base and journal.
    ///
    /// The function set by [`recovery_progress`](Self::recovery_progress) receives how many bytes
    /// of the base have been copied. Of the other options, only the journal's
    /// [directory](crate::JournalOptions::directory) and the directory of its [working
    /// file](crate::JournalOptions::working_directory) matter.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::{JournalOptions, PoolOptions};
    ///
    /// let options = PoolOptions::new().journal(JournalOptions::new());
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { options.create(&path)? };
    /// pool.map::<str, u64>("ages")?.insert("Ada", &36)?;
    /// pool.wait_durable()?;
    ///
    /// // Any process can do this, while the pool is open.
    /// let copy = dir.path().join("copy.pool");
    /// // SAFETY: no one writes the pool's file except through the pool.
    /// let done = unsafe { PoolOptions::new().backup(&path, &copy)? };
    /// assert!(done.in_use);
    ///
    /// // SAFETY: no one else writes the copy while it is open.
    /// let copy = unsafe { PoolOptions::new().open(&copy)? };
    /// assert_eq!(copy.map::<str, u64>("ages")?.get("Ada")?, Some(36));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoJournal`] if another process has the pool open for writing and it has no journal;
    /// [`Error::IncompleteJournal`]; [`Error::Io`], also if the files changed too much in each of
    /// several attempts; those of [`open_read_only`](Self::open_read_only) and of
    /// [`snapshot`](crate::Pool::snapshot).
    ///
    /// # Safety
    /// Same as for [`open`](Self::open), for the file at `path`.
    ///
    /// [`Pool::wait_durable`]: crate::Pool::wait_durable
    pub unsafe fn backup(&self, path: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Backup> {
        let (path, to) = (path.as_ref(), to.as_ref());
        // A pool that may be torn is not read as it is: either its journal completes it, or the
        // backup fails.
        let options = self.clone().accept_possibly_torn(false);
        for attempts in 1..=ATTEMPTS {
            // SAFETY: the caller's promise is the same.
            let refused = match unsafe { options.open_read_only(path) } {
                Ok(pool) => {
                    pool.snapshot(to)?;
                    let bytes = pool.stats().size;
                    return Ok(Backup { bytes, in_use: false, epochs: 0, attempts });
                }
                Err(error @ (Error::Locked { .. } | Error::Unfinished { .. })) => error,
                Err(error) => return Err(error),
            };
            let in_use = matches!(refused, Error::Locked { .. });
            let copied = options.copy_files(path, to).map_err(|error| match (error, refused) {
                // A batch was under way, and nobody has the pool open.
                (Error::NoJournal { .. }, Error::Unfinished { .. }) => {
                    Error::Unfinished { path: path.into() }
                }
                (error, _) => error,
            });
            if let Some((bytes, epochs)) = copied? {
                return Ok(Backup { bytes, in_use, epochs, attempts });
            }
            std::thread::sleep(PAUSE);
        }
        let why = "its files changed too much while they were copied";
        Err(Error::io(format!("copying {}", path.display()), io::Error::other(why)))
    }

    /// Copies base and journal to `to`, and makes a pool of them. Returns the pool's size and the
    /// number of epochs that completed it, or `None` if the files changed too much meanwhile.
    fn copy_files(&self, path: &Path, to: &Path) -> Result<Option<(u64, u64)>> {
        let reading = |e| Error::io(format!("reading {}", path.display()), e);
        let base = File::open(path).map_err(reading)?;
        let original = base.try_clone().map_err(reading)?;
        let len = base.metadata().map_err(reading)?.len();
        snapshot::check_limit(len).map_err(|e| snapshot::failed(to, len, e))?;
        let base = DiskFile::new(base, Disk::default());
        if backup::peek(&base).map_err(reading)?.is_none() {
            return Err(Error::NoJournal { path: path.into() });
        }
        let directory = self.journal.clone().unwrap_or_default().directory_for(path);
        if !directory.is_dir() {
            return Err(Error::Invalid {
                what: "directory of the journal",
                why: format!("there is no directory {}", directory.display()),
            });
        }
        let files = DiskDirectory::read_only(directory.clone());
        let failed = |e| match e {
            MappingError::Io(source) if snapshot::is_full(&source) => Error::disk_full(len, source),
            MappingError::Io(source) => {
                Error::io(format!("copying {} to {}", path.display(), to.display()), source)
            }
            other => mapping_error(other),
        };
        let copied = snapshot::write(&self.disk, Some(&original), to, |file| {
            let target = || file.try_clone().map_err(|e| snapshot::failed(to, len, e));
            let written = Box::new(DiskFile::new(target()?, self.disk.clone()));
            let told = |done, all| self.tell_rebuild(done, all);
            match backup::copy(&base, &files, written, told).map_err(failed)? {
                Copied::Whole { applied } => Ok((self.finish(target()?, to)?, applied)),
                Copied::Moved => Err(Stop::Moved),
                Copied::Incomplete(why) => Err(incomplete(why, path, &directory).into()),
            }
        });
        match copied {
            Ok(copied) => Ok(Some(copied)),
            Err(Stop::Moved) => Ok(None),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Recovers and closes the pool in `file`, which is in the state that a crash leaves. Returns
    /// its size in bytes.
    fn finish(&self, file: File, to: &Path) -> Result<u64> {
        let io = |e| Error::io(format!("writing the snapshot {}", to.display()), e);
        let header = header_of(&file, file.metadata().map_err(io)?.len(), to)?;
        let bytes = header.get(field::SIZE);
        // The base can be longer than the pool, because it grows ahead of the pool.
        self.disk.set_len(&file, bytes).map_err(io)?;
        let mut plain = self.clone().background(false);
        // A pool that was completed from a journal is not torn.
        plain.core.whole = true;
        plain.open_plain(file, header, false, None)?.close()?;
        Ok(bytes)
    }
}

/// Why no copy was made.
enum Stop {
    Moved,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}
