//! The notes: bitmaps of the cache lines of a journaled pool that have changed since the journal
//! last took them.
//!
//! In a journaled pool, a flush only notes its lines. The notes are in the *working file*, the file
//! in memory that the pool is mapped from. They lie behind the pool, so that neither can survive
//! without the other:
//!
//! ```text
//!  0          [ the pool, as long as it is | nothing ]
//!  NOTES_AT   [ control page | lines of set 0 | its summary | lines of set 1 | its summary ]
//! ```
//!
//! Threads add lines to one set, the *current* one. A [cut](Notes::take) hands out the lines of
//! that set and makes the other set the current one. The lines that were handed out are removed
//! once they are durable ([`Notes::durable`]). So the two sets together always hold every line that
//! the journal may lack.
//!
//! Changes note their lines inside the gate, and a cut holds the gate, so none of them is under way
//! then. In some schemes lookups flush too, but outside of the gate: they persist what they read,
//! because a process that died may have stored the data without flushing it. So a line may be noted
//! at any time, even in the set that was just handed out. Such a note is not lost: only lines that
//! were handed out are removed, and the next cut takes what is left over. If the lookup's thread
//! then waits for durability, it waits for that next cut.

mod lines;

use super::LINE;
use super::alive::Alive;
use super::disk::Disk;
use super::mapping::MappingError;
use super::reserve::reserve;
use lines::{LineSet, WORD};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The atomics of a set of lines. `outlast-check` has a test in which they are loom's.
mod sync {
    pub(super) use std::sync::atomic::AtomicU64;
}

/// The unit of allocation, in bytes.
const PAGE: u64 = 4096;
/// Where the notes begin in the working file. No journaled pool is longer.
const NOTES_AT: u64 = 1 << 41;
/// Words of the control page that its owner can use as it likes.
pub const CONTROL_WORDS: usize = 448;

/// The first word of the control page after the owner's: which set is the current one.
const CURRENT: usize = CONTROL_WORDS;
/// The next word: how many bytes of the pool the sets have room for now.
const COVERED: usize = CONTROL_WORDS + 1;
/// The next word: how many bytes of the pool the sets can ever have room for.
const CAPACITY: usize = CONTROL_WORDS + 2;

/// The notes of a working file.
#[derive(Debug)]
pub struct Notes {
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes of the pool that the sets can ever have room for.
    capacity: u64,
    /// Address of the pool.
    pool: AtomicUsize,
    /// Whether a line may have been noted since the last cut.
    any: AtomicBool,
    /// Tells a forked child from the process that mapped them.
    alive: Alive,
}

// SAFETY: the mapping belongs to this value, and all access to it is atomic.
unsafe impl Send for Notes {}
// SAFETY: as above.
unsafe impl Sync for Notes {}

impl Notes {
    /// Creates the notes of a new working file, for a pool that never exceeds `capacity` bytes. No line
    /// is noted, and the sets have no room yet; see [`cover`](Self::cover).
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

    /// Maps the notes of a working file. Returns `None` if it has none, or if they cannot be valid.
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
        let covered = notes.covered();
        if covered > capacity || notes.word(CURRENT).load(Ordering::Relaxed) >= 2 {
            return Ok(None);
        }
        notes.map_sets(file, 0, covered)?;
        Ok(Some(notes))
    }

    /// Reserves addresses for all notes, and maps the control page.
    ///
    /// The sets are mapped only as far as the pool goes. Otherwise, a process that keeps its memory
    /// resident (`mlockall`) would need all that a pool of the largest size needs.
    fn map(file: &File, capacity: u64) -> io::Result<Notes> {
        let (bytes, alive) = (Self::bytes_for(capacity), Alive::new()?);
        let start = reserve(bytes)?;
        let (pool, any) = (AtomicUsize::new(0), AtomicBool::new(true));
        let notes = Notes { start, bytes: bytes as usize, capacity, pool, any, alive };
        notes.map_pages(file, 0..PAGE)?;
        Ok(notes)
    }

    /// Maps the parts of both sets that hold the lines of these bytes of the pool.
    fn map_sets(&self, file: &File, from: u64, len: u64) -> io::Result<()> {
        self.parts(from, len).into_iter().try_for_each(|part| self.map_pages(file, part))
    }

    /// Maps pages of the notes over the reservation. `range` is in bytes from where the notes begin.
    fn map_pages(&self, file: &File, range: Range<u64>) -> io::Result<()> {
        let bytes = (range.end - range.start) as usize;
        if bytes == 0 {
            return Ok(());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        debug_assert!(range.end <= self.bytes as u64);
        // SAFETY: the range is a part of our reservation. If something of the file is mapped there
        // already, this maps the same pages again.
        unsafe {
            let start = self.start.as_ptr().add(range.start as usize).cast();
            rustix::mm::mmap(start, bytes, access, flags, file, NOTES_AT + range.start)?;
            rustix::mm::madvise(start, bytes, Advice::LinuxDontFork)?;
        }
        Ok(())
    }

    /// Returns the parts of both sets that hold the lines of the bytes from `from` up to `len` of the
    /// pool, in bytes from where the notes begin.
    fn parts(&self, from: u64, len: u64) -> [Range<u64>; 4] {
        let lines = |set| {
            let at = self.lines_at(set);
            at + Self::lines_bytes(from)..at + Self::lines_bytes(len)
        };
        let summary = |set| {
            let at = self.summary_at(set);
            at + Self::summary_bytes(from)..at + Self::summary_bytes(len)
        };
        [lines(0), summary(0), lines(1), summary(1)]
    }

    /// Returns the size of the notes, in bytes, for a pool of up to `capacity` bytes.
    fn bytes_for(capacity: u64) -> u64 {
        PAGE + 2 * (Self::lines_bytes(capacity) + Self::summary_bytes(capacity))
    }

    fn lines_bytes(capacity: u64) -> u64 {
        (capacity / LINE / 8).next_multiple_of(PAGE)
    }

    fn summary_bytes(capacity: u64) -> u64 {
        (capacity / LINE / 8 / WORD).next_multiple_of(PAGE)
    }

    /// Returns how many bytes of the pool the sets can ever have room for.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns how many bytes of the pool the sets have room for now.
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
        for part in self.parts(from, len) {
            if part.start < part.end {
                disk.allocate(file, NOTES_AT + part.start, NOTES_AT + part.end)?;
            }
        }
        self.map_sets(file, from, len)?;
        // `fetch_max`, so that the value never shrinks even if two threads grow the pool at the
        // same time: a cut takes no note beyond it.
        self.word(COVERED).fetch_max(len, Ordering::Relaxed);
        Ok(())
    }

    /// Allocates the blocks that the notes need in a file that is to become a copy of theirs.
    pub fn allocate_in(&self, disk: &Disk, file: &File) -> Result<(), MappingError> {
        let end = NOTES_AT + self.bytes as u64;
        let last = std::iter::once(end - PAGE..end);
        for part in last.chain(self.parts_in_file()).filter(|part| part.start < part.end) {
            disk.allocate(file, part.start, part.end)?;
        }
        Ok(())
    }

    /// Returns the parts of the file that hold anything of the notes.
    pub fn parts_in_file(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let sets = self.parts(0, self.covered());
        let parts = std::iter::once(0..PAGE).chain(sets);
        parts.map(|part| NOTES_AT + part.start..NOTES_AT + part.end)
    }

    /// Maps the notes from another file, which holds the same. No thread cuts or grows the pool
    /// meanwhile. After an error, some may be in one file and some in the other.
    pub fn move_to(&self, file: &File) -> io::Result<()> {
        self.map_pages(file, 0..PAGE)?;
        self.map_sets(file, 0, self.covered())
    }

    /// Adds lines to the current set.
    pub fn add(&self, lines: Range<u64>) {
        let current = self.word(CURRENT).load(Ordering::Relaxed);
        self.set(current, self.covered()).add(lines);
        self.any.store(true, Ordering::SeqCst);
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
        // SAFETY: inside the reservation and aligned: all parts begin at pages, and their sizes add up
        // to `bytes`. Only words of lines of the pool are accessed, and those are mapped before the
        // pool gets these lines. The words are atomics, and every bit pattern is valid.
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().add(at as usize).cast(), count as usize)
        }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words(0, PAGE / 8)[index]
    }

    /// Returns the words that the owner can use as it likes. They begin as zeros.
    pub fn control(&self) -> &[AtomicU64] {
        self.words(0, CONTROL_WORDS as u64)
    }

    /// Stores a word for the owner. In the harness, the process may die before it.
    pub fn store_control(&self, index: usize, value: u64) {
        #[cfg(any(test, feature = "traced"))]
        super::dying::may_die();
        self.control()[index].store(value, Ordering::Release);
    }

    /// Returns the part of a set that holds the lines of the first `len` bytes of the pool.
    #[inline]
    fn set(&self, set: u64, len: u64) -> LineSet<'_> {
        let lines = len / LINE / WORD;
        LineSet::new(
            self.words(self.lines_at(set), lines),
            self.words(self.summary_at(set), lines.div_ceil(WORD)),
        )
    }

    /// Sets the address at which the pool is mapped.
    pub fn attach(&self, pool: *const u8) {
        self.pool.store(pool.expose_provenance(), Ordering::Relaxed);
    }

    /// Notes the lines that hold any of the `bytes` bytes at `address`.
    #[inline]
    pub fn note(&self, address: usize, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let first = (address - self.pool.load(Ordering::Relaxed)) as u64;
        let lines = first / LINE..(first + bytes as u64).div_ceil(LINE);
        // Relaxed: inside the gate, the gate orders this thread and a cut. Outside of it, either set
        // will do.
        let current = self.word(CURRENT).load(Ordering::Relaxed);
        self.set(current, self.capacity).add(lines);
        // SeqCst: either the cut that clears `any` sees these lines, or this load sees that `any`
        // is cleared. Lines that were there already do not show that `any` is set: the thread that
        // added them may not have set it yet.
        if !self.any.load(Ordering::SeqCst) {
            self.any.store(true, Ordering::SeqCst);
        }
    }

    /// Returns whether a line may have been noted since the last cut.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Cuts: calls `visit` with each run of lines that were noted since the last cut or left over
    /// by it, in ascending order. The caller holds back all changes, and has made the lines of the
    /// last cut durable.
    pub fn take(&self, visit: impl FnMut(Range<u64>)) {
        self.any.store(false, Ordering::SeqCst);
        self.join();
        let current = self.word(CURRENT).load(Ordering::Relaxed);
        // If the process dies here or later, both sets can hold lines, and the next opener's first
        // cut takes those of both.
        self.word(CURRENT).store(1 - current, Ordering::Relaxed);
        self.set(current, self.covered()).visit(visit);
    }

    /// Calls `visit` with each run of lines that the next cut may take, as far as they are known now.
    pub fn look(&self, mut visit: impl FnMut(Range<u64>)) {
        for set in 0..2 {
            self.set(set, self.covered()).visit(&mut visit);
        }
    }

    /// Removes lines that the last cut handed out, once they are durable.
    pub fn durable(&self, runs: impl Iterator<Item = Range<u64>>) {
        let current = self.word(CURRENT).load(Ordering::Relaxed);
        let set = self.set(1 - current, self.covered());
        runs.for_each(|lines| set.remove(lines));
    }

    /// Moves all lines of the other set to the current one: those of a cut whose process died, and
    /// notes that came late.
    pub fn join(&self) {
        let current = self.word(CURRENT).load(Ordering::Relaxed);
        let (ours, other) =
            (self.set(current, self.covered()), self.set(1 - current, self.covered()));
        let mut late = Vec::new();
        other.visit(|lines| late.push(lines));
        for lines in late {
            // In this order, a process that dies in between leaves them in both sets.
            ours.add(lines.clone());
            other.remove(lines);
        }
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        // A child did not inherit the mapping, so whatever is there is not ours: it may be a pool that the
        // child has opened since.
        if self.alive.is_here() {
            // SAFETY: the mapping is ours, and what was borrowed from it borrows from `self`.
            // Nothing can be done about an error.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests;
