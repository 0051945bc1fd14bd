//! Runs of two threads, for fences that only another thread can miss.
//!
//! What one thread has flushed and not fenced becomes durable with its next fence,
//! whatever that was for. So a fence that is missing between a change and its publication
//! does no harm as long as the same thread goes on. Here it does not: it is stopped for
//! ever, soon after each of its fences, and another thread builds on what it has done.

use super::tape::{Allowed, Tape, least_and};
use crate::codec::{Form, SPECIAL};
use crate::model::{Image, Timeline, stored};
use crate::response::is_durable;
use crate::session::{Do, PAGE_BITS, PoolShape, Session, Shape, Step, open_bytes, recorder};
use crate::state::{Checked, Fault, MapState, State};
use crate::with_form;
use outlast::db::store::{MapRequest, OpenMap, Store};
use outlast::index::{Change, Index, Record};
use outlast::pmem::{Access, Alive, Control, Event, Mark, Point, Seam, Traced};
use outlast::{RecordForm, Scheme};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

thread_local! {
    /// Whether this thread is the one that is stopped.
    static STOPS: Cell<bool> = const { Cell::new(false) };
    /// Whether it is a second one that is stopped.
    static STOPS_TOO: Cell<bool> = const { Cell::new(false) };
}

/// Turns of waiting after which the second thread counts as waiting for the first.
const PATIENCE: u64 = 200;

#[derive(Default)]
struct Stop {
    /// Accesses of the first thread before its stop.
    left: AtomicU64,
    stopped: AtomicBool,
    /// Instead of a number of accesses: it is stopped after its first store of this point.
    after: Option<&'static Point>,
    /// The second thread needs the first, or all is over.
    go_on: AtomicBool,
    turns: AtomicU64,
    /// Where a second thread is stopped, if one is.
    second: Option<Arc<Stop>>,
}

struct Shared(Arc<Stop>);

impl Stop {
    /// Lets who is stopped go on, and whoever is stopped beside it.
    fn release(&self) {
        let second = self.second.as_deref();
        for stop in [Some(self), second].into_iter().flatten() {
            stop.go_on.store(true, Ordering::SeqCst);
        }
    }
}

impl Shared {
    /// Where the calling thread is stopped, if it is.
    fn own(&self) -> Option<&Stop> {
        if STOPS.get() {
            Some(&self.0)
        } else if STOPS_TOO.get() {
            self.0.second.as_deref()
        } else {
            None
        }
    }
}

impl Control for Shared {
    fn after(&self, access: &Access, point: Option<&'static Point>) {
        let Some(stop) = self.own() else { return };
        let stores = matches!(
            access,
            Access::Store { .. } | Access::CompareExchange { exchanged: true, .. }
        );
        if stores && stop.after.is_some() && stop.after == point {
            stop.left.store(1, Ordering::SeqCst);
        }
    }

    fn before(&self, _thread: usize, waiting: bool) {
        if waiting {
            // The first one waits for nobody who is stopped before it.
            if !STOPS.get() && self.0.turns.fetch_add(1, Ordering::SeqCst) > PATIENCE {
                self.0.release();
                // The stopped ones must get a processor before this one gives up.
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
            return;
        }
        let Some(stop) = self.own() else { return };
        if stop.left.load(Ordering::SeqCst) == 0 {
            return;
        }
        if stop.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            stop.stopped.store(true, Ordering::SeqCst);
            while !stop.go_on.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }
}

/// A map that is filled key by key, and what the second thread does.
#[derive(Clone, Copy)]
struct Plan {
    name: &'static str,
    pool: PoolShape,
    shape: Shape,
    first: u64,
    keys: u64,
}

fn plans(scheme: Scheme, form: RecordForm) -> [Plan; 2] {
    let shape = Shape::smallest(scheme, form);
    let pool = PoolShape::default();
    let colliding = PoolShape { hash_function: 0x7e57, max_pages: 160, ..pool };
    [
        Plan { name: "two threads", pool, shape, first: 10, keys: 260 },
        Plan { name: "two threads, one hash", pool: colliding, shape, first: SPECIAL, keys: 70 },
    ]
}

/// What the second thread does.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Insert,
    Update,
    CreateMap,
    RemoveAll,
}

impl Plan {
    fn value(key: u64) -> u64 {
        (key & 0xffff) + 100_000
    }

    fn session(&self, seam: &Traced, alive: &Arc<Alive>) -> Checked<Session> {
        let mut session = Session::create(self.pool, alive, seam.clone())?;
        session.create_map("m", self.shape)?;
        Ok(session)
    }

    /// The inserts worth stopping in: for each commit point with a fence, the first insert
    /// that makes it and one later; with the number of accesses up to each of its fences.
    fn chosen(&self, alive: &Arc<Alive>) -> Checked<BTreeMap<u64, Vec<u64>>> {
        let seam = Traced::new();
        let mut session = self.session(&seam, alive)?;
        let mut seen: BTreeMap<&Point, usize> = BTreeMap::new();
        let mut chosen = BTreeMap::new();
        for n in 0..self.keys {
            seam.take();
            seam.start(true);
            session.change("m", self.first + n, Do::Insert(Self::value(n)))?;
            let mut wanted = false;
            let mut accesses = 0;
            let mut fences = Vec::new();
            let mut points: BTreeSet<&Point> = BTreeSet::new();
            let events = seam.take();
            for (i, event) in events.iter().enumerate() {
                accesses += u64::from(!matches!(event.access, Access::Mark(_)));
                let Some(point) = event.point else { continue };
                // Where the fence is missing, the place is that of the flush before it.
                let next = events.get(i + 1).map(|next| &next.access);
                let more = matches!(next, Some(Access::Fence | Access::Flush { .. }));
                let ends = match event.access {
                    Access::Fence => true,
                    Access::Flush { .. } => point.fence && !more,
                    _ => false,
                };
                if ends {
                    fences.push(accesses);
                    points.insert(point);
                }
            }
            for point in points {
                let times = seen.entry(point).or_default();
                *times += 1;
                wanted |= [1, 3].contains(times);
            }
            if wanted {
                chosen.insert(n, fences);
            }
        }
        Ok(chosen)
    }

    /// Inserts key number `n` by a thread that is stopped before its access `stop`, while
    /// this one does something. `None` if it has to wait for the other.
    fn record(
        &self,
        n: u64,
        stop_at: u64,
        beside: Beside,
        alive: &Arc<Alive>,
    ) -> Checked<Option<Tape>> {
        let stop = Arc::new(Stop::default());
        let seam = Traced::with_control(Box::new(Shared(Arc::clone(&stop))));
        seam.start(false);
        let mut session = self.session(&seam, alive)?;
        for i in 0..n {
            session.change("m", self.first + i, Do::Insert(Self::value(i)))?;
        }
        let before = Arc::clone(session.state());
        let store = Arc::clone(session.store());
        let (key, other) = (self.first + n, self.first + n + 1);
        let insert = |state: &State, key: u64, value: u64| {
            let mut state = state.clone();
            if let Some(map) = state.maps.get_mut("m") {
                map.records.insert(key, value);
            }
            state
        };
        // The first keys, in the order of their removal.
        let remove = |state: &State, count: u64| {
            let mut state = state.clone();
            if let Some(map) = state.maps.get_mut("m") {
                map.records.retain(|key, _| !(self.first..self.first + count).contains(key));
            }
            state
        };
        let value = Self::value(n);
        let do_beside = |state: &State| {
            let mut state = state.clone();
            match beside {
                Beside::Insert => return insert(&state, other, value + 1),
                Beside::Update => return insert(&state, self.first, value + 2),
                Beside::RemoveAll => return remove(&state, n),
                Beside::CreateMap => {
                    let map = MapState { form: self.shape.form, records: BTreeMap::new() };
                    state.maps.insert("n".into(), map);
                }
            }
            state
        };
        // The mark of its beginning is one.
        stop.left.store(stop_at + 1, Ordering::SeqCst);
        let map = store.open_map("m")?;
        let done = std::thread::scope(|scope| -> Checked<Option<Vec<Event>>> {
            let (theirs, their_seam) = (Arc::clone(&map), seam.clone());
            let first = scope.spawn(move || {
                STOPS.set(true);
                their_seam.mark(|| Mark::Begin(format!("insert of key {key}")));
                change(&theirs, key, Do::Insert(value))
            });
            while !stop.stopped.load(Ordering::SeqCst) && !first.is_finished() {
                std::thread::yield_now();
            }
            let reached = stop.stopped.load(Ordering::SeqCst);
            seam.mark(|| Mark::Begin("beside it".into()));
            let made = match beside {
                Beside::Insert => change(&map, other, Do::Insert(value + 1)),
                Beside::Update => change(&map, self.first, Do::Update(value + 2)),
                Beside::RemoveAll => {
                    (0..n).try_for_each(|i| change(&map, self.first + i, Do::Remove))
                }
                Beside::CreateMap => {
                    let request = MapRequest { info: self.shape.info("n"), scheme_matters: true };
                    store.map(&request).map(|_| ()).map_err(Fault::from)
                }
            };
            seam.mark(|| Mark::End("beside it".into()));
            let alone = !stop.go_on.load(Ordering::SeqCst);
            let events = seam.take();
            stop.go_on.store(true, Ordering::SeqCst);
            first.join().unwrap_or_else(|_| Err(Fault("the stopped thread panicked".into())))?;
            made?;
            Ok((reached && alone).then_some(events))
        });
        let Some(events) = done? else { return Ok(None) };
        let (steps, _, used) = session.finish();
        let first = insert(&before, key, value);
        let marks = marks(&events);
        let [begin_first, begin_second, end_second] = marks[marks.len() - 3..] else {
            return Err(Fault("a run without its marks".into()));
        };
        let mut allowed = super::tape::placed(&events, 0, &steps);
        let states =
            |states: Vec<Option<Arc<State>>>, after: usize| Allowed { from: after + 1, states };
        allowed.push(states(
            vec![Some(Arc::clone(&before)), Some(Arc::new(first.clone()))],
            begin_first,
        ));
        let mut mixed =
            vec![State::clone(&before), first.clone(), do_beside(&before), do_beside(&first)];
        if beside == Beside::RemoveAll {
            mixed.extend((1..n).flat_map(|i| [remove(&before, i), remove(&first, i)]));
        }
        allowed.push(states(mixed.into_iter().map(|s| Some(Arc::new(s))).collect(), begin_second));
        let after = vec![Some(Arc::new(do_beside(&before))), Some(Arc::new(do_beside(&first)))];
        allowed.push(states(after, end_second));
        let mut universe: Vec<u64> = used.into_iter().chain([key, other, 3, 999_999]).collect();
        universe.sort_unstable();
        universe.dedup();
        Ok(Some(Tape {
            name: format!("{}: insert {n} stopped before access {stop_at}", self.name),
            base: Image::of_file(&[], self.pool.max_pages << PAGE_BITS),
            len: self.pool.pages << PAGE_BITS,
            start: begin_first,
            events,
            second: false,
            allowed,
            universe,
            shape: self.shape,
            images: true,
        }))
    }
}

/// What a thread does when two meet.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Op {
    Change(u64, Do),
    Get(u64),
    Background,
}

/// What it was told: whether it applied and whether the key was there, or the key's value.
#[derive(PartialEq)]
enum Told {
    Changed(bool, bool),
    Value(Option<u64>),
    Nothing,
}

impl Op {
    fn ask(self, store: &Store<Traced>, map: &OpenMap) -> Checked<Told> {
        with_form!(map.index(), R, index => Ok(match self {
            Op::Background => {
                store.step()?;
                Told::Nothing
            }
            Op::Get(key) => {
                let found = Index::<R>::get(&**index, R::key_of(&R::nth_key(key)))?;
                Told::Value(found.as_ref().and_then(R::value_number))
            }
            Op::Change(key, what) => {
                let value = R::nth_value(match what {
                    Do::Insert(v) | Do::Update(v) | Do::Put(v) | Do::Swap(_, v) => v,
                    Do::Remove => 0,
                });
                let change = match what {
                    Do::Remove => Change::Remove,
                    Do::Insert(_) => Change::Insert(R::value_of(&value)),
                    Do::Put(_) => Change::Put(R::value_of(&value)),
                    Do::Update(_) | Do::Swap(..) => Change::Update(R::value_of(&value)),
                };
                let done = Index::<R>::change(&**index, R::key_of(&R::nth_key(key)), change, false)?;
                Told::Changed(done.applied, done.present)
            }
        }))
    }

    /// The state after it, and what it tells.
    fn on(self, state: &State) -> (State, Told) {
        let mut state = state.clone();
        let Some(map) = state.maps.get_mut("m") else { return (state, Told::Nothing) };
        match self {
            Op::Background => (state, Told::Nothing),
            Op::Get(key) => {
                let told = Told::Value(map.records.get(&key).copied());
                (state, told)
            }
            Op::Change(key, what) => {
                let before = map.records.get(&key).copied();
                let (applies, after) = what.on(before);
                match after {
                    Some(value) => map.records.insert(key, value),
                    None => map.records.remove(&key),
                };
                (state, Told::Changed(applies, before.is_some()))
            }
        }
    }

    fn key(self) -> Option<u64> {
        match self {
            Op::Change(key, _) | Op::Get(key) => Some(key),
            Op::Background => None,
        }
    }
}

impl Plan {
    /// The pairs that meet, after so many inserts. What the first one does takes different ways
    /// after each of these numbers.
    fn meetings(&self, alive: &Arc<Alive>) -> Checked<Vec<(u64, Op, Op)>> {
        let mut all = Vec::new();
        for n in self.chosen(alive)?.into_keys().filter(|&n| n > 0) {
            let (new, old, other) = (self.first + n, self.first, self.first + n + 1);
            let insert = |key| Op::Change(key, Do::Insert(61));
            let update = |key| Op::Change(key, Do::Update(62));
            let remove = |key| Op::Change(key, Do::Remove);
            // It changes nothing, but what it finds on its way may count on from there.
            all.push((n, Op::Change(new, Do::Insert(51)), update(other)));
            for first in
                [Op::Change(new, Do::Insert(51)), Op::Change(old, Do::Update(52)), remove(old)]
            {
                let key = first.key().unwrap_or(old);
                let seconds = [Op::Get(key), insert(key), update(key), remove(key), insert(other)];
                all.extend(seconds.map(|second| (n, first, second)));
            }
            for second in [Op::Get(old), update(old), remove(old), insert(new)] {
                all.push((n, Op::Background, second));
            }
        }
        Ok(all)
    }

    /// Two threads meet: one is stopped before its access `stop_at`, or after its operation, and
    /// the other one does something; then the first goes on. `None` if the second has to wait.
    fn meet(
        &self,
        n: u64,
        (first, second): (Op, Op),
        stop_at: u64,
        alive: &Arc<Alive>,
    ) -> Checked<Option<Tape>> {
        let stop = Arc::new(Stop::default());
        let seam = Traced::with_control(Box::new(Shared(Arc::clone(&stop))));
        seam.start(false);
        let mut session = self.session(&seam, alive)?;
        for i in 0..n {
            session.change("m", self.first + i, Do::Insert(Self::value(i)))?;
        }
        let before = Arc::clone(session.state());
        let store = Arc::clone(session.store());
        let map = store.open_map("m")?;
        // Of nobody's key.
        let third = Op::Change(self.first + n + 2, Do::Insert(71));
        // The mark of its beginning is one.
        stop.left.store(stop_at + 1, Ordering::SeqCst);
        let met = std::thread::scope(|scope| -> Checked<Option<(Told, Vec<Event>)>> {
            let (store, map, seam, stop) = (&store, &map, &seam, &stop);
            let stopped = scope.spawn(move || {
                STOPS.set(true);
                seam.mark(|| Mark::Begin(format!("first: {first:?}")));
                first.ask(store, map)?;
                seam.mark(|| Mark::End("first".into()));
                Ok::<(), Fault>(())
            });
            while !stop.stopped.load(Ordering::SeqCst) && !stopped.is_finished() {
                std::thread::yield_now();
            }
            seam.mark(|| Mark::Begin(format!("second: {second:?}")));
            let told = second.ask(store, map);
            seam.mark(|| Mark::End("second".into()));
            let third = || {
                seam.mark(|| Mark::Begin(format!("third: {third:?}")));
                third.ask(store, map)?;
                seam.mark(|| Mark::End("third".into()));
                Ok::<(), Fault>(())
            };
            let third = scope.spawn(third).join();
            third.unwrap_or_else(|_| Err(Fault("the third thread panicked".into())))?;
            let alone = !stop.go_on.load(Ordering::SeqCst);
            stop.go_on.store(true, Ordering::SeqCst);
            stopped.join().unwrap_or_else(|_| Err(Fault("the stopped thread panicked".into())))?;
            Ok(alone.then_some((told?, seam.take())))
        })?;
        let Some((told, events)) = met else { return Ok(None) };
        let (steps, _, used) = session.finish();
        // What is there in the end.
        let mut last = State::clone(&before);
        for key in [first.key(), second.key(), third.key()].into_iter().flatten() {
            let found = Op::Get(key).ask(&store, &map)?;
            let records = last.maps.get_mut("m").map(|map| &mut map.records);
            match (records, found) {
                (Some(records), Told::Value(Some(value))) => drop(records.insert(key, value)),
                (Some(records), _) => drop(records.remove(&key)),
                (None, _) => {}
            }
        }
        let allowed = met_states(&events, &steps, &before, (first, second, third), &told, last)?;
        let mut universe: Vec<u64> = used.into_iter().chain([3, 999_999]).collect();
        universe.extend([first.key(), second.key(), third.key()].into_iter().flatten());
        universe.sort_unstable();
        universe.dedup();
        Ok(Some(Tape {
            name: format!("{}: {first:?} after {n}, met by {second:?} at {stop_at}", self.name),
            base: Image::of_file(&[], self.pool.max_pages << PAGE_BITS),
            len: self.pool.pages << PAGE_BITS,
            start: marks(&events)[marks(&events).len() - 6],
            events,
            second: false,
            allowed,
            universe,
            shape: self.shape,
            images: true,
        }))
    }

    /// Where the first of two is stopped: after the last of each row of stores of one commit
    /// point, and after its operation.
    fn stops(&self, n: u64, first: Op, alive: &Arc<Alive>) -> Checked<Vec<u64>> {
        let seam = recorder(false);
        let mut session = self.session(&seam, alive)?;
        for i in 0..n {
            session.change("m", self.first + i, Do::Insert(Self::value(i)))?;
        }
        let map = session.store().open_map("m")?;
        seam.start(true);
        first.ask(session.store(), &map)?;
        let events = seam.take();
        let accesses = events.iter().filter(|e| !matches!(e.access, Access::Mark(_)));
        let stores: Vec<(u64, Option<&Point>)> = (1..)
            .zip(accesses)
            .filter(|(_, event)| stored(event).is_some())
            .map(|(number, event)| (number, event.point))
            .collect();
        let ends = stores.windows(2).filter(|pair| pair[0].1 != pair[1].1).map(|pair| pair[0].0);
        let last = stores.last().map(|store| store.0);
        Ok(ends.chain(last).map(|number| number + 1).chain([1 << 40]).collect())
    }
}

impl Plan {
    /// The commit point by which an insert takes effect: that of its last durable store.
    fn effect(&self, alive: &Arc<Alive>) -> Checked<Option<&'static Point>> {
        let seam = recorder(false);
        let mut session = self.session(&seam, alive)?;
        seam.take();
        seam.start(false);
        session.change("m", self.first, Do::Insert(Self::value(0)))?;
        let events = seam.take();
        let durable = |e: &&Event| stored(e).is_some() && is_durable(e.point);
        Ok(events.iter().rev().find(durable).and_then(|event| event.point))
    }

    /// Two inserts, of keys of their own: the first one is stopped before its access `stop_at`,
    /// the second one when it has taken effect, by its store of the point `effect`, and before
    /// that is flushed. A third thread looks the second one's key up. `None` if somebody has to
    /// wait, or is not stopped.
    fn behind(
        &self,
        n: u64,
        stop_at: u64,
        effect: &'static Point,
        alive: &Arc<Alive>,
    ) -> Checked<Option<Tape>> {
        let second = Arc::new(Stop { after: Some(effect), ..Stop::default() });
        let first = Arc::new(Stop { second: Some(Arc::clone(&second)), ..Stop::default() });
        let seam = Traced::with_control(Box::new(Shared(Arc::clone(&first))));
        seam.start(false);
        let mut session = self.session(&seam, alive)?;
        for i in 0..n {
            session.change("m", self.first + i, Do::Insert(Self::value(i)))?;
        }
        let before = Arc::clone(session.state());
        let store = Arc::clone(session.store());
        let map = store.open_map("m")?;
        let keys = [self.first + n, self.first + n + 1];
        let ops = keys.map(|key| Op::Change(key, Do::Insert(51)));
        // The mark of its beginning is one.
        first.left.store(stop_at + 1, Ordering::SeqCst);
        let met = std::thread::scope(|scope| -> Checked<Option<(Told, Vec<Event>)>> {
            let mut threads = Vec::new();
            for (number, stop) in [&first, &second].into_iter().enumerate() {
                let (store, map, seam, op) = (&store, &map, &seam, ops[number]);
                let thread = scope.spawn(move || {
                    if number == 0 {
                        STOPS.set(true)
                    } else {
                        STOPS_TOO.set(true)
                    }
                    seam.mark(|| Mark::Begin(format!("{op:?}")));
                    op.ask(store, map).map(|_| ())
                });
                while !stop.stopped.load(Ordering::SeqCst) && !thread.is_finished() {
                    std::thread::yield_now();
                }
                threads.push(thread);
            }
            seam.mark(|| Mark::Begin(format!("get {}", keys[1])));
            let told = Op::Get(keys[1]).ask(&store, &map);
            seam.mark(|| Mark::End("get".into()));
            let events = seam.take();
            let stopped = [&first, &second].map(|stop| {
                let alone = !stop.go_on.swap(true, Ordering::SeqCst);
                alone && stop.stopped.load(Ordering::SeqCst)
            });
            for thread in threads {
                thread.join().unwrap_or_else(|_| Err(Fault("a thread panicked".into())))?;
            }
            Ok((stopped == [true; 2]).then_some((told?, events)))
        })?;
        let Some((told, events)) = met else { return Ok(None) };
        let (steps, _, used) = session.finish();
        let mut states = vec![State::clone(&before)];
        for op in ops {
            states = states.iter().flat_map(|state| [state.clone(), op.on(state).0]).collect();
        }
        let is_told = |state: &&State| Op::Get(keys[1]).on(state).1 == told;
        let consistent: Vec<State> = states.iter().filter(is_told).cloned().collect();
        let marks = marks(&events);
        let [begin, _, _, end] = marks[marks.len() - 4..] else {
            return Err(Fault("a run without its marks".into()));
        };
        let mut allowed = super::tape::placed(&events, 0, &steps);
        for (mark, states) in [(begin, states), (end, consistent)] {
            let states = states.into_iter().map(|s| Some(Arc::new(s))).collect();
            allowed.push(Allowed { from: mark + 1, states });
        }
        let universe: BTreeSet<u64> = used.into_iter().chain(keys).chain([3, 999_999]).collect();
        Ok(Some(Tape {
            name: format!("{}: two inserts after {n}, stopped at {stop_at}", self.name),
            base: Image::of_file(&[], self.pool.max_pages << PAGE_BITS),
            len: self.pool.pages << PAGE_BITS,
            start: begin,
            events,
            second: false,
            allowed,
            universe: universe.into_iter().collect(),
            shape: self.shape,
            images: true,
        }))
    }
}

/// What a crash may leave of a run in which two met, and a third one came later.
fn met_states(
    events: &[Event],
    steps: &[Step],
    before: &State,
    (first, second, third): (Op, Op, Op),
    told: &Told,
    last: State,
) -> Checked<Vec<Allowed>> {
    let mut allowed = super::tape::placed(events, 0, steps);
    let marks = marks(events);
    let mut mark = marks.len() - 6;
    let mut add = |states: Vec<State>| {
        let states = states.into_iter().map(|s| Some(Arc::new(s))).collect();
        allowed.push(Allowed { from: marks[mark] + 1, states });
        mark += 1;
    };
    let with_third = |states: &[State]| -> Vec<State> {
        states.iter().flat_map(|state| [state.clone(), third.on(state).0]).collect()
    };
    let (done, _) = first.on(before);
    let either = vec![before.clone(), done.clone()];
    add(either.clone());
    let ended = matches!(&events[marks[marks.len() - 5]].access, Access::Mark(Mark::End(_)));
    if ended {
        let after = second.on(&done).0;
        add(vec![done.clone()]);
        add(vec![done, after.clone()]);
        add(vec![after.clone()]);
        add(with_third(&[after]));
        add(vec![last]);
        return Ok(allowed);
    }
    // The second one comes first, and the first is in flight, or the other way round.
    let then = second.on(before);
    let then_first = second.on(&done);
    let mut after = Vec::new();
    if then.1 == *told {
        after.extend([first.on(&then.0).0, then.0.clone()]);
    }
    if then_first.1 == *told {
        after.push(then_first.0.clone());
    }
    crate::state::ensure(!after.is_empty(), || {
        format!("{second:?} beside {first:?} was told what is not so")
    })?;
    let between = [first.on(&then.0).0, then.0, then_first.0].into_iter().chain(either);
    add(between.collect());
    add(after.clone());
    add(with_third(&after));
    add(after.iter().map(|state| third.on(state).0).collect());
    add(vec![last]);
    Ok(allowed)
}

fn marks(events: &[Event]) -> Vec<usize> {
    let is_mark = |e: &Event| matches!(e.access, Access::Mark(_));
    (0..events.len()).filter(|&i| is_mark(&events[i])).collect()
}

fn change(map: &OpenMap, key: u64, what: Do) -> Checked {
    with_form!(map.index(), R, index => {
        let key = R::nth_key(key);
        let v = match what {
            Do::Insert(v) | Do::Update(v) | Do::Put(v) | Do::Swap(_, v) => v,
            Do::Remove => 0,
        };
        let value = R::nth_value(v);
        let change = match what {
            Do::Remove => Change::Remove,
            Do::Insert(_) => Change::Insert(R::value_of(&value)),
            _ => Change::Update(R::value_of(&value)),
        };
        let done = Index::<R>::change(&**index, R::key_of(&key), change, false)?;
        crate::state::ensure(done.applied, || format!("{what:?} was not applied"))
    })
}

/// Records all runs.
///
/// # Errors
/// If one goes wrong.
pub fn record(scheme: Scheme, form: RecordForm, alive: &Arc<Alive>) -> Checked<Vec<Tape>> {
    let mut tapes = stopped(scheme, form, alive)?;
    met(scheme, form, alive, &mut |tape| {
        tapes.push(tape);
        Ok(())
    })?;
    Ok(tapes)
}

/// Records those in which one thread is stopped for ever.
///
/// # Errors
/// If one goes wrong.
pub fn stopped(scheme: Scheme, form: RecordForm, alive: &Arc<Alive>) -> Checked<Vec<Tape>> {
    let mut tapes = Vec::new();
    for plan in plans(scheme, form) {
        for (n, fences) in plan.chosen(alive)? {
            for (i, &fence) in fences.iter().enumerate() {
                // As soon after the fence as the other thread can pass.
                let end = fences.get(i + 1).copied().unwrap_or(fence + 140);
                for beside in [Beside::Insert, Beside::Update, Beside::CreateMap, Beside::RemoveAll]
                {
                    if n == 0 && matches!(beside, Beside::Update | Beside::RemoveAll) {
                        continue;
                    }
                    for distance in [1, 2, 4, 6, 9, 14, 24, 40, 60, 90, 130] {
                        if fence + distance > end {
                            break;
                        }
                        if let Some(tape) = plan.record(n, fence + distance, beside, alive)? {
                            tapes.push(tape);
                            break;
                        }
                    }
                }
            }
        }
    }
    Ok(tapes)
}

/// Records lookups that make durable what another thread has not yet: it is stopped for ever
/// before each of its accesses in turn, and this one looks its key up. Those runs are kept in
/// which the lookup flushes; a scheme whose lookups never do has none.
///
/// # Errors
/// If a run goes wrong.
pub fn lookups(scheme: Scheme, form: RecordForm, alive: &Arc<Alive>) -> Checked<Vec<Tape>> {
    let plan = plans(scheme, form)[0];
    let mut tapes = Vec::new();
    for what in [Do::Insert(55), Do::Update(66), Do::Remove] {
        for stop_at in 1..2_000 {
            let Some(tape) = plan.looked_up(stop_at, what, alive)? else { break };
            tapes.extend(tape);
        }
    }
    Ok(tapes)
}

impl Plan {
    /// `None` if the first thread has fewer accesses; `Some(None)` if the lookup flushes nothing.
    fn looked_up(
        &self,
        stop_at: u64,
        what: Do,
        alive: &Arc<Alive>,
    ) -> Checked<Option<Option<Tape>>> {
        let stop = Arc::new(Stop::default());
        let seam = Traced::with_control(Box::new(Shared(Arc::clone(&stop))));
        seam.start(false);
        let mut session = self.session(&seam, alive)?;
        for i in 0..8 {
            session.change("m", self.first + i, Do::Insert(Self::value(i)))?;
        }
        let key = self.first + if matches!(what, Do::Insert(_)) { 20 } else { 3 };
        let before = Arc::clone(session.state());
        let mut after = State::clone(&before);
        if let Some(map) = after.maps.get_mut("m") {
            match what.on(map.records.get(&key).copied()).1 {
                Some(value) => map.records.insert(key, value),
                None => map.records.remove(&key),
            };
        }
        let after = Arc::new(after);
        let map = session.store().open_map("m")?;
        let old = value(&map, key)?;
        // The mark of its beginning is one.
        stop.left.store(stop_at + 1, Ordering::SeqCst);
        type Seen = (Option<String>, Vec<Event>);
        let seen = std::thread::scope(|scope| -> Checked<Option<Seen>> {
            let (theirs, their_seam) = (Arc::clone(&map), seam.clone());
            let first = scope.spawn(move || {
                STOPS.set(true);
                their_seam.mark(|| Mark::Begin(format!("{what:?} of key {key}")));
                change(&theirs, key, what)
            });
            while !stop.stopped.load(Ordering::SeqCst) && !first.is_finished() {
                std::thread::yield_now();
            }
            let reached = stop.stopped.load(Ordering::SeqCst);
            seam.mark(|| Mark::Begin("lookup beside it".into()));
            let found = value(&map, key);
            seam.mark(|| Mark::End("lookup beside it".into()));
            let events = seam.take();
            stop.go_on.store(true, Ordering::SeqCst);
            first.join().unwrap_or_else(|_| Err(Fault("the stopped thread panicked".into())))?;
            Ok(if reached { Some((found?, events)) } else { None })
        })?;
        let Some((found, events)) = seen else { return Ok(None) };
        let (steps, _, used) = session.finish();
        let marks = marks(&events);
        let [begin_first, begin_second, end_second] = marks[marks.len() - 3..] else {
            return Err(Fault("a run without its marks".into()));
        };
        let flushes = events[begin_second..].iter();
        if !flushes.clone().any(|event| matches!(event.access, Access::Flush { .. })) {
            return Ok(Some(None));
        }
        let either = vec![Some(Arc::clone(&before)), Some(Arc::clone(&after))];
        let told = if found == old { either.clone() } else { vec![Some(after)] };
        let mut allowed = super::tape::placed(&events, 0, &steps);
        allowed.push(Allowed { from: begin_first + 1, states: either });
        allowed.push(Allowed { from: end_second + 1, states: told });
        let mut universe: Vec<u64> = used.into_iter().chain([key, 3, 999_999]).collect();
        universe.sort_unstable();
        universe.dedup();
        Ok(Some(Some(Tape {
            name: format!("{}: lookup beside {what:?} stopped before {stop_at}", self.name),
            base: Image::of_file(&[], self.pool.max_pages << PAGE_BITS),
            len: self.pool.pages << PAGE_BITS,
            start: begin_first,
            events,
            second: false,
            allowed,
            universe,
            shape: self.shape,
            images: true,
        })))
    }
}

/// Records those in which threads meet, where one does not wait for another.
///
/// # Errors
/// If one goes wrong, or what `each` finds.
pub fn met(
    scheme: Scheme,
    form: RecordForm,
    alive: &Arc<Alive>,
    each: &mut dyn FnMut(Tape) -> Checked,
) -> Checked {
    let plans = plans(scheme, form).into_iter().filter(|_| scheme.is_lock_free());
    for plan in plans {
        let mut stops: Option<(u64, Op, Vec<u64>)> = None;
        let effect = plan.effect(alive)?;
        for (n, first, second) in plan.meetings(alive)? {
            let known = stops.take().filter(|known| (known.0, known.1) == (n, first));
            let (_, _, at) = match known {
                Some(known) => stops.insert(known),
                None => stops.insert((n, first, plan.stops(n, first, alive)?)),
            };
            for &stop_at in at.iter() {
                if let Some(tape) = plan.meet(n, (first, second), stop_at, alive)? {
                    each(tape)?;
                }
                // What stands behind something that may not be durable is not, either: the second
                // one is stopped, too, where it has taken effect.
                let key = plan.first + n;
                if first.key() == Some(key) && second == Op::Get(key) {
                    let Some(effect) = effect else { continue };
                    if let Some(tape) = plan.behind(n, stop_at, effect, alive)? {
                        each(tape)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// What a second thread asks while the first is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    /// It looks the first thread's key up.
    Get,
    /// It inserts that key, and is told whether it is there.
    Insert,
    /// It opens the map that the first thread creates, and inserts into it.
    OpenMap,
}

/// Stops a thread for ever before each of its accesses in turn, while this one asks; then
/// everything is lost that a power loss can take. What was told must still be so.
///
/// # Errors
/// If it is not.
pub fn told(scheme: Scheme, form: RecordForm, ask: Meanwhile, alive: &Arc<Alive>) -> Checked {
    let plan = plans(scheme, form)[0];
    let changes: &[Do] = match ask {
        Meanwhile::Get => &[Do::Insert(55), Do::Update(66)],
        Meanwhile::Insert | Meanwhile::OpenMap => &[Do::Insert(55)],
    };
    for &what in changes {
        for stop_at in 1..2_000 {
            if !plan.told_at(stop_at, what, ask, alive)? {
                break;
            }
        }
    }
    Ok(())
}

impl Plan {
    /// `false` if the first thread has fewer accesses.
    fn told_at(&self, stop_at: u64, what: Do, ask: Meanwhile, alive: &Arc<Alive>) -> Checked<bool> {
        let stop = Arc::new(Stop::default());
        let seam = Traced::with_control(Box::new(Shared(Arc::clone(&stop))));
        seam.start(false);
        let mut session = self.session(&seam, alive)?;
        for i in 0..8 {
            session.change("m", self.first + i, Do::Insert(Self::value(i)))?;
        }
        let key = self.first + if matches!(what, Do::Insert(_)) { 20 } else { 3 };
        let store = Arc::clone(session.store());
        let map = store.open_map("m")?;
        let request = MapRequest { info: self.shape.info("n"), scheme_matters: true };
        stop.left.store(stop_at, Ordering::SeqCst);
        type Seen = (bool, Option<String>, Vec<Event>);
        let (reached, seen, events) = std::thread::scope(|scope| -> Checked<Seen> {
            let first = scope.spawn(|| {
                STOPS.set(true);
                match ask {
                    Meanwhile::OpenMap => store.map(&request).map(|_| ()).map_err(Fault::from),
                    Meanwhile::Get | Meanwhile::Insert => {
                        // It may have been inserted by the other one.
                        let _ = change(&map, key, what);
                        Ok(())
                    }
                }
            });
            while !stop.stopped.load(Ordering::SeqCst) && !first.is_finished() {
                std::thread::yield_now();
            }
            let reached = stop.stopped.load(Ordering::SeqCst);
            let seen = match ask {
                Meanwhile::Get => value(&map, key),
                // Either it was there, or it is now.
                Meanwhile::Insert => {
                    let _ = change(&map, key, Do::Insert(77));
                    Ok(Some(String::new()))
                }
                Meanwhile::OpenMap => match store.open_map("n") {
                    Ok(map) => change(&map, key, what).map(|()| Some(String::new())),
                    Err(_) => Ok(None),
                },
            };
            let alone = !stop.go_on.load(Ordering::SeqCst);
            let events = seam.take();
            stop.go_on.store(true, Ordering::SeqCst);
            first.join().unwrap_or_else(|_| Err(Fault("the stopped thread panicked".into())))?;
            Ok((reached, seen?.filter(|_| alone), events))
        })?;
        let Some(seen) = seen else { return Ok(reached) };
        let base = Image::of_file(&[], self.pool.max_pages << PAGE_BITS);
        let mut timeline = Timeline::new(&base, self.pool.pages << PAGE_BITS, &events);
        timeline.advance(events.len());
        let open = |name: &str| -> Checked<Option<String>> {
            let capacity = base.bytes.len() as u64;
            let least = least_and(&timeline, &[]).bytes;
            let left = open_bytes(&least, capacity, recorder(false), alive)?;
            value(&*left.open_map(name)?, key)
        };
        let found = open(if ask == Meanwhile::OpenMap { "n" } else { "m" });
        let same = match (&found, ask) {
            (Ok(Some(found)), Meanwhile::Get) => *found == seen,
            (Ok(found), _) => found.is_some(),
            (Err(_), _) => false,
        };
        crate::state::ensure(same, || {
            format!(
                "{ask:?} beside {what:?}, stopped before access {stop_at}, was told of what a \
                 power loss took back: {found:?}"
            )
        })?;
        Ok(reached)
    }
}

/// A key's value, as text.
fn value(map: &OpenMap, key: u64) -> Checked<Option<String>> {
    with_form!(map.index(), R, index => {
        let key = R::nth_key(key);
        let found = Index::<R>::get(&**index, R::key_of(&key))?;
        Ok(found.map(|value| format!("{value:?}")))
    })
}

/// Stops a thread before one of its accesses while another one inserts until things are
/// not as the first had found them; then both go on, and everything must be there.
///
/// # Errors
/// If it is not.
pub fn paused(scheme: Scheme, form: RecordForm, alive: &Arc<Alive>) -> Checked {
    let plan = plans(scheme, form)[0];
    for (n, fences) in plan.chosen(alive)? {
        let last = fences.last().copied().unwrap_or(1);
        for stop_at in (2..last + 10).step_by(3) {
            plan.paused_at(n, stop_at, alive).map_err(|fault| {
                Fault(format!("insert {n} paused before access {stop_at}: {fault}"))
            })?;
        }
    }
    Ok(())
}

impl Plan {
    fn paused_at(&self, n: u64, stop_at: u64, alive: &Arc<Alive>) -> Checked {
        const MORE: u64 = 24;
        let stop = Arc::new(Stop::default());
        let seam = Traced::with_control(Box::new(Shared(Arc::clone(&stop))));
        let mut session = self.session(&seam, alive)?;
        for i in 0..n {
            session.change("m", self.first + i, Do::Insert(Self::value(i)))?;
        }
        let map = session.store().open_map("m")?;
        stop.left.store(stop_at, Ordering::SeqCst);
        std::thread::scope(|scope| -> Checked {
            let first = scope.spawn(|| {
                STOPS.set(true);
                change(&map, self.first + n, Do::Insert(Self::value(n)))
            });
            while !stop.stopped.load(Ordering::SeqCst) && !first.is_finished() {
                std::thread::yield_now();
            }
            let mut made = Ok(());
            for i in n + 1..n + 1 + MORE {
                made = made
                    .and_then(|()| session.change("m", self.first + i, Do::Insert(Self::value(i))));
            }
            stop.go_on.store(true, Ordering::SeqCst);
            first.join().unwrap_or_else(|_| Err(Fault("the paused thread panicked".into())))?;
            made
        })?;
        for i in 0..n + 1 + MORE {
            let found = value(&map, self.first + i)?;
            crate::state::ensure(found.is_some(), || format!("key {i} is lost"))?;
        }
        let found = outlast::db::verify::verify(session.store())?;
        crate::session::check_verification(&found, n + 1 + MORE)
    }
}
