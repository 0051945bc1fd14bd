// The atomic words of a set of noted lines, over loom's. Loom takes a sequentially consistent access for
// an acquire or a release, but does know fences. So each such access has a fence on either side.

use std::sync::atomic::Ordering;

pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

fn fenced<T>(order: Ordering, access: impl FnOnce() -> T) -> T {
    let fence = || {
        if order == Ordering::SeqCst {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    };
    fence();
    let done = access();
    fence();
    done
}

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        AtomicU64(loom::sync::atomic::AtomicU64::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        fenced(order, || self.0.load(order))
    }

    pub(crate) fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        fenced(order, || self.0.fetch_or(bits, order))
    }

    pub(crate) fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
        fenced(order, || self.0.fetch_and(bits, order))
    }
}

impl std::fmt::Debug for AtomicU64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a word of a set")
    }
}
