//! Leaves and inner nodes while a thread changes them.

mod strings;

use super::{Config, Phast, bugs, points};
use crate::error::{Damage, Error};
use crate::index::kit::change::{change, change_many};
use crate::index::kit::interleaved::{Interleaved, pool_of};
use crate::index::kit::table::{HashedKey, Lookup, Walk};
use crate::index::record::SlotWords;
use crate::index::{Care, Change, Cursor, Inline, Previous};
use crate::pmem::{Access, Control, Event, FlushMode, Point, Real, Seeded, Traced};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

type Index = Phast<Traced, Inline>;

/// Makes an index in a pool of its own.
fn config(leaf_slots: u32, node_leaves: u32, partitions: u32) -> Config {
    Config { leaf_slots, node_leaves, partitions, ..Config::default() }
}

fn index(seam: Traced, shape: Config) -> Index {
    let core = pool_of(seam, |core| Index::create(core, shape).unwrap());
    Index::open(&core, 0, shape).unwrap()
}

fn inserts(index: &Index, key: u64, value: u64) -> bool {
    change(index, key, Change::Insert(value), Previous::UNWANTED).unwrap().applied
}

/// Before each access, checks that no leaf is in two nodes that readers can use.
#[derive(Clone, Default)]
struct Watch(Arc<Watched>);

#[derive(Default)]
struct Watched {
    index: OnceLock<Index>,
    /// The most nodes that had leaves at any time.
    nodes: AtomicU64,
}

impl Control for Watch {
    fn before(&self, _: usize, _: bool) {
        let Some(index) = self.0.index.get() else { return };
        let (seam, mut seen, mut nodes) = (Real::new(FlushMode::None), HashMap::new(), 0);
        // The test makes no more nodes than this. The index's own accesses go on meanwhile, so this
        // takes none of its mutexes.
        for number in 0..32 {
            let Some(node) = index.nodes.made(&seam, number) else { continue };
            if node.is_changing(&seam) {
                continue;
            }
            nodes += u64::from(node.len(&seam) > 0);
            for entry in node.entries(&seam) {
                let other = seen.insert(entry.leaf, number);
                assert!(other.is_none(), "leaf {} is in nodes {other:?} and {number}", entry.leaf);
            }
        }
        self.0.nodes.fetch_max(nodes, Ordering::Relaxed);
    }
}

/// Two threads that come to a leaf through different nodes do not exclude each other. A thread can
/// come to any node at any time, because it can have an old hint, and numbers of nodes are reused.
#[test]
fn a_leaf_is_never_in_two_nodes_that_can_be_read() {
    let watch = Watch::default();
    let seam = Traced::with_control(Box::new(watch.clone()));
    let index = index(seam, config(4, 4, 2));
    assert!(watch.0.index.set(index).is_ok());
    let index = watch.0.index.get().unwrap();
    for _ in 0..3 {
        for key in 0..60 {
            let key = key * 7 % 60;
            assert!(inserts(index, key, key));
        }
        for key in 0..60 {
            assert!(change(index, key, Change::Remove, Previous::UNWANTED).unwrap().applied);
        }
    }
    let (nodes, splits) =
        (watch.0.nodes.load(Ordering::Relaxed), index.counters.growth().doublings);
    assert!((4..32).contains(&nodes) && splits > nodes, "{nodes} nodes, {splits} splits");
}

/// Inserts a key as soon as another insert of the same key has stored its pair.
#[derive(Clone, Default)]
struct Overtake(Arc<Overtaking>);

#[derive(Default)]
struct Overtaking {
    index: OnceLock<Index>,
    /// Whether the first insert has stored its pair.
    stored: AtomicBool,
    done: AtomicBool,
}

impl Overtake {
    const KEY: u64 = 500;
}

impl Control for Overtake {
    fn before(&self, _: usize, _: bool) {
        let Some(index) = self.0.index.get() else { return };
        if self.0.stored.load(Ordering::Relaxed) && !self.0.done.swap(true, Ordering::Relaxed) {
            assert!(inserts(index, Overtake::KEY, 2));
        }
    }

    fn after(&self, access: &Access, at: Option<&'static Point>) {
        let is_key = matches!(access, Access::Store { value: Overtake::KEY, .. });
        if is_key && at == Some(&points::INSERT_PAIR) {
            self.0.stored.store(true, Ordering::Relaxed);
        }
    }
}

/// Of two inserts of one key, the second one to commit is given up. Its pair is in a slot by then.
/// If that slot became free, a crash in a later insert into it could bring the pair back.
#[test]
fn a_slot_with_the_pair_of_an_insert_that_was_given_up_is_not_free() {
    let not_blank = |bug| {
        let overtake = Overtake::default();
        let seam = Traced::seeding(bug, || Traced::with_control(Box::new(overtake.clone())));
        seam.start(false);
        assert!(overtake.0.index.set(index(seam, config(8, 4, 2))).is_ok());
        let index = overtake.0.index.get().unwrap();
        // The last leaf has blank slots.
        for key in 1..12 {
            assert!(inserts(index, key * 10, 1));
        }
        assert!(!inserts(index, Overtake::KEY, 3), "the other insert came first");
        assert!(overtake.0.done.load(Ordering::Relaxed));
        let at = index.locate(Overtake::KEY).unwrap();
        let leaf = index.leaf(at.leaf);
        assert_eq!(leaf.free_slots_are(index.seam()), super::state::BLANK);
        index.not_blank(leaf).len()
    };
    assert_eq!(not_blank(None), 0);
    assert_eq!(not_blank(Some(Seeded::InCode(&bugs::GIVEN_UP_FREED))), 1);
}

/// Reads the whole index when a split has made a first slot blank.
#[derive(Clone, Default)]
struct Scan(Arc<Scanning>);

#[derive(Default)]
struct Scanning {
    index: OnceLock<Index>,
    /// Whether a slot is blank and its bit is still set.
    is_due: AtomicBool,
    /// How many scans there were.
    scans: AtomicU64,
}

impl Control for Scan {
    fn before(&self, _: usize, _: bool) {
        let Some(index) = self.0.index.get() else { return };
        if !self.0.is_due.swap(false, Ordering::Relaxed) {
            return;
        }
        self.0.scans.fetch_add(1, Ordering::Relaxed);
        for care in [Care::Check, Care::Salvage] {
            let (mut cursor, mut found) = (Cursor::with_care(care), Vec::new());
            while !cursor.is_done() {
                index.scan(&mut cursor, &mut found).unwrap();
            }
            assert!(cursor.lost.is_empty(), "{:?}", cursor.lost);
            let keys: Vec<u64> = found.iter().map(|(key, _)| *key / 10).collect();
            assert_eq!(keys, (1..=keys.len() as u64).collect::<Vec<_>>());
        }
    }

    fn after(&self, access: &Access, at: Option<&'static Point>) {
        if matches!(access, Access::Store { .. }) && at == Some(&points::SPLIT_BLANK) {
            self.0.is_due.store(true, Ordering::Relaxed);
        }
    }
}

/// A slot becomes blank before its bit is cleared. A scan that checks records must not take it for a
/// damaged one.
#[test]
fn a_split_is_no_damage_to_a_scan_beside_it() {
    let scan = Scan::default();
    let seam = Traced::with_control(Box::new(scan.clone()));
    seam.start(false);
    assert!(scan.0.index.set(index(seam, config(8, 4, 2))).is_ok());
    let index = scan.0.index.get().unwrap();
    for key in 1..100 {
        assert!(inserts(index, key * 10, 1));
    }
    assert!(scan.0.scans.load(Ordering::Relaxed) > 10);
}

/// Splits the leaf of key 40, unless a thread has announced itself there: the split would wait for it.
fn split_leaf(index: &Index) -> bool {
    let state = index.leaf(index.locate(40).unwrap().leaf).state(index.seam());
    let is_possible = !state.is_busy() && !state.has_inserts();
    assert!(!is_possible || (21..25).all(|key| inserts(index, key, key)));
    is_possible
}

/// A batch finds the places of its keys before it changes them.
#[test]
fn a_batch_changes_keys_that_a_split_has_moved_meanwhile() {
    let changes = [Change::Remove, Change::Update(1), Change::Put(1)];
    for (what, after) in changes.into_iter().zip([None, Some(1), Some(1)]) {
        let mut splits = 0;
        for access in 1.. {
            let interleaved = Interleaved::new(|seam| index(seam, config(4, 4, 2)), split_leaf);
            let index = interleaved.index();
            assert!([10, 20, 30, 40].into_iter().all(|key| inserts(index, key, key)));
            let before = index.locate(40).unwrap().leaf;
            let mut done = Vec::new();
            let goes_on = interleaved.run(access, |index| {
                change_many(index, &[40], &[what], &mut done).unwrap();
            });
            let key = HashedKey::new(&index.core, 40);
            assert!(done[0].applied && done[0].present, "{what:?}, access {access}");
            assert_eq!(index.value(key).unwrap(), after, "{what:?}, access {access}");
            if interleaved.happened() {
                assert_ne!(index.locate(40).unwrap().leaf, before, "the key has moved");
                splits += 1;
            }
            if !goes_on {
                break;
            }
        }
        assert!(splits > 10, "{splits} splits during {what:?}");
    }
}

/// A split or merge that meets damage marks its leaf. A thread that read the leaf's offset and state
/// before that must not be able to change the leaf.
#[test]
fn a_leaf_that_was_marked_as_damaged_is_not_changed() {
    let index = index(Traced::new(), config(4, 4, 2));
    assert!(inserts(&index, 10, 1));
    let handle = index.locate(10).unwrap().leaf;
    let leaf = index.leaf(handle);
    let before = leaf.state(index.seam());
    let mut closed = index.close(handle).unwrap().unwrap();
    let error = Error::Damaged(Damage::new(8, "a sound node", "another".to_owned()));
    index.set_damaged(&mut closed, &error);
    drop(closed);
    assert!(!leaf.exchange(index.seam(), before, before.inserting(1)));
    assert!(
        matches!(index.value(HashedKey::new(&index.core, 10)), Err(error) if error.is_damage())
    );
}

/// Begins an insert of key 40 that stores its pair and its bit, and then stops, before it has made the
/// bit durable.
fn begin_insert(index: &Index) -> bool {
    let (at, key) = (index.locate(40).unwrap(), HashedKey::new(&index.core, 40));
    let offset = index.leaf(at.leaf).offset(index.seam());
    let Ok(reserved) = index.reserve(&at, index.leaf(at.leaf), offset, key).unwrap() else {
        return false;
    };
    let words = SlotWords { first: 40, second: 4 };
    index.fill(at.leaf, offset, reserved, words, key).unwrap()
}

/// What a batch changes is durable when it returns, even if another thread has just inserted the key.
#[test]
fn a_batch_makes_the_insert_durable_whose_key_it_changes() {
    let mut met = 0;
    let changes = [Change::Update(5), Change::Swap { expected: 9, new: 5 }];
    for (change, access) in
        changes.into_iter().flat_map(|change| (1..80).map(move |access| (change, access)))
    {
        let interleaved = Interleaved::new(|seam| index(seam, config(8, 4, 2)), begin_insert);
        let index = interleaved.index();
        assert!([10, 20, 30].into_iter().all(|key| inserts(index, key, key)));
        let bitmap = &index.header(index.leaf(0).offset(index.seam())).head.bitmap;
        let bitmap = index.core.memory.offset_of(bitmap).raw();
        let mut done = Vec::new();
        index.seam().start(false);
        interleaved.run(access, |index| change_many(index, &[40], &[change], &mut done).unwrap());
        let events = index.seam().take();
        if !done[0].present {
            continue;
        }
        met += 1;
        let is_set = |event: &Event| match event.access {
            Access::CompareExchange { offset, exchanged, .. } => exchanged && offset == bitmap,
            _ => false,
        };
        let set = events.iter().position(is_set).unwrap();
        let is_flush = |event: &Event| match event.access {
            Access::Flush { offset, bytes } => (offset..offset + bytes).contains(&bitmap),
            _ => false,
        };
        let flushed = events[set..].iter().position(is_flush).expect("the bit is flushed");
        let fence = |event: &Event| matches!(event.access, Access::Fence);
        assert!(events[set + flushed..].iter().any(fence), "access {access}");
    }
    assert!(met > 10, "{met} inserts were met");
}
