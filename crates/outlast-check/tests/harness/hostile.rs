//! Damaged and hostile files.
//!
//! Goal: whatever a file holds, opening, reading, walking, verifying, changing and closing end in a
//! result or a typed error, and never in a panic, a signal or an endless wait. Damage to anything
//! that the format covers with a checksum is reported.
//!
//! Method: images of small pools (see `outlast_check::fuzz::images`) with one byte changed at a
//! time. In the plain images, the test changes a seeded eighth (in the others, a fortieth) of the
//! bytes of the header copies, the frontier, the roots, the descriptors, the directories and the
//! headers of segments and nodes, and a smaller sample of the rest. `OUTLAST_HOSTILE=full` changes
//! each of them in three ways in every image, and takes a sample of the rest twenty times as large,
//! which takes about ten minutes.

const LOW48: u64 = (1 << 48) - 1;

use outlast::internals::index::line::layout as line;
use outlast::internals::pmem::Alive;
use outlast::internals::pool::geometry::Geometry;
use outlast::internals::pool::layout::{Descriptor, PageKind};
use outlast::{Error, PoolOptions, RecordForm, Scheme};
use outlast_check::fuzz::images::{Image, small_images};
use outlast_check::fuzz::operate::use_pool;
use outlast_check::fuzz::pool::{set_word, word_at};
use outlast_check::fuzz::{repair, watch};
use outlast_check::random::Random;
use outlast_offline as offline;
use outlast_offline::{Region, What};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

static IMAGES: LazyLock<Vec<Image>> =
    LazyLock::new(|| Scheme::ALL.iter().copied().flat_map(small_images).collect());
static ALIVE: LazyLock<Arc<Alive>> = LazyLock::new(|| Arc::new(Alive::new().unwrap()));

/// Runs cases on all processors, and prints what went wrong.
fn in_parallel(count: u64, case: impl Fn(u64) -> Result<(), String> + Sync) -> Vec<String> {
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get()).min(8);
    let failures = watch::in_parallel(count, workers, case);
    failures.iter().for_each(|failure| println!("{failure}"));
    failures
}

fn watched<T>(case: &str, run: impl FnOnce() -> T) -> Result<T, String> {
    watch::watched(case, run)
}

fn full() -> bool {
    std::env::var("OUTLAST_HOSTILE").is_ok_and(|v| v == "full")
}

/// A change of one byte of an image.
#[derive(Clone, Copy)]
struct Change {
    image: usize,
    offset: u64,
    value: u8,
}

/// Returns the offsets of the cells that line hashing's recovery stores after a kill, whatever they
/// hold: those of the segments that the last rebuild of each map has made. Damage to them is not noticed,
/// and does no harm: see `a_cell_that_recovery_stores_may_hold_anything`.
fn settled_cells(image: &Image) -> HashSet<u64> {
    let (mut settled, mut cells) = (HashSet::new(), 0..0);
    for region in &image.regions {
        match region.what {
            // A map's cells come before its intent.
            What::Cell => cells = region.offset..region.offset + region.bytes,
            What::LineIntent => {
                let depth = ((cells.end - cells.start) / 8).trailing_zeros();
                let mut next = image.word(region.offset) & LOW48;
                while next != 0 {
                    let shape = line::shape_of(image.word(next)).expect("a sound pool");
                    let segment = line::Segment::new(next, shape, image.word(next + 8));
                    settled.extend(cells.clone().step_by(8).filter(|at| {
                        let first = ((at - cells.start) / 8) << (64 - depth);
                        (segment.low..=segment.high).contains(&first)
                    }));
                    next = image.word(next + 16) & LOW48;
                }
            }
            _ => {}
        }
    }
    settled
}

/// Places of an image that the regions do not show.
struct Known {
    /// The offsets of Dash's overflow nodes.
    nodes: HashSet<u64>,
    /// See [`settled_cells`].
    settled: HashSet<u64>,
}

/// Returns whether the format promises that a change of this byte is noticed.
fn is_covered(image: &Image, region: &Region, known: &Known, change: Change) -> bool {
    let Known { nodes, settled } = known;
    let word_offset = change.offset & !7;
    let mut word = image.word(word_offset).to_le_bytes();
    word[(change.offset % 8) as usize] = change.value;
    let word = u64::from_le_bytes(word);
    let index = (word_offset - region.offset) / 8;
    match region.what {
        What::Header
        | What::Frontier
        | What::RootCommit
        | What::RootScheme
        | What::RootFixed
        | What::Descriptor { .. }
        | What::Directory { .. }
        | What::Entry
        | What::SavedState => true,
        // A mark of a cache is not covered.
        What::Record => {
            let (sum, mark) = (image.word(word_offset) as u32, (word >> 32) as u32);
            index != 1 || sum != word as u32 || (mark != 0 && mark >> 24 != 0xc5)
        }
        // A link has no checksum. A link that is zeroed, or leads to another node, shows only if
        // the free state is known: some blocks are then lost or shared.
        What::Segment { .. } if index == 3 => image.clean || (word != 0 && !nodes.contains(&word)),
        What::Node if index == 1 => image.clean || (word != 0 && !nodes.contains(&word)),
        What::Segment { .. } | What::Node => true,
        What::LiveSlot { form: RecordForm::Bytes, depth } => {
            if index == 0 {
                image.clean || word != 0
            } else {
                // With another prefix, the slot looks like a record that a split left behind. Only
                // the free state shows the difference.
                let before = image.word(word_offset);
                image.clean || (before ^ word) >> (64 - depth) == 0
            }
        }
        // A mark may be left there, and means nothing after a crash.
        What::ClevelRoot => (image.word(word_offset) ^ word) & !(1 << 48) != 0,
        What::Context { .. } | What::Level { .. } | What::ReadyLevel => true,
        // A chain that is lost leaves blocks without a link.
        What::ChainHead => {
            let before = image.word(word_offset);
            image.clean && before & LOW48 > 1 && (before ^ word) << 1 != 0
        }
        What::ChainNode if index == 0 => true,
        What::ChainNode => image.clean && (image.word(word_offset) ^ word) << 1 != 0,
        // A mark makes the slot void, as a crash does, or means nothing.
        What::ClevelSlot => (image.word(word_offset) ^ word) << 2 != 0 && image.clean,
        // The kind of a state, and the priority of an insert that is over, are not covered.
        What::ClevelRecord if index == 0 => (image.word(word_offset) ^ word) >> 46 == 0,
        What::ClevelRecord if index == 1 => (image.word(word_offset) ^ word) << 32 != 0,
        What::ClevelRecord => true,
        What::PhastRoot | What::Master { .. } | What::MasterEntries => true,
        What::GroupRoot | What::GroupSegment { .. } | What::GroupNode { .. } | What::Turn => true,
        What::PhtRoot | What::PhtTable | What::PhtArea | What::PhtLink => true,
        // Without an intent, the last rebuild counts as complete.
        What::LineIntent => word != 0,
        // Only the last rebuild's segments need their siblings.
        What::LineSegment { .. } => index != 2,
        What::Cell => image.clean || !settled.contains(&word_offset),
        What::LineRoot | What::LineDirectory { .. } | What::LineNode => true,
        // An array may hold anything where no segment is yet.
        What::Array => false,
        // Bits and fingerprints have no checksum, except bits beyond the slots.
        What::LeafHead { slots } => index == 0 && (image.word(word_offset) ^ word) >> slots != 0,
        // The least key is two words. For byte strings, both are covered. For inline keys, the
        // first is the key, and the second means nothing.
        What::LeafPlace { form, .. } => index < 3 || form == RecordForm::Bytes,
        What::Pair { form } => form == RecordForm::Bytes,
        What::LiveSlot { form: RecordForm::Inline, .. } | What::Bucket { .. } => false,
    }
}

/// Lists the changes of bytes to try.
fn changes(image_index: usize, image: &Image, random: &mut Random) -> Vec<Change> {
    let mut offsets: Vec<u64> = Vec::new();
    for region in &image.regions {
        let every = match region.what {
            What::Header
            | What::Frontier
            | What::RootCommit
            | What::RootScheme
            | What::RootFixed
            | What::Descriptor { .. }
            | What::Directory { .. }
            | What::Segment { .. }
            | What::ClevelRoot
            | What::Context { .. }
            | What::Level { .. }
            | What::ChainNode
            | What::PhastRoot
            | What::Master { .. }
            | What::LeafPlace { .. }
            | What::GroupRoot
            | What::PhtRoot
            | What::PhtTable
            | What::PhtArea
            | What::Turn
            | What::GroupSegment { .. }
            | What::GroupNode { .. }
            | What::LineRoot
            | What::LineIntent
            | What::LineDirectory { .. }
            | What::LineSegment { .. }
            | What::LineNode
            | What::Node => 1,
            What::Entry | What::Cell | What::MasterEntries | What::SavedState => 3,
            What::LiveSlot { .. } | What::ClevelSlot | What::Pair { .. } => 30,
            What::ReadyLevel | What::Array => 200,
            What::LeafHead { .. } | What::PhtLink | What::ChainHead => 10,
            What::Record | What::ClevelRecord => 60,
            What::Bucket { .. } => 150,
        };
        // One pair of images of each scheme gets most of the changes. The other images, with other
        // structures, get fewer.
        let other = !image.name.starts_with("plain") && !matches!(region.what, What::Node);
        let every = match (full(), other) {
            (true, _) => (every / 4).max(1),
            (false, true) => every * 40,
            (false, false) => every * 8,
        };
        // Take one in eight of the commit words of free root slots.
        if region.what == What::RootCommit
            && image.word(region.offset) == 0
            && !full()
            && region.offset % 4096 != 0
        {
            continue;
        }
        offsets.extend(
            (region.offset..region.offset + region.bytes).filter(|_| random.below(every) == 0),
        );
    }
    let rest = if full() { 2500 } else { 125 };
    offsets.extend((0..rest).map(|_| random.below(image.bytes.len() as u64)));
    let mut changes = Vec::new();
    for offset in offsets {
        let old = image.bytes[offset as usize];
        let other = old ^ (1 + random.below(255)) as u8;
        let values = if full() {
            vec![other, 0, 0xff]
        } else {
            vec![[0, 0xff, other][random.below(8).min(2) as usize]]
        };
        for value in values {
            let value = if value == old { other } else { value };
            changes.push(Change { image: image_index, offset, value });
        }
    }
    changes
}

fn report(failures: &[String], what: &str) {
    // Each failure was printed when it happened.
    assert!(failures.is_empty(), "{} {what}", failures.len());
}

#[test]
fn one_changed_byte_never_does_harm_and_is_noticed_where_it_is_covered() {
    let started = Instant::now();
    let mut random = Random::new(7);
    let mut all: Vec<(Change, Option<Region>)> = Vec::new();
    for (index, image) in IMAGES.iter().enumerate() {
        let nodes: HashSet<u64> =
            image.regions.iter().filter(|r| r.what == What::Node).map(|r| r.offset).collect();
        let known = Known { nodes, settled: settled_cells(image) };
        let mut covering: Vec<Option<usize>> = vec![None; image.bytes.len()];
        for (r, region) in image.regions.iter().enumerate() {
            // A live slot is inside its bucket, and is a region of its own.
            if matches!(region.what, What::Bucket { .. }) {
                continue;
            }
            for place in region.offset..region.offset + region.bytes {
                covering[place as usize] = Some(r);
            }
        }
        for change in changes(index, image, &mut random) {
            let region = covering[change.offset as usize].map(|r| image.regions[r]);
            all.push((change, region.filter(|r| is_covered(image, r, &known, change))));
        }
    }
    println!("{} cases", all.len());
    let [by_library, by_walk] = [AtomicU64::new(0), AtomicU64::new(0)];
    let failures = in_parallel(all.len() as u64, |number| {
        let (change, covered) = all[number as usize];
        let image = &IMAGES[change.image];
        let case = format!("{} byte {:#x} = {:#x}", image.name, change.offset, change.value);
        let mut random = Random::new(number);
        let mut bytes = image.bytes.clone();
        bytes[change.offset as usize] = change.value;
        let verify_first = covered.is_some() || random.below(2) == 0;
        let found =
            watched(&case, || use_pool(&bytes, &image.maps, &ALIVE, verify_first, &mut random))?;
        if random.below(4) == 0 && verify_first {
            // Let operations be the first to read the damage.
            watched(&case, || use_pool(&bytes, &image.maps, &ALIVE, false, &mut random))?;
        }
        let walked = watched(&case, || offline::walk_bytes(&bytes))?;
        let Some(region) = covered else { return Ok(()) };
        if found.damage.is_some() {
            by_library.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        match walked {
            Ok(report) if report.problems.is_empty() && report.leaked_bytes == 0 => {
                Err(format!("{case}: nobody notices, in {region:?}"))
            }
            _ => {
                by_walk.fetch_add(1, Ordering::Relaxed);
                // This is the only damage that the library may ignore, because it then traces the
                // space instead.
                if region.what == What::SavedState {
                    return Ok(());
                }
                Err(format!("{case}: only the walk notices, in {region:?}"))
            }
        }
    });
    println!(
        "{} cases in {:?}; damage noticed: {} by the library, {} by the walk alone",
        all.len(),
        started.elapsed(),
        by_library.into_inner(),
        by_walk.into_inner()
    );
    report(&failures, "cases failed");
}

/// The intent and the segments that it leads to, all of them under checksums, say what these cells must
/// hold, and recovery stores that before anything depends on it. So nothing is lost, and nothing reported.
#[test]
fn a_cell_that_recovery_stores_may_hold_anything() {
    let mut tried = 0;
    for image in IMAGES.iter().filter(|image| !image.clean) {
        let records = |bytes: &[u8]| -> Result<Vec<u64>, String> {
            let report = offline::walk_bytes(bytes).map_err(|error| error.to_string())?;
            match report.problems.first() {
                Some(problem) => Err(problem.to_string()),
                None => Ok(report.maps.iter().map(|map| map.records).collect()),
            }
        };
        let sound = records(&image.bytes).unwrap();
        let cells: Vec<u64> = settled_cells(image).into_iter().collect();
        let values = [0, 1024, image.word(8), u64::MAX];
        let failures = in_parallel((cells.len() * values.len()) as u64, |number| {
            let cell = cells[number as usize / values.len()];
            let mut bytes = image.bytes.clone();
            set_word(&mut bytes, cell, values[number as usize % values.len()]);
            let case = format!("{}: cell {cell:#x}, {number}", image.name);
            let mut random = Random::new(number);
            let found =
                watched(&case, || use_pool(&bytes, &image.maps, &ALIVE, true, &mut random))?;
            let walked = watched(&case, || records(&bytes))?;
            match (found.damage, walked) {
                (None, Ok(found)) if found == sound => Ok(()),
                other => Err(format!("{case}: {other:?}, expected {sound:?}")),
            }
        });
        report(&failures, "cells are not what recovery makes of them");
        tried += cells.len();
    }
    assert!(tried > 6, "{tried} cells");
}

#[test]
fn a_truncated_file_is_a_typed_error() {
    for image in IMAGES.iter() {
        let pages = image.bytes.len() as u64 / 4096;
        let failures = in_parallel(pages * 2, |number| {
            // Cut at each page, and somewhere inside it.
            let len = (number / 2 * 4096 + number % 2 * 1234) as usize;
            let case = format!("{} truncated to {len}", image.name);
            let cut = &image.bytes[..len];
            let mut random = Random::new(number);
            let found = watched(&case, || use_pool(cut, &image.maps, &ALIVE, true, &mut random))?;
            let walked = watched(&case, || offline::walk_bytes(cut))?;
            // The walk goes on, and its first problem is the end of the file.
            let is_told = match walked {
                Ok(report) => report.problems.first().is_some_and(|p| p.offset() == len as u64),
                Err(_) => true,
            };
            if found.opened || found.damage.is_none() || !is_told {
                return Err(format!("{case}: {found:?}"));
            }
            Ok(())
        });
        report(&failures, "truncations failed");
    }
}

/// A saved free state with a valid checksum and wrong bits lets two maps share a block. The maps'
/// contents may be lost, but the process is safe.
#[test]
fn a_saved_free_state_that_lies_does_no_harm() {
    let cases = if full() { 4000 } else { 400 };
    for image in IMAGES.iter().filter(|i| i.clean) {
        let state = *image.regions.iter().find(|r| r.what == What::SavedState).unwrap();
        let failures = in_parallel(cases, |number| {
            let mut random = Random::new(number);
            let mut bytes = image.bytes.clone();
            for _ in 0..=random.below(6) {
                let word = state.offset + 8 * (4 + random.below(state.bytes / 8 - 4));
                let old = word_at(&bytes, word);
                let new = match random.below(3) {
                    0 => old ^ 1 << random.below(32),
                    1 => old & random.next(),
                    _ => 0,
                };
                // Keep the page numbers, because the library does not believe a state with other
                // numbers at all.
                if old < 256 && random.below(8) != 0 && old == word_at(&image.bytes, word) {
                    set_word(&mut bytes, word, old & random.next());
                } else {
                    set_word(&mut bytes, word, new);
                }
            }
            repair::repair(&mut bytes, &state);
            let case = format!("{} lying free state {number}", image.name);
            watched(&case, || use_pool(&bytes, &image.maps, &ALIVE, false, &mut random))?;
            watched(&case, || offline::walk_bytes(&bytes))?.ok();
            Ok(())
        });
        report(&failures, "lies did harm");
    }
}

/// Fewer cases, but through files: mapped pages, the file's end, the lock.
#[test]
fn damaged_files_open_or_fail_typed() {
    let base = if std::path::Path::new("/dev/shm").is_dir() {
        "/dev/shm".into()
    } else {
        std::env::temp_dir()
    };
    let dir = tempfile::tempdir_in(base).unwrap();
    let cases = if full() { 2000 } else { 160 };
    for image in IMAGES.iter() {
        let failures = in_parallel(cases, |number| {
            let mut random = Random::new(number);
            let mut bytes = image.bytes.clone();
            for _ in 0..=random.below(4) {
                let region = image.regions[random.below(image.regions.len() as u64) as usize];
                let at = region.offset + random.below(region.bytes);
                bytes[at as usize] ^= (1 + random.below(255)) as u8;
                if random.below(2) == 0 {
                    repair::repair(&mut bytes, &region);
                }
            }
            if random.below(4) == 0 {
                bytes.truncate(random.below(bytes.len() as u64) as usize);
            }
            let path = dir.path().join(format!("{} {number}", image.name));
            std::fs::write(&path, &bytes).unwrap();
            let case = format!("file {} {number}", image.name);
            watched(&case, || use_file(&path, image))?;
            std::fs::remove_file(&path).unwrap();
            Ok(())
        });
        report(&failures, "files failed");
    }
}

fn use_file(path: &std::path::Path, image: &Image) {
    let _ = offline::walk(path);
    let options = PoolOptions::new().background(false).accept_possibly_torn(true);
    let options = options.max_size(image.bytes.len() as u64 + (1 << 20));
    for read_only in [true, false] {
        // SAFETY: the file belongs to this test.
        let opened =
            unsafe { if read_only { options.open_read_only(path) } else { options.open(path) } };
        let Ok(pool) = opened else { continue };
        for map in &image.maps {
            let Ok(open) = pool.raw_map(&map.name) else { continue };
            for key in &map.keys {
                let _ = open.get(key);
            }
            let _ = open.iter().take(10_000).filter(Result::is_ok).count();
            for key in map.keys.iter().take(20) {
                let changed = open.put(key, &[1; 8]);
                assert!(!read_only || matches!(changed, Err(Error::ReadOnly { .. })));
                let _ = open.remove(key);
            }
        }
        let _ = pool.verify();
        let _ = pool.close();
    }
}

/// If a saved free state marks blocks as free that are still linked, the pool hands them out again,
/// and chains of overflow nodes could become endless. Even then, every operation must end.
#[test]
fn a_free_state_that_lies_makes_no_endless_chain() {
    let mut tried = 0;
    for image in IMAGES.iter().filter(|image| image.clean) {
        let is_node =
            |region: &&Region| matches!(region.what, What::Node | What::ChainNode | What::LineNode);
        let nodes: Vec<u64> = image.regions.iter().filter(is_node).map(|r| r.offset).collect();
        let saved = image.regions.iter().find(|region| region.what == What::SavedState);
        let Some(saved) = saved.filter(|_| !nodes.is_empty()) else { continue };
        let mut bytes = image.bytes.clone();
        let geometry = Geometry::new(image.page_bits).unwrap();
        let (mut at, end) = (saved.offset + 24, saved.offset + saved.bytes);
        while at < end {
            let page = image.word(at) as u32;
            let run = Descriptor::unpack(page, image.word(geometry.descriptor_offset(page)));
            let run = run.expect("a run that the saved state lists");
            let blocks = match run.kind {
                PageKind::Large => 1,
                _ => geometry.run_blocks(geometry.class_bytes(run.class).unwrap(), run.count),
            };
            let pages = page..page + run.count;
            let has_nodes = nodes.iter().any(|&node| pages.contains(&geometry.page_of(node)));
            for _ in 0..blocks.div_ceil(64) {
                at += 8;
                if has_nodes {
                    set_word(&mut bytes, at, 0);
                }
            }
            at += 8;
        }
        repair::repair(&mut bytes, saved);
        let mut random = Random::new(7);
        let case = format!("{}: no node is in use", image.name);
        watched(&case, || use_pool(&bytes, &image.maps, &ALIVE, false, &mut random)).unwrap();
        tried += 1;
    }
    assert!(tried > 1, "{tried} images with overflow nodes");
}
