//! Fingerprint comparison by word arithmetic, for other processors and for Miri.

const LOW: u64 = 0x0101_0101_0101_0101;
const SEVEN: u64 = 0x7f7f_7f7f_7f7f_7f7f;

#[inline(always)]
pub(super) fn matching(words: [u64; 2], fingerprint: u8) -> u32 {
    zero_bytes(words[0] ^ (LOW * u64::from(fingerprint)))
        | zero_bytes(words[1] ^ (LOW * u64::from(fingerprint))) << 8
}

/// Sets bit i if byte i is zero. This is exact, because the sum cannot carry from byte to byte.
#[inline(always)]
fn zero_bytes(x: u64) -> u32 {
    let zero = !((x & SEVEN).wrapping_add(SEVEN) | x | SEVEN);
    // Collects the top bits of the eight bytes into one byte.
    ((zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}
