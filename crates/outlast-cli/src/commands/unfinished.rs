//! New pools that get their name only once they are complete.
//!
//! Until then, a pool has a temporary name: the final one with a suffix. A crash leaves it under
//! that name, and the next command that would create a pool there removes it.

use crate::failure::Failure;
use crate::open;
use crate::place;
use outlast::internals::pmem::{mode_of_copy, rename_new};
use outlast::{Pool, PoolOptions};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::{File, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A new pool that is not complete. When this is dropped, the file is removed, unless it has been
/// renamed by then.
pub(super) struct Unfinished {
    pool: Pool,
    file: Named,
}

impl Unfinished {
    /// Creates the pool that is to become `path`, under its temporary name. Removes what a crash
    /// has left of an earlier one. Other users get no more permissions than `original` gives them,
    /// and none without an original.
    pub(super) fn create(
        path: &Path,
        suffix: &str,
        options: &PoolOptions,
        original: Option<&Path>,
    ) -> Result<Unfinished, Failure> {
        let path = cleared(path, suffix)?;
        let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
        let pool = open::create_as(&path, options);
        rustix::process::umask(mask);
        let new = Unfinished { pool: pool?, file: Named::open(path)? };
        if new.file.lock() {
            // The new pool has its file locked, so a file that can be locked is another one.
            return Err(new.file.replaced());
        }
        if let Some(original) = original {
            new.file.share(original, 0o644 & !mask.bits()).map_err(|e| {
                let path = new.file.path.display();
                Failure::io(format!("setting the permissions of {path}"), &e)
            })?;
        }
        Ok(new)
    }

    /// The pool.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The file, with its temporary name.
    pub(super) fn file(&self) -> &Named {
        &self.file
    }

    /// Closes the pool.
    pub(super) fn close(&self) -> Result<(), Failure> {
        Ok(self.pool.clone().close()?)
    }

    /// Closes the pool and gives it its final name, durably. Fails if a file of that name exists.
    pub(super) fn finish(self, name: &Path) -> Result<(), Failure> {
        self.close()?;
        self.file.claim()?;
        let rename = || -> std::io::Result<()> {
            rename_new(&self.file.path, name)?;
            File::open(place::parent(name))?.sync_all()
        };
        rename().map_err(|e| Failure::io(format!("creating {}", name.display()), &e))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = self.close();
        // If not, the pool has been renamed, or another process has the temporary name.
        if self.file.claim().is_ok() {
            let _ = std::fs::remove_file(&self.file.path);
        }
    }
}

/// Returns `path` with the suffix appended. Removes the pool and the journal that a crash may have
/// left under that name. Fails if another process is writing the pool.
fn cleared(path: &Path, suffix: &str) -> Result<PathBuf, Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    let path = PathBuf::from(name);
    let action = || format!("removing {}", path.display());
    if path.symlink_metadata().is_ok() {
        let file = Named::open(path.clone())?;
        // Only the process that has locked the file under this name may remove or rename it.
        if !file.lock() || !file.has_its_name() {
            let path = path.display();
            return Err(Failure::Failed(format!("{path} is being written by another process")));
        }
        std::fs::remove_file(&path).map_err(|e| Failure::io(action(), &e))?;
    }
    // With the segments of an earlier pool in place, the new pool could not be opened with a journal.
    open::remove_journal(&path).map_err(|e| Failure::io(action(), &e))?;
    Ok(path)
}

/// A file, and the path that led to it. While it is open, no other file has its inode number.
pub(super) struct Named {
    pub(super) file: File,
    pub(super) path: PathBuf,
}

impl Named {
    pub(super) fn open(path: PathBuf) -> Result<Named, Failure> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(&path);
        match file {
            Ok(file) => Ok(Named { file, path }),
            Err(e) => Err(Failure::io(format!("opening {}", path.display()), &e)),
        }
    }

    /// Returns whether the path still leads to this file.
    pub(super) fn has_its_name(&self) -> bool {
        let id = |meta: Metadata| (meta.dev(), meta.ino());
        match (self.file.metadata(), self.path.symlink_metadata()) {
            (Ok(file), Ok(there)) => id(file) == id(there),
            _ => false,
        }
    }

    /// Gives the file the permissions in `mode` that `original` has as well.
    fn share(&self, original: &Path, mode: u32) -> std::io::Result<()> {
        let group = self.file.metadata()?.gid();
        let mode = mode_of_copy(&original.metadata()?, group, mode);
        self.file.set_permissions(Permissions::from_mode(mode))
    }

    /// Tries to lock the file, and returns whether that succeeded. Dropping this value ends the
    /// lock.
    fn lock(&self) -> bool {
        rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// Makes this process the only one that may rename or remove the file under its name. Fails if
    /// another process has locked the file, or if another file has its name.
    pub(super) fn claim(&self) -> Result<(), Failure> {
        if self.lock() && self.has_its_name() { Ok(()) } else { Err(self.replaced()) }
    }

    /// The failure to report if another file has taken this one's name.
    pub(super) fn replaced(&self) -> Failure {
        let path = self.path.display();
        Failure::Failed(format!(
            "{path} was replaced by another process meanwhile; nothing was done"
        ))
    }
}
