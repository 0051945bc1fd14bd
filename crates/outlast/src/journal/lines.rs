//! Which lines of the pool have changed.
//!
//! A set of lines is a bitmap with a bitmap of its words above it, so that a set with few lines in a
//! large pool is read quickly. It lies in the working file, so that the set survives the death of
//! the process.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a word.
const WORD: u64 = 64;

/// A set of lines, by their numbers.
#[derive(Debug, Clone, Copy)]
pub struct LineSet<'m> {
    /// A bit for each line.
    bits: &'m [AtomicU64],
    /// A bit for each word of `bits` that may not be 0.
    summary: &'m [AtomicU64],
}

impl<'m> LineSet<'m> {
    /// Returns how many words a set needs for `lines` lines.
    pub fn words(lines: u64) -> usize {
        let bits = lines.div_ceil(WORD);
        (bits + bits.div_ceil(WORD)) as usize
    }

    /// Makes a set of words that hold one, or 0. There is one word for each 64 lines and one for
    /// each 4,096.
    ///
    /// # Panics
    /// If there are not [`words`](Self::words) for so many lines.
    pub fn new(words: &'m [AtomicU64], lines: u64) -> Self {
        let (bits, summary) = words.split_at(lines.div_ceil(WORD) as usize);
        assert_eq!(words.len(), Self::words(lines), "words for {lines} lines");
        LineSet { bits, summary }
    }

    /// Adds the lines of a range. Threads may add lines at the same time.
    #[inline]
    pub fn add(&self, lines: Range<u64>) {
        for line in lines {
            let (number, bit) = ((line / WORD) as usize, 1 << (line % WORD));
            let word = self.bits[number].load(Ordering::Relaxed);
            // Most lines that change have changed since the last cut.
            if word & bit != 0 {
                continue;
            }
            if word == 0 {
                let (number, bit) = (number / WORD as usize, 1 << (number as u64 % WORD));
                self.summary[number].fetch_or(bit, Ordering::Relaxed);
            }
            // Release: whoever sees a word that is not 0, after a crash too, finds its bit in the
            // summary.
            self.bits[number].fetch_or(bit, Ordering::Release);
        }
    }

    /// Calls `visit` with each run of lines, in ascending order. No thread adds lines meanwhile.
    pub fn visit(&self, mut visit: impl FnMut(Range<u64>)) {
        let mut run = 0..0;
        for number in ones(self.summary) {
            let bits = self.bits[number as usize].load(Ordering::Relaxed);
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

    /// Removes all lines. No thread adds lines meanwhile.
    pub fn clear(&self) {
        for number in ones(self.summary) {
            self.bits[number as usize].store(0, Ordering::Relaxed);
        }
        // The summary goes last: after a crash in between, a word that is not 0 still has its bit
        // there.
        for number in 0..self.summary.len() {
            if self.summary[number].load(Ordering::Relaxed) != 0 {
                self.summary[number].store(0, Ordering::Release);
            }
        }
    }
}

/// Yields the numbers of the bits that are set.
fn ones(words: &[AtomicU64]) -> impl Iterator<Item = u64> {
    words.iter().enumerate().flat_map(|(number, word)| {
        ones_of(word.load(Ordering::Relaxed)).map(move |bit| number as u64 * WORD + bit)
    })
}

fn ones_of(mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| u64::from(bits.trailing_zeros()))?;
        bits &= bits - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn words(lines: u64) -> Vec<AtomicU64> {
        (0..LineSet::words(lines)).map(|_| AtomicU64::new(0)).collect()
    }

    fn runs(set: LineSet<'_>) -> Vec<Range<u64>> {
        let mut runs = Vec::new();
        set.visit(|run| runs.push(run));
        runs
    }

    #[test]
    fn a_set_returns_what_was_added_as_runs() {
        let words = words(10_000);
        let set = LineSet::new(&words, 10_000);
        assert_eq!(runs(set), []);
        for range in [9_999..10_000, 60..70, 64..65, 5_000..5_000, 70..71, 4_095..4_097] {
            set.add(range);
        }
        assert_eq!(runs(set), [60..71, 4_095..4_097, 9_999..10_000]);
        set.clear();
        assert_eq!(runs(set), []);
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn a_set_agrees_with_a_tree() {
        let words = words(20_000);
        let set = LineSet::new(&words, 20_000);
        let (mut state, mut tree) = (1_u64, BTreeSet::new());
        for round in 0..2_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (state >> 33) % 20_000;
            let end = (start + (state >> 20) % 100).min(20_000);
            set.add(start..end);
            tree.extend(start..end);
            if round % 100 == 99 {
                let found: Vec<_> = runs(set).into_iter().flatten().collect();
                assert_eq!(found, tree.iter().copied().collect::<Vec<_>>());
                set.clear();
                tree.clear();
            }
        }
    }

    /// A process that dies between the two stores of `add` hides no line that is added after that.
    #[test]
    fn a_line_that_was_being_added_hides_no_other() {
        let words = words(10_000);
        let set = LineSet::new(&words, 10_000);
        // All that the first of the two stores leaves.
        set.summary[0].fetch_or(1 << 7, Ordering::Relaxed);
        assert_eq!(runs(set), []);
        set.add(7 * 64 + 3..7 * 64 + 4);
        assert_eq!(runs(set).first(), Some(&(451..452)));
        set.clear();
        assert_eq!(runs(set), []);
    }

    #[test]
    fn threads_add_at_the_same_time() {
        let words = words(64 * 64 * 4);
        let set = LineSet::new(&words, 64 * 64 * 4);
        std::thread::scope(|s| {
            for thread in 0..4 {
                s.spawn(move || {
                    (0..64 * 64).for_each(|i| set.add(i * 4 + thread..i * 4 + thread + 1))
                });
            }
        });
        let all = 0..64 * 64 * 4;
        assert!(runs(set).into_iter().eq([all]));
    }
}
