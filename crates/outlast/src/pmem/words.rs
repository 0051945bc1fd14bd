//! Large arrays of words in DRAM, which can be in huge pages.

use super::Region;
use super::SharedWord;
use super::reserve::{HUGE_PAGE, reserve_aligned};
use rustix::mm::{Advice, ProtFlags};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of words in the smallest page.
const PAGE_WORDS: usize = 4096 / 8;

/// An array of words that begin as zeros. The system provides a zeroed page when the page is first
/// touched, so creating the array takes the same time whatever its size.
///
/// A large array can have huge pages ([`use_huge_pages`](Self::use_huge_pages)). The TLB holds
/// translations for only some thousand pages, so in a large table of small pages that is read at
/// random, the TLB misses cost more than the reads themselves.
#[derive(Debug)]
pub struct DramWords {
    words: NonNull<[SharedWord]>,
    memory: Held,
}

/// Where the words are.
#[derive(Debug)]
enum Held {
    Box,
    Mapping,
    Region(Arc<Region>),
}

// SAFETY: the words are owned, as by a box.
unsafe impl Send for DramWords {}
// SAFETY: as above; all access is atomic.
unsafe impl Sync for DramWords {}

impl DramWords {
    /// Creates `count` zeros, in small pages at first.
    pub fn zeroed(count: u64) -> DramWords {
        if count * 8 >= HUGE_PAGE
            && let Ok(start) =
                reserve_aligned(Self::mapped_bytes(count), ProtFlags::READ | ProtFlags::WRITE)
        {
            let words = NonNull::slice_from_raw_parts(start.cast(), count as usize);
            return DramWords { words, memory: Held::Mapping };
        }
        let words = Box::<[SharedWord]>::new_zeroed_slice(count as usize);
        // SAFETY: zero is a valid `SharedWord`.
        let words = unsafe { words.assume_init() };
        DramWords { words: NonNull::from(Box::leak(words)), memory: Held::Box }
    }

    /// Creates `count` zeros in a region, or outside if it has no room for them.
    pub fn in_region(region: &Arc<Region>, count: u64) -> DramWords {
        match region.take(count) {
            Some(words) => DramWords { words, memory: Held::Region(Arc::clone(region)) },
            None => DramWords::zeroed(count),
        }
    }

    /// Returns the offset of the words in their region; 0 if they are in none.
    pub fn offset(&self) -> u64 {
        match &self.memory {
            Held::Region(region) => region.offset_of(self.words),
            Held::Box | Held::Mapping => 0,
        }
    }

    /// Allows huge pages for parts that have no memory yet. Until then the kernel provides small
    /// pages, which it has at hand.
    pub fn use_huge_pages(&self) {
        if matches!(self.memory, Held::Mapping) {
            // SAFETY: mapped by `zeroed`, and the advice changes only the size of pages.
            let _ = unsafe {
                let bytes = Self::mapped_bytes(self.len() as u64) as usize;
                rustix::mm::madvise(self.words.as_ptr().cast(), bytes, Advice::LinuxHugepage)
            };
        }
    }

    /// Makes the system provide memory for all words now, without changing them. The system clears
    /// a huge page at a time, so a thread that no operation waits for should call this. Otherwise
    /// the first operation to touch a huge page would wait.
    pub fn touch(&self) {
        for word in self.iter().step_by(PAGE_WORDS) {
            // For the processor this is a store, but it leaves the value, because other threads may
            // use the words already.
            let _ = word.0.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn mapped_bytes(count: u64) -> u64 {
        (count * 8).next_multiple_of(HUGE_PAGE)
    }
}

impl Deref for DramWords {
    type Target = [SharedWord];

    #[inline(always)]
    fn deref(&self) -> &[SharedWord] {
        // SAFETY: that many words were allocated and zeroed, and they are freed when `self` is
        // dropped.
        unsafe { self.words.as_ref() }
    }
}

impl Drop for DramWords {
    fn drop(&mut self) {
        match &self.memory {
            Held::Region(region) => region.give_back(self.words),
            Held::Mapping => {
                let bytes = Self::mapped_bytes(self.len() as u64) as usize;
                // SAFETY: mapped by `zeroed`, and nothing borrows it any more. Nothing can be done
                // about an error.
                let _ = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), bytes) };
            }
            // SAFETY: leaked from a box by `zeroed`.
            Held::Box => drop(unsafe { Box::from_raw(self.words.as_ptr()) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_begin_as_zeros_and_keep_what_is_stored() {
        for count in [0, 1, 5000, HUGE_PAGE / 8 - 1, HUGE_PAGE / 8, HUGE_PAGE / 8 * 3 + 7] {
            let words = DramWords::zeroed(count);
            assert_eq!(words.len() as u64, count);
            let mapped = matches!(words.memory, Held::Mapping);
            assert_eq!(mapped, count >= HUGE_PAGE / 8);
            if count % 2 == 1 {
                words.touch();
            }
            for (word, value) in words.iter().zip(1..) {
                assert_eq!(word.0.swap(value, Ordering::Relaxed), 0);
            }
            words.touch();
            assert!(words.iter().zip(1..).all(|(word, v)| word.0.load(Ordering::Relaxed) == v));
            assert!(!mapped || words.as_ptr().addr().is_multiple_of(HUGE_PAGE as usize));
        }
    }

    /// Returns whether each page of the words is in memory.
    fn are_resident(words: &DramWords) -> bool {
        let bytes = words.len() * 8;
        let mut pages = vec![0u8; bytes.div_ceil(4096)];
        // SAFETY: the range is mapped and starts at a page, and there is a byte for each page.
        let done = unsafe { libc::mincore(words.as_ptr() as *mut _, bytes, pages.as_mut_ptr()) };
        assert_eq!(done, 0);
        pages.iter().all(|page| page & 1 == 1)
    }

    #[test]
    fn words_that_were_touched_wait_for_no_page() {
        let words = DramWords::zeroed(HUGE_PAGE / 8 * 3 + 7);
        assert!(!are_resident(&words));
        words.touch();
        assert!(are_resident(&words));
    }
}
