//! Space: runs of pages, their blocks, and the saved free state.

use super::image::{LOW48, crc, crc_words, fold16};
use super::{Owner, Region, Walk, What};
use outlast::internals::pool::geometry::{CLASSES, EIGHTHS, LARGE};
use outlast::internals::pool::layout::{SAVED_MAGIC, SYSTEM_BYTES};
use outlast::{Damage, Error, Result};
use std::collections::HashMap;

/// How many bytes of descriptors to read in one go.
const DESCRIPTORS_AHEAD: u64 = 1 << 12;

/// How many problems are listed at most.
pub(super) const MAX_PROBLEMS: usize = 10_000;

/// A run of pages that holds blocks.
pub(super) struct Run {
    /// Its first page.
    pub(super) head: u64,
    pub(super) pages: u64,
    pub(super) class: u8,
    pub(super) block_bytes: u64,
    pub(super) blocks: u64,
    /// Bitmap of the blocks in use, from the saved free state.
    pub(super) used: Option<Vec<u64>>,
    /// Bitmap of the blocks that something links to.
    pub(super) claimed: Vec<u64>,
}

/// All runs of pages.
#[derive(Default)]
pub(super) struct Runs {
    /// By ascending page, except for runs whose descriptors are damaged.
    pub(super) list: Vec<Run>,
    /// For each page, the number of its run in `list` plus one, or 0.
    by_page: Vec<u32>,
    /// What the saved free state has for runs whose descriptors are damaged: for each first page, the
    /// bitmap of the blocks in use.
    pub(super) unknown: HashMap<u64, Vec<u64>>,
}

impl Runs {
    /// Adds a run of pages that are in no other run. Returns its number.
    pub(super) fn push(&mut self, run: Run) -> usize {
        let number = self.list.len();
        let pages = run.head as usize..(run.head + run.pages) as usize;
        if self.by_page.len() < pages.end {
            self.by_page.resize(pages.end, 0);
        }
        self.by_page[pages].fill(number as u32 + 1);
        self.list.push(run);
        number
    }

    /// Returns the number of the run that a page is in.
    pub(super) fn number_of(&self, page: u64) -> Option<usize> {
        (*self.by_page.get(usize::try_from(page).ok()?)? as usize).checked_sub(1)
    }

    /// Returns the number of the run that begins with a page.
    fn number_at(&self, head: u64) -> Option<usize> {
        self.number_of(head).filter(|&number| self.list[number].head == head)
    }
}

pub(super) fn is_set(bits: &[u64], index: u64) -> bool {
    bits[(index / 64) as usize] >> (index % 64) & 1 == 1
}

/// Returns the check of a page's descriptor, given its other bytes.
fn check_of(page: u64, low: u64) -> u64 {
    fold16(u64::from(crc(&[&(page as u32).to_le_bytes(), &low.to_le_bytes()])))
}

/// Returns a descriptor.
pub(super) fn descriptor_of(page: u64, kind: u64, class: u8, count: u64) -> u64 {
    let low = kind | u64::from(class) << 8 | count << 16;
    low | check_of(page, low) << 48
}

impl Walk<'_, '_> {
    pub(super) fn page_bytes(&self) -> u64 {
        1 << self.page_bits
    }
    pub(super) fn region_pages(&self) -> u64 {
        self.page_bytes() / 8
    }
    /// Returns the page of the first region's descriptors, which follows the system area.
    pub(super) fn first_descriptors(&self) -> u64 {
        SYSTEM_BYTES.div_ceil(self.page_bytes())
    }
    /// Returns the size, in bytes, of the largest possible block.
    pub(super) fn largest_block(&self) -> u64 {
        (self.region_pages() - self.first_descriptors() - 1) << self.page_bits
    }
    pub(super) fn is_system(&self, page: u64) -> bool {
        page <= self.first_descriptors() || page.is_multiple_of(self.region_pages())
    }
    pub(super) fn descriptor_offset(&self, page: u64) -> u64 {
        let region = page / self.region_pages();
        let table =
            if region == 0 { self.first_descriptors() } else { region * self.region_pages() };
        (table << self.page_bits) + page % self.region_pages() * 8
    }

    pub(super) fn problem(&mut self, damage: Damage) {
        // Enough to see what is wrong. A hostile file can have a problem in every word.
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(damage);
        }
    }

    pub(super) fn region(&mut self, offset: u64, bytes: u64, what: What) {
        if let Some(regions) = &mut self.regions {
            regions.push(Region { offset, bytes, what });
        }
    }

    /// Reads the kind, class and count of a page's descriptor. Returns `None` if none was written.
    pub(super) fn descriptor(&self, page: u64) -> Result<Option<(u64, u8, u64)>> {
        let offset = self.descriptor_offset(page);
        // The descriptors of neighboring pages are read next.
        self.image.read_ahead(offset - offset % DESCRIPTORS_AHEAD, DESCRIPTORS_AHEAD);
        let word = self.image.word(offset)?;
        if word == 0 {
            return Ok(None);
        }
        let low = word & LOW48;
        let kind = low & 0xff;
        if word >> 48 != check_of(page, low) || !(1..=5).contains(&kind) {
            let expected = format!("a descriptor of page {page}");
            return Err(Damage::new(offset, expected, format!("{word:#x}")).into());
        }
        Ok(Some((kind, (low >> 8) as u8, low >> 16)))
    }

    /// Returns the size, in bytes, of the blocks of a class, if this pool has the class and its
    /// blocks do not take whole pages.
    pub(super) fn class_bytes(&self, class: u8) -> Option<u64> {
        let class = usize::from(class);
        if let Some(&size) = CLASSES.get(class) {
            return Some(u64::from(size)).filter(|size| size * 2 <= self.page_bytes());
        }
        let eighths = EIGHTHS.get(class - CLASSES.len())?;
        Some(eighths * self.page_bytes() / 8)
            .filter(|&size| size * 2 > self.page_bytes().min(1 << 16))
    }

    /// Returns the number of pages in a run of blocks of a class: one page if that holds 16 blocks,
    /// otherwise enough pages for 15; for blocks in eighths of a page the fewest that leave nothing
    /// over.
    pub(super) fn run_pages(&self, class: u8) -> Option<u64> {
        let size = self.class_bytes(class)?;
        if usize::from(class) >= CLASSES.len() {
            (1..=7u64).find(|n| (n << self.page_bits).is_multiple_of(size))
        } else if size * 16 <= self.page_bytes() {
            Some(1)
        } else {
            Some((size * 15).div_ceil(self.page_bytes()))
        }
    }

    /// Builds the run that a descriptor of kind 1 or 2 describes.
    pub(super) fn run_of(
        &self,
        page: u64,
        class: u8,
        kind: u64,
        pages: u64,
    ) -> Result<Run, Damage> {
        let bad = |why: String| {
            let found = format!("kind {kind}, class {class}, {pages} pages");
            Err(Damage::new(self.descriptor_offset(page), why, found))
        };
        let left = self.region_pages() - page % self.region_pages();
        if pages == 0 || pages > left {
            return bad("a run inside its region".into());
        }
        let bytes = pages << self.page_bits;
        let (block_bytes, blocks) = if kind == 2 {
            if class != LARGE {
                return bad("class 255 for a large block".into());
            }
            (bytes, 1)
        } else {
            let Some(size) = self.class_bytes(class) else {
                return bad("a class of this pool".into());
            };
            let expected = self.run_pages(class).unwrap_or(0);
            if pages != expected {
                return bad(format!("{expected} pages for blocks of {size} bytes"));
            }
            (size, bytes / size)
        };
        let claimed = vec![0; blocks.div_ceil(64) as usize];
        Ok(Run { head: page, pages, class, block_bytes, blocks, used: None, claimed })
    }

    /// Reads all runs from the descriptors below the frontier.
    pub(super) fn read_descriptors(&mut self) -> Result<()> {
        let mut page = self.first_descriptors() + 1;
        while page < self.frontier {
            if self.is_system(page) {
                page += 1;
                continue;
            }
            let found = match self.descriptor(page) {
                // Two claims that crashes cut short can leave a descriptor whose run would end
                // beyond the frontier. No run exists there.
                Ok(Some((1 | 2, _, pages))) if page + pages > self.frontier => Ok(None),
                Ok(Some((kind @ (1 | 2), class, pages))) => {
                    self.run_of(page, class, kind, pages).map(Some)
                }
                Ok(_) => Ok(None),
                Err(Error::Damaged(damage)) => Err(damage),
                Err(error) => return Err(error),
            };
            match found {
                Ok(Some(run)) => {
                    page += run.pages;
                    self.runs.push(run);
                }
                Ok(None) => page += 1,
                Err(damage) => {
                    self.problem(damage);
                    page += 1;
                }
            }
        }
        Ok(())
    }

    /// Reads the saved free state, which says which blocks are in use. Returns whether it exists
    /// and is intact.
    pub(super) fn read_saved(&mut self, offset: u64, bytes: u64) -> Result<bool> {
        if offset == 0 {
            return Ok(false);
        }
        let bad = |expected: &str, found: String| Damage::new(offset, expected, found);
        let (head, pages) = (offset >> self.page_bits, bytes.div_ceil(self.page_bytes()));
        let descriptor = self.descriptor(head);
        if !offset.is_multiple_of(self.page_bytes())
            || self.is_system(head)
            || !matches!(descriptor, Ok(Some((3, _, count))) if count == pages)
            || head + pages > self.frontier
            || (head..head + pages).any(|page| self.runs.number_of(page).is_some())
        {
            self.problem(bad("a run of pages for the saved free state", format!("{descriptor:?}")));
            return Ok(false);
        }
        let words = match self.image.words(offset, bytes / 8) {
            Ok(words) if bytes >= 24 && bytes.is_multiple_of(8) => words,
            Ok(_) => {
                self.problem(bad("a saved free state", format!("{bytes} bytes")));
                return Ok(false);
            }
            Err(Error::Damaged(damage)) => {
                self.problem(damage);
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let sum = crc_words(&words[3..]);
        if words[0] != SAVED_MAGIC || words[1] != words.len() as u64 || words[2] != sum {
            let found = format!("{:#x} {:#x} {:#x}", words[0], words[1], words[2]);
            self.problem(bad("a saved free state's magic, length and checksum", found));
            return Ok(false);
        }
        let mut used = Vec::new();
        let mut at = 3;
        let mut after = 0;
        while at < words.len() {
            let page = words[at];
            let Some(number) = self.runs.number_at(page).filter(|_| page >= after) else {
                // The descriptor of this run may be damaged, so that its blocks are not known. The
                // next run whose descriptor is intact is listed further on.
                let is_next = page < self.frontier && page >= after;
                match self.descriptor(page) {
                    _ if !is_next => {
                        self.problem(bad("runs by ascending page", format!("page {page}")));
                    }
                    Err(Error::Damaged(_)) => {}
                    // The saved state has a checksum, and is whole.
                    other => {
                        let place = self.descriptor_offset(page);
                        let expected = "a run, which the saved free state lists";
                        self.problem(Damage::new(place, expected, format!("{other:?}")));
                    }
                }
                match self.next_saved(&words, at, after) {
                    Some(next) => {
                        self.runs.unknown.insert(page, words[at + 1..next].to_vec());
                        at = next;
                    }
                    None => return Ok(false),
                }
                continue;
            };
            let run = &self.runs.list[number];
            let count = run.claimed.len();
            let Some(bits) = words.get(at + 1..at + 1 + count) else {
                self.problem(bad("a bit for every block", format!("the end in page {page}")));
                return Ok(false);
            };
            if (run.blocks..count as u64 * 64).any(|i| is_set(bits, i)) {
                self.problem(bad("bits for blocks only", format!("more in page {page}")));
                return Ok(false);
            }
            if run.class == LARGE && !is_set(bits, 0) {
                self.problem(bad("a large block in use", format!("a free one in page {page}")));
                return Ok(false);
            }
            after = page + run.pages;
            used.push((number, bits.to_vec()));
            at += 1 + count;
        }
        for (number, bits) in used {
            self.runs.list[number].used = Some(bits);
        }
        let unlisted = self.runs.list.iter().filter(|run| run.used.is_none());
        let unlisted: Vec<u64> = unlisted.map(|run| run.head).collect();
        for page in unlisted {
            let place = self.descriptor_offset(page);
            self.problem(Damage::new(place, "a run that the saved state lists", "one it lacks"));
        }
        self.region(offset, bytes, What::SavedState);
        self.report.saved_bytes = pages << self.page_bits;
        Ok(true)
    }

    /// Returns where the saved free state goes on with a known run, if it has an unknown one at
    /// `at`. Pages before `after` are in runs that it has listed.
    fn next_saved(&self, words: &[u64], at: usize, after: u64) -> Option<usize> {
        let page = words[at];
        if !(after..self.frontier).contains(&page) {
            return None;
        }
        let Some(next) = self.runs.list.iter().find(|run| run.head > page) else {
            return Some(words.len());
        };
        // Bits can look like the number of a page, but hardly where a page follows as well.
        let later = next.head + next.pages..self.frontier;
        (at + 2..words.len()).find(|&place| {
            let end = place + 1 + next.claimed.len();
            words[place] == next.head
                && (end == words.len() || words.get(end).is_some_and(|page| later.contains(page)))
        })
    }

    /// Claims the block at `offset` for something of `needed` bytes, and counts it toward the total
    /// of `owner`. Fails unless a block begins there, is large enough and is not claimed yet.
    /// Returns the block's size.
    pub(super) fn claim(&mut self, offset: u64, needed: u64, owner: Owner) -> Result<u64, Damage> {
        let page_bits = self.page_bits;
        let free_state = self.report.free_state;
        let page = offset >> page_bits;
        let bad = |expected: String, found: &str| Err(Damage::new(offset, expected, found));
        let found = self.runs.number_of(page).or_else(|| self.damaged_run(offset, needed));
        let Some(number) = found else {
            return bad("a block".into(), "space that belongs to nothing");
        };
        let run = &mut self.runs.list[number];
        let inside = offset - (run.head << page_bits);
        let index = inside / run.block_bytes;
        if index >= run.blocks {
            return bad("a block".into(), "space that belongs to nothing");
        }
        if !inside.is_multiple_of(run.block_bytes) {
            return bad("the beginning of a block".into(), "the middle of one");
        }
        if run.block_bytes < needed {
            return bad(format!("a block of {needed} bytes"), "a smaller one");
        }
        if is_set(&run.claimed, index) {
            return bad("a block of one owner".into(), "one that something else links to as well");
        }
        run.claimed[(index / 64) as usize] |= 1 << (index % 64);
        let bytes = run.block_bytes;
        // The saved free state may lack a run whose descriptor is damaged.
        let used = run.used.as_ref().is_none_or(|used| is_set(used, index));
        match owner {
            Owner::Structure => self.report.structure_bytes += bytes,
            Owner::Record => self.report.record_bytes += bytes,
        }
        (self.watch)(bytes);
        if free_state && !used {
            let found = "one that the saved free state calls free";
            self.problem(Damage::new(offset, "a block in use", found));
        }
        Ok(bytes)
    }

    /// Checks the descriptors of the later pages of runs. After a crash, checks only runs with a
    /// linked block: a run's descriptors are durable before its first block is linked.
    pub(super) fn check_later_pages(&mut self) -> Result<()> {
        let all = self.report.free_state;
        let runs = self.runs.list.iter();
        let runs = runs.filter(|run| all || run.claimed.iter().any(|&bits| bits != 0));
        let runs: Vec<_> = runs.map(|run| (run.head, run.pages, run.class)).collect();
        for (page, count, class) in runs {
            for distance in 1..count {
                let place = self.descriptor_offset(page + distance);
                let damage = match self.descriptor(page + distance) {
                    Ok(Some(found)) if found == (4, class, distance) => continue,
                    Err(Error::Damaged(damage)) => damage,
                    Err(error) => return Err(error),
                    Ok(found) => {
                        let expected = format!("a later page, {distance} from its first");
                        Damage::new(place, expected, format!("{found:?}"))
                    }
                };
                self.repair(place, descriptor_of(page + distance, 4, class, distance), damage);
            }
        }
        Ok(())
    }

    /// Computes the report's totals, after every map has claimed its blocks.
    pub(super) fn settle(&mut self) {
        let mut in_use = Vec::new();
        for run in &self.runs.list {
            // After a crash, only the first page of a run without a block in use counts as the
            // run's.
            let whole = self.report.free_state || run.claimed.iter().any(|&bits| bits != 0);
            in_use.extend(run.head..run.head + if whole { run.pages } else { 1 });
        }
        for page in in_use {
            let offset = self.descriptor_offset(page);
            self.region(offset, 8, What::Descriptor { page: page as u32 });
        }
        let report = &mut self.report;
        // Each further region has one more such page, its first, with its descriptors.
        let further = (self.total - 1) / (1 << (self.page_bits - 3));
        let system = SYSTEM_BYTES.div_ceil(1 << self.page_bits) + 1 + further;
        report.header_bytes = system << self.page_bits;
        let mut in_runs = 0;
        for run in &self.runs.list {
            let run_bytes = run.pages << self.page_bits;
            in_runs += run_bytes;
            report.unusable_bytes += run_bytes - run.blocks * run.block_bytes;
            for index in (0..run.blocks).filter(|&i| !is_set(&run.claimed, i)) {
                match &run.used {
                    Some(used) if is_set(used, index) => report.leaked_bytes += run.block_bytes,
                    _ => report.free_block_bytes += run.block_bytes,
                }
            }
        }
        let pool = self.total << self.page_bits;
        report.unusable_bytes += report.saved_bytes;
        report.free_bytes = report.free_block_bytes;
        report.free_bytes += pool - report.header_bytes - in_runs - report.saved_bytes;
        report.free_bytes += report.file_bytes - pool;
    }
}
