//! The core of a pool, on which the indexes are built: memory, header, gate, allocator and epochs.

use super::alloc::{Alloc, Block};
use super::backing::{Backing, mapping_error};
use super::gate::{Brief, Entered, Gate, Held, Writing};
use super::geometry::{DEFAULT_PAGE_BITS, Geometry};
use super::hash::Hasher;
use super::header::Header;
use super::layout::{
    DIRTY, FRONTIER_OFFSET, LACKS_ROOT, PageKind, ROOT_SLOTS, ROOTS_OFFSET, RootSlot, SUSPECT,
    field, pack_frontier, pack_roots, unpack_frontier,
};
use super::{points, roots};
use crate::error::{Damage, Error, Result};
use crate::pmem::{
    MappingError, MediumKind, Memory, Offset, Planted, Point, Seam, Shared, Word, words_of,
};
use crate::reclaim::threads::{self, thread_number};
use crate::reclaim::{Epochs, Pin, Visit};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::Thread;

/// Progress in opening a map, for schemes that read the whole map when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryProgress {
    /// Parts of the map that have been read.
    pub parts_done: usize,
    /// Number of parts. They are of about equal size.
    pub parts: usize,
    /// Leaves that have been read.
    pub leaves: u64,
}

/// A function that receives the progress.
#[derive(Clone)]
pub struct ProgressListener(Arc<dyn Fn(RecoveryProgress) + Send + Sync>);

impl ProgressListener {
    /// Wraps `tell`, which any of the threads that open a map may call.
    pub fn new(tell: impl Fn(RecoveryProgress) + Send + Sync + 'static) -> Self {
        ProgressListener(Arc::new(tell))
    }

    /// Reports `progress`.
    pub fn tell(&self, progress: RecoveryProgress) {
        (self.0)(progress);
    }
}

impl fmt::Debug for ProgressListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressListener")
    }
}

/// Options for opening maps whose schemes read the whole map when it is opened.
#[derive(Debug, Clone)]
pub struct Recovery {
    /// Number of threads that read it.
    pub threads: usize,
    /// Receives the progress.
    pub progress: Option<ProgressListener>,
}

/// Options for creating or opening a core.
#[derive(Debug, Clone)]
pub struct CoreOptions {
    /// log2 of the page size. Used at creation.
    pub page_bits: u32,
    /// Initial size in bytes. Used at creation.
    pub initial_size: u64,
    /// Size that the pool may not exceed, in bytes; 0 for no limit. Kept in the header.
    pub max_size: u64,
    /// Number of the hash function. Used at creation.
    pub hash_function: u32,
    /// Hash seed and pool id. Used at creation; random if not given.
    pub identity: Option<(u64, u128)>,
    /// The medium to record and to judge by.
    pub medium: MediumKind,
    /// Stores go to private pages, and nothing reaches the file.
    pub read_only: bool,
    /// The id of the current boot.
    pub boot: u128,
    /// Open the pool even if a power loss may have torn it.
    pub accept_possibly_torn: bool,
    /// Options for opening maps.
    pub recovery: Recovery,
}

impl Default for CoreOptions {
    fn default() -> Self {
        CoreOptions {
            page_bits: DEFAULT_PAGE_BITS,
            initial_size: 1 << 20,
            max_size: 0,
            hash_function: 1,
            identity: None,
            medium: MediumKind::Bytes,
            read_only: false,
            boot: 0,
            accept_possibly_torn: false,
            recovery: Recovery { threads: 1, progress: None },
        }
    }
}

/// Finishes the reclaim that an allocation waits for.
pub trait Reclaimer: Send + Sync {
    /// Runs the reclaim to its end. Returns whether all space is accounted for.
    fn finish(&self) -> Result<bool>;
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
    /// Serialises marking dirty, sync, snapshot and close.
    control: Mutex<()>,
    growth: Mutex<()>,
    /// Size of the pool as the header on media has it, in bytes. Pages may be claimed up to here.
    size: AtomicU64,
    gate: Gate,
    /// The pool was closed or synced, and its user has changed nothing since, so background work
    /// leaves it alone. Not set at an open that finds space to reclaim. Changed under `control`.
    at_rest: AtomicBool,
    alloc: Alloc,
    epochs: Shared<Epochs>,
    reclaimer: OnceLock<Weak<dyn Reclaimer>>,
    /// The background thread, which is woken when space was claimed.
    worker: OnceLock<Thread>,
    leaked: AtomicU64,
    /// A root that a clean pool has lost: its slot, and the damage found.
    lost_root: Option<(usize, Damage)>,
    /// Damage in the saved free state of a clean pool.
    saved_damage: Option<Damage>,
    /// The epoch of a visit for which a wait timed out; 0 means none.
    stopped_visit: AtomicU64,
    /// The same, for waits where the pool could not grow.
    hopeless_visit: AtomicU64,
    /// The disk may lack something that was written: see [`Error::Suspect`]. Changed under
    /// `header`, whose dirty mark has the same information.
    suspect: AtomicBool,
}

/// Turns that an allocation waits for other threads' operations that keep space from reuse.
pub const GRACE_TURNS: u32 = 1 << 10;
/// The same, where the allocation would otherwise fail: some seconds.
const FULL_TURNS: u32 = 1 << 16;
/// Turns to wait for a thread that holds the last free blocks.
const HAND_TURNS: u32 = 1 << 7;
/// Turns of waiting for a lock after which its holder is looked for: a tenth of a second.
const WAIT_ALONE: u32 = 1 << 11;
/// Turns of waiting for a lock after which it counts as damaged: over a minute.
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

/// Whether one thread makes the fences for all.
fn asymmetric<S: Seam>() -> bool {
    S::ASYMMETRIC_FENCES && threads::asymmetric()
}

impl<S: Seam> Core<S> {
    /// Creates a pool in `backing`, whose first `options.initial_size` bytes exist.
    pub fn create(backing: Backing, seam: S, options: CoreOptions) -> Result<Self> {
        let geometry = Geometry::new(options.page_bits).ok_or_else(|| Error::Invalid {
            what: "page size",
            why: format!("2^{} bytes", options.page_bits),
        })?;
        let size = options.initial_size & !(geometry.page_bytes() - 1);
        let least = geometry.offset_of(geometry.first_page());
        if size < least || size >= 1 << 48 || size > backing.reserved() {
            return Err(Error::Invalid {
                what: "size of a new pool",
                why: format!(
                    "{size} bytes, by whole pages (initial size, or max size if that is less); \
                     from {least} to {} can be",
                    backing.reserved()
                ),
            });
        }
        let (seed, id) = options
            .identity
            .unwrap_or_else(|| (random(), u128::from(random()) << 64 | u128::from(random())));
        let hasher = Hasher::from_media(options.hash_function, seed)?;
        // SAFETY: the backing lives as long as the memory, and nothing else accesses it.
        let memory = unsafe { Memory::new(backing.base(), backing.shadow(), size, seam) };
        let mut header = Header::new(geometry, options.hash_function, seed, id);
        header.set(field::SIZE, size);
        header.set(field::RECLAIMED_SIZE, size);
        header.set(field::MAX_SIZE, options.max_size);
        header.set(field::MEDIUM, options.medium as u64);
        if memory.seam().planted(Planted::HeaderFirst) {
            header.write(&memory, &points::HEADER)?;
        }
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
        memory.fence(&points::CREATE);
        header.write(&memory, &points::HEADER)?;
        header.write(&memory, &points::HEADER)?;
        let alloc = Alloc::new(geometry, geometry.first_page(), false, backing.reserved());
        let core = Core {
            memory,
            geometry,
            hasher,
            options,
            backing,
            header: Mutex::new(header),
            control: Mutex::default(),
            growth: Mutex::default(),
            size: AtomicU64::new(size),
            gate: Gate::new(false, asymmetric::<S>()),
            at_rest: AtomicBool::new(true),
            alloc,
            epochs: Shared::part(Epochs::new(asymmetric::<S>())),
            reclaimer: OnceLock::new(),
            worker: OnceLock::new(),
            leaked: AtomicU64::new(0),
            lost_root: None,
            saved_damage: None,
            stopped_visit: AtomicU64::new(0),
            hopeless_visit: AtomicU64::new(u64::MAX),
            suspect: AtomicBool::new(false),
        };
        core.fsync(Backing::sync)?;
        Ok(core)
    }

    /// Opens the pool in `backing`, which holds the whole file. `header` was read from it with
    /// [`Header::read`].
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
        let torn = if header.is_dirty() {
            header.possibly_torn(backing.identity()?, options.boot)
        } else {
            None
        };
        if let Some(reason) = torn
            && !options.accept_possibly_torn
        {
            return Err(Error::PossiblyTorn { reason });
        }
        // A close must not mark such a pool clean before it has been verified.
        let suspect = header.is_suspect() || torn.is_some();
        let size = header.get(field::SIZE);
        if options.max_size == 0 {
            options.max_size = header.get(field::MAX_SIZE);
        }
        // SAFETY: the backing lives as long as the memory, and nothing else accesses it. It is at
        // least as long as the header says, which was checked when the header was read.
        let memory = unsafe { Memory::new(backing.base(), backing.shadow(), size, seam) };
        let word = memory.load(memory.at(Offset::<Word>::new(FRONTIER_OFFSET))?);
        let frontier = unpack_frontier(word)
            .filter(|f| (geometry.first_page()..=geometry.pages_in(size)).contains(f))
            .ok_or_else(|| {
                Error::DamagedHeader(Damage::new(
                    FRONTIER_OFFSET,
                    "the frontier: a number of pages and its checksum",
                    format!("{word:#x}"),
                ))
            })?;
        let alloc = Alloc::new(geometry, frontier, true, backing.reserved());
        let clean = !header.is_dirty() && header.copy_damaged.is_none();
        let saved = (header.get(field::SAVED), header.get(field::SAVED_BYTES));
        let mut core = Core {
            memory,
            geometry,
            hasher,
            // Stores to a read-only pool stay private, so it needs no dirty mark.
            gate: Gate::new(options.read_only, asymmetric::<S>()),
            at_rest: AtomicBool::new(false),
            options,
            backing,
            header: Mutex::new(header),
            control: Mutex::default(),
            growth: Mutex::default(),
            size: AtomicU64::new(size),
            alloc,
            epochs: Shared::part(Epochs::new(asymmetric::<S>())),
            reclaimer: OnceLock::new(),
            worker: OnceLock::new(),
            leaked: AtomicU64::new(0),
            lost_root: None,
            saved_damage: None,
            stopped_visit: AtomicU64::new(0),
            hopeless_visit: AtomicU64::new(u64::MAX),
            suspect: AtomicBool::new(suspect),
        };
        if !clean && !core.options.read_only {
            core.make_found_durable()?;
        }
        core.lost_root = roots::check_commits(&core, &core.header())?;
        if clean && saved.0 != 0 {
            let restored = core.alloc.restore(&core, saved.0, saved.1)?;
            core.at_rest.store(restored, Ordering::Relaxed);
            if !restored {
                let found = format!("{} bytes that are not one", saved.1);
                core.saved_damage = Some(Damage::new(saved.0, "a saved free state", found));
                tracing::warn!("saved free state is damaged; space is traced instead");
            }
        }
        Ok(core)
    }

    /// Flushes the frontier and the commit words of the roots as found at an open.
    ///
    /// A process that died may have left stores in the caches that it had not flushed. This process
    /// finds them there and builds on them, so a power loss must not undo them. The header is
    /// written before the first store anyway, and indexes flush what they touch first.
    fn make_found_durable(&self) -> Result<()> {
        let memory = &self.memory;
        memory.flush(memory.at(Offset::<Word>::new(FRONTIER_OFFSET))?, &points::FOUND);
        for slot in 0..ROOT_SLOTS {
            // The fixed words have been durable since before the commit word. The scheme's words
            // share its cache line.
            memory.flush(&memory.at(root_offset(slot))?.commit, &points::FOUND);
        }
        memory.fence(&points::FOUND);
        Ok(())
    }

    // ---- Life -------------------------------------------------------------------

    /// The options that the pool was opened with.
    pub fn options(&self) -> &CoreOptions {
        &self.options
    }

    /// The memory that backs the pool.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Returns a copy of the header.
    pub fn header(&self) -> Header {
        self.memory.seam().lock(&self.header).clone()
    }

    /// Enters the gate to store to the pool. Marks the pool dirty first if it is clean.
    pub fn enter(&self) -> Result<Writing<'_>> {
        match self.gate.pass() {
            Some(inside) => Ok(inside.stay()),
            None => self.enter_slowly(),
        }
    }

    /// The fast path of [`enter_to_change`](Core::enter_to_change). Returns `None` if entering
    /// would take waiting or anything else.
    #[inline(always)]
    pub fn pass_to_change(&self) -> Option<Brief<'_>> {
        if self.options.read_only { None } else { self.gate.pass() }
    }

    #[cold]
    fn enter_slowly(&self) -> Result<Writing<'_>> {
        let mut turn = 0;
        loop {
            match self.gate.try_enter()? {
                Entered::Writing(writing) => return Ok(writing),
                Entered::MarkDirty => self.mark_dirty()?,
                Entered::Wait => self.memory.seam().wait(&mut turn),
            }
        }
    }

    /// As [`enter`](Core::enter), for background work. Returns `None` if entering would make a pool
    /// at rest dirty.
    pub fn enter_in_background(&self) -> Result<Option<Writing<'_>>> {
        if self.gate.is_clean() {
            let seam = self.memory.seam();
            let _control = seam.lock(&self.control);
            if self.gate.is_clean() && !self.at_rest.load(Ordering::Relaxed) {
                self.mark_dirty_controlled()?;
            }
        }
        match self.gate.try_enter()? {
            Entered::Writing(writing) => Ok(Some(writing)),
            Entered::MarkDirty | Entered::Wait => Ok(None),
        }
    }

    /// As [`enter`](Core::enter), for changes made by the user.
    pub fn enter_to_change(&self) -> Result<Writing<'_>> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        self.enter()
    }

    /// Records in the header that the pool uses read-only compatible features, durably, before it
    /// uses them. The caller has passed the gate.
    pub fn use_feature(&self, bits: u64, at: &'static Point) -> Result<()> {
        {
            let mut header = self.memory.seam().lock(&self.header);
            let features = header.get(field::READ_ONLY_COMPATIBLE);
            if features & bits == bits {
                return Ok(());
            }
            header.set(field::READ_ONLY_COMPATIBLE, features | bits);
            header.write(&self.memory, at)?;
        }
        self.fsync(Backing::sync_header)
    }

    /// A root that the pool had when it was closed and now lacks: its slot and the damage.
    pub fn lost_root(&self) -> Option<&(usize, Damage)> {
        self.lost_root.as_ref()
    }

    /// The damage in the saved free state that a clean pool's header named. The pool's space is
    /// traced instead, but the trace does not notice blocks that its maps have lost.
    pub fn saved_damage(&self) -> Option<&Damage> {
        self.saved_damage.as_ref()
    }

    /// Whether the pool is open and sound.
    #[inline(always)]
    pub fn is_readable(&self) -> bool {
        self.gate.is_readable()
    }

    /// Fails if the pool is not open and sound.
    #[inline]
    pub fn check(&self) -> Result<()> {
        self.gate.check()
    }

    /// Checks the gate. Called after something was read outside the gate, and before it is used.
    ///
    /// # Errors
    /// [`Error::NotOpen`] if the pool was closed: another process may then have changed the file's
    /// memory.
    #[inline(always)]
    pub fn check_after_read(&self) -> Result<()> {
        // `close` closes the gate, then releases the file's lock, and only then can another opener
        // store. So a thread that has read any of those stores sees the gate closed.
        fence(Ordering::Acquire);
        self.gate.check()
    }

    /// Whether this process is the one that has the memory. A forked child does not have it.
    pub fn is_here(&self) -> bool {
        self.backing.mapping().is_none_or(|mapping| mapping.alive().is_here())
    }

    /// Waits one turn for a lock of an index.
    ///
    /// # Errors
    /// Fails if the lock's holder may be gone, because a thread panicked or the pool was closed.
    #[inline]
    pub fn wait(&self, turn: &mut u32) -> Result<()> {
        self.memory.seam().wait(turn);
        self.gate.check()
    }

    /// Waits one turn for a lock of a structure in memory. `inside` is 1 if the calling thread has
    /// passed the gate, else 0. `lock` returns the structure's offset and the content of the lock
    /// word.
    ///
    /// # Errors
    /// As [`wait`](Core::wait). [`Damage`] if no thread can be holding the lock, or none releases
    /// it: in a damaged file two structures can share memory, and then threads wait for each other.
    #[inline]
    pub fn wait_for_lock(
        &self,
        turn: &mut u32,
        inside: usize,
        lock: impl FnOnce() -> (u64, u64),
    ) -> Result<()> {
        self.wait(turn)?;
        if *turn < WAIT_ALONE { Ok(()) } else { self.wait_long(turn, inside, lock) }
    }

    #[cold]
    fn wait_long(
        &self,
        turn: &mut u32,
        inside: usize,
        lock: impl FnOnce() -> (u64, u64),
    ) -> Result<()> {
        // A thread that holds a lock is inside the gate. One look can fall between two holders, so
        // it takes several. If all of them fall between holders, the caller gets an error and
        // nothing has happened.
        if turn.is_multiple_of(64) && self.gate.inside() <= inside {
            *turn = turn.saturating_add(WAIT_TURNS / 16);
        }
        if *turn < WAIT_TURNS {
            return Ok(());
        }
        let (offset, word) = lock();
        let found = format!("{word:#x}, for too long");
        Err(Damage::new(offset, "a lock that is given back", found).into())
    }

    fn mark_dirty(&self) -> Result<()> {
        let seam = self.memory.seam();
        let _control = seam.lock(&self.control);
        if !self.gate.is_clean() {
            return Ok(());
        }
        self.mark_dirty_controlled()
    }

    /// Marks the pool dirty. The caller holds `control`, and the gate is clean.
    ///
    /// The mark must be on the disk before any later store can get there. Only the header's pages
    /// are written back for it, and not even those if a process that died has done so already.
    fn mark_dirty_controlled(&self) -> Result<()> {
        let seam = self.memory.seam();
        let file = self.backing.identity()?;
        // Other media make the mark durable without the page cache.
        let confirms = self.options.medium == MediumKind::PageCache;
        let is_confirmed = {
            let mut header = seam.lock(&self.header);
            let is_confirmed = confirms
                && header.get(field::MEDIUM) == self.options.medium as u64
                && header.get(field::MAX_SIZE) == self.options.max_size
                && header.copy_damaged.is_none()
                && header.is_confirmed(file, self.options.boot)
                && self.is_suspect() == header.is_suspect();
            if !is_confirmed {
                if !seam.planted(Planted::NotMarkedDirty) {
                    header.set(field::DIRTY, self.dirty_mark());
                    header.set(field::SAVED, 0);
                    header.set(field::SAVED_BYTES, 0);
                }
                header.set(field::MEDIUM, self.options.medium as u64);
                header.set_writer(file, self.options.boot);
                header.set(field::MAX_SIZE, self.options.max_size);
                header.set(field::CONFIRMED, 0);
                header.write(&self.memory, &points::HEADER_DIRTY)?;
            }
            is_confirmed
        };
        if !is_confirmed {
            self.fsync(Backing::sync_header)?;
            if confirms {
                let mut header = seam.lock(&self.header);
                header.confirm();
                header.write(&self.memory, &points::HEADER_DIRTY)?;
            }
        }
        self.alloc.forget_saved(self);
        self.gate.marked_dirty();
        Ok(())
    }

    /// The value of [`field::DIRTY`] while the pool is being changed.
    fn dirty_mark(&self) -> u64 {
        let suspect = if self.is_suspect() { SUSPECT } else { 0 };
        let lacks_root = if self.lost_root.is_some() { LACKS_ROOT } else { 0 };
        DIRTY | suspect | lacks_root
    }

    /// Makes the kernel write the pool back, or the part of it that `sync` writes, if the medium
    /// leaves that to the kernel.
    ///
    /// A failed write-back makes the pool suspect. The kernel reports such an error once and then
    /// counts the pages as written, so no later success says anything about them.
    fn fsync(&self, sync: impl Fn(&Backing) -> Result<()>) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let answer = sync(&self.backing);
        if answer.is_err() {
            self.note_suspect();
        }
        answer
    }

    /// Marks the pool suspect: the disk may lack something that was written. The mark is kept in
    /// the header. The next process finds it through the page cache, and also on the disk if the
    /// disk still accepts writes.
    fn note_suspect(&self) {
        let noted = {
            let mut header = self.memory.seam().lock(&self.header);
            self.suspect.store(true, Ordering::Relaxed);
            header.set(field::DIRTY, self.dirty_mark());
            header.set(field::SAVED, 0);
            header.set(field::SAVED_BYTES, 0);
            header.write(&self.memory, &points::HEADER_DIRTY)
        };
        if let Err(error) = noted.and_then(|()| self.backing.sync_header()) {
            tracing::warn!(%error, "a failed write-back is noted in memory alone");
        }
    }

    /// Whether the pool was closed or synced and has not been modified since.
    pub fn is_clean(&self) -> bool {
        self.gate.is_clean() && !self.header().is_dirty()
    }

    /// Whether the disk may lack something that was written: see [`Error::Suspect`].
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// Makes the disk hold everything that memory holds, including pages that the kernel counts as
    /// written. The caller holds all writers back.
    pub fn rewrite(&self) -> Result<()> {
        for offset in (0..self.memory.len()).step_by(4096) {
            let word = self.memory.at(Offset::<Word>::new(offset))?;
            self.memory.store(word, self.memory.load(word), &points::FOUND);
        }
        self.fsync(Backing::sync)
    }

    /// Records that the disk holds what memory holds, and that it was found sound.
    pub fn note_sound(&self) -> Result<()> {
        {
            let mut header = self.memory.seam().lock(&self.header);
            self.suspect.store(false, Ordering::Relaxed);
            header.set(field::DIRTY, self.dirty_mark());
            header.write(&self.memory, &points::HEADER_DIRTY)?;
        }
        self.fsync(Backing::sync_header)
    }

    /// Holds all writers back, makes the pool clean and durable, and calls `then` before writers
    /// continue. `settled` says whether every block in use has an owner, so that the free state can
    /// be saved.
    pub fn sync_and<T>(
        &self,
        settled: impl FnOnce() -> bool,
        then: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let seam = self.memory.seam();
        let _control = seam.lock(&self.control);
        self.mark_what_was_found()?;
        let mut held = self.gate.hold(seam)?;
        self.make_clean(&mut held, settled)?;
        then(self)
    }

    /// Sets this process's dirty mark on a pool that a dead process left dirty and that no one has
    /// changed since. A sync or close then takes the same steps as after a change. The caller holds
    /// `control`.
    fn mark_what_was_found(&self) -> Result<()> {
        let found = self.gate.is_clean() && self.header().is_dirty() && !self.is_suspect();
        if found { self.mark_dirty_controlled() } else { Ok(()) }
    }

    /// As [`sync_and`](Core::sync_and), and closes the pool for good. `last` frees what was kept
    /// for handles. On failure the pool is closed all the same, and stays marked dirty.
    pub fn close(
        &self,
        last: impl FnOnce() -> Result<()>,
        settled: impl FnOnce() -> bool,
    ) -> Result<()> {
        let seam = self.memory.seam();
        let _control = seam.lock(&self.control);
        let marked = self.mark_what_was_found();
        let mut held = self.gate.hold(seam)?;
        let result = if self.options.read_only {
            Ok(())
        } else {
            let last = if held.dirty { last() } else { Ok(()) };
            marked.and(last).and_then(|()| self.make_clean(&mut held, settled))
        };
        held.now_closed();
        drop(held);
        self.backing.unlock();
        result
    }

    /// Holds all writers back while `during` walks the structures, and repairs those that it
    /// touches first.
    pub fn stand_still<T>(&self, during: impl FnOnce() -> Result<T>) -> Result<T> {
        let seam = self.memory.seam();
        let _control = seam.lock(&self.control);
        if self.gate.is_clean() {
            self.mark_dirty_controlled()?;
        }
        let _held = self.gate.hold(seam)?;
        during()
    }

    fn make_clean(&self, held: &mut Held<'_>, settled: impl FnOnce() -> bool) -> Result<()> {
        if self.is_suspect() {
            return Err(Error::Suspect);
        }
        if !held.dirty {
            return Ok(());
        }
        self.collect();
        let saved = if self.epochs().limbo_bytes() == 0 && self.unfreeable() == 0 && settled() {
            self.alloc.save(self)?
        } else {
            None
        };
        // Saving may have made the pool grow and met an error that the kernel reports only once.
        if self.is_suspect() {
            return Err(Error::Suspect);
        }
        // The data goes first: the mark "clean" must not be durable before what it vouches for.
        self.fsync(Backing::sync)?;
        {
            let mut header = self.memory.seam().lock(&self.header);
            let (offset, bytes) = saved.unwrap_or((0, 0));
            header.set(field::DIRTY, 0);
            header.set(field::CONFIRMED, 0);
            header.set(field::SAVED, offset);
            header.set(field::SAVED_BYTES, bytes);
            // A lost root stays lost, and the next open reports it too.
            let commits = roots::commits(self)? ^ u32::from(self.lost_root.is_some());
            let roots = pack_roots(commits, header.get(field::SEQUENCE) + 1);
            header.set(field::ROOTS, roots);
            header.write(&self.memory, &points::HEADER_CLEAN)?;
        }
        // This comes before the write-back, whatever its result: the disk may call the pool clean
        // from now on, so no thread may store before the dirty mark is on the disk again.
        held.now_clean();
        self.fsync(Backing::sync_header)?;
        // A reclaim after a crash waits for the next change by the user: background work must not
        // end the state in which the pool survives a power loss.
        self.at_rest.store(true, Ordering::Relaxed);
        Ok(())
    }

    // ---- Space ------------------------------------------------------------------

    /// The allocator.
    pub fn alloc(&self) -> &Alloc {
        &self.alloc
    }

    /// Allocates a block of at least `bytes`. The caller must not hold a lock of an index.
    pub fn allocate(&self, bytes: u64) -> Result<Block> {
        self.alloc.allocate(self, bytes)
    }

    /// As [`allocate`](Core::allocate), for a record: a value of `value` bytes after `before` other
    /// bytes.
    ///
    /// # Errors
    /// Also [`Error::ValueTooLarge`] if no block of this pool can hold the record.
    pub fn allocate_record(&self, before: usize, value: usize) -> Result<Block> {
        let max = self.geometry.large_max();
        let bytes = (before + value) as u64;
        if bytes > max {
            let max = max as usize - before;
            return Err(Error::ValueTooLarge { len: value, max });
        }
        self.allocate(bytes)
    }

    /// Frees a block that was never linked.
    pub fn free_unlinked(&self, offset: u64) {
        self.free_or_report(offset);
    }

    fn free_or_report(&self, offset: u64) {
        if let Err(damage) = self.alloc.free(self, offset) {
            // The operation that unlinked the block has succeeded; the damage was there before. A
            // block that cannot be freed is kept.
            self.note_unfreeable();
            tracing::warn!(%damage, "a block could not be freed");
        }
    }

    /// Counts blocks that cannot be freed because of damage. The free state is then not exact.
    pub fn note_unfreeable(&self) {
        self.leaked.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of blocks that could not be freed because of damage.
    pub fn unfreeable(&self) -> u64 {
        self.leaked.load(Ordering::Relaxed)
    }

    /// Marks a block alive for the trace. Called before a block that may be from before a crash is
    /// moved or unlinked.
    #[inline]
    pub fn before_unlink(&self, offset: u64) -> Result<(), Damage> {
        if self.alloc.old_frontier() == 0 {
            return Ok(());
        }
        self.alloc.mark(self, offset, None)
    }

    /// Retires a block whose unlinking is durable. It is freed once no guard can read it.
    pub fn retire(&self, offset: u64, bytes: u64) {
        self.retire_by(offset, |free| {
            if self.memory.seam().planted(Planted::FreedEpochEarly) {
                return self.epochs().retire_early(1, offset, bytes, free);
            }
            self.epochs().retire(offset, bytes, free);
        });
    }

    /// As [`retire`](Core::retire), for blocks that operations reach through links in
    /// [visits](Core::visit).
    pub fn retire_visited(&self, offset: u64, bytes: u64) {
        self.retire_by(offset, |free| {
            if self.memory.seam().planted(Planted::FreedEpochEarly) {
                // One of the two epochs is the margin.
                return self.epochs().retire_early(2, offset, bytes, free);
            }
            self.epochs().retire_visited(offset, bytes, free);
        });
    }

    fn retire_by(&self, offset: u64, retire: impl FnOnce(&mut dyn FnMut(u64))) {
        let seam = self.memory.seam();
        if seam.planted(Planted::NeverFreed) {
            return;
        }
        if seam.planted(Planted::FreedTwice) || seam.planted(Planted::FreedUnderReaders) {
            self.free_or_report(offset);
        }
        if seam.planted(Planted::FreedUnderReaders) {
            return;
        }
        retire(&mut |offset| self.free_or_report(offset));
        if seam.reuses_at_once() {
            self.collect();
        }
    }

    /// Frees retired blocks that no guard can read any more.
    pub fn collect(&self) {
        if self.epochs().limbo_bytes() > 0 {
            self.epochs().collect(|offset| self.free_or_report(offset));
        }
    }

    /// The pool's epochs.
    #[inline(always)]
    pub fn epochs(&self) -> &Epochs {
        self.epochs.step(self.memory.seam())
    }

    /// Pins the current epoch, for a reference that is handed out.
    pub fn pin(&self) -> Pin {
        self.epochs().pin(thread_number())
    }

    /// Pins the current epoch for an operation of this thread.
    #[inline(always)]
    pub fn visit(&self) -> Visit<'_> {
        self.epochs().begin_visit(thread_number())
    }

    /// Sets the object that can finish a reclaim.
    pub fn set_reclaimer(&self, reclaimer: Weak<dyn Reclaimer>) {
        let _ = self.reclaimer.set(reclaimer);
    }

    /// Wakes the background thread, because there is work for it.
    pub fn wake_worker(&self) {
        if let Some(worker) = self.worker.get() {
            worker.unpark();
        }
    }

    /// Sets the thread that does the background work.
    pub fn set_worker(&self, worker: Thread) {
        let _ = self.worker.set(worker);
    }

    /// Claims a run of pages, growing the pool or finishing the reclaim if necessary. Returns
    /// `None` if blocks were freed meanwhile, in which case the caller looks there first.
    /// `unreclaimed` says whether space was unaccounted for when the caller last looked.
    pub(super) fn claim_or_help(
        &self,
        kind: PageKind,
        class: u8,
        pages: u32,
        unreclaimed: bool,
    ) -> Result<Option<u32>> {
        loop {
            let total = self.geometry.pages_in(self.size());
            if let Some(head) = self.alloc.claim(self, kind, class, pages, total)? {
                self.wake_worker();
                return Ok(Some(head));
            }
            if unreclaimed && self.alloc.old_frontier() == 0 {
                // Another thread has finished the reclaim since. So there is space, and growing now
                // would count as needed for ever.
                return Ok(None);
            }
            let of_class = (kind == PageKind::Blocks).then_some(class);
            if self.collect_or_wait(of_class)? {
                return Ok(None);
            }
            // While space is unaccounted for after a crash, growth is limited: a pool whose process
            // is killed again and again must not grow each time.
            let bytes = self.geometry.offset_of(pages);
            if unreclaimed && !self.may_grow_unreclaimed(bytes) && self.help()? {
                return Ok(None);
            }
            // If at least half as many pages are free, though scattered, then a run that finds no
            // place does not show that space is scarce.
            let scattered = self.alloc.stats(self).free_pages >= pages.div_ceil(2);
            if let Err(error) = self.grow(total, bytes, unreclaimed, scattered) {
                if unreclaimed && self.help()? || self.wait_for_space(of_class)? {
                    return Ok(None);
                }
                return Err(error);
            }
        }
    }

    /// Frees retired blocks before the pool takes more space. Returns whether that yielded pages,
    /// or blocks of `of_class` if one is given.
    ///
    /// A thread in the middle of an operation keeps everything that is retired meanwhile, and it
    /// may have lost its processor; the others can retire an eighth of a pool in that time. This
    /// call waits for such a thread as long as something is kept that was retired before the call
    /// began. It does not wait for what others retire from now on. Nor does it wait for ever: the
    /// thread may have been stopped, and then no one waits for it again.
    fn collect_or_wait(&self, of_class: Option<u8>) -> Result<bool> {
        if self.epochs().limbo_bytes() == 0 {
            return Ok(false);
        }
        let free_pages = || self.alloc.stats(self).free_pages;
        let (now, had) = (self.epochs().now(), free_pages());
        let mut turn = 0;
        loop {
            self.collect();
            let has_blocks = |class| self.alloc.has_blocks(self, class);
            if free_pages() > had || of_class.is_some_and(has_blocks) {
                return Ok(true);
            }
            // A guard held by the user may never end.
            let is_kept = self.epochs().oldest_retired().is_some_and(|epoch| epoch <= now);
            if !is_kept || self.epochs().pins() > 0 {
                return Ok(false);
            }
            let visit = self.epochs().oldest_visit();
            if visit.is_some() && visit == Some(self.stopped_visit.load(Ordering::Relaxed)) {
                return Ok(false);
            }
            if turn >= GRACE_TURNS {
                self.stopped_visit.store(visit.unwrap_or(0), Ordering::Relaxed);
                return Ok(false);
            }
            self.wait(&mut turn)?;
        }
    }

    /// The last resort of an allocation when the pool cannot grow: waits for other threads to give
    /// space back. Returns whether that yielded pages, or blocks of `of_class` if one is given.
    ///
    /// Space can be on its way for two reasons. Retired blocks are freed once the operations under
    /// way end, and with many threads on few processors one of them may not have run for a long
    /// time. And a thread can briefly hold the last run of the list, to take blocks from it. A
    /// user's guard may never end, nor may a visit for which a wait has timed out before. For
    /// those, this waits no longer than such a brief moment.
    fn wait_for_space(&self, of_class: Option<u8>) -> Result<bool> {
        let free_pages = || self.alloc.stats(self).free_pages;
        let had = free_pages();
        let mut turn = 0;
        loop {
            self.collect();
            let has_blocks = |class| self.alloc.has_blocks(self, class);
            if free_pages() > had || of_class.is_some_and(has_blocks) {
                return Ok(true);
            }
            let visit = self.epochs().oldest_visit().unwrap_or(0);
            let ends = self.epochs().limbo_bytes() > 0
                && self.epochs().pins() == 0
                && visit != self.hopeless_visit.load(Ordering::Relaxed);
            if turn >= FULL_TURNS {
                self.hopeless_visit.store(visit, Ordering::Relaxed);
            }
            if turn >= if ends { FULL_TURNS } else { HAND_TURNS } {
                return Ok(false);
            }
            self.wait(&mut turn)?;
        }
    }

    /// Size of the pool up to which pages may be claimed, in bytes. The memory may already be
    /// longer.
    pub fn size(&self) -> u64 {
        // Acquire: pairs with the Release in `grow`.
        self.size.load(Ordering::Acquire)
    }

    /// Whether the pool may grow beyond the size that it has ever needed with all its space
    /// accounted for. Growth during a reclaim does not count as needed. Otherwise, each process
    /// that dies before its reclaim ends would add another eighth.
    fn may_grow_unreclaimed(&self, bytes: u64) -> bool {
        let reclaimed = self.header().get(field::RECLAIMED_SIZE);
        self.size() + bytes <= reclaimed.saturating_add(reclaimed / 8)
    }

    /// Finishes the reclaim, together with other threads. Returns whether all space is accounted
    /// for.
    fn help(&self) -> Result<bool> {
        match self.reclaimer.get().and_then(Weak::upgrade) {
            Some(reclaimer) => reclaimer.finish(),
            None => Ok(false),
        }
    }

    /// Records that all space is accounted for.
    pub fn reclaimed(&self) {
        self.alloc.swept();
    }

    /// Grows the pool by at least `bytes`. Does nothing if another thread has grown it past `total`
    /// pages since, or if space that was `unreclaimed` no longer is. If `sparing`, grows by no more
    /// than necessary, and leaves the size that the pool is known to need unchanged.
    fn grow(&self, total: u32, bytes: u64, unreclaimed: bool, sparing: bool) -> Result<()> {
        let seam = self.memory.seam();
        let _growth = seam.lock(&self.growth);
        let size = self.size();
        let changed = unreclaimed && self.alloc.old_frontier() == 0;
        if changed || self.geometry.pages_in(size) != total {
            return Ok(());
        }
        let page = self.geometry.page_bytes();
        // The run may have to begin after the next region's descriptors.
        let least = if bytes > self.geometry.offset_of(self.geometry.left_in_region(total)) {
            bytes + self.geometry.offset_of(self.geometry.left_in_region(total)) + page
        } else {
            bytes + page
        };
        // With pages of the default size or larger, grows by whole huge pages, which can then back
        // the mapping.
        let granule = if unreclaimed || page < 1 << DEFAULT_PAGE_BITS { page } else { 2 << 20 };
        let ample = (size / 8).clamp(16 * page, 256 << 20);
        let step = if unreclaimed || sparing { least } else { ample };
        let limit = match self.options.max_size {
            0 => self.backing.reserved(),
            max => max.min(self.backing.reserved()),
        } & !(page - 1);
        for want in [step.max(least), least] {
            let target = (size + want).next_multiple_of(granule).min(limit);
            if target < size + bytes || target == size {
                continue;
            }
            match self.grow_backing(target) {
                Ok(()) => {
                    // SAFETY: the backing has just grown to `target` bytes.
                    unsafe { self.memory.grown(target) };
                    if seam.planted(Planted::SizeToldEarly) {
                        self.size.store(target, Ordering::Release);
                    }
                    {
                        let mut header = seam.lock(&self.header);
                        header.set(field::SIZE, target);
                        // A run this long needs only its own bytes. For a shorter one, the ample
                        // growth will soon be needed too.
                        let needed = if bytes >= 16 * page { size + bytes } else { target };
                        if !unreclaimed && !sparing {
                            header.set(field::RECLAIMED_SIZE, needed.min(target));
                        }
                        if !seam.planted(Planted::SizeNotTold) {
                            header.write(&self.memory, &points::HEADER_SIZE)?;
                        }
                    }
                    // Pages there can be claimed only from now on: a frontier beyond the size in
                    // the header would be damage. Release: pairs with the Acquire in `size`.
                    self.size.store(target, Ordering::Release);
                    return Ok(());
                }
                Err(Error::DiskFull { .. }) if want > least => {}
                Err(error) => return Err(error),
            }
        }
        let held = match self.epochs().limbo_bytes() {
            0 => String::new(),
            bytes => format!("; {} guards keep {bytes} bytes from reuse", self.epochs().pins()),
        };
        Err(Error::PoolFull { needed: bytes, limit, held })
    }

    fn grow_backing(&self, target: u64) -> Result<()> {
        self.backing.grow(target).map_err(|error| {
            if matches!(error, MappingError::WriteBack(_)) {
                self.note_suspect();
            }
            mapping_error(error)
        })
    }

    /// Grows the pool ahead of use if little space is left. Returns whether it did.
    pub fn grow_ahead(&self) -> Result<bool> {
        if self.options.read_only || self.alloc.old_frontier() != 0 {
            return Ok(false);
        }
        let total = self.geometry.pages_in(self.size());
        let stats = self.alloc.stats(self);
        // Retired blocks will soon be free.
        let retired = self.epochs().limbo_bytes() / self.geometry.page_bytes();
        let left = u64::from(total.saturating_sub(stats.frontier_pages) + stats.free_pages);
        // Far enough ahead that the worker has touched the new pages and built huge pages from them
        // before operations get there.
        if left + retired >= u64::from(total / 12).max(4) {
            return Ok(false);
        }
        let Some(_writing) = self.enter_in_background()? else { return Ok(false) };
        self.grow(total, self.geometry.page_bytes(), false, false).map(|()| true)
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
