//! Persistent memory for one structure: a bump allocator over the seam.

use crate::Full;
use outlast::internals::pmem::{Mapping, Memory, Offset, Point, Seam, Word};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes per cache line.
pub const LINE: u64 = 64;

/// The commit point of all accesses. The structures have no table of commit points, because the
/// proof harness does not test them.
static AT: Point = Point::new("peers", "access").store().flush().fence();

/// Mapped memory from which one structure allocates, and through which it does every access.
///
/// Places are byte offsets, multiples of 8. Offset 0 is never allocated and means "none". The
/// allocator's own state lies in DRAM and costs no flush: what the authors' allocators cost is not
/// part of the comparison. Freed blocks are reused for blocks of the same size. The memory stays
/// mapped as long as the arena, so a thread that reads a freed block reads arbitrary words, but no
/// access is ever undefined.
pub struct Arena<S> {
    memory: Memory<S>,
    len: u64,
    next: AtomicU64,
    freed: Mutex<HashMap<u64, Vec<u64>>>,
    // After the memory that lies in it.
    mapping: Mapping,
}

impl<S: Seam> Arena<S> {
    /// Creates an arena of at most `bytes` in the process's memory, of which pages that are never
    /// touched take no space.
    ///
    /// # Panics
    /// If the process may not have that much address space.
    pub fn new(seam: S, bytes: u64) -> Arena<S> {
        let bytes = bytes.next_multiple_of(2 << 20);
        let mapping = Mapping::anonymous(bytes, bytes).expect("address space for the arena");
        Self::on(mapping, seam)
    }

    /// Creates an arena on a mapping, which the caller has filled with zeros.
    pub fn on(mapping: Mapping, seam: S) -> Arena<S> {
        let len = mapping.len();
        let (base, shadow) = (mapping.base(), mapping.shadow());
        let side = mapping.region().start();
        // SAFETY: the mapping's base and side table are aligned to 2 MiB, and its shadow precedes the base
        // by a multiple of a line. All stay mapped until the mapping is dropped, which the arena owns and
        // drops last; nothing else has them.
        let memory = unsafe { Memory::new(base, shadow, side, len, seam) };
        let (next, freed) = (AtomicU64::new(4096), Mutex::default());
        Arena { memory, len, next, freed, mapping }
    }

    /// Touches the first bytes, so that no operation has to wait for their pages.
    #[must_use]
    pub fn touched(self, bytes: u64) -> Arena<S> {
        self.mapping.populate(0..bytes.min(self.len));
        self
    }

    /// The seam that accesses the memory.
    pub fn seam(&self) -> &S {
        self.memory.seam()
    }

    /// Number of bytes that were allocated and never freed, with those lost to alignment.
    pub fn allocated(&self) -> u64 {
        let freed = self.freed.lock().unwrap_or_else(|e| e.into_inner());
        let reusable: u64 = freed.iter().map(|(bytes, blocks)| bytes * blocks.len() as u64).sum();
        self.next.load(Ordering::Relaxed) - 4096 - reusable
    }

    /// Allocates `bytes` that begin with a line. They are zero, unless they are those of a freed
    /// block.
    ///
    /// # Errors
    /// [`Full`]
    pub fn alloc(&self, bytes: u64) -> Result<u64, Full> {
        self.alloc_aligned(bytes, LINE)
    }

    /// Like [`alloc`](Self::alloc), with an alignment that is a power of two.
    ///
    /// # Errors
    /// [`Full`]
    pub fn alloc_aligned(&self, bytes: u64, alignment: u64) -> Result<u64, Full> {
        debug_assert!(alignment.is_power_of_two() && alignment >= 8);
        let bytes = bytes.next_multiple_of(8);
        {
            let mut freed = self.freed.lock().unwrap_or_else(|e| e.into_inner());
            let blocks = freed.get_mut(&bytes);
            if let Some(block) = blocks.and_then(|b| b.pop_if(|b| b.is_multiple_of(alignment))) {
                return Ok(block);
            }
        }
        let taken = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            let end = next.checked_next_multiple_of(alignment)?.checked_add(bytes)?;
            (end <= self.len).then_some(end)
        });
        Ok(taken.map_err(|_| Full)?.next_multiple_of(alignment))
    }

    /// Frees a block of this many bytes.
    pub fn free(&self, block: u64, bytes: u64) {
        let mut freed = self.freed.lock().unwrap_or_else(|e| e.into_inner());
        freed.entry(bytes.next_multiple_of(8)).or_default().push(block);
    }

    #[inline(always)]
    fn word(&self, at: u64) -> &Word {
        assert!(at.is_multiple_of(8) && at < self.len, "offset {at:#x} in the arena");
        // SAFETY: a whole aligned word inside the memory, as just checked (the length is a multiple
        // of 8), which is what `Memory::at` checks.
        unsafe { self.memory.at_unchecked(Offset::<Word>::new(at)) }
    }

    /// Loads a word.
    #[inline(always)]
    pub fn load(&self, at: u64) -> u64 {
        self.memory.load(self.word(at))
    }

    /// Loads a word with Acquire, which pairs with [`store_release`](Self::store_release) and
    /// [`swap_if`](Self::swap_if).
    #[inline(always)]
    pub fn load_acquire(&self, at: u64) -> u64 {
        self.memory.load_acquire(self.word(at))
    }

    /// Stores a word.
    #[inline(always)]
    pub fn store(&self, at: u64, value: u64) {
        self.memory.store(self.word(at), value, &AT);
    }

    /// Stores a word with Release, after everything that this thread stored before.
    #[inline(always)]
    pub fn store_release(&self, at: u64, value: u64) {
        self.memory.store_release(self.word(at), value, &AT);
    }

    /// Stores `new` if the word holds `current`. Returns whether it did.
    #[inline(always)]
    pub fn swap_if(&self, at: u64, current: u64, new: u64) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.seam().compare_exchange(self.word(at), current, new, success, failure, &AT).is_ok()
    }

    /// Starts the flush of the lines that hold these bytes.
    #[inline(always)]
    pub fn flush(&self, at: u64, bytes: u64) {
        let words = self.memory.words(at, bytes.next_multiple_of(8)).expect("inside the arena");
        self.memory.flush_words(words, &AT);
    }

    /// Waits for this thread's flushes.
    #[inline(always)]
    pub fn fence(&self) {
        self.memory.fence(&AT);
    }

    /// Flushes the lines that hold these bytes, and waits.
    #[inline(always)]
    pub fn persist(&self, at: u64, bytes: u64) {
        self.flush(at, bytes);
        self.fence();
    }

    /// Stores a word and makes it durable.
    #[inline(always)]
    pub fn store_durably(&self, at: u64, value: u64) {
        self.store_release(at, value);
        self.persist(at, 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast::internals::pmem::{Counts, FlushMode, Real, Traced};

    #[test]
    fn blocks_are_aligned_disjoint_and_bounded() {
        let arena = Arena::new(Real::new(FlushMode::None), 2 << 20);
        let blocks: Vec<u64> =
            (0..100).map(|i| arena.alloc_aligned(8 + i, 8 << (i % 7)).unwrap()).collect();
        for (i, pair) in blocks.windows(2).enumerate() {
            assert!(pair[0] + 8 + i as u64 <= pair[1]);
            assert!(pair[0].is_multiple_of(8 << (i % 7)) && pair[0] > 0);
        }
        assert_eq!(arena.alloc(2 << 20), Err(Full));
        let last = arena.alloc((2 << 20) - 4096 - arena.allocated().next_multiple_of(64)).unwrap();
        arena.store(last, 7);
        assert_eq!(arena.load(last), 7);
        assert_eq!(arena.alloc(8), Err(Full));
    }

    #[test]
    fn freed_blocks_are_reused_for_their_size() {
        let arena = Arena::new(Real::new(FlushMode::None), 2 << 20);
        let (small, large) = (arena.alloc(64).unwrap(), arena.alloc(256).unwrap());
        arena.free(large, 256);
        assert_eq!(arena.allocated(), 64);
        assert_ne!(arena.alloc(64), Ok(large));
        assert_eq!(arena.alloc(256), Ok(large));
        arena.free(small, 64);
        assert_eq!(arena.alloc(64), Ok(small));
    }

    #[test]
    #[should_panic(expected = "in the arena")]
    fn an_offset_outside_is_refused() {
        Arena::new(Real::new(FlushMode::None), 2 << 20).load(2 << 20);
    }

    #[test]
    fn the_recorder_sees_every_access() {
        let arena = Arena::new(Traced::new(), 2 << 20);
        let at = arena.alloc(128).unwrap();
        arena.seam().start(true);
        assert_eq!(arena.load(at), 0);
        arena.store(at + 56, 1);
        assert!(arena.swap_if(at + 64, 0, 2));
        assert!(!arena.swap_if(at + 64, 0, 3));
        arena.persist(at + 56, 16);
        let counts = Counts::of(&arena.seam().take());
        assert_eq!(counts, Counts { stores: 2, lines: 2, fences: 1, lines_read: 1 });
    }
}
