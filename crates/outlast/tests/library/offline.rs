//! Compares the offline walk with pools that the library made.
//!
//! Goal: the walk shares no code with the allocator or the indexes. It accounts for every byte of a
//! pool, agrees with the library on the records, and notices when the saved free state is wrong.

use outlast::internals::pool::geometry::Geometry;
use outlast::internals::pool::layout::{Descriptor, FRONTIER_OFFSET, PageKind, unpack_frontier};
use outlast::{Config, MapOptions, Pool, PoolOptions, RecordForm, Scheme, config};
use outlast_offline as offline;
use outlast_offline::Report;
use std::path::Path;

fn options(page_bits: u32) -> PoolOptions {
    PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .page_bits(page_bits)
        .initial_size(300_000)
        .background(false)
}

fn open(path: &Path, options: &PoolOptions) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe { options.open_or_create(path).unwrap() }
}

/// Fills maps of these shapes and both forms. There are large records, removals and dropped maps.
fn fill(pool: &Pool, shapes: &[MapOptions], seed: u64) {
    for (number, map) in shapes.iter().enumerate() {
        let words = pool.map_with::<u64, u64>(&format!("words {number}"), map).unwrap();
        let texts = pool.map_with::<[u8], [u8]>(&format!("texts {number}"), map).unwrap();
        for n in 0..400u64 {
            let key = (n * 7919) ^ seed << 20;
            words.put(&key, &(n << 40)).unwrap();
            let len = if n % 97 == 0 { 30_000 } else { n as usize * 3 };
            texts.put(&key.to_le_bytes()[..], &vec![n as u8; len][..]).unwrap();
            if n % 3 == 0 {
                words.remove(&(key ^ 7919)).unwrap();
                texts.remove(&((n / 2 * 7919) ^ seed << 20).to_le_bytes()[..]).unwrap();
            }
        }
    }
    for &scheme in Scheme::ALL {
        let map = MapOptions::new().scheme(scheme);
        let doomed = pool.map_with::<[u8], u64>("doomed", &map).unwrap();
        for n in 0..300u64 {
            doomed.insert(&n.to_le_bytes()[..], &n).unwrap();
        }
        drop(doomed);
        pool.drop_map("doomed").unwrap();
    }
}

fn shapes() -> Vec<MapOptions> {
    let mut shapes = Vec::new();
    for bits in [1, 3, 6] {
        for stash in [2, 4] {
            let config = config::DashEh { bucket_bits: bits, stash_buckets: stash };
            shapes.push(MapOptions::new().config(config));
        }
    }
    for slots in [4, 20] {
        let partitions = slots;
        let config =
            config::Phast { leaf_slots: slots, node_leaves: 4, partitions, ..Default::default() };
        shapes.push(MapOptions::new().config(config));
    }
    shapes.extend(Scheme::ALL.iter().map(|&scheme| MapOptions::new().scheme(scheme)));
    shapes
}

/// Returns the library's own count of each map's records.
fn counts(pool: &Pool) -> Vec<(String, u64)> {
    let found = pool.verify().unwrap();
    assert!(found.is_sound(), "{found:?}");
    found.maps.iter().map(|(info, v)| (info.name.clone(), v.records)).collect()
}

fn walked(report: &Report) -> Vec<(String, u64)> {
    report.maps.iter().map(|m| (m.name.clone(), m.records)).collect()
}

#[test]
fn every_byte_of_a_closed_pool_is_accounted_for() {
    let dir = tempfile::tempdir().unwrap();
    for page_bits in [12, 13, 16, 18, 20] {
        let path = dir.path().join(format!("{page_bits}.pool"));
        for life in 0..3 {
            let pool = open(&path, &options(page_bits));
            fill(&pool, &shapes(), life);
            let expected = counts(&pool);
            pool.close().unwrap();
            let report = offline::walk(&path).unwrap();
            assert_eq!(report.problems, [], "2^{page_bits}");
            assert!(report.clean && report.free_state, "2^{page_bits}, life {life}: {report:?}");
            assert_eq!(report.leaked_bytes, 0);
            assert_eq!(report.sum(), report.file_bytes);
            assert_eq!(report.file_bytes, path.metadata().unwrap().len());
            assert_eq!(walked(&report), expected);
            assert!(report.maps.iter().all(|m| m.duplicates == 0 && m.torn == 0 && m.whole));
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(offline::walk_bytes(&bytes).unwrap(), report);
        }
    }
}

#[test]
fn keys_of_one_hash_are_found_in_overflow_nodes() {
    Scheme::ALL.iter().copied().for_each(found_in_overflow_nodes);
}

fn found_in_overflow_nodes(scheme: Scheme) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chains.pool");
    let pool = open(&path, &options(12).hash_function(0x7e57));
    let small = MapOptions::new().config(Config::small(scheme));
    let words = pool.map_with::<u64, u64>("words", &small).unwrap();
    let texts = pool.map_with::<u64, u64>("texts", &small.form(RecordForm::Bytes)).unwrap();
    for n in 0..400u64 {
        words.insert(&(n << 32), &n).unwrap();
        texts.insert(&(n << 32), &n).unwrap();
    }
    let expected = counts(&pool);
    drop((words, texts));
    pool.close().unwrap();
    let report = offline::walk(&path).unwrap();
    assert_eq!(report.problems, []);
    assert_eq!(walked(&report), expected);
    // In schemes that place records by hash, the keys need more than one node.
    assert!(scheme.is_ordered() || report.maps.iter().all(|m| m.nodes >= 3), "{report:?}");
    assert_eq!((report.leaked_bytes, report.sum()), (0, report.file_bytes));
}

#[test]
fn a_pool_that_was_not_closed_has_no_leaks_and_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("live.pool");
    let pool = open(&path, &options(12));
    fill(&pool, &shapes(), 9);
    let expected = counts(&pool);
    assert!(matches!(offline::walk(&path), Err(outlast::Error::Locked { .. })));
    let bytes = std::fs::read(&path).unwrap();
    let report = offline::walk_bytes(&bytes).unwrap();
    assert_eq!(report.problems, []);
    assert!(!report.clean && !report.free_state);
    assert_eq!((report.leaked_bytes, report.sum()), (0, report.file_bytes));
    assert_eq!(walked(&report), expected);
    pool.sync().unwrap();
    let report = offline::walk_bytes(&std::fs::read(&path).unwrap()).unwrap();
    assert!(report.clean && report.free_state);
    assert_eq!((&report.problems[..], report.leaked_bytes), (&[][..], 0));
}

#[test]
fn a_saved_free_state_that_lies_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lies.pool");
    let pool = open(&path, &options(12));
    // The walk runs again for each bit of the free state, so one map of each scheme is enough.
    let small = |&scheme| MapOptions::new().config(Config::small(scheme));
    fill(&pool, &Scheme::ALL.iter().map(small).collect::<Vec<_>>(), 1);
    pool.close().unwrap();
    let sound = std::fs::read(&path).unwrap();
    let (report, regions) = offline::regions(&sound).unwrap();
    let state = regions.iter().find(|r| r.what == offline::What::SavedState).unwrap();
    let at = state.offset as usize;
    let words: Vec<u64> = sound[at..at + state.bytes as usize]
        .chunks_exact(8)
        .map(|b| u64::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let (mut leaks, mut problems) = (0, 0);
    for index in 4..words.len() {
        for bit in [0, 3, 17] {
            let mut words = words.clone();
            words[index] ^= 1 << bit;
            let body: Vec<u8> = words[3..].iter().flat_map(|w| w.to_le_bytes()).collect();
            words[2] = u64::from(crc32c::crc32c(&body));
            let mut bytes = sound.clone();
            for (i, word) in words.iter().enumerate() {
                bytes[at + i * 8..at + i * 8 + 8].copy_from_slice(&word.to_le_bytes());
            }
            let lying = offline::walk_bytes(&bytes).unwrap();
            assert_eq!(lying.sum(), lying.file_bytes);
            assert_eq!(lying.records, report.records);
            assert!(
                lying.leaked_bytes > 0 || !lying.problems.is_empty(),
                "word {index}, bit {bit}: {lying:?}"
            );
            leaks += u32::from(lying.leaked_bytes > 0);
            problems += u32::from(!lying.problems.is_empty());
        }
    }
    assert!(leaks > 10 && problems > 10, "{leaks} leaks, {problems} problems");
    // A checksum that does not match is reported too.
    let mut bytes = sound;
    bytes[at + 40] ^= 1;
    let report = offline::walk_bytes(&bytes).unwrap();
    assert!(!report.free_state && report.problems.len() == 1);
}

#[test]
fn the_walk_knows_every_scheme() {
    let known: Vec<_> = offline::schemes().collect();
    let all: Vec<_> = Scheme::ALL.iter().map(|&scheme| (scheme as u8, scheme.name())).collect();
    assert_eq!(known, all);
}

/// The trace after a crash trusts a run's descriptor, whether the page is free or not. If the
/// descriptor is of an impossible run, the trace stops, and the space could never be reclaimed.
#[test]
fn a_free_page_with_the_descriptor_of_a_run_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = open(&path, &options(12));
    let map = pool.map::<u64, [u8]>("m").unwrap();
    for n in 0..20 {
        map.insert(&n, &[1; 11_000]).unwrap();
    }
    for n in 1..20 {
        map.remove(&n).unwrap();
    }
    drop(map);
    pool.close().unwrap();
    let sound = std::fs::read(&path).unwrap();
    let geometry = Geometry::new(12).unwrap();
    let word = |at: u64| u64::from_le_bytes(sound[at as usize..][..8].try_into().unwrap());
    let frontier = unpack_frontier(word(FRONTIER_OFFSET)).unwrap();
    let pages = (geometry.first_page()..frontier).filter(|&page| {
        let found = Descriptor::unpack(page, word(geometry.descriptor_offset(page)));
        !geometry.is_system(page) && found.is_none_or(|d| d.kind == PageKind::Free)
    });
    let runs = [
        (PageKind::Large, 255, 0, false),
        (PageKind::Large, 255, 1, false),
        (PageKind::Blocks, 200, 1, false),
        // This run ends beyond the frontier, so the trace skips it.
        (PageKind::Large, 255, frontier, true),
    ];
    let mut tried = 0;
    for page in pages {
        for (kind, class, count, is_sound) in runs {
            let mut bytes = sound.clone();
            let descriptor = Descriptor { kind, class, count };
            let at = geometry.descriptor_offset(page) as usize;
            bytes[at..at + 8].copy_from_slice(&descriptor.pack(page).to_le_bytes());
            std::fs::write(&path, &bytes).unwrap();
            let walked = offline::walk(&path).unwrap().problems;
            // SAFETY: the file belongs to this test.
            let pool = unsafe { options(12).open_read_only(&path) }.unwrap();
            let found = pool.verify().unwrap();
            assert_eq!(found.is_sound(), is_sound, "{page}, {descriptor:?}: {found:?}");
            assert_eq!(walked.is_empty(), is_sound, "{page}, {descriptor:?}: {walked:?}");
            tried += 1;
        }
    }
    assert!(tried > 40, "{tried}");
}
