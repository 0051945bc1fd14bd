//! Mapped memory, addressed by offsets that are always checked.

use super::seam::{Mark, Point, Seam};
use super::word::{Media, Offset, Word};
use super::{LINE, SHADOW_SHARE, SideTable, arch};
use crate::error::Damage;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// The value that [`Memory::scribble`] writes.
const SCRIBBLED: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// The memory of one pool, with the seam that accesses it.
///
/// The memory never moves while this exists, and its length only grows. [`at`](Memory::at) and
/// [`words`](Memory::words) check offsets that come from media against it.
pub struct Memory<S> {
    base: *const u8,
    shadow: *const u8,
    side: SideTable,
    len: AtomicU64,
    seam: S,
}

// SAFETY: threads share the memory only as atomic words, and it stays mapped for the life of this
// value (the contract of `Memory::new`).
unsafe impl<S: Send> Send for Memory<S> {}
// SAFETY: as above.
unsafe impl<S: Sync> Sync for Memory<S> {}

impl<S: Seam> Memory<S> {
    /// Wraps `len` bytes at `base`, an eighth as many bytes of DRAM at `shadow`, and the
    /// [side table](SideTable) at `side`.
    ///
    /// # Safety
    /// `base` is aligned to 4096 bytes, `shadow` and `side` to 64. The first `len` bytes at `base`,
    /// `len` / [`SHADOW_SHARE`] at `shadow` and the side table for `len` bytes (and more, as
    /// announced by [`grown`](Memory::grown)) are initialized. They stay mapped readable and writable at
    /// this address until this value is dropped, and nothing accesses them except through it.
    pub unsafe fn new(
        base: *const u8,
        shadow: *const u8,
        side: *const u8,
        len: u64,
        seam: S,
    ) -> Self {
        assert_eq!(base.addr() % 4096, 0, "pool memory is page aligned");
        assert_eq!(shadow.addr() % 64, 0, "its shadow begins with a line");
        assert_eq!(side.addr() % 64, 0, "its side table begins with a line");
        seam.attach(base);
        // SAFETY: the caller's promise.
        let side = unsafe { SideTable::new(side) };
        Memory { base, shadow, side, len: AtomicU64::new(len), seam }
    }

    /// Announces that the memory is now `len` bytes long.
    ///
    /// # Safety
    /// Same as for [`Memory::new`], with the new length.
    pub unsafe fn grown(&self, len: u64) {
        debug_assert!(len >= self.len());
        // Release: pairs with the Acquire in `len`, so that a thread that sees the length also sees
        // the mapping made before it.
        self.len.store(len, Ordering::Release);
    }

    /// Number of bytes mapped.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Returns whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Overwrites free space, if the seam [reuses freed blocks immediately](Seam::reuses_at_once).
    /// The stores are not recorded: nothing may depend on the content of free space, so a crash
    /// among them makes no difference.
    #[inline(always)]
    pub fn scribble(&self, offset: u64, bytes: u64) {
        if self.seam.reuses_at_once()
            && let Ok(words) = self.words(offset, bytes)
        {
            words.iter().for_each(|word| word.0.store(SCRIBBLED, Ordering::Relaxed));
        }
    }

    /// The side table.
    #[inline(always)]
    pub fn side(&self) -> &SideTable {
        &self.side
    }

    /// The seam that accesses the memory.
    #[inline]
    pub fn seam(&self) -> &S {
        &self.seam
    }

    /// Returns the structure at `offset`.
    ///
    /// # Errors
    /// [`Damage`] if it does not lie inside the memory or is not aligned, since offsets are read
    /// from media.
    #[inline]
    pub fn at<T: Media>(&self, offset: Offset<T>) -> Result<&T, Damage> {
        let raw = offset.raw();
        let fits = raw.checked_add(size_of::<T>() as u64).is_some_and(|end| end <= self.len());
        if !fits || !raw.is_multiple_of(align_of::<T>() as u64) {
            return Err(self.outside(raw, size_of::<T>() as u64));
        }
        // SAFETY: in bounds and aligned, as checked above.
        Ok(unsafe { self.at_unchecked(offset) })
    }

    /// Returns the structure at an `offset` that was checked before.
    ///
    /// # Safety
    /// [`Memory::at`] has succeeded for this offset on this memory.
    #[inline(always)]
    pub unsafe fn at_unchecked<T: Media>(&self, offset: Offset<T>) -> &T {
        debug_assert!(offset.raw() + size_of::<T>() as u64 <= self.len());
        debug_assert!(offset.raw().is_multiple_of(align_of::<T>() as u64));
        // SAFETY: in bounds and aligned (the caller's promise). A `Media` type is valid for every
        // bit pattern and shared as atomics. The memory is mapped for the life of `self`.
        unsafe { &*self.base.add(offset.raw() as usize).cast::<T>() }
    }

    /// Returns the shadow in DRAM of the structure at `offset`. It holds what this process last
    /// stored there, be it for an earlier structure in the same place. Before the first store, its
    /// content is arbitrary.
    ///
    /// # Safety
    /// `offset` is a multiple of eight times the size of `T`, and that many bytes at it lie inside
    /// the memory.
    #[inline(always)]
    pub unsafe fn shadow_unchecked<T: Shadow>(&self, offset: u64) -> &T {
        debug_assert!(offset + size_of::<T>() as u64 * SHADOW_SHARE <= self.len());
        debug_assert!(offset.is_multiple_of(size_of::<T>() as u64 * SHADOW_SHARE));
        // SAFETY: inside the shadow and aligned (the caller's promise). A `Shadow` type is valid
        // for every bit pattern and shared as atomics. The shadow is mapped for the life of `self`.
        unsafe { &*self.shadow.add((offset / SHADOW_SHARE) as usize).cast::<T>() }
    }

    /// Returns the `bytes / 8` words at `offset`.
    ///
    /// # Errors
    /// [`Damage`] if they do not lie inside the memory or are not aligned.
    #[inline]
    pub fn words(&self, offset: u64, bytes: u64) -> Result<&[Word], Damage> {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.len());
        if !fits || !offset.is_multiple_of(8) || !bytes.is_multiple_of(8) {
            return Err(self.outside(offset, bytes));
        }
        // SAFETY: in bounds and aligned, as checked above. Words are atomics and valid for every
        // bit pattern. The memory is mapped for the life of `self`.
        Ok(unsafe {
            std::slice::from_raw_parts(
                self.base.add(offset as usize).cast::<Word>(),
                (bytes / 8) as usize,
            )
        })
    }

    #[cold]
    fn outside(&self, offset: u64, bytes: u64) -> Damage {
        Damage::new(
            offset,
            format!("{bytes} aligned bytes inside the {} of the pool", self.len()),
            "an offset that is out of bounds or not aligned",
        )
    }

    /// Returns the offset of a structure in this memory.
    #[inline]
    pub fn offset_of<T: Media>(&self, structure: &T) -> Offset<T> {
        Offset::new((std::ptr::from_ref(structure).addr() - self.base.addr()) as u64)
    }

    /// Loads a word without ordering.
    #[inline(always)]
    pub fn load(&self, word: &Word) -> u64 {
        self.seam.load(word, Ordering::Relaxed)
    }

    /// Loads a word with Acquire. Whatever the word's writer stored before this word is visible to
    /// this thread afterwards.
    #[inline(always)]
    pub fn load_acquire(&self, word: &Word) -> u64 {
        self.seam.load(word, Ordering::Acquire)
    }

    /// Loads a word with SeqCst, for links to blocks that can be retired while operations visit
    /// them (see `reclaim`).
    #[inline(always)]
    pub fn load_seq_cst(&self, word: &Word) -> u64 {
        self.seam.load(word, Ordering::SeqCst)
    }

    /// Stores a word without ordering.
    #[inline(always)]
    pub fn store(&self, word: &Word, value: u64, at: &'static Point) {
        self.seam.store(word, value, Ordering::Relaxed, at);
    }

    /// Stores a word with Release, after everything that this thread stored before.
    ///
    /// This is also the commit store of a cache line: earlier stores to the same line are durable
    /// whenever this one is.
    #[inline(always)]
    pub fn store_release(&self, word: &Word, value: u64, at: &'static Point) {
        self.seam.store(word, value, Ordering::Release, at);
    }

    /// Starts the flush of the lines of a structure.
    #[inline(always)]
    pub fn flush<T: Media>(&self, structure: &T, at: &'static Point) {
        self.seam.flush(words_of(structure), at);
    }

    /// Starts the flush of the lines of some words.
    #[inline(always)]
    pub fn flush_words(&self, words: &[Word], at: &'static Point) {
        self.seam.flush(words, at);
    }

    /// Writes lines that nothing links to yet, and starts their flush. They are durable after this
    /// thread's next fence.
    #[inline(always)]
    pub fn write_new(&self, lines: &[Word], values: &[u64], at: &'static Point) {
        debug_assert_eq!(lines.len(), values.len());
        debug_assert!(size_of_val(lines).is_multiple_of(LINE as usize));
        self.seam.store_lines(lines, values, at);
    }

    /// Returns the words of a line that hold `word`, as a bit mask, among those in `mask`. A
    /// concurrent store can make the result wrong, so it is only a filter.
    #[inline(always)]
    pub fn matching(&self, line: &[Word; 8], mask: u32, word: u64) -> u32 {
        self.seam.matching(line, mask, word)
    }

    /// Waits for this thread's flushes.
    #[inline(always)]
    pub fn fence(&self, at: &'static Point) {
        self.seam.fence(at);
    }

    /// Flushes a structure and waits until it is durable.
    #[inline(always)]
    pub fn persist<T: Media>(&self, structure: &T, at: &'static Point) {
        self.flush(structure, at);
        self.fence(at);
    }

    /// Copies bytes, zero-padded to whole words, to the beginning of `words`, which nothing links
    /// to yet. Returns the words written.
    #[inline(always)]
    pub fn write_bytes<'w>(
        &self,
        words: &'w [Word],
        bytes: &[u8],
        at: &'static Point,
    ) -> &'w [Word] {
        let used = &words[..bytes.len().div_ceil(8)];
        let (mut whole, _) = bytes.as_chunks::<8>();
        let mut left = used;
        if S::COPIES_WIDE && bytes.len() >= arch::COPY_LEAST {
            let to = left.as_ptr().cast::<u8>().cast_mut();
            // SAFETY: `left` has at least as many words as there are whole ones. Words may be
            // stored to through a shared reference. A thread that still reads them, because they
            // held another record, finds that out and throws away what it has read.
            unsafe { arch::copy(bytes.as_ptr(), to, size_of_val(whole)) };
            left = &left[whole.len()..];
            whole = &[];
        }
        for (word, bytes) in left.iter().zip(whole) {
            self.store(word, u64::from_le_bytes(*bytes), at);
        }
        if let Some(last) = left.get(whole.len()) {
            self.store(last, last_bytes(bytes), at);
        }
        used
    }

    /// Copies bytes out, beginning `skip` bytes into the words.
    ///
    /// If another thread writes at the same time, the copy can mix old and new content, so the
    /// caller validates it. Such a race is never undefined behavior.
    ///
    /// # Panics
    /// If the words have fewer than `skip + out.len()` bytes.
    pub fn read_bytes(&self, words: &[Word], skip: usize, out: &mut [u8]) {
        if let Some(from) = Self::wide(words, skip, out.len()) {
            // SAFETY: `wide` has checked the range. `out` is borrowed mutably, so it is elsewhere.
            unsafe { arch::copy(from, out.as_mut_ptr(), out.len()) };
            return;
        }
        let mut bytes = self.words_at(words, skip, out.len());
        let (whole, rest) = out.as_chunks_mut::<8>();
        for (out, word) in whole.iter_mut().zip(&mut bytes) {
            *out = word.to_le_bytes();
        }
        if let Some(last) = bytes.next() {
            rest.copy_from_slice(&last.to_le_bytes()[..rest.len()]);
        }
    }

    /// Returns the `len` bytes that begin `skip` bytes into the words, copied as in
    /// [`read_bytes`](Self::read_bytes).
    ///
    /// # Panics
    /// If the words have fewer than `skip + len` bytes.
    pub fn bytes_of(&self, words: &[Word], skip: usize, len: usize) -> Vec<u8> {
        // Not zeroed first: allocating without zeroing is faster.
        if let Some(from) = Self::wide(words, skip, len) {
            let mut out = Vec::with_capacity(len);
            // SAFETY: `wide` has checked the range, and `out` is new and has room for as many
            // bytes. All of them are initialized by the copy.
            unsafe {
                arch::copy(from, out.as_mut_ptr(), len);
                out.set_len(len);
            }
            return out;
        }
        let mut out = Vec::with_capacity(len.next_multiple_of(8));
        let (room, _) = out.spare_capacity_mut().as_chunks_mut::<8>();
        for (out, word) in room.iter_mut().zip(self.words_at(words, skip, len)) {
            *out = word.to_le_bytes().map(MaybeUninit::new);
        }
        // SAFETY: there was room for all words, and together they have at least `len` bytes.
        unsafe { out.set_len(len) };
        out
    }

    /// Returns whether the bytes that begin `skip` bytes into the words are `bytes`.
    ///
    /// # Panics
    /// If the words have fewer than `skip + bytes.len()` bytes.
    #[inline(always)]
    pub fn bytes_equal(&self, words: &[Word], skip: usize, bytes: &[u8]) -> bool {
        let mut here = self.words_at(words, skip, bytes.len());
        let (whole, rest) = bytes.as_chunks::<8>();
        if !whole.iter().zip(&mut here).all(|(bytes, word)| word == u64::from_le_bytes(*bytes)) {
            return false;
        }
        // The bytes above the requested ones are arbitrary.
        rest.is_empty()
            || here
                .next()
                .is_some_and(|word| (word ^ last_bytes(bytes)) << (64 - 8 * rest.len()) == 0)
    }

    /// Returns the address of the `len` bytes that begin `skip` bytes into the words if they are to
    /// be copied with the processor's widest accesses, or `None` if they are to be copied word by
    /// word.
    ///
    /// # Panics
    /// If they are to be copied with the widest accesses, and the words have fewer bytes.
    #[inline(always)]
    fn wide(words: &[Word], skip: usize, len: usize) -> Option<*const u8> {
        if !S::COPIES_WIDE || len < arch::COPY_LEAST {
            return None;
        }
        assert!(skip <= size_of_val(words) && len <= size_of_val(words) - skip, "bytes that exist");
        Some(words.as_ptr().cast::<u8>().wrapping_add(skip))
    }

    /// Returns the `len` bytes that begin `skip` bytes into the words, eight at a time, as
    /// little-endian numbers. In the last one, the bytes above the requested ones are arbitrary.
    #[inline(always)]
    fn words_at<'w>(
        &'w self,
        words: &'w [Word],
        skip: usize,
        len: usize,
    ) -> impl Iterator<Item = u64> + 'w {
        let (first, inside) = (skip / 8, skip as u32 % 8 * 8);
        let words = &words[first..(skip + len).div_ceil(8).max(first)];
        // The index may be one past the last word, where there are no requested bytes.
        let word_at = |index: usize| words.get(index).map_or(0, |word| self.load(word));
        (0..len.div_ceil(8)).map(move |index| match inside {
            0 => word_at(index),
            _ => word_at(index) >> inside | word_at(index + 1) << (64 - inside),
        })
    }

    /// Records a mark, if the seam records anything.
    #[inline]
    pub fn mark(&self, mark: impl FnOnce() -> Mark) {
        self.seam.mark(mark);
    }
}

/// Returns the bytes after the last whole word, as the low bytes of a number. The caller has
/// checked that there is at least one.
#[inline(always)]
fn last_bytes(bytes: &[u8]) -> u64 {
    match bytes.last_chunk() {
        Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * (bytes.len() % 8)),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// The DRAM metadata of a structure that is eight times as large.
///
/// # Safety
/// The type consists of `AtomicU64`s and nothing else. Its size is a power of two, at most 64 and
/// at least its alignment.
pub unsafe trait Shadow: Sized {}

/// Returns the words that a structure consists of.
#[inline(always)]
pub fn words_of<T: Media>(structure: &T) -> &[Word] {
    // SAFETY: a `Media` type consists of `Word`s and nothing else.
    unsafe {
        std::slice::from_raw_parts(
            std::ptr::from_ref(structure).cast::<Word>(),
            size_of::<T>() / size_of::<Word>(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::{FlushMode, Real};

    #[repr(C, align(4096))]
    struct Page([u8; 4096]);

    #[test]
    fn bytes_are_read_and_compared_wherever_they_begin() {
        static AT: Point = Point::new("test", "test");
        let mut page = Page([0; 4096]);
        let base = (&raw mut page).cast::<u8>();
        // SAFETY: an aligned page that nothing else uses and that outlives the memory. Its shadow
        // would be in the same page, and is not used.
        let memory = unsafe { Memory::new(base, base, base, 4096, Real::new(FlushMode::None)) };
        let words = memory.words(1024, 64).unwrap();
        let bytes: Vec<u8> = (0..1024u32).map(|i| (i * 37 + (i >> 8) + 11) as u8).collect();
        assert_eq!(memory.write_bytes(words, &bytes[..61], &AT).len(), 8);
        for skip in 0..61 {
            for len in 0..=61 - skip {
                let expected = &bytes[skip..skip + len];
                let mut out = vec![0; len];
                memory.read_bytes(words, skip, &mut out);
                assert_eq!(out, expected, "{skip} {len}");
                assert_eq!(memory.bytes_of(words, skip, len), expected, "{skip} {len}");
                assert!(memory.bytes_equal(words, skip, expected));
                for wrong in 0..len {
                    let mut other = expected.to_vec();
                    other[wrong] ^= 0x80;
                    assert!(!memory.bytes_equal(words, skip, &other), "{skip} {len} {wrong}");
                }
            }
        }
        // Lengths around the least one for which copies are wide.
        let words = memory.words(1024, 1024).unwrap();
        for len in (240..280).chain([511, 512, 1000, 1016]) {
            words.iter().for_each(|word| memory.store(word, u64::MAX, &AT));
            assert_eq!(memory.write_bytes(words, &bytes[..len], &AT).len(), len.div_ceil(8));
            for skip in [0, 1, 7, 8, 13] {
                let mut out = vec![0; len - skip];
                memory.read_bytes(words, skip, &mut out);
                assert_eq!(out, bytes[skip..len], "{skip} {len}");
                assert_eq!(memory.bytes_of(words, skip, len - skip), out, "{skip} {len}");
                assert!(memory.bytes_equal(words, skip, &out), "{skip} {len}");
            }
            let padding = len.next_multiple_of(8) - len;
            assert_eq!(memory.bytes_of(words, len, padding), vec![0; padding], "{len}");
            let next = memory.load(&words[len.div_ceil(8)]);
            assert_eq!(next, u64::MAX, "nothing is written beyond");
        }
    }
}
