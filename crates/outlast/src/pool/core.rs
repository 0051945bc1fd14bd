//! The core of a pool: memory, header, gate, allocator and epochs. What indexes stand on.

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

/// How far the opening of a map is, for schemes that read all of a map then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryProgress {
    /// Parts of the map that were read.
    pub parts_done: usize,
    /// Its parts. They are about equally large.
    pub parts: usize,
    /// Leaves that were read.
    pub leaves: u64,
}

/// Who is told of it.
#[derive(Clone)]
pub struct ProgressListener(Arc<dyn Fn(RecoveryProgress) + Send + Sync>);

impl ProgressListener {
    /// Tells this function, from any of the threads that open a map.
    pub fn new(tell: impl Fn(RecoveryProgress) + Send + Sync + 'static) -> Self {
        ProgressListener(Arc::new(tell))
    }

    /// Tells it.
    pub fn tell(&self, progress: RecoveryProgress) {
        (self.0)(progress);
    }
}

impl fmt::Debug for ProgressListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressListener")
    }
}

/// How maps are opened whose schemes read all of a map then.
#[derive(Debug, Clone)]
pub struct Recovery {
    /// Threads that do it.
    pub threads: usize,
    /// Who is told how far it is.
    pub progress: Option<ProgressListener>,
}

/// How a core is made or opened.
#[derive(Debug, Clone)]
pub struct CoreOptions {
    /// log2 of the page size, at creation.
    pub page_bits: u32,
    /// First size in bytes, at creation.
    pub initial_size: u64,
    /// Size that the pool may not exceed; 0 for none. Kept in the header.
    pub max_size: u64,
    /// Number of the hash function, at creation.
    pub hash_function: u32,
    /// Seed and pool id, at creation; random if not given.
    pub identity: Option<(u64, u128)>,
    /// The medium to record and to judge by.
    pub medium: MediumKind,
    /// Writes go to private pages; nothing reaches the file.
    pub read_only: bool,
    /// The present boot.
    pub boot: u128,
    /// Open a pool that a power loss may have torn.
    pub accept_possibly_torn: bool,
    /// How maps are opened.
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

/// Who can finish the reclaim that an allocation waits for.
pub trait Reclaimer: Send + Sync {
    /// Runs the reclaim to its end. Returns whether it ended well.
    fn finish(&self) -> Result<bool>;
}

/// See the module's documentation.
pub struct Core<S: Seam> {
    /// The mapped memory.
    pub memory: Memory<S>,
    /// The arithmetic of its space.
    pub geometry: Geometry,
    /// The pool's hash function.
    pub hasher: Hasher,
    options: CoreOptions,
    backing: Backing,
    header: Mutex<Header>,
    /// Serialises marking dirty, sync, snapshot and close.
    control: Mutex<()>,
    growth: Mutex<()>,
    /// Bytes of the pool as the header on media has them: what may be claimed.
    size: AtomicU64,
    gate: Gate,
    /// It was closed or synced, and its user has changed nothing since: background work
    /// leaves it alone. Not so where there is space to reclaim. Changed under `control`.
    at_rest: AtomicBool,
    alloc: Alloc,
    epochs: Shared<Epochs>,
    reclaimer: OnceLock<Weak<dyn Reclaimer>>,
    /// The background thread, to be woken when space was claimed.
    worker: OnceLock<Thread>,
    leaked: AtomicU64,
    /// A root that a clean pool has lost: its slot, and what was found.
    lost_root: Option<(usize, Damage)>,
    /// A saved free state that a clean pool should have had.
    saved_damage: Option<Damage>,
    /// The epoch of a visit that was waited for in vain; 0 is none.
    stopped_visit: AtomicU64,
    /// The same, where the pool could not grow.
    hopeless_visit: AtomicU64,
    /// The disk may lack something of what was written: see [`Error::Suspect`]. Changed under
    /// `header`, whose dirty mark says the same.
    suspect: AtomicBool,
}

/// Turns of waiting for operations of other threads that keep space from reuse, for who needs it.
pub const GRACE_TURNS: u32 = 1 << 10;
/// The same, where an operation fails otherwise: some seconds.
const FULL_TURNS: u32 = 1 << 16;
/// Turns of waiting for a thread that has the last free blocks in hand.
const HAND_TURNS: u32 = 1 << 7;
/// Turns of waiting for a lock after which its holder is looked for: a tenth of a second.
const WAIT_ALONE: u32 = 1 << 11;
/// Turns of waiting for a lock after which it is taken for damaged: over a minute.
const WAIT_TURNS: u32 = 1 << 20;

/// A free number that no two pools or maps share.
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

/// Whether fences are made for all threads at once.
fn asymmetric<S: Seam>() -> bool {
    S::ASYMMETRIC_FENCES && threads::asymmetric()
}

impl<S: Seam> Core<S> {
    /// Makes a pool in `backing`, whose first `options.initial_size` bytes are there.
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
        // SAFETY: the backing is kept as long as the memory, and nobody else has it.
        let memory = unsafe { Memory::new(backing.base(), backing.shadow(), size, seam) };
        let mut header = Header::new(geometry, options.hash_function, seed, id);
        header.set(field::SIZE, size);
        header.set(field::RECLAIMED_SIZE, size);
        header.set(field::MAX_SIZE, options.max_size);
        header.set(field::MEDIUM, options.medium as u64);
        if memory.seam().planted(Planted::HeaderFirst) {
            header.write(&memory, &points::HEADER)?;
        }
        // Everything that the header promises is durable before the first copy of it:
        // a creation that is interrupted leaves no pool.
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

    /// Opens the pool in `backing`, which holds the whole file. `header` was read from
    /// it with [`Header::read`].
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
        // Not to be called clean by a close that nobody has verified before.
        let suspect = header.is_suspect() || torn.is_some();
        let size = header.get(field::SIZE);
        if options.max_size == 0 {
            options.max_size = header.get(field::MAX_SIZE);
        }
        // SAFETY: the backing is kept as long as the memory, and nobody else has it; it
        // is at least as long as the header says (checked when that was read).
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
            // A read-only pool's stores stay private: there is nothing to mark.
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

    /// A process that died may have left stores in the caches that it had not flushed. We
    /// find them there, and will build on them: a power loss must not take them back.
    ///
    /// Here for the frontier and the commit words of roots. The header is written before
    /// the first store, and indexes do the same for what they touch first.
    fn make_found_durable(&self) -> Result<()> {
        let memory = &self.memory;
        memory.flush(memory.at(Offset::<Word>::new(FRONTIER_OFFSET))?, &points::FOUND);
        for slot in 0..ROOT_SLOTS {
            // The fixed words are durable since before the commit word; the scheme's
            // words share its line.
            memory.flush(&memory.at(root_offset(slot))?.commit, &points::FOUND);
        }
        memory.fence(&points::FOUND);
        Ok(())
    }

    // ---- Life -------------------------------------------------------------------

    /// The options it was opened with.
    pub fn options(&self) -> &CoreOptions {
        &self.options
    }

    /// What the memory is made of.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// A copy of the header.
    pub fn header(&self) -> Header {
        self.memory.seam().lock(&self.header).clone()
    }

    /// Asks to store to the pool, and marks it dirty first if it is clean.
    pub fn enter(&self) -> Result<Writing<'_>> {
        match self.gate.pass() {
            Some(inside) => Ok(inside.stay()),
            None => self.enter_slowly(),
        }
    }

    /// As [`enter_to_change`](Core::enter_to_change), if that takes neither waiting nor
    /// anything else.
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

    /// As [`enter`](Core::enter), for background work. `None` if that would make a pool at
    /// rest dirty.
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

    /// As [`enter`](Core::enter), for changes that the user asks for.
    pub fn enter_to_change(&self) -> Result<Writing<'_>> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        self.enter()
    }

    /// Notes in the header, durably, that the pool uses read-only compatible features, before
    /// it does. The caller has passed the gate.
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

    /// A root that the pool had when it was closed, and has no more: slot and damage.
    pub fn lost_root(&self) -> Option<&(usize, Damage)> {
        self.lost_root.as_ref()
    }

    /// The saved free state that the header of a clean pool named, if it was damaged. Its space is
    /// traced instead; but what its maps have lost is not noticed then.
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

    /// What `read` reads outside of the gate.
    ///
    /// # Errors
    /// [`Error::NotOpen`] if the pool was closed, and the file's memory can be another one's.
    #[inline(always)]
    pub fn while_open<T>(&self, read: impl FnOnce() -> T) -> Result<T> {
        if self.memory.seam().planted(Planted::OpenCheckedEarly) {
            self.gate.check()?;
            return Ok(read());
        }
        let found = read();
        // Another opener stores after `close` has given up the file's lock, and that after it
        // has closed the gate: who has read of its stores sees the gate closed.
        fence(Ordering::Acquire);
        self.gate.check()?;
        Ok(found)
    }

    /// Whether this process is the one that has the memory: a fork of it has not.
    pub fn is_here(&self) -> bool {
        self.backing.mapping().is_none_or(|mapping| mapping.alive().is_here())
    }

    /// One turn of waiting for a lock of an index.
    ///
    /// # Errors
    /// If the lock's holder can be gone: a thread panicked, or the pool was closed.
    #[inline]
    pub fn wait(&self, turn: &mut u32) -> Result<()> {
        self.memory.seam().wait(turn);
        self.gate.check()
    }

    /// One turn of waiting for a lock of a structure in memory. `inside` is 1 if the
    /// calling thread has passed the gate, else 0; `lock` tells the structure's offset and
    /// what the lock word holds.
    ///
    /// # Errors
    /// As [`wait`](Core::wait). [`Damage`] if nobody can be holding the lock, or nobody
    /// gives it back: in a damaged file two structures can share memory, and then threads
    /// wait for each other.
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
        // Whoever holds a lock is inside the gate. One look can fall between two
        // holders, so it takes several; and if all of those do, the caller has an error
        // and nothing has happened.
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
    /// The mark has to be on the disk before anything else that is stored can get there. Only
    /// the header's pages are written back for it, and none if a process that died has done so.
    fn mark_dirty_controlled(&self) -> Result<()> {
        let seam = self.memory.seam();
        let file = self.backing.identity()?;
        // Elsewhere the mark needs no page cache to survive the process.
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

    /// What [`field::DIRTY`] is while the pool is changed.
    fn dirty_mark(&self) -> u64 {
        let suspect = if self.is_suspect() { SUSPECT } else { 0 };
        let lacks_root = if self.lost_root.is_some() { LACKS_ROOT } else { 0 };
        DIRTY | suspect | lacks_root
    }

    /// Makes the kernel write the pool back, or the part of it that `sync` does, where the
    /// medium leaves that to it.
    ///
    /// A write-back that failed makes the pool suspect. The kernel reports such an error once,
    /// and takes the pages for written from then on: no later success says anything about them.
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

    /// The disk may lack something of what was written. That is kept in the header: for the
    /// next process by the page cache, and on the disk if that still takes it.
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

    /// Whether the pool was closed or synced, and not modified since.
    pub fn is_clean(&self) -> bool {
        self.gate.is_clean() && !self.header().is_dirty()
    }

    /// Whether the disk may lack something of what was written: see [`Error::Suspect`].
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// Makes the disk hold all that memory holds, whatever the kernel takes for written. The
    /// caller holds all writers back.
    pub fn rewrite(&self) -> Result<()> {
        for offset in (0..self.memory.len()).step_by(4096) {
            let word = self.memory.at(Offset::<Word>::new(offset))?;
            self.memory.store(word, self.memory.load(word), &points::FOUND);
        }
        self.fsync(Backing::sync)
    }

    /// The disk holds what memory holds, and that was found sound.
    pub fn note_sound(&self) -> Result<()> {
        {
            let mut header = self.memory.seam().lock(&self.header);
            self.suspect.store(false, Ordering::Relaxed);
            header.set(field::DIRTY, self.dirty_mark());
            header.write(&self.memory, &points::HEADER_DIRTY)?;
        }
        self.fsync(Backing::sync_header)
    }

    /// Holds all writers back, makes the pool clean and durable, and calls `then` while
    /// it stands still. `settled` says whether every block in use has an owner, so that
    /// the free state can be saved.
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

    /// Marks a pool dirty that a process which died has left so, and that nobody has changed
    /// since: to sync or close it takes what it takes after a change. The caller holds
    /// `control`.
    fn mark_what_was_found(&self) -> Result<()> {
        let found = self.gate.is_clean() && self.header().is_dirty() && !self.is_suspect();
        if found { self.mark_dirty_controlled() } else { Ok(()) }
    }

    /// As [`sync_and`](Core::sync_and), and closes the pool for good. `last` frees what
    /// was kept for handles. On failure the pool is closed all the same, and stays
    /// marked dirty.
    pub fn close(
        &self,
        last: impl FnOnce() -> Result<()>,
        settled: impl FnOnce() -> bool,
    ) -> Result<()> {
        let seam = self.memory.seam();
        let _control = seam.lock(&self.control);
        let marked = self.mark_what_was_found();
        if seam.planted(Planted::FileUnlockedEarly) {
            self.backing.unlock();
        }
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

    /// Holds all writers back while `during` walks (and, where segments are first
    /// touched, repairs) the structures.
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
        // Saving may have made the pool grow, and so have met an error that is told only once.
        if self.is_suspect() {
            return Err(Error::Suspect);
        }
        // The data first: the mark "clean" must not be durable before what it vouches for.
        self.fsync(Backing::sync)?;
        {
            let mut header = self.memory.seam().lock(&self.header);
            let (offset, bytes) = saved.unwrap_or((0, 0));
            header.set(field::DIRTY, 0);
            header.set(field::CONFIRMED, 0);
            header.set(field::SAVED, offset);
            header.set(field::SAVED_BYTES, bytes);
            // What was lost stays lost, and is told at the next open, too.
            let commits = roots::commits(self)? ^ u32::from(self.lost_root.is_some());
            let roots = pack_roots(commits, header.get(field::SEQUENCE) + 1);
            header.set(field::ROOTS, roots);
            header.write(&self.memory, &points::HEADER_CLEAN)?;
        }
        // Whatever comes of it: the disk may call the pool clean from now on, so nobody stores
        // before the dirty mark is on the disk again.
        held.now_clean();
        self.fsync(Backing::sync_header)?;
        // A reclaim after a crash waits for the next change: nobody but the user ends the promise
        // that the pool survives a power loss.
        self.at_rest.store(true, Ordering::Relaxed);
        Ok(())
    }

    // ---- Space ------------------------------------------------------------------

    /// The allocator.
    pub fn alloc(&self) -> &Alloc {
        &self.alloc
    }

    /// Hands out a block of at least `bytes`. No lock of an index may be held.
    pub fn allocate(&self, bytes: u64) -> Result<Block> {
        self.alloc.allocate(self, bytes)
    }

    /// As [`allocate`](Core::allocate), for a record: a value, and `before` bytes before it.
    ///
    /// # Errors
    /// Also [`Error::ValueTooLarge`], if no block of this pool can hold it.
    pub fn allocate_record(&self, before: usize, value: usize) -> Result<Block> {
        let max = self.geometry.large_max();
        let bytes = (before + value) as u64;
        if bytes > max {
            let max = max as usize - before;
            return Err(Error::ValueTooLarge { len: value, max });
        }
        self.allocate(bytes)
    }

    /// Takes back a block that was never linked.
    pub fn free_unlinked(&self, offset: u64) {
        self.free_or_report(offset);
    }

    fn free_or_report(&self, offset: u64) {
        if let Err(damage) = self.alloc.free(self, offset) {
            // The operation that unlinked it has succeeded; the damage was there
            // before. What cannot be freed is kept.
            self.note_unfreeable();
            tracing::warn!(%damage, "a block could not be freed");
        }
    }

    /// Some blocks cannot be freed because of damage: the free state does not hold.
    pub fn note_unfreeable(&self) {
        self.leaked.fetch_add(1, Ordering::Relaxed);
    }

    /// Blocks that could not be freed because of damage.
    pub fn unfreeable(&self) -> u64 {
        self.leaked.load(Ordering::Relaxed)
    }

    /// To be called before a block that may be from before a crash is moved or unlinked.
    #[inline]
    pub fn before_unlink(&self, offset: u64) -> Result<(), Damage> {
        if self.alloc.old_frontier() == 0 {
            return Ok(());
        }
        self.alloc.mark(self, offset, None)
    }

    /// Takes a block whose unlinking is durable; frees it once no guard can read it.
    pub fn retire(&self, offset: u64, bytes: u64) {
        self.retire_by(offset, |free| {
            if self.memory.seam().planted(Planted::FreedEpochEarly) {
                return self.epochs().retire_early(1, offset, bytes, free);
            }
            self.epochs().retire(offset, bytes, free);
        });
    }

    /// As [`retire`](Core::retire), where operations follow links to the block in
    /// [visits](Core::visit).
    pub fn retire_visited(&self, offset: u64, bytes: u64) {
        self.retire_by(offset, |free| {
            if self.memory.seam().planted(Planted::FreedEpochEarly) {
                // The first of the two is the margin.
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

    /// Frees what was retired and no guard can read any more.
    pub fn collect(&self) {
        if self.epochs().limbo_bytes() > 0 {
            self.epochs().collect(|offset| self.free_or_report(offset));
        }
    }

    /// The epochs.
    #[inline(always)]
    pub fn epochs(&self) -> &Epochs {
        self.epochs.step(self.memory.seam())
    }

    /// Pins the present epoch, for a reference that is handed out.
    pub fn pin(&self) -> Pin {
        self.epochs().pin(thread_number())
    }

    /// Pins the present epoch for an operation of this thread.
    #[inline(always)]
    pub fn visit(&self) -> Visit<'_> {
        self.epochs().begin_visit(thread_number())
    }

    /// Says who can finish a reclaim.
    pub fn set_reclaimer(&self, reclaimer: Weak<dyn Reclaimer>) {
        let _ = self.reclaimer.set(reclaimer);
    }

    /// There is background work.
    pub fn wake_worker(&self) {
        if let Some(worker) = self.worker.get() {
            worker.unpark();
        }
    }

    /// Says which thread does the background work.
    pub fn set_worker(&self, worker: Thread) {
        let _ = self.worker.set(worker);
    }

    /// A run of pages, after growing the pool or finishing a reclaim if need be.
    /// `None` if blocks were freed meanwhile: look there first. `unreclaimed` says whether
    /// space was unaccounted for when the caller last looked.
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
                // Another thread has finished the reclaim since: there is space, and to
                // grow now would count as needed for ever.
                return Ok(None);
            }
            let of_class = (kind == PageKind::Blocks).then_some(class);
            if self.collect_or_wait(of_class)? {
                return Ok(None);
            }
            // While space is unaccounted for after a crash, growth is limited: a pool
            // that is killed again and again must not grow with each life.
            let bytes = self.geometry.offset_of(pages);
            if unreclaimed && !self.may_grow_unreclaimed(bytes) && self.help()? {
                return Ok(None);
            }
            // A run that finds no place where half as many pages are free, here and there, does
            // not show that space is scarce.
            let scattered = self.alloc.stats(self).free_pages >= pages.div_ceil(2);
            if let Err(error) = self.grow(total, bytes, unreclaimed, scattered) {
                if unreclaimed && self.help()? || self.wait_for_space(of_class)? {
                    return Ok(None);
                }
                return Err(error);
            }
        }
    }

    /// Frees what was retired, before more space is taken. Whether that brought pages, or blocks
    /// of a class if they are looked for.
    ///
    /// An operation that another thread is in the middle of keeps all that is retired meanwhile,
    /// and its thread may have lost its processor: the others can retire an eighth of a pool in
    /// that time. It is waited for while something is kept that was retired before; what others
    /// retire from now on is not. Nor for ever: it can have been stopped, and then nobody waits for
    /// it again.
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
            // A guard that the user holds need not end.
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

    /// The last resort of an allocation where the pool cannot grow: waits for what other threads
    /// give back. Whether that brought pages, or blocks of a class if they are looked for.
    ///
    /// Space can be on its way for two reasons. What was retired is freed once the operations
    /// under way end, and with many threads on few processors one of them may not have run for
    /// a long time. And a thread can have the list's last run in hand for a moment, to take
    /// blocks from it. A user's guard need not end, nor a visit that was waited for in vain
    /// before: they are not waited for longer than such a moment.
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

    /// Bytes of the pool that may be claimed: the memory can be longer already.
    pub fn size(&self) -> u64 {
        // Acquire: pairs with the Release in `grow`.
        self.size.load(Ordering::Acquire)
    }

    /// Whether the pool may grow beyond what it has ever needed with all its space
    /// accounted for. What it grows by in the meantime does not count as needed, or lives
    /// that end before the reclaim does would each add an eighth to the one before.
    fn may_grow_unreclaimed(&self, bytes: u64) -> bool {
        let reclaimed = self.header().get(field::RECLAIMED_SIZE);
        self.size() + bytes <= reclaimed.saturating_add(reclaimed / 8)
    }

    /// Finishes the reclaim, by this thread or another. Whether it ended well.
    fn help(&self) -> Result<bool> {
        match self.reclaimer.get().and_then(Weak::upgrade) {
            Some(reclaimer) => reclaimer.finish(),
            None => Ok(false),
        }
    }

    /// All space is accounted for.
    pub fn reclaimed(&self) {
        self.alloc.swept();
    }

    /// Grows the pool by at least `bytes`, unless it has grown past `total` pages, or what
    /// was `unreclaimed` is not any more. If it is `sparing`, by no more than that, and what
    /// the pool is known to need stays as it was.
    fn grow(&self, total: u32, bytes: u64, unreclaimed: bool, sparing: bool) -> Result<()> {
        let seam = self.memory.seam();
        let _growth = seam.lock(&self.growth);
        let size = self.size();
        let changed = unreclaimed && self.alloc.old_frontier() == 0;
        if changed || self.geometry.pages_in(size) != total {
            return Ok(());
        }
        let page = self.geometry.page_bytes();
        // The run may have to begin behind the next region's descriptors.
        let least = if bytes > self.geometry.offset_of(self.geometry.left_in_region(total)) {
            bytes + self.geometry.offset_of(self.geometry.left_in_region(total)) + page
        } else {
            bytes + page
        };
        // By large pages where pages are of the usual size: they can back the mapping then.
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
                        // A run that is as long as that asks for itself alone; else what
                        // is ample soon is needed, too.
                        let needed = if bytes >= 16 * page { size + bytes } else { target };
                        if !unreclaimed && !sparing {
                            header.set(field::RECLAIMED_SIZE, needed.min(target));
                        }
                        if !seam.planted(Planted::SizeNotTold) {
                            header.write(&self.memory, &points::HEADER_SIZE)?;
                        }
                    }
                    // Only now can pages be claimed there: a frontier behind the size
                    // that the header has would be damage. Release: pairs with `size`.
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

    /// Grows ahead of use, if little space is left. Returns whether it did.
    pub fn grow_ahead(&self) -> Result<bool> {
        if self.options.read_only || self.alloc.old_frontier() != 0 {
            return Ok(false);
        }
        let total = self.geometry.pages_in(self.size());
        let stats = self.alloc.stats(self);
        // What was retired comes back soon.
        let retired = self.epochs().limbo_bytes() / self.geometry.page_bytes();
        let left = u64::from(total.saturating_sub(stats.frontier_pages) + stats.free_pages);
        // Far enough ahead that the worker has touched what is new, and made large pages of
        // it, before operations come there.
        if left + retired >= u64::from(total / 12).max(4) {
            return Ok(false);
        }
        let Some(_writing) = self.enter_in_background()? else { return Ok(false) };
        self.grow(total, self.geometry.page_bytes(), false, false).map(|()| true)
    }
}

/// Where a root's slot stands.
pub fn root_offset(slot: usize) -> Offset<RootSlot> {
    Offset::new(ROOTS_OFFSET + (slot * size_of::<RootSlot>()) as u64)
}

/// The words of a root slot.
pub fn root_words(root: &RootSlot) -> &[Word] {
    words_of(root)
}
