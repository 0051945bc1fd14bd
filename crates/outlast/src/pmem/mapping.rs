//! A file or anonymous memory, mapped at a fixed address.

use super::blocks::NoBlocks;
use super::disk::{Call, Disk};
use super::reserve::{HUGE_PAGE, Reservation};
use super::{Alive, MediumKind, Region, blocks, medium};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MsyncFlags, ProtFlags};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use thiserror::Error;

/// The unit of mapping, in bytes.
const PAGE: u64 = 4096;

/// Builds huge pages from small ones, synchronously. Neither `libc` nor `rustix` defines the
/// constant for every target.
const MADV_COLLAPSE: libc::c_int = 25;

/// Why a mapping could not be made or grown. Nothing has changed.
#[derive(Debug, Error)]
pub enum MappingError {
    /// The file system or the kernel reported an error.
    #[error("cannot map the file: {0}")]
    Io(#[from] io::Error),
    /// The file system could not write the file back. It is unknown how much of what was stored so
    /// far is on the disk.
    #[error("cannot write the file back: {0}")]
    WriteBack(io::Error),
    /// The file system has no room for the file to grow, or for the blocks of a hole.
    #[error("no room for {needed} more bytes of the file: {source}")]
    DiskFull {
        /// The number of bytes that were to get blocks.
        needed: u64,
        /// The file system's error.
        source: io::Error,
    },
    /// The process has no address space for the mapping.
    #[error("no room for {needed} bytes of addresses, {reserved} are reserved")]
    AddressSpace {
        /// Bytes needed.
        needed: u64,
        /// Bytes available; 0 if none could be reserved.
        reserved: u64,
    },
}

/// How a file is mapped: where stores go, and which parts of the file get blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Stores change the file.
    ReadWrite,
    /// Like [`ReadWrite`](Self::ReadWrite), for a working file: it already has blocks for everything
    /// that is mapped, and no later boot uses it, so its growth need not be durable.
    Working,
    /// Stores change the file, which is mapped with the holes that it has: the caller
    /// [fills](Mapping::fill) a [hole](Mapping::holes) before anything is stored there. On
    /// persistent memory, the same as [`Access::ReadWrite`].
    Sparse,
    /// Stores stay in this mapping, so the file can be open for reading only. Lazy recovery repairs
    /// the pool for this reader alone.
    Private,
}

/// The resident memory behind a range of addresses, as the kernel counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// All of it, in bytes.
    pub bytes: u64,
    /// The part that is mapped with huge pages, in bytes.
    pub huge: u64,
}

/// What is mapped.
#[derive(Debug)]
enum Backing {
    /// The `flags` of the mapping, without `MAP_FIXED`.
    File {
        file: File,
        flags: MapFlags,
    },
    PrivateFile {
        file: File,
    },
    Anonymous,
}

/// A reserved range of addresses with a file or anonymous memory at its front.
///
/// The range is reserved once and the file grows into it, so the base never moves. Forked children
/// do not inherit it.
#[derive(Debug)]
pub struct Mapping {
    range: Reservation,
    backing: Backing,
    medium: MediumKind,
    len: AtomicU64,
    growing: Mutex<()>,
    disk: Disk,
    /// Whether the file was mapped with its holes.
    sparse: bool,
    /// Whether the file is a working file.
    working: bool,
    /// The file that took the place of a working file.
    moved: OnceLock<File>,
}

// SAFETY: the mapping owns its range of addresses, which is the same for every thread. It hands out
// an address and never a reference. Only the length changes, which is an atomic and changes under a
// lock.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, a multiple of 4096.
    ///
    /// Reserves `reserve` bytes of address space to grow into. If the process may not have that
    /// much, the size is halved until the reservation succeeds, down to 1 GiB (or `len`, if that is
    /// more).
    ///
    /// With [`Access::ReadWrite`], a shorter file is extended to `len` bytes, and the file gets all
    /// its blocks: a store to a page without a block would raise SIGBUS on a full disk.
    pub fn file(file: File, access: Access, len: u64, reserve: u64) -> Result<Self, MappingError> {
        Self::file_on(Disk::default(), file, access, len, reserve)
    }

    /// Like [`file`](Mapping::file), on a file system that a test may watch.
    pub fn file_on(
        disk: Disk,
        file: File,
        access: Access,
        len: u64,
        reserve: u64,
    ) -> Result<Self, MappingError> {
        check_len(len)?;
        let range = Reservation::new(len, reserve)?;
        match access {
            Access::ReadWrite | Access::Working | Access::Sparse => {
                let (flags, medium) = if accepts_map_sync(&file)? {
                    (MapFlags::SHARED_VALIDATE | MapFlags::SYNC, medium::dax_kind())
                } else {
                    (MapFlags::SHARED, MediumKind::PageCache)
                };
                let mut mapping = Self::empty(range, Backing::File { file, flags }, medium, disk);
                mapping.sparse = access == Access::Sparse && medium == MediumKind::PageCache;
                mapping.working = access == Access::Working;
                if mapping.working || mapping.sparse {
                    mapping.take(len)?;
                } else {
                    mapping.grow(len)?;
                }
                Ok(mapping)
            }
            Access::Private => {
                let file_len = file.metadata()?.len();
                if file_len < len {
                    let short = format!("the file has {file_len} bytes, expected {len}");
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, short).into());
                }
                let backing = Backing::PrivateFile { file };
                let mut mapping = Self::empty(range, backing, MediumKind::Bytes, disk);
                mapping.take(len)?;
                Ok(mapping)
            }
        }
    }

    /// Maps `len` bytes of zeroed memory, a multiple of 4096, with `reserve` bytes to grow into as
    /// for [`Mapping::file`].
    pub fn anonymous(len: u64, reserve: u64) -> Result<Self, MappingError> {
        check_len(len)?;
        let range = Reservation::new(len, reserve)?;
        let disk = Disk::default();
        let mapping = Self::empty(range, Backing::Anonymous, MediumKind::Bytes, disk);
        mapping.grow(len)?;
        Ok(mapping)
    }

    fn empty(range: Reservation, backing: Backing, medium: MediumKind, disk: Disk) -> Self {
        let (len, growing) = (AtomicU64::new(0), Mutex::new(()));
        let (sparse, working, moved) = (false, false, OnceLock::new());
        Mapping { range, backing, medium, len, growing, disk, sparse, working, moved }
    }

    /// Maps the first `len` bytes of the file as they are.
    fn take(&mut self, len: u64) -> Result<(), MappingError> {
        self.range.cover(len)?;
        self.map_pages(0, len)?;
        *self.len.get_mut() = len;
        Ok(())
    }

    /// The file system that the file is on.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Address of the first byte, a multiple of 2 MiB. It never changes.
    #[inline]
    pub fn base(&self) -> *const u8 {
        self.range.base()
    }

    /// Address of the shadow's first byte. The shadow is DRAM for volatile metadata about the
    /// mapped bytes: an eighth of their size, zeroed at first. Its address never changes.
    pub fn shadow(&self) -> *const u8 {
        self.range.shadow()
    }

    /// The pool's [region](Region), which begins with the [side table](super::SideTable).
    pub fn region(&self) -> &Arc<Region> {
        self.range.region()
    }

    /// Number of bytes mapped.
    #[inline]
    pub fn len(&self) -> u64 {
        // Acquire: a thread that sees the length that `grow` published also sees its pages.
        self.len.load(Ordering::Acquire)
    }

    /// Returns whether nothing is mapped yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The largest length that the mapping can grow to, in bytes.
    pub fn reserved(&self) -> u64 {
        self.range.size()
    }

    /// The medium of the mapping. For memory and [`Access::Private`] it is [`MediumKind::Bytes`].
    pub fn medium(&self) -> MediumKind {
        self.medium
    }

    /// The file, if there is one.
    pub fn as_file(&self) -> Option<&File> {
        match &self.backing {
            Backing::File { file, .. } | Backing::PrivateFile { file } => {
                Some(self.moved.get().unwrap_or(file))
            }
            Backing::Anonymous => None,
        }
    }

    /// Maps another file in place of a working file, once. It holds the same as the working file, and
    /// nobody stores to the mapping or grows it meanwhile. Threads may read, and find the same in
    /// either file. After an error, some pages may be of one file and some of the other.
    pub fn move_to(&self, file: File) -> io::Result<()> {
        let Backing::File { flags, .. } = &self.backing else { return Ok(()) };
        self.check_here()?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: these pages are ours, and the new ones have the same content.
        unsafe {
            let (start, len) = (self.range.base().cast(), self.len() as usize);
            rustix::mm::mmap(start, len, access, *flags | MapFlags::FIXED, &file, 0)?;
        }
        self.range.advise_dont_fork(0, self.len())?;
        self.moved.set(file).map_err(|_| io::Error::other("the working file was moved already"))
    }

    /// Tells whether this is the process that has the mapping, and not a forked child.
    #[inline]
    pub fn alive(&self) -> &Alive {
        self.range.alive()
    }

    /// Grows the mapping and the file to `new_len` bytes, a multiple of 4096. Never shrinks.
    ///
    /// The new blocks and the new size are durable before the length is published, except in a
    /// working file. On an error, the mapping and the file are unchanged.
    pub fn grow(&self, new_len: u64) -> Result<(), MappingError> {
        check_len(new_len)?;
        self.check_here()?;
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let old_len = self.len();
        if new_len <= old_len {
            return Ok(());
        }
        if new_len > self.reserved() {
            let reserved = self.reserved();
            return Err(MappingError::AddressSpace { needed: new_len, reserved });
        }
        self.range.cover(new_len)?;
        match &self.backing {
            Backing::Anonymous => self.map_pages(old_len, new_len)?,
            Backing::PrivateFile { .. } => {
                return Err(io::Error::from(io::ErrorKind::PermissionDenied).into());
            }
            Backing::File { file, .. } => {
                let file = self.moved.get().unwrap_or(file);
                let old_file_len = file.metadata()?.len();
                if self.working {
                    self.disk.allocate(file, old_len, new_len)?;
                } else {
                    self.disk.allocate_durably(file, old_len, new_len)?;
                }
                if let Err(e) = self.map_pages(old_len, new_len) {
                    // If this fails too, the first error is the one to report.
                    let _ = self.disk.set_len(file, old_file_len);
                    return Err(e.into());
                }
            }
        }
        // Release: pairs with the Acquire in `len`, which must not be ahead of the pages.
        self.len.store(new_len, Ordering::Release);
        Ok(())
    }

    /// Returns whether the file was mapped with its holes: with [`Access::Sparse`], and not on
    /// persistent memory.
    pub fn is_sparse(&self) -> bool {
        self.sparse
    }

    /// Returns whether parts of the file can be punched out, which takes a file system with a page
    /// cache.
    pub fn can_be_punched(&self) -> bool {
        matches!(self.backing, Backing::File { .. }) && self.medium == MediumKind::PageCache
    }

    /// Returns the parts of the mapped range that may lack blocks of the file, or `None` if the
    /// file system cannot tell.
    pub fn holes(&self) -> io::Result<Option<Vec<Range<u64>>>> {
        match &self.backing {
            Backing::File { file, .. } | Backing::PrivateFile { file } => {
                blocks::holes(file, self.len())
            }
            Backing::Anonymous => Ok(Some(Vec::new())),
        }
    }

    /// Gets blocks for a part of the file that is mapped. Its content does not change: holes read
    /// as zeros before and after.
    pub fn fill(&self, range: Range<u64>) -> Result<(), MappingError> {
        let Backing::File { file, .. } = &self.backing else { return Ok(()) };
        self.check_here()?;
        self.disk.fill(file, range)
    }

    /// Gives back the blocks of a part of the file, which then reads as zeros. Nobody may store
    /// there before [`fill`](Mapping::fill), since a store would raise SIGBUS on a full disk. After
    /// an error, any of the blocks may be gone.
    pub fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let Backing::File { file, .. } = &self.backing else { return Ok(()) };
        self.check_here()?;
        self.disk.punch_hole(file, range)
    }

    /// Maps the pages of `from..to` over the reservation.
    fn map_pages(&self, from: u64, to: u64) -> io::Result<()> {
        if from == to {
            return Ok(());
        }
        let size = (to - from) as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: `from..to` lies in the reservation and beyond the published length, so MAP_FIXED
        // replaces only our own inaccessible pages.
        let mapped = unsafe {
            let start = self.range.base().add(from as usize).cast();
            match &self.backing {
                Backing::Anonymous => {
                    // Changing the protection keeps the advice that the reservation was given.
                    let access = MprotectFlags::READ | MprotectFlags::WRITE;
                    return Ok(rustix::mm::mprotect(start, size, access)?);
                }
                Backing::File { file, flags } => {
                    let file = self.moved.get().unwrap_or(file);
                    rustix::mm::mmap(start, size, access, *flags | MapFlags::FIXED, file, from)
                }
                Backing::PrivateFile { file } => {
                    // Reserves no memory, because few pages of a large file are ever repaired.
                    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
                    rustix::mm::mmap(start, size, access, flags, file, from)
                }
            }
        };
        // A fork before the advice gives these pages to the child; `Alive` tells it not to use
        // them.
        let mapped = match mapped {
            Ok(_) => self.range.advise_dont_fork(from, to - from),
            Err(e) => Err(e.into()),
        };
        if mapped.is_err() {
            self.range.restore(from, to - from);
        }
        mapped
    }

    /// Writes everything stored so far back to the file's storage, so that it survives a power loss
    /// if that storage does. Does nothing for memory and [`Access::Private`].
    ///
    /// On Linux, `fsync` also writes back what was stored through a mapping.
    pub fn sync(&self) -> io::Result<()> {
        let Backing::File { file, .. } = &self.backing else { return Ok(()) };
        self.check_here()?;
        self.disk.fsync(file)
    }

    /// Like [`sync`](Mapping::sync), for the first `len` bytes only. The kernel writes back no other
    /// page, however many are dirty.
    pub fn sync_front(&self, len: u64) -> io::Result<()> {
        let Backing::File { file, .. } = &self.backing else { return Ok(()) };
        self.check_here()?;
        let len = len.min(self.len()) as usize;
        self.disk.call(Call::Msync, file, || {
            // SAFETY: the range is mapped, and writing it back does not change it.
            unsafe { rustix::mm::msync(self.range.base().cast(), len, MsyncFlags::SYNC)? };
            Ok(())
        })
    }

    /// Returns whether a file is on tmpfs, so that its pages exist only in memory.
    pub fn is_tmpfs(file: &File) -> bool {
        blocks::is_on_tmpfs(file).unwrap_or(false)
    }

    /// Returns whether the file is in memory already, so that touching all of it causes no disk
    /// reads or writes.
    pub fn is_in_memory(&self) -> bool {
        match &self.backing {
            Backing::File { .. } | Backing::PrivateFile { .. } => {
                self.medium.survives_power_loss() || self.as_file().is_some_and(Self::is_tmpfs)
            }
            Backing::Anonymous => true,
        }
    }

    /// Pre-faults the pages of a range, so that no operation has to. This is an optimization:
    /// errors are ignored.
    pub fn populate(&self, range: Range<u64>) {
        let start = range.start / PAGE * PAGE;
        let end = range.end.min(self.len()).next_multiple_of(PAGE);
        if start >= end || !self.alive().is_here() {
            return;
        }
        let advice = match self.backing {
            // A write fault would copy the page.
            Backing::PrivateFile { .. } => Advice::LinuxPopulateRead,
            Backing::File { .. } | Backing::Anonymous => Advice::LinuxPopulateWrite,
        };
        // SAFETY: the range is mapped, and its content does not change.
        let _ = unsafe {
            let page = self.range.base().add(start as usize);
            rustix::mm::madvise(page.cast(), (end - start) as usize, advice)
        };
    }

    /// Allows huge pages for the shadow from now on. Before this call it gets small pages, which
    /// the kernel has at hand, unless the system gives huge pages to all memory. For a huge page
    /// the kernel may have to move memory for milliseconds, and the first operation after a restart
    /// would wait for that.
    pub fn use_huge_pages(&self) {
        if self.alive().is_here() {
            self.range.use_huge_pages();
        }
    }

    /// Pre-faults the shadow of a range, so that no operation has to.
    pub fn touch_shadow(&self, range: Range<u64>) {
        let len = self.len();
        if range.start < range.end && range.end <= len && self.alive().is_here() {
            self.range.touch_shadow(range, len);
        }
    }

    /// Builds huge pages from the complete 2 MiB pieces in a range. Returns whether there are such
    /// pieces and all of them are huge now. This is an optimization: errors are ignored.
    pub fn collapse(&self, range: Range<u64>) -> bool {
        let start = range.start.checked_next_multiple_of(HUGE_PAGE).unwrap_or(u64::MAX);
        let end = range.end.min(self.len()) / HUGE_PAGE * HUGE_PAGE;
        if start >= end || !self.alive().is_here() {
            return false;
        }
        let mut collapsed = true;
        for piece in (start..end).step_by(HUGE_PAGE as usize) {
            // SAFETY: the piece is mapped, and its content does not change.
            let answer = unsafe {
                let page = self.range.base().add(piece as usize);
                libc::madvise(page.cast(), HUGE_PAGE as usize, MADV_COLLAPSE)
            };
            collapsed &= answer == 0;
        }
        collapsed
    }

    /// Returns the number of bytes mapped with huge pages, if the kernel reports it. It does not
    /// for DAX.
    pub fn huge_pages(&self) -> Option<u64> {
        let base = self.base().addr() as u64;
        self.resident(base..base + self.len()).map(|resident| resident.huge)
    }

    /// Returns the memory resident for the shadow and the side table: only pages that were stored to, however large
    /// the mapping is.
    pub fn shadow_resident(&self) -> Option<Resident> {
        let shadow = self.shadow().addr() as u64..self.base().addr() as u64;
        let [shadow, side] =
            [shadow, self.region().side_addresses()].map(|part| self.resident(part));
        let (shadow, side) = (shadow?, side?);
        Some(Resident { bytes: shadow.bytes + side.bytes, huge: shadow.huge + side.huge })
    }

    fn resident(&self, range: Range<u64>) -> Option<Resident> {
        if !self.alive().is_here() {
            return None;
        }
        let smaps = BufReader::new(File::open("/proc/self/smaps").ok()?);
        resident(smaps, range).ok()
    }

    fn check_here(&self) -> io::Result<()> {
        if self.alive().is_here() {
            return Ok(());
        }
        Err(io::Error::other("a forked child does not have the mapping"))
    }
}

fn check_len(len: u64) -> io::Result<()> {
    if len.is_multiple_of(PAGE) {
        return Ok(());
    }
    let odd = format!("a mapping of {len} bytes, not a multiple of {PAGE}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, odd))
}

/// Converts the error of a file that did not get `needed` bytes of blocks.
pub(super) fn no_blocks(error: NoBlocks, needed: u64) -> MappingError {
    match error {
        NoBlocks::WriteBack(source) => MappingError::WriteBack(source),
        NoBlocks::Refused(source) => match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
                MappingError::DiskFull { needed, source }
            }
            _ => MappingError::Io(source),
        },
    }
}

/// Returns whether the file is persistent memory that can be mapped directly.
///
/// Tries one page without MAP_FIXED, because a refused MAP_FIXED has already unmapped what was
/// there. (MAP_SYNC cannot be combined with MAP_FIXED_NOREPLACE either.)
fn accepts_map_sync(file: &File) -> io::Result<bool> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    // SAFETY: the kernel chooses a free address, and no one else knows the page.
    let answer = unsafe {
        rustix::mm::mmap(ptr::null_mut(), PAGE as usize, access, flags, file, 0)
            .and_then(|page| rustix::mm::munmap(page, PAGE as usize))
    };
    match answer {
        Ok(()) => Ok(true),
        // INVAL: a kernel older than MAP_SYNC.
        Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Sums up what the entries of an smaps file say about `range`.
fn resident(smaps: impl BufRead, range: Range<u64>) -> io::Result<Resident> {
    let mut sum = Resident::default();
    // Number of bytes that the entry and the range have in common.
    let mut common = 0;
    for line in smaps.lines() {
        let line = line?;
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(field) = first.strip_suffix(':') {
            if common == 0 {
                continue;
            }
            let bytes = 1024 * words.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            match field {
                // An entry can extend beyond the range if the kernel has merged two.
                "Rss" => sum.bytes += bytes.min(common),
                "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => sum.huge += bytes,
                _ => {}
            }
        } else if let Some((start, end)) = first.split_once('-') {
            let number = |n| u64::from_str_radix(n, 16).unwrap_or(0);
            let (start, end) = (number(start).max(range.start), number(end).min(range.end));
            common = end.saturating_sub(start);
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests;
