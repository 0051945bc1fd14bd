//! What an operation has allocated and nothing on media leads to yet.

use crate::error::Result;
use crate::index::record::{Record, SlotWords};
use crate::pmem::{Point, Seam};
use crate::pool::core::Core;
use std::marker::PhantomData;

/// A block that nothing links to yet. Dropping it gives it back, unless it was linked.
#[must_use]
pub(crate) struct UnlinkedBlock<'c, S: Seam> {
    core: &'c Core<S>,
    offset: u64,
    linked: bool,
}

impl<'c, S: Seam> UnlinkedBlock<'c, S> {
    /// Allocates a block.
    pub(crate) fn allocate(core: &'c Core<S>, bytes: u64) -> Result<Self> {
        Ok(Self::of(core, core.allocate(bytes)?.offset))
    }

    /// Allocates a block for a record: `before` bytes, then the value's.
    #[inline(always)]
    pub(crate) fn for_record(core: &'c Core<S>, before: usize, value: usize) -> Result<Self> {
        Ok(Self::of(core, core.allocate_record(before, value)?.offset))
    }

    /// Takes over a block that nothing links to any more.
    #[inline(always)]
    pub(crate) fn of(core: &'c Core<S>, offset: u64) -> Self {
        UnlinkedBlock { core, offset, linked: false }
    }

    /// The block's offset.
    #[inline(always)]
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Something leads to the block now, or another thread can have seen it: it stays.
    #[inline(always)]
    pub(crate) fn set_linked(&mut self) {
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

/// A record that is written and that no slot links to yet. Dropping it gives its block back,
/// unless it was linked.
#[must_use]
pub(crate) struct UnlinkedRecord<'c, S: Seam, R: Record> {
    core: &'c Core<S>,
    words: SlotWords,
    linked: bool,
    /// Where the block's lines are fenced if they were only flushed.
    unfenced: Option<&'static Point>,
    form: PhantomData<R>,
}

impl<'c, S: Seam, R: Record> UnlinkedRecord<'c, S, R> {
    /// Writes a record's block, durably.
    #[inline(always)]
    pub(crate) fn prepare(
        core: &'c Core<S>,
        key: R::Key<'_>,
        value: R::Value<'_>,
        hash: u64,
        at: &'static Point,
    ) -> Result<Self> {
        let words = R::prepare(core, key, value, hash, at)?;
        Ok(UnlinkedRecord { core, words, linked: false, unfenced: None, form: PhantomData })
    }

    /// Writes a record's block and flushes it: it is durable with this thread's next fence. If
    /// it is given back before, that is at `fence`.
    #[inline(always)]
    pub(crate) fn prepare_unfenced(
        core: &'c Core<S>,
        key: R::Key<'_>,
        value: R::Value<'_>,
        hash: u64,
        at: &'static Point,
        fence: &'static Point,
    ) -> Result<Self> {
        let words = R::prepare_unfenced(core, key, value, hash, at)?;
        Ok(UnlinkedRecord { core, words, linked: false, unfenced: Some(fence), form: PhantomData })
    }

    /// The words for its slot.
    #[inline(always)]
    pub(crate) fn words(&self) -> SlotWords {
        self.words
    }

    /// A slot links to the record now.
    #[inline(always)]
    pub(crate) fn set_linked(&mut self) {
        self.linked = true;
    }
}

impl<S: Seam, R: Record> Drop for UnlinkedRecord<'_, S, R> {
    #[inline(always)]
    fn drop(&mut self) {
        if R::EMPTY.is_none() || self.linked {
            return;
        }
        if let Some(at) = self.unfenced {
            // The block's lines are on their way, and it is another record's from here on.
            self.core.memory.fence(at);
        }
        R::discard(self.core, self.words);
    }
}
