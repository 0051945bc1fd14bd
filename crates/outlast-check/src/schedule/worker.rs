//! One thread of a run: it executes its script, one operation after the other.

use super::act::{Act, other};
use super::baton::Baton;
use super::hold::{Held, hold, reference};
use super::opening::{Opened, Pool};
use super::workload::Instance;
use crate::codec::{Form, SPECIAL, raw_key, raw_value};
use crate::history::{Answer, Call};
use crate::session::Do;
use crate::state::{Checked, Fault, Records};
use crate::with_form;
use outlast::internals::db::batch::BatchRecord;
use outlast::internals::db::store::{MapRequest, OpenMap};
use outlast::internals::index::{Cursor, Index, Previous};
use outlast::internals::pmem::{Mark, Seam, Traced};
use outlast::{Error, NotOpen};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Why an operation has no result.
pub(super) enum Asked {
    /// The pool has been closed.
    Refused,
    Failed(Error),
    Wrong(String),
}

impl From<Error> for Asked {
    fn from(error: Error) -> Self {
        match error {
            Error::NotOpen(NotOpen::Closed | NotOpen::Closing) => Asked::Refused,
            error => Asked::Failed(error),
        }
    }
}

impl From<Box<Error>> for Asked {
    fn from(error: Box<Error>) -> Self {
        Asked::from(*error)
    }
}

/// Returns the number of a value. A value that no thread wrote is an error.
fn number<R: Form>(value: &R::Owned) -> Result<u64, Asked> {
    R::value_number(value).ok_or_else(|| Asked::Wrong(format!("nobody wrote {value:?}")))
}

/// Reads the next records of an iteration.
pub(super) fn scanned<R: Form>(
    index: &dyn Index<R>,
    cursor: &mut Cursor,
) -> Result<Vec<(u64, u64)>, Asked> {
    let mut batch = Vec::new();
    index.scan(cursor, &mut batch)?;
    let record = |(key, value): &(R::OwnedKey, R::Owned)| {
        let key =
            R::key_number(key).ok_or_else(|| Asked::Wrong(format!("nobody wrote key {key:?}")))?;
        Ok((key, number::<R>(value)?))
    };
    batch.iter().map(record).collect()
}

/// Looks up a key in the way that `way` chooses.
fn look_up<R: Form>(index: &dyn Index<R>, key: u64, way: u64) -> Result<Answer, Asked> {
    let bytes = R::nth_key(key);
    let asked = R::key_of(&bytes);
    let get = || index.get(asked)?.as_ref().map(number::<R>).transpose();
    Ok(match way % 4 {
        0 => Answer::Value(reference(index, key)?.map(|(_, value)| value)),
        1 => {
            let mut found = [const { None }];
            index.get_many(&[asked], &mut found)?;
            Answer::Value(found[0].as_ref().map(number::<R>).transpose()?)
        }
        2 if index.contains(asked)? => match get()? {
            // The value tells more than the key's presence.
            Some(value) => Answer::Value(Some(value)),
            // Another thread removed the key in between.
            None => Answer::Present(true),
        },
        2 => Answer::Present(false),
        _ => Answer::Value(get()?),
    })
}

/// Makes a call on an index. `way` chooses how a lookup is made, and whether a change wants the
/// previous value.
///
/// # Errors
/// If the index fails or returns a value that no thread wrote, or if a change of a present key does
/// not return the previous value although that was asked for.
fn ask<R: Form>(
    index: &dyn Index<R>,
    call: Call,
    way: u64,
    still: &[(u64, u64)],
) -> Result<Answer, Asked> {
    let (key, change) = match call {
        Call::Get(key) => return look_up(index, key, way),
        Call::Scan => {
            let (mut cursor, mut records) = (Cursor::start(), Vec::new());
            while !cursor.is_done() {
                records.extend(scanned(index, &mut cursor)?);
            }
            return Ok(Answer::Records(records));
        }
        Call::Change(key, change) => (key, change),
    };
    if way.is_multiple_of(4) {
        let at = (way / 4) as usize;
        let still = still.iter().cycle().skip(at).step_by(3).take(still.len().min(at % 3));
        return change_with_others(index, (key, change), way.is_multiple_of(8), still);
    }
    let operands = change.operands::<R>();
    let wanted = !way.is_multiple_of(3);
    let key = R::nth_key(key);
    let done =
        index.change(R::key_of(&key), change.with::<R>(&operands), Previous::when(wanted))?;
    let before = done.before.as_ref().map(number::<R>).transpose()?;
    if wanted && done.present && before.is_none() {
        return Err(Asked::Wrong(format!("{call}: the previous value was not returned")));
    }
    Ok(Answer::Changed { applied: done.applied, present: Some(done.present), before })
}

/// Changes a key with one call that also gives keys that no operation changes the values that they
/// have, before it. These changes are made, and nobody can tell. Another change, `before` or after
/// it, never applies, because no key has such a value.
///
/// No change that may need space comes after the one in question: if it failed, that one would be
/// made, and would seem to have failed.
fn change_with_others<'s, R: Form>(
    index: &dyn Index<R>,
    (key, change): (u64, Do),
    before: bool,
    still: impl Iterator<Item = &'s (u64, u64)>,
) -> Result<Answer, Asked> {
    let mut changes: Vec<_> = still.map(|&(key, value)| (key, Do::Update(value))).collect();
    let stored = changes.len();
    changes.push((key, change));
    changes.insert(changes.len() - usize::from(before), (key + 1, Do::CompareRemove(NO_VALUE)));
    let keys: Vec<_> = changes.iter().map(|&(key, _)| R::nth_key(key)).collect();
    let operands: Vec<_> = changes.iter().map(|(_, change)| change.operands::<R>()).collect();
    let changes = changes.iter().zip(&operands).map(|((_, change), with)| change.with::<R>(with));
    let mut done = Vec::new();
    index.change_many(
        &keys.iter().map(R::key_of).collect::<Vec<_>>(),
        &changes.collect::<Vec<_>>(),
        &mut done,
    )?;
    if let Some(lost) = done[..stored].iter().position(|done| !done.applied) {
        return Err(Asked::Wrong(format!(
            "change {lost} of a call, of a key that is there, failed"
        )));
    }
    let last = &done[stored..];
    let (done, other) = (&last[usize::from(before)], &last[usize::from(!before)]);
    if other.applied {
        return Err(Asked::Wrong(format!("a value of key {} that nobody wrote", key + 1)));
    }
    Ok(Answer::Changed { applied: done.applied, present: Some(done.present), before: None })
}

/// The number of a value that no operation writes.
const NO_VALUE: u64 = SPECIAL - 9;

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
    BatchRecord { map: Arc::clone(map), key, value }
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
