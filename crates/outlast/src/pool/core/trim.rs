//! Free pages without disk blocks. [`alloc::trim`](crate::pool::alloc) explains why this is
//! correct.

use super::Core;
use crate::error::{Error, Result};
use crate::pmem::{Mapping, MediumKind, Seam};
use crate::pool::alloc::Trimming;
use crate::pool::backing::{Backing, mapping_error};
use std::ops::Range;

/// The result of one step of giving free pages back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trimmed {
    /// The step has given this many bytes back, and there may be more.
    More(u64),
    /// All pages of the round that are still free were given back, this many bytes of them in this
    /// step.
    All(u64),
}

impl<S: Seam> Core<S> {
    /// Returns the mapping, if its file was opened without filling its holes.
    fn sparse(&self) -> Option<&Mapping> {
        self.backing.mapping().filter(|mapping| mapping.is_sparse())
    }

    fn bytes_of(&self, pages: &Range<u32>) -> Range<u64> {
        self.geometry.offset_of(pages.start)..self.geometry.offset_of(pages.end)
    }

    /// Gets disk blocks for the header, the roots and the first page of descriptors.
    pub(super) fn fill_own_pages(&self) -> Result<()> {
        let Some(mapping) = self.sparse() else { return Ok(()) };
        let own = self.geometry.offset_of(self.geometry.first_page());
        mapping.fill(0..own).map_err(mapping_error)
    }

    /// Notes which free pages have holes in the file, and gets disk blocks for all other pages with
    /// holes, unless the pool is read-only.
    pub(super) fn find_holes(&self) -> Result<()> {
        let read = || self.backing.mapping().filter(|_| self.options.read_only);
        let Some(mapping) = self.sparse().or_else(read) else { return Ok(()) };
        let total = self.geometry.pages_in(self.size());
        let failed = |e| Error::io("looking for holes in the pool", e);
        let Some(holes) = mapping.holes().map_err(failed)? else {
            return mapping.fill(0..self.size()).map_err(mapping_error);
        };
        let page = self.geometry.page_bytes();
        let pages = holes.iter().map(|hole| {
            let end = self.geometry.pages_in(hole.end.next_multiple_of(page));
            self.geometry.page_of(hole.start)..end.min(total)
        });
        let needed = self.alloc.note_holes(self, pages, total);
        needed
            .iter()
            .try_for_each(|pages| mapping.fill(self.bytes_of(pages)).map_err(mapping_error))
    }

    /// Returns the mapping, if free pages may be given back to the file system.
    fn trimmable(&self) -> Option<&Mapping> {
        let may = !self.options.read_only
            && self.options.medium == MediumKind::PageCache
            && !self.is_suspect();
        self.backing.mapping().filter(|mapping| may && mapping.can_be_punched())
    }

    /// Returns the page beyond which the space is not expected to be used soon, and the number of
    /// the pool's pages.
    fn ahead(&self) -> (u32, u32) {
        // Free pages are used first.
        let expected = self.geometry.pages_for(self.expected().saturating_sub(self.free_bytes()));
        (expected.min(u32::MAX.into()) as u32, self.geometry.pages_in(self.size()))
    }

    /// Begins a round of giving free pages back. Returns `None` if this pool cannot give any back.
    pub fn begin_trim(&self) -> Option<Trimming> {
        self.trimmable()?;
        let (ahead, total) = self.ahead();
        Some(self.alloc.begin_trim(self, ahead, total))
    }

    /// Writes the pool back while changes go on. Once this has succeeded, no link on the disk leads
    /// to a page that was free when it began.
    pub fn write_back_for_trim(&self) -> Result<()> {
        let _write_back = self.memory.seam().lock(&self.write_back);
        self.gate.check()?;
        self.fsync(Backing::sync)
    }

    /// Gives free pages back to the file system, in parts, until at least `most` bytes are given
    /// back or a claim has waited for pages that were out. The caller has begun a round, and has
    /// written the pool back since.
    ///
    /// # Errors
    /// [`Error::Io`] if the file system refuses to punch a hole, which does the pool no harm;
    /// [`Error::NotOpen`].
    pub fn trim(&self, most: u64) -> Result<Trimmed> {
        // A close, a sync, a snapshot and a verification wait for this lock, so none of them runs
        // while pages are taken out.
        let _write_back = self.memory.seam().lock(&self.write_back);
        self.gate.check()?;
        let Some(mapping) = self.trimmable() else { return Ok(Trimmed::All(0)) };
        let (ahead, total) = self.ahead();
        let mut done = 0;
        for pages in self.alloc.to_trim(self, ahead, total) {
            if done >= most || self.alloc.was_wanted() {
                return Ok(Trimmed::More(done));
            }
            if self.alloc.take_out(self, &pages) {
                let bytes = self.bytes_of(&pages);
                done += bytes.end - bytes.start;
                let punched = mapping.punch(bytes);
                self.alloc.put_back(self, punched.is_ok());
                self.refusals.forget();
                punched.map_err(|e| Error::io("giving free space back to the file system", e))?;
            }
        }
        Ok(Trimmed::All(done))
    }

    /// Returns the free parts of the pool, in bytes, as far as they are known. Their content has no
    /// meaning. The caller holds all writers back.
    pub fn free_parts(&self) -> Vec<Range<u64>> {
        let total = self.geometry.pages_in(self.size());
        let free = self.alloc.free_ranges(self, total);
        free.iter().map(|pages| self.bytes_of(pages)).collect()
    }

    /// Whether disk blocks in `range` were given back, and no claim has needed them since.
    pub fn is_given_back(&self, range: Range<u64>) -> bool {
        let end = self.geometry.pages_for(range.end).min(u32::MAX.into()) as u32;
        self.alloc.is_given(self, self.geometry.page_of(range.start)..end)
    }

    /// Returns a range without the free space below the frontier that may lack disk blocks.
    pub fn parts_with_blocks(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let end = self.geometry.pages_for(range.end).min(u32::MAX.into()) as u32;
        let pages = self.geometry.page_of(range.start)..end;
        let parts = self.alloc.with_blocks(self, pages);
        let inside = |pages: &Range<u32>| {
            let bytes = self.bytes_of(pages);
            bytes.start.max(range.start)..bytes.end.min(range.end)
        };
        parts.iter().map(inside).collect()
    }

    /// Returns the offset of the first page beyond the frontier whose disk blocks were given back,
    /// or `u64::MAX` if there is no such page.
    pub fn given_back_ahead(&self) -> u64 {
        let page = self.alloc.first_given_ahead(self);
        page.map_or(u64::MAX, |page| self.geometry.offset_of(page))
    }

    /// Bytes of free pages below the frontier.
    pub fn free_bytes(&self) -> u64 {
        self.geometry.offset_of(self.alloc.stats(self).free_pages)
    }
}
