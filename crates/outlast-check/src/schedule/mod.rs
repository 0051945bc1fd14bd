//! Chosen interleavings of a few threads on tiny structures, and crashes in them.
//!
//! A [`Workload`](crate::parts::workload::Workload) is what two to four threads do on a table that is
//! about to do something interesting; a [`Strategy`](baton::Strategy) and a seed choose
//! who runs when. The run's history must be linearizable; the table must verify and work
//! on; and whatever a crash can leave, at moments chosen from the run's trace, must hold
//! what makes the history up to that moment, and what is found afterwards, strictly
//! linearizable.
//!
//! At each answer the least that a power loss leaves is looked at, if anything is still
//! open that is meant to be durable: an answer that rests on something that a crash can
//! take back, whoever stored it, shows there. That is exact: what was read but not rested
//! on does not matter.

pub mod act;
pub mod baton;
mod check;
pub mod directed;
pub mod explore;
mod hold;
mod opening;
pub mod progress;
mod replay;
pub mod run;
mod worker;
pub mod workload;

pub use directed::paused;
pub use explore::{Budget, Choice, Counters, Outcome, Violation, run};
pub use replay::{Replay, replay};
