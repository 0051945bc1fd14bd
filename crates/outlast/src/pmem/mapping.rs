//! A file, or memory of the process, mapped at an address that does not change.

use super::blocks::NoBlocks;
use super::disk::{Call, Disk};
use super::reserve::{HUGE_PAGE, Reservation};
use super::{Alive, MediumKind, blocks, medium};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MsyncFlags, ProtFlags};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use thiserror::Error;

/// The unit of mapping.
const PAGE: u64 = 4096;

/// Makes large pages of small ones, now. Neither crate has it for every target.
const MADV_COLLAPSE: libc::c_int = 25;

/// Why a mapping could not be made or grown. Nothing has changed.
#[derive(Debug, Error)]
pub enum MappingError {
    /// The file system or the kernel failed.
    #[error("cannot map the file: {0}")]
    Io(#[from] io::Error),
    /// The file system could not write the file back: what the disk holds of anything that was
    /// stored so far is unknown.
    #[error("cannot write the file back: {0}")]
    WriteBack(io::Error),
    /// The file system has no room for the file to grow.
    #[error("no room for {needed} more bytes of the file: {source}")]
    DiskFull {
        /// The bytes that the file was to grow by.
        needed: u64,
        /// What the file system said.
        source: io::Error,
    },
    /// The process has no room for the mapping.
    #[error("no room for {needed} bytes of addresses, {reserved} are reserved")]
    AddressSpace {
        /// The bytes asked for.
        needed: u64,
        /// The bytes that there are; 0 where none could be reserved.
        reserved: u64,
    },
}

/// What becomes of stores to a mapped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// They change the file.
    ReadWrite,
    /// They stay in this mapping; the file can be open for reading only. What a lazy
    /// recovery repairs is repaired for this reader.
    Private,
}

/// Memory behind a range of addresses, as the kernel counts it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// All of it, in bytes.
    pub bytes: u64,
    /// What of it is mapped with large pages.
    pub huge: u64,
}

/// What is mapped.
#[derive(Debug)]
enum Backing {
    /// `flags` are those of the pages, less `MAP_FIXED`.
    File {
        file: File,
        flags: MapFlags,
    },
    PrivateFile {
        file: File,
    },
    Anonymous,
}

/// A reserved range of addresses with a file, or memory of the process, at its front.
///
/// The range is reserved once and the file grows into it, so that the base never moves.
/// Forked children do not get it.
#[derive(Debug)]
pub struct Mapping {
    range: Reservation,
    backing: Backing,
    medium: MediumKind,
    len: AtomicU64,
    growing: Mutex<()>,
    disk: Disk,
}

// SAFETY: the mapping owns its range of addresses, which is the same for every thread.
// It hands out an address and never a reference; what changes in it, the length, is an
// atomic, and changes under a lock.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, a multiple of 4096.
    ///
    /// Reserves `reserve` bytes to grow into, or half of that if the process may not have
    /// so many, and so on down to 1 GiB (or `len`, where that is more).
    ///
    /// With [`Access::ReadWrite`], the file is made that long and gets its blocks: a
    /// store to a page without one would raise SIGBUS on a full disk.
    pub fn file(file: File, access: Access, len: u64, reserve: u64) -> Result<Self, MappingError> {
        Self::file_on(Disk::default(), file, access, len, reserve)
    }

    /// As [`file`](Mapping::file), on a file system that a test may watch.
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
            Access::ReadWrite => {
                let (flags, medium) = if accepts_map_sync(&file)? {
                    (MapFlags::SHARED_VALIDATE | MapFlags::SYNC, medium::dax_kind())
                } else {
                    (MapFlags::SHARED, MediumKind::PageCache)
                };
                let mapping = Self::empty(range, Backing::File { file, flags }, medium, disk);
                mapping.grow(len)?;
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
                mapping.range.cover(len)?;
                mapping.map_pages(0, len)?;
                *mapping.len.get_mut() = len;
                Ok(mapping)
            }
        }
    }

    /// Maps `len` bytes of zeroed memory, a multiple of 4096, with `reserve` bytes to
    /// grow into as for [`Mapping::file`].
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
        Mapping { range, backing, medium, len, growing, disk }
    }

    /// The file system below it.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The first byte, at a multiple of 2 MiB. It never moves.
    #[inline]
    pub fn base(&self) -> *const u8 {
        self.range.base()
    }

    /// The first byte of the shadow: an eighth as many bytes of DRAM as are mapped, zeroed
    /// at first, for what is known of them. It never moves.
    pub fn shadow(&self) -> *const u8 {
        self.range.shadow()
    }

    /// Bytes that are mapped.
    #[inline]
    pub fn len(&self) -> u64 {
        // Acquire: who sees the length that `grow` has published sees its pages.
        self.len.load(Ordering::Acquire)
    }

    /// Whether nothing is mapped yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the mapping can grow to.
    pub fn reserved(&self) -> u64 {
        self.range.size()
    }

    /// What the mapping lies on. Memory and [`Access::Private`] are bytes.
    pub fn medium(&self) -> MediumKind {
        self.medium
    }

    /// The file, if there is one.
    pub fn as_file(&self) -> Option<&File> {
        match &self.backing {
            Backing::File { file, .. } | Backing::PrivateFile { file } => Some(file),
            Backing::Anonymous => None,
        }
    }

    /// Tells whether this is the process that has the mapping; a forked child has not.
    #[inline]
    pub fn alive(&self) -> &Alive {
        self.range.alive()
    }

    /// Makes the mapping, and the file, `new_len` bytes long, a multiple of 4096.
    ///
    /// The new blocks and the new size are durable before the length is published. On an
    /// error, the mapping and the file are as they were. Never shrinks.
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
                let old_file_len = file.metadata()?.len();
                allocate(&self.disk, file, old_len, new_len)?;
                if let Err(e) = self.map_pages(old_len, new_len) {
                    // The first error is the one to report.
                    let _ = self.disk.set_len(file, old_file_len);
                    return Err(e.into());
                }
            }
        }
        // Release: for `len`, which must not be ahead of the pages.
        self.len.store(new_len, Ordering::Release);
        Ok(())
    }

    /// Maps the pages of [from, to) over the reservation.
    fn map_pages(&self, from: u64, to: u64) -> io::Result<()> {
        if from == to {
            return Ok(());
        }
        let size = (to - from) as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: [from, to) lies in the reservation and behind what has been published,
        // so MAP_FIXED replaces nothing but our own pages without access.
        let mapped = unsafe {
            let start = self.range.base().add(from as usize).cast();
            match &self.backing {
                Backing::Anonymous => {
                    // Keeps the advice that the reservation was given.
                    let access = MprotectFlags::READ | MprotectFlags::WRITE;
                    return Ok(rustix::mm::mprotect(start, size, access)?);
                }
                Backing::File { file, flags } => {
                    rustix::mm::mmap(start, size, access, *flags | MapFlags::FIXED, file, from)
                }
                Backing::PrivateFile { file } => {
                    // Reserves no memory: few pages of a large file are ever repaired.
                    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
                    rustix::mm::mmap(start, size, access, flags, file, from)
                }
            }
        };
        // A fork in between gives the child these pages; it is told by `Alive` not to
        // look at them.
        let mapped = match mapped {
            Ok(_) => self.range.advise_dont_fork(from, to - from),
            Err(e) => Err(e.into()),
        };
        if mapped.is_err() {
            self.range.restore(from, to - from);
        }
        mapped
    }

    /// Makes what has been stored so far survive a power loss, as far as the file does.
    /// Memory and [`Access::Private`] have nothing to be made durable.
    ///
    /// On Linux, `fsync` writes back what was stored through a mapping, too.
    pub fn sync(&self) -> io::Result<()> {
        let Backing::File { file, .. } = &self.backing else { return Ok(()) };
        self.check_here()?;
        self.disk.fsync(file)
    }

    /// As [`sync`](Mapping::sync), for what was stored to the first `len` bytes: the kernel
    /// writes no other page back, however many are waiting to be.
    pub fn sync_front(&self, len: u64) -> io::Result<()> {
        let Backing::File { file, .. } = &self.backing else { return Ok(()) };
        self.check_here()?;
        let len = len.min(self.len()) as usize;
        self.disk.call(Call::Msync, file, || {
            // SAFETY: the range is mapped, and writing it back changes nothing in it.
            unsafe { rustix::mm::msync(self.range.base().cast(), len, MsyncFlags::SYNC)? };
            Ok(())
        })
    }

    /// Whether the file is in memory already: to touch all of it reads and writes no disk.
    pub fn is_in_memory(&self) -> bool {
        match &self.backing {
            Backing::File { file, .. } | Backing::PrivateFile { file } => {
                self.medium.survives_power_loss() || blocks::is_on_tmpfs(file).unwrap_or(false)
            }
            Backing::Anonymous => true,
        }
    }

    /// Faults the pages of a range in, so that an operation does not have to.
    /// An optimisation: every error is ignored.
    pub fn populate(&self, range: Range<u64>) {
        let start = range.start / PAGE * PAGE;
        let end = range.end.min(self.len()).next_multiple_of(PAGE);
        if start >= end || !self.alive().is_here() {
            return;
        }
        let advice = match self.backing {
            // A write would copy the page.
            Backing::PrivateFile { .. } => Advice::LinuxPopulateRead,
            Backing::File { .. } | Backing::Anonymous => Advice::LinuxPopulateWrite,
        };
        // SAFETY: the range is mapped; its content stays.
        let _ = unsafe {
            let page = self.range.base().add(start as usize);
            rustix::mm::madvise(page.cast(), (end - start) as usize, advice)
        };
    }

    /// The shadow may be had in large pages from now on. Before, it has small ones, which the
    /// kernel finds at once: for a large one it may move memory about for milliseconds, and the
    /// first answer after a restart would wait for that.
    pub fn use_huge_pages(&self) {
        if self.alive().is_here() {
            self.range.use_huge_pages();
        }
    }

    /// Faults the shadow of a range in, so that an operation does not have to.
    pub fn touch_shadow(&self, range: Range<u64>) {
        let len = self.len();
        if range.start < range.end && range.end <= len && self.alive().is_here() {
            self.range.touch_shadow(range, len);
        }
    }

    /// Makes large pages of the whole 2 MiB pieces in a range, and says whether all of
    /// them are now. An optimisation: every error is ignored.
    pub fn collapse(&self, range: Range<u64>) -> bool {
        let start = range.start.checked_next_multiple_of(HUGE_PAGE).unwrap_or(u64::MAX);
        let end = range.end.min(self.len()) / HUGE_PAGE * HUGE_PAGE;
        if start >= end || !self.alive().is_here() {
            return false;
        }
        let mut collapsed = true;
        for piece in (start..end).step_by(HUGE_PAGE as usize) {
            // SAFETY: the piece is mapped; its content stays.
            let answer = unsafe {
                let page = self.range.base().add(piece as usize);
                libc::madvise(page.cast(), HUGE_PAGE as usize, MADV_COLLAPSE)
            };
            collapsed &= answer == 0;
        }
        collapsed
    }

    /// Bytes that are mapped with large pages, as far as the kernel tells: it does not
    /// for DAX.
    pub fn huge_pages(&self) -> Option<u64> {
        let base = self.base().addr() as u64;
        self.resident(base..base + self.len()).map(|resident| resident.huge)
    }

    /// The memory that the shadow takes: pages of it that were stored to, however large the
    /// mapping is.
    pub fn shadow_resident(&self) -> Option<Resident> {
        self.resident(self.shadow().addr() as u64..self.base().addr() as u64)
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

fn allocate(disk: &Disk, file: &File, from: u64, len: u64) -> Result<(), MappingError> {
    blocks::allocate(disk, file, from, len).map_err(|error| match error {
        NoBlocks::WriteBack(source) => MappingError::WriteBack(source),
        NoBlocks::Refused(source) => match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
                MappingError::DiskFull { needed: len - from, source }
            }
            _ => MappingError::Io(source),
        },
    })
}

/// Whether the file is persistent memory that is mapped directly.
///
/// Asked on one page, without MAP_FIXED: a refused MAP_FIXED has already unmapped what
/// was there. (Nor does MAP_SYNC go with MAP_FIXED_NOREPLACE.)
fn accepts_map_sync(file: &File) -> io::Result<bool> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    // SAFETY: the kernel chooses an address that is free; nobody else knows the page.
    let answer = unsafe {
        rustix::mm::mmap(ptr::null_mut(), PAGE as usize, access, flags, file, 0)
            .and_then(|page| rustix::mm::munmap(page, PAGE as usize))
    };
    match answer {
        Ok(()) => Ok(true),
        // INVAL: a kernel from before it.
        Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Sums up what the entries of an smaps file say about `range`.
fn resident(smaps: impl BufRead, range: Range<u64>) -> io::Result<Resident> {
    let mut sum = Resident::default();
    // Bytes that the entry and the range have in common.
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
                // An entry can reach out of the range where the kernel has merged two.
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
