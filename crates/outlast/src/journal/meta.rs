//! What a rebuild of the pool needs to know: two checksummed copies of it in one file.

use super::files::{Directory, JournalFile};
use std::io;

/// The file's name.
pub const NAME: &str = "meta";
/// Offset of the second copy, in bytes: far enough that no device writes both together.
const COPY: u64 = 64 << 10;
const BYTES: usize = 96;
const MAGIC: u64 = u64::from_le_bytes(*b"OLJMETA1");

/// What a rebuild needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// The pool's id.
    pub pool: u128,
    /// The current life.
    pub life: u128,
    /// The base needs the epochs after this one.
    pub checkpoint: u64,
    /// The base may hold lines of epochs up to this one, so a rebuild must reach it.
    pub reached: u64,
    /// Bytes of the pool. The base is extended first, then this is raised, then the pool grows.
    pub size: u64,
}

/// The file, and what it holds.
pub struct MetaFile {
    file: Box<dyn JournalFile>,
    sequence: u64,
    meta: Meta,
}

impl MetaFile {
    /// Creates the file, durably, with this content.
    pub fn create(directory: &dyn Directory, meta: Meta) -> io::Result<MetaFile> {
        let file = directory.create(NAME, 2 * COPY)?;
        let mut file = MetaFile { file, sequence: 0, meta };
        file.replace(|_| ())?;
        Ok(file)
    }

    /// Reads the newer whole copy, and makes it durable. Returns `None` if neither is whole.
    pub fn open(directory: &dyn Directory) -> io::Result<Option<MetaFile>> {
        let file = directory.open(NAME)?;
        let (mut newest, mut whole) = (None, 0);
        for copy in 0..2 {
            let mut bytes = [0; BYTES];
            if file.read_at(&mut bytes, copy * COPY)? == BYTES
                && let Some((sequence, meta)) = decode(&bytes)
                && sequence % 2 == copy
            {
                whole += 1;
                if newest.is_none_or(|(other, _)| other < sequence) {
                    newest = Some((sequence, meta));
                }
            }
        }
        let Some((sequence, meta)) = newest else { return Ok(None) };
        let file = MetaFile { file, sequence, meta };
        if whole == 2 {
            // A process that died may have written the newer copy without effect, and only that
            // process was told. The next write goes over the other copy. (If that one is not whole,
            // it was being written, so this one was durable.)
            file.write(sequence, &meta)?;
        }
        Ok(Some(file))
    }

    /// Returns the content.
    pub fn get(&self) -> Meta {
        self.meta
    }

    /// As [`update`](Self::update), in both copies: the content before that is needed no more, and what
    /// belongs to it can be deleted.
    pub fn replace(&mut self, change: impl FnOnce(&mut Meta)) -> io::Result<()> {
        self.update(change)?;
        self.update(|_| ())
    }

    /// Changes the content, durably. A crash in between, or damage to one copy, leaves the old content
    /// or the new. After an error [`get`](Self::get) returns the old one, and the disk may have either.
    pub fn update(&mut self, change: impl FnOnce(&mut Meta)) -> io::Result<()> {
        let mut meta = self.meta;
        change(&mut meta);
        // The copy with the present sequence number is on the disk. After an error, the next write
        // goes over the same other copy again.
        let sequence = self.sequence + 1;
        self.write(sequence, &meta)?;
        (self.sequence, self.meta) = (sequence, meta);
        Ok(())
    }

    fn write(&self, sequence: u64, meta: &Meta) -> io::Result<()> {
        self.file.write_at(&encode(meta, sequence), sequence % 2 * COPY)?;
        self.file.sync()
    }
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
    if word(0) != MAGIC || word(BYTES / 8 - 1) != sum {
        return None;
    }
    let (checkpoint, reached, size) = (word(6), word(7), word(8));
    Some((word(1), Meta { pool: wide(2), life: wide(4), checkpoint, reached, size }))
}
