//! PhaST, one thread stopped before each of its accesses of memory while others work: bugs that
//! were there, each kept out by a test.

use outlast::db::store::{AnyIndex, MapRequest, OpenMap, Store};
use outlast::index::{Bytes, Change, Cursor, Index, KeyRange, phast};
use outlast::pmem::{Access, Alive, Control, Event, MediumKind, Planted, Traced};
use outlast::pool::backing::{Backing, Heap};
use outlast::pool::core::{Core, CoreOptions};
use outlast::pool::header::Header;
use outlast::pool::layout::HEADER_WORDS;
use outlast::{MapInfo, RecordForm};
use std::cell::Cell;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex};

static ALIVE: LazyLock<Arc<Alive>> = LazyLock::new(|| Arc::new(Alive::new().unwrap()));
thread_local! { static STOPPED: Cell<bool> = const { Cell::new(false) }; }
type Job = Box<dyn FnOnce() + Send>;

/// What others do while one thread is stopped.
#[derive(Clone, Default)]
struct Stops(Arc<State>);

#[derive(Default)]
struct State {
    accesses: AtomicU64,
    /// Before which access of the stopped thread, and what.
    jobs: Mutex<Vec<(u64, Job)>>,
    /// How often others have waited, for the stopped one perhaps.
    waits: AtomicU64,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Control for Stops {
    fn before(&self, _: usize, waiting: bool) {
        let state = &self.0;
        if waiting {
            if !STOPPED.get() {
                state.waits.fetch_add(1, SeqCst);
            }
            return std::thread::yield_now();
        }
        if !STOPPED.get() {
            return;
        }
        let access = state.accesses.fetch_add(1, SeqCst);
        let job = {
            let mut jobs = state.jobs.lock().unwrap();
            let at = jobs.iter().position(|job| job.0 == access);
            at.map(|at| jobs.remove(at).1)
        };
        let Some(job) = job else { return };
        let done = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&done);
        state.waits.store(0, SeqCst);
        let thread = std::thread::spawn(move || {
            job();
            told.store(true, SeqCst);
        });
        state.threads.lock().unwrap().push(thread);
        // Whoever waits for the stopped thread goes on beside it.
        while !done.load(SeqCst) && state.waits.load(SeqCst) < 3000 {
            std::thread::yield_now();
        }
    }
}

impl Stops {
    /// Does something in this thread, and the jobs before its accesses. The answer, and how many
    /// jobs there was no access for.
    fn during<T>(&self, jobs: Vec<(u64, Job)>, act: impl FnOnce() -> T) -> (T, usize) {
        self.0.accesses.store(0, SeqCst);
        *self.0.jobs.lock().unwrap() = jobs;
        STOPPED.set(true);
        let answer = act();
        STOPPED.set(false);
        let left = std::mem::take(&mut *self.0.jobs.lock().unwrap()).len();
        for thread in std::mem::take(&mut *self.0.threads.lock().unwrap()) {
            thread.join().unwrap();
        }
        (answer, left)
    }
}

/// A map of byte strings, with leaves of so many pairs.
struct Table {
    stops: Stops,
    seam: Traced,
    map: Arc<OpenMap>,
    _store: Arc<Store<Traced>>,
}

const BYTES: u64 = 128 << 12;

fn options() -> CoreOptions {
    CoreOptions {
        page_bits: 12,
        initial_size: BYTES,
        identity: Some((0x5eed, 1)),
        medium: MediumKind::Bytes,
        ..CoreOptions::default()
    }
}

/// The pool that the death of the process leaves after these events.
fn left_by(events: &[Event]) -> Arc<Store<Traced>> {
    let mut file = vec![0; BYTES as usize];
    for event in events {
        if let Access::Store { offset, value, .. }
        | Access::CompareExchange { offset, new: value, exchanged: true, .. } = &event.access
        {
            file[*offset as usize..][..8].copy_from_slice(&value.to_le_bytes());
        }
    }
    let header = Header::read(BYTES, |at| {
        let words = file[at as usize..].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let words: Vec<u64> = words.take(HEADER_WORDS).collect();
        Ok(words.try_into().unwrap())
    });
    let heap = Backing::Heap(Heap::new(&file, BYTES, 0));
    let core = Core::open(heap, Traced::new(), header.unwrap(), options()).unwrap();
    Store::with_alive(core, Arc::clone(&ALIVE))
}

impl Table {
    fn new(slots: u32) -> Table {
        let stops = Stops::default();
        let seam = Traced::with_control(Box::new(stops.clone()));
        seam.start(false);
        let heap = Backing::Heap(Heap::new(&[], BYTES, 0));
        let core = Core::create(heap, seam.clone(), options()).unwrap();
        let store = Store::with_alive(core, Arc::clone(&ALIVE));
        let info = MapInfo {
            name: "m".into(),
            form: RecordForm::Bytes,
            key_schema: "[u8]".into(),
            value_schema: "[u8]".into(),
            config: phast::Config::new(slots, 4, 4).into(),
        };
        let map = store.map(&MapRequest { info, scheme_matters: true }).unwrap();
        Table { stops, seam, map, _store: store }
    }

    fn index(&self) -> &dyn Index<Bytes> {
        index(&self.map)
    }

    /// Something to be done with the map, by another thread.
    fn job(&self, act: impl FnOnce(&dyn Index<Bytes>) + Send + 'static) -> Job {
        let map = Arc::clone(&self.map);
        Box::new(move || act(index(&map)))
    }
}

/// All records.
fn records(index: &dyn Index<Bytes>) -> outlast::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (mut cursor, mut found) = (Cursor::start(), Vec::new());
    while !cursor.is_done() {
        index.scan(&mut cursor, &mut found)?;
    }
    Ok(found)
}

fn index(map: &OpenMap) -> &dyn Index<Bytes> {
    match map.index() {
        AnyIndex::Bytes(index) => &**index,
        AnyIndex::Inline(_) => unreachable!("it was made of byte strings"),
    }
}

fn change(index: &dyn Index<Bytes>, key: &[u8], change: Change<'_, Bytes>) -> bool {
    index.change(key, change, false).unwrap().applied
}

/// Tries each pair of moments: at the first another thread inserts the key that this one is
/// about to insert, at the second it replaces it, so often that the block of the first record
/// is used again. Whether there is one after which the key stands twice.
fn a_key_can_stand_twice(put: bool) -> bool {
    for first in 0.. {
        for second in first + 1.. {
            let table = Table::new(16);
            for key in [b"zz", b"aa", b"bb"] {
                change(table.index(), key, Change::Insert(&[9; 20][..]));
            }
            let insert = table.job(|index| {
                change(index, b"kk", Change::Insert(&[1; 20][..]));
            });
            let replace = table.job(|index| {
                change(index, b"kk", Change::Put(&[2; 20][..]));
                for value in 0..40 {
                    change(index, b"zz", Change::Put(&[value; 20][..]));
                }
            });
            let mine = if put { Change::Put(&[3; 20][..]) } else { Change::Insert(&[3; 20][..]) };
            let act = || change(table.index(), b"kk", mine);
            let (_, left) = table.stops.during(vec![(first, insert), (second, replace)], act);
            if records(table.index()).unwrap().iter().filter(|(key, _)| key == b"kk").count() > 1 {
                return true;
            }
            match left {
                0 => {}
                _ if second == first + 1 => return false,
                _ => break,
            }
        }
    }
    unreachable!("it ends with the accesses");
}

/// The insert compared its key with what stood in the block by then, did not find it there,
/// and went on: the bits had not changed.
#[test]
fn a_key_that_is_replaced_beside_an_insert_of_it_stands_once() {
    for put in [false, true] {
        assert!(!a_key_can_stand_twice(put));
    }
    let bug = Some(Planted::InsertReadsFreed);
    assert!(Traced::planting(bug, || a_key_can_stand_twice(false)), "this test finds it");
}

/// The first record, or the last, as the typed map has it.
fn end(index: &dyn Index<Bytes>, reverse: bool) -> Option<Vec<u8>> {
    let range = KeyRange::<Bytes>::new(Bound::Unbounded, Bound::Unbounded);
    index.ordered().unwrap().end(range, reverse).unwrap().map(|(key, _)| key)
}

/// The leaf at the end is empty, and stays empty but for one record that comes before the one in
/// the next leaf goes. So what comes after that one is at no moment at the end.
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
            let others = table.job(move |index| {
                change(index, if reverse { b"z" } else { b"a" }, Change::Insert(&[1][..]));
                change(index, &gone, Change::Remove);
            });
            let act = || end(table.index(), reverse);
            let (answer, left) = table.stops.during(vec![(access, others)], act);
            found += u64::from(answer == Some(never));
            if left > 0 {
                break;
            }
        }
        assert_eq!(found, 0, "reverse: {reverse}");
    }
}

/// A thread splits a leaf; at each of its accesses another one removes a record of the upper
/// half, and replaces one of another leaf until the first one's block holds it. Then the process
/// dies. Whether there is a moment after which a pool is left that is not as it was.
fn a_split_can_leave_what_it_moved() -> bool {
    for access in 0.. {
        let table = Table::new(4);
        let key = |n: u8| vec![b'a' + n];
        for n in 0..=12 {
            change(table.index(), &key(n), Change::Insert(&[n; 20][..]));
        }
        let left = Arc::new(Mutex::new(None));
        let (told, seam) = (Arc::clone(&left), table.seam.clone());
        let others = table.job(move |index| {
            assert!(change(index, &key(12), Change::Remove));
            for value in 0..40 {
                change(index, &key(0), Change::Put(&[value; 20][..]));
            }
            *told.lock().unwrap() = Some(seam.take());
        });
        // Into the last leaf, which is full. Keys come in order, so the greatest one is moved.
        let act = || {
            (13..15).for_each(|n| {
                change(table.index(), &key(n), Change::Insert(&[n; 20][..]));
            })
        };
        let (_, unused) = table.stops.during(vec![(access, others)], act);
        if unused > 0 {
            return false;
        }
        let events = left.lock().unwrap().take().expect("it has done its work");
        let store = left_by(&events);
        let map = store.open_map("m").unwrap();
        // A block that holds another record by now can be met as damage, too.
        let Ok(found) = records(index(&map)) else { return true };
        let of = |n: u8| found.iter().filter(|(found, _)| *found == key(n)).count();
        let is_right = found.is_sorted()
            && of(12) == 0
            && (0..12).all(|n| of(n) == 1)
            && found.iter().any(|(found, value)| *found == key(0) && value[..] == [39; 20])
            && outlast::db::verify::verify(&store).unwrap().all_damage().next().is_none();
        if !is_right {
            return true;
        }
    }
    unreachable!("it ends with the accesses");
}

/// Opening took the pairs that were moved out of the lower half by the keys that they led to, and
/// one led to a record of another leaf by then.
#[test]
fn what_a_split_has_moved_is_in_one_leaf_after_a_crash() {
    assert!(!a_split_can_leave_what_it_moved());
    let bug = Some(Planted::SplitOpenedEarly);
    assert!(Traced::planting(bug, a_split_can_leave_what_it_moved), "this test finds it");
}
