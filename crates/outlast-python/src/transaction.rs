//! Transactions.

use crate::expiry::after;
use crate::fail::{Fail, Result, invalid};
use crate::map::Map;
use pyo3::prelude::*;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// A transaction under way: the argument of the function that `Pool.transaction` runs.
#[pyclass(frozen, module = "outlast._outlast")]
pub struct Transaction {
    running: Mutex<Option<Running>>,
}

/// The library's transaction. It is there until the function returns.
struct Running(NonNull<library::Transaction>);

// SAFETY: a `library::Transaction` is `Send` (`run` demands it), and only the holder of the lock uses it.
unsafe impl Send for Running {}

/// Ends the use of a transaction, however the function ended.
struct Ending<'a>(&'a Transaction);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Runs a function as a transaction.
pub fn run(py: Python<'_>, pool: &library::Pool, function: &Bound<'_, PyAny>) -> Result<Py<PyAny>> {
    fn demand_send<T: Send>(value: T) -> T {
        value
    }
    let function = function.clone().unbind();
    py.detach(|| {
        pool.transaction(|transaction| {
            let running = Running(NonNull::from(demand_send(transaction)));
            Python::attach(|py| {
                let handle = Transaction { running: Mutex::new(Some(running)) };
                let handle = Bound::new(py, handle)?;
                let _ending = Ending(handle.get());
                Ok::<_, Fail>(function.bind(py).call1((&handle,))?.unbind())
            })
        })
    })
}

#[pymethods]
impl Transaction {
    /// Return the value of a key, or ``default``. What the transaction has changed, it reads as changed.
    #[pyo3(signature = (map, key, default = None))]
    fn get<'py>(
        &self,
        map: &Bound<'py, Map>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> Result<Option<Bound<'py, PyAny>>> {
        let map = map.get();
        let encoded = map.codecs.encode_key(key)?;
        let bytes = encoded.bytes();
        let found = self.with(|transaction| transaction.get_raw(&map.raw, bytes))?;
        Ok(map.codecs.decoded(key.py(), found)?.or(default))
    }

    /// Put a value: the key has it in the map once the transaction ends. Unless ``expire`` is ``None``, it expires
    /// after that many seconds from this call on.
    #[pyo3(signature = (map, key, value, expire = None))]
    fn put(
        &self,
        map: &Bound<'_, Map>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<f64>,
    ) -> Result<()> {
        let (map, expiry) = (map.get(), after(expire)?);
        let (key, value) = (map.codecs.encode_key(key)?, map.codecs.encode_value(value)?);
        let (key, value) = (key.bytes(), value.bytes());
        self.with(|transaction| match expire {
            Some(_) => transaction.put_raw_until(&map.raw, key, value, expiry),
            None => transaction.change_raw(&map.raw, key, Some(value)),
        })
    }

    /// Remove a key, if it is present, once the transaction ends.
    fn remove(&self, map: &Bound<'_, Map>, key: &Bound<'_, PyAny>) -> Result<()> {
        let map = map.get();
        let key = map.codecs.encode_key(key)?;
        self.with(|transaction| transaction.change_raw(&map.raw, key.bytes(), None))
    }
}

impl Transaction {
    fn with<T>(
        &self,
        run: impl FnOnce(&mut library::Transaction) -> library::Result<T>,
    ) -> Result<T> {
        let Ok(mut running) = self.running.try_lock() else {
            return Err(invalid("transaction", "another thread is using it"));
        };
        let Some(Running(transaction)) = &mut *running else {
            return Err(invalid("transaction", "it is over"));
        };
        // SAFETY: it is there: `Ending` takes it out before `run` returns, and waits for the lock, which is held. The
        // lock also makes this the only reference.
        Ok(run(unsafe { transaction.as_mut() })?)
    }
}
