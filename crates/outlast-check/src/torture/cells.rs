//! The expected value of each key of a pool, in a mapped file that outlives the process.
//!
//! A cell is four words: *in flight*, *settled*, *intended*, unused. A value is stored as its
//! number plus one, absence as 0. Each key belongs to one thread, which writes:
//!
//! 1. intended, then in flight = 1, before it changes the key in the pool;
//! 2. settled = intended, then in flight = 0, once the change has returned.
//!
//! After a kill there are two cases. If no change is in flight, the pool must hold the settled
//! value. Otherwise it must hold the settled value (which may already be that of the change) or the
//! intended one.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words before the first cell, which users of the file may give a meaning.
pub const NOTES: usize = 16;
const CELL_WORDS: usize = 4;

/// The mapped file.
pub struct Cells {
    words: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the words are atomics, and stay mapped as long as this value lives.
unsafe impl Send for Cells {}
// SAFETY: as above.
unsafe impl Sync for Cells {}

impl Cells {
    /// Creates a file for this many keys, all of them absent.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: &Path, keys: usize) -> io::Result<Cells> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.set_len(((NOTES + keys * CELL_WORDS) * 8) as u64)?;
        Self::map(&file)
    }

    /// Opens a file that [`Cells::create`] made.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Cells> {
        Self::map(&File::options().read(true).write(true).open(path)?)
    }

    fn map(file: &File) -> io::Result<Cells> {
        let bytes = file.metadata()?.len() as usize;
        // SAFETY: this is a new shared mapping of a file that is never truncated, and the system
        // chooses a free address.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let words = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("no address"))?;
        Ok(Cells { words, len: bytes / 8 })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the words are mapped as long as `self` lives. A page is aligned for words, and
        // any bytes are valid words.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len) }
    }

    /// Returns a word whose meaning the users of the file decide.
    pub fn note(&self, index: usize) -> &AtomicU64 {
        assert!(index < NOTES, "one of the notes");
        &self.words()[index]
    }

    /// Returns the cell of a key.
    pub fn cell(&self, key: usize) -> Cell<'_> {
        let words = &self.words()[NOTES + key * CELL_WORDS..][..3];
        Cell { in_flight: &words[0], settled: &words[1], intended: &words[2] }
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        // SAFETY: the file is mapped with this length, and no reference outlives `self`.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.len * 8) };
    }
}

fn pack(value: Option<u64>) -> u64 {
    value.map_or(0, |v| v + 1)
}

fn unpack(word: u64) -> Option<u64> {
    word.checked_sub(1)
}

/// The expected value of one key.
#[derive(Clone, Copy)]
pub struct Cell<'c> {
    in_flight: &'c AtomicU64,
    settled: &'c AtomicU64,
    intended: &'c AtomicU64,
}

impl Cell<'_> {
    /// Returns the value if it is certain, or `None` while a change is in flight.
    pub fn certain(&self) -> Option<Option<u64>> {
        // Acquire: pairs with the Releases below. Another process may have stored the word.
        (self.in_flight.load(Ordering::Acquire) == 0).then(|| self.settled())
    }

    /// Returns the value after the last change that returned.
    pub fn settled(&self) -> Option<u64> {
        unpack(self.settled.load(Ordering::Acquire))
    }

    /// Returns the values that the key may have.
    pub fn allowed(&self) -> [Option<u64>; 2] {
        match self.certain() {
            Some(value) => [value; 2],
            None => [self.settled(), unpack(self.intended.load(Ordering::Acquire))],
        }
    }

    /// Notes that a change begins.
    pub fn begin(&self, after: Option<u64>) {
        self.intended.store(pack(after), Ordering::Release);
        self.in_flight.store(1, Ordering::Release);
    }

    /// Notes that the change has returned, or that this value was found after a kill.
    pub fn settle(&self, value: Option<u64>) {
        self.settled.store(pack(value), Ordering::Release);
        self.in_flight.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_say_what_may_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cells");
        let cells = Cells::create(&path, 10).unwrap();
        let cell = cells.cell(9);
        assert_eq!(cell.allowed(), [None, None]);
        cell.begin(Some(0));
        assert_eq!(cell.certain(), None);
        assert_eq!(cell.allowed(), [None, Some(0)]);
        cell.settle(Some(0));
        assert_eq!(cell.allowed(), [Some(0), Some(0)]);
        cell.begin(None);
        drop(cells);
        let cells = Cells::open(&path).unwrap();
        assert_eq!(cells.cell(9).allowed(), [Some(0), None]);
        assert_eq!(cells.cell(8).certain(), Some(None));
    }
}
