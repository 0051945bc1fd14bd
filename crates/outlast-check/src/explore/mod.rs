//! Builds, reopens and checks the crash images of recorded runs.
//!
//! A run is recorded ([`scenario`]). Two kinds of images are built from the recording. [`image`]
//! reopens and checks them.
//!
//! 1. What a crash leaves if the caches survive, as in process death. For every store, including
//!    successful compare-exchanges, there is the image *initial bytes + all stores up to this one*.
//! 2. What a power loss leaves. At every [window](crate::model::windows), the lines that are not
//!    durable are cut, each between any two of its stores ([`crash`], [`cuts`]).
//!
//! With persistent caches, a power loss can lose only the last stores, those that no fence of their
//! own thread followed. The image that this leaves is one of these cuts too: whatever a fence makes
//! durable without persistent caches, it also makes durable with them.
//!
//! Each image must open, verify, hold what strict linearizability allows, and be fit to work on.
//! Some images are reopened under the recorder again, and the crash images of that second run are
//! checked in the same way. They show what a crash during recovery, or soon after it, leaves.
//!
//! [`run()`] explores all scenarios. [`first_violation_of`] searches for a fault in a run with a
//! flush or fence done wrong. [`crash_at`] crashes at one moment of any trace, also one of several
//! threads, and lets a [`Judge`](crate::state::Judge) decide what is allowed.

mod common;
pub mod crash;
pub mod cuts;
pub mod image;
mod options;
pub mod recording;
pub mod report;
pub mod run;
pub mod scenario;
mod search;
pub mod violation;

pub use crash::{Crash, Looked, Scratch, crash_at};
pub use image::{Case, Good, Setting};
pub use options::{Budget, Options};
pub use recording::Recording;
pub use run::{Outcome, Row, is_known, names, run};
pub use scenario::catalogue;
pub use search::{Limits, Searched, first_violation_of};
pub use violation::Violation;
