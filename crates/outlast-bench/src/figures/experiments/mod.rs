//! The experiments of single figures, which are more than phases of a run.

pub mod clevel_slots;
pub mod fixed;
pub mod growth;
pub mod history;
pub mod micros;
pub mod restart;
pub mod values;
