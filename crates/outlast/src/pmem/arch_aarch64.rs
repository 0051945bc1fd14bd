//! The instructions of aarch64: `dc cvap` and `dsb`.
//!
//! Argued, not measured:
//!
//! - `dc cvap` cleans a line to the point of persistence. It is ordered after this
//!   thread's earlier stores to the same line, so it writes back what they stored, and
//!   it is complete after the next `dsb`, as a flush is after `sfence` on x86-64.
//! - Two stores to one line become visible, and hence durable, in program order only
//!   with a barrier between them. The commit store is Release, which is that barrier.
//! - The walk assumes that a line has at least 64 bytes. Longer ones are cleaned twice,
//!   which costs time and nothing else.

use super::{FlushInstruction, Word};
use std::arch::{asm, is_aarch64_feature_detected};
use std::sync::atomic::Ordering;

/// The best first.
pub(super) const INSTRUCTIONS: &[FlushInstruction] =
    &[FlushInstruction::DcCvap, FlushInstruction::DcCvac];

/// Whether this processor has the instruction.
pub(super) fn is_available(instruction: FlushInstruction) -> bool {
    match instruction {
        FlushInstruction::DcCvap => is_aarch64_feature_detected!("dpb"),
        FlushInstruction::DcCvac => true,
    }
}

/// Starts the write-back of lines, given by the addresses of their first bytes.
///
/// # Safety
/// Every line is mapped, and the processor has the instruction.
#[inline]
pub(super) unsafe fn flush(instruction: FlushInstruction, lines: impl Iterator<Item = usize>) {
    // Written as the system instructions they are aliases of, because the assembler
    // takes `dc cvap` only when compiling for processors that have it.
    macro_rules! flush_each {
        ($instruction:literal) => {
            for line in lines {
                // SAFETY: the caller's; Linux allows both to user code. Cleaning changes
                // no memory, register or flag.
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

/// Waits until this thread's earlier flushes are durable.
#[inline]
pub(super) fn fence() {
    // SAFETY: a barrier without an operand. `sy` because the point of persistence may
    // lie outside the inner shareable domain.
    unsafe {
        asm!("dsb sy", options(nostack, preserves_flags));
    }
}

/// Stores, and starts the write-back at once: a store that passes the caches for certain
/// does not exist here (`stnp` is a hint).
#[inline]
pub(super) fn store_nontemporal(word: &Word, value: u64, instruction: Option<FlushInstruction>) {
    word.0.store(value, Ordering::Relaxed);
    if let Some(instruction) = instruction {
        // SAFETY: the word is mapped, and `Real` holds only instructions that are there.
        unsafe { flush(instruction, std::iter::once(word.0.as_ptr().expose_provenance())) }
    }
}

/// Asks for the line of an address in all levels of the cache.
#[inline(always)]
pub(super) fn prefetch(address: *const i8) {
    // SAFETY: a prefetch has no effect that a program can see.
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
}
