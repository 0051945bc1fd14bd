//! Segments: the files that hold the epochs.
//!
//! ```text
//!  segment   [ header: 64 bytes | zeros | epoch | zeros | epoch | ... | zeros ]
//! ```
//!
//! Each epoch begins at a multiple of 4,096 bytes, so it shares no sector with the one before it: a
//! device that tears the sector that it is writing damages no durable epoch.
//!
//! A segment that was prepared ahead of use is a *spare*. Its header names the last epoch that was
//! durable when it was made. The header of the segment replaces it, in one write with the segment's
//! first epoch.
//!
//! What a file says of itself is told apart from what it lacks (`Content`): a damaged header is
//! made again from the first block, and a file that no crash can leave is damaged.

use super::bugs::{self, seeded};
use super::epoch::{Attempt, HEADER, sealed, word_of};
use super::epochs::{Block, Lines, strays};
use super::files::{Directory, JournalFile, UNFINISHED};
use std::ffi::OsStr;
use std::fmt;
use std::io;

/// Epochs begin at multiples of this many bytes, because no sector of a disk is larger.
pub(super) const SECTOR: u64 = 4096;
const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"OLJSEGM1");
const SPARE_MAGIC: u64 = u64::from_le_bytes(*b"OLJSPAR1");
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

impl Owner {
    /// Returns what segments and blocks name of their owner.
    pub(super) fn mark(self) -> Mark {
        Mark { pool: self.pool as u64, life: self.life as u64 }
    }
}

/// The low halves of an owner's ids, which are random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) pool: u64,
    pub(super) life: u64,
}

/// The header of a segment or of a spare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// Whether the file is a spare.
    pub(super) spare: bool,
    /// The number of the segment.
    pub(super) number: u64,
    /// The epoch from which it continues. In a spare, the last one that was durable.
    pub(super) after: Attempt,
    /// The length of the file, in bytes.
    pub(super) bytes: u64,
    pub(super) mark: Mark,
}

impl Head {
    pub(super) fn encode(self) -> [u8; HEADER] {
        let words = [
            if self.spare { SPARE_MAGIC } else { SEGMENT_MAGIC },
            self.number | u64::from(self.after.sum) << 32,
            self.after.epoch,
            self.bytes,
            self.mark.pool,
            self.mark.life,
            0,
        ];
        sealed(words, &[])
    }

    /// Returns `None` if this is not an intact header.
    fn decode(head: &[u8; HEADER]) -> Option<Head> {
        let (word, epoch) = (word_of(head, 1), word_of(head, 2));
        let decoded = Head {
            spare: word_of(head, 0) == SPARE_MAGIC,
            number: word & LAST_NUMBER,
            after: Attempt { epoch, sum: (word >> 32) as u32 },
            bytes: word_of(head, 3),
            mark: Mark { pool: word_of(head, 4), life: word_of(head, 5) },
        };
        // No journal comes to so many epochs.
        (epoch < 1 << 63 && decoded.encode() == *head).then_some(decoded)
    }
}

/// A segment that was found.
pub(super) struct Found {
    /// The number in its name.
    pub(super) number: u64,
    pub(super) mark: Mark,
    /// The epoch from which it continues.
    pub(super) after: Attempt,
    pub(super) file: Box<dyn JournalFile>,
}

/// What a file with the name of a segment is.
pub(super) enum Content {
    /// A segment. If its header is damaged, its first block tells the same.
    Segment {
        found: Found,
        /// An epoch that was durable when the file was made, if it still has the header of a spare.
        durable: Attempt,
    },
    /// A file without an intact header and first block, or a spare.
    Other {
        /// The owner, if the header or a block names one.
        mark: Option<Mark>,
        /// An epoch that was durable when the file was made.
        durable: Attempt,
        /// The last epoch of which a block is in the file, where no crash leaves one.
        stray: u64,
    },
    /// A file as no crash leaves one.
    Damaged {
        mark: Option<Mark>,
        damage: Damage,
        /// The last epoch that its header names, or of which a block is in it.
        newest: u64,
    },
}

/// Why a file of the journal is not what it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// The number in the file's name.
    pub number: u64,
    /// What is wrong.
    pub kind: DamageKind,
}

/// What is wrong with a file of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamageKind {
    /// It is shorter than it was.
    Short {
        /// Its length in bytes.
        found: u64,
        /// The length that it had, at least.
        needed: u64,
    },
    /// Its header is that of the segment with this number.
    Misplaced(u64),
    /// A part of an epoch is where its header should be.
    Headless,
    /// It continues from an earlier epoch than the segment before it.
    Order,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = name_of(self.number);
        match self.kind {
            DamageKind::Short { found, needed } => {
                write!(f, "{name} has {found} bytes, but must have at least {needed}")
            }
            DamageKind::Misplaced(number) => write!(f, "{name} holds {}", name_of(number)),
            DamageKind::Headless => write!(f, "{name} begins with a part of an epoch"),
            DamageKind::Order => {
                write!(f, "{name} continues from an earlier epoch than the segment before it")
            }
        }
    }
}

impl Content {
    /// Looks at a file with the name of segment `number`.
    pub(super) fn of(number: u64, file: Box<dyn JournalFile>) -> io::Result<Content> {
        let (mut bytes, len) = ([0; HEADER], file.len()?);
        let whole = file.read_at(&mut bytes, 0)? == HEADER;
        let head = Head::decode(&bytes).filter(|_| whole);
        let damaged = |mark: Option<Mark>, kind| {
            let named = head.map_or(0, |head| head.after.epoch);
            let newest = newest_block(&*file, mark)?.max(named);
            Ok(Content::Damaged { mark, damage: Damage { number, kind }, newest })
        };
        if let Some(head) = head
            && head.number != number
        {
            return damaged(Some(head.mark), DamageKind::Misplaced(head.number));
        }
        let needed = head.map_or(SECTOR, |head| head.bytes);
        if len < needed && !seeded(&bugs::LENGTH_IGNORED) {
            let mark = head.map(|head| head.mark);
            return damaged(mark, DamageKind::Short { found: len, needed });
        }
        match head {
            Some(Head { spare: false, after, mark, .. }) => {
                let durable = Attempt::default();
                Ok(Content::Segment { found: Found { number, mark, after, file }, durable })
            }
            _ if seeded(&bugs::HEADER_DAMAGE_IGNORED) => Ok(Content::nothing()),
            _ => Content::without_header(number, head, file),
        }
    }

    fn nothing() -> Content {
        Content::Other { mark: None, durable: Attempt::default(), stray: 0 }
    }

    /// Looks at a file without the header of a segment. The first block names all that the header
    /// named.
    fn without_header(
        number: u64,
        spare: Option<Head>,
        file: Box<dyn JournalFile>,
    ) -> io::Result<Content> {
        if Block::read(&*file, 0, Lines::Check)?.is_some() {
            let (damage, newest) =
                (Damage { number, kind: DamageKind::Headless }, newest_block(&*file, None)?);
            return Ok(Content::Damaged { mark: None, damage, newest });
        }
        // In this order, because another process may be writing: if the scan finds the second epoch,
        // the first block is there by then.
        let known = spare.map(|spare| spare.mark);
        let (mark, stray) = strays(&*file, SECTOR, known, None)?;
        let block = Block::read(&*file, SECTOR, Lines::Check)?;
        let durable = spare.map_or(Attempt::default(), |spare| spare.after);
        if let Some(Block { epoch, index: 0, chain, mark, .. }) = block
            && let Some(epoch) = epoch.checked_sub(1)
        {
            let after = Attempt { epoch, sum: chain };
            return Ok(Content::Segment { found: Found { number, mark, after, file }, durable });
        }
        Ok(Content::Other { mark, durable, stray })
    }

    fn mark(&self) -> Option<Mark> {
        match self {
            Content::Segment { found, .. } => Some(found.mark),
            Content::Other { mark, .. } | Content::Damaged { mark, .. } => *mark,
        }
    }
}

/// Returns the last epoch of which a block is in a file; 0 if there is none. `mark` is the owner, or else
/// that of the first block.
fn newest_block(file: &dyn JournalFile, mark: Option<Mark>) -> io::Result<u64> {
    // No block is expected, because no epoch has this number.
    Ok(strays(file, 0, mark, Some(0))?.1)
}

/// What a directory holds of an owner.
pub(super) struct Survey {
    /// Its segments, in the order of their numbers.
    pub(super) segments: Vec<Found>,
    /// Epochs that were durable, as spares say.
    pub(super) durable: Vec<Attempt>,
    /// The last epoch of which a block is where no crash leaves one.
    pub(super) stray: u64,
    /// What no crash leaves.
    pub(super) damaged: Vec<Damage>,
    /// The last epoch that the header of such a file names, or of which a block is in it.
    pub(super) newest_damaged: u64,
    /// The numbers of other files in which there is a stray block.
    strays_in: Vec<u64>,
}

impl Survey {
    /// Looks at these files, which come in the order of their numbers.
    pub(super) fn of(
        files: impl IntoIterator<Item = (u64, Box<dyn JournalFile>)>,
        owner: Owner,
    ) -> io::Result<Survey> {
        let (segments, durable) = (Vec::<Found>::new(), Vec::new());
        let mut survey = Survey {
            segments,
            durable,
            stray: 0,
            damaged: Vec::new(),
            newest_damaged: 0,
            strays_in: Vec::new(),
        };
        for (number, file) in files {
            let content = Content::of(number, file)?;
            let is_ours = content.mark().is_none_or(|mark| mark == owner.mark());
            if !is_ours && !seeded(&bugs::LIFE_IGNORED) {
                continue;
            }
            if let Content::Segment { durable, .. } | Content::Other { durable, .. } = &content
                && durable.epoch > 0
                && !seeded(&bugs::SPARES_IGNORED)
            {
                survey.durable.push(*durable);
            }
            match content {
                Content::Segment { found, .. } => {
                    let before = survey.segments.last().map_or(0, |last| last.after.epoch);
                    if found.after.epoch < before {
                        survey.damaged.push(Damage { number, kind: DamageKind::Order });
                    }
                    survey.segments.push(found);
                }
                Content::Other { stray, .. } => {
                    survey.stray = survey.stray.max(stray);
                    survey.strays_in.extend((stray > 0).then_some(number));
                }
                Content::Damaged { damage, newest, .. } => {
                    survey.damaged.push(damage);
                    survey.newest_damaged = survey.newest_damaged.max(newest);
                }
            }
        }
        Ok(survey)
    }

    /// Returns the numbers of files that may hold epochs but are not used as segments.
    pub(super) fn suspects(&self) -> impl Iterator<Item = u64> {
        let is_used = |number: &u64| self.segments.iter().any(|found| found.number == *number);
        let damaged = self.damaged.iter().map(|damage| damage.number);
        damaged.filter(move |number| !is_used(number)).chain(self.strays_in.iter().copied())
    }

    /// Looks at the files of a directory.
    pub(super) fn in_directory(directory: &dyn Directory, owner: Owner) -> io::Result<Survey> {
        Survey::of(files_in(directory)?, owner)
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
pub(super) fn number_of_any(name: &str) -> Option<u64> {
    number_of(name.strip_suffix(UNFINISHED).unwrap_or(name))
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
    let ours = owner.mark();
    for (number, file) in files_in(directory)? {
        let content = Content::of(number, file)?;
        let mark = content.mark();
        if mark.is_some_and(|mark| mark.pool != ours.pool) {
            return Ok(true);
        }
        let Some(end) = end else { continue };
        let is_ours = mark == Some(ours);
        let is_other = match content {
            Content::Segment { found, .. } => {
                let after = found.after.epoch;
                let has_block =
                    || newest_block(&*found.file, Some(found.mark)).map(|last| last > 0);
                !(is_ours && after < end) && (after > end || has_block()?)
            }
            Content::Other { stray, .. } => stray > if is_ours { end } else { 0 },
            Content::Damaged { .. } => true,
        };
        if is_other {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a directory has a segment of this owner. Writes nothing.
pub fn has_segments(directory: &dyn Directory, owner: Owner) -> io::Result<bool> {
    Ok(!Survey::in_directory(directory, owner)?.segments.is_empty())
}

/// Returns whether there is a segment of any pool. A spare that was never used does not count.
pub fn holds_segments(directory: &dyn Directory) -> io::Result<bool> {
    for (number, file) in files_in(directory)? {
        if Content::of(number, file)?.mark().is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deletes the segments of a pool that no longer needs them, or only those of one of its lives.
pub fn remove_all_of(directory: &dyn Directory, pool: u128, life: Option<u128>) -> io::Result<()> {
    for (number, file) in files_in(directory)? {
        let is_theirs = |mark: Mark| {
            mark.pool == pool as u64 && life.is_none_or(|life| mark.life == life as u64)
        };
        if Content::of(number, file)?.mark().is_some_and(is_theirs) {
            directory.remove(&name_of(number))?;
        }
    }
    Ok(())
}

/// Deletes the segments of all other owners, and those that are no segments: spare and unfinished
/// ones. `meta` must already name this owner, durably.
///
/// Returns the files, which no longer have names. The caller decides when to close them: closing
/// the last handle frees a file's space, which can take long.
pub fn remove_others(
    directory: &dyn Directory,
    owner: Owner,
) -> io::Result<Vec<Box<dyn JournalFile>>> {
    let ours = Survey::in_directory(directory, owner)?.segments;
    let mut removed = Vec::new();
    for name in directory.names()? {
        let is_ours = ours.iter().any(|segment| name_of(segment.number) == name);
        if number_of_any(&name).is_some() && !is_ours {
            removed.extend(directory.open(&name).ok());
            directory.remove(&name)?;
        }
    }
    Ok(removed)
}

/// Lists the files whose names are those of segments, in the order of their numbers.
pub(super) fn files_in(directory: &dyn Directory) -> io::Result<Vec<(u64, Box<dyn JournalFile>)>> {
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
