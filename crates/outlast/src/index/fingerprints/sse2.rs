//! Fingerprint comparison by one 16-byte SSE2 instruction.

use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};

#[inline(always)]
pub(super) fn matching(words: [u64; 2], fingerprint: u8) -> u32 {
    // SAFETY: SSE2 is part of the x86-64 baseline.
    unsafe {
        let all = _mm_set_epi64x(words[1].cast_signed(), words[0].cast_signed());
        let one = _mm_set1_epi8(fingerprint.cast_signed());
        _mm_movemask_epi8(_mm_cmpeq_epi8(all, one)).cast_unsigned()
    }
}
