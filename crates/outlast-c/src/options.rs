//! The options of a pool.

use crate::argument::{borrow, path};
use crate::code::{Result, invalid};
use library::{Failure, JournalOptions, PoolOptions, RecoveryProgress};
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// A flag of outlast_options: gives an existing pool a journal, so that it survives a power loss on an ordinary disk.
/// New pools have one anyway, and a pool that has a journal keeps it.
pub const OUTLAST_JOURNAL: u32 = 1;
/// A flag: closing keeps the working file, so that the pool opens faster until the next reboot.
pub const OUTLAST_KEEP_WORKING_FILE: u32 = 2;
/// A flag: opening fails with OUTLAST_ERROR_JOURNAL if the working file of a pool with a journal is gone although the
/// machine was not restarted.
pub const OUTLAST_REQUIRE_WORKING_FILE: u32 = 4;
/// A flag: opens a pool that a power loss may have torn, to verify it and to copy out what can be read.
pub const OUTLAST_ACCEPT_POSSIBLY_TORN: u32 = 8;
/// A flag: no background thread. outlast_step then does its work.
pub const OUTLAST_NO_BACKGROUND: u32 = 16;
/// A flag: the background thread does not sync a pool that nobody changes.
pub const OUTLAST_NO_IDLE_SYNC: u32 = 32;
/// A flag: the pool keeps free space instead of giving it back to the file system.
pub const OUTLAST_NO_TRIM: u32 = 64;

/// A flag: a new pool need not survive a power loss, so it has no journal. After a power loss, it is what it was when
/// it was last closed or synced, if nothing has changed since; otherwise it is refused.
pub const OUTLAST_NO_JOURNAL: u32 = 128;

const ALL_FLAGS: u32 = 255;

/// Receives the progress of an opening: `done` of `all` parts. Any of the opening threads may call it, several at the
/// same time. It must not call outlast.
pub type outlast_progress_fn =
    Option<unsafe extern "C" fn(done: u64, all: u64, context: *mut c_void)>;

/// Options of a pool. `outlast_options options = {0};` sets all defaults, and so does a null pointer in its place.
/// A call reads the options, and keeps nothing of them but the progress function and its context.
#[repr(C)]
#[derive(Debug)]
pub struct outlast_options {
    /// OUTLAST_JOURNAL and the like, or'ed.
    pub flags: u32,
    /// Log2 of the page size of a new pool, from 12 to 20. 0: 16. Pools below some megabytes need small pages.
    pub page_bits: u32,
    /// Size of a new pool in bytes. 0: 2 MiB.
    pub initial_size: u64,
    /// Size that the pool may not exceed, in bytes. 0: no limit for a new pool, the stored limit for an existing one.
    pub max_size: u64,
    /// Threads that open a map whose scheme reads all of it. 0: one for each processor.
    pub recovery_threads: u32,
    /// With a journal: milliseconds until a change becomes durable if no thread waits for it. 0: 10.
    pub journal_interval_ms: u32,
    /// With a journal: the length that it should not exceed, in bytes. 0: twice the pool's size, at least 256 MiB.
    pub journal_limit: u64,
    /// With a journal: its directory. Null: the pool's path with ".journal" appended.
    pub journal_directory: *const c_char,
    /// With a journal: the directory of the working file. Null: /dev/shm, if it has room.
    pub working_directory: *const c_char,
    /// Receives the progress of opening, or null. It and its context must be usable until the last handle of the
    /// pool, its maps and its batches is freed.
    pub progress: outlast_progress_fn,
    /// Passed to `progress`.
    pub progress_context: *mut c_void,
    /// For later versions; 0.
    pub reserved: [u64; 8],
}

/// A function of C and its context, which any thread may call.
struct Progress(unsafe extern "C" fn(u64, u64, *mut c_void), *mut c_void);

// SAFETY: the documentation of `outlast_progress_fn` tells C that any thread may call the function.
unsafe impl Send for Progress {}
// SAFETY: and that several may do so at the same time.
unsafe impl Sync for Progress {}

impl Progress {
    fn tell(&self, progress: RecoveryProgress) {
        // SAFETY: C keeps the function and its context usable until the last handle is freed, and the pool's threads
        // end with it.
        unsafe { (self.0)(progress.parts_done as u64, progress.parts as u64, self.1) };
    }
}

/// Reads the options of a call.
///
/// # Safety
/// If `options` is not null, it points to `outlast_options` whose texts end with a 0.
pub unsafe fn read(options: *const outlast_options) -> Result<PoolOptions> {
    let mut read = PoolOptions::new();
    if options.is_null() {
        return Ok(read);
    }
    // SAFETY: the caller's promise.
    let given = unsafe { borrow(options, "options")? };
    if given.flags & !ALL_FLAGS != 0 || given.reserved != [0; 8] {
        let why = "unknown flags, or reserved fields that are not 0; begin with `outlast_options options = {0}`";
        return Err(invalid("options", why));
    }
    let has = |flag| given.flags & flag != 0;
    read = read
        .max_size(given.max_size)
        .background(!has(OUTLAST_NO_BACKGROUND))
        .idle_sync(!has(OUTLAST_NO_IDLE_SYNC))
        .trim(!has(OUTLAST_NO_TRIM))
        .accept_possibly_torn(has(OUTLAST_ACCEPT_POSSIBLY_TORN))
        .require_working_file(has(OUTLAST_REQUIRE_WORKING_FILE));
    if given.page_bits != 0 {
        read = read.page_bits(given.page_bits);
    }
    if given.initial_size != 0 {
        read = read.initial_size(given.initial_size);
    }
    if given.recovery_threads != 0 {
        read = read.recovery_threads(given.recovery_threads as usize);
    }
    if let Some(tell) = given.progress {
        let progress = Progress(tell, given.progress_context);
        read = read.recovery_progress(move |parts| progress.tell(parts));
    }
    if has(OUTLAST_NO_JOURNAL) {
        read = read.survive(Failure::ProcessDeath);
    }
    if has(OUTLAST_JOURNAL) && has(OUTLAST_NO_JOURNAL) {
        return Err(invalid(
            "options",
            "OUTLAST_JOURNAL and OUTLAST_NO_JOURNAL exclude each other",
        ));
    }
    if has(OUTLAST_JOURNAL)
        || !given.journal_directory.is_null()
        || !given.working_directory.is_null()
    {
        // SAFETY: the caller's promise.
        read = read.journal(unsafe { journal(given)? });
    }
    Ok(read)
}

/// # Safety
/// The texts of the options end with a 0, or are null.
unsafe fn journal(given: &outlast_options) -> Result<JournalOptions> {
    let mut journal = JournalOptions::new()
        .limit(given.journal_limit)
        .keep_working_file(given.flags & OUTLAST_KEEP_WORKING_FILE != 0);
    if given.journal_interval_ms != 0 {
        journal = journal.interval(Duration::from_millis(given.journal_interval_ms.into()));
    }
    if !given.journal_directory.is_null() {
        // SAFETY: the caller's promise.
        journal = journal.directory(unsafe { path(given.journal_directory, "journal_directory")? });
    }
    if !given.working_directory.is_null() {
        // SAFETY: the caller's promise.
        journal = journal
            .working_directory(unsafe { path(given.working_directory, "working_directory")? });
    }
    Ok(journal)
}
