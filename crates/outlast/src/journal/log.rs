//! Segments: the lines that changed, epoch by epoch.
//!
//! ```text
//!  segment   [ header: 64 bytes | block | block | ... | zeros ]
//!  block     [ header: 64 bytes | runs: 8 bytes each | lines: 64 bytes each ]
//!  run       [ first line (48) | number of lines - 1 (16) ]
//! ```
//!
//! All numbers are little-endian. A block's checksum covers its header, its payload and the checksum
//! of the block before it, or of the segment's header. So blocks that are left over from anything
//! else never continue a segment.

use super::files::{Directory, JournalFile, rewrite};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a line.
pub const LINE: usize = 64;
/// Bytes of the headers of segments and blocks.
const HEADER: usize = 64;
/// Lines of a block, at most.
const BLOCK_LINES: u64 = 1 << 14;
/// Bytes of a segment, unless an epoch needs more.
pub const SEGMENT_BYTES: u64 = 64 << 20;

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"OLJSEGM1");
const BLOCK_MAGIC: u64 = u64::from_le_bytes(*b"OLJBLOK1");

/// The names of segments begin with this. The number follows, in hexadecimal.
const PREFIX: &str = "segment-";

/// Whose journal this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The pool's id.
    pub pool: u128,
    /// The life that writes it.
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
    /// Adds a run of lines. `images` holds their content.
    ///
    /// # Panics
    /// If `images` is not as long as so many lines.
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

    /// Forgets everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.images.clear();
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

/// A segment that is not written to any more.
#[derive(Debug)]
struct Full {
    name: String,
    /// The last epoch in it that counts.
    last: u64,
    bytes: u64,
}

/// The segment that is written to.
struct Open {
    file: Box<dyn JournalFile>,
    name: String,
    bytes: u64,
    /// Where the next block goes. 0 if the segment's header is not written yet.
    at: u64,
    /// The checksum that the next block continues.
    chain: u32,
}

impl Open {
    /// Ends the use of the segment. Its epochs up to `last` are valid, and later ones are void.
    fn full(self, last: u64) -> Full {
        Full { name: self.name, last, bytes: self.bytes }
    }
}

/// Writes epochs.
pub struct Writer {
    directory: Arc<dyn Directory>,
    owner: Owner,
    segment_bytes: u64,
    /// `None` after a failure. The next epoch begins a new segment.
    open: Option<Open>,
    full: Vec<Full>,
    next_number: u64,
    /// The last epoch that is durable.
    durable: u64,
    buffer: Vec<u8>,
}

impl Writer {
    /// Begins to write epochs after `durable`. Whatever other segments hold after that becomes void
    /// with the first epoch. Deletes the segments of other owners.
    pub fn new(directory: Arc<dyn Directory>, owner: Owner, durable: u64) -> io::Result<Writer> {
        let mut writer = Writer {
            directory: Arc::clone(&directory),
            owner,
            segment_bytes: SEGMENT_BYTES,
            open: None,
            full: Vec::new(),
            next_number: 0,
            durable,
            buffer: Vec::new(),
        };
        let ours = segments(&*directory, owner)?;
        for name in directory.names()? {
            let Some(number) = number_of(&name) else { continue };
            // A number is used once: a name that was removed may come back after a power loss.
            writer.next_number = writer.next_number.max(number + 1);
            if let Some(segment) = ours.iter().find(|segment| segment.number == number) {
                let bytes = segment.file.len()?;
                writer.full.push(Full { name, last: durable, bytes });
            } else {
                directory.remove(&name)?;
            }
        }
        Ok(writer)
    }

    /// Sets the size of new segments, in bytes.
    #[must_use]
    pub fn segment_bytes(self, bytes: u64) -> Self {
        Writer { segment_bytes: bytes, ..self }
    }

    /// Returns the last durable epoch.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns the bytes of all segments, without the free space of the open one.
    pub fn bytes(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.at);
        self.full.iter().map(|segment| segment.bytes).sum::<u64>() + open
    }

    /// Writes an epoch. Once this returns, the epoch is durable.
    ///
    /// On an error, the epoch may be durable or not. The caller must write it again, with the same
    /// lines or more, and their content at that time. No later epoch becomes durable before that.
    pub fn append(&mut self, change: &Change) -> io::Result<()> {
        let written = self.try_append(change);
        if written.is_err()
            && let Some(open) = self.open.take()
        {
            self.full.push(open.full(self.durable));
        }
        written
    }

    fn try_append(&mut self, change: &Change) -> io::Result<()> {
        let blocks = change.blocks();
        let runs: usize = blocks.iter().map(Vec::len).sum();
        let bytes = HEADER * (1 + blocks.len()) + runs * 8 + change.images.len();
        self.make_room(bytes as u64)?;
        let open = self.open.as_mut().expect("there is room in it");
        let epoch = self.durable + 1;
        self.buffer.clear();
        let mut chain = open.chain;
        if open.at == 0 {
            let number = number_of(&open.name).expect("its name has one");
            let head = encode_segment(self.owner, number, self.durable);
            self.buffer.extend_from_slice(&head);
            chain = checksum_in(&head);
        }
        for (index, block) in blocks.iter().enumerate() {
            let of = if index + 1 == blocks.len() { blocks.len() as u64 } else { 0 };
            chain = encode_block(&mut self.buffer, epoch, index as u64, of, block, chain);
        }
        open.file.write_at(&self.buffer, open.at)?;
        open.file.sync()?;
        open.at += self.buffer.len() as u64;
        open.chain = chain;
        self.durable = epoch;
        Ok(())
    }

    /// Begins a new segment, unless `bytes` fit the open one.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|open| open.at + bytes <= open.bytes) {
            return Ok(());
        }
        if let Some(open) = self.open.take() {
            self.full.push(open.full(self.durable));
        }
        let name = format!("{PREFIX}{:016x}", self.next_number);
        self.next_number += 1;
        let size = self.segment_bytes.max(bytes);
        let file = self.directory.create(&name, size)?;
        self.open = Some(Open { file, name, bytes: size, at: 0, chain: 0 });
        Ok(())
    }

    /// Deletes the segments that hold no epoch after `checkpoint`.
    pub fn forget(&mut self, checkpoint: u64) -> io::Result<()> {
        let mut result = Ok(());
        self.full.retain(|segment| {
            if segment.last > checkpoint {
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

/// A segment that was found.
struct Found {
    number: u64,
    /// It continues after this epoch.
    after: u64,
    chain: u32,
    file: Box<dyn JournalFile>,
}

/// Lists the segments of an owner, in the order of their numbers.
fn segments(directory: &dyn Directory, owner: Owner) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for name in directory.names()? {
        if number_of(&name).is_none() {
            continue;
        }
        let file = directory.open(&name)?;
        let mut head = [0; HEADER];
        if file.read_at(&mut head, 0)? == HEADER
            && let Some((number, after)) = decode_segment(&head, owner)
            && number_of(&name) == Some(number)
        {
            found.push(Found { number, after, chain: checksum_in(&head), file });
        }
    }
    found.sort_by_key(|segment| segment.number);
    Ok(found)
}

fn number_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix(PREFIX)?, 16).ok()
}

/// The epochs that are in the segments of a journal.
pub struct Epochs {
    found: Vec<Found>,
    checkpoint: u64,
    last: u64,
}

impl Epochs {
    /// Finds the epochs after `checkpoint`.
    pub fn find(directory: &dyn Directory, owner: Owner, checkpoint: u64) -> io::Result<Epochs> {
        let found = segments(directory, owner)?;
        let mut epochs = Epochs { found, checkpoint, last: checkpoint };
        let mut last = checkpoint;
        epochs.visit(|epoch, _| {
            last = epoch;
            Ok(())
        })?;
        epochs.last = last;
        Ok(epochs)
    }

    /// Returns the last epoch, or the checkpoint if there is none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Makes the disk hold the epochs. A process that died may have written some that it had not
    /// synced, or that the disk refused.
    pub fn make_durable(&self) -> io::Result<()> {
        self.found.iter().try_for_each(|segment| rewrite(&*segment.file))
    }

    /// Calls `apply` with each epoch, in order.
    pub fn apply(&self, mut apply: impl FnMut(&Change) -> io::Result<()>) -> io::Result<()> {
        self.visit(|_, change| apply(change))
    }

    fn visit(&self, mut visit: impl FnMut(u64, &Change) -> io::Result<()>) -> io::Result<()> {
        let mut reached = self.checkpoint;
        for (index, segment) in self.found.iter().enumerate() {
            // This segment ends with the epoch from which a later segment continues.
            let later = self.found[index + 1..].iter().map(|later| later.after);
            let end = later.min().unwrap_or(u64::MAX);
            let mut reader = Reader { segment, at: HEADER as u64, chain: segment.chain };
            for epoch in segment.after + 1..=end {
                let Some(change) = reader.next(epoch)? else { break };
                if epoch == reached + 1 {
                    visit(epoch, &change)?;
                    reached = epoch;
                }
            }
        }
        Ok(())
    }
}

struct Reader<'s> {
    segment: &'s Found,
    at: u64,
    chain: u32,
}

impl Reader<'_> {
    /// Reads the next epoch. Returns `None` if it is not there, or not whole.
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
            if word(7) != u64::from(sum) || !take_runs(&payload, runs as usize, lines, &mut change)
            {
                return Ok(None);
            }
            self.chain = sum;
            self.at = start + payload.len() as u64;
            if of != 0 {
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

fn decode_segment(head: &[u8; HEADER], owner: Owner) -> Option<(u64, u64)> {
    let (number, after) = (word_of(head, 1), word_of(head, 2));
    (*head == encode_segment(owner, number, after)).then_some((number, after))
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

/// Returns a header of these words, and the checksum of them and of the payload.
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
