//! Scenarios for PhaST's own code paths, and what the common scenarios must reach.

use crate::parts::play::Play;
use crate::parts::scenario::{Expected, Scenario};
use crate::session::{Do, PoolShape};
use crate::state::Checked;
use crate::structures::phast::phases::{DIVIDED, JOINED};
use crate::structures::phast::shape;
use outlast::RecordForm;
use outlast::internals::index::phast::points;
use outlast::internals::pmem::Point;

const FILL: &[&Point] = &[
    &points::INSERT_PAIR,
    &points::INSERT,
    &points::SPLIT_NEW,
    &points::SPLIT_COMMIT,
    &points::SPLIT_CLEAR,
];
const MERGE: &[&Point] = &[&points::MERGE_COPY, &points::MERGE_BITS, &points::MERGE_COMMIT];

/// Returns what a common scenario must reach.
pub(super) fn expected(name: &str, form: RecordForm) -> Expected {
    let bytes = form == RecordForm::Bytes;
    let update = if bytes { &points::UPDATE_LINK } else { &points::UPDATE };
    let mut expected = Expected::default();
    match name {
        "fill" => {
            expected.reaches.extend(FILL);
            expected.mends.push(&points::REPAIR_CLEAR);
        }
        // A leaf has few records, so chance decides which changes hit them.
        "change" => expected.reaches.extend([&points::REMOVE, &points::INSERT]),
        "collide" => expected.reaches.extend([&points::SPLIT_COMMIT, &points::REMOVE, update]),
        _ => {}
    }
    if bytes && !["pool", "maps"].contains(&name) {
        expected.reaches.push(&points::RECORD);
    }
    expected
}

/// Lists PhaST's own scenarios.
pub(super) fn catalogue(form: RecordForm) -> Vec<Scenario> {
    let roomy = PoolShape { max_pages: 160, ..PoolShape::default() };
    let merges = Expected {
        reaches: MERGE.to_vec(),
        mends: vec![&points::REPAIR_CLEAR],
        ..Expected::default()
    };
    let partitions = Expected {
        reaches: vec![&points::MASTER_NEW, &points::MERGE_COMMIT],
        phases: vec![DIVIDED, JOINED],
        ..Expected::default()
    };
    let update = match form {
        RecordForm::Inline => &points::UPDATE,
        RecordForm::Bytes => &points::UPDATE_LINK,
    };
    let changes = Expected {
        reaches: vec![update, &points::REMOVE, &points::SPLIT_COMMIT, &points::MERGE_COMMIT],
        ..Expected::default()
    };
    let mut all = vec![
        Scenario::new("spread", "changes in many leaves", shape(form, 4, 4, 4), spread)
            .expecting(changes),
        Scenario::new("merge", "removals that merge leaves", shape(form, 8, 4, 2), merge)
            .expecting(merges),
        Scenario::new(
            "queue",
            "keys come at one end and go at the other",
            shape(form, 4, 4, 4),
            queue,
        )
        .in_pool(roomy)
        .expecting(partitions),
        Scenario::new("wide", "changes in leaves of full size", shape(form, 56, 4, 1), wide)
            .in_pool(roomy)
            .expecting(Expected {
                reaches: vec![update, &points::REMOVE, &points::INSERT],
                ..Expected::default()
            }),
    ];
    if form == RecordForm::Bytes {
        for scenario in &mut all {
            scenario.expect(&points::RECORD);
            scenario.expect(&points::SEPARATOR);
        }
    }
    all
}

/// Makes many kinds of changes to keys in many leaves, which split and merge meanwhile.
fn spread(play: &mut Play) -> Checked {
    play.map()?;
    for key in (10..70).step_by(2) {
        play.change(key, Do::Insert(key + 100_000))?;
    }
    play.prepared();
    for round in 0..2 {
        for key in 10..70 {
            let value = 200_000 + round * 10_000 + key * 7;
            match play.random.below(7) {
                0 => play.change(key, Do::Update(value))?,
                1 => play.change(key, Do::Put(value))?,
                2 => play.change(key, Do::Swap(key + 100_000, value))?,
                3 | 4 => play.change(key, Do::Remove)?,
                _ => play.change(key, Do::Insert(value))?,
            }
        }
        for key in (10..70).filter(|key| key % 4 != round) {
            play.change(key, Do::Remove)?;
        }
        play.session.crash()?;
    }
    play.session.verify()
}

/// Changes keys anywhere in leaves with fourteen lines of pairs. One of the leaves splits.
fn wide(play: &mut Play) -> Checked {
    play.map()?;
    for key in 10..60 {
        play.change(key, Do::Insert(key + 100_000))?;
    }
    play.prepared();
    for round in 0..2 {
        for n in 0..12 {
            let key = 10 + (n * 17 + round * 5) % 50;
            match n % 4 {
                3 => play.change(key, Do::Remove)?,
                _ => play.change(key, Do::Put(key + 200_000 + round * 10_000))?,
            }
        }
        for key in 70..76 {
            play.change(key + round * 10, Do::Insert(key + 100_000))?;
        }
        play.session.crash()?;
    }
    play.session.verify()
}

/// Merges sparse leaves with their left or right neighbors, and also empty ones.
fn merge(play: &mut Play) -> Checked {
    play.map()?;
    for key in 10..60 {
        play.change(key, Do::Insert(key + 100_000))?;
    }
    play.prepared();
    // Remove most keys, so that some leaves are sparse and others empty.
    for key in (10..60).filter(|key| key % 5 != 0) {
        play.change(key, Do::Remove)?;
    }
    for key in (12..60).step_by(11) {
        play.change(key, Do::Insert(key + 200_000))?;
    }
    // Repeat while the reclaim runs, which marks moved records.
    play.session.crash()?;
    for key in (10..60).step_by(5) {
        play.change(key, Do::Remove)?;
        play.session.background()?;
    }
    for key in 20..30 {
        play.change(key, Do::Put(key + 300_000))?;
    }
    play.session.verify()
}

/// Adds and removes nodes and partitions.
fn queue(play: &mut Play) -> Checked {
    play.map()?;
    for key in 10..80 {
        play.change(key, Do::Insert(key + 100_000))?;
    }
    play.prepared();
    for key in 10..80 {
        play.change(key, Do::Remove)?;
        if key % 4 == 0 {
            play.change(key + 70, Do::Insert(key + 100_070))?;
        }
        if key == 40 {
            play.session.crash()?;
        }
    }
    play.session.verify()
}
