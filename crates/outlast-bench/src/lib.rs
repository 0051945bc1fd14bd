//! The measuring instrument of outlast: workloads, rivals, reports.
//!
//! From below to above: [`keys`] (which keys and values there are), [`form`] (what they look
//! like as records), [`systems`] (what is measured), [`team`] (threads), [`latency`] and
//! [`usage`] (what is observed), and one module for each command: [`micro`], [`kv`],
//! [`load_factor`], [`recovery`], [`counts`], [`space`], [`stalls`], [`model`]. [`report`] prints rows,
//! [`progress`] how far a run is, [`machine`] and [`run`] say where they come from,
//! [`limits`] what options may be, [`scratch`] has the
//! directories that they leave nothing in.
//!
//! The method, and what can be concluded from the figures, is in docs/benchmarks.md.

pub mod counts;
pub mod form;
pub mod keys;
pub mod kv;
pub mod latency;
pub mod limits;
pub mod load_factor;
pub mod machine;
pub mod micro;
pub mod model;
pub mod node_sizes;
#[cfg(feature = "plot")]
pub mod plot;
pub mod progress;
pub mod recovery;
pub mod report;
pub mod run;
pub mod scratch;
pub mod space;
pub mod stalls;
pub mod systems;
pub mod team;
pub mod usage;

/// Why a measurement could not be made, or counts for nothing.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A result of the instrument.
pub type Fallible<T = ()> = Result<T, Failure>;
