//! Pairs of functions for `.ci/seam-asm`: an access through the seam, and the same access to a bare
//! atomic. Both must compile to the same instructions.
//!
//! The bare function also takes the seam, which it ignores, so that both get their arguments in the
//! same registers.

use outlast::internals::pmem::{Point, Real, Seam, Word};
use std::sync::atomic::{AtomicU64, Ordering};

static AT: Point = Point::new("seam-asm", "access");

macro_rules! pairs {
    ($($seam:ident, $bare:ident: |$real:ident, $word:ident, $a:ident, $b:ident| $answer:ty {
        $through_seam:expr, $directly:expr
    })*) => {
        $(
            /// Accesses the word through the seam.
            #[inline(never)]
            #[unsafe(no_mangle)]
            pub fn $seam($real: &Real, $word: &Word, $a: u64, $b: u64) -> $answer {
                let _ = ($a, $b);
                $through_seam
            }

            /// Accesses the bare atomic.
            #[inline(never)]
            #[unsafe(no_mangle)]
            pub fn $bare($real: &Real, $word: &AtomicU64, $a: u64, $b: u64) -> $answer {
                let _ = ($real, $a, $b);
                $directly
            }
        )*
    };
}

pairs! {
    seam_load_relaxed, bare_load_relaxed: |real, word, a, b| u64 {
        real.load(word, Ordering::Relaxed),
        word.load(Ordering::Relaxed)
    }
    seam_load_acquire, bare_load_acquire: |real, word, a, b| u64 {
        real.load(word, Ordering::Acquire),
        word.load(Ordering::Acquire)
    }
    seam_store_relaxed, bare_store_relaxed: |real, word, a, b| () {
        real.store(word, a, Ordering::Relaxed, &AT),
        word.store(a, Ordering::Relaxed)
    }
    seam_store_release, bare_store_release: |real, word, a, b| () {
        real.store(word, a, Ordering::Release, &AT),
        word.store(a, Ordering::Release)
    }
    seam_store_seq_cst, bare_store_seq_cst: |real, word, a, b| () {
        real.store(word, a, Ordering::SeqCst, &AT),
        word.store(a, Ordering::SeqCst)
    }
    seam_compare_exchange, bare_compare_exchange: |real, word, a, b| Result<u64, u64> {
        real.compare_exchange(word, a, b, Ordering::AcqRel, Ordering::Acquire, &AT),
        word.compare_exchange(a, b, Ordering::AcqRel, Ordering::Acquire)
    }
    seam_compare_exchange_is_ok, bare_compare_exchange_is_ok: |real, word, a, b| bool {
        real.compare_exchange(word, a, b, Ordering::AcqRel, Ordering::Relaxed, &AT).is_ok(),
        word.compare_exchange(a, b, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

fn main() {
    println!("This is to be compiled, not run: see .ci/seam-asm");
}
