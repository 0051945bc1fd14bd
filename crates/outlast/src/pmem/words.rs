//! Words in DRAM, many of them: in large pages, as far as the system has some.

use super::SharedWord;
use super::reserve::{HUGE_PAGE, reserve_aligned};
use rustix::mm::{Advice, ProtFlags};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// Words of the smallest page that there is.
const PAGE_WORDS: usize = 4096 / 8;

/// Words that begin as zeros, without a store to them: the system gives them memory, page by
/// page, when they are touched. So making them takes the same time however many they are.
///
/// Of tables that are read at random, small pages cost more than the words: a processor
/// remembers the addresses of some thousand pages, and looks all others up in memory first.
#[derive(Debug)]
pub struct DramWords {
    words: NonNull<[SharedWord]>,
    /// Whether they are a mapping, not a box.
    mapped: bool,
}

// SAFETY: they are owned, as by a box.
unsafe impl Send for DramWords {}
// SAFETY: as above; all access is by atomics.
unsafe impl Sync for DramWords {}

impl DramWords {
    /// `count` zeros, in small pages at first.
    pub fn zeroed(count: u64) -> DramWords {
        if count * 8 >= HUGE_PAGE
            && let Ok(start) =
                reserve_aligned(Self::mapped_bytes(count), ProtFlags::READ | ProtFlags::WRITE)
        {
            let words = NonNull::slice_from_raw_parts(start.cast(), count as usize);
            return DramWords { words, mapped: true };
        }
        let words = Box::<[SharedWord]>::new_zeroed_slice(count as usize);
        // SAFETY: zero is a valid SharedWord.
        let words = unsafe { words.assume_init() };
        DramWords { words: NonNull::from(Box::leak(words)), mapped: false }
    }

    /// What has no memory yet may be had in large pages. Without that, the kernel gives small
    /// ones, which it finds at once.
    pub fn use_huge_pages(&self) {
        if self.mapped {
            // SAFETY: mapped by `zeroed`, and the advice changes nothing but the size of pages.
            let _ = unsafe {
                let bytes = Self::mapped_bytes(self.len() as u64) as usize;
                rustix::mm::madvise(self.words.as_ptr().cast(), bytes, Advice::LinuxHugepage)
            };
        }
    }

    /// Has the system give them all their memory now, which stores nothing. For whoever has the
    /// time: it clears a large page at a time, and the first touch of one would wait for that.
    pub fn touch(&self) {
        for word in self.iter().step_by(PAGE_WORDS) {
            // A store by the processor, but of what is there: others may use the words already.
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
        // SAFETY: as many words were allocated, zeroed, and are freed when `self` is dropped.
        unsafe { self.words.as_ref() }
    }
}

impl Drop for DramWords {
    fn drop(&mut self) {
        if self.mapped {
            let bytes = Self::mapped_bytes(self.len() as u64) as usize;
            // SAFETY: mapped by `zeroed`, and borrowed by nobody any more. There is nothing
            // to do about an error.
            let _ = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), bytes) };
        } else {
            // SAFETY: leaked from a box by `zeroed`.
            drop(unsafe { Box::from_raw(self.words.as_ptr()) });
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
            assert_eq!(words.mapped, count >= HUGE_PAGE / 8);
            if count % 2 == 1 {
                words.touch();
            }
            for (word, value) in words.iter().zip(1..) {
                assert_eq!(word.0.swap(value, Ordering::Relaxed), 0);
            }
            words.touch();
            assert!(words.iter().zip(1..).all(|(word, v)| word.0.load(Ordering::Relaxed) == v));
            assert!(!words.mapped || words.as_ptr().addr().is_multiple_of(HUGE_PAGE as usize));
        }
    }

    /// Whether each of their pages is in memory.
    fn are_resident(words: &DramWords) -> bool {
        let bytes = words.len() * 8;
        let mut pages = vec![0u8; bytes.div_ceil(4096)];
        // SAFETY: the range is mapped, from the beginning of a page, and there is a byte for each.
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
