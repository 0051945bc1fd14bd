//! The check of all blocks against their owners, and of the descriptors.

use super::run::{Slot, bit};
use super::{Account, Alloc};
use crate::error::{Damage, Result};
use crate::pmem::{Offset, Seam, Word};
use crate::pool::core::Core;
use crate::pool::geometry::{CLASS_COUNT, LARGE};
use crate::pool::layout::{Descriptor, PageKind};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;

/// The blocks found so far that have an owner: a map, a dropped map, or the epochs if the block is
/// retired. There is a bitmap for each run that contains such blocks.
#[derive(Debug, Default)]
pub struct Owned {
    /// Runs that contain an owned block, by their first page.
    runs: HashMap<u32, OwnedRun>,
    account: Account,
}

#[derive(Debug)]
struct OwnedRun {
    pages: u32,
    class: u8,
    owned: Box<[u64]>,
}

impl Alloc {
    /// Notes that the block of at least `bytes` bytes at `offset` has an owner. Checks that it has
    /// no other one and, if all space is accounted for, that it is in use.
    pub fn own<S: Seam>(&self, core: &Core<S>, owned: &mut Owned, (offset, bytes): (u64, u64)) {
        match self.try_own(core, &mut owned.runs, offset, bytes) {
            Ok(bytes) => owned.account.used_bytes += bytes,
            Err(damage) => owned.account.damage.push(damage),
        }
        self.noted.store(owned.account.used_bytes, Ordering::Relaxed);
    }

    /// Returns how many bytes the last verification has noted so far, for who shows its progress.
    pub fn noted_bytes(&self) -> u64 {
        self.noted.load(Ordering::Relaxed)
    }

    fn try_own<S: Seam>(
        &self,
        core: &Core<S>,
        runs: &mut HashMap<u32, OwnedRun>,
        offset: u64,
        bytes: u64,
    ) -> Result<u64, Damage> {
        let mut slot = self.run_of(core, offset)?;
        let (head, index) = slot.index(self.geometry, offset)?;
        let run = slot.run();
        let owned = runs.entry(head).or_insert_with(|| OwnedRun {
            pages: run.pages,
            class: run.class,
            owned: vec![0; run.used.len()].into(),
        });
        let known = self.old_frontier() == 0;
        if run.block_bytes < bytes || (known && !run.is_used(index)) {
            return Err(Damage::new(
                offset,
                format!("a block in use of {bytes} bytes"),
                format!("a free one, or one of {}", run.block_bytes),
            ));
        }
        let (word, mask) = bit(index);
        if owned.owned[word] & mask != 0 {
            return Err(Damage::new(offset, "a block of one owner", "one of two"));
        }
        owned.owned[word] |= mask;
        Ok(run.block_bytes)
    }

    /// Compares the blocks that have an owner with the blocks in use, and checks the descriptors.
    /// The number of leaked bytes is known only if all space is accounted for. No operation may
    /// run, and none may have run since the first block was noted.
    pub fn account<S: Seam>(&self, core: &Core<S>, owned: Owned) -> Result<Account> {
        let seam = core.memory.seam();
        let Owned { runs: owned, mut account } = owned;
        let known = self.old_frontier() == 0;
        let old_heads = if known {
            BTreeSet::new()
        } else {
            self.check_old_descriptors(core, &mut account.damage)
        };
        if !known {
            // All descriptors of a run are durable before its first block is linked. A crash can
            // leave the descriptors of other runs half written, so only those of runs with owned
            // blocks are checked.
            let mut owned: Vec<_> = owned.into_iter().collect();
            owned.sort_unstable_by_key(|&(page, _)| page);
            for (page, OwnedRun { pages, class, .. }) in owned {
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
        self.shards.visit_hands(seam, |class, blocks| {
            let bytes = self.geometry.class_bytes(class).unwrap_or(0);
            // Blocks at hand count as used in their runs. The difference could be negative only if
            // two maps shared a block, and one of them freed it while it was at hand.
            in_use = in_use.saturating_sub(blocks.len() as u64 * bytes);
        });
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

    /// Returns the total size, in bytes, of the free blocks that no allocation can find, because
    /// their runs are not listed.
    fn unlisted_bytes(&self, seam: &impl Seam) -> u64 {
        let mut listed = BTreeSet::new();
        for class in 0..CLASS_COUNT as u8 {
            listed.extend(self.shards.listed(seam, class).into_iter().map(|head| (class, head)));
        }
        let mut bytes = 0;
        for (head, _, class, _) in self.runs_in_use(seam) {
            if !listed.contains(&(class, head))
                && let Slot::Run(run) = &*seam.lock(self.slot(head))
            {
                bytes += u64::from(run.free) * run.block_bytes;
            }
        }
        bytes
    }

    /// Returns the first page, the number of pages, the class and the bytes in use of every run.
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
    /// pool is opened again.
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

    /// Checks the descriptors of free pages. None of them may describe a run below the frontier,
    /// because the trace after a crash would take the pages for that run. A release replaces such a
    /// descriptor, and so does the sweep.
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

    /// Checks the descriptors of old pages where the reclaim has not ended: damage stopped it, a
    /// guard holds it up, or the pool is read-only. Adds what is wrong to `damage`. Returns the
    /// first pages of the runs found.
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
