//! What can be told of a journaled pool without opening it, also while another process uses it.

use super::journal::{Owned, find, user_of};
use super::options::{PoolOptions, header_of};
use super::roots::{MapInfo, decode};
use crate::error::{Error, Result};
use crate::journal::backup::peek;
use crate::journal::files::{DiskDirectory, DiskFile};
use crate::journal::segment;
use crate::pmem::Disk;
use crate::pool::backing::Identity;
use crate::pool::layout::{ROOT_SLOTS, ROOT_WORDS, ROOTS_OFFSET, field};
use crate::pool::roots;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How often something is read again that another process was just writing.
const ATTEMPTS: usize = 20;

/// What a journaled pool and its files publish. See [`PoolOptions::journal_facts`].
#[derive(Debug)]
#[non_exhaustive]
pub struct JournalFacts {
    /// The pool's id.
    pub id: u128,
    /// Size of the pool in bytes.
    pub size: u64,
    /// Largest size the pool may grow to, in bytes; 0 means no limit.
    pub limit: u64,
    /// log2 of the page size.
    pub page_bits: u32,
    /// The last durable epoch. `None` if the working file was not found.
    pub durable: Option<u64>,
    /// The base needs the epochs after this one.
    pub checkpoint: u64,
    /// Whether the pool was closed, so that the base is the pool.
    pub closed: bool,
    /// Bytes of the base.
    pub base_bytes: u64,
    /// Number of segments, those prepared ahead of use included.
    pub segments: usize,
    /// Bytes of all segments.
    pub journal_bytes: u64,
    /// The directory of the segments.
    pub directory: PathBuf,
    /// The working file, if it was found.
    pub working: Option<PathBuf>,
    /// The maps, as [`Pool::maps`](crate::Pool::maps) lists them. `None` if the working file was not
    /// found.
    pub maps: Option<Vec<Result<MapInfo>>>,
}

impl PoolOptions {
    /// Reads what a journaled pool publishes, without opening it and without a lock. Another process
    /// may be using it: the facts are then of about this moment, and not all of the same one. Returns `None` if
    /// the pool has no journal.
    ///
    /// The working file is found if it belongs to the user of this process and lies where the options say
    /// ([`JournalOptions::working_directory`](crate::JournalOptions::working_directory)). Without it, size and limit are
    /// those of the base, as of some checkpoint.
    ///
    /// # Errors
    /// [`Error::NoSuchPool`], [`Error::Io`]; those of a damaged header.
    pub fn journal_facts(&self, path: impl AsRef<Path>) -> Result<Option<JournalFacts>> {
        let path = path.as_ref();
        // The process that uses the pool may be writing both copies of the header.
        for _ in 1..ATTEMPTS {
            if let Ok(facts) = self.read_facts(path) {
                return Ok(facts);
            }
            std::thread::yield_now();
        }
        self.read_facts(path)
    }

    fn read_facts(&self, path: &Path) -> Result<Option<JournalFacts>> {
        let io = |e| Error::io(format!("reading {}", path.display()), e);
        let file = File::open(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::NoSuchPool { path: path.into() },
            _ => io(e),
        })?;
        let base_bytes = file.metadata().map_err(io)?.len();
        let base = DiskFile::new(file.try_clone().map_err(io)?, Disk::default());
        let Some(meta) = peek(&base).map_err(io)? else { return Ok(None) };
        let options = self.journal.clone().unwrap_or_default();
        let directory = options.directory_for(path);
        let (segments, journal_bytes) = if directory.is_dir() {
            segment::bytes_in(&DiskDirectory::read_only(directory.clone())).map_err(io)?
        } else {
            (0, 0)
        };
        let owned = Owned { owner: meta.owner(), boot: self.boot(), base: Identity::of(&file)? };
        let user = user_of(&file)?;
        // Another user's working file may not be readable.
        let found = find(&options.places(&directory), None, owned, user, &meta).ok().flatten();
        let durable = found.as_ref().map(|working| working.durable());
        let maps = found.as_ref().map(|working| maps_in(&working.file)).transpose()?;
        let (header, working) = match found {
            Some(working) => (working.header, Some(working.path)),
            None => (header_of(&file, base_bytes, path)?, None),
        };
        Ok(Some(JournalFacts {
            id: meta.pool,
            size: header.get(field::SIZE),
            limit: header.get(field::MAX_SIZE),
            page_bits: header.geometry().page_bits(),
            durable,
            checkpoint: meta.checkpoint,
            closed: meta.closed,
            base_bytes,
            segments,
            journal_bytes,
            directory,
            working,
            maps,
        }))
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
