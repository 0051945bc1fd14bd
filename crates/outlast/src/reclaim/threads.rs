//! Per-thread state: the thread's number, and fences that one thread issues for all.

use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence, fence};
use std::sync::{Mutex, OnceLock};

/// Number of threads that can have slots of their own: a thread has one if its number is below
/// this.
pub const OWNERS: usize = 64;

/// Numbers that were returned, and the lowest that was never assigned.
static NUMBERS: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

/// The thread has no number yet, or has returned it.
const NONE: usize = usize::MAX;

/// The number that the thread has taken. Returns it when the thread ends.
struct Taken(Cell<usize>);

impl Drop for Taken {
    fn drop(&mut self) {
        NUMBER.set(NONE);
        if self.0.get() != NONE {
            lock().0.push(self.0.get());
        }
    }
}

thread_local! {
    /// What [`thread_number`] returns: the number that was taken, or another one for a test.
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
    static TAKEN: Taken = const { Taken(Cell::new(NONE)) };
}

fn lock() -> std::sync::MutexGuard<'static, (Vec<usize>, usize)> {
    NUMBERS.lock().unwrap_or_else(|e| e.into_inner())
}

/// Returns a small number that no other living thread has. It is reused after the thread has ended.
/// A thread that is exiting gets `usize::MAX`.
#[inline(always)]
pub fn thread_number() -> usize {
    let number = NUMBER.get();
    if number == NONE { take_number() } else { number }
}

/// Gives the calling thread a number, for runs that must be reproducible. No other thread that uses
/// the same pool may have it.
pub fn number_this_thread(number: usize) {
    NUMBER.set(number);
}

#[cold]
fn take_number() -> usize {
    if TAKEN.try_with(|_| ()).is_err() {
        return NONE;
    }
    let mut numbers = lock();
    let (free, next) = &mut *numbers;
    // Takes the smallest, because small numbers have slots of their own.
    let least = free.iter().enumerate().min_by_key(|(_, number)| **number).map(|(at, _)| at);
    let number = least.map(|at| free.swap_remove(at)).unwrap_or_else(|| {
        *next += 1;
        *next - 1
    });
    drop(numbers);
    TAKEN.with(|taken| taken.0.set(number));
    NUMBER.set(number);
    number
}

/// Returns whether one thread can issue fences for all threads of this process, with membarrier(2).
pub fn asymmetric() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED
        .get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as u32).is_ok())
}

/// A SeqCst fence after a successful SeqCst exchange. On x86 the exchange is a fence already.
#[inline(always)]
pub fn fence_after_exchange() {
    if cfg!(target_arch = "x86_64") {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// This thread's half of a fence whose other half is a [`heavy_fence`]. Either the accesses after
/// this fence see the stores before the heavy one, or the accesses after the heavy one see the
/// stores before this one.
#[inline(always)]
pub fn light_fence(asymmetric: bool) {
    if asymmetric { compiler_fence(Ordering::SeqCst) } else { fence(Ordering::SeqCst) }
}

/// The other half of a [`light_fence`]. It makes a system call if `asymmetric`.
pub fn heavy_fence(asymmetric: bool) {
    fence(Ordering::SeqCst);
    if asymmetric {
        // The command was registered, so the kernel knows it and has the memory for it.
        membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32)
            .expect("a registered membarrier does not fail");
        fence(Ordering::SeqCst);
    }
}

fn membarrier(command: u32) -> std::io::Result<()> {
    // SAFETY: the call takes numbers and changes no memory.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinct_and_passed_on() {
        let number = thread_number();
        assert_eq!(thread_number(), number);
        let other = std::thread::spawn(thread_number).join().unwrap();
        assert_ne!(other, number);
        // Other tests run in parallel, so it is not always the same number.
        let again: Vec<_> =
            (0..50).map(|_| std::thread::spawn(thread_number).join().unwrap()).collect();
        assert!(again.iter().any(|n| *n <= other), "a number is passed on");
        assert!(again.iter().all(|n| *n != number));
    }

    /// Otherwise two living threads could have one number.
    #[test]
    fn a_number_that_a_test_has_set_is_not_passed_on() {
        const SET: usize = usize::MAX - 1;
        let numbered = || {
            let taken = thread_number();
            number_this_thread(SET);
            (taken, thread_number())
        };
        let (taken, set) = std::thread::spawn(numbered).join().unwrap();
        assert!(taken != SET && set == SET);
        assert!(!lock().0.contains(&SET));
    }
}
