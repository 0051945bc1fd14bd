//! Batches.

use crate::argument::{Out, borrow, give, outlast_bytes, take_back};
use crate::code::{OUTLAST_DIFFERS, OUTLAST_OK, Result, answer, outlast_code};
use crate::map::{on_key, on_record, outlast_map};
use crate::pool::outlast_pool;
use library::Batch;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Changes of several records, of which a crash leaves all or none. Threads that use one handle at the same time wait
/// for each other.
pub struct outlast_batch {
    batch: Mutex<Batch>,
}

impl outlast_batch {
    fn lock(&self) -> MutexGuard<'_, Batch> {
        // A panic leaves the lists of changes as they are, and nothing is made of them before `commit`.
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins a batch, and stores its handle in `*batch`. Nothing is changed before outlast_batch_commit. Free it with
/// outlast_batch_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_batch_begin(
    pool: *const outlast_pool,
    batch: *mut *mut outlast_batch,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (pool, out) = unsafe { (borrow(pool, "pool")?, Out::needed(batch, "batch")?) };
        out.set(give(outlast_batch { batch: Mutex::new(pool.pool.batch()) }));
        Ok(OUTLAST_OK)
    })
}

/// Adds a change: `key` gets this value in `map`, which must be of the batch's pool. If a batch has several changes
/// of a key, the last one counts. Keys and values are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_batch_put(
    batch: *const outlast_batch,
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, value, |map, key, value| {
            add(batch, |batch| batch.change_raw(&map.raw, key, Some(value)).map(drop))
        })
    }
}

/// Adds a change: `key` is removed from `map`, if it is present.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_batch_remove(
    batch: *const outlast_batch,
    map: *const outlast_map,
    key: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_key(map, key, |map, key| {
            add(batch, |batch| batch.change_raw(&map.raw, key, None).map(drop))
        })
    }
}

/// Requires that `key` has this value before the first change of the batch. If it has not, outlast_batch_commit
/// changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_batch_require(
    batch: *const outlast_batch,
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, value, |map, key, value| {
            add(batch, |batch| batch.require_raw(&map.raw, key, Some(value)).map(drop))
        })
    }
}

/// Requires that `key` is absent before the first change of the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_batch_require_absent(
    batch: *const outlast_batch,
    map: *const outlast_map,
    key: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_key(map, key, |map, key| {
            add(batch, |batch| batch.require_raw(&map.raw, key, None).map(drop))
        })
    }
}

/// Makes all changes of the batch, and empties it. Once this returns, all of them have been made; a crash before that
/// leaves all of them or none. No other thread changes a record of the pool meanwhile; readers can see a part.
///
/// If a requirement does not hold: OUTLAST_DIFFERS, nothing is changed, the batch is empty, and `*failed` is the
/// number of the requirement, from 0, in the order in which they were added. `failed` may be null. On an error, the
/// batch keeps its changes, and can be committed again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_batch_commit(
    batch: *const outlast_batch,
    failed: *mut usize,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (batch, out) = unsafe { (borrow(batch, "batch")?, Out::optional(failed)) };
        let mut batch = batch.lock();
        if batch.commit()? {
            return Ok(OUTLAST_OK);
        }
        batch.failed().into_iter().for_each(|failed| out.set(failed));
        Ok(OUTLAST_DIFFERS)
    })
}

/// Frees the handle of a batch with the changes that were not committed; null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_batch_free(batch: *mut outlast_batch) {
    answer(|| {
        // SAFETY: the header's rules: the handle is valid, and is not used again.
        unsafe { take_back(batch) };
        Ok(OUTLAST_OK)
    });
}

/// # Safety
/// The rules of the header.
pub(crate) unsafe fn add(
    batch: *const outlast_batch,
    add: impl FnOnce(&mut Batch) -> Result<()>,
) -> Result<outlast_code> {
    // SAFETY: the header's rules.
    let batch = unsafe { borrow(batch, "batch")? };
    add(&mut batch.lock())?;
    Ok(OUTLAST_OK)
}
