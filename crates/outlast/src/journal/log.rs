//! Segments: the lines that changed, epoch by epoch.
//!
//! ```text
//!  segment   [ header: 64 bytes | zeros | epoch | zeros | epoch | ... | zeros ]
//!  epoch     [ block | block | ... ]       at a multiple of 4,096 bytes
//!  block     [ header: 64 bytes | runs: 8 bytes each | lines: 64 bytes each ]
//!  run       [ first line (48) | number of lines - 1 (16) ]
//! ```
//!
//! All numbers are little-endian. A block's checksum covers its header, its payload and the checksum
//! of the block before it, or of the segment's header. So a block that is left over from anything
//! else is never taken for the continuation of a segment.
//!
//! An epoch shares no sector with the one before it. So a device that tears the sector that it is
//! writing damages no durable epoch.

use super::bugs::{self, seeded};
use super::files::{Directory, JournalFile, UNFINISHED};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a line.
pub const LINE: usize = 64;
/// Bytes of the headers of segments and blocks.
pub(super) const HEADER: usize = 64;
/// Epochs begin at multiples of this many bytes: no sector of a disk is larger.
const SECTOR: u64 = 4096;
/// How many lines ahead to prefetch while lines are copied.
const SOON: usize = 24;
/// Lines of a block, at most.
const BLOCK_LINES: u64 = 1 << 14;
/// Memory for lines that is kept from one epoch to the next, in bytes.
const KEPT: usize = 32 << 20;
/// Bytes of a segment, unless an epoch needs more.
pub const SEGMENT_BYTES: u64 = 32 << 20;

/// Bytes of the first segment of a life. It is small, because many pools are opened for only a few
/// changes.
const FIRST_BYTES: u64 = 256 << 10;

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"OLJSEGM1");
const BLOCK_MAGIC: u64 = u64::from_le_bytes(*b"OLJBLOK1");

/// The names of segments begin with this. The number follows, in hexadecimal.
const PREFIX: &str = "segment-";

/// Whose journal this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The pool's id.
    pub pool: u128,
    /// The id of the life that writes it.
    pub life: u128,
}

/// The lines that changed in an epoch, with their content at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Runs of lines, ascending.
    runs: Vec<Range<u64>>,
    /// The content of their lines, one after the other.
    images: Vec<u8>,
}

impl Change {
    /// Adds a run of lines. [`fill`](Self::fill) fills in their content later.
    pub fn announce(&mut self, lines: Range<u64>) {
        self.runs.push(lines);
    }

    /// Fills in the content of all announced lines. Calls `read` for each line, with its number, the
    /// buffer for its content, and the number of a line to prefetch.
    pub fn fill(&mut self, mut read: impl FnMut(u64, &mut [u8; LINE], u64)) {
        let lines = |runs: &[Range<u64>]| runs.iter().map(|run| run.end - run.start).sum::<u64>();
        self.images.resize(lines(&self.runs) as usize * LINE, 0);
        let (images, _) = self.images.as_chunks_mut::<LINE>();
        let numbers = self.runs.iter().cloned().flatten();
        let mut soon = self.runs.iter().cloned().flatten().skip(SOON);
        for (line, image) in numbers.zip(images) {
            read(line, image, soon.next().unwrap_or(line));
        }
    }

    /// Adds a run of lines. `images` holds their content.
    ///
    /// # Panics
    /// If `images` does not have the length of `lines`.
    pub fn push(&mut self, lines: Range<u64>, images: &[u8]) {
        assert_eq!(images.len() as u64, (lines.end - lines.start) * LINE as u64);
        self.runs.push(lines);
        self.images.extend_from_slice(images);
    }

    /// Yields the runs, each with the content of its lines.
    pub fn runs(&self) -> impl Iterator<Item = (Range<u64>, &[u8])> {
        let mut at = 0;
        self.runs.iter().map(move |run| {
            let bytes = (run.end - run.start) as usize * LINE;
            at += bytes;
            (run.clone(), &self.images[at - bytes..at])
        })
    }

    /// Returns the number of lines.
    pub fn lines(&self) -> u64 {
        (self.images.len() / LINE) as u64
    }

    /// Returns whether it has no line.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Removes all runs, but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.images.clear();
        self.images.shrink_to(KEPT);
    }

    /// Returns the number of bytes that it takes in a segment.
    fn encoded_bytes(&self) -> u64 {
        let blocks = self.blocks();
        let runs: usize = blocks.iter().map(Vec::len).sum();
        (HEADER * blocks.len() + runs * 8 + self.images.len()) as u64
    }

    /// Divides it into blocks.
    fn blocks(&self) -> Vec<Vec<(Range<u64>, &[u8])>> {
        let mut blocks = vec![Vec::new()];
        let mut room = BLOCK_LINES;
        for (mut run, mut images) in self.runs() {
            while !run.is_empty() {
                if room == 0 {
                    blocks.push(Vec::new());
                    room = BLOCK_LINES;
                }
                let lines = (run.end - run.start).min(room);
                let (head, tail) = images.split_at(lines as usize * LINE);
                let block = blocks.last_mut().expect("there is one");
                block.push((run.start..run.start + lines, head));
                (run.start, images, room) = (run.start + lines, tail, room - lines);
            }
        }
        blocks
    }
}

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
    name: String,
    bytes: u64,
    /// Where the next epoch goes. 0 if the segment's header is not written yet.
    at: u64,
    /// The checksum of the last block, or of the header, which the next block's checksum covers.
    chain: u32,
}

impl Open {
    /// Ends the use of the segment. Its epochs up to `last` are valid, and later ones are void.
    fn close(self, last: u64) -> Closed {
        Closed { name: self.name, last, bytes: self.bytes }
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
    /// The number of the next segment.
    next: Arc<AtomicU64>,
    spare: Arc<Mutex<Option<Spare>>>,
}

impl Preparer {
    fn spare(&self) -> MutexGuard<'_, Option<Spare>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether there is a segment for the time when the open one is full.
    pub fn has_spare(&self) -> bool {
        self.spare().is_some()
    }

    /// Creates a segment of `bytes`, unless one is ready.
    pub fn prepare(&self, bytes: u64) -> io::Result<()> {
        if self.spare().is_some() {
            return Ok(());
        }
        let spare = self.create(bytes)?;
        *self.spare() = Some(spare);
        Ok(())
    }

    fn create(&self, bytes: u64) -> io::Result<Spare> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(Spare { file: self.directory.create(&name_of(number), bytes)?, number, bytes })
    }

    /// Returns the prepared segment, if it has at least `bytes` and its number is above `last`.
    /// Otherwise deletes it and creates another one.
    fn take(&self, bytes: u64, last: Option<u64>, segment_bytes: u64) -> io::Result<Spare> {
        let spare = self.spare().take();
        if let Some(spare) = spare {
            if spare.bytes >= bytes && last.is_none_or(|last| spare.number > last) {
                return Ok(spare);
            }
            // If this fails, a file without a header stays until the next life.
            let _ = self.directory.remove(&name_of(spare.number));
        }
        self.create(segment_bytes.max(bytes))
    }
}

/// Writes epochs.
pub struct Writer {
    directory: Arc<dyn Directory>,
    owner: Owner,
    segment_bytes: u64,
    /// `None` after a failure. The next epoch begins a new segment.
    open: Option<Open>,
    closed: Vec<Closed>,
    preparer: Preparer,
    /// The number of the last segment that was used.
    last: Option<u64>,
    /// The last epoch that is durable.
    durable: u64,
    buffer: Vec<u8>,
}

impl Writer {
    /// Creates a writer of the epochs after `durable`. The first epoch that it writes makes void
    /// whatever other segments hold after `durable`.
    ///
    /// # Errors
    /// Also if a segment continues from an epoch after `durable`: that epoch was durable. So a caller
    /// must store the number of a durable epoch, where the next process finds it, before it reports
    /// the epoch as durable or uses it for a checkpoint.
    pub fn new(directory: Arc<dyn Directory>, owner: Owner, durable: u64) -> io::Result<Writer> {
        let ours = segments(&*directory, owner)?;
        let known = ours.last().map_or(0, |segment| segment.after);
        if durable < known {
            let why = format!("last durable epoch {durable}, but a segment continues from {known}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut closed = Vec::new();
        for segment in ours {
            let bytes = segment.file.len()?;
            closed.push(Closed { name: name_of(segment.number), last: durable, bytes });
        }
        let next = Arc::new(AtomicU64::new(next_number(&*directory)?));
        let preparer = Preparer { directory: Arc::clone(&directory), next, spare: Arc::default() };
        Ok(Writer {
            preparer,
            last: None,
            directory,
            owner,
            segment_bytes: SEGMENT_BYTES,
            open: None,
            closed,
            durable,
            buffer: Vec::new(),
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
        self.durable
    }

    /// Returns the bytes of all segments, without the free space of the open one.
    pub fn bytes(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.at);
        self.closed.iter().map(|segment| segment.bytes).sum::<u64>() + open
    }

    /// Makes an empty segment durable, unless this life has a segment already. Every life begins with
    /// one, so if an opener later finds none, the journal has been taken away.
    pub fn begin(&mut self) -> io::Result<()> {
        if !self.closed.is_empty() || seeded(&bugs::BEGUN_WITHOUT_SEGMENT) {
            return Ok(());
        }
        let begun = self.try_begin();
        if begun.is_err() {
            self.give_up_segment();
        }
        begun
    }

    fn try_begin(&mut self) -> io::Result<()> {
        self.make_room(0, FIRST_BYTES)?;
        let open = self.open.as_mut().expect("it was just made");
        let number = number_of(&open.name).expect("its name has one");
        let head = encode_segment(self.owner, number, self.durable);
        open.file.write_at(&head, 0)?;
        open.file.sync()?;
        (open.at, open.chain) = (SECTOR, checksum_in(&head));
        Ok(())
    }

    /// Writes an epoch. Once this returns, the epoch is durable.
    ///
    /// After an error, the epoch may or may not survive a power loss. The next call must write the
    /// same epoch again, with at least these lines.
    pub fn append(&mut self, change: &Change) -> io::Result<()> {
        let written = self.try_append(change);
        if written.is_err() {
            self.give_up_segment();
        }
        written
    }

    /// Ends the use of the open segment after an error.
    fn give_up_segment(&mut self) {
        if let Some(open) = self.open.take() {
            // A segment without a durable epoch is not needed. If a power loss brings it back, its
            // header still names the last valid epoch of the segments before it.
            if open.at > 0 || self.directory.remove(&open.name).is_err() {
                self.closed.push(open.close(self.durable));
            }
        }
    }

    fn try_append(&mut self, change: &Change) -> io::Result<()> {
        if seeded(&bugs::LIMIT_REFUSES) && self.closed.len() > 2 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.make_room(change.encoded_bytes(), self.segment_bytes)?;
        let open = self.open.as_mut().expect("there is room in it");
        let epoch = self.durable + 1;
        self.buffer.clear();
        let mut chain = open.chain;
        if open.at == 0 {
            let number = number_of(&open.name).expect("its name has one");
            let head = encode_segment(self.owner, number, self.durable);
            self.buffer.extend_from_slice(&head);
            self.buffer.resize(SECTOR as usize, 0);
            chain = checksum_in(&head);
        }
        chain = encode_epoch(&mut self.buffer, epoch, change, chain);
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
        self.durable = epoch;
        Ok(())
    }

    /// Makes room for an epoch of `bytes`: unless it fits the open segment, begins a new one, of
    /// `segment_bytes` if that is enough.
    fn make_room(&mut self, bytes: u64, segment_bytes: u64) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|open| open.at + bytes <= open.bytes) {
            return Ok(());
        }
        self.close_segment();
        if let Some(unused) = self.open.take() {
            // If this fails, a file without a header stays until the next life.
            let _ = self.directory.remove(&unused.name);
        }
        let made = self.preparer.take(SECTOR + bytes, self.last, segment_bytes)?;
        self.last = Some(made.number);
        let (file, name) = (made.file, name_of(made.number));
        self.open = Some(Open { file, name, bytes: made.bytes, at: 0, chain: 0 });
        Ok(())
    }

    /// Ends the use of the open segment, if anything is in it. The next epoch goes to a new one.
    pub fn close_segment(&mut self) {
        if let Some(open) = self.open.take_if(|open| open.at > 0) {
            self.closed.push(open.close(self.durable));
        }
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

    /// Deletes the segments that hold no epoch after `checkpoint`, but never the last one.
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
            match self.directory.remove(&segment.name) {
                Ok(()) => false,
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

/// Counts the segments in a directory, and their bytes. Another process may be deleting some.
pub fn bytes_in(directory: &dyn Directory) -> io::Result<(usize, u64)> {
    let (mut count, mut bytes) = (0, 0);
    for name in directory.names()? {
        if number_of(&name).is_some()
            && let Ok(file) = directory.open(&name)
        {
            count += 1;
            bytes += file.len()?;
        }
    }
    Ok((count, bytes))
}

/// Returns the number in the name of a segment, or of a file that was to become one.
fn number_of_any(name: &str) -> Option<u64> {
    number_of(name.strip_suffix(UNFINISHED).unwrap_or(name))
}

/// Lists the segments of any owner: name, owner, and whether the segment certainly holds no epoch.
fn all_segments(directory: &dyn Directory) -> io::Result<Vec<(String, Owner, bool)>> {
    let mut found = Vec::new();
    for name in directory.names()? {
        if number_of(&name).is_some() {
            let file = directory.open(&name)?;
            let mut head = [0; HEADER];
            let whole = file.read_at(&mut head, 0)? == HEADER;
            let owner = owner_in(&head);
            if let Some((number, after)) = decode_segment(&head, owner).filter(|_| whole) {
                let chain = checksum_in(&head);
                let segment = Found { number, after, chain, file };
                let first = Reader::new(&segment).next(after.saturating_add(1))?;
                found.push((name, owner, after == 0 && first.is_none()));
            }
        }
    }
    Ok(found)
}

/// Returns whether a directory has a segment that must not be deleted for the journal of `pool`: one of
/// another pool, or, for a pool that has no journal yet (`is_new`), one with epochs. Copies of a pool
/// have the same id.
pub fn has_others(directory: &dyn Directory, pool: u128, is_new: bool) -> io::Result<bool> {
    let is_other =
        |(_, owner, is_empty): &(String, Owner, bool)| owner.pool != pool || (is_new && !is_empty);
    Ok(all_segments(directory)?.iter().any(is_other))
}

/// Deletes the segments of a pool, for which nobody needs them.
pub fn remove_all_of(directory: &dyn Directory, pool: u128) -> io::Result<()> {
    let all = all_segments(directory)?;
    let mut ours = all.iter().filter(|(_, owner, _)| owner.pool == pool);
    ours.try_for_each(|(name, _, _)| directory.remove(name))
}

/// Deletes the segments of all other owners, and those that were never begun. `meta` must name this
/// owner already, durably.
pub fn remove_others(directory: &dyn Directory, owner: Owner) -> io::Result<()> {
    let ours = segments(directory, owner)?;
    for name in directory.names()? {
        let is_ours = ours.iter().any(|segment| name_of(segment.number) == name);
        if number_of_any(&name).is_some() && !is_ours {
            directory.remove(&name)?;
        }
    }
    Ok(())
}

/// A segment that was found.
struct Found {
    number: u64,
    /// The epoch from which it continues.
    after: u64,
    chain: u32,
    file: Box<dyn JournalFile>,
}

impl Found {
    /// Reads the header of segment `number`. Returns `None` if it is not whole, or another owner's.
    fn read(number: u64, file: Box<dyn JournalFile>, owner: Owner) -> io::Result<Option<Found>> {
        let mut head = [0; HEADER];
        let whole = file.read_at(&mut head, 0)? == HEADER;
        let owner = if seeded(&bugs::LIFE_IGNORED) { owner_in(&head) } else { owner };
        Ok(match decode_segment(&head, owner) {
            Some((named, after)) if whole && named == number => {
                Some(Found { number, after, chain: checksum_in(&head), file })
            }
            _ => None,
        })
    }
}

/// Lists the segments of an owner, in the order of their numbers.
fn segments(directory: &dyn Directory, owner: Owner) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for name in directory.names()? {
        let Some(number) = number_of(&name) else { continue };
        found.extend(Found::read(number, directory.open(&name)?, owner)?);
    }
    found.sort_by_key(|segment| segment.number);
    Ok(found)
}

/// Returns the number of the next segment: one above all in the directory.
fn next_number(directory: &dyn Directory) -> io::Result<u64> {
    let numbers = directory.names()?.into_iter().filter_map(|name| number_of(&name));
    Ok(numbers.max().map_or(0, |last| last + 1))
}

/// Returns the name of segment `number`.
pub(super) fn name_of(number: u64) -> String {
    format!("{PREFIX}{number:016x}")
}

/// Returns the number of the segment of this name, or `None` if it is not the name of a segment.
pub(super) fn number_of(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix(PREFIX)?, 16).ok()?;
    (name_of(number) == name && number < u64::MAX).then_some(number)
}

/// The epochs in the segments of a journal.
pub struct Epochs {
    found: Vec<Found>,
    checkpoint: u64,
    last: u64,
}

impl Epochs {
    /// Finds the epochs after `checkpoint`, and makes them durable.
    ///
    /// Some may be in the page cache only: the dead process did not sync them, or the disk refused
    /// them and only that process was told. Such epochs can only be in the last segment. So its epochs
    /// are copied to a new segment.
    pub fn find(directory: &dyn Directory, owner: Owner, checkpoint: u64) -> io::Result<Epochs> {
        let mut epochs =
            Epochs { found: segments(directory, owner)?, checkpoint, last: checkpoint };
        if let Some(segment) = epochs.found.last() {
            let (mut changes, mut reader) = (Vec::new(), Reader::new(segment));
            for epoch in segment.after.saturating_add(1).. {
                let Some(change) = reader.next(epoch)? else { break };
                changes.push(change);
            }
            if !changes.is_empty() {
                write_segment(directory, owner, next_number(directory)?, segment.after, &changes)?;
                epochs.found = segments(directory, owner)?;
            }
        }
        epochs.last = epochs.visit(u64::MAX, |_| Ok(()))?;
        Ok(epochs)
    }

    /// Finds the epochs after `checkpoint` that are in these segments now, in the order of their
    /// numbers. Writes nothing. Another process may add epochs meanwhile, which are not found.
    pub(super) fn in_files(
        files: impl IntoIterator<Item = (u64, Box<dyn JournalFile>)>,
        owner: Owner,
        checkpoint: u64,
    ) -> io::Result<Epochs> {
        let read = |(number, file)| Found::read(number, file, owner).transpose();
        let found = files.into_iter().filter_map(read).collect::<io::Result<_>>()?;
        let mut epochs = Epochs { found, checkpoint, last: checkpoint };
        epochs.last = epochs.visit(u64::MAX, |_| Ok(()))?;
        Ok(epochs)
    }

    /// Returns whether there is no segment.
    pub fn is_gone(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the last epoch, or the checkpoint if there is none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the epoch from which the last segment continues, which was therefore durable.
    pub fn known(&self) -> u64 {
        self.found.last().map_or(0, |segment| segment.after)
    }

    /// Calls `apply` with each epoch, in order.
    pub fn apply(&self, mut apply: impl FnMut(&Change) -> io::Result<()>) -> io::Result<()> {
        let reached = self.visit(self.last, &mut apply)?;
        if reached == self.last {
            return Ok(());
        }
        let why = format!("epoch {} of {} is not there any more", reached + 1, self.last);
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// Calls `visit` with each epoch up to `last`, in order. Returns the last one that was visited.
    fn visit(
        &self,
        last: u64,
        mut visit: impl FnMut(&Change) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut reached = self.checkpoint;
        for (index, segment) in self.found.iter().enumerate() {
            // This segment's epochs are valid up to the one from which the next segment continues.
            let next = self.found.get(index + 1).filter(|_| !seeded(&bugs::VOID_EPOCHS_COUNT));
            let end = next.map_or(last, |next| next.after.min(last));
            let mut reader = Reader::new(segment);
            for epoch in segment.after.saturating_add(1)..=end {
                let Some(change) = reader.next(epoch)? else { break };
                if epoch == reached + 1 {
                    visit(&change)?;
                    reached = epoch;
                }
            }
        }
        Ok(reached)
    }
}

struct Reader<'s> {
    segment: &'s Found,
    at: u64,
    chain: u32,
}

impl<'s> Reader<'s> {
    fn new(segment: &'s Found) -> Self {
        Reader { segment, at: SECTOR, chain: segment.chain }
    }

    /// Reads `epoch`, which comes next. Returns `None` if it is not there, or not whole.
    fn next(&mut self, epoch: u64) -> io::Result<Option<Change>> {
        let mut change = Change::default();
        for index in 0.. {
            let mut head = [0; HEADER];
            if self.segment.file.read_at(&mut head, self.at)? < HEADER {
                return Ok(None);
            }
            let word = |i: usize| word_of(&head, i);
            let (runs, lines, of) = (word(4), word(5), word(6));
            if word(0) != BLOCK_MAGIC
                || word(1) != epoch
                || word(2) != index
                || word(3) != u64::from(self.chain)
                || lines > BLOCK_LINES
                || runs > lines
                || (of != 0 && of != index + 1)
            {
                return Ok(None);
            }
            let mut payload = vec![0; (runs * 8 + lines * LINE as u64) as usize];
            let start = self.at + HEADER as u64;
            if self.segment.file.read_at(&mut payload, start)? < payload.len() {
                return Ok(None);
            }
            let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..HEADER - 8]), &payload);
            let is_sound = word(7) == u64::from(sum) || seeded(&bugs::CHECKSUM_IGNORED);
            if !is_sound || !take_runs(&payload, runs as usize, lines, &mut change) {
                return Ok(None);
            }
            self.chain = word(7) as u32;
            self.at = start + payload.len() as u64;
            if of != 0 {
                self.at = self.at.next_multiple_of(SECTOR);
                return Ok(Some(change));
            }
        }
        unreachable!("an epoch has fewer blocks than there are numbers")
    }
}

/// Adds a block's runs to a change. Returns whether they have `lines` lines together.
fn take_runs(payload: &[u8], runs: usize, lines: u64, change: &mut Change) -> bool {
    let (heads, images) = payload.split_at(runs * 8);
    let mut total = 0;
    for index in 0..runs {
        let word = word_of(heads, index);
        let count = (word >> 48) + 1;
        let first = word & ((1 << 48) - 1);
        change.runs.push(first..first + count);
        total += count;
    }
    change.images.extend_from_slice(images);
    total == lines
}

fn encode_segment(owner: Owner, number: u64, after: u64) -> [u8; HEADER] {
    let words = [
        SEGMENT_MAGIC,
        number,
        after,
        owner.pool as u64,
        (owner.pool >> 64) as u64,
        owner.life as u64,
        (owner.life >> 64) as u64,
    ];
    sealed(words, &[])
}

/// Returns whose segment it is, if its header is whole.
fn owner_in(head: &[u8; HEADER]) -> Owner {
    let wide = |at| u128::from(word_of(head, at)) | u128::from(word_of(head, at + 1)) << 64;
    Owner { pool: wide(3), life: wide(5) }
}

fn decode_segment(head: &[u8; HEADER], owner: Owner) -> Option<(u64, u64)> {
    let (number, after) = (word_of(head, 1), word_of(head, 2));
    (*head == encode_segment(owner, number, after)).then_some((number, after))
}

/// Writes a whole segment, durably. The header comes last, so the segment does not exist until all of
/// it is durable.
fn write_segment(
    directory: &dyn Directory,
    owner: Owner,
    number: u64,
    after: u64,
    changes: &[Change],
) -> io::Result<()> {
    let head = encode_segment(owner, number, after);
    let (mut bytes, mut chain) = (Vec::new(), checksum_in(&head));
    for (change, epoch) in changes.iter().zip(after + 1..) {
        bytes.resize(bytes.len().next_multiple_of(SECTOR as usize), 0);
        chain = encode_epoch(&mut bytes, epoch, change, chain);
    }
    let file = directory.create(&name_of(number), SECTOR + bytes.len() as u64)?;
    file.write_at(&bytes, SECTOR)?;
    file.sync()?;
    file.write_at(&head, 0)?;
    file.sync()
}

/// Appends the blocks of an epoch to `out`, and returns the checksum of the last.
fn encode_epoch(out: &mut Vec<u8>, epoch: u64, change: &Change, mut chain: u32) -> u32 {
    let blocks = change.blocks();
    for (index, block) in blocks.iter().enumerate() {
        let of = if index + 1 == blocks.len() { blocks.len() as u64 } else { 0 };
        chain = encode_block(out, epoch, index as u64, of, block, chain);
    }
    chain
}

/// Appends a block to `out`, and returns its checksum.
fn encode_block(
    out: &mut Vec<u8>,
    epoch: u64,
    index: u64,
    of: u64,
    runs: &[(Range<u64>, &[u8])],
    chain: u32,
) -> u32 {
    let lines: u64 = runs.iter().map(|(run, _)| run.end - run.start).sum();
    let start = out.len();
    out.resize(start + HEADER, 0);
    for (run, _) in runs {
        let word = run.start | (run.end - run.start - 1) << 48;
        out.extend_from_slice(&word.to_le_bytes());
    }
    runs.iter().for_each(|(_, images)| out.extend_from_slice(images));
    let words = [BLOCK_MAGIC, epoch, index, u64::from(chain), runs.len() as u64, lines, of];
    let head = sealed(words, &out[start + HEADER..]);
    out[start..start + HEADER].copy_from_slice(&head);
    checksum_in(&head)
}

/// Returns a header that consists of these words and of the checksum of words and payload.
fn sealed(words: [u64; HEADER / 8 - 1], payload: &[u8]) -> [u8; HEADER] {
    let mut head = [0; HEADER];
    for (word, out) in words.iter().zip(head.chunks_exact_mut(8)) {
        out.copy_from_slice(&word.to_le_bytes());
    }
    let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..HEADER - 8]), payload);
    head[HEADER - 8..].copy_from_slice(&u64::from(sum).to_le_bytes());
    head
}

/// Returns the checksum in a header.
fn checksum_in(head: &[u8; HEADER]) -> u32 {
    word_of(head, HEADER / 8 - 1) as u32
}

fn word_of(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("eight bytes"))
}
