//! The check of one crash image.

use super::recording::Recording;
use crate::model::Image;
use crate::parts::scenario::Scenario;
use crate::random::Random;
use crate::response::{self, Pending};
use crate::session::{Do, Session, check_verification, recorder, watcher};
use crate::state::{Checked, Fault, Judge, State, ensure};
use crate::structures::Shape;
use crate::structures::phases::{Phase, phases_of};
use outlast::Error;
use outlast::internals::pmem::{Alive, LineSet};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Keys from here on are used only by the work on an image.
pub const FRESH: u64 = 5_000_000;
/// One image in this many is checked at least [closely](Look::Closely). One in the square of this
/// is checked [thoroughly](Look::Thoroughly).
const CLOSELY: u64 = 8;

/// What the check of a good image found.
pub struct Good {
    /// Phases of its recovery.
    pub recovery: BTreeSet<Phase>,
    /// Its contents; `None` if there was no pool yet.
    pub state: Option<Arc<State>>,
    /// A digest of all words of the image that recovery and the reads loaded.
    pub digest: u64,
    /// The lines of the image that were read, also by the work on it.
    pub lines: LineSet,
}

/// What the images of one run have in common.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// The size that the pool can grow to, in bytes.
    pub capacity: u64,
    /// Every key that may be present, and some that never are.
    pub universe: &'a [u64],
    /// The shape of new maps.
    pub shape: Shape,
    /// The page by which a pool detects that it runs in a forked child. All pools share it.
    pub alive: &'a Arc<Alive>,
}

impl<'a> Setting<'a> {
    pub(super) fn of(scenario: &Scenario, run: &'a Recording, alive: &'a Arc<Alive>) -> Self {
        Setting { capacity: run.capacity(), universe: &run.universe, shape: scenario.shape, alive }
    }
}

/// An image and what it may hold.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// What it has in common with the other images of the run.
    pub setting: Setting<'a>,
    /// The file.
    pub image: &'a Image,
    /// Decides what it may hold.
    pub judge: &'a dyn Judge,
    /// A seed that determines the order of accesses, and how closely the image is checked. Usually
    /// the image's own number, so that the same image is always checked in the same way.
    pub order: u64,
}

/// How closely an image is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Look {
    /// Recovery, all contents, a few changes, verification.
    Lightly,
    /// The same, but with many changes, then a close or a crash, and another verification.
    Closely,
    /// The same, but with changes until something splits.
    Thoroughly,
}

/// Runs a check, and turns a panic into a fault.
pub fn caught<T>(check: impl FnOnce() -> Checked<T>) -> Checked<T> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("of an unknown kind");
        Err(Fault(format!("a panic: {text}")))
    })
}

impl Case<'_> {
    /// Reopens the image and checks everything. A panic is a fault.
    pub fn check(&self) -> Checked<Good> {
        caught(|| {
            let good = self.look()?;
            if let Some(state) = good.state.as_ref().filter(|_| self.closeness() > Look::Lightly) {
                let growing = |fault: Fault| Fault(format!("growing first: {fault}"));
                self.grow_first(state).map_err(growing)?;
            }
            Ok(good)
        })
    }

    /// Opens the image again. Its contents are known by now, so inserts can come first: up to 200
    /// into each map, until it has grown. Then the reclaim is completed, and the pool is closed,
    /// reopened and verified.
    fn grow_first(&self, state: &Arc<State>) -> Checked {
        let Setting { capacity, alive, .. } = self.setting;
        let mut session =
            Session::open(&self.image.bytes, capacity, alive, recorder(false), Some(state))?;
        let names: Vec<String> = state.maps.keys().cloned().collect();
        for name in &names {
            let before = session.grown(name)?;
            for key in (FRESH..).take(200) {
                session.change(name, key, Do::Insert(key))?;
                if session.grown(name)? > before {
                    break;
                }
            }
        }
        session.come_to_rest()?;
        session.reopen_and(true)?;
        session.verify()
    }

    fn closeness(&self) -> Look {
        match (self.order / 64).is_multiple_of(CLOSELY) {
            true if (self.order / 64).is_multiple_of(CLOSELY * CLOSELY) => Look::Thoroughly,
            true => Look::Closely,
            false => Look::Lightly,
        }
    }

    fn look(&self) -> Checked<Good> {
        let Setting { capacity, universe, alive, shape } = self.setting;
        let mut random = Random::new(self.order);
        let mut universe = universe.to_vec();
        random.shuffle(&mut universe);
        let seam = watcher(capacity);
        let file = &self.image.bytes;
        let mut session = match Session::open(file, capacity, alive, seam.clone(), None) {
            Ok(session) => session,
            Err(
                error @ (Error::NotAPool { .. }
                | Error::DamagedHeader { .. }
                | Error::Truncated { .. }),
            ) => {
                ensure(self.judge.may_be_absent(), || format!("opening: {error}"))?;
                return Ok(Good {
                    recovery: BTreeSet::new(),
                    state: None,
                    digest: seam.digest(),
                    lines: seam.lines_read(),
                });
            }
            Err(error) => return Err(Fault(format!("opening: {error}"))),
        };
        // The first access starts recovery: the reclaim, a lookup or an iteration.
        let way = random.below(3);
        let verified = if way == 0 {
            Some(outlast::internals::db::verify::verify(session.store())?)
        } else {
            None
        };
        session.settle(self.judge, &universe, way == 1)?;
        let digest = seam.digest();
        let recovery = phases_of(&seam.take(), shape);
        let state = Arc::clone(session.state());
        if let Some(found) = verified {
            check_verification(&found, state.records())?;
        }
        let working = |fault: Fault| Fault(format!("working on: {fault}"));
        self.work(&mut session, &mut random, &universe).map_err(working)?;
        Ok(Good { recovery, state: Some(state), digest, lines: seam.lines_read() })
    }

    fn work(&self, session: &mut Session, random: &mut Random, universe: &[u64]) -> Checked {
        let names: Vec<String> = session.state().maps.keys().cloned().collect();
        let name = if names.is_empty() {
            session.create_map("fresh", self.setting.shape)?;
            "fresh".into()
        } else {
            names[random.below(names.len() as u64) as usize].clone()
        };
        absent(session, &name, universe, random)?;
        let look = self.closeness();
        match look {
            Look::Thoroughly => session.work(&name, FRESH, random)?,
            Look::Closely => a_little(session, &name, FRESH, random, usize::MAX)?,
            Look::Lightly => a_little(session, &name, FRESH, random, 6)?,
        }
        if look == Look::Lightly {
            session.check_walk()?;
            return session.verify();
        }
        let mut universe = universe.to_vec();
        universe.extend(session.used_keys().iter().filter(|k| **k >= FRESH));
        universe.sort_unstable();
        universe.dedup();
        session.check(&universe, true)?;
        session.come_to_rest()?;
        if random.below(2) == 0 {
            // The close saves the free state, so a leak persists, and the walk finds it.
            session.reopen_and(true)?;
        } else {
            session.verify()?;
            session.crash()?;
        }
        session.change(&name, FRESH + 1, Do::Put(random.next() >> 33))?;
        // `verify` looks every record up, so a walk is enough here.
        session.check_walk()?;
        session.verify()
    }
}

/// Checks that some absent keys stay absent and can be inserted. An operation that the crash undid
/// must not take effect later.
fn absent(session: &mut Session, name: &str, universe: &[u64], random: &mut Random) -> Checked {
    let map = &session.state().maps[name];
    let absent: Vec<u64> =
        universe.iter().copied().filter(|key| !map.records.contains_key(key)).collect();
    // The caller has shuffled the universe, so the first three absent keys are a random choice.
    for &key in absent.iter().take(3) {
        let value = FRESH + 30_000 + random.below(1_000);
        session.change(name, key, Do::Update(value))?;
        session.change(name, key, Do::Insert(value))?;
    }
    Ok(())
}

/// Changes at most `most` of the records, and adds some.
fn a_little(
    session: &mut Session,
    name: &str,
    fresh: u64,
    random: &mut Random,
    most: usize,
) -> Checked {
    let present: Vec<u64> = session.state().maps[name].records.keys().copied().collect();
    let skip = random.below((present.len().saturating_sub(most) + 1) as u64) as usize;
    for (i, &key) in present.iter().enumerate().skip(skip).take(most) {
        let value = fresh + 50_000 + i as u64;
        match random.below(5) {
            0 => session.change(name, key, Do::Put(value))?,
            1 => session.change(name, key, Do::Remove)?,
            _ => {}
        }
        if random.below(3) == 0 && session.has_work() {
            session.background()?;
        }
    }
    for i in 0..most.min(12) as u64 {
        session.change(name, fresh + i, Do::Insert(fresh + 70_000 + i))?;
    }
    Ok(())
}

/// Reopens an image and reads everything, with all loads recorded. Fails if a result depends on a
/// store that the dead process left undurable and that is still not durable when the result is
/// returned.
pub fn answers_rest_on(
    case: &Case<'_>,
    state: &Arc<State>,
    pending: BTreeMap<u64, Pending>,
) -> Checked {
    let Setting { capacity, universe, alive, .. } = case.setting;
    let seam = recorder(true);
    seam.start(true);
    let mut session = Session::open(&case.image.bytes, capacity, alive, seam, Some(state))?;
    let mut universe = universe.to_vec();
    Random::new(case.order).shuffle(&mut universe);
    session.check(&universe, case.order & 1 == 0)?;
    let (_, events, _) = session.finish();
    match response::resting_on(pending, &events).first() {
        None => Ok(()),
        Some(found) => Err(Fault(format!("reopened: {found}"))),
    }
}

/// Reopens an image under the recorder, reads everything if `reads` is set, and works on the pool.
/// The crash images of that run show a second crash, during recovery or soon after.
pub fn second_run(case: &Case<'_>, state: &Arc<State>, reads: bool) -> Checked<Recording> {
    let Setting { capacity, universe, alive, .. } = case.setting;
    let mut random = Random::new(case.order ^ 0xdead);
    let seam = recorder(true);
    let mut session = Session::open(&case.image.bytes, capacity, alive, seam, Some(state))?;
    let mut universe = universe.to_vec();
    random.shuffle(&mut universe);
    let fresh = FRESH + 1_000_000;
    if reads {
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
    Ok(Recording::new(case.image, 0, capacity, (steps, events), 0, universe))
}
