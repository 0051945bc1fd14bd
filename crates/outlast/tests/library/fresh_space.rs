//! Space that was never written may hold anything.
//!
//! Goal: nothing relies on fresh space being zero, and the header announces a growth before
//! anything is stored in the new space.

use outlast::RecordForm;
use outlast::internals::db::roots::MapInfo;
use outlast::internals::db::store::{AnyIndex, MapRequest, ReclaimState, Store};
use outlast::internals::db::verify::verify;
use outlast::internals::index::{Change, Cursor, Previous, dash_eh};
use outlast::internals::pmem::{FlushMode, Real};
use outlast::internals::pool::backing::{Backing, Heap};
use outlast::internals::pool::core::{Core, CoreOptions};
use outlast::internals::pool::header::Header;
use outlast::internals::pool::layout::{
    Descriptor, FRONTIER_OFFSET, HEADER_WORDS, PageKind, field, pack_frontier,
};
use outlast_offline as offline;
use std::sync::Arc;

fn bytes_of(store: &Store<Real>) -> Vec<u8> {
    let memory = &store.core().memory;
    let mut out = vec![0; memory.len() as usize];
    memory.read_bytes(memory.words(0, memory.len()).unwrap(), 0, &mut out);
    out
}

fn open(bytes: &[u8]) -> Arc<Store<Real>> {
    let header = Header::read(bytes.len() as u64, |offset| {
        let word = |i: usize| {
            let at = offset as usize + i * 8;
            u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
        };
        Ok(std::array::from_fn::<u64, HEADER_WORDS, _>(word))
    })
    .unwrap();
    assert_eq!(header.get(field::SIZE), bytes.len() as u64);
    let heap = Backing::Heap(Heap::new(bytes, 64 << 20, 0xcd));
    let real = Real::new(FlushMode::None);
    Store::new(Core::open(heap, real, header, CoreOptions::default()).unwrap()).unwrap()
}

/// The values are so large that runs for them do not fit in the last pages of a region, which are
/// skipped.
#[test]
fn a_killed_pool_is_reclaimed_though_fresh_space_holds_garbage() {
    for fill in [0xcd, 0x01, 0xff] {
        let heap = Backing::Heap(Heap::new(&[], 64 << 20, fill));
        let options = CoreOptions {
            page_bits: 12,
            initial_size: 1 << 20,
            identity: Some((1, 2)),
            ..CoreOptions::default()
        };
        let core = Core::create(heap, Real::new(FlushMode::None), options).unwrap();
        let store = Store::new(core).unwrap();
        let info = MapInfo {
            name: "m".into(),
            form: RecordForm::Bytes,
            key_schema: "bytes".into(),
            value_schema: "bytes".into(),
            config: dash_eh::Config { bucket_bits: 1, stash_buckets: 2 }.into(),
            expires: false,
        };
        let map = store.map(&MapRequest { info, scheme_matters: true }).unwrap();
        let AnyIndex::Bytes(index) = map.index() else { unreachable!() };
        for n in 0..40u64 {
            let value = vec![n as u8; 300_000 + n as usize * 5000];
            index
                .change(&n.to_le_bytes()[..], Change::Put(&value[..]), Previous::UNWANTED)
                .unwrap();
        }
        let killed = bytes_of(&store);
        check(&killed);
        check(&with_two_claims_cut_short(killed));
    }
}

/// Adds two interrupted claims to a file. The first claimed 20 pages; its descriptors became
/// durable, but not its frontier. The second claimed 4 pages at the same place; its frontier became
/// durable, but not its descriptors.
fn with_two_claims_cut_short(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = FRONTIER_OFFSET as usize;
    let frontier = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let table = (frontier / 512 * 512).max(32) as usize * 4096;
    for distance in 0..20 {
        let (kind, count) = match distance {
            0 => (PageKind::Large, 20),
            _ => (PageKind::Continued, distance),
        };
        let page = frontier + distance;
        let word = Descriptor { kind, class: 255, count }.pack(page);
        let place = table + (page % 512) as usize * 8;
        bytes[place..place + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes[at..at + 8].copy_from_slice(&pack_frontier(frontier + 4).to_le_bytes());
    bytes
}

fn check(killed: &[u8]) {
    let report = offline::walk_bytes(killed).unwrap();
    assert_eq!((report.records, &report.problems[..]), (40, &[][..]));
    let store = open(killed);
    assert!(store.finish_reclaim().unwrap(), "{:?}", store.reclaim_state());
    assert_eq!(store.reclaim_state(), ReclaimState::Done);
    let found = verify(&store).unwrap();
    assert!(found.is_sound(), "{found:?}");
    let map = store.open_map("m").unwrap();
    let AnyIndex::Bytes(index) = map.index() else { unreachable!() };
    let (mut cursor, mut out) = (Cursor::start(), Vec::new());
    while !cursor.is_done() {
        index.scan(&mut cursor, &mut out).unwrap();
    }
    assert_eq!(out.len(), 40);
}
