//! Work that several threads share.

use std::thread::Builder;

/// Runs `work` in the calling thread, and at the same time in up to `threads - 1` others. The others
/// only save time: where the system has no more threads, those that there are do all of it. So `work`
/// must go on until nothing is left to do. Returns once all of them have returned.
pub fn with_helpers(threads: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..threads {
            if Builder::new().spawn_scoped(scope, &work).is_err() {
                break;
            }
        }
        work();
    });
}
