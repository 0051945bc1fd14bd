//! Blocks after a crash: marked by the trace, and freed by the sweep.

use super::Alloc;
use super::run::{Run, Slot, bit};
use crate::error::{Damage, Result};
use crate::pmem::{Offset, Seam, Word};
use crate::pool::core::Core;
use crate::pool::geometry::LARGE;
use crate::pool::layout::{Descriptor, PageKind};
use crate::pool::points;
use std::sync::atomic::Ordering;

impl Alloc {
    /// Loads the state of an old page from its descriptor. Pages beyond the old frontier count as
    /// free.
    pub(super) fn load<S: Seam>(&self, core: &Core<S>, page: u32) -> Result<Slot, Damage> {
        if page >= self.old_frontier() {
            return Ok(Slot::Free);
        }
        Ok(match self.read_descriptor(core, page)? {
            None => Slot::Free,
            Some(Descriptor { kind: PageKind::Continued, count, .. }) => {
                let head = page.checked_sub(count).filter(|&h| !self.geometry.is_system(h));
                match head.map(|h| self.read_descriptor(core, h)).transpose()?.flatten() {
                    Some(d)
                        if d.is_run()
                            && d.count > count
                            && self.is_below_frontier(page - count, d) =>
                    {
                        Slot::Continued(count)
                    }
                    _ => Slot::Free,
                }
            }
            Some(Descriptor { kind: PageKind::Free | PageKind::Saved, .. }) => Slot::Free,
            // A crash cut short the claim that wrote this descriptor, and later another claim's
            // frontier became durable but its descriptors did not. That happens only in a torn
            // pool.
            Some(d) if !self.is_below_frontier(page, d) => Slot::Free,
            Some(d) => Slot::Run(Box::new(self.old_run(page, d)?)),
        })
    }

    /// Reads a page's descriptor. Returns `None` if none was ever written.
    pub(super) fn read_descriptor<S: Seam>(
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

    pub(super) fn is_below_frontier(&self, page: u32, d: Descriptor) -> bool {
        page.checked_add(d.count).is_some_and(|end| end <= self.old_frontier())
    }

    pub(super) fn old_run(&self, page: u32, d: Descriptor) -> Result<Run, Damage> {
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
                    && (run.class == LARGE || self.geometry.run_pages(run.class) == run.pages)
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
            if free && left.is_some_and(Descriptor::is_run) {
                // Two claims that crashes cut short have left the descriptor of a run that would
                // end beyond the frontier. Once the frontier passed that end, the descriptor would
                // look valid, so it is replaced.
                self.release(core, page, 1)?;
            } else if free {
                if left.is_some() {
                    // A process that died may not have flushed the release. If a part of the run
                    // were claimed and a power loss then undid the release, two runs would overlap.
                    let offset = Offset::<Word>::new(self.geometry.descriptor_offset(page));
                    core.memory.persist(core.memory.at(offset)?, &points::FOUND);
                }
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
        run.full_words = 0;
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
                self.shards.list(seam, class, page);
            }
        }
        Ok(page + pages)
    }

    /// Clears the later descriptors of a run that is about to be released after a crash. A claim
    /// that was cut short may have left descriptors there, which must not be taken for runs.
    pub(super) fn clear_later_pages<S: Seam>(
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
}
