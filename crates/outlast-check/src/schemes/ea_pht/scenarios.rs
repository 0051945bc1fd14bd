//! Scenarios for the EA-PHT family's own code paths, and what the common scenarios must reach.

use crate::codec::SPECIAL;
use crate::parts::play::Play;
use crate::parts::scenario::{Expected, Scenario};
use crate::schemes::{Changes, plays};
use crate::session::{Do, PoolShape};
use crate::state::Checked;
use crate::structures::Shape;
use crate::structures::ea_pht::phases::{CHAIN_MOVED, IN_CHAIN};
use outlast::internals::index::ea_pht::points;
use outlast::internals::pmem::Point;
use outlast::{Config, RecordForm};

const OVERFLOW: &[&Point] = &[&points::COUNTER, &points::NODE_NEW, &points::NODE_COMMIT];
const RESIZE: &[&Point] = &[&points::RESIZE_NEW, &points::MOVE_NEW, &points::RESIZE_COMMIT];
const CHANGES: Changes = Changes {
    insert: &points::INSERT,
    remove: &points::REMOVE,
    update: [&points::UPDATE, &points::UPDATE_LINK],
    record: &points::RECORD,
    many: None,
    collide: &[
        &points::COUNTER,
        &points::NODE_NEW,
        &points::NODE_COMMIT,
        &points::INSERT,
        &points::REMOVE,
    ],
};
const RESUMED: &[&Point] = &[&points::RESIZE_BEGIN, &points::MOVE_COMMIT];

/// Returns what a common scenario must reach.
pub(super) fn expected(name: &str, form: RecordForm, goes_on: bool) -> Expected {
    let mut expected = CHANGES.expected(name, form);
    match name {
        "fill" => {
            expected.reaches.extend(RESIZE);
            expected.reaches.extend(OVERFLOW);
            expected.reaches.push(&points::INSERT);
            expected.mends.push(&points::OPENING);
            if goes_on {
                expected.reaches.extend(RESUMED);
            }
        }
        "collide" => expected.phases.push(IN_CHAIN),
        _ => {}
    }
    expected
}

/// Lists the family's own scenarios.
pub(super) fn catalogue(
    form: RecordForm,
    config: fn(u32, u32) -> Config,
    goes_on: bool,
) -> Vec<Scenario> {
    let colliding = PoolShape { hash_function: 0x7e57, max_pages: 160, ..PoolShape::default() };
    let roomy = PoolShape { max_pages: 160, ..PoolShape::default() };
    let resized = Expected {
        reaches: if goes_on { [RESIZE, RESUMED].concat() } else { RESIZE.to_vec() },
        ..Expected::default()
    };
    let annexed = Expected {
        reaches: [OVERFLOW, &[&points::ANNEX_NEW, &points::ANNEX_COMMIT]].concat(),
        phases: vec![CHAIN_MOVED],
        ..Expected::default()
    };
    let shape = |depth, chunk| Shape { form, config: config(depth, chunk) };
    let all = vec![
        Scenario::new("again", "slots that are used again", shape(1, 1), plays::again)
            .in_pool(roomy)
            .expecting(resized.clone()),
        Scenario::new("crowd", "a chain with annexes, and its move", shape(1, 2), crowd)
            .in_pool(colliding)
            .expecting(annexed)
            .costly(),
        Scenario::new("chunks", "a resize of several chunks", shape(3, 1), chunks)
            .in_pool(roomy)
            .expecting(resized)
            .beginning_at(&points::RESIZE_NEW)
            .costly(),
    ];
    plays::with_blocks(all, form, &points::RECORD)
}

/// Makes a chain that needs annexes, and resizes its table.
fn crowd(play: &mut Play) -> Checked {
    play.map()?;
    for key in 0..140 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.prepared();
    play.insert_until_grown(10, 1)?;
    for key in (0..140).step_by(9) {
        play.change(SPECIAL + key, Do::Remove)?;
        play.change(SPECIAL + key + 1, Do::Put(key + 200_000))?;
    }
    play.session.crash()?;
    play.change(SPECIAL, Do::Insert(5))?;
    play.session.verify()
}

/// Resizes a table of several chunks, and changes it.
fn chunks(play: &mut Play) -> Checked {
    play.map()?;
    let next = play.insert_until_grown(10, 1)?;
    for key in (10..next).step_by(20) {
        play.change(key, Do::Remove)?;
        play.change(key + 1, Do::Put(key + 200_000))?;
        play.change(key + 1_000, Do::Insert(key + 300_000))?;
    }
    play.session.verify()
}
