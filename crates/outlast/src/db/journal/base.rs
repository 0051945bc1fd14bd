//! What the file of a journaled pool says about its journal.

use crate::error::{Error, Result};
use crate::journal::base::{Base, Rebuilt};
use crate::journal::files::DiskFile;
use crate::journal::meta::Meta;
use crate::pmem::Disk;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Returns the error for a pool that cannot be rebuilt from its journal.
pub(in crate::layers::db) fn incomplete(rebuilt: Rebuilt, path: &Path, directory: &Path) -> Error {
    let directory = directory.display();
    Error::incomplete_journal(match rebuilt {
        Rebuilt::Missing { found, needed } => {
            format!(
                "{directory} can be read up to epoch {found}, but epoch {needed} is needed; what should \
                 follow is missing or damaged"
            )
        }
        Rebuilt::Short { found, needed } => {
            format!("{} has {found} bytes, but must have at least {needed}", path.display())
        }
        Rebuilt::Damaged(damage) => format!("in {directory}, {damage}"),
        Rebuilt::Gone | Rebuilt::Whole { .. } => format!(
            "{directory} has none of its segments (was the pool renamed, or opened through a link?)"
        ),
    })
}

/// Removes `meta` from a pool whose journal is incomplete, for a user who accepts the pool without
/// its journal.
pub(in crate::layers::db) fn leave(file: &File, disk: &Disk) -> Result<()> {
    let io = |e| Error::io("taking the journal from the pool", e);
    let file = file.try_clone().map_err(io)?;
    Base::leave(&DiskFile::new(file, disk.clone())).map_err(io)
}

/// Notes in the base where its working file is, so that later openings find it whatever their
/// options.
pub(super) fn note_place(base: &Base, working: &Path) -> std::io::Result<()> {
    let place = working.parent().expect("the file of a directory").canonicalize()?;
    base.note_place(&place)
}

/// Returns the directory of a life's working file, if the base notes it.
pub(super) fn place_of(base: &File, life: u128) -> Result<Option<PathBuf>> {
    let io = |e| Error::io("reading the pool", e);
    let file = base.try_clone().map_err(io)?;
    Base::place(&DiskFile::new(file, Disk::default()), life).map_err(io)
}

/// Returns the `meta` in the file of a pool, if it has one.
pub(in crate::layers::db) fn peek(file: &File) -> Result<Option<Meta>> {
    let io = |e| Error::io("reading the pool", e);
    let file = file.try_clone().map_err(io)?;
    Base::peek(&DiskFile::new(file, Disk::default())).map_err(io)
}
