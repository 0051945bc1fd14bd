//! Lookups of one key and of many.

use super::table::{HashedKey, Lookup};
use crate::error::Result;
use crate::index::BATCH;
use crate::index::record::{Record, RecordRef};
use crate::pmem::Seam;

/// Returns the value of a key.
#[inline(always)]
pub(crate) fn get<S: Seam, R: Record>(
    table: &impl Lookup<S, R>,
    key: R::Key<'_>,
) -> Result<Option<R::Owned>> {
    R::check_size(key, None)?;
    table.find_value(HashedKey::of(table, key, &mut [0; 8]))
}

/// Returns the value of a key by reference.
pub(crate) fn get_ref<S: Seam, R: Record>(
    table: &impl Lookup<S, R>,
    key: R::Key<'_>,
) -> Result<Option<RecordRef>> {
    R::check_size(key, None)?;
    table.find_reference(HashedKey::of(table, key, &mut [0; 8]))
}

/// Returns the values of many keys, in batches; see [`Lookup`].
pub(crate) fn get_many<S: Seam, R: Record, T: Lookup<S, R>>(
    table: &T,
    keys: &[R::Key<'_>],
    found: &mut [Option<R::Owned>],
) -> Result<()> {
    for (keys, found) in keys.chunks(BATCH).zip(found.chunks_mut(BATCH)) {
        let batch = table.begin_batch();
        let mut lookups: [Option<(u64, T::Staged<'_>)>; BATCH] = [const { None }; BATCH];
        for (&key, lookup) in keys.iter().zip(&mut lookups) {
            R::check_size(key, None)?;
            let mut space = [0; 8];
            let key = HashedKey::of(table, key, &mut space);
            *lookup = Some((key.hash, table.stage_metadata(&batch, key)?));
        }
        for (hash, staged) in lookups.iter_mut().flatten() {
            table.stage_slots(staged, *hash);
        }
        for (hash, staged) in lookups.iter_mut().flatten() {
            table.stage_record(staged, *hash);
        }
        for ((&key, lookup), found) in keys.iter().zip(lookups).zip(found) {
            let Some((hash, staged)) = lookup else { break };
            let mut space = [0; 8];
            let key = HashedKey { key: table.encode(key, &mut space), hash };
            *found = table.find_staged(&batch, staged, key)?;
        }
    }
    Ok(())
}
