//! Creating and opening pools.

use super::files::{header_of, lock, may_have_map, open_parent, parent, unused};
use super::handle::Pool;
use super::journal;
use super::opened::Guarded;
use super::options::{Failure, PoolOptions};
use super::snapshot;
use super::store::Store;
use super::worker::Worker;
use crate::error::{Error, Result};
use crate::journal::files::DiskDirectory;
use crate::journal::meta::Meta;
use crate::pmem::{Call, MapAccess, Mapping, MediumKind, Real, rename_new};
use crate::pool::backing::{Backing, mapping_error};
use crate::pool::core::{Core, CoreOptions};
use crate::pool::header::Header;
use rustix::fs::{AtFlags, CWD, FlockOperation, OFlags};
use std::fs::File;
use std::io::Error as IoError;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl PoolOptions {
    /// Creates a pool at `path`. The file appears there complete or not at all. If the journal of a
    /// pool lies where this pool's would be, the creation fails: that pool's file was removed or renamed,
    /// and perhaps can still be put back.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::PoolOptions;
    ///
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { PoolOptions::new().create(&path)? };
    /// pool.close()?;
    /// // SAFETY: as above.
    /// let again = unsafe { PoolOptions::new().create(&path) };
    /// assert!(again.is_err(), "an existing file is never replaced");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] if `path` exists already; [`Error::Invalid`], also if there is a journal;
    /// [`Error::DiskFull`], [`Error::AddressSpace`].
    ///
    /// # Safety
    /// Same as for [`open`](PoolOptions::open).
    pub unsafe fn create(&self, path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        let action = || format!("creating {}", path.display());
        if path.symlink_metadata().is_ok() {
            let exists = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(Error::io(action(), exists));
        }
        self.check_no_journal(path)?;
        if self.journal.is_some() || self.needs_journal(path) {
            return self.create_journaled(path);
        }
        if let Some(directory) = self.own_directory(path) {
            // Empty, and left by a pool that was there before. It would make this pool look unfinished.
            let _ = std::fs::remove_dir(directory);
        }
        self.create_plain(path)
    }

    /// Returns the directory of the journal of the pool at `path`, if no other pool can use it.
    fn own_directory(&self, path: &Path) -> Option<PathBuf> {
        let options = self.journal.clone().unwrap_or_default();
        (!options.has_directory()).then(|| options.directory_for(path))
    }

    /// Returns whether the pool without a journal in this file was to get one, and the process that created
    /// it died before. See [`create_journaled`](Self::create_journaled).
    fn is_unfinished(&self, path: &Path, file: &File) -> bool {
        self.own_directory(path).is_some_and(|it| it.is_dir()) && !may_have_map(file)
    }

    /// Returns whether a new pool at `path` must have a journal to survive what it must. Persistent memory
    /// is only known once a file there is mapped.
    fn needs_journal(&self, path: &Path) -> bool {
        let ordinary = || File::open(parent(path)).is_ok_and(|it| !Mapping::is_tmpfs(&it));
        self.survive == Failure::PowerLoss && self.emulate_pm.is_none() && ordinary()
    }

    fn create_plain(&self, path: &Path) -> Result<Pool> {
        let action = || format!("creating {}", path.display());
        let parent = parent(path);
        let made = snapshot::new_file(parent, snapshot::NEW, snapshot::MODE);
        let (file, temporary) = made.map_err(|e| Error::io(action(), e))?;
        let result = self.create_in(&file, path, temporary.as_deref());
        if let Some(temporary) = temporary {
            let _ = std::fs::remove_file(temporary);
        }
        result
    }

    /// Creates a pool, closes it, and opens it with a journal, unless it lies on persistent memory and
    /// nobody asked for a journal.
    ///
    /// A crash in between leaves a pool without a journal and without a map. The journal's directory, which is
    /// made durably before the pool gets its name, says that it was to have one: the next opening for writing
    /// goes on from there. (If the user chose the directory, the next opening is asked for a journal anyway.)
    fn create_journaled(&self, path: &Path) -> Result<Pool> {
        if self.emulate_pm.is_some() {
            return Err(Error::Invalid {
                what: "medium",
                why: "a journaled pool cannot emulate persistent memory".into(),
            });
        }
        let plain = PoolOptions { journal: None, background: false, ..self.clone() };
        let missing = self.missing_directory(path);
        // The directory stays if anything is in it.
        let no_directory = || missing.as_ref().map_or(Ok(()), std::fs::remove_dir);
        // It also stays if another process has made a pool of this name meanwhile, which needs it.
        let gave_up = || {
            if !path.exists() {
                drop(no_directory())
            }
        };
        if let Some(directory) = self.own_directory(path) {
            DiskDirectory::open_or_create(directory, self.disk.clone(), snapshot::MODE)
                .inspect_err(|_| gave_up())
                .map_err(|e| Error::io(format!("creating the journal of {}", path.display()), e))?;
        }
        let made = plain.create_plain(path).inspect_err(|_| gave_up())?;
        let id = made.id();
        let needed = made.durability().medium == MediumKind::PageCache;
        let mut with = self.clone();
        if needed {
            with.journal.get_or_insert_default();
        } else if with.journal.is_none() {
            drop(no_directory());
        }
        let opened = made.close().and_then(|()| with.open_file(path, false));
        if opened.is_err()
            && let Some(_locked) = unused(path, id)
        {
            // A creation that failed must not leave a pool.
            let _ = std::fs::remove_file(path);
            self.clear_journal(path, id);
            drop(no_directory());
        }
        opened
    }

    fn create_in(&self, file: &File, path: &Path, temporary: Option<&Path>) -> Result<Pool> {
        let action = || format!("creating {}", path.display());
        let (_, options) = self.judge(None)?;
        let granule = if options.page_bits >= 16 { 2 << 20 } else { 4096 };
        let size = first_size(&options, granule);
        let options = CoreOptions { initial_size: size, path: path.into(), ..options };
        let copy = file.try_clone().map_err(|e| Error::io(action(), e))?;
        let reserve = self.reserve(size, options.page_bits);
        let disk = self.disk.clone();
        let mapping = Mapping::file_on(disk, copy, MapAccess::ReadWrite, size, reserve)
            .map_err(|e| mapping_error(e).at(path))?;
        let (real, options) = self.judge_with(Some(mapping.medium()), options)?;
        let made = Core::create(Backing::Mapped(mapping), real, options).map_err(|e| e.at(path))?;
        let store = Store::new(made)?;
        let directory = open_parent(path)?;
        // Gives the complete pool its name, and fails if the name is taken.
        let link = || match temporary {
            None => {
                let fd = format!("/proc/self/fd/{}", file.as_raw_fd());
                Ok(rustix::fs::linkat(CWD, &fd, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
            }
            Some(temporary) => rename_new(temporary, path),
        };
        self.disk.call(Call::Link, file, link).map_err(|e: IoError| Error::io(action(), e))?;
        if let Err(error) = self.disk.fsync_directory(&directory) {
            // A creation that failed must not leave a pool.
            let _ = std::fs::remove_file(path);
            return Err(Error::io(action(), error));
        }
        let named = store.core().check_named();
        // The lock keeps others out until the file is removed. The store has it, and a start that
        // fails drops the store that it was given.
        let started = named.and_then(|()| self.start(Arc::clone(&store), None));
        if started.is_err() {
            let _ = std::fs::remove_file(path);
        }
        started
    }

    /// Opens the pool at `path`. After a crash this takes constant time: each part is repaired when
    /// it is first touched. (A pool with a journal is read in full, unless its working file still
    /// exists. A batch that the crash cut short is completed first.)
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::{Error, PoolOptions};
    ///
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let missing = unsafe { PoolOptions::new().open(&path) };
    /// assert!(matches!(missing, Err(Error::NoSuchPool { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchPool`], [`Error::NotAPool`], [`Error::Version`], [`Error::UnknownFeature`],
    /// [`Error::Truncated`], [`Error::DamagedHeader`], [`Error::PossiblyTorn`],
    /// [`Error::IncompleteJournal`], [`Error::NoWorkingFile`], [`Error::Locked`],
    /// [`Error::AddressSpace`], [`Error::DiskFull`], [`Error::Io`].
    ///
    /// # Safety
    /// While the pool is open, nothing may write to or truncate the file except through the pool.
    /// The pool's lock keeps out other users of this library, but not other programs. Nothing is
    /// required of the file's content: opening a damaged file is safe.
    pub unsafe fn open(&self, path: impl AsRef<Path>) -> Result<Pool> {
        self.open_file(path.as_ref(), false)
    }

    /// Opens the pool at `path` for reading. Other readers may have it open, but no writer. Nothing
    /// is written to the file: repairs are made in private memory.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::{Error, PoolOptions};
    ///
    /// # // SAFETY: no one else writes this file while the pool is open.
    /// # let pool = unsafe { PoolOptions::new().create(&path)? };
    /// # pool.map::<str, u64>("ages")?.insert("Ada", &36)?;
    /// # pool.close()?;
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { PoolOptions::new().open_read_only(&path)? };
    /// let ages = pool.map::<str, u64>("ages")?;
    /// assert_eq!(ages.get("Ada")?, Some(36));
    /// assert!(matches!(ages.put("Ada", &37), Err(Error::ReadOnly { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Same as for [`open`](PoolOptions::open); [`Error::Unfinished`].
    ///
    /// # Safety
    /// Same as for [`open`](PoolOptions::open).
    pub unsafe fn open_read_only(&self, path: impl AsRef<Path>) -> Result<Pool> {
        self.open_file(path.as_ref(), true)
    }

    /// Opens the pool at `path`, or creates it if nothing is there.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::PoolOptions;
    ///
    /// for visit in 1..=3 {
    ///     // SAFETY: no one else writes this file while the pool is open.
    ///     let pool = unsafe { PoolOptions::new().open_or_create(&path)? };
    ///     assert_eq!(pool.map::<str, u64>("visits")?.add("/", 1)?, visit);
    ///     pool.close()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Same as for [`open`](PoolOptions::open) and [`create`](PoolOptions::create).
    ///
    /// # Safety
    /// Same as for [`open`](PoolOptions::open).
    pub unsafe fn open_or_create(&self, path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        // SAFETY: the caller's promise is the same.
        match unsafe { self.open(path) } {
            Err(Error::NoSuchPool { .. }) => {}
            other => return other,
        }
        // SAFETY: the caller's promise is the same.
        match unsafe { self.create(path) } {
            // Another process or thread created it first.
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {
                // SAFETY: the caller's promise is the same.
                unsafe { self.open(path) }
            }
            other => other,
        }
    }

    /// Creates a pool in memory, for tests and caches. It disappears with its last handle.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// let ages = pool.map::<str, u64>("ages")?;
    /// assert!(ages.insert("Ada", &36)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::AddressSpace`], [`Error::Invalid`].
    pub fn anonymous(&self) -> Result<Pool> {
        let size = first_size(&self.core, 2 << 20);
        let mapping = Mapping::anonymous(size, self.reserve(size, self.core.page_bits))
            .map_err(mapping_error)?;
        let (real, mut options) = self.judge(Some(mapping.medium()))?;
        options.initial_size = size;
        self.start(Store::new(Core::create(Backing::Mapped(mapping), real, options)?)?, None)
    }

    pub(super) fn open_file(&self, path: &Path, read_only: bool) -> Result<Pool> {
        let mut named = self.clone();
        named.core.path = path.into();
        named.open_named(path, read_only).map_err(|error| error.at(path))
    }

    fn open_named(&self, path: &Path, read_only: bool) -> Result<Pool> {
        let action = || format!("opening {}", path.display());
        let file = File::options()
            .read(true)
            .write(!read_only)
            // Keeps the opening of a pipe from waiting for its other end. Has no effect on files.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::NotFound => Error::NoSuchPool { path: path.into() },
                // A directory cannot be opened for writing.
                std::io::ErrorKind::IsADirectory => Error::not_a_file(),
                _ => Error::io(action(), e),
            })?;
        let meta = file.metadata().map_err(|e| Error::io(action(), e))?;
        if !meta.is_file() {
            return Err(Error::not_a_file());
        }
        let how = if read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        lock(&file, how)?;
        if path.metadata().is_ok_and(|now| (now.dev(), now.ino()) != (meta.dev(), meta.ino())) {
            // Another process has meanwhile replaced the file with a snapshot or a compacted pool.
            // Changes to the file that was opened would be lost.
            let _ = crate::pmem::flock(&file, FlockOperation::Unlock);
            return self.open_named(path, read_only);
        }
        let kept = file.try_clone().map_err(|e| Error::io(action(), e))?;
        let opened = self.open_whichever(path, file, meta.len(), read_only);
        if opened.is_err() {
            // Closing the file is not enough; see `Backing::unlock`.
            let _ = crate::pmem::flock(&kept, FlockOperation::Unlock);
        }
        opened
    }

    fn open_whichever(&self, path: &Path, file: File, len: u64, read_only: bool) -> Result<Pool> {
        let meta = journal::peek(&file)?;
        match (meta, read_only) {
            (Some(meta), true) => {
                let kept = file.try_clone().map_err(|e| Error::io("opening the pool", e))?;
                match self.read_journaled(path, file, &meta) {
                    Err(Error::Unfinished { .. }) if self.core.accept_possibly_torn => {
                        let header = header_of(&kept, len, path)?;
                        let store = self.mixed().store_of(kept, header, true, false)?;
                        self.start(store, None)
                    }
                    found => {
                        let (file, header, locked) = found?;
                        self.open_plain(file, header, true, locked)
                    }
                }
            }
            (Some(_), false) => {
                let kept = file.try_clone().map_err(|e| Error::io("opening the pool", e))?;
                match self.open_journaled_or_clear(path, file, meta) {
                    Err(Error::IncompleteJournal { why, .. }) if self.core.accept_possibly_torn => {
                        tracing::warn!(why, "opening the pool without its journal");
                        let file = kept.try_clone();
                        let file = file.map_err(|e| Error::io("opening the pool", e))?;
                        let header = header_of(&file, len, path)?;
                        let store = self.mixed().store_of(file, header, false, false)?;
                        // Gives up the journal only once the pool has been opened. If that fails,
                        // the user may still find the missing part of the journal.
                        journal::leave(&kept, &self.disk)?;
                        self.start(store, None)
                    }
                    opened => opened,
                }
            }
            (None, _) => {
                let header = header_of(&file, len, path)?;
                let plain = self.journal.is_none() && !self.is_unfinished(path, &file);
                if plain || read_only {
                    return self.open_plain(file, header, read_only, None);
                }
                if header.is_dirty() || header.is_synced_idle() {
                    // First recover the pool as one without a journal. That also refuses a copy of
                    // a live pool.
                    let plain = PoolOptions { background: false, ..self.clone() };
                    plain.open_plain(file, header, false, None)?.close()?;
                    // Closing released the lock, and another process may have used the pool since,
                    // or given its name to another file. So start again.
                    return self.open_named(path, false);
                }
                self.open_journaled_or_clear(path, file, None)
            }
        }
    }

    /// Opens a journaled pool. If that fails, it leaves no empty directory of the journal.
    fn open_journaled_or_clear(&self, path: &Path, file: File, meta: Option<Meta>) -> Result<Pool> {
        let missing = self.missing_directory(path);
        let opened = self.open_journaled(path, file, meta, |store| self.start(store, None));
        if opened.is_err() {
            // The directory stays if anything is in it.
            let _ = missing.map(std::fs::remove_dir);
        }
        opened
    }

    /// Opens a pool without a journal. If `file` is the working file of a read-only pool, `locked`
    /// is its base, whose lock the pool also holds.
    pub(super) fn open_plain(
        &self,
        file: File,
        header: Header,
        read_only: bool,
        locked: Option<File>,
    ) -> Result<Pool> {
        let store = self.store_of(file, header, read_only, locked.is_some())?;
        self.start(store, locked)
    }

    /// Returns the options for opening a base without its journal. The base can mix pages of
    /// different moments, even if its header is that of a closed pool.
    fn mixed(&self) -> PoolOptions {
        let mut options = self.clone();
        options.core.mixed = true;
        options
    }

    /// Starts the pool's worker. [`Guarded::new`] starts the threads of the journal.
    pub(super) fn start(&self, store: Arc<Store<Real>>, locked: Option<File>) -> Result<Pool> {
        let worker = self.background && !store.core().options().read_only;
        // If there is a worker and the pool has content, the worker allows huge pages a moment
        // after the opening, so that the first operations need not wait for them.
        if !worker || store.is_new() {
            store.use_huge_pages();
        }
        let worker =
            worker.then(|| Worker::start(&store, self.idle_sync, self.trim)).transpose()?;
        Ok(Pool::new(Guarded::new(store, worker, locked)?))
    }
}

/// Returns the initial size of a pool: the requested size, rounded up to `granule`, but no more
/// than the pool's limit.
fn first_size(options: &CoreOptions, granule: u64) -> u64 {
    let size = options.initial_size.checked_next_multiple_of(granule).unwrap_or(1 << 48);
    match options.max_size {
        0 => size,
        max => size.min(max & !((1 << options.page_bits.clamp(12, 20)) - 1)),
    }
}
