//! Sets of cache lines.

use super::sync::AtomicU64;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Bits of a word.
pub(super) const WORD: u64 = 64;

/// A set of lines: a bitmap, and a summary with a bit for each word of the bitmap, so that finding few
/// lines in a large pool is quick.
#[derive(Debug, Clone, Copy)]
pub(super) struct LineSet<'m> {
    /// A bit for each line.
    pub(super) bits: &'m [AtomicU64],
    /// A bit for each word of `bits`, which is set if that word may be nonzero.
    pub(super) summary: &'m [AtomicU64],
}

impl<'m> LineSet<'m> {
    /// Makes a set of a bitmap and its summary.
    #[inline]
    pub(super) fn new(bits: &'m [AtomicU64], summary: &'m [AtomicU64]) -> Self {
        LineSet { bits, summary }
    }
    /// Calls `each` with the number of each word that holds lines of a range, and with their bits.
    #[inline(always)]
    fn words(lines: Range<u64>, mut each: impl FnMut(usize, u64)) {
        let mut line = lines.start;
        while line < lines.end {
            let number = line / WORD;
            let end = lines.end.min((number + 1) * WORD);
            each(number as usize, (u64::MAX >> (WORD - (end - line))) << (line % WORD));
            line = end;
        }
    }

    /// Returns the word of the summary for word `number` of the bitmap, and the bit in it.
    fn summary(&self, number: usize) -> (&AtomicU64, u64) {
        (&self.summary[number / WORD as usize], 1 << (number as u64 % WORD))
    }

    /// Adds the lines of a range.
    #[inline]
    pub(super) fn add(&self, lines: Range<u64>) {
        Self::words(lines, |number, mask| {
            let word = &self.bits[number];
            let (summary, bit) = self.summary(number);
            let in_summary = || summary.load(Ordering::SeqCst) & bit != 0;
            // Usually, the lines have been noted already since the last cut.
            if word.load(Ordering::Relaxed) & mask == mask && in_summary() {
                return;
            }
            // The summary comes first: after a crash, every word that holds lines has its bit. (The
            // exception is a death in `remove` between clearing the bit and setting it again, while a
            // lookup adds a line. That lookup has not returned.)
            if !in_summary() {
                summary.fetch_or(bit, Ordering::SeqCst);
            }
            word.fetch_or(mask, Ordering::SeqCst);
            // `remove` may have seen an empty word and cleared the bit. Either it looks at the word
            // again after these lines were added, or it cleared the bit before this check.
            if !in_summary() {
                summary.fetch_or(bit, Ordering::SeqCst);
            }
        });
    }

    /// Removes the lines of a range.
    pub(super) fn remove(&self, lines: Range<u64>) {
        Self::words(lines, |number, mask| {
            let word = &self.bits[number];
            if word.fetch_and(!mask, Ordering::SeqCst) & !mask != 0 {
                return;
            }
            // The summary's bit is cleared last, because an extra bit does no harm.
            let (summary, bit) = self.summary(number);
            summary.fetch_and(!bit, Ordering::SeqCst);
            if word.load(Ordering::SeqCst) != 0 {
                summary.fetch_or(bit, Ordering::SeqCst);
            }
        });
    }

    /// Calls `visit` with each run of lines, in ascending order.
    pub(super) fn visit(&self, mut visit: impl FnMut(Range<u64>)) {
        let mut run = 0..0;
        for number in ones(self.summary) {
            let bits = self.bits[number as usize].load(Ordering::SeqCst);
            for bit in ones_of(bits) {
                let line = number * WORD + bit;
                if run.end != line {
                    if !run.is_empty() {
                        visit(run.clone());
                    }
                    run.start = line;
                }
                run.end = line + 1;
            }
        }
        if !run.is_empty() {
            visit(run);
        }
    }
}

/// Yields the numbers of the bits that are set.
fn ones(words: &[AtomicU64]) -> impl Iterator<Item = u64> {
    words.iter().enumerate().flat_map(|(number, word)| {
        ones_of(word.load(Ordering::SeqCst)).map(move |bit| number as u64 * WORD + bit)
    })
}

fn ones_of(mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| u64::from(bits.trailing_zeros()))?;
        bits &= bits - 1;
        Some(bit)
    })
}
