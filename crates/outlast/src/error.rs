//! The error type of the library.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Any failure of this library.
///
/// No error destroys data: a call on one key that fails has no effect, and the changes of all calls
/// that returned before are kept. Calls that make several changes say what an error leaves of them.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file does not begin with the magic of a pool.
    #[error("{}not a pool: {found}", of(.path))]
    NotAPool {
        /// The pool's file.
        path: PathBuf,
        /// What the file begins with instead.
        found: String,
    },
    /// The pool's format version is one that this build does not read.
    #[error("{}pool format version {found}, this build reads {supported}", of(.path))]
    Version {
        /// The pool's file.
        path: PathBuf,
        /// The version in the header.
        found: u32,
        /// The version this build reads and writes.
        supported: u32,
    },
    /// The pool uses a feature that this build does not know.
    #[error(
        "{}pool uses unknown feature bits {bits:#x} ({set}); use a newer build of outlast",
        of(.path)
    )]
    UnknownFeature {
        /// The pool's file.
        path: PathBuf,
        /// The unknown bits.
        bits: u64,
        /// Which set they are in: `incompatible`, or `read-only compatible`.
        set: &'static str,
    },
    /// The file is shorter than its header says, or than any pool.
    #[error(
        "{}file truncated: it has {actual} bytes, and should have at least {expected}",
        of(.path)
    )]
    Truncated {
        /// The pool's file.
        path: PathBuf,
        /// The size according to the header. If neither copy of the header is intact, the size of
        /// the smallest pool.
        expected: u64,
        /// Bytes in the file.
        actual: u64,
    },
    /// Both copies of the header are damaged.
    #[error("{}damaged header: {damage}", of(.path))]
    DamagedHeader {
        /// The pool's file.
        path: PathBuf,
        /// Where the damage is, and what was expected.
        damage: Damage,
    },
    /// The entry of a named root is damaged.
    #[error("damaged entry of a map (root {slot}): {damage}")]
    DamagedRoot {
        /// Index of the root's slot.
        slot: usize,
        /// Where the damage is, and what was expected.
        damage: Damage,
    },
    /// An operation found a damaged structure. The pool can still be verified
    /// ([`Pool::verify`](crate::Pool::verify)), and all readable records can be salvaged
    /// ([`Map::salvage`](crate::Map::salvage)).
    #[error("damaged structure: {0}")]
    Damaged(Damage),
    /// The pool may be torn: it was modified since its last sync, on a medium that a power loss can
    /// tear, and there may have been a power loss since; or the file is a copy of a pool in use; or
    /// it is the base of a journaled pool that was not closed, and no longer names its journal.
    ///
    /// If one copy of the header is damaged, this error is based on the other copy alone. The
    /// damaged copy may be the newer one, and it may have said that the pool was closed.
    #[error(
        "{}possibly torn: {reason}{}; restore a snapshot, or open it with `accept_possibly_torn` and \
         `verify` it: if it is sound, it can be used, but recent changes may be missing",
        of(.path),
        only_copy_says(.damaged_copy)
    )]
    PossiblyTorn {
        /// The pool's file.
        path: PathBuf,
        /// Why it may be torn.
        reason: TornReason,
        /// The damaged copy of the header, if one is damaged.
        damaged_copy: Option<Damage>,
    },
    /// The pool has a journal and was not closed, and its journal lacks something that the pool needs.
    /// `accept_possibly_torn` opens the pool without the journal.
    #[error("{}the journal of the pool is incomplete: {why}", of(.path))]
    IncompleteJournal {
        /// The pool's file.
        path: PathBuf,
        /// What it lacks.
        why: String,
    },
    /// The pool was not closed, and cannot be opened read-only as it is: it has a journal and no
    /// working file, or a batch was under way. Open it for writing first, which completes it.
    #[error(
        "{}the pool was not closed; open it for writing once, which completes it from its journal or \
         from the log of a batch",
        of(.path)
    )]
    Unfinished {
        /// The pool's file.
        path: PathBuf,
    },
    /// The pool has a journal and was not closed, and its working file is gone although the machine
    /// was not restarted. The most recent changes were only in that file. See
    /// [`require_working_file`](crate::PoolOptions::require_working_file).
    #[error(
        "{}the working file of the pool is gone, although the machine was not restarted; without it, what \
         was not durable yet is lost. To accept that, open the pool without `require_working_file`",
        of(.path)
    )]
    NoWorkingFile {
        /// The pool's file.
        path: PathBuf,
    },
    /// The pool is a copy of a journaled pool that was not closed, and the working file with the last
    /// changes belongs to the original. See
    /// [`require_working_file`](crate::PoolOptions::require_working_file).
    #[error(
        "the pool is a copy of {}, which was not closed, and whose working file {} has later changes; \
         open the original, or back it up. Opened without `require_working_file`, the copy lacks what was \
         not durable when it was made",
        .original.display(),
        .working.display()
    )]
    CopyOfPool {
        /// The file of the original.
        original: PathBuf,
        /// Its working file.
        working: PathBuf,
    },
    /// The pool has a journal and was not closed, and there is a working file that may hold its last
    /// changes, but does not match the pool's file and journal. Nothing was changed.
    #[error(
        "the working file {} may hold the last changes of the pool {}, but does not match it: {why}. If \
         another file is the pool's, or another working file, put that back in its place. Otherwise move this \
         working file away: the pool then opens with what its journal holds, and lacks what was not \
         durable yet",
        .working.display(),
        .pool.display()
    )]
    OtherWorkingFile {
        /// The working file.
        working: PathBuf,
        /// The pool's file.
        pool: PathBuf,
        /// What differs.
        why: String,
    },
    /// The pool's file was removed, or another file was given its name, while the pool was open. The
    /// pool can still be read, changed, and saved with [`Pool::snapshot`](crate::Pool::snapshot). Its
    /// journal, if it has one, is kept.
    #[error(
        "{}the pool's file has no name any more: it was removed, or another file was given its name; what \
         is in the pool is lost once it is closed, unless a `snapshot` saves it",
        of(.path)
    )]
    FileGone {
        /// The path by which the pool was opened.
        path: PathBuf,
    },
    /// The disk may lack part of the pool, because the system failed to write it back, or because
    /// the pool was opened although a power loss may have torn it. Operations go on and survive
    /// process death. Nothing becomes durable against a power loss until
    /// [`Pool::verify`](crate::Pool::verify) has found the pool sound.
    #[error("the disk may not hold what was written; `verify` the pool first")]
    Suspect,
    /// No space is left, and the pool may not grow.
    #[error(
        "pool full: no room for a block of {needed} bytes, and the pool may not grow beyond {limit} bytes{}",
        after_semicolon(.note)
    )]
    PoolFull {
        /// Size in bytes of the block that was needed.
        needed: u64,
        /// The size that the pool may not exceed, in bytes.
        limit: u64,
        /// A hint for the user, such as how much space guards keep from reuse.
        note: Option<String>,
    },
    /// The file system has no space for the pool to grow, for free pages that the pool had given
    /// back, or for a snapshot of it.
    #[error("{}disk full: {needed} more bytes are needed", of(.path))]
    DiskFull {
        /// The file that found no space: the pool's, its working file, or a copy of it.
        path: PathBuf,
        /// Bytes that the pool was to grow by or to get back, or that the snapshot takes.
        needed: u64,
        /// The file system's error.
        source: io::Error,
    },
    /// There is not enough address space (see `ulimit -v`) to map the pool.
    #[error(
        "too little address space (see `ulimit -v`): {needed} bytes are needed, {reserved} \
         could be reserved"
    )]
    AddressSpace {
        /// Bytes needed.
        needed: u64,
        /// Bytes that could be reserved.
        reserved: u64,
    },
    /// Another process, or another handle in this one, has the pool open.
    #[error(
        "{}pool is locked: another process has it open, or a handle, map or reference in this process \
         still does",
        of(.path)
    )]
    Locked {
        /// The pool's file.
        path: PathBuf,
    },
    /// Another process has the pool open, and only that process can copy it, because the pool has
    /// no journal.
    #[error(
        "{}pool is locked and has no journal: only the process that has it open can copy it, with \
         `snapshot`; or copy it once it is closed",
        of(.path)
    )]
    NoJournal {
        /// The pool's file.
        path: PathBuf,
    },
    /// The pool was opened read-only.
    #[error("{}pool is open read-only; open it for writing to change it", of(.path))]
    ReadOnly {
        /// The pool's file.
        path: PathBuf,
    },
    /// The pool was closed, or this process is a fork of the one that opened it.
    #[error("pool is not open here: {0}")]
    NotOpen(NotOpen),
    /// The key is longer than [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
    #[error("the key has {len} bytes; at most {max} are allowed")]
    KeyTooLarge {
        /// The key's length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The value is longer than [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES).
    #[error("the value has {len} bytes; at most {max} are allowed")]
    ValueTooLarge {
        /// The value's length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The sum or the difference of two integers is not a value of their type.
    #[error("the result does not fit the integer type {schema}")]
    Overflow {
        /// The schema of the integer's type.
        schema: &'static str,
    },
    /// A map of this name exists with other types or another scheme.
    #[error("map {name:?} has {what} {stored}, not {asked}")]
    MapMismatch {
        /// The map's name.
        name: String,
        /// What differs: `scheme`, `key schema`, `value schema`, ...
        what: &'static str,
        /// What the pool has stored.
        stored: String,
        /// What the caller asked for.
        asked: String,
    },
    /// The pool has no map of this name.
    #[error("no map named {name:?}")]
    NoSuchMap {
        /// The name that was looked up.
        name: String,
    },
    /// The map's scheme is not in this build of the library.
    #[error("this build has no {0}: enable the feature of this scheme in the crate `outlast`")]
    NotBuilt(&'static str),
    /// The map was dropped through another handle.
    #[error("map was dropped; to create it again, open it by its name")]
    MapDropped,
    /// The pool has as many maps as it can hold.
    #[error("pool holds {max} maps already; drop one to create another")]
    TooManyMaps {
        /// The limit.
        max: usize,
    },
    /// An argument is out of range or does not apply.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// Why it is invalid.
        why: String,
    },
    /// The operating system reported an error.
    #[error("{action}")]
    Io {
        /// What the library was doing.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// There is no file at this path.
    #[error("no pool at {}", path.display())]
    NoSuchPool {
        /// The path.
        path: PathBuf,
    },
}

/// A result whose error type is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A result with a boxed error. An [`Error`] takes up to eleven words, and each [`Result`] is at least
/// as large. With a box, a result is hardly larger than its value.
pub(crate) type Boxed<T> = Result<T, Box<Error>>;

impl From<Box<Error>> for Error {
    #[cold]
    fn from(error: Box<Error>) -> Self {
        *error
    }
}

impl From<Damage> for Box<Error> {
    #[cold]
    fn from(damage: Damage) -> Self {
        Box::new(Error::Damaged(damage))
    }
}

/// A damaged location, with what was expected there and what was found.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("at offset {:#x}: expected {}, found {}", .0.offset, .0.expected, .0.found)]
pub struct Damage(
    // Boxed, because every lookup returns a result that may hold damage, and a one-word error is
    // the cheapest.
    Box<Place>,
);

#[derive(Clone, PartialEq, Eq)]
struct Place {
    offset: u64,
    expected: String,
    found: String,
}

impl Damage {
    /// Describes damage at `offset`.
    #[doc(hidden)]
    #[cold]
    pub fn new(offset: u64, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Damage(Box::new(Place { offset, expected: expected.into(), found: found.into() }))
    }

    /// Offset from the start of the pool, in bytes.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// What was expected there.
    pub fn expected(&self) -> &str {
        &self.0.expected
    }

    /// What was found there.
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

/// Qualifies the reason of [`Error::PossiblyTorn`] where only one copy of the header is intact.
fn only_copy_says(damaged_copy: &Option<Damage>) -> String {
    damaged_copy.as_ref().map_or_else(String::new, |damage| {
        format!(
            " (according to one header copy; the other, which may be newer, is damaged {damage})"
        )
    })
}

/// Puts the file's path in front of a message, if it is known.
fn of(path: &Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { format!("{}: ", path.display()) }
}

fn after_semicolon(note: &Option<String>) -> String {
    note.as_ref().map_or_else(String::new, |note| format!("; {note}"))
}

/// Why a pool may be torn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TornReason {
    /// The pool was modified under an earlier boot of the system and not synced.
    #[error("modified since its last sync, and the machine was restarted since")]
    EarlierBoot,
    /// The file is not the one that was modified, so it is a copy of a live pool.
    #[error("a copy of a pool that was made while the pool was in use")]
    Copy,
    /// The file's system was mounted again since, and does not tell whether this is the file that was
    /// modified, or a copy that was made while the pool was in use. (FUSE and some network file
    /// systems report neither when a file was created nor an id of their own.) If it is the original,
    /// nothing is missing from it.
    #[error(
        "its file system was mounted again since the pool was modified, and does not tell whether this \
         is the file that was modified ({recorded}), from which nothing would be missing, or a copy \
         of it that was made while it was in use ({found})"
    )]
    Unknown {
        /// What is recorded of the file that was modified.
        recorded: String,
        /// What the file system says of this file.
        found: String,
    },
    /// The file is the base of a journaled pool that was not closed, and no longer names its journal.
    #[error("its journal is gone, and without it the file may mix older and newer parts")]
    JournalGone,
}

/// Why a pool is not open here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotOpen {
    /// It was closed.
    Closed,
    /// It is being closed.
    Closing,
    /// It was closed before what the call asked for was done, such as waiting until changes are durable.
    ClosedMeanwhile,
    /// This process is a fork of the one that opened it. Open it here.
    Forked,
    /// An operation was cut short, for instance by a panic, and left a lock. Open it again.
    Poisoned,
    /// The calling thread is exiting.
    ThreadExiting,
}

impl fmt::Display for NotOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotOpen::Closed => "it was closed",
            NotOpen::Closing => "it is being closed",
            NotOpen::ClosedMeanwhile => "it was closed meanwhile",
            NotOpen::Forked => "this process is a fork of the one that opened it",
            NotOpen::Poisoned => "an operation was cut short; open the pool again",
            NotOpen::ThreadExiting => "the calling thread is exiting",
        })
    }
}

/// The message, and the messages of its causes: what a program prints whose `main` returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let why = error.to_string();
            // Some messages have that of their cause in them.
            if !text.contains(&why) {
                text = format!("{text}: {why}");
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}

impl Error {
    /// Builds an [`Error::Io`] for `action`.
    #[cold]
    #[doc(hidden)]
    pub fn io(action: impl Into<String>, source: io::Error) -> Self {
        Error::Io { action: action.into(), source }
    }

    /// Builds the [`Error::NotAPool`] for something that is not a regular file.
    #[doc(hidden)]
    pub fn not_a_file() -> Self {
        Self::not_a_pool("a directory, or something else that is not a regular file")
    }

    /// Builds an [`Error::NotAPool`] that does not name the file yet; see [`at`](Self::at).
    #[doc(hidden)]
    pub fn not_a_pool(found: impl Into<String>) -> Self {
        Error::NotAPool { path: PathBuf::new(), found: found.into() }
    }

    /// Builds an [`Error::DamagedHeader`] that does not name the file yet.
    #[doc(hidden)]
    pub fn damaged_header(damage: Damage) -> Self {
        Error::DamagedHeader { path: PathBuf::new(), damage }
    }

    /// Builds an [`Error::IncompleteJournal`] that does not name the pool yet.
    pub(crate) fn incomplete_journal(why: impl Into<String>) -> Self {
        Error::IncompleteJournal { path: PathBuf::new(), why: why.into() }
    }

    /// Builds an [`Error::DiskFull`] that does not name the file yet.
    pub(crate) fn disk_full(needed: u64, source: io::Error) -> Self {
        Error::DiskFull { path: PathBuf::new(), needed, source }
    }

    /// Names the file that the error is of, unless it already does.
    #[doc(hidden)]
    #[must_use]
    pub fn at(mut self, file: &Path) -> Self {
        if let Error::NotAPool { path, .. }
        | Error::Version { path, .. }
        | Error::UnknownFeature { path, .. }
        | Error::Truncated { path, .. }
        | Error::DamagedHeader { path, .. }
        | Error::PossiblyTorn { path, .. }
        | Error::IncompleteJournal { path, .. }
        | Error::Unfinished { path }
        | Error::NoWorkingFile { path }
        | Error::FileGone { path }
        | Error::DiskFull { path, .. }
        | Error::Locked { path }
        | Error::NoJournal { path }
        | Error::ReadOnly { path } = &mut self
            && path.as_os_str().is_empty()
        {
            *path = file.into();
        }
        self
    }

    /// Returns whether space ran out: in the pool, on the disk or in the address space. The same
    /// call can succeed once there is space again.
    pub fn is_full(&self) -> bool {
        matches!(self, Error::PoolFull { .. } | Error::DiskFull { .. } | Error::AddressSpace { .. })
    }

    /// Returns whether the pool is refused, or an operation failed, because the pool is damaged,
    /// incomplete or possibly torn. `Suspect` and `Unfinished` do not count: such a pool still
    /// works, or opening it for writing completes it.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Error::NotAPool { .. }
                | Error::Truncated { .. }
                | Error::DamagedHeader { .. }
                | Error::DamagedRoot { .. }
                | Error::Damaged(_)
                | Error::PossiblyTorn { .. }
                | Error::IncompleteJournal { .. }
                | Error::NoWorkingFile { .. }
                | Error::OtherWorkingFile { .. }
                | Error::CopyOfPool { .. }
        )
    }
}
