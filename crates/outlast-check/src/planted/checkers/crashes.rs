//! Two crashes in a row: a life that is cut short, and another one that is cut short while it deals
//! with what the first has left. A third one must still find everything as it should be.

use super::Subject;
use crate::canary::tape::Tape;
use crate::canary::trial;
use crate::explore::catalogue;
use crate::explore::image::caught;
use crate::model::{Image, Kept, Timeline, stored};
use crate::response::is_relied_on;
use crate::state::{Checked, Fault};
use outlast::pmem::{LINE, Point};
use std::collections::{BTreeMap, BTreeSet};

/// For each commit point, after how many of its stores a first life ends, over all runs.
const FIRST: usize = 3;
/// At how many moments of the second life the images of a power loss are checked.
const SECOND: usize = 16;

/// A moment right after a store: the number of events before it, the store's commit point and line.
type End = (usize, &'static Point, u64);

/// Ends the first life of each scenario after some store of each commit point, and checks what
/// follows:
///
/// - Its process dies, and so does the next one, after a store of each commit point that it comes to.
///   The third process finds stores of both in the caches. What its operations return must be durable.
/// - The power fails, and the line of the store is all that survives of what was not durable, or all
///   that does not. The second life removes most records, comes to rest, and inserts them again. Then
///   the power fails at some moment of it.
pub(super) fn check(subject: &Subject) -> Checked {
    let mut tapes = Vec::new();
    for scenario in catalogue(subject.scheme, subject.form) {
        let tape = caught(|| Tape::first(&scenario, &subject.alive));
        tapes.push(tape.map_err(|fault| Fault(format!("in the run {}: {fault}", scenario.name)))?);
    }
    // The shortest runs come last, so that they are among those that `spread` picks.
    tapes.sort_by_key(|tape| std::cmp::Reverse(tape.events.len()));
    let mut of_point: BTreeMap<&Point, Vec<(usize, End)>> = BTreeMap::new();
    for (number, tape) in tapes.iter().enumerate() {
        for end in ends(tape) {
            of_point.entry(end.1).or_default().push((number, end));
        }
    }
    let mut met = BTreeSet::new();
    for (number, end) in of_point.into_values().flat_map(|all| trial::spread(all, FIRST)) {
        let tape = &tapes[number];
        let at = |fault: Fault| {
            let (moment, point, _) = end;
            Fault(format!("{}, ended after event {moment}, {}: {fault}", tape.name, point.name))
        };
        caught(|| two_deaths(subject, tape, end, &mut met)).map_err(at)?;
        caught(|| two_losses(subject, tape, end)).map_err(at)?;
    }
    Ok(())
}

/// Lists the moments after the stores of the last life of a run that are meant to become durable, or
/// that a later opening relies on.
fn ends(tape: &Tape) -> Vec<End> {
    let stores = tape.events.iter().enumerate().skip(tape.start).filter_map(|(number, event)| {
        let (offset, _) = stored(event)?;
        let point = event.point.filter(|_| is_relied_on(event.point))?;
        Some((number + 1, point, offset / LINE))
    });
    stores.collect()
}

/// `met` has the pairs of commit points at which two processes have died already.
fn two_deaths(
    subject: &Subject,
    tape: &Tape,
    (moment, point, _): End,
    met: &mut BTreeSet<(&'static Point, &'static Point)>,
) -> Checked {
    let Some(second) = tape.second(moment, &subject.alive)? else { return Ok(()) };
    for (moment, again, _) in ends(&second) {
        if !met.insert((point, again)) {
            continue;
        }
        let Some(third) = second.second(moment, &subject.alive)? else { continue };
        if let Some(found) = third.undurable(&third.events) {
            return Err(Fault(format!("{}: {found}", third.name)));
        }
        trial::least(&third, &subject.alive)?;
    }
    Ok(())
}

fn two_losses(subject: &Subject, tape: &Tape, (moment, _, line): End) -> Checked {
    let mut timeline = Timeline::new(&tape.base, tape.len, &tape.events);
    timeline.advance(moment);
    let stores = timeline.line(line).map_or(0, |open| open.stores.len());
    let (mut alone, mut lost) = (Image::default(), Image::default());
    timeline.least_and(&[Kept { line, stores }], &mut alone);
    timeline.all_but(&[Kept { line, stores: 0 }], &mut lost);
    for image in [alone, lost] {
        let Some(state) = tape.state_of(&image.bytes, moment, &subject.alive)? else { continue };
        let next = tape.life_after(&image.bytes, &state, &subject.alive)?;
        trial::crash_again(&next, SECOND, &subject.alive)?;
    }
    Ok(())
}
