//! An offline walk of a pool's file, from its format alone.
//!
//! [`walk`] reads a file that no pool has open, closed cleanly or left by a crash, and
//! accounts for every byte of it. It is written from docs/format.md and shares no code
//! with the allocator, the gate, the mapping or the indexes: what those get wrong
//! together, this finds. It stores nothing, and no content makes it panic, loop for
//! ever or read outside the file. What is peculiar to a scheme stands in a file of its own.
//!
//! In a pool that was closed cleanly,
//!
//! ```text
//! file = header + structure + records + free + unusable + leaked
//! ```
//!
//! and nothing is leaked. After a crash, what no map owns counts as free: the next open
//! reclaims it.

mod clevel;
mod dash_eh;
mod phast;

use crate::error::{Damage, Error, Result};
use crate::index::{RecordForm, Scheme};
use crate::pool::geometry::{CLASSES, LARGE, PAGE_BITS};
use crate::pool::layout::{
    COMPATIBLE, FORMAT_VERSION, FRONTIER_OFFSET, HEADER_OFFSETS, HEADER_WORDS, INCOMPATIBLE,
    LACKS_ROOT, MAGIC, ROOT_FIXED, ROOT_SLOTS, ROOT_TEXT, ROOT_TEXT_BYTES, ROOT_WORDS,
    ROOTS_OFFSET, SAVED_MAGIC, SYSTEM_BYTES, field,
};
use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const _: () = assert!(COMPATIBLE == 1, "no feature that the walk would have to know");

/// What a walk found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Header copies, frontier, named roots, page descriptors.
    pub header_bytes: u64,
    /// Blocks of directories, segments and overflow nodes.
    pub structure_bytes: u64,
    /// Blocks of records.
    pub record_bytes: u64,
    /// Free blocks and pages; what lies behind the pool's end is counted here too.
    pub free_bytes: u64,
    /// What of [`free_bytes`](Report::free_bytes) is free blocks of runs in use.
    pub free_block_bytes: u64,
    /// Ends of runs that are too small for a block, and the saved free state.
    pub unusable_bytes: u64,
    /// What of [`unusable_bytes`](Report::unusable_bytes) is the saved free state.
    pub saved_bytes: u64,
    /// Blocks in use that nothing links to. 0 where the free state is not known.
    pub leaked_bytes: u64,
    /// Records of all maps.
    pub records: u64,
    /// Each map whose root could be read.
    pub maps: Vec<MapReport>,
    /// Whether the pool was closed cleanly, or synced and not modified since.
    pub clean: bool,
    /// Whether the pool's own saved free state was there to hold the blocks against.
    pub free_state: bool,
    /// log2 of the page size.
    pub page_bits: u32,
    /// A copy of the header that is not whole, which a crash leaves, too. The next change writes it
    /// anew.
    pub header_copy: Option<Damage>,
    /// Everything that is not as it should be.
    pub problems: Vec<Damage>,
}

impl Report {
    /// The sum of all kinds of bytes: [`file_bytes`](Report::file_bytes), always.
    pub fn sum(&self) -> u64 {
        self.header_bytes
            + self.structure_bytes
            + self.record_bytes
            + self.free_bytes
            + self.unusable_bytes
            + self.leaked_bytes
    }
}

/// What a walk found in one map.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapReport {
    /// Its name.
    pub name: String,
    /// Its scheme.
    pub scheme: Scheme,
    /// Its record form.
    pub form: RecordForm,
    /// Schema of its keys.
    pub key_schema: String,
    /// Schema of its values.
    pub value_schema: String,
    /// Segments, or levels.
    pub segments: u64,
    /// Overflow nodes.
    pub nodes: u64,
    /// Depth of its directory, or log2 of the buckets of its newest level.
    pub depth: u32,
    /// Records, each key once.
    pub records: u64,
    /// Second copies of records, which a crash leaves and the next open removes.
    pub duplicates: u64,
    /// Records whose checksum or hash does not match.
    pub torn: u64,
    /// Whether all of it could be read.
    pub whole: bool,
}

/// Something of the format, at a place in a file. For tests that damage it.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// What it is.
    pub what: What,
}

/// What a [`Region`] is.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum What {
    Header,
    Frontier,
    RootCommit,
    RootScheme,
    RootFixed,
    Descriptor { page: u32 },
    SavedState,
    Directory { depth: u32 },
    Entry,
    Segment { shape: u16 },
    Bucket { form: RecordForm },
    Node,
    ClevelRoot,
    Context { levels: usize },
    Level { bits: u32 },
    ReadyLevel,
    ChainNode,
    ClevelSlot,
    ClevelRecord,
    PhastRoot,
    Master { entries: u32 },
    MasterEntries,
    LeafHead { slots: u32 },
    LeafPlace { form: RecordForm, slots: u32 },
    Pair { form: RecordForm },
    LiveSlot { form: RecordForm, depth: u32 },
    Record,
}

/// Walks the pool in a file.
///
/// # Errors
/// As [`PoolOptions::open`](crate::PoolOptions::open), where the header tells nothing of
/// the rest; [`Error::Locked`] while a pool has the file open. Damage that leaves the
/// rest readable is in the report.
pub fn walk(path: &Path) -> Result<Report> {
    let action = || format!("reading {}", path.display());
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let open = File::options().read(true).custom_flags(flags).open(path);
    let file = open.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::NoSuchPool { path: path.into() },
        _ => Error::io(action(), e),
    })?;
    let meta = file.metadata().map_err(|e| Error::io(action(), e))?;
    if !meta.is_file() {
        return Err(Error::NotAPool { found: "something that is no regular file".into() });
    }
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).map_err(
        |e| match e {
            rustix::io::Errno::WOULDBLOCK => Error::Locked,
            other => Error::io("locking the pool", other.into()),
        },
    )?;
    let walked = walk_image(Image { source: Source::File(&file), len: meta.len() }, None);
    // Closing the file is not enough: a child that another thread is just starting holds a
    // copy of it until it runs its program.
    let _ = rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock);
    walked
}

/// Walks a pool whose file's content is `bytes`.
///
/// # Errors
/// As [`walk`].
pub fn walk_bytes(bytes: &[u8]) -> Result<Report> {
    walk_image(Image { source: Source::Bytes(bytes), len: bytes.len() as u64 }, None)
}

/// As [`walk_bytes`]; tells also what stands where.
#[doc(hidden)]
pub fn regions(bytes: &[u8]) -> Result<(Report, Vec<Region>)> {
    let mut regions = Vec::new();
    let image = Image { source: Source::Bytes(bytes), len: bytes.len() as u64 };
    let report = walk_image(image, Some(&mut regions))?;
    Ok((report, regions))
}

// ---- The file -------------------------------------------------------------------

#[derive(Clone, Copy)]
enum Source<'f> {
    File(&'f File),
    Bytes(&'f [u8]),
}

/// A file's content: every read is checked against its end.
#[derive(Clone, Copy)]
struct Image<'f> {
    source: Source<'f>,
    len: u64,
}

impl Image<'_> {
    fn bytes(&self, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            return Err(Damage::new(
                offset,
                format!("{bytes} bytes inside the {} of the pool", self.len),
                "its end",
            )
            .into());
        }
        match self.source {
            Source::Bytes(all) => Ok(all[offset as usize..(offset + bytes) as usize].to_vec()),
            Source::File(file) => {
                let mut out = vec![0; bytes as usize];
                file.read_exact_at(&mut out, offset)
                    .map_err(|e| Error::io(format!("reading {bytes} bytes at {offset:#x}"), e))?;
                Ok(out)
            }
        }
    }

    fn words(&self, offset: u64, words: u64) -> Result<Vec<u64>> {
        if !offset.is_multiple_of(8) {
            return Err(Damage::new(offset, "words at a multiple of 8", "an odd offset").into());
        }
        Ok(to_words(&self.bytes(offset, words * 8)?))
    }

    fn word(&self, offset: u64) -> Result<u64> {
        Ok(self.words(offset, 1)?[0])
    }
}

fn to_words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes"))).collect()
}

// ---- Checksums and packed words, as docs/format.md gives them ---------------------

static CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// CRC-32C of some pieces of bytes, one after the other.
fn crc(pieces: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for piece in pieces {
        for &byte in *piece {
            crc = CRC_TABLE[((crc ^ u32::from(byte)) & 0xff) as usize] ^ crc >> 8;
        }
    }
    !crc
}

/// CRC-32C of words.
fn crc_words(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    u64::from(crc(&[&bytes]))
}

/// A 32-bit checksum folded to 16 bits.
fn fold16(crc: u64) -> u64 {
    (crc ^ crc >> 16) & 0xffff
}

const LOW48: u64 = (1 << 48) - 1;

fn identity(kind: u64, shape: u64, offset: u64, fixed: u64) -> u64 {
    let low = kind | shape << 16;
    low | crc_words(&[low, offset, fixed]) << 32
}

/// The pool's hash function.
struct Hash {
    secrets: RapidSecrets,
    /// Function 0x7e57: keys of 2^32 and more have one hash.
    degenerate: bool,
}

impl Hash {
    fn of(&self, key: &[u8]) -> u64 {
        let collides = key.first_chunk().is_some_and(|head| u64::from_le_bytes(*head) >> 32 != 0);
        if self.degenerate && collides {
            return 0xa5a5_5a5a_1234_5678;
        }
        rapidhash_v3_inline::<true, false, false>(key, &self.secrets)
    }
}

// ---- Header -----------------------------------------------------------------------

struct Header {
    words: Vec<u64>,
    problems: Vec<Damage>,
}

fn read_header(image: &Image<'_>) -> Result<Header> {
    if image.len < SYSTEM_BYTES {
        let magic = if image.len >= HEADER_OFFSETS[1] + 8 { image.word(0)? } else { 0 };
        if magic == MAGIC {
            return Err(Error::Truncated { expected: SYSTEM_BYTES, actual: image.len });
        }
        return Err(Error::NotAPool { found: format!("a file of {} bytes", image.len) });
    }
    let mut best: Option<Vec<u64>> = None;
    let mut problems = Vec::new();
    let mut any_magic = false;
    for (copy, offset) in HEADER_OFFSETS.into_iter().enumerate() {
        let words = image.words(offset, HEADER_WORDS as u64)?;
        let sum = crc_words(&words[..field::CHECKSUM]);
        any_magic |= words[field::MAGIC] == MAGIC;
        let sequence = words[field::SEQUENCE];
        if words[field::MAGIC] != MAGIC
            || words[field::CHECKSUM] != sum
            || sequence % 2 != copy as u64
            || sequence >= 1 << 63
        {
            problems.push(Damage::new(
                offset,
                format!("copy {copy} of the header, with checksum {sum:#x}"),
                format!(
                    "magic {:#x}, checksum {:#x}, sequence number {sequence}",
                    words[0],
                    words[field::CHECKSUM]
                ),
            ));
        } else if best.as_ref().is_none_or(|best| best[field::SEQUENCE] < sequence) {
            best = Some(words);
        }
    }
    let Some(words) = best else {
        return Err(match problems.pop() {
            Some(damage) if any_magic => Error::DamagedHeader(damage),
            _ => Error::NotAPool { found: format!("first word {:#018x}", image.word(0)?) },
        });
    };
    let version = words[field::VERSION] as u32;
    if version != FORMAT_VERSION {
        return Err(Error::Version { found: version, supported: FORMAT_VERSION });
    }
    let unknown = words[field::INCOMPATIBLE] & !INCOMPATIBLE;
    if unknown != 0 {
        return Err(Error::UnknownFeature { bits: unknown, set: "incompatible" });
    }
    Ok(Header { words, problems })
}

// ---- Space ------------------------------------------------------------------------

/// A run of pages that holds blocks.
struct Run {
    pages: u64,
    class: u8,
    block_bytes: u64,
    blocks: u64,
    /// Blocks that the saved free state calls used.
    used: Option<Vec<u64>>,
    /// Blocks that something links to.
    claimed: Vec<u64>,
}

fn is_set(bits: &[u64], index: u64) -> bool {
    bits[(index / 64) as usize] >> (index % 64) & 1 == 1
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Structure,
    Record,
}

struct Walk<'f, 'r> {
    image: Image<'f>,
    regions: Option<&'r mut Vec<Region>>,
    page_bits: u32,
    /// Pages of the pool.
    total: u64,
    frontier: u64,
    /// The header's read-only compatible features.
    features: u64,
    hash: Hash,
    runs: BTreeMap<u64, Run>,
    report: Report,
}

impl Walk<'_, '_> {
    fn page_bytes(&self) -> u64 {
        1 << self.page_bits
    }
    fn region_pages(&self) -> u64 {
        self.page_bytes() / 8
    }
    /// The page of the first region's descriptors: the first one behind the system area.
    fn first_descriptors(&self) -> u64 {
        SYSTEM_BYTES.div_ceil(self.page_bytes())
    }
    fn is_system(&self, page: u64) -> bool {
        page <= self.first_descriptors() || page.is_multiple_of(self.region_pages())
    }
    fn descriptor_offset(&self, page: u64) -> u64 {
        let region = page / self.region_pages();
        let table =
            if region == 0 { self.first_descriptors() } else { region * self.region_pages() };
        (table << self.page_bits) + page % self.region_pages() * 8
    }

    fn problem(&mut self, damage: Damage) {
        // Enough to tell what is wrong; a hostile file can hold a problem in every word.
        if self.report.problems.len() < 10_000 {
            self.report.problems.push(damage);
        }
    }

    fn region(&mut self, offset: u64, bytes: u64, what: What) {
        if let Some(regions) = &mut self.regions {
            regions.push(Region { offset, bytes, what });
        }
    }

    /// Kind, class and count of a page's descriptor; `None` if none was written.
    fn descriptor(&self, page: u64) -> Result<Option<(u64, u8, u64)>> {
        let offset = self.descriptor_offset(page);
        let word = self.image.word(offset)?;
        if word == 0 {
            return Ok(None);
        }
        let low = word & LOW48;
        let page_bytes = (page as u32).to_le_bytes();
        let check = fold16(u64::from(crc(&[&page_bytes, &low.to_le_bytes()])));
        let kind = low & 0xff;
        if word >> 48 != check || !(1..=5).contains(&kind) {
            let expected = format!("a descriptor of page {page}");
            return Err(Damage::new(offset, expected, format!("{word:#x}")).into());
        }
        Ok(Some((kind, (low >> 8) as u8, low >> 16)))
    }

    /// The run that a descriptor of kind 1 or 2 describes.
    fn run_of(&self, page: u64, class: u8, kind: u64, pages: u64) -> Result<Run, Damage> {
        let bad = |why: String| {
            let found = format!("kind {kind}, class {class}, {pages} pages");
            Err(Damage::new(self.descriptor_offset(page), why, found))
        };
        let left = self.region_pages() - page % self.region_pages();
        if pages == 0 || pages > left {
            return bad("a run inside its region".into());
        }
        let bytes = pages << self.page_bits;
        let (block_bytes, blocks) = if kind == 2 {
            if class != LARGE {
                return bad("class 255 for a large block".into());
            }
            (bytes, 1)
        } else {
            let size = CLASSES.get(usize::from(class)).map(|&size| u64::from(size));
            let Some(size) = size.filter(|size| size * 2 <= self.page_bytes()) else {
                return bad("a class whose blocks are at most half a page".into());
            };
            // One page where that holds 16 blocks, else enough for 15.
            let expected = if size * 16 <= self.page_bytes() {
                1
            } else {
                (size * 15).div_ceil(self.page_bytes())
            };
            if pages != expected {
                return bad(format!("{expected} pages for blocks of {size} bytes"));
            }
            (size, bytes / size)
        };
        let claimed = vec![0; blocks.div_ceil(64) as usize];
        Ok(Run { pages, class, block_bytes, blocks, used: None, claimed })
    }

    /// All runs, by what the descriptors below the frontier say.
    fn read_descriptors(&mut self) -> Result<()> {
        let mut page = self.first_descriptors() + 1;
        while page < self.frontier {
            if self.is_system(page) {
                page += 1;
                continue;
            }
            let found = match self.descriptor(page) {
                // What two claims that were cut short can leave; no run.
                Ok(Some((1 | 2, _, pages))) if page + pages > self.frontier => Ok(None),
                Ok(Some((kind @ (1 | 2), class, pages))) => {
                    self.run_of(page, class, kind, pages).map(Some)
                }
                Ok(_) => Ok(None),
                Err(Error::Damaged(damage)) => Err(damage),
                Err(error) => return Err(error),
            };
            match found {
                Ok(Some(run)) => {
                    let pages = run.pages;
                    self.runs.insert(page, run);
                    page += pages;
                }
                Ok(None) => page += 1,
                Err(damage) => {
                    self.problem(damage);
                    page += 1;
                }
            }
        }
        Ok(())
    }

    /// The saved free state: which blocks are in use. Whether it is there and whole.
    fn read_saved(&mut self, offset: u64, bytes: u64) -> Result<bool> {
        if offset == 0 {
            return Ok(false);
        }
        let bad = |expected: &str, found: String| Damage::new(offset, expected, found);
        let words = match self.image.words(offset, bytes / 8) {
            Ok(words) if bytes >= 24 && bytes.is_multiple_of(8) => words,
            Ok(_) => {
                self.problem(bad("a saved free state", format!("{bytes} bytes")));
                return Ok(false);
            }
            Err(Error::Damaged(damage)) => {
                self.problem(damage);
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let sum = crc_words(&words[3..]);
        if words[0] != SAVED_MAGIC || words[1] != words.len() as u64 || words[2] != sum {
            let found = format!("{:#x} {:#x} {:#x}", words[0], words[1], words[2]);
            self.problem(bad("a saved free state's magic, length and checksum", found));
            return Ok(false);
        }
        let (head, pages) = (offset >> self.page_bits, bytes.div_ceil(self.page_bytes()));
        let descriptor = self.descriptor(head);
        if !offset.is_multiple_of(self.page_bytes())
            || self.is_system(head)
            || !matches!(descriptor, Ok(Some((3, _, count))) if count == pages)
            || head + pages > self.frontier
            || self.runs.range(..head + pages).next_back().is_some_and(|(p, r)| p + r.pages > head)
        {
            self.problem(bad("a run of pages for the saved free state", format!("{descriptor:?}")));
            return Ok(false);
        }
        let mut used = Vec::new();
        let mut at = 3;
        let mut after = 0;
        while at < words.len() {
            let page = words[at];
            let Some(run) = self.runs.get(&page).filter(|_| page >= after) else {
                self.problem(bad("runs by ascending page", format!("page {page}")));
                return Ok(false);
            };
            let count = run.claimed.len();
            let Some(bits) = words.get(at + 1..at + 1 + count) else {
                self.problem(bad("a bit for every block", format!("the end in page {page}")));
                return Ok(false);
            };
            if (run.blocks..count as u64 * 64).any(|i| is_set(bits, i)) {
                self.problem(bad("bits for blocks only", format!("more in page {page}")));
                return Ok(false);
            }
            if run.class == LARGE && !is_set(bits, 0) {
                self.problem(bad("a large block in use", format!("a free one in page {page}")));
                return Ok(false);
            }
            after = page + run.pages;
            used.push((page, bits.to_vec()));
            at += 1 + count;
        }
        for (page, bits) in used {
            self.runs.get_mut(&page).expect("found above").used = Some(bits);
        }
        let unlisted: Vec<u64> =
            self.runs.iter().filter(|(_, r)| r.used.is_none()).map(|(&page, _)| page).collect();
        for page in unlisted {
            let place = self.descriptor_offset(page);
            self.problem(Damage::new(place, "a run that the saved state lists", "one it lacks"));
        }
        self.region(offset, bytes, What::SavedState);
        self.report.saved_bytes = pages << self.page_bits;
        Ok(true)
    }

    /// Notes that something of `needed` bytes stands at `offset` and belongs to `owner`.
    /// Returns the block's size.
    fn claim(&mut self, offset: u64, needed: u64, owner: Owner) -> Result<u64, Damage> {
        let page_bits = self.page_bits;
        let free_state = self.report.free_state;
        let page = offset >> page_bits;
        let bad = |expected: String, found: &str| Err(Damage::new(offset, expected, found));
        let Some((&head, run)) = self.runs.range_mut(..=page).next_back() else {
            return bad("a block".into(), "space that belongs to nothing");
        };
        let inside = offset - (head << page_bits);
        let index = inside / run.block_bytes;
        if page >= head + run.pages || index >= run.blocks {
            return bad("a block".into(), "space that belongs to nothing");
        }
        if !inside.is_multiple_of(run.block_bytes) {
            return bad("the beginning of a block".into(), "the middle of one");
        }
        if run.block_bytes < needed {
            return bad(format!("a block of {needed} bytes"), "a smaller one");
        }
        if is_set(&run.claimed, index) {
            return bad("a block of one owner".into(), "one that something else links to as well");
        }
        run.claimed[(index / 64) as usize] |= 1 << (index % 64);
        let bytes = run.block_bytes;
        let used = run.used.as_ref().is_some_and(|used| is_set(used, index));
        match owner {
            Owner::Structure => self.report.structure_bytes += bytes,
            Owner::Record => self.report.record_bytes += bytes,
        }
        if free_state && !used {
            let found = "one that the saved free state calls free";
            self.problem(Damage::new(offset, "a block in use", found));
        }
        Ok(bytes)
    }

    /// Checks the descriptors of the later pages of runs. After a crash, of runs in which a block
    /// is linked: before its first one is, a run's descriptors are durable.
    fn check_later_pages(&mut self) -> Result<()> {
        let all = self.report.free_state;
        let runs = self.runs.iter().filter(|(_, run)| all || run.claimed.iter().any(|&b| b != 0));
        let runs: Vec<(u64, u64, u8)> = runs.map(|(&p, run)| (p, run.pages, run.class)).collect();
        for (page, count, class) in runs {
            for distance in 1..count {
                let place = self.descriptor_offset(page + distance);
                match self.descriptor(page + distance) {
                    Ok(Some(found)) if found == (4, class, distance) => {}
                    Err(Error::Damaged(damage)) => self.problem(damage),
                    Err(error) => return Err(error),
                    Ok(found) => {
                        let expected = format!("a later page, {distance} from its first");
                        self.problem(Damage::new(place, expected, format!("{found:?}")));
                    }
                }
            }
        }
        Ok(())
    }

    /// What is left when every map has claimed its blocks.
    fn settle(&mut self) {
        let mut in_use = Vec::new();
        for (&head, run) in &self.runs {
            // After a crash, a run without a block in use is no more than its first page.
            let whole = self.report.free_state || run.claimed.iter().any(|&bits| bits != 0);
            in_use.extend(head..head + if whole { run.pages } else { 1 });
        }
        for page in in_use {
            let offset = self.descriptor_offset(page);
            self.region(offset, 8, What::Descriptor { page: page as u32 });
        }
        let report = &mut self.report;
        // Of each further region the first page.
        let further = (self.total - 1) / (1 << (self.page_bits - 3));
        let system = SYSTEM_BYTES.div_ceil(1 << self.page_bits) + 1 + further;
        report.header_bytes = system << self.page_bits;
        let mut in_runs = 0;
        for run in self.runs.values() {
            let run_bytes = run.pages << self.page_bits;
            in_runs += run_bytes;
            report.unusable_bytes += run_bytes - run.blocks * run.block_bytes;
            for index in (0..run.blocks).filter(|&i| !is_set(&run.claimed, i)) {
                match &run.used {
                    Some(used) if is_set(used, index) => report.leaked_bytes += run.block_bytes,
                    _ => report.free_block_bytes += run.block_bytes,
                }
            }
        }
        let pool = self.total << self.page_bits;
        report.unusable_bytes += report.saved_bytes;
        report.free_bytes = report.free_block_bytes;
        report.free_bytes += pool - report.header_bytes - in_runs - report.saved_bytes;
        report.free_bytes += report.file_bytes - pool;
    }

    // ---- Roots --------------------------------------------------------------------

    fn walk_root(&mut self, slot: usize) -> Result<()> {
        let offset = ROOTS_OFFSET + (slot * ROOT_WORDS * 8) as u64;
        let words = self.image.words(offset, ROOT_WORDS as u64)?;
        self.region(offset, 8, What::RootCommit);
        if words[0] == 0 {
            return Ok(());
        }
        let bad = |expected: &str, found: String| Damage::new(offset, expected, found);
        let expected = 1 | crc_words(&words[ROOT_FIXED..]) << 32;
        if words[0] != expected {
            let expected = format!("root {slot}'s commit word {expected:#x}");
            self.problem(Damage::new(offset, expected, format!("{:#x}", words[0])));
            return Ok(());
        }
        let kinds = words[ROOT_FIXED];
        let lengths = [kinds >> 16 & 0xffff, kinds >> 32 & 0xffff, kinds >> 48].map(|l| l as usize);
        let text: Vec<u8> = words[ROOT_TEXT..].iter().flat_map(|w| w.to_le_bytes()).collect();
        let [name, key, value] = lengths;
        let texts = (name > 0 && name + key + value <= ROOT_TEXT_BYTES)
            .then(|| {
                let take = |from, len| String::from_utf8(text[from..from + len].to_vec()).ok();
                Some((take(0, name)?, take(name, key)?, take(name + key, value)?))
            })
            .flatten();
        let scheme = match kinds & 0xff {
            1 => Some(Scheme::DashEh),
            2 => Some(Scheme::Clevel),
            3 => Some(Scheme::Phast),
            _ => None,
        };
        // Inline, and byte strings.
        let form = match kinds >> 8 & 0xff {
            1 => Some(RecordForm::Inline),
            2 => Some(RecordForm::Bytes),
            _ => None,
        };
        let (Some((name, key_schema, value_schema)), Some(scheme), Some(form)) =
            (texts, scheme, form)
        else {
            self.problem(bad("a map of a known scheme", format!("kinds {kinds:#x}")));
            return Ok(());
        };
        if self.report.maps.iter().any(|m| m.name == name) {
            self.problem(bad("maps with different names", format!("{name:?} a second time")));
        }
        let scheme_words = match scheme {
            Scheme::DashEh => What::RootScheme,
            Scheme::Clevel => What::ClevelRoot,
            Scheme::Phast => What::PhastRoot,
        };
        self.region(offset + 8, 8, scheme_words);
        self.region(offset + ROOT_FIXED as u64 * 8, 8 * 56, What::RootFixed);
        let mut map = MapReport {
            name,
            scheme,
            form,
            key_schema,
            value_schema,
            segments: 0,
            nodes: 0,
            depth: 0,
            records: 0,
            duplicates: 0,
            torn: 0,
            whole: true,
        };
        let config = [words[ROOT_FIXED + 1], words[ROOT_FIXED + 2], words[ROOT_FIXED + 3]];
        let walked = match scheme {
            Scheme::DashEh => self.walk_dash_eh(&mut map, offset + 8, words[1], config),
            Scheme::Clevel => self.walk_clevel(&mut map, offset + 8, &words[1..ROOT_FIXED], config),
            Scheme::Phast => self.walk_phast(&mut map, offset + 8, words[1], config),
        };
        if let Err(error) = walked {
            map.whole = false;
            match error {
                Error::Damaged(damage) => self.problem(damage),
                other => return Err(other),
            }
        }
        self.report.records += map.records;
        self.report.maps.push(map);
        Ok(())
    }
}

fn walk_image(mut image: Image<'_>, regions: Option<&mut Vec<Region>>) -> Result<Report> {
    let header = read_header(&image)?;
    let get = |index: usize| header.words[index];
    let damaged = |index: usize, expected: &str| {
        let copy = HEADER_OFFSETS[(get(field::SEQUENCE) % 2) as usize];
        let found = format!("{:#x}", get(index));
        Error::DamagedHeader(Damage::new(copy + index as u64 * 8, expected, found))
    };
    if get(field::VERSION) >> 32 != HEADER_WORDS as u64 * 8 {
        return Err(damaged(field::VERSION, "a header copy of 512 bytes"));
    }
    let page_bits = get(field::GEOMETRY) as u32;
    if !PAGE_BITS.contains(&page_bits) {
        return Err(damaged(field::GEOMETRY, "log2 of a page size from 12 to 20"));
    }
    let degenerate = match get(field::GEOMETRY) >> 32 {
        1 => false,
        0x7e57 => true,
        other => {
            let why = format!("number {other} is unknown to this build");
            return Err(Error::Invalid { what: "hash function", why });
        }
    };
    let file_bytes = image.len;
    let mut size = get(field::SIZE);
    let least = (SYSTEM_BYTES.div_ceil(1 << page_bits) + 1) << page_bits;
    if !size.is_multiple_of(1 << page_bits) || size < least || size >= 1 << 48 {
        return Err(damaged(field::SIZE, "a size in whole pages"));
    }
    if size > file_bytes {
        return Err(Error::Truncated { expected: size, actual: file_bytes });
    }
    let one_copy = !header.problems.is_empty();
    if one_copy {
        // The other copy may have told of a growth.
        size = file_bytes >> page_bits << page_bits;
    }
    image.len = size;
    let mut walk = Walk {
        image,
        regions,
        page_bits,
        total: size >> page_bits,
        frontier: 0,
        features: get(field::READ_ONLY_COMPATIBLE),
        hash: Hash { secrets: RapidSecrets::seed(get(field::SEED)), degenerate },
        runs: BTreeMap::new(),
        report: Report {
            file_bytes,
            page_bits,
            clean: get(field::DIRTY) == 0 && !one_copy,
            header_copy: header.problems.first().cloned(),
            ..Report::default()
        },
    };
    for offset in HEADER_OFFSETS {
        walk.region(offset, HEADER_WORDS as u64 * 8, What::Header);
    }
    walk.region(FRONTIER_OFFSET, 8, What::Frontier);
    let word = walk.image.word(FRONTIER_OFFSET)?;
    walk.frontier = word & 0xffff_ffff;
    if word >> 32 != u64::from(crc(&[&(word as u32).to_le_bytes()]))
        || !(least >> page_bits..=walk.total).contains(&walk.frontier)
    {
        let expected = "the frontier: a number of pages and its checksum";
        walk.problem(Damage::new(FRONTIER_OFFSET, expected, format!("{word:#x}")));
        walk.frontier = walk.total;
    }
    walk.read_descriptors()?;
    if walk.report.clean {
        let (saved, bytes) = (header.words[field::SAVED], header.words[field::SAVED_BYTES]);
        walk.report.free_state = walk.read_saved(saved, bytes)?;
    }
    let mut commits = Vec::new();
    for slot in 0..ROOT_SLOTS {
        commits.push(walk.image.word(ROOTS_OFFSET + (slot * ROOT_WORDS * 8) as u64)?);
        walk.walk_root(slot)?;
    }
    let roots = header.words[field::ROOTS];
    let sequence = header.words[field::SEQUENCE] & 0x7fff_ffff;
    // Of another sequence number, it means nothing any more.
    let tells = header.words[field::DIRTY] == 0 && roots >> 32 == 1 << 31 | sequence;
    if tells && crc_words(&commits) != roots & 0xffff_ffff {
        let expected = format!("roots whose commit words have the checksum {:#x}", roots as u32);
        walk.problem(Damage::new(ROOTS_OFFSET, expected, format!("{commits:x?}")));
    }
    if header.words[field::DIRTY] & LACKS_ROOT != 0 {
        let expected = "all roots that there were at the last clean end";
        walk.problem(Damage::new(ROOTS_OFFSET, expected, format!("{commits:x?}")));
    }
    walk.check_later_pages()?;
    walk.settle();
    debug_assert_eq!(walk.report.sum(), walk.report.file_bytes);
    Ok(walk.report)
}
