//! The contents of a pool, by numbers, and the faults that a check finds.

use outlast::RecordForm;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A finding: something breaks the contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

impl From<outlast::Error> for Fault {
    fn from(error: outlast::Error) -> Self {
        Fault(format!("unexpected error: {error}"))
    }
}

impl From<Box<outlast::Error>> for Fault {
    fn from(error: Box<outlast::Error>) -> Self {
        Fault::from(*error)
    }
}

/// The result of a check: a value, or a finding.
pub type Checked<T = ()> = Result<T, Fault>;

/// Fails with a fault unless `holds`.
pub fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Fault(what())) }
}

/// Values by key. A copy shares whatever it does not change, so each step of a run can keep its
/// own.
pub type Records = imbl::OrdMap<u64, u64>;

/// The contents of one map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapState {
    /// The record form.
    pub form: RecordForm,
    /// The records.
    pub records: Records,
}

/// The contents of a pool: its maps by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// The maps.
    pub maps: BTreeMap<String, MapState>,
}

impl State {
    /// Counts the records of all maps.
    pub fn records(&self) -> u64 {
        self.maps.values().map(|m| m.records.len() as u64).sum()
    }

    /// Describes how `found` differs from this state, for people.
    pub fn difference(&self, found: &State) -> String {
        let mut lines = Vec::new();
        for (name, map) in &self.maps {
            match found.maps.get(name) {
                None => lines.push(format!("map {name:?} is missing")),
                Some(other) => differ(name, map, other, &mut lines),
            }
        }
        for name in found.maps.keys().filter(|n| !self.maps.contains_key(*n)) {
            lines.push(format!("map {name:?} should not be there"));
        }
        if lines.is_empty() { "nothing".into() } else { lines.join("; ") }
    }
}

/// Decides whether a pool may hold what it holds after a crash.
pub trait Judge: Sync {
    /// Fails if these contents are not allowed.
    fn judge(&self, found: &State) -> Checked;

    /// Returns whether there may be no pool at all.
    fn may_be_absent(&self) -> bool {
        false
    }

    /// Returns a number that differs between judges of one run that allow different contents.
    fn key(&self) -> u64;
}

/// Allows only these contents.
impl Judge for State {
    fn judge(&self, found: &State) -> Checked {
        ensure(self == found, || format!("contents: {}", self.difference(found)))
    }

    fn key(&self) -> u64 {
        0
    }
}

/// Allows any of several states. `None` stands for no pool at all.
#[derive(Debug, Clone, Default)]
pub struct Allowed(pub Vec<Option<Arc<State>>>);

impl Judge for Allowed {
    fn judge(&self, found: &State) -> Checked {
        let states = self.0.iter().flatten();
        ensure(states.clone().any(|state| **state == *found), || {
            let ways: Vec<_> = states.map(|s| s.difference(found)).collect();
            format!("contents: {}", ways.join(" -- or -- "))
        })
    }

    fn may_be_absent(&self) -> bool {
        self.0.contains(&None)
    }

    fn key(&self) -> u64 {
        // Steps that change nothing share one state, so its address identifies it.
        let address = |s: &Option<Arc<State>>| s.as_ref().map_or(1, |s| Arc::as_ptr(s).addr());
        self.0.iter().map(address).fold(0, |key: u64, at| key.rotate_left(23) ^ at as u64)
    }
}

fn differ(name: &str, expected: &MapState, found: &MapState, lines: &mut Vec<String>) {
    if expected.form != found.form {
        lines.push(format!("map {name:?} is {}, not {}", found.form, expected.form));
    }
    for (key, value) in &expected.records {
        match found.records.get(key) {
            Some(other) if other == value => {}
            Some(other) => lines.push(format!("{name:?}: key {key} has {other}, not {value}")),
            None => lines.push(format!("{name:?}: key {key} (value {value}) is missing")),
        }
    }
    for (key, value) in found.records.iter().filter(|(k, _)| !expected.records.contains_key(*k)) {
        lines.push(format!("{name:?}: key {key} (value {value}) should be absent"));
    }
}
