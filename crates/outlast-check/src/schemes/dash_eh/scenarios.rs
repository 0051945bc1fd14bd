//! Scenarios for Dash-EH's own code paths, and what the common scenarios must reach.

use super::rows::{self, Row};
use crate::codec::SPECIAL;
use crate::parts::play::Play;
use crate::parts::scenario::{Expected, Scenario};
use crate::schemes::{Changes, plays};
use crate::session::{Do, PoolShape};
use crate::state::Checked;
use crate::structures::dash_eh::phases::{BACKWARD, FORWARD, SPLIT_STASH};
use crate::structures::dash_eh::{self, CROWD, shape};
use outlast::RecordForm;
use outlast::internals::index::dash_eh::layout::{NODE_BUCKETS, SLOTS};
use outlast::internals::index::dash_eh::points;
use outlast::internals::pmem::Point;

const SPLIT: &[&Point] =
    &[&points::SPLIT_NEW, &points::SPLIT_NODE, &points::SPLIT_COMMIT, &points::SPLIT_DIRECTORY];
const FILL: &[&Point] = &[
    &points::INSERT,
    &points::INSERT_OVERFLOW,
    &points::SPLIT_NEW,
    &points::SPLIT_COMMIT,
    &points::SPLIT_DIRECTORY,
    &points::COMPACT_COPY,
    &points::COMPACT_CLEAR,
    &points::DOUBLE_NEW,
    &points::DOUBLE_COMMIT,
];
const DISPLACE: &[&Point] = &[&points::DISPLACE_COPY, &points::DISPLACE_FILL];
const CHANGES: Changes = Changes {
    insert: &points::INSERT,
    remove: &points::REMOVE,
    update: [&points::UPDATE, &points::UPDATE_LINK],
    record: &points::RECORD,
    many: Some([&points::MANY, &points::MANY_RECORDS]),
    collide: &[&points::NODE_NEW, &points::NODE_COMMIT, &points::INSERT_OVERFLOW, &points::REMOVE],
};

/// Returns what a common scenario must reach.
pub(super) fn expected(name: &str, form: RecordForm) -> Expected {
    let mut expected = CHANGES.expected(name, form);
    match name {
        "fill" => {
            expected.reaches.extend(FILL);
            expected.phases.push(SPLIT_STASH);
            expected.mends.extend([&points::REPAIR_DIRECTORY, &points::REPAIR_DUPLICATE]);
        }
        "reclaim" => expected.reaches.push(&points::COMPACT_CLEAR),
        _ => {}
    }
    expected
}

/// Lists Dash-EH's own scenarios.
pub(super) fn catalogue(form: RecordForm) -> Vec<Scenario> {
    let colliding = PoolShape { hash_function: 0x7e57, max_pages: 160, ..PoolShape::default() };
    let displace = |name, about, bits, play, ways: &[&'static str]| {
        let expected = Expected {
            reaches: DISPLACE.to_vec(),
            phases: ways.to_vec(),
            mends: vec![&points::REPAIR_DUPLICATE],
        };
        Scenario::new(name, about, shape(form, bits, 2), play).expecting(expected)
    };
    let both = [FORWARD[0], BACKWARD[0]];
    let about = "displacement of records in a row";
    let carried = Expected {
        reaches: SPLIT.to_vec(),
        mends: vec![&points::REPAIR_DIRECTORY],
        ..Expected::default()
    };
    let roomy = PoolShape { max_pages: 160, ..PoolShape::default() };
    let reaches = vec![&points::SPLIT_NEW, &points::SPLIT_COMMIT, &points::SPLIT_DIRECTORY];
    let whole = Expected { reaches, ..Expected::default() };
    let all = vec![
        displace("displace", "displacement both ways", 2, self::displace, &both),
        displace("displace-row", about, rows::BUCKET_BITS, row_forward, &FORWARD[1..]),
        displace("displace-row-back", about, rows::BUCKET_BITS, row_back, &BACKWARD[1..]),
        Scenario::new("carry", "splits of chained segments", shape(form, 1, 2), carry)
            .in_pool(colliding)
            .expecting(carried)
            .beginning_at(&points::SPLIT_NEW)
            .costly(),
        Scenario::new(
            "full-size",
            "a split of a segment of 64 buckets",
            shape(form, 6, 2),
            |play| plays::full_size(play, 300),
        )
        .in_pool(roomy)
        .expecting(whole)
        .beginning_at(&points::SPLIT_NEW)
        .costly(),
    ];
    plays::with_blocks(all, form, &points::RECORD)
}

/// Groups keys by their home bucket, in one of the two segments of a new map.
fn keys_by_home(play: &Play, half: u64) -> Vec<Vec<u64>> {
    let buckets = dash_eh::buckets(play.shape.config) as usize;
    let mut homes = vec![Vec::new(); buckets];
    for key in 10..2_000 {
        let hash = play.session.hash(play.shape.form, play.key(key));
        if hash >> 63 == half {
            homes[(hash >> 8) as usize % buckets].push(key);
        }
    }
    homes
}

/// Displaces records, with keys chosen by their home bucket. A record goes into its home bucket
/// while there is room in its line there, or while that bucket has at least as much room as the
/// next one.
fn displace(play: &mut Play) -> Checked {
    play.map()?;
    let insert = |play: &mut Play, keys: &[u64]| -> Checked {
        keys.iter().try_for_each(|&key| play.change(key, Do::Insert(key + 100_000)))
    };
    // The keys of bucket 0 fill it, and the last ones are guests in bucket 1. The keys of bucket 1
    // fill it and bucket 2, where all are guests. Then the first keys of bucket 0 are removed, so
    // that a guest in bucket 1 can go back to its home.
    let mut low = keys_by_home(play, 0);
    let first: Vec<u64> = low[0].drain(..SLOTS + 5).collect();
    insert(play, &first)?;
    let middle: Vec<u64> = low[1].drain(..2 * SLOTS - 5).collect();
    insert(play, &middle)?;
    for &key in &first[..4] {
        play.change(key, Do::Remove)?;
    }
    // The keys of bucket 2 fill it and bucket 3, and the last of them, guests in bucket 3, are
    // removed. Once bucket 1 is full, a record at home in bucket 2 moves on to bucket 3.
    let mut high = keys_by_home(play, 1);
    let pairs: Vec<u64> = high[2].drain(..2 * SLOTS).collect();
    insert(play, &pairs)?;
    for &key in &pairs[2 * SLOTS - 6..] {
        play.change(key, Do::Remove)?;
    }
    let ones: Vec<u64> = high[1].drain(..SLOTS).collect();
    insert(play, &ones)?;
    play.prepared();
    let forward: Vec<u64> = low[1].drain(..2).chain(high[1].drain(..4)).collect();
    insert(play, &forward)?;
    // Repeat while the reclaim runs, which marks moved records.
    play.session.crash()?;
    for key in low[1].drain(..2).chain(high[1].drain(..2)) {
        play.change(key, Do::Insert(key + 100_000))?;
        play.session.background()?;
    }
    play.session.verify()
}

fn row_forward(play: &mut Play) -> Checked {
    row(play, true)
}

fn row_back(play: &mut Play) -> Checked {
    row(play, false)
}

/// Makes inserts that move two records in one segment, and three in the other.
fn row(play: &mut Play, forward: bool) -> Checked {
    play.map()?;
    let mut last = Vec::new();
    for (half, moves) in [(0, 2), (1, 3)] {
        let row = Row { forward, moves };
        let keys = row.keys(|key| play.session.hash(play.shape.form, play.key(key)), half);
        for (number, &key) in keys[..row.filled()].iter().enumerate() {
            play.change(key, Do::Insert(key + 100_000))?;
            for &key in &keys[row.removed_after(number)] {
                play.change(key, Do::Remove)?;
            }
        }
        last.push(keys[row.filled()..].to_vec());
    }
    play.prepared();
    for keys in &last {
        for &key in &keys[..2] {
            play.change(key, Do::Insert(key + 100_000))?;
        }
    }
    // Repeat while the reclaim runs, which marks moved records.
    play.session.crash()?;
    for keys in &last {
        play.change(keys[2], Do::Insert(keys[2] + 100_000))?;
        play.session.background()?;
        play.change(keys[3], Do::Insert(keys[3] + 100_000))?;
    }
    play.session.verify()
}

fn carry(play: &mut Play) -> Checked {
    play.map()?;
    // The number of keys that fill all other slots for their hash and one overflow node.
    let chained = CROWD + u64::from(NODE_BUCKETS) * SLOTS as u64;
    // All special keys have one hash. The chain must begin at depth 10, where the hash's next bit
    // is set, so that a split moves the chain. How far the directory is doubled for such keys
    // depends on the number of segments.
    play.insert_and_remove_until_grown(10, 10)?;
    for key in 0..CROWD + 8 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.insert_and_remove_until_grown(2_000, 36)?;
    // Now the directory may double again, so once the chain is full, a split carries it over to the
    // new segment.
    for key in CROWD + 8..chained - 1 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.prepared();
    for key in chained - 1..chained + 2 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    for key in (0..chained + 2).step_by(50) {
        play.change(SPECIAL + key, Do::Remove)?;
    }
    Ok(())
}
