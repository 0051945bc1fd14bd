//! The keys of key numbers, and the sizes of values.

use super::draw::Draw;

/// How keys lie in the key space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// All over the key space. Distinct numbers have distinct keys.
    Uniform,
    /// In the lowest hundredth of the key space, as in PhaST's Figure 15a. Two of a hundred million
    /// keys are equal with a probability of about 3%.
    Hundredth,
    /// In runs of this many consecutive keys, each run anywhere. Distinct numbers have distinct
    /// keys, except for runs that overlap: two of a million runs do with a probability below 1%
    /// if they have at most a thousand keys.
    Clustered {
        /// Keys of a run.
        run: u64,
    },
}

impl Spread {
    /// Returns the key of a number, which is not 0 and not `u64::MAX` in practice: no number below
    /// 2^60 has such a key.
    #[inline]
    pub fn key(self, number: u64) -> u64 {
        match self {
            Spread::Uniform => mix(number + 1),
            Spread::Hundredth => {
                let space = u128::from(u64::MAX / 100);
                ((u128::from(mix(number + 1)) * space) >> 64) as u64 + 1
            }
            Spread::Clustered { run } => {
                let first = mix(number / run + 1).min(u64::MAX - run - 1).max(1);
                first + number % run
            }
        }
    }
}

/// A bijective mix of 64 bits, which maps 0 to 0.
#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Draws the size of a value in bytes: from 8 to 256, as in PhaST's Figure 15c.
pub fn value_bytes(draw: &mut Draw) -> usize {
    8 + draw.below(249) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_distinct_and_lie_where_they_should() {
        for spread in [Spread::Uniform, Spread::Hundredth, Spread::Clustered { run: 100 }] {
            let keys: HashSet<u64> = (0..100_000).map(|number| spread.key(number)).collect();
            assert_eq!(keys.len(), 100_000, "{spread:?}");
            assert!(!keys.contains(&0) && !keys.contains(&u64::MAX));
            let low = keys.iter().filter(|&&key| key <= u64::MAX / 100).count();
            match spread {
                Spread::Uniform => assert!((800..1200).contains(&low), "{low}"),
                Spread::Hundredth => {
                    assert_eq!(low, 100_000);
                    let lower = keys.iter().filter(|&&key| key < u64::MAX / 200).count();
                    assert!((49_000..51_000).contains(&lower), "{lower}");
                }
                Spread::Clustered { .. } => {
                    let followed = keys.iter().filter(|&&key| keys.contains(&(key + 1))).count();
                    assert_eq!(followed, 99_000);
                }
            }
        }
    }

    #[test]
    fn sizes_reach_both_ends() {
        let mut draw = Draw::new(1);
        let sizes: HashSet<usize> = (0..10_000).map(|_| value_bytes(&mut draw)).collect();
        assert_eq!(sizes, (8..=256).collect());
    }
}
