//! Records that an operation has written but not linked yet.

use crate::error::Result;
use crate::index::record::{SlotRecord, SlotWords};
use crate::pmem::{Point, Seam};
use crate::pool::core::Core;
pub(crate) use crate::pool::unlinked::UnlinkedBlock;
use std::marker::PhantomData;

/// A record that is written, but that no slot links to yet. Dropping it frees its block, if it has
/// one, unless the record was linked meanwhile.
#[must_use]
pub(crate) struct UnlinkedRecord<'c, S: Seam, R: SlotRecord> {
    core: &'c Core<S>,
    words: SlotWords,
    linked: bool,
    /// If the block was only flushed: the commit point of the fence that it still needs.
    unfenced: Option<&'static Point>,
    form: PhantomData<R>,
}

impl<'c, S: Seam, R: SlotRecord> UnlinkedRecord<'c, S, R> {
    /// Writes a record's block and makes it durable.
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

    /// Writes a record's block and flushes it. The block is durable after this thread's next fence.
    /// If the record is dropped unlinked, the drop fences first, at `fence`.
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

    /// Returns the words for the record's slot.
    #[inline(always)]
    pub(crate) fn words(&self) -> SlotWords {
        self.words
    }

    /// Notes that the caller has fenced the flushes of the block.
    pub(crate) fn set_fenced(&mut self) {
        self.unfenced = None;
    }

    /// Keeps the block, because a slot links to the record now.
    #[inline(always)]
    pub(crate) fn set_linked(&mut self) {
        self.linked = true;
    }
}

impl<S: Seam, R: SlotRecord> Drop for UnlinkedRecord<'_, S, R> {
    #[inline(always)]
    fn drop(&mut self) {
        if R::EMPTY.is_none() || self.linked {
            return;
        }
        if let Some(at) = self.unfenced {
            // The flushes of the block's lines may still be in flight, and the block may go to
            // another record as soon as it is freed.
            self.core.memory.fence(at);
        }
        R::discard(self.core, self.words);
    }
}
