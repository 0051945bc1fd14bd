//! The working files of journaled pools: where they are, and to which pool and life they belong.

use crate::db::options::{header_of, lock};
use crate::error::{Error, Result};
use crate::journal::base::PAGE;
use crate::journal::epoch::Attempt;
use crate::journal::epochs::{Fit, fit};
use crate::journal::files::Directory;
use crate::journal::meta::{META_OFFSETS, Meta};
use crate::journal::segment::Owner;
use crate::pmem::Notes;
use crate::pool::backing::Identity;
use crate::pool::header::Header;
use crate::pool::layout::field;
use rustix::fs::{FlockOperation, OFlags};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the names of working files begin and end with. The life's id is in between.
const NAMES: [&str; 2] = ["outlast-", ".working"];
/// How long to wait for the lock of the working file of a process that has died.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes copied at a time when a working file is built.
const PIECE: u64 = 4 << 20;
/// The first word of a working file's control page.
const MAGIC: u64 = u64::from_le_bytes(*b"OLWORKF1");
/// The number of words, including the first one, that say what the file belongs to.
const IDENTITY: usize = 11;
/// The first word that holds the last durable epoch; see [`Attempt::store`].
pub(super) const DURABLE: usize = 16;

/// What a working file belongs to.
#[derive(Clone, Copy)]
pub(in crate::db) struct Owned {
    pub(in crate::db) owner: Owner,
    pub(in crate::db) boot: u128,
    pub(in crate::db) base: Identity,
}

impl Owned {
    pub(super) fn words(&self) -> [u64; IDENTITY] {
        let Owned { owner, boot, base } = *self;
        let mut words = [MAGIC; IDENTITY];
        for (index, wide) in [owner.pool, owner.life, boot].into_iter().enumerate() {
            (words[2 * index + 1], words[2 * index + 2]) = (wide as u64, (wide >> 64) as u64);
        }
        words[7..10].copy_from_slice(&[base.device, base.inode, base.born]);
        let bytes: Vec<u8> = words[..10].iter().flat_map(|word| word.to_le_bytes()).collect();
        words[10] = u64::from(crc32c::crc32c(&bytes));
        words
    }
}

/// A working file.
pub(in crate::db) struct Working {
    pub(in crate::db) file: File,
    pub(in crate::db) path: PathBuf,
    pub(super) notes: Notes,
    pub(in crate::db) header: Header,
    pub(super) size: u64,
}

impl Working {
    /// Returns the last durable epoch.
    pub(in crate::db) fn durable(&self) -> Attempt {
        Attempt::load(&self.notes, DURABLE)
    }

    /// Compares the file with the journal in `directory`. Returns whether the journal lacks something
    /// that this file has. Fails if the file is an older copy of itself.
    pub(super) fn is_ahead(
        &self,
        files: &dyn Directory,
        meta: &Meta,
        directory: &Path,
    ) -> Result<bool> {
        let durable = self.durable();
        let fit = fit(files, meta, durable, Attempt::begun(&self.notes, DURABLE));
        match fit.map_err(|e| Error::io(format!("reading {}", directory.display()), e))? {
            Fit::Whole => Ok(false),
            Fit::Short => Ok(true),
            Fit::Older(epoch) => Err(Error::Invalid {
                what: "working file",
                why: format!(
                    "{} is an older copy of itself: it ends with epoch {}, and the journal in {} has epoch \
                     {epoch}. Put the latest one back. Or remove it: the pool is then completed from the \
                     journal, which has everything that was confirmed to be durable",
                    self.path.display(),
                    durable.epoch,
                    directory.display()
                ),
            }),
        }
    }
}

/// Returns the path of the working file of a life.
pub(super) fn working_path(place: &Path, life: u128) -> PathBuf {
    place.join(format!("{}{life:032x}{}", NAMES[0], NAMES[1]))
}

/// Opens a working file. Returns `None` only if there is none. Any other obstacle is an error,
/// because the changes in the file must not be lost. `owner` is the user that owns the base.
fn open_working(path: &Path, owner: u32) -> Result<Option<File>> {
    let io = |e| Error::io(format!("opening {}", path.display()), e);
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let opened = File::options().read(true).write(true).custom_flags(flags).open(path);
    let meta = match &opened {
        Ok(file) => file.metadata(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(_) => std::fs::symlink_metadata(path),
    };
    // In a directory that others can write to, the file may be anyone's.
    let ours = [owner, rustix::process::geteuid().as_raw()];
    match meta {
        Ok(meta) if !ours.contains(&meta.uid()) => {
            let why = format!(
                "it belongs to user {}. If that user has used the pool, the last changes may be in it: open \
                 the pool as that user. Otherwise remove the file",
                meta.uid()
            );
            Err(io(std::io::Error::new(ErrorKind::PermissionDenied, why)))
        }
        Ok(meta) if !meta.is_file() => Err(io(std::io::Error::other("it is not a file"))),
        meta => opened.and_then(|file| meta.map(|_| Some(file))).map_err(io),
    }
}

/// Locks the working file of a process that has died. The kernel may still be tearing down that
/// process's mapping of the file, which also keeps the lock.
fn lock_patiently(file: &File, how: FlockOperation) -> Result<()> {
    let start = Instant::now();
    loop {
        match lock(file, how) {
            Err(Error::Locked) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            locked => return locked,
        }
    }
}

/// Finds the working file of a pool, which a dead process left or closing the pool kept. Without a
/// `lock`, the file may also be in use by another process; with one, such a file is
/// [`Error::Locked`]. Uses a file only if it certainly belongs to this life, this boot and this
/// base. It may be older than the journal; see [`Working::is_ahead`].
pub(in crate::db) fn find(
    places: &[PathBuf],
    lock: Option<FlockOperation>,
    owned: Owned,
    user: u32,
    meta: &Meta,
) -> Result<Option<Working>> {
    for place in places {
        let path = working_path(place, owned.owner.life);
        let Some(file) = open_working(&path, user)? else { continue };
        let action = || format!("opening {}", path.display());
        let notes = Notes::open(&file).map_err(|e| Error::io(action(), e))?;
        let Some(notes) = notes else { continue };
        let has = |(word, expected): (&AtomicU64, u64)| word.load(Ordering::Relaxed) == expected;
        let whole = notes.control().iter().zip(owned.words()).all(has);
        if !whole {
            // It belongs to another boot, or to another base, of which this one is a copy.
            continue;
        }
        lock.map_or(Ok(()), |how| lock_patiently(&file, how))?;
        let durable = Attempt::load(&notes, DURABLE).epoch;
        if meta.closed && durable != meta.checkpoint {
            continue;
        }
        let header = header_of(&file, notes.covered(), &path)?;
        let size = header.get(field::SIZE);
        return Ok(Some(Working { file, path, notes, header, size }));
    }
    Ok(None)
}

/// Removes the working files of this base's other lives, unless a process has one open. `user` owns
/// the base.
pub(super) fn remove_old(places: &[PathBuf], base: Identity, user: u32, life: u128) {
    for place in places {
        for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let is_one = name.to_str().is_some_and(|name| {
                name.strip_prefix(NAMES[0]).is_some_and(|rest| rest.ends_with(NAMES[1]))
            });
            if !is_one || path == working_path(place, life) {
                continue;
            }
            if let Ok(Some(file)) = open_working(&path, user)
                && lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                && let Ok(Some(notes)) = Notes::open(&file)
            {
                let word = |index: usize| notes.control()[index].load(Ordering::Relaxed);
                if word(0) == MAGIC
                    && [word(7), word(8), word(9)] == [base.device, base.inode, base.born]
                {
                    let _ = std::fs::remove_file(path);
                }
            }
        }
    }
}

/// Returns the user that owns a base.
pub(in crate::db) fn user_of(base: &File) -> Result<u32> {
    Ok(base.metadata().map_err(|e| Error::io("reading the pool's owner", e))?.uid())
}

/// Copies the first `size` bytes of the base to a working file, with several threads.
pub(super) fn copy(base: &File, working: &File, size: u64, threads: usize) -> std::io::Result<()> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut bytes = vec![0; PIECE as usize];
        loop {
            let at = next.fetch_add(PIECE, Ordering::Relaxed);
            if at >= size {
                return Ok(());
            }
            let piece = &mut bytes[..(size - at).min(PIECE) as usize];
            base.read_exact_at(piece, at)?;
            for offset in META_OFFSETS {
                // These pages are the journal's, not the pool's.
                if let Some(inside) = offset.checked_sub(at)
                    && let Some(page) = piece.get_mut(inside as usize..inside as usize + PAGE)
                {
                    page.fill(0);
                }
            }
            working.write_all_at(piece, at)?;
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let mine = work();
        others.into_iter().fold(mine, |so_far, other| {
            so_far.and(other.join().unwrap_or_else(|_| Err(std::io::Error::other("a panic"))))
        })
    })
}
