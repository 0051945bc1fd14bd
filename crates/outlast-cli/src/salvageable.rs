//! Opens damaged pools for `salvage`.

use crate::failure::Failure;
use crate::open;
use crate::place::{self, RemovedAtEnd};
use crate::progress;
use outlast::{Damage, Error, Pool, PoolOptions};
use outlast_offline as offline;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A pool that was opened to be salvaged.
pub(crate) struct Salvageable {
    pub(crate) pool: Pool,
    /// If the pool opens only because possible losses are accepted, or without what its working file
    /// held: the error with which it is refused otherwise.
    pub(crate) refused: Option<Error>,
    /// The copy that is open instead of the pool's own file, if there is one.
    pub(crate) copy: Option<RemovedAtEnd>,
    /// Damage that was repaired in the copy.
    pub(crate) repaired: Vec<Damage>,
}

/// Opens a pool for reading, even if it is damaged or incomplete. If its journal or the log of a
/// batch can complete it, that is done first.
///
/// But if its working file is gone, the pool is left as it is, because that file may be found again.
/// Instead, what base and journal hold together is copied to `copy`, and the copy is opened.
///
/// Some damaged words follow from others in the file ([`offline::repairs`]). Such damage can make the pool
/// or a map unreadable, so this repairs a copy, and opens that. Fails if there is a file at
/// `copy` already.
pub(crate) fn open(path: &Path, copy: &Path) -> Result<Salvageable, Failure> {
    match as_it_is(path, copy) {
        Ok(found) if found.copy.is_none() => Ok(repaired(path, copy)?.unwrap_or(found)),
        Err(Failure::Damaged(why)) => repaired(path, copy)?.ok_or(Failure::Damaged(why)),
        found => found,
    }
}

/// Opens a copy in which the damage that the offline walk can repair is repaired. Returns `None` if
/// there is none.
fn repaired(path: &Path, copy: &Path) -> Result<Option<Salvageable>, Failure> {
    let bar = progress::spinner("looking for damage that can be repaired");
    let repairs = offline::repairs(path);
    bar.finish_and_clear();
    let repairs = match repairs {
        Ok(repairs) if !repairs.damage.is_empty() => repairs,
        // What cannot be walked cannot be repaired either.
        _ => return Ok(None),
    };
    let refused = open::read(path, false).err();
    check_copy(path, copy)?;
    let failed = |e: io::Error| Failure::io(format!("writing {}", copy.display()), &e);
    let to = File::options().write(true).create_new(true).mode(0o600).open(copy);
    let mut to = to.map_err(failed)?;
    let removed = RemovedAtEnd(copy.to_owned());
    let mut write = || -> io::Result<()> {
        io::copy(&mut File::open(path)?, &mut to)?;
        if let Some(size) = repairs.size {
            to.set_len(size)?;
        }
        repairs.words.iter().try_for_each(|(at, word)| to.write_all_at(&word.to_le_bytes(), *at))
    };
    write().map_err(failed)?;
    let Ok(pool) = open::to_read(copy, true) else { return Ok(None) };
    Ok(Some(Salvageable { pool, refused, copy: Some(removed), repaired: repairs.damage }))
}

/// Fails if there is no room for a copy of the pool and a new pool, or if there is a file at `copy`.
fn check_copy(path: &Path, copy: &Path) -> Result<(), Failure> {
    if copy.symlink_metadata().is_ok() {
        let why = "which is needed for a copy, exists; a salvage that was killed may have left it";
        return Err(Failure::Failed(format!("{}, {why}", copy.display())));
    }
    // Most of a working file takes no space.
    let bytes = path.metadata().map_or(0, |meta| meta.len().min(meta.blocks() * 512));
    place::check_space(place::parent(copy), 2 * bytes, "")
}

fn as_it_is(path: &Path, copy: &Path) -> Result<Salvageable, Failure> {
    let itself =
        |pool, refused| Ok(Salvageable { pool, refused, copy: None, repaired: Vec::new() });
    match open::read(path, false) {
        Ok(pool) => itself(pool, None),
        // Its user has to say first what becomes of the working file.
        Err(refused @ Error::OtherWorkingFile { .. }) => Err(open::about(path, refused)),
        Err(refused @ (Error::NoWorkingFile { .. } | Error::CopyOfPool { .. })) => {
            check_copy(path, copy)?;
            // SAFETY: as in `open::read`.
            match unsafe { PoolOptions::new().backup(path, copy) } {
                Ok(_) => {
                    let copy = RemovedAtEnd(copy.to_owned());
                    let pool = open::to_read(&copy.0, false)?;
                    let (refused, copy) = (Some(refused), Some(copy));
                    Ok(Salvageable { pool, refused, copy, repaired: Vec::new() })
                }
                // Base and journal do not make a pool, for example because the journal is incomplete.
                // Only the base is left.
                Err(error) if error.is_damage() => itself(open::to_read(path, true)?, Some(error)),
                Err(error) => Err(open::about(path, error)),
            }
        }
        Err(refused) if refused.is_damage() || is_half_made(path, &refused) => {
            itself(open::to_read(path, true)?, Some(refused))
        }
        Err(error) => Err(open::about(path, error)),
    }
}

/// Whether a pool cannot be opened because there is no space to complete a batch that a crash has cut
/// short. A pool without a journal needs no other space for the batch.
fn is_half_made(path: &Path, refused: &Error) -> bool {
    let has_no_journal =
        || PoolOptions::new().facts(path).is_ok_and(|facts| facts.journal.is_none());
    matches!(refused, Error::PoolFull { .. } | Error::DiskFull { .. }) && has_no_journal()
}
