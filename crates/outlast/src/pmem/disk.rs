//! The file-system calls on which a pool's space and durability depend.
//!
//! A store to a mapped file cannot fail. The calls here can: they allocate blocks for a growing
//! file, set its length, give it a name, and above all write its pages back. All of them go through
//! [`Disk`], so that `outlast-check` can record them in order, and make each of them in turn fail,
//! or succeed without effect.

use super::blocks;
use super::mapping::{MappingError, no_blocks};
use rustix::fs::{CWD, FlockOperation, RenameFlags, StatVfs};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, retry_on_intr};
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// A file-system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// `fsync` of a whole file.
    Fsync,
    /// `pwrite` of the last page of a file, with `RWF_SYNC`: makes the file's length durable.
    WriteEnd,
    /// `msync` of the pages that hold the header.
    Msync,
    /// `pwrite` to a file of a journal.
    Write,
    /// `fallocate`: allocates blocks for a part of a file.
    Fallocate,
    /// `fallocate` that punches a hole: gives back the blocks of a part of a file.
    PunchHole,
    /// `ftruncate`.
    Ftruncate,
    /// `linkat`: gives a new file its name.
    Link,
    /// `rename`.
    Rename,
    /// `fsync` of a directory.
    FsyncDirectory,
    /// `sync_file_range`: asks whether the system failed to write a part of a file back.
    WriteBack,
}

impl Call {
    /// Returns whether the call makes something of a file durable.
    pub fn makes_durable(self) -> bool {
        matches!(self, Call::Fsync | Call::Msync | Call::WriteEnd)
    }
}

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The call is made.
    Done,
    /// The call fails with this error number and has no effect.
    Fails(i32),
    /// The call returns success and has no effect.
    Pretends,
}

/// A moment at which a background thread has decided on a step and has not begun it, because it may
/// have to wait first. Meanwhile another thread can close the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moment {
    /// A thread of the journal has taken the turn.
    Turn,
    /// A thread of the journal is about to cut.
    Cut,
    /// An epoch was cut, and is to be written.
    Commit,
    /// An epoch is durable, and its turn is about to end.
    Committed,
    /// A segment is to be prepared, or the base to be extended.
    Prepare,
    /// A checkpoint is due.
    Checkpoint,
    /// A checkpoint has copied pages, and waits for an epoch.
    Copied,
    /// A checkpoint has written all of its pages, and is to be recorded.
    Written,
    /// A checkpoint was recorded, and the segments that it makes needless are to be deleted.
    Recorded,
    /// The worker is about to do a step of the indexes, the reclaim, or the pool's growth.
    Work,
    /// A pool was found idle, and is to be synced.
    Idle,
    /// Free space is to be given back.
    Trim,
}

impl Moment {
    /// The moments to which the background threads of a pool with a journal come. (Free space is not
    /// given back in a working file, and such a pool is not synced because it is idle.)
    pub const OF_JOURNAL: [Moment; 10] = [
        Moment::Turn,
        Moment::Cut,
        Moment::Commit,
        Moment::Committed,
        Moment::Prepare,
        Moment::Checkpoint,
        Moment::Copied,
        Moment::Written,
        Moment::Recorded,
        Moment::Work,
    ];
}

/// Decides the outcome of each call before it is made.
pub trait DiskWatch: Send + Sync {
    /// Decides about `call`. `file` is the file or directory of the call; if the call gives a file
    /// a name, `file` is that file.
    fn before(&self, call: Call, file: &File) -> Fate;

    /// Called before a background step. May hold the thread for a while.
    fn at(&self, _moment: Moment) {}
}

/// Renames a file. Fails if a file of the new name exists.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can do that in one step.
        Err(Errno::INVAL) => {
            std::fs::hard_link(from, to)?;
            // The file has its name, even if the old one stays.
            let _ = std::fs::remove_file(from);
            Ok(())
        }
        renamed => Ok(renamed?),
    }
}

/// Locks or unlocks a file. A network file system can be interrupted by a signal even where the lock
/// is not waited for.
pub fn flock(file: &File, how: FlockOperation) -> rustix::io::Result<()> {
    retry_on_intr(|| rustix::fs::flock(file, how))
}

/// Returns the permissions for a copy of a file: those in `mode`, but for users other than the owner
/// no more than the original gives. `group` is the group of the copy. If that is not the original's
/// group, its members and all others get what the original gives both to its group and to others. Access
/// control lists are not looked at.
pub fn mode_of_copy(original: &Metadata, group: u32, mode: u32) -> u32 {
    let given = original.mode();
    let both = given >> 3 & given & 0o7;
    let given = if original.gid() == group { given & 0o77 } else { both << 3 | both };
    mode & (given | 0o700)
}

/// Returns how many bytes this user can still store in the file system of a file or directory.
/// `None` if the file system does not say: FUSE reports zeros by default, and so does a tmpfs
/// without a limit.
pub fn free_bytes(path: &Path) -> io::Result<Option<u64>> {
    Ok(free_in(&rustix::fs::statvfs(path)?))
}

fn free_in(found: &StatVfs) -> Option<u64> {
    let is_known = found.f_blocks != 0 && found.f_frsize != 0;
    is_known.then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

/// The file system, possibly watched by a test.
#[derive(Clone, Default)]
pub struct Disk(Option<Arc<dyn DiskWatch>>);

impl Disk {
    /// Returns a file system whose calls `watch` decides.
    pub fn watched(watch: Arc<dyn DiskWatch>) -> Self {
        Disk(Some(watch))
    }

    /// Makes a call, or does what the watch decides instead.
    pub fn call<E: From<io::Error>>(
        &self,
        call: Call,
        file: &File,
        make: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        match self.0.as_ref().map_or(Fate::Done, |watch| watch.before(call, file)) {
            Fate::Done => make(),
            Fate::Fails(errno) => Err(io::Error::from_raw_os_error(errno).into()),
            Fate::Pretends => Ok(()),
        }
    }

    /// Lets a test hold the calling thread before a background step.
    pub fn at(&self, moment: Moment) {
        if let Some(watch) = &self.0 {
            watch.at(moment);
        }
    }

    /// Makes a file's content and length durable against a power loss.
    pub fn fsync(&self, file: &File) -> io::Result<()> {
        self.call(Call::Fsync, file, || file.sync_all())
    }

    /// Makes the length of a file durable that has just been extended to `len` bytes. `from` is its
    /// old length; the bytes from there on have their blocks, and are zeros that nobody uses yet.
    ///
    /// This writes no more than the last page. An [`fsync`](Self::fsync) would write the whole file
    /// back, and the kernel would then protect all mapped pages again: each of them would cost its
    /// next store a page fault.
    pub fn write_end(&self, file: &File, from: u64, len: u64) -> io::Result<()> {
        self.call(Call::WriteEnd, file, || {
            const PAGE: u64 = 4096;
            let from = from.max(len.saturating_sub(PAGE));
            let zeros = [0; PAGE as usize];
            let zeros = [io::IoSlice::new(&zeros[..(len - from) as usize])];
            match retry_on_intr(|| pwritev2(file, &zeros, from, ReadWriteFlags::SYNC)) {
                Ok(written) if written as u64 == len - from => Ok(()),
                Err(error @ (Errno::IO | Errno::NOSPC | Errno::DQUOT)) => Err(error.into()),
                // Not every system has the call, and some sandboxes forbid it.
                _ => file.sync_all(),
            }
        })
    }

    /// Fails if the system could not write a part of the file back since the last call for this
    /// handle. Afterwards it may have dropped the part from memory, so that the file reads as it was
    /// before. Writes nothing, and waits for nothing.
    pub fn check_written_back(&self, file: &File) -> io::Result<()> {
        self.call(Call::WriteBack, file, || {
            // No file has pages there. The call reports errors of the whole file.
            let (nowhere, bytes) = (1 << 62, 4096);
            let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
            // SAFETY: the call neither reads nor writes memory of the process.
            match unsafe { libc::sync_file_range(file.as_raw_fd(), nowhere, bytes, flags) } {
                0 => Ok(()),
                _ => {
                    let error = io::Error::last_os_error();
                    let errors = [libc::EIO, libc::ENOSPC, libc::EDQUOT];
                    // Any other error means that the call itself failed. Some sandboxes forbid it.
                    match error.raw_os_error().is_some_and(|number| errors.contains(&number)) {
                        true => Err(error),
                        false => Ok(()),
                    }
                }
            }
        })
    }

    /// Writes all bytes at `offset`.
    pub fn write(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.call(Call::Write, file, || file.write_all_at(bytes, offset))
    }

    /// Makes a file at least `len` bytes long, and gets blocks for its bytes from `from` up to
    /// `len`. On an error, the file keeps the length that it had.
    pub fn allocate(&self, file: &File, from: u64, len: u64) -> Result<(), MappingError> {
        blocks::allocate(self, file, from, len, false).map_err(|error| no_blocks(error, len - from))
    }

    /// Does what [`allocate`](Self::allocate) does, durably.
    pub fn allocate_durably(&self, file: &File, from: u64, len: u64) -> Result<(), MappingError> {
        blocks::allocate(self, file, from, len, true).map_err(|error| no_blocks(error, len - from))
    }

    /// Gets blocks for a part of a file. The file's length and content do not change.
    pub fn fill(&self, file: &File, range: Range<u64>) -> Result<(), MappingError> {
        let needed = range.end.saturating_sub(range.start);
        blocks::fill_holes(self, file, range).map_err(|error| no_blocks(error, needed))
    }

    /// Gives back the blocks of a part of a file. The file's length does not change, and the part
    /// reads as zeros. After an error, any of the blocks may be gone.
    pub fn punch_hole(&self, file: &File, range: Range<u64>) -> io::Result<()> {
        self.call(Call::PunchHole, file, || blocks::punch_hole(file, range))
    }

    /// Makes the names in a directory durable against a power loss.
    pub fn fsync_directory(&self, directory: &File) -> io::Result<()> {
        self.call(Call::FsyncDirectory, directory, || directory.sync_all())
    }

    /// Sets a file's length.
    pub fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
        self.call(Call::Ftruncate, file, || file.set_len(len))
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Disk(watched)" } else { "Disk" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_mean_that_the_free_space_is_not_known() {
        let full = StatVfs { f_blocks: 100, f_frsize: 4096, f_bavail: 0, ..any() };
        assert_eq!(free_in(&full), Some(0));
        assert_eq!(free_in(&StatVfs { f_bavail: 7, ..full }), Some(7 * 4096));
        assert_eq!(free_in(&StatVfs { f_bavail: u64::MAX, ..full }), Some(u64::MAX));
        assert_eq!(free_in(&StatVfs { f_blocks: 0, ..full }), None);
        assert_eq!(free_in(&StatVfs { f_frsize: 0, ..full }), None);
        assert!(free_bytes(Path::new("/")).unwrap().is_some());
    }

    fn any() -> StatVfs {
        rustix::fs::statvfs("/").unwrap()
    }
}
