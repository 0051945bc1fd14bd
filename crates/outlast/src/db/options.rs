//! Options for creating and opening pools.

use super::boot::boot_id;
use super::journal::JournalOptions;
use super::store::Store;
use super::trim::TRIM_AFTER;
use crate::error::{Error, Result};
use crate::pmem::{
    Disk, FlushMode, Latency, MapAccess, Mapping, Medium, MediumKind, Real, reserve_for,
};
use crate::pool::backing::{Backing, mapping_error};
use crate::pool::core::{Core, CoreOptions, ProgressListener, Recovery, RecoveryProgress};
use crate::pool::header::Header;
use crate::pool::identity::Identity;
use crate::pool::layout::field;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// Address space reserved for a pool to grow into, in bytes, if that much is available.
const RESERVE: u64 = 1 << 40;

/// What a pool must survive ([`PoolOptions::survive`]). What it then survives exactly, see
/// [`Pool::durability`](crate::Pool::durability).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The end of the process in any way, SIGKILL included. After a power loss, a pool that was being
    /// changed on an ordinary file system may be torn, and opening it then fails with
    /// [`Error::PossiblyTorn`].
    ProcessDeath,
    /// Also a power loss and a crash of the system: whatever was happening, the pool then opens, as it was
    /// between two operations. On an ordinary file system, a new pool gets a [journal](PoolOptions::journal)
    /// for that, and lacks at most the changes of about the last 10 milliseconds, and none that
    /// [`Pool::wait_durable`](crate::Pool::wait_durable) has confirmed. On persistent memory it needs
    /// none. On tmpfs, which a power loss empties, it gets none.
    PowerLoss,
}

/// Options for creating and opening pools.
///
/// ```
/// # fn main() -> outlast::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("index.pool");
/// use outlast::PoolOptions;
/// let options = PoolOptions::new().max_size(1 << 30);
/// // SAFETY: no one else writes this file while the pool is open.
/// let pool = unsafe { options.open_or_create(&path)? };
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PoolOptions {
    pub(super) core: CoreOptions,
    pub(super) emulate_pm: Option<Latency>,
    pub(super) background: bool,
    pub(super) idle_sync: bool,
    pub(super) trim: Option<Duration>,
    pub(super) disk: Disk,
    pub(super) taken_for: Option<MediumKind>,
    pub(super) survive: Failure,
    pub(super) journal: Option<JournalOptions>,
    pub(super) require_working_file: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl PoolOptions {
    /// Returns the defaults: a pool of 2 MiB that grows as needed, on whatever medium the file is
    /// on, with a background thread.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().anonymous()?;
    /// assert_eq!(pool.stats().size, 2 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let recovery = Recovery { threads, progress: None };
        let core = CoreOptions { initial_size: 2 << 20, recovery, ..CoreOptions::default() };
        PoolOptions {
            core,
            emulate_pm: None,
            background: true,
            idle_sync: true,
            trim: Some(TRIM_AFTER),
            disk: Disk::default(),
            taken_for: None,
            survive: Failure::PowerLoss,
            journal: None,
            require_working_file: false,
        }
    }

    /// Sets the initial size of a new pool in bytes. It is rounded up to whole huge pages (in a
    /// file with [`page_bits`](Self::page_bits) below 16, to 4 KiB) and capped at
    /// [`max_size`](Self::max_size). Default: 2 MiB. A size without room for the pool's own tables
    /// (192 KiB; with pages below 64 KiB less, with larger ones two pages) is refused with
    /// [`Error::Invalid`](crate::Error::Invalid), which names the least possible size.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().initial_size(64 << 20).anonymous()?;
    /// assert_eq!(pool.stats().size, 64 << 20);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn initial_size(mut self, bytes: u64) -> Self {
        self.core.initial_size = bytes;
        self
    }

    /// Sets the size that the pool may not exceed, in bytes; 0, the default, sets no limit. The
    /// limit is stored in the pool. When an existing pool is opened, a limit other than 0 replaces
    /// the stored one, and 0 keeps it. A pool that is larger than its limit opens, but does not
    /// grow: an operation that finds no free space fails with
    /// [`Error::PoolFull`](crate::Error::PoolFull).
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().max_size(4 << 20).anonymous()?;
    /// let blobs = pool.map::<u64, [u8]>("blobs")?;
    /// let full = (0..).find_map(|n| blobs.insert(&n, &[7; 60_000]).err()).unwrap();
    /// assert!(full.is_full());
    /// assert!(blobs.delete(&0)?, "removing needs no space");
    /// assert!(blobs.insert(&0, &[7; 60_000])?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.core.max_size = bytes;
        self
    }

    /// Sets the log2 of the page size of a new pool, from 12 to 20. Pages are the unit of space, so
    /// small pools need small pages. Default: 16.
    ///
    /// A value has to fit into one region of the pool, which has `2^(2 * page_bits - 3)` bytes less
    /// its descriptors. Pools with pages below 2^16 bytes therefore accept shorter values than
    /// [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES): 1.8 MB with 2^12, 31 MB with 2^14, 126 MB with
    /// 2^15 ([`Pool::max_value_bytes`](crate::Pool::max_value_bytes)).
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let options = outlast::PoolOptions::new().page_bits(12).initial_size(256 << 10);
    /// let pool = options.anonymous()?;
    /// assert_eq!(pool.stats().page_bits, 12);
    /// assert!(pool.max_value_bytes() < 2_000_000);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn page_bits(mut self, page_bits: u32) -> Self {
        self.core.page_bits = page_bits;
        self
    }

    /// Treats the file as persistent memory: every operation flushes and fences as it would there,
    /// and `latency` is added. This is for measurements. It changes nothing about which failures
    /// the file survives.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// use outlast::{Latency, MediumKind};
    /// use std::time::Duration;
    ///
    /// let slow = Latency { per_line: Duration::from_nanos(300), ..Latency::default() };
    /// let pool = outlast::PoolOptions::new().emulate_pm(slow).anonymous()?;
    /// assert_eq!(pool.durability().medium, MediumKind::EmulatedPm);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn emulate_pm(mut self, latency: Latency) -> Self {
        self.emulate_pm = Some(latency);
        self
    }

    /// Sets what a new pool must survive. Default: [`Failure::PowerLoss`]. A pool that exists stays as
    /// it was made.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("cache.pool");
    /// use outlast::{Failure, PoolOptions};
    ///
    /// let options = PoolOptions::new().survive(Failure::ProcessDeath);
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { options.open_or_create(&path)? };
    /// assert!(pool.durability().survives_process_death && pool.durability().interval.is_none());
    /// # pool.close()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn survive(mut self, failure: Failure) -> Self {
        self.survive = failure;
        if failure == Failure::ProcessDeath {
            self.journal = None;
        }
        self
    }

    /// Gives the pool a journal with these options, so that it survives a power loss on an ordinary disk
    /// ([`MediumKind::Journal`]). Operations then work on a copy of the pool, the working file,
    /// which is in memory if there is room. The file at the pool's path is brought up to date in
    /// the background. Without this call, a new pool gets a journal where it needs one to survive what it
    /// [must](Self::survive).
    ///
    /// A power loss undoes at most the changes of the last [interval](JournalOptions::interval) and
    /// of two commits, and none that [`wait_durable`](crate::Pool::wait_durable) has confirmed. It
    /// leaves the pool as it was between two operations. Process death loses nothing, as without a
    /// journal.
    ///
    /// With this option, [`create`](PoolOptions::create) creates a pool with a journal, and
    /// [`open`](PoolOptions::open) gives one to a pool that has none. (If that pool was not closed, it
    /// is recovered and closed first.) A pool that has a journal keeps it, with or without this option.
    /// [`Pool::snapshot`](crate::Pool::snapshot) makes a pool without a journal.
    ///
    /// The pool must fit into memory. Opening it reads all of it, unless the machine was not
    /// restarted and the working file still exists: the process was killed, or the file was
    /// [kept](JournalOptions::keep_working_file).
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::{JournalOptions, PoolOptions};
    ///
    /// let options = PoolOptions::new().journal(JournalOptions::new());
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { options.open_or_create(&path)? };
    /// let orders = pool.map::<u64, str>("orders")?;
    /// orders.insert(&1, "12 bolts")?;
    /// pool.wait_durable()?; // Before anybody is told that the order was accepted.
    /// pool.close()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn journal(mut self, options: JournalOptions) -> Self {
        self.journal = Some(options);
        self.survive = Failure::PowerLoss;
        self
    }

    /// Sets whether opening a pool that has a journal and was not closed fails with
    /// [`Error::NoWorkingFile`](crate::Error::NoWorkingFile) if its working file is gone although
    /// the machine was not restarted. If this is not set, the pool is completed from its journal.
    /// Changes that were not durable when its process died are then missing. A container that starts
    /// again with a new `/dev/shm` has lost the working file, for example. A copy of a pool's file and journal does
    /// not get the working file of the original, as long as that is in its place, and opening the copy
    /// fails with [`Error::CopyOfPool`](crate::Error::CopyOfPool). Default: no.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::{JournalOptions, PoolOptions};
    ///
    /// let options = PoolOptions::new().journal(JournalOptions::new()).require_working_file(true);
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { options.open_or_create(&path)? };
    /// # pool.close()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn require_working_file(mut self, require: bool) -> Self {
        self.require_working_file = require;
        self
    }

    /// Sets whether a background thread reclaims space after a crash, grows the pool ahead of use,
    /// pre-faults new pages, syncs an idle pool ([`idle_sync`](Self::idle_sync)) and gives free
    /// space back ([`trim`](Self::trim)). Without it, only calls of
    /// [`Pool::step`](crate::Pool::step) reclaim space and grow the pool ahead of use. Default:
    /// yes.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().background(false).anonymous()?;
    /// // When the program has nothing better to do:
    /// while pool.step()? {}
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Sets whether the background thread [syncs](crate::Pool::sync) a pool that no call has
    /// changed for one to two seconds, so that a reboot or a power loss then finds it clean. This
    /// applies only to a file system with a page cache ([`MediumKind::PageCache`]), because no
    /// other medium needs it. Default: yes.
    ///
    /// The cost is that a change that comes during such a sync waits until it ends, and the first
    /// change after it waits until the dirty mark is on the disk, as with any `sync`. Each time
    /// that a pool is changed again soon after such a sync, the time without changes that the next
    /// sync requires doubles, up to about a minute. Where changes are seconds apart and must never
    /// wait for the disk, turn this off.
    ///
    /// Such a sync does not make it safe to copy the file of an open pool: the copy is still
    /// refused ([`TornReason::Copy`](crate::TornReason::Copy)), unless the caller has called
    /// `sync`, `snapshot` or `wait_durable`, and no change has been made since.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::PoolOptions;
    ///
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { PoolOptions::new().idle_sync(false).create(&path)? };
    /// pool.map::<str, u64>("ages")?.insert("Ada", &36)?;
    /// pool.sync()?; // The program says when.
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn idle_sync(mut self, sync: bool) -> Self {
        self.idle_sync = sync;
        self
    }

    /// Sets whether the background thread gives free space back to the file system, so that a pool
    /// that has shrunk takes less disk space. The thread punches holes into the file, whose length
    /// stays the same. It does so only on a file system with a page cache, and not in a pool with a
    /// journal; `outlast compact` works for all pools. Default: yes.
    ///
    /// Space is given back once it has been free for a second or two, if it lies in pieces of 64
    /// KiB or more and there is enough of it: a sixteenth of the pool, but no less than 1 MiB and
    /// no more than 64 MiB. A pool that needs the space again takes it from the file system again.
    /// If the disk has become full meanwhile, that fails with
    /// [`Error::DiskFull`](crate::Error::DiskFull). Turn this off for a pool that must keep all
    /// disk space that it has ever taken.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// let pool = outlast::PoolOptions::new().trim(false).anonymous()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn trim(mut self, trim: bool) -> Self {
        self.trim = trim.then_some(TRIM_AFTER);
        self
    }

    /// For tests: sets how long space must have been free before it is given back.
    #[doc(hidden)]
    #[must_use]
    pub fn trim_after(mut self, time: Duration) -> Self {
        self.trim = Some(time);
        self
    }

    /// Sets how many threads open a map whose scheme reads the whole map when it is opened
    /// ([`linear_recovery`]), and how many copy a journaled pool to a new working file. Default:
    /// the number of processors.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::PoolOptions;
    ///
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { PoolOptions::new().recovery_threads(2).open_or_create(&path)? };
    /// let log = pool.ordered_map::<u64, str>("log")?; // Two threads read it.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`linear_recovery`]: crate::Scheme::has_linear_recovery
    #[must_use]
    pub fn recovery_threads(mut self, threads: usize) -> Self {
        self.core.recovery.threads = threads;
        self
    }

    /// Sets a function that receives the progress of opening a map whose scheme reads the whole map
    /// ([`recovery_threads`](Self::recovery_threads)), and of the rebuild of a journaled pool
    /// (where [`parts`](RecoveryProgress::parts) are the epochs of the journal). Any of the opening
    /// threads may call it, at any time during the opening. It must not use the pool: the opening
    /// thread holds the lock under which other maps are opened.
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::PoolOptions;
    ///
    /// # // SAFETY: no one else writes this file while the pool is open.
    /// # let pool = unsafe { PoolOptions::new().create(&path)? };
    /// # pool.ordered_map::<u64, str>("log")?.insert(&1, "opened")?;
    /// # pool.close()?;
    /// let options = PoolOptions::new().recovery_progress(|progress| {
    ///     eprintln!("{} of {} parts", progress.parts_done, progress.parts);
    /// });
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { options.open(&path)? };
    /// let log = pool.ordered_map::<u64, str>("log")?; // Calls the function.
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn recovery_progress(
        mut self,
        tell: impl Fn(RecoveryProgress) + Send + Sync + 'static,
    ) -> Self {
        self.core.recovery.progress = Some(ProgressListener::new(tell));
        self
    }

    /// Opens the pool even if a power loss may have torn it
    /// ([`Error::PossiblyTorn`](crate::Error::PossiblyTorn)), so that it can be verified and its
    /// readable records salvaged. Also opens a pool whose journal is missing or incomplete
    /// ([`Error::IncompleteJournal`](crate::Error::IncompleteJournal)), as far as its file alone
    /// goes, and opens for reading a pool that would have to be completed first
    /// ([`Error::Unfinished`](crate::Error::Unfinished)).
    ///
    /// ```
    /// # fn main() -> outlast::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("index.pool");
    /// use outlast::{Error, PoolOptions};
    ///
    /// # let live = dir.path().join("live.pool");
    /// # let options = PoolOptions::new().survive(outlast::Failure::ProcessDeath);
    /// # // SAFETY: no one else writes this file while the pool is open.
    /// # let pool = unsafe { options.create(&live)? };
    /// # pool.map::<str, u64>("ages")?.insert("Ada", &36)?;
    /// # std::fs::copy(&live, &path).unwrap();
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let opened = unsafe { PoolOptions::new().open(&path) };
    /// assert!(matches!(opened, Err(Error::PossiblyTorn { .. })));
    ///
    /// let options = PoolOptions::new().accept_possibly_torn(true);
    /// // SAFETY: no one else writes this file while the pool is open.
    /// let pool = unsafe { options.open(&path)? };
    /// pool.verify()?.ensure_sound()?;
    /// pool.close()?; // From here on, it opens like any other.
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn accept_possibly_torn(mut self, accept: bool) -> Self {
        self.core.accept_possibly_torn = accept;
        self
    }

    /// For tests: sets the number of the hash function of a new pool.
    #[doc(hidden)]
    #[must_use]
    pub fn hash_function(mut self, number: u32) -> Self {
        self.core.hash_function = number;
        self
    }

    /// For tests and benchmarks: sets the hash seed and the id of a new pool, instead of random
    /// ones.
    #[doc(hidden)]
    #[must_use]
    pub fn identity(mut self, seed: u64, id: u128) -> Self {
        self.core.identity = Some((seed, id));
        self
    }

    /// For tests: sets the file system that the pool's calls go to.
    #[doc(hidden)]
    #[must_use]
    pub fn disk(mut self, disk: Disk) -> Self {
        self.disk = disk;
        self
    }

    /// For tests: sets the medium to record and to base decisions on, instead of the detected one.
    /// Does not affect flushing.
    #[doc(hidden)]
    #[must_use]
    pub fn medium(mut self, kind: MediumKind) -> Self {
        self.taken_for = Some(kind);
        self
    }

    /// For tests: sets the boot id, instead of the system's.
    #[doc(hidden)]
    #[must_use]
    pub fn boot_id(mut self, boot: u128) -> Self {
        self.core.boot = boot;
        self
    }

    /// Returns how much address space to reserve for a pool of this size and page size, in bytes.
    pub(super) fn reserve(&self, size: u64, page_bits: u32) -> u64 {
        // Pools with small pages are not meant to become huge, and each region they might ever have
        // costs a little memory.
        let regions = RESERVE.min(1 << page_bits.saturating_mul(2).saturating_add(11).min(40));
        match self.core.max_size {
            0 => reserve_for(size, regions),
            max => max.max(size).max(1 << 30),
        }
    }

    pub(super) fn store_of(
        &self,
        file: File,
        mut header: Header,
        read_only: bool,
        whole: bool,
    ) -> Result<Arc<Store<Real>>> {
        let whole = whole || self.core.whole;
        let identity = Identity::of(&file)?;
        let is_torn = !whole && header.possibly_torn(identity, self.boot()?).is_some();
        if self.core.mixed || is_torn {
            // After a growth, the disk can have the content of the new pages, but still the old header,
            // with the old size.
            let meta = file.metadata().map_err(|e| Error::io("opening the pool", e))?;
            header.take_size_of_file(meta.len());
        }
        let size = header.get(field::SIZE);
        let reserve = self.reserve(size, header.geometry().page_bits());
        let access = if read_only { MapAccess::Private } else { MapAccess::Sparse };
        let disk = self.disk.clone();
        let mapping = Mapping::file_on(disk, file, access, size, reserve).map_err(mapping_error)?;
        let (real, mut options) = self.judge(Some(mapping.medium()))?;
        options.read_only = read_only;
        if read_only {
            // The private mapping says nothing about the medium, but the last writer recorded it.
            let recorded = MediumKind::from_u64(header.get(field::MEDIUM));
            options.medium = recorded.unwrap_or(MediumKind::PageCache);
        }
        options.whole = whole;
        Store::new(Core::open(Backing::Mapped(mapping), real, header, options)?)
    }

    /// Chooses the seam and the options for a medium.
    pub(super) fn judge(&self, found: Option<MediumKind>) -> Result<(Real, CoreOptions)> {
        self.judge_with(found, self.core.clone())
    }

    pub(super) fn judge_with(
        &self,
        found: Option<MediumKind>,
        core: CoreOptions,
    ) -> Result<(Real, CoreOptions)> {
        let kind = match (self.emulate_pm, found) {
            (Some(_), _) => MediumKind::EmulatedPm,
            (None, found) => found.unwrap_or(MediumKind::PageCache),
        };
        let flush = match found {
            Some(_) => Medium::detect(kind).flush,
            None => FlushMode::None,
        };
        let real = Real::with_latency(flush, self.emulate_pm.unwrap_or_default());
        let boot = self.boot()?;
        let kind = self.taken_for.unwrap_or(kind);
        Ok((real, CoreOptions { medium: kind, boot, ..core }))
    }

    /// Returns the id of the current boot.
    pub(super) fn boot(&self) -> Result<u128> {
        if self.core.boot == 0 { boot_id() } else { Ok(self.core.boot) }
    }

    /// Reports the progress of the rebuild of a journaled pool.
    pub(super) fn tell_rebuild(&self, done: u64, all: u64) {
        if let Some(listener) = &self.core.recovery.progress {
            let (parts_done, parts) = (done as usize, all as usize);
            listener.tell(RecoveryProgress { parts_done, parts, leaves: 0 });
        }
    }
}
