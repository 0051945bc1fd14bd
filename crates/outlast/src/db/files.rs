//! Files of pools: their headers, their locks, and the directories that they lie in.

use crate::error::{Error, Result};
use crate::pool::core::root_offset;
use crate::pool::header::Header;
use crate::pool::layout::{HEADER_WORDS, ROOT_SLOTS};
use rustix::fs::FlockOperation;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Reads the header of a pool with system calls, because a file is mapped only once it is known to be a
/// pool. The file has `len` bytes.
pub(super) fn header_of(file: &File, len: u64, path: &Path) -> Result<Header> {
    Header::read(len, |offset| {
        let mut bytes = [0; HEADER_WORDS * 8];
        let read = file.read_exact_at(&mut bytes, offset);
        read.map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(std::array::from_fn(|i| u64::from_le_bytes(words[i])))
    })
    .map_err(|error| error.at(path))
}

/// Locks a file, or fails with [`Error::Locked`].
pub(super) fn lock(file: &File, how: FlockOperation) -> Result<()> {
    crate::pmem::flock(file, how).map_err(|e| match e {
        rustix::io::Errno::WOULDBLOCK => Error::Locked { path: Default::default() },
        other => Error::io("locking the pool", other.into()),
    })
}

/// The directory that contains `path`.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Opens the directory that contains `path`, to sync it once it has a new name.
pub(super) fn open_parent(path: &Path) -> Result<File> {
    let parent = parent(path);
    File::open(parent).map_err(|e| Error::io(format!("opening {}", parent.display()), e))
}

/// Returns the file of a pool, locked, if the path still names the pool with this id, nobody uses it,
/// and it has no map.
pub(super) fn unused(path: &Path, id: u128) -> Option<File> {
    let file = File::open(path).ok()?;
    lock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let len = file.metadata().ok()?.len();
    let is_it = header_of(&file, len, path).is_ok_and(|header| header.id() == id);
    (is_it && !may_have_map(&file)).then_some(file)
}

/// Returns whether the pool in this file has a map, or it cannot be told.
pub(super) fn may_have_map(file: &File) -> bool {
    (0..ROOT_SLOTS).any(|slot| {
        let mut commit = [0; 8];
        let read = file.read_exact_at(&mut commit, root_offset(slot).raw());
        read.is_err() || commit != [0; 8]
    })
}

/// Returns the paths at which pools are kept that were at this path.
pub(super) fn kept_from(path: &Path) -> Vec<PathBuf> {
    // A look at all names of the directory takes less than one at each name that there could be.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let there: Option<HashSet<OsString>> = match std::fs::read_dir(parent.unwrap_or(".".as_ref())) {
        Ok(entries) => Some(entries.flatten().map(|entry| entry.file_name()).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        // It may still be possible to look at single names.
        Err(_) => None,
    };
    let is_there = |path: &PathBuf| match (&there, path.file_name()) {
        (Some(there), Some(name)) => there.contains(name),
        _ => path.symlink_metadata().is_ok(),
    };
    names_of_old(path).filter(is_there).collect()
}

/// How many names are tried for the old pool.
pub(super) const OLD_NAMES: u32 = 1_000;

/// Returns the names under which pools are kept that were at this path.
pub(super) fn names_of_old(path: &Path) -> impl Iterator<Item = PathBuf> {
    (1..=OLD_NAMES).map(move |number| {
        let mut name = OsString::from(path);
        name.push(".old");
        if number > 1 {
            name.push(number.to_string());
        }
        name.into()
    })
}
