//! Words in persistent memory, and the offsets that name them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;

/// Size of a cache line in bytes, the unit of flushing and of ordering.
pub const LINE: u64 = 64;

/// One aligned 8-byte word in persistent memory.
///
/// The word is an atomic that only the [seam](super::Seam) reads and writes. So a crash never tears
/// an 8-byte store, and every access can be recorded.
#[repr(transparent)]
pub struct Word(pub(super) AtomicU64);

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Word(..)")
    }
}

/// A struct that may be laid over mapped memory.
///
/// # Safety
/// The type is `repr(C)`, consists of [`Word`]s (or arrays and structs of them) and nothing else,
/// and its alignment divides 4096. Then every bit pattern is a valid value, and shared access from
/// several threads is sound because every access is atomic.
pub unsafe trait Media: Sized {}

// SAFETY: a `Word` is a transparent AtomicU64.
unsafe impl Media for Word {}
// SAFETY: an array of `Media` holds nothing but `Media`.
unsafe impl<T: Media, const N: usize> Media for [T; N] {}

/// The position of a `T` in a pool, in bytes from the start; 0 is "none".
pub struct Offset<T = Word> {
    raw: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> Offset<T> {
    /// "None": only the header lives at the pool's first byte.
    pub const NULL: Self = Self::new(0);

    /// Creates the offset of the `T` at byte `raw`.
    #[inline]
    pub const fn new(raw: u64) -> Self {
        Offset { raw, of: PhantomData }
    }

    /// The offset in bytes from the start of the pool.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.raw
    }

    /// Returns whether this is [`Offset::NULL`].
    #[inline]
    pub const fn is_null(self) -> bool {
        self.raw == 0
    }
}

impl<T> Clone for Offset<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Offset<T> {}
impl<T> PartialEq for Offset<T> {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}
impl<T> Eq for Offset<T> {}
impl<T> fmt::Debug for Offset<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:#x}", self.raw)
    }
}
