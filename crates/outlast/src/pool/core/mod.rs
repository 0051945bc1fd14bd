//! The core of a pool, on which the indexes are built: memory, header, gate, allocator and epochs.

mod journal;
mod life;
mod options;
mod refusals;
mod space;
mod trim;

pub use life::Quiet;
pub use options::{CoreOptions, ProgressListener, Recovery, RecoveryProgress};
pub use trim::Trimmed;

use super::alloc::Alloc;
use super::backing::Backing;
use super::gate::Gate;
use super::geometry::Geometry;
use super::hash::Hasher;
use super::header::Header;
use super::layout::{
    BATCH_OFFSET, FRONTIER_OFFSET, HEADER_OFFSETS, HeaderCopy, ROOT_SLOTS, ROOTS_OFFSET, RootSlot,
    field, pack_frontier, unpack_frontier,
};
use super::{points, roots};
use crate::error::{Damage, Error, Result};
use crate::pmem::{Memory, Offset, Seam, Shared, Word, words_of};
use crate::pool::bugs;
use crate::reclaim::Epochs;
use crate::reclaim::threads;
use refusals::Refusals;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, Weak};
use std::thread::Thread;

/// Finishes the reclaim that an allocation waits for.
pub trait Reclaimer: Send + Sync {
    /// Runs the reclaim to its end. Returns whether all space is accounted for.
    fn finish(&self) -> Result<bool>;

    /// Frees the blocks of dropped maps that have no handle any more. Returns whether there were any
    /// such maps.
    fn free_dropped(&self) -> Result<bool>;
}

/// The core of a pool; see the module's documentation.
pub struct Core<S: Seam> {
    /// The mapped memory.
    pub memory: Memory<S>,
    /// The pool's geometry.
    pub geometry: Geometry,
    /// The pool's hash function.
    pub hasher: Hasher,
    options: CoreOptions,
    backing: Backing,
    header: Mutex<Header>,
    /// Serializes marking dirty, sync, snapshot, verify, batches and close.
    control: Mutex<()>,
    /// Held while the pool is written back and changes go on. A thread that marks the pool clean or
    /// closes it takes this after `control`, because the kernel reports a failed write-back only
    /// once, and the report may go to a thread that is just writing the pool back.
    write_back: Mutex<()>,
    growth: Mutex<()>,
    /// Size of the pool as the header on media has it, in bytes. Pages may be claimed up to here.
    size: AtomicU64,
    gate: Gate,
    /// Whether background work leaves the pool alone while the gate is clean. True after the pool
    /// was created or synced, or opened with an intact saved free state; otherwise there may be
    /// space to reclaim. Changed under `control`.
    at_rest: AtomicBool,
    alloc: Alloc,
    epochs: Shared<Epochs>,
    reclaimer: OnceLock<Weak<dyn Reclaimer>>,
    /// The background thread, which is woken when space is claimed.
    worker: OnceLock<Thread>,
    leaked: AtomicU64,
    /// Bytes that were announced since the background thread last looked; see
    /// [`expect`](Core::expect).
    announced: AtomicU64,
    /// The offset up to which the pool will soon be in use.
    expected: AtomicU64,
    /// A root that a clean pool has lost: its slot, and the damage found.
    lost_root: Option<(usize, Damage)>,
    /// Damage in the saved free state of a clean pool.
    saved_damage: Option<Damage>,
    /// The epoch of a visit for which a wait timed out; 0 means none.
    stopped_visit: AtomicU64,
    /// Like `stopped_visit`, for waits when the pool could not grow. `u64::MAX` means none, and 0 a
    /// wait during which there was no visit.
    hopeless_visit: AtomicU64,
    /// The last refusals of the file system.
    refusals: Refusals,
    /// The pool was opened although it may be torn.
    torn: bool,
    /// The disk may lack something that was written: see [`Error::Suspect`]. Changed under
    /// `header`, whose dirty mark has the same information.
    suspect: AtomicBool,
    /// Whether the pool's file has been seen to have a name.
    was_named: AtomicBool,
}

/// How many turns an allocation, or a call that finishes the reclaim, waits for operations of other
/// threads that keep space from reuse.
pub const GRACE_TURNS: u32 = 1 << 10;
/// Like [`GRACE_TURNS`], if the allocation would otherwise fail: some seconds.
const FULL_TURNS: u32 = 1 << 16;
/// Turns to wait for a thread that holds the last free blocks.
const HAND_TURNS: u32 = 1 << 7;
/// After this many turns of waiting for a lock, a tenth of a second, a thread checks whether any
/// thread can be holding it.
const WAIT_ALONE: u32 = 1 << 11;
/// After this many turns of waiting for a lock, over a minute, the lock counts as damaged.
const WAIT_TURNS: u32 = 1 << 20;

/// Returns a random number, so that no two pools or maps share one.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("the system's random source fails: {e}"),
        }
    }
    u64::from_le_bytes(bytes)
}

/// Whether one thread issues the fences for all.
fn asymmetric<S: Seam>() -> bool {
    S::ASYMMETRIC_FENCES && threads::asymmetric()
}

impl<S: Seam> Core<S> {
    /// Creates a pool in `backing`, whose first `options.initial_size` bytes exist.
    pub fn create(backing: Backing, seam: S, options: CoreOptions) -> Result<Self> {
        let geometry = Geometry::new(options.page_bits).ok_or_else(|| Error::Invalid {
            what: "page size",
            why: format!("2^{} bytes; allowed are 2^12 to 2^20", options.page_bits),
        })?;
        let size = options.initial_size & !(geometry.page_bytes() - 1);
        let least = geometry.offset_of(geometry.first_page());
        if size < least || size >= 1 << 48 || size > backing.reserved() {
            let limit = match options.max_size {
                0 => String::new(),
                max => format!(" (`max_size` is {max})"),
            };
            return Err(Error::Invalid {
                what: "size of a new pool",
                why: format!(
                    "{size} bytes in whole pages{limit}; allowed are {least} to {} bytes",
                    backing.reserved()
                ),
            });
        }
        let (seed, id) = options
            .identity
            .unwrap_or_else(|| (random(), u128::from(random()) << 64 | u128::from(random())));
        let hasher = Hasher::from_media(options.hash_function, seed)?;
        // SAFETY: the backing lives as long as the memory, and nothing else accesses it.
        let memory = unsafe { Self::memory_of(&backing, size, seam) };
        let mut header = Header::new(geometry, options.hash_function, seed, id);
        header.set(field::SIZE, size);
        header.set(field::RECLAIMED_SIZE, size);
        header.set(field::MAX_SIZE, options.max_size);
        header.set(field::MEDIUM, options.medium as u64);
        seed!(memory.seam(), bugs::HEADER_FIRST => header.write(&memory, &points::HEADER)?);
        // Everything that the header promises is durable before the first copy of the header, so an
        // interrupted creation leaves no pool.
        for slot in 0..ROOT_SLOTS {
            let root = memory.at(root_offset(slot))?;
            memory.store(&root.commit, 0, &points::CREATE);
            memory.flush(&root.commit, &points::CREATE);
        }
        let frontier = memory.at(Offset::<Word>::new(FRONTIER_OFFSET))?;
        memory.store(frontier, pack_frontier(geometry.first_page()), &points::CREATE);
        memory.flush(frontier, &points::CREATE);
        let batch = memory.at(Offset::<Word>::new(BATCH_OFFSET))?;
        memory.store(batch, 0, &points::CREATE);
        memory.flush(batch, &points::CREATE);
        memory.fence(&points::CREATE);
        header.write(&memory, &points::HEADER)?;
        header.write(&memory, &points::HEADER)?;
        let alloc = Alloc::new(geometry, geometry.first_page(), false, backing.reserved());
        let mut core = Self::assemble(memory, header, hasher, alloc, backing, options);
        core.at_rest = AtomicBool::new(true);
        core.fsync(Backing::sync)?;
        Ok(core)
    }

    /// Wraps the first `size` bytes of the backing.
    ///
    /// # Safety
    /// These exist. The backing lives as long as the memory, and nothing else accesses it.
    unsafe fn memory_of(backing: &Backing, size: u64, seam: S) -> Memory<S> {
        let side = backing.region().start();
        // SAFETY: the caller's promise; shadow and side table are as long as the backing.
        unsafe { Memory::new(backing.base(), backing.shadow(), side, size, seam) }
    }

    /// Builds a core from its parts. It is neither at rest nor suspect.
    fn assemble(
        memory: Memory<S>,
        header: Header,
        hasher: Hasher,
        alloc: Alloc,
        backing: Backing,
        options: CoreOptions,
    ) -> Self {
        let header = header.of_medium(options.medium, options.boot);
        Core {
            memory,
            geometry: header.geometry(),
            hasher,
            // Stores to a read-only pool stay private, so it needs no dirty mark.
            gate: Gate::new(options.read_only, asymmetric::<S>()),
            at_rest: AtomicBool::new(false),
            options,
            backing,
            size: AtomicU64::new(header.get(field::SIZE)),
            header: Mutex::new(header),
            control: Mutex::default(),
            write_back: Mutex::default(),
            growth: Mutex::default(),
            alloc,
            epochs: Shared::part(Epochs::new(asymmetric::<S>())),
            reclaimer: OnceLock::new(),
            worker: OnceLock::new(),
            leaked: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            lost_root: None,
            saved_damage: None,
            stopped_visit: AtomicU64::new(0),
            hopeless_visit: AtomicU64::new(u64::MAX),
            refusals: Refusals::default(),
            torn: false,
            suspect: AtomicBool::new(false),
            was_named: AtomicBool::new(false),
        }
    }

    /// Opens the pool in `backing`, which must cover the whole file. `header` must have been read
    /// from it with [`Header::read`].
    pub fn open(
        backing: Backing,
        seam: S,
        header: Header,
        mut options: CoreOptions,
    ) -> Result<Self> {
        let geometry = header.geometry();
        let hasher = Hasher::from_media(header.hash_function(), header.get(field::SEED))?;
        if !options.read_only {
            header.check_writable()?;
        }
        let torn = if options.whole {
            None
        } else {
            header.possibly_torn(backing.identity()?, options.boot)
        };
        if let Some(reason) = &torn
            && !options.accept_possibly_torn
        {
            // The damaged copy may have been the one that called the pool clean. Or a writer was
            // just writing it, in the middle of changes, when the file was copied or the power
            // failed. The two cases look the same, so the intact copy's dirty mark decides.
            let reason = reason.clone();
            return Err(Error::PossiblyTorn {
                path: options.path,
                reason,
                damaged_copy: header.copy_damaged,
            });
        }
        // A close must not mark such a pool clean before it has been verified.
        let suspect = header.is_suspect() || torn.is_some() || options.mixed;
        let is_torn = torn.is_some() || options.mixed;
        let unmarked = options.mixed || torn.is_some() && !header.is_dirty();
        let size = header.get(field::SIZE);
        if options.max_size == 0 {
            options.max_size = header.get(field::MAX_SIZE);
        }
        // SAFETY: the backing lives as long as the memory, and nothing else accesses it. It is at
        // least as long as the header says, which was checked when the header was read.
        let memory = unsafe { Self::memory_of(&backing, size, seam) };
        let word = memory.load(memory.at(Offset::<Word>::new(FRONTIER_OFFSET))?);
        let frontier = unpack_frontier(word)
            .filter(|f| (geometry.first_page()..=geometry.pages_in(size)).contains(f))
            .ok_or_else(|| {
                Error::damaged_header(Damage::new(
                    FRONTIER_OFFSET,
                    "the frontier: a number of pages and its checksum",
                    format!("{word:#x}"),
                ))
            })?;
        // Without a page in use, there is nothing to reclaim.
        let old = frontier > geometry.first_page();
        let alloc = Alloc::new(geometry, frontier, old, backing.reserved());
        let clean = !header.is_dirty()
            && header.copy_damaged.is_none()
            && !unmarked
            && !header.is_synced_idle();
        let saved = (header.get(field::SAVED), header.get(field::SAVED_BYTES));
        let mut core = Self::assemble(memory, header, hasher, alloc, backing, options);
        core.suspect = AtomicBool::new(suspect);
        core.torn = is_torn;
        // This comes before anything is stored: a store to a hole could find the disk full.
        core.fill_own_pages()?;
        if !core.options.read_only {
            core.make_found_durable(clean)?;
        }
        if unmarked && !core.options.read_only {
            core.note_suspect();
        }
        core.check_named()?;
        core.lost_root = roots::check_commits(&core, &core.header())?;
        if clean && saved.0 != 0 {
            let restored = core.alloc.restore(&core, saved.0, saved.1)?;
            core.at_rest.store(restored, Ordering::Relaxed);
            if !restored {
                let found = format!("{} bytes that cannot be decoded", saved.1);
                core.saved_damage = Some(Damage::new(saved.0, "a saved free state", found));
                tracing::warn!("the saved free state is damaged; tracing the space instead");
            }
        }
        core.find_holes()?;
        Ok(core)
    }

    /// Flushes the header as found at an open, and unless the pool is `clean`, also the frontier,
    /// the batch word and the commit words of the roots.
    ///
    /// A process that died may have left stores in the caches that it had not flushed. This process
    /// finds them there and builds on them, so a power loss must not undo them. That includes the
    /// header, because this process will write one copy while the other is the only intact one. An
    /// index flushes what it finds at first touch.
    fn make_found_durable(&self, clean: bool) -> Result<()> {
        let memory = &self.memory;
        if !memory.seam().seeded(&bugs::FOUND_HEADER_CACHED) {
            for copy in HEADER_OFFSETS {
                memory.flush(memory.at(Offset::<HeaderCopy>::new(copy))?, &points::FOUND);
            }
        }
        if clean {
            // All else was durable before this header was written.
            memory.fence(&points::FOUND);
            return Ok(());
        }
        for word in [FRONTIER_OFFSET, BATCH_OFFSET] {
            memory.flush(memory.at(Offset::<Word>::new(word))?, &points::FOUND);
        }
        for slot in 0..ROOT_SLOTS {
            // The fixed words became durable before the commit word was stored. The scheme's words
            // share the commit word's cache line.
            memory.flush(&memory.at(root_offset(slot))?.commit, &points::FOUND);
        }
        memory.fence(&points::FOUND);
        Ok(())
    }
}

/// Offset of a root's slot.
pub fn root_offset(slot: usize) -> Offset<RootSlot> {
    Offset::new(ROOTS_OFFSET + (slot * size_of::<RootSlot>()) as u64)
}

/// Returns the words of a root slot.
pub fn root_words(root: &RootSlot) -> &[Word] {
    words_of(root)
}
