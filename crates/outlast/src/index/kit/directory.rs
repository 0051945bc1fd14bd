//! Directories in DRAM, which map the first bits of a hash to a segment.

use super::walk::HashRange;
use crate::pmem::{Seam, Shared, SharedWord};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A block that holds the records whose hashes begin with the same bits, its *prefix*. Its extent
/// was checked to lie inside the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub(crate) offset: u64,
    /// The number of bits of its prefix.
    pub(crate) depth: u32,
    /// The first hash of its range.
    pub(crate) low: u64,
}

impl Segment {
    /// Returns the last hash of the segment's range.
    pub(crate) fn high(self) -> u64 {
        self.low | (u64::MAX >> self.depth)
    }

    /// Returns the segment's range.
    pub(crate) fn range(self) -> HashRange {
        HashRange { low: self.low, high: self.high() }
    }

    pub(crate) fn holds(self, hash: u64) -> bool {
        (hash ^ self.low) >> (64 - self.depth) == 0
    }
}

/// The entries for one depth. An entry holds a segment's offset and, from bit 48, its depth. It is
/// 0 if the segment is not ready for use.
struct Entries {
    depth: u32,
    entries: Box<[SharedWord]>,
}

impl Entries {
    fn new(depth: u32) -> Entries {
        // The system zeroes the pages when they are first touched, so this takes the same time
        // however large the directory is.
        let entries = Box::<[SharedWord]>::new_zeroed_slice(1 << depth);
        // SAFETY: zero is a valid SharedWord.
        Entries { depth, entries: unsafe { entries.assume_init() } }
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        (hash >> (64 - self.depth)) as usize
    }

    /// Returns the entry at an index that [`index`](Entries::index) returned.
    #[inline(always)]
    fn entry(&self, index: usize) -> &SharedWord {
        debug_assert!(index < self.entries.len());
        // SAFETY: there are 2^depth entries, and `index` returns a number of `depth` bits.
        unsafe { self.entries.get_unchecked(index) }
    }
}

/// The entry by which an operation reached its segment.
#[derive(Clone, Copy)]
pub struct Way<'d> {
    entries: &'d Entries,
    index: usize,
    entry: u64,
}

impl Way<'_> {
    /// Returns the depth of the directory.
    pub(crate) fn depth(self) -> u32 {
        self.entries.depth
    }
}

/// A directory. It only grows.
pub(crate) struct DramDirectory {
    /// The entries, by depth. Those of smaller depths are kept for readers that still use them.
    /// Together they take no more space than the current ones.
    all: Box<[Shared<OnceLock<Entries>>]>,
    /// The current entries: one of `all`.
    current: Shared<AtomicPtr<Entries>>,
}

impl DramDirectory {
    /// Makes a directory of this depth, at least 1, without segments.
    pub(crate) fn new(seam: &impl Seam, depth: u32) -> Self {
        let all = (0..64).map(|_| Shared::once()).collect();
        let directory = DramDirectory { all, current: Shared::default() };
        directory.set_current(seam, Entries::new(depth));
        directory
    }

    /// Makes `entries` the current ones. The directory must not have had entries of that depth.
    fn set_current(&self, seam: &impl Seam, entries: Entries) {
        let depth = entries.depth as usize;
        let kept = self.all[depth].get_or_init(seam, || entries);
        // Release: pairs with the Acquire in `current`.
        self.current.store(seam, std::ptr::from_ref(kept).cast_mut(), Ordering::Release);
    }

    #[inline(always)]
    fn current(&self, seam: &impl Seam) -> &Entries {
        // Acquire: pairs with the Release in `set_current`.
        // SAFETY: `new` and `double` set this pointer, always to one of `all`. These neither move
        // nor are dropped before the directory.
        unsafe { &*self.current.load(seam, Ordering::Acquire) }
    }

    /// Returns the directory's depth.
    pub(crate) fn depth(&self, seam: &impl Seam) -> u32 {
        self.current(seam).depth
    }

    /// Returns the segment of a hash and the way to it. `None` if the segment is not ready for use.
    #[inline(always)]
    pub(crate) fn find(&self, seam: &impl Seam, hash: u64) -> Option<(Segment, Way<'_>)> {
        let entries = self.current(seam);
        let index = entries.index(hash);
        // Acquire: pairs with the Release in `fill`, so that the segment's content is visible.
        let entry = entries.entry(index).load(seam, Ordering::Acquire);
        (entry != 0).then(|| {
            let depth = (entry >> 48) as u32;
            let low = hash >> (64 - depth) << (64 - depth);
            let segment = Segment { offset: entry & ((1 << 48) - 1), depth, low };
            (segment, Way { entries, index, entry })
        })
    }

    /// Returns whether a way is still the one that the directory has for these hashes. It is not if the entry
    /// has changed, or if the directory was doubled.
    #[inline(always)]
    pub(crate) fn is_current(&self, seam: &impl Seam, way: Way<'_>) -> bool {
        std::ptr::eq(self.current(seam), way.entries)
            && way.entries.entry(way.index).load(seam, Ordering::Relaxed) == way.entry
    }

    /// Points the entries of a segment's range to the segment. The caller makes sure that threads
    /// that do this at the same time fill different ranges, and that no thread doubles the
    /// directory meanwhile.
    pub(crate) fn fill(&self, seam: &impl Seam, segment: Segment) {
        let current = self.current(seam);
        let first = current.index(segment.low);
        let entry = segment.offset | u64::from(segment.depth) << 48;
        for slot in &current.entries[first..first + (1 << (current.depth - segment.depth))] {
            // Release: pairs with the Acquire in `find`.
            slot.store(seam, entry, Ordering::Release);
        }
    }

    /// Doubles the directory. No other thread may fill or double it meanwhile.
    pub(crate) fn double(&self, seam: &impl Seam) {
        let narrow = self.current(seam);
        let wide = Entries::new(narrow.depth + 1);
        for (pair, entry) in wide.entries.chunks_exact(2).zip(&*narrow.entries) {
            let entry = entry.load(seam, Ordering::Relaxed);
            pair.iter().for_each(|twin| twin.store(seam, entry, Ordering::Relaxed));
        }
        self.set_current(seam, wide);
    }
}
