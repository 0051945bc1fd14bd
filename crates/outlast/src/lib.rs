//! outlast: crash-proof concurrent indexes in a mapped file.
//!
//! Open a file, get a concurrent hash map about as fast as one in DRAM, and find it
//! complete and consistent milliseconds after a crash, however large it is; or a map in the
//! order of its keys.
//!
//! ```
//! # fn main() -> outlast::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("index.pool");
//! use outlast::PoolOptions;
//!
//! // SAFETY: nobody else writes this file while the pool is open.
//! let pool = unsafe { PoolOptions::new().create(&path)? };
//! let ages = pool.map::<str, u64>("ages")?;
//! assert!(ages.insert("Ada", &36)?);
//! assert_eq!(ages.get("Ada")?, Some(36));
//! pool.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # The contract
//!
//! 1. An operation that has returned is in effect and stays in effect across every
//!    failure that its [medium](pmem::MediumKind) survives.
//! 2. Histories are linearizable, crashes included: an operation in flight at a crash
//!    took effect before it, whole, or never will.
//! 3. No answer rests on what a crash could still take back.
//! 4. Every key and value of the declared type works, up to [`MAX_KEY_BYTES`] and
//!    [`MAX_VALUE_BYTES`].
//! 5. Opening after a crash takes constant time; of an [`OrderedMap`], time linear in its
//!    size, on all processors ([`PoolOptions::recovery_threads`]).
//! 6. Nothing leaks, and nothing is freed twice.
//! 7. No file content makes the library read or write outside its mapping, loop for
//!    ever or panic: it answers with an error that names the offset.
//! 8. A full pool, a full disk, a second process, a read-only file, a file of another
//!    version: each a typed [`Error`], nothing lost.
//!
//! # Layers
//!
//! [`Pool`], [`Map`] and [`OrderedMap`] are the public interface. Below it lie [`index`] (the schemes),
//! [`pool`] (file format, allocator), [`reclaim`] (epochs) and [`pmem`] (media, mapping
//! and the persistence seam); they are public for those who build or test schemes, and
//! their interfaces may change with any release.

#[cfg(not(all(target_pointer_width = "64", target_endian = "little", target_os = "linux")))]
compile_error!("outlast runs on 64-bit little-endian Linux");

pub mod db;
mod error;
pub mod index;
mod map;
pub mod offline;
pub mod pmem;
pub mod pool;
pub mod reclaim;

pub use db::handle::{Durability, Pool, PoolStats};
pub use db::map_options::MapOptions;
pub use db::options::PoolOptions;
pub use db::raw::{RawIter, RawMap, RawRange};
pub use db::roots::MapInfo;
pub use db::store::ReclaimState;
pub use db::verify::Verification;
pub use error::{Damage, Error, Result, TornReason};
pub use index::record::{MAX_KEY_BYTES, MAX_VALUE_BYTES, RecordRef};
pub use index::{Config, Cursor, Growth, IndexStats, RecordForm, Scheme, Verified};
pub use map::{FixedRecord, Iter, Key, KeyBounds, Map, OrderedKey, OrderedMap, Range, Ref, Value};
pub use pool::core::RecoveryProgress;

/// What [`fixed_record!`] needs from elsewhere.
#[doc(hidden)]
pub mod reexport {
    pub use zerocopy;
}
