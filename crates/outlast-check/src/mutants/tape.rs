//! The recorded runs from which mutants are made.

use crate::model::{self, Image, Kept, Timeline, stored};
use crate::parts::scenario::Scenario;
use crate::random::Random;
use crate::response;
use crate::session::{Do, PAGE_BITS, PoolShape, Session, Step, recorder};
use crate::state::{self, Checked, Records, State, ensure};
use crate::structures::Shape;
use imbl::ordmap::DiffItem;
use outlast::Error;
use outlast::internals::db::store::MapRequest;
use outlast::internals::pmem::{Access, Alive, Event, Mark, Seam};
use outlast::internals::pool::layout::ROOT_SLOTS;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Where the keys begin that later lives insert. In their first round, scenarios use none of these
/// keys.
const FRESH: u64 = 7_000_000;
/// Keys that are absent when the second life reads.
const ABSENT: [u64; 3] = [FRESH + 1, FRESH + 11, FRESH + 12];

/// What a crash may leave from some moment on.
#[derive(Debug, Clone)]
pub struct Allowed {
    /// The moment, as a number of events.
    pub from: usize,
    /// The allowed states; `None` means no pool.
    pub states: Vec<Option<Arc<State>>>,
}

/// A recorded run of one or two lives, and what its crashes may leave.
pub struct Tape {
    /// A name, for people.
    pub name: String,
    /// The bytes before the run, padded to the size that the pool can grow to.
    pub base: Image,
    /// The length of the file before the run, in bytes.
    pub len: u64,
    /// The recorded events.
    pub events: Vec<Event>,
    /// The first event of the life that is mutated.
    pub start: usize,
    /// Whether the mutated life is the second one, which may find stores that are not durable, or
    /// one after that.
    pub second: bool,
    /// The event of a second life at which it has looked everything up, and so has repaired it, and
    /// has done again what the first life was doing.
    pub(super) repaired: usize,
    /// What a crash may leave, in ascending order of the moment from which each entry holds.
    pub allowed: Vec<Allowed>,
    /// Every key that may be present, and some that never are.
    pub universe: Vec<u64>,
    /// The shape of new maps.
    pub shape: Shape,
    /// Whether crash images of the run are checked. If not, only the results of its operations are.
    pub images: bool,
}

/// Builds the image of everything that is visible.
pub(super) fn all(timeline: &Timeline<'_>) -> Image {
    let mut image = Image::default();
    timeline.all_but(&[], &mut image);
    image
}

/// Builds the image of everything durable and of the stores in `kept`.
pub(super) fn least_and(timeline: &Timeline<'_>, kept: &[Kept]) -> Image {
    let mut image = Image::default();
    timeline.least_and(kept, &mut image);
    image
}

/// Derives what a crash may leave of the life that begins at `start` from its steps' marks.
pub(super) fn placed(events: &[Event], start: usize, steps: &[Step]) -> Vec<Allowed> {
    let before = steps.first().and_then(|s| s.before.clone());
    let mut placed = vec![Allowed { from: 0, states: vec![before] }];
    let mut steps = steps.iter();
    let mut step = None;
    for (i, event) in events.iter().enumerate().skip(start) {
        let states = match event.access {
            Access::Mark(Mark::Begin(_)) => {
                step = steps.next();
                let Some(step) = step else { break };
                let mut states = vec![step.before.clone(), Some(Arc::clone(&step.after))];
                states.dedup();
                states.extend(step.between.iter().cloned().map(Some));
                states
            }
            Access::Mark(Mark::End(_)) => {
                let Some(step) = step else { break };
                vec![Some(Arc::clone(&step.after))]
            }
            _ => continue,
        };
        placed.push(Allowed { from: i + 1, states });
    }
    placed
}

/// Returns the key that a difference adds.
fn added(item: DiffItem<'_, '_, u64, u64>) -> Option<u64> {
    match item {
        DiffItem::Add(&key, _) => Some(key),
        DiffItem::Update { .. } | DiffItem::Remove(..) => None,
    }
}

/// Returns the change that makes a difference once more.
fn again(item: DiffItem<'_, '_, u64, u64>) -> (u64, Do) {
    match item {
        DiffItem::Add(&key, &value) => (key, Do::Put(value)),
        DiffItem::Update { new: (&key, &value), .. } => (key, Do::Put(value)),
        DiffItem::Remove(&key, _) => (key, Do::Remove),
    }
}

impl Tape {
    /// Plays and records a scenario.
    ///
    /// # Errors
    /// If the run itself goes wrong.
    pub fn first(scenario: &Scenario, alive: &Arc<Alive>) -> Checked<Tape> {
        let played = scenario.record(0, alive)?;
        if let Some(fault) = played.fault {
            return Err(fault);
        }
        let run = played.recording;
        let base = Image::of_file(&[], run.capacity());
        // Include the keys of records that the scenario inserts and removes in its preparation,
        // because the whole run counts here.
        let mut universe: BTreeSet<u64> = run.universe.iter().copied().collect();
        let mut last: HashMap<&str, &Records> = HashMap::new();
        for (name, map) in run.steps.iter().flat_map(|step| &step.after.maps) {
            match last.insert(name, &map.records) {
                // A step adds few keys to those of the step before it.
                Some(before) => universe.extend(before.diff(&map.records).filter_map(added)),
                None => universe.extend(map.records.keys()),
            }
        }
        Ok(Tape {
            name: scenario.name.clone(),
            base,
            len: scenario.pool.pages << PAGE_BITS,
            start: 0,
            second: false,
            repaired: 0,
            allowed: placed(&run.events, 0, &run.steps),
            events: run.events,
            universe: universe.into_iter().collect(),
            shape: scenario.shape,
            images: true,
        })
    }

    /// Returns the size that the pool can grow to, in bytes.
    pub fn capacity(&self) -> u64 {
        self.base.bytes.len() as u64
    }

    /// Returns what a crash may leave after the first `moment` events; `None` means no pool.
    pub fn allowed(&self, moment: usize) -> state::Allowed {
        let known = self.allowed.partition_point(|a| a.from <= moment);
        state::Allowed(self.allowed[known.max(1) - 1].states.clone())
    }

    /// Opens `file`, the image of a crash after the first `moment` events, and returns which of the
    /// allowed states it holds. Returns `None` if the image is not a pool.
    pub(super) fn state_of(
        &self,
        file: &[u8],
        moment: usize,
        alive: &Arc<Alive>,
    ) -> Checked<Option<Arc<State>>> {
        let capacity = self.capacity();
        let Ok(mut look) = Session::open(file, capacity, alive, recorder(false), None) else {
            return Ok(None);
        };
        let allowed = self.allowed(moment);
        look.settle(&allowed, &self.universe, true)?;
        Ok(Some(Arc::clone(look.state())))
    }

    /// Records the life that follows a power loss in this run. `file` is the image that the power
    /// loss has left, and `state` is what it holds.
    ///
    /// # Errors
    /// If that life goes wrong.
    pub(super) fn next_life(
        &self,
        file: &[u8],
        state: &Arc<State>,
        alive: &Arc<Alive>,
    ) -> Checked<Tape> {
        let capacity = self.capacity();
        let mut session = Session::open(file, capacity, alive, recorder(true), Some(state))?;
        // Take space before the reclaim frees any, so that the space taken lies beyond everything
        // that was in use.
        if state.maps.len() < ROOT_SLOTS {
            session.create_map("late", self.shape)?;
        }
        work(&mut session, state, &mut Random::new(1))?;
        let (steps, events, used) = session.finish();
        let base = Image::of_file(file, capacity);
        let universe: BTreeSet<u64> = self.universe.iter().copied().chain(used).collect();
        Ok(Tape {
            name: format!("a life after {}", self.name),
            base,
            len: file.len() as u64,
            start: 0,
            second: false,
            repaired: 0,
            allowed: placed(&events, 0, &steps),
            events,
            universe: universe.into_iter().collect(),
            shape: self.shape,
            images: true,
        })
    }

    /// Returns a run of two lives. The first process dies after the first `moment` events of this
    /// run and leaves all its stores in the caches, where the second life finds them.
    ///
    /// Returns `None` if that moment leaves no pool.
    ///
    /// # Errors
    /// If the second life goes wrong.
    pub fn second(&self, moment: usize, alive: &Arc<Alive>) -> Checked<Option<Tape>> {
        let mut timeline = Timeline::new(&self.base, self.len, &self.events);
        timeline.advance(moment);
        let file = all(&timeline).bytes;
        let capacity = self.capacity();
        let Some(state) = self.state_of(&file, moment, alive)? else { return Ok(None) };
        let seam = recorder(true);
        seam.start(true);
        let mut session = Session::open(&file, capacity, alive, seam.clone(), Some(&state))?;
        let mut random = Random::new(moment as u64);
        let mut universe = self.universe.clone();
        random.shuffle(&mut universe);
        // Look the keys up one by one, so that each result is checked by itself: when a lookup
        // returns, every store that its result depends on must be durable.
        let names: Vec<String> = state.maps.keys().cloned().collect();
        for name in &names {
            let keys = state.maps[name].records.keys().copied();
            let mut keys: Vec<u64> = keys.chain(ABSENT).collect();
            random.shuffle(&mut keys);
            for key in keys {
                session.get(name, key)?;
            }
        }
        session.check(&universe, random.below(2) == 0)?;
        let read = session.logged();
        self.repeat(&mut session, moment)?;
        let repeated = session.logged();
        // The checks use the recorded loads to find results that depend on undurable stores of the
        // first life. The lookups have repaired those stores, so the operations from here on need
        // no recorded loads.
        seam.start(false);
        work(&mut session, &state, &mut random)?;
        let (steps, life, used) = session.finish();
        let mut events = self.events[..moment].to_vec();
        events.push(Event { thread: 0, point: None, access: Access::Mark(Mark::Death) });
        let start = events.len();
        let ends =
            life.iter().enumerate().filter(|(_, e)| matches!(e.access, Access::Mark(Mark::End(_))));
        let repaired = start + ends.map(|(at, _)| at).take(repeated).last().unwrap_or(0);
        events.extend(life);
        universe.extend(used);
        let universe: BTreeSet<u64> = universe.into_iter().collect();
        // Until the reads are over, whatever the first life had in flight can still appear or
        // vanish. (The check of the trace ensures that no result depends on it.) `allowed` has two
        // entries for each step.
        let mut allowed = placed(&events, start, &steps);
        let either = self.allowed(moment).0;
        for entry in allowed.iter_mut().take(2 * read) {
            entry.states.clone_from(&either);
        }
        Ok(Some(Tape {
            name: format!("{}, opened after event {moment}", self.name),
            base: self.base.clone(),
            len: self.len,
            second: true,
            repaired,
            allowed,
            events,
            start,
            universe: universe.into_iter().collect(),
            shape: self.shape,
            images: self.images,
        }))
    }

    /// Makes the changes that were in flight after the first `moment` events once more, so that
    /// this life comes to the place where the first one died.
    fn repeat(&self, session: &mut Session, moment: usize) -> Checked {
        let states = self.allowed(moment).0;
        let [Some(before), Some(after), ..] = &states[..] else { return Ok(()) };
        for (name, map) in &after.maps {
            let Some(old) = before.maps.get(name) else { continue };
            if !session.state().maps.contains_key(name) {
                continue;
            }
            let changes: Vec<(u64, Do)> = old.records.diff(&map.records).map(again).collect();
            for (key, change) in changes {
                session.change(name, key, change)?;
            }
        }
        Ok(())
    }

    /// Records a run that uses every root slot.
    ///
    /// # Errors
    /// If the run itself goes wrong.
    pub fn every_root(shape: Shape, alive: &Arc<Alive>) -> Checked<Tape> {
        let pool = PoolShape { max_pages: 256, ..PoolShape::default() };
        let mut session = Session::create(pool, alive, recorder(true))?;
        for n in 0..ROOT_SLOTS {
            session.create_map(&format!("m{n}"), shape)?;
        }
        Ok(Self::of("every root", pool, shape, session))
    }

    /// Records a run that claims pages up to the end of a region and beyond it.
    ///
    /// # Errors
    /// If the run itself goes wrong.
    pub fn next_region(shape: Shape, alive: &Arc<Alive>) -> Checked<Tape> {
        let pool = PoolShape { max_pages: 800, ..PoolShape::default() };
        let seam = recorder(true);
        let session = Session::create(pool, alive, seam.clone())?;
        let core = Arc::clone(session.store().core());
        let writing = core.enter()?;
        for _ in 0..6 {
            seam.mark(|| Mark::Begin("allocate".into()));
            core.allocate(100 << PAGE_BITS)?;
            seam.mark(|| Mark::End("allocate".into()));
        }
        drop(writing);
        Ok(Self::of("next region", pool, shape, session))
    }

    /// Records a run in which one thread fails to create a map because the pool is full, and
    /// another thread creates one once there is space. The second thread's fences do not complete
    /// flushes of the first.
    ///
    /// # Errors
    /// If the run itself goes wrong.
    pub fn refused(shape: Shape, alive: &Arc<Alive>) -> Checked<Tape> {
        let pool = PoolShape::default();
        let mut session = Session::create(pool, alive, recorder(true))?;
        let core = Arc::clone(session.store().core());
        let mut taken = Vec::new();
        let full = {
            let _writing = core.enter()?;
            loop {
                match core.allocate(1 << PAGE_BITS) {
                    Ok(block) => taken.push(block.offset),
                    Err(error) => break error,
                }
            }
        };
        ensure(matches!(full, Error::PoolFull { .. }), || format!("filling the pool: {full}"))?;
        let request = MapRequest { info: shape.info("refused"), scheme_matters: true };
        let store = session.store();
        let refused = std::thread::scope(|scope| scope.spawn(|| store.map(&request)).join());
        ensure(matches!(refused, Ok(Err(Error::PoolFull { .. }))), || {
            "a map was made in a full pool".into()
        })?;
        {
            let _writing = core.enter()?;
            taken.drain(..).for_each(|offset| core.free_unlinked(offset));
        }
        session.create_map("m", shape)?;
        session.change("m", FRESH, Do::Insert(FRESH + 7))?;
        Ok(Tape { images: true, ..Self::of("refused", pool, shape, session) })
    }

    fn of(name: &str, pool: PoolShape, shape: Shape, session: Session) -> Tape {
        let (steps, events, used) = session.finish();
        Tape {
            name: name.into(),
            base: Image::of_file(&[], pool.max_pages << PAGE_BITS),
            len: pool.pages << PAGE_BITS,
            start: 0,
            second: false,
            repaired: 0,
            allowed: placed(&events, 0, &steps),
            events,
            universe: used.into_iter().collect(),
            shape,
            images: false,
        }
    }

    /// See [`model::deaths`].
    pub fn deaths(&self) -> Vec<usize> {
        model::deaths(&self.events, self.start)
    }

    /// Lists moments of a second life at which it has just stored something for its repair, or to
    /// do again what the first life was doing: the first such store at each commit point.
    pub fn repairs(&self) -> Vec<usize> {
        let mut points = BTreeSet::new();
        let life = self.start..self.repaired;
        let stores = life.filter(|&i| stored(&self.events[i]).is_some());
        let durable = |i: &usize| self.events[*i].point.is_some_and(|p| !p.volatile);
        let first = stores.filter(durable).filter(|&i| points.insert(self.events[i].point));
        first.map(|i| i + 1).collect()
    }

    /// Describes the first store that is not durable although a result depends on it or its
    /// operation has returned.
    pub fn undurable(&self, events: &[Event]) -> Option<String> {
        let life = &events[self.start..];
        if let Some(found) = response::undurable(life).first() {
            return Some(found.to_string());
        }
        if !self.second {
            return None;
        }
        let pending = response::pending_after(&events[..self.start]);
        response::resting_on(pending, life).first().map(ToString::to_string)
    }
}

fn work(session: &mut Session, state: &Arc<State>, random: &mut Random) -> Checked {
    for (i, (name, map)) in state.maps.iter().enumerate().take(2) {
        let present: Vec<u64> = map.records.keys().copied().collect();
        for round in 0..6 {
            if !present.is_empty() {
                let key = present[random.below(present.len() as u64) as usize];
                let change = if round % 2 == 0 { Do::Remove } else { Do::Put(FRESH + round) };
                session.change(name, key, change)?;
            }
            session.change(name, FRESH + round + 100 * i as u64, Do::Insert(FRESH + 7))?;
        }
    }
    while session.is_reclaiming() {
        session.background()?;
    }
    for name in state.maps.keys() {
        session.change(name, FRESH + 50, Do::Put(FRESH + 60_000))?;
    }
    session.sync()
}
