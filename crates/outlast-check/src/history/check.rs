//! Checks whether a history is strictly linearizable.
//!
//! Linearizability is local (Herlihy and Wing, 1990), so each key is checked by itself. The checker
//! takes the events of one key in order, with the set of all *configurations* that a correct map
//! can be in. A configuration is the key's value, and which of the operations in flight have taken
//! effect. When an operation returns, the checker lets it take effect in each configuration in
//! which it has not yet, after any of the others in flight (Lowe's just-in-time linearization). Its
//! result must fit the value that it finds there. Equal configurations are merged, so the work
//! grows with the length of the history and not with the number of possible orders. If no
//! configuration is left, no order explains the history.
//!
//! At a crash, an operation in flight has taken effect in some configurations and not in others. If
//! it has not, it never will. So the interval of an interrupted operation ends at the crash, and
//! the operation may be left out: strict linearizability (Aguilera and Frølund, 2003).
//!
//! An iteration promises less than a snapshot of the map. A record that is present throughout is
//! reported once, and a reported record was present at some moment. For each key, that is what a
//! lookup of it at some moment of the iteration could have returned. So iterations are checked as
//! lookups of every key that the history names, and also for keys reported twice.

use super::explain;
use super::record::{Answer, Call, Event, History, OpId};
use crate::session::Do;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// The size of what was checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Operations, including iterations.
    pub operations: usize,
    /// Operations that never returned.
    pub pending: usize,
    /// Keys.
    pub keys: usize,
    /// Crashes.
    pub crashes: usize,
}

/// The reason why a history is not linearizable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The map.
    pub map: Arc<str>,
    /// The key.
    pub key: u64,
    /// Whether the key is fine except for what an iteration reported of it.
    pub iteration: bool,
    /// The number of events up to and including the first that cannot be explained.
    pub events: usize,
    /// For people: the operations of the key, drawn, and what can still be explained.
    pub text: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Checks a history, which must be valid.
///
/// # Errors
/// One finding for each key at fault, in the order in which the faults show in the history.
pub fn check(history: &History) -> Result<Figures, Vec<Finding>> {
    let mut findings = Vec::new();
    let mut figures = Figures { operations: history.operations(), ..Figures::default() };
    for event in &history.events {
        match event {
            Event::Crash => figures.crashes += 1,
            Event::Begin { .. } => figures.pending += 1,
            Event::End { .. } => figures.pending -= 1,
            Event::Initial { .. } => {}
        }
    }
    for (map, keys) in KeyHistory::of(history) {
        figures.keys += keys.len();
        for (key, found) in keys {
            findings.extend(check_key(&map, key, &found));
        }
    }
    findings.sort_by_key(|f| f.events);
    if findings.is_empty() { Ok(figures) } else { Err(findings) }
}

fn check_key(map: &Arc<str>, key: u64, history: &KeyHistory) -> Option<Finding> {
    let finding = |iteration, at: usize, text| {
        Some(Finding { map: Arc::clone(map), key, iteration, events: at + 1, text })
    };
    if let Some(twice) = history.twice {
        let text = format!(
            "{map:?}: iteration {} reports key {key} twice\n{}",
            history.ops[twice].op,
            explain::picture(history, history.moments.len())
        );
        return finding(true, history.end_of(twice), text);
    }
    // Check the key's operations together with what each iteration reported of it. Usually nothing
    // is wrong, and this one run is enough.
    run(history, history.moments.len(), true).err()?;
    let whole = history.moments.len();
    let iteration = run(history, whole, false).is_ok();
    // Find the shortest beginning that cannot be explained, by bisection. No history can be
    // explained if its beginning cannot.
    let (mut good, mut bad) = (0, whole);
    while bad - good > 1 {
        let middle = usize::midpoint(good, bad);
        if run(history, middle, iteration).is_ok() { good = middle } else { bad = middle }
    }
    let order = run(history, good, iteration).unwrap_or_default();
    let text = explain::text(map, key, history, iteration, bad, &order);
    finding(iteration, history.moments[bad - 1].at, text)
}

/// An operation on one key. An iteration counts as a lookup of the key.
#[derive(Debug, Clone)]
pub(super) struct KeyOp {
    pub(super) op: OpId,
    pub(super) thread: usize,
    pub(super) call: Call,
    pub(super) answer: Option<Answer>,
    /// Whether this is an iteration's report of the key.
    pub(super) scan: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Begin(usize),
    End(usize),
    Crash,
}

/// An event that concerns one key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Its index in the whole history.
    pub(super) at: usize,
    pub(super) what: What,
}

/// The part of a history that concerns one key.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyHistory {
    pub(super) initial: Option<u64>,
    pub(super) ops: Vec<KeyOp>,
    pub(super) moments: Vec<Moment>,
    /// An iteration that reported the key twice.
    pub(super) twice: Option<usize>,
}

impl KeyHistory {
    fn of(history: &History) -> BTreeMap<Arc<str>, BTreeMap<u64, KeyHistory>> {
        let mut maps: BTreeMap<Arc<str>, BTreeMap<u64, KeyHistory>> = history
            .keys()
            .into_iter()
            .map(|(map, keys)| {
                (map, keys.into_iter().map(|k| (k, KeyHistory::default())).collect())
            })
            .collect();
        let mut answers: HashMap<OpId, &Answer> = HashMap::new();
        for event in &history.events {
            if let Event::End { op, answer } = event {
                answers.insert(*op, answer);
            }
        }
        let mut asked: HashMap<OpId, (&Arc<str>, Call)> = HashMap::new();
        for (at, event) in history.events.iter().enumerate() {
            match event {
                Event::Initial { map, key, value } => {
                    let key = maps.get_mut(map).and_then(|m| m.get_mut(key)).expect("a named key");
                    key.initial = Some(*value);
                }
                Event::Begin { op, thread, map, call } => {
                    asked.insert(*op, (map, *call));
                    let keys = maps.get_mut(map).expect("a named map");
                    let answer = answers.get(op).copied();
                    match call.key() {
                        Some(key) => keys.get_mut(&key).expect("a named key").begin(
                            at,
                            KeyOp {
                                op: *op,
                                thread: *thread,
                                call: *call,
                                answer: answer.cloned(),
                                scan: false,
                            },
                        ),
                        // An iteration that has not ended reports nothing.
                        None => {
                            let Some(Answer::Records(records)) = answer else { continue };
                            let mut said: HashMap<u64, Vec<u64>> = HashMap::new();
                            for (key, value) in records {
                                said.entry(*key).or_default().push(*value);
                            }
                            for (key, found) in &mut *keys {
                                let values = said.get(key).map_or(&[][..], |v| &v[..]);
                                if values.len() > 1 {
                                    found.twice.get_or_insert(found.ops.len());
                                }
                                found.begin(
                                    at,
                                    KeyOp {
                                        op: *op,
                                        thread: *thread,
                                        call: Call::Get(*key),
                                        answer: Some(Answer::Value(values.first().copied())),
                                        scan: true,
                                    },
                                );
                            }
                        }
                    }
                }
                Event::End { op, .. } => {
                    let (map, call) = asked[op];
                    let keys = maps.get_mut(map).expect("a named map");
                    match call.key() {
                        Some(key) => keys.get_mut(&key).expect("a named key").end(at, *op),
                        None => keys.values_mut().for_each(|key| key.end(at, *op)),
                    }
                }
                Event::Crash => {
                    for key in maps.values_mut().flat_map(BTreeMap::values_mut) {
                        key.moments.push(Moment { at, what: What::Crash });
                    }
                }
            }
        }
        maps
    }

    fn begin(&mut self, at: usize, op: KeyOp) {
        self.moments.push(Moment { at, what: What::Begin(self.ops.len()) });
        self.ops.push(op);
    }

    fn end(&mut self, at: usize, op: OpId) {
        // The operations in flight are among the last, because each thread has at most one.
        if let Some(index) = self.ops.iter().rposition(|o| o.op == op) {
            self.moments.push(Moment { at, what: What::End(index) });
        }
    }

    fn end_of(&self, op: usize) -> usize {
        let ends = |m: &&Moment| m.what == What::End(op);
        self.moments.iter().find(ends).map_or(0, |m| m.at)
    }
}

/// Returns the value after an operation, or `None` if its result does not fit the value before.
pub(super) fn effect(
    call: Call,
    answer: Option<&Answer>,
    before: Option<u64>,
) -> Option<Option<u64>> {
    match (call, answer) {
        (Call::Get(_), Some(Answer::Value(found))) => (*found == before).then_some(before),
        (Call::Get(_), Some(Answer::Present(present))) => {
            (*present == before.is_some()).then_some(before)
        }
        (Call::Change(_, change), Some(Answer::Changed { applied, present, before: told })) => {
            let (applies, after) = Do::on(change, before);
            let fits = *applied == applies
                && present.is_none_or(|present| present == before.is_some())
                && told.is_none_or(|told| Some(told) == before);
            fits.then_some(after)
        }
        (Call::Change(_, change), None) => Some(change.on(before).1),
        _ => Some(before),
    }
}

/// A value, and a bit for each operation in flight that has taken effect.
type Configuration = (Option<u64>, u64);

/// Orders of operations with shared prefixes. An entry is an operation and the order before it.
#[derive(Default)]
struct Orders(Vec<(usize, usize)>);

impl Orders {
    fn then(&mut self, order: usize, op: usize) -> usize {
        self.0.push((op, order));
        self.0.len()
    }

    fn list(&self, mut order: usize) -> Vec<usize> {
        let mut ops = Vec::new();
        while order != 0 {
            let (op, before) = self.0[order - 1];
            ops.push(op);
            order = before;
        }
        ops.reverse();
        ops
    }
}

struct Search<'h> {
    history: &'h KeyHistory,
    /// The operations in flight, by bit.
    open: Vec<Option<usize>>,
    /// Whether each operation has returned within the moments looked at.
    answered: Vec<bool>,
    configurations: HashMap<Configuration, usize>,
    orders: Orders,
}

/// Finds an order of the operations that explains the first `length` moments, or fails if there is
/// none. Operations that have not returned by then may or may not have taken effect. Iterations
/// count only if `scans` is set.
fn run(history: &KeyHistory, length: usize, scans: bool) -> Result<Vec<usize>, ()> {
    let moments = &history.moments[..length];
    let mut answered = vec![false; history.ops.len()];
    for moment in moments {
        if let What::End(op) = moment.what {
            answered[op] = true;
        }
    }
    let mut search = Search {
        history,
        open: Vec::new(),
        answered,
        configurations: HashMap::from([((history.initial, 0), 0)]),
        orders: Orders::default(),
    };
    for moment in moments {
        match moment.what {
            What::Begin(op) | What::End(op) if history.ops[op].scan && !scans => {}
            What::Begin(op) => search.begin(op),
            What::End(op) => search.end(op),
            What::Crash => search.crash(),
        }
        if search.configurations.is_empty() {
            return Err(());
        }
    }
    let order = search.configurations.values().copied().min().unwrap_or(0);
    Ok(search.orders.list(order))
}

impl Search<'_> {
    fn begin(&mut self, op: usize) {
        match self.open.iter().position(Option::is_none) {
            Some(bit) => self.open[bit] = Some(op),
            None => self.open.push(Some(op)),
        }
        assert!(self.open.len() <= 64, "at most 64 operations of one key in flight");
    }

    /// Lists the configurations that one more operation leads to from this one.
    fn next(&self, (value, done): Configuration) -> Vec<(usize, usize, Configuration)> {
        let mut found = Vec::new();
        for (bit, op) in self.open.iter().enumerate() {
            let Some(op) = *op else { continue };
            if done & 1 << bit != 0 {
                continue;
            }
            let asked = &self.history.ops[op];
            let answer = asked.answer.as_ref().filter(|_| self.answered[op]);
            // A lookup without a result explains nothing.
            if answer.is_none() && matches!(asked.call, Call::Get(_)) {
                continue;
            }
            if let Some(after) = effect(asked.call, answer, value) {
                found.push((bit, op, (after, done | 1 << bit)));
            }
        }
        found
    }

    fn end(&mut self, op: usize) {
        let bit = self.open.iter().position(|o| *o == Some(op)).expect("it has begun");
        let mut after = HashMap::new();
        let mut seen: HashSet<Configuration> = HashSet::new();
        let mut stack: Vec<_> = std::mem::take(&mut self.configurations).into_iter().collect();
        // Sort, so that the order found does not depend on that of the hash map.
        stack.sort_unstable();
        while let Some((configuration, order)) = stack.pop() {
            if !seen.insert(configuration) {
                continue;
            }
            let (value, done) = configuration;
            if done & 1 << bit != 0 {
                after.entry((value, done & !(1 << bit))).or_insert(order);
                continue;
            }
            for (_, next, configuration) in self.next(configuration) {
                let order = self.orders.then(order, next);
                stack.push((configuration, order));
            }
        }
        self.configurations = after;
        self.open[bit] = None;
    }

    fn crash(&mut self) {
        let mut after = HashMap::new();
        let mut seen: HashSet<Configuration> = HashSet::new();
        let mut stack: Vec<_> = std::mem::take(&mut self.configurations).into_iter().collect();
        stack.sort_unstable();
        while let Some((configuration, order)) = stack.pop() {
            if !seen.insert(configuration) {
                continue;
            }
            after.entry((configuration.0, 0)).or_insert(order);
            for (_, next, configuration) in self.next(configuration) {
                let order = self.orders.then(order, next);
                stack.push((configuration, order));
            }
        }
        self.configurations = after;
        self.open.clear();
    }
}
