//! The pool's on-media structs, and nothing else. docs/format.md has drawings of them.

use crate::pmem::{Media, Word};
use std::fmt;

/// First word of each header copy: `outlast` and a zero byte.
pub const MAGIC: u64 = u64::from_le_bytes(*b"outlast\0");
/// The format that this build reads and writes.
pub const FORMAT_VERSION: u32 = 1;
/// Features that an older build may ignore.
pub const COMPATIBLE: u64 = 0;
/// Features that an older build may ignore if it only reads.
pub const READ_ONLY_COMPATIBLE: u64 = EXPIRING_MAPS;
/// Features that an older build must refuse.
pub const INCOMPATIBLE: u64 = 0;
/// In [`field::READ_ONLY_COMPATIBLE`]: the pool has, or had, a map whose records expire.
pub const EXPIRING_MAPS: u64 = 1;

/// Offsets of the two header copies.
pub const HEADER_OFFSETS: [u64; 2] = [0, 4096];
/// Offset of the frontier word, which has a cache line to itself.
pub const FRONTIER_OFFSET: u64 = 8192;
/// Offset of the batch word, which has a cache line to itself. The word points to the log of the
/// batch that is under way; 0 if there is none. See [`pack_batch`].
pub const BATCH_OFFSET: u64 = FRONTIER_OFFSET + 64;
/// Offset of the table of named roots.
pub const ROOTS_OFFSET: u64 = 16 << 10;
/// Number of slots in the table of named roots, and so of maps that a pool can hold.
pub const ROOT_SLOTS: usize = 128;
/// Bytes for the header, the frontier and the named roots. The first page of descriptors begins at
/// the next boundary of a page.
pub const SYSTEM_BYTES: u64 = 128 << 10;

/// In [`field::DIRTY`]: the pool was modified since it was last made clean.
pub const DIRTY: u64 = 1;
/// In [`field::DIRTY`]: a write-back of the pool has failed, or the pool was opened although a
/// power loss may have torn it. It cannot become clean until a verification has found it sound.
pub const SUSPECT: u64 = 2;
/// In [`field::DIRTY`]: the pool lacked a root when it was last clean, see [`field::ROOTS`].
pub const LACKS_ROOT: u64 = 4;

/// Number of words in a header copy.
pub const HEADER_WORDS: usize = 64;

/// One copy of the header.
#[repr(C, align(64))]
pub struct HeaderCopy {
    /// The fields, by their index in [`field`]. The last word is the checksum of the others.
    pub words: [Word; HEADER_WORDS],
}
// SAFETY: it consists of words.
unsafe impl Media for HeaderCopy {}

/// Index of each header field in [`HeaderCopy::words`].
pub mod field {
    /// [`MAGIC`](super::MAGIC).
    pub const MAGIC: usize = 0;
    /// Low half: format version. High half: size of a header copy in bytes.
    pub const VERSION: usize = 1;
    /// Compatible feature bits.
    pub const COMPATIBLE: usize = 2;
    /// Read-only compatible feature bits.
    pub const READ_ONLY_COMPATIBLE: usize = 3;
    /// Incompatible feature bits.
    pub const INCOMPATIBLE: usize = 4;
    /// Pool id, low half.
    pub const ID_LOW: usize = 5;
    /// Pool id, high half.
    pub const ID_HIGH: usize = 6;
    /// Sequence number. Of two intact copies, the one with the greater number counts.
    pub const SEQUENCE: usize = 7;
    /// Size of the pool within its file, in bytes.
    pub const SIZE: usize = 8;
    /// Low half: log2 of the page size. High half: number of the hash function.
    pub const GEOMETRY: usize = 9;
    /// Seed of the hash function.
    pub const SEED: usize = 10;
    /// Number of the medium that the last writer found.
    pub const MEDIUM: usize = 11;
    /// 0 if clean; otherwise [`DIRTY`](super::DIRTY), with [`SUSPECT`](super::SUSPECT) and
    /// [`LACKS_ROOT`](super::LACKS_ROOT) where they apply.
    pub const DIRTY: usize = 12;
    /// Boot id of the last writer, low half.
    pub const BOOT_LOW: usize = 13;
    /// Boot id of the last writer, high half.
    pub const BOOT_HIGH: usize = 14;
    /// Device number of the file that was written.
    pub const DEVICE: usize = 15;
    /// Inode number of the file that was written.
    pub const INODE: usize = 16;
    /// Offset of the saved free state, or 0 if there is none.
    pub const SAVED: usize = 17;
    /// Size of the saved free state in bytes.
    pub const SAVED_BYTES: usize = 18;
    /// The size that the pool has needed while all of its space was accounted for.
    pub const RECLAIMED_SIZE: usize = 19;
    /// The size that the pool may not exceed, or 0 if there is no limit.
    pub const MAX_SIZE: usize = 20;
    /// When the file that was written was created, in nanoseconds since 1970; 0 if the file system
    /// does not report it.
    pub const BORN: usize = 21;
    /// 1 once the writer's dirty mark is known to be on the disk; see `Header::confirm`. Valid only for
    /// the same file under the same boot.
    pub const CONFIRMED: usize = 22;
    /// The commit words of all roots of a clean pool; see [`pack_roots`](super::pack_roots). If the
    /// header's sequence number is not the one in this field, the field has no meaning.
    pub const ROOTS: usize = 23;
    /// The header's sequence number when the background thread made the pool clean while it was
    /// open. If the header's number is now another one, this field has no meaning.
    pub const SYNCED_IDLE: usize = 24;
    /// The id of the file system of the file that was written; 0 if it reports none that outlasts a
    /// mount.
    pub const FILE_SYSTEM: usize = 25;
    /// Low half: CRC-32C of words 0 to 62.
    pub const CHECKSUM: usize = super::HEADER_WORDS - 1;
}

/// Number of words in a root slot.
pub const ROOT_WORDS: usize = 64;
/// Number of words in a root slot that its scheme can use, from word 1 on.
pub const ROOT_SCHEME_WORDS: usize = 7;
/// First word of a root slot that is fixed when the map is created.
pub const ROOT_FIXED: usize = 8;
/// First word of a root slot's texts: name, key schema, value schema.
pub const ROOT_TEXT: usize = 13;
/// Largest total size of a map's name and schemas, in bytes.
pub const ROOT_TEXT_BYTES: usize = (ROOT_WORDS - ROOT_TEXT) * 8;
/// The fixed words of a root, from [`ROOT_FIXED`] on.
pub type FixedWords = [u64; ROOT_WORDS - ROOT_FIXED];

/// One named root.
#[repr(C, align(64))]
pub struct RootSlot {
    /// The commit word. 0: the slot is free. Otherwise low half: 1; high half: CRC-32C of the fixed
    /// words.
    pub commit: Word,
    /// Words for the scheme's use.
    pub scheme: [Word; ROOT_SCHEME_WORDS],
    /// Words 8 to 63: kinds, configuration, map id, texts. Fixed at creation.
    pub fixed: [Word; ROOT_WORDS - ROOT_FIXED],
}
// SAFETY: it consists of words.
unsafe impl Media for RootSlot {}

const _: () = {
    assert!(size_of::<HeaderCopy>() == 512);
    assert!(size_of::<RootSlot>() == 512);
    assert!(HEADER_OFFSETS[1] + 512 <= FRONTIER_OFFSET);
    assert!(ROOTS_OFFSET + (ROOT_SLOTS * size_of::<RootSlot>()) as u64 <= SYSTEM_BYTES);
};

/// The use of a run of pages: the low byte of its first page's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PageKind {
    /// Blocks of one size class.
    Blocks = 1,
    /// One block that takes whole pages.
    Large = 2,
    /// Saved free state. The pages count as free unless the header names them.
    Saved = 3,
    /// A later page of a run. The count is the distance to the first page.
    Continued = 4,
    /// Free after use.
    Free = 5,
}

/// A page descriptor, which says what the page belongs to.
///
/// ```text
///  63      48 47            16 15    8 7     0
/// +----------+----------------+-------+-------+
/// |  check   |     count      | class | kind  |
/// +----------+----------------+-------+-------+
/// ```
///
/// `check` is 16 bits of a CRC-32C over the page number and the lower 48 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// What the page is used for.
    pub kind: PageKind,
    /// Size class of the blocks; 0 if the page has none.
    pub class: u8,
    /// Number of pages in the run, or the distance to its first page.
    pub count: u32,
}

impl Descriptor {
    fn check(page: u32, low: u64) -> u64 {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&page.to_le_bytes());
        bytes[4..].copy_from_slice(&low.to_le_bytes());
        let crc = crc32c::crc32c(&bytes);
        u64::from((crc ^ (crc >> 16)) & 0xffff)
    }

    /// Returns whether the page is the first of a run that holds blocks.
    pub fn is_run(self) -> bool {
        matches!(self.kind, PageKind::Blocks | PageKind::Large)
    }

    /// Encodes the descriptor word of `page`.
    pub fn pack(self, page: u32) -> u64 {
        let low =
            u64::from(self.kind as u8) | u64::from(self.class) << 8 | u64::from(self.count) << 16;
        low | Self::check(page, low) << 48
    }

    /// Decodes the descriptor word of `page`. Returns `None` if `word` is not an intact descriptor.
    pub fn unpack(page: u32, word: u64) -> Option<Descriptor> {
        let low = word & 0xffff_ffff_ffff;
        if word >> 48 != Self::check(page, low) {
            return None;
        }
        let kind = match low as u8 {
            1 => PageKind::Blocks,
            2 => PageKind::Large,
            3 => PageKind::Saved,
            4 => PageKind::Continued,
            5 => PageKind::Free,
            _ => return None,
        };
        Some(Descriptor { kind, class: (low >> 8) as u8, count: (low >> 16) as u32 })
    }
}

/// Encodes the frontier word: the number of pages that may be in use, with its checksum in the high
/// half.
pub fn pack_frontier(pages: u32) -> u64 {
    u64::from(pages) | u64::from(crc32c::crc32c(&pages.to_le_bytes())) << 32
}

/// Decodes the frontier word. Returns `None` if it is damaged.
pub fn unpack_frontier(word: u64) -> Option<u32> {
    let pages = word as u32;
    (pack_frontier(pages) == word).then_some(pages)
}

/// Encodes what a clean header records of the roots: the CRC-32C of their commit words, and the
/// header's sequence number at that time.
pub fn pack_roots(commits: u32, sequence: u64) -> u64 {
    1 << 63 | (sequence & 0x7fff_ffff) << 32 | u64::from(commits)
}

/// Encodes the batch word: the offset of the log, and a checksum in the high 16 bits.
pub fn pack_batch(offset: u64) -> u64 {
    let crc = crc32c::crc32c(&offset.to_le_bytes());
    offset | u64::from(crc ^ crc >> 16) << 48
}

/// Decodes a batch word that is not 0. Returns `None` if it is damaged.
pub fn unpack_batch(word: u64) -> Option<u64> {
    let offset = word & 0xffff_ffff_ffff;
    (pack_batch(offset) == word).then_some(offset)
}

/// First word of the log of a batch: its magic.
pub const BATCH_MAGIC: u64 = u64::from_le_bytes(*b"batchlog");

/// First word of the saved free state: its magic.
pub const SAVED_MAGIC: u64 = u64::from_le_bytes(*b"freestat");

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 1 << 16;
/// Longest value in bytes. Pools with pages of less than 64 KiB have a lower limit:
/// [`Pool::max_value_bytes`](crate::Pool::max_value_bytes).
pub const MAX_VALUE_BYTES: usize = 1 << 28;

/// Bytes of the time before each value of a map whose records expire.
pub const TIME_BYTES: usize = 8;
/// In the byte of a root's record form: the records of the map expire.
pub const EXPIRES: u64 = 0x80;

/// How an index stores records. The numbers are written to media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordForm {
    /// 8-byte keys and values, stored in the slot.
    Inline = 1,
    /// Byte strings, stored in a block that the slot points to.
    Bytes = 2,
}

impl RecordForm {
    /// Both forms.
    pub const ALL: [RecordForm; 2] = [RecordForm::Inline, RecordForm::Bytes];

    /// Returns the form with this number on media.
    #[doc(hidden)]
    pub fn from_media(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|f| *f as u8 == number)
    }
}

impl fmt::Display for RecordForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecordForm::Inline => "inline",
            RecordForm::Bytes => "bytes",
        })
    }
}
