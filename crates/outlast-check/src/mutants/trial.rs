//! Checks whether the suite notices a mutated trace.

use super::mutation::Mutated;
use super::tape::{Tape, all, least_and};
use crate::explore::image::caught;
use crate::explore::{Case, Setting};
use crate::model::{Image, Kept, OpenLine, Timeline, stored, windows};
use crate::state::{Checked, Fault};
use outlast::internals::pmem::{Access, Alive, Event, Mark};
use std::sync::Arc;

/// The result of a trial.
#[derive(Debug, Clone)]
pub enum Verdict {
    /// The mutant was noticed, in this way.
    Noticed(String),
    /// The mutant was not noticed in this many images that the original trace does not allow.
    Unnoticed(usize),
}

/// Checks what the operations of a mutated trace stored and returned, without images. Returns what
/// was noticed, if anything.
pub fn by_answers(tape: &Tape, mutated: &Mutated) -> Option<String> {
    tape.undurable(&mutated.events)
}

/// A moment at which a crash of the mutant can lose more than a crash of the original.
struct Exposed {
    /// The number of events before the moment, in the original trace and in the mutated one.
    moment: (usize, usize),
    /// The lines that can lose more, each with the number of additional stores.
    lines: Vec<(u64, usize)>,
}

/// Lists the moments at which some line is less durable in the mutated trace than in the original.
/// Looks right after each store and each return, from the first mutated event on.
fn exposed(tape: &Tape, mutated: &Mutated) -> Vec<Exposed> {
    let positions = |events: &[Event]| -> Vec<usize> {
        // Less is allowed after a return than before it.
        let answers = |e: &Event| matches!(e.access, Access::Mark(Mark::End(_)));
        (mutated.first..events.len())
            .filter(|&i| stored(&events[i]).is_some() || answers(&events[i]))
            .collect()
    };
    let (before, after) = (positions(&tape.events), positions(&mutated.events));
    let mut original = Timeline::new(&tape.base, tape.len, &tape.events);
    let mut changed = Timeline::new(&tape.base, tape.len, &mutated.events);
    let mut found = Vec::new();
    for (&b, &a) in before.iter().zip(&after) {
        original.advance(b + 1);
        changed.advance(a + 1);
        let lines: Vec<(u64, usize)> = mutated
            .lines
            .iter()
            .filter_map(|&line| {
                let open = |t: &Timeline<'_>| t.line(line).map_or(0, |o| o.stores.len());
                let more = open(&changed).checked_sub(open(&original))?;
                (more > 0).then_some((line, more))
            })
            .collect();
        if !lines.is_empty() {
            found.push(Exposed { moment: (b + 1, a + 1), lines });
        }
    }
    found
}

/// Chooses at most `most` of the runs to which a mutation applies. Half of them are those in which
/// the mutated thread has the fewest fences afterwards. The others are spread evenly.
pub(super) fn nearest<'t>(
    tapes: impl Iterator<Item = &'t Tape>,
    mutated: impl Fn(&Tape) -> Option<Mutated>,
    most: usize,
) -> Vec<&'t Tape> {
    let fences = |tape: &Tape| {
        let first = mutated(tape)?.first;
        let own = |e: &&Event| e.thread == tape.events[first].thread && e.access == Access::Fence;
        Some(tape.events[first + 1..].iter().filter(own).count())
    };
    let mut near: Vec<_> = tapes.filter_map(|tape| Some((fences(tape)?, tape))).collect();
    near.sort_by_key(|(fences, _)| *fences);
    let others = near.split_off(near.len().min(most / 2));
    near.into_iter().chain(spread(others, most - most / 2)).map(|(_, tape)| tape).collect()
}

/// Picks at most `count` of the items: both ends, and evenly spread items between them. Returns all
/// items if `count` is less than 2.
pub(crate) fn spread<T>(items: Vec<T>, count: usize) -> Vec<T> {
    let len = items.len();
    if len <= count || count < 2 {
        return items;
    }
    let mut chosen = (0..count).map(|i| i * (len - 1) / (count - 1)).peekable();
    let mut kept = Vec::new();
    for (i, item) in items.into_iter().enumerate() {
        if chosen.peek() == Some(&i) {
            kept.push(item);
            chosen.next();
        }
    }
    kept
}

/// Tries about `budget` crash images of a mutated trace that the original does not allow. At each
/// moment it tries three kinds: all exposed lines lose everything and everything else survives; one
/// such line alone loses one store more than the original allows, or all its stores; and every line
/// keeps as little as it can.
pub fn by_images(tape: &Tape, mutated: &Mutated, budget: usize, alive: &Arc<Alive>) -> Verdict {
    let mut timeline = Timeline::new(&tape.base, tape.len, &mutated.events);
    let mut images = 0;
    for exposed in spread(exposed(tape, mutated), (budget / 3).max(2)) {
        timeline.advance(exposed.moment.1);
        let all_but = |kept: &[Kept]| {
            let mut image = Image::default();
            timeline.all_but(kept, &mut image);
            image
        };
        let none = |&(line, _): &(u64, usize)| Kept { line, stores: 0 };
        let mut tried = vec![
            all_but(&exposed.lines.iter().map(none).collect::<Vec<_>>()),
            least_and(&timeline, &[]),
        ];
        for entry in spread(exposed.lines, 4) {
            tried.push(all_but(&[none(&entry)]));
            if entry.1 > 1 {
                tried.push(all_but(&[Kept { line: entry.0, stores: entry.1 - 1 }]));
            }
        }
        tried.dedup();
        for file in tried {
            images += 1;
            if let Err(fault) = check(tape, &file, exposed.moment.0, alive)
                && is_good(tape, exposed.moment.0, alive)
            {
                return Verdict::Noticed(format!(
                    "an image after event {} of {}: {fault}",
                    exposed.moment.1, tape.name
                ));
            }
        }
    }
    Verdict::Unnoticed(images)
}

/// Returns whether the oracle accepts what a crash leaves of the original. If it does not, its
/// verdict on the mutated trace means nothing.
fn is_good(tape: &Tape, moment: usize, alive: &Arc<Alive>) -> bool {
    let mut timeline = Timeline::new(&tape.base, tape.len, &tape.events);
    timeline.advance(moment);
    check(tape, &all(&timeline), moment, alive).is_ok()
}

/// Does the same as [`by_images`] with fewer images, those in which all exposed lines lose
/// everything, and runs another life on each, which ends with another power loss. So this also
/// finds damage that only the next life shows.
pub fn by_next_life(tape: &Tape, mutated: &Mutated, budget: usize, alive: &Arc<Alive>) -> Verdict {
    let mut timeline = Timeline::new(&tape.base, tape.len, &mutated.events);
    let mut images = 0;
    for exposed in spread(exposed(tape, mutated), (budget / 12).max(2)) {
        timeline.advance(exposed.moment.1);
        let none: Vec<Kept> =
            exposed.lines.iter().map(|&(line, _)| Kept { line, stores: 0 }).collect();
        let mut image = Image::default();
        timeline.all_but(&none, &mut image);
        let file = image.bytes;
        let checked = caught(|| {
            let Some(state) = tape.state_of(&file, exposed.moment.0, alive)? else {
                return Ok(0);
            };
            let next = tape.next_life(&file, &state, alive)?;
            crash_again(&next, 48, alive)
        });
        match checked {
            Ok(tried) => images += tried,
            Err(fault) => {
                let at = exposed.moment.1;
                return Verdict::Noticed(format!(
                    "the life after an image after event {at} of {}: {fault}",
                    tape.name
                ));
            }
        }
    }
    Verdict::Unnoticed(images)
}

/// Checks images that a crash of a run can leave: at up to about twice `budget` moments the image
/// in which everything survives, and at fewer moments others that a power loss can leave.
///
/// # Errors
/// The first fault found.
pub fn images(tape: &Tape, budget: usize, alive: &Arc<Alive>) -> Checked {
    let mut timeline = Timeline::new(&tape.base, tape.len, &tape.events);
    let durable = |e: &Event| e.point.is_some_and(|p| !p.volatile);
    let stores = (tape.start..tape.events.len())
        .filter(|&i| stored(&tape.events[i]).is_some() && durable(&tape.events[i]));
    let stores: Vec<usize> = stores.collect();
    // The first and last store of each sequence at one commit point matter most.
    let mut ends = Vec::new();
    for pair in stores.windows(2) {
        if tape.events[pair[0]].point != tape.events[pair[1]].point {
            ends.extend(pair.iter().map(|i| i + 1));
        }
    }
    ends.dedup();
    let mut moments = spread(ends, budget);
    moments.extend(spread(stores.iter().map(|i| i + 1).collect(), budget));
    moments.push(tape.events.len());
    moments.sort_unstable();
    moments.dedup();
    for moment in moments {
        timeline.advance(moment);
        check(tape, &all(&timeline), moment, alive).map_err(|fault| {
            Fault(format!("an image after event {moment} of {}: {fault}", tape.name))
        })?;
    }
    // Whatever a result depended on must be there, even if everything else is lost.
    let answered = |i: &usize| matches!(tape.events[*i].access, Access::Mark(Mark::End(_)));
    let answers = (tape.start..tape.events.len()).filter(answered).map(|i| i + 1).collect();
    let mut timeline = Timeline::new(&tape.base, tape.len, &tape.events);
    for moment in spread(answers, budget / 2) {
        timeline.advance(moment);
        check(tape, &least_and(&timeline, &[]), moment, alive).map_err(|fault| {
            Fault(format!("the least image after event {moment} of {}: {fault}", tape.name))
        })?;
    }
    let found = crash_again(tape, budget / 4, alive);
    found.map(|_| ()).map_err(|fault| Fault(format!("an image of {}: {fault}", tape.name)))
}

/// Checks the least that a power loss can leave at each return of the last life.
///
/// # Errors
/// The first fault found.
pub fn least(tape: &Tape, alive: &Arc<Alive>) -> Checked {
    let answered = |i: &usize| matches!(tape.events[*i].access, Access::Mark(Mark::End(_)));
    let mut timeline = Timeline::new(&tape.base, tape.len, &tape.events);
    for answer in (tape.start..tape.events.len()).filter(answered) {
        timeline.advance(answer + 1);
        check(tape, &least_and(&timeline, &[]), answer + 1, alive).map_err(|fault| {
            Fault(format!("the least image after event {answer} of {}: {fault}", tape.name))
        })?;
    }
    Ok(())
}

/// Checks crash images at some moments of a run: images that lose one open line, and images that
/// keep only one.
fn crash_again(tape: &Tape, budget: usize, alive: &Arc<Alive>) -> Checked<usize> {
    let mut timeline = Timeline::new(&tape.base, tape.len, &tape.events);
    let mut images = 0;
    let moments = windows(&tape.events).into_iter().filter(|&m| m >= tape.start).collect();
    for moment in spread(moments, budget) {
        timeline.advance(moment);
        let durable =
            |o: &OpenLine<'_>| o.stores.iter().any(|s| s.point.is_none_or(|p| !p.volatile));
        let lines: Vec<Kept> = timeline
            .open()
            .filter(durable)
            .map(|o| Kept { line: o.line, stores: o.stores.len() })
            .collect();
        for kept in spread(lines, 6) {
            let mut without = Image::default();
            timeline.all_but(&[Kept { stores: 0, ..kept }], &mut without);
            for file in [least_and(&timeline, &[kept]), without] {
                check(tape, &file, moment, alive)?;
                images += 1;
            }
        }
    }
    Ok(images)
}

/// Checks an image that a crash after the first `moment` events of a tape has left.
pub(super) fn check(tape: &Tape, image: &Image, moment: usize, alive: &Arc<Alive>) -> Checked {
    let setting =
        Setting { capacity: tape.capacity(), universe: &tape.universe, shape: tape.shape, alive };
    // Always make the lightest check. It leaves time for many images, and these find more than
    // thorough checks of a few images would.
    let case =
        Case { setting, image, judge: &tape.allowed(moment), order: 64 + moment as u64 % 64 };
    case.check().map(|_| ())
}
