//! One run of a workload under the scheduler.

use super::act::{Act, MAP, MAPS, other};
use super::baton::{Baton, FIRST, Stuck};
use super::opening::{Opened, Pool};
use super::strategy::{Steps, Strategy};
use super::worker::{Shared, Worker};
use super::workload::Instance;
use crate::history::{Answer, Call, Event, History, OpId};
use crate::session::{Do, Session};
use crate::state::{Checked, Fault, Judge, Records, State};
use outlast::internals::db::verify::verify;
use outlast::internals::pmem::{self, Access, Alive, Mark, Point, Traced};
use outlast::internals::pool::threads;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// In histories, the thread that reads the contents after the run.
const OBSERVER: usize = 99;

/// A run and all that was recorded of it.
pub struct Run {
    /// The instance that was run.
    pub instance: Instance,
    /// The file when recording began, extended to the size that it can grow to.
    pub initial: Vec<u8>,
    /// The length of the file when recording began.
    pub initial_len: u64,
    /// Every access and every mark.
    pub events: Vec<pmem::Event>,
    /// Steps that the threads made.
    pub steps: Steps,
    /// By thread: its steps that were stores, flushes or fences of a commit point.
    pub pointed: Vec<Vec<(u64, &'static Point)>>,
    /// By number of the operation: its thread and call.
    asked: Vec<(usize, Act)>,
    /// By number of the operation: its result, if the history has one.
    answers: Vec<Option<Answer>>,
    /// Keys that the operations name.
    touched: BTreeSet<u64>,
    /// What was wrong with the run itself.
    pub fault: Option<Fault>,
}

/// Runs a workload. If something is wrong with the run itself, [`Run::fault`] says so.
///
/// # Errors
/// If the workload cannot be set up.
pub fn run(instance: &Instance, strategy: Strategy, alive: &Arc<Alive>) -> Checked<Run> {
    threads::number_this_thread(0);
    let baton = Baton::new(instance.scripts.len(), strategy);
    if instance.workload.pages.is_some() {
        // Its table has so many records that an iteration takes tens of thousands of steps.
        baton.limit(1_000_000);
    }
    let seam = Traced::with_control(Box::new(baton.clone()));
    if instance.reuses {
        seam.reuse_at_once();
    }
    let mut session = instance.fill(alive, seam.clone())?;
    let store = Arc::clone(session.store());
    let map = store.open_map(MAP)?;
    let mut initial = session.file();
    let initial_len = initial.len() as u64;
    initial.resize(instance.capacity() as usize, crate::model::GARBAGE);
    let asked: Vec<(usize, Act)> = instance
        .scripts
        .iter()
        .enumerate()
        .flat_map(|(thread, script)| script.iter().map(move |act| (thread, *act)))
        .collect();
    let touched = asked
        .iter()
        .filter_map(|(_, act)| act.call())
        .filter(|(map, _)| *map == MAP)
        .filter_map(|(_, call)| call.key())
        .collect::<BTreeSet<_>>();
    let still = instance.initial().into_iter().filter(|(key, _)| !touched.contains(key)).collect();
    let shared = Shared {
        baton: baton.clone(),
        seam: seam.clone(),
        pool: Pool::new(Opened { store, map }, instance, seam.clone(), alive),
        instance,
        still,
        answers: Mutex::new(vec![None; asked.len()]),
        full: AtomicBool::new(false),
    };
    seam.start(false);
    let fault = run_threads(&shared);
    let events = seam.take();
    session.take_over(&shared.pool.now().store);
    let was_full = shared.full.load(Ordering::Relaxed);
    let answers = shared.into_answers();
    let mut run = Run {
        instance: instance.clone(),
        initial,
        initial_len,
        events,
        steps: baton.steps(),
        pointed: (0..instance.scripts.len()).map(|thread| baton.pointed(thread)).collect(),
        asked,
        answers,
        touched,
        fault,
    };
    run.fault = match run.fault {
        None => run.check_end(session).err(),
        Some(fault) if was_full => Some(judge_full(session, instance, fault)),
        fault => fault,
    };
    Ok(run)
}

/// Runs the threads of a run to their ends. Returns what is wrong, if something is.
fn run_threads(shared: &Shared<'_>) -> Option<Fault> {
    let instance = shared.instance;
    let mut first = 0;
    let acts = instance.scripts.iter().enumerate().map(|(thread, script)| {
        let mut worker = Worker::new(shared);
        let begin = first;
        first += script.len();
        let act = move || {
            threads::number_this_thread(instance.first_thread + thread);
            shared.seam.number_this_thread(FIRST + thread);
            worker.run(begin, script)
        };
        Box::new(act) as Box<dyn FnOnce() -> Checked + Send>
    });
    let ends = shared.baton.play(acts).into_iter();
    let ends = ends.map(|end| end.unwrap_or_else(|panic| Err(unwound(&*panic))));
    // Prefer the fault of a thread that was not stuck, because it explains why others could not
    // go on.
    let faults: Vec<Fault> = ends.filter_map(Result::err).collect();
    faults.iter().find(|f| f.0 != STUCK).or(faults.first()).cloned()
}

/// Judges a run in which an operation found the pool full. The operation was wrong if the maps own
/// less than a third of the pool's largest size: then space was lost, or the operation gave up too
/// early. A third can be all that fits, because free blocks of one size serve no other size, and
/// because old and new structures exist side by side during growth. What the maps own is counted
/// after the run, as if the process had died.
fn judge_full(mut session: Session, instance: &Instance, fault: Fault) -> Fault {
    let live = session.crash().and_then(|()| Ok(verify(session.store())?.used_bytes));
    let limit = instance.capacity();
    match live {
        Ok(live) if live < limit / 3 => Fault(format!(
            "a spurious PoolFull: maps own {live} bytes, and the pool may have {limit}: {fault}"
        )),
        Ok(live) => Fault(format!("{fault}; maps own {live} bytes of {limit}")),
        Err(error) => Fault(format!("{fault}; and then: {error}")),
    }
}

/// More records than the blocks that a thread keeps for its next allocations.
const REUSED: u64 = 40;

const STUCK: &str = "the threads make no progress: each waits or loops";

fn unwound(panic: &(dyn std::any::Any + Send)) -> Fault {
    if panic.is::<Stuck>() {
        return Fault(STUCK.into());
    }
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text =
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of an unknown kind");
    Fault(format!("a panic: {text}"))
}

/// Returns the number of the operation that a mark names, if it names one.
fn op_of(mark: &str) -> Option<usize> {
    mark.split(' ').next()?.parse().ok()
}

impl Run {
    /// Returns whether the run ended because no thread made progress.
    pub fn is_stuck(&self) -> bool {
        self.fault.as_ref().is_some_and(|f| f.0 == STUCK)
    }

    /// Returns the number of an operation's script, and the operation.
    pub fn operation(&self, op: usize) -> (usize, Act) {
        self.asked[op]
    }

    /// Returns the moments just after an operation has returned, each with the operation's number.
    pub fn answers(&self) -> impl Iterator<Item = (usize, usize)> {
        self.events.iter().enumerate().filter_map(|(i, event)| match &event.access {
            Access::Mark(Mark::End(name)) => Some((i + 1, op_of(name)?)),
            _ => None,
        })
    }

    /// Hashes the operations begun, and the results returned, before a moment of the trace.
    pub fn hash_history(&self, moment: usize, hasher: &mut impl Hasher) {
        for event in &self.events[..moment] {
            let (mark, ends) = match &event.access {
                Access::Mark(Mark::Begin(name)) => (name, false),
                Access::Mark(Mark::End(name)) => (name, true),
                _ => continue,
            };
            (event.thread, mark).hash(hasher);
            if let (true, Some(op)) = (ends, op_of(mark)) {
                format!("{:?}", self.answers[op]).hash(hasher);
            }
        }
    }

    /// Returns the history of the first `moment` events of the trace. It leaves out records that no
    /// operation touches.
    ///
    /// # Errors
    /// If an iteration reported such a record wrongly.
    pub fn history(&self, moment: usize) -> Checked<History> {
        let mut events = Vec::new();
        let initial = self.instance.initial();
        for (key, value) in initial.iter().filter(|(key, _)| self.touched.contains(key)) {
            events.push(Event::Initial { map: MAP.into(), key: *key, value: *value });
        }
        for &n in &self.instance.others {
            events.push(Event::Initial { map: MAPS.into(), key: n, value: 1 });
        }
        for event in &self.events[..moment] {
            let (mark, ends) = match &event.access {
                Access::Mark(Mark::Begin(name)) => (name, false),
                Access::Mark(Mark::End(name)) => (name, true),
                _ => continue,
            };
            let Some(op) = op_of(mark) else { continue };
            let (thread, act) = self.asked[op];
            let Some((map, call)) = act.call() else { continue };
            if ends {
                let answer = self.answers[op].clone().expect("what was answered is kept");
                let answer = match answer {
                    Answer::Records(records) => Answer::Records(self.told(op, records)?),
                    answer => answer,
                };
                events.push(Event::End { op: op as OpId, answer });
            } else {
                events.push(Event::Begin { op: op as OpId, thread, map: map.into(), call });
            }
        }
        Ok(History { events })
    }

    /// Returns the records of an iteration whose keys the scripts touch. Fails if the others are
    /// not those that the map began with, each once.
    fn told(&self, op: usize, records: Vec<(u64, u64)>) -> Checked<Vec<(u64, u64)>> {
        let (touched, rest): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|(key, _)| self.touched.contains(key));
        let mut found = Records::new();
        for (key, value) in rest {
            if found.insert(key, value).is_some() {
                return Err(Fault(format!("iteration {op} reports key {key} twice")));
            }
        }
        self.compare_untouched(&found).map_err(|f| Fault(format!("iteration {op}: {f}")))?;
        Ok(touched)
    }

    fn compare_untouched(&self, found: &Records) -> Checked {
        let initial = self.instance.initial();
        let keys = initial.keys().chain(found.keys());
        for key in keys.filter(|key| !self.touched.contains(key)) {
            if initial.get(key) != found.get(key) {
                let (was, is) = (initial.get(key), found.get(key));
                return Err(Fault(format!("key {key}, which nobody touched: {was:?}, now {is:?}")));
            }
        }
        Ok(())
    }

    /// Returns the history of the first `moment` events, followed by lookups that return what was
    /// found afterwards.
    ///
    /// # Errors
    /// If the map is gone, if records that no operation touches are not as they were, or if another
    /// map has wrong records.
    pub fn history_with(&self, moment: usize, crashed: bool, found: &State) -> Checked<History> {
        let mut history = self.history(moment)?;
        if crashed {
            history.events.push(Event::Crash);
        }
        let none = Records::new();
        let records = match found.maps.get(MAP) {
            Some(map) => &map.records,
            None => return Err(Fault(format!("the map {MAP:?} is gone"))),
        };
        self.compare_untouched(records)?;
        let mut op = self.asked.len() as OpId;
        let mut read = |map: &str, key: u64, value: Option<u64>| {
            let (call, answer) = (Call::Get(key), Answer::Value(value));
            history.events.push(Event::Begin { op, thread: OBSERVER, map: map.into(), call });
            history.events.push(Event::End { op, answer });
            op += 1;
        };
        for &key in &self.touched {
            read(MAP, key, records.get(&key).copied());
        }
        for n in 0..2 {
            let map = found.maps.get(&other(n));
            read(MAPS, n, map.map(|_| 1));
            let holds = map.map_or(&none, |m| &m.records);
            if !holds.is_empty() && *holds != self.instance.other_records() {
                return Err(Fault(format!("{:?} holds {holds:?}", other(n))));
            }
        }
        Ok(history)
    }

    /// Returns what a crash after the first `moment` events may leave.
    pub fn left(&self, moment: usize) -> Left<'_> {
        Left { run: self, moment }
    }

    /// Returns every key that may be present, and some that never are.
    pub fn universe(&self) -> Vec<u64> {
        let mut keys: BTreeSet<u64> = self.instance.initial().keys().copied().collect();
        keys.extend(&self.touched);
        keys.extend(self.instance.other_records().keys());
        let last = keys.last().copied().unwrap_or(0);
        keys.extend([last + 1, last + 2]);
        keys.into_iter().collect()
    }

    /// Checks the pool after a run without a crash: reads everything, verifies, and makes changes.
    fn check_end(&self, mut session: Session) -> Checked {
        if session.store().core().check().is_err() {
            // The run closed the pool. Open what the close left.
            session.crash()?;
        }
        let universe = self.universe();
        let found = session.observe(&universe, self.steps.all.is_multiple_of(2))?;
        let history = self.history_with(self.events.len(), false, &found)?;
        if let Err(findings) = crate::history::check(&history) {
            return Err(Fault(findings[0].to_string()));
        }
        session.settle(&found, &universe, true)?;
        // In a pool that was closed and opened, background work begins only after the first change.
        session.change(MAP, 6_999_999, Do::Put(1))?;
        session.come_to_rest()?;
        // Reuse freed blocks, which shows whether anything still refers to one of them.
        let fresh: Vec<u64> = (6_999_999..7_000_000 + REUSED).collect();
        for &key in &fresh[1..] {
            session.change(MAP, key, Do::Insert(key - 6_999_000))?;
        }
        session.verify()?;
        session.check(&[&universe[..], &fresh].concat(), true)
    }
}

/// What a crash of a run may leave.
pub struct Left<'r> {
    run: &'r Run,
    moment: usize,
}

impl Judge for Left<'_> {
    fn judge(&self, found: &State) -> Checked {
        let history = self.run.history_with(self.moment, true, found)?;
        let checked = crate::history::check(&history);
        checked.map(|_| ()).map_err(|findings| Fault(findings[0].to_string()))
    }

    fn key(&self) -> u64 {
        self.moment as u64
    }
}
