//! The region of a pool: everything in DRAM that a lookup needs besides the file.
//!
//! It is one range of addresses. What refers to a place in it is an offset from its start, so it means
//! the same wherever the region is mapped. Its content follows from the file.
//!
//! | at | content |
//! |---|---|
//! | 0 | the [side table](SideTable), with the region's header |
//! | after it, see the header | arrays of cells: the directories of maps |
//!
//! The memory is private to the process. (Shared memory has no huge pages on most systems, and the
//! hint words of a large pool want them.)

use super::reserve::{HUGE_PAGE, in_pages, note_reserved, reserve_aligned};
use super::side::{HINTS_AT, SideTable, side_bytes};
use super::{Alive, LINE, SharedWord};
use rustix::mm::{Advice, MprotectFlags, ProtFlags};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

/// The first word of a region's header: "OLregion", and nothing else.
const MAGIC: u64 = u64::from_le_bytes(*b"OLregion");
/// Number of bytes of the pool's addresses per byte for cells.
const CELLS_SHARE: u64 = 16;
/// The least number of bytes for cells.
const CELLS_LEAST: u64 = 64 << 10;

/// The region of a pool; see the module's documentation.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    side: SideTable,
    /// The offset of the first cell: the bytes of the side table.
    cells_at: u64,
    /// Bytes for cells.
    cells: u64,
    memory: Held,
    arrays: Mutex<Arrays>,
}

/// Where the memory is from.
#[derive(Debug)]
enum Held {
    /// Mapped by the process that this names.
    Mapping(Alive),
    Heap(Layout),
}

/// Which cells are in use. Offsets are from the first cell.
#[derive(Debug, Default)]
struct Arrays {
    /// Up to here, all bytes belong to some array.
    used: u64,
    /// Up to here, they are accessible.
    accessible: u64,
    /// The arrays that are free, by their bytes.
    free: BTreeMap<u64, Vec<u64>>,
}

// SAFETY: the memory is owned, and is accessed as atomic words only.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves addresses for the region of a pool of up to `size` bytes, without memory behind them.
    /// Forked children do not inherit them.
    pub(super) fn reserve(size: u64) -> io::Result<Region> {
        let alive = Alive::new()?;
        let cells_at = side_bytes(size).next_multiple_of(HUGE_PAGE);
        let cells = (size / CELLS_SHARE).max(CELLS_LEAST).next_multiple_of(HUGE_PAGE);
        let start = reserve_aligned(cells_at + cells, ProtFlags::empty())?;
        note_reserved(cells_at + cells);
        let (memory, arrays) = (Held::Mapping(alive), Mutex::default());
        // SAFETY: the pool makes the table accessible for its length, with `cover`.
        let side = unsafe { SideTable::new(start.as_ptr()) };
        let region = Region { start, side, cells_at, cells, memory, arrays };
        region.advise(0..cells_at + cells, Advice::LinuxDontFork)?;
        Ok(region)
    }

    /// Allocates a region on the heap, for tests and crash images. Its hint words are filled with `fill`.
    pub fn heap(size: u64, fill: u8) -> Region {
        let cells_at = side_bytes(size).next_multiple_of(LINE);
        let cells = (size / CELLS_SHARE).next_multiple_of(LINE).max(CELLS_LEAST);
        let bytes = (cells_at + cells) as usize;
        let layout = Layout::from_size_align(bytes, LINE as usize).expect("a sane size");
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })
            .unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: that many bytes were just allocated, and nobody else knows of them.
        unsafe {
            start.add(HINTS_AT as usize).write_bytes(fill, (cells_at - HINTS_AT) as usize);
        }
        let arrays = Mutex::new(Arrays { accessible: cells, ..Arrays::default() });
        // SAFETY: all of it is initialized.
        let side = unsafe { SideTable::new(start.as_ptr()) };
        Region { start, side, cells_at, cells, memory: Held::Heap(layout), arrays }
    }

    /// Address of the first byte, where the side table begins.
    pub fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The side table, as far as the pool is long.
    pub fn side(&self) -> &SideTable {
        &self.side
    }

    /// The addresses of the side table.
    pub fn side_addresses(&self) -> Range<u64> {
        let start = self.start.addr().get() as u64;
        start..start + self.cells_at
    }

    /// Makes the side table of the first `len` bytes of the pool accessible. It is zeroed, and later
    /// calls keep its content.
    pub(super) fn cover(&self, len: u64) -> io::Result<()> {
        self.make_accessible(0..in_pages(side_bytes(len)).min(self.cells_at))
    }

    fn make_accessible(&self, range: Range<u64>) -> io::Result<()> {
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range belongs to this region. Pages that are accessible already keep their content.
        unsafe {
            let start = self.start.add(range.start as usize).as_ptr();
            rustix::mm::mprotect(start.cast(), (range.end - range.start) as usize, access)?;
        }
        Ok(())
    }

    /// Gives the kernel advice that changes no content but that of free arrays.
    fn advise(&self, range: Range<u64>, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is ours; see above.
        unsafe {
            let start = self.start.add(range.start as usize).as_ptr();
            rustix::mm::madvise(start.cast(), (range.end - range.start) as usize, advice)?;
        }
        Ok(())
    }

    /// Allows huge pages for the side table, but for its first huge page's worth; see
    /// [`Reservation::use_huge_pages`](super::reserve::Reservation::use_huge_pages).
    pub(super) fn use_huge_pages(&self) {
        if self.cells_at > HUGE_PAGE {
            let _ = self.advise(HUGE_PAGE..self.cells_at, Advice::LinuxHugepage);
        }
    }

    // ---- Cells ------------------------------------------------------------------

    /// Takes `count` words that are 0. Returns `None` if there is no room for them.
    pub(super) fn take(&self, count: u64) -> Option<NonNull<[SharedWord]>> {
        let bytes = (count * 8).next_multiple_of(LINE);
        let mut arrays = self.arrays.lock().unwrap_or_else(PoisonError::into_inner);
        let reused = arrays.free.get_mut(&bytes).and_then(Vec::pop);
        let at = match reused {
            Some(at) => at,
            None => {
                let (at, end) = (arrays.used, arrays.used + bytes);
                if end > self.cells {
                    return None;
                }
                if end > arrays.accessible {
                    let accessible = in_pages(end).min(self.cells);
                    self.make_accessible(self.cells_at..self.cells_at + accessible).ok()?;
                    arrays.accessible = accessible;
                }
                arrays.used = end;
                at
            }
        };
        self.describe();
        // SAFETY: inside the accessible part. `Arrays` gives each word to one caller.
        let first = unsafe { self.start.add((self.cells_at + at) as usize) };
        let words = NonNull::slice_from_raw_parts(first.cast::<SharedWord>(), count as usize);
        if reused.is_some() {
            // SAFETY: as above; zero is valid for each word.
            unsafe { words.as_ref() }.iter().for_each(|word| word.0.store(0, Ordering::Relaxed));
        }
        Some(words)
    }

    /// Gives back what [`take`](Self::take) has returned.
    pub(super) fn give_back(&self, words: NonNull<[SharedWord]>) {
        let (at, bytes) = (self.offset_of(words), (words.len() as u64 * 8).next_multiple_of(LINE));
        if let Held::Mapping(alive) = &self.memory {
            // A child has no region, and a thread that it does not have can hold the mutex.
            if !alive.is_here() {
                return;
            }
            let pages = at.next_multiple_of(4096)..(at + bytes) / 4096 * 4096;
            if !pages.is_empty() {
                let _ = self.advise(pages, Advice::LinuxDontNeed);
            }
        }
        let mut arrays = self.arrays.lock().unwrap_or_else(PoisonError::into_inner);
        arrays.free.entry(bytes).or_default().push(at - self.cells_at);
    }

    /// Returns the offset of some of the region's words.
    pub(super) fn offset_of(&self, words: NonNull<[SharedWord]>) -> u64 {
        (words.addr().get() - self.start.addr().get()) as u64
    }

    /// Writes the header, which is the same each time.
    fn describe(&self) {
        let words = [MAGIC, HINTS_AT, self.cells_at, self.cells];
        // The magic word is stored last. Release: a reader that finds it also finds the other words.
        for (number, word) in words.into_iter().enumerate().rev() {
            self.side.header(number).0.store(word, Ordering::Release);
        }
    }

    /// Puts memory that other processes can map behind the region, of which the side table for `len` bytes
    /// is in use and still zeroed. No cells were taken yet.
    #[cfg(test)]
    pub(crate) fn share(&self, len: u64) -> io::Result<std::fs::File> {
        use rustix::fs::{MemfdFlags, memfd_create};
        use rustix::mm::MapFlags;
        let file = std::fs::File::from(memfd_create("outlast-region", MemfdFlags::CLOEXEC)?);
        let bytes = self.cells_at + self.cells;
        file.set_len(bytes)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range is ours, and nobody has stored anything there (the caller's promise).
        unsafe {
            let start = self.start.as_ptr().cast();
            rustix::mm::mmap(start, bytes as usize, ProtFlags::empty(), flags, &file, 0)?;
        }
        self.advise(0..bytes, Advice::LinuxDontFork)?;
        self.cover(len)?;
        Ok(file)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match &self.memory {
            // SAFETY: allocated with this layout, and nothing borrows it any more.
            Held::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), *layout) },
            Held::Mapping(alive) => {
                let bytes = self.cells_at + self.cells;
                note_reserved(bytes.wrapping_neg());
                // A child did not inherit the range, so whatever is mapped there is not ours.
                if alive.is_here() {
                    // SAFETY: the range is ours, and nothing borrows it any more. Nothing can be done
                    // about an error.
                    let _ =
                        unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), bytes as usize) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::DramWords;
    use crate::pmem::alive::tests::in_forked_child;
    use std::mem::ManuallyDrop;
    use std::sync::Arc;

    #[test]
    fn arrays_are_apart_zeroed_and_used_again() {
        let reserved = Region::reserve(64 << 20).unwrap();
        reserved.cover(1 << 20).unwrap();
        for region in [reserved, Region::heap(1 << 20, 0xa5)] {
            let region = Arc::new(region);
            let mut all: Vec<_> = [2u64, 4, 8, 2, 4096, 1024]
                .map(|count| DramWords::in_region(&region, count))
                .into();
            for (number, words) in all.iter().enumerate() {
                assert!(
                    words.iter().all(|word| word.0.swap(number as u64 + 1, Ordering::Relaxed) == 0)
                );
                assert!(words.offset().is_multiple_of(LINE) && words.offset() >= region.cells_at);
            }
            for (number, words) in all.iter().enumerate() {
                let expected = number as u64 + 1;
                assert!(words.iter().all(|word| word.0.load(Ordering::Relaxed) == expected));
            }
            let freed = all.swap_remove(4).offset();
            let again = DramWords::in_region(&region, 4096);
            assert_eq!(again.offset(), freed);
            assert!(again.iter().all(|word| word.0.load(Ordering::Relaxed) == 0));
        }
    }

    #[test]
    fn a_forked_child_gives_back_nothing() {
        let region = Arc::new(Region::reserve(64 << 20).unwrap());
        region.cover(1 << 20).unwrap();
        let words = ManuallyDrop::new(DramWords::in_region(&region, 4096));
        // As if another thread was taking an array.
        let taking = region.arrays.lock().unwrap();
        // SAFETY: the child makes system calls only. It drops a copy that is its own.
        let dropped = unsafe {
            in_forked_child(|| {
                libc::alarm(10);
                drop(std::ptr::read(&*words));
                true
            })
        };
        assert!(dropped && taking.free.is_empty());
        drop(taking);
        drop(ManuallyDrop::into_inner(words));
        assert_eq!(region.arrays.lock().unwrap().free.len(), 1);
    }

    #[test]
    fn an_array_without_room_is_elsewhere() {
        let region = Arc::new(Region::heap(1 << 20, 0));
        let room = region.cells / 8;
        assert_eq!(DramWords::in_region(&region, 2 * room).offset(), 0);
        let half = [room / 2; 2].map(|count| DramWords::in_region(&region, count));
        assert!(half.iter().all(|words| words.offset() != 0));
        let none = DramWords::in_region(&region, 2);
        assert_eq!((none.offset(), none.len()), (0, 2));
    }
}
