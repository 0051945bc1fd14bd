//! DRAM that threads share. Each access is a scheduling point.
//!
//! An index keeps locks, caches and pointers in DRAM that other threads read and write. The test
//! harness can run another thread before each such access only if it learns about the access. So
//! this state is kept in a [`Shared`], whose methods take the seam and cannot leave it out. For
//! [`Real`](super::Real) they compile to the bare atomics.
//!
//! A counter on which no decision depends may be a plain atomic, with a comment that says so.

use super::Seam;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// An atomic in DRAM that several threads access. Each access is a scheduling point.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Shared<A>(pub(super) A);

/// A word in DRAM that several threads access.
pub type SharedWord = Shared<AtomicU64>;

/// Proof that a scheduling point belongs to a [`Shared`], which alone can construct this.
#[derive(Debug)]
pub struct OfShared(());

impl<A> Shared<A> {
    /// Makes a scheduling point and returns the atomic.
    #[inline(always)]
    fn reach(&self, seam: &impl Seam) -> &A {
        seam.shared(OfShared(()));
        &self.0
    }

    /// Returns the atomic itself. The exclusive reference makes a scheduling point unnecessary.
    #[inline(always)]
    pub fn alone(&mut self) -> &mut A {
        &mut self.0
    }
}

/// The accesses of one kind of atomic.
macro_rules! accesses {
    ($([$($t:ident)?] $atomic:ty: $value:ty;)*) => { $(
        impl $(<$t>)? Shared<$atomic> {
            /// Creates a `Shared` that holds `value`.
            pub const fn new(value: $value) -> Self {
                Shared(<$atomic>::new(value))
            }

            /// Loads the value.
            #[inline(always)]
            pub fn load(&self, seam: &impl Seam, order: Ordering) -> $value {
                self.reach(seam).load(order)
            }

            /// Stores a value.
            #[inline(always)]
            pub fn store(&self, seam: &impl Seam, value: $value, order: Ordering) {
                self.reach(seam).store(value, order);
            }

            /// Stores a value and returns the previous one.
            #[inline(always)]
            pub fn swap(&self, seam: &impl Seam, value: $value, order: Ordering) -> $value {
                self.reach(seam).swap(value, order)
            }

            /// Stores `new` if the value is `current`; otherwise returns the actual value as `Err`.
            #[inline(always)]
            pub fn compare_exchange(
                &self,
                seam: &impl Seam,
                current: $value,
                new: $value,
                (success, failure): (Ordering, Ordering),
            ) -> Result<$value, $value> {
                self.reach(seam).compare_exchange(current, new, success, failure)
            }
        }
    )* };
}

accesses! {
    [] AtomicU64: u64;
    [] AtomicU32: u32;
    [] AtomicBool: bool;
    [T] AtomicPtr<T>: *mut T;
}

/// Arithmetic on one kind of number.
macro_rules! arithmetic {
    ($($atomic:ty: $value:ty;)*) => { $(
        impl Shared<$atomic> {
            /// Adds to the value and returns the previous one.
            #[inline(always)]
            pub fn fetch_add(&self, seam: &impl Seam, value: $value, order: Ordering) -> $value {
                self.reach(seam).fetch_add(value, order)
            }

            /// Subtracts from the value and returns the previous one.
            #[inline(always)]
            pub fn fetch_sub(&self, seam: &impl Seam, value: $value, order: Ordering) -> $value {
                self.reach(seam).fetch_sub(value, order)
            }

            /// Sets bits and returns the previous value.
            #[inline(always)]
            pub fn fetch_or(&self, seam: &impl Seam, bits: $value, order: Ordering) -> $value {
                self.reach(seam).fetch_or(bits, order)
            }

            /// Clears all bits but these and returns the previous value.
            #[inline(always)]
            pub fn fetch_and(&self, seam: &impl Seam, bits: $value, order: Ordering) -> $value {
                self.reach(seam).fetch_and(bits, order)
            }
        }
    )* };
}

arithmetic! {
    AtomicU64: u64;
    AtomicU32: u32;
}

impl SharedWord {
    /// Returns how many words of a line are not above `limit`, with one scheduling point. Before the
    /// result is used, the caller checks that the words were not changed meanwhile.
    #[inline(always)]
    pub fn count_up_to(line: &[SharedWord; 8], seam: &impl Seam, limit: u64) -> usize {
        seam.shared(OfShared(()));
        seam.count_up_to(line, limit)
    }
}

impl<T> Shared<T> {
    /// Wraps a component that threads share and that a model checker proves by itself. Here each of
    /// its operations is one step, and its inner accesses are not interleaved.
    pub const fn part(part: T) -> Self {
        Shared(part)
    }

    /// Returns the component, for one operation.
    #[inline(always)]
    pub fn step(&self, seam: &impl Seam) -> &T {
        self.reach(seam)
    }
}

impl<T> Shared<OnceLock<T>> {
    /// Creates an empty cell.
    pub const fn once() -> Self {
        Shared(OnceLock::new())
    }

    /// Returns the value, if it was set.
    #[inline(always)]
    pub fn get(&self, seam: &impl Seam) -> Option<&T> {
        self.reach(seam).get()
    }

    /// Sets the value; returns it as `Err` if one was set before.
    pub fn set(&self, seam: &impl Seam, value: T) -> Result<(), T> {
        self.reach(seam).set(value)
    }

    /// Returns the value. If it is not set, first sets it to the result of `make`. `make` must not
    /// reach a scheduling point. If the harness paused the thread there, another one that needs the
    /// value would wait inside the operating system, and the run would hang.
    pub fn get_or_init(&self, seam: &impl Seam, make: impl FnOnce() -> T) -> &T {
        self.reach(seam).get_or_init(make)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::{Control, Traced};
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// Counts scheduling points.
    struct Count(Arc<AtomicUsize>);

    impl Control for Count {
        fn before(&self, _: usize, waiting: bool) {
            assert!(!waiting);
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_access_is_a_scheduling_point() {
        let points = Arc::new(AtomicUsize::new(0));
        let seam = Traced::with_control(Box::new(Count(Arc::clone(&points))));
        let order = Ordering::Relaxed;
        let word = SharedWord::new(5);
        assert_eq!(word.load(&seam, order), 5);
        word.store(&seam, 6, order);
        assert_eq!(word.swap(&seam, 7, order), 6);
        assert_eq!(word.compare_exchange(&seam, 6, 8, (order, order)), Err(7));
        assert_eq!(word.fetch_add(&seam, 1, order), 7);
        assert_eq!(word.fetch_sub(&seam, 4, order), 8);
        assert_eq!(word.fetch_or(&seam, 3, order), 4);
        assert_eq!(word.fetch_and(&seam, 6, order), 7);
        let line = std::array::from_fn(|i| SharedWord::new(i as u64));
        assert_eq!(SharedWord::count_up_to(&line, &seam, 4), 5);
        assert_eq!(points.load(order), 9);
        let once = Shared::<OnceLock<u64>>::once();
        assert_eq!(once.get(&seam), None);
        assert_eq!(once.set(&seam, 3), Ok(()));
        assert_eq!(once.get_or_init(&seam, || 4), &3);
        let mut flag = Shared::<AtomicBool>::new(false);
        *flag.alone().get_mut() = true;
        assert!(flag.load(&seam, order));
        assert_eq!(points.load(order), 13);
    }
}
