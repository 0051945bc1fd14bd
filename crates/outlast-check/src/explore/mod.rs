//! Crash images of recorded runs: built, reopened, checked.
//!
//! A run is recorded ([`scenario`]). For every store in it, successful compare-exchanges
//! included, the image *initial bytes + all stores up to this one* is reopened ([`image`]):
//! what a crash leaves where caches survive it, process death included. At every
//! [window](crate::model::windows), the lines that had not become durable are cut, each
//! between any two of its stores: what a power loss leaves ([`crash`], [`cuts`]). With
//! persistent caches, a tail that no fence followed may vanish too; that is one of these
//! cuts, since what a fence made durable there it makes durable here.
//!
//! Each image must open, verify, hold what strict linearizability allows, and be fit to
//! work on. Some are reopened under the recorder again, and the images of that second run
//! are checked in the same way: a crash inside recovery, or soon after.
//!
//! [`run()`] goes over all scenarios. [`first_violation_of`] looks for a fault in a run with
//! a flush or fence less. [`crash_at`] crashes at one moment of any trace, of several
//! threads too, and lets a [`Judge`](crate::state::Judge) say what is allowed.

mod common;
pub mod crash;
pub mod cuts;
pub mod image;
pub mod phases;
mod play;
pub mod recording;
pub mod report;
pub mod run;
pub mod scenario;
pub mod violation;

pub use crash::{Crash, Looked, Scratch, crash_at};
pub use image::{Case, Good, Setting};
pub use play::Play;
pub use recording::Recording;
pub use run::{
    Budget, Limits, Options, Outcome, Row, Searched, first_violation_of, is_known, names, run,
};
pub use scenario::{Scenario, catalogue};
pub use violation::Violation;
