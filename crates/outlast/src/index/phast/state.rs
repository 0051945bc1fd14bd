//! The DRAM state of leaves, and slabs.

use crate::pmem::{Seam, Shared, SharedWord};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The state of a leaf: which slots are taken, how many inserts are in progress, and whether
/// another change is. It takes the place of the paper's shadow bitmap and read-write lock.
///
/// ```text
///    63       62      61      56 55                        0
/// +--------+-------+------------+---------------------------+
/// | CLOSED | BUSY  |  inserts   |      slots in use         |
/// +--------+-------+------------+---------------------------+
/// ```
///
/// A slot is taken from the moment an insert reserves it until the leaf is *compacted*. A removal
/// alone does not free it.
///
/// - `inserts` counts the inserts in progress. While there is one, a visible bit of the leaf may
///   not be durable.
/// - `BUSY`: one thread is updating or removing, and its change may not be durable.
/// - `CLOSED`: no insert, update or removal begins, because the leaf is going to be compacted,
///   split or merged as soon as the current ones have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State(pub(super) u64);

pub(super) const SLOT_BITS: u64 = (1 << 56) - 1;
const INSERT: u64 = 1 << 56;
const INSERTS: u64 = 0x3f << 56;
pub(super) const BUSY: u64 = 1 << 62;
pub(super) const CLOSED: u64 = 1 << 63;

impl State {
    /// Returns the state of a leaf in which no thread is active.
    pub(super) fn at_rest(slots: u64) -> State {
        State(slots & SLOT_BITS)
    }

    #[inline(always)]
    pub(super) fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    #[inline(always)]
    pub(super) fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    #[inline(always)]
    pub(super) fn has_inserts(self) -> bool {
        self.0 & INSERTS != 0
    }

    /// Returns whether the same slots are taken as in another state.
    pub(super) fn has_slots_of(self, other: State) -> bool {
        (self.0 ^ other.0) & SLOT_BITS == 0
    }

    /// Returns whether something visible in the leaf may not be durable.
    #[inline(always)]
    pub(super) fn is_tentative(self) -> bool {
        self.0 & (INSERTS | BUSY) != 0
    }

    /// Returns a free slot among the first `slots`: if possible, in the line that begins with slot
    /// `line`, or else in the adjacent line, which processors often fetch with it.
    #[inline(always)]
    pub(super) fn free_slot(self, slots: u32, line: u32) -> Option<u32> {
        let free = !self.0 & ((1 << slots) - 1);
        let near = free & 0xf << line;
        let same_pair = free & 0xff << (line & !7);
        let near = if near != 0 { near } else { same_pair };
        let slot = if near != 0 { near } else { free }.trailing_zeros();
        (free != 0).then_some(slot)
    }

    /// Adds an insert in progress, into this slot.
    #[inline(always)]
    pub(super) fn inserting(self, slot: u32) -> State {
        State((self.0 | 1 << slot) + INSERT)
    }
}

/// A leaf's DRAM state. Its number in the slab is its handle.
#[derive(Default)]
pub(super) struct Leaf {
    /// See [`State`].
    state: SharedWord,
    /// The leaf's offset, with the flags [`DAMAGED`], [`BLANK`] and [`UNKNOWN`] in its lowest bits.
    offset: SharedWord,
}

/// Marks the offset of a leaf that cannot be used.
pub(super) const DAMAGED: u64 = 1;
/// Marks the offset of a leaf whose free slots are blank, durably. This stays so: no operation that
/// has stored a pair frees its slot, before the leaf is compacted, split or merged, and these make
/// the slots that they free blank.
pub(super) const BLANK: u64 = 2;
/// Marks the offset of a leaf whose free slots must be made blank before the next insert: what a
/// removal or a crash has left in them is not known.
pub(super) const UNKNOWN: u64 = 4;

impl Leaf {
    /// Returns the leaf's offset, with [`DAMAGED`] set if the leaf cannot be used.
    #[inline(always)]
    pub(super) fn offset(&self, seam: &impl Seam) -> u64 {
        // Acquire: pairs with the Release in `begin`.
        self.offset.load(seam, Ordering::Acquire) & !(BLANK | UNKNOWN)
    }

    /// Returns which of the flags [`BLANK`] and [`UNKNOWN`] is set. Neither is in a leaf that has no
    /// blank slots. A thread that has reserved a slot gets the flag that was set when the leaf was
    /// last opened. Any other thread can get an older one.
    #[inline(always)]
    pub(super) fn free_slots_are(&self, seam: &impl Seam) -> u64 {
        self.offset.load(seam, Ordering::Relaxed) & (BLANK | UNKNOWN)
    }

    /// Initializes the state of a leaf that no other thread knows yet.
    pub(super) fn begin(&self, seam: &impl Seam, offset: u64, state: State) {
        // Release: pairs with the Acquire in `exchange`. A thread that still has this handle from
        // an earlier leaf, and announces itself in the new state, then sees that its node has
        // changed.
        self.state.store(seam, state.0, Ordering::Release);
        // Release: pairs with the Acquire in `offset`.
        self.offset.store(seam, offset, Ordering::Release);
    }

    #[inline(always)]
    pub(super) fn state(&self, seam: &impl Seam) -> State {
        // Acquire: pairs with the Release in `finish_insert`, `finish_change` and `open`, so that
        // what had become durable before is visible.
        State(self.state.load(seam, Ordering::Acquire))
    }

    /// Replaces the state `old` by `new`. Returns whether the state was `old`.
    #[inline(always)]
    pub(super) fn exchange(&self, seam: &impl Seam, old: State, new: State) -> bool {
        // Acquire: pairs with the Release in `finish_insert`, `finish_change` and `open`, so that
        // what earlier threads did in the leaf is visible. Release: orders the new state after this
        // thread's earlier stores. What others have to wait for is visible only through Release
        // stores and exchanges, so a thread that sees it also sees the bit that makes it wait.
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        self.state.compare_exchange(seam, old.0, new.0, order).is_ok()
    }

    /// Ends an insert that is durable, or that was given up after it had stored its pair: then its
    /// slot stays in use.
    #[inline(always)]
    pub(super) fn finish_insert(&self, seam: &impl Seam) {
        // Release: pairs with the Acquire in `state` and `exchange`.
        self.state.fetch_sub(seam, INSERT, Ordering::Release);
    }

    /// Ends an insert that has stored nothing, and frees its slot.
    #[inline(always)]
    pub(super) fn give_up_insert(&self, seam: &impl Seam, slot: u32) {
        self.state.fetch_sub(seam, INSERT | 1 << slot, Ordering::Release);
    }

    /// Ends an update or removal, which is durable.
    #[inline(always)]
    pub(super) fn finish_change(&self, seam: &impl Seam) {
        // Release: as in `finish_insert`.
        self.state.fetch_sub(seam, BUSY, Ordering::Release);
    }

    /// Opens the leaf to other threads again, with `slots` as the slots in use if they have
    /// changed. Then the caller has made all others blank, durably, if the leaf has blank slots. Only
    /// the thread that closed the leaf does this.
    #[inline(always)]
    pub(super) fn open(&self, seam: &impl Seam, slots: Option<u64>) {
        match slots {
            Some(slots) => {
                let offset = self.offset.load(seam, Ordering::Relaxed);
                if offset & UNKNOWN != 0 {
                    self.offset.store(seam, offset & !UNKNOWN | BLANK, Ordering::Release);
                }
                // Release: as in `finish_insert`.
                self.state.store(seam, State::at_rest(slots).0, Ordering::Release);
            }
            None => {
                self.state.fetch_and(seam, !CLOSED, Ordering::Release);
            }
        }
    }
}

/// The number of chunks of a slab, each twice as large as the one before.
const CHUNKS: usize = 26;
/// The number of items of the first chunk.
const FIRST: u32 = 64;

/// A type for which zero bytes are a value.
///
/// # Safety
/// Zero bytes must be a value of the type.
pub(super) unsafe trait Zeroed: Send + Sync {}
// SAFETY: two atomics.
unsafe impl Zeroed for Leaf {}
// SAFETY: an atomic.
unsafe impl Zeroed for SharedWord {}
// SAFETY: an atomic pointer, for which zero bytes are null.
unsafe impl<T: Send + Sync> Zeroed for Shared<AtomicPtr<T>> {}

/// Items that are found by number and never move. Their memory keeps its type until the slab is
/// dropped. So a thread with an old number may read an item that is in use for something else, but
/// never a value of another type.
///
/// The system provides the memory page by page, when it is touched.
pub(super) struct Slab<T> {
    /// Pointers to the first items of the chunks that exist; null for the others.
    chunks: [Shared<AtomicPtr<T>>; CHUNKS],
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Numbers from here on were never given out.
    next: u32,
    numbers: Vec<u32>,
}

impl Free {
    fn take(&mut self) -> u32 {
        self.numbers.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

/// Numbers of a slab that a thread has taken at once. Dropping this gives back those that are left.
pub(super) struct Stock<'s, S: Seam, T: Zeroed> {
    slab: &'s Slab<T>,
    seam: &'s S,
    numbers: Vec<u32>,
}

impl<S: Seam, T: Zeroed> Stock<'_, S, T> {
    /// Gives out a number.
    pub(super) fn take(&mut self) -> u32 {
        if self.numbers.is_empty() {
            let mut free = self.seam.lock(&self.slab.free);
            self.numbers.extend((0..64).map(|_| free.take()));
            self.numbers.reverse();
        }
        let number = self.numbers.pop().expect("there are some");
        self.slab.reach(self.seam, number);
        number
    }
}

impl<S: Seam, T: Zeroed> Drop for Stock<'_, S, T> {
    fn drop(&mut self) {
        self.seam.lock(&self.slab.free).numbers.append(&mut self.numbers);
    }
}

/// Returns chunk and place of a number.
#[inline(always)]
fn place(number: u32) -> (usize, usize) {
    let shifted = u64::from(number) + u64::from(FIRST);
    let chunk = shifted.ilog2() - FIRST.ilog2();
    (chunk as usize, (shifted - (u64::from(FIRST) << chunk)) as usize)
}

/// Returns the number of items of a chunk.
const fn chunk_len(chunk: usize) -> usize {
    (FIRST as usize) << chunk
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        for (chunk, first) in self.chunks.iter_mut().enumerate() {
            let first = *first.alone().get_mut();
            if !first.is_null() {
                // SAFETY: made by `make`, with this many items, and freed only here.
                drop(unsafe {
                    Box::from_raw(ptr::slice_from_raw_parts_mut(first, chunk_len(chunk)))
                });
            }
        }
    }
}

impl<T: Zeroed> Slab<T> {
    pub(super) fn new() -> Self {
        let chunks = [const { Shared::<AtomicPtr<T>>::new(ptr::null_mut()) }; CHUNKS];
        Slab { chunks, free: Mutex::default() }
    }

    /// Returns the item of a number that was given out at some time.
    #[inline(always)]
    pub(super) fn get(&self, seam: &impl Seam, number: u32) -> &T {
        let (chunk, place) = place(number);
        // Acquire: pairs with the Release in `make`.
        let first = self.chunks[chunk].load(seam, Ordering::Acquire);
        assert!(!first.is_null(), "a number that was given out");
        // SAFETY: `make` has stored it: a chunk that is large enough for the place that `place`
        // returns. It stays until the slab is dropped.
        unsafe { &*first.add(place) }
    }

    /// Returns the item of any number, whether or not it was given out.
    #[inline(always)]
    pub(super) fn reach(&self, seam: &impl Seam, number: u32) -> &T {
        let (chunk, place) = place(number);
        // Acquire: as in `get`.
        let mut first = self.chunks[chunk].load(seam, Ordering::Acquire);
        if first.is_null() {
            first = self.make(seam, chunk);
        }
        // SAFETY: as in `get`.
        unsafe { &*first.add(place) }
    }

    /// Makes a chunk, unless another thread has. Returns its first item.
    #[cold]
    fn make(&self, seam: &impl Seam, chunk: usize) -> *mut T {
        let items = Box::<[T]>::new_zeroed_slice(chunk_len(chunk));
        // SAFETY: zero bytes are a value of the type.
        let items = Box::into_raw(unsafe { items.assume_init() });
        // Release: pairs with the Acquire in `get` and `reach`.
        let order = (Ordering::Release, Ordering::Acquire);
        let first = items.cast::<T>();
        match self.chunks[chunk].compare_exchange(seam, ptr::null_mut(), first, order) {
            Ok(_) => first,
            Err(other) => {
                // SAFETY: made above, and no other thread knows of it.
                drop(unsafe { Box::from_raw(items) });
                other
            }
        }
    }

    /// Gives out a number.
    pub(super) fn take(&self, seam: &impl Seam) -> u32 {
        let number = seam.lock(&self.free).take();
        self.reach(seam, number);
        number
    }

    /// Returns a thread's stock of numbers, for a thread that takes many.
    pub(super) fn stock<'s, S: Seam>(&'s self, seam: &'s S) -> Stock<'s, S, T> {
        Stock { slab: self, seam, numbers: Vec::new() }
    }

    /// Calls `each` for every item that has memory.
    pub(super) fn each_mut(&mut self, mut each: impl FnMut(&mut T)) {
        for (chunk, first) in self.chunks.iter_mut().enumerate() {
            let first = *first.alone().get_mut();
            if !first.is_null() {
                // SAFETY: a chunk of this many items, made by `make`. Nothing else has the slab.
                let items = unsafe { std::slice::from_raw_parts_mut(first, chunk_len(chunk)) };
                items.iter_mut().for_each(&mut each);
            }
        }
    }

    /// Takes a number back.
    pub(super) fn give(&self, seam: &impl Seam, number: u32) {
        seam.lock(&self.free).numbers.push(number);
    }

    /// Returns a number that is greater than all numbers that were ever given out.
    pub(super) fn numbers(&self, seam: &impl Seam) -> u32 {
        seam.lock(&self.free).next
    }

    /// Returns how many numbers are in use.
    pub(super) fn in_use(&self, seam: &impl Seam) -> u64 {
        let free = seam.lock(&self.free);
        u64::from(free.next) - free.numbers.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::{FlushMode, Real};

    #[test]
    fn numbers_have_places_of_their_own() {
        let mut seen = std::collections::HashSet::new();
        for number in 0..5000 {
            let (chunk, at) = place(number);
            assert!(at < (FIRST as usize) << chunk);
            assert!(seen.insert((chunk, at)));
        }
        assert_eq!((place(0), place(63), place(64)), ((0, 0), (0, 63), (1, 0)));
    }

    #[test]
    fn numbers_are_given_out_again() {
        let seam = Real::new(FlushMode::None);
        let slab = Slab::<SharedWord>::new();
        let numbers: Vec<_> = (0..200).map(|_| slab.take(&seam)).collect();
        slab.get(&seam, numbers[150]).store(&seam, 7, Ordering::Relaxed);
        slab.give(&seam, numbers[150]);
        assert_eq!(slab.in_use(&seam), 199);
        assert_eq!(slab.take(&seam), numbers[150]);
        assert_eq!(
            slab.get(&seam, 150).load(&seam, Ordering::Relaxed),
            7,
            "the memory stays what it was"
        );
    }

    #[test]
    fn a_state_tells_who_is_at_work() {
        let state = State::at_rest(0b1011);
        assert_eq!(state.free_slot(56, 0), Some(2));
        assert_eq!(state.free_slot(56, 52), Some(52));
        assert_eq!(State::at_rest(0b1111).free_slot(8, 0), Some(4));
        assert_eq!(State::at_rest(0b1111 << 12).free_slot(56, 12), Some(8), "the line beside");
        assert_eq!(State::at_rest(0xff << 8).free_slot(56, 12), Some(0));
        assert_eq!(State::at_rest(0b1111).free_slot(4, 0), None);
        let two = state.inserting(2).inserting(4);
        assert!(two.has_inserts() && two.is_tentative() && !two.is_busy());
        let seam = Real::new(FlushMode::None);
        let leaf = Leaf::default();
        leaf.begin(&seam, 1024, two);
        leaf.finish_insert(&seam);
        leaf.give_up_insert(&seam, 4);
        assert_eq!(leaf.state(&seam), State::at_rest(0b1111));
        let full = (0..56).fold(State::at_rest(0), State::inserting);
        assert!(!full.is_busy() && full.0 & SLOT_BITS == SLOT_BITS, "counts do not spill");
    }
}
