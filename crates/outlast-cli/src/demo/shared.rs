//! Words in a file that two processes map. The stores of one process are visible to the other, even
//! after the first has died.

use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A mapped file of words.
pub(super) struct SharedWords {
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the value owns its mapping and hands out only shared references to atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Creates a file of `len` zero words, with disk space for all of them.
    pub(super) fn create(path: &Path, len: usize) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        let bytes = len.max(1) as u64 * 8;
        // Otherwise a store to a page for which the disk has no space would raise SIGBUS.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes)?,
            other => other?,
        }
        Self::map(&file, len)
    }

    /// Maps an existing file.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let len = file.metadata()?.len() / 8;
        Self::map(&file, len as usize)
    }

    /// Maps the file with all pages present, so that the first store to one does not wait.
    fn map(file: &File, len: usize) -> io::Result<Self> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing else.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len.max(1) * 8, protection, flags, file, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(SharedWords { start, len })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this length, is aligned to pages, and lives as long as `self`.
        // Any bytes are a valid atomic word. Other processes that map the file access it
        // atomically. It lies in a directory of this user's, and no one truncates it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and no reference outlives it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len.max(1) * 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn what_one_mapping_stores_the_other_sees() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        let one = SharedWords::create(&path, 1000).unwrap();
        let two = SharedWords::open(&path).unwrap();
        assert_eq!(two.len(), 1000);
        one[999].store(7, Relaxed);
        drop(one);
        assert_eq!(two[999].load(Relaxed), 7);
        assert!(SharedWords::create(&path, 1).is_err(), "it is there already");
    }
}
