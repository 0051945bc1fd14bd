//! Searchable arrays of words in DRAM, in whole lines. Inner nodes and the arrays above them
//! consist of these.

use crate::error::Damage;
use crate::index::ordered::OrderedRecord;
use crate::pmem::{Seam, SharedWord};
use crate::pool::core::Core;
use std::cmp::Ordering as Order;
use std::hint::select_unpredictable;
use std::ptr;
use std::sync::atomic::Ordering;

/// Words in a line.
pub(super) const LINE_WORDS: usize = 8;

/// A line of words in DRAM.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(super) [SharedWord; LINE_WORDS]);

/// A head of one line, followed by other lines, in one allocation. It is reached by a thin pointer
/// to the head, so the addresses of the lines after the head are known before the head has been
/// read.
#[repr(C)]
pub(crate) struct Piece<H> {
    pub(super) head: H,
    pub(super) lines: [Line],
}

/// The first line of a [`Piece`], which says where the parts of the piece begin.
///
/// # Safety
/// It must have the size and alignment of a line, zero bytes must be a value, and `extent` must
/// return what it was made with.
pub(crate) unsafe trait Head: Send + Sync {
    fn with_extent(extent: Extent) -> Self;
    fn extent(&self) -> Extent;
}

/// The parts of a [`Piece`], in the lines that follow its first one. Each field is the line at
/// which a part begins; the first part begins at line 0.
///
/// 1. The *heads*: the first word of each line of words.
/// 2. The *words*, ascending, with `u64::MAX` after the last one.
/// 3. The *numbers*, and then, if the words are parts of byte strings, the *links* and one line with the
///    prefix that all keys except the first share, as far as there is room.
///
/// A search reads the heads, and with them finds the one line of words that it has to read. Usually
/// the heads are two lines, which are prefetched together, so a search waits for memory only twice.
/// A binary search of the words would wait at nearly every step.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(super) words: u16,
    /// Numbers, one for each element. The number of an element that the search of a line of words
    /// finds is in the corresponding line of numbers.
    pub(super) numbers: u16,
    /// Links and the shared prefix, if there are any.
    pub(super) links: u16,
    pub(super) end: u16,
}

/// The most bytes of a shared prefix in a [`Piece`].
pub(super) const PREFIX: usize = size_of::<Line>();

impl Extent {
    /// Returns the parts for this many elements, with a link for each if `links` is set.
    pub(super) const fn of(elements: u32, links: bool) -> Extent {
        let lines = elements.div_ceil(LINE_WORDS as u32);
        let words = lines.div_ceil(LINE_WORDS as u32);
        let numbers = words + lines;
        let end = numbers + lines;
        let all = end + if links { lines + 1 } else { 0 };
        assert!(all <= u16::MAX as u32);
        Extent { words: words as u16, numbers: numbers as u16, links: end as u16, end: all as u16 }
    }

    /// Returns the size, in bytes, of a piece with these parts.
    pub(super) const fn bytes(self) -> u64 {
        (self.end as u64 + 1) * size_of::<Line>() as u64
    }
}

impl<H: Head> Piece<H> {
    pub(super) fn new(elements: u32, links: bool) -> Box<Piece<H>> {
        const { assert!(size_of::<H>() == size_of::<Line>() && align_of::<H>() == 64) };
        let extent = Extent::of(elements, links);
        let lines: Box<[Line]> = (0..=extent.end).map(|_| Line::default()).collect();
        let lines = Box::into_raw(lines).cast::<Line>();
        let piece = ptr::slice_from_raw_parts_mut(lines, usize::from(extent.end));
        // SAFETY: the allocation has `extent.end` + 1 lines. That is the layout of a piece with
        // `extent.end` lines after its head: a head has the size and alignment of a line, and zero
        // bytes are a valid head. Nothing else points to the allocation.
        let mut piece = unsafe { Box::from_raw(piece as *mut Piece<H>) };
        piece.head = H::with_extent(extent);
        piece
    }

    /// Returns a pointer to the complete piece that begins here.
    ///
    /// # Safety
    /// The pointer must be derived from one to the complete piece, and the piece must still exist.
    #[inline(always)]
    pub(super) unsafe fn whole(head: *mut H) -> *mut Piece<H> {
        // SAFETY: it is a piece's head, by the caller's promise.
        let lines = unsafe { &*head }.extent().end;
        ptr::slice_from_raw_parts_mut(head.cast::<Line>(), usize::from(lines)) as *mut Piece<H>
    }

    /// Returns the piece that begins here.
    ///
    /// # Safety
    /// As for [`whole`](Self::whole), and the piece must exist for `'p`.
    #[inline(always)]
    pub(super) unsafe fn reach<'p>(head: *mut H) -> &'p Piece<H> {
        // SAFETY: the piece has this many lines (`Head`), and the pointer may access all of it.
        unsafe { &*Self::whole(head) }
    }

    /// Prefetches the lines that a search reads first, besides the head, without waiting for the
    /// head.
    ///
    /// # Safety
    /// As for [`reach`](Self::reach).
    #[inline(always)]
    pub(super) unsafe fn prefetch(head: *mut H, seam: &impl Seam) {
        for line in 1..=2 {
            // SAFETY: every piece has at least one line of heads, one of words and one of numbers.
            seam.prefetch(unsafe { &*head.cast::<Line>().add(line) });
        }
    }

    pub(super) fn heads(&self) -> &[Line] {
        &self.lines[..usize::from(self.head.extent().words)]
    }

    pub(super) fn words(&self) -> &[Line] {
        let Extent { words, numbers, .. } = self.head.extent();
        &self.lines[usize::from(words)..usize::from(numbers)]
    }

    /// Returns the word with the number `place`, counted from the beginning of line `line`.
    #[inline(always)]
    pub(super) fn at(&self, line: u16, place: usize) -> &SharedWord {
        &self.lines[usize::from(line) + place / LINE_WORDS].0[place % LINE_WORDS]
    }

    #[inline(always)]
    pub(super) fn word(&self, seam: &impl Seam, place: usize) -> u64 {
        self.at(self.head.extent().words, place).load(seam, Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn has_links(&self) -> bool {
        let Extent { links, end, .. } = self.head.extent();
        links < end
    }

    /// Returns the link of a place, if there are links.
    #[inline(always)]
    pub(super) fn link(&self, seam: &impl Seam, place: usize) -> u64 {
        self.at(self.head.extent().links, place).load(seam, Ordering::Relaxed)
    }

    /// Compares the first `skip` bytes of a key with the prefix that all keys except the first
    /// share, like [`compare_start`](OrderedRecord::compare_start).
    #[inline(always)]
    pub(super) fn compare_prefix<S: Seam, R: OrderedRecord>(
        &self,
        core: &Core<S>,
        key: R::Key<'_>,
        skip: usize,
    ) -> Result<Order, Damage> {
        let seam = core.memory.seam();
        let line = &self.lines[usize::from(self.head.extent().end) - 1].0;
        let word = |place: usize| line[place].load(seam, Ordering::Relaxed);
        if skip <= PREFIX && R::begins_with(key, skip, word) {
            return Ok(Order::Equal);
        }
        R::compare_start(core, key, self.link(seam, 1), skip)
    }

    /// Returns the number of a place.
    #[inline(always)]
    pub(super) fn number(&self, seam: &impl Seam, place: usize) -> u64 {
        self.number_at(place).load(seam, Ordering::Relaxed)
    }

    /// Returns the word with the number of a place. The first place has the last word, and any other
    /// place has the number whose word of the search is in the same place of its line.
    #[inline(always)]
    fn number_at(&self, place: usize) -> &SharedWord {
        let Extent { numbers, links, .. } = self.head.extent();
        let line = if place == 0 { links } else { numbers };
        let word = usize::from(line) * LINE_WORDS + place - 1;
        &self.lines[word / LINE_WORDS].0[word % LINE_WORDS]
    }

    /// Returns the line of words, counted from the first one, in which a search for a limit ends.
    #[inline(always)]
    fn group_of(&self, seam: &impl Seam, limit: u64) -> usize {
        let Extent { words, numbers, .. } = self.head.extent();
        let (mut first, mut left) = (0, usize::from(words));
        while left > 1 {
            let half = left / 2;
            let found = self.lines[first + half].0[0].load(seam, Ordering::Relaxed) <= limit;
            first = select_unpredictable(found, first + half, first);
            left -= half;
        }
        let heads = first * LINE_WORDS + SharedWord::count_up_to(&self.lines[first].0, seam, limit);
        // The last line of heads can also have heads of lines that do not exist.
        heads.saturating_sub(1).min(usize::from(numbers - words) - 1)
    }

    /// Returns how many words are not above a limit, at most `most`.
    #[inline(always)]
    pub(super) fn count_up_to(&self, seam: &impl Seam, most: usize, limit: u64) -> usize {
        let Extent { words, numbers, .. } = self.head.extent();
        let group = self.group_of(seam, limit);
        // A caller that gets a place reads its number next.
        seam.prefetch(&self.lines[usize::from(numbers) + group]);
        let line = &self.lines[usize::from(words) + group].0;
        (group * LINE_WORDS + SharedWord::count_up_to(line, seam, limit)).min(most)
    }

    /// Prefetches the lines in which a search for a limit ends.
    #[inline(always)]
    pub(super) fn prefetch_end(&self, seam: &impl Seam, limit: u64) {
        let Extent { words, numbers, .. } = self.head.extent();
        let group = self.group_of(seam, limit);
        seam.prefetch(&self.lines[usize::from(words) + group]);
        seam.prefetch(&self.lines[usize::from(numbers) + group]);
    }

    /// Returns how many words are below this one, at most `most`.
    #[inline(always)]
    pub(super) fn count_below(&self, seam: &impl Seam, most: usize, word: u64) -> usize {
        word.checked_sub(1).map_or(0, |limit| self.count_up_to(seam, most, limit))
    }

    /// Sets the prefix that all keys except the first share.
    pub(super) fn set_prefix(&self, seam: &impl Seam, prefix: &[u64; LINE_WORDS]) {
        if self.has_links()
            && let Some(line) = self.lines.last()
        {
            for (word, &value) in line.0.iter().zip(prefix) {
                word.store(seam, value, Ordering::Relaxed);
            }
        }
    }

    /// Replaces the content: the words (a search ignores the first one), the numbers and the links.
    pub(super) fn set(
        &self,
        seam: &impl Seam,
        content: impl ExactSizeIterator<Item = (u64, u64, u64)> + Clone,
    ) {
        let searched = content.clone().skip(1).map(|(word, ..)| word);
        let mut searched = searched.chain(std::iter::repeat(u64::MAX));
        let mut firsts = [u64::MAX; LINE_WORDS];
        for (group, line) in self.words().iter().enumerate() {
            for (word, value) in line.0.iter().zip(searched.by_ref()) {
                word.store(seam, value, Ordering::Relaxed);
            }
            let place = group % LINE_WORDS;
            firsts[place] = line.0[0].load(seam, Ordering::Relaxed);
            firsts[place + 1..].fill(u64::MAX);
            for (head, first) in self.heads()[group / LINE_WORDS].0.iter().zip(firsts) {
                head.store(seam, first, Ordering::Relaxed);
            }
        }
        let links = self.head.extent().links;
        for (place, (_, number, link)) in content.enumerate() {
            self.number_at(place).store(seam, number, Ordering::Relaxed);
            if self.has_links() {
                self.at(links, place).store(seam, link, Ordering::Relaxed);
            }
        }
    }
}

impl<H: Head> Piece<H> {
    /// Inserts an element before the one at `place`, which is not 0. There are `len` elements so
    /// far.
    pub(super) fn insert(
        &self,
        seam: &impl Seam,
        len: usize,
        place: usize,
        (word, number, link): (u64, u64, u64),
    ) {
        let Extent { words, links, .. } = self.head.extent();
        // The first element has no word.
        let first = place - 1;
        shift(seam, len - 1 - first, |at| self.at(words, first + at), word);
        let heads = self.heads().iter().flat_map(|line| &line.0).zip(self.words());
        for (head, line) in heads.skip(first / LINE_WORDS).take(len / LINE_WORDS + 1) {
            head.store(seam, line.0[0].load(seam, Ordering::Relaxed), Ordering::Relaxed);
        }
        if self.has_links() {
            shift(seam, len - place, |at| self.at(links, place + at), link);
        }
        shift(seam, len - place, |at| self.number_at(place + at), number);
    }
}

/// Moves `count` words up by one place, and stores `first` in the place before them.
fn shift<'w>(seam: &impl Seam, count: usize, at: impl Fn(usize) -> &'w SharedWord, first: u64) {
    let mut carried = first;
    for place in 0..=count {
        let word = at(place);
        let next = word.load(seam, Ordering::Relaxed);
        word.store(seam, carried, Ordering::Relaxed);
        carried = next;
    }
}
