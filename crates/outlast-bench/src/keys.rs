//! The keys and values of all workloads, computed where they are needed.
//!
//! Key number *i* is a hash of *i* and the seed, and different *i* have different keys. So a range
//! of numbers stands for a set of distinct keys, without an array of keys, which would cost an
//! additional cache miss per operation. Values are computed from keys. They equal their key only
//! with a chance of one in 2^64, and contain a version that updates change.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Key numbers from this one on are never inserted.
pub const ABSENT: u64 = 1 << 40;

/// A bijective mix of 64 bits: distinct numbers stay distinct.
#[inline(always)]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// All keys of one seed.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    seed: u64,
}

impl Keys {
    /// Returns the keys of a seed.
    pub fn new(seed: u64) -> Keys {
        Keys { seed: mix(seed) }
    }

    /// Returns key number `number`.
    #[inline(always)]
    pub fn key(self, number: u64) -> u64 {
        mix(number.wrapping_add(self.seed))
    }
}

/// Returns the value of a key in version `version`.
#[inline(always)]
pub fn value(key: u64, version: u8) -> u64 {
    (!key).rotate_left(23) & !0xff | u64::from(version)
}

/// Whether a value belongs to a key, in any version.
#[inline(always)]
pub fn belongs(key: u64, value: u64) -> bool {
    (value ^ (!key).rotate_left(23)) <= 0xff
}

/// Returns the least of the `count` greatest keys: the last key at which a scan of `count` keys can
/// begin without coming to the end. Returns 0 if there are fewer than `count` keys.
pub fn last_whole(keys: impl Iterator<Item = u64>, count: usize) -> u64 {
    // The greatest keys so far, in ascending order. While a key is added, there is one too many.
    let mut greatest: Vec<u64> = Vec::new();
    for key in keys {
        if greatest.len() < count || key > greatest[0] {
            let at = greatest.partition_point(|&other| other < key);
            greatest.insert(at, key);
            if greatest.len() > count {
                greatest.remove(0);
            }
        }
    }
    if greatest.len() == count { greatest[0] } else { 0 }
}

/// Uniform random draws, with replacement.
#[derive(Debug, Clone)]
pub struct Draw(SplitMix64);

impl Draw {
    /// Creates a sequence that depends only on the seed.
    pub fn new(seed: u64) -> Draw {
        Draw(SplitMix64::seed_from_u64(mix(seed ^ 0x6a09_e667_f3bc_c908)))
    }

    /// Draws any 64 bits.
    #[inline(always)]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Draws a number below `bound`.
    #[inline(always)]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }
}

/// Visits every number below a bound once, in leaps of about 0.618 of the bound, so not in the
/// order of insertion.
#[derive(Debug, Clone)]
pub struct Walk {
    at: u64,
    leap: u64,
    bound: u64,
}

impl Walk {
    /// Creates a walk over the numbers below `bound`.
    pub fn new(bound: u64) -> Walk {
        let mut leap = ((bound as f64 * 0.618_033_988_75) as u64).max(1);
        while gcd(leap, bound) != 1 {
            leap += 1;
        }
        Walk { at: 0, leap, bound }
    }

    /// Returns the next number. After `bound` numbers, the walk starts again.
    #[inline(always)]
    pub fn step(&mut self) -> u64 {
        let at = self.at;
        let next = at + self.leap;
        self.at = if next >= self.bound { next - self.bound } else { next };
        at
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_distinct_and_depend_on_the_seed() {
        let keys = Keys::new(1);
        let all: HashSet<u64> =
            (0..10_000).chain(ABSENT..ABSENT + 10_000).map(|n| keys.key(n)).collect();
        assert_eq!(all.len(), 20_000);
        assert!(!all.contains(&Keys::new(2).key(0)));
    }

    #[test]
    fn values_belong_to_their_key_alone() {
        let keys = Keys::new(7);
        for number in 0..1000 {
            let key = keys.key(number);
            let all_versions = (0..=255).all(|version| belongs(key, value(key, version)));
            assert!(all_versions);
            assert_ne!(value(key, 3), key);
            assert!(!belongs(keys.key(number + 1), value(key, 0)));
            assert!(!belongs(key, value(key, 0) ^ 0x100));
        }
    }

    #[test]
    fn a_walk_meets_every_number_once() {
        for bound in [1, 2, 3, 10, 999, 1000, 4096] {
            let mut walk = Walk::new(bound);
            let seen: HashSet<u64> = (0..bound).map(|_| walk.step()).collect();
            assert_eq!(seen.len() as u64, bound);
            assert!(seen.iter().all(|&n| n < bound));
        }
    }

    #[test]
    fn draws_cover_their_range() {
        let mut draw = Draw::new(5);
        let seen: HashSet<u64> = (0..1000).map(|_| draw.below(10)).collect();
        assert_eq!(seen, (0..10).collect());
    }
}
