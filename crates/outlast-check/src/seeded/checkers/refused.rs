//! Requests for space are refused, one at a time or until the end of an operation.

use super::Subject;
use crate::codec::SPECIAL;
use crate::explore::catalogue;
use crate::explore::image::caught;
use crate::mutants::trial::spread;
use crate::parts::play::Play;
use crate::parts::scenario::Scenario;
use crate::random::Random;
use crate::session::{Batched, Do, PoolShape, Session, recorder};
use crate::state::{Checked, Fault, ensure};
use crate::structures::Shape;
use outlast::RecordForm;
use outlast::internals::pmem::{Control, Traced};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many requests of one size are refused in a scenario: the first, the last, and some between.
const OF_ONE_SIZE: usize = 3;
/// How many requests are refused in a scenario, the largest first.
const REFUSED: usize = 24;
/// How often a map grows after the run. In some structures, one growth in four takes a large block.
const MORE: u64 = 4;
/// How many inserts are made at most. A table that was refused the space to shrink is large, and each growth
/// doubles it, so one growth is enough.
const MOST: u64 = 1_000;
/// The first key of the inserts after the run.
const FRESH: u64 = 6_000_000;

/// Plays every scenario again and again. In each run, other requests for space are refused, and
/// after it the maps must grow, as they do if nothing is refused.
pub(super) fn check(subject: &Subject) -> Checked {
    caught(|| full_batches(subject)).map_err(|fault| Fault(format!("full batches: {fault}")))?;
    for scenario in catalogue(subject.scheme, subject.form) {
        // A batch that is refused space while it takes its changes back closes the pool. The batch
        // of `batch-full` takes them back in any case.
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
            let (seam, range) = (limited(), numbers.clone());
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

/// Chooses the requests to refuse: each alone and, unless `only_alone`, with all others until the
/// end of its operation.
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
            let first = session.grown(&name)?;
            for key in FRESH..FRESH + MOST {
                if session.grown(&name)? >= first + MORE {
                    break;
                }
                session.change(&name, key, Do::Insert(key))?;
            }
            ensure(session.grown(&name)? > first, || format!("{name:?} does not grow any more"))?;
        }
        session.come_to_rest()?;
        session.verify()
    })))
}

/// More accesses than a run makes.
const ACCESSES: u64 = 30_000_000;

/// Panics if the only thread makes no end.
#[derive(Default)]
struct Limit(AtomicU64);

impl Control for Limit {
    fn before(&self, _thread: usize, waiting: bool) {
        // A turn of waiting takes longer than an access.
        let weight = if waiting { ACCESSES / 10_000 } else { 1 };
        let made = self.0.fetch_add(weight, Ordering::Relaxed);
        assert!(made < ACCESSES, "the only thread goes on for ever");
    }
}

fn limited() -> Traced {
    Traced::with_control(Box::new(Limit::default()))
}

/// Makes batches of more and more changes until they fill the pool, while a reference keeps the
/// blocks of replaced records from reuse. What a batch has changed before the pool was full must
/// fit into the blocks that were set aside for it.
fn full_batches(subject: &Subject) -> Checked {
    let mut failed = 0;
    for tenths in 3..=12 {
        let pool = PoolShape { pages: 34, max_pages: 64, ..PoolShape::default() };
        let mut session = Session::create(pool, &subject.alive, recorder(false))?;
        session.create_map("m", Shape::smallest(subject.scheme, subject.form))?;
        session.create_map("n", Shape::smallest(subject.scheme, RecordForm::Bytes))?;
        for key in 10..16 {
            session.change("m", key, Do::Insert(key))?;
            session.change("n", key, Do::Insert(SPECIAL + key))?;
        }
        let replaced = (10..16).map(|key| ("n", key, Some(key + 400)));
        let values = session.free_pages() * tenths / 10;
        let added = (0..values).map(|n| ("n", 100 + n, Some(SPECIAL + n)));
        let changes: Vec<Batched> = replaced.chain(added).collect();
        let core = Arc::clone(session.store().core());
        let pin = core.pin();
        let result = session.batch(&changes);
        drop(pin);
        match result {
            Ok(()) => {}
            Err(fault) if fault.0.contains("pool full: ") => failed += 1,
            Err(fault) => return Err(fault),
        }
        let keys: Vec<u64> = (10..16).chain(100..100 + values).collect();
        session.check(&keys, true)?;
        session.verify()?;
    }
    ensure(failed > 0, || "no batch has filled the pool".into())
}
