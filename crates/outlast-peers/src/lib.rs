//! The structures that the papers compare with, the workloads of their evaluations, and counters.
//!
//! Everything here is for comparison only. Each structure is written from its paper's description,
//! over the library's seam. So the recorder counts its flushes and fences exactly as it counts
//! those of the library's own schemes. Keys and values have 8 bytes, unless [`Options::keys`] says that keys
//! lie behind pointers. Nothing is recovered after a
//! crash.
//!
//! - [`shared`]: the arena in persistent memory, locks, the undo log, hash functions, keys.
//! - [`systems`]: the structures, a module each, behind the trait [`Peer`].
//! - [`workloads`]: the sequences of operations and the traces of the papers' evaluations.
//! - [`counters`]: models of caches and of the medium, over a recorded trace.

pub mod counters;
mod options;
mod peer;
pub mod shared;
pub mod systems;
pub mod workloads;

pub use options::Options;
pub use peer::{Full, Peer, Promises};
pub use systems::System;
