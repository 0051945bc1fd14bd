//! One thread of a run: it executes its script, one operation after the other.

use super::act::{Act, other};
use super::baton::Baton;
use super::call::{Asked, ask};
use super::hold::{Held, hold};
use super::opening::{Opened, Pool};
use super::workload::Instance;
use crate::codec::{raw_key, raw_value};
use crate::history::{Answer, Call};
use crate::state::{Checked, Fault, Records};
use crate::with_form;
use outlast::Error;
use outlast::internals::db::batch::BatchRecord;
use outlast::internals::db::store::{MapRequest, OpenMap};
use outlast::internals::pmem::{Mark, Seam, Traced};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The state that the threads of a run share.
pub(super) struct Shared<'r> {
    pub(super) baton: Baton,
    pub(super) seam: Traced,
    pub(super) pool: Pool<'r>,
    pub(super) instance: &'r Instance,
    /// Records that exist at first, and that no operation changes.
    pub(super) still: Vec<(u64, u64)>,
    /// The results, by the number of the operation.
    pub(super) answers: Mutex<Vec<Option<Answer>>>,
    /// Whether an operation has failed because the pool was full.
    pub(super) full: AtomicBool,
}

impl Shared<'_> {
    /// Returns the results, once all threads are done.
    pub(super) fn into_answers(self) -> Vec<Option<Answer>> {
        self.answers.into_inner().unwrap_or_else(|e| e.into_inner())
    }
}

/// The map that a held reference or iteration belongs to.
#[derive(Clone, Copy)]
enum Of {
    /// The map that the threads work on. The result of a held iteration is recorded as that of the
    /// operation with this number.
    Map(usize),
    Other,
}

/// One thread.
pub(super) struct Worker<'r> {
    shared: &'r Shared<'r>,
    /// The opening of the pool that it uses.
    opened: Arc<Opened>,
    held: Option<(Of, Held)>,
}

/// Returns a record for a batch.
fn record(map: &Arc<OpenMap>, key: u64, value: u64) -> BatchRecord {
    let form = map.info().form;
    let (key, value) = (raw_key(form, key), Some(raw_value(form, value)));
    BatchRecord { map: Arc::clone(map), key, value, time: None }
}

fn name(op: usize, act: Act) -> String {
    format!("{op} {act}")
}

impl<'r> Worker<'r> {
    pub(super) fn new(shared: &'r Shared<'r>) -> Self {
        Worker { shared, opened: shared.pool.now(), held: None }
    }

    /// Executes a script whose first operation has this number.
    pub(super) fn run(&mut self, first: usize, script: &[Act]) -> Checked {
        let done = self.play(first, script);
        // Dropped while the thread is scheduled, because dropping accesses memory too.
        self.held = None;
        done
    }

    fn play(&mut self, first: usize, script: &[Act]) -> Checked {
        for (i, &act) in script.iter().enumerate() {
            let op = first + i;
            self.shared.seam.mark(|| Mark::Begin(name(op, act)));
            let reopens = script[i..].contains(&Act::Reopen);
            match self.attempt(op, act, reopens) {
                // A later `Read` does the rest of the iteration, and its result is recorded then.
                Ok(None) if act == Act::Hold(Call::Scan) => self.shared.baton.answered(),
                Ok(answer) => self.answer(op, act, answer),
                Err(Asked::Refused) if reopens || self.is_open() => {}
                Err(Asked::Refused) => return Ok(()),
                Err(Asked::Failed(error)) => {
                    if matches!(error, Error::PoolFull { .. }) {
                        self.shared.full.store(true, Ordering::Relaxed);
                    }
                    return Err(Fault(format!("{act}: {error}")));
                }
                Err(Asked::Wrong(what)) => return Err(Fault(format!("{act}: {what}"))),
            }
        }
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.opened.store.core().check().is_ok()
    }

    fn answer(&self, op: usize, act: Act, answer: Option<Answer>) {
        self.shared.answers.lock().unwrap_or_else(|e| e.into_inner())[op] = answer;
        self.shared.seam.mark(|| Mark::End(name(op, act)));
        self.shared.baton.answered();
    }

    /// Performs an operation. A refused operation has had no effect, so the thread repeats a call
    /// on the next opening of the pool, if there will be one. A thread whose own script still
    /// reopens the pool does not wait, because it would wait for itself.
    fn attempt(&mut self, op: usize, act: Act, reopens: bool) -> Result<Option<Answer>, Asked> {
        loop {
            let was_open = self.is_open() || matches!(act, Act::Reopen | Act::Read);
            match self.act(op, act) {
                Ok(_) if !was_open => {
                    return Err(Asked::Wrong("answered by a pool that was closed before".into()));
                }
                Err(Asked::Refused) if !reopens => {
                    let Some(next) = self.shared.pool.after(&self.opened) else {
                        return Err(Asked::Refused);
                    };
                    self.opened = next;
                    if !matches!(act, Act::Call(_) | Act::Hold(_)) {
                        return Err(Asked::Refused);
                    }
                }
                answer => return answer,
            }
        }
    }

    fn act(&mut self, op: usize, act: Act) -> Result<Option<Answer>, Asked> {
        let said = |applied, present| Answer::Changed { applied, present, before: None };
        let opened = Arc::clone(&self.opened);
        let (store, map) = (&opened.store, &opened.map);
        match act {
            Act::Call(call) => {
                let way = op as u64 + self.shared.instance.way;
                return with_form!(map.index(), R, index => {
                    ask::<R>(&**index, call, way, &self.shared.still)
                })
                .map(Some);
            }
            Act::Batch(key, value) => {
                let change = record(map, key, value);
                // Make the same change twice. The history shows one put, but the batch has two
                // parts, of which a crash could leave one.
                store.make_batch(&[], &[change.clone(), change])?;
                return Ok(Some(said(true, None)));
            }
            Act::BatchIf(key, old, new) => {
                let [old, new] = [old, new].map(|value| record(map, key, value));
                return Ok(Some(said(store.make_batch(&[old], &[new])?.is_none(), None)));
            }
            Act::Background => store.step().map(|_| ())?,
            Act::Sync => store.sync()?,
            Act::Close => store.close()?,
            Act::Reopen => {
                self.shared.pool.reopen()?;
                self.opened = self.shared.pool.now();
            }
            Act::Hold(call) => {
                let (answer, held) = hold(store, Arc::clone(map), call)?;
                self.held = held.map(|held| (Of::Map(op), held));
                return Ok(answer);
            }
            Act::HoldOther(n, call) => self.hold_other(n, call)?,
            Act::Read => self.read()?,
            Act::CreateMap(n) => {
                let info = self.shared.instance.shape.info(&other(n));
                store.map(&MapRequest { info, scheme_matters: true })?;
                return Ok(Some(said(true, None)));
            }
            Act::DropMap(n) => return self.drop_map(n).map(Some),
            Act::DropHeld(n) => {
                let held = store.open_map(&other(n)).ok();
                let answer = self.drop_map(n)?;
                drop(held);
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    fn drop_map(&self, n: u64) -> Result<Answer, Asked> {
        let said = |done| Answer::Changed { applied: done, present: Some(done), before: None };
        match self.opened.store.drop_map(&other(n)) {
            Ok(()) => Ok(said(true)),
            Err(Error::NoSuchMap { .. }) => Ok(said(false)),
            Err(error) => Err(error.into()),
        }
    }

    /// Like [`hold`], but for one of the other maps, if it exists. The records of those maps never
    /// change, and one that some thread has created anew stays empty, so a value that is found can
    /// be checked immediately.
    fn hold_other(&mut self, n: u64, call: Call) -> Result<(), Asked> {
        let map = match self.opened.store.open_map(&other(n)) {
            Ok(map) => map,
            Err(Error::NoSuchMap { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let (answer, held) = hold(&self.opened.store, map, call)?;
        self.held = held.map(|held| (Of::Other, held));
        let (Some(Answer::Value(Some(value))), Some(key)) = (answer, call.key()) else {
            return Ok(());
        };
        match self.shared.instance.other_records().get(&key) {
            Some(&was) if was == value => Ok(()),
            was => Err(Asked::Wrong(format!("value {value}, it is {was:?}"))),
        }
    }

    /// Reads through the held reference or iteration, and then drops it. If the pool has been
    /// closed, the read may fail.
    fn read(&mut self) -> Result<(), Asked> {
        let Some((of, held)) = self.held.take() else { return Ok(()) };
        let records = match held.read() {
            Ok(Some(Answer::Records(records))) => records,
            Ok(_) | Err(Asked::Refused) => return Ok(()),
            Err(error) => return Err(error),
        };
        if let Of::Map(op) = of {
            self.answer(op, Act::Hold(Call::Scan), Some(Answer::Records(records)));
            return Ok(());
        }
        let found: Records = records.iter().copied().collect();
        let all = found.is_empty() || found == self.shared.instance.other_records();
        match all && found.len() == records.len() {
            true => Ok(()),
            false => Err(Asked::Wrong(format!("an iteration of another map: {records:?}"))),
        }
    }
}
