//! The check of one crash image.

use super::phases::{Phase, phases_of};
use super::recording::Recording;
use crate::random::Random;
use crate::response::{self, Pending};
use crate::session::{Do, Session, Shape, check_verification, recorder};
use crate::state::{Checked, Fault, State, ensure};
use outlast::Error;
use outlast::pmem::Alive;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Keys that only the work on an image uses.
pub const FRESH: u64 = 5_000_000;

/// What a good image told.
pub struct Good {
    /// Phases of its recovery.
    pub recovery: BTreeSet<Phase>,
    /// What it held; `None` if there was no pool yet.
    pub state: Option<Arc<State>>,
}

/// An image and what it may hold.
pub struct Case<'a> {
    /// The file's bytes.
    pub file: &'a [u8],
    /// Bytes that it can grow to.
    pub capacity: u64,
    /// What it may hold; `None`: no pool.
    pub allowed: Vec<Option<&'a Arc<State>>>,
    /// Every key that may be there, and some that never are.
    pub universe: &'a [u64],
    /// What new maps look like.
    pub shape: Shape,
    /// Chooses orders.
    pub seed: u64,
    /// Whether to work on it until something splits, or a little only.
    pub thorough: bool,
}

impl Case<'_> {
    /// Reopens the image and checks everything.
    pub fn check(&self, alive: &Arc<Alive>) -> Checked<Good> {
        let mut random = Random::new(self.seed);
        let mut universe = self.universe.to_vec();
        random.shuffle(&mut universe);
        let seam = recorder(true);
        let mut session = match Session::open(self.file, self.capacity, alive, seam.clone(), None) {
            Ok(session) => session,
            Err(
                error
                @ (Error::NotAPool { .. } | Error::DamagedHeader(_) | Error::Truncated { .. }),
            ) => {
                ensure(self.allowed.contains(&None), || format!("opening: {error}"))?;
                return Ok(Good { recovery: BTreeSet::new(), state: None });
            }
            Err(error) => return Err(Fault(format!("opening: {error}"))),
        };
        // Recovery begins with whoever comes first: the reclaim, a lookup, an iteration.
        let way = random.below(3);
        let verified =
            if way == 0 { Some(outlast::pool::verify::verify(session.store())?) } else { None };
        let allowed: Vec<_> = self.allowed.iter().copied().flatten().collect();
        session.settle(&allowed, &universe, way == 1)?;
        let recovery = phases_of(&seam.take(), self.shape.bucket_bits);
        let state = Arc::clone(session.state());
        if let Some(found) = verified {
            check_verification(&found, state.records())?;
        }
        let working = |fault: Fault| Fault(format!("working on: {fault}"));
        self.work(&mut session, &mut random, &universe).map_err(working)?;
        Ok(Good { recovery, state: Some(state) })
    }

    fn work(&self, session: &mut Session, random: &mut Random, universe: &[u64]) -> Checked {
        let names: Vec<String> = session.state().maps.keys().cloned().collect();
        let name = if names.is_empty() {
            session.create_map("fresh", self.shape)?;
            "fresh".into()
        } else {
            names[random.below(names.len() as u64) as usize].clone()
        };
        if self.thorough {
            session.work(&name, FRESH, random)?;
        } else {
            a_little(session, &name, FRESH, random)?;
        }
        let mut universe = universe.to_vec();
        universe.extend(session.used_keys().iter().filter(|k| **k >= FRESH));
        universe.sort_unstable();
        universe.dedup();
        session.check(&universe, true)?;
        if random.below(2) == 0 {
            // What is leaked now is still leaked after it: the free state is saved.
            session.reopen()?;
        } else {
            session.verify()?;
            session.crash()?;
        }
        session.change(&name, FRESH + 1, Do::Put(random.next() >> 33))?;
        // The verification looks every record up.
        session.check_walk()?;
        session.verify()
    }
}

fn a_little(session: &mut Session, name: &str, fresh: u64, random: &mut Random) -> Checked {
    let present: Vec<u64> = session.state().maps[name].records.keys().copied().collect();
    for (i, &key) in present.iter().enumerate() {
        let value = fresh + 50_000 + i as u64;
        match random.below(5) {
            0 => session.change(name, key, Do::Put(value))?,
            1 => session.change(name, key, Do::Remove)?,
            _ => {}
        }
        if random.below(3) == 0 && session.is_reclaiming() {
            session.background()?;
        }
    }
    for i in 0..12 {
        session.change(name, fresh + i, Do::Insert(fresh + 70_000 + i))?;
    }
    Ok(())
}

/// Reopens an image and reads everything, with all loads recorded: whether the answers
/// rest on stores that were not durable when the process died.
pub fn answers_rest_on(
    case: &Case<'_>,
    state: &Arc<State>,
    pending: BTreeMap<u64, Pending>,
    alive: &Arc<Alive>,
) -> Checked {
    let seam = recorder(true);
    seam.start(true);
    let mut session = Session::open(case.file, case.capacity, alive, seam, Some(state))?;
    let mut universe = case.universe.to_vec();
    Random::new(case.seed).shuffle(&mut universe);
    session.check(&universe, case.seed % 8 < 4)?;
    let (_, events, _) = session.finish();
    match response::resting_on(pending, &events).first() {
        None => Ok(()),
        Some(found) => Err(Fault(format!("reopened: {found}"))),
    }
}

/// Reopens an image under the recorder and works on it: the run whose own images are
/// those of a second crash, during recovery or soon after.
pub fn second_run(case: &Case<'_>, state: &Arc<State>, alive: &Arc<Alive>) -> Checked<Recording> {
    let mut random = Random::new(case.seed ^ 0xdead);
    let seam = recorder(true);
    let mut session = Session::open(case.file, case.capacity, alive, seam, Some(state))?;
    let mut universe = case.universe.to_vec();
    random.shuffle(&mut universe);
    let fresh = FRESH + 1_000_000;
    if random.below(2) == 0 {
        session.check(&universe, random.below(2) == 0)?;
    }
    let names: Vec<String> = state.maps.keys().cloned().collect();
    for (i, name) in names.iter().enumerate().take(2) {
        let present: Vec<u64> = state.maps[name].records.keys().copied().collect();
        for round in 0..8 {
            let key = match present.len() {
                0 => fresh + 3,
                n => present[random.below(n as u64) as usize],
            };
            let value = fresh + 40_000 + round;
            let change = match random.below(4) {
                0 => Do::Remove,
                1 => Do::Put(value),
                2 => Do::Update(value),
                _ => Do::Insert(value),
            };
            session.change(name, key, change)?;
            session.change(name, fresh + round + 100 * i as u64, Do::Insert(value + 7))?;
            session.background()?;
        }
    }
    while session.is_reclaiming() {
        session.background()?;
    }
    for name in &names {
        session.change(name, fresh + 50, Do::Put(fresh + 60_000))?;
    }
    session.sync()?;
    let (steps, events, used) = session.finish();
    universe.extend(used);
    universe.sort_unstable();
    universe.dedup();
    Ok(Recording::new(case.file, 0, case.capacity, (steps, events), 0, universe))
}
