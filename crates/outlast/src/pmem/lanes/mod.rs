//! Compares of the words of a line with one word.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx512;
mod plain;

use super::{SharedWord, Word};

/// How this processor compares the words of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lanes {
    /// Word by word.
    Plain,
    /// Half a line at a time.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx2,
    /// A line at a time.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512,
}

impl Lanes {
    /// Every way that this processor has, best first.
    fn available() -> impl Iterator<Item = Lanes> {
        [
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            std::arch::is_x86_feature_detected!("avx512f").then_some(Lanes::Avx512),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            std::arch::is_x86_feature_detected!("avx2").then_some(Lanes::Avx2),
            Some(Lanes::Plain),
        ]
        .into_iter()
        .flatten()
    }

    /// Returns the best way that this processor has.
    pub(super) fn detect() -> Lanes {
        Lanes::available().next().unwrap_or(Lanes::Plain)
    }

    /// See [`Seam::matching`](super::Seam::matching).
    #[inline(always)]
    pub(super) fn matching(self, line: &[Word; 8], mask: u32, word: u64) -> u32 {
        match self {
            Lanes::Plain => plain::matching(line, mask, word),
            // SAFETY: `detect` has found that the processor has the instructions.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Lanes::Avx2 => unsafe { avx2::matching(line, word) & mask },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Lanes::Avx512 => unsafe { avx512::matching(line, word) & mask },
        }
    }

    /// See [`Seam::count_up_to`](super::Seam::count_up_to).
    #[inline(always)]
    pub(super) fn count_up_to(self, line: &[SharedWord; 8], limit: u64) -> usize {
        match self {
            Lanes::Plain => plain::count_up_to(line, limit),
            // SAFETY: as above. Every processor with AVX2 has POPCNT.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Lanes::Avx2 => unsafe { avx2::count_up_to(line, limit) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Lanes::Avx512 => unsafe { avx512::count_up_to(line, limit) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[repr(align(64))]
    struct Line([Word; 8]);

    #[test]
    fn all_ways_find_the_same_words() {
        let words = [0, 1, u64::MAX, 1 << 63, 1 << 31, 0xffff_ffff, 0x0123_4567_89ab_cdef];
        for seed in 0..2000usize {
            let pick = |i: usize| words[(seed * 31 + i * (seed / 7 + 3)) % words.len()];
            let line = Line(std::array::from_fn(|i| Word(AtomicU64::new(pick(i)))));
            for word in words {
                let expected = (0..8).filter(|&i| pick(i) == word).fold(0, |m, i| m | 1 << i);
                let up_to = (0..8).filter(|&i| pick(i) <= word).count();
                let shared: [SharedWord; 8] = std::array::from_fn(|i| SharedWord::new(pick(i)));
                for lanes in Lanes::available() {
                    assert_eq!(lanes.count_up_to(&shared, word), up_to, "{lanes:?} {seed}");
                    for mask in [0xff, 0x55, 0xaa, 0] {
                        let found = lanes.matching(&line.0, mask, word);
                        assert_eq!(found, expected & mask, "{lanes:?} {seed}");
                    }
                }
            }
        }
    }
}
