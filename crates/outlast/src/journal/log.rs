//! The log: writes epochs to segments, and deletes the segments that are no longer needed.

use super::bugs::{self, seeded};
use super::epoch::{Attempt, Change, HEADER, KEPT, encode_epoch};
use super::files::{Directory, JournalFile};
use super::segment::{
    Head, Mark, Owner, SECTOR, Survey, check_number, name_of, next_number, number_of_any,
};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Size of a segment in bytes, unless an epoch needs more.
pub const SEGMENT_BYTES: u64 = 32 << 20;

/// Size of the first segment of a life in bytes. It is small, because many pools are opened for
/// only a few changes.
const FIRST_BYTES: u64 = 256 << 10;

/// A segment that is no longer written to.
#[derive(Debug)]
struct Closed {
    name: String,
    /// The last valid epoch in it.
    last: u64,
    bytes: u64,
}

/// The segment that is written to.
struct Open {
    file: Box<dyn JournalFile>,
    number: u64,
    bytes: u64,
    /// Where the next epoch goes. 0 if the segment's header is not written yet.
    at: u64,
    /// The checksum of the last block, or that with which the chain begins. The next block's checksum
    /// covers it.
    chain: u32,
}

impl Open {
    /// Returns the segment's header if the segment continues from this epoch.
    fn head(&self, after: Attempt, mark: Mark) -> [u8; HEADER] {
        Head { spare: false, number: self.number, after, bytes: self.bytes, mark }.encode()
    }

    /// Ends the use of the segment. Its epochs up to `last` are valid, and later ones are void.
    fn close(self, last: u64) -> Closed {
        Closed { name: name_of(self.number), last, bytes: self.bytes }
    }
}

/// A segment that was created ahead of use.
struct Spare {
    file: Box<dyn JournalFile>,
    number: u64,
    bytes: u64,
}

/// Creates segments ahead of use, on another thread than the writer's, because creating one takes as
/// long as writing all of it.
#[derive(Clone)]
pub struct Preparer {
    directory: Arc<dyn Directory>,
    mark: Mark,
    /// The number of the next segment.
    next: Arc<AtomicU64>,
    spare: Arc<Mutex<Option<Spare>>>,
    /// No larger segment than this is tried without need, after the disk was too full for one.
    fits: Arc<AtomicU64>,
}

impl Preparer {
    fn spare(&self) -> MutexGuard<'_, Option<Spare>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a prepared segment is ready for use.
    pub fn has_spare(&self) -> bool {
        self.spare().is_some()
    }

    /// Creates a segment of `bytes`, unless one is ready. Until the segment is used, it names
    /// `durable`, the last durable epoch, so that the loss of that epoch is noticed.
    pub fn prepare(&self, bytes: u64, durable: Attempt) -> io::Result<()> {
        if self.spare().is_some() {
            return Ok(());
        }
        let spare = self.create(bytes, durable)?;
        *self.spare() = Some(spare);
        Ok(())
    }

    fn create(&self, bytes: u64, durable: Attempt) -> io::Result<Spare> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        check_number(number)?;
        let head = Head { spare: true, number, after: durable, bytes, mark: self.mark }.encode();
        let file = self.directory.create(&name_of(number), &head, bytes)?;
        Ok(Spare { file, number, bytes })
    }

    /// Returns the prepared segment, if it has at least `bytes` and its number is above `last`.
    /// Otherwise deletes it and creates another one.
    fn take(
        &self,
        bytes: u64,
        last: Option<u64>,
        segment_bytes: u64,
        durable: Attempt,
    ) -> io::Result<Spare> {
        let spare = self.spare().take();
        if let Some(spare) = spare {
            if spare.bytes >= bytes && last.is_none_or(|last| spare.number > last) {
                return Ok(spare);
            }
            // If this fails, a spare stays until the next life.
            let _ = self.directory.remove(&name_of(spare.number));
        }
        let mut size = segment_bytes.min(self.fits.load(Ordering::Relaxed)).max(bytes);
        loop {
            match self.create(size, durable) {
                // A smaller segment may still fit. A checkpoint needs the epoch, and frees room.
                Err(error) if is_full(&error) && size > bytes => size = (size / 2).max(bytes),
                created => {
                    // Other programs can free room, too, so the next segment may be larger.
                    self.fits.store(2 * size, Ordering::Relaxed);
                    return created;
                }
            }
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Writes epochs.
pub struct Writer {
    directory: Arc<dyn Directory>,
    segment_bytes: u64,
    /// `None` after a failure. The next epoch begins a new segment.
    open: Option<Open>,
    closed: Vec<Closed>,
    preparer: Preparer,
    /// The number of the last segment that was used.
    last: Option<u64>,
    /// The last epoch that is durable.
    durable: Attempt,
    buffer: Vec<u8>,
    /// Files that were deleted, to be closed by a thread that nobody waits for.
    deleted: Vec<Box<dyn JournalFile>>,
}

impl Writer {
    /// Takes over files that were deleted.
    pub fn close_later(&mut self, files: Vec<Box<dyn JournalFile>>) {
        self.deleted = files;
    }

    /// Hands the deleted files to the caller, which closes them.
    pub fn take_deleted(&mut self) -> Vec<Box<dyn JournalFile>> {
        std::mem::take(&mut self.deleted)
    }

    /// Creates a writer of the epochs after `durable`. Once it writes an epoch, anything that other
    /// segments hold after `durable` is void.
    ///
    /// # Errors
    /// `InvalidInput` if a segment continues from an epoch after `durable`, because that epoch was
    /// durable too. So before a caller reports an epoch as durable or uses it for a checkpoint, it
    /// must store the epoch's number where the next process finds it.
    pub fn new(
        directory: Arc<dyn Directory>,
        owner: Owner,
        durable: Attempt,
    ) -> io::Result<Writer> {
        let ours = Survey::in_directory(&*directory, owner)?;
        let known = ours.segments.last().map_or(0, |segment| segment.after.epoch);
        if durable.epoch < known {
            let epoch = durable.epoch;
            let why = format!("last durable epoch {epoch}, but a segment continues from {known}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        // Files that are damaged are deleted by the checkpoint that makes all of them unnecessary.
        let closed_with = |number| Closed { name: name_of(number), last: durable.epoch, bytes: 0 };
        let mut closed: Vec<_> = ours.suspects().map(closed_with).collect();
        for segment in ours.segments {
            let bytes = segment.file.len()?;
            closed.push(Closed { bytes, ..closed_with(segment.number) });
        }
        let next = Arc::new(AtomicU64::new(next_number(&*directory)?));
        let (spare, fits) = (Arc::default(), Arc::new(AtomicU64::new(u64::MAX)));
        let (directory_too, mark) = (Arc::clone(&directory), owner.mark());
        let preparer = Preparer { directory: directory_too, mark, next, spare, fits };
        Ok(Writer {
            preparer,
            last: None,
            directory,
            segment_bytes: SEGMENT_BYTES,
            open: None,
            closed,
            durable,
            buffer: Vec::new(),
            deleted: Vec::new(),
        })
    }

    /// Sets the size of new segments, in bytes.
    #[must_use]
    pub fn segment_bytes(self, bytes: u64) -> Self {
        Writer { segment_bytes: bytes, ..self }
    }

    /// Returns a handle that creates segments ahead of use.
    pub fn preparer(&self) -> Preparer {
        self.preparer.clone()
    }

    /// Returns the usual length of a new segment, in bytes.
    pub fn next_segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Returns whether there is no segment of this life.
    pub fn has_none(&self) -> bool {
        self.closed.is_empty() && self.open.is_none()
    }

    /// Returns the last durable epoch.
    pub fn durable(&self) -> u64 {
        self.durable.epoch
    }

    /// Returns the last durable epoch with its checksum.
    pub fn last_attempt(&self) -> Attempt {
        self.durable
    }

    /// Returns the size of all segments together, in bytes, without the free space of the open one
    /// and without a spare.
    pub fn bytes(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.at);
        self.closed.iter().map(|segment| segment.bytes).sum::<u64>() + open
    }

    /// Makes an empty segment durable, unless this life has a segment already. Every life begins
    /// with one, so if a later opening finds none, the journal has been removed.
    pub fn begin(&mut self) -> io::Result<()> {
        if !self.closed.is_empty() || seeded(&bugs::BEGUN_WITHOUT_SEGMENT) {
            return Ok(());
        }
        self.begin_again()
    }

    /// Makes another empty segment durable. From then on, a journal that does not extend to the last
    /// durable epoch is known to lack it.
    pub fn begin_again(&mut self) -> io::Result<()> {
        let begun = self.try_begin();
        if begun.is_err() {
            self.give_up_segment();
        }
        begun
    }

    fn try_begin(&mut self) -> io::Result<()> {
        self.make_room(0, FIRST_BYTES)?;
        let open = self.open.as_mut().expect("it was just made");
        open.file.write_at(&open.head(self.durable, self.preparer.mark), 0)?;
        open.file.sync()?;
        (open.at, open.chain) = (SECTOR, self.durable.sum);
        Ok(())
    }

    /// Writes an epoch. Once this returns, the epoch is durable.
    ///
    /// After an error, this epoch may or may not survive a power loss. The next call writes an
    /// epoch with the same number, so its `change` must contain at least the lines of this one.
    pub fn append(&mut self, change: &Change) -> io::Result<()> {
        let written = self.try_append(change);
        if written.is_err() {
            self.give_up_segment();
        }
        written
    }

    /// Ends the use of the open segment after an error. Nothing more is written to it. So whatever a
    /// segment holds after an epoch was written when that epoch was durable, and a rebuild can tell
    /// a damaged epoch from one that was not completed ([`super::segment`]).
    fn give_up_segment(&mut self) {
        if let Some(open) = self.open.take() {
            // A segment without a durable epoch is not needed. If a power loss brings its name
            // back, its header still names the last valid epoch of the segments before it.
            if open.at > 0 || self.directory.remove(&name_of(open.number)).is_err() {
                self.closed.push(open.close(self.durable.epoch));
            }
        }
    }

    fn try_append(&mut self, change: &Change) -> io::Result<()> {
        if seeded(&bugs::LIMIT_REFUSES) && self.closed.len() > 2 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.make_room(change.encoded_bytes(), self.segment_bytes)?;
        let open = self.open.as_mut().expect("there is room in it");
        let (epoch, mark) = (self.durable.epoch + 1, self.preparer.mark);
        self.buffer.clear();
        if open.at == 0 {
            self.buffer.extend_from_slice(&open.head(self.durable, mark));
            self.buffer.resize(SECTOR as usize, 0);
            open.chain = self.durable.sum;
        }
        let chain = encode_epoch(&mut self.buffer, mark, epoch, change, open.chain);
        open.file.write_at(&self.buffer, open.at)?;
        let bytes = self.buffer.len() as u64;
        self.buffer.clear();
        self.buffer.shrink_to(KEPT);
        if !seeded(&bugs::TOLD_BEFORE_SYNC) {
            let synced = open.file.sync();
            if synced.is_err() && seeded(&bugs::SYNC_REPEATED) {
                open.file.sync()?;
            } else {
                synced?;
            }
        }
        open.at = (open.at + bytes).next_multiple_of(SECTOR);
        open.chain = chain;
        self.durable = Attempt { epoch, sum: chain };
        Ok(())
    }

    /// Makes room for an epoch of `bytes`: if it does not fit into the open segment, begins a new
    /// one of `segment_bytes`, or more if the epoch needs it.
    fn make_room(&mut self, bytes: u64, segment_bytes: u64) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|open| open.at + bytes <= open.bytes) {
            return Ok(());
        }
        self.close_segment();
        if let Some(unused) = self.open.take() {
            // If this fails, a spare stays until the next life.
            let _ = self.directory.remove(&name_of(unused.number));
        }
        let made = self.preparer.take(SECTOR + bytes, self.last, segment_bytes, self.durable)?;
        self.last = Some(made.number);
        let Spare { file, number, bytes } = made;
        self.open = Some(Open { file, number, bytes, at: 0, chain: 0 });
        Ok(())
    }

    /// Ends the use of the open segment, if anything is in it. The next epoch goes to a new one.
    pub fn close_segment(&mut self) {
        if let Some(open) = self.open.take_if(|open| open.at > 0) {
            self.closed.push(open.close(self.durable.epoch));
        }
    }

    /// Makes the deletion of earlier lives' segments durable. Before a life ends, this is
    /// necessary: afterwards, any segment of another life counts as one of a later life.
    pub fn sync_deletions(&self) -> io::Result<()> {
        if seeded(&bugs::DELETIONS_UNSYNCED) { Ok(()) } else { self.directory.sync() }
    }

    /// Deletes all segments, including unfinished ones.
    pub fn delete_all(&mut self) -> io::Result<()> {
        self.open = None;
        self.closed.clear();
        for name in self.directory.names()? {
            if number_of_any(&name).is_some() {
                self.directory.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Deletes the segments that hold no epoch after `checkpoint`, but never the last one. The
    /// files are closed later, because closing one frees its space, which can take 20 ms.
    pub fn forget(&mut self, checkpoint: u64) -> io::Result<()> {
        let mut result = Ok(());
        let is_last_open = self.open.as_ref().is_some_and(|open| open.at > 0);
        let mut left = self.closed.len() - usize::from(!is_last_open && !self.closed.is_empty());
        self.closed.retain(|segment| {
            let is_last = left == 0;
            left = left.saturating_sub(1);
            if segment.last > checkpoint || is_last {
                return true;
            }
            let file = self.directory.open(&segment.name);
            match self.directory.remove(&segment.name) {
                Ok(()) => {
                    self.deleted.extend(file);
                    false
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => false,
                Err(e) => {
                    result = Err(e);
                    true
                }
            }
        });
        result
    }
}
