//! The memory that backs a pool.

pub use super::identity::Identity;
use crate::error::{Error, Result};
use crate::journal::running::Journal;
use crate::pmem::{
    Disk, Mapping, MappingError, MediumKind, Moment, Region, Resident, SHADOW_SHARE,
};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory of a pool: a mapping of a file, anonymous memory, or heap memory.
pub enum Backing {
    /// A reserved address range with a file or anonymous memory at its front.
    Mapped(Mapping),
    /// A mapping of the working file of a journaled pool.
    Journaled(Journaled),
    /// Heap memory, for tests and crash images. It needs no system calls and no threads.
    Heap(Heap),
}

/// The memory of a journaled pool.
pub struct Journaled {
    /// The mapped working file.
    pub mapping: Mapping,
    /// The pool's journal.
    pub journal: Arc<Journal>,
    /// The base: the file at the pool's path, which openers lock.
    pub base: std::fs::File,
    /// The directory of the journal, locked.
    pub directory: std::fs::File,
    /// Whether the pool was closed. Locked while the pool grows, because space is prepared outside
    /// of the gate and of the locks of `Core`: without this lock, two threads could grow the pool
    /// at the same time, and a close would not wait for them.
    pub growing: Mutex<bool>,
    /// Whether the base or the journal is on a file system that is only in memory.
    pub is_in_memory: bool,
    /// Whether the working file is on a disk, which may fail to write it back. The system reports
    /// such an error once, so nothing else may sync that file.
    pub on_disk: AtomicBool,
    /// Whether the working file has found no room to grow.
    pub wants_room: AtomicBool,
    /// The directory to which it is moved then: that of the journal.
    pub fallback: PathBuf,
}

impl Journaled {
    /// Grows the base, the mapping and then the notes. The base comes first, because it must never be
    /// shorter than the pool. The notes come last, so that all that they cover has its blocks.
    fn grow(&self, len: u64) -> Result<(), MappingError> {
        let closed = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            // The files may be another process's by now.
            return Err(std::io::Error::other("the pool was closed").into());
        }
        self.journal.extend_base(len)?;
        let cover = || match self.mapping.as_file() {
            Some(file) => self.journal.notes().cover(self.mapping.disk(), file, len),
            None => Ok(()),
        };
        self.mapping.grow(len).and_then(|()| cover()).inspect_err(|error| {
            if matches!(error, MappingError::DiskFull { .. }) {
                self.wants_room.store(true, Ordering::Relaxed);
            }
        })
    }
}

/// Page-aligned heap memory with room to grow into. It stands for a mapping of a file.
pub struct Heap {
    file: Arc<HeapFile>,
    shadow: NonNull<u8>,
    region: Arc<Region>,
    fill: u8,
}

/// The bytes that the mappings of one file share, and the file's lock.
struct HeapFile {
    base: NonNull<u8>,
    capacity: u64,
    locked: AtomicBool,
}

// SAFETY: plain memory that these values own.
unsafe impl Send for Heap {}
// SAFETY: the memory is accessed only through `Memory`, as atomics.
unsafe impl Sync for Heap {}
// SAFETY: as above.
unsafe impl Send for HeapFile {}
// SAFETY: as above.
unsafe impl Sync for HeapFile {}

/// Allocates memory of this layout that begins with `image` and is filled with `fill` after it.
fn filled(layout: Layout, image: &[u8], fill: u8) -> NonNull<u8> {
    // SAFETY: no layout here is of size zero: the capacity is at least one page.
    let memory =
        NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
    // SAFETY: that many bytes were just allocated and nobody else knows of them; no image is
    // longer than its memory.
    unsafe {
        memory.as_ptr().copy_from_nonoverlapping(image.as_ptr(), image.len());
        memory.as_ptr().add(image.len()).write_bytes(fill, layout.size() - image.len());
    }
    memory
}

impl Heap {
    /// Allocates memory that begins with `image` and can grow to `capacity` bytes. The space after
    /// the image is filled with `fill`, because no code may rely on fresh space being zero.
    pub fn new(image: &[u8], capacity: u64, fill: u8) -> Heap {
        let capacity = capacity.max(image.len() as u64).max(1).next_multiple_of(4096);
        let base = filled(HeapFile::layout(capacity), image, fill);
        let file = HeapFile { base, capacity, locked: AtomicBool::new(true) };
        Heap::of(Arc::new(file), fill)
    }

    fn of(file: Arc<HeapFile>, fill: u8) -> Heap {
        let shadow = filled(Self::shadow_layout(file.capacity), &[], fill);
        let region = Arc::new(Region::heap(file.capacity, fill));
        Heap { file, shadow, region, fill }
    }

    /// Maps the same bytes again, as the next opener of a file does. Returns `None` while the file
    /// is locked; `close` unlocks it. Handles of the closed pool keep the old mapping, and see what
    /// is stored through the new one. DRAM is not shared.
    pub fn map_again(&self) -> Option<Heap> {
        // Acquire: pairs with the Release in `unlock`, as the kernel's lock does.
        let was_locked = self.file.locked.swap(true, Ordering::Acquire);
        (!was_locked).then(|| Heap::of(Arc::clone(&self.file), self.fill))
    }

    /// The word at `offset`, as an opener reads it before there is a [`Memory`].
    ///
    /// # Panics
    /// If that is outside of the memory, or not aligned.
    ///
    /// [`Memory`]: crate::pmem::Memory
    pub fn word(&self, offset: u64) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.file.capacity, "a word inside");
        // SAFETY: inside and aligned, checked above; initialized when it was allocated, and
        // accessed as atomics by everyone.
        let word =
            unsafe { AtomicU64::from_ptr(self.file.base.as_ptr().add(offset as usize).cast()) };
        word.load(Ordering::Relaxed)
    }

    fn shadow_layout(capacity: u64) -> Layout {
        let bytes = capacity.div_ceil(SHADOW_SHARE) as usize;
        Layout::from_size_align(bytes, 64).expect("a sane size")
    }

    /// The byte that fresh space is filled with.
    pub fn fill(&self) -> u8 {
        self.fill
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.shadow.as_ptr(), Self::shadow_layout(self.file.capacity)) };
    }
}

impl HeapFile {
    fn layout(capacity: u64) -> Layout {
        Layout::from_size_align(capacity.max(4096) as usize, 4096).expect("a sane size")
    }
}

impl Drop for HeapFile {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the last mapping is gone.
        unsafe { dealloc(self.base.as_ptr(), Self::layout(self.capacity)) };
    }
}

impl Backing {
    /// First byte.
    pub fn base(&self) -> *const u8 {
        match self {
            Backing::Mapped(m) => m.base(),
            Backing::Journaled(j) => j.mapping.base(),
            Backing::Heap(h) => h.file.base.as_ptr(),
        }
    }

    /// First byte of the shadow, see [`Memory::new`](crate::pmem::Memory::new).
    pub fn shadow(&self) -> *const u8 {
        match self {
            Backing::Mapped(m) => m.shadow(),
            Backing::Journaled(j) => j.mapping.shadow(),
            Backing::Heap(h) => h.shadow.as_ptr(),
        }
    }

    /// The pool's region, which begins with the side table.
    pub fn region(&self) -> &Arc<Region> {
        match self {
            Backing::Mapped(m) => m.region(),
            Backing::Journaled(j) => j.mapping.region(),
            Backing::Heap(h) => &h.region,
        }
    }

    /// Returns the memory that the shadow and the side table take, if the system reports it.
    pub fn shadow_resident(&self) -> Option<Resident> {
        match self {
            Backing::Mapped(m) => m.shadow_resident(),
            Backing::Journaled(j) => j.mapping.shadow_resident(),
            // All of it was touched when it was filled.
            Backing::Heap(h) => {
                let side = h.region.side_addresses();
                let bytes = Heap::shadow_layout(h.file.capacity).size() as u64;
                Some(Resident { bytes: bytes + side.end - side.start, huge: 0 })
            }
        }
    }

    /// The largest size that the memory can grow to, in bytes.
    pub fn reserved(&self) -> u64 {
        match self {
            Backing::Mapped(m) => m.reserved(),
            Backing::Journaled(j) => j.mapping.reserved().min(j.journal.notes().capacity()),
            Backing::Heap(h) => h.file.capacity,
        }
    }

    /// The medium, which says which failures the memory survives.
    pub fn medium(&self) -> MediumKind {
        match self {
            Backing::Mapped(m) => m.medium(),
            Backing::Journaled(_) => MediumKind::Journal,
            Backing::Heap(_) => MediumKind::Bytes,
        }
    }

    /// Grows the memory to `len` bytes. Its address does not change.
    pub fn grow(&self, len: u64) -> Result<(), MappingError> {
        match self {
            Backing::Mapped(m) => m.grow(len),
            Backing::Journaled(j) => j.grow(len),
            Backing::Heap(h) if len <= h.file.capacity => Ok(()),
            Backing::Heap(h) => {
                Err(MappingError::AddressSpace { needed: len, reserved: h.file.capacity })
            }
        }
    }

    /// Gets disk blocks for a part of the file, which may have been punched out.
    pub fn fill(&self, range: std::ops::Range<u64>) -> Result<()> {
        match self {
            Backing::Mapped(m) => m.fill(range).map_err(mapping_error),
            Backing::Heap(_) | Backing::Journaled(_) => Ok(()),
        }
    }

    /// Writes back what the medium leaves to the kernel to write back. Does nothing for a journaled
    /// pool, whose changes become durable once writers are held back; see `Core::commit_held`.
    pub fn sync(&self) -> Result<()> {
        match self {
            Backing::Mapped(m) => m.sync().map_err(|e| Error::io("syncing the pool", e)),
            Backing::Heap(_) | Backing::Journaled(_) => Ok(()),
        }
    }

    /// Like [`sync`](Backing::sync), for the header alone.
    pub fn sync_header(&self) -> Result<()> {
        match self {
            Backing::Mapped(m) => m
                .sync_front(super::layout::FRONTIER_OFFSET)
                .map_err(|e| Error::io("syncing the pool's header", e)),
            Backing::Heap(_) | Backing::Journaled(_) => Ok(()),
        }
    }

    /// Releases the lock of the file. Closing the file is not enough: a child process that another
    /// thread is just starting holds a copy of the descriptor until it executes its program.
    pub fn unlock(&self) {
        match self {
            // If this fails, the kernel releases the lock when the last copy of the descriptor is
            // closed.
            Backing::Mapped(m) => {
                if let Some(file) = m.as_file() {
                    let _ = crate::pmem::flock(file, rustix::fs::FlockOperation::Unlock);
                }
            }
            Backing::Journaled(j) => {
                *j.growing.lock().unwrap_or_else(PoisonError::into_inner) = true;
                for file in j.mapping.as_file().into_iter().chain([&j.directory, &j.base]) {
                    let _ = crate::pmem::flock(file, rustix::fs::FlockOperation::Unlock);
                }
            }
            // Release: the next opener sees what was stored before.
            Backing::Heap(h) => h.file.locked.store(false, Ordering::Release),
        }
    }

    /// Whether data that is durable on this medium survives a power loss. It does not if it is only
    /// in memory, or while a failure keeps the journal from making changes durable.
    pub fn keeps_after_power_loss(&self) -> bool {
        match self {
            Backing::Mapped(m) => m.as_file().is_some_and(|file| !Mapping::is_tmpfs(file)),
            Backing::Heap(_) => false,
            Backing::Journaled(j) => !j.is_in_memory && j.journal.failure().is_none(),
        }
    }

    /// Returns the pool's file, if it has one. That of a journaled pool is the base.
    pub fn file(&self) -> Option<&std::fs::File> {
        match self {
            Backing::Mapped(m) => m.as_file(),
            Backing::Journaled(j) => Some(&j.base),
            Backing::Heap(_) => None,
        }
    }

    /// Returns what distinguishes the file from others. Memory has no identity.
    pub fn identity(&self) -> Result<Identity> {
        self.file().map_or(Ok(Identity::default()), Identity::of)
    }

    /// Returns whether the pool's file has a name. If not, what is written to it is gone once the pool
    /// is closed.
    pub fn is_named(&self) -> Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let Some(file) = self.file() else { return Ok(false) };
        let meta = file.metadata().map_err(|e| Error::io("looking at the pool's file", e))?;
        Ok(meta.nlink() > 0)
    }

    /// Lets a test hold the calling thread at this moment.
    pub fn at(&self, moment: Moment) {
        if let Some(mapping) = self.mapping() {
            mapping.disk().at(moment);
        }
    }

    /// The file system that the pool is on.
    pub fn disk(&self) -> Disk {
        self.mapping().map_or_else(Disk::default, |mapping| mapping.disk().clone())
    }

    /// Returns the journal, if there is one.
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        match self {
            Backing::Journaled(j) => Some(&j.journal),
            Backing::Mapped(_) | Backing::Heap(_) => None,
        }
    }

    /// The mapping, if there is one.
    pub fn mapping(&self) -> Option<&Mapping> {
        match self {
            Backing::Mapped(m) => Some(m),
            Backing::Journaled(j) => Some(&j.mapping),
            Backing::Heap(_) => None,
        }
    }
}

/// Converts a mapping's error to the pool's.
pub fn mapping_error(error: MappingError) -> Error {
    match error {
        MappingError::Io(source) => Error::io("mapping the pool", source),
        MappingError::WriteBack(source) => Error::io("syncing a pool that grew", source),
        MappingError::DiskFull { needed, source } => Error::disk_full(needed, source),
        MappingError::AddressSpace { needed, reserved } => Error::AddressSpace { needed, reserved },
    }
}
