//! Scenarios for line hashing's own code paths, and what the common scenarios must reach.

use crate::codec::SPECIAL;
use crate::parts::play::Play;
use crate::parts::scenario::{Expected, Scenario};
use crate::schemes::{Changes, plays};
use crate::session::{Do, PoolShape};
use crate::state::Checked;
use crate::structures::line::{CROWD, STASH_MOVED, shape};
use outlast::RecordForm;
use outlast::internals::index::line::layout::{NODE_SLOTS, SIZES};
use outlast::internals::index::line::points;
use outlast::internals::pmem::Point;

const REBUILD: &[&Point] = &[&points::REBUILD_NEW, &points::REBUILD_COMMIT, &points::REBUILD_CELLS];
const FILL: &[&Point] = &[
    &points::INSERT,
    &points::INSERT_AWAY,
    &points::INSERT_OVERFLOW,
    &points::REBUILD_NEW,
    &points::REBUILD_COMMIT,
    &points::REBUILD_CELLS,
];
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
    if name == "fill" {
        expected.reaches.extend(FILL);
        expected.phases.push(STASH_MOVED);
        expected.mends.push(&points::REPAIR_CELLS);
    }
    expected
}

/// Lists line hashing's own scenarios.
pub(super) fn catalogue(form: RecordForm) -> Vec<Scenario> {
    let colliding = PoolShape { hash_function: 0x7e57, max_pages: 160, ..PoolShape::default() };
    let roomy = PoolShape { max_pages: 160, ..PoolShape::default() };
    let reaches = vec![&points::INSERT_AWAY, &points::INSERT_OVERFLOW, &points::REMOVE];
    let away = Expected { reaches, ..Expected::default() };
    let rebuild = Expected { reaches: REBUILD.to_vec(), ..Expected::default() };
    let doubling = Expected {
        reaches: [REBUILD, &[&points::DOUBLE_NEW, &points::DOUBLE_COMMIT]].concat(),
        mends: vec![&points::REPAIR_CELLS],
        ..Expected::default()
    };
    let carried = Expected {
        reaches: [REBUILD, &[&points::REBUILD_NODE, &points::NODE_COMMIT]].concat(),
        ..Expected::default()
    };
    let all = vec![
        Scenario::new("again", "slots that are used again", shape(form, 0), plays::again)
            .expecting(rebuild.clone()),
        Scenario::new(
            "list",
            "more records away from one line than hints list",
            shape(form, 0),
            list,
        )
        .expecting(away.clone()),
        Scenario::new(
            "stash",
            "a full block, and slots of the stash used again",
            shape(form, 0),
            stash,
        )
        .expecting(away),
        Scenario::new("shrink", "segments that shrink and merge", shape(form, 0), shrink)
            .in_pool(roomy)
            .expecting(rebuild.clone())
            .costly(),
        Scenario::new("grow", "every kind of growth, and a doubling", shape(form, 1), grow)
            .in_pool(roomy)
            .expecting(doubling)
            .costly(),
        Scenario::new("carry", "rebuilds of segments with nodes", shape(form, 0), carry)
            .in_pool(colliding)
            .expecting(carried)
            .beginning_at(&points::REBUILD_NEW)
            .costly(),
        Scenario::new("full-size", "a rebuild to segments of 32 KiB", shape(form, 5), |play| {
            plays::full_size(play, 100)
        })
        .in_pool(PoolShape { max_pages: 400, ..PoolShape::default() })
        .expecting(rebuild)
        .beginning_at(&points::REBUILD_NEW)
        .costly(),
    ];
    plays::with_blocks(all, form, &points::RECORD)
}

/// Returns keys of the first segment of a new map that are at home in lines that `fits` accepts.
fn keys_at(play: &Play, fits: impl Fn(u32) -> bool, count: usize) -> Vec<u64> {
    let keys = (10..).filter(|&key| {
        let hash = play.session.hash(play.shape.form, play.key(key));
        hash >> 63 == 0 && fits(SIZES[0].home_of(hash))
    });
    keys.take(count).collect()
}

/// Fills a line, its block and its window of the stash with keys of that line, so that the hints have
/// entries and flags of every kind. Then removes records that are listed and others that are not.
fn list(play: &mut Play) -> Checked {
    play.map()?;
    let keys = keys_at(play, |home| home == 1, CROWD as usize - 2);
    for &key in &keys[..20] {
        play.change(key, Do::Insert(key + 100_000))?;
    }
    play.prepared();
    for &key in &keys[20..] {
        play.change(key, Do::Insert(key + 100_000))?;
    }
    let rounds = [(3, 0), (5, 1), (2, 1)];
    for (step, first) in rounds {
        for &key in keys.iter().skip(first).step_by(step) {
            play.change(key, Do::Remove)?;
        }
        for &key in &keys {
            play.get(key)?;
        }
        for &key in keys.iter().rev().step_by(2) {
            play.change(key, Do::Put(key + 200_000))?;
        }
    }
    play.session.crash()?;
    for &key in keys.iter().step_by(4) {
        play.change(key, Do::Put(key + 300_000))?;
    }
    play.session.verify()
}

/// Fills a block and its part of the stash, empties slots there and lets other keys take them.
fn stash(play: &mut Play) -> Checked {
    play.map()?;
    let own = keys_at(play, |home| home < 4, 24);
    let others = keys_at(play, |home| home >= 8, 22);
    for &key in own.iter().chain(&others[..16]) {
        play.change(key, Do::Insert(key + 100_000))?;
    }
    play.prepared();
    for round in 0..3 {
        for &key in own.iter().skip(14 + round).step_by(2) {
            play.change(key, Do::Remove)?;
        }
        for &key in &others[16 + 2 * round..18 + 2 * round] {
            play.change(key, Do::Insert(key + 100_000))?;
            play.change(key, Do::Put(key + 200_000))?;
        }
        for &key in own.iter().skip(14 + round).step_by(2) {
            play.change(key, Do::Put(key + 300_000))?;
        }
    }
    play.session.crash()?;
    play.change(own[0], Do::Put(5))?;
    play.session.verify()
}

/// Lets a map grow, and then removes nearly all of its records, with crashes on the way.
fn shrink(play: &mut Play) -> Checked {
    play.map()?;
    for key in 10..400 {
        play.change(key, Do::Insert(key + 100_000))?;
    }
    play.session.come_to_rest()?;
    play.prepared();
    for key in 10..390 {
        play.change(key, Do::Remove)?;
        if key % 24 == 0 {
            play.session.come_to_rest()?;
        }
        if key % 130 == 0 {
            play.session.crash()?;
        }
    }
    play.session.come_to_rest()?;
    play.session.verify()?;
    for key in 10..60 {
        play.change(key, Do::Insert(key + 200_000))?;
    }
    play.session.verify()
}

/// Lets a map grow until its directory is doubled twice, with crashes on the way.
fn grow(play: &mut Play) -> Checked {
    play.map()?;
    for key in 10..700 {
        play.change(key, Do::Insert(key + 100_000))?;
        if key % 100 == 0 {
            play.session.crash()?;
            play.change(key, Do::Put(key + 200_000))?;
            play.session.verify()?;
        }
    }
    Ok(())
}

/// Rebuilds segments whose nodes hold keys of one hash and others.
fn carry(play: &mut Play) -> Checked {
    play.map()?;
    for key in 0..CROWD + NODE_SLOTS + 6 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.insert_and_remove_until_grown(10, 40)?;
    play.prepared();
    for key in 10..60 {
        play.change(key, Do::Put(key + 300_000))?;
    }
    for key in (0..CROWD + NODE_SLOTS).step_by(25) {
        play.change(SPECIAL + key, Do::Remove)?;
        play.change(SPECIAL + key + 1, Do::Put(key + 200_000))?;
    }
    play.session.crash()?;
    play.change(SPECIAL, Do::Put(5))?;
    play.session.verify()
}
