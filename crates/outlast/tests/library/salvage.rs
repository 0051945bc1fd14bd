//! Salvages the records of damaged pools.
//!
//! Goal: an iteration that steps over damage returns every record that a lookup still finds, no
//! record that was never there, and none twice. If it lacks a record, it has named a damaged place.
//! (Records stored in place have no checksum, so a damaged one can look like another record, or
//! like none.) Method: the test overwrites random lines of a closed pool's file, for each scheme
//! and record form.

use outlast::{Error, MapOptions, Pool, PoolOptions, RecordForm, Scheme};
use std::collections::HashMap;
use std::path::Path;

const RECORDS: u64 = 3000;
/// The size, in bytes, of the part with the header copies, the frontier and the roots. The test
/// leaves that part intact.
const SYSTEM_BYTES: usize = 1 << 17;
const LINE: usize = 64;

/// A random number generator that is good enough to choose where the damage is and what it holds.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) ^ self.0 << 31
    }
}

fn key(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns key and value of a record in a map of this form.
fn record(form: RecordForm, n: u64) -> (Vec<u8>, Vec<u8>) {
    match form {
        RecordForm::Inline => (key(n).to_le_bytes().to_vec(), (n ^ 0x5555).to_le_bytes().to_vec()),
        RecordForm::Bytes => {
            let value = format!("value {n} {}", "-".repeat(n as usize % 90));
            (format!("key {:x}", key(n)).into_bytes(), value.into_bytes())
        }
    }
}

/// Makes a closed pool with one map.
fn fill(path: &Path, scheme: Scheme, form: RecordForm) -> HashMap<Vec<u8>, Vec<u8>> {
    let pool = crate::files::create(path);
    let options = MapOptions::new().scheme(scheme).form(form);
    let schema = if form == RecordForm::Inline { "u64" } else { "bytes" };
    let map = pool.raw_map_with("m", schema, schema, &options).unwrap();
    let records: HashMap<_, _> = (0..RECORDS).map(|n| record(form, n)).collect();
    for (key, value) in &records {
        assert!(map.insert(key, value).unwrap());
    }
    drop(map);
    pool.close().unwrap();
    records
}

/// Overwrites random lines that are not all zeros with random bytes, outside the system area.
fn damage(path: &Path, lines: usize, random: &mut Random) {
    let mut bytes = std::fs::read(path).unwrap();
    let used: Vec<usize> = (SYSTEM_BYTES..bytes.len())
        .step_by(LINE)
        .filter(|&at| bytes[at..at + LINE].iter().any(|&byte| byte != 0))
        .collect();
    for _ in 0..lines {
        let at = used[random.next() as usize % used.len()];
        bytes[at..at + LINE].chunks_mut(8).for_each(|word| {
            word.copy_from_slice(&random.next().to_le_bytes());
        });
    }
    std::fs::write(path, bytes).unwrap();
}

fn open(path: &Path) -> Pool {
    // SAFETY: the file belongs to this test.
    unsafe { PoolOptions::new().accept_possibly_torn(true).open_read_only(path).unwrap() }
}

fn for_each(mut test: impl FnMut(&Path, Scheme, RecordForm)) {
    let dir = tempfile::tempdir().unwrap();
    for &scheme in Scheme::ALL {
        for form in [RecordForm::Inline, RecordForm::Bytes] {
            test(&dir.path().join(format!("{scheme}-{form}.pool")), scheme, form);
        }
    }
}

#[test]
fn a_sound_map_is_salvaged_whole() {
    for_each(|path, scheme, form| {
        let records = fill(path, scheme, form);
        let pool = open(path);
        let map = pool.raw_map("m").unwrap();
        let salvaged: Vec<_> = map.salvage().collect::<Result<_, _>>().unwrap();
        assert_eq!(salvaged.len(), records.len(), "{scheme} {form}");
        assert_eq!(HashMap::from_iter(salvaged), records, "{scheme} {form}");
        let checked: Vec<_> = map.iter().checked().collect::<Result<_, _>>().unwrap();
        assert_eq!(HashMap::from_iter(checked), records, "{scheme} {form}");
    });
}

#[test]
fn what_lookups_find_in_a_damaged_map_is_salvaged() {
    let mut random = Random(11);
    for_each(|path, scheme, form| {
        let records = fill(path, scheme, form);
        let whole = std::fs::read(path).unwrap();
        for lines in [1, 1, 3, 3, 20] {
            std::fs::write(path, &whole).unwrap();
            damage(path, lines, &mut random);
            let what = format!("{scheme} {form}, {lines} lines");
            let pool = open(path);
            let map = match pool.raw_map("m") {
                Ok(map) => map,
                // The damage hit a structure through which all of the map is found, so lookups
                // fail, too.
                Err(error) => {
                    assert!(error.is_damage(), "{what}: {error}");
                    continue;
                }
            };
            let (mut salvaged, mut places) = (HashMap::new(), 0);
            for found in map.salvage() {
                match found {
                    Ok((key, value)) => {
                        // A damaged record that is stored in place can look like another one.
                        if form == RecordForm::Bytes {
                            assert_eq!(records.get(&key), Some(&value), "{what}");
                        }
                        assert!(salvaged.insert(key, value).is_none(), "{what}: a key twice");
                    }
                    Err(Error::Damaged(_)) => places += 1,
                    Err(error) => panic!("{what}: {error}"),
                }
            }
            let mut missing = 0;
            for (key, value) in &records {
                let is_found = map.get(key).is_ok_and(|found| found.as_ref() == Some(value));
                let is_salvaged = salvaged.get(key) == Some(value);
                assert!(is_salvaged || !is_found, "{what}: a record is found, and not salvaged");
                missing += usize::from(!is_salvaged);
            }
            // A damaged record that is stored in place can look like one that a split has left
            // behind.
            if form == RecordForm::Bytes {
                assert!(missing == 0 || places > 0, "{what}: {missing} are missing in silence");
            }
        }
    });
}

#[test]
fn a_record_whose_checksum_does_not_match_ends_a_checked_iteration() {
    for_each(|path, scheme, form| {
        if form == RecordForm::Inline {
            return;
        }
        let records = fill(path, scheme, form);
        let mut bytes = std::fs::read(path).unwrap();
        let value = &records[&record(form, 77).0];
        let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
        bytes[at + 2] ^= 4;
        std::fs::write(path, bytes).unwrap();
        let pool = open(path);
        let map = pool.raw_map("m").unwrap();
        let count = |ends: &mut dyn Iterator<Item = outlast::Result<(Vec<u8>, Vec<u8>)>>| {
            let all: Vec<_> = ends.collect();
            let last = all.last().unwrap().as_ref().err().map(Error::is_damage);
            (all.iter().filter(|found| found.is_ok()).count(), all.len(), last)
        };
        let (read, all, last) = count(&mut map.iter().checked());
        assert!(read + 1 == all && last == Some(true), "{scheme}");
        let (read, all, _) = count(&mut map.salvage());
        assert_eq!((read, all), (RECORDS as usize - 1, RECORDS as usize), "{scheme}");
        if scheme.is_ordered() {
            let range =
                || map.range(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded).unwrap();
            let (read, all, last) = count(&mut range().checked());
            assert!(read + 1 == all && last == Some(true), "{scheme}");
            let (read, all, _) = count(&mut range().salvage());
            assert_eq!((read, all), (RECORDS as usize - 1, RECORDS as usize), "{scheme}");
            let (read, _, _) = count(&mut range().salvage().rev());
            assert_eq!(read, RECORDS as usize - 1, "{scheme}");
        }
    });
}

#[test]
fn a_mixture_of_two_states_of_a_pool_is_salvaged_without_wrong_records() {
    const PAGE: usize = 4096;
    let mut random = Random(5);
    for_each(|path, scheme, form| {
        if form == RecordForm::Inline {
            return;
        }
        let before = fill(path, scheme, form);
        let first = std::fs::read(path).unwrap();
        let pool = crate::files::open(path).unwrap();
        let map = pool.raw_map("m").unwrap();
        let mut after = before.clone();
        for n in (0..2 * RECORDS).step_by(2) {
            let (key, mut value) = record(form, n);
            value.extend(b" changed");
            map.put(&key, &value).unwrap();
            after.insert(key, value);
        }
        drop(map);
        pool.close().unwrap();
        let second = std::fs::read(path).unwrap();
        for round in 0..6 {
            // Mix two states as a power loss can: each page is as it was at one of two moments.
            let mut mixed = second.clone();
            for (number, page) in first.chunks(PAGE).enumerate() {
                if random.next() % 8 < round + 1 {
                    mixed[number * PAGE..][..page.len()].copy_from_slice(page);
                }
            }
            std::fs::write(path, mixed).unwrap();
            // SAFETY: the file belongs to this test.
            let opened =
                unsafe { PoolOptions::new().accept_possibly_torn(true).open_read_only(path) };
            let Ok(map) = opened.and_then(|pool| pool.raw_map("m")) else { continue };
            let mut salvaged = HashMap::new();
            for found in map.salvage() {
                match found {
                    Ok((key, value)) => {
                        let known = [before.get(&key), after.get(&key)];
                        assert!(
                            known.contains(&Some(&value)),
                            "{scheme}: a record of neither state"
                        );
                        assert!(salvaged.insert(key, value).is_none(), "{scheme}: a key twice");
                    }
                    Err(error) => assert!(error.is_damage(), "{scheme}: {error}"),
                }
            }
        }
    });
}

/// Prints, for each scheme, how many records lookups and a salvage find in a large damaged pool.
#[test]
#[ignore = "takes minutes; it prints figures"]
fn figures_of_300_000_rows() {
    const ROWS: u64 = 300_000;
    let row =
        |n: u64| (format!("key {:x}", key(n)).into_bytes(), format!("{n:0>100}").into_bytes());
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(23);
    println!("scheme, lines: MiB; found by get, salvaged, found and not salvaged; damaged places");
    for &scheme in Scheme::ALL {
        let path = dir.path().join(format!("{scheme}.pool"));
        let pool = crate::files::create(&path);
        let options = MapOptions::new().scheme(scheme);
        let map = pool.raw_map_with("m", "bytes", "bytes", &options).unwrap();
        for n in 0..ROWS {
            let (key, value) = row(n);
            assert!(map.insert(&key, &value).unwrap());
        }
        drop(map);
        pool.close().unwrap();
        let whole = std::fs::read(&path).unwrap();
        for lines in [3, 3, 3, 20, 20, 20] {
            std::fs::write(&path, &whole).unwrap();
            damage(&path, lines, &mut random);
            let pool = open(&path);
            let Ok(map) = pool.raw_map("m") else {
                println!("{scheme}, {lines}: the map does not open, for lookups either");
                continue;
            };
            let (mut salvaged, mut places) = (HashMap::new(), 0);
            for found in map.salvage() {
                match found {
                    Ok((key, value)) => assert!(salvaged.insert(key, value).is_none()),
                    Err(_) => places += 1,
                }
            }
            let (mut found, mut kept, mut missed) = (0, 0, 0);
            for (key, value) in (0..ROWS).map(row) {
                let is_found = map.get(&key).is_ok_and(|found| found.as_ref() == Some(&value));
                let is_kept = salvaged.get(&key) == Some(&value);
                found += u64::from(is_found);
                kept += u64::from(is_kept);
                missed += u64::from(is_found && !is_kept);
            }
            assert_eq!(kept, salvaged.len() as u64, "a record that was never there");
            let size = whole.len() >> 20;
            println!("{scheme}, {lines}: {size}; {found}, {kept}, {missed}; {places}");
            assert!(missed * 1000 <= found, "less than 99.9%");
            assert!(kept == ROWS || places > 0, "records are missing in silence");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
