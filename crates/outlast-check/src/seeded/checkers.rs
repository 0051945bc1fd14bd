//! The checks that must find the seeded bugs.

mod refused;

use super::Budget;
use crate::blocks;
use crate::codec::value_bytes;
use crate::explore::catalogue;
use crate::explore::image::caught;
use crate::mutants::pairs::{self, Meanwhile};
use crate::mutants::tape::Tape;
use crate::mutants::trial;
use crate::parts::bugs::Checker;
use crate::parts::workload::Workload;
use crate::schedule::progress::{self, Victim};
use crate::schedule::{self, Choice, Replay};
use crate::session::{Do, PoolShape, Session, recorder};
use crate::state::{Checked, Fault, ensure};
use crate::structures::Shape;
use outlast::internals::db::store::AnyIndex;
use outlast::internals::pmem::{Alive, Point, Seeded, Traced};
use outlast::{RecordForm, Scheme};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many schedules of a workload are tried.
const SCHEDULES: u64 = 400;

/// A thread is paused or stopped at each access, since the window of a bug can be a single one.
/// Without a bug, one access in this many is tried.
const WITHOUT: usize = 8;

/// What a check found.
pub(super) enum Found {
    /// A fault that is not there without the seeded bug, as far as the check tells.
    Bug(String),
    /// A fault that is there without the seeded bug, too: it is the library's own.
    Library(String),
}

/// Marks a fault as [`Found::Library`].
const WITHOUT_BUG: &str = "without the seeded bug, too: ";

fn of_library(fault: &str) -> Fault {
    Fault(format!("{WITHOUT_BUG}{fault}"))
}

/// The scheme, form and budget of the checks.
pub(super) struct Subject {
    pub(super) scheme: Scheme,
    pub(super) form: RecordForm,
    pub(super) budget: Budget,
    pub(super) alive: Arc<Alive>,
}

impl Subject {
    /// Runs a check, with a bug or without, and returns what it found.
    pub(super) fn check(&self, checker: Checker, bug: Option<Seeded>) -> Option<Found> {
        let check = || match checker {
            Checker::Alone => self.alone(),
            Checker::Stopped => self.stopped(bug),
            Checker::Paused => {
                let every = if bug.is_some() { 1 } else { WITHOUT };
                pairs::paused(self.scheme, self.form, every, &self.alive)
            }
            Checker::EachStep(workload) => self.each_step(workload, bug),
            Checker::Held(workload) => self.held(workload),
            Checker::Schedules(workload) => self.schedules(workload),
            Checker::Met => self.met(),
            Checker::Forever => self.forever(),
            Checker::Guard => self.guard(),
            Checker::Refused => refused::check(self),
        };
        // Run in a new thread, because some checks number the thread that they run on.
        let checked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| Traced::seeding(bug, || caught(check)));
            thread.join().unwrap_or_else(|_| Err(Fault("the check panicked".into())))
        });
        checked.err().map(|fault| match fault.0.strip_prefix(WITHOUT_BUG) {
            Some(fault) => Found::Library(fault.to_owned()),
            None => Found::Bug(fault.0),
        })
    }

    /// Checks every scenario, from the shortest to the longest.
    fn alone(&self) -> Checked {
        caught(|| blocks::check(&self.alive))?;
        let mut tapes = Vec::new();
        for scenario in catalogue(self.scheme, self.form) {
            let made = caught(|| Tape::first(&scenario, &self.alive));
            tapes.push(
                made.map_err(|fault| Fault(format!("in the run {}: {fault}", scenario.name)))?,
            );
        }
        tapes.sort_by_key(|t| t.events.len());
        for tape in &tapes {
            Self::answers(tape)?;
        }
        for tape in &tapes {
            trial::images(tape, self.budget.images, &self.alive)?;
        }
        let mut twice = BTreeSet::new();
        for (number, tape) in tapes.iter().enumerate() {
            let deaths = tape.deaths();
            let step = deaths.len().div_ceil(self.budget.lives).max(1);
            // The runs resemble each other, so different moments are tried in each.
            for &moment in deaths.iter().skip(number % step).step_by(step) {
                let life = caught(|| tape.second(moment, &self.alive));
                let life = life.map_err(|fault| {
                    Fault(format!("{}, opened after event {moment}: {fault}", tape.name))
                })?;
                if let Some(life) = life {
                    Self::answers(&life)?;
                    trial::images(&life, self.budget.images / 8, &self.alive)?;
                    self.died_again(&life, tape.events[moment - 1].point, &mut twice)?;
                }
            }
        }
        Ok(())
    }

    /// Checks the lives that follow if a second life dies in its repair. `twice` are the pairs of
    /// commit points that were tried. The first process died at the point `first`.
    fn died_again(
        &self,
        life: &Tape,
        first: Option<&'static Point>,
        twice: &mut BTreeSet<[Option<&'static Point>; 2]>,
    ) -> Checked {
        for moment in life.repairs() {
            if !twice.insert([first, life.events[moment - 1].point]) {
                continue;
            }
            let third = caught(|| life.second(moment, &self.alive));
            let third = third.map_err(|fault| {
                Fault(format!("{}, opened again after event {moment}: {fault}", life.name))
            })?;
            if let Some(third) = third {
                Self::answers(&third)?;
                trial::images(&third, self.budget.images / 8, &self.alive)?;
            }
        }
        Ok(())
    }

    fn answers(tape: &Tape) -> Checked {
        match tape.undurable(&tape.events) {
            Some(found) => Err(Fault(format!("{}: {found}", tape.name))),
            None => Ok(()),
        }
    }

    /// Stops one thread for ever. Whatever another thread's operation returned must still hold.
    fn stopped(&self, bug: Option<Seeded>) -> Checked {
        let every = if bug.is_some() { 1 } else { WITHOUT };
        let all = [Meanwhile::Get, Meanwhile::GetOfMany, Meanwhile::Insert, Meanwhile::OpenMap];
        for meanwhile in all {
            pairs::told((self.scheme, self.form), meanwhile, every, &self.alive)?;
        }
        for tape in pairs::stopped(self.scheme, self.form, &self.alive)? {
            trial::images(&tape, self.budget.images / 4, &self.alive)?;
        }
        Ok(())
    }

    /// Checks what operations returned in runs in which threads met, and that it still holds after
    /// a power loss.
    fn met(&self) -> Checked {
        pairs::met(self.scheme, self.form, &self.alive, &mut |tape| {
            Self::answers(&tape)?;
            trial::least(&tape, &self.alive)
        })
    }

    fn forever(&self) -> Checked {
        let victims = Victim::of(self.scheme).iter();
        victims
            .copied()
            .try_for_each(|victim| progress::check(self.scheme, self.form, victim, 7).map(|_| ()))
    }

    /// Pauses each of two threads of a workload at each of its steps. A pause that finds the bug
    /// must find nothing if the bug is switched off. Without a bug, one step in four is tried.
    fn each_step(&self, workload: &str, bug: Option<Seeded>) -> Checked {
        let named = Workload::named(self.scheme, workload);
        let workload = named.ok_or_else(|| Fault(format!("no workload {workload}")))?;
        let of = (self.scheme, self.form);
        let every = if bug.is_some() { 1 } else { 4 };
        let Some((pause, fault)) = schedule::paused(of, workload, every, None, &self.alive)? else {
            return Ok(());
        };
        let without = || schedule::paused(of, workload, 1, Some(pause), &self.alive);
        match bug.is_some() && Traced::seeding(None, without)?.is_some() {
            true => Err(of_library(&fault.0)),
            false => Err(fault),
        }
    }

    /// Runs the directed schedules of a workload. A schedule that finds the bug must find nothing
    /// if the bug is switched off.
    fn held(&self, workload: &str) -> Checked {
        let budget = schedule::Budget {
            schedules: 0,
            workload: Some(workload.into()),
            threads: 1,
            violations: 1,
            minimises: false,
            held_points: 1,
            held_others: 1,
            held_pairs: 2_000,
            ..schedule::Budget::ci()
        };
        let counters = schedule::Counters::default();
        let outcome = schedule::run(self.scheme, self.form, &budget, &counters, |_| ());
        ensure(outcome.held > 0, || format!("no workload {workload}"))?;
        let Some(found) = outcome.violations.first() else {
            return outcome.short.map_or(Ok(()), |short| Err(Fault(short)));
        };
        let again =
            Replay { order: Some(found.order), ..self.named(workload, Choice::Held, found.seed) };
        match Traced::seeding(None, || schedule::replay(&again))? {
            (_, None) => Err(Fault(format!("{workload}: {found}"))),
            // The bug is not the reason for the violation.
            (_, Some(_)) => Err(of_library(&format!("{workload}: {found}"))),
        }
    }

    /// Returns a schedule by workload, strategy and seed.
    fn named(&self, workload: &str, strategy: Choice, seed: u64) -> Replay {
        Replay {
            scheme: self.scheme,
            form: self.form,
            workload: workload.into(),
            strategy,
            seed,
            order: None,
            without: Vec::new(),
            crash: None,
        }
    }

    /// Runs schedules of a workload with both strategies.
    fn schedules(&self, workload: &str) -> Checked {
        for seed in 0..SCHEDULES {
            let strategy = if seed % 2 == 0 { Choice::Random } else { Choice::Pct };
            let named = Replay { crash: Some(0), ..self.named(workload, strategy, seed) };
            if let (_, Some(violation)) = schedule::replay(&named)? {
                return Err(Fault(format!("{workload}: {}", violation.fault)));
            }
        }
        Ok(())
    }

    /// Holds a reference while its record is replaced and others are written.
    fn guard(&self) -> Checked {
        let shape = Shape::smallest(self.scheme, RecordForm::Bytes);
        let mut session = Session::create(PoolShape::default(), &self.alive, recorder(false))?;
        session.create_map("m", shape)?;
        for key in 10..14 {
            session.change("m", key, Do::Insert(key + 1_000))?;
        }
        let map = session.store().open_map("m")?;
        let AnyIndex::Bytes(index) = map.index() else {
            return Err(Fault("a map of byte strings".into()));
        };
        let guard = index.get_ref(&crate::codec::key_bytes(11))?;
        let guard = guard.ok_or_else(|| Fault("no record to hold".into()))?;
        session.change("m", 11, Do::Update(2_050))?;
        // Write records of the same size until blocks are reused.
        session.change("m", 16, Do::Insert(1_011 + 41))?;
        for round in 2..200 {
            session.change("m", 16, Do::Update(1_011 + 41 * round))?;
        }
        ensure(guard.equals(&value_bytes(1_011))?, || {
            "a record changed under the reference to it".into()
        })
    }
}
