//! Directories in PM: an array of offsets, in a block that the map's root names.

use super::layout::{self, DIRECTORY_HEADER, DirectoryHeader};
use super::points;
use crate::error::{Damage, Error, Result};
use crate::index::kit::media::{check_block, check_identity};
use crate::index::kit::unlinked::UnlinkedBlock;
use crate::index::{BlockKind, Visitor};
use crate::pmem::{Memory, Offset, Point, Seam, Word};
use crate::pool::core::{Core, root_offset};

/// A directory in PM. It has 2^depth entries.
pub(crate) struct Directory {
    root: Offset<Word>,
    offset: u64,
    pub(crate) depth: u32,
}

impl Directory {
    /// Opens the directory of the map whose root is in `slot`. Takes constant time.
    pub(crate) fn open<S: Seam>(core: &Core<S>, slot: usize) -> Result<Directory> {
        let place = root_offset(slot).raw() + 8;
        let root = Offset::<Word>::new(place);
        let word = core.memory.load(core.memory.at(root)?);
        let (offset, depth) = layout::unpack_root(word).ok_or_else(|| {
            let expected = "a directory's offset and depth";
            Error::DamagedRoot { slot, damage: Damage::new(place, expected, format!("{word:#x}")) }
        })?;
        let header = core.memory.at(Offset::<DirectoryHeader>::new(offset))?;
        check_block(core, offset, layout::directory_bytes(depth))?;
        let expected = layout::directory_identity(offset, depth);
        let what = format!("a directory of depth {depth}");
        check_identity(&core.memory, &header.identity, expected, &what)?;
        Ok(Directory { root, offset, depth })
    }

    /// Returns the offset of the directory's block.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the entries.
    pub(crate) fn entries<'m, S: Seam>(&self, memory: &'m Memory<S>) -> Result<&'m [Word], Damage> {
        memory.words(self.offset + DIRECTORY_HEADER, 8 << self.depth)
    }

    /// Reports the directory's block to a trace. If the directory is doubled meanwhile, the
    /// doubling thread marks this block for the trace, and the larger directory's block is new.
    pub(crate) fn trace(&self, visit: &mut Visitor<'_>) -> Result<()> {
        visit(BlockKind::Directory, self.offset, layout::directory_bytes(self.depth))
    }

    /// Writes the directory of a new map and flushes it, without a fence. Returns the root's word.
    pub(crate) fn create<S: Seam>(
        core: &Core<S>,
        depth: u32,
        entries: impl Iterator<Item = u64>,
    ) -> Result<(UnlinkedBlock<'_, S>, u64)> {
        let block = UnlinkedBlock::allocate(core, layout::directory_bytes(depth))?;
        write(&core.memory, block.offset(), depth, entries, &points::CREATE)?;
        let word = layout::pack_root(block.offset(), depth);
        Ok((block, word))
    }

    /// Replaces the directory by one of twice as many entries, which `twice` makes from the old
    /// ones, in the block `new`. The caller makes the root's word durable before anything depends
    /// on it. Only threads that hold the lock around `self` read the entries.
    pub(crate) fn double<S: Seam>(
        &mut self,
        core: &Core<S>,
        mut new: UnlinkedBlock<'_, S>,
        twice: impl FnOnce(Vec<u64>) -> Vec<u64>,
        at: &'static Point,
    ) -> Result<Doubled> {
        let memory = &core.memory;
        let (old, depth) = (self.offset, self.depth + 1);
        let entries = self.entries(memory)?.iter().map(|entry| memory.load(entry)).collect();
        let entries = twice(entries).into_iter();
        write(memory, new.offset(), depth, entries, &points::DOUBLE_NEW)?;
        memory.fence(&points::DOUBLE_NEW);
        core.before_unlink(old)?;
        let word = layout::pack_root(new.offset(), depth);
        memory.store_release(memory.at(self.root)?, word, at);
        new.set_linked();
        (self.offset, self.depth) = (new.offset(), depth);
        Ok(Doubled { root: self.root, old, bytes: layout::directory_bytes(depth - 1) })
    }
}

/// A doubling whose root word is stored, but not durable yet.
#[must_use]
pub(crate) struct Doubled {
    root: Offset<Word>,
    old: u64,
    bytes: u64,
}

impl Doubled {
    /// Makes the root's word durable.
    pub(crate) fn persist<S: Seam>(
        &self,
        core: &Core<S>,
        at: &'static Point,
    ) -> Result<(), Damage> {
        core.memory.persist(core.memory.at(self.root)?, at);
        Ok(())
    }

    /// Retires the old directory. The root's word must be durable.
    pub(crate) fn retire<S: Seam>(self, core: &Core<S>) {
        core.retire(self.old, self.bytes);
    }
}

/// Writes a directory and flushes it, without a fence.
fn write<S: Seam>(
    memory: &Memory<S>,
    offset: u64,
    depth: u32,
    entries: impl Iterator<Item = u64>,
    at: &'static Point,
) -> Result<(), Damage> {
    let header = memory.at(Offset::<DirectoryHeader>::new(offset))?;
    memory.store(&header.identity, layout::directory_identity(offset, depth), at);
    let words = memory.words(offset, DIRECTORY_HEADER + (8 << depth))?;
    for (word, entry) in words[DIRECTORY_HEADER as usize / 8..].iter().zip(entries) {
        memory.store(word, entry, at);
    }
    memory.flush_words(words, at);
    Ok(())
}
