//! The pool: a file that holds many maps.
//!
//! From below to above: [`layout`] (the on-media structs), [`geometry`] (pages, regions,
//! size classes), [`header`], [`gate`] (who may store, and when), [`alloc`] (space),
//! [`core`] (all of these: what indexes stand on), [`roots`] (named maps), [`store`]
//! (open maps, reclaim after a crash, sync and snapshot), [`verify`] (the offline check),
//! [`options`] and [`handle`] (the public interface), `worker` (the background thread).

pub mod alloc;
pub mod backing;
pub mod core;
pub mod gate;
pub mod geometry;
pub mod handle;
pub mod header;
pub mod layout;
pub mod options;
pub mod points;
pub mod roots;
mod snapshot;
pub mod store;
pub mod verify;
mod worker;

pub use crate::reclaim::threads;
