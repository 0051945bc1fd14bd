//! Accounts for every byte of a pool's file, with a walk that shares no code with the library's
//! allocator.

use crate::failure::Failure;
use outlast::{Damage, Error};
use outlast_offline as offline;
use outlast_offline::Report;
use std::path::Path;

/// The result of a walk over the whole file. Empty if the file needs its journal.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Bytes that are neither used nor free. `None` if the pool was not closed, because then its
    /// file does not say which space is free.
    pub(crate) leaked_bytes: Option<u64>,
    /// Live records of all maps.
    pub(crate) records: u64,
    /// The file's size in bytes.
    pub(crate) file_bytes: u64,
    /// All damage found.
    pub(crate) problems: Vec<Damage>,
}

/// Accounts for the pool at `path`, which no process may have open for writing. Calls `watch` with
/// the size, in bytes, of each block in use when the walk reaches it.
pub(crate) fn account(path: &Path, watch: &mut dyn FnMut(u64)) -> Result<Account, Failure> {
    let report = match offline::walk_watched(path, watch) {
        // The file is a base that lacks what is in the working file or the journal, so it cannot be
        // walked. Only the library's own verification has checked the pool.
        Err(Error::Unfinished { .. }) => return Ok(Account::default()),
        walked => walked?,
    };
    let mut problems = report.problems.clone();
    if report.sum() != report.file_bytes {
        let found = format!("{} bytes accounted for", report.sum());
        problems.push(Damage::new(0, format!("{} bytes", report.file_bytes), found));
    }
    let Report { records, file_bytes, leaked_bytes, free_state, .. } = report;
    Ok(Account { leaked_bytes: free_state.then_some(leaked_bytes), records, file_bytes, problems })
}
