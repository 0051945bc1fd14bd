//! Generates small correct and incorrect histories, to test checkers.
//!
//! The generator simulates a machine with a few threads: operations begin, take effect at one
//! moment and return, and crashes interrupt them. In most histories the machine makes one mistake
//! that real ones have made: it loses an effect, returns an earlier state, undoes a returned
//! operation at a crash, lets an interrupted operation take effect after the crash, or just returns
//! something else. The mistake need not show in the history, so callers must ask a checker.

use super::record::{Answer, Call, Event, History};
use crate::random::Random;
use crate::session::Do;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// An effect does not happen, although the result says it did.
    Lost,
    /// A result is taken from an earlier state.
    Stale,
    /// A crash undoes an operation that had returned.
    TakenBack,
    /// An operation that a crash interrupted takes effect after it.
    Late,
    /// A result is wrong in another way.
    Other,
}

struct Running {
    op: u64,
    call: Call,
    answer: Option<Answer>,
}

/// The largest number of operations in a history.
const OPS: u64 = 7;
const KEYS: u64 = 2;
const VALUES: u64 = 4;

/// Generates the history of a seed.
pub fn history(seed: u64) -> History {
    let mut random = Random::new(seed);
    // Most histories get a mistake, because some are correct in spite of it.
    let wrong = match random.below(100) {
        0..5 => Wrong::Nothing,
        5..30 => Wrong::Lost,
        30..55 => Wrong::Stale,
        55..70 => Wrong::TakenBack,
        70..80 => Wrong::Late,
        _ => Wrong::Other,
    };
    Machine {
        wrong,
        random,
        events: Vec::new(),
        state: BTreeMap::new(),
        earlier: Vec::new(),
        running: BTreeMap::new(),
        late: None,
        next: 0,
        map: "m".into(),
    }
    .run()
}

struct Machine {
    wrong: Wrong,
    random: Random,
    events: Vec<Event>,
    state: BTreeMap<u64, u64>,
    /// Earlier states.
    earlier: Vec<BTreeMap<u64, u64>>,
    running: BTreeMap<usize, Running>,
    /// An effect that waits for the crash to be over.
    late: Option<Call>,
    next: u64,
    map: Arc<str>,
}

impl Machine {
    fn run(mut self) -> History {
        for key in 0..KEYS {
            if self.random.below(3) == 0 {
                let value = 1 + self.random.below(VALUES);
                self.state.insert(key, value);
                self.events.push(Event::Initial { map: Arc::clone(&self.map), key, value });
            }
        }
        let threads = 2 + self.random.below(2) as usize;
        let crashes = self.random.below(3).min(1);
        let crash_at = self.random.below(OPS);
        let mut eras = 1 + crashes;
        // Leave operations for the reads of every key at the end.
        let asked = OPS - KEYS - self.random.below(3);
        while self.next < asked || !self.running.is_empty() {
            if eras == 2 && self.next >= crash_at.min(asked - 1) && self.random.below(3) == 0 {
                self.crash();
                eras = 1;
            }
            let thread = self.random.below(threads as u64) as usize;
            // After the crash there are other threads.
            self.turn(thread + if eras == 1 { 4 } else { 0 }, asked);
            if eras == 1 {
                // The threads from before the crash are dead. Without a crash there are none.
                self.running.retain(|thread, _| *thread >= 4);
            }
        }
        for key in 0..KEYS {
            self.begin(9, Call::Get(key));
            self.effect(9);
            self.end(9);
        }
        History { events: self.events }
    }

    fn turn(&mut self, thread: usize, asked: u64) {
        match self.running.get(&thread) {
            None if self.next < asked => {
                let call = self.call();
                self.begin(thread, call);
            }
            None => {}
            Some(Running { answer: None, .. }) => self.effect(thread),
            Some(_) => self.end(thread),
        }
    }

    fn call(&mut self) -> Call {
        let key = self.random.below(KEYS);
        let value = 1 + self.random.below(VALUES);
        match self.random.below(8) {
            0 | 1 => Call::Get(key),
            2 => Call::Change(key, Do::Insert(value)),
            3 => Call::Change(key, Do::Put(value)),
            4 => Call::Change(key, Do::Update(value)),
            5 => {
                let old = self.state.get(&key).copied().unwrap_or(1);
                Call::Change(key, Do::Swap(old, value))
            }
            6 => {
                let old = self.state.get(&key).copied().unwrap_or(1);
                Call::Change(key, Do::CompareRemove(old))
            }
            _ => Call::Change(key, Do::Remove),
        }
    }

    fn begin(&mut self, thread: usize, call: Call) {
        let op = self.next;
        self.next += 1;
        self.running.insert(thread, Running { op, call, answer: None });
        self.events.push(Event::Begin { op, thread, map: Arc::clone(&self.map), call });
        if self.late.is_some() && self.random.below(2) == 0 {
            let call = self.late.take();
            call.into_iter().for_each(|call| self.apply(call));
        }
    }

    fn apply(&mut self, call: Call) {
        if let Call::Change(key, change) = call {
            self.earlier.push(self.state.clone());
            match change.on(self.state.get(&key).copied()).1 {
                Some(value) => self.state.insert(key, value),
                None => self.state.remove(&key),
            };
        }
    }

    fn spoils(&mut self, wrong: Wrong) -> bool {
        self.wrong == wrong && self.random.below(4) != 0
    }

    fn effect(&mut self, thread: usize) {
        let call = self.running[&thread].call;
        let stale = self.spoils(Wrong::Stale);
        let seen = match self.earlier.len() as u64 {
            n if stale && n > 0 => self.earlier[self.random.below(n) as usize].clone(),
            _ => self.state.clone(),
        };
        let key = call.key().unwrap_or_default();
        let before = seen.get(&key).copied();
        let other = self.spoils(Wrong::Other);
        let answer = match call {
            Call::Get(_) if thread % 2 == 1 => Answer::Present(before.is_some() != other),
            Call::Get(_) | Call::Scan if other => {
                Answer::Value(Some(self.random.below(VALUES + 1)).filter(|v| *v != 0))
            }
            Call::Get(_) | Call::Scan => Answer::Value(before),
            Call::Change(_, change) => {
                let applied = change.on(before).0 != other;
                Answer::Changed { applied, present: Some(before.is_some()), before }
            }
        };
        if !self.spoils(Wrong::Lost) {
            self.apply(call);
        }
        if let Some(running) = self.running.get_mut(&thread) {
            running.answer = Some(answer);
        }
    }

    fn end(&mut self, thread: usize) {
        if let Some(Running { op, answer: Some(answer), .. }) = self.running.remove(&thread) {
            self.events.push(Event::End { op, answer });
        }
    }

    fn crash(&mut self) {
        if self.spoils(Wrong::TakenBack) {
            self.state = self.earlier.pop().unwrap_or_default();
        }
        let interrupted = std::mem::take(&mut self.running);
        if self.wrong == Wrong::Late {
            let waits = |r: &&Running| r.answer.is_none() && matches!(r.call, Call::Change(..));
            self.late = interrupted.values().find(waits).map(|r| r.call);
        }
        self.events.push(Event::Crash);
    }
}
