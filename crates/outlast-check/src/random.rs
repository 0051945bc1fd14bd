//! A small random number generator, so that a seed determines a run.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// SplitMix64. Its stream never changes, so a seed of an old report still names the same run.
#[derive(Debug, Clone)]
pub struct Random(SplitMix64);

impl Random {
    /// Returns the generator with this seed.
    pub fn new(seed: u64) -> Self {
        Random(SplitMix64::seed_from_u64(seed))
    }

    /// Returns the next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns the next number below `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Shuffles a slice.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut random = Random::new(1);
        assert_eq!(
            [(); 3].map(|()| random.next()),
            [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67, 0xf893_a2ee_fb32_555e]
        );
    }
}
