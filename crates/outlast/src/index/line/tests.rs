//! The table beside a model, with segments of each size.

mod elsewhere;

use super::layout::{BLOCK_LINES, LINE_SLOTS, SIZES, Segment, Shape};
use super::rebuild::Outcome;
use super::{Config, Line, walk};
use crate::index::kit::change::change;
use crate::index::kit::collect::Collector;
use crate::index::kit::interleaved::pool_of;
use crate::index::kit::lock::Guarded;
use crate::index::kit::lookup::Optimistic;
use crate::index::kit::table::{HashedKey, Lookup, Table as _, Verify, Walk};
use crate::index::record::SlotRecord;
use crate::index::version::version;
use crate::index::{BlockKind, Bytes, Care, Change, Cursor, Inline, Previous, Schemas};
use crate::pmem::Traced;
use std::collections::{BTreeSet, HashMap};
use std::thread::sleep;
use std::time::Duration;

type Table = Line<Traced, Inline>;

fn table(segment_bits: u32) -> Table {
    table_of::<Inline>(segment_bits)
}

fn table_of<R: SlotRecord>(segment_bits: u32) -> Line<Traced, R> {
    let config = Config { segment_bits };
    let core = pool_of(Traced::new(), |core| Line::<_, R>::create(core, config).unwrap());
    Line::open(&core, 0, config).unwrap()
}

fn hash(table: &Table, key: u64) -> u64 {
    HashedKey::<Inline>::new(&table.core, key).hash
}

fn insert(table: &Table, key: u64) {
    assert!(change(table, key, Change::Insert(key + 7), Previous::UNWANTED).unwrap().applied);
}

fn get(table: &Table, key: u64) -> Option<u64> {
    Lookup::<_, Inline>::value(table, HashedKey::new(&table.core, key)).unwrap()
}

/// Checks that the table holds exactly these records, by lookups, an iteration and a verification.
fn check(table: &Table, model: &HashMap<u64, u64>) {
    for (key, value) in model {
        assert_eq!(get(table, *key), Some(*value), "{key}");
        assert_eq!(get(table, key.wrapping_neg()), None);
    }
    let (mut found, mut cursor) = (Vec::new(), Cursor::start());
    while !cursor.is_done() {
        table.scan(&mut cursor, &mut found).unwrap();
    }
    assert_eq!(found.len(), model.len());
    assert_eq!(found.into_iter().collect::<HashMap<_, _>>(), *model);
    let passed = table.core.enter().unwrap();
    let verified =
        table.verify(&mut |_, _, _| Ok(()), Schemas::<Inline>::new("u64", "u64")).unwrap();
    drop(passed);
    assert!(verified.damage.is_empty(), "{:?}", verified.damage);
    assert_eq!(verified.records, model.len() as u64);
    let stats = table.stats().unwrap();
    if stats.directory_entries <= 64 {
        assert_eq!(stats.records_estimate, model.len() as u64);
    }
}

#[test]
fn records_are_found_while_the_table_grows_and_after_it_is_opened_again() {
    for segment_bits in 0..=5 {
        let mut table = table(segment_bits);
        let mut model = HashMap::new();
        let most = [3000, 4000, 6000, 10_000, 20_000, 40_000][segment_bits as usize];
        for key in 1..=most {
            let done = change(&table, key, Change::Insert(key + 7), Previous::UNWANTED).unwrap();
            assert!(done.applied);
            model.insert(key, key + 7);
            if key % 3 == 0 {
                let other = 1 + key * 7919 % key;
                let expected = model.remove(&other);
                let done = change(&table, other, Change::Remove, Previous::WANTED).unwrap();
                assert_eq!(done.before, expected, "{other}");
            }
            if key % 5 == 0 {
                let other = 1 + key * 7907 % key;
                let done = change(&table, other, Change::Put(key), Previous::WANTED).unwrap();
                assert_eq!(done.before, model.insert(other, key), "{other}");
            }
            let done = change(&table, key, Change::Insert(1), Previous::UNWANTED).unwrap();
            assert_eq!(done.applied, model.insert(key, 1).is_none());
            if !done.applied {
                change(&table, key, Change::Put(1), Previous::UNWANTED).unwrap();
            }
            if key.is_power_of_two() || key == most {
                check(&table, &model);
            }
        }
        let stats = table.stats().unwrap();
        assert!(stats.splits > 5 && stats.doublings > 0, "{stats:?}");
        table = Table::open(&table.core, 0, Config { segment_bits }).unwrap();
        check(&table, &model);
        for key in 1..=most {
            let expected = model.remove(&key);
            let done = change(&table, key, Change::Remove, Previous::WANTED).unwrap();
            assert_eq!(done.before, expected, "{key}");
        }
        check(&table, &model);
        assert!(table.has_work());
        let passed = table.core.enter().unwrap();
        let mut steps = 0;
        while table.step().unwrap() {
            steps += 1;
            assert!(steps < 10_000);
        }
        drop(passed);
        let stats = table.stats().unwrap();
        assert!(!table.has_work());
        // All segments have the least depth and the smallest size.
        let cells = stats.directory_entries;
        assert!(stats.segments <= (cells / 64).max(2), "{stats:?}");
        assert_eq!(stats.slots, 60 * stats.segments);
        check(&table, &model);
        for key in 1..=most / 2 {
            change(&table, key, Change::Insert(key + 9), Previous::UNWANTED).unwrap();
            model.insert(key, key + 9);
        }
        for key in (1..=most / 2).filter(|key| key % 4 != 0) {
            change(&table, key, Change::Remove, Previous::UNWANTED).unwrap();
            model.remove(&key);
            if key % 64 == 1 {
                let _passed = table.core.enter().unwrap();
                while table.step().unwrap() {}
            }
        }
        check(&table, &model);
    }
}

/// If segments are merged between two reads of a step, the segment of the second read can hold hashes
/// that the first read has returned.
#[test]
fn a_step_of_an_iteration_reads_no_hash_below_the_one_that_it_has_come_to() {
    let table = table(0);
    (1..=400).for_each(|key| insert(&table, key));
    for part in 0..walk::PARTS {
        for at in (0..64).map(|number| number << 58 | 0x155 << 48) {
            let cursor = Cursor { part, high: u64::MAX, ..Cursor::start() };
            let mut found = Vec::new();
            let mut collector = Collector::<Inline>::new(Care::Trust, &mut found);
            let range = table.collect(at, &cursor, &mut collector, 0).unwrap();
            collector.finish(&mut Vec::new());
            let found: BTreeSet<u64> = found.into_iter().map(|(key, _)| key).collect();
            let is_next = |&key: &u64| {
                let hash = hash(&table, key);
                (at..=range.high).contains(&hash) && walk::part_of(hash) == part
            };
            assert_eq!(found, (1..=400).filter(is_next).collect());
        }
    }
}

/// Two keys of different blocks have different stripes, and can want the same slot of the stash.
#[test]
fn an_insert_into_the_stash_waits_for_its_lock() {
    let table = table(0);
    let block = |key: &u64| {
        let hash = hash(&table, *key);
        hash >> 63 == 0 && SIZES[0].home_of(hash) < BLOCK_LINES
    };
    let of_block = BLOCK_LINES as usize * LINE_SLOTS;
    let keys: Vec<u64> = (1..).filter(block).take(of_block + 1).collect();
    keys[..of_block].iter().for_each(|&key| insert(&table, key));
    let last = keys[of_block];
    let passed = table.core.enter().unwrap();
    let segment = Segment::of(table.cell(0, 1).unwrap(), 0).offset;
    std::thread::scope(|scope| {
        let lock = table.stash_lock(segment).hold(&table.core, segment).unwrap();
        let locked = Guarded::new(lock);
        let inserting = scope.spawn(|| insert(&table, last));
        sleep(Duration::from_millis(50));
        assert!(!inserting.is_finished());
        drop(locked);
        inserting.join().unwrap();
    });
    drop(passed);
    assert_eq!(get(&table, last), Some(last + 7));
}

/// A reader that was led to a segment, slept through two rebuilds of which the second has put another
/// segment of the same shape into the same block, and looks at the same cell again, finds another
/// version of the stripe.
#[test]
fn a_segment_in_the_place_of_an_old_one_has_new_versions() {
    let table = table(0);
    (1..=60).for_each(|key| insert(&table, key));
    let passed = table.core.enter().unwrap();
    let hash = hash(&table, 7);
    let route = table.ready_route(hash).unwrap();
    let spot = table.spot(route.1, hash);
    let before = version(&spot.lock).unwrap();
    let mut places = 0;
    for _ in 0..100 {
        let segment = Segment::of(table.cell(hash, 1).unwrap(), hash);
        let done = table.rebuild(&[segment], &[segment.shape], 0).unwrap();
        assert!(matches!(done, Outcome::Done));
        let word = table.cell(hash, 1).unwrap();
        places += u32::from(word == route.1);
        assert!(!table.is_valid(route, &spot.lock, before));
    }
    assert!(places > 10, "{places} times in the same place");
    drop(passed);
    assert_eq!(get(&table, 7), Some(14));
}

/// A rebuild marks the segments that it frees, but not the records that it moves.
#[test]
fn a_trace_finds_the_records_that_rebuilds_move_meanwhile() {
    let table = table_of::<Bytes>(0);
    for key in 0..500u64 {
        let put = Change::<Bytes>::Put(&[7; 16]);
        change(&table, &key.to_le_bytes()[..], put, Previous::UNWANTED).unwrap();
    }
    for key in (0..500u64).filter(|key| key % 5 != 0) {
        change(&table, &key.to_le_bytes()[..], Change::Remove, Previous::UNWANTED).unwrap();
    }
    let _passed = table.core.enter().unwrap();
    let trace = |between: &mut dyn FnMut(u64)| {
        let (mut cursor, mut records) = (Cursor::start(), BTreeSet::new());
        while !cursor.is_done() {
            between(cursor.low);
            let mut visit = |kind: BlockKind, offset: u64, _: u64| {
                if kind == BlockKind::Record {
                    records.insert(offset);
                }
                Ok(())
            };
            table.trace(&mut cursor, &mut visit).unwrap();
        }
        records
    };
    let expected = trace(&mut |_| {});
    assert_eq!(expected.len(), 100);
    let (mut split, mut merged) = (0, 0);
    let rebuild = |old: &[Segment], new: &[Shape]| {
        u32::from(matches!(table.rebuild(old, new, 0).unwrap(), Outcome::Done))
    };
    let found = trace(&mut |low| {
        let [before, after] =
            [low.wrapping_sub(1), low].map(|hash| Segment::of(table.cell(hash, 1).unwrap(), hash));
        let Shape { size, depth } = after.shape;
        if before.shape == after.shape && depth > 1 && before.low ^ after.low == 1 << (64 - depth) {
            merged += rebuild(&[before, after], &[Shape { size, depth: depth - 1 }]);
        } else if table.cells.depth(table.seam()) > depth {
            split += rebuild(&[after], &[Shape { size, depth: depth + 1 }; 2]);
        }
    });
    assert_eq!(found, expected);
    assert!(split > 0 && merged > 0, "{split} {merged}");
}
