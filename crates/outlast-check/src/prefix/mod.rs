//! Crash images that are prefixes of a run's stores.
//!
//! A run is recorded ([`scenario`]); for every store in it, successful compare-exchanges
//! included, the image *initial bytes + all stores up to this one* is built and reopened
//! ([`image`]): it must open, verify, hold what strict linearizability allows, and be fit
//! to work on. A sample of the images is reopened under the recorder again, and every
//! image of that second run is checked in the same way: a crash inside recovery.
//!
//! Program order is what a crash leaves where caches survive (process death, eADR). What
//! a power loss leaves where they do not, is more: see the line-cut images.

pub mod explore;
pub mod image;
pub mod phases;
pub mod recording;
pub mod report;
pub mod scenario;

pub use explore::{Options, Outcome, Violation, explore};
pub use scenario::{Scenario, catalogue};
