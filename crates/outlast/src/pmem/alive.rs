//! Telling a forked child from the process that opened the pool.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the page; the kernel rounds up where its pages are larger.
const PAGE_BYTES: usize = 4096;

/// The word's value where the kernel wipes it in a child. No process has this id.
const WIPED_ON_FORK: u64 = u64::MAX;

/// Says whether this is still the process that created it, and not a forked child.
///
/// A child does not get the mapping of a pool; without this word, its first access
/// would be to whatever lives at those addresses now.
///
/// The word is on a page of its own that the kernel zeroes in a child
/// (`MADV_WIPEONFORK`). Where the kernel refuses that, the word holds the process id,
/// which costs a system call to compare; a descendant that was given the id of its dead
/// ancestor is then not told apart.
#[derive(Debug)]
pub struct Alive {
    word: NonNull<AtomicU64>,
}

// SAFETY: the word is an atomic, and the page is unmapped by the only owner.
unsafe impl Send for Alive {}
// SAFETY: as above.
unsafe impl Sync for Alive {}

impl Alive {
    /// Marks the calling process.
    pub fn new() -> io::Result<Self> {
        Self::with_wipe(true)
    }

    fn with_wipe(wipe: bool) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE;
        // SAFETY: the kernel chooses an address that is free.
        let page = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE_BYTES, access, flags)?
        };
        let word = NonNull::new(page.cast::<AtomicU64>())
            .ok_or_else(|| io::Error::other("mapped at address 0"))?;
        // SAFETY: the page was mapped above and is ours.
        let wiped = wipe
            && unsafe { rustix::mm::madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork).is_ok() };
        let alive = Alive { word };
        alive.word().store(if wiped { WIPED_ON_FORK } else { process_id() }, Ordering::Relaxed);
        Ok(alive)
    }

    /// Whether this is the process that called [`Alive::new`].
    #[inline]
    pub fn is_here(&self) -> bool {
        // Relaxed: a process reads what it wrote itself before it had a child.
        match self.word().load(Ordering::Relaxed) {
            WIPED_ON_FORK => true,
            0 => false,
            id => id == process_id(),
        }
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self` lives, in a child too, and a
        // wiped word is a valid one.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        // SAFETY: the page is ours, a child has its own copy of it, and no reference
        // outlives `self`. There is nothing to do about an error.
        let _ = unsafe { rustix::mm::munmap(self.word.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[cold]
fn process_id() -> u64 {
    u64::from(std::process::id())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Runs `child` in a forked child and returns whether it answered true there.
    ///
    /// # Safety
    /// Other threads exist in the parent and not in the child: `child` takes no lock
    /// that one of them could hold.
    pub(crate) unsafe fn in_forked_child(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: the caller's; the child leaves without running destructors.
        unsafe {
            let id = libc::fork();
            assert!(id >= 0, "fork failed");
            if id == 0 {
                let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
                libc::_exit(if held.unwrap_or(false) { 0 } else { 1 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(id, &mut status, 0), id);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }

    #[test]
    fn a_forked_child_and_its_child_are_not_here() {
        for wipe in [true, false] {
            let alive = Alive::with_wipe(wipe).unwrap();
            assert!(alive.is_here());
            // SAFETY: the child loads a word and asks for its id.
            let told = unsafe {
                in_forked_child(|| !alive.is_here() && in_forked_child(|| !alive.is_here()))
            };
            assert!(told, "wipe: {wipe}");
            assert!(alive.is_here(), "the parent stays where it is");
        }
    }

    #[test]
    fn a_child_can_have_its_own() {
        let alive = Alive::new().unwrap();
        // SAFETY: the child makes system calls only.
        let told = unsafe {
            in_forked_child(|| {
                let own = Alive::new().unwrap();
                own.is_here() && !alive.is_here()
            })
        };
        assert!(told);
    }
}
