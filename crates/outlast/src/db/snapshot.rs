//! Copying an open pool while its writers are held back, and replacing a file by a complete copy.

use super::files::{open_parent, parent};
use super::journal;
use super::store::Store;
use crate::error::{Error, Result};
use crate::pmem::{Call, Disk, Real, Seam, mode_of_copy, rename_new};
use crate::pool::core::{Core, random};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::process::Resource;
use std::fs::{File, Metadata, Permissions};
use std::io::{Error as IoError, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Writes a snapshot; see [`Pool::snapshot`](crate::Pool::snapshot). `base` is the file at the pool's
/// path, if another one is mapped. `then` gets the file of the complete copy before it gets its name.
pub(super) fn snapshot(
    store: &Store<Real>,
    base: Option<&File>,
    path: &Path,
    then: impl FnOnce(&File) -> Result<()>,
) -> Result<()> {
    let backing = store.core().backing();
    write(&backing.disk(), base.or(backing.file()), path, |file| {
        let copied = store.sync_and(|core| {
            copy(core, file).map_err(|error| failed(path, core.memory.len(), error))?;
            // A pool that is open for reading can be the base of a journaled pool. The copy must
            // not be: it is a pool without a journal.
            match journal::peek(file)? {
                Some(_) => journal::leave(file, &backing.disk()),
                None => Ok(()),
            }
        });
        copied.and_then(|()| then(file))
    })
}

/// Creates a file at `path`, or replaces the existing one. `fill` writes the content to an empty,
/// locked file, which gets its name only once it is complete and durable. Its lock is released
/// before this returns, and `fill` may release it earlier. `original` is the file that is copied, if
/// there is one; the copy gives other users no more permissions than it. On an error, nothing changes
/// at `path`, except if only the sync of the directory failed.
pub(super) fn write<T, E: From<Error>>(
    disk: &Disk,
    original: Option<&File>,
    path: &Path,
    fill: impl FnOnce(&File) -> Result<T, E>,
) -> Result<T, E> {
    let action = || format!("writing the snapshot {}", path.display());
    let original = original.map(File::metadata).transpose();
    let original = original.map_err(|e| Error::io("reading the pool's permissions", e))?;
    // Held until the copy has its name, so that no one opens the file that is being replaced.
    let replaced = lock_target(original.as_ref(), path)?;
    let directory = open_parent(path)?;
    remove_unfinished(parent(path));
    let target = Target::create(path, original.as_ref())?;
    let filled = fill(&target.file)?;
    target.lock(path)?;
    disk.fsync(&target.file).map_err(|e| Error::io(action(), e))?;
    if replaced.as_ref().is_some_and(|replaced| !is_at(&replaced.0, path)) {
        return Err(made_meanwhile().into());
    }
    target.rename_to(disk, path, replaced.is_some())?;
    let synced = disk.fsync_directory(&directory);
    synced.map_err(|e| Error::io(action(), e)).map(|()| filled).map_err(E::from)
}

/// The error for a copy of `needed` bytes at `path` that could not be written.
pub(super) fn failed(path: &Path, needed: u64, error: IoError) -> Error {
    match is_full(&error) {
        true => Error::disk_full(needed, error).at(path),
        false => Error::io(format!("writing the snapshot {}", path.display()), error),
    }
}

/// Locks the file that `path` names already, if any, so that no one can open it as a pool.
///
/// # Errors
/// [`Error::Locked`] if it is an open pool, and [`Error::Invalid`] if it is the pool that is copied.
/// Replacing either would leave a process with an open file that no longer has a name.
fn lock_target(own: Option<&Metadata>, path: &Path) -> Result<Option<Replaced>> {
    let action = || format!("opening {}", path.display());
    let options =
        File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let file = match options {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(action(), e)),
    };
    let invalid = |why: &str| Error::Invalid { what: "snapshot path", why: why.into() };
    let meta = file.metadata().map_err(|e| Error::io(action(), e))?;
    if !meta.is_file() {
        return Err(invalid("it names something that is not a regular file"));
    }
    if own.is_some_and(|own| (own.dev(), own.ino()) == (meta.dev(), meta.ino())) {
        return Err(invalid("it names the pool itself"));
    }
    match crate::pmem::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Replaced(file))),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Locked { path: path.into() }),
        Err(e) => Err(Error::io(action(), e.into())),
    }
}

/// The error if another file got the copy's name while the copy was being written.
fn made_meanwhile() -> Error {
    let why = "another file got that name while the copy was being written".into();
    Error::Invalid { what: "snapshot path", why }
}

/// A locked file that a copy is about to replace.
struct Replaced(File);

impl Drop for Replaced {
    fn drop(&mut self) {
        // Closing the file is not enough; see `Backing::unlock`. If no copy was made, the file stays.
        let _ = crate::pmem::flock(&self.0, FlockOperation::Unlock);
    }
}

/// What the names of unfinished files begin with.
const UNFINISHED: &str = ".outlast-";
/// What the names of unfinished snapshots end with.
const SNAPSHOT: &str = ".snapshot";
/// What the names of unfinished new pools end with.
pub(super) const NEW: &str = ".new";

/// Removes the unfinished snapshots and new pools that dead processes have left in a directory. A
/// file that is still being written is locked, and stays. Errors are ignored: at worst, a file takes
/// space for longer.
fn remove_unfinished(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_one = name.to_str().is_some_and(|name| {
            let rest = name.strip_prefix(UNFINISHED);
            rest.is_some_and(|rest| rest.ends_with(SNAPSHOT) || rest.ends_with(NEW))
        });
        if is_one
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && let Ok(file) = File::open(entry.path())
            && crate::pmem::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns a name for an unfinished file in a directory.
fn temporary(directory: &Path, end: &str) -> PathBuf {
    directory.join(format!("{UNFINISHED}{:016x}{end}", random()))
}

/// Creates a locked file in a directory. If the file system allows unnamed files, it has no name, so
/// that a process that dies leaves nothing behind. Otherwise, also returns its temporary name, which
/// ends with `end`.
pub(super) fn new_file(
    directory: &Path,
    end: &str,
    mode: u32,
) -> std::io::Result<(File, Option<PathBuf>)> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(CWD, directory, flags, Mode::from_raw_mode(mode));
    match rustix::io::retry_on_intr(open) {
        Ok(fd) => {
            let file = File::from(fd);
            // A file system without locks cannot hold a pool.
            crate::pmem::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok((file, None))
        }
        Err(_) => {
            remove_unfinished(directory);
            new_named(directory, end, mode).map(|(file, name)| (file, Some(name)))
        }
    }
}

/// Like [`new_file`], for a file with a name.
fn new_named(directory: &Path, end: &str, mode: u32) -> std::io::Result<(File, PathBuf)> {
    loop {
        let name = temporary(directory, end);
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(mode);
        let file = options.open(&name)?;
        // Before it was locked, another process may have taken it for that of a dead process.
        match crate::pmem::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_at(&file, &name) => return Ok((file, name)),
            Ok(()) | Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Returns whether a path leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |meta: Metadata| (meta.dev(), meta.ino());
    let here = file.metadata().map(id);
    here.is_ok_and(|here| path.metadata().map(id).is_ok_and(|there| there == here))
}

/// Returns whether an error means that the file system cannot store more.
pub(super) fn is_full(error: &IoError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

/// The permissions of a new pool, and of a copy unless the original gives fewer.
pub(super) const MODE: u32 = 0o644;

/// The copy while it is being written. Its file is locked. If the file system allows unnamed files,
/// the copy has no name until it is complete.
struct Target {
    file: File,
    temporary: PathBuf,
    named: bool,
}

impl Target {
    /// Creates a locked file. If it is to be a copy of `original`, it gives no more permissions.
    fn create(path: &Path, original: Option<&Metadata>) -> Result<Target> {
        let action = || format!("writing the snapshot {}", path.display());
        let mode = original.map_or(MODE, |original| mode_of_copy(original, original.gid(), MODE));
        let made = new_file(parent(path), SNAPSHOT, mode);
        let (file, name) = made.map_err(|e| Error::io(action(), e))?;
        let named = name.is_some();
        let temporary = name.unwrap_or_else(|| temporary(parent(path), SNAPSHOT));
        let target = Target { file, temporary, named };
        let meta = target.file.metadata().map_err(|e| Error::io(action(), e))?;
        if let Some(original) = original.filter(|original| original.gid() != meta.gid()) {
            // The permissions of the original's group are not meant for another group.
            let mode = Permissions::from_mode(mode_of_copy(original, meta.gid(), meta.mode()));
            target.file.set_permissions(mode).map_err(|e| Error::io(action(), e))?;
        }
        Ok(target)
    }

    fn lock(&self, path: &Path) -> Result<()> {
        crate::pmem::flock(&self.file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| Error::io(format!("writing the snapshot {}", path.display()), e.into()))
    }

    /// Gives the copy its name. It is linked under a temporary name and then renamed, because a
    /// link cannot replace a file. Unless `replace` is set, fails if there is a file of that name.
    fn rename_to(mut self, disk: &Disk, path: &Path, replace: bool) -> Result<()> {
        let action = || format!("writing the snapshot {}", path.display());
        if !self.named {
            let fd = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let link = || {
                let to = &self.temporary;
                Ok(rustix::fs::linkat(CWD, &fd, CWD, to, AtFlags::SYMLINK_FOLLOW)?)
            };
            disk.call(Call::Link, &self.file, link).map_err(|e: IoError| Error::io(action(), e))?;
            self.named = true;
        }
        let rename = || match replace {
            true => std::fs::rename(&self.temporary, path),
            false => rename_new(&self.temporary, path),
        };
        disk.call(Call::Rename, &self.file, rename).map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => made_meanwhile(),
            _ => Error::io(action(), e),
        })?;
        self.named = false;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Closing the file is not enough; see `Backing::unlock`.
        let _ = crate::pmem::flock(&self.file, FlockOperation::Unlock);
        if self.named {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Fails if a file of this length would exceed the process's limit. A write beyond that limit would
/// kill the process with SIGXFSZ.
pub(super) fn check_limit(len: u64) -> std::io::Result<()> {
    match rustix::process::getrlimit(Resource::Fsize).current {
        Some(limit) if len > limit => Err(ErrorKind::FileTooLarge.into()),
        _ => Ok(()),
    }
}

/// Copies the pool. Where the file system can share blocks between files, the copy shares them.
/// Otherwise this copies the bytes, and leaves holes in place of free pages.
fn copy<S: Seam>(core: &Core<S>, target: &File) -> std::io::Result<()> {
    let len = core.memory.len();
    check_limit(len)?;
    // In a read-only pool, the mapping holds repairs that the file lacks.
    if let Some(source) = core.backing().mapping().and_then(|m| m.as_file())
        && !core.options().read_only
        && rustix::fs::ioctl_ficlone(target, source).is_ok()
    {
        return target.set_len(len);
    }
    // Copies through the mapping, for media without a file and for pools whose file is not up to
    // date.
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    // The content of free pages has no meaning, so holes, which read as zeros, can replace them.
    let free = core.free_parts();
    for hole in free.into_iter().chain(std::iter::once(len..len)) {
        while at < hole.start {
            let n = (hole.start - at).min(buffer.len() as u64);
            let words = core.memory.words(at, n).map_err(IoError::other)?;
            core.memory.read_bytes(words, 0, &mut buffer[..n as usize]);
            target.write_all_at(&buffer[..n as usize], at)?;
            at += n;
        }
        at = hole.end;
    }
    target.set_len(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_new_file_is_not_taken_for_that_of_a_dead_process() {
        let dir = tempfile::tempdir().unwrap();
        let done = AtomicBool::new(false);
        let mut lost = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    remove_unfinished(dir.path());
                }
            });
            for _ in 0..5_000 {
                let made = new_named(dir.path(), NEW, MODE);
                let is_there = made.as_ref().is_ok_and(|(file, path)| is_at(file, path));
                lost += u32::from(!is_there);
                let _ = made.map(|(_, path)| std::fs::remove_file(path));
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(lost, 0);
    }
}
