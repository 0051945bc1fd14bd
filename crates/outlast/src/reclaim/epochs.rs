//! The epochs of a pool. The parent module explains their use and why they are correct.
//! `outlast-check` compiles this file a second time, with the atomics of a model checker.

use super::sync::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Mutex, MutexGuard, OWNERS, SLOTS, asymmetric,
    fence, fence_after_exchange, heavy_fence, light_fence,
};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::TryLockError;
use std::sync::atomic::Ordering;

const COUNT_BITS: u32 = 16;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// The guards or visits of one epoch: the epoch in the high bits, their number in the low 16 bits;
/// 0 if the slot is empty.
#[repr(align(128))]
#[derive(Default)]
struct Slot(AtomicU64);

impl Slot {
    /// Replaces `old` with `new`, whose count is higher by one. Returns whether the slot held
    /// `old`.
    fn exchange(&self, old: u64, new: u64) -> bool {
        let done = self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if done {
            // Later loads must not be performed before the exchange.
            fence_after_exchange();
        }
        done
    }

    /// Decrements the count.
    fn leave(&self) {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(word & COUNT_MASK > 0, "the end of what has begun");
            let new = if word & COUNT_MASK == 1 { 0 } else { word - 1 };
            // Release: our reads of the block come before a collector sees that we have left.
            match self.0.compare_exchange(word, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(found) => word = found,
            }
        }
    }
}

/// A block waiting for the guards that may still read it.
#[derive(Debug, Clone, Copy)]
struct Retired {
    epoch: u64,
    offset: u64,
    bytes: u64,
}

/// A block that was retired while another thread held the limbo.
struct Spilled {
    block: Retired,
    next: *mut Spilled,
}

/// The epochs of one pool.
pub struct Epochs {
    epoch: AtomicU64,
    slots: Box<[Slot]>,
    /// Number of `slots` that have ever held a guard. The others need not be looked at.
    used: AtomicUsize,
    /// Slots for the visits of the [`OWNERS`] threads that have one of their own.
    own: Box<[Slot]>,
    /// Slots for the visits of all other threads.
    shared: Box<[Slot]>,
    /// Whether a collector issues the fence for all visitors.
    asymmetric: bool,
    /// Whether any block that visits can reach was ever retired.
    visited: AtomicBool,
    /// Retired blocks, by ascending epoch.
    limbo: Mutex<VecDeque<Retired>>,
    /// Blocks that could not be put into the limbo without waiting. Any thread may add to this
    /// list, and a thread that holds the limbo takes over the whole list.
    spilled: AtomicPtr<Spilled>,
    /// Bytes in `limbo` and `spilled`.
    limbo_bytes: AtomicU64,
}

/// A pinned epoch. It must be given back with [`Epochs::unpin`].
#[derive(Debug)]
#[must_use]
pub struct Pin {
    slot: u32,
}

/// A pinned epoch for the duration of an operation. Visits of a thread can be nested.
#[must_use]
pub struct Visit<'e> {
    kept: Kept<'e>,
    /// Makes the type `!Send`.
    here: PhantomData<*const ()>,
}

enum Kept<'e> {
    /// In the thread's own slot.
    Own(&'e Slot),
    /// In a slot that it shares with other threads, because it has none of its own.
    Shared(&'e Slot),
}

impl Drop for Visit<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match &mut self.kept {
            Kept::Own(slot) => {
                // Only this thread stores to its own slot.
                let word = slot.0.load(Ordering::Relaxed);
                debug_assert!(word & COUNT_MASK > 0, "the end of a visit that has begun");
                let left = if word & COUNT_MASK == 1 { 0 } else { word - 1 };
                // Release: pairs with the Acquire in `oldest_of`, as in `unpin`.
                slot.0.store(left, Ordering::Release);
            }
            Kept::Shared(slot) => slot.leave(),
        }
    }
}

impl Default for Epochs {
    fn default() -> Self {
        Epochs::new(asymmetric())
    }
}

impl Epochs {
    /// Creates the epochs of a pool, at the first one. `asymmetric` says whether one thread issues
    /// the [`heavy_fence`] for all.
    pub fn new(asymmetric: bool) -> Self {
        Epochs {
            epoch: AtomicU64::new(1),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            used: AtomicUsize::new(0),
            own: (0..OWNERS).map(|_| Slot::default()).collect(),
            shared: (0..SLOTS).map(|_| Slot::default()).collect(),
            asymmetric,
            visited: AtomicBool::new(false),
            limbo: Mutex::default(),
            spilled: AtomicPtr::new(null_mut()),
            limbo_bytes: AtomicU64::new(0),
        }
    }

    /// Pins the current epoch. `hint` spreads threads over the slots.
    pub fn pin(&self, hint: usize) -> Pin {
        let use_slot = |slot| {
            // Relaxed: the number only grows. A thread that reads a number without this slot has
            // read it before `exchange`'s fence, and so before this guard reads anything.
            if slot >= self.used.load(Ordering::Relaxed) {
                self.used.fetch_max(slot + 1, Ordering::SeqCst);
            }
        };
        Pin { slot: self.enter(&self.slots, hint, use_slot) as u32 }
    }

    /// Counts a guard or a visit of the current epoch into one of these slots. Returns the slot's
    /// index. Calls `before` for each slot that it tries.
    fn enter(&self, slots: &[Slot], hint: usize, before: impl Fn(usize)) -> usize {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let start = hint % SLOTS;
        // Looks for an empty slot, or one of the same epoch.
        for i in 0..SLOTS {
            let slot = (start + i) % SLOTS;
            let word = slots[slot].0.load(Ordering::Relaxed);
            let joinable = word >> COUNT_BITS == epoch && word & COUNT_MASK < COUNT_MASK;
            let new = if word == 0 { epoch << COUNT_BITS | 1 } else { word + 1 };
            if word == 0 || joinable {
                before(slot);
                if slots[slot].exchange(word, new) {
                    return slot;
                }
            }
        }
        // Every slot holds another epoch. Joins any of them, which keeps its older epoch alive a
        // little longer than necessary.
        let mut slot = start;
        loop {
            let word = slots[slot].0.load(Ordering::Relaxed);
            let new = if word == 0 { epoch << COUNT_BITS | 1 } else { word + 1 };
            before(slot);
            if word & COUNT_MASK < COUNT_MASK && slots[slot].exchange(word, new) {
                return slot;
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    /// Gives a pin back.
    #[expect(clippy::needless_pass_by_value, reason = "a pin is given back once")]
    pub fn unpin(&self, pin: Pin) {
        self.slots[pin.slot as usize].leave();
    }

    /// Pins the current epoch for an operation of the calling thread, which has the number
    /// `number`.
    #[inline(always)]
    pub fn begin_visit(&self, number: usize) -> Visit<'_> {
        let Some(slot) = self.own.get(number) else {
            let slot = self.enter(&self.shared, number, |_| ());
            return Visit { kept: Kept::Shared(&self.shared[slot]), here: PhantomData };
        };
        // Only this thread stores to its own slot.
        let word = slot.0.load(Ordering::Relaxed);
        if word == 0 {
            // Acquire: pairs with the addition in `begin`; see the module's documentation.
            let epoch = self.epoch.load(Ordering::Acquire);
            slot.0.store(epoch << COUNT_BITS | 1, Ordering::Relaxed);
            // Pairs with the fence in `collect_from` and `has_reached`: either they see our mark,
            // or we see what was unlinked before.
            light_fence(self.asymmetric);
        } else {
            slot.0.store(word + 1, Ordering::Relaxed);
        }
        Visit { kept: Kept::Own(slot), here: PhantomData }
    }

    /// Retires an unlinked block: this call or a later one calls `free` for it, once no guard can
    /// read it. May also call `free` for blocks that were retired earlier. Waits for no other
    /// thread, unless `free` does.
    pub fn retire(&self, offset: u64, bytes: u64, mut free: impl FnMut(u64)) {
        // Pairs with the fence in `pin`; see the module's documentation.
        fence(Ordering::SeqCst);
        if self.guarded().all(|slot| slot.0.load(Ordering::SeqCst) == 0) {
            // Acquire: pairs with the Release in `unpin`.
            fence(Ordering::Acquire);
            free(offset);
            if self.limbo_bytes.load(Ordering::Relaxed) == 0 {
                return;
            }
            if let Some(limbo) = self.try_lock() {
                self.collect_from(limbo, free);
            }
        } else {
            self.keep(offset, bytes, free);
        }
    }

    /// Like [`retire`](Epochs::retire), for a block that operations reach in
    /// [visits](Epochs::begin_visit). While the calling thread is in a visit, the block is not
    /// freed.
    pub fn retire_visited(&self, offset: u64, bytes: u64, free: impl FnMut(u64)) {
        // Relaxed: a thread that finds the block in the limbo sees this store.
        self.visited.store(true, Ordering::Relaxed);
        // As in `retire`: the unlinking comes before the epoch is read.
        fence(Ordering::SeqCst);
        self.keep(offset, bytes, free);
    }

    /// Like [`retire_visited`](Epochs::retire_visited), but as if called `epochs` epochs ago. This
    /// is a seeded bug, which the test harness must find.
    pub fn retire_early(&self, epochs: u64, offset: u64, bytes: u64, free: impl FnMut(u64)) {
        self.visited.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let epoch = self.epoch.load(Ordering::SeqCst).saturating_sub(epochs);
        self.keep_from(Retired { epoch, offset, bytes }, free);
    }

    /// Puts a block into the limbo, and from time to time frees blocks there.
    fn keep(&self, offset: u64, bytes: u64, free: impl FnMut(u64)) {
        self.keep_from(Retired { epoch: self.epoch.load(Ordering::SeqCst), offset, bytes }, free);
    }

    fn keep_from(&self, block: Retired, free: impl FnMut(u64)) {
        self.limbo_bytes.fetch_add(block.bytes, Ordering::Relaxed);
        let Some(mut limbo) = self.try_lock() else {
            self.spill(block);
            return;
        };
        self.put(&mut limbo, block);
        if limbo.len().is_multiple_of(64) {
            self.collect_from(limbo, free);
        }
    }

    /// Frees the blocks that no guard can read any more.
    pub fn collect(&self, free: impl FnMut(u64)) {
        self.collect_from(self.lock(), free);
    }

    fn collect_from(
        &self,
        mut limbo: MutexGuard<'_, VecDeque<Retired>>,
        mut free: impl FnMut(u64),
    ) {
        self.take_spilled(&mut limbo);
        let next = self.begin();
        if self.visited.load(Ordering::Relaxed) {
            heavy_fence(self.asymmetric);
        }
        // Blocks that visits can reach are kept for one epoch longer, as a margin; see the module's
        // documentation.
        let visits = self.oldest_visit().map(|epoch| epoch - 1);
        let guards = Self::oldest_of(self.guarded());
        let oldest = [guards, visits].into_iter().flatten().min();
        let oldest = oldest.unwrap_or(next);
        let mut ready = Vec::new();
        while limbo.front().is_some_and(|r| r.epoch < oldest) {
            ready.extend(limbo.pop_front());
        }
        drop(limbo);
        for block in ready {
            self.limbo_bytes.fetch_sub(block.bytes, Ordering::Relaxed);
            free(block.offset);
        }
    }

    /// Begins another epoch and returns it. All threads pinned so far are pinned in an earlier one.
    pub fn begin(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns `true` only if every guard and visit that existed when this epoch
    /// [began](Epochs::begin) has ended. May return `false` for a little longer.
    pub fn has_reached(&self, epoch: u64) -> bool {
        heavy_fence(self.asymmetric);
        let all = self.guarded().chain(&self.own).chain(&self.shared);
        Self::oldest_of(all).is_none_or(|oldest| oldest >= epoch)
    }

    /// The slots that can hold guards.
    fn guarded(&self) -> impl Iterator<Item = &Slot> {
        self.slots[..self.used.load(Ordering::SeqCst)].iter()
    }

    /// Returns the earliest epoch of these slots.
    fn oldest_of<'s>(slots: impl IntoIterator<Item = &'s Slot>) -> Option<u64> {
        let words = slots.into_iter().map(|s| s.0.load(Ordering::SeqCst));
        let oldest = words.filter(|&word| word != 0).map(|word| word >> COUNT_BITS).min();
        // Acquire: pairs with the Release in `unpin` and at the end of a visit.
        fence(Ordering::Acquire);
        oldest
    }

    /// Adds a block to the limbo, in ascending order of epoch. A thread may have read the epoch
    /// earlier and arrive later than another; its block then waits a little longer.
    fn put(&self, limbo: &mut VecDeque<Retired>, mut block: Retired) {
        let last = limbo.back().map_or(0, |last| last.epoch);
        block.epoch = block.epoch.max(last);
        limbo.push_back(block);
    }

    fn spill(&self, block: Retired) {
        let node = Box::into_raw(Box::new(Spilled { block, next: null_mut() }));
        let mut head = self.spilled.load(Ordering::Relaxed);
        loop {
            // SAFETY: made above, and no other thread has it before the exchange.
            unsafe { (*node).next = head };
            // Release: pairs with the Acquire in `take_spilled`, so that the taker can read the
            // node.
            match self.spilled.compare_exchange(head, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => head = found,
            }
        }
    }

    fn take_spilled(&self, limbo: &mut VecDeque<Retired>) {
        // Acquire: pairs with the Release in `spill`.
        let mut node = self.spilled.swap(null_mut(), Ordering::Acquire);
        while !node.is_null() {
            // SAFETY: `spill` made the node from a box, and the thread that takes the list is its
            // only owner.
            let spilled = unsafe { Box::from_raw(node) };
            self.put(limbo, spilled.block);
            node = spilled.next;
        }
    }

    /// Reports the offset and the size of each block that was retired and is not freed yet.
    pub fn visit(&self, mut visit: impl FnMut(u64, u64)) {
        let mut limbo = self.lock();
        self.take_spilled(&mut limbo);
        limbo.iter().for_each(|r| visit(r.offset, r.bytes));
    }

    /// Bytes of the blocks that were retired and are not freed yet.
    pub fn limbo_bytes(&self) -> u64 {
        self.limbo_bytes.load(Ordering::Relaxed)
    }

    /// Returns the current epoch. Everything retired so far was retired in it or an earlier one.
    pub fn now(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Returns the earliest epoch of the blocks in the limbo, or `None` if it is empty. A block
    /// that was retired while another thread held the limbo may not be in it yet.
    pub fn oldest_retired(&self) -> Option<u64> {
        self.lock().front().map(|block| block.epoch)
    }

    /// Returns the earliest epoch of the visits in progress, except those that begin or end at this
    /// moment.
    pub fn oldest_visit(&self) -> Option<u64> {
        Self::oldest_of(self.own.iter().chain(&self.shared))
    }

    /// Number of guards alive.
    pub fn pins(&self) -> usize {
        self.guarded().map(|slot| (slot.0.load(Ordering::Relaxed) & COUNT_MASK) as usize).sum()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Retired>> {
        // No thread waits or touches PM under this lock, so the seam need not see it.
        self.limbo.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, VecDeque<Retired>>> {
        match self.limbo.try_lock() {
            Ok(limbo) => Some(limbo),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        self.take_spilled(&mut VecDeque::new());
    }
}
