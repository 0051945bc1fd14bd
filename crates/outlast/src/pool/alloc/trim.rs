//! Free pages without disk blocks, and how the disk blocks of free pages are given back to the file
//! system.
//!
//! The worker punches free pages out of the file, so that a pool that has shrunk takes less disk
//! space. Punched pages read as zeros, and have no disk blocks. A store to such a page makes the
//! file system allocate a disk block, and raises SIGBUS if the disk is full. So a claim first gets
//! disk blocks for what it takes ([`Alloc::claim`]); if it cannot, and no other space is found, the
//! operation fails with [`Error::DiskFull`](crate::Error::DiskFull), as if the pool could not grow.
//!
//! # What may be punched
//!
//! Free pages, below the frontier and beyond it, in a file on a file system with a page cache. On
//! such media every store that was executed survives a crash of the process. On persistent memory
//! nothing is punched, because there the kernel would have to make each punch durable before the
//! next claim. Nor is anything punched in a read-only or suspect pool, or in a pool with a journal,
//! whose notes and base would have to follow.
//!
//! 1. *The content of a free page means nothing* (docs/format.md, section 4). The page is in no
//!    claimed run, so nothing links to it. Its descriptor lies in a system page, and system pages
//!    are never punched. A page gets into `Space::runs` only once nothing on the medium counts it as
//!    in use; a page beyond the frontier was never claimed.
//! 2. *No claim takes a page while it is punched.* [`Alloc::take_out`] removes the page from the
//!    free pages; if it lies beyond the frontier, the space that claims can take ends before it.
//!    `take_out` also notes that the page may lack disk blocks, before the first one is gone.
//!    [`Alloc::put_back`] comes after the system call.
//! 3. *No allocation fails or grows the pool because pages are out.* A claim that finds no place
//!    while pages are out waits until they are back ([`Alloc::wait_for_trim`]), and the trim ends
//!    early.
//! 4. *Readers.* A lookup without a guard may still look at a page that has been released. It finds
//!    what it would find in a page that was claimed again: arbitrary words, read atomically. It
//!    then sees that the version changed before the block that it looks for was unlinked, and reads
//!    again. Zeros are no worse than other content. Reading a hole allocates no disk block, except
//!    on tmpfs, where it allocates a page of memory. A lookup on tmpfs that was suspended before
//!    the block was unlinked, and resumes after the page was punched, at least a second later,
//!    raises SIGBUS if the file system has become full meanwhile.
//! 5. *A crash* during a punch can leave any of the page's disk blocks, and changes nothing else.
//!    The next open asks the file system for holes ([`Alloc::note_holes`]). Free pages with holes
//!    lack disk blocks, and get them when they are claimed. Other pages have holes only if the file
//!    was copied in a way that makes holes; they get disk blocks immediately.
//! 6. *A clean pool stays clean.* Its header, roots, saved free state and runs do not change, and
//!    the saved free state itself lies in pages that are not free while the header names it.
//!    `Core::trim` holds `write_back`, so a close, a sync, a snapshot or a verification either
//!    comes before the trim or sees all pages back. In particular, no other process opens the file
//!    meanwhile.
//! 7. *Power loss.* A pool that was modified since its last sync may be torn, and is refused. A
//!    salvage of it reads links that may be older than the pages that they lead to. So that
//!    punching destroys nothing that a salvage could read, a page is punched only after a
//!    write-back of the whole file that began after the page became free. Then no link on the disk
//!    leads to the page.

use super::ranges::Ranges;
use super::run::Slot;
use super::{Alloc, Space};
use crate::error::Result;
use crate::pmem::Seam;
use crate::pool::core::Core;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The least number of adjacent bytes that are worth a system call and another extent of the file.
const PIECE: u64 = 64 << 10;
/// The number of bytes that are taken out and punched together. Until they are put back, no claim
/// can take them.
pub const TRIM_PART: u64 = 16 << 20;
/// The least number of free bytes that keep their disk blocks.
const KEPT: u64 = 1 << 20;
/// A round is worth its cost if the free pages that it could give back are a sixteenth of the pool.
/// These are the least and the greatest number of bytes to require.
const WORTH: [u64; 2] = [1 << 20, 64 << 20];
/// The number of bytes for which a claim that needs less gets disk blocks with one call.
const REFILL: u64 = 1 << 20;

/// What is known about the free pages that could be given back to the file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimming {
    /// Whether they are worth a round.
    pub is_worth_it: bool,
    /// Bytes that were given back and then got disk blocks again, since the pool was opened.
    pub refilled: u64,
}

impl Alloc {
    /// Finds pages for a run, makes sure that they have disk blocks, and returns the first. Prefers
    /// pages that have disk blocks already. Returns `None` if there is no place for the run.
    pub(super) fn place<S: Seam>(
        &self,
        core: &Core<S>,
        space: &mut Space,
        pages: u32,
        total: u32,
    ) -> Result<Option<u32>> {
        if let Some(head) = space.fit(pages) {
            return Ok(Some(head));
        }
        let mut refused = None;
        let places = [space.fit_bare(pages), self.fit_at_frontier(space, pages, total)];
        for head in places.into_iter().flatten() {
            match self.get_blocks(core, space, head..head + pages) {
                Ok(()) => return Ok(Some(head)),
                Err(error) if error.is_full() => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Gets disk blocks for pages that may lack them, and for the pages after them that are free
    /// and lack them too.
    fn get_blocks<S: Seam>(
        &self,
        core: &Core<S>,
        space: &mut Space,
        pages: Range<u32>,
    ) -> Result<()> {
        if !space.bare.overlaps(&pages) {
            return Ok(());
        }
        let ahead = pages.start + self.geometry.pages_for(REFILL) as u32;
        let end = space.bare.end_around(pages.end - 1).unwrap_or(pages.end);
        let mut wide = pages.start..end.min(ahead).max(pages.end);
        if let Some(out) = &space.out
            && out.start < wide.end
            && wide.start < out.end
        {
            wide = pages.clone();
        }
        let bytes = |pages: &Range<u32>| {
            self.geometry.offset_of(pages.start)..self.geometry.offset_of(pages.end)
        };
        match core.fill(bytes(&wide)) {
            Err(error) if error.is_full() && wide != pages => {
                core.fill(bytes(&pages))?;
                wide = pages;
            }
            answer => answer?,
        }
        let others: u64 = space.given.gaps(wide.clone()).map(|gap| gap.len() as u64).sum();
        space.refilled += (wide.len() as u64 - others) * self.geometry.page_bytes();
        space.bare.remove(wide.clone());
        space.given.remove(wide);
        Ok(())
    }

    /// Notes the free pages that have holes, when the pool is opened. Returns the other pages with
    /// holes: they need disk blocks before anything is stored. `holes` are pages with holes, and
    /// `total` is the number of the pool's pages.
    pub(in crate::layers::pool) fn note_holes<S: Seam>(
        &self,
        core: &Core<S>,
        holes: impl Iterator<Item = Range<u32>>,
        total: u32,
    ) -> Vec<Range<u32>> {
        let seam = core.memory.seam();
        let frontier = seam.lock(&self.space).frontier;
        let (mut bare, mut needed) = (Ranges::default(), Ranges::default());
        for hole in holes {
            for page in hole.start..hole.end.min(frontier) {
                let set = if self.is_free(core, page) { &mut bare } else { &mut needed };
                set.insert(page..page + 1);
            }
            let beyond = hole.start.max(frontier)..hole.end.min(total);
            for part in self.unsystematic(beyond.clone()) {
                bare.insert(part);
            }
            for page in beyond.filter(|&page| self.geometry.is_system(page)) {
                needed.insert(page..page + 1);
            }
        }
        // One range, and so one system call, covers all needed pages between two pages that stay
        // without disk blocks.
        let within = |gap: Range<u32>| {
            let first = needed.first_from(gap.start).filter(|&page| page < gap.end)?;
            let end = needed.iter().take_while(|range| range.start < gap.end).last()?.end;
            Some(first..end)
        };
        let needed = bare.gaps(0..total).filter_map(within).collect();
        seam.lock(&self.space).bare = bare;
        needed
    }

    /// Whether a page below the frontier is in no run and not one of the pool's own.
    fn is_free<S: Seam>(&self, core: &Core<S>, page: u32) -> bool {
        if self.geometry.is_system(page) {
            return false;
        }
        match &*core.memory.seam().lock(self.slot(page)) {
            Slot::Unknown => matches!(self.load(core, page), Ok(Slot::Free)),
            slot => matches!(slot, Slot::Free),
        }
    }

    /// Whether a page may lack disk blocks. The content of such a page has no meaning.
    pub(in crate::layers::pool) fn is_bare<S: Seam>(&self, core: &Core<S>, page: u32) -> bool {
        core.memory.seam().lock(&self.space).bare.overlaps(&(page..page + 1))
    }

    /// Whether disk blocks of pages in `range` were given back, by this process or by one before
    /// it, and are still missing.
    pub(in crate::layers::pool) fn is_given<S: Seam>(
        &self,
        core: &Core<S>,
        range: Range<u32>,
    ) -> bool {
        let space = core.memory.seam().lock(&self.space);
        let below = range.start..range.end.min(space.frontier);
        space.given.overlaps(&range) || space.bare.overlaps(&below)
    }

    /// Returns `range` without the free pages below the frontier that may lack disk blocks.
    pub(in crate::layers::pool) fn with_blocks<S: Seam>(
        &self,
        core: &Core<S>,
        range: Range<u32>,
    ) -> Vec<Range<u32>> {
        let space = core.memory.seam().lock(&self.space);
        let middle = space.frontier.clamp(range.start, range.end);
        let beyond = (middle < range.end).then_some(middle..range.end);
        space.bare.gaps(range.start..middle).chain(beyond).collect()
    }

    /// Returns the first page beyond the frontier whose disk blocks this process has given back.
    pub(in crate::layers::pool) fn first_given_ahead<S: Seam>(
        &self,
        core: &Core<S>,
    ) -> Option<u32> {
        let space = core.memory.seam().lock(&self.space);
        space.given.first_from(space.frontier)
    }

    /// Returns the free pages, as far as they are known: those below the frontier, and those beyond
    /// it up to `total`. Until all space is accounted for after a crash, only those below the
    /// frontier that may lack disk blocks are known.
    pub(in crate::layers::pool) fn free_ranges<S: Seam>(
        &self,
        core: &Core<S>,
        total: u32,
    ) -> Vec<Range<u32>> {
        let space = core.memory.seam().lock(&self.space);
        let mut free = Ranges::default();
        let runs = space.runs.iter().map(|(&head, &len)| head..head + len);
        let beyond = self.unsystematic(space.frontier..total);
        runs.chain(space.bare.iter()).chain(beyond).for_each(|pages| free.insert(pages));
        // The saved free state is in pages that nothing else uses. They can have holes where nothing
        // was written.
        space.saved.into_iter().for_each(|(head, pages)| free.remove(head..head + pages));
        free.iter().collect()
    }

    /// Returns `pages` without the pool's own pages, in parts.
    fn unsystematic(&self, pages: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let geometry = self.geometry;
        let mut at = pages.start;
        std::iter::from_fn(move || {
            while at < pages.end && geometry.is_system(at) {
                at += 1;
            }
            let start = at;
            at = pages.end.min(at.saturating_add(geometry.left_in_region(at)));
            (start < at).then_some(start..at)
        })
    }

    /// Begins a round, in which pages that are free now and stay free may be given back. From page
    /// `ahead` on, the space beyond the frontier is not expected to be needed soon.
    pub(in crate::layers::pool) fn begin_trim<S: Seam>(
        &self,
        core: &Core<S>,
        ahead: u32,
        total: u32,
    ) -> Trimming {
        let mut space = core.memory.seam().lock(&self.space);
        space.age();
        let pages: u64 = self.candidates(&space, ahead, total).iter().map(|r| r.len() as u64).sum();
        let worth = (self.geometry.offset_of(total) / 16).clamp(WORTH[0], WORTH[1]);
        Trimming {
            is_worth_it: pages * self.geometry.page_bytes() >= worth,
            refilled: space.refilled,
        }
    }

    /// Returns pages that have been free since the round began and that can be given back, in parts.
    pub(in crate::layers::pool) fn to_trim<S: Seam>(
        &self,
        core: &Core<S>,
        ahead: u32,
        total: u32,
    ) -> Vec<Range<u32>> {
        let space = core.memory.seam().lock(&self.space);
        let part = self.geometry.pages_for(TRIM_PART) as usize;
        let parts = |range: Range<u32>| {
            let end = range.end;
            range.step_by(part).map(move |start| start..end.min(start + part as u32))
        };
        self.candidates(&space, ahead, total).into_iter().flat_map(parts).collect()
    }

    fn candidates(&self, space: &Space, ahead: u32, total: u32) -> Vec<Range<u32>> {
        let pages = |bytes| self.geometry.pages_for(bytes) as u32;
        let in_use = space.frontier.saturating_sub(space.free_pages);
        // The lowest free pages keep their disk blocks, for the next allocations.
        let mut kept = pages(KEPT).max(in_use / 12);
        // Space beyond the frontier has been prepared by the worker for a pool that grows, so it is
        // normally kept. If a quarter of the pool is free, the pool has shrunk, and the free pages
        // are used before that space.
        let has_shrunk = space.free_pages >= total / 4;
        let beyond = if has_shrunk { ahead.max(space.frontier).min(total)..total } else { 0..0 };
        let mut found = Vec::new();
        let below = space.runs.iter().map(|(&head, &len)| head..head + len);
        for free in below.chain(self.unsystematic(beyond)) {
            for mut part in space.given.gaps(free) {
                let keeps = kept.min(part.len() as u32);
                kept -= keeps;
                part.start += keeps;
                found.extend(space.fresh.gaps(part).filter(|p| p.len() as u32 >= pages(PIECE)));
            }
        }
        found
    }

    /// Takes free pages out, so that they cannot be claimed, and notes that they may lack disk
    /// blocks. The caller must put them back. Does nothing and returns `false` if they have not
    /// been free ever since the round began.
    pub(in crate::layers::pool) fn take_out<S: Seam>(
        &self,
        core: &Core<S>,
        pages: &Range<u32>,
    ) -> bool {
        let mut space = core.memory.seam().lock(&self.space);
        if space.fresh.overlaps(pages) || space.out.is_some() {
            return false;
        }
        if pages.start < space.frontier {
            if space.run_around(pages).is_none() {
                return false;
            }
            space.remove(pages.clone());
        }
        space.bare.insert(pages.clone());
        space.out = Some(pages.clone());
        // SeqCst, here and wherever `outs` is used: a claim that did not find the pages sees that
        // they were out.
        self.outs.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Ends what [`take_out`](Alloc::take_out) began. `given` says whether the disk blocks of the
    /// pages were given back.
    pub(in crate::layers::pool) fn put_back<S: Seam>(&self, core: &Core<S>, given: bool) {
        let mut space = core.memory.seam().lock(&self.space);
        let Some(pages) = space.out.take() else { return };
        if pages.start < space.frontier {
            space.insert(pages.clone());
        }
        if given {
            space.given.insert(pages);
        }
        self.outs.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether, since the last call of this function, a claim has waited for pages that were out.
    pub(in crate::layers::pool) fn was_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::SeqCst)
    }

    /// Returns a number that a claim passes to [`wait_for_trim`](Alloc::wait_for_trim) if it finds no place.
    pub(in crate::layers::pool) fn trims(&self) -> u64 {
        self.outs.load(Ordering::SeqCst)
    }

    /// Waits until the pages that are out now are back, if any are. Others may be out by then.
    /// Returns whether any were out since [`trims`](Alloc::trims) returned `before`, so that a
    /// claim may have missed them.
    pub(in crate::layers::pool) fn wait_for_trim<S: Seam>(
        &self,
        core: &Core<S>,
        before: u64,
    ) -> Result<bool> {
        let now = self.trims();
        if now == before && now.is_multiple_of(2) {
            return Ok(false);
        }
        self.wanted.store(true, Ordering::SeqCst);
        let mut turn = 0;
        while !now.is_multiple_of(2) && self.trims() == now {
            core.wait(&mut turn)?;
        }
        Ok(true)
    }
}
