//! Epochs: the lines that changed between two cuts, and how they are written.
//!
//! ```text
//!  epoch     [ block | block | ... ]
//!  block     [ header: 64 bytes | runs: 8 bytes each | lines: 64 bytes each ]
//!  run       [ first line (48) | number of lines - 1 (16) ]
//! ```
//!
//! All numbers are little-endian. A block names its owner, and the checksum of the block before it,
//! also if that is in another segment; its own checksum covers both. So a block that is left over
//! from elsewhere is not taken for the continuation of a segment, a copy of a segment has the same
//! checksums, and the first block of a segment tells what the segment's header tells. (Two attempts
//! to continue from one epoch begin alike. But a segment's file has only zeros when it gets its
//! first block.)

use super::bugs::{self, seeded};
use super::segment::Mark;
use crate::pmem::Notes;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Bytes of a line.
pub const LINE: usize = 64;
/// Bytes of the headers of segments and blocks.
pub(super) const HEADER: usize = 64;
/// How many lines ahead of the one being copied to prefetch.
const SOON: usize = 24;
/// The most lines in a block.
pub(super) const BLOCK_LINES: u64 = 1 << 14;
/// Memory for lines that is kept from one epoch to the next, in bytes.
pub(super) const KEPT: usize = 32 << 20;
pub(super) const BLOCK_MAGIC: u64 = u64::from_le_bytes(*b"OLJBLOK1");

/// An attempt at an epoch. If writing an epoch fails, it is attempted again. The failed attempt is void,
/// but can be intact on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attempt {
    /// The epoch.
    pub epoch: u64,
    /// The checksum of its last block; 0 if that is not known.
    pub sum: u32,
}

impl Attempt {
    /// Returns an attempt whose checksum is not known.
    pub const fn unknown(epoch: u64) -> Attempt {
        Attempt { epoch, sum: 0 }
    }

    /// Returns whether these are certainly two attempts at one epoch.
    pub fn differs(self, other: Attempt) -> bool {
        self.epoch == other.epoch && self.sum != other.sum && self.sum != 0 && other.sum != 0
    }
}

impl Attempt {
    /// Stores the last durable epoch in the control words of a working file from `at` on: the epoch,
    /// and then two checksums. If the process dies between two of the stores, the words still have
    /// an epoch and its checksum, because consecutive epochs have different words for it.
    pub fn store(self, notes: &Notes, at: usize) {
        let Attempt { epoch, sum } = self;
        seed!(bugs::EPOCH_BEFORE_SUM => notes.store_control(at, epoch));
        notes.store_control(Self::place_of_sum(at, epoch), u64::from(sum));
        notes.store_control(at, epoch);
    }

    /// Loads what [`store`](Self::store) has stored.
    pub fn load(notes: &Notes, at: usize) -> Attempt {
        let words = notes.control();
        let epoch = words[at].load(Ordering::Acquire);
        let sum = words[Self::place_of_sum(at, epoch)].load(Ordering::Acquire);
        Attempt { epoch, sum: sum as u32 }
    }

    fn place_of_sum(at: usize, epoch: u64) -> usize {
        at + 1 + (epoch % 2) as usize
    }

    /// Stores in the same words, before anything of `epoch` is written, that the process begins to
    /// write it. If the process dies, the journal can have that epoch, but no later one.
    pub fn begin(epoch: u64, notes: &Notes, at: usize) {
        notes.store_control(at + 3, epoch);
    }

    /// Loads the epoch that [`begin`](Self::begin) has stored last; 0 if there was none.
    pub fn begun(notes: &Notes, at: usize) -> u64 {
        notes.control()[at + 3].load(Ordering::Acquire)
    }
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
    /// If `images` is not 64 bytes for each line.
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

    /// Returns whether there are no lines.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Removes all runs, but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.images.clear();
        self.images.shrink_to(KEPT);
    }

    /// Returns the most bytes that the change takes in a segment.
    pub(super) fn encoded_bytes(&self) -> u64 {
        let blocks = self.lines().div_ceil(BLOCK_LINES).max(1);
        // Each block can end inside a run, of which the next block has the rest.
        HEADER as u64 * blocks + 8 * (self.runs.len() as u64 + blocks) + self.images.len() as u64
    }

    /// Divides the change into blocks.
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

/// Adds a block's runs to a change. Returns whether they have `lines` lines in total.
pub(super) fn take_runs(payload: &[u8], runs: usize, lines: u64, change: &mut Change) -> bool {
    let (heads, images) = payload.split_at(runs * 8);
    change.runs.extend(runs_in(heads));
    change.images.extend_from_slice(images);
    run_lines(heads) == lines
}

/// Reads the runs of lines from the beginning of a block's payload.
fn runs_in(heads: &[u8]) -> impl Iterator<Item = Range<u64>> {
    (0..heads.len() / 8).map(|index| {
        let word = word_of(heads, index);
        let first = word & ((1 << 48) - 1);
        first..first + (word >> 48) + 1
    })
}

/// Returns how many lines these runs have.
pub(super) fn run_lines(heads: &[u8]) -> u64 {
    runs_in(heads).map(|run| run.end - run.start).sum()
}

/// Appends the blocks of an epoch to `out`, and returns the checksum of the last.
pub(super) fn encode_epoch(
    out: &mut Vec<u8>,
    mark: Mark,
    epoch: u64,
    change: &Change,
    mut chain: u32,
) -> u32 {
    let blocks = change.blocks();
    for (index, block) in blocks.iter().enumerate() {
        let of = if index + 1 == blocks.len() { blocks.len() as u64 } else { 0 };
        chain = encode_block(out, mark, epoch, index as u64 | of << 32, block, chain);
    }
    chain
}

/// Appends a block to `out`, and returns its checksum. `place` is its index in its epoch and, in the
/// upper half, the number of the epoch's blocks in the last one.
fn encode_block(
    out: &mut Vec<u8>,
    mark: Mark,
    epoch: u64,
    place: u64,
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
    let count = runs.len() as u64 | lines << 32;
    let words = [BLOCK_MAGIC, epoch, place, count, mark.pool, mark.life, u64::from(chain)];
    let head = sealed(words, &out[start + HEADER..]);
    out[start..start + HEADER].copy_from_slice(&head);
    checksum_in(&head)
}

/// Returns a header that consists of these words, of the checksum of words and payload, and of that of
/// the words alone.
pub(super) fn sealed(words: [u64; HEADER / 8 - 1], payload: &[u8]) -> [u8; HEADER] {
    let mut head = [0; HEADER];
    for (word, out) in words.iter().zip(head.chunks_exact_mut(8)) {
        out.copy_from_slice(&word.to_le_bytes());
    }
    let own = header_sum(&head);
    let sum = crc32c::crc32c_append(own, payload);
    head[HEADER - 8..].copy_from_slice(&(u64::from(sum) | u64::from(own) << 32).to_le_bytes());
    head
}

/// Returns the checksum of a header's words.
pub(super) fn header_sum(head: &[u8; HEADER]) -> u32 {
    crc32c::crc32c(&head[..HEADER - 8])
}

/// Returns the checksum of words and payload in a header.
pub(super) fn checksum_in(head: &[u8; HEADER]) -> u32 {
    word_of(head, HEADER / 8 - 1) as u32
}

pub(super) fn word_of(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("eight bytes"))
}
