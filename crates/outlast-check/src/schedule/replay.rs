//! One schedule, identified by its workload, strategy and seed. This module runs and checks it,
//! minimizes a violation, and runs the schedule again on request.

use super::check::{Checker, Counters, Found, Kind, add};
use super::run::{Run, run as run_once};
use super::strategy::{Choice, Pauses, Strategy};
use super::workload::{self, Instance};
use crate::history::json;
use crate::parts::workload::Workload;
use crate::session::alive;
use crate::state::{Checked, Fault};
use crate::structures::Shape;
use outlast::internals::pmem::Alive;
use outlast::{RecordForm, Scheme};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What identifies a schedule, apart from the seed of its strategy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named {
    pub(super) workload: &'static Workload,
    pub(super) shape: Shape,
    pub(super) choice: Choice,
    pub(super) seed: u64,
}

impl Named {
    pub(super) fn instance(&self, alive: &Arc<Alive>) -> Checked<Instance> {
        match self.choice {
            Choice::Random | Choice::Pct => self.workload.make(self.shape, self.seed, alive),
            Choice::Held => {
                let held = self.workload.held(self.shape, alive)?;
                let none = || Fault(format!("{} held ones", held.len()));
                held.get(self.seed as usize).cloned().ok_or_else(none)
            }
        }
    }

    /// Makes the strategy that a seed determines. If it depends on the length of the run, a run
    /// without switches measures that first.
    fn strategy(&self, instance: &Instance, seed: u64, alive: &Arc<Alive>) -> Checked<Strategy> {
        Ok(match self.choice {
            Choice::Random => Strategy::walk(seed),
            Choice::Pct => {
                let steps = run_once(instance, Strategy::InTurn, alive)?.steps;
                Strategy::pct(seed, instance.scripts.len(), steps.all, steps.windows)
            }
            Choice::Held => Strategy::held(Pauses::unpack(seed), instance.scripts.len()),
        })
    }

    fn run(&self, instance: &Instance, seed: u64, alive: &Arc<Alive>) -> Checked<Run> {
        run_once(instance, self.strategy(instance, seed, alive)?, alive)
    }

    /// Runs the schedule and checks it. Returns the violation, minimized if the checker asks for
    /// it.
    pub(super) fn check(
        self,
        instance: &Instance,
        order: u64,
        checker: &Checker<'_>,
    ) -> Option<Violation> {
        let run = match self.run(instance, order, checker.alive) {
            Ok(run) => run,
            Err(fault) => {
                let found = Found { kind: Kind::Run, crash: None, fault: fault.to_string() };
                return Some(describe(self, &found, None, &[], order));
            }
        };
        add(&checker.counters.steps, run.steps.all);
        let found = checker.check(&run, order)?;
        if !checker.minimises {
            return Some(describe(self, &found, Some(&run), &[], order));
        }
        Some(minimise(self, order, instance, run, found, checker.alive))
    }

    fn replay(&self, crash: Option<usize>, without: &[usize], strategy_seed: u64) -> String {
        let mut command = format!(
            "outlast-check schedule --scheme {} --record {} --workload {} --strategy {} --seed {}",
            self.shape.scheme(),
            self.shape.form,
            self.workload.name,
            self.choice,
            self.seed
        );
        if strategy_seed != self.seed {
            command.push_str(&format!(" --order {strategy_seed}"));
        }
        if !without.is_empty() {
            let list: Vec<_> = without.iter().map(ToString::to_string).collect();
            command.push_str(&format!(" --without {}", list.join(",")));
        }
        if let Some(crash) = crash {
            command.push_str(&format!(" --crash {crash}"));
        }
        command
    }
}

/// Minimizes a violation. Tries to do without each operation, from the last to the first. An
/// operation is dropped if a violation of the same kind still shows, with the seed that showed it
/// last or, unless threads are held, with one of 39 others. Gives up after 20 seconds.
fn minimise(
    named: Named,
    order: u64,
    instance: &Instance,
    run: Run,
    found: Found,
    alive: &Arc<Alive>,
) -> Violation {
    let counters = Counters::default();
    let checker = Checker { alive, counters: &counters, crashes: 12, only: None, minimises: false };
    let mut best = (run, found, Vec::new(), order);
    let deadline = Instant::now() + Duration::from_secs(20);
    for number in (0..instance.operations()).rev() {
        let mut dropped: Vec<usize> = best.2.clone();
        dropped.push(number);
        dropped.sort_unstable();
        let smaller = instance.without(&dropped);
        // The step before which a thread is held does not depend on the other threads' operations.
        let attempts = if named.choice == Choice::Held { 1 } else { 40 };
        for attempt in 0..attempts {
            if Instant::now() > deadline {
                break;
            }
            let seed = if attempt == 0 { best.3 } else { named.seed + attempt * 7_919 };
            let Ok(run) = named.run(&smaller, seed, alive) else { break };
            if let Some(found) = checker.check(&run, seed)
                && found.kind == best.1.kind
            {
                best = (run, found, dropped, seed);
                break;
            }
        }
    }
    let (run, found, dropped, seed) = best;
    describe(named, &found, Some(&run), &dropped, seed)
}

/// Something that violates the contract.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The workload.
    pub workload: &'static str,
    /// The record form.
    pub form: RecordForm,
    /// The strategy.
    pub strategy: Choice,
    /// The seed of the workload; for a directed schedule, its number.
    pub seed: u64,
    /// The seed of the strategy; for a directed schedule, the steps before which threads are held,
    /// [packed](Pauses::pack).
    pub order: u64,
    /// Events of the trace before the crash, if there was one.
    pub crash: Option<usize>,
    /// Where it shows.
    pub kind: Kind,
    /// What is wrong, as text. If a history is wrong, the text draws it.
    pub fault: String,
    /// The smallest workload that was found to show it, thread by thread, and how.
    pub minimised: String,
    /// The history as JSON lines.
    pub history: String,
    /// The command that shows it again.
    pub replay: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {} seed {}", self.workload, self.form, self.strategy, self.seed)?;
        if let Some(crash) = self.crash {
            writeln!(f, "  crash after event {crash}, {:?}", self.kind)?;
        }
        writeln!(f, "{}\n{}\n  replay: {}", self.fault, self.minimised, self.replay)
    }
}

pub(super) fn describe(
    named: Named,
    found: &Found,
    run: Option<&Run>,
    dropped: &[usize],
    seed: u64,
) -> Violation {
    let mut minimised = String::new();
    let mut text = String::new();
    if let Some(run) = run {
        for (thread, script) in run.instance.scripts.iter().enumerate() {
            let acts: Vec<_> = script.iter().map(ToString::to_string).collect();
            minimised.push_str(&format!("  thread {thread}: {}\n", acts.join(", ")));
        }
        let moment = found.crash.unwrap_or(run.events.len());
        if let Ok(history) = run.history(moment) {
            text = json::export(&history);
        }
        let from = moment.saturating_sub(12);
        minimised.push_str("  trace:\n");
        for (i, event) in run.events[from..(moment + 3).min(run.events.len())].iter().enumerate() {
            let point = event.point.map_or("-", |p| p.name);
            let cut = if from + i == moment { "  ---- crash\n" } else { "" };
            let what = format!("{:x?}", event.access);
            minimised.push_str(&format!("{cut}    T{} [{point}] {what}\n", event.thread));
        }
    }
    Violation {
        workload: named.workload.name,
        form: named.shape.form,
        strategy: named.choice,
        seed: named.seed,
        crash: found.crash,
        kind: found.kind,
        fault: found.fault.clone(),
        order: seed,
        minimised,
        history: text,
        replay: named.replay(found.crash, dropped, seed),
    }
}

/// What identifies one schedule on the command line.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The scheme.
    pub scheme: Scheme,
    /// The record form.
    pub form: RecordForm,
    /// The workload.
    pub workload: String,
    /// The strategy.
    pub strategy: Choice,
    /// The seed of the workload.
    pub seed: u64,
    /// The seed of the strategy, if it differs.
    pub order: Option<u64>,
    /// Operations that are left out.
    pub without: Vec<usize>,
    /// Only the crash at this moment.
    pub crash: Option<usize>,
}

/// Runs one schedule again. Returns the run and the violation, if there is one.
///
/// # Errors
/// If there is no such schedule.
pub fn replay(replay: &Replay) -> Checked<(Run, Option<Violation>)> {
    let workload = Workload::named(replay.scheme, &replay.workload).ok_or_else(|| {
        let known = workload::names(replay.scheme);
        Fault(format!("unknown workload {:?}; known: {}", replay.workload, known.join(", ")))
    })?;
    let alive = alive();
    let shape = workload.shape(replay.scheme, replay.form);
    let named = Named { workload, shape, choice: replay.strategy, seed: replay.seed };
    let instance = named.instance(&alive)?.without(&replay.without);
    let order = replay.order.unwrap_or(replay.seed);
    let run = named.run(&instance, order, &alive)?;
    let counters = Counters::default();
    let (alive, counters) = (&alive, &counters);
    let checker = Checker { alive, counters, crashes: 40, only: replay.crash, minimises: false };
    let found = checker.check(&run, order);
    let violation = found.map(|found| describe(named, &found, Some(&run), &replay.without, order));
    Ok((run, violation))
}
