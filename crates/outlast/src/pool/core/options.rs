//! Options for creating and opening a core.

use crate::pmem::MediumKind;
use crate::pool::clock::Clock;
use crate::pool::geometry::DEFAULT_PAGE_BITS;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Progress in opening a map whose scheme then reads the whole map, or in rebuilding a pool from
/// its journal. If a map of EA-PHT-HPR was being resized, its two tables are read one after the
/// other, each from part 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryProgress {
    /// Parts of the map that have been read, or epochs of the journal that have been applied.
    pub parts_done: usize,
    /// Number of parts or epochs. The parts of a map are of about equal size.
    pub parts: usize,
    /// Leaves, segments or buckets that have been read: the units of the scheme's statistics. 0 in
    /// a rebuild from a journal.
    pub leaves: u64,
}

/// A function that receives the progress.
#[derive(Clone)]
pub struct ProgressListener(Arc<dyn Fn(RecoveryProgress) + Send + Sync>);

impl ProgressListener {
    /// Wraps `tell`, which any of the threads that open a map may call.
    pub fn new(tell: impl Fn(RecoveryProgress) + Send + Sync + 'static) -> Self {
        ProgressListener(Arc::new(tell))
    }

    /// Reports `progress`.
    pub fn tell(&self, progress: RecoveryProgress) {
        (self.0)(progress);
    }
}

impl fmt::Debug for ProgressListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressListener")
    }
}

/// Options for opening maps whose schemes read the whole map when it is opened.
#[derive(Debug, Clone)]
pub struct Recovery {
    /// Number of threads that read it.
    pub threads: usize,
    /// Receives the progress.
    pub progress: Option<ProgressListener>,
}

/// Options for creating or opening a core.
#[derive(Debug, Clone)]
pub struct CoreOptions {
    /// log2 of the page size. Used at creation.
    pub page_bits: u32,
    /// Initial size in bytes. Used at creation.
    pub initial_size: u64,
    /// Size that the pool may not exceed, in bytes; 0 for no limit. Kept in the header.
    pub max_size: u64,
    /// Number of the hash function. Used at creation.
    pub hash_function: u32,
    /// Hash seed and pool id. Used at creation; random if not given.
    pub identity: Option<(u64, u128)>,
    /// The medium to record in the header and to base decisions on.
    pub medium: MediumKind,
    /// Stores go to private pages, and nothing reaches the file.
    pub read_only: bool,
    /// The id of the current boot.
    pub boot: u128,
    /// The pool is known not to be torn, even if it is dirty.
    pub whole: bool,
    /// The pool may mix pages of different moments, whatever its header says. It is suspect.
    pub mixed: bool,
    /// Open the pool even if a power loss may have torn it.
    pub accept_possibly_torn: bool,
    /// Options for opening maps.
    pub recovery: Recovery,
    /// The path by which the pool was opened, for errors.
    pub path: PathBuf,
    /// What tells the time, by which records expire.
    pub clock: Clock,
}

impl Default for CoreOptions {
    fn default() -> Self {
        CoreOptions {
            page_bits: DEFAULT_PAGE_BITS,
            initial_size: 1 << 20,
            max_size: 0,
            hash_function: 1,
            identity: None,
            medium: MediumKind::Bytes,
            read_only: false,
            boot: 0,
            whole: false,
            mixed: false,
            accept_possibly_torn: false,
            recovery: Recovery { threads: 1, progress: None },
            path: PathBuf::new(),
            clock: Clock::default(),
        }
    }
}
