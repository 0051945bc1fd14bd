//! The native part of the Python package `outlast`. `python/outlast` has the rest, and documents both.
//!
//! Keys and values are encoded while the interpreter is attached. Calls that may wait, for the disk or for another
//! thread, then run detached: other threads of Python go on.

mod any;
mod batch;
mod cache;
mod codec;
mod expiry;
mod fail;
mod held;
mod map;
mod options;
mod pool;
mod records;
mod schema;
mod transaction;

use pyo3::prelude::*;

/// The native classes and functions.
#[pymodule]
mod _outlast {
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::cache::Cache;
    #[pymodule_export]
    use super::map::Map;
    #[pymodule_export]
    use super::pool::{Pool, backup};
    #[pymodule_export]
    use super::records::Records;
    #[pymodule_export]
    use super::transaction::Transaction;
}
