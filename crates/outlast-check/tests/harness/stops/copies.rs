//! Two threads rehash clevel and one removes, in a chosen order. A copy that a removal has
//! withdrawn must not be confirmed, even though another thread has put the same record into the
//! same slot since.
//!
//! The accesses to hold a thread at are found by preliminary runs that begin in the same way but let the
//! threads go on.

use super::clevel::SMALLEST;
use super::{baton, create, inline, map};
use outlast::RecordForm;
use outlast::internals::db::store::{OpenMap, Store};
use outlast::internals::index::{Change, Previous, clevel};
use outlast::internals::pmem::{Access, Point, Traced};
use outlast_check::schedule::baton::Baton;
use outlast_check::schedule::strategy::{Pauses, Strategy};
use std::sync::Arc;

/// The threads that rehash.
const A: usize = 0;
const B: usize = 1;
const PAGES: u64 = 400;

struct Run {
    baton: Baton,
    store: Arc<Store<Traced>>,
    map: Arc<OpenMap>,
}

/// A successful exchange of a word.
struct Exchange {
    /// How many steps its thread had made before.
    step: u64,
    /// The offset of the word.
    offset: u64,
    old: u64,
    new: u64,
}

impl Run {
    /// Makes a table with a level that is due to be emptied. If a key is given, the table has only
    /// that record.
    fn new(only: Option<u64>) -> Run {
        let baton = baton();
        let seam = baton.seam();
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
        Run { baton, store, map }
    }

    /// Makes a step of rehashing.
    fn rehash(&self) {
        let _writing = self.store.core().enter().unwrap();
        inline(&self.map).step().unwrap();
    }

    /// Makes a step of rehashing in A, which is held before its step number `at`. Then B makes one.
    fn rehash_twice(&self, at: u64) {
        self.baton.during(at, || self.rehash(), |_| self.rehash()).0.unwrap();
    }

    /// Returns the first exchange of a thread at a commit point for which `is` holds.
    fn exchange(&self, thread: usize, point: &Point, is: impl Fn(&Exchange) -> bool) -> Exchange {
        let accesses = self.baton.accesses(thread).into_iter().filter(|a| a.point == point);
        let mut exchanges = accesses.filter_map(|accessed| match accessed.access {
            Access::CompareExchange { offset, found: old, new, exchanged: true } => {
                Some(Exchange { step: accessed.step, offset, old, new })
            }
            _ => None,
        });
        exchanges.find(|exchange| is(exchange)).expect("an exchange of that kind")
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
    run.rehash_twice(u64::MAX);
    let copy = run.exchange(A, &clevel::points::COPY, |_| true);
    let key = run.word(record(copy.new) + 16);

    // Find where A copies its record.
    let run = Run::new(Some(key));
    run.rehash_twice(u64::MAX);
    let copy = run.exchange(A, &clevel::points::COPY, |_| true);

    // Hold A before it looks at the slot, because it chooses by Bloom filters, which B changes.
    let before = copy.step - 2;

    // Find where B confirms its copy, if A is held before its own.
    let run = Run::new(Some(key));
    run.rehash_twice(before);
    let same = |e: &Exchange| record(e.old) == record(copy.new);
    let confirmed = run.exchange(B, &clevel::points::CONFIRM, same);
    assert_eq!(confirmed.offset, copy.offset, "both take the same slot");

    // Both are held there, and the record is removed, which withdraws B's copy. Then A copies into
    // the slot, and is held before it looks at the record again. B must not mistake A's copy for its
    // own.
    let run = &Run::new(Some(key));
    let pauses = Pauses { first: before, second: Some(confirmed.step), again: Some(copy.step + 1) };
    run.baton.begin(4, Strategy::held(pauses, 4));
    let acts: [Box<dyn FnOnce() + Send>; 4] = [
        Box::new(|| run.rehash()),
        Box::new(|| {
            run.rehash();
            assert_ne!(run.word(copy.offset), record(copy.new) | copy.new & 0x3fff << 48);
        }),
        Box::new(|| assert_eq!(record(run.word(copy.offset)), record(copy.new))),
        Box::new(|| {
            let removed = inline(&run.map).change(key, Change::Remove, Previous::UNWANTED);
            assert!(removed.unwrap().applied);
            assert_eq!(run.word(copy.offset), 0);
        }),
    ];
    run.baton.play(acts).into_iter().for_each(|done| done.unwrap());
    assert_ne!(record(run.word(copy.offset)), record(copy.new), "a slot of a removed record");
    assert_eq!(inline(&run.map).get(key).unwrap(), None);
}
