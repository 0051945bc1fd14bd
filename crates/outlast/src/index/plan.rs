//! What an operation of any index begins with: a change taken apart, and blocks that nothing
//! leads to yet.

use super::{Change, Record};
use crate::error::Result;
use crate::pmem::Seam;
use crate::pool::alloc::Block;
use crate::pool::core::Core;

/// A change, taken apart.
pub(super) struct Plan<'a, R: Record> {
    /// What to store; `None` to remove.
    pub(super) value: Option<R::Value<'a>>,
    /// The value that must be there.
    pub(super) expected: Option<R::Value<'a>>,
    /// Whether it applies to an absent key.
    pub(super) inserts: bool,
    /// Whether it applies to a present one.
    pub(super) replaces: bool,
    /// Whether the value before is asked for.
    pub(super) want_before: bool,
}

impl<'a, R: Record> Plan<'a, R> {
    #[inline(always)]
    pub(super) fn of(change: &Change<'a, R>, want_before: bool) -> Self {
        let (value, expected, inserts, replaces) = match *change {
            Change::Insert(value) => (Some(value), None, true, false),
            Change::Put(value) => (Some(value), None, true, true),
            Change::Update(value) => (Some(value), None, false, true),
            Change::Swap { expected, new } => (Some(new), Some(expected), false, true),
            Change::Remove => (None, None, false, true),
        };
        Plan { value, expected, inserts, replaces, want_before }
    }
}

/// Blocks that are given back unless they get linked.
pub(super) struct Blocks<'c, S: Seam> {
    core: &'c Core<S>,
    blocks: Vec<Block>,
}

impl<'c, S: Seam> Blocks<'c, S> {
    pub(super) fn new(core: &'c Core<S>) -> Self {
        Blocks { core, blocks: Vec::new() }
    }

    pub(super) fn take(&mut self, bytes: u64) -> Result<Block> {
        let block = self.core.allocate(bytes)?;
        self.blocks.push(block);
        Ok(block)
    }

    /// All are linked.
    pub(super) fn keep(&mut self) {
        self.blocks.clear();
    }

    /// The first `n` are linked, in the order they were taken.
    pub(super) fn keep_first(&mut self, n: usize) {
        self.blocks.drain(..n);
    }
}

impl<S: Seam> Drop for Blocks<'_, S> {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            self.core.free_unlinked(block.offset);
        }
    }
}
