//! Many schedules of all workloads, within a budget.

use super::budget::Budget;
use super::check::{Checker, Counters, Found, Kind, add, caught};
use super::directed::held_ones;
use super::replay::{Named, Violation, describe};
use super::strategy::Choice;
use super::workload::{self, Instance};
use crate::parts::workload::Workload;
use crate::session::alive;
use outlast::internals::pmem::Alive;
use outlast::{RecordForm, Scheme};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The result of an exploration.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Schedules run. The counts are those of [`Counters`].
    pub schedules: u64,
    /// Schedules with a thread that is held.
    pub held: u64,
    /// Why fewer schedules ran than the budget allows, if fewer did.
    pub short: Option<String>,
    /// Schedules with a crash.
    pub crashed: u64,
    /// Histories.
    pub histories: u64,
    /// Crash images.
    pub images: u64,
    /// Distinct crash images.
    pub images_distinct: u64,
    /// Results whose durability was checked.
    pub responses: u64,
    /// Results for which an image had to be reopened to check that.
    pub responses_imaged: u64,
    /// By kind, how many operations there were.
    pub operations: BTreeMap<&'static str, u64>,
    /// Violations found.
    pub violations: Vec<Violation>,
    /// Time taken.
    pub took: Duration,
}

impl Outcome {
    /// Returns the share of the most frequent kind of operation in all operations, in percent.
    pub fn largest_share(&self) -> u64 {
        let all: u64 = self.operations.values().sum();
        self.operations.values().max().map_or(0, |max| max * 100 / all.max(1))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: u64 = self.operations.values().sum();
        let shares: Vec<_> = self
            .operations
            .iter()
            .map(|(kind, n)| format!("{kind} {}%", n * 100 / all.max(1)))
            .collect();
        write!(
            f,
            "{} schedules, {} of them crashed; {} with a thread held; {} histories, {} crash images ({} distinct), {} \
             answers, {} of them with an image; {} violations; {:.1} s\n  {all} operations: {}",
            self.schedules,
            self.crashed,
            self.held,
            self.histories,
            self.images,
            self.images_distinct,
            self.responses,
            self.responses_imaged,
            self.violations.len(),
            self.took.as_secs_f64(),
            shares.join(", ")
        )
    }
}

/// Runs schedules of all workloads, with crashes in them, within a budget.
pub fn run(
    scheme: Scheme,
    form: RecordForm,
    budget: &Budget,
    counters: &Counters,
    progress: impl Fn(&Counters) + Sync,
) -> Outcome {
    let start = Instant::now();
    let alive = alive();
    let kinds: Vec<&'static Workload> = workload::all(scheme)
        .filter(|w| budget.workload.as_ref().is_none_or(|name| name == w.name))
        .collect();
    if kinds.is_empty() {
        return Outcome::default();
    }
    let found = Mutex::new((Vec::new(), BTreeMap::new()));
    let stop = AtomicBool::new(false);
    let is_over = || start.elapsed() > budget.time || stop.load(Ordering::Relaxed);
    let note = |operations: Vec<&'static str>, violation: Option<Violation>| {
        let mut found = found.lock().unwrap_or_else(|e| e.into_inner());
        for kind in operations {
            *found.1.entry(kind).or_insert(0) += 1;
        }
        if let Some(violation) = violation {
            add(&counters.violations, 1);
            found.0.push(violation);
            if found.0.len() >= budget.violations {
                stop.store(true, Ordering::Relaxed);
            }
        }
        drop(found);
        progress(counters);
    };
    let held = caught(|| held_ones(&kinds, (scheme, form), budget, &alive));
    let wanted = budget.schedules + held.as_ref().map_or(0, |held| held.len() as u64);
    let next = AtomicU64::new(0);
    let one_of = |n: u64| {
        let Some(n) = n.checked_sub(budget.schedules) else {
            let workload = kinds[(n % kinds.len() as u64) as usize];
            let choice = match n / kinds.len() as u64 % 3 {
                0 => Choice::Random,
                _ => Choice::Pct,
            };
            let shape = workload.shape(scheme, form);
            let named = Named { workload, shape, choice, seed: budget.seed + n };
            let (operations, violation) = one(named, budget, counters, &alive);
            return note(operations, violation);
        };
        let Some((named, instance, step)) = held.as_ref().ok().and_then(|h| h.get(n as usize))
        else {
            return;
        };
        let checker = Checker {
            alive: &alive,
            counters,
            crashes: 1,
            only: None,
            minimises: budget.minimises,
        };
        let violation = check(*named, instance, *step, &checker);
        add(&counters.held, 1);
        note(Vec::new(), violation);
    };
    let work = || loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n >= wanted || is_over() {
            return;
        }
        one_of(n);
    };
    std::thread::scope(|scope| {
        for _ in 1..budget.threads {
            scope.spawn(work);
        }
        // This thread is one of the workers, so a bug seeded on it is in effect in its runs.
        work();
    });
    let (violations, operations) = found.into_inner().unwrap_or_else(|e| e.into_inner());
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let made = count(&counters.schedules) + count(&counters.held);
    let short = match held {
        Err(fault) => Some(format!("no thread was held: {fault}")),
        Ok(_) if made < wanted => Some(format!("{made} of {wanted} schedules were made")),
        Ok(_) => None,
    };
    Outcome {
        schedules: count(&counters.schedules),
        held: count(&counters.held),
        short,
        crashed: count(&counters.crashed),
        histories: count(&counters.histories),
        images: count(&counters.images),
        images_distinct: count(&counters.images_distinct),
        responses: count(&counters.responses),
        responses_imaged: count(&counters.responses_imaged),
        operations,
        violations,
        took: start.elapsed(),
    }
}

/// Runs and checks one schedule. Returns the kinds of its operations, and the violation, if any.
fn one(
    named: Named,
    budget: &Budget,
    counters: &Counters,
    alive: &Arc<Alive>,
) -> (Vec<&'static str>, Option<Violation>) {
    let (crashes, minimises) = (budget.crashes, budget.minimises);
    let checker = Checker { alive, counters, crashes, only: None, minimises };
    let instance = match named.instance(alive) {
        Ok(instance) => instance,
        Err(fault) => {
            let found = Found { kind: Kind::Run, crash: None, fault: fault.to_string() };
            return (Vec::new(), Some(describe(named, &found, None, &[], named.seed)));
        }
    };
    let operations = instance.scripts.iter().flatten().map(|act| act.kind()).collect();
    add(&counters.schedules, 1);
    let before = counters.images.load(Ordering::Relaxed);
    let violation = check(named, &instance, named.seed, &checker);
    add(&counters.crashed, u64::from(counters.images.load(Ordering::Relaxed) > before));
    (operations, violation)
}

/// Checks one run. A panic of the check itself is a violation, too.
fn check(named: Named, instance: &Instance, seed: u64, checker: &Checker<'_>) -> Option<Violation> {
    caught(|| Ok(named.check(instance, seed, checker))).unwrap_or_else(|fault| {
        let found = Found { kind: Kind::Run, crash: None, fault: fault.to_string() };
        Some(describe(named, &found, None, &[], seed))
    })
}
