//! Word by word, for any processor.

use crate::pmem::{SharedWord, Word};
use std::sync::atomic::Ordering;

/// Returns the words among `mask` that hold `word`.
#[inline(always)]
pub(super) fn matching(line: &[Word; 8], mask: u32, word: u64) -> u32 {
    let bit = |i: usize| u32::from(line[i].0.load(Ordering::Relaxed) == word) << i;
    (0..8).filter(|i| mask >> i & 1 == 1).fold(0, |found, i| found | bit(i))
}

/// Returns how many words are not above `limit`. This has no branches, because the processor could not
/// predict them.
#[inline(always)]
pub(super) fn count_up_to(line: &[SharedWord; 8], limit: u64) -> usize {
    line.iter().map(|word| usize::from(word.0.load(Ordering::Relaxed) <= limit)).sum()
}
