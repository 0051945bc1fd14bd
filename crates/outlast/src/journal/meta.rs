//! What a rebuild of the pool needs to know: two checksummed copies of it in one file.

use super::files::{Directory, JournalFile};
use std::io;

/// The file's name.
pub const NAME: &str = "meta";
/// Offset of the second copy, in bytes. It lies in a sector of its own.
const COPY: u64 = 4096;
const BYTES: usize = 112;
const MAGIC: u64 = u64::from_le_bytes(*b"OLJMETA1");

/// What a rebuild needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// The pool's id.
    pub pool: u128,
    /// The current life.
    pub life: u128,
    /// The boot of the system under which the life began. Under the same boot, the page cache may
    /// hold content that the disk does not have.
    pub boot: u128,
    /// The base needs the epochs after this one.
    pub checkpoint: u64,
    /// The base may hold lines of epochs up to this one, so a rebuild must reach it.
    pub reached: u64,
    /// Bytes of the pool at epoch `reached`. The base is at least as long.
    pub size: u64,
}

/// The file.
pub struct MetaFile {
    file: Box<dyn JournalFile>,
    sequence: u64,
}

impl MetaFile {
    /// Creates the file, durably, with this content.
    pub fn create(directory: &dyn Directory, meta: &Meta) -> io::Result<MetaFile> {
        let mut file = MetaFile { file: directory.create(NAME, 2 * COPY)?, sequence: 0 };
        file.write(meta)?;
        Ok(file)
    }

    /// Reads the newer whole copy. Returns `None` if neither is whole.
    pub fn open(directory: &dyn Directory) -> io::Result<Option<(MetaFile, Meta)>> {
        let file = directory.open(NAME)?;
        let mut newest = None;
        for copy in 0..2 {
            let mut bytes = [0; BYTES];
            if file.read_at(&mut bytes, copy * COPY)? == BYTES
                && let Some((sequence, meta)) = decode(&bytes)
                && sequence % 2 == copy
                && newest.is_none_or(|(other, _)| other < sequence)
            {
                newest = Some((sequence, meta));
            }
        }
        Ok(newest.map(|(sequence, meta)| (MetaFile { file, sequence }, meta)))
    }

    /// Replaces the content, durably. A crash in between leaves the old content or the new.
    pub fn write(&mut self, meta: &Meta) -> io::Result<()> {
        let sequence = self.sequence + 1;
        self.file.write_at(&encode(meta, sequence), sequence % 2 * COPY)?;
        self.file.sync()?;
        // On an error, the next write goes over the same copy: the other one is the one known to be
        // on the disk.
        self.sequence = sequence;
        Ok(())
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
        meta.boot as u64,
        (meta.boot >> 64) as u64,
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
    let (checkpoint, reached, size) = (word(8), word(9), word(10));
    let (pool, life, boot) = (wide(2), wide(4), wide(6));
    Some((word(1), Meta { pool, life, boot, checkpoint, reached, size }))
}
