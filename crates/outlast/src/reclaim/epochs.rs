//! The epochs of a pool; what they are for, and why they hold, stands in the module above.
//! `outlast-check` compiles this file a second time, with the atomics of a model checker.

use super::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, SLOTS, fence};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

const COUNT_BITS: u32 = 16;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// The guards alive in one epoch: epoch above, count in the low 16 bits; 0 is empty.
#[repr(align(128))]
#[derive(Default)]
struct Slot(AtomicU64);

/// A block waiting for the guards that may still read it.
#[derive(Debug, Clone, Copy)]
struct Retired {
    epoch: u64,
    offset: u64,
    bytes: u64,
}

/// The epochs of one pool.
pub struct Epochs {
    epoch: AtomicU64,
    pins: AtomicUsize,
    slots: Box<[Slot]>,
    limbo: Mutex<VecDeque<Retired>>,
    limbo_bytes: AtomicU64,
}

/// A pinned epoch; give it back with [`Epochs::unpin`].
#[derive(Debug)]
#[must_use]
pub struct Pin {
    slot: usize,
}

impl Default for Epochs {
    fn default() -> Self {
        Epochs {
            epoch: AtomicU64::new(1),
            pins: AtomicUsize::new(0),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            limbo: Mutex::default(),
            limbo_bytes: AtomicU64::new(0),
        }
    }
}

impl Epochs {
    /// Pins the present epoch. `hint` spreads threads over the slots.
    pub fn pin(&self, hint: usize) -> Pin {
        self.pins.fetch_add(1, Ordering::SeqCst);
        let epoch = self.epoch.load(Ordering::SeqCst);
        let start = hint % SLOTS;
        // An empty slot, or one of the same epoch.
        for i in 0..SLOTS {
            let slot = (start + i) % SLOTS;
            let word = self.slots[slot].0.load(Ordering::Relaxed);
            let joinable = word >> COUNT_BITS == epoch && word & COUNT_MASK < COUNT_MASK;
            let new = if word == 0 { epoch << COUNT_BITS | 1 } else { word + 1 };
            if (word == 0 || joinable) && self.exchange(slot, word, new) {
                return Self::pinned(slot);
            }
        }
        // Every slot holds another epoch: join any, and keep its older epoch alive a
        // little longer than needed.
        let mut slot = start;
        loop {
            let word = self.slots[slot].0.load(Ordering::Relaxed);
            let new = if word == 0 { epoch << COUNT_BITS | 1 } else { word + 1 };
            if word & COUNT_MASK < COUNT_MASK && self.exchange(slot, word, new) {
                return Self::pinned(slot);
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    fn pinned(slot: usize) -> Pin {
        // An exchange alone does not keep later loads from being made before it.
        fence(Ordering::SeqCst);
        Pin { slot }
    }

    fn exchange(&self, slot: usize, old: u64, new: u64) -> bool {
        self.slots[slot].0.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Gives a pin back.
    #[expect(clippy::needless_pass_by_value, reason = "a pin is given back once")]
    pub fn unpin(&self, pin: Pin) {
        let slot = &self.slots[pin.slot].0;
        let mut word = slot.load(Ordering::Relaxed);
        loop {
            debug_assert!(word & COUNT_MASK > 0, "unpin of an empty slot");
            let new = if word & COUNT_MASK == 1 { 0 } else { word - 1 };
            // Release: our reads of the block come before it is found unpinned.
            match slot.compare_exchange(word, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(found) => word = found,
            }
        }
        self.pins.fetch_sub(1, Ordering::Release);
    }

    /// Takes a block that was unlinked. `free` is called for it, and for others whose
    /// guards are gone, now or in a later call.
    pub fn retire(&self, offset: u64, bytes: u64, mut free: impl FnMut(u64)) {
        // Pairs with the SeqCst in `pin`, see the module's documentation.
        fence(Ordering::SeqCst);
        let idle = self.pins.load(Ordering::SeqCst) == 0;
        if idle {
            free(offset);
            if self.limbo_bytes.load(Ordering::Relaxed) == 0 {
                return;
            }
        } else {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let mut limbo = self.lock();
            limbo.push_back(Retired { epoch, offset, bytes });
            self.limbo_bytes.fetch_add(bytes, Ordering::Relaxed);
            if !limbo.len().is_multiple_of(64) {
                return;
            }
        }
        self.collect(free);
    }

    /// Frees what no guard can read any more.
    pub fn collect(&self, mut free: impl FnMut(u64)) {
        let mut limbo = self.lock();
        let next = self.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        let oldest = self
            .slots
            .iter()
            .map(|s| s.0.load(Ordering::SeqCst))
            .filter(|&word| word != 0)
            .map(|word| word >> COUNT_BITS)
            .min()
            .unwrap_or(next);
        // Acquire: pairs with the Release in `unpin`.
        fence(Ordering::Acquire);
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

    /// Reports the blocks that guards keep from reuse: offset and bytes.
    pub fn visit(&self, mut visit: impl FnMut(u64, u64)) {
        self.lock().iter().for_each(|r| visit(r.offset, r.bytes));
    }

    /// Bytes that guards keep from reuse.
    pub fn limbo_bytes(&self) -> u64 {
        self.limbo_bytes.load(Ordering::Relaxed)
    }

    /// Guards alive.
    pub fn pins(&self) -> usize {
        self.pins.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Retired>> {
        // Nobody waits or touches PM under this lock, so the seam need not see it.
        self.limbo.lock().unwrap_or_else(|e| e.into_inner())
    }
}
