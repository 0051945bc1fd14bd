//! Errors, as exceptions of the package.

use library::Error;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// An error of the library, or an exception.
pub enum Fail {
    /// Becomes an exception of the package.
    Library(Error),
    /// Is one already.
    Python(PyErr),
}

/// A result of a function that Python calls.
pub type Result<T> = std::result::Result<T, Fail>;

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        Fail::Library(error)
    }
}

impl From<PyErr> for Fail {
    fn from(error: PyErr) -> Self {
        Fail::Python(error)
    }
}

impl From<pyo3::CastError<'_, '_>> for Fail {
    fn from(error: pyo3::CastError<'_, '_>) -> Self {
        Fail::Python(error.into())
    }
}

impl From<Fail> for PyErr {
    #[cold]
    fn from(fail: Fail) -> PyErr {
        match fail {
            Fail::Python(error) => error,
            Fail::Library(error) => Python::attach(|py| match exception(py, &error) {
                Ok(exception) | Err(exception) => exception,
            }),
        }
    }
}

/// Makes the argument of a call invalid.
#[cold]
pub fn invalid(what: &'static str, why: impl Into<String>) -> Fail {
    Fail::Library(Error::Invalid { what, why: why.into() })
}

/// Makes a `KeyError` of a key that is absent.
#[cold]
pub fn absent(key: &Bound<'_, PyAny>) -> Fail {
    PyKeyError::new_err(key.clone().unbind()).into()
}

/// Makes an exception by a function of `outlast/_errors.py`.
fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("outlast._errors")?.getattr("make")?.unbind())
    })?;
    let arguments = (class_of(error), format!("{error:?}"), offset_of(error), errno_of(error));
    Ok(PyErr::from_value(make.bind(py).call1(arguments)?))
}

fn offset_of(error: &Error) -> Option<u64> {
    match error {
        Error::Damaged(damage) | Error::DamagedHeader { damage, .. } => Some(damage.offset()),
        Error::DamagedRoot { damage, .. } => Some(damage.offset()),
        Error::PossiblyTorn { damaged_copy: Some(damage), .. } => Some(damage.offset()),
        _ => None,
    }
}

/// Returns the system's number of an error.
fn errno_of(error: &Error) -> Option<i32> {
    match error {
        Error::Io { source, .. } | Error::DiskFull { source, .. } => source.raw_os_error().or(
            // The library's own word for a file that exists already.
            (source.kind() == std::io::ErrorKind::AlreadyExists).then_some(17),
        ),
        Error::NoSuchPool { .. } => Some(2),
        _ => None,
    }
}

/// Returns the name of the exception's class.
fn class_of(error: &Error) -> &'static str {
    match error {
        Error::Invalid { .. } => "InvalidError",
        Error::Io { .. } => "IoError",
        Error::NoSuchPool { .. } => "NoSuchPoolError",
        Error::NoSuchMap { .. } => "NoSuchMapError",
        Error::MapMismatch { .. } => "MapMismatchError",
        Error::Locked { .. } | Error::NoJournal { .. } => "LockedError",
        Error::ReadOnly { .. } => "ReadOnlyError",
        Error::NotOpen(_) | Error::MapDropped => "NotOpenError",
        Error::PoolFull { .. } | Error::DiskFull { .. } | Error::AddressSpace { .. } => "FullError",
        Error::KeyTooLarge { .. } | Error::ValueTooLarge { .. } => "TooLargeError",
        Error::Overflow { .. } => "IntegerOverflowError",
        Error::PossiblyTorn { .. } | Error::Suspect => "PossiblyTornError",
        Error::IncompleteJournal { .. }
        | Error::NoWorkingFile { .. }
        | Error::OtherWorkingFile { .. }
        | Error::CopyOfPool { .. }
        | Error::Unfinished { .. } => "JournalError",
        error if error.is_damage() => "DamagedError",
        _ => "OutlastError",
    }
}
