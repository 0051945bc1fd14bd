//! Runs of two threads.

use super::tape::Tape;
use crate::state::Checked;
use outlast::pmem::Alive;
use outlast::{RecordForm, Scheme};
use std::sync::Arc;

/// Records them.
///
/// # Errors
/// If a run goes wrong.
pub fn record(_: Scheme, _: RecordForm, _: &Arc<Alive>) -> Checked<Vec<Tape>> {
    Ok(Vec::new())
}
