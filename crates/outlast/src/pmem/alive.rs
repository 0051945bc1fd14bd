//! Detects whether this process is a forked child of the one that opened the pool.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of the page in bytes. The kernel rounds up if its pages are larger.
const PAGE_BYTES: usize = 4096;

/// The word's value if the kernel wipes the page in a child. No process has this id.
const WIPED_ON_FORK: u64 = u64::MAX;

/// Tells whether the current process is the one that created this value, and not a forked child of
/// it.
///
/// A forked child does not inherit the mapping of a pool. Without this check, its first access
/// would touch whatever is mapped at those addresses in the child.
///
/// The value is a word on a page of its own that the kernel zeroes in a child (`MADV_WIPEONFORK`).
/// If the kernel refuses that, the word holds the process id, and each comparison costs a system
/// call. A descendant that was given the id of its dead ancestor then passes for that ancestor.
#[derive(Debug)]
pub struct Alive {
    word: NonNull<AtomicU64>,
}

// SAFETY: the word is an atomic, and only the owner unmaps the page.
unsafe impl Send for Alive {}
// SAFETY: as above.
unsafe impl Sync for Alive {}

impl Alive {
    /// Records the calling process as the one that [`is_here`](Alive::is_here) recognizes.
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

    /// Returns whether this is the process that called [`Alive::new`].
    #[inline]
    pub fn is_here(&self) -> bool {
        // Relaxed: a process reads what it wrote itself before it forked.
        match self.word().load(Ordering::Relaxed) {
            WIPED_ON_FORK => true,
            0 => false,
            id => id == process_id(),
        }
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self` lives, even in a child, and a wiped word is
        // valid.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        // SAFETY: the page is ours, a child has its own copy of it, and no reference outlives
        // `self`. Nothing can be done about an error.
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

    /// Runs `child` in a forked child and returns whether it returned true there.
    ///
    /// # Safety
    /// `child` must take no lock that another thread of the parent could hold: that thread does not
    /// exist in the child.
    pub(crate) unsafe fn in_forked_child(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: the caller's promise. The child exits without running destructors.
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
