//! What a pool that got no journal after all leaves: nothing.

use super::base::{leave, peek};
use crate::db::files::lock;
use crate::db::options::PoolOptions;
use crate::journal::files::DiskDirectory;
use crate::journal::segment::{Owner, remove_all_of};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::{Path, PathBuf};

impl PoolOptions {
    /// Takes from a pool the journal of its first life with one, which could not begin: no operation
    /// has changed anything, and no checkpoint has written to the base. If that fails, the pool has a
    /// journal from now on. The directory may hold segments of the pool's original, which has the same
    /// id, so only those of this life are removed.
    pub(super) fn take_back(&self, base: &File, owner: Owner, files: &DiskDirectory) {
        // A pool that was started has released the lock. Others may have used the file since.
        if lock(base, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let is_free = match peek(base) {
            Ok(Some(meta)) if !meta.closed && meta.owner() == owner => {
                leave(base, &self.disk).is_ok()
            }
            found => found.is_ok_and(|meta| meta.is_none()),
        };
        if is_free {
            let _ = remove_all_of(files, owner.pool, Some(owner.life));
        }
    }

    /// Returns the directory for the pool's journal if it does not exist yet.
    pub(in crate::layers::db) fn missing_directory(&self, path: &Path) -> Option<PathBuf> {
        let directory = self.journal.clone().unwrap_or_default().directory_for(path);
        directory.symlink_metadata().is_err().then_some(directory)
    }

    /// Removes what a failed creation of a pool has left in its journal's directory. The pool's
    /// file has been removed already, and no copy of it has its id.
    pub(in crate::layers::db) fn clear_journal(&self, path: &Path, pool: u128) {
        let directory = self.journal.clone().unwrap_or_default().directory_for(path);
        let files = DiskDirectory::at(directory, self.disk.clone());
        let _ = remove_all_of(&files, pool, None);
    }
}
