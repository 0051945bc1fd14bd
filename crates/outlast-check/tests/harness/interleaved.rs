//! Chosen interleavings of two threads, for what one thread alone cannot show.
//!
//! Method: one thread is held before its n-th access to the pool, for every n. Meanwhile the
//! other thread does an operation. Then the first continues. If the second has to wait for a lock
//! of the first, the first is released early.

use super::stops::baton;
use outlast::internals::db::store::Store;
use outlast::internals::pmem::{Alive, Control, Traced};
use outlast::internals::pool::backing::{Backing, Heap};
use outlast::internals::pool::core::{Core, CoreOptions};
use outlast::internals::pool::header::Header;
use outlast::internals::pool::layout::HEADER_WORDS;
use outlast::{RecordForm, Scheme};
use outlast_check::explore::catalogue;
use outlast_check::model::GARBAGE;
use outlast_check::schedule::workload;
use outlast_check::session::{Do, PoolShape, Session, alive, recorder};
use outlast_check::structures::Shape;
use std::sync::{Arc, OnceLock};

/// Opens `file` and holds a step of its reclaim before each access in turn, while `operation` runs.
/// Then finishes the reclaim and verifies.
fn beside_the_trace(
    file: &[u8],
    capacity: u64,
    alive: &Arc<Alive>,
    operation: &dyn Fn(&mut Session),
) {
    for held_at in 1.. {
        let baton = baton();
        let mut session = Session::open(file, capacity, alive, baton.seam(), None).unwrap();
        let universe: Vec<u64> = (0..1_000).collect();
        let known = session.observe(&universe, true).unwrap();
        session.settle(&known, &universe, true).unwrap();
        let store = Arc::clone(session.store());
        let trace = || while store.step().unwrap() {};
        let (done, reached) = baton.during(held_at - 1, trace, |reached| {
            operation(&mut session);
            reached
        });
        done.unwrap();
        session.verify().unwrap_or_else(|fault| panic!("held before access {held_at}: {fault}"));
        // Inserts reuse any block that was freed in error.
        for key in 500..560 {
            session.change("m", key, Do::Insert(key + 900_000)).unwrap();
        }
        session.check(&universe, true).unwrap();
        session.verify().unwrap();
        if !reached {
            assert!(held_at > 100, "the reclaim makes more accesses than {held_at}");
            return;
        }
    }
}

/// Makes a map that grows with the next insert. Returns its file and capacity, and the key of that
/// insert. In Dash-EH, growth then takes records back from the stash.
fn about_to_grow(scheme: Scheme, alive: &Arc<Alive>) -> (Vec<u8>, u64, u64) {
    let shape = Shape::smallest(scheme, RecordForm::Bytes);
    let pool = PoolShape::default();
    let capacity = pool.max_pages << outlast_check::session::PAGE_BITS;
    let mut session = Session::create(pool, alive, recorder(false)).unwrap();
    session.create_map("m", shape).unwrap();
    for key in 10.. {
        let before = session.file();
        session.change("m", key, Do::Insert(key + 700_000)).unwrap();
        if session.grown("m").unwrap() > 0 {
            return (before, capacity, key);
        }
    }
    unreachable!()
}

/// Growth moves a record while a trace runs, for example when a split takes it back from the stash.
/// The trace may read the new place before the move and the old one after it, and so miss the
/// record.
#[test]
fn growth_hides_no_record_from_the_trace() {
    let alive = alive();
    for &scheme in Scheme::ALL {
        let (file, capacity, key) = about_to_grow(scheme, &alive);
        beside_the_trace(&file, capacity, &alive, &|session| {
            session.change("m", key, Do::Insert(key + 700_000)).unwrap();
            // In Dash-LH, an overflow node causes four splits.
            assert!(session.grown("m").unwrap() >= 1);
        });
    }
}

#[test]
fn no_change_hides_a_record_from_the_trace() {
    let alive = alive();
    for &scheme in Scheme::ALL {
        let (file, capacity, _) = about_to_grow(scheme, &alive);
        beside_the_trace(&file, capacity, &alive, &|session| {
            for key in 10..50 {
                match key % 3 {
                    0 => session.change("m", key, Do::Update(key + 800_000)).unwrap(),
                    1 => session.change("m", key, Do::Remove).unwrap(),
                    _ => session.change("m", key, Do::Insert(key)).unwrap(),
                }
            }
        });
    }
}

/// Checks, at every access, that the header's size covers everything that can be claimed.
#[derive(Default)]
struct SizeIsTold(Arc<OnceLock<Arc<Store<Traced>>>>);

impl Control for SizeIsTold {
    fn before(&self, _: usize, _: bool) {
        let Some(store) = self.0.get() else { return };
        let core = store.core();
        let len = core.size();
        // SAFETY: the header's bytes exist, and only this thread uses the pool.
        let bytes = unsafe { std::slice::from_raw_parts(core.backing().base(), 8192) };
        let header = Header::read(core.backing().reserved(), |offset| {
            let (words, _) = bytes[offset as usize..][..HEADER_WORDS * 8].as_chunks::<8>();
            Ok(std::array::from_fn(|i| u64::from_le_bytes(words[i])))
        })
        .unwrap();
        let told = header.get(outlast::internals::pool::layout::field::SIZE);
        assert!(told >= len, "{len} bytes are in use, the header says {told}");
    }
}

/// Another thread may claim pages as soon as the pool has grown. The header must give the new size
/// before that, or a crash leaves a frontier beyond the size.
#[test]
fn growth_is_told_before_it_is_used() {
    let told = SizeIsTold::default();
    let shared = Arc::clone(&told.0);
    let seam = Traced::with_control(Box::new(told));
    let backing = Backing::Heap(Heap::new(&[], 1 << 20, GARBAGE));
    let options = CoreOptions { page_bits: 12, initial_size: 40 << 12, ..CoreOptions::default() };
    let core = Core::create(backing, seam, options).unwrap();
    let store = Store::with_alive(core, alive()).unwrap();
    assert!(shared.set(Arc::clone(&store)).is_ok());
    let writing = store.core().enter().unwrap();
    let before = store.core().size();
    for _ in 0..40 {
        store.core().allocate(3_000).unwrap();
    }
    assert!(store.core().size() > before);
    drop(writing);
}

#[test]
fn every_scenario_and_workload_has_a_name_of_its_own() {
    for shape in Shape::all() {
        let scenarios = catalogue(shape.scheme(), shape.form);
        let workloads = workload::names(shape.scheme()).into_iter().map(String::from).collect();
        for mut names in [scenarios.into_iter().map(|s| s.name).collect(), workloads] {
            let count = Vec::len(&names);
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }
}
