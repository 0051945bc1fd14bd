//! Pins what each operation costs in PM: stores, lines flushed, fences.
//!
//! Method: a map in memory under the recorder. One operation is recorded at a time, and its key is
//! chosen by its hash so that the operation takes exactly the intended path. The figures do not
//! depend on the machine. A comment at each says why fewer would not do, and the scheme's
//! module documentation has the argument. This file has the tests that hold for every scheme. Each
//! scheme's own tests have a file of their own.

mod clevel;
mod dash_eh;
mod dash_lh;
mod ea_pht;
mod group;
mod line;
mod phast;

use outlast::internals::pmem::{Access, Counts, Event, Point, Traced};
use outlast_check::codec::SPECIAL;
use outlast_check::session::{Do, PoolShape, Session, alive};
use outlast_check::structures::Shape;
use std::collections::BTreeSet;

/// A map with its recorder.
struct Bench {
    seam: Traced,
    session: Session,
    shape: Shape,
}

const VALUE: u64 = 1 << 20;

/// Returns a pool in which all keys from [`SPECIAL`] on have one hash.
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

    /// Makes one change, and returns its events.
    fn change(&mut self, key: u64, change: Do) -> Vec<Event> {
        self.seam.take();
        self.seam.start(false);
        self.session.change("m", key, change).unwrap();
        let events = self.seam.take();
        events.into_iter().filter(|e| !matches!(e.access, Access::Mark(_))).collect()
    }

    /// Makes changes with one call, and returns their events.
    fn change_many(&mut self, changes: &[(u64, Do)]) -> Vec<Event> {
        self.seam.take();
        self.seam.start(false);
        self.session.change_many("m", changes).unwrap();
        let events = self.seam.take();
        events.into_iter().filter(|e| !matches!(e.access, Access::Mark(_))).collect()
    }

    /// Reads in every possible way. No read may store, flush or fence.
    fn read(&mut self, key: u64) {
        self.seam.take();
        self.seam.start(false);
        // This calls get, get_ref and get_many.
        self.session.get("m", key).unwrap();
        let counts = Counts::of(&self.seam.take());
        assert_eq!(counts, Counts::default(), "get of key {key}, {}", self.shape.form);
    }

    fn iterate(&mut self) {
        let keys: Vec<u64> = self.session.used_keys().iter().copied().collect();
        // The first touch of a segment resets its metadata. Later ones only read.
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

/// Counts lines and fences of all events.
fn cost(events: &[Event]) -> (u64, u64) {
    let counts = Counts::of(events);
    (counts.lines, counts.fences)
}

fn cost_at(events: &[Event], point: &'static Point) -> (u64, u64) {
    let at: Vec<Event> = events.iter().filter(|e| e.point == Some(point)).cloned().collect();
    cost(&at)
}

/// Counts the lines that were stored to at a commit point.
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
        let brim = (shape.structure().brim)(shape.config);
        // While the map is new, and once it has grown.
        for end in [brim, brim * 3] {
            let first = bench.session.used_keys().last().map_or(10, |last| last + 1);
            bench.fill(first..end + 10);
            (first..end + 40).for_each(|key| bench.read(key));
            bench.iterate();
        }
        let crowd = shape.structure().crowd;
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
        for (key, change) in [
            (13, Do::Insert(5)),
            (100, Do::Update(5)),
            (101, Do::Swap(5, 6)),
            (102, Do::Remove),
            (103, Do::CompareRemove(5)),
            (14, Do::CompareRemove(5)),
        ] {
            let mut events = bench.change(key, change);
            // A comparison needs the lock, which EA-PHT has in PM. The other changes are decided without.
            if key == 14 {
                events.retain(|event| event.point.is_none_or(|point| !point.volatile));
            }
            assert_eq!(Counts::of(&events), Counts::default(), "{change:?}, {shape:?}");
        }
    }
}
