//! `meta`: what a rebuild of the pool needs to know. Two checksummed copies of it are in the base, in
//! pages that the pool itself does not use.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::epoch::Attempt;
use super::files::JournalFile;
use super::segment::Owner;

/// Offsets of the two copies in the base. They are so far apart that no device writes both
/// together.
pub const META_OFFSETS: [u64; 2] = [12 << 10, 96 << 10];
const BYTES: usize = 96;
const MAGIC: u64 = u64::from_le_bytes(*b"OLJMETA1");

/// Offset of the note of the working file's directory. It follows the first copy of `meta` in its page.
const PLACE_OFFSET: u64 = META_OFFSETS[0] + 512;
const PLACE_MAGIC: u64 = u64::from_le_bytes(*b"OLJPLACE");
/// Bytes of the note before the path: magic, life (16 bytes), length, checksum.
const PLACE_HEAD: usize = 40;
/// Longest path that is noted, in bytes. The note ends with the page.
const PLACE_MAX: usize = 4096 - 512 - PLACE_HEAD;

/// The content of `meta`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// The pool's id.
    pub pool: u128,
    /// The current life.
    pub life: u128,
    /// The base needs the epochs after this one.
    pub checkpoint: u64,
    /// The base may hold lines of epochs up to this one, so a rebuild must apply all epochs up to
    /// it.
    pub reached: u64,
    /// The checksum of the last block of that epoch; 0 if it is not known.
    pub reached_sum: u32,
    /// The least size of the base, in bytes. A shorter file is not the base.
    pub size: u64,
    /// Whether the life has ended: the base is the pool, and needs no journal.
    pub closed: bool,
    /// The low 64 bits of the id of the boot in which the life began.
    pub boot: u64,
}

impl Meta {
    /// The owner of the base's journal.
    pub fn owner(&self) -> Owner {
        Owner { pool: self.pool, life: self.life }
    }

    /// Returns the attempt at the epoch `reached` whose lines the base may hold.
    pub fn reached_by(&self) -> Attempt {
        Attempt { epoch: self.reached, sum: self.reached_sum }
    }

    /// Sets `reached` to this attempt's epoch.
    pub fn reach(&mut self, Attempt { epoch, sum }: Attempt) {
        (self.reached, self.reached_sum) = (epoch, sum);
    }

    /// Returns the last epoch of the life, if the life has ended.
    pub fn end(&self) -> Option<u64> {
        self.closed.then_some(self.checkpoint)
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

/// Overwrites both copies and the note of the directory with zeros, without a sync.
pub(super) fn wipe(file: &dyn JournalFile) -> io::Result<()> {
    META_OFFSETS.iter().try_for_each(|&at| file.write_at(&[0; BYTES], at))?;
    file.write_at(&[0; PLACE_HEAD], PLACE_OFFSET)
}

/// Notes the directory of a life's working file, without a sync. A path that is too long is not noted.
pub(super) fn write_place(file: &dyn JournalFile, life: u128, place: &Path) -> io::Result<()> {
    let path = place.as_os_str().as_bytes();
    if path.len() > PLACE_MAX {
        return Ok(());
    }
    file.write_at(&[head_of_place(life, path).as_slice(), path].concat(), PLACE_OFFSET)
}

/// Returns the directory that [`write_place`] has noted for this life. Returns `None` if there is no
/// such note, or if it is being written.
pub(super) fn read_place(file: &dyn JournalFile, life: u128) -> io::Result<Option<PathBuf>> {
    let mut note = [0; PLACE_HEAD + PLACE_MAX];
    let read = file.read_at(&mut note, PLACE_OFFSET)?;
    let (head, path) = note[..read].split_at_checked(PLACE_HEAD).unwrap_or_default();
    let Some(len) = head.get(24..32) else { return Ok(None) };
    let len = u64::from_le_bytes(len.try_into().expect("eight bytes"));
    let path = usize::try_from(len).ok().and_then(|len| path.get(..len));
    let noted = path.filter(|path| head == head_of_place(life, path));
    Ok(noted.map(|path| OsString::from_vec(path.to_vec()).into()))
}

fn head_of_place(life: u128, path: &[u8]) -> [u8; PLACE_HEAD] {
    let mut head = [0; PLACE_HEAD];
    head[..8].copy_from_slice(&PLACE_MAGIC.to_le_bytes());
    head[8..24].copy_from_slice(&life.to_le_bytes());
    head[24..32].copy_from_slice(&(path.len() as u64).to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&head[..32]), path);
    head[32..].copy_from_slice(&u64::from(checksum).to_le_bytes());
    head
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
        u64::from(meta.closed) | u64::from(meta.reached_sum) << 32,
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
    if word(0) != MAGIC || word(BYTES / 8 - 1) != sum || word(9) as u32 > 1 {
        return None;
    }
    // No journal comes to such a sequence number, or to so many epochs.
    if [1, 6, 7].into_iter().any(|index| word(index) >= 1 << 63) {
        return None;
    }
    let (checkpoint, reached, size) = (word(6), word(7), word(8));
    let (closed, reached_sum, boot) = (word(9) & 1 == 1, (word(9) >> 32) as u32, word(10));
    let (pool, life) = (wide(2), wide(4));
    let meta = Meta { pool, life, checkpoint, reached, reached_sum, size, closed, boot };
    Some((word(1), meta))
}
