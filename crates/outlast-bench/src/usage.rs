//! What the process uses: heap, huge pages, page faults, context switches, processor time.

use serde::Serialize;
use std::fs;
use std::path::Path;

/// Returns how many bytes of the heap are in use, including allocations that have their own
/// mappings, as the C library counts them. `None` if the C library does not count them.
pub fn heap_bytes() -> Option<u64> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call takes no argument and only reads the allocator's counters.
        let info = unsafe { libc::mallinfo2() };
        Some((info.uordblks + info.hblkhd) as u64)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Returns free heap memory to the system, so that the next measurement does not reuse what the
/// last one freed.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call only returns pages that the allocator does not use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Kilobytes of the process's anonymous memory in huge pages.
pub fn anon_huge_kb() -> Option<u64> {
    field_kb(&fs::read_to_string("/proc/self/smaps_rollup").ok()?, "AnonHugePages:")
}

/// Writes back everything in the page cache that belongs to the file system of a directory, and
/// returns how many bytes all programs have written to its disk since the system started. `None` if
/// the file system has no disk.
pub fn disk_bytes(dir: &Path) -> Option<u64> {
    let file = fs::File::open(dir).ok()?;
    rustix::fs::syncfs(&file).ok()?;
    let device = rustix::fs::fstat(&file).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let counters = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    // The seventh number counts sectors of 512 bytes, on every disk.
    Some(counters.split_ascii_whitespace().nth(6)?.parse::<u64>().ok()? * 512)
}

fn field_kb(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The system's counters for the calling thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ThreadUsage {
    /// Page faults that needed no disk access.
    pub minor_faults: u64,
    /// Page faults that needed disk access.
    pub major_faults: u64,
    /// Number of times it gave up the processor to wait.
    pub waits: u64,
    /// Number of times the processor was taken from it.
    pub preemptions: u64,
    /// Processor time used, in nanoseconds.
    #[serde(skip)]
    pub cpu_ns: u64,
}

impl ThreadUsage {
    /// Reads the counters.
    pub fn now() -> ThreadUsage {
        // SAFETY: a rusage consists of numbers, for which zeros are valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is valid for the kernel to write, for as long as the call runs.
        let answer = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        debug_assert_eq!(answer, 0, "the arguments are valid");
        let mut cpu = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: as above.
        let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut cpu) };
        debug_assert_eq!(answer, 0, "the arguments are valid");
        ThreadUsage {
            minor_faults: usage.ru_minflt as u64,
            major_faults: usage.ru_majflt as u64,
            waits: usage.ru_nvcsw as u64,
            preemptions: usage.ru_nivcsw as u64,
            cpu_ns: cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64,
        }
    }

    /// Returns the difference to an earlier reading.
    pub fn since(&self, before: &ThreadUsage) -> ThreadUsage {
        ThreadUsage {
            minor_faults: self.minor_faults - before.minor_faults,
            major_faults: self.major_faults - before.major_faults,
            waits: self.waits - before.waits,
            preemptions: self.preemptions - before.preemptions,
            cpu_ns: self.cpu_ns - before.cpu_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_name() {
        let text = "Rss:   12 kB\nAnonHugePages:      4096 kB\n";
        assert_eq!(field_kb(text, "AnonHugePages:"), Some(4096));
        assert_eq!(field_kb(text, "Pss:"), None);
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn the_heap_grows_with_what_is_allocated() {
        // The size is much more than concurrent tests allocate or free, and the memory is never
        // touched.
        const BYTES: usize = 1 << 30;
        let before = heap_bytes().unwrap();
        let block = std::hint::black_box(vec![0u8; BYTES]);
        let grown = heap_bytes().unwrap().abs_diff(before) as usize;
        assert!((BYTES - BYTES / 4..BYTES + BYTES / 4).contains(&grown), "{grown}");
        drop(std::hint::black_box(block));
    }

    #[test]
    fn a_thread_that_touches_new_memory_faults() {
        let before = ThreadUsage::now();
        let mut block = vec![0u8; 8 << 20];
        for page in block.chunks_mut(4096) {
            page[0] = 1;
        }
        std::hint::black_box(block);
        let used = ThreadUsage::now().since(&before);
        assert!(used.minor_faults > 0 && used.cpu_ns > 0, "{used:?}");
    }
}
