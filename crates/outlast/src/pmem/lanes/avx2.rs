//! Half a line at a time, by AVX2.

use crate::pmem::{SharedWord, Word};
use std::arch::asm;

/// Returns the words that hold `word`.
///
/// The loads are untorn for each word, as those of 8 bytes are, and in no order.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn matching(line: &[Word; 8], word: u64) -> u32 {
    let (low, high): (u32, u32);
    // SAFETY: the line is mapped, and the block only loads from it. Words may be loaded while other
    // threads store them, because the compiler sees no access.
    unsafe {
        asm!(
            "vmovq xmm0, {word}",
            "vpbroadcastq ymm0, xmm0",
            "vpcmpeqq ymm1, ymm0, [{line}]",
            "vpcmpeqq ymm2, ymm0, [{line} + 32]",
            "vmovmskpd {low:e}, ymm1",
            "vmovmskpd {high:e}, ymm2",
            "vzeroupper",
            word = in(reg) word,
            line = in(reg) line.as_ptr(),
            low = out(reg) low,
            high = out(reg) high,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
            out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
            out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _,
            out("xmm15") _,
            options(readonly, nostack, preserves_flags),
        );
    }
    low | high << 4
}

/// Returns how many words are not above `limit`. The loads are as in [`matching`].
///
/// # Safety
/// The processor has AVX2 and POPCNT.
#[inline(always)]
pub(super) unsafe fn count_up_to(line: &[SharedWord; 8], limit: u64) -> usize {
    let above: u64;
    // There is only a compare of signed numbers, so the highest bits are flipped.
    // SAFETY: as in `matching`.
    unsafe {
        asm!(
            "vmovq xmm0, {limit}",
            "vpbroadcastq ymm0, xmm0",
            "vpcmpeqd ymm3, ymm3, ymm3",
            "vpsllq ymm3, ymm3, 63",
            "vpxor ymm1, ymm3, [{line}]",
            "vpxor ymm2, ymm3, [{line} + 32]",
            "vpcmpgtq ymm1, ymm1, ymm0",
            "vpcmpgtq ymm2, ymm2, ymm0",
            "vmovmskpd {above:e}, ymm1",
            "vmovmskpd {high:e}, ymm2",
            "vzeroupper",
            "shl {high:e}, 4",
            "or {above:e}, {high:e}",
            "popcnt {above:e}, {above:e}",
            limit = in(reg) limit ^ 1 << 63,
            line = in(reg) line.as_ptr(),
            above = out(reg) above,
            high = out(reg) _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
            out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
            out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _,
            out("xmm15") _,
            options(readonly, nostack),
        );
    }
    8 - above as usize
}
