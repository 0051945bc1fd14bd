//! Scenarios for group hashing's own code paths, and what the common scenarios must reach.

use crate::codec::SPECIAL;
use crate::parts::play::Play;
use crate::parts::scenario::{Expected, Scenario};
use crate::schemes::{Changes, plays};
use crate::session::{Do, PoolShape};
use crate::state::Checked;
use crate::structures::group::phases::{IN_NODE, NODE_SPLIT, SECOND_LEVEL};
use crate::structures::group::{CROWD, shape};
use outlast::RecordForm;
use outlast::internals::index::group::points;
use outlast::internals::pmem::Point;

const SPLIT: &[&Point] = &[&points::SPLIT_NEW, &points::SPLIT_COMMIT];
const CHANGES: Changes = Changes {
    insert: &points::INSERT,
    remove: &points::REMOVE,
    update: [&points::UPDATE, &points::UPDATE_LINK],
    record: &points::RECORD,
    many: None,
    collide: &[&points::NODE_NEW, &points::NODE_COMMIT, &points::INSERT, &points::REMOVE],
};

/// Returns what a common scenario must reach.
pub(super) fn expected(name: &str, form: RecordForm) -> Expected {
    let mut expected = CHANGES.expected(name, form);
    match name {
        "fill" => {
            expected.reaches.extend(SPLIT);
            expected.reaches.push(&points::INSERT);
            expected.phases.push(SECOND_LEVEL);
            expected.mends.push(&points::OPENING);
        }
        "collide" => expected.phases.push(IN_NODE),
        _ => {}
    }
    expected
}

/// Lists group hashing's own scenarios.
pub(super) fn catalogue(form: RecordForm) -> Vec<Scenario> {
    let colliding = PoolShape { hash_function: 0x7e57, max_pages: 160, ..PoolShape::default() };
    let roomy = PoolShape { max_pages: 160, ..PoolShape::default() };
    let split = Expected { reaches: SPLIT.to_vec(), ..Expected::default() };
    let carried = Expected { phases: vec![NODE_SPLIT], ..split.clone() };
    let all = vec![
        Scenario::new("again", "cells that are used again", shape(form, 16, 1), plays::again)
            .expecting(split.clone()),
        Scenario::new("carry", "splits of segments with nodes", shape(form, 16, 1), carry)
            .in_pool(colliding)
            .expecting(carried)
            .beginning_at(&points::SPLIT_NEW)
            .costly(),
        Scenario::new(
            "full-size",
            "a split of a group of 256 cells",
            shape(form, 256, 1),
            |play| plays::full_size(play, 100),
        )
        .in_pool(roomy)
        .expecting(split)
        .beginning_at(&points::SPLIT_NEW)
        .costly(),
    ];
    plays::with_blocks(all, form, &points::RECORD)
}

/// Splits a segment whose nodes hold keys of one hash and others.
fn carry(play: &mut Play) -> Checked {
    play.map()?;
    // All these keys have one hash, so no split separates them. Once the directory may not be
    // doubled further, which depends on the number of segments, they get nodes.
    for key in 0..CROWD + 12 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.insert_and_remove_until_grown(10, 40)?;
    play.prepared();
    // Now there are enough segments, and the next insert splits the one with the nodes.
    for key in CROWD + 12..CROWD + 24 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    for key in (0..CROWD + 24).step_by(5) {
        play.change(SPECIAL + key, Do::Remove)?;
        play.change(SPECIAL + key + 1, Do::Put(key + 200_000))?;
    }
    play.session.crash()?;
    play.change(SPECIAL, Do::Insert(5))?;
    play.session.verify()
}
