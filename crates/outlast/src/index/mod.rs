//! The indexes, and the one interface that they share.
//!
//! Each scheme has a folder of about the same shape: `mod.rs` (what it is, its invariants, its
//! crash argument), `layout.rs` (on-media structs), `ops.rs`, `resize.rs`, `recover.rs`, `scan.rs`,
//! `verify.rs`. Most of Dash-EH and Dash-LH is in [`dash`], which has everything that concerns one
//! segment.
//!
//! An index stores records of one of two forms ([`RecordForm`]). The form is a type parameter
//! ([`Inline`], [`Bytes`]). [`Index`] is object-safe, so that tools work on maps whose types they
//! do not know.

pub mod bugs;
#[cfg(feature = "clevel")]
pub mod clevel;
pub mod config;
#[cfg(any(feature = "dash-eh", feature = "dash-lh"))]
pub mod dash;
#[cfg(feature = "dash-eh")]
pub mod dash_eh;
#[cfg(feature = "dash-lh")]
pub mod dash_lh;
#[cfg(feature = "ea-pht")]
pub mod ea_pht;
pub mod evicting;
pub mod expiring;
mod fingerprints;
#[cfg(feature = "group")]
pub mod group;
#[cfg(feature = "line")]
mod hints;
mod kit;
#[cfg(feature = "line")]
pub mod line;
mod ordered;
#[cfg(feature = "phast")]
pub mod phast;
pub mod record;
mod registry;
mod schema;
mod version;

pub use config::SchemeConfig;
pub use evicting::{EvictingIndex, Part, Sampled, Verdict};
pub use expiring::{Counted, Expiring, ExpiringIndex, Timed};
pub use kit::open::WhileOpen;
pub use ordered::{KeyOrder, KeyRange, OrderedIndex, OrderedRecord};
pub use record::{BlockRecord, Bytes, Inline, Record, RecordForm, SlotRecord};
pub use registry::{Config, Scheme, SchemeRow};
pub use schema::Schemas;

/// The fence that [`version`] and `turn` use; the model checker substitutes its own.
mod sync {
    pub(super) use std::sync::atomic::fence;
}

use crate::error::{Boxed, Damage, Result};

/// A change of one key. The index checks its condition and applies it in one atomic step.
#[derive(Debug)]
pub enum Change<'a, R: Record> {
    /// Insert if absent.
    Insert(R::Value<'a>),
    /// Insert or replace.
    Put(R::Value<'a>),
    /// Replace if present.
    Update(R::Value<'a>),
    /// Replace the value if it equals `expected`.
    Swap {
        /// The value that the key must have.
        expected: R::Value<'a>,
        /// The value to put in its place.
        new: R::Value<'a>,
    },
    /// Remove if present.
    Remove,
    /// Remove the key if it has this value.
    CompareRemove(R::Value<'a>),
}

impl<R: Record> Clone for Change<'_, R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: Record> Copy for Change<'_, R> {}

/// Whether the caller of a change wants the previous value, and how that value is checked.
#[derive(Debug)]
pub struct Previous<R: Record> {
    wanted: bool,
    check: Option<Check<R>>,
}

/// A check of a value. It returns the damage if the caller does not accept the value.
type Check<R> = for<'a> fn(<R as Record>::Value<'a>) -> Result<(), Damage>;

impl<R: Record> Clone for Previous<R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: Record> Copy for Previous<R> {}

impl<R: Record> Previous<R> {
    /// The caller does not want the previous value.
    pub const UNWANTED: Self = Previous { wanted: false, check: None };

    /// The caller wants the previous value, whatever it is.
    pub const WANTED: Self = Previous { wanted: true, check: None };

    /// The caller wants the previous value, and `check` must accept it. Otherwise the change fails
    /// with [`Damaged`](crate::Error::Damaged), and has no effect.
    #[inline(always)]
    pub const fn checked(check: for<'a> fn(R::Value<'a>) -> Result<(), Damage>) -> Self {
        Previous { wanted: true, check: Some(check) }
    }

    /// Returns [`WANTED`](Self::WANTED) if `wanted` is set, otherwise [`UNWANTED`](Self::UNWANTED).
    pub fn when(wanted: bool) -> Self {
        if wanted { Self::WANTED } else { Self::UNWANTED }
    }

    /// Returns the value before a change if the caller wants it.
    #[inline(always)]
    pub(crate) fn take(
        self,
        read: impl FnOnce() -> Result<R::Owned, Damage>,
    ) -> Result<Option<R::Owned>, Damage> {
        if !self.wanted {
            return Ok(None);
        }
        let value = read()?;
        if let Some(check) = self.check {
            check(R::value_of(&value))?;
        }
        Ok(Some(value))
    }
}

/// The effect of a [`Change`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed<R: Record> {
    /// Whether the change was applied.
    pub applied: bool,
    /// The value before the change, if the key was present and the caller asked for it.
    pub before: Option<R::Owned>,
    /// Whether the key was present before the change.
    pub present: bool,
}

/// The position of an iteration. It is opaque, survives splits, and is valid as long as the map.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursor {
    /// The first hash of the current range. In an ordered index of inline records: the key that
    /// comes next.
    pub(crate) low: u64,
    /// The last hash of the current range.
    pub(crate) high: u64,
    /// The number of the part of the range that comes next; see `kit::walk::scan_part`.
    pub(crate) part: u32,
    /// The key that comes next, in an index that iterates by keys that are byte strings.
    pub(crate) key: Vec<u8>,
    pub(crate) state: CursorState,
    pub(crate) care: Care,
    /// The damage that the iteration has stepped over and its caller has not collected yet.
    pub(crate) lost: Vec<Damage>,
    /// Whether an expiring index returns values with their times.
    pub(crate) timed: bool,
    /// If the ranges just before `low` could not be read: the first hash of the first of them.
    pub(crate) gap: Option<u64>,
}

/// What a walk over records does about damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Care {
    /// The walk fails at damage that keeps it from reading on, and checks no checksums.
    #[default]
    Trust,
    /// Like `Trust`, but the walk reads no values, and reports the default value with each key.
    Keys,
    /// Like `Trust`, but the walk also fails at a record whose checksum does not match.
    Check,
    /// The walk checks checksums too, but it steps over all damage and lists it.
    Salvage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CursorState {
    #[default]
    Start,
    Inside,
    Done,
}

impl Cursor {
    /// Returns a cursor at the beginning of an iteration.
    pub fn start() -> Self {
        Self::default()
    }

    /// Returns a cursor at the beginning of an iteration that treats damage as `care` says.
    pub(crate) fn with_care(care: Care) -> Self {
        Cursor { care, ..Self::default() }
    }

    pub(crate) fn finish(&mut self) {
        self.state = CursorState::Done;
    }

    /// Returns whether the iteration has ended.
    pub fn is_done(&self) -> bool {
        self.state == CursorState::Done
    }
}

/// The kinds of blocks that a trace or an offline walk reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// The block that leads to the others: a directory, the context of clevel, the master array of
    /// PhaST, or the header of an EA-PHT table.
    Directory,
    /// The unit by which the index grows: a segment, an array of segments (Dash-LH), a level
    /// (clevel), a leaf (PhaST) or a chunk (EA-PHT).
    Segment,
    /// An overflow node, or an annex of EA-PHT.
    Overflow,
    /// A block that holds one record, or a separator of PhaST.
    Record,
}

/// A callback that receives each block that an index owns: its kind, its offset and its size in
/// bytes.
pub type Visitor<'v> = dyn FnMut(BlockKind, u64, u64) -> Result<()> + 'v;

/// What [`Pool::verify`](crate::Pool::verify) has found in a map.
#[derive(Debug, Clone, Default)]
pub struct Verified {
    /// Live records. Most schemes count torn ones among them.
    pub records: u64,
    /// Keys found more than once.
    pub duplicated: u64,
    /// Records that cannot be read, or whose checksum or hash does not match.
    pub torn: u64,
    /// Everything that is wrong, torn and duplicated records included; at most 10,000 findings.
    pub damage: Vec<Damage>,
}

/// Statistics of one index.
#[derive(Debug, Clone, Default)]
pub struct IndexStats {
    /// Segments, levels or buckets: the scheme's unit of growth. In a large table, an estimate from
    /// a sample.
    pub segments: u64,
    /// Entries of the directory.
    pub directory_entries: u64,
    /// Records; in a large table, an estimate from a sample.
    pub records_estimate: u64,
    /// Record slots in total, estimated like `segments`. In Dash, those of overflow nodes are left
    /// out.
    pub slots: u64,
    /// Bytes of DRAM that the index occupies once all of it has been touched since opening, such as
    /// its directory and its bucket metadata.
    /// [`PoolStats::shadow_bytes`](crate::PoolStats::shadow_bytes) is the DRAM that the metadata
    /// occupy now, in the pages touched so far.
    pub dram_bytes: u64,
    /// Directory doublings since opening.
    pub doublings: u64,
    /// Segment splits since opening.
    pub splits: u64,
    /// Segments repaired at first touch since opening.
    pub repaired_segments: u64,
}

/// How often an index has grown since opening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Growth {
    /// Segment splits, or the scheme's own unit of growth.
    pub splits: u64,
    /// Directory doublings, or whatever else the scheme does that touches all of its structure.
    pub doublings: u64,
}

/// The number of lookups of [`Index::get_many`] and of changes of [`Index::change_many`] that overlap. A
/// processor keeps fewer cache misses than that in flight.
pub const BATCH: usize = 16;

/// A concurrent, crash-proof index of records of one form.
///
/// Every operation is linearizable, and durable when it returns (if the medium is). See the crate's
/// documentation for the contract.
pub trait Index<R: Record>: Send + Sync {
    /// Returns the scheme of this index.
    fn scheme(&self) -> Scheme;

    /// Returns the value of `key`.
    fn get(&self, key: R::Key<'_>) -> Boxed<Option<R::Owned>>;

    /// Returns whether `key` is present.
    fn contains(&self, key: R::Key<'_>) -> Boxed<bool>;

    /// Returns the value of `key` as a reference that keeps its block from being reused.
    fn get_ref(&self, key: R::Key<'_>) -> Boxed<Option<record::RecordRef<'_>>>;

    /// Looks up many keys, each as `get` does. The lookups of [`BATCH`] keys at a time overlap.
    /// `found` has one element for each key, and the caller passes it filled with `None`.
    ///
    /// # Errors
    /// Those of `get`. Then the contents of `found` are unspecified.
    fn get_many(&self, keys: &[R::Key<'_>], found: &mut [Option<R::Owned>]) -> Result<()>;

    /// Returns the size of the block that a record of this key and value takes, or 0 if it takes
    /// none.
    fn record_bytes(&self, key: R::Key<'_>, value: R::Value<'_>) -> u64;

    /// Applies a change of one key.
    fn change(
        &self,
        key: R::Key<'_>,
        change: Change<'_, R>,
        before: Previous<R>,
    ) -> Boxed<Changed<R>>;

    /// Applies changes of several keys, one change for each key, in order, and adds the result of
    /// each to `done`. Each change is atomic; all are durable when this returns. A crash meanwhile
    /// can keep any of the changes that were under way, up to [`BATCH`] of them.
    ///
    /// # Errors
    /// Those of [`change`](Index::change). Then `done` has the results of the changes before the one
    /// that failed, and those after it have not been made.
    fn change_many(
        &self,
        keys: &[R::Key<'_>],
        changes: &[Change<'_, R>],
        done: &mut Vec<Changed<R>>,
    ) -> Result<()>;

    /// Appends the next records of an iteration to `out` and advances the cursor.
    ///
    /// A record that is present during the whole iteration is reported exactly once. One that is
    /// inserted or removed meanwhile may be reported or not.
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()>;

    /// Reports the blocks of the part of the index that `cursor` names, and advances the cursor.
    ///
    /// The trace runs concurrently with operations. An operation that moves or unlinks a block
    /// first marks it, so the trace may miss it.
    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()>;

    /// Returns whether there is background work for [`step`](Index::step). Stores nothing.
    fn has_work(&self) -> bool {
        false
    }

    /// Does one step of background work, concurrently with operations. The caller has passed the
    /// gate. Returns whether there may be more to do.
    fn step(&self) -> Result<bool> {
        Ok(false)
    }

    /// Allows huge pages for the index's DRAM. In a pool with content, the caller does this only
    /// some time after opening, so that the first operations get small pages, which the kernel has
    /// at hand.
    fn use_huge_pages(&self) {}

    /// Returns an estimate of the number of records. It is exact for small tables at rest.
    fn len_estimate(&self) -> Result<u64>;

    /// Returns statistics.
    fn stats(&self) -> Result<IndexStats>;

    /// Returns how often the index has grown. This takes only two loads, so a caller can compare it
    /// before and after every operation.
    fn growth(&self) -> Growth;

    /// Checks every structure and record, and reports the index's blocks to `visit`. No other
    /// operation may run.
    fn verify(&self, visit: &mut Visitor<'_>) -> Result<Verified>;

    /// Returns the ordered interface, if the index keeps its keys in order.
    fn ordered(&self) -> Option<&dyn OrderedIndex<R>> {
        None
    }

    /// Returns the interface for records that expire, if the index has such records.
    fn expiring(&self) -> Option<&dyn ExpiringIndex> {
        None
    }

    /// Returns the interface for caches, if the scheme has it.
    fn evicting(&self) -> Option<&dyn EvictingIndex<R>> {
        None
    }
}
