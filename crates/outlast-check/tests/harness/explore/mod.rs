//! Every scenario of every scheme: no image breaks the contract, and each scenario still reaches
//! the phases that it is for.

mod states;

use outlast::Scheme;
use outlast::internals::index::{clevel, ea_pht};
use outlast::internals::pmem::{Access, Alive, Event, Point, Seeded, Traced};
use outlast::internals::pool;
use outlast_check::explore::{
    Budget, Limits, Looked, Options, Scratch, Setting, catalogue, crash_at, first_violation_of,
    report, run,
};
use outlast_check::model::{Image, Timeline};
use outlast_check::parts::scenario::Scenario;
use outlast_check::schemes::parts;
use outlast_check::session::{Do, PAGE_BITS, PoolShape, Session, alive, recorder};
use outlast_check::state::{Allowed, Judge, State};
use outlast_check::structures::Shape;
use outlast_check::suite::Half;
use outlast_check::tally::Tally;
use std::sync::Arc;

#[test]
fn every_crash_of_every_scenario_leaves_what_it_may() {
    for (scheme, form) in Half::Second.pairs() {
        // With shares of 1, no image is left out, so all phases must be reached.
        let tally = Tally::with_share(1.0);
        let options = Options { scheme: Some(scheme), record: Some(form), ..Options::default() };
        let outcome = run(&options, &tally, &|| ());
        println!("{}", report::table(&outcome));
        assert!(outcome.is_good(), "{}", report::failures(&outcome));
        assert!(outcome.rows.iter().all(|row| row.stores > 0 && row.nested > 0 && row.deaths > 0));
        let images: usize = outcome.rows.iter().map(|row| row.images).sum();
        assert_eq!(tally.all().images, images as u64);
    }
}

/// A process dies, and the power fails while the next one opens the pool. The power failure may
/// then take what the first process left in the caches.
#[test]
fn what_an_opening_finds_in_the_caches_may_be_lost() {
    let bugs = [
        (&pool::bugs::FOUND_HEADER_CACHED, Scheme::EaPhtH, "sync"),
        (&ea_pht::bugs::REOWNED_EARLY, Scheme::EaPht, "collide"),
    ];
    for (bug, scheme, scenario) in bugs {
        let options = Options {
            scheme: Some(scheme),
            scenario: Some(scenario.to_owned()),
            budget: Budget { second_runs: 0, deaths: usize::MAX, ..Budget::QUICK },
            // Only recorders of this thread have the bug.
            threads: 1,
            ..Options::default()
        };
        for bug in [None, Some(Seeded::InCode(bug))] {
            let explore = || run(&options, &Tally::with_share(1.0), &|| ());
            let outcome = Traced::seeding(bug, explore);
            assert_eq!(outcome.is_good(), bug.is_none(), "{bug:?}: {}", report::table(&outcome));
        }
    }
}

/// One crash can be replayed alone, and so can one of its second crashes.
#[test]
fn a_crash_is_replayed_alone() {
    let crash = |text: &str| Some(text.parse().unwrap());
    let one = Options {
        scenario: Some("collide".to_owned()),
        crash: crash("m900@40"),
        nested: crash("m70@7"),
        ..Options::default()
    };
    let outcome = run(&one, &Tally::default(), &|| ());
    assert!(outcome.is_good(), "{}", report::failures(&outcome));
    assert!(outcome.rows.iter().all(|row| (row.images, row.nested) == (2, 1)));
}

/// Commit points whose missing flush or fence shows in no image of a run of one thread, without
/// rehashing, in which no block is reused. Once the slot leads to the new record, or to none, the
/// old record's state does not matter there. It matters in other runs: another thread can follow
/// the old state, and one of two slots can still lead to the old record. The trace corrects a slot
/// that leads to a replaced or removed record, unless the block holds something else by then. The
/// mutation tests have such runs.
const NOT_ALONE: &[&Point] = &[
    &clevel::points::UPDATE,
    &clevel::points::UPDATE_SLOT,
    &clevel::points::REMOVE,
    &clevel::points::REMOVE_SLOT,
];

/// The search finds no fault in the trace as it is, where no image is new. It finds a fault if a
/// flush or a fence of an operation is left out.
#[test]
fn a_flush_or_fence_that_is_left_out_is_found() {
    let alive = alive();
    for shape in Shape::all() {
        let is_it = |s: &Scenario| s.name.starts_with("change") && s.shape == shape;
        let scenario = catalogue(shape.scheme(), shape.form).into_iter().find(is_it).unwrap();
        let run = scenario.record(0, &alive).unwrap().recording;
        let search = |events: Vec<Event>| {
            first_violation_of(&scenario, &run, events, Limits::default(), &alive)
        };
        let searched = search(run.events.clone());
        assert!(searched.violation.is_none() && searched.images == 0, "{searched:?}");
        for point in (parts(shape.scheme()).expected)("change", shape.form).reaches {
            let is_flush: fn(&Event) -> bool = |e| matches!(e.access, Access::Flush { .. });
            let is_fence: fn(&Event) -> bool = |e| matches!(e.access, Access::Fence);
            // Skip flushes and fences that the point does not declare: another point's fence
            // completes its flush.
            let acts = [(point.flush, is_flush), (point.fence, is_fence)];
            for is_dropped in acts.into_iter().filter(|act| act.0).map(|act| act.1) {
                let dropped = |e: &&Event| !(is_dropped(e) && e.point == Some(point));
                let events: Vec<Event> = run.events.iter().filter(dropped).cloned().collect();
                assert!(events.len() < run.events.len(), "{point:?} is never reached");
                let searched = search(events);
                if NOT_ALONE.contains(&point) {
                    assert!(searched.violation.is_none(), "{point:?} stands in the wrong table");
                    continue;
                }
                assert!(searched.violation.is_some(), "{shape:?} {point:?}: {searched:?}");
                let violation = searched.violation.unwrap();
                assert!(violation.crash.unwrap().lost.len() == 1, "one lost line is enough");
            }
        }
    }
}

/// Crashes at one moment of a trace of two threads, with a judge of our own. One thread's insert
/// has returned, and the other's is in flight.
#[test]
fn one_moment_of_several_threads_is_judged() {
    let alive = alive();
    for shape in Shape::all() {
        judge_one_moment(shape, &alive);
    }
}

fn judge_one_moment(shape: Shape, alive: &Arc<Alive>) {
    let pool = PoolShape::default();
    let capacity = pool.max_pages << PAGE_BITS;
    let mut session = Session::create(pool, alive, recorder(false)).unwrap();
    session.create_map("m", shape).unwrap();
    let image = Image::of_file(&session.file(), capacity);
    let len = session.file().len() as u64;

    let seam = Traced::new();
    let file = &image.bytes[..len as usize];
    let mut session = Session::open(file, capacity, alive, seam.clone(), None).unwrap();
    let known = session.observe(&[], true).unwrap();
    session.settle(&known, &[], true).unwrap();
    seam.start(false);
    session.change("m", 10, Do::Insert(1)).unwrap();
    let mut other = std::thread::scope(|scope| {
        let insert = || {
            session.change("m", 11, Do::Insert(2)).unwrap();
            session
        };
        scope.spawn(insert).join().unwrap()
    });
    let events = seam.take();
    assert!(events.iter().any(|e| e.thread == 1), "two threads");
    let after = Arc::clone(other.state());
    other.verify().unwrap();

    // The moment is before the last fence of the second thread.
    let is_last = |e: &Event| matches!(e.access, Access::Fence) && e.thread == 1;
    let moment = events.iter().rposition(is_last).unwrap();
    let mut timeline = Timeline::new(&image, len, &events);
    timeline.advance(moment);
    let universe = [10, 11, 12];
    let setting = Setting { capacity, universe: &universe, shape, alive };
    let judged = |judge: &dyn Judge| {
        let (mut images, mut faults) = (0, Vec::new());
        let mut each = |looked: Looked<'_>| {
            images += 1;
            faults.extend(looked.result.err());
            true
        };
        crash_at(setting, &timeline, judge, 64, &mut Scratch::default(), &mut each);
        (images, faults)
    };
    let mut before = State::clone(&after);
    before.maps.get_mut("m").unwrap().records.remove(&11);
    let both = Allowed(vec![Some(before.clone().into()), Some(after)]);
    let (images, faults) = judged(&both);
    assert!(images > 1 && faults.is_empty(), "{images} images: {faults:?}");
    // A crash here can leave either state, so a judge that allows only one of them finds faults.
    let (_, faults) = judged(&before);
    assert!(!faults.is_empty());
}
