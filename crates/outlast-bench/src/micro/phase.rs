//! The phases: which operations, on which keys, and what the answers must be.

use crate::form::Hand;
use crate::keys::{self, ABSENT, Draw, Keys, Walk};
use crate::latency::Watch;
use crate::systems::{Setup, System};
use crate::{Fallible, team};
use serde::{Deserialize, Serialize};

/// Keys of one call of `get_many`.
const BATCH: u64 = 16;

/// A phase of a turn, in the order in which they are run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Phase {
    /// The first tenth of the records, not timed.
    Load,
    /// The other nine tenths.
    Insert,
    /// Lookups of keys that are there, drawn with replacement.
    GetHit,
    /// Lookups of keys that were never there.
    GetMiss,
    /// As many lookups of present keys, 16 to a call.
    GetMany,
    /// The same keys as in `get_many`, one to a call.
    Gets,
    /// New values for present keys, drawn with replacement.
    Update,
    /// Half lookups, half updates, of present keys.
    #[serde(rename = "mix_50")]
    #[value(name = "mix_50")]
    Mix50,
    /// 95 of a hundred lookups, the others updates.
    #[serde(rename = "mix_95")]
    #[value(name = "mix_95")]
    Mix95,
    /// 80 of a hundred lookups, the others inserts of new keys.
    MixInsert,
    /// Removal of all records, in another order than that of their insertion.
    Remove,
}

/// In which order a phase comes to its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// One number after the other: keys are a mix of the number, so that is any order.
    Ascending,
    /// Drawn with replacement.
    Drawn,
    /// Each once, in leaps.
    Leaping,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: &'static [Phase] = &[
        Phase::Load,
        Phase::Insert,
        Phase::GetHit,
        Phase::GetMiss,
        Phase::GetMany,
        Phase::Gets,
        Phase::Update,
        Phase::Mix50,
        Phase::Mix95,
        Phase::MixInsert,
        Phase::Remove,
    ];

    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::Insert => "insert",
            Phase::GetHit => "get_hit",
            Phase::GetMiss => "get_miss",
            Phase::GetMany => "get_many",
            Phase::Gets => "gets",
            Phase::Update => "update",
            Phase::Mix50 => "mix_50",
            Phase::Mix95 => "mix_95",
            Phase::MixInsert => "mix_insert",
            Phase::Remove => "remove",
        }
    }

    /// How it comes to its keys.
    pub fn order(self) -> Order {
        match self {
            Phase::Load | Phase::Insert => Order::Ascending,
            Phase::Remove => Order::Leaping,
            _ => Order::Drawn,
        }
    }

    /// Whether a part of it can be run first to warm up, and leaves things as they were.
    pub fn repeatable(self) -> bool {
        !matches!(self, Phase::Load | Phase::Insert | Phase::MixInsert | Phase::Remove)
    }
}

/// A phase with its numbers.
#[derive(Debug, Clone)]
pub(super) struct Work<'s> {
    phase: Phase,
    records: u64,
    operations: u64,
    warm_up: bool,
    keys: Keys,
    setup: &'s Setup,
}

/// An answer that cannot be.
#[cold]
fn wrong(phase: Phase, key: u64, found: impl std::fmt::Debug) -> crate::Failure {
    format!("wrong answer in {}: key {key:#x} gave {found:x?}", phase.name()).into()
}

impl<'s> Work<'s> {
    pub(super) fn new(phase: Phase, records: u64, operations: u64, setup: &'s Setup) -> Self {
        let tenth = records / 10;
        let operations = match phase {
            Phase::Load => tenth,
            Phase::Insert => records - tenth,
            Phase::Remove => records,
            Phase::GetMany | Phase::Gets => operations.next_multiple_of(BATCH),
            _ => operations,
        };
        Work { phase, records, operations, warm_up: false, keys: Keys::new(setup.seed), setup }
    }

    /// A twentieth of it, with other draws.
    pub(super) fn warm_up(&self) -> Self {
        let operations = (self.operations / 20).next_multiple_of(BATCH);
        Work { operations, warm_up: true, ..self.clone() }
    }

    /// How many operations it has; each key of a batch is one.
    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    /// Records that are there when it has ended, if all phases were run.
    pub(super) fn records_after(&self) -> u64 {
        match self.phase {
            Phase::Load => self.operations,
            Phase::Remove => 0,
            Phase::MixInsert => self.records + self.mixed_inserts(),
            _ => self.records,
        }
    }

    fn mixed_inserts(&self) -> u64 {
        self.operations / 5
    }

    /// The draws of a thread: the same for every system, and for `gets` as for `get_many`.
    fn draw(&self, thread: usize) -> Draw {
        let phase = if self.phase == Phase::Gets { Phase::GetMany } else { self.phase };
        Draw::new((thread as u64) << 16 | (phase as u64) << 1 | u64::from(self.warm_up))
    }

    /// Does one thread's share of the work.
    pub(super) fn run<S: System, W: Watch>(
        &self,
        system: &S,
        threads: usize,
        thread: usize,
        watch: &mut W,
    ) -> Fallible {
        let mut hand = self.setup.hand();
        let hand = &mut hand;
        let (first, count) = team::share(self.operations, threads, thread);
        watch.begin();
        match self.phase {
            Phase::Load => self.insert(system, hand, first, count, watch),
            Phase::Insert => {
                self.insert(system, hand, self.records - self.operations + first, count, watch)
            }
            Phase::GetHit => self.get_hit(system, hand, thread, count, watch),
            Phase::GetMiss => self.get_miss(system, hand, thread, count, watch),
            Phase::GetMany | Phase::Gets => {
                let (_, batches) = team::share(self.operations / BATCH, threads, thread);
                self.get_batches(system, hand, thread, batches, watch)
            }
            Phase::Update => self.mixed(system, hand, thread, count, 100, watch),
            Phase::Mix50 => self.mixed(system, hand, thread, count, 50, watch),
            Phase::Mix95 => self.mixed(system, hand, thread, count, 5, watch),
            Phase::MixInsert => {
                let (new, inserts) = team::share(self.mixed_inserts(), threads, thread);
                self.mix_insert(system, hand, thread, (count, self.records + new, inserts), watch)
            }
            Phase::Remove => self.remove(system, hand, first, count, watch),
        }
    }

    fn insert<S: System, W: Watch>(
        &self,
        system: &S,
        hand: &mut Hand,
        first: u64,
        count: u64,
        watch: &mut W,
    ) -> Fallible {
        for number in first..first + count {
            let key = self.keys.key(number);
            if !system.insert(hand, key, keys::value(key, 0))? {
                return Err(wrong(self.phase, key, "present"));
            }
            watch.tick();
        }
        Ok(())
    }

    fn get_hit<S: System, W: Watch>(
        &self,
        system: &S,
        hand: &mut Hand,
        thread: usize,
        count: u64,
        watch: &mut W,
    ) -> Fallible {
        let mut draw = self.draw(thread);
        for _ in 0..count {
            let key = self.keys.key(draw.below(self.records));
            match system.get(hand, key)? {
                Some(value) if keys::belongs(key, value) => {}
                other => return Err(wrong(self.phase, key, other)),
            }
            watch.tick();
        }
        Ok(())
    }

    fn get_miss<S: System, W: Watch>(
        &self,
        system: &S,
        hand: &mut Hand,
        thread: usize,
        count: u64,
        watch: &mut W,
    ) -> Fallible {
        let mut draw = self.draw(thread);
        for _ in 0..count {
            let key = self.keys.key(ABSENT + draw.below(self.records));
            if let Some(value) = system.get(hand, key)? {
                return Err(wrong(self.phase, key, value));
            }
            watch.tick();
        }
        Ok(())
    }

    fn get_batches<S: System, W: Watch>(
        &self,
        system: &S,
        hand: &mut Hand,
        thread: usize,
        batches: u64,
        watch: &mut W,
    ) -> Fallible {
        let mut draw = self.draw(thread);
        let mut batch = [0; BATCH as usize];
        let mut found = Vec::with_capacity(BATCH as usize);
        for _ in 0..batches {
            for key in &mut batch {
                *key = self.keys.key(draw.below(self.records));
            }
            found.clear();
            if self.phase == Phase::GetMany {
                system.get_many(hand, &batch, &mut found)?;
            } else {
                for &key in &batch {
                    found.push(system.get(hand, key)?);
                }
            }
            for (i, &key) in batch.iter().enumerate() {
                match found.get(i) {
                    Some(Some(value)) if keys::belongs(key, *value) => {}
                    other => return Err(wrong(self.phase, key, other)),
                }
            }
            watch.tick();
        }
        Ok(())
    }

    /// Lookups and updates of present keys; so many of a hundred are updates.
    fn mixed<S: System, W: Watch>(
        &self,
        system: &S,
        hand: &mut Hand,
        thread: usize,
        count: u64,
        updates: u64,
        watch: &mut W,
    ) -> Fallible {
        let mut draw = self.draw(thread);
        for number in 0..count {
            let key = self.keys.key(draw.below(self.records));
            if updates == 100 || draw.bits() % 100 < updates {
                if !system.update(hand, key, keys::value(key, number as u8))? {
                    return Err(wrong(self.phase, key, "absent"));
                }
            } else {
                match system.get(hand, key)? {
                    Some(value) if keys::belongs(key, value) => {}
                    other => return Err(wrong(self.phase, key, other)),
                }
            }
            watch.tick();
        }
        Ok(())
    }

    fn mix_insert<S: System, W: Watch>(
        &self,
        system: &S,
        hand: &mut Hand,
        thread: usize,
        (count, mut new, inserts): (u64, u64, u64),
        watch: &mut W,
    ) -> Fallible {
        let mut draw = self.draw(thread);
        let end = new + inserts;
        for number in 0..count {
            // One in five, spread evenly; what is left over of a share comes last.
            if new < end && (number % 5 == 4 || count - number <= end - new) {
                let key = self.keys.key(new);
                new += 1;
                if !system.insert(hand, key, keys::value(key, 0))? {
                    return Err(wrong(self.phase, key, "present"));
                }
            } else {
                let key = self.keys.key(draw.below(self.records));
                match system.get(hand, key)? {
                    Some(value) if keys::belongs(key, value) => {}
                    other => return Err(wrong(self.phase, key, other)),
                }
            }
            watch.tick();
        }
        Ok(())
    }

    fn remove<S: System, W: Watch>(
        &self,
        system: &S,
        hand: &mut Hand,
        first: u64,
        count: u64,
        watch: &mut W,
    ) -> Fallible {
        if count == 0 {
            return Ok(());
        }
        let mut walk = Walk::new(count);
        for _ in 0..count {
            let key = self.keys.key(first + walk.step());
            match system.remove(hand, key)? {
                Some(value) if keys::belongs(key, value) => {}
                other => return Err(wrong(self.phase, key, other)),
            }
            watch.tick();
        }
        Ok(())
    }
}
