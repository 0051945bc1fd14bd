//! Histories: who asked what when, who was answered what when, and whether a map can
//! have done that.
//!
//! A [`History`] is a list of events in the order in which they happened: operations that
//! begin, operations that answer, iterations, crashes. [`check()`] says whether it is
//! strictly linearizable, [`json`] writes it down and reads it back
//! (`docs/history-format.md`), [`live`] records one from real threads, and [`brute`]
//! checks small ones in the most simple-minded way there is, to check the checker.

pub mod brute;
pub mod check;
pub mod explain;
pub mod generate;
pub mod json;
pub mod live;
pub mod record;

pub use check::{Figures, Finding, check};
pub use record::{Answer, Call, Event, History, OpId};
