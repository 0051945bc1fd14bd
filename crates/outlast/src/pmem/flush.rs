//! The seam of the public maps: plain loads and stores, and the flushes that the medium needs.

use super::lanes::Lanes;
use super::{LINE, Notes, Point, Seam, SharedWord, Word, arch};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};
use std::thread;
use std::time::{Duration, Instant};

/// An instruction that flushes a cache line to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlushInstruction {
    /// Writes the line to memory and may keep it in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// Writes the line to memory and drops it from the cache, so the next access misses.
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    /// Like [`ClflushOpt`](Self::ClflushOpt), but flushes of different lines do not overlap.
    #[cfg(target_arch = "x86_64")]
    Clflush,
    /// Cleans the line to the point of persistence.
    #[cfg(target_arch = "aarch64")]
    DcCvap,
    /// Cleans the line to the point of coherency, for processors without `dc cvap`.
    #[cfg(target_arch = "aarch64")]
    DcCvac,
}

impl FlushInstruction {
    /// The best instruction of this architecture. On x86-64 it is the one that keeps lines in the
    /// cache; the others cause more misses.
    pub const BEST: Self = arch::INSTRUCTIONS[0];

    /// Returns the best instruction that this processor has.
    pub fn detect() -> Self {
        let found = arch::INSTRUCTIONS.iter().copied().find(|i| i.is_available());
        found.expect("the last of the list is always there")
    }

    /// Returns whether this processor has the instruction.
    pub fn is_available(self) -> bool {
        arch::is_available(self)
    }
}

impl fmt::Display for FlushInstruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            #[cfg(target_arch = "x86_64")]
            Self::Clwb => "clwb",
            #[cfg(target_arch = "x86_64")]
            Self::ClflushOpt => "clflushopt",
            #[cfg(target_arch = "x86_64")]
            Self::Clflush => "clflush",
            #[cfg(target_arch = "aarch64")]
            Self::DcCvap => "dc cvap",
            #[cfg(target_arch = "aarch64")]
            Self::DcCvac => "dc cvac",
        })
    }
}

/// What a medium needs, beyond the execution of a store, to make that store durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlushMode {
    /// Nothing: the memory outlives the process, and nothing beyond that is claimed.
    None,
    /// A fence: the caches survive a power loss too.
    FenceOnly,
    /// A flush of every line, and a fence.
    Lines(FlushInstruction),
    /// A note of every flushed line, which tells the journal what to write.
    Journal,
}

impl fmt::Display for FlushMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no flush"),
            Self::FenceOnly => f.write_str("fence only"),
            Self::Lines(instruction) => instruction.fmt(f),
            Self::Journal => f.write_str("notes for the journal"),
        }
    }
}

/// Delays added to flushes and fences, to emulate a slower medium.
///
/// Each delay is a busy wait on the system's clock, so it is a few tens of nanoseconds longer than
/// specified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latency {
    /// Added per line flushed.
    pub per_line: Duration,
    /// Added per fence.
    pub per_fence: Duration,
}

/// The seam that users get. It compiles to the bare instructions.
#[derive(Debug, Clone)]
pub struct Real {
    mode: FlushMode,
    /// Whether `latency` is not zero.
    slow: bool,
    latency: Latency,
    /// How many turns of waiting one sleep counts as.
    turns_of_sleep: u32,
    /// Where flushes note their lines; only with [`FlushMode::Journal`].
    notes: Option<Arc<Notes>>,
    lanes: Lanes,
}

impl Real {
    /// Creates the seam for a medium that needs `mode`.
    ///
    /// # Panics
    /// Those of [`with_latency`](Self::with_latency).
    pub fn new(mode: FlushMode) -> Self {
        Self::with_latency(mode, Latency::default())
    }

    /// Like [`Real::new`], but with delays added to flushes and fences. Modes without flushes or
    /// fences get no delays.
    ///
    /// # Panics
    /// If this processor does not have the mode's instruction, or the mode is
    /// [`FlushMode::Journal`], which takes [`journaled`](Self::journaled).
    pub fn with_latency(mode: FlushMode, latency: Latency) -> Self {
        if let FlushMode::Lines(instruction) = mode {
            assert!(instruction.is_available(), "this processor has no {instruction}");
        }
        assert_ne!(mode, FlushMode::Journal, "it needs notes");
        let slow = latency != Latency::default();
        Real { mode, slow, latency, turns_of_sleep: 1, notes: None, lanes: Lanes::detect() }
    }

    /// Creates the seam of a journaled pool, whose flushes add their lines to `notes`.
    pub fn journaled(notes: Arc<Notes>) -> Self {
        let notes = Some(notes);
        Real { mode: FlushMode::Journal, notes, ..Self::new(FlushMode::None) }
    }

    /// Makes a wait for another thread give up after a moment instead of minutes. For tests of
    /// files in which a lock is never released.
    #[must_use]
    pub fn impatient(self) -> Self {
        Real { turns_of_sleep: 1 << 14, ..self }
    }

    /// What makes a store durable here.
    pub fn mode(&self) -> FlushMode {
        self.mode
    }

    /// The delays added to flushes and fences.
    pub fn latency(&self) -> Latency {
        self.latency
    }
}

impl Real {
    /// Flushes or notes the lines of the words, as the mode requires.
    #[inline(never)]
    fn flush_or_note(&self, words: &[Word]) {
        match self.mode {
            FlushMode::Lines(instruction) => self.flush_lines(words, instruction),
            FlushMode::Journal => self.note(words),
            FlushMode::None | FlushMode::FenceOnly => {}
        }
    }

    #[inline(always)]
    fn note(&self, words: &[Word]) {
        if let Some(notes) = &self.notes {
            notes.note(words.as_ptr().addr(), size_of_val(words));
        }
    }

    #[inline(always)]
    fn flush_lines(&self, words: &[Word], instruction: FlushInstruction) {
        let lines = lines(words.as_ptr().expose_provenance(), size_of_val(words));
        // SAFETY: each line holds a byte of `words`, and a line lies within one page, so it is
        // mapped. The constructor has checked that the processor has the instruction.
        unsafe { arch::flush(instruction, lines.clone()) }
        if self.slow {
            delay(self.latency.per_line, lines.len());
        }
    }
}

impl Seam for Real {
    const COPIES_WIDE: bool = true;

    fn attach(&self, base: *const u8) {
        if let Some(notes) = &self.notes {
            notes.attach(base);
        }
    }

    #[inline]
    fn load(&self, word: &Word, order: Ordering) -> u64 {
        word.0.load(order)
    }

    #[inline]
    fn store(&self, word: &Word, value: u64, order: Ordering, _at: &'static Point) {
        word.0.store(value, order);
    }

    #[inline]
    fn compare_exchange(
        &self,
        word: &Word,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
        _at: &'static Point,
    ) -> Result<u64, u64> {
        word.0.compare_exchange(current, new, success, failure)
    }

    #[inline]
    fn store_nontemporal(&self, word: &Word, value: u64, _at: &'static Point) {
        match self.mode {
            FlushMode::None => word.0.store(value, Ordering::Relaxed),
            FlushMode::Journal => {
                word.0.store(value, Ordering::Relaxed);
                self.note(std::slice::from_ref(word));
            }
            FlushMode::FenceOnly => arch::store_nontemporal(word, value, None),
            FlushMode::Lines(instruction) => {
                arch::store_nontemporal(word, value, Some(instruction));
            }
        }
    }

    fn store_lines(&self, words: &[Word], values: &[u64], at: &'static Point) {
        if let FlushMode::Lines(instruction) = self.mode {
            arch::stream(words, values, instruction);
            if self.slow {
                delay(self.latency.per_line, words.len().div_ceil(LINE as usize / 8));
            }
            return;
        }
        for (word, value) in words.iter().zip(values) {
            word.0.store(*value, Ordering::Relaxed);
        }
        self.flush(words, at);
    }

    #[inline(always)]
    fn flush(&self, words: &[Word], _at: &'static Point) {
        if matches!(self.mode, FlushMode::Lines(_) | FlushMode::Journal) {
            self.flush_or_note(words);
        }
    }

    #[inline(always)]
    fn fence(&self, _at: &'static Point) {
        if matches!(self.mode, FlushMode::None | FlushMode::Journal) {
            // This fence orders the stores for the process that opens the pool after this one was
            // killed. That process sees every store executed before the kill, so only the
            // compiler's order has to be kept.
            compiler_fence(Ordering::SeqCst);
            return;
        }
        arch::fence();
        if self.slow {
            delay(self.latency.per_fence, 1);
        }
    }

    #[inline(always)]
    fn matching(&self, line: &[Word; 8], mask: u32, word: u64) -> u32 {
        self.lanes.matching(line, mask, word)
    }

    #[inline(always)]
    fn count_up_to(&self, line: &[SharedWord; 8], limit: u64) -> usize {
        self.lanes.count_up_to(line, limit)
    }

    #[inline(always)]
    fn prefetch<T>(&self, line: &T) {
        arch::prefetch(std::ptr::from_ref(line).cast());
    }

    #[inline]
    fn wait(&self, turn: &mut u32) {
        match *turn {
            // The other thread is most likely running and nearly done.
            0..64 => std::hint::spin_loop(),
            64..1000 => thread::yield_now(),
            // The other thread takes longer: it lost its processor, or it is splitting a segment.
            _ => {
                thread::sleep(Duration::from_micros(50));
                *turn = turn.saturating_add(self.turns_of_sleep);
                return;
            }
        }
        *turn += 1;
    }
}

/// Returns the addresses of the lines that hold any of the `len_bytes` bytes at `start`.
#[inline]
fn lines(start: usize, len_bytes: usize) -> impl ExactSizeIterator<Item = usize> + Clone {
    const LINE_BYTES: usize = LINE as usize;
    let first = start & !(LINE_BYTES - 1);
    // Without this case, an empty slice in the middle of a line would count as one line.
    let count = if len_bytes == 0 { 0 } else { (start + len_bytes - first).div_ceil(LINE_BYTES) };
    (0..count).map(move |i| first + i * LINE_BYTES)
}

#[cold]
fn delay(each: Duration, times: usize) {
    let time = each.saturating_mul(times as u32);
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    static AT: Point = Point::new("test", "test");

    fn line_numbers(start: usize, len_bytes: usize) -> Vec<usize> {
        lines(start, len_bytes).map(|line| line / 64).collect()
    }

    #[test]
    fn a_flush_covers_every_line_that_holds_one_of_the_words() {
        assert_eq!(line_numbers(64, 8), [1]);
        assert_eq!(line_numbers(120, 8), [1], "the last word of a line");
        assert_eq!(line_numbers(120, 16), [1, 2], "two words over an edge");
        assert_eq!(line_numbers(64, 64), [1], "one whole line");
        assert_eq!(line_numbers(64, 72), [1, 2]);
        assert_eq!(line_numbers(72, 64), [1, 2], "one line's worth, not at its start");
        assert_eq!(line_numbers(72, 56), [1], "up to the edge and no further");
        assert_eq!(line_numbers(0, 256), [0, 1, 2, 3]);
        assert_eq!(line_numbers(8, 256), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_flush_of_no_words_covers_no_line() {
        assert_eq!(lines(8, 0).len(), 0);
        assert_eq!(lines(64, 0).len(), 0);
    }

    #[test]
    fn lines_agree_with_a_walk_over_the_bytes() {
        for start in 0..130 {
            for len_bytes in 0..200 {
                let mut walked: Vec<usize> = (start..start + len_bytes).map(|b| b / 64).collect();
                walked.dedup();
                assert_eq!(line_numbers(start, len_bytes), walked, "{start}, {len_bytes}");
            }
        }
    }

    #[test]
    fn every_mode_reads_back_what_it_wrote() {
        let lines = arch::INSTRUCTIONS.iter().copied().filter(|i| i.is_available());
        let modes = [FlushMode::None, FlushMode::FenceOnly]
            .into_iter()
            .chain(lines.map(FlushMode::Lines))
            .collect::<Vec<_>>();
        assert!(modes.len() > 2, "there is always one instruction");
        for mode in modes {
            let words: Vec<Word> = (0..100).map(|_| Word(AtomicU64::new(0))).collect();
            let real = Real::new(mode);
            assert_eq!(real.mode(), mode);
            for (i, word) in words.iter().enumerate() {
                let value = i as u64 + 1;
                real.prefetch(word);
                real.store(word, value, Ordering::Relaxed, &AT);
                real.flush(&words[i..], &AT);
                real.fence(&AT);
                assert_eq!(real.load(word, Ordering::Relaxed), value);
                let relaxed = Ordering::Relaxed;
                let won = real.compare_exchange(word, value, u64::MAX, relaxed, relaxed, &AT);
                assert_eq!(won, Ok(value));
                let lost = real.compare_exchange(word, value, 0, relaxed, relaxed, &AT);
                assert_eq!(lost, Err(u64::MAX));
                real.store_nontemporal(word, !value, &AT);
                real.fence(&AT);
                assert_eq!(real.load(word, Ordering::Relaxed), !value, "{mode}");
            }
            real.flush(&[], &AT);
        }
    }

    #[test]
    fn what_is_detected_is_available() {
        assert!(FlushInstruction::detect().is_available());
    }

    #[test]
    fn added_latency_is_paid_per_line_and_per_fence() {
        let words: Vec<Word> = (0..32).map(|_| Word(AtomicU64::new(0))).collect();
        let latency =
            Latency { per_line: Duration::from_micros(100), per_fence: Duration::from_micros(50) };
        let real = Real::with_latency(FlushMode::Lines(FlushInstruction::detect()), latency);
        assert_eq!(real.latency(), latency);

        let start = Instant::now();
        real.flush(&words, &AT);
        assert!(start.elapsed() >= 4 * latency.per_line, "32 words lie in 4 lines or 5");
        let start = Instant::now();
        real.fence(&AT);
        assert!(start.elapsed() >= latency.per_fence);
    }

    #[test]
    fn waiting_never_stops_counting() {
        let real = Real::new(FlushMode::None);
        let mut turn = 0;
        for expected in 1..1010 {
            real.wait(&mut turn);
            assert_eq!(turn, expected);
        }
        turn = u32::MAX;
        real.wait(&mut turn);
        assert_eq!(turn, u32::MAX);
    }
}
