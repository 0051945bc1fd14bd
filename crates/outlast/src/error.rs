//! Everything that can go wrong, as one type.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// What a call of this library fails with.
///
/// No error loses data: an operation that fails has not happened, and what was
/// acknowledged before stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file does not begin with the magic of a pool.
    #[error("not a pool: {found}")]
    NotAPool {
        /// What stands there instead.
        found: String,
    },
    /// The pool's format has a version that this build does not read.
    #[error("pool format version {found}, this build reads {supported}")]
    Version {
        /// The version in the header.
        found: u32,
        /// The version this build reads and writes.
        supported: u32,
    },
    /// The pool uses a feature that this build does not know.
    #[error("pool uses unknown feature bits {bits:#x} ({set})")]
    UnknownFeature {
        /// The unknown bits.
        bits: u64,
        /// Which set they are in: `incompatible`, or `read-only compatible`.
        set: &'static str,
    },
    /// The file is shorter than its header says.
    #[error("file truncated: {actual} bytes, the header says {expected}")]
    Truncated {
        /// Bytes the header promises.
        expected: u64,
        /// Bytes there are.
        actual: u64,
    },
    /// Neither copy of the header is whole.
    #[error("damaged header: {0}")]
    DamagedHeader(Damage),
    /// The entry of a named root is damaged.
    #[error("damaged root {slot}: {damage}")]
    DamagedRoot {
        /// Index of the root's slot.
        slot: usize,
        /// Where, and what was expected.
        damage: Damage,
    },
    /// An operation met a damaged structure. The pool can be verified and salvaged.
    #[error("damaged structure: {0}")]
    Damaged(Damage),
    /// The pool was modified since it was last synced, on a medium that a power loss
    /// can tear, and has since met one (or is a copy of a live pool).
    #[error("possibly torn: {reason}; open with `accept_possibly_torn` to verify and salvage")]
    PossiblyTorn {
        /// Why: another boot, or another file.
        reason: TornReason,
    },
    /// What the disk holds of the pool is uncertain: the system has failed to write a part of
    /// it back, or it was opened although a power loss may have torn it. Operations go on, and
    /// survive the death of the process; nothing is made durable against a power loss before
    /// [`Pool::verify`](crate::Pool::verify) has found the pool sound.
    #[error("the disk may not hold what was written; `verify` the pool first")]
    Suspect,
    /// No space is left, and the pool may not grow further.
    #[error("pool full: {needed} bytes needed, the pool is limited to {limit} bytes{held}")]
    PoolFull {
        /// Bytes of the block that was asked for.
        needed: u64,
        /// The size that the pool may not exceed.
        limit: u64,
        /// What guards keep from reuse, for a person; empty if nothing.
        held: String,
    },
    /// The file system has no space for the pool to grow.
    #[error("disk full while growing the pool by {needed} bytes")]
    DiskFull {
        /// Bytes the file was to grow by.
        needed: u64,
        /// The file system's answer.
        source: io::Error,
    },
    /// Not enough address space (see `ulimit -v`) to map the pool.
    #[error(
        "too little address space (see `ulimit -v`): {needed} bytes are needed, {reserved} \
         could be reserved"
    )]
    AddressSpace {
        /// Bytes to map.
        needed: u64,
        /// Bytes that could be reserved.
        reserved: u64,
    },
    /// Another process, or another handle of this one, has the pool open.
    #[error("pool is locked by another open of it")]
    Locked,
    /// The pool was opened read-only.
    #[error("pool is open read-only")]
    ReadOnly,
    /// The pool was closed, or this process is a fork of the one that opened it.
    #[error("pool is not open here: {0}")]
    NotOpen(&'static str),
    /// The key is longer than [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
    #[error("key of {len} bytes, at most {max} are allowed")]
    KeyTooLarge {
        /// The key's length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The value is longer than [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES).
    #[error("value of {len} bytes, at most {max} are allowed")]
    ValueTooLarge {
        /// The value's length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// A map of this name exists with other types or another scheme.
    #[error("map {name:?} has {what} {stored}, not {asked}")]
    MapMismatch {
        /// The map's name.
        name: String,
        /// What differs: `scheme`, `key schema`, `value schema`, ...
        what: &'static str,
        /// As the pool has it.
        stored: String,
        /// As it was asked for.
        asked: String,
    },
    /// No map of this name.
    #[error("no map named {name:?}")]
    NoSuchMap {
        /// The name asked for.
        name: String,
    },
    /// The map was dropped while this handle was held.
    #[error("map was dropped")]
    MapDropped,
    /// The pool has as many maps as it can hold.
    #[error("pool holds {max} maps already")]
    TooManyMaps {
        /// The limit.
        max: usize,
    },
    /// An argument that no pool or map can have.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// Why not.
        why: String,
    },
    /// The operating system refused.
    #[error("{action}")]
    Io {
        /// What was being done.
        action: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Nothing at this path to open.
    #[error("no pool at {}", path.display())]
    NoSuchPool {
        /// The path asked for.
        path: PathBuf,
    },
}

/// A result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A damaged place: where, and what was expected there.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("at offset {:#x}: expected {}, found {}", .0.offset, .0.expected, .0.found)]
pub struct Damage(
    // In a box: what can be damage is passed on by every lookup, most cheaply as one word.
    Box<Place>,
);

#[derive(Clone, PartialEq, Eq)]
struct Place {
    offset: u64,
    expected: String,
    found: String,
}

impl Damage {
    /// Damage at `offset`.
    #[cold]
    pub fn new(offset: u64, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Damage(Box::new(Place { offset, expected: expected.into(), found: found.into() }))
    }

    /// Bytes from the pool's start.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// What should stand there.
    pub fn expected(&self) -> &str {
        &self.0.expected
    }

    /// What does.
    pub fn found(&self) -> &str {
        &self.0.found
    }
}

impl fmt::Debug for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Damage")
            .field("offset", &self.offset())
            .field("expected", &self.expected())
            .field("found", &self.found())
            .finish()
    }
}

impl From<Damage> for Error {
    #[cold]
    fn from(damage: Damage) -> Self {
        Error::Damaged(damage)
    }
}

/// Why a pool may be torn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TornReason {
    /// It was modified under another boot of the system, and not synced.
    #[error("modified since its last sync, under an earlier boot")]
    EarlierBoot,
    /// It is another file than the one that was modified: a copy of a live pool.
    #[error("a copy of a pool that was modified since its last sync")]
    Copy,
}

impl Error {
    /// An [`Error::Io`] for `action`.
    #[cold]
    pub(crate) fn io(action: impl Into<String>, source: io::Error) -> Self {
        Error::Io { action: action.into(), source }
    }

    /// Whether the pool itself is damaged (as opposed to full, locked, misused, ...).
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Error::NotAPool { .. }
                | Error::Truncated { .. }
                | Error::DamagedHeader(_)
                | Error::DamagedRoot { .. }
                | Error::Damaged(_)
                | Error::PossiblyTorn { .. }
        )
    }
}
