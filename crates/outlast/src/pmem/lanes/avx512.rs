//! A line at a time, by AVX-512.

use crate::pmem::{SharedWord, Word};
use std::arch::asm;

/// Returns the words that hold `word`.
///
/// The loads are untorn for each word, as those of 8 bytes are, and in no order. Registers from 16
/// on have no upper half that older instructions would have to keep, so they need no `vzeroupper`.
///
/// # Safety
/// The processor has AVX-512F.
#[inline(always)]
pub(super) unsafe fn matching(line: &[Word; 8], word: u64) -> u32 {
    let found: u32;
    // SAFETY: the line is mapped, and the block only loads from it. Words may be loaded while other
    // threads store them, because the compiler sees no access.
    unsafe {
        asm!(
            "vpbroadcastq zmm16, {word}",
            "vpcmpeqq k1, zmm16, [{line}]",
            "kmovw {found:e}, k1",
            word = in(reg) word,
            line = in(reg) line.as_ptr(),
            found = out(reg) found,
            out("xmm16") _,
            out("k1") _,
            options(readonly, nostack, preserves_flags),
        );
    }
    found
}

/// Returns how many words are not above `limit`. The loads are as in [`matching`].
///
/// # Safety
/// The processor has AVX-512F and POPCNT.
#[inline(always)]
pub(super) unsafe fn count_up_to(line: &[SharedWord; 8], limit: u64) -> usize {
    let found: u64;
    // SAFETY: as in `matching`.
    unsafe {
        asm!(
            "vpbroadcastq zmm16, {limit}",
            // Not less than.
            "vpcmpuq k1, zmm16, [{line}], 5",
            "kmovw {found:e}, k1",
            "popcnt {found:e}, {found:e}",
            limit = in(reg) limit,
            line = in(reg) line.as_ptr(),
            found = out(reg) found,
            out("xmm16") _,
            out("k1") _,
            options(readonly, nostack),
        );
    }
    found as usize
}
