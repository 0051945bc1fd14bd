//! A small random generator, so that a seed identifies a run.

/// SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `n`, which must not be 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns a number from 0 to 1.
    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Mixes the bits of `z`.
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a seed from the system.
pub(super) fn seed() -> u64 {
    let mut bytes = [0; 8];
    // If the system gives none, the time will do: nothing here is secret.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => mix(std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64)),
    }
}
