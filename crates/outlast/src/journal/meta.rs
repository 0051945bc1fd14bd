//! `meta`: what a rebuild of the pool needs to know. Two checksummed copies of it are in the base, in
//! pages that the pool itself does not use.

use std::io;

use super::files::JournalFile;
use super::segment::Owner;

/// Offsets of the two copies in the base. They are so far apart that no device writes both
/// together.
pub const META_OFFSETS: [u64; 2] = [12 << 10, 96 << 10];
const BYTES: usize = 96;
const MAGIC: u64 = u64::from_le_bytes(*b"OLJMETA1");

/// The content of `meta`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// The pool's id.
    pub pool: u128,
    /// The current life.
    pub life: u128,
    /// The base needs the epochs after this one.
    pub checkpoint: u64,
    /// The base may hold lines of epochs up to this one, so a rebuild must reach it.
    pub reached: u64,
    /// The least size of the base in bytes.
    pub size: u64,
    /// Whether the life has ended: the base is the pool, and needs no journal.
    pub closed: bool,
    /// The low bits of the id of the boot in which the life began.
    pub boot: u64,
}

impl Meta {
    /// The owner of the base's journal.
    pub fn owner(&self) -> Owner {
        Owner { pool: self.pool, life: self.life }
    }
}

/// Reads `meta` while another process may be writing it. Never returns content that had been
/// replaced before this call. Returns `None` if the base has no `meta`.
///
/// One read is not enough:
///
/// 1. The reader reads the first copy. The second copy has newer content.
/// 2. The writer writes the next content to the first copy, and begins to write the one after that
///    to the second copy.
/// 3. The reader reads the second copy, which is incomplete, and returns what it read in step 1.
///
/// A second read would find the next content in the first copy. So two reads in a row with the same
/// result are enough.
pub(super) fn read_while_written(file: &dyn JournalFile) -> io::Result<Option<Meta>> {
    let mut before = read(file)?.0;
    loop {
        let now = read(file)?.0;
        if now == before {
            return Ok(now.map(|(_, meta)| meta));
        }
        before = now;
    }
}

/// Returns the newer intact copy with its sequence number, and the number of intact copies.
pub(super) fn read(file: &dyn JournalFile) -> io::Result<(Option<(u64, Meta)>, usize)> {
    let (mut newest, mut whole) = (None, 0);
    for copy in 0..2 {
        let mut bytes = [0; BYTES];
        if file.read_at(&mut bytes, META_OFFSETS[copy as usize])? == BYTES
            && let Some((sequence, meta)) = decode(&bytes)
            && sequence % 2 == copy
        {
            whole += 1;
            if newest.is_none_or(|(other, _)| other < sequence) {
                newest = Some((sequence, meta));
            }
        }
    }
    Ok((newest, whole))
}

/// Writes one copy, without a sync.
pub(super) fn write(file: &dyn JournalFile, sequence: u64, meta: &Meta) -> io::Result<()> {
    file.write_at(&encode(meta, sequence), META_OFFSETS[(sequence % 2) as usize])
}

/// Overwrites both copies with zeros, without a sync.
pub(super) fn wipe(file: &dyn JournalFile) -> io::Result<()> {
    META_OFFSETS.iter().try_for_each(|&at| file.write_at(&[0; BYTES], at))
}

fn encode(meta: &Meta, sequence: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let words = [
        MAGIC,
        sequence,
        meta.pool as u64,
        (meta.pool >> 64) as u64,
        meta.life as u64,
        (meta.life >> 64) as u64,
        meta.checkpoint,
        meta.reached,
        meta.size,
        u64::from(meta.closed),
        meta.boot,
    ];
    for (word, out) in words.iter().zip(bytes.chunks_exact_mut(8)) {
        out.copy_from_slice(&word.to_le_bytes());
    }
    let checksum = u64::from(crc32c::crc32c(&bytes[..BYTES - 8]));
    bytes[BYTES - 8..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; BYTES]) -> Option<(u64, Meta)> {
    let word = |index: usize| {
        u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("eight bytes"))
    };
    let wide = |index| u128::from(word(index)) | u128::from(word(index + 1)) << 64;
    let sum = u64::from(crc32c::crc32c(&bytes[..BYTES - 8]));
    if word(0) != MAGIC || word(BYTES / 8 - 1) != sum || word(9) > 1 {
        return None;
    }
    let (checkpoint, reached, size) = (word(6), word(7), word(8));
    let (closed, boot) = (word(9) == 1, word(10));
    Some((word(1), Meta { pool: wide(2), life: wide(4), checkpoint, reached, size, closed, boot }))
}
