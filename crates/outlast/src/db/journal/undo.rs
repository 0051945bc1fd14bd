//! What a pool that got no journal after all leaves: nothing.

use super::{leave, peek};
use crate::db::options::{PoolOptions, lock};
use crate::journal::files::DiskDirectory;
use crate::journal::meta::Meta;
use crate::journal::segment::{Owner, remove_all_of};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::Path;

impl PoolOptions {
    /// Takes from a pool the journal of its first life with one, which could not begin: no operation
    /// has changed anything, and no checkpoint has written to the base. If that fails, the pool has a
    /// journal from now on.
    pub(super) fn take_back(&self, base: &File, owner: Owner) {
        // A pool that was started has released the lock. Others may have used the file since.
        let locked = lock(base, FlockOperation::NonBlockingLockExclusive);
        let is_ours = |meta: Meta| !meta.closed && meta.owner() == owner;
        if locked.is_ok() && peek(base).is_ok_and(|meta| meta.is_some_and(is_ours)) {
            let _ = leave(base, &self.disk);
        }
    }

    /// Returns whether the directory for the pool's journal exists.
    pub(in crate::db) fn has_journal_directory(&self, path: &Path) -> bool {
        let directory = self.journal.clone().unwrap_or_default().directory_for(path);
        directory.symlink_metadata().is_ok()
    }

    /// Removes what a pool that got no journal after all has left in the directory for it. No file of a
    /// pool refers to that. The directory itself goes too, unless it `was_there` before, or anything
    /// else is in it.
    pub(in crate::db) fn clear_journal(&self, path: &Path, pool: u128, was_there: bool) {
        let directory = self.journal.clone().unwrap_or_default().directory_for(path);
        let files = DiskDirectory::at(directory.clone(), self.disk.clone());
        let _ = remove_all_of(&files, |owner| owner.pool == pool);
        if !was_there {
            let _ = std::fs::remove_dir(directory);
        }
    }
}
