//! Which lines of a journaled pool have changed since the journal last took them.
//!
//! On this medium a flush only notes its lines. The notes lie in the *working file*, behind the pool,
//! so that they live and die with it:
//!
//! ```text
//!  0          [ the pool, as long as it is | nothing ]
//!  NOTES_AT   [ control page | lines of set 0 | its summary | lines of set 1 | its summary ]
//! ```
//!
//! Threads add lines to one set, the *current* one. A [cut](Notes::take) hands out its lines and makes
//! the other set the current one. The set that was handed out is emptied once its lines are durable
//! ([`Notes::durable`]). So both sets together always hold every line that the journal may lack.

use super::LINE;
use super::disk::Disk;
use super::mapping::MappingError;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bits of a word.
const WORD: u64 = 64;
/// The unit of allocation, in bytes.
const PAGE: u64 = 4096;
/// Where the notes begin in the working file. No journaled pool is longer.
const NOTES_AT: u64 = 1 << 41;
/// Words of the control page that its owner uses as it likes.
pub const CONTROL_WORDS: usize = 64;

/// Words of the control page behind those: which set is the current one.
const CURRENT: usize = CONTROL_WORDS;
/// How many bytes of the pool have room in the sets.
const COVERED: usize = CONTROL_WORDS + 1;
/// How many bytes of the pool the sets could ever have room for.
const CAPACITY: usize = CONTROL_WORDS + 2;

/// The notes of a working file.
#[derive(Debug)]
pub struct Notes {
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes of the pool that the sets could have room for.
    capacity: u64,
    /// Address of the pool.
    pool: AtomicUsize,
    /// Whether a line was noted since the last cut. A hint.
    any: AtomicBool,
}

// SAFETY: the mapping belongs to this value, and all access to it is atomic.
unsafe impl Send for Notes {}
// SAFETY: as above.
unsafe impl Sync for Notes {}

impl Notes {
    /// Makes the notes of a new working file, for a pool that never exceeds `capacity` bytes. No line
    /// is noted, and no byte is covered.
    pub fn create(disk: &Disk, file: &File, capacity: u64) -> Result<Notes, MappingError> {
        let capacity = capacity.next_multiple_of(PAGE);
        if capacity > NOTES_AT {
            let why =
                format!("a journaled pool of {capacity} bytes, at most {NOTES_AT} are possible");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
        }
        // The last page, which gives the file its length, and the control page.
        let end = NOTES_AT + Self::bytes_for(capacity);
        for page in [end - PAGE, NOTES_AT] {
            disk.allocate(file, page, page + PAGE)?;
        }
        let notes = Self::map(file, capacity)?;
        notes.word(CAPACITY).store(capacity, Ordering::Relaxed);
        Ok(notes)
    }

    /// Maps the notes of a working file. Returns `None` if it has none.
    pub fn open(file: &File) -> io::Result<Option<Notes>> {
        use std::os::unix::fs::FileExt;
        let len = file.metadata()?.len();
        if len < NOTES_AT + PAGE {
            return Ok(None);
        }
        let mut word = [0; 8];
        file.read_exact_at(&mut word, NOTES_AT + CAPACITY as u64 * 8)?;
        let capacity = u64::from_le_bytes(word);
        if capacity > NOTES_AT
            || !capacity.is_multiple_of(PAGE)
            || len != NOTES_AT + Self::bytes_for(capacity)
        {
            return Ok(None);
        }
        let notes = Self::map(file, capacity)?;
        let sane = notes.covered() <= capacity && notes.word(CURRENT).load(Ordering::Relaxed) < 2;
        Ok(sane.then_some(notes))
    }

    fn map(file: &File, capacity: u64) -> io::Result<Notes> {
        let bytes = Self::bytes_for(capacity) as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses a free address.
        let start =
            unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, flags, file, NOTES_AT)? };
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| io::Error::other("mapped at address 0"))?;
        let (pool, any) = (AtomicUsize::new(0), AtomicBool::new(true));
        let notes = Notes { start, bytes, capacity, pool, any };
        // SAFETY: the range was mapped above.
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontFork)? };
        Ok(notes)
    }

    /// Bytes of the notes for a pool of up to `capacity` bytes.
    fn bytes_for(capacity: u64) -> u64 {
        PAGE + 2 * (Self::lines_bytes(capacity) + Self::summary_bytes(capacity))
    }

    fn lines_bytes(capacity: u64) -> u64 {
        (capacity / LINE / 8).next_multiple_of(PAGE)
    }

    fn summary_bytes(capacity: u64) -> u64 {
        (capacity / LINE / 8 / WORD).next_multiple_of(PAGE)
    }

    /// Bytes of the pool that the sets could ever have room for.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes of the pool that have room in the sets.
    pub fn covered(&self) -> u64 {
        self.word(COVERED).load(Ordering::Relaxed)
    }

    /// Makes room for the lines of the first `len` bytes of the pool.
    pub fn cover(&self, disk: &Disk, file: &File, len: u64) -> Result<(), MappingError> {
        let (from, len) = (self.covered(), len.next_multiple_of(PAGE));
        if len <= from {
            return Ok(());
        }
        if len > self.capacity {
            return Err(MappingError::AddressSpace { needed: len, reserved: self.capacity });
        }
        for set in 0..2 {
            for (at, bytes) in [
                (self.lines_at(set), Self::lines_bytes as fn(u64) -> u64),
                (self.summary_at(set), Self::summary_bytes),
            ] {
                let (begin, end) = (NOTES_AT + at + bytes(from), NOTES_AT + at + bytes(len));
                if begin < end {
                    disk.allocate(file, begin, end)?;
                }
            }
        }
        self.word(COVERED).store(len, Ordering::Relaxed);
        Ok(())
    }

    fn lines_at(&self, set: u64) -> u64 {
        let of_set = Self::lines_bytes(self.capacity) + Self::summary_bytes(self.capacity);
        PAGE + set * of_set
    }

    fn summary_at(&self, set: u64) -> u64 {
        self.lines_at(set) + Self::lines_bytes(self.capacity)
    }

    fn words(&self, at: u64, count: u64) -> &[AtomicU64] {
        debug_assert!(at + count * 8 <= self.bytes as u64);
        // SAFETY: inside the mapping and aligned: all parts begin at pages, and their sizes add up to
        // `bytes`. The words are atomics, and every bit pattern is valid.
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().add(at as usize).cast(), count as usize)
        }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words(0, PAGE / 8)[index]
    }

    /// Words for the owner's use. They begin as zeros.
    pub fn control(&self) -> &[AtomicU64] {
        self.words(0, CONTROL_WORDS as u64)
    }

    /// A set, with the lines of the first `len` bytes of the pool.
    #[inline]
    fn set(&self, set: u64, len: u64) -> LineSet<'_> {
        let lines = len / LINE / WORD;
        LineSet {
            bits: self.words(self.lines_at(set), lines),
            summary: self.words(self.summary_at(set), lines.div_ceil(WORD)),
        }
    }

    /// Says where the pool is mapped.
    pub fn attach(&self, pool: *const u8) {
        self.pool.store(pool.expose_provenance(), Ordering::Relaxed);
    }

    /// Notes the lines that hold any of the `bytes` bytes at `address`. No [cut](Self::take) is made
    /// meanwhile.
    #[inline]
    pub fn note(&self, address: usize, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let first = (address - self.pool.load(Ordering::Relaxed)) as u64;
        let lines = first / LINE..(first + bytes as u64).div_ceil(LINE);
        // Relaxed: a cut and this thread are ordered by the gate.
        let current = self.word(CURRENT).load(Ordering::Relaxed);
        if self.set(current, self.capacity).add(lines) && !self.any.load(Ordering::Relaxed) {
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a line may have been noted since the last cut.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Cuts: calls `visit` with each run of lines that was noted since the last cut, in ascending
    /// order. All lines of the last cut are durable. No thread notes any meanwhile.
    pub fn take(&self, visit: impl FnMut(Range<u64>)) {
        self.any.store(false, Ordering::Relaxed);
        let current = self.word(CURRENT).load(Ordering::Relaxed);
        debug_assert!(self.set(1 - current, self.covered()).is_empty(), "the last cut is durable");
        // A process that dies here leaves both sets, and whoever opens the file takes both.
        self.word(CURRENT).store(1 - current, Ordering::Relaxed);
        self.set(current, self.covered()).visit(visit);
    }

    /// Forgets the lines of the last cut: they are durable.
    pub fn durable(&self) {
        let current = self.word(CURRENT).load(Ordering::Relaxed);
        self.set(1 - current, self.covered()).clear();
    }

    /// Moves the lines of the last cut back to the current set. For notes that were just opened.
    pub fn join(&self) {
        let current = self.word(CURRENT).load(Ordering::Relaxed);
        let (ours, other) =
            (self.set(current, self.covered()), self.set(1 - current, self.covered()));
        other.visit(|lines| {
            ours.add(lines);
        });
        other.clear();
        self.any.store(true, Ordering::Relaxed);
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and what was borrowed from it borrows from `self`.
        // Nothing can be done about an error.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A set of lines: a bitmap, with a bitmap of its words above it, so that a set with few lines in a
/// large pool is read quickly.
#[derive(Debug, Clone, Copy)]
struct LineSet<'m> {
    /// A bit for each line.
    bits: &'m [AtomicU64],
    /// A bit for each word of `bits` that may not be 0.
    summary: &'m [AtomicU64],
}

impl LineSet<'_> {
    /// Adds the lines of a range. Threads may add lines at the same time. Returns whether a word of the
    /// set was empty before.
    #[inline]
    fn add(&self, lines: Range<u64>) -> bool {
        let (mut line, mut first) = (lines.start, false);
        while line < lines.end {
            let number = line / WORD;
            let end = lines.end.min((number + 1) * WORD);
            let mask = (u64::MAX >> (WORD - (end - line))) << (line % WORD);
            line = end;
            let word = self.bits[number as usize].load(Ordering::Relaxed);
            // Most lines that change have changed since the last cut.
            if word & mask == mask {
                continue;
            }
            if word == 0 {
                let (number, bit) = ((number / WORD) as usize, 1 << (number % WORD));
                self.summary[number].fetch_or(bit, Ordering::Relaxed);
                first = true;
            }
            // Release: whoever sees a word that is not 0, after a crash too, finds its bit in the
            // summary.
            self.bits[number as usize].fetch_or(mask, Ordering::Release);
        }
        first
    }

    fn is_empty(&self) -> bool {
        ones(self.summary).all(|number| self.bits[number as usize].load(Ordering::Relaxed) == 0)
    }

    /// Calls `visit` with each run of lines, in ascending order. No thread adds lines meanwhile.
    fn visit(&self, mut visit: impl FnMut(Range<u64>)) {
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
    fn clear(&self) {
        for number in ones(self.summary) {
            self.bits[number as usize].store(0, Ordering::Relaxed);
        }
        // The summary goes last: after a crash in between, a word that is not 0 still has its bit
        // there.
        for word in self.summary {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Release);
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

    const CAPACITY_BYTES: u64 = 64 << 20;
    const LINES: u64 = CAPACITY_BYTES / LINE;

    fn notes() -> (File, Notes) {
        let file = tempfile::tempfile().unwrap();
        let notes = Notes::create(&Disk::default(), &file, CAPACITY_BYTES).unwrap();
        notes.cover(&Disk::default(), &file, CAPACITY_BYTES).unwrap();
        (file, notes)
    }

    fn add(notes: &Notes, lines: Range<u64>) {
        notes.note((lines.start * LINE) as usize, ((lines.end - lines.start) * LINE) as usize);
    }

    fn taken(notes: &Notes) -> Vec<Range<u64>> {
        let mut runs = Vec::new();
        notes.take(|run| runs.push(run));
        runs
    }

    #[test]
    fn a_cut_returns_what_was_noted_since_the_last_one_as_runs() {
        let (_file, notes) = notes();
        assert_eq!(taken(&notes), []);
        notes.durable();
        for range in [9_999..10_000, 60..70, 64..65, 5_000..5_000, 70..71, 4_095..4_097] {
            add(&notes, range);
        }
        assert!(notes.any());
        assert_eq!(taken(&notes), [60..71, 4_095..4_097, 9_999..10_000]);
        assert!(!notes.any());
        add(&notes, 60..61);
        notes.durable();
        assert_eq!(taken(&notes).first(), Some(&(60..61)));
        notes.durable();
        add(&notes, LINES - 1..LINES);
        add(&notes, 0..1);
        assert_eq!(taken(&notes), [0..1, LINES - 1..LINES]);
    }

    #[test]
    fn bytes_are_noted_by_the_lines_that_hold_them() {
        let (_file, notes) = notes();
        for (at, bytes, lines) in
            [(0, 8, 0..1), (120, 8, 1..2), (120, 16, 1..3), (64, 64, 1..2), (8, 256, 0..5)]
        {
            notes.note(at, bytes);
            assert_eq!(taken(&notes), [lines]);
            notes.durable();
        }
        notes.note(8, 0);
        assert_eq!(taken(&notes), []);
    }

    #[test]
    fn notes_agree_with_a_tree() {
        let (_file, notes) = notes();
        let (mut state, mut tree) = (1_u64, BTreeSet::new());
        for round in 0..2_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (state >> 33) % 20_000;
            let end = (start + (state >> 20) % 300).min(20_000);
            add(&notes, start..end);
            tree.extend(start..end);
            if round % 100 == 99 {
                let found: Vec<_> = taken(&notes).into_iter().flatten().collect();
                assert_eq!(found, tree.iter().copied().collect::<Vec<_>>());
                notes.durable();
                tree.clear();
            }
        }
    }

    /// Whatever a process had noted, and whatever it had cut but not made durable, is found by the next
    /// one.
    #[test]
    fn both_sets_are_found_again() {
        let (file, notes) = notes();
        add(&notes, 3..5);
        assert_eq!(taken(&notes).first(), Some(&(3..5)));
        add(&notes, 10_000..10_001);
        notes.control()[7].store(77, Ordering::Relaxed);
        drop(notes);
        let notes = Notes::open(&file).unwrap().expect("notes");
        assert_eq!(notes.control()[7].load(Ordering::Relaxed), 77);
        assert_eq!((notes.covered(), notes.capacity()), (CAPACITY_BYTES, CAPACITY_BYTES));
        notes.join();
        assert!(notes.any());
        assert_eq!(taken(&notes), [3..5, 10_000..10_001]);
    }

    #[test]
    fn a_file_without_notes_is_told() {
        let file = tempfile::tempfile().unwrap();
        assert!(Notes::open(&file).unwrap().is_none());
        file.set_len(NOTES_AT + (16 << 20)).unwrap();
        assert!(Notes::open(&file).unwrap().is_none());
    }

    /// A process that dies between the two stores of `add` hides no line that is added after that.
    #[test]
    fn a_line_that_was_being_added_hides_no_other() {
        let (_file, notes) = notes();
        // All that the first of the two stores leaves.
        notes.set(0, CAPACITY_BYTES).summary[0].fetch_or(1 << 7, Ordering::Relaxed);
        add(&notes, 7 * 64 + 3..7 * 64 + 4);
        assert_eq!(taken(&notes).first(), Some(&(451..452)));
    }

    #[test]
    fn threads_note_at_the_same_time() {
        let (_file, notes) = notes();
        std::thread::scope(|s| {
            for thread in 0..4 {
                let notes = &notes;
                s.spawn(move || {
                    (0..64 * 64).for_each(|i| add(notes, i * 4 + thread..i * 4 + thread + 1))
                });
            }
        });
        let all = 0..64 * 64 * 4;
        assert!(taken(&notes).into_iter().eq([all]));
    }
}
