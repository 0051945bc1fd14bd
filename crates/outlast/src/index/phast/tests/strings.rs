//! Byte strings: keys that share prefixes, and changes that go on from a place that was found before.

use super::{Phast, change, config};
use crate::index::kit::interleaved::{Interleaved, pool_in};
use crate::index::kit::table::{HashedKey, Lookup};
use crate::index::ordered::{KeyRange, OrderedIndex};
use crate::index::phast::lines::PREFIX;
use crate::index::phast::nodes::Side;
use crate::index::{Bytes, Change, Changed, Previous};
use crate::pmem::{Access, Event, Traced};
use crate::pool::backing::{Backing, Heap};
use std::collections::BTreeMap;
use std::ops::Bound;

type Strings = Phast<Traced, Bytes>;

fn strings(seam: Traced, node_leaves: u32, capacity: u64) -> Strings {
    let shape = config(4, node_leaves, 2);
    let memory = Backing::Heap(Heap::new(&[], capacity, 0));
    let core = pool_in(memory, seam, |core| Strings::create(core, shape).unwrap());
    Strings::open(&core, 0, shape).unwrap()
}

fn changed(index: &Strings, key: &[u8], what: Change<'_, Bytes>) -> Changed<Bytes> {
    change(index, key, what, Previous::WANTED).unwrap()
}

fn inserts(index: &Strings, key: &[u8], value: &[u8]) -> bool {
    changed(index, key, Change::Insert(value)).applied
}

fn puts(index: &Strings, key: &[u8], value: &[u8]) -> bool {
    changed(index, key, Change::Put(value)).applied
}

fn removes(index: &Strings, key: &[u8]) -> bool {
    changed(index, key, Change::Remove).applied
}

fn found(index: &Strings, key: &[u8]) -> Option<Vec<u8>> {
    index.value(HashedKey::new(&index.core, key)).unwrap()
}

/// Makes keys that share a prefix, and others that lie beside it: shorter ones, some with a byte of it
/// changed, and some that end in zeros.
fn keys_around(prefix: &[u8]) -> [Vec<Vec<u8>>; 2] {
    let number = |n: u16| [prefix, &n.to_be_bytes()].concat();
    let mut beside: Vec<Vec<u8>> = (0..prefix.len()).map(|len| prefix[..len].to_vec()).collect();
    for at in 0..prefix.len() {
        for byte in [0, prefix[at] - 1, prefix[at] + 1] {
            let mut key = number(77);
            key[at] = byte;
            beside.push(key);
        }
        beside.push([&prefix[..at], &[0; 8]].concat());
    }
    beside.sort_unstable();
    beside.dedup();
    [(0..200u16).map(|n| number(n * 7 % 200 * 150)).collect(), beside]
}

#[test]
fn keys_of_any_shared_prefix_are_told_apart() {
    for len in [0, 1, 7, 8, 9, 18, 63, 64, 65, 90] {
        let index = strings(Traced::new(), 8, 4 << 20);
        let found = |key: &[u8]| found(&index, key);
        let put = |key: &[u8], value| changed(&index, key, Change::Put(value)).present;
        let prefix: Vec<u8> = (0..len).map(|i| 1 + i % 7).collect();
        let [keys, beside] = keys_around(&prefix);
        assert!(keys.iter().all(|key| !put(key, b"old")));
        for (number, key) in beside.iter().enumerate() {
            assert_eq!(found(key), None, "{len} {key:?}");
            assert!(number % 2 == 1 || !put(key, key), "{len} {key:?}");
        }
        assert!(keys.iter().all(|key| put(key, key)), "{len}");
        for (number, key) in beside.iter().enumerate() {
            let expected = (number % 2 == 0).then(|| key.clone());
            assert_eq!(found(key), expected, "{len} {key:?}");
        }
        for key in &keys {
            assert_eq!(found(key).as_ref(), Some(key), "{len}");
            assert!(removes(&index, key) && found(key).is_none(), "{len} {key:?}");
        }
    }
}

/// Bytes at the ends of their range and in its middle, and so that many words are equal or end in zeros.
const BYTES: [u8; 6] = [0, 0, 1, 0x7f, 0x80, 0xff];

/// Draws pseudorandom numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| BYTES[self.below(BYTES.len())]).collect()
    }

    /// Draws a key that usually begins with the prefix. Otherwise it has another byte there, or ends there.
    fn key(&mut self, prefix: &[u8]) -> Vec<u8> {
        let mut key = prefix.to_vec();
        let len = self.below(4);
        key.extend(self.bytes(len));
        if !prefix.is_empty() && self.below(8) == 0 {
            let at = self.below(prefix.len());
            match self.below(2) {
                0 => key.truncate(at),
                _ => key[at] = BYTES[self.below(BYTES.len())],
            }
        }
        key
    }
}

/// Separators come and go as leaves are split and merged, so what a node's keys share changes, too.
#[test]
fn strings_that_come_and_go_are_found_as_in_a_model() {
    for (seed, len) in [0, 1, 5, 8, 20, 63, 64, 65, 90].into_iter().enumerate() {
        let (index, mut model) = (strings(Traced::new(), 8, 4 << 20), BTreeMap::new());
        let (mut draw, mut nodes) = (Draw(seed as u64), [vec![], vec![]]);
        let prefix = draw.bytes(len);
        for step in 0..3000 {
            let (grows, value) = (step / 500 % 2 == 0, [step as u8, (step >> 8) as u8]);
            let mut key = draw.key(&prefix);
            if !grows && !model.is_empty() {
                let nth = draw.below(model.len());
                key.clone_from(model.keys().nth(nth).unwrap());
            }
            let (what, before) = if grows == (draw.below(8) > 0) {
                (Change::Put(&value[..]), model.insert(key.clone(), value.to_vec()))
            } else {
                (Change::Remove, model.remove(&key))
            };
            assert_eq!(changed(&index, &key, what).before, before, "{len}, step {step}: {key:x?}");
            nodes[usize::from(grows)].push(index.nodes.in_use(index.seam()));
            for key in [key, draw.key(&prefix)] {
                assert_eq!(
                    found(&index, &key).as_ref(),
                    model.get(&key),
                    "{len}, step {step}: {key:x?}"
                );
                let below = KeyRange::new(Bound::Unbounded, Bound::Excluded(key.clone()));
                let last =
                    model.range(..key).next_back().map(|(key, value)| (key.clone(), value.clone()));
                assert_eq!(index.end(below, true).unwrap(), last, "{len}, step {step}");
            }
        }
        let [least, most] = [nodes[0].iter().min(), nodes[1].iter().max()].map(Option::unwrap);
        assert!(least * 2 < *most, "{least} to {most} nodes");
    }
}

/// If the prefix was wrong, keys would mostly be found all the same: by more reads.
#[test]
fn a_search_that_ends_inside_a_node_reads_no_separator() {
    for len in [0, 1, 7, 8, 13, 63, 64, 65, 90] {
        let index = strings(Traced::new(), 8, 4 << 20);
        let key = |n: u8| [&[0x80; 90][..len], &[n]].concat();
        for n in 0..128u16 {
            assert!(puts(&index, &key((n * 11 % 128 * 2) as u8), b"value"));
        }
        let mut inside = 0;
        for n in (1..=255).step_by(2) {
            let (key, seam) = (key(n), index.seam());
            let at = index.locate(&key).unwrap();
            let count = at.node.len(seam);
            // A node of three leaves may not know yet what their keys share.
            if count < 4 || !(1..count - 1).contains(&at.place) {
                continue;
            }
            inside += 1;
            seam.start(true);
            let side = at.node.search::<_, Bytes>(&index.core, &key, false).unwrap();
            let is_load = |event: &Event| matches!(event.access, Access::Load { .. });
            let reads = seam.take().iter().any(is_load);
            assert_eq!((side, reads), (Side::At(at.place), len > PREFIX), "{len}, {n}");
        }
        assert!(inside > 30, "{inside}");
    }
}

/// The longest keys, which differ in their last bytes alone.
#[test]
fn the_longest_strings_are_told_apart() {
    let index = strings(Traced::new(), 4, 4 << 20);
    let key = |n: u8| [vec![0x80; 65_534], vec![n]].concat();
    for n in (0..24).map(|n| n * 11 % 24) {
        assert!(inserts(&index, &key(2 * n), &[n]));
    }
    for n in 0..24 {
        assert_eq!(found(&index, &key(2 * n)), Some(vec![n]));
        assert_eq!(found(&index, &key(2 * n + 1)), None);
        assert_eq!(found(&index, &key(2 * n)[..65_534]), None);
    }
}

/// The key that an operation and what happens meanwhile change.
const KEY: &[u8] = b"key 40";
/// Values: of before, of the operation, of what happens meanwhile.
const FIRST: &[u8] = b"first";
const OURS: &[u8] = b"ours!";
const THEIRS: &[u8] = b"their";

fn key(n: u32) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

/// Returns whether no thread has announced itself in a leaf that holds one of the usual keys. Changes
/// would wait for it.
fn is_free(index: &Strings) -> bool {
    (1..9).all(|n| {
        let state = index.leaf(index.locate(&key(10 * n)).unwrap().leaf).state(index.seam());
        !state.is_busy() && !state.has_inserts() && !state.is_closed()
    })
}

/// Splits leaves and the node, and merges them again, so that leaves and nodes have other places, and
/// their numbers are used again.
fn reshape(index: &Strings) -> bool {
    let is_free = is_free(index);
    for n in (100..112).filter(|_| is_free) {
        assert!(inserts(index, &key(n), b"more"));
    }
    for n in (100..112).filter(|_| is_free) {
        assert!(removes(index, &key(n)));
    }
    is_free
}

/// Splits the leaf of the key, so that it belongs to another.
fn split(index: &Strings) -> bool {
    let is_free = is_free(index);
    (41..49).filter(|_| is_free).for_each(|n| assert!(inserts(index, &key(n), b"more")));
    is_free
}

/// Replaces the key's record, and has its block used again, for records of other keys.
fn replace(index: &Strings) -> bool {
    let is_free = is_free(index);
    for n in (0..12u8).filter(|_| is_free) {
        assert!(puts(index, KEY, THEIRS));
        assert!(puts(index, &key(50), &[n; 5]));
    }
    is_free
}

fn remove(index: &Strings) -> bool {
    is_free(index) && removes(index, KEY)
}

/// Makes a change of a record with this value as the contract says.
fn expected(what: &Change<'_, Bytes>, value: &mut Option<Vec<u8>>) -> Changed<Bytes> {
    let (before, present) = (value.clone(), value.is_some());
    let (applied, after) = match *what {
        Change::Insert(new) => (!present, Some(new)),
        Change::Put(new) => (true, Some(new)),
        Change::Update(new) => (present, Some(new)),
        Change::Swap { expected, new } => (before.as_deref() == Some(expected), Some(new)),
        Change::Remove => (present, None),
        Change::CompareRemove(expected) => (before.as_deref() == Some(expected), None),
    };
    if applied {
        *value = after.map(<[u8]>::to_vec);
    }
    Changed { applied, before, present }
}

/// A change looks its key up before it writes its record, and goes on from the place that it has found.
/// Before each of its accesses, that place can become wrong.
#[test]
fn a_change_of_a_string_whose_place_changes_is_made_once() {
    // Changes, and the value before.
    let changes = [
        (Change::Insert(OURS), None),
        (Change::Put(OURS), None),
        (Change::Put(OURS), Some(FIRST)),
        (Change::Update(OURS), Some(FIRST)),
        (Change::Swap { expected: FIRST, new: OURS }, Some(FIRST)),
        (Change::Remove, Some(FIRST)),
        (Change::CompareRemove(FIRST), Some(FIRST)),
    ];
    // What happens, and what it does to the key: replaces its value, removes it, or nothing.
    type Act = (fn(&Strings) -> bool, Option<Change<'static, Bytes>>);
    let acts: [Act; 4] = [
        (reshape, None),
        (split, None),
        (replace, Some(Change::Put(THEIRS))),
        (remove, Some(Change::Remove)),
    ];
    for (number, &(act, theirs)) in acts.iter().enumerate() {
        for (what, first) in &changes {
            let mut times = 0;
            for access in (1 + number as u64..).step_by(3) {
                let interleaved = Interleaved::new(|seam| strings(seam, 4, 1 << 20), act);
                let index = interleaved.index();
                let others = (1..9).filter(|n| *n != 4);
                others.clone().for_each(|n| assert!(inserts(index, &key(10 * n), b"other")));
                first.iter().for_each(|first| assert!(inserts(index, KEY, first)));
                let mut ours = None;
                let goes_on =
                    interleaved.run(access, |index| ours = Some(changed(index, KEY, *what)));
                times += u32::from(interleaved.happened());
                // Ours came first, or theirs did.
                let [mut one, mut other] = [first, first].map(|first| first.map(<[u8]>::to_vec));
                let ours_first = expected(what, &mut one);
                if let Some(theirs) = theirs.filter(|_| interleaved.happened()) {
                    expected(&theirs, &mut one);
                    expected(&theirs, &mut other);
                }
                let theirs_first = expected(what, &mut other);
                let ours = (ours.unwrap(), found(index, KEY));
                assert!(
                    [(ours_first, one), (theirs_first, other)].contains(&ours),
                    "act {number}, {what:?} of {first:?}, access {access}: {ours:?}"
                );
                for n in others.filter(|n| *n != 5) {
                    assert_eq!(found(index, &key(10 * n)).as_deref(), Some(&b"other"[..]));
                }
                if !goes_on {
                    break;
                }
            }
            let never = first.is_none() && number == 3;
            assert!(times > 5 || never, "{times} times, act {number}, {what:?} of {first:?}");
        }
    }
}
