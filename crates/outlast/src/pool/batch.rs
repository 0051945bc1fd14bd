//! The log of a batch, and the word that points to it. [`db::batch`](crate::db::batch) has the
//! protocol.
//!
//! ```text
//! log:   magic | bytes of the changes | CRC-32C of id, offset, bytes, changes | the changes
//! word:  0, or the log's offset and in bits 48 to 63 a checksum
//! ```

use super::core::Core;
use super::layout::{BATCH_MAGIC, BATCH_OFFSET, pack_batch, unpack_batch};
use super::points;
use super::unlinked::UnlinkedBlock;
use crate::error::{Damage, Error, Result};
use crate::pmem::{Offset, Point, Seam, Word};

/// Size of the head of a log, before the changes, in bytes.
const HEAD: usize = 24;

/// The log of a batch. If it is dropped while the batch is under way (after [`commit`](Log::commit)
/// or [`find`](Log::find), without [`clear`](Log::clear) or [`abandon`](Log::abandon)), the pool is
/// poisoned until the next open, which finishes the batch.
pub struct Log<'c, S: Seam> {
    core: &'c Core<S>,
    /// Linked while the batch word points to it.
    block: UnlinkedBlock<'c, S>,
    under_way: bool,
}

impl<S: Seam> Drop for Log<'_, S> {
    fn drop(&mut self) {
        if self.under_way {
            self.core.poison();
        }
    }
}

/// Returns the checksum of a log.
fn checksum<S: Seam>(core: &Core<S>, offset: u64, changes: &[u8]) -> u64 {
    let mut crc = crc32c::crc32c(&core.header().id().to_le_bytes());
    crc = crc32c::crc32c_append(crc, &offset.to_le_bytes());
    crc = crc32c::crc32c_append(crc, &(changes.len() as u64).to_le_bytes());
    u64::from(crc32c::crc32c_append(crc, changes))
}

/// Stores the batch word, durably.
fn set<S: Seam>(core: &Core<S>, value: u64, at: &'static Point) -> Result<()> {
    let word = core.memory.at(Offset::<Word>::new(BATCH_OFFSET))?;
    core.memory.store_release(word, value, at);
    core.memory.persist(word, at);
    Ok(())
}

/// Returns whether the batch word points to a log, or is damaged.
pub fn is_under_way<S: Seam>(core: &Core<S>) -> Result<bool> {
    let word = core.memory.load(core.memory.at(Offset::<Word>::new(BATCH_OFFSET))?);
    Ok(word != 0)
}

/// Returns the damage of a pool that was closed although its batch word points to a log.
pub fn unexpected() -> Damage {
    Damage::new(BATCH_OFFSET, "0, because the pool was closed", "a batch under way")
}

/// Clears the batch word, without reading the log.
pub fn forget<S: Seam>(core: &Core<S>) -> Result<()> {
    set(core, 0, &points::BATCH_DONE)
}

impl<'c, S: Seam> Log<'c, S> {
    /// Returns the size, in bytes, of the log of changes that take this many bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no block can hold it.
    pub fn bytes_for(core: &Core<S>, changes: usize) -> Result<u64> {
        let (bytes, max) = ((HEAD + changes) as u64, core.geometry.large_max());
        if bytes > max {
            let why = format!("its log takes {bytes} bytes, at most {max} are possible");
            return Err(Error::Invalid { what: "batch", why });
        }
        Ok(bytes)
    }

    /// Writes a log. It is durable when this returns, and nothing points to it yet.
    ///
    /// # Errors
    /// Those of [`bytes_for`](Self::bytes_for) and of an allocation.
    pub fn write(core: &'c Core<S>, changes: &[u8]) -> Result<Self> {
        let bytes = Self::bytes_for(core, changes.len())?;
        let block = UnlinkedBlock::allocate(core, bytes)?;
        let words = core.memory.words(block.offset(), bytes.next_multiple_of(8))?;
        let head = [BATCH_MAGIC, changes.len() as u64, checksum(core, block.offset(), changes)];
        for (word, value) in words.iter().zip(head) {
            core.memory.store(word, value, &points::BATCH_LOG);
        }
        core.memory.write_bytes(&words[head.len()..], changes, &points::BATCH_LOG);
        core.memory.flush_words(words, &points::BATCH_LOG);
        core.memory.fence(&points::BATCH_LOG);
        Ok(Log { core, block, under_way: false })
    }

    /// Finds the log of a batch that is [under way](is_under_way), and its changes. Must be called
    /// before anything else is done with the pool.
    ///
    /// # Errors
    /// [`Damage`] if the batch word is damaged, or if it does not lead to an intact log of this
    /// pool.
    pub fn find(core: &'c Core<S>) -> Result<(Self, Vec<u8>), Damage> {
        let word = core.memory.load(core.memory.at(Offset::<Word>::new(BATCH_OFFSET))?);
        let offset = unpack_batch(word).ok_or_else(|| {
            let expected = "the offset of a batch's log and its checksum";
            Damage::new(BATCH_OFFSET, expected, format!("{word:#x}"))
        })?;
        core.alloc().check_block(core, offset, HEAD as u64)?;
        let head = core.memory.words(offset, HEAD as u64)?;
        let [magic, len, sum] = std::array::from_fn(|i| core.memory.load(&head[i]));
        let no_log =
            || Damage::new(offset, "the log of a batch", format!("{magic:#x}, {len} bytes"));
        if magic != BATCH_MAGIC || len > core.geometry.large_max() {
            return Err(no_log());
        }
        let bytes = (HEAD as u64 + len).next_multiple_of(8);
        core.alloc().check_block(core, offset, HEAD as u64 + len)?;
        let changes = core.memory.bytes_of(core.memory.words(offset, bytes)?, HEAD, len as usize);
        if checksum(core, offset, &changes) != sum {
            return Err(no_log());
        }
        // The trace will not find the log's block, because no root leads to it.
        core.alloc().mark(core, offset, None)?;
        let block = UnlinkedBlock::part(core, offset);
        Ok((Log { core, block, under_way: true }, changes))
    }

    /// Returns the damage of a log that does not hold what is expected.
    pub fn damage(&self, expected: &str) -> Damage {
        Damage::new(self.block.offset(), expected, "others")
    }

    /// Points the batch word to the log. Once this returns, the batch takes effect.
    pub fn commit(&mut self) -> Result<()> {
        self.block.set_linked();
        self.under_way = true;
        set(self.core, pack_batch(self.block.offset()), &points::BATCH_COMMIT)
    }

    /// Gives up a log that cannot be used. The batch word still points to it, so that the next open
    /// reports it too. But no later open may use the log, even if it could, because operations
    /// change the pool's records from now on. So unless the pool is read-only, the log's magic is
    /// cleared, and then its block is freed.
    pub fn abandon(mut self) -> Result<()> {
        if !self.core.options().read_only {
            let magic = self.core.memory.at(Offset::<Word>::new(self.block.offset()))?;
            self.core.memory.store_release(magic, 0, &points::BATCH_LOG);
            self.core.memory.persist(magic, &points::BATCH_LOG);
            self.core.free_unlinked(self.block.offset());
        }
        self.under_way = false;
        Ok(())
    }

    /// Ends the batch: clears the batch word, durably, and frees the log. The caller has made all
    /// changes durable.
    pub fn clear(mut self) -> Result<()> {
        set(self.core, 0, &points::BATCH_DONE)?;
        self.under_way = false;
        self.core.free_unlinked(self.block.offset());
        Ok(())
    }
}
