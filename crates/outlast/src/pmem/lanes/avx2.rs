//! Half a line at a time, by AVX2.

use crate::pmem::Word;
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
