//! Two threads rehash clevel and one removes, in a chosen order. A copy that a removal has
//! withdrawn must not be confirmed, even though another thread has put the same record into the
//! same slot since.
//!
//! The accesses to stop at are found by preliminary runs that begin in the same way but let the
//! threads go on.

use super::clevel::SMALLEST;
use super::{create, inline, map};
use outlast::RecordForm;
use outlast::internals::db::store::{OpenMap, Store};
use outlast::internals::index::{Change, Previous, clevel};
use outlast::internals::pmem::{Point, Traced};
use outlast_check::stop::{Exchange, Role, Stops};
use std::sync::Arc;
use std::thread::{ScopedJoinHandle, scope};

const A: Role = Role::First;
const B: Role = Role::Second;
const PAGES: u64 = 400;

struct Run {
    stops: Stops,
    store: Arc<Store<Traced>>,
    map: Arc<OpenMap>,
}

impl Run {
    /// Makes a table with a level that is due to be emptied. If a key is given, the table has only
    /// that record.
    fn new(only: Option<u64>) -> Run {
        let stops = Stops::default();
        let seam = stops.seam();
        seam.start(false);
        let store = create(&seam, PAGES, 1);
        let map = map(&store, RecordForm::Inline, SMALLEST);
        let mut key = 1;
        while inline(&map).stats().unwrap().segments < 3 {
            assert!(
                inline(&map)
                    .change(key, Change::Insert(key + 7), Previous::UNWANTED)
                    .unwrap()
                    .applied
            );
            key += 1;
        }
        for other in (1..key).filter(|key| only.is_some_and(|only| *key != only)) {
            assert!(
                inline(&map).change(other, Change::Remove, Previous::UNWANTED).unwrap().applied
            );
        }
        Run { stops, store, map }
    }

    /// Makes a step of rehashing.
    fn rehash(&self, role: Role) {
        let _writing = self.store.core().enter().unwrap();
        Stops::play(role, || inline(&self.map).step().unwrap());
    }

    /// Lets a thread run to its end.
    fn finish(&self, role: Role, thread: ScopedJoinHandle<'_, ()>) {
        self.stops.release(role);
        thread.join().unwrap();
    }

    fn exchange(&self, role: Role, point: &Point, is: impl Fn(&Exchange) -> bool) -> Exchange {
        self.stops.exchange(role, point, is).expect("an exchange of that kind")
    }

    fn word(&self, offset: u64) -> u64 {
        let memory = &self.store.core().memory;
        memory.load(&memory.words(offset, 8).unwrap()[0])
    }
}

/// Returns the offset of the record in a slot's word, which may be a copy.
fn record(word: u64) -> u64 {
    word & ((1 << 48) - 16)
}

#[test]
fn a_copy_is_confirmed_by_its_maker_alone() {
    // Find a key in the level that is emptied.
    let run = Run::new(None);
    run.rehash(A);
    let copy = run.exchange(A, &clevel::points::COPY, |_| true);
    let key = run.word(record(copy.new) + 16);

    // Find where A copies its record.
    let run = Run::new(Some(key));
    run.rehash(A);
    let copy = run.exchange(A, &clevel::points::COPY, |_| true);

    // Stop before A looks at the slot, because it chooses by Bloom filters, which B changes.
    let before = copy.access - 2;

    // Find where B confirms its copy, if A has stopped before its own.
    let run = Run::new(Some(key));
    run.stops.limit(A, before);
    scope(|scope| {
        let a = scope.spawn(|| run.rehash(A));
        run.stops.await_stop(A, &a);
        run.rehash(B);
        run.finish(A, a);
    });
    let same = |e: &Exchange| record(e.old) == record(copy.new);
    let confirmed = run.exchange(B, &clevel::points::CONFIRM, same);
    assert_eq!(confirmed.offset, copy.offset, "both take the same slot");

    // Both stop there, and the record is removed. The removal withdraws B's copy.
    let run = Run::new(Some(key));
    run.stops.limit(A, before);
    run.stops.limit(B, confirmed.access);
    scope(|scope| {
        let a = scope.spawn(|| run.rehash(A));
        run.stops.await_stop(A, &a);
        let b = scope.spawn(|| run.rehash(B));
        run.stops.await_stop(B, &b);
        assert!(inline(&run.map).change(key, Change::Remove, Previous::UNWANTED).unwrap().applied);
        assert_eq!(run.word(copy.offset), 0);
        // A copies into the slot, and stops before it looks at the record again.
        assert!(run.stops.run_to(A, copy.access + 1, &a));
        assert_eq!(record(run.word(copy.offset)), record(copy.new));
        // B must not mistake A's copy for its own.
        run.finish(B, b);
        assert_ne!(run.word(copy.offset), record(copy.new) | copy.new & 0x3fff << 48);
        run.finish(A, a);
    });
    assert_ne!(record(run.word(copy.offset)), record(copy.new), "a slot of a removed record");
    assert_eq!(inline(&run.map).get(key).unwrap(), None);
}
