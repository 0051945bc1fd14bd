//! The keys of a workload.

use std::sync::Arc;

/// The keys of a workload, by number.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    /// The keys with the first numbers, if the workload chooses its keys.
    pub(super) chosen: Arc<[u64]>,
    /// The key with number 0 if no keys are chosen. The others follow it.
    pub(super) first: u64,
}

impl Keys {
    /// Returns keys that equal their numbers.
    pub(super) fn plain() -> Keys {
        Keys { chosen: Arc::new([]), first: 0 }
    }

    pub(super) fn key(&self, number: u64) -> u64 {
        match self.chosen.get(number as usize) {
            Some(&key) => key,
            None if self.chosen.is_empty() => self.first + number,
            None => UNCHOSEN + number,
        }
    }
}

/// Greater than every chosen key.
const UNCHOSEN: u64 = 10_000;
