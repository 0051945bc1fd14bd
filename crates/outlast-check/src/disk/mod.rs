//! Injects faults into the file system below a pool, and checks that no promise breaks.
//!
//! Every call by which the pool asks its file system to keep something goes through
//! [`outlast::internals::pmem::Disk`]. A script of operations ([`script`]) makes each such call in each
//! situation: creation, the first change, growth, `sync`, `snapshot`, `verify`, `close`, and after
//! process death. It runs once to count the calls, and then once more for each call, outcome and
//! continuation:
//!
//! | outcome of the call | continuation |
//! |---|---|
//! | fails once, with EIO or ENOSPC | the work goes on to the end of the script |
//! | fails, with all later calls but ftruncate | the process dies, at the call or after the operation |
//! | returns success without effect | power is lost, at the call or after the operation |
//!
//! Every outcome is tried with every continuation. The harness keeps its own account of what the
//! disk holds ([`watch`]): a power loss leaves each page as it was at some moment since it was last
//! made durable. Then the pool is opened again. These are the promises:
//!
//! - After process death, the pool holds every acknowledged change, and the operation in flight
//!   completely or not at all.
//! - After a power loss, on a medium that can be torn by it, the pool is refused as possibly torn,
//!   or holds what it held when it was last made clean. If nothing was changed since then, it must
//!   open.
//! - After a failed write-back, the pool says so ([`Durability::is_suspect`](outlast::Durability)),
//!   and no call that promises durability succeeds.
//!
//! A disk that lies about success can break the second promise without a mistake of the library. In
//! that case the harness only requires that the process survives the opening. To show that the
//! checks can fail, each write-back is also *left out*, while the harness counts it as done: a
//! power loss must then break a promise, unless this module has a reason why leaving it out does no
//! harm.
//!
//! Some calls never pretend success: link and rename, because a name takes effect immediately; and
//! fallocate, because access to promised blocks that do not exist raises SIGBUS, which the library
//! cannot prevent.

pub mod script;
pub mod watch;

use crate::random::Random;
use crate::state::{Checked, Fault, ensure};
use outlast::internals::pmem::{Call, Disk, MediumKind};
use outlast::{Error, RecordForm, Scheme};
use script::{BOOT, Content, Expected, Play, STEPS, Step, Subject, content_of, differs};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use watch::{AtFault, Event, FaultAt, Of, Outcome};

/// How many of the contents that a power loss can leave are tried each time.
const IMAGES: usize = 8;
/// On how many of these the harness continues to work after the check.
const GO_ON: usize = 2;

/// The continuation after a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Follows {
    /// The script continues.
    Work,
    /// The process dies at the call.
    DeathAtOnce,
    /// The process dies after the operation.
    Death,
    /// Power is lost at the call.
    PowerLossAtOnce,
    /// Power is lost after the operation.
    PowerLoss,
}

const FOLLOWS: [Follows; 5] = [
    Follows::Work,
    Follows::DeathAtOnce,
    Follows::Death,
    Follows::PowerLossAtOnce,
    Follows::PowerLoss,
];

/// The trials of one scheme and record form, and the promises that broke.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// Number of calls that the script makes, over all media.
    pub events: usize,
    /// Distinct combinations of call, position, outcome and continuation that were tried.
    pub faults: BTreeSet<(MediumKindName, Event, Outcome, Follows)>,
    /// Number of combinations to try.
    pub wanted: usize,
    /// The verdict on leaving out each write-back.
    pub left_out: BTreeMap<(MediumKindName, Event), LeftOut>,
    /// Broken promises.
    pub violations: Vec<String>,
}

/// A medium, by its name, because names have an order.
type MediumKindName = &'static str;

/// Returns the reason why this write-back of a run can be left out without harm, if there is one.
fn is_needless(event: &Event, events: &[Event]) -> Option<&'static str> {
    let covers = |later: &&Event| {
        (later.step, later.call, later.of) == (event.step, Call::Fsync, Of::Pool)
            && later.nth > event.nth
    };
    match STEPS[event.step] {
        _ if events.iter().any(|later| covers(&later)) => {
            Some("the same operation writes the whole file back later, before it returns")
        }
        Step::Change if STEPS[event.step - 1] == Step::Kill => {
            Some("the dirty mark is that of the process that died, and durable")
        }
        Step::Kill => Some("as above: a map that is mended when it is opened is a change"),
        Step::MakeMap | Step::MakeOther if event.call == Call::Msync => Some(
            "of mark and feature bit, one writes the header back for both; dirty, it is refused",
        ),
        Step::Verify if event.nth < 2 => {
            Some("the verification of a sound pool stores nothing but the mark itself")
        }
        _ => None,
    }
}

/// The verdict on leaving out a write-back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOut {
    /// A promise broke, and the harness noticed.
    Noticed,
    /// Leaving the write-back out does no harm, for this reason.
    Needless(&'static str),
    /// The harness noticed nothing, and the code gives no reason why that does no harm.
    Missed,
}

const MEDIA: [(MediumKindName, MediumKind); 3] = [
    ("page cache", MediumKind::PageCache),
    ("emulated PM", MediumKind::EmulatedPm),
    ("DAX", MediumKind::Dax),
];

/// One trial: a medium, a call, its outcome, and the continuation.
struct Trial {
    medium: MediumKindName,
    runs: Runs,
    event: Event,
    /// Faults that must strike before the call.
    before: Vec<FaultAt>,
    outcome: Outcome,
    follows: Follows,
    /// Why leaving the call out does no harm, if that is so.
    needless: Option<&'static str>,
}

/// Tries every fault on one scheme and record form. Calls `progress` after each trial, each time
/// with the total number of trials.
pub fn run(
    scheme: Scheme,
    form: RecordForm,
    threads: usize,
    progress: &(dyn Fn(usize) + Sync),
) -> Outcomes {
    let mut found = Outcomes::default();
    let mut trials = Vec::new();
    for (medium, kind) in MEDIA {
        let runs = Runs { subject: Subject { scheme, form, medium: kind } };
        match runs.count(&[]) {
            Ok(events) => {
                found.events += events.len();
                trials.extend(runs.trials(medium, &events));
            }
            Err(fault) => found.violations.push(format!("{medium}, no fault: {fault}")),
        }
    }
    found.wanted = trials.iter().filter(|trial| trial.outcome != Outcome::LeftOut).count();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(found));
    std::thread::scope(|s| {
        for _ in 0..threads.max(1) {
            s.spawn(|| {
                while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let tried = trial.run();
                    progress(trials.len());
                    found.lock().unwrap_or_else(|e| e.into_inner()).note(trial, tried);
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(|e| e.into_inner());
    found.violations.sort();
    found
}

impl Trial {
    fn run(&self) -> Checked {
        let (step, nth) = (self.event.step, self.event.nth);
        let mut faults = self.before.clone();
        faults.push(FaultAt { step, nth, outcome: self.outcome });
        self.runs.trial(&faults, self.follows)
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { step, nth, call, of, .. } = self.event;
        let (medium, outcome, follows) = (self.medium, self.outcome, self.follows);
        let name = STEPS[step];
        write!(
            f,
            "{medium}, step {step} ({name:?}), call {nth} ({call:?} of {of:?}) {outcome:?}, then \
             {follows:?}"
        )
    }
}

/// Returns the outcomes to try for a call.
fn outcomes_of(call: Call) -> &'static [Outcome] {
    use Outcome::{FailsForEver, FailsOnce, Pretends};
    match call {
        Call::Fallocate | Call::Link | Call::Rename => &[FailsOnce, FailsForEver],
        _ => &[FailsOnce, FailsForEver, Pretends],
    }
}

fn is_growth(event: &Event) -> bool {
    STEPS[event.step] == Step::Grow && event.call == Call::WriteEnd
}

impl Outcomes {
    fn note(&mut self, trial: &Trial, tried: Checked) {
        if trial.outcome == Outcome::LeftOut {
            let verdict = match (tried, trial.needless) {
                (Err(_), _) => LeftOut::Noticed,
                (Ok(()), Some(why)) => LeftOut::Needless(why),
                (Ok(()), None) => LeftOut::Missed,
            };
            self.left_out.insert((trial.medium, trial.event), verdict);
            return;
        }
        self.faults.insert((trial.medium, trial.event, trial.outcome, trial.follows));
        if let Err(fault) = tried {
            self.violations.push(format!("{trial}: {fault}"));
        }
    }

    /// Counts the left-out write-backs that the harness noticed.
    pub fn noticed(&self) -> usize {
        self.left_out.values().filter(|verdict| **verdict == LeftOut::Noticed).count()
    }

    /// Counts the write-backs that can be left out.
    pub fn needless(&self) -> usize {
        self.left_out.values().filter(|verdict| matches!(verdict, LeftOut::Needless(_))).count()
    }

    /// Returns whether every combination was tried, no promise broke, and no left-out write-back
    /// went unnoticed without a reason.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty()
            && self.events > 0
            && self.faults.len() == self.wanted
            && self.left_out.values().all(|verdict| *verdict != LeftOut::Missed)
    }

    /// Describes everything that is wrong, for people. Empty if nothing is.
    pub fn failures(&self) -> String {
        let mut lines = self.violations.clone();
        if self.faults.len() != self.wanted {
            lines.push(format!("{} of {} disk faults were tried", self.faults.len(), self.wanted));
        }
        for ((medium, event), verdict) in &self.left_out {
            if *verdict == LeftOut::Missed {
                let step = STEPS[event.step];
                lines.push(format!(
                    "NOT NOTICED: {medium}, step {} ({step:?}), without its call {}, {:?}",
                    event.step, event.nth, event.call
                ));
            }
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "disk: {} calls, {} combinations of call, outcome and continuation, {} violations; \
             of {} write-backs left out {} were noticed and {} do no harm",
            self.events,
            self.faults.len(),
            self.violations.len(),
            self.left_out.len(),
            self.noticed(),
            self.needless()
        )
    }
}

/// Runs of the script on one subject.
#[derive(Debug, Clone, Copy)]
struct Runs {
    subject: Subject,
}

/// Makes a directory for a run, in memory if the system has such a file system.
fn scratch() -> Checked<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.map_err(|e| Fault(format!("no place for a pool: {e}")))
}

impl Runs {
    /// Lists the trials for the calls of a run without a fault.
    fn trials(self, medium: MediumKindName, events: &[Event]) -> Vec<Trial> {
        let mut trials = Vec::new();
        let mut add = |event: Event, before: &[FaultAt], outcome, follows| {
            let before = before.to_vec();
            let needless = is_needless(&event, events);
            let runs = self;
            trials.push(Trial { medium, runs, event, before, outcome, follows, needless });
        };
        let mut add_all = |event: Event, before: &[FaultAt]| {
            for &outcome in outcomes_of(event.call) {
                FOLLOWS.iter().for_each(|&follows| add(event, before, outcome, follows));
            }
        };
        for &event in events {
            add_all(event, &[]);
            if is_growth(&event) {
                // The library undoes a failed growth, and that can fail too.
                let (step, nth) = (event.step, event.nth);
                let failed = [FaultAt { step, nth, outcome: Outcome::FailsOnce }];
                let undone = self.count(&failed).unwrap_or_default();
                for event in undone.into_iter().filter(|e| e.call == Call::Ftruncate) {
                    add_all(event, &failed);
                }
            }
        }
        for &event in events {
            if event.call.makes_durable()
                && event.of == Of::Pool
                && self.subject.medium.needs_fsync()
            {
                add(event, &[], Outcome::LeftOut, Follows::Work);
            }
        }
        trials
    }

    /// Returns the calls of a run with these faults.
    fn count(self, faults: &[FaultAt]) -> Checked<Vec<Event>> {
        let directory = scratch()?;
        let path = directory.path().join("p.pool");
        let mut play = Play::new(self.subject, &path, faults.to_vec());
        for step in 0..STEPS.len() {
            play.step(step)?;
        }
        play.kill();
        Ok(play.watch.events())
    }

    /// Runs the script with these faults, and checks what they leave.
    fn trial(self, faults: &[FaultAt], follows: Follows) -> Checked {
        let directory = scratch()?;
        let path = directory.path().join("p.pool");
        let mut play = Play::new(self.subject, &path, faults.to_vec());
        let left_out = faults.iter().any(|fault| fault.outcome == Outcome::LeftOut);
        for step in 0..STEPS.len() {
            let done = play.step(step)?;
            ensure(play.watch.hasty().is_empty(), || {
                format!("named before its content was durable: {:?}", play.watch.hasty())
            })?;
            if play.watch.struck() == faults.len() && follows != Follows::Work {
                break;
            }
            if left_out && play.watch.struck() > 0 {
                // Check in a copy, because the script still has the pool open.
                let copy = path.with_extension("power");
                self.check_power_losses(&copy, &play.watch.now(), &play.expected, false)?;
            }
            if !done && !play.expected.exists {
                // The creation failed, so no file may be there.
                return ensure(!path.exists(), || "a failed creation left a file".into());
            }
        }
        ensure(play.watch.struck() > 0, || "the fault was not met".into())?;
        play.kill();
        let lies = play.watch.has_lied();
        let at_fault = || {
            let held = play.watch.at_fault().expect("the fault was met");
            let expected = play.at_fault.clone().expect("the fault was met");
            (held, Expected { may_be_refused: true, ..expected })
        };
        match follows {
            Follows::Work => {
                self.check_power_losses(&path, &play.watch.now(), &play.expected, lies)?;
                self.check_death(&path, play.watch.now().held.now(), &play.expected)
            }
            Follows::Death => self.check_death(&path, play.watch.now().held.now(), &play.expected),
            Follows::DeathAtOnce => {
                let (at, expected) = at_fault();
                self.check_death(&path, at.held.now(), &expected)
            }
            Follows::PowerLoss => {
                self.check_power_losses(&path, &play.watch.now(), &play.expected, lies)
            }
            Follows::PowerLossAtOnce => {
                let (at, expected) = at_fault();
                self.check_power_losses(&path, &at, &expected, lies)
            }
        }
    }

    /// Checks the pool after the death of its process.
    fn check_death(self, path: &Path, content: &[u8], expected: &Expected) -> Checked {
        if !expected.exists {
            return Ok(());
        }
        put_back(path, content)?;
        let content = self.open(path, BOOT)??;
        ensure(expected.allowed().contains(&content), || {
            differs(&content, &expected.acknowledged).0
        })?;
        self.go_on(path, content)
    }

    /// Checks a sample of the files that a power loss at `at` can leave.
    fn check_power_losses(
        self,
        path: &Path,
        at: &AtFault,
        expected: &Expected,
        lies: bool,
    ) -> Checked {
        if !expected.exists {
            return Ok(());
        }
        ensure(at.named || lies, || "a pool was created without a durable name".into())?;
        let kept = at.held.now().to_vec();
        for nth in 0..IMAGES {
            let torn = self.subject.medium.needs_fsync();
            let mut random = Random::new(nth as u64);
            let image =
                if torn { at.held.after_power_loss(nth, &mut random) } else { kept.clone() };
            self.check_power_loss(path, &image, expected, lies, nth < GO_ON)
                .map_err(|fault| Fault(format!("after a power loss ({nth}): {fault}")))?;
            if !torn {
                break;
            }
        }
        put_back(path, &kept)
    }

    fn check_power_loss(
        self,
        path: &Path,
        image: &[u8],
        expected: &Expected,
        lies: bool,
        works_on: bool,
    ) -> Checked {
        put_back(path, image)?;
        let opened = self.open(path, BOOT + 1);
        if lies && self.subject.medium.needs_fsync() {
            // Any content is allowed, and so is a refusal.
            return Ok(());
        }
        match opened {
            Ok(content) => {
                let content = content?;
                // If a power loss can tear the medium, a pool that opens must be complete.
                let allowed = match self.subject.medium.needs_fsync() {
                    true => vec![expected.acknowledged.clone()],
                    false => expected.allowed(),
                };
                ensure(allowed.contains(&content), || differs(&content, &expected.acknowledged).0)?;
                if works_on { self.go_on(path, content) } else { Ok(()) }
            }
            Err(Error::PossiblyTorn { .. }) if self.subject.medium.needs_fsync() => {
                ensure(expected.may_be_refused, || "refused, although nothing was changed".into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the pool, and returns its contents if it is sound, or the reason why it cannot be
    /// opened.
    fn open(self, path: &Path, boot: u128) -> Result<Checked<Content>, Error> {
        // SAFETY: the file belongs to this run alone.
        let pool = unsafe { self.subject.options(Disk::default(), boot).open(path) }?;
        let looked = || {
            let verified = pool.verify()?;
            ensure(verified.is_sound(), || format!("not sound: {verified:?}"))?;
            match pool.raw_map("m") {
                Ok(map) => content_of(&map),
                Err(Error::NoSuchMap { .. }) => Ok(Content::new()),
                Err(error) => Err(error.into()),
            }
        };
        Ok(looked())
    }

    /// Checks that the pool can be used and closed, and opens after a power loss with everything it
    /// held.
    fn go_on(self, path: &Path, mut content: Content) -> Checked {
        let boot = BOOT + 2;
        let options = self.subject.options(Disk::default(), boot).accept_possibly_torn(true);
        // SAFETY: the file belongs to this run alone.
        let pool = unsafe { options.open(path) }?;
        ensure(pool.verify()?.is_sound(), || "not sound when opened again".into())?;
        let map = self.subject.map(&pool)?;
        let records: Vec<_> = content.iter().take(3).map(|(k, v)| (k.clone(), v.clone())).collect();
        for (key, value) in records {
            map.remove(&key)?;
            content.remove(&key);
            map.put(&key, &value)?;
            content.insert(key, value);
        }
        drop(map);
        pool.close()?;
        let found = self.open(path, boot + 1)??;
        ensure(found == content, || differs(&found, &content).0)
    }
}

/// Writes this content back to the file, whatever happened to the file since.
fn put_back(path: &Path, content: &[u8]) -> Checked {
    let path = PathBuf::from(path);
    std::fs::write(&path, content).map_err(|e| Fault(format!("writing {}: {e}", path.display())))
}
