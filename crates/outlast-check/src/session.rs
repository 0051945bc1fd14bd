//! A pool in memory under a recorder. One thread works on it, and the session checks every result.

mod checks;
mod kinds;
mod opening;
mod work;

use crate::codec::{Form, raw_key, raw_value};
use crate::model::GARBAGE;
use crate::state::{Checked, Fault, Judge, MapState, Records, State, ensure};
use crate::structures::{Shape, structure};
use crate::with_form;
pub use checks::check_verification;
use checks::*;
pub use kinds::{Batched, Do, Kind, Step};
use opening::options;
pub use opening::{
    PAGE_BITS, PoolShape, alive, open_beside, open_bytes, open_bytes_with, recorder, watcher,
};
use outlast::RecordForm;
use outlast::internals::db::batch::BatchRecord;
use outlast::internals::db::store::{MapRequest, OpenMap, ReclaimState, Store};
use outlast::internals::index::Index;
use outlast::internals::pmem::{Alive, Event, Mark, Seam, Traced};
use outlast::internals::pool::backing::{Backing, Heap};
use outlast::internals::pool::core::{Core, CoreOptions};
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A pool in memory under a recorder; see the module's documentation.
pub struct Session {
    seam: Traced,
    alive: Arc<Alive>,
    store: Arc<Store<Traced>>,
    capacity: u64,
    state: Arc<State>,
    log: Option<Vec<Step>>,
    maps: HashMap<String, Arc<OpenMap>>,
    held: Vec<Arc<OpenMap>>,
    used: BTreeSet<u64>,
}

impl Session {
    /// Creates a pool. All accesses and marks of the session go through `seam`.
    pub fn create(shape: PoolShape, alive: &Arc<Alive>, seam: Traced) -> Checked<Session> {
        let capacity = shape.max_pages << PAGE_BITS;
        seam.mark(|| Mark::Begin("create pool".into()));
        let options = CoreOptions {
            page_bits: PAGE_BITS,
            initial_size: shape.pages << PAGE_BITS,
            hash_function: shape.hash_function,
            identity: Some((0x5eed, 0x1d)),
            ..options()
        };
        let backing = Backing::Heap(Heap::new(&[], capacity, GARBAGE));
        let core = Core::create(backing, seam.clone(), options)?;
        seam.mark(|| Mark::End("created".into()));
        let state = Arc::new(State::default());
        let log = vec![Step {
            kind: Kind::CreatePool,
            text: "create pool".into(),
            before: None,
            after: Arc::clone(&state),
            between: Vec::new(),
        }];
        Ok(Session {
            store: Store::with_alive(core, Arc::clone(alive))?,
            seam,
            alive: Arc::clone(alive),
            capacity,
            state,
            log: Some(log),
            maps: HashMap::new(),
            held: Vec::new(),
            used: BTreeSet::new(),
        })
    }

    /// Opens a file's bytes. If the contents are passed as `logged`, the session also logs its
    /// steps. Otherwise [`Session::settle`] finds the contents out.
    ///
    /// # Errors
    /// The same as for opening a file.
    pub fn open(
        file: &[u8],
        capacity: u64,
        alive: &Arc<Alive>,
        seam: Traced,
        logged: Option<&Arc<State>>,
    ) -> outlast::Result<Session> {
        let state = logged.cloned().unwrap_or_default();
        let log = logged.map(|state| {
            seam.mark(|| Mark::Begin("open".into()));
            let (before, after) = (Some(Arc::clone(state)), Arc::clone(state));
            vec![Step { kind: Kind::Open, text: "open".into(), before, after, between: Vec::new() }]
        });
        let store = open_bytes(file, capacity, seam.clone(), alive)?;
        if log.is_some() {
            seam.mark(|| Mark::End("opened".into()));
        }
        Ok(Session {
            seam,
            alive: Arc::clone(alive),
            store,
            capacity,
            state,
            log,
            maps: HashMap::new(),
            held: Vec::new(),
            used: BTreeSet::new(),
        })
    }

    /// Returns the contents that the pool should have.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<Store<Traced>> {
        &self.store
    }

    /// Returns every key that an operation of the session has used.
    pub fn used_keys(&self) -> &BTreeSet<u64> {
        &self.used
    }

    /// Forgets the used keys that are no longer present.
    pub fn forget_used(&mut self) {
        self.used = self.state.maps.values().flat_map(|m| m.records.keys().copied()).collect();
    }

    /// Ends the session. Returns its steps, the recorded events, and the used keys.
    pub fn finish(mut self) -> (Vec<Step>, Vec<Event>, BTreeSet<u64>) {
        (self.log.take().unwrap_or_default(), self.seam.take(), std::mem::take(&mut self.used))
    }

    /// Returns how many steps have been logged so far.
    pub fn logged(&self) -> usize {
        self.log.as_ref().map_or(0, Vec::len)
    }

    // ---- Steps ------------------------------------------------------------------

    /// Makes one step, which leads to the state `after`, or changes nothing if that is `None`. A
    /// crash during the step may leave the state before or after it.
    fn step<T>(
        &mut self,
        kind: Kind,
        text: impl FnOnce() -> String,
        after: Option<Arc<State>>,
        run: impl Fn(&mut Self) -> Checked<T>,
    ) -> Checked<T> {
        let after = after.unwrap_or_else(|| Arc::clone(&self.state));
        let Some(log) = &mut self.log else {
            let result = self.attempt(run)?;
            self.state = after;
            return Ok(result);
        };
        let text = text();
        log.push(Step {
            kind,
            text: text.clone(),
            before: Some(Arc::clone(&self.state)),
            after: Arc::clone(&after),
            between: Vec::new(),
        });
        let explain = |fault: Fault| Fault(format!("{text}: {fault}"));
        self.seam.mark(|| Mark::Begin(text.clone()));
        let result = self.attempt(run).map_err(explain)?;
        self.seam.mark(|| Mark::End(text));
        self.state = after;
        Ok(result)
    }

    /// Opens a map, or creates it.
    pub fn create_map(&mut self, name: &str, shape: Shape) -> Checked {
        let mut after = State::clone(&self.state);
        after
            .maps
            .entry(name.into())
            .or_insert_with(|| MapState { form: shape.form, records: Records::new() });
        let request = MapRequest { info: shape.info(name), scheme_matters: true };
        self.step(
            Kind::CreateMap,
            || format!("create map {name:?}"),
            Some(Arc::new(after)),
            |s| {
                let map = s.store.map(&request)?;
                s.maps.insert(name.into(), map);
                Ok(())
            },
        )
    }

    /// Drops a map. With `held`, keeps a handle to it until [`Session::let_go`].
    pub fn drop_map(&mut self, name: &str, held: bool) -> Checked {
        let mut after = State::clone(&self.state);
        after.maps.remove(name);
        let handle = self.map(name)?;
        self.maps.remove(name);
        if held {
            self.held.push(handle);
        } else {
            drop(handle);
        }
        self.step(
            Kind::DropMap,
            || format!("drop map {name:?}"),
            Some(Arc::new(after)),
            |s| Ok(s.store.drop_map(name)?),
        )
    }

    /// Drops the handles to dropped maps.
    pub fn let_go(&mut self) {
        self.held.clear();
    }

    fn map(&mut self, name: &str) -> Checked<Arc<OpenMap>> {
        if let Some(map) = self.maps.get(name) {
            return Ok(Arc::clone(map));
        }
        let map = self.store.open_map(name)?;
        self.maps.insert(name.into(), Arc::clone(&map));
        Ok(map)
    }

    fn value_of(&self, name: &str, key: u64) -> Option<u64> {
        self.state.maps.get(name)?.records.get(&key).copied()
    }

    /// Changes a key and checks the result.
    pub fn change(&mut self, name: &str, key: u64, change: Do) -> Checked {
        self.used.insert(key);
        let before = self.value_of(name, key);
        let (applies, after) = change.on(before);
        let map = self.map(name)?;
        let run = |_: &mut Self| {
            with_form!(map.index(), R, index => {
                apply::<R>(&**index, key, change, before, applies)
            })
        };
        let text = || format!("{change:?} of key {key} in {name:?}");
        if self.log.is_none() {
            // Without a log, the states in between are not needed, so nothing is copied.
            self.attempt(run).map_err(|fault| Fault(format!("{}: {fault}", text())))?;
            set(Arc::make_mut(&mut self.state), name, key, after);
            return Ok(());
        }
        let state = if applies {
            let mut state = State::clone(&self.state);
            set(&mut state, name, key, after);
            Some(Arc::new(state))
        } else {
            None
        };
        self.step(change.kind(), text, state, run)
    }

    /// Changes several keys with one call, and checks the results. A crash meanwhile leaves some of
    /// the changes; of several changes of one key, the first ones.
    pub fn change_many(&mut self, name: &str, changes: &[(u64, Do)]) -> Checked {
        let before = Arc::clone(&self.state);
        let mut after = State::clone(&before);
        let mut between = vec![State::clone(&before)];
        let mut expected = Vec::new();
        for &(key, change) in changes {
            self.used.insert(key);
            let value = after.maps.get(name).and_then(|map| map.records.get(&key)).copied();
            let (applies, new) = change.on(value);
            expected.push((applies, value.is_some()));
            set(&mut after, name, key, new);
            let mut with = between.clone();
            with.iter_mut().for_each(|state| set(state, name, key, new));
            between.extend(with);
            between.dedup();
        }
        let after = Arc::new(after);
        between.retain(|state| *state != *before && *state != *after);
        let map = self.map(name)?;
        let text = || format!("{changes:?} in {name:?}");
        let step = self.logged();
        let between: Vec<_> = between.into_iter().map(Arc::new).collect();
        // A call that is refused space has made the first changes.
        let made = Cell::new(0);
        self.step(Kind::Many, text, Some(after), |session| {
            if let Some(step) = session.log.as_mut().and_then(|log| log.get_mut(step)) {
                step.between.clone_from(&between);
            }
            let (changes, expected) = (&changes[made.get()..], &expected[made.get()..]);
            with_form!(map.index(), R, index => {
                apply_many::<R>(&**index, changes, expected, &made)
            })
        })
    }

    /// Makes a batch. A crash meanwhile leaves all of its changes or none.
    pub fn batch(&mut self, changes: &[Batched]) -> Checked {
        let mut after = State::clone(&self.state);
        for &(name, key, value) in changes {
            set(&mut after, name, key, value);
        }
        let changes = self.batched(changes)?;
        self.step(
            Kind::Batch,
            || format!("batch of {} changes", changes.len()),
            Some(Arc::new(after)),
            |s| {
                let failed = s.store.make_batch(&[], &changes)?;
                ensure(failed.is_none(), || "a requirement does not hold".into())
            },
        )
    }

    /// Attempts a batch that the pool has space to log, but not to make. It must fail as full and
    /// change nothing.
    pub fn batch_too_large(&mut self, changes: &[Batched]) -> Checked {
        let changes = self.batched(changes)?;
        self.step(
            Kind::Batch,
            || format!("batch of {} changes, too large", changes.len()),
            None,
            |s| {
                // Refuses none, but counts them.
                s.seam.refuse(usize::MAX..usize::MAX);
                match s.store.make_batch(&[], &changes) {
                    Err(error) if error.is_full() => {
                        let requested = s.seam.requested();
                        let is_log = requested.last() == requested.iter().max();
                        ensure(!is_log, || {
                            "the pool has no space for the largest block, the log".into()
                        })
                    }
                    made => Err(Fault(format!("{made:?}, and the pool should be full"))),
                }
            },
        )
    }

    fn batched(&mut self, changes: &[Batched]) -> Checked<Vec<BatchRecord>> {
        let mut made = Vec::new();
        for &(name, key, value) in changes {
            self.used.insert(key);
            let map = self.map(name)?;
            let form = map.info().form;
            let value = value.map(|value| raw_value(form, value));
            made.push(BatchRecord { map, key: raw_key(form, key), value, time: None });
        }
        Ok(made)
    }

    /// Looks a key up in every possible way and checks the results.
    pub fn get(&mut self, name: &str, key: u64) -> Checked {
        self.used.insert(key);
        let expected = self.value_of(name, key);
        let map = self.map(name)?;
        self.step(
            Kind::Read,
            || format!("get of key {key} in {name:?}"),
            None,
            |_| {
                let found = with_form!(map.index(), R, index => read::<R>(&**index, key)?);
                ensure(found == expected, || format!("found {found:?}, expected {expected:?}"))
            },
        )
    }

    /// Makes the pool clean and durable.
    pub fn sync(&mut self) -> Checked {
        self.step(Kind::Sync, || "sync".into(), None, |s| Ok(s.store.sync()?))
    }

    /// Does one step of the pool's background work. Returns whether there may be more.
    pub fn background(&mut self) -> Checked<bool> {
        self.step(Kind::Background, || "background step".into(), None, |s| Ok(s.store.step()?))
    }

    /// Returns whether there is background work, of the reclaim or of an open map.
    pub fn has_work(&self) -> bool {
        let works = |map: &Arc<OpenMap>| with_form!(map.index(), R, index => Index::<R>::has_work(&**index));
        self.is_reclaiming() || self.maps.values().any(works)
    }

    /// Runs background steps until there is nothing left to do, which must take at most 10,000
    /// steps. Each map must then be at rest.
    pub fn come_to_rest(&mut self) -> Checked {
        for _ in 0..10_000 {
            if !self.background()? {
                let names: Vec<String> = self.state.maps.keys().cloned().collect();
                return names.iter().try_for_each(|name| {
                    let map = self.map(name)?;
                    let stats = with_form!(map.index(), R, index => Index::<R>::stats(&**index))?;
                    (structure(map.info().scheme()).at_rest)(&stats)
                });
            }
        }
        Err(Fault("the background work does not end".into()))
    }

    /// Returns whether space from before a crash is still unaccounted for.
    pub fn is_reclaiming(&self) -> bool {
        self.store.reclaim_state() == ReclaimState::Running
    }

    /// Copies the pool as a snapshot does, but into memory: holds the writers back, makes the pool
    /// clean, and copies it through the mapping. The copy must be a clean pool with the same
    /// contents.
    pub fn snapshot(&mut self) -> Checked {
        let state = Arc::clone(&self.state);
        self.step(
            Kind::Snapshot,
            || "snapshot".into(),
            None,
            |s| {
                let copy = s.store.sync_and(|core| {
                    let mut copy = vec![0; core.memory.len() as usize];
                    let words = core.memory.words(0, core.memory.len())?;
                    core.memory.read_bytes(words, 0, &mut copy);
                    Ok(copy)
                })?;
                check_closed(&copy, state.records())
            },
        )
    }

    /// Closes the pool and opens it again. With `walk`, an offline walk over the closed file must
    /// find every block accounted for.
    pub fn reopen_and(&mut self, walk: bool) -> Checked {
        let records = self.state.records();
        self.step(
            Kind::Reopen,
            || "close and reopen".into(),
            None,
            |s| {
                s.store.close()?;
                if walk {
                    check_closed(&s.file(), records)?;
                }
                s.open_again()
            },
        )
    }

    /// Closes the pool and opens it again.
    pub fn reopen(&mut self) -> Checked {
        self.reopen_and(false)
    }

    /// Reopens the pool as it is, as if the process had died between two steps.
    pub fn crash(&mut self) -> Checked {
        self.step(Kind::Open, || "crash and reopen".into(), None, Self::open_again)
    }

    fn open_again(&mut self) -> Checked {
        let file = self.file();
        self.let_all_go();
        self.seam.mark(|| Mark::Death);
        self.store = open_bytes(&file, self.capacity, self.seam.clone(), &self.alive)?;
        Ok(())
    }

    /// Switches to `store`, another opening of the same memory, unless the session uses it already.
    pub fn take_over(&mut self, store: &Arc<Store<Traced>>) {
        if !Arc::ptr_eq(&self.store, store) {
            self.let_all_go();
            self.store = Arc::clone(store);
        }
    }

    /// Drops the handles to all maps. Maps are opened again when they are needed.
    pub fn let_all_go(&mut self) {
        self.maps.clear();
        self.held.clear();
    }

    /// Counts the pages that the allocator can still claim, up to the size that the pool can grow
    /// to.
    pub fn free_pages(&self) -> u64 {
        let stats = self.store.core().alloc().stats(self.store.core());
        let never_used = (self.capacity >> PAGE_BITS) - u64::from(stats.frontier_pages);
        never_used + u64::from(stats.free_pages)
    }

    /// Returns the bytes of the pool's file.
    pub fn file(&self) -> Vec<u8> {
        let core = self.store.core();
        let len = core.memory.len() as usize;
        // SAFETY: `Heap::new` has initialized these `len` bytes. Only this thread uses the pool,
        // and it does not use it while the slice exists.
        unsafe { std::slice::from_raw_parts(core.backing().base(), len) }.to_vec()
    }

    // ---- Checks -----------------------------------------------------------------

    /// Reads every map: every key of `universe` by get, and everything by iteration.
    pub fn observe(&mut self, universe: &[u64], gets_first: bool) -> Checked<State> {
        let mut found = State::default();
        for (_, info) in self.store.maps() {
            let info = info?;
            let map = self.map(&info.name)?;
            let records =
                with_form!(map.index(), R, index => contents::<R>(&**index, universe, gets_first))
                    .map_err(|fault| Fault(format!("map {:?}: {fault}", info.name)))?;
            found.maps.insert(info.name, MapState { form: info.form, records });
        }
        Ok(found)
    }

    /// Checks that the pool has the expected contents, by get and by iteration.
    pub fn check(&mut self, universe: &[u64], gets_first: bool) -> Checked {
        let state = Arc::clone(&self.state);
        self.step(
            Kind::Read,
            || "read everything".into(),
            None,
            |s| {
                let found = s.observe(universe, gets_first)?;
                ensure(found == *state, || format!("contents: {}", state.difference(&found)))
            },
        )
    }

    /// Checks that every map has the expected contents, by iteration only.
    pub fn check_walk(&mut self) -> Checked {
        let state = Arc::clone(&self.state);
        for (name, expected) in &state.maps {
            let map = self.map(name)?;
            let found = with_form!(map.index(), R, index => walk::<R>(&**index))?;
            ensure(found == expected.records, || {
                let wrong = |k: &&u64| found.get(*k) != expected.records.get(*k);
                let keys: Vec<_> =
                    found.keys().chain(expected.records.keys()).filter(wrong).collect();
                format!("iteration of {name:?} differs at keys {keys:?}")
            })?;
        }
        Ok(())
    }

    /// Reads the pool's contents, which `judge` must allow. From now on the session expects them.
    pub fn settle(&mut self, judge: &dyn Judge, universe: &[u64], gets_first: bool) -> Checked {
        let found = self.observe(universe, gets_first)?;
        judge.judge(&found)?;
        self.state = Arc::new(found);
        Ok(())
    }

    /// Verifies the pool, which also finishes the reclaim.
    pub fn verify(&mut self) -> Checked {
        let records = self.state.records();
        self.step(
            Kind::Verify,
            || "verify".into(),
            None,
            |s| {
                let found = outlast::internals::db::verify::verify(&s.store)?;
                check_verification(&found, records)?;
                let kept = s.store.core().unfreeable();
                ensure(kept == 0, || format!("{kept} blocks could not be freed"))
            },
        )
    }

    /// Returns how often a map has grown since it was opened.
    pub fn grown(&mut self, name: &str) -> Checked<u64> {
        let map = self.map(name)?;
        Ok(with_form!(map.index(), R, index => Index::<R>::growth(&**index)).splits)
    }

    /// Returns the hash of a key.
    pub fn hash(&self, form: RecordForm, key: u64) -> u64 {
        let hasher = &self.store.core().hasher;
        match form {
            RecordForm::Inline => {
                hasher.word(<outlast::internals::index::Inline as Form>::nth_key(key))
            }
            RecordForm::Bytes => hasher.bytes(&crate::codec::key_bytes(key)),
        }
    }
}
