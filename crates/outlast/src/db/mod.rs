//! A pool with its maps: the part that a program opens.
//!
//! - [`options`], [`handle`]: opening a pool, and what a program can do with it
//! - [`journal`]: opening a pool with a journal
//! - [`map_options`], [`raw`]: creating maps, and using them as bytes
//! - [`roots`]: named maps
//! - [`store`]: a pool with its open maps
//! - `open_map`: an open map
//! - [`batch`]: changes of several records, of which a crash leaves all or none
//! - `reclaim`: the reclaim of space after a crash
//! - [`facts`]: what can be learned about a pool that another process uses
//! - [`verify`]: the check of a whole pool
//! - `snapshot`: copying a pool; [`backup`]: copying one that another process uses
//! - `worker`: the background thread; `trim`: when it gives free space back to the file system
//! - [`bugs`]: seeded bugs

pub mod backup;
pub mod batch;
mod boot;
pub mod bugs;
pub mod facts;
mod files;
pub mod handle;
pub mod journal;
pub mod map_options;
mod open_map;
pub mod options;
pub mod raw;
mod reclaim;
pub mod restore;
pub mod roots;
mod snapshot;
pub mod store;
mod trim;
pub mod verify;
mod worker;
