//! What threads do in a schedule.

mod closing;
mod common;
mod instance;
mod keys;
mod late;
mod maker;

pub use instance::{Holding, Instance};
use keys::Keys;
use maker::Maker;

use super::act::{Act, MAP};
use super::baton::FIRST;
use crate::codec::SPECIAL;
use crate::history::Call;
use crate::model::stored;
use crate::parts::workload::{Aim, Concurrent, Filling, Start, Workload};
use crate::random::Random;
use crate::schemes::parts;
use crate::session::{Do, PoolShape, Session, recorder};
use crate::state::{Checked, Fault};
use crate::structures::Shape;
use crate::structures::phases::phases_of;
use outlast::internals::pmem::Alive;
use outlast::internals::pool::threads::OWNERS;
use outlast::{RecordForm, Scheme};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

/// Lists the workloads of a scheme.
pub fn all(scheme: Scheme) -> impl Iterator<Item = &'static Workload> {
    parts(scheme).workloads.iter().chain(common::ALL).chain(&closing::ALL)
}

/// Lists the names of a scheme's workloads.
pub fn names(scheme: Scheme) -> Vec<&'static str> {
    all(scheme).map(|workload| workload.name).collect()
}

impl Workload {
    /// Returns the workload with this name.
    pub fn named(scheme: Scheme, name: &str) -> Option<&'static Workload> {
        all(scheme).find(|workload| workload.name == name)
    }

    fn pool(&self) -> PoolShape {
        let hash_function = if self.degenerate { 0x7e57 } else { 1 };
        let usual = PoolShape::default();
        PoolShape { hash_function, pages: self.pages.unwrap_or(usual.pages), ..usual }
    }

    fn keys(&self, session: &Session, form: RecordForm) -> Keys {
        let first = if self.degenerate { SPECIAL } else { 0 };
        let chosen = self.filling.map(|filling| filling.keys(&|key| session.hash(form, key)));
        Keys { chosen: chosen.unwrap_or_default().into(), first }
    }

    /// Inserts one record of the fill, and removes others if the workload has holes.
    fn fill_in(&self, session: &mut Session, keys: &Keys, number: u64) -> Checked {
        session.change(MAP, keys.key(number), Do::Insert(value_of(number)))?;
        for hole in self.holes(number) {
            session.change(MAP, keys.key(hole), Do::Remove)?;
        }
        Ok(())
    }

    /// Returns the records that are removed after record `number` was inserted.
    fn holes(&self, number: u64) -> Range<u64> {
        if let Some(filling) = self.filling {
            let removed = filling.removed_after(number as usize);
            return removed.start as u64..removed.end as u64;
        }
        match number.checked_sub(HOLE_AGE) {
            Some(hole) if self.holes && number % 3 == 2 => hole..hole + 1,
            _ => 0..0,
        }
    }

    /// Lists the records that are left in a table after `records` were inserted and the first
    /// `removed` of them were removed, without those that the fill removed as holes.
    fn filled(&self, records: u64, removed: u64) -> impl Iterator<Item = u64> {
        let holes: BTreeSet<u64> = (0..records).flat_map(|number| self.holes(number)).collect();
        (removed..records).filter(move |number| !holes.contains(number))
    }

    /// Returns the shape of the workload's map.
    pub fn shape(&self, scheme: Scheme, form: RecordForm) -> Shape {
        let smallest = Shape::smallest(scheme, form);
        Shape { config: self.config.unwrap_or(smallest.config), ..smallest }
    }

    /// Finds the fills after which the next insert or removal goes through `before`. Also returns
    /// the keys.
    fn fills(&self, shape: Shape, alive: &Arc<Alive>) -> Checked<(Vec<Fill>, Keys)> {
        type Known = BTreeMap<(&'static str, String), (Vec<Fill>, Keys)>;
        static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
        let known = KNOWN.get_or_init(Mutex::default);
        // Keep the lock, so that the fills of each workload and shape are computed only once.
        let mut known = known.lock().unwrap_or_else(|e| e.into_inner());
        let name = (self.name, format!("{shape:?}"));
        if let Some(fills) = known.get(&name) {
            return Ok(fills.clone());
        }
        let seam = recorder(false);
        let mut session = Session::create(self.pool(), alive, seam.clone())?;
        session.create_map(MAP, shape)?;
        let keys = self.keys(&session, shape.form);
        let Some(phase) = self.before.phase(shape.scheme()) else {
            let fills = match self.filling.and_then(Filling::records) {
                Some(records) => vec![records],
                None => vec![3, 8, 20, 40],
            };
            let fills: Vec<Fill> = fills
                .into_iter()
                .map(|records| Fill {
                    records,
                    removed: 0,
                    moved: self.filled(records, 0).collect(),
                })
                .collect();
            return Ok(known.entry(name).or_insert((fills, keys)).clone());
        };
        let mut fills: Vec<Fill> = Vec::new();
        // For each value that was stored in a word: the number of the record whose insert or
        // removal was the first to store it.
        let mut stored_with = HashMap::new();
        let filled = if self.emptied { EMPTIED_FROM } else { 0 };
        for number in 0..filled {
            seam.start(false);
            self.fill_in(&mut session, &keys, number)?;
            for (_, word) in seam.take().iter().filter_map(stored) {
                stored_with.entry(word).or_insert(number);
            }
        }
        let most = if self.pages.is_some() { 1_500 } else { 400 };
        for number in 0..if self.emptied { filled } else { most } {
            seam.start(false);
            if self.emptied {
                session.change(MAP, keys.key(number), Do::Remove)?;
            } else {
                self.fill_in(&mut session, &keys, number)?;
            }
            let events = seam.take();
            if phases_of(&events, shape).contains(&phase) {
                let words = (shape.structure().moved)(&events);
                let mut moved: Vec<u64> =
                    words.iter().filter_map(|word| stored_with.get(word)).copied().collect();
                if self.emptied {
                    // The records before `number` are removed by then. `number` itself is not.
                    moved.retain(|&other| other > number);
                    moved.push(number);
                } else {
                    // Records whose inserts went through the phase earlier are as interesting.
                    moved.extend(fills.iter().map(|fill| fill.records));
                }
                moved.sort_unstable();
                moved.dedup();
                fills.push(match self.emptied {
                    true => Fill { records: filled, removed: number, moved },
                    false => Fill { records: number, removed: 0, moved },
                });
            }
            for (_, word) in events.iter().filter_map(stored) {
                stored_with.entry(word).or_insert(number);
            }
            if fills.len() == 6 {
                break;
            }
        }
        if fills.is_empty() {
            return Err(Fault(format!("workload {}: nothing goes through {phase}", self.name)));
        }
        Ok(known.entry(name).or_insert((fills, keys)).clone())
    }

    /// Makes the run that a seed names.
    ///
    /// # Errors
    /// If no number of records brings the table to what the workload tests.
    pub fn make(&self, shape: Shape, seed: u64, alive: &Arc<Alive>) -> Checked<Instance> {
        let mut random = Random::new(seed);
        let (fills, keys) = self.fills(shape, alive)?;
        let fill = fills[random.below(fills.len() as u64) as usize].clone();
        let mut others = Vec::new();
        match self.concurrent {
            Concurrent::Maps => others.extend((0..2).filter(|_| random.below(2) == 0)),
            Concurrent::HoldDropped => others.push(0),
            _ => {}
        }
        let (records, removed) = (fill.records, fill.removed);
        let target = if self.emptied { removed } else { records };
        let moved = fill.moved;
        let mut maker =
            Maker { workload: self, random, keys, fill: records, target, moved, value: 1_000 };
        let scripts = maker.scripts();
        Ok(Instance {
            workload: *self,
            shape,
            keys: maker.keys,
            fill: records,
            removed,
            others,
            crashed: self.start,
            reuses: Random::new(seed ^ 0x4e05).below(2) == 0,
            way: 0,
            holding: Holding::First,
            first_thread: match Random::new(seed ^ 0x7b15).below(4) {
                0 => OWNERS - 1,
                _ => FIRST,
            },
            scripts,
        })
    }

    /// Makes runs of two threads. The first does what the workload tests:
    ///
    /// - an insert or a removal that moves records. The other thread looks up or removes one of
    ///   those (a run for each), or iterates, and then looks up the inserted key;
    /// - a background step, or an insert and then such steps. The other thread looks up, replaces,
    ///   removes or inserts one of a few records, or iterates;
    /// - an insert of a key that the other thread inserts or looks up;
    /// - a step that frees a dropped map. The other thread creates a map.
    ///
    /// # Errors
    /// The same as those of [`make`](Workload::make).
    pub fn pairs(&self, shape: Shape, alive: &Arc<Alive>) -> Checked<Vec<Instance>> {
        let (fills, keys) = self.fills(shape, alive)?;
        let frees = self.concurrent == Concurrent::MapsFreed;
        let works = self.concurrent == Concurrent::Background || frees;
        // After some growth, there is background work.
        let Fill { records: fill, removed, moved } =
            if works { &fills[fills.len() / 2] } else { &fills[0] };
        let new = keys.key(*fill);
        let remove = Act::Call(Call::Change(keys.key(*removed), Do::Remove));
        let insert = Act::Call(Call::Change(new, Do::Insert(1_000)));
        let first = match self.aim {
            Aim::Moved => [&[insert][..], &[Act::Background; MOVED_BY]].concat(),
            _ if works => vec![Act::Background],
            _ if self.emptied => vec![remove],
            _ => vec![insert],
        };
        let besides: Vec<Call> = match self.aim {
            Aim::Race => {
                let changes = [Do::Insert(2_000), Do::Put(2_000), Do::Update(2_000), Do::Remove];
                let changes = changes.map(|change| Call::Change(new, change));
                changes.into_iter().chain([Call::Get(new)]).collect()
            }
            _ if works => {
                let some = self.filled(*fill, *removed).step_by((*fill as usize / 4).max(1));
                let each = |number| {
                    let key = keys.key(number);
                    let changes = [Do::Update(2_000), Do::Remove];
                    changes
                        .map(|change| Call::Change(key, change))
                        .into_iter()
                        .chain([Call::Get(key)])
                };
                some.flat_map(each).chain([Call::Change(new, Do::Insert(2_000))]).collect()
            }
            _ => {
                let each = |&number: &u64| {
                    let key = keys.key(number);
                    [Call::Get(key), Call::Change(key, Do::Remove)]
                };
                let mut besides: Vec<Call> = moved.iter().flat_map(each).collect();
                if self.emptied {
                    // Insert the key that the first thread removes. The record may then join those
                    // that the removal has left.
                    besides.push(Call::Change(keys.key(*removed), Do::Insert(2_000)));
                    besides.extend(moved.iter().map(|&n| Call::Change(keys.key(n), Do::Update(2))));
                }
                besides
            }
        };
        let calls = besides.into_iter().chain([Call::Scan]).map(Act::Call);
        let besides = calls.chain(works.then_some(Act::Background));
        let besides: Vec<Act> = if frees { vec![Act::CreateMap(1)] } else { besides.collect() };
        // A lookup must not miss what an iteration before it has reported.
        let twice = (!works && !self.emptied).then(|| vec![Call::Scan, Call::Get(new)]);
        let twice = twice.map(|calls| calls.into_iter().map(Act::Call).collect());
        let instance = |concurrent: Vec<Act>| Instance {
            workload: *self,
            shape,
            keys: keys.clone(),
            fill: *fill,
            removed: *removed,
            others: Vec::new(),
            crashed: self.start,
            reuses: false,
            way: 0,
            holding: Holding::First,
            first_thread: FIRST,
            scripts: vec![first.clone(), concurrent],
        };
        Ok(besides.into_iter().map(|act| vec![act]).chain(twice).map(instance).collect())
    }

    /// Makes runs of three threads, for directed schedules:
    ///
    /// 1. The first thread makes one operation, and is held before one of its steps.
    /// 2. Meanwhile the second thread does all the work that the workload tests (a split, an
    ///    expansion and the emptying of a level, a merge, the reclaim, a sync, a close). Then it
    ///    makes changes that reuse the space that this work has freed.
    /// 3. The third thread reads.
    ///
    /// # Errors
    /// The same as those of [`make`](Workload::make).
    pub fn held(&self, shape: Shape, alive: &Arc<Alive>) -> Checked<Vec<Instance>> {
        let (fills, keys) = self.fills(shape, alive)?;
        let Fill { records, removed, moved } = &fills[fills.len() / 2];
        let there: Vec<u64> = self.filled(*records, *removed).collect();
        let target = if self.emptied { *removed } else { *records };
        let nth = |n: usize| there[n % there.len()];
        // `one` is a record that the work moves, if one is known. The fallback may stay in place.
        let is_there = |number: &&u64| there.contains(number) && **number != target;
        let one = moved.iter().rev().find(is_there).copied().unwrap_or(nth(there.len() / 2));
        let last = there.last().copied().filter(|_| self.aim == Aim::Last);
        let one = last.unwrap_or(one);
        let instance = |(number, scripts): (usize, [Vec<Act>; 3]), holding| Instance {
            workload: *self,
            shape,
            keys: keys.clone(),
            fill: *records,
            removed: *removed,
            others: match self.concurrent {
                Concurrent::Maps | Concurrent::HoldDropped
                    if !matches!(self.aim, Aim::Late { .. }) =>
                {
                    vec![0]
                }
                _ => Vec::new(),
            },
            crashed: self.start,
            reuses: number % 5 != 4,
            way: number as u64 % 4,
            holding,
            first_thread: if number % 3 == 2 { OWNERS - 1 } else { FIRST },
            scripts: scripts.into(),
        };
        let others = [nth(1), nth(3)];
        let numbers = closing::Numbers { keys: &keys, records: *records, one, others };
        if let Some(scripts) = numbers.scripts(self.concurrent) {
            let each = |each| instance(each, Holding::First);
            return Ok(scripts.into_iter().enumerate().map(each).collect());
        }
        if let Aim::Late { takes, ends } = self.aim {
            let scripts = late::scripts(&numbers, takes, ends).into_iter().enumerate();
            let each = |(number, (scripts, holding))| instance((number, scripts), holding);
            return Ok(scripts.map(each).collect());
        }
        let change = |number, change| Act::Call(Call::Change(keys.key(number), change));
        let aim = |number, value| match self.emptied {
            true => change(number, Do::Remove),
            false => change(number, Do::Insert(value)),
        };
        let works =
            [Concurrent::Background, Concurrent::BackgroundAndScan].contains(&self.concurrent);
        let mut work = vec![aim(target, 1_000)];
        match self.concurrent {
            Concurrent::Close => {}
            Concurrent::Sync => work.push(Act::Sync),
            Concurrent::Maps | Concurrent::MapsFreed => {
                work.extend([Act::DropMap(0), Act::CreateMap(1), Act::Background]);
            }
            _ => work.push(aim(target + 1, 1_001)),
        }
        let steps = match (works, self.start) {
            (true, Start::Open) => HELD_STEPS_WORKING,
            (true, _) => HELD_STEPS_RECLAIMING,
            _ => HELD_STEPS,
        };
        work.extend(vec![Act::Background; steps]);
        work.extend([
            change(nth(1), Do::Update(1_002)),
            change(one, Do::Put(1_003)),
            change(nth(3), Do::Remove),
            change(records + 2, Do::Insert(1_004)),
            change(nth(1), Do::Update(1_005)),
        ]);
        // The same work, after a removal of the record that the first thread's operation is on.
        let mut emptied = vec![change(one, Do::Remove)];
        emptied.extend(&work);
        if self.concurrent == Concurrent::Close {
            work.push(Act::Close);
        }
        let get = |number| Act::Call(Call::Get(keys.key(number)));
        let scan = Act::Call(Call::Scan);
        let look = vec![get(one), get(target), scan];
        let mut scripts: Vec<[Vec<Act>; 3]> = Vec::new();
        let mut add = |victim: &[Act], work: &[Act], last: &[Act]| {
            scripts.push([victim.to_vec(), work.to_vec(), last.to_vec()]);
        };
        add(&[aim(target, 2_000)], &work, &look);
        add(&[Act::Background], &work, &look);
        if works {
            add(&[aim(target, 2_000), Act::Background, Act::Background], &work, &look);
        }
        match self.concurrent {
            Concurrent::Sync => add(&[Act::Sync], &work, &look),
            Concurrent::Batch => {
                let batch = |number| Act::Batch(keys.key(number), 2_000);
                [target, one].into_iter().for_each(|n| add(&[batch(n)], &work, &look));
            }
            Concurrent::BatchIf => {
                // Others change what the batch requires.
                let held = [Act::BatchIf(keys.key(one), value_of(one), 2_000)];
                for by in [Do::Update(1_006), Do::Remove, Do::Swap(value_of(one), 1_006)] {
                    add(&held, &[change(one, by)], &look);
                }
                add(&held, &[Act::BatchIf(keys.key(one), value_of(one), 1_007)], &look);
                add(&held, &work, &look);
            }
            Concurrent::Maps => {
                add(&[Act::DropMap(0)], &work, &look);
                add(&[Act::CreateMap(1)], &work, &look);
            }
            _ => {}
        }
        let changes = [Do::Update(2_000), Do::Remove, Do::Swap(value_of(one), 2_000)];
        // Where changes of different keys meet, in each way to make a change: alone or with others.
        let apart = self.aim == Aim::Apart;
        for _ in 0..if apart { 4 } else { 1 } {
            let others = if apart { 2..4 } else { 3..4 };
            others.for_each(|n| add(&[change(records + n, Do::Insert(2_000))], &work, &look));
            changes.into_iter().for_each(|by| add(&[change(one, by)], &work, &look));
        }
        for concurrent in [&work, &emptied] {
            // Three lookups, because instances differ in how they look a key up: by reference, in a
            // batch, or alone.
            [get(one); 3]
                .iter()
                .chain([&scan])
                .for_each(|&victim| add(&[victim], concurrent, &look));
        }
        // Hold a lookup, and also a change of the same key or of a later one.
        let once = scripts.len();
        if self.aim == Aim::Duel {
            // Values whose blocks are as large as the replaced one.
            let alike = |n: u64| 41 * (24 + n) + value_of(one) % 41;
            let others = [
                change(nth(1), Do::Update(alike(0))),
                change(records + 2, Do::Insert(alike(1))),
                change(nth(1), Do::Update(alike(2))),
            ];
            let mut twice = |one, work: &[Act]| {
                for reader in [get(one); 3] {
                    scripts.push([vec![reader], work.to_vec(), others.to_vec()]);
                }
            };
            for by in changes {
                twice(one, &[change(one, by)]);
            }
            if self.emptied {
                // The pairs that the work moves can take the freed places immediately.
                twice(target, &[aim(target, 1_000)]);
            }
            for &one in moved.iter().filter(is_there).take(3) {
                twice(one, &[change(one, Do::Remove), aim(target, 1_000)]);
            }
        }
        let holding = |number| if number < once { Holding::First } else { Holding::Two };
        let each = |(number, scripts)| instance((number, scripts), holding(number));
        Ok(scripts.into_iter().enumerate().map(each).collect())
    }
}

/// How a table is filled.
#[derive(Debug, Clone)]
struct Fill {
    records: u64,
    /// How many of the first records are removed afterwards.
    removed: u64,
    /// The records that the next insert or removal moves, or whose inserts went through the same
    /// phase earlier.
    moved: Vec<u64>,
}

/// In a workload with holes, a record may be removed once this many more were inserted.
const HOLE_AGE: u64 = 24;

/// How many records a table has before it is emptied.
const EMPTIED_FROM: u64 = 60;

/// Background steps of another thread while one is held.
const HELD_STEPS: usize = 6;

/// Background steps in a workload that tests them: enough to finish all work.
const HELD_STEPS_WORKING: usize = 40;

/// Background steps after a crash: the trace takes a step for each slot of the root table.
const HELD_STEPS_RECLAIMING: usize = 160;

/// Background steps that do most of the work that growth leaves to do.
const MOVED_BY: usize = 4;

/// Returns the initial value of record `number`.
fn value_of(number: u64) -> u64 {
    500_000 + number
}
