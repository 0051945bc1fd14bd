//! Opening a journaled pool: its options, the rebuild, and the threads of the journal.

mod leftovers;
mod options;
mod undo;
mod working;

pub use leftovers::{WorkingFile, WorkingFileUse};
pub use options::JournalOptions;

use leftovers::remove_needless;
use working::{DURABLE, copy, lock_patiently};
pub(super) use working::{Found, Owned, Search, Working, user_of, working_path};

use super::files::{header_of, lock};
use super::handle::Pool;
use super::options::PoolOptions;
use super::store::Store;
use crate::error::{Error, Result};
use crate::journal::base::{Base, PAGE, Pages, Rebuilt, complete};
use crate::journal::epoch::Attempt;
use crate::journal::files::{DiskDirectory, DiskFile};
use crate::journal::log::Writer;
use crate::journal::meta::Meta;
use crate::journal::running::{Journal, LEAST_AHEAD, Settings, Source};
use crate::journal::segment::{Owner, has_others, has_segments, holds_segments, remove_others};
use crate::pmem::{Disk, MapAccess, Mapping, MappingError, MediumKind, Notes, Real};
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
use std::thread::JoinHandle;

impl PoolOptions {
    /// Opens a journaled pool, or gives a closed pool a journal. `locked` is the pool's file, which is
    /// locked, and `meta` is what was found in it.
    pub(super) fn open_journaled(
        &self,
        path: &Path,
        locked: File,
        meta: Option<Meta>,
    ) -> Result<Pool> {
        let action = || format!("opening the journal of {}", path.display());
        let io = |e| Error::io(action(), e);
        let mut options = self.journal.clone().unwrap_or_default();
        let boot = self.boot()?;
        if options.interval.is_zero() {
            return Err(Error::Invalid {
                what: "interval of the journal",
                why: "0; the shortest is one nanosecond".into(),
            });
        }
        // The process can change its current directory while the pool is open.
        let absolute = |path: PathBuf| std::path::absolute(path).map_err(io);
        options.working = options.working.map(absolute).transpose()?;
        let directory = absolute(options.directory_for(path))?;
        let disk = self.disk.clone();
        let owner = locked.metadata().map_err(io)?;
        let mode = owner.mode();
        let files =
            DiskDirectory::open_or_create(directory.clone(), disk.clone(), mode).map_err(io)?;
        let files = files.owned_by(owner.uid(), owner.gid());
        // Two pools with the same directory would delete each other's segments.
        let lockable = files.file().map_err(io)?;
        lock(&lockable, FlockOperation::NonBlockingLockExclusive)?;
        let files = Arc::new(files);
        let places = options.places(&directory, &locked, meta.as_ref())?;
        let (identity, user) = (Identity::of(&locked)?, user_of(&locked)?);
        let file = || -> Result<Box<DiskFile>> {
            Ok(Box::new(DiskFile::new(locked.try_clone().map_err(io)?, disk.clone())))
        };
        let found = match meta {
            Some(_) => match Base::open(file()?).map_err(io)? {
                Ok(base) => Some(base),
                Err(_) => {
                    return Err(Error::IncompleteJournal(
                        "the pool's file no longer says that it has one".into(),
                    ));
                }
            },
            None => None,
        };
        // Before segments are deleted.
        let check_others = |owner, end| check_others(&files, &directory, owner, end);
        if let Some(base) = &found {
            let meta = base.meta();
            let owner = meta.owner();
            let owned = Owned { owner, boot, base: identity };
            let search = Search {
                places: &places,
                lock: Some(FlockOperation::NonBlockingLockExclusive),
                owned,
                user,
                meta: &meta,
                path,
                journal: &*files,
            };
            match search.find()? {
                Found::Working(working) => {
                    let durable = working.durable();
                    let base = found.expect("it was just there");
                    let is_short = base.file().len().map_err(io)? < meta.size;
                    let is_ahead = working.is_ahead || is_short;
                    let mut writer = Writer::new(files.clone(), owner, durable).map_err(io)?;
                    if !meta.closed && writer.has_none() {
                        // The working file is not enough: the base also needs segments, and these
                        // must be in another directory.
                        return Err(incomplete(Rebuilt::Gone, path, &directory));
                    }
                    check_others(owner, meta.end())?;
                    // If the pool was closed and its working file kept, there is no segment yet.
                    let begun = if is_ahead { writer.begin_again() } else { writer.begin() };
                    begun.map_err(io)?;
                    owned.store(&working.notes, &absolute(path.into())?);
                    // The journal has all epochs up to this one.
                    base.replace(|meta| {
                        meta.closed = false;
                        if meta.reached < durable.epoch {
                            meta.reach(durable);
                        }
                        if is_short {
                            // Until a checkpoint has written all of it, no file is the base.
                            meta.size = u64::MAX;
                        }
                    })
                    .map_err(io)?;
                    if is_short {
                        base.extend(working.size).map_err(mapping_error)?;
                    }
                    note_place(&base, &working.path).map_err(io)?;
                    if !is_ahead {
                        // The segments of other owners, and a spare that the dead process had
                        // prepared.
                        writer.close_later(remove_others(&*files, owner).map_err(io)?);
                    }
                    remove_needless(&places, boot);
                    let pages = Pages::all(working.size / PAGE as u64, durable.epoch);
                    let locked = [locked, lockable];
                    let begun = (base, writer, *working, pages);
                    let pool = self.start_journaled(options, begun, locked, &directory)?;
                    if is_ahead {
                        tracing::warn!(
                            journal = %directory.display(),
                            "the journal or the pool's file has lost a part; the working file has it, and \
                             is written to the pool's file now"
                        );
                        let core = pool.store().core();
                        core.journal()
                            .map_or(Ok(()), |journal| journal.checkpoint(&**core, false))?;
                    }
                    return Ok(pool);
                }
                // If the segments are gone as well, `IncompleteJournal` says so below.
                missing if !meta.closed && meta.boot == boot as u64 => {
                    let refuses =
                        self.require_working_file && has_segments(&*files, owner).map_err(io)?;
                    match missing {
                        Found::Originals { base, working } if refuses => {
                            return Err(Error::CopyOfPool { original: base, working });
                        }
                        Found::Originals { base, working } => tracing::warn!(
                            copy = %path.display(),
                            original = %base.display(),
                            working = %working.display(),
                            "a copy of a pool that was not closed is completed from its journal; the \
                             original has later changes in its working file"
                        ),
                        _ if refuses => return Err(Error::NoWorkingFile),
                        _ => tracing::warn!(
                            path = %path.display(),
                            "the working file is gone, although the machine was not restarted; what was \
                             not durable is lost"
                        ),
                    }
                }
                _ => {}
            }
        }
        // Without a working file, complete the base, and begin a new life from it.
        let (epoch, pool) = match &found {
            Some(base) if base.meta().closed => (base.meta().checkpoint, Some(base.meta().pool)),
            Some(base) => {
                let told = |done, all| self.tell_rebuild(done, all);
                let rebuilt = complete(&*files, base, told).map_err(io)?;
                match rebuilt {
                    Rebuilt::Whole { epoch, .. } => (epoch, Some(base.meta().pool)),
                    other => return Err(incomplete(other, path, &directory)),
                }
            }
            None => (0, None),
        };
        let len = locked.metadata().map_err(io)?.len();
        let header = header_of(&locked, len, path)?;
        if pool.is_some_and(|pool| pool != header.id()) {
            return Err(Error::IncompleteJournal("it belongs to another pool".into()));
        }
        let (life, end) = found.as_ref().map_or((0, Some(0)), |base| {
            let meta = base.meta();
            (meta.life, meta.end())
        });
        check_others(Owner { pool: header.id(), life }, end)?;
        let size = header.get(field::SIZE);
        let life = u128::from(random()) << 64 | u128::from(random());
        let owner = Owner { pool: header.id(), life };
        let owned = Owned { owner, boot, base: identity };
        let place = options.place_for(size, &directory);
        let base_path = absolute(path.into())?;
        let (is_first, kept) = (found.is_none(), locked.try_clone().map_err(io)?);
        let working = self.build(&place, &base_path, &locked, owned, header, epoch)?;
        // What does not open must not take the place of the life before, whose working file may still
        // be found.
        if let Err(error) = self.check_working(&working) {
            let _ = std::fs::remove_file(&working.path);
            return Err(error);
        }
        let begin = |meta: &mut Meta| {
            (meta.pool, meta.life, meta.size, meta.closed) = (owner.pool, life, size, false);
            (meta.checkpoint, meta.boot) = (epoch, boot as u64);
            meta.reach(Attempt::unknown(epoch));
        };
        let begun = || -> Result<(Base, Writer)> {
            let mut writer =
                Writer::new(files.clone(), owner, Attempt::unknown(epoch)).map_err(io)?;
            writer.begin().map_err(io)?;
            let base = match found {
                Some(base) => base.replace(begin).map(|()| base),
                None => {
                    let mut meta = Meta::default();
                    begin(&mut meta);
                    Base::create(file()?, meta)
                }
            };
            let base = base.map_err(io)?;
            note_place(&base, &working.path).map_err(io)?;
            writer.close_later(remove_others(&*files, owner).map_err(io)?);
            // Among them that of the life before, which the base no longer names.
            remove_needless(&places, boot);
            Ok((base, writer))
        };
        let made = working.path.clone();
        let opened = begun().and_then(|(base, writer)| {
            let locked = [locked, lockable];
            let begun = (base, writer, working, Pages::none(epoch));
            self.start_journaled(options, begun, locked, &directory)
        });
        opened.inspect_err(|_| {
            // Nothing is lost: no operation has changed anything in the new working file.
            let _ = std::fs::remove_file(&made);
            if is_first {
                self.take_back(&kept, owner, &files);
            }
        })
    }

    /// Builds the working file of a new life. Nothing refers to the file until `meta` names the
    /// life.
    fn build(
        &self,
        place: &Path,
        base_path: &Path,
        base: &File,
        owned: Owned,
        header: Header,
        epoch: u64,
    ) -> Result<Working> {
        let path = working_path(place, owned.owner.life);
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
        let size = header.get(field::SIZE);
        let made = || -> Result<Notes> {
            // Another process that looks for needless files may have locked it for a moment.
            lock_patiently(&file, FlockOperation::NonBlockingLockExclusive)?;
            // If root opens another user's pool, that user must be able to open the working file
            // later.
            let owner = base.metadata().map_err(io)?;
            let _ = std::os::unix::fs::fchown(&file, Some(owner.uid()), None);
            // What the file belongs to comes first, so that if this process dies while it builds the
            // file, the next life can tell that it must remove it.
            let capacity = self.reserve(size, header.geometry().page_bits());
            let notes = Notes::create(&self.disk, &file, capacity).map_err(|error| match error {
                MappingError::DiskFull { source, .. }
                    if source.kind() == ErrorKind::FileTooLarge =>
                {
                    let why = "the file must be over 2.2 TB long, although most of it takes no space. The \
                               process's limit on file sizes (`ulimit -f`) or the file system's is lower";
                    io(std::io::Error::new(source.kind(), why))
                }
                error => mapping_error(error),
            })?;
            Attempt::unknown(epoch).store(&notes, DURABLE);
            Attempt::begin(epoch, &notes, DURABLE);
            owned.store(&notes, base_path);
            notes.cover(&self.disk, &file, size).map_err(mapping_error)?;
            // Allocate all blocks before the copy, so that a full file system is reported here.
            self.disk.allocate(&file, 0, size).map_err(mapping_error)?;
            copy(base, &file, size, self.core.recovery.threads).map_err(io)?;
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
        match self.store_of(file, working.header.clone(), true, true) {
            // Opening for writing finishes a batch.
            Ok(_) | Err(Error::Unfinished) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn start_journaled(
        &self,
        options: JournalOptions,
        (base, writer, working, pages): (Base, Writer, Working, Pages),
        [locked, lockable]: [File; 2],
        directory: &Path,
    ) -> Result<Pool> {
        let Working { file, path, notes, header, size, .. } = working;
        let on_disk = !Mapping::is_tmpfs(&file);
        let reserve = self.reserve(size, header.geometry().page_bits()).min(notes.capacity());
        let mapping = Mapping::file_on(self.disk.clone(), file, MapAccess::Working, size, reserve)
            .map_err(mapping_error)?;
        let notes = Arc::new(notes);
        let JournalOptions { interval, limit, keep, .. } = options;
        let settings = Settings { interval, limit, working: path, keep, ahead: LEAST_AHEAD };
        let journal = Journal::new(settings, base, writer, Arc::clone(&notes), DURABLE, pages)
            .map_err(|e| Error::io("opening the journal", e))?;
        let journal = Arc::new(journal);
        let is_in_memory = [&locked, &lockable].into_iter().any(Mapping::is_tmpfs);
        let growing = Mutex::default();
        let backing = Backing::Journaled(Journaled {
            mapping,
            journal,
            base: locked,
            directory: lockable,
            growing,
            is_in_memory,
            on_disk: on_disk.into(),
            wants_room: false.into(),
            fallback: directory.into(),
        });
        let mut core = self.core.clone();
        (core.medium, core.boot) = (MediumKind::Journal, self.boot()?);
        // A pool from a working file or a rebuild is not torn, even if it is dirty.
        core.whole = true;
        let core = Core::open(backing, Real::journaled(notes), header, core)?;
        self.start(Store::new(core)?, None)
    }

    /// Finds the file to map for a read-only opening of a journaled pool: the base if the pool was
    /// closed, otherwise the working file. Returns the file with its header and, if it is the
    /// working file, the base, which is locked too. Fails with [`Error::Unfinished`] if the working
    /// file is needed but not found, and if the base was closed in an earlier life than that of the
    /// segments beside it, as an opening for writing does. Writes nothing.
    pub(super) fn read_journaled(
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
            Found::Nothing | Found::Originals { .. } => Err(Error::Unfinished),
        }
    }
}

/// The threads of a journal.
pub(super) struct JournalThreads {
    journal: Arc<Journal>,
    threads: Vec<JoinHandle<()>>,
}

impl JournalThreads {
    /// Starts the threads, if the pool has a journal.
    pub(super) fn start(store: &Store<Real>) -> Result<Option<JournalThreads>> {
        let Some(journal) = store.core().journal().cloned() else { return Ok(None) };
        let mut started = JournalThreads { journal, threads: Vec::new() };
        for (name, run, nice) in [
            ("outlast-journal", Journal::run as fn(&Journal, &dyn Source), 0),
            // Checkpoints must not take the processor from a cut, which holds writers back.
            ("outlast-base", Journal::run_checkpoints, 10),
        ] {
            let (core, journal) = (Arc::clone(store.core()), Arc::clone(&started.journal));
            started.journal.expect();
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
                // On Linux, this affects only the calling thread. If the system refuses, the thread
                // runs at normal priority.
                let _ = rustix::process::nice(nice);
                run(&journal, &*core);
            });
            match thread {
                Ok(thread) => started.threads.push(thread),
                Err(error) => {
                    started.journal.unexpect();
                    return Err(Error::io("starting a thread of the journal", error));
                }
            }
        }
        Ok(Some(started))
    }

    /// Gives up the handles in a forked child, where the threads do not exist.
    pub(super) fn forget(mut self) {
        std::mem::take(&mut self.threads).into_iter().for_each(std::mem::forget);
    }
}

impl Drop for JournalThreads {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.journal.shut(false);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl PoolOptions {
    /// Fails if the journal of a pool lies where the journal of a new pool at this path would be.
    pub(super) fn check_no_journal(&self, path: &Path) -> Result<()> {
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

/// Returns the error for a pool that cannot be rebuilt from its journal.
pub(super) fn incomplete(rebuilt: Rebuilt, path: &Path, directory: &Path) -> Error {
    let directory = directory.display();
    Error::IncompleteJournal(match rebuilt {
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
        Rebuilt::Gone | Rebuilt::Whole { .. } => format!("{directory} has none of its segments"),
    })
}

/// Removes `meta` from a pool whose journal is incomplete, for a user who accepts the pool without
/// its journal.
pub(super) fn leave(file: &File, disk: &Disk) -> Result<()> {
    let io = |e| Error::io("taking the journal from the pool", e);
    let file = file.try_clone().map_err(io)?;
    Base::leave(&DiskFile::new(file, disk.clone())).map_err(io)
}

/// Notes in the base where its working file is, so that later openings find it whatever their
/// options.
fn note_place(base: &Base, working: &Path) -> std::io::Result<()> {
    let place = working.parent().expect("the file of a directory").canonicalize()?;
    base.note_place(&place)
}

/// Returns the directory of a life's working file, if the base notes it.
fn place_of(base: &File, life: u128) -> Result<Option<PathBuf>> {
    let io = |e| Error::io("reading the pool", e);
    let file = base.try_clone().map_err(io)?;
    Base::place(&DiskFile::new(file, Disk::default()), life).map_err(io)
}

/// Returns the `meta` in the file of a pool, if it has one.
pub(super) fn peek(file: &File) -> Result<Option<Meta>> {
    let io = |e| Error::io("reading the pool", e);
    let file = file.try_clone().map_err(io)?;
    Base::peek(&DiskFile::new(file, Disk::default())).map_err(io)
}
