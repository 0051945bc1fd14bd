//! Checks what an operation returns while another thread is stopped, before the other thread's
//! stores are durable.

use super::{Plan, change, change_both, joined, marks, plans, value};
use crate::model::{Image, Timeline};
use crate::mutants::tape::{Allowed, Tape, least_and, placed};
use crate::session::{Do, PAGE_BITS, open_bytes, recorder};
use crate::state::{Checked, Fault, State};
use crate::stop::Stops;
use outlast::internals::db::store::MapRequest;
use outlast::internals::pmem::{Access, Alive, Mark, Seam};
use outlast::{RecordForm, Scheme};
use std::sync::Arc;

/// Records lookups that persist what another thread has not persisted yet. The other thread is
/// stopped for ever before each of its accesses in turn, and the calling thread looks up its key.
/// Only runs in which the lookup flushes are kept, so a scheme whose lookups never flush has none.
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
    /// Records one such lookup. Returns `None` if the first thread makes no access `stop_at`, and
    /// `Some(None)` if the lookup flushes nothing.
    fn looked_up(
        &self,
        stop_at: u64,
        what: Do,
        alive: &Arc<Alive>,
    ) -> Checked<Option<Option<Tape>>> {
        let stops = Stops::default();
        let (seam, session) = self.filled(&stops, 8, alive)?;
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
        let first = || {
            seam.mark(|| Mark::Begin(format!("{what:?} of key {key}")));
            change(&map, key, what)
        };
        // The begin mark counts as one access.
        let (first_done, seen) = stops.during(stop_at, first, |reached| {
            seam.mark(|| Mark::Begin("lookup during it".into()));
            let found = value(&map, key);
            seam.mark(|| Mark::End("lookup during it".into()));
            found.map(|found| reached.then(|| (found, seam.take())))
        });
        joined(first_done)?;
        let Some((found, events)) = seen? else { return Ok(None) };
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
        let mut allowed = placed(&events, 0, &steps);
        allowed.push(Allowed { from: begin_first + 1, states: either });
        allowed.push(Allowed { from: end_second + 1, states: told });
        let universe = used.into_iter().chain([key]);
        Ok(Some(Some(self.tape(
            format!("{}: lookup during {what:?} stopped before {stop_at}", self.name),
            begin_first,
            events,
            allowed,
            universe,
        ))))
    }
}

/// What a second thread does while the first is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    /// It looks up the first thread's key.
    Get,
    /// The same, and the first thread changes two keys with one call.
    GetOfMany,
    /// It inserts that key, which tells it whether the key was present.
    Insert,
    /// It opens the map that the first thread creates, and inserts into it.
    OpenMap,
}

/// For every `every`-th access of a thread, makes a run in which that thread is stopped before this
/// access while the calling thread performs an operation. Then a power loss takes everything that
/// it can. What the operation returned must still hold after it.
///
/// # Errors
/// If it does not hold.
pub fn told(
    (scheme, form): (Scheme, RecordForm),
    ask: Meanwhile,
    every: usize,
    alive: &Arc<Alive>,
) -> Checked {
    let plan = plans(scheme, form)[0];
    let changes: &[Do] = match ask {
        Meanwhile::Get | Meanwhile::GetOfMany => &[Do::Insert(55), Do::Update(66)],
        Meanwhile::Insert | Meanwhile::OpenMap => &[Do::Insert(55)],
    };
    for &what in changes {
        for stop_at in (1..2_000).step_by(every) {
            if !plan.told_at(stop_at, what, ask, alive)? {
                break;
            }
        }
    }
    Ok(())
}

impl Plan {
    /// Checks one such call. Returns `false` if the first thread makes no access `stop_at`.
    fn told_at(&self, stop_at: u64, what: Do, ask: Meanwhile, alive: &Arc<Alive>) -> Checked<bool> {
        let stops = Stops::default();
        let (seam, session) = self.filled(&stops, 8, alive)?;
        let key = self.first + if matches!(what, Do::Insert(_)) { 20 } else { 3 };
        let store = Arc::clone(session.store());
        let map = store.open_map("m")?;
        let request = MapRequest { info: self.shape.info("n"), scheme_matters: true };
        let first = || match ask {
            Meanwhile::OpenMap => store.map(&request).map(|_| ()).map_err(Fault::from),
            Meanwhile::GetOfMany => change_both(&map, [key, key + 1], what),
            Meanwhile::Get | Meanwhile::Insert => {
                // The other thread may have inserted the key.
                let _ = change(&map, key, what);
                Ok(())
            }
        };
        let (first_done, (reached, seen, events)) = stops.during(stop_at - 1, first, |reached| {
            let seen = match ask {
                Meanwhile::Get | Meanwhile::GetOfMany => value(&map, key),
                // Whether the key was present before or is inserted now, it must be present
                // afterwards.
                Meanwhile::Insert => {
                    let _ = change(&map, key, Do::Insert(77));
                    Ok(Some(String::new()))
                }
                Meanwhile::OpenMap => match store.open_map("n") {
                    Ok(map) => change(&map, key, what).map(|()| Some(String::new())),
                    Err(_) => Ok(None),
                },
            };
            (reached, seen, seam.take())
        });
        joined(first_done)?;
        let seen = seen?.filter(|_| !stops.was_awaited());
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
            (Ok(Some(found)), Meanwhile::Get | Meanwhile::GetOfMany) => *found == seen,
            (Ok(found), _) => found.is_some(),
            (Err(_), _) => false,
        };
        crate::state::ensure(same, || {
            format!(
                "{ask:?} concurrent {what:?}, stopped before access {stop_at}, returned what a power \
                 loss undid: {found:?}"
            )
        })?;
        Ok(reached)
    }
}

/// Pauses a thread before one of its accesses while the calling thread inserts 24 records, so that
/// the map differs from what the first has seen. Then the first continues, and every record must be
/// there. Tries one access in `every`.
///
/// # Errors
/// If a record is missing.
pub fn paused(scheme: Scheme, form: RecordForm, every: usize, alive: &Arc<Alive>) -> Checked {
    let plan = plans(scheme, form)[0];
    for (n, fences) in plan.chosen(alive)? {
        let last = fences.last().copied().unwrap_or(1);
        for stop_at in (2..last + 10).step_by(every) {
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
        let stops = Stops::default();
        let (_, mut session) = self.filled(&stops, n, alive)?;
        let map = session.store().open_map("m")?;
        let first = || change(&map, self.first + n, Do::Insert(Self::value(n)));
        let (first_done, made) = stops.during(stop_at - 1, first, |_| {
            (n + 1..n + 1 + MORE)
                .try_for_each(|i| session.change("m", self.first + i, Do::Insert(Self::value(i))))
        });
        joined(first_done)?;
        made?;
        for i in 0..n + 1 + MORE {
            let found = value(&map, self.first + i)?;
            crate::state::ensure(found.is_some(), || format!("key {i} is lost"))?;
        }
        let found = outlast::internals::db::verify::verify(session.store())?;
        crate::session::check_verification(&found, n + 1 + MORE)
    }
}
