//! Iterators over records.

use crate::fail::{Fail, Result};
use crate::map::Codecs;
use library::{RawIter, RawRange};
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// What an iterator returns of each record.
#[derive(Clone, Copy)]
pub enum Part {
    Keys,
    Values,
    Items,
    /// Items, and damaged places as exceptions.
    Salvaged,
}

impl Part {
    /// Returns the part of this name; items, if there is none.
    pub fn named(name: &str) -> Part {
        match name {
            "keys" => Part::Keys,
            "values" => Part::Values,
            _ => Part::Items,
        }
    }
}

/// Where records come from.
pub enum Source {
    All(RawIter),
    Forward(RawRange),
    Backward(RawRange),
    /// Goes on after damage.
    Salvage(RawIter),
}

impl Source {
    fn next(&mut self) -> Option<Record> {
        match self {
            Source::All(records) | Source::Salvage(records) => records.next(),
            Source::Forward(records) => records.next(),
            Source::Backward(records) => records.next_back(),
        }
    }
}

type Record = library::Result<(Vec<u8>, Vec<u8>)>;

/// Records that are read ahead, at most.
const AHEAD: usize = 256;
/// Their bytes, about.
const AHEAD_BYTES: usize = 1 << 20;

/// An iterator over the records of a map, or over a range of them.
#[pyclass(frozen, module = "outlast._outlast")]
pub struct Records {
    codecs: Arc<Codecs>,
    part: Part,
    state: Mutex<State>,
}

struct State {
    source: Option<Source>,
    ready: VecDeque<Record>,
}

impl State {
    /// Reads ahead. The first time, only a few records, because a loop may end after them.
    fn fill(&mut self, wanted: usize) {
        let Some(source) = &mut self.source else { return };
        let mut bytes = 0;
        while self.ready.len() < wanted && bytes < AHEAD_BYTES {
            let Some(record) = source.next() else {
                self.source = None;
                return;
            };
            let is_end = record.is_err() && !matches!(source, Source::Salvage(_));
            bytes += record.as_ref().map_or(0, |(key, value)| key.len() + value.len());
            self.ready.push_back(record);
            if is_end {
                self.source = None;
                return;
            }
        }
    }
}

impl Records {
    pub fn new(source: Source, codecs: Arc<Codecs>, part: Part) -> Records {
        let state = State { source: Some(source), ready: VecDeque::new() };
        Records { codecs, part, state: Mutex::new(state) }
    }

    fn next_record(&self, py: Python<'_>) -> Option<Record> {
        // Nobody waits for this lock while attached, because that thread may need to attach to go on.
        let Ok(mut state) = self.state.try_lock() else {
            return py.detach(|| {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.fill(1);
                state.ready.pop_front()
            });
        };
        if state.ready.is_empty() && state.source.is_some() {
            let state = &mut *state;
            py.detach(|| state.fill(AHEAD));
        }
        state.ready.pop_front()
    }
}

#[pymethods]
impl Records {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> Result<Option<Bound<'py, PyAny>>> {
        let Some(record) = self.next_record(py) else { return Ok(None) };
        let (key, value) = match record {
            Ok(record) => record,
            Err(error @ library::Error::Damaged(_)) if matches!(self.part, Part::Salvaged) => {
                return Ok(Some(
                    PyErr::from(Fail::Library(error)).into_value(py).into_bound(py).into_any(),
                ));
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Some(match self.part {
            Part::Keys => self.codecs.key.decode(py, &key)?,
            Part::Values => self.codecs.value.decode(py, &value)?,
            Part::Items | Part::Salvaged => {
                let record =
                    (self.codecs.key.decode(py, &key)?, self.codecs.value.decode(py, &value)?);
                record.into_pyobject(py)?.into_any()
            }
        }))
    }
}
