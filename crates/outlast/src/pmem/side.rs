//! The side table of a pool: DRAM that is addressed by numbers and offsets, and holds no pointer.
//!
//! It lies below the shadow, in the same reservation. Its content follows from the file, so it is
//! rebuilt after every opening.
//!
//! | byte | content | at opening |
//! |---:|---|---|
//! | 0 | [stripes](SideTable::stripe): 4,096 version locks | 0 |
//! | 32,768 | [stash locks](SideTable::stash_lock): 32, in a line each | 0 |
//! | 36,864 | [hint words](SideTable::hint_unchecked): one for each 256 bytes of the pool | arbitrary |

use super::SharedWord;

/// Bytes before the hint words. They begin as zeros.
pub(crate) const SIDE_FIXED: u64 = 36 << 10;
/// Number of bytes of the pool per byte of hint words.
pub(crate) const SIDE_SHARE: u64 = 32;

/// The number of stripes.
pub const STRIPES: usize = 4096;
/// The number of stash locks.
pub const STASH_LOCKS: usize = 32;

const STASH_LOCKS_AT: usize = STRIPES;
const LINE_WORDS: usize = 8;

const _: () = assert!((STASH_LOCKS_AT + STASH_LOCKS * LINE_WORDS) * 8 <= SIDE_FIXED as usize);

/// Returns the size of the side table of a pool of this many bytes.
pub(crate) const fn side_bytes(len: u64) -> u64 {
    SIDE_FIXED + len.div_ceil(SIDE_SHARE)
}

/// The side table of a pool.
#[derive(Debug)]
pub struct SideTable(*const SharedWord);

impl SideTable {
    /// Wraps the table that begins at `start`.
    ///
    /// # Safety
    /// `start` is aligned to 64. The table's words stay mapped and are accessed as atomics for as
    /// long as this value is used: [`side_bytes`] of the pool's length, which may
    /// grow.
    pub(super) unsafe fn new(start: *const u8) -> SideTable {
        SideTable(start.cast())
    }

    #[inline(always)]
    fn fixed(&self, index: usize) -> &SharedWord {
        assert!(index < SIDE_FIXED as usize / 8, "a word of the fixed part");
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

    /// Returns the hint word of the 256 bytes at `offset`.
    ///
    /// # Safety
    /// `offset` is a multiple of 256, and lies inside the pool.
    #[inline(always)]
    pub unsafe fn hint_unchecked(&self, offset: u64) -> &SharedWord {
        debug_assert!(offset.is_multiple_of(8 * SIDE_SHARE));
        // SAFETY: the table has a word for each 256 bytes of the pool (the promise of `new`).
        unsafe { &*self.0.add((SIDE_FIXED / 8 + offset / (8 * SIDE_SHARE)) as usize) }
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
        for offset in (0..1 << 16).step_by(256) {
            // SAFETY: as above.
            add(unsafe { table.hint_unchecked(offset) });
        }
        assert!(all.iter().all(|at| (4096..4096 + side_bytes(1 << 16) as usize).contains(at)));
    }
}
