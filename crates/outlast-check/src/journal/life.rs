//! A life: a recorded run on a journaled pool.

mod pool;

use pool::{Now, Pool, Working};

use super::mutants::Wrong;
use super::rebuild::{Fork, Rebuild};
use super::{Counts, Ledger, Trial};
use crate::explore::image::second_run;
use crate::explore::{Case, Recording, Setting};
use crate::model::{GARBAGE, Image, lengths};
use crate::random::Random;
use crate::state::{Checked, Fault, Judge, State, ensure};
use outlast::Error;
use outlast::internals::journal::base::{Base, PAGE, Pages};
use outlast::internals::journal::epoch::{Attempt, LINE};
use outlast::internals::journal::epochs::{Fit, fit};
use outlast::internals::journal::files::{Directory, JournalFile};
use outlast::internals::journal::log::Writer;
use outlast::internals::journal::meta::{META_OFFSETS, Meta};
use outlast::internals::journal::running::{Journal, Settings, Source};
use outlast::internals::journal::segment::{Owner, remove_others};
use outlast::internals::journal::sim::{BASE, SimDisk};
use outlast::internals::pmem::dying_after;
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The first word of the notes that holds the last durable epoch.
const DURABLE: usize = 16;
/// The pool's id.
const POOL: u128 = 0x5eed;
/// About how many times a life waits.
const WAITS: u64 = 14;
/// A process may die in a wait, if the wait stores as many control words as are chosen below this.
/// An epoch takes three.
const DEATHS: u64 = 20;
/// The most lives that follow one another.
const STAGES: usize = 3;

/// A moment of one of the runs that follow one another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) stage: usize,
    pub(super) moment: usize,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn io_fault(what: &str) -> impl Fn(io::Error) -> Fault {
    move |error| Fault(format!("{what}: {error}"))
}

impl Ledger {
    /// Begins with an epoch that was cut at this moment.
    fn begin(epoch: u64, at: At) -> Ledger {
        let mut ledger = Ledger { told: at, ..Ledger::default() };
        ledger.add(epoch, at);
        ledger
    }

    /// Adds an attempt at an epoch.
    fn add(&mut self, epoch: u64, at: At) {
        for ends in [&mut self.ends, &mut self.tries] {
            ends.entry(epoch).or_default().push(at);
        }
    }

    /// Drops the earlier attempts at the epochs up to `durable`, which can no longer come back.
    pub(super) fn settle(&mut self, durable: u64) {
        for ends in self.ends.range_mut(..=durable).map(|(_, ends)| ends) {
            ends.drain(..ends.len().saturating_sub(1));
        }
    }
}

/// Runs that follow one another on one disk.
struct Story<'t> {
    trial: &'t Trial<'t>,
    random: Random,
    /// The runs so far.
    runs: Vec<Arc<Recording>>,
    disk: SimDisk,
    owner: Owner,
    /// The disk before the life under way.
    before: Option<SimDisk>,
    ledger: Arc<Mutex<Ledger>>,
    forks: Arc<Mutex<Vec<Fork>>>,
}

/// Runs the lives of a trial, one after the other.
pub(super) fn tell(trial: &Trial<'_>) -> Checked {
    let mut random = Random::new(
        0x10e5 ^ trial.round.wrapping_mul(0x9e37_79b9) ^ name_seed(&trial.scenario.name),
    );
    let played = trial.scenario.record(trial.round, trial.alive)?;
    if let Some(fault) = played.fault {
        return Err(Fault(format!("the run itself, without a crash: {fault}")));
    }
    let run = Arc::new(played.recording);
    // The pool was created and closed without a journal, so its life with one begins between two
    // steps. It does not begin before the first explored step, because the checks do not know the
    // keys of earlier ones.
    let events = run.first().max(1)..run.events.len();
    let rests: Vec<usize> = events.filter(|&m| run.in_flight(m).is_none()).collect();
    let Some(&first) = rests.first() else {
        // The run only creates the pool.
        return Ok(());
    };
    let from =
        (random.below(3) == 0).then(|| rests[random.below(rests.len() as u64 / 2 + 1) as usize]);
    let disk = SimDisk::new(random.next());
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let owner = Owner { pool: POOL, life: 1 };
    let mut story = Story {
        trial,
        random,
        runs: vec![run],
        disk,
        owner,
        before: None,
        ledger,
        forks: Arc::default(),
    };
    story.begin(from.unwrap_or(first))
}

fn name_seed(name: &str) -> u64 {
    name.bytes().fold(7, |seed: u64, byte| seed.wrapping_mul(131) ^ u64::from(byte))
}

impl Story<'_> {
    fn run(&self) -> &Arc<Recording> {
        self.runs.last().expect("there is one")
    }

    fn writer(&mut self, durable: Attempt) -> io::Result<Writer> {
        let bytes = 12_000 + self.random.below(40_000);
        Ok(Writer::new(Arc::new(self.disk.clone()), self.owner, durable)?.segment_bytes(bytes))
    }

    fn pool(&mut self, working: Arc<Working>) -> Pool {
        let run = Arc::clone(self.run());
        let (initial, len) = run.initial();
        let mut growths = lengths(&run.events, len);
        growths.remove(0);
        let now = Now {
            memory: initial.bytes.clone(),
            moment: 0,
            growths,
            len,
            random: Random::new(self.random.next()),
            journal: None,
            stuck: false,
        };
        let at = self.runs.len() - 1;
        let (ledger, wrong) = (Arc::clone(&self.ledger), self.trial.wrong);
        Pool { at, run, working, ledger, wrong, now: RefCell::new(now) }
    }

    /// Makes a [`Fork`] at one in two calls to the disk.
    fn watch(&self, working: &Arc<Working>) {
        let (ledger, forks, working) =
            (Arc::clone(&self.ledger), Arc::clone(&self.forks), Arc::clone(working));
        let (before, runs) = (self.before.clone(), self.runs.clone());
        self.disk.watch(
            2,
            Box::new(move |disk| {
                let mut ledger = lock(&ledger).clone();
                ledger.settle(working.durable());
                lock(&forks).push(Fork {
                    disk: disk.copy(),
                    ledger,
                    runs: runs.clone(),
                    before: before.clone(),
                });
            }),
        );
    }

    /// Runs the first life: a closed pool gets a journal at a moment of its run.
    fn begin(&mut self, from: usize) -> Checked {
        let capacity = self.run().capacity();
        let pool = self.pool(Working::create(capacity, capacity, 0)?);
        pool.advance(from);
        let image = pool.image();
        let len = image.bytes.len() as u64;
        // Whatever was noted so far is in the base.
        pool.working.notes.take(|_| ());
        pool.working.notes.durable(std::iter::once(0..capacity / LINE as u64));
        let start = pool.at();
        *lock(&self.ledger) = Ledger::begin(0, start);
        let failed = io_fault("creating the journal");
        let file = self.disk.create(BASE, &[], len).map_err(&failed)?;
        let whole = |_: ()| file.sync();
        file.write_at(&without_meta(image.bytes), 0).and_then(whole).map_err(&failed)?;
        self.watch(&pool.working);
        let mut writer = self.writer(Attempt::unknown(0)).map_err(&failed)?;
        writer.begin().map_err(&failed)?;
        let Owner { pool: id, life } = self.owner;
        let meta = Meta { pool: id, life, checkpoint: 0, reached: 0, size: len, ..Meta::default() };
        let base = Base::create(file, meta).map_err(&failed)?;
        self.live(pool, base, writer, Pages::none(0))
    }

    /// Runs a life until the run is over, or the process dies and another one begins.
    fn live(&mut self, mut pool: Pool, base: Base, writer: Writer, pages: Pages) -> Checked {
        let counts = self.trial.counts;
        Counts::add(&counts.lives);
        let mut journal = open(&pool, base, writer, pages)?;
        let failing = match self.random.below(6) {
            0 => 2 + self.random.below(4),
            1 => 6 + self.random.below(30),
            _ => 0,
        };
        self.disk.set(u64::MAX, failing);
        let (from, events) = (pool.at().moment, pool.run.events.len());
        let step = 2 * (events - from) as u64 / WAITS + 2;
        let dies = self.runs.len() < STAGES && self.random.below(2) == 0;
        let some = self.random.below((events - from).max(1) as u64) as usize;
        let end = if dies { from + some } else { events };
        let mut died = false;
        while !pool.is_over() && pool.at().moment < end {
            let dies_here = pool.advance_to_death(1 + self.random.below(step) as usize);
            if dies_here {
                // The recorded process died here, and the run continues in the next one.
                self.count(&journal);
                drop(journal);
                self.look(false)?;
                let (base, writer, pages) = self.reopen(&mut pool)?;
                journal = open(&pool, base, writer, pages)?;
                self.disk.set(u64::MAX, failing);
            }
            match self.random.below(8) {
                0 => {}
                1 | 2 => may_fail(failing == 0, journal.checkpoint(&pool, false))?,
                3 if self.runs.len() < STAGES => {
                    // The process dies between two stores of what the next one finds.
                    let stores = self.random.below(DEATHS);
                    let waits = || self.wait(&journal, &pool);
                    match dying_after(stores, waits) {
                        Some(waited) => may_fail(failing == 0, waited)?,
                        None => {
                            died = true;
                            break;
                        }
                    }
                }
                _ => {
                    let waited = self.wait(&journal, &pool);
                    let failed = waited.is_err();
                    may_fail(failing == 0, waited)?;
                    match self.random.below(3) {
                        0 if failed => may_fail(false, self.wait(&journal, &pool))?,
                        1 if failed && self.runs.len() < STAGES => break,
                        _ => {}
                    }
                }
            }
            self.look(false)?;
        }
        self.count(&journal);
        // A life that follows a power loss always ends so, if it can: few come to their end.
        let closes = self.random.below(2) == 0 || self.before.is_some();
        if !died && pool.is_over() && !pool.now.borrow().stuck && closes {
            // Close, while writers are held back.
            let closed = journal.while_held(|| {
                journal.wait(&pool)?;
                journal.checkpoint(&pool, true)
            });
            let is_closed = closed.is_ok();
            may_fail(failing == 0, closed)?;
            journal.shut(is_closed);
            return self.look(true);
        }
        drop(journal);
        self.disk.set(u64::MAX, 0);
        if (pool.is_over() && !died) || self.runs.len() >= STAGES {
            return self.look(true);
        }
        self.look(false)?;
        self.die(pool)
    }

    fn wait(&self, journal: &Journal, pool: &Pool) -> outlast::Result<()> {
        let asked = pool.at();
        journal.wait(pool)?;
        let mut ledger = lock(&self.ledger);
        ledger.told = ledger.told.max(asked);
        Ok(())
    }

    fn count(&self, journal: &Journal) {
        let (counts, stats) = (self.trial.counts, journal.stats());
        counts.epochs.fetch_add(stats.epochs, Ordering::Relaxed);
        counts.checkpoints.fetch_add(stats.checkpoints, Ordering::Relaxed);
    }

    /// Lets the process die. The next one continues with the working file.
    fn die(&mut self, pool: Pool) -> Checked {
        let order = self.random.next();
        let mut found = self.death(&pool, order)?;
        let in_flight = pool.run.in_flight(pool.at().moment);
        if let (Some(step), Some((state, _))) = (in_flight, &found)
            && step.before.as_ref() != Some(state)
        {
            // The operation in flight took effect, perhaps without a flush. A power loss can then
            // undo it until some operation has read it. The response checks cover that case, so
            // here let the operation end first.
            pool.come_to_rest();
            found = self.death(&pool, order)?;
        }
        let Some((_, again)) = found else { return self.look(true) };
        self.runs.push(Arc::new(again));
        let mut pool = self.pool(Arc::clone(&pool.working));
        let (base, writer, pages) = self.reopen(&mut pool)?;
        self.live(pool, base, writer, pages)
    }

    /// Lets the process die now, and checks the pool that the next process opens. Returns the pool's
    /// contents, and the run of the next process.
    fn death(&self, pool: &Pool, order: u64) -> Checked<Option<(Arc<State>, Recording)>> {
        let image = pool.image();
        let allowed = pool.run.allowed(pool.at().moment);
        let case = Case { setting: self.setting(&pool.run), image: &image, judge: &allowed, order };
        let good = case.check().map_err(|fault| Fault(format!("process death: {fault}")))?;
        let Some(state) = good.state else { return Ok(None) };
        let again = second_run(&case, &state, case.order.is_multiple_of(2))?;
        Ok(Some((state, again)))
    }

    /// Opens the journal after a process died and left its working file.
    fn reopen(&mut self, pool: &mut Pool) -> Checked<(Base, Writer, Pages)> {
        Counts::add(&self.trial.counts.deaths);
        self.disk.set(u64::MAX, 0);
        pool.working = pool.working.reopen()?;
        let notes = &pool.working.notes;
        let found = Attempt::load(notes, DURABLE);
        let durable = found.epoch;
        if self.trial.wrong == Some(Wrong::CutNotesLost) {
            notes.durable(std::iter::once(0..notes.capacity() / LINE as u64));
        }
        let failed = io_fault("opening after the process died");
        let base = self.disk.open(BASE).and_then(Base::open).map_err(&failed)?;
        let Ok(base) = base else { return Err(Fault("the base has lost its journal".into())) };
        // Nothing but this process has written to the files.
        let begun = Attempt::begun(notes, DURABLE);
        let fit = fit(&self.disk, &base.meta(), found, begun).map_err(&failed)?;
        ensure(fit == Fit::Whole, || {
            format!(
                "the working file ends with {found:?}, {begun} was begun, and the journal: {fit:?}"
            )
        })?;
        compare_others(&self.disk, &base.meta(), durable).map_err(&failed)??;
        let mut writer = self.writer(found).map_err(&failed)?;
        self.watch(&pool.working);
        writer.begin().map_err(&failed)?;
        base.replace(|meta| {
            meta.closed = false;
            if meta.reached < durable {
                meta.reach(found);
            }
        })
        .map_err(&failed)?;
        remove_others(&self.disk, self.owner).map_err(&failed)?;
        let pages = match self.trial.wrong {
            Some(Wrong::PagesForgotten) => Pages::none(durable),
            _ => Pages::all(pool.bytes() / PAGE as u64, durable),
        };
        Ok((base, writer, pages))
    }

    fn setting<'s>(&'s self, run: &'s Recording) -> Setting<'s> {
        Setting {
            capacity: run.capacity(),
            universe: &run.universe,
            shape: self.trial.scenario.shape,
            alive: self.trial.alive,
        }
    }

    /// Checks what a power loss leaves of the copies of the disk that were made since the last
    /// call. If this is the `last` call, another life may follow.
    fn look(&mut self, last: bool) -> Checked {
        let forks = std::mem::take(&mut *lock(&self.forks));
        let count = forks.len();
        let follows = last && self.runs.len() < STAGES && count > 0 && self.random.below(2) == 0;
        for (number, fork) in forks.into_iter().enumerate() {
            let seed = self.random.next();
            let runs = &self.runs;
            let counts = self.trial.counts;
            let rebuild = Rebuild { fork: &fork, counts, seed };
            let check = |image: &Image, ends: &[At]| self.check(image, ends, runs, seed);
            rebuild.all(&check)?;
            if follows && number + 1 == count {
                return self.follow(&fork, seed);
            }
        }
        Ok(())
    }

    /// Checks that an image holds what the pool held at one of these moments.
    fn check(&self, image: &Image, ends: &[At], runs: &[Arc<Recording>], order: u64) -> Checked {
        let mut fault = None;
        for end in ends {
            let run = &runs[end.stage];
            let allowed = run.allowed(end.moment);
            let setting = self.setting(run);
            // The same image at the same moment needs only one look.
            let key = allowed.key() ^ image.hash.rotate_left(17);
            if !Counts::is_new(&self.trial.counts.seen_pools, key) {
                return Ok(());
            }
            Counts::add(&self.trial.counts.pools);
            let case = Case { setting, image, judge: &allowed, order: order ^ image.hash };
            match case.check() {
                Ok(_) => return Ok(()),
                Err(found) => fault = Some(Fault(format!("as cut at {end:?}: {found}"))),
            }
        }
        Err(fault.unwrap_or_else(|| Fault("no moment is known for it".into())))
    }

    /// Begins another life on what a power loss leaves of a copy of the disk.
    fn follow(&mut self, fork: &Fork, seed: u64) -> Checked {
        let disk = fork.disk.copy();
        disk.restart();
        let Some((base, epoch, image)) =
            Rebuild { fork, counts: self.trial.counts, seed }.once(&disk)?
        else {
            return Ok(());
        };
        let ends = fork.ends(epoch)?;
        let (Some(end), Some(base)) = (ends.last(), base) else { return Ok(()) };
        let run = Arc::clone(&self.runs[end.stage]);
        let allowed = run.allowed(end.moment);
        let (Some(Some(state)), 1) = (allowed.0.first(), ends.len()) else { return Ok(()) };
        let case =
            Case { setting: self.setting(&run), image: &image, judge: &allowed, order: seed };
        let again = second_run(&case, state, case.order.is_multiple_of(2))?;
        self.runs.push(Arc::new(again));
        // This copy still has the segments that the rebuild applied to the base.
        self.before = Some(disk.copy());
        self.disk = disk;
        self.owner.life += 1;
        let start = At { stage: self.runs.len() - 1, moment: 0 };
        let begun = Ledger::begin(epoch, start);
        let earlier = fork.ledger.tries.clone();
        let ledger = Ledger { life: self.owner.life, earlier, ..begun };
        self.ledger = Arc::new(Mutex::new(ledger));
        let capacity = self.run().capacity();
        let pool = self.pool(Working::create(capacity, capacity, epoch)?);
        self.watch(&pool.working);
        let failed = io_fault("beginning another life");
        let mut writer = self.writer(Attempt::unknown(epoch)).map_err(&failed)?;
        writer.begin().map_err(&failed)?;
        let size = base.file().len().map_err(&failed)?;
        let owner = self.owner;
        base.replace(|meta| {
            (meta.life, meta.size, meta.closed) = (owner.life, size, false);
            meta.checkpoint = epoch;
            meta.reach(Attempt::unknown(epoch));
        })
        .map_err(&failed)?;
        remove_others(&self.disk, owner).map_err(&failed)?;
        self.live(pool, base, writer, Pages::none(epoch))
    }
}

/// Checks that a working file as of an earlier epoch is not taken for the present one, and that a journal
/// that lost its end is not continued.
fn compare_others(disk: &SimDisk, meta: &Meta, durable: u64) -> io::Result<Checked> {
    if let Some(older) = durable.checked_sub(1) {
        let found = fit(disk, meta, Attempt::unknown(older), older)?;
        if !matches!(found, Fit::Older(_)) {
            return Ok(Err(Fault(format!("an older working file is used: {found:?}"))));
        }
    }
    let later = fit(disk, meta, Attempt::unknown(durable + 2), durable + 2)?;
    Ok(ensure(later == Fit::Short, || format!("a journal that is short is continued: {later:?}")))
}

/// Opens the journal of a pool.
fn open(pool: &Pool, base: Base, writer: Writer, pages: Pages) -> Checked<Arc<Journal>> {
    let settings = Settings {
        interval: Duration::from_secs(1),
        limit: 0,
        working: PathBuf::new(),
        keep: true,
        ahead: 0,
    };
    let notes = Arc::clone(&pool.working.notes);
    let journal = Journal::new(settings, base, writer, notes, DURABLE, pages);
    let journal = Arc::new(journal.map_err(io_fault("opening the journal"))?);
    pool.now.borrow_mut().journal = Some(Arc::clone(&journal));
    Ok(journal)
}

/// Fails if a call failed on a sound disk. On a disk that refuses calls, the call may fail.
fn may_fail(sound: bool, done: outlast::Result<()>) -> Checked {
    match done {
        Ok(()) | Err(Error::NotOpen(_)) => Ok(()),
        Err(error) => ensure(!sound, || format!("on a sound disk: {error}")),
    }
}

/// Clears the pages of the journal's entry, which are not part of the pool.
fn without_meta(mut bytes: Vec<u8>) -> Vec<u8> {
    for at in META_OFFSETS {
        let page: Range<usize> = at as usize..at as usize + PAGE;
        if let Some(page) = bytes.get_mut(page) {
            page.fill(0);
        }
    }
    bytes
}

/// Reads the pool from a base.
pub(super) fn pool_in(base: &dyn JournalFile, capacity: u64) -> io::Result<Image> {
    let mut bytes = vec![GARBAGE; base.len()?.min(capacity) as usize];
    base.read_at(&mut bytes, 0)?;
    let bytes = without_meta(bytes);
    let hash = rapidhash::v3::rapidhash_v3(&bytes);
    Ok(Image { bytes, hash })
}
