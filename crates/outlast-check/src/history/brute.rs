//! The simplest possible checker, to test [`check`](super::check()) against. It tries every choice
//! of which operations without a result took effect, and every order of these and the others, on
//! all keys together. It shares no code with the other checker, and can only handle a few
//! operations.

use super::record::{Answer, Call, Event, History, OpId};
use crate::session::Do;
use std::collections::BTreeMap;

struct Op<'h> {
    begin: usize,
    /// The event of the return, the crash or the end of the history.
    end: usize,
    map: &'h str,
    call: Call,
    answer: Option<&'h Answer>,
}

/// Returns whether some order explains the history. Iterations are ignored.
pub fn is_linearizable(history: &History) -> bool {
    let mut state: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    let mut ops: BTreeMap<OpId, Op<'_>> = BTreeMap::new();
    for (at, event) in history.events.iter().enumerate() {
        match event {
            Event::Initial { map, key, value } => {
                state.insert((map, *key), *value);
            }
            Event::Begin { call: Call::Scan, .. } => {}
            Event::Begin { op, map, call, .. } => {
                let end = usize::MAX;
                ops.insert(*op, Op { begin: at, end, map, call: *call, answer: None });
            }
            Event::End { op, answer } => {
                if let Some(op) = ops.get_mut(op) {
                    (op.end, op.answer) = (at, Some(answer));
                }
            }
            Event::Crash => {
                for op in ops.values_mut().filter(|op| op.end == usize::MAX) {
                    op.end = at;
                }
            }
        }
    }
    let (answered, pending): (Vec<_>, Vec<_>) =
        ops.into_values().partition(|op| op.answer.is_some());
    (0..1_u32 << pending.len()).any(|choice| {
        let chosen = pending.iter().enumerate().filter(|(i, _)| choice >> i & 1 == 1);
        let mut all: Vec<&Op<'_>> = answered.iter().chain(chosen.map(|(_, op)| op)).collect();
        any_order(&mut all, 0, &state)
    })
}

/// Returns whether some order that keeps the first `fixed` operations in place explains the
/// results.
fn any_order(ops: &mut [&Op<'_>], fixed: usize, state: &BTreeMap<(&str, u64), u64>) -> bool {
    if fixed == ops.len() {
        return explains(ops, state.clone());
    }
    for i in fixed..ops.len() {
        ops.swap(fixed, i);
        if any_order(ops, fixed + 1, state) {
            return true;
        }
        ops.swap(fixed, i);
    }
    false
}

fn explains<'h>(ops: &[&Op<'h>], mut state: BTreeMap<(&'h str, u64), u64>) -> bool {
    for (i, op) in ops.iter().enumerate() {
        if ops[i + 1..].iter().any(|later| later.end < op.begin) {
            return false;
        }
        let key = (op.map, op.call.key().unwrap_or_default());
        let before = state.get(&key).copied();
        let new = match op.call {
            Call::Get(_) | Call::Scan => None,
            Call::Change(_, change) => match change {
                Do::Insert(value) if before.is_none() => Some(Some(value)),
                Do::Put(value) => Some(Some(value)),
                Do::Update(value) if before.is_some() => Some(Some(value)),
                Do::Swap(old, value) if before == Some(old) => Some(Some(value)),
                Do::Remove if before.is_some() => Some(None),
                Do::CompareRemove(old) if before == Some(old) => Some(None),
                _ => None,
            },
        };
        match op.answer {
            None | Some(Answer::Records(_)) => {}
            Some(Answer::Value(found)) => {
                if *found != before {
                    return false;
                }
            }
            Some(Answer::Present(present)) => {
                if *present != before.is_some() {
                    return false;
                }
            }
            Some(Answer::Changed { applied, present, before: told }) => {
                if *applied != new.is_some()
                    || present.is_some_and(|p| p != before.is_some())
                    || told.is_some_and(|t| before != Some(t))
                {
                    return false;
                }
            }
        }
        match new {
            Some(Some(value)) => drop(state.insert(key, value)),
            Some(None) => drop(state.remove(&key)),
            None => {}
        }
    }
    true
}
