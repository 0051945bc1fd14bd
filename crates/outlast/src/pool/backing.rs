//! The memory that backs a pool.

use crate::error::{Error, Result};
use crate::pmem::{Disk, Mapping, MappingError, MediumKind, Resident, SHADOW_SHARE};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// What distinguishes a file from a copy of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// Device number.
    pub device: u64,
    /// Inode number. A copy can have the same one: on another file system, or on the same one after
    /// the original was removed.
    pub inode: u64,
    /// When the file was created, in nanoseconds since 1970; 0 if the file system does not report
    /// it.
    pub born: u64,
}

/// The memory of a pool: a mapping of a file, anonymous memory, or heap memory.
pub enum Backing {
    /// A reserved address range with a file or anonymous memory at its front.
    Mapped(Mapping),
    /// Heap memory, for tests and crash images. It needs no system calls and no threads.
    Heap(Heap),
}

/// Page-aligned heap memory that a pool can grow into.
pub struct Heap {
    base: NonNull<u8>,
    shadow: NonNull<u8>,
    capacity: u64,
    fill: u8,
    device: (u64, u64),
}

// SAFETY: the memory is plain bytes that this value owns.
unsafe impl Send for Heap {}
// SAFETY: the memory is accessed only through `Memory`, as atomics.
unsafe impl Sync for Heap {}

impl Heap {
    /// Allocates memory that begins with `image` and can grow to `capacity` bytes. The space after
    /// the image is filled with `fill`, because no code may rely on fresh space being zero.
    pub fn new(image: &[u8], capacity: u64, fill: u8) -> Heap {
        let capacity = capacity.max(image.len() as u64).max(1).next_multiple_of(4096);
        let memory_of = |layout| {
            // SAFETY: neither layout has size zero, because the capacity is at least one page.
            NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
        };
        let (base, shadow) =
            (memory_of(Self::layout(capacity)), memory_of(Self::shadow_layout(capacity)));
        // SAFETY: `capacity` bytes were just allocated, and nothing else refers to them.
        unsafe {
            base.as_ptr().copy_from_nonoverlapping(image.as_ptr(), image.len());
            base.as_ptr().add(image.len()).write_bytes(fill, capacity as usize - image.len());
            shadow.as_ptr().write_bytes(fill, Self::shadow_layout(capacity).size());
        }
        Heap { base, shadow, capacity, fill, device: (0, 0) }
    }

    fn shadow_layout(capacity: u64) -> Layout {
        let bytes = capacity.div_ceil(SHADOW_SHARE) as usize;
        Layout::from_size_align(bytes, 64).expect("a sane size")
    }

    fn layout(capacity: u64) -> Layout {
        Layout::from_size_align(capacity.max(4096) as usize, 4096).expect("a sane size")
    }

    /// The byte that fresh space is filled with.
    pub fn fill(&self) -> u8 {
        self.fill
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: both were allocated with these layouts.
        unsafe {
            dealloc(self.base.as_ptr(), Self::layout(self.capacity));
            dealloc(self.shadow.as_ptr(), Self::shadow_layout(self.capacity));
        }
    }
}

impl Backing {
    /// First byte.
    pub fn base(&self) -> *const u8 {
        match self {
            Backing::Mapped(m) => m.base(),
            Backing::Heap(h) => h.base.as_ptr(),
        }
    }

    /// First byte of the shadow, see [`Memory::new`](crate::pmem::Memory::new).
    pub fn shadow(&self) -> *const u8 {
        match self {
            Backing::Mapped(m) => m.shadow(),
            Backing::Heap(h) => h.shadow.as_ptr(),
        }
    }

    /// Returns the memory that the shadow takes, if the system reports it.
    pub fn shadow_resident(&self) -> Option<Resident> {
        match self {
            Backing::Mapped(m) => m.shadow_resident(),
            // All of it was touched when it was filled.
            Backing::Heap(h) => {
                let bytes = Heap::shadow_layout(h.capacity).size() as u64;
                Some(Resident { bytes, huge: 0 })
            }
        }
    }

    /// The largest size it can grow to, in bytes.
    pub fn reserved(&self) -> u64 {
        match self {
            Backing::Mapped(m) => m.reserved(),
            Backing::Heap(h) => h.capacity,
        }
    }

    /// The medium, which says which failures the memory survives.
    pub fn medium(&self) -> MediumKind {
        match self {
            Backing::Mapped(m) => m.medium(),
            Backing::Heap(_) => MediumKind::Bytes,
        }
    }

    /// Grows the memory to `len` bytes. Its address does not change.
    pub fn grow(&self, len: u64) -> Result<(), MappingError> {
        match self {
            Backing::Mapped(m) => m.grow(len),
            Backing::Heap(h) if len <= h.capacity => Ok(()),
            Backing::Heap(h) => {
                Err(MappingError::AddressSpace { needed: len, reserved: h.capacity })
            }
        }
    }

    /// Makes everything durable that the medium leaves to the kernel.
    pub fn sync(&self) -> Result<()> {
        match self {
            Backing::Mapped(m) => m.sync().map_err(|e| Error::io("syncing the pool", e)),
            Backing::Heap(_) => Ok(()),
        }
    }

    /// As [`sync`](Backing::sync), for the header alone.
    pub fn sync_header(&self) -> Result<()> {
        match self {
            Backing::Mapped(m) => m
                .sync_front(super::layout::FRONTIER_OFFSET)
                .map_err(|e| Error::io("syncing the pool's header", e)),
            Backing::Heap(_) => Ok(()),
        }
    }

    /// Releases the lock of the file. Closing the file is not enough: a child process that another
    /// thread is just starting holds a copy of the descriptor until it executes its program.
    pub fn unlock(&self) {
        if let Backing::Mapped(m) = self
            && let Some(file) = m.as_file()
        {
            // If this fails, the lock is released with the last copy of the descriptor.
            let _ = rustix::fs::flock(file, rustix::fs::FlockOperation::Unlock);
        }
    }

    /// Returns what distinguishes the file from others. Memory has no identity.
    pub fn identity(&self) -> Result<Identity> {
        match self {
            Backing::Mapped(m) => m.as_file().map_or(Ok(Identity::default()), |file| {
                use std::os::unix::fs::MetadataExt;
                let meta = file.metadata().map_err(|e| Error::io("reading the pool's inode", e))?;
                let born = birth(file).unwrap_or(0);
                Ok(Identity { device: meta.dev(), inode: meta.ino(), born })
            }),
            Backing::Heap(h) => Ok(Identity { device: h.device.0, inode: h.device.1, born: 0 }),
        }
    }

    /// The file system that the pool is on.
    pub fn disk(&self) -> Disk {
        self.mapping().map_or_else(Disk::default, |mapping| mapping.disk().clone())
    }

    /// The mapping, if there is one.
    pub fn mapping(&self) -> Option<&Mapping> {
        match self {
            Backing::Mapped(m) => Some(m),
            Backing::Heap(_) => None,
        }
    }
}

/// When a file was created, in nanoseconds since 1970, if the file system reports it.
fn birth(file: &std::fs::File) -> Option<u64> {
    use rustix::fs::{AtFlags, StatxFlags};
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let told = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let time = found.stx_btime;
    let seconds = u64::try_from(time.tv_sec).ok().filter(|_| told)?;
    seconds.checked_mul(1_000_000_000)?.checked_add(time.tv_nsec.into())
}

/// Converts a mapping's error to the pool's.
pub fn mapping_error(error: MappingError) -> Error {
    match error {
        MappingError::Io(source) => Error::io("mapping the pool", source),
        MappingError::WriteBack(source) => Error::io("syncing a pool that grew", source),
        MappingError::DiskFull { needed, source } => Error::DiskFull { needed, source },
        MappingError::AddressSpace { needed, reserved } => Error::AddressSpace { needed, reserved },
    }
}
