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
//! Operations of indexes that follow links without locks pin, too, and each of them does: a
//! [`Visit`] costs two stores to a slot of the thread's own. It reads the epoch, stores it there as
//! its mark, and makes no fence between that and its reads: whoever looks at marks makes it for
//! all threads ([`threads::heavy_fence`]). What such operations can reach is retired by
//! [`Epochs::retire_visited`], which frees nothing at once: the one that retires is in a visit
//! itself. Why a visit cannot be fooled:
//!
//! - Who collects has taken over the retired blocks before, and with them that their links are
//!   gone; it makes the fence and then looks. A visit whose mark it does not see reads after
//!   the fence, and finds no such link; or has ended, and has read before.
//! - A visit whose mark it sees can have read before the fence. Its epoch decides. To have the
//!   link, it has read that before the unlinking; the unlinking comes before a SeqCst fence and
//!   the reading of `e`, and that before the addition that began `e + 1`. With `e + 1` in hand,
//!   read by Acquire, it would find the link gone. This takes *links that are read by SeqCst loads*,
//!   like those of clevel: it is the one order of all of these that says so. No collector's fence
//!   need lie between two epochs, since others begin epochs as well and make none there
//!   ([`Epochs::begin`]).
//! - A block is kept an epoch longer than that, until all visits are of `e + 2` or later. Where the
//!   collector that began `e + 1` has made its fence before someone began `e + 2`, this holds by
//!   that fence, however links are read. It is a margin: it is so as a rule and not always.
//!
//! Whoever asks whether an epoch is [reached](Epochs::has_reached) makes the fence, too, and has
//! begun that epoch itself after the unlinking: a visit that has read it, by Acquire, sees what
//! was unlinked.
//!
//! Retiring waits for nobody: operations of lock-free indexes retire. What is retired while
//! another thread looks through the blocks in waiting goes on a list that the next one takes
//! over.

mod epochs;
pub mod threads;

pub use epochs::{Epochs, Pin, Visit};

/// What [`epochs`] stands on.
mod sync {
    pub(super) use super::threads::{OWNERS, asymmetric, heavy_fence, light_fence};
    pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, fence};
    pub(super) use std::sync::{Mutex, MutexGuard};

    /// Places for epochs that guards are alive in.
    pub(super) const SLOTS: usize = 128;
}

#[cfg(test)]
mod tests {
    use super::sync::{AtomicU64, AtomicUsize, OWNERS, SLOTS};
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
    fn kept_while_an_earlier_visit_lasts() {
        let epochs = Epochs::default();
        let mut freed = vec![];
        let early = epochs.begin_visit(0);
        let inner = epochs.begin_visit(0);
        epochs.retire_visited(8, 64, |o| freed.push(o));
        drop(inner);
        for _ in 0..3 {
            epochs.collect(|o| freed.push(o));
        }
        assert!(freed.is_empty(), "the outer visit lasts");
        let reached = epochs.begin();
        assert!(!epochs.has_reached(reached));
        drop(early);
        assert!(epochs.has_reached(reached));
        let late = epochs.begin_visit(OWNERS + 1);
        epochs.collect(|o| freed.push(o));
        assert_eq!(freed, [8], "a visit that began after the unlinking does not keep it");
        drop(late);
        assert_eq!(epochs.pins(), 0);
    }

    #[test]
    fn threads_that_visit_all_the_time_hold_up_nothing() {
        let epochs = Epochs::default();
        let mut freed = vec![];
        for i in 0..1000 {
            let visit = epochs.begin_visit(i % 2);
            epochs.retire_visited(i as u64, 64, |o| freed.push(o));
            drop(visit);
        }
        // What two epochs have retired, and the one in hand.
        assert!(freed.len() >= 1000 - 3 * 64, "{} of 1000", freed.len());
        assert!(freed.is_sorted());
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
        chase(
            |epochs, thread, read| {
                let pin = epochs.pin(thread);
                read();
                epochs.unpin(pin);
            },
            |epochs, block, free| epochs.retire(block, 1, free),
        );
    }

    #[test]
    fn no_visit_reads_a_freed_block() {
        chase(
            |epochs, thread, read| {
                // Two with slots of their own, one without.
                let _visit = epochs.begin_visit(OWNERS - 2 + thread);
                read();
            },
            |epochs, block, free| epochs.retire_visited(block, 1, free),
        );
    }

    fn chase(
        guarded: impl Fn(&Epochs, usize, &dyn Fn()) + Sync,
        retire: impl Fn(&Epochs, u64, &mut dyn FnMut(u64)),
    ) {
        const BLOCKS: usize = 64;
        let epochs = Epochs::default();
        let blocks: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(1)).collect();
        let link = AtomicUsize::new(0);
        let stop = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for t in 0..3 {
                let (epochs, blocks, link, stop) = (&epochs, &blocks, &link, &stop);
                let guarded = &guarded;
                s.spawn(move || {
                    while stop.load(Ordering::Relaxed) == 0 {
                        guarded(epochs, t, &|| {
                            let block = &blocks[link.load(Ordering::SeqCst)];
                            for _ in 0..20 {
                                assert_eq!(block.load(Ordering::SeqCst), 1);
                            }
                        });
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
                retire(&epochs, old as u64, &mut |o| {
                    blocks[o as usize].store(0, Ordering::SeqCst);
                    free.push(o as usize);
                });
            }
            stop.store(1, Ordering::Relaxed);
        });
    }
}
