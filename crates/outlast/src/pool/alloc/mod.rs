//! The allocator.
//!
//! The medium holds only the page descriptors (which run of pages holds blocks of which size) and
//! the frontier. The descriptors are written when a run is claimed and when it is released, the
//! frontier when a claim moves it. Both are durable before the run's first block is linked. Which
//! blocks are free is DRAM state: a bitmap per run, and, for each shard of the threads, a list per
//! class of runs with free blocks, and a few blocks at hand. This state is saved at a clean close.
//! After a crash it is rebuilt by a trace (see `db/reclaim.rs`).
//!
//! # Life of a run
//!
//! 1. *claimed*: the descriptors become durable first, then the frontier, if the claim moves it. So
//!    every descriptor below the frontier was written on purpose. A crash in between leaves pages
//!    that no block uses, and the sweep frees them.
//! 2. *in use*: its blocks are allocated and freed without a store to PM.
//! 3. *old*: the run was there when the pool was opened after a crash. Its bitmap `used` collects
//!    the blocks found alive, its bitmap `retired` those unlinked since. Until the sweep, none of
//!    its blocks is allocated.
//! 4. *swept*: a block is in use if it was found alive and not retired; the run is back in state 2.
//! 5. *released*: all blocks are free. The descriptor says so durably before the pages are claimed
//!    again.
//!
//! # Locks
//!
//! `space` (pages) and the slots (one per page) are never held together. A shard is held only to
//! read or change its lists, possibly inside of a slot. No thread allocates while it holds a lock of
//! an index.

mod account;
mod ranges;
mod recovery;
mod run;
mod saved;
mod shards;
mod space;
mod trim;

use super::core::Core;
use super::geometry::{CLASS_COUNT, Geometry, LARGE};
use super::layout::{Descriptor, FRONTIER_OFFSET, PageKind, pack_frontier};
use super::points;
use crate::error::{Damage, Error, Result};
use crate::pmem::{Offset, Seam, Word};
use crate::pool::bugs;
pub use account::Owned;
use run::{Run, RunGuard, Slot, bit, freed_twice, no_block};
use shards::Shards;
use space::Space;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
pub use trim::{TRIM_PART, Trimming};

/// An allocated block of the pool's space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Offset of its first byte.
    pub offset: u64,
    /// The smallest class that holds the size requested, or [`LARGE`]. If it is one of
    /// [`EIGHTHS`](super::geometry::EIGHTHS), the block may take whole pages all the same.
    pub class: u8,
    /// Its size in bytes, at least the size requested.
    pub bytes: u64,
}

/// The pool's allocator: the runs of pages in use, and the free blocks in them.
pub struct Alloc {
    geometry: Geometry,
    /// The slots of each region's pages, allocated once one of them is used.
    regions: Box<[OnceLock<Region>]>,
    space: Mutex<Space>,
    shards: Shards,
    /// Class and offset of freed blocks, if the seam [reuses them
    /// immediately](Seam::reuses_at_once). These are hints: the run decides whether a block is
    /// free.
    freed: Mutex<Vec<(u8, u64)>>,
    /// Pages below this existed before a crash and wait for the sweep; 0 if there are no such
    /// pages.
    old_frontier: AtomicU32,
    /// Incremented when free pages are taken out, so that no claim can take them, and again when
    /// they are put back. So it is odd while pages are out. See [`trim`].
    outs: AtomicU64,
    /// Whether a claim has waited for pages that are out since this was last read.
    wanted: AtomicBool,
    /// Bytes of the blocks that the last verification has noted so far.
    noted: AtomicU64,
}

type Region = Box<[Mutex<Slot>]>;

/// Statistics of the allocator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllocStats {
    /// Pages below the frontier, which may be in use.
    pub frontier_pages: u32,
    /// Pages below the frontier known to be free.
    pub free_pages: u32,
}

/// The result of comparing the blocks that maps own with the blocks in use.
#[derive(Debug, Default)]
pub struct Account {
    /// Bytes of the blocks that have an owner: a map, a dropped map, or the epochs.
    pub used_bytes: u64,
    /// Bytes in use that have no owner; `None` if not all space is accounted for.
    pub leaked_bytes: Option<u64>,
    /// Blocks that overlap, are not in use or do not exist, and descriptors that are wrong.
    pub damage: Vec<Damage>,
}

impl Alloc {
    /// Creates the allocator of a pool whose pages below `frontier` may be in use. If `old`,
    /// nothing is known about those pages. The pool can never grow beyond `reserved` bytes.
    pub fn new(geometry: Geometry, frontier: u32, old: bool, reserved: u64) -> Self {
        let regions = geometry.pages_in(reserved).div_ceil(geometry.region_pages()).max(1);
        Alloc {
            geometry,
            regions: (0..regions).map(|_| OnceLock::new()).collect(),
            space: Mutex::new(Space { frontier, ..Space::default() }),
            shards: Shards::new(),
            freed: Mutex::default(),
            old_frontier: AtomicU32::new(if old { frontier } else { 0 }),
            outs: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
        }
    }

    fn slot(&self, page: u32) -> &Mutex<Slot> {
        let pages = self.geometry.region_pages();
        let region = self.regions[(page / pages) as usize]
            .get_or_init(|| (0..pages).map(|_| Mutex::new(Slot::Unknown)).collect());
        &region[(page % pages) as usize]
    }

    /// The page below which nothing is known yet; 0 once all space is accounted for.
    #[inline]
    pub fn old_frontier(&self) -> u32 {
        // Relaxed: the value only changes from "mark" to "no need to mark", and a needless mark
        // does no harm.
        self.old_frontier.load(Ordering::Relaxed)
    }

    // ---- Allocation -------------------------------------------------------------

    /// Allocates a block of at least `bytes`, with arbitrary content.
    ///
    /// The caller must not hold a lock of an index.
    pub fn allocate<S: Seam>(&self, core: &Core<S>, bytes: u64) -> Result<Block> {
        let class = self.geometry.class_for(bytes);
        loop {
            let old = self.old_frontier() != 0;
            if class != LARGE
                && let Some(block) = self.allocate_small(core, class)?
            {
                return Ok(block);
            }
            if bytes > self.geometry.large_max() {
                return Err(Error::Invalid {
                    what: "block size",
                    why: format!("{bytes} bytes, at most {}", self.geometry.large_max()),
                });
            }
            let pages = self.geometry.pages_for(bytes) as u32;
            let of_class = (class != LARGE).then_some(class);
            let claimed = core.claim_or_help((PageKind::Large, LARGE, pages), of_class, old)?;
            let Some(head) = claimed else { continue };
            let mut run = self.new_run(LARGE, pages);
            run.take(1, |_| ());
            self.set_run(core.memory.seam(), head, run);
            let offset = self.geometry.offset_of(head);
            return Ok(Block { offset, class, bytes: self.geometry.offset_of(pages) });
        }
    }

    /// Allocates a block of a class other than [`LARGE`]. Returns `None` if a run of the class takes
    /// more pages than one block does alone, and the pool has neither a free block of the class nor
    /// adjacent free pages for a run.
    fn allocate_small<S: Seam>(&self, core: &Core<S>, class: u8) -> Result<Option<Block>> {
        let seam = core.memory.seam();
        let block_bytes = self.geometry.class_bytes(class).expect("a class of this geometry");
        if seam.reuses_at_once()
            && let Some(offset) = self.take_freed(core, class)?
        {
            return Ok(Some(Block { offset, class, bytes: block_bytes }));
        }
        let mut taken = match self.shards.take_from_hand(seam, class) {
            Ok(offset) => return Ok(Some(Block { offset, class, bytes: block_bytes })),
            Err(empty) => empty,
        };
        match self.refill(core, class, block_bytes, &mut taken) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            // Blocks at hand in other shards are free as well.
            Err(error) if error.is_full() => {
                taken.push(self.shards.take_from_any_hand(seam, class).ok_or(error)?);
            }
            Err(error) => return Err(error),
        }
        let offset = taken.pop().expect("a refill brings at least one block");
        self.shards.add_to_hand(seam, class, taken);
        Ok(Some(Block { offset, class, bytes: block_bytes }))
    }

    /// Returns the most recently freed block of a class, if it is still free.
    #[cold]
    fn take_freed<S: Seam>(&self, core: &Core<S>, class: u8) -> Result<Option<u64>> {
        loop {
            let last = {
                let mut freed = core.memory.seam().lock(&self.freed);
                let last = freed.iter().rposition(|&(of, _)| of == class);
                last.map(|at| freed.remove(at).1)
            };
            let Some(offset) = last else { return Ok(None) };
            // The block's run may have been released meanwhile, and its pages reused.
            let Ok(mut slot) = self.run_of(core, offset) else { continue };
            let Ok((_, index)) = slot.index(self.geometry, offset) else { continue };
            let run = slot.run();
            if run.class == class && !run.old && !run.is_used(index) {
                let (word, mask) = bit(index);
                run.used[word] |= mask;
                run.free -= 1;
                return Ok(Some(offset));
            }
        }
    }

    /// Whether any run is listed that has free blocks of a class. It may have been released
    /// meanwhile.
    pub(super) fn has_blocks<S: Seam>(&self, core: &Core<S>, class: u8) -> bool {
        self.shards.has_listed(core.memory.seam(), class, 0)
    }

    fn new_run(&self, class: u8, pages: u32) -> Run {
        Run::new(self.geometry, class, pages).expect("a class of this geometry")
    }

    /// Moves some free blocks of a class from a run to `taken`, which is empty. The lowest block
    /// comes last, so it is the first to be popped. Returns whether there were any; see
    /// [`allocate_small`](Self::allocate_small).
    fn refill<S: Seam>(
        &self,
        core: &Core<S>,
        class: u8,
        block_bytes: u64,
        taken: &mut Vec<u64>,
    ) -> Result<bool> {
        let seam = core.memory.seam();
        let want = (8192 / block_bytes).clamp(1, 32) as usize;
        let pages = self.geometry.run_pages(class);
        let block_is_large = block_bytes > self.geometry.small_max();
        let head = loop {
            let unreclaimed = self.old_frontier() != 0;
            let Some(head) = self.shards.take_listed(seam, class) else {
                if block_is_large && pages > self.geometry.pages_for(block_bytes) as u32 {
                    let total = self.geometry.pages_in(core.size());
                    match self.claim(core, PageKind::Blocks, class, pages, total) {
                        Ok(Some(head)) => {
                            core.wake_worker();
                            break head;
                        }
                        Ok(None) => return Ok(false),
                        Err(error) if error.is_full() => return Ok(false),
                        Err(error) => return Err(error),
                    }
                }
                let run = (PageKind::Blocks, class, pages);
                match core.claim_or_help(run, Some(class), unreclaimed)? {
                    Some(head) => break head,
                    // Something was freed: look again.
                    None => continue,
                }
            };
            let mut slot = seam.lock(self.slot(head));
            // A run on the list may have been released meanwhile.
            if let Slot::Run(run) = &mut *slot
                && run.listed
                && (run.class == class || seam.seeded(&bugs::STALE_ENTRY_ACCEPTED))
            {
                let start = self.geometry.offset_of(head);
                run.take(want, |i| taken.push(start + u64::from(i) * block_bytes));
                run.listed = run.free > 0;
                if run.listed {
                    self.shards.list(seam, class, head);
                }
                if !taken.is_empty() {
                    taken.reverse();
                    return Ok(true);
                }
            }
        };
        let mut run = self.new_run(class, pages);
        let start = self.geometry.offset_of(head);
        run.take(want, |i| taken.push(start + u64::from(i) * block_bytes));
        run.listed = run.free > 0;
        let listed = run.listed;
        self.set_run(seam, head, run);
        if listed {
            self.shards.list(seam, class, head);
        }
        taken.reverse();
        Ok(true)
    }

    fn set_run(&self, seam: &impl Seam, head: u32, run: Run) {
        for distance in 1..run.pages {
            *seam.lock(self.slot(head + distance)) = Slot::Continued(distance);
        }
        *seam.lock(self.slot(head)) = Slot::Run(Box::new(run));
    }

    /// Claims a run of pages durably. Returns its first page, or `None` if no such run fits into
    /// `total` pages.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the only pages that it could take lack disk blocks and cannot get
    /// any.
    pub fn claim<S: Seam>(
        &self,
        core: &Core<S>,
        kind: PageKind,
        class: u8,
        pages: u32,
        total: u32,
    ) -> Result<Option<u32>> {
        let seam = core.memory.seam();
        let mut space = seam.lock(&self.space);
        let Some(head) = self.place(core, &mut space, pages, total)? else { return Ok(None) };
        let frontier = space.frontier.max(head + pages);
        // Later pages are written first, so that within a cache line they are durable no later than
        // the head.
        for distance in (0..pages).rev() {
            let descriptor = if distance == 0 {
                Descriptor { kind, class, count: pages }
            } else {
                Descriptor { kind: PageKind::Continued, class, count: distance }
            };
            self.write_descriptor(core, head + distance, descriptor, &points::CLAIM_DESCRIPTOR)?;
        }
        let first = self.geometry.descriptor_offset(head);
        let words = core.memory.words(first, u64::from(pages) * 8)?;
        core.memory.flush_words(words, &points::CLAIM_DESCRIPTOR);
        if frontier != space.frontier {
            // The skipped pages are free. A claim that a crash cut short may have left descriptors
            // there, which must not be taken for runs.
            let mut page = space.frontier;
            while page < head {
                if self.geometry.is_system(page) {
                    page += 1;
                    continue;
                }
                let skipped = self.geometry.left_in_region(page).min(head - page);
                let free = Descriptor { kind: PageKind::Free, class: 0, count: 1 };
                for page in page..page + skipped {
                    self.write_descriptor(core, page, free, &points::CLAIM_SKIPPED)?;
                }
                let first = self.geometry.descriptor_offset(page);
                let words = core.memory.words(first, u64::from(skipped) * 8)?;
                core.memory.flush_words(words, &points::CLAIM_SKIPPED);
                page += skipped;
            }
            core.memory.fence(&points::CLAIM_ORDER);
            let word = core.memory.at(Offset::<Word>::new(FRONTIER_OFFSET))?;
            core.memory.store(word, pack_frontier(frontier), &points::CLAIM_FRONTIER);
            core.memory.flush(word, &points::CLAIM_FRONTIER);
        }
        core.memory.fence(&points::CLAIM_FENCE);
        if frontier == space.frontier {
            space.take(head, pages);
        } else {
            // Pages skipped at the end of a region are free.
            let mut page = space.frontier;
            while page < head {
                if self.geometry.is_system(page) {
                    page += 1;
                    continue;
                }
                let skipped = self.geometry.left_in_region(page).min(head - page);
                space.give(page, skipped);
                page += skipped;
            }
            space.frontier = frontier;
        }
        Ok(Some(head))
    }

    /// Finds where a run fits at the frontier: inside one region, past its descriptors.
    fn fit_at_frontier(&self, space: &Space, pages: u32, total: u32) -> Option<u32> {
        let mut head = space.frontier;
        loop {
            while self.geometry.is_system(head) {
                head += 1;
            }
            let left = self.geometry.left_in_region(head);
            if left >= pages {
                // While pages beyond the frontier are being given back, the space ends there.
                let out = space.out.as_ref().map_or(u32::MAX, |out| out.start);
                let end = if out >= space.frontier { total.min(out) } else { total };
                return head.checked_add(pages).is_some_and(|last| last <= end).then_some(head);
            }
            head = head.checked_add(left)?;
            if head >= total {
                return None;
            }
        }
    }

    fn write_descriptor<S: Seam>(
        &self,
        core: &Core<S>,
        page: u32,
        descriptor: Descriptor,
        at: &'static crate::pmem::Point,
    ) -> Result<()> {
        let offset = Offset::<Word>::new(self.geometry.descriptor_offset(page));
        core.memory.store_release(core.memory.at(offset)?, descriptor.pack(page), at);
        Ok(())
    }

    // ---- Freeing ----------------------------------------------------------------

    /// Frees a block that nothing links to and no thread reads.
    ///
    /// # Errors
    /// [`Damage`] if there is no block in use at `offset`: the offset came from a damaged
    /// structure.
    pub fn free<S: Seam>(&self, core: &Core<S>, offset: u64) -> Result<(), Damage> {
        self.free_or_keep::<false, S>(core, offset)
    }

    /// Like [`free`](Self::free), for a thread that is about to allocate a block of that size: it keeps the
    /// block at hand, where it counts as used by its run.
    pub fn free_for_reuse<S: Seam>(&self, core: &Core<S>, offset: u64) -> Result<(), Damage> {
        self.free_or_keep::<true, S>(core, offset)
    }

    #[inline(always)]
    fn free_or_keep<const KEEP: bool, S: Seam>(
        &self,
        core: &Core<S>,
        offset: u64,
    ) -> Result<(), Damage> {
        let seam = core.memory.seam();
        let mut slot = self.run_of(core, offset)?;
        let (head, index) = slot.index(self.geometry, offset)?;
        let run = slot.run();
        let (word, mask) = bit(index);
        if run.old {
            if run.retired[word] & mask != 0 {
                return Err(freed_twice(offset));
            }
            run.retired[word] |= mask;
            return Ok(());
        }
        if !run.is_used(index) {
            return Err(freed_twice(offset));
        }
        if KEEP && run.class != LARGE && self.shards.keep_at_hand(seam, run.class, offset) {
            return Ok(());
        }
        run.used[word] &= !mask;
        run.full_words = run.full_words.min(word);
        run.free += 1;
        core.memory.scribble(offset, run.block_bytes);
        let empty = run.free == run.blocks;
        let class = run.class;
        if !run.listed && class != LARGE {
            run.listed = true;
            self.shards.list(seam, class, head);
        }
        // Keeps one empty run per class, so that a run is not claimed and released over and over,
        // unless its blocks are so large that this would keep much space.
        let is_large = run.block_bytes > self.geometry.small_max();
        let release = empty && (is_large || self.shards.has_listed(seam, class, 1));
        if release {
            let pages = run.pages;
            slot.clear();
            drop(slot);
            self.release(core, head, pages)?;
        } else if seam.reuses_at_once() {
            drop(slot);
            seam.lock(&self.freed).push((class, offset));
        }
        Ok(())
    }

    /// Returns a run's pages to the free space, durably before they can be claimed again.
    fn release<S: Seam>(&self, core: &Core<S>, head: u32, pages: u32) -> Result<(), Damage> {
        let seam = core.memory.seam();
        for distance in 1..pages {
            *seam.lock(self.slot(head + distance)) = Slot::Free;
        }
        let mut space = seam.lock(&self.space);
        let offset = Offset::<Word>::new(self.geometry.descriptor_offset(head));
        let word = core.memory.at(offset)?;
        let free = Descriptor { kind: PageKind::Free, class: 0, count: pages };
        core.memory.store(word, free.pack(head), &points::RELEASE);
        core.memory.persist(word, &points::RELEASE);
        space.give(head, pages);
        Ok(())
    }

    /// Releases runs that are kept although all their blocks are free, and runs whose only blocks
    /// in use are those that some shard has at hand. Returns whether that yielded pages.
    pub(in crate::layers::pool) fn give_back<S: Seam>(&self, core: &Core<S>) -> Result<bool> {
        let seam = core.memory.seam();
        let before = self.stats(core).free_pages;
        self.empty_hands(core)?;
        for class in 0..CLASS_COUNT as u8 {
            // Runs on the list may have been released; see `refill`.
            for head in self.shards.listed(seam, class) {
                let mut slot = seam.lock(self.slot(head));
                if let Slot::Run(run) = &*slot
                    && run.class == class
                    && run.listed
                    && run.free == run.blocks
                {
                    let pages = run.pages;
                    *slot = Slot::Free;
                    drop(slot);
                    self.release(core, head, pages)?;
                }
            }
        }
        Ok(self.stats(core).free_pages > before)
    }

    /// Frees the blocks that the shards have at hand.
    fn empty_hands<S: Seam>(&self, core: &Core<S>) -> Result<()> {
        for offset in self.shards.empty_hands(core.memory.seam()) {
            self.free(core, offset)?;
        }
        Ok(())
    }

    /// Locks the slot of the run that contains `offset`.
    fn run_of<'a, S: Seam>(
        &'a self,
        core: &'a Core<S>,
        offset: u64,
    ) -> Result<RunGuard<'a>, Damage> {
        let seam = core.memory.seam();
        let mut page = self.geometry.page_of(offset);
        if offset >= core.memory.len() || self.geometry.is_system(page) {
            return Err(no_block(offset));
        }
        for _ in 0..2 {
            let mut slot = seam.lock(self.slot(page));
            if matches!(*slot, Slot::Unknown) {
                *slot = self.load(core, page)?;
            }
            match *slot {
                Slot::Run(_) => return Ok(RunGuard { slot, head: page }),
                Slot::Continued(distance) if distance <= page => page -= distance,
                _ => break,
            }
        }
        Err(no_block(offset))
    }

    /// Returns the allocator's statistics.
    pub fn stats<S: Seam>(&self, core: &Core<S>) -> AllocStats {
        let space = core.memory.seam().lock(&self.space);
        AllocStats { frontier_pages: space.frontier, free_pages: space.free_pages }
    }
}

/// CRC-32C of words in their on-media byte order.
pub fn checksum(words: &[u64]) -> u32 {
    words.iter().fold(0, |crc, w| crc32c::crc32c_append(crc, &w.to_le_bytes()))
}
