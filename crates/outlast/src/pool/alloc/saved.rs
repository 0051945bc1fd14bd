//! The free state that a clean close saves, and the next open restores.

use super::run::{Run, Slot};
use super::space::Space;
use super::{Alloc, checksum};
use crate::error::Result;
use crate::pmem::Seam;
use crate::pool::core::Core;
use crate::pool::geometry::LARGE;
use crate::pool::layout::{Descriptor, PageKind, SAVED_MAGIC};
use crate::pool::points;

impl Alloc {
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
        self.empty_hands(core)?;
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
        let head = match core.claim_or_help((PageKind::Saved, 0, pages), None, false) {
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

    /// Restores the saved state. Returns whether it was intact; if not, the space has to be traced
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
            // A damaged descriptor does not keep the pool from opening. The trace finds the damage
            // too and reports it.
            let Ok(Some(d)) = self.read_descriptor(core, page) else { return Ok(false) };
            if !d.is_run() {
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
                self.shards.list(seam, run.class, head);
            }
            self.set_run(seam, head, run);
        }
        self.swept();
        Ok(true)
    }

    pub(super) fn read_saved<S: Seam>(
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
}
