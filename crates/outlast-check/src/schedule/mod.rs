//! Chosen interleavings of a few threads on tiny structures, and crashes in them.
//!
//! In a [`Workload`](crate::parts::workload::Workload), two to four threads work on a table that is
//! about to split, grow, merge or the like. A [`Strategy`](strategy::Strategy) and a seed choose which
//! thread runs when. Each run is checked:
//!
//! - The history must be linearizable.
//! - The table must verify and go on working.
//! - At moments chosen from the run's trace, the harness builds crash images. The history up to the
//!   crash, followed by the contents of the reopened image, must be strictly linearizable.
//! - Whenever an operation returns while a store that is meant to be durable is not, the harness
//!   looks at the least that a power loss could leave. This shows every result that depends on a
//!   store that a crash can undo, whichever thread made that store. The check is exact: it does not
//!   report a store that was read but has no effect on the result.

pub mod act;
pub mod baton;
mod budget;
mod call;
mod check;
pub mod directed;
pub mod explore;
mod hold;
mod opening;
pub mod progress;
mod replay;
pub mod run;
pub mod strategy;
mod worker;
pub mod workload;

pub use budget::Budget;
pub use check::Counters;
pub use directed::paused;
pub use explore::{Outcome, run};
pub use replay::{Replay, Violation, replay};
pub use strategy::Choice;
