//! A small random generator, so that a seed identifies a run.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Random(SplitMix64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(SplitMix64::seed_from_u64(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `n`, which must not be 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns a number from 0 up to, but not including, 1.
    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Mixes the bits of `number`: returns the first number of the generator with this seed.
pub(super) fn mix(number: u64) -> u64 {
    Random::new(number).next()
}

/// Returns a seed from the system.
pub(super) fn seed() -> u64 {
    let mut bytes = [0; 8];
    // If the system provides none, the time suffices, because nothing here is secret.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => mix(std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64)),
    }
}
