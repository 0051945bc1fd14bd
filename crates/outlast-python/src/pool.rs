//! Pools.

use crate::fail::{Result, invalid};
use crate::held::Held;
use crate::options;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::path::PathBuf;

/// The native part of `outlast.Pool`.
#[pyclass(frozen, subclass, module = "outlast._outlast")]
pub struct Pool {
    pub pool: Held<library::Pool>,
}

#[pymethods]
impl Pool {
    /// Opens or creates a pool. Without a path, it is in memory.
    #[new]
    fn new(
        py: Python<'_>,
        path: Option<PathBuf>,
        mode: &str,
        options: &Bound<'_, PyDict>,
    ) -> Result<Pool> {
        let options = options::read(options)?;
        let Some(path) = path else {
            return Ok(Pool { pool: Held::new(options.anonymous()?) });
        };
        // SAFETY: `outlast.open` tells its users that nothing else may write the file. The library's lock keeps its
        // other users out.
        let pool = py.detach(|| unsafe {
            Ok(match mode {
                "r" => options.open_read_only(path)?,
                "w" => options.open(path)?,
                "c" => options.open_or_create(path)?,
                "x" => options.create(path)?,
                other => {
                    return Err(invalid(
                        "mode",
                        format!("{other:?} is none of 'r', 'w', 'c' and 'x'"),
                    ));
                }
            })
        })?;
        Ok(Pool { pool: Held::new(pool) })
    }

    /// Close the pool: make it durable and mark it as closed cleanly.
    fn close(&self, py: Python<'_>) -> Result<()> {
        self.pool.detached(py, |pool| pool.clone().close())
    }

    /// Make the effects of all calls that have returned durable against a power loss. Writers wait meanwhile.
    fn sync(&self, py: Python<'_>) -> Result<()> {
        self.pool.detached(py, library::Pool::sync)
    }

    /// Wait until everything done before survives a power loss. With a journal, waiting threads share one sync.
    fn wait_durable(&self, py: Python<'_>) -> Result<()> {
        self.pool.detached(py, library::Pool::wait_durable)
    }

    /// Copy the pool to ``path`` as a cleanly closed pool, and replace any file there.
    fn snapshot(&self, py: Python<'_>, path: PathBuf) -> Result<()> {
        self.pool.detached(py, |pool| pool.snapshot(path))
    }

    /// Do one step of background work, for a pool opened with ``background=False``.
    fn step(&self, py: Python<'_>) -> Result<bool> {
        self.pool.detached(py, library::Pool::step)
    }

    /// Remove a map with all its records, in one step.
    fn drop_map(&self, py: Python<'_>, name: &str) -> Result<()> {
        self.pool.detached(py, |pool| pool.drop_map(name))
    }

    /// Run a function as a transaction, and return what it returns.
    ///
    /// The function gets a :class:`Transaction`, through which it reads and changes records of any maps. All of its
    /// changes are made as one, or none: none if it raises an exception. If another thread has meanwhile changed a
    /// record that it has read, it runs again, so it must not have effects elsewhere.
    fn transaction(&self, py: Python<'_>, function: &Bound<'_, PyAny>) -> Result<Py<PyAny>> {
        crate::transaction::run(py, &self.pool, function)
    }

    /// Returns the records, the bytes in use, the leaked bytes, and each damaged place with its text.
    fn _verify(&self, py: Python<'_>) -> Result<Verified> {
        let found = self.pool.detached(py, library::Pool::verify)?;
        let damage =
            found.all_damage().map(|damage| (damage.offset(), damage.to_string())).collect();
        Ok((found.is_sound(), found.records(), found.used_bytes, found.leaked_bytes, damage))
    }

    /// Returns name, types and scheme of each map.
    fn _maps(&self) -> Result<Vec<(String, String, String, String)>> {
        self.pool
            .maps()
            .into_iter()
            .map(|info| {
                let info = info?;
                let scheme = info.scheme().name().to_owned();
                Ok((info.name, info.key_schema, info.value_schema, scheme))
            })
            .collect()
    }

    /// Returns the fields of `outlast.Durability`.
    fn _durability(&self) -> (bool, bool, bool, bool, Option<f64>) {
        let found = self.pool.durability();
        (
            found.survives_process_death,
            found.survives_power_loss,
            found.confirmed_survives_power_loss,
            found.is_suspect,
            found.interval.map(|interval| interval.as_secs_f64()),
        )
    }

    /// Returns the fields of `outlast.Stats`.
    fn _stats(&self) -> (u64, u64, u64, u64, usize) {
        let stats = self.pool.stats();
        (stats.size, stats.limit, stats.free_page_bytes, stats.held_bytes, stats.guards)
    }

    /// Return the pool's numbers as text for Prometheus.
    fn prometheus(&self, name: &str) -> String {
        self.pool.stats().prometheus(name)
    }

    /// The pool's id: 16 random bytes, chosen at creation.
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.pool.id().to_be_bytes())
    }
}

/// See [`Pool::_verify`].
type Verified = (bool, u64, u64, Option<u64>, Vec<(u64, String)>);

/// Copies a pool that another process may have open.
#[pyfunction]
pub fn backup(
    py: Python<'_>,
    path: PathBuf,
    to: PathBuf,
    options: &Bound<'_, PyDict>,
) -> Result<u64> {
    let options = options::read(options)?;
    // SAFETY: as in `Pool::new`.
    let backup = py.detach(|| unsafe { options.backup(path, to) })?;
    Ok(backup.bytes)
}
