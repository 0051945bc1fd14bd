//! What threads keep apart, so that they rarely touch the same cache lines: free blocks at hand, and
//! lists of runs with free blocks.

use crate::pmem::Seam;
use crate::pool::geometry::CLASS_COUNT;
use crate::reclaim::threads::thread_number;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

const SHARDS: usize = 16;
/// A block that is freed for reuse is kept at hand if there are fewer than this many.
const KEPT: usize = 8;

/// The share of the threads whose numbers are equal modulo [`SHARDS`]. It has cache lines of its own.
#[repr(align(128))]
struct Shard {
    of_class: Mutex<Box<[OfClass]>>,
}

#[derive(Default)]
struct OfClass {
    /// Blocks that were taken from their runs, where they count as used.
    in_hand: Vec<u64>,
    /// The first pages of runs with free blocks. A run may have been released meanwhile.
    listed: Vec<u32>,
}

/// The blocks at hand and the lists of runs. A shard's lock is held only to read or change its lists.
pub(super) struct Shards {
    shards: Box<[Shard]>,
    /// For each class, a bit for each shard whose list is not empty. A bit changes under the shard's
    /// lock, where no thread may be stopped, so these are plain atomics. To have another thread run
    /// just before or after an access would show nothing new: it would run as if before or after the
    /// lock was held.
    with_runs: Box<[AtomicU32]>,
}

impl Shards {
    pub(super) fn new() -> Self {
        let of_class = || Mutex::new((0..CLASS_COUNT).map(|_| OfClass::default()).collect());
        Shards {
            shards: (0..SHARDS).map(|_| Shard { of_class: of_class() }).collect(),
            with_runs: (0..CLASS_COUNT).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The number of the calling thread's shard.
    #[inline(always)]
    fn own() -> usize {
        thread_number() % SHARDS
    }

    /// Calls `with` with a shard's part for a class, locked.
    #[inline(always)]
    fn locked<T>(
        &self,
        seam: &impl Seam,
        shard: usize,
        class: u8,
        with: impl FnOnce(&mut OfClass) -> T,
    ) -> T {
        with(&mut seam.lock(&self.shards[shard].of_class)[usize::from(class)])
    }

    // ---- Blocks at hand ---------------------------------------------------------

    /// Takes a block that the calling thread's shard has at hand. If there is none, returns the empty
    /// list, so that the caller can reuse its memory.
    #[inline(always)]
    pub(super) fn take_from_hand(&self, seam: &impl Seam, class: u8) -> Result<u64, Vec<u64>> {
        self.locked(seam, Self::own(), class, |of_class| {
            of_class.in_hand.pop().ok_or_else(|| std::mem::take(&mut of_class.in_hand))
        })
    }

    /// Takes a block that any shard has at hand.
    pub(super) fn take_from_any_hand(&self, seam: &impl Seam, class: u8) -> Option<u64> {
        (0..SHARDS).find_map(|n| self.locked(seam, n, class, |of_class| of_class.in_hand.pop()))
    }

    /// Adds blocks to those that the calling thread's shard has at hand.
    pub(super) fn add_to_hand(&self, seam: &impl Seam, class: u8, mut blocks: Vec<u64>) {
        self.locked(seam, Self::own(), class, |of_class| {
            if of_class.in_hand.is_empty() {
                of_class.in_hand = blocks;
            } else {
                of_class.in_hand.append(&mut blocks);
            }
        });
    }

    /// Adds a block to those that the calling thread's shard has at hand, if these are few. Returns whether
    /// it did.
    pub(super) fn keep_at_hand(&self, seam: &impl Seam, class: u8, block: u64) -> bool {
        self.locked(seam, Self::own(), class, |of_class| {
            // In a damaged file, two links can lead to one block.
            let keeps = of_class.in_hand.len() < KEPT && !of_class.in_hand.contains(&block);
            if keeps {
                of_class.in_hand.push(block);
            }
            keeps
        })
    }

    /// Takes all blocks that any shard has at hand.
    pub(super) fn empty_hands(&self, seam: &impl Seam) -> Vec<u64> {
        let mut blocks = Vec::new();
        for shard in &self.shards {
            for of_class in &mut **seam.lock(&shard.of_class) {
                blocks.append(&mut of_class.in_hand);
            }
        }
        blocks
    }

    /// Calls `visit` with each class and the blocks of it that a shard has at hand.
    pub(super) fn visit_hands(&self, seam: &impl Seam, mut visit: impl FnMut(u8, &[u64])) {
        for shard in &self.shards {
            for (class, of_class) in seam.lock(&shard.of_class).iter().enumerate() {
                visit(class as u8, &of_class.in_hand);
            }
        }
    }

    // ---- Runs with free blocks --------------------------------------------------

    /// The shards whose lists of a class are not empty, the calling thread's first.
    fn with_runs(&self, class: u8) -> impl Iterator<Item = usize> + use<> {
        // Relaxed: the list itself is read under the shard's lock.
        let mask = self.with_runs[usize::from(class)].load(Ordering::Relaxed);
        let own = Self::own();
        (0..SHARDS).map(move |n| (own + n) % SHARDS).filter(move |n| mask & 1 << n != 0)
    }

    /// Adds a run to the calling thread's list.
    pub(super) fn list(&self, seam: &impl Seam, class: u8, head: u32) {
        let own = Self::own();
        self.locked(seam, own, class, |of_class| {
            if of_class.listed.is_empty() {
                let mask = &self.with_runs[usize::from(class)];
                mask.fetch_or(1 << own, Ordering::Relaxed);
            }
            of_class.listed.push(head);
        });
    }

    /// Takes the run that was listed last, from the calling thread's list if possible: its lines are
    /// most likely in this processor's cache.
    pub(super) fn take_listed(&self, seam: &impl Seam, class: u8) -> Option<u32> {
        let own = self.pop_listed(seam, Self::own(), class);
        own.or_else(|| self.with_runs(class).find_map(|shard| self.pop_listed(seam, shard, class)))
    }

    #[inline(always)]
    fn pop_listed(&self, seam: &impl Seam, shard: usize, class: u8) -> Option<u32> {
        self.locked(seam, shard, class, |of_class| {
            let head = of_class.listed.pop()?;
            if of_class.listed.is_empty() {
                let mask = &self.with_runs[usize::from(class)];
                mask.fetch_and(!(1 << shard), Ordering::Relaxed);
            }
            Some(head)
        })
    }

    /// Returns whether more than `few` runs of a class are listed.
    pub(super) fn has_listed(&self, seam: &impl Seam, class: u8, few: usize) -> bool {
        let mut found = 0;
        self.with_runs(class).any(|shard| {
            found += self.locked(seam, shard, class, |of_class| of_class.listed.len());
            found > few
        })
    }

    /// Returns the listed runs of a class.
    pub(super) fn listed(&self, seam: &impl Seam, class: u8) -> Vec<u32> {
        let mut heads = Vec::new();
        for shard in self.with_runs(class) {
            self.locked(seam, shard, class, |of_class| heads.extend_from_slice(&of_class.listed));
        }
        heads
    }
}
