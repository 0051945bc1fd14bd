//! Records runs in which threads *meet*: one is stopped during an operation, while another begins
//! and ends its own. The scheme must be lock-free, so that its threads never wait for one another.

use super::{Plan, joined, marks, plans};
use crate::codec::Form;
use crate::model::stored;
use crate::mutants::tape::{Allowed, Tape, placed};
use crate::response::is_durable;
use crate::session::{Do, Step, recorder};
use crate::state::{Checked, Fault, State};
use crate::stop::{Role, Stops};
use crate::with_form;
use outlast::internals::db::store::{OpenMap, Store};
use outlast::internals::index::{Change, Index, Previous, Record};
use outlast::internals::pmem::{Access, Alive, Event, Mark, Point, Seam, Traced};
use outlast::{RecordForm, Scheme};
use std::sync::Arc;
use std::thread;

/// Records the runs in which threads meet, for lock-free schemes, and calls `each` with every one.
///
/// # Errors
/// If a run goes wrong, or the fault that `each` finds.
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
                // If a store of the first thread may be lost, then so may whatever the second
                // builds on it. So also record a run in which the second thread is stopped too,
                // right after its insert has taken effect.
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

/// The operation of one of the threads that meet.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Op {
    Change(u64, Do),
    Get(u64),
    Background,
}

/// An operation's result: whether a change applied and whether the key was present, or the key's
/// value.
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
                    Do::CompareRemove(v) => v,
                    Do::Remove => 0,
                });
                let change = match what {
                    Do::Remove => Change::Remove,
                    Do::CompareRemove(_) => Change::CompareRemove(R::value_of(&value)),
                    Do::Insert(_) => Change::Insert(R::value_of(&value)),
                    Do::Put(_) => Change::Put(R::value_of(&value)),
                    Do::Update(_) | Do::Swap(..) => Change::Update(R::value_of(&value)),
                };
                let done = Index::<R>::change(&**index, R::key_of(&R::nth_key(key)), change, Previous::UNWANTED)?;
                Told::Changed(done.applied, done.present)
            }
        }))
    }

    /// Returns the state after the operation, and its result.
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
    /// Lists the pairs of operations that meet, each with the number of inserts before them. The
    /// first operation takes a different path for each of these numbers.
    fn meetings(&self, alive: &Arc<Alive>) -> Checked<Vec<(u64, Op, Op)>> {
        let mut all = Vec::new();
        for n in self.chosen(alive)?.into_keys().filter(|&n| n > 0) {
            let (new, old, other) = (self.first + n, self.first, self.first + n + 1);
            let insert = |key| Op::Change(key, Do::Insert(61));
            let update = |key| Op::Change(key, Do::Update(62));
            let remove = |key| Op::Change(key, Do::Remove);
            // This update changes nothing, because its key is absent. But its result may depend on
            // what it finds on its way.
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

    /// Lets two threads meet. The first is stopped before its access `stop_at`, or has returned if
    /// it makes fewer accesses. Meanwhile the second does its operation, and after it a third
    /// inserts another key. Then the first continues. Returns `None` if one of the others has to
    /// wait for the first.
    fn meet(
        &self,
        n: u64,
        (first, second): (Op, Op),
        stop_at: u64,
        alive: &Arc<Alive>,
    ) -> Checked<Option<Tape>> {
        let stops = Stops::default();
        let (seam, session) = self.filled(&stops, n, alive)?;
        let before = Arc::clone(session.state());
        let store = Arc::clone(session.store());
        let map = store.open_map("m")?;
        // A key that neither of the other two uses.
        let third = Op::Change(self.first + n + 2, Do::Insert(71));
        let marked = |name: &str, op: Op| {
            seam.mark(|| Mark::Begin(format!("{name}: {op:?}")));
            let told = op.ask(&store, &map)?;
            seam.mark(|| Mark::End(name.into()));
            Ok::<Told, Fault>(told)
        };
        let meanwhile = |_| {
            let told = marked("second", second)?;
            let third = || joined(thread::scope(|s| s.spawn(|| marked("third", third)).join()));
            third()?;
            Ok::<_, Fault>((!stops.was_awaited()).then_some(told))
        };
        // The begin mark counts as one access.
        let (first_done, told) = stops.during(stop_at, || marked("first", first), meanwhile);
        joined(first_done)?;
        let met = told?.map(|told| (told, seam.take()));
        let Some((told, events)) = met else { return Ok(None) };
        let (steps, _, used) = session.finish();
        // The contents at the end.
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
        let keys = [first.key(), second.key(), third.key()].into_iter().flatten();
        let universe = used.into_iter().chain(keys);
        Ok(Some(self.tape(
            format!("{}: {first:?} after {n}, met by {second:?} at {stop_at}", self.name),
            marks(&events)[marks(&events).len() - 6],
            events,
            allowed,
            universe,
        )))
    }

    /// Lists where the first of two threads is stopped: after each sequence of stores at one commit
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
    /// Returns the commit point with which an insert takes effect: that of its last durable store.
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

    /// Runs two inserts of different keys. The first thread is stopped before its access `stop_at`.
    /// The second thread is stopped after its store of the point `effect`, with which its insert
    /// takes effect, and before it flushes that store. A third thread looks up the second thread's
    /// key. Returns `None` if a thread has to wait, or if one is not stopped.
    fn behind(
        &self,
        n: u64,
        stop_at: u64,
        effect: &'static Point,
        alive: &Arc<Alive>,
    ) -> Checked<Option<Tape>> {
        let stops = Stops::default();
        stops.stop_after(Role::Second, effect);
        let (seam, session) = self.filled(&stops, n, alive)?;
        let before = Arc::clone(session.state());
        let store = Arc::clone(session.store());
        let map = store.open_map("m")?;
        let keys = [self.first + n, self.first + n + 1];
        let ops = keys.map(|key| Op::Change(key, Do::Insert(51)));
        // The begin mark counts as one access.
        stops.limit(Role::First, stop_at);
        let met = thread::scope(|scope| -> Checked<Option<(Told, Vec<Event>)>> {
            let mut threads = Vec::new();
            for (role, op) in [Role::First, Role::Second].into_iter().zip(ops) {
                let (store, map, seam) = (&store, &map, &seam);
                let act = move || {
                    seam.mark(|| Mark::Begin(format!("{op:?}")));
                    op.ask(store, map)
                };
                let thread = scope.spawn(move || Stops::play(role, act));
                stops.await_stop(role, &thread);
                threads.push(thread);
            }
            seam.mark(|| Mark::Begin(format!("get {}", keys[1])));
            let told = Op::Get(keys[1]).ask(&store, &map);
            seam.mark(|| Mark::End("get".into()));
            let events = seam.take();
            let stopped = [Role::First, Role::Second].map(|role| stops.is_stopped(role));
            let alone = stopped == [true; 2] && !stops.was_awaited();
            stops.release(Role::First);
            stops.release(Role::Second);
            for thread in threads {
                joined(thread.join())?;
            }
            Ok(alone.then_some((told?, events)))
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
        let mut allowed = placed(&events, 0, &steps);
        for (mark, states) in [(begin, states), (end, consistent)] {
            let states = states.into_iter().map(|s| Some(Arc::new(s))).collect();
            allowed.push(Allowed { from: mark + 1, states });
        }
        let universe = used.into_iter().chain(keys);
        Ok(Some(self.tape(
            format!("{}: two inserts after {n}, stopped at {stop_at}", self.name),
            begin,
            events,
            allowed,
            universe,
        )))
    }
}

/// Derives what a crash may leave of a run in which two threads met and a third came later.
fn met_states(
    events: &[Event],
    steps: &[Step],
    before: &State,
    (first, second, third): (Op, Op, Op),
    told: &Told,
    last: State,
) -> Checked<Vec<Allowed>> {
    let mut allowed = placed(events, 0, steps);
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
    // The second operation has returned. Either it took effect before the first, which is still in
    // flight and may or may not have taken effect, or after it.
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
        format!("{second:?} during {first:?} returned a result that neither order allows")
    })?;
    let between = [first.on(&then.0).0, then.0, then_first.0].into_iter().chain(either);
    add(between.collect());
    add(after.clone());
    add(with_third(&after));
    add(after.iter().map(|state| third.on(state).0).collect());
    add(vec![last]);
    Ok(allowed)
}
