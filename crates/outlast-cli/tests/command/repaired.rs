//! Damage that the file itself says how to repair: `salvage` reads a repaired copy, and finds all records.

use crate::common::{Place, in_new, salvage};
use crate::unlinked::{fill, map_of};
use outlast::{PoolOptions, RecordForm, Scheme};
use outlast_offline::{Region, What};
use serde_json::Value;
use std::collections::HashMap;

const ROWS: u64 = 1_500;
const MAPS: [&str; 2] = ["one", "two"];

/// Values by map and key.
type Records = HashMap<(String, Vec<u8>), Vec<u8>>;

/// Makes a closed pool of two maps of each scheme and form, and returns its bytes.
fn closed(place: &Place, scheme: Scheme, form: RecordForm) -> Vec<u8> {
    // SAFETY: no one else uses the file.
    let pool = unsafe {
        PoolOptions::new().survive(outlast::Failure::ProcessDeath).create(place.pool()).unwrap()
    };
    for name in MAPS {
        fill(&map_of(&pool, name, scheme, form), ROWS);
    }
    pool.close().unwrap();
    std::fs::read(place.pool()).unwrap()
}

/// Runs a test for each scheme and record form.
fn for_each(test: impl Fn(&Place, &str, Vec<u8>, &[Region])) {
    for &scheme in Scheme::ALL {
        for form in RecordForm::ALL {
            let place = Place::new();
            let bytes = closed(&place, scheme, form);
            let (_, regions) = outlast_offline::regions(&bytes).unwrap();
            test(&place, &format!("{scheme} {form}"), bytes, &regions);
        }
    }
}

/// Salvages a pool of this content. Returns the report, without the new pool's name, and the new
/// pool's records.
fn salvaged(place: &Place, bytes: &[u8]) -> (Vec<Value>, Records) {
    std::fs::write(place.pool(), bytes).unwrap();
    let report = salvage(place, &["--json"]).expect(3).objects();
    assert_eq!(std::fs::read(place.pool()).unwrap(), bytes, "the damaged pool is as it was");
    assert!(!place.path("new.pool.copying").exists());
    in_new(place, &["verify"]).expect(0);
    // SAFETY: no one else uses the file.
    let new = unsafe { PoolOptions::new().open(place.path("new.pool")).unwrap() };
    let mut records = HashMap::new();
    for map in new.raw_maps() {
        let (info, map) = map.unwrap();
        for record in map.unwrap().iter() {
            let (key, value) = record.unwrap();
            records.insert((info.name.clone(), key), value);
        }
    }
    new.close().unwrap();
    std::fs::remove_file(place.path("new.pool")).unwrap();
    (report, records)
}

/// Checks that all records are found in a pool with one flipped bit. Returns the damage that was
/// repaired.
#[track_caller]
fn all_with_flip(place: &Place, what: &str, bytes: &[u8], at: u64, bit: u32) -> Vec<Value> {
    let mut bytes = bytes.to_vec();
    bytes[at as usize] ^= 1 << bit;
    let (report, records) = salvaged(place, &bytes);
    assert_eq!(records.len() as u64, 2 * ROWS, "{what}: {at:#x}, {report:?}");
    let sum = report.iter().find(|object| object["event"] == "salvage").unwrap();
    assert_eq!((&sum["complete"], &sum["lost_maps"]), (&false.into(), &0.into()), "{what}: {sum}");
    let repaired = report.into_iter().filter(|object| object["event"] == "repaired");
    repaired.map(|object| object["damage"].clone()).collect()
}

#[test]
fn a_flipped_bit_in_a_descriptor_hides_no_map() {
    for_each(|place, what, bytes, regions| {
        let all = regions.iter().filter(|r| matches!(r.what, What::Descriptor { .. }));
        let mut repaired = 0;
        // The runs of the roots' blocks are among the first.
        for (number, region) in (0..).zip(all.take(6)) {
            let bit = number % 8;
            let damage = all_with_flip(place, what, &bytes, region.offset, bit);
            assert!(damage.iter().all(|damage| damage["offset"] == region.offset), "{damage:?}");
            repaired += damage.len();
        }
        assert!(repaired > 0, "{what}");
    });
}

#[test]
fn a_flipped_bit_in_the_frontier_hides_nothing() {
    for_each(|place, what, bytes, _| {
        for (at, bit) in [(0x2000, 0), (0x2003, 7), (0x2004, 3)] {
            let damage = all_with_flip(place, what, &bytes, at, bit);
            assert_eq!(damage.len(), 1, "{what}");
            assert_eq!(damage[0]["offset"], 0x2000, "{what}");
        }
    });
}

#[test]
fn a_flipped_bit_in_a_root_is_no_lost_map() {
    for_each(|place, what, bytes, _| {
        let root = |slot: u64| 0x4000 + 512 * slot;
        for (at, word, is_used) in [
            (root(1) + 5, root(1), true),
            (root(1) + 66, root(1) + 64, true),
            (root(0) + 105, root(0) + 104, true),
            (root(2) + 6, root(2), false),
            (root(99), root(99), false),
        ] {
            let damage = all_with_flip(place, what, &bytes, at, 2);
            assert_eq!(damage.len(), 1, "{what}");
            assert_eq!(damage[0]["offset"], word / 512 * 512, "{what}: {damage:?}");
            let text = damage[0]["expected"].as_str().unwrap();
            assert_eq!(text.contains("unused"), !is_used, "{what}: {text}");
        }
    });
}

#[test]
fn what_is_left_of_a_cut_file_is_salvaged() {
    for_each(|place, what, bytes, _| {
        for cut in [1, 4096, 194_000, 500_000] {
            let left = &bytes[..bytes.len() - cut];
            let (report, records) = salvaged(place, left);
            let mut zeros = left.to_vec();
            zeros.resize(bytes.len(), 0);
            std::fs::write(place.pool(), &zeros).unwrap();
            // It is sound if only free space was cut off.
            let is_sound = place.run(["verify"]).code == 0;
            let told = report.iter().find(|object| object["event"] == "repaired").unwrap();
            assert_eq!(told["damage"]["offset"], left.len(), "{what}");
            let sum = report.iter().find(|object| object["event"] == "salvage").unwrap();
            assert!(sum["reasons"].to_string().contains("truncated"), "{what}: {sum}");
            if is_sound {
                assert_eq!(records.len() as u64, 2 * ROWS, "{what}: {cut} bytes cut off");
            } else {
                assert!(records == salvaged(place, &zeros).1, "{what}: {cut} bytes cut off");
            }
        }
    });
}

/// A closed pool with a journal is a file like any other. One that needs its journal is not repaired.
#[test]
fn a_closed_pool_with_a_journal_is_repaired() {
    let place = Place::new();
    place.run(["put", "k", "v", "--journal"]).expect(0);
    let mut bytes = std::fs::read(place.pool()).unwrap();
    bytes[0x2001] ^= 4;
    let (_, records) = salvaged(&place, &bytes);
    assert_eq!(records.len(), 1);
}

#[test]
fn a_file_in_the_place_of_the_copy_is_kept() {
    let place = Place::new();
    place.run(["put", "k", "v"]).expect(0);
    let mut bytes = std::fs::read(place.pool()).unwrap();
    bytes[0x2000] ^= 1;
    std::fs::write(place.pool(), bytes).unwrap();
    let copy = place.file("new.pool.copying", "mine");
    assert!(salvage(&place, &[]).expect(1).err.contains("new.pool.copying"));
    assert_eq!(std::fs::read(copy).unwrap(), b"mine");
}
