//! Word by word, for any processor.

use crate::pmem::Word;
use std::sync::atomic::Ordering;

/// Returns the words among `mask` that hold `word`.
#[inline(always)]
pub(super) fn matching(line: &[Word; 8], mask: u32, word: u64) -> u32 {
    let bit = |i: usize| u32::from(line[i].0.load(Ordering::Relaxed) == word) << i;
    (0..8).filter(|i| mask >> i & 1 == 1).fold(0, |found, i| found | bit(i))
}
