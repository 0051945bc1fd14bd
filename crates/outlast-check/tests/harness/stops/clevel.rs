//! A thread of clevel is held before each of its accesses in turn. Meanwhile another thread does
//! much work: many inserts, expansions, rehashing, dropped levels, and reuse of the freed blocks.
//! Then the first thread continues. Nothing may be lost, and no operation may fail.
//!
//! The second thread has to replace the context twice while the first is between two accesses.

use super::{baton, create, inline, map};
use outlast::RecordForm;
use outlast::internals::db::store::{OpenMap, Store};
use outlast::internals::index::clevel::{self, points};
use outlast::internals::index::{Change, Index, Inline, Previous};
use outlast::internals::pmem::Traced;
use outlast_check::schedule::baton::Baton;
use std::sync::Arc;

const PAGES: u64 = 1024;
/// The smallest levels.
pub(super) const SMALLEST: clevel::Config = clevel::Config { first_bits: 1, group_bits: 1 };

/// A map of clevel with the smallest levels.
#[derive(Clone)]
struct Table {
    store: Arc<Store<Traced>>,
    map: Arc<OpenMap>,
}

impl Table {
    fn new(baton: &Baton) -> Table {
        let store = create(&baton.seam(), PAGES, 1);
        let map = map(&store, RecordForm::Inline, SMALLEST);
        Table { store, map }
    }

    /// Makes a map with keys from 1 to `keys`.
    fn filled(baton: &Baton, keys: u64, steps: bool) -> Table {
        let table = Table::new(baton);
        for key in 1..=keys {
            table.insert(key, steps);
        }
        table
    }

    fn index(&self) -> &dyn Index<Inline> {
        inline(&self.map)
    }

    fn insert(&self, key: u64, steps: bool) {
        let changed = self.index().change(key, Change::Insert(key + 7), Previous::UNWANTED);
        assert!(changed.unwrap().applied, "{key} was there");
        if steps {
            self.rest();
        }
    }

    fn rest(&self) {
        let _writing = self.store.core().enter().unwrap();
        while self.index().step().unwrap() {}
    }

    fn expansions(&self) -> u64 {
        self.index().stats().unwrap().splits
    }

    /// Allocates free blocks and stores something else in them.
    fn use_what_is_free(&self) {
        let core = self.store.core();
        core.collect();
        for bytes in (2..8).map(|bits| 128 + (64 << bits)) {
            for _ in 0..40 {
                let Ok(block) = core.allocate(bytes) else { break };
                let words = core.memory.words(block.offset, 8).unwrap();
                core.memory.store(&words[0], 77, &points::RECORD);
            }
        }
    }
}

/// Returns the number of keys before the insert that expands for the `n`th time.
fn before_expansion(n: u64, steps: bool) -> u64 {
    let table = Table::new(&baton());
    let mut keys = 0;
    while table.expansions() < n {
        keys += 1;
        table.insert(keys, steps);
    }
    keys - 1
}

/// Holds `first` before each of its accesses while `concurrent` runs to its end. Then keys from 1 to
/// `keys + more` must be present. Returns the number of its accesses.
fn each_step(
    name: &str,
    (keys, more, steps): (u64, u64, bool),
    first: impl Fn(&Table) + Sync,
    concurrent: impl Fn(&Table),
) -> u64 {
    let run = |at: u64| {
        let baton = baton();
        let table = Table::filled(&baton, keys, steps);
        let (done, held) = baton.during(
            at,
            || first(&table),
            |held| {
                if held {
                    concurrent(&table);
                }
                held
            },
        );
        assert!(done.is_ok(), "{name}, step {at}: the held thread panicked");
        (baton.own_steps(0), held, table)
    };
    let (accesses, ..) = run(u64::MAX);
    for at in 0..accesses {
        let (_, held, table) = run(at);
        assert!(held, "{name}: no step {at}");
        let lost: Vec<u64> = (1..=keys + more)
            .filter(|&key| table.index().get(key).unwrap() != Some(key + 7))
            .collect();
        assert!(lost.is_empty(), "{name}, step {at}: {} keys lost: {lost:?}", lost.len());
    }
    accesses
}

#[test]
fn an_insert_that_expands() {
    const MORE: u64 = 200;
    for (n, steps) in [(1, false), (2, true), (3, true), (3, false)] {
        let keys = before_expansion(n, steps);
        let accesses = each_step(
            "expansion",
            (keys, MORE, steps),
            |table| table.insert(0, false),
            move |table| (1..=MORE).for_each(|more| table.insert(keys + more, true)),
        );
        assert!(accesses > 50, "{accesses} accesses");
    }
}

#[test]
fn an_insert_that_takes_the_level_kept_ready() {
    const MORE: u64 = 300;
    for n in [3, 4] {
        let keys = before_expansion(n, true);
        each_step(
            "ready",
            (keys, MORE, true),
            move |table| table.insert(keys + 1, false),
            move |table| {
                (2..=MORE).for_each(|more| table.insert(keys + more, true));
                table.use_what_is_free();
            },
        );
    }
}

#[test]
fn background_steps() {
    const MORE: u64 = 200;
    let keys = before_expansion(3, true);
    let accesses = each_step(
        "steps",
        (keys, MORE, true),
        |table| {
            table.insert(0, false);
            table.rest();
        },
        move |table| (1..=MORE).for_each(|more| table.insert(keys + more, true)),
    );
    assert!(accesses > 500, "{accesses} accesses");
}

#[test]
fn lookups_of_many_beside_background_steps() {
    let keys = before_expansion(3, true);
    each_step(
        "get_many",
        (keys, 0, true),
        |table| {
            table.insert(0, false);
            table.rest();
        },
        move |table| {
            let all: Vec<u64> = (1..=keys).collect();
            let mut found = vec![None; all.len()];
            table.index().get_many(&all, &mut found).unwrap();
            assert!(all.iter().zip(&found).all(|(key, found)| *found == Some(key + 7)));
        },
    );
}
