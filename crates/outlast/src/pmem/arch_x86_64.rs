//! The instructions of x86-64: CPUID, the flushes, `sfence` and `movnti`.

use super::{FlushInstruction, Word};
use std::arch::asm;
use std::arch::x86_64::{
    __cpuid, __cpuid_count, _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm_stream_si64,
};

/// The flush instructions, best first.
pub(super) const INSTRUCTIONS: &[FlushInstruction] =
    &[FlushInstruction::Clwb, FlushInstruction::ClflushOpt, FlushInstruction::Clflush];

/// Returns whether this processor has the instruction. This asks CPUID itself, whatever the vendor:
/// with a list of known vendors, other processors would get a slower flush.
#[allow(unused_unsafe, reason = "these intrinsics became safe after our oldest compiler")]
pub(super) fn is_available(instruction: FlushInstruction) -> bool {
    let ebx_bit = match instruction {
        FlushInstruction::Clwb => 24,
        FlushInstruction::ClflushOpt => 23,
        // Part of SSE2, which every x86-64 has.
        FlushInstruction::Clflush => return true,
    };
    // SAFETY: every x86-64 has CPUID, and leaf 7 is read only if it exists.
    let ebx = unsafe {
        if __cpuid(0).eax < 7 {
            return false;
        }
        __cpuid_count(7, 0).ebx
    };
    ebx >> ebx_bit & 1 == 1
}

/// Starts the flush of the lines whose first bytes are at these addresses.
///
/// # Safety
/// Every line is mapped, and the processor has the instruction.
#[inline]
pub(super) unsafe fn flush(instruction: FlushInstruction, lines: impl Iterator<Item = usize>) {
    // Only `clflush` has an intrinsic. None of these has `nomem`, because the compiler must not
    // move a store to the line below its flush.
    macro_rules! flush_each {
        ($instruction:literal) => {
            for line in lines {
                // SAFETY: the caller's promise. A flush changes no memory, register or flag.
                unsafe {
                    asm!(concat!($instruction, " [{}]"), in(reg) line,
                        options(nostack, preserves_flags));
                }
            }
        };
    }
    match instruction {
        FlushInstruction::Clwb => flush_each!("clwb"),
        FlushInstruction::ClflushOpt => flush_each!("clflushopt"),
        FlushInstruction::Clflush => flush_each!("clflush"),
    }
}

/// Waits until this thread's earlier flushes and non-temporal stores are durable.
#[inline]
pub(super) fn fence() {
    // SAFETY: every x86-64 has SSE, and the instruction has no operand.
    #[allow(unused_unsafe, reason = "the intrinsic may become safe")]
    unsafe {
        _mm_sfence();
    }
}

/// Stores a word past the caches.
#[inline]
pub(super) fn store_nontemporal(word: &Word, value: u64, _instruction: Option<FlushInstruction>) {
    // SAFETY: the word is mapped, aligned and interior-mutable, and every other access to it is
    // atomic. A `movnti` of an aligned word is one store that is never torn. It acts as a relaxed
    // atomic store that may take effect as late as this thread's next fence; by the seam's rule, a
    // caller that needs it earlier fences first.
    unsafe {
        _mm_stream_si64(word.0.as_ptr().cast::<i64>(), value.cast_signed());
    }
}

/// Stores words past the caches. They are durable after this thread's next fence.
pub(super) fn stream(words: &[Word], values: &[u64], instruction: FlushInstruction) {
    for (word, value) in words.iter().zip(values) {
        store_nontemporal(word, *value, Some(instruction));
    }
}

/// Copies of at least this many bytes go through [`copy`], whose instruction takes too long to
/// start for shorter ones.
pub(super) const COPY_LEAST: usize = 256;

/// Copies `len` bytes, whatever other threads store there meanwhile.
///
/// The compiler sees no access, only that memory changes. The processor copies with its widest
/// loads and stores, so next to a concurrent store, even the bytes of one word can be a mixture.
///
/// # Safety
/// The `len` bytes at `from` can be read and those at `to` can be written. They do not overlap.
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise. The direction flag is clear, as in all Rust code.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags));
    }
}

/// Prefetches the cache line at `address` into all levels of the cache.
#[inline(always)]
pub(super) fn prefetch(address: *const i8) {
    // SAFETY: every x86-64 has SSE, and a prefetch has no effect visible to the program.
    #[allow(unused_unsafe, reason = "the intrinsic may become safe")]
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(address);
    }
}
