//! Damage to the words that say where a pool's blocks are.
//!
//! Goal: the offline walk reports such damage and still reads everything, because each block says
//! itself what it is. A copy in which these words are repaired opens, and is sound. The library
//! refuses the damaged file itself.

use outlast::internals::pool::layout::{FRONTIER_OFFSET, ROOTS_OFFSET};
use outlast::{Damage, Error, MapOptions, PoolOptions, RecordForm, Scheme};
use outlast_offline as offline;
use outlast_offline::{Region, Report, What};
use std::path::Path;

const ROWS: u64 = 700;

fn row(form: RecordForm, n: u64, of: u64) -> Vec<u8> {
    let word = (n * 7919) << 20 | of;
    match form {
        RecordForm::Inline => word.to_le_bytes().to_vec(),
        RecordForm::Bytes => format!("{word} {}", "x".repeat(n as usize * 37 % 600)).into_bytes(),
    }
}

/// Makes a pool with a map of each scheme in each form, some with blocks of more than a page. Returns the
/// content of its file before it was closed, and after that.
fn made(dir: &Path, page_bits: u32) -> [Vec<u8>; 2] {
    let path = dir.join("made.pool");
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .page_bits(page_bits)
        .initial_size(300_000)
        .background(false);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.create(&path).unwrap() };
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            let schema = if form == RecordForm::Inline { "u64" } else { "bytes" };
            let options = MapOptions::new().scheme(scheme).form(form);
            let name = format!("{scheme} {form}");
            let map = pool.raw_map_with(&name, schema, schema, &options).unwrap();
            for n in 0..ROWS {
                assert!(map.insert(&row(form, n, 1), &row(form, n, 2)).unwrap());
            }
            if form == RecordForm::Bytes {
                map.insert(b"large", &[7; 70_000]).unwrap();
            }
        }
    }
    let killed = std::fs::read(&path).unwrap();
    pool.close().unwrap();
    let closed = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    [killed, closed]
}

/// Runs a test on pools that were closed or not, of small pages and large ones.
fn for_each(test: impl Fn(&Path, &str, &[u8], &Report, &[Region])) {
    let dir = tempfile::tempdir().unwrap();
    for page_bits in [12, 16] {
        for (bytes, state) in made(dir.path(), page_bits).iter().zip(["killed", "closed"]) {
            let (report, regions) = offline::regions(bytes).unwrap();
            assert_eq!(report.problems, []);
            test(dir.path(), &format!("{state}, 2^{page_bits}"), bytes, &report, &regions);
        }
    }
}

fn flipped(bytes: &[u8], offset: u64, bit: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[(offset + bit / 8) as usize] ^= 1 << (bit % 8);
    bytes
}

/// Checks that a report of a damaged pool is that of the sound one but for the problems, and returns
/// those.
#[track_caller]
fn same(mut report: Report, sound: &Report, what: &str) -> Vec<Damage> {
    let problems = std::mem::take(&mut report.problems);
    // If a run without a block in use has no descriptor, its pages are just as free.
    report.free_block_bytes = sound.free_block_bytes;
    assert_eq!(&report, sound, "{what}: {problems:?}");
    problems
}

/// Walks a damaged pool. Checks that the report is that of the sound one, and has one problem, and
/// returns that.
#[track_caller]
fn one_problem(bytes: &[u8], sound: &Report, what: &str) -> Damage {
    let problems = same(offline::walk_bytes(bytes).unwrap(), sound, what);
    let [problem] = &problems[..] else { panic!("{what}: {problems:?}") };
    problem.clone()
}

/// Checks that a copy of a damaged pool with its repairs is the sound pool, and opens.
#[track_caller]
fn repaired(dir: &Path, bytes: &[u8], sound: &Report, what: &str) -> Vec<Damage> {
    let path = dir.join("repaired.pool");
    std::fs::write(&path, bytes).unwrap();
    let repairs = offline::repairs(&path).unwrap();
    let mut bytes = bytes.to_vec();
    bytes.resize(repairs.size.unwrap_or(bytes.len() as u64) as usize, 0);
    for &(offset, word) in &repairs.words {
        bytes[offset as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
    let left = same(offline::walk_bytes(&bytes).unwrap(), sound, what);
    // Nothing tells the descriptor of a run without a block in use, and nobody needs it.
    assert!(left.is_empty() || repairs.damage.is_empty(), "{what}: {left:?}");
    std::fs::write(&path, bytes).unwrap();
    let options =
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).accept_possibly_torn(true);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.open_read_only(&path).unwrap() };
    for map in pool.raw_maps() {
        let (info, map) = map.unwrap();
        let all: Vec<_> = map.unwrap().iter().checked().collect::<Result<_, _>>().unwrap();
        let large = u64::from(info.form == RecordForm::Bytes);
        assert_eq!(all.len() as u64, ROWS + large, "{what}: {}", info.name);
    }
    repairs.damage
}

#[test]
fn a_damaged_descriptor_hides_nothing() {
    for_each(|dir, state, bytes, sound, regions| {
        let of_page = |region: &&Region| matches!(region.what, What::Descriptor { .. });
        let descriptors: Vec<_> = regions.iter().filter(of_page).collect();
        // A hundred or more of them, first pages of runs and later ones.
        let step = (descriptors.len() / 100).max(1);
        let mut count = 0;
        for (number, region) in (0..).zip(descriptors.into_iter().step_by(step)) {
            let what = format!("{state}: {region:?}");
            let damaged = flipped(bytes, region.offset, number * 5 % 64);
            let problem = one_problem(&damaged, sound, &what);
            assert_eq!(problem.offset(), region.offset, "{what}");
            if number % 8 == 0 {
                let repaired = repaired(dir, &damaged, sound, &what);
                assert!(repaired.is_empty() || repaired == [problem], "{what}: {repaired:?}");
                count += repaired.len();
            }
            let mut lost = bytes.to_vec();
            lost[region.offset as usize..][..8].fill(0);
            let path = dir.join("lost.pool");
            std::fs::write(&path, &lost).unwrap();
            let problems = same(offline::walk(&path).unwrap(), sound, &what);
            let offsets: Vec<_> = problems.iter().map(Damage::offset).collect();
            assert!(offsets.is_empty() || offsets.contains(&region.offset), "{what}: {problems:?}");
        }
        assert!(count > 5, "{state}: {count} repaired");
    });
}

#[test]
fn a_damaged_frontier_hides_nothing() {
    for_each(|dir, state, bytes, sound, _| {
        for bit in 0..64 {
            let what = format!("{state}: bit {bit}");
            let damaged = flipped(bytes, FRONTIER_OFFSET, bit);
            let problem = one_problem(&damaged, sound, &what);
            assert_eq!(problem.offset(), FRONTIER_OFFSET, "{what}");
            if bit % 16 == 0 {
                let path = dir.join("frontier.pool");
                std::fs::write(&path, &damaged).unwrap();
                let options = PoolOptions::new()
                    .survive(outlast::Failure::ProcessDeath)
                    .accept_possibly_torn(true);
                // SAFETY: the file belongs to this test.
                let opened = unsafe { options.open_read_only(&path) };
                assert!(matches!(opened, Err(Error::DamagedHeader { .. })), "{what}");
                assert_eq!(repaired(dir, &damaged, sound, &what), [problem], "{what}");
            }
        }
    });
}

#[test]
fn what_a_cut_file_lacks_counts_as_zeros() {
    for_each(|dir, state, bytes, _, _| {
        let len = bytes.len();
        for cut in [1, 8, 4096, 5000, len / 10, len / 2, len - (200 << 10)] {
            let what = format!("{state}: {cut} bytes cut off");
            let left = &bytes[..len - cut];
            let mut zeros = left.to_vec();
            zeros.resize(len, 0);
            let mut expected = offline::walk_bytes(&zeros).unwrap();
            let mut found = offline::walk_bytes(left).unwrap();
            let problem = found.problems.remove(0);
            assert_eq!(problem.offset(), left.len() as u64, "{what}");
            // What is damaged beyond the end is so in both, but a copy can say so in other words.
            let places = |report: &mut Report| -> Vec<u64> {
                std::mem::take(&mut report.problems).iter().map(Damage::offset).collect()
            };
            assert_eq!(places(&mut found), places(&mut expected), "{what}");
            assert_eq!(found, expected, "{what}");
            let path = dir.join("cut.pool");
            std::fs::write(&path, left).unwrap();
            let repairs = offline::repairs(&path).unwrap();
            assert_eq!((repairs.size, &repairs.damage[0]), (Some(len as u64), &problem), "{what}");
            let options = PoolOptions::new()
                .survive(outlast::Failure::ProcessDeath)
                .accept_possibly_torn(true);
            // SAFETY: the file belongs to this test.
            let opened = unsafe { options.open_read_only(&path) };
            assert!(matches!(opened, Err(Error::Truncated { .. })), "{what}");
        }
    });
}

#[test]
fn a_flipped_bit_of_a_commit_word_hides_no_root() {
    for_each(|dir, state, bytes, sound, _| {
        let maps = sound.maps.len() as u64;
        for (slot, expected) in [(0, "commit word"), (maps - 1, "commit word"), (maps, "unused")] {
            for bit in 0..64 {
                let what = format!("{state}: slot {slot}, bit {bit}");
                let damaged = flipped(bytes, ROOTS_OFFSET + 512 * slot, bit);
                let problem = one_problem(&damaged, sound, &what);
                assert_eq!(problem.offset(), ROOTS_OFFSET + 512 * slot, "{what}");
                assert!(problem.expected().contains(expected), "{what}: {problem}");
                if bit % 16 == 0 {
                    assert_eq!(repaired(dir, &damaged, sound, &what), [problem], "{what}");
                }
            }
        }
    });
}
