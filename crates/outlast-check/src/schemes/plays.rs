//! The runs that scenarios of several schemes share.

use crate::parts::play::Play;
use crate::parts::scenario::Scenario;
use crate::session::Do;
use crate::state::Checked;
use outlast::RecordForm;
use outlast::internals::pmem::Point;

/// Fills places that growth and removals have left empty, some of them after a crash.
pub(super) fn again(play: &mut Play) -> Checked {
    play.map()?;
    let next = play.insert_until_grown(10, 2)?;
    play.prepared();
    for key in (10..next).step_by(3) {
        play.change(key, Do::Remove)?;
        play.change(key + 1, Do::Put(key + 200_000))?;
        play.change(key + 1_000, Do::Insert(key + 300_000))?;
    }
    play.session.crash()?;
    for key in (10..next).step_by(6) {
        play.change(key, Do::Insert(key + 400_000))?;
        play.session.background()?;
        play.change(key + 1_000, Do::Remove)?;
    }
    play.session.verify()
}

/// Splits a segment of the usual size. Then, at one key in `step`, removes a record, changes one
/// and adds one.
pub(super) fn full_size(play: &mut Play, step: usize) -> Checked {
    play.map()?;
    let mut next = 10;
    while play.session.grown("m")? < 1 {
        play.change(next, Do::Insert(next + 100_000))?;
        next += 1;
    }
    for key in (10..next).step_by(step) {
        play.change(key, Do::Remove)?;
        play.change(key + 1, Do::Put(key + 200_000))?;
        play.change(next + key, Do::Insert(key + 300_000))?;
    }
    Ok(())
}

/// Makes scenarios reach `record`, the commit point of a record's block, if records are in blocks.
pub(super) fn with_blocks(
    mut scenarios: Vec<Scenario>,
    form: RecordForm,
    record: &Point,
) -> Vec<Scenario> {
    if form == RecordForm::Bytes {
        scenarios.iter_mut().for_each(|scenario| scenario.expect(record));
    }
    scenarios
}
