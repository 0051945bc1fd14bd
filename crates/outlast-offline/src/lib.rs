//! An offline walk of a pool's file, based on its format alone.
//!
//! [`walk`] reads a file that no pool has open, whether it was closed cleanly or left by a crash,
//! and accounts for every byte of it. It is written from docs/format.md and shares no code with the
//! allocator, the gate, the mapping or the indexes, so it finds errors on which those agree. It
//! stores nothing, and no content makes it panic, loop forever or read outside the file. Each
//! scheme's structures are walked in a file of their own.
//!
//! In a pool that was closed cleanly,
//!
//! ```text
//! file = header + structure + records + free + unusable + leaked
//! ```
//!
//! and nothing is leaked. After a crash, space that no map owns counts as free, because the next
//! open reclaims it.

mod clevel;
mod dash;
mod dash_eh;
mod dash_lh;
mod ea_pht;
mod group;
mod hidden;
mod image;
mod line;
mod phast;
mod record;
mod repairs;
mod space;
mod unlinked;

pub use repairs::{Repairs, repairs};
pub use unlinked::{Unlinked, UnlinkedCount, unlinked};

use image::{Hash, Image, LOW48, Source, crc, crc_words, fold16, read_header};
use outlast::internals::pool::geometry::PAGE_BITS;
use outlast::internals::pool::layout::{
    BATCH_MAGIC, BATCH_OFFSET, COMPATIBLE, FRONTIER_OFFSET, HEADER_OFFSETS, HEADER_WORDS,
    LACKS_ROOT, ROOT_FIXED, ROOT_SLOTS, ROOT_TEXT, ROOT_TEXT_BYTES, ROOT_WORDS, ROOTS_OFFSET,
    RecordForm, SYSTEM_BYTES, field,
};
use outlast::{Damage, Error, Result};
use rapidhash::v3::RapidSecrets;
use space::{MAX_PROBLEMS, Runs};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const _: () = assert!(COMPATIBLE == 0, "no feature that the walk would have to know");

/// A pool of more than this many times the bytes that its file has left is not read.
const MOST_CUT: u64 = 64;

/// The result of a walk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Size of the file in bytes, or of the pool if the file was cut.
    pub file_bytes: u64,
    /// Bytes of header copies, frontier, named roots and page descriptors.
    pub header_bytes: u64,
    /// Bytes of the blocks of directories, segments and overflow nodes.
    pub structure_bytes: u64,
    /// Bytes of the blocks of records.
    pub record_bytes: u64,
    /// Bytes of free blocks and pages, including everything beyond the pool's end.
    pub free_bytes: u64,
    /// The part of [`free_bytes`](Report::free_bytes) in free blocks of runs in use.
    pub free_block_bytes: u64,
    /// Bytes at the ends of runs that are too small for a block, and of the saved free state.
    pub unusable_bytes: u64,
    /// The part of [`unusable_bytes`](Report::unusable_bytes) in the saved free state.
    pub saved_bytes: u64,
    /// Bytes of blocks in use that nothing links to; 0 if the free state is not known.
    pub leaked_bytes: u64,
    /// Number of records in all maps.
    pub records: u64,
    /// Each map whose root could be read.
    pub maps: Vec<MapReport>,
    /// Whether the header says that the pool was closed cleanly, or synced and not modified since.
    /// `false` if a copy of the header is damaged.
    pub clean: bool,
    /// Whether the pool has an intact saved free state, with which the blocks were compared.
    pub free_state: bool,
    /// log2 of the page size.
    pub page_bits: u32,
    /// The damage of a header copy, if one is damaged. A crash can leave such a copy, and the next
    /// change rewrites it.
    pub header_copy: Option<Damage>,
    /// All damage found.
    pub problems: Vec<Damage>,
}

impl Report {
    /// The sum of all kinds of bytes, which always equals [`file_bytes`](Report::file_bytes).
    pub fn sum(&self) -> u64 {
        self.header_bytes
            + self.structure_bytes
            + self.record_bytes
            + self.free_bytes
            + self.unusable_bytes
            + self.leaked_bytes
    }
}

/// The result of walking one map.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapReport {
    /// The map's name.
    pub name: String,
    /// The name of the map's scheme.
    pub scheme: &'static str,
    /// The map's record form.
    pub form: RecordForm,
    /// Whether the map's records expire: each value begins with the time, in 8 bytes.
    pub expires: bool,
    /// Schema of the keys.
    pub key_schema: String,
    /// Schema of the values.
    pub value_schema: String,
    /// Number of segments, levels, leaves, or buckets of the array.
    pub segments: u64,
    /// Number of overflow nodes.
    pub nodes: u64,
    /// Depth of the directory, or log2 of the buckets of the newest level.
    pub depth: u32,
    /// Number of records, each key counted once.
    pub records: u64,
    /// Number of copies beyond the first of a key's record, or, for clevel, of slots beyond the
    /// first that lead to the same record. A crash can leave them in a Dash map, where the first
    /// touch of the segment removes them, and in a clevel map, where rehashing does. In other
    /// schemes they are damage.
    pub duplicates: u64,
    /// Number of records that could not be read, for instance because the checksum or hash does not
    /// match.
    pub torn: u64,
    /// Whether all of the map could be read.
    pub whole: bool,
}

/// A part of the format at a location in the file. For tests that damage it.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// What the region is.
    pub what: What,
}

/// The kind of a [`Region`].
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
    ChainHead,
    ChainNode,
    ClevelSlot,
    ClevelRecord,
    PhastRoot,
    Master { entries: u32 },
    MasterEntries,
    LeafHead { slots: u32 },
    LeafPlace { form: RecordForm, slots: u32 },
    Pair { form: RecordForm },
    Turn,
    Array,
    GroupRoot,
    GroupSegment { group: u16 },
    GroupNode { group: u16 },
    PhtRoot,
    PhtTable,
    PhtArea,
    PhtLink,
    LineRoot,
    LineIntent,
    LineDirectory { depth: u32 },
    Cell,
    LineSegment { size: u32 },
    LineNode,
    LiveSlot { form: RecordForm, depth: u32 },
    Record,
}

/// Walks the pool in the file at `path`.
///
/// # Errors
/// The errors of [`PoolOptions::open`](outlast::PoolOptions::open) if the header does not describe
/// the rest; [`Error::Locked`] while a pool has the file open; [`Error::Unfinished`] if the file
/// has to be completed from a journal first. Damage that leaves the rest readable is in the report.
pub fn walk(path: &Path) -> Result<Report> {
    walk_watched(path, &mut |_| {})
}

/// Like [`walk`], but also calls `watch` with the size, in bytes, of each block in use when the
/// walk reaches it, so that the caller can show progress.
///
/// # Errors
/// Those of [`walk`], except [`Error::Locked`] and [`Error::Unfinished`]: bytes have no lock, and
/// the caller has to know whether a journal is needed.
pub fn walk_watched(path: &Path, watch: &mut dyn FnMut(u64)) -> Result<Report> {
    let locked = Locked::open(path)?;
    let image = Image::new(Source::File(&locked.file), locked.len);
    match image.needs_journal() {
        true => Err(Error::Unfinished { path: path.into() }),
        false => Ok(walk_image(image, None, watch).map_err(|e| e.at(path))?.report),
    }
}

/// A file that is locked for reading.
struct Locked {
    file: File,
    len: u64,
}

impl Locked {
    fn open(path: &Path) -> Result<Locked> {
        let action = || format!("reading {}", path.display());
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let open = File::options().read(true).custom_flags(flags).open(path);
        let file = open.map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::NoSuchPool { path: path.into() },
            _ => Error::io(action(), e),
        })?;
        let meta = file.metadata().map_err(|e| Error::io(action(), e))?;
        if !meta.is_file() {
            return Err(Error::not_a_file().at(path));
        }
        let how = rustix::fs::FlockOperation::NonBlockingLockShared;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, how)).map_err(|e| match e {
            rustix::io::Errno::WOULDBLOCK => Error::Locked { path: path.into() },
            other => Error::io("locking the pool", other.into()),
        })?;
        Ok(Locked { file, len: meta.len() })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that another thread is just starting
        // holds a copy of the descriptor until it executes its program.
        let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
    }
}

/// Walks a pool whose file has the content `bytes`.
///
/// # Errors
/// As [`walk`].
pub fn walk_bytes(bytes: &[u8]) -> Result<Report> {
    let image = Image::new(Source::Bytes(bytes), bytes.len() as u64);
    Ok(walk_image(image, None, &mut |_| {})?.report)
}

/// Like [`walk_bytes`], but also returns the location of each part of the format.
#[doc(hidden)]
pub fn regions(bytes: &[u8]) -> Result<(Report, Vec<Region>)> {
    let mut regions = Vec::new();
    let image = Image::new(Source::Bytes(bytes), bytes.len() as u64);
    let report = walk_image(image, Some(&mut regions), &mut |_| {})?.report;
    Ok((report, regions))
}

// ---- Schemes --------------------------------------------------------------------

/// How the maps of a scheme are walked.
struct SchemeWalk {
    /// The scheme's number on media.
    number: u64,
    name: &'static str,
    /// The kind of the scheme's words in a root.
    root: What,
    walk: WalkMap,
}

/// Walks a map, given the offset of its scheme's words in the root, those words, and the map's
/// configuration.
type WalkMap = fn(&mut Walk<'_, '_>, &mut MapReport, u64, &[u64], [u64; 3]) -> Result<()>;

static WALKS: [SchemeWalk; 9] = [
    dash_eh::WALK,
    clevel::WALK,
    phast::WALK,
    group::WALK,
    dash_lh::WALK,
    ea_pht::WALK,
    ea_pht::WALK_H,
    ea_pht::WALK_HPR,
    line::WALK,
];

/// Numbers and names of the schemes that the walk knows.
pub fn schemes() -> impl Iterator<Item = (u8, &'static str)> {
    WALKS.iter().map(|walk| (walk.number as u8, walk.name))
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
    /// Number of pages in the pool.
    total: u64,
    frontier: u64,
    /// The pool's id.
    id: [u8; 16],
    /// Whether the header has the dirty mark.
    dirty: bool,
    hash: Hash,
    runs: Runs,
    report: Report,
    /// Slots of the map whose records have not been read yet.
    unread: Vec<record::Slot>,
    /// What the walk of the present map has read of its structure.
    seen: hidden::Seen,
    /// For each map of the report, how to go on where the walk could not.
    walked: Vec<hidden::Walked>,
    /// Whether there may be a map that the report lacks.
    lacks_map: bool,
    /// Damaged words whose right values follow from others: offset, value and damage.
    repairs: Vec<(u64, u64, Damage)>,
    /// Called with the size, in bytes, of each block in use when the walk reaches it.
    watch: &'r mut dyn FnMut(u64),
}

/// Returns whether these bytes are a sequence of complete changes, as in the log of a batch.
fn are_changes(mut bytes: &[u8]) -> bool {
    fn field(bytes: &mut &[u8], less: u32) -> Option<()> {
        let len = u32::from_le_bytes(bytes.split_off(..4)?.try_into().ok()?);
        bytes.split_off(..len.saturating_sub(less) as usize).map(drop)
    }
    while !bytes.is_empty() {
        let slot = bytes.split_off(..4).is_some_and(|slot| slot[0] < 128 && slot[1..] == [0; 3]);
        let fields = [0, 1, 1].into_iter().all(|less| field(&mut bytes, less).is_some());
        if !slot || !fields {
            return false;
        }
    }
    true
}

impl Walk<'_, '_> {
    /// Checks the batch word, and the log that it leads to. The log counts as free, because the
    /// next open completes the batch and frees it.
    fn walk_batch(&mut self) -> Result<()> {
        let word = self.image.word(BATCH_OFFSET)?;
        if word == 0 {
            return Ok(());
        }
        let offset = word & LOW48;
        if word >> 48 != fold16(u64::from(crc(&[&offset.to_le_bytes()]))) || !self.dirty {
            let expected = "0, or in a pool that was not closed the offset of a batch's log";
            self.problem(Damage::new(BATCH_OFFSET, expected, format!("{word:#x}")));
            return Ok(());
        }
        let log = self.image.array(offset).and_then(|[magic, len, sum]| {
            let whole = magic == BATCH_MAGIC && len <= self.largest_block();
            let changes = self.image.bytes(offset + 24, if whole { len } else { 0 })?;
            let parts = [&self.id[..], &offset.to_le_bytes(), &len.to_le_bytes(), &changes];
            Ok(whole && u64::from(crc(&parts)) == sum && are_changes(&changes))
        });
        if !matches!(log, Ok(true)) {
            self.problem(Damage::new(offset, "the log of a batch", "something else"));
        }
        Ok(())
    }

    fn walk_root(&mut self, slot: usize) -> Result<()> {
        let offset = ROOTS_OFFSET + (slot * ROOT_WORDS * 8) as u64;
        let mut words = self.image.words(offset, ROOT_WORDS as u64)?;
        self.region(offset, 8, What::RootCommit);
        if words[0] == 0 {
            return Ok(());
        }
        let bad = |expected: &str, found: String| Damage::new(offset, expected, found);
        let expected = 1 | crc_words(&words[ROOT_FIXED..]) << 32;
        if words[0] != expected && !self.damaged_root(slot, &mut words) {
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
        let scheme = WALKS.iter().find(|walk| walk.number == kinds & 0xff);
        // 1 is inline, 2 is byte strings, 0x82 is byte strings with times before the values.
        let (form, expires) = match kinds >> 8 & 0xff {
            1 => (Some(RecordForm::Inline), false),
            2 => (Some(RecordForm::Bytes), false),
            0x82 => (Some(RecordForm::Bytes), true),
            _ => (None, false),
        };
        let (Some((name, key_schema, value_schema)), Some(scheme), Some(form)) =
            (texts, scheme, form)
        else {
            self.problem(bad("a map of a known scheme", format!("kinds {kinds:#x}")));
            self.lacks_map = true;
            return Ok(());
        };
        if self.report.maps.iter().any(|m| m.name == name) {
            self.problem(bad("maps with different names", format!("{name:?} a second time")));
        }
        self.region(offset + 8, 8, scheme.root);
        self.region(offset + ROOT_FIXED as u64 * 8, 8 * 56, What::RootFixed);
        let mut map = MapReport {
            name,
            scheme: scheme.name,
            form,
            expires,
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
        let problems = self.report.problems.len();
        let walked = (scheme.walk)(self, &mut map, offset + 8, &words[1..ROOT_FIXED], config);
        if let Err(error) = walked {
            map.whole = false;
            match error {
                Error::Damaged(damage) => self.problem(damage),
                other => return Err(other),
            }
        }
        self.read_records(&mut map)?;
        self.report.records += map.records;
        self.walked.push(hidden::Walked {
            scheme: scheme.number,
            words: [words[1], words[2]],
            config,
            // A full list of problems does not get longer.
            is_damaged: !map.whole
                || self.report.problems.len() > problems
                || problems == MAX_PROBLEMS,
            seen: std::mem::take(&mut self.seen),
        });
        self.report.maps.push(map);
        Ok(())
    }
}

fn walk_image<'f, 'r>(
    mut image: Image<'f>,
    regions: Option<&'r mut Vec<Region>>,
    watch: &'r mut dyn FnMut(u64),
) -> Result<Walk<'f, 'r>> {
    let header = read_header(&image)?;
    let get = |index: usize| header.words[index];
    let damaged = |index: usize, expected: &str| {
        let copy = HEADER_OFFSETS[(get(field::SEQUENCE) % 2) as usize];
        let found = format!("{:#x}", get(index));
        Error::damaged_header(Damage::new(copy + index as u64 * 8, expected, found))
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
    if size > file_bytes.saturating_mul(MOST_CUT) {
        return Err(Error::Truncated {
            path: Default::default(),
            expected: size,
            actual: file_bytes,
        });
    }
    let one_copy = !header.problems.is_empty();
    let frontier = image.word(FRONTIER_OFFSET)?;
    let whole_frontier = frontier >> 32 == u64::from(crc(&[&(frontier as u32).to_le_bytes()]));
    let outgrown = whole_frontier && frontier & 0xffff_ffff > size >> page_bits;
    if one_copy || outgrown {
        // The damaged copy may have recorded a growth. Or a power loss has undone the header that
        // recorded it, but not the frontier.
        size = size.max(file_bytes >> page_bits << page_bits);
    }
    image.len = size;
    let mut walk = Walk {
        image,
        regions,
        page_bits,
        total: size >> page_bits,
        frontier: 0,
        id: (u128::from(get(field::ID_LOW)) | u128::from(get(field::ID_HIGH)) << 64).to_le_bytes(),
        dirty: get(field::DIRTY) != 0,
        hash: Hash { secrets: RapidSecrets::seed(get(field::SEED)), degenerate },
        runs: Runs::default(),
        unread: Vec::new(),
        seen: hidden::Seen::default(),
        walked: Vec::new(),
        lacks_map: header.words[field::DIRTY] & LACKS_ROOT != 0,
        repairs: Vec::new(),
        watch,
        report: Report {
            file_bytes: file_bytes.max(size),
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
    if size > file_bytes {
        let expected = format!("a file of {size} bytes");
        walk.problem(Damage::new(file_bytes, expected, "its end; the rest counts as zeros"));
    }
    walk.frontier = frontier & 0xffff_ffff;
    if !whole_frontier || !(least >> page_bits..=walk.total).contains(&walk.frontier) {
        let expected = "the frontier: a number of pages and its checksum";
        let damage = Damage::new(FRONTIER_OFFSET, expected, format!("{frontier:#x}"));
        walk.frontier = walk.total;
        let sum = u64::from(crc(&[&(walk.total as u32).to_le_bytes()]));
        walk.repair(FRONTIER_OFFSET, walk.total | sum << 32, damage);
    }
    walk.read_descriptors()?;
    if walk.report.clean {
        let (saved, bytes) = (header.words[field::SAVED], header.words[field::SAVED_BYTES]);
        walk.report.free_state = walk.read_saved(saved, bytes)?;
    }
    walk.walk_batch()?;
    let mut commits = Vec::new();
    for slot in 0..ROOT_SLOTS {
        let offset = ROOTS_OFFSET + (slot * ROOT_WORDS * 8) as u64;
        let word = walk.image.word(offset)?;
        walk.walk_root(slot)?;
        let right = walk.repairs.iter().find(|repair| repair.0 == offset);
        commits.push(right.map_or(word, |&(_, right, _)| right));
    }
    let roots = header.words[field::ROOTS];
    let sequence = header.words[field::SEQUENCE] & 0x7fff_ffff;
    // The field applies only to the sequence number that it names.
    let tells = header.words[field::DIRTY] == 0 && roots >> 32 == 1 << 31 | sequence;
    if tells && crc_words(&commits) != roots & 0xffff_ffff {
        let expected = format!("roots whose commit words have the checksum {:#x}", roots as u32);
        walk.problem(Damage::new(ROOTS_OFFSET, expected, format!("{:#x}", crc_words(&commits))));
        walk.lacks_map = true;
    }
    if header.words[field::DIRTY] & LACKS_ROOT != 0 {
        let expected = "all roots of the last clean close";
        walk.problem(Damage::new(ROOTS_OFFSET, expected, format!("{:#x}", crc_words(&commits))));
    }
    walk.check_later_pages()?;
    walk.settle();
    debug_assert_eq!(walk.report.sum(), walk.report.file_bytes);
    Ok(walk)
}
