//! For tests: an index in a pool of its own, and something that happens before a given access of one of
//! its operations.

use crate::pmem::{Control, Offset, Seam, Traced, Word};
use crate::pool::backing::{Backing, Heap};
use crate::pool::core::{Core, CoreOptions, root_offset};
use crate::pool::layout::ROOT_SCHEME_WORDS;
use crate::pool::points;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Makes a pool with pages of 4 KiB for an index that `create` makes. Its root is in slot 0.
pub(crate) fn pool_of(
    seam: Traced,
    create: impl FnOnce(&Arc<Core<Traced>>) -> [u64; ROOT_SCHEME_WORDS],
) -> Arc<Core<Traced>> {
    pool_in(Backing::Heap(Heap::new(&[], 4 << 20, 0)), seam, create)
}

/// Does the same in memory of the caller's choice.
pub(crate) fn pool_in<S: Seam>(
    backing: Backing,
    seam: S,
    create: impl FnOnce(&Arc<Core<S>>) -> [u64; ROOT_SCHEME_WORDS],
) -> Arc<Core<S>> {
    let options = CoreOptions { page_bits: 12, ..CoreOptions::default() };
    let core = Core::create(backing, seam, options).unwrap();
    let core = Arc::new(core);
    let passed = core.enter().unwrap();
    for (number, word) in create(&core).into_iter().enumerate() {
        let place = Offset::<Word>::new(root_offset(0).raw() + 8 * (1 + number as u64));
        core.memory.store(core.memory.at(place).unwrap(), word, &points::ROOT_FIXED);
    }
    drop(passed);
    core
}

/// An index, and what happens during one of its operations.
pub(crate) struct Interleaved<T>(Arc<Inner<T>>);

struct Inner<T> {
    index: OnceLock<T>,
    /// Accesses until it happens; 0 if no operation is watched, or it was tried.
    left: AtomicU64,
    /// Does it, if that is possible now. Returns whether it did.
    act: fn(&T) -> bool,
    happened: AtomicBool,
}

impl<T> Clone for Interleaved<T> {
    fn clone(&self) -> Self {
        Interleaved(Arc::clone(&self.0))
    }
}

impl<T: Send + Sync + 'static> Interleaved<T> {
    /// Makes an index with `make`. `act` tries something during its operations, and returns whether
    /// it was possible.
    pub(crate) fn new(make: impl FnOnce(Traced) -> T, act: fn(&T) -> bool) -> Self {
        let (index, left, happened) = (OnceLock::new(), AtomicU64::new(0), AtomicBool::new(false));
        let made = Interleaved(Arc::new(Inner { index, left, act, happened }));
        let index = make(Traced::with_control(Box::new(made.clone())));
        assert!(made.0.index.set(index).is_ok());
        made
    }

    pub(crate) fn index(&self) -> &T {
        self.0.index.get().expect("made by `new`")
    }

    /// Runs an operation, and tries the other before this access of it, counted from 1. Returns
    /// whether the operation had so many accesses.
    pub(crate) fn run(&self, access: u64, operation: impl FnOnce(&T)) -> bool {
        self.0.left.store(access, Ordering::Relaxed);
        operation(self.index());
        self.0.left.swap(0, Ordering::Relaxed) == 0
    }

    /// Returns whether it was done.
    pub(crate) fn happened(&self) -> bool {
        self.0.happened.load(Ordering::Relaxed)
    }
}

impl<T: Send + Sync> Control for Interleaved<T> {
    fn before(&self, _: usize, _: bool) {
        let (Some(index), left) = (self.0.index.get(), self.0.left.load(Ordering::Relaxed)) else {
            return;
        };
        self.0.left.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 1 && (self.0.act)(index) {
            self.0.happened.store(true, Ordering::Relaxed);
        }
    }
}
