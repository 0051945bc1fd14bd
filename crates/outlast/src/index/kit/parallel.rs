//! Opening an index with several threads.

use crate::pmem::{Seam, Shared, with_helpers};
use crate::pool::core::{Core, RecoveryProgress};
use std::sync::atomic::Ordering;

/// Reads the `parts` of an index, with as many threads as the pool's options allow. `read` reads
/// one part, and returns the number of leaves or segments in it. Each thread runs `end` after its
/// last part.
pub(crate) fn read_parts<S: Seam>(
    core: &Core<S>,
    parts: usize,
    read: impl Fn(usize) -> u64 + Sync,
    end: impl Fn() + Sync,
) {
    let (next, done, leaves) = (Shared::default(), Shared::default(), Shared::default());
    let seam = core.memory.seam();
    let add =
        |count: &crate::pmem::SharedWord, n: u64| count.fetch_add(seam, n, Ordering::Relaxed) + n;
    let work = || {
        loop {
            let part = add(&next, 1) - 1;
            if part >= parts as u64 {
                return end();
            }
            let leaves = add(&leaves, read(part as usize));
            let parts_done = add(&done, 1) as usize;
            if let Some(progress) = &core.options().recovery.progress {
                progress.tell(RecoveryProgress { parts_done, parts, leaves });
            }
        }
    };
    with_helpers(core.options().recovery.threads.min(parts), work);
}
