//! Accounting for every byte of a pool that nobody has open.

use crate::failure::Failure;
use crate::open;
use outlast::{Damage, Verification};
use std::path::Path;

/// What a walk over the whole file found.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Bytes that are neither used nor free.
    pub(crate) leaked_bytes: u64,
    /// Live records of all maps.
    pub(crate) records: u64,
    /// The pool's size.
    pub(crate) file_bytes: u64,
    /// What is not as it should be.
    pub(crate) problems: Vec<Damage>,
}

/// Accounts for the pool at `path`.
pub(crate) fn account(path: &Path) -> Result<Account, Failure> {
    let pool = open::to_write(path)?;
    let found = pool.verify()?;
    let account = Account {
        leaked_bytes: found.leaked_bytes.unwrap_or(u64::MAX),
        records: found.records(),
        file_bytes: pool.stats().size,
        problems: found.all_damage().cloned().collect(),
    };
    pool.close()?;
    Ok(account)
}

/// Bytes that a pool opened for reading leaks, by its own verification. `None` where that
/// is not known.
pub(crate) fn leaked_bytes(found: &Verification) -> Option<u64> {
    found.leaked_bytes
}
