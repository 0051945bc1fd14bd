//! Whole records that nothing leads to, because what led to them is damaged.
//!
//! A record's block has a checksum over its offset, its lengths, its key and its value, so it can
//! be told from anything else without the structure above it. If the pool has its saved free state,
//! that state says whether the block is in use. If it is, the record is neither removed nor
//! replaced: the pool was closed, and then every block in use belongs to something. Without the
//! saved free state, nothing tells such a record from one that was removed or replaced.

use super::image::{Image, Source, crc};
use super::space::{Runs, is_set};
use super::{Locked, Walk, walk_image};
use crate::error::{Error, Result};
use crate::pool::layout::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use std::path::Path;

/// A whole record that nothing leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unlinked {
    /// The offset of its block.
    pub offset: u64,
    /// Whether it is a record of clevel. All other schemes have one format of records.
    pub of_clevel: bool,
    /// The key, as the map stores it.
    pub key: Vec<u8>,
    /// The value, as the map stores it.
    pub value: Vec<u8>,
}

/// What [`unlinked`] has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct UnlinkedCount {
    /// The number of whole records in blocks that are in use.
    pub in_use: u64,
    /// The number of whole records in blocks of which it is not known whether they are in use: the
    /// records may have been removed or replaced. 0 if the pool has its saved free state.
    pub unknown: u64,
}

/// Walks the pool in the file at `path`, and passes each whole record to `each` that is in a block
/// in use and that nothing leads to. Records of maps of 8-byte keys and values are found only in
/// maps of clevel: in the other schemes, they have no blocks of their own. The block of a least key
/// of PhaST looks like a record with an empty value.
///
/// # Errors
/// Those of [`walk`](super::walk), and those of `each`.
pub fn unlinked<E: From<Error>>(
    path: &Path,
    mut each: impl FnMut(Unlinked) -> Result<(), E>,
) -> Result<UnlinkedCount, E> {
    let locked = Locked::open(path)?;
    let image = Image::new(Source::File(&locked.file), locked.len);
    if image.needs_journal() {
        return Err(Error::Unfinished.into());
    }
    let mut watch = |_| {};
    let walk = walk_image(image, None, &mut watch)?;
    let mut count = UnlinkedCount::default();
    for block in walk.runs.unlinked(walk.page_bits) {
        let is_used = match block.is_used {
            Some(false) => continue,
            used => used.is_some(),
        };
        let Some(found) = walk.whole_record(block.offset, block.bytes)? else { continue };
        if is_used {
            count.in_use += 1;
            each(found)?;
        } else {
            count.unknown += 1;
        }
    }
    Ok(count)
}

/// A block that nothing leads to.
struct Block {
    offset: u64,
    bytes: u64,
    /// `None` if it is not known.
    is_used: Option<bool>,
}

impl Runs {
    /// Returns the blocks that nothing leads to.
    fn unlinked(&self, page_bits: u32) -> impl Iterator<Item = Block> {
        self.list.iter().flat_map(move |run| {
            (0..run.blocks).filter(|&index| !is_set(&run.claimed, index)).map(move |index| Block {
                offset: (run.head << page_bits) + index * run.block_bytes,
                bytes: run.block_bytes,
                is_used: run.used.as_ref().map(|used| is_set(used, index)),
            })
        })
    }
}

impl Walk<'_, '_> {
    /// Returns the record in a block, if there is a whole one.
    fn whole_record(&self, offset: u64, block_bytes: u64) -> Result<Option<Unlinked>> {
        self.image.read_ahead(offset, block_bytes.min(1 << 16));
        let [first, second] = match self.image.array(offset) {
            Ok(head) => head,
            Err(Error::Damaged(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        // A record of clevel that is in effect.
        let (state, lengths) = (first & !(1 << 63), first & ((1 << 46) - 1));
        let of_clevel = [1, 2].iter().any(|kind| state == kind << 60 | lengths);
        let (key, value, summed) = match of_clevel {
            true => (lengths & 0x1_ffff, lengths >> 17, lengths),
            false => (first & 0xffff_ffff, first >> 32, first),
        };
        let bytes = 16 + key + value;
        if key > MAX_KEY_BYTES as u64 || value > MAX_VALUE_BYTES as u64 || bytes > block_bytes {
            return Ok(None);
        }
        let Ok(mut body) = self.image.bytes(offset + 16, bytes - 16) else { return Ok(None) };
        let sum = crc(&[&offset.to_le_bytes(), &summed.to_le_bytes(), &body]);
        let is_whole = if of_clevel { second as u32 == sum } else { second == u64::from(sum) };
        if !is_whole {
            return Ok(None);
        }
        let value = body.split_off(key as usize);
        Ok(Some(Unlinked { offset, of_clevel, key: body, value }))
    }
}
