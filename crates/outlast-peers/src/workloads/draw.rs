//! Random numbers with the distributions of YCSB (Cooper et al., SoCC 2010).
//!
//! The zipfian numbers follow Gray et al., "Quickly generating billion-record synthetic databases",
//! SIGMOD 1994: number *i* has a probability in proportion to 1 / (*i* + 1)^skew.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// YCSB's skew.
pub const SKEW: f64 = 0.99;

/// Uniform random numbers.
#[derive(Debug, Clone)]
pub struct Draw(SplitMix64);

impl Draw {
    /// Creates a sequence that depends only on the seed.
    pub fn new(seed: u64) -> Draw {
        Draw(SplitMix64::seed_from_u64(seed))
    }

    /// Draws any 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Draws a number below `bound`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws a number from 0 to 1, without 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Zipfian numbers below a bound that may grow. Small numbers are the most frequent.
#[derive(Debug, Clone)]
pub struct Zipfian {
    skew: f64,
    bound: u64,
    /// The sum of 1 / *i*^skew for *i* from 1 to `bound`.
    zeta: f64,
    zeta_of_2: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    /// Creates the distribution of the numbers below `bound`. Takes time in proportion to it.
    ///
    /// # Panics
    /// If the bound is 0, or the skew is not between 0 and 1.
    pub fn new(bound: u64, skew: f64) -> Zipfian {
        let zeta = zeta(0, bound, 0.0, skew);
        Self::with_zeta(bound, skew, zeta)
    }

    fn with_zeta(bound: u64, skew: f64, zeta_of_bound: f64) -> Zipfian {
        assert!(bound > 0 && skew > 0.0 && skew < 1.0, "a zipfian distribution");
        let zeta_of_2 = zeta(0, 2, 0.0, skew);
        let alpha = 1.0 / (1.0 - skew);
        let zeta = zeta_of_bound;
        Zipfian { skew, bound, zeta, zeta_of_2, alpha, eta: 0.0 }.with_eta()
    }

    fn with_eta(mut self) -> Zipfian {
        let share = (2.0 / self.bound as f64).powf(1.0 - self.skew);
        self.eta = (1.0 - share) / (1.0 - self.zeta_of_2 / self.zeta);
        self
    }

    /// Extends the distribution to the numbers below a greater bound.
    pub fn grow(&mut self, bound: u64) {
        if bound > self.bound {
            self.zeta = zeta(self.bound, bound, self.zeta, self.skew);
            self.bound = bound;
            *self = self.clone().with_eta();
        }
    }

    /// Draws a number.
    #[inline]
    pub fn number(&self, draw: &mut Draw) -> u64 {
        let unit = draw.unit();
        let sum = unit * self.zeta;
        if sum < 1.0 {
            return 0;
        }
        if sum < self.zeta_of_2 {
            return 1.min(self.bound - 1);
        }
        let number = self.bound as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (number as u64).min(self.bound - 1)
    }
}

/// Adds to `sum`, which is that of the first `from` terms, the terms up to number `to`.
fn zeta(from: u64, to: u64, sum: f64, skew: f64) -> f64 {
    (from + 1..=to).fold(sum, |sum, i| sum + 1.0 / (i as f64).powf(skew))
}

/// The zeta of the numbers that the scrambled distribution draws before it scrambles them, for the
/// skew of 0.99. YCSB has it as a constant.
const ZETA_OF_SCRAMBLED: f64 = 26.469_028_201_783_02;
/// How many these numbers are.
const SCRAMBLED: u64 = 10_000_000_000;

/// Draws a number below a bound, scrambled zipfian with YCSB's skew: the frequent numbers are
/// spread over the whole range.
#[derive(Debug, Clone)]
pub struct ScrambledZipfian(Zipfian);

impl Default for ScrambledZipfian {
    fn default() -> Self {
        ScrambledZipfian(Zipfian::with_zeta(SCRAMBLED, SKEW, ZETA_OF_SCRAMBLED))
    }
}

impl ScrambledZipfian {
    /// Draws a number below `bound`.
    #[inline]
    pub fn number(&self, draw: &mut Draw, bound: u64) -> u64 {
        fnv(&self.0.number(draw).to_le_bytes()) % bound
    }
}

/// FNV-1a, and its absolute value as a signed number, as in YCSB.
fn fnv(bytes: &[u8]) -> u64 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    hash.cast_signed().unsigned_abs()
}

/// The trace `RandomNum` of group hashing (4.1): random integers from 0 to 2^26. Each is returned
/// once and is at least 1, because 0 is no key.
pub fn random_num(seed: u64) -> impl Iterator<Item = u64> {
    const BOUND: u64 = 1 << 26;
    let mut draw = Draw::new(seed);
    let mut seen = vec![false; BOUND as usize + 1];
    let mut left = BOUND;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        left -= 1;
        loop {
            let number = draw.below(BOUND) + 1;
            if !std::mem::replace(&mut seen[number as usize], true) {
                return Some(number);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn zipfian_numbers_have_their_probabilities() {
        const DRAWS: u64 = 400_000;
        let bound = 1000;
        let (zipfian, mut draw) = (Zipfian::new(bound, SKEW), Draw::new(1));
        let mut counts = vec![0u64; bound as usize];
        (0..DRAWS).for_each(|_| counts[zipfian.number(&mut draw) as usize] += 1);
        let sum: f64 = (1..=bound).map(|i| (i as f64).powf(-SKEW)).sum();
        for (i, &count) in counts.iter().enumerate().take(2) {
            let expected = DRAWS as f64 * ((i + 1) as f64).powf(-SKEW) / sum;
            assert!((count as f64 - expected).abs() < expected * 0.03, "{i}: {count} {expected}");
        }
        // Gray's formula is approximate from the third number on.
        for range in [2..10, 10..100, 100..1000] {
            let count: u64 = counts[range.clone()].iter().sum();
            let expected: f64 = range.map(|i| ((i + 1) as f64).powf(-SKEW)).sum();
            let share = count as f64 * sum / (DRAWS as f64 * expected);
            assert!((0.9..1.1).contains(&share), "{share}");
        }
    }

    #[test]
    fn a_grown_distribution_is_the_one_of_its_bound() {
        let (mut grown, whole) = (Zipfian::new(10, SKEW), Zipfian::new(5000, SKEW));
        grown.grow(5000);
        grown.grow(20);
        let (mut one, mut two) = (Draw::new(2), Draw::new(2));
        assert!((0..1000).all(|_| grown.number(&mut one) == whole.number(&mut two)));
        let small = Zipfian::new(1, SKEW);
        assert!((0..100).all(|_| small.number(&mut one) == 0));
    }

    #[test]
    fn scrambled_numbers_are_skewed_and_spread() {
        const DRAWS: usize = 100_000;
        let (scrambled, mut draw) = (ScrambledZipfian::default(), Draw::new(3));
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for _ in 0..DRAWS {
            *counts.entry(scrambled.number(&mut draw, 1_000_000)).or_default() += 1;
        }
        assert!(counts.keys().all(|&number| number < 1_000_000));
        // The most frequent is the scrambled 0, with a probability of 1 / 26.47.
        let (&most, &count) = counts.iter().max_by_key(|&(_, count)| count).unwrap();
        assert_eq!(most, fnv(&[0; 8]) % 1_000_000);
        assert!((3500..4100).contains(&count), "{count}");
        let in_lower_half = counts.keys().filter(|&&number| number < 500_000).count();
        assert!((in_lower_half * 2).abs_diff(counts.len()) < counts.len() / 20);
    }

    #[test]
    fn fnv_is_the_published_function() {
        // FNV-1a of "foobar" is 0x85944171f73967e8, a negative number.
        assert_eq!(fnv(b"foobar"), 0u64.wrapping_sub(0x8594_4171_f739_67e8));
        assert_eq!(fnv(b"b").wrapping_neg(), 0xaf63_df4c_8601_f1a5);
    }

    #[test]
    fn random_num_repeats_nothing() {
        let numbers: Vec<u64> = random_num(4).take(50_000).collect();
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len());
        assert!(numbers.iter().all(|n| (1..=1 << 26).contains(n)));
        assert_ne!(numbers[..10], random_num(5).take(10).collect::<Vec<_>>()[..]);
    }
}
