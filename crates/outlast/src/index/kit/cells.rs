//! A directory in DRAM of cells: each has an equal share of the hash space.

use crate::pmem::{DIRECTORIES, DramWords, Region, Seam, Shared, SharedWord};
use crate::pool::core::Core;
use crate::pool::layout::ROOT_SLOTS;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

/// Returns the number of the cell that has this hash, in a directory of this depth, which is not 0.
#[inline(always)]
pub(crate) fn cell_of(hash: u64, depth: u32) -> usize {
    (hash >> (64 - depth)) as usize
}

/// Returns the first hash of a cell; 0 for the number after the last.
pub(crate) fn first_hash(cell: usize, depth: u32) -> u64 {
    (cell as u64) << (64 - depth)
}

/// The cells for one depth. What their words mean is the scheme's matter, except that 0 means
/// nothing.
struct Array {
    depth: u32,
    words: DramWords,
}

impl Array {
    fn new(region: &Arc<Region>, depth: u32) -> Array {
        Array { depth, words: DramWords::in_region(region, 1 << depth) }
    }

    /// Returns what the map's [directory word](crate::pmem::SideTable::directory) says of this array.
    fn directory_word(&self) -> u64 {
        match self.words.offset() {
            0 => 0,
            offset => offset | u64::from(self.depth),
        }
    }

    /// Returns the word of the cell that has this hash.
    #[inline(always)]
    fn word(&self, hash: u64) -> &SharedWord {
        let cell = cell_of(hash, self.depth);
        debug_assert!(cell < self.words.len());
        // SAFETY: there are 2^depth words, and this is a number of `depth` bits.
        unsafe { self.words.get_unchecked(cell) }
    }
}

const _: () = assert!(ROOT_SLOTS == DIRECTORIES);

/// The directory of a map. It only grows. Its cells lie in the pool's region, and a word there says which
/// array is current. The pointers here are this process's own.
pub(crate) struct Cells {
    region: Arc<Region>,
    /// The slot of the map's root.
    slot: usize,
    /// The arrays, by depth. Those of smaller depths are kept for threads that still use them: these find
    /// 0 there. Together they take no more space than the current one.
    all: Box<[Shared<OnceLock<Array>>]>,
    /// The current array: one of `all`.
    current: Shared<AtomicPtr<Array>>,
}

impl Cells {
    /// Makes a directory of this depth whose cells are 0, for the map whose root is in `slot`.
    pub(crate) fn new<S: Seam>(core: &Core<S>, slot: usize, depth: u32) -> Self {
        let all = (0..64).map(|_| Shared::once()).collect();
        let region = Arc::clone(core.backing().region());
        let array = Array::new(&region, depth);
        let cells = Cells { region, slot, all, current: Shared::default() };
        cells.set_current(core.memory.seam(), array);
        cells
    }

    /// Makes `array` the current one. There must not have been one of that depth.
    fn set_current(&self, seam: &impl Seam, array: Array) {
        let kept = self.all[array.depth as usize].get_or_init(seam, || array);
        // Release: another process that finds this word, or finds 0 in a cell of the array before and then
        // looks here, finds the cells.
        let word = kept.directory_word();
        self.region.side().directory(self.slot).store(seam, word, Ordering::Release);
        // Release: pairs with the Acquire in `current`.
        self.current.store(seam, std::ptr::from_ref(kept).cast_mut(), Ordering::Release);
    }

    #[inline(always)]
    fn current(&self, seam: &impl Seam) -> &Array {
        // Acquire: pairs with the Release in `set_current`.
        // SAFETY: `new` and `double` set this pointer, always to one of `all`. These neither move
        // nor are dropped before the directory.
        unsafe { &*self.current.load(seam, Ordering::Acquire) }
    }

    /// Returns the directory's depth.
    pub(crate) fn depth(&self, seam: &impl Seam) -> u32 {
        self.current(seam).depth
    }

    /// Returns the word of the cell that has this hash.
    #[inline(always)]
    pub(crate) fn find(&self, seam: &impl Seam, hash: u64) -> u64 {
        self.find_cell(seam, hash).1
    }

    /// Does the same, and returns the cell. If that has the same word later, the directory still leads
    /// from this hash to it.
    #[inline(always)]
    pub(crate) fn find_cell(&self, seam: &impl Seam, hash: u64) -> (&SharedWord, u64) {
        let array = self.current(seam);
        let cell = array.word(hash);
        // Acquire: pairs with the Release in `set`, so that what the word leads to is visible.
        let word = cell.load(seam, Ordering::Acquire);
        if word == 0 && !std::ptr::eq(array, self.current(seam)) {
            return self.find_after_doubling(seam, hash);
        }
        (cell, word)
    }

    #[cold]
    fn find_after_doubling(&self, seam: &impl Seam, hash: u64) -> (&SharedWord, u64) {
        self.find_cell(seam, hash)
    }

    /// Stores the words of some cells. No other thread may store one of these, or double the directory,
    /// meanwhile.
    pub(crate) fn set(&self, seam: &impl Seam, cells: Range<usize>, word: u64) {
        for cell in &self.current(seam).words[cells] {
            // Release: pairs with the Acquire in `find`.
            cell.store(seam, word, Ordering::Release);
        }
    }

    /// Doubles the directory. No other thread may store a cell or double it meanwhile.
    pub(crate) fn double(&self, seam: &impl Seam) {
        let narrow = self.current(seam);
        let depth = narrow.depth + 1;
        let wide = Array::new(&self.region, depth);
        for (pair, cell) in wide.words.chunks_exact(2).zip(&*narrow.words) {
            let word = cell.load(seam, Ordering::Relaxed);
            pair.iter().for_each(|twin| twin.store(seam, word, Ordering::Relaxed));
        }
        self.set_current(seam, wide);
        // Until the caller lets other threads store cells, the old ones lead where the new ones lead.
        for cell in &*narrow.words {
            // Release: pairs with the Acquire in `find_cell`, so that a thread that finds 0 also finds the
            // new array.
            cell.store(seam, 0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::kit::interleaved::pool_of;
    use crate::pmem::Traced;

    #[test]
    fn cells_begin_where_their_first_hash_is() {
        for depth in [1, 3, 9, 24] {
            let cells = 1 << depth;
            for cell in [0, 1, cells / 2 - 1, cells / 2, cells - 1] {
                let first = first_hash(cell, depth);
                assert_eq!(cell_of(first, depth), cell);
                assert!(cell == 0 || cell_of(first - 1, depth) == cell - 1);
            }
            assert_eq!(cell_of(u64::MAX, depth), cells - 1);
            assert_eq!(first_hash(cells, depth), 0);
        }
    }

    #[test]
    fn a_doubled_directory_leads_where_it_led() {
        let core = pool_of(Traced::new(), |_| [0; _]);
        let (seam, cells) = (core.memory.seam().clone(), Cells::new(&core, 5, 2));
        let directory = core.memory.side().directory(5);
        for cell in 0..4 {
            cells.set(&seam, cell..cell + 1, 100 + cell as u64);
        }
        for depth in 3..6 {
            let (cell, word) = cells.find_cell(&seam, 7);
            assert_eq!(word, 100);
            cells.double(&seam);
            assert_eq!(cell.load(&seam, Ordering::Relaxed), 0);
            assert_eq!(cells.depth(&seam), depth);
            assert_eq!(directory.load(&seam, Ordering::Relaxed) % 64, u64::from(depth));
            for cell in 0..4 {
                let (first, last) = (first_hash(cell, 2), first_hash(cell + 1, 2).wrapping_sub(1));
                assert_eq!(cells.find(&seam, first), 100 + cell as u64);
                assert_eq!(cells.find(&seam, last), 100 + cell as u64);
            }
        }
    }

    #[test]
    fn a_directory_that_has_no_room_in_the_region_is_elsewhere() {
        let core = pool_of(Traced::new(), |_| [0; _]);
        let (seam, cells) = (core.memory.seam().clone(), Cells::new(&core, 5, 2));
        let directory = core.memory.side().directory(5);
        cells.set(&seam, 0..4, 100);
        let region = core.backing().region();
        let take = || DramWords::in_region(region, 8);
        let taken: Vec<_> =
            std::iter::repeat_with(take).take_while(|words| words.offset() != 0).collect();
        assert!(directory.load(&seam, Ordering::Relaxed) != 0 && !taken.is_empty());
        cells.double(&seam);
        // The array before has no cells any more.
        assert_eq!(directory.load(&seam, Ordering::Relaxed), 0);
        assert_eq!((cells.depth(&seam), cells.find(&seam, u64::MAX)), (3, 100));
    }
}
