//! Makes the scripts of a workload's threads from a seed.

use super::{Keys, value_of};
use crate::history::Call;
use crate::parts::workload::{Aim, Before, Concurrent, Workload};
use crate::random::Random;
use crate::schedule::act::Act;
use crate::session::Do;

/// The state of making one run's scripts.
pub(super) struct Maker<'w> {
    pub(super) workload: &'w Workload,
    pub(super) random: Random,
    pub(super) keys: Keys,
    pub(super) fill: u64,
    /// The record that the workload works on.
    pub(super) target: u64,
    pub(super) moved: Vec<u64>,
    pub(super) value: u64,
}

impl Maker<'_> {
    pub(super) fn scripts(&mut self) -> Vec<Vec<Act>> {
        if let Some(scripts) = self.closing() {
            return scripts;
        }
        let concurrent = self.workload.concurrent;
        if matches!(self.workload.aim, Aim::Duel | Aim::Race | Aim::Moved) {
            let mut scripts = self.duel();
            if concurrent == Concurrent::Background {
                let steps = 1 + self.random.below(2);
                scripts.push((0..steps).map(|_| Act::Background).collect());
            }
            return scripts;
        }
        if concurrent == Concurrent::MapsFreed {
            // The thread that drops the map leaves the freeing to another thread.
            let change = vec![Act::Call(self.call())];
            let maps = vec![Act::CreateMap(1), Act::DropHeld(1), Act::CreateMap(0)];
            let steps = vec![Act::Background; 2 + self.random.below(3) as usize];
            return vec![maps, steps, change];
        }
        let busy = concurrent != Concurrent::Nothing;
        let threads = 2 + self.random.below(if busy { 2 } else { 3 });
        let mut scripts = Vec::new();
        for thread in 0..threads {
            let count = 2 + self.random.below(if threads > 2 { 3 } else { 5 });
            let mut script: Vec<Act> = (0..count).map(|_| Act::Call(self.call())).collect();
            if thread == 0 && self.workload.before != Before::Nothing {
                // The tested operation does not always come first.
                let at = self.random.below(2) as usize;
                let value = self.fresh();
                script[at] = Act::Call(self.work(value));
            }
            scripts.push(script);
        }
        if busy {
            let count = 2 + self.random.below(3);
            scripts.push((0..count).map(|_| self.concurrent(concurrent)).collect());
        }
        if concurrent == Concurrent::Close {
            // One close is enough.
            if let Some(last) = scripts.last_mut() {
                last.truncate(1);
            }
        }
        scripts
    }

    /// Makes two or three threads with one or two operations each, on one key.
    pub(super) fn duel(&mut self) -> Vec<Vec<Act>> {
        let races = self.workload.aim == Aim::Race;
        let number = match self.random.below(4) {
            _ if races => self.target,
            0 => self.target,
            1 => self.random.below(self.fill.max(1)),
            _ => self.some_moved().unwrap_or(self.fill - 1),
        };
        let key = self.key(number);
        let threads = 2 + self.random.below(2);
        let mut scripts = Vec::new();
        for thread in 0..threads {
            let value = self.fresh();
            let first = if races {
                let put = self.random.below(3) == 0;
                Call::Change(key, if put { Do::Put(value) } else { Do::Insert(value) })
            } else if thread == 0 && self.workload.before != Before::Nothing {
                // The tested operation.
                self.work(value)
            } else if thread == threads - 1 {
                Call::Get(key)
            } else {
                let change = match self.random.below(6) {
                    0 => Do::Insert(value),
                    1 => Do::Put(value),
                    2 => Do::Update(value),
                    3 => Do::Swap(value_of(number), value),
                    4 => Do::CompareRemove(value_of(number)),
                    _ => Do::Remove,
                };
                Call::Change(key, change)
            };
            let mut script = vec![Act::Call(first)];
            match self.random.below(6) {
                0 | 1 => script.push(Act::Call(Call::Get(key))),
                2 if races => script.push(Act::Call(Call::Change(key, Do::Remove))),
                _ => {}
            }
            scripts.push(script);
        }
        scripts
    }

    /// Returns the tested operation.
    pub(super) fn work(&self, value: u64) -> Call {
        let change = if self.workload.emptied { Do::Remove } else { Do::Insert(value) };
        Call::Change(self.key(self.target), change)
    }

    /// Draws one of the records that the next insert moves.
    pub(super) fn some_moved(&mut self) -> Option<u64> {
        let n = self.random.below(self.moved.len().max(1) as u64);
        self.moved.get(n as usize).copied()
    }

    pub(super) fn concurrent(&mut self, concurrent: Concurrent) -> Act {
        match concurrent {
            Concurrent::Nothing => Act::Call(self.call()),
            Concurrent::Scan if self.random.below(3) != 0 => Act::Call(Call::Scan),
            Concurrent::Scan => Act::Call(self.call()),
            Concurrent::BackgroundAndScan if self.random.below(3) == 0 => Act::Call(Call::Scan),
            Concurrent::Background | Concurrent::BackgroundAndScan => Act::Background,
            Concurrent::Sync if self.random.below(2) == 0 => Act::Sync,
            Concurrent::Batch if self.random.below(2) == 0 => {
                let number = match self.random.below(2) {
                    0 => self.target,
                    _ => self.random.below(self.fill.max(1)),
                };
                Act::Batch(self.key(number), self.fresh())
            }
            Concurrent::BatchIf => {
                // Others insert the target, with such values.
                let number = self.some_number();
                let new = self.fresh();
                let old = match self.random.below(2) {
                    0 => value_of(number),
                    _ => new - 1 - self.random.below(8),
                };
                Act::BatchIf(self.key(number), old, new)
            }
            Concurrent::Sync | Concurrent::Batch => Act::Call(self.call()),
            Concurrent::Close => Act::Close,
            Concurrent::Reopen | Concurrent::Hold | Concurrent::HoldDropped => {
                unreachable!("see `closing`")
            }
            Concurrent::MapsFreed => Act::Background,
            Concurrent::Maps => {
                let n = self.random.below(2);
                if self.random.below(2) == 0 { Act::CreateMap(n) } else { Act::DropMap(n) }
            }
            Concurrent::Removals => {
                let number = self.random.below(self.fill.max(1));
                Act::Call(Call::Change(self.key(number), Do::Remove))
            }
        }
    }

    pub(super) fn key(&self, number: u64) -> u64 {
        self.keys.key(number)
    }

    pub(super) fn fresh(&mut self) -> u64 {
        self.value += 1;
        self.value
    }

    /// Draws the number of a record: often that of the next insert or one next to it, otherwise one
    /// that is likely to be present.
    pub(super) fn some_number(&mut self) -> u64 {
        match self.random.below(8) {
            _ if self.workload.aim == Aim::OneKey && self.random.below(5) != 0 => self.target,
            _ if self.workload.aim == Aim::Last && self.random.below(3) != 0 => self.fill - 1,
            0..4 => self.target,
            4 => self.target + 1,
            5 => self.target.saturating_sub(1),
            6 => 0,
            _ => self.random.below(self.fill + 1),
        }
    }

    pub(super) fn call(&mut self) -> Call {
        if self.workload.aim == Aim::Apart {
            let value = self.fresh();
            let some = self.random.below(self.fill);
            let (number, change) = match self.random.below(4) {
                0..2 => (self.fill + self.random.below(8), Do::Insert(value)),
                2 => (some, Do::Remove),
                _ => (self.some_moved().unwrap_or(some), Do::Remove),
            };
            return Call::Change(self.key(number), change);
        }
        let number = self.some_number();
        let key = self.key(number);
        let value = self.fresh();
        match self.random.below(100) {
            0..22 => Call::Get(key),
            22..44 => Call::Change(key, Do::Insert(value)),
            44..59 => Call::Change(key, Do::Put(value)),
            59..71 => Call::Change(key, Do::Update(value)),
            71..80 => {
                // Expect a value that the key may well have.
                let expected = match self.random.below(2) {
                    0 => value_of(number),
                    _ => value - 1 - self.random.below(4),
                };
                Call::Change(key, Do::Swap(expected, value))
            }
            80..86 => {
                let expected = match value % 5 {
                    0 => value_of(number),
                    back => value - back,
                };
                Call::Change(key, Do::CompareRemove(expected))
            }
            86..96 => Call::Change(key, Do::Remove),
            _ => Call::Scan,
        }
    }
}
