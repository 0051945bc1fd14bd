//! outlast: crash-proof concurrent indexes in a mapped file.
//!
//! Open a file and get a concurrent hash map about as fast as one in DRAM. After a crash a map of the
//! default scheme is complete and consistent within milliseconds, however large it is.
//! [`OrderedMap`] also keeps its keys in order.
//!
//! ```
//! # fn main() -> outlast::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("index.pool");
//! use outlast::PoolOptions;
//!
//! // SAFETY: no one else writes this file while the pool is open.
//! let pool = unsafe { PoolOptions::new().create(&path)? };
//! let ages = pool.map::<str, u64>("ages")?;
//! assert!(ages.insert("Ada", &36)?);
//! assert_eq!(ages.get("Ada")?, Some(36));
//! pool.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! A pool is the file at its path. On an ordinary file system, a new one also has a journal, the directory
//! `PATH.journal`, and while it is open a working file, in `/dev/shm` if there is room: it then survives a
//! power loss as well, except for about the last 10 milliseconds, and except for nothing that
//! [`Pool::wait_durable`] has waited for. [`PoolOptions::survive`] chooses. Opening a pool is `unsafe`
//! because its file is mapped: nobody else may write it meanwhile. `Pool::close_on_signals` closes it when
//! the service is asked to end.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `dash-eh`, `phast`, `clevel` (default), `dash-lh`, `group`, `ea-pht` | the scheme; `ea-pht` has three |
//! | `all-schemes` | all of them |
//! | `serde` | `serde_value!`: values of any type that serde encodes |
//! | `signals` | `Pool::close_on_signals` |
//!
//! # The contract
//!
//! 1. Once an operation returns, its effect survives every failure that the pool's
//!    [medium](MediumKind) survives.
//! 2. Histories are linearizable, crashes included: an operation in flight at a crash either took
//!    full effect before it, or never takes effect.
//! 3. No call returns a result that a crash could undo. (In a pool with a journal, a power loss can
//!    undo changes that [`Pool::wait_durable`] has not confirmed.)
//! 4. Every key and value of the declared type works, up to [`MAX_KEY_BYTES`] and
//!    [`MAX_VALUE_BYTES`].
//! 5. Opening a pool or a map after a crash takes constant time. The exceptions are [`OrderedMap`],
//!    and maps of [`Scheme::Group`] and the three [`Scheme::EaPht`] schemes. Opening one of these
//!    takes time linear in its size; the work is divided among all processors
//!    ([`PoolOptions::recovery_threads`]). After a reboot, opening a pool with a journal reads the
//!    whole pool.
//! 6. Nothing leaks, and nothing is freed twice.
//! 7. No file content makes the library read or write outside its mapping, loop forever or panic.
//!    An operation that finds damage fails with an error that names the damaged offset.
//! 8. A full pool, a full disk, a second process, a read-only file, a file of another version: each
//!    is a typed [`Error`], and no data is lost.
//!
//! # How to
//!
//! The folder `examples` of this crate has complete programs: `url_shortener`, `sessions`,
//! `time_series`, `bulk_load` and `crash_and_reopen`. `cargo run --release --example sessions` runs
//! one. Their building blocks are shown here.
//!
//! ## Count words
//!
//! [`Map::add`] is atomic, and an absent key counts as 0. So any number of threads can count.
//!
//! ```
//! # fn main() -> outlast::Result<()> {
//! # let pool = outlast::PoolOptions::new().anonymous()?;
//! let counts = pool.map::<str, u64>("counts")?;
//! for word in "the cat saw the dog".split_whitespace() {
//!     counts.add(word, 1)?;
//! }
//! assert_eq!(counts.get("the")?, Some(2));
//! # Ok(())
//! # }
//! ```
//!
//! ## Expire sessions
//!
//! The records of a map made with [`MapOptions::expiry`] can have a time. Once it has passed, they are absent
//! for every operation, and the background thread removes them. [`Map::expire_at`] extends a session unless
//! it has expired.
//!
//! ```
//! # fn main() -> outlast::Result<()> {
//! # let pool = outlast::PoolOptions::new().anonymous()?;
//! use outlast::MapOptions;
//! use std::time::{Duration, SystemTime};
//!
//! let sessions = pool.map_with::<[u8; 16], str>("sessions", &MapOptions::new().expiry(true))?;
//! sessions.put_for(&[7; 16], "ada", Duration::from_secs(900))?;
//! assert!(sessions.expire_at(&[7; 16], SystemTime::now() + Duration::from_secs(1_800))?);
//! assert_eq!(sessions.get(&[7; 16])?.as_deref(), Some("ada"));
//! # Ok(())
//! # }
//! ```
//!
//! ## Store a time series
//!
//! Tuples are ordered by their first field, then by the next. With the sensor first, the readings
//! of one sensor are adjacent and in time order. `examples/time_series.rs` also condenses old
//! readings.
//!
//! ```
//! # fn main() -> outlast::Result<()> {
//! # let pool = outlast::PoolOptions::new().anonymous()?;
//! let readings = pool.ordered_map::<(u32, u64), f64>("readings")?;
//! for time in 0..100 {
//!     readings.put(&(7, time), &(20.0 + time as f64))?;
//! }
//! let hour = readings.range((7, 10)..(7, 70)).collect::<outlast::Result<Vec<_>>>()?;
//! assert_eq!((hour.len(), hour[0]), (60, ((7, 10), 30.0)));
//! # Ok(())
//! # }
//! ```
//!
//! ## Change records that belong together
//!
//! A crash leaves all changes of a [`Batch`] or none. `examples/url_shortener.rs` and
//! `examples/crash_and_reopen.rs` use batches.
//!
//! ```
//! # fn main() -> outlast::Result<()> {
//! # let pool = outlast::PoolOptions::new().anonymous()?;
//! let titles = pool.map::<u64, str>("titles")?;
//! let by_title = pool.ordered_map::<str, u64>("by title")?;
//! let mut batch = pool.batch();
//! batch.put(&titles, &1, "Emma")?.put(&by_title, "Emma", &1)?;
//! batch.commit()?;
//! # Ok(())
//! # }
//! ```
//!
//! ## Back up
//!
//! [`Pool::snapshot`] copies a pool from within the program that has it open.
//! [`PoolOptions::backup`] copies a pool that another process has open, if it has a journal. Do not
//! copy the file of an open pool by other means: a copy of a pool that was changed since its last
//! [`Pool::sync`] is refused.
//!
//! ```
//! # fn main() -> outlast::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let pool = outlast::PoolOptions::new().anonymous()?;
//! # let path = dir.path().join("copy.pool");
//! pool.snapshot(&path)?; // From here on, the copy survives a power loss.
//! # Ok(())
//! # }
//! ```
//!
//! ## Recover after a crash or a power loss
//!
//! After the death of the process, open the pool as always; there is nothing else to do. The same
//! holds after a power loss, unless the pool was made to survive only
//! [the death of a process](Failure::ProcessDeath). A power loss can tear such a pool if it was changed since its last
//! [`Pool::sync`]. Opening such a pool fails with [`Error::PossiblyTorn`]. Go back to the last
//! snapshot, or check whether the pool is sound nevertheless:
//!
//! ```
//! # fn main() -> outlast::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("index.pool");
//! # // SAFETY: no one else writes this file while the pool is open.
//! # unsafe { outlast::PoolOptions::new().create(&path)? }.close()?;
//! use outlast::{Error, PoolOptions};
//!
//! // SAFETY: no one else writes this file while the pool is open.
//! let pool = match unsafe { PoolOptions::new().open(&path) } {
//!     Err(Error::PossiblyTorn { .. }) => {
//!         let options = PoolOptions::new().accept_possibly_torn(true);
//!         // SAFETY: as above.
//!         let pool = unsafe { options.open(&path)? };
//!         pool.verify()?.ensure_sound()?; // If this fails, `Map::salvage` has what can be read.
//!         pool
//!     }
//!     opened => opened?,
//! };
//! # pool.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Even if the pool is sound, any of the changes after the last [`Pool::sync`] may be missing.

#[cfg(not(all(target_pointer_width = "64", target_endian = "little", target_os = "linux")))]
compile_error!("outlast runs on 64-bit little-endian Linux");

#[cfg(not(any(
    feature = "clevel",
    feature = "dash-eh",
    feature = "dash-lh",
    feature = "ea-pht",
    feature = "group",
    feature = "line",
    feature = "phast"
)))]
compile_error!("enable the feature of at least one scheme of outlast, such as `dash-eh`");

mod error;
mod map;

/// The layers below the public interface. They are private, except for the tools of this repository
/// ([`internals`]).
#[path = ""]
// What only the tools use is unused in other builds.
#[cfg_attr(
    not(all(feature = "internals", feature = "all-schemes")),
    allow(dead_code, unreachable_pub, unused_imports, unused_macros)
)]
mod layers {
    #[macro_use]
    pub mod pmem;

    pub mod db;
    pub mod index;
    pub mod journal;
    pub mod pool;
    pub mod reclaim;
}

use layers::{db, index, journal, pmem, pool, reclaim};
use pmem::{commit_points, seeded_bugs};

/// The layers, for the tools and tests of this repository. They change with any release.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub use crate::layers::{db, index, journal, pmem, pool, reclaim};
}

/// The settings of the schemes, for [`MapOptions::config`].
///
/// ```
/// use outlast::config::DashEh;
///
/// let config = DashEh { stash_buckets: 4, ..Default::default() };
/// ```
pub mod config {
    pub use crate::index::config::{
        Clevel, DashEh, DashLh, EaPht, EaPhtH, EaPhtHpr, Group, Line, Phast,
    };
}

pub use db::backup::Backup;
pub use db::batch::Batch;
#[doc(hidden)]
pub use db::cache::RawCache;
pub use db::cache::{CacheOptions, CacheStats};
pub use db::expiry::Expiry;
pub use db::facts::{JournalFacts, PoolFacts};
pub use db::handle::Pool;
pub use db::journal::{JournalOptions, WorkingFile, WorkingFileUse};
pub use db::map_options::MapOptions;
pub use db::options::{Failure, PoolOptions};
pub use db::raw::{RawIter, RawMap, RawRange};
pub use db::restore::{OldPool, Restored};
pub use db::roots::MapInfo;
pub use db::stats::{Durability, PoolStats};
pub use db::store::ReclaimState;
pub use db::transaction::Transaction;
pub use db::verify::Verification;
pub use error::{Damage, Error, NotOpen, Result, TornReason};
pub use index::record::{MAX_KEY_BYTES, MAX_VALUE_BYTES, RecordRef};
pub use index::{Config, IndexStats, RecordForm, Scheme, Verified};
pub use journal::running::JournalStats;
pub use map::{
    Cache, FixedRecord, FixedSize, Integer, Iter, Key, KeyBounds, Keys, Map, OrderedKey,
    OrderedMap, Range, Ref, Value, Values,
};
pub use pmem::{FlushMode, Latency, MediumKind};
pub use pool::core::RecoveryProgress;

/// The crates that code generated by [`fixed_record!`] refers to.
#[doc(hidden)]
pub mod reexport {
    #[cfg(feature = "serde")]
    pub use crate::map::encoded;
    pub use crate::map::{fixed, schema};
    pub use zerocopy;
}
