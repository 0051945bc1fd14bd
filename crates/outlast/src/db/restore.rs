//! Putting a backup in the place of a pool.

use super::files::{OLD_NAMES, kept_from, lock, names_of_old, open_parent};
use super::journal::{self, JournalOptions};
use super::options::PoolOptions;
use crate::error::{Error, Result};
use crate::journal::files::DiskDirectory;
use crate::journal::segment::{has_others, holds_segments, remove_all_of};
use crate::pmem::rename_new;
use rustix::fs::{AtFlags, CWD, FlockOperation};
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What happens to the pool that a backup replaces. See [`PoolOptions::restore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OldPool {
    /// It gets another name, and can be opened under it.
    #[default]
    Kept,
    /// It is removed, with its journal.
    Removed,
}

/// What a restore has done. See [`PoolOptions::restore`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Size of the restored pool in bytes.
    pub bytes: u64,
    /// Where the old pool is now, if there was one and it was kept.
    pub old: Option<PathBuf>,
    /// Where the journal is now that lay at the path, if it was kept: that of the old pool, if the pool
    /// could not be completed, or that of a pool which is not there.
    pub journal: Option<PathBuf>,
}

impl PoolOptions {
    /// Puts a copy of the backup at `backup` in the place of the pool at `path`. Nobody may have either
    /// open for writing. The backup can be any pool that was closed, or can be opened for reading:
    /// a [`snapshot`](crate::Pool::snapshot), a [`backup`](Self::backup), or a copy of a closed pool.
    ///
    /// The old pool, if there is one, is kept as `path` with `.old` appended, or `.old2` and so on, and
    /// opens under that name. If it was not closed, it is completed and closed first. If it cannot be
    /// completed, it keeps what it has: its journal is moved along, and its working file stays where
    /// it is. With [`OldPool::Removed`], pool, journal and working file are removed instead.
    ///
    /// If there is no pool at `path`, but a journal where its journal would be, that belongs to a pool
    /// that was moved. It is kept under the first such name that is free, whatever `old` says.
    ///
    /// The replacement is atomic: a crash leaves the old pool at `path`, or the restored one. If the old
    /// pool could not be completed, a crash can also leave it under both names, and its journal beside
    /// the new one. With [`OldPool::Removed`], a crash can leave the old pool's journal, so that the new
    /// one gets none of its own. In either case, restore once more.
    ///
    /// The restored pool has no journal. Give it one when you open it ([`journal`](Self::journal)), if it
    /// is to survive a power loss. Of the options, only those of the old pool's journal matter here.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// # let copy = dir.path().join("index.backup");
    /// use outlast::{OldPool, PoolOptions};
    ///
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { PoolOptions::new().create(&path)? };
    /// pool.map::<str, u64>("ages")?.insert("Ada", &36)?;
    /// pool.snapshot(&copy)?;
    /// pool.drop_map("ages")?;
    /// pool.close()?;
    ///
    /// // SAFETY: no one writes either file.
    /// let restored = unsafe { PoolOptions::new().restore(&copy, &path, OldPool::Kept)? };
    /// assert_eq!(restored.old.unwrap(), dir.path().join("index.pool.old"));
    /// // SAFETY: as for `create`.
    /// let pool = unsafe { PoolOptions::new().open(&path)? };
    /// assert_eq!(pool.map::<str, u64>("ages")?.get("Ada")?, Some(36));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Locked`] if another process or handle has the old pool open, or the backup for writing;
    /// those of [`open_read_only`](Self::open_read_only) for the backup, and of
    /// [`snapshot`](crate::Pool::snapshot). After an error, the old pool is at `path`, except if
    /// only the sync of the directory failed: then the restored pool is there, and the old one, if it is
    /// kept, has its other name.
    ///
    /// # Safety
    /// Same as for [`open`](Self::open), for both files.
    pub unsafe fn restore(
        &self,
        backup: impl AsRef<Path>,
        path: impl AsRef<Path>,
        old: OldPool,
    ) -> Result<Restored> {
        let (backup, path) = (backup.as_ref(), path.as_ref());
        // The journal's options are the old pool's.
        let mut plain = self.clone();
        plain.journal = None;
        // SAFETY: the caller's promise is the same.
        let pool = unsafe { plain.accept_possibly_torn(false).open_read_only(backup)? };
        if old == OldPool::Kept {
            self.undo_cut_short(path)?;
            self.complete_old(path)?;
        }
        let mut replaced = Replaced::default();
        let copied = pool.snapshot_with(path, |file| match File::open(path) {
            Ok(found) => self.take_away(path, &found, file, old, &mut replaced),
            // A journal that lies there belongs to a pool that was moved, so it is kept.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.take_journal_away(path, None, &mut replaced)
            }
            Err(error) => Err(Error::io(format!("opening {}", path.display()), error)),
        });
        if let Err(error) = copied {
            replaced.put_back(path);
            return Err(error);
        }
        if old == OldPool::Removed {
            // The restored pool is in its place. What cannot be removed only takes space.
            replaced.working.iter().for_each(|file| {
                let _ = std::fs::remove_file(file);
            });
            if let Some((directory, pool)) = &replaced.removed {
                let files = DiskDirectory::at(directory.clone(), self.disk.clone());
                let _ = remove_all_of(&files, *pool, None);
            }
        }
        let journal = replaced.journal.map(|(_, now)| now);
        Ok(Restored { bytes: pool.stats().size, old: replaced.old, journal })
    }

    /// Undoes what a restore has done that was cut short before the new pool was in its place: the old
    /// pool has both names, and its journal lies beside the other one.
    fn undo_cut_short(&self, path: &Path) -> Result<()> {
        let io = |e| Error::io(format!("replacing {}", path.display()), e);
        let Ok(meta) = path.symlink_metadata() else { return Ok(()) };
        if self.journal.as_ref().is_some_and(JournalOptions::has_directory) {
            return Ok(());
        }
        let is_it =
            |name: &PathBuf| name.symlink_metadata().is_ok_and(|it| number(&it) == number(&meta));
        let Some(kept) = kept_from(path).into_iter().find(is_it) else { return Ok(()) };
        let options = self.journal.clone().unwrap_or_default();
        let (from, to) = (options.directory_for(&kept), options.directory_for(path));
        if from.is_dir() {
            // An opening meanwhile may have made an empty one.
            let _ = std::fs::remove_dir(&to);
            rename_new(&from, &to).map_err(io)?;
        }
        std::fs::remove_file(&kept).map_err(io)
    }

    /// Completes and closes the old pool, so that it is one file.
    fn complete_old(&self, path: &Path) -> Result<()> {
        let options = self.clone().require_working_file(true).accept_possibly_torn(false);
        // SAFETY: `restore` has the caller's promise.
        match unsafe { options.open(path) } {
            Ok(pool) => pool.close(),
            Err(error @ Error::Locked { .. }) => Err(error),
            // It is kept as it is.
            Err(error) => {
                tracing::debug!(%error, "the pool to be replaced cannot be completed");
                Ok(())
            }
        }
    }

    /// Gives the old pool another name, if it is to be kept, and the new one its owner and permissions.
    /// The old one is locked, and is at `path` until the new one replaces it.
    fn take_away(
        &self,
        path: &Path,
        found: &File,
        new: &File,
        old: OldPool,
        replaced: &mut Replaced,
    ) -> Result<()> {
        let io = |e| Error::io(format!("replacing {}", path.display()), e);
        let meta = found.metadata().map_err(io)?;
        replaced.file = Some(number(&meta));
        // Where that is not allowed, the pool belongs to the user who restores it.
        let _ = std::os::unix::fs::fchown(new, Some(meta.uid()), Some(meta.gid()));
        let mode = std::fs::Permissions::from_mode(meta.mode() & 0o777);
        new.set_permissions(mode).map_err(io)?;
        let directory = self.journal.clone().unwrap_or_default().directory_for(path);
        let known = journal::peek(found)?;
        let (closed, needs_journal) = (known.filter(|it| it.closed), known.filter(|it| !it.closed));
        if let Some(meta) = closed
            && directory.is_dir()
        {
            // A closing or opening that failed may have left segments, which the old pool would remove
            // when it is opened. The new one has the same id, and would not open beside them.
            let files = DiskDirectory::at(directory.clone(), self.disk.clone());
            if !has_others(&files, meta.owner(), meta.end()).map_err(io)? {
                remove_all_of(&files, meta.pool, None).map_err(io)?;
            }
        }
        if old == OldPool::Removed {
            if let Some(meta) = needs_journal {
                let options = self.journal.clone().unwrap_or_default();
                let directory = options.directory_for(path);
                let places = options.places(&directory, found, Some(&meta))?;
                replaced.working =
                    places.iter().map(|it| journal::working_path(it, meta.life)).collect();
                replaced.removed = Some((directory, meta.pool));
            }
            return Ok(());
        }
        let kept = self.name_for(path, Some(&meta)).map_err(io)?;
        if kept.symlink_metadata().is_err() {
            let fd = format!("/proc/self/fd/{}", found.as_raw_fd());
            rustix::fs::linkat(CWD, &fd, CWD, &kept, AtFlags::SYMLINK_FOLLOW)
                .map_err(|e| io(e.into()))?;
        }
        replaced.old = Some(kept);
        self.take_journal_away(path, Some(&meta), replaced)?;
        self.disk.fsync_directory(&open_parent(path)?).map_err(io)
    }

    /// Moves the journal at the old pool's path to that of the name that the old pool is kept under. It
    /// can also be the journal of a pool that is not there, beside which the new one would not open. `meta`
    /// is that of the old pool's file.
    fn take_journal_away(
        &self,
        path: &Path,
        meta: Option<&Metadata>,
        replaced: &mut Replaced,
    ) -> Result<()> {
        let io = |e| Error::io(format!("replacing {}", path.display()), e);
        let options = self.journal.clone().unwrap_or_default();
        let directory = options.directory_for(path);
        // A directory that was chosen stays, and is named when the old pool is opened.
        let holds_any = || holds_segments(&DiskDirectory::read_only(directory.clone()));
        if !options.has_directory() && directory.is_dir() && holds_any().map_err(io)? {
            // A process may still use it, with a pool that was moved.
            let held = File::open(&directory).map_err(io)?;
            lock(&held, FlockOperation::NonBlockingLockExclusive)?;
            let to = options.directory_for(&self.name_for(path, meta).map_err(io)?);
            rename_new(&directory, &to).map_err(io)?;
            replaced.journal = Some((directory, to));
        }
        Ok(())
    }

    /// Returns the first name for the old pool that is free, as is its journal's, or the one that it already
    /// has.
    fn name_for(&self, path: &Path, meta: Option<&Metadata>) -> std::io::Result<PathBuf> {
        let options = self.journal.clone().unwrap_or_default();
        for name in names_of_old(path) {
            match name.symlink_metadata() {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    if options.directory_for(&name).symlink_metadata().is_err() {
                        return Ok(name);
                    }
                }
                // A restore that was cut short has left it, or this one has made it.
                Ok(found) if meta.is_some_and(|meta| number(meta) == number(&found)) => {
                    return Ok(name);
                }
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Err(std::io::Error::other(format!("there are {OLD_NAMES} old pools already")))
    }
}

fn number(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

/// What was taken away from the old pool.
#[derive(Default)]
struct Replaced {
    /// Device and inode of its file.
    file: Option<(u64, u64)>,
    /// Where its journal was, and where it is now.
    journal: Option<(PathBuf, PathBuf)>,
    /// The name that it was given.
    old: Option<PathBuf>,
    /// The names that its working file can have, if it is to be removed.
    working: Vec<PathBuf>,
    /// The journal's directory and the pool whose segments are to be removed.
    removed: Option<(PathBuf, u128)>,
}

impl Replaced {
    /// Undoes it, if the old pool is still at its path. Otherwise it has only its other name.
    fn put_back(self, path: &Path) {
        let found = path.symlink_metadata().ok().map(|meta| number(&meta));
        if found != self.file {
            return;
        }
        if let Some((from, to)) = self.journal {
            let _ = rename_new(&to, &from);
        }
        if let Some(old) = self.old {
            let _ = std::fs::remove_file(old);
        }
    }
}
