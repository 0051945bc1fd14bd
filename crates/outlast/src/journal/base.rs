//! The base: a copy of the pool on the disk. Checkpoints bring it up to date. After a power loss, a
//! rebuild completes it from the journal.

use super::bugs::{self, seeded};
use super::epoch::{Attempt, Change, LINE};
use super::epochs::Epochs;
use super::files::{Directory, JournalFile};
use super::meta::{self, META_OFFSETS, Meta};
use super::segment::Damage;
use crate::pmem::MappingError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The unit in which a checkpoint copies the pool, in bytes.
pub const PAGE: usize = 4096;
/// The most bytes of adjacent pages that are written with one call.
const WRITE: usize = 1 << 20;

/// The base's file, with the [`Meta`] in it.
pub struct Base {
    file: Box<dyn JournalFile>,
    /// The content of `meta` on the disk, and its sequence number.
    meta: Mutex<(u64, Meta)>,
    /// The number of failed syncs. The kernel reports an error only once, to the thread that syncs
    /// first, so others have to learn of it here.
    failures: AtomicU64,
    /// Held while the file is made longer.
    extending: Mutex<()>,
}

impl Base {
    /// Turns a file that holds a pool into the base of a journal, durably.
    pub fn create(file: Box<dyn JournalFile>, meta: Meta) -> io::Result<Base> {
        // A copy of `meta` that an earlier journal has left there must not look newer.
        let sequence = meta::read(&*file)?.0.map_or(0, |(sequence, _)| sequence);
        let (meta_now, failures) = (Mutex::new((sequence, meta)), AtomicU64::new(0));
        let base = Base { file, meta: meta_now, failures, extending: Mutex::default() };
        base.replace(|_| ())?;
        Ok(base)
    }

    /// Opens a base: reads the newer intact copy of `meta`, and makes it durable. If neither copy
    /// is intact, the file is not a base and is returned unchanged.
    pub fn open(file: Box<dyn JournalFile>) -> io::Result<Result<Base, Box<dyn JournalFile>>> {
        let (Some((sequence, meta)), whole) = meta::read(&*file)? else { return Ok(Err(file)) };
        let base = Base {
            file,
            meta: Mutex::new((sequence, meta)),
            failures: AtomicU64::new(0),
            extending: Mutex::default(),
        };
        if whole == 2 {
            // The newer copy may not have reached the disk, and the kernel reported that error only
            // to the process that has died. The next update overwrites the other copy, so this one
            // must be written again first. (If the other copy is not intact, it was being written,
            // so this one was durable by then.)
            meta::write(&*base.file, sequence, &meta)?;
            base.sync()?;
        }
        Ok(Ok(base))
    }

    /// Returns the newer intact copy of the `meta` in a file. Writes nothing.
    pub fn peek(file: &dyn JournalFile) -> io::Result<Option<Meta>> {
        Ok(meta::read(file)?.0.map(|(_, meta)| meta))
    }

    /// Removes `meta` from a file, durably, so that it is no longer a base. What remains is a pool,
    /// as complete as the base was.
    pub fn leave(file: &dyn JournalFile) -> io::Result<()> {
        meta::wipe(file)?;
        file.sync()
    }

    /// Notes in the base which directory holds the current life's working file; see
    /// [`place`](Self::place).
    ///
    /// The note shares its page with one copy of `meta`. So call this only after
    /// [`replace`](Self::replace), when both copies have the same content. This syncs before it
    /// returns, so that the page with the note is never being written at the same time as the other
    /// copy.
    pub fn note_place(&self, place: &Path) -> io::Result<()> {
        let life = self.meta().life;
        if meta::read_place(&*self.file, life)?.as_deref() == Some(place) {
            return Ok(());
        }
        meta::write_place(&*self.file, life, place)?;
        self.sync()
    }

    /// Returns the directory of this life's working file, if the base names it. Writes nothing.
    pub fn place(file: &dyn JournalFile, life: u128) -> io::Result<Option<PathBuf>> {
        meta::read_place(file, life)
    }

    /// Returns the file.
    pub fn file(&self) -> &dyn JournalFile {
        &*self.file
    }

    fn locked(&self) -> MutexGuard<'_, (u64, Meta)> {
        self.meta.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the content of `meta` on the disk.
    pub fn meta(&self) -> Meta {
        self.locked().1
    }

    /// Like [`update`](Self::update), but in both copies. Afterwards neither copy has the old
    /// content, so segments that only the old content needs can be deleted.
    pub fn replace(&self, change: impl FnOnce(&mut Meta)) -> io::Result<()> {
        self.update(change)?;
        self.update(|_| ())
    }

    /// Durably changes `meta`. After a crash during the change, or damage to one copy, the disk has
    /// either the old content or the new. If this fails, [`meta`](Self::meta) returns the old
    /// content, although the disk may have the new.
    pub fn update(&self, change: impl FnOnce(&mut Meta)) -> io::Result<()> {
        let mut known = self.locked();
        let (mut sequence, mut meta) = *known;
        change(&mut meta);
        // The copy with the present sequence number is on the disk, so this overwrites the other one.
        // After an error, the next update overwrites that same copy again.
        sequence += 1;
        meta::write(&*self.file, sequence, &meta)?;
        self.sync()?;
        *known = (sequence, meta);
        Ok(())
    }

    /// Makes the file at least `len` bytes long, durably.
    pub fn extend(&self, len: u64) -> Result<(), MappingError> {
        let _extending = self.extending();
        let extended = self.file.extend(len);
        if matches!(extended, Err(MappingError::WriteBack(_))) {
            self.failures.fetch_add(1, Ordering::SeqCst);
        }
        extended
    }

    fn extending(&self) -> MutexGuard<'_, ()> {
        self.extending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes everything written durable.
    fn sync(&self) -> io::Result<()> {
        let synced = self.file.sync();
        if synced.is_err() {
            self.failures.fetch_add(1, Ordering::SeqCst);
        }
        synced
    }
}

/// The pages that have changed since the last checkpoint began.
#[derive(Debug, Default)]
pub struct Pages {
    /// A bit for each page.
    changed: Vec<u64>,
    count: usize,
    /// The last epoch that was added.
    epoch: u64,
}

impl Pages {
    /// Returns the empty set, as of the end of `epoch`.
    pub fn none(epoch: u64) -> Pages {
        Pages { epoch, ..Pages::default() }
    }

    /// Returns the set of all `count` pages, as of the end of `epoch`. It is used when it is no
    /// longer known which pages have changed.
    pub fn all(count: u64, epoch: u64) -> Pages {
        let mut pages = Pages::none(epoch);
        (0..count).for_each(|page| pages.insert(page));
        pages
    }

    fn insert(&mut self, page: u64) {
        // These pages hold `meta`. They are not part of the pool.
        if META_OFFSETS.contains(&(page * PAGE as u64)) {
            return;
        }
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        if word >= self.changed.len() {
            self.changed.resize((word + 1).next_power_of_two(), 0);
        }
        self.count += usize::from(self.changed[word] & bit == 0);
        self.changed[word] |= bit;
    }

    /// Adds the pages of the lines that changed in a durable epoch.
    pub fn add(&mut self, epoch: u64, change: &Change) {
        let lines_of_page = (PAGE / LINE) as u64;
        for (run, _) in change.runs() {
            let pages = run.start / lines_of_page..run.end.div_ceil(lines_of_page);
            pages.for_each(|page| self.insert(page));
        }
        self.epoch = epoch;
    }

    /// Removes and returns the first page in the set whose number is at least `from`.
    fn take_from(&mut self, from: u64) -> Option<u64> {
        let mut at = (from / 64) as usize;
        let mut word = self.changed.get(at)? & (u64::MAX << (from % 64));
        while word == 0 {
            at += 1;
            word = *self.changed.get(at)?;
        }
        let bit = u64::from(word.trailing_zeros());
        self.changed[at] &= !(1 << bit);
        self.count -= 1;
        Some(at as u64 * 64 + bit)
    }

    /// Returns the number of pages in the set.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// A checkpoint under way. It goes in rounds of three steps:
///
/// 1. [`copy`](Self::copy) copies some pages of the pool, while operations go on;
/// 2. the caller makes a cut, and waits until the epoch that it ends is durable;
/// 3. [`write`](Self::write) writes the copies to the base.
///
/// A copied page can hold half of an operation's stores. After step 2, the journal holds all lines
/// that the operation changed. After an error, [`abandon`](Self::abandon) gives the pages back.
#[must_use = "its pages are lost if it is neither finished nor abandoned"]
pub struct Checkpoint {
    /// Once the checkpoint is complete, the base needs only the epochs after this one.
    epoch: u64,
    left: Pages,
    /// The next page to look at.
    next: u64,
    /// The numbers of the pages that were copied and are not written yet.
    copied: Vec<u64>,
    /// Their content.
    copies: Vec<u8>,
    written: Vec<u64>,
    /// The number of failed syncs of the base when the checkpoint began.
    failures: u64,
}

impl Checkpoint {
    /// Begins a checkpoint of all pages in the set, and empties the set.
    pub fn begin(pages: &mut Pages, base: &Base) -> Checkpoint {
        let epoch = pages.epoch;
        Checkpoint {
            epoch,
            left: std::mem::replace(pages, Pages::none(epoch)),
            next: 0,
            copied: Vec::new(),
            copies: Vec::new(),
            written: Vec::new(),
            failures: base.failures.load(Ordering::SeqCst),
        }
    }

    /// Returns how many pages are left to copy.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// Copies up to `count` pages. `read` receives the number of a page of the pool and fills in its
    /// content, loading words atomically. Returns whether there are any copies to write.
    pub fn copy(&mut self, count: usize, mut read: impl FnMut(u64, &mut [u8])) -> bool {
        while self.copied.len() < count
            && let Some(page) = self.left.take_from(self.next)
        {
            self.next = page + 1;
            let at = self.copies.len();
            self.copies.resize(at + PAGE, 0);
            read(page, &mut self.copies[at..]);
            self.copied.push(page);
        }
        !self.copied.is_empty()
    }

    /// Writes the copies to the base. `durable` is the last durable epoch after step 2. Returns the
    /// number of bytes written.
    pub fn write(&mut self, durable: Attempt, base: &Base) -> io::Result<u64> {
        if base.meta().reached < durable.epoch && !seeded(&bugs::REACHED_UNTOLD) {
            base.update(|meta| meta.reach(durable))?;
        }
        let mut at = 0;
        while at < self.copied.len() {
            let first = self.copied[at];
            let adjacent = |(n, &page): (usize, &u64)| page == first + n as u64;
            let rest = self.copied[at..].iter().enumerate();
            let count = rest.take(WRITE / PAGE).take_while(|&it| adjacent(it)).count();
            let bytes = &self.copies[at * PAGE..(at + count) * PAGE];
            base.file.write_at(bytes, first * PAGE as u64)?;
            at += count;
        }
        self.written.append(&mut self.copied);
        let bytes = self.copies.len() as u64;
        self.copies.clear();
        Ok(bytes)
    }

    /// Returns the epoch up to which the base needs no segments once the checkpoint is complete.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Completes the checkpoint: makes the base durable, and then records that in `meta`. `closed`
    /// means that the life ends here, because there is no later epoch. Returns the epoch up to
    /// which segments are no longer needed; see [`Writer::forget`](super::log::Writer::forget).
    ///
    /// # Panics
    /// If a page has not been written.
    pub fn finish(&self, base: &Base, closed: bool) -> io::Result<u64> {
        assert!(self.left.is_empty() && self.copied.is_empty(), "all pages are written");
        unless_seeded!(bugs::BASE_UNSYNCED => base.sync()?);
        // An extension may be in progress. If it fails, it counts its failed sync, and takes its
        // length back, before it ends.
        let extending = base.extending();
        if base.failures.load(Ordering::SeqCst) != self.failures {
            // Another thread's sync failed meanwhile. The kernel reported the error there, and may
            // have dropped one of this checkpoint's pages.
            return Err(io::Error::other("the base could not be synced"));
        }
        let size = base.file.len()?;
        drop(extending);
        base.replace(|meta| {
            (meta.checkpoint, meta.size, meta.closed) = (self.epoch, size, closed);
        })?;
        Ok(self.epoch)
    }

    /// Abandons the checkpoint after an error, and puts all its pages back into the set, even those
    /// that were written: if the base could not be synced, the kernel may have dropped any of them.
    pub fn abandon(mut self, pages: &mut Pages) {
        seed!(bugs::PAGES_DROPPED => return);
        while let Some(page) = self.left.take_from(0) {
            pages.insert(page);
        }
        self.copied.into_iter().chain(self.written).for_each(|page| pages.insert(page));
    }
}

/// The result of a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuilt {
    /// The base is the pool at the end of this epoch.
    Whole {
        /// The epoch.
        epoch: u64,
        /// Epochs that were applied.
        applied: u64,
    },
    /// Epochs that were durable are missing. The base was not changed.
    Missing {
        /// The last epoch found.
        found: u64,
        /// The last one that must be there.
        needed: u64,
    },
    /// There is no segment of this life. The base was not changed.
    Gone,
    /// A file of the journal is not as a crash leaves it. The base was not changed.
    Damaged(Damage),
    /// The base is shorter than it was, so it is not the base of this journal.
    Short {
        /// Its size in bytes.
        found: u64,
        /// The size that it had.
        needed: u64,
    },
}

/// Completes the base with the epochs of the journal. If a crash cuts this short, the next opening
/// repeats it. `progress` receives the number of epochs that have been applied, and the number of
/// all epochs to apply.
///
/// The page cache may hold pages of the base that could not be written to the disk, which the
/// kernel reported only to the dead process. On the disk, such a page lacks only lines that the
/// epochs hold, and the rebuild writes those lines again.
pub fn complete(
    directory: &dyn Directory,
    base: &Base,
    progress: impl FnMut(u64, u64),
) -> io::Result<Rebuilt> {
    let known = base.meta();
    let bytes = base.file.len()?;
    if bytes < known.size && !seeded(&bugs::SIZE_IGNORED) {
        return Ok(Rebuilt::Short { found: bytes, needed: known.size });
    }
    complete_with(&Epochs::find(directory, known)?, base, progress)
}

/// Like [`complete`], with epochs that were found already.
pub(super) fn complete_with(
    epochs: &Epochs,
    base: &Base,
    mut progress: impl FnMut(u64, u64),
) -> io::Result<Rebuilt> {
    let known = base.meta();
    let bytes = base.file.len()?;
    if epochs.is_gone() {
        return Ok(Rebuilt::Gone);
    }
    if let Some(damage) = epochs.damage() {
        return Ok(Rebuilt::Damaged(damage));
    }
    let (found, needed) = (epochs.last().epoch, epochs.least());
    if found < needed && !seeded(&bugs::MISSING_IGNORED) {
        return Ok(Rebuilt::Missing { found, needed });
    }
    if known.reached < found {
        // From here on, the base may hold lines of all of these epochs.
        base.update(|meta| meta.reach(epochs.last()))?;
    }
    let (mut applied, all) = (0, found - known.checkpoint);
    epochs.apply(|change| {
        change.runs().try_for_each(|(run, images)| {
            let offset = run.start.checked_mul(LINE as u64).filter(|offset| {
                offset.checked_add(images.len() as u64).is_some_and(|end| end <= bytes)
            });
            let outside = || io::Error::new(io::ErrorKind::InvalidData, "a line outside the base");
            base.file.write_at(images, offset.ok_or_else(outside)?)
        })?;
        applied += 1;
        progress(applied, all);
        Ok(())
    })?;
    base.sync()?;
    Ok(Rebuilt::Whole { epoch: found, applied })
}
