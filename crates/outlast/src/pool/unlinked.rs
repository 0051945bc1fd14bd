//! Blocks that are allocated but not linked yet.

use super::core::Core;
use crate::error::Result;
use crate::pmem::Seam;

/// A block that nothing on media links to yet. Dropping it frees the block, unless it was linked.
#[must_use]
pub struct UnlinkedBlock<'c, S: Seam> {
    core: &'c Core<S>,
    offset: u64,
    linked: bool,
}

impl<'c, S: Seam> UnlinkedBlock<'c, S> {
    /// Allocates a block.
    pub fn allocate(core: &'c Core<S>, bytes: u64) -> Result<Self> {
        Ok(Self::of(core, core.allocate(bytes)?.offset))
    }

    /// Allocates a block for a record: `before` bytes, then the value.
    #[inline(always)]
    pub fn for_record(core: &'c Core<S>, before: usize, value: usize) -> Result<Self> {
        Ok(Self::of(core, core.allocate_record(before, value)?.offset))
    }

    /// Wraps a block, or a part of one, that is linked already. Dropping the result frees nothing.
    pub fn part(core: &'c Core<S>, offset: u64) -> Self {
        UnlinkedBlock { core, offset, linked: true }
    }

    /// Takes over a block that nothing links to, be it new or unlinked.
    #[inline(always)]
    pub fn of(core: &'c Core<S>, offset: u64) -> Self {
        UnlinkedBlock { core, offset, linked: false }
    }

    /// Returns the block's offset.
    #[inline(always)]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Keeps the block: something links to it now, or another thread may have seen it.
    #[inline(always)]
    pub fn set_linked(&mut self) {
        self.linked = true;
    }
}

impl<S: Seam> Drop for UnlinkedBlock<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.linked {
            self.core.free_unlinked(self.offset);
        }
    }
}
