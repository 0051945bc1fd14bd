//! Dash-EH, and the pool below it: one thread is held before a memory access, another works
//! until its operation returns, and then there is a crash. Two files are tried: the least that a
//! power loss leaves, and everything, as process death leaves it. The pool must open from both, and
//! agree with what the second thread's operation returned.

use super::{baton, bytes, create, inline, left_by, map, open};
use outlast::RecordForm::{Bytes, Inline};
use outlast::internals::db::store::{OpenMap, Store};
use outlast::internals::index::{Change, Cursor, Previous, dash_eh};
use outlast::internals::pmem::{Access, Event, Traced};
use outlast_check::schedule::baton::{Accessed, Baton};
use outlast_check::session::recorder;
use std::sync::Arc;

const SMALLEST: dash_eh::Config = dash_eh::Config { bucket_bits: 1, stash_buckets: 2 };

/// Returns how many steps an operation makes before the first access at a commit point for which
/// `is` holds.
fn find(baton: &Baton, act: impl FnOnce() + Send, is: impl Fn(&Accessed) -> bool) -> Option<u64> {
    baton.during(u64::MAX, act, |_| ()).0.unwrap();
    baton.accesses(0).iter().find(|accessed| is(accessed)).map(|accessed| accessed.step)
}

fn flushes(accessed: &Accessed, name: &str) -> bool {
    accessed.point.name == name && matches!(accessed.access, Access::Flush { .. })
}

fn insert(map: &OpenMap, key: u64, value: u64) -> bool {
    inline(map).change(key, Change::Insert(value), Previous::UNWANTED).unwrap().applied
}

/// Makes a map of words with these keys.
fn words(
    seam: &Traced,
    hash: u32,
    keys: std::ops::Range<u64>,
) -> (Arc<Store<Traced>>, Arc<OpenMap>) {
    let store = create(seam, 200, hash);
    let map = map(&store, Inline, SMALLEST);
    for key in keys {
        insert(&map, key, key + 7);
    }
    (store, map)
}

/// A hash function by number, and the key from which all keys have one hash under it.
const COLLIDING: (u32, u64) = (0x7e57, 1 << 32);

#[test]
fn an_overflow_node_is_used_once_its_link_is_durable() {
    let (hash, first) = COLLIDING;
    // Find out which insert links a node, and when.
    let baton = baton();
    let seam = baton.seam();
    seam.start(false);
    let (_store, map) = words(&seam, hash, 0..0);
    let links = |key: u64| {
        let act = || assert!(insert(&map, key, key + 7));
        Some((key, find(&baton, act, |accessed| flushes(accessed, "overflow: link"))?))
    };
    let (key, access) = (first..first + 400).find_map(links).expect("a node");

    let seam = baton.seam();
    seam.start(false);
    let (_store, map) = words(&seam, hash, first..key);
    let act = || inline(&map).change(key, Change::Insert(key + 7), Previous::UNWANTED).is_ok();
    let (_, events) = baton.during(access, act, |held| {
        assert!(held && insert(&map, first + 5000, 99));
        seam.take()
    });
    let [least, _] = left_by(&events);
    let store = open(&least, recorder(false));
    let map = store.open_map("m").unwrap();
    assert_eq!(inline(&map).get(first + 5000).unwrap(), Some(99), "acknowledged insert lost");
}

#[test]
fn a_map_is_used_once_its_root_is_durable() {
    let baton = baton();
    let seam = baton.seam();
    seam.start(false);
    let store = create(&seam, 200, 1);
    let act = || drop(map(&store, Inline, SMALLEST));
    let root = outlast::internals::pool::points::ROOT_COMMIT.name;
    let access = find(&baton, act, |accessed| flushes(accessed, root)).unwrap();

    let seam = baton.seam();
    seam.start(false);
    let store = create(&seam, 200, 1);
    let act = || drop(map(&store, Inline, SMALLEST));
    let (done, events) = baton.during(access, act, |held| {
        assert!(held && insert(&map(&store, Inline, SMALLEST), 5, 99));
        seam.take()
    });
    done.unwrap();
    let [least, _] = left_by(&events);
    let store = open(&least, recorder(false));
    let map = store.open_map("m").expect("the map that acknowledged an insert");
    assert_eq!(inline(&map).get(5).unwrap(), Some(99));
}

#[test]
fn new_space_is_used_once_the_size_is_durable() {
    let setup = |seam: &Traced, keys: u64| {
        let store = create(seam, 40, 1);
        let map = map(&store, Inline, SMALLEST);
        (0..keys).for_each(|key| assert!(insert(&map, key, key + 7)));
        (store, map)
    };
    let baton = baton();
    let seam = baton.seam();
    seam.start(false);
    let (_store, map) = setup(&seam, 0);
    let size = &outlast::internals::pool::points::HEADER_SIZE;
    let grows = |key: u64| {
        let act = || assert!(insert(&map, key, key + 7));
        let access = find(&baton, act, |accessed| accessed.point == size);
        access.filter(|_| key > 0).map(|access| (key, access))
    };
    let (key, access) = (0..5000).find_map(grows).unwrap();

    let seam = baton.seam();
    seam.start(false);
    let (_store, map) = setup(&seam, key);
    let act = || inline(&map).change(key, Change::Insert(key + 7), Previous::UNWANTED).is_ok();
    let more = 100_000..100_400;
    let (_, events) = baton.during(access, act, |held| {
        assert!(held);
        more.clone().for_each(|key| assert!(insert(&map, key, key + 7)));
        seam.take()
    });
    for (what, file) in ["power loss", "process death"].into_iter().zip(left_by(&events)) {
        let store = open(&file, recorder(false));
        let map = store.open_map("m").unwrap();
        for key in more.clone() {
            assert_eq!(inline(&map).get(key).unwrap(), Some(key + 7), "{what}");
        }
    }
}

fn text(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Makes a map of byte strings with `keys` keys.
fn texts(seam: &Traced, keys: u64) -> (Arc<Store<Traced>>, Arc<OpenMap>) {
    let store = create(seam, 300, 1);
    let map = map(&store, Bytes, SMALLEST);
    for key in 0..keys {
        let value = [key as u8; 40];
        bytes(&map).change(&text(key), Change::Insert(&value[..]), Previous::UNWANTED).unwrap();
    }
    (store, map)
}

#[test]
fn the_trace_misses_no_record_that_a_split_takes_back() {
    for fill in [40, 60, 80, 100] {
        let seam = Traced::new();
        seam.start(false);
        texts(&seam, fill);
        let [_, file] = left_by(&seam.take());
        for access in (0..).step_by(3) {
            let baton = baton();
            let store = open(&file, baton.seam());
            let map = store.open_map("m").unwrap();
            // Make the first touches now.
            (0..fill).for_each(|key| assert!(bytes(&map).get(&text(key)).unwrap().is_some()));
            let trace = || while store.step().unwrap() {};
            let (done, held) = baton.during(access, trace, |held| {
                for key in 1000..1060 {
                    let change = Change::Insert(&[7; 40][..]);
                    bytes(&map).change(&text(key), change, Previous::UNWANTED).unwrap();
                }
                held
            });
            done.unwrap();
            let found = outlast::internals::db::verify::verify(&store).unwrap();
            let damage: Vec<_> = found.all_damage().take(2).collect();
            assert!(found.is_sound(), "{fill} keys, held before {access}: {damage:?}");
            if !held {
                break;
            }
        }
    }
}

#[test]
fn what_was_found_after_a_kill_survives_a_power_loss() {
    let baton = baton();
    let seam = baton.seam();
    seam.start(false);
    let (_store, map) = words(&seam, 1, 0..0);
    let act = || assert!(insert(&map, 5, 99));
    let access = find(&baton, act, |accessed| flushes(accessed, "insert: slot")).unwrap();

    let seam = baton.seam();
    seam.start(false);
    let (_store, map) = words(&seam, 1, 0..0);
    let (_, mut events) = baton.during(access, || insert(&map, 5, 99), |_| seam.take());
    // SIGKILL here: the caches survive.
    let [_, file] = left_by(&events);
    let seam = recorder(true);
    let store = open(&file, seam.clone());
    let map = store.open_map("m").unwrap();
    insert(&map, 5, 100);
    let told = inline(&map).get(5).unwrap();
    let later = seam.take().into_iter();
    events.extend(later.map(|event| Event { thread: event.thread + 1000, ..event }));
    let [least, _] = left_by(&events);
    let store = open(&least, recorder(false));
    let map = store.open_map("m").unwrap();
    let found = inline(&map).get(5).unwrap();
    assert_eq!(found, told, "what the second process was told is gone after the power loss");
}

#[test]
fn a_scan_reports_no_record_twice_beside_changes_of_the_stash() {
    for fill in [44, 70, 90] {
        for access in 0.. {
            let baton = baton();
            let (_store, map) = texts(&baton.seam(), fill);
            let scan = || {
                let (mut cursor, mut out) = (Cursor::start(), vec![]);
                while !cursor.is_done() {
                    bytes(&map).scan(&mut cursor, &mut out).unwrap();
                }
                out
            };
            let (found, held) = baton.during(access, scan, |held| {
                // The latest keys are those most likely in the stash.
                for key in fill - 12..fill {
                    bytes(&map).change(&text(key), Change::Remove, Previous::UNWANTED).unwrap();
                    let change = Change::Insert(&[1; 40][..]);
                    bytes(&map).change(&text(key + 5000), change, Previous::UNWANTED).unwrap();
                }
                held
            });
            let mut keys: Vec<_> = found.unwrap().into_iter().map(|(key, _)| key).collect();
            keys.sort();
            let twice = keys.windows(2).find(|pair| pair[0] == pair[1]);
            assert_eq!(twice, None, "{fill} keys, held before access {access}");
            if !held {
                break;
            }
        }
    }
}
