//! A machine without memory, and processes that die.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

struct Refusing;

/// Allocations that still succeed before one fails; negative: all.
static LEFT: AtomicI64 = AtomicI64::new(-1);

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

impl Refusing {
    fn refuses(&self) -> bool {
        LEFT.load(SeqCst) >= 0 && LEFT.fetch_sub(1, SeqCst) == 0
    }
}

// SAFETY: each call is the system allocator's, or returns null, as for an allocation that fails.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        if self.refuses() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        if self.refuses() { std::ptr::null_mut() } else { unsafe { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if self.refuses() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is the same.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Makes one allocation of this process fail, after this many others.
pub(crate) fn arm(number: i64) {
    LEFT.store(number, SeqCst);
}

/// Lets all allocations succeed. Returns whether one has failed.
pub(crate) fn disarm() -> bool {
    LEFT.swap(-1, SeqCst) < 0
}

/// Returns a word that this process shares with its forked children, always the same.
pub(crate) fn shared() -> &'static AtomicU64 {
    static SHARED: std::sync::OnceLock<&'static AtomicU64> = std::sync::OnceLock::new();
    SHARED.get_or_init(|| {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: the page is new, zeroed, aligned, and never unmapped.
        unsafe {
            let page = libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            &*page.cast::<AtomicU64>()
        }
    })
}

/// Ends the process at once.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Runs `child` in a forked child, which then dies at once: no handle is dropped. Returns the child's exit
/// code, or the signal that killed it, negative.
pub(crate) fn in_fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the other threads of this process hold no lock that the child needs: they wait, and the
    // C library's allocator can be used after a fork.
    let id = unsafe { libc::fork() };
    assert!(id >= 0);
    if id == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        exit(if done.is_ok() { 0 } else { 101 });
    }
    let mut status = 0;
    // SAFETY: `status` is valid.
    while unsafe { libc::waitpid(id, &raw mut status, 0) } != id {}
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}
