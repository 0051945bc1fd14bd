//! Pools.

use crate::argument::{Out, borrow, give, path, take_back, text};
use crate::code::{OUTLAST_OK, OUTLAST_STOPPED, Result, answer, outlast_code};
use crate::options::{self, outlast_options};
use library::{Pool, PoolOptions};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;

/// An open pool: one file that holds many maps. Any number of threads may use a handle at the same time.
pub struct outlast_pool {
    pub(crate) pool: Pool,
}

/// Opens or creates a pool on a file.
type Opener = unsafe fn(&PoolOptions, &Path) -> library::Result<Pool>;

/// # Safety
/// The rules of the header.
unsafe fn open_with(
    file: *const c_char,
    options: *const outlast_options,
    pool: *mut *mut outlast_pool,
    open: Opener,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules for arguments.
        let (file, options, out) =
            unsafe { (path(file, "path")?, options::read(options)?, Out::needed(pool, "pool")?) };
        out.set(std::ptr::null_mut());
        // SAFETY: the header makes it C's duty that nobody else writes the file.
        out.set(give(outlast_pool { pool: unsafe { open(&options, file)? } }));
        Ok(OUTLAST_OK)
    })
}

/// Opens an existing pool. After a crash, it is as it was: every call that had returned has taken effect. Stores a
/// handle in `*pool`, or null on an error. Free the handle with outlast_pool_free.
///
/// OUTLAST_ERROR_LOCKED if it is open already; OUTLAST_ERROR_POSSIBLY_TORN after a power loss, if the pool was in use
/// and has no journal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_open(
    path: *const c_char,
    options: *const outlast_options,
    pool: *mut *mut outlast_pool,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { open_with(path, options, pool, |options, path| options.open(path)) }
}

/// Creates a pool. OUTLAST_ERROR_IO if the file exists. Otherwise as outlast_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_create(
    path: *const c_char,
    options: *const outlast_options,
    pool: *mut *mut outlast_pool,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { open_with(path, options, pool, |options, path| options.create(path)) }
}

/// Opens a pool, or creates it if there is no file. Otherwise as outlast_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_open_or_create(
    path: *const c_char,
    options: *const outlast_options,
    pool: *mut *mut outlast_pool,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { open_with(path, options, pool, |options, path| options.open_or_create(path)) }
}

/// Opens a pool for reading. Several processes may do so at the same time, while none has it open for writing.
/// Changes fail with OUTLAST_ERROR_READ_ONLY. Otherwise as outlast_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_open_read_only(
    path: *const c_char,
    options: *const outlast_options,
    pool: *mut *mut outlast_pool,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { open_with(path, options, pool, |options, path| options.open_read_only(path)) }
}

/// Creates a pool in memory, for tests. It ends with its last handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_open_anonymous(
    options: *const outlast_options,
    pool: *mut *mut outlast_pool,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let (options, out) = unsafe { (options::read(options)?, Out::needed(pool, "pool")?) };
        out.set(std::ptr::null_mut());
        out.set(give(outlast_pool { pool: options.anonymous()? }));
        Ok(OUTLAST_OK)
    })
}

/// Closes a pool: makes it durable and marks it as closed cleanly. From then on, calls on this handle, and on the
/// handles of its maps and batches, fail with OUTLAST_ERROR_NOT_OPEN. Calls that other threads are in end first. The
/// handles still have to be freed. On an error, the pool is closed all the same, and opens as after a crash.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_close(pool: *mut outlast_pool) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { with(pool, |pool| pool.clone().close()) }
}

/// Frees the handle of a pool; null is ignored. If the pool was not closed, it is closed once its last handle is
/// freed, the handles of maps and batches included; an error is lost then, so close it first. In a forked child
/// process, this frees memory and leaves the parent's pool alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_pool_free(pool: *mut outlast_pool) {
    answer(|| {
        // SAFETY: the header's rules: the handle is valid, and is not used again.
        unsafe { take_back(pool) };
        Ok(OUTLAST_OK)
    });
}

/// Waits until everything that was done before the call survives a power loss: changes whose calls have returned,
/// and changes that a thread has read. With a journal, threads that wait at the same time share one sync of the disk.
/// On an ordinary file without a journal, this is outlast_sync.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_wait_durable(pool: *const outlast_pool) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { with(pool, Pool::wait_durable) }
}

/// Makes the effects of all calls that have returned durable against a power loss. Writers wait meanwhile; readers do
/// not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_sync(pool: *const outlast_pool) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { with(pool, Pool::sync) }
}

/// Copies an open pool to `path` as a cleanly closed pool, and replaces any file there. Once this returns, the copy
/// is durable. Writers wait meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_snapshot(
    pool: *const outlast_pool,
    path: *const c_char,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { with(pool, |pool| pool.snapshot(self::path(path, "path")?)) }
}

/// Copies the pool at `path` to `to`, as outlast_snapshot does. If another process has it open, it must have a
/// journal; otherwise OUTLAST_ERROR_NO_JOURNAL. The copy holds everything that was durable when this began. Of the
/// options, only the directories of the journal and of its working file matter, and the progress function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_backup(
    path: *const c_char,
    to: *const c_char,
    options: *const outlast_options,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules for arguments.
        let (path, to, options) =
            unsafe { (self::path(path, "path")?, self::path(to, "to")?, options::read(options)?) };
        // SAFETY: the header makes it C's duty that nobody but outlast writes the files.
        unsafe { options.backup(path, to)? };
        Ok(OUTLAST_OK)
    })
}

/// Does one step of background work, for pools opened with OUTLAST_NO_BACKGROUND. Stores in `*more`, unless that is
/// null, whether there may be more to do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_step(pool: *const outlast_pool, more: *mut bool) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe {
        with(pool, |pool| {
            Out::optional(more).set(pool.step()?);
            Ok(())
        })
    }
}

/// Drops a map. Once this returns, the map is gone; a crash before that leaves it either intact or gone. Calls on its
/// handles fail with OUTLAST_ERROR_MAP_DROPPED, and its space is freed once they are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_map_drop(
    pool: *const outlast_pool,
    name: *const c_char,
) -> outlast_code {
    // SAFETY: the header's rules.
    unsafe { with(pool, |pool| pool.drop_map(text(name, "name")?)) }
}

/// Receives a map's name, the types of its keys and values, and its scheme. The texts are valid during the call. If
/// it returns something other than 0, no more maps follow.
pub type outlast_map_fn = Option<
    unsafe extern "C" fn(
        name: *const c_char,
        key_type: *const c_char,
        value_type: *const c_char,
        scheme: *const c_char,
        context: *mut c_void,
    ) -> c_int,
>;

/// Calls `receive` for every map of the pool. A damaged map is OUTLAST_ERROR_DAMAGED, after all others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outlast_maps(
    pool: *const outlast_pool,
    receive: outlast_map_fn,
    context: *mut c_void,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        let pool = unsafe { borrow(pool, "pool")? };
        let receive = receive.ok_or_else(|| crate::code::invalid("receive", "it is null"))?;
        let (mut damaged, maps) = (None, pool.pool.maps());
        for map in maps {
            let info = match map {
                Ok(info) => info,
                Err(error) => {
                    damaged = damaged.or(Some(error));
                    continue;
                }
            };
            let texts = [&info.name, &info.key_schema, &info.value_schema, info.scheme().name()];
            // A name can hold a 0. C sees it up to there.
            let [name, key, value, scheme] = texts.map(|text| {
                let text = text.split('\0').next().unwrap_or_default();
                CString::new(text).unwrap_or_default()
            });
            // SAFETY: the header's rules for callbacks. The texts live until it returns.
            let stop = unsafe {
                receive(name.as_ptr(), key.as_ptr(), value.as_ptr(), scheme.as_ptr(), context)
            };
            if stop != 0 {
                return Ok(OUTLAST_STOPPED);
            }
        }
        damaged.map_or(Ok(OUTLAST_OK), Err)
    })
}

/// Calls `run` with the pool of a handle.
///
/// # Safety
/// The rules of the header.
pub(crate) unsafe fn with(
    pool: *const outlast_pool,
    run: impl FnOnce(&Pool) -> Result<()>,
) -> outlast_code {
    answer(|| {
        // SAFETY: the header's rules.
        run(&unsafe { borrow(pool, "pool")? }.pool)?;
        Ok(OUTLAST_OK)
    })
}
