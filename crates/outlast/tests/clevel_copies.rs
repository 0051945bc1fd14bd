//! Two threads that rehash clevel and one that removes, in an order that was chosen: a copy that
//! a removal has withdrawn is not confirmed, though another thread has put the same record into
//! the same slot since.
//!
//! Method: threads A and B stop before the accesses that they are told to stop before. Which
//! those are is found by runs of the same beginning that let them go on.

mod clevel_table;

use clevel_table::index;
use outlast::db::store::{OpenMap, Store};
use outlast::index::{Change, clevel};
use outlast::pmem::{Access, Control, Point, Traced};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, yield_now};

thread_local! { static ROLE: Cell<Option<usize>> = const { Cell::new(None) }; }
const A: usize = 0;
const B: usize = 1;
const PAGES: u64 = 400;

/// An exchange of a slot while rehashing.
#[derive(Clone, Copy)]
struct Exchange {
    role: usize,
    /// How many accesses its thread had made before.
    index: u64,
    point: &'static Point,
    place: u64,
    old: u64,
    new: u64,
}

#[derive(Default)]
struct Script {
    count: [AtomicU64; 2],
    limit: [AtomicU64; 2],
    exchanges: Mutex<Vec<Exchange>>,
}

#[derive(Clone, Default)]
struct Hook(Arc<Script>);

impl Control for Hook {
    fn before(&self, _: usize, waiting: bool) {
        let Some(role) = ROLE.get().filter(|_| !waiting) else { return yield_now() };
        let index = self.0.count[role].fetch_add(1, SeqCst);
        while index >= self.0.limit[role].load(SeqCst) {
            yield_now();
        }
    }

    fn after(&self, access: &Access, at: Option<&'static Point>) {
        if let (Some(role), Some(point)) = (ROLE.get(), at)
            && let Access::CompareExchange { offset, found: old, new, exchanged: true, .. } =
                *access
        {
            let index = self.0.count[role].load(SeqCst) - 1;
            let exchange = Exchange { role, index, point, place: offset, old, new };
            self.0.exchanges.lock().unwrap().push(exchange);
        }
    }
}

impl Hook {
    /// Lets a thread make its accesses before this one, and waits until it has.
    fn run_to(&self, role: usize, index: u64) {
        self.0.limit[role].store(index, SeqCst);
        while self.0.count[role].load(SeqCst) <= index {
            yield_now();
        }
    }

    fn finish(&self, role: usize, thread: JoinHandle<()>) {
        self.0.limit[role].store(u64::MAX, SeqCst);
        thread.join().unwrap();
    }

    fn exchange(&self, role: usize, point: &Point, of: impl Fn(&Exchange) -> bool) -> Exchange {
        let exchanges = self.0.exchanges.lock().unwrap();
        let found =
            exchanges.iter().find(|e| e.role == role && e.point.name == point.name && of(e));
        *found.expect("an exchange of that kind")
    }
}

struct Run {
    hook: Hook,
    store: Arc<Store<Traced>>,
    map: Arc<OpenMap>,
}

impl Run {
    /// A table that has a level to be emptied; with one record, if a key is given.
    fn new(only: Option<u64>) -> Run {
        let hook = Hook::default();
        let seam = Traced::with_control(Box::new(hook.clone()));
        seam.start(false);
        let (store, map) = clevel_table::new(seam, PAGES);
        let mut key = 1;
        while index(&map).stats().unwrap().segments < 3 {
            assert!(index(&map).change(key, Change::Insert(key + 7), false).unwrap().applied);
            key += 1;
        }
        for other in (1..key).filter(|key| only.is_some_and(|only| *key != only)) {
            assert!(index(&map).change(other, Change::Remove, false).unwrap().applied);
        }
        Run { hook, store, map }
    }

    /// A thread that makes a step of rehashing.
    fn rehash(&self, role: usize) -> JoinHandle<()> {
        let (store, map) = (Arc::clone(&self.store), Arc::clone(&self.map));
        std::thread::spawn(move || {
            let _writing = store.core().enter().unwrap();
            ROLE.set(Some(role));
            index(&map).step().unwrap();
            ROLE.set(None);
        })
    }

    fn word(&self, offset: u64) -> u64 {
        let memory = &self.store.core().memory;
        memory.load(&memory.words(offset, 8).unwrap()[0])
    }
}

/// The offset of the record that a slot's word is of, copies' included.
fn record(word: u64) -> u64 {
    word & ((1 << 48) - 16)
}

#[test]
fn a_copy_is_confirmed_by_its_maker_alone() {
    // A key in the level that is emptied.
    let run = Run::new(None);
    run.hook.finish(A, run.rehash(A));
    let copy = run.hook.exchange(A, &clevel::points::COPY, |_| true);
    let key = run.word(record(copy.new) + 16);

    // Where A copies its record.
    let run = Run::new(Some(key));
    run.hook.finish(A, run.rehash(A));
    let copy = run.hook.exchange(A, &clevel::points::COPY, |_| true);

    // Before it looks at the slot, for it chooses by notes, which B changes.
    let before = copy.index - 2;

    // Where B confirms its copy, if A has stopped before its own.
    let run = Run::new(Some(key));
    let a = run.rehash(A);
    run.hook.run_to(A, before);
    run.hook.finish(B, run.rehash(B));
    let same = |e: &Exchange| record(e.old) == record(copy.new);
    let confirmed = run.hook.exchange(B, &clevel::points::CONFIRM, same);
    assert_eq!(confirmed.place, copy.place, "both take the same slot");
    run.hook.finish(A, a);

    // Both stop there, and the record is removed: the removal withdraws B's copy.
    let run = Run::new(Some(key));
    let a = run.rehash(A);
    run.hook.run_to(A, before);
    let b = run.rehash(B);
    run.hook.run_to(B, confirmed.index);
    assert!(index(&run.map).change(key, Change::Remove, false).unwrap().applied);
    assert_eq!(run.word(copy.place), 0);
    // A copies into the slot, and stops before it looks at the record again.
    run.hook.run_to(A, copy.index + 1);
    assert_eq!(record(run.word(copy.place)), record(copy.new));
    // B must not take A's copy for its own.
    run.hook.finish(B, b);
    assert_ne!(run.word(copy.place), record(copy.new) | copy.new & 0x3fff << 48);
    run.hook.finish(A, a);
    assert_ne!(record(run.word(copy.place)), record(copy.new), "a slot of a removed record");
    assert_eq!(index(&run.map).get(key).unwrap(), None);
}
