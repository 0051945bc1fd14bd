//! The turn of Dash-LH (the word that says which segment is split next): splits that find no space,
//! splits that a crash prevents, and a turn that is older than the segments.

use crate::files::{dir, open};
use outlast::internals::index::dash_lh::layout::{NODE_BUCKETS, SLOTS, Turn};
use outlast::{Error, MapOptions, Pool, PoolOptions, config};
use outlast_offline as offline;
use outlast_offline::What;
use std::fs;

/// The options of a map with segments of this many buckets, and this many segments, as log2.
fn sized(bucket_bits: u32, initial_depth: u32) -> MapOptions {
    let config = config::DashLh { bucket_bits, initial_depth, ..Default::default() };
    MapOptions::new().config(config)
}

/// All keys from this one on have the same hash. It begins with 10100, the prefix of their segment,
/// and then a 1, so a split of that segment moves all of them to the new half.
const CROWD: u64 = 1 << 32;
/// The number of keys of one hash that fit in a segment and five overflow nodes. When the sixth
/// node is needed, the turn is at segment 10100, which then has to be split.
const FIVE_NODES: u64 = 4 * SLOTS as u64 + 5 * NODE_BUCKETS as u64 * SLOTS as u64;

fn crowd(pool: &Pool, keys: std::ops::Range<u64>) {
    let options = sized(1, 5);
    let map = pool.map_with::<u64, u64>("m", &options).unwrap();
    for key in keys {
        assert!(map.insert(&(CROWD + key), &key).unwrap());
    }
}

fn splits(pool: &Pool) -> u64 {
    pool.raw_map("m").unwrap().growth().unwrap().splits
}

/// A segment whose split finds no space stays unsplit although its turn has passed. Verification
/// must not mistake that for a lost split, even if the place of the new half still holds the header
/// of another map's segment.
#[test]
fn a_pool_in_which_a_split_found_no_space_is_sound() {
    let (_dir, path) = dir();
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .max_size(4 << 20)
        .background(false)
        .hash_function(0x7e57);
    // SAFETY: the file belongs to this test.
    let pool = unsafe { options.create(&path).unwrap() };
    // In the first map, the split succeeds.
    crowd(&pool, 0..FIVE_NODES + 1);
    assert!(splits(&pool) >= 24);
    pool.drop_map("m").unwrap();
    crowd(&pool, 0..FIVE_NODES);
    assert_eq!(splits(&pool), 20);
    // Allocate blocks of a node's size until there are no more. Then free one.
    let other = pool.map::<u64, [u8]>("other").unwrap();
    let error = (0..).find_map(|n| other.insert(&n, &[1; 1_900]).err()).unwrap();
    assert!(matches!(error, Error::PoolFull { .. }), "{error}");
    assert!(other.remove(&0).unwrap().is_some());
    crowd(&pool, FIVE_NODES..FIVE_NODES + 1);
    assert_eq!(splits(&pool), 20, "no space for the nodes of the new half");

    // Without space, the pool could not save which blocks are free.
    drop(other);
    pool.drop_map("other").unwrap();
    let check = |pool: Pool, keys: u64| {
        pool.close().unwrap();
        let pool = open(&path).unwrap();
        let found = pool.verify().unwrap();
        assert!(found.is_sound() && found.maps[0].1.records == keys, "{found:?}");
        pool.close().unwrap();
        let walked = offline::walk(&path).unwrap();
        assert!(walked.problems.is_empty() && walked.free_state, "{walked:?}");
        open(&path).unwrap()
    };
    let pool = check(pool, FIVE_NODES + 1);

    // The next node causes the split.
    crowd(&pool, FIVE_NODES + 1..FIVE_NODES + 120);
    assert!(splits(&pool) >= 5, "{}", splits(&pool));
    check(pool, FIVE_NODES + 120);
}

/// A thread that finds no space for the next array must leave the array's place to later threads.
#[test]
fn a_table_that_found_no_space_for_an_array_grows_once_there_is_some() {
    let options = PoolOptions::new()
        .survive(outlast::Failure::ProcessDeath)
        .max_size(4 << 20)
        .background(false);
    let pool = options.anonymous().unwrap();
    let small = sized(2, 5);
    let map = pool.map_with::<u64, u64>("m", &small).unwrap();
    // Insert records of whole pages until there are no more.
    let other = pool.map::<u64, [u8]>("other").unwrap();
    while other.insert(&other.len_estimate().unwrap(), &[1; 60_000]).is_ok() {}
    let full = (0..).find(|key| map.insert(key, key).is_err()).unwrap();
    let before = splits(&pool);
    drop(other);
    pool.drop_map("other").unwrap();
    for key in full..2 * full + 2_000 {
        assert!(map.insert(&key, &key).unwrap());
    }
    let after = splits(&pool);
    assert!(after > before + 32, "{before} splits, then {after}");
    assert!(pool.verify().unwrap().is_sound());
}

/// A turn that is older than the segments is damage. Inserts must not touch what later turns have
/// made, so that all records are there once the turn is restored.
#[test]
fn an_older_turn_destroys_no_segment() {
    const KEYS: u64 = 2_400;
    let (_dir, path) = dir();
    let options = sized(1, 1);
    // SAFETY: the file belongs to this test.
    let pool = unsafe {
        PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .identity(1, 1)
            .create(&path)
            .unwrap()
    };
    let map = pool.map_with::<u64, u64>("m", &options).unwrap();
    for key in 0..KEYS {
        assert!(map.insert(&key, &key).unwrap());
    }
    drop(map);
    pool.close().unwrap();

    let (_, regions) = offline::regions(&fs::read(&path).unwrap()).unwrap();
    let at = regions.iter().find(|region| region.what == What::Turn).unwrap().offset as usize;
    // Writes a turn, and returns the one before.
    let set_turn = |turn: Option<Turn>| {
        let mut bytes = fs::read(&path).unwrap();
        let word = &mut bytes[at..at + 8];
        let before = Turn::unpack(u64::from_le_bytes(word.try_into().unwrap())).unwrap();
        word.copy_from_slice(&turn.unwrap_or(before).pack().to_le_bytes());
        fs::write(&path, bytes).unwrap();
        before
    };
    let turn = set_turn(None);
    // Set the turn back by eight splits. At that turn, the array of the last segments did not
    // exist.
    let segments: u64 = (1 << turn.depth) + turn.next - 8;
    let depth = segments.ilog2();
    let older = Turn { depth, next: segments - (1 << depth), ..turn };
    set_turn(Some(older));
    assert!(!offline::walk(&path).unwrap().problems.is_empty());

    let pool = open(&path).unwrap();
    let map = pool.map_with::<u64, u64>("m", &options).unwrap();
    let refused = (KEYS..3 * KEYS).filter(|key| map.insert(key, key).is_err()).count() as u64;
    assert!(refused > 0 && refused < 2 * KEYS, "{refused} keys of deeper segments");
    drop(map);
    pool.close().unwrap();

    assert_eq!(set_turn(Some(turn)), older, "it has not passed on");
    let pool = open(&path).unwrap();
    let found = pool.verify().unwrap();
    let records = 3 * KEYS - refused;
    assert!(found.is_sound() && found.maps[0].1.records == records, "{records}, {found:?}");
    let map = pool.map_with::<u64, u64>("m", &options).unwrap();
    for key in 0..KEYS {
        assert_eq!(map.get(&key).unwrap(), Some(key));
    }
}

/// A crash after the turn has passed a segment and before the segment is split leaves the segment
/// late. The thread that passes the turn next may be the first to read the segment's header, and
/// must record in the turn that there is a late segment.
#[test]
fn a_turn_that_finds_a_late_segment_remembers_it() {
    let options = sized(1, 1);
    let mut late = 0;
    for keys in (200..600).step_by(3) {
        let (_dir, path) = dir();
        let create = PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .identity(1, 1)
            .background(false)
            .hash_function(0x7e57);
        // SAFETY: the file belongs to this test.
        let pool = unsafe { create.create(&path).unwrap() };
        let map = pool.map_with::<u64, u64>("m", &options).unwrap();
        for key in 0..keys {
            assert!(map.insert(&key, &key).unwrap());
        }
        // Make the file that process death would leave just after a turn has passed.
        let mut bytes = fs::read(&path).unwrap();
        drop((map, pool));
        let (_, regions) = offline::regions(&bytes).unwrap();
        let at = regions.iter().find(|region| region.what == What::Turn).unwrap().offset as usize;
        let turn = Turn::unpack(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap();
        bytes[at..at + 8].copy_from_slice(&turn.following().pack().to_le_bytes());
        if !offline::walk_bytes(&bytes).is_ok_and(|walked| walked.problems.is_empty()) {
            // Skip this case, because that turn would have needed another array.
            continue;
        }
        fs::write(&path, bytes).unwrap();

        let again = PoolOptions::new()
            .survive(outlast::Failure::ProcessDeath)
            .background(false)
            .accept_possibly_torn(true);
        // SAFETY: as above.
        let pool = unsafe { again.open(&path).unwrap() };
        let map = pool.map_with::<u64, u64>("m", &options).unwrap();
        late += 1;
        // Insert keys of one hash, so that only the turns read the headers of other segments.
        let grown = (CROWD..).take_while(|key| {
            assert!(map.insert(key, key).unwrap());
            splits(&pool) < 1
        });
        let inserted = grown.count() as u64 + 1;
        let found = pool.verify().unwrap();
        assert!(found.is_sound(), "{keys} keys: {found:?}");
        drop(map);
        pool.close().unwrap();
        let pool = open(&path).unwrap();
        let found = pool.verify().unwrap();
        assert!(found.is_sound(), "{keys} keys: {found:?}");
        assert_eq!(found.maps[0].1.records, keys + inserted);
        pool.close().unwrap();
    }
    assert!(late > 20, "{late}");
}
