//! What a history is made of.

use crate::session::Do;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Names an operation in its history.
pub type OpId = u64;

/// What is asked of a map. Keys and values by number, see [`codec`](crate::codec).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// The value of a key.
    Get(u64),
    /// A change of a key.
    Change(u64, Do),
    /// All records, by iteration.
    Scan,
}

impl Call {
    /// The key, if it is about one.
    pub fn key(self) -> Option<u64> {
        match self {
            Call::Get(key) | Call::Change(key, _) => Some(key),
            Call::Scan => None,
        }
    }
}

/// What was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To a get.
    Value(Option<u64>),
    /// To a change. What the interface did not say is `None`.
    Changed {
        /// Whether it was applied.
        applied: bool,
        /// Whether the key was present before.
        present: Option<bool>,
        /// The value before; `None` also where there was none.
        before: Option<u64>,
    },
    /// To an iteration, once it has ended: every record that it reported.
    Records(Vec<(u64, u64)>),
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// When the history begins, the map holds this record. Before all other events.
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
        /// Names it.
        op: OpId,
        /// Who asks.
        thread: usize,
        /// The map that is asked.
        map: Arc<str>,
        /// What is asked.
        call: Call,
    },
    /// An operation answers.
    End {
        /// Which.
        op: OpId,
        /// What.
        answer: Answer,
    },
    /// All threads die, and the map is opened again. What had not answered never will.
    Crash,
}

/// Events in the order in which they happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The events.
    pub events: Vec<Event>,
}

impl History {
    /// Operations that begin, iterations included.
    pub fn operations(&self) -> usize {
        self.events.iter().filter(|e| matches!(e, Event::Begin { .. })).count()
    }

    /// Every map, and the keys of it that are named.
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

    /// Finds fault with what is no history: an answer without a question, a question that
    /// is answered twice or with something else, a thread that does two things at a time.
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
                        (Some((_, Call::Get(_))), Answer::Value(_))
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

/// A value, or that there is none.
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
            Call::Scan => f.write_str("iteration"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Value(value) => write!(f, "{}", Shown(*value)),
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
