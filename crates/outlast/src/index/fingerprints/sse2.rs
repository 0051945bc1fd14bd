//! Fingerprint comparison by one 16-byte SSE2 instruction.

use std::arch::x86_64::{
    _mm_cmpeq_epi8, _mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set_epi64x,
    _mm_set1_epi8, _mm_set1_epi16,
};

#[inline(always)]
pub(super) fn matching(words: [u64; 2], fingerprint: u8) -> u32 {
    // SAFETY: SSE2 is part of the x86-64 baseline.
    unsafe {
        let all = _mm_set_epi64x(words[1].cast_signed(), words[0].cast_signed());
        let one = _mm_set1_epi8(fingerprint.cast_signed());
        _mm_movemask_epi8(_mm_cmpeq_epi8(all, one)).cast_unsigned()
    }
}

#[inline(always)]
pub(super) fn matching_wide(words: [u64; 2], fingerprint: u16) -> u32 {
    // SAFETY: as above.
    unsafe {
        let all = _mm_set_epi64x(words[1].cast_signed(), words[0].cast_signed());
        let equal = _mm_cmpeq_epi16(all, _mm_set1_epi16(fingerprint.cast_signed()));
        _mm_movemask_epi8(_mm_packs_epi16(equal, equal)).cast_unsigned() & 0xff
    }
}
