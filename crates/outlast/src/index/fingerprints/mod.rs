//! Fingerprints: sixteen one-byte hashes in two words, or eight two-byte hashes, all compared by
//! one operation.
//!
//! They are loaded from memory as two atomic words. Only then are these combined into a vector.

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "sse2.rs")]
#[cfg_attr(not(all(target_arch = "x86_64", not(miri))), path = "generic.rs")]
mod arch;
#[cfg(test)]
mod generic;

/// Compares the sixteen fingerprints in `words` with `fingerprint`. Bit i of the result is set if
/// byte i is equal to it.
#[inline(always)]
pub(crate) fn matching(words: [u64; 2], fingerprint: u8) -> u32 {
    arch::matching(words, fingerprint)
}

/// Like [`matching`], for eight fingerprints of two bytes: bit i stands for pair i.
#[inline(always)]
pub(crate) fn matching_wide(words: [u64; 2], fingerprint: u16) -> u32 {
    arch::matching_wide(words, fingerprint)
}

/// Replaces the byte of `words` at `index`. Returns which word changes, and its new value.
#[inline]
pub(crate) fn with(words: [u64; 2], index: usize, fingerprint: u8) -> (usize, u64) {
    let (word, shift) = (index / 8, index % 8 * 8);
    (word, words[word] & !(0xff << shift) | u64::from(fingerprint) << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_comparing_agree_with_a_walk() {
        let mut state = 1u64;
        for round in 0..20_000 {
            let mut next = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // Few distinct bytes, so that there are matches, with extreme values among them.
                let wide = state >> 8;
                if round % 2 == 0 { wide & 0x0101_8180_00ff_0001 } else { wide }
            };
            let words = [next(), next()];
            let fingerprint = next() as u8;
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let expected =
                (0..16).filter(|&i| bytes[i] == fingerprint).map(|i| 1 << i).sum::<u32>();
            assert_eq!(matching(words, fingerprint), expected, "{words:x?} {fingerprint:x}");
            assert_eq!(
                generic::matching(words, fingerprint),
                expected,
                "{words:x?} {fingerprint:x}"
            );
            let wide = u16::from_le_bytes([bytes[0], bytes[1]]);
            let pairs = bytes.as_chunks().0.iter().map(|&pair| u16::from_le_bytes(pair));
            let expected =
                pairs.enumerate().fold(0, |bits, (i, w)| bits | u32::from(w == wide) << i);
            assert_eq!(matching_wide(words, wide), expected, "{words:x?} {wide:x}");
            assert_eq!(generic::matching_wide(words, wide), expected, "{words:x?} {wide:x}");
        }
    }

    #[test]
    fn one_fingerprint_is_replaced() {
        assert_eq!(with([u64::MAX, 0], 0, 0), (0, u64::MAX - 0xff));
        assert_eq!(with([0, 0], 15, 0xab), (1, 0xab << 56));
    }
}
