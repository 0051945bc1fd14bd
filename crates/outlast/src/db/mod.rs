//! A pool with its maps: the part that a program opens.
//!
//! - [`options`], `open`: opening a pool; [`handle`]: what a program can do with it
//! - `opened`: a store with the threads that work for it; [`stats`]: what a pool says about itself
//! - `files`: opening, locking and naming files
//! - [`journal`]: opening a pool with a journal; `durable`: waiting until what was done survives a power loss
//! - [`map_options`], [`raw`]: creating maps, and using them as bytes
//! - [`roots`]: named maps
//! - [`store`]: a pool with its open maps
//! - `open_map`: an open map
//! - [`batch`]: changes of several records, of which a crash leaves all or none
//! - [`transaction`]: reads and changes of several records that take effect as one
//! - `reclaim`: the reclaim of space after a crash
//! - [`expiry`]: records that expire
//! - [`cache`]: a map with a bound, which evicts records
//! - [`facts`]: what can be learned about a pool that another process uses
//! - [`verify`]: the check of a whole pool
//! - `snapshot`: copying a pool; [`backup`]: copying one that another process uses
//! - `signals`: closing pools when the process is asked to end
//! - `worker`: the background thread; `trim`: when it gives free space back to the file system
//! - [`bugs`]: seeded bugs

pub mod backup;
pub mod batch;
mod boot;
pub mod bugs;
pub mod cache;
mod durable;
pub mod expiry;
pub mod facts;
mod files;
pub mod handle;
pub mod journal;
pub mod map_options;
mod open;
pub(crate) mod open_map;
mod opened;
pub mod options;
pub mod raw;
mod reclaim;
pub mod restore;
pub mod roots;
#[cfg(feature = "signals")]
mod signals;
mod snapshot;
pub mod stats;
pub mod store;
pub mod transaction;
mod trim;
pub mod verify;
mod worker;
