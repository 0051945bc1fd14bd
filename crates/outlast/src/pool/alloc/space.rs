//! Free pages.

use std::collections::BTreeMap;

pub(super) struct Space {
    /// Free pages below the frontier: first page and length.
    pub(super) runs: BTreeMap<u32, u32>,
    pub(super) frontier: u32,
    pub(super) free_pages: u32,
    /// Page and length of the saved free state, while the header names it.
    pub(super) saved: Option<(u32, u32)>,
}

impl Space {
    /// Finds the lowest run of free pages that is long enough. The claim takes its lowest pages. So
    /// the first page of a free run gets a new descriptor before its later pages do, and a
    /// descriptor whose release is not durable never covers a later claim.
    pub(super) fn fit(&self, pages: u32) -> Option<u32> {
        if self.free_pages < pages {
            return None;
        }
        self.runs.iter().find(|(_, len)| **len >= pages).map(|(head, _)| *head)
    }

    pub(super) fn take(&mut self, head: u32, pages: u32) {
        let len = self.runs.remove(&head).expect("a run that was found");
        if len > pages {
            self.runs.insert(head + pages, len - pages);
        }
        self.free_pages -= pages;
    }

    pub(super) fn give(&mut self, mut head: u32, pages: u32) {
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
