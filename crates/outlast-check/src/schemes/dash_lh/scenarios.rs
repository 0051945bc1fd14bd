//! Scenarios for Dash-LH's own code paths, and what the common scenarios must reach.

use crate::codec::SPECIAL;
use crate::parts::play::Play;
use crate::parts::scenario::{Expected, Scenario};
use crate::schemes::{Changes, plays};
use crate::session::{Do, PoolShape};
use crate::state::Checked;
use crate::structures::Shape;
use crate::structures::dash_eh::{CROWD, phases};
use crate::structures::dash_lh::shape;
use outlast::internals::index::dash_lh::{
    self,
    layout::{NODE_BUCKETS, SLOTS},
    points,
};
use outlast::internals::pmem::Point;
use outlast::{Config, RecordForm};

const SPLIT: &[&Point] = &[&points::TURN, &points::SPLIT_NEW, &points::SPLIT_COMMIT];
const FILL: &[&Point] = &[
    &points::INSERT,
    &points::INSERT_OVERFLOW,
    &points::NODE_NEW,
    &points::NODE_COMMIT,
    &points::NODES_GONE,
    &points::ARRAY,
    &points::COMPACT_COPY,
    &points::COMPACT_CLEAR,
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
        expected.reaches.extend(SPLIT);
        expected.reaches.extend(FILL);
        expected.phases.push(phases::SPLIT_STASH);
        expected.mends.push(&points::REPAIR_DUPLICATE);
    }
    expected
}

/// Lists Dash-LH's own scenarios.
pub(super) fn catalogue(form: RecordForm) -> Vec<Scenario> {
    let colliding = PoolShape { hash_function: 0x7e57, max_pages: 160, ..PoolShape::default() };
    let roomy = PoolShape { max_pages: 160, ..PoolShape::default() };
    let grown = Expected {
        reaches: [SPLIT, &[&points::ARRAY, &points::DOUBLE_NEW, &points::DOUBLE_COMMIT]].concat(),
        ..Expected::default()
    };
    let split = Expected { reaches: SPLIT.to_vec(), ..Expected::default() };
    let carried =
        Expected { reaches: [SPLIT, &[&points::SPLIT_NODE]].concat(), ..Expected::default() };
    let config =
        Config::DashLh(dash_lh::Config { bucket_bits: 1, stash_buckets: 2, initial_depth: 5 });
    let crowded = Shape { form, config };
    let all = vec![
        Scenario::new("turns", "three rounds of splits, and arrays", shape(form, 1, 2), turns)
            .in_pool(roomy)
            .expecting(grown)
            .beginning_at(&points::TURN)
            .costly(),
        Scenario::new("carry", "a split of a chained segment", crowded, carry)
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
        .expecting(split)
        .beginning_at(&points::SPLIT_NEW)
        .costly(),
    ];
    plays::with_blocks(all, form, &points::RECORD)
}

/// Passes the turn through three rounds, with a crash in between.
fn turns(play: &mut Play) -> Checked {
    play.map()?;
    play.insert_and_remove_until_grown(10, 5)?;
    play.prepared();
    let next = play.insert_until_grown(1_000, 8)?;
    play.session.crash()?;
    for key in (1_000..next).step_by(7) {
        play.change(key, Do::Remove)?;
        play.change(key + 1_000, Do::Insert(key + 300_000))?;
        play.session.background()?;
    }
    play.insert_until_grown(4_000, 4)?;
    play.session.verify()
}

/// Splits a segment that has a chain of nodes for keys of one hash.
fn carry(play: &mut Play) -> Checked {
    play.map()?;
    // With this many nodes, it is the turn of the segment that has them, and the next bit of their
    // keys' hash is set. So the splits that one more node causes carry all of them over.
    let chained = CROWD + 5 * u64::from(NODE_BUCKETS) * SLOTS as u64;
    for key in 0..chained {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.prepared();
    for key in 0..4 {
        play.change(SPECIAL + chained + key, Do::Insert(key))?;
        play.change(10 + key, Do::Insert(key))?;
    }
    for key in (0..chained).step_by(50) {
        play.change(SPECIAL + key, Do::Remove)?;
    }
    Ok(())
}
