//! The events that a history consists of.

use crate::session::Do;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The id of an operation in its history.
pub type OpId = u64;

/// A call to a map. Keys and values are numbers, see [`codec`](crate::codec).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Looks up a key.
    Get(u64),
    /// Changes a key.
    Change(u64, Do),
    /// Iterates over all records.
    Scan,
}

impl Call {
    /// Returns the key, if the call concerns one.
    pub fn key(self) -> Option<u64> {
        match self {
            Call::Get(key) | Call::Change(key, _) => Some(key),
            Call::Scan => None,
        }
    }
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The result of a get.
    Value(Option<u64>),
    /// Whether a key is present, from a lookup that does not read its value.
    Present(bool),
    /// The result of a change. `None` stands for what the interface does not report.
    Changed {
        /// Whether the change was applied.
        applied: bool,
        /// Whether the key was present before.
        present: Option<bool>,
        /// The value before. Also `None` if the key was absent.
        before: Option<u64>,
    },
    /// The result of an iteration that has ended: every record it reported.
    Records(Vec<(u64, u64)>),
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The map holds this record when the history begins. Comes before all other events.
    Initial {
        /// The map.
        map: Arc<str>,
        /// The key.
        key: u64,
        /// Its value.
        value: u64,
    },
    /// An operation begins.
    Begin {
        /// Its id.
        op: OpId,
        /// The thread that calls.
        thread: usize,
        /// The map that is called.
        map: Arc<str>,
        /// The call.
        call: Call,
    },
    /// An operation returns.
    End {
        /// Its id.
        op: OpId,
        /// Its result.
        answer: Answer,
    },
    /// All threads die, and the map is opened again. Operations in flight never return.
    Crash,
}

/// Events in the order in which they happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The events.
    pub events: Vec<Event>,
}

impl History {
    /// Counts the operations that begin, including iterations.
    pub fn operations(&self) -> usize {
        self.events.iter().filter(|e| matches!(e, Event::Begin { .. })).count()
    }

    /// Lists every map, and the keys of it that the history names.
    pub fn keys(&self) -> BTreeMap<Arc<str>, BTreeSet<u64>> {
        let mut maps: BTreeMap<Arc<str>, BTreeSet<u64>> = BTreeMap::new();
        let mut scans: BTreeMap<OpId, &Arc<str>> = BTreeMap::new();
        for event in &self.events {
            match event {
                Event::Initial { map, key, .. } => {
                    maps.entry(Arc::clone(map)).or_default().insert(*key);
                }
                Event::Begin { map, call, op, .. } => {
                    maps.entry(Arc::clone(map)).or_default().extend(call.key());
                    if *call == Call::Scan {
                        scans.insert(*op, map);
                    }
                }
                Event::End { op, answer: Answer::Records(records) } => {
                    if let Some(map) = scans.get(op) {
                        let keys = records.iter().map(|r| r.0);
                        maps.entry(Arc::clone(map)).or_default().extend(keys);
                    }
                }
                Event::End { .. } | Event::Crash => {}
            }
        }
        maps
    }

    /// Checks that the events form a history: no operation returns without having begun, twice, or
    /// with the wrong kind of result, and no thread runs two operations at a time.
    ///
    /// # Errors
    /// The event, and what is wrong with it.
    pub fn validate(&self) -> Result<(), String> {
        let mut open: BTreeMap<OpId, (usize, Call)> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut started = false;
        for (i, event) in self.events.iter().enumerate() {
            let wrong = |what: &str| Err(format!("event {}: {what}", i + 1));
            match event {
                Event::Initial { .. } if started => return wrong("an initial record, too late"),
                Event::Initial { .. } => continue,
                Event::Begin { op, thread, call, .. } => {
                    if !seen.insert(*op) {
                        return wrong("this operation has begun before");
                    }
                    if open.values().any(|(other, _)| other == thread) {
                        return wrong("this thread has not had its answer yet");
                    }
                    open.insert(*op, (*thread, *call));
                }
                Event::End { op, answer } => {
                    let fits = match (open.remove(op), answer) {
                        (None, _) => return wrong("nobody waits for this answer"),
                        (Some((_, Call::Get(_))), Answer::Value(_) | Answer::Present(_))
                        | (Some((_, Call::Change(..))), Answer::Changed { .. })
                        | (Some((_, Call::Scan)), Answer::Records(_)) => true,
                        _ => false,
                    };
                    if !fits {
                        return wrong("an answer to another kind of question");
                    }
                }
                Event::Crash => open.clear(),
            }
            started = true;
        }
        Ok(())
    }
}

/// Displays a value, or that there is none.
pub(super) struct Shown(pub(super) Option<u64>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(f, "{value}"),
            None => f.write_str("none"),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Get(key) => write!(f, "get {key}"),
            Call::Change(key, Do::Insert(value)) => write!(f, "insert {key}: {value}"),
            Call::Change(key, Do::Put(value)) => write!(f, "put {key}: {value}"),
            Call::Change(key, Do::Update(value)) => write!(f, "update {key}: {value}"),
            Call::Change(key, Do::Swap(old, new)) => write!(f, "swap {key}: {old} by {new}"),
            Call::Change(key, Do::Remove) => write!(f, "remove {key}"),
            Call::Change(key, Do::CompareRemove(old)) => write!(f, "remove {key} if {old}"),
            Call::Scan => f.write_str("iteration"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Value(value) => write!(f, "{}", Shown(*value)),
            Answer::Present(true) => f.write_str("present"),
            Answer::Present(false) => f.write_str("absent"),
            Answer::Changed { applied, present, before } => {
                f.write_str(if *applied { "applied" } else { "not applied" })?;
                match (present, before) {
                    (_, Some(value)) => write!(f, ", was {value}"),
                    (Some(true), None) => f.write_str(", was there"),
                    (Some(false), None) => f.write_str(", was absent"),
                    (None, None) => Ok(()),
                }
            }
            Answer::Records(records) => write!(f, "{} records", records.len()),
        }
    }
}
