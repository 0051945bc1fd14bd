//! Histories: which thread called which operation when, what each returned when, and whether a
//! correct map could have done that.
//!
//! A [`History`] is a list of events in the order in which they happened: operations begin and
//! return, iterations run, processes crash. [`check()`] tells whether it is strictly linearizable.
//! [`json`] writes and reads it (`docs/lab/history-format.md`). [`live`] records one from real threads.
//! [`brute`] checks small histories in the most naive way, to test the checker itself.

pub mod brute;
pub mod check;
pub mod explain;
pub mod generate;
pub mod json;
pub mod live;
pub mod record;

pub use check::{Figures, Finding, check};
pub use record::{Answer, Call, Event, History, OpId};
