//! Directories in PM: an array of offsets, in a block that the map's root names.

use super::media::{self, LOW48, check_block, check_identity, seal8};
use super::unlinked::UnlinkedBlock;
use crate::error::{Damage, Error, Result};
use crate::index::{BlockKind, Visitor};
use crate::pmem::{Media, Memory, Offset, Point, Seam, Word};
use crate::pool::core::{Core, root_offset};
use std::ops::RangeInclusive;

/// Bytes of a directory before its entries.
pub(crate) const DIRECTORY_HEADER: u64 = 64;

/// The first 64 bytes of a directory. Its entries, offsets of blocks, follow.
#[repr(C, align(64))]
pub(crate) struct DirectoryHeader {
    /// See [`DirectoryForm::identity`].
    pub(crate) identity: Word,
    /// Unused, of any content.
    pub(crate) unused: [Word; 7],
}
// SAFETY: consists of words.
unsafe impl Media for DirectoryHeader {}

const _: () = assert!(size_of::<DirectoryHeader>() as u64 == DIRECTORY_HEADER);

/// What the directories of a scheme have in common.
#[derive(Debug)]
pub struct DirectoryForm {
    /// The kind in their identity words.
    pub kind: u16,
    /// The depths that a directory can have.
    pub depths: RangeInclusive<u32>,
    /// The commit point of a map's first directory.
    pub create: &'static Point,
    /// The commit point of a doubled directory.
    pub double: &'static Point,
}

impl DirectoryForm {
    /// Returns the number of entries of a directory of this depth.
    pub const fn entries(&self, depth: u32) -> u64 {
        1 << depth
    }

    /// Returns the size, in bytes, of the block of a directory of this depth. It is at least 256,
    /// because blocks of that size and more are aligned to cache lines.
    pub const fn bytes(&self, depth: u32) -> u64 {
        let bytes = DIRECTORY_HEADER + 8 * self.entries(depth);
        if bytes < 256 { 256 } else { bytes }
    }

    /// Returns the identity word of a directory; see `kit::media::identity`.
    pub fn identity(&self, offset: u64, depth: u32) -> u64 {
        media::identity(self.kind, 0, &[offset, u64::from(depth)])
    }

    /// Reads the root's word: the directory's offset and depth. Returns `None` if it is damaged.
    pub fn unpack_root(&self, word: u64) -> Option<(u64, u32)> {
        let directory = word & LOW48;
        let depth = (word >> 48) as u32 & 0xff;
        let whole = pack_root(directory, depth) == word;
        (whole && self.depths.contains(&depth)).then_some((directory, depth))
    }
}

/// Returns the root's first scheme word: the directory's offset and depth.
///
/// ```text
///  63      56 55      48 47                          0
/// +----------+----------+-----------------------------+
/// |  check   |  depth   |     directory's offset      |
/// +----------+----------+-----------------------------+
/// ```
pub fn pack_root(directory: u64, depth: u32) -> u64 {
    seal8(directory | u64::from(depth) << 48)
}

/// A directory in PM.
pub(crate) struct Directory {
    form: &'static DirectoryForm,
    root: Offset<Word>,
    offset: u64,
    pub(crate) depth: u32,
}

impl Directory {
    /// Opens the directory of the map whose root is in `slot`. Takes constant time.
    pub(crate) fn open<S: Seam>(
        core: &Core<S>,
        form: &'static DirectoryForm,
        slot: usize,
    ) -> Result<Directory> {
        let place = root_offset(slot).raw() + 8;
        let root = Offset::<Word>::new(place);
        let word = core.memory.load(core.memory.at(root)?);
        let (offset, depth) = form.unpack_root(word).ok_or_else(|| {
            let expected = "a directory's offset and depth";
            Error::DamagedRoot { slot, damage: Damage::new(place, expected, format!("{word:#x}")) }
        })?;
        let header = core.memory.at(Offset::<DirectoryHeader>::new(offset))?;
        check_block(core, offset, form.bytes(depth))?;
        let expected = form.identity(offset, depth);
        let what = format!("a directory of depth {depth}");
        check_identity(&core.memory, &header.identity, expected, &what)?;
        Ok(Directory { form, root, offset, depth })
    }

    /// Returns the offset of the directory's block.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the entries.
    pub(crate) fn entries<'m, S: Seam>(&self, memory: &'m Memory<S>) -> Result<&'m [Word], Damage> {
        memory.words(self.offset + DIRECTORY_HEADER, 8 * self.form.entries(self.depth))
    }

    /// Reports the directory's block to a trace. If the directory is doubled meanwhile, the
    /// doubling thread marks this block for the trace, and the larger directory's block is new.
    pub(crate) fn trace(&self, visit: &mut Visitor<'_>) -> Result<()> {
        visit(BlockKind::Directory, self.offset, self.form.bytes(self.depth))
    }

    /// Writes the directory of a new map and flushes it, without a fence. Returns the root's word.
    pub(crate) fn create<'c, S: Seam>(
        core: &'c Core<S>,
        form: &DirectoryForm,
        depth: u32,
        entries: impl Iterator<Item = u64>,
    ) -> Result<(UnlinkedBlock<'c, S>, u64)> {
        let block = UnlinkedBlock::allocate(core, form.bytes(depth))?;
        write(&core.memory, form, block.offset(), depth, entries, form.create)?;
        let word = pack_root(block.offset(), depth);
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
        let (form, old, depth) = (self.form, self.offset, self.depth + 1);
        let entries = self.entries(memory)?.iter().map(|entry| memory.load(entry)).collect();
        let entries = twice(entries).into_iter();
        write(memory, form, new.offset(), depth, entries, form.double)?;
        memory.fence(form.double);
        core.before_unlink(old)?;
        let word = pack_root(new.offset(), depth);
        memory.store_release(memory.at(self.root)?, word, at);
        new.set_linked();
        (self.offset, self.depth) = (new.offset(), depth);
        Ok(Doubled { root: self.root, old, bytes: form.bytes(depth - 1) })
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
    form: &DirectoryForm,
    offset: u64,
    depth: u32,
    entries: impl Iterator<Item = u64>,
    at: &'static Point,
) -> Result<(), Damage> {
    let header = memory.at(Offset::<DirectoryHeader>::new(offset))?;
    memory.store(&header.identity, form.identity(offset, depth), at);
    let words = memory.words(offset, DIRECTORY_HEADER + 8 * form.entries(depth))?;
    for (word, entry) in words[DIRECTORY_HEADER as usize / 8..].iter().zip(entries) {
        memory.store(word, entry, at);
    }
    memory.flush_words(words, at);
    Ok(())
}
