//! Facts about a pool that can be read without opening it, even while another process uses it.

use super::files::header_of;
use super::journal::{Found, Owned, Search, Working, user_of};
use super::options::PoolOptions;
use super::roots::{MapInfo, decode};
use crate::error::{Error, Result};
use crate::journal::backup::peek;
use crate::journal::files::{DiskDirectory, DiskFile};
use crate::journal::meta::Meta;
use crate::journal::segment;
use crate::pmem::{Disk, MediumKind};
use crate::pool::identity::Identity;
use crate::pool::layout::{ROOT_SLOTS, ROOT_WORDS, ROOTS_OFFSET, field};
use crate::pool::roots;
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How many times to try to read something that another process may be writing at that moment.
const ATTEMPTS: usize = 20;

/// What can be read from a pool's files without opening it. See [`PoolOptions::facts`].
#[derive(Debug)]
#[non_exhaustive]
pub struct PoolFacts {
    /// The pool's id.
    pub id: u128,
    /// Size of the pool in bytes.
    pub size: u64,
    /// Largest size the pool may grow to, in bytes; 0 means no limit.
    pub limit: u64,
    /// log2 of the page size.
    pub page_bits: u32,
    /// The medium that the last writer found.
    pub medium: MediumKind,
    /// Length of the pool's file in bytes.
    pub file_bytes: u64,
    /// Bytes that the file occupies on the disk.
    pub disk_bytes: u64,
    /// The maps, as [`Pool::maps`](crate::Pool::maps) lists them. `None` if the pool has a journal and its
    /// working file was not found.
    pub maps: Option<Vec<Result<MapInfo>>>,
    /// The journal, if the pool has one. The pool's file is then the base.
    pub journal: Option<JournalFacts>,
}

/// What can be read from the files of a journal.
#[derive(Debug)]
#[non_exhaustive]
pub struct JournalFacts {
    /// The last durable epoch. `None` if the working file was not found.
    pub durable: Option<u64>,
    /// The epoch of the last checkpoint. The base needs the epochs after it.
    pub checkpoint: u64,
    /// Whether the pool was closed, so that the base is the pool.
    pub closed: bool,
    /// Whether the machine was restarted since the pool was last opened for writing. If it was not,
    /// the working file still holds what was not durable, unless the pool was closed or the file
    /// deleted.
    pub restarted: bool,
    /// Number of segments, including those prepared ahead of use.
    pub segments: usize,
    /// Bytes of all segments.
    pub bytes: u64,
    /// The directory of the segments.
    pub directory: PathBuf,
    /// The working file, if it was found.
    pub working: Option<PathBuf>,
}

impl PoolOptions {
    /// Reads facts about a pool from its files, without opening it and without a lock. Another
    /// process may be using the pool: the facts are then recent, but not all of the same moment.
    ///
    /// The working file of a journaled pool is found only if it lies in one of the directories
    /// listed at [`JournalOptions::working_directory`](crate::JournalOptions::working_directory),
    /// is of the current boot, belongs to the user of this process or to the owner of the pool's
    /// file, and can be opened by this process for reading and writing. If it is not found, size
    /// and limit are those of the base, as of some checkpoint.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("a.pool");
    /// use outlast::PoolOptions;
    ///
    /// // SAFETY: nobody else writes this file while the pool is open.
    /// let pool = unsafe { PoolOptions::new().create(&path)? };
    /// pool.map::<str, u64>("ages")?;
    /// // Another process can ask as well.
    /// let facts = PoolOptions::new().facts(&path)?;
    /// assert_eq!((facts.id, facts.size), (pool.id(), pool.stats().size));
    /// assert_eq!(facts.maps.unwrap()[0].as_ref().unwrap().name, "ages");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchPool`], [`Error::NotAPool`], [`Error::Io`]; those of a damaged header.
    pub fn facts(&self, path: impl AsRef<Path>) -> Result<PoolFacts> {
        let path = path.as_ref();
        // The process that uses the pool may write both copies of the header while they are read,
        // so that neither looks intact.
        for _ in 1..ATTEMPTS {
            if let Ok(facts) = self.read_facts(path) {
                return Ok(facts);
            }
            std::thread::yield_now();
        }
        self.read_facts(path)
    }

    fn read_facts(&self, path: &Path) -> Result<PoolFacts> {
        let io = |e| Error::io(format!("reading {}", path.display()), e);
        // Keeps the opening of a pipe from waiting for its other end.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::NoSuchPool { path: path.into() },
            _ => io(e),
        })?;
        let found = file.metadata().map_err(io)?;
        if !found.is_file() {
            return Err(Error::not_a_file());
        }
        let base = DiskFile::new(file.try_clone().map_err(io)?, Disk::default());
        let meta = peek(&base).map_err(io)?;
        let journal = meta.map(|meta| self.facts_of_journal(path, &file, &meta)).transpose()?;
        let (header, maps, journal) = match journal {
            Some((Some(working), journal)) => {
                (working.header, Some(maps_in(&working.file)?), Some(journal))
            }
            Some((None, journal)) => (header_of(&file, found.len(), path)?, None, Some(journal)),
            None => (header_of(&file, found.len(), path)?, Some(maps_in(&file)?), None),
        };
        Ok(PoolFacts {
            id: header.id(),
            size: header.get(field::SIZE),
            limit: header.get(field::MAX_SIZE),
            page_bits: header.geometry().page_bits(),
            medium: MediumKind::from_u64(header.get(field::MEDIUM))
                .unwrap_or(MediumKind::PageCache),
            file_bytes: found.len(),
            disk_bytes: found.blocks() * 512,
            maps,
            journal,
        })
    }

    /// Returns the facts of the journal, and the working file if it is found.
    fn facts_of_journal(
        &self,
        path: &Path,
        base: &File,
        meta: &Meta,
    ) -> Result<(Option<Working>, JournalFacts)> {
        let io = |e| Error::io(format!("reading {}", path.display()), e);
        let options = self.journal.clone().unwrap_or_default();
        let directory = options.directory_for(path);
        let (segments, bytes) = if directory.is_dir() {
            segment::bytes_in(&DiskDirectory::read_only(directory.clone())).map_err(io)?
        } else {
            (0, 0)
        };
        let owned = Owned { owner: meta.owner(), boot: self.boot()?, base: Identity::of(base)? };
        let places = options.places(&directory, base, Some(meta))?;
        let search = Search {
            places: &places,
            lock: None,
            owned,
            user: user_of(base)?,
            meta,
            path,
            journal: &DiskDirectory::read_only(directory.clone()),
        };
        // The working file may be unreadable, for instance because it belongs to another user. It
        // then counts as not found.
        let found = match search.find() {
            Ok(Found::Working(working)) => Some(*working),
            Ok(_) | Err(_) => None,
        };
        let facts = JournalFacts {
            durable: found.as_ref().map(|working| working.durable().epoch),
            checkpoint: meta.checkpoint,
            closed: meta.closed,
            restarted: meta.boot != self.boot()? as u64,
            segments,
            bytes,
            directory,
            working: found.as_ref().map(|working| working.path.clone()),
        };
        Ok((found, facts))
    }
}

/// Lists the maps in a file that another process may have mapped.
fn maps_in(file: &File) -> Result<Vec<Result<MapInfo>>> {
    let io = |e| Error::io("reading the roots", e);
    let mut maps = Vec::new();
    for slot in 0..ROOT_SLOTS {
        let read = || -> Result<Option<MapInfo>> {
            let mut bytes = [0; ROOT_WORDS * 8];
            let at = ROOTS_OFFSET + (slot * bytes.len()) as u64;
            file.read_exact_at(&mut bytes, at).map_err(io)?;
            let (words, _) = bytes.as_chunks::<8>();
            let words: [u64; ROOT_WORDS] = std::array::from_fn(|i| u64::from_le_bytes(words[i]));
            match words[0] {
                0 => Ok(None),
                commit => decode(slot, &roots::fixed_of(slot, commit, &words)?).map(Some),
            }
        };
        // A root that was being written while it was read looks damaged.
        let mut root = read();
        for _ in 1..ATTEMPTS {
            if root.is_ok() {
                break;
            }
            root = read();
        }
        maps.extend(root.transpose());
    }
    Ok(maps)
}
