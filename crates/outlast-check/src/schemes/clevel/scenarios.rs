//! Scenarios for clevel's own code paths, and what the common scenarios must reach.

use crate::codec::SPECIAL;
use crate::parts::play::Play;
use crate::parts::scenario::{Expected, Scenario};
use crate::session::{Do, PoolShape};
use crate::state::Checked;
use crate::structures::clevel::phases::{DROPPED, READY_TAKEN, SHRUNK};
use crate::structures::clevel::{CROWD, first_bits, shape};
use outlast::RecordForm;
use outlast::internals::index::clevel::layout::{NODE_BUCKETS, SLOTS};
use outlast::internals::index::clevel::points;
use outlast::internals::pmem::Point;

const EXPAND: &[&Point] =
    &[&points::RECORD, &points::INSERT, &points::LEVEL, &points::CONTEXT, &points::CONTEXT_COMMIT];
const CHANGE: &[&Point] = &[
    &points::RECORD,
    &points::INSERT,
    &points::UPDATE,
    &points::UPDATE_SLOT,
    &points::REMOVE,
    &points::REMOVE_SLOT,
];
const REHASH: &[&Point] =
    &[&points::COPY, &points::CONFIRM, &points::FREEZE, &points::CONTEXT_COMMIT];
const FOUND: &[&Point] = &[&points::REPAIR_FOUND];

/// Returns what a common scenario must reach.
pub(super) fn expected(name: &str, _: RecordForm) -> Expected {
    let mut expected = Expected::default();
    match name {
        "fill" => {
            expected.reaches.extend(EXPAND);
            expected.mends.extend(FOUND);
            expected.mends.push(&points::REPAIR_VOID);
        }
        "change" => expected.reaches.extend(CHANGE),
        "reclaim" => expected.mends.push(&points::REPAIR_SLOT),
        "collide" => {
            expected.reaches.extend(EXPAND);
            expected.reaches.extend([&points::NODE, &points::NODE_LINK, &points::UPDATE]);
            expected.mends.push(&points::REPAIR_CHAIN);
        }
        _ => {}
    }
    expected
}

/// Lists clevel's own scenarios.
pub(super) fn catalogue(form: RecordForm) -> Vec<Scenario> {
    let colliding = PoolShape { hash_function: 0x7e57, max_pages: 160, ..PoolShape::default() };
    let rehashed = |more: &[&'static Point], phases: &[&'static str]| Expected {
        reaches: [REHASH, more].concat(),
        phases: phases.to_vec(),
        mends: FOUND.to_vec(),
    };
    let smallest = shape(form, 1, 1);
    let chained = Expected {
        reaches: vec![&points::NODE, &points::NODE_LINK],
        mends: vec![&points::REPAIR_CHAIN],
        ..Expected::default()
    };
    let mut emptied = rehashed(&[&points::NODE, &points::NODE_LINK], &[DROPPED]);
    emptied.mends.push(&points::REPAIR_CHAIN);
    vec![
        Scenario::new("rehash", "changes during rehashing", smallest, rehash)
            .expecting(rehashed(CHANGE, &[DROPPED])),
        Scenario::new(
            "rehash-groups",
            "the same in levels of several groups",
            shape(form, 2, 1),
            rehash,
        )
        .expecting(rehashed(CHANGE, &[DROPPED])),
        Scenario::new("ready", "levels made ahead of need", smallest, ready)
            .expecting(rehashed(&[&points::READY], &[READY_TAKEN, DROPPED])),
        Scenario::new("shrink", "an empty table shrinks, and grows again", smallest, shrink)
            .expecting(rehashed(&[&points::LEVEL], &[SHRUNK, DROPPED])),
        Scenario::new("chain", "overflow chains, emptied", smallest, chain)
            .in_pool(colliding)
            .expecting(emptied),
        // With large levels, the chain is in the only level; in the other scenario, it is in the
        // second of two.
        Scenario::new("chain-f3", "keys of one hash, and large levels", shape(form, 3, 3), crowd)
            .in_pool(colliding)
            .expecting(chained.clone()),
        Scenario::new("chain-f2", "the same, in other levels", shape(form, 2, 2), crowd)
            .in_pool(colliding)
            .expecting(chained),
    ]
}

/// Inserts until the oldest level is due to be emptied. Returns the next key.
fn until_draining(play: &mut Play) -> Checked<u64> {
    play.map()?;
    play.insert_until_grown(10, 2)
}

fn rehash(play: &mut Play) -> Checked {
    let next = until_draining(play)?;
    play.prepared();
    // The keys inserted first are in the oldest level.
    for (i, key) in (10..next).step_by(5).enumerate() {
        play.change(key, Do::Update(key + 200_000))?;
        play.change(key + 1, Do::Remove)?;
        match i {
            2 | 7 => play.session.crash()?,
            _ => drop(play.session.background()?),
        }
        play.change(key + 1, Do::Insert(key + 300_000))?;
        play.change(key + 2, Do::Put(key + 400_000))?;
    }
    play.session.come_to_rest()?;
    play.change(10, Do::Remove)?;
    play.change(11, Do::Update(7))?;
    play.session.verify()
}

fn ready(play: &mut Play) -> Checked {
    play.map()?;
    let mut key = 10;
    play.prepared();
    while play.session.grown("m")? < 2 {
        play.change(key, Do::Insert(key + 100_000))?;
        play.session.background()?;
        key += 1;
    }
    // Crash while the map keeps a level ready that no expansion has taken yet.
    play.session.crash()?;
    play.change(key, Do::Insert(5))?;
    play.session.come_to_rest()?;
    play.session.reopen()?;
    play.insert_until_grown(key + 1, 1)?;
    play.session.come_to_rest()?;
    play.session.verify()
}

fn shrink(play: &mut Play) -> Checked {
    play.map()?;
    // Enough records that removing most of them makes the table check its size.
    for key in 10..310 {
        play.change(key, Do::Insert(key + 100_000))?;
    }
    play.session.come_to_rest()?;
    for key in 14..310 {
        play.change(key, Do::Remove)?;
    }
    play.session.forget_used();
    play.prepared();
    for key in 400..406 {
        play.session.background()?;
        play.change(key, Do::Insert(key + 100_000))?;
        play.change(key - 390, Do::Put(key + 200_000))?;
    }
    play.session.crash()?;
    // The table has to grow again while it shrinks.
    play.insert_until_grown(500, 1)?;
    play.session.come_to_rest()?;
    play.session.verify()
}

/// Inserts enough keys of one hash that they need a second overflow node.
fn crowd(play: &mut Play) -> Checked {
    play.map()?;
    // The keys fill two buckets of each level, then a node.
    let levels = if first_bits(play.shape.config) == 3 { 1 } else { 2 };
    let (slots, node) = (levels * 2 * SLOTS as u64, NODE_BUCKETS as u64 * SLOTS as u64);
    for key in 0..slots {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.prepared();
    for key in slots..slots + node + 2 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.change(SPECIAL + slots, Do::Update(7))?;
    play.change(SPECIAL + slots + 1, Do::Remove)?;
    play.session.crash()?;
    play.change(SPECIAL + slots + 2, Do::Remove)?;
    play.session.verify()
}

fn chain(play: &mut Play) -> Checked {
    play.map()?;
    for key in 0..CROWD + 4 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.prepared();
    // Some records of the oldest level stay, and move to a chain.
    for key in (0..CROWD + 4).step_by(9) {
        play.change(SPECIAL + key, Do::Remove)?;
        play.session.background()?;
        play.change(SPECIAL + key + 1, Do::Update(key + 600))?;
    }
    // Other keys make the map add levels, so that the level with the chain is emptied.
    let grown = play.session.grown("m")?;
    play.insert_until_grown(10, grown + 2)?;
    play.session.crash()?;
    play.session.come_to_rest()?;
    for key in (2..CROWD + 4).step_by(7) {
        play.change(SPECIAL + key, Do::Remove)?;
    }
    play.session.verify()
}
