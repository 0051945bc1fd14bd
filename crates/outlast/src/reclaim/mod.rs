//! Epochs, which decide when an unlinked block can be reused.
//!
//! Most readers need no epoch: they read optimistically, with atomic loads from memory that stays
//! mapped, and check a version afterwards. Epochs are for guards, which hand out a record by
//! reference and must keep it intact while they live.
//!
//! A guard *pins* the epoch in which it began. An unlinked block is *retired* with the epoch of its
//! unlinking, and freed once no guard of that epoch or an earlier one is left. If no guard is alive
//! at all, it is freed immediately.
//!
//! The blocks of a dropped map need no epoch. They are freed once no handle of the map is left, and no
//! operation and no guard outlives the handle that it was made through.
//!
//! A guard never reads a freed block: `pin` stores its mark and issues a SeqCst fence before it
//! reads a link. `retire` is called after the link was removed, and looks for marks after a SeqCst
//! fence. Either `retire` sees the mark, or the guard's read comes after `retire`'s fence and sees
//! that the link is gone. `retire` looks only at slots that have held a guard before; the first
//! guard in a slot adds the slot to them before its fence.
//!
//! In an index whose operations follow links without locks, every operation pins an epoch too. So
//! such a pin, a [`Visit`], has to be cheap: for most threads it costs two stores to a slot that
//! belongs to the thread. A visit reads the epoch and stores it in the slot as its mark. Where the
//! kernel supports it, no fence follows that store, because a thread that looks for marks issues
//! the fence for all threads ([`threads::heavy_fence`]). Blocks that such operations can reach are
//! retired with [`Epochs::retire_visited`], which does not try to free them immediately, because
//! the thread that retires is usually in a visit itself. A visit never reads a freed block either:
//!
//! - The collector first takes over the retired blocks, so it sees that their links are gone. It
//!   then issues the fence and looks for marks. If it does not see the mark of a visit, either the
//!   visit reads after the fence and finds no such link, or it has ended and reads nothing more.
//! - A visit whose mark it sees may have read before the fence. Then the visit's epoch decides. The
//!   thread that retired the block unlinked it, issued a SeqCst fence and then read epoch `e`,
//!   before the addition that began `e + 1`. A visit that has read `e + 1`, with Acquire, finds the
//!   link gone. So a visit that found the link is of epoch `e` or earlier. This needs *links that
//!   are read by SeqCst loads*, like those of clevel, because the argument rests on the single
//!   total order of all these accesses. It cannot rest on a collector's fence between two epochs:
//!   other threads begin epochs too, without such a fence ([`Epochs::begin`]).
//! - A block is kept for one epoch more than that, until all visits are of `e + 2` or later. If the
//!   collector that began `e + 1` issued its fence before another thread began `e + 2`, the block
//!   is safe by that fence alone, however links are read. That is usually the case, but not always,
//!   so the extra epoch is only a margin.
//!
//! A thread that asks whether an epoch is [reached](Epochs::has_reached) issues the fence too, and
//! has itself begun that epoch after the unlinking. A visit that has read that epoch, with Acquire,
//! sees what was unlinked.
//!
//! Retiring never waits, because lock-free indexes retire blocks. A block that is retired while
//! another thread looks through the limbo goes onto a list, which the next thread to hold the limbo
//! takes over.

mod epochs;
pub mod threads;

pub use epochs::{Epochs, Pin, Visit};

/// Imports of [`epochs`], which `outlast-check` replaces with those of a model checker.
mod sync {
    pub(super) use super::threads::{
        OWNERS, asymmetric, fence_after_exchange, heavy_fence, light_fence,
    };
    pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, fence};
    pub(super) use std::sync::{Mutex, MutexGuard};

    /// Number of slots for guards, and again for the visits of threads without a slot of their own.
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
        // Not yet freed: what two epochs have retired, and what the current one has so far.
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

    /// Threads that retire contend for the limbo. None of them waits, and nothing is lost.
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

    /// Readers follow a link to a block whose content is poisoned when it is freed.
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
                // Two threads have slots of their own, one does not.
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
