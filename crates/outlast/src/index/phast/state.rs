//! What this process keeps in DRAM of each leaf, and slabs of such things.

use crate::pmem::{Seam, Shared, SharedWord};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Which slots are taken, and who is at work in the leaf: the shadow bitmap.
///
/// ```text
///    63       62      61      56 55                        0
/// +--------+-------+------------+---------------------------+
/// | CLOSED | BUSY  |  inserts   |      slots in use         |
/// +--------+-------+------------+---------------------------+
/// ```
///
/// A slot is taken from the moment an insert reserves it until the leaf is *tidied*: a
/// removal alone does not free it. `inserts` counts those under way: while there is one, a
/// bit that can be seen in the leaf may not be durable. `BUSY`: one thread updates or
/// removes; what it changes may not be durable. `CLOSED`: nothing begins, because the leaf is
/// tidied, split or merged, as soon as what is under way has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State(pub(super) u64);

pub(super) const SLOT_BITS: u64 = (1 << 56) - 1;
const INSERT: u64 = 1 << 56;
const INSERTS: u64 = 0x3f << 56;
pub(super) const BUSY: u64 = 1 << 62;
pub(super) const CLOSED: u64 = 1 << 63;

impl State {
    /// That of a leaf in which nobody is at work.
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

    /// Whether the same slots are taken as in another state.
    pub(super) fn has_slots_of(self, other: State) -> bool {
        (self.0 ^ other.0) & SLOT_BITS == 0
    }

    /// Whether something that can be seen in the leaf may not be durable.
    #[inline(always)]
    pub(super) fn is_tentative(self) -> bool {
        self.0 & (INSERTS | BUSY) != 0
    }

    /// A free slot of so many: in the line that begins with this one, if there is one; or in
    /// the one beside it, which processors often fetch along.
    #[inline(always)]
    pub(super) fn free_slot(self, slots: u32, line: u32) -> Option<u32> {
        let free = !self.0 & ((1 << slots) - 1);
        let near = free & 0xf << line;
        let beside = free & 0xff << (line & !7);
        let near = if near != 0 { near } else { beside };
        let slot = if near != 0 { near } else { free }.trailing_zeros();
        (free != 0).then_some(slot)
    }

    /// With an insert under way, into this slot.
    #[inline(always)]
    pub(super) fn inserting(self, slot: u32) -> State {
        State((self.0 | 1 << slot) + INSERT)
    }
}

/// A leaf as this process knows it. Its place in a slab is its handle.
#[derive(Default)]
pub(super) struct Leaf {
    /// See [`State`].
    state: SharedWord,
    /// Its offset; [`DAMAGED`] beside it if it cannot be served.
    offset: SharedWord,
}

/// The leaf's offset is where it should be, and what stands there is no leaf.
pub(super) const DAMAGED: u64 = 1;

impl Leaf {
    #[inline(always)]
    pub(super) fn offset(&self, seam: &impl Seam) -> u64 {
        // Acquire: pairs with the Release in `begin`.
        self.offset.load(seam, Ordering::Acquire)
    }

    /// Begins its life, which nobody else knows of yet.
    pub(super) fn begin(&self, seam: &impl Seam, offset: u64, state: State) {
        // Release: pairs with the Acquire in `exchange`: who announces itself here sees that its
        // node has changed since.
        self.state.store(seam, state.0, Ordering::Release);
        // Release: pairs with the Acquire in `offset`.
        self.offset.store(seam, offset, Ordering::Release);
    }

    #[inline(always)]
    pub(super) fn state(&self, seam: &impl Seam) -> State {
        // Acquire: pairs with the Release of `finish` and `set_state`: what had become
        // durable before is seen.
        State(self.state.load(seam, Ordering::Acquire))
    }

    /// Whether the state was `old`, and is `new` now.
    #[inline(always)]
    pub(super) fn exchange(&self, seam: &impl Seam, old: State, new: State) -> bool {
        // Acquire: pairs with the Release in `finish` and `set_state`, so that what earlier
        // threads did in the leaf is seen. Release: what makes others wait is seen before what
        // they have to wait for.
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        self.state.compare_exchange(seam, old.0, new.0, order).is_ok()
    }

    /// An insert has ended: what it did is durable.
    #[inline(always)]
    pub(super) fn finish_insert(&self, seam: &impl Seam) {
        // Release: pairs with the Acquire in `state` and `exchange`.
        self.state.fetch_sub(seam, INSERT, Ordering::Release);
    }

    /// An insert has ended without effect: its slot is free.
    #[inline(always)]
    pub(super) fn give_up_insert(&self, seam: &impl Seam, slot: u32) {
        self.state.fetch_sub(seam, INSERT | 1 << slot, Ordering::Release);
    }

    /// A change has ended: what it did is durable.
    #[inline(always)]
    pub(super) fn finish_change(&self, seam: &impl Seam) {
        // Release: as in `finish_insert`.
        self.state.fetch_sub(seam, BUSY, Ordering::Release);
    }

    /// Lets others in again who were waiting because it is closed. By who closed it.
    #[inline(always)]
    pub(super) fn open(&self, seam: &impl Seam, slots: Option<u64>) {
        match slots {
            // Release: as in `finish_insert`.
            Some(slots) => self.state.store(seam, State::at_rest(slots).0, Ordering::Release),
            None => {
                self.state.fetch_and(seam, !CLOSED, Ordering::Release);
            }
        }
    }
}

/// Chunks of a slab, each twice as large as the one before.
const CHUNKS: usize = 26;
/// Items of the first one.
const FIRST: u32 = 64;

/// A type of which zero bytes are a value.
///
/// # Safety
/// They are.
pub(super) unsafe trait Zeroed: Send + Sync {}
// SAFETY: two atomics.
unsafe impl Zeroed for Leaf {}
// SAFETY: an atomic.
unsafe impl Zeroed for SharedWord {}
// SAFETY: an atomic pointer, which null is.
unsafe impl<T: Send + Sync> Zeroed for Shared<AtomicPtr<T>> {}

/// Things that are found by number, never move, and stay memory of their kind until the slab
/// is dropped: who has an old number reads something that has changed, and no other thing.
///
/// The system gives its memory page by page, as it is touched.
pub(super) struct Slab<T> {
    /// First items of the chunks that there are; of the others null.
    chunks: [Shared<AtomicPtr<T>>; CHUNKS],
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    /// Numbers from here on were never given out.
    next: u32,
    numbers: Vec<u32>,
}

/// Chunk and place of a number.
#[inline(always)]
fn place(number: u32) -> (usize, usize) {
    let shifted = u64::from(number) + u64::from(FIRST);
    let chunk = shifted.ilog2() - FIRST.ilog2();
    (chunk as usize, (shifted - (u64::from(FIRST) << chunk)) as usize)
}

/// Items of a chunk.
const fn chunk_len(chunk: usize) -> usize {
    (FIRST as usize) << chunk
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        for (chunk, first) in self.chunks.iter_mut().enumerate() {
            let first = *first.alone().get_mut();
            if !first.is_null() {
                // SAFETY: made by `make`, of so many items, and given back here once.
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

    /// The item of a number that was given out at some time.
    #[inline(always)]
    pub(super) fn get(&self, seam: &impl Seam, number: u32) -> &T {
        let (chunk, place) = place(number);
        // Acquire: pairs with the Release in `make`.
        let first = self.chunks[chunk].load(seam, Ordering::Acquire);
        assert!(!first.is_null(), "a number that was given out");
        // SAFETY: `make` has stored it, a chunk of so many items that the place is one of them
        // (`place`); it stays until the slab is dropped.
        unsafe { &*first.add(place) }
    }

    /// The item of any number, whether it was given out or not.
    #[inline(always)]
    pub(super) fn reach(&self, seam: &impl Seam, number: u32) -> &T {
        let (chunk, _) = place(number);
        if self.chunks[chunk].load(seam, Ordering::Acquire).is_null() {
            self.make(seam, chunk);
        }
        self.get(seam, number)
    }

    /// Makes a chunk, if nobody else has.
    #[cold]
    fn make(&self, seam: &impl Seam, chunk: usize) {
        let items = Box::<[T]>::new_zeroed_slice(chunk_len(chunk));
        // SAFETY: zero bytes are a value of the type.
        let items = Box::into_raw(unsafe { items.assume_init() });
        // Release: pairs with the Acquire in `get` and `reach`.
        let order = (Ordering::Release, Ordering::Relaxed);
        let first = items.cast::<T>();
        if self.chunks[chunk].compare_exchange(seam, ptr::null_mut(), first, order).is_err() {
            // SAFETY: made above, and nobody else knows of it.
            drop(unsafe { Box::from_raw(items) });
        }
    }

    /// Gives out a number.
    pub(super) fn take(&self, seam: &impl Seam) -> u32 {
        let number = {
            let mut free = seam.lock(&self.free);
            free.numbers.pop().unwrap_or_else(|| {
                free.next += 1;
                free.next - 1
            })
        };
        self.reach(seam, number);
        number
    }

    /// Each item that there is memory for.
    pub(super) fn each_mut(&mut self, mut each: impl FnMut(&mut T)) {
        for (chunk, first) in self.chunks.iter_mut().enumerate() {
            let first = *first.alone().get_mut();
            if !first.is_null() {
                // SAFETY: a chunk of so many items, made by `make`; nobody else has the slab.
                let items = unsafe { std::slice::from_raw_parts_mut(first, chunk_len(chunk)) };
                items.iter_mut().for_each(&mut each);
            }
        }
    }

    /// Takes a number back.
    pub(super) fn give(&self, seam: &impl Seam, number: u32) {
        seam.lock(&self.free).numbers.push(number);
    }

    /// Numbers that were given out at some time: all below this one.
    pub(super) fn numbers(&self, seam: &impl Seam) -> u32 {
        seam.lock(&self.free).next
    }

    /// Numbers that are given out.
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
