//! What is kept per thread: its number, and fences that one thread makes for all.

use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence, fence};
use std::sync::{Mutex, OnceLock};

/// Threads that are alive at once and whose number is below this have slots of their own.
pub const OWNERS: usize = 64;

/// Numbers that were given back, and the first that was never given out.
static NUMBERS: Mutex<(Vec<usize>, usize)> = Mutex::new((Vec::new(), 0));

/// No number yet, or none any more.
const NONE: usize = usize::MAX;

/// Gives the thread's number back when the thread ends.
struct GiveBack;

impl Drop for GiveBack {
    fn drop(&mut self) {
        lock().0.push(NUMBER.replace(NONE));
    }
}

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(NONE) };
    static GIVE_BACK: GiveBack = const { GiveBack };
}

fn lock() -> std::sync::MutexGuard<'static, (Vec<usize>, usize)> {
    NUMBERS.lock().unwrap_or_else(|e| e.into_inner())
}

/// A small number that no other living thread has; it passes on to another one when the
/// thread has ended. The greatest number there is, for a thread that is just ending.
#[inline(always)]
pub fn thread_number() -> usize {
    let number = NUMBER.get();
    if number == NONE { take_number() } else { number }
}

/// Gives the calling thread a number, where a run must be the same each time. No other
/// thread that uses the same pool may have it.
pub fn number_this_thread(number: usize) {
    NUMBER.set(number);
}

#[cold]
fn take_number() -> usize {
    let mut numbers = lock();
    if GIVE_BACK.try_with(|_| ()).is_err() {
        return NONE;
    }
    let (free, next) = &mut *numbers;
    // The smallest: those have slots of their own.
    let least = free.iter().enumerate().min_by_key(|(_, number)| **number).map(|(at, _)| at);
    let number = least.map(|at| free.swap_remove(at)).unwrap_or_else(|| {
        *next += 1;
        *next - 1
    });
    NUMBER.set(number);
    number
}

/// Whether this process can make fences for all of its threads: membarrier(2).
pub fn asymmetric() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED
        .get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as u32).is_ok())
}

/// This thread's half of a fence whose other half is a [`heavy_fence`]: of what stands
/// before it here and of what stands after it there, one sees the other.
#[inline(always)]
pub fn light_fence(asymmetric: bool) {
    if asymmetric { compiler_fence(Ordering::SeqCst) } else { fence(Ordering::SeqCst) }
}

/// See [`light_fence`]. A system call.
pub fn heavy_fence(asymmetric: bool) {
    fence(Ordering::SeqCst);
    if asymmetric {
        // It was registered, so the kernel knows it and has the memory for it.
        membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32)
            .expect("a registered membarrier does not fail");
        fence(Ordering::SeqCst);
    }
}

fn membarrier(command: u32) -> std::io::Result<()> {
    // SAFETY: it takes numbers and changes no memory.
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
        // Other tests run beside this one: it is not always the same number.
        let again: Vec<_> =
            (0..50).map(|_| std::thread::spawn(thread_number).join().unwrap()).collect();
        assert!(again.iter().any(|n| *n <= other), "a number is passed on");
        assert!(again.iter().all(|n| *n != number));
    }
}
