//! Opening a journaled pool: from its working file, or from the disk.

use super::base::{incomplete, note_place};
use super::leftovers::remove_needless;
use super::options::JournalOptions;
use super::working::{DURABLE, Found, Owned, Search, Working, copy, lock_patiently};
use super::working::{user_of, working_path};
use crate::db::files::{header_of, lock};
use crate::db::options::PoolOptions;
use crate::db::store::Store;
use crate::error::{Error, Result};
use crate::journal::base::{Base, PAGE, Pages, Rebuilt, complete};
use crate::journal::epoch::Attempt;
use crate::journal::files::{DiskDirectory, DiskFile};
use crate::journal::log::Writer;
use crate::journal::meta::Meta;
use crate::journal::running::{Journal, LEAST_AHEAD, Settings};
use crate::journal::segment::{Owner, has_others, has_segments, holds_segments, remove_others};
use crate::pmem::{MapAccess, Mapping, MappingError, MediumKind, Notes, Real};
use crate::pool::backing::{Backing, Journaled, mapping_error};
use crate::pool::core::{Core, random};
use crate::pool::header::Header;
use crate::pool::identity::Identity;
use crate::pool::layout::field;
use rustix::fs::{FlockOperation, OFlags};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// An opening of a journaled pool for writing.
struct Opening<'o> {
    options: &'o PoolOptions,
    journal: JournalOptions,
    path: &'o Path,
    /// The path from the root of the file system: the process can change its current directory while
    /// the pool is open.
    absolute: PathBuf,
    boot: u128,
    /// The pool's file, locked.
    file: File,
    identity: Identity,
    /// The journal's directory.
    directory: PathBuf,
    files: Arc<DiskDirectory>,
    /// The directory, locked. Two pools with the same one would delete each other's segments.
    lockable: File,
    /// Where the working file can be.
    places: Vec<PathBuf>,
}

/// How the pool goes on.
enum Life {
    /// In the same life: the working file has everything that was acknowledged.
    Same(Base, Box<Working>),
    /// In a new one, from the base as of this epoch. A pool that gets a journal has no base yet.
    New(Option<Base>, u64),
}

impl PoolOptions {
    /// Opens a journaled pool, or gives a closed pool a journal. `locked` is the pool's file, which is
    /// locked, and `meta` is what was found in it. Opens the store and passes it to `start`.
    pub(in crate::layers::db) fn open_journaled<T>(
        &self,
        path: &Path,
        locked: File,
        meta: Option<Meta>,
        start: impl FnOnce(Arc<Store<Real>>) -> Result<T>,
    ) -> Result<T> {
        let opening = Opening::begin(self, path, locked, meta.as_ref())?;
        let kept = opening.lockable.try_clone().map_err(|e| opening.io(e))?;
        let opened = opening.open(meta, start);
        if opened.is_err() {
            // Closing the directory is not enough; see `Backing::unlock`.
            let _ = crate::pmem::flock(&kept, FlockOperation::Unlock);
        }
        opened
    }
}

impl<'o> Opening<'o> {
    /// Checks the options, and locks the directory.
    fn begin(
        options: &'o PoolOptions,
        path: &'o Path,
        file: File,
        meta: Option<&Meta>,
    ) -> Result<Self> {
        let io = |e| Error::io(format!("opening the journal of {}", path.display()), e);
        let mut journal = options.journal.clone().unwrap_or_default();
        let boot = options.boot()?;
        if journal.interval.is_zero() {
            return Err(Error::Invalid {
                what: "interval of the journal",
                why: "0; the shortest is one nanosecond".into(),
            });
        }
        let absolute = |path: PathBuf| std::path::absolute(path).map_err(io);
        journal.working = journal.working.map(absolute).transpose()?;
        let directory = absolute(journal.directory_for(path))?;
        let owner = file.metadata().map_err(io)?;
        let disk = options.disk.clone();
        let files = DiskDirectory::open_or_create(directory.clone(), disk, owner.mode());
        let files = files.map_err(io)?.owned_by(owner.uid(), owner.gid());
        let lockable = files.file().map_err(io)?;
        let places = journal.places(&directory, &file, meta)?;
        let (identity, absolute) = (Identity::of(&file)?, absolute(path.into())?);
        let files = Arc::new(files);
        lock(&lockable, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Opening {
            options,
            journal,
            path,
            absolute,
            boot,
            file,
            identity,
            directory,
            files,
            lockable,
            places,
        })
    }

    fn open<T>(
        self,
        meta: Option<Meta>,
        start: impl FnOnce(Arc<Store<Real>>) -> Result<T>,
    ) -> Result<T> {
        let base = meta.map(|_| self.open_base()).transpose()?;
        match self.find_life(base)? {
            Life::Same(base, working) => self.continue_life(base, *working, start),
            Life::New(base, epoch) => self.begin_life(base, epoch, start),
        }
    }

    fn io(&self, error: std::io::Error) -> Error {
        Error::io(format!("opening the journal of {}", self.path.display()), error)
    }

    fn disk_file(&self) -> Result<Box<DiskFile>> {
        let file = self.file.try_clone().map_err(|e| self.io(e))?;
        Ok(Box::new(DiskFile::new(file, self.options.disk.clone())))
    }

    fn open_base(&self) -> Result<Base> {
        Base::open(self.disk_file()?).map_err(|e| self.io(e))?.map_err(|_| {
            Error::incomplete_journal("the pool's file no longer says that it has one")
        })
    }

    fn owned_by(&self, owner: Owner) -> Owned {
        Owned { owner, boot: self.boot, base: self.identity }
    }

    /// Fails if the directory has segments that `owner` must not delete. Called before segments are
    /// deleted.
    fn check_others(&self, owner: Owner, end: Option<u64>) -> Result<()> {
        check_others(&self.files, &self.directory, owner, end)
    }

    /// Finds the working file. Without it, completes the base.
    fn find_life(&self, base: Option<Base>) -> Result<Life> {
        let Some(base) = base else { return Ok(Life::New(None, 0)) };
        let meta = base.meta();
        let search = Search {
            places: &self.places,
            lock: Some(FlockOperation::NonBlockingLockExclusive),
            owned: self.owned_by(meta.owner()),
            user: user_of(&self.file)?,
            meta: &meta,
            path: self.path,
            journal: &*self.files,
        };
        match search.find()? {
            Found::Working(working) => return Ok(Life::Same(base, working)),
            missing => self.accept_missing(&meta, missing)?,
        }
        if meta.closed {
            return Ok(Life::New(Some(base), meta.checkpoint));
        }
        let told = |done, all| self.options.tell_rebuild(done, all);
        match complete(&*self.files, &base, told).map_err(|e| self.io(e))? {
            Rebuilt::Whole { epoch, .. } => Ok(Life::New(Some(base), epoch)),
            other => Err(incomplete(other, self.path, &self.directory)),
        }
    }

    /// Decides what a missing working file means. If it is of this boot, it should be there: then this fails
    /// if the user requires the file, and otherwise warns that changes are lost.
    fn accept_missing(&self, meta: &Meta, missing: Found) -> Result<()> {
        if meta.closed || meta.boot != self.boot as u64 {
            return Ok(());
        }
        // If the segments are gone as well, completing the base fails and says so.
        let refuses = self.options.require_working_file
            && has_segments(&*self.files, meta.owner()).map_err(|e| self.io(e))?;
        match missing {
            Found::Originals { base, working } if refuses => {
                return Err(Error::CopyOfPool { original: base, working });
            }
            Found::Originals { base, working } => tracing::warn!(
                copy = %self.path.display(),
                original = %base.display(),
                working = %working.display(),
                "a copy of a pool that was not closed is completed from its journal; the original has \
                 later changes in its working file"
            ),
            _ if refuses => return Err(Error::NoWorkingFile { path: Default::default() }),
            _ => tracing::warn!(
                path = %self.path.display(),
                "the working file is gone, although the machine was not restarted; what was not durable \
                 is lost"
            ),
        }
        Ok(())
    }

    /// Goes on with a working file that was found.
    fn continue_life<T>(
        self,
        base: Base,
        working: Working,
        start: impl FnOnce(Arc<Store<Real>>) -> Result<T>,
    ) -> Result<T> {
        let io = |e| self.io(e);
        let meta = base.meta();
        let (owner, durable) = (meta.owner(), working.durable());
        let is_short = base.file().len().map_err(io)? < meta.size;
        let is_ahead = working.is_ahead || is_short;
        let mut writer = Writer::new(self.files.clone(), owner, durable).map_err(io)?;
        if !meta.closed && writer.has_none() {
            // The working file is not enough: the base also needs segments, and these must be in
            // another directory.
            return Err(incomplete(Rebuilt::Gone, self.path, &self.directory));
        }
        self.check_others(owner, meta.end())?;
        // If the pool was closed and its working file kept, there is no segment yet.
        let begun = if is_ahead { writer.begin_again() } else { writer.begin() };
        begun.map_err(io)?;
        self.owned_by(owner).store(&working.notes, &self.absolute);
        // The journal has all epochs up to this one.
        let goes_on = |meta: &mut Meta| {
            meta.closed = false;
            if meta.reached < durable.epoch {
                meta.reach(durable);
            }
            if is_short {
                // Until a checkpoint has written all of it, no file is the base.
                meta.size = u64::MAX;
            }
        };
        base.replace(goes_on).map_err(io)?;
        if is_short {
            base.extend(working.size).map_err(mapping_error)?;
        }
        note_place(&base, &working.path).map_err(io)?;
        if !is_ahead {
            // The segments of other owners, and a spare that the dead process had prepared.
            writer.close_later(remove_others(&*self.files, owner).map_err(io)?);
        }
        remove_needless(&self.places, self.boot);
        let directory = self.directory.clone();
        let pages = Pages::all(working.size / PAGE as u64, durable.epoch);
        let store = self.open_store(base, writer, working, pages)?;
        let core = Arc::clone(store.core());
        let started = start(store)?;
        if is_ahead {
            tracing::warn!(
                journal = %directory.display(),
                "the journal or the pool's file has lost a part; the working file has it, and is written \
                 to the pool's file now"
            );
            core.journal().map_or(Ok(()), |journal| journal.checkpoint(&*core, false))?;
        }
        Ok(started)
    }

    /// Begins a new life from a base that is complete, or from the file of a closed pool.
    fn begin_life<T>(
        self,
        found: Option<Base>,
        epoch: u64,
        start: impl FnOnce(Arc<Store<Real>>) -> Result<T>,
    ) -> Result<T> {
        let io = |e| self.io(e);
        let len = self.file.metadata().map_err(io)?.len();
        let header = header_of(&self.file, len, self.path)?;
        let pool = header.id();
        let before = found.as_ref().map(Base::meta);
        if before.as_ref().is_some_and(|meta| meta.pool != pool) {
            return Err(Error::incomplete_journal("it belongs to another pool"));
        }
        let (life, end) = before.as_ref().map_or((0, Some(0)), |meta| (meta.life, meta.end()));
        self.check_others(Owner { pool, life }, end)?;
        let owner = Owner { pool, life: u128::from(random()) << 64 | u128::from(random()) };
        // Nothing may fail between building the working file and what removes it.
        let kept = self.file.try_clone().map_err(io)?;
        let working = self.build(owner, header, epoch)?;
        // What does not open must not take the place of the life before, whose working file may still
        // be found.
        if let Err(error) = self.check_working(&working) {
            let _ = std::fs::remove_file(&working.path);
            return Err(error);
        }
        let (is_first, made) = (found.is_none(), working.path.clone());
        let (options, files) = (self.options, Arc::clone(&self.files));
        let opened = self.note_life(found, owner, epoch, &working).and_then(|(base, writer)| {
            start(self.open_store(base, writer, working, Pages::none(epoch))?)
        });
        opened.inspect_err(|_| {
            // Nothing is lost: no operation has changed anything in the new working file.
            let _ = std::fs::remove_file(&made);
            if is_first {
                options.take_back(&kept, owner, &files);
            }
        })
    }

    /// Begins the journal of a new life, and lets the base name it.
    fn note_life(
        &self,
        found: Option<Base>,
        owner: Owner,
        epoch: u64,
        working: &Working,
    ) -> Result<(Base, Writer)> {
        let io = |e| self.io(e);
        let begin = |meta: &mut Meta| {
            (meta.pool, meta.life, meta.size) = (owner.pool, owner.life, working.size);
            (meta.closed, meta.checkpoint, meta.boot) = (false, epoch, self.boot as u64);
            meta.reach(Attempt::unknown(epoch));
        };
        let writer = Writer::new(self.files.clone(), owner, Attempt::unknown(epoch));
        let mut writer = writer.map_err(io)?;
        writer.begin().map_err(io)?;
        let base = match found {
            Some(base) => base.replace(begin).map(|()| base),
            None => {
                let mut meta = Meta::default();
                begin(&mut meta);
                Base::create(self.disk_file()?, meta)
            }
        };
        let base = base.map_err(io)?;
        note_place(&base, &working.path).map_err(io)?;
        writer.close_later(remove_others(&*self.files, owner).map_err(io)?);
        // Among them that of the life before, which the base no longer names.
        remove_needless(&self.places, self.boot);
        Ok((base, writer))
    }

    /// Builds the working file of a new life. Nothing refers to the file until `meta` names the
    /// life.
    fn build(&self, owner: Owner, header: Header, epoch: u64) -> Result<Working> {
        let size = header.get(field::SIZE);
        let path = working_path(&self.journal.place_for(size, &self.directory), owner.life);
        let io = |e| Error::io(format!("creating {}", path.display()), e);
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(flags)
            .open(&path)
            .map_err(io)?;
        let disk = &self.options.disk;
        let made = || -> Result<Notes> {
            // Another process that looks for needless files may have locked it for a moment.
            lock_patiently(&file, FlockOperation::NonBlockingLockExclusive)?;
            // If root opens another user's pool, that user must be able to open the working file
            // later.
            let user = self.file.metadata().map_err(io)?;
            let _ = std::os::unix::fs::fchown(&file, Some(user.uid()), None);
            // What the file belongs to comes first, so that if this process dies while it builds the
            // file, the next life can tell that it must remove it.
            let capacity = self.options.reserve(size, header.geometry().page_bits());
            let notes = Notes::create(disk, &file, capacity).map_err(|error| match error {
                MappingError::DiskFull { source, .. }
                    if source.kind() == ErrorKind::FileTooLarge =>
                {
                    let why = "the file must be over 2.2 TB long, although most of it takes no space. \
                               The process's limit on file sizes (`ulimit -f`) or the file system's is \
                               lower. A pool made with `survive(Failure::ProcessDeath)` needs no such file";
                    io(std::io::Error::new(source.kind(), why))
                }
                error => mapping_error(error),
            })?;
            Attempt::unknown(epoch).store(&notes, DURABLE);
            Attempt::begin(epoch, &notes, DURABLE);
            self.owned_by(owner).store(&notes, &self.absolute);
            notes.cover(disk, &file, size).map_err(mapping_error)?;
            // Allocate all blocks before the copy, so that a full file system is reported here.
            disk.allocate(&file, 0, size).map_err(mapping_error)?;
            copy(&self.file, &file, size, self.options.core.recovery.threads).map_err(io)?;
            Ok(notes)
        };
        match made() {
            Ok(notes) => Ok(Working { file, path, notes, header, size, is_ahead: false }),
            Err(error) => {
                let _ = std::fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// Checks that a pool opens from a working file, as far as its space goes.
    fn check_working(&self, working: &Working) -> Result<()> {
        let io = |e| Error::io(format!("reading {}", working.path.display()), e);
        let file = working.file.try_clone().map_err(io)?;
        match self.options.store_of(file, working.header.clone(), true, true) {
            // Opening for writing finishes a batch.
            Ok(_) | Err(Error::Unfinished { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Opens the pool in its working file.
    fn open_store(
        self,
        base: Base,
        writer: Writer,
        working: Working,
        pages: Pages,
    ) -> Result<Arc<Store<Real>>> {
        let Working { file, path, notes, header, size, .. } = working;
        let on_disk = !Mapping::is_tmpfs(&file);
        let reserve = self.options.reserve(size, header.geometry().page_bits());
        let reserve = reserve.min(notes.capacity());
        let disk = self.options.disk.clone();
        let mapping = Mapping::file_on(disk, file, MapAccess::Working, size, reserve)
            .map_err(mapping_error)?;
        let notes = Arc::new(notes);
        let JournalOptions { interval, limit, keep, .. } = self.journal;
        let settings = Settings { interval, limit, working: path, keep, ahead: LEAST_AHEAD };
        let journal = Journal::new(settings, base, writer, Arc::clone(&notes), DURABLE, pages)
            .map_err(|e| Error::io("opening the journal", e))?;
        let journal = Arc::new(journal);
        let is_in_memory = [&self.file, &self.lockable].into_iter().any(Mapping::is_tmpfs);
        let growing = Mutex::default();
        let backing = Backing::Journaled(Journaled {
            mapping,
            journal,
            base: self.file,
            directory: self.lockable,
            growing,
            is_in_memory,
            on_disk: on_disk.into(),
            wants_room: false.into(),
            fallback: self.directory,
        });
        let mut core = self.options.core.clone();
        (core.medium, core.boot) = (MediumKind::Journal, self.boot);
        // A pool from a working file or a rebuild is not torn, even if it is dirty.
        core.whole = true;
        Store::new(Core::open(backing, Real::journaled(notes), header, core)?)
    }
}

impl PoolOptions {
    /// Finds the file to map for a read-only opening of a journaled pool: the base if the pool was
    /// closed, otherwise the working file. Returns the file with its header and, if it is the
    /// working file, the base, which is locked too. Fails with [`Error::Unfinished`] if the working
    /// file is needed but not found, and if the base was closed in an earlier life than that of the
    /// segments beside it, as an opening for writing does. Writes nothing.
    pub(in crate::layers::db) fn read_journaled(
        &self,
        path: &Path,
        file: File,
        meta: &Meta,
    ) -> Result<(File, Header, Option<File>)> {
        let options = self.journal.clone().unwrap_or_default();
        let directory = options.directory_for(path);
        if meta.closed {
            if directory.is_dir() {
                let files = DiskDirectory::read_only(directory.clone());
                check_others(&files, &directory, meta.owner(), meta.end())?;
            }
            let len = file.metadata().map_err(|e| Error::io("reading the length", e))?.len();
            let header = header_of(&file, len, path)?;
            return Ok((file, header, None));
        }
        let places = options.places(&directory, &file, Some(meta))?;
        let owned = Owned { owner: meta.owner(), boot: self.boot()?, base: Identity::of(&file)? };
        let search = Search {
            places: &places,
            lock: Some(FlockOperation::NonBlockingLockShared),
            owned,
            user: user_of(&file)?,
            meta,
            path,
            journal: &DiskDirectory::read_only(directory),
        };
        match search.find()? {
            Found::Working(found) => Ok((found.file, found.header, Some(file))),
            Found::Nothing | Found::Originals { .. } => {
                Err(Error::Unfinished { path: Default::default() })
            }
        }
    }

    /// Fails if the journal of a pool lies where the journal of a new pool at this path would be.
    pub(in crate::layers::db) fn check_no_journal(&self, path: &Path) -> Result<()> {
        let options = self.journal.clone().unwrap_or_default();
        let directory = options.directory_for(path);
        // Other pools can have used a directory that was chosen.
        if options.has_directory() || !directory.is_dir() {
            return Ok(());
        }
        match holds_segments(&DiskDirectory::read_only(directory.clone())) {
            Ok(true) => Err(Error::Invalid {
                what: "path of the pool",
                why: format!(
                    "{} holds the journal of a pool whose file is not there. If it was moved, put it \
                     back; `restore` puts a backup in its place. If no pool needs the journal, remove it",
                    directory.display()
                ),
            }),
            Ok(false) => Ok(()),
            // The directory may be another user's.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(Error::io(format!("reading {}", directory.display()), error)),
        }
    }
}

/// Fails if a directory has segments that `owner` must not delete; see [`has_others`].
fn check_others(
    files: &DiskDirectory,
    directory: &Path,
    owner: Owner,
    end: Option<u64>,
) -> Result<()> {
    match has_others(files, owner, end) {
        Ok(false) => Ok(()),
        Ok(true) => Err(Error::Invalid {
            what: "directory of the journal",
            why: format!(
                "{} holds the journal of another pool, or of another or later copy of this one. \
                 To put a backup in the place of that pool, use `restore`, which keeps the pool and its \
                 journal. To use this copy as it is, move it to another directory. If no pool needs \
                 that journal, remove it",
                directory.display()
            ),
        }),
        // A user who may read the pool may not be allowed to read this directory.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && files.is_read_only() => Ok(()),
        Err(error) => Err(Error::io(format!("reading {}", directory.display()), error)),
    }
}
