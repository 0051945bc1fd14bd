//! Transactions.

use crate::argument::{Buffer, borrow, outlast_bytes};
use crate::code::{
    OUTLAST_NOT_FOUND, OUTLAST_OK, OUTLAST_STOPPED, Result, answer, invalid, outlast_code,
};
use crate::map::{on_key, on_record, outlast_map};
use crate::pool::outlast_pool;
use library::{Error, Transaction};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};

/// A transaction under way. It is valid during the call of an outlast_transaction_fn, in the thread of that call.
pub struct outlast_transaction<'t>(RefCell<&'t mut Transaction>);

/// Reads and changes records through `transaction`. If it returns something other than 0, nothing is changed. It can
/// be called several times for one transaction, so it must not have effects elsewhere, and must not add up what it
/// finds.
pub type outlast_transaction_fn = Option<
    unsafe extern "C" fn(
        transaction: *const outlast_transaction<'_>,
        context: *mut c_void,
    ) -> c_int,
>;

/// Why a transaction ends without a change.
enum Stop {
    Stopped,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// Runs a transaction: calls `run`, and then makes all its changes as one, or none. If another thread has meanwhile
/// changed a record that `run` has read, `run` is called again. A crash leaves all of the changes or none. If `run`
/// only reads, what it has read in the end was there together at one moment.
///
/// OUTLAST_STOPPED, and no change, if `run` returns something other than 0; the message of an error in `run` is kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_transaction_run(
    pool: *const outlast_pool,
    run: outlast_transaction_fn,
    context: *mut c_void,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let pool = unsafe { borrow(pool, "pool")? };
        let run = run.ok_or_else(|| invalid("run", "it is null"))?;
        let done = pool.pool.transaction(|transaction| {
            let handle = outlast_transaction(RefCell::new(transaction));
            // SAFETY: the header's rules for callbacks. The handle lives until it returns.
            if unsafe { run(&handle, context) } == 0 { Ok(()) } else { Err(Stop::Stopped) }
        });
        match done {
            Ok(()) => Ok(OUTLAST_OK),
            Err(Stop::Stopped) => Ok(OUTLAST_STOPPED),
            Err(Stop::Failed(error)) => Err(error),
        }
    })
}

/// Copies the value of `key` into `buffer`, as outlast_get does. What the transaction has changed, it reads as
/// changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_transaction_get(
    transaction: *const outlast_transaction<'_>,
    map: *const outlast_map,
    key: outlast_bytes,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> outlast_code {
    let get = |map: &outlast_map, key: &[u8]| {
        // SAFETY: the header's rules.
        let (transaction, buffer) =
            unsafe { (borrow(transaction, "transaction")?, Buffer::new(buffer, capacity, len)?) };
        let found = transaction.0.borrow_mut().get_raw(&map.raw, key)?;
        let Some(mut value) = found else { return Ok(OUTLAST_NOT_FOUND) };
        map.value.decode(&mut value);
        Ok(buffer.put(&value))
    };
    // SAFETY: the header's rules.
    unsafe { on_key(map, key, get) }
}

/// Puts a value: `key` has it in `map` once the transaction ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_transaction_put(
    transaction: *const outlast_transaction<'_>,
    map: *const outlast_map,
    key: outlast_bytes,
    value: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_record(map, key, value, |map, key, value| {
            change(transaction, |transaction| transaction.change_raw(&map.raw, key, Some(value)))
        })
    }
}

/// Removes `key` from `map`, if it is present, once the transaction ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_transaction_remove(
    transaction: *const outlast_transaction<'_>,
    map: *const outlast_map,
    key: outlast_bytes,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        on_key(map, key, |map, key| {
            change(transaction, |transaction| transaction.change_raw(&map.raw, key, None))
        })
    }
}

/// # Safety
/// The rules of the header.
pub(crate) unsafe fn change(
    transaction: *const outlast_transaction<'_>,
    change: impl FnOnce(&mut Transaction) -> Result<()>,
) -> Result<outlast_code> {
    // SAFETY: the header's rules.
    let transaction = unsafe { borrow(transaction, "transaction")? };
    change(&mut transaction.0.borrow_mut())?;
    Ok(OUTLAST_OK)
}
