//! Directed schedules: threads that pause before chosen steps.

use super::budget::Budget;
use super::check::{Checker, Counters};
use super::replay::Named;
use super::run::{Run, run as run_once};
use super::strategy::{Choice, Pauses, Strategy};
use super::workload::{Holding, Instance};
use crate::parts::workload::Workload;
use crate::state::{Checked, Fault};
use outlast::internals::pmem::Alive;
use outlast::{RecordForm, Scheme};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// A step before which one thread of one of a workload's [pairs](Workload::pairs) is paused.
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    pair: usize,
    thread: usize,
    step: u64,
}

/// Runs each of a workload's [pairs](Workload::pairs), with crashes, many times. In each run, one
/// thread pauses before one of its steps; every `every`-th step at which the thread can pause is
/// tried. If `only` is given, makes only that pause. Returns the first pause with which something
/// is wrong, and a description. The calling thread gets a number.
///
/// # Errors
/// If a pair cannot be made.
pub fn paused(
    (scheme, form): (Scheme, RecordForm),
    workload: &Workload,
    every: usize,
    only: Option<Pause>,
    alive: &Arc<Alive>,
) -> Checked<Option<(Pause, Fault)>> {
    let counters = Counters::default();
    let checker = Checker { alive, counters: &counters, crashes: 1, only: None, minimises: false };
    let pairs = workload.pairs(workload.shape(scheme, form), alive)?;
    let try_one = |pause: Pause| {
        let Pause { pair, thread, step } = pause;
        let run = run_once(&pairs[pair], Strategy::paused(thread, step, 2), alive)?;
        Checked::Ok(checker.check(&run, step).map(|found| {
            let (name, act) = (workload.name, pairs[pair].scripts[thread][0]);
            let fault = format!("{name}: {act}, paused after {step} steps: {}", found.fault);
            (pause, Fault(fault))
        }))
    };
    if let Some(pause) = only {
        return try_one(pause);
    }
    for (pair, instance) in pairs.iter().enumerate() {
        // A thread with several operations is not paused.
        for thread in (0..2).filter(|&thread| instance.scripts[thread].len() == 1) {
            let alone = run_once(&instance.alone(thread), Strategy::InTurn, alive)?;
            for step in (0..alone.steps.all).step_by(every) {
                if let Some(found) = try_one(Pause { pair, thread, step })? {
                    return Ok(Some(found));
                }
            }
        }
    }
    Ok(None)
}

/// The steps *near* an access at a commit point are the step before it and this many steps from the
/// access on.
const NEAR: u64 = 8;

/// Lists the schedules with a thread that is held: each instance of each workload, with each choice
/// of the steps before which its threads are held.
pub(super) fn held_ones(
    kinds: &[&'static Workload],
    (scheme, form): (Scheme, RecordForm),
    budget: &Budget,
    alive: &Arc<Alive>,
) -> Checked<Vec<(Named, Arc<Instance>, u64)>> {
    let mut all = Vec::new();
    for &workload in kinds {
        let shape = workload.shape(scheme, form);
        for (number, instance) in workload.held(shape, alive)?.into_iter().enumerate() {
            let named = Named { workload, shape, choice: Choice::Held, seed: number as u64 };
            let alone = run_once(&instance.alone(0), Strategy::InTurn, alive)?;
            let instance = Arc::new(instance);
            let pointed: HashSet<u64> = alone.pointed[0].iter().map(|(step, _)| *step).collect();
            let others = budget.held_others.div_ceil(workload.held_share());
            let is_chosen = |&step: &u64| match pointed.contains(&step) {
                true => (step + budget.seed).is_multiple_of(budget.held_points),
                false => (step + budget.seed + named.seed).is_multiple_of(others),
            };
            let held = |first, second, again| Pauses { first, second, again }.pack();
            let mut add = |order| all.push((named, Arc::clone(&instance), order));
            if instance.holding == Holding::First {
                let steps = (0..alone.steps.all).filter(is_chosen);
                steps.for_each(|step| add(held(step, None, None)));
                continue;
            }
            // Count the second thread's steps in a run of its own. In the schedule, where it can
            // also meet stores of the first thread, it may make other steps.
            let second = run_once(&instance.alone(1), Strategy::InTurn, alive)?;
            let any = |run: &Run| (0..run.steps.all).collect::<Vec<_>>();
            let near = |run: &Run, thread: usize, point| {
                let at = run.pointed[thread].iter().filter(|(_, at)| *at == point);
                let near = at.flat_map(|&(step, _)| step.saturating_sub(1)..step + NEAR);
                near.collect::<BTreeSet<u64>>().into_iter().collect::<Vec<_>>()
            };
            let optional = |steps: Vec<u64>| steps.into_iter().map(Some).collect();
            let (first, second, again) = match instance.holding {
                Holding::First => unreachable!("above"),
                Holding::Two => (any(&alone), optional(any(&second)), vec![None]),
                Holding::Twice(point) => {
                    (near(&alone, 0, point), vec![None], optional(any(&alone)))
                }
                Holding::Both(point) => {
                    let near = near(&alone, 0, point);
                    (near.clone(), optional(any(&second)), optional(near))
                }
            };
            let number = first.len() * second.len() * again.len();
            let stride = number.div_ceil(budget.held_pairs.max(1) as usize).max(1) | 1;
            let begin = (budget.seed + named.seed * 7) as usize % stride;
            for n in (begin..number).step_by(stride) {
                let (n, one) = (n / first.len(), first[n % first.len()]);
                let (n, second) = (n / second.len(), second[n % second.len()]);
                match again[n] {
                    Some(again) => add(held(one.min(again), second, Some(one.max(again)))),
                    None => add(held(one, second, None)),
                }
            }
        }
    }
    Ok(all)
}
