//! The phases: their operations, their keys, and the checks of their results.

use crate::form::Hand;
use crate::keys::{self, ABSENT, Draw, Keys, Walk};
use crate::latency::Watch;
use crate::systems::{Many, Setup, System};
use crate::{Fallible, team};
use outlast::RecordForm;
use serde::{Deserialize, Serialize};

/// Number of keys per call of `get_many`, and of changes per batch.
const BATCH: u64 = 16;
/// Number of records per scan.
const SCANNED: usize = 50;

/// A phase of a turn, in the order in which phases run.
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
    /// Lookups of present keys, drawn with replacement.
    GetHit,
    /// Lookups of keys that were never there.
    GetMiss,
    /// The same number of lookups of present keys, 16 per call.
    GetMany,
    /// Lookups of the same keys as `get_many`, one per call.
    Gets,
    /// Scans of 50 records from a present key on, drawn with replacement. Only for systems that
    /// keep a key order.
    Scan,
    /// New values for present keys, drawn with replacement.
    Update,
    /// Half lookups and half updates of present keys.
    #[serde(rename = "mix_50")]
    #[value(name = "mix_50")]
    Mix50,
    /// 95 percent lookups and 5 percent updates.
    #[serde(rename = "mix_95")]
    #[value(name = "mix_95")]
    Mix95,
    /// 80 percent lookups and 20 percent inserts of new keys.
    MixInsert,
    /// Half lookups and half inserts of new keys.
    #[serde(rename = "mix_insert_50")]
    #[value(name = "mix_insert_50")]
    MixInsert50,
    /// 95 percent lookups and 5 percent inserts of new keys.
    #[serde(rename = "mix_insert_5")]
    #[value(name = "mix_insert_5")]
    MixInsert5,
    /// Removal of the records of the load and of `insert`, in an order other than that of
    /// insertion.
    Remove,
}

/// The order in which a phase visits its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Ascending numbers. Keys are hashes of their numbers, so this is an arbitrary key order.
    Ascending,
    /// Drawn with replacement.
    Drawn,
    /// Each number once, in leaps.
    Leaping,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: &'static [Phase] = &[
        Phase::Load,
        Phase::Insert,
        Phase::GetHit,
        Phase::GetMiss,
        Phase::GetMany,
        Phase::Gets,
        Phase::Scan,
        Phase::Update,
        Phase::Mix50,
        Phase::Mix95,
        Phase::MixInsert,
        Phase::MixInsert50,
        Phase::MixInsert5,
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
            Phase::Scan => "scan",
            Phase::Update => "update",
            Phase::Mix50 => "mix_50",
            Phase::Mix95 => "mix_95",
            Phase::MixInsert => "mix_insert",
            Phase::MixInsert50 => "mix_insert_50",
            Phase::MixInsert5 => "mix_insert_5",
            Phase::Remove => "remove",
        }
    }

    /// The order in which the phase visits its keys.
    pub fn order(self) -> Order {
        match self {
            Phase::Load | Phase::Insert => Order::Ascending,
            Phase::Remove => Order::Leaping,
            _ => Order::Drawn,
        }
    }

    /// Returns whether a part of the phase can run first as a warm-up. The phases that insert or
    /// remove keys cannot be warmed up.
    pub fn repeatable(self) -> bool {
        let inserts = matches!(self, Phase::Load | Phase::Insert) || self.inserts_in_100() > 0;
        !inserts && self != Phase::Remove
    }

    /// How many of a hundred operations of a mix are inserts.
    fn inserts_in_100(self) -> u64 {
        match self {
            Phase::MixInsert => 20,
            Phase::MixInsert50 => 50,
            Phase::MixInsert5 => 5,
            _ => 0,
        }
    }
}

/// The work of a phase: how many operations, and on which keys.
#[derive(Debug, Clone)]
pub(super) struct Work<'s> {
    phase: Phase,
    records: u64,
    /// The number of the first key that no earlier phase of the turn has inserted.
    new: u64,
    operations: u64,
    warm_up: bool,
    keys: Keys,
    /// For scans: the greatest key, in the form of [`in_order`], at which a scan can begin and
    /// still return [`SCANNED`] records.
    last_whole: u64,
    setup: &'s Setup,
}

/// Returns a word that sorts among such words as the encoding of `key` does among keys.
#[inline(always)]
fn in_order(setup: &Setup, key: u64) -> u64 {
    match setup.form {
        RecordForm::Inline => key,
        // Keys sort by their bytes, and the word is stored with its least significant byte first.
        RecordForm::Bytes => key.swap_bytes(),
    }
}

/// Builds the failure for a wrong result.
#[cold]
fn wrong(phase: Phase, key: u64, found: impl std::fmt::Debug) -> crate::Failure {
    format!("wrong answer in {}: key {key:#x} gave {found:x?}", phase.name()).into()
}

impl<'s> Work<'s> {
    /// Prepares the work of a phase. The earlier phases of the turn have inserted `new` records.
    pub(super) fn new(
        phase: Phase,
        records: u64,
        new: u64,
        operations: u64,
        setup: &'s Setup,
    ) -> Self {
        let tenth = records / 10;
        let operations = match phase {
            Phase::Load => tenth,
            Phase::Insert => records - tenth,
            Phase::Remove => records,
            Phase::GetMany | Phase::Gets => operations.next_multiple_of(BATCH),
            // Each operation covers many records.
            Phase::Scan => (operations / 10).max(1),
            _ => operations,
        };
        let keys = Keys::new(setup.seed);
        Work { phase, records, new, operations, warm_up: false, keys, last_whole: 0, setup }
    }

    /// Computes the expected results of scans. Call this before the phase is timed.
    pub(super) fn prepared(mut self) -> Self {
        if self.phase == Phase::Scan {
            let all = (0..self.records).map(|n| in_order(self.setup, self.keys.key(n)));
            self.last_whole = keys::last_whole(all, SCANNED);
        }
        self
    }

    /// Returns a twentieth of the work, rounded up to full batches, with other draws.
    pub(super) fn warm_up(&self) -> Self {
        let operations = (self.operations / 20).next_multiple_of(BATCH);
        Work { operations, warm_up: true, ..self.clone() }
    }

    /// Number of operations. Each key of a batch counts as one.
    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    /// Number of records that the phases of the turn have inserted by the end of this one.
    pub(super) fn new_after(&self) -> u64 {
        match self.phase {
            Phase::Load | Phase::Insert => self.new + self.operations,
            _ => self.new + self.mixed_inserts(),
        }
    }

    fn mixed_inserts(&self) -> u64 {
        self.operations * self.phase.inserts_in_100() / 100
    }

    /// Returns the draws of a thread. They are the same for every system, and for `gets` as for
    /// `get_many`.
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
        let (first, count) = team::share(self.operations, threads, thread);
        let (hand, draw) = (self.setup.hand(), self.draw(thread));
        let mut worker = Worker { work: self, system, hand, draw, watch };
        worker.watch.begin();
        match self.phase {
            Phase::Load | Phase::Insert | Phase::Update | Phase::Remove if self.setup.batched => {
                worker.change_batches(first, count)
            }
            Phase::Load => worker.each(count, |w, i| w.insert(first + i)),
            Phase::Insert => {
                let first = self.records - self.operations + first;
                worker.each(count, |w, i| w.insert(first + i))
            }
            Phase::GetHit => worker.each(count, |w, _| w.get_hit()),
            Phase::GetMiss => worker.each(count, |w, _| w.get_miss()),
            Phase::GetMany | Phase::Gets => {
                let (_, batches) = team::share(self.operations / BATCH, threads, thread);
                let mut batch = Batch::default();
                worker.each(batches, |w, _| w.get_batch(&mut batch))
            }
            Phase::Scan => {
                let mut found = Vec::new();
                worker.each(count, |w, _| w.scan(&mut found))
            }
            Phase::Update => worker.each(count, Worker::update),
            Phase::Mix50 => worker.each(count, |w, i| w.get_or_update(i, 50)),
            Phase::Mix95 => worker.each(count, |w, i| w.get_or_update(i, 5)),
            Phase::MixInsert | Phase::MixInsert50 | Phase::MixInsert5 => {
                let (new, inserts) = team::share(self.mixed_inserts(), threads, thread);
                let (mut new, end) = (self.new + new, self.new + new + inserts);
                let every = 100 / self.phase.inserts_in_100();
                worker.each(count, |w, i| {
                    // One operation in `every` is an insert. The inserts are spread evenly, and
                    // those of the thread's share that are left come last.
                    if new < end && (i % every == every - 1 || count - i <= end - new) {
                        new += 1;
                        w.insert(new - 1)
                    } else {
                        w.get_hit()
                    }
                })
            }
            Phase::Remove => {
                // The bound is at least 1, because a walk over no numbers cannot choose its leap.
                let mut walk = Walk::new(count.max(1));
                worker.each(count, |w, _| w.remove(first + walk.step()))
            }
        }
    }
}

/// The keys of one call of `get_many`, and the values found.
#[derive(Default)]
struct Batch {
    keys: [u64; BATCH as usize],
    found: Vec<Option<u64>>,
}

/// One working thread. Each operation includes computing its key and checking its result.
struct Worker<'w, 's, S, W> {
    work: &'w Work<'s>,
    system: &'w S,
    hand: Hand,
    draw: Draw,
    watch: &'w mut W,
}

impl<S: System, W: Watch> Worker<'_, '_, S, W> {
    /// Runs an operation `count` times.
    #[inline(always)]
    fn each(
        &mut self,
        count: u64,
        mut operation: impl FnMut(&mut Self, u64) -> Fallible,
    ) -> Fallible {
        for number in 0..count {
            operation(self, number)?;
            self.watch.tick();
        }
        Ok(())
    }

    /// Draws a present key, with replacement.
    #[inline(always)]
    fn present(&mut self) -> u64 {
        self.work.keys.key(self.draw.below(self.work.records))
    }

    /// Checks that the value found for a key belongs to it.
    #[inline(always)]
    fn check(&self, key: u64, found: Option<u64>) -> Fallible {
        match found {
            Some(value) if keys::belongs(key, value) => Ok(()),
            other => Err(wrong(self.work.phase, key, other)),
        }
    }

    #[inline(always)]
    fn insert(&mut self, number: u64) -> Fallible {
        let key = self.work.keys.key(number);
        if self.system.insert(&mut self.hand, key, keys::value(key, 0))? {
            return Ok(());
        }
        Err(wrong(self.work.phase, key, "present"))
    }

    /// Makes `count` changes of a phase in batches. `first` is the number of this thread's first
    /// operation.
    fn change_batches(&mut self, first: u64, count: u64) -> Fallible {
        let (keys, mut walk) = (self.work.keys, Walk::new(count.max(1)));
        let begin = self.work.records - self.work.operations;
        let (mut records, mut done) = (Vec::new(), Vec::new());
        let mut number = 0;
        while number < count {
            records.clear();
            done.clear();
            let mut how = Many::Insert;
            for number in number..(number + BATCH).min(count) {
                let (key, version) = match self.work.phase {
                    Phase::Update => {
                        how = Many::Update;
                        (self.present(), number as u8)
                    }
                    Phase::Remove => {
                        how = Many::Remove;
                        (keys.key(first + walk.step()), 0)
                    }
                    Phase::Load => (keys.key(first + number), 0),
                    _ => (keys.key(begin + first + number), 0),
                };
                records.push((key, keys::value(key, version)));
            }
            self.system.change_many(&mut self.hand, how, &records, &mut done)?;
            if let Some(at) = (0..records.len()).find(|&at| done.get(at) != Some(&true)) {
                return Err(wrong(self.work.phase, records[at].0, "no change"));
            }
            number += BATCH;
            self.watch.tick();
        }
        Ok(())
    }

    #[inline(always)]
    fn get_hit(&mut self) -> Fallible {
        let key = self.present();
        let found = self.system.get(&mut self.hand, key)?;
        self.check(key, found)
    }

    #[inline(always)]
    fn get_miss(&mut self) -> Fallible {
        let key = self.work.keys.key(ABSENT + self.draw.below(self.work.records));
        match self.system.get(&mut self.hand, key)? {
            None => Ok(()),
            Some(value) => Err(wrong(self.work.phase, key, value)),
        }
    }

    #[inline(always)]
    fn get_batch(&mut self, batch: &mut Batch) -> Fallible {
        for at in 0..batch.keys.len() {
            batch.keys[at] = self.present();
        }
        batch.found.clear();
        if self.work.phase == Phase::GetMany {
            self.system.get_many(&mut self.hand, &batch.keys, &mut batch.found)?;
        } else {
            for &key in &batch.keys {
                batch.found.push(self.system.get(&mut self.hand, key)?);
            }
        }
        for (at, &key) in batch.keys.iter().enumerate() {
            self.check(key, batch.found.get(at).copied().flatten())?;
        }
        Ok(())
    }

    #[inline(always)]
    fn scan(&mut self, found: &mut Vec<(u64, u64)>) -> Fallible {
        let from = self.present();
        found.clear();
        self.system.scan(&mut self.hand, from, SCANNED, found)?;
        let order = |key| in_order(self.work.setup, key);
        let whole = order(from) <= self.work.last_whole;
        let begins = found.first().is_some_and(|&(key, _)| key == from);
        let ascends = found.windows(2).all(|pair| order(pair[0].0) < order(pair[1].0));
        let belong = found.iter().all(|&(key, value)| keys::belongs(key, value));
        if begins && ascends && belong && whole == (found.len() == SCANNED) {
            return Ok(());
        }
        Err(wrong(self.work.phase, from, &found))
    }

    #[inline(always)]
    fn update(&mut self, version: u64) -> Fallible {
        let key = self.present();
        self.update_key(key, version)
    }

    #[inline(always)]
    fn update_key(&mut self, key: u64, version: u64) -> Fallible {
        if self.system.update(&mut self.hand, key, keys::value(key, version as u8))? {
            return Ok(());
        }
        Err(wrong(self.work.phase, key, "absent"))
    }

    /// Does a lookup or an update. On average, `updates` of a hundred calls are updates.
    #[inline(always)]
    fn get_or_update(&mut self, version: u64, updates: u64) -> Fallible {
        let key = self.present();
        if self.draw.bits() % 100 < updates {
            return self.update_key(key, version);
        }
        let found = self.system.get(&mut self.hand, key)?;
        self.check(key, found)
    }

    #[inline(always)]
    fn remove(&mut self, number: u64) -> Fallible {
        let key = self.work.keys.key(number);
        let found = self.system.remove(&mut self.hand, key)?;
        self.check(key, found)
    }
}
