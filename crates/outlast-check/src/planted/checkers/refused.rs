//! Requests for space are refused, one at a time or until the end of an operation.

use super::Subject;
use crate::canary::trial::spread;
use crate::explore::catalogue;
use crate::explore::image::caught;
use crate::parts::play::Play;
use crate::parts::scenario::Scenario;
use crate::random::Random;
use crate::session::{Do, Session, recorder};
use crate::state::{Checked, Fault};
use outlast::pmem::Traced;
use std::collections::BTreeMap;
use std::ops::Range;

/// How many requests of one size are refused in a scenario: the first, the last, and some between.
const OF_ONE_SIZE: usize = 3;
/// How many requests are refused in a scenario, the largest first.
const REFUSED: usize = 24;
/// How often a map grows after the run. In some structures, one growth in four takes a large block.
const MORE: u64 = 4;
/// The first key of the inserts after the run.
const FRESH: u64 = 6_000_000;

/// Plays every scenario again and again. In each run, other requests for space are refused, and after
/// it the maps must grow, as they do if nothing is refused.
pub(super) fn check(subject: &Subject) -> Checked {
    for scenario in catalogue(subject.scheme, subject.form) {
        // A batch that is refused space while it takes its changes back closes the pool. The batch of
        // `batch-full` takes them back in any case.
        if scenario.costly || scenario.name == "batch-full" {
            continue;
        }
        let in_scenario = |fault: Fault| Fault(format!("in the run {}: {fault}", scenario.name));
        let is_batch = scenario.name.starts_with("batch");
        // No request has this number.
        let seam = recorder(false);
        let run = caught(|| play(subject, &scenario, &seam, usize::MAX..usize::MAX));
        let grows = run.map_err(in_scenario)?;
        for numbers in chosen(&seam.requested(), is_batch) {
            let (seam, range) = (recorder(false), numbers.clone());
            caught(|| play(subject, &scenario, &seam, numbers)?.and_then_grown(&grows)).map_err(
                |fault| {
                    in_scenario(Fault(format!(
                        "after the requests {range:?} were refused: {fault}"
                    )))
                },
            )?;
        }
    }
    Ok(())
}

/// Chooses the requests to refuse: each alone and, unless `only_alone`, with all others until the end
/// of its operation.
fn chosen(sizes: &[u64], only_alone: bool) -> Vec<Range<usize>> {
    let mut of_size: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (number, &size) in sizes.iter().enumerate() {
        of_size.entry(size).or_default().push(number);
    }
    let largest_first = of_size.into_values().rev();
    let some = largest_first.flat_map(|numbers| spread(numbers, OF_ONE_SIZE)).take(REFUSED);
    let ends = |number| [Some(number + 1), (!only_alone).then_some(usize::MAX - 1)];
    let ranges =
        some.flat_map(|number| ends(number).into_iter().flatten().map(move |end| number..end));
    ranges.collect()
}

/// Whether the maps of a scenario can grow after its run.
struct Grows(Checked);

impl Grows {
    /// Fails if the maps cannot grow, although they can `usually`.
    fn and_then_grown(self, usually: &Grows) -> Checked {
        if usually.0.is_ok() { self.0 } else { Ok(()) }
    }
}

fn play(
    subject: &Subject,
    scenario: &Scenario,
    seam: &Traced,
    refused: Range<usize>,
) -> Checked<Grows> {
    let session = Session::create(scenario.pool, &subject.alive, seam.clone())?;
    seam.refuse(refused);
    let (shape, random) = (scenario.shape, Random::new(0x5eed));
    let mut play = Play { session, shape, random, base: 0, from: 0 };
    (scenario.play)(&mut play)?;
    let session = &mut play.session;
    Ok(Grows(caught(|| {
        let names: Vec<String> = session.state().maps.keys().cloned().collect();
        for name in names {
            let wanted = session.grown(&name)? + MORE;
            let mut key = FRESH;
            while session.grown(&name)? < wanted {
                session.change(&name, key, Do::Insert(key))?;
                key += 1;
                crate::state::ensure(key < FRESH + 1_000, || {
                    format!("{name:?} does not grow any more")
                })?;
            }
        }
        session.come_to_rest()?;
        session.verify()
    })))
}
