//! The version lock, cells that lead to places used again, the epochs and the notes of changed lines, in
//! every order that the memory model allows.
//!
//! Method: the library's own files are compiled here a second time, with loom's atomics. Then they
//! are compiled a third time without the fences. The tests must notice that, and also a lock or an
//! unlock with a relaxed ordering.

#![allow(
    clippy::duplicate_mod,
    dead_code,
    unreachable_pub,
    reason = "the library's files have more than is used here"
)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize};
use loom::thread;
use std::sync::atomic::Ordering;

#[path = "."]
mod whole {
    mod sync {
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, fence};
        pub(super) use loom::sync::{Mutex, MutexGuard};
        pub(super) const SLOTS: usize = 2;
        pub(super) const OWNERS: usize = 2;
        pub(super) fn asymmetric() -> bool {
            false
        }
        pub(super) fn light_fence(_: bool) {
            fence(std::sync::atomic::Ordering::SeqCst);
        }
        pub(super) fn fence_after_exchange() {
            fence(std::sync::atomic::Ordering::SeqCst);
        }
        pub(super) use light_fence as heavy_fence;
    }
    #[path = "../../outlast/src/reclaim/epochs.rs"]
    pub(super) mod epochs;
    #[path = "../../outlast/src/index/version.rs"]
    mod version;
    pub(super) use lock::*;
    mod lock {
        use super::version;
        include!("loom/lock.rs");
    }
}

/// The sets of noted lines.
#[path = "."]
mod noted {
    pub(super) mod sync {
        pub(crate) use atomics::AtomicU64;
        mod atomics {
            include!("loom/lines.rs");
        }
    }
    #[path = "../../outlast/src/pmem/notes/lines.rs"]
    mod lines;
    /// A set of 64 lines.
    pub(super) struct Set([[sync::AtomicU64; 1]; 2]);
    impl Set {
        pub(super) fn new() -> Set {
            Set([[sync::AtomicU64::new(0)], [sync::AtomicU64::new(0)]])
        }
        fn set(&self) -> lines::LineSet<'_> {
            lines::LineSet::new(&self.0[0], &self.0[1])
        }
        pub(super) fn add(&self, lines: std::ops::Range<u64>) {
            self.set().add(lines);
        }
        pub(super) fn remove(&self, lines: std::ops::Range<u64>) {
            self.set().remove(lines);
        }
        pub(super) fn lines(&self) -> Vec<u64> {
            let mut found = Vec::new();
            self.set().visit(|lines| found.extend(lines));
            found
        }
    }
}

/// The same files without the fences.
#[path = "."]
mod unfenced {
    mod sync {
        pub(super) fn fence(_: std::sync::atomic::Ordering) {}
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
        pub(super) use loom::sync::{Mutex, MutexGuard};
        pub(super) const SLOTS: usize = 2;
        pub(super) const OWNERS: usize = 2;
        pub(super) fn asymmetric() -> bool {
            false
        }
        pub(super) fn light_fence(_: bool) {}
        pub(super) fn fence_after_exchange() {}
        pub(super) use light_fence as heavy_fence;
    }
    #[path = "../../outlast/src/reclaim/epochs.rs"]
    pub(super) mod epochs;
    #[path = "../../outlast/src/index/version.rs"]
    mod version;
    pub(super) use lock::*;
    mod lock {
        use super::version;
        include!("loom/lock.rs");
    }
}

/// Checks that a reader accepts no half of a write.
macro_rules! readers_see_whole_writes {
    ($lock:path) => {{
        use $lock as lock;
        loom::model(|| {
            let word = Arc::new(lock::Word::new(lock::Orders::Kept));
            let data: Arc<[AtomicU64; 2]> = Arc::new(Default::default());
            let writer = {
                let (word, data) = (Arc::clone(&word), Arc::clone(&data));
                thread::spawn(move || {
                    let held = word.try_lock().expect("nobody else locks");
                    let held = word.set_changing(held);
                    data[0].store(1, Ordering::Relaxed);
                    data[1].store(1, Ordering::Relaxed);
                    word.unlock(held);
                })
            };
            if let Some(version) = word.version() {
                let seen = [&data[0], &data[1]].map(|word| word.load(Ordering::Relaxed));
                if word.is_unchanged(version) {
                    assert_eq!(seen[0], seen[1], "half of a write");
                }
            }
            writer.join().unwrap();
        });
    }};
}

#[test]
fn a_reader_accepts_no_half_of_a_write() {
    readers_see_whole_writes!(whole);
}

#[test]
#[should_panic(expected = "half of a write")]
fn a_version_lock_without_fences_is_noticed() {
    readers_see_whole_writes!(unfenced);
}

/// A writer leads readers from one place to another, uses the old place for something else, puts what
/// belongs there into it again, and leads readers back to it. Checks that a reader accepts nothing of the
/// use in between. Before readers are led back, the lock of the place gets a new version if `renewed`.
macro_rules! readers_see_no_reuse {
    ($lock:path, $renewed:expr) => {{
        use $lock as lock;
        loom::model(|| {
            let word = Arc::new(lock::Word::new(lock::Orders::Kept));
            let cell = Arc::new(AtomicUsize::new(0));
            let places: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(7), AtomicU64::new(7)]);
            let writer = {
                let (word, cell) = (Arc::clone(&word), Arc::clone(&cell));
                let places = Arc::clone(&places);
                thread::spawn(move || {
                    cell.store(1, Ordering::Release);
                    lock::fence(Ordering::Release);
                    places[0].store(8, Ordering::Relaxed);
                    places[0].store(9, Ordering::Relaxed);
                    if $renewed {
                        let held = word.try_lock().expect("nobody else locks");
                        let held = word.set_changing(held);
                        word.unlock(held);
                    }
                    cell.store(0, Ordering::Release);
                })
            };
            let found = cell.load(Ordering::Acquire);
            if let Some(version) = word.version() {
                let seen = places[found].load(Ordering::Relaxed);
                lock::fence(Ordering::Acquire);
                if cell.load(Ordering::Acquire) == found && word.is_unchanged(version) {
                    assert_ne!(seen, 8, "another use of the place");
                }
            }
            writer.join().unwrap();
        });
    }};
}

#[test]
fn a_reader_accepts_nothing_of_a_reused_place() {
    readers_see_no_reuse!(whole, true);
}

#[test]
#[should_panic(expected = "another use of the place")]
fn a_place_that_comes_back_with_its_old_version_is_noticed() {
    readers_see_no_reuse!(whole, false);
}

#[test]
#[should_panic(expected = "another use of the place")]
fn a_cell_without_fences_is_noticed() {
    readers_see_no_reuse!(unfenced, true);
}

/// A writer doubles a directory whose cells lead to a place, leads the new cell to another place, and uses
/// the old place for something else. Checks that a reader of the old cell accepts nothing of that use,
/// and that one which finds 0 there finds the new array.
macro_rules! readers_see_no_old_array {
    ($lock:path) => {{
        use $lock as lock;
        loom::model(|| {
            let array = Arc::new(AtomicUsize::new(0));
            let cells: Arc<[AtomicUsize; 2]> = Arc::new([AtomicUsize::new(1), AtomicUsize::new(1)]);
            let place = Arc::new(AtomicU64::new(7));
            let writer = {
                let (array, cells, place) = (array.clone(), cells.clone(), place.clone());
                thread::spawn(move || {
                    array.store(1, Ordering::Release);
                    cells[0].store(0, Ordering::Release);
                    cells[1].store(2, Ordering::Release);
                    lock::fence(Ordering::Release);
                    place.store(8, Ordering::Relaxed);
                })
            };
            let cell = &cells[array.load(Ordering::Acquire)];
            match cell.load(Ordering::Acquire) {
                0 => assert_eq!(array.load(Ordering::Acquire), 1),
                1 => {
                    let seen = place.load(Ordering::Relaxed);
                    lock::fence(Ordering::Acquire);
                    if cell.load(Ordering::Acquire) == 1 {
                        assert_ne!(seen, 8, "another use of the place");
                    }
                }
                _ => {}
            }
            writer.join().unwrap();
        });
    }};
}

#[test]
fn a_reader_of_an_old_array_notices_a_doubling() {
    readers_see_no_old_array!(whole);
}

#[test]
#[should_panic(expected = "another use of the place")]
fn an_old_array_without_fences_is_noticed() {
    readers_see_no_old_array!(unfenced);
}

/// Runs two writers, each of which tries at most twice to take the lock.
fn writers_exclude_each_other(orders: whole::Orders) {
    loom::model(move || {
        let shared = Arc::new((whole::Word::new(orders), UnsafeCell::new(0_u64)));
        let write = |shared: &(whole::Word, UnsafeCell<u64>)| {
            for _ in 0..2 {
                if let Some(held) = shared.0.try_lock() {
                    let held = shared.0.set_changing(held);
                    // SAFETY: the lock is held. Loom finds out if that is not enough.
                    shared.1.with_mut(|value| unsafe { *value += 1 });
                    shared.0.unlock(held);
                    return 1;
                }
                thread::yield_now();
            }
            0
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || write(&shared))
        };
        let writes = write(&shared) + other.join().unwrap();
        // SAFETY: the other thread has ended.
        assert_eq!(shared.1.with(|value| unsafe { *value }), writes);
    });
}

#[test]
fn locked_is_locked() {
    writers_exclude_each_other(whole::Orders::Kept);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_unlock_without_release_is_noticed() {
    writers_exclude_each_other(whole::Orders::UnlockRelaxed);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_lock_without_acquire_is_noticed() {
    writers_exclude_each_other(whole::Orders::LockRelaxed);
}

/// Readers follow a link under a pin while a writer unlinks the block and retires it. No reader may
/// access the block once the writer has freed it.
macro_rules! no_guard_reads_a_freed_block {
    ($epochs:path, $readers:expr, $preemptions:expr) => {{
        use $epochs as epochs;
        let mut model = loom::model::Builder::new();
        model.preemption_bound = $preemptions;
        model.check(|| {
            let epochs = Arc::new(epochs::Epochs::default());
            let link = Arc::new(AtomicUsize::new(0));
            let block = Arc::new(UnsafeCell::new(7_u64));
            let readers: Vec<_> = (0..$readers)
                .map(|hint| {
                    let (epochs, link, block) =
                        (Arc::clone(&epochs), Arc::clone(&link), Arc::clone(&block));
                    thread::spawn(move || {
                        let pin = epochs.pin(hint);
                        if link.load(Ordering::Acquire) == 0 {
                            // SAFETY: the thread holds a pin. Loom finds out if that is not enough.
                            assert_eq!(block.with(|value| unsafe { *value }), 7);
                        }
                        epochs.unpin(pin);
                    })
                })
                .collect();
            let mut freed = 0;
            let mut free = |_| {
                // SAFETY: no thread reads the block any more. Loom finds out if one does.
                block.with_mut(|value| unsafe { *value = 0 });
                freed += 1;
            };
            link.store(1, Ordering::Release);
            epochs.retire(0, 64, &mut free);
            epochs.collect(&mut free);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            epochs.collect(&mut free);
            assert_eq!(freed, 1, "freed once, and not kept for ever");
        });
    }};
}

#[test]
fn no_guard_reads_a_freed_block() {
    no_guard_reads_a_freed_block!(whole::epochs, 1, None);
    no_guard_reads_a_freed_block!(whole::epochs, 2, Some(2));
}

/// The same with visits. The writer is in a visit itself, as operations are, and may free the block
/// two epochs later.
macro_rules! no_visit_reads_a_freed_block {
    ($epochs:path, $preemptions:expr) => {{
        use $epochs as epochs;
        let mut model = loom::model::Builder::new();
        model.preemption_bound = $preemptions;
        model.check(|| {
            let epochs = Arc::new(epochs::Epochs::default());
            let link = Arc::new(AtomicUsize::new(0));
            let block = Arc::new(UnsafeCell::new(7_u64));
            let reader = {
                let (epochs, link, block) =
                    (Arc::clone(&epochs), Arc::clone(&link), Arc::clone(&block));
                thread::spawn(move || {
                    let visit = epochs.begin_visit(1);
                    if link.load(Ordering::Acquire) == 0 {
                        // SAFETY: the thread is in a visit. Loom finds out if that is not enough.
                        assert_eq!(block.with(|value| unsafe { *value }), 7);
                    }
                    drop(visit);
                })
            };
            let mut freed = 0;
            let mut free = |_| {
                // SAFETY: no thread reads the block any more. Loom finds out if one does.
                block.with_mut(|value| unsafe { *value = 0 });
                freed += 1;
            };
            let visit = epochs.begin_visit(0);
            link.store(1, Ordering::Release);
            epochs.retire_visited(0, 64, &mut free);
            drop(visit);
            epochs.collect(&mut free);
            epochs.collect(&mut free);
            reader.join().unwrap();
            epochs.collect(&mut free);
            assert_eq!(freed, 1, "freed once, and not kept for ever");
        });
    }};
}

#[test]
fn no_visit_reads_a_freed_block() {
    no_visit_reads_a_freed_block!(whole::epochs, Some(4));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn visits_without_fences_are_noticed() {
    no_visit_reads_a_freed_block!(unfenced::epochs, Some(4));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn epochs_without_fences_are_noticed() {
    no_guard_reads_a_freed_block!(unfenced::epochs, 1, None);
}

/// Lookups note lines in a set from which a commit removes the lines that it has made durable. What
/// was noted and not removed is found once the removal is over. (No cut looks before that.)
#[test]
fn no_noted_line_is_lost_beside_a_removal() {
    for notes in [[1..2, 1..2], [1..2, 2..3], [0..2, 1..2]] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let set = Arc::new(noted::Set::new());
            set.add(0..1);
            let lookups = notes.clone().map(|lines| {
                let set = Arc::clone(&set);
                thread::spawn(move || set.add(lines))
            });
            set.remove(0..1);
            lookups.into_iter().for_each(|thread| thread.join().unwrap());
            let found = set.lines();
            // Line 0 may have been removed.
            let lost =
                notes.iter().cloned().flatten().find(|line| *line != 0 && !found.contains(line));
            assert_eq!(lost, None, "noted {notes:?}, found {found:?}");
        });
    }
}
