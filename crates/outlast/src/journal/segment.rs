//! Segments: the files that hold the epochs.
//!
//! ```text
//!  segment   [ header: 64 bytes | zeros | epoch | zeros | epoch | ... | zeros ]
//! ```
//!
//! Each epoch begins at a multiple of 4,096 bytes, so it shares no sector with the one before it: a
//! device that tears the sector that it is writing damages no durable epoch.

use super::bugs::{self, seeded};
use super::epoch::{
    Attempt, BLOCK_LINES, BLOCK_MAGIC, Change, HEADER, LINE, checksum_in, encode_epoch, sealed,
    take_runs, word_of,
};
use super::files::{Directory, JournalFile, UNFINISHED};
use super::log::SEGMENT_BYTES;
use super::meta::Meta;
use std::ffi::OsStr;
use std::io;

/// Epochs begin at multiples of this many bytes, because no sector of a disk is larger.
pub(super) const SECTOR: u64 = 4096;
const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"OLJSEGM2");
/// Segments of earlier builds. They do not name the checksum of the epoch from which they continue, and
/// the chain of their blocks begins with the checksum of the header.
const OLD_MAGIC: u64 = u64::from_le_bytes(*b"OLJSEGM1");
/// The greatest number of a segment.
const LAST_NUMBER: u64 = u32::MAX as u64;
/// The names of segments begin with this. The number follows, in hexadecimal.
const PREFIX: &str = "segment-";

/// The pool and the life that a journal belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The pool's id.
    pub pool: u128,
    /// The id of the life that writes the journal.
    pub life: u128,
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
pub(super) fn number_of_any(name: &str) -> Option<u64> {
    number_of(name.strip_suffix(UNFINISHED).unwrap_or(name))
}

/// Lists the segments of any owner, with their names.
fn all_segments(directory: &dyn Directory) -> io::Result<Vec<(String, Owner, Found)>> {
    let mut found = Vec::new();
    for name in directory.names()? {
        if number_of(&name).is_some() {
            let file = directory.open(&name)?;
            let mut head = [0; HEADER];
            let whole = file.read_at(&mut head, 0)? == HEADER;
            let owner = owner_in(&head);
            if let Some((start, chain)) = Start::decode(&head, owner).filter(|_| whole) {
                found.push((name, owner, Found { start, chain, file }));
            }
        }
    }
    Ok(found)
}

/// Returns whether a directory has a segment that `owner` must not delete. A segment of another pool
/// is one.
///
/// `end` is set if the owner's base needs no segments, because its life ended with that epoch, or
/// because it had no journal yet (0). Then the segments of earlier lives have been deleted durably, and
/// this life's segments continue from epochs before `end`. All others belong to a base of which this one
/// is a copy, perhaps an older one: segments of other lives, and segments of this life that continue
/// from `end` or later, because a life can go on with its working file. The exception is an empty
/// segment that continues from `end`: an opening that was cut short has left it.
pub fn has_others(directory: &dyn Directory, owner: Owner, end: Option<u64>) -> io::Result<bool> {
    for (_, other, segment) in all_segments(directory)? {
        if other.pool != owner.pool {
            return Ok(true);
        }
        let Some(end) = end else { continue };
        let after = segment.start.after.epoch;
        let is_earlier = other.life == owner.life && after < end;
        let has_epoch = || Reader::new(&segment).next(after + 1).map(|e| e.is_some());
        if !is_earlier && (after > end || has_epoch()?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a directory has a segment of this owner. Writes nothing.
pub fn has_segments(directory: &dyn Directory, owner: Owner) -> io::Result<bool> {
    Ok(!segments(directory, owner)?.is_empty())
}

/// Returns the last epoch in the segments of an owner, or the one from which its last segment
/// continues; `None` if it has no segment. Writes nothing.
pub fn last_epoch(directory: &dyn Directory, owner: Owner) -> io::Result<Option<Attempt>> {
    let ours = segments(directory, owner)?;
    let Some(segment) = ours.last() else { return Ok(None) };
    let (mut last, mut reader) = (segment.start.after, Reader::new(segment));
    while reader.next(last.epoch + 1)?.is_some() {
        last = Attempt { epoch: last.epoch + 1, sum: reader.chain };
    }
    Ok(Some(last))
}

/// Deletes the segments of all owners that `are_done`: they no longer need them.
pub fn remove_all_of(
    directory: &dyn Directory,
    are_done: impl Fn(Owner) -> bool,
) -> io::Result<()> {
    let all = all_segments(directory)?;
    let mut theirs = all.iter().filter(|(_, owner, _)| are_done(*owner));
    theirs.try_for_each(|(name, _, _)| directory.remove(name))
}

/// Deletes the segments of all other owners, and those without an intact header: spare and
/// unfinished ones. `meta` must already name this owner, durably.
///
/// Returns the files, which no longer have names. The caller decides when to close them: closing
/// the last handle frees a file's space, which can take long.
pub fn remove_others(
    directory: &dyn Directory,
    owner: Owner,
) -> io::Result<Vec<Box<dyn JournalFile>>> {
    let ours = segments(directory, owner)?;
    let mut removed = Vec::new();
    for name in directory.names()? {
        let is_ours = ours.iter().any(|segment| name_of(segment.start.number) == name);
        if number_of_any(&name).is_some() && !is_ours {
            removed.extend(directory.open(&name).ok());
            directory.remove(&name)?;
        }
    }
    Ok(removed)
}

/// What the header of a segment says, besides its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    /// The number of the segment.
    pub(super) number: u64,
    /// The epoch from which it continues.
    pub(super) after: Attempt,
}

/// A segment that was found.
pub(super) struct Found {
    pub(super) start: Start,
    pub(super) chain: u32,
    pub(super) file: Box<dyn JournalFile>,
}

impl Found {
    /// Reads the header of segment `number`. If it is not intact, or names another owner, returns the
    /// file if it names this owner all the same.
    fn read(
        number: u64,
        file: Box<dyn JournalFile>,
        owner: Owner,
    ) -> io::Result<Result<Found, Option<Box<dyn JournalFile>>>> {
        let mut head = [0; HEADER];
        let whole = file.read_at(&mut head, 0)? == HEADER;
        let owner = if seeded(&bugs::LIFE_IGNORED) { owner_in(&head) } else { owner };
        let decoded = Start::decode(&head, owner).filter(|_| whole);
        Ok(match decoded.filter(|(start, _)| start.number == number) {
            Some((start, chain)) => Ok(Found { start, chain, file }),
            None => Err((owner_in(&head) == owner).then_some(file)),
        })
    }
}

/// Lists the segments of an owner, in the order of their numbers.
pub(super) fn segments(directory: &dyn Directory, owner: Owner) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for (number, file) in files_in(directory)? {
        found.extend(Found::read(number, file, owner)?);
    }
    Ok(found)
}

/// Lists the files whose names are those of segments, in the order of their numbers.
fn files_in(directory: &dyn Directory) -> io::Result<Vec<(u64, Box<dyn JournalFile>)>> {
    let mut numbers: Vec<_> =
        directory.names()?.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| Ok((number, directory.open(&name_of(number))?))).collect()
}

/// Returns the number of the next segment: one more than the greatest in the directory.
pub(super) fn next_number(directory: &dyn Directory) -> io::Result<u64> {
    let numbers = directory.names()?.into_iter().filter_map(|name| number_of(&name));
    let next = numbers.max().map_or(0, |last| last + 1);
    check_number(next).map(|()| next)
}

/// Fails if there can be no segment of this number.
pub(super) fn check_number(number: u64) -> io::Result<()> {
    let used = || io::Error::other("the journal has used all numbers of segments");
    if number > LAST_NUMBER { Err(used()) } else { Ok(()) }
}

/// Returns whether this is the name of a segment, or of a file that was to become one.
pub fn is_name(name: &OsStr) -> bool {
    name.to_str().and_then(number_of_any).is_some()
}

/// Returns the name of segment `number`.
pub(super) fn name_of(number: u64) -> String {
    format!("{PREFIX}{number:016x}")
}

/// Returns the number of the segment of this name, or `None` if it is not the name of a segment.
pub(super) fn number_of(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name.strip_prefix(PREFIX)?, 16).ok()?;
    (name_of(number) == name && number <= LAST_NUMBER).then_some(number)
}

/// The epochs in the segments of a journal.
pub struct Epochs {
    found: Vec<Found>,
    /// The base that needs them.
    needed: Meta,
    last: Attempt,
    /// The last epoch of which the last segment, or one whose header is damaged, shows that it was
    /// durable.
    proven: u64,
}

impl Epochs {
    /// Finds the epochs that a base with this `meta` needs, and makes them durable.
    ///
    /// Some may be only in the page cache, because the dead process did not sync them, or because a
    /// write to the disk failed, which the kernel reported only to that process. Such epochs can
    /// only be in the last segment. So the epochs of that segment are copied to a new one.
    pub fn find(directory: &dyn Directory, needed: Meta) -> io::Result<Epochs> {
        let owner = needed.owner();
        let mut epochs = Epochs::in_files(files_in(directory)?, needed)?;
        let Some(segment) = epochs.found.last() else { return Ok(epochs) };
        if epochs.last.epoch < epochs.least() && !seeded(&bugs::MISSING_IGNORED) {
            // The pool cannot be rebuilt. Its user may put a missing file back, so nothing is
            // written.
            return Ok(epochs);
        }
        let (mut changes, mut reader) = (Vec::new(), Reader::new(segment));
        for epoch in segment.start.after.epoch + 1.. {
            let Some(change) = reader.next(epoch)? else { break };
            changes.push(change);
        }
        let last = segment.start.after.epoch + changes.len() as u64;
        if !changes.is_empty() {
            let start = Start { number: next_number(directory)?, ..segment.start };
            write_segment(directory, owner, start, &changes)?;
            epochs.found = segments(directory, owner)?;
        }
        if last != epochs.last.epoch {
            // The copy is shorter: the kernel has dropped an epoch that it could not write.
            epochs.last = epochs.visit(u64::MAX, |_| Ok(()))?;
        }
        Ok(epochs)
    }

    /// Finds the epochs that are in these files now, which come in the order of their numbers. Writes
    /// nothing. Epochs that another process adds later are not found.
    pub(super) fn in_files(
        files: impl IntoIterator<Item = (u64, Box<dyn JournalFile>)>,
        needed: Meta,
    ) -> io::Result<Epochs> {
        let last = Attempt::unknown(needed.checkpoint);
        let mut epochs = Epochs { found: Vec::new(), needed, last, proven: 0 };
        for (number, file) in files {
            match Found::read(number, file, needed.owner())? {
                Ok(segment) => epochs.found.push(segment),
                Err(damaged) => {
                    if let Some(file) = damaged {
                        epochs.proven = epochs.proven.max(proven_by(&*file)?);
                    }
                }
            }
        }
        epochs.last = epochs.visit(u64::MAX, |_| Ok(()))?;
        if let Some(segment) = epochs.found.last() {
            epochs.proven = epochs.proven.max(proven_by(&*segment.file)?);
        }
        if epochs.proven > epochs.last.epoch {
            // Another process may have added epochs meanwhile.
            epochs.last = epochs.visit(u64::MAX, |_| Ok(()))?;
        }
        Ok(epochs)
    }

    /// Returns whether there is no segment.
    pub fn is_gone(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the last epoch, or the checkpoint if there is none.
    pub fn last(&self) -> Attempt {
        self.last
    }

    /// Returns the epoch that must be there: one that the base may hold lines of, or that was durable,
    /// because the last segment continues from it or has later ones.
    pub fn least(&self) -> u64 {
        let known = self.found.last().map_or(0, |segment| segment.start.after.epoch);
        self.needed.reached.max(known).max(self.proven)
    }

    /// Calls `apply` with each epoch, in order.
    pub fn apply(&self, mut apply: impl FnMut(&Change) -> io::Result<()>) -> io::Result<()> {
        let last = self.last.epoch;
        let reached = self.visit(last, &mut apply)?.epoch;
        if reached == last {
            return Ok(());
        }
        let why = format!("epoch {} of {last} is not there any more", reached + 1);
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// Calls `visit` with each epoch after the checkpoint up to `last`, in order. Returns the last
    /// one that was visited, or the checkpoint if there was none.
    fn visit(
        &self,
        last: u64,
        mut visit: impl FnMut(&Change) -> io::Result<()>,
    ) -> io::Result<Attempt> {
        let mut reached = Attempt::unknown(self.needed.checkpoint);
        for (index, segment) in self.found.iter().enumerate() {
            // This segment's epochs are valid up to the one from which the next segment continues.
            let next = self.found.get(index + 1).filter(|_| !seeded(&bugs::VOID_EPOCHS_COUNT));
            let end = next.map_or(last, |next| next.start.after.epoch.min(last));
            let mut reader = Reader::new(segment);
            for epoch in segment.start.after.epoch + 1..=end {
                let Some(change) = reader.next(epoch)? else { break };
                if epoch == reached.epoch + 1 {
                    let attempt = Attempt { epoch, sum: reader.chain };
                    if self.is_void(attempt) {
                        return Ok(reached);
                    }
                    visit(&change)?;
                    reached = attempt;
                }
            }
        }
        Ok(reached)
    }

    /// Returns whether an attempt is void although no segment that was found says so: the segment
    /// with the valid attempt is lost, but a later segment or the base names that attempt.
    fn is_void(&self, attempt: Attempt) -> bool {
        let afters = self.found.iter().map(|segment| segment.start.after);
        afters.chain([self.needed.reached_by()]).any(|valid| attempt.differs(valid))
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

    /// Reads `epoch`, which comes next. Returns `None` if it is missing or incomplete.
    fn next(&mut self, epoch: u64) -> io::Result<Option<Change>> {
        let mut change = Change::default();
        for index in 0.. {
            let Some(block) = Block::read(&*self.segment.file, self.at, &mut change)? else {
                return Ok(None);
            };
            let follows = block.epoch == epoch
                && block.index == index
                && block.chain == u64::from(self.chain)
                && (block.of == 0 || block.of == index + 1);
            if !follows {
                return Ok(None);
            }
            (self.chain, self.at) = (block.sum, block.end);
            if block.of != 0 {
                self.at = self.at.next_multiple_of(SECTOR);
                return Ok(Some(change));
            }
        }
        unreachable!("an epoch has fewer blocks than there are numbers")
    }
}

/// An intact block.
struct Block {
    epoch: u64,
    index: u64,
    /// The checksum of the block before it.
    chain: u64,
    /// How many blocks the epoch has; 0 in all but the last.
    of: u64,
    sum: u32,
    /// Where it ends.
    end: u64,
}

impl Block {
    /// Reads the block at this place, and adds its runs to a change. Returns `None` if there is no
    /// intact one.
    fn read(file: &dyn JournalFile, at: u64, change: &mut Change) -> io::Result<Option<Block>> {
        let mut head = [0; HEADER];
        if file.read_at(&mut head, at)? < HEADER {
            return Ok(None);
        }
        let word = |i: usize| word_of(&head, i);
        let (runs, lines) = (word(4), word(5));
        if word(0) != BLOCK_MAGIC || lines > BLOCK_LINES || runs > lines {
            return Ok(None);
        }
        let mut payload = vec![0; (runs * 8 + lines * LINE as u64) as usize];
        let start = at + HEADER as u64;
        if file.read_at(&mut payload, start)? < payload.len() {
            return Ok(None);
        }
        let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..HEADER - 8]), &payload);
        let is_sound = word(7) == u64::from(sum) || seeded(&bugs::CHECKSUM_IGNORED);
        if !is_sound || !take_runs(&payload, runs as usize, lines, change) {
            return Ok(None);
        }
        let (epoch, index, chain, of) = (word(1), word(2), word(3), word(6));
        let end = start + payload.len() as u64;
        Ok(Some(Block { epoch, index, chain, of, sum: word(7) as u32, end }))
    }
}

/// Returns the last epoch of which a segment shows that it was durable. An epoch is written only once
/// the one before it is. So if the last intact block is of a later epoch than the next one to read, that
/// one is damaged, and not merely incomplete.
fn proven_by(file: &dyn JournalFile) -> io::Result<u64> {
    // A longer segment has only one epoch.
    let end = file.len()?.min(SEGMENT_BYTES);
    for at in (1..end.div_ceil(SECTOR)).rev().map(|sector| sector * SECTOR) {
        if let Some(block) = Block::read(file, at, &mut Change::default())? {
            return Ok(block.epoch.saturating_sub(1));
        }
    }
    Ok(0)
}

impl Start {
    pub(super) fn encode(self, owner: Owner) -> [u8; HEADER] {
        self.encode_as(SEGMENT_MAGIC, owner)
    }

    fn encode_as(self, magic: u64, owner: Owner) -> [u8; HEADER] {
        let words = [
            magic,
            self.number | u64::from(self.after.sum) << 32,
            self.after.epoch,
            owner.pool as u64,
            (owner.pool >> 64) as u64,
            owner.life as u64,
            (owner.life >> 64) as u64,
        ];
        sealed(words, &[])
    }

    /// Decodes the header of a segment of this owner. Also returns the checksum with which the chain
    /// of blocks begins. Returns `None` if it is not an intact header.
    fn decode(head: &[u8; HEADER], owner: Owner) -> Option<(Start, u32)> {
        let (word, epoch) = (word_of(head, 1), word_of(head, 2));
        let after = Attempt { epoch, sum: (word >> 32) as u32 };
        let start = Start { number: word & LAST_NUMBER, after };
        let chain = if *head == start.encode(owner) {
            start.chain(owner)
        } else if *head == start.encode_as(OLD_MAGIC, owner) {
            checksum_in(head)
        } else {
            return None;
        };
        // No journal comes to so many epochs.
        (epoch < 1 << 63).then_some((start, chain))
    }

    /// Returns the checksum with which the chain of blocks begins. It does not depend on the number,
    /// so that a copy of the segment has the same blocks.
    pub(super) fn chain(self, owner: Owner) -> u32 {
        checksum_in(&Start { number: 0, ..self }.encode(owner))
    }
}

/// Returns the owner that a header names. It means nothing unless the header is intact.
fn owner_in(head: &[u8; HEADER]) -> Owner {
    let wide = |at| u128::from(word_of(head, at)) | u128::from(word_of(head, at + 1)) << 64;
    Owner { pool: wide(3), life: wide(5) }
}

/// Writes a complete segment, durably. The header comes last, so the segment does not exist until
/// all of it is durable.
fn write_segment(
    directory: &dyn Directory,
    owner: Owner,
    start: Start,
    changes: &[Change],
) -> io::Result<()> {
    let (mut bytes, mut chain) = (Vec::new(), start.chain(owner));
    for (change, epoch) in changes.iter().zip(start.after.epoch + 1..) {
        bytes.resize(bytes.len().next_multiple_of(SECTOR as usize), 0);
        chain = encode_epoch(&mut bytes, epoch, change, chain);
    }
    let file = directory.create(&name_of(start.number), SECTOR + bytes.len() as u64)?;
    file.write_at(&bytes, SECTOR)?;
    file.sync()?;
    file.write_at(&start.encode(owner), 0)?;
    file.sync()
}
