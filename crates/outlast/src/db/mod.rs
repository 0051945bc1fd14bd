//! A pool with its maps: what a program opens.
//!
//! [`roots`] (named maps), [`store`] (open maps, the reclaim of space after a crash, sync),
//! [`verify`] (the check of a whole pool), [`options`] and [`handle`] (how a program opens a pool,
//! and what it can do with one), [`map_options`] and [`raw`] (the maps, by their bytes), `snapshot`,
//! `worker` (the background thread).

pub mod handle;
pub mod map_options;
pub mod options;
pub mod raw;
pub mod roots;
mod snapshot;
pub mod store;
pub mod verify;
mod worker;
