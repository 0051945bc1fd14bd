//! The structures that the papers compare with, the workloads of their evaluations, and counters.
//!
//! Everything here is for comparison only. Each structure is written from its paper's description,
//! over the library's seam. So the recorder counts its flushes and fences exactly as it counts
//! those of the library's own schemes. Keys and values have 8 bytes. Nothing is recovered after a
//! crash.
//!
//! - [`shared`]: the arena in persistent memory, locks, the undo log, hash functions.
//! - [`systems`]: the structures, a module each, behind the trait [`Peer`].

mod options;
mod peer;
pub mod shared;
pub mod systems;

pub use options::Options;
pub use peer::{Full, Peer, Promises};
pub use systems::System;
