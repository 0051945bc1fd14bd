//! Epochs: when a block that was unlinked can be reused.
//!
//! Most readers need none of this: they read optimistically, by atomic loads from
//! memory that stays mapped, and check a version afterwards. Epochs are for guards
//! that hand a record out by reference and must keep it whole while they live.
//!
//! A guard *pins* the epoch it began in. An unlinked block is *retired* with the epoch
//! of its unlinking, and freed once no guard of that epoch or an earlier one is left.
//! Where no guard is alive at all, it is freed at once.
//!
//! Why a guard cannot be fooled: `pin` makes its mark (SeqCst) before it reads a link;
//! `retire` is called after the link was removed, and looks for marks after a SeqCst
//! fence. Either `retire` sees the mark, or the guard's read comes after the fence and
//! sees that the link is gone.
//!
//! Retiring waits for nobody: operations of lock-free indexes retire. What is retired while
//! another thread looks through the blocks in waiting goes on a list that the next one takes
//! over.

mod epochs;

pub use epochs::{Epochs, Pin};

/// What [`epochs`] stands on.
mod sync {
    pub(super) use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, fence};
    pub(super) use std::sync::{Mutex, MutexGuard};

    /// Places for epochs that guards are alive in.
    pub(super) const SLOTS: usize = 128;
}

#[cfg(test)]
mod tests {
    use super::sync::{AtomicU64, AtomicUsize, SLOTS};
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn freed_at_once_without_guards() {
        let epochs = Epochs::default();
        let mut freed = vec![];
        epochs.retire(8, 64, |o| freed.push(o));
        assert_eq!(freed, [8]);
        assert_eq!(epochs.limbo_bytes(), 0);
    }

    #[test]
    fn kept_while_an_earlier_guard_lives() {
        let epochs = Epochs::default();
        let mut freed = vec![];
        let early = epochs.pin(0);
        epochs.retire(8, 64, |o| freed.push(o));
        epochs.collect(|o| freed.push(o));
        let late = epochs.pin(0);
        assert!(freed.is_empty());
        assert_eq!(epochs.limbo_bytes(), 64);
        epochs.unpin(early);
        epochs.collect(|o| freed.push(o));
        assert_eq!(freed, [8], "a guard that began after the unlinking does not keep it");
        epochs.unpin(late);
        assert_eq!(epochs.pins(), 0);
    }

    #[test]
    fn more_guards_than_slots() {
        let epochs = Epochs::default();
        let mut pins = vec![];
        for i in 0..SLOTS * 3 {
            pins.push(epochs.pin(i));
            epochs.collect(|_| ());
        }
        let mut freed = vec![];
        epochs.retire(8, 64, |o| freed.push(o));
        while let Some(pin) = pins.pop() {
            assert!(freed.is_empty());
            epochs.unpin(pin);
        }
        epochs.collect(|o| freed.push(o));
        assert_eq!(freed, [8]);
    }

    #[test]
    fn an_epoch_is_reached_when_earlier_guards_are_gone() {
        let epochs = Epochs::default();
        assert!(epochs.has_reached(epochs.begin()));
        let early = epochs.pin(0);
        let begun = epochs.begin();
        let late = epochs.pin(1);
        assert!(!epochs.has_reached(begun));
        epochs.unpin(early);
        assert!(epochs.has_reached(begun), "a guard that began later does not count");
        epochs.unpin(late);
    }

    /// Threads that retire meet at the limbo; none of them waits, and nothing is lost.
    #[test]
    fn each_block_is_freed_once_however_many_threads_retire() {
        const THREADS: u64 = 4;
        const EACH: u64 = 20_000;
        let epochs = Epochs::default();
        let freed: Vec<AtomicU64> = (0..THREADS * EACH).map(|_| AtomicU64::new(0)).collect();
        let free = |offset: u64| {
            freed[offset as usize].fetch_add(1, Ordering::Relaxed);
        };
        std::thread::scope(|s| {
            for t in 0..THREADS {
                let (epochs, free) = (&epochs, &free);
                s.spawn(move || {
                    for i in 0..EACH {
                        let pin = epochs.pin(t as usize);
                        epochs.retire(t * EACH + i, 16, free);
                        epochs.unpin(pin);
                    }
                });
            }
        });
        let mut waiting = 0;
        epochs.visit(|_, bytes| waiting += bytes);
        assert_eq!(waiting, epochs.limbo_bytes());
        epochs.collect(free);
        assert_eq!(epochs.limbo_bytes(), 0);
        assert!(freed.iter().all(|n| n.load(Ordering::Relaxed) == 1));
    }

    /// Readers chase a link to a block whose content is poisoned when it is freed.
    #[test]
    fn no_guard_reads_a_freed_block() {
        const BLOCKS: usize = 64;
        let epochs = Epochs::default();
        let blocks: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(1)).collect();
        let link = AtomicUsize::new(0);
        let stop = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for t in 0..3 {
                let (epochs, blocks, link, stop) = (&epochs, &blocks, &link, &stop);
                s.spawn(move || {
                    while stop.load(Ordering::Relaxed) == 0 {
                        let pin = epochs.pin(t);
                        let block = &blocks[link.load(Ordering::SeqCst)];
                        for _ in 0..20 {
                            assert_eq!(block.load(Ordering::SeqCst), 1);
                        }
                        epochs.unpin(pin);
                    }
                });
            }
            let mut free: Vec<usize> = (1..BLOCKS).collect();
            for _ in 0..20_000 {
                let Some(new) = free.pop() else {
                    epochs.collect(|o| {
                        blocks[o as usize].store(0, Ordering::SeqCst);
                        free.push(o as usize);
                    });
                    std::thread::yield_now();
                    continue;
                };
                blocks[new].store(1, Ordering::SeqCst);
                let old = link.swap(new, Ordering::SeqCst);
                epochs.retire(old as u64, 1, |o| {
                    blocks[o as usize].store(0, Ordering::SeqCst);
                    free.push(o as usize);
                });
            }
            stop.store(1, Ordering::Relaxed);
        });
    }
}
