//! What a cache asks of an index: samples of its records, removals by hash, and marks.
//!
//! A record's *mark* is what a cache knows about the record's use. It lies in the record's block
//! ([`record`](super::record)), and is a hint. None of these calls reads a key or copies a value.

use super::record::Record;
use super::{Changed, Cursor};
use crate::error::{Boxed, Result};

/// A record in a sample.
#[derive(Debug, Clone, Copy)]
pub struct Sampled {
    /// The hash of its key.
    pub hash: u64,
    /// Its mark. If the caller changes it here, the record gets the new one.
    pub mark: u32,
    /// The mark that was read.
    pub(super) read: u32,
    /// The offset of its block.
    pub(super) offset: u64,
}

/// What becomes of a record that is found by its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stays as it is.
    Keep,
    /// It stays, and gets this mark.
    Mark(u32),
    /// It is removed.
    Evict,
}

/// The parts of what finding a record needs, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What tells where the record is.
    Metadata,
    /// The slots that may link to it.
    Slots,
    /// Its block.
    Block,
}

/// The part of the interface that only indexes for caches have.
pub trait EvictingIndex<R: Record>: Send + Sync {
    /// Collects the records of the next `parts` parts of the index in `found`, which is cleared first,
    /// and advances the cursor. Then calls `choose`, which can change their marks. Fewer parts are read
    /// if the iteration ends.
    ///
    /// A record can be missing, or be one that is removed meanwhile.
    fn sample(
        &self,
        cursor: &mut Cursor,
        parts: u32,
        found: &mut Vec<Sampled>,
        choose: &mut dyn FnMut(&mut [Sampled]),
    ) -> Result<()>;

    /// Finds a record with this hash, and removes it if `decide` says so for its mark. Returns the size of
    /// the removed record, in bytes, as [`BlockRecord`](super::BlockRecord)s count it. Takes effect as a
    /// removal does. Of records with the same hash, this finds any.
    fn evict(&self, hash: u64, decide: &mut dyn FnMut(u32) -> Verdict) -> Boxed<Option<u64>>;

    /// Puts a record, as [`Change::Put`](super::Change::Put) does, with this mark. Returns the value
    /// before.
    fn put_marked(&self, key: R::Key<'_>, value: R::Value<'_>, mark: u32) -> Boxed<Changed<R>>;

    /// Prefetches a part of what finding a record by this hash needs. Waits for the parts before it.
    fn prefetch(&self, hash: u64, part: Part);
}
