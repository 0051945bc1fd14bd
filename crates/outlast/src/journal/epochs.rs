//! Reading the epochs of a journal, and telling its end from what it has lost.
//!
//! [`Epochs`] finds what a base needs. [`fit`] compares the journal with the working file that a dead
//! process has left.

use super::bugs::{self, seeded};
use super::epoch::{
    Attempt, BLOCK_LINES, BLOCK_MAGIC, Change, HEADER, LINE, encode_epoch, header_sum, run_lines,
    take_runs, word_of,
};
use super::files::{Directory, JournalFile};
use super::meta::Meta;
use super::segment::{Damage, Found, Head, Mark, SECTOR, Survey, files_in, name_of, next_number};
use std::io;

/// Bytes read at a time where lines are only checked. They stay in the processor's cache.
const PIECE: usize = 64 << 10;

/// A function that is called with each epoch.
type Apply<'a> = dyn FnMut(&Change) -> io::Result<()> + 'a;

/// The epochs in the segments of a journal.
pub struct Epochs {
    found: Survey,
    /// The base that needs them.
    needed: Meta,
    last: Attempt,
    /// The last epoch of which a block shows that there was one.
    proven: u64,
}

impl Epochs {
    /// Finds the epochs that a base with this `meta` needs, and makes them durable.
    ///
    /// Some may be only in the page cache, because the dead process did not sync them, or because a
    /// write to the disk failed, which the kernel reported only to that process. Such epochs can
    /// only be in the last segment. So the epochs of that segment are copied to a new one.
    pub fn find(directory: &dyn Directory, needed: Meta) -> io::Result<Epochs> {
        let mut epochs = Epochs::in_files(files_in(directory)?, needed)?;
        let Some(segment) = epochs.found.segments.last() else { return Ok(epochs) };
        if epochs.damage().is_some()
            || epochs.last.epoch < epochs.least() && !seeded(&bugs::MISSING_IGNORED)
        {
            // The pool cannot be rebuilt. Its user may put a missing file back, so nothing is
            // written.
            return Ok(epochs);
        }
        let (mut changes, mut reader) = (Vec::new(), Reader::new(segment));
        for epoch in segment.after.epoch + 1.. {
            let Some(change) = reader.next(epoch)? else { break };
            changes.push(change);
        }
        let last = segment.after.epoch + changes.len() as u64;
        if !changes.is_empty() {
            copy_segment(directory, segment, &changes)?;
            epochs.found = Survey::in_directory(directory, needed.owner())?;
        }
        if last != epochs.last.epoch {
            // The copy is shorter: the kernel has dropped an epoch that it could not write.
            (epochs.last, _) = epochs.visit(u64::MAX, None)?;
        }
        Ok(epochs)
    }

    /// Finds the epochs that are in these files now, which come in the order of their numbers. Writes
    /// nothing. Epochs that another process adds later are not found.
    pub(super) fn in_files(
        files: impl IntoIterator<Item = (u64, Box<dyn JournalFile>)>,
        needed: Meta,
    ) -> io::Result<Epochs> {
        let found = Survey::of(files, needed.owner())?;
        let last = Attempt::unknown(needed.checkpoint);
        let mut epochs = Epochs { found, needed, last, proven: 0 };
        let mut before = None;
        loop {
            let now = epochs.visit(u64::MAX, None)?;
            (epochs.last, epochs.proven) = now;
            // If a block is behind the end, another process may have added epochs meanwhile.
            if epochs.last.epoch >= epochs.proven || before == Some(now) {
                return Ok(epochs);
            }
            before = Some(now);
        }
    }

    /// Returns whether there is no segment.
    pub fn is_gone(&self) -> bool {
        self.found.segments.is_empty() && self.found.damaged.is_empty()
    }

    /// Returns what keeps the journal from being used: a file that no crash leaves.
    pub fn damage(&self) -> Option<Damage> {
        self.found.damaged.first().copied().filter(|_| !seeded(&bugs::DAMAGE_IGNORED))
    }

    /// Returns the last epoch, or the checkpoint if there is none.
    pub fn last(&self) -> Attempt {
        self.last
    }

    /// Returns the epoch that must be there: one that the base may hold lines of, or that was durable
    /// when a file was made, or of which a block is left.
    pub fn least(&self) -> u64 {
        let known = self.known().map(|durable| durable.epoch).max().unwrap_or(0);
        known.max(self.proven).max(self.found.stray)
    }

    /// Returns the attempts that were durable, as the base and the files say.
    fn known(&self) -> impl Iterator<Item = Attempt> {
        let afters = self.found.segments.iter().map(|segment| segment.after);
        afters.chain(self.found.durable.iter().copied()).chain([self.needed.reached_by()])
    }

    /// Calls `apply` with each epoch, in order.
    pub fn apply(&self, mut apply: impl FnMut(&Change) -> io::Result<()>) -> io::Result<()> {
        let last = self.last.epoch;
        let reached = self.visit(last, Some(&mut apply))?.0.epoch;
        if reached == last {
            return Ok(());
        }
        let why = format!("epoch {} of {last} is not there any more", reached + 1);
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// Calls `apply` with each epoch after the checkpoint up to `last`, in order. Returns the last
    /// such epoch that is there, or the checkpoint if there is none, and the last epoch of which a
    /// block is where no crash leaves one.
    fn visit(&self, last: u64, mut apply: Option<&mut Apply<'_>>) -> io::Result<(Attempt, u64)> {
        let (mut reached, mut proven) = (Attempt::unknown(self.needed.checkpoint), 0);
        let segments = &self.found.segments;
        let mut is_over = false;
        for (index, segment) in segments.iter().enumerate() {
            // This segment's epochs are valid up to the one from which the next segment continues.
            let next = segments.get(index + 1).filter(|_| !seeded(&bugs::VOID_EPOCHS_COUNT));
            let end = next.map_or(last, |next| next.after.epoch.min(last));
            let mut reader = Reader::new(segment);
            for epoch in segment.after.epoch + 1.. {
                let mut change = Change::default();
                let lines = apply.as_ref().map_or(Lines::Check, |_| Lines::Take(&mut change));
                if !reader.read(epoch, lines)? {
                    proven = proven.max(reader.stray(epoch)?);
                    break;
                }
                // A segment is given up after one failed attempt. So it has no further void epoch.
                if next.is_some_and(|next| epoch > next.after.epoch + 1) {
                    proven = proven.max(epoch);
                }
                if is_over || epoch > end || epoch != reached.epoch + 1 {
                    continue;
                }
                let attempt = Attempt { epoch, sum: reader.chain };
                is_over = self.is_void(attempt);
                if !is_over {
                    if let Some(apply) = &mut apply {
                        apply(&change)?;
                    }
                    reached = attempt;
                }
            }
        }
        Ok((reached, proven))
    }

    /// Returns whether an attempt is void although no segment that was found says so: the segment
    /// with the valid attempt is lost, but a later segment, a spare or the base names that attempt.
    fn is_void(&self, attempt: Attempt) -> bool {
        self.known().any(|valid| attempt.differs(valid))
    }
}

/// How the working file of a dead process and the journal fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// The journal has all that the working file has confirmed, and no more than the process may have
    /// written when it died.
    Whole,
    /// The journal lacks epochs that the working file has confirmed, or the base lacks epochs that
    /// the journal no longer has. The working file has them.
    Short,
    /// The journal has this epoch, which the working file lacks: the file is an older copy of itself.
    Older(u64),
}

/// Compares the journal with the working file of its life, whose last durable epoch is `durable`.
/// `begun` is the last epoch that the working file's process has begun to write.
///
/// A process that dies can leave one epoch that the working file does not count as durable, and it has
/// said before that it begins that epoch. Reads the last segment, and the headers of the blocks in the
/// others.
pub fn fit(
    directory: &dyn Directory,
    meta: &Meta,
    durable: Attempt,
    begun: u64,
) -> io::Result<Fit> {
    let survey = Survey::in_directory(directory, meta.owner())?;
    let (mut reached, mut last) = (meta.checkpoint, Attempt::unknown(meta.checkpoint));
    if let Some(segment) = survey.segments.last() {
        last = segment.after;
    }
    let mut stray = survey.stray;
    for (index, segment) in survey.segments.iter().enumerate() {
        let next = survey.segments.get(index + 1).map(|next| next.after);
        let mut reader = Reader::new(segment);
        for epoch in segment.after.epoch + 1.. {
            let is_there = match next {
                Some(_) => reader.read(epoch, Lines::Skip)?,
                None => reader.read(epoch, Lines::Check)?,
            };
            if !is_there {
                stray = stray.max(reader.stray(epoch)?);
                break;
            }
            let attempt = Attempt { epoch, sum: reader.chain };
            if next.is_some_and(|next| attempt.differs(next)) {
                // The checksum in the last block's header is damaged, or that in the next segment's.
                break;
            }
            if epoch == reached + 1 && next.is_none_or(|next| epoch <= next.epoch) {
                reached = epoch;
            }
            if next.is_none() {
                last = attempt;
            }
        }
    }
    let afters = survey.segments.iter().map(|segment| segment.after.epoch);
    let known = afters.chain(survey.durable.iter().map(|durable| durable.epoch));
    let known = known.max().unwrap_or(0);
    let written = durable.epoch.max(begun).min(durable.epoch + 1);
    // A rebuild that was cut short can have brought the base to the epoch that was being written.
    let newest = last.epoch.max(stray).max(survey.newest_damaged).max(meta.reached);
    if (known > durable.epoch || newest > written) && !seeded(&bugs::OLDER_USED) {
        return Ok(Fit::Older(known.max(newest)));
    }
    let is_short = reached.min(last.epoch) < durable.epoch.max(meta.reached)
        || last.differs(durable)
        || stray > 0
        || !survey.damaged.is_empty();
    // A closed base has everything.
    let is_short = is_short && !(meta.closed && survey.segments.is_empty());
    Ok(if is_short && !seeded(&bugs::SHORT_CONTINUED) { Fit::Short } else { Fit::Whole })
}

/// Reads the epochs of a segment, one after the other.
pub(super) struct Reader<'s> {
    segment: &'s Found,
    at: u64,
    chain: u32,
}

impl<'s> Reader<'s> {
    pub(super) fn new(segment: &'s Found) -> Self {
        Reader { segment, at: SECTOR, chain: segment.after.sum }
    }

    /// Reads `epoch`, which comes next. Returns `None` if it is missing or incomplete.
    pub(super) fn next(&mut self, epoch: u64) -> io::Result<Option<Change>> {
        let mut change = Change::default();
        Ok(self.read(epoch, Lines::Take(&mut change))?.then_some(change))
    }

    /// Reads `epoch`, which comes next. Returns whether it is there.
    fn read(&mut self, epoch: u64, mut lines: Lines<'_>) -> io::Result<bool> {
        let (mut chain, mut at) = (self.chain, self.at);
        for index in 0.. {
            let Some(block) = Block::read(&*self.segment.file, at, lines.again())? else {
                return Ok(false);
            };
            let follows = block.epoch == epoch
                && block.index == index
                && block.chain == chain
                && block.mark == self.segment.mark
                && (block.of == 0 || block.of == index + 1);
            if !follows {
                return Ok(false);
            }
            (chain, at) = (block.sum, block.end);
            if block.of != 0 {
                (self.chain, self.at) = (chain, at.next_multiple_of(SECTOR));
                return Ok(true);
            }
        }
        unreachable!("an epoch has fewer blocks than there are numbers")
    }

    /// Returns the last epoch of which a block is in the rest of the segment, although `epoch`, which
    /// comes next, is not whole. An epoch is written only once the one before it is durable, and
    /// nothing follows a failed one. So no crash leaves such a block.
    fn stray(&self, epoch: u64) -> io::Result<u64> {
        let Reader { segment, at, .. } = self;
        Ok(strays(&*segment.file, *at, Some(segment.mark), Some(epoch))?.1)
    }
}

/// Finds blocks from `from` on that no crash leaves there. The incomplete `epoch` that was being
/// written at `from`, of any number if that is `None`, can have left its first block there, and later
/// ones elsewhere.
///
/// The owner is `mark`, or that of the first block. Returns the owner, and the last epoch of such a
/// block. A file is filled with zeros before it is used, so no other owner's block can be in it.
pub(super) fn strays(
    file: &dyn JournalFile,
    from: u64,
    mut mark: Option<Mark>,
    epoch: Option<u64>,
) -> io::Result<(Option<Mark>, u64)> {
    let mut last = 0;
    for at in (from / SECTOR..file.len()?.div_ceil(SECTOR)).map(|sector| sector * SECTOR) {
        // Most of a file is zeros, and has no header.
        let Some(begun) = Block::read(file, at, Lines::Skip)? else { continue };
        let Some(block) = Block::read(file, at, Lines::Check)? else {
            // The header alone still shows that the epoch was begun, so the one before it was durable.
            if let Some(epoch) = epoch
                && Some(begun.mark) == mark
                && begun.epoch > epoch
                && !seeded(&bugs::STRAYS_IGNORED)
            {
                last = last.max(begun.epoch - 1);
            }
            continue;
        };
        let is_ours = *mark.get_or_insert(block.mark) == block.mark;
        let is_next = is_ours && epoch.is_none_or(|epoch| block.epoch == epoch);
        if !(is_next && (at == from || block.index > 0)) && !seeded(&bugs::STRAYS_IGNORED) {
            // Another owner's block has taken the place of one of this owner's.
            let ours = if is_ours { block.epoch } else { epoch.unwrap_or(block.epoch) };
            last = last.max(ours);
        }
    }
    Ok((mark, last))
}

/// Reads bytes of a file, a piece at a time, and calls `each` with where the piece is among them, and the
/// piece. Returns whether the file has them all.
fn in_pieces(
    file: &dyn JournalFile,
    start: u64,
    bytes: u64,
    mut each: impl FnMut(u64, &[u8]),
) -> io::Result<bool> {
    let mut piece = vec![0; PIECE.min(bytes as usize)];
    for at in (0..bytes).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min((bytes - at) as usize)];
        if file.read_at(piece, start + at)? < piece.len() {
            return Ok(false);
        }
        each(at, piece);
    }
    Ok(true)
}

/// What to do with the lines of a block.
pub(super) enum Lines<'c> {
    /// Does not read them. Then only the block's header is known to be intact.
    Skip,
    /// Reads them for their checksum.
    Check,
    /// Adds them to a change.
    Take(&'c mut Change),
}

impl Lines<'_> {
    /// Returns the same for the next block.
    fn again(&mut self) -> Lines<'_> {
        match self {
            Lines::Skip => Lines::Skip,
            Lines::Check => Lines::Check,
            Lines::Take(change) => Lines::Take(change),
        }
    }
}

/// An intact block.
pub(super) struct Block {
    pub(super) epoch: u64,
    pub(super) index: u64,
    /// The checksum of the block before it.
    pub(super) chain: u32,
    /// The owner that it names.
    pub(super) mark: Mark,
    /// How many blocks the epoch has; 0 in all but the last.
    of: u64,
    sum: u32,
    /// Where it ends.
    end: u64,
}

impl Block {
    /// Reads the block at this place. Returns `None` if there is no intact one.
    pub(super) fn read(
        file: &dyn JournalFile,
        at: u64,
        payload: Lines<'_>,
    ) -> io::Result<Option<Block>> {
        let mut head = [0; HEADER];
        if file.read_at(&mut head, at)? < HEADER {
            return Ok(None);
        }
        let word = |i: usize| word_of(&head, i);
        let halves = |i: usize| (word(i) & u64::from(u32::MAX), word(i) >> 32);
        let ((index, of), (runs, lines)) = (halves(2), halves(3));
        if word(0) != BLOCK_MAGIC || lines > BLOCK_LINES || runs > lines {
            return Ok(None);
        }
        let own = header_sum(&head);
        if word(7) >> 32 != u64::from(own) && !seeded(&bugs::CHECKSUM_IGNORED) {
            return Ok(None);
        }
        let (start, bytes) = (at + HEADER as u64, runs * 8 + lines * LINE as u64);
        let is_sound = |sum: u32| word(7) as u32 == sum || seeded(&bugs::CHECKSUM_IGNORED);
        let is_intact = match payload {
            Lines::Skip => true,
            Lines::Check => {
                let (mut sum, mut total) = (own, 0);
                let is_complete = in_pieces(file, start, bytes, |at, piece| {
                    sum = crc32c::crc32c_append(sum, piece);
                    let heads = (runs * 8).saturating_sub(at).min(piece.len() as u64) as usize;
                    total += run_lines(&piece[..heads]);
                })?;
                is_complete && is_sound(sum) && total == lines
            }
            Lines::Take(change) => {
                let mut payload = vec![0; bytes as usize];
                file.read_at(&mut payload, start)? == payload.len()
                    && is_sound(crc32c::crc32c_append(own, &payload))
                    && take_runs(&payload, runs as usize, lines, change)
            }
        };
        if !is_intact {
            return Ok(None);
        }
        let (epoch, chain, end) = (word(1), word(6) as u32, start + bytes);
        let mark = Mark { pool: word(4), life: word(5) };
        Ok(Some(Block { epoch, index, chain, mark, of, sum: word(7) as u32, end }))
    }
}

/// Writes a copy of a segment that has these epochs, durably. A crash leaves all of it or nothing.
fn copy_segment(directory: &dyn Directory, of: &Found, changes: &[Change]) -> io::Result<()> {
    let number = next_number(directory)?;
    let (mut bytes, mut chain) = (vec![0; SECTOR as usize], of.after.sum);
    for (change, epoch) in changes.iter().zip(of.after.epoch + 1..) {
        bytes.resize(bytes.len().next_multiple_of(SECTOR as usize), 0);
        chain = encode_epoch(&mut bytes, of.mark, epoch, change, chain);
    }
    let (after, mark, len) = (of.after, of.mark, bytes.len() as u64);
    let head = Head { spare: false, number, after, bytes: len, mark };
    bytes[..HEADER].copy_from_slice(&head.encode());
    directory.create(&name_of(number), &bytes, len).map(drop)
}
