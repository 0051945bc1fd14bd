//! The working files of journaled pools: where they are, and to which pool and life they belong.

use crate::db::boot::is_missing;
use crate::db::files::{header_of, lock};
use crate::error::{Error, Result};
use crate::journal::base::PAGE;
use crate::journal::epoch::Attempt;
use crate::journal::epochs::{Fit, fit};
use crate::journal::files::Directory;
use crate::journal::meta::{META_OFFSETS, Meta};
use crate::journal::segment::Owner;
use crate::pmem::{Notes, with_helpers};
use crate::pool::header::Header;
use crate::pool::identity::{Identity, Relation};
use crate::pool::layout::{FRONTIER_OFFSET, field, unpack_frontier};
use rustix::fs::{FlockOperation, OFlags};
use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What the names of working files begin and end with. The life's id is in between.
const NAMES: [&str; 2] = ["outlast-", ".working"];
/// How long to wait for the lock of the working file of a process that has died.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes copied at a time when a working file is built.
const PIECE: u64 = 4 << 20;
/// The first word of a working file's control page.
const MAGIC: u64 = u64::from_le_bytes(*b"OLWORKF1");
/// The index of the word that says which of the two records counts.
const WHICH: usize = 1;
/// The first words of the two records of what the file belongs to. The one that does not count is
/// written, and then made to count by one store, so that a process that dies leaves either.
const RECORDS: [usize; 2] = [2, 32];
/// Words of a record: pool, life, boot, the base's identity, and a checksum.
const RECORD: usize = 11;
/// The first word that holds the last durable epoch; see [`Attempt::store`].
pub(super) const DURABLE: usize = 16;
/// The first words of the base's path in the two records: length and checksum, then the path.
const PATHS: [usize; 2] = [64, 256];
/// The longest path that is noted, in bytes.
const PATH_MAX: usize = (PATHS[1] - PATHS[0] - 1) * 8;

/// What a working file belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::layers::db) struct Owned {
    pub(in crate::layers::db) owner: Owner,
    pub(in crate::layers::db) boot: u128,
    pub(in crate::layers::db) base: Identity,
}

impl Owned {
    fn words(&self) -> [u64; RECORD] {
        let Owned { owner, boot, base } = *self;
        let mut words = [0; RECORD];
        for (index, wide) in [owner.pool, owner.life, boot].into_iter().enumerate() {
            (words[2 * index], words[2 * index + 1]) = (wide as u64, (wide >> 64) as u64);
        }
        words[6..10].copy_from_slice(&[base.device, base.inode, base.born, base.file_system]);
        let bytes: Vec<u8> = words[..10].iter().flat_map(|word| word.to_le_bytes()).collect();
        words[10] = u64::from(crc32c::crc32c(&bytes));
        words
    }

    /// Stores the record, with the path of the base, and makes it the one that counts.
    pub(super) fn store(&self, notes: &Notes, base: &Path) {
        let which = 1 - (notes.control()[WHICH].load(Ordering::Relaxed) & 1) as usize;
        let path = base.as_os_str().as_bytes();
        let path = if path.len() > PATH_MAX { &[] } else { path };
        let mut bytes = path.to_vec();
        bytes.resize(PATH_MAX, 0);
        let head = path.len() as u64 | u64::from(crc32c::crc32c(path)) << 32;
        let text = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let path = (PATHS[which]..).zip(std::iter::once(head).chain(text));
        // After the death of this process, its stores are seen in their order.
        path.chain((RECORDS[which]..).zip(self.words()))
            .chain([(WHICH, which as u64), (0, MAGIC)])
            .for_each(|(index, value)| notes.store_control(index, value));
    }

    /// Loads the record that counts, and the path of the base if it is noted. Returns `None` if the
    /// record is not intact.
    pub(super) fn load(notes: &Notes) -> Option<(Owned, Option<PathBuf>)> {
        let control = notes.control();
        if control[0].load(Ordering::Acquire) != MAGIC {
            return None;
        }
        let which = usize::try_from(control[WHICH].load(Ordering::Acquire)).ok()?;
        let word = |index: usize| control[index].load(Ordering::Relaxed);
        let start = *RECORDS.get(which)?;
        let wide =
            |at: usize| u128::from(word(start + at)) | u128::from(word(start + at + 1)) << 64;
        let [device, inode, born, file_system] = [6, 7, 8, 9].map(|at| word(start + at));
        let owned = Owned {
            owner: Owner { pool: wide(0), life: wide(2) },
            boot: wide(4),
            base: Identity { device, inode, born, file_system },
        };
        let is_intact = (0..RECORD).map(|at| word(start + at)).eq(owned.words());
        let head = word(PATHS[which]);
        let text = (1..PATHS[1] - PATHS[0]).flat_map(|at| word(PATHS[which] + at).to_le_bytes());
        let text: Vec<u8> = text.take((head as u32) as usize).collect();
        let noted = !text.is_empty() && crc32c::crc32c(&text) == (head >> 32) as u32;
        let path = noted.then(|| OsString::from_vec(text).into());
        is_intact.then_some((owned, path))
    }
}

/// A working file.
pub(in crate::layers::db) struct Working {
    pub(in crate::layers::db) file: File,
    pub(in crate::layers::db) path: PathBuf,
    pub(super) notes: Notes,
    pub(in crate::layers::db) header: Header,
    pub(super) size: u64,
    /// Whether base or journal have lost something that this file has.
    pub(super) is_ahead: bool,
}

impl Working {
    /// Returns the last durable epoch.
    pub(in crate::layers::db) fn durable(&self) -> Attempt {
        Attempt::load(&self.notes, DURABLE)
    }
}

/// Opens a file for reading that another user's working file names. It can be anything: opening a pipe
/// must not wait for a writer.
pub(super) fn open_unknown(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

/// What the name of a working file ends with while it is made in another directory.
const UNFINISHED: &str = ".moving";

/// Returns whether this is the name of a working file.
pub(super) fn is_working_name(name: &str) -> bool {
    name.strip_prefix(NAMES[0]).is_some_and(|rest| rest.ends_with(NAMES[1]))
}

/// Returns whether this is the name of a file that was to become a working file in another directory.
pub(super) fn is_unfinished_name(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).is_some_and(is_working_name)
}

/// Returns the path of the working file of a life.
pub(in crate::layers::db) fn working_path(place: &Path, life: u128) -> PathBuf {
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
/// process's mapping of the file, which also keeps the lock. Or another process looks at it.
pub(super) fn lock_patiently(file: &File, how: FlockOperation) -> Result<()> {
    let start = Instant::now();
    loop {
        match lock(file, how) {
            Err(Error::Locked { .. }) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            locked => return locked,
        }
    }
}

/// A search for the working file of a pool.
#[derive(Clone, Copy)]
pub(in crate::layers::db) struct Search<'s> {
    /// The directories that it may be in.
    pub(in crate::layers::db) places: &'s [PathBuf],
    /// How to lock it. Without a lock, it may be in use by another process.
    pub(in crate::layers::db) lock: Option<FlockOperation>,
    /// What it must belong to.
    pub(in crate::layers::db) owned: Owned,
    /// The user that owns the base.
    pub(in crate::layers::db) user: u32,
    /// What the base says.
    pub(in crate::layers::db) meta: &'s Meta,
    /// The path of the base.
    pub(in crate::layers::db) path: &'s Path,
    /// The journal.
    pub(in crate::layers::db) journal: &'s dyn Directory,
}

/// The result of a search for a working file.
pub(in crate::layers::db) enum Found {
    /// The working file.
    Working(Box<Working>),
    /// There is none that could hold anything of this life.
    Nothing,
    /// The base is a copy, and the working file is the original's.
    Originals {
        /// The original.
        base: PathBuf,
        /// Its working file.
        working: PathBuf,
    },
}

impl Search<'_> {
    /// Finds the working file of a pool, which a dead process left or closing the pool kept.
    ///
    /// A working file of this life exists only once, and holds every change that was acknowledged. So
    /// one that is there is used, or there is a reason why this base does not need it; otherwise this
    /// fails with [`Error::OtherWorkingFile`]. It is never left out because something about it is in
    /// doubt.
    ///
    /// | its base is | base and journal | |
    /// |---|---|---|
    /// | this file | [fit](Fit::Whole), or lack something that the working file has | it is used |
    /// | this file, mounted again | fit | it is used |
    /// | another file, which is still at the noted path | | it is the other's: this is a copy |
    /// | another file, which is gone; or the file system does not tell | fit | it is used: the pool was moved |
    /// | any of these | anything else | it does not match |
    pub(in crate::layers::db) fn find(self) -> Result<Found> {
        let Search { owned, meta, .. } = self;
        // A life never outlives a boot.
        if meta.boot != owned.boot as u64 {
            return Ok(Found::Nothing);
        }
        for place in self.places {
            let path = working_path(place, owned.owner.life);
            let Some(file) = open_working(&path, self.user)? else { continue };
            let differs = |why: String| Error::OtherWorkingFile {
                working: path.clone(),
                pool: self.path.into(),
                why,
            };
            let notes = Notes::open(&file);
            let notes = notes.map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
            let read = notes.and_then(|notes| Owned::load(&notes).map(|of| (notes, of)));
            let Some((notes, (of, noted))) = read else {
                return Err(differs("it is damaged".into()));
            };
            if (of.owner, of.boot) != (owned.owner, owned.boot) {
                return Err(differs("what it says of itself is not what its name says".into()));
            }
            let relation = owned.base.compared_with(of.base, true);
            if relation != Relation::Same
                && let Some(base) = noted
                && self.is_original(&base, of.base)?
            {
                return Ok(Found::Originals { base, working: path });
            }
            self.lock.map_or(Ok(()), |how| lock_patiently(&file, how))?;
            let durable = Attempt::load(&notes, DURABLE);
            if meta.closed && durable.epoch != meta.checkpoint {
                // The base is the whole pool, as of another moment than the working file.
                continue;
            }
            let begun = Attempt::begun(&notes, DURABLE);
            if self.lock.is_some() && begun.wrapping_sub(durable.epoch) > 1 {
                let last = durable.epoch;
                return Err(differs(format!(
                    "it is damaged: by its notes, epoch {last} is durable, and {begun} is being written"
                )));
            }
            let is_ahead = match self.fit(durable, begun)? {
                Fit::Whole => false,
                Fit::Short => true,
                Fit::Older(epoch) => {
                    let last = durable.epoch;
                    return Err(differs(format!(
                        "it is an older copy of itself: it ends with epoch {last}, and the pool's file \
                         and journal have epoch {epoch}"
                    )));
                }
            };
            if is_ahead && (relation != Relation::Same || owned.base.device != of.base.device) {
                let (last, was, is) = (durable.epoch, of.base, owned.base);
                return Err(differs(format!(
                    "the pool's journal does not end with epoch {last}, as it does; its file was {was}, \
                     and this one is {is}"
                )));
            }
            let header = header_of(&file, notes.covered(), &path)
                .map_err(|error| differs(format!("its header is damaged: {error}")))?;
            let mut frontier = [0; 8];
            let read = file.read_exact_at(&mut frontier, FRONTIER_OFFSET);
            read.map_err(|e| Error::io(format!("reading {}", path.display()), e))?;
            if unpack_frontier(u64::from_le_bytes(frontier)).is_none() {
                return Err(differs(format!(
                    "its frontier is damaged, at offset {FRONTIER_OFFSET:#x}"
                )));
            }
            let size = header.get(field::SIZE);
            self.remove_twins(&file, &path);
            let working = Working { file, path, notes, header, size, is_ahead };
            return Ok(Found::Working(Box::new(working)));
        }
        Ok(Found::Nothing)
    }

    /// Removes the other working files of this life: a process that died while it moved the file can have
    /// left it in both places, with the same content. Only a process that has locked the one that it
    /// uses may do so.
    fn remove_twins(&self, used: &File, path: &Path) {
        if !matches!(self.lock, Some(FlockOperation::NonBlockingLockExclusive)) {
            return;
        }
        let number = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        let Ok(ours) = used.metadata().map(number) else { return };
        for place in self.places {
            let twin = working_path(place, self.owned.owner.life);
            let is_other = |meta| number(meta) != ours;
            if twin != path && twin.symlink_metadata().is_ok_and(is_other) {
                let _ = std::fs::remove_file(twin);
            }
        }
    }

    /// Returns whether another file, with this identity, is at this path. A file that this user may
    /// not open counts as gone.
    fn is_original(&self, path: &Path, base: Identity) -> Result<bool> {
        let there = match open_unknown(path) {
            Ok(file) => Identity::of(&file)?,
            Err(error) if is_missing(&error) => return Ok(false),
            Err(error) => return Err(Error::io(format!("opening {}", path.display()), error)),
        };
        Ok(there != self.owned.base && there.compared_with(base, true) == Relation::Same)
    }

    /// Compares the journal with a working file.
    fn fit(&self, durable: Attempt, begun: u64) -> Result<Fit> {
        if self.lock.is_none() {
            // Another process may be writing both.
            return Ok(Fit::Whole);
        }
        match fit(self.journal, self.meta, durable, begun) {
            // There is no directory.
            Err(error) if error.kind() == ErrorKind::NotFound && self.meta.closed => Ok(Fit::Whole),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Fit::Short),
            found => found.map_err(|e| Error::io("reading the journal", e)),
        }
    }
}

/// Returns the user that owns a base.
pub(in crate::layers::db) fn user_of(base: &File) -> Result<u32> {
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
    let failed = Mutex::new(None);
    with_helpers(threads, || {
        if let Err(error) = work() {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::{Disk, dying_after};

    fn owned(life: u128) -> Owned {
        let base = Identity { device: 1, inode: 2, born: 3, file_system: 4 };
        Owned { owner: Owner { pool: 5, life }, boot: 6, base }
    }

    /// A process dies between any two stores of the control page. The next one finds the record
    /// that was there before, or the new one, with its path; after the first record, none or that
    /// one.
    #[test]
    fn a_process_that_dies_while_it_stores_a_record_leaves_the_old_one_or_the_new_one() {
        let file = tempfile::tempfile().unwrap();
        let notes = Notes::create(&Disk::default(), &file, 1 << 20).unwrap();
        let record = |life: u128| (owned(life), Some(PathBuf::from(format!("/a/base/{life}"))));
        let (mut found, mut stores) = (None, Vec::new());
        for life in 1..=4 {
            let (new, path) = record(life);
            let dies =
                |n: &u64| dying_after(*n, || new.store(&notes, path.as_ref().unwrap())).is_none();
            stores.push(
                (0..)
                    .find(|n| {
                        let died = dies(n);
                        let now = Owned::load(&notes);
                        assert!(
                            now == found || now == Some(record(life)),
                            "{life}, after {n} stores"
                        );
                        !died
                    })
                    .unwrap(),
            );
            found = Owned::load(&notes);
            assert!(found == Some(record(life)));
        }
        assert!(stores.iter().all(|stores| *stores > 200), "{stores:?}");
    }
}
