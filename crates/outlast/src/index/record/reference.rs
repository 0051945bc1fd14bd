//! Values by reference.

use super::{MAX_KEY_BYTES, MAX_VALUE_BYTES, mark_of, set_mark_of};
use crate::error::{Error, NotOpen, Result};
use crate::pmem::{Seam, Word};
use crate::pool::core::Core;
use crate::reclaim::Pin;
use std::fmt;

/// The pool that a reference reads from, with the type of its seam erased.
trait Pinned: Send + Sync {
    fn read(&self, offset: u64, skip: usize, out: &mut [u8]) -> Result<()>;
    fn copy(&self, offset: u64, skip: usize, len: usize) -> Result<Vec<u8>>;
    fn equals(&self, offset: u64, skip: usize, bytes: &[u8]) -> Result<bool>;
    fn mark(&self, offset: u64) -> u32;
    fn set_mark(&self, offset: u64, mark: u32);
    fn unpin(&self, pin: Pin);
}

impl<S: Seam> Pinned for Core<S> {
    fn read(&self, offset: u64, skip: usize, out: &mut [u8]) -> Result<()> {
        let words = pinned(self, offset, skip + out.len())?;
        self.while_open(|| {
            self.memory.read_bytes(words, skip, out);
            Ok(())
        })
    }
    fn copy(&self, offset: u64, skip: usize, len: usize) -> Result<Vec<u8>> {
        let words = pinned(self, offset, skip + len)?;
        self.while_open(|| Ok(self.memory.bytes_of(words, skip, len)))
    }
    fn equals(&self, offset: u64, skip: usize, bytes: &[u8]) -> Result<bool> {
        let words = pinned(self, offset, skip + bytes.len())?;
        self.while_open(|| Ok(self.memory.bytes_equal(words, skip, bytes)))
    }
    fn mark(&self, offset: u64) -> u32 {
        mark_of(&self.memory, offset)
    }
    fn set_mark(&self, offset: u64, mark: u32) {
        if let Some(inside) = self.pass_to_change() {
            set_mark_of(&self.memory, offset, mark);
            inside.leave();
        }
    }
    fn unpin(&self, pin: Pin) {
        self.epochs().unpin(pin);
    }
}

/// Returns the words of the first `bytes` bytes of a block that a pin keeps from being reused.
fn pinned<S: Seam>(core: &Core<S>, offset: u64, bytes: usize) -> Result<&[Word]> {
    if !core.is_here() {
        return Err(Error::NotOpen(NotOpen::Forked));
    }
    Ok(core.memory.words(offset, bytes.next_multiple_of(8) as u64)?)
}

enum Held<'m> {
    Word(u64),
    /// `len` bytes in the block at an offset, after the first `skip`.
    Pinned {
        pool: &'m dyn Pinned,
        offset: u64,
        skip: u32,
        len: u32,
        pin: Option<Pin>,
    },
}

// A block's header is not longer than a line.
const _: () =
    assert!(64 + MAX_KEY_BYTES + MAX_VALUE_BYTES <= u32::MAX as usize, "lengths fit 32 bits");

/// A value by reference. While the reference exists and the pool is open, the value's block is not
/// reused. The reference does not keep the pool open: once the pool is closed, reads fail with
/// [`NotOpen`](Error::NotOpen).
///
/// A reference copies bytes through the seam and never hands out a slice. In a damaged file two
/// records can overlap, and reading one through a slice while the other is written would be a data
/// race.
pub struct RecordRef<'m>(Held<'m>);

impl<'m> RecordRef<'m> {
    /// Makes a reference to a value of one word.
    pub(super) fn of_word(value: u64) -> Self {
        RecordRef(Held::Word(value))
    }

    /// Makes a reference to the `len` bytes after the first `skip` of the block at `offset`, which
    /// `pin` keeps from being reused.
    pub(super) fn of_block<S: Seam>(
        core: &'m Core<S>,
        offset: u64,
        skip: usize,
        len: usize,
        pin: Pin,
    ) -> Self {
        let (skip, len) = (skip as u32, len as u32);
        RecordRef(Held::Pinned { pool: core, offset, skip, len, pin: Some(pin) })
    }

    /// Returns the mark of a record in a scheme whose slots are two words; 0 if it has none.
    pub(crate) fn mark(&self) -> u32 {
        match &self.0 {
            Held::Word(_) => 0,
            Held::Pinned { pool, offset, .. } => pool.mark(*offset),
        }
    }

    /// Sets the mark of a record, unless the pool does not take changes at the moment. Of marks that are set
    /// at the same time, one stays. If the record has been replaced or removed, nothing depends on its mark.
    pub(crate) fn set_mark(&self, mark: u32) {
        if let Held::Pinned { pool, offset, .. } = &self.0 {
            pool.set_mark(*offset, mark);
        }
    }

    /// Takes the first `bytes` bytes off the value. It must have as many, and be in a block.
    pub(crate) fn skip(&mut self, bytes: usize) {
        if let Held::Pinned { skip, len, .. } = &mut self.0 {
            (*skip, *len) = (*skip + bytes as u32, *len - bytes as u32);
        }
    }

    /// Returns the number of bytes of the value.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a container's")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Held::Word(_) => 8,
            Held::Pinned { len, .. } => *len as usize,
        }
    }

    /// Copies `out.len()` bytes of the value to `out`, starting at `start`.
    ///
    /// # Errors
    /// [`Error::NotOpen`] if the pool was closed, or in a forked child process. Then the contents
    /// of `out` are meaningless.
    ///
    /// # Panics
    /// If the range exceeds the value.
    pub fn read_at(&self, start: usize, out: &mut [u8]) -> Result<()> {
        let end = start.checked_add(out.len());
        assert!(end.is_some_and(|end| end <= self.len()), "a range inside the value");
        match &self.0 {
            Held::Word(word) => {
                out.copy_from_slice(&word.to_le_bytes()[start..start + out.len()]);
                Ok(())
            }
            Held::Pinned { offset, skip, pool, .. } => {
                pool.read(*offset, *skip as usize + start, out)
            }
        }
    }

    /// Returns whether the value is `bytes`.
    ///
    /// # Errors
    /// [`Error::NotOpen`] if the pool was closed, or in a forked child process.
    pub fn equals(&self, bytes: &[u8]) -> Result<bool> {
        match &self.0 {
            _ if bytes.len() != self.len() => Ok(false),
            Held::Word(word) => Ok(word.to_le_bytes() == bytes),
            Held::Pinned { offset, skip, pool, .. } => pool.equals(*offset, *skip as usize, bytes),
        }
    }

    /// Returns the whole value.
    ///
    /// # Errors
    /// [`Error::NotOpen`] if the pool was closed, or in a forked child process.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        match &self.0 {
            Held::Word(word) => Ok(word.to_le_bytes().to_vec()),
            Held::Pinned { offset, skip, len, pool, .. } => {
                pool.copy(*offset, *skip as usize, *len as usize)
            }
        }
    }
}

impl Drop for RecordRef<'_> {
    fn drop(&mut self) {
        if let Held::Pinned { pin, pool, .. } = &mut self.0
            && let Some(pin) = pin.take()
        {
            pool.unpin(pin);
        }
    }
}

impl fmt::Debug for RecordRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordRef({} bytes)", self.len())
    }
}
