//! Pools in the process's memory, without file or background thread.

use crate::structures::structure;
use outlast::internals::db::roots::MapInfo;
use outlast::internals::db::store::{MapRequest, OpenMap, Store};
use outlast::internals::pmem::{Alive, FlushMode, Real};
use outlast::internals::pool::backing::{Backing, Heap};
use outlast::internals::pool::core::{Core, CoreOptions};
use outlast::internals::pool::header::Header;
use outlast::internals::pool::layout::{HEADER_WORDS, field};
use outlast::{Error, RecordForm, Scheme};
use std::sync::Arc;

/// A pool in memory.
pub type Pool = Arc<Store<Real>>;

fn seam() -> Real {
    Real::new(FlushMode::None).impatient()
}

/// Copies the content of a pool's memory.
pub fn bytes_of(store: &Store<Real>) -> Vec<u8> {
    let memory = &store.core().memory;
    let len = memory.len();
    let mut out = vec![0; len as usize];
    memory.read_bytes(memory.words(0, len).unwrap(), 0, &mut out);
    out
}

/// Returns the word at an offset.
pub fn word_at(bytes: &[u8], offset: u64) -> u64 {
    u64::from_le_bytes(bytes[offset as usize..offset as usize + 8].try_into().unwrap())
}

/// Sets the word at an offset.
pub fn set_word(bytes: &mut [u8], offset: u64, word: u64) {
    bytes[offset as usize..offset as usize + 8].copy_from_slice(&word.to_le_bytes());
}

/// Describes a small map to create. `bits` and `other` determine its shape, as in
/// [`Structure::config`](crate::structures::Structure::config).
pub fn map_info(scheme: Scheme, name: &str, form: RecordForm, bits: u32, other: u32) -> MapInfo {
    let schema = if form == RecordForm::Inline { "u64" } else { "bytes" };
    MapInfo {
        name: name.into(),
        form,
        key_schema: schema.into(),
        value_schema: schema.into(),
        config: (structure(scheme).config)(bits, other),
        expires: false,
    }
}

/// Opens a map, or creates it.
pub fn open_map(store: &Pool, info: MapInfo) -> outlast::Result<Arc<OpenMap>> {
    store.map(&MapRequest { info, scheme_matters: false })
}

/// Creates a pool that can grow to 16 MiB.
pub fn create(hash_function: u32, page_bits: u32) -> Pool {
    let heap = Heap::new(&[], 16 << 20, 0xcd);
    let options = CoreOptions {
        page_bits,
        initial_size: (256 << 10).max(4 << page_bits),
        hash_function,
        identity: Some((0x5eed, 0x1d)),
        ..CoreOptions::default()
    };
    Store::new(Core::create(Backing::Heap(heap), seam(), options).unwrap()).unwrap()
}

/// How to open bytes as a pool.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opening {
    /// Whether the pool is opened read-only.
    pub read_only: bool,
    /// How many bytes it can grow by; 0 stands for 768 KiB.
    pub room: u64,
}

/// Opens bytes as a pool.
///
/// # Errors
/// Those of [`PoolOptions::open`](outlast::PoolOptions::open).
pub fn open(bytes: &[u8], alive: &Arc<Alive>) -> outlast::Result<Pool> {
    open_by(bytes, alive, Opening::default())
}

/// Opens bytes as a pool, with these options.
///
/// # Errors
/// Those of [`open`].
pub fn open_by(bytes: &[u8], alive: &Arc<Alive>, how: Opening) -> outlast::Result<Pool> {
    let actual = bytes.len() as u64;
    let header = Header::read(actual, |offset| {
        let offset = offset as usize;
        let Some(bytes) = bytes.get(offset..offset + HEADER_WORDS * 8) else {
            return Err(Error::not_a_pool("its end"));
        };
        Ok(std::array::from_fn(|i| word_at(bytes, i as u64 * 8)))
    })?;
    let size = header.get(field::SIZE) as usize;
    let room = if how.room == 0 { 768 << 10 } else { how.room };
    let heap = Heap::new(&bytes[..size], size as u64 + room, 0xcd);
    let options = CoreOptions {
        read_only: how.read_only,
        accept_possibly_torn: true,
        ..CoreOptions::default()
    };
    let core = Core::open(Backing::Heap(heap), seam(), header, options)?;
    Store::with_alive(core, Arc::clone(alive))
}
