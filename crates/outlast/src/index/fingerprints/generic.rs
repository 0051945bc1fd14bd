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

const LOW_WIDE: u64 = 0x0001_0001_0001_0001;
const FIFTEEN: u64 = 0x7fff_7fff_7fff_7fff;

#[inline(always)]
pub(super) fn matching_wide(words: [u64; 2], fingerprint: u16) -> u32 {
    let zero = |word: u64| {
        let x = word ^ (LOW_WIDE * u64::from(fingerprint));
        let zero = !((x & FIFTEEN).wrapping_add(FIFTEEN) | x | FIFTEEN);
        // Collects the top bits of the four pairs of bytes.
        ((zero >> 15).wrapping_mul(1 << 48 | 1 << 33 | 1 << 18 | 1 << 3) >> 48) as u32 & 0xf
    };
    zero(words[0]) | zero(words[1]) << 4
}
