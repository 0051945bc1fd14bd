//! The indexes, and the one interface they share.
//!
//! Every scheme lives in a folder of the same shape: `mod.rs` (what it is, its
//! invariants, its crash argument), `layout.rs` (on-media structs), `ops.rs`,
//! `resize.rs`, `recover.rs`, `scan.rs`, `verify.rs`.
//!
//! An index stores records of one of two forms ([`RecordForm`]); the form is a type
//! parameter ([`Inline`], [`Bytes`]), and an [`Index`] is an object so that tools work
//! on maps whose types they do not know.

pub mod bugs;
pub mod clevel;
pub mod dash_eh;
mod kit;
mod ordered;
pub mod phast;
mod prints;
pub mod record;
mod registry;
mod settings;
mod version;

pub use kit::open::WhileOpen;
pub use ordered::{KeyOrder, KeyRange, OrderedIndex, OrderedRecord};
pub use record::{Bytes, Inline, Record, RecordForm};
pub use registry::{Config, Scheme, SchemeConfig, SchemeRow};
pub use settings::Settings;

/// What [`version`] stands on.
mod sync {
    pub(super) use std::sync::atomic::fence;
}

use crate::error::{Damage, Result};

/// A change of one key. The index decides and applies it atomically.
#[derive(Debug)]
pub enum Change<'a, R: Record> {
    /// Insert if absent.
    Insert(R::Value<'a>),
    /// Insert or replace.
    Put(R::Value<'a>),
    /// Replace if present.
    Update(R::Value<'a>),
    /// Replace if present with this value.
    Swap {
        /// The value that must be there.
        expected: R::Value<'a>,
        /// The value to put in its place.
        new: R::Value<'a>,
    },
    /// Remove if present.
    Remove,
}

/// What a [`Change`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed<R: Record> {
    /// Whether the change was applied.
    pub applied: bool,
    /// The value before it, if the key was present and the caller asked for it.
    pub before: Option<R::Owned>,
    /// Whether the key was present before.
    pub present: bool,
}

/// Where an iteration stands. Opaque; survives splits, lives as long as the map.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursor {
    /// First hash of the range in hand.
    pub(crate) low: u64,
    /// Last hash of the range in hand (inclusive).
    pub(crate) high: u64,
    /// The part of the range that comes next.
    pub(crate) part: u32,
    /// The key that comes next, where an index goes by keys that are byte strings.
    pub(crate) key: Vec<u8>,
    pub(crate) state: CursorState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CursorState {
    #[default]
    Start,
    Inside,
    Done,
}

impl Cursor {
    /// The beginning of an iteration.
    pub fn start() -> Self {
        Self::default()
    }

    pub(crate) fn finish(&mut self) {
        self.state = CursorState::Done;
    }

    /// Whether the iteration has ended.
    pub fn is_done(&self) -> bool {
        self.state == CursorState::Done
    }
}

/// What a trace or an offline walk reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// A directory, or a context.
    Directory,
    /// A segment or a level of a hash table.
    Segment,
    /// An overflow node.
    Overflow,
    /// The record of a byte-string pair.
    Record,
}

/// Receives the blocks that an index owns.
pub type Visitor<'v> = dyn FnMut(BlockKind, u64, u64) -> Result<()> + 'v;

/// What an offline check of one index found.
#[derive(Debug, Clone, Default)]
pub struct Verified {
    /// Live records.
    pub records: u64,
    /// Keys found more than once.
    pub duplicated: u64,
    /// Records whose checksum does not match.
    pub torn: u64,
    /// Everything that is not as it should be.
    pub damage: Vec<Damage>,
}

/// Figures of one index.
#[derive(Debug, Clone, Default)]
pub struct IndexStats {
    /// Segments, or levels, or buckets: the scheme's unit of growth.
    pub segments: u64,
    /// Entries of the directory.
    pub directory_entries: u64,
    /// Records, estimated by sampling where the table is large.
    pub records_estimate: u64,
    /// Record slots there are.
    pub slots: u64,
    /// Bytes of DRAM that the index keeps once all of it was touched since opening: its
    /// directory, and the notes of its buckets. What those take at the moment, page by page,
    /// is in [`PoolStats::shadow_bytes`](crate::PoolStats::shadow_bytes).
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
    /// Directory doublings, or what the scheme does that touches all of its structure.
    pub doublings: u64,
}

/// How many lookups of [`Index::get_many`] overlap: more than a processor has misses in
/// flight.
pub const BATCH: usize = 16;

/// A concurrent, crash-proof index of records of one form.
///
/// Every operation is linearizable and durable when it returns (the medium permitting);
/// see the crate's documentation for the contract.
pub trait Index<R: Record>: Send + Sync {
    /// Which scheme this is.
    fn scheme(&self) -> Scheme;

    /// The value of `key`.
    fn get(&self, key: R::Key<'_>) -> Result<Option<R::Owned>>;

    /// The value of `key`, as a reference that keeps it from being reused.
    fn get_ref(&self, key: R::Key<'_>) -> Result<Option<record::RecordRef>>;

    /// Looks many keys up, as `get` each; the lookups of [`BATCH`] keys at a time overlap.
    /// `found` has room for as many answers, and holds `None`s.
    ///
    /// # Errors
    /// As `get`; what `found` holds is unspecified then.
    fn get_many(&self, keys: &[R::Key<'_>], found: &mut [Option<R::Owned>]) -> Result<()>;

    /// Applies a change of one key. `want_before` asks for the value before it.
    fn change(
        &self,
        key: R::Key<'_>,
        change: Change<'_, R>,
        want_before: bool,
    ) -> Result<Changed<R>>;

    /// Appends the next records of an iteration to `out` and moves the cursor on.
    ///
    /// A record that is there during the whole iteration is reported exactly once; one
    /// that is inserted or removed meanwhile may be reported or not.
    fn scan(&self, cursor: &mut Cursor, out: &mut Vec<(R::OwnedKey, R::Owned)>) -> Result<()>;

    /// Reports the blocks of the next part of the index that `cursor` names.
    ///
    /// Runs beside operations: what they move or unlink meanwhile they mark themselves.
    fn trace(&self, cursor: &mut Cursor, visit: &mut Visitor<'_>) -> Result<()>;

    /// Whether there is background work for [`step`](Index::step). Stores nothing.
    fn has_work(&self) -> bool {
        false
    }

    /// One step of background work, beside operations; the caller has passed the gate.
    /// Returns whether there may be more to do.
    fn step(&self) -> Result<bool> {
        Ok(false)
    }

    /// The first operations after the opening are done: its DRAM may be had in large pages.
    fn use_huge_pages(&self) {}

    /// An estimate of the number of records; exact for small tables at rest.
    fn len_estimate(&self) -> Result<u64>;

    /// Figures.
    fn stats(&self) -> Result<IndexStats>;

    /// How often it has grown: two loads, to be asked around every operation.
    fn growth(&self) -> Growth;

    /// Checks every structure and record. No other operation may run.
    fn verify(&self, visit: &mut Visitor<'_>) -> Result<Verified>;

    /// What it has beyond this, if it is in the order of its keys.
    fn ordered(&self) -> Option<&dyn OrderedIndex<R>> {
        None
    }
}
