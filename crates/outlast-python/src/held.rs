//! Handles of the library that Python objects hold.

use crate::fail::Result;
use pyo3::Python;
use std::ops::Deref;

/// A handle. Dropping the last handle of a pool closes it, which can wait for the disk and for the pool's threads. So
/// it is dropped detached from the interpreter: one of these threads may want to report progress to it.
pub struct Held<T: Send>(Option<T>);

impl<T: Send> Held<T> {
    pub fn new(handle: T) -> Held<T> {
        Held(Some(handle))
    }

    /// Runs something on the handle, detached from the interpreter.
    pub fn detached<R: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&T) -> library::Result<R> + Send,
    ) -> Result<R>
    where
        T: Sync,
    {
        let handle: &T = self;
        Ok(py.detach(|| run(handle))?)
    }
}

impl<T: Send> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is taken only to be dropped")
    }
}

impl<T: Send> Drop for Held<T> {
    fn drop(&mut self) {
        let mut handle = self.0.take();
        // The interpreter may be shutting down. Nobody else needs it then.
        Python::try_attach(|py| {
            let handle = handle.take();
            py.detach(|| drop(handle));
        });
        drop(handle);
    }
}
