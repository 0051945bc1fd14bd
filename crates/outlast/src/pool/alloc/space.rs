//! Free pages.

use super::ranges::Ranges;
use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Default)]
pub(super) struct Space {
    /// Free pages below the frontier: first page and length.
    pub(super) runs: BTreeMap<u32, u32>,
    pub(super) frontier: u32,
    pub(super) free_pages: u32,
    /// Page and length of the saved free state, while the header names it.
    pub(super) saved: Option<(u32, u32)>,
    /// Free pages, below and beyond the frontier, that may be holes in the file, without disk
    /// blocks. They must get disk blocks before anything is stored there.
    pub(super) bare: Ranges,
    /// The part of `bare` that the pool has given back since it was opened.
    pub(super) given: Ranges,
    /// Pages below the frontier that became free since the last [`age`](Space::age).
    pub(super) fresh: Ranges,
    /// Free pages that no claim can take at the moment, because their disk blocks are being given
    /// back to the file system. Those below the frontier are not in [`runs`](Space::runs). If they
    /// lie beyond it, claims there end before them.
    pub(super) out: Option<Range<u32>>,
    /// Bytes that were given back and then got disk blocks again.
    pub(super) refilled: u64,
}

impl Space {
    /// Finds the lowest free pages that are enough for a run and have disk blocks. Returns the
    /// first.
    ///
    /// Where all pages have disk blocks, these are the lowest pages of a free run. So the first
    /// page of that run gets a new descriptor before its later pages do. If a crash undoes a
    /// release, the descriptor that comes back therefore never covers pages of a later claim. Pages
    /// without disk blocks exist only where every store survives a crash (see
    /// [`trim`](super::trim)), so there each release is durable.
    pub(super) fn fit(&self, pages: u32) -> Option<u32> {
        if self.free_pages < pages {
            return None;
        }
        let long_enough = self.runs.iter().filter(|(_, len)| **len >= pages);
        long_enough.map(|(&head, &len)| head..head + len).find_map(|run| {
            self.bare.gaps(run).find(|gap| gap.len() as u32 >= pages).map(|gap| gap.start)
        })
    }

    /// Like [`fit`](Space::fit), but the pages may lack disk blocks.
    pub(super) fn fit_bare(&self, pages: u32) -> Option<u32> {
        self.runs.iter().find(|(_, len)| **len >= pages).map(|(head, _)| *head)
    }

    /// Removes pages that are claimed from the free pages.
    pub(super) fn take(&mut self, head: u32, pages: u32) {
        self.remove(head..head + pages);
        self.free_pages -= pages;
        self.fresh.remove(head..head + pages);
    }

    pub(super) fn give(&mut self, head: u32, pages: u32) {
        self.insert(head..head + pages);
        self.free_pages += pages;
        self.fresh.insert(head..head + pages);
    }

    /// Returns the run of free pages that contains all of `range`.
    pub(super) fn run_around(&self, range: &Range<u32>) -> Option<Range<u32>> {
        let (&head, &len) = self.runs.range(..=range.start).next_back()?;
        (range.end <= head + len).then_some(head..head + len)
    }

    /// Removes pages from the free runs.
    pub(super) fn remove(&mut self, range: Range<u32>) {
        let run = self.run_around(&range).expect("pages of a run that was found");
        self.runs.remove(&run.start);
        if run.start < range.start {
            self.runs.insert(run.start, range.start - run.start);
        }
        if range.end < run.end {
            self.runs.insert(range.end, run.end - range.end);
        }
    }

    /// Adds pages to the free runs.
    pub(super) fn insert(&mut self, range: Range<u32>) {
        let (mut head, mut len) = (range.start, range.end - range.start);
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

    /// Empties `fresh`, which then collects the pages that become free from now on.
    pub(super) fn age(&mut self) {
        self.fresh = Ranges::default();
    }
}
