//! Recorders, and pools that are opened in memory.

use crate::model::GARBAGE;
use outlast::internals::db::store::Store;
use outlast::internals::pmem::{Alive, Control, MediumKind, Traced};
use outlast::internals::pool::backing::{Backing, Heap};
use outlast::internals::pool::core::{Core, CoreOptions};
use outlast::internals::pool::header::Header;
use outlast::internals::pool::layout::HEADER_WORDS;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Panics if the only thread keeps waiting for a lock, because only the thread itself can hold it.
#[derive(Default)]
struct Alone(AtomicU32);

impl Control for Alone {
    fn before(&self, _thread: usize, waiting: bool) {
        if waiting {
            let turns = self.0.fetch_add(1, Ordering::Relaxed);
            assert!(turns < 10_000, "the only thread waits for ever");
        }
    }

    fn only_waiting(&self) -> bool {
        true
    }
}

/// The size and the hash function of a pool in memory.
#[derive(Debug, Clone, Copy)]
pub struct PoolShape {
    /// Initial number of pages.
    pub pages: u64,
    /// Number of pages that it can grow to.
    pub max_pages: u64,
    /// The number of the hash function.
    pub hash_function: u32,
}

/// log2 of the page size of every pool here: the smallest possible one.
pub const PAGE_BITS: u32 = 12;

impl Default for PoolShape {
    fn default() -> Self {
        PoolShape { pages: 40, max_pages: 96, hash_function: 1 }
    }
}

pub(super) fn options() -> CoreOptions {
    CoreOptions { medium: MediumKind::Bytes, ..CoreOptions::default() }
}

/// Makes a recorder for one thread. If `recording`, it records from the start.
pub fn recorder(recording: bool) -> Traced {
    let seam = Traced::with_control(Box::new(Alone::default()));
    if recording {
        seam.start(false);
    }
    seam
}

/// Makes a recorder that records from the start, and that also keeps a digest of all reads in a
/// pool of `bytes` bytes.
pub fn watcher(bytes: u64) -> Traced {
    let seam = Traced::watching(Box::new(Alone::default()), bytes);
    seam.start(false);
    seam
}

/// Opens a file's bytes as a pool.
///
/// # Errors
/// The same as for opening a file.
pub fn open_bytes(
    file: &[u8],
    capacity: u64,
    seam: Traced,
    alive: &Arc<Alive>,
) -> outlast::Result<Arc<Store<Traced>>> {
    open_bytes_with(file, capacity, seam, alive, options())
}

/// Like [`open_bytes`], with these options.
///
/// # Errors
/// The same as for opening a file.
pub fn open_bytes_with(
    file: &[u8],
    capacity: u64,
    seam: Traced,
    alive: &Arc<Alive>,
    options: CoreOptions,
) -> outlast::Result<Arc<Store<Traced>>> {
    open_heap(Heap::new(file, capacity, GARBAGE), file.len() as u64, seam, alive, options)
}

/// Opens memory as a pool. Its first `len` bytes are the file.
fn open_heap(
    heap: Heap,
    len: u64,
    seam: Traced,
    alive: &Arc<Alive>,
    options: CoreOptions,
) -> outlast::Result<Arc<Store<Traced>>> {
    let header = Header::read(len, |offset| {
        let words: [u64; HEADER_WORDS] = std::array::from_fn(|i| heap.word(offset + i as u64 * 8));
        (offset..).step_by(8).zip(words).for_each(|(at, value)| seam.saw(at, value));
        Ok(words)
    })?;
    let core = Core::open(Backing::Heap(heap), seam, header, options)?;
    Store::with_alive(core, Arc::clone(alive))
}

/// Opens the memory of a store once more, as the next process would open its file. Handles and
/// references from the old store share that memory, so they see the new store's changes.
///
/// # Errors
/// [`Locked`](outlast::Error::Locked) while the store is open; otherwise the same as for opening a
/// file.
pub fn open_beside(
    store: &Store<Traced>,
    seam: Traced,
    alive: &Arc<Alive>,
) -> outlast::Result<Arc<Store<Traced>>> {
    let heap = match store.core().backing() {
        Backing::Heap(heap) => heap.map_again(),
        Backing::Mapped(_) | Backing::Journaled(_) => None,
    };
    open_heap(
        heap.ok_or(outlast::Error::Locked { path: Default::default() })?,
        store.core().memory.len(),
        seam,
        alive,
        options(),
    )
}

/// Makes the page by which a pool detects that it runs in a forked child. All images share it.
pub fn alive() -> Arc<Alive> {
    Arc::new(Alive::new().expect("a page of memory"))
}
