//! One thread is held before a chosen memory access while others work. Each test guards against
//! a bug that the library used to have.
//!
//! The random schedules of the harness switch back and forth between threads. Here one thread does
//! much work while another is between two of its accesses.

mod clevel;
mod copies;
mod dash_eh;
mod phast;

use outlast::internals::db::store::{AnyIndex, MapRequest, OpenMap, Store};
use outlast::internals::index::{Bytes, Index, Inline};
use outlast::internals::pmem::{Alive, Event, MediumKind, Traced};
use outlast::internals::pool::backing::{Backing, Heap};
use outlast::internals::pool::core::{Core, CoreOptions};
use outlast::{Config, MapInfo, RecordForm};
use outlast_check::model::{Image, Timeline};
use outlast_check::schedule::baton::Baton;
use outlast_check::schedule::strategy::Strategy;
use outlast_check::session::{PAGE_BITS, open_bytes};
use std::sync::{Arc, LazyLock};

static ALIVE: LazyLock<Arc<Alive>> = LazyLock::new(outlast_check::session::alive);

/// The size that every pool here can grow to.
const CAPACITY: u64 = 1024 << PAGE_BITS;

/// Makes a baton for a few threads.
pub(crate) fn baton() -> Baton {
    Baton::new(4, Strategy::InTurn)
}

/// Creates a pool.
fn create(seam: &Traced, pages: u64, hash_function: u32) -> Arc<Store<Traced>> {
    let options = CoreOptions {
        page_bits: PAGE_BITS,
        initial_size: pages << PAGE_BITS,
        hash_function,
        identity: Some((0x5eed, 1)),
        medium: MediumKind::Bytes,
        ..CoreOptions::default()
    };
    let heap = Backing::Heap(Heap::new(&[], CAPACITY, 0));
    let core = Core::create(heap, seam.clone(), options).unwrap();
    Store::with_alive(core, Arc::clone(&ALIVE)).unwrap()
}

/// Opens what a crash has left.
fn open(file: &[u8], seam: Traced) -> Arc<Store<Traced>> {
    open_bytes(file, CAPACITY, seam, &ALIVE).unwrap()
}

/// Opens the map `m`, or creates it.
fn map(store: &Store<Traced>, form: RecordForm, config: impl Into<Config>) -> Arc<OpenMap> {
    let schema = if form == RecordForm::Inline { "u64" } else { "[u8]" };
    let info = MapInfo {
        name: "m".into(),
        form,
        key_schema: schema.into(),
        value_schema: schema.into(),
        config: config.into(),
        expires: false,
    };
    store.map(&MapRequest { info, scheme_matters: true }).unwrap()
}

fn inline(map: &OpenMap) -> &dyn Index<Inline> {
    match map.index() {
        AnyIndex::Inline(index) => &**index,
        AnyIndex::Bytes(_) => unreachable!("it was made of 8-byte records"),
    }
}

fn bytes(map: &OpenMap) -> &dyn Index<Bytes> {
    match map.index() {
        AnyIndex::Bytes(index) => &**index,
        AnyIndex::Inline(_) => unreachable!("it was made of byte strings"),
    }
}

/// Returns the file of a new pool after these events and a crash. The first file is after a power
/// loss that takes everything that is not durable, the second after process death, which takes
/// nothing.
fn left_by(events: &[Event]) -> [Vec<u8>; 2] {
    let mut timeline = Timeline::new(&Image::of_file(&[], CAPACITY), CAPACITY, events);
    timeline.advance(events.len());
    let (mut least, mut all) = (Image::default(), Image::default());
    timeline.least_and(&[], &mut least);
    timeline.all_but(&[], &mut all);
    [least.bytes, all.bytes]
}
