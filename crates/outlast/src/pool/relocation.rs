//! Moving the working file of a journaled pool to the disk of its journal, when the file system that it
//! is on (by default a tmpfs, which is limited by memory) has no room for it to grow.
//!
//! While the file is moved, all writers are held back, and the journal makes no cut and no commit. Readers
//! go on: the new file is mapped over the old one, page for page with the same content.
//!
//! What the death of the process leaves:
//!
//! 1. Until the new file has its name, the old file is the working file, with everything that was
//!    acknowledged. The new one has another name, and the next opening removes it.
//! 2. Then both are, until the old one is removed: nothing was changed since the copy, and no call
//!    returns before the old one is gone.
//! 3. Then the new one is the working file.
//!
//! Lookups can note lines outside of the gate (see [`Notes`](crate::pmem::Notes)). A note that goes to the
//! old file after its notes were copied is found there once the new file is mapped, and taken over.

use super::backing::{Journaled, mapping_error};
use crate::error::{Error, Result};
use crate::pmem::{Mapping, Notes};
use rustix::fs::{FlockOperation, OFlags};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// What the name of the new file ends with until the file is complete.
const UNFINISHED: &str = ".moving";
/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// A copy of the working file that does not have its name yet. Removed when it is dropped before it has.
struct Copy {
    file: File,
    path: PathBuf,
    is_named: bool,
}

impl Drop for Copy {
    fn drop(&mut self) {
        if !self.is_named {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// How a move has failed.
pub enum NotMoved {
    /// Nothing has changed.
    Refused(Error),
    /// The pool may be mapped in part from one file and in part from another. Only another opening,
    /// which finds the old file, can go on.
    Broken(Error),
}

impl Journaled {
    /// Returns whether the working file found no room to grow, and can be moved to another directory.
    pub fn wants_to_move(&self) -> bool {
        let here = self.journal.working();
        self.wants_room.load(Ordering::Relaxed)
            && here.parent() != Some(&self.fallback)
            && self.fallback.is_dir()
    }

    /// Returns whether the working file was moved.
    pub fn was_moved(&self) -> bool {
        self.journal.working() != self.journal.settings().working
    }

    /// Moves the working file to the directory of the journal. The caller holds all writers back, and
    /// the lock of the header.
    pub fn move_working(&self) -> Result<(), NotMoved> {
        let old_path = self.journal.working();
        let refused = |e| NotMoved::Refused(Error::io("moving the working file", e));
        let Some(old) = self.mapping.as_file() else { return Ok(()) };
        let old = old.try_clone().map_err(refused)?;
        let _growing = self.growing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.journal.between_turns(|| {
            let name = old_path.file_name().unwrap_or_default();
            let to = self.fallback.join(name);
            let copy = self.copy(&old, &to).map_err(NotMoved::Refused)?;
            self.switch(&old, &old_path, copy, to).map_err(NotMoved::Broken)
        })
    }

    /// Copies the working file.
    fn copy(&self, old: &File, to: &Path) -> Result<Copy> {
        let io = |e| Error::io(format!("moving the working file to {}", to.display()), e);
        let mut path = OsString::from(to);
        path.push(UNFINISHED);
        let path = PathBuf::from(path);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(&path);
        let copy = Copy { file: file.map_err(io)?, path, is_named: false };
        // Another process that looks for needless files may have locked it for a moment.
        crate::pmem::flock(&copy.file, FlockOperation::LockExclusive).map_err(|e| io(e.into()))?;
        let owner = old.metadata().map_err(io)?;
        let _ = std::os::unix::fs::fchown(&copy.file, Some(owner.uid()), Some(owner.gid()));
        let (disk, len) = (self.mapping.disk(), self.mapping.len());
        // All blocks first, so that a full disk is noticed before anything is copied.
        disk.allocate(&copy.file, 0, len).map_err(mapping_error)?;
        let notes = self.journal.notes();
        notes.allocate_in(disk, &copy.file).map_err(mapping_error)?;
        let mut piece = vec![0; PIECE];
        for part in std::iter::once(0..len).chain(notes.parts_in_file()) {
            for at in part.clone().step_by(PIECE) {
                let piece = &mut piece[..(part.end - at).min(PIECE as u64) as usize];
                old.read_exact_at(piece, at).map_err(io)?;
                copy.file.write_all_at(piece, at).map_err(io)?;
            }
        }
        Ok(copy)
    }

    /// Maps the copy in place of the old file, gives it its name, and removes the old file.
    fn switch(&self, old: &File, old_path: &Path, mut copy: Copy, to: PathBuf) -> Result<()> {
        let io = |e| Error::io(format!("moving the working file to {}", to.display()), e);
        let file = copy.file.try_clone().map_err(io)?;
        self.on_disk.store(!Mapping::is_tmpfs(&file), Ordering::Relaxed);
        self.mapping.move_to(file).map_err(io)?;
        let notes = self.journal.notes();
        notes.move_to(&copy.file).map_err(io)?;
        if let Some(late) = Notes::open(old).map_err(io)? {
            late.look(|lines| notes.add(lines));
        }
        std::fs::rename(&copy.path, &to).map_err(io)?;
        copy.is_named = true;
        if let Err(error) = std::fs::remove_file(old_path) {
            // The old file must not be found beside the new one.
            let _ = std::fs::remove_file(&to);
            return Err(io(error));
        }
        // The mapping keeps the old file open, and with it the memory that it takes. (The file stays as
        // long as it was: another process may have mapped its notes to see whose it is.)
        let len = old.metadata().map_err(io)?.len();
        let _ = self.mapping.disk().punch_hole(old, 0..len);
        self.journal.set_working(to);
        self.wants_room.store(false, Ordering::Relaxed);
        Ok(())
    }
}
