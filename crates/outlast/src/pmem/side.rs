//! The side table of a pool: DRAM that is addressed by numbers and offsets, and holds no pointer.
//!
//! It is the first part of the pool's [region](super::Region). Its content follows from the file, so it
//! is rebuilt after every opening.
//!
//! | byte | content | at opening |
//! |---:|---|---|
//! | 0 | [stripes](SideTable::stripe): 4,096 version locks | 0 |
//! | 32,768 | [stash locks](SideTable::stash_lock): 32, in a line each | 0 |
//! | 34,816 | the region's [header](SideTable::header): magic word; offset of the hint words; offset and number of the bytes for cells | 0 |
//! | 35,840 | a [directory word](SideTable::directory) for each map: offset of its array of cells, and depth | 0 |
//! | 36,864 | [hint words](SideTable::hint_unchecked): one for each 256 bytes of the pool | arbitrary |

use super::SharedWord;

/// The offset of the hint words. What comes before them begins as zeros.
pub(super) const HINTS_AT: u64 = 36 << 10;
/// Number of bytes of the pool per byte of hint words.
const SIDE_SHARE: u64 = 32;

/// The number of stripes.
pub const STRIPES: usize = 4096;
/// The number of stash locks.
pub const STASH_LOCKS: usize = 32;

/// The number of directory words.
pub const DIRECTORIES: usize = 128;

const STASH_LOCKS_AT: usize = STRIPES;
const LINE_WORDS: usize = 8;
const HEADER_AT: usize = STASH_LOCKS_AT + STASH_LOCKS * LINE_WORDS;
const HEADER_WORDS: usize = 128;
const DIRECTORIES_AT: usize = HEADER_AT + HEADER_WORDS;

const _: () = assert!((DIRECTORIES_AT + DIRECTORIES) * 8 == HINTS_AT as usize);

/// Returns the size of the side table of a pool of this many bytes.
pub(super) const fn side_bytes(len: u64) -> u64 {
    HINTS_AT + len.div_ceil(SIDE_SHARE)
}

/// The side table of a pool.
#[derive(Debug)]
pub struct SideTable(*const SharedWord);

impl SideTable {
    /// Wraps the table that begins at `start`.
    ///
    /// # Safety
    /// `start` is aligned to 64. The table's words stay mapped and are accessed as atomics for as
    /// long as this value is used: [`side_bytes`] of the pool's length, which may grow.
    pub(super) unsafe fn new(start: *const u8) -> SideTable {
        SideTable(start.cast())
    }

    #[inline(always)]
    fn fixed(&self, index: usize) -> &SharedWord {
        assert!(index < HINTS_AT as usize / 8, "a word of the fixed part");
        // SAFETY: inside the fixed part, which every side table has (the promise of `new`).
        unsafe { &*self.0.add(index) }
    }

    /// Returns the stripe of the 256 bytes at `offset`. Adjacent ones have different stripes.
    #[inline(always)]
    pub fn stripe(&self, offset: u64) -> &SharedWord {
        self.fixed((offset / (8 * SIDE_SHARE)) as usize % STRIPES)
    }

    /// Returns a stash lock.
    #[inline(always)]
    pub fn stash_lock(&self, number: usize) -> &SharedWord {
        self.fixed(STASH_LOCKS_AT + (number % STASH_LOCKS) * LINE_WORDS)
    }

    /// Returns a word of the region's header. All are 0 until the region has cells.
    pub fn header(&self, number: usize) -> &SharedWord {
        self.fixed(HEADER_AT + number % HEADER_WORDS)
    }

    /// Returns the directory word of the map whose root is in this slot. It holds the offset in the
    /// region of the map's current array of cells, a multiple of 64, plus the array's depth. It is 0 if
    /// the map has none, or if the region had no room for it.
    pub fn directory(&self, slot: usize) -> &SharedWord {
        self.fixed(DIRECTORIES_AT + slot % DIRECTORIES)
    }

    /// Returns the hint word of the 256 bytes at `offset`.
    ///
    /// # Safety
    /// `offset` is a multiple of 256, and lies inside the pool.
    #[inline(always)]
    pub unsafe fn hint_unchecked(&self, offset: u64) -> &SharedWord {
        debug_assert!(offset.is_multiple_of(8 * SIDE_SHARE));
        // SAFETY: the table has a word for each 256 bytes of the pool (the promise of `new`).
        unsafe { &*self.0.add((HINTS_AT / 8 + offset / (8 * SIDE_SHARE)) as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_words_are_the_same() {
        // SAFETY: no word is accessed; only addresses are compared.
        let table = unsafe { SideTable::new(std::ptr::without_provenance(4096)) };
        let mut all = std::collections::HashSet::new();
        let mut add = |word: *const SharedWord| assert!(all.insert(word.addr()));
        (0..STRIPES as u64).for_each(|stripe| add(table.stripe(256 * stripe)));
        (0..STASH_LOCKS).for_each(|lock| add(table.stash_lock(lock)));
        let lines: std::collections::HashSet<_> = (0..STASH_LOCKS)
            .map(|lock| std::ptr::from_ref(table.stash_lock(lock)).addr() / 64)
            .collect();
        assert_eq!(lines.len(), STASH_LOCKS, "a line each");
        (0..HEADER_WORDS).for_each(|number| add(table.header(number)));
        (0..DIRECTORIES).for_each(|slot| add(table.directory(slot)));
        for offset in (0..1 << 16).step_by(256) {
            // SAFETY: as above.
            add(unsafe { table.hint_unchecked(offset) });
        }
        assert!(all.iter().all(|at| (4096..4096 + side_bytes(1 << 16) as usize).contains(at)));
    }
}
