//! The sixteen states in which a crash can leave a table of EA-PHT (thesis, 3.6.1): how many images
//! are in each, and that opening mends all of them.

use outlast::internals::index::ea_pht::points;
use outlast::internals::pmem::{Event, Point, Traced};
use outlast::{RecordForm, Scheme};
use outlast_check::codec::SPECIAL;
use outlast_check::fuzz::pool::word_at;
use outlast_check::model::{Image, Kept, OpenLine, Timeline, stored, windows};
use outlast_check::session::{Do, PAGE_BITS, PoolShape, Session, alive, recorder};
use outlast_check::structures::{Shape, structure};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// The thesis's states. Its removal clears the key and then the value, and is partial in between.
/// Here a removal stores one word, so there are no images of the tenth state.
const STATES: [&str; 16] = [
    "insert: successful",
    "insert: partial",
    "insert: failed",
    "overflow insert: successful",
    "overflow insert: unlinked successful",
    "overflow insert: unlinked partial",
    "overflow insert: unlinked failed",
    "overflow insert: failed allocation",
    "remove: successful",
    "remove: partial",
    "remove: failed",
    "resize: not during one",
    "resize: never started",
    "resize: new table's headers",
    "resize: might have begun to move",
    "resize: finished, root not yet stored",
];

/// The buckets of the table before the resize.
const BUCKETS: usize = 8;

/// Yields the offset and the value of each store at a commit point.
fn stores<'e>(
    events: &'e [Event],
    point: &'static Point,
) -> impl Iterator<Item = (u64, u64)> + Clone + 'e {
    events.iter().filter(move |event| event.point == Some(point)).filter_map(stored)
}

/// Finds the state of an image that a crash leaves after the events `done` of an operation.
fn state_of(
    operation: &str,
    done: &[Event],
    image: &[u8],
    (key, value): (u64, u64),
) -> &'static str {
    let kept = |(at, word): (u64, u64)| word_at(image, at) == word;
    let any = |point| stores(done, point).any(kept);
    // Whether the image has the key and the value that were stored at a point.
    let record = |point| {
        let at = stores(done, point).find(|&(at, word)| {
            word == value && stores(done, point).any(|other| other == (at - 8, key))
        });
        let written = at.filter(|_| stores(done, point).any(kept));
        written.map_or([false; 2], |(at, _)| [kept((at - 8, key)), kept((at, value))])
    };
    let number = match operation {
        "insert" => match record(&points::INSERT) {
            [true, _] => 0,
            [false, true] => 1,
            [false, false] => 2,
        },
        "overflow insert" if any(&points::NODE_COMMIT) => 3,
        "overflow insert" if !any(&points::COUNTER) => 7,
        "overflow insert" => match record(&points::NODE_NEW) {
            [true, _] => 4,
            [false, true] => 5,
            [false, false] => 6,
        },
        "remove" => 8 + 2 * usize::from(!any(&points::REMOVE)),
        _ if any(&points::RESIZE_COMMIT) => 11,
        _ if !any(&points::RESIZE_NEW) => 12,
        _ if !any(&points::MOVE_NEW) => 13,
        // EA-PHT-HPR marks each bucket that is moved.
        _ if stores(done, &points::MOVE_COMMIT).filter(|&mark| kept(mark)).count() == BUCKETS => 15,
        _ if stores(done, &points::RESIZE_COMMIT).next().is_none() => 14,
        _ if stores(done, &points::MOVE_NEW).all(kept) => 15,
        _ => 14,
    };
    STATES[number]
}

/// Makes the images of crashes at one moment. One open line at a time keeps all of its stores or a
/// part. The other lines keep the least that they can, and in another image everything.
fn images_at(timeline: &Timeline<'_>, mut look: impl FnMut(&Image)) {
    let mut image = Image::default();
    let mut cuts: Vec<Option<Kept>> = vec![None];
    for open in timeline.open() {
        let all = open.stores.len();
        // Try only some prefixes of a line with many stores.
        let some = (0..=all).step_by(all.div_ceil(8).max(1)).chain([all.saturating_sub(1)]);
        cuts.extend(some.map(|stores| Some(Kept { line: open.line, stores })));
    }
    for cut in cuts {
        let kept = cut.as_slice();
        timeline.least_and(kept, &mut image);
        look(&image);
        timeline.all_but(kept, &mut image);
        look(&image);
    }
}

#[test]
fn every_state_of_the_thesis_is_reached_and_mended() {
    for scheme in [Scheme::EaPht, Scheme::EaPhtH, Scheme::EaPhtHpr] {
        let counts = images_by_state(scheme);
        println!("{scheme}");
        for state in STATES {
            println!("| {state} | {} |", counts.get(state).unwrap_or(&0));
        }
        let lacking: Vec<_> = STATES.iter().filter(|state| !counts.contains_key(*state)).collect();
        assert_eq!(lacking, [&"remove: partial"], "{scheme}");
    }
}

fn images_by_state(scheme: Scheme) -> BTreeMap<&'static str, u64> {
    let alive = alive();
    // All keys have one hash, so the sixteenth takes an overflow bucket, and the
    // thirty-first resizes the table once.
    let shape = Shape { form: RecordForm::Inline, config: (structure(scheme).config)(3, 6) };
    let pool = PoolShape { hash_function: 0x7e57, ..PoolShape::default() };
    let capacity = pool.max_pages << PAGE_BITS;
    let seam = Traced::new();
    let mut session = Session::create(pool, &alive, seam.clone()).unwrap();
    session.create_map("m", shape).unwrap();
    let universe: Vec<u64> = (SPECIAL..SPECIAL + 40).collect();
    let (mut counts, mut seen) = (BTreeMap::new(), HashSet::new());
    let mut step = |key: u64, change: Do, operation: &str| {
        let (file, before) = (session.file(), Arc::clone(session.state()));
        seam.start(false);
        session.change("m", key, change).unwrap();
        // In EA-PHT-HPR, background work ends the resize.
        while operation == "resize" && session.background().unwrap() {}
        let (events, after) = (seam.take(), Arc::clone(session.state()));
        if operation.is_empty() {
            return;
        }
        let initial = Image::of_file(&file, capacity);
        let mut timeline = Timeline::new(&initial, file.len() as u64, &events);
        let moments = match operation {
            "resize" => windows(&events),
            _ => (0..=events.len()).collect(),
        };
        let record = (
            key,
            match change {
                Do::Insert(value) => value,
                _ => 0,
            },
        );
        for moment in moments {
            timeline.advance(moment);
            images_at(&timeline, |image| {
                let state = state_of(operation, &events[..moment], &image.bytes, record);
                if !seen.insert((key, moment, image.number())) {
                    return;
                }
                *counts.entry(state).or_insert(0) += 1;
                let mut opened =
                    Session::open(&image.bytes, capacity, &alive, recorder(false), None).unwrap();
                let found = opened.observe(&universe, true).unwrap();
                assert!(found == *before || found == *after, "{scheme}, {state}, event {moment}");
                opened.settle(&found, &universe, true).unwrap();
                opened.verify().unwrap();
                opened.change("m", SPECIAL + 39, Do::Insert(1)).unwrap();
            });
        }
    };
    for number in 0..31 {
        let operation = match number {
            5 => "insert",
            15 => "overflow insert",
            30 => "resize",
            _ => "",
        };
        step(SPECIAL + number, Do::Insert(700_000 + number), operation);
        if number == 5 {
            step(SPECIAL + 3, Do::Remove, "remove");
            step(SPECIAL + 3, Do::Insert(900_000), "");
        }
    }
    counts
}

/// While EA-PHT-HPR fills a table, a power loss can keep the owners of copies and lose the counter
/// of the buckets that hold them. The next process moves their chain again, which may need fewer
/// buckets by then.
#[test]
fn buckets_beyond_the_counter_have_no_owner_when_they_are_handed_out() {
    let alive = alive();
    let config = (structure(Scheme::EaPhtHpr).config)(8, 2 * 8);
    let shape = Shape { form: RecordForm::Inline, config };
    let pool = PoolShape { hash_function: 0x7e57, max_pages: 640, ..PoolShape::default() };
    let capacity = pool.max_pages << PAGE_BITS;
    let seam = Traced::new();
    let mut session = Session::create(pool, &alive, seam.clone()).unwrap();
    session.create_map("m", shape).unwrap();
    // One chain with four overflow buckets.
    let chain = SPECIAL..SPECIAL + 61;
    chain.clone().for_each(|key| session.change("m", key, Do::Insert(key)).unwrap());
    let begins = (10..).find(|&key| {
        seam.start(false);
        session.change("m", key, Do::Insert(key)).unwrap();
        stores(&seam.take(), &points::RESIZE_BEGIN).next().is_some()
    });
    let universe: Vec<u64> = chain.clone().chain(10..=begins.unwrap()).collect();
    let file = session.file();
    seam.start(false);
    while session.background().unwrap() {}
    let events = seam.take();

    let initial = Image::of_file(&file, capacity);
    let mut timeline = Timeline::new(&initial, file.len() as u64, &events);
    let (mut image, mut images) = (Image::default(), 0);
    for moment in windows(&events) {
        timeline.advance(moment);
        let is_counter = |line: &OpenLine<'_>| {
            let counts = line.stores.iter().filter(|store| store.point == Some(&points::COUNTER));
            counts.count() > 1
        };
        let Some(counter) = timeline.open().find(is_counter) else { continue };
        for stores in 1..counter.stores.len() {
            timeline.all_but(&[Kept { line: counter.line, stores }], &mut image);
            let mut opened =
                Session::open(&image.bytes, capacity, &alive, recorder(false), None).unwrap();
            let found = opened.observe(&universe, true).unwrap();
            opened.settle(&found, &universe, true).unwrap();
            for key in chain.clone().take(50) {
                opened.change("m", key, Do::Remove).unwrap();
            }
            while opened.background().unwrap() {}
            opened.check(&universe, true).unwrap();
            opened.verify().unwrap();
            images += 1;
        }
    }
    assert!(images > 0);
}
