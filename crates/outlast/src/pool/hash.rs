//! The hash functions of pools.
//!
//! A pool records the function's number and a random seed. The output of each function is part of
//! the format and never changes.

use crate::error::{Error, Result};
use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

/// The hash functions of this build. The numbers are written to media.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum HashFunction {
    /// rapidhash version 3 over the key's bytes (for a word key, its 8 little-endian bytes). The
    /// seed and secrets come from the pool's seed.
    RapidV3 = 1,
    /// For tests of adversarial keys. Like [`HashFunction::RapidV3`], except that all keys whose
    /// first 8 bytes, little-endian, are at least 2^32 have the same hash.
    Degenerate = 0x7e57,
}

/// A hash function with its seed.
#[derive(Debug, Clone)]
pub struct Hasher {
    secrets: RapidSecrets,
    /// Keys whose first 8 bytes form a number greater than this collide.
    distinct_to: u64,
}

/// The hash of the colliding keys of [`HashFunction::Degenerate`].
const COLLISION: u64 = 0xa5a5_5a5a_1234_5678;

impl Hasher {
    /// Returns the function with this number on media.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this build does not have the function.
    pub fn from_media(number: u32, seed: u64) -> Result<Self> {
        let distinct_to = match number {
            1 => u64::MAX,
            0x7e57 => u64::from(u32::MAX),
            _ => {
                return Err(Error::Invalid {
                    what: "hash function",
                    why: format!("number {number} is unknown to this build"),
                });
            }
        };
        Ok(Hasher { secrets: RapidSecrets::seed(seed), distinct_to })
    }

    /// Hashes a word key.
    #[inline(always)]
    pub fn word(&self, key: u64) -> u64 {
        if key > self.distinct_to {
            return COLLISION;
        }
        rapidhash_v3_inline::<true, false, false>(&key.to_le_bytes(), &self.secrets)
    }

    /// Hashes a byte-string key.
    #[inline]
    pub fn bytes(&self, key: &[u8]) -> u64 {
        if let Some(head) = key.first_chunk::<8>()
            && u64::from_le_bytes(*head) > self.distinct_to
        {
            return COLLISION;
        }
        rapidhash_v3_inline::<true, false, false>(key, &self.secrets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output is part of the format: these values never change.
    #[test]
    fn hash_output_is_pinned() {
        let h = Hasher::from_media(1, 0x1234_5678_9abc_def0).unwrap();
        let got = [
            h.word(0),
            h.word(1),
            h.word(u64::MAX),
            h.bytes(b""),
            h.bytes(b"a"),
            h.bytes(b"seventeen bytes!!"),
            h.bytes(&[7; 200]),
        ];
        assert_eq!(got, PINNED, "{got:#x?}");
        assert_eq!(h.word(7), h.bytes(&7u64.to_le_bytes()));
    }

    const PINNED: [u64; 7] = [
        0xcf49_b2a1_b3e2_2e94,
        0x6544_88db_476c_44d5,
        0x4b87_9fa3_8f63_4802,
        0x1e1e_31a6_0e56_c1d7,
        0x2030_6882_d9f3_8be1,
        0xa0d3_ea2e_3dfc_4885,
        0x4635_0c9c_1eaa_869a,
    ];

    #[test]
    fn unknown_function_is_a_typed_error() {
        assert!(matches!(Hasher::from_media(9, 0), Err(Error::Invalid { .. })));
    }
}
