//! The codes that calls return, and the message of the last error of each thread.

use library::Error;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a call returns. 0 and positive codes are answers; negative ones are errors, for which
/// outlast_error_message has a message.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum outlast_code {
    /// Done.
    OUTLAST_OK = 0,
    /// The key is absent, or there is no such record.
    OUTLAST_NOT_FOUND = 1,
    /// The key is present already, so nothing was inserted.
    OUTLAST_EXISTS = 2,
    /// The value is not the expected one, or a requirement of a batch does not hold. Nothing was changed.
    OUTLAST_DIFFERS = 3,
    /// The buffer is shorter than what belongs in it. Nothing was copied; the needed length was stored.
    OUTLAST_BUFFER_TOO_SMALL = 4,
    /// The callback returned something other than 0, so the call ended early.
    OUTLAST_STOPPED = 5,

    /// An argument is null, out of range, or does not apply.
    OUTLAST_ERROR_INVALID = -1,
    /// The system reported an error.
    OUTLAST_ERROR_IO = -2,
    /// There is no file at this path.
    OUTLAST_ERROR_NO_SUCH_POOL = -3,
    /// The pool has no map of this name.
    OUTLAST_ERROR_NO_SUCH_MAP = -4,
    /// A map of this name exists with other types, or with another scheme.
    OUTLAST_ERROR_MAP_MISMATCH = -5,
    /// The map was dropped.
    OUTLAST_ERROR_MAP_DROPPED = -6,
    /// The pool has as many maps as it can hold.
    OUTLAST_ERROR_TOO_MANY_MAPS = -7,
    /// The map's scheme is not in this build.
    OUTLAST_ERROR_NOT_BUILT = -8,
    /// Another process has the pool open, or another handle in this one.
    OUTLAST_ERROR_LOCKED = -9,
    /// The pool is in use and has no journal, so only the process that has it open can copy it.
    OUTLAST_ERROR_NO_JOURNAL = -10,
    /// The pool is open read-only.
    OUTLAST_ERROR_READ_ONLY = -11,
    /// The pool was closed, or this process is a fork of the one that opened it.
    OUTLAST_ERROR_NOT_OPEN = -12,
    /// The pool is full, and may not grow.
    OUTLAST_ERROR_POOL_FULL = -13,
    /// The disk is full.
    OUTLAST_ERROR_DISK_FULL = -14,
    /// There is too little address space.
    OUTLAST_ERROR_ADDRESS_SPACE = -15,
    /// The key or the value is too long.
    OUTLAST_ERROR_TOO_LARGE = -16,
    /// The sum or the difference is not a value of the map's type.
    OUTLAST_ERROR_OVERFLOW = -17,
    /// The file is not a pool.
    OUTLAST_ERROR_NOT_A_POOL = -18,
    /// The pool is of a version, or uses a feature, that this build does not know.
    OUTLAST_ERROR_VERSION = -19,
    /// The pool is damaged. outlast_error_offset may say where.
    OUTLAST_ERROR_DAMAGED = -20,
    /// A power loss may have torn the pool, or it is a copy of a pool in use.
    OUTLAST_ERROR_POSSIBLY_TORN = -21,
    /// The pool's journal or its working file is missing, incomplete, or another pool's.
    OUTLAST_ERROR_JOURNAL = -22,
    /// The pool was not closed; open it for writing once.
    OUTLAST_ERROR_UNFINISHED = -23,
    /// The pool's file was removed or replaced while the pool was open.
    OUTLAST_ERROR_FILE_GONE = -24,
    /// The disk may lack part of the pool; verify it.
    OUTLAST_ERROR_SUSPECT = -25,
    /// outlast has a bug: it panicked. The pool may refuse further calls until it is opened again.
    OUTLAST_ERROR_PANIC = -26,
    /// Another error; its message says which.
    OUTLAST_ERROR_OTHER = -27,
}

pub use outlast_code::*;

/// A result whose error is one of the library's.
pub type Result<T> = library::Result<T>;

/// What outlast_error_offset returns if the error has no offset.
pub const OUTLAST_NO_OFFSET: u64 = u64::MAX;

thread_local! {
    /// The message of the thread's last error.
    static MESSAGE: RefCell<CString> = RefCell::default();
    /// Where its damage is.
    static OFFSET: Cell<u64> = const { Cell::new(OUTLAST_NO_OFFSET) };
}

/// Runs the body of a function of the interface, and returns its code. An error and a panic become codes, and leave
/// their message to the thread.
#[inline(always)]
pub fn answer(body: impl FnOnce() -> Result<outlast_code>) -> outlast_code {
    // Nothing that the body leaves half done is used again: the library refuses a pool in which an operation was
    // cut short, and what the handles hold besides is changed in single steps.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => failed(&error),
        Err(panic) => panicked(&*panic),
    }
}

#[cold]
fn failed(error: &Error) -> outlast_code {
    keep(&format!("{error:?}"), offset_of(error));
    code_of(error)
}

#[cold]
fn panicked(panic: &(dyn Any + Send)) -> outlast_code {
    keep(&format!("outlast panicked: {}", text_of(panic)), None);
    OUTLAST_ERROR_PANIC
}

/// Makes an error of an argument.
#[cold]
pub fn invalid(what: &'static str, why: impl Into<String>) -> Error {
    Error::Invalid { what, why: why.into() }
}

fn keep(message: &str, offset: Option<u64>) {
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    // The thread's storage may be gone if the thread is exiting. There is nobody to read the message then.
    let _ = MESSAGE.try_with(|kept| kept.replace(message));
    let _ = OFFSET.try_with(|kept| kept.set(offset.unwrap_or(OUTLAST_NO_OFFSET)));
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

fn offset_of(error: &Error) -> Option<u64> {
    match error {
        Error::Damaged(damage) | Error::DamagedHeader { damage, .. } => Some(damage.offset()),
        Error::DamagedRoot { damage, .. } => Some(damage.offset()),
        Error::PossiblyTorn { damaged_copy: Some(damage), .. } => Some(damage.offset()),
        _ => None,
    }
}

fn code_of(error: &Error) -> outlast_code {
    match error {
        Error::Invalid { .. } => OUTLAST_ERROR_INVALID,
        Error::Io { .. } => OUTLAST_ERROR_IO,
        Error::NoSuchPool { .. } => OUTLAST_ERROR_NO_SUCH_POOL,
        Error::NoSuchMap { .. } => OUTLAST_ERROR_NO_SUCH_MAP,
        Error::MapMismatch { .. } => OUTLAST_ERROR_MAP_MISMATCH,
        Error::MapDropped => OUTLAST_ERROR_MAP_DROPPED,
        Error::TooManyMaps { .. } => OUTLAST_ERROR_TOO_MANY_MAPS,
        Error::NotBuilt(_) => OUTLAST_ERROR_NOT_BUILT,
        Error::Locked { .. } => OUTLAST_ERROR_LOCKED,
        Error::NoJournal { .. } => OUTLAST_ERROR_NO_JOURNAL,
        Error::ReadOnly { .. } => OUTLAST_ERROR_READ_ONLY,
        Error::NotOpen(_) => OUTLAST_ERROR_NOT_OPEN,
        Error::PoolFull { .. } => OUTLAST_ERROR_POOL_FULL,
        Error::DiskFull { .. } => OUTLAST_ERROR_DISK_FULL,
        Error::AddressSpace { .. } => OUTLAST_ERROR_ADDRESS_SPACE,
        Error::KeyTooLarge { .. } | Error::ValueTooLarge { .. } => OUTLAST_ERROR_TOO_LARGE,
        Error::Overflow { .. } => OUTLAST_ERROR_OVERFLOW,
        Error::NotAPool { .. } => OUTLAST_ERROR_NOT_A_POOL,
        Error::Version { .. } | Error::UnknownFeature { .. } => OUTLAST_ERROR_VERSION,
        Error::Truncated { .. }
        | Error::DamagedHeader { .. }
        | Error::DamagedRoot { .. }
        | Error::Damaged(_) => OUTLAST_ERROR_DAMAGED,
        Error::PossiblyTorn { .. } => OUTLAST_ERROR_POSSIBLY_TORN,
        Error::IncompleteJournal { .. }
        | Error::NoWorkingFile { .. }
        | Error::OtherWorkingFile { .. }
        | Error::CopyOfPool { .. } => OUTLAST_ERROR_JOURNAL,
        Error::Unfinished { .. } => OUTLAST_ERROR_UNFINISHED,
        Error::FileGone { .. } => OUTLAST_ERROR_FILE_GONE,
        Error::Suspect => OUTLAST_ERROR_SUSPECT,
        _ => OUTLAST_ERROR_OTHER,
    }
}

/// Returns the message of the calling thread's last error, or "" if there was none. A call that succeeds leaves it
/// as it is. The text is valid until the same thread's next call of outlast fails, or until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_error_message() -> *const c_char {
    const NONE: &CStr = c"";
    // The pointer stays valid: a `CString` keeps its bytes on the heap until it is replaced.
    MESSAGE.try_with(|kept| kept.borrow().as_ptr()).unwrap_or(NONE.as_ptr())
}

/// Returns the offset, in the pool, of the damage that the calling thread's last error is about, or
/// OUTLAST_NO_OFFSET.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_error_offset() -> u64 {
    OFFSET.try_with(Cell::get).unwrap_or(OUTLAST_NO_OFFSET)
}

/// Returns the name of a code, such as "OUTLAST_ERROR_LOCKED", or "unknown". The text is valid forever.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_code_name(code: i32) -> *const c_char {
    macro_rules! names {
        ($($name:ident)*) => {
            match code {
                $(code if code == $name as i32 => concat!(stringify!($name), "\0"),)*
                _ => "unknown\0",
            }
        };
    }
    let name = names! {
        OUTLAST_OK OUTLAST_NOT_FOUND OUTLAST_EXISTS OUTLAST_DIFFERS OUTLAST_BUFFER_TOO_SMALL OUTLAST_STOPPED
        OUTLAST_ERROR_INVALID OUTLAST_ERROR_IO OUTLAST_ERROR_NO_SUCH_POOL OUTLAST_ERROR_NO_SUCH_MAP
        OUTLAST_ERROR_MAP_MISMATCH OUTLAST_ERROR_MAP_DROPPED OUTLAST_ERROR_TOO_MANY_MAPS OUTLAST_ERROR_NOT_BUILT
        OUTLAST_ERROR_LOCKED OUTLAST_ERROR_NO_JOURNAL OUTLAST_ERROR_READ_ONLY OUTLAST_ERROR_NOT_OPEN
        OUTLAST_ERROR_POOL_FULL OUTLAST_ERROR_DISK_FULL OUTLAST_ERROR_ADDRESS_SPACE OUTLAST_ERROR_TOO_LARGE
        OUTLAST_ERROR_OVERFLOW OUTLAST_ERROR_NOT_A_POOL OUTLAST_ERROR_VERSION OUTLAST_ERROR_DAMAGED
        OUTLAST_ERROR_POSSIBLY_TORN OUTLAST_ERROR_JOURNAL OUTLAST_ERROR_UNFINISHED OUTLAST_ERROR_FILE_GONE
        OUTLAST_ERROR_SUSPECT OUTLAST_ERROR_PANIC OUTLAST_ERROR_OTHER
    };
    name.as_ptr().cast()
}

/// Returns the version of the library, such as "0.1.0". The text is valid forever.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: the text is valid until the next error of this thread.
        unsafe { CStr::from_ptr(outlast_error_message()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_a_code_with_its_message() {
        assert_eq!(answer(|| panic!("number {}", 7)), OUTLAST_ERROR_PANIC);
        assert_eq!(message(), "outlast panicked: number 7");
        assert_eq!(answer(|| panic!("of a text")), OUTLAST_ERROR_PANIC);
        assert_eq!(message(), "outlast panicked: of a text");
    }

    #[test]
    fn an_error_keeps_its_offset_and_its_cause() {
        let damage = library::Damage::new(4096, "this", "that");
        assert_eq!(answer(|| Err(Error::Damaged(damage))), OUTLAST_ERROR_DAMAGED);
        assert_eq!(outlast_error_offset(), 4096);
        let denied = std::io::Error::other("denied");
        assert_eq!(answer(|| Err(Error::io("opening p", denied))), OUTLAST_ERROR_IO);
        assert_eq!(
            (message(), outlast_error_offset()),
            ("opening p: denied".into(), OUTLAST_NO_OFFSET)
        );
        assert_eq!(answer(|| Ok(OUTLAST_EXISTS)), OUTLAST_EXISTS);
        assert_eq!(message(), "opening p: denied", "what succeeds leaves the message");
    }
}
