//! PhaST with one thread held before each of its memory accesses while others work. Each test
//! guards against a bug that PhaST used to have.

use super::{baton, bytes as index, create, left_by, map, open};
use outlast::RecordForm;
use outlast::internals::db::store::{OpenMap, Store};
use outlast::internals::index::phast::bugs;
use outlast::internals::index::{Bytes, Change, Cursor, Index, KeyRange, Previous, phast};
use outlast::internals::pmem::{Seeded, Traced};
use outlast_check::schedule::baton::Baton;
use outlast_check::schedule::strategy::{Pauses, Strategy};
use outlast_check::session::recorder;
use std::ops::Bound;
use std::sync::Arc;

/// A map of byte strings, with leaves of `slots` pairs.
struct Table {
    baton: Baton,
    seam: Traced,
    map: Arc<OpenMap>,
    _store: Arc<Store<Traced>>,
}

fn small(leaf_slots: u32) -> phast::Config {
    phast::Config { leaf_slots, node_leaves: 4, partitions: 4, ..Default::default() }
}

impl Table {
    fn new(slots: u32) -> Table {
        let baton = baton();
        let seam = baton.seam();
        seam.start(false);
        let store = create(&seam, 128, 1);
        let map = map(&store, RecordForm::Bytes, small(slots));
        Table { baton, seam, map, _store: store }
    }

    fn index(&self) -> &dyn Index<Bytes> {
        index(&self.map)
    }
}

/// Returns all records.
fn records(index: &dyn Index<Bytes>) -> outlast::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut cursor, mut found) = (Cursor::start(), Vec::new());
    while !cursor.is_done() {
        index.scan(&mut cursor, &mut found)?;
    }
    Ok(found)
}

fn change(index: &dyn Index<Bytes>, key: &[u8], change: Change<'_, Bytes>) -> bool {
    index.change(key, change, Previous::UNWANTED).unwrap().applied
}

/// Tries each pair of moments of one thread's insert. At the first, another thread inserts the same
/// key. At the second, it replaces that record until the block of the first record is reused.
/// Returns whether any such pair leaves the key in the table twice.
fn a_key_can_stand_twice(put: bool) -> bool {
    for first in 0.. {
        for second in first + 1.. {
            let table = Table::new(16);
            for key in [b"zz", b"aa", b"bb"] {
                change(table.index(), key, Change::Insert(&[9; 20][..]));
            }
            let mine = if put { Change::Put(&[3; 20][..]) } else { Change::Insert(&[3; 20][..]) };
            let index = table.index();
            let pauses = Pauses { first, second: None, again: Some(second) };
            table.baton.begin(3, Strategy::held(pauses, 3));
            let acts: [Box<dyn FnOnce() + Send>; 3] = [
                Box::new(|| {
                    change(index, b"kk", mine);
                }),
                Box::new(|| {
                    change(index, b"kk", Change::Insert(&[1; 20][..]));
                }),
                Box::new(|| {
                    change(index, b"kk", Change::Put(&[2; 20][..]));
                    for value in 0..40 {
                        change(index, b"zz", Change::Put(&[value; 20][..]));
                    }
                }),
            ];
            table.baton.play(acts).into_iter().for_each(|done| done.unwrap());
            let steps = table.baton.own_steps(0);
            if records(table.index()).unwrap().iter().filter(|(key, _)| key == b"kk").count() > 1 {
                return true;
            }
            match steps {
                _ if steps <= first => return false,
                _ if steps <= second => break,
                _ => {}
            }
        }
    }
    unreachable!("it ends with the accesses");
}

/// The bug: the insert compared its key with whatever the block held by then, did not find the key
/// there, and continued, because the bits had not changed.
#[test]
fn a_key_that_is_replaced_beside_an_insert_of_it_stands_once() {
    for put in [false, true] {
        assert!(!a_key_can_stand_twice(put));
    }
    let bug = Some(Seeded::InCode(&bugs::INSERT_READS_FREED));
    assert!(Traced::seeding(bug, || a_key_can_stand_twice(false)), "this test finds it");
}

/// Returns the key of the first record, or of the last, as the typed map does.
fn end(index: &dyn Index<Bytes>, reverse: bool) -> Option<Vec<u8>> {
    let range = KeyRange::<Bytes>::new(Bound::Unbounded, Bound::Unbounded);
    index.ordered().unwrap().end(range, reverse).unwrap().map(|(key, _)| key)
}

/// The leaf at the end is empty. Another thread inserts a record into it, and then removes the end
/// record of the next leaf. So the record behind that one is never the first or the last.
#[test]
fn the_first_and_the_last_are_so_at_some_moment() {
    for reverse in [false, true] {
        let mut found = 0;
        for access in 0.. {
            let table = Table::new(4);
            let key = |n: u8| vec![b'b' + n];
            for n in 0..12 {
                change(table.index(), &key(n), Change::Insert(&[n][..]));
            }
            let emptied = if reverse { 9..12 } else { 0..3 };
            emptied.for_each(|n| assert!(change(table.index(), &key(n), Change::Remove)));
            let gone = end(table.index(), reverse).unwrap();
            let never = vec![if reverse { gone[0] - 1 } else { gone[0] + 1 }];
            let others = |held| {
                let key = if reverse { b"z" } else { b"a" };
                change(table.index(), key, Change::Insert(&[1][..]));
                change(table.index(), &gone, Change::Remove);
                held
            };
            let act = || end(table.index(), reverse);
            let (answer, held) = table.baton.during(access, act, others);
            let answer = answer.unwrap();
            found += u64::from(answer == Some(never));
            if !held {
                break;
            }
        }
        assert_eq!(found, 0, "reverse: {reverse}");
    }
}

/// A thread splits a leaf. At each of its accesses, another thread removes a record of the upper
/// half, and updates a record of another leaf until that one is in the removed record's block. Then
/// the process dies. Returns whether there is a moment at which this leaves wrong contents.
fn a_split_can_leave_what_it_moved() -> bool {
    for access in 0.. {
        let table = Table::new(4);
        let key = |n: u8| vec![b'a' + n];
        for n in 0..=12 {
            change(table.index(), &key(n), Change::Insert(&[n; 20][..]));
        }
        // Inserts into the last leaf, which is full. The keys ascend, so the split moves only the
        // leaf's greatest key to the new leaf.
        let act = || {
            (13..15).for_each(|n| {
                change(table.index(), &key(n), Change::Insert(&[n; 20][..]));
            })
        };
        let (done, events) = table.baton.during(access, act, |held| {
            assert!(change(table.index(), &key(12), Change::Remove));
            for value in 0..40 {
                change(table.index(), &key(0), Change::Put(&[value; 20][..]));
            }
            held.then(|| table.seam.take())
        });
        done.unwrap();
        let Some(events) = events else { return false };
        let [_, file] = left_by(&events);
        let store = open(&file, recorder(false));
        let map = store.open_map("m").unwrap();
        // A block that holds another record by now can also show up as damage.
        let Ok(found) = records(index(&map)) else { return true };
        let of = |n: u8| found.iter().filter(|(found, _)| *found == key(n)).count();
        let is_right = found.is_sorted()
            && of(12) == 0
            && (0..12).all(|n| of(n) == 1)
            && found.iter().any(|(found, value)| *found == key(0) && value[..] == [39; 20])
            && outlast::internals::db::verify::verify(&store)
                .unwrap()
                .all_damage()
                .next()
                .is_none();
        if !is_right {
            return true;
        }
    }
    unreachable!("it ends with the accesses");
}

/// The bug: opening identified the pairs that were moved out of the lower half by the keys that
/// they led to. By then, one of them led to a record of another leaf.
#[test]
fn what_a_split_has_moved_is_in_one_leaf_after_a_crash() {
    assert!(!a_split_can_leave_what_it_moved());
    let bug = Some(Seeded::InCode(&bugs::SPLIT_OPENED_EARLY));
    assert!(Traced::seeding(bug, a_split_can_leave_what_it_moved), "this test finds it");
}
