//! Records runs of two threads, for fences whose absence only another thread can notice.
//!
//! Whatever a thread has flushed but not fenced becomes durable with its next fence, whatever that
//! fence is for. So a missing fence between a change and its publication does no harm as long as
//! the same thread continues. In these runs it does not continue: it is stopped for ever soon after
//! one of its fences, and another thread builds on what it has stored.

mod met;
mod told;

pub use met::met;
pub use told::{Meanwhile, lookups, paused, told};

use super::tape::{Allowed, Tape};
use crate::codec::{Form, SPECIAL};
use crate::model::Image;
use crate::session::{Do, PAGE_BITS, PoolShape, Session};
use crate::state::{Checked, Fault, MapState, Records, State};
use crate::stop::{self, Stops};
use crate::structures::Shape;
use crate::with_form;
use outlast::internals::db::store::{MapRequest, OpenMap};
use outlast::internals::index::{Index, Previous, Record};
use outlast::internals::pmem::{Access, Alive, Event, Mark, Point, Seam, Traced};
use outlast::{RecordForm, Scheme};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;

/// Returns the result of a thread that was stopped.
fn joined<T>(ended: thread::Result<Checked<T>>) -> Checked<T> {
    ended.unwrap_or_else(|_| Err(Fault("a thread panicked".into())))
}

/// A map that is filled key by key.
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

/// What the second thread does while the first is stopped.
#[derive(Clone, Copy, PartialEq)]
enum Concurrent {
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

    /// Makes a session with a map of `keys` keys. The accesses of threads with a role are
    /// controlled, and all accesses are recorded.
    fn filled(&self, stops: &Stops, keys: u64, alive: &Arc<Alive>) -> Checked<(Traced, Session)> {
        let seam = stops.seam();
        seam.start(false);
        let mut session = self.session(&seam, alive)?;
        for i in 0..keys {
            session.change("m", self.first + i, Do::Insert(Self::value(i)))?;
        }
        Ok((seam, session))
    }

    /// Makes a tape of a recorded run. The checks of its images look up these keys, and two that
    /// are never present.
    fn tape(
        &self,
        name: String,
        start: usize,
        events: Vec<Event>,
        allowed: Vec<Allowed>,
        keys: impl IntoIterator<Item = u64>,
    ) -> Tape {
        let universe: BTreeSet<u64> = keys.into_iter().chain([3, 999_999]).collect();
        Tape {
            name,
            base: Image::of_file(&[], self.pool.max_pages << PAGE_BITS),
            len: self.pool.pages << PAGE_BITS,
            start,
            events,
            second: false,
            repaired: 0,
            allowed,
            universe: universe.into_iter().collect(),
            shape: self.shape,
            images: true,
        }
    }

    /// Finds the inserts worth stopping in: for each commit point with a fence, the first and the
    /// third insert that reach it. Each comes with the number of accesses up to each of its fences.
    fn chosen(&self, alive: &Arc<Alive>) -> Checked<BTreeMap<u64, Vec<u64>>> {
        // Number the thread as in the runs with a stopped thread, so that both count the same
        // accesses.
        stop::number(None);
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
                // If a seeded bug removes the fence, the flush before it counts in its place.
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

    /// Inserts key number `n` in a thread that is stopped before its access `stop_at`. The calling
    /// thread does `concurrent` meanwhile. Returns `None` if the calling thread has to wait for the
    /// stopped one, or if the insert makes fewer accesses.
    fn record(
        &self,
        n: u64,
        stop_at: u64,
        concurrent: Concurrent,
        alive: &Arc<Alive>,
    ) -> Checked<Option<Tape>> {
        let stops = Stops::default();
        let (seam, session) = self.filled(&stops, n, alive)?;
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
        // Remove the `count` first keys, in the order in which `RemoveAll` removes them.
        let remove = |state: &State, count: u64| {
            let mut state = state.clone();
            if let Some(map) = state.maps.get_mut("m") {
                for key in self.first..self.first + count {
                    map.records.remove(&key);
                }
            }
            state
        };
        let value = Self::value(n);
        let do_beside = |state: &State| {
            let mut state = state.clone();
            match concurrent {
                Concurrent::Insert => return insert(&state, other, value + 1),
                Concurrent::Update => return insert(&state, self.first, value + 2),
                Concurrent::RemoveAll => return remove(&state, n),
                Concurrent::CreateMap => {
                    let map = MapState { form: self.shape.form, records: Records::new() };
                    state.maps.insert("n".into(), map);
                }
            }
            state
        };
        let map = store.open_map("m")?;
        let first = || {
            seam.mark(|| Mark::Begin(format!("insert of key {key}")));
            change(&map, key, Do::Insert(value))
        };
        // The begin mark counts as one access.
        let (first_done, events) = stops.during(stop_at, first, |reached| {
            seam.mark(|| Mark::Begin("during it".into()));
            let made = match concurrent {
                Concurrent::Insert => change(&map, other, Do::Insert(value + 1)),
                Concurrent::Update => change(&map, self.first, Do::Update(value + 2)),
                Concurrent::RemoveAll => {
                    (0..n).try_for_each(|i| change(&map, self.first + i, Do::Remove))
                }
                Concurrent::CreateMap => {
                    let request = MapRequest { info: self.shape.info("n"), scheme_matters: true };
                    store.map(&request).map(|_| ()).map_err(Fault::from)
                }
            };
            seam.mark(|| Mark::End("during it".into()));
            made.map(|()| (reached && !stops.was_awaited()).then(|| seam.take()))
        });
        joined(first_done)?;
        let Some(events) = events? else { return Ok(None) };
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
        if concurrent == Concurrent::RemoveAll {
            mixed.extend((1..n).flat_map(|i| [remove(&before, i), remove(&first, i)]));
        }
        allowed.push(states(mixed.into_iter().map(|s| Some(Arc::new(s))).collect(), begin_second));
        let after = vec![Some(Arc::new(do_beside(&before))), Some(Arc::new(do_beside(&first)))];
        allowed.push(states(after, end_second));
        let universe = used.into_iter().chain([key, other]);
        Ok(Some(self.tape(
            format!("{}: insert {n} stopped before access {stop_at}", self.name),
            begin_first,
            events,
            allowed,
            universe,
        )))
    }
}

fn marks(events: &[Event]) -> Vec<usize> {
    let is_mark = |e: &Event| matches!(e.access, Access::Mark(_));
    (0..events.len()).filter(|&i| is_mark(&events[i])).collect()
}

fn change(map: &OpenMap, key: u64, what: Do) -> Checked {
    with_form!(map.index(), R, index => {
        let (key, operands) = (R::nth_key(key), what.operands::<R>());
        let change = what.with::<R>(&operands);
        let done = Index::<R>::change(&**index, R::key_of(&key), change, Previous::UNWANTED)?;
        crate::state::ensure(done.applied, || format!("{what:?} was not applied"))
    })
}

/// Changes both keys in the same way, with one call.
fn change_both(map: &OpenMap, keys: [u64; 2], what: Do) -> Checked {
    with_form!(map.index(), R, index => {
        let (keys, operands) = (keys.map(R::nth_key), what.operands::<R>());
        let change = what.with::<R>(&operands);
        index.change_many(&keys.each_ref().map(R::key_of), &[change; 2], &mut Vec::new())?;
    });
    Ok(())
}

/// Returns a key's value, as text.
fn value(map: &OpenMap, key: u64) -> Checked<Option<String>> {
    with_form!(map.index(), R, index => {
        let key = R::nth_key(key);
        let found = Index::<R>::get(&**index, R::key_of(&key))?;
        Ok(found.map(|value| format!("{value:?}")))
    })
}

/// Records all runs of two threads: those in which one is stopped for ever, and those in which they
/// meet.
///
/// # Errors
/// If a run goes wrong.
pub fn record(scheme: Scheme, form: RecordForm, alive: &Arc<Alive>) -> Checked<Vec<Tape>> {
    let mut tapes = stopped(scheme, form, alive)?;
    met(scheme, form, alive, &mut |tape| {
        tapes.push(tape);
        Ok(())
    })?;
    Ok(tapes)
}

/// Records the runs in which one thread is stopped for ever.
///
/// # Errors
/// If a run goes wrong.
pub fn stopped(scheme: Scheme, form: RecordForm, alive: &Arc<Alive>) -> Checked<Vec<Tape>> {
    let mut tapes = Vec::new();
    for plan in plans(scheme, form) {
        for (n, fences) in plan.chosen(alive)? {
            for (i, &fence) in fences.iter().enumerate() {
                // Stop at the first moment after the fence at which the other thread need not wait.
                let end = fences.get(i + 1).copied().unwrap_or(fence + 140);
                for concurrent in [
                    Concurrent::Insert,
                    Concurrent::Update,
                    Concurrent::CreateMap,
                    Concurrent::RemoveAll,
                ] {
                    if n == 0 && matches!(concurrent, Concurrent::Update | Concurrent::RemoveAll) {
                        continue;
                    }
                    // The last two moments are before the next flush and before that flush's fence.
                    let soon = [1, 2, 4, 6, 9, 14, 24, 40, 60, 90, 130].map(|d| fence + d);
                    let moments = BTreeSet::from_iter(soon.into_iter().chain([end - 1, end]));
                    for &stop_at in moments.range(fence + 1..=end) {
                        if let Some(tape) = plan.record(n, stop_at, concurrent, alive)? {
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
