//! Keys in slots, or behind pointers in slots.

use super::Arena;
use crate::Full;
use outlast::internals::pmem::Seam;

/// Where a hash table has its keys.
///
/// Variable-length keys lie behind pointers (Dash, 4.5 and 6.1; clevel hashing, 4.1, which ported Level
/// hashing, CCEH and P-CLHT to that). A slot's word is then the place of a block with a key of 16 bytes,
/// which follows from the number that stands for it. Whoever compares keys or needs the hash of one
/// reads the block. Blocks are never freed, because a split leaves stale copies of slots behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keys {
    /// 8 bytes, in the slot.
    #[default]
    InSlots,
    /// 16 bytes, behind a pointer.
    Behind,
}

/// Bytes of a key behind a pointer.
const BYTES: u64 = 16;

/// Returns the second half of a key of 16 bytes, whose first half is the number that stands for it.
#[inline]
pub fn second_half(key: u64) -> u64 {
    !key
}

impl Keys {
    /// Returns the word for the slot of a new key. Makes the key durable, if it lies behind the word.
    ///
    /// # Errors
    /// [`Full`]
    #[inline]
    pub fn new_word<S: Seam>(self, arena: &Arena<S>, key: u64) -> Result<u64, Full> {
        match self {
            Keys::InSlots => Ok(key),
            Keys::Behind => {
                let at = arena.alloc_aligned(BYTES, BYTES)?;
                arena.store(at, key);
                arena.store(at + 8, second_half(key));
                arena.persist(at, BYTES);
                Ok(at)
            }
        }
    }

    /// Whether a slot's word, 0 if the slot is empty, is that of a key.
    #[inline]
    pub fn is<S: Seam>(self, arena: &Arena<S>, word: u64, key: u64) -> bool {
        match self {
            Keys::InSlots => word == key,
            Keys::Behind => {
                word != 0 && arena.load(word) == key && arena.load(word + 8) == second_half(key)
            }
        }
    }

    /// Returns the key of a slot's word that is not 0.
    #[inline]
    pub fn of<S: Seam>(self, arena: &Arena<S>, word: u64) -> u64 {
        match self {
            Keys::InSlots => word,
            Keys::Behind => arena.load(word),
        }
    }
}
