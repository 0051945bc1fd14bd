//! The scenarios that all schemes share.

use crate::codec::SPECIAL;
use crate::parts::play::Play;
use crate::session::Do;
use crate::state::Checked;
use crate::structures::Shape;
use outlast::RecordForm;

pub(super) fn pool_creation(_: &mut Play) -> Checked {
    Ok(())
}

pub(super) fn maps(play: &mut Play) -> Checked {
    let other = match play.shape.form {
        RecordForm::Inline => RecordForm::Bytes,
        RecordForm::Bytes => RecordForm::Inline,
    };
    let (this, other) = (play.shape, Shape { form: other, ..play.shape });
    play.prepared();
    for (name, shape) in [("a", this), ("b", other), ("c", this)] {
        play.session.create_map(name, shape)?;
        for key in 10..14 {
            play.change_in(name, key, Do::Insert(key + 500))?;
        }
        // Calls of one change, so that no change after it makes it durable.
        for key in 14..17 {
            play.session.change_many(name, &[(key, Do::Insert(key + 500))])?;
        }
    }
    play.session.drop_map("a", false)?;
    // This map gets the slot that was freed.
    play.session.create_map("d", other)?;
    play.change_in("d", 12, Do::Insert(700))?;
    // A reader still has map "b", so neither its slot nor its space is reused.
    play.session.drop_map("b", true)?;
    play.session.create_map("e", this)?;
    play.change_in("e", 10, Do::Insert(701))?;
    play.session.let_go();
    play.session.background()?;
    play.session.create_map("b", this)?;
    play.change_in("b", 11, Do::Insert(702))?;
    play.session.create_map("b", this)?;
    // Drop and create maps while space from before a crash is unaccounted for.
    play.session.crash()?;
    play.session.drop_map("c", true)?;
    play.session.create_map("f", this)?;
    play.session.drop_map("d", false)?;
    play.session.create_map("g", other)?;
    play.change_in("g", 12, Do::Insert(703))?;
    while play.session.is_reclaiming() {
        play.session.background()?;
    }
    play.session.let_go();
    play.session.background()?;
    play.change_in("e", 10, Do::Remove)?;
    play.session.change_many("b", &[(11, Do::Update(704))])?;
    play.session.change_many("g", &[(12, Do::Update(705))])?;
    play.session.verify()
}

pub(super) fn growth(play: &mut Play) -> Checked {
    play.map()?;
    play.prepared();
    let large = if play.shape.form == RecordForm::Bytes { SPECIAL } else { 0 };
    for key in 0..2 {
        play.change(key, Do::Insert(key + 100_000 + large))?;
    }
    let next = play.insert_until_grown(10, 2)?;
    // While space is unaccounted for, growth is limited, and inserts that need space advance the
    // reclaim.
    play.session.crash()?;
    play.change(next, Do::Insert(next + 100_000 + large))?;
    play.insert_until_grown(next + 1, 1)?;
    Ok(())
}

pub(super) fn sync(play: &mut Play) -> Checked {
    play.map()?;
    play.insert_to_the_brim(12)?;
    play.prepared();
    play.session.sync()?;
    play.change(20, Do::Insert(1))?;
    play.session.sync()?;
    play.session.sync()?;
    play.get(20)?;
    play.change(10, Do::Remove)?;
    play.change(11, Do::Update(2))?;
    play.session.sync()?;
    play.insert_until_grown(30, 1)?;
    play.session.sync()?;
    // While a reader still has a dropped map, no free state is saved.
    play.session.create_map("n", play.shape)?;
    play.session.drop_map("n", true)?;
    play.session.sync()?;
    play.session.let_go();
    play.change(11, Do::Remove)?;
    play.session.sync()
}

pub(super) fn snapshot(play: &mut Play) -> Checked {
    play.map()?;
    play.insert_to_the_brim(12)?;
    play.prepared();
    play.session.snapshot()?;
    play.change(20, Do::Put(1))?;
    play.change(11, Do::Remove)?;
    play.session.snapshot()?;
    play.session.snapshot()?;
    play.session.crash()?;
    // Take snapshots while space from before the crash is unaccounted for, and once it is not.
    play.session.snapshot()?;
    play.change(10, Do::Update(2))?;
    while play.session.is_reclaiming() {
        play.session.background()?;
        play.session.snapshot()?;
    }
    play.change(21, Do::Insert(3))?;
    play.session.snapshot()?;
    play.insert_until_grown(30, 1)?;
    play.session.snapshot()?;
    play.session.reopen()?;
    play.session.snapshot()
}

pub(super) fn reopen(play: &mut Play) -> Checked {
    play.map()?;
    play.insert_to_the_brim(40)?;
    for key in 12..20 {
        play.change(key, Do::Remove)?;
    }
    play.prepared();
    play.session.reopen()?;
    play.get(10)?;
    // The inserts reuse what was freed before.
    for key in 12..16 {
        play.change(key, Do::Insert(key))?;
    }
    play.session.reopen()?;
    play.session.reopen()?;
    play.change(12, Do::Update(5))?;
    play.session.crash()?;
    play.change(13, Do::Update(6))?;
    // Close before the reclaim has ended.
    play.session.reopen()?;
    play.change(14, Do::Update(7))?;
    play.session.verify()?;
    play.session.reopen()?;
    play.insert_until_grown(50, 1)?;
    play.session.reopen()?;
    play.get(50)
}

/// Makes the usual map and another one for byte strings, and fills both.
fn two_maps(play: &mut Play) -> Checked {
    play.map()?;
    let bytes = Shape::smallest(play.shape.scheme(), RecordForm::Bytes);
    play.session.create_map("n", bytes)?;
    for key in 10..16 {
        play.change(key, Do::Insert(key))?;
        play.change_in("n", key, Do::Insert(key))?;
    }
    Ok(())
}

/// Each batch begins with a removal, which is one store in all schemes. So a crash just after this
/// store shows whether the batch's commit word was durable before it.
pub(super) fn batch(play: &mut Play) -> Checked {
    two_maps(play)?;
    play.prepared();
    let [a, b, c, d, e] = [10, 11, 12, 20, 21].map(|key| play.key(key));
    play.session.batch(&[
        ("m", c, None),
        ("m", a, Some(100)),
        ("n", b, None),
        ("m", d, Some(101)),
        ("n", d, Some(102)),
    ])?;
    // Later changes replace the batch's records, and recovery must not apply the batch again.
    play.change(10, Do::Put(200))?;
    play.change_in("n", 20, Do::Remove)?;
    play.change(12, Do::Insert(201))?;
    // This batch changes a key twice, and removes one that is absent.
    play.session.batch(&[
        ("m", d, None),
        ("n", a, Some(300)),
        ("n", a, None),
        ("n", e, None),
        ("m", e, Some(5)),
    ])?;
    play.session.batch(&[("m", e, None), ("n", a, Some(301))])?;
    play.session.crash()?;
    // Make a batch while space from before the crash is unaccounted for.
    play.session.batch(&[("m", a, None), ("n", a, Some(SPECIAL)), ("n", b, Some(302))])?;
    while play.session.is_reclaiming() {
        play.session.background()?;
    }
    play.change_in("n", 10, Do::Remove)?;
    play.session.batch(&[("m", b, None), ("m", a, Some(303)), ("n", a, Some(304))])?;
    play.session.reopen()?;
    play.session.batch(&[("m", a, None), ("n", a, None)])?;
    play.session.verify()
}

pub(super) fn batch_full(play: &mut Play) -> Checked {
    two_maps(play)?;
    play.prepared();
    // The log takes three fifths of the free pages, and the records two thirds. So there is space for
    // the log, but not for the records.
    let values = play.session.free_pages() * 4 / 5;
    let [a, b, c, d] = [10, 11, 12, 13].map(|key| play.key(key));
    let mut changes =
        vec![("m", a, Some(400)), ("n", a, Some(401)), ("m", b, None), ("n", b, None)];
    changes.extend((0..values).map(|n| ("n", play.key(100 + n), Some(SPECIAL + n))));
    // One of the values is too many, so these changes are never made. The first ones belong to the
    // values' run of changes of one map.
    changes.extend([("n", c, Some(402)), ("n", d, None), ("m", c, None), ("m", d, Some(403))]);
    play.session.batch_too_large(&changes)?;
    for key in [a, b, c, d] {
        play.session.get("m", key)?;
        play.session.get("n", key)?;
    }
    play.change_in("n", 10, Do::Update(404))?;
    play.session.batch(&changes[..4])?;
    play.session.verify()
}

/// Changes of several keys with one call: during growth, of one key twice, and after a crash.
pub(super) fn many(play: &mut Play) -> Checked {
    play.map()?;
    let count = play.brim() / 2;
    play.insert_to_the_brim(count)?;
    play.prepared();
    play.change_many(&[(499, Do::Insert(499 + 100_000))])?;
    let mut key = 500;
    while play.session.grown("m")? < 1 && key < 900 {
        let inserts = [0, 1, 2, 3].map(|n| (key + n, Do::Insert(key + n + 100_000)));
        play.change_many(&inserts)?;
        key += 4;
    }
    play.change_many(&[
        (500, Do::Update(1)),
        (501, Do::Put(SPECIAL)),
        (502, Do::Remove),
        (900, Do::Put(2)),
    ])?;
    play.change_many(&[(503, Do::Remove), (503, Do::Insert(3)), (503, Do::Put(4))])?;
    play.change_many(&[
        (502, Do::Update(5)),
        (500, Do::Insert(6)),
        (901, Do::Remove),
        (500, Do::Swap(1, 7)),
    ])?;
    play.session.crash()?;
    play.change_many(&[(500, Do::Remove), (501, Do::Update(8)), (902, Do::Insert(9))])?;
    while play.session.is_reclaiming() {
        play.session.background()?;
    }
    play.change_many(&[(501, Do::Remove), (900, Do::CompareRemove(2)), (902, Do::Put(10))])?;
    play.change_many(&[(499, Do::Update(11))])?;
    play.session.verify()
}

pub(super) fn fill(play: &mut Play) -> Checked {
    play.map()?;
    let smallest = play.shape.is_smallest();
    // The first inserts into an empty map leave the same crash images for every shape.
    if !smallest {
        let count = play.brim() * 3 / 4;
        play.insert_to_the_brim(count)?;
    }
    play.prepared();
    play.insert_until_grown(500, if smallest { 3 } else { 2 })?;
    Ok(())
}

pub(super) fn change(play: &mut Play) -> Checked {
    play.map()?;
    let count = play.brim();
    play.insert_to_the_brim(count)?;
    play.prepared();
    for key in 0..count {
        let value = 200_000 + key * 7;
        let large = if key % 16 == 0 { SPECIAL + key / 16 } else { 0 };
        match play.random.below(6) {
            0 => play.change(key, Do::Update(value + large))?,
            1 => play.change(key, Do::Put(value + large))?,
            2 => play.change(key, Do::Swap(key + 100_000, value))?,
            3 => {
                play.change(key, Do::CompareRemove(key + 100_001))?;
                play.change(key, Do::CompareRemove(key + 100_000))?;
                play.change(key, Do::Update(value))?;
                play.change(key, Do::Remove)?;
            }
            4 => {
                play.change(key, Do::Remove)?;
                play.change(key, Do::Put(value))?;
                play.change(key, Do::Swap(value + 1, value + 2))?;
            }
            _ => play.change(key, Do::Insert(value))?,
        }
    }
    Ok(())
}

pub(super) fn reclaim(play: &mut Play) -> Checked {
    play.map()?;
    let count = play.brim();
    play.insert_to_the_brim(count)?;
    for key in 20..24 {
        play.change(key, Do::Put(SPECIAL + key))?;
    }
    play.prepared();
    for life in 0..3 {
        play.session.crash()?;
        // In each life, the reclaim has advanced to a different place when the operations begin.
        for _ in 0..life {
            play.session.background()?;
        }
        for i in 0..14 {
            let key = 10 + (i * 13 + life * 5) % count;
            let value = 300_000 + life * 1_000 + i;
            match (i + life) % 4 {
                0 => play.change(key, Do::Put(value))?,
                1 => play.change(key, Do::Remove)?,
                2 => play.change(400 + life * 100 + i, Do::Insert(value))?,
                _ => play.change(key, Do::Update(value))?,
            }
            if i % 3 == 2 {
                play.session.background()?;
            }
        }
        if life == 1 {
            play.insert_until_grown(1_000, 1)?;
        }
    }
    while play.session.is_reclaiming() {
        play.session.background()?;
    }
    play.insert_until_grown(2_000, 2)?;
    play.session.verify()
}

pub(super) fn collide(play: &mut Play) -> Checked {
    play.map()?;
    let crowd = play.shape.structure().crowd;
    // Fill nearly all slots that keys of this hash can go to. The map grows until it finds that
    // growth does not help.
    for key in 0..crowd - 2 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    play.prepared();
    for key in crowd - 2..crowd + 8 {
        play.change(SPECIAL + key, Do::Insert(key))?;
    }
    for key in (0..crowd + 8).step_by(3) {
        play.change(SPECIAL + key, Do::Update(key + 600))?;
        play.change(SPECIAL + key + 1, Do::Remove)?;
    }
    play.session.crash()?;
    for key in (crowd - 6..crowd + 8).step_by(2) {
        play.change(SPECIAL + key, Do::Put(key + 700))?;
        play.session.background()?;
        play.change(SPECIAL + key, Do::Swap(key + 700, key + 800))?;
    }
    // The walk notices if the map has grown nevertheless.
    play.session.reopen_and(true)
}

pub(super) fn blocks(play: &mut Play) -> Checked {
    play.map()?;
    play.insert_to_the_brim(30)?;
    play.prepared();
    for round in 0..4 {
        for key in 10..16 {
            let value = 1_000 * (round + 1) + key * 5;
            let large = SPECIAL * (1 + (round + key) % 2);
            play.change(key, Do::Update(if key % 3 == 0 { value + large } else { value }))?;
            play.change(key + 10, Do::Remove)?;
            play.change(key + 10, Do::Insert(value + 77))?;
        }
        match round {
            1 => play.session.crash()?,
            2 => play.session.reopen()?,
            _ => {}
        }
        play.session.background()?;
    }
    for key in 10..30 {
        play.change(key, Do::Remove)?;
    }
    play.session.verify()
}
