//! What each operation costs in PM, pinned: stores, lines flushed, fences.
//!
//! Method: a map in memory under the recorder; one operation is recorded at a time, its
//! key chosen by its hash so that it meets just the case that is meant. The figures do not
//! depend on the machine. Why no fewer serve is said beside each, and argued in the
//! module's documentation of the scheme. What holds for every scheme is here; the rest has a
//! file for each.

mod clevel;
mod dash_eh;
mod phast;

use outlast::pmem::{Access, Counts, Event, Point, Traced};
use outlast_check::codec::SPECIAL;
use outlast_check::schemes::parts;
use outlast_check::session::{Do, PoolShape, Session, Shape, alive};
use std::collections::BTreeSet;

/// A map with its recorder.
struct Bench {
    seam: Traced,
    session: Session,
    shape: Shape,
}

const VALUE: u64 = 1 << 20;

/// A pool in which all keys from [`SPECIAL`] on have one hash.
fn colliding() -> PoolShape {
    PoolShape { hash_function: 0x7e57, max_pages: 320, ..PoolShape::default() }
}

impl Bench {
    fn new(shape: Shape) -> Bench {
        Self::in_pool(shape, PoolShape::default())
    }

    fn in_pool(shape: Shape, pool: PoolShape) -> Bench {
        let seam = Traced::new();
        let mut session = Session::create(pool, &alive(), seam.clone()).unwrap();
        session.create_map("m", shape).unwrap();
        Bench { seam, session, shape }
    }

    fn fill(&mut self, keys: impl IntoIterator<Item = u64>) {
        for key in keys {
            self.change(key, Do::Insert(VALUE + key));
        }
    }

    /// Makes one change: its events.
    fn change(&mut self, key: u64, change: Do) -> Vec<Event> {
        self.seam.take();
        self.seam.start(false);
        self.session.change("m", key, change).unwrap();
        let events = self.seam.take();
        events.into_iter().filter(|e| !matches!(e.access, Access::Mark(_))).collect()
    }

    /// Reads in all ways there are: none may store, flush or fence.
    fn read(&mut self, key: u64) {
        self.seam.take();
        self.seam.start(false);
        // get, get_ref and get_many.
        self.session.get("m", key).unwrap();
        let counts = Counts::of(&self.seam.take());
        assert_eq!(counts, Counts::default(), "get of key {key}, {}", self.shape.form);
    }

    fn iterate(&mut self) {
        let keys: Vec<u64> = self.session.used_keys().iter().copied().collect();
        // The first touch of a segment resets its metadata; later ones read only.
        self.session.check(&keys, false).unwrap();
        self.seam.take();
        self.seam.start(false);
        self.session.check(&keys, false).unwrap();
        assert_eq!(Counts::of(&self.seam.take()), Counts::default(), "iteration");
    }
}

fn has(events: &[Event], point: &'static Point) -> bool {
    events.iter().any(|e| e.point == Some(point))
}

/// Lines and fences of all events, and of those at one commit point.
fn cost(events: &[Event]) -> (u64, u64) {
    let counts = Counts::of(events);
    (counts.lines, counts.fences)
}

fn cost_at(events: &[Event], point: &'static Point) -> (u64, u64) {
    let at: Vec<Event> = events.iter().filter(|e| e.point == Some(point)).cloned().collect();
    cost(&at)
}

/// Lines that were stored to.
fn lines_stored(events: &[Event], point: &'static Point) -> u64 {
    let lines = events.iter().filter(|e| e.point == Some(point)).filter_map(|e| match e.access {
        Access::Store { offset, .. } => Some(offset / 64),
        _ => None,
    });
    lines.collect::<BTreeSet<_>>().len() as u64
}

#[test]
fn lookups_and_iterations_store_nothing() {
    for shape in Shape::all() {
        let mut bench = Bench::new(shape);
        let brim = (parts(shape.scheme()).brim)(shape.config);
        // While the map is new, and once it has grown.
        for end in [brim, brim * 3] {
            let first = bench.session.used_keys().last().map_or(10, |last| last + 1);
            bench.fill(first..end + 10);
            (first..end + 40).for_each(|key| bench.read(key));
            bench.iterate();
        }
        let crowd = parts(shape.scheme()).crowd;
        let mut bench = Bench::in_pool(shape, colliding());
        bench.fill(SPECIAL..SPECIAL + crowd + 4);
        (SPECIAL..SPECIAL + crowd + 14).for_each(|key| bench.read(key));
        bench.iterate();
    }
}

#[test]
fn what_changes_nothing_flushes_nothing() {
    for shape in Shape::all() {
        let mut bench = Bench::new(shape);
        bench.fill(10..20);
        for (key, change) in
            [(13, Do::Insert(5)), (100, Do::Update(5)), (101, Do::Swap(5, 6)), (102, Do::Remove)]
        {
            let events = bench.change(key, change);
            assert_eq!(Counts::of(&events), Counts::default(), "{change:?}, {shape:?}");
        }
    }
}
