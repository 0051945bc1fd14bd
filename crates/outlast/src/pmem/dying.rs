//! A thread that ends as if its process died. Only tests and the proof harness use this.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    /// How many more control words of a working file this thread stores before it dies.
    static STORES_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Unwinds a thread that dies.
struct Died;

/// Runs `during`, which ends like a process that dies when it has stored this many control words of a
/// working file and is about to store another. Returns `None` if it has died. (The thread unwinds, so
/// nothing that is dropped on the way may write.)
pub fn dying_after<T>(stores: u64, during: impl FnOnce() -> T) -> Option<T> {
    STORES_LEFT.set(Some(stores));
    let done = catch_unwind(AssertUnwindSafe(during));
    STORES_LEFT.set(None);
    match done {
        Ok(done) => Some(done),
        Err(died) if died.is::<Died>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// Called before a control word is stored.
#[cfg(any(test, feature = "traced"))]
pub(super) fn may_die() {
    if let Some(left) = STORES_LEFT.get() {
        match left.checked_sub(1) {
            Some(left) => STORES_LEFT.set(Some(left)),
            None => resume_unwind(Box::new(Died)),
        }
    }
}
