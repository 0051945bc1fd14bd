//! The allocator.
//!
//! The medium holds only the page descriptors (which run of pages holds blocks of which size) and
//! the frontier. Both are written once per run, before its first block is linked. Which blocks are
//! free is DRAM state: a bitmap per run, a list per class of runs with free blocks, and a few
//! blocks at hand per shard of threads. This state is saved at a clean close. After a crash it is
//! rebuilt by a trace (see [`db::store`](crate::db::store)).
//!
//! # Life of a run
//!
//! 1. *claimed*: the descriptors become durable first, then the frontier, if the claim moves it. So
//!    every descriptor below the frontier was written on purpose. A crash in between leaves pages
//!    that no block uses, and the sweep frees them.
//! 2. *in use*: its blocks are allocated and freed without a store to PM.
//! 3. *old*: the run was there when the pool was opened after a crash. Its bitmap `used` collects
//!    the blocks found alive, its bitmap `retired` those unlinked since. No block of it is
//!    allocated.
//! 4. *swept*: a block is in use if it was found alive and not retired; the run is back in state 2.
//! 5. *released*: all blocks are free. The descriptor says so durably before the pages are claimed
//!    again.
//!
//! # Locks
//!
//! `space` (pages) and the slots (one per page) are never held together. A shard is held only for a
//! push or a pop. Nothing here runs under a lock of an index: indexes allocate before they lock.

use super::core::Core;
use super::geometry::{CLASSES, Geometry, LARGE};
use super::layout::{Descriptor, FRONTIER_OFFSET, PageKind, SAVED_MAGIC, pack_frontier};
use super::points;
use crate::error::{Damage, Error, Result};
use crate::pmem::{Offset, Planted, Seam, Word};
use crate::reclaim::threads::thread_number;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

/// An allocated block of the pool's space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Offset of its first byte.
    pub offset: u64,
    /// Its size class.
    pub class: u8,
    /// Its size in bytes, at least the size requested.
    pub bytes: u64,
}

const SHARDS: usize = 16;

/// The pool's allocator: the runs of pages in use, and the free blocks in them.
pub struct Alloc {
    geometry: Geometry,
    /// The slots of each region's pages, allocated once one of them is used.
    regions: Box<[OnceLock<Region>]>,
    space: Mutex<Space>,
    partial: Vec<Mutex<Vec<u32>>>,
    shards: Vec<Mutex<Shard>>,
    /// Class and offset of freed blocks, where they are [reused at once](Seam::reuses_at_once).
    /// These are hints: the run decides whether a block is free.
    freed: Mutex<Vec<(u8, u64)>>,
    /// Pages below this were there before a crash and wait for the sweep; 0 otherwise.
    old_frontier: AtomicU32,
}

type Region = Box<[Mutex<Slot>]>;

#[derive(Default)]
struct Shard {
    in_hand: Vec<Vec<u64>>,
}

/// The state of one page.
enum Slot {
    /// Not loaded yet; its descriptor has the answer.
    Unknown,
    /// Belongs to no run.
    Free,
    /// A later page of a run, with the distance in pages to the first.
    Continued(u32),
    /// The first page of a run.
    Run(Box<Run>),
}

struct Run {
    class: u8,
    pages: u32,
    block_bytes: u64,
    blocks: u32,
    free: u32,
    used: Box<[u64]>,
    /// Empty unless the run is old.
    retired: Box<[u64]>,
    old: bool,
    /// Whether the run is in the list of its class.
    listed: bool,
}

struct Space {
    /// Free pages below the frontier: first page and length.
    runs: BTreeMap<u32, u32>,
    frontier: u32,
    free_pages: u32,
    /// Page and length of the saved free state, while the header names it.
    saved: Option<(u32, u32)>,
}

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
    /// Bytes of the blocks that maps own.
    pub used_bytes: u64,
    /// Bytes in use that no map owns; `None` if unknown.
    pub leaked_bytes: Option<u64>,
    /// Blocks that overlap, are not in use, or do not exist.
    pub damage: Vec<Damage>,
}

fn bit(index: u32) -> (usize, u64) {
    ((index / 64) as usize, 1 << (index % 64))
}

impl Run {
    fn new(geometry: Geometry, class: u8, pages: u32) -> Option<Run> {
        let (block_bytes, blocks) = if class == LARGE {
            (geometry.offset_of(pages), 1)
        } else {
            let bytes = geometry.class_bytes(class)?;
            (bytes, geometry.run_blocks(bytes, pages))
        };
        let words = blocks.div_ceil(64) as usize;
        Some(Run {
            class,
            pages,
            block_bytes,
            blocks,
            free: blocks,
            used: vec![0; words].into(),
            retired: Box::default(),
            old: false,
            listed: false,
        })
    }

    fn is_used(&self, index: u32) -> bool {
        let (word, mask) = bit(index);
        self.used[word] & mask != 0
    }

    /// Takes up to `want` free blocks and passes their indexes to `give`.
    fn take(&mut self, want: usize, mut give: impl FnMut(u32)) {
        let mut left = want.min(self.free as usize);
        self.free -= left as u32;
        for (w, word) in self.used.iter_mut().enumerate() {
            let in_word = (self.blocks - w as u32 * 64).min(64);
            let all = if in_word == 64 { u64::MAX } else { (1 << in_word) - 1 };
            while left > 0 && *word != all {
                let free = (!*word).trailing_zeros();
                *word |= 1 << free;
                give(w as u32 * 64 + free);
                left -= 1;
            }
            if left == 0 {
                return;
            }
        }
        debug_assert_eq!(left, 0, "free count and bitmap agree");
    }
}

impl Alloc {
    /// Creates the allocator of a pool whose pages below `frontier` may be in use. If `old`,
    /// nothing is known about those pages. The pool can never grow beyond `reserved` bytes.
    pub fn new(geometry: Geometry, frontier: u32, old: bool, reserved: u64) -> Self {
        let regions = geometry.pages_in(reserved).div_ceil(geometry.region_pages()).max(1);
        Alloc {
            geometry,
            regions: (0..regions).map(|_| OnceLock::new()).collect(),
            space: Mutex::new(Space {
                runs: BTreeMap::new(),
                frontier,
                free_pages: 0,
                saved: None,
            }),
            partial: CLASSES.iter().map(|_| Mutex::default()).collect(),
            shards: (0..SHARDS)
                .map(|_| Mutex::new(Shard { in_hand: vec![Vec::new(); CLASSES.len()] }))
                .collect(),
            freed: Mutex::default(),
            old_frontier: AtomicU32::new(if old { frontier } else { 0 }),
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
        let seam = core.memory.seam();
        let class = self.geometry.class_for(bytes);
        if class == LARGE {
            let pages = self.geometry.pages_for(bytes);
            if bytes > self.geometry.large_max() {
                return Err(Error::Invalid {
                    what: "block size",
                    why: format!("{bytes} bytes, at most {}", self.geometry.large_max()),
                });
            }
            let head = loop {
                let (pages, old) = (pages as u32, self.old_frontier() != 0);
                if let Some(head) = core.claim_or_help(PageKind::Large, LARGE, pages, old)? {
                    break head;
                }
            };
            let mut run = self.new_run(LARGE, pages as u32);
            run.take(1, |_| ());
            self.set_run(seam, head, run);
            let offset = self.geometry.offset_of(head);
            return Ok(Block { offset, class, bytes: self.geometry.offset_of(pages as u32) });
        }
        let block_bytes = self.geometry.class_bytes(class).expect("a class of this geometry");
        if seam.reuses_at_once()
            && let Some(offset) = self.take_freed(core, class)?
        {
            return Ok(Block { offset, class, bytes: block_bytes });
        }
        let shard = &self.shards[thread_number() % SHARDS];
        let index = usize::from(class);
        if let Some(offset) = seam.lock(shard).in_hand[index].pop() {
            return Ok(Block { offset, class, bytes: block_bytes });
        }
        let mut taken = match self.refill(core, class, block_bytes) {
            Ok(taken) => taken,
            // Blocks at hand in other shards are free as well.
            Err(error @ (Error::PoolFull { .. } | Error::DiskFull { .. })) => {
                let in_hand = |shard: &Mutex<Shard>| seam.lock(shard).in_hand[index].pop();
                vec![self.shards.iter().find_map(in_hand).ok_or(error)?]
            }
            Err(error) => return Err(error),
        };
        let offset = taken.pop().expect("a refill brings at least one block");
        if !taken.is_empty() {
            seam.lock(shard).in_hand[index].append(&mut taken);
        }
        Ok(Block { offset, class, bytes: block_bytes })
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
            // Its run may have been released meanwhile, and its pages reused for something else.
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

    /// Whether a run in use has free blocks of a class.
    pub(super) fn has_blocks<S: Seam>(&self, core: &Core<S>, class: u8) -> bool {
        !core.memory.seam().lock(&self.partial[usize::from(class)]).is_empty()
    }

    fn new_run(&self, class: u8, pages: u32) -> Run {
        Run::new(self.geometry, class, pages).expect("a class of this geometry")
    }

    /// Takes some blocks of a class from a run. The lowest is last in the result.
    fn refill<S: Seam>(&self, core: &Core<S>, class: u8, block_bytes: u64) -> Result<Vec<u64>> {
        let seam = core.memory.seam();
        let want = (8192 / block_bytes).clamp(1, 32) as usize;
        let list = &self.partial[usize::from(class)];
        let mut taken = Vec::with_capacity(want);
        let pages = self.geometry.run_pages(block_bytes);
        let head = loop {
            let unreclaimed = self.old_frontier() != 0;
            let Some(head) = seam.lock(list).pop() else {
                match core.claim_or_help(PageKind::Blocks, class, pages, unreclaimed)? {
                    Some(head) => break head,
                    // Something was freed: look again.
                    None => continue,
                }
            };
            let mut slot = seam.lock(self.slot(head));
            // A run on the list may have been released meanwhile.
            if let Slot::Run(run) = &mut *slot
                && run.listed
                && (run.class == class || seam.planted(Planted::StaleEntryAccepted))
            {
                let start = self.geometry.offset_of(head);
                run.take(want, |i| taken.push(start + u64::from(i) * block_bytes));
                run.listed = run.free > 0;
                if run.listed {
                    seam.lock(list).push(head);
                }
                if !taken.is_empty() {
                    taken.reverse();
                    return Ok(taken);
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
            seam.lock(list).push(head);
        }
        taken.reverse();
        Ok(taken)
    }

    fn set_run(&self, seam: &impl Seam, head: u32, run: Run) {
        for distance in 1..run.pages {
            *seam.lock(self.slot(head + distance)) = Slot::Continued(distance);
        }
        *seam.lock(self.slot(head)) = Slot::Run(Box::new(run));
    }

    /// Claims a run of pages durably. Returns its first page, or `None` if no such run fits into
    /// `total` pages.
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
        let (head, frontier) = match space.fit(pages) {
            Some(head) => (head, space.frontier),
            None => match self.fit_at_frontier(&space, pages, total) {
                Some(head) => (head, head + pages),
                None => return Ok(None),
            },
        };
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
                return head.checked_add(pages).is_some_and(|end| end <= total).then_some(head);
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
        run.used[word] &= !mask;
        run.free += 1;
        core.memory.scribble(offset, run.block_bytes);
        let empty = run.free == run.blocks;
        let class = run.class;
        if !run.listed && class != LARGE {
            run.listed = true;
            seam.lock(&self.partial[usize::from(class)]).push(head);
        }
        // Keeps one empty run per class, so that a run is not claimed and released over and over.
        let release =
            empty && (class == LARGE || seam.lock(&self.partial[usize::from(class)]).len() > 1);
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

    // ---- After a crash ----------------------------------------------------------

    /// Loads the state of an old page from its descriptor.
    fn load<S: Seam>(&self, core: &Core<S>, page: u32) -> Result<Slot, Damage> {
        if page >= self.old_frontier() {
            return Ok(Slot::Free);
        }
        Ok(match self.read_descriptor(core, page)? {
            None => Slot::Free,
            Some(Descriptor { kind: PageKind::Continued, count, .. }) => {
                let head = page.checked_sub(count).filter(|&h| !self.geometry.is_system(h));
                match head.map(|h| self.read_descriptor(core, h)).transpose()?.flatten() {
                    Some(d)
                        if matches!(d.kind, PageKind::Blocks | PageKind::Large)
                            && d.count > count
                            && self.is_below_frontier(page - count, d) =>
                    {
                        Slot::Continued(count)
                    }
                    _ => Slot::Free,
                }
            }
            Some(Descriptor { kind: PageKind::Free | PageKind::Saved, .. }) => Slot::Free,
            // A crash cut short the claim that wrote this descriptor. Then the frontier of another
            // claim became durable, and a crash came before that claim's descriptors did.
            Some(d) if !self.is_below_frontier(page, d) => Slot::Free,
            Some(d) => Slot::Run(Box::new(self.old_run(page, d)?)),
        })
    }

    /// Reads an old page's descriptor. Returns `None` if none was ever written.
    fn read_descriptor<S: Seam>(
        &self,
        core: &Core<S>,
        page: u32,
    ) -> Result<Option<Descriptor>, Damage> {
        let offset = self.geometry.descriptor_offset(page);
        let word = core.memory.load(core.memory.at(Offset::<Word>::new(offset))?);
        if word == 0 {
            return Ok(None);
        }
        Descriptor::unpack(page, word).map(Some).ok_or_else(|| {
            Damage::new(offset, format!("a descriptor of page {page}"), format!("{word:#x}"))
        })
    }

    fn is_below_frontier(&self, page: u32, d: Descriptor) -> bool {
        page.checked_add(d.count).is_some_and(|end| end <= self.old_frontier())
    }

    fn old_run(&self, page: u32, d: Descriptor) -> Result<Run, Damage> {
        let bad =
            |what: &str| Damage::new(self.geometry.descriptor_offset(page), what, format!("{d:?}"));
        if d.count == 0
            || d.count > self.geometry.left_in_region(page)
            || !self.is_below_frontier(page, d)
        {
            return Err(bad("a run inside its region and below the frontier"));
        }
        let mut run = Run::new(self.geometry, d.class, d.count)
            .filter(|run| {
                (run.class == LARGE) == (d.kind == PageKind::Large)
                    && (run.class == LARGE || self.geometry.run_pages(run.block_bytes) == run.pages)
            })
            .ok_or_else(|| bad("a run of a known class"))?;
        run.old = true;
        run.retired = vec![0; run.used.len()].into();
        Ok(run)
    }

    /// Marks a block alive, if it is from before the crash.
    ///
    /// The trace calls this for every block that it finds. An operation calls it before it moves or
    /// unlinks a block that the trace may not have reached yet.
    ///
    /// # Errors
    /// [`Damage`] if there is no such block, or if it is smaller than `bytes`.
    pub fn mark<S: Seam>(
        &self,
        core: &Core<S>,
        offset: u64,
        bytes: Option<u64>,
    ) -> Result<(), Damage> {
        // Pages beyond the old frontier are new, and may be freed again during the trace. Pages
        // below it stay as they are until the sweep.
        if self.geometry.page_of(offset) >= self.old_frontier() {
            return Ok(());
        }
        let mut slot = self.run_of(core, offset)?;
        let (_, index) = slot.index(self.geometry, offset)?;
        let run = slot.run();
        if let Some(bytes) = bytes
            && run.block_bytes < bytes
        {
            return Err(Damage::new(
                offset,
                format!("a block of at least {bytes} bytes"),
                format!("one of {}", run.block_bytes),
            ));
        }
        if run.old {
            let (word, mask) = bit(index);
            run.used[word] |= mask;
        }
        Ok(())
    }

    /// Checks by the descriptors that a block of at least `bytes` exists at `offset`.
    pub fn check_block<S: Seam>(
        &self,
        core: &Core<S>,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Damage> {
        let mut slot = self.run_of(core, offset)?;
        slot.index(self.geometry, offset)?;
        if slot.run().block_bytes < bytes {
            return Err(Damage::new(
                offset,
                format!("a block of at least {bytes} bytes"),
                format!("one of {}", slot.run().block_bytes),
            ));
        }
        Ok(())
    }

    /// Decides which blocks of the run at `page` are free, after every root was traced. Returns the
    /// next page to look at.
    pub fn sweep<S: Seam>(&self, core: &Core<S>, page: u32) -> Result<u32, Damage> {
        let seam = core.memory.seam();
        let mut slot = seam.lock(self.slot(page));
        if self.geometry.is_system(page) {
            return Ok(page + 1);
        }
        if matches!(*slot, Slot::Unknown) {
            *slot = self.load(core, page)?;
        }
        let Slot::Run(run) = &mut *slot else {
            let free = matches!(*slot, Slot::Free);
            drop(slot);
            let left = self.read_descriptor(core, page)?;
            if free && left.is_some_and(|d| matches!(d.kind, PageKind::Blocks | PageKind::Large)) {
                // Two claims that crashes cut short have left a run that would end beyond the
                // frontier. Once the frontier has passed that end, its descriptor would look valid.
                self.release(core, page, 1)?;
            } else if free {
                seam.lock(&self.space).give(page, 1);
            }
            return Ok(page + 1);
        };
        for distance in 1..run.pages {
            // No thread waits for an earlier page's slot while it holds a later one's.
            if let Slot::Run(_) = &*seam.lock(self.slot(page + distance)) {
                let offset = self.geometry.descriptor_offset(page + distance);
                return Err(Damage::new(offset, "a later page of a run", "a run with blocks"));
            }
        }
        debug_assert!(run.old, "pages below the old frontier are not claimed before the sweep");
        for (used, retired) in run.used.iter_mut().zip(&*std::mem::take(&mut run.retired)) {
            *used &= !retired;
        }
        run.old = false;
        run.free = run.blocks - run.used.iter().map(|w| w.count_ones()).sum::<u32>();
        if seam.reuses_at_once() {
            let start = self.geometry.offset_of(page);
            for index in (0..run.blocks).filter(|&index| !run.is_used(index)) {
                let offset = start + u64::from(index) * run.block_bytes;
                core.memory.scribble(offset, run.block_bytes);
            }
        }
        let (pages, class) = (run.pages, run.class);
        if run.free == run.blocks {
            *slot = Slot::Free;
            drop(slot);
            self.clear_later_pages(core, page, pages, class)?;
            self.release(core, page, pages)?;
        } else {
            for distance in 1..pages {
                // No thread waits for an earlier page's slot while it holds a later one's.
                *seam.lock(self.slot(page + distance)) = Slot::Continued(distance);
            }
            if run.free > 0 {
                run.listed = true;
                seam.lock(&self.partial[usize::from(class)]).push(page);
            }
        }
        Ok(page + pages)
    }

    /// Clears the later descriptors of a run that is about to be released after a crash. A claim
    /// that was cut short may have left descriptors there, which must not be taken for runs.
    fn clear_later_pages<S: Seam>(
        &self,
        core: &Core<S>,
        head: u32,
        pages: u32,
        class: u8,
    ) -> Result<(), Damage> {
        for distance in 1..pages {
            let page = head + distance;
            let later = Descriptor { kind: PageKind::Continued, class, count: distance };
            let found = self.read_descriptor(core, page);
            if !found.is_ok_and(|found| found.is_none_or(|found| found == later)) {
                let offset = Offset::<Word>::new(self.geometry.descriptor_offset(page));
                let word = core.memory.at(offset)?;
                let free = Descriptor { kind: PageKind::Free, class: 0, count: 1 };
                core.memory.store(word, free.pack(page), &points::RELEASE);
                core.memory.persist(word, &points::RELEASE);
            }
        }
        Ok(())
    }

    /// Records that all space is accounted for.
    pub fn swept(&self) {
        self.old_frontier.store(0, Ordering::Relaxed);
    }

    // ---- Saved free state -------------------------------------------------------

    /// Saves which blocks are in use. Returns the offset and the size in bytes, or `None` if the
    /// free state is not known or there is no space to save it in. No operation may run.
    ///
    /// ```text
    /// magic | words | CRC-32C of what follows | then per run: page, used bits ...
    /// ```
    pub fn save<S: Seam>(&self, core: &Core<S>) -> Result<Option<(u64, u64)>> {
        if self.old_frontier() != 0 {
            return Ok(None);
        }
        let seam = core.memory.seam();
        for shard in &self.shards {
            for class in &mut seam.lock(shard).in_hand {
                for offset in class.drain(..) {
                    self.free(core, offset)?;
                }
            }
        }
        self.forget_saved(core);
        let frontier = seam.lock(&self.space).frontier;
        let mut words = vec![SAVED_MAGIC, 0, 0];
        let mut page = self.geometry.first_page();
        while page < frontier {
            let slot = seam.lock(self.slot(page));
            if let Slot::Run(run) = &*slot {
                words.push(u64::from(page));
                words.extend_from_slice(&run.used);
                page += run.pages;
            } else {
                page += 1;
            }
        }
        words[1] = words.len() as u64;
        words[2] = u64::from(checksum(&words[3..]));
        let bytes = words.len() as u64 * 8;
        let pages = self.geometry.pages_for(bytes) as u32;
        // Grows the pool if necessary. If that fails, the next open traces the space instead.
        let head = match core.claim_or_help(PageKind::Saved, 0, pages, false) {
            Ok(Some(head)) => head,
            Ok(None) => return Ok(None),
            Err(error) => {
                tracing::debug!(%error, "no space to save the free state in");
                return Ok(None);
            }
        };
        let offset = self.geometry.offset_of(head);
        let target = core.memory.words(offset, bytes)?;
        for (word, value) in target.iter().zip(&words) {
            core.memory.store(word, *value, &points::SAVED);
        }
        core.memory.flush_words(target, &points::SAVED);
        core.memory.fence(&points::SAVED);
        seam.lock(&self.space).saved = Some((head, pages));
        Ok(Some((offset, bytes)))
    }

    /// Frees the pages of the saved state. Called once the header no longer names it.
    pub fn forget_saved<S: Seam>(&self, core: &Core<S>) {
        let mut space = core.memory.seam().lock(&self.space);
        if let Some((head, pages)) = space.saved.take() {
            space.give(head, pages);
        }
    }

    /// Restores the saved state. Returns whether it was whole; if not, the space has to be traced
    /// as after a crash.
    pub fn restore<S: Seam>(&self, core: &Core<S>, offset: u64, bytes: u64) -> Result<bool> {
        let Some(values) = self.read_saved(core, offset, bytes)? else { return Ok(false) };
        let seam = core.memory.seam();
        let frontier = seam.lock(&self.space).frontier;
        // The saved state must be in pages of its own, because they are freed once it is forgotten.
        let saved = (self.geometry.page_of(offset), self.geometry.pages_for(bytes) as u32);
        let own = Descriptor { kind: PageKind::Saved, class: 0, count: saved.1 };
        if self.geometry.offset_of(saved.0) != offset
            || self.geometry.is_system(saved.0)
            || saved.0.checked_add(saved.1).is_none_or(|end| end > frontier)
            || !matches!(self.read_descriptor(core, saved.0), Ok(Some(d)) if d == own)
        {
            return Ok(false);
        }
        let mut runs = Vec::new();
        let mut at = 3;
        // Everything is checked before anything is restored. Until then the pages count as old, and
        // stay so if a check fails.
        while at < values.len() {
            let Ok(page) = u32::try_from(values[at]) else { return Ok(false) };
            let after =
                runs.last().map_or(self.geometry.first_page(), |(p, r): &(u32, Run)| p + r.pages);
            if page < after || page >= frontier || self.geometry.is_system(page) {
                return Ok(false);
            }
            // A damaged descriptor does not keep the pool from opening. The trace meets it too and
            // reports it.
            let Ok(Some(d)) = self.read_descriptor(core, page) else { return Ok(false) };
            if !matches!(d.kind, PageKind::Blocks | PageKind::Large) {
                return Ok(false);
            }
            let Ok(mut run) = self.old_run(page, d) else { return Ok(false) };
            if page < saved.0 + saved.1 && saved.0 < page + run.pages {
                return Ok(false);
            }
            let words = run.used.len();
            let Some(used) = values.get(at + 1..at + 1 + words) else { return Ok(false) };
            run.used.copy_from_slice(used);
            let last = run.blocks % 64;
            if last != 0 && used[words - 1] >> last != 0 {
                return Ok(false);
            }
            run.old = false;
            run.retired = Box::default();
            run.free = run.blocks - used.iter().map(|w| w.count_ones()).sum::<u32>();
            if run.class == LARGE && run.free > 0 {
                // The pages of a free large block belong to no run.
                return Ok(false);
            }
            at += 1 + words;
            runs.push((page, run));
        }
        let mut space = seam.lock(&self.space);
        let mut page = self.geometry.first_page();
        let give_until = |space: &mut Space, page: &mut u32, end: u32| {
            while *page < end {
                if !self.geometry.is_system(*page) && !(saved.0..saved.0 + saved.1).contains(page) {
                    space.give(*page, 1);
                }
                *page += 1;
            }
        };
        for (head, run) in &runs {
            give_until(&mut space, &mut page, *head);
            page = head + run.pages;
        }
        give_until(&mut space, &mut page, frontier);
        space.saved = Some(saved);
        drop(space);
        for (head, mut run) in runs {
            if run.free > 0 {
                run.listed = true;
                seam.lock(&self.partial[usize::from(run.class)]).push(head);
            }
            self.set_run(seam, head, run);
        }
        self.swept();
        Ok(true)
    }

    fn read_saved<S: Seam>(
        &self,
        core: &Core<S>,
        offset: u64,
        bytes: u64,
    ) -> Result<Option<Vec<u64>>> {
        if bytes < 24 {
            return Ok(None);
        }
        let Ok(words) = core.memory.words(offset, bytes) else { return Ok(None) };
        let values: Vec<u64> = words.iter().map(|w| core.memory.load(w)).collect();
        let whole = values[0] == SAVED_MAGIC
            && values[1] == values.len() as u64
            && values[2] == u64::from(checksum(&values[3..]));
        Ok(whole.then_some(values))
    }

    /// Compares the blocks that maps own with the blocks in use. No operation may run.
    pub fn account<S: Seam>(&self, core: &Core<S>, mut blocks: Vec<(u64, u64)>) -> Result<Account> {
        let seam = core.memory.seam();
        let mut account = Account::default();
        blocks.sort_unstable();
        let mut end = 0;
        for &(offset, bytes) in &blocks {
            if offset < end {
                let found = format!("a block of {bytes} bytes inside another");
                account.damage.push(Damage::new(offset, "blocks that do not overlap", found));
            }
            end = end.max(offset + bytes);
        }
        let known = self.old_frontier() == 0;
        let old_heads = if known {
            BTreeSet::new()
        } else {
            self.check_old_descriptors(core, &mut account.damage)
        };
        let mut owned = BTreeMap::new();
        for &(offset, bytes) in &blocks {
            let found = self.run_of(core, offset).and_then(|mut slot| {
                let (head, index) = slot.index(self.geometry, offset)?;
                let run = slot.run();
                owned.insert(head, (run.pages, run.class));
                if run.block_bytes < bytes || (known && !run.is_used(index)) {
                    return Err(Damage::new(
                        offset,
                        format!("a block in use of {bytes} bytes"),
                        format!("a free one, or one of {}", run.block_bytes),
                    ));
                }
                Ok(run.block_bytes)
            });
            match found {
                Ok(bytes) => account.used_bytes += bytes,
                Err(damage) => account.damage.push(damage),
            }
        }
        if !known {
            // All descriptors of a run are durable before its first block is linked. A crash can
            // leave the descriptors of other runs half written.
            for (page, (pages, class)) in owned {
                if page < self.old_frontier() && !old_heads.contains(&page) {
                    let offset = self.geometry.descriptor_offset(page);
                    account.damage.push(Damage::new(offset, "a run", "one inside another"));
                }
                self.check_descriptors(core, page, pages, class, &mut account.damage)?;
            }
            return Ok(account);
        }
        let mut in_use = 0;
        let mut free_from = self.geometry.first_page();
        for (page, pages, class, used) in self.runs_in_use(seam) {
            in_use += used;
            self.check_free_descriptors(core, (free_from, page), &mut account.damage);
            self.check_descriptors(core, page, pages, class, &mut account.damage)?;
            free_from = page + pages;
        }
        let frontier = seam.lock(&self.space).frontier;
        self.check_free_descriptors(core, (free_from, frontier), &mut account.damage);
        for shard in &self.shards {
            let shard = seam.lock(shard);
            for (class, blocks) in shard.in_hand.iter().enumerate() {
                let bytes = self.geometry.class_bytes(class as u8).unwrap_or(0);
                // The difference is negative only where two maps share blocks.
                in_use = in_use.saturating_sub(blocks.len() as u64 * bytes);
            }
        }
        account.leaked_bytes = Some(in_use.saturating_sub(account.used_bytes));
        Ok(account)
    }

    /// Returns the first page, pages, class and bytes in use of every run.
    fn runs_in_use(&self, seam: &impl Seam) -> Vec<(u32, u32, u8, u64)> {
        let frontier = seam.lock(&self.space).frontier;
        let mut runs = Vec::new();
        let mut page = self.geometry.first_page();
        while page < frontier {
            let slot = seam.lock(self.slot(page));
            page += match &*slot {
                Slot::Run(run) => {
                    let used = u64::from(run.blocks - run.free) * run.block_bytes;
                    runs.push((page, run.pages, run.class, used));
                    run.pages
                }
                _ => 1,
            };
        }
        runs
    }

    /// Compares the descriptors of a run with its state in DRAM. Nothing else reads them before the
    /// next crash.
    fn check_descriptors<S: Seam>(
        &self,
        core: &Core<S>,
        head: u32,
        pages: u32,
        class: u8,
        damage: &mut Vec<Damage>,
    ) -> Result<(), Damage> {
        for distance in 0..pages {
            let expected = if distance == 0 {
                let kind = if class == LARGE { PageKind::Large } else { PageKind::Blocks };
                Descriptor { kind, class, count: pages }
            } else {
                Descriptor { kind: PageKind::Continued, class, count: distance }
            };
            let offset = self.geometry.descriptor_offset(head + distance);
            let word = core.memory.load(core.memory.at(Offset::<Word>::new(offset))?);
            if word != expected.pack(head + distance) {
                damage.push(Damage::new(offset, format!("{expected:?}"), format!("{word:#x}")));
            }
        }
        Ok(())
    }

    /// Checks that the descriptors of free pages can be read. A descriptor of a run is no damage: a
    /// crash leaves one if the run was claimed but nothing was linked to it.
    fn check_free_descriptors<S: Seam>(
        &self,
        core: &Core<S>,
        (from, to): (u32, u32),
        damage: &mut Vec<Damage>,
    ) {
        let pages = (from..to).filter(|&page| !self.geometry.is_system(page));
        damage.extend(pages.filter_map(|page| self.read_descriptor(core, page).err()));
    }

    /// Reads the descriptors of old pages after damage has stopped the reclaim. Returns the first
    /// pages of runs.
    fn check_old_descriptors<S: Seam>(
        &self,
        core: &Core<S>,
        damage: &mut Vec<Damage>,
    ) -> BTreeSet<u32> {
        let mut heads = BTreeSet::new();
        let mut page = self.geometry.first_page();
        while page < self.old_frontier() {
            let run = self.read_descriptor(core, page).and_then(|descriptor| match descriptor {
                Some(d)
                    if matches!(d.kind, PageKind::Blocks | PageKind::Large)
                        && !self.geometry.is_system(page)
                        && self.is_below_frontier(page, d) =>
                {
                    self.old_run(page, d).map(Some)
                }
                _ => Ok(None),
            });
            match run {
                // The later pages are not checked: a crash may have come before their descriptors
                // were written.
                Ok(Some(run)) => {
                    heads.insert(page);
                    page += run.pages;
                }
                Ok(None) => page += 1,
                Err(_) if self.geometry.is_system(page) => page += 1,
                Err(found) => {
                    damage.push(found);
                    page += 1;
                }
            }
        }
        heads
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

#[cold]
fn no_block(offset: u64) -> Damage {
    Damage::new(offset, "a block in use", "space that belongs to nothing")
}

#[cold]
fn freed_twice(offset: u64) -> Damage {
    Damage::new(offset, "a block in use", "a free block")
}

/// The locked slot of a run.
struct RunGuard<'a> {
    slot: std::sync::MutexGuard<'a, Slot>,
    head: u32,
}

impl RunGuard<'_> {
    fn run(&mut self) -> &mut Run {
        match &mut *self.slot {
            Slot::Run(run) => run,
            _ => unreachable!("a RunGuard is made of a run"),
        }
    }

    fn clear(&mut self) {
        *self.slot = Slot::Free;
    }

    /// Returns the run's first page, and the index within the run of the block at `offset`.
    fn index(&mut self, geometry: Geometry, offset: u64) -> Result<(u32, u32), Damage> {
        let head = self.head;
        let run = self.run();
        let inside = offset - geometry.offset_of(head);
        let index = inside / run.block_bytes;
        if !inside.is_multiple_of(run.block_bytes) || index >= u64::from(run.blocks) {
            return Err(no_block(offset));
        }
        Ok((head, index as u32))
    }
}

impl Space {
    /// Finds the lowest run of free pages that is long enough. The claim takes its lowest pages. So
    /// the first page of a free run gets a new descriptor before its later pages do, and a
    /// descriptor whose release is not durable never covers a later claim.
    fn fit(&self, pages: u32) -> Option<u32> {
        if self.free_pages < pages {
            return None;
        }
        self.runs.iter().find(|(_, len)| **len >= pages).map(|(head, _)| *head)
    }

    fn take(&mut self, head: u32, pages: u32) {
        let len = self.runs.remove(&head).expect("a run that was found");
        if len > pages {
            self.runs.insert(head + pages, len - pages);
        }
        self.free_pages -= pages;
    }

    fn give(&mut self, mut head: u32, pages: u32) {
        self.free_pages += pages;
        let mut len = pages;
        if let Some(next) = self.runs.remove(&(head + len)) {
            len += next;
        }
        if let Some((&before, &before_len)) = self.runs.range(..head).next_back()
            && before + before_len == head
        {
            head = before;
            len += before_len;
        }
        self.runs.insert(head, len);
    }
}
