//! The benchmarks of outlast: workloads, competing systems, reports.
//!
//! From the bottom up: [`keys`] (the keys and values of workloads), [`form`] (their encoding as
//! records), [`systems`] (the systems measured), [`team`] (threads), [`latency`] and [`usage`] (the
//! measurements). Each command has a module: [`micro`], [`kv`], [`load_factor`],
//! [`first_full`], [`recovery`], [`counts`], [`space`], [`stalls`], [`contention`], [`model`],
//! [`node_sizes`], [`figures`]. [`report`] prints rows, and [`progress`] shows how far a run is. [`machine`] and
//! [`run`] describe where rows come from, [`limits`] checks options, and [`scratch`] makes
//! directories that are removed when the program ends.
//!
//! docs/lab/benchmarks.md describes the method, and what can be concluded from the results.

pub mod cache;
pub mod contention;
pub mod counts;
pub mod figures;
pub mod first_full;
pub mod floor;
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

/// Why a measurement could not be made or is invalid.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The result of a function of the benchmarks.
pub type Fallible<T = ()> = Result<T, Failure>;
