//! The instructions of aarch64: `dc cvap` and `dsb`.
//!
//! The following is argued, not measured:
//!
//! - `dc cvap` cleans a line to the point of persistence. It is ordered after this thread's earlier
//!   stores to the same line, so it writes back what they stored. It is complete after the next
//!   `dsb`, just as a flush is complete after `sfence` on x86-64.
//! - Two stores to one line become visible, and hence durable, in program order only with a barrier
//!   between them. The commit store is Release, which is that barrier.
//! - The caller passes one address for every 64 bytes, which assumes that a line has at least 64
//!   bytes. Longer lines are cleaned more than once, which only costs time.

use super::{FlushInstruction, Word};
use std::arch::{asm, is_aarch64_feature_detected};
use std::sync::atomic::Ordering;

/// The flush instructions, best first.
pub(super) const INSTRUCTIONS: &[FlushInstruction] =
    &[FlushInstruction::DcCvap, FlushInstruction::DcCvac];

/// Whether this processor has the instruction.
pub(super) fn is_available(instruction: FlushInstruction) -> bool {
    match instruction {
        FlushInstruction::DcCvap => is_aarch64_feature_detected!("dpb"),
        FlushInstruction::DcCvac => true,
    }
}

/// Starts the flush of the lines whose first bytes are at these addresses.
///
/// # Safety
/// Every line is mapped, and the processor has the instruction.
#[inline]
pub(super) unsafe fn flush(instruction: FlushInstruction, lines: impl Iterator<Item = usize>) {
    // Written as the system instructions that they are aliases of, because the assembler accepts
    // `dc cvap` only when compiling for processors that have it.
    macro_rules! flush_each {
        ($instruction:literal) => {
            for line in lines {
                // SAFETY: the caller's promise; Linux allows both in user code. Cleaning changes no
                // memory, register or flag.
                unsafe {
                    asm!($instruction, in(reg) line, options(nostack, preserves_flags));
                }
            }
        };
    }
    match instruction {
        FlushInstruction::DcCvap => flush_each!("sys #3, c7, c12, #1, {}"),
        FlushInstruction::DcCvac => flush_each!("sys #3, c7, c10, #1, {}"),
    }
}

/// No copy goes through [`copy`].
pub(super) const COPY_LEAST: usize = usize::MAX;

/// See [`COPY_LEAST`].
///
/// # Safety
/// It is not called.
pub(super) unsafe fn copy(_: *const u8, _: *mut u8, _: usize) {
    unreachable!("no copy is that long");
}

/// Waits until this thread's earlier flushes are durable.
#[inline]
pub(super) fn fence() {
    // SAFETY: a barrier accesses no memory and no register. Its scope is the full system (`sy`),
    // because the point of persistence may lie outside the inner shareable domain.
    unsafe {
        asm!("dsb sy", options(nostack, preserves_flags));
    }
}

/// Stores a word and immediately starts its flush, because aarch64 has no store that is certain to
/// bypass the caches (`stnp` is a hint).
#[inline]
pub(super) fn store_nontemporal(word: &Word, value: u64, instruction: Option<FlushInstruction>) {
    word.0.store(value, Ordering::Relaxed);
    if let Some(instruction) = instruction {
        // SAFETY: the word is mapped. `instruction` comes from `Real`, which selects only
        // instructions that this processor has.
        unsafe { flush(instruction, std::iter::once(word.0.as_ptr().expose_provenance())) }
    }
}

/// Stores words and starts the flush of their lines, at the first word of each.
pub(super) fn stream(words: &[Word], values: &[u64], instruction: FlushInstruction) {
    for (line, values) in words.chunks(8).zip(values.chunks(8)) {
        for (word, value) in line.iter().zip(values) {
            word.0.store(*value, Ordering::Relaxed);
        }
        // SAFETY: as in `store_nontemporal`.
        unsafe { flush(instruction, std::iter::once(line.as_ptr().expose_provenance())) }
    }
}

/// Prefetches the cache line at `address` into all levels of the cache.
#[inline(always)]
pub(super) fn prefetch(address: *const i8) {
    // SAFETY: a prefetch has no effect visible to the program.
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
}
