//! Lookups through second mappings of the pool's file and region, as another process would make them.

use super::super::hints::{self, STASH};
use super::super::layout::{self, BLOCK_LINES, LINE_BYTES, SIZES, SegmentHeader, SlotLine};
use super::super::whose;
use super::{Config, Line, change};
use crate::index::kit::cells::cell_of;
use crate::index::kit::interleaved::pool_in;
use crate::index::kit::lock::VersionLock;
use crate::index::kit::table::{HashedKey, Lookup};
use crate::index::record::{SlotRecord, SlotWords};
use crate::index::version::{is_unchanged, version};
use crate::index::{Change, Inline, Previous};
use crate::pmem::{FlushMode, MapAccess, Mapping, Memory, Offset, Real, SharedWord};
use crate::pool::backing::Backing;
use crate::pool::hash::Hasher;
use crate::pool::header::Header;
use crate::pool::layout::field;
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

const MIB: u64 = 1 << 20;
/// As long as the file may become.
const FILE_BYTES: u64 = 64 * MIB;

/// Maps a file for reading, until the process ends. Pages beyond the end of the file can be read once
/// the file has grown.
fn map(file: &File, bytes: u64) -> *const u8 {
    let access = ProtFlags::READ;
    // SAFETY: the kernel chooses a free address.
    let start = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), bytes as usize, access, MapFlags::SHARED, file, 0)
    };
    start.unwrap().cast()
}

/// What a lookup has found out.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// This process may not touch a segment for the first time.
    Untouched,
    Absent,
    Present(u64),
}

/// Has the file and the region, mapped for reading, and nothing else.
struct Reader {
    memory: Memory<Real>,
    region: *const u8,
    hasher: Hasher,
    /// Records that were found in their home lines, in other lines of the block, and in the stash.
    found: [u64; 3],
}

impl Reader {
    fn new(file: &File, region: &File) -> Reader {
        let word = |at: u64| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at).unwrap();
            u64::from_le_bytes(bytes)
        };
        let header = Header::read(file.metadata().unwrap().len(), |offset| {
            Ok(std::array::from_fn(|number| word(offset + 8 * number as u64)))
        })
        .unwrap();
        let hasher = Hasher::from_media(header.hash_function(), header.get(field::SEED)).unwrap();
        let base = map(file, FILE_BYTES);
        let region = map(region, region.metadata().unwrap().len());
        let seam = Real::new(FlushMode::None);
        // SAFETY: both stay mapped, and are aligned to pages. They are only read. There is no shadow,
        // and it is not used.
        let memory = unsafe { Memory::new(base, base, region, FILE_BYTES, seam) };
        let parts: [u64; 4] =
            std::array::from_fn(|n| memory.side().header(n).load(memory.seam(), RELAXED));
        assert_eq!(parts[0].to_le_bytes(), *b"OLregion");
        assert_eq!(parts[1], 36 << 10, "where `SideTable` looks for the hint words");
        Reader { memory, region, hasher, found: [0; 3] }
    }

    /// Returns the cell of a hash, by the directory word of the map in slot 0.
    fn cell(&self, hash: u64) -> &'static SharedWord {
        let directory = self.memory.side().directory(0).load(self.memory.seam(), Ordering::Acquire);
        let (at, depth) = ((directory & !63) as usize, (directory & 63) as u32);
        assert!(at != 0 && (1..=layout::MAX_DEPTH).contains(&depth), "{directory:#x}");
        // SAFETY: the region stays mapped, and has an array of 2^depth words at this offset.
        unsafe { &*self.region.add(at).cast::<SharedWord>().add(cell_of(hash, depth)) }
    }

    fn get(&mut self, key: u64) -> Found {
        let hash = Inline::slot_hash(&self.hasher, SlotWords { first: key, second: 0 });
        let (memory, cell) = (&self.memory, self.cell(hash));
        let word = cell.load(memory.seam(), Ordering::Acquire);
        if word == 0 {
            return Found::Untouched;
        }
        let (segment, size) =
            (layout::offset_of_word(word), &SIZES[layout::size_of_word(word) as usize]);
        let whose = whose(size, hash);
        let line_at = |line: u32| segment + u64::from(line) * LINE_BYTES;
        let first = size.before + size.home_of(hash) / BLOCK_LINES * BLOCK_LINES;
        let lock = VersionLock::new(memory.seam(), memory.side().stripe(line_at(first)));
        let before = version(&lock).expect("no change is under way");
        // SAFETY: a block is inside the memory, and aligned to 256.
        let hint =
            unsafe { memory.side().hint_unchecked(line_at(first)) }.load(memory.seam(), RELAXED);
        let in_block =
            |place: u32| (usize::from(place != 0), line_at(first + (whose.home ^ place)));
        let in_stash = |position: u32| (2, line_at(1 + size.stash_of(hash, position)));
        let mut lines = vec![in_block(0)];
        for place in hints::places(hint, whose) {
            match place {
                0..STASH => lines.push(in_block(place)),
                _ => {
                    let first = 2 * (place - STASH);
                    lines.extend((first..(first + 2).min(size.window())).map(in_stash));
                }
            }
        }
        if hints::is_within(hint, whose.home) {
            lines.extend((1..BLOCK_LINES).map(in_block));
        }
        if hints::is_beyond(hint, whose.home) {
            lines.extend((0..size.window()).map(in_stash));
            let header = memory.at(Offset::<SegmentHeader>::new(segment)).unwrap();
            assert_eq!(memory.load(&header.chain) & 0xffff_ffff_ffff, 0, "no nodes here");
        }
        let mut found = Found::Absent;
        'search: for (part, line) in lines {
            for slot in &memory.at(Offset::<SlotLine>::new(line)).unwrap().slots {
                let words = slot.read(memory);
                if words.first == key {
                    found = Found::Present(words.second);
                    self.found[part] += 1;
                    break 'search;
                }
            }
        }
        assert!(is_unchanged(&lock, before) && cell.load(memory.seam(), Ordering::Acquire) == word);
        found
    }

    fn check(&mut self, keys: u64, model: &HashMap<u64, u64>) {
        for key in 1..=keys {
            let expected = model.get(&key).map_or(Found::Absent, |value| Found::Present(*value));
            assert_eq!(self.get(key), expected, "{key}");
            assert_eq!(self.get(key.wrapping_neg()), Found::Absent);
        }
    }
}

const RELAXED: Ordering = Ordering::Relaxed;

#[test]
fn a_lookup_needs_the_file_and_the_region_alone() {
    let file = tempfile::tempfile().unwrap();
    let mapped = file.try_clone().unwrap();
    let mapping = Mapping::file(mapped, MapAccess::ReadWrite, MIB, FILE_BYTES).unwrap();
    let region = mapping.region().share(mapping.len()).unwrap();
    let config = Config { segment_bits: 1 };
    let core = pool_in(Backing::Mapped(mapping), Real::new(FlushMode::None), |core| {
        Line::<_, Inline>::create(core, config).unwrap()
    });
    let open = || Line::<Real, Inline>::open(&core, 0, config).unwrap();
    let (table, mut model) = (open(), HashMap::new());
    let mut reader = Reader::new(&file, &region);
    assert_ne!(reader.region, core.backing().region().start());
    assert_eq!(reader.get(1), Found::Untouched);
    let mut last = 0;
    for keys in [100, 3000, 40_000] {
        for key in last + 1..=keys {
            change(&table, key, Change::Insert(key + 7), Previous::UNWANTED).unwrap();
            model.insert(key, key + 7);
            let other = 1 + key * 7919 % key;
            match key % 3 {
                0 if model.remove(&other).is_some() => {
                    change(&table, other, Change::Remove, Previous::UNWANTED).unwrap();
                }
                1 => {
                    change(&table, other, Change::Put(key), Previous::UNWANTED).unwrap();
                    model.insert(other, key);
                }
                _ => (),
            }
        }
        // The same reader goes on after doublings, and after the file has grown.
        reader.check(keys, &model);
        last = keys;
    }
    assert!(table.cells.depth(&Real::new(FlushMode::None)) > 8 && core.memory.len() > MIB);
    assert!(reader.found.iter().all(|&found| found > 100), "{:?}", reader.found);
    // The first touch of a segment computes its cells and hint words from the file.
    drop(table);
    for block in (0..core.memory.len()).step_by(256) {
        // SAFETY: inside the pool, and a multiple of 256.
        let hint = unsafe { core.memory.side().hint_unchecked(block) };
        // This says that all records are in their home lines.
        hint.store(core.memory.seam(), 0, RELAXED);
    }
    let table = open();
    assert!((1..=last).all(|key| reader.get(key) == Found::Untouched));
    for key in 1..=last {
        let value = Lookup::<_, Inline>::value(&table, HashedKey::new(&core, key)).unwrap();
        assert_eq!(value, model.get(&key).copied());
    }
    reader.check(last, &model);
}
