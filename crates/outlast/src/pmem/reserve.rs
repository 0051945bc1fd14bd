//! A reserved range of addresses.

use super::{Alive, MappingError, Region};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size in bytes of a huge page, to which the base is aligned.
pub(super) const HUGE_PAGE: u64 = 2 << 20;

/// Where halving stops, in bytes. If even this much is refused, something is wrong.
const RESERVE_MIN: u64 = 1 << 30;

/// The largest reservation that is ever tried. It is more than a process has addresses for.
const RESERVE_MAX: u64 = 1 << 48;

/// Number of bytes of the range per byte of its shadow.
pub const SHADOW_SHARE: u64 = 8;

/// The bytes of addresses that all reservations of this process take.
static RESERVED: AtomicU64 = AtomicU64::new(0);

/// Returns how many bytes of addresses to reserve for a memory of `size` bytes that may grow to `most`.
///
/// A process has addresses for 128 TiB. The first reservations get all that they may ever need, and the
/// later ones less, so that a thousand fit.
pub fn reserve_for(size: u64, most: u64) -> u64 {
    let step = match RESERVED.load(Ordering::Relaxed) {
        taken if taken < MOST_LARGE => u64::MAX,
        taken if taken < MOST_MIDDLE => MIDDLE,
        _ => SMALL,
    };
    // What is large already may grow in proportion.
    most.min(step.max(8 * size)).max(size)
}

/// Notes that reservations take this many bytes of addresses more (wrapping).
pub(super) fn note_reserved(bytes: u64) {
    RESERVED.fetch_add(bytes, Ordering::Relaxed);
}

/// While reservations take less than this, each gets what it wants.
const MOST_LARGE: u64 = 32 << 40;
/// While they take less than this, each gets `MIDDLE`, and from then on `SMALL`.
const MOST_MIDDLE: u64 = 108 << 40;
const MIDDLE: u64 = 64 << 30;
const SMALL: u64 = 4 << 30;

/// A reserved range of addresses, initially without memory behind it; unmapped on drop. Just below
/// the range lies its *shadow*, an eighth as large, which holds volatile metadata about the range,
/// in DRAM. Its [region](Region) is elsewhere.
#[derive(Debug)]
pub(super) struct Reservation {
    base: NonNull<u8>,
    /// Only shrinks, in [`Reservation::give_up_from`].
    size: AtomicU64,
    /// Size in bytes of the shadow before the base.
    shadow: u64,
    region: Arc<Region>,
    /// How much was added to [`RESERVED`].
    all: u64,
    alive: Alive,
}

impl Reservation {
    /// Reserves `wanted` bytes, or `needed` bytes if that is more. If the system refuses, halves
    /// the size until it succeeds, but not below `needed` and not below 1 GiB. A size below 1 GiB
    /// is not halved at all.
    pub(super) fn new(needed: u64, wanted: u64) -> Result<Self, MappingError> {
        let alive = Alive::new()?;
        let refused = |size| MappingError::AddressSpace { needed: size, reserved: 0 };
        if needed > RESERVE_MAX {
            return Err(refused(needed));
        }
        let round = |size: u64| size.next_multiple_of(HUGE_PAGE).max(HUGE_PAGE);
        let needed = round(needed);
        let mut size = round(wanted.min(RESERVE_MAX)).max(needed);
        let least = needed.max(RESERVE_MIN.min(size));
        let (start, shadow, region) = loop {
            let shadow = round(size / SHADOW_SHARE);
            let reserved = Region::reserve(size).and_then(|region| {
                let start = reserve_aligned(shadow + size, ProtFlags::empty())?;
                Ok((start, shadow, Arc::new(region)))
            });
            match reserved {
                Ok(reserved) => break reserved,
                Err(_) if size > least => size = round(size / 2).max(least),
                Err(_) => return Err(refused(size)),
            }
        };
        // SAFETY: that many bytes were just reserved, and more after them.
        let base = unsafe { start.add(shadow as usize) };
        let all = shadow + size;
        note_reserved(all);
        let this = Reservation { base, size: AtomicU64::new(size), all, shadow, region, alive };
        // SAFETY: the range is ours, and the advice changes nothing in this process.
        unsafe {
            rustix::mm::madvise(start.as_ptr().cast(), all as usize, Advice::LinuxDontFork)
                .map_err(io::Error::from)?;
        }
        Ok(this)
    }

    /// Address of the shadow's first byte.
    pub(super) fn shadow(&self) -> *mut u8 {
        // SAFETY: the `shadow` bytes before the base are part of the reservation.
        unsafe { self.base().sub(self.shadow as usize) }
    }

    /// The region of the pool.
    pub(super) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Makes the shadow and the side table of the first `len` bytes accessible. They are zeroed, and
    /// later calls keep their content.
    pub(super) fn cover(&self, len: u64) -> io::Result<()> {
        let bytes = self.covered(len);
        if bytes == 0 {
            return Ok(());
        }
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the shadow belongs to this reservation. Pages that are accessible already keep their content.
        unsafe { rustix::mm::mprotect(self.shadow().cast(), bytes as usize, access)? };
        self.region.cover(len)
    }

    /// Allows huge pages for the shadow and the side table from now on.
    ///
    /// This is an optimization: errors are ignored. The first huge page's worth of each is left out.
    /// It becomes accessible bit by bit and so has small pages; the kernel might later replace them by
    /// a huge one, and operations would wait for that.
    pub(super) fn use_huge_pages(&self) {
        if self.shadow > HUGE_PAGE {
            // SAFETY: it is ours, and the advice changes only the size of its pages.
            let _ = unsafe {
                let rest = self.shadow().add(HUGE_PAGE as usize);
                let bytes = (self.shadow - HUGE_PAGE) as usize;
                rustix::mm::madvise(rest.cast(), bytes, Advice::LinuxHugepage)
            };
        }
        self.region.use_huge_pages();
    }

    /// Returns how many bytes of the shadow to make accessible for the first `len` bytes. A result
    /// above the size of a huge page is rounded up to whole huge pages, because the kernel would
    /// use small pages for a huge page that is accessible only in part.
    fn covered(&self, len: u64) -> u64 {
        in_pages(len.div_ceil(SHADOW_SHARE)).min(self.shadow)
    }

    /// Touches the shadow of a range below `len`, so that the kernel provides its memory now. If
    /// the shadow is accessible in whole huge pages, also touches the rest of the last huge page.
    pub(super) fn touch_shadow(&self, range: Range<u64>, len: u64) {
        let ahead = range.end.next_multiple_of(HUGE_PAGE * SHADOW_SHARE);
        let end = self.covered(ahead).min(self.covered(len));
        let start = range.start / SHADOW_SHARE / 4096 * 4096;
        for page in (start..end).step_by(4096) {
            // SAFETY: inside the part that `cover` has made accessible, and aligned. A shadow is
            // accessed only as atomic words.
            let word = unsafe { &*self.shadow().add(page as usize).cast::<AtomicU64>() };
            // For the processor this is a store, but it only takes effect on a zero word and leaves
            // it zero. It is used instead of madvise(2), which would hold the lock of the whole
            // address space while the kernel clears a huge page; an allocation by an operation can
            // wait for that lock.
            let _ = word.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(super) fn size(&self) -> u64 {
        // Relaxed: only threads that grow the mapping read it, and those exclude each other.
        self.size.load(Ordering::Relaxed)
    }

    pub(super) fn alive(&self) -> &Alive {
        &self.alive
    }

    /// Keeps `len` bytes at `from` out of forked children. A new mapping of the range loses this
    /// advice.
    pub(super) fn advise_dont_fork(&self, from: u64, len: u64) -> io::Result<()> {
        // SAFETY: the range is ours, and the advice changes nothing in this process.
        unsafe {
            let start = self.base().add(from as usize);
            rustix::mm::madvise(start.cast(), len as usize, Advice::LinuxDontFork)?;
        }
        Ok(())
    }

    /// Restores the reservation of `len` bytes at `from` after an attempt to map something there
    /// has failed. The failed call may have unmapped what was there.
    pub(super) fn restore(&self, from: u64, len: u64) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range is ours, and no one has been told about anything in it. If it was
        // unmapped for a moment and another thread was given it, that thread loses it. Kernels that
        // unmap before they have checked everything leave no better way.
        let restored = unsafe {
            let start = self.base().add(from as usize);
            rustix::mm::mmap_anonymous(start.cast(), len as usize, ProtFlags::empty(), flags)
        };
        if restored.is_err() || self.advise_dont_fork(from, len).is_err() {
            self.give_up_from(from, len);
        }
    }

    /// Ends the reservation at `from`, because the `len` bytes there may belong to someone else.
    fn give_up_from(&self, from: u64, len: u64) {
        let behind = from + len;
        if behind < self.size() {
            // SAFETY: the rest of the range is ours and holds nothing.
            let _ = unsafe {
                let start = self.base().add(behind as usize);
                rustix::mm::munmap(start.cast(), (self.size() - behind) as usize)
            };
        }
        self.size.store(from, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        note_reserved(self.all.wrapping_neg());
        // A child did not inherit the range, so whatever is mapped there is not ours.
        if self.alive.is_here() {
            // SAFETY: the range is ours, and everything borrowed from it borrows from `self`.
            // Nothing can be done about an error.
            let _ = unsafe {
                let all = self.shadow + self.size();
                rustix::mm::munmap(self.shadow().cast(), all as usize)
            };
        }
    }
}

/// Rounds a number of bytes up to whole pages, huge ones if it is above the size of one.
pub(super) fn in_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(if bytes > HUGE_PAGE { HUGE_PAGE } else { 4096 })
}

/// Reserves `bytes` of addresses, without memory behind them, which forked children do not inherit.
pub(super) fn reserve(bytes: u64) -> io::Result<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let bytes = bytes as usize;
    // SAFETY: the kernel chooses a free address.
    let start =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags)? };
    // SAFETY: the range was mapped above, and the advice changes nothing in this process.
    unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxDontFork)? };
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

/// Maps `size` bytes, a multiple of 4096, starting at a huge page boundary. Maps one huge page more
/// and trims both ends.
pub(super) fn reserve_aligned(size: u64, access: ProtFlags) -> io::Result<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let (size, huge_page) = (size as usize, HUGE_PAGE as usize);
    // SAFETY: the kernel chooses a free address.
    let start =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size + huge_page, access, flags)? };
    let head = start.align_offset(huge_page);
    let tail = huge_page - head;
    // SAFETY: both ends lie in what was mapped above, and nothing else knows about it yet.
    unsafe {
        let base = start.byte_add(head);
        if head > 0 {
            rustix::mm::munmap(start, head)?;
        }
        if tail > 0 {
            rustix::mm::munmap(base.byte_add(size), tail)?;
        }
        NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::DramWords;
    use crate::pmem::alive::tests::in_forked_child;

    const GIB: u64 = 1 << 30;

    /// Runs `child` in a forked child with `room` bytes of address space left. Returns its result.
    fn in_child_with_room(room: u64, child: impl FnOnce() -> bool) -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let size_kib: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
        let limit_bytes = size_kib * 1024 + room;
        // SAFETY: the child makes system calls only.
        unsafe {
            in_forked_child(|| {
                let limit = libc::rlimit { rlim_cur: limit_bytes, rlim_max: limit_bytes };
                libc::setrlimit(libc::RLIMIT_AS, &limit) == 0 && child()
            })
        }
    }

    #[test]
    fn the_base_is_aligned_to_a_large_page() {
        for size in [1, 4096, HUGE_PAGE, 5 * HUGE_PAGE + 4096] {
            let reservation = Reservation::new(4096, size).unwrap();
            assert_eq!(reservation.base() as u64 % HUGE_PAGE, 0);
            assert_eq!(reservation.size(), size.next_multiple_of(HUGE_PAGE));
        }
    }

    #[test]
    fn a_refused_reservation_is_halved_until_it_fits() {
        let halved = in_child_with_room(5 * GIB, || {
            let reservation = Reservation::new(4096, 1 << 40).unwrap();
            reservation.size() == 4 * GIB && reservation.base().addr().is_multiple_of(2 << 20)
        });
        assert!(halved);
    }

    #[test]
    fn halving_stops_at_what_is_needed_and_at_1_gib() {
        let needs_too_much = in_child_with_room(5 * GIB, || {
            matches!(
                Reservation::new(6 * GIB, 1 << 40),
                Err(MappingError::AddressSpace { needed, reserved: 0 }) if needed == 6 * GIB
            )
        });
        assert!(needs_too_much);
        let has_too_little = in_child_with_room(GIB / 2, || {
            matches!(
                Reservation::new(4096, 1 << 40),
                Err(MappingError::AddressSpace { needed: GIB, reserved: 0 })
            )
        });
        assert!(has_too_little);
        let takes_what_it_needs =
            in_child_with_room(5 * GIB, || Reservation::new(3 * GIB, 10 * GIB).is_ok());
        assert!(takes_what_it_needs);
    }

    #[test]
    fn what_a_pool_takes_is_given_back() {
        let taken = || RESERVED.load(Ordering::Relaxed);
        let open = || {
            let reservation = Reservation::new(4096, 1 << 40).unwrap();
            reservation.cover(4096).unwrap();
            let words = DramWords::in_region(reservation.region(), 1 << 20);
            (reservation, words)
        };
        // SAFETY: the child makes system calls and allocates. It has one thread, so nobody else reserves.
        let given_back = unsafe {
            in_forked_child(|| {
                let before = taken();
                let others = [open(), open()];
                let (first, words) = open();
                // 22% more, as the guide says.
                let is_all = (taken() - before) / (3 << 30) == 1248;
                drop((first, others));
                // The array keeps its region.
                words.iter().for_each(|word| word.0.store(7, Ordering::Relaxed));
                drop(words);
                // The addresses of a process do not suffice for all of these at once.
                let is_large = (0..200).all(|_| open().0.size() == 1 << 40);
                is_all && is_large && taken() == before
            })
        };
        assert!(given_back);
    }

    #[test]
    fn no_size_is_too_large_to_be_refused() {
        assert!(Reservation::new(4096, u64::MAX).is_ok(), "halved");
        let refused = Reservation::new(u64::MAX, u64::MAX);
        assert!(matches!(refused, Err(MappingError::AddressSpace { .. })));
    }

    #[test]
    fn a_range_that_is_given_up_is_not_unmapped_by_us() {
        let reservation = Reservation::new(4096, 4 * HUGE_PAGE).unwrap();
        reservation.give_up_from(HUGE_PAGE, HUGE_PAGE);
        assert_eq!(reservation.size(), HUGE_PAGE);
        // SAFETY: the second huge page now belongs to this test.
        unsafe {
            let other = reservation.base().add(HUGE_PAGE as usize);
            drop(reservation);
            rustix::mm::msync(other.cast(), HUGE_PAGE as usize, rustix::mm::MsyncFlags::ASYNC)
                .expect("still mapped");
            rustix::mm::munmap(other.cast(), HUGE_PAGE as usize).unwrap();
        }
    }
}
