//! A map of clevel of the smallest levels, whose accesses a test can stop.

use outlast::db::store::{AnyIndex, MapRequest, OpenMap, Store};
use outlast::index::{Index, Inline, clevel};
use outlast::pmem::{Alive, MediumKind, Traced};
use outlast::pool::backing::{Backing, Heap};
use outlast::pool::core::{Core, CoreOptions};
use outlast::{MapInfo, RecordForm};
use std::sync::Arc;

/// In a new pool of so many pages of 4 KiB.
pub(crate) fn new(seam: Traced, pages: u64) -> (Arc<Store<Traced>>, Arc<OpenMap>) {
    let options = CoreOptions {
        page_bits: 12,
        initial_size: pages << 12,
        identity: Some((0x5eed, 1)),
        medium: MediumKind::Bytes,
        ..CoreOptions::default()
    };
    let backing = Backing::Heap(Heap::new(&[], pages << 12, 0));
    let core = Core::create(backing, seam, options).unwrap();
    let store = Store::with_alive(core, Arc::new(Alive::new().unwrap()));
    let info = MapInfo {
        name: "m".into(),
        form: RecordForm::Inline,
        key_schema: "u64".into(),
        value_schema: "u64".into(),
        config: clevel::Config { first_bits: 1, group_bits: 1 }.into(),
    };
    let map = store.map(&MapRequest { info, scheme_matters: true }).unwrap();
    (store, map)
}

pub(crate) fn index(map: &OpenMap) -> &dyn Index<Inline> {
    match map.index() {
        AnyIndex::Inline(index) => &**index,
        AnyIndex::Bytes(_) => unreachable!("it was made of 8-byte records"),
    }
}
