//! The options of a pool.

use crate::fail::{Result, invalid};
use library::{Failure, JournalOptions, PoolOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use std::path::PathBuf;
use std::time::Duration;

/// Reads the options that `outlast.open` puts into a dictionary. Those that are not there, or are `None`, are as the
/// library has them.
pub fn read(options: &Bound<'_, PyDict>) -> Result<PoolOptions> {
    let mut read = PoolOptions::new();
    for (name, value) in options.iter() {
        if value.is_none() {
            continue;
        }
        let name: String = name.extract()?;
        read = match name.as_str() {
            "initial_size" => read.initial_size(value.extract()?),
            "max_size" => read.max_size(value.extract()?),
            "page_bits" => read.page_bits(value.extract()?),
            "background" => read.background(value.extract()?),
            "idle_sync" => read.idle_sync(value.extract()?),
            "trim" => read.trim(value.extract()?),
            "recovery_threads" => read.recovery_threads(value.extract()?),
            "accept_possibly_torn" => read.accept_possibly_torn(value.extract()?),
            "require_working_file" => read.require_working_file(value.extract()?),
            "journal" if value.is_instance_of::<PyBool>() => read.survive(Failure::ProcessDeath),
            "journal" => read.journal(journal(&value)?),
            "progress" => {
                let tell: Py<PyAny> = value.unbind();
                read.recovery_progress(move |progress| report(&tell, progress))
            }
            _ => return Err(invalid("option", format!("there is no {name}"))),
        };
    }
    Ok(read)
}

/// Reads an `outlast.Journal`.
fn journal(given: &Bound<'_, PyAny>) -> Result<JournalOptions> {
    let mut journal = JournalOptions::new();
    let get = |name: &str| given.getattr(name);
    if let Some(seconds) = get("interval")?.extract::<Option<f64>>()? {
        let interval = Duration::try_from_secs_f64(seconds);
        journal =
            journal.interval(interval.map_err(|error| invalid("interval", error.to_string()))?);
    }
    if let Some(bytes) = get("limit")?.extract()? {
        journal = journal.limit(bytes);
    }
    if let Some(directory) = get("directory")?.extract::<Option<PathBuf>>()? {
        journal = journal.directory(directory);
    }
    if let Some(directory) = get("working_directory")?.extract::<Option<PathBuf>>()? {
        journal = journal.working_directory(directory);
    }
    Ok(journal.keep_working_file(get("keep_working_file")?.extract()?))
}

/// Reports progress to Python, from any thread. An exception there is printed; it cannot stop the opening.
fn report(tell: &Py<PyAny>, progress: library::RecoveryProgress) {
    Python::try_attach(|py| {
        if let Err(error) = tell.bind(py).call1((progress.parts_done, progress.parts)) {
            error.write_unraisable(py, Some(tell.bind(py)));
        }
    });
}
