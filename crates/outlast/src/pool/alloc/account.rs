//! The check of all blocks against their owners, and of the descriptors.

use super::run::Slot;
use super::{Account, Alloc};
use crate::error::{Damage, Result};
use crate::pmem::{Offset, Seam, Word};
use crate::pool::core::Core;
use crate::pool::geometry::LARGE;
use crate::pool::layout::{Descriptor, PageKind};
use std::collections::{BTreeMap, BTreeSet};

impl Alloc {
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
        let mut run_pages = 0;
        for (page, pages, class, used) in self.runs_in_use(seam) {
            in_use += used;
            run_pages += pages;
            self.check_free_descriptors(core, (free_from, page), &mut account.damage);
            self.check_descriptors(core, page, pages, class, &mut account.damage)?;
            free_from = page + pages;
        }
        let (frontier, free_pages, saved_pages) = {
            let space = seam.lock(&self.space);
            (space.frontier, space.free_pages, space.saved.map_or(0, |(_, pages)| pages))
        };
        self.check_free_descriptors(core, (free_from, frontier), &mut account.damage);
        for shard in &self.shards {
            let shard = seam.lock(shard);
            for (class, blocks) in shard.in_hand.iter().enumerate() {
                let bytes = self.geometry.class_bytes(class as u8).unwrap_or(0);
                // The difference is negative only where two maps share blocks.
                in_use = in_use.saturating_sub(blocks.len() as u64 * bytes);
            }
        }
        // Pages that are in no run, and that no claim can take either.
        let pages = self.geometry.first_page()..frontier;
        let all = pages.filter(|&page| !self.geometry.is_system(page)).count() as u64;
        let known = u64::from(run_pages) + u64::from(free_pages) + u64::from(saved_pages);
        let lost_pages = all.saturating_sub(known) * self.geometry.page_bytes();
        let unlisted = self.unlisted_bytes(seam);
        account.leaked_bytes =
            Some(in_use.saturating_sub(account.used_bytes) + lost_pages + unlisted);
        Ok(account)
    }

    /// Returns the bytes of free blocks that no allocation can find, because their runs are not
    /// listed.
    fn unlisted_bytes(&self, seam: &impl Seam) -> u64 {
        let mut listed = BTreeSet::new();
        for (class, heads) in self.partial.iter().enumerate() {
            listed.extend(seam.lock(heads).iter().map(|&head| (class, head)));
        }
        let mut bytes = 0;
        for (head, _, class, _) in self.runs_in_use(seam) {
            if !listed.contains(&(usize::from(class), head))
                && let Slot::Run(run) = &*seam.lock(self.slot(head))
            {
                bytes += u64::from(run.free) * run.block_bytes;
            }
        }
        bytes
    }

    /// Returns the first page, pages, class and bytes in use of every run.
    pub(super) fn runs_in_use(&self, seam: &impl Seam) -> Vec<(u32, u32, u8, u64)> {
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
    pub(super) fn check_descriptors<S: Seam>(
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

    /// Checks the descriptors of free pages. None is that of a run below the frontier, because the trace
    /// after a crash would take it for one: a release replaces it, and so does the sweep.
    pub(super) fn check_free_descriptors<S: Seam>(
        &self,
        core: &Core<S>,
        (from, to): (u32, u32),
        damage: &mut Vec<Damage>,
    ) {
        let frontier = u64::from(core.memory.seam().lock(&self.space).frontier);
        let pages = (from..to).filter(|&page| !self.geometry.is_system(page));
        damage.extend(pages.filter_map(|page| match self.read_descriptor(core, page) {
            Ok(Some(d)) if d.is_run() && u64::from(page) + u64::from(d.count) <= frontier => {
                let at = self.geometry.descriptor_offset(page);
                Some(Damage::new(at, "a free page", format!("{d:?}")))
            }
            found => found.err(),
        }));
    }

    /// Reads the descriptors of old pages after damage has stopped the reclaim. Returns the first
    /// pages of runs.
    pub(super) fn check_old_descriptors<S: Seam>(
        &self,
        core: &Core<S>,
        damage: &mut Vec<Damage>,
    ) -> BTreeSet<u32> {
        let mut heads = BTreeSet::new();
        let mut page = self.geometry.first_page();
        while page < self.old_frontier() {
            let run = self.read_descriptor(core, page).and_then(|descriptor| match descriptor {
                Some(d)
                    if d.is_run()
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
}
