//! Hash functions. They are bijective, so distinct keys never have the same hash.

/// Returns the first hash of a key.
#[inline]
pub fn hash(key: u64) -> u64 {
    mix(key ^ 0x6a09_e667_f3bc_c908)
}

/// Returns a hash of a key that is independent of the first.
#[inline]
pub fn second_hash(key: u64) -> u64 {
    mix(key.rotate_left(32) ^ 0xbb67_ae85_84ca_a73b)
}

#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
