//! A pool with its maps: the part that a program opens.
//!
//! - [`options`], [`handle`]: opening a pool, and what a program can do with it
//! - [`map_options`], [`raw`]: creating maps, and using them as bytes
//! - [`roots`]: named maps
//! - [`store`]: open maps, the reclaim of space after a crash, sync
//! - [`verify`]: the check of a whole pool
//! - `snapshot`: copying a pool
//! - `worker`: the background thread

pub mod handle;
pub mod map_options;
pub mod options;
pub mod raw;
pub mod roots;
mod snapshot;
pub mod store;
pub mod verify;
mod worker;
