//! Removal of the fields of hashes that are no more.

use super::{Content, FieldKey, HashInfo, Store};
use crate::place::from_ms;
use crate::reply::Result;
use std::time::SystemTime;

/// Fields that are removed at once with their hash.
const FEW: u64 = 64;
/// Fields that one step of the cleaning removes.
const STEP: usize = 1_000;

impl Store {
    /// Removes the fields of a hash that is garbage, if they are few.
    pub(super) fn forget(&self, hash: HashInfo) -> Result<()> {
        if hash.fields <= FEW {
            self.clean_hash(hash.number)?;
        }
        Ok(())
    }

    /// Removes some fields of a hash that is garbage. Returns whether there are more.
    fn clean_hash(&self, number: u64) -> Result<bool> {
        let all = (number, 0, Vec::new())..(number + 1, 0, Vec::new());
        let keys: Vec<FieldKey> = self
            .fields
            .range(all)
            .take(STEP)
            .map(|record| Ok(record?.0))
            .collect::<outlast::Result<_>>()?;
        self.fields.remove_many(&keys.iter().collect::<Vec<_>>())?;
        if keys.len() < STEP {
            self.garbage.delete(&number)?;
        }
        Ok(keys.len() == STEP)
    }

    /// Does a step of the cleaning: removes fields of hashes that were removed or have expired by `now`.
    /// Returns whether there is more to do.
    pub fn clean(&self, now: SystemTime) -> Result<bool> {
        let first = self.timed.first()?;
        if let Some((at, key)) = first.filter(|((ms, _), _)| from_ms(*ms) <= now) {
            let number = at.1;
            let is_alive = matches!(
                self.get(&key)?,
                Some(Content::Hash(hash)) if hash.number == number
            );
            let mut batch = self.pool.batch();
            batch.remove(&self.timed, &at)?;
            if !is_alive {
                batch.put(&self.garbage, &number, &())?;
            }
            batch.commit()?;
            return Ok(true);
        }
        match self.garbage.iter().next() {
            Some(record) => {
                self.clean_hash(record?.0)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }
}
