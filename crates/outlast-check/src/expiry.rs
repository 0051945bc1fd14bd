//! Records that expire, by a clock of the harness's own: results, crashes, and what happens while a thread
//! reads the clock.
//!
//! A run is a script of operations of one thread, chosen by a seed, on a small map. The clock moves only
//! between operations. Three things are compared with a model:
//!
//! - the result of each operation;
//! - what crash images of the run hold at the time of the crash: the records before the operation that the
//!   crash has interrupted, or those after it;
//! - what they hold if the clock goes back to the beginning: no record that an operation has seen absent. So an
//!   operation that leaves an expired record behind is found.
//!
//! The library reads the clock in the middle of an operation, under no lock. So a clock that does something
//! else, once, stands for another thread that runs in between (`meanwhile`).

use crate::codec::{key_bytes, value_bytes};
use crate::model::{GARBAGE, Image, Kept, Timeline, windows};
use crate::random::Random;
use crate::session::{PAGE_BITS, open_bytes_with, recorder};
use crate::state::{Checked, Fault, ensure};
use outlast::internals::db::batch::BatchRecord;
use outlast::internals::db::store::{AnyIndex, MapRequest, OpenMap, Store};
use outlast::internals::index::{Bytes, Change, Cursor, ExpiringIndex, Index, Previous};
use outlast::internals::pmem::{Access, Alive, Event, Mark, MediumKind, Seam, Traced};
use outlast::internals::pool::backing::{Backing, Heap};
use outlast::internals::pool::clock::{Clock, NEVER};
use outlast::internals::pool::core::{Core, CoreOptions};
use outlast::{Config, MapInfo, RecordForm, Scheme};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

/// The size that every pool here can grow to.
const CAPACITY: u64 = 256 << PAGE_BITS;
const KEYS: u64 = 24;
/// A time that no script reaches.
const END: u64 = 1 << 40;

/// How much to try.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Scripts.
    pub scripts: u64,
    /// Operations of each.
    pub operations: usize,
    /// Moments of each at which a crash is tried.
    pub moments: usize,
}

/// What was checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations.
    pub operations: u64,
    /// Crash images.
    pub images: u64,
}

/// A clock that stands still until it is told.
#[derive(Clone, Default)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn set(&self, time: u64) {
        self.0.store(time, Ordering::SeqCst);
    }
    fn clock(&self) -> Clock {
        let time = self.clone();
        Clock::new(move || UNIX_EPOCH + Duration::from_nanos(time.now()))
    }
}

/// Records with their times.
type Records = BTreeMap<u64, (u64, u64)>;

/// The records whose time has not passed, without their times.
fn live(records: &Records, now: u64) -> BTreeMap<u64, u64> {
    let alive = records.iter().filter(|(_, (_, time))| *time > now);
    alive.map(|(key, (value, _))| (*key, *value)).collect()
}

fn options(clock: Clock) -> CoreOptions {
    CoreOptions {
        page_bits: PAGE_BITS,
        initial_size: 40 << PAGE_BITS,
        identity: Some((0x5eed, 1)),
        medium: MediumKind::Bytes,
        clock,
        ..CoreOptions::default()
    }
}

fn info(scheme: Scheme) -> MapInfo {
    MapInfo {
        name: "m".into(),
        form: RecordForm::Bytes,
        key_schema: "[u8]".into(),
        value_schema: "[u8]".into(),
        config: Config::small(scheme),
        expires: true,
    }
}

fn create(scheme: Scheme, seam: &Traced, clock: Clock, alive: &Arc<Alive>) -> Checked<Opened> {
    let heap = Backing::Heap(Heap::new(&[], CAPACITY, GARBAGE));
    let core = Core::create(heap, seam.clone(), options(clock))?;
    let store = Store::with_alive(core, Arc::clone(alive))?;
    let map = store.map(&MapRequest { info: info(scheme), scheme_matters: true })?;
    Ok(Opened { store, map })
}

/// A pool with its map.
struct Opened {
    store: Arc<Store<Traced>>,
    map: Arc<OpenMap>,
}

impl Opened {
    fn index(&self) -> Checked<&dyn Index<Bytes>> {
        match self.map.index() {
            AnyIndex::Bytes(index) => Ok(&**index),
            AnyIndex::Inline(_) => Err(Fault("a map of words".into())),
        }
    }

    fn expiring(&self) -> Checked<&dyn ExpiringIndex> {
        self.index()?.expiring().ok_or_else(|| Fault("a map without expiry".into()))
    }

    /// Everything that lookups find.
    fn found(&self) -> Checked<BTreeMap<u64, u64>> {
        let mut found = BTreeMap::new();
        for key in 0..KEYS {
            if let Some(value) = self.index()?.get(&key_bytes(key))? {
                found.insert(key, number(&value)?);
            }
        }
        Ok(found)
    }
}

fn number(value: &[u8]) -> Checked<u64> {
    let number = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    ensure(value_bytes(number) == value, || format!("nobody wrote {value:02x?}"))?;
    Ok(number)
}

/// What an operation begins and ends with.
#[derive(Clone)]
struct Step {
    time: u64,
    /// The records, expired ones included that no operation has seen absent. Before and after.
    before: Records,
    after: Records,
}

/// A script under way.
struct Play {
    opened: Opened,
    time: Time,
    random: Random,
    records: Records,
    steps: Vec<Step>,
    seam: Traced,
}

impl Play {
    /// Makes an operation. `made` gets the model's records, of which those with this key that have expired are
    /// gone; it changes them and returns what is wrong with the result.
    fn operation(
        &mut self,
        name: &str,
        keys: &[u64],
        make: impl FnOnce(&Opened, &mut Records) -> Checked,
    ) -> Checked {
        let (now, before) = (self.time.now(), self.records.clone());
        self.seam.mark(|| Mark::Begin(name.into()));
        for key in keys {
            if self.records.get(key).is_some_and(|(_, at)| *at <= now) {
                self.records.remove(key);
            }
        }
        let done = make(&self.opened, &mut self.records);
        done.map_err(|fault| Fault(format!("step {}, {name}: {fault}", self.steps.len())))?;
        self.seam.mark(|| Mark::End(name.into()));
        self.steps.push(Step { time: self.time.now(), before, after: self.records.clone() });
        Ok(())
    }

    /// Makes the next operation of the script.
    fn step(&mut self) -> Checked {
        let random = &mut self.random;
        let (key, other) = (random.below(KEYS), random.below(KEYS));
        let (value, now) = (random.below(60) + 1, self.time.now());
        let (kind, at) = (random.below(14), now + 1 + random.below(4));
        let (bytes, word) = (key_bytes(key), value_bytes(value));
        let change = |opened: &Opened, records: &Records, change: Change<'_, Bytes>, applied| {
            let had = records.get(&key).map(|(value, _)| *value);
            let done = opened.index()?.change(&bytes, change, Previous::WANTED)?;
            let before = done.before.as_deref().map(number).transpose()?;
            ensure(done.applied == applied && done.present == had.is_some(), || {
                format!("{done:?}")
            })?;
            ensure(!done.present || before == had, || format!("{before:?} instead of {had:?}"))
        };
        match kind {
            0 | 1 => {
                let (time, passed) = (self.time.clone(), random.below(3));
                self.operation("tick", &[], |_, _| {
                    time.set(now + passed);
                    Ok(())
                })
            }
            2 | 3 => self.operation("put until", &[key], |opened, records| {
                let had = records.insert(key, (value, at)).map(|(value, _)| value);
                let done = opened.expiring()?.put_timed(&bytes, at, &word, Previous::WANTED)?;
                let before = done.before.as_deref().map(number).transpose()?;
                ensure(before == had, || format!("{before:?} instead of {had:?}"))
            }),
            4 => self.operation("insert", &[key], |opened, records| {
                let absent = !records.contains_key(&key);
                change(opened, records, Change::Insert(&*word), absent)?;
                records.entry(key).or_insert((value, NEVER));
                Ok(())
            }),
            5 => self.operation("update", &[key], |opened, records| {
                change(opened, records, Change::Update(&*word), records.contains_key(&key))?;
                records.entry(key).and_modify(|record| record.0 = value);
                Ok(())
            }),
            6 => {
                // The value that the key has, or had before it expired.
                let expected = self.records.get(&key).map_or(0, |(value, _)| *value);
                self.operation("compare and swap", &[key], |opened, records| {
                    let expected = value_bytes(expected);
                    let swap = Change::Swap { expected: &*expected, new: &*word };
                    change(opened, records, swap, records.contains_key(&key))?;
                    records.entry(key).and_modify(|record| record.0 = value);
                    Ok(())
                })
            }
            7 => self.operation("remove", &[key], |opened, records| {
                change(opened, records, Change::Remove, records.contains_key(&key))?;
                records.remove(&key);
                Ok(())
            }),
            8 => self.operation("get many", &[key, other], |opened, records| {
                let (bytes, mut found) = ([bytes.clone(), key_bytes(other)], [None, None]);
                opened.index()?.get_many(&[&bytes[0], &bytes[1]], &mut found)?;
                for (key, found) in [key, other].into_iter().zip(found) {
                    let found = found.as_deref().map(number).transpose()?;
                    let has = records.get(&key).map(|(value, _)| *value);
                    ensure(found == has, || format!("{found:?} instead of {has:?}"))?;
                }
                Ok(())
            }),
            9 => self.operation("scan", &(0..KEYS).collect::<Vec<_>>(), |opened, records| {
                let (mut cursor, mut out) = (Cursor::start(), Vec::new());
                while !cursor.is_done() {
                    opened.index()?.scan(&mut cursor, &mut out)?;
                }
                let mut found: Vec<u64> =
                    out.iter().map(|(_, value)| number(value)).collect::<Checked<_>>()?;
                let mut expected: Vec<u64> = records.values().map(|(value, _)| *value).collect();
                found.sort_unstable();
                expected.sort_unstable();
                ensure(found == expected, || format!("{found:?} instead of {expected:?}"))
            }),
            10 => self.operation("renew", &[key], |opened, records| {
                let has = opened.expiring()?.get_timed(&bytes)?;
                ensure(has.is_some() == records.contains_key(&key), || format!("{has:?}"))?;
                let Some((time, value)) = has else { return Ok(()) };
                let after = Some((at, &value[..]));
                let done = opened.expiring()?.exchange(&bytes, Some((time, &value)), after)?;
                records.entry(key).and_modify(|record| record.1 = at);
                ensure(done, || "nobody else has changed it".into())
            }),
            11 => self.operation("batch", &[], |opened, records| {
                // Two changes of a batch, which does not look at what has expired.
                let change = |key, time| BatchRecord {
                    map: Arc::clone(&opened.map),
                    key: key_bytes(key),
                    value: Some(word.clone()),
                    time,
                };
                records.insert(key, (value, at));
                records.insert(other, (value, NEVER));
                let changes = [change(key, Some(at)), change(other, Some(NEVER))];
                opened.store.make_batch(&[], &changes)?;
                Ok(())
            }),
            12 => self.operation("get", &[key], |opened, records| {
                let found = opened.index()?.get(&bytes)?.as_deref().map(number).transpose()?;
                let has = records.get(&key).map(|(value, _)| *value);
                ensure(found == has, || format!("{found:?} instead of {has:?}"))
            }),
            // The sweep may remove what has expired, and nothing else.
            _ => self.operation("sweep", &[], |opened, _| {
                for _ in 0..8 {
                    opened.store.step()?;
                }
                Ok(())
            }),
        }
    }
}

/// Checks a scheme.
///
/// # Errors
/// What was found.
pub fn check(scheme: Scheme, budget: &Budget, alive: &Arc<Alive>) -> Checked<Counters> {
    times_last(scheme, alive)?;
    meanwhile(scheme, alive)?;
    let mut counters = Counters::default();
    for seed in 1..=budget.scripts {
        script(scheme, seed, budget, alive, &mut counters)
            .map_err(|fault| Fault(format!("{scheme}, script {seed}: {fault}")))?;
    }
    Ok(counters)
}

fn script(
    scheme: Scheme,
    seed: u64,
    budget: &Budget,
    alive: &Arc<Alive>,
    counters: &mut Counters,
) -> Checked {
    let (seam, time) = (recorder(true), Time::default());
    time.set(1_000);
    let opened = create(scheme, &seam, time.clock(), alive)?;
    let (records, steps, random) = (Records::new(), Vec::new(), Random::new(seed));
    let mut play = Play { opened, time, random, records, steps, seam: seam.clone() };
    for _ in 0..budget.operations {
        play.step()?;
        counters.operations += 1;
    }
    let found = play.opened.found()?;
    let expected = live(&play.records, play.time.now());
    ensure(found == expected, || format!("{found:?} at the end instead of {expected:?}"))?;
    let verified = outlast::internals::db::verify::verify(&play.opened.store)?;
    ensure(verified.is_sound(), || format!("{verified:?}"))?;
    crashes(&seam.take(), &play.steps, budget, alive, counters)
}

/// Tries crashes at some moments of a run.
fn crashes(
    events: &[Event],
    steps: &[Step],
    budget: &Budget,
    alive: &Arc<Alive>,
    counters: &mut Counters,
) -> Checked {
    let is_begin = |event: &Event| matches!(event.access, Access::Mark(Mark::Begin(_)));
    let is_end = |event: &Event| matches!(event.access, Access::Mark(Mark::End(_)));
    let first = events.iter().position(is_begin).unwrap_or(events.len());
    let all: Vec<usize> = windows(events).into_iter().filter(|&moment| moment > first).collect();
    let every = all.len().div_ceil(budget.moments).max(1);
    let mut timeline = Timeline::new(&Image::of_file(&[], CAPACITY), CAPACITY, events);
    for moment in all.into_iter().step_by(every) {
        timeline.advance(moment);
        let count = |of: &dyn Fn(&Event) -> bool| events[..moment].iter().filter(|e| of(e)).count();
        let (begun, ended) = (count(&is_begin), count(&is_end));
        let Some(step) = steps.get(begun - 1) else { continue };
        let before = if begun > ended { &step.before } else { &step.after };
        let lines: Vec<_> = timeline.open().map(|open| (open.line, open.stores.len())).collect();
        let mut kept = vec![(true, Vec::new()), (false, Vec::new())];
        for (line, stores) in lines {
            kept.push((true, vec![Kept { line, stores }]));
            kept.push((false, vec![Kept { line, stores: 0 }]));
        }
        for (least, kept) in kept {
            let mut image = Image::default();
            if least {
                timeline.least_and(&kept, &mut image);
            } else {
                timeline.all_but(&kept, &mut image);
            }
            counters.images += 1;
            left(&image.bytes, step, before, alive)
                .map_err(|fault| Fault(format!("a crash after event {moment}: {fault}")))?;
        }
    }
    Ok(())
}

/// Checks what a crash in this step has left.
fn left(file: &[u8], step: &Step, before: &Records, alive: &Arc<Alive>) -> Checked {
    let open = |now| -> Checked<BTreeMap<u64, u64>> {
        let time = Time::default();
        time.set(now);
        let options = options(time.clock());
        let store = open_bytes_with(file, CAPACITY, recorder(false), alive, options)?;
        let map = store.open_map("m")?;
        Opened { store, map }.found()
    };
    let found = open(step.time)?;
    let allowed = [live(before, step.time), live(&step.after, step.time)];
    ensure(allowed.contains(&found), || format!("{found:?} instead of one of {allowed:?}"))?;
    // The clock goes back.
    for (key, value) in open(0)? {
        let is = |records: &Records| records.get(&key).is_some_and(|record| record.0 == value);
        let known = is(before) || is(&step.after);
        ensure(known, || format!("{value} at {key} came back after it was seen absent"))?;
    }
    Ok(())
}

/// Times outlast what moves records, such as splits, and updates of their values.
fn times_last(scheme: Scheme, alive: &Arc<Alive>) -> Checked {
    const RECORDS: u64 = 100;
    let time = Time::default();
    let opened = create(scheme, &recorder(false), time.clock(), alive)?;
    let (index, expiring) = (opened.index()?, opened.expiring()?);
    for key in 0..RECORDS {
        expiring.put_timed(&key_bytes(key), 10, b"before", Previous::UNWANTED)?;
    }
    for key in (0..RECORDS).step_by(2) {
        index.change(&key_bytes(key), Change::Update(&b"after"[..]), Previous::UNWANTED)?;
    }
    for (now, expected) in [(9, true), (10, false)] {
        time.set(now);
        for key in 0..RECORDS {
            let found = index.get(&key_bytes(key))?.is_some();
            ensure(found == expected, || format!("{key}: found {found} at {now}"))?;
        }
    }
    Ok(())
}

/// Has another thread work while an operation reads the clock.
fn meanwhile(scheme: Scheme, alive: &Arc<Alive>) -> Checked {
    late_renewal(scheme, alive)?;
    renewed_in_a_sweep(scheme, alive)
}

/// What is done when the clock is read for this time, once.
type Then = Rc<Mutex<Option<(u64, Box<dyn FnMut() -> Checked>)>>>;

thread_local! {
    static THEN: Cell<Option<Then>> = const { Cell::new(None) };
}

/// Returns a clock that does what [`then`] says.
fn busy(time: &Time) -> Clock {
    let time = time.clone();
    Clock::new(move || {
        let then = THEN.take();
        if let Some(then) = &then {
            let due = {
                let mut then = then.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                match &mut *then {
                    Some((reads, _)) if *reads > 0 => {
                        *reads -= 1;
                        None
                    }
                    then => then.take(),
                }
            };
            if let Some((_, mut act)) = due {
                act().expect("the other thread");
            }
        }
        THEN.set(then);
        UNIX_EPOCH + Duration::from_nanos(time.now())
    })
}

/// Calls `during`. When the clock has been read `reads` times, `act` runs before the next read.
fn then<T>(reads: u64, act: impl FnMut() -> Checked + 'static, during: impl FnOnce() -> T) -> T {
    THEN.set(Some(Rc::new(Mutex::new(Some((reads, Box::new(act)))))));
    let done = during();
    THEN.set(None);
    done
}

/// A thread reads a record to renew it. Before it does, the record's time passes, and another thread finds
/// it absent. Then the renewal must not succeed.
fn late_renewal(scheme: Scheme, alive: &Arc<Alive>) -> Checked {
    let time = Time::default();
    let opened = Arc::new(create(scheme, &recorder(false), busy(&time), alive)?);
    let key = key_bytes(3);
    opened.expiring()?.put_timed(&key, 10, b"value", Previous::UNWANTED)?;
    let before = opened.expiring()?.get_timed(&key)?.ok_or_else(|| Fault("absent".into()))?;
    let other = {
        let (opened, time, key) = (Arc::clone(&opened), time.clone(), key.clone());
        move || {
            time.set(10);
            let found = opened.index()?.get(&key)?;
            ensure(found.is_none(), || format!("{found:?} after its time"))
        }
    };
    let renewed = then(0, other, || {
        let (time, value) = (before.0, &before.1[..]);
        opened
            .expiring()?
            .exchange(&key, Some((time, value)), Some((END, value)))
            .map_err(Fault::from)
    })?;
    let found = opened.index()?.get(&key)?;
    ensure(!renewed && found.is_none(), || "a record came back after it was seen absent".into())
}

/// The sweep finds a record whose time has passed. Before it removes the record, another thread puts a new
/// one, which must stay.
fn renewed_in_a_sweep(scheme: Scheme, alive: &Arc<Alive>) -> Checked {
    // The clock is read a few times before the sweep looks at the records.
    for reads in 0..6 {
        let time = Time::default();
        let opened = Arc::new(create(scheme, &recorder(false), busy(&time), alive)?);
        let key = key_bytes(3);
        opened.expiring()?.put_timed(&key, 10, b"value", Previous::UNWANTED)?;
        while opened.store.step()? {}
        time.set(100_000_000_000);
        let put = Rc::new(Cell::new(false));
        let other = {
            let (opened, key, put) = (Arc::clone(&opened), key.clone(), Rc::clone(&put));
            move || {
                opened.expiring()?.put_timed(&key, u64::MAX - 1, b"new", Previous::UNWANTED)?;
                put.set(true);
                Ok(())
            }
        };
        then(reads, other, || -> Checked {
            while opened.store.step()? {}
            Ok(())
        })?;
        let found = opened.index()?.get(&key)?;
        let expected = put.get().then(|| b"new".to_vec());
        ensure(found == expected, || format!("{found:?} instead of {expected:?} after the sweep"))?;
    }
    Ok(())
}
